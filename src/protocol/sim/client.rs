//! A virtual process: its clocks, the driver of its core, and threads that use locks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::network::Connection;
use super::server::commands;
use super::subscription::Listener;
use super::waiting::{After, Wait};
use super::{
    Belief, CONNECT_TIMEOUT, Event, LONGEST, MS, NODE_TIMEOUT, RESOLUTION, Random, SLACK, TODAY,
    TokenHistory, World, trace,
};
use crate::clock::{self, Point};
use crate::error::Cause;
use crate::protocol::attempt::{Attempt, Rejection, Tried};
use crate::protocol::confirm::Confirm;
use crate::protocol::core::{Core, Next};
use crate::protocol::event::Event as CoreEvent;
use crate::protocol::fence::{Fenced, Fencing};
use crate::protocol::guard::Guard;
use crate::protocol::kind::Kind;
use crate::protocol::lease::{Extended, Extension, Lease};
use crate::protocol::means::{Delete, Means, Scripts};
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::node::{Link, NodeTask, Timeouts};
use crate::protocol::operation::{Answer, Op, Outcome};
use crate::protocol::queue::Channel;
use crate::protocol::quorum::{Deadline, NodeSet, Ttl};
use crate::protocol::script::Key;
use crate::protocol::wait_queue::WaitQueues;
use crate::protocol::waiter::Failure;
use crate::protocol::wire::Handshake;
use crate::token::Token;

/// The number of resources that are locked. The other one is for when all is quiet.
pub(super) const RESOURCES: u8 = 2;
const PROBED: u8 = 9;
/// In the place of a thread, where none waits for the operation.
pub(super) const NO_THREAD: usize = usize::MAX;
/// From here on: the threads for which others have submitted something.
pub(super) const HANDED_OFF: usize = 1000;

pub(super) struct Client {
    core: Core<usize>,
    /// The connections of the leader or the worker, by node, and those that were just made.
    connections: Vec<Option<usize>>,
    fresh: Vec<Option<usize>>,
    workers: Vec<Worker>,
    leader: Leader,
    /// The thread that confirms releases, and until when it waits.
    confirmer: Option<Instant>,
    /// Where nothing follows a release: when the lock must be gone; and how often new connections are closed.
    gone_by: u64,
    forsaken: bool,
    unlucky: u32,
    pub(super) threads: Vec<Thread>,
    /// The threads that wait, and the number of locks that are held here, by resource.
    pub(super) queues: WaitQueues<usize>,
    pub(super) here: [u32; 16],
    pub(super) listeners: Vec<Listener>,
    /// It was killed.
    pub(super) dead: bool,
    /// Its clocks: their rate in parts of ten thousand; one of them stands still while it is
    /// suspended.
    base: Point,
    rate: u64,
    suspended: u64,
    stands_until: u64,
    /// When it is woken next.
    wake_at: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Worker {
    None,
    Runs,
    Connects,
    Recv(Instant),
    Pauses(Instant),
}

enum Leader {
    None,
    Runs,
    /// Everything was taken out of the core at once, and is written bit by bit.
    Writes(VecDeque<(usize, Vec<u8>)>, u64),
    Recv(usize, Instant),
    /// Nothing had come when it stood still.
    ReadNothing(usize),
    Waits(Instant),
}

pub(super) struct Thread {
    pub(super) doing: Doing,
    acts: u32,
    /// When its operation was submitted.
    since: u64,
    /// It waits for a lock.
    pub(super) wait: Option<Wait>,
}

pub(super) enum Doing {
    Idle(u64),
    Acquires(Attempt, u8, usize),
    /// Between two tries.
    Pauses(Attempt, u8, Instant),
    Holds(Held, u64),
    Extends(Held, Extension),
    /// Asks for a fencing token, since then.
    Fences(Held, Fencing, u64),
    /// Which token; whether it is only written; and what follows.
    Releases(usize, bool, After),
    /// In a queue: decides what to do then; or sleeps until then.
    Stands(u64),
    Parks(u64),
    /// Leaves the queue: then, or when the nodes have answered.
    Leaves(Option<u64>),
    Stopped,
}

pub(super) struct Held {
    pub(super) token: usize,
    lease: Lease,
}

impl Client {
    /// The one of this number. `waits`: its threads wait for locks.
    pub(super) fn new(
        number: usize,
        nodes: usize,
        guarded: bool,
        waits: bool,
        random: &mut Random,
    ) -> Client {
        // Wall clocks differ, if they do, by less or more than queues take from them.
        let ahead = if random.chance(50) { 2000 } else { 1 };
        let base = Point {
            mono: clock::instant(),
            wall: SystemTime::UNIX_EPOCH
                + Duration::from_micros(TODAY)
                + Duration::from_millis(random.below(ahead)),
        };
        let channel = Channel::new([u8::try_from(number).unwrap(); 16]);
        let node_timeout = Duration::from_micros(NODE_TIMEOUT);
        let rng = random.next();
        let addresses = (0..nodes).map(|_| Arc::from("x"));
        let [longest, resolution] = [LONGEST, RESOLUTION].map(Duration::from_micros);
        let guard = guarded.then(|| Guard::with_resolution(longest, resolution));
        let timeouts = Timeouts {
            node: node_timeout,
            connect: Duration::from_micros(CONNECT_TIMEOUT),
        };
        let threads = 1 + random.pick(if waits { 4 } else { 3 });
        Client {
            queues: WaitQueues::new(nodes, Some(channel), node_timeout, rng),
            here: [0; 16],
            listeners: Vec::new(),
            dead: false,
            core: Core::new(addresses, timeouts, guard, random.next(), base.mono),
            connections: vec![None; nodes],
            fresh: vec![None; nodes],
            workers: vec![Worker::None; nodes],
            leader: Leader::None,
            confirmer: None,
            gone_by: 0,
            forsaken: false,
            unlucky: 0,
            threads: (0..threads)
                .map(|_| Thread {
                    doing: Doing::Idle(random.below(30 * MS)),
                    acts: 0,
                    since: 0,
                    wait: None,
                })
                .collect(),
            base,
            rate: 9_960 + random.below(81),
            suspended: 0,
            stands_until: 0,
            wake_at: u64::MAX,
        }
    }

