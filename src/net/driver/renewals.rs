//! The threads of kept locks: one renews them all, one detects when they expire, others notify the program.
//!
//! Whether a lock is valid is decided by its lease and the clock alone, whenever the holder or a thread looks. The
//! threads only make sure that one looks in time.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::errors::error::Error;
use crate::errors::lock_error::LostReason;
use crate::errors::shown::{Shown, Unquoted};
use crate::net::driver::driver::Driver;
use crate::net::driver::observe::{Event, Observer};
use crate::protocol::calls::lease::renewals::Renewed;
use crate::protocol::calls::lease::{self, Lease, Loss};
use crate::protocol::quorum::answer::Answer;
use crate::protocol::quorum::op::Op;
use crate::values::clock::{self, Point};
use crate::values::sync::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
    lock, thread, wait_for,
};
use crate::values::token::jitter;

/// Upper bounds for one batch of renewals, in locks and in bytes of their names, so that a node can process it within
/// its timeout.
const BATCH: usize = 256;
const BATCH_BYTES: usize = 1 << 17;
/// A wait on the monotonic clock does not notice a suspend, so none is longer than this.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_millis(100);

type Callback = Box<dyn FnOnce(LostReason) + Send>;
/// A callback for a lock that is about to expire, and the validity at which it is called.
type Warning = (Duration, Box<dyn FnOnce(Duration) + Send>);
/// Locks, and when each is (or was) due.
type Due = Vec<(Instant, Arc<Renewal>)>;

/// A lease that the holder shares with the threads. Once the holder has ended the renewal, the threads no longer touch
/// it.
pub(crate) struct Renewal {
    id: u64,
    pub(crate) lease: Mutex<Lease>,
    /// Notified when the lock is lost.
    changed: Condvar,
    /// The callbacks for the loss of the lock. (If this mutex and that of the lease are held, this one was locked first.)
    callbacks: Mutex<Vec<Callback>>,
    /// The callbacks before that. (As with `callbacks`.)
    warnings: Mutex<Vec<Warning>>,
    observer: Observer,
    /// The result that the observer has not been notified of.
    result: Mutex<Option<Report>>,
}

/// The validity that was left, and the result of the renewal.
type Report = (Duration, Result<(), Error>);

/// The detector of a loss.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum DetectedBy {
    Holder,
    Thread,
}

impl Renewal {
    pub(crate) fn new(lease: Lease, observer: Observer) -> Renewal {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Renewal {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            lease: Mutex::new(lease),
            changed: Condvar::new(),
            callbacks: Mutex::default(),
            warnings: Mutex::default(),
            observer,
            result: Mutex::default(),
        }
    }

    /// Whether the holder has not ended the renewal.
    pub(crate) fn is_active(&self) -> bool {
        lock(&self.lease).is_kept()
    }

    fn resource(&self) -> Arc<[u8]> {
        lock(&self.lease).key.resource.clone()
    }

