//! The votes on one operation, and the remarks that came with them.

use std::ops::Deref;
use std::sync::Arc;

use crate::errors::cause::Cause;
use crate::errors::lock_error::LostReason;
use crate::errors::node_errors::{NodeError, NodeErrors};
use crate::protocol::commands::kind_votes::Numbers;
use crate::protocol::commands::lock_info::LockInfo;
use crate::protocol::commands::vote::{Instead, OtherUse};
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::node::node::Node;
use crate::protocol::node::restart_guard::retry_after;
use crate::values::arithmetic::{Question, Tally, spare};
use crate::values::node_set::NodeSet;

/// The details of nodes' votes besides yes and no. Mostly there are none, and then they take no room.
#[derive(Clone, Debug, Default)]
pub(crate) struct Remarks(Option<Box<RemarkLists>>);

#[derive(Clone, Debug, Default)]
pub(crate) struct RemarkLists {
    /// The lock's state, from nodes that refused it.
    pub(crate) lock_infos: Vec<LockInfo>,
    /// The successors of the lock, on nodes that no longer hold it.
    pub(crate) instead: Vec<Instead>,
    /// Nodes where the name is in other use.
    pub(crate) other_uses: Vec<(usize, OtherUse)>,
    /// Why nodes failed.
    pub(crate) causes: Vec<(usize, Arc<Cause>)>,
}

static NO_REMARKS: RemarkLists = RemarkLists {
    lock_infos: Vec::new(),
    instead: Vec::new(),
    other_uses: Vec::new(),
    causes: Vec::new(),
};

impl Deref for Remarks {
    type Target = RemarkLists;

    fn deref(&self) -> &RemarkLists {
        self.0.as_deref().unwrap_or(&NO_REMARKS)
    }
}

impl Remarks {
    /// Why a lock is lost that too few nodes hold: one of another holder's at any node shows that this holder's time
    /// there was over, and a missing key shows nothing more.
    pub(crate) fn lost_reason(&self) -> LostReason {
        match &*self.instead {
            [] => LostReason::NotHeld,
            all if all.contains(&Instead::Another) => LostReason::Taken,
            _ => LostReason::Deleted,
        }
    }

    /// Returns the lists, to add a remark.
    pub(crate) fn make(&mut self) -> &mut RemarkLists {
        self.0.get_or_insert_default()
    }
}

/// How the nodes have voted.
#[derive(Default)]
pub(crate) struct Votes {
    pub(crate) tally: Tally,
    /// The smallest and the largest number that was granted.
    pub(crate) numbers: Option<(u64, u64)>,
    /// The number that each node granted, if not all count together.
    pub(crate) by_node: Numbers,
    /// Those that nodes granted whose grants are no votes: it came late, or the node may not vote now.
    pub(crate) uncounted: Numbers,
    pub(crate) remarks: Remarks,
    /// Nodes that failed because their connection was closed, or because another server has the key: the command was
    /// not carried out, or its undo follows it, and another try may be carried out.
    pub(crate) closed: NodeSet,
}

impl Votes {
    pub(crate) fn grant(&mut self, node: usize, number: u64) {
        if !self.tally.voted().has(node) {
            let (least, most) = self.numbers.unwrap_or((number, number));
            self.numbers = Some((least.min(number), most.max(number)));
            self.tally.grant(node);
        }
    }

    pub(crate) fn fail(&mut self, node: usize, cause: &Arc<Cause>) {
        if !self.tally.voted().has(node) {
            self.tally.fail(node);
            self.remarks.make().causes.push((node, cause.clone()));
            if matches!(cause.answered(), Cause::Closed(_) | Cause::Redirected(_)) {
                self.closed.add(node);
            }
        }
    }

    /// Nodes that answered with an error, or did so when they were connected.
    pub(crate) fn refused(&self) -> NodeSet {
        self.failed_by(|cause| {
            matches!(
                cause,
                Cause::Refused(_) | Cause::OtherSlots(_) | Cause::Redirected(_) | Cause::Demoted(_)
            )
        })
    }

    /// Nodes that did not carry out the operation, since another server has the key.
    pub(crate) fn redirected(&self) -> NodeSet {
        self.failed_by(|cause| matches!(cause, Cause::Redirected(_)))
    }

    /// Nodes that failed for a cause that `is_it` accepts.
    fn failed_by(&self, is_it: impl Fn(&Cause) -> bool) -> NodeSet {
        let causes = self.remarks.causes.iter();
        let failed = causes.filter(|(_, cause)| is_it(cause));
        failed.map(|(node, _)| *node).collect()
    }

