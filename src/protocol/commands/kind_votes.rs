//! The votes on a lock that is not plain: the meaning of a reply, and which grants count, since a permit is a quorum of
//! grants of one slot.

use crate::protocol::commands::ask::Ask;
use crate::protocol::commands::kind::{Kind, MAX_PERMITS};
use crate::protocol::commands::queue::LockInfo;
use crate::protocol::commands::resp::Reply;
use crate::protocol::commands::vote::{NOTIFIED, OtherUse, Refusal, Vote};
use crate::protocol::mutants::{Mutant, mutant};
use crate::values::quorum::{NodeSet, Tally};

/// The numbers that nodes have granted.
#[derive(Default)]
pub(crate) struct Numbers(Vec<(usize, u64)>);

impl Numbers {
    pub(crate) fn add(&mut self, node: usize, number: u64) {
        self.0.push((node, number));
    }

    /// The number that counts.
    pub(crate) fn counted(&self, kind: &Kind) -> Option<u64> {
        kind.counted(&self.0).filter(|_| !self.0.is_empty())
    }

    /// The nodes whose grants of an acquire do not count, each with the slot that it granted.
    pub(crate) fn stray_slots(&self, kind: &Kind) -> impl Iterator<Item = (usize, u16)> {
        let strays = self.strays(kind, false);
        let slot = |one: &(usize, u64)| Some((one.0, u16::try_from(one.1.checked_sub(1)?).ok()?));
        let granted = self.0.iter().filter_map(slot);
        granted.filter(move |one| strays.has(one.0))
    }

    /// The nodes whose grants do not count.
    pub(crate) fn strays(&self, kind: &Kind, extension: bool) -> NodeSet {
        let ignored = match extension {
            true => mutant(Mutant::ExtensionCountsAnySlot),
            false => mutant(Mutant::AnySlotCounts),
        };
        let counted = self.counted(kind).filter(|_| !ignored);
        let stray = |one: &&(usize, u64)| counted.is_some_and(|counted| one.1 != counted);
        self.0.iter().filter(stray).map(|one| one.0).collect()
    }
}

/// The tally with the nodes of `strays` as refusals: their grants do not count.
pub(crate) fn without_strays(tally: Tally, strays: NodeSet) -> Tally {
    Tally {
        granted: tally.granted.without(strays),
        refused: tally.refused.or(strays),
        failed: tally.failed,
    }
}

impl Kind {
    /// The vote in a node's reply to a script of a lock that is not plain. `None`: the reply is no such answer.
    pub(crate) fn vote(&self, ask: Ask, reply: &Reply) -> Option<Vote> {
        let most = match (ask, self) {
            // The extended permit may be one of more permits than this process would take.
            (Ask::Extend(_) | Ask::Shorten(_), Kind::Permit { .. }) => MAX_PERMITS.into(),
            (Ask::Acquire(..), Kind::Permit { permits, .. }) => (*permits).into(),
            (Ask::Fence(_), _) => u64::MAX,
            (Ask::Release { .. } | Ask::Leave(_), _) => NOTIFIED,
            _ => 1,
        };
        let acquires = matches!(ask, Ask::Acquire(..));
        let holds = !acquires && !matches!(ask, Ask::Refill(_) | Ask::Leave(_));
        match reply {
            Reply::Bulk(_) if acquires => {
                LockInfo::parse(reply).map(|info| Vote::Refused(Refusal::Held(info)))
            }
            Reply::Int(number @ ..=0) if holds => Vote::not_held(*number),
            Reply::Int(0) if !acquires => Some(Vote::Refused(Refusal::Unknown)),
            Reply::Int(number) => match u64::try_from(*number) {
                Ok(granted) if (1..=most).contains(&granted) => Some(Vote::Granted(granted)),
                Err(_) if acquires => OtherUse::of(*number).map(Vote::OtherUse),
                _ => None,
            },
            _ => None,
        }
    }

