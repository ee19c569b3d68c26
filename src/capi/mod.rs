//! The C interface. Its manual is `redlock.h`; only the implementation is described here: errors and panics at the
//! boundary in this file, `redlock_t` in `client` and `published`, `redlock_lock_t` in `lock`, the ways to it in
//! `acquire` and `kinds`, the function that calls ask whether to go on in `keep_trying`, the functions for a lock that is
//! kept alive in `kept`, its callbacks in `callback`, texts for people in `questions`, log messages in `log`, events in
//! `observer`, nodes for tests in `testing`.
//!
//! A handle comes in as a reference that may be null and an output goes out through
//! `MaybeUninit`, both of which have C's representation: what the header demands of pointers is
//! all that is left to trust.

use std::cell::RefCell;
use std::ffi::{c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::values::clock::millis;
use crate::{Error, LostReason};

mod acquire;
mod callback;
mod client;
mod keep_trying;
mod kept;
mod kinds;
mod lock;
mod log;
mod observer;
mod published;
mod questions;

/// Longer than any resource can be; also what a slice may have.
const MAX_LEN: usize = 1 << 30;

macro_rules! constants {
    ($($name:ident = $value:literal;)*) => {
        $(const $name: c_int = $value;)*

        /// Compared with the header.
        #[cfg(test)]
        const CONSTANTS: &[(&str, c_int)] = &[$((stringify!($name), $name)),*];
    };
}

// Behind the macro, which it uses.
#[cfg(feature = "testing")]
mod testing;

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
    REDLOCK_OTHER_KIND = 10;

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
    REDLOCK_REASON_DELETED = 4;
    REDLOCK_REASON_NOT_HELD = 5;
    REDLOCK_REASON_OTHER_PROCESS = 6;
    REDLOCK_REASON_RELEASED = 7;

    REDLOCK_STATE_FREE = 0;
    REDLOCK_STATE_HELD = 1;
    REDLOCK_STATE_BLOCKED = 2;
    REDLOCK_STATE_UNKNOWN = 3;
    REDLOCK_STATE_READERS = 4;
    REDLOCK_STATE_PERMITS = 5;

    REDLOCK_EVENT_ACQUIRED = 1;
    REDLOCK_EVENT_NOT_ACQUIRED = 2;
    REDLOCK_EVENT_EXTENDED = 3;
    REDLOCK_EVENT_NOT_EXTENDED = 4;
    REDLOCK_EVENT_LOST = 5;
    REDLOCK_EVENT_ENDED = 6;
    REDLOCK_EVENT_NODE_AWAY = 7;
    REDLOCK_EVENT_NODE_BACK = 8;

    REDLOCK_ENDING_RELEASED = 1;
    REDLOCK_ENDING_NOT_CONFIRMED = 2;
    REDLOCK_ENDING_DROPPED = 3;
    REDLOCK_ENDING_LEAKED = 4;
    REDLOCK_ENDING_WAS_LOST = 5;

    REDLOCK_LOG_ERROR = 1;
    REDLOCK_LOG_WARN = 2;
    REDLOCK_LOG_INFO = 3;
    REDLOCK_LOG_DEBUG = 4;
    REDLOCK_LOG_TRACE = 5;

    REDLOCK_TOKEN_SIZE = 20;
}

// ---- errors and panics at the C boundary ------------------------------------------------------

/// A status code, and what `redlock_last_error` and the like return.
#[derive(Default)]
struct CFailure {
    code: c_int,
    text: String,
    /// UNAVAILABLE: how long to wait, in milliseconds; zero: unknown.
    retry_after: u64,
    /// UNAVAILABLE: whether the nodes refuse for good.
    permanent: bool,
    /// UNAVAILABLE: the failed nodes, each with its cause.
    causes: Vec<String>,
    /// BUSY: the holder's label.
    label: String,
    /// BUSY: how long the holder has the lock, in milliseconds; zero: unknown.
    left: u64,
    /// BUSY: whether this program itself has the lock.
    own: bool,
    /// LOST: why.
    lost_reason: c_int,
}

impl CFailure {
    fn config(text: impl Into<String>) -> CFailure {
        CFailure {
            code: REDLOCK_CONFIG,
            text: text.into(),
            ..CFailure::default()
        }
    }

    fn panic(text: &str) -> CFailure {
        CFailure {
            code: REDLOCK_PANIC,
            text: format!("a bug in redlock-sync: {text}"),
            ..CFailure::default()
        }
    }

    fn null(what: &str) -> CFailure {
        CFailure::config(format!("{what} is NULL"))
    }
}

