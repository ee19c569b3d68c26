//! Whether a server's clock was set forward while this program ran (rules R57–R59).
//!
//! A server ends locks by its time of day. If that is set forward, every lock there ends too early, and the next one to
//! ask for it gets it while it is held. No server reports such a step. A client that compares the server's time of day
//! with its own monotonic clock notices it; one that was started later cannot.

use std::time::{Duration, Instant};

use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::node::restart_guard::{VotesFrom, later};
use crate::protocol::node::standing::{SitsOut, Why};

/// How far a clock may gain unnoticed, beside what rates explain.
const TOLERANCE: Duration = Duration::from_millis(10);
/// Rates may differ by one part in this many: NTP slews a clock by a quarter of that, and crystals differ by less.
const RATE: u32 = 500;

/// A server's time of day. The server read it between two times of this process: before the question was written, and
/// after the answer was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClockReading {
    pub(crate) time_of_day: Duration,
    pub(crate) sent: Instant,
    pub(crate) received: Instant,
}

/// All that was seen of one server's clock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClockWatch {
    /// The clock showed no more than this time of day at this time.
    pub(super) bound: Option<(Duration, Instant)>,
    step: Option<SitsOut>,
    /// When the last question was sent.
    pub(super) read: Option<Instant>,
}

impl ClockWatch {
    /// Takes over what another connection of this program has seen of the clock since (rule R66).
    pub(crate) fn learn(&mut self, other: &ClockWatch) {
        if other.read > self.read {
            (self.bound, self.read) = (other.bound, other.read);
        }
        self.step = later_step(self.step, other.step);
    }

    /// The readings of another server's clock, with the step of this one, which counts on (rule R58).
    pub(crate) fn replaced_by(&self, other: &ClockWatch) -> ClockWatch {
        let step = later_step(self.step, other.step);
        ClockWatch { step, ..*other }
    }

    /// Keeps the step alone, for another server's clock.
    pub(crate) fn forget_readings(&mut self) {
        (self.bound, self.read) = (None, None);
    }

    /// Adds a reading. If it shows that the clock was set forward, the server grants this program nothing for `longest`,
    /// the longest ttl.
    pub(crate) fn saw(&mut self, reading: ClockReading, longest: Duration) -> Option<SitsOut> {
        let ClockReading {
            time_of_day,
            sent,
            received,
        } = reading;
        self.read = Some(sent);
        let bound = *self.bound.get_or_insert((time_of_day, sent));
        let is_set_forward = time_of_day > latest(bound, received).saturating_add(TOLERANCE);
        // A smaller bound is a better one; and a clock that was set anew is measured from there.
        if is_set_forward || time_of_day <= latest(bound, sent) || mutant(Mutant::LastLookOnly) {
            self.bound = Some((time_of_day, sent));
        }
        if !is_set_forward || mutant(Mutant::StepUnseen) {
            return None;
        }
        let (shown, since) = bound;
        let expected = shown.saturating_add(sent.saturating_duration_since(since));
        // By then every lock has ended that may have been granted before.
        let parts = 1 + u32::from(mutant(Mutant::HalfStepWait));
        let votes = VotesFrom {
            held: received,
            all: later(received, longest / parts),
        };
        let why = Why::ClockSet(time_of_day.saturating_sub(expected));
        self.step = Some(SitsOut { votes, why });
        self.step
    }

    /// The last step, while the server grants nothing for it.
    pub(crate) fn step(&self, now: Instant) -> Option<SitsOut> {
        self.step.filter(|step| step.votes.all > now)
    }
}

/// The step for which a server sits out longer.
fn later_step(one: Option<SitsOut>, other: Option<SitsOut>) -> Option<SitsOut> {
    let both = one.into_iter().chain(other);
    both.max_by_key(|step| step.votes.all)
}

/// The most that a clock with this bound shows at a time.
fn latest((shown, since): (Duration, Instant), at: Instant) -> Duration {
    let elapsed = at.saturating_duration_since(since);
    shown.saturating_add(elapsed).saturating_add(elapsed / RATE)
}

