//! The queues in which the threads of one process wait: one for each lock, in the order of arrival.
//!
//! Only the thread at the front asks the nodes (rule R35). A release in this process hands the lock off to it: the
//! release and the thread's acquire go in one write to each node, so that waiting costs one round trip. After a number
//! of hand-offs the lock goes to other processes.
//!
//! No lock is handed off to fair waiters: the nodes decide which of them is next.

pub(crate) mod hand_offs;
mod leaving;
mod subscriber_events;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::protocol::commands::kind::Kind;
use crate::protocol::commands::node_queue::{self, Channel, QueueEntry};
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::quorum::attempt::Rejection;
use crate::protocol::waiting::poller::{AcquireMode, Poller, PollerAction};
use crate::protocol::waiting::subscriptions::{KEPT_IDLE, Subscriptions};
use crate::protocol::waiting::waiter::{
    AcquireRequest, PlainTry, Queued, WaitFailure, WaiterAction, WaiterState,
};
use crate::values::arithmetic::majority;
use crate::values::clock::Point;
use crate::values::random::Rng;

/// Waiters behind the front are woken explicitly; this only bounds the park.
const LONGEST_PARK: Duration = Duration::from_secs(3600);
/// The queues on the nodes are kept longer than the longest poll.
const LEASE: Duration = Duration::from_secs(5);

/// Hand-offs in a row.
#[derive(Clone, Copy, Debug)]
struct HandOffs {
    count: u32,
    /// When the first hand-off happened.
    since: Instant,
    /// Until when they count as a row, though no thread waits: a thread that has handed the lock off may want it again
    /// before the next one releases it.
    until: Instant,
}

#[derive(Debug, Default)]
struct WaitQueue {
    /// The kind of the last waiter that joined.
    kind: Kind,
    /// The waiters in order of arrival. Some may have left.
    waiters: VecDeque<u64>,
    hand_offs: Option<HandOffs>,
    /// When another process was notified that the lock is free. It gets a head start.
    notified_elsewhere: Option<Instant>,
    /// When a thread of this process last waited for another process.
    contended: Option<Instant>,
    last_failure: Option<WaitFailure>,
}

impl WaitQueue {
    fn is_recently_contended(&self, now: Instant) -> bool {
        self.contended.is_some_and(|at| now < at + KEPT_IDLE)
    }

    /// Whether threads that want the lock join the queue before they ask the nodes.
    fn is_open(&self, now: Instant) -> bool {
        let notified = self.notified_elsewhere;
        let notified = notified.is_some_and(|at| now < at + KEPT_IDLE);
        !self.waiters.is_empty() || notified || self.is_recently_contended(now)
    }

    fn is_kept(&self, now: Instant) -> bool {
        let hands_off = self.hand_offs.is_some_and(|row| now < row.until);
        self.is_open(now) || hands_off
    }
}

/// `W`: a thread that waits.
pub(crate) struct WaitQueues<W> {
    queues: HashMap<Arc<[u8]>, WaitQueue>,
    /// The queues for locks on several names.
    several: Vec<Arc<[u8]>>,
    waiters: HashMap<u64, Queued<W>>,
    last_waiter: u64,
    node_timeout: Duration,
    subscriptions: Subscriptions,
    sweep_at: Option<Instant>,
    rng: Rng,
    /// The threads that must be woken.
    pub(crate) woken: Vec<W>,
}

impl<W: Clone> WaitQueues<W> {
    /// Creates the queues. Without a `channel` this process cannot be notified.
    pub(crate) fn new(
        nodes: usize,
        channel: Option<Channel>,
        node_timeout: Duration,
        rng: u64,
    ) -> WaitQueues<W> {
        WaitQueues {
            queues: HashMap::new(),
            several: Vec::new(),
            waiters: HashMap::new(),
            last_waiter: 0,
            node_timeout,
            subscriptions: Subscriptions::new(nodes, channel),
            sweep_at: None,
            rng: Rng::new(rng),
            woken: Vec::new(),
        }
    }

    /// Whether no lock has a queue, and this process cannot be notified: a release need not look for the next waiter.
    pub(crate) fn none_waits(&self) -> bool {
        self.queues.is_empty() && self.subscriptions.is_idle()
    }

    /// Removes the queues that are no longer kept.
    fn sweep(&mut self, now: Instant) {
        if self.sweep_at.is_none_or(|at| at <= now) {
            self.queues.retain(|_, queue| queue.is_kept(now));
            self.several.retain(|line| self.queues.contains_key(line));
            self.sweep_at = Some(now + KEPT_IDLE);
        }
    }

