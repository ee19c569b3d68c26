//! Events of the nodes, for the log and the observer.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::errors::cause::Cause;
use crate::protocol::commands::action::{Action, Key};
use crate::protocol::commands::dialect::Lack;
use crate::protocol::commands::vote::Vote;
use crate::protocol::node::notice::{Notice, Notices};
use crate::values::node_set::NodeSet;

/// The maximum number of events that wait to be logged, and of those that wait for the observer.
const MAX_EVENTS: usize = 1000;

#[derive(Debug)]
pub(crate) enum NodeEvent {
    Away(Arc<Cause>),
    /// The number of releases dropped for the node, and whether it is another server.
    Back(u64, bool),
    /// The node's server may have forgotten locks.
    Quarantined(Duration, bool),
    GivesNoVotes(Arc<Cause>),
    VotesAgain(u64),
    /// A capability that the server or this user lacks. It does not affect votes.
    Lacks(Lack),
    /// A notice about a resource, not about the node's votes.
    Notice(Arc<[u8]>, Notice),
}

/// An event with its node and its time.
type TimedEvent = (usize, NodeEvent, Instant);

/// Events that wait for a thread with time to log them.
#[derive(Default)]
pub(crate) struct NodeEvents {
    queue: Vec<TimedEvent>,
    notices: Notices,
}

impl NodeEvents {
    pub(crate) fn push(&mut self, node: usize, event: Option<NodeEvent>, now: Instant) {
        if let Some(event) = event.filter(|_| self.queue.len() < MAX_EVENTS) {
            self.queue.push((node, event, now));
        }
    }

    /// Reports, once, that a node lacks something.
    pub(crate) fn lacks(&mut self, node: usize, lack: Option<Lack>, now: Instant) {
        let lack = lack.filter(|lack| self.notices.is_lacking(node, *lack));
        self.push(node, lack.map(NodeEvent::Lacks), now);
    }

    /// Reports, once, a notice about a node's answer.
    pub(crate) fn notice(
        &mut self,
        node: usize,
        key: &Key,
        action: &Action,
        vote: &Vote,
        now: Instant,
    ) {
        if let Vote::Granted(_) = vote {
            return;
        }
        if let (Action::Fence(_), Vote::Failed { cause, .. }) = (action, vote)
            && cause.meaning().concerns_rights()
        {
            self.lacks(node, Some(Lack::Fencing), now);
        }
        let notice = self.notices.on(node, key, action, vote);
        let event = notice.map(|notice| NodeEvent::Notice(key.resource.clone(), notice));
        self.push(node, event, now);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub(crate) fn take(&mut self) -> Vec<TimedEvent> {
        std::mem::take(&mut self.queue)
    }
}

/// Events that were logged and that the observer has not been notified of.
#[derive(Default)]
pub(crate) struct Unobserved(VecDeque<TimedEvent>);

impl Unobserved {
    /// Adds events. An observer that does not return must not fill the memory: events that others of the same node follow
    /// are dropped, the oldest first.
    pub(crate) fn add(&mut self, events: Vec<TimedEvent>) {
        // The others are only logged.
        let concerns_votes =
            |event: &NodeEvent| !matches!(event, NodeEvent::Notice(..) | NodeEvent::Lacks(_));
        for event in events.into_iter().filter(|one| concerns_votes(&one.1)) {
            if self.0.len() >= MAX_EVENTS {
                self.drop_oldest(event.0);
            }
            self.0.push_back(event);
        }
    }

    /// Drops the oldest event that another one of its node follows, also one of the node `next`.
    fn drop_oldest(&mut self, next: usize) {
        let mut followed = NodeSet::EMPTY;
        followed.add(next);
        let mut oldest = None;
        for (at, (node, ..)) in self.0.iter().enumerate().rev() {
            if followed.has(*node) {
                oldest = Some(at);
            }
            followed.add(*node);
        }
        // There are more events than nodes, so there is one.
        if let Some(at) = oldest {
            self.0.remove(at);
        }
    }

    pub(crate) fn pop(&mut self) -> Option<TimedEvent> {
        self.0.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::clock;

    #[test]
    fn the_latest_events_of_each_node_wait_for_an_observer_that_does_not_return() {
        let (mut unobserved, now) = (Unobserved::default(), clock::instant());
        let event = |node, count| (node, NodeEvent::VotesAgain(count), now);
        unobserved.add((0..3).map(|count| event(1, count)).collect());
        unobserved.add(vec![event(2, 0)]);
        for first in (0..5000).step_by(7) {
            unobserved.add((first..first + 7).map(|count| event(0, count)).collect());
        }
        let found = std::iter::from_fn(|| unobserved.pop()).map(|event| match event {
            (node, NodeEvent::VotesAgain(count), _) => (node, count),
            event => panic!("{event:?}"),
        });
        let end = 5005;
        let latest = (end + 2 - MAX_EVENTS as u64..end).map(|count| (0, count));
        assert!(found.eq([(1, 2), (2, 0)].into_iter().chain(latest)));
    }
}
