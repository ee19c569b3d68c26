//! `redlock last`: when `redlock run --once-per` last succeeded, where, and how long it took.

use std::time::UNIX_EPOCH;

use redlock_sync::command::{escaped, human, printable};
use redlock_sync::{LastRun, Redlock};
use serde_json::{Value, json};

use crate::arguments::Last;
use crate::print::{print, print_json};
use crate::tables::{milliseconds, shortened};
use crate::{End, FOUND, failed};

pub(crate) fn last(arguments: &Last, redlock: &Redlock) -> End {
    let name = arguments.name.as_encoded_bytes();
    let last = match redlock.last_run(name) {
        Ok(last) => last,
        Err(error) => return failed(&error),
    };
    let code = if last.is_some() { 0 } else { FOUND };
    if arguments.json {
        return print_json(to_json(name, last.as_ref()), code);
    }
    let what = match &last {
        Some(last) => format!("done {}", shown(last)),
        None => "not done within its period".into(),
    };
    print(
        format!("{}: {what}\n", shortened(&escaped(name))).as_bytes(),
        code,
    )
}

/// A run, for people.
pub(crate) fn shown(last: &LastRun) -> String {
    let ago = last.ended().elapsed().unwrap_or_default();
    let by = last
        .label()
        .map(|label| format!(" by {}", printable(label)));
    format!(
        "{} ago{}, in {}; again in {}",
        human(ago),
        by.unwrap_or_default(),
        human(last.took()),
        human(last.again_in())
    )
}

fn to_json(name: &[u8], last: Option<&LastRun>) -> Value {
    // Since 1970, as C has it.
    let ended = last.map(|last| last.ended().duration_since(UNIX_EPOCH).unwrap_or_default());
    json!({
        "name": escaped(name),
        "done": last.is_some(),
        "ended_ms": milliseconds(ended),
        "took_ms": milliseconds(last.map(LastRun::took)),
        "label": last.and_then(LastRun::label),
        "again_in_ms": milliseconds(last.map(LastRun::again_in)),
    })
}
