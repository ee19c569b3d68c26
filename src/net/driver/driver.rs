//! One connection to each node, for all threads.
//!
//! A thread that finds no leader leads: it carries out its own operation, and with it those that others submit, with
//! one write and one read for each node. Each operation under way has a thread that waits for it, so there is always
//! one to lead next. If the thread that has waited longest is awake, the leader just stops: the first thread that
//! looks, a waiting one or a new one, leads. Otherwise the leader passes the connections to that thread, and wakes it.
//! So while any operation is under way, a thread leads, or one that is awake looks once more.
//!
//! With one connection per node, a release is behind the acquire that it undoes (rule R7), however many threads there
//! are. The driver has no part in validity, retries, or held locks.
//!
//! Why one connection per node. Pairs of acquire and release per second with two connections per node (and with four),
//! as ratios to one connection per node, 5 nodes, 2 cores:
//!
//! | threads | loopback | 1 ms of round trip |
//! | --- | --- | --- |
//! | 1 | 1 | 1.00 (0.98) |
//! | 2 | 0.71 (0.80) | 1.01 (0.95) |
//! | 8 | 0.93 (0.58) | 1.13 (1.05) |
//! | 64 | 0.88 (0.66) | 0.99 (0.91) |

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::errors::node_errors::NodeErrors;
use crate::errors::shown::{Shown, Unquoted};
use crate::net::driver::executor::{DriverState, Executor, SOON};
use crate::net::driver::leader_loop::LeaderLoop;
use crate::net::driver::leadership::{Caller, LeaderState, Signal, Submitter};
use crate::net::driver::races::{Race, race};
use crate::net::driver::release_confirmer;
#[cfg(feature = "cli")]
use crate::net::driver::release_confirmer::Confirmer;
use crate::protocol::node::node::Closing;
use crate::protocol::quorum::answer::{Answer, Outcome};
use crate::protocol::quorum::op::Op;
#[cfg(feature = "cli")]
use crate::protocol::quorum::{core::OwedTo, thread_step::ThreadRole};
use crate::values::clock;
use crate::values::node_set::NodeSet;
use crate::values::sync::{
    MutexGuard,
    atomic::{AtomicUsize, Ordering},
    thread,
};

/// How often a thread that waits for owed releases checks them.
#[cfg(feature = "cli")]
pub(crate) const LOOK: Duration = Duration::from_millis(10);

/// How often a waiting thread yields before it sleeps: with few nodes an answer arrives sooner than a thread is put to
/// sleep and woken. With more nodes that is so if many threads wait, which are then written and answered together; if
/// few wait, yielding only costs.
///
/// Pairs per second on 5 nodes if threads yield behind three others that wait, as ratios to never, and if they always
/// do (2 cores, 7 to 11 rounds in turns; µs of processor time per pair):
///
/// | threads | never | behind three others | always |
/// | --- | --- | --- | --- |
/// | 2 | 1 (67) | 1.04 (75) | 0.85 (106) |
/// | 4 | 1 (56) | 0.94 (63) | 0.91 (97) |
/// | 8 | 1 (40) | 1.20 (60) | 1.16 (60) |
/// | 16 | 1 (29) | 1.34 (32) | 1.31 (32) |
/// | 64 | 1 (21) | 1.27 (21) | 1.18 (24) |
///
/// Two threads do the same as never: the difference is noise. Four gain nothing: three others seldom wait. Eight gain
/// time for processor time: an idle core takes 18 µs to wake up on that machine, and a yield 1.4 µs. If at most 12
/// threads yield at a time, or 4, and the others sleep at once, 64 threads on one node make 0.72 or 0.76 times as many
/// pairs, and 16 threads 0.86 or 0.64.
const YIELDS: u32 = if cfg!(schedules) { 2 } else { 32 };
const FEW_NODES: usize = 3;
const MANY_WAIT: usize = 3;

/// Submits operations to the core of one set of nodes, and waits for their answers.
pub(crate) struct Driver {
    /// The process that made the driver: after a fork the child must not touch the parent's sockets, nor a mutex that a
    /// thread may hold that does not exist in the child.
    process: u32,
    executor: Arc<Executor>,
    /// The number of threads that wait for an answer.
    waiting_callers: AtomicUsize,
}

impl Driver {
    pub(crate) fn new(executor: Executor) -> Driver {
        executor.driver_state().start_confirmer = release_confirmer::start;
        Driver {
            process: std::process::id(),
            executor: Arc::new(executor),
            waiting_callers: AtomicUsize::new(0),
        }
    }

