//! Where a node is: a server, the master that the sentinels of a set name, or a Redis Cluster.

use std::fmt;

use redis::{ConnectionAddr, ConnectionInfo};

use crate::errors::text;

/// Where a node is, and how to log in to it: the result of [`IntoNode`](crate::IntoNode) for a URL. `Display` and
/// `Debug` show neither user nor password.
#[derive(Clone)]
pub struct NodeAddress {
    /// How to log in to its servers, with the address of the server, of the first sentinel, or of the first seed.
    info: ConnectionInfo,
    deployment: Deployment,
}

/// The kind of deployment that a URL names.
#[derive(Clone)]
enum Deployment {
    Server,
    Set(Set),
    /// The seeds: servers that are asked for the other servers.
    Cluster(Vec<ConnectionInfo>),
}

/// The servers that sentinels watch under one name, of which one is the master.
#[derive(Clone)]
pub(crate) struct Set {
    pub(crate) name: String,
    /// The sentinels, each with its login.
    pub(crate) sentinels: Vec<ConnectionInfo>,
}

impl NodeAddress {
    pub(crate) fn server(info: ConnectionInfo) -> NodeAddress {
        NodeAddress {
            info,
            deployment: Deployment::Server,
        }
    }

    /// A set with at least one sentinel. `info` is for its servers.
    pub(crate) fn of_set(info: ConnectionInfo, set: Set) -> NodeAddress {
        NodeAddress::of(info, Deployment::Set(set))
    }

    /// A cluster with at least one seed. `info` is for its servers, with the database; each seed has its own login.
    pub(crate) fn of_cluster(info: ConnectionInfo, seeds: Vec<ConnectionInfo>) -> NodeAddress {
        NodeAddress::of(info, Deployment::Cluster(seeds))
    }

    fn of(info: ConnectionInfo, deployment: Deployment) -> NodeAddress {
        let first = deployment.hosts().first();
        let addr = first.map_or_else(|| info.addr().clone(), |first| first.addr().clone());
        NodeAddress {
            info: info.set_addr(addr),
            deployment,
        }
    }

    pub(crate) fn info(&self) -> &ConnectionInfo {
        &self.info
    }

    pub(crate) fn set(&self) -> Option<&Set> {
        match &self.deployment {
            Deployment::Set(set) => Some(set),
            _ => None,
        }
    }

    /// The seeds of a Redis Cluster (at least one), each with its login and without a database.
    pub(crate) fn cluster(&self) -> Option<&[ConnectionInfo]> {
        match &self.deployment {
            Deployment::Cluster(seeds) => Some(seeds),
            _ => None,
        }
    }

    /// Whether the node is reached over TLS.
    pub fn is_over_tls(&self) -> bool {
        matches!(self.info.addr(), ConnectionAddr::TcpTls { .. })
    }

    /// Whether the node has a password, for its servers or for its sentinels.
    pub fn has_password(&self) -> bool {
        let mut all = std::iter::once(&self.info).chain(self.deployment.hosts());
        all.any(|info| info.redis_settings().password().is_some())
    }

    /// Whether this node's vote would count twice beside the other node's.
    pub(crate) fn is_same(&self, other: &NodeAddress) -> bool {
        let sorted = |node: &NodeAddress| {
            let mut addresses = node.deployment.addresses();
            addresses.sort();
            addresses.dedup();
            addresses
        };
        match (&self.deployment, &other.deployment) {
            (Deployment::Server, Deployment::Server) => self.info.addr() == other.info.addr(),
            (Deployment::Set(one), Deployment::Set(two)) => {
                one.name == two.name && sorted(self) == sorted(other)
            }
            (Deployment::Cluster(_), Deployment::Cluster(_)) => sorted(self) == sorted(other),
            _ => false,
        }
    }
}

impl Deployment {
    /// The sentinels, or the seeds.
    fn hosts(&self) -> &[ConnectionInfo] {
        match self {
            Deployment::Server => &[],
            Deployment::Set(set) => &set.sentinels,
            Deployment::Cluster(seeds) => seeds,
        }
    }

    /// The addresses of the hosts.
    fn addresses(&self) -> Vec<String> {
        let addresses = self.hosts().iter();
        addresses.map(|info| text::address(info.addr())).collect()
    }
}

/// Host and port, or path; the name of a set, and its sentinels; the seeds of a cluster.
impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match &self.deployment {
            Deployment::Server => return f.write_str(&text::address(self.info.addr())),
            Deployment::Set(set) => &set.name,
            Deployment::Cluster(_) => "cluster",
        };
        write!(f, "{name} of {}", self.deployment.addresses().join(","))
    }
}

/// Shows the same as `Display`.
impl fmt::Debug for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
