//! Pauses that double with each failure in a row.

use std::time::Duration;

/// The first pause after a split vote, and after a notification that was wrong.
pub(crate) const SHORTEST_PAUSE: Duration = Duration::from_micros(200);

/// The failures in a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    failures: u32,
    max_doublings: u32,
}

impl Backoff {
    pub(crate) const fn new(max_doublings: u32) -> Backoff {
        Backoff {
            failures: 0,
            max_doublings,
        }
    }

    pub(crate) fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
    }

    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    pub(crate) fn failures(self) -> u32 {
        self.failures
    }

    /// The next pause, if the one after no failure is `first`.
    pub(crate) fn pause(self, first: Duration) -> Duration {
        first.saturating_mul(1 << self.failures.min(self.max_doublings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_number_of_failures() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::new(2);
        for (failures, expected) in [(0, 10), (1, 20), (2, 40), (3, 40)] {
            assert_eq!(backoff.failures(), failures);
            assert_eq!(backoff.pause(ms(10)), ms(expected));
            assert_eq!(backoff.pause(Duration::MAX), Duration::MAX);
            backoff.failed();
        }
        backoff.reset();
        assert_eq!(backoff.pause(ms(10)), ms(10));
    }
}
