//! Which servers an operation goes to: operations follow their keys through a Redis Cluster (rule R45).
//!
//! In reading order:
//!
//! - `lanes`: connections for each combination of masters
//! - `lane_redirects`: operations that servers have redirected
//! - `lane_closing`: the end of lanes, and what they still owe then
//! - `route`: the way of a call's or a lock's operations, chosen once

pub(crate) mod lane_closing;
mod lane_redirects;
pub(crate) mod lanes;
pub(crate) mod route;
