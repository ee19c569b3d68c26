//! Virtual threads that wait for a lock in their process's queue, as the real ones in `acquire` do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::client::{Doing, HANDED_OFF, RESOURCES};
use super::subscription::leave;
use super::{MS, NODE_TIMEOUT, SLACK, World, trace};
use crate::protocol::attempt::{Attempt, Rejection};
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::operation::{Answer, Op};
use crate::protocol::queue::Turn;
use crate::protocol::quorum::Ttl;
use crate::protocol::script::{Action, Key, Notify};
use crate::protocol::wait_queue::HandOff;
use crate::protocol::waiter::{AcquireRequest, Failure, PlainTry, WaiterAction};
use crate::token::Token;

/// How often a thread that must ask its program does so.
const ASK: u64 = 50 * MS;
/// A free lock with waiters is tried for within this time, if all subscriptions work: the longest settle delay (3 ms),
/// the longest head start (2 ms), and some messages of up to 2 ms each.
const PROMPT: u64 = 12 * MS;
/// The same time in slow worlds, where the pauses after split votes are longer.
const SLUGGISH: u64 = 2000 * MS;
/// With fair waiters: the one that was notified may have ended, so its turn has to end, and the others have to poll.
const TWO_TURNS: u64 = 600 * MS;
/// A fair waiter that arrived this much later does not go first: an allowance for round trips. The earlier one must have
/// been in the queues for the same time.
const LATER: u64 = 20 * MS;
/// An allowance for other pauses of a waiter that polls.
const BESIDES: u64 = 150 * MS + SLACK;

/// What a thread waits for.
pub(super) struct Wait {
    pub(super) resource: u8,
    request: AcquireRequest,
    place: Option<u64>,
    /// When it arrived, and until when its first attempt may go on.
    came: u64,
    soon: Instant,
    /// Since when it has been in the queues on all nodes, with subscriptions to all.
    queued: Option<u64>,
    tried: bool,
    was_here: bool,
    /// When its program stops the wait.
    gives_up: u64,
    /// The first try that another thread has made for it, and the answer.
    served: Option<usize>,
    mail: Option<Answer>,
    /// The hand-off gave no lock.
    vain: bool,
}

/// What follows a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// The queues are not involved.
    Nothing,
    Notify,
    Serve,
}

impl World {
    // ---- between threads and queues

    /// Wakes the threads that should look again.
    pub(super) fn wake_all(&mut self, c: usize) {
        let mut woken = std::mem::take(&mut self.clients[c].queues.woken);
        woken.sort_unstable();
        woken.dedup();
        for thread in woken {
            if let Doing::Parks(_) = self.clients[c].threads[thread].doing {
                let at = self.t + self.lag();
                self.clients[c].threads[thread].doing = Doing::Stands(at);
            }
        }
    }

    /// How long a thread takes until it runs.
    pub(super) fn lag(&mut self) -> u64 {
        match self.random.below(20) {
            0 if !self.conditions.faultless => self.random.below(20 * MS),
            0..8 => self.random.below(200),
            _ => 0,
        }
    }

    fn is_connected(&mut self, c: usize, resource: u8) -> bool {
        let collides = self.conditions.collides && self.random.chance(20);
        self.clients[c].here[usize::from(resource)] > 0 || collides
    }

    /// A thread has a lock from now on.
    pub(super) fn holds(&mut self, c: usize, thread: usize, resource: u8) {
        if !self.conditions.waits {
            return;
        }
        self.clients[c].here[usize::from(resource)] += 1;
        if let Some(wait) = self.clients[c].threads[thread].wait.take()
            && let Some(place) = wait.place
        {
            self.counts.waited += 1;
            let now = self.now(c);
            self.clients[c].queues.acquired(place, now);
            self.wake_all(c);
        }
    }

    pub(super) fn ends(&mut self, c: usize, resource: u8) {
        if self.conditions.waits {
            self.clients[c].here[usize::from(resource)] -= 1;
        }
    }

