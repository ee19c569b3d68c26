//! How a connection's server accepts the scripts. Refused forms are found by trying, and remembered for the connection.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::errors::cause::Cause;
use crate::errors::server_error::{
    is_not_loaded, refuses_companions, refuses_scripts, without_arguments,
};
use crate::protocol::commands::companions;
use crate::protocol::commands::resp::{self, Reply};
use crate::values::prefix::Prefix;

/// The number of names refused with their companions, and none accepted, after which no other name is tried.
const ENOUGH_REFUSED: usize = 4;
/// The maximum number of names that are remembered.
const MAX_ALONE: usize = 64;

/// Which commands name the keys [beside the lock](companions).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Beside {
    /// All commands that use any.
    #[default]
    All,
    /// Commands whose keys are in the lock's slot: the server belongs to a Redis Cluster.
    InSlot,
    /// No command: this user may not use the keys. There is no queue and no order of arrival; locks are as good.
    None,
}

/// How scripts are called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Scripts {
    /// The server has loaded them.
    ByHash,
    /// The server has loaded all of them, and does not take their texts from this user.
    OnlyByHash,
    #[default]
    ByText,
    /// The server runs no scripts, and this command releases: there is no queue, and there are no fencing tokens.
    None(Delete),
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

pub(crate) const NATIVE: [(Delete, &[u8]); 2] =
    [(Delete::IfEq, b"DELIFEQ"), (Delete::Ex, b"DELEX")];

/// Commands that show which of these a server has. They are incomplete: a server that has them does nothing, and does
/// not check this user's rights.
pub(crate) fn native_trials() -> Vec<u8> {
    let mut bytes = Vec::new();
    for (_, name) in NATIVE {
        resp::pack(&mut bytes, &[&[name]], None);
    }
    bytes
}

/// A capability to do without.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    Scripts,
    Queues,
    /// The messages of releases.
    Messages,
    /// The run id of the server.
    RunId,
    /// The rights that fencing tokens need.
    Fencing,
    /// The restart guard, which needs this, if the program has not asked for it.
    Guard(&'static str),
    /// The right to read the server's clock, with the restart guard.
    Clock,
}

/// How commands are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dialect {
    pub(crate) scripts: Scripts,
    pub(crate) beside: Beside,
}

/// The names that a lock is on: one, and all of them if there are several.
pub(crate) type Names<'a> = (&'a Arc<[u8]>, Option<&'a Arc<[Arc<[u8]>]>>);

type OwnNames = (Arc<[u8]>, Option<Arc<[Arc<[u8]>]>>);

/// The names whose companions this user may not use. A user may have other rights for other names.
#[derive(Default)]
pub(crate) struct Alone {
    names: VecDeque<OwnNames>,
    /// Whether other names were used with their companions.
    some_are_not: bool,
}

impl Alone {
    pub(crate) fn has(&self, names: Names<'_>) -> bool {
        let same = |one: &OwnNames| (&one.0, one.1.as_ref()) == names;
        !self.names.is_empty() && self.names.iter().any(same)
    }

    /// Notes that a command that named such keys was carried out.
    pub(crate) fn accepted(&mut self) {
        self.some_are_not = true;
    }

    /// Adds names. Returns whether, as far as has been seen, all names are refused.
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

impl Dialect {
    /// The means if nothing was refused.
    pub(crate) const ALL: Dialect = Dialect {
        scripts: Scripts::ByHash,
        beside: Beside::All,
    };

    /// The means by the errors of the trials, EVAL and EVALSHA; `None`: the answer was not an error. `loaded`: whether
    /// all scripts were loaded. `Err`: the server runs no scripts, and this was its answer.
    pub(crate) fn with_scripts(
        loaded: bool,
        [eval, by_hash]: [Option<String>; 2],
    ) -> Result<Dialect, String> {
        let known = loaded && !by_hash.as_deref().is_some_and(refuses_scripts);
        let scripts = match eval.filter(|said| refuses_scripts(said)) {
            Some(_) if known => Scripts::OnlyByHash,
            Some(refused) => return Err(refused),
            None => Scripts::by_hash_if(known),
        };
        Ok(Dialect {
            scripts,
            ..Dialect::default()
        })
    }

    /// The means of a server that runs no scripts, by its replies to [`native_trials`]. `Err`: a lock could be taken on
    /// it, and not released.
    pub(crate) fn without_scripts(refused: &str, replies: &[Reply]) -> Result<Dialect, Cause> {
        let is_known = |reply: &Reply| matches!(reply, Reply::Error(said) if said.starts_with("ERR wrong number of arguments"));
        let mut trials = NATIVE.iter().zip(replies);
        match trials.find(|(_, reply)| is_known(reply)) {
            Some(((delete, _), _)) => Ok(Dialect {
                scripts: Scripts::None(*delete),
                ..Dialect::default()
            }),
            None => Err(Cause::NoRelease(without_arguments(refused).into())),
        }
    }

    /// The means for a script that the server has not loaded yet.
    pub(crate) fn with_text(self) -> Dialect {
        Dialect {
            scripts: match self.scripts {
                Scripts::ByHash => Scripts::ByText,
                other => other,
            },
            ..self
        }
    }

    pub(crate) fn lack(self) -> Option<Lack> {
        match self {
            Dialect {
                scripts: Scripts::None(_),
                ..
            } => Some(Lack::Scripts),
            Dialect {
                beside: Beside::None,
                ..
            } => Some(Lack::Queues),
            _ => None,
        }
    }

