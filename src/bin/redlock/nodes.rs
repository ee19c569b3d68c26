//! Where the nodes' URLs and certificates come from, and the rules that keep passwords and keys out of sight.

use std::env;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use redlock_sync::command::{DEFAULT_FILE, Environment, NODES, assumed_ttl};
use redlock_sync::{IntoNode, NodeAddress, Options, Redlock};

use crate::arguments::{NodeArgs, RESTART_GUARD, VoteArgs};
use crate::files::{WITHIN, read};
use crate::label::label;
use crate::output::report;
use crate::time::Time;

/// The client, and its options.
///
/// # Errors
///
/// The mistake, and the flag, variable, or line of a file that has it. URLs are repeated without their passwords.
pub(crate) fn open(node_args: &NodeArgs, votes: &VoteArgs) -> Result<(Redlock, Options), String> {
    let around = Environment {
        given: &|variable| self::given((node_args, votes), variable),
        read: &|path| read(path, WITHIN),
        default_file: Path::new(DEFAULT_FILE),
        flags: true,
    };
    let (source, nodes) = nodes(node_args, &around)?;
    client((node_args, &around), &source, nodes)
}

/// The client, for a look at the nodes.
///
/// # Errors
///
/// Like those of [`open`].
pub(crate) fn look(node_args: &NodeArgs) -> Result<Redlock, String> {
    Ok(open(node_args, &ALL)?.0)
}

/// Warns, at a terminal, of the longest of these times, each of an option, if a lock that is taken or left for it may end early.
/// The log has that only of ttls, and is not shown without `-v`. (A job of cron prints no line each time.)
pub(crate) fn warn_of_long(redlock: &Redlock, times: &[(&str, Duration)]) {
    let longest = times.iter().max_by_key(|(_, time)| *time);
    if let (Some((option, time)), Some(assumed)) = (longest, assumed_ttl(redlock))
        && *time > assumed
        && std::io::stderr().is_terminal()
    {
        report(format_args!(
            "{option} is longer than {}: a failover may end such a lock early (give --restart-guard the longest time that \
             any host uses)",
            Time(assumed)
        ));
    }
}

/// Every node that answers, also of a set or a Redis Cluster: the guard keeps nodes from granting locks, and commands
/// that only look or release grant none.
pub(crate) const ALL: VoteArgs = VoteArgs {
    restart_guard: Some(Time(Duration::ZERO)),
};

