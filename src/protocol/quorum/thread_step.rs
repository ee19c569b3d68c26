//! The steps of the threads that carry out the core's decisions.

use std::time::Instant;

use crate::protocol::discovery::found_master::FoundMaster;
use crate::values::node_set::NodeSet;

/// The role of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadRole {
    /// Serves the connections of the nodes that are connected. There is one leader at a time.
    Leader,
    /// Serves this node, which is not connected.
    Worker(usize),
    /// Confirms releases that no operation waits for.
    Confirmer,
}

/// The next step of a thread.
#[derive(Debug)]
pub(crate) enum ThreadStep {
    /// The leader: a node needs a worker. Its connection, if it has one, is no longer usable.
    StartWorker {
        node: usize,
    },
    /// The leader: a node needs a worker, which goes on with its connection.
    HandOver {
        node: usize,
    },
    /// The leader: releases must be confirmed.
    StartConfirmer,
    /// The leader: ask whether the node's address is still that of its master. Another thread asks the directory.
    ConfirmMaster {
        node: usize,
        found: Box<FoundMaster>,
    },
    /// A worker: connect its node. Go on with the present connection meanwhile, if there is one.
    Connect {
        node: usize,
    },
    /// A worker: from now on use the connection that was made last. Reset the previous one.
    Adopt {
        node: usize,
    },
    Send {
        nodes: NodeSet,
        until: Instant,
    },
    /// Receive. If `until` is now: take the bytes that are here, or find that the connection was closed.
    Recv {
        node: usize,
        until: Instant,
    },
    /// Wait until then, or until there is news.
    Wait {
        until: Instant,
    },
    /// The confirmer: lead, unless another thread does. The leader finds the replies that arrived.
    TryToLead,
    /// A worker: its node is connected again. Leave the connection to the leader, and end.
    Reconnected,
    /// There is nothing to do: end. (The leader: no caller waits for an answer.)
    Finished,
}
