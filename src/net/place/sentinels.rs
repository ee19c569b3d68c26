//! The sentinels of a set, and what they report of its master.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::ConnectionAddr;

use crate::errors::cause::Cause;
use crate::errors::text;
use crate::net::place::ask_each::{AskTerms, SendPart, ask_each};
use crate::net::place::asker::{Asker, Patience, Told};
use crate::net::place::given::Given;
use crate::net::place::question::{self, Opinions, Turn, Unknown};
use crate::net::socket::peer::Peer;
use crate::net::socket::plain::addresses;
use crate::protocol::commands::resp::Reply;
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::node::answers::{Word, word_of_name};
use crate::protocol::node::directory::DirectoryTimes;
use crate::protocol::node::questions::Heard;
use crate::settings::url;
use crate::values::clock;

/// How many sentinels are asked at a time for their descriptions: each has a thread.
const AT_A_TIME: usize = 64;

/// The sentinels of a set, and the questions to them.
pub(crate) struct Sentinels {
    given: Arc<Given>,
    pub(crate) name: String,
    all: Vec<Peer>,
    asker: Arc<Asker<SentinelAnswer>>,
}

/// The answer of a sentinel, or of several behind one name.
#[derive(Clone)]
struct SentinelAnswer {
    /// The master's address. `None`: the sentinel has no master of that name.
    master: Option<ConnectionAddr>,
    /// The addresses that have answered.
    by: Vec<Option<SocketAddr>>,
}

impl Sentinels {
    /// Returns `None` if the node is no set.
    pub(crate) fn new(given: &Arc<Given>) -> Option<Sentinels> {
        let set = given.node.set()?;
        let all = set.sentinels.iter().map(|info| given.sentinel(info));
        Some(Sentinels {
            given: given.clone(),
            name: set.name.clone(),
            all: all.collect(),
            asker: Asker::new(),
        })
    }

    /// Asks all sentinels at once, or waits for the answers to questions under way, until it is certain which master is
    /// believed, at most for `time`. A thread that resolves a name may take longer.
    pub(crate) fn ask_all(self: &Arc<Self>, time: Duration) -> Opinions {
        let now = clock::instant();
        let patience = Patience {
            time,
            lasts: DirectoryTimes::REAL.lasts,
            most: usize::MAX,
        };
        let sentinels = self.clone();
        let ask = move |peer: &Peer, turn: &Turn<'_>| sentinels.ask(peer, turn);
        let weigh = |heard: &[Heard<'_, Told<SentinelAnswer>>]| {
            let seen = RefCell::new(Vec::new());
            let read = |named: &SentinelAnswer, _| read(named, &mut seen.borrow_mut());
            Opinions::of((&self.all, 0), (now, time), heard, read)
        };
        let is_enough = Opinions::is_certain;
        self.asker
            .ask_all(&self.all, patience, ask, weigh, is_enough)
    }

    /// The master's address, as the sentinel reports it. Behind a name there may be several, as in Kubernetes: then most of
    /// them decide.
    fn ask(&self, sentinel: &Peer, turn: &Turn<'_>) -> Told<SentinelAnswer> {
        let mut addresses = addresses(sentinel.addr())?;
        (turn.begins)()?;
        let is_v6 = |address: &Option<SocketAddr>| address.is_some_and(|one| one.is_ipv6());
        let first = addresses.first().is_some_and(is_v6);
        // Family by family.
        addresses.sort_by_key(|one| is_v6(one) != first);
        let unasked = addresses.iter().map(|one| (is_v6(one), Word::Unknown));
        let mut words: Vec<_> = unasked.collect();
        let (mut by, mut failed) = (Vec::new(), Vec::new());
        for (at, address) in addresses.iter().enumerate() {
            let now = clock::instant();
            let rest = turn.until.saturating_duration_since(now);
            let share = rest / u32::try_from(addresses.len() - at).unwrap_or(u32::MAX);
            let told = match share.is_zero() {
                true => Err(Cause::NotAsked),
                false => self.ask_address(sentinel, address.as_ref(), (now + share, share)),
            };
            let word = match told {
                Ok(master) => {
                    by.push(*address);
                    master.map_or(Word::NamesNone, Word::Names)
                }
                Err(cause) => {
                    let silent = cause.is_silence();
                    failed.push((*address, cause));
                    if silent { Word::Silent } else { Word::Unknown }
                }
            };
            if let Some((_, place)) = words.get_mut(at) {
                *place = word;
            }
            if let Word::Names(master) = word_of_name(&words, now) {
                let master = Some(master);
                return Ok(SentinelAnswer { master, by });
            }
        }
        let differ = || Cause::Garbage("different masters at the addresses of its name".into());
        let names_any = words.iter().any(|(_, word)| matches!(word, Word::Names(_)));
        match word_of_name(&words, clock::instant()) {
            Word::NamesNone => Ok(SentinelAnswer { master: None, by }),
            _ if names_any => Err(differ()),
            _ => Err(of_addresses(failed)),
        }
    }

