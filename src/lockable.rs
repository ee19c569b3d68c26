use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Point;
use crate::error::Error;
use crate::kept_lock::KeptLock;
use crate::lock::Lock;
use crate::protocol::kind::{Kind, MAX_PERMITS};
use crate::redlock::{Redlock, checked};
use crate::token::Token;

impl Redlock {
    /// At most `permits` holders at a time, in all processes and on all hosts: a semaphore. Each permit is a
    /// [`Lock`], and [`Lock::slot`] tells which of them it is.
    ///
    /// Nothing is sent before a permit is acquired. All processes should name the same number of permits: where they
    /// differ, there are as many holders as the largest number says, and a process takes none of the permits
    /// above its own number. So the number can be changed while processes run.
    ///
    /// How it differs from a plain lock, and what it costs: [Semaphores](crate::guide::semaphores).
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a number of permits that is not from 1 to 1000, and for a resource as with
    /// [`try_acquire`](Redlock::try_acquire).
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # let redlock = redlock_sync::Redlock::new(["redis://127.0.0.1"])?;
    /// let geocoder = redlock.semaphore("shop:geocoder", 3)?; // its terms permit three requests at a time
    /// let permit = geocoder.acquire(Duration::from_secs(10))?;
    /// // …
    /// permit.release()?;
    /// # Ok::<(), redlock_sync::Error>(())
    /// ```
    pub fn semaphore(&self, resource: impl AsRef<[u8]>, permits: u32) -> Result<Lockable, Error> {
        let permits = u16::try_from(permits)
            .ok()
            .filter(|permits| (1..=MAX_PERMITS).contains(permits))
            .ok_or_else(|| {
                Error::config(format!("{permits} permits: it must be 1 to {MAX_PERMITS}"))
            })?;
        let slot = None;
        self.lockable(resource.as_ref(), Kind::Permit { permits, slot })
    }

    fn lockable(&self, resource: &[u8], kind: Kind) -> Result<Lockable, Error> {
        Ok(Lockable {
            redlock: self.clone(),
            resource: checked(resource)?,
            kind,
        })
    }
}

/// What can be locked and is not a plain lock: a [semaphore](Redlock::semaphore).
///
/// Its calls are those of [`Redlock`], without the resource, and have its options: what they mean, their errors and
/// their bounds are described there. What they return is a [`Lock`]: it is extended, kept alive, checked, handed over,
/// leaked and released as a plain one.
///
/// Two things differ:
///
/// - A name is one kind of lock at a time. If a majority of the nodes has another kind there, or other data,
///   the call fails at once with [`Error::Config`].
/// - There is no queue. A thread that waits tries again after random pauses
///   ([`Options::retry_delay`](crate::Options::retry_delay)), in no order, and is not notified.
///   [`Options::fair`](crate::Options::fair) changes nothing.
///
/// Cheap to clone; can be sent to and used from any thread.
#[derive(Clone)]
pub struct Lockable {
    redlock: Redlock,
    resource: Arc<[u8]>,
    kind: Kind,
}

impl Lockable {
    /// What is locked.
    pub fn resource(&self) -> &[u8] {
        &self.resource
    }

    /// One attempt, as [`Redlock::try_acquire`]. `None`: others have it.
    ///
    /// # Errors
    ///
    /// As there; and [`Error::Config`] where the name is another kind of lock.
    pub fn try_acquire(&self, ttl: Duration) -> Result<Option<Lock>, Error> {
        self.redlock.try_kind(&self.resource, self.kind, ttl)
    }

    /// Waits for up to [`Options::wait`](crate::Options::wait), as [`Redlock::acquire`].
    ///
    /// # Errors
    ///
    /// As there; and [`Error::Config`] where the name is another kind of lock.
    pub fn acquire(&self, ttl: Duration) -> Result<Lock, Error> {
        self.acquire_within(ttl, self.redlock.options().wait)
    }

    /// Waits for up to `wait`, as [`Redlock::acquire_within`]. Zero: one attempt. [`Duration::MAX`]: for ever.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Lockable::acquire).
    pub fn acquire_within(&self, ttl: Duration, wait: Duration) -> Result<Lock, Error> {
        let (resource, kind) = (&self.resource, self.kind);
        self.redlock.wait_for(resource, kind, ttl, wait, None)
    }

    /// Waits for as long as `keep_trying` returns true, as [`Redlock::acquire_while`].
    ///
    /// # Errors
    ///
    /// As there; and [`Error::Config`] where the name is another kind of lock.
    pub fn acquire_while(
        &self,
        ttl: Duration,
        mut keep_trying: impl FnMut() -> bool,
    ) -> Result<Lock, Error> {
        let keep_trying: &mut dyn FnMut() -> bool = &mut keep_trying;
        let (resource, kind, longest) = (&self.resource, self.kind, Duration::MAX);
        self.redlock
            .wait_for(resource, kind, ttl, longest, Some(keep_trying))
    }

    /// [Acquires](Lockable::acquire) it, does the work and releases it, as [`Redlock::with_lock`].
    ///
    /// # Errors
    ///
    /// As there; and [`Error::Config`] where the name is another kind of lock.
    pub fn with_lock<T>(
        &self,
        ttl: Duration,
        work: impl FnOnce(&mut Lock) -> T,
    ) -> Result<T, Error> {
        let mut lock = self.acquire(ttl)?;
        let result = work(&mut lock);
        lock.release_after(result)
    }

    /// The same for work of unknown length, as [`Redlock::with_kept_lock`].
    ///
    /// # Errors
    ///
    /// As there; and [`Error::Config`] where the name is another kind of lock.
    pub fn with_kept_lock<T>(
        &self,
        ttl: Duration,
        max_hold: Duration,
        work: impl FnOnce(&KeptLock) -> T,
    ) -> Result<T, Error> {
        self.acquire(ttl)?.keep_alive(max_hold)?.run(work)
    }

    /// Takes over what another process hands over, as [`Redlock::resume`]. (That function itself cannot: it would take
    /// it for a plain lock, which is lost when the nodes are asked.)
    ///
    /// # Errors
    ///
    /// As there.
    pub fn resume(&self, token: Token, validity: Duration) -> Result<Lock, Error> {
        let validity = (Point::now(), validity);
        let resource = self.resource.clone();
        self.redlock
            .resume_kind(resource, self.kind, token, validity)
    }
}

impl fmt::Debug for Lockable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Kind::Permit { permits, .. } = self.kind else {
            return Ok(());
        };
        write!(
            f,
            "Lockable(\"{}\", {permits} permits)",
            self.resource.escape_ascii()
        )
    }
}
