//! The thread at the front of a wait queue: the only one of its process that asks the nodes for the lock.
//!
//! ```text
//!           ┌────── denied, and a thread of this process may hold the lock ──────┐
//!           ▼                                                                    │
//!   Ready ──▶ HeldHere ── the pause is over ──▶ Subscribing ── enough, or hopeless ──▶ Trying ──▶ granted
//!           └── not held in this process ──────▶                                ▲     │
//!                                                                               │     ▼
//!                      notified, the lock's ttl is over, or the poll ── Sleeping ◀── denied, or no quorum
//! ```
//!
//! Notifications may be wrong, late or lost, so each sleep also has its own bound.
//!
//! A *fair* poller enqueues on the nodes from the beginning, and takes a free lock only if it has waited longest. It
//! sleeps no longer than a reservation for another waiter may last. After a number of unused reservations, it
//! takes the lock all the same.

use std::time::{Duration, Instant};

use crate::protocol::commands::node_queue::QueueTurn;
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::quorum::attempt::Rejection;
use crate::protocol::waiting::subscriptions::Subscriptions;
use crate::values::arithmetic::majority;
use crate::values::backoff::{Backoff, SHORTEST_PAUSE};
use crate::values::node_set::NodeSet;
use crate::values::random::Rng;

/// The maximum pause for a holder in this process to hand the lock over. After it the poller enqueues on the nodes.
const LONGEST_LOCAL: Duration = Duration::from_millis(50);
/// How long to wait for the notifications of the other nodes if a minority has sent one.
const SETTLE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(3));
/// Head start for a process that has just been notified, before this one competes again.
const HEAD_START: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(2));
/// Delay after the end of the lock's ttl, so that not all waiters try at that moment.
const EXPIRED: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(10));
/// While holders notify, the poll interval grows to this, or to a multiple of the longest pause if that is longer.
const LONGEST_POLL: Duration = Duration::from_secs(1);
const POLL_GROWTH: u32 = 8;
/// Longer pauses make no difference.
const LONGEST_PAUSE: Duration = Duration::from_secs(24 * 3600);
const SHORTEST_POLL: Duration = Duration::from_millis(1);
/// Pauses double this number of times.
const MAX_DOUBLINGS: u32 = 7;

/// How the nodes are asked for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AcquireMode {
    Plain,
    /// A node that denies the lock puts this process into its queue, to notify it when the lock is free.
    Enqueue,
    /// Like `Enqueue`, but a free lock is taken only in the order of arrival.
    InOrder,
}

/// The next step of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollerAction {
    /// One attempt.
    Try(AcquireMode),
    Park(Instant),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PollerPhase {
    Ready,
    /// A thread of this process holds the lock, and may hand it over until then.
    HeldHere(Instant),
    /// Waiting for the subscriptions, which have until then.
    Subscribing(Instant),
    /// Trying since then.
    Trying(Instant),
    Sleeping(Instant),
}

/// The poller's relation to the queues on the nodes. The value only ever moves on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueMembership {
    /// Too little time to be notified: the poller only tries.
    NoTime,
    /// A thread of this process may hold the lock: one plain try comes before the poller enqueues.
    PlainTryFirst,
    Outside,
    /// The poller may be in the queues.
    Enqueued,
    /// The poller may be in the queues, and was denied, by another process as far as it can find out.
    Denied,
}

/// The news since the last try began.
#[derive(Clone, Copy, Debug)]
struct Wakeup {
    /// Whether this process has found by itself that the lock is free: try at once.
    retry_now: bool,
    /// The nodes that have notified this process.
    notified: NodeSet,
    /// Until when the other nodes' notifications are waited for.
    settle_until: Option<Instant>,
}

const NOT_WOKEN: Wakeup = Wakeup {
    retry_now: false,
    notified: NodeSet::EMPTY,
    settle_until: None,
};

/// How eagerly notifications are followed: less and less, while they turn out wrong.
#[derive(Clone, Copy, Debug)]
struct Eagerness {
    /// Whether the current try follows a notification.
    following: bool,
    /// The number of notifications in a row that were wrong.
    wrong: Backoff,
    /// The next notification is not followed before then.
    not_before: Instant,
}

/// The holder of the lock on a quorum of the nodes.
#[derive(Clone, Copy, Debug)]
struct LastHolder {
    hash: Option<u32>,
    /// The number of further tries in a row that found the same holder.
    repeated: Backoff,
}

