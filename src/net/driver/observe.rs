use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::errors::error::Error;
use crate::errors::lock_error::LostReason;
use crate::errors::node_errors::NodeError;
use crate::protocol::calls::lease::Lease;
use crate::values::clock::{self, Point};
use crate::values::sync::{Mutex, guarded, lock};

/// An event of a lock or of a node: see [`Redlock::with_observer`](crate::Redlock::with_observer).
///
/// A lock gives one [`Acquired`](Event::Acquired) and one [`Ended`](Event::Ended), and at most one
/// [`Lost`](Event::Lost) between the two. So the number of locks that are held is the difference of two counts. (A lock
/// that is forgotten with `std::mem::forget` never ends.) An extension is reported once it has a result: the event of a
/// renewal that was under way may come right after the loss or the end of its lock. An end is reported after the
/// release. So if a lock passes from one thread to another, the [`Acquired`](Event::Acquired) of the next holder may
/// come before the [`Ended`](Event::Ended) of the last, and a count of the holders of one resource may be two for a
/// moment.
///
/// Permits and read locks are separate locks, and name what they share. A lock on [several](crate::Redlock::several)
/// names is one lock, and names the first in the order of their bytes.
///
/// A resource may name a user or an account. For a label of a metric, use its kind (such as `account`), not its name.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A lock is held from now on.
    #[non_exhaustive]
    Acquired {
        /// The locked resource.
        resource: &'a [u8],
        /// How long the call took, from its beginning.
        wait: Duration,
        /// The number of attempts. 0 if the lock was [resumed](crate::Redlock::resume).
        attempts: u32,
    },
    /// A call returned no lock. That includes a `None` of [`Redlock::try_acquire`](crate::Redlock::try_acquire). (A
    /// call with an invalid resource or ttl is not reported.)
    #[non_exhaustive]
    NotAcquired {
        /// The resource that was to be locked.
        resource: &'a [u8],
        /// How long the call took.
        wait: Duration,
        /// The number of attempts.
        attempts: u32,
        /// The reason. [`Error::Busy`] if `try_acquire` returned `None`.
        error: &'a Error,
    },
    /// A lock was extended, by hand or by a renewal.
    #[non_exhaustive]
    Extended {
        /// The locked resource.
        resource: &'a [u8],
        /// How much of the old validity was left. If it is short, the lock is in danger of being lost.
        left: Duration,
        /// Whether [`Lock::keep_alive`](crate::Lock::keep_alive) extended the lock.
        renewal: bool,
    },
    /// A lock was not extended. A renewal that finds its lock lost is reported only as [`Lost`](Event::Lost).
    #[non_exhaustive]
    NotExtended {
        /// The locked resource.
        resource: &'a [u8],
        /// How much of the validity is left.
        left: Duration,
        /// Whether this was a renewal by [`Lock::keep_alive`](crate::Lock::keep_alive), which tries again.
        renewal: bool,
        /// The reason.
        error: &'a Error,
    },
    /// A lock was found lost: by its holder (in a call that queries, extends or ends it), or by the thread that keeps
    /// it alive.
    #[non_exhaustive]
    Lost {
        /// The resource that was locked.
        resource: &'a [u8],
        /// How long the lock was held until the loss was found.
        held: Duration,
        /// The reason.
        reason: LostReason,
    },
    /// A lock is no longer held, or was given up.
    #[non_exhaustive]
    Ended {
        /// The resource that was locked.
        resource: &'a [u8],
        /// How long the lock was held.
        held: Duration,
        /// How the lock ended.
        how: Ending,
    },
    /// A node gives no votes: it is away, was restarted under the [restart
    /// guard](crate::Options::restart_guard), or answers with errors. Reported once, until it is back.
    #[non_exhaustive]
    NodeAway {
        /// The node, and the reason.
        error: &'a NodeError,
    },
    /// A node gives votes again.
    #[non_exhaustive]
    NodeBack {
        /// The node's index, in the order of [`Redlock::new`](crate::Redlock::new).
        node: usize,
        /// Host and port, or path.
        address: &'a str,
        /// How long the node gave no votes.
        away: Duration,
    },
}

impl<'a> Event<'a> {
    pub(crate) fn extension(
        resource: &'a [u8],
        left: Duration,
        renewal: bool,
        result: &'a Result<(), Error>,
    ) -> Event<'a> {
        match result {
            Ok(()) => Event::Extended {
                resource,
                left,
                renewal,
            },
            Err(error) => Event::NotExtended {
                resource,
                left,
                renewal,
                error,
            },
        }
    }
}

/// How a lock ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Ending {
    /// A majority of the nodes confirmed the release.
    Released,
    /// The release was not confirmed by a majority. The lock ends with its ttl.
    NotConfirmed,
    /// The lock was dropped, and its release was written.
    Dropped,
    /// The lock was [leaked](crate::Lock::leak): it ends with its ttl, or [before](crate::Lock::leak_for).
    Leaked,
    /// The lock had been lost before, however it was given up.
    WasLost,
}

/// The closure that is called at each event, if there is one.
#[derive(Clone, Default)]
pub(crate) struct Observer(Option<Arc<Listener>>);

struct Listener {
    /// In a forked child the closure is not called: it may use a mutex that was held by a thread of the parent.
    process: u32,
    call: AssertUnwindSafe<Box<Callback>>,
}

type Callback = dyn Fn(&Event<'_>) + Send + Sync;

impl Observer {
    pub(crate) fn new(call: Box<Callback>) -> Observer {
        Observer(Some(Arc::new(Listener {
            process: std::process::id(),
            call: AssertUnwindSafe(call),
        })))
    }

    pub(crate) fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// Notifies the closure, if there is one, of an event, which is made only then. Do not call this while a mutex is
    /// held, nor in the thread that does the I/O for others: the closure may take its time, and take locks.
    pub(crate) fn notify<'a>(&self, event: impl FnOnce() -> Event<'a>) {
        if let Some(listener) = &self.0
            && listener.process == std::process::id()
        {
            // A panic leaves nothing half done.
            guarded(|| (listener.call)(&event()));
        }
    }

    /// The time at which an acquisition begins, if there is a closure.
    pub(crate) fn begins(&self) -> Option<Instant> {
        self.0.as_ref().map(|_| clock::instant())
    }

    /// Notifies of a loss that was detected just now, and then of the end, if the lock has ended meanwhile.
    pub(crate) fn lost(&self, lease: &Mutex<Lease>, reason: LostReason) {
        if self.is_none() {
            return;
        }
        let (resource, held) = {
            let lease = lock(lease);
            (lease.key.resource.clone(), lease.held(Point::now()))
        };
        let resource = &resource;
        self.notify(|| Event::Lost {
            resource,
            held,
            reason,
        });
        let ended = lock(lease).notified();
        if let Some(held) = ended {
            let how = Ending::WasLost;
            self.notify(|| Event::Ended {
                resource,
                held,
                how,
            });
        }
    }

    /// Notifies of the end of a lock. If another thread is just notifying of its loss, that thread does it.
    pub(crate) fn notify_ended(&self, lease: &Mutex<Lease>, how: Ending) {
        let (resource, held) = {
            let mut lease = lock(lease);
            (lease.key.resource.clone(), lease.ended(Point::now()))
        };
        if let Some(held) = held {
            self.notify(|| Event::Ended {
                resource: &resource,
                held,
                how,
            });
        }
    }
}
