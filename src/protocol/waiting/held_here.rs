//! The plain locks that threads of this process hold, as a cheap approximation.

use crate::values::sync::atomic::{AtomicU32, Ordering};

/// The number of locks held here, by a hash of their resource.
pub(crate) struct HeldHere(Box<[AtomicU32]>);

impl HeldHere {
    /// Creates the counters. `counters`: a power of two, at most 1024. With fewer of them, more locks seem to be held
    /// that are not.
    pub(crate) fn new(counters: usize) -> HeldHere {
        HeldHere((0..counters).map(|_| AtomicU32::new(0)).collect())
    }

    fn counter(&self, resource: &[u8]) -> Option<&AtomicU32> {
        // FNV-1a, mixed once more, since its upper bits are the poorer ones.
        let hash = resource.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3)
        });
        let mixed = (hash ^ hash >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let at = usize::try_from(mixed >> 54).unwrap_or(0);
        self.0.get(at & self.0.len().saturating_sub(1))
    }

    /// Notes that one more lock is held here.
    pub(crate) fn add(&self, resource: &[u8]) {
        if let Some(counter) = self.counter(resource) {
            counter.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Notes that one fewer lock is held here.
    pub(crate) fn remove(&self, resource: &[u8]) {
        if let Some(counter) = self.counter(resource) {
            counter.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Whether a thread of this process seems to hold the lock.
    pub(crate) fn has(&self, resource: &[u8]) -> bool {
        self.count(resource) > 0
    }

    /// The number of locks that are held here and share this one's counter.
    pub(crate) fn count(&self, resource: &[u8]) -> u32 {
        let counter = self.counter(resource);
        counter.map_or(0, |counter| counter.load(Ordering::SeqCst))
    }
}

#[cfg(test)]
impl HeldHere {
    /// Whether all locks share one counter.
    pub(crate) fn collides(&self) -> bool {
        self.0.len() == 1
    }
}
