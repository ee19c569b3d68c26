//! The subscriptions over which the nodes notify this process that locks are free, one for each node. A thread, the
//! node's *subscriber*, keeps each of them up while it is needed: it does what `WaitQueues::subscriber` returns.
//!
//! ```text
//!   Unneeded ── needed ──▶ ToStart ── its worker is being started ──▶ Connecting ── subscribed ──▶ Subscribed
//!      ▲                                                             ▲                            │
//!      └── no longer needed, or the worker cannot be started         └────────── failed ──────────┘
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::protocol::commands::node_queue::Channel;
use crate::protocol::quorum::op::Op;
use crate::values::arithmetic::majority;
use crate::values::node_set::NodeSet;

/// How long subscriptions and idle queues are kept after their last use.
pub(crate) const KEPT_IDLE: Duration = Duration::from_secs(1);
/// The pause before a worker that could not be started is started again.
const START_AGAIN: Duration = Duration::from_millis(500);
/// The maximum of notifications passed on to other processes, and the period to which it applies.
const MAX_FORWARDS: (u32, Duration) = (100, Duration::from_millis(100));

/// An event at a subscriber.
#[derive(Debug)]
pub(crate) enum SubscriberEvent {
    /// The subscriber begins, or its pause is over.
    Begins,
    Opened,
    /// The node has sent a message that a lock on this name may be free.
    Message(Arc<[u8]>),
    /// The message about this name was passed on.
    Forwarded(Arc<[u8]>),
    /// The node has sent nothing for a time.
    Nothing,
    /// The subscription has ended, or could not be made.
    Failed,
    /// The thread could not be started, or a bug has ended it.
    Ended,
}

