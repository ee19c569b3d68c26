//! Where a node is: a server, or what the sentinels of a set name.

use std::fmt;

use redis::{ConnectionAddr, ConnectionInfo};

use crate::text;

/// Where a node is, and how it is logged in to: what [`IntoNode`](crate::IntoNode) makes of a URL. It is shown without user
/// and password.
#[derive(Clone)]
pub struct NodeAddress {
    /// Of a set: how its servers are logged in to, with the address of its first sentinel.
    info: ConnectionInfo,
    set: Option<Set>,
}

/// The servers that sentinels watch under one name, of which one is the master.
#[derive(Clone)]
pub(crate) struct Set {
    pub(crate) name: String,
    /// With what they are logged in to.
    pub(crate) sentinels: Vec<ConnectionInfo>,
}

impl NodeAddress {
    pub(crate) fn server(info: ConnectionInfo) -> NodeAddress {
        NodeAddress { info, set: None }
    }

    /// `info`: of its servers. At least one sentinel.
    pub(crate) fn of_set(info: ConnectionInfo, set: Set) -> NodeAddress {
        let first = set.sentinels.first();
        let addr = first.map_or_else(|| info.addr().clone(), |first| first.addr().clone());
        NodeAddress {
            info: info.set_addr(addr),
            set: Some(set),
        }
    }

    pub(crate) fn info(&self) -> &ConnectionInfo {
        &self.info
    }

    pub(crate) fn set(&self) -> Option<&Set> {
        self.set.as_ref()
    }

    /// How the server is reached; `None` where sentinels name it.
    pub fn connection_info(&self) -> Option<&ConnectionInfo> {
        self.set.is_none().then_some(&self.info)
    }

    /// Whether it is reached over TLS.
    pub fn is_over_tls(&self) -> bool {
        matches!(self.info.addr(), ConnectionAddr::TcpTls { .. })
    }

    /// Whether a password is given with it, for its servers or for its sentinels.
    pub fn has_password(&self) -> bool {
        let sentinels = self.set.iter().flat_map(|set| &set.sentinels);
        let mut all = std::iter::once(&self.info).chain(sentinels);
        all.any(|info| info.redis_settings().password().is_some())
    }

    /// Whether its vote would count twice beside the other one's.
    pub(crate) fn is_same(&self, other: &NodeAddress) -> bool {
        let sorted = |set: &Set| {
            let addresses = set.sentinels.iter().map(|info| text::address(info.addr()));
            let mut addresses: Vec<String> = addresses.collect();
            addresses.sort();
            addresses
        };
        match (&self.set, &other.set) {
            (None, None) => self.info.addr() == other.info.addr(),
            (Some(one), Some(two)) => one.name == two.name && sorted(one) == sorted(two),
            _ => false,
        }
    }
}

/// Host and port, or path; the name of a set, and its sentinels.
impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(set) = &self.set else {
            return f.write_str(&text::address(self.info.addr()));
        };
        let sentinels = set.sentinels.iter().map(|info| text::address(info.addr()));
        let sentinels: Vec<String> = sentinels.collect();
        write!(f, "{} of {}", set.name, sentinels.join(","))
    }
}

/// As `Display`.
impl fmt::Debug for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
