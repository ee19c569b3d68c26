//! `redlock list`: the locks on the nodes, and what is wrong with them. What is decided is decided by [`Found`],
//! which does no I/O; `scan` does.

use std::collections::{BTreeMap, BTreeSet};
use std::thread::sleep;
use std::time::Duration;

use redlock_sync::Redlock;
use redlock_sync::command::{LONGEST_VALUE, TOKEN, token_and_label};
use redlock_sync::redis::ConnectionInfo;
use serde_json::{Value, json};

use crate::arguments::List;
use crate::scan::{self, Progress, What};
use crate::show::{escaped, milliseconds, print, print_json, printable, table, time};
use crate::text::address;
use crate::{End, FOUND, UNAVAILABLE, say};

/// So much of a value is looked at: one byte more than a lock can have.
pub(crate) const VALUE: usize = LONGEST_VALUE + 1;

/// What is a leftover is seen as one so often. Each look may meet a lock that is being taken or released; but a
/// token is taken once and released once.
const LOOKS: u32 = 3;

pub(crate) fn list(
    given: &List,
    pattern: Option<Vec<u8>>,
    redlock: &Redlock,
    nodes: &[ConnectionInfo],
) -> End {
    let timeouts = (given.nodes.connect_timeout.0, given.nodes.node_timeout.0);
    let addresses: Vec<String> = nodes.iter().map(|node| address(node.addr())).collect();
    let mut found = Found::new(nodes.len());
    let mut progress = Progress::new();
    let mut look = |what, asked: &dyn Fn(usize) -> bool| {
        scan::look((redlock, nodes), timeouts, what, asked, &mut progress)
    };
    found.add(look(What::Pattern(pattern), &|_| true));
    for _ in 1..LOOKS {
        let names = found.suspects();
        if names.is_empty() || !found.is_enough() {
            break;
        }
        // What was being taken or released then is so no longer.
        sleep(2 * timeouts.1);
        let answers = look(What::Names(names), &|node| {
            !found.failed.contains_key(&node)
        });
        found.look_again(answers);
    }
    progress.end();
    for (node, error) in &found.failed {
        let address = addresses.get(*node).map_or("", |address| address);
        say(format_args!("node {node} ({address}): {error}"));
    }
    let older = given.older.map(|older| older.0);
    let shown: Vec<Shown<'_>> = found
        .shown(older)
        .filter(|lock| !given.leaked || lock.problem.is_some())
        .collect();
    let code = match (found.is_enough(), given.leaked && !shown.is_empty()) {
        (false, _) => {
            say(format_args!("too few nodes answered"));
            UNAVAILABLE
        }
        (true, true) => FOUND,
        (true, false) => 0,
    };
    let end = match given.json {
        true => print_json(&to_json(&shown, &found, &addresses), code),
        false => print(to_text(nodes.len(), &shown).as_bytes(), code),
    };
    let problems = shown.iter().filter(|lock| lock.problem.is_some());
    say(format_args!(
        "{} listed, {} with a problem; {} keys looked at on {} of {} nodes",
        shown.len(),
        problems.count(),
        progress.keys(),
        nodes.len() - found.failed.len(),
        nodes.len(),
    ));
    end
}

/// A key on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) name: Vec<u8>,
    /// The first bytes of a string; `None`: it is of another type.
    pub(crate) value: Option<Vec<u8>>,
    /// How long it is kept; [`Duration::MAX`]: for ever.
    pub(crate) left: Duration,
}

impl Key {
    /// Whether it looks like a lock. What the library keeps beside locks does not: the queue, whose turn it is, and
    /// the fencing counter.
    pub(crate) fn is_lock(&self) -> bool {
        let value = self.value.as_deref();
        value.and_then(token_and_label).is_some()
    }

    pub(crate) fn is_beside_a_lock(&self) -> bool {
        let value = self.value.as_deref();
        let ends = |end: &[u8]| self.name.ends_with(end);
        match value {
            None => ends(b":w"),
            Some(value) => {
                let is_number = value.iter().all(u8::is_ascii_digit);
                ends(b":wt") && value.starts_with(b"redlock:") || ends(b":fence") && is_number
            }
        }
    }
}

