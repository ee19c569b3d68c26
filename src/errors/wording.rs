//! The texts of causes: each names the limit, and what to do.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use crate::errors::cause::{Announced, Cause, IS_A_PROXY, Limit, PERMIT_SCRIPTS};
use crate::errors::own_words::brief;
use crate::errors::server_error::Meaning;
use crate::errors::text::human;

impl Cause {
    /// Why none of the addresses of a name leads to a master. If all causes are alike, that one.
    pub(crate) fn of_addresses(mut failed: Vec<(SocketAddr, Cause)>) -> Cause {
        if failed.iter().all(|(_, cause)| cause.is_silence()) {
            return Cause::Connect(at_addresses(&failed));
        }
        let mut texts = failed.iter().map(|(_, cause)| cause.at_address());
        let first = texts.next();
        let alike = texts.all(|text| Some(text) == first);
        match failed.pop() {
            Some((_, cause)) if alike && !cause.is_replica() => cause,
            last => {
                failed.extend(last);
                Cause::NoAddress(failed)
            }
        }
    }

    /// The text to show before the address that the cause concerns, which another server has named.
    fn there(&self) -> String {
        match self {
            Cause::Sentinel => "a sentinel is".into(),
            other => other.to_string(),
        }
    }

    /// The text to show behind the address that the cause concerns.
    fn at_address(&self) -> String {
        match self {
            Cause::Connect(text) => text.clone(),
            Cause::NotConnected(time, _) => format!("not connected within {}", human(*time)),
            Cause::Replica(_) => "a replica".into(),
            Cause::Sentinel => "a sentinel".into(),
            other => other.to_string(),
        }
    }

    /// The text without advice, for places that give their own.
    pub(crate) fn without_advice(&self) -> String {
        match self {
            Cause::Refused(text) | Cause::LoggedOut(text) => {
                format!("the server answered: {}", brief(text))
            }
            Cause::NeedsScripts(what, text) => {
                let text = brief(text);
                format!("{what} needs scripts, and the server answered: {text}")
            }
            Cause::Announced(announced) if announced.advice.is_none() => {
                announced.names(&announced.cause.without_advice())
            }
            other => other.to_string(),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::NotConnected(time, limit) => not_connected(f, *time, *limit),
            Cause::Unanswered(limit, command) => unanswered(f, *limit, command),
            Cause::Mute(limit) => mute(f, *limit),
            Cause::Connect(text) | Cause::NoSocket(text) | Cause::NoResolver(text) => {
                write!(f, "cannot connect: {text}")
            }
            Cause::Announced(announced) => write!(f, "{announced}"),
            Cause::NoCredentials(text) => write!(f, "cannot connect: no credentials: {text}"),
            Cause::Tls(text) => write!(f, "no TLS connection: {text}"),
            Cause::NoAnswer(time, limit) => no_answer(f, &human(*time), *limit),
            Cause::Closed(text) => write!(f, "connection closed: {text}"),
            Cause::Garbage(text) | Cause::NotRedis(text) => {
                write!(f, "not a Redis answer: {text}")
            }
            Cause::Refused(_) | Cause::LoggedOut(_) => {
                f.write_str(&self.without_advice())?;
                match self.meaning().advice() {
                    Some(advice) => write!(f, " ({advice})"),
                    None => Ok(()),
                }
            }
            Cause::OtherSlots(text) => write!(
                f,
                "the server answered: {text} (a Redis Cluster has these names in different slots: give them a \
                 common tag, as in {{shop}}:a and {{shop}}:b)"
            ),
            Cause::Demoted(text) => write!(f, "the server is a replica now: {text}"),
            Cause::Replica(Some(at)) => write!(
                f,
                "the server at {at} is a replica; its name is looked up again"
            ),
            Cause::Replica(None) => f.write_str("the server is a replica; it is tried again"),
            Cause::Sentinel => f.write_str(
                "that is a sentinel: write redis+sentinel://host:port/NAME, with the name of the master",
            ),
            Cause::OtherServer => f.write_str("another server, by its ID, answers"),
            Cause::Endless(text) | Cause::NoMaster(text, _) | Cause::FewName(text, _) => {
                f.write_str(text)
            }
            Cause::NoAddress(all) => no_address(f, all, self.is_replica()),
            Cause::MasterReplaced(to) => write!(f, "the master is {to} now"),
            Cause::Redirected(answer) => answer.fmt(f),
            Cause::SameServer(other) => write!(f, "the same server as node {other}"),
            Cause::Quarantined(left, evicted) => quarantined(f, *left, *evicted),
            Cause::Stepped(by, left) => stepped(f, *by, *left),
            Cause::NoInfo(needed) => write!(
                f,
                "the restart guard needs {needed}, which this server does not report, or not to this user"
            ),
            Cause::NoWitness(text) => no_witness(f, text),
            Cause::NoRelease(text) => no_release(f, text),
            Cause::NeedsScripts(..) => write!(f, "{} ({PERMIT_SCRIPTS})", self.without_advice()),
            Cause::NoMark(why) => f.write_str(why),
            Cause::NoThread(text) => write!(f, "cannot start a thread: {text}"),
            Cause::NotAsked => f.write_str("not asked in time"),
        }
    }
}

