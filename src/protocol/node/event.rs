//! Events of the nodes, for the log and the observer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::errors::cause::Cause;
use crate::protocol::commands::dialect::Lack;
use crate::protocol::commands::script::{Action, Key};
use crate::protocol::commands::vote::Vote;
use crate::protocol::node::notice::{Notice, Notices};

/// The maximum number of events that wait to be logged.
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

/// Events that wait for a thread with time to log them.
#[derive(Default)]
pub(crate) struct Events {
    /// Each event with its node and its time.
    queue: Vec<(usize, NodeEvent, Instant)>,
    notices: Notices,
}

impl Events {
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

    pub(crate) fn take(&mut self) -> Vec<(usize, NodeEvent, Instant)> {
        std::mem::take(&mut self.queue)
    }
}
