//! Whether a server still has the locks that it granted (rules R40–R42).
//!
//! A server may lose them without a restart: it was a replica and was promoted, it was flushed, or it evicts keys. Its
//! *identity* changes with each start, each promotion and each evicted key. The *witness* is a key that names an
//! identity. If it exists and names its server's identity, nothing was lost since it was set, and the rest of its ttl
//! shows when that was. (The witness alone does not show that nothing was evicted: most policies prefer other keys.) A
//! new connection [looks](crate::protocol::node::witness_look) for both. [`witness_proofs`](crate::protocol::node::witness_proofs) makes sure that
//! they stay.

use std::time::Duration;

use crate::errors::cause::Cause;
use crate::errors::secret::Secret;
use crate::errors::server_error::{Meaning, without_arguments};
use crate::protocol::commands::server_info::{self, ServerInfo};
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::node::clock_watch::ClockReading;

/// Commands after which locks may be gone. The last one brings keys back, too, a witness among them.
pub(super) const FLUSHES: [&str; 3] = ["flushall", "flushdb", "swapdb"];

/// A command whose single reply has the INFO sections of a look, and more.
pub(crate) const ALL: [&[u8]; 2] = [b"INFO", b"all"];

/// The identity of a server's data, as it grows from one command to the next. Changes when the server is restarted or
/// promoted, when it evicts a key, and with `SWAPDB`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(super) name: String,
    pub(super) evicted: u64,
    /// How often databases were swapped, whichever they were. As of the look: later on, that the witness is still there
    /// shows it.
    pub(super) swaps: u64,
}

impl Identity {
    /// `None` if both `run_id` and `history` are missing: one is enough. `evicted`: how many keys the server has
    /// evicted. `swaps`: the number of calls of `SWAPDB`.
    pub(crate) fn new(
        run_id: Option<&str>,
        history: Option<&str>,
        evicted: u64,
        swaps: u64,
    ) -> Option<Identity> {
        let history = history.filter(|_| !mutant(Mutant::IdentityIsRunId));
        (run_id.is_some() || history.is_some()).then(|| {
            let [run_id, history] = [run_id, history].map(|id| id.unwrap_or("-"));
            Identity {
                name: format!("{run_id} {history}"),
                evicted: match mutant(Mutant::IgnoreEvictions) {
                    true => 0,
                    false => evicted,
                },
                swaps: match mutant(Mutant::IgnoreSwaps) {
                    true => 0,
                    false => swaps,
                },
            }
        })
    }

    /// Whether a master that returned this INFO replication can be the same: one connection leads to one process.
    pub(crate) fn is_still(&self, replication: &[u8]) -> bool {
        let Ok(info) = str::from_utf8(replication) else {
            return false;
        };
        let history = self.name.split(' ').nth(1);
        let same = history == Some("-") || history == server_info::value(info, "master_replid");
        same && !is_replica(replication)
    }

    /// Whether a server that returned this INFO stats has evicted nothing since. CONFIG RESETSTAT sets the number to
    /// zero: that counts as a change, but after it nothing shows what was evicted before.
    pub(crate) fn keeps_keys(&self, stats: &[u8]) -> bool {
        let info = str::from_utf8(stats).unwrap_or_default();
        evicted(info) == Some(self.evicted) || mutant(Mutant::IgnoreEvictions)
    }

    pub(crate) fn has_evicted(&self) -> bool {
        self.evicted > 0
    }

    /// How the witness names the identity.
    pub(super) fn named(&self) -> String {
        format!("{} {} {} ", self.name, self.evicted, self.swaps)
    }
}

/// The number of keys that a server has evicted, from INFO stats. Without it nothing shows that the server keeps locks.
fn evicted(stats: &str) -> Option<u64> {
    server_info::value(stats, "evicted_keys")?.parse().ok()
}

/// Whether a server that returned this INFO replication is a replica (R39).
pub(crate) fn is_replica(replication: &[u8]) -> bool {
    let info = str::from_utf8(replication).unwrap_or_default();
    matches!(server_info::value(info, "role"), Some("slave" | "replica"))
}

