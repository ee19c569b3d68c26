//! The protocol in small worlds, searched through to the end.
//!
//! Each module is a *world*: nodes, clients and their messages, with the protocol's rules as switches. A search goes through
//! every state that the world can get into, in any order of events, and looks for one that breaks the promise. Each row of its
//! table is one world: with all rules it must *hold*; with a rule left out it must be *broken*, and the shortest schedule that
//! breaks it is printed. So a row that holds is not empty: its neighbours show that the search would have noticed.
//!
//! Names of rows (D1.31, RA.5) stay as they are: design notes refer to them.
//!
//! The rows with few states are searched by `cargo test`. All others, in release:
//!
//! ```sh
//! cargo test --release --test model -- --ignored --nocapture
//! ```
//!
//! `MODEL_ROWS=D1.31` searches the rows whose names begin so, and `MODEL_STATES` is the bound: rows with more states are searched
//! as far as that, and a counterexample that lies more than five times as far is not searched for.

#![allow(
    clippy::cast_possible_truncation,
    reason = "counters of small worlds, kept in bytes"
)]

mod bits;
mod clocks;
mod explorer;
mod failover;
mod fence;
mod holders;
mod keys;
mod lease;
mod moves;
mod once;
mod order;
mod queue;
mod sharing;
mod table;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use table::Row;

/// What a debug build searches at once.
const FEW: usize = 15_000;

/// What fits into a few minutes.
const MANY: usize = 250_000;

fn all_rows() -> Vec<Row> {
    [
        lease::rows(),
        fence::rows(),
        failover::rows(),
        moves::rows(),
        keys::rows(),
        queue::rows(),
        holders::rows(),
        sharing::rows(),
        order::rows(),
        once::rows(),
        clocks::rows(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Searches these rows on all cores, the largest first.
fn search(mut rows: Vec<Row>, bound: usize) {
    let started = Instant::now();
    rows.sort_by_key(|row| {
        std::cmp::Reverse(row.expected.states().min(row.bound(bound).unwrap_or(bound)))
    });
    let next = AtomicUsize::new(0);
    let states = AtomicUsize::new(0);
    let wrong = Mutex::new(Vec::new());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(row) = rows.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match row.run(row.bound(bound).unwrap_or(bound)) {
                        Ok(count) => drop(states.fetch_add(count, Ordering::Relaxed)),
                        Err(text) => wrong.lock().expect("no thread panics").push(text),
                    }
                }
            });
        }
    });
    let (count, states) = (rows.len(), states.into_inner());
    println!("{count} rows, {states} states, {:?}", started.elapsed());
    let wrong = wrong.into_inner().expect("no thread panics");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn worlds_with_few_states_are_as_expected() {
    let rows = all_rows();
    let few = rows.into_iter().filter(|row| row.expected.states() <= FEW);
    search(few.collect(), FEW);
}

#[test]
#[ignore = "it takes minutes, in release"]
fn every_world_is_as_expected() {
    let variable = |name| std::env::var(name).ok();
    let names = variable("MODEL_ROWS").unwrap_or_default();
    let bound = variable("MODEL_STATES").map_or(MANY, |states| states.parse().expect("a number"));
    let mut rows = all_rows();
    rows.retain(|row| row.name.starts_with(&names));
    let (within, beyond): (Vec<Row>, Vec<Row>) =
        rows.into_iter().partition(|row| row.bound(bound).is_some());
    for row in &beyond {
        let states = row.expected.states();
        println!(
            "{:7} not searched: its counterexample is behind {states} states",
            row.name
        );
    }
    search(within, bound);
}

#[test]
fn names_are_unique() {
    let mut names: Vec<&str> = all_rows().iter().map(|row| row.name).collect();
    names.sort_unstable();
    let count = names.len();
    names.dedup();
    assert_eq!(names.len(), count);
}
