//! The file with the URLs of the nodes, and what holds for all files of settings.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

use crate::settings::into_node;
use crate::settings::node_address::NodeAddress;
use crate::settings::node_list;

/// The maximum length of a file. Sixty-four nodes need less.
pub const LONGEST_FILE: usize = 1 << 20;

/// Reads a file. Not a pipe, whose writer may take its time.
pub(super) fn read(path: &Path) -> io::Result<(u32, Vec<u8>)> {
    let found = fs::metadata(path)?;
    if !found.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut bytes = Vec::new();
    let limit = LONGEST_FILE as u64 + 1;
    File::open(path)?.take(limit).read_to_end(&mut bytes)?;
    if bytes.len() > LONGEST_FILE {
        let text = format!("longer than {LONGEST_FILE} bytes");
        return Err(io::Error::new(ErrorKind::FileTooLarge, text));
    }
    Ok((mode(&found), bytes))
}

#[cfg(unix)]
fn mode(found: &fs::Metadata) -> u32 {
    std::os::unix::fs::PermissionsExt::mode(&found.permissions())
}

#[cfg(not(unix))]
fn mode(_: &fs::Metadata) -> u32 {
    0
}

/// Refuses a secret in a file that is not for its owner and group alone.
pub(super) fn private(mode: u32, secret: &str) -> Result<(), String> {
    match mode & 0o004 {
        0 => Ok(()),
        _ => Err(format!(
            "{secret}, and every user may read the file (mode {:03o}): chmod o-r",
            mode & 0o777
        )),
    }
}

/// The nodes in a file's text.
pub(super) fn parse(source: &str, mode: u32, bytes: Vec<u8>) -> Result<Vec<NodeAddress>, String> {
    let text = String::from_utf8(bytes);
    let text = text.map_err(|_| format!("{source}: not UTF-8"))?;
    let mut nodes = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = node_list::bare(line);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let node = into_node::of_url(line);
        let node = node.map_err(|error| format!("{source}, line {number}: {error}"))?;
        if node.has_password() {
            private(mode, &format!("{source}, line {number} has a password"))?;
        }
        nodes.push(node);
    }
    Ok(nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_whole_and_a_pipe_or_directory_is_not_waited_for() {
        let (_, text) = read(Path::new("Cargo.toml")).unwrap();
        assert!(text.starts_with(b"[package]"));
        let error = read(Path::new("src")).unwrap_err();
        assert_eq!(error.to_string(), "it is no regular file");
    }
}
