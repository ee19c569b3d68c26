//! The way to the servers that have an operation's key, if a node is many servers that each have a part of the keys
//! (rule R45).

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{Arc, Weak};

use crate::net::place::directory::Place;
use crate::protocol::node::debt::Debt;
use crate::protocol::quorum::answer::Answer;
use crate::protocol::quorum::op::Op;

pub(crate) trait Route: Send + Sync + UnwindSafe + RefUnwindSafe {
    /// Carries out an operation.
    fn run(&self, op: Op) -> Answer;

    /// The answer to an operation once it was sent on to its key's servers. `from`: the servers that returned `answer`.
    fn follow(&self, from: &[Place], op: Op, answer: Answer) -> Answer;

    /// The answers to many operations, as [`follow`](Route::follow) returns them.
    fn follow_all(&self, from: &[Place], ops: Vec<Op>, answers: Vec<Answer>) -> Vec<Answer>;

    /// Sends on the debts of locks that were given up, each with its node, in another thread.
    fn release(&self, releases: Vec<(usize, Debt)>);

    /// Closes the lane to some servers. In another thread, since a call may be its last user; but here if the program
    /// needs the nodes only for locks that it has: the program may end right after this.
    fn close_lane(&self, closing: Box<dyn FnOnce() + Send>);

    /// Whether the releases that these places still owe when they are closed are handed to others. (A thread may be
    /// about to reach them yet.)
    fn hands_over(&self, places: &[Place]) -> bool;

    /// Sends these releases, each of a node, to the servers that have the keys now.
    fn take_over(&self, releases: Vec<(usize, Debt)>);
}

/// The route. `None` if each node is one server, or if nothing uses the nodes any longer.
pub(crate) fn upgraded(route: Option<&Weak<dyn Route>>) -> Option<Arc<dyn Route>> {
    route.and_then(Weak::upgrade)
}
