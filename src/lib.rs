//! Distributed locks on Redis with a blocking API and no async runtime.
//!
//! A [`Redlock`] is made once for the whole program, from the addresses of its Redis nodes: one node is the
//! single-instance lock, N independent masters are
//! [Redlock](https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/), which works for as long as a
//! majority of them does. It hands out [`Lock`]s, which end by themselves when their time to live (ttl) is over, and
//! are released when they are dropped. [`Options`] set how long it waits and how often it retries. Every failure is an
//! [`Error`] that names what to do.
//!
//! A lock is a lease, and nothing stops its holder when it ends. A program that is paused between
//! its last check of the lock and its write may write after another holder has taken over; a node that
//! loses its keys may grant a lock that is still held. [Guarantees](guide::guarantees) explains what follows
//! from that, and when to use a row lock of a database or a consensus service instead.
//!
//! The [guide] covers more: [recipes](guide::recipes), [long jobs](guide::long_jobs), [waiting](guide::waiting),
//! [operations](guide::operations), [fencing tokens](guide::fencing), a [FAQ](guide::faq), [how all of that is
//! tested](guide::how_we_know).
//!
//! # Usage
//!
//! Wait for a lock, do the work, release it:
//!
//! ```no_run
//! use redlock_sync::Redlock;
//! use std::time::Duration;
//!
//! let redlock = Redlock::new(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
//! let lock = redlock.acquire("shop:account:17", Duration::from_secs(10))?;
//! // … read, think …
//! lock.ensure(Duration::from_secs(1))?; // still ours for the second that the write takes?
//! // … write …
//! lock.release()?;
//! # Ok::<(), redlock_sync::Error>(())
//! ```
//!
//! With a closure, the lock is released however the closure ends:
//!
//! ```no_run
//! # use redlock_sync::Redlock;
//! # use std::time::Duration;
//! # fn work() -> Result<(), Box<dyn std::error::Error>> { Ok(()) }
//! # fn work_alone(redlock: &Redlock) -> Result<(), Box<dyn std::error::Error>> {
//! redlock.with_lock("shop:account:17", Duration::from_secs(10), |lock| {
//!     lock.ensure(Duration::from_secs(1))?; // before work that takes up to a second
//!     work()
//! })
//! # }
//! ```
//!
//! Every host asks, one does the work with success, once in 20 hours. If the work fails, or its process dies, the next one
//! does it: they wait for as long as [`Options::wait`] allows, here longer than the work takes, and then fail with
//! [`Error::Busy`].
//!
//! ```no_run
//! # use redlock_sync::{Error, Redlock};
//! # use std::time::Duration;
//! # let redlock = Redlock::new(["redis://127.0.0.1"])?;
//! # fn import(_: u32) {}
//! let (ttl, period) = (Duration::from_secs(30), Duration::from_secs(20 * 3600));
//! let patient = redlock.adjust(|options| options.wait(Duration::from_secs(2 * 3600)))?;
//! patient.once_per("shop:nightly", ttl, period, |lock| {
//!     for part in 0..10 {
//!         lock.ensure(Duration::from_secs(1))?; // before a part that takes up to a second
//!         import(part);
//!     }
//!     Ok::<_, Error>(())
//! })?;
//! # Ok::<(), redlock_sync::Error>(())
//! ```
//!
//! At most one mail to a user every five seconds, from all hosts together: a lock that is not released, but
//! [left](Lock::leak) to end with its ttl.
//!
//! ```no_run
//! # use redlock_sync::Redlock;
//! # use std::time::Duration;
//! # let redlock = Redlock::new(["redis://127.0.0.1"])?;
//! # fn send() {}
//! if let Some(lock) = redlock.try_acquire("shop:mail:ann", Duration::from_secs(5))? {
//!     lock.leak();
//!     send();
//! }
//! # Ok::<(), redlock_sync::Error>(())
//! ```
//!
//! Work of unknown length, with a short ttl that is renewed automatically for at most an hour:
//!
//! ```no_run
//! # use redlock_sync::Redlock;
//! # use std::time::Duration;
//! # fn write(_: u32) {}
//! # fn reindex(redlock: &Redlock) -> Result<(), redlock_sync::Error> {
//! let (ttl, max_hold) = (Duration::from_secs(10), Duration::from_secs(3600));
//! redlock.with_kept_lock("shop:reindex", ttl, max_hold, |lock| {
//!     for record in 0..1000 {
//!         lock.ensure(Duration::from_secs(1))?; // before a write that takes up to a second
//!         write(record);
//!     }
//!     Ok(())
//! })
//! # }
//! ```
//!
//! [`Redlock::acquire_while`] waits until its closure returns false. [`Lock::extend`] prolongs a lock that
//! is still held. [`Lock::token`] and [`Redlock::resume`] hand a lock to another process.
//!
//! ## Nodes
//!
//! A node is the URL ([`IntoNode`]) of a server,
//! of the master of a set that sentinels watch, or of a [Redis Cluster](guide::deployments). [`Redlock::from_env`] reads
//! them from the environment, as the command does. Nothing is connected before the first operation. A program that should
//! fail at its start if no majority of the nodes answers calls [`Redlock::connect`]; [`Redlock::check`] reports settings
//! that lose locks.
//!
//! ```
//! use redlock_sync::Redlock;
//!
//! let over_tcp = Redlock::new(["redis://user:password@10.0.0.1:6379/0"])?;
//! let over_a_unix_socket = Redlock::new(["unix:///run/redis/redis.sock"])?;
//! let of_sentinels = Redlock::new(["redis+sentinel://10.0.0.1,10.0.0.2,10.0.0.3/mymaster"])?;
//! let of_a_cluster = Redlock::new(["redis+cluster://10.0.0.1,10.0.0.2"])?;
//! # Ok::<(), redlock_sync::Error>(())
//! ```
//!
//! Nodes must be independent of each other, evict nothing, and not forget locks when they are restarted:
//! [operations](guide::operations) lists the settings. Where replicas take over from masters, name the set or the Cluster, not
//! its servers: then a failover makes no two holders, on [these conditions](guide::deployments#what-to-set). All threads,
//! clones and locks of a [`Redlock`] share one connection to each node.
//!
//! # Errors
//!
//! [`Error`] has a table of what to do about each of them. Two are easily confused: [`Error::Busy`] means
//! that another holder has the lock (or that others tried for it as well, and none got a majority).
//! [`Error::Unavailable`] means that too few nodes answered to know, and carries the cause of each failed
//! node. As long as a majority of the nodes answers, the failure of the others is not an error.
//!
//! ```no_run
//! use redlock_sync::{Error, Redlock};
//! use std::time::Duration;
//!
//! # let redlock = Redlock::new(["redis://127.0.0.1"])?;
//! match redlock.acquire("shop:account:17", Duration::from_secs(10)) {
//!     Ok(lock) => lock.release()?,
//!     Err(Error::Busy(_)) => println!("another has it"),
//!     Err(Error::Unavailable(nodes)) => {
//!         for error in nodes.iter() {
//!             println!("node {}: {error}", error.node());
//!         }
//!     }
//!     Err(error) => return Err(error),
//! }
//! # Ok::<(), redlock_sync::Error>(())
//! ```
//!
//! # Features
//!
//! All are off by default.
//!
//! - `tls`: [`rediss://`](guide::tls), with rustls.
//! - `tls-rustls`: the same without a [crypto provider](guide::tls#the-crypto-provider), which the program then
//!   installs.
//! - `capi`: the C interface, see [C and other languages](guide::c). Its manual is `src/redlock.h`.
//! - `testing`: nodes for [unit tests](guide::testing), in the test's own process.
//! - `cli`: the command [`redlock`](guide::shell). It brings `tls`, and adds nothing else to the library.
//!
//! # Log levels
//!
//! The library logs through the [`log`](https://docs.rs/log) crate:
//!
//! At level warn:
//!
//! - a lock that is [kept alive](Lock::keep_alive) was lost; the nodes no longer had another lock at an
//!   [`extend`](Lock::extend), a [`release`](Lock::release) or a [`fencing_token`](Lock::fencing_token)
//! - dropping a lock could not write its release to a majority
//! - [`Redlock::with_lock`] or [`Redlock::with_kept_lock`]: too few nodes confirmed the release
//! - a node refuses a release, for example because the user lacks a right, so the lock ends there with its ttl,
//!   or once the right is given back. Once for each node and error code
//! - the key of a lock is not a lock: it holds data of another type, or has no ttl. Noticed while waiting for
//!   the lock, extending or releasing it. Once for each node and resource, and 100 times at most
//! - a node is away, or gives no votes, with its index and cause; and when it is back, with the number of
//!   releases that could not be kept for it
//! - a node was restarted or replaced, and may have forgotten locks. With the [restart
//!   guard](Options::restart_guard): for how long it gives no votes
//! - a node does not count fencing tokens, does not report which server it is, or lacks what the restart guard
//!   needs. Once for each node, for as long as the client lives
//! - no sentinel, or no other server of a Redis Cluster that has one master, answers: locks go on; or too few of them
//!   name a master: no locks are granted there until more do
//! - the ttl of a lock is longer than the restart guard
//! - the thread that reports the loss of a kept lock in time cannot be started
//!
//! At level info:
//!
//! - a node runs no scripts, sends no messages, or does not permit the keys beside locks or `TIME`: what does
//!   not work without it
//!
//! At level debug:
//!
//! - one line for each attempt to acquire: result, votes, time; and that a node cannot notify this process of
//!   the releases of others
//!
//! At level trace:
//!
//! - the answers of the nodes, one by one
//!
//! Lines have key-values (the `kv` of `log`), besides the same in their texts: `lock`, `node`, `reason`; for an attempt
//! `verdict`, `yes`, `no`, `failed` and `ms`; for an answer `vote`. `env_logger` with its feature `kv` shows them.
//! `tracing-subscriber` takes the lines as they are, by its feature `tracing-log`, which is on by default, and leaves
//! the key-values out. A line that no logger wants is not made.
//!
//! A line about a lock names its resource, escaped, and at most the first 64 bytes of it. A lock that another holder
//! has is not worth a warning. No line shows a token or a password. If the logger panics, the panic is caught and
//! ignored.
//!
//! # Minimum supported Rust version
//!
//! 1.88, because the redis crate needs it. It can rise with a new minor version.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![cfg_attr(not(feature = "capi"), forbid(unsafe_code))]
// With the C interface, only its own module may use unsafe code.
#![cfg_attr(feature = "capi", deny(unsafe_code))]
// No code panics or prints, except tests.
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::print_stdout,
        clippy::print_stderr,
        clippy::missing_errors_doc,
        clippy::missing_panics_doc
    )
)]

