//! One node, over all its connections.
//!
//! In reading order:
//!
//! - `notice`, `event`: what is logged about a node, and what only once
//! - `address`: whether a connection still leads to the node's master
//! - `guard`: from when on a restarted or replaced server may vote
//! - `witness`: what a server shows of the locks that it has kept
//! - `proof`: answers that count only with that
//! - `wire`: one connection, and the replies that are still to come
//! - `answers`: which of the servers that name a master are believed
//! - `debt`, `outbox`: the end of a lock that a node has not carried out yet
//! - `order`: which node is read first
//! - `node`: all of these, and the worker that connects

pub(crate) mod address;
pub(crate) mod answers;
pub(crate) mod debt;
pub(crate) mod event;
pub(crate) mod guard;
pub(crate) mod node;
pub(crate) mod notice;
pub(crate) mod order;
pub(crate) mod outbox;
pub(crate) mod proof;
pub(crate) mod wire;
pub(crate) mod witness;