    /// For the threads: the lease, if the renewal is active and the lock valid. Reports a loss that this detects.
    fn valid_lease(self: &Arc<Self>, now: Point) -> Option<MutexGuard<'_, Lease>> {
        let mut lease = lock(&self.lease);
        if !lease.is_kept() {
            return None;
        }
        match lease.validity(now) {
            Ok(_) => Some(lease),
            Err(loss) => {
                drop(lease);
                self.report(loss, DetectedBy::Thread);
                None
            }
        }
    }

    /// Notifies the program of a new loss.
    pub(crate) fn report(self: &Arc<Self>, loss: Loss, detected_by: DetectedBy) {
        if !loss.is_new {
            return;
        }
        let reason = loss.reason;
        self.changed.notify_all();
        let callbacks = std::mem::take(&mut *lock(&self.callbacks));
        for callback in callbacks {
            self.call(move || callback(reason));
        }
        let renewal = self.clone();
        let notify = move || {
            renewal.observer.lost(&renewal.lease, reason);
            let (resource, text) = (renewal.resource(), reason.text());
            say!(
                warn,
                lock:% = Unquoted(&resource), reason = text;
                "kept lock {} is lost: {text}", Shown(&resource)
            );
        };
        match detected_by {
            DetectedBy::Holder => notify(),
            // The program's observer and logger may take their time, and this thread works for other locks, too. (If no
            // thread can be started, the loss is not logged.)
            DetectedBy::Thread => {
                let thread = thread::Builder::new().name("redlock-log".into());
                if thread.spawn(notify).is_err() {
                    self.observer.lost(&self.lease, reason);
                }
            }
        }
    }

    /// Calls a callback in a separate thread, so that a slow one delays nothing else.
    fn call(self: &Arc<Self>, callback: impl FnOnce() + Send + 'static) {
        let callback = Arc::new(Mutex::new(Some(callback)));
        let take = {
            let (renewal, callback) = (self.clone(), callback.clone());
            move || {
                let callback = lock(&callback).take();
                // Never after release or stop, however long the thread took to start.
                if let Some(callback) = callback
                    && renewal.is_active()
                {
                    callback();
                }
            }
        };
        let thread = thread::Builder::new().name("redlock-lost".into());
        if thread.spawn(take.clone()).is_err() {
            // No thread can be started: late is better than never.
            let _ = catch_unwind(AssertUnwindSafe(take));
        }
    }

    /// Registers a callback, or calls it at once if the loss has been detected.
    pub(crate) fn on_lost(self: &Arc<Self>, callback: Callback) {
        let mut callbacks = lock(&self.callbacks);
        let lost = lock(&self.lease).lost;
        match lost {
            None => callbacks.push(callback),
            Some(reason) => {
                drop(callbacks);
                self.call(move || callback(reason));
            }
        }
    }

    /// Registers a callback for a lock that is about to expire.
    pub(crate) fn on_expiring(&self, warning: Warning) {
        lock(&self.warnings).push(warning);
    }

    /// Calls the callbacks whose time has come. Returns when to look again: the next one's time, or the end of the
    /// validity.
    fn warn(self: &Arc<Self>, now: Point) -> Instant {
        let mut warnings = lock(&self.warnings);
        let lease = lock(&self.lease);
        let (left, mut next) = (lease.left(now), lease.expires(now));
        let is_due = |(margin, _): &mut Warning| match lease.expiring(*margin, now) {
            None => true,
            Some(at) => {
                next = next.min(at);
                false
            }
        };
        let due: Vec<_> = warnings.extract_if(.., is_due).collect();
        drop(lease);
        drop(warnings);
        for (_, warning) in due {
            self.call(move || warning(left));
        }
        next
    }

    /// Waits until a loss is detected, for at most `time`.
    pub(crate) fn wait(&self, time: Duration) {
        let lease = lock(&self.lease);
        if lease.lost.is_none() {
            drop(wait_for(&self.changed, lease, time));
        }
    }

    /// Notifies the observer of a renewal's result.
    fn notify(&self) {
        let result = lock(&self.result).take();
        let lease = lock(&self.lease);
        // After a loss only the end is reported.
        if let Some((left, result)) = result
            && lease.is_kept()
            && lease.lost.is_none()
        {
            let resource = lease.key.resource.clone();
            drop(lease);
            self.observer
                .notify(|| Event::extension(&resource, left, true, &result));
        }
    }
}

/// The kept locks of one process and its connections.
#[derive(Default)]
pub(crate) struct Renewals {
    renewals: Arc<RenewalSchedule>,
    /// Results of renewals, for the observer.
    events: Arc<RenewalSchedule>,
    expiries: Arc<RenewalSchedule>,
}

impl Renewals {
    /// Renews the lock from now on. `run_all`: carries out extensions, whose locks this driver's nodes have had.
    pub(crate) fn keep(
        &self,
        renewal: &Arc<Renewal>,
        max_hold: Duration,
        driver: &Arc<Driver>,
        run_all: impl Fn(&Driver, Vec<Op>) -> Vec<Answer> + Send + 'static,
    ) -> std::io::Result<()> {
        let due = lock(&renewal.lease).keep(max_hold, jitter, Point::now());
        // The connections close with the last lock, whether this thread runs or not.
        let (driver, events) = (Arc::downgrade(driver), self.events.clone());
        let work = move |due: Due| {
            driver
                .upgrade()
                .map_or_else(Due::new, |driver| renew(&driver, &run_all, &events, due))
        };
        self.renewals
            .add(due, renewal.clone(), "redlock-renewal", work)
    }

    /// Starts the expiry watch: the loss is detected in time even if the holder does not look.
    pub(crate) fn watch(&self, renewal: &Arc<Renewal>) {
        let now = clock::instant();
        let added = self
            .expiries
            .add(now, renewal.clone(), "redlock-watch", watch);
        if let Err(error) = added {
            say!(
                warn,
                lock:% = Unquoted(&renewal.resource());
                "kept lock {}: cannot start the thread that reports its loss: {error}",
                Shown(&renewal.resource())
            );
        }
    }

