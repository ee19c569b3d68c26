//! The attempts of a call, and what follows the result of each.

use std::sync::Arc;
use std::time::Duration;

use crate::errors::error::Error;
use crate::protocol::calls::acquire::{ASK, Acquire, CallEnd, CallState, CallStep, Trying};
use crate::protocol::calls::lease::Lease;
use crate::protocol::calls::process_services::ProcessServices;
use crate::protocol::commands::action::Key;
use crate::protocol::commands::node_queue::QueueEntry;
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::quorum::attempt::{Attempt, Rejection, Tried};
use crate::protocol::quorum::op::FirstWait;
use crate::protocol::waiting::waiter::{PlainTry, WaitFailure};
use crate::values::arithmetic::Deadline;
use crate::values::clock::Point;

impl<W: Clone> Acquire<W> {
    /// Begins an attempt.
    pub(super) fn attempt(
        &mut self,
        entry: Option<Arc<QueueEntry>>,
        services: &mut impl ProcessServices<Thread = W>,
        now: Point,
    ) -> CallStep<W> {
        self.attempts = self.attempts.saturating_add(1);
        let (resource, label) = (self.resource.clone(), self.request.label.clone());
        let attempt = Attempt::new(resource, self.request.ttl, label, entry, self.node_timeout)
            .of_kind(self.request.kind.clone());
        let attempt = match self.waiter.is_some() || !self.request.kind.is_plain() {
            true => attempt.since(self.since),
            false => attempt,
        };
        self.was_held_here = services.held_here().has(&self.resource);
        self.state = CallState::Tries(Trying {
            attempt,
            attempt_began: now.mono,
            handed_off: false,
            pauses_until: None,
        });
        self.make_try(services, now)
    }

    /// Makes a try, with a fresh token.
    pub(super) fn make_try(
        &mut self,
        services: &mut impl ProcessServices<Thread = W>,
        now: Point,
    ) -> CallStep<W> {
        let token = match services.token(&self.resource) {
            Ok(token) => token,
            Err(error) => {
                self.fail(CallEnd::Error(error), services);
                return self.next(services, now);
            }
        };
        // Only an attempt makes tries.
        let CallState::Tries(trying) = &mut self.state else {
            return CallStep::Done(Err(CallEnd::Cancelled));
        };
        trying.pauses_until = None;
        let first_wait = self.request.must_ask.then(|| FirstWait {
            since: trying.attempt_began,
            asks: now.mono + ASK,
        });
        CallStep::Try(trying.attempt.op(token, now).first_wait(first_wait))
    }

    /// Handles the result of an attempt. The flags: whether the lock counts as held here already, and whether nodes have
    /// notified another process.
    pub(super) fn attempted(
        &mut self,
        (tried, handed_off, notified_elsewhere): (Tried, bool, bool),
        services: &mut impl ProcessServices<Thread = W>,
        now: Point,
    ) {
        let is_held = matches!(tried, Tried::Granted(..) | Tried::TooSlow(..));
        match (is_held && self.request.kind.is_plain(), handed_off) {
            // From now on the lock counts as held here; a lock that was handed off already does.
            (true, false) => services.held_here().add(&self.resource),
            (false, true) if !mutant(Mutant::FailedHandOffIsHeld) => {
                services.held_here().remove(&self.resource)
            }
            _ => {}
        }
        let ttl = self.request.ttl;
        let lease = |key: Key, deadline: Deadline| {
            let mut lease = Lease::new(key, ttl, deadline);
            lease.notified_elsewhere = notified_elsewhere;
            lease
        };
        let (failure, rejection) = match tried {
            Tried::Granted(key, deadline) => {
                self.state = CallState::Done(Ok(lease(key, deadline)));
                if let Some((id, _)) = self.waiter.take() {
                    services.queues(|queues| queues.acquired(id, now.mono));
                }
                return;
            }
            Tried::TooSlow(key, deadline) => {
                self.state = CallState::TooSlow(lease(key, deadline));
                return;
            }
            Tried::Denied(rejection) => match rejection.other_use(self.quorum) {
                Some((node, other)) => {
                    let names = self.request.kind.names().map_or(1, <[_]>::len);
                    self.state = CallState::Leaves(CallEnd::InOtherUse(node, other, names));
                    return;
                }
                None => (WaitFailure::Busy(None), rejection),
            },
            Tried::Unavailable(errors) => match errors.same_server() {
                Some(mistake) => {
                    self.state = CallState::Leaves(CallEnd::Error(Error::Config(mistake)));
                    return;
                }
                None => (WaitFailure::Unavailable(errors), Rejection::default()),
            },
            Tried::Expired => (WaitFailure::TooSlow, Rejection::default()),
        };
        self.failed(failure, &rejection, services, now);
    }

    /// Handles an attempt that gave no lock.
    pub(super) fn failed(
        &mut self,
        failure: WaitFailure,
        rejection: &Rejection,
        services: &mut impl ProcessServices<Thread = W>,
        now: Point,
    ) {
        self.asks = true;
        if let Some(id) = self.waiter_id() {
            let failed = (failure.clone(), self.pause(&failure, services));
            if !matches!(failure, WaitFailure::TooSlow) || !mutant(Mutant::TooSlowIsTrying) {
                services.queues(|queues| queues.failed(id, failed, rejection, now.mono));
            }
            self.state = CallState::Waits;
        } else if self.is_over(now) || failure.is_hopeless() {
            self.asks = false;
            let failure = match failure {
                // Those who wait look at more than one denial.
                WaitFailure::Busy(None) => {
                    WaitFailure::Busy(rejection.named(self.quorum, now.mono))
                }
                other => other,
            };
            self.state = CallState::Done(Err(failure.into()));
        } else {
            let pause = self.pause(&failure, services);
            let held_here = self.was_held_here || services.held_here().has(&self.resource);
            let tried = PlainTry {
                failure,
                pause,
                held_here,
            };
            self.join(Some(tried), services, now);
        }
    }

    fn pause(
        &self,
        failure: &WaitFailure,
        services: &mut impl ProcessServices<Thread = W>,
    ) -> Duration {
        let (min, max) = self.request.retry_delay;
        let pause = services.jitter(min, max);
        match failure {
            // No pause is longer than until enough nodes vote.
            WaitFailure::Unavailable(nodes) => nodes.retry_after().map_or(pause, |wait| {
                pause.min(wait.saturating_add(services.jitter(Duration::ZERO, min)))
            }),
            _ => pause,
        }
    }
}
