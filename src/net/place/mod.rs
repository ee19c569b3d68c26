//! Where a node's master is.
//!
//! In reading order:
//!
//! - `question`: one question to many servers at once
//! - `sentinels`: the answers of sentinels
//! - `cluster`: the map of a Redis Cluster
//! - `directory`: the master that these name, and how it is confirmed

pub(crate) mod cluster;
pub(crate) mod directory;
pub(crate) mod question;
pub(crate) mod sentinels;
