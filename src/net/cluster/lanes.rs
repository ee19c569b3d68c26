//! Separate connections to Redis Clusters for each group of servers that owns a lock's keys.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::errors::cause::Cause;
use crate::errors::node_errors::{NodeError, NodeErrors};
use crate::net::discovery::cluster_servers::ClusterServers;
use crate::net::discovery::place::Place;
use crate::net::driver::driver::Driver;
use crate::net::driver::executor::Executor;
use crate::net::driver::observe::Observer;
use crate::net::driver::other_lanes::OtherLanes;
use crate::net::driver::renewal_threads::Renewals;
use crate::net::driver::waiting_threads::WaitingThreads;
use crate::protocol::cluster::lane_choice::{self, CandidateLane};
use crate::protocol::cluster::map_refreshes::Refreshes;
use crate::protocol::cluster::redirected_releases::RedirectedReleases;
use crate::protocol::cluster::refilled_locks::RefilledLocks;
use crate::protocol::commands::slots::{self, SlotMap};
use crate::protocol::node::debt::{Debt, Redirected};
use crate::protocol::node::known_server::{Connected, KnownServer};
use crate::settings::options::Options;
use crate::values::arithmetic::spare;
use crate::values::clock;
use crate::values::endpoint::Endpoint;
use crate::values::sync::{Condvar, Mutex, PoisonError, lock, thread};

/// The number of threads that connect or close lanes at the same time.
pub(super) const MAX_AT_ONCE: usize = 32;

/// The connections to nodes, each of which is one server: of a Redis Cluster, to the masters of one shard of each; with
/// the kept locks and the waiters that use them. The connections are closed when the last call or lock that uses them ends.
pub(crate) struct Lane {
    pub(crate) driver: Arc<Driver>,
    pub(crate) renewals: Renewals,
    pub(crate) waiting_threads: Arc<WaitingThreads>,
    /// All lanes. Without any, each node is one server anyway.
    lanes: Weak<Lanes>,
}

impl Lane {
    fn new(executor: Executor, lanes: Weak<Lanes>) -> Lane {
        Lane {
            waiting_threads: Arc::new(WaitingThreads::new(&executor)),
            driver: Arc::new(Driver::new(executor)),
            renewals: Renewals::default(),
            lanes,
        }
    }

    /// The only connections of nodes that have all keys.
    pub(crate) fn only(executor: Executor) -> Lane {
        Lane::new(executor, Weak::new())
    }

    /// Whether this is the process that made the connections, not a forked child. Check this before anything else is
    /// touched.
    pub(crate) fn is_ours(&self) -> bool {
        self.driver.is_ours()
    }

    pub(crate) fn observer(&self) -> &Observer {
        &self.driver.executor().observer
    }

    pub(super) fn places(&self) -> &[Place] {
        self.driver.executor().places()
    }
}

impl PartialEq for Lane {
    fn eq(&self, other: &Lane) -> bool {
        std::ptr::eq(self, other)
    }
}

impl CandidateLane for Arc<Lane> {
    fn leads_to(&self, slot: u16) -> bool {
        self.places().iter().all(|place| place.leads_to(slot))
    }

    fn has(&self, slot: u16) -> bool {
        self.places().iter().all(|place| place.has(slot))
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if !self.is_ours() {
            return;
        }
        match self.lanes.upgrade() {
            Some(lanes) => lanes.end(self.driver.clone()),
            None => self.driver.close(),
        }
    }
}

/// The lanes of a call, and of the lock that it acquired.
#[derive(Clone)]
pub(crate) struct LockLanes {
    /// The lane with which the call began.
    pub(crate) began: Arc<Lane>,
    /// The lane over which the try was sent that has acquired the lock. (On one node it may have followed its key from there.)
    pub(crate) acquired: Arc<Lane>,
}

impl LockLanes {
    pub(crate) fn new(lane: Arc<Lane>) -> LockLanes {
        LockLanes {
            began: lane.clone(),
            acquired: lane,
        }
    }
}

pub(crate) struct Lanes {
    /// The nodes as they were given. Never connected.
    base: Arc<Lane>,
    options: Options,
    known_lanes: Mutex<KnownLanes>,
    own: Weak<Lanes>,
    /// When the maps are asked for again.
    pub(super) refreshes: Mutex<Refreshes>,
    /// The lanes over which locks were set again.
    pub(super) refilled: Mutex<RefilledLocks<Arc<Lane>>>,
    pub(super) leftovers: Mutex<LaneLeftovers>,
    /// Notified when more releases are left, and when nothing is.
    pub(super) leftovers_changed: Condvar,
}

