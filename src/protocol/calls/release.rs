//! One release, from when the holder ends the lock to when the next waiter has it, or is notified.

use std::time::Duration;

use crate::protocol::calls::process::Process;
use crate::protocol::commands::queue::QueueTurn;
use crate::protocol::commands::script::{Action, Key, Notify};
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::quorum::answer::Answer;
use crate::protocol::quorum::attempt::Attempt;
use crate::protocol::quorum::op::Op;
use crate::protocol::waiting::wait_queue::hand_offs::HandOff;
use crate::values::clock::Point;

/// The release of a lock. Until the release is over, the lock counts as held here.
pub(crate) struct Release {
    pub(crate) key: Key,
    /// Whether, before the lock was acquired, another process had been notified that it is free.
    pub(crate) notified_elsewhere: bool,
    /// Whether the nodes decide which waiter is next, here or elsewhere.
    pub(crate) fair: bool,
    /// Whether the caller does not wait for the answers.
    pub(crate) only_write: bool,
    pub(crate) node_timeout: Duration,
}

/// The operations to submit: the release, and right behind it, in the same write, the first try of a waiter here.
pub(crate) struct Submit<W> {
    pub(crate) op: Op,
    pub(crate) next: Option<(Op, W)>,
}

impl Release {
    /// Returns the operations to submit. Must be called once. `now`: reads the clocks, which costs more than all of
    /// this if no lock has a queue.
    pub(crate) fn submit<P: Process>(
        &self,
        process: &mut P,
        now: impl Fn() -> Point,
    ) -> Submit<P::Thread> {
        let resource = &self.key.resource;
        if !self.key.kind.is_plain() {
            let notify = match process.is_idle() {
                true => Notify::First,
                false => process.queues(|queues| queues.whom_to_notify(&self.key)),
            };
            return self.alone(notify);
        }
        if self.notified_elsewhere {
            // However long the lock was held: this time that process gets a head start.
            let now = now().mono;
            process.queues(|queues| queues.notified_elsewhere(resource, now));
        }
        if self.fair {
            let turn = QueueTurn::new(self.node_timeout);
            return self.alone(Notify::FirstAndReserve(turn));
        }
        if process.is_idle() {
            return self.alone(Notify::First);
        }
        let now = now();
        let hand_off = process.queues(|queues| queues.hand_off(resource, now.mono));
        match hand_off {
            HandOff::Notify(notify) => self.alone(notify),
            HandOff::To {
                waiter,
                thread,
                ttl,
                label,
            } => {
                let attempt = Attempt::new(resource.clone(), ttl, label, None, self.node_timeout);
                self.hand_off(process, waiter, thread, attempt, now)
            }
        }
    }

    fn alone<W>(&self, notify: Notify) -> Submit<W> {
        let op = Op::new(Action::Release(notify), self.key.clone()).only_write(self.only_write);
        Submit { op, next: None }
    }

    fn hand_off<P: Process>(
        &self,
        process: &mut P,
        waiter: u64,
        thread: P::Thread,
        mut attempt: Attempt,
        now: Point,
    ) -> Submit<P::Thread> {
        let resource = &self.key.resource;
        let Ok(token) = process.token(resource) else {
            process.queues(|queues| queues.hand_off_failed(waiter, now.mono));
            return self.alone(Notify::First);
        };
        let token = match mutant(Mutant::HandOffReusesToken) {
            true => self.key.token,
            false => token,
        };
        let op = attempt.op(token, now);
        // The lock counts as held before the waiter's thread finds out: then the thread at the front need not ask the
        // nodes.
        process.held_here().add(resource);
        process.queues(|queues| queues.handed_off(waiter, attempt));
        Submit {
            next: Some((op, thread)),
            ..self.alone(Notify::None)
        }
    }

    /// Handles the answer to the release. `handed_off`: whether it was submitted with the try of a waiter.
    pub(crate) fn answered(
        &self,
        handed_off: bool,
        answer: Answer,
        process: &mut impl Process,
        now: impl Fn() -> Point,
    ) -> Answer {
        if !self.key.kind.is_plain() {
            let notified = answer.has_notified();
            if notified || !process.is_idle() {
                let now = now().mono;
                for name in self.key.all_names() {
                    process.queues(|queues| queues.released(&name, notified, now));
                }
            }
            return answer;
        }
        let resource = &self.key.resource;
        // Before looking for waiters: a thread that joins now either finds the lock not held here, or is found.
        process.held_here().remove(resource);
        let notified = answer.has_notified();
        if handed_off {
            if !mutant(Mutant::SleepAfterHandOff) {
                process.queues(|queues| queues.wake_front(resource));
            }
        } else if notified || !process.is_idle() && !mutant(Mutant::NoWakeOnRelease) {
            let now = now().mono;
            process.queues(|queues| queues.released(resource, notified, now));
        }
        answer
    }
}
