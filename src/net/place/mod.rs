//! Where a node's master is.
//!
//! In reading order:
//!
//! - `question`: one question to one server, and what all answers mean
//! - `asker`: the threads that ask many servers at once
//! - `sentinels`: the answers of sentinels
//! - `cluster`: the map of a Redis Cluster
//! - `master`: the master that these name, and how it is confirmed
//! - `directory`: what a node may be: a server, such a master, or a Cluster

pub(crate) mod asker;
pub(crate) mod cluster;
pub(crate) mod directory;
pub(crate) mod master;
pub(crate) mod question;
pub(crate) mod sentinels;
