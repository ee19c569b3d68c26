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
use redlock_sync::command::printable;
use redlock_sync::{IntoNode, NodeAddress, Options, Redlock, Tls};

use crate::arguments::{Nodes, Time, Votes, within};
use crate::label::label;

const VARIABLE: &str = "REDLOCK_NODES";
const FILE_VARIABLE: &str = "REDLOCK_NODES_FILE";
/// Read last. So cron, sudo and services need no variable, and no copy of a password.
const DEFAULT_FILE: &str = "/etc/redlock/nodes";
/// The maximum length of a file. Sixty-four nodes need less.
const LONGEST_FILE: usize = 1 << 20;
/// How long the writer of a pipe may take: it may ask a store of secrets, or be a person.
const WITHIN: Duration = Duration::from_secs(30);

/// The client, and its options.
///
/// # Errors
///
/// The mistake, and the flag, variable, or line of a file that has it. URLs are repeated without their passwords.
pub(crate) fn open(given: &Nodes, votes: &Votes) -> Result<(Redlock, Options), String> {
    let (place, nodes) = nodes(given, &Surroundings::of_process())?;
    client(given, votes, &place, nodes)
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
    given: &Nodes,
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
    let mut options = Options::new()
        .node_timeout(given.node_timeout.0)
        .connect_timeout(given.connect_timeout.0)
        .tls(tls(given)?)
        .prefix(text(&given.prefix, "REDLOCK_PREFIX")?)
        .label(label());
    if let Some(max_ttl) = votes.restart_guard {
        options = options.restart_guard(max_ttl.0);
    }
    let redlock = Redlock::new(nodes).map_err(|error| format!("{place}: {error}"))?;
    let redlock = redlock.with_options(options.clone());
    let redlock = redlock.map_err(|error| error.to_string())?;
    Ok((redlock, options))
}

/// Where nodes may be named, beside the command line.
struct Surroundings {
    variable: Option<OsString>,
    file_variable: Option<OsString>,
    default_file: PathBuf,
}

impl Surroundings {
    fn of_process() -> Surroundings {
        Surroundings {
            variable: env::var_os(VARIABLE),
            file_variable: env::var_os(FILE_VARIABLE),
            default_file: DEFAULT_FILE.into(),
        }
    }
}

/// Where the nodes are named, and the nodes.
fn nodes(given: &Nodes, around: &Surroundings) -> Result<(String, Vec<NodeAddress>), String> {
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
    if let Some(path) = &given.nodes_file {
        return from_file("--nodes-file", path);
    }
    let urls = match &around.variable {
        Some(urls) => urls.to_str().ok_or(format!("{VARIABLE} is not UTF-8"))?,
        None => "",
    };
    let urls = items(urls);
    if !urls.is_empty() {
        return Ok((VARIABLE.into(), from_variable(&urls)?));
    }
    match around
        .file_variable
        .as_ref()
        .filter(|path| !path.is_empty())
    {
        Some(path) => from_file(FILE_VARIABLE, Path::new(path)),
        None => from_default_file(&around.default_file),
    }
}

/// The URLs in a text. A comma separates two URLs only before a scheme: the hosts of one have commas between them. So
/// has a password, perhaps.
fn items(urls: &str) -> Vec<&str> {
    let mut items = Vec::new();
    for word in urls.split_whitespace() {
        let mut rest = word;
        while let Some((at, _)) = rest
            .match_indices(',')
            .find(|(at, _)| begins_url(rest, at + 1))
        {
            items.push(rest.get(..at).unwrap_or_default());
            rest = rest.get(at + 1..).unwrap_or_default();
        }
        items.push(rest.trim_end_matches(','));
    }
    items.retain(|url| !url.is_empty());
    items
}

fn begins_url(text: &str, at: usize) -> bool {
    let text = text.get(at..).unwrap_or_default();
    let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
    let is_part = |c: char| c.is_ascii_alphanumeric() || "+-.".contains(c);
    scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.chars().all(is_part)
}

