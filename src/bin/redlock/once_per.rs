//! `redlock run`: what is asked before COMMAND starts, and the mark of `--once-per` that it has succeeded.

use std::cell::Cell;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use log::info;
use redlock_sync::command::{PATIENCE, last_run, mark_patiently, may_pass_soon, patiently};
use redlock_sync::{Error, KeptLock, Redlock};

use crate::acquire::while_waiting;
use crate::checked_arguments::Job;
use crate::last::shown;
use crate::metrics::RunOutcome;
use crate::signals::asks_to_end;
use crate::{End, failed, no_token, processes, report};

/// The token for `--fence`, before COMMAND starts. `Err`: how this ends without COMMAND, since a host has run it within
/// `--once-per`, or too few nodes answer.
pub(crate) fn before_start(
    job: &Job,
    redlock: &Redlock,
    kept: &KeptLock,
    signals: &Receiver<i32>,
) -> Result<Option<u64>, (End, RunOutcome)> {
    if job.once_per.is_some() {
        let look = || last_run(redlock, kept);
        if let Some(last) = ask(signals, look, failed)? {
            info!(
                "\"{}\" is done: {}",
                kept.resource().escape_ascii(),
                shown(&last)
            );
            return Err((End::Code(job.conflict), RunOutcome::Done));
        }
    }
    let fence = job
        .fence
        .then(|| ask(signals, || kept.fencing_token(), no_token));
    fence.transpose()
}

/// Asks the nodes, and again while they are away for a moment or refuse for now. A signal ends that.
fn ask<T>(
    signals: &Receiver<i32>,
    question: impl Fn() -> Result<T, Error>,
    end: impl Fn(&Error) -> End,
) -> Result<T, (End, RunOutcome)> {
    let ended_by = Cell::new(None);
    let pause = |pause| {
        let signal = signals.recv_timeout(pause).ok();
        ended_by.set(signal.and_then(while_waiting));
        ended_by.get().is_none()
    };
    let asked = patiently(PATIENCE, (pause, may_pass_soon), |_| question());
    asked.map_err(|error| match ended_by.get() {
        Some(signal) => (End::Signal(signal), RunOutcome::Interrupted),
        None => {
            let end = end(&error);
            (end, RunOutcome::before_start(end))
        }
    })
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
