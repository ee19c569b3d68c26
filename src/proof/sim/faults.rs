//! The faults: of servers, of the network, and of clients.

use super::basics::{MS, NODE_TIMEOUT, RESOURCES};
use super::counts::trace;
use super::server::{Server, Trouble};
use super::world::{Count, Event, World};

impl World {
    pub(super) fn fault(&mut self) {
        if self.quiet {
            return;
        }
        let node = self.random.pick(self.servers.len());
        let client = self.random.pick(self.clients.len());
        if self.conditions.is_set() {
            return self.fault_of_set(node, client);
        }
        if self.servers[node].clock_is_watched && self.random.chance(30) {
            self.set_clocks(node);
        }
        if self.conditions.is_fragile() {
            return self.fault_where_all_is_fragile(node, client);
        }
        if self.conditions.prompt {
            return self.fault_where_all_is_prompt(client);
        }
        if self.conditions.fails_over && self.random.chance(50) {
            self.change_servers(node);
        }
        let longest = if self.random.chance(20) { 300 } else { 80 };
        let long = self.random.below(longest) * MS;
        let kinds = if self.conditions.waits { 16 } else { 13 };
        let what = self.random.below(kinds);
        trace!(
            self,
            "fault {what}: node {node}, client {client}, {long} us"
        );
        let until = self.t + long;
        match what {
            0 | 1 => {
                let open = |at: &usize| self.net.connections[*at].is_open();
                let open: Vec<usize> = (0..self.net.connections.len()).filter(open).collect();
                if !open.is_empty() {
                    let connection = open[self.random.pick(open.len())];
                    self.cut(connection);
                }
            }
            2 => self.servers[node].begin(Trouble::Paused, until),
            3 => self.restart_server(node, until),
            4 | 5 => self.hold_some(until, node, (what == 5).then_some(client)),
            6 => self.servers[node].begin(Trouble::OutOfMemory, until),
            7 if until.is_multiple_of(2) => self.servers[node].begin(Trouble::LacksReplicas, until),
            7 => self.demote(node, until),
            8 => self.clients[client].clocks.freeze(until),
            9 => self.clients[client].clocks.suspend(self.t, until),
            11 if until.is_multiple_of(2) => self.servers[node].flush_scripts(),
            11 => self.servers[node].begin(Trouble::ForbidsQueues, until),
            10 => {
                self.cut_all(|connection| connection.client == client);
                self.cut_subscriptions(false, |of, _| of == client);
            }
            13 | 14 => self.cut_some_subscription(),
            15 if self.random.chance(30) => self.kill(client),
            _ => self.servers[node].begin(Trouble::Slow, until),
        }
        let next = self.t + self.random.below(60 * MS);
        self.at(next, Event::Fault);
    }

    fn fault_where_all_is_prompt(&mut self, client: usize) {
        match self.random.below(6) {
            // Among fair waiters the order counts, except for those that hang.
            _ if self.conditions.fair && self.conditions.orderly => {
                let hangs = self.random.chance(30);
                let until = self.t + 1500 * MS;
                if hangs {
                    trace!(self, "client {client} hangs");
                    self.clients[client].clocks.freeze(until);
                }
            }
            0 if !self.conditions.sluggish => self.kill(client),
            1..3 => self.cut_some_subscription(),
            _ => {}
        }
        let next = self.t + self.random.below(120 * MS);
        self.at(next, Event::Fault);
    }

    fn fault_where_all_is_fragile(&mut self, node: usize, client: usize) {
        let until = self.t + self.random.below(40 * MS);
        match self.random.below(8) {
            0 => self.hold_some(until, node, Some(client)),
            1 => self.cut_all(|connection| connection.client == client),
            2 if self.random.chance(20) => self.restart_server(node, self.t),
            _ => {}
        }
        self.change_servers(node);
        let next = self.t + self.random.below(150 * MS);
        self.at(next, Event::Fault);
    }

    /// Restarts a server, with its data or without.
    pub(super) fn restart_server(&mut self, node: usize, until: u64) {
        // No server is promoted and restarted at once.
        if self.servers[node].here().was_promoted_lately(self.t) {
            return;
        }
        let loses = self.random.chance(30);
        if loses {
            let (keys, counters) = self.servers[node].forget(self.t);
            self.checks.lossy |= keys && !self.conditions.guarded;
            self.checks.uncounted |= counters && !self.conditions.guarded;
        }
        self.servers[node].begin(Trouble::RefusesConnections, until);
        self.restart(node);
        self.cut_subscriptions(true, |_, of| of == node);
        let (history, own_data) = (self.history(), !loses && self.random.chance(50));
        self.servers[node].has_changed = true;
        let here = self.servers[node].here_mut();
        here.start(self.t, history, own_data);
    }

