use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::errors::error::Error;
use crate::lock::kept_lock::KeptLock;
use crate::lock::lock::{Lock, names_to_lock};
use crate::lock::redlock::Redlock;
use crate::protocol::commands::kind::{Kind, MAX_PERMITS, Mark};
use crate::values::clock::Point;
use crate::values::token::Token;

impl Redlock {
    /// At most `permits` holders at a time, in all processes and on all hosts: a semaphore. Each permit is a [`Lock`],
    /// and [`Lock::slot`] returns which of them it is.
    ///
    /// Nothing is sent before a permit is acquired. All processes should name the same number of permits: if they
    /// differ, there are as many holders as the largest number allows, and a process takes none of the permits above
    /// its own number. So the number can be changed while processes run.
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

    /// A read lock: others may have read locks on the same name at the same time. It excludes the
    /// [write lock](Redlock::write_lock) and plain locks.
    ///
    /// How read and write locks work together, and what they cost: [Read-write
    /// locks](crate::guide::read_write_locks).
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a resource as with [`try_acquire`](Redlock::try_acquire).
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # let redlock = redlock_sync::Redlock::new(["redis://127.0.0.1"])?;
    /// let report = redlock.read_lock("shop:prices")?.acquire(Duration::from_secs(10))?;
    /// // … read: no writer changes it meanwhile …
    /// report.release()?;
    /// # Ok::<(), redlock_sync::Error>(())
    /// ```
    pub fn read_lock(&self, resource: impl AsRef<[u8]>) -> Result<Lockable, Error> {
        self.lockable(resource.as_ref(), Kind::Read { waited: 0 })
    }

    /// A write lock, which excludes all other locks on the same name: write locks, plain ones, and
    /// [read locks](Redlock::read_lock). While it waits, readers that come later are kept out.
    ///
    /// On the nodes a write lock is a plain lock. Take it instead of one wherever there are readers: a plain lock does
    /// not keep them out while it waits.
    ///
    /// # Errors
    ///
    /// The errors of [`read_lock`](Redlock::read_lock).
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # let redlock = redlock_sync::Redlock::new(["redis://127.0.0.1"])?;
    /// let update = redlock.write_lock("shop:prices")?.acquire(Duration::from_secs(10))?;
    /// // … write …
    /// update.release()?;
    /// # Ok::<(), redlock_sync::Error>(())
    /// ```
    pub fn write_lock(&self, resource: impl AsRef<[u8]>) -> Result<Lockable, Error> {
        let mark = Mark {
            writer: 0,
            life: 0,
            waited: 0,
        };
        self.lockable(resource.as_ref(), Kind::Write(mark))
    }

    /// One lock on all of these names, or on none of them. Each name is locked as by a plain lock, and excludes plain
    /// locks, write locks, and others on several names. The order of the names does not matter, and a name that is
    /// given twice counts once.
    ///
    /// The call waits for all of them together and holds none; after a time it claims those that are in its way, one by
    /// one and in order. So no two of these calls wait for each other, and none starves beside locks on single names.
    ///
    /// In a Redis Cluster the names need a common tag, as in `{shop}:a` and `{shop}:b`; otherwise the calls that
    /// acquire it return [`Error::Config`].
    ///
    /// How it works, what it costs and its limits: [Several names](crate::guide::several_names).
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for no names, more than 1000 or more than 1 MiB of them, and for a name as with
    /// [`try_acquire`](Redlock::try_acquire); the error names its index.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # fn transfer(redlock: &redlock_sync::Redlock) -> Result<(), redlock_sync::Error> {
    /// let accounts = redlock.several(["shop:account:17", "shop:account:4"])?;
    /// accounts.with_lock(Duration::from_secs(10), |lock| {
    ///     lock.ensure(Duration::from_secs(1)) // … transfer …
    /// })
    /// # }
    /// ```
    pub fn several<I>(&self, resources: I) -> Result<Lockable, Error>
    where
        I: IntoIterator,
        I::Item: AsRef<[u8]>,
    {
        let mut names = BTreeSet::new();
        let mut bytes = 0;
        for (at, resource) in resources.into_iter().enumerate() {
            let resource = resource.as_ref();
            let name = self.checked(resource).map_err(|error| match error {
                Error::Config(error) => Error::config(format!("resource {at}: {error}")),
                other => other,
            })?;
            bytes += if names.insert(name) {
                resource.len()
            } else {
                0
            };
            if names.len() > MAX_NAMES || bytes > MAX_BYTES {
                return Err(Error::config(format!(
                    "{} resources of {bytes} bytes given, the limit is {MAX_NAMES} different ones, and \
                     {MAX_BYTES} bytes",
                    names.len()
                )));
            }
        }
        let names: Arc<[Arc<[u8]>]> = names.into_iter().collect();
        match &*names {
            [] => Err(Error::config("no resources given")),
            [one] => self.write_lock(one),
            [first, ..] => self.lockable(first, Kind::several(names.clone())),
        }
    }

