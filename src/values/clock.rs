//! The only file that reads a clock.
//!
//! Two kinds of time. *Timeouts and pauses* are about how long this program waits: a plain [`Instant`] from
//! [`instant`]. *Validity* is about keys that expire on other machines, whether this one runs or not: a [`Point`],
//! which counts time spent suspended.

use std::time::{Duration, Instant, SystemTime};
#[cfg(not(schedules))]
use std::time::{Instant as Monotonic, SystemTime as Wall};

#[cfg(schedules)]
use crate::schedules::time::{Monotonic, Wall};

/// The monotonic clock, for timeouts and pauses.
pub(crate) fn instant() -> Instant {
    Monotonic::now()
}

/// The wall clock, for what people see.
pub(crate) fn wall() -> SystemTime {
    Wall::now()
}

/// Whole milliseconds.
pub(crate) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A point in time on both clocks.
///
/// `CLOCK_MONOTONIC` stops while a machine is suspended, and std offers no `CLOCK_BOOTTIME`. The wall clock goes on.
/// Taking the larger of the two differences finds the suspend (rule R3), and errs to the safe side when the wall clock
/// is set forward.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub(crate) mono: Instant,
    pub(crate) wall: SystemTime,
}

impl Point {
    pub(crate) fn now() -> Point {
        Point {
            mono: instant(),
            wall: wall(),
        }
    }

    /// The time from `self` to `later`: the larger of the two clocks' differences. A clock that went backwards counts
    /// as stopped, so this is never negative.
    pub(crate) fn elapsed_at(self, later: Point) -> Duration {
        let mono = later.mono.saturating_duration_since(self.mono);
        let wall = later
            .wall
            .duration_since(self.wall)
            .unwrap_or(Duration::ZERO);
        mono.max(wall)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn shifted(from: Point, mono: Duration, wall: Duration, back: Duration) -> Point {
        Point {
            mono: from.mono + mono,
            wall: from.wall + wall - back,
        }
    }

    #[test]
    fn clocks_that_agree_give_the_difference() {
        let a = Point::now();
        assert_eq!(
            a.elapsed_at(shifted(a, 5 * S, 5 * S, Duration::ZERO)),
            5 * S
        );
    }

    #[test]
    fn a_suspend_counts() {
        let a = Point::now();
        assert_eq!(
            a.elapsed_at(shifted(a, S, 3600 * S, Duration::ZERO)),
            3600 * S
        );
    }

    #[test]
    fn a_wall_clock_set_back_changes_nothing() {
        let a = Point::now();
        assert_eq!(a.elapsed_at(shifted(a, 5 * S, 5 * S, 3600 * S)), 5 * S);
    }

    #[test]
    fn a_wall_clock_set_forward_errs_to_the_safe_side() {
        let a = Point::now();
        assert_eq!(
            a.elapsed_at(shifted(a, 5 * S, 65 * S, Duration::ZERO)),
            65 * S
        );
    }

    #[test]
    fn elapsed_time_is_never_less_than_the_monotonic_one() {
        let a = Point::now();
        for mono in 0..20 {
            for wall in 0..20 {
                for back in 0..20 {
                    let b = shifted(a, mono * S, wall * S, back * S);
                    let elapsed = a.elapsed_at(b);
                    assert!(elapsed >= mono * S);
                    assert_eq!(elapsed, (mono * S).max((wall * S).saturating_sub(back * S)));
                }
            }
        }
    }
}
