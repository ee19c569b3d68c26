//! The machinery of kept locks: one thread that renews them all, one that notices when they end.
//!
//! What is true of a lock is decided by its own state and the clock alone, by whoever looks: the
//! threads only make sure that somebody does.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use crate::clock::{self, Point};
use crate::error::Error;
use crate::net::lane::Lane;
use crate::observe::{Ending, Event, Observer};
use crate::protocol::attempt::{Extended, Extension, refill};
use crate::protocol::entry::Op;
use crate::protocol::quorum::{Deadline, NodeSet, Ttl};
use crate::protocol::script::Key;
use crate::shown::Shown;
use crate::sync::{lock, wait_for};
use crate::token::jitter;

/// Renewals that go to the nodes together at most, and the bytes of their names: what a node takes
/// in within its time.
const BATCH: usize = 256;
const BATCH_BYTES: usize = 1 << 17;
/// A wait on the monotonic clock does not see a suspend, so none is longer than this.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_millis(100);

/// Why a lock was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LostReason {
    /// So many nodes no longer hold it that no majority is left: another holder has it, or somebody deleted it.
    Taken,
    /// Its validity ended before a majority of the nodes had confirmed a renewal; or, if it was not kept alive,
    /// before it was extended or released.
    Expired,
    /// `max_hold` was used up, so the lock was no longer renewed.
    HoldLimit,
}

impl LostReason {
    fn text(self) -> &'static str {
        match self {
            LostReason::Taken => "another has it, or its key was deleted",
            LostReason::Expired => {
                "its time was over before a majority of the nodes had renewed it"
            }
            LostReason::HoldLimit => "it was held for as long as max_hold permits",
        }
    }
}

type Callback = Box<dyn FnOnce(LostReason) + Send>;
/// Locks, and when each is (or was) due.
type Due = Vec<(Instant, Arc<Kept>)>;

/// A lock that is kept alive, as its holder and the threads share it.
pub(crate) struct Kept {
    id: u64,
    pub(crate) key: Key,
    ttl: Ttl,
    since: Point,
    max_hold: Duration,
    pub(crate) observer: Observer,
    /// Released or stopped: nobody else touches it any more.
    ended: AtomicBool,
    /// What a renewal came to has not been told yet.
    untold: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

/// Whose thread has found out that a lock is lost.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Finder {
    Holder,
    Keeper,
}

struct State {
    deadline: Deadline,
    lost: Option<LostReason>,
    /// No renewal follows.
    hold_over: bool,
    callbacks: Vec<Callback>,
    /// The observer is being told that it is lost.
    telling: bool,
    /// It ended meanwhile, which is told behind that.
    tell_next: Option<(Duration, Ending)>,
}

