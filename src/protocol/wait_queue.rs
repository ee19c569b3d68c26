//! The lines in which the threads of one process wait: one for each lock, in the order of arrival.
//!
//! Only the thread at the front asks the nodes (rule R35). A release in this process hands over to it: the
//! release and its acquire go in one write to each node, so that waiting costs one round trip. After some such
//! hand-overs other processes have their turn.
//!
//! Fair waiters are never served so: whose turn it is, the nodes decide.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock::Point;
use crate::error::NodeErrors;
use crate::label::Label;
use crate::protocol::attempt::{Attempt, Rejection};
use crate::protocol::mutant;
use crate::protocol::poller::{AcquireMode, Poller, PollerAction, Rng, Subscriptions};
use crate::protocol::queue::{self, Channel, QueueEntry, Turn};
use crate::protocol::quorum::{NodeSet, Ttl, majority};
use crate::protocol::script::Notify;

/// After so many hand-overs, or so long, another process that waits has its turn.
const MAX_HAND_OFFS: (u32, Duration) = (16, Duration::from_millis(20));
/// How long subscriptions and idle queues are kept after their last use.
const WARM: Duration = Duration::from_secs(1);
/// Who is not at the front is woken when it is.
const LONGEST_PARK: Duration = Duration::from_secs(3600);
/// The queues on the nodes are kept longer than the longest poll.
const LEASE: Duration = Duration::from_secs(5);
/// So many messages for locks that nobody here waits for are passed on in such a time.
const MAX_FORWARDS: (u32, Duration) = (100, Duration::from_millis(100));

/// Why an attempt gave no lock.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    Busy,
    TooSlow,
    Unavailable(NodeErrors),
}

impl Failure {
    /// Waiting is of no use: so many nodes refuse for good that no quorum is left.
    pub(crate) fn is_hopeless(&self) -> bool {
        matches!(self, Failure::Unavailable(nodes) if nodes.is_permanent())
    }
}

/// What somebody waits for.
#[derive(Clone, Debug)]
pub(crate) struct AcquireRequest {
    pub(crate) ttl: Ttl,
    pub(crate) label: Option<Label>,
    /// No attempt begins after that.
    pub(crate) end: Option<Instant>,
    /// The thread is to be asked before each attempt, so nobody else makes one for it.
    pub(crate) asks: bool,
    pub(crate) retry_delay: (Duration, Duration),
    /// It is fair: it takes the lock only in turn.
    pub(crate) turn: Option<Turn>,
}

/// What a thread that waits should do.
#[derive(Debug)]
pub(crate) enum WaiterAction {
    /// One attempt; with a knock the nodes are asked to tell.
    Try(Option<Arc<QueueEntry>>),
    /// Until then, or until it is woken.
    Park(Instant),
    /// Somebody else has submitted the first try of this attempt for it.
    Served(Attempt),
    /// Its wait is over: leave, with this error.
    Over(Failure),
}

/// What a release does about those who wait here.
#[derive(Debug)]
pub(crate) enum HandOff<W> {
    /// Nothing: the release tells a process that waits, and the thread at the front goes on by itself.
    Notify(Notify),
    /// It goes together with the first try for this one.
    To {
        place: u64,
        who: W,
        ttl: Ttl,
        label: Option<Label>,
    },
}

#[derive(Debug)]
enum State {
    Queued,
    Front(Poller),
    Served(Option<Attempt>),
}

#[derive(Debug)]
struct Place<W> {
    resource: Arc<[u8]>,
    who: W,
    request: AcquireRequest,
    arrived: Point,
    state: State,
    last: Option<Failure>,
    /// It has not finished its first attempt, which it makes however short its wait is.
    owed: bool,
    /// The last attempt, by whoever it was, has shown that waiting is of no use.
    hopeless: bool,
}

#[derive(Debug, Default)]
struct WaitQueue {
    /// Those who have left may still be in it.
    queue: VecDeque<u64>,
    /// Hand-overs in a row, and when the first one was.
    run: Option<(u32, Instant)>,
    /// Another process was told that the lock is free, and is to have a start.
    passed: Option<Instant>,
    /// When a thread of this process has last waited for another one.
    warm: Option<Instant>,
    last: Option<Failure>,
}

impl WaitQueue {
    /// Whether a thread of this process has waited for another one until lately.
    fn is_warm(&self, now: Instant) -> bool {
        self.warm.is_some_and(|at| now < at + WARM)
    }

    fn is_remembered(&self, now: Instant) -> bool {
        let passed = self.passed.is_some_and(|at| now < at + WARM);
        !self.queue.is_empty() || passed || self.is_warm(now)
    }
}

/// `W`: a thread that waits.
pub(crate) struct WaitQueues<W> {
    lines: HashMap<Arc<[u8]>, WaitQueue>,
    places: HashMap<u64, Place<W>>,
    arrivals: u64,
    node_timeout: Duration,
    /// None: this process cannot be told.
    channel: Option<Channel>,
    subscriptions: Subscriptions,
    /// Nodes that a thread listens to, or tries to.
    listened: NodeSet,
    /// Nodes that a thread is to be started for.
    pub(crate) listen: NodeSet,
    /// Nodes that can be listened to.
    audible: NodeSet,
    needed_until: Option<Instant>,
    sweep_at: Option<Instant>,
    forwards: Option<(u32, Instant)>,
    rng: Rng,
    /// To be woken.
    pub(crate) woken: Vec<W>,
}

