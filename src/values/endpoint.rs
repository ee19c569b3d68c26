//! The address of a server of a Redis Cluster.

/// Host and port, as maps and redirects name a server.
pub(crate) type Endpoint = (String, u16);
