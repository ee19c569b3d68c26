//! Which part of a server's error is Redis' own wording: that repeats nothing that a client sent, and may be shown.

use std::iter::once;

use crate::errors::server_error::{CODES, ERRORS, Meaning};

/// More of Redis' own words: how errors begin, whatever the server was sent.
const SENTENCES: [&str; 25] = [
    "CLUSTERDOWN Hash slot not served",
    "CLUSTERDOWN The cluster is down",
    "BUSY Redis is busy running a script.",
    "DENIED Redis is running in protected mode because protected mode is enabled",
    "ERR AUTH <password> called without any password configured for the default user. Are you sure your \
     configuration is correct?",
    "ERR Error running script (call to f_",
    "ERR operation not permitted",
    "ERR syntax error",
    "ERR value is not an integer or out of range",
    "ERR wrong number of arguments for '",
    "LOADING Redis is loading the dataset in memory",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "MISCONF Redis is configured to save RDB snapshots, but it",
    "NOAUTH Authentication required.",
    "NOPERM No permissions to access a key",
    "NOPERM this user has no permissions to access one of the keys used as arguments",
    "NOPERM this user has no permissions to run the '",
    "NOREPLICAS Not enough good replicas to write.",
    "NOSCRIPT No matching script. Please use EVAL.",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "READONLY You can't write against a read only ",
    "TRYAGAIN Multiple keys request during rehashing of slot",
    "UNKILLABLE Sorry the script already executed write commands against the dataset.",
    "WRONGPASS invalid username-password pair or user is disabled.",
    "WRONGTYPE Operation against a key holding the wrong kind of value",
];

/// An error as shown before our advice. That of protected mode has a thousand characters of its own advice.
pub(super) fn brief(error: &str) -> &str {
    match (Meaning::of(error), error.split_once(" because ")) {
        (Meaning::Protected, Some((text, _))) => text,
        _ => error,
    }
}

/// The length of the start of an error that is Redis' own wording, whatever the server was sent.
pub(super) fn own_words(error: &str) -> usize {
    let (code, rest) = error.split_once(' ').unwrap_or((error, ""));
    let code = match CODES.iter().any(|(name, _)| *name == code) {
        true => error.len() - rest.len(),
        false => 0,
    };
    let starts = ERRORS.iter().map(|(start, _)| *start).chain(SENTENCES);
    let starts = starts.filter(|start| error.starts_with(start));
    let lengths = starts.map(str::len).chain(once(code));
    lengths.max().unwrap_or_default()
}

#[cfg(test)]
pub(super) fn all_own_words() -> impl Iterator<Item = &'static str> {
    let starts = CODES.iter().chain(&ERRORS).map(|(start, _)| *start);
    starts.chain(SENTENCES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protected_mode_gives_no_advice_beside_ours() {
        for (error, shown) in [
            (
                "DENIED Valkey is running in protected mode because protected mode is enabled and no …",
                "DENIED Valkey is running in protected mode",
            ),
            ("ERR x because y", "ERR x because y"),
        ] {
            assert_eq!(brief(error), shown);
        }
    }
}
