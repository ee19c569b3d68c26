//! A virtual server: a store with a clock of its own, and moods.

use super::instance::{Instance, STEP};
use super::network::Connection;
use super::trouble::Trouble;
use super::{Count, Event, MS, RESOLUTION, Random, World, trace};
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::resp;
use crate::protocol::scripts::{
    ACQUIRE_IN_ORDER, ACQUIRE_NAMES, ACQUIRE_OR_ENQUEUE, ACQUIRE_PERMIT, ACQUIRE_READ,
    ACQUIRE_WRITE, DEQUEUE, EXTEND, EXTEND_MEMBER, EXTEND_NAMES, FENCE, FENCE_MEMBER, FENCE_NAMES,
    LEAVE, REFILL_MEMBER, REFILL_NAMES, RELEASE, RELEASE_AND_NOTIFY, RELEASE_MEMBER, RELEASE_NAMES,
    Script,
};
use crate::testing::store::members;
use crate::testing::store::{Mood, Store, Value, parse};

/// How far clocks differ: as much less as everything here.
const SKEW: u64 = 20 * MS;

pub(super) struct Server {
    /// Those behind its name; the one that the name leads to; and the one that is being asked.
    pub(super) instances: Vec<Instance>,
    pub(super) named: usize,
    pub(super) asked: usize,
    /// It has led to another one before.
    pub(super) has_moved: bool,
    /// Until when it has each trouble.
    troubles: [u64; Trouble::ALL],
    /// What is being asked is the one that was its master before.
    pub(super) demoted: bool,
    pub(super) runs_no_scripts: bool,
}

/// Those of locks that are not plain.
const ACQUIRE: [Script; 4] = [ACQUIRE_PERMIT, ACQUIRE_READ, ACQUIRE_WRITE, ACQUIRE_NAMES];
const REFILL: [Script; 2] = [REFILL_MEMBER, REFILL_NAMES];

/// What a command asks of which token.
enum Command {
    /// Whether it enters the queue.
    Set(usize, bool),
    Extend(usize),
    /// Whether it notifies.
    Release(usize, bool),
    Fence(usize),
    Leave,
    Ping,
    /// For the restart guard.
    Look,
}

impl Server {
    /// `instances`: behind its name.
    pub(super) fn new(guarded: bool, instances: usize, random: &mut Random) -> Server {
        // With the restart guard clocks may differ by less than half of the longest ttl (rule R28).
        let skew = if guarded { SKEW } else { 10 * SKEW };
        Server {
            instances: (0..instances)
                .map(|at| Instance::new(skew, at > 0, random))
                .collect(),
            named: 0,
            asked: 0,
            has_moved: false,
            troubles: [0; Trouble::ALL],
            demoted: false,
            runs_no_scripts: random.chance(5),
        }
    }

    pub(super) fn here(&self) -> &Instance {
        &self.instances[self.asked]
    }

    pub(super) fn here_mut(&mut self) -> &mut Instance {
        &mut self.instances[self.asked]
    }

    /// Its time of day.
    fn time(&self, t: u64) -> u64 {
        self.here().time(t)
    }

    /// The locks that it has, and their tokens.
    pub(super) fn locks(&self, t: u64) -> impl Iterator<Item = (u8, usize)> {
        let time = self.time(t);
        let now = i64::try_from(time / 1000).unwrap();
        let keys = self.here().store.keys(time);
        keys.flat_map(move |(name, value, _)| {
            let tokens = match (name, value) {
                ([_], Value::Text(text)) => vec![token(text)],
                ([_], Value::Queue(all)) => all
                    .iter()
                    .filter(|member| member.0 >= now)
                    .map(|member| token(members::token(&member.1).unwrap()))
                    .collect(),
                _ => Vec::new(),
            };
            let tokens = tokens.into_iter();
            tokens.map(|token| (name[0], token))
        })
    }

    /// Whether a resource is locked, by any token.
    pub(super) fn has_key(&self, t: u64, resource: u8) -> bool {
        self.locks(t).any(|lock| lock.0 == resource)
    }

    pub(super) fn begin(&mut self, trouble: Trouble, until: u64) {
        self.troubles[trouble as usize] = until;
    }

    pub(super) fn has(&self, trouble: Trouble, t: u64) -> bool {
        self.troubles[trouble as usize] > t
    }

    pub(super) fn is_paused(&self, t: u64) -> Option<u64> {
        let until = self.troubles[Trouble::Paused as usize];
        (until > t).then_some(until)
    }

    /// How long it reports that it has been up: too long by less than the resolution.
    pub(super) fn uptime(&self, t: u64, random: &mut Random) -> u64 {
        self.here().age(t) / RESOLUTION * RESOLUTION + RESOLUTION * random.below(2)
    }

    pub(super) fn flush_scripts(&mut self) {
        self.here_mut().store.flush_scripts();
    }

