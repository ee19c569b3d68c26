//! Which servers an operation goes to: operations follow their keys through a Redis Cluster (rule R45).
//!
//! In reading order:
//!
//! - `lanes`: connections for each combination of masters
//! - `map_questions`: when lanes ask for the maps of their Clusters
//! - `lane_redirects`: redirected operations, carried out over lanes
//! - `lane_closing`: the end of lanes, and what they still owe then
//! - `route`: one connection to each node, or lanes: chosen once for a call or a lock

pub(crate) mod lane_closing;
mod lane_redirects;
pub(crate) mod lanes;
mod map_questions;
pub(crate) mod route;