    /// Whether this is the process that made the driver, not a forked child.
    pub(crate) fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    pub(crate) fn executor(&self) -> &Executor {
        &self.executor
    }

    /// Carries out `op` on all nodes.
    pub(crate) fn run(&self, op: Op) -> Answer {
        self.run_before(op, None)
    }

    /// Carries out `op`, and right behind it in the same write `next`, which another thread waits for.
    pub(crate) fn run_before(&self, op: Op, next: Option<Box<(Op, Arc<Caller>)>>) -> Answer {
        let traced = traced(&op);
        let answer = self.answer(op, next);
        self.trace_votes(traced.as_deref(), &answer);
        answer
    }

    /// Connects all nodes that are not connected, and pings them. Returns the nodes that do not answer if a majority
    /// does, or else why too few do.
    ///
    /// Each node has `connect_timeout`. What follows takes a few node timeouts at most.
    pub(crate) fn connect(&self) -> Result<Option<NodeErrors>, NodeErrors> {
        let (began, all) = (clock::instant(), self.executor.places().len());
        let until = began + self.executor.timeouts.connect;
        let before = self.executor.connect_now();
        let mut answer = self.run(Op::ping());
        let is_yes = |answer: &Answer| matches!(answer.outcome, Outcome::Yes(_));
        let missing = |answer: &Answer| NodeSet::first(all).without(answer.tally.granted);
        let mut driver_state = self.executor.driver_state();
        while !driver_state.core.has_tried(&before) && clock::instant() < until {
            driver_state = self.executor.wait(driver_state, until);
        }
        // Nodes that were connected meanwhile are asked now.
        let come = driver_state.core.connected_nodes().and(missing(&answer));
        if !come.is_empty() && (is_yes(&answer) || clock::instant() < until) {
            drop(driver_state);
            answer = self.run(Op::ping());
            driver_state = self.executor.driver_state();
        }
        let waited = clock::instant().saturating_duration_since(began);
        match answer.outcome {
            Outcome::Unavailable { errors, .. } => Err(*errors),
            _ if missing(&answer).is_empty() => Ok(None),
            _ => Ok(Some(driver_state.core.missing(&answer, waited))),
        }
    }

    fn answer(&self, op: Op, next: Option<Box<(Op, Arc<Caller>)>>) -> Answer {
        let now = clock::instant();
        let mut driver_state = self.executor.driver_state();
        if let Some(leader) = self.executor.take_lead(&mut driver_state) {
            driver_state.core.submit(op, Submitter::Leader, now);
            submit_behind(&mut driver_state, next, now);
            return self.lead(leader, driver_state, now, None);
        }
        let caller = Caller::new(None);
        driver_state
            .core
            .submit(op, Submitter::Caller(caller.clone()), now);
        submit_behind(&mut driver_state, next, now);
        self.executor.submitted(&driver_state);
        drop(driver_state);
        self.wait_or_lead(&caller)
    }

    /// The answer to an operation that another thread has submitted for this one.
    pub(crate) fn run_handed_off(&self, caller: &Arc<Caller>) -> Answer {
        let answer = self.wait_or_lead(caller);
        if !race(Race::StaysAwake) {
            // The thread may sleep, and be handed off another lock: a leader would leave it to that thread to lead.
            caller.set_awake(false);
        }
        self.trace_votes(caller.traced(), &answer);
        answer
    }

    /// Submits operations, which are carried out together as far as they can be. This thread must
    /// [collect](Driver::collect) the answers, since it may be made to lead.
    pub(crate) fn submit(&self, ops: impl IntoIterator<Item = Op>) -> Vec<Arc<Caller>> {
        let mut driver_state = self.executor.driver_state();
        let ops = ops.into_iter();
        let callers = ops.map(|op| submit(&mut driver_state, op)).collect();
        self.executor.submitted(&driver_state);
        callers
    }

    /// The answers to the operations of `callers`, in their order.
    pub(crate) fn collect(&self, callers: &[Arc<Caller>]) -> Vec<Answer> {
        let mut driver_state = self.executor.driver_state();
        // While no thread leads, no thread delivers answers that become certain.
        if driver_state.has_no_leader() {
            let answers = std::mem::take(&mut driver_state.core.answers);
            let deliver = |(submitter, answer): (Submitter, _)| submitter.deliver(answer);
            answers.into_iter().for_each(deliver);
        }
        // If no thread leads, one whose operation is still under way does. (One that was answered meanwhile
        // would lead for nothing.)
        if driver_state.has_no_leader()
            && let Some(Submitter::Caller(next)) = driver_state.core.longest_waiting()
        {
            let next = next.clone();
            if let Some(leader) = self.executor.take_lead(&mut driver_state) {
                next.make_leader(leader);
            }
        }
        drop(driver_state);
        let wait_or_lead = |caller| self.wait_or_lead(caller);
        let answers: Vec<Answer> = callers.iter().map(wait_or_lead).collect();
        for (caller, answer) in callers.iter().zip(&answers) {
            self.trace_votes(caller.traced(), answer);
        }
        answers
    }

