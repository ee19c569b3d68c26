//! Debts that are to be sent on to other servers of a Redis Cluster, and that no call waits for.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::protocol::node::debt::Debt;

#[derive(Default)]
pub(crate) struct Owed {
    pub(crate) queue: VecDeque<OwedRelease>,
    /// A thread sends them.
    pub(crate) is_running: bool,
    /// How many threads are closing lanes, which may find more.
    pub(crate) closing: usize,
    /// When the program had no more use for them, but for locks that it still has.
    pub(crate) closed_at: Option<Instant>,
    /// When the last of them was added.
    pub(crate) added_at: Option<Instant>,
}

impl Owed {
    /// For how long nothing was added, and the program has had no more use for the lanes.
    pub(crate) fn closed_for(&self, now: Instant) -> Option<Duration> {
        let since = self.closed_at.max(self.added_at);
        let since = since.filter(|_| self.closed_at.is_some());
        since.map(|since| now.saturating_duration_since(since))
    }
}

pub(crate) struct OwedRelease {
    pub(crate) node: usize,
    pub(crate) debt: Debt,
    /// How often it was sent on.
    pub(crate) tries: u32,
}