    /// Its clocks at time `t`.
    pub(super) fn point(&self, t: u64) -> Point {
        let runs = |t: u64| Duration::from_micros(t * self.rate / 10_000);
        Point {
            mono: self.base.mono + runs(t.saturating_sub(self.suspended)),
            wall: self.base.wall + runs(t),
        }
    }

    /// Its wall clock at time `t`, and whether all nodes take its word for it.
    pub(super) fn wall(&self, t: u64) -> u64 {
        let wall = self.point(t).wall.duration_since(SystemTime::UNIX_EPOCH);
        u64::try_from(wall.unwrap().as_micros()).unwrap()
    }

    pub(super) fn is_punctual(&self) -> bool {
        self.wall(0) < TODAY + 300 * MS
    }

    /// The time at which its monotonic clock shows `at`.
    pub(super) fn time(&self, at: Instant) -> u64 {
        let runs = at.saturating_duration_since(self.base.mono).as_micros();
        let runs = u64::try_from(runs).unwrap_or(u64::MAX / 20_000);
        runs.min(u64::MAX / 20_000) * 10_000 / self.rate + self.suspended + 1
    }

    pub(super) fn freeze(&mut self, until: u64) {
        self.stands_until = self.stands_until.max(until);
    }

    /// Whether all its threads stand still.
    pub(super) fn stands(&self, t: u64) -> bool {
        self.stands_until > t
    }

    /// All its threads have stood still at one time or another.
    pub(super) fn has_hung(&self) -> bool {
        self.stands_until > 0
    }

    /// It is killed.
    pub(super) fn die(&mut self) {
        self.dead = true;
        self.workers.fill(Worker::None);
        self.leader = Leader::None;
        self.confirmer = None;
        self.listeners.clear();
        for thread in &mut self.threads {
            (thread.doing, thread.wait) = (Doing::Stopped, None);
        }
    }

    pub(super) fn suspend(&mut self, t: u64, until: u64) {
        if self.stands_until <= t {
            self.suspended += until - t;
        }
        self.freeze(until);
    }

    /// What is not as it is when all is quiet.
    pub(super) fn not_quiescent(&self) -> Option<String> {
        if self.dead {
            return None;
        }
        self.core.not_quiescent().or_else(|| self.running())
    }

    /// A thread of the driver that has not ended.
    pub(super) fn running(&self) -> Option<String> {
        let has_worker = self.workers.iter().any(|one| *one != Worker::None);
        let leads = !matches!(self.leader, Leader::None | Leader::Runs);
        let has_worker = has_worker.then(|| "a worker is left".to_owned());
        let confirms = self.confirmer.map(|_| "a thread still confirms".to_owned());
        let leads = leads.then(|| "a thread still leads".to_owned());
        has_worker.or(leads).or(confirms)
    }
}

impl World {
    /// Everything that a client can do at this moment.
    pub(super) fn pump(&mut self, c: usize) {
        if self.clients[c].dead {
            return;
        }
        if self.clients[c].wake_at <= self.t {
            self.clients[c].wake_at = u64::MAX;
        }
        for _ in 0..1000 {
            let stands = self.clients[c].stands_until;
            if stands > self.t {
                return self.wake(c, stands);
            }
            let mut busy = self.lead(c);
            for node in 0..self.servers.len() {
                busy |= self.work(c, node);
            }
            busy |= self.confirm(c);
            busy |= self.listen_all(c);
            for thread in 0..self.clients[c].threads.len() {
                busy |= self.act(c, thread);
            }
            if !busy || self.wrong.is_some() {
                return;
            }
        }
        self.violated(format!("client {c} spins"));
    }

    pub(super) fn wake(&mut self, c: usize, at: u64) {
        let at = at.max(self.t + 1);
        if at < self.clients[c].wake_at {
            self.clients[c].wake_at = at;
            self.at(at, Event::Wake(c));
        }
    }

    pub(super) fn now(&self, c: usize) -> Instant {
        self.clients[c].point(self.t).mono
    }

    /// Whether a time has come; otherwise it is woken then.
    fn has_come(&mut self, c: usize, at: Instant) -> bool {
        if self.now(c) >= at {
            return true;
        }
        let at = self.clients[c].time(at);
        self.wake(c, at);
        false
    }

    /// Wakes the workers that pause when there is news, and counts what happened.
    fn announce(&mut self, c: usize) {
        let client = &mut self.clients[c];
        if std::mem::take(&mut client.core.news) {
            for worker in &mut client.workers {
                if let Worker::Pauses(_) = worker {
                    *worker = Worker::Runs;
                }
            }
            if let Leader::Waits(_) = client.leader {
                client.leader = Leader::Runs;
            }
            client.confirmer = client.confirmer.map(|_| client.base.mono);
        }
        for event in client.core.events.take() {
            match event {
                (_, CoreEvent::Back(..), _) => self.counts.reconnected += 1,
                (_, CoreEvent::Quarantined(_), _) => self.counts.quarantined += 1,
                _ => {}
            }
        }
        for (thread, answer) in std::mem::take(&mut self.clients[c].core.answers) {
            self.answered(c, thread, answer);
        }
    }

    // ---- the leader

