//! `redlock_lock_t`: asking, extending, ending.

use std::cell::{Cell, RefCell};
use std::ffi::{c_int, c_void};
use std::mem::{ManuallyDrop, MaybeUninit, replace};
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::callback::{self, Callback};
use super::*;
use crate::values::sync::lock;
use crate::{Error, KeptLock, Lock, LostReason, ReentrantLock, Token};

/// `redlock_lock_t`.
pub(super) struct Handle {
    process: u32,
    pub(super) resource: Arc<[u8]>,
    /// `None`: an entry of a reentrant lock, which cannot be resumed.
    token: Option<Token>,
    held: RwLock<HeldHandle>,
    /// Why the lock had been lost, if an attempt to keep it alive found that.
    pub(super) found_lost: OnceLock<LostReason>,
    pub(super) callbacks: Mutex<Vec<Arc<Callback>>>,
}

pub(super) enum HeldHandle {
    Plain(Lock),
    Kept(KeptLock),
    Reentrant(HandleEntry),
    /// Lost or released in an attempt to keep it alive, or being released.
    Ended,
}

impl Handle {
    pub(super) fn new(lock: Lock) -> Handle {
        Handle {
            process: std::process::id(),
            resource: lock.resource().into(),
            token: Some(*lock.token()),
            held: RwLock::new(HeldHandle::Plain(lock)),
            found_lost: OnceLock::new(),
            callbacks: Mutex::default(),
        }
    }

    pub(super) fn of_entry(lock: ReentrantLock) -> Handle {
        Handle {
            process: std::process::id(),
            resource: lock.resource().into(),
            token: None,
            held: RwLock::new(HeldHandle::Reentrant(HandleEntry {
                thread: this_thread(),
                lock: ManuallyDrop::new(lock),
            })),
            found_lost: OnceLock::new(),
            callbacks: Mutex::default(),
        }
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Fails in a forked child, where a thread that does not exist may hold `held`, and in a callback of this lock,
    /// which may run inside a call that holds it. The lock is lost for both. Fails, too, in a function for events that
    /// runs inside a call of this thread: that call holds `held`, or ends the lock.
    fn check(&self) -> Result<(), CFailure> {
        let failure = match self.is_ours() {
            true => self.called_back().or_else(|| self.in_call()),
            false => Some(self.lost(LostReason::OtherProcess)),
        };
        failure.map_or(Ok(()), Err)
    }

    fn lost(&self, reason: LostReason) -> CFailure {
        Error::lost(&self.resource, reason).into()
    }

    /// The error of a handle whose lock was ended before.
    pub(super) fn ended(&self) -> CFailure {
        self.lost(self.end_reason())
    }

    /// The first reason why such a lock is not held.
    pub(super) fn end_reason(&self) -> LostReason {
        self.found_lost
            .get()
            .copied()
            .unwrap_or(LostReason::Released)
    }

    fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    /// The failure of a call inside another call of this thread with this lock.
    fn in_call(&self) -> Option<CFailure> {
        let used = USED.try_with(|used| used.borrow().contains(&self.address()));
        let text = "a function for redlock_set_observer() must not use the lock of its event";
        used.unwrap_or(false).then(|| CFailure::config(text))
    }

    /// The failure of a call in a callback of this lock.
    fn called_back(&self) -> Option<CFailure> {
        let reason = callback::is_running(self.address())?;
        let failure = reason.map(|reason| self.lost(reason));
        Some(failure.unwrap_or_else(|| {
            CFailure::config("a function for redlock_lock_on_expiring() must not use its lock")
        }))
    }

    pub(super) fn read(&self) -> Result<Use<RwLockReadGuard<'_, HeldHandle>>, CFailure> {
        self.check()?;
        let take = || self.held.read().unwrap_or_else(PoisonError::into_inner);
        Ok(Use::new(self.address(), take))
    }

