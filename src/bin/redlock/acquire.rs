//! The wait for the lock, and the signals that end it.

use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use log::info;
use nix::sys::signal::{Signal, raise};
use redlock_sync::command::human;
use redlock_sync::{Error, Lock, Options, Redlock};
use signal_hook::consts::{SIGCHLD, SIGTSTP};
use signal_hook::iterator::{Handle, Signals};

use crate::busy::{say_busy, say_waiting};
use crate::checked_arguments::Job;
use crate::metrics::RunOutcome;
use crate::run_plan::Continuer;
use crate::signals::{ends_the_wait, handled};
use crate::target::{Target, TargetKind};
use crate::{End, failed, processes, report};

/// How long one wait for the lock is, so that an outage is reported while it lasts.
const SLICE: Duration = Duration::from_secs(10);

/// A wait that is shorter is not reported.
const UNSEEN: Duration = Duration::from_millis(200);

/// Adds signals to those that are handled.
pub(crate) struct Handlers {
    handle: Handle,
    ignored: u64,
}

impl Handlers {
    /// Also handles these, but for those that were ignored from the start.
    pub(crate) fn add(&self, signals: &[i32]) {
        for signal in signals {
            if !is_in(self.ignored, *signal) {
                let _ = self.handle.add_signal(*signal);
            }
        }
    }
}

fn is_in(mask: u64, signal: i32) -> bool {
    mask & (1 << (signal - 1)) != 0
}

/// The handled signals, in the order of their arrival. A signal that was ignored from the start (nohup) stays ignored.
pub(crate) fn signals() -> io::Result<(Receiver<i32>, Handlers)> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let ignored = ignored.ok_or_else(|| io::Error::other("no SigIgn in /proc/self/status"))?;
    // If SIGCHLD were ignored, the kernel would keep no process's exit status.
    let handled = handled().filter(|signal| !is_in(ignored, *signal));
    let mut signals = Signals::new(handled.chain([SIGCHLD]))?;
    let handle = signals.handle();
    let (sender, receiver) = channel();
    let forward = move || {
        for signal in signals.forever() {
            if sender.send(signal).is_err() {
                return;
            }
        }
    };
    let thread = thread::Builder::new().name("redlock-signals".into());
    thread.spawn(forward)?;
    Ok((receiver, Handlers { handle, ignored }))
}

/// Waits for the lock until `end`; `None`: for ever.
pub(crate) fn acquire(
    job: &Job,
    redlock: &Redlock,
    options: &Options,
    signals: &Receiver<i32>,
    end: Option<Instant>,
) -> Result<Lock, (End, RunOutcome)> {
    let slice = slice(job);
    let options = options.clone().fair(job.fair);
    let redlock = redlock.clone().with_options(options);
    let target = redlock.and_then(|redlock| Target::new(redlock, &job.name, &job.kind));
    let target = target.map_err(|error| no_lock(&error))?;
    let mut ended_by = None;
    let mut outage = Outage::new();
    let mut wait = Wait::begin(job);
    loop {
        let left = match end {
            Some(end) => end.saturating_duration_since(Instant::now()),
            None => Duration::MAX,
        };
        let keep_trying = || {
            processes::reap_orphans(&[]);
            ended_by = ended_by.or_else(|| signals.try_iter().find_map(while_waiting));
            wait.look(&target);
            if slice > SLICE {
                outage.look(target.redlock());
            }
            ended_by.is_none()
        };
        let result = target.acquire_within(job.ttl, left.min(slice), keep_trying);
        ended_by = ended_by.or_else(|| signals.try_iter().find_map(while_waiting));
        if let Some(signal) = ended_by {
            return Err((End::Signal(signal), RunOutcome::Interrupted));
        }
        let error = match result {
            Ok(lock) => {
                wait.end();
                return Ok(lock);
            }
            Err(error) => error,
        };
        match error {
            // Waiting is useless: a wrong password, say.
            Error::Unavailable(ref nodes) if nodes.is_permanent() => return Err(no_lock(&error)),
            Error::Busy(_) if left <= slice => {
                say_busy(&target);
                return Err((End::Code(job.conflict), RunOutcome::Busy));
            }
            Error::Busy(_) => outage.is_known = false,
            Error::Unavailable(_) | Error::TooSlow(_) if left > slice => outage.note(&error),
            error => return Err(no_lock(&error)),
        }
    }
}

fn no_lock(error: &Error) -> (End, RunOutcome) {
    let end = failed(error);
    (end, RunOutcome::before_start(end))
}

/// The lines about the wait.
struct Wait<'a> {
    name: &'a [u8],
    begun: Instant,
    is_reported: bool,
}

impl<'a> Wait<'a> {
    fn begin(job: &'a Job) -> Wait<'a> {
        let name = job.name.as_encoded_bytes();
        info!("asking for \"{}\"", name.escape_ascii());
        Wait {
            name,
            begun: Instant::now(),
            is_reported: false,
        }
    }

    fn look(&mut self, target: &Target<'_>) {
        if !self.is_reported && self.begun.elapsed() > UNSEEN {
            self.is_reported = true;
            say_waiting(target);
        }
    }

    fn end(&self) {
        let (name, took) = (self.name.escape_ascii(), human(self.begun.elapsed()));
        match self.is_reported {
            true => info!("got \"{name}\" after {took}"),
            false => info!("got \"{name}\""),
        }
    }
}

/// Whether the nodes can be reached during the wait. An outage is reported once.
struct Outage {
    is_known: bool,
    next_look: Instant,
}

impl Outage {
    fn new() -> Outage {
        Outage {
            is_known: false,
            next_look: Instant::now() + SLICE,
        }
    }

    fn note(&mut self, error: &Error) {
        if !self.is_known {
            report(format_args!("{error}; waiting goes on"));
        }
        self.is_known = true;
    }

    /// Looks at the nodes: if the wait is one slice, nothing else reports an outage.
    fn look(&mut self, redlock: &Redlock) {
        if Instant::now() < self.next_look {
            return;
        }
        match redlock.connect() {
            Ok(_) => self.is_known = false,
            Err(error) => self.note(&error),
        }
        self.next_look = Instant::now() + SLICE;
    }
}

/// How long one wait is. A new wait would be the last in the queue, without credit for the time waited before.
fn slice(job: &Job) -> Duration {
    match job.kind {
        TargetKind::Plain if !job.fair => SLICE,
        _ => Duration::MAX,
    }
}

/// Whether a signal that arrived during the wait ends it.
pub(crate) fn while_waiting(signal: i32) -> Option<i32> {
    if signal == SIGTSTP && processes::continuer() != Continuer::None {
        let _ = raise(Signal::SIGSTOP);
    }
    ends_the_wait(signal).then_some(signal)
}
