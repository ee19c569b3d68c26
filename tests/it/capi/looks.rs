//! Random calls of what looks at nodes and locks, what is set with a text, and reentrant locks.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use super::{Handle, Slot, redlock_lock_release, redlock_set_tls};

/// As in the header.
#[repr(C)]
struct Event {
    kind: c_int,
    why: c_int,
    resource: *const c_void,
    resource_len: usize,
    _time_us: u64,
    _attempts: u32,
    renewal: c_int,
    node: usize,
    address: *const c_char,
    text: *const c_char,
}

type ObserverFn = extern "C" fn(*const Event, *mut c_void);

unsafe extern "C" {
    safe fn redlock_last_is_permanent() -> c_int;
    safe fn redlock_last_retry_after_ms() -> u64;
    safe fn redlock_last_remaining_ms() -> u64;
    safe fn redlock_last_is_own() -> c_int;
    fn redlock_last_cause(at: usize, buf: *mut c_char, cap: usize) -> usize;
    fn redlock_last_label(buf: *mut c_char, cap: usize) -> usize;
    fn redlock_set_keep_trying(
        function: Option<extern "C" fn(*mut c_void) -> c_int>,
        user: *mut c_void,
    );
    fn redlock_connect(client: Handle) -> c_int;
    fn redlock_set_label(client: Handle, label: *const c_char) -> c_int;
    fn redlock_set_prefix(client: Handle, prefix: *const c_char) -> c_int;
    fn redlock_set_observer(
        client: Handle,
        function: Option<ObserverFn>,
        user: *mut c_void,
    ) -> c_int;
    fn redlock_check(
        client: Handle,
        probe: *const c_void,
        len: usize,
        buf: *mut c_char,
        cap: usize,
        fit: *mut c_int,
    ) -> c_int;
    fn redlock_inspect(
        client: Handle,
        resource: *const c_void,
        len: usize,
        holder: *mut c_char,
        cap: usize,
        left: *mut u64,
        state: *mut c_int,
    ) -> c_int;
    fn redlock_check_json(
        client: Handle,
        probe: *const c_void,
        len: usize,
        json: *mut c_char,
        cap: usize,
        needed: *mut usize,
    ) -> c_int;
    fn redlock_inspect_json(
        client: Handle,
        resource: *const c_void,
        len: usize,
        json: *mut c_char,
        cap: usize,
        needed: *mut usize,
    ) -> c_int;
    fn redlock_break_lock(
        client: Handle,
        resource: *const c_void,
        len: usize,
        holder: *const c_char,
        broken: *mut c_int,
    ) -> c_int;
    fn redlock_acquire_reentrant(
        client: Handle,
        resource: *const c_void,
        len: usize,
        ttl: u64,
        wait: u64,
        out: *mut Handle,
    ) -> c_int;
    fn redlock_lock_depth(lock: Handle) -> usize;
    fn redlock_lock_fencing_token(lock: Handle, out: *mut u64) -> c_int;
    fn redlock_lock_mark_done(lock: Handle, period: u64, took: u64) -> c_int;
    fn redlock_inspect_last_run(
        client: Handle,
        resource: *const c_void,
        len: usize,
        label: *mut c_char,
        cap: usize,
        ended: *mut u64,
        took: *mut u64,
        again_in: *mut u64,
    ) -> c_int;
}

pub(super) static EVENTS: AtomicUsize = AtomicUsize::new(0);
/// Those of each kind of call that succeeded.
pub(super) static PASSED: [AtomicUsize; 8] = [const { AtomicUsize::new(0) }; 8];

extern "C" fn observed(event: *const Event, user: *mut c_void) {
    // SAFETY: the library promises an event.
    let event = unsafe { &*event };
    for text in [event.address, event.text] {
        // SAFETY: and strings.
        assert!(unsafe { CStr::from_ptr(text) }.to_str().is_ok());
    }
    assert!((1..=8).contains(&event.kind) && user.is_null() && event.node < 64);
    assert_eq!(event.resource.is_null(), event.kind >= 7);
    assert!(event.resource_len <= 3 && (0..=1).contains(&event.renewal));
    assert!((0..=10).contains(&event.why), "{}", event.why);
    EVENTS.fetch_add(1, Relaxed);
}

/// The text that a call wrote, which had `cap` bytes for it.
fn written(buf: &[u8], cap: usize) -> &CStr {
    assert!(buf[cap..].iter().all(|byte| *byte == 0xAA), "behind {cap}");
    match cap {
        0 => c"",
        _ => CStr::from_bytes_until_nul(&buf[..cap]).unwrap(),
    }
}

/// Sets an observer, and with it a label.
///
/// # Safety
///
/// As the header demands it.
pub(super) unsafe fn observe(client: Handle) {
    // SAFETY: the caller says so.
    unsafe {
        redlock_set_label(client, c"chaos".as_ptr());
        redlock_set_observer(client, Some(observed), null_mut());
    }
}

/// What is set with a text, or a function.
///
/// # Safety
///
/// As the header demands it.
unsafe fn set(client: Handle, pick: &mut impl FnMut(u64) -> usize) -> c_int {
    let texts = [c"", c"web-2:4711", c"{team}:", c"a b", c"\x1b", c"\xff"];
    let text = match pick(7) {
        6 => std::ptr::null(),
        at => texts[at].as_ptr(),
    };
    // Not often: others need a majority of the same keys, and new connections.
    let kept = pick(5) > 0;
    // SAFETY: the caller says so; a NULL has any length, and 7 bytes are there.
    unsafe {
        match pick(4) {
            0 => redlock_set_prefix(client, if kept { c"".as_ptr() } else { text }),
            1 => {
                let roots = if kept {
                    null_mut()
                } else {
                    c"no PEM.".as_ptr().cast_mut()
                };
                let none = std::ptr::null();
                redlock_set_tls(client, roots, 7, none, 0, none, pick(9), none)
            }
            2 => {
                let function = (pick(10) > 0).then_some(observed as ObserverFn);
                redlock_set_observer(client, function, null_mut())
            }
            _ => redlock_set_label(client, text),
        }
    }
}

