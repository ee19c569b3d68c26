//! All nodes: operations under way, their votes and verdicts.

pub(crate) mod attempt;
pub(crate) mod confirm;
pub(crate) mod core;
pub(crate) mod next;
pub(crate) mod notified;
pub(crate) mod operation;
pub(crate) mod operations;
pub(crate) mod votes;
