//! Where the nodes' URLs and certificates come from, and the rules that keep passwords and keys out of sight.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use redlock_sync::command::{DEFAULT_FILE, Environment, LONGEST_FILE, NODES, printable};
use redlock_sync::{IntoNode, NodeAddress, Options, Redlock};

use crate::arguments::{Nodes, Time, Votes, within};
use crate::label::label;

/// How long the writer of a pipe may take: it may ask a store of secrets, or be a person.
const WITHIN: Duration = Duration::from_secs(30);

/// The client, and its options.
///
/// # Errors
///
/// The mistake, and the flag, variable, or line of a file that has it. URLs are repeated without their passwords.
pub(crate) fn open(given: &Nodes, votes: &Votes) -> Result<(Redlock, Options), String> {
    let around = Environment {
        given: &|variable| self::given(given, variable),
        read: &|path| read(path, WITHIN),
        default_file: Path::new(DEFAULT_FILE),
        flags: true,
    };
    let (place, nodes) = nodes(given, &around)?;
    client((given, &around), votes, &place, nodes)
}

/// The client, for a look at the nodes.
///
/// # Errors
///
/// Like those of [`open`].
pub(crate) fn look(given: &Nodes) -> Result<Redlock, String> {
    Ok(open(given, &ALL)?.0)
}

/// Every node that answers, also of a set or a Redis Cluster: the guard keeps nodes from granting locks, and commands
/// that only look or release grant none.
pub(crate) const ALL: Votes = Votes {
    restart_guard: Some(Time(Duration::ZERO)),
};

fn client(
    (given, around): (&Nodes, &Environment<'_>),
    votes: &Votes,
    place: &str,
    nodes: Vec<NodeAddress>,
) -> Result<(Redlock, Options), String> {
    let files = [&given.cacert, &given.cert, &given.key];
    if (files.iter().any(|file| file.is_some()) || given.sni.is_some())
        && !nodes.iter().any(NodeAddress::is_over_tls)
    {
        return Err(format!(
            "--cacert, --cert, --key and --sni are for nodes at rediss://, and {place} names none"
        ));
    }
    let mut options = around
        .options()?
        .node_timeout(given.node_timeout.0)
        .connect_timeout(given.connect_timeout.0)
        .label(label());
    if let Some(max_ttl) = votes.restart_guard {
        options = options.restart_guard(max_ttl.0);
    }
    let redlock = Redlock::new(nodes).map_err(|error| format!("{place}: {error}"))?;
    let redlock = redlock.with_options(options.clone());
    let redlock = redlock.map_err(|error| error.to_string())?;
    Ok((redlock, options))
}

/// The variables of this process, and the flags that go before them.
fn given(flags: &Nodes, variable: &'static str) -> Option<(&'static str, OsString)> {
    let path = |path: &Option<PathBuf>| path.clone().map(OsString::from);
    let text = |text: &Option<String>| text.clone().map(OsString::from);
    let (flag, value) = match variable {
        "REDLOCK_PREFIX" => ("--prefix", text(&flags.prefix)),
        "REDLOCK_CACERT" => ("--cacert", path(&flags.cacert)),
        "REDLOCK_CERT" => ("--cert", path(&flags.cert)),
        "REDLOCK_KEY" => ("--key", path(&flags.key)),
        "REDLOCK_SNI" => ("--sni", text(&flags.sni)),
        _ => ("", None),
    };
    let of_flag = value.map(|value| (flag, value));
    of_flag.or_else(|| Some((variable, env::var_os(variable)?)))
}

/// Where the nodes are named, and the nodes.
fn nodes(given: &Nodes, around: &Environment<'_>) -> Result<(String, Vec<NodeAddress>), String> {
    for (name, time) in [
        ("--node-timeout", given.node_timeout.0),
        ("--connect-timeout", given.connect_timeout.0),
    ] {
        within(
            name,
            time,
            Duration::from_millis(1),
            Duration::from_secs(3600),
        )?;
    }
    if !given.node.is_empty() {
        return Ok(("--node".into(), from_flags(&given.node)?));
    }
    match &given.nodes_file {
        Some(path) => around.nodes_in("--nodes-file", path),
        None => around.nodes(),
    }
}

fn from_flags(urls: &[String]) -> Result<Vec<NodeAddress>, String> {
    let one = |(i, url): (usize, &String)| {
        let place = format!("--node, URL {}", i + 1);
        let info = node(url, format_args!("{place}"))?;
        match info.has_password() {
            true => Err(format!(
                "{place} has a password, which ps shows to every user: put it into a file for --nodes-file, or \
                 into {NODES}"
            )),
            false => Ok(info),
        }
    };
    urls.iter().enumerate().map(one).collect()
}

/// How a node is given, if this word is the URL of one in a place where no node is expected.
pub(crate) fn by_flag(word: &OsStr) -> Option<String> {
    let url = word.to_str()?;
    let node = url.into_node().ok()?;
    Some(if node.has_password() {
        format!("a node with a password is given in a file for --nodes-file, or in {NODES}")
    } else if url.contains(['@', '?']) {
        "a node is given by --node URL".into()
    } else {
        format!("a node is given by --node {url}")
    })
}

/// The error for these words, with the flag for a node if one may have been given without it: doctor takes no NAME, and
/// the others that look at nodes take one. Nothing that may have a password in it is repeated.
pub(crate) fn explained(mut error: clap::Error, words: &[OsString]) -> clap::Error {
    let looks = ["doctor", "inspect", "list", "release"];
    let command = words.first().and_then(|word| word.to_str());
    let Some(ContextValue::String(unexpected)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let is_known = command.is_some_and(|command| looks.contains(&command));
    if error.kind() != clap::error::ErrorKind::UnknownArgument
        || !is_known
        || unexpected.starts_with('-')
    {
        return error;
    }
    let unexpected = unexpected.clone();
    let host = (command == Some("doctor")).then(|| format!("redis://{unexpected}"));
    let host = host.and_then(|url| by_flag(OsStr::new(&url)));
    let url = words.iter().skip(1).find_map(|word| by_flag(word));
    let tip = url.or(host);
    let tip = tip.unwrap_or_else(|| "a node is given by --node redis://HOST".into());
    let tip = StyledStr::from(printable(&tip));
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip]));
    if unexpected.contains(['@', '?']) {
        error.insert(ContextKind::InvalidArg, ContextValue::String("***".into()));
    }
    error
}

