//! Where a node's master is: the only file that knows what a deployment is.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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

/// How long sentinels have to confirm an address: some time is left before the last word is too old (rule R43).
const CONFIRM: Duration = Duration::from_millis(700);

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
                asked: AtomicU64::new(0),
                warned: AtomicBool::new(false),
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

    /// Whether the master still is where it was found. `None`: that is not known.
    pub(crate) fn confirm(&self, found: &Found) -> Option<Result<(), Cause>> {
        match self {
            Place::Server(_) => Some(Ok(())),
            Place::Set(set) => set.confirm(&found.address),
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
    /// Those, as bits, that have been asked and have not answered yet: each is asked by one thread at a time.
    asked: AtomicU64,
    /// That they confirm nothing was logged.
    warned: AtomicBool,
}

/// What the sentinels say together.
#[derive(Default)]
struct Said {
    /// Each address that they name, and how often.
    named: Vec<(ConnectionAddr, usize)>,
    /// Why others name none. Those that did not answer in time are missing.
    unknown: Vec<(usize, Unknown)>,
}

impl Said {
    fn add(&mut self, at: usize, said: Result<ConnectionAddr, Unknown>) {
        match said {
            Err(why) => self.unknown.push((at, why)),
            Ok(addr) => match self.named.iter_mut().find(|named| named.0 == addr) {
                Some((_, count)) => *count += 1,
                None => self.named.push((addr, 1)),
            },
        }
    }

    /// Whether more than half of `count` sentinels name the same address: the rest cannot change that.
    fn is_certain(&self, count: usize) -> bool {
        self.named.iter().any(|(_, named)| *named > count / 2)
    }

    /// What most of those name that name any.
    fn majority(&self) -> Option<&ConnectionAddr> {
        let count = self.named.iter().map(|(_, count)| count).sum::<usize>();
        let mut named = self.named.iter();
        named
            .find(|(_, named)| *named > count / 2)
            .map(|(addr, _)| addr)
    }

    /// Whether none of them has answered anything.
    fn is_silence(&self) -> bool {
        self.named.is_empty() && self.unknown.iter().all(|(_, why)| why.is_silence())
    }
}

/// Why a sentinel names no master.
enum Unknown {
    /// It does not watch that name.
    Name,
    Failed(Cause),
}

impl Unknown {
    fn is_silence(&self) -> bool {
        let silence = |cause: &Cause| matches!(cause, Cause::Connect(_) | Cause::NotConnected(..));
        matches!(self, Unknown::Failed(cause) if silence(cause))
    }
}

/// A sentinel that is being asked.
struct Asked {
    set: Arc<Sentinels>,
    at: usize,
}

impl Asked {
    /// `None`: a thread asks it already.
    fn begin(set: &Arc<Sentinels>, at: usize) -> Option<Asked> {
        let before = set.asked.fetch_or(bit(at), Ordering::Relaxed);
        (before & bit(at) == 0).then(|| Asked {
            set: set.clone(),
            at,
        })
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.set.asked.fetch_and(!bit(self.at), Ordering::Relaxed);
    }
}

impl Sentinels {
    fn open(
        self: &Arc<Self>,
        timeout: Duration,
        purpose: Purpose<'_>,
    ) -> Result<(Connection, Handshake), Cause> {
        let asked = clock::instant();
        let until = asked + timeout;
        // The master needs its share of the time.
        let mut said = self.ask_all(timeout / 2);
        // The others are tried as well: a server that is no master any more says so.
        said.named.sort_by_key(|(_, count)| Reverse(*count));
        let mut failed = None;
        for (addr, _) in &said.named {
            let found = Found {
                address: self.at(addr),
                at: asked,
            };
            let info = self.given.info().clone().set_addr(addr.clone());
            let peer = Peer::new(info, &self.trust, self.credentials.clone());
            let rest = until.saturating_duration_since(clock::instant());
            match Connection::open(&peer, rest, purpose) {
                Ok((connection, handshake)) => {
                    *lock(&self.shown) = found.address.clone();
                    let found = Some(found);
                    return Ok((connection, Handshake { found, ..handshake }));
                }
                Err(cause) => drop(failed.get_or_insert((found.address, cause))),
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
            None => self.no_master(&said.unknown),
        })
    }

    /// Asks them all at once, and waits until more than half of them agree, but not for longer than this. A thread that
    /// resolves a name may take longer, and that sentinel is not asked again meanwhile.
    fn ask_all(self: &Arc<Self>, time: Duration) -> Said {
        let (until, (sender, answers)) = (clock::instant() + time, channel());
        for asked in (0..self.all.len()).filter_map(|at| Asked::begin(self, at)) {
            let sender = sender.clone();
            let ask = move || {
                let said = asked.set.ask(asked.at, (until, time));
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
        let mut said = Said::default();
        let left = || until.saturating_duration_since(clock::instant());
        while !said.is_certain(self.all.len())
            && let Ok((at, answer)) = answers.recv_timeout(left())
        {
            said.add(at, answer);
        }
        let heard = |at: usize| said.unknown.iter().any(|(heard, _)| *heard == at);
        let silent: Vec<usize> = match said.named.is_empty() {
            true => (0..self.all.len()).filter(|at| !heard(*at)).collect(),
            false => Vec::new(),
        };
        for at in silent {
            said.add(at, Err(Unknown::Failed(Cause::NotConnected(time, time))));
        }
        said
    }

    /// As a server of the set is shown.
    fn at(&self, addr: &ConnectionAddr) -> Arc<str> {
        format!("{} at {}", self.name, text::address(addr)).into()
    }

    /// Where the master is, as one of the sentinels knows.
    fn ask(&self, at: usize, time: (Instant, Duration)) -> Result<ConnectionAddr, Unknown> {
        let Some(sentinel) = self.all.get(at) else {
            return Err(Unknown::Name);
        };
        let asked = self.named(sentinel, time);
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

    /// What most sentinels say that name a master counts: one alone may be cut off from the others. Sentinels that do not
    /// answer at all confirm: for another master a majority of them is needed (rule R43). Those that refuse to answer may
    /// have chosen one.
    fn confirm(self: &Arc<Self>, address: &str) -> Option<Result<(), Cause>> {
        let said = self.ask_all(CONFIRM);
        if let Some(addr) = said.majority() {
            self.warned.store(false, Ordering::Relaxed);
            return Some(match *self.at(addr) == *address {
                true => Ok(()),
                false => Err(Cause::Moved(text::address(addr))),
            });
        }
        let is_silence = said.is_silence();
        if !self.warned.swap(true, Ordering::Relaxed) {
            match is_silence {
                true => say!(
                    warn,
                    "no sentinel of {} answers: locks go on, and no failover comes about",
                    self.given
                ),
                false if said.named.is_empty() => say!(
                    warn,
                    "{}: no locks are granted until one does",
                    self.no_master(&said.unknown)
                ),
                false => say!(
                    warn,
                    "the sentinels of {} name different masters: no locks are granted until most agree",
                    self.given
                ),
            }
        }
        is_silence.then_some(Ok(()))
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
    let (mut connection, handshake) = Connection::open(sentinel, timeout, Purpose::Questions)?;
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

    fn set() -> Arc<Sentinels> {
        // None of them has a server.
        let given = "redis+sentinel://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3/m".into_node();
        let given = given.unwrap();
        let trust = Trust::new(&Tls::default(), std::iter::once(given.info()));
        let Place::Set(set) = Place::new(given, &trust, None) else {
            panic!("it is a set");
        };
        set
    }

    fn named(name: &str) -> Result<ConnectionAddr, Unknown> {
        match name {
            "-" => Err(Unknown::Failed(Cause::NotConnected(CONFIRM, CONFIRM))),
            "x" => Err(Unknown::Failed(Cause::Connect("refused".into()))),
            "?" => Err(Unknown::Name),
            "!" => Err(Unknown::Failed(Cause::Refused("NOAUTH".into()))),
            host => Ok(ConnectionAddr::Tcp(host.into(), 1)),
        }
    }

    #[test]
    fn most_of_those_that_name_a_master_are_believed() {
        for (said, certain, believed, silence) in [
            (&["a", "a", "b"][..], true, Some("a"), false),
            (&["a", "a"], true, Some("a"), false),
            (&["a", "b", "b"], true, Some("b"), false),
            (&["a"], false, Some("a"), false),
            (&["a", "-", "x"], false, Some("a"), false),
            (&["a", "!", "?"], false, Some("a"), false),
            (&["a", "b"], false, None, false),
            (&["a", "b", "c"], false, None, false),
            (&["-", "x", "x"], false, None, true),
            (&["-", "x", "!"], false, None, false),
            (&["?", "?", "?"], false, None, false),
        ] {
            let mut all = Said::default();
            for (at, name) in said.iter().enumerate() {
                all.add(at, named(name));
            }
            let host = |addr: &ConnectionAddr| text::address(addr).replace(":1", "");
            assert_eq!(all.is_certain(3), certain, "{said:?}");
            assert_eq!(all.majority().map(host).as_deref(), believed, "{said:?}");
            assert_eq!(all.is_silence(), silence, "{said:?}");
        }
    }

    #[test]
    fn a_sentinel_is_asked_by_one_thread_at_a_time() {
        let set = set();
        let asked = Asked::begin(&set, 1);
        assert!(asked.is_some() && Asked::begin(&set, 1).is_none());
        assert!(Asked::begin(&set, 2).is_some());
        drop(asked);
        assert!(Asked::begin(&set, 1).is_some());
        // And all of them can be asked again.
        for _ in 0..3 {
            assert_eq!(set.ask_all(CONFIRM).unknown.len(), 3);
            assert_eq!(set.asked.load(Ordering::Relaxed), 0);
        }
    }
}
