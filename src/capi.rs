//! The C interface. Its manual is `redlock.h`, beside this file; here stands only how it is done. Log messages:
//! `capi/log.rs`.
//!
//! A handle comes in as a reference that may be null and an output goes out through
//! `MaybeUninit`, both of which have C's representation: what the header demands of pointers is
//! all that is left to trust.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::{ManuallyDrop, MaybeUninit, replace};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use crate::clock;
use crate::sync::lock;
use crate::{Error, KeptLock, Lock, LostReason, Options, Redlock, ReentrantLock, Tls, Token};

mod log;

/// Longer than any resource can be; also what a slice may have.
const MAX_LEN: usize = 1 << 30;
/// Far more than any redlock can have.
const MAX_URLS: usize = 1 << 10;
/// While somebody waits for a loss, whoever changes that lock waits so long for them.
const WAIT_SLICE: Duration = Duration::from_millis(50);

macro_rules! constants {
    ($($name:ident = $value:literal;)*) => {
        $(const $name: c_int = $value;)*

        /// To be compared with the header.
        #[cfg(test)]
        const CONSTANTS: &[(&str, c_int)] = &[$((stringify!($name), $name)),*];
    };
}

constants! {
    REDLOCK_OK = 0;
    REDLOCK_BUSY = 1;
    REDLOCK_LOST = 2;
    REDLOCK_TOO_SLOW = 3;
    REDLOCK_UNAVAILABLE = 4;
    REDLOCK_EXTENSION_LIMIT = 5;
    REDLOCK_CANCELLED = 6;
    REDLOCK_CONFIG = 7;
    REDLOCK_RANDOM = 8;
    REDLOCK_PANIC = 9;

    REDLOCK_OPTION_WAIT_MS = 1;
    REDLOCK_OPTION_RETRY_DELAY_MIN_MS = 2;
    REDLOCK_OPTION_RETRY_DELAY_MAX_MS = 3;
    REDLOCK_OPTION_NODE_TIMEOUT_MS = 4;
    REDLOCK_OPTION_CONNECT_TIMEOUT_MS = 5;
    REDLOCK_OPTION_MAX_EXTENSIONS = 6;
    REDLOCK_OPTION_RESTART_GUARD_MS = 7;
    REDLOCK_OPTION_FAIR = 8;

    REDLOCK_REASON_NONE = 0;
    REDLOCK_REASON_TAKEN = 1;
    REDLOCK_REASON_EXPIRED = 2;
    REDLOCK_REASON_HOLD_LIMIT = 3;

    REDLOCK_LOG_ERROR = 1;
    REDLOCK_LOG_WARN = 2;
    REDLOCK_LOG_INFO = 3;
    REDLOCK_LOG_DEBUG = 4;
    REDLOCK_LOG_TRACE = 5;

    REDLOCK_TOKEN_SIZE = 20;
}

// ---- errors and panics at the C boundary ------------------------------------------------------

/// A status code and the text for `redlock_last_error`.
struct Failure {
    code: c_int,
    text: String,
    outlook: Outlook,
}

/// Of nodes that gave no verdict.
#[derive(Clone, Copy, Default)]
struct Outlook {
    /// In milliseconds; zero: unknown.
    retry_after: u64,
    /// They refuse for good.
    permanent: bool,
}

impl Failure {
    fn config(text: impl Into<String>) -> Failure {
        Failure {
            code: REDLOCK_CONFIG,
            text: text.into(),
            outlook: Outlook::default(),
        }
    }

    fn null(what: &str) -> Failure {
        Failure::config(format!("{what} is NULL"))
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let code = match error {
            Error::Busy => REDLOCK_BUSY,
            Error::Lost => REDLOCK_LOST,
            Error::TooSlow => REDLOCK_TOO_SLOW,
            Error::Unavailable(_) => REDLOCK_UNAVAILABLE,
            Error::ExtensionLimit(_) => REDLOCK_EXTENSION_LIMIT,
            Error::Cancelled => REDLOCK_CANCELLED,
            Error::Config(_) => REDLOCK_CONFIG,
            Error::Random(_) => REDLOCK_RANDOM,
        };
        let text = error.to_string();
        let (wait, permanent) = match &error {
            Error::Unavailable(nodes) => (nodes.retry_after(), nodes.is_permanent()),
            _ => (None, false),
        };
        // Rounded up: when it is over enough nodes vote.
        let wait = wait.map(|wait| wait.as_nanos().div_ceil(1_000_000));
        let retry_after = wait.map_or(0, |ms| u64::try_from(ms).unwrap_or(u64::MAX));
        Failure {
            code,
            text,
            outlook: Outlook {
                retry_after,
                permanent,
            },
        }
    }
}

thread_local! {
    static LAST_ERROR: RefCell<String> = const { RefCell::new(String::new()) };
    static LAST_OUTLOOK: Cell<Outlook> = const { Cell::new(Outlook { retry_after: 0, permanent: false }) };
    /// The lock whose callback is running in this thread, by its address.
    static CALLED_BACK: Cell<usize> = const { Cell::new(0) };
}

