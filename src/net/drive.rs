//! The leader's loop and the attendants: they do what the core says, with sockets and threads.
//!
//! The core stands under one mutex, which is never held while anything is sent, received, connected,
//! waited for or logged.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use redis::ConnectionInfo;

use crate::clock;
use crate::error::{Cause, ConfigError};
use crate::net::connection::Connection;
use crate::net::lane::Who;
use crate::options::Options;
use crate::protocol::core::{Core, Event, Next};
use crate::protocol::entry::Answer;
use crate::protocol::node::{Errand, Link};
use crate::protocol::quorum::{MAX_NODES, NodeSet};
use crate::sync::{lock, wait_until};

/// The nodes, as the leader and the attendants share them.
pub(crate) struct Nodes {
    infos: Vec<ConnectionInfo>,
    /// Hosts and ports, or paths: what may be shown.
    addresses: Vec<Arc<str>>,
    pub(crate) node_timeout: Duration,
    connect_timeout: Duration,
    hub: Mutex<Hub>,
    /// There is news for the leader or for an attendant.
    changed: Condvar,
}

pub(crate) struct Hub {
    pub(crate) core: Core<Who>,
    /// Connections on their way between the leader and an attendant.
    parked: Vec<Option<Connection>>,
    /// What the leader has; `None`: somebody leads.
    pub(crate) idle: Option<Box<Leader>>,
    /// The last leader was answered together with others.
    pub(crate) crowded: bool,
    /// Somebody is logging.
    logging: bool,
}

/// What the leader has.
pub(crate) struct Leader {
    /// Those of the nodes that are here.
    connections: Vec<Option<Connection>>,
    out: Vec<u8>,
    /// Which part of `out` goes to which node.
    parts: Vec<(usize, Range<usize>)>,
    failed: Vec<(usize, Cause)>,
    buffer: Vec<u8>,
    /// To be delivered.
    pub(crate) answers: Vec<(Who, Answer)>,
}

/// Named nodes, of which each vote counts once.
pub(crate) fn checked(infos: &[ConnectionInfo]) -> Result<(), ConfigError> {
    if infos.is_empty() {
        return Err(ConfigError::new(
            "no nodes given: at least 1 is needed, 3 or 5 are usual",
        ));
    }
    if infos.len() > MAX_NODES {
        return Err(ConfigError::new(format!(
            "{} nodes given, the limit is {MAX_NODES}",
            infos.len()
        )));
    }
    for (i, info) in infos.iter().enumerate() {
        if !info.addr().is_supported() {
            return Err(ConfigError::new(format!(
                "node {i} ({}) cannot be reached by this build: TLS needs the feature \
                 `tls-rustls` or `tls-native-tls`, Unix sockets need Unix",
                info.addr()
            )));
        }
        let same = |other: &ConnectionInfo| other.addr() == info.addr();
        if let Some(other) = infos.iter().take(i).position(same) {
            return Err(ConfigError::new(format!(
                "nodes {other} and {i} have the same address {}: its vote must count once",
                info.addr()
            )));
        }
    }
    Ok(())
}

impl Nodes {
    pub(crate) fn new(infos: Vec<ConnectionInfo>, options: &Options) -> Nodes {
        let count = infos.len();
        let address = |info: &ConnectionInfo| info.addr().to_string().into();
        let addresses: Vec<Arc<str>> = infos.iter().map(address).collect();
        let core = Core::new(
            addresses.iter().cloned(),
            options.node_timeout,
            options.connect_timeout,
            getrandom::u64().unwrap_or(1),
            clock::instant(),
        );
        let leader = Leader {
            connections: (0..count).map(|_| None).collect(),
            out: Vec::new(),
            parts: Vec::new(),
            failed: Vec::new(),
            buffer: Vec::new(),
            answers: Vec::new(),
        };
        let hub = Hub {
            core,
            parked: (0..count).map(|_| None).collect(),
            idle: Some(Box::new(leader)),
            crowded: false,
            logging: false,
        };
        Nodes {
            infos,
            addresses,
            node_timeout: options.node_timeout,
            connect_timeout: options.connect_timeout,
            hub: Mutex::new(hub),
            changed: Condvar::new(),
        }
    }

    /// The same nodes, with nothing shared: for other timeouts, and for a forked child.
    pub(crate) fn afresh(&self, options: &Options) -> Nodes {
        Nodes::new(self.infos.clone(), options)
    }

    pub(crate) fn addresses(&self) -> impl Iterator<Item = &str> {
        self.addresses.iter().map(|address| &**address)
    }