    fn lead(&mut self, c: usize) -> bool {
        match self.clients[c].leader {
            Leader::None => return false,
            Leader::Runs => {}
            Leader::Writes(_, at) if at > self.t => {
                self.wake(c, at);
                return false;
            }
            Leader::Writes(ref mut parts, ref mut at) => {
                if let Some((node, bytes)) = parts.pop_front() {
                    if !self.conditions.faultless && self.random.chance(10) {
                        *at = self.t + self.random.below(3 * MS);
                    }
                    self.write(c, node, &bytes);
                    return true;
                }
            }
            Leader::Waits(until) => {
                if !self.has_come(c, until) {
                    return false;
                }
            }
            Leader::Recv(node, until) => {
                let connection = self.clients[c].connections[node];
                if !self.can_read(connection) {
                    if !self.has_come(c, until) {
                        return false;
                    }
                    if !self.conditions.faultless && !self.quiet && self.random.chance(1) {
                        // Between the read and what follows.
                        let until = self.t + self.random.below(80 * MS);
                        self.clients[c].freeze(until);
                        self.clients[c].leader = Leader::ReadNothing(node);
                        return true;
                    }
                }
                self.recv(c, node);
            }
            Leader::ReadNothing(node) => {
                let now = self.now(c);
                self.clients[c].core.received(node, Ok(&[]), now);
                self.announce(c);
            }
        }
        let now = self.now(c);
        let next = self.clients[c].core.next(now);
        trace!(self, "client {c} leads: {next:?}");
        self.clients[c].leader = Leader::Runs;
        match next {
            Next::StartWorker { node } => {
                let silent = self.clients[c].core.link(node) == Link::Unresponsive;
                self.counts.unresponsive += u64::from(silent);
                if !silent && let Some(old) = self.clients[c].connections[node].take() {
                    self.give_up(old, true);
                }
                self.clients[c].workers[node] = Worker::Runs;
                self.clients[c].core.worker_started(node, Ok(()), now);
            }
            Next::Send { nodes, .. } => {
                let take = |node| {
                    let mut bytes = Vec::new();
                    self.clients[c].core.output(node, &mut bytes, now);
                    (node, bytes)
                };
                let parts = nodes.iter().map(take).collect();
                self.clients[c].leader = Leader::Writes(parts, self.t);
            }
            Next::Recv { node, until } => self.clients[c].leader = Leader::Recv(node, until),
            Next::Wait { until } => self.clients[c].leader = Leader::Waits(until),
            Next::Finished => {
                self.clients[c].leader = Leader::None;
                if self.clients[c].core.wants_confirmer() {
                    self.clients[c].confirmer = Some(now);
                }
            }
        }
        self.announce(c);
        true
    }

    /// What the thread does that confirms releases.
    fn confirm(&mut self, c: usize) -> bool {
        let Some(until) = self.clients[c].confirmer else {
            return false;
        };
        if !self.has_come(c, until) {
            return false;
        }
        let now = self.now(c);
        let confirm = self.clients[c].core.confirm(now);
        trace!(self, "client {c} confirms: {confirm:?}");
        let client = &mut self.clients[c];
        client.confirmer = match (confirm, &client.leader) {
            (Confirm::End, _) => None,
            (Confirm::Wait { until }, _) => Some(until),
            (Confirm::Probe, Leader::None) => {
                client.leader = Leader::Runs;
                self.counts.confirm_probes += 1;
                Some(now)
            }
            (Confirm::Probe, _) => Some(now + Duration::from_millis(1)),
        };
        true
    }

    fn can_read(&self, connection: Option<usize>) -> bool {
        connection.is_none_or(|connection| {
            let connection = &self.connections[connection];
            !connection.inbox.is_empty() || !connection.is_open()
        })
    }

    /// Reads what is there.
    fn recv(&mut self, c: usize, node: usize) {
        let now = self.now(c);
        let part = if self.random.chance(15) {
            1 + self.random.pick(6)
        } else {
            usize::MAX
        };
        let received = match self.clients[c].connections[node] {
            Some(connection) => self.connections[connection].recv(part),
            None => Err(Cause::Closed("there is none".into())),
        };
        let received = received.as_ref().map_err(Cause::clone);
        let received = received.map(|bytes| &bytes[..]);
        self.clients[c].core.received(node, received, now);
        self.announce(c);
    }

    fn write(&mut self, c: usize, node: usize, bytes: &[u8]) {
        let now = self.now(c);
        let Some(connection) = self.clients[c].connections[node] else {
            return self.violated(format!(
                "client {c} writes to node {node} without a connection"
            ));
        };
        commands(bytes, |set, token| {
            trace!(
                self,
                "    client {c} writes to {node} over {connection}: set {set} {token}"
            );
            let history = &mut self.tokens[token];
            let sent = if set {
                &mut history.set_sent
            } else {
                &mut history.rel_sent
            };
            sent[node] = Some(connection);
        });
        if let Err(cause) = self.send(connection, bytes) {
            self.clients[c].core.sever(node, cause, now);
        }
        self.announce(c);
    }

    // ---- workers

    fn work(&mut self, c: usize, node: usize) -> bool {
        match self.clients[c].workers[node] {
            Worker::None | Worker::Connects => return false,
            Worker::Runs => {}
            Worker::Pauses(until) => {
                if !self.has_come(c, until) {
                    return false;
                }
            }
            Worker::Recv(until) => {
                let connection = self.clients[c].connections[node];
                if !self.can_read(connection) && !self.has_come(c, until) {
                    return false;
                }
                self.recv(c, node);
            }
        }
        let now = self.now(c);
        self.clients[c].workers[node] = Worker::Runs;
        let task = self.clients[c].core.task(node, now);
        trace!(self, "client {c} serves {node}: {task:?}");
        match task {
            NodeTask::Connect => {
                if self.clients[c].connections[node].is_none() {
                    self.clients[c].workers[node] = Worker::Connects;
                }
                let refused = self.servers[node].refuses_connections(self.t);
                let luck = self.conditions.faultless || self.quiet || !self.random.chance(10);
                let at = self.t + self.delay(node) + self.delay(node);
                let well = !refused && luck;
                self.at(
                    at,
                    Event::Connected {
                        client: c,
                        node,
                        well,
                    },
                );
            }
            NodeTask::Adopt => {
                let fresh = self.clients[c].fresh[node].take();
                if let Some(old) = std::mem::replace(&mut self.clients[c].connections[node], fresh)
                {
                    self.counts.replaced += 1;
                    self.give_up(old, !mutant(Mutant::CloseWithoutReset));
                }
            }
            NodeTask::Send { .. } => {
                let mut bytes = Vec::new();
                self.clients[c].core.output(node, &mut bytes, now);
                self.write(c, node, &bytes);
                self.clients[c].core.written(node, Ok(()), now);
            }
            NodeTask::Recv { until } => self.clients[c].workers[node] = Worker::Recv(until),
            NodeTask::Pause { until } => self.clients[c].workers[node] = Worker::Pauses(until),
            NodeTask::Reconnected | NodeTask::GiveUp | NodeTask::Quarantine | NodeTask::Stop => {
                self.clients[c].workers[node] = Worker::None;
                if let Some(fresh) = self.clients[c].fresh[node].take() {
                    self.give_up(fresh, false);
                }
            }
        }
        self.announce(c);
        true
    }

