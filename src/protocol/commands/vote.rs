//! Votes: the meaning of a node's answer to an action.

use crate::errors::cause::Cause;
use crate::errors::server_error::Meaning;
use crate::protocol::commands::lock_info::LockInfo;
use crate::protocol::mutants::{Mutant, mutant};

/// The number returned by a release that has notified a waiter in another process.
pub(crate) const NOTIFIED: u64 = 2;

/// The proof needed before an answer counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Proof {
    #[default]
    None,
    /// The server is the same.
    Look,
    /// The server is the same, and has the witness.
    Witness,
}

pub(crate) enum Vote {
    /// The number may become a fencing token, is a permit's slot, or the result of a release: [`NOTIFIED`] or not.
    Granted(u64),
    Denied(Denial),
    /// The name is in other use.
    OtherUse(OtherUse),
    /// The server returned an error. `later`: it may well carry out the command later.
    Failed {
        cause: Cause,
        later: bool,
    },
    /// This connection is no longer usable.
    Sever(Cause),
}

/// The report of a node that refuses the lock.
pub(crate) enum Denial {
    /// Nothing.
    Unknown,
    /// The state of the lock that was to be acquired.
    Held(LockInfo),
    /// The successor of a lock that was held.
    Instead(Instead),
}

/// A node's successor of a lock that its holder lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Instead {
    Another,
    Nothing,
}

impl Instead {
    /// Reads a script's answer.
    pub(crate) fn of(answer: i64) -> Option<Instead> {
        match answer {
            -1 => Some(Instead::Another),
            -2 => Some(Instead::Nothing),
            _ => None,
        }
    }
}

impl Vote {
    /// The vote of a node that does not hold a lock which it is asked for. `None`: the number is no such answer.
    pub(crate) fn not_held(answer: i64) -> Option<Vote> {
        let instead = Instead::of(answer).map(Denial::Instead);
        let refusal = instead.or((answer == 0).then_some(Denial::Unknown))?;
        Some(Vote::Denied(refusal))
    }

    /// The vote of an error. `several`: whether the lock is on several names.
    pub(crate) fn of_error(text: String, several: bool) -> Vote {
        let meaning = Meaning::of(&text);
        let cause = Cause::of_error(text, several);
        match meaning {
            // A new connection logs in again; and it loads the scripts, if this user may not send their texts.
            Meaning::NoLogin | Meaning::NoScript => Vote::Sever(cause),
            // Another server may be the master by now (rule R38).
            _ if meaning.is_demoted() && !mutant(Mutant::KeepReplica) => Vote::Sever(cause),
            _ => Vote::Failed {
                cause,
                later: meaning.passes(),
            },
        }
    }
}

/// The other use of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OtherUse {
    Lock,
    Readers,
    Permits,
    Data,
}

impl OtherUse {
    /// Reads a script's answer.
    pub(crate) fn of(answer: i64) -> Option<OtherUse> {
        match answer {
            -1 => Some(OtherUse::Lock),
            -2 => Some(OtherUse::Readers),
            -3 => Some(OtherUse::Permits),
            -4 => Some(OtherUse::Data),
            _ => None,
        }
    }

    /// A phrase that describes the use of the name.
    pub(crate) fn text(self) -> &'static str {
        match self {
            OtherUse::Lock => "is in use as a lock",
            OtherUse::Readers => "is in use as a read-write lock",
            OtherUse::Permits => "is in use as a semaphore",
            OtherUse::Data => "holds data that is no lock",
        }
    }
}
