//! Threads that a query has left behind.

use std::sync::Weak;

use crate::values::sync::{Mutex, lock};

/// Threads of queries that have not ended and that nothing waits for: their nodes, and a reference that lives as long
/// as the thread does.
#[derive(Default)]
pub(crate) struct AbandonedThreads(Mutex<Vec<(usize, Weak<()>)>>);

impl AbandonedThreads {
    pub(crate) fn add(&self, node: usize, thread: Weak<()>) {
        lock(&self.0).push((node, thread));
    }

    pub(crate) fn has(&self, node: usize) -> bool {
        let mut threads = lock(&self.0);
        threads.retain(|(_, thread)| thread.strong_count() > 0);
        threads.iter().any(|(at, _)| *at == node)
    }
}