    /// Whether the server refused not the command, but how it was sent: nothing was done, and the command is sent again
    /// in another way. `named`: whether it named keys beside the lock on these names.
    pub(crate) fn learn(
        &mut self,
        error: &str,
        named: bool,
        names: Names<'_>,
        prefix: &Prefix,
        alone: &mut Alone,
    ) -> bool {
        if is_not_loaded(error) {
            // There is no other way: a new connection loads the scripts.
            if self.scripts == Scripts::OnlyByHash {
                return false;
            }
            self.scripts = Scripts::ByText;
            return true;
        }
        if !named || !refuses_companions(error) {
            return false;
        }
        let is_cluster = error.starts_with("CROSSSLOT") && names.1.is_none();
        if is_cluster
            && companions::are_in_another_slot(&prefix.key(names.0))
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

    const NO_KEY: &str = "NOPERM No permissions to access a key";
    const CROSSSLOT: &str = "CROSSSLOT Keys in request don't hash to the same slot";

    fn learn(dialect: &mut Dialect, error: &str, named: bool, name: &str) -> bool {
        let name = Arc::from(name.as_bytes());
        dialect.learn(
            error,
            named,
            (&name, None),
            &Prefix::default(),
            &mut Alone::default(),
        )
    }

    #[test]
    fn what_a_server_does_not_take_is_sent_in_another_way_and_once() {
        let by_text = |beside| Dialect {
            beside,
            ..Dialect::default()
        };
        let by_hash = |beside| Dialect {
            beside,
            ..Dialect::ALL
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
            // Such a server is not a Redis Cluster.
            (CROSSSLOT, true, "a", by_hash(Beside::None)),
        ] {
            let mut dialect = Dialect::ALL;
            assert!(learn(&mut dialect, error, named, resource), "{error}");
            assert_eq!(dialect, left, "{error}");
        }
        // A new connection loads the scripts.
        let only = Dialect {
            scripts: Scripts::OnlyByHash,
            ..Dialect::ALL
        };
        for error in ["NOSCRIPT No matching script.", "NOPERM 'evalsha'"] {
            let mut dialect = only.with_text();
            assert!(!learn(&mut dialect, error, true, "a") && dialect == only);
        }
        // The second answer counts.
        let mut dialect = by_hash(Beside::None);
        assert!(!learn(&mut dialect, NO_KEY, false, "a"));
        for other in [
            "NOPERM this user has no permissions to run the 'eval' command",
            "OOM x",
        ] {
            let mut dialect = Dialect::ALL;
            assert!(
                !learn(&mut dialect, other, true, "a") && dialect == Dialect::ALL,
                "{other}"
            );
        }
        // The command was sent before the first was answered.
        assert!(learn(&mut dialect, NO_KEY, true, "a") && dialect == by_hash(Beside::None));
    }

    #[test]
    fn a_name_whose_companions_are_refused_costs_other_names_nothing() {
        let names: Vec<Arc<[u8]>> = (0..100_u8).map(|name| Arc::from([name])).collect();
        let refuse = |alone: &mut Alone, names: Names<'_>| {
            let mut dialect = Dialect::ALL;
            assert!(
                dialect.learn(NO_KEY, true, names, &Prefix::default(), alone) && alone.has(names)
            );
            dialect.beside
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
        // No name was accepted.
        let mut alone = Alone::default();
        let beside = |name| refuse(&mut alone, (name, None));
        let all = Beside::All;
        let found: Vec<_> = names[..4].iter().map(beside).collect();
        assert_eq!(found, [all, all, all, Beside::None]);
    }

    #[test]
    fn what_a_server_takes_is_found_by_trying() {
        let unknown = "ERR unknown command 'X', with args beginning with: 'return 1' ";
        let noperm = "NOPERM this user has no permissions to run the 'eval' command";
        let incomplete = "ERR wrong number of arguments for 'x' command";
        let garnet = "ERR Garnet Lua scripting must be enabled to use this command.";
        let not_known = "NOSCRIPT No matching script. Please use EVAL.";
        let said = |said: &str| Some(said.to_owned()).filter(|said| !said.is_empty());
        for (loaded, trials, scripts) in [
            (true, ["", ""], Some(Scripts::ByHash)),
            (false, ["", ""], Some(Scripts::ByText)),
            (true, ["", noperm], Some(Scripts::ByText)),
            // EVALSHA alone is permitted.
            (true, [noperm, not_known], Some(Scripts::OnlyByHash)),
            (false, [noperm, not_known], None),
            (true, [noperm, noperm], None),
            (false, [garnet, garnet], None),
            (false, [unknown, unknown], None),
            // The reason is not a missing right.
            (true, ["ERR another error", ""], Some(Scripts::ByHash)),
            (false, ["ERR another error", ""], Some(Scripts::ByText)),
        ] {
            let found = Dialect::with_scripts(loaded, trials.map(said)).ok();
            assert_eq!(found.map(|dialect| dialect.scripts), scripts, "{trials:?}");
        }
        let replies = |said: [&str; 2]| said.map(|said| Reply::Error(said.into()));
        for (trials, delete) in [
            ([incomplete, unknown], Delete::IfEq),
            ([unknown, incomplete], Delete::Ex),
            ([incomplete, incomplete], Delete::IfEq),
        ] {
            let dialect = Dialect::without_scripts(noperm, &replies(trials)).unwrap();
            assert_eq!(dialect.scripts, Scripts::None(delete), "{trials:?}");
        }
        for eval in [unknown, noperm, garnet] {
            let refused = Dialect::without_scripts(eval, &replies([unknown, noperm]));
            let refused = refused.unwrap_err().to_string();
            assert!(
                refused.contains("neither EVAL nor") && !refused.contains("return"),
                "{refused}"
            );
        }
    }
}
