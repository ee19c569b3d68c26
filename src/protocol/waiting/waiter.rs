//! A thread that waits for a lock: its request and its state. (`wait_queue` decides its next action.)

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::errors::node_errors::NodeErrors;
use crate::protocol::commands::kind::Kind;
use crate::protocol::commands::lock_info::KnownHolder;
use crate::protocol::commands::node_queue::{QueueEntry, QueueTurn};
use crate::protocol::quorum::attempt::Attempt;
use crate::protocol::waiting::poller::Poller;
use crate::values::arithmetic::Ttl;
use crate::values::clock::Point;
use crate::values::label::Label;

/// Why an attempt gave no lock.
#[derive(Clone, Debug)]
pub(crate) enum WaitFailure {
    /// Denied, with the holder that a majority names.
    Busy(Option<KnownHolder>),
    TooSlow,
    Unavailable(NodeErrors),
}

impl WaitFailure {
    /// Whether waiting is useless: without the nodes that refuse for good there is no quorum.
    pub(crate) fn is_hopeless(&self) -> bool {
        matches!(self, WaitFailure::Unavailable(nodes) if nodes.is_permanent())
    }
}

/// The request of a thread that waits.
#[derive(Clone, Debug)]
pub(crate) struct AcquireRequest {
    pub(crate) kind: Kind,
    pub(crate) ttl: Ttl,
    pub(crate) label: Option<Label>,
    /// No attempt begins after this time.
    pub(crate) end: Option<Instant>,
    /// Whether the thread asks its program before each attempt, so that no other thread makes one for it.
    pub(crate) must_ask: bool,
    pub(crate) retry_delay: (Duration, Duration),
    /// Set if the request is fair.
    pub(crate) turn: Option<QueueTurn>,
}

impl AcquireRequest {
    pub(crate) fn poller(&self, held_here: bool, now: Instant) -> Poller {
        let poller = Poller::new(self.retry_delay, self.turn, held_here, now);
        match self.kind.longest_sleep() {
            Some(longest) => poller.sleeps_at_most(longest),
            None => poller,
        }
    }
}

/// The plain try that a thread made before it joined the queue.
#[derive(Debug)]
pub(crate) struct PlainTry {
    pub(crate) failure: WaitFailure,
    /// The pause before the next try.
    pub(crate) pause: Duration,
    /// Whether a thread of this process may hold the lock.
    pub(crate) held_here: bool,
}

/// The next action of a thread that waits.
#[derive(Debug)]
pub(crate) enum WaiterAction {
    /// One attempt. With an entry, nodes that deny it put this process into their queues.
    Try(Option<Arc<QueueEntry>>),
    /// Park until then, or until woken.
    Park(Instant),
    /// Take over: a release has submitted the first try of this attempt for the thread.
    HandedOff(Attempt),
    /// Leave the queue: the wait is over, with this error.
    GiveUp(WaitFailure),
}

#[derive(Debug)]
pub(crate) enum WaiterState {
    Queued,
    Front(Poller),
    /// No longer in the queue. `None`: the try is being submitted.
    HandedOff(Option<Attempt>),
}

#[derive(Debug)]
pub(crate) struct Queued<W> {
    pub(crate) resource: Arc<[u8]>,
    pub(crate) thread: W,
    pub(crate) request: AcquireRequest,
    pub(crate) arrived: Point,
    pub(crate) state: WaiterState,
    pub(crate) last_failure: Option<WaitFailure>,
    /// Whether the waiter has not finished its first attempt, which it makes even if its wait is shorter than that.
    pub(crate) owed_an_attempt: bool,
    /// Set if the waiter asks its program first, wants a lock that is not plain, or is about to leave.
    pub(crate) takes_no_hand_off: bool,
    /// Whether an attempt of this process has shown that waiting is useless.
    pub(crate) is_hopeless: bool,
}

impl<W> Queued<W> {
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.request.end.is_some_and(|end| end <= now)
    }

    /// Whether the waiter is at the front, and in the queues on the nodes.
    pub(crate) fn is_enqueued(&self) -> bool {
        matches!(&self.state, WaiterState::Front(poller) if poller.is_enqueued())
    }
}