fn mute(f: &mut fmt::Formatter<'_>, limit: Duration) -> fmt::Result {
    write!(
        f,
        "not connected within {} (connect_timeout): it has said nothing (does this port speak TLS?)",
        human(limit)
    )
}

fn no_release(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    write!(
        f,
        "it permits neither EVAL nor DELIFEQ nor DELEX ({text}): a lock could be taken and not released"
    )
}

fn no_address(
    f: &mut fmt::Formatter<'_>,
    all: &[(SocketAddr, Cause)],
    is_replica: bool,
) -> fmt::Result {
    let all = at_addresses(all);
    write!(f, "none of its addresses leads to a master: {all}")?;
    match is_replica {
        true => f.write_str(" (it is looked up again; give a name of the master alone)"),
        false => Ok(()),
    }
}

/// The maximum of addresses that are named.
const NAMED: usize = 8;

/// The cause at each address; addresses with the same cause together.
fn at_addresses(all: &[(SocketAddr, Cause)]) -> String {
    let mut alike: Vec<(String, Vec<String>)> = Vec::new();
    for (address, cause) in all.iter().take(NAMED) {
        let (address, text) = (address.to_string(), cause.at_address());
        match alike.iter_mut().find(|(other, _)| *other == text) {
            Some((_, addresses)) => addresses.push(address),
            None => alike.push((text, vec![address])),
        }
    }
    let shown = alike.into_iter();
    let shown = shown.map(|(text, addresses)| format!("{}: {text}", addresses.join(" and ")));
    let mut shown: Vec<String> = shown.collect();
    if let Some(more @ 1..) = all.len().checked_sub(NAMED) {
        shown.push(format!("and {more} more"));
    }
    shown.join("; ")
}

impl Announced {
    fn names(&self, cause: &str) -> String {
        format!("{}, which {} names: {cause}", self.at, self.by)
    }
}

impl fmt::Display for Announced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Announced { cause, at, by, .. } = self;
        match self.advice {
            Some(advice) => write!(f, "{} at {at}, which {by} names ({advice})", cause.there()),
            None => f.write_str(&self.names(&cause.to_string())),
        }
    }
}

fn not_connected(f: &mut fmt::Formatter<'_>, time: Duration, limit: Duration) -> fmt::Result {
    let (took, most) = (human(time), human(limit));
    match time < limit {
        true => write!(
            f,
            "not connected yet, after {took} of {most} (connect_timeout)"
        ),
        false => write!(f, "not connected within {most} (connect_timeout)"),
    }
}

fn unanswered(f: &mut fmt::Formatter<'_>, limit: Duration, command: &str) -> fmt::Result {
    let limit = human(limit);
    write!(
        f,
        "connected, but no answer to {command} within {limit} (connect_timeout){IS_A_PROXY}"
    )
}

fn no_answer(f: &mut fmt::Formatter<'_>, time: &str, limit: Limit) -> fmt::Result {
    match limit {
        Limit::Node(1) => write!(f, "no answer within {time} (node_timeout)"),
        Limit::Node(n) => write!(f, "no answer within {time} ({n} × node_timeout)"),
        Limit::Connect => write!(f, "no answer within {time} (connect_timeout)"),
        Limit::Rest => write!(f, "no answer within {time}, and no more time was left"),
        Limit::Write => write!(f, "it took in nothing within {time}"),
        Limit::Own => write!(f, "no answer within {time}"),
    }
}

fn quarantined(f: &mut fmt::Formatter<'_>, left: Duration, evicted: bool) -> fmt::Result {
    let why = match evicted {
        true => "has evicted keys, so locks may be gone (set maxmemory-policy noeviction)",
        false => "restarted or replaced lately, may have forgotten locks",
    };
    write!(f, "{why}: votes in {}", human(left))
}

fn stepped(f: &mut fmt::Formatter<'_>, by: Duration, left: Duration) -> fmt::Result {
    let (by, left) = (human(by), human(left));
    write!(
        f,
        "its clock was set forward by {by}, so locks there may have ended early (or the clock of this machine stood still): \
         it grants no lock for {left}"
    )
}

