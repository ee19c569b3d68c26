//! One call each, from its beginning to its end.
//!
//! In reading order:
//!
//! - `lease`: what the holder of a lock may believe
//! - `fence`: fencing tokens
//! - `process`: what a call needs of its process
//! - `acquire`, `release`: one name
//! - `claims`: several names, which are claimed one by one

pub(crate) mod acquire;
pub(crate) mod claims;
pub(crate) mod fence;
pub(crate) mod lease;
pub(crate) mod process;
pub(crate) mod release;
