//! The servers behind one name: their data are copied at any moment, one of them is promoted, and the master before
//! goes on for a while. They are flushed, evict keys, and begin a new history without a loss.

use super::basics::{MARGIN, MS};
use super::counts::trace;
use super::world::{Count, Event, World};

/// The behaviour of a master whose place another one takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Before {
    /// The old master ends, and is started as a replica.
    Ends,
    /// The old master becomes a replica, and closes nothing.
    Follows,
    /// The old master becomes a replica only after a while.
    GoesOn,
}

impl World {
    pub(super) fn history(&mut self) -> u64 {
        self.agenda.order += 1;
        self.agenda.order
    }

    /// Something happens to the servers behind a name.
    pub(super) fn change_servers(&mut self, node: usize) {
        if self.quiet {
            return;
        }
        if self.conditions.is_set() {
            return self.change_set(node);
        }
        self.servers[node].has_changed = true;
        let replicas = self.servers[node].replicas();
        let replica = match replicas.is_empty() {
            true => None,
            false => Some(replicas[self.random.pick(replicas.len())]),
        };
        match (self.random.below(22), replica) {
            (0..8, Some(replica)) => self.servers[node].copy_to(replica),
            (8..10, Some(replica)) => self.fail_over(node, replica, Before::Ends),
            (10..13, Some(replica)) => self.fail_over(node, replica, Before::GoesOn),
            (13..17, Some(replica)) => {
                let back = self.servers[node].named;
                self.fail_over(node, replica, Before::Follows);
                let at = self.t + self.random.below(20 * MS);
                self.at(at, Event::Back(node, back));
            }
            (17 | 18, _) => {
                trace!(self, "node {node} is flushed");
                self.counts[Count::Flushes] += 1;
                self.servers[node].here_mut().flush();
            }
            (20 | 21, _) => {
                trace!(self, "node {node} evicts keys");
                self.counts[Count::Evictions] += 1;
                let (t, random) = (self.t, &mut self.random);
                self.servers[node].here_mut().evict(t, random);
            }
            (19, Some(replica)) if self.random.chance(50) => {
                trace!(self, "node {node}: {replica} is a new server");
                let history = self.history();
                let new = &mut self.servers[node].instances[replica];
                new.store.clear();
                new.start(self.t, history, false);
                new.synced = false;
            }
            (19, _) => {
                let history = self.history();
                trace!(self, "node {node} begins the history {history}");
                self.servers[node].here_mut().history = history;
            }
            _ => {}
        }
    }

    /// A replica takes the place of its master, perhaps without the last of its data.
    pub(super) fn fail_over(&mut self, node: usize, replica: usize, before: Before) {
        let goes_on = before == Before::GoesOn;
        let copies = if goes_on && self.conditions.is_fragile() {
            80
        } else {
            40
        };
        if !self.conditions.is_set() && self.random.chance(copies) {
            self.servers[node].copy_to(replica);
        }
        let history = self.history();
        let server = &mut self.servers[node];
        let new = &mut server.instances[replica];
        if !new.synced || !new.is_replica {
            return;
        }
        (new.is_replica, new.promoted, new.promoted_at) = (false, true, self.t);
        new.history = history;
        let old = std::mem::replace(&mut server.named, replica);
        (server.asked, server.has_moved) = (replica, true);
        trace!(
            self,
            "node {node} fails over from {old} to {replica}: {history}, {before:?}"
        );
        self.counts[Count::Failovers] += 1;
        if self.conditions.is_set() && self.promoted(node, old, before) {
            return;
        }
        self.cut_subscriptions(true, |_, of| of == node);
        if goes_on {
            // The old master goes on as far as the clocks allow; some of its clients have to connect anew, and find the
            // new one.
            let longest = MARGIN * 4 / 5;
            let until = match self.random.chance(50) {
                true => longest,
                false => self.random.below(longest),
            };
            let client = self.random.pick(self.clients.len());
            self.cut_all(|one| one.node == node && one.client == client);
            if self.conditions.is_fragile() {
                self.hurry(client, until / 2);
            }
            return self.at(self.t + until, Event::Demoted(node, old));
        }
        if before == Before::Follows && self.conditions.is_fragile() && self.random.chance(50) {
            // Bytes under way meanwhile arrive when the server is a master again.
            let until = self.t + 20 * MS;
            for connection in &mut self.net.connections {
                if connection.node == node && connection.instance == old {
                    connection.hold(until, true, false);
                }
            }
        }
        self.servers[node].demote_instance(old);
        if before == Before::Ends {
            self.end_instance(node, old);
        }
    }

    /// The master before takes its place again, with the data of the one that took it over; or it gets them now, and
    /// takes its place later, without later changes.
    pub(super) fn back(&mut self, node: usize, instance: usize) {
        let here = &self.servers[node].instances[instance];
        if !here.is_replica || self.quiet {
            return;
        }
        let set = self.conditions.is_set();
        if set && !self.servers[node].sentinels.can_bring_back(self.t) {
            return;
        }
        if here.synced && self.conditions.is_fragile() {
            return self.fail_over(node, instance, Before::Follows);
        }
        self.servers[node].copy_to(instance);
        if self.conditions.is_fragile() && self.random.chance(40) {
            let at = self.t + self.random.below(250 * MS);
            return self.at(at, Event::Back(node, instance));
        }
        self.fail_over(node, instance, Before::Follows);
    }

    pub(super) fn demoted(&mut self, node: usize, instance: usize) {
        trace!(self, "node {node}: {instance} is a replica");
        self.servers[node].demote_instance(instance);
        if self.random.chance(30) {
            self.cut_all(|one| one.node == node && one.instance == instance);
        }
    }
}
