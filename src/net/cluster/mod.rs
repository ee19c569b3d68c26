//! Operations that follow their keys through a Redis Cluster (rule R45).
//!
//! In reading order:
//!
//! - `redirect`: operations that servers have redirected
//! - `lanes`: connections for each combination of masters

pub(crate) mod lanes;
pub(crate) mod redirect;
