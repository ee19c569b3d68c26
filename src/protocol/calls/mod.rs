//! One call each, from its beginning to its end.
//!
//! In reading order:
//!
//! - `lease`: the state of a held lock (`lease/renewals`: of one that is kept alive)
//! - `fencing`: fencing tokens
//! - `once_mark`: the mark of work that is done once in a period
//! - `process_services`: the queues, tokens and threads that a call uses
//! - `acquire`, `release`: one name (`acquire/attempts`: the attempts, and what follows each)
//! - `claims`: several names, which are claimed one by one
//! - `redirect`: the next hop of an operation that a server of a Redis Cluster redirected (MOVED, ASK, TRYAGAIN)
//! - `owed_releases`: redirected releases that no call waits for
//! - `lane_choice`: the lane (the connections to one shard) that an operation takes
//! - `refilled`: the lanes over which locks were set again

pub(crate) mod acquire;
pub(crate) mod claims;
pub(crate) mod fencing;
pub(crate) mod lane_choice;
pub(crate) mod lease;
pub(crate) mod once_mark;
pub(crate) mod owed_releases;
pub(crate) mod process_services;
pub(crate) mod redirect;
pub(crate) mod refilled;
pub(crate) mod release;