#[derive(Default)]
struct KnownLanes {
    /// The lanes, each of which leads to the masters of one shard of each Cluster.
    lanes: Vec<Arc<Lane>>,
    /// The lanes of the slots that were asked for since the maps last changed.
    by_slot: BTreeMap<u16, Arc<Lane>>,
    /// How often the maps had changed then.
    changes: u64,
    /// The drivers of all lanes that something uses, including lanes of servers that have lost all their slots. (A driver
    /// outlives its lane until its records are kept.)
    used: Vec<Weak<Driver>>,
    /// The records of servers that ended lanes have left, for each node (rule R66).
    ended: Vec<Vec<KnownServer>>,
}

/// Releases and lanes that calls and locks have left behind.
#[derive(Default)]
pub(super) struct LaneLeftovers {
    /// The releases that follow their keys without a caller.
    pub(super) releases: RedirectedReleases,
    /// The lanes that nothing uses any longer and that no thread closes yet.
    pub(super) lanes: Vec<Arc<Driver>>,
    /// How many threads close lanes, which may add releases.
    pub(super) closing: usize,
}

impl LaneLeftovers {
    /// Whether threads send releases on, or close lanes.
    pub(super) fn is_any(&self) -> bool {
        self.closing > 0 || self.releases.is_running()
    }
}

impl Lanes {
    /// Returns `None` if each node is one server.
    pub(crate) fn new(base: &Arc<Lane>, options: &Options) -> Option<Arc<Lanes>> {
        let mut places = base.places().iter();
        places.any(|place| place.cluster().is_some()).then(|| {
            Arc::new_cyclic(|own| Lanes {
                base: base.clone(),
                options: options.clone(),
                known_lanes: Mutex::default(),
                own: own.clone(),
                refreshes: Mutex::default(),
                refilled: Mutex::default(),
                leftovers: Mutex::default(),
                leftovers_changed: Condvar::new(),
            })
        })
    }

    pub(super) fn clusters(&self) -> impl Iterator<Item = &Arc<ClusterServers>> {
        self.base.places().iter().filter_map(Place::cluster)
    }

    /// How often the maps have changed.
    pub(super) fn changes(&self) -> u64 {
        self.clusters().map(|cluster| cluster.changes()).sum()
    }

    /// The lane to the servers that own this slot.
    pub(crate) fn lane(&self, slot: u16) -> Arc<Lane> {
        // A fast path: each call asks for its lane, from many threads.
        let changes = self.changes();
        let known_lanes = lock(&self.known_lanes);
        let lane = known_lanes.by_slot.get(&slot);
        if let Some(lane) = lane.filter(|_| known_lanes.changes == changes) {
            return lane.clone();
        }
        drop(known_lanes);
        let until = clock::instant() + self.base.driver.executor().timeouts.connect;
        for cluster in self.clusters() {
            cluster.look_up(slot, until.saturating_duration_since(clock::instant()));
        }
        if lock(&self.known_lanes).changes != self.changes() {
            self.keep_needed();
        }
        let mut known_lanes = lock(&self.known_lanes);
        let lane =
            lane_choice::best(known_lanes.lanes.iter().cloned(), slot).unwrap_or_else(|| {
                let places = self.base.places().iter();
                let places = places.map(|place| place.of_slot(slot)).collect();
                self.add(&mut known_lanes, places)
            });
        known_lanes.by_slot.insert(slot, lane.clone());
        lane
    }

    fn add(&self, known_lanes: &mut KnownLanes, places: Vec<Place>) -> Arc<Lane> {
        let (nodes, own) = (self.base.driver.executor(), self.own.clone());
        let nodes = nodes.to(places, &self.options, Box::new(own));
        let lane = Arc::new(Lane::new(nodes, self.own.clone()));
        known_lanes.lanes.push(lane.clone());
        known_lanes.used.retain(|used| used.strong_count() > 0);
        known_lanes.used.push(Arc::downgrade(&lane.driver));
        lane
    }

    /// One slot of each group of servers that owns slots, from the maps learnt so far.
    pub(crate) fn shards(&self) -> Vec<u16> {
        let maps = self.clusters().filter_map(|cluster| cluster.map());
        slots::combinations(&maps.collect::<Vec<Arc<SlotMap>>>())
    }

