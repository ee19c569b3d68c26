//! Questions of people and monitoring: whether nodes are fit, and who has a lock, which they may break.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::time::UNIX_EPOCH;

use super::client::{Client, redlock_of};
use super::keep_trying::answered;
use super::*;
use crate::ops::holder::{Holder, HolderText};
use crate::ops::json::Json;
use crate::ops::named_holder::NamedHolder;
use crate::ops::result_json;
use crate::{Inspection, LockState, Redlock, Report};

/// Writes the option in the advice as C names it.
fn in_c(text: String) -> String {
    text.replace("Options::restart_guard", "REDLOCK_OPTION_RESTART_GUARD_MS")
}

fn checked(client: Option<&Client>, probe: &[u8]) -> Result<Report, CFailure> {
    let probe = probe.to_vec();
    answered(redlock_of(client)?, move |redlock| redlock.check(&probe))
}

fn inspected(redlock: Redlock, resource: &[u8]) -> Result<Inspection, CFailure> {
    let resource = resource.to_vec();
    answered(redlock, move |redlock| redlock.inspect(&resource))
}

#[unsafe(no_mangle)]
extern "C" fn redlock_check(
    client: Option<&Client>,
    probe: *const c_void,
    len: usize,
    text: *mut c_char,
    cap: usize,
    fit: Option<&mut MaybeUninit<c_int>>,
) -> c_int {
    let (mut is_fit, mut findings) = (false, String::new());
    let code = status(|| {
        if fit.is_none() {
            return Err(CFailure::null("fit"));
        }
        // SAFETY: the header demands it.
        let report = checked(client, unsafe { bytes(probe, len)? })?;
        (is_fit, findings) = (report.is_fit(), in_c(report.to_string()));
        Ok(())
    });
    // SAFETY: the header demands it.
    unsafe { copy_text(&findings, text, cap) };
    if let Some(fit) = fit {
        fit.write(is_fit.into());
    }
    code
}

#[unsafe(no_mangle)]
extern "C" fn redlock_inspect(
    client: Option<&Client>,
    resource: *const c_void,
    len: usize,
    holder: *mut c_char,
    cap: usize,
    left: Option<&mut MaybeUninit<u64>>,
    state: Option<&mut MaybeUninit<c_int>>,
) -> c_int {
    let mut seen = (REDLOCK_STATE_UNKNOWN, String::new(), 0);
    let code = status(|| {
        if left.is_none() {
            return Err(CFailure::null("remaining_ms"));
        }
        if state.is_none() {
            return Err(CFailure::null("state"));
        }
        // SAFETY: the header demands it.
        let found = inspected(redlock_of(client)?, unsafe { bytes(resource, len)? })?;
        seen = shown(&found);
        Ok(())
    });
    let (code_of_state, who, time) = seen;
    // SAFETY: the header demands it.
    unsafe { copy_text(&who, holder, cap) };
    if let Some(left) = left {
        left.write(time);
    }
    if let Some(state) = state {
        state.write(code_of_state);
    }
    code
}

#[unsafe(no_mangle)]
extern "C" fn redlock_check_json(
    client: Option<&Client>,
    probe: *const c_void,
    len: usize,
    json: *mut c_char,
    cap: usize,
    needed: Option<&mut MaybeUninit<usize>>,
) -> c_int {
    let document = || {
        // SAFETY: the header demands it.
        let report = checked(client, unsafe { bytes(probe, len)? })?;
        Ok(result_json::report(&report, |finding| {
            in_c(finding.to_string())
        }))
    };
    // SAFETY: the header demands it.
    unsafe { give_document(document, json, cap, needed) }
}

#[unsafe(no_mangle)]
extern "C" fn redlock_inspect_json(
    client: Option<&Client>,
    resource: *const c_void,
    len: usize,
    json: *mut c_char,
    cap: usize,
    needed: Option<&mut MaybeUninit<usize>>,
) -> c_int {
    let document = || {
        // SAFETY: the header demands it.
        let resource = unsafe { bytes(resource, len)? };
        let found = inspected(redlock_of(client)?, resource)?;
        Ok(result_json::inspection(resource, &found))
    };
    // SAFETY: the header demands it.
    unsafe { give_document(document, json, cap, needed) }
}

