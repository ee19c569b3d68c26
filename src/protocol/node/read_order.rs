//! Which node is written to and read first, and how long it is waited for before others.
//!
//! Reading blocks on one node, so the order decides what a slow one costs: nodes that make the reader wait come after
//! those that do not. If nodes are at different distances, the quorum's slowest node decides then, and not the first in
//! the list.

use std::time::{Duration, Instant};

use crate::values::node_set::NodeSet;

/// How long a node is waited for at a time: about a tick of the kernel's clock, which is as short as a
/// socket can wait.
pub(crate) const SLICE: Duration = Duration::from_millis(4);
/// A node is read before one that is listed earlier only if it answers this much faster: a changing order costs system
/// calls.
const SAME_LAG: Duration = Duration::from_micros(200);
/// The interval at which the stored lags are halved: a node that was slow once is tried again.
const HALF_LIFE: Duration = Duration::from_millis(250);

struct Order {
    nodes: Vec<usize>,
    /// How long each node takes to answer.
    lags: Vec<Duration>,
    halve_at: Instant,
    /// Nodes that did not answer while they were waited for, and have not since.
    in_vain: NodeSet,
    /// Which of those nodes is waited for next, if there are no others.
    turn: usize,
}

impl Order {
    fn new(nodes: usize, now: Instant) -> Order {
        Order {
            nodes: (0..nodes).collect(),
            lags: vec![Duration::ZERO; nodes],
            halve_at: now + HALF_LIFE,
            in_vain: NodeSet::EMPTY,
            turn: 0,
        }
    }

    fn lag(&self, node: usize) -> Duration {
        self.lags.get(node).copied().unwrap_or_default()
    }

    /// Nodes that did not answer while they were waited for, and have not since.
    fn slow(&self) -> NodeSet {
        self.in_vain
    }

    /// The nearest node of `any_of`.
    fn nearest(&self, any_of: NodeSet) -> usize {
        let found = self.nodes.iter().copied().find(|node| any_of.has(*node));
        found.unwrap_or_default()
    }

    /// The node to read, and how long to wait for it. `had`: whether a node has had this much time for what it answers
    /// next. Then it is only probed.
    fn reads(
        &mut self,
        any_of: NodeSet,
        had: impl Fn(usize, Duration) -> bool,
    ) -> (usize, Duration) {
        let fresh = any_of.without(self.in_vain);
        if fresh.is_empty() {
            self.turn += 1;
            let next = any_of.iter().nth(self.turn % any_of.len().max(1));
            return (next.unwrap_or_default(), SLICE);
        }
        let node = self.nearest(fresh);
        let had_time = had(node, SLICE.max(2 * self.lag(node)));
        (node, if had_time { Duration::ZERO } else { SLICE })
    }

    /// Notes that a node answered after `took`. `since`: when the reader began to wait for it.
    fn heard(&mut self, node: usize, took: Duration, since: Instant, now: Instant) {
        self.in_vain.remove(node);
        // A node that answered while others were waited for took at most as long as they did.
        let lag = self.lag(node);
        if took < lag || since + took / 2 < now {
            self.learn(node, took, now);
        }
    }

    /// Notes that a node that was asked `age` ago was read without a result. A distant node has twice its usual time.
    fn in_vain(&mut self, node: usize, age: Duration, now: Instant) {
        let lag = self.lag(node);
        if age >= 2 * lag {
            self.in_vain.add(node);
            self.learn(node, lag.max(age), now);
        }
    }

    fn learn(&mut self, node: usize, lag: Duration, now: Instant) {
        if let Some(known) = self.lags.get_mut(node) {
            *known = lag;
        }
        if now > self.halve_at {
            self.halve_at = now + HALF_LIFE;
            self.lags.iter_mut().for_each(|lag| *lag /= 2);
        }
        // One pass is enough: each call changes one node's lag.
        for at in 1..self.nodes.len() {
            if let [before, after] = *self.nodes.get(at - 1..=at).unwrap_or_default()
                && self.lag(before) > 2 * self.lag(after) + SAME_LAG
            {
                self.nodes.swap(at - 1, at);
            }
        }
    }
}

/// The leader's reads.
pub(crate) struct Reader {
    order: Order,
    /// When the reader began to wait for the node that it reads from.
    since: Instant,
    /// Whether no read has been in vain since something was last sent.
    replies_flowing: bool,
}

impl Reader {
    pub(crate) fn new(nodes: usize, now: Instant) -> Reader {
        Reader {
            order: Order::new(nodes, now),
            since: now,
            replies_flowing: false,
        }
    }

    /// Nodes that did not answer while they were waited for, and have not since.
    pub(crate) fn slow(&self) -> NodeSet {
        self.order.slow()
    }

    #[inline]
    pub(crate) fn nearest(&self, any_of: NodeSet) -> usize {
        self.order.nearest(any_of)
    }

    pub(crate) fn replies_flowing(&self) -> bool {
        self.replies_flowing
    }

    pub(crate) fn sent(&mut self) {
        self.replies_flowing = true;
    }

