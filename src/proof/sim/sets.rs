//! The events in sets: sentinels fall ill, masters are cut off, and others take their places.
//!
//! A master that was replaced is not told for long. Without `min-replicas-to-write` the guide promises one holder only if
//! most sentinels can be reached as long as a master does not know that it was replaced; with it, whatever happens to
//! sentinels.

use super::basics::MS;
use super::counts::trace;
use super::failover::Before;
use super::sentinels::{Illness, LAG, LEARN, Parted, SENTINELS};
use super::world::{Count, Event, World};

impl World {
    /// Something happens in a set.
    pub(super) fn fault_of_set(&mut self, node: usize, client: usize) {
        let until = self.t + self.random.below(40 * MS);
        match self.random.below(20) {
            0 => self.hold_some(until, node, Some(client)),
            1 | 2 => self.cut_all(|one| one.client == client && one.node == node),
            3 => {
                let until = self.t + self.random.below(300 * MS);
                self.clients[client].clocks.freeze(until);
            }
            4 if self.random.chance(20) => self.restart_server(node, self.t),
            5..9 => self.ail(node),
            9..12 => self.part(node),
            12 => self.hamper(client, node),
            _ => self.change_set(node),
        }
        let next = self.t + self.random.below(80 * MS);
        self.at(next, Event::Fault);
    }

    /// The data are copied to a replica, or one takes its master's place.
    pub(super) fn change_set(&mut self, node: usize) {
        match self.random.below(7) {
            0..2 => {
                let replicas = self.servers[node].replicas();
                if !replicas.is_empty() && self.servers[node].sentinels.parted(self.t).is_none() {
                    let replica = replicas[self.random.pick(replicas.len())];
                    self.servers[node].copy_to(replica);
                }
            }
            2 => drop(self.fail_over_set(node, Before::Ends)),
            3 => {
                let back = self.servers[node].named;
                if self.fail_over_set(node, Before::Follows) {
                    let at = self.t + self.random.below(20 * MS);
                    self.at(at, Event::Back(node, back));
                }
            }
            _ => drop(self.fail_over_set(node, Before::GoesOn)),
        }
    }

    /// A sentinel falls ill.
    fn ail(&mut self, node: usize) {
        let at = self.random.pick(SENTINELS);
        let illness = Illness::ALL[self.random.pick(Illness::ALL.len())];
        let until = self.t + self.random.below(400 * MS);
        let late = self.random.below(LEARN);
        let (t, server) = (self.t, &mut self.servers[node]);
        let others = (0..SENTINELS).filter(|other| illness.is_off() && *other != at);
        let mut others = others.map(|other| server.sentinels.is_off(t, other));
        let masters = server.instances.len() - server.replicas().len();
        if !self.conditions.min_replicas() && masters > 1 && others.any(|off| off) {
            return;
        }
        trace!(
            self,
            "node {node}: sentinel {at} is {illness:?} until {until}"
        );
        let sentinels = &mut self.servers[node].sentinels;
        sentinels.ails(t, at, illness, until, late);
    }

    /// The master is cut off: alone, or, if it stops by itself then, together with clients and a sentinel.
    fn part(&mut self, node: usize) {
        let server = &self.servers[node];
        if server.sentinels.parted(self.t).is_some() || server.sentinels.off(self.t) > 0 {
            return;
        }
        let (master, with) = (server.named, self.conditions.parts());
        let clients = 0..self.clients.len();
        let clients = clients.filter(|_| with && self.random.chance(50)).collect();
        let sentinel = (with && self.random.chance(60)).then(|| self.random.pick(SENTINELS));
        let until = self.t + 30 * MS + self.random.below(400 * MS);
        let lonely = self.t + self.random.below(LAG);
        let promotes = lonely + self.random.below(100 * MS);
        trace!(
            self,
            "node {node}: {master} is cut off until {until}, with {clients:?} and {sentinel:?}"
        );
        let parted = Parted {
            until,
            master,
            clients,
            sentinel,
        };
        for one in &mut self.net.connections {
            let is_with = parted.clients.contains(&one.client);
            if one.node == node && is_with != (one.instance == master) {
                one.hold(until, true, true);
            }
        }
        let server = &mut self.servers[node];
        server.sentinels.parted = Some(parted);
        if self.conditions.min_replicas() {
            server.sentinels.lonely.insert(master, lonely);
        }
        if promotes < until {
            self.at(promotes, Event::Promote(node));
        }
        self.at(until, Event::Heals(node, master));
    }

    /// The master that was cut off is there again. If it was not replaced, its replicas are, too.
    pub(super) fn heals(&mut self, node: usize, master: usize) {
        if self.servers[node].named == master {
            self.servers[node].sentinels.lonely.remove(&master);
        }
    }

    /// The sentinels replace a master that is cut off.
    pub(super) fn promote(&mut self, node: usize) {
        let named = self.servers[node].named;
        let parted = self.servers[node].sentinels.parted(self.t);
        if !self.quiet && parted.is_some_and(|parted| parted.master == named) {
            self.fail_over_set(node, Before::GoesOn);
        }
    }

    /// Most sentinels agree on another master, if they are well and there is one.
    fn fail_over_set(&mut self, node: usize, before: Before) -> bool {
        let server = &self.servers[node];
        let replicas = server.replicas();
        if replicas.is_empty() || !server.sentinels.can_elect(self.t) {
            return false;
        }
        let apart = server.sentinels.parted(self.t).is_some();
        let before = if apart { Before::GoesOn } else { before };
        let replica = replicas[self.random.pick(replicas.len())];
        if !apart && self.random.chance(60) {
            self.servers[node].copy_to(replica);
        }
        self.fail_over(node, replica, before);
        self.servers[node].named == replica
    }

    /// The sentinels have replaced a master. Returns whether it goes on.
    pub(super) fn promoted(&mut self, node: usize, old: usize, before: Before) -> bool {
        let server = &mut self.servers[node];
        let (t, new) = (self.t, server.named);
        server.sentinels.promoted(t, new, &mut self.random);
        let goes_on = before == Before::GoesOn;
        if goes_on {
            self.goes_on_in_set(node, old);
        }
        goes_on
    }

    /// A master was replaced, and is told so only after a while.
    fn goes_on_in_set(&mut self, node: usize, old: usize) {
        let lonely = self.t + self.random.below(LAG);
        let server = &mut self.servers[node];
        let healed = server.sentinels.parted(self.t).map(|parted| parted.until);
        if self.conditions.min_replicas() {
            server.sentinels.lonely.entry(old).or_insert(lonely);
        }
        let long = if self.random.chance(80) { 600 } else { 30 };
        let told = healed.unwrap_or(self.t) + self.random.below(long * MS);
        self.counts[Count::Unaware] += 1;
        self.at(told, Event::Demoted(node, old));
        let client = self.random.pick(self.clients.len());
        if self.random.chance(50) {
            self.stops_soon(client, node);
        } else if self.random.chance(50) {
            self.cut_all(|one| one.node == node && one.client == client);
        }
    }
}