/// A file's mode and content. The file may be a pipe: standard input, or `<(…)` of a shell, whose writer takes its
/// time, or a FIFO, which may have none.
fn read(path: &Path, within: Duration) -> io::Result<(u32, Vec<u8>)> {
    let end = Instant::now() + within;
    let mut file = OpenOptions::new();
    // Without the flag, opening a FIFO waits for a writer.
    let file = file.custom_flags(OFlag::O_NONBLOCK.bits());
    let file = file.read(true).open(path)?;
    let mode = file.metadata()?.permissions().mode();
    let mut bytes = Vec::new();
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let wait = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let mut polled = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
        match poll(&mut polled, wait) {
            Ok(0) => {
                let text = format!(
                    "not read to its end within {within:?}: is it a pipe that is never closed?"
                );
                return Err(io::Error::new(ErrorKind::TimedOut, text));
            }
            Ok(_) => {}
            Err(Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let mut page = [0; 4096];
        match (&file).read(&mut page) {
            Ok(0) => break,
            Ok(count) => bytes.extend(page.iter().take(count)),
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error),
        }
        if bytes.len() > LONGEST_FILE {
            let text = format!("longer than {LONGEST_FILE} bytes");
            return Err(io::Error::new(ErrorKind::FileTooLarge, text));
        }
    }
    Ok((mode, bytes))
}

fn node(url: &str, place: std::fmt::Arguments<'_>) -> Result<NodeAddress, String> {
    let node = url.into_node();
    node.map_err(|error| format!("{place}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::thread;

    use clap::Parser;
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use redlock_sync::command::NODES_FILE;

    use super::*;
    use crate::arguments::{Arguments, Command};

    const SECOND: Duration = Duration::from_secs(1);

    fn fifo(name: &str) -> PathBuf {
        let path = env::temp_dir().join(format!("redlock-{name}-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
        path
    }

    #[test]
    fn a_pipe_that_is_not_written_or_closed_is_waited_for_within_its_time() {
        let path = fifo("silent");
        let begin = Instant::now();
        let unopened = read(&path, SECOND / 2).unwrap_err();
        let writer = OpenOptions::new().read(true).write(true).open(&path);
        let open = read(&path, SECOND / 2).unwrap_err();
        assert!(begin.elapsed() > SECOND / 2 && begin.elapsed() < 6 * SECOND);
        for error in [unopened, open] {
            let text = error.to_string();
            assert!(text.contains("500ms") && text.contains("pipe"), "{text}");
        }
        drop(writer);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_pipe_is_read_until_it_is_closed() {
        let path = fifo("slow");
        let text = thread::scope(|scope| {
            let reader = scope.spawn(|| read(&path, 20 * SECOND));
            thread::sleep(SECOND / 10);
            let mut writer = OpenOptions::new().write(true).open(&path).unwrap();
            for _ in 0..3 {
                writer.write_all("#\n".repeat(3000).as_bytes()).unwrap();
                thread::sleep(SECOND / 10);
            }
            drop(writer);
            reader.join().unwrap().unwrap().1
        });
        assert_eq!(text.len(), 18_000);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn what_never_ends_is_read_to_its_limit() {
        let error = read(Path::new("/dev/zero"), 20 * SECOND).unwrap_err();
        assert!(error.to_string().contains("1048576 bytes"), "{error}");
    }

    /// The result of `redlock list` with these flags and these surroundings: the place, and how many nodes it names.
    fn taken(
        flags: &[&str],
        [variable, file_variable]: [&str; 2],
        default_file: &Path,
    ) -> Result<(String, usize), String> {
        let words = ["redlock", "list"].iter().chain(flags);
        let Ok(Arguments {
            command: Command::List(list),
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
        nodes(&list.nodes, &around).map(|(place, nodes)| (place, nodes.len()))
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
