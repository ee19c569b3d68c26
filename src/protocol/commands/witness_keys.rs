//! The keys that a witness may have in a Redis Cluster: each server has its witness in one of its own slots.

use crate::protocol::commands::companions::{Companion, WITNESS, tag};
use crate::protocol::commands::slots::{SlotMap, slot};

/// The number of tags that is enough for all slots.
pub(crate) const MOST_TAGS: u32 = 1 << 18;

impl SlotMap {
    /// Keys that the witness may have on the master that owns this slot: names in its slots, the usual one first.
    /// `plain`: the key on a server outside a Cluster.
    pub(crate) fn witnesses<'a>(
        &'a self,
        slot_of: u16,
        plain: &'a [u8],
    ) -> impl Iterator<Item = Vec<u8>> + 'a {
        // The locks' prefix may have a tag, and then all of them are in its slot.
        let only = tag(plain).map(|_| plain.to_vec());
        let master = self.master(slot_of);
        // Each slot is the slot of one of these numbers, as a test shows.
        let tags = 0..if only.is_some() { 0 } else { MOST_TAGS };
        let keys = tags.map(move |n| tagged(plain, n));
        let keys = keys.filter(move |key| master.is_none() || self.master(slot(key)) == master);
        only.into_iter().chain(keys)
    }
}

/// Whether this may be the key of a witness, whatever the prefix.
pub(crate) fn is_witness(key: &[u8]) -> bool {
    untagged(key).unwrap_or(key).ends_with(WITNESS)
}

/// Whether this key is kept beside locks, so that no lock may have it.
pub(crate) fn is_kept_beside(key: &[u8]) -> bool {
    Companion::ALL.iter().any(|companion| companion.is_key(key)) || is_witness(key)
}

/// The key without the number that is its tag, if it has one.
fn untagged(key: &[u8]) -> Option<&[u8]> {
    let behind = key.strip_suffix(b"}")?;
    let start = behind.iter().rposition(|byte| *byte == b'{')?;
    let (key, number) = (behind.get(..start)?, behind.get(start + 1..)?);
    let is_number = !number.is_empty() && number.iter().all(u8::is_ascii_digit);
    key.strip_suffix(b":").filter(|_| is_number)
}

/// The name with this number as its tag.
pub(crate) fn tagged(name: &[u8], n: u32) -> Vec<u8> {
    [name, format!(":{{{n}}}").as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::commands::slots::SLOTS;
    use crate::protocol::commands::slots::tests::map;

    #[test]
    fn a_servers_witness_is_in_one_of_its_slots() {
        let map = map();
        let witness = |slot_of, plain: &[u8]| map.witnesses(slot_of, plain).next().unwrap();
        for slot_of in [0, 150, 200, 16383] {
            let key = witness(slot_of, WITNESS);
            assert!(key.starts_with(WITNESS), "{}", key.escape_ascii());
            assert_eq!(map.master(slot(&key)), map.master(slot_of));
        }
        assert_eq!(witness(200, WITNESS), b"redlock:witness:{0}");
        assert_eq!(witness(200, b"a{redlock:witness"), b"a{redlock:witness:{0}");
        let both: Vec<Vec<u8>> = map.witnesses(200, WITNESS).take(2).collect();
        assert_ne!(slot(&both[0]), slot(&both[1]));
        assert_eq!(map.witnesses(170, WITNESS).next(), Some(tagged(WITNESS, 0)));
        // All locks are in one slot, and so is the witness.
        let tagged = b"{team}:redlock:witness";
        assert_eq!(witness(0, tagged), tagged);
        for key in [
            &witness(0, WITNESS)[..],
            WITNESS,
            tagged,
            b"a:redlock:witness:{17}",
        ] {
            assert!(is_witness(key), "{}", key.escape_ascii());
        }
        for key in [
            &b"redlock:witness:17"[..],
            b"redlock:witness:{}",
            b"redlock:witness:{x}",
            b"{1}",
        ] {
            assert!(!is_witness(key), "{}", key.escape_ascii());
        }
    }

    #[test]
    fn each_slot_has_a_witness() {
        let plain = |n: u32| slot(format!("redlock:witness:{{{n}}}").as_bytes());
        let mut seen = vec![false; usize::from(SLOTS)];
        for n in 0..MOST_TAGS {
            seen[usize::from(plain(n))] = true;
        }
        assert!(seen.iter().all(|seen| *seen));
    }
}
