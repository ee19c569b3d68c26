//! `redlock_testing_t`: nodes for tests. Their manual is `redlock_testing.h`.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::time::Duration;

use super::*;
use crate::testing::{Held, Node, Requests};

constants! {
    REDLOCK_TESTING_ACQUIRE = 1;
    REDLOCK_TESTING_EXTEND = 2;
    REDLOCK_TESTING_RELEASE = 3;
    REDLOCK_TESTING_FENCE = 4;
    REDLOCK_TESTING_OTHER = 5;
    REDLOCK_TESTING_CONNECTIONS = 6;
}

fn given(node: Option<&Node>) -> Result<&Node, CFailure> {
    node.ok_or_else(|| CFailure::null("the node"))
}

/// Makes a test's change to a node.
fn change(node: Option<&Node>, act: impl FnOnce(&Node)) {
    status(|| {
        act(given(node)?);
        Ok(())
    });
}

/// # Safety
///
/// `text` is NULL or a string.
unsafe fn string<'a>(text: *const c_char, what: &str) -> Result<&'a str, CFailure> {
    if text.is_null() {
        return Ok("");
    }
    // SAFETY: not null, and the caller vouches for a string.
    let text = unsafe { CStr::from_ptr(text) };
    let not_text = |_| CFailure::config(format!("{what} is not UTF-8"));
    text.to_str().map_err(not_text)
}

/// # Safety
///
/// `resource` is NULL or has `len` bytes.
unsafe fn holder(
    node: Option<&Node>,
    resource: *const c_void,
    len: usize,
) -> Result<Option<Held>, CFailure> {
    // SAFETY: the caller vouches for the length.
    let resource = unsafe { bytes(resource, len)? };
    Ok(given(node)?.holder(resource))
}

#[unsafe(no_mangle)]
extern "C" fn redlock_testing_start(out: Option<&mut MaybeUninit<Option<Box<Node>>>>) -> c_int {
    make(out, || Ok(Node::start()?))
}

#[unsafe(no_mangle)]
extern "C" fn redlock_testing_free(node: Option<Box<Node>>) {
    status(|| {
        drop(node);
        Ok(())
    });
}

#[unsafe(no_mangle)]
extern "C" fn redlock_testing_url(node: Option<&Node>, buf: *mut c_char, cap: usize) -> usize {
    // SAFETY: the header demands room for `cap` bytes.
    value(|| Ok(unsafe { copy_text(given(node)?.url(), buf, cap) }))
}

// ---- locks

