//! Threads that acquire, hold, extend and release locks, and the checks meanwhile.

use std::sync::Arc;
use std::time::Duration;

use super::super::basics::{CONNECT_TIMEOUT, MS, NODE_TIMEOUT, SLACK};
use super::super::client::token_id;
use super::super::counts::trace;
use super::lanes::LONGEST;
use super::process::{Call, Doing, Flight, HANDED_OFF, Held, NO_THREAD};
use super::servers::NAMES;
use super::world::{Count, Locks, ShardWorld, TokenHistory};
use crate::errors::error::Error;
use crate::protocol::calls::acquire::{Acquire, CallEnd, CallStep};
use crate::protocol::calls::lease::{Extended, Extension, Lease};
use crate::protocol::calls::process_services::ProcessServices;
use crate::protocol::calls::release::{Release, Submit};
use crate::protocol::commands::kind::Kind;
use crate::protocol::commands::slots::slot;
use crate::protocol::mutants::Promise;
use crate::protocol::quorum::answer::{Answer, Outcome};
use crate::protocol::quorum::op::Op;
use crate::protocol::waiting::held_here::HeldHere;
use crate::protocol::waiting::subscriptions::SubscriberEvent;
use crate::protocol::waiting::wait_queue::WaitQueues;
use crate::protocol::waiting::waiter::{AcquireRequest, WaitFailure};
use crate::values::arithmetic::Ttl;
use crate::values::token::Token;

/// A thread, and what its calls need of its process.
struct Local<'a> {
    world: &'a mut ShardWorld,
    p: usize,
    lane: usize,
    thread: usize,
}

impl ProcessServices for Local<'_> {
    type Thread = usize;

    fn thread(&mut self, _: &Arc<[u8]>) -> usize {
        self.thread
    }

    fn token(&mut self, resource: &[u8]) -> Result<Token, Error> {
        Ok(self.world.draw(resource))
    }

    fn jitter(&mut self, min: Duration, max: Duration) -> Duration {
        self.world.random.between(min, max)
    }

    fn none_waits(&mut self) -> bool {
        self.world.processes[self.p].lanes[self.lane]
            .queues
            .none_waits()
    }

    fn queues<T>(&mut self, work: impl FnOnce(&mut WaitQueues<usize>) -> T) -> T {
        let queues = &mut self.world.processes[self.p].lanes[self.lane].queues;
        let result = work(queues);
        let woken = std::mem::take(&mut queues.woken);
        for thread in woken {
            let doing = &mut self.world.processes[self.p].threads[thread].doing;
            if let Doing::Acquires(call) = doing
                && call.parks
            {
                (call.due, call.parks) = (Some(self.world.t), false);
            }
        }
        self.world.wake(self.p, self.world.t);
        result
    }

    fn held_here(&self) -> &HeldHere {
        &self.world.processes[self.p].lanes[self.lane].held_here
    }
}

// ---- what a thread does next

