//! Operations that follow their keys through a Redis Cluster (rule R45).
//!
//! In reading order:
//!
//! - `redirect`: MOVED, ASK and TRYAGAIN
//! - `owed`: releases for slots that have moved
//! - `lanes`: connections for each combination of masters

pub(crate) mod lanes;
pub(crate) mod owed;
pub(crate) mod redirect;
