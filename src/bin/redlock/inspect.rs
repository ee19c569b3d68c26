//! `redlock inspect`: the holders of a lock, node by node.

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

/// As what a name is held, for programs.
const LOCK: &str = "lock";
const READERS: &str = "readers";
const PERMITS: &str = "permits";

/// What a holder has.
pub(crate) fn kind(holder: &Holder) -> &'static str {
    match (holder.slot(), holder.is_reader()) {
        (Some(_), _) => PERMITS,
        (None, true) => READERS,
        (None, false) => LOCK,
    }
}

/// The state of the lock, or what one node reports.
struct Seen<'a> {
    word: &'static str,
    /// As what it is held.
    kind: Option<&'static str>,
    holders: Vec<(&'a Holder, Option<Duration>)>,
    /// The outer `None`: there is nothing that could end.
    remaining: Option<Option<Duration>>,
    error: Option<String>,
}

impl<'a> Seen<'a> {
    fn new(word: &'static str, remaining: Option<Option<Duration>>) -> Seen<'a> {
        Seen {
            word,
            kind: None,
            holders: Vec::new(),
            remaining,
            error: None,
        }
    }

    fn held(
        kind: &'static str,
        holders: impl Iterator<Item = (&'a Holder, Option<Duration>)>,
    ) -> Seen<'a> {
        let holders: Vec<_> = holders.collect();
        let times = holders
            .iter()
            .map(|(_, left)| left.unwrap_or(Duration::MAX));
        let last = times.max().filter(|last| *last != Duration::MAX);
        Seen {
            kind: Some(kind),
            holders,
            ..Seen::new("held", Some(last))
        }
    }

    fn of_lock(state: &'a LockState) -> Seen<'a> {
        match state {
            LockState::Held { .. } => Seen::held(LOCK, state.holders()),
            LockState::Readers { .. } => Seen::held(READERS, state.holders()),
            LockState::Permits { .. } => Seen::held(PERMITS, state.holders()),
            LockState::Free => Seen::new("free", None),
            LockState::Blocked { remaining, .. } => Seen::new("blocked", Some(*remaining)),
            _ => Seen::new("unknown", None),
        }
    }

    fn of_node(state: &'a NodeState, address: &str) -> Seen<'a> {
        match state {
            NodeState::Held { .. } => Seen::held(LOCK, state.holders()),
            NodeState::Readers { .. } => Seen::held(READERS, state.holders()),
            NodeState::Permits { .. } => Seen::held(PERMITS, state.holders()),
            NodeState::Free => Seen::new("free", None),
            NodeState::Foreign { remaining, .. } => Seen::new("foreign", Some(*remaining)),
            NodeState::Failed(errors) => Seen {
                error: Some(cause(errors, address)),
                ..Seen::new("failed", None)
            },
            _ => Seen::new("unknown", None),
        }
    }

    fn json(&self) -> Value {
        let holder = |(holder, left): &(&Holder, Option<Duration>)| {
            json!({
                "holder": holder.fingerprint().to_string(),
                "label": holder.label(),
                "slot": holder.slot(),
                "remaining_ms": milliseconds(*left),
            })
        };
        let only = self.holders.first().filter(|_| self.kind == Some(LOCK));
        json!({
            "state": self.word,
            "kind": self.kind,
            "holder": only.map(|(holder, _)| holder.fingerprint().to_string()),
            "label": only.and_then(|(holder, _)| holder.label()),
            "remaining_ms": milliseconds(self.remaining.flatten()),
            "holders": self.holders.iter().map(holder).collect::<Value>(),
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
    let count = state.holders.len();
    let _ = match (state.kind, &*state.holders) {
        (Some(LOCK), [(holder, _)]) => write!(text, " by {}", printable(&holder.to_string())),
        (Some(READERS), _) => write!(
            text,
            " by {count} reader{}",
            if count == 1 { "" } else { "s" }
        ),
        (Some(_), _) => write!(text, ", {count} slot{}", if count == 1 { "" } else { "s" }),
        (None, _) => Ok(()),
    };
    text.push_str(&more(state.remaining));
    text.push('\n');
    for (holder, left) in state.holders.iter().filter(|_| state.kind != Some(LOCK)) {
        let holder = printable(&holder.to_string());
        let _ = writeln!(text, "  {holder}{}", more(Some(*left)));
    }
    text.push('\n');
    let mut rows = vec![["NODE", "ADDRESS", "STATE", "REMAINING", "HOLDER"].map(str::to_owned)];
    for (node, address, state) in inspection.nodes() {
        let seen = Seen::of_node(state, address);
        let row = |remaining: Option<Option<Duration>>, last: String| {
            let remaining = remaining.map(time).unwrap_or_default();
            let (node, address) = (node.to_string(), printable(address));
            // The widest comes last.
            [node, address, seen.word.into(), remaining, last]
        };
        for (holder, left) in &seen.holders {
            rows.push(row(Some(*left), printable(&holder.to_string())));
        }
        if seen.holders.is_empty() {
            rows.push(row(seen.remaining, seen.error.clone().unwrap_or_default()));
        }
    }
    text.push_str(&table(&rows));
    text
}

fn more(remaining: Option<Option<Duration>>) -> String {
    match remaining {
        Some(Some(remaining)) => format!(", for {remaining:?} more"),
        Some(None) => ", for ever".into(),
        None => String::new(),
    }
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
