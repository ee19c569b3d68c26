//! The command `redlock`.

#[path = "../support/mod.rs"]
mod support;

mod children;
mod cluster;
mod give_up;
mod kinds;
mod metrics;
mod operations;
mod release;
mod run;
mod terminal;
mod tls;