impl<W: Clone> WaitQueues<W> {
    pub(crate) fn new(
        nodes: usize,
        channel: Option<Channel>,
        node_timeout: Duration,
        rng: u64,
    ) -> WaitQueues<W> {
        let mut subscriptions = Subscriptions::new(nodes);
        // Without a channel nobody can tell this process anything.
        let audible = channel.map_or(NodeSet::EMPTY, |_| NodeSet::first(nodes));
        subscriptions.failed = NodeSet::first(nodes).without(audible);
        WaitQueues {
            lines: HashMap::new(),
            places: HashMap::new(),
            arrivals: 0,
            node_timeout,
            channel,
            subscriptions,
            listened: NodeSet::EMPTY,
            listen: NodeSet::EMPTY,
            audible,
            needed_until: None,
            sweep_at: None,
            forwards: None,
            rng: Rng::new(rng),
            woken: Vec::new(),
        }
    }

    /// No lock has a line, and this process cannot be told anything: a release need not look who is next.
    pub(crate) fn is_quiet(&self) -> bool {
        self.lines.is_empty() && self.listened == NodeSet::EMPTY
    }

    /// Forgets lines in which nobody waits.
    fn sweep(&mut self, now: Instant) {
        if self.sweep_at.is_none_or(|at| at <= now) {
            self.lines.retain(|_, line| line.is_remembered(now));
            self.sweep_at = Some(now + WARM);
        }
    }

    // ---- those who wait

    /// Whether to join the line for a lock before anything is asked.
    pub(crate) fn is_waited_for(&mut self, resource: &[u8], now: Instant) -> bool {
        self.sweep(now);
        let line = self.lines.get(resource);
        line.is_some_and(|line| line.is_remembered(now))
    }

    /// Joins the end of a line. `tried`: what a plain try before that came to, the pause after it, and
    /// whether a thread of this process may have the lock.
    pub(crate) fn join(
        &mut self,
        resource: &Arc<[u8]>,
        who: W,
        request: AcquireRequest,
        tried: Option<(Failure, Duration, bool)>,
        now: Point,
    ) -> u64 {
        self.arrivals += 1;
        let place = self.arrivals;
        self.sweep(now.mono);
        let line = self.lines.entry(resource.clone()).or_default();
        if !line.is_remembered(now.mono) {
            *line = WaitQueue::default();
        }
        let is_front = line.queue.is_empty();
        line.queue.push_back(place);
        let owed = is_front && request.turn.is_some();
        let mut state = State::Queued;
        if is_front {
            let local = tried.as_ref().is_none_or(|(_, _, local)| *local);
            let hasty = owed && request.end.is_some_and(|end| end <= now.mono);
            let local = local && !line.is_warm(now.mono);
            let mut poller = Poller::new(request.retry_delay, request.turn, local, now.mono);
            if hasty {
                poller.hurries();
            }
            if owed {
                // Whose turn it is, the nodes know.
                line.passed = None;
            } else if line.passed.take().is_some() {
                poller.yields(&mut self.rng, now.mono);
            } else if let Some((Failure::Unavailable(_) | Failure::TooSlow, pause, _)) = &tried {
                poller.failed(*pause, now.mono);
            }
            state = State::Front(poller);
        }
        let last = tried.map(|(failure, _, _)| failure);
        let resource = resource.clone();
        self.places.insert(
            place,
            Place {
                resource,
                who,
                request,
                arrived: now,
                state,
                last,
                owed,
                hopeless: false,
            },
        );
        place
    }

    /// What the thread in a place should do. `here`: a thread of this process seems to have the lock.
    pub(crate) fn step(&mut self, at: u64, here: bool, now: Point) -> WaiterAction {
        let Some(place) = self.places.get_mut(&at) else {
            return WaiterAction::Over(Failure::Busy);
        };
        if place.hopeless {
            return WaiterAction::Over(self.failure(at));
        }
        let over = place.request.end.is_some_and(|end| end <= now.mono);
        let soon = place.arrived.mono + self.node_timeout;
        let owed = place.owed && (place.last.is_none() || now.mono < soon);
        let far = || now.mono + LONGEST_PARK;
        let step = match &mut place.state {
            State::Served(attempt) => match attempt.take() {
                Some(attempt) => return WaiterAction::Served(attempt),
                // It is being submitted.
                None => return WaiterAction::Park(far()),
            },
            State::Queued if over => return WaiterAction::Over(self.failure(at)),
            _ if over && !owed => return WaiterAction::Over(self.failure(at)),
            State::Queued => return WaiterAction::Park(place.request.end.unwrap_or_else(far)),
            State::Front(poller) => {
                let (subscriptions, rng) = (&self.subscriptions, &mut self.rng);
                poller.next(here, subscriptions, self.node_timeout, rng, now.mono)
            }
        };
        let State::Front(poller) = &place.state else {
            return WaiterAction::Over(Failure::Busy);
        };
        // A knock on a warm line needs no subscriptions if it is granted.
        let parks = matches!(step, PollerAction::Park(_));
        if poller.listens() && (parks || !self.subscriptions.suffice()) {
            self.needed_until = Some(now.mono + WARM);
            self.listen = self.listen.or(self.audible.without(self.listened));
            self.listened = self.listened.or(self.listen);
        }
        match step {
            PollerAction::Try(bid) => WaiterAction::Try(self.knock(at, bid, now)),
            PollerAction::Park(until) if owed && over && until < soon => WaiterAction::Park(until),
            PollerAction::Park(_) if over => WaiterAction::Over(self.failure(at)),
            PollerAction::Park(until) => self.park(at, until, here),
        }
    }

