//! One node, over all its connections.
//!
//! In reading order:
//!
//! - `notice`, `node_events`: what is logged about a node, and what only once
//! - `master_address`: whether a connection still leads to the node's master
//! - `restart_guard`: when a restarted or replaced server may vote
//! - `witness`: what shows that a server still has the locks that it granted (`witness_look`: a look at that)
//! - `clock_watch`: whether a server's clock was set forward
//! - `witness_proofs`: answers that count only with such evidence
//! - `server_properties`: the properties that a server reports when it is connected
//! - `pending`: the commands whose replies are pending
//! - `wire`: one connection (`outgoing`: the commands that are being sent; `wire/receiving`: the replies)
//! - `debt`, `outbox`: the end of a lock that a node has not carried out yet
//! - `read_order`: which node is read first
//! - `standing`: which of a node's answers count now
//! - `known_server`: the server behind the node's address, and when it votes
//! - `reconnect`: the tries to connect
//! - `node`: all of these, and the worker that connects (`node/task`: what that does next; `node/link`: how
//!   connections end and begin; `node/debts`: the releases that it is owed)

pub(crate) mod clock_watch;
pub(crate) mod debt;
pub(crate) mod known_server;
pub(crate) mod master_address;
pub(crate) mod node;
pub(crate) mod node_events;
pub(crate) mod notice;
pub(crate) mod outbox;
pub(crate) mod outgoing;
pub(crate) mod pending;
pub(crate) mod read_order;
pub(crate) mod reconnect;
pub(crate) mod restart_guard;
pub(crate) mod server_properties;
pub(crate) mod standing;
pub(crate) mod wire;
pub(crate) mod witness;
pub(crate) mod witness_look;
pub(crate) mod witness_proofs;
