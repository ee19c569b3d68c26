//! The functions of a `redlock_lock_t` while it is kept alive.

use std::ffi::{c_int, c_void};
use std::mem::replace;
use std::sync::Arc;
use std::time::Duration;

use super::callback::{Callback, ExpiringFn, LostFn};
use super::lock::{Handle, HeldHandle, end_callbacks, handle, is_reentrant};
use super::*;
use crate::KeptLock;
use crate::values::clock;
use crate::values::sync::lock;

/// Waiting for a loss goes on in slices of this length, between which other threads may change the lock.
const WAIT_SLICE: Duration = Duration::from_millis(50);

#[unsafe(no_mangle)]
extern "C" fn redlock_lock_keep_alive(lock: Option<&Handle>, max_hold: u64) -> c_int {
    status(|| {
        let handle = handle(lock)?;
        let mut held = handle.change()?;
        match *held {
            HeldHandle::Kept(_) => return Err(CFailure::config("the lock is kept alive already")),
            HeldHandle::Reentrant(_) => return Err(is_reentrant()),
            _ => {}
        }
        *held = match replace(&mut *held, HeldHandle::Ended) {
            HeldHandle::Plain(lock) => {
                let kept = lock.keep_alive(ms(max_hold));
                if let Err(Error::Lost(lost)) = &kept {
                    let _ = handle.found_lost.set(lost.reason());
                }
                HeldHandle::Kept(kept?)
            }
            HeldHandle::Kept(_) | HeldHandle::Reentrant(_) | HeldHandle::Ended => {
                return Err(handle.ended());
            }
        };
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_lock_stop(lock: Option<&Handle>) -> c_int {
    status(|| {
        let handle = handle(lock)?;
        let mut held = handle.change()?;
        match &*held {
            HeldHandle::Plain(_) | HeldHandle::Reentrant(_) => return Err(not_kept()),
            HeldHandle::Ended => return Err(handle.ended()),
            HeldHandle::Kept(_) => {}
        }
        if let HeldHandle::Kept(lock) = replace(&mut *held, HeldHandle::Ended) {
            *held = HeldHandle::Plain(lock.stop());
        }
        let callbacks = handle.take_callbacks();
        // A callback may wait for another thread that asks the lock something.
        drop(held);
        end_callbacks(callbacks);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_lock_hold_left_ms(lock: Option<&Handle>) -> u64 {
    value(|| {
        Ok(match &*handle(lock)?.read()? {
            HeldHandle::Kept(lock) => millis(lock.hold_left()),
            HeldHandle::Plain(_) | HeldHandle::Reentrant(_) | HeldHandle::Ended => 0,
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_lock_wait_lost(lock: Option<&Handle>, timeout: u64) -> c_int {
    status(|| {
        let handle = handle(lock)?;
        let end = clock::instant().checked_add(ms(timeout));
        loop {
            let left = end.map(|end| end.saturating_duration_since(clock::instant()));
            // In slices, so that other threads can change the lock meanwhile.
            let slice = left.map_or(WAIT_SLICE, |left| left.min(WAIT_SLICE));
            match &*handle.read()? {
                HeldHandle::Kept(lock) if lock.wait_lost(slice) => lock.ensure(Duration::ZERO)?,
                HeldHandle::Kept(_) => {}
                HeldHandle::Plain(_) | HeldHandle::Reentrant(_) => return Err(not_kept()),
                HeldHandle::Ended => return Err(handle.ended()),
            }
            if left.is_some_and(|left| left <= slice) {
                return Ok(());
            }
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_lock_lost_reason(lock: Option<&Handle>) -> c_int {
    value(|| {
        let handle = handle(lock)?;
        let held = match handle.read() {
            // In a forked child, and in a function for this loss.
            Err(lost) if lost.code == REDLOCK_LOST => return Ok(lost.lost_reason),
            held => held?,
        };
        let reason = match &*held {
            HeldHandle::Plain(lock) => lock.validity().err(),
            HeldHandle::Kept(lock) => lock.lost(),
            HeldHandle::Reentrant(entry) => entry.lock()?.lost_reason(),
            HeldHandle::Ended => Some(handle.end_reason()),
        };
        Ok(reason.map_or(REDLOCK_REASON_NONE, reason_code))
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_lock_on_lost(
    lock_: Option<&Handle>,
    function: Option<LostFn>,
    user: *mut c_void,
) -> c_int {
    status(|| {
        let handle = handle(lock_)?;
        let function = function.ok_or_else(|| CFailure::null("fn"))?;
        register(handle, user, |kept, callback, address| {
            kept.on_lost(move |reason| {
                // SAFETY: the caller's function with the caller's argument, which the header wants to
                // live until the lock is ended or stopped: those wait until this is over.
                let call = |user| unsafe { function(reason_code(reason), user) };
                callback.run(address, Some(reason), call);
            });
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_lock_on_expiring(
    lock_: Option<&Handle>,
    margin: u64,
    function: Option<ExpiringFn>,
    user: *mut c_void,
) -> c_int {
    status(|| {
        let handle = handle(lock_)?;
        let function = function.ok_or_else(|| CFailure::null("fn"))?;
        register(handle, user, |kept, callback, address| {
            kept.on_expiring(ms(margin), move |left| {
                // SAFETY: as for `redlock_lock_on_lost`.
                let call = |user| unsafe { function(millis(left), user) };
                callback.run(address, None, call);
            });
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_lock_since_renewal_ms(lock: Option<&Handle>) -> u64 {
    value(|| {
        Ok(match &*handle(lock)?.read()? {
            HeldHandle::Kept(lock) => millis(lock.since_renewal()),
            HeldHandle::Plain(_) | HeldHandle::Reentrant(_) | HeldHandle::Ended => 0,
        })
    })
}

/// Registers a callback of a lock that is kept alive. `with` gets the callback, and the address of its handle.
fn register(
    handle: &Handle,
    user: *mut c_void,
    with: impl FnOnce(&KeptLock, Arc<Callback>, usize),
) -> Result<(), CFailure> {
    let held = handle.read()?;
    let kept = match &*held {
        HeldHandle::Kept(kept) => kept,
        HeldHandle::Plain(_) | HeldHandle::Reentrant(_) => return Err(not_kept()),
        HeldHandle::Ended => return Err(handle.ended()),
    };
    let callback = Arc::new(Callback::new(user));
    lock(&handle.callbacks).push(callback.clone());
    with(kept, callback, std::ptr::from_ref(handle).addr());
    Ok(())
}

fn not_kept() -> CFailure {
    CFailure::config("the lock is not kept alive")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Redlock, Token};

    unsafe extern "C" fn nothing(_: c_int, _: *mut c_void) {}

    /// Where the lock is lost already, and no thread can be started, the function runs within the call that registers it.
    #[test]
    fn a_function_for_a_loss_finds_the_lock_lost_also_within_a_call() {
        let redlock = Redlock::new(["redis://127.0.0.1:1"]).unwrap();
        let hour = Duration::from_secs(3600);
        let lock_ = redlock
            .resume("a", Token::from_bytes([1; 20]), hour)
            .unwrap();
        let handle = Handle::new(lock_);
        let held = handle.read().unwrap_or_else(|_| panic!());
        let callback = Callback::new(std::ptr::null_mut());
        let address = std::ptr::from_ref(&handle).addr();
        callback.run(address, Some(crate::LostReason::Expired), |_| {
            let code = redlock_lock_hold_left_ms(Some(&handle));
            assert_eq!(code, 0);
            assert_eq!(redlock_lock_stop(Some(&handle)), REDLOCK_LOST);
        });
        // Beside it, a function for events must not use it.
        assert_eq!(redlock_lock_stop(Some(&handle)), REDLOCK_CONFIG);
        drop(held);
        if let HeldHandle::Plain(lock) = replace(
            &mut *handle.change().unwrap_or_else(|_| panic!()),
            HeldHandle::Ended,
        ) {
            lock.leak();
        }
    }

    /// Another thread keeps the lock alive and registers a callback as soon as it is stopped.
    #[test]
    fn stopping_forgets_no_callback_that_is_registered_after_it() {
        let redlock = Redlock::new(["redis://127.0.0.1:1"]).unwrap();
        let hour = Duration::from_secs(3600);
        // Asks no node before a third of the ttl is over.
        let lock_ = redlock
            .resume("a", Token::from_bytes([1; 20]), hour)
            .unwrap();
        let handle = Handle::new(lock_);
        for round in 0..20_000 {
            assert_eq!(
                redlock_lock_keep_alive(Some(&handle), u64::MAX / 2),
                REDLOCK_OK
            );
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while redlock_lock_keep_alive(Some(&handle), u64::MAX / 2) != REDLOCK_OK {}
                    let user = std::ptr::null_mut();
                    let code = redlock_lock_on_lost(Some(&handle), Some(nothing), user);
                    assert_eq!(code, REDLOCK_OK);
                });
                assert_eq!(redlock_lock_stop(Some(&handle)), REDLOCK_OK);
            });
            let phases: Vec<bool> = lock(&handle.callbacks)
                .iter()
                .map(|callback| callback.is_waiting())
                .collect();
            assert_eq!(phases, [true], "round {round}");
            assert_eq!(redlock_lock_stop(Some(&handle)), REDLOCK_OK);
        }
        let held = replace(
            &mut *handle.change().unwrap_or_else(|_| panic!()),
            HeldHandle::Ended,
        );
        if let HeldHandle::Plain(lock) = held {
            lock.leak();
        }
    }
}
