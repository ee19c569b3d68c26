//! The function of a thread that its calls ask whether to go on.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};

use super::*;
use crate::Redlock;
use crate::protocol::calls::acquire::ASK;
use crate::values::sync::start_thread;

type KeepTrying = unsafe extern "C" fn(*mut c_void) -> c_int;

thread_local! {
    /// The function that waits of this thread ask, and its argument.
    static KEEP_TRYING: Cell<Option<(KeepTrying, *mut c_void)>> = const { Cell::new(None) };
}

#[unsafe(no_mangle)]
extern "C" fn redlock_set_keep_trying(keep_trying: Option<KeepTrying>, user: *mut c_void) {
    // In a thread that is ending there may be no place for it.
    let _ = KEEP_TRYING.try_with(|asked| asked.set(keep_trying.map(|function| (function, user))));
}

/// Waits, and asks the function of this thread meanwhile. A single attempt asks while it waits for first connections.
pub(super) fn asking<T>(acquire: impl FnOnce(Option<&mut dyn FnMut() -> bool>) -> T) -> T {
    match KEEP_TRYING.try_with(Cell::get).ok().flatten() {
        // SAFETY: the caller's function with the caller's argument, in the thread for which it was set.
        Some((function, user)) => acquire(Some(&mut || unsafe { function(user) } != 0)),
        None => acquire(None),
    }
}

/// Has a question that takes as long as connections do answered by another thread, and asks the function of this thread
/// meanwhile, if it has one.
pub(super) fn answered<T: Send + 'static>(
    redlock: Redlock,
    question: impl Fn(&Redlock) -> Result<T, Error> + Send + Sync + 'static,
) -> Result<T, CFailure> {
    let asked = KEEP_TRYING.try_with(Cell::get).ok().flatten();
    let Some((function, user)) = asked else {
        return Ok(question(&redlock)?);
    };
    let (question, (answers, answer)) = (Arc::new(question), channel());
    let (asks, to) = (question.clone(), redlock.clone());
    let work = move || {
        let result = asks(&to);
        // Not the last user of its connections, if the caller ends the client object as soon as there is an answer.
        drop((asks, to));
        // Nobody may wait for the answer any longer.
        drop(answers.send(result));
    };
    if start_thread("redlock-ask", work).is_err() {
        return Ok(question(&redlock)?);
    }
    let process = std::process::id();
    loop {
        match answer.recv_timeout(ASK) {
            Ok(result) => return Ok(result?),
            Err(RecvTimeoutError::Disconnected) => return Err(CFailure::panic("a panic")),
            Err(RecvTimeoutError::Timeout) => {}
        }
        // SAFETY: the caller's function with the caller's argument, in the thread for which it was set.
        let goes_on = unsafe { function(user) } != 0;
        let is_child = std::process::id() != process;
        if is_child {
            // A child that was forked by the function does not have the thread, which may have been sending just then.
            std::mem::forget(answer);
        } else if goes_on {
            continue;
        }
        return Err(CFailure {
            code: REDLOCK_CANCELLED,
            text: "given up before the nodes had answered".into(),
            ..CFailure::default()
        });
    }
}
