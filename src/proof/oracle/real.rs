//! The real code of all clients, and the servers that they use: a driver without sockets, threads and clocks.

use std::collections::VecDeque;
use std::ops::ControlFlow::Break;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::lease::Lease;
use super::lease::named::{Seen, SeenClient};
use crate::errors::cause::Cause;
use crate::proof::fixtures::{MS, later};
use crate::protocol::commands::action::{Action, Key, Notify};
use crate::protocol::node::node::Timeouts;
use crate::protocol::node::outgoing::Outgoing;
use crate::protocol::node::restart_guard::RestartGuard;
use crate::protocol::node::server_properties::ServerProperties;
use crate::protocol::quorum::attempt::{Attempt, Tried};
use crate::protocol::quorum::core::{Core, Input};
use crate::protocol::quorum::op::Op;
use crate::protocol::quorum::thread_step::{ThreadRole, ThreadStep};
use crate::testing::store::request::parse;
use crate::testing::store::{Store, StoredValue};
use crate::values::arithmetic::{Deadline, Ttl};
use crate::values::clock::Point;
use crate::values::prefix::Prefix;
use crate::values::token::Token;

pub(super) const NODES: usize = 3;
pub(super) const CLIENTS: usize = 2;
/// The unit of ttls, and the time between two ticks: a little more, so that a lock that ends with a tick has ended
/// then.
pub(super) const UNIT: Duration = Duration::from_secs(100);
const TICK: Duration = Duration::from_secs(110);
/// No answer is too late for the code: the model's clients decide as late as they like.
const TIMEOUT: Duration = Duration::from_secs(1_000_000);
/// The callers that wait for an answer.
const TRY: u8 = 0;
const OTHER: u8 = 1;

struct Server {
    store: Store,
    started: Duration,
    run: usize,
}

/// A connection: commands on their way, and replies that have arrived.
#[derive(Default)]
pub(super) struct Connection {
    pub(super) up: VecDeque<Vec<u8>>,
    down: Vec<u8>,
    closed: bool,
}

pub(super) struct Client {
    core: Core<u8>,
    pub(super) connections: [Connection; NODES],
    fresh: [Option<Connection>; NODES],
    workers: [bool; NODES],
    leads: bool,
    /// How often the leader still reads in vain.
    looks: u8,
    attempt: Option<Attempt>,
    held: Option<(Key, Deadline)>,
}

/// The real code.
pub(super) struct Real {
    base: Point,
    t: Duration,
    ticks: u32,
    servers: [Server; NODES],
    pub(super) clients: [Client; CLIENTS],
}

/// A command that is about a lock: whether it sets or releases it, and for which attempt.
pub(super) fn lock_command(bytes: &[u8]) -> Option<(bool, usize)> {
    let (args, _) = parse(bytes).unwrap();
    match args[0] {
        b"SET" => Some((true, usize::from(args[2][0]))),
        b"EVAL" => Some((false, usize::from(args[4][0]))),
        _ => None,
    }
}

impl Real {
    pub(super) fn new(world: &Lease) -> Real {
        let base = Point::now();
        let (_, _, quarantine) = world.sizes();
        let times = [u32::from(quarantine) * UNIT, MS, MS];
        let guard = (quarantine > 0).then(|| RestartGuard::new(times[0], NODES).shorter(times));
        let timeouts = Timeouts {
            node: TIMEOUT,
            connect: TIMEOUT,
        };
        let server = |_| Server {
            store: Store::new(1),
            started: Duration::ZERO,
            run: 0,
        };
        let client = |seed| {
            let addresses = (0..NODES).map(|_| (Arc::from("x"), guard));
            Client {
                core: Core::new(addresses, timeouts, Prefix::default(), seed, base.mono),
                connections: Default::default(),
                fresh: Default::default(),
                workers: [false; NODES],
                leads: false,
                looks: 0,
                attempt: None,
                held: None,
            }
        };
        let mut real = Real {
            base,
            // The servers have been up for long.
            t: 10 * TICK,
            ticks: 10,
            servers: [0, 1, 2].map(server),
            clients: [1, 2].map(client),
        };
        for c in 0..CLIENTS {
            real.submit(c, Op::ping(), OTHER);
        }
        real
    }

    fn now(&self) -> Point {
        later(self.base, self.t)
    }

    /// The time of a server, in microseconds since 1970.
    fn time(&self) -> u64 {
        u64::try_from(self.t.as_micros()).unwrap()
    }

    // ---- what a driver does