    fn knock(&self, at: u64, bid: AcquireMode, now: Point) -> Option<Arc<QueueEntry>> {
        let place = self.places.get(&at)?;
        let State::Front(poller) = &place.state else {
            return None;
        };
        let lease = LEASE + poller.longest_poll().saturating_mul(3);
        let arrived = place.arrived.wall.duration_since(std::time::UNIX_EPOCH);
        // The clock of a single node is the only one that counts.
        let arrived = arrived.ok().filter(|_| self.subscriptions.nodes > 1);
        let channel = self.channel.filter(|_| bid != AcquireMode::Plain)?;
        Some(Arc::new(QueueEntry {
            channel,
            arrived: arrived.map_or(0, queue::millis),
            waited: queue::millis(place.arrived.elapsed_at(now)),
            lease: queue::millis(lease),
            turn: place.request.turn.filter(|_| bid == AcquireMode::InOrder),
        }))
    }

    /// Sleeps until then, or until its end; but nobody pauses for nothing.
    fn park(&mut self, at: u64, until: Instant, here: bool) -> WaiterAction {
        let Some(place) = self.places.get_mut(&at) else {
            return WaiterAction::Over(Failure::Busy);
        };
        let failed = !matches!(place.last, None | Some(Failure::Busy));
        match place.request.end.filter(|end| *end <= until) {
            Some(_) if failed && !here => {
                // Until it has left nobody else makes a try for it.
                place.request.asks = true;
                WaiterAction::Over(self.failure(at))
            }
            end => WaiterAction::Park(end.unwrap_or(until)),
        }
    }

    /// The last that is known of a lock to somebody who may not have tried.
    fn failure(&self, at: u64) -> Failure {
        let place = self.places.get(&at);
        let line = place.and_then(|place| self.lines.get(&place.resource));
        let own = place.and_then(|place| place.last.clone());
        own.or_else(|| line?.last.clone()).unwrap_or(Failure::Busy)
    }

    /// The attempt of the thread at the front, or of one that was served, gave no lock.
    pub(crate) fn failed(
        &mut self,
        at: u64,
        (failure, pause): (Failure, Duration),
        rejection: &Rejection,
        now: Instant,
    ) {
        if !mutant(37) {
            self.back(at, now);
        }
        let (subscriptions, rng) = (&self.subscriptions, &mut self.rng);
        let Some(place) = self.places.get_mut(&at) else {
            return;
        };
        if let State::Front(poller) = &mut place.state {
            match failure {
                Failure::Busy => poller.denied(rejection, subscriptions, rng, now),
                _ => poller.failed(pause, now),
            }
        }
        let hopeless = failure.is_hopeless();
        if let Some(line) = self.lines.get_mut(&place.resource) {
            line.last = Some(failure.clone());
        }
        place.last = Some(failure);
        if hopeless {
            return self.give_up(at);
        }
        let quorum = majority(self.subscriptions.nodes);
        let split = rejection.granted > 0
            && !rejection.is_reserved(1)
            && rejection.holder(quorum).is_none();
        // Another try is part of the same attempt.
        let soon = place.arrived.mono + self.node_timeout;
        place.owed &= split && now < soon;
    }

    /// An attempt has shown that waiting is of no use: neither for this thread, nor for those that wait for it to
    /// ask the nodes. (Who is just asking them finds out by itself.)
    fn give_up(&mut self, at: u64) {
        let Some(place) = self.places.get_mut(&at) else {
            return;
        };
        place.hopeless = true;
        // Until it has left nobody else makes a try for it.
        place.request.asks = true;
        let (resource, last) = (place.resource.clone(), place.last.clone());
        let Some(line) = self.lines.get_mut(&resource) else {
            return;
        };
        let (places, woken) = (&mut self.places, &mut self.woken);
        line.queue.retain(|other| {
            let Some(place) = places.get_mut(other).filter(|_| *other != at) else {
                return *other == at;
            };
            let waits = matches!(place.state, State::Queued);
            if waits {
                place.hopeless = true;
                place.last.clone_from(&last);
                woken.push(place.who.clone());
            }
            !waits
        });
    }