fn code(error: &Error) -> c_int {
    match error {
        Error::Busy(_) => REDLOCK_BUSY,
        Error::OtherKind(_) => REDLOCK_OTHER_KIND,
        Error::Lost(_) => REDLOCK_LOST,
        Error::TooSlow(_) => REDLOCK_TOO_SLOW,
        Error::Unavailable(_) => REDLOCK_UNAVAILABLE,
        Error::ExtensionLimit(_) => REDLOCK_EXTENSION_LIMIT,
        Error::Cancelled(_) => REDLOCK_CANCELLED,
        Error::Config(_) => REDLOCK_CONFIG,
        Error::Random(_) => REDLOCK_RANDOM,
    }
}

fn reason_code(reason: LostReason) -> c_int {
    match reason {
        LostReason::Taken => REDLOCK_REASON_TAKEN,
        LostReason::Expired => REDLOCK_REASON_EXPIRED,
        LostReason::HoldLimit => REDLOCK_REASON_HOLD_LIMIT,
        LostReason::Deleted => REDLOCK_REASON_DELETED,
        LostReason::NotHeld => REDLOCK_REASON_NOT_HELD,
        LostReason::OtherProcess => REDLOCK_REASON_OTHER_PROCESS,
        LostReason::Released => REDLOCK_REASON_RELEASED,
    }
}

impl From<Error> for CFailure {
    fn from(error: Error) -> CFailure {
        let mut failure = CFailure {
            code: code(&error),
            text: error.to_string(),
            ..CFailure::default()
        };
        match &error {
            Error::Unavailable(nodes) => {
                // Rounded up: when the wait is over, enough nodes vote.
                let wait = nodes.retry_after().unwrap_or_default().as_nanos();
                failure.retry_after = u64::try_from(wait.div_ceil(1_000_000)).unwrap_or(u64::MAX);
                failure.permanent = nodes.is_permanent();
                failure.causes = nodes.iter().map(ToString::to_string).collect();
            }
            Error::Busy(busy) => {
                failure.label = busy.label().unwrap_or_default().to_owned();
                failure.left = millis(busy.remaining().unwrap_or_default());
                failure.own = busy.is_own();
            }
            Error::Lost(lost) => failure.lost_reason = reason_code(lost.reason()),
            _ => {}
        }
        failure
    }
}

thread_local! {
    static LAST: RefCell<CFailure> = RefCell::default();
}

/// Reads the last failure of this thread. In a thread that is ending there may be none.
fn last<T: Default>(read: impl FnOnce(&CFailure) -> T) -> T {
    // No `status` here: it would replace the failure.
    let read = catch_unwind(AssertUnwindSafe(|| {
        LAST.try_with(|last| read(&last.borrow()))
    }));
    read.ok().and_then(Result::ok).unwrap_or_default()
}

/// Nothing unwinds into C, and a failure leaves its text.
fn status(work: impl FnOnce() -> Result<(), CFailure>) -> c_int {
    let failure = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => return REDLOCK_OK,
        Ok(Err(failure)) => failure,
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().copied();
            let text = text.or_else(|| panic.downcast_ref().map(String::as_str));
            CFailure::panic(text.unwrap_or("a panic"))
        }
    };
    // In a thread that is ending there may be no place for it.
    let code = failure.code;
    let _ = LAST.try_with(|last| last.replace(failure));
    code
}

/// Like [`status`], for a function that returns a value. On failure: the default, which is what a lost lock reports.
fn value<T: Default>(work: impl FnOnce() -> Result<T, CFailure>) -> T {
    let mut result = T::default();
    status(|| {
        result = work()?;
        Ok(())
    });
    result
}

