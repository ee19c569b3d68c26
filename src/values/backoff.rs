//! Pauses that double with each failure in a row.

use std::time::Duration;

/// The first pause after a split vote, and after a notification that was wrong.
pub(crate) const SHORTEST_PAUSE: Duration = Duration::from_micros(200);

/// The pause between two tries at a node grows from the first to the last: a node that is well again votes within one
/// second.
pub(crate) const FIRST_NODE_PAUSE: Duration = Duration::from_millis(100);
pub(crate) const LAST_NODE_PAUSE: Duration = Duration::from_millis(700);
const NODE_DOUBLINGS: u32 = 3;

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

    /// The failures of tries at a node: to connect to it, or to send again what it refused for now.
    pub(crate) const fn at_node() -> Backoff {
        Backoff::new(NODE_DOUBLINGS)
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

    /// The longest pause before the next try at a node.
    pub(crate) fn node_pause(self) -> Duration {
        LAST_NODE_PAUSE.min(self.pause(FIRST_NODE_PAUSE))
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