    pub(super) fn change(&self) -> Result<Use<RwLockWriteGuard<'_, HeldHandle>>, CFailure> {
        self.check()?;
        let take = || self.held.write().unwrap_or_else(PoisonError::into_inner);
        Ok(Use::new(self.address(), take))
    }

    /// Takes the callbacks that are registered so far. Call this while `held` cannot change: callbacks that are
    /// registered later belong to what is held then.
    pub(super) fn take_callbacks(&self) -> Vec<Arc<Callback>> {
        std::mem::take(&mut *lock(&self.callbacks))
    }
}

thread_local! {
    /// The locks that calls of this thread use, by their addresses.
    static USED: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// The mark of a call that uses the lock at an address: a function for events that runs in it must not.
struct InCall;

impl InCall {
    fn new(address: usize) -> InCall {
        let _ = USED.try_with(|used| used.borrow_mut().push(address));
        InCall
    }
}

impl Drop for InCall {
    fn drop(&mut self) {
        let _ = USED.try_with(|used| used.borrow_mut().pop());
    }
}

/// A call's use of a lock, or of what it holds. Messages that are logged meanwhile are passed on when both the mark and
/// the guard are gone, since their function may use the lock.
pub(super) struct Use<G>(log::LoggerGuard<(InCall, G)>);

impl<G> Use<G> {
    fn new(address: usize, take: impl FnOnce() -> G) -> Use<G> {
        Use(log::LoggerGuard::new(|| {
            let guard = take();
            (InCall::new(address), guard)
        }))
    }
}

impl<G: Deref> Deref for Use<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.0.guard.1
    }
}

impl<G: DerefMut> DerefMut for Use<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.0.guard.1
    }
}

/// One entry of a reentrant lock, for the thread that made it alone.
pub(super) struct HandleEntry {
    thread: u64,
    lock: ManuallyDrop<ReentrantLock>,
}

/// A number that no other thread has or had. (The standard library's is not available at a thread's very end.)
fn this_thread() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static NUMBER: Cell<u64> = const { Cell::new(0) };
    }
    NUMBER.with(|number| {
        if number.get() == 0 {
            number.set(LAST.fetch_add(1, Ordering::Relaxed) + 1);
        }
        number.get()
    })
}

// SAFETY: `lock` is touched only by its own thread, as `check` makes sure.
unsafe impl Send for HandleEntry {}
// SAFETY: as above.
unsafe impl Sync for HandleEntry {}

impl HandleEntry {
    fn check(&self) -> Result<(), CFailure> {
        if self.thread == this_thread() {
            return Ok(());
        }
        let text = "the lock is reentrant: it belongs to the thread that acquired it";
        Err(CFailure::config(text))
    }

    pub(super) fn lock(&self) -> Result<&ReentrantLock, CFailure> {
        self.check().map(|()| &*self.lock)
    }
}

impl Drop for HandleEntry {
    fn drop(&mut self) {
        if self.check().is_ok() {
            // SAFETY: it is dropped once, and not used after this.
            unsafe { ManuallyDrop::drop(&mut self.lock) };
        }
    }
}

pub(super) fn is_reentrant() -> CFailure {
    CFailure::config("the lock is reentrant: that is not possible with it")
}

/// Ends the callbacks. When this returns, none of them is running nor will be.
pub(super) fn end_callbacks(callbacks: Vec<Arc<Callback>>) {
    callbacks.iter().for_each(|callback| callback.end());
}

pub(super) fn handle(handle: Option<&Handle>) -> Result<&Handle, CFailure> {
    handle.ok_or_else(|| CFailure::null("lock"))
}

// ---- asking -----------------------------------------------------------------------------------

