use std::cell::RefCell;
use std::fmt;
use std::mem::ManuallyDrop;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use crate::errors::error::Error;
use crate::errors::lock_error::LostReason;
use crate::lock::lock::{Lock, with_work_done};
use crate::lock::redlock::Redlock;
use crate::net::cluster::route::Route;
use crate::values::arithmetic::Ttl;

thread_local! {
    /// The locks that this thread holds reentrantly. Without a destructor it stays usable while the thread ends; the
    /// last lock that ends leaves it empty.
    static HELD: RefCell<ManuallyDrop<Vec<Weak<HeldByThread>>>> =
        const { RefCell::new(ManuallyDrop::new(Vec::new())) };
}

/// One lock, with one lease, for all its entries.
struct HeldByThread {
    route: Route,
    resource: Arc<[u8]>,
    /// The lock. `None` once it is released. Borrowed during an extension.
    lock: RefCell<Option<Lock>>,
}

impl HeldByThread {
    /// Calls `ask` with the lock.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`]: the lock was released. [`Error::Busy`]: the lock is being extended, and a logger or an observer
    /// calls this.
    fn with<T>(&self, ask: impl FnOnce(&Lock) -> T) -> Result<T, Error> {
        let lock = self
            .lock
            .try_borrow()
            .map_err(|_| Error::busy(&self.resource, None, None, true))?;
        lock.as_ref()
            .map(ask)
            .ok_or_else(|| Error::lost(&self.resource, LostReason::Released))
    }
}

impl Drop for HeldByThread {
    fn drop(&mut self) {
        HELD.with(|all| {
            if let Ok(mut all) = all.try_borrow_mut() {
                all.retain(|held| held.strong_count() > 0);
                if all.is_empty() {
                    **all = Vec::new();
                }
            }
        });
    }
}

/// A view of a [`Redlock`] in which a thread can lock again what it already holds: made by [`Redlock::reentrant`].
///
/// Then a function that needs a lock can be called by one that already holds it, in the same thread:
///
/// ```no_run
/// use std::time::Duration;
/// use redlock_sync::{Error, Redlock, Reentrant};
///
/// const TTL: Duration = Duration::from_secs(10);
///
/// fn withdraw(locks: &Reentrant, account: &str) -> Result<(), Error> {
///     locks.with_lock(account, TTL, |lock| lock.ensure(Duration::from_secs(1))) // … and write …
/// }
///
/// fn transfer(locks: &Reentrant, from: &str, to: &str) -> Result<(), Error> {
///     let (first, second) = (from.min(to), from.max(to)); // the same order everywhere: no deadlock
///     locks.with_lock(first, TTL, |_| {
///         locks.with_lock(second, TTL, |_| withdraw(locks, from)) // the thread has it already
///     })
/// }
///
/// let locks = Redlock::new(["redis://127.0.0.1"])?.reentrant();
/// transfer(&locks, "alice", "bob")?;
/// # Ok::<(), Error>(())
/// ```
///
/// Each acquisition in the thread is an *entry*. Entries belong to the thread: another thread, even one that is started
/// while the lock is held, has to compete for the lock as usual. Clones of one `Redlock` share their entries in the
/// same thread, and so does the result of [`Redlock::with_options`] if it shares their connections.
/// Plain [`Redlock::acquire`] ignores entries, and would wait for the thread's own lock. Nothing about entries is
/// stored on the nodes. After a fork the child has to acquire its own locks.
#[derive(Clone, Debug)]
pub struct Reentrant {
    redlock: Redlock,
}

impl Redlock {
    /// A view in which a thread can lock again what it already holds: see [`Reentrant`].
    pub fn reentrant(&self) -> Reentrant {
        Reentrant {
            redlock: self.clone(),
        }
    }
}

