//! Mutexes whose holder panicked: the data that they protect is kept consistent by other means.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::values::clock;

pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
