//! Where nodes are Redis Clusters: connections of their own for each group of servers that has a lock's keys.

use std::sync::{Arc, Mutex, Weak};

use crate::clock;
use crate::error::NodeErrors;
use crate::lock::Shared;
use crate::net::cluster::Cluster;
use crate::net::directory::Place;
use crate::net::driver::Driver;
use crate::net::route::Route;
use crate::options::Options;
use crate::protocol::slots::{Endpoint, SLOTS, slot};
use crate::sync::lock;

pub(crate) struct Lanes {
    /// With the nodes as they were given. It connects to none of them.
    base: Arc<Shared>,
    options: Options,
    lanes: Mutex<Vec<Lane>>,
    own: Weak<Lanes>,
}

/// What leads to the masters of one shard of each Cluster.
struct Lane {
    /// One of their slots. Where that is, the lane is.
    slot: u16,
    shared: Arc<Shared>,
}

impl Lanes {
    /// `None`: each node is one server.
    pub(crate) fn new(base: &Arc<Shared>, options: &Options) -> Option<Arc<Lanes>> {
        let mut places = base.driver.nodes().places().iter();
        places.any(|place| place.cluster().is_some()).then(|| {
            Arc::new_cyclic(|own| Lanes {
                base: base.clone(),
                options: options.clone(),
                lanes: Mutex::default(),
                own: own.clone(),
            })
        })
    }

    fn clusters(&self) -> impl Iterator<Item = &Arc<Cluster>> {
        let places = self.base.driver.nodes().places();
        places.iter().filter_map(Place::cluster)
    }

    /// What leads to the servers that have this slot.
    pub(crate) fn lane(&self, slot: u16) -> Arc<Shared> {
        let until = clock::instant() + self.base.driver.nodes().connect_timeout;
        for cluster in self.clusters() {
            // Otherwise each slot would have connections of its own.
            cluster.look_up(slot, until.saturating_duration_since(clock::instant()));
        }
        let together =
            |lane: &&Lane| (self.clusters()).all(|cluster| cluster.has_together(lane.slot, slot));
        let mut lanes = lock(&self.lanes);
        if let Some(lane) = lanes.iter().find(together) {
            return lane.shared.clone();
        }
        let nodes = self.base.driver.nodes();
        let route: Weak<dyn Route> = self.own.clone();
        let shared = Arc::new(Shared::new(nodes.of_slot(slot, &self.options, route)));
        let lane = Lane {
            slot,
            shared: shared.clone(),
        };
        lanes.push(lane);
        shared
    }

    /// What leads to the servers that have this resource.
    pub(crate) fn of(&self, resource: &[u8]) -> Arc<Shared> {
        self.lane(self.slot(resource))
    }

    /// Connects to all servers of all shards. The nodes that do not answer, or why too few do.
    pub(crate) fn connect(&self) -> Result<Option<NodeErrors>, NodeErrors> {
        let mut slots: Vec<u16> = Vec::new();
        for cluster in self.clusters() {
            let timeout = self.base.driver.nodes().connect_timeout;
            cluster.look_up(0, timeout);
            slots.extend(cluster.map().iter().flat_map(|map| map.shards()));
        }
        // One that is not known fails.
        if slots.is_empty() {
            slots.push(0);
        }
        slots.retain(|slot| *slot < SLOTS);
        let mut lanes: Vec<Arc<Shared>> = Vec::new();
        for slot in slots {
            let lane = self.lane(slot);
            if !lanes.iter().any(|other| Arc::ptr_eq(other, &lane)) {
                lanes.push(lane);
            }
        }
        let mut missing = None;
        std::thread::scope(|scope| {
            let connect = |lane: Arc<Shared>| scope.spawn(move || lane.driver.connect());
            let threads: Vec<_> = lanes.into_iter().map(connect).collect();
            for thread in threads {
                // A panic is a bug: as if it had nothing to say.
                missing = missing.take().or(thread.join().unwrap_or(Ok(None))?);
            }
            Ok(missing)
        })
    }
}

impl Route for Lanes {
    fn slot(&self, resource: &[u8]) -> u16 {
        slot(&self.options.prefix.key(resource))
    }

    fn driver(&self, slot: u16) -> Arc<Driver> {
        self.lane(slot).driver.clone()
    }

    fn driver_to(&self, node: usize, server: &Endpoint) -> Option<Arc<Driver>> {
        let place = self.base.driver.nodes().places().get(node)?;
        let map = place.cluster()?.map()?;
        let mut shards = map.shards();
        let slot = shards.find(|slot| map.master(*slot) == Some(server))?;
        Some(self.driver(slot))
    }
}
