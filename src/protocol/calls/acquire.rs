//! One call that acquires a lock: its attempts, its place in the queue of its process, and how it leaves that.
//!
//! ```text
//!          ┌── has no queue ──▶ Tries ── granted ──▶ Done
//!   Begins ┤                    ▲   │ split: Pauses, and tries again
//!          │             a try  │   │ denied, or no quorum
//!          └── has one ───────▶ Waits ── its time is over ──▶ Leaves ──▶ Dequeues ──▶ Done
//! ```

mod attempts;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::errors::error::Error;
use crate::protocol::calls::lease::Lease;
use crate::protocol::calls::process_services::ProcessServices;
use crate::protocol::commands::node_queue::QueueTurn;
use crate::protocol::commands::vote::OtherUse;
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::quorum::answer::{Answer, Outcome};
use crate::protocol::quorum::attempt::{Attempt, Rejection};
use crate::protocol::quorum::op::Op;
use crate::protocol::waiting::waiter::{AcquireRequest, PlainTry, WaitFailure, WaiterAction};
use crate::values::arithmetic::majority;
use crate::values::clock::Point;

/// How often the program is asked, while it waits, whether to go on.
pub(crate) const ASK: Duration = Duration::from_millis(50);

/// The next step of the thread of a call.
pub(crate) enum CallStep<W> {
    /// Has a try carried out, and passes the answer to `answered`.
    Try(Op),
    /// Waits for a try that another thread has submitted for this one, and passes the answer to `answered`.
    TakeOver(W),
    /// Has another operation carried out, which leaves the queues on the nodes, or extends a claim. The answer goes to
    /// `answered`, too.
    Run(Op),
    /// Starts what subscriptions need, and sleeps until then, or until it is woken.
    Park(Instant),
    /// Sleeps until then.
    Pause(Instant),
    /// Asks the program whether to go on. If not: `cancel`.
    AskProgram,
    /// Releases a claim, or a lock that was granted after its validity ended, and does not wait for the answers.
    Release(Lease),
    Done(Result<Lease, CallEnd>),
}

/// How a call ends without the lock.
pub(crate) enum CallEnd {
    /// The failure of the last attempt.
    Failed(WaitFailure),
    Cancelled,
    Error(Error),
    /// A majority of the nodes, of which this is one, reports that the name, or one of this many, is another kind of lock:
    /// waiting would not change that.
    InOtherUse(usize, OtherUse, usize),
}

impl From<WaitFailure> for CallEnd {
    fn from(failure: WaitFailure) -> CallEnd {
        CallEnd::Failed(failure)
    }
}

/// `W`: a thread that waits.
pub(crate) struct Acquire<W> {
    resource: Arc<[u8]>,
    /// The name of the queue in this process.
    line: Arc<[u8]>,
    request: AcquireRequest,
    quorum: usize,
    node_timeout: Duration,
    /// When the call began.
    since: Instant,
    /// The place in the queue.
    waiter: Option<(u64, W)>,
    state: CallState,
    /// Whether the program is asked before anything else happens.
    asks: bool,
    /// Whether a thread of this process seemed to hold the lock before the last attempt.
    was_held_here: bool,
    /// The number of attempts made.
    attempts: u32,
}

enum CallState {
    Begins,
    Tries(Trying),
    /// Granted after its validity ended.
    TooSlow(Lease),
    Released,
    Waits,
    /// Leaves the queue of the process, which first leaves those on the nodes.
    Leaves(CallEnd),
    Dequeues(CallEnd),
    Done(Result<Lease, CallEnd>),
}

struct Trying {
    attempt: Attempt,
    /// When the attempt began.
    attempt_began: Instant,
    /// Whether the lock counts as held here already.
    handed_off: bool,
    /// When the next try follows, between two tries of the attempt.
    pauses_until: Option<Instant>,
}

impl<W: Clone> Acquire<W> {
    pub(crate) fn new(
        resource: Arc<[u8]>,
        request: AcquireRequest,
        nodes: usize,
        node_timeout: Duration,
        now: Point,
    ) -> Acquire<W> {
        Acquire {
            line: request.kind.line(&resource),
            resource,
            quorum: majority(nodes),
            node_timeout,
            since: now.mono,
            waiter: None,
            state: CallState::Begins,
            // A single attempt asks only while it waits for first connections.
            asks: request.must_ask && request.end.is_none_or(|end| end > now.mono),
            was_held_here: false,
            attempts: 0,
            request,
        }
    }

