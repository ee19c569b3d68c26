//! `redlock run --metrics-file`: how runs ended, and their times, for Prometheus.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};

use crate::series::{MetricFamily, Series, SeriesKind};
use crate::{End, UNAVAILABLE, report};

/// From no wait to a night.
const SECONDS: &[f64] = &[0.1, 1.0, 10.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 43200.0];

const FAMILIES: &[MetricFamily] = &[
    (
        "redlock_runs_total",
        SeriesKind::Counter,
        "Runs of redlock run, by how they ended",
    ),
    (
        "redlock_run_wait_seconds",
        SeriesKind::Histogram(SECONDS),
        "How long runs had waited when COMMAND began",
    ),
    (
        "redlock_run_hold_seconds",
        SeriesKind::Histogram(SECONDS),
        "How long runs had the lock until COMMAND had ended",
    ),
    (
        "redlock_run_last_success_timestamp_seconds",
        SeriesKind::Gauge,
        "When COMMAND last ended with 0, on this host",
    ),
];

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunOutcome {
    Succeeded,
    /// COMMAND had another exit code, or was ended by a signal.
    Failed,
    Busy,
    /// A host has succeeded within `--once-per`.
    Done,
    Unavailable,
    Lost,
    /// `--max-hold` was used up.
    MaxHold,
    /// A signal ended the wait.
    Interrupted,
    /// Something in the settings or the system kept COMMAND from its start.
    NotStarted,
}

impl RunOutcome {
    const ALL: [(RunOutcome, &'static str); 9] = [
        (RunOutcome::Succeeded, "succeeded"),
        (RunOutcome::Failed, "failed"),
        (RunOutcome::Busy, "busy"),
        (RunOutcome::Done, "done"),
        (RunOutcome::Unavailable, "unavailable"),
        (RunOutcome::Lost, "lost"),
        (RunOutcome::MaxHold, "max_hold"),
        (RunOutcome::Interrupted, "interrupted"),
        (RunOutcome::NotStarted, "not_started"),
    ];

    /// The outcome of a run that ended before COMMAND's start, and not because of another holder.
    pub(crate) fn before_start(end: End) -> RunOutcome {
        match end {
            End::Code(UNAVAILABLE) => RunOutcome::Unavailable,
            End::Code(_) => RunOutcome::NotStarted,
            End::Signal(_) => RunOutcome::Interrupted,
        }
    }
}

/// A run that is counted at its end.
pub(crate) struct CountedRun {
    begun: Instant,
    /// How long COMMAND waited for the lock, and how long it had it.
    times: Option<(Duration, Duration)>,
}

impl CountedRun {
    pub(crate) fn begin() -> CountedRun {
        CountedRun {
            begun: Instant::now(),
            times: None,
        }
    }

    pub(crate) fn command_begins(&mut self) {
        self.times = Some((self.begun.elapsed(), Duration::ZERO));
    }

    pub(crate) fn command_ended(&mut self, held: Duration) {
        if let Some((_, hold)) = &mut self.times {
            *hold = held;
        }
    }

    /// Adds the run to the file. If that fails, the run is not counted, and its exit code is what it is without the file.
    pub(crate) fn count(&self, path: &Path, name: &OsStr, outcome: RunOutcome) {
        if let Err(error) = update(path, &self.series(name, outcome)) {
            let path = path.display();
            report(format_args!(
                "this run is not counted in --metrics-file {path}: {error}"
            ));
        }
    }

    fn series(&self, name: &OsStr, outcome: RunOutcome) -> Series {
        let name = match name.to_str() {
            Some(name) => name.to_owned(),
            None => name.as_encoded_bytes().escape_ascii().to_string(),
        };
        let name = ("name", &*name);
        let mut series = Series::new(FAMILIES);
        for (one, label) in RunOutcome::ALL {
            let count = f64::from(u8::from(one == outcome));
            series.add("redlock_runs_total", &[name, ("result", label)], count);
        }
        if let Some((wait, hold)) = self.times
            && outcome != RunOutcome::NotStarted
        {
            series.observe("redlock_run_wait_seconds", &[name], wait.as_secs_f64());
            series.observe("redlock_run_hold_seconds", &[name], hold.as_secs_f64());
        }
        if outcome == RunOutcome::Succeeded
            && let Ok(now) = SystemTime::now().duration_since(UNIX_EPOCH)
        {
            let last = "redlock_run_last_success_timestamp_seconds";
            series.set(last, &[name], now.as_secs_f64());
        }
        series
    }
}

/// How long another process may take to write its file into the directory.
const WITHIN: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(5);

/// The directory is locked meanwhile: the file is replaced, so a lock on it would be one on an old file.
fn update(path: &Path, series: &Series) -> io::Result<()> {
    // A link stays, and the file that it leads to is replaced; a device or a pipe is none.
    let target = match fs::metadata(path) {
        Ok(found) if found.is_file() => fs::canonicalize(path)?,
        Ok(_) => return Err(io::Error::other("it is no regular file")),
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.is_symlink() => path.into(),
        Err(error) => return Err(error),
    };
    let path = &*target;
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut directory = File::open(directory)?;
    let until = Instant::now() + WITHIN;
    let _locked = loop {
        match Flock::lock(directory, FlockArg::LockExclusiveNonblock) {
            Ok(locked) => break locked,
            Err((back, Errno::EWOULDBLOCK)) if Instant::now() < until => directory = back,
            Err((_, Errno::EWOULDBLOCK)) => {
                return Err(io::Error::other("another process has locked its directory"));
            }
            Err((_, error)) => return Err(error.into()),
        }
        thread::sleep(PAUSE);
    };
    series.add_to(path)
}
