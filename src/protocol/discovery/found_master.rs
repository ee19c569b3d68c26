//! The conclusions from the answers of the servers that name a master: which address is connected to, for how long it
//! counts, and when it is confirmed again (rule R43).

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::errors::cause::Cause;
use crate::protocol::commands::node_id::NodeId;
use crate::protocol::discovery::master_answers::Belief;
use crate::protocol::mutants::{Mutant, mutant};

/// How long a master of a Redis Cluster is believed that names another server (MOVED, ASK). Both answers together are trusted
/// no longer than the restart guard's margin, with two seconds in which the others learn of a failover.
pub(crate) const REDIRECT_BELIEVED: Duration = Duration::from_secs(1);

/// How long questions and answers count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DirectoryTimes {
    /// The age of the last answer at which the servers are asked again.
    pub(crate) ask: Duration,
    /// How long the last answer is trusted.
    pub(crate) holds: Duration,
    /// The pause between two confirmations.
    pub(crate) pause: Duration,
    /// How long a confirmation waits for answers: some time is left before the last answer is too old.
    pub(crate) confirm: Duration,
    /// How long callers join a question that is under way.
    pub(crate) fresh: Duration,
    /// How long a question lasts.
    pub(crate) lasts: Duration,
    /// A server that answered within this time before a question, but does not answer that question, is slow.
    pub(crate) lately: Duration,
}

impl DirectoryTimes {
    pub(crate) const REAL: DirectoryTimes = DirectoryTimes {
        ask: Duration::from_secs(1),
        holds: Duration::from_secs(2),
        pause: Duration::from_millis(100),
        confirm: Duration::from_millis(850),
        fresh: Duration::from_millis(700),
        lasts: Duration::from_secs(2),
        lately: Duration::from_millis(850),
    };
}

/// The master that a directory has named.
#[derive(Clone, Debug)]
pub(crate) struct FoundMaster {
    /// The address in a form that may be shown.
    pub(crate) address: Arc<str>,
    /// When the directory was asked.
    pub(crate) at: Instant,
    /// Whether enough servers name the master, or have confirmed it, that acquires are sent there.
    pub(crate) is_confirmed: bool,
    /// The ID that the server of a Redis Cluster has reported to which the connection leads.
    pub(crate) id: Option<NodeId>,
    pub(crate) times: DirectoryTimes,
}

/// The result of a question about an address. Until there is a last word, the one before holds, until that is too old.
/// `Err`: why the answers do not decide it. `None`: nothing could be asked.
pub(crate) type MasterConfirmation = Result<DirectoryAnswer, Option<Cause>>;

/// A directory's answer about an address: whether the master is there, or why not.
#[derive(Debug)]
pub(crate) struct DirectoryAnswer {
    pub(crate) result: Result<(), Cause>,
    /// When the servers that the answer relies on were asked.
    pub(crate) at: Instant,
}

impl FoundMaster {
    /// The master at this address, as servers named it that were asked then. In the short time for connecting, a server
    /// that is slow looks silent. If few name the master, all are asked once more, and for longer, before an acquire is sent
    /// there.
    pub(crate) fn new(
        address: Arc<str>,
        at: Instant,
        by_most: bool,
        times: DirectoryTimes,
    ) -> FoundMaster {
        FoundMaster {
            address,
            at,
            is_confirmed: by_most || mutant(Mutant::FewOpen),
            id: None,
            times,
        }
    }

    /// Whether the server to which the connection leads may be the one that has this ID at its address by the known map. Maps may
    /// have had no ID for it when the connection began, or another one.
    pub(crate) fn may_be(&self, known: Option<NodeId>) -> bool {
        let is_another = self.id.zip(known).is_some_and(|(own, known)| own != known);
        !is_another || mutant(Mutant::IdOfTheBeginningCounts)
    }

    /// The master as a question at this time is about it: as confirmed, if its last answer is not much too old.
    pub(crate) fn being_asked(self, now: Instant) -> FoundMaster {
        let is_confirmed = self.is_confirmed && now <= self.at + 2 * self.times.holds;
        FoundMaster {
            at: now,
            is_confirmed,
            ..self
        }
    }