fn from_variable(urls: &[&str]) -> Result<Vec<NodeAddress>, String> {
    // A comma in a password has made two of one, or there are parameters behind it: they are not shown.
    let has_none = |url: &str| !url.contains("://");
    let torn = |number: usize| {
        format!(
            "{VARIABLE}, URL {number}: it has no scheme (redis://); if there is a comma in a password, write %2C, and put \
             the password before an @ (redis://user:password@host:port)"
        )
    };
    let in_password = |url: &&str| url.contains('@') && has_none(url);
    if let Some(at) = urls.iter().position(in_password) {
        return Err(torn(at + 1));
    }
    let one = |(number, url): (usize, &&str)| match number > 1 && has_none(url) {
        true => Err(torn(number)),
        false => node(url, format_args!("{VARIABLE}, URL {number}")),
    };
    (1..).zip(urls).map(one).collect()
}

fn from_flags(urls: &[String]) -> Result<Vec<NodeAddress>, String> {
    let one = |(i, url): (usize, &String)| {
        let place = format!("--node, URL {}", i + 1);
        let info = node(url, format_args!("{place}"))?;
        match info.has_password() {
            true => Err(format!(
                "{place} has a password, which ps shows to every user: put it into a file for --nodes-file, or \
                 into {VARIABLE}"
            )),
            false => Ok(info),
        }
    };
    urls.iter().enumerate().map(one).collect()
}

fn from_file(named_by: &str, path: &Path) -> Result<(String, Vec<NodeAddress>), String> {
    let place = format!("{named_by} {}", path.display());
    let (mode, bytes) = read(path, WITHIN).map_err(|error| format!("{place}: {error}"))?;
    let nodes = parse(&place, mode, bytes)?;
    if nodes.is_empty() {
        return Err(format!("{place} names no nodes: one URL a line"));
    }
    Ok((place, nodes))
}

/// The nodes of the default file. The package installs it without nodes, which counts as no file. The file counts for
/// every user, so no other user may be able to replace the nodes in it.
fn from_default_file(path: &Path) -> Result<(String, Vec<NodeAddress>), String> {
    let place = path.display().to_string();
    let nodes = match read(path, WITHIN) {
        Ok((mode, _)) if mode & 0o022 != 0 => {
            return Err(format!(
                "{place}: its group or other users may write it (mode {:03o}): chmod go-w",
                mode & 0o777
            ));
        }
        Ok((mode, bytes)) => parse(&place, mode, bytes)?,
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(unread(&place, &error)),
    };
    if nodes.is_empty() {
        return Err(format!(
            "no nodes: give their URLs one a line in {place}, or in a file named by --nodes-file or {FILE_VARIABLE}; in \
             {VARIABLE} (with commas between them); or by --node redis://HOST"
        ));
    }
    Ok((place, nodes))
}

/// Why the default file, which this user did not name, was not read.
fn unread(place: &str, error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::PermissionDenied => format!(
            "{place}: {error}: its group may read it (chgrp), so add this user to that, or give nodes by {VARIABLE} or \
             --nodes-file"
        ),
        _ => format!("{place}: {error}"),
    }
}

