//! Which nodes a client can use, by what happens to servers, connections and processes alone; and the promises that follow
//! from that: no call fails where enough nodes can be used, and no loss stays unreported.

use super::basics::{LOOKS_AT_CLOCKS, MS, NODE_TIMEOUT, SLACK};
use super::client::{Doing, Keeping};
use super::world::{Count, World};
use crate::protocol::mutants::Promise;
use crate::values::node_set::NodeSet;

/// Longer than the pause before a node is connected anew (0.7 s), and than that takes.
const RECOVERS: u64 = 800 * MS;
/// A node that was silent for longer than a client waits is used again after at most this time, in which its worker reads what
/// it has answered. So is one whose client has stood still.
const RETURNS: u64 = 10 * MS;
/// Bytes that take longer on their way are held up.
const PROMPTLY: u64 = 3 * MS;
/// How often the nodes are looked at for the keys of kept locks.
const LOOKS: u64 = 5 * MS;

// ---- which nodes a client can use

impl World {
    /// Notes that something is in the way of a client to a node until then.
    pub(super) fn hinder(&mut self, c: usize, node: usize, until: u64) {
        let hindered = &mut self.clients[c].hindered[node];
        *hindered = until.max(*hindered);
    }

    /// Notes when bytes, or a new connection, come through.
    pub(super) fn comes_through(&mut self, c: usize, node: usize, at: u64) {
        if at > self.t + PROMPTLY {
            self.hinder(c, node, at);
        }
    }

    /// Since when a client can use a node: nothing was in the way, and the server takes commands. `None`: it cannot, or
    /// not for certain, as with the restart guard, where something has happened to the server.
    fn usable_since(&self, c: usize, node: usize) -> Option<u64> {
        let (client, server) = (&self.clients[c], &self.servers[node]);
        let steps = self.conditions.guarded && client.clocks.has_been_suspended();
        let changed = self.conditions.guarded && server.has_changed;
        if client.dead || steps || changed || self.conditions.is_set() || server.lacks_scripts() {
            return None;
        }
        let hindered = client.hindered[node].max(client.clocks.stands_until);
        let hindered = match hindered.max(server.troubled_until) {
            0 => 0,
            until => until + RETURNS,
        };
        let connection = client.driver.connections[node].map(|at| &self.net.connections[at]);
        let since = match connection {
            Some(one) if one.demoted => return None,
            Some(one) if one.is_open() => (hindered + RECOVERS).min(hindered.max(one.since)),
            _ => hindered + RECOVERS,
        };
        (since <= self.t).then_some(since)
    }

    /// The nodes that a client has been able to use since then.
    fn usable(&self, c: usize, since: u64) -> NodeSet {
        let is_usable = |node: &usize| self.usable_since(c, *node).is_some_and(|at| at <= since);
        (0..self.servers.len()).filter(is_usable).collect()
    }

    fn has(&self, node: usize, token: usize) -> bool {
        let mut locks = self.servers[node].locks(self.t);
        locks.any(|lock| lock.1 == token)
    }

    // ---- no call fails where enough nodes can be used

    /// An acquire has met too few nodes.
    pub(super) fn is_unserved(&mut self, c: usize, thread: usize) {
        let usable = self.usable(c, self.clients[c].threads[thread].since);
        self.counts[Count::Unserved] += 1;
        self.check(Promise::Available, usable.len() < self.quorum(), || {
            format!("client {c}: thread {thread} is unserved, and can use {usable:?}")
        });
    }

    /// A release has met too few nodes: those that the client can use do not decide whether it had the lock, by what they
    /// have answered.
    pub(super) fn is_unreleased(&mut self, c: usize, thread: usize, token: usize) {
        let usable = self.usable(c, self.clients[c].threads[thread].since);
        let (quorum, spare) = (self.quorum(), self.servers.len() - self.quorum());
        let on = &self.checks.tokens[token].on;
        let had = usable.and(on.rel.without(on.not_held));
        let unasked = usable.without(on.rel.or(on.not_held));
        let decide =
            had.len() >= quorum || usable.and(on.not_held).len() > spare || unasked.len() >= quorum;
        // Once so many nodes have failed that no majority is left, the others are not waited for (rule R9).
        let decide = decide && usable.len() >= quorum;
        self.counts[Count::Unserved] += 1;
        self.check(Promise::Available, !decide, || {
            format!("client {c}: the release of {token} is unserved, and can use {usable:?}: {had:?} had it")
        });
    }

