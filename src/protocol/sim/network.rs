//! Virtual connections: byte streams that delay, split, hold and are cut.

use std::collections::VecDeque;

use super::trouble::Trouble;
use super::{Event, MS, World, trace};
use crate::error::Cause;

/// One of the two ways of a connection.
#[derive(Default)]
struct Way {
    bytes: VecDeque<Vec<u8>>,
    /// A byte stream keeps its order.
    at: u64,
    /// Nothing passes before.
    held: u64,
}

pub(super) struct Connection {
    pub(super) client: usize,
    pub(super) node: usize,
    /// Which of the servers behind the node's name.
    pub(super) instance: usize,
    /// To the server.
    up: Way,
    /// The beginning of a command whose rest is to come.
    pub(super) read: Vec<u8>,
    /// To the client, and what that can read.
    down: Way,
    pub(super) inbox: Vec<u8>,
    /// Its server has become a replica.
    pub(super) demoted: bool,
    end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Open,
    /// The client closed it in the usual way: what is under way arrives, until the first answer.
    Closed,
    /// What is still in the server's socket will be read; nothing else passes.
    Dead,
}

impl Connection {
    pub(super) fn new(client: usize, node: usize, instance: usize) -> Connection {
        Connection {
            client,
            node,
            instance,
            up: Way::default(),
            read: Vec::new(),
            down: Way::default(),
            inbox: Vec::new(),
            demoted: false,
            end: End::Open,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.end == End::Open
    }

    pub(super) fn is_dead(&self) -> bool {
        self.end == End::Dead
    }

    /// Never earlier: that would change the order.
    pub(super) fn hold(&mut self, until: u64, up: bool, down: bool) {
        if up {
            self.up.held = self.up.held.max(until);
        }
        if down {
            self.down.held = self.down.held.max(until);
        }
    }

    /// Whatever was held passes from now on.
    pub(super) fn release(&mut self, t: u64) {
        self.up.held = self.up.held.min(t);
        self.down.held = self.down.held.min(t);
    }

    pub(super) fn next_up(&mut self) -> Option<Vec<u8>> {
        self.up.bytes.pop_front()
    }

    /// What the client can read of it, or that it is over.
    pub(super) fn recv(&mut self, part: usize) -> Result<Vec<u8>, Cause> {
        if !self.inbox.is_empty() {
            let rest = self.inbox.split_off(part.min(self.inbox.len()));
            return Ok(std::mem::replace(&mut self.inbox, rest));
        }
        if self.is_open() {
            Ok(Vec::new())
        } else {
            Err(Cause::Closed("by the other side".into()))
        }
    }
}

impl World {
    /// How long something takes on its way.
    pub(super) fn delay(&mut self, node: usize) -> u64 {
        let slow = self.servers[node].has(Trouble::Slow, self.t);
        match self.random.below(20) {
            _ if slow => 20 * MS + self.random.below(60 * MS),
            _ if self.conditions.sluggish => 9 * MS + self.random.below(2 * MS),
            // A message may come before the answer to what was asked before.
            0 | 1 if self.conditions.prompt => self.random.below(2 * MS),
            0 if !self.conditions.faultless && !self.quiet => self.random.below(60 * MS),
            1..4 if !self.conditions.faultless && !self.quiet => self.random.below(5 * MS),
            _ => 20 + self.random.below(100),
        }
    }

    pub(super) fn send(&mut self, connection: usize, bytes: &[u8]) -> Result<(), Cause> {
        if !self.net.connections[connection].is_open() {
            // The kernel may not know yet.
            return match self.random.chance(50) {
                true => Err(Cause::Closed("when it was written to".into())),
                false => Ok(()),
            };
        }
        // Part of a record is nothing to a server.
        let cut = match self.random.chance(15) && !self.conditions.by_record {
            true => self.random.pick(bytes.len().max(1)),
            false => bytes.len(),
        };
        self.pass(connection, bytes, cut, true);
        Ok(())
    }

