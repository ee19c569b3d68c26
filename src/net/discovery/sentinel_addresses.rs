//! The answer of one name of sentinels, behind which there may be several (rule R43).

use std::collections::BTreeMap;
use std::net::SocketAddr;

use redis::ConnectionAddr;

use crate::errors::cause::Cause;
use crate::errors::server_error::Meaning;
use crate::errors::text;
use crate::net::discovery::asker::ServerAnswer;
use crate::protocol::discovery::master_answers::{MasterAnswer, answer_of_name};
use crate::protocol::discovery::opinions::Unknown;
use crate::protocol::mutants::{Mutant, mutant};
use crate::values::clock;

/// The answer of a sentinel, or of several behind one name.
#[derive(Clone)]
pub(super) struct SentinelAnswer {
    /// The master's address. `None`: the sentinel has no master of that name.
    pub(super) master: Option<ConnectionAddr>,
    /// More than half of the addresses of its name report that, and not only of those that answered.
    pub(super) by_most: bool,
    /// The sentinels that have answered, each with its answer.
    pub(super) by: Vec<AddressAnswer>,
}

/// The answer of the sentinel at one address.
#[derive(Clone)]
pub(super) struct AddressAnswer {
    pub(super) at: Option<SocketAddr>,
    /// Its `SENTINEL MYID`, where it answers that.
    pub(super) id: Option<String>,
    /// The master's address, if it has one of that name.
    pub(super) master: Option<ConnectionAddr>,
}

impl AddressAnswer {
    /// Whether both are answers of one sentinel: one may have several addresses, and behind one address there may be several
    /// sentinels, which TLS tells apart by their names.
    fn is_same(&self, other: &AddressAnswer) -> bool {
        match (&self.id, &other.id) {
            _ if mutant(Mutant::AddressIsSentinel) => self.at == other.at,
            (Some(one), Some(other)) => one == other,
            _ => self.at.is_some() && self.at == other.at,
        }
    }
}

/// The opinion of a sentinel, or of those behind its name. Those that were all heard before, under other names, have none. If
/// the answers of one sentinel differ, it may have changed its mind, or its address may lead to several.
pub(super) fn read(
    named: &SentinelAnswer,
    seen: &mut Vec<AddressAnswer>,
) -> Result<ConnectionAddr, Unknown> {
    let before = |one: &AddressAnswer| seen.iter().find(|other| other.is_same(one));
    let again = named.by.iter().map(|one| Some((one, before(one)?)));
    let again: Vec<Option<_>> = again.collect();
    let mut heard_again = again.iter().flatten();
    let differs = heard_again.any(|(one, before)| one.master != before.master);
    let is_again = match mutant(Mutant::OneSharedAddressIsAll) {
        true => again.iter().any(Option::is_some),
        false => !again.is_empty() && again.iter().all(Option::is_some),
    };
    seen.extend(named.by.iter().cloned());
    match (is_again, differs) {
        _ if mutant(Mutant::NamesCountTwice) => named.master.clone().ok_or(Unknown::Name),
        (_, true) => Err(Unknown::Failed(Cause::Garbage(
            "answers differently under another name".into(),
        ))),
        (true, false) => Err(Unknown::Again),
        (false, false) => named.master.clone().ok_or(Unknown::Name),
    }
}

pub(super) fn is_v6(address: &Option<SocketAddr>) -> bool {
    address.is_some_and(|one| one.is_ipv6())
}

/// The answers of the sentinels behind a name, by the numbers of their addresses.
pub(super) type AnswersByAddress = BTreeMap<usize, ServerAnswer<AddressAnswer>>;

/// The answer of the name with these addresses, by the answers so far. A sentinel with several of the
/// addresses has one in each family.
pub(super) fn answer_so_far(
    addresses: &[Option<SocketAddr>],
    told: &AnswersByAddress,
) -> (MasterAnswer<ConnectionAddr>, bool) {
    let answer = |at: &usize| told.get(at).and_then(|told| told.as_ref().ok());
    let is_first = |at: &usize| {
        let family = |at: &usize| addresses.get(*at).map(is_v6);
        let before = (0..*at).filter(|earlier| family(earlier) == family(at));
        let mut before = before.filter_map(|earlier| answer(&earlier));
        answer(at).is_none_or(|one| !before.any(|other| other.is_same(one)))
    };
    let each = addresses.iter().enumerate();
    let weighed = each.filter(|(at, _)| is_first(at)).map(|(at, address)| {
        let answer = match told.get(&at) {
            Some(Ok(answer)) => {
                let master = answer.master.clone();
                master.map_or(MasterAnswer::NamesNone, MasterAnswer::Names)
            }
            Some(Err(cause)) if cause.is_silence() => MasterAnswer::Silent,
            Some(Err(_)) | None => MasterAnswer::Unknown,
        };
        (is_v6(address), answer)
    });
    answer_of_name(&weighed.collect::<Vec<_>>(), clock::instant())
}