    fn notified_elsewhere(&mut self, c: usize, resource: u8) {
        if self.conditions.waits {
            let now = self.now(c);
            let name = Arc::from(&[resource][..]);
            self.clients[c].queues.notified_elsewhere(&name, now);
        }
    }

    // ---- releases

    /// The release of a lock, with a hand-off if there is a waiter here.
    pub(super) fn give_back(
        &mut self,
        c: usize,
        thread: usize,
        key: Key,
        token: usize,
        quiet: bool,
    ) {
        self.begin(c, thread);
        let resource = self.tokens[token].resource;
        self.order += 1;
        self.tokens[token].freed = Some(self.order);
        self.tokens[token].alone =
            self.conditions.waits && !self.conditions.fair && !self.waits_for(c, resource);
        let now = self.now(c);
        let mut after = After::Nothing;
        let mut tell = Notify::First;
        let mut next = None;
        if self.conditions.waits {
            after = After::Notify;
            if self.tokens[token].notified_elsewhere {
                self.notified_elsewhere(c, resource);
            }
            if !self.clients[c].queues.is_idle() && !self.conditions.fair {
                let handover = self.clients[c].queues.hand_off(&key.resource, now);
                trace!(self, "client {c} thread {thread}: {handover:?}");
                match handover {
                    HandOff::Notify(whom) => tell = whom,
                    HandOff::To {
                        waiter: place,
                        thread: next_thread,
                        ttl,
                        ..
                    } => {
                        after = After::Serve;
                        next = Some(self.serve(c, place, next_thread, ttl, resource, token));
                    }
                }
                self.wake_all(c);
            }
        }
        let tell = match after {
            After::Nothing | After::Notify if self.conditions.fair => {
                Notify::FirstAndReserve(turn())
            }
            After::Nothing | After::Notify => tell,
            After::Serve => Notify::None,
        };
        let op = Op::new(Action::Release(tell), key).only_write(quiet);
        self.clients[c].threads[thread].doing = Doing::Releases(token, quiet, after);
        // Both while the mutex is held: no thread leads in between.
        if let Some((next_thread, next)) = next {
            self.add(c, thread, op);
            return self.submit(c, HANDED_OFF + next_thread, next);
        }
        self.submit(c, thread, op);
    }

    /// The first try for a thread that waits.
    fn serve(
        &mut self,
        c: usize,
        place: u64,
        next_thread: usize,
        ttl: Ttl,
        resource: u8,
        old: usize,
    ) -> (usize, Op) {
        self.counts.handed_off += 1;
        self.in_turn(c, next_thread, place, resource);
        let (mut token, mut id) = self.draw(c, resource);
        if mutant(Mutant::HandOffReusesToken) {
            let mut bytes = [0; 20];
            bytes[..8].copy_from_slice(&(old as u64).to_le_bytes());
            (token, id) = (Token::from_bytes(bytes), old);
        }
        let name = Arc::from(&[resource][..]);
        let mut attempt = Attempt::new(name, ttl, None, None, Duration::from_micros(NODE_TIMEOUT));
        let op = attempt.op(token, self.clients[c].point(self.t));
        self.clients[c].queues.handed_off(place, attempt);
        self.begin(c, next_thread);
        if let Some(wait) = &mut self.clients[c].threads[next_thread].wait {
            wait.served = Some(id);
        }
        (next_thread, op)
    }

