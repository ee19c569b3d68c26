//! The end of the lock after COMMAND: its release, or the rest of `--at-least`.

use std::cell::Cell;
use std::fmt::Display;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, channel};
use std::thread;
use std::time::{Duration, Instant};

use redlock_sync::command::{close_within, escaped, human, may_pass, wait_released};
use redlock_sync::{Error, KeptLock, Lock, LostReason, NodeErrors, Redlock};
use signal_hook::consts::SIGCHLD;
use signal_hook::low_level::raise;

use crate::checked_arguments::Job;
use crate::child::boot_time;
use crate::signals::asks_to_end;
use crate::tables::shortened;
use crate::{End, LOST, processes, report};

/// Between two tries to extend the lock for `--at-least`.
const PAUSE: Duration = Duration::from_millis(100);
/// The time for nodes that have refused the end of the lock for now, or for want of a right: one that is well again is sent
/// it once more. A script of others may keep one busy for seconds, and users are changed. (Nodes that are away have one try
/// to connect: nothing shows that they will be back, and a dead node does not hold up a script.)
const LONGER: Duration = Duration::from_secs(10);
/// The time for nodes that the end was confirmed without, if they were connected in this run and refuse it or are down.
const REST: Duration = Duration::from_secs(2);
/// Between two looks at signals meanwhile.
const LOOK: Duration = Duration::from_millis(20);
/// The time that the nodes still have when a signal asks us to end.
const LAST: Duration = Duration::from_secs(1);

/// Releases the lock, or leaves it until `--at-least` is over. Returns `end`, unless the lock was lost, or a signal
/// arrives, or is what `asked` us to end already, and the nodes do not answer.
pub(crate) fn give_up(
    (job, redlock): (&Job, &Redlock),
    kept: KeptLock,
    held: Duration,
    end: End,
    (signals, asked): (&Receiver<i32>, Option<i32>),
) -> End {
    let rest = job.at_least.saturating_sub(held);
    let trouble = match rest.is_zero() {
        true => "its release was not confirmed",
        false => "its end could not be set for --at-least",
    };
    let (left, began) = (kept.remaining().max(rest), Instant::now());
    let locked = |trouble: &dyn Display| {
        report_locked(job, left.saturating_sub(began.elapsed()), trouble);
    };
    let (others, name) = (redlock.clone(), job.name.as_encoded_bytes().to_owned());
    let waits = move |failed: &NodeErrors, go_on: &dyn Fn() -> bool| {
        wait_released(&others, (&name, failed), left.min(LONGER), go_on)
    };
    let ended = end_beside(kept, rest, waits, signals, asked);
    let result = match ended {
        Ended::Lock(result) => result,
        Ended::Thread => return end,
        Ended::By(signal) => {
            locked(&format_args!("{trouble} yet"));
            return End::Signal(signal);
        }
    };
    match result {
        Ok(()) => {
            let time = asked.map_or(REST, |_| LAST).min(left);
            close(redlock, time, signals);
            end
        }
        Err(Error::Lost(lost)) => {
            say_lost(Some(lost.reason()));
            End::Code(LOST)
        }
        Err(error) => {
            locked(&format_args!("{trouble}: {error}"));
            end
        }
    }
}

/// Gives nodes that the end was confirmed without this time, until a signal asks us to end.
fn close(redlock: &Redlock, time: Duration, signals: &Receiver<i32>) {
    let (done, closed) = channel();
    let redlock = redlock.clone();
    let closes = move || {
        close_within(&redlock, time);
        let _ = done.send(());
    };
    // Without a thread, the last drop of the client closes it.
    if thread::Builder::new()
        .name("redlock-end".into())
        .spawn(closes)
        .is_err()
    {
        return;
    }
    while let Err(RecvTimeoutError::Timeout) = closed.recv_timeout(LOOK) {
        processes::reap_orphans(&[]);
        if signals.try_iter().any(asks_to_end) {
            return;
        }
    }
}

/// The end that came first while the lock was given up.
enum Ended {
    Lock(Result<(), Error>),
    /// The thread that gives it up, without a result.
    Thread,
    /// We are to end, by this signal, and the nodes have not answered.
    By(i32),
}

fn sleep() -> bool {
    thread::sleep(PAUSE);
    true
}

/// Ends the lock on another thread, while this one looks at signals.
fn end_beside(
    kept: KeptLock,
    rest: Duration,
    waits: impl Fn(&NodeErrors, &dyn Fn() -> bool) -> bool + Clone + Send + 'static,
    signals: &Receiver<i32>,
    asked: Option<i32>,
) -> Ended {
    let (done, result) = channel();
    let (hand_over, handed_over) = channel();
    let waits_there = waits.clone();
    let give_up = move || {
        // Handed over only now: a thread that cannot be started would drop it, which releases it.
        if let Ok(kept) = handed_over.recv() {
            let waits = |failed: &NodeErrors| waits_there(failed, &|| true);
            let _ = done.send(end_lock(kept, rest, waits, sleep));
        }
        // Wakes the thread that waits for signals.
        let _ = raise(SIGCHLD);
    };
    let thread = thread::Builder::new().name("redlock-end".into());
    match thread.spawn(give_up) {
        Ok(_) => {
            let _ = hand_over.send(kept);
            wait_ended(&result, signals, asked)
        }
        Err(_) => end_here(kept, rest, waits, signals, asked),
    }
}