    /// The number whose votes count, by the grants of the nodes (rules R47, R48). `None`: all votes count.
    fn counted(&self, granted: &[(usize, u64)]) -> Option<u64> {
        let Kind::Permit { slot, .. } = self else {
            return None;
        };
        let times = |number: u64| granted.iter().filter(|one| one.1 == number).count();
        let commonest = granted
            .iter()
            .map(|one| one.1)
            .max_by_key(|one| times(*one));
        slot.map(|slot| u64::from(slot) + 1).or(commonest)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::proof::fixtures::{MS, ttl};
    use crate::protocol::commands::queue::Channel;
    use crate::values::quorum::{Question, Verdict};

    const UNDO: Ask = Ask::Release {
        undo: true,
        but: None,
    };

    fn permit(permits: u16, slot: Option<u16>) -> Kind {
        Kind::Permit { permits, slot }
    }

    fn numbers(granted: &[(usize, u64)]) -> Numbers {
        Numbers(granted.to_vec())
    }

    /// With two permits and three nodes, three holders may have two nodes each.
    #[test]
    fn a_quorum_of_grants_of_any_slots_is_no_permit() {
        let kind = permit(2, None);
        let verdict = |granted: &[(usize, u64)]| {
            let tally = Tally {
                granted: granted.iter().map(|one| one.0).collect(),
                ..Tally::default()
            };
            let strays = numbers(granted).strays(&kind, false);
            without_strays(tally, strays).verdict(Question::Acquire, 3)
        };
        assert_eq!(verdict(&[(0, 1), (1, 2)]), None);
        assert_eq!(verdict(&[(0, 1), (1, 2), (2, 3)]), Some(Verdict::No));
        assert_eq!(verdict(&[(0, 1), (2, 1)]), Some(Verdict::Yes));
        assert_eq!(verdict(&[(0, 2), (1, 1), (2, 1)]), Some(Verdict::Yes));
    }

    #[test]
    fn an_extension_counts_the_slot_that_was_acquired() {
        let granted = numbers(&[(0, 2), (1, 2), (2, 1)]);
        let strays = |slot| {
            let strays = granted.strays(&permit(3, slot), true);
            strays.iter().collect::<Vec<_>>()
        };
        assert_eq!(strays(Some(1)), [2]);
        assert_eq!(strays(Some(0)), [0, 1]);
        // The permit was resumed.
        assert_eq!(strays(None), [2]);
        assert_eq!(granted.counted(&permit(3, None)), Some(2));
        assert_eq!(numbers(&[]).counted(&permit(3, Some(1))), None);
    }

    #[test]
    fn what_no_script_answers_is_no_vote() {
        let second = ttl(1000 * MS);
        let (acquire, release) = (Ask::Acquire(second, None), UNDO);
        let read = Kind::Read { waited: 0 };
        let both = Kind::several([b"a", b"b"].map(|name| Arc::from(&name[..])).into());
        let two = permit(2, None);
        let vote = |kind: &Kind, ask, reply| match kind.vote(ask, &reply) {
            Some(Vote::Granted(number)) => format!("+{number}"),
            Some(Vote::Refused(Refusal::Instead(instead))) => format!("{instead:?}"),
            Some(Vote::Refused(_)) => "no".into(),
            Some(Vote::OtherUse(other)) => format!("{other:?}"),
            Some(_) => "another".into(),
            None => "garbage".into(),
        };
        let int = Reply::Int;
        for (kind, ask, reply, expected) in [
            (&two, acquire, int(2), "+2"),
            (&two, acquire, int(3), "garbage"),
            (&two, acquire, int(0), "garbage"),
            (&two, acquire, int(-1), "Lock"),
            (&two, acquire, int(-5), "garbage"),
            (&two, acquire, int(i64::MIN), "garbage"),
            (&two, acquire, Reply::Okay, "garbage"),
            (&two, acquire, Reply::Nil, "garbage"),
            (&two, acquire, Reply::Bulk("1500 00a1ff -".into()), "no"),
            (&two, acquire, Reply::Bulk("x".into()), "garbage"),
            // The permit was resumed by a process that names another number.
            (&two, Ask::Extend(second), int(1000), "+1000"),
            (&two, Ask::Extend(second), int(1001), "garbage"),
            (&two, Ask::Extend(second), int(-2), "Nothing"),
            (&two, Ask::Extend(second), int(-3), "garbage"),
            (&two, Ask::Leave(Channel::new([7; 16])), int(-1), "garbage"),
            (&two, Ask::Shorten(second), int(3), "+3"),
            (&two, Ask::Shorten(second), int(0), "no"),
            (&two, release, int(1), "+1"),
            (&two, release, int(3), "garbage"),
            (&two, release, int(-1), "Another"),
            (&read, Ask::Fence(0), int(-2), "Nothing"),
            (&both, Ask::Refill(second), int(-1), "garbage"),
            (
                &two,
                release,
                Reply::Bulk("1500 00a1ff -".into()),
                "garbage",
            ),
            (&two, Ask::Fence(0), int(1 << 40), "+1099511627776"),
            (&read, acquire, int(1), "+1"),
            (&read, acquire, int(2), "garbage"),
            (&read, acquire, int(-3), "Permits"),
            (&both, Ask::Extend(second), int(2), "garbage"),
            (&both, Ask::Refill(second), int(0), "no"),
            (&both, acquire, Reply::Okay, "garbage"),
        ] {
            let text = format!("{kind:?} {ask:?} {reply:?}");
            assert_eq!(vote(kind, ask, reply), expected, "{text}");
        }
    }
}