#[unsafe(no_mangle)]
extern "C" fn redlock_inspect_last_run(
    client: Option<&Client>,
    resource: *const c_void,
    len: usize,
    label: *mut c_char,
    cap: usize,
    ended: Option<&mut MaybeUninit<u64>>,
    took: Option<&mut MaybeUninit<u64>>,
    again_in: Option<&mut MaybeUninit<u64>>,
) -> c_int {
    let (mut by, mut times) = (String::new(), [0; 3]);
    let code = status(|| {
        if ended.is_none() {
            return Err(CFailure::null("ended_ms"));
        }
        // SAFETY: the header demands it.
        let resource = unsafe { bytes(resource, len)? }.to_vec();
        let last = answered(redlock_of(client)?, move |redlock| {
            redlock.last_run(&resource)
        })?;
        if let Some(last) = last {
            let ended = last.ended().duration_since(UNIX_EPOCH).unwrap_or_default();
            by = last.label().unwrap_or_default().to_owned();
            times = [ended, last.took(), last.again_in()].map(millis);
        }
        Ok(())
    });
    // SAFETY: the header demands it.
    unsafe { copy_text(&by, label, cap) };
    for (out, time) in [ended, took, again_in].into_iter().zip(times) {
        if let Some(out) = out {
            out.write(time);
        }
    }
    code
}

/// Writes all of a document, or nothing: a part would be no document.
///
/// # Safety
///
/// `json` is NULL or has room for `cap` bytes.
unsafe fn give_document(
    document: impl FnOnce() -> Result<Json, CFailure>,
    json: *mut c_char,
    cap: usize,
    needed: Option<&mut MaybeUninit<usize>>,
) -> c_int {
    let (mut text, mut size) = (String::new(), 0);
    let code = status(|| {
        if needed.is_none() {
            return Err(CFailure::null("needed"));
        }
        let all = document()?.to_string();
        size = all.len() + 1;
        if json.is_null() || size > cap {
            let told = format!("the document needs {size} bytes, and there is room for {cap}");
            return Err(CFailure::config(told));
        }
        text = all;
        Ok(())
    });
    // SAFETY: the caller vouches for it.
    unsafe { copy_text(&text, json, cap) };
    if let Some(needed) = needed {
        needed.write(size);
    }
    code
}

#[unsafe(no_mangle)]
extern "C" fn redlock_break_lock(
    client: Option<&Client>,
    resource: *const c_void,
    len: usize,
    holder: *const c_char,
    broken: Option<&mut MaybeUninit<c_int>>,
) -> c_int {
    let mut was_broken = false;
    let code = status(|| {
        if broken.is_none() {
            return Err(CFailure::null("broken"));
        }
        if holder.is_null() {
            return Err(CFailure::null("holder"));
        }
        // SAFETY: not null, and the header demands a string.
        let holder = unsafe { CStr::from_ptr(holder) }.to_string_lossy();
        let named = HolderText::parse(&holder).map_err(|bad| CFailure::config(bad.to_string()))?;
        // SAFETY: the header demands it.
        let resource = unsafe { bytes(resource, len)? };
        let redlock = redlock_of(client)?;
        let found = inspected(redlock.clone(), resource)?;
        was_broken = match holder_of(&found, &named)? {
            Some(holder) => redlock.break_lock(resource, &holder)?,
            None => false,
        };
        Ok(())
    });
    if let Some(broken) = broken {
        broken.write(was_broken.into());
    }
    code
}

/// The holder that a text names; or that there is none, if that is certain.
fn holder_of(found: &Inspection, named: &HolderText<'_>) -> Result<Option<Holder>, CFailure> {
    match found.named(named) {
        NamedHolder::Holder(holder) => Ok(Some(holder)),
        NamedHolder::ByPart(holder) => Err(CFailure::config(format!(
            "the text is not that of a whole line, which is \"{holder}\""
        ))),
        NamedHolder::Nobody => Ok(None),
        NamedHolder::Unknown => Err(Error::Unavailable(found.errors()).into()),
        NamedHolder::NotShown => Err(CFailure::config(
            "this holder is not among those that a node shows, which are not all: those that last longest",
        )),
    }
}

/// The state, the holders, a line for each, and how long that lasts.
fn shown(found: &Inspection) -> (c_int, String, u64) {
    let ends = |time: Option<Duration>| time.map_or(u64::MAX, millis);
    let state = found.state();
    let (texts, times): (Vec<String>, Vec<u64>) = state
        .holders()
        .map(|(holder, left)| (holder.to_string(), ends(left)))
        .unzip();
    let last = times.into_iter().max().unwrap_or_default();
    let (code, last) = match state {
        LockState::Held { .. } => (REDLOCK_STATE_HELD, last),
        LockState::Readers { .. } => (REDLOCK_STATE_READERS, last),
        LockState::Permits { .. } => (REDLOCK_STATE_PERMITS, last),
        LockState::Blocked { remaining } => (REDLOCK_STATE_BLOCKED, ends(remaining)),
        LockState::Free => (REDLOCK_STATE_FREE, last),
        LockState::Unknown => (REDLOCK_STATE_UNKNOWN, last),
    };
    (code, texts.join("\n"), last)
}