/// Ends the lock on this thread: a signal ends the tries, and soon after it the wait for the nodes.
fn end_here(
    kept: KeptLock,
    rest: Duration,
    waits: impl Fn(&NodeErrors, &dyn Fn() -> bool) -> bool,
    signals: &Receiver<i32>,
    asked: Option<i32>,
) -> Ended {
    let asked = Cell::new(asked.map(|signal| (signal, Instant::now())));
    let look = |pause| {
        processes::reap_orphans(&[]);
        let signal = signals.recv_timeout(pause).ok();
        let signal = signal.filter(|signal| asks_to_end(*signal));
        let new = signal.map(|signal| (signal, Instant::now()));
        asked.set(asked.get().or(new));
        asked.get()
    };
    let in_time = || look(Duration::ZERO).is_none_or(|(_, at)| at.elapsed() < LAST);
    let pause = || look(PAUSE).is_none();
    let result = end_lock(kept, rest, |failed| waits(failed, &in_time), pause);
    let asked = asked.get();
    match asked.filter(|_| matches!(result, Err(Error::Unavailable(_)))) {
        Some((signal, _)) => Ended::By(signal),
        None => Ended::Lock(result),
    }
}

/// Waits for the result, and no longer than a signal permits, which arrives or has `asked` us to end before.
fn wait_ended(
    result: &Receiver<Result<(), Error>>,
    signals: &Receiver<i32>,
    asked: Option<i32>,
) -> Ended {
    let mut asked = asked.map(|signal| (signal, Instant::now()));
    loop {
        match result.try_recv() {
            Ok(result) => return Ended::Lock(result),
            Err(TryRecvError::Empty) => {}
            Err(TryRecvError::Disconnected) => return Ended::Thread,
        }
        processes::reap_orphans(&[]);
        let wait = asked.map_or(LAST, |(_, at)| LAST.saturating_sub(at.elapsed()));
        if let Some((signal, _)) = asked
            && wait.is_zero()
        {
            return Ended::By(signal);
        }
        let signal = signals.recv_timeout(wait).ok();
        let signal = signal.filter(|signal| asks_to_end(*signal));
        asked = asked.or(signal.map(|signal| (signal, Instant::now())));
    }
}

fn report_locked(job: &Job, left: Duration, trouble: &dyn Display) {
    let name = shortened(&escaped(job.name.as_encoded_bytes()));
    report(format_args!(
        "{name} stays locked for up to {}, until its ttl ends: {trouble}",
        human(left)
    ));
}

pub(crate) fn say_lost(why: Option<LostReason>) {
    let why = why.map(|why| format!(": {why}")).unwrap_or_default();
    report(format_args!(
        "the lock was lost before COMMAND had ended{why}"
    ));
}

/// Ends the lock. `waits` waits for nodes that have not confirmed that, and returns whether enough of them have then;
/// `pause` passes the time until another try, and returns whether there is to be one.
fn end_lock(
    kept: KeptLock,
    rest: Duration,
    waits: impl Fn(&NodeErrors) -> bool,
    pause: impl FnMut() -> bool,
) -> Result<(), Error> {
    let confirmed = |ended| match ended {
        // A refusal for good, but for want of a right, does not end by waiting.
        Err(Error::Unavailable(nodes)) if may_pass(&nodes) && waits(&nodes) => Ok(()),
        ended => ended,
    };
    match rest.is_zero() {
        true => confirmed(kept.release()),
        false => leave(kept.stop(), rest, confirmed, pause),
    }
}

/// Leaves the lock to others in `rest`, if that is `confirmed`.
fn leave(
    mut lock: Lock,
    rest: Duration,
    confirmed: impl FnOnce(Result<(), Error>) -> Result<(), Error>,
    mut pause: impl FnMut() -> bool,
) -> Result<(), Error> {
    let until = boot_time().saturating_add(rest);
    loop {
        let rest = until.saturating_sub(boot_time());
        let result = if lock.remaining() >= rest {
            Ok(())
        } else {
            lock.extend(rest)
        };
        match result {
            Err(Error::Unavailable(_)) if lock.remaining() > 2 * PAUSE && pause() => {}
            Err(lost @ Error::Lost(_)) => return Err(lost),
            Err(error) => {
                lock.leak();
                return Err(error);
            }
            Ok(()) => return confirmed(lock.leak_for(rest)),
        }
    }
}
