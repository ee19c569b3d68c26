//! All ways to a `redlock_lock_t`.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use super::client::{Client, redlock_of};
use super::keep_trying::asking;
use super::lock::Handle;
use super::*;
use crate::{Lock, Redlock, Token};

/// The steps that all ways to a lock have in common.
///
/// # Safety
///
/// `resource` is NULL or has `len` bytes.
unsafe fn acquire(
    client: Option<&Client>,
    resource: *const c_void,
    len: usize,
    out: Option<&mut MaybeUninit<Option<Box<Handle>>>>,
    work: impl FnOnce(&Redlock, &[u8]) -> Result<Lock, CFailure>,
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
        let lock = asking(|asked| redlock.acquire_asking(resource, ms(ttl), Duration::ZERO, asked));
        lock.map_err(Into::into)
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
    let work = |redlock: &Redlock, resource: &[u8]| {
        let wait = redlock.options().wait;
        let lock = asking(|asked| redlock.acquire_asking(resource, ms(ttl), wait, asked));
        lock.map_err(Into::into)
    };
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
        let lock = asking(|asked| redlock.acquire_asking(resource, ms(ttl), ms(wait), asked));
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
        let keep_trying = keep_trying.ok_or_else(|| CFailure::null("keep_trying"))?;
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
        let token = token.ok_or_else(|| CFailure::null("token"))?;
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
        let lock = asking(|asked| locks.acquire_asking(resource, ms(ttl), ms(wait), asked))?;
        Ok(Handle::of_entry(lock))
    })
}
