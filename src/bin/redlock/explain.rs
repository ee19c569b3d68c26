//! The tip for a node that was given where none is expected.

use std::ffi::{OsStr, OsString};

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue};
use redlock_sync::IntoNode;
use redlock_sync::command::{NODES, printable};

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
    let looks = ["doctor", "inspect", "last", "list", "release"];
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
