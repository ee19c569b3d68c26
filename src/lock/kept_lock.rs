use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::errors::cause::Cause;
use crate::errors::error::Error;
use crate::errors::lock_error::LostReason;
use crate::errors::node_errors::{NodeError, NodeErrors};
use crate::errors::text::human;
use crate::lock::lock::{Home, Lock};
use crate::lock::redlock::Redlock;
use crate::net::driver::renewal::Renewal;
use crate::net::driver::timetable::LONGEST_WAIT;
use crate::values::clock::{self, Point};
use crate::values::token::Token;

/// A held lock that is renewed automatically, until `max_hold` is used up. Dropping it releases it.
///
/// The lock is renewed every third of its ttl; a renewal that fails is retried until the deadline. If the lock is lost
/// all the same, its holder can find out: [`is_valid`](KeptLock::is_valid), [`ensure`](KeptLock::ensure),
/// [`lost`](KeptLock::lost), [`wait_lost`](KeptLock::wait_lost) and [`on_lost`](KeptLock::on_lost) all decide by the
/// local clock, whatever the nodes and the renewal are doing, and never contradict each other.
/// [`on_expiring`](KeptLock::on_expiring) warns before that. (In a forked child the lock is lost for all of them, and
/// nothing is called.)
///
/// See [`Lock::keep_alive`].
#[must_use = "a lock is released when it is dropped"]
pub struct KeptLock {
    /// The lock, whose lease is shared with the threads. However the lock ends, its renewal ends first.
    lock: Lock,
}

impl Lock {
    /// Renews the lock automatically, for at most `max_hold` counted from its acquisition. Each
    /// renewal asks for the ttl that was last granted, so the lock ends at the latest at `max_hold` plus
    /// that ttl. (Without a bound, a holder that hangs would keep the lock for ever.) The ttl of a lock that was
    /// [resumed](Redlock::resume) is the validity that was passed to `resume`: [extend](Lock::extend) it first.
    ///
    /// One thread renews all kept locks of a [`Redlock`] and its clones; it ends with the last of them.
    /// [`Options::max_extensions`](crate::Options::max_extensions) does not bound renewals.
    ///
    /// # Errors
    ///
    /// - [`Error::Config`]: `max_hold` is less than the time that the lock has been held already.
    /// - [`Error::Lost`]: its validity is over.
    /// - [`Error::Unavailable`]: the system has no thread for renewals now.
    /// - The errors of [`extend`](Lock::extend), if the lock has nearly expired and is therefore renewed at once.
    ///
    /// After any error the lock has been released.
    ///
    /// # Example
    ///
    /// A job of unknown length, with a short ttl so that others can go on soon if it dies:
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # let redlock = redlock_sync::Redlock::new(["redis://127.0.0.1"])?;
    /// # let records = [1, 2, 3];
    /// # fn write(_: i32) {}
    /// let lock = redlock.acquire("shop:import", Duration::from_secs(10))?;
    /// let lock = lock.keep_alive(Duration::from_secs(3600))?;
    /// for record in records {
    ///     lock.ensure(Duration::from_secs(1))?; // stop at once if it was lost
    ///     write(record);
    /// }
    /// lock.release()?;
    /// # Ok::<(), redlock_sync::Error>(())
    /// ```
    pub fn keep_alive(mut self, max_hold: Duration) -> Result<KeptLock, Error> {
        if !self.is_valid() {
            return Err(self.lost());
        }
        let (now, lease) = (Point::now(), self.lease());
        let (held, old) = (lease.held(now), lease.deadline);
        let due = lease.is_due(now).then(|| lease.granted);
        drop(lease);
        if max_hold < held {
            return Err(Error::config(format!(
                "max_hold is {max_hold:?}, but the lock has been held for {} already",
                human(held)
            )));
        }
        if let Some(ttl) = due {
            let renewed = self.renew(ttl);
            self.notify_extended(renewed, old, true)?;
        }
        let (lease, observer) = (
            self.lease().clone(),
            self.route.first_lane().observer().clone(),
        );
        let renewal = Arc::new(Renewal::new(lease, observer));
        self.home = Home::Shared(renewal.clone());
        match self.route.keep(&renewal, max_hold) {
            Ok(()) => Ok(KeptLock { lock: self }),
            Err(error) => Err(self.no_thread(&error)),
        }
    }