impl Kept {
    pub(crate) fn new(
        key: Key,
        since: Point,
        max_hold: Duration,
        deadline: Deadline,
        ttl: Ttl,
    ) -> Kept {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Kept {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            key,
            ttl,
            since,
            max_hold,
            observer: Observer::default(),
            ended: AtomicBool::new(false),
            untold: AtomicBool::new(false),
            state: Mutex::new(State {
                deadline,
                lost: None,
                hold_over: false,
                callbacks: Vec::new(),
                telling: false,
                tell_next: None,
            }),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    pub(crate) fn hold_left(&self) -> Duration {
        self.max_hold
            .saturating_sub(self.since.elapsed_at(Point::now()))
    }

    /// What is left of the validity, or why there is none. Finds out, and tells everybody, if it
    /// ended just now.
    pub(crate) fn validity(self: &Arc<Self>) -> Result<Duration, LostReason> {
        self.validity_in(Finder::Holder)
    }

    fn validity_in(self: &Arc<Self>, finder: Finder) -> Result<Duration, LostReason> {
        let state = self.state();
        if let Some(reason) = state.lost {
            return Err(reason);
        }
        let remaining = state.deadline.remaining(Point::now());
        if !remaining.is_zero() {
            return Ok(remaining);
        }
        let reason = if state.hold_over {
            LostReason::HoldLimit
        } else {
            LostReason::Expired
        };
        self.lose(state, reason, finder);
        Err(reason)
    }

    /// The holder has found out that so many nodes no longer hold it that no majority does.
    pub(crate) fn taken(self: &Arc<Self>) {
        if self.validity().is_ok() {
            self.lose(self.state(), LostReason::Taken, Finder::Holder);
        }
    }

    fn lose(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State>,
        reason: LostReason,
        finder: Finder,
    ) {
        // Once it has ended, whoever had it finds out.
        if state.lost.is_some() || self.is_ended() {
            return;
        }
        state.lost = Some(reason);
        state.telling = true;
        let callbacks = std::mem::take(&mut state.callbacks);
        drop(state);
        self.changed.notify_all();
        for callback in callbacks {
            self.call(callback, reason);
        }
        let kept = self.clone();
        let say = move || {
            kept.tell_lost(reason);
            let resource = Shown(&kept.key.resource);
            say!(warn, "kept lock {resource} is lost: {}", reason.text());
        };
        match finder {
            Finder::Holder => say(),
            // Somebody's logger may take its time, and other locks are waiting for this thread. (Without
            // another one it is not logged.)
            Finder::Keeper => {
                let thread = std::thread::Builder::new().name("redlock-log".into());
                if thread.spawn(say).is_err() {
                    self.tell_lost(reason);
                }
            }
        }
    }

    fn tell_renewal(&self, left: Duration, result: &Result<(), Error>) {
        self.untold.store(false, Ordering::Relaxed);
        // Nothing follows a loss but the end.
        if self.is_ended() || self.state().lost.is_some() {
            return;
        }
        let resource = &self.key.resource;
        self.observer
            .tell(|| Event::extension(resource, left, true, result));
    }

    fn tell_lost(&self, reason: LostReason) {
        self.observer.tell(|| Event::Lost {
            resource: &self.key.resource,
            held: self.since.elapsed_at(Point::now()),
            reason,
        });
        let mut state = self.state();
        state.telling = false;
        let next = state.tell_next.take();
        drop(state);
        if let Some((held, how)) = next {
            self.tell_end(held, how);
        }
    }

    /// Tells the observer how a lock ended that was found lost: behind that, and not waiting for it.
    pub(crate) fn tell_end(&self, held: Duration, how: Ending) {
        let mut state = self.state();
        if state.telling {
            state.tell_next = Some((held, how));
            return;
        }
        drop(state);
        self.observer.tell(|| Event::Ended {
            resource: &self.key.resource,
            held,
            how,
        });
    }

    /// Each callback has a thread of its own, so that a slow one delays nobody.
    fn call(self: &Arc<Self>, callback: Callback, reason: LostReason) {
        let callback = Arc::new(Mutex::new(Some(callback)));
        let take = {
            let (kept, callback) = (self.clone(), callback.clone());
            move || {
                let callback = lock(&callback).take();
                // Never after release or stop, however long the thread took to start.
                if let Some(callback) = callback
                    && !kept.is_ended()
                {
                    callback(reason);
                }
            }
        };
        let thread = std::thread::Builder::new().name("redlock-lost".into());
        if thread.spawn(take.clone()).is_err() {
            // No thread to be had: late is better than never.
            let _ = catch_unwind(AssertUnwindSafe(take));
        }
    }

    /// Waits until it is lost; false when `timeout` is over first.
    pub(crate) fn wait_lost(self: &Arc<Self>, timeout: Duration) -> bool {
        let end = clock::instant().checked_add(timeout);
        loop {
            let Ok(remaining) = self.validity() else {
                return true;
            };
            let now = clock::instant();
            let rest = end.map_or(LONGEST_WAIT, |end| end.saturating_duration_since(now));
            if rest.is_zero() {
                return false;
            }
            let state = self.state();
            if state.lost.is_none() {
                let wait = rest.min(remaining).min(LONGEST_WAIT);
                let _ = self.changed.wait_timeout(state, wait);
            }
        }
    }

    /// Registers a callback, unless the lock is lost already; then it is called at once.
    pub(crate) fn on_lost(self: &Arc<Self>, callback: Callback) {
        let mut state = self.state();
        match state.lost {
            None => {
                state.callbacks.push(callback);
                drop(state);
                let _ = self.validity();
            }
            Some(reason) => {
                drop(state);
                self.call(callback, reason);
            }
        }
    }

    fn end(&self) -> (Deadline, bool, Vec<Callback>) {
        self.ended.store(true, Ordering::Release);
        let mut state = self.state();
        let callbacks = std::mem::take(&mut state.callbacks);
        (state.deadline, state.lost.is_some(), callbacks)
    }

    fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

/// The kept locks of one process and its connections.
pub(crate) struct Keeper {
    renewals: Arc<Schedule>,
    news: Arc<News>,
    ends: Arc<Schedule>,
}

impl Keeper {
    pub(crate) fn new() -> Keeper {
        Keeper {
            renewals: Arc::new(Schedule::default()),
            news: Arc::new(News::default()),
            ends: Arc::new(Schedule::default()),
        }
    }

    /// Renews `kept` from now on.
    pub(crate) fn keep(&self, kept: &Arc<Kept>, lane: &Arc<Lane>) -> std::io::Result<()> {
        let granted = kept.state().deadline.from.mono;
        let due = (granted + third(kept.ttl)).max(clock::instant());
        // Connections are closed by whoever gives up the last lock, renewals or not.
        let (lane, news) = (Arc::downgrade(lane), self.news.clone());
        let work = move |due: Due| {
            lane.upgrade()
                .map_or_else(Due::new, |lane| renew(lane, &news, due))
        };
        self.renewals
            .add(due, kept.clone(), "redlock-renewal", work)
    }

    /// Makes sure that somebody notices when `kept` ends.
    pub(crate) fn watch(&self, kept: &Arc<Kept>) {
        let now = clock::instant();
        let added = self.ends.add(now, kept.clone(), "redlock-watch", watch);
        if let Err(error) = added {
            say!(
                warn,
                "kept lock {}: cannot start the thread that tells when it is lost: {error}",
                Shown(&kept.key.resource)
            );
        }
    }

    /// The holder takes the lock back: renewal and signals end. The deadline that it has now, and
    /// whether it is lost.
    pub(crate) fn end(&self, kept: &Kept) -> (Deadline, bool) {
        let (deadline, lost, callbacks) = kept.end();
        self.renewals.remove(kept.id);
        self.ends.remove(kept.id);
        // Whatever they own may have a destructor that takes its time, or panics: the lock is released
        // all the same.
        for callback in callbacks {
            let _ = catch_unwind(AssertUnwindSafe(|| drop(callback)));
        }
        (deadline, lost)
    }
}

/// A third of the ttl, a little less by chance so that locks taken together spread out.
fn third(ttl: Ttl) -> Duration {
    let third = ttl.duration() / 3;
    jitter(third - third / 10, third)
}

/// Renews the locks that are due, and says when each is due again.
fn renew(lane: Arc<Lane>, news: &Arc<News>, due: Due) -> Due {
    let (mut next, asked, ops) = to_ask(due, Point::now());
    let answers = lane.run_all(ops);
    let mut incomplete = Vec::new();
    let mut events = Vec::new();
    for ((due, kept, extension), answer) in asked.into_iter().zip(answers) {
        if kept.is_ended() || kept.validity_in(Finder::Keeper).is_err() {
            continue;
        }
        let now = Point::now();
        let left = kept.state().deadline.remaining(now);
        let (again, result) = match extension.answered(answer, now) {
            Extended::Yes(longer, missing) => {
                if let Some(deadline) = longer {
                    kept.state().deadline = deadline;
                }
                if !missing.is_empty() {
                    incomplete.push((kept.clone(), missing));
                }
                // By the schedule, unless that is too far behind.
                ((due + third(kept.ttl)).max(now.mono), Ok(()))
            }
            Extended::Lost => {
                kept.lose(kept.state(), LostReason::Taken, Finder::Keeper);
                continue;
            }
            // Not lost for that: the old deadline stays in force.
            Extended::Unavailable(nodes) => {
                let pause = (kept.ttl.duration() / 20).max(lane.nodes().node_timeout);
                (now.mono + pause, Err(Error::Unavailable(nodes)))
            }
        };
        if !kept.observer.is_none() {
            events.push((kept.clone(), left, result));
        }
        next.push((again, kept));
    }
    refill_all(&lane, incomplete);
    news.tell(events);
    next
}

/// What renewals came to, for the observer. It may take its time, and other locks are waiting for the thread that
/// renews: so another one tells, as long as there is something to tell.
#[derive(Default)]
struct News(Mutex<Untold>);

#[derive(Default)]
struct Untold {
    renewals: VecDeque<Renewed>,
    telling: bool,
}

/// What was left of the validity, and what the renewal came to.
type Renewed = (Arc<Kept>, Duration, Result<(), Error>);

impl News {
    /// One for each lock at most, and none of those that have ended: an observer that does not return
    /// must not fill the memory.
    fn tell(self: &Arc<Self>, mut renewals: Vec<Renewed>) {
        renewals.retain(|(kept, ..)| !kept.untold.swap(true, Ordering::Relaxed));
        if renewals.is_empty() {
            return;
        }
        let mut untold = lock(&self.0);
        let all = std::mem::take(&mut untold.renewals).into_iter();
        let (over, rest) = all
            .chain(renewals)
            .partition::<VecDeque<_>, _>(|(kept, ..)| kept.is_ended());
        untold.renewals = rest;
        if !untold.telling {
            let news = self.clone();
            let thread = std::thread::Builder::new().name("redlock-news".into());
            // Without a thread the next renewal sees to it.
            untold.telling = thread.spawn(move || news.serve()).is_ok();
        }
        drop(untold);
        // With the last of them the observer may go.
        drop(over);
    }

    fn serve(&self) {
        loop {
            let mut untold = lock(&self.0);
            let Some((kept, left, result)) = untold.renewals.pop_front() else {
                untold.telling = false;
                return;
            };
            drop(untold);
            kept.tell_renewal(left, &result);
        }
    }
}

/// Locks that are to be renewed, with when they were due.
type Asked = Vec<(Instant, Arc<Kept>, Extension)>;

/// Of locks that are due: when those are due again whose hold is over, and the others' extensions.
fn to_ask(due: Due, started: Point) -> (Due, Asked, Vec<Op>) {
    let (mut next, mut asked, mut ops) = (Due::new(), Asked::new(), Vec::new());
    for (due, kept) in due {
        if kept.is_ended() || kept.validity_in(Finder::Keeper).is_err() {
            continue;
        }
        let hold_over = kept.hold_left().is_zero();
        let mut state = kept.state();
        // Without a bound a hung holder would keep the lock for ever.
        state.hold_over = hold_over;
        let deadline = state.deadline;
        drop(state);
        if hold_over {
            next.push((started.mono + deadline.remaining(started), kept));
            continue;
        }
        let extension = Extension::new(kept.ttl, deadline, started);
        ops.push(extension.op(kept.key.clone()));
        asked.push((due, kept, extension));
    }
    (next, asked, ops)
}

/// Brings locks back to nodes that do not hold them. Nothing else comes between: from the first that is
/// submitted on this thread may be made to lead.
fn refill_all(lane: &Lane, incomplete: Vec<(Arc<Kept>, NodeSet)>) {
    let submit = |(kept, missing): (Arc<Kept>, NodeSet)| {
        let state = kept.state();
        let op = refill(
            kept.ttl,
            kept.key.clone(),
            missing,
            state.deadline,
            Point::now(),
        )?;
        // Whoever ends it waits for `state` before releasing: the release is behind this.
        (!kept.is_ended()).then(|| lane.submit(op))
    };
    let refills: Vec<_> = incomplete.into_iter().filter_map(submit).collect();
    lane.collect(&refills);
}

/// Looks at locks whose validity may have ended.
fn watch(due: Due) -> Due {
    due.into_iter()
        .filter(|(_, kept)| !kept.is_ended())
        .filter_map(|(_, kept)| {
            let remaining = kept.validity_in(Finder::Keeper).ok()?;
            Some((clock::instant() + remaining, kept))
        })
        .collect()
}

/// What is to be done when, and the thread that does it while there is anything.
#[derive(Default)]
struct Schedule {
    timetable: Mutex<Timetable>,
    changed: Condvar,
}

#[derive(Default)]
struct Timetable {
    times: BTreeSet<(Instant, u64)>,
    entries: BTreeMap<u64, (Instant, Arc<Kept>)>,
    running: bool,
}

impl Timetable {
    fn insert(&mut self, due: Instant, kept: Arc<Kept>) {
        if !kept.is_ended() {
            self.remove(kept.id);
            self.times.insert((due, kept.id));
            self.entries.insert(kept.id, (due, kept));
        }
    }

    fn remove(&mut self, id: u64) -> Option<(Instant, Arc<Kept>)> {
        let (due, kept) = self.entries.remove(&id)?;
        self.times.remove(&(due, id));
        Some((due, kept))
    }

    /// The machine was suspended, or somebody set the clock: by so much the locks end earlier, and are
    /// due earlier.
    fn catch_up(&mut self, before: Point, now: Point) {
        let seen = now.mono.saturating_duration_since(before.mono);
        let unseen = before.elapsed_at(now).saturating_sub(seen);
        if unseen > LONGEST_WAIT {
            self.times.clear();
            for (due, kept) in std::mem::take(&mut self.entries).into_values() {
                self.insert(due.checked_sub(unseen).unwrap_or(before.mono), kept);
            }
        }
    }

    /// What is due at `now`: as much as goes together.
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
            bytes += entry.1.key.resource.len();
            batch.push(entry);
        }
        batch
    }
}

impl Schedule {
    fn timetable(&self) -> MutexGuard<'_, Timetable> {
        lock(&self.timetable)
    }

