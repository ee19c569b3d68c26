//! As what a name is locked, and what differs for locks that are not plain: their commands, and which votes count
//! together.
//!
//! A *permit* is one of k slots of a semaphore, and a slot is a lock of its own: it is acquired by a quorum of grants of
//! the same slot (rule R47). A quorum of grants of any slots would let in more than k: with three nodes and two
//! permits, three holders have two nodes each.
//!
//! One name is one kind at a time (rule R53): a node that finds another one there refuses, and tells which it is.

use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::quorum::{NodeSet, Tally, Ttl};
use crate::protocol::resp;
use crate::protocol::scripts::{
    ACQUIRE_PERMIT, EXTEND_MEMBER, FENCE_MEMBER, REFILL_MEMBER, RELEASE_MEMBER, Script,
};
use crate::token::Token;

/// What permits can be given, at most: a node goes through all of them for each that it grants.
pub(crate) const MAX_PERMITS: u16 = 1000;

/// As what a name is locked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Kind {
    #[default]
    Plain,
    Permit {
        /// How many there are.
        permits: u16,
        /// Which this is, once that is known.
        slot: Option<u16>,
    },
}

/// What is asked of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    Acquire(Ttl),
    Refill(Ttl),
    Extend(Ttl),
    Release,
    Fence(u64),
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

impl Kind {
    pub(crate) fn is_plain(self) -> bool {
        self == Kind::Plain
    }

    /// A permit's slot, where it is known.
    pub(crate) fn slot(self) -> Option<u16> {
        match self {
            Kind::Plain => None,
            Kind::Permit { slot, .. } => slot,
        }
    }

    /// With what a quorum has granted: 1 + the slot.
    pub(crate) fn granted(self, numbers: Option<(u64, u64)>) -> Kind {
        match (self, numbers) {
            (Kind::Permit { permits, .. }, Some((number, _))) => {
                let slot = number.checked_sub(1);
                let slot = slot.and_then(|slot| u16::try_from(slot).ok());
                Kind::Permit { permits, slot }
            }
            (kind, _) => kind,
        }
    }

    /// The number that votes count with, of those that nodes have granted (rules R47, R48). `None`: all count.
    pub(crate) fn counted(self, granted: &[(usize, u64)]) -> Option<u64> {
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

    // ---- commands

    /// The script that is called.
    pub(crate) fn script(self, ask: Ask) -> Script {
        match ask {
            Ask::Acquire(_) => ACQUIRE_PERMIT,
            Ask::Refill(_) => REFILL_MEMBER,
            Ask::Extend(_) => EXTEND_MEMBER,
            Ask::Release => RELEASE_MEMBER,
            Ask::Fence(_) => FENCE_MEMBER,
        }
    }

    /// Appends the call of a script. `value`: the token, and perhaps a label. `counter`: the key of the fencing tokens.
    pub(crate) fn pack(
        self,
        ask: Ask,
        (resource, counter): (&[u8], &[u8]),
        (token, value): (&Token, &[u8]),
        by_hash: bool,
        out: &mut Vec<u8>,
    ) {
        let Kind::Permit { permits, slot } = self else {
            return;
        };
        let script = self.script(ask);
        let call: [&[u8]; 2] = match by_hash {
            true => [b"EVALSHA", script.hash],
            false => [b"EVAL", script.text],
        };
        let member = member(slot, value);
        let id: &[u8] = token.as_bytes();
        match ask {
            Ask::Acquire(ttl) => {
                let (ttl, permits) = (ttl.millis().to_string(), permits.to_string());
                let args: [&[u8]; 5] = [b"1", resource, value, ttl.as_bytes(), permits.as_bytes()];
                resp::pack(
                    out,
                    &[&call, &args],
                    Some(u64::from(preferred(token, self))),
                );
            }
            Ask::Extend(ttl) | Ask::Refill(ttl) => {
                let args: [&[u8]; 4] = [b"1", resource, id, &member];
                resp::pack(out, &[&call, &args], Some(ttl.millis()));
            }
            Ask::Release => resp::pack(out, &[&call, &[b"1", resource, id, &member]], None),
            Ask::Fence(at_least) => {
                let at_least = at_least.to_string();
                let args: [&[u8]; 6] = [b"2", resource, counter, id, at_least.as_bytes(), &member];
                resp::pack(out, &[&call, &args], None);
            }
        }
    }
}

/// The member of the sorted set.
fn member(slot: Option<u16>, value: &[u8]) -> Vec<u8> {
    let head = slot.map_or_else(String::new, |slot| format!("redlock:s{slot:03}"));
    [head.as_bytes(), value].concat()
}

/// Where a node begins to look for a free slot: alike on all nodes, and different with each try, so that contenders which
/// have split the votes meet no more.
fn preferred(token: &Token, kind: Kind) -> u16 {
    let Kind::Permit { permits, .. } = kind else {
        return 0;
    };
    let [a, b, ..] = *token.as_bytes();
    u16::from_le_bytes([a, b]) % permits.max(1)
}

/// What nodes have granted of which number.
#[derive(Default)]
pub(crate) struct Numbers(Vec<(usize, u64)>);

impl Numbers {
    pub(crate) fn add(&mut self, node: usize, number: u64) {
        self.0.push((node, number));
    }

