//! The rules of a check: findings about nodes, by their reports.
//!
//! In reading order:
//!
//! - `codes`: the codes of findings, a row for each
//! - `finding`: a finding, as it is reported
//! - `facts`: the reports of nodes about themselves
//! - `findings`: the findings so far
//! - `trial`: a node that refuses what locks need
//! - `server`: one server, by its INFO
//! - `network_path`: the network path to a node: latency, unencrypted passwords, unchecked certificates
//! - `judge`: all of these, and findings that concern several nodes
//! - `sentinel_set`: a set, by its sentinels
//! - `slot_coverage`: a Redis Cluster as a whole
//! - `tests`: all rules together

pub(crate) mod codes;
pub(crate) mod facts;
pub(crate) mod finding;
mod findings;
pub(crate) mod judge;
mod network_path;
pub(crate) mod sentinel_set;
mod server;
pub(crate) mod slot_coverage;
#[cfg(test)]
mod tests;
mod trial;
