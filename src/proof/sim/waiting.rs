//! Virtual threads that acquire and release locks: they carry out the decisions of the calls, as the real ones do.

use std::sync::Arc;
use std::time::Duration;

use super::basics::{MS, NODE_TIMEOUT, PROBED, RESOURCES};
use super::client::{Call, Doing, HANDED_OFF, Held, Releasing, Stage, token_id};
use super::counts::trace;
use super::world::{Count, TokenHistory, World};
use crate::errors::error::Error;
use crate::protocol::calls::acquire::{CallEnd, CallStep};
use crate::protocol::calls::claims::Claiming;
use crate::protocol::calls::lease::Lease;
use crate::protocol::calls::process_services::ProcessServices;
use crate::protocol::calls::release::{Release, Submit};
use crate::protocol::commands::action::{Action, Key};
use crate::protocol::commands::kind::Kind;
use crate::protocol::commands::node_queue::QueueTurn;
use crate::protocol::mutants::Promise;
use crate::protocol::quorum::answer::{Answer, Outcome};
use crate::protocol::quorum::op::Op;
use crate::protocol::waiting::held_here::HeldHere;
use crate::protocol::waiting::wait_queue::WaitQueues;
use crate::protocol::waiting::waiter::{AcquireRequest, WaitFailure};
use crate::values::arithmetic::Ttl;
use crate::values::label::Label;
use crate::values::node_set::NodeSet;
use crate::values::token::Token;

/// A thread, and what its calls need of its process.
struct Local<'a> {
    world: &'a mut World,
    c: usize,
    thread: usize,
}

