//! Why there is no lock: the answers of the nodes about the lock that another has.

use std::time::Duration;

use log::{Level, info, log_enabled};
use redlock_sync::command::{held_for, human};
use redlock_sync::{Holder, Inspection, LockState, NodeState};

use crate::target::Target;

/// Reports that another has the lock, and with `-v` who, and for how long: only then the nodes are asked for that.
#[cfg(target_os = "linux")]
pub(crate) fn say_busy(target: &Target<'_>) {
    if !log_enabled!(Level::Info) {
        return;
    }
    let (name, found) = in_the_way(target);
    let shown = name.escape_ascii();
    if found.as_ref().is_some_and(is_foreign) {
        return info!("the key \"{shown}\" is taken, and is no lock of this program");
    }
    let state = found.map(|found| found.state());
    let holder = |(holder, _): (&Holder, _)| match holder.label() {
        Some(label) => label.to_owned(),
        None => holder.fingerprint().to_string(),
    };
    let holders: Vec<String> = state
        .iter()
        .flat_map(LockState::holders)
        .map(holder)
        .collect();
    let mut all = state.iter().flat_map(LockState::holders);
    let who = match holders.len() {
        1 if all.all(|(holder, _)| holder.has_left()) => "another has left",
        0 | 1 => "another has",
        _ => "others have",
    };
    let holders = match &*holders.join(", ") {
        "" => String::new(),
        holders => format!(": {holders}"),
    };
    let left = free_in(state.as_ref()).map(|left| format!(", for {} more", human(left)));
    let left = left.unwrap_or_default();
    info!("{who} the lock \"{shown}\"{holders}{left}");
}

/// Reports, with `-v`, that another has the lock that is waited for, and since when.
#[cfg(target_os = "linux")]
pub(crate) fn say_waiting(target: &Target<'_>) {
    if !log_enabled!(Level::Info) {
        return;
    }
    let (name, found) = in_the_way(target);
    let (shown, state) = (name.escape_ascii(), found.map(|found| found.state()));
    let mut holders = state.iter().flat_map(LockState::holders);
    let (first, others) = (holders.next(), holders.count());
    let Some((holder, _)) = first else {
        return info!("waiting for \"{shown}\"");
    };
    let who = match holder.label() {
        Some(label) => label.to_owned(),
        None => holder.fingerprint().to_string(),
    };
    let others = match others {
        0 if holder.has_left() => {
            let left = free_in(state.as_ref()).map(human).unwrap_or_default();
            return info!("waiting for \"{shown}\": {who} has left it, for {left} more");
        }
        0 => " has it".into(),
        count => format!(" and {count} more have it"),
    };
    let held = held_for(holder).map(|held| format!(", for {}", human(held)));
    info!(
        "waiting for \"{shown}\": {who}{others}{}",
        held.unwrap_or_default()
    );
}

/// Reports that it is too soon for a throttle, and with `-v` for how long.
pub(crate) fn say_too_soon(target: &Target<'_>, every: &str) {
    if !log_enabled!(Level::Info) {
        return;
    }
    let state = in_the_way(target).1.map(|found| found.state());
    match free_in(state.as_ref()) {
        Some(left) => info!("too soon: again in {}", human(left)),
        None => info!("too soon: it has been less than {every}"),
    }
}

/// When it is another's turn, if nothing is released or extended. For a semaphore: when the first of its permits ends.
fn free_in(state: Option<&LockState>) -> Option<Duration> {
    let state = state?;
    let ends = state.holders();
    let ends = ends.map(|(_, left)| left.unwrap_or(Duration::MAX));
    let end = match state {
        LockState::Permits { .. } => ends.min(),
        _ => ends.max(),
    };
    end.filter(|end| *end != Duration::MAX)
}

/// The maximum of names that are looked at: each takes its own connections.
const NAMES: usize = 8;

/// Whether nothing but keys of other programs is in the way.
#[cfg(target_os = "linux")]
fn is_foreign(found: &Inspection) -> bool {
    let mut nodes = found.nodes();
    let state = found.state();
    matches!(state, LockState::Blocked { .. })
        && nodes.all(|(.., node)| matches!(node, NodeState::Foreign { .. } | NodeState::Failed(_)))
}

/// The first of the names that is not free, and how it is locked.
fn in_the_way<'a>(target: &'a Target<'_>) -> (&'a [u8], Option<Inspection>) {
    let names = target.names();
    let look = |name: &&'a [u8]| Some((*name, target.redlock().inspect(name).ok()?));
    let mut found = names.iter().take(NAMES).filter_map(look);
    let is_free = |state: LockState| matches!(state, LockState::Free | LockState::Unknown);
    match found.find(|(_, found)| !is_free(found.state())) {
        Some((name, found)) => (name, Some(found)),
        None => (names.first().copied().unwrap_or_default(), None),
    }
}