    /// Who was served in vain is at the front again.
    fn back(&mut self, at: u64, now: Instant) {
        let Some(place) = self.places.get(&at) else {
            return;
        };
        let State::Served(_) = place.state else {
            return;
        };
        let (resource, request) = (place.resource.clone(), place.request.clone());
        let front = self.front(&resource);
        let trying = |front: u64| match &self.places.get(&front)?.state {
            State::Front(poller) if poller.is_trying() => Some(()),
            _ => None,
        };
        let waits = front.and_then(trying).is_some();
        let line = self.lines.entry(resource).or_default();
        if waits {
            line.queue.insert(1.min(line.queue.len()), at);
        } else {
            line.queue.push_front(at);
        }
        let mut set = |at: u64, state| {
            if let Some(place) = self.places.get_mut(&at) {
                place.state = state;
            }
        };
        if waits {
            return set(at, State::Queued);
        }
        front
            .into_iter()
            .for_each(|front| set(front, State::Queued));
        let mut poller = Poller::new(request.retry_delay, request.turn, false, now);
        // Its release has told nobody else.
        poller.will_pass_on();
        set(at, State::Front(poller));
    }

    /// A thread leaves: with the lock, or without. With a channel it stays until its process has left the
    /// queues on the nodes (`left`), so that this is written before the next thread's knock.
    pub(crate) fn leave(
        &mut self,
        at: u64,
        got: bool,
        left: bool,
        now: Instant,
    ) -> Option<Channel> {
        if !got
            && !left
            && let Some(channel) = self.leaves_queue(at)
        {
            return Some(channel);
        }
        self.vacate(at, got, now);
        None
    }

    fn vacate(&mut self, at: u64, got: bool, now: Instant) {
        let Some(place) = self.places.remove(&at) else {
            return;
        };
        let Some(line) = self.lines.get_mut(&place.resource) else {
            return;
        };
        if got {
            line.last = None;
        }
        let State::Front(poller) = place.state else {
            // Where it stood is passed over when its turn comes.
            if line.queue.len() > 2 * self.places.len() + 16 {
                let places = &self.places;
                line.queue.retain(|at| places.contains_key(at));
            }
            return self.tidy(&place.resource, now);
        };
        if line.queue.front() == Some(&at) {
            line.queue.pop_front();
        }
        let passes_on = poller.must_pass_on();
        if poller.has_waited() {
            line.warm = Some(now);
            self.needed_until = Some(now + WARM);
        }
        if got {
            line.run = None;
        }
        self.promote(&place.resource, now);
        if let Some(next) = self.poller(&place.resource)
            && !got
            && passes_on
        {
            // What was told to the one before counts for this one.
            next.free();
        }
        self.wake(&place.resource);
        self.tidy(&place.resource, now);
    }

    /// Whether the place on the nodes is given up with the one in the line: nobody here goes on waiting, or not
    /// with the same right.
    fn leaves_queue(&mut self, at: u64) -> Option<Channel> {
        let place = self.places.get_mut(&at)?;
        let State::Front(poller) = &place.state else {
            return None;
        };
        let passes_on = poller.must_pass_on() && !mutant(33);
        let fair = poller.is_fair();
        // Nobody else makes a try for it any more.
        place.request.asks = true;
        let resource = place.resource.clone();
        let line = self.lines.get(&resource)?;
        let mut others = line.queue.iter().filter(|other| **other != at);
        let alone = !others.any(|other| self.places.contains_key(other));
        // The next one here may have come later than those in other processes.
        let leaves = alone || fair;
        self.channel.filter(|_| passes_on && leaves)
    }

    fn tidy(&mut self, resource: &Arc<[u8]>, now: Instant) {
        let line = self.lines.get(resource);
        if line.is_some_and(|line| !line.is_remembered(now)) {
            self.lines.remove(resource);
        }
    }

    /// The first who has not left.
    fn front(&mut self, resource: &[u8]) -> Option<u64> {
        let line = self.lines.get_mut(resource)?;
        while let Some(at) = line.queue.front() {
            if self.places.contains_key(at) {
                return Some(*at);
            }
            line.queue.pop_front();
        }
        None
    }

    fn poller(&mut self, resource: &[u8]) -> Option<&mut Poller> {
        let front = self.front(resource)?;
        match &mut self.places.get_mut(&front)?.state {
            State::Front(poller) => Some(poller),
            _ => None,
        }
    }

    /// Whoever is first becomes the one who asks the nodes.
    fn promote(&mut self, resource: &[u8], now: Instant) {
        if let Some(front) = self.front(resource)
            && let Some(place) = self.places.get_mut(&front)
            && let State::Queued = place.state
        {
            let line = self.lines.get(resource);
            let local = line.is_none_or(|line| !line.is_warm(now));
            let request = &place.request;
            let poller = Poller::new(request.retry_delay, request.turn, local, now);
            place.state = State::Front(poller);
        }
    }

    /// Wakes the thread at the front.
    pub(crate) fn wake(&mut self, resource: &[u8]) {
        if let Some(front) = self.front(resource)
            && let Some(place) = self.places.get(&front)
        {
            self.woken.push(place.who.clone());
        }
    }

    // ---- releases in this process