/// What a node has, or why that is not known.
pub(crate) type Answer = Result<Vec<Key>, String>;

/// The same on all nodes: a name, and how its value begins.
type Id = (Vec<u8>, Option<Vec<u8>>);

/// What was found on all nodes.
pub(crate) struct Found {
    nodes: usize,
    failed: BTreeMap<usize, String>,
    locks: BTreeMap<Id, Lock>,
}

#[derive(Clone)]
struct Lock {
    key: Key,
    /// Where it is, and how long it is kept there.
    on: BTreeMap<usize, Duration>,
    /// Each look so far has found it on a minority of the nodes.
    minority: bool,
}

/// As it is listed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shown<'a> {
    name: &'a [u8],
    holder: Option<String>,
    label: Option<String>,
    nodes: usize,
    remaining: Option<Duration>,
    problem: Option<&'static str>,
}

impl Found {
    pub(crate) fn new(nodes: usize) -> Found {
        Found {
            nodes,
            failed: BTreeMap::new(),
            locks: BTreeMap::new(),
        }
    }

    fn quorum(&self) -> usize {
        self.nodes / 2 + 1
    }

    /// Whether so many nodes answered that something can be said.
    pub(crate) fn is_enough(&self) -> bool {
        self.nodes - self.failed.len() >= self.quorum()
    }

    /// The first look: everything.
    pub(crate) fn add(&mut self, answers: Vec<Answer>) {
        self.locks = self.joined(answers);
    }

    /// The names of what lies on a minority of the nodes, whatever those have that did not answer.
    pub(crate) fn suspects(&self) -> Vec<Vec<u8>> {
        let suspects = self.locks.iter().filter(|(_, lock)| lock.minority);
        let names: BTreeSet<&Vec<u8>> = suspects.map(|((name, _), _)| name).collect();
        names.into_iter().cloned().collect()
    }

    /// Another look, at the suspects alone.
    pub(crate) fn look_again(&mut self, answers: Vec<Answer>) {
        let names: BTreeSet<Vec<u8>> = self.suspects().into_iter().collect();
        let mut again = self.joined(answers);
        for (id, lock) in &mut again {
            let before = self.locks.get(id);
            lock.minority &= before.is_some_and(|before| before.minority);
        }
        self.locks.retain(|(name, _), _| !names.contains(name));
        self.locks.extend(again);
    }

    fn joined(&mut self, answers: Vec<Answer>) -> BTreeMap<Id, Lock> {
        let mut locks: BTreeMap<Id, Lock> = BTreeMap::new();
        for (node, answer) in answers.into_iter().enumerate() {
            let keys = match answer {
                _ if self.failed.contains_key(&node) => continue,
                Ok(keys) => keys,
                Err(error) => {
                    self.failed.insert(node, error);
                    continue;
                }
            };
            for key in keys {
                let start = key.value.as_ref();
                let start = start.map(|value| value.get(..TOKEN).unwrap_or(value).to_vec());
                let (id, left) = ((key.name.clone(), start), key.left);
                let lock = locks.entry(id).or_insert_with(|| Lock {
                    key,
                    on: BTreeMap::new(),
                    minority: false,
                });
                lock.on.insert(node, left);
            }
        }
        let (failed, quorum) = (self.failed.len(), self.quorum());
        for lock in locks.values_mut() {
            lock.minority = lock.on.len() + failed < quorum;
        }
        locks
    }

    /// By name. `older`: what is kept for longer than this is a problem.
    pub(crate) fn shown(&self, older: Option<Duration>) -> impl Iterator<Item = Shown<'_>> {
        self.locks.values().map(move |lock| self.show(lock, older))
    }

    fn show<'a>(&self, lock: &'a Lock, older: Option<Duration>) -> Shown<'a> {
        let mut left: Vec<Duration> = lock.on.values().copied().collect();
        left.sort_unstable_by(|a, b| b.cmp(a));
        // Until fewer than a majority have it; what lies on fewer, until nobody has it.
        let remaining = left.get(self.quorum() - 1).or(left.first()).copied();
        let longest = left.first().copied().unwrap_or_default();
        let problem = if longest == Duration::MAX {
            Some("no-expiry")
        } else if lock.minority {
            Some("minority")
        } else if older.is_some_and(|older| longest > older) {
            Some("long")
        } else {
            None
        };
        let value = lock.key.value.as_deref();
        let (token, label) = value.and_then(token_and_label).unzip();
        Shown {
            name: &lock.key.name,
            holder: token.map(|token| token.fingerprint().to_string()),
            label: label.flatten(),
            nodes: lock.on.len(),
            remaining: remaining.filter(|left| *left != Duration::MAX),
            problem,
        }
    }
}

