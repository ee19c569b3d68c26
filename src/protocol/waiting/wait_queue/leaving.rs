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
        let WaiterState::Front(poller) = waiter.state else {
            // The waiter's entry in the queue is skipped when it comes to the front.
            if queue.waiters.len() > 2 * self.waiters.len() + 16 {
                let waiters = &self.waiters;
                queue.waiters.retain(|id| waiters.contains_key(id));
            }
            return self.remove_if_unused(&waiter.resource, now);
        };
        if queue.waiters.front() == Some(&id) {
            queue.waiters.pop_front();
        }
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