/// The cause if the server refuses a witness, or cannot have one now.
pub(crate) fn refused(text: &str) -> Cause {
    let meaning = Meaning::of(text);
    if meaning.is_demoted() {
        return Cause::demoted(text);
    }
    // In a Redis Cluster another server may own the slot by now, which does not rule out a witness.
    let not_now = !meaning.is_final() || meaning.is_redirection();
    if not_now && meaning != Meaning::WrongType {
        return Cause::refused(text);
    }
    Cause::NoWitness(without_arguments(text).to_owned())
}

/// The cause that ends a connection to a changed server. A new connection shows what is there.
pub(crate) fn changed() -> Cause {
    Cause::Closed("the server was promoted or flushed, or is another one".into())
}

/// The cause that ends a connection whose server reports another number of evicted keys.
pub(crate) fn has_evicted() -> Cause {
    Cause::Closed(
        "its evicted_keys have changed, so locks may be gone: set maxmemory-policy noeviction"
            .into(),
    )
}

/// Whether a command may have deleted keys, by INFO commandstats.
pub(super) fn has_flushed(commands: &ServerInfo) -> bool {
    // A server that reports no command at all may hide these, too.
    let counts = commands.get("cmdstat_info").is_some();
    !counts || FLUSHES.iter().any(|name| calls(commands, name) > 0)
}

/// How often a command was called, by INFO commandstats.
pub(super) fn calls(commands: &ServerInfo, name: &str) -> u64 {
    let Some(counts) = commands.get(&format!("cmdstat_{name}")) else {
        return 0;
    };
    let calls = counts.strip_prefix("calls=").unwrap_or_default();
    let calls = calls.split(',').next().unwrap_or_default();
    calls.parse().unwrap_or(u64::MAX)
}

/// The evidence that a server has lost nothing since its witness was set, or since its start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Evidence {
    /// The witness has this value.
    Value(Vec<u8>),
    /// There is no witness, and nothing was lost since the server was started.
    NoLosses,
}

impl Evidence {
    /// Whether this reply shows the evidence: the witness, or the reply to [`ALL`].
    pub(crate) fn is_shown_by(&self, reply: &[u8]) -> bool {
        match self {
            Evidence::Value(value) if mutant(Mutant::AnyWitness) => {
                let named = value.len().saturating_sub(16);
                reply.get(..named) == value.get(..named)
            }
            Evidence::Value(value) => *reply == **value,
            Evidence::NoLosses => {
                let info = ServerInfo::new(reply, &Secret::default());
                !has_flushed(&info) && info.number("evicted_keys") == Some(0)
            }
        }
    }
}

/// A witness that names its server's identity, or the evidence in its place.
#[derive(Clone, Debug)]
pub(crate) struct Witness {
    pub(crate) evidence: Evidence,
    pub(crate) identity: Identity,
    /// The witness's age when the server reported it, by the clock by which locks end there.
    pub(crate) age: Duration,
    /// Whether the server was never promoted or flushed: it has lost nothing since its start.
    pub(crate) calm: bool,
    /// Whether a look showed no flush and no eviction: the server has lost nothing since it got this identity.
    pub(crate) lossless: bool,
    /// The server's clock when it was connected. `None`: this user may not read it (rule R56).
    pub(crate) clock: Option<ClockReading>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_still_the_same_while_it_is_a_master_with_the_same_history() {
        let identity = Identity::new(Some("r"), Some("h"), 0, 0).unwrap();
        for (text, expected) in [
            ("role:master\nmaster_replid:h", true),
            ("role:master\nmaster_replid:g", false),
            ("role:slave\nmaster_replid:h", false),
            ("role:master", false),
        ] {
            assert_eq!(identity.is_still(text.as_bytes()), expected, "{text}");
        }
        assert!(
            Identity::new(Some("r"), None, 0, 0)
                .unwrap()
                .is_still(b"role:master")
        );
    }
}
