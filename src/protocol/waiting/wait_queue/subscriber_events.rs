//! The subscribers of the nodes, and their messages that a lock may be free.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::protocol::commands::kind::Kind;
use crate::protocol::commands::node_queue::QueueTurn;
use crate::protocol::quorum::op::Op;
use crate::protocol::waiting::subscriptions::{SubscriberEvent, SubscriberTask};
use crate::protocol::waiting::wait_queue::WaitQueues;
use crate::protocol::waiting::waiter::Queued;
use crate::values::node_set::NodeSet;

/// The pause before a subscription is tried again.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(700));

impl<W: Clone> WaitQueues<W> {
    /// The nodes for which the caller now starts a subscriber.
    pub(crate) fn take_to_start(&mut self) -> NodeSet {
        self.subscriptions.take_to_start()
    }

    /// Returns what the subscriber of a node does next, after this event.
    pub(crate) fn subscriber(
        &mut self,
        node: usize,
        event: SubscriberEvent,
        now: Instant,
    ) -> SubscriberTask {
        match event {
            SubscriberEvent::Begins => match self.subscriptions.channel() {
                Some(channel) if self.still_needed(node, now) => SubscriberTask::Open(channel),
                _ => SubscriberTask::End,
            },
            SubscriberEvent::Opened => {
                self.subscribed(node, now);
                self.receive(node, now)
            }
            SubscriberEvent::Message(resource) => match self.forward(&resource, node, now) {
                Some(op) => SubscriberTask::Forward(op),
                None => self.receive(node, now),
            },
            SubscriberEvent::Forwarded(resource) => {
                self.notify_front(&resource, node);
                self.receive(node, now)
            }
            SubscriberEvent::Nothing => self.receive(node, now),
            SubscriberEvent::Failed => {
                self.subscriptions.failed(node);
                self.wake_enqueued();
                SubscriberTask::Pause(RETRY)
            }
            SubscriberEvent::Ended => {
                self.subscriptions.cannot_start_worker(node, now);
                self.wake_enqueued();
                SubscriberTask::End
            }
        }
    }

    fn receive(&mut self, node: usize, now: Instant) -> SubscriberTask {
        match self.still_needed(node, now) {
            true => SubscriberTask::Receive,
            false => SubscriberTask::End,
        }
    }

    /// Whether a waiter needs subscriptions. If not, the subscriber of `node` ends.
    fn still_needed(&mut self, node: usize, now: Instant) -> bool {
        let needed = self.subscriptions.is_recently_needed(now)
            || self.waiters.values().any(Queued::is_enqueued);
        if !needed {
            self.subscriptions.end(node);
        }
        needed
    }

    fn subscribed(&mut self, node: usize, now: Instant) {
        self.subscriptions.subscribed(node);
        let mut resources: Vec<Arc<[u8]>> = self.queues.keys().cloned().collect();
        // Sorted, for the same order in each run of the simulation.
        resources.sort_unstable();
        let mut rng = self.rng.clone();
        for resource in resources {
            if let Some(poller) = self.poller(&resource)
                && poller.is_enqueued()
            {
                poller.subscribed(&mut rng, now);
                self.wake_front(&resource);
            }
        }
        self.rng = rng;
    }

    /// Wakes the enqueued waiters: they must not wait for subscriptions that have failed.
    fn wake_enqueued(&mut self) {
        let enqueued = self.waiters.values().filter(|waiter| waiter.is_enqueued());
        self.woken
            .extend(enqueued.map(|waiter| waiter.thread.clone()));
    }

    /// Handles a node's message that a lock may be free. If no thread of this process waits for the lock, returns the
    /// operation that passes the message on to another process.
    fn forward(&mut self, resource: &Arc<[u8]>, node: usize, now: Instant) -> Option<Op> {
        if self.notify_front(resource, node) || !self.subscriptions.may_forward(now) {
            return None;
        }
        let (channel, turn) = (
            self.subscriptions.channel()?,
            QueueTurn::new(self.node_timeout),
        );
        let queue = self.queues.get(resource);
        let kind = queue.map_or(Kind::Plain, |queue| queue.kind.clone());
        // Without a label: mostly the node took the waiter out of the queue before it sent the message.
        let (lock, waiter) = ((resource.clone(), kind), (channel, None));
        let op = Op::dequeue(lock, waiter, turn, false).only_write(true);
        // Every node notifies independently, so pass it on only on this node.
        Some(op.to(std::iter::once(node).collect()))
    }

    /// Makes the threads at the fronts try again. Returns whether there are any. Also for a message that was passed on:
    /// a thread may have enqueued since, and been removed by that.
    fn notify_front(&mut self, resource: &[u8], node: usize) -> bool {
        let mut found = false;
        for line in self.lines(resource) {
            if let Some(poller) = self.poller(&line) {
                poller.notified(node);
                self.wake_front(&line);
                found = true;
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::quorum::attempt::Rejection;
    use crate::protocol::waiting::wait_queue::tests::{MS, NAME, World, world};
    use crate::protocol::waiting::waiter::{WaitFailure, WaiterAction};

    impl World {
        fn subscriber(&mut self, event: SubscriberEvent) -> SubscriberTask {
            self.queues.subscriber(0, event, self.now.mono)
        }

        fn must_forward(&mut self, resource: &[u8]) -> bool {
            let message = SubscriberEvent::Message(Arc::from(resource));
            matches!(self.subscriber(message), SubscriberTask::Forward(_))
        }
    }

    #[test]
    fn subscriptions_are_made_only_for_other_processes_and_end_a_second_later() {
        let mut world = world();
        let waiter = world.join(0, None);
        let WaiterAction::Park(until) = world.step(waiter, true) else {
            panic!("a thread of this process holds it");
        };
        let starts = world.queues.take_to_start();
        assert!(starts.is_empty() && until <= world.now.mono + 50 * MS);
        world.pass(until - world.now.mono);
        assert!(matches!(world.step(waiter, true), WaiterAction::Park(_)));
        assert_eq!(world.queues.take_to_start(), NodeSet::first(1));
        let task = world.subscriber(SubscriberEvent::Begins);
        assert!(matches!(task, SubscriberTask::Open(_)));
        let task = world.subscriber(SubscriberEvent::Opened);
        assert!(matches!(task, SubscriberTask::Receive));
        assert!(matches!(
            world.step(waiter, true),
            WaiterAction::Try(Some(_))
        ));
        assert!(!world.must_forward(NAME));
        let rejection = Rejection::default();
        let failure = (WaitFailure::Busy(None), MS);
        world
            .queues
            .failed(waiter, failure, &rejection, world.now.mono);
        world.pass(5000 * MS);
        assert!(world.receives(), "it still waits");
        world.acquired(waiter);
        assert!(
            world.queues.has_queue(NAME, world.now.mono),
            "it was contended recently"
        );
        world.pass(999 * MS);
        assert!(world.receives());
        world.pass(MS);
        assert!(!world.receives());
        assert!(!world.queues.has_queue(NAME, world.now.mono));
        assert!(
            world.must_forward(NAME),
            "another process is to be notified"
        );
    }

    #[test]
    fn a_flood_of_messages_is_passed_on_in_part() {
        let mut world = world();
        let passed = (0..1000).filter(|_| world.must_forward(b"x"));
        assert_eq!(passed.count(), 100);
        world.pass(100 * MS);
        assert!(world.must_forward(b"x"));
    }
}
