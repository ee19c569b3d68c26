//! The fields of a server's INFO and HELLO.

use std::fmt;
use std::time::Duration;

use crate::errors::secret::Secret;
use crate::protocol::commands::resp::Reply;

/// The oldest server that can set a missing key with a ttl in one step.
const OLDEST: [u32; 3] = [2, 6, 12];
/// The fields whose values are shown.
const SHOWN: [&str; 3] = ["redis_version", "valkey_version", "maxmemory_policy"];

/// The text of INFO.
#[derive(Clone, Default)]
pub(crate) struct ServerInfo(String);

impl fmt::Debug for ServerInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerInfo(..)")
    }
}

impl ServerInfo {
    /// No value that is shown repeats the secret.
    pub(crate) fn new(text: &[u8], secret: &Secret) -> ServerInfo {
        let line = |line: &str| match line.split_once(':') {
            Some((field, value)) if SHOWN.contains(&field) => {
                format!("{field}:{}\n", secret.cut_value(value.trim()))
            }
            _ => format!("{line}\n"),
        };
        let text = String::from_utf8_lossy(text);
        ServerInfo(text.lines().map(line).collect())
    }

    pub(crate) fn get(&self, field: &str) -> Option<&str> {
        value(&self.0, field)
    }

    pub(crate) fn number(&self, field: &str) -> Option<u64> {
        self.get(field)?.parse().ok()
    }

    /// The run id, which changes with each start of the server.
    pub(crate) fn run_id(&self) -> Option<&str> {
        self.get("run_id")
    }

    /// Whole seconds. Zero if the server's clock was set back to before its start, which makes them negative, or very many
    /// as an unsigned number.
    pub(crate) fn uptime(&self) -> Option<Duration> {
        let seconds: i128 = self.get("uptime_in_seconds")?.parse().ok()?;
        let seconds = i64::try_from(seconds).unwrap_or(0);
        Some(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
    }

    pub(crate) fn version(&self) -> Option<&str> {
        self.get("valkey_version")
            .or_else(|| self.get("redis_version"))
    }

    pub(crate) fn role(&self) -> Option<&'static str> {
        // Valkey has different names, and in its older versions those of Redis.
        let mode = self.get("redis_mode").or_else(|| self.get("server_mode"));
        match (mode, self.get("role")) {
            (Some("cluster"), _) => Some("cluster"),
            _ if self.get("cluster_enabled") == Some("1") => Some("cluster"),
            (Some("sentinel"), _) | (_, Some("sentinel")) => Some("sentinel"),
            (_, Some("master")) => Some("master"),
            (_, Some("slave" | "replica")) => Some("replica"),
            _ => None,
        }
    }

    pub(crate) fn is_too_old(&self) -> bool {
        let number = |part: &str| part.parse::<u32>().ok();
        let parts: Option<Vec<u32>> = self
            .version()
            .and_then(|version| version.split('.').map(number).collect());
        parts.is_some_and(|parts| parts[..] < OLDEST[..])
    }
}

/// The value of a field that INFO has exactly once. A field that occurs twice is ignored.
pub(crate) fn value<'a>(info: &'a str, field: &str) -> Option<&'a str> {
    let lines = info.lines();
    let mut values = lines.filter_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let value = values.next().filter(|_| values.next().is_none())?;
    Some(value.trim())
}

/// The role that keeps a server from being a node (rule R39).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Replica,
    Sentinel,
}

impl Role {
    /// The role in the fields and values of HELLO. `None` for a master, or if the role is unknown.
    pub(crate) fn of_hello(fields: &[Reply]) -> Option<Role> {
        let value = |field: &[u8]| {
            let mut pairs = fields.chunks_exact(2);
            pairs.find_map(|pair| match pair {
                [Reply::Bulk(name), Reply::Bulk(value)] if name == field => Some(&value[..]),
                _ => None,
            })
        };
        match (value(b"mode"), value(b"role")) {
            (Some(b"sentinel"), _) => Some(Role::Sentinel),
            (_, Some(b"replica" | b"slave")) => Some(Role::Replica),
            _ => None,
        }
    }
}

