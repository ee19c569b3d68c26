//! A virtual process: its clocks, the driver of its core, and threads that use locks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::clocks::Clocks;
use super::kept::Keeping;
use super::network::Connection;
use super::server::commands;
use super::subscription::Listener;
use super::trouble::Trouble;
use super::waiting::{Call, Releasing};
use super::{
    Belief, CONNECT_TIMEOUT, Conditions, Count, Event, LONGEST, MARGIN, MS, NODE_TIMEOUT,
    RESOLUTION, Random, SLACK, TokenHistory, World, trace,
};
use crate::error::Cause;
use crate::prefix::Prefix;
use crate::protocol::core::{Core, Input};
use crate::protocol::event::Event as CoreEvent;
use crate::protocol::fence::{Fenced, Fencing};
use crate::protocol::guard::Guard;
use crate::protocol::held_here::HeldHere;
use crate::protocol::kind::Kind;
use crate::protocol::lease::{Extended, Extension, Lease};
use crate::protocol::means::{Delete, Means, Scripts};
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::next::{Next, Role};
use crate::protocol::node::Timeouts;
use crate::protocol::operation::{Answer, Op, Outcome};
use crate::protocol::queue::Channel;
use crate::protocol::quorum::{NodeSet, Ttl};
use crate::protocol::wait_queue::WaitQueues;
use crate::protocol::wire::Handshake;
use crate::protocol::witness::{Judged, Look, WITNESS, refused};
use crate::token::Token;

/// The number of resources that are locked. The other one is for when all is quiet.
pub(super) const RESOURCES: u8 = 2;
pub(super) const PROBED: u8 = 9;
/// In the place of a thread, where none waits for the operation.
pub(super) const NO_THREAD: usize = usize::MAX;
/// From here on: the threads for which others have submitted something.
pub(super) const HANDED_OFF: usize = 1000;

/// A token is its number.
pub(super) fn token_id(token: &Token) -> usize {
    let id = u64::from_le_bytes(token.as_bytes()[..8].try_into().unwrap());
    usize::try_from(id).unwrap()
}

pub(super) struct Client {
    core: Core<usize>,
    driver: Driver,
    forsaken: Forsaken,
    pub(super) threads: Vec<Thread>,
    /// The threads that wait, and the locks that are held here.
    pub(super) queues: WaitQueues<usize>,
    pub(super) held_here: HeldHere,
    pub(super) listeners: Vec<Listener>,
    /// It was killed.
    pub(super) dead: bool,
    pub(super) clocks: Clocks,
    /// When it is woken next.
    wake_at: u64,
}

/// What has the sockets and threads.
struct Driver {
    /// The connections of the leader or the worker, by node, and those that were just made.
    connections: Vec<Option<usize>>,
    fresh: Vec<Option<usize>>,
    leader: Task,
    /// By node.
    workers: Vec<Task>,
    confirmer: Task,
}

impl Driver {
    fn task(&mut self, role: Role) -> &mut Task {
        match role {
            Role::Leader => &mut self.leader,
            Role::Worker(node) => &mut self.workers[node],
            Role::Confirmer => &mut self.confirmer,
        }
    }

    fn tasks(&mut self) -> impl Iterator<Item = &mut Task> {
        let others = [&mut self.leader, &mut self.confirmer];
        others.into_iter().chain(&mut self.workers)
    }
}

/// Where nothing follows a release.
#[derive(Default)]
struct Forsaken {
    /// When the lock must be gone.
    gone_by: u64,
    /// The servers have closed its connections before.
    again: bool,
    /// How often new connections are closed.
    unlucky: u32,
    /// Servers refuse the keys beside its lock, and its release waits for their answers.
    narrow: bool,
}

/// What one of its threads does.
#[derive(Clone, PartialEq, Eq)]
enum Task {
    /// There is no such thread.
    None,
    Runs,
    Connects,
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
}

pub(super) enum Doing {
    Idle(u64),
    Acquires(Box<Call>),
    Holds(Held, u64),
    Extends(Held, Extension),
    Keeps(Keeping),
    /// Asks for a fencing token, since then.
    Fences(Held, Fencing, u64),
    Releases(Releasing),
    /// Leaves a lock for a time.
    Shortens(usize),
    Stopped,
}

impl Thread {
    /// The token of the lock that it has.
    pub(super) fn uses(&self) -> Option<usize> {
        match &self.doing {
            Doing::Holds(held, _) | Doing::Extends(held, _) | Doing::Fences(held, ..) => {
                Some(held.token)
            }
            Doing::Keeps(keeping) => Some(keeping.token()),
            Doing::Releases(releasing) => Some(releasing.token),
            _ => None,
        }
    }

    /// Its call that acquires a lock.
    pub(super) fn call(&self) -> Option<&Call> {
        match &self.doing {
            Doing::Acquires(call) => Some(call),
            Doing::Releases(releasing) => releasing.call.as_deref(),
            _ => None,
        }
    }
}

pub(super) struct Held {
    pub(super) token: usize,
    pub(super) lease: Lease,
}

/// A new connection whose server is looked at once more.
pub(super) struct LooksAgain {
    connection: usize,
    first: Look,
    /// It was flushed before the first look.
    flushed: bool,
    handshake: Handshake,
    since: u64,
    /// The witness is there.
    has_set: bool,
}