#[unsafe(no_mangle)]
extern "C" fn redlock_lock_remaining_ms(lock: Option<&Handle>) -> u64 {
    value(|| {
        Ok(match &*handle(lock)?.read()? {
            HeldHandle::Plain(lock) => millis(lock.remaining()),
            HeldHandle::Kept(lock) => millis(lock.remaining()),
            HeldHandle::Reentrant(entry) => millis(entry.lock()?.remaining()),
            HeldHandle::Ended => 0,
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_lock_is_valid(lock: Option<&Handle>) -> c_int {
    value(|| {
        Ok(match &*handle(lock)?.read()? {
            HeldHandle::Plain(lock) => lock.is_valid().into(),
            HeldHandle::Kept(lock) => lock.is_valid().into(),
            HeldHandle::Reentrant(entry) => entry.lock()?.is_valid().into(),
            HeldHandle::Ended => 0,
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_lock_ensure(lock: Option<&Handle>, at_least: u64) -> c_int {
    status(|| {
        let handle = handle(lock)?;
        match &*handle.read()? {
            HeldHandle::Plain(lock) => lock.ensure(ms(at_least))?,
            HeldHandle::Kept(lock) => lock.ensure(ms(at_least))?,
            HeldHandle::Reentrant(entry) => entry.lock()?.ensure(ms(at_least))?,
            HeldHandle::Ended => return Err(handle.ended()),
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_lock_extensions_left(lock: Option<&Handle>) -> u32 {
    value(|| {
        Ok(match &*handle(lock)?.read()? {
            HeldHandle::Plain(lock) => lock.extensions_left(),
            HeldHandle::Reentrant(entry) => entry.lock()?.extensions_left(),
            HeldHandle::Kept(_) | HeldHandle::Ended => 0,
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_lock_fencing_token(
    lock: Option<&Handle>,
    out: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    let mut token = 0;
    let code = status(|| {
        if out.is_none() {
            return Err(CFailure::null("out"));
        }
        let handle = handle(lock)?;
        token = match &*handle.read()? {
            HeldHandle::Plain(lock) => lock.fencing_token()?,
            HeldHandle::Kept(lock) => lock.fencing_token()?,
            HeldHandle::Reentrant(entry) => entry.lock()?.fencing_token()?,
            HeldHandle::Ended => return Err(handle.ended()),
        };
        Ok(())
    });
    if let Some(out) = out {
        out.write(token);
    }
    code
}

#[unsafe(no_mangle)]
extern "C" fn redlock_lock_mark_done(lock: Option<&Handle>, period_ms: u64, took_ms: u64) -> c_int {
    status(|| {
        let (period, took) = (
            Duration::from_millis(period_ms),
            Duration::from_millis(took_ms),
        );
        let handle = handle(lock)?;
        match &*handle.read()? {
            HeldHandle::Plain(lock) => lock.mark_done(period, took)?,
            HeldHandle::Kept(lock) => lock.mark_done(period, took)?,
            HeldHandle::Reentrant(_) => {
                let text = "a lock that can be entered again is not marked as done";
                return Err(CFailure::config(text));
            }
            HeldHandle::Ended => return Err(handle.ended()),
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_lock_depth(lock: Option<&Handle>) -> usize {
    value(|| {
        Ok(match &*handle(lock)?.read()? {
            HeldHandle::Plain(_) | HeldHandle::Kept(_) => 1,
            HeldHandle::Reentrant(entry) => entry.lock()?.depth(),
            HeldHandle::Ended => 0,
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_lock_token(lock: Option<&Handle>, buf: *mut u8, cap: usize) -> usize {
    value(|| {
        let token = handle(lock)?.token.as_ref().ok_or_else(is_reentrant)?;
        let token = token.as_bytes();
        // SAFETY: the header demands room for `cap` bytes.
        unsafe { copy(token, buf, cap) };
        Ok(token.len())
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_lock_resource(lock: Option<&Handle>, buf: *mut c_void, cap: usize) -> usize {
    value(|| {
        let resource = &*handle(lock)?.resource;
        // SAFETY: the header demands room for `cap` bytes.
        unsafe { copy(resource, buf.cast(), cap) };
        Ok(resource.len())
    })
}

// ---- extending and ending ---------------------------------------------------------------------

#[unsafe(no_mangle)]
extern "C" fn redlock_lock_extend(lock: Option<&Handle>, ttl: u64) -> c_int {
    status(|| {
        let handle = handle(lock)?;
        match &mut *handle.change()? {
            HeldHandle::Plain(lock) => lock.extend(ms(ttl))?,
            HeldHandle::Reentrant(entry) => entry.lock()?.extend(ms(ttl))?,
            HeldHandle::Kept(_) => {
                let text = "the lock is kept alive: it is renewed by itself";
                return Err(CFailure::config(text));
            }
            HeldHandle::Ended => return Err(handle.ended()),
        }
        Ok(())
    })
}

/// Ends what `lock` holds, and frees it.
///
/// # Safety
///
/// `lock` is NULL or a live handle that only its callbacks use beside this call.
unsafe fn end(
    lock: *mut Handle,
    can: impl FnOnce(&HeldHandle) -> Result<(), CFailure>,
    work: impl FnOnce(HeldHandle, &Handle) -> Result<(), CFailure>,
) -> Result<(), CFailure> {
    // SAFETY: alive until it is made a box again below; callbacks share it until then.
    let Some(handle) = (unsafe { lock.as_ref() }) else {
        return Ok(());
    };
    // CONFIG, also in a function for a loss: LOST means that the handle is freed.
    let called_back = callback::is_running(handle.address());
    let called_back = called_back.map(|_| CFailure::config("a function of a lock must not end it"));
    if let Some(failure) = called_back.or_else(|| handle.in_call()) {
        return Err(failure);
    }
    let mut result = Ok(Err(handle.lost(LostReason::OtherProcess)));
    // In a forked child the held lock is inert, and its mutexes must not be touched.
    if handle.is_ours() {
        // Until the handle is freed, a function for events must not end it, too.
        let _use = Use::new(handle.address(), || ());
        let held = handle.held.write();
        let mut held = held.unwrap_or_else(PoisonError::into_inner);
        can(&held)?;
        let old = replace(&mut *held, HeldHandle::Ended);
        drop(held);
        let held = old;
        result = catch_unwind(AssertUnwindSafe(|| work(held, handle)));
        end_callbacks(handle.take_callbacks());
    }
    // SAFETY: the handle was made from a box, and is ended exactly once; the callbacks are done.
    drop(unsafe { Box::from_raw(lock) });
    result.unwrap_or_else(|panic| resume_unwind(panic))
}

#[unsafe(no_mangle)]
extern "C" fn redlock_lock_release(lock: *mut Handle) -> c_int {
    let work = |held, handle: &Handle| match held {
        HeldHandle::Plain(lock) => lock.release().map_err(Into::into),
        HeldHandle::Kept(lock) => lock.release().map_err(Into::into),
        HeldHandle::Reentrant(mut entry) => {
            entry.check()?;
            // SAFETY: the lock is taken out once: what is left of the entry is forgotten.
            let lock = unsafe { ManuallyDrop::take(&mut entry.lock) };
            std::mem::forget(entry);
            lock.release().map_err(Into::into)
        }
        HeldHandle::Ended => Err(handle.ended()),
    };
    let can = |held: &HeldHandle| match held {
        HeldHandle::Reentrant(entry) => entry.check(),
        _ => Ok(()),
    };
    // SAFETY: the header demands it.
    status(|| unsafe { end(lock, can, work) })
}

fn can_leak(held: &HeldHandle) -> Result<(), CFailure> {
    match held {
        HeldHandle::Reentrant(_) => Err(is_reentrant()),
        _ => Ok(()),
    }
}

#[unsafe(no_mangle)]
extern "C" fn redlock_lock_leak(lock: *mut Handle) -> c_int {
    let work = |held, _: &Handle| {
        match held {
            HeldHandle::Plain(lock) => lock.leak(),
            HeldHandle::Kept(lock) => lock.stop().leak(),
            HeldHandle::Reentrant(_) | HeldHandle::Ended => {}
        }
        Ok(())
    };
    // SAFETY: the header demands it.
    status(|| unsafe { end(lock, can_leak, work) })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_lock_leak_for(lock: *mut Handle, time: u64) -> c_int {
    let work = |held, handle: &Handle| match held {
        HeldHandle::Plain(lock) => lock.leak_for(ms(time)).map_err(Into::into),
        HeldHandle::Kept(lock) => lock.stop().leak_for(ms(time)).map_err(Into::into),
        HeldHandle::Reentrant(_) | HeldHandle::Ended => Err(handle.ended()),
    };
    // SAFETY: the header demands it.
    status(|| unsafe { end(lock, can_leak, work) })
}