/// The next step of a subscriber.
pub(crate) enum SubscriberTask {
    /// Subscribe to this process's channel.
    Open(Channel),
    /// Receive, until a message arrives, or none has for a time.
    Receive,
    /// Pass a message on to another process.
    Forward(Op),
    /// Pause for a random time within these bounds.
    Pause((Duration, Duration)),
    /// The subscription is no longer needed.
    End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SubscriptionStatus {
    /// This process has no channel.
    Unavailable,
    /// There is no subscriber. `failed`: it could not be started.
    Unneeded {
        failed: bool,
    },
    /// A subscriber must be started.
    ToStart {
        failed: bool,
    },
    /// `failed`: the last try of its subscriber failed.
    Connecting {
        failed: bool,
    },
    Subscribed,
}

impl SubscriptionStatus {
    fn has_failed(self) -> bool {
        match self {
            SubscriptionStatus::Unavailable => true,
            SubscriptionStatus::Unneeded { failed }
            | SubscriptionStatus::ToStart { failed }
            | SubscriptionStatus::Connecting { failed } => failed,
            SubscriptionStatus::Subscribed => false,
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Subscriptions {
    /// `None`: this process cannot be notified.
    channel: Option<Channel>,
    /// The status for each node.
    statuses: Vec<SubscriptionStatus>,
    needed_until: Option<Instant>,
    /// Until when workers that could not be started are not started again.
    failed_until: Option<Instant>,
    /// Notifications passed on in the current period, and when that began.
    forwards: Option<(u32, Instant)>,
}

impl Subscriptions {
    pub(crate) fn new(nodes: usize, channel: Option<Channel>) -> Subscriptions {
        let status = match channel {
            Some(_) => SubscriptionStatus::Unneeded { failed: false },
            None => SubscriptionStatus::Unavailable,
        };
        Subscriptions {
            channel,
            statuses: vec![status; nodes],
            needed_until: None,
            failed_until: None,
            forwards: None,
        }
    }

    pub(crate) fn channel(&self) -> Option<Channel> {
        self.channel
    }

    pub(crate) fn nodes(&self) -> usize {
        self.statuses.len()
    }

    // ---- what a waiter may rely on

    /// The number of subscriptions by which each release, which reaches a quorum, is noticed.
    fn enough(&self) -> usize {
        self.nodes() + 1 - majority(self.nodes())
    }

    pub(crate) fn suffice(&self) -> bool {
        let is_subscribed =
            |status: &&SubscriptionStatus| **status == SubscriptionStatus::Subscribed;
        self.statuses.iter().filter(is_subscribed).count() >= self.enough()
    }

    /// Whether so many have failed that it is useless to wait for the others.
    pub(crate) fn is_hopeless(&self) -> bool {
        let is_well = |status: &&SubscriptionStatus| !status.has_failed();
        self.statuses.iter().filter(is_well).count() < self.enough()
    }

    // ---- whether they are needed

    /// Keeps the existing subscriptions for a while.
    pub(crate) fn keep(&mut self, now: Instant) {
        self.needed_until = Some(now + KEPT_IDLE);
    }

    /// Requests all subscriptions, for a while from now on.
    pub(crate) fn need(&mut self, now: Instant) {
        self.keep(now);
        let pauses = self.failed_until.is_some_and(|until| now < until);
        for status in &mut self.statuses {
            if let SubscriptionStatus::Unneeded { failed } = *status
                && !(failed && pauses)
            {
                *status = SubscriptionStatus::ToStart { failed };
            }
        }
    }

    pub(crate) fn is_recently_needed(&self, now: Instant) -> bool {
        self.needed_until.is_some_and(|until| now < until)
    }

    /// Whether there is no worker, and none waits to be started.
    pub(crate) fn is_idle(&self) -> bool {
        let idle = |status: &SubscriptionStatus| {
            matches!(
                status,
                SubscriptionStatus::Unavailable | SubscriptionStatus::Unneeded { .. }
            )
        };
        self.statuses.iter().all(idle)
    }

    // ---- the workers

    /// The nodes for which the caller now starts a worker.
    pub(crate) fn take_to_start(&mut self) -> NodeSet {
        let mut nodes = NodeSet::EMPTY;
        for (node, status) in self.statuses.iter_mut().enumerate() {
            if let SubscriptionStatus::ToStart { failed } = *status {
                *status = SubscriptionStatus::Connecting { failed };
                nodes.add(node);
            }
        }
        nodes
    }

    fn set(&mut self, node: usize, status: SubscriptionStatus) {
        if let Some(old) = self.statuses.get_mut(node) {
            *old = status;
        }
    }

    pub(crate) fn subscribed(&mut self, node: usize) {
        self.set(node, SubscriptionStatus::Subscribed);
    }

    /// Notes that a subscription has ended, or could not be made. Its worker tries again.
    pub(crate) fn failed(&mut self, node: usize) {
        self.set(node, SubscriptionStatus::Connecting { failed: true });
    }

    pub(crate) fn cannot_start_worker(&mut self, node: usize, now: Instant) {
        self.failed_until = Some(now + START_AGAIN);
        self.set(node, SubscriptionStatus::Unneeded { failed: true });
    }

    /// Notes that no subscription is needed, so the worker of this node ends.
    pub(crate) fn end(&mut self, node: usize) {
        for status in &mut self.statuses {
            // After a pause all failures may have passed.
            if let SubscriptionStatus::Unneeded { failed }
            | SubscriptionStatus::ToStart { failed }
            | SubscriptionStatus::Connecting { failed } = status
            {
                *failed = false;
            }
        }
        self.set(node, SubscriptionStatus::Unneeded { failed: false });
    }

    // ---- notifications for other processes

    /// Whether a notification that no thread of this process waits for is passed on. The number is bounded, so that a
    /// flood of notifications does not become a flood of commands.
    pub(crate) fn may_forward(&mut self, now: Instant) -> bool {
        let (most, period) = MAX_FORWARDS;
        let (count, since) = self
            .forwards
            .filter(|(_, since)| now < *since + period)
            .unwrap_or((0, now));
        self.forwards = Some((count + 1, since));
        count < most
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::clock;

    fn subscriptions(nodes: usize) -> Subscriptions {
        Subscriptions::new(nodes, Some(Channel::new([1; 16])))
    }

    #[test]
    fn without_a_channel_no_worker_is_started() {
        let mut subscriptions = Subscriptions::new(3, None);
        subscriptions.need(clock::instant());
        assert_eq!(subscriptions.take_to_start(), NodeSet::EMPTY);
        assert!(subscriptions.is_hopeless() && subscriptions.is_idle());
    }

    #[test]
    fn each_node_gets_one_worker_and_another_one_if_the_first_cannot_be_started() {
        let (mut subscriptions, now) = (subscriptions(3), clock::instant());
        assert!(subscriptions.is_idle());
        subscriptions.need(now);
        subscriptions.need(now);
        assert!(!subscriptions.is_idle());
        assert_eq!(subscriptions.take_to_start(), NodeSet::first(3));
        subscriptions.need(now);
        assert_eq!(subscriptions.take_to_start(), NodeSet::EMPTY);
        // Each waiter that looks again needs the subscription.
        subscriptions.cannot_start_worker(1, now);
        subscriptions.need(now + START_AGAIN - Duration::from_millis(1));
        assert_eq!(subscriptions.take_to_start(), NodeSet::EMPTY);
        subscriptions.need(now + START_AGAIN);
        assert_eq!(
            subscriptions.take_to_start(),
            std::iter::once(1).collect::<NodeSet>()
        );
    }

    #[test]
    fn they_suffice_if_every_majority_of_the_nodes_has_one_of_them() {
        for (nodes, enough) in [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)] {
            let mut subscriptions = subscriptions(nodes);
            for node in 0..enough {
                assert!(!subscriptions.suffice(), "{node} of {nodes}");
                subscriptions.subscribed(node);
            }
            assert!(subscriptions.suffice(), "{enough} of {nodes}");
            for node in 0..=nodes - enough {
                assert!(!subscriptions.is_hopeless(), "{node} of {nodes} failed");
                subscriptions.failed(node);
            }
            assert!(subscriptions.is_hopeless(), "{nodes}");
            // When they are no longer needed, failures are forgotten.
            subscriptions.end(0);
            assert!(!subscriptions.is_hopeless(), "{nodes}");
        }
    }
}
