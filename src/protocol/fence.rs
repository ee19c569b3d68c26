//! Fencing tokens: a number that grows with every holder, for stores that refuse smaller ones.
//!
//! Each node counts for itself, and only while it holds the lock; a token is what a quorum gave alike. Why no
//! number is given to two acquisitions: two quorums share a node, and that gives no number twice. Why later ones
//! are larger: on that node the earlier one was counted first. No clock is in it while counters are kept; a
//! lost one goes on above all that was given out, because the time of day is a lower bound.

use std::time::{Duration, Instant};

use crate::error::NodeErrors;
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::operation::{Answer, Op, Outcome};
use crate::protocol::script::{Action, Key};

/// Where nodes differ, so far ahead at most is asked for: with a second of the restart guard's, and clocks that
/// differ by less than 0.4 s, a lost counter goes on above it (rule R28).
const LONGEST_LEAD: Duration = Duration::from_millis(500);

/// The rounds that it takes to get a token; one, but for nodes whose counters differ.
pub(crate) struct Fencing {
    at_least: u64,
    longest_lead: Duration,
    /// When the round was sent.
    sent: Option<Instant>,
}

/// What a round came to.
pub(crate) enum Fenced {
    Token(u64),
    /// The nodes gave different numbers: another round.
    Again,
    Lost,
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

    pub(crate) fn op(&mut self, key: Key, now: Instant, until: Option<Instant>) -> Op {
        self.sent = Some(now);
        Op::new(Action::Fence(self.at_least), key).until(until)
    }

    /// `over`: the lock's validity is, now (rule R22).
    pub(crate) fn answered(&mut self, answer: Answer, now: Instant, over: bool) -> Fenced {
        match (answer.outcome, answer.numbers) {
            (Outcome::No, _) => Fenced::Lost,
            _ if over && !mutant(Mutant::FenceAfterDeadline) => Fenced::Lost,
            (Outcome::Unavailable { errors, .. }, _) => Fenced::Unavailable(errors),
            (Outcome::Yes(_), Some((least, most)))
                if least == most || mutant(Mutant::LargestFence) =>
            {
                Fenced::Token(most)
            }
            (Outcome::Yes(_), numbers) => {
                // So they agree next time, unless the time of day is further then (rule R21): the next round
                // may take as long, and reach one node at its beginning and another one at its end.
                let took = now.saturating_duration_since(self.sent.unwrap_or(now));
                let lead = (2 * took).min(self.longest_lead).as_micros();
                let lead = u64::try_from(lead).unwrap_or(0).saturating_add(1);
                self.at_least = numbers.map_or(0, |(_, most)| most.saturating_add(lead));
                Fenced::Again
            }
        }
    }
}

#[cfg(test)]
impl Fencing {
    /// The simulation's seconds are shorter.
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
    use crate::clock;
    use crate::protocol::fixtures::{key, unavailable};
    use crate::protocol::quorum::NodeSet;

    fn answer(outcome: Outcome, numbers: Option<(u64, u64)>) -> Answer {
        Answer {
            outcome,
            numbers,
            ..Answer::none(clock::instant())
        }
    }

    fn yes() -> Outcome {
        Outcome::Yes(NodeSet::ALL)
    }

    #[test]
    fn a_token_is_what_a_quorum_gave_alike_before_the_deadline() {
        let (mut fencing, now) = (Fencing::new(), clock::instant());
        let token = |fenced| match fenced {
            Fenced::Token(number) => Some(number),
            _ => None,
        };
        assert_eq!(
            token(fencing.answered(answer(yes(), Some((7, 7))), now, false)),
            Some(7)
        );
        let late = fencing.answered(answer(yes(), Some((7, 7))), now, true);
        assert!(matches!(late, Fenced::Lost));
        let not_held = fencing.answered(answer(Outcome::No, None), now, false);
        assert!(matches!(not_held, Fenced::Lost));
        let few = answer(unavailable(false, false), None);
        let few = fencing.answered(few, now, false);
        assert!(matches!(few, Fenced::Unavailable(_)));
    }

    #[test]
    fn where_numbers_differ_more_than_the_largest_is_asked_for() {
        let (mut fencing, now) = (Fencing::new(), clock::instant());
        let key = key(b"a");
        // So far that the time of day is not further at the end of another round; within a bound.
        for (took, expected) in [(0, 10), (3, 6_010), (200, 400_010), (4000, 500_010)] {
            fencing.op(key.clone(), now, None);
            let later = now + Duration::from_millis(took);
            let fenced = fencing.answered(answer(yes(), Some((7, 9))), later, false);
            assert!(matches!(fenced, Fenced::Again));
            let op = fencing.op(key.clone(), now, None);
            assert_eq!(op.action, Action::Fence(expected), "{took} ms");
        }
    }
}