impl ShardWorld {
    fn local(&mut self, p: usize, thread: usize) -> Local<'_> {
        let lane = self.processes[p].threads[thread].lane.unwrap_or(0);
        Local {
            world: self,
            p,
            lane,
            thread,
        }
    }

    fn draw(&mut self, resource: &[u8]) -> Token {
        let id = self.checks.tokens.len();
        let name = NAMES.iter().position(|name| resource == [*name]).unwrap();
        self.checks.tokens.push(TokenHistory {
            name,
            ..TokenHistory::default()
        });
        let mut bytes = [0; 20];
        bytes[..8].copy_from_slice(&(id as u64).to_le_bytes());
        Token::from_bytes(bytes)
    }

    /// The thread's next action, if it waits for nothing.
    pub(super) fn act(&mut self, p: usize, thread: usize) -> bool {
        let t = self.t;
        let own = &mut self.processes[p].threads[thread];
        if let Some(flight) = &mut own.flight
            && let Some((at, op)) = flight.next.take()
        {
            if at > t {
                flight.next = Some((at, op));
                self.wake(p, at);
                return false;
            }
            let lane = flight.lane;
            self.submit_to(p, lane, thread, op);
            return true;
        }
        let due = match &own.doing {
            Doing::Idle(until) | Doing::Holds(_, until) => Some(*until),
            Doing::Acquires(call) => call.due,
            _ => None,
        };
        let Some(due) = due else {
            return false;
        };
        if due > t {
            self.wake(p, due);
            return false;
        }
        match std::mem::replace(&mut own.doing, Doing::Stopped) {
            Doing::Acquires(call) => self.go_on(p, thread, call),
            Doing::Holds(held, _) => self.use_lock(p, thread, held),
            _ => {
                own.acts += 1;
                if !self.quiet && own.acts < 40 {
                    let name = self.random.pick(NAMES.len() - 1);
                    self.acquire(p, thread, name);
                }
            }
        }
        true
    }

    fn ttl(&mut self) -> Ttl {
        let ms = match self.conditions.guarded {
            true => 100 + self.random.below(901),
            false => [200, 1_000, 60_000][self.random.pick(3)],
        };
        Ttl::new(Duration::from_millis(ms).min(LONGEST * 60)).unwrap()
    }

    /// A call that acquires a lock, at once or for a time.
    pub(super) fn acquire(&mut self, p: usize, thread: usize, name: usize) {
        let (now, resource) = (self.point(), Arc::from(&[NAMES[name]][..]));
        let waits = !self.quiet && self.random.chance(40);
        let wait = match waits {
            true => self.random.below(1500 * MS),
            false => 0,
        };
        let request = AcquireRequest {
            kind: self
                .conditions
                .locks
                .draw(&mut self.random, self.agenda.order),
            ttl: self.ttl(),
            label: None,
            end: Some(now.mono + Duration::from_micros(wait)),
            must_ask: false,
            retry_delay: (Duration::from_millis(20), Duration::from_millis(80)),
            turn: None,
        };
        let node_timeout = Duration::from_micros(NODE_TIMEOUT);
        let nodes = self.clusters.len();
        let call = Call {
            acquire: Acquire::new(resource, request, nodes, node_timeout, now),
            name,
            due: Some(self.t),
            parks: false,
            served: false,
            mail: None,
            // Its last attempt has its time, and each of its tries follows its key.
            ends: self.t + wait + 2 * longest(),
        };
        let lane = self.lane(p, slot(&[NAMES[name]]));
        self.processes[p].threads[thread].lane = Some(lane);
        self.go_on(p, thread, Box::new(call));
    }

    /// Submits an operation of a thread: what ends a lock goes where the lock was acquired (rule R7).
    fn submit(&mut self, p: usize, thread: usize, op: Op) {
        self.submit_both(p, thread, op, None);
    }

    /// Submits an operation of a thread, and right behind it the first try of a waiter.
    fn submit_both(&mut self, p: usize, thread: usize, op: Op, next: Option<(Op, usize)>) {
        let own = self.processes[p].threads[thread].lane;
        let lane = match own.filter(|_| op.action.ends()) {
            Some(lane) => lane,
            None => self.lane(p, slot(&op.key.resource)),
        };
        if op.is_acquire() {
            self.processes[p].threads[thread].acquired = Some(lane).filter(|_| own != Some(lane));
        }
        let acquired = self.processes[p].threads[thread].acquired;
        let is_alone = acquired.is_none() && self.lane(p, slot(&op.key.resource)) == lane;
        if op.action.ends() && !is_alone {
            // The release is written to more than one lane.
            self.checks.tokens[token_id(&op.key.token)].handed_over = true;
        }
        trace!(
            self,
            "process {p}: {thread} on lane {lane}: {:?}", op.action
        );
        self.processes[p].threads[thread].flight = Some(Flight {
            op: op.clone(),
            since: self.t,
            lane,
            redirect: None,
            next: None,
        });
        let next = next.map(|(op, waiter)| (HANDED_OFF + waiter, op));
        self.submit_all(p, lane, [(thread, op)].into_iter().chain(next));
    }

    // ---- calls

    fn go_on(&mut self, p: usize, thread: usize, mut call: Box<Call>) {
        if let Some(answer) = call.mail.take_if(|_| call.served) {
            call.served = false;
            return self.tried(p, thread, call, answer);
        }
        let now = self.point();
        let step = call.acquire.next(&mut self.local(p, thread), now);
        (call.due, call.parks) = (None, false);
        trace!(self, "process {p}: {thread} {}", shown(&step));
        match step {
            CallStep::Try(op) | CallStep::Run(op) => {
                self.processes[p].threads[thread].doing = Doing::Acquires(call);
                return self.submit(p, thread, op);
            }
            CallStep::TakeOver(_) => {
                call.served = true;
                call.due = call.mail.is_some().then_some(self.t);
            }
            CallStep::Park(until) => {
                self.try_to_subscribe(p, thread);
                (call.due, call.parks) = (Some(self.time(until).max(self.t + 1)), true);
            }
            CallStep::Pause(until) => call.due = Some(self.time(until).max(self.t + 1)),
            CallStep::AskProgram => call.due = Some(self.t),
            CallStep::Release(lease) => return self.release(p, thread, lease, Some(call)),
            CallStep::Done(Ok(lease)) => return self.acquired(p, thread, lease),
            CallStep::Done(Err(ended)) => return self.gave_up(p, thread, &call, &ended),
        }
        self.processes[p].threads[thread].doing = Doing::Acquires(call);
    }

    /// No subscription comes about here: waiters ask now and then.
    fn try_to_subscribe(&mut self, p: usize, thread: usize) {
        let now = self.now();
        self.local(p, thread).queues(|queues| {
            for node in queues.take_to_start().iter() {
                // The subscriber pauses from then on.
                for event in [SubscriberEvent::Begins, SubscriberEvent::Failed] {
                    queues.subscriber(node, event, now);
                }
            }
        });
    }

    /// The answer to a thread's operation, which goes on nowhere.
    pub(super) fn went(&mut self, p: usize, thread: usize, answer: Answer) {
        let stopped = Doing::Stopped;
        match std::mem::replace(&mut self.processes[p].threads[thread].doing, stopped) {
            Doing::Acquires(call) => self.tried(p, thread, call, answer),
            Doing::Extends(held, extension) => self.extended(p, thread, (held, extension), answer),
            Doing::Releases {
                release,
                handed_off,
                call,
            } => {
                self.not_lost(&release, &answer);
                let now = self.point();
                release.answered(handed_off, answer, &mut self.local(p, thread), || now);
                match call {
                    Some(call) => self.go_on(p, thread, call),
                    None => self.rests(p, thread),
                }
            }
            _ => self.violated(
                Promise::Fits,
                format!("process {p}: an answer for {thread}, which waits for none"),
            ),
        }
    }

    /// A lock whose release was carried out by a majority is not reported as lost.
    fn not_lost(&mut self, release: &Release, answer: &Answer) {
        let token = token_id(&release.key.token);
        let released = self.checks.tokens[token].released.len();
        let is_lost = matches!(answer.outcome, Outcome::No);
        self.check(
            Promise::SoundAnswer,
            !is_lost || 2 * released <= self.clusters.len(),
            || format!("{token} is released, and reported as lost"),
        );
    }

    fn tried(&mut self, p: usize, thread: usize, mut call: Box<Call>, answer: Answer) {
        let now = self.point();
        let mut local = self.local(p, thread);
        call.acquire.answered(answer, &mut local, now);
        self.go_on(p, thread, call);
    }

    /// The answer to a try that another thread has made for this one.
    pub(super) fn served(&mut self, p: usize, thread: usize, answer: Answer) {
        trace!(self, "process {p}: {thread} is answered by another thread");
        let own = &mut self.processes[p].threads[thread];
        own.acquired = None;
        match &mut own.doing {
            Doing::Acquires(call) => {
                call.mail = Some(answer);
                (call.due, call.parks) = (Some(self.t), false);
                self.wake(p, self.t);
            }
            _ => self.violated(
                Promise::Fits,
                format!("process {p}: {thread} had a hand-off, and has left"),
            ),
        }
    }

    fn acquired(&mut self, p: usize, thread: usize, lease: Lease) {
        let token = token_id(&lease.key.token);
        self.checks.counts[Count::Granted] += 1;
        trace!(self, "process {p}: {thread} holds {token}");
        let is_yet = !lease.left(self.point()).is_zero();
        self.check(Promise::Deadline, is_yet, || {
            format!("{token} is granted after its deadline")
        });
        self.checks.tokens[token].kind = Some(lease.key.kind.clone());
        match lease.key.kind {
            Kind::Permit { .. } => self.checks.counts[Count::Permits] += 1,
            Kind::Read { .. } => self.checks.counts[Count::Reads] += 1,
            Kind::Write(_) => self.checks.counts[Count::Writes] += 1,
            _ => {}
        }
        self.alone(token);
        self.checks.tokens[token].belief = Some(lease.deadline);
        let until = self.t + self.random.below(120 * MS);
        let held = Held { token, lease };
        self.processes[p].threads[thread].doing = Doing::Holds(held, until);
    }

    /// No two processes hold a name.
    fn alone(&mut self, token: usize) {
        let (now, tokens) = (self.point(), &self.checks.tokens);
        let name = tokens[token].name;
        let is_live = |at: &usize| {
            let other = &tokens[*at];
            let left = other.belief.map(|deadline| deadline.remaining(now));
            let is_live = left.is_some_and(|left| !left.is_zero());
            *at != token && is_live && other.excludes(&tokens[token])
        };
        let other = (0..tokens.len()).find(is_live);
        // Without the guard a replica that lags makes two holders.
        let excused = self.conditions.lags && !self.conditions.guarded;
        if let Some(other) = other.filter(|_| !excused) {
            self.violated(
                Promise::OneHolder,
                format!("{other} and {token} hold {name}"),
            );
        }
    }

    fn gave_up(&mut self, p: usize, thread: usize, call: &Call, end: &CallEnd) {
        let why = match end {
            CallEnd::Failed(WaitFailure::Unavailable(errors)) => Some(errors.to_string()),
            _ => None,
        };
        let unserved = why.is_some();
        trace!(self, "process {p}: {thread} has no lock: {unserved}");
        self.check(Promise::InTime, self.t <= call.ends, || {
            format!("process {p}: a call of {thread} takes too long")
        });
        // A server that was promoted gives no votes for a while.
        let calm = self.conditions.is_calm()
            || self.quiet && call.name == NAMES.len() - 1 && !self.conditions.guarded;
        // Readers and writers need the mark beside the lock. The last answer is as old as a pause between tries.
        let lately = |at: u64| self.t <= at + 4 * NODE_TIMEOUT;
        let is_torn =
            self.conditions.locks == Locks::ReadWrite && self.checks.torn_at.is_some_and(lately);
        self.check(Promise::Available, !calm || !unserved || is_torn, || {
            let name = call.name;
            format!("process {p}: {name} is unavailable, and nothing is wrong: {why:?}")
        });
        self.rests(p, thread);
    }

    fn rests(&mut self, p: usize, thread: usize) {
        let pause = self
            .random
            .below(if self.conditions.fails_over { 400 } else { 120 } * MS);
        let own = &mut self.processes[p].threads[thread];
        own.doing = Doing::Idle(self.t + pause);
        (own.lane, own.acquired) = (None, None);
        self.wake(p, self.t + pause);
    }

    // ---- a lock that the thread has

    fn use_lock(&mut self, p: usize, thread: usize, mut held: Held) {
        let now = self.point();
        let valid = !held.lease.left(now).is_zero();
        if valid && !self.quiet && self.random.chance(45) {
            let (extension, op) = held.lease.extension(self.ttl(), now);
            self.processes[p].threads[thread].doing = Doing::Extends(held, extension);
            return self.submit(p, thread, op);
        }
        self.checks.tokens[held.token].belief = None;
        self.release(p, thread, held.lease, None);
    }

    fn extended(
        &mut self,
        p: usize,
        thread: usize,
        (mut held, extension): (Held, Extension),
        answer: Answer,
    ) {
        let now = self.point();
        match held.lease.extended(extension, answer, now) {
            Extended::Yes(repair) => {
                self.alone(held.token);
                self.checks.tokens[held.token].belief = Some(held.lease.deadline);
                if let Some(op) = repair {
                    let refilled = &mut self.checks.tokens[held.token].refilled;
                    *refilled = refilled.or(op.nodes);
                    let lane = self.lane(p, slot(&op.key.resource));
                    self.submit_to(p, lane, NO_THREAD, op);
                }
            }
            Extended::Lost(_) => self.checks.tokens[held.token].belief = None,
            Extended::Unavailable(_) => {}
        }
        let until = self.t + self.random.below(120 * MS);
        self.processes[p].threads[thread].doing = Doing::Holds(held, until);
    }

    fn release(&mut self, p: usize, thread: usize, lease: Lease, call: Option<Box<Call>>) {
        let now = self.point();
        let release = Release {
            notified_elsewhere: lease.notified_elsewhere,
            key: lease.key,
            fair: false,
            only_write: self.random.chance(50),
            node_timeout: Duration::from_micros(NODE_TIMEOUT),
        };
        let Submit { op, next } = release.submit(&mut self.local(p, thread), || now);
        self.processes[p].threads[thread].doing = Doing::Releases {
            release,
            handed_off: next.is_some(),
            call,
        };
        self.submit_both(p, thread, op, next.map(|next| *next));
    }

    /// An operation ends in its time, wherever it was sent on.
    pub(super) fn in_time(&mut self, p: usize, flight: &Flight) {
        let took = self.t - flight.since;
        self.check(Promise::InTime, took <= longest(), || {
            format!("process {p}: an operation took {took} us")
        });
    }
}

/// A step, for the trace.
fn shown(step: &CallStep<usize>) -> &'static str {
    match step {
        CallStep::Try(_) => "tries",
        CallStep::TakeOver(_) => "takes over a try",
        CallStep::Run(_) => "leaves the queues",
        CallStep::Park(_) => "parks",
        CallStep::Pause(_) => "pauses",
        CallStep::AskProgram => "asks",
        CallStep::Release(_) => "releases what came too late",
        CallStep::Done(_) => "is done",
    }
}

/// How long an operation takes at most: it is sent on for two node timeouts, and the last server that it goes to may
/// have to be connected.
fn longest() -> u64 {
    6 * NODE_TIMEOUT + 2 * CONNECT_TIMEOUT + SLACK
}
