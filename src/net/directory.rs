//! Where a node's master is: the only file that knows what a deployment is.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::ConnectionAddr;

use crate::clock;
use crate::credentials::Ask;
use crate::error::Cause;
use crate::net::connection::{Connection, Purpose};
use crate::net::peer::Peer;
use crate::net::trust::Trust;
use crate::node_address::NodeAddress;
use crate::protocol::address::Found;
use crate::protocol::resp::{self, Reply, ReplyReader};
use crate::protocol::wire::Handshake;
use crate::sync::lock;
use crate::text;
use crate::url;

/// How long sentinels have to confirm an address.
const CONFIRM: Duration = Duration::from_secs(1);

/// A node: a server, or the master of a set.
#[derive(Clone)]
pub(crate) enum Place {
    Server(Box<Peer>),
    Set(Arc<Sentinels>),
}

impl Place {
    pub(crate) fn new(given: NodeAddress, trust: &Trust, credentials: Option<Ask>) -> Place {
        match given.set() {
            None => Place::Server(Peer::new(given.info().clone(), trust, credentials).into()),
            Some(set) => Place::Set(Arc::new(Sentinels {
                all: set
                    .sentinels
                    .iter()
                    .map(|info| Peer::new(info.clone(), trust, None))
                    .collect(),
                shown: Mutex::new(given.to_string().into()),
                next: AtomicUsize::new(0),
                away: AtomicU64::new(0),
                again: AtomicUsize::new(0),
                silent: AtomicBool::new(false),
                trust: trust.clone(),
                credentials,
                name: set.name.clone(),
                given,
            })),
        }
    }

    /// As it was given.
    pub(crate) fn given(&self) -> NodeAddress {
        match self {
            Place::Server(peer) => NodeAddress::server((***peer).clone()),
            Place::Set(set) => set.given.clone(),
        }
    }

    /// Whether another server may take the master's place.
    pub(crate) fn is_set(&self) -> bool {
        matches!(self, Place::Set(_))
    }

    /// What may be shown of it: host and port, or path; of a set its name, and where its master was found last.
    pub(crate) fn shown(&self) -> Arc<str> {
        match self {
            Place::Server(peer) => text::address(peer.addr()).into(),
            // In a forked child a thread may hold it that does not exist there.
            Place::Set(set) => match set.shown.try_lock() {
                Ok(shown) => shown.clone(),
                Err(_) => set.given.to_string().into(),
            },
        }
    }

    /// Connects to the master, all within `timeout` but for what [`Connection::open`] cannot bound.
    pub(crate) fn open(
        &self,
        timeout: Duration,
        purpose: Purpose,
    ) -> Result<(Connection, Handshake), Cause> {
        match self {
            Place::Server(peer) => Connection::open(peer, timeout, purpose),
            Place::Set(set) => set.open(timeout, purpose),
        }
    }

    /// What the sentinels say of a set.
    pub(crate) fn describe(
        &self,
        timeout: Duration,
    ) -> Option<Vec<(String, Result<Description, Cause>)>> {
        match self {
            Place::Server(_) => None,
            Place::Set(set) => Some(set.describe(timeout)),
        }
    }

    /// Whether the master still is where it was found.
    pub(crate) fn confirm(&self, found: &Found) -> Result<(), Cause> {
        match self {
            Place::Server(_) => Ok(()),
            Place::Set(set) => set.confirm(&found.address),
        }
    }

    /// What is left to do when the answer is known, and may take its time.
    pub(crate) fn after_confirming(&self) {
        if let Place::Set(set) = self {
            set.ask_again();
        }
    }
}

/// What sentinels know of a set.
pub(crate) struct Sentinels {
    given: NodeAddress,
    name: String,
    all: Vec<Peer>,
    trust: Trust,
    credentials: Option<Ask>,
    shown: Mutex<Arc<str>>,
    /// Which one is asked first.
    next: AtomicUsize,
    /// Those, as bits, that did not answer the last question: they are asked last.
    away: AtomicU64,
    /// Which of them is asked again.
    again: AtomicUsize,
    /// That none answers was logged.
    silent: AtomicBool,
}

