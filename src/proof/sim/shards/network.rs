//! The bytes on their way between lanes and servers, and what servers answer.

use std::collections::VecDeque;

use super::super::basics::MS;
use super::super::command::{Command, keys};
use super::super::counts::trace;
use super::process::Connection;
use super::world::{Count, Event, ShardWorld};
use crate::errors::cause::Cause;
use crate::protocol::mutants::Promise;
use crate::testing::store::request::parse;

impl ShardWorld {
    pub(super) fn delay(&mut self) -> u64 {
        match self.random.below(20) {
            0 if self.conditions.cuts && !self.quiet => self.random.below(60 * MS),
            0..3 => self.random.below(3 * MS),
            _ => 20 + self.random.below(100),
        }
    }

    /// A new connection of a node of a lane.
    pub(super) fn open(&mut self, of: (usize, usize, usize), server: usize) -> usize {
        self.connections.push(Connection {
            of,
            cluster: of.2,
            server,
            up: VecDeque::new(),
            down: VecDeque::new(),
            inbox: Vec::new(),
            read: Vec::new(),
            at: [0; 2],
            asking: false,
            open: true,
            drains: true,
        });
        self.connections.len() - 1
    }

    pub(super) fn send(&mut self, connection: usize, bytes: &[u8]) -> Result<(), Cause> {
        if !self.connections[connection].open {
            // The kernel may not have noticed yet.
            return match self.random.chance(50) {
                true => Err(Cause::Closed("when it was written to".into())),
                false => Ok(()),
            };
        }
        self.pass(connection, bytes, true);
        Ok(())
    }

    fn pass(&mut self, connection: usize, bytes: &[u8], up: bool) {
        let at = self.t + self.delay();
        let stream = &mut self.connections[connection];
        let way = usize::from(!up);
        stream.at[way] = stream.at[way].max(at);
        let at = stream.at[way];
        let (queue, event) = match up {
            true => (&mut stream.up, Event::Arrive(connection)),
            false => (&mut stream.down, Event::Deliver(connection)),
        };
        queue.push_back(bytes.to_vec());
        self.at(at, event);
    }

    pub(super) fn arrive(&mut self, connection: usize) {
        if let Some(until) = self.server_frozen_until(connection) {
            return self.at(until, Event::Arrive(connection));
        }
        if self.connections[connection].drains
            && let Some(bytes) = self.connections[connection].up.pop_front()
        {
            self.execute(connection, &bytes);
        }
    }

    pub(super) fn deliver(&mut self, connection: usize) {
        let stream = &mut self.connections[connection];
        let process = stream.of.0;
        if stream.open
            && let Some(bytes) = stream.down.pop_front()
        {
            stream.inbox.extend_from_slice(&bytes);
            self.pump(process);
        }
    }

    /// The client gives a connection up: what is under way arrives, unless it is reset.
    pub(super) fn give_up(&mut self, connection: usize, resets: bool) {
        match resets {
            true => self.cut(connection),
            false => self.connections[connection].open = false,
        }
    }

    /// Something ends a connection: a part of the bytes under way is in the server's socket, and will be read.
    pub(super) fn cut(&mut self, connection: usize) {
        let under_way = self.connections[connection].up.len();
        if !self.connections[connection].open {
            return;
        }
        trace!(self, "connection {connection} is cut");
        let arrived = self.random.pick(under_way + 1);
        let later = self.t + self.random.below(400 * MS);
        let stream = &mut self.connections[connection];
        (stream.open, stream.drains) = (false, false);
        stream.up.truncate(arrived);
        let process = stream.of.0;
        self.at(later, Event::Leftover(connection));
        self.at(self.t, Event::Wake(process));
    }

    fn server_frozen_until(&self, connection: usize) -> Option<u64> {
        let here = &self.connections[connection];
        self.server_is_frozen(here.cluster, here.server)
    }

    pub(super) fn leftover(&mut self, connection: usize) {
        if let Some(until) = self.server_frozen_until(connection) {
            return self.at(until, Event::Leftover(connection));
        }
        while let Some(bytes) = self.connections[connection].up.pop_front() {
            self.execute(connection, &bytes);
        }
    }

    /// A server ends, and with it the bytes in its sockets.
    pub(super) fn end_server(&mut self, cluster: usize, server: usize) {
        trace!(self, "server {server} of {cluster} ends");
        self.clusters[cluster].servers[server].alive = false;
        for at in 0..self.connections.len() {
            let here = &self.connections[at];
            if (here.cluster, here.server) == (cluster, server) {
                self.cut(at);
                self.connections[at].up.clear();
            }
        }
    }

    // ---- at the server

