//! Why there is no lock: what the nodes know of the one that another has.

use log::{Level, info, log_enabled};
use redlock_sync::command::human;
use redlock_sync::{LockState, Redlock};

/// Says that another has the lock, and with `-v` who, and for how long: only then the nodes are asked for that.
#[cfg(target_os = "linux")]
pub(crate) fn say_busy(redlock: &Redlock, name: &[u8]) {
    if !log_enabled!(Level::Info) {
        return;
    }
    let shown = name.escape_ascii();
    match redlock.inspect(name).map(|found| found.state()) {
        Ok(LockState::Held {
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
pub(crate) fn say_too_soon(redlock: &Redlock, name: &[u8], every: &str) {
    if !log_enabled!(Level::Info) {
        return;
    }
    match redlock.inspect(name).map(|found| found.state()) {
        Ok(LockState::Held {
            remaining: Some(left),
            ..
        }) => info!("too soon: again in {}", human(left)),
        _ => info!("too soon: it has been less than {every}"),
    }
}