    /// Hand-offs go to the threads in the order of their arrival, once each, and never to a thread that must ask, whose
    /// wait is over, or that is about to leave.
    fn in_turn(&mut self, c: usize, next_thread: usize, place: u64, resource: u8) {
        let now = self.now(c);
        let over = |wait: &Wait| wait.request.end.is_some_and(|end| end <= now);
        let mut wrong = None;
        for (at, thread) in self.clients[c].threads.iter().enumerate() {
            let stands = matches!(thread.doing, Doing::Parks(_) | Doing::Stands(_));
            let Some(wait) = thread.wait.as_ref().filter(|wait| wait.place.is_some()) else {
                if at == next_thread {
                    wrong = Some("waits for nothing");
                }
                continue;
            };
            if at != next_thread {
                let same = wait.resource == resource && stands && wait.served.is_none();
                let goes = wait
                    .place
                    .is_some_and(|at| self.clients[c].queues.is_hopeless(at));
                let before =
                    wait.place < Some(place) && !wait.request.must_ask && !wait.vain && !goes;
                if same && before && !over(wait) {
                    wrong = Some("was not the first");
                }
            } else if wait.place != Some(place) || wait.resource != resource {
                wrong = Some("waits for something else");
            } else if wait.served.is_some() {
                wrong = Some("has a hand-off already");
            } else if wait.request.must_ask || over(wait) {
                wrong = Some("takes no hand-off");
            } else if !stands {
                wrong = Some("does not wait");
            }
        }
        if let Some(wrong) = wrong {
            self.violated(format!(
                "client {c}: thread {next_thread} gets a hand-off, but {wrong}"
            ));
        }
    }

    pub(super) fn after_release(&mut self, c: usize, resource: u8, after: After, told: bool) {
        let now = self.now(c);
        let name = Arc::from(&[resource][..]);
        let queues = &mut self.clients[c].queues;
        match after {
            After::Nothing => {}
            After::Notify if told || !queues.is_idle() => queues.released(&name, told, now),
            After::Notify => {}
            After::Serve => queues.wake(&name),
        }
        self.wake_all(c);
    }

    // ---- threads

    /// Waits for a lock.
    pub(super) fn wait(&mut self, c: usize, thread: usize, resource: u8, ttl: Ttl) {
        let now = self.now(c);
        let long = match self.random.below(10) {
            0 if self.conditions.fair => Some(0),
            0..3 => Some(self.random.below(50 * MS)),
            3..6 => Some(self.random.below(2000 * MS)),
            6 if !self.conditions.prompt => None,
            _ => Some(20_000 * MS),
        };
        let asks = self.random.chance(20);
        let soon = self.random.chance(70);
        let gives_up = match asks {
            true if soon => self.t + self.random.below(150 * MS),
            _ => u64::MAX,
        };
        let delays = [(5, 20), (1, 200), (100, 200)][self.random.pick(3)];
        let (min, max) = match self.conditions.prompt {
            true if self.conditions.sluggish => (4000, 8000),
            true => (300, 1000),
            false => delays,
        };
        let request = AcquireRequest {
            ttl,
            label: None,
            end: long.map(|long| now + Duration::from_micros(long)),
            must_ask: asks,
            retry_delay: (Duration::from_millis(min), Duration::from_millis(max)),
            // Some are not fair.
            turn: (self.conditions.fair && (self.conditions.prompt || !self.random.chance(20)))
                .then(turn),
        };
        let queues = &mut self.clients[c].queues;
        let joins = self.conditions.fair || !queues.is_idle() && queues.has_queue(&[resource], now);
        let was_here = !joins && self.is_connected(c, resource);
        self.clients[c].threads[thread].wait = Some(Wait {
            resource,
            request,
            place: None,
            came: self.t,
            soon: now + Duration::from_micros(NODE_TIMEOUT),
            queued: None,
            tried: false,
            was_here,
            gives_up,
            served: None,
            mail: None,
            vain: false,
        });
        if joins {
            return self.join(c, thread, None);
        }
        self.acquire(c, thread, resource, ttl);
    }

    fn join(&mut self, c: usize, thread: usize, tried: Option<PlainTry>) {
        let now = self.clients[c].point(self.t);
        let client = &mut self.clients[c];
        let Some(wait) = &mut client.threads[thread].wait else {
            return;
        };
        let name = Arc::from(&[wait.resource][..]);
        let place = client
            .queues
            .join(&name, thread, wait.request.clone(), tried, now);
        wait.place = Some(place);
        // An earlier release may be written after it has enqueued.
        let before =
            |history: &&mut super::TokenHistory| history.client == c && history.resource == name[0];
        let before = self.tokens.iter_mut().filter(before);
        before.for_each(|history| history.alone = false);
        trace!(
            self,
            "client {c} thread {thread} waits for {} as {place}", name[0]
        );
        self.clients[c].threads[thread].doing = Doing::Stands(self.t);
    }

