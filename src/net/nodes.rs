//! The leader's loop and the workers: they do what the core says, with sockets and threads.
//!
//! The core stands under one mutex, which is never held while anything is sent, received, connected,
//! waited for or logged.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use redis::ConnectionInfo;

use crate::clock;
use crate::error::Cause;
use crate::net::connection::{Connection, Purpose};
use crate::net::driver::Submitter;
use crate::net::peer::Peer;
use crate::net::trust::Trust;
use crate::observe::{self, Observer};
use crate::ops::abandoned::AbandonedThreads;
use crate::options::Options;
use crate::protocol::core::{Core, Next};
use crate::protocol::event::Event;
use crate::protocol::guard::Guard;
use crate::protocol::node::{Link, NodeTask, Timeouts};
use crate::protocol::notice::Notice;
use crate::protocol::operation::Answer;
use crate::protocol::queue::NotALock;
use crate::protocol::quorum::NodeSet;
use crate::shown::Shown;
use crate::sync::{lock, wait_until};
use crate::text::{address, human};
use crate::tls::Tls;

/// The nodes, as the leader and the workers share them.
pub(crate) struct Nodes {
    peers: Vec<Peer>,
    /// What `trust` was made from.
    tls: Tls,
    trust: Trust,
    pub(crate) node_timeout: Duration,
    pub(crate) connect_timeout: Duration,
    pub(crate) observer: Observer,
    pub(crate) abandoned_threads: AbandonedThreads,
    purpose: Purpose,
    state: Mutex<State>,
    /// There is news for the leader or for a worker.
    changed: Condvar,
}

pub(crate) struct State {
    pub(crate) core: Core<Submitter>,
    /// Connections on their way between the leader and a worker.
    parked: Vec<Option<Connection>>,
    /// Connections that were made and are not their nodes' yet.
    fresh: Vec<Option<Connection>>,
    /// What the leader has; `None`: somebody leads.
    pub(crate) idle: Option<Box<Leader>>,
    /// The leader waits for news of the workers.
    waits: bool,
    /// The last leader was answered together with others.
    pub(crate) crowded: bool,
    /// Somebody is logging what has happened.
    logs: bool,
    /// What has been logged and the observer has not been told.
    untold: VecDeque<(usize, Event, Instant)>,
    /// Since when nodes give no votes, as far as the observer knows. `None`: somebody is telling it more.
    outages: Option<Vec<Option<Instant>>>,
}

/// What the leader has.
#[derive(Default)]
pub(crate) struct Leader {
    /// Those of the nodes that are here.
    connections: Vec<Option<Connection>>,
    out: Vec<u8>,
    /// Which node gets `out` up to where.
    parts: Vec<(usize, usize)>,
    buffer: Vec<u8>,
    /// To be delivered.
    pub(crate) answers: Vec<(Submitter, Answer)>,
}

impl Nodes {
    pub(crate) fn new(infos: Vec<ConnectionInfo>, options: &Options, observer: Observer) -> Nodes {
        let trust = Trust::new(&options.tls, &infos);
        Nodes::with(infos, trust, options, observer)
    }

