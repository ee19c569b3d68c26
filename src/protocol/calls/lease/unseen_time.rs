//! Time that passes unseen by the threads that wait: a suspend of the machine, or a wall clock that was set forward.

use std::time::{Duration, Instant};

use crate::protocol::mutants::{Mutant, mutant};
use crate::values::clock::Point;

/// Watches for time that the monotonic clock, by which threads wait, does not see.
pub(crate) struct UnseenTime {
    /// The longest wait between two looks. Less unseen time than that is let go by.
    longest_wait: Duration,
    last: Point,
    /// How much has passed unseen since what is due was last brought forward.
    unseen: Duration,
}

impl UnseenTime {
    pub(crate) fn new(longest_wait: Duration, now: Point) -> UnseenTime {
        UnseenTime {
            longest_wait,
            last: now,
            unseen: Duration::ZERO,
        }
    }

    /// When to look again at the latest.
    pub(crate) fn looks_at(&self) -> Instant {
        self.last.mono + self.longest_wait
    }

    /// Looks at both clocks. Returns by how much all that is due must be brought forward: locks end that much earlier by the
    /// monotonic clock (rule R82).
    pub(crate) fn look(&mut self, now: Point) -> Option<Duration> {
        let seen = now.mono.saturating_duration_since(self.last.mono);
        let unseen = self.last.elapsed_at(now).saturating_sub(seen);
        self.last = now;
        self.unseen = match mutant(Mutant::ShortSuspendsAreForgotten) {
            true => unseen,
            false => self.unseen + unseen,
        };
        let brings = self.unseen > self.longest_wait && !mutant(Mutant::SuspendUnseen);
        brings.then(|| std::mem::take(&mut self.unseen))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::fixtures::MS;
    use crate::protocol::mutants::set_mutant;

    const WAIT: Duration = Duration::from_millis(100);

    /// How far each look brings things forward, in milliseconds, where this much passes before it on the monotonic clock and
    /// on the wall clock.
    fn looks(passes: &[(u32, i64)]) -> Vec<Option<u128>> {
        let mut now = Point::now();
        let mut unseen = UnseenTime::new(WAIT, now);
        let look = |(mono, wall): &(u32, i64)| {
            let by = Duration::from_millis(wall.unsigned_abs());
            now.mono += MS * *mono;
            now.wall = if *wall < 0 {
                now.wall - by
            } else {
                now.wall + by
            };
            let forward = unseen.look(now).map(|time| time.as_millis());
            assert_eq!(unseen.looks_at(), now.mono + WAIT);
            forward
        };
        passes.iter().map(look).collect()
    }

    #[test]
    fn a_suspend_brings_forward_what_is_due_by_its_length() {
        let all = [(100, 100), (40, 300), (100, 100), (100, 3_600_100)];
        let expected = vec![None, Some(260), None, Some(3_600_000)];
        assert_eq!(looks(&all), expected);
        set_mutant(Some(Mutant::SuspendUnseen));
        let broken = looks(&all);
        set_mutant(None);
        assert_ne!(broken, expected);
    }

    /// Each alone is shorter than the time within which a loss is reported behind a suspend; together they are not.
    #[test]
    fn short_suspends_add_up() {
        let all = [(100, 160), (100, 160), (100, 160), (100, 160)];
        let expected = vec![None, Some(120), None, Some(120)];
        assert_eq!(looks(&all), expected);
        set_mutant(Some(Mutant::ShortSuspendsAreForgotten));
        let broken = looks(&all);
        set_mutant(None);
        assert_ne!(broken, expected);
    }

    #[test]
    fn a_wall_clock_that_is_set_back_hides_no_suspend_behind_that() {
        assert_eq!(
            looks(&[(100, -3_600_000), (100, 100), (100, 700)]),
            [None, None, Some(600)]
        );
    }
}
