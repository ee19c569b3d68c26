//! The connections of a client object, which its clones share, and those of forked processes.

use std::sync::{Arc, OnceLock};

use crate::net::cluster::lane_closing::UsedLanes;
use crate::net::cluster::lanes::{Lane, Lanes};
use crate::net::driver::executor::Executor;
use crate::settings::options::Options;
use crate::values::sync::{
    atomic::{AtomicU32, Ordering},
    thread,
};

/// The connections of one process, and those of processes that were forked from it.
pub(super) struct Family {
    pub(super) base: Arc<Lane>,
    /// The lanes, if nodes are Redis Clusters. Then nothing of `base` is used except the nodes as they were given.
    pub(super) lanes: Option<UsedLanes>,
    children: [Child; 4],
}

/// The connections of a forked process. The child never waits for anything that another process began: the thread of
/// the parent that began it does not exist in the child.
#[derive(Default)]
struct Child {
    /// The id of the process that uses this place. Zero: none does.
    process: AtomicU32,
    family: OnceLock<Arc<Family>>,
}

impl Family {
    pub(super) fn new(executor: Executor, options: &Options) -> Arc<Family> {
        let base = Arc::new(Lane::only(executor));
        Arc::new(Family {
            lanes: Lanes::new(&base, options).map(UsedLanes),
            base,
            children: Default::default(),
        })
    }

    /// The family of this process, or of a process between it and the one that made `self`: in a grandchild the
    /// place of the child is taken, so it takes the next free place, or looks further in the child's family.
    pub(super) fn child(&self, options: &Options) -> Arc<Family> {
        let process = std::process::id();
        for child in &self.children {
            let taken =
                child
                    .process
                    .compare_exchange(0, process, Ordering::AcqRel, Ordering::Acquire);
            match taken {
                // No other thread of this process sets it.
                Ok(_) => {
                    let family = Family::new(self.base.driver.executor().afresh(options), options);
                    let _ = child.family.set(family.clone());
                    return family;
                }
                // Another thread of this process is about to set it.
                Err(owner) if owner == process => loop {
                    if let Some(family) = child.family.get() {
                        return family.clone();
                    }
                    thread::yield_now();
                },
                Err(_) => {}
            }
        }
        let older = self.children.iter().find_map(|child| child.family.get());
        let fresh = || Family::new(self.base.driver.executor().afresh(options), options);
        older.cloned().unwrap_or_else(fresh)
    }
}

impl Drop for Family {
    /// Closes the lanes while other servers can be found for the releases that are left.
    fn drop(&mut self) {
        if let Some(lanes) = self.lanes.as_ref().filter(|_| self.base.is_ours()) {
            lanes.close();
        }
    }
}