fn to_text(of: usize, shown: &[Shown<'_>]) -> String {
    let head = ["NAME", "NODES", "REMAINING", "PROBLEM", "HOLDER"].map(str::to_owned);
    let row = |lock: &Shown<'_>| {
        let mut holder = lock.holder.clone().unwrap_or_default();
        if let Some(label) = &lock.label {
            holder.push_str(&format!(" ({})", printable(label)));
        }
        [
            escaped(lock.name),
            format!("{}/{of}", lock.nodes),
            time(lock.remaining),
            lock.problem.unwrap_or("-").into(),
            holder,
        ]
    };
    let rows: Vec<_> = [head].into_iter().chain(shown.iter().map(row)).collect();
    table(&rows)
}

fn to_json(shown: &[Shown<'_>], found: &Found, addresses: &[String]) -> Value {
    let lock = |lock: &Shown<'_>| {
        json!({
            "name": escaped(lock.name),
            "holder": lock.holder,
            "label": lock.label,
            "nodes": lock.nodes,
            "of": found.nodes,
            "remaining_ms": milliseconds(lock.remaining),
            "problem": lock.problem,
        })
    };
    let failed = |(node, error): (&usize, &String)| {
        let address = addresses.get(*node).map(|address| printable(address));
        json!({ "node": node, "address": address, "error": printable(error) })
    };
    json!({
        "locks": shown.iter().map(lock).collect::<Value>(),
        "failed": found.failed.iter().map(failed).collect::<Value>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn key(name: &str, token: u8, left: Duration) -> Key {
        Key {
            name: name.into(),
            value: Some(vec![token; TOKEN]),
            left,
        }
    }

    /// Token 1 under the name `a`, for ten seconds.
    fn one() -> Answer {
        Ok(vec![key("a", 1, 10 * S)])
    }

    fn none() -> Answer {
        Ok(Vec::new())
    }

    fn away() -> Answer {
        Err("away".into())
    }

    /// After all looks: name, fingerprint's start, on how many nodes, what remains, problem.
    fn after(
        looks: Vec<Vec<Answer>>,
    ) -> Vec<(String, String, usize, Option<Duration>, &'static str)> {
        let mut looks = looks.into_iter();
        let first = looks.next().unwrap();
        let mut found = Found::new(first.len());
        found.add(first);
        for look in looks {
            assert!(!found.suspects().is_empty(), "nobody looks again");
            found.look_again(look);
        }
        let brief = |lock: Shown<'_>| {
            let name = String::from_utf8(lock.name.to_vec()).unwrap();
            let holder = lock.holder.unwrap_or_default();
            let problem = lock.problem.unwrap_or_default();
            (
                name,
                holder.chars().take(2).collect(),
                lock.nodes,
                lock.remaining,
                problem,
            )
        };
        found.shown(Some(60 * S)).map(brief).collect()
    }

    fn lock(
        nodes: usize,
        problem: &'static str,
    ) -> Vec<(String, String, usize, Option<Duration>, &'static str)> {
        vec![("a".into(), "01".into(), nodes, Some(10 * S), problem)]
    }

    #[test]
    fn a_lock_on_a_majority_is_none_and_one_on_a_minority_in_each_look_is_a_leftover() {
        assert_eq!(after(vec![vec![one()]]), lock(1, ""));
        assert_eq!(after(vec![vec![one(), one(), none()]]), lock(2, ""));
        assert_eq!(after(vec![vec![one(), one(), away()]]), lock(2, ""));
        let left = || vec![one(), none(), none()];
        assert_eq!(after(vec![left(), left(), left()]), lock(1, "minority"));
        // It may lie on the node that did not answer, too.
        assert_eq!(after(vec![vec![one(), none(), away()]]), lock(1, ""));
        let of_five = || vec![one(), none(), none(), away(), none()];
        assert_eq!(after(vec![of_five(), of_five()]), lock(1, "minority"));
    }

    #[test]
    fn what_is_taken_or_released_between_two_nodes_looks_is_no_leftover() {
        let left = || vec![one(), none(), none()];
        let gone = || vec![none(), none(), none()];
        let held = || vec![one(), one(), one()];
        // Released while the first look was made; taken meanwhile; both.
        assert_eq!(after(vec![left(), gone()]), []);
        assert_eq!(after(vec![left(), held()]), lock(3, ""));
        assert_eq!(after(vec![left(), left(), gone()]), []);
        // The node went away: it is not known any more where it lies.
        assert_eq!(
            after(vec![left(), vec![one(), none(), away()]]),
            lock(1, "")
        );
        // Another one's, which is just being taken.
        let others = || vec![none(), Ok(vec![key("a", 2, 9 * S)]), none()];
        let found = after(vec![left(), others()]);
        assert_eq!(found, [("a".into(), "02".into(), 1, Some(9 * S), "")]);
        // What nobody suspects stays as it was seen.
        let with_other = |answer: Answer| Ok([answer.unwrap(), vec![key("b", 3, S)]].concat());
        let first = vec![with_other(one()), with_other(none()), none()];
        let found = after(vec![first, gone()]);
        assert_eq!(found, [("b".into(), "03".into(), 2, Some(S), "")]);
    }

    #[test]
    fn a_leftover_beside_a_lock_of_the_same_name_is_told_from_it() {
        let both = || {
            vec![
                one(),
                Ok(vec![key("a", 2, 7 * S)]),
                Ok(vec![key("a", 2, 9 * S)]),
            ]
        };
        let found = after(vec![both(), both(), both()]);
        let held = ("a".into(), "02".into(), 2, Some(7 * S), "");
        assert_eq!(found, [lock(1, "minority").remove(0), held]);
    }

    #[test]
    fn what_never_ends_and_what_ends_late_are_problems() {
        let all =
            |left: [Duration; 3]| after(vec![left.map(|left| Ok(vec![key("a", 1, left)])).into()]);
        let found =
            |remaining, problem| vec![("a".to_owned(), "01".to_owned(), 3, remaining, problem)];
        assert_eq!(all([Duration::MAX; 3]), found(None, "no-expiry"));
        assert_eq!(
            all([Duration::MAX, S, 2 * S]),
            found(Some(2 * S), "no-expiry")
        );
        assert_eq!(all([61 * S, 2 * S, S]), found(Some(2 * S), "long"));
        assert_eq!(all([60 * S; 3]), found(Some(60 * S), ""));
    }

    #[test]
    fn locks_are_told_from_other_keys() {
        let of = |value: &[u8]| Key {
            name: b"a".to_vec(),
            value: Some(value.to_vec()),
            left: S,
        };
        let token = [0xA7; TOKEN];
        assert!(of(&token).is_lock());
        assert!(of(&[&token[..], b"\0redlock:web-3"].concat()).is_lock());
        for other in [
            &b""[..],
            b"2026-11-22T08:41:00Z",
            "{\"name\":\"Jürgen\",\"password\":\"hunter2\"}".as_bytes(),
            &token[..19],
        ] {
            assert!(!of(other).is_lock(), "{other:?}");
        }
        let hash = Key {
            value: None,
            ..of(b"")
        };
        assert!(!hash.is_lock());

        let named = |name: &str, key: &Key| Key {
            name: name.into(),
            ..key.clone()
        };
        for (name, key, beside) in [
            ("a:w", &hash, true),
            ("a:w", &of(&token), false),
            ("a:wt", &of(b"redlock:3f"), true),
            ("a:wt", &of(&token), false),
            ("a:fence", &of(b"1795336800000001"), true),
            ("a:fence", &of(&token), false),
            ("a", &hash, false),
        ] {
            assert_eq!(
                named(name, key).is_beside_a_lock(),
                beside,
                "{name} {key:?}"
            );
        }
    }
}
