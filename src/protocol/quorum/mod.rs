//! All nodes, and all operations under way.
//!
//! In reading order:
//!
//! - `votes`: the answers to one operation
//! - `operation`: one operation on all nodes (`operations`: those under way)
//! - `next`: what the thread that carries out the core's decisions must do
//! - `confirm`: releases that no operation waits for (`notified`: those that notified another process)
//! - `attempt`: the tries of one attempt to acquire
//! - `core`: the nodes and the operations together

pub(crate) mod attempt;
pub(crate) mod confirm;
pub(crate) mod core;
pub(crate) mod next;
pub(crate) mod notified;
pub(crate) mod operation;
pub(crate) mod operations;
pub(crate) mod votes;