    /// Ends the renewal and the callbacks, for the holder. From now on the lease is the holder's alone.
    pub(crate) fn end(&self, renewal: &Renewal) {
        if !lock(&renewal.lease).stop_renewal() {
            return;
        }
        for schedule in [&self.renewals, &self.events, &self.expiries] {
            schedule.remove(renewal.id);
        }
        let callbacks = std::mem::take(&mut *lock(&renewal.callbacks));
        let warnings = std::mem::take(&mut *lock(&renewal.warnings));
        // Values that a callback owns may have a destructor that takes its time, or panics: the lock is released all
        // the same.
        for callback in callbacks {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(callback)));
        }
        for warning in warnings {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(warning)));
        }
    }
}

/// Renews the locks that are due. Returns when each is due again.
fn renew(
    driver: &Driver,
    run_all: impl Fn(&Driver, Vec<Op>) -> Vec<Answer>,
    events: &Arc<RenewalSchedule>,
    due: Due,
) -> Due {
    let started = Point::now();
    let (mut next, mut asked, mut ops) = (Due::new(), Vec::new(), Vec::new());
    for (due, renewal) in due {
        let decided = lock(&renewal.lease).due(started);
        match decided {
            lease::renewals::Due::Renew(extension, op) => {
                ops.push(op);
                asked.push((due, renewal, extension));
            }
            lease::renewals::Due::Later(at) => next.push((at, renewal)),
            lease::renewals::Due::Lost(loss) => renewal.report(loss, DetectedBy::Thread),
            lease::renewals::Due::Ended => {}
        }
    }
    let (answers, node_timeout) = (run_all(driver, ops), driver.nodes().timeouts.node);
    let (mut repairs, mut results) = (Vec::new(), Vec::new());
    for ((due, renewal, extension), answer) in asked.into_iter().zip(answers) {
        let now = Point::now();
        let mut lease = lock(&renewal.lease);
        let left = lease.left(now);
        let renewed = lease.renewed((extension, answer), due, node_timeout, jitter, now);
        drop(lease);
        let (again, result) = match renewed {
            Renewed::Yes { next, repair } => {
                repairs.extend(repair.map(|repair| (renewal.clone(), repair)));
                (next, Ok(()))
            }
            Renewed::Unavailable { retry, errors } => (retry, Err(Error::Unavailable(errors))),
            Renewed::Lost(loss) => {
                renewal.report(loss, DetectedBy::Thread);
                continue;
            }
            Renewed::Ended => continue,
        };
        if !renewal.observer.is_none() {
            results.push((renewal.clone(), (left, result)));
        }
        next.push((again, renewal));
    }
    repair_all(driver, repairs);
    for (renewal, result) in results {
        report_later(events, renewal, result);
    }
    next
}

/// Restores locks at nodes that do not hold them. Nothing may come between: once the first repair is submitted, this
/// thread may be made to lead.
fn repair_all(driver: &Driver, repairs: Vec<(Arc<Renewal>, Op)>) {
    let submit = |(renewal, repair): (Arc<Renewal>, Op)| {
        // Ending the renewal waits for this mutex, so the release is sent after the repair.
        let lease = lock(&renewal.lease);
        lease.is_kept().then(|| driver.submit([repair]))
    };
    let repairs: Vec<_> = repairs.into_iter().filter_map(submit).flatten().collect();
    driver.collect(&repairs);
}

/// Checks locks whose validity may have ended, or is about to. Returns when to check those that are still valid.
fn watch(due: Due) -> Due {
    due.into_iter()
        .filter_map(|(_, renewal)| {
            let now = Point::now();
            drop(renewal.valid_lease(now)?);
            Some((renewal.warn(now), renewal))
        })
        .collect()
}

/// Has a separate thread notify the observer of the result of a renewal, since the observer may take its time. At most
/// one result of each lock waits for that: an observer that does not return must not fill the memory.
fn report_later(events: &Arc<RenewalSchedule>, renewal: Arc<Renewal>, result: Report) {
    if lock(&renewal.result).is_some() {
        return;
    }
    *lock(&renewal.result) = Some(result);
    let work = |due: Due| {
        due.iter().for_each(|(_, renewal)| renewal.notify());
        Due::new()
    };
    let added = events.add(clock::instant(), renewal.clone(), "redlock-news", work);
    if added.is_err() {
        // No thread can be started: the next renewal tries again.
        *lock(&renewal.result) = None;
    }
}

/// A timetable, and the thread that works through it while anything is on it.
#[derive(Default)]
struct RenewalSchedule {
    timetable: Mutex<Timetable>,
    changed: Condvar,
}

#[derive(Default)]
struct Timetable {
    times: BTreeSet<(Instant, u64)>,
    entries: BTreeMap<u64, (Instant, Arc<Renewal>)>,
    running: bool,
}

