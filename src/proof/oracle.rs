//! Schedules of the model (`tests/model`), carried out by the real code.
//!
//! The model has the rules and nothing of the code; the code might follow other ones. Here both do the same: the model
//! draws the events around the clients (messages arrive, time passes, nodes restart, programs ask and release), and the
//! real [`Core`] and [`Attempt`] go through them, with servers from `testing`. The code decides what a client does by
//! itself: when it holds, and when it gives up. After each step the model must allow that, and both must have the same
//! keys on the same nodes and the same clients that believe to hold. And if the model lets a client hold, the code must
//! have it hold at once.
//!
//! This is a unit test, since the core is no part of the interface; the rules of the worlds are the model's own files.
//! Only steps that the code can take are drawn: it writes no release to a node that has denied, and sends nothing over
//! a second connection.
//!
//! A tick is so long that everything that happens between two ticks takes no time beside it.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../../tests/model/bits.rs"]
#[allow(dead_code, clippy::cast_possible_truncation)]
mod bits;
#[path = "../../tests/model/explorer.rs"]
#[allow(dead_code)]
mod explorer;
#[path = "../../tests/model/lease/mod.rs"]
#[allow(dead_code, clippy::cast_possible_truncation)]
mod lease;
#[path = "../../tests/model/table.rs"]
#[allow(dead_code, clippy::print_stdout)]
mod table;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use explorer::World as _;
use lease::Lease;
use lease::named::{GUARDED, MUTEX, Seen, SeenClient};

use crate::errors::cause::Cause;
use crate::proof::fixtures::{MS, later};
use crate::proof::sim::basics::Random;
use crate::protocol::commands::script::{Action, Key, Notify};
use crate::protocol::mutants::{Mutant, set_mutant};
use crate::protocol::node::guard::Guard;
use crate::protocol::node::handshake::Handshake;
use crate::protocol::node::node::Timeouts;
use crate::protocol::node::outgoing::Outgoing;
use crate::protocol::quorum::attempt::{Attempt, Tried};
use crate::protocol::quorum::core::{Core, Input};
use crate::protocol::quorum::next::{Next, ThreadRole};
use crate::protocol::quorum::op::Op;
use crate::testing::store::request::parse;
use crate::testing::store::{Store, Value};
use crate::values::clock::Point;
use crate::values::prefix::Prefix;
use crate::values::quorum::{Deadline, Ttl};
use crate::values::token::Token;

const NODES: usize = 3;
const CLIENTS: usize = 2;
/// The unit of ttls, and the time between two ticks: a little more, so that a lock that ends with a tick has ended
/// then.
const UNIT: Duration = Duration::from_secs(100);
const TICK: Duration = Duration::from_secs(110);
/// No answer is too late for the code: the model's clients decide as late as they like.
const TIMEOUT: Duration = Duration::from_secs(1_000_000);
/// The number of steps in a schedule.
const STEPS: usize = 60;
const SCHEDULES: u64 = 150;
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
struct Connection {
    up: VecDeque<Vec<u8>>,
    down: Vec<u8>,
    closed: bool,
}

struct Client {
    core: Core<u8>,
    connections: [Connection; NODES],
    fresh: [Option<Connection>; NODES],
    workers: [bool; NODES],
    leads: bool,
    /// How often the leader still reads in vain.
    looks: u8,
    attempt: Option<Attempt>,
    held: Option<(Key, Deadline)>,
}

/// The real code.
struct Real {
    base: Point,
    t: Duration,
    ticks: u32,
    servers: [Server; NODES],
    clients: [Client; CLIENTS],
}

/// A command that is about a lock: whether it sets or releases it, and for which attempt.
fn lock_command(bytes: &[u8]) -> Option<(bool, usize)> {
    let (args, _) = parse(bytes).unwrap();
    match args[0] {
        b"SET" => Some((true, usize::from(args[2][0]))),
        b"EVAL" => Some((false, usize::from(args[4][0]))),
        _ => None,
    }
}

