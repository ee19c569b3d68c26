//! Sockets: plain and TLS, connected and set up.

pub(crate) mod connection;
#[cfg(not(feature = "tls-rustls"))]
pub(crate) mod no_tls;
pub(crate) mod peer;
pub(crate) mod plain;
#[cfg(feature = "tls-rustls")]
pub(crate) mod tls;
#[cfg(feature = "tls-rustls")]
pub(crate) mod trust;
#[cfg(not(feature = "tls-rustls"))]
pub(crate) use no_tls as tls;
#[cfg(not(feature = "tls-rustls"))]
pub(crate) use no_tls as trust;