    /// The failed nodes, each with its cause. Nodes that were merely not waited for are not among them.
    pub(crate) fn errors(
        &self,
        question: Question,
        sent_to: NodeSet,
        nodes: &[Node],
    ) -> NodeErrors {
        let answered = self.tally.granted.or(self.tally.denied);
        let error = |(node_index, node): (usize, &Node)| {
            let mut causes = self.remarks.causes.iter();
            let own = causes.rfind(|(failed, _)| *failed == node_index);
            let away = node.cause().filter(|_| !sent_to.has(node_index));
            let cause = own.map(|(_, cause)| cause).or(away);
            let cause = cause.filter(|_| !answered.has(node_index))?;
            Some(NodeError {
                node: node_index,
                address: node.address.clone(),
                cause: cause.clone(),
            })
        };
        let errors: Vec<NodeError> = nodes.iter().enumerate().filter_map(error).collect();
        let wait = |error: &NodeError| match *error.cause {
            Cause::Quarantined(left, _) | Cause::Stepped(_, left) => Some(left),
            _ => None,
        };
        let waits = errors.iter().filter_map(wait).collect();
        let spare = spare(nodes.len());
        let retry_after = retry_after(waits, errors.len(), spare);
        let instead = self.remarks.instead.iter();
        let gone = instead.filter(|what| **what == Instead::Nothing).count();
        let errors = NodeErrors::new(errors, retry_after);
        let errors = errors
            .with_votes(question, self.tally, nodes.len())
            .with_gone(gone);
        // Judged by the answers to this operation.
        let refused = self.failed_by(|cause| cause.is_final() || mutant(Mutant::AnyFailureIsFinal));
        match refused.and(self.tally.failed).len() > spare {
            true => errors.for_good(),
            false => errors,
        }
    }
}

#[cfg(test)]
impl From<Vec<LockInfo>> for Remarks {
    fn from(lock_infos: Vec<LockInfo>) -> Remarks {
        let lists = RemarkLists {
            lock_infos,
            ..RemarkLists::default()
        };
        Remarks(Some(Box::new(lists)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::fixtures::MS;

    #[test]
    fn a_lock_is_taken_if_any_node_has_it_for_another_holder() {
        let reason = |instead: &[Instead]| {
            let mut remarks = Remarks::default();
            remarks.make().instead = instead.to_vec();
            remarks.lost_reason()
        };
        let (another, nothing) = (Instead::Another, Instead::Nothing);
        assert_eq!(reason(&[]), LostReason::NotHeld);
        assert_eq!(reason(&[nothing]), LostReason::Deleted);
        assert_eq!(reason(&[nothing, another]), LostReason::Taken);
    }

    #[test]
    fn errors_report_when_enough_nodes_give_votes_again() {
        let nodes: Vec<Node> = (0..3).map(|_| Node::new("x".into(), None)).collect();
        let retry_after = |causes: [Cause; 2]| {
            let mut votes = Votes::default();
            for (node, cause) in causes.into_iter().enumerate() {
                votes.fail(node, &Arc::new(cause));
            }
            let errors = votes.errors(Question::Acquire, NodeSet::first(3), &nodes);
            errors.retry_after()
        };
        let sits_out = || Cause::Quarantined(700 * MS, false);
        let stepped = || Cause::Stepped(5 * MS, 900 * MS);
        let closed = || Cause::Closed("it ended".into());
        assert_eq!(retry_after([sits_out(), stepped()]), Some(700 * MS));
        assert_eq!(retry_after([stepped(), closed()]), Some(900 * MS));
        assert_eq!(retry_after([closed(), closed()]), None);
    }

    /// A node that has nothing may be free for another holder; one that denies has another's lock.
    #[test]
    #[cfg(feature = "cli")]
    fn errors_tell_nodes_that_have_nothing_from_those_that_have_another_holder_s_lock() {
        let nodes: Vec<Node> = (0..3).map(|_| Node::new("x".into(), None)).collect();
        let mut votes = Votes::default();
        (0..3).for_each(|node| votes.tally.deny(node));
        let instead = [Instead::Nothing, Instead::Another, Instead::Nothing];
        votes.remarks.make().instead = instead.to_vec();
        let errors = votes.errors(Question::Held, NodeSet::first(3), &nodes);
        assert_eq!(errors.denied(), 1);
    }

    /// An operation is sent once more where a connection was closed.
    #[test]
    fn errors_name_only_nodes_that_have_not_answered_each_with_its_last_cause() {
        let nodes: Vec<Node> = (0..3).map(|_| Node::new("x".into(), None)).collect();
        let mut votes = Votes::default();
        for node in [0, 1] {
            let closed = Arc::new(Cause::Closed("at once".into()));
            votes.remarks.make().causes.push((node, closed));
        }
        votes.grant(0, 1);
        votes.fail(1, &Arc::new(Cause::refused("OOM command not allowed")));
        let errors = votes.errors(Question::Held, NodeSet::first(3), &nodes);
        let errors = errors.iter().map(|error| (error.node, error.to_string()));
        match &*errors.collect::<Vec<_>>() {
            [(1, cause)] => assert!(cause.contains("OOM"), "{cause}"),
            other => panic!("{other:?}"),
        }
    }
}
