use std::time::Duration;

use crate::errors::error::Error;
use crate::lock::lock::Lock;
use crate::net::driver::observe::Ending;
use crate::values::clock::Point;

/// How a leaked lock ends, whatever the nodes have answered: by itself.
const LEFT: (Ending, Ending) = (Ending::Leaked, Ending::Leaked);

impl Lock {
    /// Gives up the lock without releasing it: it cannot be taken until its ttl ends. Use it for a
    /// throttle ("at most once in 5 seconds"), and after the lock was handed to another process.
    /// [`leak_for`](Lock::leak_for) leaves it for a shorter time.
    pub fn leak(mut self) {
        if self.end() {
            let how = self.ending(Ending::Leaked);
            self.leave();
            self.notify_ended(how);
        }
    }

    /// Gives up the lock without releasing it: it cannot be taken for `time` from now, and can be after that. Use it if
    /// work must not be done again too soon, but the ttl has to be longer than that, because the work may be.
    ///
    /// The lock is shortened on the nodes, never prolonged: if less than `time` is left, it ends with its ttl. How long
    /// it lasts on the nodes is measured by their clocks. With a `time` of zero it is released. Waits for a majority to
    /// confirm that, as [`release`](Lock::release) does, unless its ttl ends no later. Until it ends,
    /// [`inspect`](crate::Redlock::inspect) and [`list`](crate::Redlock::list) show that its
    /// [holder has left it](crate::Holder::has_left). No process may [resume](crate::Redlock::resume) it: a node that is
    /// shortened late ends the lock of that process, too. Hand a lock over by [`leak`](Lock::leak).
    ///
    /// # Errors
    ///
    /// - [`Error::Lost`]: the lock had already been lost: its validity was over, or a majority no longer held it.
    /// - [`Error::Unavailable`]: too few nodes confirmed. The others are sent the rest of `time` when they are back, as
    ///   long as the program runs. The lock can be taken after `time`, or at the latest when its ttl ends.
    ///
    /// # Example
    ///
    /// A report that may take a minute, and is made no more often than every 10 seconds:
    ///
    /// ```no_run
    /// # use std::time::{Duration, Instant};
    /// # let redlock = redlock_sync::Redlock::new(["redis://127.0.0.1"])?;
    /// # fn make_report() {}
    /// if let Some(lock) = redlock.try_acquire("shop:report", Duration::from_secs(60))? {
    ///     let began = Instant::now();
    ///     make_report();
    ///     lock.leak_for(Duration::from_secs(10).saturating_sub(began.elapsed()))?;
    /// }
    /// # Ok::<(), redlock_sync::Error>(())
    /// ```
    pub fn leak_for(mut self, time: Duration) -> Result<(), Error> {
        if time.is_zero() {
            return self.release();
        }
        if !self.end() {
            return Err(self.lost());
        }
        self.leave();
        if let Err(reason) = self.validity() {
            return self.found_lost(reason);
        }
        let op = self.lease().shortening(time, Point::now());
        let ends_by_itself = op.only_write;
        let answer = self.route.run(op);
        if ends_by_itself {
            self.notify_ended(Ending::Leaked);
            return Ok(());
        }
        self.conclude(answer, LEFT)
    }

    /// Stops counting the lock as held here.
    fn leave(&self) {
        if self.key.kind.is_plain() {
            self.route
                .first_lane()
                .waiting_threads
                .held_here
                .remove(&self.key.resource);
        }
    }
}
