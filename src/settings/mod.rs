//! Options, and where the nodes are.
//!
//! In reading order:
//!
//! - `credentials`: passwords that change
//! - `tls`: certificates, keys and names for TLS
//! - `options`: times, limits and everything else that can be set
//! - `url`: the URL of a server (`url_parameters`: its parameters, and those that are refused; `url_parts`: the parts
//!   that URLs with several hosts share)
//! - `sentinel_url`, `cluster_url`: the URLs of a set that sentinels watch, and of a Redis Cluster
//! - `node_address`: the address of a node
//! - `into_node`: conversions into node addresses (`node_list`: several URLs in one text)
//! - `environment`: nodes and options in variables and files (`nodes_file`: the nodes in a file; `time`: times)

pub(crate) mod cluster_url;
pub(crate) mod credentials;
// Public items for the command alone.
#[cfg_attr(not(feature = "cli"), allow(unreachable_pub))]
pub(crate) mod environment;
pub(crate) mod into_node;
pub(crate) mod node_address;
pub(crate) mod node_list;
#[cfg_attr(not(feature = "cli"), allow(unreachable_pub))]
pub(crate) mod nodes_file;
pub(crate) mod options;
pub(crate) mod sentinel_url;
#[cfg_attr(not(feature = "cli"), allow(unreachable_pub))]
pub(crate) mod time;
pub(crate) mod tls;
pub(crate) mod url;
pub(crate) mod url_parameters;
pub(crate) mod url_parts;
