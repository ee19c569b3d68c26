//! Commands and replies as bytes: scripts, kinds of locks, votes.

pub(crate) mod companions;
pub(crate) mod kind;
pub(crate) mod means;
pub(crate) mod queue;
pub(crate) mod resp;
pub(crate) mod script;
pub(crate) mod scripts;
pub(crate) mod server_info;
pub(crate) mod sha1;
pub(crate) mod slots;
pub(crate) mod vote;
