//! What the threads are to do that carry out what the core decides.

use std::time::Instant;

use crate::protocol::node::address::FoundMaster;
use crate::values::quorum::NodeSet;

/// What a thread is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadRole {
    /// It has the connections of the nodes that are connected. There is one at a time.
    Leader,
    /// It serves this node, which is not connected.
    Worker(usize),
    /// It confirms releases that no operation waits for.
    Confirmer,
}

/// What a thread should do.
#[derive(Debug)]
pub(crate) enum Next {
    /// The leader: a node needs a worker. Its connection is of no use any more, if it has one.
    StartWorker {
        node: usize,
    },
    /// The leader: a node needs a worker, which goes on with its connection.
    HandOver {
        node: usize,
    },
    /// The leader: releases are to be confirmed.
    StartConfirmer,
    /// The leader: ask whether the node's address is still that of its master. Another thread asks the directory.
    Ask {
        node: usize,
        found: FoundMaster,
    },
    /// A worker: connect its node. Go on with the present connection meanwhile, if there is one.
    Connect {
        node: usize,
    },
    /// A worker: from now on use the connection that was made last. Reset the one before.
    Adopt {
        node: usize,
    },
    Send {
        nodes: NodeSet,
        until: Instant,
    },
    /// If `until` is now: take what is here, or find that the connection was closed.
    Recv {
        node: usize,
        until: Instant,
    },
    /// Until then, or until there is news.
    Wait {
        until: Instant,
    },
    /// The confirmer: lead, unless another thread does. That finds what has come.
    Lead,
    /// A worker: its node is connected again. Leave the connection to the leader, and end.
    Reconnected,
    /// There is nothing to do: end. (The leader: no caller waits for an answer.)
    Finished,
}
