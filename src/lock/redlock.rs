use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use redis::ConnectionAddr;

use crate::errors::error::{Error, NodeErrors};
use crate::lock::acquire::Acquirer;
use crate::lock::lock::Lock;
use crate::net::cluster::lanes::Lanes;
use crate::net::driver::abandoned::AbandonedThreads;
use crate::net::driver::nodes::Nodes;
use crate::net::driver::observe::{Event, Observer};
use crate::net::driver::shared::Shared;
use crate::net::place::directory::Place;
use crate::net::socket::trust;
use crate::protocol::calls::lease::Lease;
use crate::protocol::commands::kind::Kind;
use crate::protocol::commands::script::Key;
use crate::protocol::commands::slots;
use crate::settings::into_node::IntoNodes;
use crate::settings::node_address::NodeAddress;
use crate::settings::options::Options;
use crate::values::clock::{self, Point};
use crate::values::config_error::ConfigError;
use crate::values::quorum::{Deadline, MAX_NODES, NodeSet, Ttl};
use crate::values::token::Token;

/// A resource is a Redis key. The maximum is far above what a name needs.
const MAX_RESOURCE: usize = 64 * 1024;

/// Takes locks on one Redis node, or on a majority of N independent ones.
///
/// Cheap to clone; all clones, their threads and their locks share one connection per node. Make one
/// for the whole program.
///
/// # Which call
///
/// | you want | call | if another holder has the lock |
/// | --- | --- | --- |
/// | work under a lock | [`with_lock`](Redlock::with_lock) | waits, then [`Error::Busy`]; the work does not run |
/// | the same for work of unknown length | [`with_kept_lock`](Redlock::with_kept_lock) | the same |
/// | one attempt | [`try_acquire`](Redlock::try_acquire) | `None` |
/// | to wait for a lock | [`acquire`](Redlock::acquire), [`acquire_within`](Redlock::acquire_within) | waits, then [`Error::Busy`] |
/// | to wait until told to stop | [`acquire_while`](Redlock::acquire_while) | waits, then [`Error::Cancelled`] |
/// | a function whose caller may already hold the lock | these on [`reentrant()`](Redlock::reentrant) | the same, but never waits for its own thread |
/// | at most k holders at a time | these on [`semaphore(name, k)`](Redlock::semaphore) | the same, once all k permits are taken |
/// | many readers or one writer | these on [`read_lock(name)`](Redlock::read_lock), [`write_lock(name)`](Redlock::write_lock) | the same |
/// | several names, all or none | these on [`several(names)`](Redlock::several) | the same, for all of them together |
/// | to take over a lock from another process | [`resume`](Redlock::resume) | asks no node |
/// | to free a lock whose holder will not come back | [`break_lock`](Redlock::break_lock) | deletes only what [`inspect`](Redlock::inspect) showed |
#[derive(Clone)]
pub struct Redlock {
    family: Arc<Family>,
    options: Options,
}

/// The connections of one process, and those of processes that were forked from it.
struct Family {
    shared: Arc<Shared>,
    /// The lanes, if nodes are Redis Clusters. Then nothing of `shared` is used except the nodes as they were given.
    lanes: Option<Arc<Lanes>>,
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

impl Redlock {
    /// Names the nodes: one is the single-instance lock, N independent masters (3 or 5 are usual) are
    /// Redlock. Nothing is connected before the first operation, or [`connect`](Redlock::connect).
    ///
    /// A node is a URL (`redis://`, `rediss://` with the feature `tls`, `unix://`; with user, password and database; or
    /// [`redis+sentinel://` and `redis+cluster://`](crate::guide::deployments)) or a
    /// [`redis::ConnectionInfo`](https://docs.rs/redis/1/redis/struct.ConnectionInfo.html): see
    /// [`IntoNode`](crate::IntoNode). Connections speak RESP2, whatever a URL asks for.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for an empty list or more than 64 nodes, a bad URL, TLS without its feature, a host with
    /// characters that no host's name has (an international one is punycode: `xn--…`), and an address that is given
    /// twice. The error names the node's index, and for a URL what it should be.
    ///
    /// # Example
    ///
    /// ```
    /// use redlock_sync::Redlock;
    ///
    /// let single = Redlock::new("redis://127.0.0.1:6379")?;
    /// let redlock = Redlock::new(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
    /// # Ok::<(), redlock_sync::Error>(())
    /// ```
    pub fn new<Form>(nodes: impl IntoNodes<Form>) -> Result<Redlock, Error> {
        let nodes = nodes.into_nodes()?;
        check(&nodes)?;
        let options = Options::default();
        Ok(Redlock {
            family: Family::new(Nodes::new(nodes, &options, Observer::default()), &options),
            options,
        })
    }

