//! One node, over all its connections.
//!
//! In reading order:
//!
//! - `notice`, `event`: what is logged about a node, and what only once
//! - `master_answers`: the answers of sentinels and Cluster servers about a master, weighed
//! - `directory_questions`: the questions to these servers, which callers share, and when each is asked
//! - `found_master`: the master that these answers name, and for how long that counts
//! - `opinions`: the answers of all servers together, and why those that name no master do not
//! - `cluster_votes`: which servers of a Redis Cluster are asked about a master, and when their answers confirm it
//! - `asked_servers`: which of them are asked first, and for how long
//! - `cluster_answers`: what their answers about a slot's master mean
//! - `cluster_map`: the map of a Redis Cluster
//! - `server_names`: one name for each server of a Redis Cluster
//! - `map_refreshes`: when the map is asked for again
//! - `master_address`: whether a connection still leads to the node's master
//! - `restart_guard`: when a restarted or replaced server may vote
//! - `witness`: what shows that a server still has the locks that it granted (`witness_look`: a look at that)
//! - `clock_watch`: whether a server's clock was set forward
//! - `witness_proofs`: answers that count only with such evidence
//! - `handshake`: the properties that a server reports when it is connected
//! - `pending`: the commands whose replies are pending
//! - `wire`: one connection (`outgoing`: the commands that are being sent; `wire/receiving`: the replies)
//! - `debt`, `outbox`: the end of a lock that a node has not carried out yet
//! - `read_order`: which node is read first
//! - `standing`: which of a node's answers count now
//! - `known_server`: the server behind the node's address, and when it votes
//! - `reconnect`: the tries to connect
//! - `node`: all of these, and the worker that connects (`node/task`: what that does next; `node/link`: how
//!   connections end and begin; `node/releases`: those that the node is owed)

pub(crate) mod asked_servers;
pub(crate) mod clock_watch;
pub(crate) mod cluster_answers;
pub(crate) mod cluster_map;
pub(crate) mod cluster_votes;
pub(crate) mod debt;
pub(crate) mod directory_questions;
pub(crate) mod event;
pub(crate) mod found_master;
pub(crate) mod handshake;
pub(crate) mod known_server;
pub(crate) mod map_refreshes;
pub(crate) mod master_address;
pub(crate) mod master_answers;
pub(crate) mod node;
pub(crate) mod notice;
pub(crate) mod opinions;
pub(crate) mod outbox;
pub(crate) mod outgoing;
pub(crate) mod pending;
pub(crate) mod read_order;
pub(crate) mod reconnect;
pub(crate) mod restart_guard;
pub(crate) mod server_names;
pub(crate) mod standing;
pub(crate) mod wire;
pub(crate) mod witness;
pub(crate) mod witness_look;
pub(crate) mod witness_proofs;
