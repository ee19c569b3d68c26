//! How a connection's server takes the scripts. What it does not take is found by trying, and remembered for the connection.

use crate::error::Cause;
use crate::protocol::companions;
use crate::protocol::server_error::{
    is_not_loaded, refuses_companions, refuses_delete, refuses_scripts, without_arguments,
};

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

/// How scripts are called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Scripts {
    /// The server knows them.
    ByHash,
    #[default]
    ByText,
    /// The server runs none: there is no queue, and there are no fencing tokens.
    None,
}

impl Scripts {
    pub(crate) fn by_hash_if(known: bool) -> Scripts {
        match known {
            true => Scripts::ByHash,
            false => Scripts::ByText,
        }
    }
}

/// A command that compares and deletes: `DELIFEQ` (Valkey 9), `DELEX … IFEQ` (Redis 8.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delete {
    IfEq,
    Ex,
}

/// What waiters have to do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    Scripts,
    Queues,
}

/// How commands are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Means {
    pub(crate) scripts: Scripts,
    pub(crate) beside: Beside,
    /// Cheaper than a script, where no process is to be notified.
    pub(crate) delete: Option<Delete>,
}

impl Means {
    /// Where nothing was refused.
    pub(crate) const ALL: Means = Means {
        scripts: Scripts::ByHash,
        beside: Beside::All,
        delete: None,
    };

    /// What follows from what a server has said of the trials: EVAL, EVALSHA, DELIFEQ and DELEX, the last two incomplete.
    /// `None` stands for an answer that is no error. `loaded`: all scripts were. `Err`: a lock could be taken on it, and
    /// not released.
    pub(crate) fn found(loaded: bool, trials: &[Option<String>; 4]) -> Result<Means, Cause> {
        let [eval, by_hash, del_if_eq, del_ex] = trials.each_ref().map(Option::as_deref);
        let is_known = |said: Option<&str>| {
            said.is_some_and(|said| said.starts_with("ERR wrong number of arguments"))
        };
        let delete = match (is_known(del_if_eq), is_known(del_ex)) {
            (true, _) => Some(Delete::IfEq),
            (_, true) => Some(Delete::Ex),
            _ => None,
        };
        let known = loaded && !by_hash.is_some_and(refuses_scripts);
        let refused = eval.filter(|said| !known && refuses_scripts(said));
        let scripts = match (refused, delete) {
            (None, _) => Scripts::by_hash_if(known),
            (Some(_), Some(_)) => Scripts::None,
            (Some(said), None) => return Err(Cause::NoRelease(without_arguments(said).into())),
        };
        Ok(Means {
            scripts,
            delete,
            ..Means::default()
        })
    }

    /// For a script that the server does not know yet.
    pub(crate) fn with_text(self) -> Means {
        Means {
            scripts: match self.scripts {
                Scripts::ByHash => Scripts::ByText,
                other => other,
            },
            ..self
        }
    }

    pub(crate) fn lack(self) -> Option<Lack> {
        match self {
            Means {
                scripts: Scripts::None,
                ..
            } => Some(Lack::Scripts),
            Means {
                beside: Beside::None,
                ..
            } => Some(Lack::Queues),
            _ => None,
        }
    }

    /// Whether the server refused not what a command does, but how it was sent: nothing was done, and it is sent again
    /// in another way. `named`: it named keys beside the lock on this resource.
    pub(crate) fn learn(&mut self, error: &str, named: bool, resource: &[u8]) -> bool {
        if is_not_loaded(error) {
            self.scripts = Scripts::ByText;
            return true;
        }
        if self.scripts != Scripts::None && refuses_delete(error) {
            self.delete = None;
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
    use crate::protocol::script::{Action, Notify};

    const NO_KEY: &str = "NOPERM No permissions to access a key";
    const CROSSSLOT: &str = "CROSSSLOT Keys in request don't hash to the same slot";

    #[test]
    fn what_a_server_does_not_take_is_sent_in_another_way_and_once() {
        let by_text = |beside| Means {
            beside,
            ..Means::default()
        };
        let by_hash = |beside| Means {
            beside,
            ..Means::ALL
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
    #[test]
    fn a_native_deletion_that_is_refused_is_a_script_from_then_on() {
        let refused = "NOPERM this user has no permissions to run the 'delifeq' command";
        let mut means = Means {
            delete: Some(Delete::IfEq),
            ..Means::ALL
        };
        let undo = Action::Release(Notify::None);
        assert!(means.is_native(&undo) && !means.is_native(&Action::Release(Notify::First)));
        assert!(means.learn(refused, false, b"a") && means == Means::ALL);
        // Where there are no scripts it is final.
        let narrow = Means {
            scripts: Scripts::None,
            delete: Some(Delete::IfEq),
            ..Means::ALL
        };
        let mut means = narrow;
        assert!(!means.learn(refused, false, b"a") && means == narrow);
        assert!(means.is_native(&Action::Release(Notify::First)));
    }
    #[test]
    fn what_a_server_takes_is_found_by_trying() {
        let unknown = "ERR unknown command 'X', with args beginning with: 'return 1' ";
        let noperm = "NOPERM this user has no permissions to run the 'eval' command";
        let incomplete = "ERR wrong number of arguments for 'x' command";
        let garnet = "ERR Garnet Lua scripting must be enabled to use this command.";
        let not_known = "NOSCRIPT No matching script. Please use EVAL.";
        let (if_eq, ex) = (Some(Delete::IfEq), Some(Delete::Ex));
        for (loaded, trials, scripts, delete) in [
            (true, ["", "", unknown, unknown], Scripts::ByHash, None),
            (true, ["", "", incomplete, unknown], Scripts::ByHash, if_eq),
            (true, ["", "", unknown, incomplete], Scripts::ByHash, ex),
            (false, ["", "", unknown, unknown], Scripts::ByText, None),
            (true, ["", noperm, unknown, unknown], Scripts::ByText, None),
            // EVALSHA alone is permitted.
            (
                true,
                [noperm, not_known, unknown, unknown],
                Scripts::ByHash,
                None,
            ),
            (
                true,
                [noperm, noperm, incomplete, unknown],
                Scripts::None,
                if_eq,
            ),
            (
                false,
                [garnet, garnet, unknown, incomplete],
                Scripts::None,
                ex,
            ),
            // Not for want of a right.
            (
                true,
                ["ERR another error", "", unknown, unknown],
                Scripts::ByHash,
                None,
            ),
            (
                false,
                ["ERR another error", "", unknown, unknown],
                Scripts::ByText,
                None,
            ),
        ] {
            let said = trials.map(|said| Some(said.to_owned()).filter(|said| !said.is_empty()));
            let means = Means::found(loaded, &said).unwrap();
            assert_eq!(
                (means.scripts, means.delete),
                (scripts, delete),
                "{trials:?}"
            );
        }
        for eval in [unknown, noperm, garnet] {
            let trials = [eval, unknown, unknown, noperm].map(|said| Some(said.to_owned()));
            let refused = Means::found(false, &trials).unwrap_err().to_string();
            assert!(
                refused.contains("neither EVAL nor") && !refused.contains("return"),
                "{refused}"
            );
        }
    }
}