    /// Sets other options for the same nodes. The connections are shared with `self`'s clones, unless a timeout or the
    /// restart guard changes.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a value out of range.
    pub fn with_options(self, options: Options) -> Result<Redlock, Error> {
        options.validate()?;
        trust::validate(&options.tls).map_err(ConfigError::new)?;
        let family = if options.same_connections(&self.options) {
            self.family
        } else {
            Family::new(self.family.shared.driver.nodes().afresh(&options), &options)
        };
        Ok(Redlock { family, options })
    }

    /// Connects to all nodes now, which otherwise the first operation does, and asks each whether it answers:
    /// for programs that should fail at their start. `None`: all nodes answer. `Some`: a majority answers, which is
    /// enough for locks; the nodes listed do not.
    ///
    /// Locks use the same connections. So the first lock need not wait for any, and lies on all nodes that answer. This
    /// can be called at any time to see which nodes answer; those that are away are tried at once.
    ///
    /// The call takes at most [`connect_timeout`](Options::connect_timeout) plus five times
    /// [`node_timeout`](Options::node_timeout). Only a node that neither answers nor refuses makes it wait for the
    /// whole `connect_timeout`. (Of a Redis Cluster 32 masters are connected at a time, each of them within this time.)
    ///
    /// This does not check what the nodes are and whether they permit locks: [`check`](Redlock::check) finds a replica,
    /// a user without the rights, or a policy that evicts keys. With the [restart guard](Options::restart_guard), a
    /// node that gives no votes yet counts as one that does not answer, and [`retry_after`](NodeErrors::retry_after)
    /// returns how long that lasts.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if no majority answers, with the cause at each node. [`Error::Config`] if two nodes turn
    /// out to be one server.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # let redlock = redlock_sync::Redlock::new(["redis://127.0.0.1"])?;
    /// if let Some(failed) = redlock.connect()? {
    ///     eprintln!("locks work, but not all nodes do: {failed}");
    /// }
    /// # Ok::<(), redlock_sync::Error>(())
    /// ```
    pub fn connect(&self) -> Result<Option<NodeErrors>, Error> {
        let family = self.family();
        let connected = match &family.lanes {
            None => family.shared.driver.connect(),
            Some(lanes) => lanes.connect(),
        };
        let (Ok(Some(errors)) | Err(errors)) = &connected else {
            return Ok(None);
        };
        match errors.same_server() {
            Some(mistake) => Err(Error::Config(mistake)),
            None => connected.map_err(Error::Unavailable),
        }
    }

    /// Tries once to take the lock on `resource` for `ttl`. `None`: another holder has it, or it is reserved for a
    /// waiter ([`Options::fair`]); [other reasons](crate::guide::faq#what-does-none-mean) are rare.
    ///
    /// If several programs try for a free lock at the same moment, each may get some votes and none a majority. A
    /// program that got some retries with a new token, after a random pause of a few round trips that grows with each
    /// retry, for at most some hundred round trips and one [`node_timeout`](Options::node_timeout). (The Redlock
    /// specification, "Retry on failure".)
    ///
    /// An attempt takes at most two `node_timeout`s in all; the first operation of a program also connects.
    ///
    /// The resource is the key's name, 1 byte to 64 KiB, any bytes. The ttl is truncated to whole
    /// milliseconds; from 3 ms to 100 years. It bounds how long the lock stays taken if this process
    /// dies; a lock is valid for at most 99 % of it less 2 ms.
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
    /// Every host asks, one does the work. The ttl is longer than the work takes, and shorter than the time to the next
    /// run:
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
        self.try_kind(&checked(resource.as_ref())?, Kind::Plain, ttl)
    }

