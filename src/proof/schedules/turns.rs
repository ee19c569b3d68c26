//! Which thread goes on: by random choice, or by priorities that change at a few points (PCT, Burckhardt et al., 2010).

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};

use super::random::Random;
use super::time;

/// The second task of a schedule: the one that moves the clock.
const CLOCK: usize = 1;
/// Among how many steps the points are drawn at which a priority changes.
const LENGTHS: [u64; 4] = [100, 400, 1000, 2500];

thread_local! {
    static STEPS: Cell<u64> = const { Cell::new(0) };
}

/// How many choices were made in this thread.
pub(super) fn steps() -> u64 {
    STEPS.get()
}

enum Policy {
    /// Each thread that can go on is as likely, except that the current one goes on in some of the cases.
    Random { stay: u64 },
    /// The thread of the highest priority goes on. At each point, the current one becomes the last.
    Priorities {
        of: Vec<u64>,
        points: Vec<u64>,
        last: u64,
    },
}

/// Each schedule follows from its number.
pub(super) struct Turns {
    next: u64,
    end: u64,
    /// The number of the schedule that runs.
    at: Arc<AtomicU64>,
    random: Random,
    policy: Policy,
    step: u64,
}

impl Turns {
    pub(super) fn new(first: u64, count: u64, at: Arc<AtomicU64>) -> Turns {
        Turns {
            next: first,
            end: first + count,
            at,
            random: Random(0),
            policy: Policy::Random { stay: 0 },
            step: 0,
        }
    }
}

impl Scheduler for Turns {
    fn new_execution(&mut self) -> Option<Schedule> {
        if self.next == self.end {
            return None;
        }
        let number = self.next;
        self.next += 1;
        self.at.store(number, Ordering::Relaxed);
        self.random = Random(number.wrapping_mul(0x2545_f491_4f6c_dd1d));
        self.step = 0;
        self.policy = match self.random.below(2) {
            0 => Policy::Random {
                stay: [0, 50, 90][usize::try_from(self.random.below(3)).unwrap()],
            },
            _ => {
                let length = LENGTHS[usize::try_from(self.random.below(4)).unwrap()];
                let count = self.random.below(6);
                Policy::Priorities {
                    of: Vec::new(),
                    points: (0..count).map(|_| self.random.below(length)).collect(),
                    last: 1 << 32,
                }
            }
        };
        time::begin(self.random.next());
        Some(Schedule::new(number))
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        is_yielding: bool,
    ) -> Option<TaskId> {
        STEPS.set(STEPS.get() + 1);
        self.step += 1;
        let is_clock = |task: &&&Task| usize::from(task.id()) == CLOCK;
        let clock = runnable.iter().find(is_clock).map(|task| task.id());
        let mut others = runnable.iter().filter(|task| !is_clock(task));
        let count = others.clone().count() as u64;
        if count == 0 {
            time::set_quiet(true);
            return clock;
        }
        let hurry = time::hurry();
        if clock.is_some() && hurry > 0 && self.random.below(hurry) == 0 {
            time::set_quiet(false);
            return clock;
        }
        let is_current = |task: &&&Task| Some(task.id()) == current;
        match &mut self.policy {
            Policy::Random { stay } => {
                let stays = !is_yielding && self.random.below(100) < *stay;
                if stays && let Some(task) = others.clone().find(is_current) {
                    return Some(task.id());
                }
                let chosen = usize::try_from(self.random.below(count)).unwrap();
                others.nth(chosen).map(|task| task.id())
            }
            Policy::Priorities { of, points, last } => {
                for task in runnable {
                    while of.len() <= usize::from(task.id()) {
                        of.push(self.random.next() >> 33);
                    }
                }
                if let Some(current) = current
                    && (is_yielding || points.contains(&self.step))
                {
                    *last += 1;
                    of[usize::from(current)] = *last;
                }
                others
                    .min_by_key(|task| of[usize::from(task.id())])
                    .map(|task| task.id())
            }
        }
    }

    fn next_u64(&mut self) -> u64 {
        self.random.next()
    }
}
