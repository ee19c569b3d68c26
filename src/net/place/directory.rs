//! Where a node's master is: the only file that distinguishes kinds of deployment.

use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::errors::cause::Cause;
use crate::errors::text;
use crate::net::place::cluster::Cluster;
use crate::net::place::master::{Directory, Source, routed};
use crate::net::place::sentinels::{Description, Sentinels};
use crate::net::socket::connection::Connection;
use crate::net::socket::peer::Peer;
use crate::net::socket::set_up::Purpose;
use crate::net::socket::trust::Trust;
use crate::protocol::commands::slots::{Elsewhere, Endpoint};
use crate::protocol::node::directory::{FoundMaster, LastWord};
use crate::protocol::node::handshake::Handshake;
use crate::settings::credentials::AskCredentials;
use crate::settings::node_address::NodeAddress;
use crate::settings::url;
use crate::values::sync::lock;

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

/// A server of a Redis Cluster that slots migrate to.
pub(crate) struct Target {
    cluster: Arc<Cluster>,
    endpoint: Endpoint,
    shown: Arc<str>,
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
        let like = info.addr().clone();
        let sentinels = Sentinels::new(set.name.clone(), all, like, password, credentials.clone());
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
