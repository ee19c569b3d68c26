//! One call each, from its beginning to its end.
//!
//! In reading order:
//!
//! - `lease`: the state of a held lock (`lease/renewals`: of one that is kept alive; `lease/unseen_time`: what a
//!   suspend of the machine does to that)
//! - `fencing`: fencing tokens
//! - `once_mark`: the mark of work that is done once in a period
//! - `process_services`: the queues, tokens and threads that a call uses
//! - `acquire`, `release`: one name (`acquire/attempts`: the attempts, and what follows each)
//! - `claims`: several names, which are claimed one by one

pub(crate) mod acquire;
pub(crate) mod claims;
pub(crate) mod fencing;
pub(crate) mod lease;
pub(crate) mod once_mark;
pub(crate) mod process_services;
pub(crate) mod release;