    /// How a server takes commands: some run no scripts, and some delete without.
    fn random_means(&mut self, node: usize, by_hash: bool) -> Means {
        let delete = match self.random.below(10) {
            0..2 => Some(Delete::IfEq),
            2..4 => Some(Delete::Ex),
            _ => None,
        };
        // Where it runs none, no waiter is notified.
        let runs_none = self.servers[node].runs_no_scripts && !self.conditions.prompt;
        Means {
            scripts: match runs_none {
                true => Scripts::None,
                false => Scripts::by_hash_if(by_hash),
            },
            delete: delete.or(runs_none.then_some(Delete::IfEq)),
            ..Means::default()
        }
    }

    pub(super) fn connected(&mut self, c: usize, node: usize, well: bool) {
        if self.clients[c].dead {
            return;
        }
        let paused = self.servers[node].is_paused(self.t).unwrap_or(0);
        let later = paused.max(self.clients[c].stands_until);
        if well && later > self.t {
            // A connection that takes too long has failed.
            let late = later > self.t + CONNECT_TIMEOUT;
            let at = if late {
                self.t + CONNECT_TIMEOUT
            } else {
                later
            };
            return self.at(
                at,
                Event::Connected {
                    client: c,
                    node,
                    well: !late,
                },
            );
        }
        let mut fresh = None;
        let result = if well && self.servers[node].is_replica(self.t) {
            Err(Cause::Replica(None))
        } else if well {
            self.connections.push(Connection::new(c, node));
            let connection = self.connections.len() - 1;
            trace!(self, "connection {connection}: client {c}, node {node}");
            fresh = Some(connection);
            let by_hash = self.random.chance(70);
            if by_hash {
                self.servers[node].load();
            }
            let uptime = self.servers[node].uptime(self.t, &mut self.random);
            Ok(Handshake {
                means: self.random_means(node, by_hash),
                run_id: Some(format!("{node}-{}", self.servers[node].run())),
                uptime: Some((Duration::from_micros(uptime), self.now(c))),
                by_record: self.conditions.by_record,
                ..Handshake::default()
            })
        } else {
            Err(Cause::Connect("refused".into()))
        };
        let now = self.now(c);
        let released = self.conditions.forsaken && self.clients[c].gone_by > self.t;
        if released && well && self.clients[c].unlucky > 0 {
            self.clients[c].unlucky -= 1;
            let at = self.t + self.random.below(400);
            self.at(at, Event::Forsake(c));
        }
        if self.clients[c].core.connected(node, result, now) {
            self.clients[c].fresh[node] = fresh;
        } else if let Some(fresh) = fresh {
            self.give_up(fresh, false);
        }
        if let Worker::Connects = self.clients[c].workers[node] {
            self.clients[c].workers[node] = Worker::Runs;
        }
        self.announce(c);
        self.pump(c);
    }

    // ---- threads

    /// Submits an operation, before any thread leads.
    pub(super) fn add(&mut self, c: usize, thread: usize, op: Op) {
        trace!(self, "client {c} thread {thread}: {:?}", op.action);
        let now = self.now(c);
        self.clients[c].core.submit(op, thread, now);
    }

    pub(super) fn submit(&mut self, c: usize, thread: usize, op: Op) {
        self.add(c, thread, op);
        let client = &mut self.clients[c];
        // It does not let what is submitted wait.
        if let Leader::None | Leader::Waits(_) = client.leader {
            client.leader = Leader::Runs;
        }
        self.announce(c);
    }

    pub(super) fn begin(&mut self, c: usize, thread: usize) {
        self.clients[c].threads[thread].since = self.t;
    }

    pub(super) fn draw(&mut self, c: usize, resource: u8) -> (Token, usize) {
        let id = self.tokens.len();
        self.order += 1;
        self.tokens.push(TokenHistory {
            client: c,
            resource,
            kind: Kind::Plain,
            set_sent: [None; 5],
            rel_sent: [None; 5],
            set: NodeSet::EMPTY,
            rel: NodeSet::EMPTY,
            granted: NodeSet::EMPTY,
            denied: NodeSet::EMPTY,
            forbidden: NodeSet::EMPTY,
            extended: NodeSet::EMPTY,
            refilled: NodeSet::EMPTY,
            not_held: NodeSet::EMPTY,
            drawn: self.order,
            freed: None,
            alone: false,
            leaked: false,
            notified_elsewhere: false,
        });
        let mut bytes = [0; 20];
        bytes[..8].copy_from_slice(&(id as u64).to_le_bytes());
        (Token::from_bytes(bytes), id)
    }

