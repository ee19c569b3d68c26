//! The scripts that run on a server, from the files in `scripts/`.
//!
//! A script compares and acts in one step. Scripts are loaded when a connection is set up, and called by their hashes;
//! or by their texts if loading failed or is not permitted, or if the server has dropped them.
//!
//! The scripts are sent without comments and indentation. In these files a comment has a separate line.

use crate::errors::cause::Cause;
use crate::protocol::commands::resp::{self, Reply};
use crate::protocol::commands::sha1::sha1;

#[derive(Clone, Copy)]
pub(crate) struct Script {
    pub(crate) text: &'static [u8],
    /// The SHA-1 of the text.
    pub(crate) hash: &'static [u8],
    /// The first arguments of a call by the hash, packed.
    pub(crate) by_hash: &'static [u8],
}

/// One script, from one or more files.
macro_rules! script {
    ($($file:literal),+) => {{
        const SOURCE: &[u8] =
            concat!($(include_str!(concat!("scripts/", $file, ".lua"))),+).as_bytes();
        const LENGTH: usize = strip::<0>(SOURCE).1;
        const TEXT: [u8; LENGTH] = strip(SOURCE).0;
        const HASH: [u8; 40] = sha1(&TEXT);
        Script { text: &TEXT, hash: &HASH, by_hash: &by_hash(&HASH) }
    }};
}

pub(crate) const RELEASE: Script = script!("release");
pub(crate) const EXTEND: Script = script!("given_up", "extend");
pub(crate) const FENCE: Script = script!("fence", "count");
// Called by its text: few programs call it, and those seldom.
pub(crate) const DONE: Script = script!("done");
pub(crate) const RELEASE_AND_NOTIFY: Script = script!("release_and_notify");
pub(crate) const DEQUEUE: Script = script!("dequeue");
pub(crate) const ACQUIRE_OR_ENQUEUE: Script = script!("queue", "acquire", "enqueue", "lock_info");
pub(crate) const ACQUIRE_IN_ORDER: Script =
    script!("queue", "enqueue", "acquire_in_order", "lock_info");

// For permits.
pub(crate) const ACQUIRE_PERMIT: Script = script!(
    "members",
    "notify",
    "join",
    "enqueue",
    "joined",
    "acquire_permit"
);
pub(crate) const EXTEND_MEMBER: Script = script!("members", "given_up", "extend_member");
pub(crate) const RELEASE_MEMBER: Script = script!("members", "notify", "release_member");
pub(crate) const REFILL_MEMBER: Script = script!("members", "refill_member");
pub(crate) const FENCE_MEMBER: Script = script!("members", "fence_member", "count");
// For readers and writers.
pub(crate) const ACQUIRE_READ: Script = script!(
    "members",
    "notify",
    "join",
    "enqueue",
    "joined",
    "acquire_read"
);
pub(crate) const ACQUIRE_WRITE: Script = script!(
    "members",
    "notify",
    "join",
    "enqueue",
    "joined",
    "readers",
    "acquire_write"
);
// For writers, and for locks on several names.
pub(crate) const ACQUIRE_NAMES: Script = script!(
    "notify",
    "join",
    "enqueue",
    "joined",
    "readers",
    "acquire_names"
);
pub(crate) const EXTEND_NAMES: Script = script!("names", "given_up", "extend_names");
pub(crate) const RELEASE_NAMES: Script = script!("names", "notify", "release_names");
pub(crate) const LEAVE: Script = script!("notify", "leave");
pub(crate) const REFILL_NAMES: Script = script!("names", "refill_names");
pub(crate) const FENCE_NAMES: Script = script!("names", "fence_names");

/// The scripts that are loaded when a connection is set up.
pub(crate) const SCRIPTS: [Script; 7] = [
    RELEASE_AND_NOTIFY,
    RELEASE,
    EXTEND,
    FENCE,
    ACQUIRE_OR_ENQUEUE,
    DEQUEUE,
    ACQUIRE_IN_ORDER,
];

/// The scripts that a connection loads with their first call, which has their text: programs with plain locks never do.
pub(crate) const LATER: [Script; 14] = [
    ACQUIRE_PERMIT,
    EXTEND_MEMBER,
    RELEASE_MEMBER,
    REFILL_MEMBER,
    FENCE_MEMBER,
    ACQUIRE_READ,
    ACQUIRE_WRITE,
    ACQUIRE_NAMES,
    EXTEND_NAMES,
    RELEASE_NAMES,
    LEAVE,
    REFILL_NAMES,
    FENCE_NAMES,
    DONE,
];

