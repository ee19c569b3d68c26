//! Conversions of URLs and other values into the nodes of [`Redlock::new`](crate::Redlock::new).

use redis::{ConnectionAddr, IntoConnectionInfo};

use crate::settings::node_address::NodeAddress;
use crate::settings::{cluster_url, node_list, sentinel_url, url};
use crate::values::config_error::ConfigError;

/// A value that names a node: a URL (`&str` or `String`), a host and a port, or a [`NodeAddress`]. This trait cannot be
/// implemented outside this crate.
///
/// A URL names a server (`redis://`, `rediss://`, `unix://`), the master of a set that sentinels watch, or a Redis
/// Cluster:
///
/// - `redis+sentinel://[user:password@]host[:26379][,host…]/master[/database]`, with `rediss+sentinel` for TLS to
///   servers and sentinels. User and password are those of the servers; the parameters `sentinel_username` and
///   `sentinel_password` are for the sentinels.
/// - `redis+cluster://[user:password@]host[:6379][,host…][/database]`, with `rediss+cluster` for TLS. The hosts are
///   some of its servers, which name the others; user and password are those of all.
///
/// The URLs of Lettuce, fred and others for these two are taken, too.
///
/// A URL with a parameter or fragment other than those described here, in [Choosing the
/// nodes](crate::guide::operations#choosing-the-nodes) and in [TLS](crate::guide::tls) is refused: `?db=3` names no
/// database.
///
/// In a URL, user and password are percent-encoded: `%23` for `#`, `%25` for `%`, `%2F` for `/`, `%3A` for `:`, `%3F`
/// for `?` and `%40` for `@`. [`Options::credentials`](crate::Options::credentials) takes them as they are.
#[diagnostic::on_unimplemented(
    message = "`{Self}` names no node",
    note = "give a URL such as \"redis://10.0.0.1\", or a host and a port"
)]
pub trait IntoNode: sealed::Node {
    /// The node: for programs that check or change what they were configured with.
    ///
    /// # Errors
    ///
    /// The mistake, and how to write it correctly. The text repeats no part of a URL that could contain a password.
    ///
    /// # Example
    ///
    /// ```
    /// use redlock_sync::IntoNode;
    ///
    /// let error = "127.0.0.1".into_node().unwrap_err();
    /// assert_eq!(error.to_string(), "it has no scheme: write redis://127.0.0.1");
    /// ```
    fn into_node(self) -> Result<NodeAddress, ConfigError>;
}

/// One node ([`IntoNode`]), or an array, a `Vec` or any iterator of nodes. A text may name several, with commas or white
/// space between their URLs, as a variable or a secret has them: `redis://10.0.0.1,redis://10.0.0.2,redis://10.0.0.3`.
/// (A comma that is not before a scheme is a part of its URL, as in `redis+sentinel://10.0.0.1,10.0.0.2/NAME`.) `Form` is
/// for the compiler, which infers it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` names no nodes",
    note = "give a URL such as \"redis://10.0.0.1\", or an array, a `Vec` or an iterator of URLs"
)]
pub trait IntoNodes<Form>: sealed::Nodes<Form> {
    #[doc(hidden)]
    fn into_nodes(self) -> Result<Vec<NodeAddress>, ConfigError>;
}

mod sealed {
    pub trait Node: Sized {
        /// The text, if the node is given by one: it may name several.
        fn text(&self) -> Option<&str> {
            None
        }
    }
    pub trait Nodes<Form> {}
}

/// The [`IntoNodes`] of one node.
#[doc(hidden)]
#[derive(Debug)]
pub struct One;

/// The [`IntoNodes`] of an iterator.
#[doc(hidden)]
#[derive(Debug)]
pub struct Many;

impl<T: IntoNode> sealed::Nodes<One> for T {}

impl<T: IntoNode> IntoNodes<One> for T {
    fn into_nodes(self) -> Result<Vec<NodeAddress>, ConfigError> {
        listed(0, self)
    }
}

impl<T: IntoIterator> sealed::Nodes<Many> for T where T::Item: IntoNode {}

impl<T: IntoIterator> IntoNodes<Many> for T
where
    T::Item: IntoNode,
{
    fn into_nodes(self) -> Result<Vec<NodeAddress>, ConfigError> {
        let mut nodes = Vec::new();
        for node in self {
            nodes.append(&mut listed(nodes.len(), node)?);
        }
        Ok(nodes)
    }
}

/// The nodes that one item names. `before`: how many others named.
fn listed(before: usize, node: impl IntoNode) -> Result<Vec<NodeAddress>, ConfigError> {
    let source = |at| format!("node {}", before + at);
    if let Some(urls) = node.text().and_then(node_list::several) {
        return node_list::nodes(&urls, source, of_url);
    }
    let named = |error| ConfigError::new(format!("{}: {error}", source(0)));
    Ok(vec![node.into_node().map_err(named)?])
}

/// The node of one URL.
pub(crate) fn of_url(url: &str) -> Result<NodeAddress, ConfigError> {
    let url = node_list::bare(url);
    let several = sentinel_url::parse(url).or_else(|| cluster_url::parse(url));
    several.unwrap_or_else(|| Ok(NodeAddress::server(url::parse(url)?)))
}

macro_rules! urls {
    ($($kind:ty),*) => {$(
        impl sealed::Node for $kind {
            fn text(&self) -> Option<&str> {
                Some(self.as_ref())
            }
        }

        impl IntoNode for $kind {
            fn into_node(self) -> Result<NodeAddress, ConfigError> {
                of_url(self.as_ref())
            }
        }
    )*};
}

urls!(&str, &&str, String, &String);

impl sealed::Node for NodeAddress {}

impl IntoNode for NodeAddress {
    fn into_node(self) -> Result<NodeAddress, ConfigError> {
        Ok(self)
    }
}

impl<T: Into<String>> sealed::Node for (T, u16) {}

impl<T: Into<String>> IntoNode for (T, u16) {
    fn into_node(self) -> Result<NodeAddress, ConfigError> {
        let (host, port) = self;
        let info = ConnectionAddr::Tcp(host.into(), port).into_connection_info();
        let info = info.map_err(|error| ConfigError::new(url::reason(&error.to_string())))?;
        Ok(NodeAddress::server(url::checked(info)?))
    }
}
