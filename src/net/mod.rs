//! Sockets, threads and clocks: what drives the protocol.
//!
//! In reading order:
//!
//! - `plain`: a TCP or Unix socket
//! - `trust`: which certificates TLS trusts and shows
//! - `peer`: a node, and how it is reached
//! - `tls`: TLS over a TCP socket
//! - `connection`: any of them, connected and set up
//! - `question`: what many servers are asked at once
//! - `sentinels`: what the sentinels of a set say
//! - `cluster`: what the servers of a Redis Cluster say
//! - `directory`: where a node's master is
//! - `subscription`: a connection over which a node notifies this process of releases
//! - `leader`: what the leading thread has, and the threads that wait for it
//! - `report`: what is logged of the nodes, and what the observer is notified of
//! - `nodes`: the leader's loop and the workers
//! - `driver`: which thread leads, and how the others wait
//! - `route`: operations that follow their keys from server to server
//! - `differential`: a test of the simulation's model of a server against real ones

pub(crate) mod cluster;
pub(crate) mod driver;
pub(crate) mod place;
pub(crate) mod socket;
