//! Votes: the meaning of a node's answer to an action.

use crate::errors::cause::Cause;
use crate::errors::server_error::Meaning;
use crate::protocol::commands::queue::LockInfo;
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
    /// The number may become a fencing token, or is the result of a release: [`NOTIFIED`] or not.
    Granted(u64),
    /// The node's report on the lock, if the process has entered its queue.
    Refused(Option<LockInfo>),
    /// The name is in other use.
    OtherUse(OtherUse),
    /// The server returned an error. `later`: it may well carry out the command later.
    Failed { cause: Cause, later: bool },
    /// This connection is no longer usable.
    Sever(Cause),
}

impl Vote {
    /// The vote of an error. `several`: whether the lock is on several names.
    pub(crate) fn of_error(text: String, several: bool) -> Vote {
        let meaning = Meaning::of(&text);
        let cause = match meaning {
            // A new connection logs in again.
            Meaning::NoLogin => return Vote::Sever(Cause::logged_out(&text)),
            // Another server may be the master by now (rule R38).
            _ if meaning.is_demoted() && !mutant(Mutant::KeepReplica) => {
                return Vote::Sever(Cause::demoted(&text));
            }
            Meaning::OtherSlot if several => Cause::OtherSlots(text),
            _ => Cause::refused(&text),
        };
        let later = meaning.passes();
        Vote::Failed { cause, later }
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
