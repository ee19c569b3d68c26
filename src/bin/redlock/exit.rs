//! How this program ends: its exit codes, in one table.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use redlock_sync::Error;

use crate::output::report;

pub(crate) const FOUND: u8 = 1;
pub(crate) const USAGE: u8 = 64;
pub(crate) const UNAVAILABLE: u8 = 69;
pub(crate) const NO_PROCESS: u8 = 71;
pub(crate) const BUSY: u8 = 75;
pub(crate) const LOST: u8 = 76;
pub(crate) const OTHER_KIND: u8 = 78;
pub(crate) const TIMED_OUT: u8 = 124;
pub(crate) const CANNOT_RUN: u8 = 126;
pub(crate) const NOT_FOUND: u8 = 127;

/// The exit codes, with the texts of the manual page.
pub(crate) const CODES: [(&str, &str); 12] = [
    ("COMMAND's", "It ran to its end under the lock."),
    (
        "by a signal",
        "COMMAND was ended by INT, TERM or HUP, or redlock was while it waited: redlock ends by the same signal.",
    ),
    ("128+n", "COMMAND was ended by any other signal n."),
    (
        "75, or -E",
        "Another has the lock, it is too soon, or a host has succeeded within --once-per. release: the \
         holder that was meant does not have it, or it is no lock of this program.",
    ),
    (
        "76",
        "The lock was lost: COMMAND was ended for it, or ended unprotected.",
    ),
    ("124", "--max-hold was used up, so COMMAND was ended."),
    (
        "69",
        "Too few nodes answered (at once, without waiting, where they refuse for good: a wrong password, a right \
         that is missing); or this system is not Linux, which run needs.",
    ),
    (
        "64",
        "Something in the command line, the environment or a file that they name cannot work.",
    ),
    (
        "78",
        "NAME is in use as another kind of lock (--slots, --shared and the like), or for other data: at once, without \
         waiting, and whatever -E is. Give one name the same flag everywhere.",
    ),
    (
        "71",
        "The system gave no process, no /proc, or no random bytes.",
    ),
    ("126, 127", "COMMAND cannot be run; is not found."),
    (
        "1",
        "doctor: a fault was found (with --strict: or a warning), or no lock could be tried on a majority. list --stuck: \
         something has a problem. last: it is not done. \
         release: the answer was no.",
    ),
];

/// How COMMAND, or this program, ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Code(u8),
    Signal(i32),
}

impl End {
    /// How a process ended.
    pub(crate) fn of(status: ExitStatus) -> End {
        match status.code().and_then(|code| u8::try_from(code).ok()) {
            Some(code) => End::Code(code),
            None => End::Signal(status.signal().unwrap_or_default()),
        }
    }
}

/// Reports why there is no lock, and returns the exit code for that.
pub(crate) fn failed(error: &Error) -> End {
    report(format_args!("{error}"));
    End::Code(code_of(error))
}

/// Reports why a lock has no fencing token, and returns the exit code for that.
pub(crate) fn no_token(error: &Error) -> End {
    report(format_args!("no fencing token: {error}"));
    End::Code(code_of(error))
}

fn code_of(error: &Error) -> u8 {
    match error {
        Error::Config(_) => USAGE,
        Error::OtherKind(_) => OTHER_KIND,
        Error::Random(_) => NO_PROCESS,
        _ => UNAVAILABLE,
    }
}
