//! The library's log messages, for C.
//!
//! A message can come from any thread, also in a forked child, and `fn` may use the library. So no mutex is taken here:
//! the function that C has set is published by one pointer, to a sink that counts the calls that are running.

use std::cell::{Cell, RefCell};
use std::ffi::{CString, c_char, c_int, c_void};
use std::marker::PhantomData;
use std::ptr::{addr_eq, null, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use log::{Level, LevelFilter, Log, Metadata, Record};

use super::{
    CFailure, REDLOCK_LOG_DEBUG, REDLOCK_LOG_ERROR, REDLOCK_LOG_INFO, REDLOCK_LOG_TRACE,
    REDLOCK_LOG_WARN, status,
};

type LogFn = unsafe extern "C" fn(c_int, *const c_char, *mut c_void);

/// How often to look whether calls of a function that was replaced are over.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(1);

// ---- what C has set ---------------------------------------------------------------------------

/// The sink of one `redlock_set_log`. Never freed: a thread may be about to count itself.
struct Sink {
    /// `None`: off.
    function: Option<LogFn>,
    user: *mut c_void,
    max_level: LevelFilter,
    calls: Calls,
    /// The previous sink, so that tools that look for leaks find it.
    older: *const Sink,
}

// SAFETY: `user` is only handed to `function`, which by the header runs in any thread; `older` is never used.
unsafe impl Sync for Sink {}

/// How many threads are in a function. A forked child inherits the number, but not the threads: the process that
/// counts is in the upper half.
#[derive(Default)]
pub(super) struct Calls(AtomicU64);

impl Calls {
    pub(super) fn begin(&self, process: u32) {
        let none = u64::from(process) << 32;
        self.change(|calls| if is_of(calls, process) { calls } else { none } + 1);
    }

    /// `process`: the one in which the call began. A child that was forked in the function does not end that call.
    pub(super) fn end(&self, process: u32) {
        self.change(|calls| calls - u64::from(is_of(calls, process)));
    }

    pub(super) fn any(&self, process: u32) -> bool {
        let calls = self.0.load(SeqCst);
        is_of(calls, process) && calls << 32 > 0
    }

    fn change(&self, change: impl Fn(u64) -> u64) {
        let mut calls = self.0.load(SeqCst);
        let exchange = |from| {
            self.0
                .compare_exchange_weak(from, change(from), SeqCst, SeqCst)
        };
        while let Err(now) = exchange(calls) {
            calls = now;
        }
    }
}

fn is_of(calls: u64, process: u32) -> bool {
    calls >> 32 == u64::from(process)
}

// ---- the logger -------------------------------------------------------------------------------

static LOGGER: Logger = Logger {
    sink: AtomicPtr::new(null_mut()),
};

struct Logger {
    /// Null, or leaked.
    sink: AtomicPtr<Sink>,
}

thread_local! {
    /// Whether this thread is in a function that C has set.
    static CALLING: Cell<bool> = const { Cell::new(false) };
    /// The number of guards in this thread that such a function may wait for.
    static GUARDS: Cell<u32> = const { Cell::new(0) };
    /// The messages that were logged meanwhile.
    static HELD_BACK: RefCell<Vec<(Level, CString)>> = const { RefCell::new(Vec::new()) };
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == crate::LOG_TARGET
    }

    fn log(&self, record: &Record<'_>) {
        // Messages from within the function are not passed to it: that would have no end.
        if !self.enabled(record.metadata()) || CALLING.get() {
            return;
        }
        let text = record.args().to_string().replace('\0', "\\0");
        let Ok(text) = CString::new(text) else {
            return;
        };
        if GUARDS.get() == 0 {
            self.pass(record.level(), &text);
        } else {
            // In a thread that is ending there may be no place for it.
            let _ = HELD_BACK.try_with(|lines| lines.borrow_mut().push((record.level(), text)));
        }
    }

    fn flush(&self) {}
}

