//! `redlock run --once-per`: whether COMMAND need not run, and the mark that it has succeeded.

use std::cell::Cell;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use log::info;
use redlock_sync::command::mark_patiently;
use redlock_sync::{KeptLock, Redlock};

use crate::job::Job;
use crate::last::shown;
use crate::metrics::RunOutcome;
use crate::signals::asks_to_end;
use crate::{End, failed, processes, report};

/// How this ends if COMMAND need not run: a host has run it within `--once-per`, or that cannot be seen.
pub(crate) fn done_already(
    job: &Job,
    redlock: &Redlock,
    kept: &KeptLock,
) -> Option<(End, RunOutcome)> {
    job.once_per?;
    let last = match redlock.last_run(job.name.as_encoded_bytes()) {
        Ok(last) => last?,
        Err(error) => {
            let end = failed(&error);
            return Some((end, RunOutcome::before_start(end)));
        }
    };
    info!(
        "\"{}\" is done: {}",
        kept.resource().escape_ascii(),
        shown(&last)
    );
    Some((End::Code(job.conflict), RunOutcome::Done))
}

/// Marks COMMAND as done, and tries that as long as the library does: COMMAND has run. A signal that asks us to end ends
/// the tries, and is returned.
pub(crate) fn mark_done(
    kept: &KeptLock,
    period: Duration,
    held: Duration,
    signals: &Receiver<i32>,
) -> Option<i32> {
    let asked = Cell::new(None);
    let pause = |pause| {
        processes::reap_orphans(&[]);
        let signal = signals.recv_timeout(pause).ok();
        asked.set(signal.filter(|signal| asks_to_end(*signal)));
        asked.get().is_none()
    };
    if let Err(error) = mark_patiently(kept, period, held, pause) {
        report(format_args!(
            "COMMAND has succeeded, and could not be marked as done, so it may run once more: {error}"
        ));
    }
    asked.get()
}