fn no_witness(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    let advice = match Meaning::of(text) {
        Meaning::WrongType => {
            ": another program's data is there, delete it or use another database"
        }
        _ => "",
    };
    write!(
        f,
        "the restart guard needs the key redlock:witness (GET, PTTL, SET), behind the locks' prefix if they have one: the \
         server answered: {text}{advice}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Where the master itself refuses, or something else is at its address.
    #[test]
    fn a_server_that_another_one_has_named_is_shown_with_both() {
        let announced = |cause: Cause, advice: Option<&'static str>| {
            Cause::Announced(Box::new(Announced {
                cause,
                at: "10.0.0.5:6379".into(),
                shown: "m at 10.0.0.5:6379".into(),
                by: "the sentinel a:1".into(),
                is_final: advice.is_none(),
                advice,
            }))
        };
        let wrong = || Cause::refused("WRONGPASS invalid username-password pair");
        for (cause, advice, is_final, expected) in [
            (
                wrong(),
                None,
                true,
                "10.0.0.5:6379, which the sentinel a:1 names: the server answered: WRONGPASS invalid username-password pair",
            ),
            (
                wrong(),
                Some("look there"),
                false,
                "WRONGPASS invalid username-password pair (look at the user and the password: it may have none) at \
                 10.0.0.5:6379, which the sentinel a:1 names (look there)",
            ),
            (
                Cause::Sentinel,
                Some("look there"),
                false,
                "a sentinel is at 10.0.0.5:6379, which the sentinel a:1 names (look there)",
            ),
        ] {
            let cause = announced(cause, advice);
            assert!(cause.to_string().contains(expected), "{cause}");
            assert_eq!(cause.is_final(), is_final, "{cause}");
            assert_eq!(cause.meaning().concerns_login(), is_final, "{cause}");
        }
    }

    #[test]
    fn causes_name_the_option_that_they_hang_on_and_round_times() {
        let odd = Duration::from_nanos(49_999_871);
        for (cause, expected) in [
            (
                Cause::NoAnswer(50 * MS, Limit::Node(1)),
                "no answer within 50 ms (node_timeout)",
            ),
            (
                Cause::NoAnswer(1000 * MS, Limit::Node(20)),
                "no answer within 1 s (20 × node_timeout)",
            ),
            (
                Cause::NoAnswer(500 * MS, Limit::Connect),
                "no answer within 500 ms (connect_timeout)",
            ),
            (
                Cause::NoAnswer(odd, Limit::Rest),
                "no answer within 50 ms, and no more time was left",
            ),
            (
                Cause::NoAnswer(odd / 2, Limit::Write),
                "it took in nothing within 25 ms",
            ),
            (
                Cause::NotConnected(500 * MS, 500 * MS),
                "not connected within 500 ms (connect_timeout)",
            ),
            (
                Cause::NotConnected(odd, 500 * MS),
                "not connected yet, after 50 ms of 500 ms (connect_timeout)",
            ),
            (
                Cause::Unanswered(2000 * MS, "INFO".into()),
                "connected, but no answer to INFO within 2 s (connect_timeout) (is it a proxy? it may not know that command: \
                 give the address of the server behind it)",
            ),
            (
                Cause::Quarantined(Duration::from_micros(1_549_000), false),
                "restarted or replaced lately, may have forgotten locks: votes in 1.5 s",
            ),
            (
                Cause::Quarantined(2 * MS, true),
                "has evicted keys, so locks may be gone (set maxmemory-policy noeviction): votes in 2 ms",
            ),
            (
                Cause::Stepped(Duration::from_micros(11_999_900), 30 * 1000 * MS),
                "its clock was set forward by 12 s, so locks there may have ended early (or the clock of this machine \
                 stood still): it grants no lock for 30 s",
            ),
        ] {
            assert_eq!(cause.to_string(), expected);
        }
    }

    #[test]
    fn a_replica_is_named_with_its_address_and_what_happens_next() {
        let at = "10.0.0.1:6379".parse().ok();
        for (cause, expected) in [
            (
                Cause::demoted("READONLY You can't write against a read only replica."),
                "the server is a replica now: READONLY You can't write against a read only replica.",
            ),
            (
                Cause::Replica(at),
                "the server at 10.0.0.1:6379 is a replica; its name is looked up again",
            ),
            (
                Cause::Replica(None),
                "the server is a replica; it is tried again",
            ),
        ] {
            assert_eq!(cause.to_string(), expected);
            assert!(cause.is_replica(), "{cause}");
        }
        assert!(!Cause::Sentinel.is_replica());
        let sentinel = Cause::Sentinel.to_string();
        assert!(sentinel.starts_with("that is a sentinel: "), "{sentinel}");
    }

    #[test]
    fn what_a_server_refuses_is_followed_by_what_to_do() {
        for (text, advice) in [
            ("NOAUTH Authentication required.", "redis://user:password@"),
            ("WRONGPASS invalid username-password pair", "the password"),
            ("READONLY You can't write", "name its master"),
            ("CLUSTERDOWN Hash slot not served", "CLUSTER INFO"),
            ("MOVED 17 127.0.0.1:1", "redis+cluster://"),
        ] {
            let cause = Cause::refused(text);
            let shown = cause.to_string();
            assert!(
                shown.starts_with(&format!("the server answered: {text} (")),
                "{shown}"
            );
            assert!(shown.contains(advice), "{shown}");
            assert!(!cause.without_advice().contains(advice), "{shown}");
        }
        let other = Cause::refused("ERR something new").to_string();
        assert_eq!(other, "the server answered: ERR something new");
    }

    #[test]
    fn a_server_error_never_repeats_the_arguments() {
        let text = "ERR unknown command 'AUTH', with args beginning with: 'hunter2' ";
        assert_eq!(
            Cause::refused(text).to_string(),
            "the server answered: ERR unknown command 'AUTH' (look at the user and the password: it may have none)"
        );
    }
}