/// Nothing unwinds into C, and a failure leaves its text.
fn status(work: impl FnOnce() -> Result<(), Failure>) -> c_int {
    let failure = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return REDLOCK_OK,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().copied();
            let text = text.or_else(|| panic.downcast_ref().map(String::as_str));
            Failure {
                code: REDLOCK_PANIC,
                text: format!("a bug in redlock-sync: {}", text.unwrap_or("a panic")),
                outlook: Outlook::default(),
            }
        }
    };
    // In a thread that is ending there may be no place any more.
    let _ = LAST_ERROR.try_with(|last| last.replace(failure.text));
    let _ = LAST_OUTLOOK.try_with(|last| last.set(failure.outlook));
    failure.code
}

/// The same for a function that returns a value; what a lock that is lost would say, if it fails.
fn value<T: Default>(work: impl FnOnce() -> Result<T, Failure>) -> T {
    let mut result = T::default();
    status(|| {
        result = work()?;
        Ok(())
    });
    result
}

/// The same for a function that makes a handle.
fn make<T>(
    out: Option<&mut MaybeUninit<Option<Box<T>>>>,
    work: impl FnOnce() -> Result<T, Failure>,
) -> c_int {
    let mut made = None;
    let code = status(|| {
        if out.is_none() {
            return Err(Failure::null("out"));
        }
        made = Some(Box::new(work()?));
        Ok(())
    });
    if let Some(out) = out {
        out.write(made);
    }
    code
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn to_ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// # Safety
///
/// `data` is NULL or has `len` bytes.
unsafe fn bytes<'a>(data: *const c_void, len: usize) -> Result<&'a [u8], Failure> {
    if len > MAX_LEN {
        return Err(Failure::config(format!("the resource is {len} bytes long")));
    }
    match len {
        0 => Ok(&[]),
        _ if data.is_null() => Err(Failure::null("the resource")),
        // SAFETY: not null, and the caller vouches for the length, which a slice may have.
        _ => Ok(unsafe { std::slice::from_raw_parts(data.cast(), len) }),
    }
}

/// Copies what fits.
///
/// # Safety
///
/// `buf` is NULL or has room for `cap` bytes.
unsafe fn copy(from: &[u8], buf: *mut u8, cap: usize) {
    if !buf.is_null() {
        // SAFETY: no more than either side has; one of them is ours, so they do not overlap.
        unsafe { buf.copy_from_nonoverlapping(from.as_ptr(), from.len().min(cap)) };
    }
}

// ---- version, codes, errors -------------------------------------------------------------------

const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");

/// A part of the version; Cargo makes sure that it is a number.
const fn number(digits: &str) -> u32 {
    let digits = digits.as_bytes();
    let mut number = 0;
    let mut i = 0;
    while i < digits.len() {
        #[allow(clippy::indexing_slicing)] // OK because of the condition above.
        let digit = digits[i] - b'0';
        number = number * 10 + digit as u32;
        i += 1;
    }
    number
}

#[unsafe(no_mangle)]
extern "C" fn redlock_version_number() -> u32 {
    const {
        number(env!("CARGO_PKG_VERSION_MAJOR")) * 1_000_000
            + number(env!("CARGO_PKG_VERSION_MINOR")) * 1_000
            + number(env!("CARGO_PKG_VERSION_PATCH"))
    }
}

#[unsafe(no_mangle)]
extern "C" fn redlock_version_string() -> *const c_char {
    VERSION.as_ptr().cast()
}

#[unsafe(no_mangle)]
extern "C" fn redlock_status_string(status: c_int) -> *const c_char {
    let text = match status {
        REDLOCK_OK => c"success",
        REDLOCK_BUSY => c"the lock is held by another",
        REDLOCK_LOST => c"the lock is no longer held",
        REDLOCK_TOO_SLOW => c"not enough of the lock's validity is left",
        REDLOCK_UNAVAILABLE => c"too few nodes answered for a verdict",
        REDLOCK_EXTENSION_LIMIT => c"the limit of extensions is reached",
        REDLOCK_CANCELLED => c"told to stop waiting for the lock",
        REDLOCK_CONFIG => c"something passed in cannot work",
        REDLOCK_RANDOM => c"the operating system gave no random bytes",
        REDLOCK_PANIC => c"a bug in redlock-sync",
        _ => c"no status code of redlock-sync",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn redlock_last_retry_after_ms() -> u64 {
    LAST_OUTLOOK
        .try_with(Cell::get)
        .unwrap_or_default()
        .retry_after
}

#[unsafe(no_mangle)]
extern "C" fn redlock_last_is_permanent() -> c_int {
    c_int::from(
        LAST_OUTLOOK
            .try_with(Cell::get)
            .unwrap_or_default()
            .permanent,
    )
}

#[unsafe(no_mangle)]
extern "C" fn redlock_last_error(buf: *mut c_char, cap: usize) -> usize {
    let show = |last: &RefCell<String>| {
        let text = last.borrow();
        if let Some(room) = cap.checked_sub(1).filter(|_| !buf.is_null()) {
            // A character is copied whole or not at all.
            let fits = (0..=room.min(text.len())).rev();
            let end = fits.into_iter().find(|end| text.is_char_boundary(*end));
            let end = end.unwrap_or(0);
            let buf = buf.cast::<u8>();
            // SAFETY: the header demands room for `cap` bytes, and `end` is less than that.
            unsafe {
                copy(text.as_bytes(), buf, end);
                buf.add(end).write(0);
            }
        }
        text.len()
    };
    // No `status` here: it would replace the text.
    let text = catch_unwind(AssertUnwindSafe(|| LAST_ERROR.try_with(show)));
    text.ok().and_then(Result::ok).unwrap_or(0)
}

// ---- the client object ------------------------------------------------------------------------

/// `redlock_t`. No call keeps its lock for longer than it takes to clone what is in it: so a forked
/// child can clone it too, unless an option was being set in that moment.
struct Client {
    process: u32,
    settings: RwLock<Settings>,
}

#[derive(Clone)]
struct Settings {
    redlock: Redlock,
    options: Options,
    /// The options do not tell, and C sets them one after the other.
    retry_delay: (u64, u64),
}

impl Settings {
    fn new(redlock: Redlock) -> Settings {
        let retry_delay = (50, 250);
        Settings {
            redlock,
            options: Options::new().retry_delay(ms(retry_delay.0), ms(retry_delay.1)),
            retry_delay,
        }
    }

    fn set(mut self, option: c_int, value: u64) -> Result<Settings, Failure> {
        let options = self.options.clone();
        let (min, max) = self.retry_delay;
        let options = match option {
            REDLOCK_OPTION_WAIT_MS => options.wait(ms(value)),
            REDLOCK_OPTION_RETRY_DELAY_MIN_MS | REDLOCK_OPTION_RETRY_DELAY_MAX_MS => {
                let (min, max) = if option == REDLOCK_OPTION_RETRY_DELAY_MIN_MS {
                    (value, max.max(value))
                } else {
                    (min.min(value), value)
                };
                self.retry_delay = (min, max);
                options.retry_delay(ms(min), ms(max))
            }
            REDLOCK_OPTION_NODE_TIMEOUT_MS => options.node_timeout(ms(value)),
            REDLOCK_OPTION_CONNECT_TIMEOUT_MS => options.connect_timeout(ms(value)),
            REDLOCK_OPTION_RESTART_GUARD_MS => options.restart_guard(ms(value)),
            REDLOCK_OPTION_MAX_EXTENSIONS => {
                let limit = u32::try_from(value).map_err(|_| {
                    let text =
                        format!("max_extensions is {value}: it must be at most {}", u32::MAX);
                    Failure::config(text)
                })?;
                options.max_extensions(limit)
            }
            REDLOCK_OPTION_FAIR => match value {
                0 | 1 => options.fair(value == 1),
                _ => {
                    return Err(Failure::config(format!(
                        "fair is {value}: it must be 0 or 1"
                    )));
                }
            },
            _ => return Err(Failure::config(format!("there is no option {option}"))),
        };
        self.with(options)
    }

    fn with(mut self, options: Options) -> Result<Settings, Failure> {
        self.redlock = self.redlock.with_options(options.clone())?;
        self.options = options;
        Ok(self)
    }
}

impl Client {
    fn redlock(&self) -> Redlock {
        let settings = self.settings.read().unwrap_or_else(PoisonError::into_inner);
        settings.redlock.clone()
    }
}

fn redlock_of(client: Option<&Client>) -> Result<Redlock, Failure> {
    Ok(client.ok_or_else(|| Failure::null("redlock"))?.redlock())
}

#[unsafe(no_mangle)]
extern "C" fn redlock_new(
    urls: *const *const c_char,
    n: usize,
    out: Option<&mut MaybeUninit<Option<Box<Client>>>>,
) -> c_int {
    make(out, || {
        if urls.is_null() {
            return Err(Failure::null("urls"));
        }
        if n > MAX_URLS {
            return Err(Failure::config(format!("{n} nodes are too many")));
        }
        let mut nodes = Vec::with_capacity(n);
        for i in 0..n {
            // SAFETY: the header demands n of them.
            let url = unsafe { *urls.add(i) };
            if url.is_null() {
                return Err(Failure::null(&format!("the URL of node {i}")));
            }
            // SAFETY: not null, and the header demands a string.
            let url = unsafe { CStr::from_ptr(url) };
            let not_text = |_| Failure::config(format!("the URL of node {i} is not UTF-8"));
            nodes.push(url.to_str().map_err(not_text)?);
        }
        Ok(Client {
            process: std::process::id(),
            settings: RwLock::new(Settings::new(Redlock::new(nodes)?)),
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_set(client: Option<&Client>, option: c_int, value: u64) -> c_int {
    status(|| change(client, |settings| settings.set(option, value)))
}

#[unsafe(no_mangle)]
extern "C" fn redlock_set_tls(
    client: Option<&Client>,
    roots: *const c_char,
    roots_len: usize,
    chain: *const c_char,
    chain_len: usize,
    key: *const c_char,
    key_len: usize,
    server_name: *const c_char,
) -> c_int {
    status(|| {
        let mut tls = Tls::new();
        // SAFETY: the header demands it.
        let given = |data: *const c_char, len, what| unsafe { pem(data, len, what) };
        if !roots.is_null() {
            tls = tls.root_certificates(given(roots, roots_len, "roots")?);
        }
        tls = match (chain.is_null(), key.is_null()) {
            (true, true) => tls,
            (false, false) => {
                let chain = given(chain, chain_len, "chain")?;
                tls.client_certificate(chain, given(key, key_len, "key")?)
            }
            (true, false) => return Err(Failure::null("chain")),
            (false, true) => return Err(Failure::null("key")),
        };
        if !server_name.is_null() {
            // SAFETY: not null, and the header demands a string.
            let name = unsafe { CStr::from_ptr(server_name) };
            let not_text = |_| Failure::config("server_name is not UTF-8");
            tls = tls.server_name(name.to_str().map_err(not_text)?);
        }
        change(client, |settings| {
            let options = settings.options.clone().tls(tls);
            settings.with(options)
        })
    })
}

/// # Safety
///
/// `data` has `len` bytes.
unsafe fn pem<'a>(data: *const c_char, len: usize, what: &str) -> Result<&'a [u8], Failure> {
    if len > MAX_LEN {
        return Err(Failure::config(format!("{what} is {len} bytes long")));
    }
    // SAFETY: the caller vouches for the length, which a slice may have.
    Ok(unsafe { std::slice::from_raw_parts(data.cast(), len) })
}

fn change(
    client: Option<&Client>,
    new: impl FnOnce(Settings) -> Result<Settings, Failure>,
) -> Result<(), Failure> {
    let client = client.ok_or_else(|| Failure::null("redlock"))?;
    if client.process != std::process::id() {
        // A thread that held the lock at the fork does not exist here.
        let text = "this is a forked child: set options before the fork, or make a new redlock_t";
        return Err(Failure::config(text));
    }
    let mut settings = client
        .settings
        .write()
        .unwrap_or_else(PoisonError::into_inner);
    let new = new(settings.clone())?;
    let old = replace(&mut *settings, new);
    drop(settings);
    // May be the last to use its connections, and wait for what they owe.
    drop(old);
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn redlock_connect(client: Option<&Client>) -> c_int {
    status(|| {
        redlock_of(client)?.connect()?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_free(client: Option<Box<Client>>) {
    status(|| {
        drop(client);
        Ok(())
    });
}

// ---- acquiring --------------------------------------------------------------------------------

/// `redlock_lock_t`.
struct Handle {
    process: u32,
    resource: Box<[u8]>,
    /// `None`: an entry of a reentrant lock, which nobody is to resume.
    token: Option<Token>,
    held: RwLock<Held>,
    callbacks: Mutex<Vec<Arc<Callback>>>,
}

enum Held {
    Plain(Lock),
    Kept(KeptLock),
    Operation(Operation),
    /// It was lost or released in an attempt to keep it alive; or is being released.
    Ended,
}

impl Handle {
    fn new(lock: Lock) -> Handle {
        Handle {
            process: std::process::id(),
            resource: lock.resource().into(),
            token: Some(*lock.token()),
            held: RwLock::new(Held::Plain(lock)),
            callbacks: Mutex::default(),
        }
    }

    fn of_entry(lock: ReentrantLock) -> Handle {
        Handle {
            process: std::process::id(),
            resource: lock.resource().into(),
            token: None,
            held: RwLock::new(Held::Operation(Operation {
                thread: this_thread(),
                lock: ManuallyDrop::new(lock),
            })),
            callbacks: Mutex::default(),
        }
    }

    /// Not in a forked child, where somebody who does not exist may hold `held`; not in a callback of
    /// this lock, which may run inside a call that holds it. The lock is lost for both.
    fn check(&self) -> Result<(), Failure> {
        if self.process == std::process::id() && !self.is_calling_back() {
            Ok(())
        } else {
            Err(Error::Lost.into())
        }
    }

    fn is_calling_back(&self) -> bool {
        let address = std::ptr::from_ref(self).addr();
        CALLED_BACK.try_with(Cell::get) == Ok(address)
    }

    fn read(&self) -> Result<log::Guard<RwLockReadGuard<'_, Held>>, Failure> {
        self.check()?;
        let take = || self.held.read().unwrap_or_else(PoisonError::into_inner);
        Ok(log::Guard::new(take))
    }

    fn change(&self) -> Result<log::Guard<RwLockWriteGuard<'_, Held>>, Failure> {
        self.check()?;
        let take = || self.held.write().unwrap_or_else(PoisonError::into_inner);
        Ok(log::Guard::new(take))
    }

    /// Those that are registered so far. To be taken while `held` cannot change: what is registered later
    /// belongs to what is held then.
    fn take_callbacks(&self) -> Vec<Arc<Callback>> {
        std::mem::take(&mut *lock(&self.callbacks))
    }
}

/// One entry of a reentrant lock, for the thread that made it alone.
struct Operation {
    thread: u64,
    lock: ManuallyDrop<ReentrantLock>,
}

/// A number that no other thread has or had. (That of the standard library cannot be had at a thread's very end.)
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

// SAFETY: `lock` is touched by its own thread only, which `check` makes sure of.
unsafe impl Send for Operation {}
// SAFETY: as above.
unsafe impl Sync for Operation {}

impl Operation {
    fn check(&self) -> Result<(), Failure> {
        if self.thread == this_thread() {
            return Ok(());
        }
        let text = "the lock is reentrant: it belongs to the thread that acquired it";
        Err(Failure::config(text))
    }

    fn lock(&self) -> Result<&ReentrantLock, Failure> {
        self.check().map(|()| &*self.lock)
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if self.check().is_ok() {
            // SAFETY: it is dropped once, and not used after this.
            unsafe { ManuallyDrop::drop(&mut self.lock) };
        }
    }
}

fn is_reentrant() -> Failure {
    Failure::config("the lock is reentrant: that is not possible with it")
}

/// When this returns, none of them is running nor will be.
fn end_callbacks(callbacks: Vec<Arc<Callback>>) {
    callbacks.iter().for_each(|callback| callback.end());
}

fn handle(handle: Option<&Handle>) -> Result<&Handle, Failure> {
    handle.ok_or_else(|| Failure::null("lock"))
}

fn not_kept() -> Failure {
    Failure::config("the lock is not kept alive")
}

/// What all ways to a lock have in common.
///
/// # Safety
///
/// `resource` is NULL or has `len` bytes.
unsafe fn acquire(
    client: Option<&Client>,
    resource: *const c_void,
    len: usize,
    out: Option<&mut MaybeUninit<Option<Box<Handle>>>>,
    work: impl FnOnce(&Redlock, &[u8]) -> Result<Lock, Failure>,
) -> c_int {
    make(out, || {
        let redlock = redlock_of(client)?;
        // SAFETY: the caller passes on what the header demands.
        let resource = unsafe { bytes(resource, len)? };
        work(&redlock, resource).map(Handle::new)
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_try_acquire(
    client: Option<&Client>,
    resource: *const c_void,
    len: usize,
    ttl: u64,
    out: Option<&mut MaybeUninit<Option<Box<Handle>>>>,
) -> c_int {
    let work = |redlock: &Redlock, resource: &[u8]| {
        let lock = redlock.try_acquire(resource, ms(ttl))?;
        lock.ok_or_else(|| Error::Busy.into())
    };
    // SAFETY: the header demands it.
    unsafe { acquire(client, resource, len, out, work) }
}

#[unsafe(no_mangle)]
extern "C" fn redlock_acquire(
    client: Option<&Client>,
    resource: *const c_void,
    len: usize,
    ttl: u64,
    out: Option<&mut MaybeUninit<Option<Box<Handle>>>>,
) -> c_int {
    let work =
        |redlock: &Redlock, resource: &[u8]| redlock.acquire(resource, ms(ttl)).map_err(Into::into);
    // SAFETY: the header demands it.
    unsafe { acquire(client, resource, len, out, work) }
}

#[unsafe(no_mangle)]
extern "C" fn redlock_acquire_within(
    client: Option<&Client>,
    resource: *const c_void,
    len: usize,
    ttl: u64,
    wait: u64,
    out: Option<&mut MaybeUninit<Option<Box<Handle>>>>,
) -> c_int {
    let work = |redlock: &Redlock, resource: &[u8]| {
        let lock = redlock.acquire_within(resource, ms(ttl), ms(wait));
        lock.map_err(Into::into)
    };
    // SAFETY: the header demands it.
    unsafe { acquire(client, resource, len, out, work) }
}

#[unsafe(no_mangle)]
extern "C" fn redlock_acquire_while(
    client: Option<&Client>,
    resource: *const c_void,
    len: usize,
    ttl: u64,
    keep_trying: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
    user: *mut c_void,
    out: Option<&mut MaybeUninit<Option<Box<Handle>>>>,
) -> c_int {
    let work = |redlock: &Redlock, resource: &[u8]| {
        let keep_trying = keep_trying.ok_or_else(|| Failure::null("keep_trying"))?;
        // SAFETY: the caller's function with the caller's argument, in the caller's thread.
        let keep_trying = || unsafe { keep_trying(user) } != 0;
        let lock = redlock.acquire_while(resource, ms(ttl), keep_trying);
        lock.map_err(Into::into)
    };
    // SAFETY: the header demands it.
    unsafe { acquire(client, resource, len, out, work) }
}

#[unsafe(no_mangle)]
extern "C" fn redlock_resume(
    client: Option<&Client>,
    resource: *const c_void,
    len: usize,
    token: Option<&[u8; REDLOCK_TOKEN_SIZE as usize]>,
    validity: u64,
    out: Option<&mut MaybeUninit<Option<Box<Handle>>>>,
) -> c_int {
    let work = |redlock: &Redlock, resource: &[u8]| {
        let token = token.ok_or_else(|| Failure::null("token"))?;
        let lock = redlock.resume(resource, Token::from_bytes(*token), ms(validity));
        lock.map_err(Into::into)
    };
    // SAFETY: the header demands it.
    unsafe { acquire(client, resource, len, out, work) }
}

#[unsafe(no_mangle)]
extern "C" fn redlock_acquire_reentrant(
    client: Option<&Client>,
    resource: *const c_void,
    len: usize,
    ttl: u64,
    wait: u64,
    out: Option<&mut MaybeUninit<Option<Box<Handle>>>>,
) -> c_int {
    make(out, || {
        let locks = redlock_of(client)?.reentrant();
        // SAFETY: the header demands it.
        let resource = unsafe { bytes(resource, len)? };
        let lock = locks.acquire_within(resource, ms(ttl), ms(wait))?;
        Ok(Handle::of_entry(lock))
    })
}

// ---- asking -----------------------------------------------------------------------------------

#[unsafe(no_mangle)]
extern "C" fn redlock_lock_remaining_ms(lock: Option<&Handle>) -> u64 {
    value(|| {
        Ok(match &*handle(lock)?.read()? {
            Held::Plain(lock) => to_ms(lock.remaining()),
            Held::Kept(lock) => to_ms(lock.remaining()),
            Held::Operation(operation) => to_ms(operation.lock()?.remaining()),
            Held::Ended => 0,
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_lock_is_valid(lock: Option<&Handle>) -> c_int {
    value(|| {
        Ok(match &*handle(lock)?.read()? {
            Held::Plain(lock) => lock.is_valid().into(),
            Held::Kept(lock) => lock.is_valid().into(),
            Held::Operation(operation) => operation.lock()?.is_valid().into(),
            Held::Ended => 0,
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_lock_ensure(lock: Option<&Handle>, at_least: u64) -> c_int {
    status(|| {
        match &*handle(lock)?.read()? {
            Held::Plain(lock) => lock.ensure(ms(at_least))?,
            Held::Kept(lock) => lock.ensure(ms(at_least))?,
            Held::Operation(operation) => operation.lock()?.ensure(ms(at_least))?,
            Held::Ended => return Err(Error::Lost.into()),
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_lock_extensions_left(lock: Option<&Handle>) -> u32 {
    value(|| {
        Ok(match &*handle(lock)?.read()? {
            Held::Plain(lock) => lock.extensions_left(),
            Held::Operation(operation) => operation.lock()?.extensions_left(),
            Held::Kept(_) | Held::Ended => 0,
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
            return Err(Failure::null("out"));
        }
        token = match &*handle(lock)?.read()? {
            Held::Plain(lock) => lock.fencing_token()?,
            Held::Kept(lock) => lock.fencing_token()?,
            Held::Operation(operation) => operation.lock()?.fencing_token()?,
            Held::Ended => return Err(Error::Lost.into()),
        };
        Ok(())
    });
    if let Some(out) = out {
        out.write(token);
    }
    code
}

#[unsafe(no_mangle)]
extern "C" fn redlock_lock_depth(lock: Option<&Handle>) -> usize {
    value(|| {
        Ok(match &*handle(lock)?.read()? {
            Held::Plain(_) | Held::Kept(_) => 1,
            Held::Operation(operation) => operation.lock()?.depth(),
            Held::Ended => 0,
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
        match &mut *handle(lock)?.change()? {
            Held::Plain(lock) => lock.extend(ms(ttl))?,
            Held::Operation(operation) => operation.lock()?.extend(ms(ttl))?,
            Held::Kept(_) => {
                let text = "the lock is kept alive: it is renewed by itself";
                return Err(Failure::config(text));
            }
            Held::Ended => return Err(Error::Lost.into()),
        }
        Ok(())
    })
}

/// Ends what `lock` holds, and frees it.
///
/// # Safety
///
/// `lock` is NULL or a live handle that nobody else uses but its callbacks.
unsafe fn end(
    lock: *mut Handle,
    can: impl FnOnce(&Held) -> Result<(), Failure>,
    work: impl FnOnce(Held) -> Result<(), Failure>,
) -> Result<(), Failure> {
    // SAFETY: alive until it is made a box again below; callbacks share it until then.
    let Some(handle) = (unsafe { lock.as_ref() }) else {
        return Ok(());
    };
    if handle.is_calling_back() {
        return Err(Error::Lost.into());
    }
    let mut result = Ok(Err(Error::Lost.into()));
    // In a forked child what it holds is inert, and its locks are not to be touched.
    if handle.process == std::process::id() {
        let held = handle.held.write();
        let mut held = held.unwrap_or_else(PoisonError::into_inner);
        can(&held)?;
        let old = replace(&mut *held, Held::Ended);
        drop(held);
        let held = old;
        result = catch_unwind(AssertUnwindSafe(|| work(held)));
        end_callbacks(handle.take_callbacks());
    }
    // SAFETY: it was made of a box, and is ended exactly once; the callbacks are done.
    drop(unsafe { Box::from_raw(lock) });
    result.unwrap_or_else(|panic| resume_unwind(panic))
}

#[unsafe(no_mangle)]
extern "C" fn redlock_lock_release(lock: *mut Handle) -> c_int {
    let work = |held| match held {
        Held::Plain(lock) => lock.release().map_err(Into::into),
        Held::Kept(lock) => lock.release().map_err(Into::into),
        Held::Operation(mut operation) => {
            operation.check()?;
            // SAFETY: it is taken out once: what is left of the entry is forgotten.
            let lock = unsafe { ManuallyDrop::take(&mut operation.lock) };
            std::mem::forget(operation);
            lock.release().map_err(Into::into)
        }
        Held::Ended => Err(Error::Lost.into()),
    };
    let can = |held: &Held| match held {
        Held::Operation(operation) => operation.check(),
        _ => Ok(()),
    };
    // SAFETY: the header demands it.
    status(|| unsafe { end(lock, can, work) })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_lock_leak(lock: *mut Handle) {
    let work = |held| {
        match held {
            Held::Plain(lock) => lock.leak(),
            Held::Kept(lock) => lock.stop().leak(),
            Held::Operation(_) | Held::Ended => {}
        }
        Ok(())
    };
    let can = |held: &Held| match held {
        Held::Operation(_) => Err(is_reentrant()),
        _ => Ok(()),
    };
    // SAFETY: the header demands it.
    status(|| unsafe { end(lock, can, work) });
}

// ---- kept alive -------------------------------------------------------------------------------

#[unsafe(no_mangle)]
extern "C" fn redlock_lock_keep_alive(lock: Option<&Handle>, max_hold: u64) -> c_int {
    status(|| {
        let mut held = handle(lock)?.change()?;
        match *held {
            Held::Kept(_) => return Err(Failure::config("the lock is kept alive already")),
            Held::Operation(_) => return Err(is_reentrant()),
            _ => {}
        }
        *held = match replace(&mut *held, Held::Ended) {
            Held::Plain(lock) => Held::Kept(lock.keep_alive(ms(max_hold))?),
            Held::Kept(_) | Held::Operation(_) | Held::Ended => return Err(Error::Lost.into()),
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
            Held::Plain(_) | Held::Operation(_) => return Err(not_kept()),
            Held::Ended => return Err(Error::Lost.into()),
            Held::Kept(_) => {}
        }
        if let Held::Kept(lock) = replace(&mut *held, Held::Ended) {
            *held = Held::Plain(lock.stop());
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
            Held::Kept(lock) => to_ms(lock.hold_left()),
            Held::Plain(_) | Held::Operation(_) | Held::Ended => 0,
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
            // In slices, so that whoever changes the lock gets a turn.
            let slice = left.map_or(WAIT_SLICE, |left| left.min(WAIT_SLICE));
            let lost = match &*handle.read()? {
                Held::Kept(lock) => lock.wait_lost(slice),
                Held::Plain(_) | Held::Operation(_) => return Err(not_kept()),
                Held::Ended => true,
            };
            if lost {
                return Err(Error::Lost.into());
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
        Ok(match &*handle(lock)?.read()? {
            Held::Kept(lock) => lock.lost().map_or(REDLOCK_REASON_NONE, reason_code),
            Held::Plain(_) | Held::Operation(_) | Held::Ended => REDLOCK_REASON_NONE,
        })
    })
}

fn reason_code(reason: LostReason) -> c_int {
    match reason {
        LostReason::Taken => REDLOCK_REASON_TAKEN,
        LostReason::Expired => REDLOCK_REASON_EXPIRED,
        LostReason::HoldLimit => REDLOCK_REASON_HOLD_LIMIT,
    }
}

type LostFn = unsafe extern "C" fn(c_int, *mut c_void);

/// The C side of one callback.
struct Callback {
    function: LostFn,
    user: *mut c_void,
    phase: Mutex<Phase>,
    over: Condvar,
}

// SAFETY: `user` is only handed to `function`, which the header says runs on another thread.
unsafe impl Send for Callback {}
// SAFETY: as above; everything else in it is Sync.
unsafe impl Sync for Callback {}

#[derive(PartialEq, Eq)]
enum Phase {
    Waiting,
    Running,
    Over,
}

impl Callback {
    fn run(&self, handle: usize, reason: LostReason) {
        let mut phase = lock(&self.phase);
        if *phase == Phase::Over {
            return;
        }
        *phase = Phase::Running;
        drop(phase);
        let before = CALLED_BACK.replace(handle);
        // SAFETY: the caller's function with the caller's argument, which the header wants to
        // live until the lock is ended or stopped: those wait until this is over.
        unsafe { (self.function)(reason_code(reason), self.user) };
        CALLED_BACK.set(before);
        *lock(&self.phase) = Phase::Over;
        self.over.notify_all();
    }

    fn end(&self) {
        let mut phase = lock(&self.phase);
        while *phase == Phase::Running {
            let wait = self.over.wait(phase);
            phase = wait.unwrap_or_else(PoisonError::into_inner);
        }
        *phase = Phase::Over;
    }
}

#[unsafe(no_mangle)]
extern "C" fn redlock_lock_on_lost(
    lock_: Option<&Handle>,
    function: Option<LostFn>,
    user: *mut c_void,
) -> c_int {
    status(|| {
        let handle = handle(lock_)?;
        let function = function.ok_or_else(|| Failure::null("fn"))?;
        let held = handle.read()?;
        let kept = match &*held {
            Held::Kept(kept) => kept,
            Held::Plain(_) | Held::Operation(_) => return Err(not_kept()),
            Held::Ended => return Err(Error::Lost.into()),
        };
        let callback = Arc::new(Callback {
            function,
            user,
            phase: Mutex::new(Phase::Waiting),
            over: Condvar::new(),
        });
        lock(&handle.callbacks).push(callback.clone());
        let address = std::ptr::from_ref(handle).addr();
        kept.on_lost(move |reason| callback.run(address, reason));
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const HEADER: &str = include_str!("redlock.h");

    fn last_error() -> String {
        let mut buf = [0_u8; 200];
        let len = redlock_last_error(buf.as_mut_ptr().cast(), buf.len());
        String::from_utf8(buf[..len].to_vec()).unwrap()
    }

    #[test]
    fn every_constant_of_the_header_is_the_one_here() {
        let defines = HEADER.lines().filter_map(|line| {
            let (name, value) = line.strip_prefix("#define ")?.split_once(' ')?;
            Some((name, value.parse().ok()?))
        });
        let mut header: BTreeMap<&str, c_int> = defines.collect();
        let version = ["MAJOR", "MINOR", "PATCH"].map(|part| {
            let name = format!("REDLOCK_VERSION_{part}");
            header.remove(&*name).unwrap()
        });
        assert_eq!(
            version.map(|part| part.to_string()).join("."),
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!(header, CONSTANTS.iter().copied().collect());
    }

    #[test]
    fn the_version_of_the_header_is_the_crate_s() {
        let string = format!(
            "#define REDLOCK_VERSION_STRING \"{}\"\n",
            env!("CARGO_PKG_VERSION")
        );
        assert!(HEADER.contains(&string));
        assert_eq!(number("0"), 0);
        assert_eq!(number("120"), 120);
    }

    unsafe extern "C" fn nothing(_: c_int, _: *mut c_void) {}

    /// Another thread keeps the lock alive and registers a callback as soon as it is stopped.
    #[test]
    fn stopping_forgets_no_callback_that_is_registered_after_it() {
        let redlock = Redlock::new(["redis://127.0.0.1:1"]).unwrap();
        let hour = Duration::from_secs(3600);
        // Asks no node before a third of that is over.
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
                .map(|callback| *lock(&callback.phase) == Phase::Waiting)
                .collect();
            assert_eq!(phases, [true], "round {round}");
            assert_eq!(redlock_lock_stop(Some(&handle)), REDLOCK_OK);
        }
        let held = replace(
            &mut *handle.change().unwrap_or_else(|_| panic!()),
            Held::Ended,
        );
        if let Held::Plain(lock) = held {
            lock.leak();
        }
    }

    #[test]
    fn a_panic_becomes_a_status_code() {
        assert_eq!(status(|| panic!("at {}", 17)), REDLOCK_PANIC);
        assert_eq!(last_error(), "a bug in redlock-sync: at 17");
        assert_eq!(value::<u64>(|| panic!("again")), 0);
        assert_eq!(last_error(), "a bug in redlock-sync: again");
        let mut out = MaybeUninit::<Option<Box<u8>>>::uninit();
        assert_eq!(make(Some(&mut out), || panic!()), REDLOCK_PANIC);
        // SAFETY: it is written whatever happens.
        assert!(unsafe { out.assume_init() }.is_none());
    }

    #[test]
    fn no_random_bytes_have_their_code() {
        let failure = Failure::from(Error::random(getrandom::Error::UNSUPPORTED));
        assert_eq!(failure.code, REDLOCK_RANDOM);
    }

    #[test]
    fn the_default_options_are_those_of_rust() {
        let settings = Settings::new(Redlock::new(["redis://a"]).unwrap());
        assert_eq!(settings.options, Options::default());
    }

    #[test]
    fn the_bounds_of_the_pause_can_be_set_in_any_order() {
        const MIN: c_int = REDLOCK_OPTION_RETRY_DELAY_MIN_MS;
        const MAX: c_int = REDLOCK_OPTION_RETRY_DELAY_MAX_MS;
        let bounds = [0, 1, 49, 50, 51, 249, 250, 251, 1000];
        for min in bounds {
            for max in bounds.into_iter().filter(|max| *max >= min) {
                for order in [[(MIN, min), (MAX, max)], [(MAX, max), (MIN, min)]] {
                    let mut settings = Settings::new(Redlock::new(["redis://a"]).unwrap());
                    for (option, value) in order {
                        settings = settings.set(option, value).ok().unwrap();
                    }
                    let expected = Options::default().retry_delay(ms(min), ms(max));
                    assert_eq!(settings.options, expected);
                }
            }
        }
    }

    #[test]
    fn the_last_error_is_cut_between_characters() {
        status(|| Err(Failure::config("aé")));
        let mut buf = [b'x'; 4];
        assert_eq!(redlock_last_error(buf.as_mut_ptr().cast(), 3), 3);
        assert_eq!(&buf, b"a\0xx");
        assert_eq!(redlock_last_error(buf.as_mut_ptr().cast(), 4), 3);
        assert_eq!(&buf, "aé\0".as_bytes());
        assert_eq!(redlock_last_error(buf.as_mut_ptr().cast(), 0), 3);
        assert_eq!(redlock_last_error(std::ptr::null_mut(), 4), 3);
    }
}
