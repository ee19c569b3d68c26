//! A function of C that is called when a lock is lost, or is about to expire.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::{Condvar, Mutex, PoisonError};

use super::*;
use crate::values::sync::lock;

thread_local! {
    /// The lock whose callback is running in this thread, by its address, and why it was lost, if it was.
    static CALLED_BACK: Cell<Option<(usize, Option<LostReason>)>> = const { Cell::new(None) };
}

/// Why the lock at this address was lost, if it was, and if a callback of it is running in this thread.
pub(super) fn is_running(address: usize) -> Option<Option<LostReason>> {
    let running = CALLED_BACK.try_with(Cell::get).ok().flatten();
    running
        .filter(|(lock, _)| *lock == address)
        .map(|(_, reason)| reason)
}

pub(super) type LostFn = unsafe extern "C" fn(c_int, *mut c_void);
pub(super) type ExpiringFn = unsafe extern "C" fn(u64, *mut c_void);

/// The C side of one callback.
pub(super) struct Callback {
    user: *mut c_void,
    phase: Mutex<CallbackPhase>,
    over: Condvar,
}

// SAFETY: `user` is only handed to the function, which by the header runs on another thread.
unsafe impl Send for Callback {}
// SAFETY: as above; everything else in it is Sync.
unsafe impl Sync for Callback {}

#[derive(PartialEq, Eq)]
enum CallbackPhase {
    Waiting,
    Running,
    Over,
}

impl Callback {
    pub(super) fn new(user: *mut c_void) -> Callback {
        Callback {
            user,
            phase: Mutex::new(CallbackPhase::Waiting),
            over: Condvar::new(),
        }
    }

    #[cfg(test)]
    pub(super) fn is_waiting(&self) -> bool {
        *lock(&self.phase) == CallbackPhase::Waiting
    }

    /// Calls the function with `user`, unless that is over. `reason`: why the lock was lost, if it was.
    pub(super) fn run(
        &self,
        handle: usize,
        reason: Option<LostReason>,
        call: impl FnOnce(*mut c_void),
    ) {
        let mut phase = lock(&self.phase);
        if *phase == CallbackPhase::Over {
            return;
        }
        *phase = CallbackPhase::Running;
        drop(phase);
        let before = CALLED_BACK.replace(Some((handle, reason)));
        call(self.user);
        CALLED_BACK.set(before);
        *lock(&self.phase) = CallbackPhase::Over;
        self.over.notify_all();
    }

    pub(super) fn end(&self) {
        let mut phase = lock(&self.phase);
        while *phase == CallbackPhase::Running {
            let wait = self.over.wait(phase);
            phase = wait.unwrap_or_else(PoisonError::into_inner);
        }
        *phase = CallbackPhase::Over;
    }
}
