//! A clock that stands still while any thread can go on, and the threads that wait.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use shuttle::future::batch_semaphore::{BatchSemaphore, Fairness};

use super::random::Random;

/// The time of day at which a schedule begins.
const TODAY: Duration = Duration::from_secs(1_800_000_000);
/// How long it takes to read a clock: a thread that only looks at one lets time pass.
const LOOK: Duration = Duration::from_micros(1);

/// A thread that waits, once.
pub(super) struct Waiter {
    woken: AtomicBool,
    turn: BatchSemaphore,
}

impl Waiter {
    pub(super) fn new() -> Arc<Waiter> {
        Arc::new(Waiter {
            woken: AtomicBool::new(false),
            turn: BatchSemaphore::new(0, Fairness::Unfair),
        })
    }

    /// Makes the thread go on. (Which thread goes on next is decided at the caller's next step.)
    pub(super) fn wake(&self) {
        if !self.woken.swap(true, Ordering::Relaxed) {
            self.turn.release_no_scheduling_point(1);
        }
    }

    pub(super) fn is_woken(&self) -> bool {
        self.woken.load(Ordering::Relaxed)
    }

    /// Waits until this is woken, or until the clock shows that time.
    pub(super) fn wait(self: &Arc<Waiter>, until: Option<Duration>) {
        let entry = until.map(|until| {
            let (key, idle) = WORLD.with_borrow_mut(|world| {
                world.count += 1;
                let key = (until, world.count);
                world.sleepers.insert(key, self.clone());
                (key, world.idle.take())
            });
            if let Some(idle) = idle {
                idle.wake();
            }
            key
        });
        let _ = self.turn.acquire_blocking(1);
        if let Some(key) = entry {
            WORLD.with_borrow_mut(|world| world.sleepers.remove(&key));
        }
    }
}

struct World {
    now: Duration,
    sleepers: BTreeMap<(Duration, u64), Arc<Waiter>>,
    /// The task of the clock, if nothing waits for a time.
    idle: Option<Arc<Waiter>>,
    is_over: bool,
    count: u64,
    random: Random,
    /// The threads that run, by their numbers.
    pub(super) threads: BTreeMap<u64, String>,
    tasks: HashMap<usize, Arc<Mutex<Slot>>>,
}

/// The state that `park` and `unpark` of a thread share.
#[derive(Default)]
pub(super) struct Slot {
    pub(super) token: bool,
    pub(super) waiter: Option<Arc<Waiter>>,
}

impl World {
    fn new(seed: u64) -> World {
        World {
            now: Duration::ZERO,
            sleepers: BTreeMap::new(),
            idle: None,
            is_over: false,
            count: 0,
            random: Random(seed),
            threads: BTreeMap::new(),
            tasks: HashMap::new(),
        }
    }
}

thread_local! {
    static WORLD: RefCell<World> = RefCell::new(World::new(0));
    static HURRY: Cell<u64> = const { Cell::new(0) };
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

pub(super) fn reset() {
    begin(0);
}

/// Begins a schedule.
pub(super) fn begin(seed: u64) {
    HURRY.set(0);
    let old = WORLD.replace(World::new(seed));
    // A semaphore can only be dropped outside of a schedule, as this is.
    drop(old);
}

pub(super) fn random() -> u64 {
    WORLD.with_borrow_mut(|world| world.random.next())
}

pub(super) fn below(bound: u64) -> u64 {
    WORLD.with_borrow_mut(|world| world.random.below(bound))
}

/// Lets time pass although threads can go on, at one in this number of steps. Zero: never.
pub(super) fn set_hurry(steps: u64) {
    HURRY.set(steps);
}

pub(super) fn hurry() -> u64 {
    HURRY.get()
}

/// Whether no thread but that of the clock can go on.
pub(super) fn set_quiet(quiet: bool) {
    QUIET.set(quiet);
}

/// The time since the schedule began.
pub(super) fn now() -> Duration {
    WORLD.with_borrow(|world| world.now)
}

/// The time of day, in microseconds, as servers see it.
pub(super) fn micros() -> u64 {
    u64::try_from((TODAY + now()).as_micros()).unwrap()
}

fn base() -> Instant {
    static BASE: OnceLock<Instant> = OnceLock::new();
    *BASE.get_or_init(Instant::now)
}

/// The time since the schedule began, at which the clock shows this.
pub(super) fn of(instant: Instant) -> Duration {
    instant.saturating_duration_since(base())
}

fn look() -> Duration {
    WORLD.with_borrow_mut(|world| {
        world.now += LOOK;
        world.now
    })
}

pub(crate) struct Monotonic;

impl Monotonic {
    pub(crate) fn now() -> Instant {
        base() + look()
    }
}

pub(crate) struct Wall;

impl Wall {
    pub(crate) fn now() -> SystemTime {
        UNIX_EPOCH + TODAY + look()
    }
}

/// The task that moves the clock to the next time that a thread waits for. `at_rest`: is called when no thread can go on.
pub(super) fn clock(at_rest: impl Fn()) {
    loop {
        let next = WORLD.with_borrow_mut(|world| {
            if world.is_over {
                return None;
            }
            let idle = Waiter::new();
            Some(match world.sleepers.pop_first() {
                Some(((time, _), waiter)) => {
                    world.now = world.now.max(time);
                    (waiter, false)
                }
                None => {
                    world.idle = Some(idle.clone());
                    (idle, true)
                }
            })
        });
        match next {
            None => return,
            Some((idle, true)) => idle.wait(None),
            Some((waiter, false)) => {
                if QUIET.replace(false) && !waiter.is_woken() {
                    at_rest();
                }
                waiter.wake();
            }
        }
        turn();
    }
}

/// Lets another thread go on.
pub(super) fn turn() {
    shuttle::thread::sleep(Duration::ZERO);
}

/// Ends the task of the clock.
pub(super) fn end() {
    let idle = WORLD.with_borrow_mut(|world| {
        world.is_over = true;
        world.idle.take()
    });
    if let Some(idle) = idle {
        idle.wake();
    }
}

pub(super) fn is_over() -> bool {
    WORLD.with_borrow(|world| world.is_over)
}

/// Notes that a thread begins, and returns its number.
pub(super) fn begins(name: &str) -> u64 {
    WORLD.with_borrow_mut(|world| {
        world.count += 1;
        world.threads.insert(world.count, name.to_owned());
        world.count
    })
}

pub(super) fn ends(number: u64) {
    WORLD.with_borrow_mut(|world| world.threads.remove(&number));
}

/// The names of the threads that run.
pub(super) fn threads() -> Vec<String> {
    WORLD.with_borrow(|world| world.threads.values().cloned().collect())
}

/// The state that `park` and `unpark` of this thread share.
pub(super) fn slot() -> Arc<Mutex<Slot>> {
    let task = usize::from(shuttle::thread::current().id());
    WORLD.with_borrow_mut(|world| world.tasks.entry(task).or_default().clone())
}
