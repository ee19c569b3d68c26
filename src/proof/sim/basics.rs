//! The basics of a world: its times, and random numbers that follow from its seed.

use std::time::Duration;

pub(crate) use crate::proof::random::Random;
use crate::protocol::mutants::Promise;

/// A promise that was not kept, and how.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) promise: Promise,
    pub(crate) what: String,
}

impl Violation {
    pub(super) fn of(promise: Promise, what: String) -> Violation {
        Violation { promise, what }
    }
}

/// Times are in microseconds of a clock that no part of the world can read.
pub(super) const MS: u64 = 1000;
pub(super) const NODE_TIMEOUT: u64 = 50 * MS;
pub(super) const CONNECT_TIMEOUT: u64 = 500 * MS;
/// With the restart guard: the longest ttl, and the resolution in which servers report how long they have been up. Both
/// are shorter than in this world, so that restarts fit in.
pub(super) const LONGEST: u64 = 100 * MS;
pub(super) const RESOLUTION: u64 = 10 * MS;
/// For this long a master goes on after another one has taken its place; here it is shorter by a fifth, for the clocks.
pub(super) const MARGIN: u64 = 30 * MS;
/// The time that wall clocks and the servers' clocks show when the world begins: well above zero.
pub(super) const TODAY: u64 = 100_000 * MS;
/// For writes that take their time, and whatever a virtual clock's rate and rounding add.
pub(super) const SLACK: u64 = 20 * MS;
/// How often the threads of kept locks look at both clocks (rule R82), shorter by as much as the other times here.
pub(super) const LOOKS_AT_CLOCKS: u64 = 10 * MS;
/// The number of resources that are locked. The other one is for when all is quiet.
pub(super) const RESOURCES: u8 = 2;
pub(super) const PROBED: u8 = 9;

impl Random {
    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick(&mut self, count: usize) -> usize {
        usize::try_from(self.below(count as u64)).unwrap()
    }

    pub(super) fn between(&mut self, min: Duration, max: Duration) -> Duration {
        let part = u32::try_from(self.below(1025)).unwrap();
        min + (max - min) / 1024 * part
    }
}
