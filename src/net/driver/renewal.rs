//! A kept lock, whose lease its holder shares with threads, and what is reported of it to the program.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::errors::error::Error;
use crate::errors::lock_error::LostReason;
use crate::errors::shown::{Shown, Unquoted};
use crate::net::driver::observe::{Event, Observer};
use crate::protocol::calls::lease::renewals::Due;
use crate::protocol::calls::lease::{Lease, Loss};
use crate::values::clock::Point;
use crate::values::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU64, Ordering},
    guarded, lock, start_thread, wait_for,
};

type Callback = Box<dyn FnOnce(LostReason) + Send>;
/// A callback for a lock that is about to expire, and the validity at which it is called.
type Warning = (Duration, Box<dyn FnOnce(Duration) + Send>);

/// A lease that the holder shares with the threads. Once the holder has ended the renewal, the threads no longer touch
/// it.
pub(crate) struct Renewal {
    pub(super) id: u64,
    pub(crate) lease: Mutex<Lease>,
    /// Notified when the lock is lost.
    changed: Condvar,
    /// The callbacks for the loss of the lock. (If this mutex and that of the lease are held, this one was locked first.)
    callbacks: Mutex<Vec<Callback>>,
    /// The callbacks before that. (As with `callbacks`.)
    warnings: Mutex<Vec<Warning>>,
    /// Whether the thread that calls these in time could not be started.
    pub(super) is_unwatched: AtomicBool,
    /// The time of the next renewal, if the thread that renews the lock looks at it before then.
    pub(super) next_renewal: Mutex<Option<Instant>>,
    pub(super) observer: Observer,
    /// The result that the observer has not been notified of.
    pub(super) result: Mutex<Option<RenewalReport>>,
}

/// The validity that was left, and the result of the renewal.
pub(super) type RenewalReport = (Duration, Result<(), Error>);

/// The detector of a loss.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum DetectedBy {
    Holder,
    Thread,
}

impl Renewal {
    pub(crate) fn new(lease: Lease, observer: Observer) -> Renewal {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Renewal {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            lease: Mutex::new(lease),
            changed: Condvar::new(),
            callbacks: Mutex::default(),
            warnings: Mutex::default(),
            is_unwatched: AtomicBool::new(false),
            next_renewal: Mutex::default(),
            observer,
            result: Mutex::default(),
        }
    }

    /// Whether the holder has not ended the renewal.
    pub(crate) fn is_active(&self) -> bool {
        lock(&self.lease).is_kept()
    }

    pub(super) fn resource(&self) -> Arc<[u8]> {
        lock(&self.lease).key.resource.clone()
    }

