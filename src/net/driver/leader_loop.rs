//! How a thread leads: what it carries out, when it ends, and which thread is next.

use std::sync::Arc;
use std::time::Instant;

use crate::net::driver::executor::{DriverState, Executor};
use crate::net::driver::leadership::{Caller, LeaderState, Submitter};
use crate::net::driver::races::{Race, race};
use crate::protocol::quorum::answer::Answer;
use crate::protocol::quorum::thread_step::{ThreadRole, ThreadStep};
use crate::values::clock;
use crate::values::sync::MutexGuard;

/// A thread's time as the leader. However it ends, another thread can lead after it.
pub(super) struct LeaderLoop<'a> {
    pub(super) executor: &'a Arc<Executor>,
    pub(super) leader: Option<Box<LeaderState>>,
}

impl<'a> LeaderLoop<'a> {
    /// Carries out what the core returns. `done` gets the answers, and returns whether the leader's own is among them:
    /// then this returns as soon as it would have to wait, or to send for others. Also returns if nothing is left to
    /// do.
    pub(super) fn run(
        &mut self,
        mut driver_state: MutexGuard<'a, DriverState>,
        mut now: Instant,
        mut done: impl FnMut(&mut Vec<(Submitter, Answer)>) -> bool,
    ) -> MutexGuard<'a, DriverState> {
        let (executor, Some(leader)) = (self.executor, &mut self.leader) else {
            return driver_state;
        };
        let mut ended = done(&mut leader.answers);
        let mut confirmer_tried = false;
        loop {
            let next = driver_state.core.next(ThreadRole::Leader, now);
            if !driver_state.core.answers.is_empty() {
                take_all(&mut leader.answers, &mut driver_state.core.answers);
                ended |= done(&mut leader.answers);
            }
            executor.announce(&mut driver_state);
            let can_end = match next {
                ThreadStep::Finished => return driver_state,
                // The thread could not be started, or has ended at once. The next operation starts another one.
                ThreadStep::StartConfirmer if confirmer_tried => {
                    driver_state.core.deserted(ThreadRole::Confirmer, now);
                    return driver_state;
                }
                ThreadStep::Send { .. } => driver_state.core.longest_waiting().is_some(),
                ThreadStep::Recv { until, .. } | ThreadStep::Wait { until } => until > now,
                _ => false,
            };
            if ended && can_end {
                return driver_state;
            }
            if !leader.answers.is_empty() {
                drop(driver_state);
                leader.deliver();
                driver_state = executor.driver_state();
                if let ThreadStep::Wait { .. } = next {
                    // Something may have been submitted meanwhile.
                    now = clock::instant();
                    continue;
                }
            }
            (driver_state, now) = match next {
                ThreadStep::StartConfirmer => {
                    confirmer_tried = true;
                    let start_confirmer = driver_state.start_confirmer;
                    drop(driver_state);
                    start_confirmer(executor);
                    (executor.driver_state(), clock::instant())
                }
                next => executor.carry_out(
                    ThreadRole::Leader,
                    &mut leader.connections,
                    driver_state,
                    next,
                    now,
                ),
            };
        }
    }

    /// Stops leading: the next thread that looks leads, or the one that has waited longest is woken to lead, if it sleeps.
    pub(super) fn end(&mut self, mut driver_state: MutexGuard<'a, DriverState>) {
        let Some(mut leader) = self.leader.take() else {
            return;
        };
        let is_group = !leader.answers.is_empty();
        if is_group && next_is_awake(&driver_state) {
            // Delivered before the threads find that none leads, and look in vain.
            drop(driver_state);
            leader.deliver();
            driver_state = self.executor.driver_state();
        }
        let stale = race(Race::StaleAwake).then(|| next_is_awake(&driver_state));
        if stale.is_some() {
            drop(driver_state);
            driver_state = self.executor.driver_state();
        }
        // Together with answers that have become certain meanwhile.
        take_all(&mut leader.answers, &mut driver_state.core.answers);
        let mut answers = Vec::new();
        // The next leader uses an empty buffer again.
        if !leader.answers.is_empty() {
            take_all(&mut answers, &mut leader.answers);
        }
        let is_asleep = |next: &Caller| match stale {
            None => !next.is_awake() && !race(Race::NoHandOver),
            Some(awake) => !awake,
        };
        let next = match driver_state.core.longest_waiting() {
            Some(Submitter::Caller(next)) if is_asleep(next) => Some((next.clone(), leader)),
            _ => {
                driver_state.after_group |= is_group;
                self.executor.leave_lead(&mut driver_state, leader);
                None
            }
        };
        let logs = !driver_state.core.events.is_empty();
        drop(driver_state);
        if let Some((next, leader)) = next {
            next.make_leader(leader);
        }
        for (submitter, answer) in answers {
            submitter.deliver(answer);
        }
        if logs {
            self.executor.log_behind();
        }
    }
}

impl Drop for LeaderLoop<'_> {
    /// Stops leading after a panic, which only a bug can cause.
    fn drop(&mut self) {
        if race(Race::PanicKeepsLead) {
            self.leader = None;
        }
        if let Some(leader) = &mut self.leader {
            let mut driver_state = self.executor.driver_state();
            drop(driver_state.disconnect(leader));
            if !race(Race::PanicIsIgnored) {
                driver_state
                    .core
                    .deserted(ThreadRole::Leader, clock::instant());
            }
            leader.answers.append(&mut driver_state.core.answers);
            self.end(driver_state);
        }
    }
}

/// Whether the thread that has waited longest is awake.
fn next_is_awake(driver_state: &DriverState) -> bool {
    let next = driver_state.core.longest_waiting();
    matches!(next, Some(Submitter::Caller(next)) if next.is_awake())
}

/// Adds all of `from`: without moving them one by one if `to` is empty.
fn take_all<T>(to: &mut Vec<T>, from: &mut Vec<T>) {
    match to.is_empty() {
        true => std::mem::swap(to, from),
        false => to.append(from),
    }
}
