//! Which node is written to and read first, and how long it is waited for before others are.
//!
//! Reading blocks on one node, so the order decides what a slow one costs: nodes that make the reader
//! wait come after those that do not. With nodes at different distances the quorum's slowest decides
//! then, and not the first in the list.

use std::time::{Duration, Instant};

use crate::protocol::quorum::NodeSet;

/// A node is waited for so long at a time: about a tick of the kernel's clock, which is as short as a
/// socket can wait.
const SLICE: Duration = Duration::from_millis(4);
/// A node is read before one that is listed earlier only if it answers this much faster: order that
/// changes costs system calls.
const SAME_LAG: Duration = Duration::from_micros(200);
/// What is known of lags is halved so often: a node that was slow once is tried again.
const HALF_LIFE: Duration = Duration::from_millis(250);

pub(crate) struct Order {
    nodes: Vec<usize>,
    /// How long each node takes to answer.
    lags: Vec<Duration>,
    halve_at: Instant,
    /// Nodes whose lags are not: to try one of these again may cost a whole node timeout.
    kept: NodeSet,
    /// Nodes that did not answer while they were waited for, and have not since.
    in_vain: NodeSet,
    /// Which of them is waited for again, where there are no others.
    turn: usize,
}

impl Order {
    pub(crate) fn new(nodes: usize, now: Instant) -> Order {
        Order {
            nodes: (0..nodes).collect(),
            lags: vec![Duration::ZERO; nodes],
            halve_at: now + HALF_LIFE,
            kept: NodeSet::EMPTY,
            in_vain: NodeSet::EMPTY,
            turn: 0,
        }
    }

    fn lag(&self, node: usize) -> Duration {
        self.lags.get(node).copied().unwrap_or_default()
    }

    /// Nodes that did not answer while they were waited for, and have not since.
    pub(crate) fn slow(&self) -> NodeSet {
        self.in_vain
    }

    /// A node cannot be waited for a little and then again: its lag is not halved.
    pub(crate) fn keep_lag(&mut self, node: usize) {
        self.kept.add(node);
    }

    /// The nearest of these.
    pub(crate) fn nearest(&self, any_of: NodeSet) -> usize {
        let found = self.nodes.iter().copied().find(|node| any_of.has(*node));
        found.unwrap_or_default()
    }

    /// Which of these to read, and how long to wait for it. `age`: how long ago a node was asked for what
    /// it is to answer next; one that has had its time is only looked at.
    pub(crate) fn reads(
        &mut self,
        any_of: NodeSet,
        age: impl Fn(usize) -> Duration,
    ) -> (usize, Duration) {
        let fresh = any_of.without(self.in_vain);
        if fresh.is_empty() {
            self.turn += 1;
            let next = any_of.iter().nth(self.turn % any_of.len().max(1));
            return (next.unwrap_or_default(), SLICE);
        }
        let node = self.nearest(fresh);
        let had_time = age(node) > SLICE.max(2 * self.lag(node));
        (node, if had_time { Duration::ZERO } else { SLICE })
    }

    /// A node answered what it was asked a time `took` ago; the reader waited for that so long.
    pub(crate) fn heard(&mut self, node: usize, took: Duration, waited: Duration, now: Instant) {
        self.in_vain.remove(node);
        // One that answered while others were waited for took at most as long as they did.
        let lag = self.lag(node);
        if took < lag || waited > took / 2 {
            self.learn(node, took, now);
        }
    }

    /// A node that was asked a time `age` ago was read, and there was nothing yet. One that is known to be
    /// far has twice its usual time.
    pub(crate) fn in_vain(&mut self, node: usize, age: Duration, now: Instant) {
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
            for (node, lag) in self.lags.iter_mut().enumerate() {
                *lag /= if self.kept.has(node) { 1 } else { 2 };
            }
        }
        // One pass is enough: each time it is learned what one node takes.
        for at in 1..self.nodes.len() {
            if let [before, after] = *self.nodes.get(at - 1..=at).unwrap_or_default()
                && self.lag(before) > 2 * self.lag(after) + SAME_LAG
            {
                self.nodes.swap(at - 1, at);
            }
        }
    }
}
