//! Where a node's master is: the only file that distinguishes kinds of deployment.

use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::ConnectionAddr;

use crate::errors::cause::{Announced, Cause};
use crate::errors::server_error::Meaning;
use crate::errors::text;
use crate::net::place::cluster::{Cluster, Maps};
use crate::net::place::question::Opinions;
use crate::net::place::sentinels::{Description, Sentinels};
use crate::net::socket::connection::Connection;
use crate::net::socket::peer::Peer;
use crate::net::socket::set_up::Purpose;
use crate::net::socket::trust::Trust;
use crate::protocol::commands::slots::{Elsewhere, Endpoint};
use crate::protocol::node::directory::{FoundMaster, LastWord, Times};
use crate::protocol::node::handshake::Handshake;
use crate::settings::credentials::AskCredentials;
use crate::settings::node_address::NodeAddress;
use crate::settings::url;
use crate::values::clock;
use crate::values::sync::lock;

/// How many keys are tried for the witness.
const MAX_WITNESSES: usize = 3;

/// A node: a server, the master of a set, or a Redis Cluster, one of its shards or one of its servers.
#[derive(Clone)]
pub(crate) enum Place {
    Server(Box<Peer>),
    Master(Arc<Directory>),
    /// A server that slots migrate to. It may own none: the slot's master names it with each operation.
    Target(Arc<Target>),
    /// A Redis Cluster as a whole, which has no single master.
    Cluster(Arc<Cluster>),
}

/// The source that names a master, which may change.
pub(crate) struct Directory {
    given: NodeAddress,
    trust: Trust,
    credentials: Option<AskCredentials>,
    source: Source,
    shown: Mutex<Arc<str>>,
    /// Whether it was logged that nothing confirms the address.
    warned: AtomicBool,
}

/// A server of a Redis Cluster that slots migrate to.
pub(crate) struct Target {
    cluster: Arc<Cluster>,
    endpoint: Endpoint,
    shown: Arc<str>,
}

enum Source {
    Sentinels(Arc<Sentinels>),
    /// The shard that owns this slot. If the slot moves to another shard, another slot of the shard replaces it.
    Cluster(Arc<Cluster>, AtomicU16),
}

/// The answers of a directory's servers.
enum Said<'a> {
    Sentinels(Opinions),
    /// About this slot.
    Cluster(&'a Arc<Cluster>, &'a AtomicU16, Maps),
}

impl Said<'_> {
    fn opinions(self) -> Opinions {
        match self {
            Said::Sentinels(opinions) => opinions,
            Said::Cluster(.., maps) => maps.opinions,
        }
    }
}

impl Place {
    pub(crate) fn new(
        given: NodeAddress,
        trust: &Trust,
        credentials: Option<AskCredentials>,
    ) -> Place {
        let peer = |info: &redis::ConnectionInfo, ask| Peer::new(info.clone(), trust, ask);
        if let Some(seeds) = given.cluster() {
            let seeds = seeds.iter().map(|info| peer(info, credentials.clone()));
            let seeds = seeds.collect();
            return Place::Cluster(Arc::new(Cluster::new(given, seeds, trust, credentials)));
        }
        let Some(set) = given.set() else {
            return Place::Server(peer(given.info(), credentials).into());
        };
        let all = set.sentinels.iter().map(|info| peer(info, None)).collect();
        let info = given.info();
        let password = info.redis_settings().password();
        let sentinels = Sentinels::new(set.name.clone(), all, info.addr().clone(), password);
        let source = Source::Sentinels(Arc::new(sentinels));
        Place::Master(Arc::new(Directory {
            shown: Mutex::new(given.to_string().into()),
            warned: AtomicBool::new(false),
            trust: trust.clone(),
            credentials,
            source,
            given,
        }))
    }

    /// The place of this slot's keys.
    pub(crate) fn of_slot(&self, slot: u16) -> Place {
        match self {
            Place::Cluster(cluster) => Place::Master(Arc::new(cluster.directory(slot))),
            place => place.clone(),
        }
    }

