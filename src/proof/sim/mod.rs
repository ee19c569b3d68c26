//! The protocol among virtual servers, connections and clocks.
//!
//! One schedule is everything that happens in a world which is made from one seed: servers with their own clocks,
//! connections that delay, split, hold and are cut, clients that freeze and are suspended, and their threads, which
//! acquire, extend, release and drop. The protocol is the real one, from bytes to deadlines; the driver, with its
//! sockets, threads and clocks, is imitated. The properties are checked as things happen; a seed that fails can be
//! replayed with a trace.
//!
//! ```text
//! cargo test --release --lib simulation                                   a short run, and the mutants
//! SIM_COUNT=10000000 cargo test --release --lib simulation -- --nocapture on all cores: 48 minutes on two
//! SIM_SEED=17 cargo test --release --lib replay -- --ignored --nocapture  one seed, with a trace
//! ```
//!
//! A server is a model of a real one (`testing::store`), with which the differential test in `net` compares it.
//!
//! *Mutants* (`mutants`) show that the properties can fail: each breaks one rule, and must be found.
//!
//! In some worlds threads *wait*: in the queues of their processes, and in those on the nodes, with subscriptions that
//! open late and are cut. There, no lock is free for long while a thread waits for it. If nothing else goes wrong, that
//! is a few milliseconds; the polls are much longer.
//!
//! The files, from those that import none of the others to those that none of the others imports:
//!
//! - `basics`, `agenda`, `counts` and `conditions`: times, random numbers, the next events, what is counted, and what may happen
//! - `clocks`, `client`, `instance`, `command`, `server` and `connection`: the parts of a world
//! - `sentinels` and `place`: the sentinels of sets, and what a client knows of a set
//! - `world`: all of these, the next events, and the record of the locks
//! - `asking` and `sets`: how clients ask the sentinels, and what happens in sets
//! - the other events: `driving`, `connecting`, `acting`, `waiting` and `kept` at the clients, `network` between them and the
//!   servers, `serving`, `failover` and `stepping` there; and `faults`
//! - the checks meanwhile: `safety`, `liveness` and `reach`
//! - `schedule`: the course of a world; and `tests`, which run many
//!
//! `shards` has separate worlds: Redis Clusters, in which operations follow their keys.

mod acting;
mod agenda;
mod asking;
pub(crate) mod basics;
mod client;
mod clocks;
mod command;
mod conditions;
mod connecting;
mod connection;
mod counts;
mod driving;
mod failover;
mod faults;
mod instance;
mod kept;
mod liveness;
mod network;
mod place;
mod reach;
mod safety;
mod schedule;
mod sentinels;
mod server;
mod serving;
mod sets;
mod shards;
mod stepping;
mod tests;
mod waiting;
mod world;