    pub(super) fn try_to_acquire(
        &mut self,
        c: usize,
        thread: usize,
        mut attempt: Attempt,
        resource: u8,
    ) {
        let (token, _) = self.draw(c, resource);
        let op = attempt.op(token, self.clients[c].point(self.t));
        let id = u64::from_le_bytes(op.key.token.as_bytes()[..8].try_into().unwrap());
        let id = usize::try_from(id).unwrap();
        self.tokens[id].kind = attempt.kind().clone();
        self.clients[c].threads[thread].doing = Doing::Acquires(attempt, resource, id);
        self.submit(c, thread, op);
    }

    pub(super) fn acquire(&mut self, c: usize, thread: usize, resource: u8, ttl: Ttl) {
        self.begin(c, thread);
        let name = Arc::from(&[resource][..]);
        let kind = self.kind(resource);
        let attempt =
            Attempt::new(name, ttl, None, None, Duration::from_micros(NODE_TIMEOUT)).of_kind(kind);
        self.try_to_acquire(c, thread, attempt, resource);
    }

    /// What the thread does next, if it waits for nothing.
    fn act(&mut self, c: usize, thread: usize) -> bool {
        let due = match self.clients[c].threads[thread].doing {
            Doing::Idle(until) | Doing::Holds(_, until) => until,
            Doing::Stands(until) | Doing::Parks(until) | Doing::Leaves(Some(until)) => until,
            Doing::Pauses(_, _, until) => self.clients[c].time(until),
            _ => return false,
        };
        if due > self.t {
            self.wake(c, due);
            return false;
        }
        let stopped = Doing::Stopped;
        match std::mem::replace(&mut self.clients[c].threads[thread].doing, stopped) {
            Doing::Stands(_) => self.stand(c, thread),
            Doing::Parks(_) => self.woken(c, thread),
            Doing::Leaves(_) => self.gone(c, thread, false),
            Doing::Pauses(attempt, resource, _) => {
                if self.is_stopped(c, thread) {
                    return true;
                }
                self.try_to_acquire(c, thread, attempt, resource);
            }
            Doing::Holds(held, _) => self.use_lock(c, thread, held),
            _ => {
                self.clients[c].threads[thread].acts += 1;
                let most = match self.conditions.waits {
                    true if self.conditions.sluggish => 20,
                    true => 5,
                    false => 4,
                };
                if self.quiet || self.clients[c].threads[thread].acts > most {
                    return false;
                }
                let mut resource = u8::try_from(self.random.below(u64::from(RESOURCES))).unwrap();
                if self.conditions.sluggish || self.conditions.waits && self.random.chance(60) {
                    // So that there are queues.
                    resource = 0;
                }
                let ttl = self.ttl(60);
                // Others may overtake fair ones.
                let fair = self.conditions.fair && self.conditions.orderly;
                if self.conditions.waits && (self.random.chance(80) || fair) {
                    self.wait(c, thread, resource, ttl);
                } else {
                    self.acquire(c, thread, resource, ttl);
                }
            }
        }
        true
    }

    /// How long a thread has a lock before it does something.
    fn hold(&mut self) -> u64 {
        let long = if self.conditions.sluggish || self.conditions.waits && self.random.chance(50) {
            3
        } else {
            40
        };
        self.random.below(long * MS)
    }

    /// How long a thread wants nothing.
    pub(super) fn rest(&mut self) -> u64 {
        let long = if self.conditions.lazy && self.random.chance(40) {
            2200
        } else {
            20
        };
        let pause = self.random.below(long * MS);
        // Several begin at once.
        let beat = 80 * MS;
        if self.conditions.sluggish {
            beat - self.t % beat
        } else {
            pause
        }
    }

    /// A long one, in this many cases of a hundred.
    fn ttl(&mut self, long: u64) -> Ttl {
        let ms = match !self.conditions.guarded && self.random.chance(long) {
            _ if self.conditions.prompt => 60_000,
            // A waiter for a lock that was left to its ttl should get it.
            true if self.conditions.waits => 2_000,
            true => 60_000,
            false if self.conditions.guarded => 20 + self.random.below(LONGEST / MS - 19),
            false => 20 + self.random.below(150),
        };
        Ttl::new(Duration::from_millis(ms)).unwrap()
    }

    fn use_lock(&mut self, c: usize, thread: usize, held: Held) {
        self.begin(c, thread);
        let now = self.clients[c].point(self.t);
        let valid = !held.lease.left(now).is_zero();
        let choice = self.random.below(if self.quiet { 5 } else { 12 });
        if choice >= 10 && valid {
            self.order += 1;
            let since = self.order;
            let fencing = Fencing::with_lead(Duration::from_micros(LONGEST / 2));
            return self.fence(c, thread, held, fencing, since);
        }
        if choice >= 6 && valid {
            let ttl = self.ttl(50);
            let (extension, op) = held.lease.extension(ttl, now);
            self.tokens[held.token].extended = NodeSet::EMPTY;
            self.clients[c].threads[thread].doing = Doing::Extends(held, extension);
            return self.submit(c, thread, op);
        }
        if choice != 5 || self.conditions.prompt {
            return self.release(c, thread, held);
        }
        self.ends(c, self.tokens[held.token].resource);
        // From here on it believes in nothing.
        self.beliefs.retain(|belief| belief.token != held.token);
        self.tokens[held.token].leaked = true;
        self.clients[c].threads[thread].doing = Doing::Idle(self.t);
    }

    fn fence(&mut self, c: usize, thread: usize, held: Held, mut fencing: Fencing, since: u64) {
        self.begin(c, thread);
        let now = self.clients[c].point(self.t);
        let left = held.lease.left(now);
        if left.is_zero() {
            self.clients[c].threads[thread].doing = Doing::Holds(held, self.t);
            return;
        }
        let op = fencing.op(held.lease.key.clone(), now.mono, now.mono.checked_add(left));
        self.clients[c].threads[thread].doing = Doing::Fences(held, fencing, since);
        self.submit(c, thread, op);
    }

