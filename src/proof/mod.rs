//! Tests of the protocol as a whole. Tests of one file are in that file.
//!
//! - `sim`: the protocol among virtual servers, connections and clocks
//! - `oracle`: the code on the schedules of the model
//! - `differential`: the simulation's servers against real ones
//! - `fuzz`: what a fuzzer guided by coverage calls, and its corpus
//! - `schedules`: the threads of the driver under a scheduler (`tests/schedules`)
//! - `fixtures`: values for unit tests
//! - `random`: random numbers that follow from a seed

pub(crate) mod differential;
pub(crate) mod fixtures;
mod fuzz;
pub(crate) mod oracle;
pub(crate) mod random;
pub(crate) mod sim;