impl Timetable {
    fn insert(&mut self, due: Instant, renewal: Arc<Renewal>) {
        if renewal.is_active() {
            self.remove(renewal.id);
            self.times.insert((due, renewal.id));
            self.entries.insert(renewal.id, (due, renewal));
        }
    }

    fn remove(&mut self, id: u64) -> Option<(Instant, Arc<Renewal>)> {
        let (due, renewal) = self.entries.remove(&id)?;
        self.times.remove(&(due, id));
        Some((due, renewal))
    }

    /// Brings renewals forward after a suspend, or when the wall clock was set forward: the locks end that much earlier
    /// by the monotonic clock, and are due that much earlier.
    fn catch_up(&mut self, before: Point, now: Point) {
        let seen = now.mono.saturating_duration_since(before.mono);
        let unseen = before.elapsed_at(now).saturating_sub(seen);
        if unseen > LONGEST_WAIT {
            self.times.clear();
            for (due, renewal) in std::mem::take(&mut self.entries).into_values() {
                self.insert(due.checked_sub(unseen).unwrap_or(before.mono), renewal);
            }
        }
    }

    /// Takes the locks that are due at `now`, at most one batch.
    fn take_due(&mut self, now: Instant) -> Due {
        let mut batch = Due::new();
        let mut bytes = 0;
        while let Some((due, id)) = self.times.first().copied()
            && due <= now
            && batch.len() < BATCH
            && bytes < BATCH_BYTES
        {
            let Some(entry) = self.remove(id) else {
                break;
            };
            bytes += entry.1.resource().len();
            batch.push(entry);
        }
        batch
    }
}

impl RenewalSchedule {
    fn add(
        self: &Arc<Self>,
        due: Instant,
        renewal: Arc<Renewal>,
        name: &str,
        mut work: impl FnMut(Due) -> Due + Send + 'static,
    ) -> std::io::Result<()> {
        let mut timetable = lock(&self.timetable);
        let id = renewal.id;
        timetable.insert(due, renewal);
        if !timetable.running {
            let schedule = self.clone();
            let thread = thread::Builder::new().name(name.into());
            if let Err(error) = thread.spawn(move || schedule.run(&mut work)) {
                timetable.remove(id);
                return Err(error);
            }
            timetable.running = true;
        }
        drop(timetable);
        self.changed.notify_one();
        Ok(())
    }

    fn remove(&self, id: u64) {
        let mut timetable = lock(&self.timetable);
        timetable.remove(id);
        let empty = timetable.entries.is_empty();
        drop(timetable);
        if empty {
            self.changed.notify_one();
        }
    }

    /// Does the thread's work, until nothing is left to do.
    fn run(&self, work: &mut dyn FnMut(Due) -> Due) {
        let mut timetable = lock(&self.timetable);
        let mut last = Point::now();
        loop {
            let point = Point::now();
            timetable.catch_up(last, point);
            last = point;
            let now = point.mono;
            let Some((first, _)) = timetable.times.first().copied() else {
                timetable.running = false;
                return;
            };
            if first > now {
                timetable = wait_for(&self.changed, timetable, (first - now).min(LONGEST_WAIT));
                continue;
            }
            let due = timetable.take_due(now);
            drop(timetable);
            let next = work(due);
            timetable = lock(&self.timetable);
            for (due, renewal) in next {
                timetable.insert(due, renewal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::commands::script::Key;
    use crate::values::quorum::{Deadline, Ttl};
    use crate::values::token::Token;

    const S: Duration = Duration::from_secs(1);

    fn renewal() -> Arc<Renewal> {
        let key = Key::new(Arc::from(&b"a"[..]), Token::random().unwrap(), None);
        let (now, ttl) = (Point::now(), Ttl::new(60 * S).unwrap());
        let deadline = Deadline::new(now, ttl.validity());
        let mut lease = Lease::new(key, ttl, deadline);
        lease.keep(60 * S, jitter, now);
        Arc::new(Renewal::new(lease, Observer::default()))
    }

    #[test]
    fn what_only_the_wall_clock_has_seen_brings_renewals_forward() {
        let before = Point::now();
        for (wall, due) in [(1, 1), (0, 1), (12, 2), (22, 3), (3600, 3)] {
            let mut timetable = Timetable::default();
            for seconds in [1, 11, 21] {
                timetable.insert(before.mono + seconds * S, renewal());
            }
            let now = Point {
                mono: before.mono + S,
                wall: before.wall + wall * S,
            };
            timetable.catch_up(before, now);
            assert_eq!(timetable.take_due(now.mono).len(), due, "{wall} s");
        }
    }
}
