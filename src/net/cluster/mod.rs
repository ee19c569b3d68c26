//! Operations that follow their keys through a Redis Cluster.

pub(crate) mod lanes;
pub(crate) mod owed;
pub(crate) mod redirect;
