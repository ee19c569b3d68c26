//! Many libraries for locks on Redis, one schedule of faults, one checker. See `README.md` beside this package.

pub mod check;
pub mod client;
pub mod contenders;
pub mod ensemble;
pub mod figures;
pub mod history;
pub mod meet;
pub mod schedule;
pub mod stage;
pub mod table;

#[allow(clippy::new_without_default)]
#[path = "../../support/mod.rs"]
pub mod support;
