//! Threads that carry out what the protocol decides.

pub(crate) mod abandoned;
pub(crate) mod driver;
pub(crate) mod leader;
pub(crate) mod nodes;
pub(crate) mod observe;
pub(crate) mod renewals;
pub(crate) mod report;
pub(crate) mod route;
pub(crate) mod shared;
pub(crate) mod subscription;
pub(crate) mod waiting;