/// The answer of the sentinels at these addresses of a name together, or why there is none.
pub(super) fn of_name(
    addresses: &[Option<SocketAddr>],
    mut told: AnswersByAddress,
) -> ServerAnswer<SentinelAnswer> {
    let (answer, by_most) = answer_so_far(addresses, &told);
    let master = match answer {
        MasterAnswer::Names(master) => Some(master),
        MasterAnswer::NamesNone => None,
        MasterAnswer::Silent | MasterAnswer::Unknown => {
            let answers = told.values().filter_map(|one| one.as_ref().ok());
            let mut named = answers.filter_map(|one| one.master.as_ref());
            let first = named.next();
            if named.any(|other| Some(other) != first) {
                let text = "different masters at the addresses of its name";
                return Err(Cause::Garbage(text.into()));
            }
            let each = addresses.iter().enumerate().map(|(at, address)| {
                let told = told.remove(&at).unwrap_or(Err(Cause::NotAsked));
                (*address, told)
            });
            return Err(of_addresses(each.collect()));
        }
    };
    Ok(SentinelAnswer {
        master,
        by_most,
        by: told.into_values().flatten().collect(),
    })
}

/// Why the sentinels behind one name do not answer, by the answer at each of its addresses: what each one says, unless all
/// fail alike.
fn of_addresses(each: Vec<(Option<SocketAddr>, ServerAnswer<AddressAnswer>)>) -> Cause {
    let failed = each
        .iter()
        .filter_map(|(at, told)| Some((at, told.as_ref().err()?)));
    let failed: Vec<_> = failed.collect();
    if let ([(_, cause)], 1) = (&failed[..], each.len()) {
        return (*cause).clone();
    }
    if failed.len() == each.len() {
        let all = failed
            .iter()
            .filter_map(|(at, cause)| Some(((**at)?, (*cause).clone())));
        match Cause::of_addresses(all.collect()) {
            Cause::NoAddress(_) => {}
            alike => return alike,
        }
    }
    let is_final = failed.iter().all(|(_, cause)| cause.is_final());
    let texts = each.iter().filter_map(|(at, told)| {
        let at = (*at)?;
        Some(match told {
            Ok(answer) => match &answer.master {
                Some(master) => format!("{at} names {}", text::address(master)),
                None => format!("{at} does not know it"),
            },
            Err(cause) => format!("{at}: {}", refusal(cause)),
        })
    });
    let texts = texts.collect::<Vec<_>>().join(", ");
    let names =
        |told: &ServerAnswer<AddressAnswer>| matches!(told, Ok(one) if one.master.is_some());
    match each.iter().any(|(_, told)| names(told)) {
        true => Cause::FewName(texts, is_final),
        false => Cause::NoMaster(texts, is_final),
    }
}

/// The right without which a sentinel names no master.
pub(super) const RIGHT: &str =
    "permit it to the sentinels' user: +sentinel|get-master-addr-by-name";

