//! The mutexes, atomics and threads of all that drives the protocol. They are those of the standard library, except in the
//! package in `tests/schedules`, which decides at each of their calls which thread goes on.
//!
//! The holder of a mutex may panic: the data that it protects is kept consistent by other means.

use std::panic::{AssertUnwindSafe, catch_unwind};
#[cfg(not(schedules))]
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, atomic};
#[cfg(not(schedules))]
pub(crate) use std::thread;
use std::time::{Duration, Instant};

#[cfg(schedules)]
pub(crate) use crate::schedules::sync::{Condvar, Mutex, MutexGuard, PoisonError, atomic, thread};
use crate::values::clock;

pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a thread. Fails if the process may have no more of them.
pub(crate) fn start_thread(
    name: impl Into<String>,
    work: impl FnOnce() + Send + 'static,
) -> std::io::Result<()> {
    let thread = thread::Builder::new().name(name.into());
    thread.spawn(work).map(drop)
}

/// Carries out a step of a thread that others rely on. `None`: the step has panicked, by a bug or in a function of
/// the program, and the thread goes on.
pub(crate) fn guarded<T>(step: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(step)).ok()
}

pub(crate) fn wait_for<'a, T>(
    changed: &Condvar,
    guard: MutexGuard<'a, T>,
    time: Duration,
) -> MutexGuard<'a, T> {
    let waited = changed.wait_timeout(guard, time);
    waited.unwrap_or_else(PoisonError::into_inner).0
}

pub(crate) fn wait_until<'a, T>(
    changed: &Condvar,
    guard: MutexGuard<'a, T>,
    until: Instant,
) -> MutexGuard<'a, T> {
    let time = until.saturating_duration_since(clock::instant());
    wait_for(changed, guard, time)
}
