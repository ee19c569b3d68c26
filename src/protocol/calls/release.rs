//! One release, from when the holder ends the lock to when the next waiter has it, or is notified.

use std::time::Duration;

use crate::protocol::calls::process_services::ProcessServices;
use crate::protocol::commands::action::{Action, Key, Notify};
use crate::protocol::commands::node_queue::QueueTurn;
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
    /// Boxed, since most locks are not handed off and operations are moved.
    pub(crate) next: Option<Box<(Op, W)>>,
}

impl Release {
    /// Returns the operations to submit. Must be called once. `now`: reads the clocks, which costs more than all of
    /// this if no lock has a queue.
    pub(crate) fn submit<P: ProcessServices>(
        &self,
        services: &mut P,
        now: impl Fn() -> Point,
    ) -> Submit<P::Thread> {
        let resource = &self.key.resource;
        if !self.key.kind.is_plain() {
            let notify = match services.none_waits() {
                true => Notify::First,
                false => services.queues(|queues| queues.whom_to_notify(&self.key)),
            };
            return self.alone(notify);
        }
        if self.notified_elsewhere {
            // However long the lock was held: this time that process gets a head start.
            let now = now().mono;
            services.queues(|queues| queues.notified_elsewhere(resource, now));
        }
        if self.fair {
            let turn = QueueTurn::new(self.node_timeout);
            return self.alone(Notify::FirstAndReserve(turn));
        }
        if services.none_waits() {
            return self.alone(Notify::First);
        }
        let now = now();
        let hand_off = services.queues(|queues| queues.hand_off(resource, now.mono));
        match hand_off {
            HandOff::Notify(notify) => self.alone(notify),
            HandOff::To {
                waiter,
                thread,
                ttl,
                label,
            } => {
                let attempt = Attempt::new(resource.clone(), ttl, label, None, self.node_timeout);
                self.hand_off(services, waiter, thread, attempt, now)
            }
        }
    }

    fn alone<W>(&self, notify: Notify) -> Submit<W> {
        let op = Op::new(Action::Release(notify), self.key.clone()).only_write(self.only_write);
        Submit { op, next: None }
    }

    fn hand_off<P: ProcessServices>(
        &self,
        services: &mut P,
        waiter: u64,
        thread: P::Thread,
        mut attempt: Attempt,
        now: Point,
    ) -> Submit<P::Thread> {
        let resource = &self.key.resource;
        let Ok(token) = services.token(resource) else {
            services.queues(|queues| queues.hand_off_failed(waiter, now.mono));
            return self.alone(Notify::First);
        };
        let token = match mutant(Mutant::HandOffReusesToken) {
            true => self.key.token,
            false => token,
        };
        let op = attempt.op(token, now);
        // The lock counts as held before the waiter's thread finds out: then the thread at the front need not ask the
        // nodes.
        services.held_here().add(resource);
        services.queues(|queues| queues.handed_off(waiter, attempt));
        Submit {
            next: Some(Box::new((op, thread))),
            ..self.alone(Notify::None)
        }
    }