    /// An extension, or a fencing token, has met too few nodes: those that the client can use do not decide whether it has
    /// the lock.
    pub(super) fn is_undecided(&mut self, c: usize, thread: usize, token: usize) {
        let usable = self.usable(c, self.clients[c].threads[thread].since);
        let held = usable.iter().filter(|node| self.has(*node, token)).count();
        let (quorum, spare) = (self.quorum(), self.servers.len() - self.quorum());
        // A permit in another slot is no vote.
        let decide =
            held >= quorum && self.conditions.permits().is_none() || usable.len() - held > spare;
        // Where no majority is left, no node is asked (rule R9): of two nodes, the one that lacks the lock alone does not tell.
        let decide = decide && usable.len() >= quorum;
        self.counts[Count::Unserved] += 1;
        self.check(Promise::Available, !decide, || {
            format!(
                "client {c}: {token} is unserved, and on {held} of {usable:?}, which it can use"
            )
        });
    }

    // ---- no loss stays unreported

    /// A kept lock that a majority no longer has is reported lost: by the next renewal, if a majority can be used, and so
    /// many nodes that lack it; and in any case when the ttl is over that they knew of.
    pub(super) fn watch_kept(&mut self) {
        if self.t < self.checks.looks_at {
            return;
        }
        self.checks.looks_at = self.t + LOOKS;
        for c in 0..self.clients.len() {
            for thread in 0..self.clients[c].threads.len() {
                let doing = &self.clients[c].threads[thread].doing;
                let Doing::Keeps(keeping) = doing else {
                    continue;
                };
                let (token, mut gone) = (keeping.token(), keeping.gone);
                for (node, gone) in gone.iter_mut().enumerate().take(self.servers.len()) {
                    *gone = (!self.has(node, token)).then_some(gone.unwrap_or(self.t));
                }
                if let Doing::Keeps(keeping) = &mut self.clients[c].threads[thread].doing {
                    keeping.gone = gone;
                }
                self.is_reported(c, thread);
            }
        }
    }

    fn is_reported(&mut self, c: usize, thread: usize) {
        let Doing::Keeps(keeping) = &self.clients[c].threads[thread].doing else {
            return;
        };
        if keeping.reported {
            return;
        }
        let spare = self.servers.len() - self.quorum();
        // When the last of so many had lost the key that the others are no majority; and could be asked, as a majority could.
        let nth = |mut times: Vec<u64>, count: usize| {
            times.sort_unstable();
            times.get(count - 1).copied()
        };
        let gone = nth(keeping.gone.into_iter().flatten().collect(), spare + 1);
        let Some(gone) = gone.filter(|_| !self.conditions.fails_over) else {
            return;
        };
        let usable = |node| self.usable_since(c, node);
        let lacks = |node: usize| Some(keeping.gone[node]?.max(usable(node)?));
        let nodes = 0..self.servers.len();
        let lacking = nth(nodes.clone().filter_map(lacks).collect(), spare + 1);
        let majority = nth(nodes.filter_map(usable).collect(), self.quorum());
        let asked = lacking.zip(majority).map(|(one, other)| one.max(other));
        let [by_renewal, at_last] = self.reports(c, keeping);
        let token = keeping.token();
        let clocks = &self.clients[c].clocks;
        // Threads that wait do not see a suspend before they look.
        let unseen = match clocks.has_been_suspended() {
            true => LOOKS_AT_CLOCKS,
            false => 0,
        };
        let wakes = gone.max(clocks.stands_until + unseen) + SLACK;
        self.counts[Count::GoneWhileKept] += 1;
        let late = asked.is_some_and(|since| self.t > since + by_renewal)
            || self.t > wakes.max(gone + at_last);
        self.check(Promise::LossReported, !late, || {
            format!("client {c}: {token} is gone since {gone}, which it could learn since {asked:?}, and is not reported lost")
        });
    }

    /// How long it takes at most until a loss is reported that a renewal can find; and one that none can.
    fn reports(&self, c: usize, keeping: &Keeping) -> [u64; 2] {
        let lease = &keeping.held.lease;
        let ttl = u64::try_from(lease.granted.duration().as_micros()).unwrap_or(u64::MAX / 2);
        let now = self.clients[c].clocks.point(self.t);
        // One renewal is under way, and the next one finds it, unless the bound is used up.
        let drift = ttl / 100 + SLACK;
        let at_last = ttl + drift;
        match lease.held(now) < keeping.max_hold {
            true => [NODE_TIMEOUT + (ttl / 3).max(NODE_TIMEOUT) + drift, at_last],
            false => [at_last, at_last],
        }
    }
}
