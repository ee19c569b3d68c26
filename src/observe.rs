use std::error::Error as StdError;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock;
use crate::error::Error;
use crate::keeper::LostReason;
use crate::lock::Lock;
use crate::redlock::Redlock;

/// What has happened to a lock or to a node: see [`Redlock::with_observer`].
///
/// A lock gives one [`Acquired`](Event::Acquired) and one [`Ended`](Event::Ended), and at most one
/// [`Lost`](Event::Lost) between the two. So the number of locks that are held is the difference of two
/// counts. (A lock that is forgotten with `std::mem::forget` never ends.) Extensions are reported when their result is
/// known: the event of a renewal that was under way may come right after the loss or the end of its lock. An end is
/// reported after the release. So if a lock passes from one thread to another, the [`Acquired`](Event::Acquired) of the
/// next holder may come before the [`Ended`](Event::Ended) of the last, and a count of the holders of one resource may
/// be two for a moment.
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
        /// The number of attempts; 0: it was [resumed](Redlock::resume).
        attempts: u32,
    },
    /// A call returned no lock. That includes a `None` of [`Redlock::try_acquire`]. (A call with an invalid resource or
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
        /// By [`Lock::keep_alive`].
        renewal: bool,
    },
    /// A lock was not extended. A renewal that finds its lock lost is reported only as [`Lost`](Event::Lost).
    #[non_exhaustive]
    NotExtended {
        /// What is locked.
        resource: &'a [u8],
        /// What is left of the validity.
        left: Duration,
        /// By [`Lock::keep_alive`], which tries again.
        renewal: bool,
        /// Why.
        error: &'a Error,
    },
    /// A lock was found lost: by its user (who queries, extends or ends it), or by the thread that keeps it alive.
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
        /// Its index, in the order of [`Redlock::new`].
        node: usize,
        /// Host and port, or path.
        address: &'a str,
        /// Why.
        cause: &'a (dyn StdError + 'a),
    },
    /// It gives votes again.
    #[non_exhaustive]
    NodeBack {
        /// Its index, in the order of [`Redlock::new`].
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
    /// It was [left](Lock::leak) to its ttl.
    Left,
    /// It had been lost before, however it was given up.
    WasLost,
}

/// The closure that is told of events, if there is one.
#[derive(Clone, Default)]
pub(crate) struct Observer(Option<Arc<Listener>>);

struct Listener {
    /// In a forked child the closure is not called: it may use a mutex that was held by a thread of the parent.
    process: u32,
    tell: AssertUnwindSafe<Box<Tell>>,
}

type Tell = dyn Fn(&Event<'_>) + Send + Sync;

impl Observer {
    fn new(tell: Box<Tell>) -> Observer {
        Observer(Some(Arc::new(Listener {
            process: std::process::id(),
            tell: AssertUnwindSafe(tell),
        })))
    }

    pub(crate) fn is_none(&self) -> bool {
        self.0.is_none()
    }

    /// Tells it of an event, which is made only if there is a closure. Do not call this while a mutex is held, nor in
    /// the thread that does the I/O for others: the closure may take its time, and take locks.
    pub(crate) fn tell<'a>(&self, event: impl FnOnce() -> Event<'a>) {
        if let Some(listener) = &self.0
            && listener.process == std::process::id()
        {
            // If it panics nothing is left half done.
            let _ = catch_unwind(AssertUnwindSafe(|| (listener.tell)(&event())));
        }
    }

    /// When an acquisition begins, if somebody wants to know.
    pub(crate) fn begins(&self) -> Option<Instant> {
        self.0.as_ref().map(|_| clock::instant())
    }

    /// Tells what an acquisition came to.
    pub(crate) fn came_to(
        &self,
        result: Result<Lock, Error>,
        began: Option<Instant>,
        resource: &[u8],
        attempts: u32,
    ) -> Result<Lock, Error> {
        let Some(began) = began else {
            return result;
        };
        let wait = clock::instant().saturating_duration_since(began);
        match result {
            Ok(mut lock) => {
                lock.announce(wait, attempts);
                // That may have taken its time (rule R4).
                lock.is_valid().then_some(lock).ok_or(Error::TooSlow)
            }
            Err(error) => {
                self.tell(|| Event::NotAcquired {
                    resource,
                    wait,
                    attempts,
                    error: &error,
                });
                Err(error)
            }
        }
    }
}

impl Redlock {
    /// The same nodes, with `observer` called at each [`Event`]: for metrics, alerts, traces. This makes
    /// new connections, so call it right after [`new`](Redlock::new). A second observer
    /// replaces the first.
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
        self.observed_by(Observer::new(Box::new(observer)))
    }
}
