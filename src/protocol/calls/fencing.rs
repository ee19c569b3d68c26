//! Fencing tokens: a number that grows with every holder, for stores that refuse smaller ones.
//!
//! Each node counts for itself, and only while it holds the lock; a token is a number that a quorum gave alike. No
//! number is given to two acquisitions, because two quorums share a node, and that gives no number twice. Later numbers
//! are larger, because on that node the earlier one was counted first. No clock is involved while counters are kept; a
//! lost counter goes on above all numbers that were given out, because the time of day is a lower bound.

use std::time::{Duration, Instant};

use crate::errors::lock_error::LostReason;
use crate::errors::node_errors::NodeErrors;
use crate::protocol::calls::lease::Lease;
use crate::protocol::commands::action::Action;
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::quorum::answer::{Answer, Outcome};
use crate::protocol::quorum::op::Op;
use crate::values::clock::Point;

/// The largest lead that is asked for if nodes differ: with a second of the restart guard's, and clocks that differ by
/// less than 0.4 s, a lost counter goes on above it (rule R28).
const LONGEST_LEAD: Duration = Duration::from_millis(500);

/// The rounds that it takes to get a token: one, except if the nodes' counters differ.
pub(crate) struct Fencing {
    at_least: u64,
    longest_lead: Duration,
    /// When the round was sent.
    sent: Option<Instant>,
}

/// The next step, or the result.
pub(crate) enum Fenced {
    /// Has a round carried out, and passes on the answer.
    Ask(Op),
    Token(u64),
    Lost(LostReason),
    /// The old deadline stays in force.
    Unavailable(NodeErrors),
}

impl Fencing {
    pub(crate) fn new() -> Fencing {
        Fencing {
            at_least: 0,
            longest_lead: LONGEST_LEAD,
            sent: None,
        }
    }

    /// Returns a round, unless the validity is over (rule R22).
    pub(crate) fn next(&mut self, lease: &Lease, now: Point) -> Fenced {
        if lease.left(now).is_zero() {
            return Fenced::Lost(lease.lost.unwrap_or(LostReason::Expired));
        }
        self.sent = Some(now.mono);
        let op = Op::new(Action::Fence(self.at_least), lease.key.clone());
        Fenced::Ask(op.until(Some(lease.expires(now))))
    }

    pub(crate) fn answered(&mut self, answer: Answer, lease: &Lease, now: Point) -> Fenced {
        let over = lease.left(now).is_zero();
        match (answer.outcome, answer.numbers) {
            (Outcome::No, _) => Fenced::Lost(answer.remarks.lost_reason()),
            // Rule R22.
            _ if over && !mutant(Mutant::FenceAfterDeadline) => {
                Fenced::Lost(lease.lost.unwrap_or(LostReason::Expired))
            }
            (Outcome::Unavailable { errors, .. }, _) => Fenced::Unavailable(*errors),
            (Outcome::Yes(_), Some((least, most)))
                if least == most
                    || mutant(Mutant::LargestFence)
                    || self.at_least > 0 && mutant(Mutant::SecondRoundCounts) =>
            {
                Fenced::Token(most)
            }
            (Outcome::Yes(_), numbers) => {
                // So the counters agree next time, unless the time of day is further then (rule R21): the next round
                // may take as long, and reach one node at its beginning and another one at its end.
                let took = now
                    .mono
                    .saturating_duration_since(self.sent.unwrap_or(now.mono));
                let lead = (2 * took).min(self.longest_lead).as_micros();
                let lead = u64::try_from(lead).unwrap_or(0).saturating_add(1);
                self.at_least = numbers.map_or(0, |(_, most)| most.saturating_add(lead));
                self.next(lease, now)
            }
        }
    }
}

#[cfg(test)]
impl Fencing {
    /// For the simulation, whose seconds are shorter.
    pub(crate) fn with_lead(longest_lead: Duration) -> Fencing {
        Fencing {
            longest_lead,
            ..Fencing::new()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::proof::fixtures::{MS, key, later, ttl, unavailable};
    use crate::values::arithmetic::Deadline;
    use crate::values::node_set::NodeSet;

    fn answer(outcome: Outcome, numbers: Option<(u64, u64)>, now: Point) -> Answer {
        Answer {
            outcome,
            numbers,
            ..Answer::none(now.mono)
        }
    }

    fn yes() -> Outcome {
        Outcome::Yes(NodeSet::ALL)
    }

    /// A lease that is valid for some seconds.
    fn lease(start: Point) -> Lease {
        let ttl = ttl(Duration::from_secs(10));
        Lease::new(key(b"a"), ttl, Deadline::new(start, ttl.validity()))
    }

    #[test]
    fn a_token_is_what_a_quorum_gave_alike_before_the_deadline() {
        let start = Point::now();
        let (mut fencing, lease) = (Fencing::new(), lease(start));
        let late = later(start, Duration::from_secs(10));
        let same = |now| answer(yes(), Some((7, 7)), now);
        let token = fencing.answered(same(start), &lease, start);
        assert!(matches!(token, Fenced::Token(7)));
        assert!(matches!(
            fencing.answered(same(late), &lease, late),
            Fenced::Lost(LostReason::Expired)
        ));
        assert!(matches!(
            fencing.next(&lease, late),
            Fenced::Lost(LostReason::Expired)
        ));
        let not_held = answer(Outcome::No, None, start);
        assert!(matches!(
            fencing.answered(not_held, &lease, start),
            Fenced::Lost(LostReason::NotHeld)
        ));
        let few = answer(unavailable(false, false), None, start);
        let few = fencing.answered(few, &lease, start);
        assert!(matches!(few, Fenced::Unavailable(_)));
    }

    #[test]
    fn where_numbers_differ_more_than_the_largest_is_asked_for() {
        let start = Point::now();
        let (mut fencing, lease) = (Fencing::new(), lease(start));
        // The lead is so large that the time of day is not further at the end of another round; within a bound.
        for (took, expected) in [(0, 10), (3, 6_010), (200, 400_010), (4000, 500_010)] {
            let first = fencing.next(&lease, start);
            assert!(matches!(first, Fenced::Ask(_)));
            let now = later(start, took * MS);
            let fenced = fencing.answered(answer(yes(), Some((7, 9)), now), &lease, now);
            let Fenced::Ask(op) = fenced else {
                panic!("another round follows");
            };
            assert_eq!(op.action, Action::Fence(expected), "{took} ms");
            assert_eq!(op.until, Some(lease.expires(start)));
        }
    }
}
