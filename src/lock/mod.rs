//! The locks, and the client object that makes them.
//!
//! In reading order:
//!
//! - `lock`: a held lock
//! - `acquire`: how a thread acquires one
//! - `leak`: locks that end by themselves
//! - `fence`: fencing tokens
//! - `kept_lock`: locks that are renewed automatically
//! - `lockable`: semaphores, read-write locks, several names
//! - `reentrant`: locks that a thread can lock again
//! - `redlock`: the client object

// First, so that the page of `Redlock` begins with what is in this file.
pub(crate) mod redlock;

pub(crate) mod acquire;
pub(crate) mod fence;
pub(crate) mod kept_lock;
pub(crate) mod leak;
pub(crate) mod lock;
pub(crate) mod lockable;
pub(crate) mod reentrant;
