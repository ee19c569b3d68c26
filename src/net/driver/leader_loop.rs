//! How a thread leads: what it carries out, when it ends, and which thread is next.

use std::sync::Arc;
use std::time::Instant;

use crate::net::driver::leader_thread::{Caller, Leader, Submitter};
use crate::net::driver::nodes::{DriverState, Nodes};
use crate::net::driver::races::{Race, race};
use crate::protocol::quorum::answer::Answer;
use crate::protocol::quorum::next::{Next, ThreadRole};
use crate::values::clock;
use crate::values::sync::MutexGuard;

/// A thread's time as the leader. However it ends, another thread can lead after it.
pub(super) struct Lead<'a> {
    pub(super) nodes: &'a Arc<Nodes>,
    pub(super) leader: Option<Box<Leader>>,
}

impl<'a> Lead<'a> {
    /// Carries out what the core returns. `done` gets the answers, and returns whether the leader's own is among them:
    /// then this returns as soon as it would have to wait, or to send for others. Also returns if nothing is left to
    /// do.
    pub(super) fn run(
        &mut self,
        mut state: MutexGuard<'a, DriverState>,
        mut now: Instant,
        mut done: impl FnMut(&mut Vec<(Submitter, Answer)>) -> bool,
    ) -> MutexGuard<'a, DriverState> {
        let (nodes, Some(leader)) = (self.nodes, &mut self.leader) else {
            return state;
        };
        let mut ended = done(&mut leader.answers);
        let mut confirmer_tried = false;
        loop {
            let next = state.core.next(ThreadRole::Leader, now);
            if !state.core.answers.is_empty() {
                take_all(&mut leader.answers, &mut state.core.answers);
                ended |= done(&mut leader.answers);
            }
            nodes.announce(&mut state);
            let can_end = match next {
                Next::Finished => return state,
                // The thread could not be started, or has ended at once. The next operation starts another one.
                Next::StartConfirmer if confirmer_tried => {
                    state.core.deserted(ThreadRole::Confirmer, now);
                    return state;
                }
                Next::Send { .. } => state.core.longest_waiting().is_some(),
                Next::Recv { until, .. } | Next::Wait { until } => until > now,
                _ => false,
            };
            if ended && can_end {
                return state;
            }
            if !leader.answers.is_empty() {
                drop(state);
                leader.deliver();
                state = nodes.state();
                if let Next::Wait { .. } = next {
                    // Something may have been submitted meanwhile.
                    now = clock::instant();
                    continue;
                }
            }
            (state, now) = match next {
                Next::StartConfirmer => {
                    confirmer_tried = true;
                    let start_confirmer = state.start_confirmer;
                    drop(state);
                    start_confirmer(nodes);
                    (nodes.state(), clock::instant())
                }
                next => nodes.carry_out(
                    ThreadRole::Leader,
                    &mut leader.connections,
                    state,
                    next,
                    now,
                ),
            };
        }
    }

    /// Leaves the lead to the next thread that looks for it, or hands it to the one that has waited longest, if asleep.
    pub(super) fn end(&mut self, mut state: MutexGuard<'a, DriverState>) {
        let Some(mut leader) = self.leader.take() else {
            return;
        };
        let is_group = !leader.answers.is_empty();
        if is_group && next_is_awake(&state) {
            // Delivered before the threads find the lead vacant, and look in vain.
            drop(state);
            leader.deliver();
            state = self.nodes.state();
        }
        let stale = race(Race::StaleAwake).then(|| next_is_awake(&state));
        if stale.is_some() {
            drop(state);
            state = self.nodes.state();
        }
        // Together with answers that have become certain meanwhile.
        take_all(&mut leader.answers, &mut state.core.answers);
        let mut answers = Vec::new();
        // An empty buffer stays with the lead, to be used again.
        if !leader.answers.is_empty() {
            take_all(&mut answers, &mut leader.answers);
        }
        let is_asleep = |next: &Caller| match stale {
            None => !next.is_awake() && !race(Race::NoHandOver),
            Some(awake) => !awake,
        };
        let next = match state.core.longest_waiting() {
            Some(Submitter::Waiter(next)) if is_asleep(next) => Some((next.clone(), leader)),
            _ => {
                state.after_group |= is_group;
                self.nodes.leave_lead(&mut state, leader);
                None
            }
        };
        let logs = !state.core.events.is_empty();
        drop(state);
        if let Some((next, leader)) = next {
            next.lead(leader);
        }
        for (submitter, answer) in answers {
            submitter.deliver(answer);
        }
        if logs {
            self.nodes.log_behind();
        }
    }
}

impl Drop for Lead<'_> {
    /// Ends the lead after a panic, which only a bug can cause.
    fn drop(&mut self) {
        if race(Race::PanicKeepsLead) {
            self.leader = None;
        }
        if let Some(leader) = &mut self.leader {
            let mut state = self.nodes.state();
            drop(state.disconnect(leader));
            if !race(Race::PanicIsIgnored) {
                state.core.deserted(ThreadRole::Leader, clock::instant());
            }
            leader.answers.append(&mut state.core.answers);
            self.end(state);
        }
    }
}

/// Whether the thread that has waited longest is awake.
fn next_is_awake(state: &DriverState) -> bool {
    let next = state.core.longest_waiting();
    matches!(next, Some(Submitter::Waiter(next)) if next.is_awake())
}

/// Adds all of `from`: without moving them one by one if `to` is empty.
fn take_all<T>(to: &mut Vec<T>, from: &mut Vec<T>) {
    match to.is_empty() {
        true => std::mem::swap(to, from),
        false => to.append(from),
    }
}