impl Reentrant {
    /// Tries once, like [`Redlock::try_acquire`]; if this thread holds the lock, like [`acquire`](Reentrant::acquire).
    ///
    /// # Errors
    ///
    /// The errors of [`Redlock::try_acquire`]; if this thread holds the lock, those of [`acquire`](Reentrant::acquire).
    pub fn try_acquire(
        &self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<Option<ReentrantLock>, Error> {
        let resource = resource.as_ref();
        match self.enter(resource, ttl)? {
            None => Ok(self.redlock.try_acquire(resource, ttl)?.map(first)),
            entry => Ok(entry),
        }
    }

    /// Acquires the lock, like [`Redlock::acquire`]. If this thread already holds the lock, this adds an entry: no node
    /// is asked if at least half of the validity that `ttl` gives is left; otherwise the lock is extended, which counts
    /// as [one extension](crate::Options::max_extensions). A shorter ttl never shortens the lock.
    ///
    /// # Errors
    ///
    /// The errors of [`Redlock::acquire`]. If the thread holds the lock: [`Error::Lost`] if the lock is over (it is
    /// never taken again before all entries have ended, because the outer ones rely on it), and the errors of
    /// [`Lock::extend`]. The outer entries stay as they are.
    pub fn acquire(
        &self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
    ) -> Result<ReentrantLock, Error> {
        self.acquire_within(resource, ttl, self.redlock.options().wait)
    }

    /// [`acquire`](Reentrant::acquire) with its own wait, like [`Redlock::acquire_within`].
    ///
    /// # Errors
    ///
    /// The errors of [`acquire`](Reentrant::acquire).
    pub fn acquire_within(
        &self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
        wait: Duration,
    ) -> Result<ReentrantLock, Error> {
        self.acquire_asking(resource, ttl, wait, None)
    }

    /// Waits as [`acquire_within`](Reentrant::acquire_within), for as long as the function returns true.
    pub(crate) fn acquire_asking(
        &self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
        wait: Duration,
        keep_trying: Option<&mut dyn FnMut() -> bool>,
    ) -> Result<ReentrantLock, Error> {
        let resource = resource.as_ref();
        if let Some(entry) = self.enter(resource, ttl)? {
            return Ok(entry);
        }
        let lock = self
            .redlock
            .acquire_asking(resource, ttl, wait, keep_trying)?;
        Ok(first(lock))
    }

    /// [Acquires](Reentrant::acquire) the lock, does the work and ends the entry, however the work ends, even by a
    /// panic.
    ///
    /// # Errors
    ///
    /// The errors of [`Redlock::with_lock`], and, if this thread holds the lock, those of an inner
    /// [`acquire`](Reentrant::acquire): after an [`Error::ExtensionLimit`] the work did not run, and after an
    /// [`Error::Lost`] it may or may not have run.
    pub fn with_lock<T, E: From<Error>>(
        &self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
        work: impl FnOnce(&ReentrantLock) -> Result<T, E>,
    ) -> Result<T, E> {
        let entry = self.acquire(resource, ttl)?;
        let result = work(&entry);
        match entry.take_last() {
            Some(lock) => {
                drop(entry);
                lock.release_after(result)
            }
            None => with_work_done(result, entry.release()),
        }
    }

    /// Another entry, if this thread holds the lock.
    fn enter(&self, resource: &[u8], ttl: Duration) -> Result<Option<ReentrantLock>, Error> {
        let route = self.redlock.route(resource);
        let is =
            |held: &Rc<HeldByThread>| held.route.is_same(&route) && *held.resource == *resource;
        let found = HELD.with(|all| {
            let all = all.try_borrow().ok()?;
            all.iter().filter_map(Weak::upgrade).find(is)
        });
        let Some(held) = found else {
            return Ok(None);
        };
        let ttl = Ttl::within(ttl, self.redlock.options().max_ttl())?;
        let entry = ReentrantLock { held };
        let left = entry.held.with(Lock::left)??;
        if left < ttl.validity() / 2 {
            entry.extend(ttl.duration())?;
        }
        Ok(Some(entry))
    }
}

/// One entry of a lock that its thread can enter again. Dropping the last one releases the lock.
///
/// An entry cannot leave its thread. Entries may end in any order. (One that is forgotten with `std::mem::forget` keeps
/// the thread from ever taking that lock again.)
///
/// ```compile_fail
/// fn sent(_: impl Send) {}
/// fn entry(entry: redlock_sync::ReentrantLock) {
///     sent(entry); // Rust refuses it
/// }
/// ```
#[must_use = "a lock is released when its last entry is dropped"]
pub struct ReentrantLock {
    held: Rc<HeldByThread>,
}

/// The first entry of a lock.
fn first(lock: Lock) -> ReentrantLock {
    let held = Rc::new(HeldByThread {
        route: lock.route.clone(),
        resource: lock.key.resource.clone(),
        lock: RefCell::new(Some(lock)),
    });
    HELD.with(|all| {
        if let Ok(mut all) = all.try_borrow_mut() {
            all.push(Rc::downgrade(&held));
        }
    });
    ReentrantLock { held }
}

impl ReentrantLock {
    /// The locked resource.
    pub fn resource(&self) -> &[u8] {
        &self.held.resource
    }

