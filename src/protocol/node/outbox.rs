//! Debts to a node for locks that their holders have given up, to be sent over whichever connection there is.

use std::collections::VecDeque;
use std::time::Instant;

use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::node::debt::Debt;
use crate::protocol::node::wire::EVENT_LOOP_READ;
use crate::values::backoff::{Backoff, LAST_NODE_PAUSE};
use crate::values::random::Rng;

/// The maximum number of debts kept for a node, and of the bytes of their names. Beyond that the oldest is dropped, and
/// its key ends with its ttl.
pub(crate) const MAX_DEBTS: usize = 65_536;
const MAX_DEBT_BYTES: usize = 16 << 20;

pub(crate) struct Outbox {
    /// The debts that are to be sent at once, and behind them those that the server could not carry out at the time. Each
    /// group begins with the oldest.
    debts: VecDeque<Debt>,
    /// The number of debts that are to be sent at once.
    ready: usize,
    /// The length of all names in bytes.
    bytes: usize,
    /// The number of debts that did not find room.
    dropped: u64,
    /// When a deferred debt is tried again if no operation follows (rule R6b).
    retry_at: Option<Instant>,
    /// The number of failed retries in a row.
    refusals: Backoff,
    /// The bytes that severed connections may have left for the server to read (rule R8). Over TLS each write counts as
    /// at least one turn of the server's event loop.
    unprocessed: usize,
}

impl Default for Outbox {
    fn default() -> Outbox {
        Outbox {
            debts: VecDeque::new(),
            ready: 0,
            bytes: 0,
            dropped: 0,
            retry_at: None,
            refusals: Backoff::at_node(),
            unprocessed: 0,
        }
    }
}

impl Outbox {
    pub(crate) fn push(&mut self, debt: Debt) {
        self.ready += 1;
        self.insert(self.ready - 1, debt);
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<Debt> {
        let any = !self.is_empty();
        any.then(|| self.remove(0)).flatten()
    }

    /// Takes the debts that are to be sent at once, and that `go` elsewhere.
    pub(crate) fn take(&mut self, go: impl Fn(&Debt) -> bool) -> Vec<Debt> {
        let all = std::iter::from_fn(|| self.pop());
        let (taken, kept): (Vec<Debt>, Vec<Debt>) = all.partition(go);
        kept.into_iter().for_each(|debt| self.push(debt));
        taken
    }

    /// Adds a debt at this place. Drops others until all have room, the oldest first: those that were deferred have been
    /// there for longer.
    fn insert(&mut self, at: usize, debt: Debt) {
        self.bytes += debt.key.size();
        self.debts.insert(at, debt);
        while self.debts.len() > MAX_DEBTS || self.bytes > MAX_DEBT_BYTES {
            let oldest = if self.has_deferred() { self.ready } else { 0 };
            self.remove(oldest);
            self.dropped += 1;
        }
    }

    fn remove(&mut self, at: usize) -> Option<Debt> {
        let debt = self.debts.remove(at)?;
        self.bytes -= debt.key.size();
        self.ready -= usize::from(at < self.ready);
        Some(debt)
    }

    /// Whether nothing is to be sent at once.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.ready == 0
    }

    /// Whether there are no debts, deferred ones included.
    #[inline]
    pub(crate) fn has_none(&self) -> bool {
        self.debts.is_empty()
    }

    #[inline]
    fn has_deferred(&self) -> bool {
        self.ready < self.debts.len()
    }

    /// Defers a debt that the server could not carry out now. One deferred debt is tried again with each later
    /// operation, and after a pause. `again`: this was a retry.
    pub(crate) fn defer(&mut self, mut debt: Debt, again: bool, rng: &mut Rng, now: Instant) {
        if again {
            self.refusals.failed();
            self.retry_at = None;
        }
        if self.retry_at.is_none() {
            let pause = self.refusals.node_pause();
            self.retry_at = Some(now + rng.between((pause / 2, pause)));
        }
        debt.refused(now);
        if !mutant(Mutant::ForgetDeferred) {
            self.insert(self.debts.len(), debt);
        }
    }

    /// Takes a deferred debt to try again. The others wait for its reply, or for the longest pause. Drops debts whose
    /// keys have ended.
    #[inline]
    pub(crate) fn pop_deferred(&mut self, now: Instant) -> Option<Debt> {
        let debt = std::iter::from_fn(|| self.remove(self.ready)).find(|debt| !debt.is_over(now));
        if debt.is_some() {
            self.retry_at = Some(now + LAST_NODE_PAUSE);
        }
        debt
    }

