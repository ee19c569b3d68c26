//! Where a master is, as sentinels and Cluster servers report it.

pub(crate) mod cluster;
pub(crate) mod directory;
pub(crate) mod question;
pub(crate) mod sentinels;