    // ---- waiters

    /// Whether to join the queue for a lock before the nodes are asked.
    pub(crate) fn has_queue(&mut self, resource: &[u8], now: Instant) -> bool {
        self.sweep(now);
        let queue = self.queues.get(resource);
        queue.is_some_and(|queue| queue.is_open(now))
    }

    /// Joins the end of the queue for a lock.
    pub(crate) fn join(
        &mut self,
        resource: &Arc<[u8]>,
        thread: W,
        request: AcquireRequest,
        tried: Option<PlainTry>,
        now: Point,
    ) -> u64 {
        self.last_waiter += 1;
        let id = self.last_waiter;
        self.sweep(now.mono);
        let queue = self.queues.entry(resource.clone()).or_default();
        if !queue.is_kept(now.mono) {
            *queue = WaitQueue::default();
        }
        queue.kind.clone_from(&request.kind);
        if request.kind.names().is_some() && !self.several.contains(resource) {
            self.several.push(resource.clone());
        }
        let is_front = queue.waiters.is_empty();
        queue.waiters.push_back(id);
        let owed_an_attempt = is_front && request.turn.is_some();
        let state = match is_front {
            true => {
                WaiterState::Front(self.first_poller(resource, &request, tried.as_ref(), now.mono))
            }
            false => WaiterState::Queued,
        };
        let waiter = Queued {
            resource: resource.clone(),
            thread,
            arrived: now,
            state,
            last_failure: tried.map(|tried| tried.failure),
            owed_an_attempt,
            // Only plain locks are handed off.
            takes_no_hand_off: request.must_ask || !request.kind.is_plain(),
            is_hopeless: false,
            request,
        };
        self.waiters.insert(id, waiter);
        id
    }

    /// The poller of a waiter that joins an empty queue.
    fn first_poller(
        &mut self,
        resource: &[u8],
        request: &AcquireRequest,
        tried: Option<&PlainTry>,
        now: Instant,
    ) -> Poller {
        let turn = request.turn;
        let Some(queue) = self.queues.get_mut(resource) else {
            return request.poller(true, now);
        };
        let held_here = tried.is_none_or(|tried| tried.held_here);
        let held_here = held_here && !queue.is_recently_contended(now);
        let mut poller = request.poller(held_here, now);
        if turn.is_some() {
            if request.end.is_some_and(|end| end <= now) {
                poller.has_no_time();
            }
            // The nodes decide which waiter is next.
            queue.notified_elsewhere = None;
        } else if queue.notified_elsewhere.take().is_some() {
            poller.yields(&mut self.rng, now);
        } else if let Some(PlainTry {
            failure: WaitFailure::Unavailable(_) | WaitFailure::TooSlow,
            pause,
            ..
        }) = tried
        {
            poller.failed(*pause, now);
        }
        poller
    }

    /// Returns what a waiter should do. `held_here`: whether a thread of this process seems to hold the lock.
    pub(crate) fn step(&mut self, id: u64, held_here: bool, now: Point) -> WaiterAction {
        let Some(waiter) = self.waiters.get_mut(&id) else {
            return WaiterAction::GiveUp(WaitFailure::Busy(None));
        };
        if waiter.is_hopeless {
            return WaiterAction::GiveUp(self.failure(id));
        }
        let over = waiter.is_over(now.mono);
        let soon = waiter.arrived.mono + self.node_timeout;
        let owed = waiter.owed_an_attempt && (waiter.last_failure.is_none() || now.mono < soon);
        let unasked = waiter.last_failure.is_none() && !mutant(Mutant::GiveUpUnasked);
        let longest = || now.mono + LONGEST_PARK;
        let action = match &mut waiter.state {
            WaiterState::HandedOff(attempt) => match attempt.take() {
                Some(attempt) => return WaiterAction::HandedOff(attempt),
                None => return WaiterAction::Park(longest()),
            },
            WaiterState::Queued if over => return WaiterAction::GiveUp(self.failure(id)),
            _ if over && !owed && !unasked => return WaiterAction::GiveUp(self.failure(id)),
            WaiterState::Queued => {
                return WaiterAction::Park(waiter.request.end.unwrap_or_else(longest));
            }
            WaiterState::Front(poller) => {
                let (subscriptions, rng) = (&self.subscriptions, &mut self.rng);
                let action =
                    poller.next(held_here, subscriptions, self.node_timeout, rng, now.mono);
                match action {
                    // Behind others a waiter need not ask: they do. At the front it asks, if only once.
                    PollerAction::Park(_) if over && unasked => poller.last_try(now.mono),
                    action => action,
                }
            }
        };
        // With a queue that was contended recently, a granted try needs no subscriptions.
        let parks = matches!(action, PollerAction::Park(_));
        if waiter.is_enqueued() && (parks || !self.subscriptions.suffice()) {
            self.subscriptions.need(now.mono);
        }
        match action {
            PollerAction::Try(mode) => WaiterAction::Try(self.queue_entry(id, mode, now)),
            PollerAction::Park(until) if owed && over && until < soon => WaiterAction::Park(until),
            PollerAction::Park(_) if over => WaiterAction::GiveUp(self.failure(id)),
            PollerAction::Park(until) => self.park(id, until, held_here),
        }
    }

