//! Waiters that leave: with the lock or without it, and then perhaps the queues on the nodes, too.

use std::time::Instant;

use crate::protocol::commands::node_queue::Channel;
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::waiting::wait_queue::WaitQueues;
use crate::protocol::waiting::waiter::WaiterState;

impl<W: Clone> WaitQueues<W> {
    /// Removes a waiter that leaves with the lock.
    pub(crate) fn acquired(&mut self, id: u64, now: Instant) {
        self.remove(id, true, now);
    }

    /// Removes a waiter that leaves without the lock. If a channel is returned, the waiter stays until the caller has
    /// written that this process leaves the queues on the nodes, and calls `dequeued`: so that is written before the
    /// next waiter's acquire.
    pub(crate) fn give_up(&mut self, id: u64, now: Instant) -> Option<Channel> {
        let channel = self.must_dequeue(id);
        if channel.is_none() {
            self.remove(id, false, now);
        }
        channel
    }

    /// Removes a waiter whose process has left the queues on the nodes.
    pub(crate) fn dequeued(&mut self, id: u64, now: Instant) {
        let left = self.waiters.get(&id);
        let left = left.map(|waiter| (waiter.request.kind.clone(), waiter.resource.clone()));
        self.remove(id, false, now);
        if self.several.is_empty() || mutant(Mutant::LeaveForOthers) {
            return;
        }
        // Threads that wait for one of these names in another queue of this process were in the same queues on the
        // nodes.
        let Some((kind, line)) = left else {
            return;
        };
        for name in kind.names().unwrap_or(&[line]) {
            for line in self.lines(name) {
                if let Some(poller) = self.poller(&line) {
                    poller.retry_now();
                    self.wake_front(&line);
                }
            }
        }
    }

    /// Whether the process leaves the queues on the nodes when this waiter gives up: no other thread of the process
    /// goes on waiting, or none that arrived as early, or has this label.
    fn must_dequeue(&mut self, id: u64) -> Option<Channel> {
        let waiter = self.waiters.get_mut(&id)?;
        let WaiterState::Front(poller) = &waiter.state else {
            return None;
        };
        let must_notify = poller.must_notify() && !mutant(Mutant::SwallowNotification);
        let fair = poller.is_fair();
        waiter.takes_no_hand_off = true;
        let marks = waiter.request.kind.leaves_a_mark();
        let (resource, label) = (waiter.resource.clone(), waiter.request.label.clone());
        let queue = self.queues.get(&resource)?;
        let mut others = queue.waiters.iter().filter(|other| **other != id);
        let next = others.find_map(|other| self.waiters.get(other));
        // One with another label has another place in the queue.
        let takes_place = next.is_some_and(|next| next.request.label == label);
        // The next thread here may have arrived later than waiters of other processes.
        let leaves = !takes_place || fair || marks;
        let channel = self.subscriptions.channel();
        channel.filter(|_| must_notify && leaves)
    }

    fn remove(&mut self, id: u64, acquired: bool, now: Instant) {
        let Some(waiter) = self.waiters.remove(&id) else {
            return;
        };
        let Some(queue) = self.queues.get_mut(&waiter.resource) else {
            return;
        };
        if acquired {
            queue.last_failure = None;
        }
        // The waiter's entry in the queue is skipped when it comes to the front.
        let WaiterState::Front(poller) = waiter.state else {
            if queue.waiters.len() > 2 * self.waiters.len() + 16 {
                let waiters = &self.waiters;
                queue.waiters.retain(|id| waiters.contains_key(id));
            }
            return self.remove_if_unused(&waiter.resource, now);
        };
        if poller.was_denied() {
            queue.contended = Some(now);
            self.subscriptions.keep(now);
        }
        if acquired {
            queue.hand_offs = None;
        }
        if !mutant(Mutant::NoPromotion) {
            self.promote(&waiter.resource, now);
        }
        if let Some(next) = self.poller(&waiter.resource)
            && !acquired
            && poller.must_notify()
        {
            // The notifications of the waiter that leaves count for the next one.
            next.retry_now();
        }
        if !mutant(Mutant::LeaveInSilence) {
            self.wake_front(&waiter.resource);
        }
        self.remove_if_unused(&waiter.resource, now);
    }

