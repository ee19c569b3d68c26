//! Semaphores, read-write locks and locks on several names.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use super::client::{Client, redlock_of};
use super::keep_trying::asking;
use super::lock::{Handle, HeldHandle, handle};
use super::*;
use crate::{Lockable, Redlock, Token};

/// More names than any array of a program has.
const MAX_NAMES: usize = 1 << 20;

/// The bytes of a token.
type Bytes = [u8; REDLOCK_TOKEN_SIZE as usize];
type Out<'a> = Option<&'a mut MaybeUninit<Option<Box<Handle>>>>;

fn acquire(
    client: Option<&Client>,
    (ttl, wait): (u64, u64),
    out: Out<'_>,
    lockable: impl FnOnce(&Redlock) -> Result<Lockable, CFailure>,
) -> c_int {
    make(out, || {
        let lockable = lockable(&redlock_of(client)?)?;
        let lock = asking(|asked| lockable.acquire_asking(ms(ttl), ms(wait), asked))?;
        Ok(Handle::new(lock))
    })
}

fn resume(
    client: Option<&Client>,
    (token, validity): (Option<&Bytes>, u64),
    out: Out<'_>,
    lockable: impl FnOnce(&Redlock) -> Result<Lockable, CFailure>,
) -> c_int {
    make(out, || {
        let lockable = lockable(&redlock_of(client)?)?;
        let token = token.ok_or_else(|| CFailure::null("token"))?;
        let lock = lockable.resume(Token::from_bytes(*token), ms(validity))?;
        Ok(Handle::new(lock))
    })
}

/// # Safety
///
/// Both are NULL or have `n` elements, and each resource has as many bytes as its length.
unsafe fn several(
    redlock: &Redlock,
    (resources, lens, n): (*const *const c_void, *const usize, usize),
) -> Result<Lockable, CFailure> {
    if n > MAX_NAMES {
        return Err(CFailure::config(format!("{n} resources given")));
    }
    let mut names: Vec<&[u8]> = Vec::new();
    if n > 0 {
        if resources.is_null() {
            return Err(CFailure::null("resources"));
        }
        if lens.is_null() {
            return Err(CFailure::null("resource_lens"));
        }
        // SAFETY: neither is null, and the caller vouches that both have n elements.
        let (resources, lens) = unsafe {
            let resources = std::slice::from_raw_parts(resources, n);
            (resources, std::slice::from_raw_parts(lens, n))
        };
        for (resource, len) in resources.iter().zip(lens) {
            // SAFETY: the caller vouches for it.
            names.push(unsafe { bytes(*resource, *len)? });
        }
    }
    Ok(redlock.several(names)?)
}

#[unsafe(no_mangle)]
extern "C" fn redlock_acquire_several(
    client: Option<&Client>,
    resources: *const *const c_void,
    lens: *const usize,
    n: usize,
    ttl: u64,
    wait: u64,
    out: Out<'_>,
) -> c_int {
    acquire(client, (ttl, wait), out, |redlock| {
        // SAFETY: the header demands it.
        unsafe { several(redlock, (resources, lens, n)) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_acquire_permit(
    client: Option<&Client>,
    resource: *const c_void,
    len: usize,
    permits: u32,
    ttl: u64,
    wait: u64,
    out: Out<'_>,
) -> c_int {
    acquire(client, (ttl, wait), out, |redlock| {
        // SAFETY: the header demands it.
        let resource = unsafe { bytes(resource, len)? };
        Ok(redlock.semaphore(resource, permits)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_acquire_read(
    client: Option<&Client>,
    resource: *const c_void,
    len: usize,
    ttl: u64,
    wait: u64,
    out: Out<'_>,
) -> c_int {
    acquire(client, (ttl, wait), out, |redlock| {
        // SAFETY: the header demands it.
        let resource = unsafe { bytes(resource, len)? };
        Ok(redlock.read_lock(resource)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_acquire_write(
    client: Option<&Client>,
    resource: *const c_void,
    len: usize,
    ttl: u64,
    wait: u64,
    out: Out<'_>,
) -> c_int {
    acquire(client, (ttl, wait), out, |redlock| {
        // SAFETY: the header demands it.
        let resource = unsafe { bytes(resource, len)? };
        Ok(redlock.write_lock(resource)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_resume_several(
    client: Option<&Client>,
    resources: *const *const c_void,
    lens: *const usize,
    n: usize,
    token: Option<&Bytes>,
    validity: u64,
    out: Out<'_>,
) -> c_int {
    resume(client, (token, validity), out, |redlock| {
        // SAFETY: the header demands it.
        unsafe { several(redlock, (resources, lens, n)) }
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_resume_permit(
    client: Option<&Client>,
    resource: *const c_void,
    len: usize,
    permits: u32,
    token: Option<&Bytes>,
    validity: u64,
    out: Out<'_>,
) -> c_int {
    resume(client, (token, validity), out, |redlock| {
        // SAFETY: the header demands it.
        let resource = unsafe { bytes(resource, len)? };
        Ok(redlock.semaphore(resource, permits)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_resume_read(
    client: Option<&Client>,
    resource: *const c_void,
    len: usize,
    token: Option<&Bytes>,
    validity: u64,
    out: Out<'_>,
) -> c_int {
    resume(client, (token, validity), out, |redlock| {
        // SAFETY: the header demands it.
        let resource = unsafe { bytes(resource, len)? };
        Ok(redlock.read_lock(resource)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_resume_write(
    client: Option<&Client>,
    resource: *const c_void,
    len: usize,
    token: Option<&Bytes>,
    validity: u64,
    out: Out<'_>,
) -> c_int {
    resume(client, (token, validity), out, |redlock| {
        // SAFETY: the header demands it.
        let resource = unsafe { bytes(resource, len)? };
        Ok(redlock.write_lock(resource)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn redlock_lock_slot(lock: Option<&Handle>) -> i64 {
    let slot = value(|| {
        Ok(match &*handle(lock)?.read()? {
            HeldHandle::Plain(lock) => lock.slot(),
            HeldHandle::Kept(lock) => lock.slot(),
            HeldHandle::Reentrant(_) | HeldHandle::Ended => None,
        })
    });
    slot.map_or(-1, i64::from)
}
