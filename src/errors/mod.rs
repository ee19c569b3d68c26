//! Errors, and their texts.
//!
//! In reading order:
//!
//! - `text`: how times, addresses and names are written for people
//! - `shown`: a resource in a log line
//! - `secret`: redaction of passwords and tokens in the replies of servers
//! - `server_error`: the errors of servers, and what they mean for a lock
//! - `lock_error`: errors of one lock: busy, lost, too slow, cancelled
//! - `error`: the error of all calls, with the cause at each node

pub(crate) mod error;
pub(crate) mod lock_error;
pub(crate) mod secret;
pub(crate) mod server_error;
pub(crate) mod shown;
pub(crate) mod text;