impl Script {
    /// The place of the script among [`LATER`], if it is one of those.
    pub(crate) fn later(&self) -> Option<usize> {
        LATER.iter().position(|later| later.hash == self.hash)
    }
}

/// The script of [`Redlock::inspect`](crate::Redlock::inspect), which runs it once for each connection.
pub(crate) const INSPECT: Script = script!("inspect");
/// That of [`Redlock::inspect`](crate::Redlock::inspect) and [`Redlock::list`](crate::Redlock::list) for those that wait.
pub(crate) const WAITERS: Script = script!("waiters");

/// The scripts of questions beside the locks.
pub(crate) const LOOKS: [Script; 3] = [INSPECT, WAITERS, TRIAL];

/// Appends the commands that load these scripts.
pub(crate) fn load<'a>(scripts: impl IntoIterator<Item = &'a Script>, out: &mut Vec<u8>) {
    for script in scripts {
        resp::pack(out, &[&[b"SCRIPT", b"LOAD", script.text]], None);
    }
}

/// Why not all of these scripts are loaded, by the replies to [`load`]: the server's own error, if it has reported one.
pub(crate) fn are_loaded<'a>(
    scripts: impl IntoIterator<Item = &'a Script>,
    replies: &[Reply],
) -> Result<(), Cause> {
    for (script, reply) in scripts.into_iter().zip(replies) {
        match reply {
            Reply::Bulk(hash) if hash == script.hash => {}
            Reply::Error(text) => return Err(Cause::refused(text)),
            other => return Err(Cause::Refused(other.kind().into())),
        }
    }
    Ok(())
}

/// A script that needs no key and shows whether scripts can be run at all.
pub(crate) const TRIAL: Script = Script {
    text: b"return 1",
    hash: &sha1(b"return 1"),
    by_hash: &by_hash(&sha1(b"return 1")),
};

// The compiler runs this: an index out of bounds does not compile.
#[allow(clippy::indexing_slicing)]
const fn by_hash(hash: &[u8; 40]) -> [u8; 60] {
    let mut packed = *b"$7\r\nEVALSHA\r\n$40\r\n0000000000000000000000000000000000000000\r\n";
    let mut at = 0;
    while at < hash.len() {
        packed[18 + at] = hash[at];
        at += 1;
    }
    packed
}

/// The lines of `source` without indentation, comments and blank lines: the bytes that fit, and how many there are.
// The compiler runs this: an index out of bounds does not compile.
#[allow(clippy::indexing_slicing)]
const fn strip<const N: usize>(source: &[u8]) -> ([u8; N], usize) {
    let (mut text, mut length) = ([0; N], 0);
    let (mut at, mut begins, mut kept) = (0, true, false);
    while at < source.len() {
        let byte = source[at];
        if begins && byte != b' ' {
            let comment = byte == b'-' && source[at + 1] == b'-';
            (begins, kept) = (false, byte != b'\n' && !comment);
        }
        if kept && !begins {
            if length < N {
                text[length] = byte;
            }
            length += 1;
        }
        begins |= byte == b'\n';
        at += 1;
    }
    (text, length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_gets_the_lines_without_comments_and_indentation() {
        let source = b"-- A comment.\n\n  -- Another one.\n  if a - b then\n    c('--')\n  end\n\n";
        let text = b"if a - b then\nc('--')\nend\n";
        assert_eq!(strip::<26>(source), (*text, text.len()));
        for script in SCRIPTS.iter().chain(&LATER).chain([&INSPECT, &WAITERS]) {
            let text = str::from_utf8(script.text).unwrap();
            let line = |line: &str| !line.is_empty() && !line.contains("--") && line.trim() == line;
            assert!(text.lines().all(line), "{text}");
        }
    }

    #[test]
    fn scripts_are_loaded_if_the_server_reports_the_hash_of_each() {
        let loaded = |script: &Script| Reply::Bulk(script.hash.to_vec());
        let mut replies: Vec<Reply> = LATER.iter().map(loaded).collect();
        assert!(are_loaded(&LATER, &replies).is_ok());
        for (reply, expected) in [
            (Reply::Error("BUSY a script".into()), "BUSY a script"),
            (loaded(&TRIAL), "a string"),
        ] {
            replies[3] = reply;
            let cause = are_loaded(&LATER, &replies).unwrap_err();
            assert!(cause.to_string().contains(expected), "{cause}");
        }
    }

    /// The replies to SCRIPT LOAD are compared with these hashes in `proof/differential.rs`.
    #[test]
    fn no_two_scripts_have_the_same_hash() {
        let all = SCRIPTS.iter().chain(&LATER);
        let mut hashes: Vec<_> = all.map(|script| script.hash).collect();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), SCRIPTS.len() + LATER.len());
    }
}
