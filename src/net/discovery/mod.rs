//! Where a node's master is.
//!
//! In reading order:
//!
//! - `given_node`: a node as it was given, and how its servers are reached
//! - `ask_each`: several questions at once, for a call that waits for all answers, or for enough
//! - `server_question`: one question to one server
//! - `asker`: questions to many servers at once, whose answers are for all threads
//! - `sentinel_addresses`: the answer of one name, behind which there may be several sentinels
//! - `sentinels`: the answers of sentinels
//! - `cluster_servers`: the map of a Redis Cluster, and the questions for it
//! - `master`: the master that these name, and how it is confirmed
//! - `place`: what a node may be: a server, such a master, or a Cluster

pub(crate) mod ask_each;
pub(crate) mod asker;
pub(crate) mod cluster_servers;
pub(crate) mod given_node;
pub(crate) mod master;
pub(crate) mod place;
mod sentinel_addresses;
pub(crate) mod sentinels;
pub(crate) mod server_question;
