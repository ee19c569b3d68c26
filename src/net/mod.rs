//! Sockets, threads and clocks: what drives the protocol.
//!
//! In reading order:
//!
//! - `plain`: a TCP or Unix socket
//! - `tls`: a TLS connection of the redis crate
//! - `connection`: either of them, connected and set up
//! - `visit`: a connection to each node beside those of the locks
//! - `ear`: a connection over which a node tells of releases
//! - `drive`: the leader's loop and the attendants
//! - `lane`: who leads, and how the others wait
//! - `differential`: a test of the simulation's model of a server against real ones

pub(crate) mod connection;
#[cfg(test)]
mod differential;
pub(crate) mod drive;
pub(crate) mod ear;
pub(crate) mod lane;
pub(crate) mod plain;
pub(crate) mod tls;
pub(crate) mod visit;
