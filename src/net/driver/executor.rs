//! Carries out what the core returns, with sockets and threads.
//!
//! The core is under one mutex, which is never held while anything is sent, received, connected, waited for or logged.

mod logging;
mod workers;

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::ConnectionAddr;

use crate::errors::cause::Cause;
use crate::errors::text;
use crate::net::discovery::ask_each::AbandonedThreads;
use crate::net::discovery::place::Place;
use crate::net::driver::leadership::{Connections, LeaderState, Submitter};
use crate::net::driver::observe::Observer;
use crate::net::driver::other_lanes::OtherLanes;
use crate::net::driver::races::{Race, race};
use crate::net::socket::connection::Connection;
use crate::net::socket::trust::Trust;
use crate::protocol::commands::companions;
use crate::protocol::node::known_server::Connected;
use crate::protocol::node::node::Timeouts;
use crate::protocol::node::node_events::Unobserved;
use crate::protocol::node::restart_guard::RestartGuard;
use crate::protocol::quorum::core::{Core, Input};
use crate::protocol::quorum::thread_step::{ThreadRole, ThreadStep};
use crate::settings::node_address::NodeAddress;
use crate::settings::options::Options;
use crate::settings::tls::Tls;
use crate::values::arithmetic::spare;
use crate::values::clock;
use crate::values::endpoint::Endpoint;
use crate::values::node_set::NodeSet;
use crate::values::prefix::Prefix;
use crate::values::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, Ordering},
    lock, wait_until,
};

/// The pause before checking again whether a thread still leads.
pub(super) const SOON: Duration = Duration::from_millis(1);

/// Carries out what the core decides. The leader, the workers and the callers share it.
pub(crate) struct Executor {
    places: Vec<Place>,
    /// The settings that `trust` was made from.
    tls: Tls,
    trust: Trust,
    pub(crate) timeouts: Timeouts,
    pub(crate) prefix: Prefix,
    pub(crate) observer: Observer,
    pub(crate) abandoned_threads: AbandonedThreads,
    /// The restart guard of each node.
    guards: Guards,
    driver_state: Mutex<DriverState>,
    /// Notified when there is news for the leader or for a worker.
    changed: Condvar,
    /// Whether no thread leads. Threads that look for that need not lock the state.
    lead_is_vacant: AtomicBool,
    /// `None`: the servers of the nodes have all keys.
    lanes: Option<Box<dyn OtherLanes>>,
}

struct Guards {
    each: Vec<Option<RestartGuard>>,
    /// Whether the program has asked for the guard.
    is_needed: bool,
}

pub(crate) struct DriverState {
    pub(crate) core: Core<Submitter>,
    /// Connections on their way between the leader and a worker.
    handed_over: Vec<Option<Connection>>,
    /// Connections that were made and that their workers have not adopted yet.
    not_adopted: Vec<Option<Connection>>,
    /// The leader's state. `None` while a thread leads.
    leader_state: Option<Box<LeaderState>>,
    /// Whether the leader waits for news of the workers.
    leader_waits: bool,
    /// Whether the last leader has left, and was answered together with others.
    pub(crate) after_group: bool,
    /// The function of the driver, which is built on the nodes.
    pub(super) start_confirmer: fn(&Arc<Executor>),
    /// Whether a thread is logging events.
    is_logging: bool,
    /// Events that were logged and that the observer has not been notified of.
    unobserved: Unobserved,
    /// Since when nodes give no votes, as the observer was notified. `None`: a thread is notifying it.
    outages: Option<Vec<Option<Instant>>>,
}

impl Executor {
    pub(crate) fn new(nodes: Vec<NodeAddress>, options: &Options, observer: Observer) -> Executor {
        let trust = Trust::new(&options.tls, nodes.iter().map(NodeAddress::info));
        Executor::with(nodes, trust, options, observer)
    }

    fn with(
        nodes: Vec<NodeAddress>,
        trust: Trust,
        options: &Options,
        observer: Observer,
    ) -> Executor {
        let place = |given| Place::new(given, &trust, options.credentials.clone());
        let places = nodes.into_iter().map(place).collect();
        Executor::at(places, trust.clone(), options, observer, None)
    }

    /// Nodes that lead to some of these nodes' servers.
    pub(crate) fn to(
        &self,
        places: Vec<Place>,
        options: &Options,
        lanes: Box<dyn OtherLanes>,
    ) -> Executor {
        let (trust, observer) = (self.trust.clone(), self.observer.clone());
        Executor::at(places, trust, options, observer, Some(lanes))
    }

