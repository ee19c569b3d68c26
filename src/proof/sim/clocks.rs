//! The clocks of a virtual process.

use std::time::{Duration, Instant, SystemTime};

use super::basics::{MS, Random, TODAY};
use crate::values::clock::{self, Point};

/// The clocks run at a rate in parts of ten thousand; the monotonic one stops while the process is suspended.
pub(super) struct Clocks {
    base: Point,
    rate: u64,
    suspended: u64,
    pub(super) stands_until: u64,
}

impl Clocks {
    pub(super) fn new(random: &mut Random) -> Clocks {
        // Wall clocks differ, if they do, by less or more than queues take from them.
        let ahead = if random.chance(50) { 2000 } else { 1 };
        Clocks {
            base: Point {
                mono: clock::instant(),
                wall: SystemTime::UNIX_EPOCH
                    + Duration::from_micros(TODAY)
                    + Duration::from_millis(random.below(ahead)),
            },
            rate: 9_960 + random.below(81),
            suspended: 0,
            stands_until: 0,
        }
    }

    /// The clocks run almost as fast as others.
    pub(super) fn steady(&mut self) {
        self.rate = 9_995 + (self.rate - 9_960) / 8;
    }

    /// Whether the monotonic clock has stood still.
    pub(super) fn has_been_suspended(&self) -> bool {
        self.suspended > 0
    }

    /// The monotonic clock at the beginning.
    pub(super) fn start(&self) -> Instant {
        self.base.mono
    }

    /// The clocks at time `t`.
    pub(super) fn point(&self, t: u64) -> Point {
        let runs = |t: u64| Duration::from_micros(t * self.rate / 10_000);
        Point {
            mono: self.base.mono + runs(t.saturating_sub(self.suspended)),
            wall: self.base.wall + runs(t),
        }
    }

    /// The wall clock at time `t`.
    pub(super) fn wall(&self, t: u64) -> u64 {
        let wall = self.point(t).wall.duration_since(SystemTime::UNIX_EPOCH);
        u64::try_from(wall.unwrap().as_micros()).unwrap()
    }

    /// Whether all nodes take the wall clock's word for it.
    pub(super) fn is_punctual(&self) -> bool {
        self.wall(0) < TODAY + 300 * MS
    }

    /// The time at which the monotonic clock shows `at`.
    pub(super) fn time(&self, at: Instant) -> u64 {
        let runs = at.saturating_duration_since(self.base.mono).as_micros();
        let runs = u64::try_from(runs).unwrap_or(u64::MAX / 20_000);
        runs.min(u64::MAX / 20_000) * 10_000 / self.rate + self.suspended + 1
    }

    pub(super) fn freeze(&mut self, until: u64) {
        self.stands_until = self.stands_until.max(until);
    }

    /// Whether all threads of the process are stopped.
    pub(super) fn stands(&self, t: u64) -> bool {
        self.stands_until > t
    }

    /// Whether all threads of the process have been stopped at one time or another.
    pub(super) fn has_hung(&self) -> bool {
        self.stands_until > 0
    }

    pub(super) fn suspend(&mut self, t: u64, until: u64) {
        if self.stands_until <= t {
            self.suspended += until - t;
        }
        self.freeze(until);
    }
}
