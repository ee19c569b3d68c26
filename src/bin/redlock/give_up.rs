//! The end of the lock behind COMMAND: its release, or what is left of `--at-least`.

use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use redlock_sync::{Error, KeptLock, Lock};
use signal_hook::consts::SIGCHLD;
use signal_hook::low_level::raise;

use crate::arguments::Job;
use crate::child::boot_time;
use crate::plan::asks_to_end;
use crate::{End, LOST, report};

/// Between two tries to extend the lock for `--at-least`.
const PAUSE: Duration = Duration::from_millis(100);
/// How long the nodes still have when a signal asks us to end.
const LAST: Duration = Duration::from_secs(1);

/// Releases the lock, or leaves it until `--at-least` is over. How we end: as `end` says, unless the lock was lost, or
/// a signal came and the nodes do not answer.
pub(crate) fn give_up(
    job: &Job,
    kept: KeptLock,
    held: Duration,
    end: End,
    signals: &Receiver<i32>,
) -> End {
    let rest = job.at_least.saturating_sub(held);
    let trouble = match rest.is_zero() {
        true => "its release was not confirmed",
        false => "its end could not be set for --at-least",
    };
    let (done, result) = channel();
    let give_up = move || {
        let _ = done.send(match rest.is_zero() {
            true => kept.release(),
            false => leave(kept.stop(), rest),
        });
        // Wakes the thread that waits for signals.
        let _ = raise(SIGCHLD);
    };
    let thread = thread::Builder::new().name("redlock-end".into());
    if let Err(error) = thread.spawn(give_up) {
        report(format_args!("the lock ends with its ttl: {error}"));
        return end;
    }
    let mut asked: Option<(i32, Instant)> = None;
    let result = loop {
        match result.try_recv() {
            Ok(result) => break result,
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return end,
        }
        let wait = asked.map_or(LAST, |(_, at)| LAST.saturating_sub(at.elapsed()));
        if let Some((signal, _)) = asked
            && wait.is_zero()
        {
            report(format_args!("the lock ends with its ttl: {trouble} yet"));
            return End::Signal(signal);
        }
        let signal = signals.recv_timeout(wait).ok();
        let signal = signal.filter(|signal| asks_to_end(*signal));
        asked = asked.or(signal.map(|signal| (signal, Instant::now())));
    };
    match result {
        Ok(()) => end,
        Err(Error::Lost(_)) => {
            say_lost();
            End::Code(LOST)
        }
        Err(error) => {
            report(format_args!(
                "the lock ends with its ttl: {trouble}: {error}"
            ));
            end
        }
    }
}

pub(crate) fn say_lost() {
    report(format_args!("the lock was lost before COMMAND had ended"));
}

/// Leaves the lock to others in `rest`.
fn leave(mut lock: Lock, rest: Duration) -> Result<(), Error> {
    let until = boot_time().saturating_add(rest);
    loop {
        let rest = until.saturating_sub(boot_time());
        let result = if lock.remaining() >= rest {
            Ok(())
        } else {
            lock.extend(rest)
        };
        match result {
            Err(Error::Unavailable(_)) if lock.remaining() > 2 * PAUSE => thread::sleep(PAUSE),
            Err(lost @ Error::Lost(_)) => return Err(lost),
            Err(error) => {
                lock.leak();
                return Err(error);
            }
            Ok(()) => return lock.leak_for(rest),
        }
    }
}