#[derive(Clone, Debug)]
pub(crate) struct Poller {
    phase: PollerPhase,
    retry_delay: (Duration, Duration),
    /// Set if the poller is fair.
    turn: Option<QueueTurn>,
    /// Since when the lock has been reserved for others. Attempts that failed do not count.
    reserved_since: Option<Instant>,
    membership: QueueMembership,
    /// Whether the poller has paused once for a holder in this process, or must not.
    paused_for_local: bool,
    /// Whether this may be the only waiter that has found out that the lock is free.
    must_notify: bool,
    wakeup: Wakeup,
    eagerness: Eagerness,
    holder: LastHolder,
    /// Split votes in a row.
    splits: Backoff,
    /// The poller asks the nodes at least this often.
    longest_sleep: Duration,
}

impl Poller {
    /// Creates a poller, which is fair with a `turn`. `held_here`: whether a thread of this process may hold the lock.
    pub(crate) fn new(
        retry_delay: (Duration, Duration),
        turn: Option<QueueTurn>,
        held_here: bool,
        now: Instant,
    ) -> Poller {
        let (min, max) = retry_delay;
        Poller {
            phase: PollerPhase::Ready,
            retry_delay: (min.min(LONGEST_PAUSE), max.min(LONGEST_PAUSE)),
            turn,
            reserved_since: None,
            membership: match held_here {
                true => QueueMembership::PlainTryFirst,
                false => QueueMembership::Outside,
            },
            // Where order counts, all waiters have to be in the queues.
            paused_for_local: turn.is_some(),
            must_notify: false,
            wakeup: NOT_WOKEN,
            eagerness: Eagerness {
                following: false,
                wrong: Backoff::new(MAX_DOUBLINGS),
                not_before: now,
            },
            holder: LastHolder {
                hash: None,
                repeated: Backoff::new(MAX_DOUBLINGS),
            },
            splits: Backoff::new(MAX_DOUBLINGS),
            longest_sleep: Duration::MAX,
        }
    }

    pub(crate) fn sleeps_at_most(self, longest_sleep: Duration) -> Poller {
        Poller {
            longest_sleep,
            ..self
        }
    }

    /// Notes that there is too little time to be notified.
    pub(crate) fn has_no_time(&mut self) {
        self.membership = QueueMembership::NoTime;
    }

    /// The only try of a waiter whose time is over.
    pub(crate) fn last_try(&mut self, now: Instant) -> PollerAction {
        self.has_no_time();
        self.start_try(false, now)
    }

    /// The maximum time for which the poller sleeps without a notification.
    pub(crate) fn longest_poll(&self) -> Duration {
        let longest = self.retry_delay.1.saturating_mul(POLL_GROWTH);
        let longest = longest.max(LONGEST_POLL);
        // The waiter with the reservation may have ended.
        let turn = self
            .turn
            .filter(|_| !mutant(Mutant::SleepThroughReservation));
        turn.map_or(longest, QueueTurn::duration)
    }

    pub(crate) fn is_trying(&self) -> bool {
        matches!(self.phase, PollerPhase::Trying(_))
    }

    /// Whether the poller has waited for another process.
    pub(crate) fn was_denied(&self) -> bool {
        self.membership == QueueMembership::Denied
    }

    /// Whether the poller may be in the queues on the nodes, and must be notified by other processes.
    pub(crate) fn is_enqueued(&self) -> bool {
        matches!(
            self.membership,
            QueueMembership::Enqueued | QueueMembership::Denied
        )
    }

    /// Whether another waiter must be notified if the poller gives up.
    pub(crate) fn must_notify(&self) -> bool {
        self.is_enqueued() || self.must_notify || self.is_fair()
    }

    pub(crate) fn is_fair(&self) -> bool {
        self.turn.is_some()
    }

    fn skip_plain_try(&mut self) {
        if self.membership == QueueMembership::PlainTryFirst {
            self.membership = QueueMembership::Outside;
        }
    }

