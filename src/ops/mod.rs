//! Questions that people and monitoring ask the nodes, beside the locks and over separate connections.
//!
//! In reading order:
//!
//! - `query`: questions to all nodes in parallel
//! - `holder`: the holder of a lock, as it is shown
//! - `waiters`: the processes that wait for a lock
//! - `state`: the nodes' answers about a lock, and what they mean together
//! - `inspect`: the holders of a lock, node by node (`inspect_reply`: the answer of one node)
//! - `break_lock`: the release of a lock by another process
//! - `named_holder`: the holder whom a text names
//! - `scan`: the keys of a node
//! - `list`: the locks on the nodes, and what is wrong with them
//! - `found_locks`: which locks were found, and which are leftovers
//! - `check`: whether the nodes are fit for locks
//! - `interview`: the questions of a check to one node
//! - `replicas`: whether the user may lock on the servers that may take a master's place
//! - `rules`: what is wrong with nodes, by their answers
//! - `report`: the result of a check
//! - `once_per`: work that is done once in a period
//! - `literal`, `result_words`: results, in the words of the command and of C
//! - `json`, `result_json`: results as JSON

pub(crate) mod break_lock;
pub(crate) mod check;
pub(crate) mod found_locks;
pub(crate) mod holder;
pub(crate) mod inspect;
pub(crate) mod inspect_reply;
pub(crate) mod interview;
#[cfg(any(feature = "capi", feature = "cli"))]
pub(crate) mod json;
pub(crate) mod list;
#[cfg(any(feature = "capi", feature = "cli"))]
#[cfg_attr(not(feature = "cli"), allow(unreachable_pub))]
pub(crate) mod literal;
#[cfg(feature = "capi")]
pub(crate) mod named_holder;
#[cfg_attr(not(feature = "cli"), allow(unreachable_pub))]
pub(crate) mod once_per;
pub(crate) mod query;
pub(crate) mod replicas;
pub(crate) mod report;
#[cfg(any(feature = "capi", feature = "cli"))]
pub(crate) mod result_json;
#[cfg(any(feature = "capi", feature = "cli"))]
#[cfg_attr(not(feature = "cli"), allow(unreachable_pub, dead_code))]
pub(crate) mod result_words;
pub(crate) mod rules;
pub(crate) mod scan;
pub(crate) mod state;
pub(crate) mod waiters;
