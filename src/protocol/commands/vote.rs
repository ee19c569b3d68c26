//! What a node's answer to an action is worth.

use crate::errors::error::Cause;
use crate::errors::server_error::Meaning;
use crate::protocol::commands::queue::LockInfo;
use crate::protocol::mutants::{Mutant, mutant};

/// A release has notified a waiter in another process.
pub(crate) const NOTIFIED: u64 = 2;

/// What must be shown before an answer counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Proof {
    #[default]
    None,
    /// That the server is the same.
    Look,
    /// And that it has the witness.
    Witness,
}

pub(crate) enum Vote {
    /// With the number that a fencing token may become, or what a release returns: [`NOTIFIED`] or not.
    Granted(u64),
    /// With what a node knows of the lock, if the process has entered its queue.
    Refused(Option<LockInfo>),
    /// The name is in other use.
    OtherUse(OtherUse),
    /// The server answered with an error; it may well do `later` what it refused.
    Failed { cause: Cause, later: bool },
    /// This connection is of no use any more.
    Sever(Cause),
}

impl Vote {
    /// `several`: the lock is on several names.
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

/// What else stands in a name's place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OtherUse {
    Lock,
    Readers,
    Permits,
    Data,
}

impl OtherUse {
    /// What a script answers.
    pub(crate) fn of(answer: i64) -> Option<OtherUse> {
        match answer {
            -1 => Some(OtherUse::Lock),
            -2 => Some(OtherUse::Readers),
            -3 => Some(OtherUse::Permits),
            -4 => Some(OtherUse::Data),
            _ => None,
        }
    }

    /// What the name is.
    pub(crate) fn text(self) -> &'static str {
        match self {
            OtherUse::Lock => "is in use as a lock",
            OtherUse::Readers => "is in use as a read-write lock",
            OtherUse::Permits => "is in use as a semaphore",
            OtherUse::Data => "holds data that is no lock",
        }
    }
}
