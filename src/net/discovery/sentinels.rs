//! The sentinels of a set, and what they report of its master.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::errors::cause::Cause;
use crate::errors::text;
use crate::net::discovery::ask_each::{AskTerms, SendPart, ask_each, ask_until};
use crate::net::discovery::asker::{Asker, Patience, ServerAnswer};
use crate::net::discovery::given_node::GivenNode;
use crate::net::discovery::sentinel_addresses::{
    AddressAnswer, SentinelAnswer, answer_so_far, is_v6, of_name, read, refusal,
};
use crate::net::discovery::server_question::{self, Opinions, QuestionTime};
use crate::net::socket::peer::Peer;
use crate::net::socket::plain::addresses;
use crate::protocol::commands::resp::Reply;
use crate::protocol::discovery::directory_questions::ReceivedAnswer;
use crate::protocol::discovery::found_master::DirectoryTimes;
use crate::protocol::discovery::master_answers::MasterAnswer;
use crate::protocol::discovery::opinions::Unknown;
use crate::settings::credentials::Credentials;
use crate::settings::url;
use crate::values::clock;

/// How many sentinels are asked at a time for their descriptions: each has a thread.
const AT_A_TIME: usize = 64;
/// How many addresses of one name are asked: each has a thread. Eight sentinels with two each.
const MAX_ADDRESSES: usize = 16;

/// The sentinels of a set, and the questions to them.
pub(crate) struct Sentinels {
    given: Arc<GivenNode>,
    pub(crate) name: String,
    all: Vec<Peer>,
    asker: Arc<Asker<SentinelAnswer>>,
}

impl Sentinels {
    /// Returns `None` if the node is no set.
    pub(crate) fn new(given: &Arc<GivenNode>) -> Option<Sentinels> {
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
        let ask = move |peer: &Peer, turn: &QuestionTime<'_>| sentinels.ask(peer, turn);
        let weigh = |heard: &[ReceivedAnswer<'_, ServerAnswer<SentinelAnswer>>]| {
            self.weigh((now, time), heard)
        };
        let is_enough = Opinions::is_certain;
        self.asker
            .ask_all(&self.all, patience, ask, weigh, is_enough)
    }

    /// The opinions of the sentinels, by their answers.
    fn weigh(
        &self,
        time: (Instant, Duration),
        heard: &[ReceivedAnswer<'_, ServerAnswer<SentinelAnswer>>],
    ) -> Opinions {
        let seen = RefCell::new(Vec::new());
        let read = |named: &SentinelAnswer, _| read(named, &mut seen.borrow_mut());
        let is_few = |one: &ReceivedAnswer<'_, ServerAnswer<SentinelAnswer>>| matches!(one, ReceivedAnswer::Answer(Ok(named), _) if !named.by_most);
        let few = heard.iter().enumerate().filter(|(_, one)| is_few(one));
        let shown = self.all.iter().map(|one| text::address(one.addr()));
        let opinions = Opinions::of((shown.collect(), 0), time, heard, read);
        opinions.with_few(few.map(|(server, _)| server))
    }

    /// The master's address, as the sentinel reports it. Behind a name there may be several, as in Kubernetes: they are asked
    /// side by side, since one that does not answer takes all of the time, until most of them name one master.
    fn ask(
        self: &Arc<Self>,
        sentinel: &Peer,
        turn: &QuestionTime<'_>,
    ) -> ServerAnswer<SentinelAnswer> {
        let login = sentinel.credentials(turn.until, turn.timeout)?;
        let mut addresses = addresses(sentinel.addr())?;
        (turn.begins)()?;
        // Family by family.
        let first = addresses.first().is_some_and(is_v6);
        addresses.sort_by_key(|one| is_v6(one) != first);
        let now = clock::instant();
        let rest = turn.until.saturating_duration_since(now);
        if rest.is_zero() {
            return Err(Cause::NotAsked);
        }
        if let [address] = &addresses[..] {
            let at = (address.as_ref(), login.as_ref());
            let told = self.ask_address(sentinel, at, (turn.until, rest));
            return of_name(&addresses, BTreeMap::from([(0, told)]));
        }
        let share = server_question::share(rest);
        let asks = addresses.iter().take(MAX_ADDRESSES).map(|address| {
            let (set, sentinel) = (self.clone(), sentinel.clone());
            let (address, login) = (*address, login.clone());
            move |_: SendPart<'_, ()>| {
                let at = (address.as_ref(), login.as_ref());
                set.ask_address(&sentinel, at, (now + share, share))
            }
        });
        let terms = AskTerms {
            name: "redlock-find",
            patience: rest,
            silence: Cause::NotAsked,
            abandoned: None,
        };
        let is_enough = |told: &BTreeMap<_, _>| {
            matches!(answer_so_far(&addresses, told), (MasterAnswer::Names(_), _))
        };
        let told = ask_until(asks.enumerate(), terms, |_, ()| {}, is_enough);
        of_name(&addresses, told)
    }

