//! Virtual threads that acquire and release locks: they carry out what the calls decide, as the real ones do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::client::{Doing, HANDED_OFF, Held, PROBED, RESOURCES, Thread, token_id};
use super::{Count, MS, NODE_TIMEOUT, SLACK, World, trace};
use crate::error::Error;
use crate::protocol::acquire::{Ended, Step};
use crate::protocol::claims::Claiming;
use crate::protocol::held_here::HeldHere;
use crate::protocol::kind::Kind;
use crate::protocol::lease::Lease;
use crate::protocol::operation::{Answer, Op, Outcome};
use crate::protocol::process::Process;
use crate::protocol::queue::Turn;
use crate::protocol::quorum::Ttl;
use crate::protocol::release::{Release, Submit};
use crate::protocol::script::{Action, Key};
use crate::protocol::wait_queue::WaitQueues;
use crate::protocol::waiter::{AcquireRequest, Failure};
use crate::token::Token;

/// A free lock with waiters is tried for within this time, if all subscriptions work: the longest settle delay (3 ms),
/// the longest head start (2 ms), and some messages of up to 2 ms each. After wrong notifications, the time begins when
/// the waiters follow notifications again.
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

/// A call of a thread that acquires a lock.
pub(super) struct Call {
    acquire: Claiming<usize>,
    request: AcquireRequest,
    pub(super) resource: u8,
    stage: Stage,
    /// When it began, and until when its first attempt may go on.
    came: u64,
    soon: Instant,
    /// Since when it has been in the queues on all nodes, with subscriptions to all.
    queued: Option<u64>,
    /// When its program stops the wait.
    gives_up: u64,
    /// The number of attempts that were seen.
    attempts: u32,
    /// The first try that another thread has made for it, and the answer.
    served: Option<usize>,
    mail: Option<Answer>,
    /// The hand-off gave no lock.
    vain: bool,
}

#[derive(Clone, Copy)]
enum Stage {
    /// Decides then what to do; or sleeps until then, and may be woken; or sleeps in any case.
    Stands(u64),
    Parks(u64),
    Pauses(u64),
    /// With this token.
    Tries(usize),
    Leaves,
    /// What was granted too late.
    Releases,
}

impl Call {
    /// When its thread goes on by itself.
    pub(super) fn due(&self) -> Option<u64> {
        match self.stage {
            Stage::Stands(at) | Stage::Parks(at) | Stage::Pauses(at) => Some(at),
            Stage::Tries(_) | Stage::Leaves | Stage::Releases => None,
        }
    }

    /// It is for this name, perhaps among others.
    fn concerns(&self, resource: u8) -> bool {
        let names = self.request.kind.names().unwrap_or_default();
        self.resource == resource || names.iter().any(|name| **name == [resource])
    }

    /// It is in the queue of its process.
    fn waits(&self) -> bool {
        self.acquire.place().is_some()
    }

    /// Its thread sleeps, or is about to look what to do.
    fn sleeps(&self) -> bool {
        matches!(self.stage, Stage::Stands(_) | Stage::Parks(_))
    }

    fn is_over(&self, now: Instant) -> bool {
        self.request.end.is_some_and(|end| end <= now)
    }
}

/// A release, and the call that goes on after it.
pub(super) struct Releasing {
    release: Release,
    pub(super) token: usize,
    handed_off: bool,
    pub(super) call: Option<Box<Call>>,
}

/// A thread, and what its calls need of its process.
struct Local<'a> {
    world: &'a mut World,
    c: usize,
    thread: usize,
}

impl Process for Local<'_> {
    type Thread = usize;

    fn thread(&mut self, _: &Arc<[u8]>) -> usize {
        self.thread
    }

    fn token(&mut self, resource: &[u8]) -> Result<Token, Error> {
        // Now and then the operating system gives no random bytes.
        match self.world.quiet || !self.world.order.is_multiple_of(128) {
            true => Ok(self.world.draw(self.c, resource[0])),
            false => Err(Error::random(getrandom::Error::UNSUPPORTED)),
        }
    }

    fn jitter(&mut self, min: Duration, max: Duration) -> Duration {
        self.world.random.between(min, max)
    }

    fn is_idle(&mut self) -> bool {
        self.world.clients[self.c].queues.is_idle()
    }

    fn queues<T>(&mut self, work: impl FnOnce(&mut WaitQueues<usize>) -> T) -> T {
        let result = work(&mut self.world.clients[self.c].queues);
        self.world.wake_all(self.c);
        result
    }

    fn held_here(&self) -> &HeldHere {
        &self.world.clients[self.c].held_here
    }
}

