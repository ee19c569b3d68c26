//! The threads of kept locks: one renews them all, one detects when they expire, others notify the program.
//!
//! Whether a lock is valid is decided by its lease and the clock alone, whenever the holder or a thread looks. The
//! threads only make sure that one looks in time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::errors::error::Error;
use crate::errors::shown::{Shown, Unquoted};
use crate::net::driver::driver::Driver;
use crate::net::driver::leadership::Caller;
use crate::net::driver::renewal::{DetectedBy, Renewal, RenewalReport};
use crate::net::driver::timetable::{DueRenewals, RenewalSchedule};
use crate::protocol::calls::lease::renewals::Renewed;
use crate::protocol::calls::lease::{self, Lease};
use crate::protocol::quorum::answer::Answer;
use crate::protocol::quorum::op::Op;
use crate::values::clock::{self, Point};
use crate::values::sync::{MutexGuard, atomic::Ordering::Relaxed, lock};
use crate::values::token::jitter;

/// How soon the expiry watch of a lock is started again, where no renewal is due before.
const WATCH_AGAIN: Duration = Duration::from_millis(500);

/// The kept locks of one process and its connections.
#[derive(Clone, Default)]
pub(crate) struct Renewals {
    renewals: Arc<RenewalSchedule>,
    /// Results of renewals, for the observer.
    events: Arc<RenewalSchedule>,
    expiries: Arc<RenewalSchedule>,
}

impl Renewals {
    /// Renews the lock from now on. `send`: has each round renewed, whose locks were acquired over this driver.
    pub(crate) fn keep(
        &self,
        renewal: &Arc<Renewal>,
        max_hold: Duration,
        driver: &Arc<Driver>,
        send: impl Fn(&Driver, Round) -> DueRenewals + Send + 'static,
    ) -> std::io::Result<()> {
        let due = lock(&renewal.lease).keep(max_hold, jitter, Point::now());
        // The connections close with the last lock, whether this thread runs or not.
        let (driver, schedules) = (Arc::downgrade(driver), self.clone());
        let work = move |due: DueRenewals| {
            let schedules = schedules.clone();
            let round = Round { due, schedules };
            driver
                .upgrade()
                .map_or_else(DueRenewals::new, |driver| send(&driver, round))
        };
        self.renewals
            .add(due, renewal.clone(), "redlock-renewal", work)
    }

    /// Starts the expiry watch: the loss is detected in time even if the holder does not look. Where no thread can be
    /// started, the thread that renews the lock tries again.
    pub(crate) fn watch(&self, renewal: &Arc<Renewal>) {
        if let Err(error) = self.start_watch(renewal) {
            say!(
                warn,
                lock:% = Unquoted(&renewal.resource());
                "kept lock {}: cannot start the thread that reports its loss: {error}",
                Shown(&renewal.resource())
            );
        }
    }

    fn start_watch(&self, renewal: &Arc<Renewal>) -> std::io::Result<()> {
        let now = clock::instant();
        let added = self
            .expiries
            .add(now, renewal.clone(), "redlock-watch", watch);
        renewal.is_unwatched.store(added.is_err(), Relaxed);
        added
    }

    /// Starts the expiry watch of a lock for which that has failed. If it fails again, the caller is the watch for this
    /// moment: returns when to look again.
    fn watch_again(&self, renewal: &Arc<Renewal>) -> Option<Instant> {
        if !renewal.is_unwatched.load(Relaxed) || self.start_watch(renewal).is_ok() {
            return None;
        }
        let now = Point::now();
        drop(renewal.valid_lease(now)?);
        Some(renewal.warn(now).min(now.mono + WATCH_AGAIN))
    }

    /// Ends the renewal and the callbacks, for the holder. From now on the lease is the holder's alone.
    pub(crate) fn end(&self, renewal: &Renewal) {
        if !lock(&renewal.lease).stop_renewal() {
            return;
        }
        for schedule in [&self.renewals, &self.events, &self.expiries] {
            schedule.remove(renewal.id);
        }
        renewal.forget_callbacks();
    }
}

/// The lease of the lock with this place among those that are renewed, unless its holder has ended the renewal: that waits
/// for this mutex, so that what ends the lock is sent behind all that is submitted under it.
pub(crate) type StillKept<'a> = dyn Fn(usize) -> Option<MutexGuard<'a, Lease>> + 'a;

/// Locks whose renewals are due, and are sent together.
pub(crate) struct Round {
    due: DueRenewals,
    /// For the results of renewals, and for expiry watches that could not be started.
    schedules: Renewals,
}

