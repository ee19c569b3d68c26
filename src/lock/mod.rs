//! The locks, and the client object that makes them.

pub(crate) mod acquire;
pub(crate) mod fence;
pub(crate) mod kept_lock;
pub(crate) mod leak;
pub(crate) mod lock;
pub(crate) mod lockable;
pub(crate) mod redlock;
pub(crate) mod reentrant;