    fn with(
        infos: Vec<ConnectionInfo>,
        trust: Trust,
        options: &Options,
        observer: Observer,
    ) -> Nodes {
        let addresses = infos.iter().map(|info| address(info.addr()).into());
        let timeouts = Timeouts {
            node: options.node_timeout,
            connect: options.connect_timeout,
        };
        let guard = options.restart_guard.map(Guard::new);
        let rng = getrandom::u64().unwrap_or(1);
        let none = || infos.iter().map(|_| None).collect();
        let leader = Leader {
            connections: none(),
            ..Leader::default()
        };
        let core = Core::new(addresses, timeouts, guard, rng, clock::instant());
        let state = State {
            core,
            parked: none(),
            fresh: none(),
            idle: Some(Box::new(leader)),
            waits: false,
            crowded: false,
            logs: false,
            untold: VecDeque::new(),
            outages: Some(vec![None; infos.len()]),
        };
        let peer = |info| Peer::new(info, &trust, options.credentials.clone());
        Nodes {
            tls: options.tls.clone(),
            peers: infos.into_iter().map(peer).collect(),
            trust,
            observer,
            abandoned_threads: AbandonedThreads::default(),
            node_timeout: options.node_timeout,
            connect_timeout: options.connect_timeout,
            purpose: match guard {
                Some(_) => Purpose::GuardedLocks,
                None => Purpose::Locks,
            },
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// The same nodes, with nothing shared that changes: for other options, and for a forked child.
    pub(crate) fn afresh(&self, options: &Options) -> Nodes {
        let infos = || self.peers.iter().map(|peer| &**peer);
        let trust = match options.tls == self.tls {
            true => self.trust.clone(),
            false => Trust::new(&options.tls, infos()),
        };
        let observer = self.observer.clone();
        Nodes::with(infos().cloned().collect(), trust, options, observer)
    }

    pub(crate) fn peers(&self) -> &[Peer] {
        &self.peers
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(crate) fn wait<'a>(
        &self,
        state: MutexGuard<'a, State>,
        until: Instant,
    ) -> MutexGuard<'a, State> {
        wait_until(&self.changed, state, until)
    }

    /// Somebody else has submitted something: the leader does not let it wait.
    pub(crate) fn submitted(&self, state: &State) {
        if state.waits {
            self.changed.notify_all();
        }
    }

    fn announce(&self, state: &mut State) {
        if std::mem::take(&mut state.core.news) {
            self.changed.notify_all();
        }
    }

    /// Says what has happened. One thread at a time does, and nobody waits for it: somebody's logger may
    /// take its time, or use these same nodes.
    pub(crate) fn log(&self) {
        let mut state = self.state();
        if !state.logs {
            state.logs = true;
            while !state.core.events.is_empty() {
                let events = state.core.events.take();
                drop(state);
                for (node, event, _) in &events {
                    self.say(*node, event);
                }
                state = self.state();
                if !self.observer.is_none() {
                    state.untold.extend(events);
                }
            }
            state.logs = false;
        }
        // An observer that does not return keeps nothing from being logged.
        let Some(mut outages) = state.outages.take() else {
            return;
        };
        while let Some((node, event, at)) = state.untold.pop_front() {
            drop(state);
            if let Some(since) = outages.get_mut(node) {
                self.tell(node, &event, since, at);
            }
            state = self.state();
        }
        state.outages = Some(outages);
    }

    /// The same for a thread that has something to do: it may be about to return a lock, and an observer may
    /// want the same one.
    pub(crate) fn log_behind(self: &Arc<Nodes>) {
        if self.observer.is_none() {
            self.log();
        } else {
            self.log_elsewhere(&self.state());
        }
    }

    /// Tells the observer that a node gives no votes, and that it does again.
    fn tell(&self, node: usize, event: &Event, since: &mut Option<Instant>, at: Instant) {
        let Some(info) = self.peers.get(node).filter(|_| !self.observer.is_none()) else {
            return;
        };
        let address = address(info.addr());
        let quarantine_left;
        let cause = match event {
            Event::Notice(..) => return,
            Event::Back(..) | Event::VotesAgain(_) => None,
            Event::Away(cause) | Event::GivesNoVotes(cause) => Some(&**cause),
            Event::Quarantined(left) => {
                quarantine_left = Cause::Quarantined(*left);
                Some(&quarantine_left)
            }
        };
        match (cause, *since) {
            (Some(cause), None) => {
                *since = Some(at);
                self.observer.notify(|| observe::Event::NodeAway {
                    node,
                    address: &address,
                    cause,
                });
            }
            (None, Some(began)) => {
                *since = None;
                self.observer.notify(|| observe::Event::NodeBack {
                    node,
                    address: &address,
                    away: at.saturating_duration_since(began),
                });
            }
            // It is away for another reason now.
            _ => {}
        }
    }

    fn say(&self, node: usize, event: &Event) {
        let node = self.name(node);
        match event {
            Event::Away(cause) => say!(warn, "{node} is away: {cause}"),
            Event::Back(forgotten, replaced) if *replaced && self.purpose == Purpose::Locks => {
                say!(
                    warn,
                    "{node} is back: restarted or replaced, it may have forgotten locks (see \
                 Options::restart_guard){}",
                    but(*forgotten)
                )
            }
            Event::Back(forgotten, _) => say!(warn, "{node} is back{}", but(*forgotten)),
            Event::Quarantined(left) => say!(
                warn,
                "{node} gives no votes for {}: it was restarted or replaced and may have forgotten \
                 locks",
                human(*left)
            ),
            Event::GivesNoVotes(cause) => say!(warn, "{node} gives no votes: {cause}"),
            Event::VotesAgain(forgotten) => {
                say!(warn, "{node} gives votes again{}", but(*forgotten));
            }
            Event::Notice(resource, notice) => say_notice(&node, &Shown(resource), notice),
        }
    }

    /// As log lines name it.
    pub(crate) fn name(&self, node: usize) -> String {
        match self.peers.get(node) {
            Some(info) => format!("node {node} ({})", address(info.addr())),
            None => format!("node {node}"),
        }
    }

    // ---- the leader

    /// Does what the core says. Returns when there is nothing to do, or, once `done` has said so (of the
    /// answers, if there are any), as soon as it would have to wait, or to send for others.
    pub(crate) fn lead<'a>(
        self: &'a Arc<Nodes>,
        leader: &mut Leader,
        mut state: MutexGuard<'a, State>,
        mut now: Instant,
        mut done: impl FnMut(&mut Vec<(Submitter, Answer)>) -> bool,
    ) -> MutexGuard<'a, State> {
        let mut ended = done(&mut leader.answers);
        loop {
            let next = state.core.next(now);
            if !state.core.answers.is_empty() {
                leader.answers.append(&mut state.core.answers);
                ended |= done(&mut leader.answers);
            }
            self.announce(&mut state);
            let can_end = match next {
                Next::Finished => return state,
                Next::StartWorker { .. } => false,
                Next::Send { .. } => state.core.longest_waiting().is_some(),
                Next::Recv { until, .. } | Next::Wait { until } => until > now,
            };
            if ended && can_end {
                return state;
            }
            if !leader.answers.is_empty() {
                drop(state);
                leader.deliver();
                state = self.state();
                if let Next::Wait { .. } = next {
                    // Something may have been submitted meanwhile.
                    now = clock::instant();
                    continue;
                }
            }
            state = match next {
                Next::StartWorker { node } => self.hand_over(leader, state, node),
                Next::Wait { until } => {
                    state.waits = true;
                    state = self.wait(state, until);
                    state.waits = false;
                    state
                }
                Next::Send { nodes, until } => self.send(leader, state, nodes, until, now),
                Next::Recv { node, until } => self.recv(leader, state, node, until, now),
                Next::Finished => state,
            };
            now = clock::instant();
        }
    }

    /// Writes to these nodes, the nearest first: it answers while the others are written to.
    fn send<'a>(
        &'a self,
        leader: &mut Leader,
        mut state: MutexGuard<'a, State>,
        mut nodes: NodeSet,
        until: Instant,
        now: Instant,
    ) -> MutexGuard<'a, State> {
        leader.out.clear();
        leader.parts.clear();
        while !nodes.is_empty() {
            let node = state.core.nearest(nodes);
            nodes.remove(node);
            state.core.output(node, &mut leader.out, now);
            leader.parts.push((node, leader.out.len()));
            leader.connection(&mut state, node);
        }
        drop(state);
        let mut start = 0;
        let mut failed = None;
        for (node, end) in leader.parts.drain(..) {
            let bytes = leader.out.get(start..end).unwrap_or_default();
            let connection = leader.connections.get_mut(node).and_then(Option::as_mut);
            let sent = connection.map_or_else(|| Err(gone()), |one| one.send(bytes, until, now));
            if let Err(cause) = sent {
                failed.get_or_insert_with(Vec::new).push((node, cause));
            }
            start = end;
        }
        state = self.state();
        for (node, cause) in failed.into_iter().flatten() {
            state.core.sever(node, cause, now);
        }
        state
    }

    fn recv<'a>(
        &'a self,
        leader: &mut Leader,
        mut state: MutexGuard<'a, State>,
        node: usize,
        until: Instant,
        now: Instant,
    ) -> MutexGuard<'a, State> {
        leader.connection(&mut state, node);
        drop(state);
        let received = match leader.connections.get_mut(node) {
            Some(Some(connection)) => connection.recv(&mut leader.buffer, until, now),
            _ => Err(gone()),
        };
        let now = clock::instant();
        state = self.state();
        state.core.received(node, received, now);
        state
    }

    /// Starts a node's worker, which gets the connection if it is still of use.
    fn hand_over<'a>(
        self: &'a Arc<Nodes>,
        leader: &mut Leader,
        mut state: MutexGuard<'a, State>,
        node: usize,
    ) -> MutexGuard<'a, State> {
        let connection = leader.connections.get_mut(node).and_then(Option::take);
        if state.core.link(node) != Link::Unresponsive {
            connection.into_iter().for_each(Connection::reset);
        } else if let Some(parked) = state.parked.get_mut(node) {
            *parked = connection.or(parked.take());
        }
        let nodes = self.clone();
        let thread = std::thread::Builder::new().name(format!("redlock-node-{node}"));
        let started = thread.spawn(move || nodes.work(node)).map(drop);
        let started = started.map_err(|error| Cause::NoThread(error.to_string()));
        state.core.worker_started(node, started, clock::instant());
        state
    }

    /// After a panic in mid-lead, which only a bug can be.
    pub(crate) fn recover(&self, leader: &mut Leader, state: &mut State) {
        let held = leader.connections.iter_mut().enumerate();
        let held = held.filter_map(|(node, connection)| connection.take().map(|_| node));
        state.core.recover(held.collect(), clock::instant());
        leader.answers.append(&mut state.core.answers);
    }

    /// Makes the workers of nodes that are away connect them at once. How many tries have ended so far.
    pub(crate) fn connect_now(&self) -> Vec<u64> {
        let mut state = self.state();
        let tries = state.core.connect_now();
        self.announce(&mut state);
        tries
    }

    /// Nobody needs the nodes any more.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.core.close(clock::instant());
        self.announce(&mut state);
    }

    // ---- the workers

    /// The life of a worker: until its node is here, or nobody needs it any more.
    fn work(self: &Arc<Nodes>, node: usize) {
        let (mut out, mut buffer) = (Vec::new(), Vec::new());
        let mut attendant = Worker {
            nodes: self,
            node,
            leaves: false,
        };
        let mut state = self.state();
        let mut connection = state.parked.get_mut(node).and_then(Option::take);
        loop {
            let now = clock::instant();
            let task = state.core.task(node, now);
            self.announce(&mut state);
            match task {
                NodeTask::Connect => {
                    self.log_elsewhere(&state);
                    drop(state);
                    self.connect(node, connection.is_some());
                    state = self.state();
                }
                NodeTask::Adopt => {
                    let fresh = state.fresh.get_mut(node).and_then(Option::take);
                    let old = std::mem::replace(&mut connection, fresh);
                    old.into_iter().for_each(Connection::reset);
                }
                NodeTask::Send { until } => {
                    out.clear();
                    state.core.output(node, &mut out, now);
                    drop(state);
                    let connection = connection.as_mut().ok_or_else(gone);
                    let sent = connection.and_then(|one| one.send(&out, until, now));
                    state = self.state();
                    state.core.written(node, sent, clock::instant());
                }
                NodeTask::Recv { until } => {
                    drop(state);
                    let connection = connection.as_mut().ok_or_else(gone);
                    let received = connection.and_then(|one| one.recv(&mut buffer, until, now));
                    let now = clock::instant();
                    state = self.state();
                    state.core.received(node, received, now);
                }
                NodeTask::Pause { until } => {
                    self.log_elsewhere(&state);
                    state = self.wait(state, until);
                }
                NodeTask::Reconnected
                | NodeTask::GiveUp
                | NodeTask::Quarantine
                | NodeTask::Stop => break,
            }
        }
        attendant.leaves = true;
        let home = state.core.link(node) == Link::Connected;
        if let Some(parked) = state.parked.get_mut(node).filter(|_| home) {
            *parked = connection.take();
        }
        let fresh = state.fresh.get_mut(node).and_then(Option::take);
        self.announce(&mut state);
        drop(state);
        drop(fresh);
        self.log();
    }

    /// Connects to a node. Where a silent connection is to be listened to meanwhile, another thread does.
    fn connect(self: &Arc<Nodes>, node: usize, elsewhere: bool) {
        let nodes = self.clone();
        let thread = std::thread::Builder::new().name(format!("redlock-connect-{node}"));
        if !elsewhere || thread.spawn(move || nodes.open(node)).is_err() {
            self.open(node);
        }
    }

    fn open(&self, node: usize) {
        let info = self.peers.get(node).ok_or_else(gone);
        let opened =
            info.and_then(|info| Connection::open(info, self.connect_timeout, self.purpose));
        let (mut fresh, handshake) = match opened {
            Ok((connection, handshake)) => (Some(connection), Ok(handshake)),
            Err(cause) => (None, Err(cause)),
        };
        let mut state = self.state();
        if state.core.connected(node, handshake, clock::instant())
            && let Some(place) = state.fresh.get_mut(node)
        {
            *place = fresh.take();
        }
        self.announce(&mut state);
        drop(state);
    }

    /// For a worker that has more to do: another thread logs, so that a slow logger does not keep it.
    fn log_elsewhere(self: &Arc<Nodes>, state: &State) {
        if !state.core.events.is_empty() && !state.logs {
            let nodes = self.clone();
            let thread = std::thread::Builder::new().name("redlock-log".into());
            // Without a thread the next operation says it.
            let _ = thread.spawn(move || nodes.log());
        }
    }
}

