//! The connections, the kept locks and the waiters that a `Redlock`, its clones and its locks share, or those of one shard.

use std::sync::Arc;

use crate::net::driver::driver::Driver;
use crate::net::driver::nodes::Nodes;
use crate::net::driver::observe::Observer;
use crate::net::driver::renewal_threads::Renewals;
use crate::net::driver::waiting_threads::WaitingThreads;

/// The state that a [`Redlock`](crate::Redlock), its clones and its locks share: the connections, and the kept locks.
pub(crate) struct Shared {
    pub(crate) driver: Arc<Driver>,
    pub(crate) renewals: Renewals,
    pub(crate) waiting: Arc<WaitingThreads>,
}

impl Shared {
    pub(crate) fn new(nodes: Nodes) -> Shared {
        Shared {
            waiting: Arc::new(WaitingThreads::new(&nodes)),
            driver: Arc::new(Driver::new(nodes)),
            renewals: Renewals::default(),
        }
    }

    /// Whether this is the process that made the connections, not a forked child. Check this before anything else is
    /// touched.
    pub(crate) fn is_ours(&self) -> bool {
        self.driver.is_ours()
    }

    pub(crate) fn observer(&self) -> &Observer {
        &self.driver.nodes().observer
    }
}