    fn add(
        self: &Arc<Self>,
        due: Instant,
        kept: Arc<Kept>,
        name: &str,
        mut work: impl FnMut(Due) -> Due + Send + 'static,
    ) -> std::io::Result<()> {
        let mut timetable = self.timetable();
        let id = kept.id;
        timetable.insert(due, kept);
        if !timetable.running {
            let schedule = self.clone();
            let thread = std::thread::Builder::new().name(name.into());
            if let Err(error) = thread.spawn(move || schedule.serve(&mut work)) {
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
        let mut timetable = self.timetable();
        timetable.remove(id);
        let empty = timetable.entries.is_empty();
        drop(timetable);
        if empty {
            self.changed.notify_one();
        }
    }

    /// The thread: until there is nothing left to do.
    fn serve(&self, work: &mut dyn FnMut(Due) -> Due) {
        let mut timetable = self.timetable();
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
            timetable = self.timetable();
            for (due, kept) in next {
                timetable.insert(due, kept);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::quorum::NodeSet;
    use crate::token::Token;

    const S: Duration = Duration::from_secs(1);

    fn kept() -> Arc<Kept> {
        let key = Key {
            resource: Arc::from(&b"a"[..]),
            token: Token::random().unwrap(),
            label: None,
            asked: NodeSet::EMPTY,
        };
        let (now, ttl) = (Point::now(), Ttl::new(60 * S).unwrap());
        let deadline = Deadline::new(now, ttl.validity());
        Arc::new(Kept::new(key, now, 60 * S, deadline, ttl))
    }

    #[test]
    fn what_only_the_wall_clock_has_seen_brings_renewals_forward() {
        let before = Point::now();
        for (wall, due) in [(1, 1), (0, 1), (12, 2), (22, 3), (3600, 3)] {
            let mut timetable = Timetable::default();
            for seconds in [1, 11, 21] {
                timetable.insert(before.mono + seconds * S, kept());
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