    fn execute(&mut self, connection: usize, bytes: &[u8]) {
        let (cluster, server) = {
            let stream = &self.connections[connection];
            (stream.cluster, stream.server)
        };
        if !self.clusters[cluster].servers[server].alive {
            return;
        }
        let mut read = std::mem::take(&mut self.connections[connection].read);
        read.extend_from_slice(bytes);
        let (mut at, mut replies) = (0, Vec::new());
        while let Some((args, length)) = parse(&read[at..]) {
            at += length;
            replies.extend(self.command(connection, (cluster, server), &args));
        }
        read.drain(..at);
        self.connections[connection].read = read;
        if self.connections[connection].open {
            self.pass(connection, &replies, false);
        }
    }

    fn command(
        &mut self,
        connection: usize,
        (cluster, server): (usize, usize),
        args: &[&[u8]],
    ) -> Vec<u8> {
        if args == [b"ASKING"] {
            self.connections[connection].asking = true;
            return b"+OK\r\n".to_vec();
        }
        let asking = std::mem::take(&mut self.connections[connection].asking);
        let named: &[&[u8]] = match args[0] {
            b"EVAL" | b"EVALSHA" => &args[3..3 + keys(args)],
            b"PING" | b"INFO" => &[],
            _ => &args[1..2],
        };
        let redirect = self.clusters[cluster].redirect(server, asking, named, self.t);
        let command = Command::of(args);
        if let Some(error) = redirect {
            let counts = &mut self.checks.counts;
            counts[Count::Moved] += u64::from(error.starts_with("-MOVED"));
            counts[Count::Asked] += u64::from(error.starts_with("-ASK"));
            if error.starts_with("-TRY") {
                counts[Count::Torn] += 1;
                self.checks.torn_at = Some(self.t);
            }
            trace!(
                self,
                "    server {server} of {cluster} answers {}",
                error.trim_end()
            );
            return error.into_bytes();
        }
        let here = &mut self.clusters[cluster].servers[server].here;
        let reply = match (&command, args) {
            (Command::Look, [b"INFO", section, ..]) => {
                let said = match *section {
                    b"stats" => here.stats(),
                    _ => here.replication(),
                };
                format!("${}\r\n{said}\r\n", said.len()).into_bytes()
            }
            _ => {
                let time = here.time(self.t);
                here.store.mood.read_only = here.is_replica;
                here.store.execute(time, args, &mut |_, _| 0)
            }
        };
        let has_ended = !self.connections[connection].open;
        self.record((cluster, server), has_ended, &command, &reply);
        if let Command::Ping = command {
            self.read_leftovers(connection);
        }
        reply
    }

    /// Records what has become of a token, and checks the order.
    fn record(
        &mut self,
        (cluster, server): (usize, usize),
        has_ended: bool,
        command: &Command,
        reply: &[u8],
    ) {
        let fails_over = self.conditions.fails_over;
        let shown = reply.escape_ascii();
        match *command {
            _ if reply.starts_with(b"-") => {}
            Command::Set(token, _) => {
                trace!(
                    self,
                    "    server {server} of {cluster}: set {token}: {shown}"
                );
                let history = &mut self.checks.tokens[token];
                let again = history.set.has(cluster) && !history.refilled.has(cluster);
                let late = history.rel.has(cluster) && !history.handed_over;
                history.overtaken |= history.rel.has(cluster) && has_ended;
                self.checks.counts[Count::Overtaken] += u64::from(history.overtaken);
                history.set.add(cluster);
                self.check(Promise::TokenOnce, !again || fails_over, || {
                    format!("{token} is set twice on {cluster}")
                });
                self.check(Promise::TokenOnce, !late || fails_over, || {
                    format!("{token} is set after its release on {cluster}")
                });
            }
            Command::Release(token, _) => {
                trace!(
                    self,
                    "    server {server} of {cluster}: release {token}: {shown}"
                );
                let history = &mut self.checks.tokens[token];
                history.rel.add(cluster);
                // A negative number tells why the lock is not there.
                if !reply.starts_with(b":-") && reply != b":0\r\n" {
                    history.released.add(cluster);
                }
            }
            _ => {}
        }
    }

    /// A turn of a server's event loop, for commands of other clients: it reads the bytes in the sockets of all dead
    /// connections, too.
    pub(super) fn turn(&mut self, cluster: usize, server: usize) {
        for dead in 0..self.connections.len() {
            let here = &self.connections[dead];
            if !here.open && !here.drains && (here.cluster, here.server) == (cluster, server) {
                self.leftover(dead);
            }
        }
    }

    /// Such a turn for a ping, as far as it concerns the ping's process.
    fn read_leftovers(&mut self, connection: usize) {
        let of = |one: &Connection| (one.of.0, one.cluster, one.server);
        let own = of(&self.connections[connection]);
        for other in 0..self.connections.len() {
            let dead = &self.connections[other];
            if !dead.open && !dead.drains && of(dead) == own {
                self.leftover(other);
            }
        }
    }
}