    /// A thread of this process is about to release a lock: who is next.
    pub(crate) fn hand_over(&mut self, resource: &[u8], now: Instant) -> HandOff<W> {
        self.sweep(now);
        let Some(at) = self.front(resource) else {
            // The next who waits here begins a run of its own.
            if let Some(line) = self.lines.get_mut(resource) {
                line.run = None;
            }
            let channel = self.channel.filter(|_| !mutant(44));
            return HandOff::Notify(channel.map_or(Notify::First, Notify::FirstBut));
        };
        let (Some(line), Some(place)) = (self.lines.get_mut(resource), self.places.get_mut(&at))
        else {
            return HandOff::Notify(Notify::First);
        };
        let (most, longest) = MAX_HAND_OFFS;
        let (count, since) = *line.run.get_or_insert((0, now));
        let trying = matches!(&place.state, State::Front(poller) if poller.is_trying());
        // Who may go without a try must not be the only one who knows that the lock is free.
        let over = place.request.end.is_some_and(|end| end <= now);
        let goes = place.request.asks || over;
        let fair = place.request.turn.is_some();
        if goes
            || fair
            || trying
            || line.passed.is_some()
            || count >= most
            || now >= since + longest
        {
            line.run = None;
            return HandOff::Notify(Notify::First);
        }
        line.run = Some((count + 1, since));
        let (who, request) = (place.who.clone(), &place.request);
        let (ttl, label) = (request.ttl, request.label.clone());
        place.state = State::Served(None);
        line.queue.pop_front();
        self.promote(resource, now);
        HandOff::To {
            place: at,
            who,
            ttl,
            label,
        }
    }

    /// The first try of this attempt is under way for a place.
    pub(crate) fn serve(&mut self, at: u64, attempt: Attempt) {
        if let Some(place) = self.places.get_mut(&at) {
            place.state = State::Served(Some(attempt));
        }
    }

    /// Nobody could make that try: its thread does itself.
    pub(crate) fn hand_off_failed(&mut self, at: u64, now: Instant) {
        self.back(at, now);
        if let Some(place) = self.places.get(&at) {
            self.woken.push(place.who.clone());
        }
    }

    /// The lock was released, without a hand-over. `told`: another process was told.
    pub(crate) fn released(&mut self, resource: &Arc<[u8]>, told: bool, now: Instant) {
        if told {
            self.passed(resource, now);
        }
        if self.front(resource).is_none() {
            return;
        }
        let passed = self
            .lines
            .get_mut(resource)
            .and_then(|line| line.passed.take());
        let mut rng = self.rng.clone();
        if let Some(poller) = self.poller(resource) {
            match passed {
                // If it is this one's turn, it is told.
                Some(_) if poller.is_fair() => {}
                Some(_) => poller.yields(&mut rng, now),
                None => poller.free(),
            }
        }
        self.rng = rng;
        self.wake(resource);
    }

    /// Another process was told that a lock is free, as is known now: the next one here gives it a start.
    pub(crate) fn passed(&mut self, resource: &Arc<[u8]>, now: Instant) {
        self.sweep(now);
        self.lines.entry(resource.clone()).or_default().passed = Some(now);
    }

    // ---- what other processes tell

    /// A node says that a lock may be free. False: nobody here waits for it, and another is to be told.
    pub(crate) fn told(&mut self, resource: &[u8], node: usize, now: Instant) -> bool {
        if self.hint(resource, node) {
            return true;
        }
        let (most, time) = MAX_FORWARDS;
        let (count, since) = self
            .forwards
            .filter(|(_, since)| now < *since + time)
            .unwrap_or((0, now));
        self.forwards = Some((count + 1, since));
        count >= most
    }

    /// Whoever is at the front is to look again. False: nobody is.
    pub(crate) fn hint(&mut self, resource: &[u8], node: usize) -> bool {
        let Some(poller) = self.poller(resource) else {
            return false;
        };
        poller.told(node);
        self.wake(resource);
        true
    }

    /// What is said on a node is heard from now on.
    pub(crate) fn hears(&mut self, node: usize, now: Instant) {
        self.subscriptions.open.add(node);
        self.subscriptions.failed.remove(node);
        let mut resources: Vec<Arc<[u8]>> = self.lines.keys().cloned().collect();
        // So that the same happens in each run of the simulation.
        resources.sort_unstable();
        let mut rng = self.rng.clone();
        for resource in resources {
            if let Some(poller) = self.poller(&resource)
                && poller.listens()
            {
                poller.hears(&mut rng, now);
                self.wake(&resource);
            }
        }
        self.rng = rng;
    }

    /// It is not heard any more, or a try to listen has failed.
    pub(crate) fn subscription_failed(&mut self, node: usize) {
        self.subscriptions.open.remove(node);
        self.subscriptions.failed.add(node);
        // Those who wait for subscriptions to open should wait no longer than they are of use.
        let listens =
            |place: &&Place<W>| matches!(&place.state, State::Front(one) if one.listens());
        let waiting = self.places.values().filter(listens);
        self.woken.extend(waiting.map(|place| place.who.clone()));
    }

    /// No thread listens to a node.
    pub(crate) fn cannot_start_worker(&mut self, node: usize) {
        self.subscription_failed(node);
        self.listened.remove(node);
    }

    /// Whether anybody needs to hear the nodes. If not, the thread that listens to `node` ends.
    pub(crate) fn still_needed(&mut self, node: usize, now: Instant) -> bool {
        let lately = self.needed_until.is_some_and(|until| now < until);
        let contends =
            |place: &Place<W>| matches!(&place.state, State::Front(poller) if poller.listens());
        if lately || self.places.values().any(contends) {
            return true;
        }
        self.subscriptions.open.remove(node);
        self.subscriptions.failed = self.subscriptions.failed.without(self.audible);
        self.listened.remove(node);
        false
    }

