//! Where the nodes' URLs come from, and the rules that keep passwords out of sight.

use std::env;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use redlock_sync::redis::ConnectionInfo;
use redlock_sync::{Options, Redlock};

use crate::arguments::{Nodes, within};
use crate::label::label;
use crate::url;

const VARIABLE: &str = "REDLOCK_NODES";
const FILE_VARIABLE: &str = "REDLOCK_NODES_FILE";
/// Sixty-four nodes need less.
const LONGEST_FILE: u64 = 1 << 20;

/// The client, and the options that it has.
///
/// # Errors
///
/// What is wrong with which flag, variable, or line of a file. URLs are repeated without their passwords.
pub(crate) fn open(given: &Nodes) -> Result<(Redlock, Options), String> {
    let (place, nodes) = nodes(given)?;
    client(given, &place, nodes)
}

/// The nodes alone, after the same checks.
///
/// # Errors
///
/// As [`open`].
pub(crate) fn named(given: &Nodes) -> Result<Vec<ConnectionInfo>, String> {
    let (place, nodes) = nodes(given)?;
    client(given, &place, nodes.clone())?;
    Ok(nodes)
}

fn client(
    given: &Nodes,
    place: &str,
    nodes: Vec<ConnectionInfo>,
) -> Result<(Redlock, Options), String> {
    let mut options = Options::new()
        .node_timeout(given.node_timeout.0)
        .connect_timeout(given.connect_timeout.0)
        .label(label());
    if let Some(max_ttl) = given.restart_guard {
        options = options.restart_guard(max_ttl.0);
    }
    let redlock = Redlock::new(nodes).map_err(|error| format!("{place}: {error}"))?;
    let redlock = redlock.with_options(options.clone());
    let redlock = redlock.map_err(|error| error.to_string())?;
    Ok((redlock, options))
}

/// Where they stand, and the nodes.
fn nodes(given: &Nodes) -> Result<(String, Vec<ConnectionInfo>), String> {
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
    let urls = match env::var(VARIABLE) {
        Ok(urls) => urls,
        Err(env::VarError::NotPresent) => String::new(),
        Err(env::VarError::NotUnicode(_)) => return Err(format!("{VARIABLE} is not UTF-8")),
    };
    let urls: Vec<&str> = urls
        .split(|separator: char| separator == ',' || separator.is_whitespace())
        .filter(|url| !url.is_empty())
        .collect();
    if !urls.is_empty() {
        return Ok((VARIABLE.into(), from_variable(&urls)?));
    }
    match env::var_os(FILE_VARIABLE).filter(|path| !path.is_empty()) {
        Some(path) => from_file(FILE_VARIABLE, &PathBuf::from(path)),
        None => Err(format!(
            "no nodes: give their URLs in {VARIABLE} (with commas between them), one a line in a file named by \
             --nodes-file or {FILE_VARIABLE}, or by --node"
        )),
    }
}

fn from_variable(urls: &[&str]) -> Result<Vec<ConnectionInfo>, String> {
    // A comma in a password has made two of one: parts of it may be among them.
    let torn = |url: &&str| url.contains('@') && !url.contains("://");
    if let Some(at) = urls.iter().position(torn) {
        let number = at + 1;
        return Err(format!(
            "{VARIABLE}, URL {number} cannot be a node's URL: it has no scheme (redis://); if there is a comma in a \
             password, write %2C"
        ));
    }
    let one = |(number, url): (usize, &&str)| node(url, format_args!("{VARIABLE}, URL {number}"));
    (1..).zip(urls).map(one).collect()
}

fn from_flags(urls: &[String]) -> Result<Vec<ConnectionInfo>, String> {
    let one = |(i, url): (usize, &String)| {
        let place = format!("--node, URL {}", i + 1);
        let info = node(url, format_args!("{place}"))?;
        match has_password(&info) {
            true => Err(format!(
                "{place} has a password, which ps shows to everybody: put it into a file for --nodes-file, or \
                 into {VARIABLE}"
            )),
            false => Ok(info),
        }
    };
    urls.iter().enumerate().map(one).collect()
}

fn from_file(named_by: &str, path: &Path) -> Result<(String, Vec<ConnectionInfo>), String> {
    let place = format!("{named_by} {}", path.display());
    let failed = |error: std::io::Error| format!("{place}: {error}");
    let file = File::open(path).map_err(failed)?;
    let mode = file.metadata().map_err(failed)?.permissions().mode();
    let mut text = String::new();
    file.take(LONGEST_FILE + 1)
        .read_to_string(&mut text)
        .map_err(failed)?;
    if text.len() as u64 > LONGEST_FILE {
        return Err(format!("{place} is longer than {LONGEST_FILE} bytes"));
    }
    let mut nodes = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let info = node(line, format_args!("{place}, line {number}"))?;
        if has_password(&info) && mode & 0o004 != 0 {
            return Err(format!(
                "{place}, line {number} has a password, and everybody may read the file (mode {:03o}): chmod o-r",
                mode & 0o777
            ));
        }
        nodes.push(info);
    }
    if nodes.is_empty() {
        return Err(format!("{place} names no nodes: one URL a line"));
    }
    Ok((place, nodes))
}

fn node(url: &str, place: std::fmt::Arguments<'_>) -> Result<ConnectionInfo, String> {
    url::parse(url).map_err(|error| format!("{place} {error}"))
}

fn has_password(info: &ConnectionInfo) -> bool {
    info.redis_settings().password().is_some()
}
