use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::errors::error::Error;
use crate::errors::node_errors::NodeErrors;
use crate::lock::acquirer::Acquirer;
use crate::lock::checks;
use crate::lock::family::Family;
use crate::lock::lock::Lock;
use crate::net::cluster::lanes::LockLanes;
use crate::net::cluster::route::Route;
use crate::net::discovery::ask_each::AbandonedThreads;
use crate::net::discovery::place::Place;
use crate::net::driver::executor::Executor;
use crate::net::driver::observe::{Event, Observer};
use crate::net::socket::trust;
use crate::protocol::calls::lease::Lease;
use crate::protocol::commands::action::Key;
use crate::protocol::commands::kind::Kind;
use crate::protocol::commands::slots;
use crate::protocol::node::debt::UNKNOWN_TTL;
use crate::protocol::node::node::Timeouts;
use crate::settings::environment;
use crate::settings::into_node::IntoNodes;
use crate::settings::options::Options;
use crate::values::arithmetic::{Deadline, Ttl};
use crate::values::clock::{self, Point};
use crate::values::config_error::ConfigError;
use crate::values::node_set::NodeSet;
use crate::values::token::Token;

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
/// | work that one host does with success, once in a period | [`once_per`](Redlock::once_per) | waits, then [`Error::Busy`]; `None` if it is done |
/// | to wait for a lock | [`acquire`](Redlock::acquire), [`acquire_within`](Redlock::acquire_within) | waits, then [`Error::Busy`] |
/// | to wait until told to stop | [`acquire_while`](Redlock::acquire_while) | waits, then [`Error::Cancelled`] |
/// | a function whose caller may already hold the lock | `with_lock`, `acquire`, `acquire_within`, `try_acquire` on [`reentrant()`](Redlock::reentrant) | the same, but never waits for its own thread |
/// | at most k holders at a time | all of these but `once_per` on [`semaphore(name, k)`](Redlock::semaphore) | the same, once all k permits are taken |
/// | many readers or one writer | the same on [`read_lock(name)`](Redlock::read_lock), [`write_lock(name)`](Redlock::write_lock) | the same |
/// | several names, all or none | the same on [`several(names)`](Redlock::several) | the same, for all of them together |
/// | to take over a lock from another process | [`resume`](Redlock::resume) | asks no node |
/// | to free a lock whose holder will not come back | [`break_lock`](Redlock::break_lock) | deletes only what [`inspect`](Redlock::inspect) showed |
#[derive(Clone)]
pub struct Redlock {
    family: Arc<Family>,
    options: Options,
}

impl Redlock {
    /// Names the nodes: one is the single-instance lock, N independent masters (3 or 5 are usual) are
    /// Redlock. Nothing is connected before the first operation, or [`connect`](Redlock::connect).
    ///
    /// A node is a URL (`redis://`, `rediss://` with the feature `tls`, `unix://`; with user, password and database; or
    /// [`redis+sentinel://` and `redis+cluster://`](crate::guide::deployments)) or a host and a port: see
    /// [`IntoNode`](crate::IntoNode). One text may name several, with commas between their URLs, as a variable or a secret
    /// has them; [`from_env`](Redlock::from_env) reads those of the command `redlock`. Connections speak RESP2.
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
    /// let the_same = Redlock::new("redis://10.0.0.1,redis://10.0.0.2,redis://10.0.0.3")?;
    /// # Ok::<(), redlock_sync::Error>(())
    /// ```
    pub fn new<Form>(nodes: impl IntoNodes<Form>) -> Result<Redlock, Error> {
        let nodes = nodes.into_nodes()?;
        checks::nodes(&nodes)?;
        let options = Options::default();
        Ok(Redlock {
            family: Family::new(
                Executor::new(nodes, &options, Observer::default()),
                &options,
            ),
            options,
        })
    }

    /// The driver, for tests that look into it.
    #[cfg(schedules)]
    pub(crate) fn driver(&self) -> std::sync::Weak<crate::net::driver::driver::Driver> {
        Arc::downgrade(&self.family.base.driver)
    }

    /// The nodes and options that the environment names, as the command [`redlock`](crate::guide::shell) reads them, so that
    /// programs and scripts of a host are configured once. The nodes: REDLOCK_NODES, with commas or white space between the
    /// URLs; or a file that REDLOCK_NODES_FILE names, one URL a line, `#` for comments; or `/etc/redlock/nodes`. The
    /// options: [`Options::from_env`].
    ///
    /// # Errors
    ///
    /// [`Error::Config`] with the variable, or the line of the file, that has the mistake; no password is repeated. A file
    /// with a password that every user may read is refused.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// use redlock_sync::Redlock;
    ///
    /// let redlock = Redlock::from_env()?;
    /// let redlock = redlock.adjust(|options| options.wait(Duration::from_secs(60)))?;
    /// # Ok::<(), redlock_sync::Error>(())
    /// ```
    pub fn from_env() -> Result<Redlock, Error> {
        let (source, nodes) = environment::nodes()?;
        let redlock = Redlock::new(nodes).map_err(|error| match error {
            Error::Config(error) => Error::config(format!("{source}: {error}")),
            other => other,
        })?;
        redlock.with_options(Options::from_env()?)
    }