impl Logger {
    fn current(&self) -> Option<&'static Sink> {
        // SAFETY: null, or leaked.
        unsafe { self.sink.load(SeqCst).as_ref() }
    }

    fn is(&self, sink: &Sink) -> bool {
        self.current().is_some_and(|now| std::ptr::eq(now, sink))
    }

    /// Calls C's function. No lock is held here.
    fn pass(&self, level: Level, text: &CString) {
        let process = std::process::id();
        while let Some(sink) = self.current() {
            if !self.begin(sink, process) {
                continue;
            }
            if level <= sink.max_level
                && let Some(function) = sink.function
            {
                CALLING.set(true);
                // SAFETY: the caller's function with the caller's argument, which the header wants to live
                // until it is replaced: that waits until this is over.
                unsafe { function(code(level), text.as_ptr(), sink.user) };
                CALLING.set(false);
            }
            return sink.calls.end(process);
        }
    }

    /// Whether this call was counted before the function was replaced, so that the replacing thread waits for it.
    fn begin(&self, sink: &Sink, process: u32) -> bool {
        sink.calls.begin(process);
        let begun = self.is(sink);
        if !begun {
            sink.calls.end(process);
        }
        begun
    }

    /// Whether this logger is the one of this process's `log`.
    fn is_installed(&self) -> bool {
        addr_eq(log::logger(), self)
    }

    /// Sets the function. Returns when no other thread is in the function that was set before.
    fn set(&self, function: Option<LogFn>, user: *mut c_void, max_level: LevelFilter) {
        let sink = Box::leak(Box::new(Sink {
            function,
            user,
            max_level,
            calls: Calls::default(),
            older: null(),
        }));
        let mut old = self.sink.load(SeqCst);
        loop {
            sink.older = old;
            match self.sink.compare_exchange(old, sink, SeqCst, SeqCst) {
                Ok(_) => break,
                Err(now) => old = now,
            }
        }
        self.use_level_of(sink);
        // SAFETY: null, or leaked.
        let old = unsafe { old.as_ref() };
        let process = std::process::id();
        // (A function that sets another one would wait for itself.)
        while !CALLING.get() && old.is_some_and(|old| old.calls.any(process)) {
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Uses the level of this sink, or of a later one: several threads may replace it at once.
    fn use_level_of(&self, mut sink: &'static Sink) {
        log::set_max_level(sink.max_level);
        while !self.is(sink)
            && let Some(last) = self.current()
        {
            log::set_max_level(last.max_level);
            sink = last;
        }
    }
}

fn code(level: Level) -> c_int {
    match level {
        Level::Error => REDLOCK_LOG_ERROR,
        Level::Warn => REDLOCK_LOG_WARN,
        Level::Info => REDLOCK_LOG_INFO,
        Level::Debug => REDLOCK_LOG_DEBUG,
        Level::Trace => REDLOCK_LOG_TRACE,
    }
}

#[unsafe(no_mangle)]
extern "C" fn redlock_set_log(
    max_level: c_int,
    function: Option<LogFn>,
    user: *mut c_void,
) -> c_int {
    status(|| {
        if function.is_none() {
            if LOGGER.is_installed() {
                LOGGER.set(None, null_mut(), LevelFilter::Off);
            }
            return Ok(());
        }
        let filters = LevelFilter::iter().skip(1).zip(REDLOCK_LOG_ERROR..);
        let Some((filter, _)) = filters.into_iter().find(|(_, code)| *code == max_level) else {
            return Err(CFailure::config(format!(
                "max_level is {max_level}: it must be {REDLOCK_LOG_ERROR} to {REDLOCK_LOG_TRACE}"
            )));
        };
        let _ = log::set_logger(&LOGGER);
        if !LOGGER.is_installed() {
            let text = "this is a Rust program with a logger of its own: it gets what is logged";
            return Err(CFailure::config(text));
        }
        LOGGER.set(function, user, filter);
        Ok(())
    })
}

// ---- what a handle's guard holds back ---------------------------------------------------------

/// The guard of a lock that C's function may want, too. Messages that this thread logs are passed on when it no longer
/// has such a guard.
pub(super) struct LoggerGuard<G> {
    pub(super) guard: G,
    /// Declared behind the guard, so that it is dropped after it.
    _holds_back: HoldsBack,
}

impl<G> LoggerGuard<G> {
    pub(super) fn new(take: impl FnOnce() -> G) -> LoggerGuard<G> {
        let holds_back = HoldsBack::new();
        LoggerGuard {
            guard: take(),
            _holds_back: holds_back,
        }
    }
}

/// A mark of a guard, which stays in its thread.
struct HoldsBack(PhantomData<*const ()>);

impl HoldsBack {
    fn new() -> HoldsBack {
        GUARDS.set(GUARDS.get() + 1);
        HoldsBack(PhantomData)
    }
}

impl Drop for HoldsBack {
    fn drop(&mut self) {
        GUARDS.set(GUARDS.get() - 1);
        if GUARDS.get() == 0 {
            let lines = HELD_BACK.try_with(RefCell::take).unwrap_or_default();
            for (level, text) in &lines {
                LOGGER.pass(*level, text);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicUsize};
    use std::time::Instant;

    use crate::values::sync::lock;

    use super::*;

    #[test]
    fn calls_count_in_one_process_only() {
        let calls = Calls::default();
        assert!(!calls.any(1));
        calls.begin(1);
        calls.begin(1);
        assert!(calls.any(1));
        calls.end(1);
        assert!(calls.any(1));
        // A child: no call is running. One call more, and the end of the one in which it was forked.
        assert!(!calls.any(2));
        calls.begin(2);
        assert!(calls.any(2));
        calls.end(1);
        assert!(calls.any(2));
        calls.end(2);
        assert!(!calls.any(2) && !calls.any(1));
        calls.end(1);
        assert!(!calls.any(2));
    }

    /// The level is the process's.
    static ALONE: Mutex<()> = Mutex::new(());

    fn logger() -> Logger {
        Logger {
            sink: AtomicPtr::new(null_mut()),
        }
    }

    #[derive(Default)]
    struct User {
        gone: AtomicBool,
        calls: AtomicUsize,
        too_late: AtomicUsize,
    }

    unsafe extern "C" fn function(_: c_int, _: *const c_char, user: *mut c_void) {
        // SAFETY: what the test passes, which lives to its end.
        let user = unsafe { &*user.cast::<User>() };
        user.calls.fetch_add(1, SeqCst);
        std::thread::yield_now();
        user.too_late
            .fetch_add(user.gone.load(SeqCst).into(), SeqCst);
    }

    #[test]
    fn what_was_replaced_is_no_longer_used() {
        let _alone = lock(&ALONE);
        let (logger, over) = (logger(), AtomicBool::new(false));
        let users: Vec<User> = (0..100).map(|_| User::default()).collect();
        let end = Instant::now() + Duration::from_secs(60);
        let is_called = |user: &User| {
            while user.calls.load(SeqCst) == 0 && Instant::now() < end {
                std::thread::yield_now();
            }
            user.calls.load(SeqCst) > 0
        };
        // No panic in there: the scope would wait for its threads for ever.
        let all_are_called = std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !over.load(SeqCst) {
                        logger.pass(Level::Warn, &c"a".to_owned());
                    }
                });
            }
            let all_are_called = users.iter().all(|user| {
                let pointer = std::ptr::from_ref(user).cast_mut().cast();
                logger.set(Some(function), pointer, LevelFilter::Warn);
                let is_called = is_called(user);
                logger.set(None, null_mut(), LevelFilter::Off);
                user.gone.store(true, SeqCst);
                is_called
            });
            over.store(true, SeqCst);
            all_are_called
        });
        assert!(
            all_are_called,
            "a function that is set is not called within 60 s"
        );
        assert!(users.iter().all(|user| user.too_late.load(SeqCst) == 0));
    }

    #[test]
    fn a_call_that_comes_too_late_does_not_begin() {
        let _alone = lock(&ALONE);
        let logger = logger();
        logger.set(None, null_mut(), LevelFilter::Off);
        let sink = logger.current().unwrap();
        assert!(logger.begin(sink, 1) && sink.calls.any(1));
        sink.calls.end(1);
        // The sink is replaced between a thread's look at it and the thread's count.
        logger.set(None, null_mut(), LevelFilter::Off);
        assert!(!logger.begin(sink, 1) && !sink.calls.any(1));
    }

    #[test]
    fn the_level_is_the_one_that_was_set_last() {
        let _alone = lock(&ALONE);
        let logger = logger();
        logger.set(None, null_mut(), LevelFilter::Info);
        let first = logger.current().unwrap();
        assert_eq!(log::max_level(), LevelFilter::Info);
        logger.set(None, null_mut(), LevelFilter::Debug);
        logger.use_level_of(first);
        assert_eq!(log::max_level(), LevelFilter::Debug);
        log::set_max_level(LevelFilter::Off);
    }
}
