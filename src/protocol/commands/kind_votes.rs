//! Which grants of a lock count: a permit is a quorum of grants of one slot.

use crate::protocol::commands::kind::Kind;
use crate::protocol::mutants::{Mutant, mutant};
use crate::values::arithmetic::Tally;
use crate::values::node_set::NodeSet;

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

    /// The nodes whose grants of an acquire do not count, each with the slot that it granted. `uncounted`: grants that are no
    /// votes.
    pub(crate) fn stray_slots<'a>(
        &'a self,
        uncounted: &'a Numbers,
        kind: &Kind,
    ) -> impl Iterator<Item = (usize, u16)> + 'a {
        let counted = self
            .counted(kind)
            .filter(|_| !mutant(Mutant::AnySlotCounts));
        let all = self.0.iter().chain(&uncounted.0);
        let strays = all.filter(move |one| counted.is_some_and(|counted| one.1 != counted));
        strays.filter_map(|one| Some((one.0, u16::try_from(one.1.checked_sub(1)?).ok()?)))
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
        denied: tally.denied.or(strays),
        failed: tally.failed,
    }
}

impl Kind {
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
    use super::*;
    use crate::values::arithmetic::{Question, Verdict};

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
}
