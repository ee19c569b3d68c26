//! The address of a server of a Redis Cluster.

/// Host and port, as maps and redirects name a server.
pub(crate) type Endpoint = (String, u16);

/// Whether `shown` is a server's address, as errors show it.
pub(crate) fn is_at((host, port): &Endpoint, shown: &str) -> bool {
    let Some((shown, its)) = shown.rsplit_once(':') else {
        return false;
    };
    let bare = shown
        .strip_prefix('[')
        .and_then(|shown| shown.strip_suffix(']'));
    bare.unwrap_or(shown) == host && its.parse() == Ok(*port)
}