    /// An attempt of a thread that waits gave no lock.
    pub(super) fn in_vain(
        &mut self,
        c: usize,
        thread: usize,
        failure: Failure,
        rejection: &Rejection,
    ) {
        let now = self.now(c);
        let Some(wait) = &self.clients[c].threads[thread].wait else {
            return;
        };
        let (request, resource, was_here) = (wait.request.clone(), wait.resource, wait.was_here);
        let pause = self.pause(&request, &failure);
        if let Some(place) = wait_place(&self.clients[c].threads[thread].wait) {
            self.is_queued(c, thread, rejection);
            self.clients[c]
                .queues
                .failed(place, (failure, pause), rejection, now);
            self.wake_all(c);
            self.clients[c].threads[thread].doing = Doing::Stands(self.t);
            return;
        }
        let here = self.is_connected(c, resource) || was_here;
        let over = |at: Instant| request.end.is_some_and(|end| at >= end);
        let for_nothing = !matches!(failure, Failure::Busy(_)) && over(now + pause);
        if over(now) || for_nothing || failure.is_hopeless() {
            self.clients[c].threads[thread].wait = None;
            let pause = self.rest();
            self.clients[c].threads[thread].doing = Doing::Idle(self.t + pause);
            return;
        }
        let tried = PlainTry {
            failure,
            pause,
            held_here: here,
        };
        self.join(c, thread, Some(tried));
    }

    fn pause(&mut self, request: &AcquireRequest, failure: &Failure) -> Duration {
        let (min, max) = request.retry_delay;
        let mut between = |min: Duration, max: Duration| {
            min + (max - min) / 1024 * u32::try_from(self.random.below(1025)).unwrap()
        };
        let pause = between(min, max);
        match failure {
            Failure::Unavailable(nodes) => nodes.retry_after().map_or(pause, |wait| {
                pause.min(wait.saturating_add(between(Duration::ZERO, min)))
            }),
            _ => pause,
        }
    }

    /// What a waiter does next.
    pub(super) fn stand(&mut self, c: usize, thread: usize) {
        let Some(wait) = &self.clients[c].threads[thread].wait else {
            return self.violated(format!("client {c}: thread {thread} is in no queue"));
        };
        let (resource, request) = (wait.resource, wait.request.clone());
        let gives_up = wait.gives_up <= self.t;
        let Some(place) = wait.place else {
            return self.violated(format!("client {c}: thread {thread} is no waiter"));
        };
        let here = self.is_connected(c, resource);
        let now = self.clients[c].point(self.t);
        let step = self.clients[c].queues.step(place, here, now);
        trace!(self, "client {c} thread {thread}: {step:?}");
        self.wake_all(c);
        match step {
            WaiterAction::Park(until) => {
                self.listen(c);
                let contends = self.clients[c].queues.is_polled_for(&[resource]);
                self.check(contends, || {
                    format!("client {c}: no thread polls for {resource}")
                });
                let mut until = self.clients[c].time(until).max(self.t + 1);
                if request.must_ask {
                    until = until.min(self.t + ASK);
                }
                if !self.conditions.prompt && self.random.chance(5) {
                    // A sleep may end for no reason.
                    until = until.min(self.t + self.random.below(5 * MS));
                }
                self.clients[c].threads[thread].doing = Doing::Parks(until);
            }
            WaiterAction::Try(_) if request.must_ask && gives_up => self.go(c, thread),
            WaiterAction::Try(entry) => {
                let over = request.end.is_some_and(|end| end <= now.mono);
                let wait = self.clients[c].threads[thread].wait.as_mut();
                let owed = wait.is_some_and(|wait| {
                    let first = !std::mem::replace(&mut wait.tried, true);
                    first || now.mono < wait.soon
                });
                self.check(!over || owed && self.conditions.fair, || {
                    format!("client {c}: thread {thread} tries after its time")
                });
                self.begin(c, thread);
                let name = Arc::from(&[resource][..]);
                let long = Duration::from_micros(NODE_TIMEOUT);
                let attempt = Attempt::new(name, request.ttl, None, entry, long);
                self.try_to_acquire(c, thread, attempt, resource);
            }
            WaiterAction::HandedOff(attempt) => self.take_hand_off(c, thread, attempt, resource),
            WaiterAction::GiveUp(_) => self.go(c, thread),
        }
    }

