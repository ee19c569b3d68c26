//! The lanes over which locks were set again (rule R11b), for the end of each lock, which goes behind that (rule R65).

use std::time::Instant;

use crate::values::token::Token;

/// `L`: a lane.
pub(crate) struct Refilled<L> {
    /// Each lock with its lane, and when its key has ended if the lock is not renewed.
    lanes: Vec<(Token, L, Instant)>,
}

impl<L> Default for Refilled<L> {
    fn default() -> Refilled<L> {
        Refilled { lanes: Vec::new() }
    }
}

impl<L: PartialEq> Refilled<L> {
    /// Adds a lane. Locks that no holder ends are forgotten with their keys.
    pub(crate) fn add(&mut self, token: Token, lane: L, now: Instant, until: Instant) {
        let is_it = |other: &(Token, L, Instant)| other.0 == token && other.1 == lane;
        self.lanes.retain(|other| now < other.2 && !is_it(other));
        self.lanes.push((token, lane, until));
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
        let (now, mut refilled) = (clock::instant(), Refilled::default());
        let [a, b] = [1, 2].map(|byte| Token::from_bytes([byte; 20]));
        for (token, lane, at) in [(a, 1, 0), (a, 2, 10), (b, 2, 10), (a, 1, 20)] {
            let at = now + at * MS;
            refilled.add(token, lane, at, at + 1000 * MS);
        }
        assert_eq!(refilled.take(&a), [2, 1]);
        assert_eq!(refilled.take(&a), []);
        // The key of the other one has ended.
        let later = now + 1010 * MS;
        refilled.add(a, 3, later, later + MS);
        assert_eq!((refilled.take(&b), refilled.take(&a)), (vec![], vec![3]));
    }
}
