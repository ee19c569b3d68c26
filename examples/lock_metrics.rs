//! Metrics of locks for Prometheus, counted by an observer. To copy: this file and `src/bin/redlock/series.rs`, side by side; they need
//! `redlock-sync` and the standard library. Then `mod lock_metrics; mod series;`.
//!
//! A server serves [`LockMetrics::text`] at `/metrics`, as `text/plain; version=0.0.4`. A batch job that ends before it is fetched calls
//! [`LockMetrics::add_to`] at its end, with a file in the textfile directory of node_exporter.
//!
//! The label `lock` is a *class* of locks, never the resource itself: `shop:account:17` is counted under `shop:account`, and what is in no class
//! of the list under `other`. (The prefix of [`Options`](redlock_sync::Options) is no part of the names that events have.) Each value of a label
//! is a time series that Prometheus keeps; a million accounts would be a million of each. The label `node` is the node's address.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redlock_sync::{Ending, Error, Event, LostReason};

use super::series::{MetricFamily, Series, SeriesKind};

/// From a round trip on one machine to a long wait.
const SECONDS: &[f64] = &[
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0,
    2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 3600.0,
];
const PARTS_OF_TTL: &[f64] = &[0.05, 0.1, 0.2, 0.33, 0.5, 0.6, 0.67, 0.8, 0.9, 1.0];

#[rustfmt::skip]
const FAMILIES: &[MetricFamily] = &[
    ("redlock_build_info", SeriesKind::Gauge, "The version of this program"),
    ("redlock_acquire_duration_seconds", SeriesKind::Histogram(SECONDS), "How long calls that acquire took"),
    ("redlock_acquire_attempts_total", SeriesKind::Counter, "Attempts of calls that acquire"),
    ("redlock_waiting", SeriesKind::Gauge, "Threads that wait for a lock now"),
    ("redlock_hold_duration_seconds", SeriesKind::Histogram(SECONDS), "How long locks were held"),
    ("redlock_held", SeriesKind::Gauge, "Locks held now"),
    ("redlock_lost_total", SeriesKind::Counter, "Locks found lost"),
    ("redlock_extensions_total", SeriesKind::Counter, "Extensions and renewals"),
    ("redlock_extension_slack_ratio", SeriesKind::Histogram(PARTS_OF_TTL), "What was left of the validity when a lock was extended, as a part of the ttl"),
    ("redlock_endings_total", SeriesKind::Counter, "How locks ended"),
    ("redlock_node_up", SeriesKind::Gauge, "Whether a node gives votes"),
    ("redlock_node_outages_total", SeriesKind::Counter, "How often a node gave no votes"),
];