    /// Numbers are distinct, and larger than all that were given out before this one was asked for.
    fn fenced(&mut self, c: usize, held: &Held, number: u64, since: u64) {
        self.counts.fenced += 1;
        let now = self.clients[c].point(self.t);
        self.check(!held.lease.left(now).is_zero(), || {
            format!("client {c}: {number} was given out after the deadline")
        });
        let resource = self.tokens[held.token].resource;
        let wrong = self.fences.iter().find(|(of, token, other, at)| {
            *of == resource
                && *token != held.token
                && (*other == number || *at < since && *other > number)
        });
        let wrong = wrong.copied().filter(|_| !self.lossy && !self.uncounted);
        self.check(wrong.is_none(), || {
            format!("client {c}: {number} of {} after {wrong:?}", held.token)
        });
        self.order += 1;
        self.fences.push((resource, held.token, number, self.order));
    }

    fn release(&mut self, c: usize, thread: usize, held: Held) {
        let now = self.clients[c].point(self.t);
        let valid = !held.lease.left(now).is_zero();
        self.beliefs.retain(|belief| belief.token != held.token);
        if self.conditions.forsaken {
            self.clients[c].gone_by += self.t + 2 * NODE_TIMEOUT + SLACK;
            self.at(self.clients[c].gone_by, Event::Gone(held.token));
        }
        let only_write = self.random.chance(40) || !valid || self.conditions.forsaken;
        self.ends(c, self.tokens[held.token].resource);
        self.give_back(c, thread, held.lease.key, held.token, only_write);
    }

    // ---- answers

    pub(super) fn answered(&mut self, c: usize, thread: usize, answer: Answer) {
        if thread == NO_THREAD {
            return;
        }
        if thread >= HANDED_OFF {
            return self.served(c, thread - HANDED_OFF, answer);
        }
        let idle = Doing::Stopped;
        let doing = std::mem::replace(&mut self.clients[c].threads[thread].doing, idle);
        match doing {
            Doing::Acquires(attempt, resource, token) => {
                self.tried(c, thread, attempt, resource, token, answer);
            }
            Doing::Extends(held, extension) => {
                self.in_time(c, thread, 2 * NODE_TIMEOUT);
                self.extended(c, thread, held, extension, answer);
            }
            Doing::Fences(held, mut fencing, since) => {
                self.in_time(c, thread, 2 * NODE_TIMEOUT);
                let now = self.clients[c].point(self.t);
                let over = held.lease.left(now).is_zero();
                match fencing.answered(answer, now.mono, over) {
                    Fenced::Again => return self.fence(c, thread, held, fencing, since),
                    Fenced::Token(number) => self.fenced(c, &held, number, since),
                    Fenced::Lost => self.beliefs.retain(|belief| belief.token != held.token),
                    Fenced::Unavailable(_) => {}
                }
                let until = self.t + self.hold();
                self.clients[c].threads[thread].doing = Doing::Holds(held, until);
            }
            Doing::Leaves(_) => self.gone(c, thread, true),
            Doing::Releases(token, only_write, after) => {
                self.in_time(c, thread, NODE_TIMEOUT);
                self.released(c, token, only_write, &answer.outcome);
                let resource = self.tokens[token].resource;
                self.after_release(c, resource, after, answer.has_notified());
                if self.clients[c].threads[thread].wait.is_some() {
                    let rejection = Rejection::default();
                    return self.in_vain(c, thread, Failure::TooSlow, &rejection);
                }
                let pause = self.rest();
                self.clients[c].threads[thread].doing = Doing::Idle(self.t + pause);
            }
            _ => self.violated(format!("client {c}: an answer without a caller")),
        }
    }

    /// An operation ends within its time, unless the process stood still.
    fn in_time(&mut self, c: usize, thread: usize, bound: u64) {
        let thread = &self.clients[c].threads[thread];
        let client = &self.clients[c];
        let stood = client.stands_until > thread.since;
        // Then it was one of those that wait for first connections.
        let first = client.core.majority_at().is_none_or(|at| {
            let at = client.time(at);
            thread.since <= at + NODE_TIMEOUT + SLACK
        });
        let bound = if first {
            bound + CONNECT_TIMEOUT + NODE_TIMEOUT
        } else {
            bound
        };
        let took = self.t - thread.since;
        self.check(stood || took <= bound + SLACK, || {
            format!("client {c}: an operation took {took} us")
        });
    }

