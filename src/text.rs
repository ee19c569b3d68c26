//! How times and addresses are written for people. (The command has it too.)

use std::net::Ipv6Addr;
use std::time::Duration;

use redis::ConnectionAddr;

/// A time, rounded: nobody wants to read `49.999871ms`.
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

/// Of a node that this build cannot reach.
pub(crate) const NO_TLS: &str = "TLS needs the feature `tls` of redlock-sync, in Cargo.toml: \
    redlock-sync = { version = \"0.1\", features = [\"tls\"] }";

/// Host and port, or path: what may be shown of a node. An IPv6 address has brackets.
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

/// Why an address that the redis crate takes cannot be a node's, if that is so. It must not be shown then: what is no
/// address may have a password in it.
pub(crate) fn odd(address: &ConnectionAddr) -> Option<&'static str> {
    match address {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => match host {
            _ if host.contains([',', ';', ' ']) => Some(SEVERAL),
            _ => (!is_host(host)).then_some(NO_HOST),
        },
        ConnectionAddr::Unix(path) => {
            let path = path.to_string_lossy();
            let (_, rest) = path.split_once([',', ';', ' ', '?', '&'])?;
            rest.contains('=').then_some(PARAMETERS)
        }
        _ => None,
    }
}

/// A host's name, or an address, perhaps with its zone. (Of an international name, the redis crate has what no server
/// of names knows, unless it is given as punycode.)
fn is_host(host: &str) -> bool {
    let (address, zone) = host.split_once('%').unwrap_or((host, "none"));
    is_name(host) || is_name(zone) && address.parse::<Ipv6Addr>().is_ok()
}

/// Of characters that hosts' names have.
pub(crate) fn is_name(text: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    !text.is_empty() && !text.starts_with('-') && text.chars().all(is_part)
}

pub(crate) const SEVERAL: &str = "it has a comma, a semicolon or a space in it: give each node as an item of its own, \
    and a password before an @ (redis://user:password@host:port), with %2C, %3B or %20 for those in it";
const NO_HOST: &str = "its host has characters that no host's name has: write redis://user:password@host:port, with \
    : and @ between them as they are, and an international name as punycode (xn--…)";
const PARAMETERS: &str = "its path has a parameter in it: write unix:///path?user=…&pass=…&db=…";

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

    #[test]
    fn what_may_be_a_password_is_no_address() {
        let tcp = |host: &str| odd(&ConnectionAddr::Tcp(host.into(), 6379));
        for host in [
            "localhost",
            "redis_1.my-net.example.",
            "xn--bcher-kva.example",
            "10.0.0.1",
            "::1",
            "fe80::1%eth0.100",
            "::ffff:10.0.0.1",
        ] {
            assert_eq!(tcp(host), None, "{host}");
        }
        for host in [
            "",
            "user:hunter2@host",
            "user%3Ahunter2%40host",
            "user：hunter2＠host",
            "password=hunter2",
            "host:hunter2",
            "host%hunter2",
            "::1%",
            "::1%:hunter2@host",
            "[::1]",
            "b%C3%BCcher.example",
            "bücher.example",
            "-a",
            "host\nhunter2",
            "host\u{3000}hunter2",
        ] {
            assert_eq!(tcp(host), Some(NO_HOST), "{host}");
        }
        for host in ["a,b", "a;password=hunter2", "a hunter2"] {
            assert_eq!(tcp(host), Some(SEVERAL), "{host}");
        }
        let tls = ConnectionAddr::TcpTls {
            host: "user%3Ahunter2%40host".into(),
            port: 1,
            insecure: false,
            tls_params: None,
        };
        assert_eq!(odd(&tls), Some(NO_HOST));
        let unix = |path: &str| odd(&ConnectionAddr::Unix(path.into()));
        for path in ["/run/redis.sock", "/a,b", "/a=b/c d", "/run/redis@a/ü"] {
            assert_eq!(unix(path), None, "{path}");
        }
        for path in ["/s,password=hunter2", "/s?pass=hunter2", "/s password = x"] {
            assert_eq!(unix(path), Some(PARAMETERS), "{path}");
        }
    }
}
