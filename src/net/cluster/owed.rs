//! Debts to be sent on to other servers of a Redis Cluster. No call waits for them.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::protocol::node::debt::Debt;

#[derive(Default)]
pub(crate) struct Owed {
    pub(crate) queue: VecDeque<OwedRelease>,
    /// Whether a thread sends them.
    pub(crate) is_running: bool,
    /// How many threads are closing lanes, which may add more.
    pub(crate) closing: usize,
    /// When the last `Redlock` was dropped. Some `Lock`s may still be alive.
    pub(crate) closed_at: Option<Instant>,
    /// When the last debt was added.
    pub(crate) added_at: Option<Instant>,
}

impl Owed {
    /// How long ago the lanes were closed and the last debt was added. `None` if they are open.
    pub(crate) fn closed_for(&self, now: Instant) -> Option<Duration> {
        let since = self.closed_at.max(self.added_at);
        let since = since.filter(|_| self.closed_at.is_some());
        since.map(|since| now.saturating_duration_since(since))
    }
}

pub(crate) struct OwedRelease {
    pub(crate) node: usize,
    pub(crate) debt: Debt,
    /// How often the release was sent on.
    pub(crate) tries: u32,
}
