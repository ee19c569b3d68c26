//! Targets: where nodes are, as people write it.

use std::path::Path;

use super::{PASSWORD, hides, planted};
use crate::settings::environment::Environment;
use crate::settings::into_node::{self, IntoNodes};
use crate::settings::node_address::NodeAddress;
use crate::settings::node_list;
use crate::values::config_error::ConfigError;

/// The nodes are shown without their passwords, and a mistake is.
fn shown(nodes: Result<Vec<NodeAddress>, ConfigError>) {
    match nodes {
        Ok(nodes) => nodes.iter().for_each(|node| {
            hides(node);
            hides(format!("{node:?}"));
            let _ = (node.is_over_tls(), node.has_password());
        }),
        Err(error) => hides(error),
    }
}

const SCHEMES: [&str; 8] = [
    "redis",
    "rediss",
    "unix",
    "redis+unix",
    "redis+sentinel",
    "rediss+sentinel",
    "redis+cluster",
    "rediss+cluster",
];

/// One URL whose password is what stands before the `@`, with any signs around it that people forget to encode.
pub(super) fn url(data: &[u8]) {
    let Some((scheme, rest)) = data.split_first() else {
        return;
    };
    let scheme = SCHEMES.get(usize::from(*scheme) % SCHEMES.len());
    let text = String::from_utf8_lossy(rest);
    let mut parts = text.splitn(4, '\u{1}');
    let mut part = || parts.next().unwrap_or_default();
    let (user, before, after, host) = (part(), part(), part(), part());
    let user: String = user.chars().filter(|c| !"/?#@:".contains(*c)).collect();
    let scheme = scheme.unwrap_or(&"redis");
    let url = format!("{scheme}://{user}:{before}{PASSWORD}{after}@{host}");
    shown(into_node::of_url(&url).map(|node| vec![node]));
    shown(url.as_str().into_nodes());
    // Without a password there is nothing to hide.
    drop(into_node::of_url(&text));
}

/// A URL with a password, which lists of any bytes have in them.
fn listed(data: &[u8]) -> String {
    let url = format!("redis://user:{PASSWORD}@");
    String::from_utf8_lossy(&planted(data, url.as_bytes())).into_owned()
}

/// Several URLs in one text.
pub(super) fn list(data: &[u8]) {
    let text = listed(data);
    let items = node_list::items(&text);
    assert!(
        items
            .iter()
            .all(|url| !url.is_empty() && text.contains(url))
    );
    shown(node_list::nodes(
        &items,
        |at| format!("URL {at}"),
        into_node::of_url,
    ));
    shown(text.as_str().into_nodes());
}

/// A file of nodes, and its mode.
pub(super) fn file(data: &[u8]) {
    let Some((mode, rest)) = data.split_first() else {
        return;
    };
    let bytes = listed(rest).into_bytes();
    let environment = Environment {
        given: &|_| None,
        read: &|_| Ok((0o600 | u32::from(*mode), bytes.clone())),
        default_file: Path::new("/etc/redlock/nodes"),
        flags: mode & 1 != 0,
    };
    let named = environment.nodes_in("--nodes-file", Path::new("nodes"));
    for nodes in [named, environment.nodes()] {
        shown(nodes.map(|(_, nodes)| nodes).map_err(ConfigError::new));
    }
}