extern "C" fn sometimes(user: *mut c_void) -> c_int {
    c_int::from(!user.is_null())
}

/// The parts of the last error, and whether the next waits of this thread go on.
///
/// # Safety
///
/// As the header demands it.
unsafe fn parts(pick: &mut impl FnMut(u64) -> usize) {
    let mut buf = [0xAA_u8; 300];
    let (cap, to) = ([0, 1, 30, 299][pick(4)], buf.as_mut_ptr().cast());
    // SAFETY: the buffer has that length, and more; the function lives as long as the program.
    let len = unsafe {
        let user = if pick(2) == 0 {
            null_mut()
        } else {
            &raw mut buf
        };
        redlock_set_keep_trying((pick(3) > 0).then_some(sometimes), user.cast());
        match pick(3) {
            0 => redlock_last_label(to, cap),
            _ => redlock_last_cause(pick(4), to, cap),
        }
    };
    assert!(cap == 0 || written(&buf, cap).count_bytes() <= len);
}

/// Takes a reentrant lock as often as it can be. Its handles stay in this thread, where they end.
///
/// # Safety
///
/// As the header demands it.
unsafe fn reenter(
    client: Handle,
    times: usize,
    (resource, len): (*const c_void, usize),
    (ttl, wait): (u64, u64),
) -> c_int {
    let (mut handles, mut code) = (Vec::new(), 0);
    for _ in 0..times {
        let mut handle = null_mut();
        // SAFETY: the caller says so.
        code = unsafe { redlock_acquire_reentrant(client, resource, len, ttl, wait, &mut handle) };
        assert_eq!(code == 0, !handle.is_null());
        if code != 0 {
            break;
        }
        handles.push(handle);
        // SAFETY: it was made just now.
        let depth = unsafe { redlock_lock_depth(handle) };
        // Another thread may have set a timeout, which makes this another lock.
        assert!((1..=handles.len()).contains(&depth), "{depth}");
    }
    for handle in handles {
        // SAFETY: each once.
        let status = unsafe { redlock_lock_release(handle) };
        assert!((0..=8).contains(&status));
    }
    code
}

/// One of the calls.
///
/// # Safety
///
/// As the header demands it.
pub(super) unsafe fn look(
    client: Handle,
    lock: &Slot,
    pick: &mut impl FnMut(u64) -> usize,
    (resource, len): (*const c_void, usize),
    (ttl, wait): (u64, u64),
) -> c_int {
    let mut buf = [0xAA_u8; 9000];
    let cap = [0, 1, 30, 8999][pick(4)];
    let (to, mut number, mut flag, mut size) = (buf.as_mut_ptr().cast(), 0, 0, 0);
    let some = pick(20) > 0;
    let flag_to = if some { &raw mut flag } else { null_mut() };
    let size_to = if some { &raw mut size } else { null_mut() };
    let number_to = if some { &raw mut number } else { null_mut() };
    let what = pick(8);
    // SAFETY: the caller says so; the buffer has the length that is passed, and more.
    let status = unsafe {
        match what {
            0 => redlock_connect(client),
            1 => redlock_check(client, resource, len, to, cap, flag_to),
            2 => redlock_inspect(client, resource, len, to, cap, number_to, flag_to),
            3 if pick(3) == 0 => {
                let (ended, took, again_in) = (number_to, null_mut(), &mut 0);
                redlock_inspect_last_run(client, resource, len, to, cap, ended, took, again_in)
            }
            3 if pick(2) == 0 => redlock_check_json(client, resource, len, to, cap, size_to),
            3 => redlock_inspect_json(client, resource, len, to, cap, size_to),
            4 => {
                let left = &mut number;
                let looked = redlock_inspect(client, resource, len, to, 8999, left, &mut 0);
                let holder = if looked == 0 { to } else { null_mut() };
                let status = redlock_break_lock(client, resource, len, holder, flag_to);
                buf.fill(0xAA);
                status
            }
            5 => set(client, pick),
            6 => reenter(client, 1 + pick(3), (resource, len), (ttl, wait)),
            _ => {
                lock.with(|lock| redlock_lock_depth(lock));
                lock.with(|lock| redlock_lock_mark_done(lock, ttl, wait));
                lock.with(|lock| redlock_lock_fencing_token(lock, number_to))
            }
        }
    };
    PASSED[what].fetch_add(usize::from(status == 0), Relaxed);
    assert!((0..=5).contains(&flag), "{flag}");
    let _ = (redlock_last_retry_after_ms(), redlock_last_remaining_ms());
    // SAFETY: the caller says so.
    unsafe { parts(pick) };
    assert!((0..=1).contains(&redlock_last_is_permanent()));
    assert!((0..=1).contains(&redlock_last_is_own()));
    if buf.iter().any(|byte| *byte != 0xAA) {
        let text = written(&buf, cap);
        let whole = text.count_bytes() + 1;
        assert!(size == 0 || status != 0 || size == whole);
    }
    status
}