    fn queue_entry(&self, id: u64, mode: AcquireMode, now: Point) -> Option<Arc<QueueEntry>> {
        let waiter = self.waiters.get(&id)?;
        let WaiterState::Front(poller) = &waiter.state else {
            return None;
        };
        let lease = LEASE + poller.longest_poll().saturating_mul(3);
        let arrived = waiter.arrived.wall.duration_since(std::time::UNIX_EPOCH);
        // With a single node, only its own clock counts.
        let arrived = arrived.ok().filter(|_| self.subscriptions.nodes() > 1);
        let channel = self.subscriptions.channel();
        let channel = channel.filter(|_| mode != AcquireMode::Plain)?;
        Some(Arc::new(QueueEntry {
            channel,
            arrived: arrived.map_or(0, node_queue::millis),
            waited: node_queue::millis(waiter.arrived.elapsed_at(now)),
            lease: node_queue::millis(lease),
            turn: waiter.request.turn.filter(|_| mode == AcquireMode::InOrder),
        }))
    }

    /// Sleeps until `until`, or until the end of the wait. But a pause after which there is no time for another attempt
    /// is useless.
    fn park(&mut self, id: u64, until: Instant, held_here: bool) -> WaiterAction {
        let Some(waiter) = self.waiters.get_mut(&id) else {
            return WaiterAction::GiveUp(WaitFailure::Busy(None));
        };
        let failed = !matches!(waiter.last_failure, None | Some(WaitFailure::Busy(_)));
        match waiter.request.end.filter(|end| *end <= until) {
            Some(_) if failed && !held_here => {
                waiter.takes_no_hand_off = true;
                WaiterAction::GiveUp(self.failure(id))
            }
            end => WaiterAction::Park(end.unwrap_or(until)),
        }
    }

    /// The last failure for a lock, for a waiter that may not have tried.
    fn failure(&self, id: u64) -> WaitFailure {
        let waiter = self.waiters.get(&id);
        let queue = waiter.and_then(|waiter| self.queues.get(&waiter.resource));
        let own = waiter.and_then(|waiter| waiter.last_failure.clone());
        own.or_else(|| queue?.last_failure.clone())
            .unwrap_or(WaitFailure::Busy(None))
    }

    /// Notes that the attempt of a waiter gave no lock.
    pub(crate) fn failed(
        &mut self,
        id: u64,
        (mut failure, pause): (WaitFailure, Duration),
        rejection: &Rejection,
        now: Instant,
    ) {
        let quorum = majority(self.subscriptions.nodes());
        let holder = rejection.holder(quorum);
        if let WaitFailure::Busy(known) = &mut failure {
            *known = rejection.named(quorum, now);
        }
        if !mutant(Mutant::NoTryAfterHandOff) {
            self.return_to_queue(id, now);
        }
        let (subscriptions, rng) = (&self.subscriptions, &mut self.rng);
        let Some(waiter) = self.waiters.get_mut(&id) else {
            return;
        };
        if let WaiterState::Front(poller) = &mut waiter.state {
            match failure {
                WaitFailure::Busy(_) => poller.denied(rejection, subscriptions, rng, now),
                _ => poller.failed(pause, now),
            }
        }
        let hopeless = failure.is_hopeless();
        if let Some(queue) = self.queues.get_mut(&waiter.resource) {
            queue.last_failure = Some(failure.clone());
        }
        waiter.last_failure = Some(failure);
        if hopeless {
            return self.end_all_waits(id);
        }
        let split = rejection.granted > 0 && !rejection.is_reserved(1) && holder.is_none();
        // After a split vote, another try is part of the same attempt.
        waiter.owed_an_attempt &= split;
    }

