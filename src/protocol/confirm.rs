//! The thread that confirms releases which no operation waits for.
//!
//! A connection whose other side is gone takes them, and a server that has forgotten the scripts does not carry them
//! out. Mostly the next operation finds out; this is for a program that does nothing more.

use std::time::{Duration, Instant};

use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::next::Next;

/// How long the thread stays after the last release: where locks are dropped again and again, one thread serves them
/// all.
const LINGER: Duration = Duration::from_millis(500);

#[derive(Default)]
pub(crate) struct Confirmation {
    /// When a release was last submitted that no operation waits for.
    released: Option<Instant>,
    is_running: bool,
    /// A node has refused keys beside a lock. Others may do so unread.
    refused: bool,
}

impl Confirmation {
    pub(crate) fn released(&mut self, now: Instant) {
        self.released = Some(now);
    }

    pub(crate) fn companions_refused(&mut self) {
        self.refused = true;
    }

    /// Releases that name such keys are to be confirmed, too.
    pub(crate) fn companions_are_refused(&self) -> bool {
        self.refused
    }

    /// Whether a thread is to be started. `unconfirmed`: there are such releases.
    pub(crate) fn starts(&mut self, unconfirmed: bool) -> bool {
        let starts = unconfirmed && !self.is_running && !mutant(Mutant::NeverConfirm);
        self.is_running |= starts;
        starts
    }

    /// There is no such thread: it could not be started, or a bug has ended it.
    pub(crate) fn ended(&mut self) {
        self.is_running = false;
    }

    /// What the thread should do. `oldest`: when the oldest release was written that is not confirmed. A node that has
    /// not answered within its time, or whose connection is closed, gets a worker, which sends them again.
    pub(crate) fn next(
        &mut self,
        oldest: Option<Instant>,
        node_timeout: Duration,
        closed: bool,
        now: Instant,
    ) -> Next {
        let again = |at: &Instant| Some(*at) > self.released;
        let oldest = oldest.filter(|at| !mutant(Mutant::ConfirmOnce) || !again(at));
        let probe_at = oldest.map(|at| at + node_timeout);
        let until = probe_at.or(self.released.map(|at| at + LINGER));
        match until.filter(|_| !closed) {
            Some(until) if now < until => Next::Wait { until },
            Some(_) if oldest.is_some() => Next::Lead,
            _ => {
                (self.is_running, self.refused) = (mutant(Mutant::ConfirmOneTime), false);
                Next::Finished
            }
        }
    }
}