    fn lockable(&self, resource: &[u8], kind: Kind) -> Result<Lockable, Error> {
        Ok(Lockable {
            redlock: self.clone(),
            resource: self.checked(resource)?,
            kind,
        })
    }
}

/// The most names in one lock, and the most bytes of them: a node locks all of them in one step.
const MAX_NAMES: usize = 1000;
const MAX_BYTES: usize = 1 << 20;

/// A lock that is not a plain one, before it is acquired: a [semaphore](Redlock::semaphore), a [read
/// lock](Redlock::read_lock), a [write lock](Redlock::write_lock), or a lock on [several](Redlock::several) names.
///
/// Its calls are those of [`Redlock`], without the resource, and have its options: what they mean, their errors and
/// their bounds are described there. They return a [`Lock`], which is extended, kept alive, checked, handed over,
/// leaked and released as a plain one.
///
/// Two things differ:
///
/// - A name is one kind of lock at a time. If a majority of the nodes has another kind there, or other data,
///   the call fails at once with [`Error::OtherKind`], and does not wait. Once that lock has ended the same call succeeds, so a
///   name that changes its kind needs a new name, or a time without holders.
/// - There is no strict order: who waits is [notified](crate::guide::waiting) of a release as for a plain lock, but
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
    /// The names to lock: one name, or several in the order of their bytes.
    pub fn resources(&self) -> impl Iterator<Item = &[u8]> {
        names_to_lock(&self.resource, &self.kind)
    }

    /// Tries once, like [`Redlock::try_acquire`]. `None`: others have the lock.
    ///
    /// # Errors
    ///
    /// The errors of [`Redlock::try_acquire`]; and [`Error::OtherKind`] if the name is another kind of lock.
    pub fn try_acquire(&self, ttl: Duration) -> Result<Option<Lock>, Error> {
        self.redlock
            .try_kind(&self.resource, self.kind(false)?, ttl)
    }

    /// Waits for up to [`Options::wait`](crate::Options::wait), as [`Redlock::acquire`].
    ///
    /// # Errors
    ///
    /// The errors of [`Redlock::acquire`]; and [`Error::OtherKind`] if the name is another kind of lock.
    pub fn acquire(&self, ttl: Duration) -> Result<Lock, Error> {
        self.acquire_within(ttl, self.redlock.options().wait)
    }

    /// Waits for up to `wait`, as [`Redlock::acquire_within`]. Zero: one attempt. [`Duration::MAX`]: for ever.
    ///
    /// # Errors
    ///
    /// The errors of [`acquire`](Lockable::acquire).
    pub fn acquire_within(&self, ttl: Duration, wait: Duration) -> Result<Lock, Error> {
        self.acquire_asking(ttl, wait, None)
    }

    /// Waits as [`acquire_within`](Lockable::acquire_within), for as long as the function returns true.
    pub(crate) fn acquire_asking(
        &self,
        ttl: Duration,
        wait: Duration,
        keep_trying: Option<&mut dyn FnMut() -> bool>,
    ) -> Result<Lock, Error> {
        let (resource, kind) = (&self.resource, self.kind(!wait.is_zero())?);
        self.redlock
            .acquire_kind(resource, kind, ttl, wait, keep_trying)
    }

    /// Waits for as long as `keep_trying` returns true, as [`Redlock::acquire_while`].
    ///
    /// # Errors
    ///
    /// The errors of [`Redlock::acquire_while`]; and [`Error::OtherKind`] if the name is another kind of lock.
    pub fn acquire_while(
        &self,
        ttl: Duration,
        mut keep_trying: impl FnMut() -> bool,
    ) -> Result<Lock, Error> {
        self.acquire_asking(ttl, Duration::MAX, Some(&mut keep_trying))
    }

    /// [Acquires](Lockable::acquire) the lock, does the work and releases the lock, as [`Redlock::with_lock`].
    ///
    /// # Errors
    ///
    /// The errors of [`Redlock::with_lock`]; and [`Error::OtherKind`] if the name is another kind of lock.
    pub fn with_lock<T, E: From<Error>>(
        &self,
        ttl: Duration,
        work: impl FnOnce(&mut Lock) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut lock = self.acquire(ttl)?;
        let result = work(&mut lock);
        lock.release_after(result)
    }

    /// Does work of unknown length under the lock, as [`Redlock::with_kept_lock`].
    ///
    /// # Errors
    ///
    /// The errors of [`Redlock::with_kept_lock`]; and [`Error::OtherKind`] if the name is another kind of lock.
    pub fn with_kept_lock<T, E: From<Error>>(
        &self,
        ttl: Duration,
        max_hold: Duration,
        work: impl FnOnce(&KeptLock) -> Result<T, E>,
    ) -> Result<T, E> {
        self.acquire(ttl)?.keep_alive(max_hold)?.run(work)
    }

    /// Takes over a lock that another process hands over, as [`Redlock::resume`]. (That function itself cannot: it
    /// would take the lock for a plain one, which is lost when the nodes are asked.)
    ///
    /// # Errors
    ///
    /// The errors of [`Redlock::resume`].
    pub fn resume(&self, token: Token, validity: Duration) -> Result<Lock, Error> {
        let validity = (Point::now(), validity);
        let resource = self.resource.clone();
        self.redlock
            .resume_kind(resource, self.kind.clone(), token, validity)
    }
}