    pub(crate) fn hub(&self) -> MutexGuard<'_, Hub> {
        lock(&self.hub)
    }

    pub(crate) fn wait<'a>(&self, hub: MutexGuard<'a, Hub>, until: Instant) -> MutexGuard<'a, Hub> {
        wait_until(&self.changed, hub, until)
    }

    fn announce(&self, hub: &mut Hub) {
        if std::mem::take(&mut hub.core.news) {
            self.changed.notify_all();
        }
    }

    /// Says what has happened. One thread at a time does, and nobody waits for it: somebody's logger may
    /// take its time, or use these same nodes.
    pub(crate) fn log(&self) {
        let mut hub = self.hub();
        if hub.logging {
            return;
        }
        hub.logging = true;
        while !hub.core.events.is_empty() {
            let events = std::mem::take(&mut hub.core.events);
            drop(hub);
            events.into_iter().for_each(|event| self.say(event));
            hub = self.hub();
        }
        hub.logging = false;
    }

    fn say(&self, event: Event) {
        let at = |node: usize| self.addresses.get(node).map_or("", |address| address);
        match event {
            Event::Away { node, cause } => {
                say!(warn, "node {node} ({}) is away: {cause}", at(node))
            }
            Event::Back { node, forgotten: 0 } => say!(warn, "node {node} ({}) is back", at(node)),
            Event::Back { node, forgotten } => say!(
                warn,
                "node {node} ({}) is back; {forgotten} releases were too many to be kept for it: \
                 their keys end with their ttls",
                at(node)
            ),
            Event::GivesNoVotes { node, cause } => {
                say!(warn, "node {node} ({}) gives no votes: {cause}", at(node))
            }
            Event::VotesAgain { node } => {
                say!(warn, "node {node} ({}) gives votes again", at(node))
            }
        }
    }

    // ---- the leader

    /// Does what the core says until there is nothing to do, or `done` says so of the answers that have
    /// come and nothing is left but to wait.
    pub(crate) fn lead<'a>(
        self: &'a Arc<Nodes>,
        leader: &mut Leader,
        mut hub: MutexGuard<'a, Hub>,
        mut now: Instant,
        mut done: impl FnMut(&mut Vec<(Who, Answer)>) -> bool,
    ) -> MutexGuard<'a, Hub> {
        let mut ended = false;
        loop {
            let next = hub.core.next(now);
            if !hub.core.answers.is_empty() {
                leader.answers.append(&mut hub.core.answers);
                ended |= done(&mut leader.answers);
            }
            let waits = matches!(next, Next::Recv { .. } | Next::Wait { .. })
                || matches!(next, Next::Send { .. }) && hub.core.longest_waiting().is_some();
            if matches!(next, Next::Finished) || ended && waits {
                return hub;
            }
            self.announce(&mut hub);
            if !leader.answers.is_empty() && !ended {
                drop(hub);
                leader.deliver();
                hub = self.hub();
            }
            match next {
                Next::HandOver { node } => self.hand_over(leader, &mut hub, node),
                Next::Wait { until } => hub = self.wait(hub, until),
                Next::Send { nodes, until } => {
                    leader.collect(&mut hub, nodes, now);
                    drop(hub);
                    leader.send(until, now);
                    hub = self.hub();
                    for (node, cause) in leader.failed.drain(..) {
                        hub.core.unsent(node, cause, now);
                    }
                }
                Next::Probe { node } => (hub, now) = self.recv(leader, hub, node, now, now),
                Next::Recv { node, until } => {
                    (hub, now) = self.recv(leader, hub, node, until, now);
                }
                Next::Finished => {}
            }
            if !matches!(next, Next::Recv { .. } | Next::Probe { .. }) {
                now = clock::instant();
            }
        }
    }

    fn recv<'a>(
        &'a self,
        leader: &mut Leader,
        mut hub: MutexGuard<'a, Hub>,
        node: usize,
        until: Instant,
        now: Instant,
    ) -> (MutexGuard<'a, Hub>, Instant) {
        let connection = take(&mut leader.connections, &mut hub.parked, node);
        drop(hub);
        let buffer = &mut leader.buffer;
        let received = match connection {
            Some(connection) => connection.recv(buffer, until, now),
            None => Err(gone()),
        };
        let now = clock::instant();
        hub = self.hub();
        hub.core.received(node, received, now);
        (hub, now)
    }

    /// Starts a node's attendant, who gets the connection if it is still of use.
    fn hand_over(self: &Arc<Nodes>, leader: &mut Leader, hub: &mut Hub, node: usize) {
        let connection = leader.connections.get_mut(node).and_then(Option::take);
        if hub.core.link(node) != Link::Silent {
            connection.into_iter().for_each(Connection::reset);
        } else if let Some(parked) = hub.parked.get_mut(node)
            && connection.is_some()
        {
            *parked = connection;
        }
        let nodes = self.clone();
        let thread = std::thread::Builder::new().name(format!("redlock-node-{node}"));
        let started = thread.spawn(move || nodes.attend(node)).map(drop);
        let started = started.map_err(|error| Cause::NoThread(error.to_string()));
        hub.core.attended(node, started, clock::instant());
    }

    /// After a panic in mid-lead, which only a bug can be.
    pub(crate) fn recover(&self, leader: &mut Leader, hub: &mut Hub) {
        let held = leader.connections.iter_mut().enumerate();
        let held = held.filter_map(|(node, connection)| connection.take().map(|_| node));
        let held = held.collect();
        hub.core.recover(held, clock::instant());
        leader.answers.append(&mut hub.core.answers);
    }

    /// Nobody needs the nodes any more.
    pub(crate) fn close(&self) {
        let mut hub = self.hub();
        hub.core.close(clock::instant());
        self.announce(&mut hub);
    }

    // ---- the attendants

    /// The life of an attendant: until its node is here, or nobody needs it any more.
    fn attend(self: &Arc<Nodes>, node: usize) {
        let Some(info) = self.infos.get(node) else {
            return;
        };
        let (mut out, mut buffer) = (Vec::new(), Vec::new());
        let mut fresh = None;
        let mut hub = self.hub();
        let mut connection = hub.parked.get_mut(node).and_then(Option::take);
        loop {
            self.announce(&mut hub);
            let now = clock::instant();
            match hub.core.errand(node, now) {
                Errand::Connect => {
                    self.log_elsewhere(&hub);
                    drop(hub);
                    let opened = Connection::open(info, self.connect_timeout);
                    let greeting = opened.map(|(connection, greeting)| {
                        fresh = Some(connection);
                        greeting
                    });
                    hub = self.hub();
                    hub.core.connected(node, greeting, clock::instant());
                }
                Errand::Adopt => {
                    let old = std::mem::replace(&mut connection, fresh.take());
                    old.into_iter().for_each(Connection::reset);
                }
                Errand::Send { until } => {
                    out.clear();
                    hub.core.output(node, &mut out, now);
                    drop(hub);
                    let sent = match &mut connection {
                        Some(connection) => connection.send(&out, until, now),
                        None => Err(gone()),
                    };
                    hub = self.hub();
                    if let Err(cause) = sent {
                        hub.core.unsent(node, cause, clock::instant());
                    }
                }
                Errand::Recv { until } => {
                    drop(hub);
                    let received = match &mut connection {
                        Some(connection) => connection.recv(&mut buffer, until, now),
                        None => Err(gone()),
                    };
                    let now = clock::instant();
                    hub = self.hub();
                    hub.core.received(node, received, now);
                }
                Errand::Pause { until } => {
                    self.log_elsewhere(&hub);
                    hub = self.wait(hub, until);
                }
                Errand::Home | Errand::GiveUp | Errand::Quit => break,
            }
        }
        let home = hub.core.link(node) == Link::Here;
        if let Some(parked) = hub.parked.get_mut(node).filter(|_| home) {
            *parked = connection.take();
        }
        self.announce(&mut hub);
        drop(hub);
        self.log();
    }

    /// An attendant still has to do: a logger that takes its time must not keep it.
    fn log_elsewhere(self: &Arc<Nodes>, hub: &Hub) {
        if hub.core.events.is_empty() || hub.logging {
            return;
        }
        let nodes = self.clone();
        let thread = std::thread::Builder::new().name("redlock-log".into());
        // Without a thread the next operation says it.
        let _ = thread.spawn(move || nodes.log());
    }
}

