//! A node as it was given, and how its servers are reached.

use std::sync::Arc;

use redis::{ConnectionAddr, ConnectionInfo};

use crate::errors::secret::Secret;
use crate::net::socket::peer::{OtherSecrets, Peer};
use crate::net::socket::trust::Trust;
use crate::settings::credentials::AskCredentials;
use crate::settings::node_address::NodeAddress;
use crate::values::endpoint::Endpoint;

pub(crate) struct GivenNode {
    pub(crate) node: NodeAddress,
    trust: Trust,
    credentials: Option<AskCredentials>,
    /// All passwords of the URL: no server is looked for at a host that repeats one, and no sentinel's text is shown that
    /// does.
    secrets: Arc<OtherSecrets>,
}

impl GivenNode {
    pub(crate) fn new(
        node: NodeAddress,
        trust: &Trust,
        credentials: Option<AskCredentials>,
    ) -> Arc<GivenNode> {
        let sentinels = node.set().map(|set| set.sentinels.iter());
        let all = sentinels.into_iter().flatten().chain([node.info()]);
        let passwords = all.map(|info| Secret::of(info.redis_settings().password()));
        Arc::new(GivenNode {
            secrets: Arc::new(OtherSecrets {
                of_urls: Secret::of_all(passwords),
                credentials: credentials.clone(),
            }),
            node,
            trust: trust.clone(),
            credentials,
        })
    }

    /// The address of this host and port, reached like the servers that were given.
    pub(crate) fn addr(&self, (host, port): &Endpoint) -> ConnectionAddr {
        like(self.node.info().addr(), host.clone(), *port)
    }

    /// The scheme by which one of its servers is reached alone.
    pub(crate) fn scheme(&self) -> &'static str {
        match self.node.info().addr() {
            ConnectionAddr::TcpTls { .. } => "rediss",
            _ => "redis",
        }
    }

    /// The server at this address, with the credentials that all servers share.
    pub(crate) fn peer(&self, addr: ConnectionAddr) -> Peer {
        let info = self.node.info().clone().set_addr(addr);
        Peer::new(info, &self.trust, self.credentials.clone())
    }

    pub(crate) fn sentinel(&self, info: &ConnectionInfo) -> Peer {
        Peer::new(info.clone(), &self.trust, None).hiding(self.secrets.clone())
    }

    /// The passwords of the URL, and those that the program's closure has returned.
    pub(crate) fn secret(&self) -> Secret {
        self.secrets.all()
    }
}

/// The address of this host and port, reached like the other one.
pub(crate) fn like(other: &ConnectionAddr, host: String, port: u16) -> ConnectionAddr {
    match other {
        ConnectionAddr::TcpTls { insecure, .. } => ConnectionAddr::TcpTls {
            host,
            port,
            insecure: *insecure,
            tls_params: None,
        },
        _ => ConnectionAddr::Tcp(host, port),
    }
}

#[cfg(all(test, feature = "tls-rustls"))]
mod tests {
    use super::*;
    use crate::settings::into_node::IntoNode;
    use crate::settings::tls::Tls;

    #[test]
    fn a_server_of_a_cluster_over_tls_is_reached_alone_over_tls_too() {
        for (url, scheme) in [
            ("redis+cluster://h:1", "redis"),
            ("rediss+cluster://h:1", "rediss"),
        ] {
            let node = url.into_node().unwrap();
            let trust = Trust::new(&Tls::default(), [node.info()]);
            assert_eq!(GivenNode::new(node, &trust, None).scheme(), scheme);
        }
    }
}