    fn tried(
        &mut self,
        c: usize,
        thread: usize,
        mut attempt: Attempt,
        resource: u8,
        token: usize,
        answer: Answer,
    ) {
        let now = self.clients[c].point(self.t);
        self.tokens[token].notified_elsewhere = answer.notified_elsewhere;
        let (votes, quorum) = (answer.tally, self.quorum());
        let no = matches!(answer.outcome, Outcome::No);
        self.check(
            !no || votes.granted.len() + votes.refused.len() >= quorum,
            || format!("client {c}: no with fewer than {quorum} answers"),
        );
        if !matches!(answer.outcome, Outcome::Yes(_)) {
            self.undone(c, token, no);
        }
        let soon = !self.conditions.sluggish
            && now.mono < answer.begun + Duration::from_micros(NODE_TIMEOUT / 2);
        let tried = attempt.answered(answer, now);
        let next = match tried {
            Tried::Granted(key, deadline) => {
                self.in_time(c, thread, 2 * NODE_TIMEOUT);
                self.granted(c, thread, token, &key, deadline);
                self.in_order(c, thread);
                self.holds(c, thread, resource);
                let until = self.t + self.hold();
                self.forsake_about(c, until);
                let lease = Lease::new(key, attempt.ttl(), deadline);
                let held = Held { token, lease };
                Doing::Holds(held, until)
            }
            Tried::TooSlow(key, _) => {
                self.counts.too_slow += 1;
                self.in_time(c, thread, 2 * NODE_TIMEOUT);
                return self.give_back(c, thread, key, token, true);
            }
            Tried::Denied(_) | Tried::Unavailable(_) | Tried::Expired => {
                if let Tried::Denied(_) = tried {
                    self.counts.denied += 1;
                    // A contender that has a vote has met another one, and tries again for a time.
                    let voted = self.tokens[token].granted;
                    let first = self.conditions.faultless && soon && attempt.is_first();
                    self.check(!first || voted.is_empty(), || {
                        format!("client {c}: {token} is denied, but {voted:?} granted it")
                    });
                } else {
                    self.counts.unavailable += 1;
                    self.check(
                        !self.conditions.faultless || self.clients[c].has_hung(),
                        || format!("client {c}: too few answers, and nothing is wrong"),
                    );
                }
                self.is_hopeless(c, token, &tried);
                // There are no other contenders.
                self.probes_failed += u32::from(resource >= PROBED);
                self.in_time(c, thread, 2 * NODE_TIMEOUT);
                if self.clients[c].threads[thread].wait.is_some() {
                    return match tried {
                        Tried::Denied(rejection) => {
                            self.in_vain(c, thread, Failure::Busy(None), &rejection);
                        }
                        Tried::Unavailable(errors) => {
                            let failure = Failure::Unavailable(errors);
                            self.in_vain(c, thread, failure, &Rejection::default());
                        }
                        _ => self.in_vain(c, thread, Failure::TooSlow, &Rejection::default()),
                    };
                }
                let pause = self.rest();
                Doing::Idle(self.t + pause)
            }
            Tried::Again(within) => {
                self.counts.split += u64::from(!within.is_zero());
                self.counts.second += u64::from(within.is_zero());
                let part = u32::try_from(self.random.below(1025)).unwrap();
                Doing::Pauses(attempt, resource, now.mono + within * part / 1024)
            }
        };
        self.clients[c].threads[thread].doing = next;
    }

    /// A release returns what the nodes have answered.
    fn released(&mut self, c: usize, token: usize, only_write: bool, outcome: &Outcome) {
        let (quorum, all) = (self.quorum(), self.servers.len());
        let (told, gone) = (self.tokens[token].rel, self.tokens[token].not_held);
        let right = match outcome {
            _ if only_write => true,
            Outcome::Yes(_) => told.len() >= quorum,
            Outcome::No => gone.len() > all - quorum,
            Outcome::Unavailable { .. } => !self.conditions.faultless || self.clients[c].has_hung(),
        };
        self.check(right, || {
            format!("client {c}: the release of {token} met {told:?}, of which {gone:?} had none")
        });
    }

    /// An acquire fails for good only if servers refuse that leave no quorum.
    fn is_hopeless(&mut self, c: usize, token: usize, tried: &Tried) {
        let Tried::Unavailable(errors) = tried else {
            return;
        };
        let forbidden = self.tokens[token].forbidden;
        let (hopeless, named) = (errors.is_permanent(), errors.iter().count());
        self.counts.permanent += u64::from(hopeless);
        let spare = self.servers.len() - self.quorum();
        self.check(named > spare, || {
            format!("client {c}: {token} failed, and only {named} nodes are named: {errors}")
        });
        self.check(!hopeless || forbidden.len() > spare, || {
            format!("client {c}: {token} is hopeless, but only {forbidden:?} do not permit it")
        });
    }

    /// A try that failed: its releases are written, behind its acquires.
    fn undone(&mut self, c: usize, token: usize, no: bool) {
        self.order += 1;
        self.tokens[token].freed = Some(self.order);
        let (quorum, history) = (self.quorum(), &self.tokens[token]);
        let answered = history.granted.or(history.denied).len();
        let mut wrong = None;
        if no && answered < quorum {
            wrong = Some(format!("no, but {answered} nodes have answered"));
        }
        for node in 0..self.servers.len() {
            let Some(sent) = history.set_sent[node] else {
                continue;
            };
            let behind = history.rel_sent[node] == Some(sent) || !self.connections[sent].is_open();
            if !behind && !history.denied.has(node) {
                wrong = Some(format!("the undo of {token} is not written to node {node}"));
            }
        }
        if let Some(wrong) = wrong {
            self.violated(format!("client {c}: {wrong}"));
        }
    }

    fn granted(&mut self, c: usize, thread: usize, token: usize, key: &Key, deadline: Deadline) {
        self.counts.granted += 1;
        let resource = self.tokens[token].resource;
        if let Some(excused) = self.excused.get_mut(usize::from(resource)) {
            *excused = false;
        }
        trace!(self, "client {c} thread {thread} holds {token}");
        let (quorum, all) = (self.quorum(), self.servers.len());
        let granted = self.tokens[token].granted.len();
        self.check(granted >= quorum, || {
            format!("client {c}: yes by {granted} nodes")
        });
        let now = self.clients[c].point(self.t);
        self.check(!deadline.remaining(now).is_zero(), || {
            format!("client {c}: granted after its validity")
        });
        // The first lock of a program lies on all nodes that are well, unless a quorum has granted it before
        // a slow one was asked.
        let well = self.conditions.faultless && !self.conditions.prompt;
        let asked = key.sent_to.and(NodeSet::first(all));
        self.check(!well || asked.len() == all, || {
            format!("client {c}: only {asked:?} of {all} nodes were asked")
        });
        let slot = key.kind.slot();
        let counts = &mut self.counts;
        match key.kind {
            Kind::Plain => {}
            Kind::Permit { .. } => counts.permits += 1,
            Kind::Read { .. } => counts.reads += 1,
            Kind::Write(_) => counts.writes += 1,
            Kind::Several(_) => counts.several += 1,
        }
        self.check(slot.is_some() == self.conditions.permits.is_some(), || {
            format!("client {c}: {token} has the slot {slot:?}")
        });
        self.beliefs.push(Belief {
            client: c,
            token,
            deadline,
            slot,
        });
        self.alone(c, token);
    }