    /// When a deferred debt is tried again.
    #[inline]
    pub(crate) fn retry_at(&self) -> Option<Instant> {
        let any = self.has_deferred() && !mutant(Mutant::NeverRetryDeferred);
        self.retry_at.filter(|_| any)
    }

    /// Makes all deferred debts ready to send: the server carries them out again, or there is a new connection.
    pub(crate) fn retry_deferred(&mut self) {
        self.refusals.reset();
        self.retry_at = None;
        self.ready = self.debts.len();
    }

    /// Takes the number of debts dropped since the last call.
    pub(crate) fn take_dropped(&mut self) -> u64 {
        std::mem::take(&mut self.dropped)
    }

    /// Adds the bytes that a severed connection may have left.
    pub(crate) fn add_unprocessed(&mut self, bytes: usize) {
        if !mutant(Mutant::NoPings) {
            self.unprocessed = self.unprocessed.saturating_add(bytes);
        }
    }

    /// Notes that a ping was answered.
    pub(crate) fn pinged(&mut self) {
        self.unprocessed = self.unprocessed.saturating_sub(EVENT_LOOP_READ);
    }

    /// The number of pings to be answered before the server has read what severed connections left.
    pub(crate) fn pings(&self) -> usize {
        self.unprocessed.div_ceil(EVENT_LOOP_READ)
    }
}

#[cfg(test)]
impl Outbox {
    /// The numbers of debts to send and of deferred ones.
    pub(crate) fn len(&self) -> [usize; 2] {
        [self.ready, self.debts.len() - self.ready]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::fixtures::{MS, key, ttl};
    use crate::protocol::commands::kind::Kind;
    use crate::values::clock;

    fn debt(name: &[u8]) -> Debt {
        Debt::release(key(name))
    }

    fn sent(outbox: &mut Outbox) -> Vec<Vec<u8>> {
        let next = || outbox.pop().map(|debt| debt.key.resource.to_vec());
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn releases_have_a_bound_and_those_that_are_dropped_are_counted_once() {
        let name = |i: usize| i.to_string().into_bytes();
        let mut outbox = Outbox::default();
        for i in 0..MAX_DEBTS + 3 {
            outbox.push(debt(&name(i)));
        }
        let left: Vec<_> = (3..MAX_DEBTS + 3).map(name).collect();
        assert_eq!(sent(&mut outbox), left);
        let long = |i: u8| vec![i; MAX_DEBT_BYTES / 2];
        (0..3).for_each(|i| outbox.push(debt(&long(i))));
        assert_eq!(sent(&mut outbox), [long(1), long(2)]);
        assert_eq!((outbox.bytes, outbox.is_empty()), (0, true));
        let (mut rng, now) = (Rng::new(1), clock::instant());
        (0..3).for_each(|i| outbox.defer(debt(&long(i)), false, &mut rng, now));
        // The bound is one for all debts of the node.
        outbox.push(debt(&long(3)));
        assert_eq!(outbox.len(), [1, 1]);
        outbox.retry_deferred();
        assert_eq!(sent(&mut outbox), [long(3), long(2)]);
        assert_eq!((outbox.take_dropped(), outbox.take_dropped()), (6, 0));
        // All of several names count.
        let names = (0..4).map(|i| vec![i; MAX_DEBT_BYTES / 8].into()).collect();
        let several = Debt::release(key(&[0]).of_kind(Kind::several(names)));
        (0..3).for_each(|_| outbox.push(several.clone()));
        assert_eq!(outbox.len(), [2, 0]);
    }

    #[test]
    fn what_was_refused_for_now_is_owed_until_its_key_has_ended() {
        let (mut rng, now) = (Rng::new(1), clock::instant());
        let mut outbox = Outbox::default();
        for seconds in [1, 3, 2] {
            let key = key(b"a").lasting(ttl(seconds * 1000 * MS));
            outbox.defer(Debt::release(key), false, &mut rng, now);
        }
        let at = |time: u32| now + time * MS;
        assert!(outbox.retry_at().is_some_and(|due| due <= at(100)));
        // One at a time.
        let first = outbox.pop_deferred(at(100)).unwrap();
        assert_eq!(outbox.retry_at(), Some(at(100) + LAST_NODE_PAUSE));
        // Refused again, the debt ends when it would have ended.
        outbox.defer(first, true, &mut rng, at(900));
        assert!(outbox.retry_at().is_some_and(|due| due >= at(1000)));
        let longest = |debt: Option<Debt>| debt?.key.longest();
        assert_eq!(longest(outbox.pop_deferred(at(2500))), Some(3000 * MS));
        assert_eq!(longest(outbox.pop_deferred(at(2500))), None);
        assert_eq!(outbox.retry_at(), None);
    }
}
