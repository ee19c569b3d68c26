//! The releases that a node is still to be sent, over whichever connection.

use std::collections::VecDeque;

use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::script::Key;
use crate::protocol::wire::EVENT_LOOP_READ;

/// The maximum number of releases that are kept for a node, and of the bytes of their names. Beyond that the oldest is
/// dropped, and its key ends with its ttl.
const MAX_RELEASES: usize = 65_536;
const MAX_RELEASE_BYTES: usize = 16 << 20;

/// Releases to be written, the oldest first.
#[derive(Default)]
struct Releases {
    queue: VecDeque<Key>,
    /// The bytes of their names.
    bytes: usize,
    /// How many did not find room.
    dropped: u64,
}

impl Releases {
    fn push(&mut self, release: Key) {
        self.bytes += release.resource.len();
        self.queue.push_back(release);
        while self.queue.len() > MAX_RELEASES || self.bytes > MAX_RELEASE_BYTES {
            self.pop();
            self.dropped += 1;
        }
    }

    fn pop(&mut self) -> Option<Key> {
        let release = self.queue.pop_front()?;
        self.bytes -= release.resource.len();
        Some(release)
    }
}

#[derive(Default)]
pub(crate) struct Outbox {
    to_send: Releases,
    /// Releases that the server could not carry out at the time.
    deferred: Releases,
    /// The bytes that severed connections may have left for the server to read (rule R8). Over TLS a turn at least for
    /// each write.
    unprocessed: usize,
}

impl Outbox {
    pub(crate) fn push(&mut self, release: Key) {
        self.to_send.push(release);
    }

    pub(crate) fn pop(&mut self) -> Option<Key> {
        self.to_send.pop()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.to_send.queue.is_empty()
    }

    /// A server could not carry out a release now. It is tried again with a later operation.
    pub(crate) fn defer(&mut self, release: Key) {
        if !mutant(Mutant::ForgetDeferred) {
            self.deferred.push(release);
        }
    }

    pub(crate) fn pop_deferred(&mut self) -> Option<Key> {
        self.deferred.pop()
    }

    /// The server carries out releases again: all that were deferred are to be sent.
    pub(crate) fn retry_deferred(&mut self) {
        while let Some(release) = self.deferred.pop() {
            self.to_send.push(release);
        }
    }

    /// How many releases were dropped since the last call.
    pub(crate) fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.to_send.dropped) + std::mem::take(&mut self.deferred.dropped)
    }

    /// A connection was severed that may have left these bytes.
    pub(crate) fn add_unprocessed(&mut self, bytes: usize) {
        if !mutant(Mutant::NoPings) {
            self.unprocessed = self.unprocessed.saturating_add(bytes);
        }
    }

    /// A ping was answered.
    pub(crate) fn pinged(&mut self) {
        self.unprocessed = self.unprocessed.saturating_sub(EVENT_LOOP_READ);
    }

    /// How many pings must be answered before the server has read what severed connections left.
    pub(crate) fn pings(&self) -> usize {
        self.unprocessed.div_ceil(EVENT_LOOP_READ)
    }
}

#[cfg(test)]
impl Outbox {
    /// How many releases are to be sent, and deferred.
    pub(crate) fn len(&self) -> [usize; 2] {
        [self.to_send.queue.len(), self.deferred.queue.len()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::fixtures::key;

    fn sent(outbox: &mut Outbox) -> Vec<Vec<u8>> {
        let next = || outbox.pop().map(|release| release.resource.to_vec());
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn releases_have_a_bound_and_those_that_are_dropped_are_counted_once() {
        let name = |i: usize| i.to_string().into_bytes();
        let mut outbox = Outbox::default();
        for i in 0..MAX_RELEASES + 3 {
            outbox.push(key(&name(i)));
        }
        let left: Vec<_> = (3..MAX_RELEASES + 3).map(name).collect();
        assert_eq!(sent(&mut outbox), left);
        let long = |i: u8| vec![i; MAX_RELEASE_BYTES / 2];
        (0..3).for_each(|i| outbox.push(key(&long(i))));
        assert_eq!(sent(&mut outbox), [long(1), long(2)]);
        assert_eq!((outbox.to_send.bytes, outbox.is_empty()), (0, true));
        // Deferred ones have a bound of their own.
        (0..3).for_each(|i| outbox.defer(key(&long(i))));
        outbox.retry_deferred();
        assert_eq!(sent(&mut outbox), [long(1), long(2)]);
        assert_eq!((outbox.take_dropped(), outbox.take_dropped()), (5, 0));
    }
}