#[cfg(test)]
impl ServerInfo {
    pub(crate) fn of(text: &str) -> ServerInfo {
        ServerInfo::new(text.as_bytes(), &Secret::default())
    }

    /// A copy with another value of a field.
    pub(crate) fn with(&self, field: &str, value: &str) -> ServerInfo {
        let line = |value: &str| format!("{field}:{value}\n");
        let old = line(self.get(field).unwrap());
        assert!(self.0.contains(&old), "{field}");
        ServerInfo(self.0.replace(&old, &line(value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_run_id_is_found() {
        let info =
            ServerInfo::of("# Server\r\nredis_version:7.0.15\r\nrun_id:abc123\r\ntcp_port:1\r\n");
        assert_eq!(info.run_id(), Some("abc123"));
        assert_eq!(ServerInfo::of("# Server\r\n").run_id(), None);
    }

    #[test]
    fn the_uptime_is_a_number_or_nothing() {
        let uptime = |line: &str| {
            ServerInfo::of(&format!("# Server\r\n{line}\r\nuptime_in_days:3\r\n")).uptime()
        };
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(uptime("uptime_in_seconds:17"), seconds(17));
        assert_eq!(uptime("uptime_in_seconds:18446744073709551615"), seconds(0));
        assert_eq!(uptime("uptime_in_seconds:99999999999999999999"), seconds(0));
        assert_eq!(uptime("uptime_in_seconds:-1"), seconds(0));
        for bad in [
            "",
            "uptime_in_seconds:",
            "uptime_in_seconds:1.5",
            "uptime_in_seconds:--1",
            "uptime_in_seconds:5\r\nuptime_in_seconds:6",
        ] {
            assert_eq!(uptime(bad), None, "{bad}");
        }
    }

    /// The fields are those of Valkey's INFO.
    #[test]
    fn valkey_is_understood_too() {
        let info =
            |text: &str| ServerInfo::of(&format!("redis_version:7.2.4\nrole:master\n{text}\n"));
        let valkey = info("valkey_version:9.0.1\nserver_mode:standalone\ncluster_enabled:0");
        assert_eq!(
            (valkey.version(), valkey.role()),
            (Some("9.0.1"), Some("master"))
        );
        assert!(!valkey.is_too_old());
        for (text, role) in [
            ("server_mode:cluster", "cluster"),
            ("server_mode:sentinel", "sentinel"),
            ("server_mode:standalone\ncluster_enabled:1", "cluster"),
        ] {
            assert_eq!(info(text).role(), Some(role), "{text}");
        }
    }

    #[test]
    fn hello_distinguishes_replicas_and_sentinels_from_all_others() {
        let hello = |fields: &[&str]| {
            let bulk = |field: &&str| Reply::Bulk(field.as_bytes().to_vec());
            let mut fields: Vec<_> = fields.iter().map(bulk).collect();
            fields.extend([Reply::Bulk(b"id".to_vec()), Reply::Int(7)]);
            fields.extend([Reply::Bulk(b"modules".to_vec()), Reply::Array(Vec::new())]);
            Role::of_hello(&fields)
        };
        for (fields, expected) in [
            (&["mode", "standalone", "role", "master"][..], None),
            (&["mode", "cluster", "role", "master"], None),
            (
                &["mode", "standalone", "role", "replica"],
                Some(Role::Replica),
            ),
            (&["role", "slave"], Some(Role::Replica)),
            (&["mode", "sentinel"], Some(Role::Sentinel)),
            // A value is not a field.
            (&["server", "role", "replica", "master"], None),
            (&[], None),
        ] {
            assert_eq!(hello(fields), expected, "{fields:?}");
        }
    }

    #[test]
    fn a_version_that_is_reported_may_be_too_old() {
        let is_too_old =
            |version: &str| ServerInfo::of(&format!("redis_version:{version}\n")).is_too_old();
        for version in ["2.6.12", "2.8", "10.0.0", "7.2.0-rc1", ""] {
            assert!(!is_too_old(version), "{version}");
        }
        assert!(is_too_old("2.6.11") && is_too_old("2.4"));
    }
}
