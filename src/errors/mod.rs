//! Errors, and their texts.
//!
//! In reading order:
//!
//! - `text`: how times, addresses and names are written for people
//! - `shown`: a resource in a log line
//! - `server_error`: the errors of servers, and what they mean for a lock (`own_words`: which part of them may be shown)
//! - `secret`: redaction of passwords and tokens in the replies of servers
//! - `redirection`: the answer that another server has a key
//! - `lock_error`: errors of one lock: busy, lost, too slow, cancelled
//! - `cause`: why a node gave no vote (`wording`: the texts of causes)
//! - `node_errors`: the nodes that failed
//! - `error`: the error of all calls

pub(crate) mod cause;
pub(crate) mod error;
pub(crate) mod lock_error;
pub(crate) mod node_errors;
pub(crate) mod own_words;
pub(crate) mod redirection;
pub(crate) mod secret;
pub(crate) mod server_error;
pub(crate) mod shown;
pub(crate) mod text;
mod wording;