#[unsafe(no_mangle)]
extern "C" fn redlock_testing_hold(
    node: Option<&Node>,
    resource: *const c_void,
    len: usize,
    label: *const c_char,
    ttl: u64,
) -> c_int {
    status(|| {
        // SAFETY: the header demands `len` bytes, and NULL or a string.
        let (resource, label) = unsafe { (bytes(resource, len)?, string(label, "label")?) };
        let ttl = match ttl {
            u64::MAX => Duration::MAX,
            ttl => ms(ttl),
        };
        Ok(given(node)?.hold(resource, label, ttl)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_testing_release(
    node: Option<&Node>,
    resource: *const c_void,
    len: usize,
) -> c_int {
    value(|| {
        // SAFETY: the header demands `len` bytes.
        let resource = unsafe { bytes(resource, len)? };
        Ok(c_int::from(given(node)?.release(resource)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_testing_hold_all(node: Option<&Node>) -> c_int {
    status(|| Ok(given(node)?.hold_all()?))
}

#[unsafe(no_mangle)]
extern "C" fn redlock_testing_release_all(node: Option<&Node>) {
    change(node, Node::release_all);
}

#[unsafe(no_mangle)]
extern "C" fn redlock_testing_held_ms(
    node: Option<&Node>,
    resource: *const c_void,
    len: usize,
) -> u64 {
    value(|| {
        // SAFETY: the header demands `len` bytes.
        let held = unsafe { holder(node, resource, len)? };
        // In its last millisecond the lock is still held.
        Ok(held.map_or(0, |held| millis(held.remaining).max(1)))
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_testing_token(
    node: Option<&Node>,
    resource: *const c_void,
    len: usize,
    buf: *mut u8,
    cap: usize,
) -> usize {
    value(|| {
        // SAFETY: the header demands `len` bytes, and room for `cap` bytes.
        let Some(held) = (unsafe { holder(node, resource, len)? }) else {
            return Ok(0);
        };
        let token = held.token.as_bytes();
        // SAFETY: as above.
        unsafe { copy(token, buf, cap) };
        Ok(token.len())
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_testing_label(
    node: Option<&Node>,
    resource: *const c_void,
    len: usize,
    buf: *mut c_char,
    cap: usize,
) -> usize {
    value(|| {
        // SAFETY: the header demands `len` bytes.
        let held = unsafe { holder(node, resource, len)? };
        let label = held.and_then(|held| held.label).unwrap_or_default();
        // SAFETY: the header demands room for `cap` bytes.
        Ok(unsafe { copy_text(&label, buf, cap) })
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_testing_waiting(
    node: Option<&Node>,
    resource: *const c_void,
    len: usize,
) -> usize {
    value(|| {
        // SAFETY: the header demands `len` bytes.
        let resource = unsafe { bytes(resource, len)? };
        Ok(given(node)?.waiting(resource))
    })
}

// ---- time and faults

#[unsafe(no_mangle)]
extern "C" fn redlock_testing_advance(node: Option<&Node>, time: u64) {
    change(node, |node| node.advance(ms(time)));
}

#[unsafe(no_mangle)]
extern "C" fn redlock_testing_refuse(node: Option<&Node>, error: *const c_char) -> c_int {
    status(|| {
        // SAFETY: the header demands a string.
        let error = unsafe { string(error, "error")? };
        given(node)?.refuse(error);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_testing_answer_late(node: Option<&Node>, by: u64) {
    change(node, |node| node.answer_late(ms(by)));
}

#[unsafe(no_mangle)]
extern "C" fn redlock_testing_be_silent(node: Option<&Node>) {
    change(node, Node::be_silent);
}

#[unsafe(no_mangle)]
extern "C" fn redlock_testing_go_down(node: Option<&Node>) {
    change(node, Node::go_down);
}

#[unsafe(no_mangle)]
extern "C" fn redlock_testing_close_connections(node: Option<&Node>) {
    change(node, Node::close_connections);
}

#[unsafe(no_mangle)]
extern "C" fn redlock_testing_forget(node: Option<&Node>) {
    change(node, Node::forget);
}

#[unsafe(no_mangle)]
extern "C" fn redlock_testing_recover(node: Option<&Node>) {
    change(node, Node::recover);
}

#[unsafe(no_mangle)]
extern "C" fn redlock_testing_requests(node: Option<&Node>, kind: c_int) -> u64 {
    value(|| {
        let Requests {
            acquire,
            extend,
            release,
            fence,
            other,
            connections,
        } = given(node)?.requests();
        match kind {
            REDLOCK_TESTING_ACQUIRE => Ok(acquire),
            REDLOCK_TESTING_EXTEND => Ok(extend),
            REDLOCK_TESTING_RELEASE => Ok(release),
            REDLOCK_TESTING_FENCE => Ok(fence),
            REDLOCK_TESTING_OTHER => Ok(other),
            REDLOCK_TESTING_CONNECTIONS => Ok(connections),
            _ => Err(CFailure::config(format!("there are no requests {kind}"))),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_constant_of_the_header_for_tests_is_the_one_here() {
        let header = include_str!("../redlock_testing.h").lines();
        let defines = header.filter_map(|line| {
            let (name, value) = line.strip_prefix("#define ")?.split_once(' ')?;
            Some((name, value.parse().ok()?))
        });
        assert_eq!(defines.collect::<Vec<(&str, c_int)>>(), CONSTANTS);
    }
}
