//! The lanes over which locks were set again (rule R11b), for the end of each lock, which goes behind that (rule R65).

use std::time::Instant;

use crate::values::token::Token;

/// `L`: a lane.
pub(crate) struct RefilledLocks<L> {
    /// Each lock with its lane, and when its key has ended if the lock is not renewed.
    lanes: Vec<(Token, L, Instant)>,
}

impl<L> Default for RefilledLocks<L> {
    fn default() -> RefilledLocks<L> {
        RefilledLocks { lanes: Vec::new() }
    }
}

impl<L: PartialEq> RefilledLocks<L> {
    pub(crate) fn add(&mut self, token: Token, lane: L, until: Instant) {
        let is_it = |other: &&mut (Token, L, Instant)| other.0 == token && other.1 == lane;
        match self.lanes.iter_mut().find(is_it) {
            Some(one) => one.2 = until,
            None => self.lanes.push((token, lane, until)),
        }
    }

    /// Takes the lanes of locks that no holder has ended, and whose keys have ended.
    pub(crate) fn take_over(&mut self, now: Instant) -> Vec<L> {
        let over = self.lanes.extract_if(.., |(.., until)| now >= *until);
        over.map(|(_, lane, _)| lane).collect()
    }

    pub(crate) fn take_all(&mut self) -> Vec<L> {
        let all = std::mem::take(&mut self.lanes).into_iter();
        all.map(|(_, lane, _)| lane).collect()
    }

    /// Takes the lanes of a lock that ends.
    pub(crate) fn take(&mut self, token: &Token) -> Vec<L> {
        let taken = self.lanes.extract_if(.., |(of, ..)| of == token);
        taken.map(|(_, lane, _)| lane).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::fixtures::MS;
    use crate::values::clock;

    #[test]
    fn the_lanes_of_a_lock_are_kept_until_it_ends_or_its_key_has_ended() {
        let (now, mut refilled) = (clock::instant(), RefilledLocks::default());
        let [a, b] = [1, 2].map(|byte| Token::from_bytes([byte; 20]));
        for (token, lane, at) in [(a, 1, 0), (a, 2, 10), (b, 2, 10), (a, 1, 20)] {
            refilled.add(token, lane, now + (at + 1000) * MS);
        }
        assert_eq!(refilled.take(&a), [1, 2]);
        assert_eq!(refilled.take(&a), []);
        refilled.add(a, 3, now + 1011 * MS);
        assert_eq!(refilled.take_over(now + 1009 * MS), []);
        assert_eq!(refilled.take_over(now + 1010 * MS), [2]);
        assert_eq!((refilled.take(&b), refilled.take(&a)), (vec![], vec![3]));
        refilled.add(b, 4, now);
        assert_eq!((refilled.take_all(), refilled.take(&b)), (vec![4], vec![]));
    }
}