    /// The master's address, as the sentinel at this address reports it.
    fn ask_address(
        &self,
        sentinel: &Peer,
        address: Option<&SocketAddr>,
        time: (Instant, Duration),
    ) -> Told<Option<ConnectionAddr>> {
        let command: &[&[u8]] = &[
            b"SENTINEL",
            b"GET-MASTER-ADDR-BY-NAME",
            self.name.as_bytes(),
        ];
        let Some(words) = words(question::ask_address(sentinel, address, command, time)?)? else {
            return Ok(None);
        };
        match endpoint(&words) {
            Some((host, port)) if !self.given.secret().is_in_host(host) => {
                Ok(Some(self.given.addr(&(host.to_owned(), port))))
            }
            _ => Err(no_address()),
        }
    }

    /// For each of these sets, each sentinel's description of the master. All sentinels are asked at once, so all answers are
    /// there within `timeout` except for names that are not resolved in time.
    pub(crate) fn describe(sets: &[&Sentinels], timeout: Duration) -> Vec<Descriptions> {
        let each = |set: &&Sentinels| -> Vec<(Peer, String)> {
            let all = set.all.iter().cloned();
            all.map(|peer| (peer, set.name.clone())).collect()
        };
        let all: Vec<(Peer, String)> = sets.iter().flat_map(each).collect();
        let answers = all.chunks(AT_A_TIME);
        let mut answers = answers.flat_map(|some| describe_at_once(some, timeout));
        let set = |set: &&Sentinels| -> Descriptions {
            let names = set.all.iter().map(|peer| text::address(peer.addr()));
            let shown = |answer: Told<_>| answer.map(|description| set.shown(description));
            names.zip(answers.by_ref().map(shown)).collect()
        };
        sets.iter().map(set).collect()
    }

    /// The description without hosts that repeat a password.
    fn shown(&self, mut description: Description) -> Description {
        let (hosts, secret) = (description.values_mut(), self.given.secret());
        let hidden = hosts.filter(|value| secret.is_in_host(value));
        hidden.for_each(|value| *value = "***".into());
        description
    }

    /// Why no master is believed.
    pub(crate) fn no_master(&self, said: &Opinions) -> Cause {
        let name = &self.name;
        let each = said.each();
        let mut words = each.iter().map(|(_, word)| word);
        if words.all(|word| matches!(word, Err(Unknown::Name))) {
            return Cause::NoMaster(format!("no sentinel knows a master {name:?}"), true);
        }
        let mut is_final = !said.names_any();
        let why = each.iter().map(|(sentinel, word)| match word {
            Ok(master) => format!("{sentinel} names {master}"),
            Err(Unknown::Name) => format!("{sentinel} does not know it"),
            Err(Unknown::Again) => format!("{sentinel} is another name of one of these"),
            Err(Unknown::Failed(cause)) => {
                is_final &= cause.is_final();
                format!("{sentinel}: {}", refusal(cause))
            }
        });
        let why = why.collect::<Vec<_>>().join("; ");
        let few = match said.names_any() {
            true => "no majority of the sentinels names the master",
            false => "no sentinel names the master",
        };
        Cause::NoMaster(format!("{few} {name:?}: {why}"), is_final)
    }
}

/// The opinion of a sentinel. One that was heard before, under another name, has none.
fn read(
    named: &SentinelAnswer,
    seen: &mut Vec<Option<SocketAddr>>,
) -> Result<ConnectionAddr, Unknown> {
    let again = named.by.iter().any(|one| seen.contains(one)) && !mutant(Mutant::NamesCountTwice);
    seen.extend(&named.by);
    match again {
        true => Err(Unknown::Again),
        false => named.master.clone().ok_or(Unknown::Name),
    }
}

/// Why the sentinels behind one name do not answer, by what failed at each of its addresses.
fn of_addresses(mut failed: Vec<(Option<SocketAddr>, Cause)>) -> Cause {
    match failed.pop() {
        Some((_, cause)) if failed.is_empty() => cause,
        last => {
            let all = failed.into_iter().chain(last);
            Cause::of_addresses(all.filter_map(|(at, cause)| Some((at?, cause))).collect())
        }
    }
}

/// The answers of these sentinels, each about the master of a name.
fn describe_at_once(
    sentinels: &[(Peer, String)],
    timeout: Duration,
) -> impl Iterator<Item = Told<Description>> + use<> {
    let until = clock::instant() + timeout;
    let asks = sentinels.iter().cloned().map(|(sentinel, name)| {
        move |_: SendPart<'_, ()>| {
            let turn = Turn {
                until,
                timeout,
                begins: &|| Ok(()),
            };
            let words = tell(&sentinel, b"MASTER", &name, &turn)?;
            Ok(described(words.unwrap_or_default()))
        }
    });
    let terms = AskTerms {
        name: "redlock-find",
        patience: timeout,
        silence: Cause::NotConnected(timeout, timeout),
        abandoned: None,
    };
    ask_each(asks.enumerate(), terms, |_, ()| {}).into_values()
}