    /// It loses its keys; whether there were any locks, or counters.
    pub(super) fn forget(&mut self, t: u64) -> (bool, bool) {
        let locks = self.locks(t).next().is_some();
        let mut keys = self.here().store.keys(self.time(t));
        let counters = keys.any(|(name, ..)| name.ends_with(b":fence"));
        drop(keys);
        self.here_mut().store.clear();
        (locks, counters)
    }

    fn mood(&self, t: u64) -> Mood {
        let full = self.has(Trouble::OutOfMemory, t);
        let forbids = self.troubles[Trouble::OutOfMemory as usize].is_multiple_of(2);
        Mood {
            read_only: self.demoted || self.here().is_replica,
            too_few_replicas: self.has(Trouble::LacksReplicas, t),
            out_of_memory: full && !forbids,
            no_set: full && forbids,
            no_queue: self.has(Trouble::ForbidsQueues, t),
        }
    }

    /// Well again, from now on.
    pub(super) fn calm(&mut self) {
        self.troubles.fill(0);
    }
}

/// The token in a value, or an argument.
fn token(arg: &[u8]) -> usize {
    let id = u64::from_le_bytes(arg[..8].try_into().unwrap());
    usize::try_from(id).unwrap()
}

/// The process in a channel's name: "redlock:", and the same two digits sixteen times.
fn channel(name: &[u8]) -> usize {
    let digits = str::from_utf8(&name[8..10]).unwrap();
    usize::from_str_radix(digits, 16).unwrap()
}

/// How many keys a script is called with.
fn keys(args: &[&[u8]]) -> usize {
    str::from_utf8(args[2]).unwrap().parse().unwrap()
}

impl Command {
    fn of(args: &[&[u8]]) -> Command {
        let is = |script: Script| {
            let by_hash = args[0] == b"EVALSHA";
            args[1] == if by_hash { script.hash } else { script.text }
        };
        let arg = |number: usize| args[2 + keys(args) + number];
        // The first argument behind the keys.
        let first = || token(arg(1));
        match args[0] {
            b"PING" => Command::Ping,
            b"INFO" | b"GET" => Command::Look,
            b"SET" if args[3] == b"IFEQ" => Command::Extend(token(args[2])),
            b"SET" => Command::Set(token(args[2]), false),
            b"DELIFEQ" | b"DELEX" => Command::Release(token(args[args.len() - 1]), false),
            _ if is(ACQUIRE_OR_ENQUEUE) || is(ACQUIRE_IN_ORDER) => {
                Command::Set(token(arg(1)), true)
            }
            _ if ACQUIRE.into_iter().chain(REFILL).any(is) => Command::Set(first(), false),
            _ if is(RELEASE_MEMBER) => Command::Release(first(), keys(args) > 1),
            _ if is(RELEASE_NAMES) => {
                let count: usize = str::from_utf8(arg(2)).unwrap().parse().unwrap();
                Command::Release(first(), keys(args) > count)
            }
            _ if is(LEAVE) => Command::Leave,
            _ if is(EXTEND_MEMBER) || is(EXTEND_NAMES) => Command::Extend(first()),
            _ if is(FENCE_MEMBER) || is(FENCE_NAMES) => Command::Fence(first()),
            _ if is(RELEASE_AND_NOTIFY) || is(RELEASE) => {
                Command::Release(token(arg(1)), is(RELEASE_AND_NOTIFY))
            }
            _ if is(EXTEND) => Command::Extend(token(arg(1))),
            _ if is(FENCE) => Command::Fence(token(arg(1))),
            _ if is(DEQUEUE) => Command::Leave,
            _ => panic!("an unknown script"),
        }
    }
}

/// The commands in `bytes`, which are whole: whether each sets or releases which token.
pub(super) fn commands(mut bytes: &[u8], mut each: impl FnMut(bool, usize)) {
    while let Some((args, length)) = parse(bytes) {
        bytes = &bytes[length..];
        match Command::of(&args) {
            Command::Set(token, _) => each(true, token),
            Command::Release(token, _) => each(false, token),
            _ => {}
        }
    }
}

impl World {
    /// The server reads bytes from a connection.
    pub(super) fn execute(&mut self, connection: usize, bytes: &[u8]) {
        let Connection { node, instance, .. } = self.net.connections[connection];
        let asked = std::mem::replace(&mut self.servers[node].asked, instance);
        let mut read = std::mem::take(&mut self.net.connections[connection].read);
        read.extend_from_slice(bytes);
        let mut at = 0;
        let mut replies = Vec::new();
        let mut pinged = false;
        while let Some((args, length)) = parse(&read[at..]) {
            at += length;
            pinged |= matches!(Command::of(&args), Command::Ping);
            let reply = self.command(node, connection, &args);
            replies.extend_from_slice(&reply);
        }
        if pinged && self.conditions.by_record {
            // However many pings are in one record.
            self.read_leftovers(node, self.net.connections[connection].client);
        }
        self.servers[node].asked = asked;
        read.drain(..at);
        self.net.connections[connection].read = read;
        self.answer(connection, &replies);
    }