    /// Returns what the thread should do. `held_here`: whether a thread of this process seems to hold the lock.
    pub(crate) fn next(
        &mut self,
        held_here: bool,
        subscriptions: &Subscriptions,
        node_timeout: Duration,
        rng: &mut Rng,
        now: Instant,
    ) -> PollerAction {
        let retry_now = self.wakeup.retry_now;
        loop {
            match self.phase {
                PollerPhase::Ready if held_here && !retry_now && !self.paused_for_local => {
                    let pause = rng.between(self.retry_delay).min(LONGEST_LOCAL);
                    self.paused_for_local = true;
                    self.phase = PollerPhase::HeldHere(now + pause);
                }
                PollerPhase::Ready => {
                    let suffice = subscriptions.suffice();
                    if self.tries_plainly(retry_now && !suffice) {
                        return self.start_try(false, now);
                    }
                    self.phase = PollerPhase::Subscribing(now + node_timeout);
                }
                PollerPhase::HeldHere(until)
                    if !retry_now && self.wakeup.notified.is_empty() && now < until =>
                {
                    return PollerAction::Park(until);
                }
                PollerPhase::HeldHere(_) => {
                    self.skip_plain_try();
                    self.phase = PollerPhase::Ready;
                }
                PollerPhase::Subscribing(until) => {
                    let ready = retry_now || subscriptions.suffice() || subscriptions.is_hopeless();
                    if !ready && now < until {
                        return PollerAction::Park(until);
                    }
                    return self.start_try(true, now);
                }
                PollerPhase::Trying(_) => return PollerAction::Park(now + node_timeout),
                PollerPhase::Sleeping(until) => {
                    let follow = self.follow_at(subscriptions, rng, now);
                    let until = until.min(follow.unwrap_or(until));
                    if !retry_now && now < until {
                        return PollerAction::Park(until);
                    }
                    self.eagerness.following = !self.wakeup.notified.is_empty();
                    if self.eagerness.following {
                        // The contenders of the last split vote may have ended.
                        self.splits.reset();
                    }
                    self.phase = PollerPhase::Ready;
                }
            }
        }
    }

    /// Whether a plain try comes first. Otherwise the poller enqueues. `unsubscribed`: the lock is free, but the
    /// subscriptions that a waiter in the queues needs are not there yet.
    fn tries_plainly(&mut self, unsubscribed: bool) -> bool {
        match self.membership {
            QueueMembership::NoTime => true,
            QueueMembership::PlainTryFirst => {
                self.membership = QueueMembership::Outside;
                true
            }
            QueueMembership::Outside if unsubscribed => true,
            QueueMembership::Outside => {
                self.membership = QueueMembership::Enqueued;
                false
            }
            QueueMembership::Enqueued | QueueMembership::Denied => false,
        }
    }

    /// When the notifications are followed.
    fn follow_at(
        &mut self,
        subscriptions: &Subscriptions,
        rng: &mut Rng,
        now: Instant,
    ) -> Option<Instant> {
        let (wakeup, not_before) = (&mut self.wakeup, self.eagerness.not_before);
        if wakeup.notified.is_empty() && wakeup.settle_until.is_none() {
            return None;
        }
        if wakeup.notified.len() >= majority(subscriptions.nodes()) {
            return Some(not_before);
        }
        if mutant(Mutant::WaitForQuorum) {
            return None;
        }
        let settled = wakeup.settle_until;
        let settled = settled.unwrap_or_else(|| now + rng.between(SETTLE));
        wakeup.settle_until = Some(settled);
        Some(settled.max(not_before))
    }

    fn start_try(&mut self, enqueues: bool, now: Instant) -> PollerAction {
        self.wakeup = NOT_WOKEN;
        self.phase = PollerPhase::Trying(now);
        PollerAction::Try(match self.turn {
            Some(_) if self.fair_until().is_none_or(|until| now < until) => AcquireMode::InOrder,
            None if !enqueues => AcquireMode::Plain,
            _ => AcquireMode::Enqueue,
        })
    }

    /// Until when the poller leaves the lock to the waiters for which it is reserved.
    fn fair_until(&self) -> Option<Instant> {
        Some(self.reserved_since? + self.turn?.ignored_after())
    }

    /// Handles a try that was denied, by a quorum or for want of one.
    pub(crate) fn denied(
        &mut self,
        rejection: &Rejection,
        subscriptions: &Subscriptions,
        rng: &mut Rng,
        now: Instant,
    ) {
        let PollerPhase::Trying(began) = self.phase else {
            return;
        };
        if mutant(Mutant::ForgetNotification) {
            self.wakeup.notified = NodeSet::EMPTY;
        }
        let quorum = majority(subscriptions.nodes());
        let reserved = rejection.is_reserved(quorum);
        self.reserved_since = reserved.then(|| self.reserved_since.unwrap_or(now));
        // The process that held the lock then notifies the next waiter.
        self.must_notify = self.wakeup.retry_now || !self.wakeup.notified.is_empty();
        match self.membership {
            QueueMembership::PlainTryFirst | QueueMembership::Outside => {
                self.phase = PollerPhase::Ready;
                return;
            }
            QueueMembership::Enqueued => self.membership = QueueMembership::Denied,
            QueueMembership::NoTime | QueueMembership::Denied => {}
        }
        let took = now.saturating_duration_since(began).max(SHORTEST_PAUSE);
        self.met(rejection.holder(quorum), rng, now);
        let sleep = if self.holder.hash.is_none() && !rejection.is_unknown() && !reserved {
            self.after_split(took, rng)
        } else {
            self.splits.reset();
            let poll = self.poll(rejection.is_queued(quorum), subscriptions, rng);
            let free = rejection.free_in(quorum);
            free.map_or(poll, |free| {
                poll.min(free.saturating_add(rng.between(EXPIRED)))
            })
        };
        let sleep = match self.fair_until() {
            Some(until) => sleep.min(until.saturating_duration_since(now)),
            None => sleep,
        };
        self.phase = PollerPhase::Sleeping(now + sleep.min(self.longest_sleep));
    }