    /// For the threads: the lease, if the renewal is active and the lock valid. Reports a loss that this detects.
    pub(super) fn valid_lease(self: &Arc<Self>, now: Point) -> Option<MutexGuard<'_, Lease>> {
        let mut lease = lock(&self.lease);
        if !lease.is_kept() {
            return None;
        }
        match lease.watch(now) {
            Ok(_) => Some(lease),
            Err(loss) => {
                drop(lease);
                self.report(loss, DetectedBy::Thread);
                None
            }
        }
    }

    /// The next step of the thread that renews the lock, which may look at it before a renewal is due.
    pub(super) fn due(&self, now: Point) -> Due {
        let next = *lock(&self.next_renewal);
        lock(&self.lease).due(next, now)
    }

    /// Notifies the program of a new loss.
    pub(crate) fn report(self: &Arc<Self>, loss: Loss, detected_by: DetectedBy) {
        if !loss.is_new {
            return;
        }
        let reason = loss.reason;
        self.changed.notify_all();
        let callbacks = std::mem::take(&mut *lock(&self.callbacks));
        for callback in callbacks {
            self.call(move || callback(reason));
        }
        let renewal = self.clone();
        let notify = move || {
            renewal.observer.lost(&renewal.lease, reason);
            let (resource, text) = (renewal.resource(), reason.text());
            say!(
                warn,
                lock:% = Unquoted(&resource), reason = text;
                "kept lock {} is lost: {text}", Shown(&resource)
            );
        };
        match detected_by {
            DetectedBy::Holder => notify(),
            // The program's observer and logger may take their time, and this thread works for other locks, too. (If no
            // thread can be started, the loss is not logged.)
            DetectedBy::Thread => {
                if start_thread("redlock-log", notify).is_err() {
                    self.observer.lost(&self.lease, reason);
                }
            }
        }
    }

    /// The lease, unless the holder has ended the renewal.
    pub(super) fn kept(&self) -> Option<MutexGuard<'_, Lease>> {
        Some(lock(&self.lease)).filter(|lease| lease.is_kept())
    }

    /// Calls a callback in a separate thread, so that a slow one delays nothing else.
    fn call(self: &Arc<Self>, callback: impl FnOnce() + Send + 'static) {
        let callback = Arc::new(Mutex::new(Some(callback)));
        let take = {
            let (renewal, callback) = (self.clone(), callback.clone());
            move || {
                let callback = lock(&callback).take();
                // Never after release or stop, however long the thread took to start.
                if let Some(callback) = callback
                    && renewal.is_active()
                {
                    callback();
                }
            }
        };
        if start_thread("redlock-lost", take.clone()).is_err() {
            // No thread can be started: late is better than never.
            guarded(take);
        }
    }

    /// Registers a callback, or calls it at once if the loss has been detected.
    pub(crate) fn on_lost(self: &Arc<Self>, callback: Callback) {
        let mut callbacks = lock(&self.callbacks);
        let lost = lock(&self.lease).lost;
        match lost {
            None => callbacks.push(callback),
            Some(reason) => {
                drop(callbacks);
                self.call(move || callback(reason));
            }
        }
    }

    /// Registers a callback for a lock that is about to expire.
    pub(crate) fn on_expiring(&self, warning: Warning) {
        lock(&self.warnings).push(warning);
    }

    /// Calls the callbacks whose time has come. Returns when to look again: the next one's time, or the end of the
    /// validity.
    pub(super) fn warn(self: &Arc<Self>, now: Point) -> Instant {
        let mut warnings = lock(&self.warnings);
        let lease = lock(&self.lease);
        let (left, mut next) = (lease.left(now), lease.expires(now));
        let is_due = |(margin, _): &mut Warning| match lease.expiring(*margin, now) {
            None => true,
            Some(at) => {
                next = next.min(at);
                false
            }
        };
        let due: Vec<_> = warnings.extract_if(.., is_due).collect();
        drop(lease);
        drop(warnings);
        for (_, warning) in due {
            let renewal = self.clone();
            self.call(move || {
                // The thread may have started late: a loss meanwhile is reported by `on_lost` alone.
                let left = left.min(lock(&renewal.lease).left(Point::now()));
                if !left.is_zero() {
                    warning(left);
                }
            });
        }
        next
    }

    /// Waits until a loss is detected, for at most `time`.
    pub(crate) fn wait(&self, time: Duration) {
        let lease = lock(&self.lease);
        if lease.lost.is_none() {
            drop(wait_for(&self.changed, lease, time));
        }
    }

    /// Notifies the observer of a renewal's result.
    pub(super) fn notify(&self) {
        let result = lock(&self.result).take();
        let lease = lock(&self.lease);
        // After a loss only the end is reported.
        if let Some((left, result)) = result
            && lease.is_kept()
            && lease.lost.is_none()
        {
            let resource = lease.key.resource.clone();
            drop(lease);
            self.observer
                .notify(|| Event::extension(&resource, left, true, &result));
        }
    }

    /// Drops the callbacks: the holder has ended the renewal.
    pub(super) fn forget_callbacks(&self) {
        let callbacks = std::mem::take(&mut *lock(&self.callbacks));
        let warnings = std::mem::take(&mut *lock(&self.warnings));
        // Values that a callback owns may have a destructor that takes its time, or panics: the lock is released all
        // the same.
        for callback in callbacks {
            guarded(|| drop(callback));
        }
        for warning in warnings {
            guarded(|| drop(warning));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, channel};

    use super::*;
    use crate::proof::fixtures::{MS, key, ttl};
    use crate::values::arithmetic::Deadline;
    use crate::values::token::jitter;

    /// The warning was due two seconds ago, when the lock was valid, and its thread starts now.
    #[test]
    fn a_warning_whose_thread_starts_late_is_not_given_after_the_loss() {
        let now = Point::now();
        let due = Point {
            mono: now.mono.checked_sub(2000 * MS).unwrap(),
            wall: now.wall - 2000 * MS,
        };
        for (left, is_told) in [(60_000, true), (1000, false)] {
            let ttl = ttl(60_000 * MS);
            let deadline = Deadline::new(due, left * MS);
            let mut lease = Lease::new(key(b"a"), ttl, deadline);
            lease.keep(60_000 * MS, jitter, due);
            let renewal = Arc::new(Renewal::new(lease, Observer::default()));
            let (sender, told) = channel();
            let warn = move |left| sender.send(left).unwrap();
            renewal.on_expiring((70_000 * MS, Box::new(warn)));
            renewal.warn(due);
            match told.recv_timeout(60_000 * MS) {
                Ok(left) => assert!(is_told && !left.is_zero(), "{left:?}"),
                Err(RecvTimeoutError::Disconnected) => assert!(!is_told),
                Err(RecvTimeoutError::Timeout) => panic!("the thread does not end"),
            }
        }
    }
}
