//! Releases that are to be sent on to other servers of a Redis Cluster, and that no call waits for.

use std::collections::VecDeque;
use std::time::Instant;

use crate::protocol::script::Key;

#[derive(Default)]
pub(crate) struct Owed {
    pub(crate) queue: VecDeque<OwedRelease>,
    /// A thread sends them.
    pub(crate) is_running: bool,
    /// How many threads are closing lanes, which may find more.
    pub(crate) ending: usize,
    /// When the program had no more use for them, but for locks that it still has.
    pub(crate) closed_at: Option<Instant>,
}

pub(crate) struct OwedRelease {
    pub(crate) node: usize,
    pub(crate) key: Key,
    /// How often it was sent on.
    pub(crate) tries: u32,
}