    /// Waits for the answer, or leads until it arrives.
    fn wait_or_lead(&self, caller: &Arc<Caller>) -> Answer {
        let others = self.waiting_callers.fetch_add(1, Ordering::Relaxed);
        let is_soon = self.executor.places().len() <= FEW_NODES || others >= MANY_WAIT;
        let turn = match is_soon {
            true => self.wait_awake(caller),
            false => None,
        };
        let turn = turn.unwrap_or_else(|| caller.wait());
        self.waiting_callers.fetch_sub(1, Ordering::Relaxed);
        match turn {
            Signal::Answered(answer) => answer,
            Signal::Leads(leader) => self.lead(
                leader,
                self.executor.driver_state(),
                clock::instant(),
                Some(caller),
            ),
        }
    }

    /// Waits a little without sleeping, and leads if no thread does.
    fn wait_awake(&self, caller: &Arc<Caller>) -> Option<Signal> {
        caller.set_awake(true);
        for _ in 0..YIELDS {
            if let Some(turn) = caller.take_signal() {
                return Some(turn);
            }
            if self.executor.is_lead_vacant()
                && let Some(lead) = self.try_to_lead(caller, true)
            {
                return Some(lead);
            }
            thread::yield_now();
        }
        if race(Race::SleepWithoutLook) {
            caller.set_awake(false);
            return None;
        }
        // A leader that saw this thread awake no longer leads. One that stops from now on makes this thread the leader.
        self.try_to_lead(caller, false)
    }

    /// Makes this thread the leader, if no thread leads and this one has no answer yet. (A leader that has just stopped may
    /// be delivering it.)
    fn try_to_lead(&self, caller: &Arc<Caller>, stays_awake: bool) -> Option<Signal> {
        let mut driver_state = self.executor.driver_state();
        if race(Race::UnmarkAfterLook) {
            let lead = self.executor.take_lead(&mut driver_state);
            drop(driver_state);
            caller.set_awake(stays_awake);
            return lead.map(Signal::Leads);
        }
        caller.set_awake(stays_awake);
        let waits =
            driver_state.core.is_waiting(|one| one.is(caller)) || race(Race::LeadForNothing);
        if !driver_state.has_no_leader() || !waits {
            return None;
        }
        self.executor
            .take_lead(&mut driver_state)
            .map(Signal::Leads)
    }

    /// Logs the votes that an answer rests on. Called in the thread that asked, when others can go on: a logger may
    /// take its time, or use these same nodes.
    fn trace_votes(&self, resource: Option<&[u8]>, answer: &Answer) {
        if log::max_level() < log::LevelFilter::Trace {
            return;
        }
        let resource = resource.filter(|name| !name.is_empty());
        // Not every operation is about a lock.
        let of = resource.map_or_else(String::new, |name| format!("{} on ", Shown(name)));
        let name = |node| format!("{of}{}", self.executor.name(node));
        let lock = Unquoted(resource.unwrap_or_default());
        for node in answer.tally.granted.iter() {
            say!(trace, node:% = self.executor.name(node), lock:% = lock, vote = "yes"; "{}: yes", name(node));
        }
        for node in answer.tally.denied.iter() {
            say!(trace, node:% = self.executor.name(node), lock:% = lock, vote = "no"; "{}: no", name(node));
        }
        for (node, cause) in &answer.remarks.causes {
            say!(trace, node:% = self.executor.name(*node), lock:% = lock, vote = "failed"; "{}: {cause}", name(*node));
        }
    }