    /// Goes on with an attempt whose first try another thread has submitted.
    fn take_hand_off(&mut self, c: usize, thread: usize, attempt: Attempt, resource: u8) {
        let wait = self.clients[c].threads[thread].wait.as_mut();
        let (token, mail) = wait.map_or((None, None), |wait| {
            wait.vain = true;
            (wait.served.take(), wait.mail.take())
        });
        let Some(token) = token else {
            return self.violated(format!("client {c}: no hand-off for {thread}"));
        };
        self.clients[c].threads[thread].doing = Doing::Acquires(attempt, resource, token);
        if let Some(answer) = mail {
            self.answered(c, thread, answer);
        }
    }

    /// The sleep is over.
    pub(super) fn woken(&mut self, c: usize, thread: usize) {
        let wait = self.clients[c].threads[thread].wait.as_ref();
        let gives_up = wait.is_some_and(|wait| wait.request.must_ask && wait.gives_up <= self.t);
        if gives_up {
            return self.go(c, thread);
        }
        self.stand(c, thread);
    }

    /// Whether the program of a thread that pauses between two tries stops the wait. Then the thread leaves.
    pub(super) fn is_stopped(&mut self, c: usize, thread: usize) -> bool {
        let wait = self.clients[c].threads[thread].wait.as_ref();
        let gives_up = wait.is_some_and(|wait| wait.request.must_ask && wait.gives_up <= self.t);
        if gives_up {
            self.go(c, thread);
        }
        gives_up
    }

    /// Leaves the queue, without the lock.
    fn go(&mut self, c: usize, thread: usize) {
        self.counts.gave_up += 1;
        let at = self.t + self.lag();
        self.clients[c].threads[thread].doing = Doing::Leaves(Some(at));
    }

    /// `left`: its process has left the queues.
    pub(super) fn gone(&mut self, c: usize, thread: usize, left: bool) {
        let wait = self.clients[c].threads[thread].wait.as_ref();
        let fair = wait.is_some_and(|wait| wait.request.turn.is_some());
        if let Some((place, resource)) = wait.and_then(|wait| Some((wait.place?, wait.resource))) {
            let now = self.now(c);
            let queues = &mut self.clients[c].queues;
            let channel = match left {
                false => queues.give_up(place, now),
                true => {
                    queues.dequeued(place, now);
                    None
                }
            };
            self.wake_all(c);
            trace!(self, "client {c} thread {thread} goes: {channel:?}");
            if let Some(channel) = channel {
                self.begin(c, thread);
                self.clients[c].threads[thread].doing = Doing::Leaves(None);
                return self.submit(c, thread, leave(resource, channel, fair));
            }
        }
        self.clients[c].threads[thread].wait = None;
        let pause = self.rest();
        self.clients[c].threads[thread].doing = Doing::Idle(self.t + pause);
    }

    /// The answer to a try that another thread has made for this one.
    pub(super) fn served(&mut self, c: usize, thread: usize, answer: Answer) {
        let one = &mut self.clients[c].threads[thread];
        let waits = one.wait.as_mut().filter(|wait| wait.served.is_some());
        match (&one.doing, waits) {
            (Doing::Stands(_) | Doing::Parks(_), Some(wait)) => {
                wait.mail = Some(answer);
                let at = self.t + self.lag();
                self.clients[c].threads[thread].doing = Doing::Stands(at);
            }
            (Doing::Acquires(..), None) => self.answered(c, thread, answer),
            _ => self.violated(format!(
                "client {c}: thread {thread} had a hand-off, and has left"
            )),
        }
    }

    // ---- order

