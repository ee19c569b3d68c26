//! Values that several unit tests need.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use crate::errors::node_errors::NodeErrors;
use crate::protocol::commands::action::Key;
use crate::protocol::mutants::{Mutant, set_mutant};
use crate::protocol::quorum::answer::{Answer, Outcome};
use crate::values::arithmetic::{Tally, Ttl};
use crate::values::clock::Point;
use crate::values::node_set::NodeSet;
use crate::values::token::Token;

pub(crate) const MS: Duration = Duration::from_millis(1);
pub(crate) const NODE_TIMEOUT: Duration = Duration::from_millis(50);

pub(crate) fn later(from: Point, time: Duration) -> Point {
    Point {
        mono: from.mono + time,
        wall: from.wall + time,
    }
}

pub(crate) fn ttl(ttl: Duration) -> Ttl {
    Ttl::new(ttl).unwrap()
}

pub(crate) fn token() -> Token {
    Token::from_bytes([7; 20])
}

pub(crate) fn key(resource: &[u8]) -> Key {
    Key::new(Arc::from(resource), token(), None)
}

/// An answer in which the first nodes granted.
pub(crate) fn answer(outcome: Outcome, granted: usize, begun: Point) -> Answer {
    Answer {
        outcome,
        tally: Tally {
            granted: NodeSet::first(granted),
            ..Tally::default()
        },
        ..Answer::none(begun.mono)
    }
}

pub(crate) fn unavailable(closed: bool, useless: bool) -> Outcome {
    Outcome::Unavailable {
        errors: NodeErrors::new(Vec::new(), None).into(),
        closed,
        useless,
        unsent: false,
    }
}

/// Each of these mutants shows in what a test finds wrong.
pub(crate) fn each_is_found<T: PartialEq + Debug>(mutants: &[Mutant], wrong: impl Fn() -> Vec<T>) {
    for mutant in mutants {
        set_mutant(Some(*mutant));
        let wrong = wrong();
        set_mutant(None);
        assert_ne!(wrong, [], "{mutant:?}");
    }
}
