//! The threads of the driver under a scheduler: `shuttle` decides at each mutex, atomic, park and socket which thread goes
//! on, so that thousands of orders are tried of what a machine does in one.
//!
//! The package in `tests/schedules` compiles the library with `--cfg schedules`, which puts these in place of what
//! `values/sync`, `values/clock` and `net/socket/plain` are otherwise. All else is the product's own code.
//!
//! - `turns`: which thread goes on, by a number that replays it
//! - `time`: a clock that stands still while any thread can go on
//! - `sync`: mutexes, conditions, atomics and threads
//! - `plain`: sockets that are queues, and the servers behind them
//! - `play`: the threads of a program, and what must hold

#![allow(missing_docs, missing_debug_implementations, unreachable_pub)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing)]

pub(crate) mod plain;
mod play;
#[path = "../random.rs"]
pub(crate) mod random;
pub(crate) mod sync;
pub(crate) mod time;
mod turns;

pub use crate::net::driver::races::RACES;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use shuttle::{Config, FailurePersistence, MaxSteps, Runner};

/// No schedule is longer.
const STEPS: usize = 200_000;
/// The stack of a thread.
const STACK: usize = 256 << 10;

/// A random number of this schedule, also for what the operating system would give.
pub fn random() -> u64 {
    time::random()
}

/// How much was run.
pub struct Ran {
    pub schedules: u64,
    pub steps: u64,
    pub calls: u64,
}

/// Runs the schedules of these numbers, with the race of this name. `Err`: the number of the schedule that fails, and why.
pub fn run(first: u64, count: u64, race: Option<&str>) -> Result<Ran, (u64, String)> {
    let race = race.map(|name| {
        let found = RACES.iter().find(|one| format!("{:?}", one.0) == name);
        found.unwrap_or_else(|| panic!("there is no race {name}")).0
    });
    let at = Arc::new(AtomicU64::new(first));
    let work = {
        let at = at.clone();
        move || {
            crate::net::driver::races::set_race(race);
            time::reset();
            let mut config = Config::new();
            config.stack_size = STACK;
            config.failure_persistence = FailurePersistence::None;
            config.max_steps = MaxSteps::FailAfter(STEPS);
            config.silence_warnings = true;
            let turns = turns::Turns::new(first, count, at);
            Runner::new(turns, config).run(play::play);
            (turns::steps(), play::calls())
        }
    };
    // The remains of a failed schedule end with its thread.
    match std::thread::spawn(work).join() {
        Ok((steps, calls)) => Ok(Ran {
            schedules: count,
            steps,
            calls,
        }),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            Err((
                at.load(Ordering::Relaxed),
                text.unwrap_or_else(|| "a panic".into()),
            ))
        }
    }
}