impl Round {
    /// A round for each lane. `lane`: the one of a resource. `None`: the lane over which it was acquired.
    pub(crate) fn by<L>(
        self,
        lane: impl Fn(&[u8]) -> Option<Arc<L>>,
    ) -> Vec<(Option<Arc<L>>, Round)> {
        let mut rounds: Vec<(Option<Arc<L>>, Round)> = Vec::new();
        let at = |lane: &Option<Arc<L>>| lane.as_ref().map(Arc::as_ptr);
        for one in self.due {
            let own = lane(&one.1.resource());
            match rounds.iter_mut().find(|(other, _)| at(other) == at(&own)) {
                Some((_, round)) => round.due.push(one),
                None => {
                    let (due, schedules) = (vec![one], self.schedules.clone());
                    rounds.push((own, Round { due, schedules }));
                }
            }
        }
        rounds
    }

    /// Renews the locks over these connections. `run_all`: carries out the extensions, and asks for each, whenever it is
    /// sent, whether it still is to be. `refills`: is told of each operation that sets a lock again, before it is sent.
    /// Returns when each lock is due again.
    pub(crate) fn renew(
        self,
        driver: &Driver,
        run_all: impl Fn(Vec<Op>, &StillKept<'_>) -> Vec<Answer>,
        refills: impl Fn(&Op),
    ) -> DueRenewals {
        let repair_all = |repairs| repair_all(driver, repairs, refills);
        renew(driver, (run_all, repair_all), &self.schedules, self.due)
    }
}

/// Renews the locks that are due. Returns when each is due again.
fn renew(
    driver: &Driver,
    (run_all, repair_all): (
        impl Fn(Vec<Op>, &StillKept<'_>) -> Vec<Answer>,
        impl FnOnce(Vec<(Arc<Renewal>, Op)>),
    ),
    schedules: &Renewals,
    due: DueRenewals,
) -> DueRenewals {
    let started = Point::now();
    let (mut next, mut asked, mut ops) = (DueRenewals::new(), Vec::new(), Vec::new());
    for (due, renewal) in due {
        let look = schedules.watch_again(&renewal);
        match renewal.due(started) {
            lease::renewals::Due::Renew(extension, op) => {
                ops.push(op);
                asked.push((due, renewal, (extension, look)));
            }
            lease::renewals::Due::Later(at) => next.push((sooner(at, look), renewal)),
            lease::renewals::Due::Lost(loss) => renewal.report(loss, DetectedBy::Thread),
            lease::renewals::Due::Ended => {}
        }
    }
    let kept = |at: usize| asked.get(at)?.1.kept();
    let (answers, node_timeout) = (run_all(ops, &kept), driver.executor().timeouts.node);
    let (mut repairs, mut results) = (Vec::new(), Vec::new());
    for ((due, renewal, (extension, look)), answer) in asked.into_iter().zip(answers) {
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
        *lock(&renewal.next_renewal) = look.map(|_| again);
        next.push((sooner(again, look), renewal));
    }
    repair_all(repairs);
    for (renewal, result) in results {
        report_later(&schedules.events, renewal, result);
    }
    next
}

fn sooner(at: Instant, look: Option<Instant>) -> Instant {
    look.map_or(at, |look| look.min(at))
}

/// Restores locks at nodes that do not hold them.
fn repair_all(driver: &Driver, repairs: Vec<(Arc<Renewal>, Op)>, refills: impl Fn(&Op)) {
    let (renewals, repairs): (Vec<Arc<Renewal>>, Vec<Op>) = repairs.into_iter().unzip();
    repairs.iter().for_each(refills);
    run_kept(driver, repairs, &|at| renewals.get(at)?.kept());
}

/// Carries out operations of locks that are kept alive. One whose lock's holder has ended that is not sent.
pub(crate) fn run_kept(
    driver: &Driver,
    ops: impl IntoIterator<Item = Op>,
    kept: &StillKept<'_>,
) -> Vec<Answer> {
    let submit = |(at, op)| {
        let _lease = kept(at)?;
        driver.submit([op]).pop()
    };
    // Nothing may come between: once the first one is submitted, this thread may be made to lead.
    let sent: Vec<Option<Arc<Caller>>> = ops.into_iter().enumerate().map(submit).collect();
    let callers: Vec<Arc<Caller>> = sent.iter().flatten().cloned().collect();
    let mut answers = driver.collect(&callers).into_iter();
    sent.into_iter()
        .map(|caller| caller.and_then(|_| answers.next()))
        .map(|answer| answer.unwrap_or_else(|| Answer::none(clock::instant())))
        .collect()
}

/// Checks locks whose validity may have ended, or is about to. Returns when to check those that are still valid.
fn watch(due: DueRenewals) -> DueRenewals {
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
fn report_later(events: &Arc<RenewalSchedule>, renewal: Arc<Renewal>, result: RenewalReport) {
    if lock(&renewal.result).is_some() {
        return;
    }
    *lock(&renewal.result) = Some(result);
    let work = |due: DueRenewals| {
        due.iter().for_each(|(_, renewal)| renewal.notify());
        DueRenewals::new()
    };
    let added = events.add(clock::instant(), renewal.clone(), "redlock-news", work);
    if added.is_err() {
        // No thread can be started: the next renewal tries again.
        *lock(&renewal.result) = None;
    }
}