    fn submit(&mut self, c: usize, op: Op, caller: u8) {
        let now = self.now().mono;
        self.clients[c].core.submit(op, caller, now);
        self.clients[c].leads = true;
        self.drive(c);
    }

    /// Drives a client until there is nothing more to do without a message or time.
    pub(super) fn drive(&mut self, c: usize) {
        self.clients[c].looks = 4;
        for _ in 0..1000 {
            self.t += MS / 10;
            let mut busy = self.lead(c);
            for node in 0..NODES {
                busy |= self.work(c, node);
                busy |= self.answer_pings(c, node);
            }
            busy |= self.read(c);
            if !busy {
                return;
            }
        }
        let now = self.now().mono;
        let core = &mut self.clients[c].core;
        panic!("client {c} spins: {:?}", core.next(ThreadRole::Leader, now));
    }

    /// The core's answers to what was submitted.
    fn read(&mut self, c: usize) -> bool {
        let client = &mut self.clients[c];
        let news = std::mem::take(&mut client.core.news);
        for (caller, answer) in std::mem::take(&mut client.core.answers) {
            let now = later(self.base, self.t);
            let attempt = client.attempt.take_if(|_| caller == TRY);
            let Some(mut attempt) = attempt else {
                continue;
            };
            if let Break(Tried::Granted(key, deadline)) = attempt.answered(answer, now) {
                client.held = Some((key, deadline));
            }
        }
        news
    }

    fn write(&mut self, c: usize, node: usize) {
        let (now, mut out) = (self.now().mono, Outgoing::default());
        let client = &mut self.clients[c];
        client
            .core
            .output(std::iter::once(node).collect(), &mut out, now);
        let mut bytes = out.bytes;
        while let Some((_, length)) = parse(&bytes) {
            let rest = bytes.split_off(length);
            let command = std::mem::replace(&mut bytes, rest);
            client.connections[node].up.push_back(command);
        }
    }

    /// Receives the bytes that have arrived from a node, if any.
    fn receive(&mut self, c: usize, node: usize, until: Instant) -> bool {
        let now = self.now().mono;
        let client = &mut self.clients[c];
        let connection = &mut client.connections[node];
        let bytes = std::mem::take(&mut connection.down);
        if connection.closed && bytes.is_empty() {
            let closed = Cause::Closed("by the other side".into());
            client.core.input(node, Input::Received(Err(closed)), now);
        } else if !bytes.is_empty() || until <= now {
            client.core.input(node, Input::Received(Ok(&bytes)), now);
        } else {
            return false;
        }
        true
    }

    /// Receives from the node that the leader reads from, or else from another one, to which it turns after a while. If
    /// no node has sent anything, the leader still looks at some of them in vain.
    fn receive_any(&mut self, c: usize, node: usize, until: Instant) -> bool {
        let mut others = (0..NODES).filter(|other| !self.clients[c].workers[*other]);
        let has_answered = |other: &usize| !self.clients[c].connections[*other].down.is_empty();
        let other = others.find(has_answered);
        if self.receive(c, node, until) || other.is_some_and(|other| self.receive(c, other, until))
        {
            return true;
        }
        let looks = std::mem::take(&mut self.clients[c].looks);
        self.clients[c].looks = looks.saturating_sub(1);
        if looks > 0 {
            let now = self.now().mono;
            self.t += until.saturating_duration_since(now).min(10 * MS);
            let later = self.now().mono;
            self.receive(c, node, later);
        }
        looks > 0
    }

    fn lead(&mut self, c: usize) -> bool {
        if !self.clients[c].leads {
            return false;
        }
        let now = self.now().mono;
        match self.clients[c].core.next(ThreadRole::Leader, now) {
            ThreadStep::StartWorker { node } => {
                let client = &mut self.clients[c];
                client.connections[node] = Connection::default();
                client.workers[node] = true;
                client.core.input(node, Input::Started(Ok(())), now);
            }
            ThreadStep::Send { nodes, .. } => nodes.iter().for_each(|node| self.write(c, node)),
            ThreadStep::Recv { node, until } => return self.receive_any(c, node, until),
            ThreadStep::Wait { .. } => return false,
            ThreadStep::StartConfirmer => return self.lead(c),
            ThreadStep::Finished => self.clients[c].leads = false,
            // No node is silent for long, and no server is named by a directory.
            other => unreachable!("{other:?}"),
        }
        true
    }