    /// No other client believes to hold a lock on the same resource, or the same permit; or one of too many.
    fn alone(&mut self, c: usize, token: usize) {
        let resource = self.tokens[token].resource;
        let others = self.beliefs.iter().filter(|belief| {
            let now = self.clients[belief.client].point(self.t);
            let live = !belief.deadline.remaining(now).is_zero();
            live && belief.token != token && self.conflict(belief.token, token)
        });
        let own = self.beliefs.iter().find(|belief| belief.token == token);
        let own = own.and_then(|own| own.slot);
        let most = self.conditions.permits.map_or(0, |permits| permits - 1);
        let beyond = others.clone().nth(usize::from(most));
        let same_slot = |belief: &&Belief| belief.slot == own;
        let other = others.clone().find(same_slot).or(beyond);
        if let Some(other) = other.filter(|_| !self.lossy) {
            let what = format!(
                "clients {} ({}) and {c} ({token}) hold {resource}",
                other.client, other.token
            );
            self.violated(what);
        }
    }

    fn extended(
        &mut self,
        c: usize,
        thread: usize,
        mut held: Held,
        extension: Extension,
        answer: Answer,
    ) {
        let now = self.clients[c].point(self.t);
        let (quorum, all) = (self.quorum(), self.servers.len());
        let (yes, no) = (
            self.tokens[held.token].extended,
            self.tokens[held.token].not_held,
        );
        let valid = !held.lease.left(now).is_zero();
        match held.lease.extended(extension, answer, now) {
            Extended::Yes(repair) => {
                self.counts.extended += 1;
                self.check(yes.len() >= quorum, || {
                    format!("client {c}: extended by {yes:?}")
                });
                let token = held.token;
                self.check(valid, || {
                    format!("client {c}: {token} is extended after its deadline")
                });
                self.alone(c, token);
                let belief = self.beliefs.iter_mut().find(|one| one.token == token);
                if let Some(belief) = belief {
                    belief.deadline = held.lease.deadline;
                }
                // As a kept lock is: its holder does not wait for this.
                if let Some(repair) = repair {
                    self.counts.repairs += 1;
                    let refilled = &mut self.tokens[token].refilled;
                    *refilled = refilled.or(repair.nodes);
                    let op = held.lease.repair(repair, now);
                    self.submit(c, NO_THREAD, op);
                    if self.random.chance(30) {
                        return self.release(c, thread, held);
                    }
                }
            }
            Extended::Lost(_) => {
                self.counts.lost += 1;
                self.check(!valid || no.len() > all - quorum, || {
                    format!("client {c}: lost, but only {no:?} no longer hold it")
                });
                self.beliefs.retain(|belief| belief.token != held.token);
            }
            Extended::Unavailable(_) => {}
        }
        let until = self.t + self.hold();
        self.clients[c].threads[thread].doing = Doing::Holds(held, until);
    }

    // ---- the end

    /// All servers will close a client's connections, or forget the scripts, about when it releases its lock.
    fn forsake_about(&mut self, c: usize, until: u64) {
        if !self.conditions.forsaken {
            return;
        }
        let at = (until + self.random.below(MS / 2)).saturating_sub(self.random.below(15 * MS));
        self.at(at.max(self.t), Event::Forsake(c));
        // And again when what was not carried out is sent again, over the same connection or a new one.
        if self.random.chance(40) {
            let again = until + NODE_TIMEOUT + self.random.below(MS);
            self.at(again, Event::Forsake(c));
        }
        self.clients[c].unlucky = u32::try_from(self.random.below(3)).unwrap();
    }

    /// A lock that was released is on no node, though nothing followed.
    pub(super) fn is_gone(&mut self, token: usize) {
        let gone_by = self.clients[self.tokens[token].client].gone_by;
        if gone_by > self.t {
            return self.at(gone_by, Event::Gone(token));
        }
        for (node, server) in self.servers.iter().enumerate() {
            if server.locks(self.t).any(|lock| lock.1 == token) {
                let what = format!("node {node}: {token} is still there, and nothing follows");
                return self.violated(what);
            }
        }
    }

    pub(super) fn forsake(&mut self, c: usize) {
        // From the second time on new connections come after a pause.
        if std::mem::replace(&mut self.clients[c].forsaken, true) {
            self.clients[c].gone_by += 700 * MS;
        }
        if self.random.chance(25) {
            let long = 700 * MS;
            self.clients[c].gone_by += 2 * long;
            let node = self.random.pick(self.servers.len());
            self.servers[node].refuse_connections(self.t + long);
        }
        let all = self.random.chance(70);
        for node in 0..self.servers.len() {
            if self.random.chance(40) {
                self.servers[node].flush_scripts();
            }
            if all || self.random.chance(50) {
                self.cut_all(|one| one.client == c && one.node == node);
            }
        }
    }

    /// Nothing stands in a client's way any more, and it gives up what it holds.
    pub(super) fn calm(&mut self, c: usize) {
        for connection in &mut self.connections {
            connection.release(self.t);
        }
        self.at(self.t, Event::Wake(c));
    }

    /// One thread that has nothing to do takes and releases a lock without contention.
    pub(super) fn probe(&mut self, c: usize) {
        if self.clients[c].dead {
            return;
        }
        let stopped = |thread: &Thread| matches!(thread.doing, Doing::Stopped | Doing::Idle(_));
        let Some(thread) = self.clients[c].threads.iter().position(stopped) else {
            return;
        };
        let ttl = Ttl::new(Duration::from_secs(60)).unwrap();
        self.probes += 1;
        let resource = PROBED + u8::try_from(c).unwrap();
        self.acquire(c, thread, resource, ttl);
        self.pump(c);
    }

    /// A client is closed.
    pub(super) fn close_client(&mut self, c: usize) {
        if self.clients[c].dead {
            return;
        }
        let now = self.now(c);
        self.clients[c].core.close(now);
        self.clients[c].leader = Leader::Runs;
        self.announce(c);
        self.pump(c);
    }
}