    /// All masters of this place.
    pub(crate) fn masters(&self, timeout: Duration) -> Vec<Place> {
        let Place::Cluster(cluster) = self else {
            return vec![self.clone()];
        };
        let said = cluster.ask_all(0, None, timeout).opinions;
        let map = cluster.map().filter(|_| said.believed().is_some());
        let slots = map.map_or_else(|| vec![0], |map| map.shards().collect());
        slots.into_iter().map(|slot| self.of_slot(slot)).collect()
    }

    pub(crate) fn cluster(&self) -> Option<&Arc<Cluster>> {
        match self {
            Place::Cluster(cluster) => Some(cluster),
            _ => None,
        }
    }

    /// The address as it was given.
    pub(crate) fn given(&self) -> NodeAddress {
        match self {
            Place::Server(peer) => NodeAddress::server((***peer).clone()),
            Place::Master(directory) => directory.given.clone(),
            Place::Target(target) => target.cluster.given.clone(),
            Place::Cluster(cluster) => cluster.given.clone(),
        }
    }

    /// Whether another server may take the master's place.
    pub(crate) fn is_set(&self) -> bool {
        !matches!(self, Place::Server(_))
    }

    pub(crate) fn is_in_cluster(&self) -> bool {
        match self {
            Place::Master(directory) => matches!(directory.source, Source::Cluster(..)),
            Place::Target(_) | Place::Cluster(_) => true,
            Place::Server(_) => false,
        }
    }

    /// The text that may be shown: host and port, or path; for a set its name, and where its master was found last.
    pub(crate) fn shown(&self) -> Arc<str> {
        match self {
            Place::Server(peer) => text::address(peer.addr()).into(),
            // In a forked child, the lock may be held by a thread that does not exist there.
            Place::Master(directory) => match directory.shown.try_lock() {
                Ok(shown) => shown.clone(),
                Err(_) => directory.given.to_string().into(),
            },
            Place::Target(target) => target.shown.clone(),
            Place::Cluster(cluster) => cluster.given.to_string().into(),
        }
    }

    /// Connects to the master, all within `timeout` except what [`Connection::open`] cannot bound.
    pub(crate) fn open(
        &self,
        timeout: Duration,
        purpose: Purpose<'_>,
    ) -> Result<(Connection, Handshake), Cause> {
        match self {
            Place::Server(peer) => Connection::open(peer, timeout, purpose),
            Place::Master(directory) => directory.open(timeout, purpose),
            Place::Target(target) => target.open(timeout, purpose),
            Place::Cluster(cluster) => cluster.directory(0).open(timeout, purpose),
        }
    }

    /// The sentinels' descriptions of a set.
    pub(crate) fn describe(
        &self,
        timeout: Duration,
    ) -> Option<Vec<(String, Result<Description, Cause>)>> {
        match self {
            Place::Master(directory) => match &directory.source {
                Source::Sentinels(sentinels) => Some(sentinels.describe(timeout)),
                Source::Cluster(..) => None,
            },
            Place::Server(_) | Place::Target(_) | Place::Cluster(_) => None,
        }
    }

    /// Whether the master still is where it was found. `None` if the answers do not decide it.
    pub(crate) fn confirm(&self, found: &FoundMaster) -> Option<LastWord> {
        match self {
            Place::Master(directory) => directory.confirm(&found.address),
            Place::Server(_) | Place::Target(_) | Place::Cluster(_) => Some(LastWord {
                answer: Ok(()),
                at: found.at,
            }),
        }
    }

    /// Whether the connected server owns `slot`.
    pub(crate) fn leads_to(&self, slot: u16) -> bool {
        match self {
            Place::Master(directory) => match &directory.source {
                Source::Cluster(cluster, _) => cluster.has_at(slot, &self.shown()),
                Source::Sentinels(_) => true,
            },
            Place::Target(_) => false,
            Place::Server(_) | Place::Cluster(_) => true,
        }
    }

    /// The Cluster of this shard or server.
    fn of_cluster(&self) -> Option<&Arc<Cluster>> {
        match self {
            Place::Master(directory) => match &directory.source {
                Source::Cluster(cluster, _) => Some(cluster),
                Source::Sentinels(_) => None,
            },
            Place::Target(target) => Some(&target.cluster),
            Place::Server(_) | Place::Cluster(_) => None,
        }
    }

