//! The protocol, pure: values that do no I/O and read no clock. Bytes, results and times come in as
//! arguments; what to do next goes out. `net` drives them.
//!
//! In reading order, each room above those that use it:
//!
//! - [the rules](#the-rules-of-the-protocol), below
//! - `mutants`: how each rule can be broken, for tests
//! - `commands`: commands and replies as bytes
//! - `discovery`: where the master of a node is
//! - `node`: one node, over its connections
//! - `quorum`: all nodes, and all operations under way
//! - `waiting`: threads and processes that wait for a lock
//! - `calls`: one call each, from its beginning to its end
//! - `cluster`: the map of a Redis Cluster, and how operations follow their keys
#![doc = ""]
#![doc = include_str!("rules.md")]

pub(crate) mod calls;
pub(crate) mod cluster;
pub(crate) mod commands;
pub(crate) mod discovery;
pub(crate) mod mutants;
pub(crate) mod node;
pub(crate) mod quorum;
pub(crate) mod waiting;