    /// Bytes go up or down, in two parts.
    fn pass(&mut self, connection: usize, bytes: &[u8], cut: usize, up: bool) {
        for part in [&bytes[..cut], &bytes[cut..]] {
            if part.is_empty() {
                continue;
            }
            let at = self.t + self.delay(self.net.connections[connection].node);
            let stream = &mut self.net.connections[connection];
            let (way, event) = match up {
                true => (&mut stream.up, Event::Arrive(connection)),
                false => (&mut stream.down, Event::Deliver(connection)),
            };
            way.at = way.at.max(at);
            way.bytes.push_back(part.to_vec());
            let at = way.at;
            self.at(at, event);
        }
    }

    pub(super) fn arrive(&mut self, connection: usize) {
        let stream = &self.net.connections[connection];
        if stream.up.bytes.is_empty() || stream.end == End::Dead {
            return;
        }
        let paused = self.servers[stream.node].is_paused(self.t);
        let later = paused.unwrap_or(0).max(stream.up.held);
        if later > self.t {
            return self.at(later, Event::Arrive(connection));
        }
        if let Some(bytes) = self.net.connections[connection].next_up() {
            self.execute(connection, &bytes);
        }
    }

    /// The server's answer goes on its way.
    pub(super) fn answer(&mut self, connection: usize, bytes: &[u8]) {
        match self.net.connections[connection].end {
            End::Open => {}
            // It is answered by a reset, and the server drops what it has not read.
            End::Closed if !bytes.is_empty() => {
                self.net.connections[connection].end = End::Dead;
                self.net.connections[connection].up.bytes.clear();
                return;
            }
            End::Closed | End::Dead => return,
        }
        let cut = match self.random.chance(10) {
            true => self.random.pick(bytes.len().max(1)),
            false => bytes.len(),
        };
        self.pass(connection, bytes, cut, false);
    }

    pub(super) fn deliver(&mut self, connection: usize) {
        let stream = &mut self.net.connections[connection];
        if !stream.is_open() {
            return;
        }
        if stream.down.held > self.t {
            let later = stream.down.held;
            return self.at(later, Event::Deliver(connection));
        }
        if let Some(bytes) = stream.down.bytes.pop_front() {
            stream.inbox.extend_from_slice(&bytes);
            let client = stream.client;
            self.pump(client);
        }
    }

    /// Something on the way, or the server, ends a connection: a part of what was under way is in the
    /// server's socket, and will be read; the rest is gone.
    pub(super) fn cut(&mut self, connection: usize) {
        self.end(connection, End::Dead);
        let client = self.net.connections[connection].client;
        self.at(self.t, Event::Wake(client));
    }

    pub(super) fn cut_all(&mut self, which: impl Fn(&Connection) -> bool) {
        for connection in 0..self.net.connections.len() {
            if which(&self.net.connections[connection]) {
                self.cut(connection);
            }
        }
    }

    /// The server ends, and what is in its sockets with it.
    pub(super) fn restart(&mut self, node: usize) {
        self.end_servers(|one| one.node == node);
    }

    /// One of the servers behind a name ends.
    pub(super) fn end_instance(&mut self, node: usize, instance: usize) {
        self.end_servers(|one| one.node == node && one.instance == instance);
    }

    fn end_servers(&mut self, which: impl Fn(&Connection) -> bool) {
        self.cut_all(&which);
        for connection in self.net.connections.iter_mut().filter(|one| which(one)) {
            connection.up.bytes.clear();
            connection.read.clear();
        }
    }

    /// The client gives a connection up: at once, or in the usual way.
    pub(super) fn give_up(&mut self, connection: usize, resets: bool) {
        self.end(connection, if resets { End::Dead } else { End::Closed });
    }

    fn end(&mut self, connection: usize, end: End) {
        if !self.net.connections[connection].is_open() {
            return;
        }
        trace!(self, "connection {connection} is {end:?}");
        let stream = &self.net.connections[connection];
        let (held, node) = (stream.up.held > self.t, stream.node);
        let passed = !held || self.servers[node].is_paused(self.t).is_some();
        let under_way = self.net.connections[connection].up.bytes.len();
        let arrived = if passed {
            self.random.pick(under_way + 1)
        } else {
            0
        };
        let later = self.t + self.random.below(400 * MS);
        let stream = &mut self.net.connections[connection];
        stream.end = end;
        stream.down.bytes.clear();
        if end == End::Dead {
            stream.up.bytes.truncate(arrived);
            self.at(later, Event::Leftover(connection));
        }
    }
}
