//! The sentinels of a set, and what they say of its master.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use redis::ConnectionAddr;

use crate::clock;
use crate::error::Cause;
use crate::net::peer::Peer;
use crate::net::question::{self, Answer, Said, Unknown};
use crate::protocol::resp::Reply;
use crate::text;
use crate::url;

/// What sentinels know of a set.
pub(crate) struct Sentinels {
    pub(crate) name: String,
    all: Vec<Peer>,
    /// The address of the first one, with how its servers are reached.
    like: ConnectionAddr,
    /// Those, as bits, that have been asked and have not answered yet: each is asked by one thread at a time.
    asked: AtomicU64,
}

/// A sentinel that is being asked.
struct Asked {
    sentinels: Arc<Sentinels>,
    at: usize,
}

impl Asked {
    /// `None`: a thread asks it already.
    fn begin(sentinels: &Arc<Sentinels>, at: usize) -> Option<Asked> {
        let before = sentinels.asked.fetch_or(bit(at), Ordering::Relaxed);
        (before & bit(at) == 0).then(|| Asked {
            sentinels: sentinels.clone(),
            at,
        })
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.sentinels
            .asked
            .fetch_and(!bit(self.at), Ordering::Relaxed);
    }
}

/// There are at most 64 sentinels.
fn bit(at: usize) -> u64 {
    1 << (at % 64)
}

impl Sentinels {
    pub(crate) fn new(name: String, all: Vec<Peer>, like: ConnectionAddr) -> Sentinels {
        Sentinels {
            name,
            all,
            like,
            asked: AtomicU64::new(0),
        }
    }

    /// Asks them all at once, and waits until more than half of them agree, but not for longer than this. A thread that
    /// resolves a name may take longer, and that sentinel is not asked again meanwhile.
    pub(crate) fn ask_all(self: &Arc<Self>, time: Duration) -> Said {
        let (until, (sender, answers)) = (clock::instant() + time, channel());
        for asked in (0..self.all.len()).filter_map(|at| Asked::begin(self, at)) {
            let sender = sender.clone();
            let ask = move || {
                let said = asked.sentinels.ask(asked.at, (until, time));
                let at = asked.at;
                // It can be asked again when its answer is known.
                drop(asked);
                let _ = sender.send((at, said));
            };
            let thread = std::thread::Builder::new().name("redlock-find".into());
            // Without a thread it has not answered.
            let _ = thread.spawn(ask);
        }
        drop(sender);
        Said::gather(&answers, (self.all.len(), self.all.len()), (until, time))
    }

    /// Where the master is, as one of the sentinels knows.
    fn ask(&self, at: usize, time: (Instant, Duration)) -> Answer {
        let Some(sentinel) = self.all.get(at) else {
            return Err(Unknown::Name);
        };
        let asked = self.named(sentinel, time);
        let Some((host, port)) = asked.map_err(Unknown::Failed)? else {
            return Err(Unknown::Name);
        };
        Ok((like(&self.like, host, port), None))
    }

    /// The master's host and port, unless the sentinel does not know its name.
    fn named(
        &self,
        sentinel: &Peer,
        time: (Instant, Duration),
    ) -> Result<Option<(String, u16)>, Cause> {
        let question = b"GET-MASTER-ADDR-BY-NAME";
        let Some(words) = tell(sentinel, question, &self.name, time)? else {
            return Ok(None);
        };
        match &words[..] {
            [host, port] if url::is_host(host) => {
                let port = port.parse().map_err(|_| no_address())?;
                Ok(Some((host.clone(), port)))
            }
            _ => Err(no_address()),
        }
    }