    pub(crate) fn try_kind(
        &self,
        resource: &Arc<[u8]>,
        kind: Kind,
        ttl: Duration,
    ) -> Result<Option<Lock>, Error> {
        let ttl = Ttl::within(ttl, self.options.max_ttl())?;
        self.check_slots(&kind)?;
        let shared = self.shared(resource);
        let began = shared.observer().begins();
        let (options, wait) = (&self.options, Duration::ZERO);
        let mut acquirer = Acquirer::new(&shared, options, resource, kind, ttl, wait, false);
        let tried = acquirer.run(&mut || true);
        match notified(shared.observer(), tried, began, &acquirer) {
            Ok(lock) => Ok(Some(lock)),
            Err(Error::Busy(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Takes the lock. Waits for up to [`Options::wait`] while others hold it or too few nodes answer, but not if the
    /// nodes refuse for good.
    ///
    /// Threads of this process get it in the order of their arrival. A release in this process hands the lock to
    /// the next thread; a release in another process sends a message to one that waits. A waiter that gets no
    /// message tries again when the lock's ttl ends, or after a pause ([`Options::retry_delay`]).
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
        self.acquire_within(resource, ttl, self.options.wait)
    }

    /// [`acquire`](Redlock::acquire) with its own wait in place of [`Options::wait`]. Zero: one attempt.
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
        self.wait_for(&checked(resource.as_ref())?, Kind::Plain, ttl, wait, None)
    }

    /// [`acquire`](Redlock::acquire) for as long as `keep_trying` returns true. [`Options::wait`] does not bound it.
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
        let keep_trying: &mut dyn FnMut() -> bool = &mut keep_trying;
        let resource = checked(resource.as_ref())?;
        self.wait_for(
            &resource,
            Kind::Plain,
            ttl,
            Duration::MAX,
            Some(keep_trying),
        )
    }

    /// [Acquires](Redlock::acquire) the lock, does the work and releases the lock, however the work ends, even by
    /// a panic.
    ///
    /// # Errors
    ///
    /// The errors of [`acquire`](Redlock::acquire): then the work did not run. [`Error::Lost`] if the validity was over
    /// when the work ended, or a majority no longer held the lock: then the work ran unprotected for a time. A release
    /// that too few nodes confirmed is not an error here (the lock ends with its ttl); it is logged.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # let redlock = redlock_sync::Redlock::new(["redis://127.0.0.1"])?;
    /// let sum = redlock.with_lock("shop:ledger", Duration::from_secs(10), |lock| {
    ///     lock.ensure(Duration::from_secs(1))?; // before a write that takes up to a second
    ///     Ok::<_, redlock_sync::Error>(1 + 1)
    /// })??;
    /// # Ok::<(), redlock_sync::Error>(())
    /// ```
    pub fn with_lock<T>(
        &self,
        resource: impl AsRef<[u8]>,
        ttl: Duration,
        work: impl FnOnce(&mut Lock) -> T,
    ) -> Result<T, Error> {
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
    /// [`Error::Config`] for an empty or too long resource, and a validity above 100 years.
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
        self.resume_kind(
            checked(resource.as_ref())?,
            Kind::Plain,
            token,
            (now, validity),
        )
    }

    /// Resumes a lock of any kind. The validity counts from `now`.
    pub(crate) fn resume_kind(
        &self,
        resource: Arc<[u8]>,
        kind: Kind,
        token: Token,
        (now, validity): (Point, Duration),
    ) -> Result<Lock, Error> {
        // A validity too short for a ttl is not an error: such a lock is about to be lost.
        let ttl = Ttl::within(validity.max(Ttl::SHORTEST), self.options.max_ttl())?;
        let key = Key::new(resource, token, self.options.label.clone());
        let key = key.sent_to(NodeSet::ALL).of_kind(kind);
        let deadline = Deadline::new(now, validity);
        let shared = self.shared(&key.resource);
        let lease = Lease::new(key, ttl, deadline);
        if lease.key.kind.is_plain() {
            shared.waiting.held_here.add(&lease.key.resource);
        }
        let mut lock = Lock::new(shared, lease, &self.options);
        lock.acquired(Duration::ZERO, 0);
        Ok(lock)
    }

    /// Calls `observer` at each [`Event`] of the same nodes: for metrics, alerts, traces. This makes new connections,
    /// so call it right after [`new`](Redlock::new). A second observer replaces the first.
    ///
    /// Events of a call are reported in the thread of the caller, before the call returns. Events of renewals and nodes
    /// are reported in threads that do nothing else. While the observer is handling a renewal, further renewals of the
    /// same lock are not reported. No mutex of the library is held meanwhile: the observer may use this `Redlock`,
    /// sleep, or drop the last clone, and delays only its own thread. If the validity of a lock is over when the
    /// observer returns, the call fails with [`Error::TooSlow`], or with [`Error::Lost`] for an extension. A panic of
    /// the observer is caught and ignored. In a forked child it is not called. An observer that owns a clone of its own
    /// `Redlock` keeps the connections open for ever.
    ///
    /// # Example
    ///
    /// `examples/metrics.rs` turns all events into Prometheus metrics.
    ///
    /// ```no_run
    /// use redlock_sync::{Event, Redlock};
    ///
    /// let nodes = ["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"];
    /// let redlock = Redlock::new(nodes)?.with_observer(|event| {
    ///     if let Event::Lost { resource, reason, .. } = event {
    ///         eprintln!("lost {}: {reason:?}", resource.escape_ascii());
    ///     }
    /// });
    /// # Ok::<(), redlock_sync::Error>(())
    /// ```
    #[must_use]
    pub fn with_observer(self, observer: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Redlock {
        // With separate connections, since the code that drives the connections reports what nodes do.
        let mut nodes = self.family.shared.driver.nodes().afresh(&self.options);
        nodes.observer = Observer::new(Box::new(observer));
        Redlock {
            family: Family::new(nodes, &self.options),
            options: self.options,
        }
    }

    /// The nodes as they were given.
    pub(crate) fn places(&self) -> Vec<Place> {
        // In a forked child, threads may hold mutexes of the parent's that do not exist there.
        self.family().shared.driver.nodes().places().to_vec()
    }

    /// The threads that earlier queries of this process have left behind.
    pub(crate) fn abandoned_threads(&self) -> Option<&AbandonedThreads> {
        let shared = &self.family.shared;
        let is_ours = shared.is_ours();
        is_ours.then(|| &shared.driver.nodes().abandoned_threads)
    }

    /// The timeouts of a connection, and of an answer.
    pub(crate) fn timeouts(&self) -> (Duration, Duration) {
        let nodes = self.family.shared.driver.nodes();
        (nodes.timeouts.connect, nodes.timeouts.node)
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// The family of this process.
    fn family(&self) -> Arc<Family> {
        let mut family = self.family.clone();
        while !family.shared.is_ours() {
            family = family.child(&self.options);
        }
        family
    }

    /// Waits until so few nodes are owed the end of a lock on this name that other processes can have a majority, at
    /// most for `time`. Returns whether that is so.
    #[cfg(feature = "cli")]
    pub(crate) fn wait_owed(&self, resource: &[u8], time: Duration) -> bool {
        let until = clock::instant() + time;
        if let Some(lanes) = &self.family().lanes {
            // Some releases may be on their way to another server.
            lanes.wait_owed(time);
        }
        let rest = until.saturating_duration_since(clock::instant());
        self.shared(resource).driver.wait_owed(rest)
    }

    /// The connections to the servers that have this resource.
    pub(crate) fn shared(&self, resource: &[u8]) -> Arc<Shared> {
        let family = self.family();
        match &family.lanes {
            None => family.shared.clone(),
            Some(lanes) => lanes.of(resource),
        }
    }

    /// Checks that a lock on several names has them in the same slot, if a Redis Cluster is among the nodes.
    fn check_slots(&self, kind: &Kind) -> Result<(), Error> {
        let names = kind.names().filter(|_| self.family.lanes.is_some());
        let slot = |name: &Arc<[u8]>| slots::slot(&self.options.prefix.key(name));
        let mut slots = names.into_iter().flatten().map(slot);
        let first = slots.next();
        if slots.all(|slot| Some(slot) == first) {
            return Ok(());
        }
        Err(Error::config(
            "a Redis Cluster has these names in different slots: give them a common {tag}, as in {shop}:a and {shop}:b"
                .to_owned(),
        ))
    }

    pub(crate) fn wait_for(
        &self,
        resource: &Arc<[u8]>,
        kind: Kind,
        ttl: Duration,
        wait: Duration,
        keep_trying: Option<&mut dyn FnMut() -> bool>,
    ) -> Result<Lock, Error> {
        let ttl = Ttl::within(ttl, self.options.max_ttl())?;
        self.check_slots(&kind)?;
        let shared = self.shared(resource);
        let began = shared.observer().begins();
        let (options, must_ask) = (&self.options, keep_trying.is_some());
        let mut acquirer = Acquirer::new(&shared, options, resource, kind, ttl, wait, must_ask);
        let waited = match keep_trying {
            Some(keep_trying) => acquirer.run(keep_trying),
            None => acquirer.run(&mut || true),
        };
        notified(shared.observer(), waited, began, &acquirer)
    }
}

/// Notifies the observer of the result of an acquisition.
fn notified(
    observer: &Observer,
    result: Result<Lock, Error>,
    began: Option<Instant>,
    acquirer: &Acquirer<'_>,
) -> Result<Lock, Error> {
    let Some(began) = began else {
        return result;
    };
    let wait = clock::instant().saturating_duration_since(began);
    match result {
        Ok(mut lock) => {
            lock.acquired(wait, acquirer.attempts());
            // The observer may have taken its time (rule R4).
            match lock.is_valid() {
                true => Ok(lock),
                false => Err(acquirer.too_slow()),
            }
        }
        Err(error) => {
            observer.notify(|| Event::NotAcquired {
                resource: acquirer.resource(),
                wait,
                attempts: acquirer.attempts(),
                error: &error,
            });
            Err(error)
        }
    }
}

impl Family {
    fn new(nodes: Nodes, options: &Options) -> Arc<Family> {
        let shared = Arc::new(Shared::new(nodes));
        Arc::new(Family {
            lanes: Lanes::new(&shared, options),
            shared,
            children: Default::default(),
        })
    }

    /// The family of this process, or of a process between it and the one that made `self`: in a grandchild the
    /// place of the child is taken, so it takes the next free place, or looks further in the child's family.
    fn child(&self, options: &Options) -> Arc<Family> {
        let process = std::process::id();
        for child in &self.children {
            let taken =
                child
                    .process
                    .compare_exchange(0, process, Ordering::AcqRel, Ordering::Acquire);
            match taken {
                // No other thread of this process sets it.
                Ok(_) => {
                    let family = Family::new(self.shared.driver.nodes().afresh(options), options);
                    let _ = child.family.set(family.clone());
                    return family;
                }
                // Another thread of this process is about to set it.
                Err(owner) if owner == process => loop {
                    if let Some(family) = child.family.get() {
                        return family.clone();
                    }
                    std::thread::yield_now();
                },
                Err(_) => {}
            }
        }
        let older = self.children.iter().find_map(|child| child.family.get());
        let fresh = || Family::new(self.shared.driver.nodes().afresh(options), options);
        older.cloned().unwrap_or_else(fresh)
    }
}

impl Drop for Family {
    /// Closes the lanes while other servers can be found for the releases that are left.
    fn drop(&mut self) {
        if let Some(lanes) = self.lanes.as_ref().filter(|_| self.shared.is_ours()) {
            lanes.close();
        }
    }
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses: Vec<_> = self.places().iter().map(Place::shown).collect();
        f.debug_struct("Redlock")
            .field("nodes", &addresses)
            .field("options", &self.options)
            .finish()
    }
}

/// Checks that each node's vote counts once, and that this build can reach all nodes.
fn check(nodes: &[NodeAddress]) -> Result<(), ConfigError> {
    let count = nodes.len();
    if count == 0 || count > MAX_NODES {
        let text = match count {
            0 => "no nodes given: at least 1 is needed, 3 or 5 are usual".to_owned(),
            _ => format!("{count} nodes given, the limit is {MAX_NODES}"),
        };
        return Err(ConfigError::new(text));
    }
    for (i, node) in nodes.iter().enumerate() {
        if let Err(reason) = reachable(node.info().addr()) {
            return Err(ConfigError::new(format!("node {i} ({node}) {reason}")));
        }
        let same = |other: &NodeAddress| other.is_same(node);
        if let Some(other) = nodes.iter().take(i).position(same) {
            return Err(ConfigError::new(format!(
                "nodes {other} and {i} have the same address {node}: its vote must count once"
            )));
        }
    }
    Ok(())
}

fn reachable(addr: &ConnectionAddr) -> Result<(), String> {
    match addr {
        // Leaving them out would mean connecting without the certificates that were given.
        ConnectionAddr::TcpTls {
            tls_params: Some(_),
            ..
        } => Err(
            "has certificates that only the redis crate can read: give them with Options::tls"
                .into(),
        ),
        ConnectionAddr::TcpTls { .. } => trust::supported()
            .map_err(|reason| format!("cannot be reached by this build: {reason}")),
        addr if addr.is_supported() => Ok(()),
        _ => Err("cannot be reached by this build: Unix sockets need Unix".into()),
    }
}

pub(crate) fn checked(resource: &[u8]) -> Result<Arc<[u8]>, Error> {
    if resource.is_empty() || resource.len() > MAX_RESOURCE {
        return Err(Error::config(format!(
            "the resource is {} bytes long: it must be 1 to {MAX_RESOURCE}",
            resource.len()
        )));
    }
    Ok(resource.into())
}
