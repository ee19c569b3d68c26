//! Events for C: those that `Redlock::with_observer` gives to Rust.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr::null;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use super::client::{Client, change};
use super::log::{Calls, LOOK_AGAIN};
use super::*;
use crate::{Ending, Event};

/// `redlock_event_t`, in the order of the header.
#[repr(C)]
struct CEvent {
    kind: c_int,
    why: c_int,
    resource: *const c_void,
    resource_len: usize,
    time_us: u64,
    attempts: u32,
    renewal: c_int,
    node: usize,
    address: *const c_char,
    text: *const c_char,
}

type ObserverFn = unsafe extern "C" fn(*const CEvent, *mut c_void);

struct CObserver {
    function: ObserverFn,
    user: *mut c_void,
    /// The library's threads keep it, and may have an event for it later.
    silent: AtomicBool,
    calls: Calls,
}

thread_local! {
    /// The functions in which this thread is, by the addresses of their observers.
    static CALLING: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

// SAFETY: `user` is only handed to `function`, which by the header runs in any thread.
unsafe impl Send for CObserver {}
// SAFETY: as above.
unsafe impl Sync for CObserver {}

/// An event, and the texts that its pointers lead to.
struct Filled {
    event: CEvent,
    address: CString,
    text: CString,
}

impl Filled {
    fn new(kind: c_int, time: Duration) -> Filled {
        Filled {
            event: CEvent {
                kind,
                why: 0,
                resource: null(),
                resource_len: 0,
                time_us: u64::try_from(time.as_micros()).unwrap_or(u64::MAX),
                attempts: 0,
                renewal: 0,
                node: 0,
                address: null(),
                text: null(),
            },
            address: CString::default(),
            text: CString::default(),
        }
    }

    fn of_lock(mut self, resource: &[u8], why: c_int) -> Filled {
        self.event.resource = resource.as_ptr().cast();
        (self.event.resource_len, self.event.why) = (resource.len(), why);
        self
    }

    fn attempts(mut self, attempts: u32) -> Filled {
        self.event.attempts = attempts;
        self
    }

    fn renewal(mut self, renewal: bool) -> Filled {
        self.event.renewal = renewal.into();
        self
    }

    fn of_node(mut self, node: usize, address: &str) -> Filled {
        (self.event.node, self.address) = (node, string(address));
        self
    }

    fn because(mut self, cause: &dyn std::fmt::Display) -> Filled {
        self.text = string(&cause.to_string());
        self
    }

    fn of(event: &Event<'_>) -> Filled {
        match *event {
            Event::Acquired {
                resource,
                wait,
                attempts,
            } => Filled::new(REDLOCK_EVENT_ACQUIRED, wait)
                .of_lock(resource, 0)
                .attempts(attempts),
            Event::NotAcquired {
                resource,
                wait,
                attempts,
                error,
            } => Filled::new(REDLOCK_EVENT_NOT_ACQUIRED, wait)
                .of_lock(resource, code(error))
                .attempts(attempts)
                .because(error),
            Event::Extended {
                resource,
                left,
                renewal,
            } => Filled::new(REDLOCK_EVENT_EXTENDED, left)
                .of_lock(resource, 0)
                .renewal(renewal),
            Event::NotExtended {
                resource,
                left,
                renewal,
                error,
            } => Filled::new(REDLOCK_EVENT_NOT_EXTENDED, left)
                .of_lock(resource, code(error))
                .renewal(renewal)
                .because(error),
            Event::Lost {
                resource,
                held,
                reason,
            } => Filled::new(REDLOCK_EVENT_LOST, held).of_lock(resource, reason_code(reason)),
            Event::Ended {
                resource,
                held,
                how,
            } => Filled::new(REDLOCK_EVENT_ENDED, held).of_lock(resource, ending_code(how)),
            Event::NodeAway { error } => {
                let filled = Filled::new(REDLOCK_EVENT_NODE_AWAY, Duration::ZERO);
                let filled = filled.of_node(error.node(), error.address());
                filled.because(&error.cause)
            }
            Event::NodeBack {
                node,
                address,
                away,
            } => Filled::new(REDLOCK_EVENT_NODE_BACK, away).of_node(node, address),
        }
    }
}

fn ending_code(how: Ending) -> c_int {
    match how {
        Ending::Released => REDLOCK_ENDING_RELEASED,
        Ending::NotConfirmed => REDLOCK_ENDING_NOT_CONFIRMED,
        Ending::Dropped => REDLOCK_ENDING_DROPPED,
        Ending::Leaked => REDLOCK_ENDING_LEAKED,
        Ending::WasLost => REDLOCK_ENDING_WAS_LOST,
    }
}

/// A C string of this text, without zeros, which would end it.
fn string(text: &str) -> CString {
    CString::new(text.replace('\0', " ")).unwrap_or_default()
}

#[unsafe(no_mangle)]
extern "C" fn redlock_set_observer(
    client: Option<&Client>,
    function: Option<ObserverFn>,
    user: *mut c_void,
) -> c_int {
    status(|| {
        let Some(function) = function else {
            let mut ends = Vec::new();
            change(client, |mut settings| {
                ends = std::mem::take(&mut settings.ends);
                Ok(settings)
            })?;
            ends.iter().for_each(|end| end());
            return Ok(());
        };
        let observer = Arc::new(CObserver {
            function,
            user,
            silent: AtomicBool::new(false),
            calls: Calls::default(),
        });
        let ended = observer.clone();
        let notify = move |event: &Event<'_>| observer.notify(event);
        change(client, |settings| {
            Ok(settings.observed(notify, move || ended.end()))
        })
    })
}

impl CObserver {
    fn notify(&self, event: &Event<'_>) {
        let process = std::process::id();
        self.calls.begin(process);
        if !self.silent.load(SeqCst) {
            // In a thread that is ending there may be no place for it.
            let _ = CALLING.try_with(|calling| calling.borrow_mut().push(self.address()));
            self.call(event);
            let _ = CALLING.try_with(|calling| calling.borrow_mut().pop());
        }
        self.calls.end(process);
    }

    /// Returns when no other thread is in the function, and none will call it.
    fn end(&self) {
        self.silent.store(true, SeqCst);
        // (A function that ends itself would wait for itself.)
        let is_own = CALLING.try_with(|calling| calling.borrow().contains(&self.address()));
        let is_own = is_own.unwrap_or(false);
        while !is_own && self.calls.any(std::process::id()) {
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn call(&self, event: &Event<'_>) {
        let mut filled = Filled::of(event);
        filled.event.address = filled.address.as_ptr();
        filled.event.text = filled.text.as_ptr();
        // SAFETY: the caller's function with the caller's argument, which the header wants to live until `end` has
        // returned; the event lives until the function returns.
        unsafe { (self.function)(&filled.event, self.user) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// A function of one observer that ends another one, in whose function another thread is.
    unsafe extern "C" fn ends_other(_: *const CEvent, other: *mut c_void) {
        // SAFETY: the test's observer, which lives as long.
        unsafe { &*other.cast::<CObserver>() }.end();
    }

    /// Its events wait until the test permits them to go on.
    struct Gate {
        began: Sender<()>,
        may_end: Receiver<()>,
        ended: AtomicU32,
    }

    unsafe extern "C" fn waits(_: *const CEvent, gate: *mut c_void) {
        // SAFETY: the test's, which lives as long.
        let gate = unsafe { &*gate.cast::<Gate>() };
        gate.began.send(()).unwrap();
        gate.may_end.recv().unwrap();
        gate.ended.store(1, SeqCst);
    }

    fn observer(function: ObserverFn, user: *const c_void) -> CObserver {
        CObserver {
            function,
            user: user.cast_mut(),
            silent: AtomicBool::new(false),
            calls: Calls::default(),
        }
    }

    #[test]
    fn a_function_that_ends_the_observer_of_another_client_waits_for_that() {
        let (began, has_begun) = channel();
        let (permit, may_end) = channel();
        let ended = AtomicU32::new(0);
        let gate = Gate {
            began,
            may_end,
            ended,
        };
        let other = observer(waits, std::ptr::from_ref(&gate).cast());
        let one = observer(ends_other, std::ptr::from_ref(&other).cast());
        let event = || Event::NodeBack {
            node: 0,
            address: "a",
            away: Duration::ZERO,
        };
        std::thread::scope(|scope| {
            scope.spawn(|| other.notify(&event()));
            has_begun.recv().unwrap();
            scope.spawn(|| {
                while !other.silent.load(SeqCst) {
                    std::thread::yield_now();
                }
                std::thread::sleep(LOOK_AGAIN * 100);
                permit.send(()).unwrap();
            });
            one.notify(&event());
            assert_eq!(gate.ended.load(SeqCst), 1, "the function is over");
        });
    }

    unsafe extern "C" fn ends_itself(_: *const CEvent, own: *mut c_void) {
        // SAFETY: the test's observer, which lives as long.
        unsafe { (*own.cast::<std::sync::OnceLock<CObserver>>()).get() }
            .unwrap()
            .end();
    }

    #[test]
    fn a_function_that_ends_its_own_observer_does_not_wait_for_itself() {
        let own = std::sync::OnceLock::new();
        let one = own.get_or_init(|| observer(ends_itself, std::ptr::from_ref(&own).cast()));
        one.notify(&Event::NodeBack {
            node: 0,
            address: "a",
            away: Duration::ZERO,
        });
        assert!(one.silent.load(SeqCst));
    }
}