/// The target of all log messages, and so how a program's logger recognises them.
const LOG_TARGET: &str = "redlock_sync";

/// Logs. If the program's logger panics, nothing is left half done.
macro_rules! say {
    ($level:ident, $($what:tt)+) => {{
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            log::$level!(target: $crate::LOG_TARGET, $($what)+)
        }));
    }};
}

// The rooms, in reading order: each uses only those above it (`.ci/imports`), and the switches of `protocol::mutants`.

/// Values on which everything else is built: times, tokens, names, the arithmetic of Redlock.
mod values;

/// Errors, their texts, and the redaction of secrets.
mod errors;

/// Options, and the addresses of nodes.
mod settings;

/// The protocol, pure: commands, nodes, quorum, waiting, calls. Its head has the rules.
mod protocol;

/// Sockets, threads and clocks, which drive the protocol.
mod net;

/// The locks, and the client object that makes them.
mod lock;

/// Questions about locks and nodes, from people and monitoring.
mod ops;

#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod command;

#[cfg(any(test, feature = "testing"))]
pub mod testing;

/// The C interface.
#[cfg(feature = "capi")]
#[allow(unsafe_code)]
mod capi;

pub mod guide;

/// Tests of the protocol as a whole: the simulation, the model's schedules, the differential test.
#[cfg(test)]
mod proof;

