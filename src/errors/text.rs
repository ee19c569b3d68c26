//! How times and addresses are written for people.

use std::time::Duration;

use redis::ConnectionAddr;

use crate::values::endpoint::Endpoint;

/// A time, rounded for people: `50 ms`, not `49.999871ms`.
pub(crate) fn human(time: Duration) -> String {
    /// Half of the last digit is rounded up.
    fn rounded(nanos: u128, unit: u128) -> u128 {
        (nanos + unit / 2) / unit
    }
    fn tenths(tenths: u128, unit: &str) -> String {
        match tenths % 10 {
            0 => format!("{} {unit}", tenths / 10),
            rest => format!("{}.{rest} {unit}", tenths / 10),
        }
    }
    fn two((large, name): (u128, &str), (small, rest): (u128, &str)) -> String {
        match small {
            0 => format!("{large} {name}"),
            _ => format!("{large} {name} {small} {rest}"),
        }
    }
    const MS: u128 = 1_000_000;
    const S: u128 = 1000 * MS;
    let nanos = time.as_nanos();
    // Each border lies where the unit below would be rounded up to one of the next.
    match nanos {
        0 => "0 s".into(),
        1..999_500 => format!("{} µs", rounded(nanos, 1000).max(1)),
        999_500..9_950_000 => tenths(rounded(nanos, MS / 10), "ms"),
        9_950_000..999_500_000 => format!("{} ms", rounded(nanos, MS)),
        999_500_000..59_950_000_000 => tenths(rounded(nanos, S / 10), "s"),
        59_950_000_000..3_599_500_000_000 => {
            let seconds = rounded(nanos, S);
            two((seconds / 60, "min"), (seconds % 60, "s"))
        }
        _ => {
            let minutes = rounded(nanos, 60 * S);
            two((minutes / 60, "h"), (minutes % 60, "min"))
        }
    }
}

/// Why this build cannot reach a node.
pub(crate) const NO_TLS: &str = "TLS needs the feature `tls` of redlock-sync, in Cargo.toml: \
    redlock-sync = { version = \"0.1\", features = [\"tls\"] }";

/// Host and port, or path: the part of a node's address that may be shown. An IPv6 address has brackets.
pub(crate) fn address(address: &ConnectionAddr) -> String {
    match address {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. }
            if host.contains(':') =>
        {
            format!("[{host}]:{port}")
        }
        other => other.to_string(),
    }
}

/// An address that may be shown.
pub(crate) trait ShownAddress {
    fn shown(&self) -> String;
}

impl ShownAddress for ConnectionAddr {
    fn shown(&self) -> String {
        address(self)
    }
}

impl ShownAddress for Endpoint {
    fn shown(&self) -> String {
        address(&ConnectionAddr::Tcp(self.0.clone(), self.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_to_what_a_person_reads() {
        const DAY: u64 = 24 * 3600;
        for (nanos, text) in [
            (0, "0 s"),
            (1, "1 µs"),
            (250_400, "250 µs"),
            (999_499, "999 µs"),
            (999_500, "1 ms"),
            (1_449_999, "1.4 ms"),
            (3_000_000, "3 ms"),
            (9_949_999, "9.9 ms"),
            (9_950_000, "10 ms"),
            (49_999_871, "50 ms"),
            (999_499_999, "999 ms"),
            (999_500_000, "1 s"),
            (1_234_567_890, "1.2 s"),
            (59_949_999_999, "59.9 s"),
            (59_950_000_000, "1 min"),
            (90_000_000_000, "1 min 30 s"),
            (3_599_499_999_999, "59 min 59 s"),
            (3_599_500_000_000, "1 h"),
            (5_400_000_000_000, "1 h 30 min"),
        ] {
            assert_eq!(human(Duration::from_nanos(nanos)), text, "{nanos}");
        }
        assert_eq!(human(Duration::from_secs(100 * 365 * DAY)), "876000 h");
        assert!(human(Duration::MAX).contains(" h"));
    }

    #[test]
    fn an_ipv6_address_has_brackets_and_nothing_else_has() {
        let tls = |host: &str| ConnectionAddr::TcpTls {
            host: host.into(),
            port: 1,
            insecure: false,
            tls_params: None,
        };
        for (given, text) in [
            (ConnectionAddr::Tcp("::1".into(), 6379), "[::1]:6379"),
            (tls("fe80::1"), "[fe80::1]:1"),
            (tls("host"), "host:1"),
            (ConnectionAddr::Tcp("10.0.0.1".into(), 1), "10.0.0.1:1"),
            (ConnectionAddr::Unix("/a:b/c".into()), "/a:b/c"),
        ] {
            assert_eq!(address(&given), text);
        }
    }
}
