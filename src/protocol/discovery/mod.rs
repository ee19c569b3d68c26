//! Where the master of a node is, by the answers of those that are asked: sentinels, or servers of a Redis Cluster.
//! (`net/discovery` asks them.)
//!
//! In reading order:
//!
//! - `master_answers`: the answers of sentinels and Cluster servers about a master, weighed
//! - `directory_questions`: the questions to these servers, which callers share, and when each is asked
//! - `found_master`: the master that these answers name, and for how long that counts
//! - `opinions`: the answers of all servers together, and why those that name no master do not

pub(crate) mod directory_questions;
pub(crate) mod found_master;
pub(crate) mod master_answers;
pub(crate) mod opinions;
