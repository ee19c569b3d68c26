//! Errors, their texts, and the redaction of secrets.

pub(crate) mod error;
pub(crate) mod lock_error;
pub(crate) mod secret;
pub(crate) mod server_error;
pub(crate) mod shown;
pub(crate) mod text;
