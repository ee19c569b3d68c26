//! All nodes, and all operations under way.
//!
//! In reading order:
//!
//! - `op`: a request to all nodes
//! - `votes`: the votes on one operation (`answer`: what becomes of them)
//! - `view`: the state of all nodes at one time
//! - `operation`: one operation on all nodes, and in `operation/verdict` its verdict (`operations`: those under way)
//! - `thread_step`: what the thread that carries out the core's decisions must do
//! - `release_confirmation`: releases that no operation waits for (`notified`: those that notified another process;
//!   `late_grants`: permits of which a node's answer comes behind the verdict)
//! - `attempt`: the tries of one attempt to acquire
//! - `core`: the nodes and the operations together (`core/leader_steps`: the leader's steps; `core/sending`,
//!   `core/replies`: what is written to the nodes and read from them; `core/links`: their connections)

pub(crate) mod answer;
pub(crate) mod attempt;
pub(crate) mod core;
pub(crate) mod late_grants;
pub(crate) mod notified;
pub(crate) mod op;
pub(crate) mod operation;
pub(crate) mod operations;
pub(crate) mod release_confirmation;
pub(crate) mod thread_step;
pub(crate) mod view;
pub(crate) mod votes;
