//! Checks of what a program passes in: the nodes, and the name of a lock.

use std::sync::Arc;

use redis::ConnectionAddr;

use crate::errors::error::Error;
use crate::errors::shown::Shown;
use crate::net::socket::trust;
use crate::protocol::commands::witness_keys;
use crate::settings::node_address::NodeAddress;
use crate::values::config_error::ConfigError;
use crate::values::node_set::MAX_NODES;
use crate::values::prefix::Prefix;

/// A resource is a Redis key. The maximum is far above what a name needs.
const MAX_RESOURCE: usize = 64 * 1024;

/// Checks that each node's vote counts once, and that this build can reach all nodes.
pub(super) fn nodes(nodes: &[NodeAddress]) -> Result<(), ConfigError> {
    let count = nodes.len();
    if count == 0 || count > MAX_NODES {
        let text = match count {
            0 => "no nodes given: at least 1 is needed, 3 or 5 are usual".to_owned(),
            _ => format!("{count} nodes given, the limit is {MAX_NODES}"),
        };
        return Err(ConfigError::new(text));
    }
    for (i, node) in nodes.iter().enumerate() {
        if let Err(reason) = reachable(node.info().addr()) {
            return Err(ConfigError::new(format!("node {i} ({node}) {reason}")));
        }
        let same = |other: &NodeAddress| other.is_same(node);
        if let Some(other) = nodes.iter().take(i).position(same) {
            return Err(ConfigError::new(format!(
                "nodes {other} and {i} have the same address {node}: its vote must count once"
            )));
        }
    }
    Ok(())
}

fn reachable(addr: &ConnectionAddr) -> Result<(), String> {
    match addr {
        ConnectionAddr::TcpTls { .. } => trust::supported()
            .map_err(|reason| format!("cannot be reached by this build: {reason}")),
        addr if addr.is_supported() => Ok(()),
        _ => Err("cannot be reached by this build: Unix sockets need Unix".into()),
    }
}

/// Checks the name of a lock, for clients with this prefix.
pub(crate) fn name(resource: &[u8], prefix: &Prefix) -> Result<Arc<[u8]>, Error> {
    if resource.is_empty() || resource.len() > MAX_RESOURCE {
        return Err(Error::config(format!(
            "the resource is {} bytes long: it must be 1 to {MAX_RESOURCE}",
            resource.len()
        )));
    }
    let key = prefix.key(resource);
    if witness_keys::is_kept_beside(&key) {
        return Err(Error::config(format!(
            "no lock can have the name {}: its key {} is one of those that are kept beside locks; give it another ending",
            Shown(resource),
            Shown(&key)
        )));
    }
    Ok(resource.into())
}
