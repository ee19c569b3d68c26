//! Sockets, threads and clocks: the driver of the protocol.
//!
//! In reading order:
//!
//! - `socket`: connections to servers
//! - `discovery`: where a node's master is
//! - `driver`: the threads that carry out what the protocol decides
//! - `cluster`: operations that follow their keys through a Redis Cluster

pub(crate) mod cluster;
pub(crate) mod discovery;
pub(crate) mod driver;
pub(crate) mod socket;