    /// The error if the thread that renews locks cannot be started, which may pass: no node can be sent a renewal then.
    fn no_thread(&self, error: &io::Error) -> Error {
        let cause = Arc::new(Cause::NoThread(error.to_string()));
        let places = self
            .route
            .first_lane()
            .driver
            .executor()
            .places()
            .iter()
            .enumerate();
        let failed = places.map(|(node, place)| NodeError {
            node,
            address: place.shown(),
            cause: cause.clone(),
        });
        Error::Unavailable(NodeErrors::new(failed.collect(), None))
    }
}

impl KeptLock {
    /// The locked resource.
    pub fn resource(&self) -> &[u8] {
        self.lock.resource()
    }

    /// All locked names: see [`Lock::resources`].
    pub fn resources(&self) -> impl Iterator<Item = &[u8]> {
        self.lock().resources()
    }

    /// Which of a semaphore's permits this is: see [`Lock::slot`].
    pub fn slot(&self) -> Option<u32> {
        self.lock().slot()
    }

    /// The random value that identifies this acquisition on the nodes.
    pub fn token(&self) -> &Token {
        self.lock.token()
    }

    /// How long the lock stays valid without another renewal. Zero once it is lost. Local: asks
    /// no node.
    pub fn remaining(&self) -> Duration {
        self.lock.remaining()
    }

    /// How long the lock will still be renewed: the rest of `max_hold`.
    pub fn hold_left(&self) -> Duration {
        let left = |_: &Arc<Renewal>| self.lock.lease().hold_left(Point::now());
        self.renewal().map_or(Duration::ZERO, left)
    }

    /// Whether the lock is still valid. Local: asks no node.
    pub fn is_valid(&self) -> bool {
        self.lock.is_valid()
    }

    /// Checks that the lock stays valid for at least `at_least`, even without another renewal. Call it before each
    /// critical write, with the time that the write may take. Local: asks no node.
    ///
    /// Choose at most half of the ttl: right before a renewal a little less than two thirds of it are left.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`], or [`Error::TooSlow`] if less is left than asked for (the lock is still held, and may
    /// still be renewed). With both the work must stop: once `max_hold` is used up, or the nodes are away, the rest of the
    /// validity runs out, and `TooSlow` comes before `Lost`.
    pub fn ensure(&self, at_least: Duration) -> Result<(), Error> {
        self.lock.ensure(at_least)
    }

    /// Waits until the lock is lost, for at most `timeout`. Returns true as soon as it is lost, false after the
    /// timeout.
    pub fn wait_lost(&self, timeout: Duration) -> bool {
        let end = clock::instant().checked_add(timeout);
        while let (Ok(remaining), Some(renewal)) = (self.validity(), self.renewal()) {
            let now = clock::instant();
            let rest = end.map_or(LONGEST_WAIT, |end| end.saturating_duration_since(now));
            if rest.is_zero() {
                return false;
            }
            renewal.wait(rest.min(remaining).min(LONGEST_WAIT));
        }
        true
    }

    /// Calls `f` when the lock is lost, or at once if it is lost already. `f` is not called after
    /// [`release`](KeptLock::release), [`stop`](KeptLock::stop) or a drop (a call that has already begun goes on). It
    /// runs on a separate thread, or, if none can be started, on the thread that found the loss. In a forked child, whose
    /// parent has the lock, it is never called.
    pub fn on_lost(&self, f: impl FnOnce(LostReason) + Send + 'static) {
        if let Some(renewal) = self.renewal() {
            renewal.on_lost(Box::new(f));
            let _ = self.validity();
            self.lock.route.first_lane().renewals.watch(renewal);
        }
    }

