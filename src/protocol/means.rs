//! How a connection's server takes the scripts. What it does not take is found by trying, and remembered for the connection.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::error::Cause;
use crate::prefix::Prefix;
use crate::protocol::companions;
use crate::protocol::server_error::{
    is_not_loaded, refuses_companions, refuses_delete, refuses_scripts, without_arguments,
};

/// After this number of names without their companions, and none with them, no other is tried.
const ENOUGH_REFUSED: usize = 4;
/// The maximum of names that are remembered.
const MAX_ALONE: usize = 64;

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

/// What has to be done without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    Scripts,
    Queues,
    /// Of releases.
    Messages,
    /// Which server it is.
    RunId,
    /// What fencing tokens need.
    Fencing,
    /// The restart guard, where the program has not asked for it.
    Guard,
}

/// How commands are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Means {
    pub(crate) scripts: Scripts,
    pub(crate) beside: Beside,
    /// Cheaper than a script, where no process is to be notified.
    pub(crate) delete: Option<Delete>,
}

/// What a lock is on: the name, and all of them if there are several.
pub(crate) type Names<'a> = (&'a Arc<[u8]>, Option<&'a Arc<[Arc<[u8]>]>>);

type OwnNames = (Arc<[u8]>, Option<Arc<[Arc<[u8]>]>>);

/// The names that this user may use without the keys beside them. A user may have other rights for other names.
#[derive(Default)]
pub(crate) struct Alone {
    names: VecDeque<OwnNames>,
    /// Others were used with them.
    some_are_not: bool,
}

impl Alone {
    pub(crate) fn has(&self, names: Names<'_>) -> bool {
        let same = |one: &OwnNames| (&one.0, one.1.as_ref()) == names;
        !self.names.is_empty() && self.names.iter().any(same)
    }

    /// A command was carried out that named such keys.
    pub(crate) fn accepted(&mut self) {
        self.some_are_not = true;
    }

    /// Whether these are all that there are, as far as is known.
    fn add(&mut self, names: Names<'_>) -> bool {
        if !self.has(names) {
            self.names.push_back((names.0.clone(), names.1.cloned()));
        }
        if self.names.len() > MAX_ALONE {
            self.names.pop_front();
        }
        !self.some_are_not && self.names.len() >= ENOUGH_REFUSED
    }
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

    /// Whether the server refused the native deletion, and a script takes its place from now on.
    pub(crate) fn learn_delete(&mut self, error: &str) -> bool {
        let learns = self.scripts != Scripts::None && refuses_delete(error);
        if learns {
            self.delete = None;
        }
        learns
    }

    /// Whether the server refused not what a command does, but how it was sent: nothing was done, and it is sent again
    /// in another way. `named`: it named keys beside the lock on these names.
    pub(crate) fn learn(
        &mut self,
        error: &str,
        named: bool,
        names: Names<'_>,
        prefix: &Prefix,
        alone: &mut Alone,
    ) -> bool {
        if is_not_loaded(error) {
            self.scripts = Scripts::ByText;
            return true;
        }
        if self.learn_delete(error) {
            return true;
        }
        if !named || !refuses_companions(error) {
            return false;
        }
        let is_cluster = error.starts_with("CROSSSLOT") && names.1.is_none();
        if is_cluster
            && companions::are_elsewhere(&prefix.key(names.0))
            && self.beside != Beside::None
        {
            self.beside = Beside::InSlot;
        } else if is_cluster || alone.add(names) {
            self.beside = Beside::None;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::script::{Action, Notify};

    const NO_KEY: &str = "NOPERM No permissions to access a key";
    const CROSSSLOT: &str = "CROSSSLOT Keys in request don't hash to the same slot";

    fn learn(means: &mut Means, error: &str, named: bool, name: &str) -> bool {
        let name = Arc::from(name.as_bytes());
        means.learn(
            error,
            named,
            (&name, None),
            &Prefix::default(),
            &mut Alone::default(),
        )
    }

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
            (NO_KEY, true, "a", by_hash(Beside::All)),
            (CROSSSLOT, true, "a}b", by_hash(Beside::InSlot)),
            // Such a server is no Redis Cluster.
            (CROSSSLOT, true, "a", by_hash(Beside::None)),
        ] {
            let mut means = Means::ALL;
            assert!(learn(&mut means, error, named, resource), "{error}");
            assert_eq!(means, left, "{error}");
        }
        // The second answer counts.
        let mut means = by_hash(Beside::None);
        assert!(!learn(&mut means, NO_KEY, false, "a"));
        for other in [
            "NOPERM this user has no permissions to run the 'eval' command",
            "OOM x",
        ] {
            let mut means = Means::ALL;
            assert!(
                !learn(&mut means, other, true, "a") && means == Means::ALL,
                "{other}"
            );
        }
        // What was sent before the first was answered.
        assert!(learn(&mut means, NO_KEY, true, "a") && means == by_hash(Beside::None));
    }

    #[test]
    fn a_name_whose_companions_are_refused_costs_other_names_nothing() {
        let names: Vec<Arc<[u8]>> = (0..100_u8).map(|name| Arc::from([name])).collect();
        let refuse = |alone: &mut Alone, names: Names<'_>| {
            let mut means = Means::ALL;
            assert!(
                means.learn(NO_KEY, true, names, &Prefix::default(), alone) && alone.has(names)
            );
            means.beside
        };
        let (mut alone, pair) = (
            Alone::default(),
            Arc::from([names[8].clone(), names[9].clone()]),
        );
        alone.accepted();
        for name in &names {
            assert!(!alone.has((name, None)));
            assert_eq!(refuse(&mut alone, (name, None)), Beside::All);
            refuse(&mut alone, (name, None));
        }
        assert_eq!(
            (alone.names.len(), alone.has((&names[0], None))),
            (MAX_ALONE, false)
        );
        assert!(!alone.has((&names[8], Some(&pair))));
        refuse(&mut alone, (&names[8], Some(&pair)));
        // Where none was accepted.
        let mut alone = Alone::default();
        let beside = |name| refuse(&mut alone, (name, None));
        let all = Beside::All;
        let found: Vec<_> = names[..4].iter().map(beside).collect();
        assert_eq!(found, [all, all, all, Beside::None]);
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
        assert!(learn(&mut means, refused, false, "a") && means == Means::ALL);
        // Where there are no scripts it is final.
        let narrow = Means {
            scripts: Scripts::None,
            delete: Some(Delete::IfEq),
            ..Means::ALL
        };
        let mut means = narrow;
        assert!(!learn(&mut means, refused, false, "a") && means == narrow);
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