    /// What each sentinel says of the master, all within `timeout` but for names that are not resolved in time.
    pub(crate) fn describe(&self, timeout: Duration) -> Vec<(String, Result<Description, Cause>)> {
        let (until, (sender, said)) = (clock::instant() + timeout, channel());
        for (at, sentinel) in self.all.iter().cloned().enumerate() {
            let (sender, name) = (sender.clone(), self.name.clone());
            let ask = move || {
                let words = tell(&sentinel, b"MASTER", &name, (until, timeout));
                let pairs = words.map(|words| words.unwrap_or_default());
                let _ = sender.send((at, pairs.map(described)));
            };
            let thread = std::thread::Builder::new().name(format!("redlock-find-{at}"));
            // Without a thread it has not answered.
            let _ = thread.spawn(ask);
        }
        drop(sender);
        let silent = |_| Err(Cause::NotConnected(timeout, timeout));
        let mut answers: Vec<Result<Description, Cause>> = self.all.iter().map(silent).collect();
        let left = || until.saturating_duration_since(clock::instant());
        while let Ok((at, answer)) = said.recv_timeout(left()) {
            if let Some(place) = answers.get_mut(at) {
                *place = answer;
            }
        }
        let names = self.all.iter().map(|peer| text::address(peer.addr()));
        names.zip(answers).collect()
    }

    /// Why none of them has named a master.
    pub(crate) fn no_master(&self, unknown: &[(usize, Unknown)]) -> Cause {
        let name = &self.name;
        if unknown.iter().all(|(_, why)| matches!(why, Unknown::Name)) {
            return Cause::NoMaster(format!("no sentinel knows a master {name:?}"), true);
        }
        let mut is_final = true;
        let why = unknown.iter().map(|(at, why)| {
            let sentinel = self.all.get(*at);
            let address = sentinel.map_or_else(String::new, |peer| text::address(peer.addr()));
            match why {
                Unknown::Name => format!("{address} does not know it"),
                Unknown::Failed(cause) => {
                    is_final &= cause.is_final();
                    format!("{address}: {}", refusal(cause))
                }
            }
        });
        let why: Vec<String> = why.collect();
        Cause::NoMaster(
            format!("no sentinel names the master {name:?}: {}", why.join("; ")),
            is_final,
        )
    }
}

/// The address of this host and port, reached as the other one.
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

/// What a sentinel says of a master: names and values.
pub(crate) type Description = BTreeMap<String, String>;

fn described(words: Vec<String>) -> Description {
    let mut words = words.into_iter();
    let mut description = Description::new();
    while let (Some(name), Some(value)) = (words.next(), words.next()) {
        description.insert(name, value);
    }
    description
}

/// The words of a sentinel's answer about the master of this name, unless it does not know that.
fn tell(
    sentinel: &Peer,
    question: &[u8],
    name: &str,
    time: (Instant, Duration),
) -> Result<Option<Vec<String>>, Cause> {
    let word = |item: Reply| match item {
        Reply::Bulk(bytes) => String::from_utf8(bytes).map_err(|_| no_address()),
        other => Err(Cause::Garbage(other.kind().into())),
    };
    match question::ask(sentinel, &[b"SENTINEL", question, name.as_bytes()], time)? {
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

fn no_address() -> Cause {
    Cause::Garbage("not the address of a master".into())
}

#[cfg(test)]
mod tests {
    use redis::IntoConnectionInfo;

    use super::*;
    use crate::net::trust::Trust;
    use crate::tls::Tls;

    #[test]
    fn a_sentinel_is_asked_by_one_thread_at_a_time() {
        // None of them has a server.
        let infos = [1, 2, 3].map(|port| ("127.0.0.1", port).into_connection_info().unwrap());
        let trust = Trust::new(&Tls::default(), infos.iter());
        let peers = infos
            .iter()
            .map(|info| Peer::new(info.clone(), &trust, None));
        let set = Sentinels::new("m".into(), peers.collect(), infos[0].addr().clone());
        let set = Arc::new(set);
        let asked = Asked::begin(&set, 1);
        assert!(asked.is_some() && Asked::begin(&set, 1).is_none());
        assert!(Asked::begin(&set, 2).is_some());
        drop(asked);
        assert!(Asked::begin(&set, 1).is_some());
        // And all of them can be asked again.
        for _ in 0..3 {
            assert_eq!(set.ask_all(Duration::from_millis(700)).unknown.len(), 3);
            assert_eq!(set.asked.load(Ordering::Relaxed), 0);
        }
    }
}
