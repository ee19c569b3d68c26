//! The sentinels of a set, and what they report of its master.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use redis::ConnectionAddr;

use crate::errors::cause::Cause;
use crate::errors::secret::Secret;
use crate::errors::text;
use crate::net::place::ask_each::{SendPart, Terms, ask_each};
use crate::net::place::asker::{Asker, Patience, Told};
use crate::net::place::question::{self, Opinions, Turn, Unknown};
use crate::net::socket::peer::{OtherSecrets, Peer};
use crate::protocol::commands::resp::Reply;
use crate::protocol::node::directory::Times;
use crate::protocol::node::questions::Heard;
use crate::settings::credentials::AskCredentials;
use crate::settings::url;
use crate::values::clock;

/// How many sentinels are asked at a time for their descriptions: each has a thread.
const AT_A_TIME: usize = 64;

/// The sentinels of a set, and the questions to them.
pub(crate) struct Sentinels {
    pub(crate) name: String,
    all: Vec<Peer>,
    /// The address of the first one: the set's servers are reached in the same way.
    like: ConnectionAddr,
    /// The passwords of servers and sentinels, which sentinels know: no server is looked for at a host that repeats one,
    /// and no sentinel's text is shown that does.
    secrets: Arc<OtherSecrets>,
    /// An answer is the master's address. `None`: the sentinel has no master of that name.
    asker: Arc<Asker<Option<ConnectionAddr>>>,
}

impl Sentinels {
    /// `password`: the password of the servers. `credentials`: the closure that returns it in its place.
    pub(crate) fn new(
        name: String,
        all: Vec<Peer>,
        like: ConnectionAddr,
        password: Option<&str>,
        credentials: Option<AskCredentials>,
    ) -> Sentinels {
        let passwords = all.iter().map(|peer| peer.redis_settings().password());
        let secrets = Arc::new(OtherSecrets {
            of_urls: Secret::of_all(passwords.chain([password]).map(Secret::of)),
            credentials,
        });
        let all = all.into_iter();
        let all = all.map(|peer| peer.hiding(secrets.clone()));
        Sentinels {
            asker: Asker::new(),
            name,
            all: all.collect(),
            like,
            secrets,
        }
    }

    /// Asks all sentinels at once, or waits for the answers to questions under way, until it is certain which master is
    /// believed, at most for `time`. A thread that resolves a name may take longer.
    pub(crate) fn ask_all(self: &Arc<Self>, time: Duration) -> Opinions {
        let now = clock::instant();
        let patience = Patience {
            time,
            lasts: Times::REAL.lasts,
            most: usize::MAX,
        };
        let sentinels = self.clone();
        let ask = move |peer: &Peer, turn: &Turn<'_>| sentinels.ask(peer, turn);
        let read = |named: &Option<ConnectionAddr>, _| named.clone().ok_or(Unknown::Name);
        let weigh = |heard: Vec<Heard<'_, Told<Option<ConnectionAddr>>>>, is_over| {
            let said = Opinions::of((&self.all, 0), (now, time), &heard, read);
            (is_over || said.is_certain()).then_some(said)
        };
        let said = self.asker.ask_all(&self.all, patience, ask, weigh);
        said.unwrap_or_else(|| Opinions::of((&self.all, 0), (now, time), &[], read))
    }

    /// The master's address, as one of the sentinels reports it.
    fn ask(&self, sentinel: &Peer, turn: &Turn<'_>) -> Told<Option<ConnectionAddr>> {
        let question = b"GET-MASTER-ADDR-BY-NAME";
        let Some(words) = tell(sentinel, question, &self.name, turn)? else {
            return Ok(None);
        };
        match endpoint(&words) {
            Some((host, port)) if !self.is_secret(host) => {
                Ok(Some(like(&self.like, host.to_owned(), port)))
            }
            _ => Err(no_address()),
        }
    }

    /// Whether a host repeats a password of the URL, or one that the program's closure has returned.
    pub(super) fn is_secret(&self, host: &str) -> bool {
        self.secrets.all().is_in_host(host)
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
        let hosts = description.values_mut();
        let hidden = hosts.filter(|value| self.is_secret(value));
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
    let terms = Terms {
        name: "redlock-find",
        patience: timeout,
        silence: Cause::NotConnected(timeout, timeout),
        abandoned: None,
    };
    ask_each(asks.enumerate(), terms, |_, ()| {}).into_values()
}

/// The address of this host and port, reached like the other one.
pub(crate) fn like(other: &ConnectionAddr, host: String, port: u16) -> ConnectionAddr {
    match other {
        ConnectionAddr::TcpTls { insecure, .. } => ConnectionAddr::TcpTls {
            host,
            port,
            insecure: *insecure,
            tls_params: None,
        },
        _ => ConnectionAddr::Tcp(host, port),
    }
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
    use redis::IntoConnectionInfo;

    use super::*;
    use crate::net::socket::trust::Trust;
    use crate::protocol::node::answers::Belief;
    use crate::settings::tls::Tls;

    /// Three sentinels, at ports without servers.
    fn sentinels() -> Arc<Sentinels> {
        let infos = [1, 2, 3].map(|port| ("127.0.0.1", port).into_connection_info().unwrap());
        let trust = Trust::new(&Tls::default(), infos.iter());
        let peers = infos
            .iter()
            .map(|info| Peer::new(info.clone(), &trust, None));
        let like = infos[0].addr().clone();
        Arc::new(Sentinels::new(
            "m".into(),
            peers.collect(),
            like,
            None,
            None,
        ))
    }

    #[test]
    fn sentinels_that_cannot_be_reached_are_silent_and_can_be_asked_again() {
        let set = sentinels();
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
    fn no_host_that_repeats_a_password_is_shown() {
        let like = ConnectionAddr::Tcp("h".into(), 1);
        let set = Sentinels::new("m".into(), Vec::new(), like, Some("hunter2"), None);
        let words = ["ip", "hunter2", "port", "6379", "flags", "master"];
        let shown = set.shown(described(words.map(str::to_owned).to_vec()));
        let shown: Vec<&str> = shown.values().map(|value| &**value).collect();
        assert_eq!(shown, ["master", "***", "6379"]);
    }
}