/// The targets of the fuzzer, for the package in `tests/fuzz` alone.
#[cfg(fuzzing)]
#[doc(hidden)]
#[path = "proof/fuzz/mod.rs"]
pub mod fuzz;

/// The threads of the driver under a scheduler, for the package in `tests/schedules` alone.
#[cfg(schedules)]
#[doc(hidden)]
#[path = "proof/schedules/mod.rs"]
pub mod schedules;

pub use errors::error::Error;
pub use errors::lock_error::{
    Busy, Cancelled, ExtensionLimit, Lost, LostReason, OtherKind, TooSlow,
};
pub use errors::node_errors::{NodeError, NodeErrors};
pub use lock::kept_lock::KeptLock;
pub use lock::lock::Lock;
pub use lock::lockable::Lockable;
pub use lock::redlock::Redlock;
pub use lock::reentrant::{Reentrant, ReentrantLock};
pub use net::driver::observe::{Ending, Event};
pub use ops::found_locks::{ListedLock, Problem};
pub use ops::holder::Holder;
pub use ops::inspect::Inspection;
pub use ops::list::Listing;
pub use ops::report::{NodeFacts, Report};
pub use ops::rules::finding::{Finding, Severity};
pub use ops::state::{LockState, NodeState};
pub use settings::credentials::Credentials;
pub use settings::into_node::{IntoNode, IntoNodes};
pub use settings::node_address::NodeAddress;
pub use settings::options::Options;
pub use settings::tls::Tls;
pub use values::config_error::ConfigError;
pub use values::last_run::LastRun;
pub use values::token::{Fingerprint, RandomError, Token};

/// Compiles the code in the README. (`.ci/run` runs it, and the guide's.)
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