    /// Another server takes a node's place, with its data, and its name leads there later. The one before stays a
    /// replica, and closes nothing.
    pub(super) fn demote(&mut self, node: usize, until: u64) {
        self.servers[node].begin(Trouble::Replica, until);
        let connections = self.net.connections.iter_mut();
        let its = connections.filter(|connection| connection.node == node);
        its.for_each(|connection| connection.demoted = true);
    }

    fn command(&mut self, node: usize, connection: usize, args: &[&[u8]]) -> Vec<u8> {
        let command = Command::of(args);
        let Connection {
            client, demoted, ..
        } = self.net.connections[connection];
        self.servers[node].demoted = demoted;
        let mood = self.servers[node].mood(self.t);
        if !self.servers[node].here().store.knows(args) || mood.refuses_keys(args) {
            self.counts[Count::Refused] += 1;
            if let Command::Set(token, _) = command {
                // There is nothing to undo.
                self.checks.tokens[token].set_sent[node] = None;
            }
            return self.ask(node, args, None);
        }
        match command {
            Command::Ping => {
                self.counts[Count::Pings] += 1;
                // A turn of the event loop: what is in the sockets of dead connections is read, too.
                if !self.conditions.by_record {
                    self.read_leftovers(node, client);
                }
                self.ask(node, args, None)
            }
            Command::Set(token, enqueues) => self.set(node, token, enqueues, args),
            Command::Release(token, notifies) => self.release_on(node, token, notifies, args),
            Command::Extend(token) => self.extend_on(node, token, true, args),
            Command::Fence(token) => self.extend_on(node, token, false, args),
            Command::Look if args[0] == b"INFO" => {
                let said = self.servers[node].here().replication();
                format!("${}\r\n{said}\r\n", said.len()).into_bytes()
            }
            Command::Look => self.ask(node, args, None),
            Command::Leave => {
                trace!(
                    self,
                    "    node {node}: {} leaves",
                    args.iter()
                        .rfind(|arg| arg.len() == 40)
                        .map_or(0, |name| channel(name))
                );
                self.ask(node, args, None)
            }
        }
    }

    /// The store's reply. `own`: the process that asks for it, if no thread waits there.
    pub(super) fn ask(&mut self, node: usize, args: &[&[u8]], own: Option<usize>) -> Vec<u8> {
        let server = &mut self.servers[node];
        let (time, mood) = (server.time(self.t), server.mood(self.t));
        let store = &mut server.here_mut().store;
        let mut store = std::mem::replace(store, Store::new(STEP));
        store.mood = mood;
        let reply = store.execute(time, args, &mut |name, resource| {
            let (channel, resource) = (channel(name), resource[0]);
            let heard = self.publish(node, channel, resource);
            self.check(!heard || own != Some(channel), || {
                format!(
                    "client {channel} notifies itself that {resource} is free, and no thread waits there"
                )
            });
            i64::from(heard)
        });
        self.servers[node].here_mut().store = store;
        reply
    }

    /// An extension, or a number for a fencing token.
    fn extend_on(&mut self, node: usize, token: usize, extends: bool, args: &[&[u8]]) -> Vec<u8> {
        let reply = self.ask(node, args, None);
        // An extension that comes late may undo what has shortened the lock.
        self.checks.tokens[token].shortened &= args.last() == Some(&&b"1"[..]);
        let belief = self.checks.tokens[token].belief.as_ref();
        let slot = belief.and_then(|belief| belief.slot);
        let expected = slot.filter(|_| extends);
        let expected = expected.map(|slot| format!(":{}\r\n", slot + 1));
        match &*reply {
            // A permit in another slot.
            [b':', ..] if expected.is_some_and(|own| own.as_bytes() != reply) => {
                self.checks.tokens[token].on.not_held.add(node);
            }
            b":0\r\n" | b"$-1\r\n" => self.checks.tokens[token].on.not_held.add(node),
            [b':', ..] | b"+OK\r\n" => self.checks.tokens[token].on.extended.add(node),
            _ => {}
        }
        reply
    }