    /// Calls `f` once no more than `margin` of the validity is left, since no renewal has succeeded or `max_hold` is used up:
    /// before the loss, while there is time to save what has been done. `f` gets the validity that is left then. It is called at once if so
    /// little is left already, once at most, and not after the loss, [`release`](KeptLock::release),
    /// [`stop`](KeptLock::stop) or a drop, nor in a forked child. It runs on a separate thread, as with
    /// [`on_lost`](KeptLock::on_lost), and a renewal may succeed all the same. A lock that is found taken or deleted is
    /// lost without this call.
    ///
    /// Choose at most half of the ttl: right before a renewal a little less than two thirds of it are left.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # let redlock = redlock_sync::Redlock::new(["redis://127.0.0.1"])?;
    /// let lock = redlock.acquire("shop:import", Duration::from_secs(30))?;
    /// let lock = lock.keep_alive(Duration::from_secs(3600))?;
    /// lock.on_expiring(Duration::from_secs(10), |left| {
    ///     eprintln!("the lock cannot be renewed: {left:?} to save what is done");
    /// });
    /// # Ok::<(), redlock_sync::Error>(())
    /// ```
    pub fn on_expiring(&self, margin: Duration, f: impl FnOnce(Duration) + Send + 'static) {
        if let Some(renewal) = self.renewal() {
            renewal.on_expiring((margin, Box::new(f)));
            self.lock.route.first_lane().renewals.watch(renewal);
        }
    }

    /// How long ago the last renewal that succeeded began; or the acquisition, before the first. For a health check: with
    /// nodes that answer it stays below half of the ttl. Local: asks no node.
    pub fn since_renewal(&self) -> Duration {
        let since = |_: &Arc<Renewal>| self.lock.lease().since_renewal(Point::now());
        self.renewal().map_or(Duration::MAX, since)
    }

    /// Why the lock was lost, if it was.
    pub fn lost(&self) -> Option<LostReason> {
        self.validity().err()
    }

    /// Ends the renewal and returns the plain lock with its current deadline. A renewal that
    /// is under way at this moment may still reach the nodes; the deadline does not rely on it.
    pub fn stop(self) -> Lock {
        if self.renewal().is_some() {
            self.lock.end_renewal();
        }
        self.lock
    }

    /// Ends the renewal, releases the lock and waits for a majority to confirm it.
    ///
    /// # Errors
    ///
    /// The errors of [`Lock::release`]: [`Error::Lost`] if the lock had been lost, [`Error::Unavailable`].
    pub fn release(self) -> Result<(), Error> {
        self.stop().release()
    }

    pub(crate) fn lock(&self) -> &Lock {
        &self.lock
    }

    /// The renewal. `None` in a forked child: the lock is its parent's.
    fn renewal(&self) -> Option<&Arc<Renewal>> {
        match &self.lock.home {
            Home::Shared(renewal) if self.lock.route.first_lane().is_ours() => Some(renewal),
            _ => None,
        }
    }

    fn validity(&self) -> Result<Duration, LostReason> {
        self.renewal()
            .map_or(Err(LostReason::OtherProcess), |_| self.lock.validity())
    }
}

impl fmt::Debug for KeptLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeptLock(\"{}\")", self.resource().escape_ascii())
    }
}

impl KeptLock {
    /// Does the work and releases the lock.
    pub(crate) fn run<T, E: From<Error>>(
        self,
        work: impl FnOnce(&KeptLock) -> Result<T, E>,
    ) -> Result<T, E> {
        let result = work(&self);
        self.stop().release_after(result)
    }
}

impl Redlock {
    /// [Acquires](Redlock::acquire) the lock, [keeps it alive](Lock::keep_alive), does the work and
    /// releases the lock, however the work ends, even by a panic.
    ///
    /// # Errors
    ///
    /// The errors of [`with_lock`](Redlock::with_lock) and [`Lock::keep_alive`].
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn import(redlock: &redlock_sync::Redlock) -> Result<(), redlock_sync::Error> {
    /// let (ttl, max_hold) = (Duration::from_secs(10), Duration::from_secs(3600));
    /// redlock.with_kept_lock("shop:import", ttl, max_hold, |lock| {
    ///     for part in 0..100 {
    ///         lock.ensure(Duration::from_secs(1))?; // before each part, which takes up to a second
    ///         // …
    ///     }
    ///     Ok(())
    /// })
    /// # }
    /// ```
    pub fn with_kept_lock<T, E: From<Error>>(
        &self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
        max_hold: Duration,
        work: impl FnOnce(&KeptLock) -> Result<T, E>,
    ) -> Result<T, E> {
        self.acquire(resource, ttl)?.keep_alive(max_hold)?.run(work)
    }
}
