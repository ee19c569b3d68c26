//! The servers: they read commands, answer them, and read the leftovers of dead connections.

use super::command::{Command, channel, keys};
use super::connection::Connection;
use super::counts::trace;
use super::instance::STEP;
use super::world::{Count, Event, World};
use crate::protocol::commands::resp;
use crate::protocol::commands::scripts::RELEASE_MEMBER;
use crate::protocol::mutants::{Mutant, Promise, mutant};
use crate::testing::store::Store;
use crate::testing::store::request::parse;

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
            // Once, however many pings are in one record.
            self.read_leftovers(node, self.net.connections[connection].client);
        }
        self.servers[node].asked = asked;
        read.drain(..at);
        self.net.connections[connection].read = read;
        self.answer(connection, &replies);
    }

    fn command(&mut self, node: usize, connection: usize, args: &[&[u8]]) -> Vec<u8> {
        let command = Command::of(args);
        let Connection {
            client, demoted, ..
        } = self.net.connections[connection];
        self.servers[node].demoted = demoted;
        if demoted {
            // The client learns it by this command.
            self.hinder(client, node, self.t);
        }
        let mood = self.servers[node].mood(self.t);
        self.net.connections[connection].lacks_queues |= mood.refuses_keys(args);
        if !self.servers[node].here().store.knows(args) || mood.refuses_keys(args) {
            self.refuses(node, &command, mood.refuses_keys(args));
            return self.ask(node, args, None);
        }
        match command {
            Command::Ping => {
                self.counts[Count::Pings] += 1;
                // A turn of the event loop: bytes in the sockets of dead connections are read, too.
                if !self.conditions.by_record {
                    self.read_leftovers(node, client);
                }
                self.ask(node, args, None)
            }
            Command::Set(token, enqueues) => self.set(node, token, enqueues, args),
            Command::Release(token, notifies) => {
                let waits = self.first_to_tell(connection, token);
                let reply = self.release_on(node, token, notifies, args);
                self.notifies((node, token), waits, &reply);
                reply
            }
            Command::Extend(token) => self.extend_on(node, token, true, args),
            Command::Fence(token) => self.extend_on(node, token, false, args),
            Command::Look if args[0] == b"INFO" => {
                let here = self.servers[node].here();
                let said = match args[1] {
                    b"stats" => here.stats(),
                    _ => here.replication(),
                };
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

    /// Notes that a server does not carry out a command, perhaps for its `keys`.
    fn refuses(&mut self, node: usize, command: &Command, keys: bool) {
        self.counts[Count::Refused] += 1;
        match command {
            // It is owed without the queue from then on, over later connections, too.
            Command::Release(token, _) if keys => self.checks.tokens[*token].on.tells.remove(node),
            // There is nothing to undo.
            Command::Set(token, _) => self.checks.tokens[*token].set_sent[node] = None,
            _ => {}
        }
    }

    /// Checks that a release that was carried out has notified the waiter that it should.
    fn notifies(&mut self, (node, token): (usize, usize), waits: Option<usize>, reply: &[u8]) {
        let untold = waits.filter(|_| reply == b":1\r\n");
        self.check(Promise::Served, untold.is_none(), || {
            format!("node {node}: {token} is released, and no waiter is told, as {untold:?}")
        });
    }

    /// The store's reply. `own`: the process that asks, if no thread waits there.
    pub(super) fn ask(&mut self, node: usize, args: &[&[u8]], own: Option<usize>) -> Vec<u8> {
        let server = &mut self.servers[node];
        let (time, mood) = (server.time(self.t), server.mood(self.t));
        let store = &mut server.here_mut().store;
        let mut store = std::mem::replace(store, Store::new(STEP));
        store.mood = mood;
        let reply = store.execute(time, args, &mut |name, resource| {
            let (channel, resource) = (channel(name), resource[0]);
            let heard = self.publish(node, channel, resource);
            self.check(Promise::Served, !heard || own != Some(channel), || {
                format!(
                    "client {channel} notifies itself that {resource} is free, and no thread waits there"
                )
            });
            i64::from(heard)
        });
        self.servers[node].here_mut().store = store;
        reply
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
        // Commands that another server behind the same name has carried out do not count.
        let moves = self.servers[node].has_moved;
        let again = history.on.set.has(node) && !history.on.refilled.has(node) && !moves;
        let late = history.on.rel.has(node) && !moves;
        self.checks.tokens[token].on.set.add(node);
        self.check(Promise::TokenOnce, !again, || {
            format!("{token} is set twice on node {node}")
        });
        self.check(Promise::TokenOnce, !late, || {
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
        // Commands that it could not carry out wait.
        let refused = self.counts[Count::Refused] > 0 || self.servers[node].has_moved;
        self.check(Promise::NothingLeft, !freed || refused, || {
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

    /// A process enters the queue after its denial.
    pub(super) fn join_late(&mut self, at: usize) {
        let (node, bytes) = &self.net.late[at];
        let server = &mut self.servers[*node];
        let time = server.time(self.t);
        let (args, _) = parse(bytes).unwrap();
        server.here_mut().store.join_late(time, &args);
    }

    /// An extension, or a number for a fencing token.
    fn extend_on(&mut self, node: usize, token: usize, extends: bool, args: &[&[u8]]) -> Vec<u8> {
        let reply = self.ask(node, args, None);
        // An extension that arrives late may undo the shortening of the lock.
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
            b":0\r\n" | b":-1\r\n" | b":-2\r\n" | b"$-1\r\n" => {
                self.checks.tokens[token].on.not_held.add(node)
            }
            [b':', ..] | b"+OK\r\n" => self.checks.tokens[token].on.extended.add(node),
            _ if reply.starts_with(b"-NOPERM") => self.checks.tokens[token].on.forbidden.add(node),
            _ => {}
        }
        reply
    }

    fn release_on(&mut self, node: usize, token: usize, notifies: bool, args: &[&[u8]]) -> Vec<u8> {
        let history = &self.checks.tokens[token];
        // Sent late, it may have its own process pass the message on.
        let alone = history.alone && notifies && !history.on.late.has(node);
        let own = alone.then_some(history.client);
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
            b":0\r\n" | b":-1\r\n" | b":-2\r\n" => {
                self.checks.tokens[token].on.rel.add(node);
                self.checks.tokens[token].on.not_held.add(node);
            }
            b":1\r\n" | b":2\r\n" => {
                self.checks.tokens[token].on.rel.add(node);
                // The lock may have been refilled since an extension did not find it (rule R11b).
                self.checks.tokens[token].on.not_held.remove(node);
                // A lock that a killed process has undone may be free later than others ask.
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

    /// The first process that waits on the server and would hear that this token is released, if there is any: it or
    /// another one must be told, whenever the release comes (rule R34).
    fn first_to_tell(&self, connection: usize, token: usize) -> Option<usize> {
        let Connection { node, client, .. } = self.net.connections[connection];
        let (history, server) = (&self.checks.tokens[token], &self.servers[node]);
        let may = !self.net.connections[connection].lacks_queues && !server.runs_no_scripts;
        // In time, the threads that wait in the same process learn of it there.
        let counts = history.on.late.has(node) && self.waits_for(client, history.resource);
        let waiters = server.waiters(self.t, history.resource);
        let mut waiters = waiters.filter(|other| *other != client || counts);
        let first = waiters.find(|other| self.reaches(node, *other));
        first.filter(|_| may && history.on.tells.has(node))
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
