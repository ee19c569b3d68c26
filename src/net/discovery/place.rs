//! Where a node's master is, whatever kind of deployment it is. (`master` tells sentinels and Clusters apart, too.)

use std::sync::Arc;
use std::time::Duration;

use crate::errors::cause::Cause;
use crate::errors::text;
use crate::net::discovery::cluster_servers::ClusterServers;
use crate::net::discovery::given_node::GivenNode;
use crate::net::discovery::master::{Directory, Source, routed};
use crate::net::discovery::sentinels::{Descriptions, Sentinels};
use crate::net::socket::connection::Connection;
use crate::net::socket::peer::Peer;
use crate::net::socket::set_up::Purpose;
use crate::net::socket::trust::Trust;
use crate::protocol::discovery::found_master::{
    DirectoryAnswer, DirectoryTimes, FoundMaster, MasterConfirmation,
};
use crate::protocol::node::restart_guard::{self, RestartGuard};
use crate::protocol::node::server_properties::ServerProperties;
use crate::settings::credentials::AskCredentials;
use crate::settings::node_address::NodeAddress;
use crate::settings::options::Options;
use crate::settings::url;
use crate::values::endpoint::Endpoint;
use crate::values::sync::atomic::{AtomicU16, Ordering};

/// A node: a server, the master of a set, or a Redis Cluster, one of its shards or one of its servers.
#[derive(Clone)]
pub(crate) enum Place {
    Server(Box<Peer>),
    Master(Arc<Directory>),
    /// A server that slots migrate to. It may own none: the slot's master names it with each operation.
    Target(Arc<SlotTarget>),
    /// A Redis Cluster as a whole, which has no single master.
    Cluster(Arc<ClusterServers>),
}

/// A server of a Redis Cluster that slots migrate to.
pub(crate) struct SlotTarget {
    cluster: Arc<ClusterServers>,
    endpoint: Endpoint,
    shown: Arc<str>,
}

impl Place {
    pub(crate) fn new(
        given: NodeAddress,
        trust: &Trust,
        credentials: Option<AskCredentials>,
    ) -> Place {
        let given = GivenNode::new(given, trust, credentials);
        if let Some(cluster) = ClusterServers::new(&given) {
            return Place::Cluster(Arc::new(cluster));
        }
        let Some(sentinels) = Sentinels::new(&given) else {
            return Place::Server(given.peer(given.node.info().addr().clone()).into());
        };
        let source = Source::Sentinels(Arc::new(sentinels));
        Place::Master(Arc::new(Directory::new(given, source)))
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
        let opinions = cluster.ask_all(0, None, timeout).opinions;
        let map = cluster.map().filter(|_| opinions.believed().is_some());
        let slots = map.map_or_else(|| vec![0], |map| map.shards().collect());
        slots.into_iter().map(|slot| self.of_slot(slot)).collect()
    }

    pub(crate) fn cluster(&self) -> Option<&Arc<ClusterServers>> {
        match self {
            Place::Cluster(cluster) => Some(cluster),
            _ => None,
        }
    }

    /// The address as it was given.
    pub(crate) fn given(&self) -> NodeAddress {
        match self {
            Place::Server(peer) => NodeAddress::server((***peer).clone()),
            Place::Master(directory) => directory.given.node.clone(),
            Place::Target(target) => target.cluster.given.node.clone(),
            Place::Cluster(cluster) => cluster.given.node.clone(),
        }
    }

    /// Whether another server may take the master's place.
    pub(crate) fn is_set(&self) -> bool {
        !matches!(self, Place::Server(_))
    }

    /// How long the node gives no votes where it may have forgotten locks. (A set may have forgotten them at any time.)
    pub(crate) fn guard(&self, options: &Options, nodes: usize) -> Option<RestartGuard> {
        let default = self.is_set().then_some(restart_guard::DEFAULT_TTL);
        let max_ttl = match options.restart_guard {
            None => default,
            Some(_) => options.max_ttl(),
        };
        let guard = RestartGuard::new(max_ttl?, nodes);
        Some(match self.is_set() {
            true => guard.of_set(),
            false => guard,
        })
    }

    pub(crate) fn is_in_cluster(&self) -> bool {
        matches!(self, Place::Target(_) | Place::Cluster(_)) || self.shard().is_some()
    }

    /// The Cluster of a shard, and the slot by which it is asked for.
    fn shard(&self) -> Option<(&Arc<ClusterServers>, &AtomicU16)> {
        match self {
            Place::Master(directory) => directory.shard(),
            Place::Server(_) | Place::Target(_) | Place::Cluster(_) => None,
        }
    }

    /// The text that may be shown: host and port, or path; for a set its name, and where its master was found last.
    pub(crate) fn shown(&self) -> Arc<str> {
        match self {
            Place::Server(peer) => text::address(peer.addr()).into(),
            // In a forked child, the lock may be held by a thread that does not exist there.
            Place::Master(directory) => match directory.shown.try_lock() {
                Ok(shown) => shown.clone(),
                Err(_) => directory.given.node.to_string().into(),
            },
            Place::Target(target) => target.shown.clone(),
            Place::Cluster(cluster) => cluster.given.node.to_string().into(),
        }
    }