    /// The server that the redirect `error` names.
    pub(crate) fn asked_for(&self, slot: u16, error: &str) -> Option<Place> {
        let cluster = self.of_cluster()?;
        match said(slot, error, &self.shown())? {
            Elsewhere::Moved(to) | Elsewhere::Asks(to) => cluster.server(&to),
            Elsewhere::Torn => None,
        }
    }

    /// A server of this Cluster that slots migrate to.
    pub(crate) fn target(&self, endpoint: &Endpoint) -> Option<Place> {
        let cluster = self.cluster()?;
        let target = || Target {
            cluster: cluster.clone(),
            endpoint: endpoint.clone(),
            shown: text::address(&cluster.addr(endpoint)).into(),
        };
        let named = url::is_host(&endpoint.0);
        named.then(|| Place::Target(Arc::new(target())))
    }

    /// Whether this is the target at `endpoint`.
    pub(crate) fn is_target(&self, endpoint: &Endpoint) -> bool {
        matches!(self, Place::Target(target) if target.endpoint == *endpoint)
    }

    /// Whether this leads to the server that owns the slot.
    pub(crate) fn has(&self, slot: u16) -> bool {
        match self {
            Place::Master(directory) => match &directory.source {
                Source::Cluster(cluster, own) => {
                    cluster.has_together(own.load(Ordering::Relaxed), slot)
                }
                Source::Sentinels(_) => true,
            },
            Place::Target(_) => false,
            Place::Server(_) | Place::Cluster(_) => true,
        }
    }

    /// The redirect in `error`, for a key in this slot. MOVED updates the map.
    pub(crate) fn elsewhere(&self, slot: u16, error: &str) -> Option<Elsewhere> {
        let cluster = self.of_cluster()?;
        let shown = match self {
            // (`shown` returns another text while another thread reads it.)
            Place::Master(directory) => lock(&directory.shown).clone(),
            other => other.shown(),
        };
        let elsewhere = said(slot, error, &shown)?;
        if let Elsewhere::Moved(to) = &elsewhere {
            cluster.moved(slot, &shown, to.clone());
            // This place keeps its server, by another of its slots.
            if let Place::Master(directory) = self
                && let Source::Cluster(_, own) = &directory.source
                && own.load(Ordering::Relaxed) == slot
            {
                cluster.stay(own, &shown);
            }
        }
        Some(elsewhere)
    }
}

/// The redirect in the `error` of the server that is shown as `shown`, for a key in this slot.
fn said(slot: u16, error: &str, shown: &str) -> Option<Elsewhere> {
    let asked = shown.rsplit_once(':').map_or("", |(host, _)| host);
    Elsewhere::of(error, slot, asked.trim_matches(['[', ']']))
}

impl Cluster {
    /// One of the Cluster's servers.
    fn server(&self, endpoint: &Endpoint) -> Option<Place> {
        let named = url::is_host(&endpoint.0);
        named.then(|| Place::Server(self.peer(self.addr(endpoint)).into()))
    }

    /// The directory of the shard that owns this slot.
    fn directory(self: &Arc<Self>, slot: u16) -> Directory {
        Directory {
            given: self.given.clone(),
            trust: self.trust.clone(),
            credentials: self.credentials.clone(),
            source: Source::Cluster(self.clone(), AtomicU16::new(slot)),
            shown: Mutex::new(self.given.to_string().into()),
            warned: AtomicBool::new(false),
        }
    }
}

impl Target {
    /// Connects without the guard's witness, which would be in one of the server's slots: it may own none. The server
    /// votes if it has lost nothing since it was started.
    fn open(
        &self,
        timeout: Duration,
        purpose: Purpose<'_>,
    ) -> Result<(Connection, Handshake), Cause> {
        let peer = self.cluster.peer(self.cluster.addr(&self.endpoint));
        let (connection, handshake) = Connection::open(&peer, timeout, purpose.without_witness())?;
        let handshake = Handshake {
            is_target: true,
            ..routed(handshake, None)
        };
        Ok((connection, handshake))
    }
}