    /// After a denial: it waits in the queues, if it is subscribed to all nodes.
    fn is_queued(&mut self, c: usize, thread: usize, rejection: &Rejection) {
        let all = self.servers.len();
        let queued = rejection
            .lock_infos
            .iter()
            .filter(|info| info.queued)
            .count()
            == all;
        let hears = self.is_subscribed_to_all(c);
        let t = self.t;
        if let Some(wait) = &mut self.clients[c].threads[thread].wait {
            wait.queued = match queued && hears {
                true => wait.queued.or(Some(t)),
                false => None,
            };
        }
    }

    /// No waiter goes before one that arrived earlier, in worlds without faults in which the nodes agree on the arrivals.
    pub(super) fn in_order(&mut self, c: usize, thread: usize) {
        let (t, one) = (self.t, self.servers.len() == 1);
        let Some(wait) = &self.clients[c].threads[thread].wait else {
            return;
        };
        let orderly =
            self.conditions.prompt && self.conditions.orderly && !self.conditions.sluggish;
        if !self.conditions.fair || !orderly || self.clients[c].has_hung() {
            return;
        }
        let (resource, came) = (wait.resource, self.came(c, wait));
        let mut before = None;
        for (other, client) in self.clients.iter().enumerate() {
            if client.has_hung() {
                continue;
            }
            let agree = one || client.is_punctual() && self.clients[c].is_punctual();
            for wait in client.threads.iter().filter_map(|one| one.wait.as_ref()) {
                let queued = wait.queued.is_some_and(|since| since + LATER < t);
                let earlier = self.came(other, wait) + LATER < came;
                if other != c && wait.resource == resource && queued && earlier && agree {
                    before = Some(other);
                }
            }
        }
        self.counts.in_order += 1;
        if let Some(other) = before {
            self.violated(format!(
                "client {c} goes before client {other}, which came earlier"
            ));
        }
    }

    /// When a thread came: by its own clock, unless there is one node.
    fn came(&self, c: usize, wait: &Wait) -> u64 {
        match self.servers.len() {
            1 => wait.came,
            _ => self.clients[c].wall(wait.came),
        }
    }

    // ---- no free lock while all waiters sleep

    /// Whether any thread of a client that is alive does something about a resource, but sleep.
    fn is_at_work(&self, resource: u8) -> bool {
        let of = |token: usize| self.tokens[token].resource;
        let clients = self.clients.iter().filter(|client| !client.dead);
        let mut threads = clients.flat_map(|client| &client.threads);
        threads.any(|thread| match &thread.doing {
            Doing::Acquires(_, what, _) | Doing::Pauses(_, what, _) => *what == resource,
            Doing::Holds(held, _) | Doing::Extends(held, _) | Doing::Fences(held, ..) => {
                of(held.token) == resource
            }
            Doing::Releases(token, ..) => of(*token) == resource,
            Doing::Leaves(_) => wait_for(&thread.wait) == Some(resource),
            Doing::Parks(_) | Doing::Stands(_) => {
                let wait = thread.wait.as_ref();
                wait.is_some_and(|wait| wait.resource == resource && wait.served.is_some())
            }
            Doing::Idle(_) | Doing::Stopped => false,
        })
    }

    /// Whether a thread of a client is in the queue for a resource.
    pub(super) fn waits_for(&self, c: usize, resource: u8) -> bool {
        let waits = |wait: &Wait| wait.resource == resource && wait.place.is_some();
        let mut threads = self.clients[c].threads.iter();
        threads.any(|thread| thread.wait.as_ref().is_some_and(waits))
    }

