use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use crate::errors::cause::Cause;
use crate::errors::error::Error;
use crate::errors::node_errors::{NodeError, NodeErrors};
use crate::errors::shown::Shown;
use crate::lock::kept_lock::KeptLock;
use crate::lock::lock::Lock;
use crate::net::driver::executor::Executor;
use crate::protocol::calls::once_mark;
use crate::protocol::quorum::answer::Outcome;
use crate::values::arithmetic::spare;
use crate::values::clock::{self, Point};
use crate::values::last_run::LastRun;

impl Lock {
    /// Marks the work of this lock as done, as [`KeptLock::mark_done`] does.
    ///
    /// # Errors
    ///
    /// The errors of [`KeptLock::mark_done`].
    pub fn mark_done(&self, period: Duration, took: Duration) -> Result<(), Error> {
        self.mark_ended(period, took, Duration::ZERO)
    }

    /// Marks work as done that has ended this long `ago`.
    pub(crate) fn mark_ended(
        &self,
        period: Duration,
        took: Duration,
        ago: Duration,
    ) -> Result<(), Error> {
        if !self.key.kind.is_plain() {
            let text = "only the work of a plain lock is marked as done: not that of a semaphore, a read or write lock, or a \
                        lock on several names";
            return Err(Error::config(text));
        }
        // In a forked child the lease is not to be touched: a thread of the parent may have locked it.
        self.left()?;
        check_mark(self.route.first_lane().driver.executor(), self.resource())?;
        let label = self.key.label.clone();
        let ended = clock::wall().checked_sub(ago);
        let run = LastRun::new(ended.unwrap_or(UNIX_EPOCH), took, label);
        let rest = period.saturating_sub(ago);
        // The lease is locked for this statement alone: `lost` locks it, too.
        let op = once_mark::mark(&self.lease(), rest, &run, Point::now());
        let op = op.ok_or_else(|| self.lost())?;
        // Not when it is over only since the work has ended: then the mark was tried in time.
        if took >= period {
            return Err(Error::config(format!(
                "nothing is left of the period of {period:?} after work of {took:?}: no later holder would see the mark"
            )));
        }
        let answer = self.route.run(op);
        let reason = answer.lost_reason();
        match answer.outcome {
            Outcome::Yes(_) => Ok(()),
            Outcome::No => {
                self.gone(reason);
                Err(Error::lost(&self.key.resource, reason))
            }
            Outcome::Unavailable { errors, .. } => Err(Error::Unavailable(*errors)),
        }
    }
}

/// Fails if too few nodes are left without the Redis Clusters, which have the mark of this name in another slot.
pub(crate) fn check_mark(executor: &Executor, resource: &[u8]) -> Result<(), Error> {
    if !executor.has_companions_in_another_slot(resource) {
        return Ok(());
    }
    Err(Error::config(format!(
        "the work of the lock {} cannot be marked as done in a Redis Cluster, which has the mark in another slot: give the \
         name a {{tag}}, as in {{shop}}:a, or no }}",
        Shown(resource)
    )))
}

/// Fails if nodes that run no scripts leave too few for the mark, which is asked before the work runs.
pub(crate) fn check_scripts(executor: &Executor) -> Result<(), Error> {
    let lacking = executor.driver_state().core.without_scripts();
    if lacking.len() <= spare(executor.places().len()) {
        return Ok(());
    }
    let text = "it runs no scripts, so work cannot be marked as done (permit EVAL, or SCRIPT LOAD and EVALSHA)";
    let cause = Arc::new(Cause::NoMark(text));
    let places = executor.places().iter().enumerate();
    let failed = places.filter(|(node, _)| lacking.has(*node));
    let failed = failed.map(|(node, place)| NodeError {
        node,
        address: place.shown(),
        cause: cause.clone(),
    });
    let errors = NodeErrors::new(failed.collect(), None);
    Err(Error::Unavailable(errors.for_good()))
}

impl KeptLock {
    /// Marks the work of this lock as done, for the rest of the `period` that began when the work did: it has taken
    /// `took`. Until then [`Redlock::last_run`](crate::Redlock::last_run) returns it. The lock is still held. Call it if
    /// the work has succeeded, as [`Redlock::once_per`](crate::Redlock::once_per) does. Blocks like [`Lock::extend`].
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`]: the validity is over, or too few nodes hold the lock for a majority.
    /// - [`Error::Unavailable`]: too few nodes answered. Try again, and add the time that has passed to `took`: otherwise the
    ///   mark outlives its period by as much.
    /// - [`Error::Config`]: `took` is not less than `period`; the lock is not a plain one; or the nodes are a Redis Cluster,
    ///   and the name has a `}` and no [tag](crate::guide::deployments#what-to-set-in-a-cluster).
    pub fn mark_done(&self, period: Duration, took: Duration) -> Result<(), Error> {
        self.lock().mark_done(period, took)
    }
}
