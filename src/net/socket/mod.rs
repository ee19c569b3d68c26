//! Connections to servers.
//!
//! In reading order:
//!
//! - `plain`: a TCP or Unix socket
//! - `trust`: the certificates that TLS trusts and shows
//! - `peer`: a server, and how it is reached
//! - `tls`: TLS over a TCP socket (`no_tls`: in its place, without that feature)
//! - `connection`: either of them
//! - `conversation`: commands and replies over a connection, one after the other
//! - `set_up`: the commands that set a connection up, and their replies
//! - `open`: how a connection is opened and set up

pub(crate) mod connection;
pub(crate) mod conversation;
#[cfg(not(feature = "tls-rustls"))]
pub(crate) mod no_tls;
pub(crate) mod open;
pub(crate) mod peer;
#[cfg(not(schedules))]
pub(crate) mod plain;
pub(crate) mod set_up;
#[cfg(feature = "tls-rustls")]
pub(crate) mod tls;
#[cfg(feature = "tls-rustls")]
pub(crate) mod trust;
#[cfg(schedules)]
pub(crate) use crate::schedules::plain;
#[cfg(not(feature = "tls-rustls"))]
pub(crate) use no_tls as tls;
#[cfg(not(feature = "tls-rustls"))]
pub(crate) use no_tls as trust;