    /// Asks the program before the first attempt, also if that is the only one.
    pub(super) fn ask_first(&mut self) {
        self.asks = true;
    }

    pub(crate) fn resource(&self) -> &Arc<[u8]> {
        &self.resource
    }

    pub(crate) fn attempts(&self) -> u32 {
        self.attempts
    }

    /// How long the current try has taken.
    pub(crate) fn took(&self, now: Point) -> Duration {
        match &self.state {
            CallState::Tries(trying) if trying.pauses_until.is_none() => trying.attempt.took(now),
            _ => Duration::ZERO,
        }
    }

    pub(crate) fn next(
        &mut self,
        services: &mut impl ProcessServices<Thread = W>,
        now: Point,
    ) -> CallStep<W> {
        if std::mem::take(&mut self.asks) && self.request.must_ask {
            return CallStep::AskProgram;
        }
        // The states are large, so they are matched in place.
        match &mut self.state {
            CallState::Begins => self.begin(services, now),
            CallState::Tries(trying) => {
                match trying.pauses_until.filter(|until| now.mono < *until) {
                    Some(until) => CallStep::Pause(self.ask_before(until, now)),
                    None => self.make_try(services, now),
                }
            }
            CallState::TooSlow(lease) if !mutant(Mutant::KeepWhatCameTooLate) => {
                let lease = lease.clone();
                self.state = CallState::Released;
                CallStep::Release(lease)
            }
            CallState::TooSlow(_) | CallState::Released => {
                self.failed(WaitFailure::TooSlow, &Rejection::default(), services, now);
                self.next(services, now)
            }
            CallState::Waits => self.look(services, now),
            CallState::Leaves(end) => {
                let end = std::mem::replace(end, CallEnd::Cancelled);
                self.leave(end, services, now)
            }
            CallState::Dequeues(end) => {
                CallStep::Done(Err(std::mem::replace(end, CallEnd::Cancelled)))
            }
            CallState::Done(result) => {
                CallStep::Done(std::mem::replace(result, Err(CallEnd::Cancelled)))
            }
        }
    }

    /// Returns when a pause ends: before `until` if the program must be asked.
    fn ask_before(&mut self, until: Instant, now: Point) -> Instant {
        self.asks = self.request.must_ask && !mutant(Mutant::AskSeldom);
        match self.asks {
            true => until.min(now.mono + ASK),
            false => until,
        }
    }

    fn begin(
        &mut self,
        services: &mut impl ProcessServices<Thread = W>,
        now: Point,
    ) -> CallStep<W> {
        let resource = &self.line;
        let waits = !self.is_over(now) && !services.none_waits();
        let joins = self.request.turn.is_some()
            || waits && services.queues(|queues| queues.has_queue(resource, now.mono));
        if joins {
            self.join(None, services, now);
            return self.look(services, now);
        }
        self.attempt(None, services, now)
    }

    // ---- the queue

    fn join(
        &mut self,
        tried: Option<PlainTry>,
        services: &mut impl ProcessServices<Thread = W>,
        now: Point,
    ) {
        let (resource, request) = (&self.line, self.request.clone());
        let thread = services.thread(resource);
        let waiter = thread.clone();
        let id = services.queues(|queues| queues.join(resource, waiter, request, tried, now));
        self.waiter = Some((id, thread));
        self.state = CallState::Waits;
    }

    fn look(&mut self, services: &mut impl ProcessServices<Thread = W>, now: Point) -> CallStep<W> {
        let Some((id, thread)) = self.waiter.clone() else {
            return CallStep::Done(Err(CallEnd::Cancelled));
        };
        let held_here = services.held_here().has(&self.resource);
        match services.queues(|queues| queues.step(id, held_here, now)) {
            WaiterAction::Park(until) => {
                self.state = CallState::Waits;
                CallStep::Park(self.ask_before(until, now))
            }
            WaiterAction::Try(entry) => self.attempt(entry, services, now),
            WaiterAction::HandedOff(attempt) => {
                self.attempts = self.attempts.saturating_add(1);
                self.state = CallState::Tries(Trying {
                    attempt,
                    attempt_began: now.mono,
                    handed_off: true,
                    pauses_until: None,
                });
                CallStep::TakeOver(thread)
            }
            WaiterAction::GiveUp(failure) => self.leave(failure.into(), services, now),
        }
    }

