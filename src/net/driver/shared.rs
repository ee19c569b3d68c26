//! The connections, the kept locks and the waiters that a `Redlock`, its clones and its locks share, or those of one shard.

use std::sync::Arc;

use crate::net::driver::driver::Driver;
use crate::net::driver::executor::Executor;
use crate::net::driver::observe::Observer;
use crate::net::driver::renewal_threads::Renewals;
use crate::net::driver::waiting_threads::WaitingThreads;

/// The state that a [`Redlock`](crate::Redlock), its clones and its locks share: the connections, and the kept locks.
pub(crate) struct Shared {
    pub(crate) driver: Arc<Driver>,
    pub(crate) renewals: Renewals,
    pub(crate) waiting_threads: Arc<WaitingThreads>,
}

impl Shared {
    pub(crate) fn new(executor: Executor) -> Shared {
        Shared {
            waiting_threads: Arc::new(WaitingThreads::new(&executor)),
            driver: Arc::new(Driver::new(executor)),
            renewals: Renewals::default(),
        }
    }

    /// Whether this is the process that made the connections, not a forked child. Check this before anything else is
    /// touched.
    pub(crate) fn is_ours(&self) -> bool {
        self.driver.is_ours()
    }

    pub(crate) fn observer(&self) -> &Observer {
        &self.driver.executor().observer
    }
}