    /// Notes the holder that a try has found. If the try follows a notification and finds the previous holder, the
    /// notification was wrong.
    fn met(&mut self, holder: Option<u32>, rng: &mut Rng, now: Instant) {
        let changed = holder != self.holder.hash;
        self.holder.hash = holder;
        match changed {
            true => self.holder.repeated.reset(),
            false => self.holder.repeated.failed(),
        }
        let eagerness = &mut self.eagerness;
        match eagerness.following && !changed {
            true => eagerness.wrong.failed(),
            false => eagerness.wrong.reset(),
        }
        eagerness.following = false;
        eagerness.not_before = now;
        if eagerness.wrong.failures() > 0 {
            let most = eagerness.wrong.pause(SHORTEST_PAUSE);
            eagerness.not_before += rng.between((SHORTEST_PAUSE, most));
        }
    }

    /// Returns the pause after a split vote: other contenders were met, and none has the lock, which may be free at any
    /// moment.
    fn after_split(&mut self, took: Duration, rng: &mut Rng) -> Duration {
        self.splits.failed();
        let most = self.splits.pause(took);
        let most = most.min(self.retry_delay.1).max(SHORTEST_PAUSE);
        rng.between((took.min(most), most))
    }

    fn poll(&self, queued: bool, subscriptions: &Subscriptions, rng: &mut Rng) -> Duration {
        let poll = rng.between(self.retry_delay).max(SHORTEST_POLL);
        // A waiter that may not be notified has to find out by itself soon.
        let poll = match subscriptions.suffice() && queued {
            true => self.holder.repeated.pause(poll),
            false => poll,
        };
        poll.min(self.longest_poll())
    }

    /// Handles an attempt that too few nodes answered, or too late.
    pub(crate) fn failed(&mut self, pause: Duration, now: Instant) {
        self.eagerness.following = false;
        self.phase = PollerPhase::Sleeping(now + pause.min(LONGEST_PAUSE).min(self.longest_sleep));
    }

    /// Notes a node's message that the lock may be free.
    pub(crate) fn notified(&mut self, node: usize) {
        self.wakeup.notified.add(node);
        self.must_notify = true;
    }

    /// Notes that a subscription works from now on. Messages may have been missed before.
    pub(crate) fn subscribed(&mut self, rng: &mut Rng, now: Instant) {
        // Also during a try: the node may have found the process not subscribed, and removed it from its queue.
        if let PollerPhase::Sleeping(_) | PollerPhase::Trying(_) = self.phase
            && self.is_enqueued()
            && !mutant(Mutant::NoWakeOnSubscribe)
        {
            let settled = self.wakeup.settle_until;
            let settled = settled.unwrap_or_else(|| now + rng.between(SETTLE));
            self.wakeup.settle_until = Some(settled);
        }
    }

    /// Notes that the lock was left to this process, and no other waiter was notified.
    pub(crate) fn will_notify(&mut self) {
        self.must_notify = true;
    }

    /// Makes the poller try at once: the lock was released in this process, or the previous waiter at the front has
    /// given up.
    pub(crate) fn retry_now(&mut self) {
        self.wakeup.retry_now = true;
        self.must_notify = true;
    }

    /// Gives another process a head start: the lock was released in this process, and the other one was notified.
    pub(crate) fn yields(&mut self, rng: &mut Rng, now: Instant) {
        self.skip_plain_try();
        // The process that was notified may have been this one.
        self.must_notify = true;
        if !self.is_trying() {
            self.wakeup.retry_now = false;
            self.wakeup.notified = NodeSet::EMPTY;
            self.phase = PollerPhase::Sleeping(now + rng.between(HEAD_START));
        }
    }
}

#[cfg(test)]
mod tests;
