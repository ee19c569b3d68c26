//! The thread that confirms releases, and resends commands that were refused for now.
//!
//! A connection whose other side is gone accepts releases; a server that has forgotten the scripts, is busy, loads its
//! data or cannot write to its disk does not carry them out. A release that is waited for ends with a majority, too, and
//! leaves the replies of the other nodes unread. Mostly the next operation reads them; this thread is for a program that
//! does nothing more.

use std::time::{Duration, Instant};

use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::quorum::thread_step::ThreadStep;

/// How long the thread stays after the last release: if locks end again and again, one thread serves them all.
const LINGER: Duration = Duration::from_millis(500);

#[derive(Default)]
pub(crate) struct ReleaseConfirmation {
    /// When a release was last submitted.
    released: Option<Instant>,
    is_running: bool,
}

impl ReleaseConfirmation {
    pub(crate) fn released(&mut self, now: Instant) {
        self.released = Some(now);
    }

    /// Whether a thread must be started. `any`: whether there is something for it to do.
    pub(crate) fn starts(&mut self, any: bool) -> bool {
        let starts = any && !self.is_running && !mutant(Mutant::NeverConfirm);
        self.is_running |= starts;
        starts
    }

    /// Notes that there is no such thread: it could not be started, or a bug has ended it.
    pub(crate) fn ended(&mut self) {
        self.is_running = false;
    }

    /// Returns what the thread should do. `oldest`: when the oldest unconfirmed release was written, and when the
    /// node's time to answer ends. A node that has not answered by then, or whose connection is closed, gets a worker,
    /// which sends the releases again. `retry_at`: when commands that were refused for now are sent again.
    pub(crate) fn next(
        &mut self,
        oldest: Option<(Instant, Instant)>,
        retry_at: Option<Instant>,
        closed: bool,
        now: Instant,
    ) -> ThreadStep {
        let again = |at: Instant| Some(at) > self.released;
        let oldest = oldest.filter(|(at, _)| !mutant(Mutant::ConfirmOnce) || !again(*at));
        let work_at = oldest
            .map(|(_, until)| until)
            .into_iter()
            .chain(retry_at)
            .min();
        let until = work_at.or(self.released.map(|at| at + LINGER));
        match until.filter(|_| !closed) {
            Some(until) if now < until => ThreadStep::Wait { until },
            Some(_) if work_at.is_some() => ThreadStep::TryToLead,
            _ => {
                self.is_running = mutant(Mutant::ConfirmOneTime);
                ThreadStep::Finished
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::clock;

    #[test]
    fn a_node_has_its_time_to_answer_and_the_thread_stays_a_while_after_the_last_release() {
        let now = clock::instant();
        let later = |time: u64| now + Duration::from_millis(time);
        let unconfirmed = Some((later(1), later(51)));
        for (oldest, retry_at, at, expected) in [
            (unconfirmed, None, 2, Some(51)),
            (unconfirmed, Some(20), 2, Some(20)),
            (unconfirmed, Some(60), 2, Some(51)),
            (unconfirmed, None, 50, Some(51)),
            (unconfirmed, None, 51, None),
            (None, None, 2, Some(500)),
            (None, None, 499, Some(500)),
        ] {
            let mut confirmation = ReleaseConfirmation::default();
            confirmation.released(now);
            match confirmation.next(oldest, retry_at.map(later), false, later(at)) {
                ThreadStep::Wait { until } => assert_eq!(Some(until), expected.map(later), "{at}"),
                ThreadStep::TryToLead => assert_eq!(expected, None, "{at}"),
                next => panic!("{at}: {next:?}"),
            }
        }
        let mut confirmation = ReleaseConfirmation::default();
        confirmation.released(now);
        let end = confirmation.next(None, None, false, later(500));
        assert!(matches!(end, ThreadStep::Finished), "{end:?}");
    }
}