    /// Ends the lanes that no shard needs by the maps learnt so far.
    pub(super) fn keep_needed(&self) {
        // First: what a map changes meanwhile is looked at again.
        let changes = self.changes();
        self.keep(&self.shards(), changes);
    }

    /// Ends the lanes that are needed for none of these slots. One that is in use is closed when the last lock or call
    /// that uses it ends. `changes`: how often the maps had changed before.
    pub(super) fn keep(&self, slots: &[u16], changes: u64) {
        let mut known_lanes = lock(&self.known_lanes);
        known_lanes.changes = changes;
        known_lanes.by_slot.clear();
        let unused = lane_choice::unused(known_lanes.lanes.iter().cloned(), slots);
        known_lanes.lanes.retain(|lane| !unused.contains(lane));
        drop(known_lanes);
        drop(unused);
        let over = lock(&self.refilled).take_over(clock::instant());
        drop(over);
    }

    /// Keeps what a lane that ends has learnt of servers.
    pub(super) fn remember(&self, lane: &Driver) {
        let (nodes, driver_state) = (
            lane.executor().places().len(),
            lane.executor().driver_state(),
        );
        let record = |node| driver_state.core.known_server(node).clone();
        let records: Vec<KnownServer> = (0..nodes).map(record).collect();
        drop(driver_state);
        let mut known_lanes = lock(&self.known_lanes);
        known_lanes.ended.resize_with(nodes, Vec::new);
        for (ended, record) in known_lanes.ended.iter_mut().zip(records) {
            record.outlive_lane(ended);
        }
    }

    /// Whether this is the process that made the lanes, not a forked child.
    pub(super) fn is_ours(&self) -> bool {
        self.base.is_ours()
    }

    pub(crate) fn slot(&self, resource: &[u8]) -> u16 {
        slots::slot(&self.options.prefix.key(resource))
    }

    pub(crate) fn node_timeout(&self) -> Duration {
        self.options.node_timeout
    }

    pub(crate) fn this(&self) -> Option<Arc<Lanes>> {
        self.own.upgrade()
    }

    /// A lane that nothing else refers to.
    #[cfg(test)]
    pub(super) fn add_unused(&self) -> Arc<Lane> {
        let places = self.base.places().iter();
        let places = places.map(|one| one.of_slot(0)).collect();
        self.add(&mut KnownLanes::default(), places)
    }

    /// The lane to the servers that own this resource.
    pub(crate) fn lane_of_resource(&self, resource: &[u8]) -> Arc<Lane> {
        self.lane(self.slot(resource))
    }

    /// Connects to all servers of all shards. Returns the nodes that do not answer, or why too few do.
    pub(crate) fn connect(&self) -> Result<Option<NodeErrors>, NodeErrors> {
        let connected = self.connect_all(self.slots())?;
        let errors = self.unserved();
        if errors.is_empty() {
            return Ok(connected);
        }
        let unfit = errors.len() > spare(self.base.places().len());
        let errors = NodeErrors::new(errors, None);
        if unfit { Err(errors) } else { Ok(Some(errors)) }
    }

    /// The Clusters that have no server for some slots.
    fn unserved(&self) -> Vec<NodeError> {
        let places = self.base.places().iter().enumerate();
        let unserved = places.filter_map(|(node, place)| {
            let missing = place.cluster()?.map()?.missing();
            let text = slots::unserved(missing);
            (missing > 0).then(|| NodeError {
                node,
                address: place.shown(),
                cause: Arc::new(Cause::NoMaster(text, false)),
            })
        });
        unserved.collect()
    }

    /// One slot of each shard.
    fn slots(&self) -> Vec<u16> {
        let mut slots = Vec::new();
        for cluster in self.clusters() {
            cluster.look_up(0, self.base.driver.executor().timeouts.connect);
            slots.extend(cluster.map().iter().flat_map(|map| map.shards()));
        }
        // If no server answers, connecting for slot 0 reports that.
        if slots.is_empty() {
            slots.push(0);
        }
        slots
    }