impl ProcessServices for Local<'_> {
    type Thread = usize;

    fn thread(&mut self, _: &Arc<[u8]>) -> usize {
        self.thread
    }

    fn token(&mut self, resource: &[u8]) -> Result<Token, Error> {
        // Now and then the operating system gives no random bytes.
        match self.world.quiet || !self.world.agenda.order.is_multiple_of(128) {
            true => Ok(self.world.draw(self.c, resource[0])),
            false => Err(Error::random(getrandom::Error::UNSUPPORTED)),
        }
    }

    fn jitter(&mut self, min: Duration, max: Duration) -> Duration {
        self.world.random.between(min, max)
    }

    fn none_waits(&mut self) -> bool {
        self.world.clients[self.c].queues.none_waits()
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

// ---- between threads and queues

impl World {
    fn local(&mut self, c: usize, thread: usize) -> Local<'_> {
        Local {
            world: self,
            c,
            thread,
        }
    }

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
        self.agenda.order += 1;
        self.checks.tokens[token].freed = Some(self.agenda.order);
        // A lock that was granted too late is released by a thread that waits itself.
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
        if next.is_none() && op.key.kind.is_plain() {
            self.checks.tokens[token].on.tells = NodeSet::ALL;
        }
        self.clients[c].threads[thread].doing = Doing::Releases(Releasing {
            release,
            token,
            handed_off: next.is_some(),
            call,
        });
        let Some((next_op, next_thread)) = next.map(|next| *next) else {
            return self.submit(c, thread, op);
        };
        self.counts[Count::HandedOff] += 1;
        self.in_turn(c, next_thread, resource);
        self.begin(c, next_thread);
        if let Doing::Acquires(call) = &mut self.clients[c].threads[next_thread].doing {
            call.served = Some(token_id(&next_op.key.token));
        }
        // Both are submitted while the mutex is held: no thread leads in between.
        self.add(c, thread, op);
        self.submit(c, HANDED_OFF + next_thread, next_op);
    }

    pub(super) fn given_back(&mut self, c: usize, thread: usize, done: Releasing, answer: Answer) {
        self.in_time(c, thread, NODE_TIMEOUT);
        let only_write = done.release.only_write;
        self.released(c, done.token, only_write, &answer.outcome);
        if !only_write && matches!(answer.outcome, Outcome::Unavailable { .. }) {
            self.is_unreleased(c, thread, done.token);
        }
        let (now, mut local) = (self.clients[c].clocks.point(self.t), self.local(c, thread));
        let release = done.release;
        release.answered(done.handed_off, answer, &mut local, || now);
        match done.call {
            Some(call) => self.go_on(c, thread, call),
            None => self.rests(c, thread),
        }
    }

    // ---- calls

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
            // Processes with labels and without one.
            label: [None, Label::new("web-2:4711 a"), Label::new("redlock:3f")][c % 3].clone(),
            end: long.map(|long| now + Duration::from_micros(long)),
            must_ask,
            retry_delay: (Duration::from_millis(min), Duration::from_millis(max)),
            // Some waiters are not fair.
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
        self.clients[c].threads[thread].asked = self.t;
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

    /// Carries out the next step of a call's thread.
    pub(super) fn go_on(&mut self, c: usize, thread: usize, mut call: Box<Call>) {
        let now = self.clients[c].clocks.point(self.t);
        let step = call.acquire.next(&mut self.local(c, thread), now);
        trace!(self, "client {c} thread {thread}: {}", shown(&step));
        let at = |world: &World, until| world.clients[c].clocks.time(until).max(world.t + 1);
        match step {
            CallStep::AskProgram => {
                self.clients[c].threads[thread].asked = self.t;
                if call.gives_up <= self.t {
                    self.counts[Count::GaveUp] += 1;
                    call.acquire.cancel(&mut self.local(c, thread));
                }
                return self.go_on(c, thread, call);
            }
            CallStep::Try(op) => {
                if matches!(op.action, Action::AcquireOrEnqueue(..)) {
                    self.enqueues(c, &op.key);
                }
                return self.tries(c, thread, call, op);
            }
            CallStep::TakeOver(_) => return self.take_over(c, thread, call),
            CallStep::Run(op) => {
                self.begin(c, thread);
                if matches!(op.action, Action::Repair(_)) {
                    self.refills(token_id(&op.key.token), &op);
                }
                call.stage = Stage::Leaves;
                self.clients[c].threads[thread].doing = Doing::Acquires(call);
                return self.submit(c, thread, op);
            }
            CallStep::Park(until) => {
                call.stage = Stage::Parks(self.park(c, &call, at(self, until)))
            }
            CallStep::Pause(until) => call.stage = Stage::Pauses(at(self, until)),
            CallStep::Release(lease) => {
                if call.request.kind.names().is_none() {
                    self.counts[Count::TooSlow] += 1;
                }
                call.stage = Stage::Releases;
                let token = token_id(&lease.key.token);
                return self.give_back(c, thread, Held { token, lease }, true, Some(call));
            }
            CallStep::Done(Ok(lease)) => return self.acquired(c, thread, &call, lease),
            CallStep::Done(Err(ended)) => return self.gave_up(c, thread, &call, &ended),
        }
        self.clients[c].threads[thread].doing = Doing::Acquires(call);
    }

    /// An earlier release may be written after a waiter of its process has enqueued.
    fn enqueues(&mut self, c: usize, key: &Key) {
        for name in key.all_names() {
            let before =
                |history: &&mut TokenHistory| history.client == c && history.covers(name[0]);
            let before = self.checks.tokens.iter_mut().filter(before);
            before.for_each(|history| history.alone = false);
        }
    }

    /// Until when a thread sleeps.
    fn park(&mut self, c: usize, call: &Call, until: u64) -> u64 {
        self.listen(c);
        let contends = self.clients[c].queues.is_polled_for(call.acquire.line());
        self.check(Promise::Served, contends, || {
            format!("client {c}: no thread polls for {}", call.resource)
        });
        let waits_for = usize::from(call.acquire.resource()[0]);
        let in_order = call.acquire.claimed().all(|name| name < waits_for);
        self.check(Promise::InTurn, in_order, || {
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
            self.check(Promise::Bounds, !call.is_over(now) || owed, || {
                format!("client {c}: thread {thread} tries after its time")
            });
            // A single attempt begins without a question.
            let is_single = call.attempts == 0 && call.is_over(now);
            let stopped = call.request.must_ask && call.gives_up <= self.t && !is_single;
            self.check(Promise::Bounds, !stopped, || {
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
            return self.violated(
                Promise::Fits,
                format!("client {c}: no hand-off for {thread}"),
            );
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
            _ => self.violated(
                Promise::Fits,
                format!("client {c}: thread {thread} had a hand-off, and has left"),
            ),
        }
    }

    /// The answer to an operation that a call has submitted.
    pub(super) fn call_answered(
        &mut self,
        c: usize,
        thread: usize,
        mut call: Box<Call>,
        answer: Answer,
    ) {
        let now = self.clients[c].clocks.point(self.t);
        let Stage::Tries(token) = call.stage else {
            call.acquire
                .answered(answer, &mut self.local(c, thread), now);
            return self.go_on(c, thread, call);
        };
        self.try_is_sound(c, token, &answer);
        self.asked_in_time(c, thread, &call);
        self.is_queued(c, &mut call, &answer);
        let soon = !self.conditions.sluggish
            && now.mono < answer.begun + Duration::from_micros(NODE_TIMEOUT / 2);
        let first = self.conditions.faultless && soon && call.acquire.is_first_try();
        let yes = matches!(answer.outcome, Outcome::Yes(_));
        let no = matches!(answer.outcome, Outcome::No);
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
                self.check(Promise::Available, !first || voted.is_empty(), || {
                    format!("client {c}: {token} is denied, but {voted:?} granted it")
                });
            }
            (false, false) => {
                self.counts[Count::Unavailable] += 1;
                let excused = !self.conditions.faultless || self.clients[c].clocks.has_hung();
                self.check(Promise::Available, excused, || {
                    format!("client {c}: too few answers, and nothing is wrong")
                });
                // A shorter ttl may be over while the first connection to a node is waited for (rule R13b).
                if call.request.ttl.duration() >= Duration::from_micros(2 * NODE_TIMEOUT) {
                    self.is_unserved(c, thread);
                }
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

    fn gave_up(&mut self, c: usize, thread: usize, call: &Call, end: &CallEnd) {
        // There are no other contenders.
        self.checks.probes_failed += u32::from(call.resource >= PROBED);
        // A thread behind others in the queue need not ask: they do.
        let asked = call.attempts > 0 || self.waits_for(c, call.resource);
        self.check(
            Promise::SoundAnswer,
            asked || !matches!(end, CallEnd::Failed(WaitFailure::Busy(_))),
            || format!("client {c}: thread {thread} is denied, and no node was asked"),
        );
        self.rests(c, thread);
    }
}

/// A step, for the trace.
fn shown(step: &CallStep<usize>) -> &'static str {
    match step {
        CallStep::Try(_) => "tries",
        CallStep::TakeOver(_) => "takes over a try",
        CallStep::Run(_) => "leaves the queues, or extends a claim",
        CallStep::Park(_) => "parks",
        CallStep::Pause(_) => "pauses",
        CallStep::AskProgram => "asks",
        CallStep::Release(_) => "releases a claim, or what came too late",
        CallStep::Done(Ok(_)) => "has the lock",
        CallStep::Done(Err(_)) => "gives up",
    }
}

fn turn() -> QueueTurn {
    QueueTurn::new(Duration::from_micros(NODE_TIMEOUT))
}
