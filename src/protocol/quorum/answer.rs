//! The answer of the nodes to one operation.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::errors::cause::Cause;
use crate::errors::lock_error::LostReason;
use crate::errors::node_errors::NodeErrors;
use crate::protocol::commands::vote::NOTIFIED;
use crate::protocol::node::node::Node;
use crate::protocol::quorum::votes::{Remarks, Votes};
use crate::values::arithmetic::{Question, Tally};
use crate::values::node_set::NodeSet;

pub(crate) enum Outcome {
    /// The nodes that the operation was sent to.
    Yes(NodeSet),
    No,
    Unavailable {
        /// Boxed, since failures are rare and answers are moved.
        errors: Box<NodeErrors>,
        /// Whether the operation failed only because of connections that turned out closed, or servers that do not have
        /// the key.
        closed: bool,
        /// Whether the operation failed because `Op::until` passed before a quorum answered.
        useless: bool,
        /// Whether an acquire was not sent yet, since it waits for first connections, and its program is to be asked whether to
        /// go on.
        unsent: bool,
    },
}

pub(crate) struct Answer {
    pub(crate) outcome: Outcome,
    pub(crate) tally: Tally,
    /// The smallest and the largest number that was granted: a fencing token, a permit's slot, or the result of a
    /// release.
    pub(crate) numbers: Option<(u64, u64)>,
    pub(crate) remarks: Remarks,
    /// Whether an earlier release of the same resource notified another process, as was learnt only now.
    pub(crate) notified_elsewhere: bool,
    /// When the time of the operation began: when it was first sent, or would have been.
    pub(crate) begun: Instant,
}

impl Answer {
    /// The answer to an operation that was not carried out.
    pub(crate) fn none(now: Instant) -> Answer {
        Answer {
            outcome: Outcome::Unavailable {
                errors: NodeErrors::new(Vec::new(), None).into(),
                closed: false,
                useless: false,
                unsent: false,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::fixtures::{MS, answer};
    use crate::values::clock::Point;

    #[test]
    fn a_release_has_notified_if_any_node_reports_that() {
        let now = Point::now();
        for (numbers, notified) in [
            (None, false),
            (Some((1, 1)), false),
            (Some((1, NOTIFIED)), true),
            (Some((NOTIFIED, NOTIFIED)), true),
        ] {
            let answer = Answer {
                numbers,
                ..answer(Outcome::No, 0, now)
            };
            assert_eq!(answer.has_notified(), notified, "{numbers:?}");
        }
    }

    #[test]
    fn nodes_that_did_not_answer_are_named_with_their_own_causes_or_the_time_that_was_waited() {
        let now = Point::now();
        let mut answer = answer(Outcome::Yes(NodeSet::first(5)), 2, now);
        answer.tally.fail(2);
        let closed = Arc::new(Cause::Closed("mid-reply".into()));
        answer.remarks.make().causes.push((2, closed));
        let mut nodes: Vec<Node> = (0..5).map(|_| Node::new("x".into(), None)).collect();
        nodes[3].away(Arc::new(Cause::Closed("at once".into())));
        let missing = answer.missing(&nodes, 700 * MS, 1000 * MS);
        let texts = missing.iter().map(|error| (error.node, error.to_string()));
        match &*texts.collect::<Vec<_>>() {
            [(2, own), (3, away), (4, trying)] => {
                assert!(own.contains("mid-reply"), "{own}");
                assert!(away.contains("at once"), "{away}");
                assert!(trying.contains("700 ms"), "{trying}");
            }
            other => panic!("{other:?}"),
        }
    }
}
