//! `redlock run --once-per`: whether COMMAND need not run, and the mark that it has succeeded.

use std::thread;
use std::time::Duration;

use log::info;
use redlock_sync::{Error, KeptLock, Redlock};

use crate::job::Job;
use crate::last::shown;
use crate::metrics::Outcome;
use crate::{End, failed, report};

/// How often it is tried to mark COMMAND as done, and the pause between two tries.
const MARKS: u32 = 5;
const MARK_PAUSE: Duration = Duration::from_millis(200);

/// How this ends if COMMAND need not run: a host has run it within `--once-per`, or that cannot be seen.
pub(crate) fn done_already(
    job: &Job,
    redlock: &Redlock,
    kept: &KeptLock,
) -> Option<(End, Outcome)> {
    job.once_per?;
    let last = match redlock.last_run(job.name.as_encoded_bytes()) {
        Ok(last) => last?,
        Err(error) => return Some((failed(&error), Outcome::Unavailable)),
    };
    info!(
        "\"{}\" is done: {}",
        kept.resource().escape_ascii(),
        shown(&last)
    );
    Some((End::Code(job.conflict), Outcome::Done))
}

/// Marks COMMAND as done. Some tries are made: it has run, whatever the nodes answer.
pub(crate) fn mark_done(kept: &KeptLock, period: Duration, held: Duration) {
    let mut tries = 0;
    while let Err(error) = kept.mark_done(period, held) {
        tries += 1;
        if tries == MARKS || !matches!(error, Error::Unavailable(_)) {
            return report(format_args!(
                "COMMAND has succeeded, and could not be marked as done, so it may run once more: {error}"
            ));
        }
        thread::sleep(MARK_PAUSE);
    }
}