    fn at(
        places: Vec<Place>,
        trust: Trust,
        options: &Options,
        observer: Observer,
        lanes: Option<Box<dyn OtherLanes>>,
    ) -> Executor {
        let guards = places
            .iter()
            .map(|place| place.guard(options, places.len()));
        let guards: Vec<Option<RestartGuard>> = guards.collect();
        let timeouts = Timeouts {
            node: options.node_timeout,
            connect: options.connect_timeout,
        };
        let (prefix, rng) = (options.prefix.clone(), getrandom::u64().unwrap_or(1));
        let none = || places.iter().map(|_| None).collect();
        let leader = LeaderState::new(places.len());
        let addresses = places.iter().map(Place::shown).zip(guards.iter().copied());
        let core = Core::new(addresses, timeouts, prefix, rng, clock::instant());
        let driver_state = DriverState {
            core,
            handed_over: none(),
            not_adopted: none(),
            leader_state: Some(Box::new(leader)),
            leader_waits: false,
            after_group: false,
            start_confirmer: |_| {},
            is_logging: false,
            unobserved: Unobserved::default(),
            outages: Some(vec![None; places.len()]),
        };
        Executor {
            tls: options.tls.clone(),
            guards: Guards {
                each: guards,
                is_needed: options.max_ttl().is_some(),
            },
            places,
            trust,
            observer,
            abandoned_threads: AbandonedThreads::default(),
            timeouts,
            prefix: options.prefix.clone(),
            driver_state: Mutex::new(driver_state),
            changed: Condvar::new(),
            lead_is_vacant: AtomicBool::new(true),
            lanes,
        }
    }

    /// Copies the nodes, with nothing shared that changes: for other options, and for a forked child.
    pub(crate) fn afresh(&self, options: &Options) -> Executor {
        let nodes: Vec<NodeAddress> = self.places.iter().map(Place::given).collect();
        let trust = match options.tls == self.tls {
            true => self.trust.clone(),
            false => Trust::new(&options.tls, nodes.iter().map(NodeAddress::info)),
        };
        let observer = self.observer.clone();
        Executor::with(nodes, trust, options, observer)
    }

    pub(crate) fn places(&self) -> &[Place] {
        &self.places
    }

    /// Whether too few nodes are left for a majority without the Redis Clusters, which have the keys beside this lock in
    /// another slot than its own.
    pub(crate) fn has_companions_in_another_slot(&self, resource: &[u8]) -> bool {
        let clusters = self.places.iter().filter(|place| place.is_in_cluster());
        clusters.count() > spare(self.places.len())
            && companions::are_in_another_slot(&self.prefix.key(resource))
    }