impl Leader {
    /// Takes the connections of all nodes that are here.
    pub(crate) fn disconnect(&mut self, hub: &mut Hub) -> Vec<Connection> {
        let here = |node: &usize| hub.core.link(*node) == Link::Here;
        let mut connections = Vec::new();
        for node in (0..self.connections.len()).filter(here) {
            take(&mut self.connections, &mut hub.parked, node);
            connections.extend(self.connections.get_mut(node).and_then(Option::take));
        }
        connections
    }

    /// Takes what these nodes are to be sent, the nearest first: it answers while the others are written to.
    fn collect(&mut self, hub: &mut Hub, mut nodes: NodeSet, now: Instant) {
        self.out.clear();
        self.parts.clear();
        while !nodes.is_empty() {
            let node = hub.core.nearest(nodes);
            nodes.remove(node);
            let start = self.out.len();
            hub.core.output(node, &mut self.out, now);
            self.parts.push((node, start..self.out.len()));
            take(&mut self.connections, &mut hub.parked, node);
        }
    }

    fn send(&mut self, until: Instant, now: Instant) {
        for (node, part) in self.parts.drain(..) {
            let bytes = self.out.get(part).unwrap_or_default();
            let connection = self.connections.get_mut(node).and_then(Option::as_mut);
            let sent = connection.map_or_else(|| Err(gone()), |one| one.send(bytes, until, now));
            if let Err(cause) = sent {
                self.failed.push((node, cause));
            }
        }
    }

    /// Wakes those whose answers have come.
    pub(crate) fn deliver(&mut self) {
        for (who, answer) in self.answers.drain(..) {
            who.tell(answer);
        }
    }
}

/// The connection to a node that is here, or silent and not attended.
fn take<'a>(
    connections: &'a mut [Option<Connection>],
    parked: &mut [Option<Connection>],
    node: usize,
) -> Option<&'a mut Connection> {
    let connection = connections.get_mut(node)?;
    if connection.is_none() {
        *connection = parked.get_mut(node).and_then(Option::take);
    }
    connection.as_mut()
}

/// The nodes were closed.
fn gone() -> Cause {
    Cause::Closed("by this side".into())
}