impl Real {
    fn new(world: &Lease) -> Real {
        let base = Point::now();
        let (_, _, quarantine) = world.sizes();
        let times = [u32::from(quarantine) * UNIT, MS, MS];
        let guard = (quarantine > 0).then(|| Guard::new(times[0], NODES).shorter(times));
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
    fn drive(&mut self, c: usize) {
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
            if let Tried::Granted(key, deadline) = attempt.answered(answer, now) {
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
            Next::StartWorker { node } => {
                let client = &mut self.clients[c];
                client.connections[node] = Connection::default();
                client.workers[node] = true;
                client.core.input(node, Input::Started(Ok(())), now);
            }
            Next::Send { nodes, .. } => nodes.iter().for_each(|node| self.write(c, node)),
            Next::Recv { node, until } => return self.receive_any(c, node, until),
            Next::Wait { .. } => return false,
            Next::StartConfirmer => return self.lead(c),
            Next::Finished => self.clients[c].leads = false,
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
            Next::Connect { .. } => {
                let server = &self.servers[node];
                let handshake = Handshake {
                    run_id: Some(format!("{node}-{}", server.run)),
                    uptime: Some((self.t - server.started, now)),
                    ..Handshake::default()
                };
                let client = &mut self.clients[c];
                if client.core.connected(node, Ok(handshake), now) {
                    client.fresh[node] = Some(Connection::default());
                }
            }
            Next::Adopt { .. } => {
                let client = &mut self.clients[c];
                client.connections[node] = client.fresh[node].take().unwrap();
            }
            Next::Send { .. } => {
                self.write(c, node);
                let core = &mut self.clients[c].core;
                core.input(node, Input::Sent(Ok(())), now);
            }
            Next::Recv { until, .. } => return self.receive(c, node, until),
            Next::Wait { until } => {
                // A pause between two tries to connect is much shorter than a tick.
                let left = until.saturating_duration_since(now);
                let short = left < Duration::from_secs(1);
                self.t += if short { left } else { Duration::ZERO };
                return short;
            }
            Next::Reconnected | Next::Finished => {
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
    fn execute(&mut self, c: usize, node: usize) -> Vec<u8> {
        let time = self.time();
        let connection = &mut self.clients[c].connections[node];
        let command = connection.up.pop_front().unwrap();
        let (args, _) = parse(&command).unwrap();
        let reply = self.servers[node].store.execute(time, &args, &mut |_, _| 0);
        connection.down.extend_from_slice(&reply);
        reply
    }

    // ---- what the model draws

    fn head(&self, c: usize, node: usize) -> Option<(bool, usize)> {
        lock_command(self.clients[c].connections[node].up.front()?)
    }

    fn ask(&mut self, c: usize, token: usize, ttl: Duration) {
        let (now, ttl) = (self.now(), Ttl::new(ttl).unwrap());
        let mut attempt = Attempt::new(Arc::from(&b"a"[..]), ttl, None, None, TIMEOUT);
        let token = Token::from_bytes([u8::try_from(token).unwrap(); 20]);
        let op = attempt.op(token, now);
        self.clients[c].attempt = Some(attempt);
        self.submit(c, op, TRY);
    }

    fn release(&mut self, c: usize) {
        let (key, _) = self.clients[c].held.take().unwrap();
        let op = Op::new(Action::Release(Notify::None), key).only_write(true);
        self.submit(c, op, OTHER);
    }

    fn tick(&mut self) {
        self.ticks += 1;
        assert!(self.t < self.ticks * TICK, "ticks are too short");
        self.t = self.ticks * TICK;
        (0..CLIENTS).for_each(|c| self.drive(c));
    }

    fn restart(&mut self, node: usize) {
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

    fn seen(&self) -> Seen {
        let now = self.now();
        let client = |client: &Client| match (&client.held, &client.attempt) {
            (Some((_, deadline)), _) => SeenClient::Holding(!deadline.remaining(now).is_zero()),
            (None, Some(_)) => SeenClient::Acquiring,
            (None, None) => SeenClient::Idle,
        };
        let key = |server: &Server| {
            let mut keys = server.store.keys(self.time());
            keys.find_map(|(_, value, _)| match value {
                Value::Text(text) => Some(usize::from(text[0])),
                _ => None,
            })
        };
        Seen {
            keys: self.servers.iter().map(key).collect(),
            clients: self.clients.iter().map(client).collect(),
        }
    }
}

/// A step of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Happens {
    Asks(usize),
    Holds(usize),
    GivesUp(usize),
    Releases(usize),
    /// A SET, or a release: the attempt, the node, and whether it does something.
    Arrives(bool, usize, usize, bool),
    Tick,
    Restart(usize),
    /// Steps that the code does not take.
    Other,
}

fn happens(step: &str, attempts: usize) -> Happens {
    let attempt = |name: &str| {
        let name = name.trim_end_matches(':').as_bytes();
        usize::from(name[0] - b'A') * attempts + usize::from(name[1] - b'1')
    };
    let node = |name: &str| name.trim_end_matches(':').parse().unwrap();
    let words: Vec<&str> = step.split(' ').collect();
    match words[..] {
        ["a", "tick"] => Happens::Tick,
        ["node", at, "restarts", "empty"] => Happens::Restart(node(at)),
        ["node", at, "SET", "of", name, did] => {
            Happens::Arrives(true, attempt(name), node(at), did == "granted")
        }
        ["node", at, "release", "of", name, ref did @ ..] => {
            Happens::Arrives(false, attempt(name), node(at), did == ["deleted"])
        }
        [name, "asks", ..] => Happens::Asks(attempt(name)),
        [name, "HOLDS", ..] => Happens::Holds(attempt(name)),
        [name, "gives", "up:", ..] => Happens::GivesUp(attempt(name)),
        [name, "releases:", ..] => Happens::Releases(attempt(name)),
        _ => Happens::Other,
    }
}

/// The model and the code, side by side.
struct Pair<'a> {
    world: &'a Lease,
    state: lease::State,
    real: Real,
    history: Vec<String>,
    /// How often a client came to hold.
    held: u64,
}

impl Pair<'_> {
    fn new(world: &Lease) -> Pair<'_> {
        Pair {
            world,
            state: world.beginnings()[0],
            real: Real::new(world),
            history: Vec::new(),
            held: 0,
        }
    }

    fn steps(&self) -> Vec<(lease::State, String, Happens)> {
        let (attempts, ..) = self.world.sizes();
        let steps = self.world.described(&self.state).into_iter();
        let named = steps.map(|(state, text)| {
            let happens = happens(&text, attempts);
            (state, text, happens)
        });
        named.collect()
    }

    /// Whether the code can make this happen now.
    fn is_possible(&self, happens: Happens) -> bool {
        let client = |attempt: usize| attempt / self.world.sizes().0;
        match happens {
            Happens::Asks(_) | Happens::Releases(_) | Happens::Tick | Happens::Restart(_) => true,
            Happens::Arrives(set, attempt, node, _) => {
                self.real.head(client(attempt), node) == Some((set, attempt))
            }
            Happens::Holds(_) | Happens::GivesUp(_) | Happens::Other => false,
        }
    }

    fn takes(&mut self, state: lease::State, text: String) {
        self.state = state;
        self.history.push(text);
    }

    fn step(&mut self, random: &mut Random) -> Result<(), String> {
        let mut steps = self.steps();
        steps.retain(|(.., happens)| self.is_possible(*happens));
        if steps.is_empty() {
            return Ok(());
        }
        // Time passes anyway; messages do not.
        let rare = |happens| matches!(happens, Happens::Tick | Happens::Restart(_));
        if steps.iter().any(|(.., happens)| !rare(*happens)) && random.chance(85) {
            steps.retain(|(.., happens)| !rare(*happens));
        }
        let (state, text, happens) = steps.swap_remove(random.pick(steps.len()));
        self.takes(state, text);
        let (attempts, ttl, _) = self.world.sizes();
        match happens {
            Happens::Asks(attempt) => {
                let ttl = u32::from(ttl) * UNIT;
                self.real.ask(attempt / attempts, attempt, ttl);
            }
            Happens::Releases(attempt) => self.real.release(attempt / attempts),
            Happens::Tick => self.real.tick(),
            Happens::Restart(node) => self.real.restart(node),
            Happens::Arrives(_, attempt, node, does) => {
                let reply = self.real.execute(attempt / attempts, node);
                self.real.drive(attempt / attempts);
                if does != [&b"+OK\r\n"[..], b":1\r\n"].contains(&&*reply) {
                    return Err(format!("the server says {}", reply.escape_ascii()));
                }
            }
            Happens::Holds(_) | Happens::GivesUp(_) | Happens::Other => {}
        }
        self.follow()?;
        self.stray_releases();
        self.follow()?;
        self.under_way()?;
        let (model, real) = (self.world.seen(&self.state), self.real.seen());
        match model == real {
            true => Ok(()),
            false => Err(format!("the model: {model:?}\nthe code:  {real:?}")),
        }
    }

    /// The code asks no node that the model does not ask, and has written the releases that have something to delete.
    fn under_way(&self) -> Result<(), String> {
        let (steps, mut written) = (self.steps(), Vec::new());
        for client in &self.real.clients {
            for (node, connection) in client.connections.iter().enumerate() {
                let commands = connection.up.iter().filter_map(|one| lock_command(one));
                written.extend(commands.map(|(set, attempt)| (set, attempt, node)));
            }
        }
        let arrives = |&(set, attempt, node): &(bool, usize, usize)| {
            let is_it = |happens: &Happens| matches!(*happens, Happens::Arrives(this, of, at, _) if (this, of, at) == (set, attempt, node));
            steps.iter().any(|(.., happens)| is_it(happens))
        };
        if let Some((_, attempt, node)) = written.iter().find(|one| one.0 && !arrives(one)) {
            return Err(format!("node {node} is asked for attempt {attempt}"));
        }
        let is_missing = |happens: Happens| match happens {
            Happens::Arrives(false, attempt, node, true) => {
                !written.contains(&(false, attempt, node))
            }
            _ => false,
        };
        match steps.iter().find(|(.., happens)| is_missing(*happens)) {
            Some((_, text, _)) => Err(format!("not under way: {text}")),
            None => Ok(()),
        }
    }

    /// Releases that the model does not have: a restart has lost them, and the code sends them again.
    fn stray_releases(&mut self) {
        for c in 0..CLIENTS {
            for node in 0..NODES {
                while let Some((false, attempt)) = self.real.head(c, node) {
                    let is_it = |happens: Happens| matches!(happens, Happens::Arrives(false, one, at, _) if (one, at) == (attempt, node));
                    if self.steps().iter().any(|(.., happens)| is_it(*happens)) {
                        break;
                    }
                    self.real.execute(c, node);
                    self.real.drive(c);
                }
            }
        }
    }

    /// Checks that the model allows everything the clients have done by themselves, and that they hold if it lets them.
    fn follow(&mut self) -> Result<(), String> {
        for c in 0..CLIENTS {
            let of = |attempt: usize| attempt / self.world.sizes().0 == c;
            let real = self.real.seen().clients[c];
            let acquiring = self.world.seen(&self.state).clients[c] == SeenClient::Acquiring;
            let is_it = |happens: Happens| match (happens, real) {
                (Happens::Holds(attempt), SeenClient::Holding(_) | SeenClient::Acquiring) => {
                    of(attempt)
                }
                (Happens::GivesUp(attempt), SeenClient::Idle) => of(attempt),
                _ => false,
            };
            let found = self
                .steps()
                .into_iter()
                .find(|(.., happens)| is_it(*happens));
            match (found, acquiring, real) {
                (Some(_), _, SeenClient::Acquiring) => {
                    return Err(format!("client {c} does not hold, and could"));
                }
                (Some((state, text, _)), true, _) => {
                    self.held += u64::from(real != SeenClient::Idle);
                    self.takes(state, text);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// How often a client came to hold in all schedules, or the first one in which the two differ.
fn run(world: &Lease, mutant: Option<Mutant>) -> Result<u64, String> {
    set_mutant(mutant);
    let mut held = 0;
    let mut result = Ok(());
    for seed in 0..SCHEDULES {
        let (mut pair, mut random) = (Pair::new(world), Random(seed));
        for _ in 0..STEPS {
            result = result.and_then(|()| pair.step(&mut random));
        }
        held += pair.held;
        if let Err(what) = &result {
            set_mutant(None);
            return Err(format!("seed {seed}:\n{}\n{what}", pair.history.join("\n")));
        }
    }
    set_mutant(None);
    Ok(held)
}

#[test]
fn the_code_does_on_the_models_schedules_what_the_model_does() {
    for world in [MUTEX, GUARDED] {
        let held = run(&world, None).unwrap_or_else(|what| panic!("{what}"));
        assert!(
            held > SCHEDULES,
            "it should be held more often than {held} times"
        );
    }
}

#[test]
fn the_model_finds_mutants_of_the_code() {
    for (world, mutant) in [
        (MUTEX, Mutant::VoteCountsTwice),
        (MUTEX, Mutant::DeadlineFromAnswer),
        (MUTEX, Mutant::UndoOnlyGranted),
        (GUARDED, Mutant::VoteAfterRestart),
    ] {
        let found = run(&world, Some(mutant));
        assert!(found.is_err(), "{mutant:?} is not found");
    }
}