impl World {
    // ---- between threads and queues

    /// Wakes the threads that should look again.
    pub(super) fn wake_all(&mut self, c: usize) {
        let mut woken = std::mem::take(&mut self.clients[c].queues.woken);
        woken.sort_unstable();
        woken.dedup();
        for thread in woken {
            let at = self.t + self.lag();
            if let Doing::Acquires(call) = &mut self.clients[c].threads[thread].doing
                && let Stage::Parks(_) = call.stage
            {
                call.stage = Stage::Stands(at);
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

    // ---- releases

    /// The release of a lock, with a hand-off if there is a waiter here.
    pub(super) fn give_back(
        &mut self,
        c: usize,
        thread: usize,
        held: Held,
        only_write: bool,
        call: Option<Box<Call>>,
    ) {
        self.begin(c, thread);
        let (Held { token, lease }, now) = (held, self.clients[c].clocks.point(self.t));
        let resource = self.checks.tokens[token].resource;
        self.order += 1;
        self.checks.tokens[token].freed = Some(self.order);
        // What was granted too late is released by a thread that waits itself.
        let waits = call.as_ref().is_some_and(|call| call.waits())
            || (0..RESOURCES)
                .any(|name| self.checks.tokens[token].covers(name) && self.waits_for(c, name));
        self.checks.tokens[token].alone = self.conditions.waits && !self.conditions.fair && !waits;
        let release = Release {
            notified_elsewhere: lease.notified_elsewhere,
            key: lease.key,
            fair: self.conditions.fair,
            only_write,
            node_timeout: Duration::from_micros(NODE_TIMEOUT),
        };
        let Submit { op, next } = release.submit(&mut self.local(c, thread), || now);
        self.clients[c].threads[thread].doing = Doing::Releases(Releasing {
            release,
            token,
            handed_off: next.is_some(),
            call,
        });
        let Some((next_op, next_thread)) = next else {
            return self.submit(c, thread, op);
        };
        self.counts[Count::HandedOff] += 1;
        self.in_turn(c, next_thread, resource);
        self.begin(c, next_thread);
        if let Doing::Acquires(call) = &mut self.clients[c].threads[next_thread].doing {
            call.served = Some(token_id(&next_op.key.token));
        }
        // Both while the mutex is held: no thread leads in between.
        self.add(c, thread, op);
        self.submit(c, HANDED_OFF + next_thread, next_op);
    }

    pub(super) fn given_back(&mut self, c: usize, thread: usize, done: Releasing, answer: Answer) {
        self.in_time(c, thread, NODE_TIMEOUT);
        let only_write = done.release.only_write;
        self.released(c, done.token, only_write, &answer.outcome);
        let (now, mut local) = (self.clients[c].clocks.point(self.t), self.local(c, thread));
        let release = done.release;
        release.answered(done.handed_off, answer, &mut local, || now);
        match done.call {
            Some(call) => self.go_on(c, thread, call),
            None => self.rests(c, thread),
        }
    }

    /// Hand-offs go to the threads in the order of their arrival, once each, and never to a thread that must ask, whose
    /// wait is over, or that is about to leave.
    fn in_turn(&mut self, c: usize, next_thread: usize, resource: u8) {
        let (client, now) = (&self.clients[c], self.now(c));
        let call = |thread: &'_ usize| client.threads[*thread].call().filter(|call| call.waits());
        let goes = |call: &Call| {
            let place = call.acquire.place();
            place.is_some_and(|place| client.queues.is_hopeless(place))
        };
        let wrong = match call(&next_thread) {
            None => Some("waits for nothing"),
            Some(call) if call.resource != resource => Some("waits for something else"),
            Some(call) if call.served.is_some() => Some("has a hand-off already"),
            Some(call) if call.request.must_ask || call.is_over(now) => Some("takes no hand-off"),
            Some(call) if !call.sleeps() => Some("does not wait"),
            Some(next) => {
                let others = (0..client.threads.len()).filter(|other| *other != next_thread);
                let mut others = others.filter_map(|other| call(&other));
                let overtaken = others.any(|call| {
                    let same = call.resource == resource && call.sleeps() && call.served.is_none();
                    let before = call.acquire.place() < next.acquire.place();
                    let may = !call.request.must_ask && !call.vain && !call.is_over(now);
                    let may = may && call.request.kind.is_plain();
                    same && before && may && !goes(call)
                });
                overtaken.then_some("was not the first")
            }
        };
        if let Some(wrong) = wrong {
            self.violated(format!(
                "client {c}: thread {next_thread} gets a hand-off, but {wrong}"
            ));
        }
    }

    // ---- calls

    fn local(&mut self, c: usize, thread: usize) -> Local<'_> {
        Local {
            world: self,
            c,
            thread,
        }
    }

    /// One attempt to acquire.
    pub(super) fn try_once(&mut self, c: usize, thread: usize, resource: u8, ttl: Ttl) {
        let request = AcquireRequest {
            kind: self.kind(resource),
            ttl,
            label: None,
            end: Some(self.now(c)),
            must_ask: false,
            retry_delay: (Duration::ZERO, Duration::ZERO),
            turn: None,
        };
        self.acquire(c, thread, resource, request, u64::MAX);
    }

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
        let must_ask = self.random.chance(20);
        let soon = self.random.chance(70);
        let gives_up = match must_ask {
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
            kind: self.kind(resource),
            ttl,
            label: None,
            end: long.map(|long| now + Duration::from_micros(long)),
            must_ask,
            retry_delay: (Duration::from_millis(min), Duration::from_millis(max)),
            // Some are not fair.
            turn: (self.conditions.fair && (self.conditions.prompt || !self.random.chance(20)))
                .then(turn),
        };
        self.acquire(c, thread, resource, request, gives_up);
    }

    fn acquire(
        &mut self,
        c: usize,
        thread: usize,
        resource: u8,
        request: AcquireRequest,
        gives_up: u64,
    ) {
        let name = Arc::from(&[resource][..]);
        let now = self.clients[c].clocks.point(self.t);
        let node_timeout = Duration::from_micros(NODE_TIMEOUT);
        // Several names are soon claimed one by one.
        let turn = match request.kind.names() {
            Some(_) => Duration::from_micros(self.random.below(40 * MS)),
            None => Duration::ZERO,
        };
        let (nodes, several) = (self.servers.len(), request.clone());
        let call = Call {
            acquire: Claiming::new(name, several, nodes, node_timeout, turn, now),
            request,
            resource,
            stage: Stage::Stands(self.t),
            came: self.t,
            soon: now.mono + node_timeout,
            queued: None,
            gives_up,
            attempts: 0,
            served: None,
            mail: None,
            vain: false,
        };
        self.go_on(c, thread, Box::new(call));
    }

    /// What the thread of a call does next.
    pub(super) fn go_on(&mut self, c: usize, thread: usize, mut call: Box<Call>) {
        let now = self.clients[c].clocks.point(self.t);
        let step = call.acquire.next(&mut self.local(c, thread), now);
        trace!(self, "client {c} thread {thread}: {}", shown(&step));
        let at = |world: &World, until| world.clients[c].clocks.time(until).max(world.t + 1);
        match step {
            Step::Ask => {
                if call.gives_up <= self.t {
                    self.counts[Count::GaveUp] += 1;
                    call.acquire.cancel(&mut self.local(c, thread));
                }
                return self.go_on(c, thread, call);
            }
            Step::Try(op) => {
                if matches!(op.action, Action::AcquireOrEnqueue(..)) {
                    self.enqueues(c, &op.key);
                }
                return self.tries(c, thread, call, op);
            }
            Step::TakeOver(_) => return self.take_over(c, thread, call),
            Step::Run(op) => {
                self.begin(c, thread);
                if matches!(op.action, Action::Repair(_)) {
                    self.refills(token_id(&op.key.token), &op);
                }
                call.stage = Stage::Leaves;
                self.clients[c].threads[thread].doing = Doing::Acquires(call);
                return self.submit(c, thread, op);
            }
            Step::Park(until) => call.stage = Stage::Parks(self.park(c, &call, at(self, until))),
            Step::Pause(until) => call.stage = Stage::Pauses(at(self, until)),
            Step::Release(lease) => {
                if call.request.kind.names().is_none() {
                    self.counts[Count::TooSlow] += 1;
                }
                call.stage = Stage::Releases;
                let token = token_id(&lease.key.token);
                return self.give_back(c, thread, Held { token, lease }, true, Some(call));
            }
            Step::Done(Ok(lease)) => return self.acquired(c, thread, &call, lease),
            Step::Done(Err(ended)) => return self.gave_up(c, thread, &call, &ended),
        }
        self.clients[c].threads[thread].doing = Doing::Acquires(call);
    }

    /// An earlier release may be written after a waiter of its process has enqueued.
    fn enqueues(&mut self, c: usize, key: &Key) {
        for name in key.all_names() {
            let before =
                |history: &&mut super::TokenHistory| history.client == c && history.covers(name[0]);
            let before = self.checks.tokens.iter_mut().filter(before);
            before.for_each(|history| history.alone = false);
        }
    }

    /// Until when a thread sleeps.
    fn park(&mut self, c: usize, call: &Call, until: u64) -> u64 {
        self.listen(c);
        let contends = self.clients[c].queues.is_polled_for(call.acquire.line());
        self.check(contends, || {
            format!("client {c}: no thread polls for {}", call.resource)
        });
        let waits_for = usize::from(call.acquire.resource()[0]);
        let in_order = call.acquire.claimed().all(|name| name < waits_for);
        self.check(in_order, || {
            format!("client {c}: waits for {waits_for}, and holds a later name")
        });
        match !self.conditions.prompt && self.random.chance(5) {
            // A sleep may end for no reason.
            true => until.min(self.t + self.random.below(5 * MS)),
            false => until,
        }
    }

    fn tries(&mut self, c: usize, thread: usize, mut call: Box<Call>, op: Op) {
        if call.acquire.attempts() > call.attempts {
            self.begin(c, thread);
            let now = self.now(c);
            let owed = call.attempts == 0 || call.request.turn.is_some() && now < call.soon;
            self.check(!call.is_over(now) || owed, || {
                format!("client {c}: thread {thread} tries after its time")
            });
            let stopped = call.request.must_ask && call.gives_up <= self.t;
            self.check(!stopped, || {
                format!("client {c}: thread {thread} tries, and its program has not been asked")
            });
        }
        if matches!(op.key.kind, Kind::Write(_)) && call.request.kind.names().is_some() {
            self.counts[Count::Claims] += 1;
        }
        call.attempts = call.acquire.attempts();
        self.checks.tokens[token_id(&op.key.token)].kind = op.key.kind.clone();
        call.stage = Stage::Tries(token_id(&op.key.token));
        self.clients[c].threads[thread].doing = Doing::Acquires(call);
        self.submit(c, thread, op);
    }

    /// Goes on with an attempt whose first try another thread has submitted.
    fn take_over(&mut self, c: usize, thread: usize, mut call: Box<Call>) {
        let (token, mail) = (call.served.take(), call.mail.take());
        let Some(token) = token else {
            return self.violated(format!("client {c}: no hand-off for {thread}"));
        };
        call.vain = true;
        call.attempts = call.acquire.attempts();
        call.stage = Stage::Tries(token);
        self.clients[c].threads[thread].doing = Doing::Acquires(call);
        if let Some(answer) = mail {
            self.answered(c, thread, answer);
        }
    }

    /// The answer to a try that another thread has made for this one.
    pub(super) fn served(&mut self, c: usize, thread: usize, answer: Answer) {
        let at = self.t + self.lag();
        match &mut self.clients[c].threads[thread].doing {
            Doing::Acquires(call) if call.served.is_some() => {
                call.mail = Some(answer);
                call.stage = Stage::Stands(at);
            }
            Doing::Acquires(_) => self.answered(c, thread, answer),
            _ => self.violated(format!(
                "client {c}: thread {thread} had a hand-off, and has left"
            )),
        }
    }

    /// The answer to what a call has submitted.
    pub(super) fn call_answered(
        &mut self,
        c: usize,
        thread: usize,
        mut call: Box<Call>,
        answer: Answer,
    ) {
        let now = self.clients[c].clocks.point(self.t);
        let Stage::Tries(token) = call.stage else {
            let mut local = self.local(c, thread);
            call.acquire.answered(answer, &mut local, now);
            return self.go_on(c, thread, call);
        };
        self.try_is_sound(c, token, &answer);
        self.is_queued(c, &mut call, &answer);
        let soon = !self.conditions.sluggish
            && now.mono < answer.begun + Duration::from_micros(NODE_TIMEOUT / 2);
        let first = self.conditions.faultless && soon && call.acquire.is_first_try();
        let (no, yes) = match &answer.outcome {
            Outcome::Yes(_) => (false, true),
            outcome => (matches!(outcome, Outcome::No), false),
        };
        call.acquire
            .answered(answer, &mut self.local(c, thread), now);
        let again = call.acquire.is_between_tries();
        match (no, again) {
            _ if yes => {}
            (true, true) => self.counts[Count::Split] += 1,
            (false, true) => self.counts[Count::Second] += 1,
            (true, false) => {
                self.counts[Count::Denied] += 1;
                // A contender that has a vote has met another one, and tries again for a time.
                let voted = self.checks.tokens[token].on.granted;
                self.check(!first || voted.is_empty(), || {
                    format!("client {c}: {token} is denied, but {voted:?} granted it")
                });
            }
            (false, false) => {
                self.counts[Count::Unavailable] += 1;
                let excused = !self.conditions.faultless || self.clients[c].clocks.has_hung();
                self.check(excused, || {
                    format!("client {c}: too few answers, and nothing is wrong")
                });
            }
        }
        if !again {
            self.in_time(c, thread, 2 * NODE_TIMEOUT);
        }
        if !again && !yes && call.waits() {
            // Others may act before its thread goes on.
            call.stage = Stage::Stands(self.t + self.lag());
            self.clients[c].threads[thread].doing = Doing::Acquires(call);
            return;
        }
        self.go_on(c, thread, call);
    }

    fn acquired(&mut self, c: usize, thread: usize, call: &Call, lease: Lease) {
        let token = token_id(&lease.key.token);
        self.granted(c, thread, token, &lease);
        self.in_order(c, call);
        self.counts[Count::Waited] += u64::from(call.attempts > 1 || call.vain);
        let until = self.t + self.hold();
        self.forsake_about(c, until);
        self.clients[c].threads[thread].doing = Doing::Holds(Held { token, lease }, until);
    }

    fn gave_up(&mut self, c: usize, thread: usize, call: &Call, ended: &Ended) {
        // There are no other contenders.
        self.checks.probes_failed += u32::from(call.resource >= PROBED);
        // A thread behind others in the queue need not ask: they do.
        let asked = call.attempts > 0 || self.waits_for(c, call.resource);
        self.check(
            asked || !matches!(ended, Ended::Failed(Failure::Busy(_))),
            || format!("client {c}: thread {thread} is denied, and no node was asked"),
        );
        self.rests(c, thread);
    }

    pub(super) fn rests(&mut self, c: usize, thread: usize) {
        let pause = self.rest();
        self.clients[c].threads[thread].doing = Doing::Idle(self.t + pause);
    }

    // ---- order

    /// After a denial: it waits in the queues, if it is subscribed to all nodes.
    fn is_queued(&mut self, c: usize, call: &mut Call, answer: &Answer) {
        let infos = answer.lock_infos.iter();
        let queued = infos.filter(|info| info.queued).count() == self.servers.len();
        call.queued = match queued && self.is_subscribed_to_all(c) {
            true => call.queued.or(Some(self.t)),
            false => None,
        };
    }

    /// No waiter goes before one that arrived earlier, in worlds without faults in which the nodes agree on the arrivals.
    fn in_order(&mut self, c: usize, call: &Call) {
        let (t, one) = (self.t, self.servers.len() == 1);
        if call.request.turn.is_none() {
            return;
        }
        let orderly =
            self.conditions.prompt && self.conditions.orderly && !self.conditions.sluggish;
        if !self.conditions.fair || !orderly || self.clients[c].clocks.has_hung() {
            return;
        }
        let (resource, came) = (call.resource, self.came(c, call));
        let mut before = None;
        for (other, client) in self.clients.iter().enumerate() {
            if client.clocks.has_hung() {
                continue;
            }
            let agree = one || client.clocks.is_punctual() && self.clients[c].clocks.is_punctual();
            for wait in client.threads.iter().filter_map(Thread::call) {
                let queued = wait.queued.is_some_and(|since| since + LATER < t);
                let earlier = self.came(other, wait) + LATER < came;
                if other != c && wait.resource == resource && queued && earlier && agree {
                    before = Some(other);
                }
            }
        }
        self.counts[Count::InOrder] += 1;
        if let Some(other) = before {
            self.violated(format!(
                "client {c} goes before client {other}, which came earlier"
            ));
        }
    }

    /// When a thread came: by its own clock, unless there is one node.
    fn came(&self, c: usize, wait: &Call) -> u64 {
        match self.servers.len() {
            1 => wait.came,
            _ => self.clients[c].clocks.wall(wait.came),
        }
    }

    // ---- no free lock while all waiters sleep

    /// Whether any thread of a client that is alive does something about a resource, but sleep.
    fn is_at_work(&self, resource: u8) -> bool {
        let of = |token: usize| self.checks.tokens[token].resource;
        let clients = self.clients.iter().filter(|client| !client.dead);
        let mut threads = clients.flat_map(|client| &client.threads);
        threads.any(|thread| match &thread.doing {
            Doing::Acquires(call) => {
                call.concerns(resource) && (!call.sleeps() || call.served.is_some())
            }
            Doing::Holds(held, _) | Doing::Extends(held, _) | Doing::Fences(held, ..) => {
                of(held.token) == resource
            }
            Doing::Keeps(keeping) => of(keeping.token()) == resource,
            Doing::Releases(releasing) => of(releasing.token) == resource,
            Doing::Idle(_) | Doing::Shortens(_) | Doing::Stopped => false,
        })
    }

    /// Whether a thread of a client is in the queue for a resource.
    pub(super) fn waits_for(&self, c: usize, resource: u8) -> bool {
        let waits = |call: &Call| call.concerns(resource) && call.waits();
        let mut threads = self.clients[c].threads.iter();
        threads.any(|thread| thread.call().is_some_and(waits))
    }

    /// The time within which all waiters find out by themselves that a lock is free. `None`: there are none.
    fn longest_poll(&self, resource: u8) -> Option<u64> {
        let replies_flowing = self.conditions.prompt;
        let well =
            |client: &&super::Client| !(client.dead || replies_flowing && client.clocks.has_hung());
        let clients = self.clients.iter().filter(well);
        let threads = clients.flat_map(|client| &client.threads);
        let waits = threads.filter_map(Thread::call);
        let locked = |name: &Arc<[u8]>| {
            let excused = replies_flowing && self.is_excused(usize::from(name[0]));
            excused || self.servers.iter().any(|one| one.has_key(self.t, name[0]))
        };
        // What waits for several names can use none of them while another one is taken, or no process may know that it is
        // free.
        let could = |call: &&Call| {
            let names = call.request.kind.names().unwrap_or_default();
            !names.iter().any(locked)
        };
        let waits = waits.filter(|call| call.concerns(resource) && call.waits());
        let waits = waits.filter(could);
        let poll = |wait: &Call| {
            let longest = (wait.request.retry_delay.1 * 8).max(Duration::from_secs(1));
            let longest = u64::try_from(longest.as_micros()).unwrap();
            // In fair worlds, some waiters are not fair.
            wait.request.turn.map_or(longest + BESIDES, |_| TWO_TURNS)
        };
        waits.map(poll).max()
    }

    /// Whether the process that was notified may be dead, and no other one will be.
    fn is_excused(&self, resource: usize) -> bool {
        self.checks.idle[resource].excused && !self.conditions.fair
    }

    /// Before then some waiter follows no notification, since those before were wrong.
    fn cautious_until(&self, resource: u8) -> u64 {
        let clients = self.clients.iter().filter(|client| !client.dead);
        let until = clients.flat_map(|client| {
            let until = client.queues.cautious_until(&[resource]);
            until.map(|until| client.clocks.time(until))
        });
        until.max().unwrap_or(0)
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
                    && client.clocks.stands(self.t)
                    && !(self.conditions.fair && self.conditions.prompt)
            };
            let stands = self.clients.iter().any(stands);
            let locked = |server: &super::Server| server.has_key(self.t, resource);
            let told = !self.conditions.prompt || self.all_subscribed() && !self.is_excused(at);
            let poll = self.longest_poll(resource);
            let poll = poll.filter(|_| {
                told && !stands && !self.servers.iter().any(locked) && !self.is_at_work(resource)
            });
            let Some(poll) = poll else {
                self.checks.idle[at].since = None;
                continue;
            };
            let since = *self.checks.idle[at].since.get_or_insert(self.t);
            let since = since.max(self.cautious_until(resource));
            let most = match self.conditions.prompt {
                true if self.conditions.sluggish => SLUGGISH,
                true if !self.conditions.fair => PROMPT,
                _ => poll,
            };
            let time = self.t.saturating_sub(since);
            if self.conditions.prompt && !self.conditions.sluggish {
                self.counts[Count::Slept] = self.counts[Count::Slept].max(time);
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
            if client.threads.iter().any(|thread| thread.call().is_some()) {
                return Some(format!("client {c}: a thread still waits"));
            }
            if client.queues.waiters() > 0 {
                return Some(format!("client {c}: a waiter is left"));
            }
            let collides = client.held_here.collides();
            let is = |of: u8, token: usize| {
                let token = &self.checks.tokens[token];
                token.kind.is_plain() && (token.resource == of || collides)
            };
            for of in 0..RESOURCES {
                let tokens = client.threads.iter().filter_map(Thread::uses);
                let holds = tokens.filter(|token| is(of, *token)).count();
                let count = client.held_here.count(&[of]) as usize;
                if count != holds {
                    return Some(format!(
                        "client {c}: {of} counts as held {count} times, not {holds}"
                    ));
                }
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
        self.counts[Count::Killed] += 1;
        self.clients[c].die();
        for history in &mut self.checks.tokens {
            if history.client == c {
                (history.belief, history.leaked) = (None, true);
            }
        }
        self.cut_all(|connection| connection.client == c);
        let gone = self.conditions.prompt || self.random.chance(50);
        self.cut_subscriptions(gone, |client, _| client == c);
        // If the client was notified, another one finds the lock free by the next release or by its poll.
        for resource in 0..RESOURCES {
            let locked = |server: &super::Server| server.has_key(self.t, resource);
            let free = !self.servers.iter().all(locked);
            self.checks.idle[usize::from(resource)].excused |= free;
        }
    }
}

/// A step, for the trace.
fn shown(step: &Step<usize>) -> &'static str {
    match step {
        Step::Try(_) => "tries",
        Step::TakeOver(_) => "takes over a try",
        Step::Run(_) => "leaves the queues, or extends a claim",
        Step::Park(_) => "parks",
        Step::Pause(_) => "pauses",
        Step::Ask => "asks",
        Step::Release(_) => "releases a claim, or what came too late",
        Step::Done(Ok(_)) => "has the lock",
        Step::Done(Err(_)) => "gives up",
    }
}

fn turn() -> Turn {
    Turn::new(Duration::from_micros(NODE_TIMEOUT))
}