    /// The server that a question to this place goes to, as far as that is known without asking: an address, a set or a
    /// Cluster.
    pub(crate) fn server_asked(&self) -> String {
        let owner = self.shard().and_then(|(cluster, slot)| {
            let map = cluster.map()?;
            let owner = map.master(slot.load(Ordering::Relaxed))?;
            Some(text::address(&cluster.given.addr(owner)))
        });
        match self {
            Place::Target(target) => target.shown.to_string(),
            _ => owner.unwrap_or_else(|| self.given().to_string()),
        }
    }

    /// Connects to the master, all within `timeout` except what [`Connection::open`] cannot bound.
    pub(crate) fn open(
        &self,
        timeout: Duration,
        purpose: Purpose<'_>,
    ) -> Result<(Connection, ServerProperties), Cause> {
        match self {
            Place::Server(peer) => Connection::open(peer, timeout, purpose),
            Place::Master(directory) => directory.open(timeout, purpose),
            Place::Target(target) => target.open(timeout, purpose),
            Place::Cluster(cluster) => cluster.directory(0).open(timeout, purpose),
        }
    }

    /// How long it takes at most to connect within `timeout` for questions about locks: a look at a set waits until each
    /// sentinel has answered, or was silent for the whole time of a question.
    pub(crate) fn looks_within(&self, timeout: Duration) -> Duration {
        match self.sentinels() {
            Some(_) => timeout.saturating_add(DirectoryTimes::REAL.lasts),
            None => timeout,
        }
    }

    /// The sentinels of a set.
    fn sentinels(&self) -> Option<&Sentinels> {
        match self {
            Place::Master(directory) => match &directory.source {
                Source::Sentinels(sentinels) => Some(sentinels),
                Source::Cluster(..) => None,
            },
            Place::Server(_) | Place::Target(_) | Place::Cluster(_) => None,
        }
    }

    /// For each of these places that is a set, the sentinels' descriptions of it. The sentinels of all sets are asked at once.
    pub(crate) fn describe(places: &[Place], timeout: Duration) -> Vec<Option<Descriptions>> {
        let sets: Vec<&Sentinels> = places.iter().filter_map(Place::sentinels).collect();
        let mut described = Sentinels::describe(&sets, timeout).into_iter();
        let of = |place: &Place| place.sentinels().and_then(|_| described.next());
        places.iter().map(of).collect()
    }

    /// Whether the master still is where it was found.
    pub(crate) fn confirm(&self, found: &FoundMaster) -> MasterConfirmation {
        match self {
            Place::Master(directory) => directory.confirm(found),
            Place::Server(_) | Place::Target(_) | Place::Cluster(_) => Ok(DirectoryAnswer {
                result: Ok(()),
                at: found.at,
            }),
        }
    }

    /// Whether the connected server owns `slot`.
    pub(crate) fn leads_to(&self, slot: u16) -> bool {
        match self.shard() {
            Some((cluster, _)) => cluster.has_at(slot, &self.shown()),
            None => !matches!(self, Place::Target(_)),
        }
    }

    /// Whether this leads to the server that owns the slot.
    pub(crate) fn has(&self, slot: u16) -> bool {
        match self.shard() {
            Some((cluster, own)) => cluster.has_together(own.load(Ordering::Relaxed), slot),
            None => !matches!(self, Place::Target(_)),
        }
    }

    /// The server of the same Cluster, or the same set, at this address.
    pub(crate) fn server(&self, endpoint: &Endpoint) -> Option<Place> {
        match self {
            Place::Master(directory) => directory.server(endpoint),
            Place::Target(target) => target.cluster.server(endpoint),
            Place::Server(_) | Place::Cluster(_) => None,
        }
    }

    /// A server of this Cluster that slots migrate to.
    pub(crate) fn target(&self, endpoint: &Endpoint) -> Option<Place> {
        let cluster = self.cluster()?;
        let target = || SlotTarget {
            cluster: cluster.clone(),
            endpoint: endpoint.clone(),
            shown: text::address(&cluster.given.addr(endpoint)).into(),
        };
        let named = url::is_host(&endpoint.0);
        named.then(|| Place::Target(Arc::new(target())))
    }

    /// Whether this is the target at `endpoint`.
    pub(crate) fn is_target(&self, endpoint: &Endpoint) -> bool {
        matches!(self, Place::Target(target) if target.endpoint == *endpoint)
    }

    /// Leads to the owner of this slot from now on, if it leads to that of another one.
    pub(crate) fn lead_to(&self, slot: u16) {
        if let Some((_, own)) = self.shard() {
            own.store(slot, Ordering::Relaxed);
        }
    }