fn guard(nodes: usize) -> Guard {
    let times = [LONGEST, RESOLUTION, MARGIN].map(Duration::from_micros);
    Guard::new(times[0], nodes).shorter(times)
}

impl Client {
    /// The one of this number. `counters`: of the locks that are held here.
    pub(super) fn new(
        number: usize,
        nodes: usize,
        conditions: &Conditions,
        counters: usize,
        random: &mut Random,
    ) -> Client {
        let clocks = Clocks::new(random);
        let channel = Channel::new([u8::try_from(number).unwrap(); 16]);
        let node_timeout = Duration::from_micros(NODE_TIMEOUT);
        let rng = random.next();
        let guard = conditions.guarded.then(|| guard(nodes));
        let addresses = (0..nodes).map(|_| (Arc::from("x"), guard));
        let timeouts = Timeouts {
            node: node_timeout,
            connect: Duration::from_micros(CONNECT_TIMEOUT),
        };
        let threads = 1 + random.pick(if conditions.waits { 4 } else { 3 });
        Client {
            queues: WaitQueues::new(nodes, Some(channel), node_timeout, rng),
            held_here: HeldHere::new(counters),
            listeners: Vec::new(),
            dead: false,
            core: Core::new(
                addresses,
                timeouts,
                Prefix::default(),
                random.next(),
                clocks.start(),
            ),
            driver: Driver {
                connections: vec![None; nodes],
                fresh: vec![None; nodes],
                leader: Task::None,
                workers: vec![Task::None; nodes],
                confirmer: Task::None,
            },
            forsaken: Forsaken::default(),
            threads: (0..threads)
                .map(|_| Thread {
                    doing: Doing::Idle(random.below(30 * MS)),
                    acts: 0,
                    since: 0,
                })
                .collect(),
            clocks,
            wake_at: u64::MAX,
        }
    }