    /// Handles the answer to the release. `handed_off`: whether it was submitted with the try of a waiter.
    pub(crate) fn answered(
        &self,
        handed_off: bool,
        answer: Answer,
        services: &mut impl ProcessServices,
        now: impl Fn() -> Point,
    ) -> Answer {
        if !self.key.kind.is_plain() {
            let notified = answer.has_notified();
            if notified || !services.none_waits() {
                let now = now().mono;
                for name in self.key.all_names() {
                    services.queues(|queues| queues.released(&name, notified, now));
                }
            }
            return answer;
        }
        let resource = &self.key.resource;
        // Before looking for waiters: a thread that joins now either finds the lock not held here, or is found.
        services.held_here().remove(resource);
        let notified = answer.has_notified();
        if handed_off {
            if !mutant(Mutant::SleepAfterHandOff) {
                services.queues(|queues| queues.wake_front(resource));
            }
        } else if notified || !services.none_waits() && !mutant(Mutant::NoWakeOnRelease) {
            let now = now().mono;
            services.queues(|queues| queues.released(resource, notified, now));
        }
        answer
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::proof::fixtures::{self, MS, NODE_TIMEOUT, key};
    use crate::protocol::calls::process_services::one_thread::OneThread;
    use crate::protocol::commands::kind::Kind;
    use crate::protocol::commands::vote::NOTIFIED;
    use crate::protocol::quorum::answer::Outcome;
    use crate::protocol::waiting::waiter::AcquireRequest;
    use crate::values::node_set::NodeSet;

    fn release(kind: Kind, fair: bool) -> Release {
        Release {
            key: key(b"a").of_kind(kind),
            notified_elsewhere: false,
            fair,
            only_write: false,
            node_timeout: NODE_TIMEOUT,
        }
    }

    /// A process that holds the lock, and in which a thread may wait for it.
    fn process(waits: bool, now: Point) -> OneThread {
        let mut services = OneThread::new();
        services.held_here.add(b"a");
        services.none_waits = !waits;
        if waits {
            let request = AcquireRequest {
                kind: Kind::Plain,
                ttl: fixtures::ttl(3000 * MS),
                label: None,
                end: None,
                must_ask: false,
                retry_delay: (50 * MS, 250 * MS),
                turn: None,
            };
            let name = Arc::from(&b"a"[..]);
            services.queues.join(&name, 1, request, None, now);
            services.queues.woken.clear();
        }
        services
    }

    #[test]
    fn a_release_hands_a_plain_lock_off_to_a_waiter_here_or_has_the_next_one_notified() {
        let now = Point::now();
        let turn = QueueTurn::new(NODE_TIMEOUT);
        let reader = || Kind::Read { waited: 0 };
        for (kind, fair, waits, expected, hands_off) in [
            (Kind::Plain, false, false, Notify::First, false),
            (Kind::Plain, false, true, Notify::None, true),
            (
                Kind::Plain,
                true,
                true,
                Notify::FirstAndReserve(turn),
                false,
            ),
            (reader(), false, false, Notify::First, false),
            (reader(), false, true, Notify::First, false),
        ] {
            let mut services = process(waits, now);
            let submit = release(kind, fair).submit(&mut services, || now);
            let Action::Release(notify) = submit.op.action else {
                panic!("it is a release");
            };
            assert_eq!(notify, expected, "{fair}, {waits}");
            assert_eq!(submit.next.is_some(), hands_off, "{fair}, {waits}");
        }
    }

    #[test]
    fn a_release_that_was_answered_wakes_the_next_waiter_here_unless_none_waits() {
        let now = Point::now();
        let reader = || Kind::Read { waited: 0 };
        // Whether a waiter elsewhere was notified, whether one is here, and whether it was handed the lock.
        for (kind, notified, waits, handed_off, wakes, yields) in [
            (Kind::Plain, false, false, false, false, false),
            (Kind::Plain, false, true, false, true, false),
            (Kind::Plain, true, true, false, true, false),
            (Kind::Plain, true, false, false, false, true),
            (Kind::Plain, false, true, true, true, false),
            (reader(), false, false, false, false, false),
            (reader(), false, true, false, true, false),
            (reader(), true, false, false, false, true),
        ] {
            let mut services = process(waits, now);
            let is_plain = kind.is_plain();
            let mut answer = fixtures::answer(Outcome::Yes(NodeSet::first(3)), 3, now);
            answer.numbers = Some((1, if notified { NOTIFIED } else { 1 }));
            release(kind, false).answered(handed_off, answer, &mut services, || now);
            let what = format!("{is_plain}, {notified}, {waits}, {handed_off}");
            assert_eq!(services.held_here.has(b"a"), !is_plain, "{what}");
            assert_eq!(!services.queues.woken.is_empty(), wakes, "{what}");
            // Its process gets a head start.
            let joins = services.queues.has_queue(b"a", now.mono);
            assert_eq!(joins, waits || yields, "{what}");
        }
    }
}
