//! Commands that do without scripts: `DELIFEQ` (Valkey 9), `DELEX` (Redis 8.4), and `SET … IFEQ` (Valkey 8.1, Redis 8.4).

use std::io::Write as _;

use super::Pair;
use super::server::Line;
use crate::protocol::commands::action::{Action, Key, Notify};
use crate::protocol::commands::dialect::{Delete, Dialect, NATIVE, Scripts, native_trials};
use crate::protocol::commands::resp::Reply;
use crate::values::arithmetic::Ttl;
use crate::values::prefix::Prefix;

/// The native commands of the server, and how often they were judged.
pub(super) struct Native {
    /// The one that compares and deletes.
    delete: Option<Delete>,
    sets_if_equal: bool,
    deleted: Answers,
    set: Answers,
}

/// How often a command was carried out, and how often it did nothing.
#[derive(Debug, Default, PartialEq, Eq)]
struct Answers {
    done: u64,
    nothing: u64,
}

impl Answers {
    fn count(&mut self, said: &[u8]) {
        match said {
            b":1\r\n" | b"+OK\r\n" => self.done += 1,
            b":0\r\n" | b"$-1\r\n" => self.nothing += 1,
            // Refused.
            _ => {}
        }
    }

    /// Whether there are both, or so few that one may be missing by chance: one in ten is carried out.
    fn are_both(&self) -> bool {
        self.done > 0 && self.nothing > 0 || self.done + self.nothing < 150
    }
}

impl Native {
    pub(super) fn of(line: &mut Line) -> Native {
        line.send(&native_trials());
        let found = NATIVE.map(|(delete, _)| {
            // Given one reply alone, this tells whether the server has the command.
            let known = Dialect::without_scripts("", &[line.reply().1]).is_ok();
            known.then_some(delete)
        });
        // Nothing is there that could be equal.
        let (_, set) = line.ask(&[b"SET", b"a", b"x", b"IFEQ", b"x", b"PX", b"1"]);
        Native {
            delete: found.into_iter().flatten().next(),
            sets_if_equal: set == Reply::Nil,
            deleted: Answers::default(),
            set: Answers::default(),
        }
    }

    fn is_none(&self) -> bool {
        self.delete.is_none() && !self.sets_if_equal
    }

    /// Prints what was judged, and what the server lacks. A command that it has must have been judged both ways.
    pub(super) fn report(&self) {
        println!(
            "without scripts: deleted {:?}, set {:?}",
            self.deleted, self.set
        );
        if self.delete.is_none() {
            skipped("DELIFEQ and DELEX");
        }
        if !self.sets_if_equal {
            skipped("SET … IFEQ");
        }
        let is_judged = |is_known: bool, answers: &Answers| !is_known || answers.are_both();
        assert!(
            is_judged(self.delete.is_some(), &self.deleted),
            "{:?}",
            self.deleted
        );
        assert!(is_judged(self.sets_if_equal, &self.set), "{:?}", self.set);
    }

    pub(super) fn count(&mut self, args: &[&[u8]], said: &[u8]) {
        match args {
            [b"DELIFEQ" | b"DELEX", ..] => self.deleted.count(said),
            [b"SET", _, _, b"IFEQ", ..] => self.set.count(said),
            _ => {}
        }
    }

    /// How this action is done without a script, if the server can.
    fn means(&self, action: &Action) -> Option<Scripts> {
        let delete = self.delete.unwrap_or(Delete::IfEq);
        let is_known = match action {
            Action::Release(_) => self.delete.is_some(),
            Action::Extend(..) | Action::Shorten(_) => self.sets_if_equal,
            // The value has no time then, as those that are compared.
            Action::Acquire(_) | Action::AcquireOrEnqueue(..) => {
                self.delete.is_some() || self.sets_if_equal
            }
            _ => false,
        };
        is_known.then_some(Scripts::None(delete))
    }
}

fn skipped(what: &str) {
    // Past what captures the output of a test that passes.
    let text = format!("SKIPPED differential: {what}, which this server lacks\n");
    std::io::stderr().write_all(text.as_bytes()).unwrap();
}

impl Pair {
    /// One of the commands for a lock that has neither a time nor a label, so that values are often equal.
    pub(super) fn without_script(&mut self, resource: &[u8], ttl: Ttl) -> Option<Vec<u8>> {
        if self.native.is_none() || self.fault.is_some() || !self.random.chance(20) {
            return None;
        }
        let action = match self.random.below(4) {
            0 => Action::Acquire(ttl),
            1 => Action::Extend(ttl, ttl),
            2 => Action::Shorten(ttl),
            _ => Action::Release(Notify::None),
        };
        let means = Dialect {
            scripts: self.scripts(&action),
            ..Dialect::ALL
        };
        let key = Key::new(resource.into(), self.token_of(resource), None);
        let mut bytes = Vec::new();
        action.pack(&key, &Prefix::default(), means, &mut bytes);
        Some(bytes)
    }

    /// How a command for a plain lock is sent. (While faults in scripts are searched for, all are.)
    pub(super) fn scripts(&mut self, action: &Action) -> Scripts {
        let native = self.native.means(action).filter(|_| self.fault.is_none());
        match native {
            Some(native) if self.random.chance(50) => native,
            _ => Scripts::by_hash_if(self.random.chance(70)),
        }
    }
}
