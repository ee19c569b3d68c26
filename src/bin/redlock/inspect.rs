//! `redlock inspect`: the holders of a lock, node by node.

use std::ffi::OsStr;
use std::fmt::Write;
use std::time::Duration;

use redlock_sync::command::{
    LOCK, READERS, Seen, escaped, held_for, human, identity, inspection_json, printable,
};
use redlock_sync::{Holder, Inspection, LockState, NodeState, Redlock};

use crate::arguments::Inspect;
use crate::explain::by_flag;
use crate::print::{print, print_json};
use crate::tables::{held, labels, shortened, table, time};
use crate::{End, UNAVAILABLE, failed, report};

/// A clock that differs from this machine's by more milliseconds is shown.
const CLOCK: i64 = 1000;

pub(crate) fn inspect(arguments: &Inspect, redlock: &Redlock) -> End {
    let name = arguments.name.as_encoded_bytes();
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
    report_url(&arguments.name, &inspection);
    match arguments.json {
        true => print_json(inspection_json(name, &inspection), code),
        false => print(to_text(name, &state, &inspection).as_bytes(), code),
    }
}

/// Reports a URL given as NAME: it is the name of a lock, but more likely a node was meant.
pub(crate) fn report_url(name: &OsStr, inspection: &Inspection) {
    if inspection.state() == LockState::Free
        && let Some(hint) = by_flag(name)
    {
        report(format_args!("NAME is for a lock: {hint}"));
    }
}

/// Reports why the state of the lock is unknown.
pub(crate) fn report_failures(inspection: &Inspection) {
    for (_, _, node) in inspection.nodes() {
        if let NodeState::Failed(errors) = node {
            report(format_args!("{errors}"));
        }
    }
    report(format_args!("too few nodes answered"));
}

/// The text for people.
pub(crate) fn shown(name: &[u8], inspection: &Inspection) -> String {
    to_text(name, &Seen::of_lock(&inspection.state()), inspection)
}

fn to_text(name: &[u8], state: &Seen<'_>, inspection: &Inspection) -> String {
    let mut text = format!("{}: ", shortened(&escaped(name)));
    text.push_str(&summary(state));
    text.push_str(&waiting(inspection));
    text.push('\n');
    for (holder, left) in state.holders.iter().filter(|_| state.kind != Some(LOCK)) {
        let holder = shown_holder(holder);
        let _ = writeln!(text, "  {holder}{}", more(Some(*left)));
    }
    text.push('\n');
    let head = ["NODE", "ADDRESS", "STATE", "REMAINING", "HELD", "HOLDER"];
    let mut rows = vec![head.map(str::to_owned)];
    for (node, address, state) in inspection.nodes() {
        let seen = Seen::of_node(state);
        let row = |remaining: Option<Option<Duration>>, held: String, last: String| {
            let remaining = remaining.map(time).unwrap_or_default();
            let (node, address) = (node.to_string(), printable(address));
            // The widest comes last.
            [node, address, seen.word.into(), remaining, held, last]
        };
        for (holder, left) in &seen.holders {
            let name = printable(&holder.to_string());
            rows.push(row(Some(*left), held(holder), name));
        }
        if seen.holders.is_empty() {
            let error = seen.error.clone().unwrap_or_default();
            rows.push(row(seen.remaining, String::new(), error));
        }
    }
    text.push_str(&table(&rows));
    for (node, address, _) in inspection.nodes() {
        let offset = inspection.clock_offset_ms(node).unwrap_or_default();
        if offset.saturating_abs() > CLOCK {
            let way = if offset > 0 { "ahead of" } else { "behind" };
            let time = human(Duration::from_millis(offset.unsigned_abs()));
            let address = printable(address);
            let _ = writeln!(
                text,
                "the clock of node {node} ({address}) is {time} {way} this machine's: one that is set forward ends locks early"
            );
        }
    }
    text
}

/// The state of the lock, and how long it remains so.
fn summary(state: &Seen<'_>) -> String {
    let (count, word) = (state.holders.len(), state.word);
    let several = if count == 1 { "" } else { "s" };
    let holders = match (state.kind, &*state.holders) {
        (Some(LOCK), [(holder, Some(remaining))]) if holder.has_left() => {
            let who = printable(&identity(holder));
            return format!("left by {who}, and free in {remaining:?}");
        }
        (Some(LOCK), [(holder, _)]) => format!(" by {}", shown_holder(holder)),
        (Some(READERS), _) => format!(" by {count} reader{several}"),
        (Some(_), _) => format!(", {count} slot{several}"),
        (None, _) => String::new(),
    };
    format!("{word}{holders}{}", more(state.remaining))
}

/// A holder, and how long it has had the lock.
fn shown_holder(holder: &Holder) -> String {
    let shown = printable(&holder.to_string());
    match held_for(holder) {
        Some(held) => format!("{shown} for {}", human(held)),
        None => shown,
    }
}

/// How many processes wait, if any does, how long the first has waited, and the first labels.
fn waiting(inspection: &Inspection) -> String {
    let longest = inspection.longest_wait().map(human);
    let count = inspection.waiting();
    let waiting = match (count, longest) {
        (None | Some(0), _) => return String::new(),
        (Some(1), Some(longest)) => format!("; one process waits, for {longest}"),
        (Some(count), Some(longest)) => {
            format!("; {count} processes wait, the first for {longest}")
        }
        (Some(count), None) => format!("; {count} processes wait"),
    };
    match &*labels(count.unwrap_or_default(), inspection.waiting_labels()) {
        "" => waiting,
        labels => format!("{waiting}: {labels}"),
    }
}

fn more(remaining: Option<Option<Duration>>) -> String {
    match remaining {
        Some(Some(remaining)) => format!(", for {remaining:?} more"),
        Some(None) => ", for ever".into(),
        None => String::new(),
    }
}
