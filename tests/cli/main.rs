//! The command `redlock`.

#[path = "../support/mod.rs"]
mod support;

mod operations;
mod run;
mod terminal;
mod tls;
