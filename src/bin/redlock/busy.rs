//! Why there is no lock: what the nodes know of the one that another has.

use log::{Level, info, log_enabled};
use redlock_sync::LockState;
use redlock_sync::command::human;

use crate::target::Target;

/// Says that another has the lock, and with `-v` who, and for how long: only then the nodes are asked for that.
#[cfg(target_os = "linux")]
pub(crate) fn say_busy(target: &Target<'_>) {
    if !log_enabled!(Level::Info) {
        return;
    }
    let (name, state) = in_the_way(target);
    let shown = name.escape_ascii();
    match state {
        Some(LockState::Held {
            holder, remaining, ..
        }) => {
            let label = holder.label().map(ToOwned::to_owned);
            let holder = label.unwrap_or_else(|| holder.fingerprint().to_string());
            let left = remaining.map(|left| format!(", for {}", human(left)));
            info!(
                "another has the lock \"{shown}\": {holder}{}",
                left.unwrap_or_default()
            );
        }
        _ => info!("another has the lock \"{shown}\""),
    }
}

/// Says that it is too soon for a throttle, and with `-v` for how long.
pub(crate) fn say_too_soon(target: &Target<'_>, every: &str) {
    if !log_enabled!(Level::Info) {
        return;
    }
    match in_the_way(target).1 {
        Some(LockState::Held {
            remaining: Some(left),
            ..
        }) => info!("too soon: again in {}", human(left)),
        _ => info!("too soon: it has been less than {every}"),
    }
}

/// So many names are looked at, at most: each with connections of its own.
const NAMES: usize = 8;

/// The first of the names that is not free, and how it is locked.
fn in_the_way<'a>(target: &'a Target<'_>) -> (&'a [u8], Option<LockState>) {
    let names = target.names();
    let state = |name: &&'a [u8]| Some((*name, target.redlock().inspect(name).ok()?.state()));
    let mut states = names.iter().take(NAMES).filter_map(state);
    match states.find(|(_, state)| !matches!(state, LockState::Free | LockState::Unknown)) {
        Some((name, state)) => (name, Some(state)),
        None => (names.first().copied().unwrap_or_default(), None),
    }
}