/// How a node is given, if this word is the URL of one in a place where no node is expected.
pub(crate) fn by_flag(word: &OsStr) -> Option<String> {
    let url = word.to_str()?;
    let node = url.into_node().ok()?;
    Some(if node.has_password() {
        format!("a node with a password is given in a file for --nodes-file, or in {VARIABLE}")
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

/// The nodes in a file's text.
fn parse(place: &str, mode: u32, bytes: Vec<u8>) -> Result<Vec<NodeAddress>, String> {
    let text = String::from_utf8(bytes);
    let text = text.map_err(|_| format!("{place}: not UTF-8"))?;
    let mut nodes = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let info = node(line, format_args!("{place}, line {number}"))?;
        if info.has_password() {
            private(mode, &format!("{place}, line {number} has a password"))?;
        }
        nodes.push(info);
    }
    Ok(nodes)
}

/// Refuses a secret in a file that is not for its owner and group alone.
fn private(mode: u32, secret: &str) -> Result<(), String> {
    match mode & 0o004 {
        0 => Ok(()),
        _ => Err(format!(
            "{secret}, and every user may read the file (mode {:03o}): chmod o-r",
            mode & 0o777
        )),
    }
}

/// The TLS settings: the trusted CAs, and the certificate that is shown. An empty variable counts as none.
fn tls(given: &Nodes) -> Result<Tls, String> {
    let file = |flag: &'static str, variable: &'static str, path: &Option<PathBuf>| {
        let from_variable = || env::var_os(variable).filter(|path| !path.is_empty());
        let (name, path) = match path {
            Some(path) => (flag, path.clone()),
            None => (variable, PathBuf::from(from_variable()?)),
        };
        let place = format!("{name} {}", path.display());
        let read = read(&path, WITHIN).map_err(|error| format!("{place}: {error}"));
        Some(read.map(|(mode, pem)| (place, mode, pem)))
    };
    let mut tls = Tls::new();
    if let Some(cacert) = file("--cacert", "REDLOCK_CACERT", &given.cacert) {
        tls = tls.root_certificates(cacert?.2);
    }
    let cert = file("--cert", "REDLOCK_CERT", &given.cert).transpose()?;
    let key = file("--key", "REDLOCK_KEY", &given.key).transpose()?;
    match (cert, key) {
        (Some((_, _, cert)), Some((place, mode, key))) => {
            private(mode, &format!("{place} has a key"))?;
            tls = tls.client_certificate(cert, key);
        }
        (None, None) => {}
        (Some((place, ..)), None) => {
            return Err(format!("{place} needs its key: --key or REDLOCK_KEY"));
        }
        (None, Some((place, ..))) => {
            return Err(format!(
                "{place} needs its certificate: --cert or REDLOCK_CERT"
            ));
        }
    }
    let name = text(&given.sni, "REDLOCK_SNI")?;
    Ok(match given.sni.is_none() && name.is_empty() {
        true => tls,
        false => tls.server_name(name),
    })
}

/// The value of a flag, else of a variable; empty if both are missing.
fn text(flag: &Option<String>, variable: &str) -> Result<String, String> {
    match (flag, env::var_os(variable)) {
        (Some(text), _) => Ok(text.clone()),
        (None, Some(text)) => {
            let text = text.into_string();
            text.map_err(|_| format!("{variable} is not UTF-8"))
        }
        (None, None) => Ok(String::new()),
    }
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
        let around = Surroundings {
            variable: Some(variable.into()),
            file_variable: Some(file_variable.into()),
            default_file: default_file.into(),
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
    fn the_commas_of_a_url_with_several_hosts_are_no_ends_of_it() {
        for (variable, expected) in [
            ("redis+cluster://a,b", &["cluster of a:6379,b:6379"][..]),
            (
                "redis://c,redis+cluster://u:p@a,b:1,c/0,valkey-cluster://d,e,",
                &[
                    "c:6379",
                    "cluster of a:6379,b:1,c:6379",
                    "cluster of d:6379,e:6379",
                ],
            ),
            (
                "redis-cluster://a?node=b:1,redis+sentinel://a,b/m redis+cluster://c,d",
                &[
                    "cluster of a:6379,b:1",
                    "m of a:26379,b:26379",
                    "cluster of c:6379,d:6379",
                ],
            ),
        ] {
            let nodes = from_variable(&items(variable)).unwrap();
            let shown: Vec<String> = nodes.iter().map(NodeAddress::to_string).collect();
            assert_eq!(shown, expected, "{variable}");
        }
    }

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
                FILE_VARIABLE,
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
        // Root can read all files.
        let error = unread(DEFAULT_FILE, &ErrorKind::PermissionDenied.into());
        assert!(error.starts_with("/etc/redlock/nodes: permission denied"));
        assert!(error.contains("add this user"), "{error}");
    }
}