    fn release_on(&mut self, node: usize, token: usize, notifies: bool, args: &[&[u8]]) -> Vec<u8> {
        let history = &self.checks.tokens[token];
        let own = (history.alone && notifies).then_some(history.client);
        let reply = self.ask(node, args, own);
        trace!(
            self,
            "    node {node}: release {token}: {}",
            reply.escape_ascii()
        );
        // A permit in another slot than the one that was acquired.
        let script = [RELEASE_MEMBER.hash, RELEASE_MEMBER.text].contains(&args[1]);
        let stray = script && keys(args) == 1 && args.len() > 6;
        match &*reply {
            [b':', ..] if stray => self.counts[Count::Strays] += 1,
            b":0\r\n" => {
                self.checks.tokens[token].on.rel.add(node);
                self.checks.tokens[token].on.not_held.add(node);
            }
            b":1\r\n" | b":2\r\n" => {
                self.checks.tokens[token].on.rel.add(node);
                // What a killed process has undone may be free later than others ask.
                let late = !notifies && self.clients[self.checks.tokens[token].client].dead;
                let resource = if args[0].starts_with(b"DEL") { 1 } else { 3 };
                if let Some(idle) = self.checks.idle.get_mut(usize::from(args[resource][0])) {
                    idle.excused |= late;
                }
            }
            _ => self.counts[Count::Refused] += 1,
        }
        reply
    }

    /// A process enters the queue after its denial.
    pub(super) fn join_late(&mut self, at: usize) {
        let (node, bytes) = &self.net.late[at];
        let server = &mut self.servers[*node];
        let time = server.time(self.t);
        let (args, _) = parse(bytes).unwrap();
        server.here_mut().store.join_late(time, &args);
    }

    fn set(&mut self, node: usize, token: usize, enqueues: bool, args: &[&[u8]]) -> Vec<u8> {
        let resource = args[if args[0] == b"SET" { 1 } else { 3 }][0];
        let locks = self.servers[node].locks(self.t);
        let holders = locks.filter(|lock| lock.0 == resource);
        let holders: Vec<usize> = holders.map(|lock| lock.1).collect();
        trace!(
            self,
            "    node {node}: set {resource} {token}, held by {holders:?}"
        );
        let history = &self.checks.tokens[token];
        // What another server behind the same name has carried out is another matter.
        let moves = self.servers[node].has_moved;
        let again = history.on.set.has(node) && !history.on.refilled.has(node) && !moves;
        let late = history.on.rel.has(node) && !moves;
        self.checks.tokens[token].on.set.add(node);
        self.check(!again, || format!("{token} is set twice on node {node}"));
        self.check(!late, || {
            format!("{token} is set after its release on node {node}")
        });
        let reply = self.ask(node, args, None);
        match reply[0] {
            b'+' => self.checks.tokens[token].on.granted.add(node),
            b':' if !reply.starts_with(b":0") => self.checks.tokens[token].on.granted.add(node),
            b'$' | b':' => self.denied(node, token, &holders, enqueues.then_some(args)),
            _ if reply.starts_with(b"-NOPERM") => self.checks.tokens[token].on.forbidden.add(node),
            _ => {}
        }
        reply
    }

    fn denied(&mut self, node: usize, token: usize, holders: &[usize], enqueue: Option<&[&[u8]]>) {
        self.checks.tokens[token].on.denied.add(node);
        let mine = &self.checks.tokens[token];
        let is_freed = |holder: &&usize| {
            let other = &self.checks.tokens[**holder];
            mine.client == other.client && other.freed.is_some_and(|at| at < mine.drawn)
        };
        let freed = holders.iter().find(is_freed);
        let Some(&holder) = freed.or(holders.first()) else {
            self.counts[Count::Reserved] += 1;
            return;
        };
        let freed = freed.is_some();
        // What it could not carry out waits.
        let refused = self.counts[Count::Refused] > 0 || self.servers[node].has_moved;
        self.check(!freed || refused, || {
            format!("node {node} denies {token} for {holder}, which the same client had released")
        });
        let Some(args) = enqueue else {
            return;
        };
        self.counts[Count::Enqueued] += 1;
        if mutant(Mutant::EnqueueAfterDenial) {
            let later = self.t + self.delay(node) + self.delay(node);
            let mut bytes = Vec::new();
            resp::pack(&mut bytes, &[args], None);
            self.net.late.push((node, bytes));
            self.at(later, Event::Late(self.net.late.len() - 1));
        }
    }

    pub(super) fn leftover(&mut self, connection: usize) {
        let node = self.net.connections[connection].node;
        if let Some(later) = self.servers[node].is_paused(self.t) {
            return self.at(later, Event::Leftover(connection));
        }
        while let Some(bytes) = self.net.connections[connection].next_up() {
            self.execute(connection, &bytes);
        }
    }

    fn read_leftovers(&mut self, node: usize, client: usize) {
        for other in 0..self.net.connections.len() {
            let dead = &self.net.connections[other];
            if dead.is_dead() && dead.node == node && dead.client == client {
                while let Some(bytes) = self.net.connections[other].next_up() {
                    self.execute(other, &bytes);
                    if self.conditions.by_record {
                        break;
                    }
                }
            }
        }
    }
}