    /// How long the lock is still valid, for all its entries: see [`Lock::remaining`].
    pub fn remaining(&self) -> Duration {
        self.held.with(Lock::remaining).unwrap_or_default()
    }

    /// Whether the lock is still valid: see [`Lock::is_valid`].
    pub fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// Checks that the lock stays valid for at least `at_least`: see [`Lock::ensure`].
    ///
    /// # Errors
    ///
    /// The errors of [`Lock::ensure`], and [`Error::Busy`] in a logger or an observer that is called while the lock is
    /// extended.
    pub fn ensure(&self, at_least: Duration) -> Result<(), Error> {
        self.held.with(|lock| lock.ensure(at_least))?
    }

    /// Why the lock is lost.
    #[cfg(feature = "capi")]
    pub(crate) fn lost_reason(&self) -> Option<LostReason> {
        let reason = self.held.with(|lock| lock.validity().err());
        reason.unwrap_or_default()
    }

    /// How many entries this thread has, this one included.
    pub fn depth(&self) -> usize {
        Rc::strong_count(&self.held)
    }

    /// How often [`extend`](ReentrantLock::extend) can still succeed: see [`Lock::extensions_left`].
    pub fn extensions_left(&self) -> u32 {
        self.held.with(Lock::extensions_left).unwrap_or_default()
    }

    /// Extends the lock for all entries: see [`Lock::extend`].
    ///
    /// # Errors
    ///
    /// The errors of [`Lock::extend`], and [`Error::Busy`] in a logger or an observer that is called while the lock is
    /// extended.
    pub fn extend(&self, ttl: Duration) -> Result<(), Error> {
        match self.held.lock.try_borrow_mut().as_deref_mut() {
            Ok(Some(lock)) => lock.extend(ttl),
            // A logger or an observer uses the lock while it is being extended.
            Err(_) => Err(Error::busy(&self.held.resource, None, None, true)),
            Ok(None) => Err(Error::lost(&self.held.resource, LostReason::Released)),
        }
    }

    /// The fencing token of the lock: see [`Lock::fencing_token`]. All entries get the same number.
    ///
    /// # Errors
    ///
    /// The errors of [`Lock::fencing_token`], and [`Error::Busy`] in a logger or an observer that is called while the lock is
    /// extended.
    pub fn fencing_token(&self) -> Result<u64, Error> {
        self.held.with(Lock::fencing_token)?
    }

    /// Ends this entry. The last one releases the lock, as [`Lock::release`] does; the others ask no node.
    ///
    /// # Errors
    ///
    /// For the last entry the errors of [`Lock::release`]; for the others [`Error::Lost`] if the lock is over.
    pub fn release(self) -> Result<(), Error> {
        match self.take_last() {
            Some(lock) => {
                // The observer of the release may acquire the lock again.
                drop(self);
                lock.release()
            }
            None => match self.ensure(Duration::ZERO) {
                // The lock is being extended.
                Err(Error::Busy(_)) => Ok(()),
                ensured => ensured,
            },
        }
    }

    /// The lock, if this is its last entry.
    fn take_last(&self) -> Option<Lock> {
        let last = self.depth() == 1;
        let mut lock = self.held.lock.try_borrow_mut().ok().filter(|_| last)?;
        lock.take()
    }
}

impl fmt::Debug for ReentrantLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReentrantLock(\"{}\")", self.resource().escape_ascii())
    }
}