    /// The number that counts.
    pub(crate) fn counted(&self, kind: Kind) -> Option<u64> {
        kind.counted(&self.0).filter(|_| !self.0.is_empty())
    }

    /// The nodes whose grants do not count.
    pub(crate) fn strays(&self, kind: Kind, extension: bool) -> NodeSet {
        let ignored = match extension {
            true => mutant(Mutant::ExtensionCountsAnySlot),
            false => mutant(Mutant::AnySlotCounts),
        };
        let counted = self.counted(kind).filter(|_| !ignored);
        let stray = |one: &&(usize, u64)| counted.is_some_and(|counted| one.1 != counted);
        self.0.iter().filter(stray).map(|one| one.0).collect()
    }
}

/// Grants that do not count are refusals.
pub(crate) fn without_strays(tally: Tally, strays: NodeSet) -> Tally {
    Tally {
        granted: tally.granted.without(strays),
        refused: tally.refused.or(strays),
        failed: tally.failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::fixtures::{MS, ttl};
    use crate::protocol::quorum::{Question, Verdict};

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
            let strays = numbers(granted).strays(kind, false);
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
            let strays = granted.strays(permit(3, slot), true);
            strays.iter().collect::<Vec<_>>()
        };
        assert_eq!(strays(Some(1)), [2]);
        assert_eq!(strays(Some(0)), [0, 1]);
        // It was resumed.
        assert_eq!(strays(None), [2]);
        assert_eq!(granted.counted(permit(3, None)), Some(2));
        assert_eq!(numbers(&[]).counted(permit(3, Some(1))), None);
    }

    #[test]
    fn commands_have_all_keys_and_as_much_of_the_member_as_is_known() {
        let token = Token::from_bytes([7; 20]);
        let (id, value) = (&[7_u8; 20][..], [&[7; 20][..], b"\0redlock:web"].concat());
        let packed = |kind: Kind, ask| {
            let mut out = Vec::new();
            let names = (&b"a"[..], &b"a:fence"[..]);
            kind.pack(ask, names, (&token, &value), true, &mut out);
            out
        };
        let call = |script: Script, keys: &[&[u8]]| {
            let mut call = redis::cmd("EVALSHA");
            call.arg(script.hash).arg(keys.len()).arg(keys);
            call
        };
        let (new, held) = (permit(3, None), permit(3, Some(17)));
        let member = [b"redlock:s017", &value[..]].concat();
        let mut acquire = call(ACQUIRE_PERMIT, &[b"a"]);
        acquire.arg(&value).arg(1000).arg(3).arg(0x0707 % 3);
        let mut extend = call(EXTEND_MEMBER, &[b"a"]);
        extend.arg(id).arg(&member).arg(1000);
        let mut resumed = call(EXTEND_MEMBER, &[b"a"]);
        resumed.arg(id).arg(&value).arg(1000);
        let mut refill = call(REFILL_MEMBER, &[b"a"]);
        refill.arg(id).arg(&member).arg(1000);
        let mut release = call(RELEASE_MEMBER, &[b"a"]);
        release.arg(id).arg(&member);
        let mut fence = call(FENCE_MEMBER, &[b"a", b"a:fence"]);
        fence.arg(id).arg(17).arg(&member);
        let second = ttl(1000 * MS);
        for (kind, ask, expected) in [
            (new, Ask::Acquire(second), acquire),
            (held, Ask::Extend(second), extend),
            (new, Ask::Extend(second), resumed),
            (held, Ask::Refill(second), refill),
            (held, Ask::Release, release),
            (held, Ask::Fence(17), fence),
        ] {
            assert_eq!(packed(kind, ask), expected.get_packed_command(), "{ask:?}");
        }
    }
}
