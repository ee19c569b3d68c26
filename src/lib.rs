//! Distributed locks on Redis with a blocking API and no async runtime.
#![cfg_attr(docsrs, feature(doc_cfg))]
#![forbid(unsafe_code)]
// Nothing panics, nothing prints. Tests may.
#![cfg_attr(
    not(test),
    warn(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::print_stdout,
        clippy::print_stderr,
        clippy::missing_errors_doc,
        clippy::missing_panics_doc
    )
)]

mod clock;
mod error;
mod keep_alive;
mod keeper;
mod lane;
mod lock;
mod node;
mod options;
mod quorum;
mod redlock;
mod script;
mod token;
mod wire;

pub use error::{ConfigError, Error, NodeErrors, RandomError};
pub use keep_alive::KeptLock;
pub use keeper::LostReason;
pub use lock::Lock;
pub use options::Options;
/// The redis crate, because [`Redlock::new`] takes its `IntoConnectionInfo`.
pub use redis;
pub use redlock::Redlock;
pub use token::Token;