    fn work(&mut self, c: usize, node: usize) -> bool {
        if !self.clients[c].workers[node] {
            return false;
        }
        let now = self.now().mono;
        match self.clients[c].core.next(ThreadRole::Worker(node), now) {
            ThreadStep::Connect { .. } => {
                let server = &self.servers[node];
                let properties = ServerProperties {
                    run_id: Some(format!("{node}-{}", server.run)),
                    uptime: Some((self.t - server.started, now)),
                    ..ServerProperties::default()
                };
                let client = &mut self.clients[c];
                if client.core.connected(node, Ok(properties), now) {
                    client.fresh[node] = Some(Connection::default());
                }
            }
            ThreadStep::Adopt { .. } => {
                let client = &mut self.clients[c];
                client.connections[node] = client.fresh[node].take().unwrap();
            }
            ThreadStep::Send { .. } => {
                self.write(c, node);
                let core = &mut self.clients[c].core;
                core.input(node, Input::Sent(Ok(())), now);
            }
            ThreadStep::Recv { until, .. } => return self.receive(c, node, until),
            ThreadStep::Wait { until } => {
                // A pause between two tries to connect is much shorter than a tick.
                let left = until.saturating_duration_since(now);
                let short = left < Duration::from_secs(1);
                self.t += if short { left } else { Duration::ZERO };
                return short;
            }
            ThreadStep::Reconnected | ThreadStep::Finished => {
                self.clients[c].workers[node] = false;
                self.clients[c].leads = true;
            }
            other => unreachable!("{other:?}"),
        }
        true
    }

    /// Answers at once any command that is about no lock.
    fn answer_pings(&mut self, c: usize, node: usize) -> bool {
        let next = self.clients[c].connections[node].up.front();
        let ping = next.is_some_and(|command| lock_command(command).is_none());
        if ping {
            self.execute(c, node);
        }
        ping
    }

    /// The next command on a connection arrives, and its reply comes back.
    pub(super) fn execute(&mut self, c: usize, node: usize) -> Vec<u8> {
        let time = self.time();
        let connection = &mut self.clients[c].connections[node];
        let command = connection.up.pop_front().unwrap();
        let (args, _) = parse(&command).unwrap();
        let reply = self.servers[node].store.execute(time, &args, &mut |_, _| 0);
        connection.down.extend_from_slice(&reply);
        reply
    }

    // ---- what the model draws

    pub(super) fn head(&self, c: usize, node: usize) -> Option<(bool, usize)> {
        lock_command(self.clients[c].connections[node].up.front()?)
    }

    pub(super) fn ask(&mut self, c: usize, token: usize, ttl: Duration) {
        let (now, ttl) = (self.now(), Ttl::new(ttl).unwrap());
        let mut attempt = Attempt::new(Arc::from(&b"a"[..]), ttl, None, None, TIMEOUT);
        let token = Token::from_bytes([u8::try_from(token).unwrap(); 20]);
        let op = attempt.op(token, now);
        self.clients[c].attempt = Some(attempt);
        self.submit(c, op, TRY);
    }

    pub(super) fn release(&mut self, c: usize) {
        let (key, _) = self.clients[c].held.take().unwrap();
        let op = Op::new(Action::Release(Notify::None), key).only_write(true);
        self.submit(c, op, OTHER);
    }

    pub(super) fn tick(&mut self) {
        self.ticks += 1;
        assert!(self.t < self.ticks * TICK, "ticks are too short");
        self.t = self.ticks * TICK;
        (0..CLIENTS).for_each(|c| self.drive(c));
    }

    pub(super) fn restart(&mut self, node: usize) {
        self.servers[node] = Server {
            store: Store::new(1),
            started: self.t,
            run: self.servers[node].run + 1,
        };
        for c in 0..CLIENTS {
            let connection = &mut self.clients[c].connections[node];
            connection.up.clear();
            connection.closed = true;
            // A program does something now and then, and notices.
            self.submit(c, Op::ping(), OTHER);
        }
    }

    pub(super) fn seen(&self) -> Seen {
        let now = self.now();
        let client = |client: &Client| match (&client.held, &client.attempt) {
            (Some((_, deadline)), _) => SeenClient::Holding(!deadline.remaining(now).is_zero()),
            (None, Some(_)) => SeenClient::Acquiring,
            (None, None) => SeenClient::Idle,
        };
        let key = |server: &Server| {
            let mut keys = server.store.keys(self.time());
            keys.find_map(|(_, value, _)| match value {
                StoredValue::Text(text) => Some(usize::from(text[0])),
                _ => None,
            })
        };
        Seen {
            keys: self.servers.iter().map(key).collect(),
            clients: self.clients.iter().map(client).collect(),
        }
    }
}