    fn leave(
        &mut self,
        end: CallEnd,
        services: &mut impl ProcessServices<Thread = W>,
        now: Point,
    ) -> CallStep<W> {
        let Some(id) = self.waiter_id().filter(|_| !mutant(Mutant::LeaveNoQueue)) else {
            return CallStep::Done(Err(end));
        };
        match services.queues(|queues| queues.give_up(id, now.mono)) {
            Some(channel) => {
                let turn = QueueTurn::new(self.node_timeout);
                let fair = self.request.turn.is_some();
                self.state = CallState::Dequeues(end);
                let lock = (self.resource.clone(), self.request.kind.clone());
                let waiter = (channel, self.request.label.clone());
                let op = Op::dequeue(lock, waiter, turn, fair);
                CallStep::Run(op.only_write(true))
            }
            None => {
                self.waiter = None;
                CallStep::Done(Err(end))
            }
        }
    }

    /// Fails the call, whatever its state.
    fn fail(&mut self, end: CallEnd, services: &mut impl ProcessServices<Thread = W>) {
        if let CallState::Tries(trying) = &self.state
            && trying.handed_off
        {
            services.held_here().remove(&self.resource);
        }
        self.state = CallState::Leaves(end);
    }

    /// Cancels the call: the program no longer wants the lock, or the thread ends.
    pub(crate) fn cancel(&mut self, services: &mut impl ProcessServices<Thread = W>) {
        self.asks = false;
        self.fail(CallEnd::Cancelled, services);
    }

    /// Whether the call waits in the queue of its process, and nothing is under way.
    pub(crate) fn waits(&self) -> bool {
        matches!(self.state, CallState::Waits)
    }

    /// Whether anything is left to do, should the thread end here.
    pub(crate) fn is_in_queue(&self) -> bool {
        self.waiter.is_some()
    }

    /// Handles the answer to the step that `next` returned.
    pub(crate) fn answered(
        &mut self,
        answer: Answer,
        services: &mut impl ProcessServices<Thread = W>,
        now: Point,
    ) {
        match &mut self.state {
            CallState::Tries(trying) => {
                let notified_elsewhere = answer.notified_elsewhere;
                if let Outcome::Unavailable { unsent, .. } = answer.outcome {
                    self.asks = unsent;
                }
                match trying.attempt.answered(answer, now) {
                    ControlFlow::Continue(within) => {
                        let pause = services.jitter(Duration::ZERO, within);
                        trying.pauses_until = Some(now.mono + pause);
                    }
                    ControlFlow::Break(tried) => {
                        let handed_off = trying.handed_off;
                        self.attempted((tried, handed_off, notified_elsewhere), services, now);
                    }
                }
            }
            CallState::Dequeues(_) => {
                if let Some((id, _)) = self.waiter.take() {
                    services.queues(|queues| queues.dequeued(id, now.mono));
                }
            }
            _ => {}
        }
    }

    fn waiter_id(&self) -> Option<u64> {
        self.waiter.as_ref().map(|(id, _)| *id)
    }

    fn is_over(&self, now: Point) -> bool {
        self.request.end.is_some_and(|end| now.mono >= end)
    }
}

#[cfg(test)]
impl<W> Acquire<W> {
    pub(crate) fn place(&self) -> Option<u64> {
        self.waiter.as_ref().map(|(id, _)| *id)
    }

    pub(crate) fn line(&self) -> &Arc<[u8]> {
        &self.line
    }

    /// Whether the first try of an attempt is under way, and others may follow.
    pub(crate) fn is_first_try(&self) -> bool {
        matches!(&self.state, CallState::Tries(trying) if trying.attempt.is_first())
    }

    pub(crate) fn is_between_tries(&self) -> bool {
        matches!(&self.state, CallState::Tries(trying) if trying.pauses_until.is_some())
    }
}

#[cfg(test)]
mod tests;
