//! The plain locks that threads of this process hold, as a cheap approximation.

use crate::values::sync::atomic::{AtomicU32, Ordering};

/// The locks held here, by a hash of their resource.
pub(crate) struct HeldHere(Box<[Counter]>);

/// The locks whose hashes lead to one counter.
#[derive(Default)]
struct Counter {
    locks: AtomicU32,
    /// Another part of their hashes, all of them combined by XOR: that of the lock itself if there is only one.
    names: AtomicU32,
}

impl HeldHere {
    /// Creates the counters. `counters`: a power of two, at most 1024. With fewer of them, more locks seem to be held
    /// that are not.
    pub(crate) fn new(counters: usize) -> HeldHere {
        HeldHere((0..counters).map(|_| Counter::default()).collect())
    }

    /// The counter of a lock, and the other part of its hash.
    fn counter(&self, resource: &[u8]) -> Option<(&Counter, u32)> {
        // FNV-1a, mixed once more, since its upper bits are the poorer ones.
        let hash = resource.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3)
        });
        let mixed = (hash ^ hash >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let at = usize::try_from(mixed >> 54).unwrap_or(0);
        let [.., a, b, c, d, _, _] = mixed.to_be_bytes();
        let counter = self.0.get(at & self.0.len().saturating_sub(1))?;
        Some((counter, u32::from_be_bytes([a, b, c, d])))
    }

    /// Notes that one more lock is held here.
    pub(crate) fn add(&self, resource: &[u8]) {
        if let Some((counter, name)) = self.counter(resource) {
            counter.names.fetch_xor(name, Ordering::Relaxed);
            counter.locks.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Notes that one fewer lock is held here.
    pub(crate) fn remove(&self, resource: &[u8]) {
        if let Some((counter, name)) = self.counter(resource) {
            counter.locks.fetch_sub(1, Ordering::SeqCst);
            counter.names.fetch_xor(name, Ordering::Relaxed);
        }
    }

    /// Whether a thread of this process seems to hold the lock.
    pub(crate) fn has(&self, resource: &[u8]) -> bool {
        let counter = self.counter(resource);
        counter.is_some_and(|(counter, _)| counter.locks.load(Ordering::SeqCst) > 0)
    }

    /// Whether a thread of this process holds this very lock, for people. False also if another lock shares its counter.
    pub(crate) fn is_own(&self, resource: &[u8]) -> bool {
        self.counter(resource).is_some_and(|(counter, name)| {
            let alone = counter.locks.load(Ordering::SeqCst) == 1;
            alone && counter.names.load(Ordering::Relaxed) == name
        })
    }
}

#[cfg(test)]
impl HeldHere {
    /// The number of locks that are held here and share this one's counter.
    pub(crate) fn counted(&self, resource: &[u8]) -> u32 {
        let counter = self.counter(resource);
        counter.map_or(0, |(counter, _)| counter.locks.load(Ordering::SeqCst))
    }

    /// Whether all locks share one counter.
    pub(crate) fn collides(&self) -> bool {
        self.0.len() == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_shares_a_counter_is_not_taken_for_the_own_one() {
        for counters in [1, 64, 1024] {
            let held = HeldHere::new(counters);
            held.add(b"a");
            assert!(held.is_own(b"a") && held.has(b"a"));
            for other in 0..10_000_u32 {
                assert!(!held.is_own(&other.to_be_bytes()), "{counters}: {other}");
            }
            held.remove(b"a");
            assert!(!held.is_own(b"a") && !held.has(b"a"));
        }
        let one = HeldHere::new(1);
        one.add(b"a");
        one.add(b"b");
        assert!(!one.is_own(b"a") && one.has(b"a"));
        one.remove(b"a");
        assert!(one.is_own(b"b") && !one.is_own(b"a"));
    }
}
