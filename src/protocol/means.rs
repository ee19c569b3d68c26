//! How a connection's server takes the scripts. What it does not take is found by trying, and remembered for the connection.

use crate::protocol::companions;
use crate::protocol::script::{Action, Key};
use crate::protocol::server_error::{is_not_loaded, refuses_companions};

/// Which commands name the keys [beside the lock](companions).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Beside {
    /// All that use any.
    #[default]
    All,
    /// Where they are in the lock's slot: the server belongs to a Redis Cluster.
    InSlot,
    /// None: this user may not use them. Without them there is no queue and no order of arrival; locks are as good.
    None,
}

/// How commands are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Means {
    /// The server knows the scripts.
    pub(crate) by_hash: bool,
    pub(crate) beside: Beside,
}

impl Means {
    /// Where nothing was refused.
    pub(crate) const ALL: Means = Means {
        by_hash: true,
        beside: Beside::All,
    };

    /// Whether the action names keys beside the lock that it can do without.
    pub(crate) fn names_companions(self, action: &Action, key: &Key) -> bool {
        action.uses_companions(&key.kind)
            && match self.beside {
                Beside::All => true,
                Beside::InSlot => !companions::are_elsewhere(&key.resource),
                Beside::None => false,
            }
    }

    /// Whether the server refused not what a command does, but how it was sent: nothing was done, and it is sent again
    /// in another way. `named`: it named keys beside the lock on this resource.
    pub(crate) fn learn(&mut self, error: &str, named: bool, resource: &[u8]) -> bool {
        if is_not_loaded(error) {
            self.by_hash = false;
            return true;
        }
        let refused = named && refuses_companions(error);
        if refused {
            let elsewhere = error.starts_with("CROSSSLOT") && companions::are_elsewhere(resource);
            self.beside = match self.beside {
                Beside::All if elsewhere => Beside::InSlot,
                Beside::InSlot if elsewhere => Beside::InSlot,
                _ => Beside::None,
            };
        }
        refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NO_KEY: &str = "NOPERM No permissions to access a key";
    const CROSSSLOT: &str = "CROSSSLOT Keys in request don't hash to the same slot";

    #[test]
    fn what_a_server_does_not_take_is_sent_in_another_way_and_once() {
        let by_text = |beside| Means {
            by_hash: false,
            beside,
        };
        let by_hash = |beside| Means {
            by_hash: true,
            beside,
        };
        for (error, named, resource, left) in [
            (
                "NOSCRIPT No matching script.",
                true,
                "a",
                by_text(Beside::All),
            ),
            (NO_KEY, true, "a", by_hash(Beside::None)),
            (CROSSSLOT, true, "a}b", by_hash(Beside::InSlot)),
            // Such a server is no Redis Cluster.
            (CROSSSLOT, true, "a", by_hash(Beside::None)),
        ] {
            let mut means = Means::ALL;
            assert!(means.learn(error, named, resource.as_bytes()), "{error}");
            assert_eq!(means, left, "{error}");
        }
        // The second answer counts.
        let mut means = by_hash(Beside::None);
        assert!(!means.learn(NO_KEY, false, b"a"));
        for other in [
            "NOPERM this user has no permissions to run the 'eval' command",
            "OOM x",
        ] {
            let mut means = Means::ALL;
            assert!(
                !means.learn(other, true, b"a") && means == Means::ALL,
                "{other}"
            );
        }
        // What was sent before the first was answered.
        assert!(means.learn(NO_KEY, true, b"a") && means == by_hash(Beside::None));
    }
}
