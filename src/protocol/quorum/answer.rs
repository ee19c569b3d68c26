//! The answer of the nodes to one operation.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::errors::cause::Cause;
use crate::errors::error::NodeErrors;
use crate::errors::lock_error::LostReason;
use crate::protocol::commands::vote::NOTIFIED;
use crate::protocol::node::node::Node;
use crate::protocol::quorum::votes::{Remarks, Votes};
use crate::values::quorum::{NodeSet, Question, Tally};

pub(crate) enum Outcome {
    /// The nodes that the operation was sent to.
    Yes(NodeSet),
    No,
    Unavailable {
        errors: NodeErrors,
        /// Whether the operation failed only because of connections that turned out closed, or servers that do not have
        /// the key.
        closed: bool,
        /// Whether the operation failed because `Op::until` passed before a quorum answered.
        useless: bool,
    },
}

pub(crate) struct Answer {
    pub(crate) outcome: Outcome,
    pub(crate) tally: Tally,
    /// The smallest and the largest number that was granted: a fencing token, or the result of a release.
    pub(crate) numbers: Option<(u64, u64)>,
    pub(crate) remarks: Remarks,
    /// Whether an earlier release of the same resource notified another process, as was learnt only now.
    pub(crate) notified_elsewhere: bool,
    /// When the operation was first sent, or would have been.
    pub(crate) begun: Instant,
}

impl Answer {
    /// The answer to an operation that was not carried out.
    pub(crate) fn none(now: Instant) -> Answer {
        Answer {
            outcome: Outcome::Unavailable {
                errors: NodeErrors::new(Vec::new(), None),
                closed: false,
                useless: false,
            },
            tally: Tally::default(),
            numbers: None,
            remarks: Remarks::default(),
            notified_elsewhere: false,
            begun: now,
        }
    }

    /// Why a lock is lost that too few nodes hold.
    pub(crate) fn lost_reason(&self) -> LostReason {
        self.remarks.lost_reason()
    }

    /// Whether a release has notified another process.
    pub(crate) fn has_notified(&self) -> bool {
        self.numbers.is_some_and(|(_, most)| most == NOTIFIED)
    }

    /// The nodes that did not answer although a majority did, after `waited`.
    pub(crate) fn missing(
        &self,
        nodes: &[Node],
        waited: Duration,
        connect_timeout: Duration,
    ) -> NodeErrors {
        let trying = Arc::new(Cause::NotConnected(waited, connect_timeout));
        let mut votes = Votes {
            tally: self.tally,
            remarks: self.remarks.clone(),
            ..Votes::default()
        };
        for (at, node) in nodes.iter().enumerate() {
            let known = node.cause().is_some()
                || votes.remarks.causes.iter().any(|(failed, _)| *failed == at);
            if !known {
                votes.remarks.make().causes.push((at, trying.clone()));
            }
        }
        votes.errors(Question::Answer, self.tally.granted, nodes)
    }
}
