//! What carries out an operation on the servers that have its key, where a node is many servers and each has a part of the
//! keys (rule R45).

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{Arc, Weak};

use crate::net::place::directory::Place;
use crate::protocol::node::debt::Debt;
use crate::protocol::quorum::operation::{Answer, Op};

pub(crate) trait Route: Send + Sync + UnwindSafe + RefUnwindSafe {
    /// Carries out an operation.
    fn run(&self, op: Op) -> Answer;

    /// The answer to an operation once it was sent on to where its key is. `from`: where it was answered so.
    fn follow(&self, from: &[Place], op: Op, answer: Answer) -> Answer;

    /// The same for many at once.
    fn follow_all(&self, from: &[Place], ops: Vec<Op>, answers: Vec<Answer>) -> Vec<Answer>;

    /// Sends on what is owed of locks that were given up, each by a node, in another thread.
    fn release(&self, releases: Vec<(usize, Debt)>);

    /// Closes what leads to some servers. In another thread, since a call may be what has used them last; but here if the
    /// program has no more use for the nodes than for locks that it has: it may end right after this.
    fn close_lane(&self, closing: Box<dyn FnOnce() + Send>);

    /// Whether what these places are still to be sent when they are closed is sent to others. (A thread may be about to
    /// reach them yet.)
    fn hands_over(&self, places: &[Place]) -> bool;

    /// Sends these releases, each of a node, to the servers that have the keys now.
    fn take_over(&self, releases: Vec<(usize, Debt)>);
}

/// `None` where each node is one server, and where nothing uses the nodes any more.
pub(crate) fn upgraded(route: Option<&Weak<dyn Route>>) -> Option<Arc<dyn Route>> {
    route.and_then(Weak::upgrade)
}
