//! Mutexes, conditions, atomics and threads: each call is a point at which another thread may go on.

use std::sync::{Arc, LockResult, TryLockError, TryLockResult};
use std::time::Duration;

use shuttle::future::batch_semaphore::{BatchSemaphore, Fairness};

use super::time::{self, Waiter, turn};

pub(crate) use std::sync::PoisonError;

/// A mutex.
pub(crate) struct Mutex<T: ?Sized> {
    turn: BatchSemaphore,
    data: std::sync::Mutex<T>,
}

pub(crate) struct MutexGuard<'a, T: ?Sized> {
    mutex: &'a Mutex<T>,
    guard: Option<std::sync::MutexGuard<'a, T>>,
}

impl<T> Mutex<T> {
    pub(crate) const fn new(data: T) -> Mutex<T> {
        Mutex {
            turn: BatchSemaphore::const_new(1, Fairness::Unfair),
            data: std::sync::Mutex::new(data),
        }
    }

    pub(crate) fn into_inner(self) -> LockResult<T> {
        self.data.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    pub(crate) fn try_lock(&self) -> TryLockResult<MutexGuard<'_, T>> {
        let free = self.turn.try_acquire(1);
        free.map_err(|_| TryLockError::WouldBlock)?;
        Ok(self.guard()?)
    }

    pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        let _ = self.turn.acquire_blocking(1);
        self.guard()
    }

    /// The data, when it is this thread's turn.
    fn guard(&self) -> LockResult<MutexGuard<'_, T>> {
        let guarded = |guard| MutexGuard {
            mutex: self,
            guard: Some(guard),
        };
        match self.data.try_lock() {
            Ok(guard) => Ok(guarded(guard)),
            Err(TryLockError::Poisoned(guard)) => {
                Err(PoisonError::new(guarded(guard.into_inner())))
            }
            Err(TryLockError::WouldBlock) => panic!("the schedule was abandoned"),
        }
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Mutex<T> {
        Mutex::new(T::default())
    }
}

impl<T: ?Sized> std::fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mutex")
    }
}

impl<T: ?Sized> std::panic::UnwindSafe for Mutex<T> {}
impl<T: ?Sized> std::panic::RefUnwindSafe for Mutex<T> {}

impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        self.guard = None;
        self.mutex.turn.release(1);
    }
}

impl<T: ?Sized> std::ops::Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.guard.as_ref().unwrap()
    }
}

impl<T: ?Sized> std::ops::DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_mut().unwrap()
    }
}

/// A condition that threads wait for.
#[derive(Default)]
pub(crate) struct Condvar(std::sync::Mutex<Vec<Arc<Waiter>>>);

impl std::panic::UnwindSafe for Condvar {}
impl std::panic::RefUnwindSafe for Condvar {}

impl Condvar {
    pub(crate) const fn new() -> Condvar {
        Condvar(std::sync::Mutex::new(Vec::new()))
    }

    pub(crate) fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        time: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, ())> {
        let waiter = Waiter::new();
        let until = time::now() + time;
        self.0.lock().unwrap().push(waiter.clone());
        let mutex = guard.mutex;
        drop(guard);
        waiter.wait(Some(until));
        let others = |one: &Arc<Waiter>| !Arc::ptr_eq(one, &waiter);
        self.0.lock().unwrap().retain(others);
        match mutex.lock() {
            Ok(guard) => Ok((guard, ())),
            Err(guard) => Err(PoisonError::new((guard.into_inner(), ()))),
        }
    }

    pub(crate) fn notify_one(&self) {
        turn();
        let mut waiters = self.0.lock().unwrap();
        waiters.retain(|one| !one.is_woken());
        if !waiters.is_empty() {
            let at = time::below(waiters.len() as u64);
            waiters.remove(usize::try_from(at).unwrap()).wake();
        }
    }

    pub(crate) fn notify_all(&self) {
        turn();
        self.0.lock().unwrap().drain(..).for_each(|one| one.wake());
    }
}

pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::Ordering;

    use super::super::time::turn;

    macro_rules! atomics {
        ($($atomic:ident: $type:ty,)+) => {
            $(
                #[derive(Debug, Default)]
                pub(crate) struct $atomic(std::sync::atomic::$atomic);

                #[allow(dead_code)]
                impl $atomic {
                    pub(crate) const fn new(value: $type) -> Self {
                        Self(std::sync::atomic::$atomic::new(value))
                    }

                    pub(crate) fn load(&self, order: Ordering) -> $type {
                        turn();
                        self.0.load(order)
                    }

                    pub(crate) fn store(&self, value: $type, order: Ordering) {
                        turn();
                        self.0.store(value, order);
                    }

                    pub(crate) fn swap(&self, value: $type, order: Ordering) -> $type {
                        turn();
                        self.0.swap(value, order)
                    }

                    pub(crate) fn compare_exchange(
                        &self,
                        from: $type,
                        to: $type,
                        success: Ordering,
                        failure: Ordering,
                    ) -> Result<$type, $type> {
                        turn();
                        self.0.compare_exchange(from, to, success, failure)
                    }
                }
            )+
        };
    }

    macro_rules! numbers {
        ($($atomic:ident: $type:ty,)+) => {
            atomics! { $($atomic: $type,)+ }
            $(
                #[allow(dead_code)]
                impl $atomic {
                    pub(crate) fn fetch_add(&self, value: $type, order: Ordering) -> $type {
                        turn();
                        self.0.fetch_add(value, order)
                    }

                    pub(crate) fn fetch_sub(&self, value: $type, order: Ordering) -> $type {
                        turn();
                        self.0.fetch_sub(value, order)
                    }

                    pub(crate) fn fetch_xor(&self, value: $type, order: Ordering) -> $type {
                        turn();
                        self.0.fetch_xor(value, order)
                    }
                }
            )+
        };
    }

    atomics! { AtomicBool: bool, }
    numbers! { AtomicU16: u16, AtomicU32: u32, AtomicU64: u64, AtomicUsize: usize, }
}

pub(crate) mod thread {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use super::super::time::turn;
    use super::time::{self, Slot, Waiter};

    pub(crate) use std::thread::scope;

    /// A thread, to be woken.
    #[derive(Clone)]
    pub(crate) struct Thread(Arc<Mutex<Slot>>);

    impl Thread {
        pub(crate) fn unpark(&self) {
            turn();
            let mut slot = self.0.lock().unwrap();
            match slot.waiter.take() {
                Some(waiter) if !waiter.is_woken() => waiter.wake(),
                _ => slot.token = true,
            }
        }
    }

    pub(crate) fn current() -> Thread {
        Thread(time::slot())
    }

    pub(crate) fn park() {
        park_until(None);
    }

    pub(crate) fn park_timeout(time: Duration) {
        park_until(Some(time::now() + time));
    }

    fn park_until(until: Option<Duration>) {
        let slot = time::slot();
        turn();
        let waiter = {
            let mut slot = slot.lock().unwrap();
            if std::mem::take(&mut slot.token) {
                return;
            }
            let waiter = Waiter::new();
            slot.waiter = Some(waiter.clone());
            waiter
        };
        waiter.wait(until);
        slot.lock().unwrap().waiter = None;
    }

    pub(crate) fn sleep(time: Duration) {
        Waiter::new().wait(Some(time::now() + time));
    }

    pub(crate) fn yield_now() {
        shuttle::thread::yield_now();
    }

    pub(crate) struct Builder(String);

    impl Builder {
        pub(crate) fn new() -> Builder {
            Builder(String::new())
        }

        pub(crate) fn name(self, name: String) -> Builder {
            Builder(name)
        }

        pub(crate) fn spawn<T: Send + 'static>(
            self,
            work: impl FnOnce() -> T + Send + 'static,
        ) -> std::io::Result<shuttle::thread::JoinHandle<T>> {
            let running = Running(time::begins(&self.0));
            turn();
            Ok(shuttle::thread::spawn(move || {
                let _running = running;
                work()
            }))
        }

        /// Scopes are not scheduled: only the lanes of Clusters use them.
        pub(crate) fn spawn_scoped<'scope, 'env, T>(
            self,
            _: &'scope std::thread::Scope<'scope, 'env>,
            _: impl FnOnce() -> T + Send + 'scope,
        ) -> std::io::Result<()> {
            Err(std::io::Error::other("no scopes"))
        }
    }

    struct Running(u64);

    impl Drop for Running {
        fn drop(&mut self) {
            time::ends(self.0);
        }
    }
}