/// A worker at work. If it panics, which only a bug can be, its node gets another one.
struct Worker<'a> {
    nodes: &'a Nodes,
    node: usize,
    leaves: bool,
}

impl Drop for Worker<'_> {
    fn drop(&mut self) {
        if !self.leaves {
            let mut state = self.nodes.state();
            state.core.deserted(self.node, clock::instant());
            self.nodes.announce(&mut state);
        }
    }
}

impl Leader {
    /// Fetches the connection of a node that has come home, or could not be handed over.
    fn connection(&mut self, state: &mut State, node: usize) {
        if let (Some(connection), Some(parked)) =
            (self.connections.get_mut(node), state.parked.get_mut(node))
            && connection.is_none()
        {
            *connection = parked.take();
        }
    }

    /// Takes the connections of all nodes that are here.
    pub(crate) fn disconnect(&mut self, state: &mut State) -> Vec<Connection> {
        for node in 0..self.connections.len() {
            if state.core.link(node) == Link::Connected {
                self.connection(state, node);
            }
        }
        let all = self.connections.iter_mut();
        all.filter_map(Option::take).collect()
    }

    /// Wakes those whose answers have come.
    pub(crate) fn deliver(&mut self) {
        for (who, answer) in self.answers.drain(..) {
            who.tell(answer);
        }
    }
}

