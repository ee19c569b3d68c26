//! A server's entry of CLUSTER SLOTS: its address, and the ID and the IP address in it.

use core::net::IpAddr;

use crate::protocol::commands::node_id::NodeId;
use crate::protocol::commands::resp::Reply;

/// A server, whatever it is called. (Two processes may have one ID, at two addresses, after a restart elsewhere.)
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ServerId {
    pub(crate) id: NodeId,
    address: (IpAddr, u16),
}

/// A server's entry in a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerEntry {
    pub(crate) server: ServerId,
    /// Whether the entry has a host. Otherwise the host is that of the server that was asked.
    pub(crate) is_named: bool,
}

/// The server in an entry of a map: its ID is the third item. Behind that is its IP address, if that is not its host.
pub(crate) fn server_entry(entry: &Reply) -> Option<ServerEntry> {
    let Reply::Array(entry) = entry else {
        return None;
    };
    let [host, Reply::Int(port), Reply::Bulk(id), more @ ..] = &entry[..] else {
        return None;
    };
    let id = NodeId::of(id)?;
    let host = text(host).filter(|host| !matches!(*host, "" | "?"));
    let host = host.map(str::to_owned);
    let ip = announced_ip(more).map_or_else(|| host.clone(), |ip| Some(ip.to_owned()))?;
    let ip: IpAddr = ip.parse().ok()?;
    let server = ServerId {
        id,
        address: (ip.to_canonical(), u16::try_from(*port).ok()?),
    };
    Some(ServerEntry {
        server,
        is_named: host.is_some(),
    })
}

fn text(reply: &Reply) -> Option<&str> {
    match reply {
        Reply::Bulk(text) => str::from_utf8(text).ok(),
        _ => None,
    }
}

/// The IP address in what is behind the ID in an entry.
fn announced_ip(more: &[Reply]) -> Option<&str> {
    let [Reply::Array(fields)] = more else {
        return None;
    };
    let mut pairs = fields.chunks_exact(2);
    pairs.find_map(|pair| match pair {
        [Reply::Bulk(name), ip] if name == b"ip" => text(ip),
        _ => None,
    })
}

/// The address in a server's entry. Without a host it is that of the server that was asked. (With the host "?" the
/// server has no host name, where host names are announced: its IP address is behind its ID.)
pub(crate) fn endpoint<'a>(entry: &'a Reply, asked: &'a str) -> Option<(&'a str, u16)> {
    let Reply::Array(entry) = entry else {
        return None;
    };
    let [host, Reply::Int(port), more @ ..] = &entry[..] else {
        return None;
    };
    let host = match host {
        Reply::Nil => asked,
        Reply::Bulk(host) => str::from_utf8(host).ok()?,
        _ => return None,
    };
    let host = match host {
        "" => asked,
        "?" => announced_ip(more.get(1..).unwrap_or_default()).unwrap_or(asked),
        host => host,
    };
    Some((host, u16::try_from(*port).ok()?))
}