    fn connect_all(&self, slots: Vec<u16>) -> Result<Option<NodeErrors>, NodeErrors> {
        let mut lanes: Vec<Arc<Lane>> = Vec::new();
        for slot in slots {
            let lane = self.lane(slot);
            if !lanes.iter().any(|other| Arc::ptr_eq(other, &lane)) {
                lanes.push(lane);
            }
        }
        let results = Mutex::new(Vec::new());
        at_once("redlock-connect", lanes, |lane| {
            let result = lane.driver.connect();
            // Without this lane the others do not help.
            let goes_on = result.is_ok();
            lock(&results).push(result);
            goes_on
        });
        let results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
        let connected = results.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(connected.into_iter().flatten().next())
    }
}

impl OtherLanes for Weak<Lanes> {
    fn send_on(&self, from: &[Place], redirected: Vec<Redirected>) {
        if let Some(lanes) = self.upgrade() {
            lanes.send_on(from, redirected);
        }
    }

    fn known_server(&self, node: usize, connected: Connected<'_>) -> Option<KnownServer> {
        let lanes = self.upgrade()?;
        let of_it = |record: &KnownServer| record.precedes(connected).then(|| record.clone());
        let known_lanes = lock(&lanes.known_lanes);
        let used: Vec<Arc<Driver>> = known_lanes.used.iter().filter_map(Weak::upgrade).collect();
        let ended = known_lanes.ended.get(node).into_iter().flatten();
        let mut records: Vec<KnownServer> = ended.filter_map(of_it).collect();
        drop(known_lanes);
        let used = used.iter();
        records.extend(
            used.filter_map(|lane| of_it(lane.executor().driver_state().core.known_server(node))),
        );
        KnownServer::latest(&records)
    }
}

impl lane_choice::LaneSource for &Lanes {
    type Lane = Arc<Lane>;

    fn lane(&mut self, slot: u16) -> Arc<Lane> {
        Lanes::lane(self, slot)
    }

    fn target(&mut self, (node, server): (usize, &Endpoint), slot: u16) -> Option<Arc<Lane>> {
        let places = self.base.places();
        let target = places.get(node)?.target(server)?;
        let mut known_lanes = lock(&self.known_lanes);
        let leads_there = |lane: &&Arc<Lane>| {
            let place = lane.places().get(node);
            place.is_some_and(|place| place.is_target(server))
        };
        if let Some(lane) = known_lanes.lanes.iter().find(leads_there) {
            return Some(lane.clone());
        }
        let mut places: Vec<Place> = places.iter().map(|place| place.of_slot(slot)).collect();
        *places.get_mut(node)? = target;
        Some(self.add(&mut known_lanes, places))
    }

    fn map(&self, node: usize) -> Option<Arc<SlotMap>> {
        self.base.places().get(node)?.cluster()?.map()
    }

    fn name(&self, node: usize, server: &Endpoint) -> Endpoint {
        let cluster = self.base.places().get(node).and_then(Place::cluster);
        cluster.map_or_else(|| server.clone(), |cluster| cluster.name_of(server))
    }

    fn leads_elsewhere(&self, lane: &Arc<Lane>, node: usize, server: &Endpoint) -> bool {
        lane.driver.executor().leads_elsewhere(node, server)
    }

    fn lead(&mut self, lane: &Arc<Lane>, node: usize, slot: u16) {
        if let Some(place) = lane.places().get(node) {
            place.lead_to(slot);
        }
    }

    fn retire(&mut self, lane: &Arc<Lane>) {
        let mut known_lanes = lock(&self.known_lanes);
        known_lanes.by_slot.retain(|_, other| other != lane);
        known_lanes.lanes.retain(|other| other != lane);
    }

    fn queue_debts(&mut self, debts: Vec<(usize, Debt)>) {
        self.send_debts(debts);
    }
}

/// Calls `act` with all of them, side by side, [some](MAX_AT_ONCE) at a time, until one call returns false.
pub(super) fn at_once<T: Send>(name: &str, all: Vec<T>, act: impl Fn(T) -> bool + Sync) {
    let (count, all) = (all.len(), Mutex::new(all.into_iter()));
    let work = || {
        loop {
            let Some(one) = lock(&all).next() else {
                return;
            };
            if !act(one) {
                let rest: Vec<T> = lock(&all).by_ref().collect();
                drop(rest);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..count.min(MAX_AT_ONCE) {
            let thread = thread::Builder::new().name(name.into());
            // If no threads start, this one does it all.
            if thread.spawn_scoped(scope, work).is_err() {
                break;
            }
        }
        work();
    });
}
