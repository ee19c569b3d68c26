//! The master of a set or of a shard: how it is found, connected to and confirmed (rule R43).

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::ConnectionAddr;

use crate::errors::cause::{Announced, Cause};
use crate::errors::server_error::Meaning;
use crate::errors::text;
use crate::net::place::cluster::{Cluster, Maps};
use crate::net::place::question::Opinions;
use crate::net::place::sentinels::{Sentinels, no_address};
use crate::net::socket::connection::Connection;
use crate::net::socket::peer::Peer;
use crate::net::socket::set_up::Purpose;
use crate::net::socket::trust::Trust;
use crate::protocol::node::directory::{FoundMaster, LastWord, Times};
use crate::protocol::node::handshake::Handshake;
use crate::settings::credentials::AskCredentials;
use crate::settings::node_address::NodeAddress;
use crate::values::clock;
use crate::values::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU16, Ordering},
    lock,
};

/// How many keys are tried for the witness.
const MAX_WITNESSES: usize = 3;

/// The source that names a master, which may change.
pub(crate) struct Directory {
    pub(super) given: NodeAddress,
    pub(super) trust: Trust,
    pub(super) credentials: Option<AskCredentials>,
    pub(super) source: Source,
    pub(super) shown: Mutex<Arc<str>>,
    /// Whether it was logged that nothing confirms the address.
    pub(super) warned: AtomicBool,
}

/// The servers that name the master.
pub(super) enum Source {
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

/// The handshake with a server of a Cluster.
pub(crate) fn routed(handshake: Handshake, peer: &Peer, witness: Option<Vec<u8>>) -> Handshake {
    Handshake {
        witness_key: witness.map(Into::into),
        routed: true,
        server: text::address(peer.addr()).into(),
        ..handshake
    }
}

impl Directory {
    /// Asks for the master, and connects to it. Only a question that has lasted its whole time shows that a sentinel is
    /// silent. The connections of locks are tried again by then; a look is one try, and waits for that.
    pub(super) fn open(
        &self,
        timeout: Duration,
        purpose: Purpose<'_>,
    ) -> Result<(Connection, Handshake), Cause> {
        let until = clock::instant() + timeout;
        // The master needs its share of the time.
        let share = timeout / 2;
        let time = match (&self.source, purpose) {
            (Source::Sentinels(_), Purpose::Looks) => share + Times::REAL.lasts,
            _ => share,
        };
        let said = self.ask_all(None, time).opinions();
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
        let connected = self.connect(&peer, rest.max(share), purpose);
        self.check_host(&named.addr)?;
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

    /// Refuses a host that repeats a password, which the closure may have returned for the first time just now.
    fn check_host(&self, addr: &ConnectionAddr) -> Result<(), Cause> {
        match (&self.source, addr) {
            (
                Source::Sentinels(sentinels),
                ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. },
            ) if sentinels.is_secret(host) => Err(no_address()),
            _ => Ok(()),
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
            return Ok((connection, routed(handshake, peer, None)));
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
                    return Ok((connection, routed(handshake, peer, Some(witness))));
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
    pub(super) fn confirm(&self, address: &str) -> Option<LastWord> {
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
