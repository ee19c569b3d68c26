//! Nodes and options as variables and files name them, for programs and for the command `redlock`.

use std::env;
use std::ffi::OsString;
use std::fmt::Display;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::settings::into_node;
use crate::settings::node_address::NodeAddress;
use crate::settings::node_list;
use crate::settings::nodes_file::{self, private};
use crate::settings::options::Options;
use crate::settings::time::{parse_time, parse_timeout};
use crate::settings::tls::Tls;
use crate::values::config_error::ConfigError;

/// The variable with the URLs of the nodes.
pub const NODES: &str = "REDLOCK_NODES";
/// The variable that names a file with them.
pub const NODES_FILE: &str = "REDLOCK_NODES_FILE";
/// Read last. So cron, sudo and services need no variable, and no copy of a password.
pub const DEFAULT_FILE: &str = "/etc/redlock/nodes";

/// The value of a variable, or of the flag that goes before it, and the name of which of the two has it.
type Given = Option<(&'static str, OsString)>;
/// The mode of a file, and its content.
type ReadFile<'a> = dyn Fn(&Path) -> io::Result<(u32, Vec<u8>)> + 'a;

/// The surroundings of a program.
#[allow(missing_debug_implementations)]
pub struct Environment<'a> {
    /// Looks up a variable.
    pub given: &'a dyn Fn(&'static str) -> Given,
    /// Reads a file.
    pub read: &'a ReadFile<'a>,
    /// The file that is read last.
    pub default_file: &'a Path,
    /// Whether the program has the flags of the command, which errors then name.
    pub flags: bool,
}

impl Options {
    /// The options that the variables of the command `redlock` set: REDLOCK_PREFIX, REDLOCK_LABEL;
    /// REDLOCK_NODE_TIMEOUT and REDLOCK_CONNECT_TIMEOUT, with a unit (`500ms`, `2s`); REDLOCK_RESTART_GUARD, in seconds or
    /// with a unit (`30s`, `5m`); and for nodes at `rediss://` REDLOCK_CACERT, REDLOCK_CERT and REDLOCK_KEY, which name files
    /// in PEM, and REDLOCK_SNI. Everything else has its default. For [`Redlock::from_env`](crate::Redlock::from_env).
    ///
    /// # Errors
    ///
    /// A file that cannot be read, a certificate without its key, a key that every user may read, a time that is none, or a
    /// timeout without a unit.
    /// The text names the variable.
    pub fn from_env() -> Result<Options, ConfigError> {
        of_process(|environment| environment.options(Options::new())).map_err(ConfigError::new)
    }
}

/// The nodes that the process's variables and files name, and where they are named.
pub(crate) fn nodes() -> Result<(String, Vec<NodeAddress>), ConfigError> {
    of_process(|environment| environment.nodes()).map_err(ConfigError::new)
}