    /// Changes some of the options, and keeps the others. Connections are shared as after
    /// [`with_options`](Redlock::with_options).
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a value out of range.
    ///
    /// # Example
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use redlock_sync::Redlock;
    /// # fn example() -> Result<(), redlock_sync::Error> {
    /// // With the prefix and the timeouts of the variables.
    /// let redlock = Redlock::from_env()?.adjust(|options| options.label("web-3"))?;
    /// // Another one that waits for longer, over the same connections.
    /// let patient = redlock.clone().adjust(|options| options.wait(Duration::from_secs(60)))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn adjust(self, change: impl FnOnce(Options) -> Options) -> Result<Redlock, Error> {
        let options = change(self.options.clone());
        self.with_options(options)
    }

    /// Replaces all options, for the same nodes: one that is not set has its default again, also the prefix and the restart
    /// guard, which programs that share locks must have in common. [`adjust`](Redlock::adjust) changes some of them. The
    /// connections are shared with `self`'s clones, unless a timeout, the restart guard, the prefix, the credentials or the
    /// options of TLS change.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for a value out of range.
    ///
    /// # Example
    ///
    /// ```
    /// # use redlock_sync::{Options, Redlock};
    /// let options = Options::new().prefix("team:"); // all others have their defaults
    /// let redlock = Redlock::new("redis://127.0.0.1")?.with_options(options)?;
    /// # Ok::<(), redlock_sync::Error>(())
    /// ```
    pub fn with_options(self, options: Options) -> Result<Redlock, Error> {
        options.validate()?;
        trust::validate(&options.tls).map_err(ConfigError::new)?;
        let family = if options.same_connections(&self.options) {
            self.family
        } else {
            Family::new(
                self.family.base.driver.executor().afresh(&options),
                &options,
            )
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
            None => family.base.driver.connect(),
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

    /// A try without a wait: a lock that is held is `None`, and no error.
    pub(crate) fn try_kind(
        &self,
        resource: &Arc<[u8]>,
        kind: Kind,
        ttl: Duration,
    ) -> Result<Option<Lock>, Error> {
        match self.acquire_kind(resource, kind, ttl, Duration::ZERO, None) {
            Ok(lock) => Ok(Some(lock)),
            Err(Error::Busy(_)) => Ok(None),
            Err(error) => Err(error),
        }
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
        // On the nodes it may last longer than its validity, and a node may be owed its release until then.
        let longest = self.options.max_ttl().unwrap_or(UNKNOWN_TTL);
        let longest = Ttl::no_less_than(longest).unwrap_or(Ttl::MAX);
        let key = key.sent_to(NodeSet::ALL).of_kind(kind).lasting(longest);
        let deadline = Deadline::new(now, validity);
        let route = self.route(&key.resource);
        let lease = Lease::new(key, ttl, deadline);
        if lease.key.kind.is_plain() {
            route
                .first_lane()
                .waiting_threads
                .held_here
                .add(&lease.key.resource);
        }
        let mut lock = Lock::new(route, lease, &self.options);
        lock.notify_acquired(Duration::ZERO, 0);
        Ok(lock)
    }

    /// Calls `observer` at each [`Event`] of the same nodes: for metrics, alerts, traces. This makes new connections,
    /// so call it right after [`new`](Redlock::new). A second observer replaces the first.
    ///
    /// Events of a call are reported in the thread of the caller, before the call returns. Events of renewals and nodes
    /// are reported in threads that do nothing else: one for the renewals of all locks, and one for the nodes. While the
    /// observer is handling a renewal, the first further result of each lock waits for that, and those behind it are not
    /// reported. No mutex of the library is held meanwhile: the observer may use this `Redlock`, sleep, or drop the last
    /// clone, and delays neither locks nor renewals: only the events that its thread reports. If the validity of a lock is
    /// over when the observer returns, the call fails with [`Error::TooSlow`], or with [`Error::Lost`] for an extension. A
    /// panic of the observer is caught and ignored. In a forked child it is not called. An observer that owns a clone of
    /// its own `Redlock` keeps the connections open for ever.
    ///
    /// # Example
    ///
    /// `examples/lock_metrics.rs` turns all events into Prometheus metrics.
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
        let mut executor = self.family.base.driver.executor().afresh(&self.options);
        executor.observer = Observer::new(Box::new(observer));
        Redlock {
            family: Family::new(executor, &self.options),
            options: self.options,
        }
    }

    /// The nodes as they were given.
    pub(crate) fn places(&self) -> Vec<Place> {
        // In a forked child, threads may hold mutexes of the parent's that do not exist there.
        self.family().base.driver.executor().places().to_vec()
    }

    /// The threads that earlier queries of this process have left behind.
    pub(crate) fn abandoned_threads(&self) -> Option<&AbandonedThreads> {
        let base = &self.family.base;
        let is_ours = base.is_ours();
        is_ours.then(|| &base.driver.executor().abandoned_threads)
    }

    /// The timeouts of a connection, and of an answer.
    pub(crate) fn timeouts(&self) -> Timeouts {
        self.executor().timeouts
    }

    /// Those of all shards, in a forked child its parent's: for what never changes.
    pub(crate) fn executor(&self) -> &Executor {
        self.family.base.driver.executor()
    }

    /// Checks the name of a lock.
    pub(crate) fn checked(&self, resource: impl AsRef<[u8]>) -> Result<Arc<[u8]>, Error> {
        checks::name(resource.as_ref(), &self.options.prefix)
    }

    /// The options, to be read. [`adjust`](Redlock::adjust) changes some of them.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The family of this process.
    pub(super) fn family(&self) -> Arc<Family> {
        let mut family = self.family.clone();
        while !family.base.is_ours() {
            family = family.child(&self.options);
        }
        family
    }

    /// The route to the servers that have this resource: one connection to each node, or lanes.
    pub(crate) fn route(&self, resource: &[u8]) -> Route {
        let family = self.family();
        match &family.lanes {
            None => Route::One(family.base.clone()),
            Some(lanes) => Route::Shards(
                LockLanes::new(lanes.lane_of_resource(resource)),
                lanes.clone(),
            ),
        }
    }

    /// Has the maps of Clusters asked for, if a redirect of this slot has shown what they lack.
    pub(crate) fn has_moved(&self, slot: u16, is_news: bool) {
        if let Some(lanes) = self.family().lanes.as_ref().filter(|_| is_news) {
            lanes.slot_moved(slot);
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

    /// Acquires a lock. All calls of all kinds of locks end here; one that does not wait has no time for it.
    pub(crate) fn acquire_kind(
        &self,
        resource: &Arc<[u8]>,
        kind: Kind,
        ttl: Duration,
        wait: Duration,
        mut keep_trying: Option<&mut dyn FnMut() -> bool>,
    ) -> Result<Lock, Error> {
        let ttl = Ttl::within(ttl, self.options.max_ttl())?;
        self.check_slots(&kind)?;
        let began = self.executor().observer.begins();
        // (Each look at the family costs a system call.)
        if let Some(keep_trying) = &mut keep_trying
            && let Some(lanes) = &self.family().lanes
            && !lanes.find_maps_while(resource, keep_trying)
        {
            let error = Error::cancelled(resource);
            if let Some(began) = began {
                not_acquired(&self.executor().observer, (resource, 0), began, &error);
            }
            return Err(error);
        }
        let route = self.route(resource);
        let (options, must_ask) = (&self.options, keep_trying.is_some());
        let mut acquirer = Acquirer::new(&route, options, resource, kind, ttl, wait, must_ask);
        let waited = acquirer.run(keep_trying.unwrap_or(&mut || true));
        match began {
            Some(began) => notified(route.first_lane().observer(), waited, began, &acquirer),
            None => waited,
        }
    }
}

/// Notifies the observer of the result of an acquisition.
fn notified(
    observer: &Observer,
    result: Result<Lock, Error>,
    began: Instant,
    acquirer: &Acquirer<'_>,
) -> Result<Lock, Error> {
    let wait = clock::instant().saturating_duration_since(began);
    match result {
        Ok(mut lock) => {
            lock.notify_acquired(wait, acquirer.attempts());
            // The observer may have taken its time (rule R4).
            match lock.is_valid() {
                true => Ok(lock),
                false => Err(acquirer.too_slow()),
            }
        }
        Err(error) => {
            let call = (acquirer.resource(), acquirer.attempts());
            not_acquired(observer, call, began, &error);
            Err(error)
        }
    }
}

fn not_acquired(
    observer: &Observer,
    (resource, attempts): (&[u8], u32),
    began: Instant,
    error: &Error,
) {
    observer.notify(|| Event::NotAcquired {
        resource,
        wait: clock::instant().saturating_duration_since(began),
        attempts,
        error,
    });
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