    /// The node to read, and until when. `pending_since`: when a node was sent what it answers next.
    pub(crate) fn reads(
        &mut self,
        any_of: NodeSet,
        pending_since: impl Fn(usize) -> Option<Instant>,
        now: Instant,
    ) -> (usize, Instant) {
        self.since = now;
        let had = |node, time| pending_since(node).is_some_and(|since| since + time <= now);
        let (node, wait) = self.order.reads(any_of, had);
        (node, now + wait)
    }

    /// Notes a read that does not wait.
    pub(crate) fn probes(&mut self, now: Instant) {
        self.since = now;
    }

    /// Notes that a node answered a command that was sent then.
    #[inline]
    pub(crate) fn heard(&mut self, node: usize, sent: Instant, now: Instant) {
        let took = now.saturating_duration_since(sent);
        self.order.heard(node, took, self.since, now);
    }

    /// The time for which a read found nothing: when it began, since the program may have slept after it ended.
    pub(crate) fn found_nothing(&self) -> Instant {
        self.since
    }

    /// Notes that a node has not answered yet what it was sent `age` ago.
    pub(crate) fn in_vain(&mut self, node: usize, age: Duration, now: Instant) {
        self.order.in_vain(node, age, now);
    }

    /// Notes that replies no longer arrive promptly. Returns whether they did.
    pub(crate) fn stopped_flowing(&mut self) -> bool {
        std::mem::take(&mut self.replies_flowing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::clock;

    const MS: Duration = Duration::from_millis(1);

    /// Reads a quorum of nodes that answer after these times. Returns which were read, and how long that took.
    fn round(
        order: &mut Order,
        takes: &[Duration],
        quorum: usize,
        started: Instant,
    ) -> (Vec<usize>, Duration) {
        let (mut owing, mut read, mut spent) =
            (NodeSet::first(takes.len()), Vec::new(), Duration::ZERO);
        while read.len() < quorum {
            let (node, wait) = order.reads(owing, |_, time| spent >= time);
            let before = spent;
            if takes[node] <= spent + wait {
                spent = spent.max(takes[node]);
                order.heard(node, spent, started + before, started + spent);
                owing.remove(node);
                read.push(node);
            } else {
                spent += wait;
                order.in_vain(node, spent, started + spent);
            }
        }
        (read, spent)
    }

    #[test]
    fn a_far_node_listed_first_is_read_last() {
        let now = clock::instant();
        let mut order = Order::new(3, now);
        let takes = [40 * MS, MS / 10, MS / 10];
        let (_, first) = round(&mut order, &takes, 2, now);
        assert!(first <= SLICE, "{first:?}");
        for i in 1..10 {
            let (read, spent) = round(&mut order, &takes, 2, now + i * MS);
            assert_eq!((read, spent), (vec![1, 2], MS / 10));
        }
    }

    #[test]
    fn nodes_that_are_silent_cost_one_slice_together() {
        let now = clock::instant();
        for silent in [[0, 1], [0, 4], [1, 2], [2, 4]] {
            let mut order = Order::new(5, now);
            let mut takes = [MS / 10; 5];
            round(&mut order, &takes, 3, now);
            silent
                .iter()
                .for_each(|node| takes[*node] = 3600 * 1000 * MS);
            let (read, spent) = round(&mut order, &takes, 3, now + MS);
            assert!(spent <= SLICE + MS, "{silent:?}: {spent:?}");
            assert!(silent.iter().all(|node| !read.contains(node)));
        }
    }

    #[test]
    fn a_node_that_is_far_has_twice_its_usual_time_before_others_are_waited_for() {
        let now = clock::instant();
        let mut order = Order::new(2, now);
        let all = NodeSet::first(2);
        order.heard(1, 50 * MS, now - 50 * MS, now);
        order.heard(0, 40 * MS, now - 40 * MS, now);
        // The node is waited for, slice by slice.
        for age in [0, 20, 79] {
            assert_eq!(order.reads(all, |_, time| age * MS >= time), (0, SLICE));
            order.in_vain(0, age * MS, now);
        }
        order.in_vain(0, 80 * MS, now);
        assert_eq!(order.reads(all, |_, time| 80 * MS >= time), (1, SLICE));
    }

    #[test]
    fn a_node_that_was_slow_once_is_tried_again() {
        let now = clock::instant();
        let mut order = Order::new(3, now);
        round(&mut order, &[MS, MS, MS], 2, now);
        round(&mut order, &[90 * MS, MS, MS], 2, now + MS);
        let mut rounds = 0..;
        let found = rounds.find(|i| {
            let started = now + 10 * MS + i * 10 * MS;
            // One of the others is a little slow, too.
            round(&mut order, &[MS / 10, 2 * MS, MS / 10], 2, started)
                .0
                .contains(&0)
        });
        assert!(found.unwrap() < 400);
    }

    #[test]
    fn where_all_are_slow_each_has_its_turn() {
        let now = clock::instant();
        let mut order = Order::new(3, now);
        let all = NodeSet::first(3);
        all.iter()
            .for_each(|node| order.in_vain(node, 10 * MS, now));
        let turns: NodeSet = (0..3)
            .map(|_| order.reads(all, |_, time| 20 * MS >= time).0)
            .collect();
        assert_eq!(turns, all);
        assert_eq!(order.reads(all, |_, time| 20 * MS >= time).1, SLICE);
    }
}
