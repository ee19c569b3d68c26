//! Options, and where the nodes are: URLs, credentials, TLS.

pub(crate) mod cluster_url;
pub(crate) mod credentials;
pub(crate) mod into_node;
pub(crate) mod node_address;
pub(crate) mod options;
pub(crate) mod sentinel_url;
pub(crate) mod tls;
pub(crate) mod url;
pub(crate) mod url_parameters;
pub(crate) mod url_parts;