/// The handshake with a server of a Cluster.
fn routed(handshake: Handshake, witness: Option<Vec<u8>>) -> Handshake {
    Handshake {
        witness_key: witness.map(Into::into),
        routed: true,
        ..handshake
    }
}

impl Directory {
    fn open(
        &self,
        timeout: Duration,
        purpose: Purpose<'_>,
    ) -> Result<(Connection, Handshake), Cause> {
        let until = clock::instant() + timeout;
        // The master needs its share of the time.
        let said = self.ask_all(None, timeout / 2).opinions();
        let Some(named) = said.believed() else {
            return Err(self.no_master(&said));
        };
        let moved = self.moved_at(&named.addr);
        let (at, by) = moved.unwrap_or_else(|| (named.at, named.by.clone()));
        let (address, at) = (self.at(&named.addr), at.min(named.at));
        let found = FoundMaster::new(address, at, named.by_most, Times::REAL);
        let info = self.given.info().clone().set_addr(named.addr.clone());
        let peer = Peer::new(info, &self.trust, self.credentials.clone());
        let rest = until.saturating_duration_since(clock::instant());
        let connected = self.connect(&peer, rest, purpose);
        *lock(&self.shown) = found.address.clone();
        match connected {
            Ok((connection, handshake)) => {
                let found = Some(found);
                Ok((connection, Handshake { found, ..handshake }))
            }
            Err(cause) => {
                let cause = match cause {
                    Cause::NotConnected(..) => Cause::NotConnected(timeout, timeout),
                    cause => cause,
                };
                Err(self.announced(cause, &named.addr, by))
            }
        }
    }

    /// Why no master is believed.
    fn no_master(&self, said: &Opinions) -> Cause {
        match &self.source {
            Source::Sentinels(sentinels) => sentinels.no_master(said),
            Source::Cluster(cluster, _) => cluster.no_master(said),
        }
    }

    /// Adds advice: an address that cannot be reached may be one that the servers use for each other, in a separate
    /// network.
    fn announced(&self, cause: Cause, addr: &ConnectionAddr, by: String) -> Cause {
        let advice = match &self.source {
            _ if !cause.is_silence() => return cause,
            Source::Cluster(cluster, _) if cluster.is_given(addr) => return cause,
            Source::Cluster(..) => {
                "if that is not its address for this host, set cluster-announce-ip on it, or cluster-announce-hostname"
            }
            Source::Sentinels(_) => {
                "if that is not the master's address for this host, set replica-announce-ip on the servers, and name it in \
                 sentinel monitor"
            }
        };
        let by = match &self.source {
            Source::Cluster(..) => by,
            Source::Sentinels(_) => format!("the sentinel {by}"),
        };
        Cause::Announced(Box::new(Announced {
            at: text::address(addr),
            shown: self.at(addr),
            cause,
            by,
            advice,
        }))
    }

    /// When a server reported that this one has become the master, if others may not have learnt it yet; and which one
    /// did.
    fn moved_at(&self, addr: &ConnectionAddr) -> Option<(Instant, String)> {
        match &self.source {
            Source::Sentinels(_) => None,
            Source::Cluster(cluster, slot) => cluster.moved_at(slot.load(Ordering::Relaxed), addr),
        }
    }

