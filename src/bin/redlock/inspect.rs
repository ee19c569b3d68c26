//! `redlock inspect`: the holder of a lock, node by node.

use std::fmt::Write;
use std::time::Duration;

use redlock_sync::{Holder, Inspection, LockState, NodeErrors, NodeState, Redlock};
use serde_json::{Value, json};

use crate::arguments::Inspect;
use crate::print::{print, print_json};
use crate::show::{escaped, milliseconds, printable, shortened, table, time};
use crate::{End, UNAVAILABLE, failed, report};

pub(crate) fn inspect(given: &Inspect, redlock: &Redlock) -> End {
    let name = given.name.as_encoded_bytes();
    let inspection = match redlock.inspect(name) {
        Ok(inspection) => inspection,
        Err(error) => return failed(&error),
    };
    let state = inspection.state();
    let state = Seen::of_lock(&state);
    let code = match state.word {
        "unknown" => UNAVAILABLE,
        _ => 0,
    };
    if code == UNAVAILABLE {
        report_failures(&inspection);
    }
    match given.json {
        true => print_json(&to_json(name, &state, &inspection), code),
        false => print(to_text(name, &state, &inspection).as_bytes(), code),
    }
}

/// Why the state of the lock is not known.
pub(crate) fn report_failures(inspection: &Inspection) {
    for (_, _, node) in inspection.nodes() {
        if let NodeState::Failed(errors) = node {
            report(format_args!("{errors}"));
        }
    }
    report(format_args!("too few nodes answered"));
}

/// For people.
pub(crate) fn shown(name: &[u8], inspection: &Inspection) -> String {
    to_text(name, &Seen::of_lock(&inspection.state()), inspection)
}

/// The state of the lock, or what one node reports.
struct Seen<'a> {
    word: &'static str,
    holder: Option<&'a Holder>,
    /// The outer `None`: there is nothing that could end.
    remaining: Option<Option<Duration>>,
    error: Option<String>,
}

impl<'a> Seen<'a> {
    fn new(word: &'static str, remaining: Option<Option<Duration>>) -> Seen<'a> {
        Seen {
            word,
            holder: None,
            remaining,
            error: None,
        }
    }

    fn held(holder: &'a Holder, remaining: Option<Duration>) -> Seen<'a> {
        Seen {
            holder: Some(holder),
            ..Seen::new("held", Some(remaining))
        }
    }

    fn of_lock(state: &'a LockState) -> Seen<'a> {
        match state {
            LockState::Held {
                holder, remaining, ..
            } => Seen::held(holder, *remaining),
            LockState::Free => Seen::new("free", None),
            LockState::Blocked { remaining, .. } => Seen::new("blocked", Some(*remaining)),
            _ => Seen::new("unknown", None),
        }
    }

    fn of_node(state: &'a NodeState, address: &str) -> Seen<'a> {
        match state {
            NodeState::Held {
                holder, remaining, ..
            } => Seen::held(holder, *remaining),
            NodeState::Free => Seen::new("free", None),
            NodeState::Foreign { remaining, .. } => Seen::new("foreign", Some(*remaining)),
            NodeState::Failed(errors) => Seen {
                error: Some(cause(errors, address)),
                ..Seen::new("failed", None)
            },
            _ => Seen::new("unknown", None),
        }
    }

    fn holder(&self) -> String {
        let holder = self.holder.map(Holder::to_string).unwrap_or_default();
        printable(&holder)
    }

    fn json(&self) -> Value {
        json!({
            "state": self.word,
            "holder": self.holder.map(|holder| holder.fingerprint().to_string()),
            "label": self.holder.and_then(Holder::label),
            "remaining_ms": milliseconds(self.remaining.flatten()),
        })
    }
}

/// Without the address, which stands beside it.
fn cause(errors: &NodeErrors, address: &str) -> String {
    let causes: Vec<String> = errors.iter().map(|(_, cause)| cause.to_string()).collect();
    let text = causes.join("; ");
    let short = text.strip_prefix(&format!("{address}: "));
    printable(short.unwrap_or(&text))
}

fn to_text(name: &[u8], state: &Seen<'_>, inspection: &Inspection) -> String {
    let mut text = format!("{}: {}", shortened(&escaped(name)), state.word);
    if state.holder.is_some() {
        let _ = write!(text, " by {}", state.holder());
    }
    if let Some(remaining) = state.remaining {
        let _ = match remaining {
            Some(remaining) => write!(text, ", for {remaining:?} more"),
            None => write!(text, ", for ever"),
        };
    }
    text.push_str("\n\n");
    let head = ["NODE", "ADDRESS", "STATE", "REMAINING", "HOLDER"].map(str::to_owned);
    let row = |(node, address, state): (usize, &str, &NodeState)| {
        let seen = Seen::of_node(state, address);
        let remaining = seen.remaining.map(time).unwrap_or_default();
        let holder = seen.holder();
        [
            node.to_string(),
            printable(address),
            seen.word.into(),
            remaining,
            // The widest, so it comes last.
            seen.error.unwrap_or(holder),
        ]
    };
    let rows: Vec<_> = [head]
        .into_iter()
        .chain(inspection.nodes().map(row))
        .collect();
    text.push_str(&table(&rows));
    text
}

fn to_json(name: &[u8], state: &Seen<'_>, inspection: &Inspection) -> Value {
    let node = |(node, address, state): (usize, &str, &NodeState)| {
        let seen = Seen::of_node(state, address);
        let mut json = seen.json();
        json["node"] = node.into();
        json["address"] = printable(address).into();
        json["error"] = seen.error.into();
        json
    };
    let mut json = state.json();
    json["name"] = escaped(name).into();
    json["nodes"] = inspection.nodes().map(node).collect();
    json
}