fn say_notice(node: &str, resource: &Shown<'_>, notice: &Notice) {
    match notice {
        Notice::NotReleased(cause) => {
            let needs = match cause.meaning().concerns_rights() {
                true => {
                    "; who releases locks needs the commands EVAL, EVALSHA, GET and DEL there, for their keys"
                }
                false => "",
            };
            say!(
                warn,
                "{node} refuses to release {resource}: {}; the lock ends there with its ttl{needs}",
                cause.without_advice()
            );
        }
        Notice::NoLock(NotALock::OtherType) => say!(
            warn,
            "{node}: {resource} is no lock, it holds data of another type; it counts as taken until somebody \
             deletes it (give locks a prefix that no other data has)"
        ),
        Notice::NoLock(NotALock::NoTtl) => say!(
            warn,
            "{node}: {resource} is no lock, it has no ttl; it counts as taken until somebody deletes it (give \
             locks a prefix that no other data has)"
        ),
    }
}

/// What else is to be said of a node that is well again.
fn but(forgotten: u64) -> String {
    if forgotten == 0 {
        return String::new();
    }
    format!(
        "; {forgotten} releases were too many to be kept for it: those locks end there with their ttls"
    )
}

/// The connection that should be here is not, since the nodes were closed.
fn gone() -> Cause {
    Cause::Closed("by this side".into())
}
