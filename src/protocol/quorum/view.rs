//! The state of all nodes at one time, as operations need it.

use std::time::Instant;

use crate::errors::cause::Cause;
use crate::protocol::commands::vote::Proof;
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::node::node::Node;
use crate::protocol::node::read_order::Reader;
use crate::protocol::node::standing::Standing;
use crate::values::node_set::NodeSet;

#[derive(Clone, Copy)]
pub(crate) struct View {
    /// The number of nodes.
    pub(crate) nodes: usize,
    pub(crate) connected: NodeSet,
    /// Nodes that are sent operations on locks that are held: their answers count.
    pub(crate) held: NodeSet,
    /// Nodes that are sent acquires: their answers count.
    pub(crate) grants: NodeSet,
    /// Nodes that did not answer while they were waited for.
    pub(crate) slow: NodeSet,
    /// Whether two nodes are one server (rule R1).
    pub(crate) same_server: bool,
    /// Whether replies are coming promptly.
    pub(crate) replies_flowing: bool,
}

impl View {
    /// The state of nodes whose answers all count.
    pub(crate) fn steady(nodes: usize, reader: &Reader) -> View {
        let all = NodeSet::first(nodes);
        View {
            nodes,
            connected: all,
            held: all,
            grants: all,
            slow: reader.slow(),
            same_server: false,
            replies_flowing: reader.replies_flowing(),
        }
    }

    pub(crate) fn of(nodes: &[Node], reader: &Reader, now: Instant) -> View {
        let mut view = View {
            connected: NodeSet::EMPTY,
            held: NodeSet::EMPTY,
            grants: NodeSet::EMPTY,
            ..View::steady(nodes.len(), reader)
        };
        let mut always = NodeSet::EMPTY;
        for (node_index, node) in nodes.iter().enumerate() {
            if node.always_votes() {
                always.add(node_index);
            } else if node.is_connected() {
                view.add(node_index, node.standing(now));
            } else {
                let cause = node.cause().map(|cause| &**cause);
                view.same_server |= matches!(cause, Some(Cause::SameServer(_)));
            }
        }
        view.connected = view.connected.or(always);
        view.held = view.held.or(always);
        view.grants = view.grants.or(always);
        view
    }

    /// Adds a node that is connected.
    fn add(&mut self, node: usize, standing: Standing) {
        self.connected.add(node);
        match standing {
            Standing::Votes => {
                self.held.add(node);
                self.grants.add(node);
            }
            Standing::Extends(_) => self.held.add(node),
            Standing::Unconfirmed(_) | Standing::Not(_) | Standing::Away => {}
        }
    }

    /// Nodes to which an operation is sent whose answers need this proof. (What was sent counts when it is answered, also where
    /// the node has ceased to be one of these.)
    pub(crate) fn counting(&self, needs: Proof) -> NodeSet {
        match needs {
            Proof::None => self.connected,
            Proof::Look if mutant(Mutant::UnconfirmedExtends) => self.connected,
            Proof::Look => self.held,
            Proof::Witness if mutant(Mutant::UnconfirmedGrants) => self.connected,
            Proof::Witness => self.grants,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::values::clock;

    #[test]
    fn one_server_behind_two_nodes_is_noticed_whichever_nodes_are_away_besides() {
        let now = clock::instant();
        let same_server = |causes: [Option<Cause>; 3]| {
            let mut nodes = Vec::new();
            for cause in causes {
                let mut node = Node::new("x".into(), None);
                cause.map(|cause| node.away(Arc::new(cause)));
                nodes.push(node);
            }
            View::of(&nodes, &Reader::new(3, now), now).same_server
        };
        let (same, closed) = (Cause::SameServer(0), Cause::Closed("it ended".into()));
        assert!(!same_server([None, Some(closed.clone()), None]));
        assert!(same_server([
            None,
            Some(same.clone()),
            Some(closed.clone())
        ]));
        assert!(same_server([Some(closed), None, Some(same)]));
    }

    #[test]
    fn nodes_that_are_away_are_sent_nothing() {
        let now = clock::instant();
        let nodes: Vec<Node> = (0..3).map(|_| Node::new("x".into(), None)).collect();
        let view = View::of(&nodes, &Reader::new(3, now), now);
        for proof in [Proof::None, Proof::Look, Proof::Witness] {
            assert_eq!(view.counting(proof), NodeSet::EMPTY);
        }
    }

    #[test]
    fn each_operation_is_sent_where_its_answer_counts() {
        let (connected, held) = (NodeSet::first(3), NodeSet::first(2));
        let view = View {
            nodes: 3,
            connected,
            held,
            grants: NodeSet::first(1),
            slow: NodeSet::EMPTY,
            same_server: false,
            replies_flowing: true,
        };
        assert_eq!(view.counting(Proof::None), connected);
        assert_eq!(view.counting(Proof::Look), held);
        assert_eq!(view.counting(Proof::Witness), NodeSet::first(1));
    }
}