    /// Leads until the answer to the operation of `caller` arrives, or without one, to the leader's own operation.
    fn lead<'a>(
        &'a self,
        leader: Box<LeaderState>,
        mut driver_state: MutexGuard<'a, DriverState>,
        mut now: Instant,
        caller: Option<&Arc<Caller>>,
    ) -> Answer {
        if std::mem::take(&mut driver_state.after_group) {
            // The threads that were answered last submit again within microseconds: let them come along.
            drop(driver_state);
            thread::yield_now();
            driver_state = self.executor.driver_state();
            now = clock::instant();
        }
        let is_own = |submitter: &Submitter| match caller {
            None => matches!(submitter, Submitter::Leader),
            Some(caller) => submitter.is(caller),
        };
        let mut own = None;
        let mut lead = LeaderLoop {
            executor: &self.executor,
            leader: Some(leader),
        };
        let driver_state = lead.run(driver_state, now, |answers| {
            if let Some(at) = answers.iter().position(|(submitter, _)| is_own(submitter)) {
                own = Some(answers.swap_remove(at).1);
            }
            own.is_some()
        });
        lead.end(driver_state);
        own.unwrap_or_else(|| Answer::none(clock::instant()))
    }

    /// Waits until so few nodes are owed a release that other processes can have a majority, at most for
    /// `time`, and while `go_on` returns true. `others`: nodes beside these that may not grant the lock. Nodes that are
    /// away are tried at once, and have the time of one try. Returns whether that is so.
    #[cfg(feature = "cli")]
    pub(crate) fn wait_owed(
        &self,
        others: usize,
        time: Duration,
        go_on: &mut dyn FnMut() -> bool,
    ) -> bool {
        let (began, try_time) = (clock::instant(), self.executor.timeouts.connect);
        self.executor.connect_now();
        let mut here: Option<Confirmer> = None;
        loop {
            let mut driver_state = self.executor.driver_state();
            let now = clock::instant();
            let most = match driver_state.core.who_is_owed(others) {
                OwedTo::Few => return true,
                OwedTo::Many => time,
                OwedTo::Absent => time.min(try_time),
            };
            if now.saturating_duration_since(began) >= most {
                return false;
            }
            // The thread that confirms releases could not be started: this one does its work.
            if driver_state.core.starts_confirmer(ThreadRole::Leader) {
                here = Some(Confirmer::new(&self.executor));
            }
            let latest = now + LOOK;
            drop(match &mut here {
                Some(confirmer) => confirmer.step(&self.executor, driver_state, Some(latest)),
                None => self.executor.wait(driver_state, latest),
            });
            here = here.filter(|confirmer| !confirmer.ended);
            if !go_on() {
                return false;
            }
        }
    }

    /// Closes the nodes, which are no longer needed. Operations that were sent, and releases that are still to be sent,
    /// have one node timeout. This thread waits for that, since the program may end right after this.
    pub(crate) fn close(&self) {
        self.close_all(false, self.executor.timeouts.node);
    }

    /// Closes the nodes in this time, in which those that take no connection are tried again.
    #[cfg(feature = "cli")]
    pub(crate) fn close_within(&self, time: Duration) {
        self.close_all(true, time);
    }

    fn close_all(&self, tries_again: bool, time: Duration) {
        let now = clock::instant();
        let until = now + time;
        let mut driver_state = self.executor.driver_state();
        driver_state.core.close(Closing {
            tries_again,
            ..Closing::new(now, time)
        });
        self.executor.announce(&mut driver_state);
        loop {
            if let Some(leader) = self.executor.take_lead(&mut driver_state) {
                let mut lead = LeaderLoop {
                    executor: &self.executor,
                    leader: Some(leader),
                };
                driver_state = lead.run(driver_state, clock::instant(), |_| false);
                let leader = lead.leader.as_mut();
                let connections = leader.map(|leader| driver_state.disconnect(leader));
                lead.end(driver_state);
                return drop(connections);
            }
            // A renewal that is no longer needed is under way.
            if clock::instant() > until {
                return;
            }
            driver_state = self.executor.wait(driver_state, clock::instant() + SOON);
        }
    }
}

/// The resource of an operation, if its votes are logged. (Only then: threads share the count of references to the
/// name, which costs each of them time.)
fn traced(op: &Op) -> Option<Arc<[u8]>> {
    let traces = log::max_level() >= log::LevelFilter::Trace;
    traces.then(|| op.key.resource.clone())
}

/// Submits the operation of another thread, if there is one.
#[inline]
fn submit_behind(
    driver_state: &mut DriverState,
    next: Option<Box<(Op, Arc<Caller>)>>,
    now: Instant,
) {
    if let Some(next) = next {
        let (op, caller) = *next;
        driver_state.core.submit(op, Submitter::Caller(caller), now);
    }
}

fn submit(driver_state: &mut DriverState, op: Op) -> Arc<Caller> {
    let caller = Caller::new(traced(&op));
    let submitter = Submitter::Caller(caller.clone());
    driver_state.core.submit(op, submitter, clock::instant());
    caller
}

#[cfg(test)]
mod tests;