/// A sentinel's refusal, with what to do.
pub(super) fn refusal(cause: &Cause) -> String {
    let text = cause.without_advice();
    match cause {
        Cause::NotConnected(time, _) => format!("no answer within {}", text::human(*time)),
        Cause::Refused(_) if cause.meaning().concerns_login() => {
            format!("{text} (for sentinels: ?sentinel_username=…&sentinel_password=…)")
        }
        Cause::Refused(_) => match cause.meaning() {
            Meaning::NoSuchCommand | Meaning::Other => format!("{text} (that is no sentinel)"),
            Meaning::NotPermitted => format!("{text} ({RIGHT})"),
            meaning => match meaning.advice() {
                Some(advice) => format!("{text} ({advice})"),
                None => text,
            },
        },
        _ => text,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::protocol::mutants::set_mutant;

    fn at(port: u16) -> Option<SocketAddr> {
        Some(SocketAddr::from(([127, 0, 0, 1], port)))
    }

    /// The answer at the address of this port.
    fn answer(port: u16, id: Option<char>, master: Option<char>) -> AddressAnswer {
        AddressAnswer {
            at: at(port),
            id: id.map(String::from),
            master: master.map(|name| ConnectionAddr::Tcp(name.into(), 1)),
        }
    }

    /// The answer of a name whose addresses, of the ports 1, 2, …, answer this.
    pub(in crate::net::discovery) fn behind_a_name(words: &str) -> ServerAnswer<SentinelAnswer> {
        let answer = |at, master| Ok(answer(at, None, master));
        let told = words.chars().zip(1..).map(|(word, port)| match word {
            '-' => Err(Cause::NotConnected(Duration::ZERO, Duration::ZERO)),
            '!' => Err(Cause::Refused("NOAUTH".into())),
            '?' => answer(port, None),
            name => answer(port, Some(name)),
        });
        let told: AnswersByAddress = told
            .enumerate()
            .filter(|(at, _)| words.as_bytes()[*at] != b'.')
            .collect();
        let addresses: Vec<_> = (1..).map(at).take(words.len()).collect();
        of_name(&addresses, told)
    }

    /// The opinions of names one after the other, each with its sentinels: the port, the ID (`-`: none), and the master.
    fn opinions<const N: usize>(names: [&[&str]; N]) -> [String; N] {
        let mut seen = Vec::new();
        names.map(|sentinels| {
            let told = sentinels.iter().map(|text| {
                let word: Vec<char> = text.chars().collect();
                let id = Some(word[1]).filter(|id| *id != '-');
                let port = u16::try_from(u32::from(word[0])).unwrap();
                Ok(answer(port, id, Some(word[2])))
            });
            let told: AnswersByAddress = told.enumerate().collect();
            let addresses = told.values().map(|one| one.as_ref().unwrap().at);
            let Ok(named) = of_name(&addresses.collect::<Vec<_>>(), told) else {
                return "unclear".into();
            };
            match read(&named, &mut seen) {
                Ok(master) => master.to_string().replace(":1", ""),
                Err(Unknown::Again) => "again".into(),
                Err(Unknown::Failed(Cause::Garbage(_))) => "differs".into(),
                Err(_) => "none".into(),
            }
        })
    }

    fn found_with<R>(mutant: Mutant, found: impl Fn() -> R) -> R {
        set_mutant(Some(mutant));
        let found = found();
        set_mutant(None);
        found
    }

    #[test]
    fn a_sentinel_that_answers_under_two_names_counts_once() {
        let found = || opinions([&["1-m"], &["1-m"], &["2-m"], &["1-n"]]);
        assert_eq!(found(), ["m", "again", "m", "differs"]);
        let found = found_with(Mutant::NamesCountTwice, found);
        assert_eq!(found, ["m", "m", "m", "n"]);
    }

    /// By another interface, or by IPv4 and IPv6. Where TLS tells them apart, or a proxy chooses one of them, several sentinels
    /// have one address.
    #[test]
    fn a_sentinel_is_recognized_by_its_id_at_any_address() {
        let found = || opinions([&["1xm"], &["2xm"], &["3xn"], &["1ym"]]);
        assert_eq!(found(), ["m", "again", "differs", "m"]);
        let found = found_with(Mutant::AddressIsSentinel, found);
        assert_eq!(found, ["m", "m", "n", "again"]);
        // Two of three addresses of a name are those of one sentinel.
        assert_eq!(opinions([&["1xm", "2xm", "3yn"]]), ["unclear"]);
    }

    /// One of two sentinels cannot be reached by IPv6, and the other one by IPv4: the second answer alone is that of few.
    #[test]
    fn of_a_name_with_two_families_each_counts_all_of_its_addresses() {
        let v6 = |port| Some(SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, port)));
        let silent = || Err(Cause::NotConnected(Duration::ZERO, Duration::ZERO));
        let told = [
            Ok(answer(1, Some('x'), None)),
            silent(),
            Ok(AddressAnswer {
                at: v6(1),
                ..answer(1, Some('x'), None)
            }),
            Ok(AddressAnswer {
                at: v6(2),
                ..answer(2, Some('y'), Some('n'))
            }),
        ];
        let told: AnswersByAddress = told.into_iter().enumerate().collect();
        let named = of_name(&[at(1), at(2), v6(1), v6(2)], told).ok().unwrap();
        assert_eq!((named.master.is_some(), named.by_most), (true, false));
    }

    #[test]
    fn a_name_with_more_sentinels_than_those_heard_before_counts() {
        let found = || opinions([&["1-m"], &["1-m", "2-n", "3-n"]]);
        assert_eq!(found(), ["m", "n"]);
        let found = found_with(Mutant::OneSharedAddressIsAll, found);
        assert_eq!(found, ["m", "again"]);
        assert_eq!(opinions([&["1-m", "2-n", "3-n"], &["1-m"]]), ["n", "again"]);
        assert_eq!(opinions([&["1-m"], &["1-n", "2-n"]]), ["m", "differs"]);
    }

    #[test]
    fn a_name_without_a_word_reports_why() {
        for (words, expected) in [
            ("ab", "different masters"),
            ("ab!", "different masters"),
            (
                "a!",
                "127.0.0.1:1 names a:1, 127.0.0.1:2: the server answered: NOAUTH",
            ),
            (
                "aa!!",
                "127.0.0.1:4: the server answered: NOAUTH (for sentinels",
            ),
            ("?!", "127.0.0.1:1 does not know it, 127.0.0.1:2: "),
            (
                "-!",
                "127.0.0.1:2: the server answered: NOAUTH (for sentinels",
            ),
            ("!!", "the server answered: NOAUTH"),
            ("a.", &Cause::NotAsked.to_string()),
        ] {
            let text = behind_a_name(words).err().unwrap().to_string();
            assert!(text.contains(expected), "{words}: {text}");
        }
        assert!(behind_a_name("--").is_err_and(|cause| cause.is_silence()));
        assert!(behind_a_name("-.").is_err_and(|cause| !cause.is_silence()));
    }
}