    /// Another server takes a node's place, with its data, and its name leads there later. The server before stays a
    /// replica, and closes nothing.
    fn demote(&mut self, node: usize, until: u64) {
        self.servers[node].begin(Trouble::Replica, until);
        let connections = self.net.connections.iter_mut();
        let its = connections.filter(|connection| connection.node == node);
        its.for_each(|connection| connection.demoted = true);
    }

    /// Bytes between a node and all clients, or one, are held up: both ways, or one of them.
    pub(super) fn hold_some(&mut self, until: u64, node: usize, client: Option<usize>) {
        let ways = self.random.below(3);
        for c in 0..self.clients.len() {
            if client.is_none_or(|client| client == c) {
                self.hinder(c, node, until);
            }
        }
        for connection in &mut self.net.connections {
            if connection.node == node && client.is_none_or(|client| connection.client == client) {
                connection.hold(until, ways != 1, ways != 2);
            }
        }
        if ways != 1 {
            self.hold_subscriptions(until, |of, at| {
                at == node && client.is_none_or(|client| of == client)
            });
        }
    }

    fn kill(&mut self, c: usize) {
        let alive = self.clients.iter().filter(|client| !client.dead);
        if alive.count() < 2 || self.clients[c].dead {
            return;
        }
        trace!(self, "client {c} is killed");
        self.counts[Count::Killed] += 1;
        self.clients[c].die();
        for history in &mut self.checks.tokens {
            if history.client == c {
                (history.belief, history.leaked) = (None, true);
            }
        }
        self.cut_all(|connection| connection.client == c);
        let gone = self.conditions.prompt || self.random.chance(50);
        self.cut_subscriptions(gone, |client, _| client == c);
        // If the client was notified, another one finds the lock free by the next release or by its poll.
        for resource in 0..RESOURCES {
            let locked = |server: &Server| server.has_key(self.t, resource);
            let free = !self.servers.iter().all(locked);
            self.checks.idle[usize::from(resource)].excused |= free;
        }
    }

    // ---- if nothing follows a release

    /// All servers will close a client's connections, or forget the scripts, about when it releases its lock.
    pub(super) fn forsake_about(&mut self, c: usize, until: u64) {
        if !self.conditions.is_forsaken() {
            return;
        }
        // Only the first lock: a server that has refused such keys before is not asked for them again.
        self.clients[c].forsaken.waits = self.t < 10 * MS
            && self.random.chance(30)
            && !self.servers.iter().any(|one| one.runs_no_scripts);
        if self.clients[c].forsaken.waits {
            let until = self.t + 20_000 * MS;
            return self.some_refuse(Trouble::ForbidsQueues, until);
        }
        if self.random.chance(40) {
            let long = self.random.below(3000 * MS);
            // Allows for the longest pause as well, and for reading the replies once more.
            self.clients[c].forsaken.gone_by += long + 700 * MS + 2 * NODE_TIMEOUT;
            self.clients[c].forsaken.waits = self.random.chance(60);
            self.some_refuse(Trouble::LacksReplicas, until + long);
            if self.clients[c].forsaken.waits || self.random.chance(50) {
                return;
            }
        }
        let at = (until + self.random.below(MS / 2)).saturating_sub(self.random.below(15 * MS));
        self.at(at.max(self.t), Event::Forsake(c));
        // Once more when commands that were not carried out are sent again, over the same connection or a new one.
        if self.random.chance(40) {
            let again = until + NODE_TIMEOUT + self.random.below(MS);
            self.at(again, Event::Forsake(c));
        }
        self.clients[c].forsaken.unlucky = u32::try_from(self.random.below(3)).unwrap();
    }

    /// Servers refuse the keys beside a lock, or all that ends it: one at least, whose reply may be the last.
    fn some_refuse(&mut self, trouble: Trouble, until: u64) {
        let spared = self.random.pick(self.servers.len());
        let first = self.random.pick(self.servers.len());
        let count = self.servers.len() - spared;
        for at in first..first + count {
            let node = at % self.servers.len();
            self.servers[node].begin(trouble, until);
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
}
