//! Values that everything else is made of.
//!
//! In reading order:
//!
//! - `config_error`: a value that cannot work
//! - `clock`: the only file that reads a clock
//! - `sync`: poisoned mutexes, in one place
//! - `node_set`: a set of nodes
//! - `arithmetic`: quorum, ttl, validity, deadline: the arithmetic of Redlock
//! - `random`, `backoff`: pauses
//! - `token`: the random value that identifies one acquisition
//! - `label`: the holder's label, stored after the token
//! - `lock_value`: the value of a lock's key, token and label
//! - `last_run`: the mark of a run that succeeded
//! - `prefix`: the prefix of all names
//! - `endpoint`: the address of a server of a Redis Cluster

pub(crate) mod arithmetic;
pub(crate) mod backoff;
pub(crate) mod clock;
pub(crate) mod config_error;
pub(crate) mod endpoint;
pub(crate) mod label;
pub(crate) mod last_run;
pub(crate) mod lock_value;
pub(crate) mod node_set;
pub(crate) mod prefix;
pub(crate) mod random;
pub(crate) mod sync;
pub(crate) mod token;
