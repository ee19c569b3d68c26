//! Plain locks: one holder at a time.

use std::time::Duration;

use crate::errors::error::Error;
use crate::lock::lock::Lock;
use crate::lock::redlock::Redlock;
use crate::protocol::commands::kind::Kind;
use crate::values::clock::Point;
use crate::values::token::Token;

impl Redlock {
    /// Tries once to take the lock on `resource` for `ttl`. `None`: another holder has it, or it is reserved for a
    /// waiter ([`Options::fair`](crate::Options::fair)); [other reasons](crate::guide::faq#what-does-none-mean) are rare.
    ///
    /// If several programs try for a free lock at the same moment, each may get some votes and none a majority. A
    /// program that got some retries with a new token, after a random pause of a few round trips that grows with each
    /// retry, for at most some hundred round trips and one [`node_timeout`](crate::Options::node_timeout). (The Redlock
    /// specification, "Retry on failure".)
    ///
    /// An attempt takes at most two `node_timeout`s in all; the first operation of a program also connects.
    ///
    /// The resource is the key's name, 1 byte to 64 KiB, any bytes, but none of the [keys beside
    /// locks](crate::guide::operations#names-of-keys). The ttl is truncated to whole
    /// milliseconds; from 3 ms to 100 years. It bounds how long the lock stays taken if this process
    /// dies; a lock is valid for at most 99 % of it less 2 ms.
    ///
    /// Bind the lock to a name: `if redlock.try_acquire(…)?.is_some()` drops it at once, which releases it, and so does `let _ =`.
    ///
    /// # Errors
    ///
    /// [`Error::Config`], [`Error::Unavailable`], [`Error::TooSlow`] (its validity was over before
    /// a majority had answered, or when it granted it; it has been released again), [`Error::Random`].
    ///
    /// After any failure, what was granted is undone: the undo has been written to every node that may have granted
    /// the lock and can be reached. The others get it when they are back.
    ///
    /// # Example
    ///
    /// Every host asks, one tries the work. The ttl is longer than the work takes, and shorter than the time to the next
    /// run. (Work that must be done with success: [`once_per`](Redlock::once_per).)
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # let redlock = redlock_sync::Redlock::new(["redis://127.0.0.1"])?;
    /// match redlock.try_acquire("shop:nightly", Duration::from_secs(600))? {
    ///     Some(lock) => {
    ///         println!("running"); // …
    ///         lock.leak(); // not released: a host whose clock is behind must not do it again
    ///     }
    ///     None => println!("another host runs it, or has run it"),
    /// }
    /// # Ok::<(), redlock_sync::Error>(())
    /// ```
    pub fn try_acquire(
        &self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<Option<Lock>, Error> {
        self.try_kind(&self.checked(resource)?, Kind::Plain, ttl)
    }

    /// Takes the lock. Waits for up to [`Options::wait`](crate::Options::wait) while others hold it or too few nodes answer, but not if the
    /// nodes refuse for good.
    ///
    /// Threads of this process get it in the order of their arrival. A release in this process hands the lock to
    /// the next thread; a release in another process sends a message to one that waits. A waiter that gets no
    /// message tries again when the lock's ttl ends, or after a pause ([`Options::retry_delay`](crate::Options::retry_delay)).
    ///
    /// # Errors
    ///
    /// When the wait is over, the error of the last complete attempt: [`Error::Busy`], [`Error::Unavailable`] or
    /// [`Error::TooSlow`].
    ///
    /// At once: [`Error::Config`], [`Error::Random`]; and [`Error::Unavailable`] if no majority is left without the
    /// nodes that refuse for good: a wrong password or none, `NOPERM`, no such database, a plain URL of a Redis
    /// Cluster's server (`MOVED`), something that is not a Redis server. The error names the cause at each node;
    /// [`NodeErrors::is_permanent`](crate::NodeErrors::is_permanent) has the whole list. Failures that may pass
    /// (`LOADING`, `READONLY`, `CLUSTERDOWN`, refused and silent connections) are retried.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # let redlock = redlock_sync::Redlock::new(["redis://127.0.0.1"])?;
    /// let lock = redlock.acquire("shop:account:17", Duration::from_secs(10))?;
    /// // … what must not happen twice at once …
    /// lock.release()?;
    /// # Ok::<(), redlock_sync::Error>(())
    /// ```
    pub fn acquire(&self, resource: impl AsRef<[u8]>, ttl: Duration) -> Result<Lock, Error> {
        self.acquire_within(resource, ttl, self.options().wait)
    }

    /// [`acquire`](Redlock::acquire) with its own wait in place of [`Options::wait`](crate::Options::wait). Zero: one attempt.
    /// [`Duration::MAX`]: for ever.
    ///
    /// # Errors
    ///
    /// The errors of [`acquire`](Redlock::acquire).
    pub fn acquire_within(
        &self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
        wait: Duration,
    ) -> Result<Lock, Error> {
        self.acquire_asking(resource, ttl, wait, None)
    }

    /// Waits as [`acquire_within`](Redlock::acquire_within), for as long as the function returns true.
    pub(crate) fn acquire_asking(
        &self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
        wait: Duration,
        keep_trying: Option<&mut dyn FnMut() -> bool>,
    ) -> Result<Lock, Error> {
        let resource = self.checked(resource)?;
        self.acquire_kind(&resource, Kind::Plain, ttl, wait, keep_trying)
    }

    /// [`acquire`](Redlock::acquire) for as long as `keep_trying` returns true. [`Options::wait`](crate::Options::wait) does not bound it.
    /// `keep_trying` is called before each attempt and at least every 50 ms while this waits; a slow one holds up the
    /// threads of this process that came later.
    ///
    /// # Errors
    ///
    /// [`Error::Cancelled`] when `keep_trying` returned false. At once, as [`acquire`](Redlock::acquire):
    /// [`Error::Config`], [`Error::Random`], and [`Error::Unavailable`] if the nodes refuse for good. A lock that is
    /// held, an outage, and answers that arrive too late are waited out.
    ///
    /// # Example
    ///
    /// Until the program has to stop:
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # use std::sync::atomic::{AtomicBool, Ordering};
    /// # let redlock = redlock_sync::Redlock::new(["redis://127.0.0.1"])?;
    /// static STOP: AtomicBool = AtomicBool::new(false);
    /// let keep_trying = || !STOP.load(Ordering::Relaxed);
    /// let lock = redlock.acquire_while("shop:import", Duration::from_secs(30), keep_trying)?;
    /// # Ok::<(), redlock_sync::Error>(())
    /// ```
    pub fn acquire_while(
        &self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
        mut keep_trying: impl FnMut() -> bool,
    ) -> Result<Lock, Error> {
        self.acquire_asking(resource, ttl, Duration::MAX, Some(&mut keep_trying))
    }

    /// [Acquires](Redlock::acquire) the lock, does the work and releases the lock, however the work ends, even by
    /// a panic.
    ///
    /// # Errors
    ///
    /// The errors of [`acquire`](Redlock::acquire): then the work did not run. The error of the work, which goes before
    /// everything that the release has to report.
    ///
    /// [`Error::Lost`] in place of the value of the work, if the work succeeded and the lock was over by then: its
    /// validity had ended, or a majority no longer held it. The work is done, but perhaps unprotected in its last part,
    /// and [`Error::after_work`] tells this from a loss that the work itself reports. Work
    /// whose value must outlive the loss of its lock stores it outside the closure.
    ///
    /// A release that too few nodes confirmed is not an error here (the lock ends with its ttl); it is logged.
    ///
    /// # Example
    ///
    /// The closure may return any error that is made from [`Error`], such as `Box<dyn std::error::Error>` or that of
    /// `anyhow`. As a function's last expression the call needs no annotation; elsewhere the type of the error has to
    /// be named once, as in `Ok::<_, Error>(sum)`.
    ///
    /// ```no_run
    /// # use redlock_sync::Redlock;
    /// # use std::time::Duration;
    /// fn add(redlock: &Redlock, path: &str) -> Result<u64, Box<dyn std::error::Error>> {
    ///     redlock.with_lock("shop:ledger", Duration::from_secs(10), |lock| {
    ///         let sum: u64 = std::fs::read_to_string(path)?.parse()?;
    ///         lock.ensure(Duration::from_secs(1))?; // before a write that takes up to a second
    ///         std::fs::write(path, (sum + 1).to_string())?;
    ///         Ok(sum + 1)
    ///     })
    /// }
    /// ```
    pub fn with_lock<T, E: From<Error>>(
        &self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
        work: impl FnOnce(&mut Lock) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut lock = self.acquire(resource, ttl)?;
        let result = work(&mut lock);
        lock.release_after(result)
    }

    /// Takes over a lock that another process or program hands over, given its token and how long it is
    /// still valid ([`Lock::remaining`] there, less the time that the hand-over took).
    ///
    /// Relies on these values and asks no node. `validity` counts from this call, so all time that has passed since
    /// `remaining` was called, pauses included, must be subtracted. If that time is unknown, [extend](Lock::extend) at
    /// once, before relying on the lock. The giver must not release it, but [`leak`](Lock::leak) it. The count of
    /// extensions starts again at zero.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a resource as with [`try_acquire`](Redlock::try_acquire), and a validity above 100 years.
    ///
    /// # Example
    ///
    /// The values that one program hands over, and how the other uses them:
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// use redlock_sync::Token;
    ///
    /// # let redlock = redlock_sync::Redlock::new(["redis://127.0.0.1"])?;
    /// let lock = redlock.acquire("shop:import", Duration::from_secs(60))?;
    /// let (token, validity) = (*lock.token().as_bytes(), lock.remaining());
    /// lock.leak();
    ///
    /// // In the other program, less than a second later:
    /// let validity = validity.saturating_sub(Duration::from_secs(1));
    /// let lock = redlock.resume("shop:import", Token::from_bytes(token), validity)?;
    /// lock.release()?;
    /// # Ok::<(), redlock_sync::Error>(())
    /// ```
    pub fn resume(
        &self,
        resource: impl AsRef<[u8]>,
        token: Token,
        validity: Duration,
    ) -> Result<Lock, Error> {
        let now = Point::now();
        self.resume_kind(self.checked(resource)?, Kind::Plain, token, (now, validity))
    }
}