fn of_process<T>(ask: impl FnOnce(&Environment<'_>) -> T) -> T {
    ask(&Environment {
        given: &|variable| env::var_os(variable).map(|value| (variable, value)),
        read: &nodes_file::read,
        default_file: Path::new(DEFAULT_FILE),
        flags: false,
    })
}

impl Environment<'_> {
    /// A value. An empty variable counts as none.
    fn value(&self, variable: &'static str) -> Given {
        let given = (self.given)(variable);
        given.filter(|(name, value)| *name != variable || !value.is_empty())
    }

    fn text(&self, variable: &'static str) -> Result<Option<String>, String> {
        let Some((name, value)) = self.value(variable) else {
            return Ok(None);
        };
        let text = value.into_string();
        text.map(Some).map_err(|_| format!("{name} is not UTF-8"))
    }

    fn time<E: Display>(
        &self,
        variable: &'static str,
        parse: impl FnOnce(&str) -> Result<Duration, E>,
    ) -> Result<Option<Duration>, String> {
        let Some((name, value)) = self.value(variable) else {
            return Ok(None);
        };
        let text = value.to_str().unwrap_or("?");
        let time = parse(text).map_err(|error| format!("{name}: {error}"))?;
        Ok(Some(time))
    }

    // ---- nodes

    /// Where the nodes are named, and the nodes.
    ///
    /// # Errors
    ///
    /// The mistake, and the variable, or the line of a file, that has it. No text repeats a password.
    pub fn nodes(&self) -> Result<(String, Vec<NodeAddress>), String> {
        let urls = self.text(NODES)?.unwrap_or_default();
        let urls = node_list::items(&urls);
        if !urls.is_empty() {
            let source = |at| format!("{NODES}, URL {}", at + 1);
            let nodes = node_list::nodes(&urls, source, into_node::of_url);
            return Ok((NODES.into(), nodes.map_err(|error| error.to_string())?));
        }
        match self.value(NODES_FILE) {
            Some((name, path)) => self.nodes_in(name, Path::new(&path)),
            None => self.nodes_in_default_file(),
        }
    }

    /// The nodes in a file that `named_by` names.
    ///
    /// # Errors
    ///
    /// Like those of [`nodes`](Environment::nodes).
    pub fn nodes_in(
        &self,
        named_by: &str,
        path: &Path,
    ) -> Result<(String, Vec<NodeAddress>), String> {
        let source = format!("{named_by} {}", path.display());
        let (mode, bytes) = (self.read)(path).map_err(|error| format!("{source}: {error}"))?;
        let nodes = nodes_file::parse(&source, mode, bytes)?;
        if nodes.is_empty() {
            return Err(format!("{source} names no nodes: one URL a line"));
        }
        Ok((source, nodes))
    }

    /// The nodes of the default file. The package installs it without nodes, which counts as no file. The file counts for
    /// every user, so no other user may be able to replace the nodes in it.
    fn nodes_in_default_file(&self) -> Result<(String, Vec<NodeAddress>), String> {
        let source = self.default_file.display().to_string();
        let nodes = match (self.read)(self.default_file) {
            Ok((mode, _)) if mode & 0o022 != 0 => {
                return Err(format!(
                    "{source}: its group or other users may write it (mode {:03o}): chmod go-w",
                    mode & 0o777
                ));
            }
            Ok((mode, bytes)) => nodes_file::parse(&source, mode, bytes)?,
            Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
            Err(error) => return Err(self.unread(&source, &error)),
        };
        if !nodes.is_empty() {
            return Ok((source, nodes));
        }
        Err(match self.flags {
            true => format!(
                "no nodes: give their URLs one a line in {source}, or in a file named by --nodes-file or {NODES_FILE}; in \
                 {NODES} (with commas between them); or by --node redis://HOST"
            ),
            false => format!(
                "no nodes: give their URLs one a line in {source}, or in a file named by {NODES_FILE}; or in {NODES} (with \
                 commas between them)"
            ),
        })
    }

    /// Why the default file, which this user did not name, was not read.
    fn unread(&self, source: &str, error: &io::Error) -> String {
        let file = if self.flags {
            "--nodes-file"
        } else {
            NODES_FILE
        };
        match error.kind() {
            ErrorKind::PermissionDenied => format!(
                "{source}: {error}: its group may read it (chgrp), so add this user to that, or give nodes by {NODES} or \
                 {file}"
            ),
            _ => format!("{source}: {error}"),
        }
    }

    // ---- options

    /// These options, with what the variables set.
    ///
    /// # Errors
    ///
    /// Like those of [`nodes`](Environment::nodes).
    pub fn options(&self, mut options: Options) -> Result<Options, String> {
        if let Some(label) = self.text("REDLOCK_LABEL")? {
            options = options.label(label);
        }
        if let Some(timeout) = self.time("REDLOCK_NODE_TIMEOUT", parse_timeout)? {
            options = options.node_timeout(timeout);
        }
        if let Some(timeout) = self.time("REDLOCK_CONNECT_TIMEOUT", parse_timeout)? {
            options = options.connect_timeout(timeout);
        }
        if let Some(max_ttl) = self.time("REDLOCK_RESTART_GUARD", parse_time)? {
            options = options.restart_guard(max_ttl);
        }
        let prefix = self.text("REDLOCK_PREFIX")?.unwrap_or_default();
        Ok(options.prefix(prefix).tls(self.tls()?))
    }

    /// The trusted CAs, and the certificate that is shown.
    fn tls(&self) -> Result<Tls, String> {
        let file = |variable: &'static str| {
            let (name, path) = self.value(variable)?;
            let path = PathBuf::from(path);
            let source = format!("{name} {}", path.display());
            let read = (self.read)(&path).map_err(|error| format!("{source}: {error}"));
            Some(read.map(|(mode, pem)| (source, mode, pem)))
        };
        let by = |flag: &str, variable: &str| match self.flags {
            true => format!("{flag} or {variable}"),
            false => variable.to_owned(),
        };
        let mut tls = Tls::new();
        if let Some(cacert) = file("REDLOCK_CACERT") {
            tls = tls.root_certificates(cacert?.2);
        }
        let cert = file("REDLOCK_CERT").transpose()?;
        let key = file("REDLOCK_KEY").transpose()?;
        match (cert, key) {
            (Some((_, _, cert)), Some((source, mode, key))) => {
                private(mode, &format!("{source} has a key"))?;
                tls = tls.client_certificate(cert, key);
            }
            (None, None) => {}
            (Some((source, ..)), None) => {
                return Err(format!(
                    "{source} needs its key: {}",
                    by("--key", "REDLOCK_KEY")
                ));
            }
            (None, Some((source, ..))) => {
                let by = by("--cert", "REDLOCK_CERT");
                return Err(format!("{source} needs its certificate: {by}"));
            }
        }
        Ok(match self.text("REDLOCK_SNI")? {
            Some(name) => tls.server_name(name),
            None => tls,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Files = [(&'static str, u32, &'static str)];

    /// The source and the number of the nodes that these variables and files name.
    fn found(variables: &[(&'static str, &str)], files: &Files) -> Result<(String, usize), String> {
        let given = |name: &'static str| {
            let value = variables.iter().find(|(variable, _)| *variable == name);
            value.map(|(variable, value)| (*variable, OsString::from(value)))
        };
        let read = |path: &Path| {
            let file = files.iter().find(|file| Path::new(file.0) == path);
            let read = file.map(|(_, mode, text)| (*mode, text.as_bytes().to_vec()));
            read.ok_or(ErrorKind::NotFound.into())
        };
        let environment = Environment {
            given: &given,
            read: &read,
            default_file: Path::new("/default"),
            flags: false,
        };
        environment.options(Options::new())?;
        let (source, nodes) = environment.nodes()?;
        Ok((source, nodes.len()))
    }

    #[test]
    fn the_variable_goes_before_the_file_and_both_before_the_default() {
        let files: &Files = &[
            (
                "/two",
                0o600,
                "\u{feff}redis://:hunter2@a\r\n# b\r\n\r\n redis://b \r\n",
            ),
            ("/default", 0o644, "redis://a"),
        ];
        for (variables, expected) in [
            (
                &[(NODES, "redis://a, redis://b"), (NODES_FILE, "/two")][..],
                ("REDLOCK_NODES", 2),
            ),
            (
                &[(NODES, " ,"), (NODES_FILE, "/two")],
                ("REDLOCK_NODES_FILE /two", 2),
            ),
            (&[(NODES, ""), (NODES_FILE, "")], ("/default", 1)),
            (&[], ("/default", 1)),
        ] {
            let found = found(variables, files).unwrap();
            assert_eq!((&*found.0, found.1), expected, "{variables:?}");
        }
    }

    #[test]
    fn a_mistake_is_named_with_its_place_and_no_secret() {
        let files: &Files = &[
            ("/open", 0o644, "redis://:hunter2@a"),
            ("/bad", 0o600, "redis://a\n:hunter2@b\n"),
            ("/empty", 0o600, "# redis://a\n"),
            ("/key", 0o644, "hunter2"),
            ("/cert", 0o644, "x"),
        ];
        for (variables, expected) in [
            (
                &[][..],
                "no nodes: give their URLs one a line in /default, or in a file named by REDLOCK_NODES_FILE;",
            ),
            (&[(NODES_FILE, "/none")], "REDLOCK_NODES_FILE /none: "),
            (
                &[(NODES_FILE, "/empty")],
                "REDLOCK_NODES_FILE /empty names no nodes",
            ),
            (
                &[(NODES_FILE, "/bad")],
                "REDLOCK_NODES_FILE /bad, line 2: it has no scheme",
            ),
            (
                &[(NODES_FILE, "/open")],
                "REDLOCK_NODES_FILE /open, line 1 has a password, and every user may read the file (mode 644): chmod o-r",
            ),
            (
                &[(NODES, "redis://a,redis://:hunter2 3@b")],
                "REDLOCK_NODES, URL 3: it has no scheme",
            ),
            (
                &[("REDLOCK_CERT", "/cert")],
                "REDLOCK_CERT /cert needs its key: REDLOCK_KEY",
            ),
            (
                &[("REDLOCK_CERT", "/cert"), ("REDLOCK_KEY", "/key")],
                "REDLOCK_KEY /key has a key, and every user may read the file (mode 644): chmod o-r",
            ),
            (&[("REDLOCK_CACERT", "/none")], "REDLOCK_CACERT /none: "),
            (
                &[("REDLOCK_NODE_TIMEOUT", "5 s")],
                "REDLOCK_NODE_TIMEOUT: it must be a number of seconds, or have a unit: 500ms",
            ),
            (
                &[("REDLOCK_NODE_TIMEOUT", "500")],
                "REDLOCK_NODE_TIMEOUT: 500 has no unit: write 500ms or 500s",
            ),
            (
                &[("REDLOCK_CONNECT_TIMEOUT", "2")],
                "REDLOCK_CONNECT_TIMEOUT: 2 has no unit: write 2ms or 2s",
            ),
            (
                &[("REDLOCK_RESTART_GUARD", "5w")],
                "REDLOCK_RESTART_GUARD: its unit must be ms, s, m, h or d",
            ),
        ] {
            let error = found(variables, files).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
        // Root can read all files.
        for (flags, way) in [(true, "--nodes-file"), (false, NODES_FILE)] {
            let environment = Environment {
                given: &|_| None,
                read: &|_| Err(ErrorKind::PermissionDenied.into()),
                default_file: Path::new(DEFAULT_FILE),
                flags,
            };
            let error = environment.nodes().unwrap_err();
            assert!(
                error.starts_with("/etc/redlock/nodes: permission denied"),
                "{error}"
            );
            assert!(
                error.contains("add this user") && error.ends_with(way),
                "{error}"
            );
        }
        let writable = found(&[], &[("/default", 0o662, "redis://a")]).unwrap_err();
        assert!(
            writable.contains("may write it (mode 662): chmod go-w"),
            "{writable}"
        );
    }

    #[test]
    fn variables_set_the_label_the_timeouts_and_the_guard_and_an_empty_one_sets_nothing() {
        let options = |variables: &[(&'static str, &str)]| {
            let given = |name: &'static str| {
                let value = variables.iter().find(|(variable, _)| *variable == name);
                value.map(|(variable, value)| (*variable, OsString::from(value)))
            };
            let environment = Environment {
                given: &given,
                read: &nodes_file::read,
                default_file: Path::new("/default"),
                flags: false,
            };
            environment.options(Options::new().label("host")).unwrap()
        };
        let ms = Duration::from_millis;
        let expected = Options::new()
            .label("web-3")
            .node_timeout(ms(200))
            .connect_timeout(ms(1500))
            .restart_guard(ms(300_000));
        let set = [
            ("REDLOCK_LABEL", "web-3"),
            ("REDLOCK_NODE_TIMEOUT", "200ms"),
            ("REDLOCK_CONNECT_TIMEOUT", "1.5s"),
            ("REDLOCK_RESTART_GUARD", "5m"),
        ];
        assert_eq!(options(&set), expected);
        let empty = set.map(|(variable, _)| (variable, ""));
        assert_eq!(options(&empty), Options::new().label("host"));
    }
}
