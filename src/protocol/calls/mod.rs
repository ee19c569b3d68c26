//! One call each, from its beginning to its end.

pub(crate) mod acquire;
pub(crate) mod claims;
pub(crate) mod fence;
pub(crate) mod lease;
pub(crate) mod process;
pub(crate) mod release;