    /// The answer of the sentinel at this address. Its ID is asked for in the same write: it may have other addresses.
    fn ask_address(
        &self,
        sentinel: &Peer,
        at: (Option<&SocketAddr>, Option<&Credentials>),
        time: (Instant, Duration),
    ) -> ServerAnswer<AddressAnswer> {
        let question: &[&[u8]] = &[
            b"SENTINEL",
            b"GET-MASTER-ADDR-BY-NAME",
            self.name.as_bytes(),
        ];
        let id: &[&[u8]] = &[b"SENTINEL", b"MYID"];
        let (reply, id) = server_question::ask_address(sentinel, at, [question, id], time)?;
        let master = match words(reply)?.as_deref().map(endpoint) {
            None => None,
            Some(Some((host, port))) if !self.given.secret().is_in_host(host) => {
                Some(self.given.addr(&(host.to_owned(), port)))
            }
            Some(_) => return Err(no_address()),
        };
        Ok(AddressAnswer {
            at: at.0.copied(),
            id: id.and_then(sentinel_id),
            master,
        })
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
            let shown = |answer: ServerAnswer<_>| answer.map(|description| set.shown(description));
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
    pub(crate) fn no_master(&self, opinions: &Opinions) -> Cause {
        let name = &self.name;
        let each = opinions.each();
        let mut words = each.iter().map(|(_, word)| word);
        if words.all(|word| matches!(word, Err(Unknown::Name))) {
            return Cause::NoMaster(format!("no sentinel knows a master {name:?}"), true);
        }
        let mut is_final = !opinions.names_any();
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
        // Some of those behind a name may name it.
        let few_name =
            |word: &Result<_, _>| matches!(word, Err(Unknown::Failed(Cause::FewName(..))));
        let some = opinions.names_any() || each.iter().any(|(_, word)| few_name(word));
        let few = match some {
            true => "no majority of the sentinels names the master",
            false => "no sentinel names the master",
        };
        Cause::NoMaster(format!("{few} {name:?}: {why}"), is_final)
    }
}

/// The answers of these sentinels, each about the master of a name.
fn describe_at_once(
    sentinels: &[(Peer, String)],
    timeout: Duration,
) -> impl Iterator<Item = ServerAnswer<Description>> + use<> {
    let until = clock::instant() + timeout;
    let asks = sentinels.iter().cloned().map(|(sentinel, name)| {
        move |_: SendPart<'_, ()>| {
            let turn = QuestionTime {
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
    turn: &QuestionTime<'_>,
) -> Result<Option<Vec<String>>, Cause> {
    words(server_question::ask(
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

/// The ID in the reply to `SENTINEL MYID`, which has 40 hexadecimal digits.
fn sentinel_id(reply: Reply) -> Option<String> {
    let Reply::Bulk(bytes) = reply else {
        return None;
    };
    let is_id = bytes.len() == 40 && bytes.iter().all(u8::is_ascii_hexdigit);
    String::from_utf8(bytes).ok().filter(|_| is_id)
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
    use crate::net::discovery::sentinel_addresses::RIGHT;
    use crate::net::discovery::sentinel_addresses::tests::behind_a_name;
    use crate::net::socket::trust::Trust;
    use crate::protocol::discovery::master_answers::Belief;
    use crate::settings::into_node::IntoNode;
    use crate::settings::tls::Tls;

    fn sentinels(url: &str) -> Arc<Sentinels> {
        let node = url.into_node().unwrap();
        let trust = Trust::new(&Tls::default(), [node.info()]);
        Arc::new(Sentinels::new(&GivenNode::new(node, &trust, None)).unwrap())
    }

    #[test]
    fn sentinels_that_cannot_be_reached_are_silent_and_can_be_asked_again() {
        // No servers are there.
        let set = sentinels("redis+sentinel://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3/m");
        for _ in 0..3 {
            let begun = clock::instant();
            let opinions = set.ask_all(Duration::from_secs(7));
            assert!(matches!(opinions.belief(), Belief::Silence { at } if at >= begun));
            assert!(
                begun.elapsed() < Duration::from_secs(5),
                "none is waited for"
            );
        }
    }

    #[test]
    fn a_refusal_has_advice_for_what_it_means() {
        for (text, expected) in [
            ("NOAUTH Authentication required.", "sentinel_password"),
            (
                "NOPERM User s has no permissions to run the 'sentinel|get-master-addr-by-name' command",
                RIGHT,
            ),
            (
                "DENIED Redis is running in protected mode because",
                "protected-mode no",
            ),
            ("LOADING Redis is loading the dataset", "wait until it has"),
            ("ERR max number of clients reached", "raise maxclients"),
            ("ERR unknown command 'SENTINEL'", "that is no sentinel"),
            ("ERR Unknown subcommand", "that is no sentinel"),
        ] {
            let error = refusal(&Cause::Refused(text.into()));
            assert!(error.contains(expected), "{error}");
            let is_one = error.contains("no sentinel") == expected.contains("no sentinel");
            assert!(is_one, "{error}");
        }
    }

    /// Where TLS tells them apart, they are two of three, so no master is believed on the word of the first one.
    #[test]
    fn a_name_that_answers_differently_at_the_address_of_another_decides_nothing() {
        let set = sentinels("redis+sentinel://127.0.0.1:1,127.0.0.2:1,127.0.0.3:1/m");
        let now = clock::instant();
        let believed = |words: [&str; 3]| {
            let told = words.map(behind_a_name);
            let heard = told.each_ref().map(|one| ReceivedAnswer::Answer(one, now));
            let opinions = set.weigh((now, Duration::ZERO), &heard);
            opinions.believed().map(|named| text::address(&named.addr))
        };
        assert_eq!(believed(["a", "b", "-"]), None);
        assert_eq!(believed(["a", "a", "-"]).as_deref(), Some("a:1"));
    }

    #[test]
    fn a_master_that_few_behind_a_name_report_is_named_by_few() {
        let set = sentinels("redis+sentinel://127.0.0.1:1/m");
        let now = clock::instant();
        for (words, expected) in [("a--", Some(false)), ("aa-", Some(true)), ("a-.", None)] {
            let told = behind_a_name(words);
            let opinions = set.weigh((now, Duration::ZERO), &[ReceivedAnswer::Answer(&told, now)]);
            assert_eq!(
                opinions.believed().map(|named| named.by_most),
                expected,
                "{words}"
            );
        }
    }

    #[test]
    fn an_error_says_whether_a_sentinel_behind_a_name_names_the_master() {
        let set = sentinels("redis+sentinel://127.0.0.1:1/m");
        let now = clock::instant();
        for (words, expected) in [
            ("a!", "no majority of the sentinels names the master"),
            ("-!", "no sentinel names the master"),
            ("?!", "no sentinel names the master"),
        ] {
            let told = behind_a_name(words);
            let opinions = set.weigh((now, Duration::ZERO), &[ReceivedAnswer::Answer(&told, now)]);
            let text = set.no_master(&opinions).to_string();
            assert!(text.starts_with(expected), "{words}: {text}");
        }
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