/// The beginning of the names of a class, up to a colon or the end, and the ttl of its locks.
pub type Class = (&'static str, Duration);

/// The counts of an observer.
#[derive(Clone)]
pub struct LockMetrics {
    classes: &'static [Class],
    series: Arc<Mutex<Series>>,
}

impl LockMetrics {
    /// `version`: that of the program, `env!("CARGO_PKG_VERSION")`.
    pub fn new(classes: &'static [Class], version: &str) -> LockMetrics {
        let mut series = Series::new(FAMILIES);
        series.set("redlock_build_info", &[("version", version)], 1.0);
        // An alert sees the first loss only if there was a zero before.
        let names = classes.iter().map(|class| class.0).chain(["other"]);
        for lock in names {
            for reason in ["taken", "deleted", "expired", "hold_limit"] {
                let labels = [("lock", lock), ("reason", reason)];
                series.add("redlock_lost_total", &labels, 0.0);
            }
        }
        LockMetrics {
            classes,
            series: Arc::new(Mutex::new(series)),
        }
    }

    /// Nodes count as up until an event tells otherwise. Their addresses are those of events: host and port.
    pub fn nodes(&self, addresses: &[String]) {
        for address in addresses {
            self.set("redlock_node_up", [("node", address)], 1.0);
        }
    }

    /// For Prometheus, in its text format.
    pub fn text(&self) -> String {
        self.series().text()
    }

    /// Adds all of it to a file, at the end of a batch job: so counts go on from run to run. Jobs that use the same directory do this one after
    /// the other.
    ///
    /// # Errors
    ///
    /// The file cannot be written, or has something else in it.
    pub fn add_to(&self, file: &Path) -> io::Result<()> {
        let directory = file.parent().filter(|path| !path.as_os_str().is_empty());
        // From Rust 1.89. Released when it is closed.
        let directory = File::open(directory.unwrap_or(Path::new(".")))?;
        directory.lock()?;
        self.series().add_to(file)
    }

    /// Counts a thread that waits, which events do not tell: call this before a call that waits, and drop the result when the lock is there.
    pub fn waiting(&self, resource: &[u8]) -> Waiting {
        let lock = self.class(resource).0;
        self.add("redlock_waiting", [("lock", lock)], 1.0);
        Waiting(self.clone(), lock)
    }

    /// To be called by the observer.
    pub fn observe(&self, event: &Event<'_>) {
        match event {
            Event::Acquired {
                resource,
                wait,
                attempts,
                ..
            } => {
                self.acquisition(resource, "acquired", *wait, *attempts);
                let lock = self.class(resource).0;
                self.add("redlock_held", [("lock", lock)], 1.0);
            }
            Event::NotAcquired {
                resource,
                wait,
                attempts,
                error,
                ..
            } => {
                let result = match error {
                    Error::Busy(_) => "busy",
                    Error::TooSlow(_) => "too_slow",
                    Error::Unavailable(_) => "unavailable",
                    Error::Cancelled(_) => "cancelled",
                    _ => "other",
                };
                self.acquisition(resource, result, *wait, *attempts);
            }
            Event::Extended { resource, left, .. } => self.extension(resource, "extended", *left),
            Event::NotExtended { resource, left, .. } => self.extension(resource, "failed", *left),
            Event::Lost {
                resource, reason, ..
            } => self.loss(resource, *reason),
            Event::Ended {
                resource,
                held,
                how,
                ..
            } => self.end(resource, *held, *how),
            Event::NodeAway { error, .. } => {
                let address = error.address();
                self.set("redlock_node_up", [("node", address)], 0.0);
                self.add("redlock_node_outages_total", [("node", address)], 1.0);
            }
            Event::NodeBack { address, .. } => {
                self.set("redlock_node_up", [("node", address)], 1.0);
            }
            _ => {}
        }
    }

    fn acquisition(&self, resource: &[u8], result: &str, wait: Duration, attempts: u32) {
        let lock = ("lock", self.class(resource).0);
        let labels = [lock, ("result", result)];
        let mut series = self.series();
        series.observe(
            "redlock_acquire_duration_seconds",
            &labels,
            wait.as_secs_f64(),
        );
        series.add("redlock_acquire_attempts_total", &[lock], attempts.into());
    }

    fn extension(&self, resource: &[u8], result: &str, left: Duration) {
        let (lock, ttl) = self.class(resource);
        let lock = ("lock", lock);
        let mut series = self.series();
        series.add("redlock_extensions_total", &[lock, ("result", result)], 1.0);
        if let Some(ttl) = ttl {
            let slack = left.as_secs_f64() / ttl.as_secs_f64();
            series.observe("redlock_extension_slack_ratio", &[lock], slack);
        }
    }

    fn loss(&self, resource: &[u8], reason: LostReason) {
        let reason = match reason {
            LostReason::Taken => "taken",
            LostReason::Deleted => "deleted",
            LostReason::Expired => "expired",
            LostReason::HoldLimit => "hold_limit",
            _ => "other",
        };
        let labels = [("lock", self.class(resource).0), ("reason", reason)];
        self.add("redlock_lost_total", labels, 1.0);
    }

    fn end(&self, resource: &[u8], held: Duration, how: Ending) {
        let how = match how {
            Ending::Released => "released",
            Ending::NotConfirmed => "not_confirmed",
            Ending::Dropped => "dropped",
            Ending::Leaked => "leaked",
            Ending::WasLost => "was_lost",
            _ => "other",
        };
        let lock = ("lock", self.class(resource).0);
        let mut series = self.series();
        series.add("redlock_held", &[lock], -1.0);
        series.observe("redlock_hold_duration_seconds", &[lock], held.as_secs_f64());
        series.add("redlock_endings_total", &[lock, ("how", how)], 1.0);
    }

    /// A lock's class, the longest that fits, and the ttl of that if there is one.
    fn class(&self, resource: &[u8]) -> (&'static str, Option<Duration>) {
        let fits = |(class, _): &&Class| {
            let rest = resource.strip_prefix(class.as_bytes());
            rest.is_some_and(|rest| matches!(rest, [] | [b':', ..]))
        };
        let classes = self.classes.iter().filter(fits);
        let class = classes.max_by_key(|class| class.0.len());
        class.map_or(("other", None), |(class, ttl)| (class, Some(*ttl)))
    }

    fn add<const N: usize>(&self, name: &str, labels: [(&str, &str); N], by: f64) {
        self.series().add(name, &labels, by);
    }

    fn set<const N: usize>(&self, name: &str, labels: [(&str, &str); N], value: f64) {
        self.series().set(name, &labels, value);
    }

    fn series(&self) -> MutexGuard<'_, Series> {
        self.series.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One more thread waits for a lock, until this is dropped.
pub struct Waiting(LockMetrics, &'static str);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.add("redlock_waiting", [("lock", self.1)], -1.0);
    }
}
