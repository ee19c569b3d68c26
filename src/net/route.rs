//! What carries out an operation on the servers that have its key, where a node is many servers and each has a part of the
//! keys (rule R45).

use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::{Arc, Weak};

use crate::net::directory::Place;
use crate::protocol::operation::{Answer, Op};
use crate::protocol::script::Key;

pub(crate) trait Route: Send + Sync + UnwindSafe + RefUnwindSafe {
    /// Carries out an operation.
    fn run(&self, op: Op) -> Answer;

    /// The answer to an operation once it was sent on to where its key is. `from`: where it was answered so.
    fn follow(&self, from: &[Place], op: Op, answer: Answer) -> Answer;

    /// The same for many at once.
    fn follow_all(&self, from: &[Place], ops: Vec<Op>, answers: Vec<Answer>) -> Vec<Answer>;

    /// Sends releases on, each of a node, in another thread.
    fn release(&self, releases: Vec<(usize, Key)>);

    /// Whether the program may still use the nodes, and not only locks that it has.
    fn is_open(&self) -> bool;

    /// Writes releases, each of a node, to the servers that have the keys now: the one that they were for is no longer used.
    fn take_over(&self, releases: Vec<(usize, Key)>);
}

/// `None` where each node is one server, and where nothing uses the nodes any more.
pub(crate) fn upgraded(route: Option<&Weak<dyn Route>>) -> Option<Arc<dyn Route>> {
    route.and_then(Weak::upgrade)
}
