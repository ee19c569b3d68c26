use std::error::Error as StdError;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::errors::error::Error;
use crate::protocol::calls::lease::{Lease, LostReason};
use crate::values::clock::{self, Point};
use crate::values::sync::lock;

/// What has happened to a lock or to a node: see [`Redlock::with_observer`](crate::Redlock::with_observer).
///
/// A lock gives one [`Acquired`](Event::Acquired) and one [`Ended`](Event::Ended), and at most one
/// [`Lost`](Event::Lost) between the two. So the number of locks that are held is the difference of two
/// counts. (A lock that is forgotten with `std::mem::forget` never ends.) Extensions are reported when their result is
/// known: the event of a renewal that was under way may come right after the loss or the end of its lock. An end is
/// reported after the release. So if a lock passes from one thread to another, the [`Acquired`](Event::Acquired) of the
/// next holder may come before the [`Ended`](Event::Ended) of the last, and a count of the holders of one resource may
/// be two for a moment.
///
/// Permits and read locks are locks of their own, and name what they share. A lock on [several](crate::Redlock::several)
/// names is one, and names the first in the order of their bytes.
///
/// A resource may name a user or an account. For a label of a metric, use its kind (such as `account`), not its name.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A lock is held from now on.
    #[non_exhaustive]
    Acquired {
        /// What is locked.
        resource: &'a [u8],
        /// How long the call took, from its beginning.
        wait: Duration,
        /// The number of attempts; 0: it was [resumed](crate::Redlock::resume).
        attempts: u32,
    },
    /// A call returned no lock. That includes a `None` of [`Redlock::try_acquire`](crate::Redlock::try_acquire). (A call with an invalid resource or
    /// ttl is not reported.)
    #[non_exhaustive]
    NotAcquired {
        /// What was to be locked.
        resource: &'a [u8],
        /// How long the call took.
        wait: Duration,
        /// The number of attempts.
        attempts: u32,
        /// Why. [`Error::Busy`] if `try_acquire` returned `None`.
        error: &'a Error,
    },
    /// A lock was extended, by hand or by a renewal.
    #[non_exhaustive]
    Extended {
        /// What is locked.
        resource: &'a [u8],
        /// How much of the old validity was left. If it is short, the lock is in danger of being lost.
        left: Duration,
        /// By [`Lock::keep_alive`](crate::Lock::keep_alive).
        renewal: bool,
    },
    /// A lock was not extended. A renewal that finds its lock lost is reported only as [`Lost`](Event::Lost).
    #[non_exhaustive]
    NotExtended {
        /// What is locked.
        resource: &'a [u8],
        /// What is left of the validity.
        left: Duration,
        /// By [`Lock::keep_alive`](crate::Lock::keep_alive), which tries again.
        renewal: bool,
        /// Why.
        error: &'a Error,
    },
    /// A lock was found lost: by its holder (in a call that queries, extends or ends it), or by the thread that keeps it alive.
    #[non_exhaustive]
    Lost {
        /// What was locked.
        resource: &'a [u8],
        /// How long it was held until this was found out.
        held: Duration,
        /// Why.
        reason: LostReason,
    },
    /// A lock is no longer held, or was given up.
    #[non_exhaustive]
    Ended {
        /// What was locked.
        resource: &'a [u8],
        /// How long it was held.
        held: Duration,
        /// How it ended.
        how: Ending,
    },
    /// A node gives no votes: it is away, was restarted under the [restart
    /// guard](crate::Options::restart_guard), or answers with errors. Reported once, until it is back.
    #[non_exhaustive]
    NodeAway {
        /// Its index, in the order of [`Redlock::new`](crate::Redlock::new).
        node: usize,
        /// Host and port, or path.
        address: &'a str,
        /// Why.
        cause: &'a (dyn StdError + 'a),
    },
    /// It gives votes again.
    #[non_exhaustive]
    NodeBack {
        /// Its index, in the order of [`Redlock::new`](crate::Redlock::new).
        node: usize,
        /// Host and port, or path.
        address: &'a str,
        /// How long it gave no votes.
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
    /// A majority of the nodes confirmed its release.
    Released,
    /// Its release was not confirmed by a majority. It ends with its ttl.
    NotConfirmed,
    /// It was dropped, and its release was written.
    Dropped,
    /// It was [leaked](crate::Lock::leak): it ends with its ttl, or [before](crate::Lock::leak_for).
    Leaked,
    /// It had been lost before, however it was given up.
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

    /// Notifies it of an event, which is made only if there is a closure. Do not call this while a mutex is held, nor in
    /// the thread that does the I/O for others: the closure may take its time, and take locks.
    pub(crate) fn notify<'a>(&self, event: impl FnOnce() -> Event<'a>) {
        if let Some(listener) = &self.0
            && listener.process == std::process::id()
        {
            // A panic leaves nothing half done.
            let _ = catch_unwind(AssertUnwindSafe(|| (listener.call)(&event())));
        }
    }

    /// When an acquisition begins, if there is a closure.
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
    pub(crate) fn ended(&self, lease: &Mutex<Lease>, how: Ending) {
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
