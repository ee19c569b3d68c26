//! Values that everything is made of: times, tokens, names, the arithmetic of quorum and validity.

pub(crate) mod backoff;
pub(crate) mod clock;
pub(crate) mod config_error;
pub(crate) mod label;
pub(crate) mod lock_value;
pub(crate) mod prefix;
pub(crate) mod quorum;
pub(crate) mod random;
pub(crate) mod sync;
pub(crate) mod token;
