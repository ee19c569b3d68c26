//! Clocks of servers that are set forward and back, while clients watch them.
//!
//! Nothing protects a client that has not seen a clock before it is set, or sees it neither before nor after it is set
//! there and back. So a clock is set only if all clients have seen it since it was last set, and by more than they may
//! fail to notice.

use std::time::Duration;

use super::basics::{LONGEST, MS};
use super::counts::trace;
use super::world::{Count, World};

/// Added to what the bounds of clients leave unnoticed: the tolerance, and what rates add until they look.
const UNSEEN: u64 = 25 * MS;

impl World {
    /// The clock of a node is set, or those of all nodes.
    pub(super) fn set_clocks(&mut self, node: usize) {
        let all = self.random.chance(50);
        let forward = self.random.chance(70);
        let size = self.random.below(2 * LONGEST);
        for at in 0..self.servers.len() {
            if all || at == node {
                self.set_clock(at, forward, size);
            }
        }
    }

    fn set_clock(&mut self, node: usize, forward: bool, size: u64) {
        let instance = self.servers[node].named;
        let here = &self.servers[node].instances[instance];
        // The master before may go on: only its successor's age keeps it from holding locks meanwhile.
        if here.is_replica || here.was_promoted_lately(self.t) {
            return;
        }
        let alive = (0..self.clients.len()).filter(|c| !self.clients[*c].dead);
        let unseen: Option<Vec<u64>> = alive.map(|c| self.unseen(c, node, forward)).collect();
        let Some(unseen) = unseen.and_then(|each| each.into_iter().max()) else {
            return;
        };
        let by = i64::try_from(unseen + UNSEEN + size).unwrap();
        let by = if forward { by } else { -by };
        trace!(self, "the clock of node {node} is set by {by} us");
        self.counts[Count::ClocksSet] += 1;
        self.servers[node].has_changed = true;
        self.servers[node].instances[instance].clock.set(self.t, by);
        // Numbers that come from clocks are no longer in order.
        self.checks.uncounted = true;
    }

    /// How far a clock could be set forward without being noticed by a client. `None`: it does not watch that clock, or
    /// has not seen that it was set the other way.
    fn unseen(&self, c: usize, node: usize, forward: bool) -> Option<u64> {
        let server = &self.servers[node];
        let (client, now) = (&self.clients[c], self.now(c));
        let watched = client.core.watched(node, now)?;
        if watched.run_id != server.run_id(node, server.named) {
            return None;
        }
        let here = &server.instances[server.named];
        let other_way = here.clock.last_set.filter(|(_, by)| (*by > 0) != forward);
        if other_way.is_some_and(|(at, _)| client.clocks.time(watched.read) <= at + MS) {
            return None;
        }
        let shown = Duration::from_micros(here.time(self.t));
        let unseen = watched.latest.saturating_sub(shown).as_micros();
        u64::try_from(unseen).ok()
    }
}