    /// Whether acquires are sent there without another answer.
    pub(crate) fn counts(&self, now: Instant) -> bool {
        let holds = match mutant(Mutant::ConfirmedForLong) {
            true => 20 * self.times.holds,
            false => self.times.holds,
        };
        self.is_confirmed && now <= self.at + holds
    }
}

impl DirectoryAnswer {
    /// The meaning of the answers to a confirmation for an address. `None`: they do not decide it, and the last answer holds
    /// until it is too old. `asked`: when the confirmation began.
    pub(crate) fn of<A>(
        belief: &Belief<'_, A>,
        asked: Instant,
        is_there: impl FnOnce(&A) -> Result<(), Cause>,
    ) -> Option<DirectoryAnswer> {
        match belief {
            Belief::Named { master, at, .. } => Some(DirectoryAnswer {
                result: is_there(master),
                at: *at,
            }),
            Belief::Silence { at } => Some(DirectoryAnswer {
                result: Ok(()),
                at: *at,
            }),
            Belief::Unknown => mutant(Mutant::ConfirmUnanswered).then_some(DirectoryAnswer {
                result: Ok(()),
                at: asked,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::fixtures::each_is_found;
    use crate::protocol::mutants::set_mutant;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn a_master_that_few_name_counts_once_it_is_confirmed() {
        let now = crate::values::clock::instant() + 60 * S;
        let found = |by_most| FoundMaster::new("m".into(), now, by_most, DirectoryTimes::REAL);
        let counts = |found: &FoundMaster| {
            let at = [Duration::ZERO, 2 * S, 2 * S + Duration::from_nanos(1)];
            at.map(|later| found.counts(now + later))
        };
        assert_eq!(counts(&found(true)), [true, true, false]);
        assert_eq!(counts(&found(false)), [false, false, false]);
        let later = |found: FoundMaster, later| found.being_asked(now + later).is_confirmed;
        assert!(later(found(true), 4 * S) && !later(found(false), S));
        assert!(!later(found(true), 4 * S + Duration::from_nanos(1)));
        set_mutant(Some(Mutant::FewOpen));
        assert_eq!(counts(&found(false)), [true, true, false]);
        set_mutant(None);
    }

    /// A map may have had no ID for the address when the connection began.
    #[test]
    fn a_connection_leads_to_the_server_that_is_known_unless_both_have_ids_that_differ() {
        let wrong = || {
            let now = crate::values::clock::instant();
            let id = |digit: &str| NodeId::of(digit.repeat(40).as_bytes());
            let rows = [
                (id("a"), id("a"), true),
                (id("a"), id("b"), false),
                (None, id("b"), true),
                (id("a"), None, true),
                (None, None, true),
            ];
            let may_be = |own, known| {
                let found = FoundMaster::new("m".into(), now, true, DirectoryTimes::REAL);
                FoundMaster { id: own, ..found }.may_be(known)
            };
            let rows = rows.into_iter();
            let wrong = rows.filter(|(own, known, expected)| may_be(*own, *known) != *expected);
            wrong.collect::<Vec<_>>()
        };
        assert_eq!(wrong(), []);
        each_is_found(&[Mutant::IdOfTheBeginningCounts], wrong);
    }

    #[test]
    fn an_address_is_confirmed_by_its_name_or_by_silence() {
        let now = crate::values::clock::instant();
        let moved = || Cause::Closed("moved".into());
        for (belief, expected) in [
            (
                Belief::Named {
                    master: &1,
                    at: now,
                    by_most: true,
                },
                Some(true),
            ),
            (
                Belief::Named {
                    master: &2,
                    at: now,
                    by_most: true,
                },
                Some(false),
            ),
            (Belief::Silence { at: now }, Some(true)),
            (Belief::Unknown, None),
        ] {
            let is_there = |master: &i32| (*master == 1).then_some(()).ok_or_else(moved);
            let word = DirectoryAnswer::of(&belief, now + S, is_there);
            assert!(word.as_ref().is_none_or(|word| word.at == now));
            assert_eq!(word.map(|word| word.result.is_ok()), expected, "{belief:?}");
        }
    }
}