impl Lockable {
    /// The client, the name or the first of several, and the kind of lock.
    pub(crate) fn parts(&self) -> (&Redlock, &Arc<[u8]>, &Kind) {
        (&self.redlock, &self.resource, &self.kind)
    }

    /// The kind of lock. A writer that waits has a separate mark, which it renews.
    fn kind(&self, waits: bool) -> Result<Kind, Error> {
        if !waits || !matches!(self.kind, Kind::Write(_)) {
            return Ok(self.kind.clone());
        }
        let (_, longest) = self.redlock.options().retry_delay;
        let writer = getrandom::u64().map_err(Error::random)?;
        let node_timeout = self.redlock.timeouts().node;
        Ok(Kind::Write(Mark::new(writer, longest, node_timeout)))
    }
}

impl fmt::Debug for Lockable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.resource.escape_ascii();
        match &self.kind {
            Kind::Plain | Kind::Stray(_) => write!(f, "Lockable(\"{name}\")"),
            Kind::Permit { permits, .. } => write!(f, "Lockable(\"{name}\", {permits} permits)"),
            Kind::Read { .. } => write!(f, "Lockable(\"{name}\", read)"),
            Kind::Write(_) => write!(f, "Lockable(\"{name}\", write)"),
            Kind::Several { names, .. } => {
                write!(f, "Lockable(\"{name}\" and {} more)", names.len() - 1)
            }
        }
    }
}
