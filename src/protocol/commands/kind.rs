//! The kinds of lock.
//!
//! A *permit* is one of k slots of a semaphore, and each slot is a separate lock, acquired by a quorum of grants of
//! that slot (rule R47). A quorum of grants of any slots would let in more than k: with three nodes and two permits,
//! three holders have two nodes each.
//!
//! A *write lock* is a plain lock, a string; *readers* are the members of a sorted set under the same name. A node
//! never has both, and two majorities share a node (rule R49). Locks on *several* names are plain locks on all of them,
//! taken in one step (rule R52).
//!
//! A name has one kind at a time (rule R53): a node that finds another one there refuses, and reports which it is.

use std::sync::Arc;
use std::time::Duration;

use crate::protocol::commands::companions::Companion::{self, Mark as WriterMark, Queue, Turn};
use crate::protocol::commands::node_queue::millis;
use crate::protocol::commands::scripts::{
    ACQUIRE_NAMES, ACQUIRE_OR_ENQUEUE, ACQUIRE_PERMIT, ACQUIRE_READ, ACQUIRE_WRITE, DEQUEUE,
    EXTEND, EXTEND_MEMBER, EXTEND_NAMES, FENCE, FENCE_MEMBER, FENCE_NAMES, LEAVE, REFILL_MEMBER,
    REFILL_NAMES, RELEASE, RELEASE_AND_NOTIFY, RELEASE_MEMBER, RELEASE_NAMES, Script,
};
use crate::values::token::Token;

/// The maximum number of permits: a node goes through all of them for each that it grants.
pub(crate) const MAX_PERMITS: u16 = 1000;

/// The kind of a lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    #[default]
    Plain,
    Permit {
        /// The number of permits.
        permits: u16,
        /// The slot of this permit, once it is determined.
        slot: Option<u16>,
    },
    /// A grant that is only to be released: of this slot, which is not the one that was acquired.
    Stray(u16),
    Read {
        /// How many milliseconds the caller has waited.
        waited: u64,
    },
    Write(Mark),
    Several {
        /// Sorted by their bytes.
        names: Arc<[Arc<[u8]>]>,
        /// The tokens of the caller's own locks on some of them, which an acquire takes over.
        claims: Option<Arc<Vec<Option<Token>>>>,
    },
}

/// The mark that a waiting writer leaves at a node, so that later readers are kept out (rule R50).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Distinguishes the writer from others.
    pub(crate) writer: u64,
    /// How long the mark stays, in milliseconds. Zero: the writer does not wait.
    pub(crate) life: u64,
    /// How many milliseconds the writer has waited.
    pub(crate) waited: u64,
}

/// How a node stores a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A string, under the one name.
    Value,
    /// A member of a sorted set, under the one name.
    Member,
    /// A string under each of the names.
    Names,
}

/// The commands of a kind of lock.
pub(crate) struct KindCommands {
    pub(super) form: Form,
    /// The scripts of an acquire that does not wait, and of a repair. `None`: SET.
    pub(super) acquire: Option<Script>,
    pub(super) repair: Option<Script>,
    pub(super) enqueue: Script,
    pub(super) extend: Script,
    /// A release that notifies no waiter, and leaves a mark as it is.
    pub(super) undo: Script,
    pub(super) release: Script,
    pub(super) fence: Script,
    pub(super) leave: Script,
    pub(super) beside: BesideRow,
    /// Whether votes count only together with those for the same number.
    pub(crate) counts_apart: bool,
}

/// The keys beside the lock that its commands name if they may.
pub(crate) struct BesideRow {
    /// An acquire that does not wait.
    pub(super) tries: &'static [Companion],
    pub(super) waits: &'static [Companion],
    pub(super) releases: &'static [Companion],
    pub(super) leaves: &'static [Companion],
}

const PLAIN: KindCommands = KindCommands {
    form: Form::Value,
    acquire: None,
    repair: None,
    enqueue: ACQUIRE_OR_ENQUEUE,
    extend: EXTEND,
    undo: RELEASE,
    release: RELEASE_AND_NOTIFY,
    fence: FENCE,
    leave: DEQUEUE,
    beside: BesideRow {
        tries: &[],
        waits: &[Queue, Turn],
        releases: &[Queue],
        leaves: &[Queue, Turn],
    },
    counts_apart: false,
};

/// The row of a kind whose holders are members of a set. `tries` and `waits`: the keys beside it that an acquire names.
const fn members(
    acquire: Script,
    tries: &'static [Companion],
    waits: &'static [Companion],
) -> KindCommands {
    KindCommands {
        form: Form::Member,
        acquire: Some(acquire),
        repair: Some(REFILL_MEMBER),
        enqueue: acquire,
        extend: EXTEND_MEMBER,
        undo: RELEASE_MEMBER,
        release: RELEASE_MEMBER,
        fence: FENCE_MEMBER,
        leave: LEAVE,
        beside: BesideRow {
            tries,
            waits,
            releases: &[Queue],
            leaves: &[Queue, WriterMark],
        },
        counts_apart: false,
    }
}

/// The row of a kind whose holders have a string under each name.
const fn names(
    acquire: Script,
    tries: &'static [Companion],
    waits: &'static [Companion],
) -> KindCommands {
    let beside = BesideRow {
        releases: &[Queue, WriterMark],
        ..members(acquire, tries, waits).beside
    };
    KindCommands {
        form: Form::Names,
        repair: Some(REFILL_NAMES),
        extend: EXTEND_NAMES,
        undo: RELEASE_NAMES,
        release: RELEASE_NAMES,
        fence: FENCE_NAMES,
        beside,
        ..members(acquire, tries, waits)
    }
}