    /// Records that the server at `from` reported `to` as the owner of the slot. Returns whether the maps are to be asked for.
    pub(crate) fn slot_moved(&self, slot: u16, from: &str, to: &Endpoint) -> bool {
        let (cluster, own) = match (self, self.shard()) {
            (Place::Target(target), _) => (&target.cluster, None),
            (Place::Cluster(cluster), _) => (cluster, None),
            (_, Some((cluster, own))) => (cluster, Some(own)),
            (_, None) => return false,
        };
        cluster.slot_moved(slot, (from, to.clone()), own)
    }
}

impl Directory {
    /// A server of this set or Cluster. `None`: its host is none.
    fn server(&self, endpoint: &Endpoint) -> Option<Place> {
        if let Some((cluster, _)) = self.shard() {
            return cluster.server(endpoint);
        }
        let (given, named) = (&self.given, url::is_host(&endpoint.0));
        named.then(|| Place::Server(given.peer(given.addr(endpoint)).into()))
    }
}

impl ClusterServers {
    /// A server of this Cluster. `None`: its host is none.
    fn server(&self, endpoint: &Endpoint) -> Option<Place> {
        // The map has the ID of the server by the name that it has there.
        let named = url::is_host(&endpoint.0);
        named.then(|| Place::Server(self.peer(self.given.addr(&self.name_of(endpoint))).into()))
    }

    /// The directory of the shard that owns this slot.
    fn directory(self: &Arc<Self>, slot: u16) -> Directory {
        let source = Source::Cluster(self.clone(), AtomicU16::new(slot));
        Directory::new(self.given.clone(), source)
    }
}

impl SlotTarget {
    /// Connects without the guard's witness, which would be in one of the server's slots: it may own none. The server
    /// votes if it has lost nothing since it was started.
    fn open(
        &self,
        timeout: Duration,
        purpose: Purpose<'_>,
    ) -> Result<(Connection, ServerProperties), Cause> {
        let addr = self.cluster.given.addr(&self.endpoint);
        let peer = self.cluster.peer(addr);
        let (connection, properties) = Connection::open(&peer, timeout, purpose.without_witness())?;
        let properties = ServerProperties {
            is_target: true,
            ..routed(properties, &peer, None)
        };
        Ok((connection, properties))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::discovery::cluster_servers::tests::{cluster, knows, learns, map};
    use crate::protocol::commands::resp::Reply;
    use crate::protocol::commands::slots::SlotMap;

    fn moved(place: &Place, slot: u16, to: &str) -> bool {
        place.slot_moved(slot, "a:1", &(to.into(), 1))
    }

    fn own(place: &Place) -> Option<u16> {
        let (_, own) = place.shard()?;
        Some(own.load(Ordering::Relaxed))
    }

    /// A look has to know the ID of the server to which it is sent on.
    #[test]
    fn a_look_is_sent_on_to_a_server_by_the_name_that_maps_give_it() {
        let bulk = |text: &str| Reply::Bulk(text.into());
        let map = |host: &str| {
            let ip = Reply::Array(vec![bulk("ip"), bulk("10.0.0.1")]);
            let id = bulk(&"a".repeat(40));
            let entry = Reply::Array(vec![bulk(host), Reply::Int(1), id, ip]);
            let range = Reply::Array(vec![Reply::Int(0), Reply::Int(9), entry]);
            SlotMap::of(&Reply::Array(vec![range]), "").unwrap()
        };
        let cluster = cluster("redis+cluster://seed:1", None);
        learns(&cluster, map("10.0.0.1"));
        learns(&cluster, map("h"));
        let place = Place::Cluster(cluster).of_slot(3);
        for (host, expected) in [
            ("h", "10.0.0.1:1"),
            ("10.0.0.1", "10.0.0.1:1"),
            ("x", "x:1"),
        ] {
            let server = place.server(&(host.into(), 1)).unwrap();
            assert_eq!(&*server.shown(), expected);
        }
    }

    /// Each change has all calls look for their lanes again, and each report of one has the maps asked for.
    #[test]
    fn a_redirect_that_many_operations_get_changes_the_map_once() {
        let cluster = cluster("redis+cluster://a:1,b:1", None);
        knows(&cluster, map(10));
        let (before, given) = (cluster.changes(), Place::Cluster(cluster.clone()));
        let places = [given.of_slot(3), given.of_slot(4), given.clone()];
        assert!(moved(&places[0], 3, "b"));
        assert_eq!(cluster.changes(), before + 1);
        // The place keeps its server, by another slot of that.
        assert!(own(&places[0]).is_some_and(|own| own != 3 && own < 10));
        assert_eq!((own(&places[1]), own(&places[2])), (Some(4), None));
        for place in &places {
            assert!(!moved(place, 3, "b"));
        }
        assert_eq!(cluster.changes(), before + 1);
        // Another place is still asked for by that slot, and is led elsewhere now.
        assert!(!moved(&given.of_slot(3), 3, "b"));
        assert_eq!(cluster.changes(), before + 2);
        assert!(moved(&places[1], 3, "c"));
        // The map has the address of a server whose name is no host.
        assert!(moved(&places[1], 3, "?"));
        assert_eq!(cluster.changes(), before + 3);
    }
}
