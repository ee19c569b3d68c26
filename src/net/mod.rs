//! Sockets, threads and clocks: what drives the protocol.
//!
//! In reading order:
//!
//! - `plain`: a TCP or Unix socket
//! - `tls`: a TLS connection of the redis crate
//! - `connection`: either of them, connected and set up
//! - `drive`: the leader's loop and the attendants
//! - `lane`: who leads, and how the others wait

pub(crate) mod connection;
pub(crate) mod drive;
pub(crate) mod lane;
pub(crate) mod plain;
pub(crate) mod tls;