#[cfg(test)]
impl ClockWatch {
    /// The most that the clock shows now, if it was not set; and when it was last asked for.
    pub(crate) fn watched(&self, now: Instant) -> Option<(Duration, Instant)> {
        Some((latest(self.bound?, now), self.read?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::mutants::set_mutant;
    use crate::values::clock;

    const LONGEST: Duration = Duration::from_secs(30);
    const MS: Duration = Duration::from_millis(1);
    const PPM: u64 = 1_000_000;

    /// A server with a clock of this rate, in parts of a million more than the client's, that was set forward by so much.
    struct Remote {
        start: Instant,
        gains: u64,
        ahead: Duration,
    }

    impl Remote {
        fn new(gains: u64) -> Remote {
            Remote {
                start: clock::instant(),
                gains,
                ahead: Duration::ZERO,
            }
        }

        /// A look that is sent `at` microseconds after the start, and takes this long each way.
        fn look(&self, at: u64, [up, down]: [u64; 2]) -> ClockReading {
            let then = at + up;
            let shown = Duration::from_micros(then + then * self.gains / PPM);
            let time = |micros| self.start + Duration::from_micros(micros);
            ClockReading {
                time_of_day: Duration::from_secs(1_795_694_697) + shown + self.ahead,
                sent: time(at),
                received: time(then + down),
            }
        }
    }

    const DELAYS: [u64; 5] = [0, 40, 1_000, 30_000, 500_000];

    fn ways() -> impl Iterator<Item = [u64; 2]> + Clone {
        let ups = DELAYS.iter();
        ups.flat_map(|up| DELAYS.map(|down| [*up, down]))
    }

    /// Whatever looks take, and however far apart they are.
    #[test]
    fn no_clock_that_gains_up_to_two_parts_in_a_thousand_counts_as_set_forward() {
        for gains in [0, 10, 100, 500, 1000, 2000] {
            for first in ways() {
                let (remote, mut watch) = (Remote::new(gains), ClockWatch::default());
                let mut at = 0;
                for (number, way) in ways().cycle().take(500).enumerate() {
                    let way = if number == 0 { first } else { way };
                    let found = watch.saw(remote.look(at, way), LONGEST).is_some();
                    assert!(!found, "{gains} ppm, look {number} at {at}");
                    at += way[0] + way[1] + [7, 200_000, 20_000_000][number % 3];
                }
            }
        }
    }

    /// A step is found if it exceeds the tolerance, what rates explain, and what the looks took: the first one on its
    /// way to the server, and this one on its way back.
    #[test]
    fn a_step_of_more_than_the_tolerance_is_found_by_the_next_look() {
        for [first, now] in ways() {
            for apart in [1, 500_000, 60_000_000] {
                let unseen = 10_000 + (first + apart + now) / 500 + first + now;
                for (step, expected) in [(unseen + 20, true), (unseen * 2, true), (0, false)] {
                    let (mut remote, mut watch) = (Remote::new(0), ClockWatch::default());
                    assert!(watch.saw(remote.look(0, [first, 0]), LONGEST).is_none());
                    remote.ahead = Duration::from_micros(step);
                    let look = remote.look(first + apart, [0, now]);
                    let found = watch.saw(look, LONGEST).is_some();
                    let case = format!("{first} {now} {apart} {step}");
                    assert_eq!(found, expected, "{case}");
                    let until = watch.step(look.received).map(|step| step.votes.all);
                    let wait = look.received + LONGEST;
                    assert_eq!(until, expected.then_some(wait), "{case}");
                    assert_eq!(watch.step(wait), None, "{case}");
                }
            }
        }
    }

    /// `gains`: in parts of a million. Returns when the clock counts as set forward, in seconds, if it does in an hour of
    /// looks that are a second apart.
    fn slewed(gains: u64) -> Option<u64> {
        let (remote, mut watch) = (Remote::new(gains), ClockWatch::default());
        let look = |second| remote.look(second * PPM, [100, 100]);
        (0..3600).find(|second| watch.saw(look(*second), LONGEST).is_some())
    }

    /// ntpd slews by 500 ppm, and chrony by 1000 ppm as the guide advises. By default chrony may slew by 83,333 ppm: then
    /// locks end sooner by more than the validity allows for (R3: 1 %), as they do after a step.
    #[test]
    fn a_clock_that_is_slewed_slowly_was_not_set_and_one_that_gains_a_twelfth_was() {
        for gains in [500, 1000, 1990] {
            assert_eq!(slewed(gains), None, "{gains} ppm");
        }
        assert_eq!(slewed(83_333), Some(1));
        // Nothing between is hidden by the looks in between.
        assert_eq!(slewed(10_000), Some(2));
    }

    /// Steps that are too small to be noticed add up.
    #[test]
    fn small_steps_are_noticed_once_they_exceed_the_tolerance_together() {
        let found = |mutant| {
            set_mutant(mutant);
            let (mut remote, mut watch) = (Remote::new(0), ClockWatch::default());
            let steps = (0..8).find(|number| {
                let found = watch
                    .saw(remote.look(number * 1000, [50, 50]), LONGEST)
                    .is_some();
                remote.ahead += 4 * MS;
                found
            });
            set_mutant(None);
            steps
        };
        assert_eq!(found(None), Some(3));
        assert_eq!(found(Some(Mutant::LastLookOnly)), None);
    }

    /// Every lock that may have ended early has ended by then.
    #[test]
    fn nothing_is_granted_for_as_long_as_the_longest_lock_lasts() {
        let left = |mutant| {
            set_mutant(mutant);
            let (mut remote, mut watch) = (Remote::new(0), ClockWatch::default());
            watch.saw(remote.look(0, [50, 50]), LONGEST);
            remote.ahead = 20 * MS;
            let look = remote.look(1000, [50, 50]);
            watch.saw(look, LONGEST);
            set_mutant(None);
            watch.step(look.received).unwrap().left(look.received)
        };
        assert_eq!(left(None), LONGEST);
        assert_ne!(left(Some(Mutant::HalfStepWait)), LONGEST);
    }

    /// A clock that was set back, and right again, was set forward then; each step forward has a wait of its own.
    #[test]
    fn a_clock_that_was_set_back_is_measured_from_there() {
        let (mut remote, mut watch) = (Remote::new(0), ClockWatch::default());
        let mut saw = |ahead: u64, second: u64| {
            remote.ahead = Duration::from_secs(ahead);
            let look = remote.look(second * PPM, [50, 50]);
            let found = watch.saw(look, LONGEST).is_some();
            let step = watch.step(look.received);
            let by = step.filter(|_| found).map(|step| match step.why {
                Why::ClockSet(by) => by.as_secs(),
                other => panic!("{other:?}"),
            });
            (by, step.map(|step| step.left(look.received)))
        };
        assert_eq!(saw(3600, 0), (None, None));
        assert_eq!(saw(0, 1), (None, None));
        assert_eq!(saw(0, 20), (None, None));
        assert_eq!(saw(3600, 21), (Some(3600), Some(LONGEST)));
        assert_eq!(saw(3600, 31), (None, Some(20 * MS * 1000)));
        assert_eq!(saw(3605, 32), (Some(5), Some(LONGEST)));
        assert_eq!(saw(3605, 62), (None, None));
    }
}