    pub(super) fn remove_if_unused(&mut self, resource: &[u8], now: Instant) {
        let queue = self.queues.get(resource);
        if queue.is_some_and(|queue| !queue.is_kept(now)) {
            self.queues.remove(resource);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::protocol::commands::kind::{Kind, Mark};
    use crate::protocol::commands::node_queue::QueueTurn;
    use crate::protocol::quorum::attempt::Rejection;
    use crate::protocol::waiting::wait_queue::tests::{MS, NAME, World, several, world};
    use crate::protocol::waiting::waiter::{AcquireRequest, WaitFailure, WaiterAction};
    use crate::values::label::Label;

    impl World {
        /// Has the front try, be denied, and enter the queues on the nodes.
        fn enqueue(&mut self, front: u64) {
            self.step(front, false);
            let failure = (WaitFailure::Busy(None), MS);
            let (rejection, now) = (Rejection::default(), self.now.mono);
            self.queues.failed(front, failure, &rejection, now);
            self.step(front, false);
        }
    }

    /// A thread with the same label has the place of the one that leaves, unless that one was in line by its arrival, or has
    /// left a mark.
    #[test]
    fn a_process_leaves_the_queues_on_the_nodes_unless_one_of_its_threads_takes_the_place() {
        let turn = Some(QueueTurn::new(50 * MS));
        let write = || Kind::Write(Mark::new(7, 250 * MS, 50 * MS));
        for (next, turn, kind, leaves) in [
            (None, None, Kind::Plain, true),
            (Some("web-1"), None, Kind::Plain, false),
            (Some("web-2"), None, Kind::Plain, true),
            (Some("web-1"), turn, Kind::Plain, true),
            (Some("web-1"), None, write(), true),
        ] {
            let mut world = world();
            let request = |world: &World, label: &str| AcquireRequest {
                label: Label::new(label),
                turn,
                kind: kind.clone(),
                ..world.request(None)
            };
            let front = world.join_as(0, request(&world, "web-1"));
            let waiter = next.map(|label| world.join_as(1, request(&world, label)));
            world.enqueue(front);
            world.queues.woken.clear();
            let case = format!("{next:?}, {turn:?}, {kind:?}");
            assert_eq!(world.give_up(front), leaves, "{case}");
            let Some(waiter) = waiter else {
                continue;
            };
            // The news of the one that has left counts for the next one.
            assert_eq!(world.queues.woken, [1], "{case}");
            let step = world.step(waiter, true);
            assert!(matches!(step, WaiterAction::Try(_)), "{case}: {step:?}");
        }
    }

    /// They were in the same queues on the nodes, by the name of this process.
    #[test]
    fn when_a_process_leaves_the_queues_its_threads_that_wait_for_one_of_the_names_try_again() {
        for (leaver, woken) in [(0, &[1][..]), (1, &[0]), (2, &[])] {
            let mut world = world();
            let both = several(&[NAME, b"b"]);
            let alone = world.join(0, None);
            let with_b = world.join_for(b"a, b", 1, both);
            let other = world.join_for(b"c", 2, Kind::Plain);
            let waiters = [alone, with_b, other];
            for waiter in waiters {
                world.enqueue(waiter);
            }
            world.queues.woken.clear();
            assert!(world.give_up(waiters[leaver]), "nobody takes its place");
            assert_eq!(world.queues.woken, woken, "{leaver}");
            for (thread, waiter) in waiters.into_iter().enumerate() {
                let tries = matches!(world.step(waiter, false), WaiterAction::Try(_));
                let is_woken = woken.iter().any(|woken| *woken as usize == thread);
                assert_eq!(tries, is_woken, "{leaver}: {thread}");
            }
        }
    }

    #[test]
    fn nothing_is_kept_of_the_names_that_were_waited_for() {
        let mut world = world();
        let waiter = world.join_for(b"a, b", 0, several(&[NAME, b"b"]));
        world.enqueue(waiter);
        world.give_up(waiter);
        world.pass(1000 * MS);
        assert!(!world.queues.has_queue(b"c", world.now.mono));
        assert!(world.queues.queues.is_empty() && world.queues.several.is_empty());
    }

    #[test]
    fn a_lock_that_a_thread_has_acquired_by_itself_is_handed_off_as_often_again() {
        let mut world = world();
        for thread in 0..40 {
            world.join(thread, None);
        }
        let handed_off = |world: &mut World| std::iter::from_fn(|| world.release()).count();
        assert!((0..10).all(|_| world.release().is_some()));
        let name: Arc<[u8]> = Arc::from(NAME);
        let front = world.queues.front(&name).unwrap();
        world.step(front, false);
        world.acquired(front);
        assert_eq!(handed_off(&mut world), 16);
    }
}