/// Why a sentinel names no master.
enum Unknown {
    /// It does not watch that name.
    Name,
    Failed(Cause),
}

impl Sentinels {
    fn open(
        &self,
        timeout: Duration,
        purpose: Purpose<'_>,
    ) -> Result<(Connection, Handshake), Cause> {
        let until = clock::instant() + timeout;
        let (mut unknown, mut failed, mut tried) = (Vec::new(), None, Vec::new());
        for (at, left) in self.in_turn() {
            let asked = clock::instant();
            // The master needs a share of the time, too.
            let share = until.saturating_duration_since(asked) / (left + 1);
            let addr = match self.ask(at, share) {
                Ok(addr) => addr,
                Err(why) => {
                    unknown.push((at, why));
                    continue;
                }
            };
            if tried.contains(&addr) {
                continue;
            }
            let found = Found {
                address: self.at(&addr),
                at: asked,
            };
            let info = self.given.info().clone().set_addr(addr.clone());
            let peer = Peer::new(info, &self.trust, self.credentials.clone());
            let rest = until.saturating_duration_since(clock::instant());
            match Connection::open(&peer, rest, purpose) {
                Ok((connection, handshake)) => {
                    self.next.store(at, Ordering::Relaxed);
                    *lock(&self.shown) = found.address.clone();
                    let found = Some(found);
                    return Ok((connection, Handshake { found, ..handshake }));
                }
                Err(cause) => {
                    // Another sentinel may know better.
                    self.next.store(at + 1, Ordering::Relaxed);
                    tried.push(addr);
                    failed.get_or_insert((found.address, cause));
                }
            }
        }
        Err(match failed {
            Some((address, cause)) => {
                *lock(&self.shown) = address;
                match cause {
                    Cause::NotConnected(..) => Cause::NotConnected(timeout, timeout),
                    cause => cause,
                }
            }
            None => self.no_master(&unknown),
        })
    }

    /// The sentinels, beginning with the one whose turn it is, each with the number of those that are left, itself among them.
    fn in_turn(&self) -> impl Iterator<Item = (usize, u32)> {
        let (count, next) = (self.all.len(), self.next.load(Ordering::Relaxed));
        let rotated = (0..count).map(|tried| next.wrapping_add(tried) % count);
        let (away, here): (Vec<usize>, Vec<usize>) = rotated.partition(|at| self.is_away(*at));
        let left = (1..=u32::try_from(count).unwrap_or(u32::MAX)).rev();
        here.into_iter().chain(away).zip(left)
    }

    fn is_away(&self, at: usize) -> bool {
        self.away.load(Ordering::Relaxed) & bit(at) != 0
    }

    /// Asks one of those again that did not answer.
    fn ask_again(&self) {
        let away: Vec<usize> = (0..self.all.len()).filter(|at| self.is_away(*at)).collect();
        let turn = self.again.fetch_add(1, Ordering::Relaxed);
        if let Some(at) = away.get(turn % away.len().max(1)) {
            // What it says does not matter here.
            let _ = self.ask(*at, CONFIRM);
        }
    }

    /// As a server of the set is shown.
    fn at(&self, addr: &ConnectionAddr) -> Arc<str> {
        format!("{} at {}", self.name, text::address(addr)).into()
    }

    /// Where the master is, as one of the sentinels knows.
    fn ask(&self, at: usize, timeout: Duration) -> Result<ConnectionAddr, Unknown> {
        let timeout = timeout.max(Duration::from_millis(1));
        let until = clock::instant() + timeout;
        let Some(sentinel) = self.all.get(at) else {
            return Err(Unknown::Name);
        };
        let asked = self.named(sentinel, until, timeout);
        match asked {
            Ok(_) => self.away.fetch_and(!bit(at), Ordering::Relaxed),
            Err(_) => self.away.fetch_or(bit(at), Ordering::Relaxed),
        };
        let Some((host, port)) = asked.map_err(Unknown::Failed)? else {
            return Err(Unknown::Name);
        };
        Ok(match self.given.info().addr() {
            ConnectionAddr::TcpTls { insecure, .. } => ConnectionAddr::TcpTls {
                host,
                port,
                insecure: *insecure,
                tls_params: None,
            },
            _ => ConnectionAddr::Tcp(host, port),
        })
    }