    /// It is killed.
    pub(super) fn die(&mut self) {
        self.dead = true;
        self.driver.tasks().for_each(|task| *task = Task::None);
        self.listeners.clear();
        for thread in &mut self.threads {
            thread.doing = Doing::Stopped;
        }
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
        let driver = &self.driver;
        let has_worker = driver.workers.iter().any(|one| *one != Task::None);
        let leads = !matches!(driver.leader, Task::None | Task::Runs);
        let confirms = driver.confirmer != Task::None;
        let has_worker = has_worker.then(|| "a worker is left".to_owned());
        let confirms = confirms.then(|| "a thread still confirms".to_owned());
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
            let stands = self.clients[c].clocks.stands_until;
            if stands > self.t {
                return self.wake(c, stands);
            }
            let mut busy = self.drive(c, Role::Leader);
            for node in 0..self.servers.len() {
                busy |= self.drive(c, Role::Worker(node));
            }
            busy |= self.drive(c, Role::Confirmer);
            busy |= self.listen_all(c);
            for thread in 0..self.clients[c].threads.len() {
                busy |= self.act(c, thread);
            }
            if !busy || self.checks.wrong.is_some() {
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
        self.clients[c].clocks.point(self.t).mono
    }

    /// Whether a time has come; otherwise it is woken then.
    fn has_come(&mut self, c: usize, at: Instant) -> bool {
        if self.now(c) >= at {
            return true;
        }
        let at = self.clients[c].clocks.time(at);
        self.wake(c, at);
        false
    }

    /// Wakes the threads that wait for news when there is any, and counts what happened.
    fn announce(&mut self, c: usize) {
        let client = &mut self.clients[c];
        if std::mem::take(&mut client.core.news) {
            let waits = |task: &&mut Task| matches!(task, Task::Waits(_));
            let waiting = client.driver.tasks().filter(waits);
            waiting.for_each(|task| *task = Task::Runs);
        }
        for event in client.core.events.take() {
            match event {
                (_, CoreEvent::Back(..), _) => self.counts[Count::Reconnected] += 1,
                (_, CoreEvent::Quarantined(_), _) => self.counts[Count::Quarantined] += 1,
                _ => {}
            }
        }
        for (thread, answer) in std::mem::take(&mut self.clients[c].core.answers) {
            self.answered(c, thread, answer);
        }
    }

    // ---- the driver

    /// What a thread of the driver does.
    fn drive(&mut self, c: usize, role: Role) -> bool {
        match *self.clients[c].driver.task(role) {
            Task::None | Task::Connects => return false,
            Task::Runs => {}
            Task::Writes(_, at) if at > self.t => {
                self.wake(c, at);
                return false;
            }
            Task::Writes(ref mut parts, ref mut at) => {
                if let Some((node, bytes)) = parts.pop_front() {
                    if !self.conditions.faultless && self.random.chance(10) {
                        *at = self.t + self.random.below(3 * MS);
                    }
                    if let Err(cause) = self.write(c, node, &bytes) {
                        let now = self.now(c);
                        let failed = Input::Sent(Err(cause));
                        self.clients[c].core.input(node, failed, now);
                    }
                    self.announce(c);
                    return true;
                }
            }
            Task::Waits(until) => {
                if !self.has_come(c, until) {
                    return false;
                }
            }
            Task::Recv(node, until) => {
                let connection = self.clients[c].driver.connections[node];
                if !self.can_read(connection) {
                    if !self.has_come(c, until) {
                        return false;
                    }
                    let may_stand = role == Role::Leader && !self.conditions.faultless;
                    if may_stand && !self.quiet && self.random.chance(1) {
                        // Between the read and what follows.
                        let until = self.t + self.random.below(80 * MS);
                        self.clients[c].clocks.freeze(until);
                        *self.clients[c].driver.task(role) = Task::ReadNothing(node);
                        return true;
                    }
                }
                self.recv(c, node);
            }
            Task::ReadNothing(node) => {
                let now = self.now(c);
                let nothing = Input::Received(Ok(&[]));
                self.clients[c].core.input(node, nothing, now);
                self.announce(c);
            }
        }
        self.go(c, role);
        true
    }

    fn go(&mut self, c: usize, role: Role) {
        let now = self.now(c);
        let next = self.clients[c].core.next(role, now);
        trace!(self, "client {c}, {role:?}: {next:?}");
        *self.clients[c].driver.task(role) = Task::Runs;
        self.carry_out(c, role, next, now);
        self.announce(c);
    }

    /// What the core has returned.
    fn carry_out(&mut self, c: usize, role: Role, next: Next, now: Instant) {
        let driver = &mut self.clients[c].driver;
        match next {
            Next::StartWorker { node } => {
                if let Some(old) = driver.connections[node].take() {
                    self.give_up(old, true);
                }
                self.start_worker(c, node, now);
            }
            Next::HandOver { node } => {
                self.counts[Count::Unresponsive] += 1;
                self.start_worker(c, node, now);
            }
            Next::StartConfirmer => {
                driver.confirmer = Task::Runs;
                self.go(c, role);
            }
            Next::Connect { node } => self.connect(c, node),
            Next::Adopt { node } => {
                let fresh = driver.fresh[node].take();
                if let Some(old) = std::mem::replace(&mut driver.connections[node], fresh) {
                    self.counts[Count::Replaced] += 1;
                    self.give_up(old, !mutant(Mutant::CloseWithoutReset));
                }
            }
            Next::Send { nodes, .. } => self.send_to(c, role, nodes, now),
            Next::Recv { node, until } => *driver.task(role) = Task::Recv(node, until),
            Next::Wait { until } => *driver.task(role) = Task::Waits(until),
            Next::Lead if driver.leader == Task::None => {
                driver.leader = Task::Runs;
                self.counts[Count::ConfirmProbes] += 1;
            }
            Next::Lead => driver.confirmer = Task::Waits(now + Duration::from_millis(1)),
            Next::Ask { .. } => unreachable!("no server here is named by a directory"),
            Next::Reconnected | Next::Finished => {
                *driver.task(role) = Task::None;
                if let Role::Worker(node) = role
                    && let Some(fresh) = driver.fresh[node].take()
                {
                    self.give_up(fresh, false);
                }
            }
        }
    }

    fn start_worker(&mut self, c: usize, node: usize, now: Instant) {
        let client = &mut self.clients[c];
        client.driver.workers[node] = Task::Runs;
        client.core.input(node, Input::Started(Ok(())), now);
    }

    fn send_to(&mut self, c: usize, role: Role, mut nodes: NodeSet, now: Instant) {
        let (mut parts, mut bytes) = (VecDeque::new(), Vec::new());
        let core = &mut self.clients[c].core;
        while let Some(node) = core.output(&mut nodes, &mut bytes, now) {
            parts.push_back((node, std::mem::take(&mut bytes)));
        }
        // Which one is nearest is not simulated.
        parts.make_contiguous().sort_unstable();
        if role == Role::Leader {
            self.clients[c].driver.leader = Task::Writes(parts, self.t);
            return;
        }
        for (node, bytes) in parts {
            let sent = Input::Sent(self.write(c, node, &bytes));
            self.clients[c].core.input(node, sent, now);
        }
    }

    fn connect(&mut self, c: usize, node: usize) {
        if self.clients[c].driver.connections[node].is_none() {
            self.clients[c].driver.workers[node] = Task::Connects;
        }
        let refused = self.servers[node].has(Trouble::RefusesConnections, self.t);
        let luck = self.conditions.faultless || self.quiet || !self.random.chance(10);
        let at = self.t + self.delay(node) + self.delay(node);
        let (client, well) = (c, !refused && luck);
        self.at(at, Event::Connected { client, node, well });
    }

    fn can_read(&self, connection: Option<usize>) -> bool {
        connection.is_none_or(|connection| {
            let connection = &self.net.connections[connection];
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
        let received = match self.clients[c].driver.connections[node] {
            Some(connection) => self.net.connections[connection].recv(part),
            None => Err(Cause::Closed("there is none".into())),
        };
        let received = received.as_ref().map_err(Cause::clone);
        let received = received.map(|bytes| &bytes[..]);
        let received = Input::Received(received);
        self.clients[c].core.input(node, received, now);
        self.announce(c);
    }

    fn write(&mut self, c: usize, node: usize, bytes: &[u8]) -> Result<(), Cause> {
        let Some(connection) = self.clients[c].driver.connections[node] else {
            self.violated(format!(
                "client {c} writes to node {node} without a connection"
            ));
            return Ok(());
        };
        commands(bytes, |set, token| {
            trace!(
                self,
                "    client {c} writes to {node} over {connection}: set {set} {token}"
            );
            let history = &mut self.checks.tokens[token];
            let sent = if set {
                &mut history.set_sent
            } else {
                &mut history.rel_sent
            };
            sent[node] = Some(connection);
        });
        self.send(connection, bytes)
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
        let later = paused.max(self.clients[c].clocks.stands_until);
        if well && later > self.t {
            // A connection that takes too long has failed.
            let late = later > self.t + CONNECT_TIMEOUT;
            let at = later.min(self.t + CONNECT_TIMEOUT);
            let (client, well) = (c, !late);
            return self.at(at, Event::Connected { client, node, well });
        }
        let (fresh, result) = self.shake_hands(c, node, well);
        let (Some(connection), Ok(mut handshake), true) =
            (fresh, result.clone(), self.conditions.guarded)
        else {
            return self.has_connected(c, node, fresh, result);
        };
        let (first, flushed) =
            self.servers[node].look_at(self.net.connections[connection].instance, self.t);
        match first.judge(guard(self.servers.len()).seasoned()) {
            Judged::Fits(witness, _) => {
                handshake.witness = Some(witness);
                self.has_connected(c, node, fresh, Ok(handshake));
            }
            Judged::LookAgain(first) => {
                self.counts[Count::SecondLooks] += 1;
                let since = self.t;
                let at = self.t + self.delay(node) + self.delay(node);
                self.at(at, Event::LookAgain(self.net.looks.len()));
                self.net.looks.push(LooksAgain {
                    connection,
                    first,
                    flushed,
                    handshake,
                    since,
                    has_set: false,
                });
                if self.conditions.is_fragile() && self.random.chance(20) {
                    let at = self.t + self.random.below(300);
                    self.at(at, Event::Change(node));
                }
            }
        }
    }

    /// The witness is set, and what is there is looked at again.
    pub(super) fn look_again(&mut self, at: usize) {
        let looks = &self.net.looks[at];
        let (connection, since) = (looks.connection, looks.since);
        let Connection {
            client: c,
            node,
            instance,
            ..
        } = self.net.connections[connection];
        if self.clients[c].dead {
            return;
        }
        let paused = self.servers[node].is_paused(self.t).unwrap_or(0);
        let later = paused.max(self.clients[c].clocks.stands_until);
        let late = later.max(self.t) > since + CONNECT_TIMEOUT;
        if later > self.t && !late {
            return self.at(later, Event::LookAgain(at));
        }
        if !self.net.connections[connection].is_open() || late {
            let closed = Err(Cause::Closed("while it was set up".into()));
            return self.has_connected(c, node, Some(connection), closed);
        }
        let looks = &self.net.looks[at];
        let (first, before, mut handshake) =
            (looks.first.clone(), looks.flushed, looks.handshake.clone());
        let set = first.set_witness(WITNESS, self.random.next());
        let sets = !std::mem::replace(&mut self.net.looks[at].has_set, true);
        if let Some(set) = set.filter(|_| sets)
            && let Err(refused) = self.set_witness(connection, &set)
        {
            return self.has_connected(c, node, Some(connection), Err(refused));
        }
        // It may read the rest in another turn.
        if sets && self.random.chance(20) {
            let long = self.conditions.is_fragile() && self.random.chance(50);
            // Long enough for the witness to be old, and for another server to be the master meanwhile.
            let long = if long { 400 * MS } else { 0 };
            let later = self.t + self.delay(node) + self.random.below(long + 1);
            return self.at(later, Event::LookAgain(at));
        }
        if self.servers[node].instances[instance].is_replica {
            return self.has_connected(c, node, Some(connection), Err(Cause::Replica(None)));
        }
        let (second, flushed) = self.servers[node].look_at(instance, self.t);
        let flushed = match mutant(Mutant::CalmReadFirst) {
            true => before,
            false => flushed,
        };
        let uptime = self.uptime(node, instance);
        handshake.uptime = Some((uptime, self.now(c)));
        let witness = first.and(second, flushed);
        let result = witness.map(|witness| Handshake {
            witness: Some(witness),
            ..handshake
        });
        self.has_connected(c, node, Some(connection), result);
    }

    fn set_witness(&mut self, connection: usize, set: &[Vec<u8>]) -> Result<(), Cause> {
        let Connection { node, instance, .. } = self.net.connections[connection];
        let set: Vec<&[u8]> = set.iter().map(Vec::as_slice).collect();
        let asked = std::mem::replace(&mut self.servers[node].asked, instance);
        self.servers[node].demoted = self.net.connections[connection].demoted;
        let reply = self.ask(node, &set, None);
        self.servers[node].asked = asked;
        match reply.strip_prefix(b"-") {
            // Here a user may soon do again what is not permitted.
            Some(text) if text.starts_with(b"NOPERM") => Err(Cause::Connect("refused".into())),
            Some(text) => Err(refused(&String::from_utf8_lossy(text))),
            None => Ok(()),
        }
    }

    fn uptime(&mut self, node: usize, instance: usize) -> Duration {
        let server = &mut self.servers[node];
        let asked = std::mem::replace(&mut server.asked, instance);
        let uptime = server.uptime(self.t, &mut self.random);
        server.asked = asked;
        Duration::from_micros(uptime)
    }

    fn has_connected(
        &mut self,
        c: usize,
        node: usize,
        fresh: Option<usize>,
        result: Result<Handshake, Cause>,
    ) {
        let well = result.is_ok();
        trace!(self, "client {c} has connected {node}: {result:?}");
        let now = self.now(c);
        let released = self.conditions.is_forsaken() && self.clients[c].forsaken.gone_by > self.t;
        if released && well && self.clients[c].forsaken.unlucky > 0 {
            self.clients[c].forsaken.unlucky -= 1;
            let at = self.t + self.random.below(400);
            self.at(at, Event::Forsake(c));
        }
        if self.clients[c].core.connected(node, result, now) {
            self.clients[c].driver.fresh[node] = fresh;
        } else if let Some(fresh) = fresh {
            self.give_up(fresh, false);
        }
        let worker = &mut self.clients[c].driver.workers[node];
        if *worker == Task::Connects {
            *worker = Task::Runs;
        }
        self.announce(c);
        self.pump(c);
    }

    /// A new connection, and what its server reports.
    fn shake_hands(
        &mut self,
        c: usize,
        node: usize,
        well: bool,
    ) -> (Option<usize>, Result<Handshake, Cause>) {
        let mut fresh = None;
        let result = if well && self.servers[node].has(Trouble::Replica, self.t) {
            Err(Cause::Replica(None))
        } else if well {
            let instance = self.servers[node].resolve(&mut self.random);
            self.net
                .connections
                .push(Connection::new(c, node, instance));
            let connection = self.net.connections.len() - 1;
            trace!(
                self,
                "connection {connection}: client {c}, node {node}, {instance}"
            );
            fresh = Some(connection);
            let by_hash = self.random.chance(70);
            if by_hash {
                self.servers[node].instances[instance].store.load_scripts();
            }
            let uptime = self.uptime(node, instance);
            Ok(Handshake {
                means: self.random_means(node, by_hash),
                run_id: Some(self.servers[node].run_id(node, instance)),
                uptime: Some((uptime, self.now(c))),
                by_record: self.conditions.by_record,
                ..Handshake::default()
            })
        } else {
            Err(Cause::Connect("refused".into()))
        };
        (fresh, result)
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
        if let Task::None | Task::Waits(_) = client.driver.leader {
            client.driver.leader = Task::Runs;
        }
        self.announce(c);
    }

    pub(super) fn begin(&mut self, c: usize, thread: usize) {
        self.clients[c].threads[thread].since = self.t;
    }

    pub(super) fn draw(&mut self, c: usize, resource: u8) -> Token {
        let id = self.checks.tokens.len();
        self.order += 1;
        self.checks.tokens.push(TokenHistory {
            client: c,
            resource,
            drawn: self.order,
            ..TokenHistory::default()
        });
        let mut bytes = [0; 20];
        bytes[..8].copy_from_slice(&(id as u64).to_le_bytes());
        Token::from_bytes(bytes)
    }

    /// What the thread does next, if it waits for nothing.
    fn act(&mut self, c: usize, thread: usize) -> bool {
        let due = match &self.clients[c].threads[thread].doing {
            Doing::Idle(until) | Doing::Holds(_, until) => Some(*until),
            Doing::Acquires(call) => call.due(),
            Doing::Keeps(keeping) => keeping.wakes(&self.clients[c]),
            _ => None,
        };
        let Some(due) = due else {
            return false;
        };
        if due > self.t {
            self.wake(c, due);
            return false;
        }
        let stopped = Doing::Stopped;
        match std::mem::replace(&mut self.clients[c].threads[thread].doing, stopped) {
            Doing::Acquires(call) => self.go_on(c, thread, call),
            Doing::Keeps(keeping) => self.keep(c, thread, keeping),
            Doing::Holds(held, _) => self.use_lock(c, thread, held),
            _ => {
                self.clients[c].threads[thread].acts += 1;
                let most = match self.conditions.waits {
                    true if self.conditions.sluggish => 20,
                    true => 5,
                    false if self.conditions.is_fragile() => 100,
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
                    self.try_once(c, thread, resource, ttl);
                }
            }
        }
        true
    }

    /// How long a thread has a lock before it does something.
    pub(super) fn hold(&mut self) -> u64 {
        if self.conditions.is_fragile() && self.random.chance(60) {
            return self.random.below(LONGEST * 5 / 4);
        }
        let long = if self.conditions.sluggish || self.conditions.waits && self.random.chance(50) {
            3
        } else {
            40
        };
        self.random.below(long * MS)
    }

    /// How long a thread wants nothing.
    pub(super) fn rest(&mut self) -> u64 {
        if self.conditions.is_fragile() {
            return self.random.below(5 * MS);
        }
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
            false if self.conditions.is_fragile() && self.random.chance(50) => LONGEST / MS,
            false if self.conditions.guarded => 20 + self.random.below(LONGEST / MS - 19),
            false => 20 + self.random.below(150),
        };
        Ttl::new(Duration::from_millis(ms)).unwrap()
    }

    /// What a client holds it uses within this time: it extends most of them.
    pub(super) fn hurry(&mut self, c: usize, within: u64) {
        let soon = self.t + self.random.below(within + 1);
        for thread in &mut self.clients[c].threads {
            if let Doing::Holds(_, until) = &mut thread.doing {
                *until = soon.min(*until);
            }
        }
        self.wake(c, soon);
    }

    fn use_lock(&mut self, c: usize, thread: usize, held: Held) {
        self.begin(c, thread);
        let now = self.clients[c].clocks.point(self.t);
        let valid = !held.lease.left(now).is_zero();
        let choices = match self.conditions.prompt || self.conditions.is_forsaken() {
            _ if self.quiet => 5,
            // Where order and promptness count, locks are not held for long.
            true => 12,
            false => 14,
        };
        let choice = match self.conditions.is_fragile() && !self.quiet && self.random.chance(60) {
            true => 6,
            false => self.random.below(choices),
        };
        // One that is due is renewed before it is kept.
        if choice >= 12 && valid && !held.lease.is_due(now) {
            return self.begin_to_keep(c, thread, held);
        }
        if choice >= 10 && valid {
            self.order += 1;
            let since = self.order;
            let mut fencing = Fencing::with_lead(Duration::from_micros(LONGEST / 2));
            let fenced = fencing.next(&held.lease, now);
            return self.fence(c, thread, (held, fencing, since), fenced);
        }
        if choice >= 6 && valid {
            let ttl = self.ttl(50);
            let (extension, op) = held.lease.extension(ttl, now);
            self.checks.tokens[held.token].on.extended = NodeSet::EMPTY;
            self.clients[c].threads[thread].doing = Doing::Extends(held, extension);
            return self.submit(c, thread, op);
        }
        if choice != 5 || self.conditions.prompt {
            return self.release(c, thread, held);
        }
        self.leave(c, thread, held);
    }

    fn fence(
        &mut self,
        c: usize,
        thread: usize,
        (held, fencing, since): (Held, Fencing, u64),
        fenced: Fenced,
    ) {
        match fenced {
            Fenced::Ask(op) => {
                self.begin(c, thread);
                self.clients[c].threads[thread].doing = Doing::Fences(held, fencing, since);
                return self.submit(c, thread, op);
            }
            Fenced::Token(number) => self.fenced(c, &held, number, since),
            Fenced::Lost => self.checks.tokens[held.token].belief = None,
            Fenced::Unavailable(_) => {}
        }
        let until = self.t + self.hold();
        self.clients[c].threads[thread].doing = Doing::Holds(held, until);
    }

    /// Numbers are distinct, and larger than all that were given out before this one was asked for.
    fn fenced(&mut self, c: usize, held: &Held, number: u64, since: u64) {
        self.counts[Count::Fenced] += 1;
        let now = self.clients[c].clocks.point(self.t);
        self.check(!held.lease.left(now).is_zero(), || {
            format!("client {c}: {number} was given out after the deadline")
        });
        let resource = self.checks.tokens[held.token].resource;
        let wrong = self.checks.fences.iter().find(|(of, token, other, at)| {
            *of == resource
                && *token != held.token
                && (*other == number || *at < since && *other > number)
        });
        let wrong = wrong
            .copied()
            .filter(|_| !self.checks.lossy && !self.checks.uncounted);
        self.check(wrong.is_none(), || {
            format!("client {c}: {number} of {} after {wrong:?}", held.token)
        });
        self.order += 1;
        self.checks
            .fences
            .push((resource, held.token, number, self.order));
    }

    pub(super) fn release(&mut self, c: usize, thread: usize, held: Held) {
        let now = self.clients[c].clocks.point(self.t);
        let valid = !held.lease.left(now).is_zero();
        self.checks.tokens[held.token].belief = None;
        if self.conditions.is_forsaken() {
            self.clients[c].forsaken.gone_by += self.t + 2 * NODE_TIMEOUT + SLACK;
            self.at(self.clients[c].forsaken.gone_by, Event::Gone(held.token));
        }
        let narrow = self.clients[c].forsaken.narrow && valid;
        let only_write =
            self.random.chance(40) || !valid || self.conditions.is_forsaken() && !narrow;
        self.give_back(c, thread, held, only_write, None);
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
            Doing::Acquires(call) => self.call_answered(c, thread, call, answer),
            Doing::Extends(held, extension) => {
                self.in_time(c, thread, 2 * NODE_TIMEOUT);
                self.extended(c, thread, held, extension, answer);
            }
            Doing::Fences(held, mut fencing, since) => {
                self.in_time(c, thread, 2 * NODE_TIMEOUT);
                let now = self.clients[c].clocks.point(self.t);
                let fenced = fencing.answered(answer, &held.lease, now);
                self.fence(c, thread, (held, fencing, since), fenced);
            }
            Doing::Keeps(keeping) => self.renewed(c, thread, keeping, answer),
            Doing::Shortens(token) => self.shortened(c, thread, token, &answer),
            Doing::Releases(releasing) => self.given_back(c, thread, releasing, answer),
            _ => self.violated(format!("client {c}: an answer without a caller")),
        }
    }

    /// An operation ends within its time, unless the process stood still.
    pub(super) fn in_time(&mut self, c: usize, thread: usize, bound: u64) {
        let thread = &self.clients[c].threads[thread];
        let client = &self.clients[c];
        let stood = client.clocks.stands_until > thread.since;
        // Then it was one of those that wait for first connections.
        let first = client.core.majority_at().is_none_or(|at| {
            let at = client.clocks.time(at);
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

    /// A try has enough answers; if it failed, its releases are written behind it.
    pub(super) fn try_is_sound(&mut self, c: usize, token: usize, answer: &Answer) {
        let (votes, quorum) = (answer.tally, self.quorum());
        let no = matches!(answer.outcome, Outcome::No);
        self.check(
            !no || votes.granted.len() + votes.refused.len() >= quorum,
            || format!("client {c}: no with fewer than {quorum} answers"),
        );
        if !matches!(answer.outcome, Outcome::Yes(_)) {
            self.undone(c, token, no);
        }
        self.is_hopeless(c, token, &answer.outcome);
    }

    /// A release returns what the nodes have answered.
    pub(super) fn released(&mut self, c: usize, token: usize, only_write: bool, outcome: &Outcome) {
        let (quorum, all) = (self.quorum(), self.servers.len());
        let on = &self.checks.tokens[token].on;
        let (told, gone) = (on.rel, on.not_held);
        let right = match outcome {
            _ if only_write => true,
            Outcome::Yes(_) => told.len() >= quorum,
            Outcome::No => gone.len() > all - quorum,
            Outcome::Unavailable { .. } => {
                !self.conditions.faultless || self.clients[c].clocks.has_hung()
            }
        };
        self.check(right, || {
            format!("client {c}: the release of {token} met {told:?}, of which {gone:?} had none")
        });
    }

    /// An acquire fails for good only if servers refuse that leave no quorum.
    fn is_hopeless(&mut self, c: usize, token: usize, outcome: &Outcome) {
        let Outcome::Unavailable {
            errors,
            closed,
            useless,
        } = outcome
        else {
            return;
        };
        let forbidden = self.checks.tokens[token].on.forbidden;
        let (hopeless, named) = (errors.is_permanent(), errors.iter().count());
        self.counts[Count::Permanent] += u64::from(hopeless);
        let spare = self.servers.len() - self.quorum();
        self.check(named > spare || *closed || *useless, || {
            format!("client {c}: {token} failed, and only {named} nodes are named: {errors}")
        });
        self.check(!hopeless || forbidden.len() > spare, || {
            format!("client {c}: {token} is hopeless, but only {forbidden:?} do not permit it")
        });
    }

    /// A try that failed: its releases are written, behind its acquires.
    fn undone(&mut self, c: usize, token: usize, no: bool) {
        self.order += 1;
        self.checks.tokens[token].freed = Some(self.order);
        let (quorum, history) = (self.quorum(), &self.checks.tokens[token]);
        let answered = history.on.granted.or(history.on.denied).len();
        let mut wrong = None;
        if no && answered < quorum {
            wrong = Some(format!("no, but {answered} nodes have answered"));
        }
        for node in 0..self.servers.len() {
            let Some(sent) = history.set_sent[node] else {
                continue;
            };
            let behind =
                history.rel_sent[node] == Some(sent) || !self.net.connections[sent].is_open();
            if !behind && !history.on.denied.has(node) {
                wrong = Some(format!("the undo of {token} is not written to node {node}"));
            }
        }
        if let Some(wrong) = wrong {
            self.violated(format!("client {c}: {wrong}"));
        }
    }

    pub(super) fn granted(&mut self, c: usize, thread: usize, token: usize, lease: &Lease) {
        self.counts[Count::Granted] += 1;
        let resource = self.checks.tokens[token].resource;
        if let Some(idle) = self.checks.idle.get_mut(usize::from(resource)) {
            idle.excused = false;
        }
        trace!(self, "client {c} thread {thread} holds {token}");
        let (quorum, all) = (self.quorum(), self.servers.len());
        let granted = self.checks.tokens[token].on.granted.len();
        self.check(granted >= quorum, || {
            format!("client {c}: yes by {granted} nodes")
        });
        let (now, key) = (self.clients[c].clocks.point(self.t), &lease.key);
        self.check(!lease.deadline.remaining(now).is_zero(), || {
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
        let count = match key.kind {
            Kind::Plain | Kind::Stray(_) => None,
            Kind::Permit { .. } => Some(Count::Permits),
            Kind::Read { .. } => Some(Count::Reads),
            Kind::Write(_) => Some(Count::Writes),
            Kind::Several { .. } => Some(Count::Several),
        };
        if let Some(count) = count {
            self.counts[count] += 1;
        }
        self.check(
            slot.is_some() == self.conditions.permits().is_some(),
            || format!("client {c}: {token} has the slot {slot:?}"),
        );
        let deadline = lease.deadline;
        self.checks.tokens[token].belief = Some(Belief { deadline, slot });
        self.alone(c, token);
    }

    /// No other client believes to hold a lock on the same resource, or the same permit; or one of too many.
    fn alone(&mut self, c: usize, token: usize) {
        let resource = self.checks.tokens[token].resource;
        let tokens = &self.checks.tokens;
        let slot = |token: usize| tokens[token].belief.as_ref().and_then(|one| one.slot);
        let is_live = |other: &usize| {
            tokens[*other].belief.as_ref().is_some_and(|belief| {
                let now = self.clients[tokens[*other].client].clocks.point(self.t);
                !belief.deadline.remaining(now).is_zero()
            })
        };
        let conflicts = |other: &usize| *other != token && self.conflict(*other, token);
        let others = (0..tokens.len()).filter(is_live).filter(conflicts);
        let most = self.conditions.permits().map_or(0, |permits| permits - 1);
        let beyond = others.clone().nth(usize::from(most));
        let same_slot = others.clone().find(|other| slot(*other) == slot(token));
        if let Some(other) = same_slot.or(beyond).filter(|_| !self.checks.lossy) {
            let client = tokens[other].client;
            let what = format!("clients {client} ({other}) and {c} ({token}) hold {resource}");
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
        let now = self.clients[c].clocks.point(self.t);
        let valid = !held.lease.left(now).is_zero();
        match held.lease.extended(extension, answer, now) {
            Extended::Yes(repair) => {
                self.is_extended(c, &held, valid);
                // As a kept lock is: its holder does not wait for this.
                if let Some(op) = repair {
                    self.repairs(c, held.token, op);
                    if self.random.chance(30) {
                        let may_leave = !self.quiet && !self.conditions.prompt;
                        return match may_leave && self.random.chance(30) {
                            true => self.leave(c, thread, held),
                            false => self.release(c, thread, held),
                        };
                    }
                }
            }
            Extended::Lost(_) => {
                self.is_lost(c, held.token, valid);
                self.check(held.lease.left(now).is_zero(), || {
                    format!("client {c}: {} is lost, and still valid", held.token)
                });
            }
            Extended::Unavailable(_) => {}
        }
        let until = self.t + self.hold();
        self.clients[c].threads[thread].doing = Doing::Holds(held, until);
    }

    /// A quorum has extended it. `valid`: before the old deadline.
    pub(super) fn is_extended(&mut self, c: usize, held: &Held, valid: bool) {
        self.counts[Count::Extended] += 1;
        let (token, quorum) = (held.token, self.quorum());
        let yes = self.checks.tokens[token].on.extended;
        self.check(yes.len() >= quorum, || {
            format!("client {c}: extended by {yes:?}")
        });
        self.check(valid, || {
            format!("client {c}: {token} is extended after its deadline")
        });
        self.alone(c, token);
        if let Some(belief) = &mut self.checks.tokens[token].belief {
            let before = std::mem::replace(&mut belief.deadline, held.lease.deadline);
            let now = self.clients[c].clocks.point(self.t);
            let shortens = before.is_later(held.lease.deadline, now);
            self.check(!shortens, || {
                format!("client {c}: {token} is valid for less after its extension")
            });
        }
    }

    pub(super) fn repairs(&mut self, c: usize, token: usize, op: Op) {
        self.refills(token, &op);
        self.submit(c, NO_THREAD, op);
    }

    pub(super) fn refills(&mut self, token: usize, op: &Op) {
        self.counts[Count::Repairs] += 1;
        let refilled = &mut self.checks.tokens[token].on.refilled;
        *refilled = refilled.or(op.nodes);
    }

    /// Its holder has learned that. `valid`: before the deadline.
    pub(super) fn is_lost(&mut self, c: usize, token: usize, valid: bool) {
        self.counts[Count::Lost] += 1;
        let no = self.checks.tokens[token].on.not_held;
        let spare = self.servers.len() - self.quorum();
        self.check(!valid || no.len() > spare, || {
            format!("client {c}: lost, but only {no:?} no longer hold it")
        });
        self.checks.tokens[token].belief = None;
    }

    // ---- the end

    /// All servers will close a client's connections, or forget the scripts, about when it releases its lock.
    pub(super) fn forsake_about(&mut self, c: usize, until: u64) {
        if !self.conditions.is_forsaken() {
            return;
        }
        // Only the first lock: a server that has refused such keys before is not asked for them again.
        self.clients[c].forsaken.narrow = self.t < 10 * MS
            && self.random.chance(30)
            && !self.servers.iter().any(|one| one.runs_no_scripts);
        if self.clients[c].forsaken.narrow {
            return self.narrow();
        }
        let at = (until + self.random.below(MS / 2)).saturating_sub(self.random.below(15 * MS));
        self.at(at.max(self.t), Event::Forsake(c));
        // And again when what was not carried out is sent again, over the same connection or a new one.
        if self.random.chance(40) {
            let again = until + NODE_TIMEOUT + self.random.below(MS);
            self.at(again, Event::Forsake(c));
        }
        self.clients[c].forsaken.unlucky = u32::try_from(self.random.below(3)).unwrap();
    }

    /// A client loses the right to the keys beside its lock, on at least one node of each majority: so at least one refusal is
    /// read before its release is over. (Where that is the only one, and the last reply, no one reads it: the key stays until
    /// the next operation.)
    fn narrow(&mut self) {
        let until = self.t + 20_000 * MS;
        let spared = self.random.pick(self.quorum());
        let first = self.random.pick(self.servers.len());
        let count = self.servers.len() - spared;
        for at in first..first + count {
            let node = at % self.servers.len();
            self.servers[node].begin(Trouble::ForbidsQueues, until);
        }
    }

    /// A lock that was released is on no node, though nothing followed.
    pub(super) fn is_gone(&mut self, token: usize) {
        let gone_by = self.clients[self.checks.tokens[token].client]
            .forsaken
            .gone_by;
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
        if std::mem::replace(&mut self.clients[c].forsaken.again, true) {
            self.clients[c].forsaken.gone_by += 700 * MS;
        }
        if self.random.chance(25) {
            let long = 700 * MS;
            self.clients[c].forsaken.gone_by += 2 * long;
            let node = self.random.pick(self.servers.len());
            self.servers[node].begin(Trouble::RefusesConnections, self.t + long);
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
        for connection in &mut self.net.connections {
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
        self.checks.probes += 1;
        let resource = PROBED + u8::try_from(c).unwrap();
        self.try_once(c, thread, resource, ttl);
        self.pump(c);
    }

    /// A client is closed.
    pub(super) fn close_client(&mut self, c: usize) {
        if self.clients[c].dead {
            return;
        }
        let now = self.now(c);
        self.clients[c].core.close(now);
        self.clients[c].driver.leader = Task::Runs;
        self.announce(c);
        self.pump(c);
    }
}
