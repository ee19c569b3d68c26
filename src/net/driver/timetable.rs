//! A timetable of kept locks, and the thread that works through it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::net::driver::renewal::Renewal;
use crate::protocol::calls::lease::unseen_time::UnseenTime;
use crate::values::clock::Point;
use crate::values::sync::{Condvar, Mutex, guarded, lock, start_thread, wait_for};

/// Upper bounds for one batch of renewals, in locks and in bytes of their names, so that a node can process it within
/// its timeout.
const BATCH: usize = 256;
const BATCH_BYTES: usize = 1 << 17;
/// A wait on the monotonic clock does not notice a suspend, so none is longer than this.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_millis(100);

/// Locks, and when each is (or was) due.
pub(crate) type DueRenewals = Vec<(Instant, Arc<Renewal>)>;

/// A timetable, and the thread that works through it while anything is on it.
#[derive(Default)]
pub(super) struct RenewalSchedule {
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

    /// Brings renewals forward by so much (rule R82).
    fn bring_forward(&mut self, unseen: Duration, now: Instant) {
        self.times.clear();
        for (due, renewal) in std::mem::take(&mut self.entries).into_values() {
            self.insert(due.checked_sub(unseen).unwrap_or(now), renewal);
        }
    }

    /// Takes the locks that are due at `now`, at most one batch.
    fn take_due(&mut self, now: Instant) -> DueRenewals {
        let mut batch = DueRenewals::new();
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
    pub(super) fn add(
        self: &Arc<Self>,
        due: Instant,
        renewal: Arc<Renewal>,
        name: &str,
        mut work: impl FnMut(DueRenewals) -> DueRenewals + Send + 'static,
    ) -> std::io::Result<()> {
        let mut timetable = lock(&self.timetable);
        let id = renewal.id;
        timetable.insert(due, renewal);
        if !timetable.running {
            let schedule = self.clone();
            if let Err(error) = start_thread(name, move || schedule.run(&mut work)) {
                timetable.remove(id);
                return Err(error);
            }
            timetable.running = true;
        }
        drop(timetable);
        self.changed.notify_one();
        Ok(())
    }

    pub(super) fn remove(&self, id: u64) {
        let mut timetable = lock(&self.timetable);
        timetable.remove(id);
        let empty = timetable.entries.is_empty();
        drop(timetable);
        if empty {
            self.changed.notify_one();
        }
    }

    /// Does the thread's work, until nothing is left to do.
    fn run(&self, work: &mut dyn FnMut(DueRenewals) -> DueRenewals) {
        let mut timetable = lock(&self.timetable);
        let mut clocks = UnseenTime::new(LONGEST_WAIT, Point::now());
        loop {
            let point = Point::now();
            let now = point.mono;
            if let Some(unseen) = clocks.look(point) {
                timetable.bring_forward(unseen, now);
            }
            let Some((first, _)) = timetable.times.first().copied() else {
                timetable.running = false;
                return;
            };
            if first > now {
                let until = first.min(clocks.looks_at());
                timetable = wait_for(&self.changed, timetable, until - now);
                continue;
            }
            let due = timetable.take_due(now);
            drop(timetable);
            let again = || due.iter().map(|(_, one)| (now + LONGEST_WAIT, one.clone()));
            // Otherwise no lock of the process would be renewed from then on.
            let next = guarded(|| work(due.clone())).unwrap_or_else(|| again().collect());
            timetable = lock(&self.timetable);
            for (due, renewal) in next {
                // Another thread may have asked for an earlier look meanwhile.
                let other = timetable.entries.get(&renewal.id).map(|entry| entry.0);
                timetable.insert(other.map_or(due, |other| other.min(due)), renewal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;
    use crate::net::driver::observe::Observer;
    use crate::protocol::calls::lease::Lease;
    use crate::protocol::commands::action::Key;
    use crate::values::arithmetic::{Deadline, Ttl};
    use crate::values::clock;
    use crate::values::token::{Token, jitter};

    const S: Duration = Duration::from_secs(1);

    fn renewal() -> Arc<Renewal> {
        let key = Key::new(Arc::from(&b"a"[..]), Token::random().unwrap(), None);
        let (now, ttl) = (Point::now(), Ttl::new(60 * S).unwrap());
        let deadline = Deadline::new(now, ttl.validity());
        let mut lease = Lease::new(key, ttl, deadline);
        lease.keep(60 * S, jitter, now);
        Arc::new(Renewal::new(lease, Observer::default()))
    }

    /// Work that panics each time is tried again, for all locks.
    #[test]
    fn a_panic_ends_no_renewal() {
        let schedule = Arc::new(RenewalSchedule::default());
        let (sender, receiver) = channel();
        let work = move |due: DueRenewals| {
            let rounds = sender.send(due.len()).map(|()| due).unwrap();
            assert!(rounds.is_empty(), "as the test wants");
            rounds
        };
        let kept = [renewal(), renewal()];
        for renewal in &kept {
            let now = clock::instant();
            let added = schedule.add(now, renewal.clone(), "renews", work.clone());
            added.unwrap();
        }
        let mut renewed = 0;
        while renewed < 6 {
            renewed += receiver.recv_timeout(60 * S).expect("they are due again");
        }
        let ended = || !lock(&schedule.timetable).running;
        let until = clock::instant() + 60 * S;
        while !ended() {
            // Those that are being renewed come back.
            kept.iter().for_each(|one| schedule.remove(one.id));
            assert!(clock::instant() < until, "the thread ends");
            std::thread::yield_now();
        }
    }

    /// Such as a function that is to be called before the lock ends.
    #[test]
    fn what_is_asked_for_while_a_lock_is_looked_at_is_not_forgotten() {
        let schedule = Arc::new(RenewalSchedule::default());
        let (sender, receiver) = channel();
        let (kept, inner) = (renewal(), schedule.clone());
        let work = move |due: DueRenewals| {
            let mut next = Vec::new();
            // With nothing to come back the thread ends.
            if sender.send(()).is_err() {
                return next;
            }
            for (_, renewal) in due {
                inner.insert_for_tests(clock::instant(), renewal.clone());
                next.push((clock::instant() + 3600 * S, renewal));
            }
            next
        };
        let now = clock::instant();
        schedule.add(now, kept.clone(), "renews", work).unwrap();
        for _ in 0..3 {
            receiver
                .recv_timeout(60 * S)
                .expect("it is looked at again");
        }
    }

    impl RenewalSchedule {
        fn insert_for_tests(&self, due: Instant, renewal: Arc<Renewal>) {
            lock(&self.timetable).insert(due, renewal);
        }
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
            let unseen = UnseenTime::new(LONGEST_WAIT, before).look(now);
            let now = now.mono;
            unseen
                .into_iter()
                .for_each(|unseen| timetable.bring_forward(unseen, now));
            assert_eq!(timetable.take_due(now).len(), due, "{wall} s");
        }
    }
}
