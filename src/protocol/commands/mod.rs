//! Commands and replies as bytes.
//!
//! In reading order:
//!
//! - `resp`: the wire protocol (`sha1`: hashes of scripts)
//! - `server_info`: the fields of INFO
//! - `companions`: the keys beside a lock's
//! - `node_id`: the ID of a server of a Redis Cluster, and whether the server at an address is the one that is meant
//! - `server_entry`: a server's entry in the map of a Redis Cluster
//! - `slots`: which server of a Redis Cluster owns a key
//! - `witness_keys`: the keys that a witness may have there
//! - `node_queue`: the processes that wait for a lock, as its nodes report them
//! - `lock_info`: the report of a node that denied a lock
//! - `vote`: the meaning of a node's answer to a command
//! - `scripts`: the scripts that run on servers
//! - `kind`: the kinds of locks, and a row of scripts for each
//! - `kind_votes`: which grants of a kind count
//! - `action`: actions on a lock (`dialect`: the forms in which a server accepts their commands)
//! - `command_table`: the bytes of each action for each kind, and the votes in the replies

pub(crate) mod action;
pub(crate) mod command_table;
pub(crate) mod companions;
pub(crate) mod dialect;
pub(crate) mod kind;
pub(crate) mod kind_votes;
pub(crate) mod lock_info;
pub(crate) mod node_id;
pub(crate) mod node_queue;
pub(crate) mod resp;
pub(crate) mod scripts;
pub(crate) mod server_entry;
pub(crate) mod server_info;
pub(crate) mod sha1;
pub(crate) mod slots;
pub(crate) mod vote;
pub(crate) mod witness_keys;
