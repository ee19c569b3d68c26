//! Redis Clusters among virtual servers: operations follow their keys (rules R43, R45).
//!
//! A world is one Cluster, or three whose servers vote together. Each has two masters, and a replica of the first one.
//! Slots move from one master to the other: the importing server is told first, keys go one by one, and servers learn at
//! different times which server owns the slot. Shards fail over to replicas that may lack the last writes; with the restart guard
//! that makes no two holders. A master may be removed once its slots have moved. Maps that clients have are as old as
//! the servers' opinions when they were asked.
//!
//! The decisions are made by the library's own values: the core of each lane (the connections to the masters of one slot), the
//! calls, [`Redirect`](crate::protocol::cluster::redirect::Redirect),
//! [`LaneSource`](crate::protocol::cluster::lane_choice::LaneSource),
//! [`RedirectedReleases`](crate::protocol::cluster::redirected_releases::RedirectedReleases),
//! [`ClusterMap`](crate::protocol::cluster::cluster_map::ClusterMap),
//! [`AskedServers`](crate::protocol::cluster::asked_servers::AskedServers),
//! [`Maps`](crate::protocol::cluster::cluster_answers::Maps) and
//! [`Refreshes`](crate::protocol::cluster::map_refreshes::Refreshes). Threads and sockets are imitated; each server is asked
//! by each caller, and answers at once or not at all.
//!
//! The files, from those that import none of the others to those that none of the others imports:
//!
//! - `servers`: what the servers of a Cluster know, and where they send commands
//! - `process`: the parts of a client: lanes, connections and threads
//! - `world`: all of these, the next events, and the checks
//! - `maps`: the maps of a process, and the questions for them
//! - `network`: bytes on their way; `changes`: slots that move, failovers, servers that are removed
//! - `lanes`: the lanes of a process, redirects, and releases that no call waits for; `driving`: the lanes' cores
//! - `threads`: threads that acquire, hold, extend and release locks
//! - `schedule`: the course of a world

mod changes;
mod driving;
mod lanes;
mod maps;
mod network;
mod process;
mod schedule;
mod servers;
mod threads;
pub(super) mod world;