    pub(crate) fn channel(&self) -> Option<Channel> {
        self.channel
    }
}

#[cfg(test)]
impl<W: Clone> WaitQueues<W> {
    /// So many have a place.
    pub(crate) fn places(&self) -> usize {
        self.places.len()
    }

    /// Whether a place is about to be left, since waiting is of no use.
    pub(crate) fn is_hopeless(&self, at: u64) -> bool {
        self.places.get(&at).is_some_and(|place| place.hopeless)
    }

    /// Whether somebody is at the front of a line, or about to be served.
    pub(crate) fn is_contended_for(&mut self, resource: &[u8]) -> bool {
        self.front(resource).is_none() || self.poller(resource).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const NAME: &[u8] = b"a";

    struct World {
        lines: WaitQueues<u32>,
        now: Point,
    }

    fn world() -> World {
        let channel = Some(Channel::new([1; 16]));
        World {
            lines: WaitQueues::new(1, channel, 50 * MS, 7),
            now: Point::now(),
        }
    }

    impl World {
        fn request(&self, wait: Option<Duration>) -> AcquireRequest {
            AcquireRequest {
                ttl: Ttl::new(1000 * MS).unwrap(),
                label: None,
                end: wait.map(|wait| self.now.mono + wait),
                asks: false,
                retry_delay: (50 * MS, 250 * MS),
                turn: None,
            }
        }

        fn join(&mut self, who: u32, wait: Option<Duration>) -> u64 {
            let request = self.request(wait);
            let tried = Some((Failure::Busy, MS, true));
            self.lines
                .join(&Arc::from(NAME), who, request, tried, self.now)
        }

        fn pass(&mut self, time: Duration) {
            self.now.mono += time;
            self.now.wall += time;
        }

        fn step(&mut self, place: u64, here: bool) -> WaiterAction {
            self.lines.step(place, here, self.now)
        }

        /// Whether its process leaves the queues on the nodes, too.
        fn leave(&mut self, place: u64, got: bool) -> bool {
            let now = self.now.mono;
            let leaves = self.lines.leave(place, got, false, now).is_some();
            if leaves {
                self.lines.leave(place, got, true, now);
            }
            leaves
        }

        /// Who is served by a release; `None`: it tells another process.
        fn release(&mut self) -> Option<(u64, u32)> {
            match self.lines.hand_over(NAME, self.now.mono) {
                HandOff::To { place, who, .. } => Some((place, who)),
                HandOff::Notify(_) => None,
            }
        }
    }

    #[test]
    fn a_release_serves_in_the_order_of_arrival_and_passes_over_those_who_left() {
        let mut world = world();
        let places: Vec<u64> = (0..5).map(|who| world.join(who, None)).collect();
        world.leave(places[2], false);
        let mut served = Vec::new();
        while let Some((place, who)) = world.release() {
            served.push(who);
            world.leave(place, true);
        }
        assert_eq!(served, [0, 1, 3, 4]);
        assert!(world.lines.lines.is_empty(), "nothing is kept of it");
    }

    /// Its name may be in the queue still: who was served may have knocked before.
    #[test]
    fn a_process_in_which_nobody_waits_does_not_tell_itself() {
        let mut world = world();
        let channel = Channel::new([1; 16]);
        let place = world.join(0, None);
        let tells = |world: &mut World| match world.lines.hand_over(NAME, world.now.mono) {
            HandOff::Notify(tell) => Some(tell),
            HandOff::To { .. } => None,
        };
        world.pass(50 * MS);
        world.step(place, false);
        assert_eq!(tells(&mut world), Some(Notify::First), "it is trying");
        let failure = (Failure::Busy, MS);
        world
            .lines
            .failed(place, failure, &Rejection::default(), world.now.mono);
        assert_eq!(tells(&mut world), None);
        world.leave(place, true);
        assert_eq!(tells(&mut world), Some(Notify::FirstBut(channel)));
        // As long as it listens it may be told.
        let place = world.join(0, None);
        world.lines.listened.add(0);
        world.leave(place, true);
        assert!(world.lines.lines.is_empty() && !world.lines.is_quiet());
        assert!(!world.lines.still_needed(0, world.now.mono));
        assert!(world.lines.is_quiet());
    }

    #[test]
    fn another_process_has_its_turn_after_some_hand_overs_or_some_time() {
        let mut world = world();
        for who in 0..100 {
            world.join(who, None);
        }
        let run = |world: &mut World| std::iter::from_fn(|| world.release()).count();
        assert_eq!([run(&mut world), run(&mut world)], [16, 16]);
        assert!(world.release().is_some());
        world.pass(20 * MS);
        assert_eq!(world.release(), None);
    }

    #[test]
    fn nobody_is_served_while_the_front_tries_or_after_its_end() {
        let mut world = world();
        let front = world.join(0, Some(100 * MS));
        assert!(matches!(world.step(front, false), WaiterAction::Try(None)));
        assert_eq!(world.release(), None);
        let rejection = Rejection::default();
        let failure = (Failure::Busy, MS);
        world
            .lines
            .failed(front, failure, &rejection, world.now.mono);
        world.pass(100 * MS);
        assert_eq!(world.release(), None);
        assert!(matches!(
            world.step(front, false),
            WaiterAction::Over(Failure::Busy)
        ));
    }

    #[test]
    fn who_asks_is_not_served_and_passes_on_when_it_gives_up() {
        for others in [false, true] {
            let mut world = world();
            let request = AcquireRequest {
                asks: true,
                ..world.request(None)
            };
            let (name, now) = (Arc::from(NAME), world.now);
            let tried = Some((Failure::Busy, MS, true));
            let front = world.lines.join(&name, 0, request, tried, now);
            assert_eq!(world.release(), None);
            world.lines.released(&name, false, now.mono);
            assert_eq!(world.lines.woken, [0]);
            let next = others.then(|| world.join(1, None));
            // The next in the line does it in its place.
            assert_eq!(world.leave(front, false), !others);
            if let Some(next) = next {
                assert!(matches!(world.step(next, false), WaiterAction::Try(None)));
            }
        }
    }

    #[test]
    fn who_never_knew_that_it_was_free_has_nothing_to_pass_on() {
        let mut world = world();
        let front = world.join(0, None);
        assert!(matches!(world.step(front, true), WaiterAction::Park(_)));
        assert!(!world.leave(front, false));
    }

    #[test]
    fn who_was_served_in_vain_is_first_again() {
        let mut world = world();
        let [first, second] = [0, 1].map(|who| world.join(who, None));
        assert_eq!(world.release(), Some((first, 0)));
        let (rejection, failure) = (Rejection::default(), (Failure::Busy, MS));
        world
            .lines
            .failed(first, failure, &rejection, world.now.mono);
        assert!(matches!(world.step(second, true), WaiterAction::Park(_)));
        assert_eq!(world.release(), Some((first, 0)));
        assert_eq!(world.release(), Some((second, 1)));
    }

    #[test]
    fn ears_are_opened_for_other_processes_only_and_close_a_second_later() {
        let mut world = world();
        let place = world.join(0, None);
        let WaiterAction::Park(until) = world.step(place, true) else {
            panic!("a thread of this process has it");
        };
        assert!(world.lines.listen.is_empty() && until <= world.now.mono + 50 * MS);
        world.pass(until - world.now.mono);
        assert!(matches!(world.step(place, true), WaiterAction::Park(_)));
        assert_eq!(world.lines.listen, NodeSet::first(1));
        world.lines.hears(0, world.now.mono);
        assert!(matches!(
            world.step(place, true),
            WaiterAction::Try(Some(_))
        ));
        assert!(world.lines.told(NAME, 0, world.now.mono));
        let rejection = Rejection::default();
        let failure = (Failure::Busy, MS);
        world
            .lines
            .failed(place, failure, &rejection, world.now.mono);
        world.pass(5000 * MS);
        assert!(
            world.lines.still_needed(0, world.now.mono),
            "it still waits"
        );
        world.leave(place, true);
        assert!(
            world.lines.is_waited_for(NAME, world.now.mono),
            "it is warm"
        );
        world.pass(999 * MS);
        assert!(world.lines.still_needed(0, world.now.mono));
        world.pass(MS);
        assert!(!world.lines.still_needed(0, world.now.mono));
        assert!(!world.lines.is_waited_for(NAME, world.now.mono));
        assert!(
            !world.lines.told(NAME, 0, world.now.mono),
            "another is to be told"
        );
    }

    #[test]
    fn a_flood_of_messages_is_passed_on_in_part() {
        let mut world = world();
        let passed = (0..1000).filter(|_| !world.lines.told(b"x", 0, world.now.mono));
        assert_eq!(passed.count(), 100);
        world.pass(100 * MS);
        assert!(!world.lines.told(b"x", 0, world.now.mono));
    }

    #[test]
    fn the_error_of_who_never_tried_is_what_its_line_has_seen() {
        let mut world = world();
        let front = world.join(0, None);
        let second = world.join(1, Some(10 * MS));
        assert!(matches!(world.step(front, false), WaiterAction::Try(_)));
        let (rejection, failure) = (Rejection::default(), (Failure::TooSlow, MS));
        world
            .lines
            .failed(front, failure, &rejection, world.now.mono);
        let request = world.request(Some(10 * MS));
        let now = world.now;
        let third = world.lines.join(&Arc::from(NAME), 2, request, None, now);
        world.pass(10 * MS);
        assert!(matches!(
            world.step(third, false),
            WaiterAction::Over(Failure::TooSlow)
        ));
        assert!(
            matches!(world.step(second, false), WaiterAction::Over(Failure::Busy)),
            "it has tried"
        );
    }

    // ---- fair ones

    impl World {
        fn join_fair(&mut self, who: u32, wait: Option<Duration>) -> u64 {
            let request = AcquireRequest {
                turn: Some(Turn::new(50 * MS)),
                ..self.request(wait)
            };
            self.lines
                .join(&Arc::from(NAME), who, request, None, self.now)
        }

        fn denied(&mut self, place: u64, rejection: &Rejection) {
            let failure = (Failure::Busy, 50 * MS);
            self.lines.failed(place, failure, rejection, self.now.mono);
        }

        fn knocks_in_turn(&mut self, place: u64) -> Arc<QueueEntry> {
            match self.step(place, false) {
                WaiterAction::Try(Some(knock)) if knock.turn.is_some() => knock,
                step => panic!("{step:?}"),
            }
        }
    }

    #[test]
    fn who_is_fair_is_not_served_and_knocks_without_being_listened_to_first() {
        let mut world = world();
        let first = world.join_fair(1, None);
        let second = world.join_fair(2, None);
        assert_eq!(world.release(), None);
        let knock = world.knocks_in_turn(first);
        // The node's own clock counts.
        assert_eq!((knock.arrived, knock.waited), (0, 0));
        assert!(world.lines.listen.is_empty());
        assert!(matches!(world.step(second, false), WaiterAction::Park(_)));
        world.pass(30 * MS);
        world.leave(first, true);
        assert_eq!(world.knocks_in_turn(second).waited, 30);
    }

    #[test]
    fn who_is_fair_tries_once_however_short_its_wait_is_and_again_where_nobody_got_it() {
        let mut world = world();
        let place = world.join_fair(1, Some(Duration::ZERO));
        // Others of this process come first.
        let late = world.join_fair(2, Some(Duration::ZERO));
        assert!(matches!(
            world.step(late, false),
            WaiterAction::Over(Failure::Busy)
        ));
        world.leave(late, false);
        world.pass(MS);
        world.knocks_in_turn(place);
        let split = Rejection {
            seen: Vec::new(),
            granted: 1,
        };
        world.denied(place, &split);
        assert!(matches!(world.step(place, false), WaiterAction::Park(_)));
        world.pass(20 * MS);
        world.knocks_in_turn(place);
        world.denied(place, &Rejection::default());
        assert!(matches!(world.step(place, false), WaiterAction::Over(_)));
        assert!(world.leave(place, false), "it was in the queue");
    }

    #[test]
    fn a_fair_place_on_the_nodes_is_not_left_to_who_came_later() {
        let mut world = world();
        let first = world.join_fair(1, None);
        let second = world.join_fair(2, None);
        world.knocks_in_turn(first);
        world.denied(first, &Rejection::default());
        assert!(world.leave(first, false), "though another waits");
        world.knocks_in_turn(second);
    }

    // ---- nodes that refuse for good

    fn refused(for_good: bool) -> Failure {
        let errors = NodeErrors::new(Vec::new(), None);
        Failure::Unavailable(match for_good {
            true => errors.for_good(),
            false => errors,
        })
    }

    impl World {
        fn fails(&mut self, place: u64, for_good: bool) {
            let failure = (refused(for_good), 50 * MS);
            let rejection = Rejection::default();
            self.lines.failed(place, failure, &rejection, self.now.mono);
        }

        fn is_over(&mut self, place: u64) -> bool {
            match self.step(place, false) {
                WaiterAction::Over(failure) => {
                    assert!(failure.is_hopeless(), "{failure:?}");
                    true
                }
                _ => false,
            }
        }
    }

    #[test]
    fn what_one_of_a_line_learns_ends_the_wait_of_all_and_what_may_pass_ends_none() {
        let mut world = world();
        let places = [0, 1, 2].map(|who| world.join(who, None));
        assert!(matches!(
            world.step(places[0], false),
            WaiterAction::Try(None)
        ));
        world.fails(places[0], false);
        assert!(world.lines.woken.is_empty());
        assert!(!places.iter().any(|place| world.is_over(*place)));
        // Now it would be told by other processes, and does not wait for ever to be.
        world.pass(50 * MS);
        assert!(matches!(
            world.step(places[0], false),
            WaiterAction::Park(_)
        ));
        world.pass(50 * MS);
        assert!(matches!(
            world.step(places[0], false),
            WaiterAction::Try(Some(_))
        ));
        world.fails(places[0], true);
        assert_eq!(world.lines.woken, [1, 2]);
        assert_eq!(world.release(), None, "they are about to go");
        assert!(places.iter().all(|place| world.is_over(*place)));
        // Who comes now asks by itself, as soon as the one before has left.
        let late = world.join(3, None);
        assert!(!world.is_over(late));
        for place in places {
            world.leave(place, false);
        }
        assert!(matches!(world.step(late, false), WaiterAction::Try(None)));
        world.leave(late, true);
        assert!(world.lines.lines.is_empty(), "nothing is kept of it");
    }

    #[test]
    fn who_is_just_asking_the_nodes_finds_out_by_itself() {
        let mut world = world();
        let [served, front, other] = [0, 1, 2].map(|who| world.join(who, None));
        assert_eq!(world.release(), Some((served, 0)));
        assert!(matches!(world.step(front, false), WaiterAction::Try(None)));
        world.fails(served, true);
        assert!(world.is_over(served) && world.is_over(other));
        world.fails(front, false);
        assert!(!world.is_over(front));
        world.leave(front, false);
        assert!(world.is_over(served));
        world.leave(served, false);
        world.leave(other, false);
        assert_eq!(world.lines.places(), 0);
    }

    #[test]
    fn who_was_in_the_queues_and_gives_up_leaves_them() {
        let mut world = world();
        let place = world.join_fair(1, Some(50 * MS));
        world.knocks_in_turn(place);
        world.fails(place, true);
        assert!(world.is_over(place), "though it has time");
        assert!(world.leave(place, false));
    }
}