    /// Ends the waits of this waiter and of those behind it: an attempt has shown that waiting is useless. (A waiter
    /// that is asking the nodes at the moment finds out by itself.)
    fn end_all_waits(&mut self, id: u64) {
        let Some(waiter) = self.waiters.get_mut(&id) else {
            return;
        };
        waiter.is_hopeless = true;
        waiter.takes_no_hand_off = true;
        let (resource, last_failure) = (waiter.resource.clone(), waiter.last_failure.clone());
        let Some(queue) = self.queues.get_mut(&resource) else {
            return;
        };
        let (waiters, woken) = (&mut self.waiters, &mut self.woken);
        queue.waiters.retain(|other| {
            let Some(waiter) = waiters.get_mut(other).filter(|_| *other != id) else {
                return *other == id;
            };
            let waits = matches!(waiter.state, WaiterState::Queued);
            if waits {
                waiter.is_hopeless = true;
                waiter.last_failure.clone_from(&last_failure);
                woken.push(waiter.thread.clone());
            }
            !waits
        });
    }

    /// Makes a waiter whose hand-off failed the front again; or the next one, while the front makes a try.
    fn return_to_queue(&mut self, id: u64, now: Instant) {
        let Some(waiter) = self.waiters.get(&id) else {
            return;
        };
        let WaiterState::HandedOff(_) = waiter.state else {
            return;
        };
        let (resource, request) = (waiter.resource.clone(), waiter.request.clone());
        let front = self.front(&resource);
        let trying = |front: u64| match &self.waiters.get(&front)?.state {
            WaiterState::Front(poller) if poller.is_trying() => Some(()),
            _ => None,
        };
        let front_tries = front.and_then(trying).is_some();
        let queue = self.queues.entry(resource).or_default();
        if front_tries {
            queue.waiters.insert(1.min(queue.waiters.len()), id);
            return self.set_state(id, WaiterState::Queued);
        }
        queue.waiters.push_front(id);
        if let Some(front) = front {
            self.set_state(front, WaiterState::Queued);
        }
        let mut poller = request.poller(false, now);
        // The release that handed the lock off has notified no other process.
        poller.will_notify();
        self.set_state(id, WaiterState::Front(poller));
    }

    fn set_state(&mut self, id: u64, state: WaiterState) {
        if let Some(waiter) = self.waiters.get_mut(&id) {
            waiter.state = state;
        }
    }

    // ---- the front

    /// The first waiter that has not left.
    fn front(&mut self, resource: &[u8]) -> Option<u64> {
        let queue = self.queues.get_mut(resource)?;
        while let Some(id) = queue.waiters.front() {
            if self.waiters.contains_key(id) {
                return Some(*id);
            }
            queue.waiters.pop_front();
        }
        None
    }

    /// Until when waiters for this resource need not try for it, since notifications were wrong or votes were split.
    #[cfg(test)]
    pub(crate) fn cautious_until(&self, resource: &[u8]) -> Option<Instant> {
        let concerns = |waiter: &&Queued<W>| {
            let names = waiter.request.kind.names().unwrap_or_default();
            *waiter.resource == *resource || names.iter().any(|name| **name == *resource)
        };
        let waiters = self.waiters.values().filter(concerns);
        let until = waiters.filter_map(|waiter| match &waiter.state {
            WaiterState::Front(poller) => Some(poller.cautious_until()),
            _ => None,
        });
        until.max()
    }

    fn poller(&mut self, resource: &[u8]) -> Option<&mut Poller> {
        let front = self.front(resource)?;
        match &mut self.waiters.get_mut(&front)?.state {
            WaiterState::Front(poller) => Some(poller),
            _ => None,
        }
    }

    /// Makes the first waiter the one that asks the nodes.
    fn promote(&mut self, resource: &[u8], now: Instant) {
        if let Some(front) = self.front(resource)
            && let Some(waiter) = self.waiters.get_mut(&front)
            && let WaiterState::Queued = waiter.state
        {
            let queue = self.queues.get(resource);
            let held_here = queue.is_none_or(|queue| !queue.is_recently_contended(now));
            waiter.state = WaiterState::Front(waiter.request.poller(held_here, now));
        }
    }

    /// Wakes the thread at the front.
    pub(crate) fn wake_front(&mut self, resource: &[u8]) {
        if let Some(front) = self.front(resource)
            && let Some(waiter) = self.waiters.get(&front)
        {
            self.woken.push(waiter.thread.clone());
        }
    }
}

#[cfg(test)]
mod tests;