    /// Connects to the master. In a Cluster its witness is in one of its slots, and other servers have other keys.
    fn connect(
        &self,
        peer: &Peer,
        timeout: Duration,
        purpose: Purpose<'_>,
    ) -> Result<(Connection, Handshake), Cause> {
        let Source::Cluster(cluster, slot) = &self.source else {
            return Connection::open(peer, timeout, purpose);
        };
        let Purpose::GuardedLocks {
            witness: Some(plain),
            seasoned,
            needed,
        } = purpose
        else {
            let (connection, handshake) = Connection::open(peer, timeout, purpose)?;
            return Ok((connection, routed(handshake, None)));
        };
        let (until, map) = (
            clock::instant() + timeout,
            cluster.map().unwrap_or_default(),
        );
        let mut elsewhere = None;
        let slot = slot.load(Ordering::Relaxed);
        for witness in map.witnesses(slot, plain).take(MAX_WITNESSES) {
            let purpose = Purpose::GuardedLocks {
                witness: Some(&witness),
                seasoned,
                needed,
            };
            let rest = until.saturating_duration_since(clock::instant());
            match Connection::open(peer, rest, purpose) {
                Ok((connection, handshake)) => {
                    return Ok((connection, routed(handshake, Some(witness))));
                }
                // The witness's slot is migrating.
                Err(Cause::Refused(text)) if Meaning::of(&text).is_elsewhere() => {
                    elsewhere = Some(Cause::Connect(format!("its witness moves: {text}")));
                }
                Err(cause) => return Err(cause),
            }
        }
        Err(elsewhere.unwrap_or(Cause::NotAsked))
    }

    fn ask_all(&self, except: Option<&str>, time: Duration) -> Said<'_> {
        match &self.source {
            Source::Sentinels(sentinels) => Said::Sentinels(sentinels.ask_all(time)),
            Source::Cluster(cluster, slot) => {
                let of = slot.load(Ordering::Relaxed);
                Said::Cluster(cluster, slot, cluster.ask_all(of, except, time))
            }
        }
    }

    /// The text that a server is shown as.
    fn at(&self, addr: &ConnectionAddr) -> Arc<str> {
        let address = text::address(addr);
        match &self.source {
            Source::Sentinels(sentinels) => format!("{} at {address}", sentinels.name).into(),
            Source::Cluster(..) => address.into(),
        }
    }

    /// Asks whether the master still is at `address` (rule R43). `None` if the answers do not decide it.
    fn confirm(&self, address: &str) -> Option<LastWord> {
        let asked = clock::instant();
        let said = self.ask_all(Some(address), Times::REAL.confirm);
        let word = match &said {
            Said::Sentinels(said) => LastWord::of(&said.belief(), asked, |addr| {
                match *self.at(addr) == *address {
                    true => Ok(()),
                    false => Err(Cause::Moved(text::address(addr))),
                }
            }),
            Said::Cluster(cluster, slot, said) => cluster.confirm(said, slot, address, asked),
        };
        let said = said.opinions();
        let is_sure = word.is_some() && !said.is_silence();
        if self.warned.swap(!is_sure, Ordering::Relaxed) || is_sure {
            return word;
        }
        self.warn(&said);
        word
    }

    fn warn(&self, said: &Opinions) {
        let given = &self.given;
        let until = match said.names_any() {
            true => "most agree",
            false => "one does",
        };
        match (&self.source, said.is_silence()) {
            (Source::Sentinels(_), true) => say!(
                warn,
                "no sentinel of {given} answers: locks go on, and no failover comes about",
            ),
            (Source::Cluster(..), true) => {
                say!(warn, "no other server of the {given} answers: locks go on")
            }
            (_, false) => say!(
                warn,
                "{}: no locks are granted there until {until}",
                self.no_master(said)
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::into_node::IntoNode;
    use crate::settings::tls::Tls;

    /// The address is read by each call that looks for its connections.
    #[test]
    fn a_redirect_is_read_with_the_address_that_gave_it_though_others_read_that_too() {
        let given = "redis+cluster://seed".into_node().unwrap();
        let trust = Trust::new(&Tls::default(), [given.info()]);
        let place = Place::new(given, &trust, None).of_slot(17);
        let Place::Master(directory) = &place else {
            panic!("it is one of its shards");
        };
        let mut shown = lock(&directory.shown);
        *shown = "10.0.0.1:7000".into();
        let said = std::thread::scope(|scope| {
            // The host is that of the server that replied.
            let said = scope.spawn(|| place.elsewhere(17, "MOVED 17 :7001"));
            std::thread::sleep(Duration::from_millis(500));
            drop(shown);
            said.join().unwrap()
        });
        let to = ("10.0.0.1".to_owned(), 7001);
        assert_eq!(said, Some(Elsewhere::Moved(to)));
    }
}