/// A sentinel's refusal, with what to do.
fn refusal(cause: &Cause) -> String {
    let text = cause.without_advice();
    match cause {
        Cause::NotConnected(time, _) => format!("no answer within {}", text::human(*time)),
        Cause::Refused(_) if cause.meaning().concerns_login() => {
            format!("{text} (for sentinels: ?sentinel_username=…&sentinel_password=…)")
        }
        Cause::Refused(_) => format!("{text} (that is no sentinel)"),
        _ => text,
    }
}

/// A sentinel's description of a master: names and values.
pub(crate) type Description = BTreeMap<String, String>;
/// The report of each sentinel of a set, or why there is none.
pub(crate) type Descriptions = Vec<(String, Result<Description, Cause>)>;

fn described(words: Vec<String>) -> Description {
    let mut words = words.into_iter();
    let mut description = Description::new();
    while let (Some(name), Some(value)) = (words.next(), words.next()) {
        description.insert(name, value);
    }
    description
}

/// The words of a sentinel's answer about the master of this name. `None` if it has no such master.
fn tell(
    sentinel: &Peer,
    question: &[u8],
    name: &str,
    turn: &Turn<'_>,
) -> Result<Option<Vec<String>>, Cause> {
    words(question::ask(
        sentinel,
        &[b"SENTINEL", question, name.as_bytes()],
        turn,
    )?)
}

/// The words of a reply of a sentinel.
pub(crate) fn words(reply: Reply) -> Result<Option<Vec<String>>, Cause> {
    let word = |item: Reply| match item {
        Reply::Bulk(bytes) => String::from_utf8(bytes).map_err(|_| no_address()),
        other => Err(Cause::Garbage(other.kind().into())),
    };
    match reply {
        Reply::Nil => Ok(None),
        Reply::Error(text) if text.starts_with("ERR No such master") => Ok(None),
        Reply::Error(text) => Err(Cause::refused(&text)),
        Reply::Array(items) => items
            .into_iter()
            .map(word)
            .collect::<Result<_, _>>()
            .map(Some),
        other => Err(Cause::Garbage(other.kind().into())),
    }
}

/// The host and port in these words of a sentinel.
pub(crate) fn endpoint(words: &[String]) -> Option<(&str, u16)> {
    match words {
        [host, port] if url::is_host(host) => Some((host, port.parse().ok()?)),
        _ => None,
    }
}

pub(super) fn no_address() -> Cause {
    Cause::Garbage("not the address of a master".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::socket::trust::Trust;
    use crate::protocol::mutants::set_mutant;
    use crate::protocol::node::answers::Belief;
    use crate::settings::into_node::IntoNode;
    use crate::settings::tls::Tls;

    fn sentinels(url: &str) -> Arc<Sentinels> {
        let node = url.into_node().unwrap();
        let trust = Trust::new(&Tls::default(), [node.info()]);
        Arc::new(Sentinels::new(&Given::new(node, &trust, None)).unwrap())
    }

    #[test]
    fn sentinels_that_cannot_be_reached_are_silent_and_can_be_asked_again() {
        // No servers are there.
        let set = sentinels("redis+sentinel://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3/m");
        for _ in 0..3 {
            let begun = clock::instant();
            let said = set.ask_all(Duration::from_secs(7));
            assert!(matches!(said.belief(), Belief::Silence { at } if at >= begun));
            assert!(
                begun.elapsed() < Duration::from_secs(5),
                "none is waited for"
            );
        }
    }

    #[test]
    fn a_sentinel_that_answers_under_two_names_counts_once() {
        let counts = || {
            let mut seen = Vec::new();
            [1, 1, 2].map(|port| {
                let named = SentinelAnswer {
                    master: Some(ConnectionAddr::Tcp("m".into(), 1)),
                    by: vec![Some(SocketAddr::from(([127, 0, 0, 1], port)))],
                };
                read(&named, &mut seen).is_ok()
            })
        };
        assert_eq!(counts(), [true, false, true]);
        set_mutant(Some(Mutant::NamesCountTwice));
        let found = counts();
        set_mutant(None);
        assert_eq!(found, [true; 3]);
    }

    #[test]
    fn no_host_that_repeats_a_password_is_shown() {
        let set = sentinels("redis+sentinel://:hunter2@h/m");
        let words = ["ip", "hunter2", "port", "6379", "flags", "master"];
        let shown = set.shown(described(words.map(str::to_owned).to_vec()));
        let shown: Vec<&str> = shown.values().map(|value| &**value).collect();
        assert_eq!(shown, ["master", "***", "6379"]);
    }
}
