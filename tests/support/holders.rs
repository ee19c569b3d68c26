//! Clients that take one lock again and again, and whether two of them ever had it at a time.

use std::fmt::Debug;

use redlock_sync::{Lock, Redlock};

use super::*;

/// How long a lock lasts that is not renewed, if nothing else is given.
pub const LONGEST: Duration = Duration::from_secs(1);
/// A failover takes seconds, and more if a vote is repeated, or if it follows another one.
const PATIENCE: Duration = Duration::from_secs(120);

/// From the return of the call that took it until it was given up, or was no longer valid.
type Held = (Instant, Instant);

pub struct Clients {
    name: String,
    ttl: Duration,
    new: Box<dyn Fn() -> Redlock + Send + Sync>,
    held: Mutex<Vec<Held>>,
    taken: AtomicUsize,
    over: AtomicBool,
}

impl Clients {
    pub fn of(name: &str, new: impl Fn() -> Redlock + Send + Sync + 'static) -> Clients {
        Clients {
            name: name.to_owned(),
            ttl: LONGEST,
            new: Box::new(new),
            held: Mutex::default(),
            taken: AtomicUsize::new(0),
            over: AtomicBool::new(false),
        }
    }

    pub fn lasting(self, ttl: Duration) -> Clients {
        Clients { ttl, ..self }
    }

    /// Four of them take locks while this is done.
    pub fn during(&self, work: impl FnOnce()) {
        std::thread::scope(|scope| {
            let _ends = OnDrop(&self.over);
            for seed in 1..=4 {
                scope.spawn(move || self.take(seed % 2 == 0, seed));
            }
            work();
        });
    }

    /// Locks are waited for or tried, kept or held, dropped or released. Each client is a new one after some locks, if `fresh`.
    fn take(&self, fresh: bool, seed: u64) {
        let mut random = Random(seed);
        let mut redlock = (self.new)();
        while !self.over.load(Ordering::Relaxed) {
            if fresh && random.below(4) == 0 {
                redlock = (self.new)();
            }
            let way = random.below(4);
            let lock = match way {
                // Waited for.
                0 => redlock
                    .acquire_within(&self.name, self.ttl, LONGEST / 2)
                    .ok(),
                _ => redlock.try_acquire(&self.name, self.ttl).ok().flatten(),
            };
            let Some(lock) = lock else {
                std::thread::sleep(ms(1 + random.below(5)));
                continue;
            };
            let began = Instant::now();
            self.taken.fetch_add(1, Ordering::Relaxed);
            let hold = match random.below(4) {
                0 => random.below(1200),
                _ => random.below(30),
            };
            match way {
                1 => self.keep(lock, began, ms(2 * hold)),
                _ => self.hold(lock, began, ms(hold), random.below(2) == 0),
            }
        }
    }

    fn hold(&self, lock: Lock, began: Instant, time: Duration, drops: bool) {
        let valid = began + lock.remaining();
        std::thread::sleep(time);
        let ended = Instant::now().min(valid);
        self.held.lock().unwrap().push((began, ended));
        match drops {
            true => drop(lock),
            false => drop(lock.release()),
        }
    }

    /// A kept lock. It counts as held until the last look that found it valid.
    fn keep(&self, lock: Lock, began: Instant, time: Duration) {
        let Ok(lock) = lock.keep_alive(60 * LONGEST) else {
            return;
        };
        let mut ended = began;
        while began.elapsed() < time {
            let now = Instant::now();
            if !lock.is_valid() {
                break;
            }
            ended = now;
            std::thread::sleep(ms(2));
        }
        self.held.lock().unwrap().push((began, ended));
        drop(lock.release());
    }

    /// Waits until some have been taken.
    pub fn go_on(&self) {
        let before = self.taken.load(Ordering::Relaxed);
        eventually_within(PATIENCE, "locks are taken again", &mut || {
            self.taken.load(Ordering::Relaxed) > before + 5
        });
    }

    /// How often two held it at a time.
    pub fn overlaps(&self) -> usize {
        let mut held = self.held.lock().unwrap();
        held.sort();
        held.windows(2).filter(|two| two[1].0 < two[0].1).count()
    }

    pub fn report(&self, round: usize, what: impl Debug) {
        let (overlaps, taken) = (self.overlaps(), self.taken.load(Ordering::Relaxed));
        println!("{round} {what:?}: {overlaps} overlaps of {taken} locks");
    }
}

/// As this variable says.
pub fn rounds(variable: &str, default: usize) -> usize {
    let given = std::env::var(variable).ok();
    given.map_or(default, |given| given.parse().unwrap())
}