    /// The time within which all waiters find out by themselves that a lock is free. `None`: there are none.
    fn longest_poll(&self, resource: u8) -> Option<u64> {
        let replies_flowing = self.conditions.prompt;
        let well = |client: &&super::Client| !(client.dead || replies_flowing && client.has_hung());
        let clients = self.clients.iter().filter(well);
        let threads = clients.flat_map(|client| &client.threads);
        let waits = threads.filter_map(|thread| thread.wait.as_ref());
        let waits = waits.filter(|wait| wait.resource == resource && wait.place.is_some());
        let poll = |wait: &Wait| {
            let longest = (wait.request.retry_delay.1 * 8).max(Duration::from_secs(1));
            let longest = u64::try_from(longest.as_micros()).unwrap();
            // In fair worlds, some waiters are not fair.
            wait.request.turn.map_or(longest + BESIDES, |_| TWO_TURNS)
        };
        waits.map(poll).max()
    }

    /// A lock with waiters is not free for long.
    pub(super) fn watch(&mut self) {
        if !self.conditions.waits || !self.conditions.prompt && !self.quiet {
            return;
        }
        for resource in 0..RESOURCES {
            let at = usize::from(resource);
            // A waiter that hangs costs the fair ones a turn.
            let stands = |client: &super::Client| {
                !client.dead
                    && client.stands(self.t)
                    && !(self.conditions.fair && self.conditions.prompt)
            };
            let stands = self.clients.iter().any(stands);
            let locked = |server: &super::Server| server.has_key(self.t, resource);
            let excused = self.excused[at] && !self.conditions.fair;
            let told = !self.conditions.prompt || self.all_subscribed() && !excused;
            let poll = self.longest_poll(resource);
            let poll = poll.filter(|_| {
                told && !stands && !self.servers.iter().any(locked) && !self.is_at_work(resource)
            });
            let Some(poll) = poll else {
                self.idle[at] = None;
                continue;
            };
            let since = *self.idle[at].get_or_insert(self.t);
            let most = match self.conditions.prompt {
                true if self.conditions.sluggish => SLUGGISH,
                true if !self.conditions.fair => PROMPT,
                _ => poll,
            };
            let time = self.t - since;
            if self.conditions.prompt && !self.conditions.sluggish {
                self.counts.slept = self.counts.slept.max(time);
            }
            self.check(time <= most, || {
                format!("{resource} has been free for {time} us, and has waiters")
            });
        }
    }

    /// The waiters, queues and subscriptions that are left when all is quiet.
    pub(super) fn still_waits(&self) -> Option<String> {
        for (c, client) in self.clients.iter().enumerate() {
            if client.dead {
                continue;
            }
            if client.threads.iter().any(|thread| thread.wait.is_some()) {
                return Some(format!("client {c}: a thread still waits"));
            }
            if client.queues.waiters() > 0 {
                return Some(format!("client {c}: a waiter is left"));
            }
            if !client.listeners.is_empty() {
                return Some(format!("client {c}: a subscription is left"));
            }
        }
        None
    }

    // ---- processes that are killed

    pub(super) fn kill(&mut self, c: usize) {
        let alive = self.clients.iter().filter(|client| !client.dead);
        if alive.count() < 2 || self.clients[c].dead {
            return;
        }
        trace!(self, "client {c} is killed");
        self.counts.killed += 1;
        self.clients[c].die();
        self.beliefs.retain(|belief| belief.client != c);
        let left = |history: &&mut super::TokenHistory| history.client == c;
        self.tokens
            .iter_mut()
            .filter(left)
            .for_each(|history| history.leaked = true);
        self.cut_all(|connection| connection.client == c);
        let gone = self.conditions.prompt || self.random.chance(50);
        self.cut_subscriptions(gone, |client, _| client == c);
        // If the client was notified, another one finds the lock free by the next release or by its poll.
        for resource in 0..RESOURCES {
            let locked = |server: &super::Server| server.has_key(self.t, resource);
            let free = !self.servers.iter().all(locked);
            self.excused[usize::from(resource)] |= free;
        }
    }
}

pub(super) fn wait_for(wait: &Option<Wait>) -> Option<u8> {
    wait.as_ref().map(|wait| wait.resource)
}

fn wait_place(wait: &Option<Wait>) -> Option<u64> {
    wait.as_ref().and_then(|wait| wait.place)
}

pub(super) fn turn() -> Turn {
    Turn::new(Duration::from_micros(NODE_TIMEOUT))
}
