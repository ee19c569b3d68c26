//! The locks, and the client object that makes them.
//!
//! In reading order:
//!
//! - `lock`: a held lock
//! - `acquirer`: how a thread acquires one
//! - `leak`: locks that end by themselves
//! - `fencing_token`: fencing tokens
//! - `kept_lock`: locks that are renewed automatically
//! - `mark_done`: the mark of work that is done once in a period
//! - `lockable`: semaphores, read-write locks, several names
//! - `reentrant`: locks that a thread can lock again
//! - `redlock`: the client object (`family`: its connections, which clones share and forked processes do not)
//! - `program_end`: how the command waits for nodes at its end
//! - `checks`: of the nodes and the names that a program passes in
//! - `exclusive`: its calls for plain locks, with one holder

// First, so that the page of `Redlock` begins with what is in this file.
pub(crate) mod redlock;

pub(crate) mod checks;
mod exclusive;

pub(crate) mod acquirer;
mod family;
pub(crate) mod fencing_token;
pub(crate) mod kept_lock;
pub(crate) mod leak;
pub(crate) mod lock;
pub(crate) mod lockable;
pub(crate) mod mark_done;
#[cfg(feature = "cli")]
mod program_end;
pub(crate) mod reentrant;
