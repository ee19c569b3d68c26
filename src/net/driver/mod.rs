//! The threads that carry out what the protocol decides.
//!
//! In reading order:
//!
//! - `races`: mistakes that can be made on purpose, for tests
//! - `observe`: events for the program
//! - `node_log`: the log lines of nodes, and the observer's events
//! - `leadership`: the leading thread, and those that wait for it
//! - `other_lanes`: the other connections to servers of the same nodes
//! - `executor`: one step of the leader, with its sockets (`workers`: the threads that connect;
//!   `logging`: when events are logged)
//! - `leader_loop`: the leader's loop, and which thread leads next
//! - `release_confirmer`: the thread that confirms releases
//! - `driver`: how operations are submitted, and how the threads wait that do not lead
//! - `subscription`: a connection over which a node notifies this process
//! - `waiting_threads`: how threads wait for a lock
//! - `renewal`: a kept lock, and what is reported of it
//! - `timetable`: when kept locks are due
//! - `renewal_threads`: the threads of kept locks

pub(crate) mod driver;
pub(crate) mod executor;
mod leader_loop;
pub(crate) mod leadership;
pub(crate) mod node_log;
pub(crate) mod observe;
pub(crate) mod other_lanes;
pub(crate) mod races;
mod release_confirmer;
pub(crate) mod renewal;
pub(crate) mod renewal_threads;
pub(crate) mod subscription;
pub(crate) mod timetable;
pub(crate) mod waiting_threads;
