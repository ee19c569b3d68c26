//! Results, in the words of the command and of the C interface.

use std::time::Duration;

use crate::errors::node_errors::NodeErrors;
use crate::ops::holder::Holder;
use crate::ops::literal::printable;
use crate::ops::state::{LockState, NodeState};
use crate::values::clock;

/// The kind of a lock that one holder has.
pub const LOCK: &str = "lock";
/// The kind of read locks.
pub const READERS: &str = "readers";
/// The kind of permits.
pub const PERMITS: &str = "permits";

/// The kind of lock that a holder has.
pub fn kind(holder: &Holder) -> &'static str {
    match (holder.slot(), holder.is_reader()) {
        (Some(_), _) => PERMITS,
        (None, true) => READERS,
        (None, false) => LOCK,
    }
}

/// How long a holder has had its lock, in whole seconds. `None` also if it has left it.
pub fn held_for(holder: &Holder) -> Option<Duration> {
    let since = holder.since().filter(|_| !holder.has_left())?;
    let held = clock::wall().duration_since(since);
    Some(Duration::from_secs(held.unwrap_or_default().as_secs()))
}

/// The state of a lock, or what one node reports.
#[derive(Debug)]
pub struct Seen<'a> {
    /// The state, in a word.
    pub word: &'static str,
    /// The kind of lock that is held.
    pub kind: Option<&'static str>,
    /// The holders, and how long each has it.
    pub holders: Vec<(&'a Holder, Option<Duration>)>,
    /// How long until the state ends; the inner `None`: forever. The outer `None`: there is nothing that could end.
    pub remaining: Option<Option<Duration>>,
    /// Why a node has failed.
    pub error: Option<String>,
}

impl<'a> Seen<'a> {
    fn new(word: &'static str, remaining: Option<Option<Duration>>) -> Seen<'a> {
        Seen {
            word,
            kind: None,
            holders: Vec::new(),
            remaining,
            error: None,
        }
    }

    fn held(
        kind: &'static str,
        holders: impl Iterator<Item = (&'a Holder, Option<Duration>)>,
    ) -> Seen<'a> {
        let holders: Vec<_> = holders.collect();
        let times = holders
            .iter()
            .map(|(_, left)| left.unwrap_or(Duration::MAX));
        let last = times.max().filter(|last| *last != Duration::MAX);
        Seen {
            kind: Some(kind),
            holders,
            ..Seen::new("held", Some(last))
        }
    }

    /// The state of a lock on all nodes together.
    pub fn of_lock(state: &'a LockState) -> Seen<'a> {
        match state {
            LockState::Held { .. } => Seen::held(LOCK, state.holders()),
            LockState::Readers { .. } => Seen::held(READERS, state.holders()),
            LockState::Permits { .. } => Seen::held(PERMITS, state.holders()),
            LockState::Free => Seen::new("free", None),
            LockState::Blocked { remaining } => Seen::new("blocked", Some(*remaining)),
            LockState::Unknown => Seen::new("unknown", None),
        }
    }

    /// The state of a lock on one node.
    pub fn of_node(state: &'a NodeState) -> Seen<'a> {
        match state {
            NodeState::Held { .. } => Seen::held(LOCK, state.holders()),
            NodeState::Readers { .. } => Seen::held(READERS, state.holders()),
            NodeState::Permits { .. } => Seen::held(PERMITS, state.holders()),
            NodeState::Free => Seen::new("free", None),
            NodeState::Foreign { remaining } => Seen::new("foreign", Some(*remaining)),
            NodeState::Failed(errors) => Seen {
                error: Some(cause(errors)),
                ..Seen::new("failed", None)
            },
        }
    }
}

/// The cause without the address, which is shown beside it.
fn cause(errors: &NodeErrors) -> String {
    let causes: Vec<String> = errors.iter().map(|error| error.cause.to_string()).collect();
    printable(&causes.join("; "))
}