fn client(
    (node_args, around): (&NodeArgs, &Environment<'_>),
    source: &str,
    nodes: Vec<NodeAddress>,
) -> Result<(Redlock, Options), String> {
    let files = [&node_args.cacert, &node_args.cert, &node_args.key];
    if (files.iter().any(|file| file.is_some()) || node_args.sni.is_some())
        && !nodes.iter().any(NodeAddress::is_over_tls)
    {
        return Err(format!(
            "--cacert, --cert, --key and --sni are for nodes at rediss://, and {source} names none"
        ));
    }
    let patient = Options::new()
        .node_timeout(Duration::from_millis(500))
        .connect_timeout(Duration::from_secs(2))
        .label(label());
    let options = around.options(patient)?;
    let redlock = Redlock::new(nodes).map_err(|error| format!("{source}: {error}"))?;
    let redlock = redlock.with_options(options.clone());
    let redlock = redlock.map_err(|error| error.to_string())?;
    Ok((redlock, options))
}

/// The variables of this process, and the flags that go before them.
fn given(
    (node_args, votes): (&NodeArgs, &VoteArgs),
    variable: &'static str,
) -> Option<(&'static str, OsString)> {
    let path = |path: &Option<PathBuf>| path.clone().map(OsString::from);
    let text = |text: &Option<String>| text.clone().map(OsString::from);
    let time = |time: &Option<Time>| time.map(|time| OsString::from(time.to_string()));
    let (flag, value) = match variable {
        "REDLOCK_PREFIX" => ("--prefix", text(&node_args.prefix)),
        "REDLOCK_CACERT" => ("--cacert", path(&node_args.cacert)),
        "REDLOCK_CERT" => ("--cert", path(&node_args.cert)),
        "REDLOCK_KEY" => ("--key", path(&node_args.key)),
        "REDLOCK_SNI" => ("--sni", text(&node_args.sni)),
        "REDLOCK_NODE_TIMEOUT" => ("--node-timeout", time(&node_args.node_timeout)),
        "REDLOCK_CONNECT_TIMEOUT" => ("--connect-timeout", time(&node_args.connect_timeout)),
        RESTART_GUARD => ("--restart-guard", time(&votes.restart_guard)),
        _ => ("", None),
    };
    let of_flag = value.map(|value| (flag, value));
    of_flag.or_else(|| Some((variable, env::var_os(variable)?)))
}

/// Where the nodes are named, and the nodes.
fn nodes(
    node_args: &NodeArgs,
    around: &Environment<'_>,
) -> Result<(String, Vec<NodeAddress>), String> {
    node_args.check_timeouts()?;
    if !node_args.node.is_empty() {
        return Ok(("--node".into(), from_flags(&node_args.node)?));
    }
    match &node_args.nodes_file {
        Some(path) => around.nodes_in("--nodes-file", path),
        None => around.nodes(),
    }
}

fn from_flags(urls: &[String]) -> Result<Vec<NodeAddress>, String> {
    let one = |(i, url): (usize, &String)| {
        let source = format!("--node, URL {}", i + 1);
        let info = node(url, format_args!("{source}"))?;
        match info.has_password() {
            true => Err(format!(
                "{source} has a password, which ps shows to every user: put it into a file for --nodes-file, or \
                 into {NODES}"
            )),
            false => Ok(info),
        }
    };
    urls.iter().enumerate().map(one).collect()
}

fn node(url: &str, source: std::fmt::Arguments<'_>) -> Result<NodeAddress, String> {
    let node = url.into_node();
    node.map_err(|error| format!("{source}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use clap::Parser;
    use redlock_sync::command::NODES_FILE;

    use super::*;
    use crate::arguments::{Arguments, Subcommands};

    /// The result of `redlock list` with these flags and these surroundings: the source, and how many nodes it names.
    fn taken(
        flags: &[&str],
        [variable, file_variable]: [&str; 2],
        default_file: &Path,
    ) -> Result<(String, usize), String> {
        let words = ["redlock", "list"].iter().chain(flags);
        let Ok(Arguments {
            command: Subcommands::List(list),
        }) = Arguments::try_parse_from(words)
        else {
            panic!("{flags:?}");
        };
        let given = |name| match name {
            NODES => Some((NODES, variable.into())),
            NODES_FILE => Some((NODES_FILE, file_variable.into())),
            _ => None,
        };
        let around = Environment {
            given: &given,
            read: &|path| read(path, WITHIN),
            default_file,
            flags: true,
        };
        nodes(&list.nodes, &around).map(|(source, nodes)| (source, nodes.len()))
    }

    /// A file of this mode in the directory for temporary files, and its path.
    fn file(name: &str, mode: u32, text: &str) -> PathBuf {
        let path = env::temp_dir().join(format!("redlock-{name}-{}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        path
    }

    const THREE: &str = "# three\nredis://:hunter2@a\n\nredis://b\nredis://c\n";

    #[test]
    fn the_default_file_is_read_last() {
        let default = file("last", 0o640, THREE);
        let two = file("two", 0o600, "redis://a\nredis://b\n");
        let path = two.to_str().unwrap();
        for (flags, variables, expected) in [
            (&[][..], ["", ""], (default.display().to_string(), 3)),
            (&[], [" ,", ""], (default.display().to_string(), 3)),
            (&[], ["", path], (format!("REDLOCK_NODES_FILE {path}"), 2)),
            (&[], ["redis://a", path], ("REDLOCK_NODES".into(), 1)),
            (
                &["--nodes-file", path],
                ["redis://a", ""],
                (format!("--nodes-file {path}"), 2),
            ),
            (
                &["--node", "redis://a"],
                ["", path],
                ("--node".to_owned(), 1),
            ),
        ] {
            assert_eq!(taken(flags, variables, &default), Ok(expected), "{flags:?}");
        }
        // A file that is named is not replaced by the default.
        let missing = taken(&[], ["", "/no/such"], &default).unwrap_err();
        assert!(missing.contains("REDLOCK_NODES_FILE /no/such"), "{missing}");
        for path in [default, two] {
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn a_default_file_that_others_may_write_is_refused_and_one_with_a_password_that_they_may_read()
    {
        for (mode, text) in [
            (0o600, None),
            (0o640, None),
            (0o440, None),
            (
                0o660,
                Some("its group or other users may write it (mode 660): chmod go-w"),
            ),
            (
                0o602,
                Some("its group or other users may write it (mode 602): chmod go-w"),
            ),
            (
                0o644,
                Some(
                    "line 2 has a password, and every user may read the file (mode 644): chmod o-r",
                ),
            ),
        ] {
            let path = file(&format!("mode-{mode:o}"), mode, THREE);
            let taken = taken(&[], ["", ""], &path);
            match text {
                None => assert_eq!(taken, Ok((path.display().to_string(), 3)), "{mode:o}"),
                Some(text) => {
                    let error = taken.unwrap_err();
                    assert!(error.starts_with(path.to_str().unwrap()), "{error}");
                    assert!(
                        error.contains(text) && !error.contains("hunter2"),
                        "{error}"
                    );
                }
            }
            std::fs::remove_file(path).unwrap();
        }
        // A file without a password may be read by all.
        let public = file("public", 0o644, "redis://a\n");
        assert!(taken(&[], ["", ""], &public).is_ok());
        std::fs::remove_file(public).unwrap();
    }

    #[test]
    fn without_nodes_anywhere_every_place_is_named() {
        // The file as the package installs it.
        let example = include_str!("../../../examples/system/nodes");
        let installed = file("installed", 0o640, example);
        for path in [installed.as_path(), Path::new("/no/such")] {
            let error = taken(&[], ["", ""], path).unwrap_err();
            let places = [
                path.to_str().unwrap(),
                "--nodes-file",
                NODES_FILE,
                "REDLOCK_NODES ",
                "--node",
            ];
            for place in places {
                assert!(
                    error.starts_with("no nodes: ") && error.contains(place),
                    "{error}"
                );
            }
        }
        // The example names the file that is read.
        assert!(example.contains(DEFAULT_FILE));
        std::fs::remove_file(installed).unwrap();
        let broken = file("broken", 0o600, "redis://a\nnonsense\n");
        let error = taken(&[], ["", ""], &broken).unwrap_err();
        assert!(
            error.contains(&format!("{}, line 2: ", broken.display())),
            "{error}"
        );
        std::fs::remove_file(broken).unwrap();
        let error = taken(&[], ["", ""], &env::temp_dir()).unwrap_err();
        assert!(error.contains("irectory"), "{error}");
    }
}