/// Like [`status`], for a function that makes a handle.
fn make<T>(
    out: Option<&mut MaybeUninit<Option<Box<T>>>>,
    work: impl FnOnce() -> Result<T, CFailure>,
) -> c_int {
    let mut made = None;
    let code = status(|| {
        if out.is_none() {
            return Err(CFailure::null("out"));
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

/// # Safety
///
/// `data` is NULL or has `len` bytes.
unsafe fn bytes<'a>(data: *const c_void, len: usize) -> Result<&'a [u8], CFailure> {
    if len > MAX_LEN {
        return Err(CFailure::config(format!(
            "the resource is {len} bytes long"
        )));
    }
    match len {
        0 => Ok(&[]),
        _ if data.is_null() => Err(CFailure::null("the resource")),
        // SAFETY: not null, and the caller vouches for the length, which a slice may have.
        _ => Ok(unsafe { std::slice::from_raw_parts(data.cast(), len) }),
    }
}

/// Copies as much as fits.
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

/// Copies as `snprintf` does, and returns the length of the whole text.
///
/// # Safety
///
/// `buf` is NULL or has room for `cap` bytes.
unsafe fn copy_text(text: &str, buf: *mut c_char, cap: usize) -> usize {
    if let Some(room) = cap.checked_sub(1).filter(|_| !buf.is_null()) {
        // A character is copied whole or not at all.
        let fits = (0..=room.min(text.len())).rev();
        let end = fits.into_iter().find(|end| text.is_char_boundary(*end));
        let end = end.unwrap_or(0);
        let buf = buf.cast::<u8>();
        // SAFETY: the caller vouches for `cap` bytes, and `end` is less than that.
        unsafe {
            copy(text.as_bytes(), buf, end);
            buf.add(end).write(0);
        }
    }
    text.len()
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
        REDLOCK_OK => c"OK",
        REDLOCK_BUSY => c"BUSY",
        REDLOCK_LOST => c"LOST",
        REDLOCK_TOO_SLOW => c"TOO_SLOW",
        REDLOCK_UNAVAILABLE => c"UNAVAILABLE",
        REDLOCK_EXTENSION_LIMIT => c"EXTENSION_LIMIT",
        REDLOCK_CANCELLED => c"CANCELLED",
        REDLOCK_CONFIG => c"CONFIG",
        REDLOCK_RANDOM => c"RANDOM",
        REDLOCK_PANIC => c"PANIC",
        REDLOCK_OTHER_KIND => c"OTHER_KIND",
        _ => c"unknown",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
extern "C" fn redlock_last_retry_after_ms() -> u64 {
    last(|failure| failure.retry_after)
}

#[unsafe(no_mangle)]
extern "C" fn redlock_last_lost_reason() -> c_int {
    last(|failure| failure.lost_reason)
}

#[unsafe(no_mangle)]
extern "C" fn redlock_last_is_permanent() -> c_int {
    last(|failure| c_int::from(failure.permanent))
}

#[unsafe(no_mangle)]
extern "C" fn redlock_last_cause(at: usize, buf: *mut c_char, cap: usize) -> usize {
    last(|failure| {
        let cause = failure.causes.get(at).map_or("", String::as_str);
        // SAFETY: the header demands room for `cap` bytes.
        unsafe { copy_text(cause, buf, cap) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_last_label(buf: *mut c_char, cap: usize) -> usize {
    // SAFETY: the header demands room for `cap` bytes.
    last(|failure| unsafe { copy_text(&failure.label, buf, cap) })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_last_remaining_ms() -> u64 {
    last(|failure| failure.left)
}

#[unsafe(no_mangle)]
extern "C" fn redlock_last_is_own() -> c_int {
    last(|failure| c_int::from(failure.own))
}

#[unsafe(no_mangle)]
extern "C" fn redlock_last_error(buf: *mut c_char, cap: usize) -> usize {
    // SAFETY: the header demands room for `cap` bytes.
    last(|failure| unsafe { copy_text(&failure.text, buf, cap) })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const HEADER: &str = include_str!("../redlock.h");

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

    #[test]
    fn a_panic_becomes_a_status_code() {
        assert_eq!(status(|| panic!("at {}", 17)), REDLOCK_PANIC);
        assert_eq!(last_error(), "a bug in redlock-sync: at 17");
        assert_eq!(value::<u64>(|| panic!("again")), 0);
        assert_eq!(last_error(), "a bug in redlock-sync: again");
        let mut out = MaybeUninit::<Option<Box<u8>>>::uninit();
        assert_eq!(make(Some(&mut out), || panic!()), REDLOCK_PANIC);
        // SAFETY: `out` is written whatever happens.
        assert!(unsafe { out.assume_init() }.is_none());
    }

    #[test]
    fn no_random_bytes_have_their_code() {
        let failure = CFailure::from(Error::random(getrandom::Error::UNSUPPORTED));
        assert_eq!(failure.code, REDLOCK_RANDOM);
    }

    #[test]
    fn the_last_error_is_cut_between_characters() {
        status(|| Err(CFailure::config("aé")));
        let mut buf = [b'x'; 4];
        assert_eq!(redlock_last_error(buf.as_mut_ptr().cast(), 3), 3);
        assert_eq!(&buf, b"a\0xx");
        assert_eq!(redlock_last_error(buf.as_mut_ptr().cast(), 4), 3);
        assert_eq!(&buf, "aé\0".as_bytes());
        assert_eq!(redlock_last_error(buf.as_mut_ptr().cast(), 0), 3);
        assert_eq!(redlock_last_error(std::ptr::null_mut(), 4), 3);
    }
}