    pub(crate) fn driver_state(&self) -> MutexGuard<'_, DriverState> {
        lock(&self.driver_state)
    }

    /// Whether no thread leads.
    pub(crate) fn is_lead_vacant(&self) -> bool {
        self.lead_is_vacant.load(Ordering::Relaxed)
    }

    /// Makes the caller the leader, if no thread leads.
    pub(crate) fn take_lead(&self, driver_state: &mut DriverState) -> Option<Box<LeaderState>> {
        let second = race(Race::TwoLeaders).then(|| Box::new(LeaderState::new(self.places.len())));
        let leader = driver_state.leader_state.take().or(second)?;
        self.lead_is_vacant.store(false, Ordering::Relaxed);
        Some(leader)
    }

    /// Ends the caller's leadership: no thread leads then.
    pub(crate) fn leave_lead(&self, driver_state: &mut DriverState, leader: Box<LeaderState>) {
        driver_state.leader_state = Some(leader);
        self.lead_is_vacant.store(true, Ordering::Relaxed);
    }

    pub(crate) fn wait<'a>(
        &'a self,
        driver_state: MutexGuard<'a, DriverState>,
        until: Instant,
    ) -> MutexGuard<'a, DriverState> {
        let driver_state = match race(Race::WaitUnlocked) {
            true => {
                drop(driver_state);
                self.driver_state()
            }
            false => driver_state,
        };
        wait_until(&self.changed, driver_state, until)
    }

    /// Notifies a waiting leader that another thread has submitted an operation.
    pub(crate) fn submitted(&self, driver_state: &DriverState) {
        if driver_state.leader_waits {
            self.changed.notify_all();
        }
    }

    pub(super) fn announce(&self, driver_state: &mut DriverState) {
        if std::mem::take(&mut driver_state.core.news) && !race(Race::NewsUnheard) {
            self.changed.notify_all();
        }
    }

    // ---- what the core returns

    /// Carries out what the core has returned to a thread, unless that is to end or to lead. Also returns the time by
    /// then.
    pub(crate) fn carry_out<'a>(
        self: &'a Arc<Executor>,
        role: ThreadRole,
        connections: &mut Connections,
        mut driver_state: MutexGuard<'a, DriverState>,
        next: ThreadStep,
        now: Instant,
    ) -> (MutexGuard<'a, DriverState>, Instant) {
        let driver_state = match next {
            ThreadStep::StartWorker { node } => {
                self.start_worker(connections, driver_state, node, false)
            }
            ThreadStep::HandOver { node } => {
                self.start_worker(connections, driver_state, node, true)
            }
            ThreadStep::ConfirmMaster { node, found } => {
                self.confirm_master(driver_state, node, *found)
            }
            ThreadStep::Connect { node } => self.connect(connections, driver_state, node),
            ThreadStep::Adopt { node } => {
                let old = connections.replace(node, driver_state.take_not_adopted(node));
                old.into_iter().for_each(Connection::reset);
                driver_state
            }
            ThreadStep::Send { nodes, until } => {
                self.send((role, connections), driver_state, nodes, until, now)
            }
            ThreadStep::Recv { node, until } => {
                return self.recv(connections, driver_state, node, until, now);
            }
            ThreadStep::Wait { until } => {
                let leads = role == ThreadRole::Leader;
                driver_state.leader_waits |= leads;
                driver_state = self.wait(driver_state, until);
                driver_state.leader_waits &= !leads;
                driver_state
            }
            ThreadStep::StartConfirmer
            | ThreadStep::TryToLead
            | ThreadStep::Reconnected
            | ThreadStep::Finished => driver_state,
        };
        (driver_state, clock::instant())
    }

    /// Writes to these nodes, the nearest first: it answers while the others are written to.
    fn send<'a>(
        &'a self,
        (role, connections): (ThreadRole, &mut Connections),
        mut driver_state: MutexGuard<'a, DriverState>,
        nodes: NodeSet,
        until: Instant,
        now: Instant,
    ) -> MutexGuard<'a, DriverState> {
        driver_state.core.output(nodes, &mut connections.out, now);
        for node in nodes.iter() {
            connections.take_over(node, &mut driver_state.handed_over);
        }
        drop(driver_state);
        let mut ended = Vec::new();
        for (node, bytes) in connections.out.parts() {
            let connection = connections.each.get_mut(node).and_then(Option::as_mut);
            let sent = connection.map_or_else(
                || Err(missing_connection()),
                |one| one.send(bytes, until, now),
            );
            // The core does not wait for the leader's writes.
            if sent.is_err() || role != ThreadRole::Leader {
                ended.push((node, sent));
            }
        }
        driver_state = self.driver_state();
        for (node, sent) in ended {
            driver_state
                .core
                .input(node, Input::Sent(sent), clock::instant());
        }
        driver_state
    }

    /// Reads from a node's connection, without the state.
    fn recv<'a>(
        &'a self,
        connections: &mut Connections,
        mut driver_state: MutexGuard<'a, DriverState>,
        node: usize,
        until: Instant,
        now: Instant,
    ) -> (MutexGuard<'a, DriverState>, Instant) {
        connections.take_over(node, &mut driver_state.handed_over);
        let lanes = self.lanes.as_ref();
        let idle =
            lanes.and_then(|lanes| Some((lanes, driver_state.core.known_server(node).idle(now)?)));
        drop(driver_state);
        let received = match connections.each.get_mut(node).and_then(Option::as_mut) {
            Some(connection) => connection.recv(&mut connections.buffer, until, now),
            None => Err(missing_connection()),
        };
        let now = clock::instant();
        let idle = idle.filter(|_| received.as_ref().is_ok_and(|bytes| !bytes.is_empty()));
        let known = idle
            .and_then(|(lanes, run_id)| lanes.known_server(node, Connected::Server(Some(&run_id))));
        let mut driver_state = self.driver_state();
        if let Some(known) = known {
            driver_state.core.learn(node, known);
        }
        driver_state
            .core
            .input(node, Input::Received(received), now);
        if driver_state.core.redirected.is_empty() {
            return (driver_state, now);
        }
        let redirected = std::mem::take(&mut driver_state.core.redirected);
        // Not with the state: the last of the nodes may end here.
        drop(driver_state);
        if let Some(lanes) = &self.lanes {
            lanes.send_on(&self.places, redirected);
        }
        (self.driver_state(), clock::instant())
    }

    /// Makes the workers of nodes that are away connect them at once. Returns how many tries have ended so far.
    pub(crate) fn connect_now(&self) -> Vec<u64> {
        let mut driver_state = self.driver_state();
        let tries = driver_state.core.connect_now();
        self.announce(&mut driver_state);
        tries
    }

    /// Whether a node is connected to another server than this one.
    pub(crate) fn leads_elsewhere(&self, node: usize, server: &Endpoint) -> bool {
        let server = text::address(&ConnectionAddr::Tcp(server.0.clone(), server.1));
        self.driver_state().core.leads_elsewhere(node, &server)
    }
}

impl DriverState {
    /// Whether no thread leads.
    pub(crate) fn has_no_leader(&self) -> bool {
        self.leader_state.is_some()
    }

    /// Takes the connections of all nodes that are connected.
    pub(super) fn disconnect(&mut self, leader: &mut LeaderState) -> Vec<Connection> {
        let connections = &mut leader.connections;
        for node in self.core.connected_nodes().iter() {
            connections.take_over(node, &mut self.handed_over);
        }
        let all = connections.each.iter_mut();
        all.filter_map(Option::take).collect()
    }

    fn take_not_adopted(&mut self, node: usize) -> Option<Connection> {
        self.not_adopted.get_mut(node).and_then(Option::take)
    }
}

/// The cause if a connection is missing, since the nodes were closed.
fn missing_connection() -> Cause {
    Cause::Closed("by this side".into())
}
