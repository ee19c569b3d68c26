//! When the maps of Redis Clusters are asked for again since a slot has moved: others may have moved, too (rule R64).

use std::time::{Duration, Instant};

/// The shortest time between two questions.
const PAUSE: Duration = Duration::from_millis(100);
/// How often a question is asked that no majority answers.
const MOST: u32 = 10;

#[derive(Default)]
pub(crate) struct Refreshes {
    /// Whether a thread asks.
    is_running: bool,
    /// Whether a slot has moved since the thread began to ask.
    is_due: bool,
    /// When the thread asked last.
    asked: Option<Instant>,
    /// How many questions in a row were not answered.
    failed: u32,
}

impl Refreshes {
    /// Notes that a slot has moved. Returns whether a thread must be started, which counts as running from then on.
    pub(crate) fn request(&mut self) -> bool {
        (self.is_due, self.failed) = (true, 0);
        !std::mem::replace(&mut self.is_running, true)
    }

    /// Whether a question is left that nothing asks: no thread was started for it, or it was given up without an answer. The
    /// next redirect leads to it, also one that is no news.
    pub(crate) fn is_left(&self) -> bool {
        !self.is_running && (self.is_due || self.failed >= MOST)
    }

    /// The pause before the thread asks next. `None`: the thread ends.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Duration> {
        self.is_running = std::mem::take(&mut self.is_due);
        let at = self.asked.map_or(now, |last| now.max(last + PAUSE));
        self.is_running.then(|| {
            self.asked = Some(at);
            at.saturating_duration_since(now)
        })
    }

    /// Notes whether the question was answered.
    pub(crate) fn answered(&mut self, is_answered: bool) {
        if !is_answered {
            self.failed += 1;
            self.is_due |= self.failed < MOST;
        }
    }

    /// Notes that no thread runs.
    pub(crate) fn deserted(&mut self) {
        self.is_running = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::fixtures::MS;
    use crate::values::clock;

    #[test]
    fn a_slot_that_moves_while_the_maps_are_asked_for_leads_to_another_question_after_a_pause() {
        let (mut refreshes, now) = (Refreshes::default(), clock::instant());
        assert!(refreshes.request());
        assert_eq!(refreshes.next(now), Some(Duration::ZERO));
        // The map of the question under way may be older.
        assert!(!refreshes.request());
        refreshes.answered(true);
        assert_eq!(refreshes.next(now + 30 * MS), Some(70 * MS));
        refreshes.answered(true);
        assert_eq!(refreshes.next(now + 100 * MS), None);
        // The thread has ended: the next one is started, whenever the slot moved.
        assert!(refreshes.request());
        assert_eq!(refreshes.next(now + 150 * MS), Some(50 * MS));
        refreshes.deserted();
        assert!(refreshes.request() && !refreshes.is_left());
        // No thread was started for it.
        refreshes.deserted();
        assert!(refreshes.is_left());
        assert!(refreshes.request() && !refreshes.is_left());
        assert_eq!(refreshes.next(now + 300 * MS), Some(Duration::ZERO));
        refreshes.answered(true);
        assert_eq!(refreshes.next(now + 300 * MS), None);
        assert!(!refreshes.is_left());
    }

    #[test]
    fn a_question_that_is_not_answered_is_asked_ten_times() {
        let (mut refreshes, now) = (Refreshes::default(), clock::instant());
        for _ in 0..2 {
            assert!(refreshes.request());
            let mut asked = 0;
            while refreshes.next(now).is_some() {
                asked += 1;
                refreshes.answered(false);
            }
            assert_eq!(asked, MOST);
            assert!(refreshes.is_left());
        }
    }
}