    /// The master's host and port, unless the sentinel does not know its name.
    fn named(
        &self,
        sentinel: &Peer,
        until: Instant,
        timeout: Duration,
    ) -> Result<Option<(String, u16)>, Cause> {
        let question = b"GET-MASTER-ADDR-BY-NAME";
        let Some(words) = tell(sentinel, question, &self.name, (until, timeout))? else {
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
    fn no_master(&self, unknown: &[(usize, Unknown)]) -> Cause {
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

    /// Sentinels that do not answer at all confirm: for another master a majority of them is needed (rule R43).
    fn confirm(&self, address: &str) -> Result<(), Cause> {
        let until = clock::instant() + CONFIRM;
        for (at, left) in self.in_turn() {
            let share = until.saturating_duration_since(clock::instant()) / left;
            let Ok(addr) = self.ask(at, share) else {
                continue;
            };
            // Each question goes to another one: one that was cut off knows nothing of a new master.
            self.next.store(at + 1, Ordering::Relaxed);
            let now = self.at(&addr);
            return match *now == *address {
                true => Ok(()),
                false => Err(Cause::Moved(text::address(&addr))),
            };
        }
        if !self.silent.swap(true, Ordering::Relaxed) {
            say!(
                warn,
                "no sentinel of {} answers: locks go on, and no failover comes about",
                self.given
            );
        }
        Ok(())
    }
}

/// There are at most 64 sentinels.
fn bit(at: usize) -> u64 {
    1 << (at % 64)
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
    (until, timeout): (Instant, Duration),
) -> Result<Option<Vec<String>>, Cause> {
    let (mut connection, handshake) = Connection::open(sentinel, timeout, Purpose::Messages)?;
    let (mut bytes, mut buffer) = (Vec::new(), Vec::new());
    let command: &[&[u8]] = &[b"SENTINEL", question, name.as_bytes()];
    resp::pack(&mut bytes, &[command], None);
    connection.send(&bytes, until, clock::instant())?;
    let mut reader = ReplyReader::new(handshake.secret);
    let reply = loop {
        if let Some(reply) = reader.next()? {
            break reply;
        }
        match connection.recv(&mut buffer, until, clock::instant())? {
            [] => return Err(Cause::NotConnected(timeout, timeout)),
            bytes => reader.push(bytes),
        }
    };
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

fn no_address() -> Cause {
    Cause::Garbage("not the address of a master".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::into_node::IntoNode;
    use crate::tls::Tls;

    #[test]
    fn a_sentinel_that_did_not_answer_is_asked_last() {
        // None of them has a server.
        let given = "redis+sentinel://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3/m".into_node();
        let given = given.unwrap();
        let trust = Trust::new(&Tls::default(), std::iter::once(given.info()));
        let Place::Set(set) = Place::new(given, &trust, None) else {
            panic!("it is a set");
        };
        let order = || set.in_turn().collect::<Vec<_>>();
        assert_eq!(order(), [(0, 3), (1, 2), (2, 1)]);
        assert!(set.ask(0, CONFIRM).is_err());
        assert_eq!(order(), [(1, 3), (2, 2), (0, 1)]);
        set.next.store(2, Ordering::Relaxed);
        assert_eq!(order(), [(2, 3), (1, 2), (0, 1)]);
        assert!(set.ask(2, CONFIRM).is_err());
        assert_eq!(order(), [(1, 3), (2, 2), (0, 1)]);
        // All of them are asked, whatever they answered.
        assert!(set.ask(1, CONFIRM).is_err());
        assert_eq!(order(), [(2, 3), (0, 2), (1, 1)]);
    }
}