const PERMIT: KindCommands = KindCommands {
    counts_apart: true,
    ..members(ACQUIRE_PERMIT, &[], &[Queue])
};
const READ: KindCommands = members(ACQUIRE_READ, &[Queue, WriterMark], &[Queue, WriterMark]);
const WRITE: KindCommands = names(ACQUIRE_WRITE, &[Queue, WriterMark], &[Queue, WriterMark]);
const SEVERAL: KindCommands = names(ACQUIRE_NAMES, &[], &[Queue]);

impl Kind {
    #[inline]
    pub(crate) fn row(&self) -> &'static KindCommands {
        match self {
            Kind::Plain => &PLAIN,
            Kind::Permit { .. } => &PERMIT,
            // Only released: its number counts for no permit.
            Kind::Stray(_) => const { &members(ACQUIRE_PERMIT, &[], &[]) },
            Kind::Read { .. } => &READ,
            Kind::Write(_) => &WRITE,
            Kind::Several { .. } => &SEVERAL,
        }
    }

    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self, Kind::Plain)
    }

    pub(crate) fn several(names: Arc<[Arc<[u8]>]>) -> Kind {
        let claims = None;
        Kind::Several { names, claims }
    }

    /// The slot of a permit, once it is determined.
    pub(crate) fn slot(&self) -> Option<u16> {
        match self {
            Kind::Permit { slot, .. } => *slot,
            _ => None,
        }
    }

    /// All names, if there are several.
    pub(crate) fn names(&self) -> Option<&[Arc<[u8]>]> {
        match self {
            Kind::Several { names, .. } => Some(names),
            _ => None,
        }
    }

    /// The queue of its process in which a thread waits. A thread that waits for several names does not hold up those
    /// that wait for one of them.
    pub(crate) fn line(&self, resource: &Arc<[u8]>) -> Arc<[u8]> {
        let Kind::Several { names, .. } = self else {
            return resource.clone();
        };
        let mut line = b"\0redlock:several".to_vec();
        for name in names.iter() {
            line.extend_from_slice(&name.len().to_be_bytes());
            line.extend_from_slice(name);
        }
        line.into()
    }

    /// The kind with the slot that a quorum has granted: the number is 1 + the slot.
    pub(crate) fn granted(&self, numbers: Option<(u64, u64)>) -> Kind {
        match (self, numbers) {
            (Kind::Permit { permits, .. }, Some((number, _))) => {
                let slot = number.checked_sub(1);
                let slot = slot.and_then(|slot| u16::try_from(slot).ok());
                let permits = *permits;
                Kind::Permit { permits, slot }
            }
            (kind, _) => kind.clone(),
        }
    }

    /// The beginning of the member of a set, as far as it is determined.
    pub(super) fn head(&self) -> Option<String> {
        match self {
            Kind::Permit { slot, .. } => slot.map(|slot| format!("redlock:s{slot:03}")),
            Kind::Stray(slot) => Some(format!("redlock:s{slot:03}")),
            Kind::Read { .. } => Some("redlock:r000".into()),
            Kind::Plain | Kind::Write(_) | Kind::Several { .. } => None,
        }
    }

    /// The name of the writer in its mark, empty if there is none.
    pub(super) fn writer(&self) -> String {
        match self {
            Kind::Write(mark) => format!("{:016x}", mark.writer),
            _ => String::new(),
        }
    }

    /// How many milliseconds the caller has waited, for kinds that count it.
    pub(super) fn waited(&self) -> Option<u64> {
        match self {
            Kind::Read { waited } | Kind::Write(Mark { waited, .. }) => Some(*waited),
            _ => None,
        }
    }

    /// Notes how long the caller has waited.
    pub(crate) fn set_waited(&mut self, wait: impl FnOnce() -> Duration) {
        if let Kind::Read { waited } | Kind::Write(Mark { waited, .. }) = self {
            *waited = millis(wait());
        }
    }

    /// Whether a waiter leaves something on the nodes besides its place in the queue.
    pub(crate) fn leaves_a_mark(&self) -> bool {
        matches!(self, Kind::Write(mark) if mark.life > 0)
    }

    /// How long a waiter may sleep: its mark lives for longer.
    pub(crate) fn longest_sleep(&self) -> Option<Duration> {
        match self {
            Kind::Write(mark) if mark.life > 0 => Some(Duration::from_millis(mark.life / 2)),
            _ => None,
        }
    }
}

/// A writer's mark lasts for twice the longest pause between two tries, within these bounds.
const MARK_LIFE: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(2));

impl Mark {
    /// The mark of a writer that waits. `longest`: the longest pause between two tries.
    pub(crate) fn new(writer: u64, longest: Duration, node_timeout: Duration) -> Mark {
        let life = 2 * longest.min(MARK_LIFE.1 / 2) + node_timeout;
        Mark {
            writer,
            life: millis(life.clamp(MARK_LIFE.0, MARK_LIFE.1)),
            waited: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise readers overtake the writer between two of its tries (rule R50).
    #[test]
    fn a_writer_s_mark_lives_for_twice_as_long_as_the_writer_sleeps() {
        let ms = Duration::from_millis;
        for (longest, node_timeout, life) in [
            (250, 50, 550),
            (10, 50, 500),
            (60_000, 50, 2000),
            (250, 5000, 2000),
        ] {
            let mark = Mark::new(7, ms(longest), ms(node_timeout));
            assert_eq!(mark.life, life, "{longest}, {node_timeout}");
            let kind = Kind::Write(mark);
            assert!(kind.leaves_a_mark());
            assert_eq!(kind.longest_sleep(), Some(ms(life / 2)));
        }
        let mark = Mark {
            life: 0,
            ..Mark::new(7, ms(250), ms(50))
        };
        assert_eq!(Kind::Write(mark).longest_sleep(), None);
        assert_eq!(Kind::Plain.longest_sleep(), None);
    }
}
