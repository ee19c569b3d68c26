//! The keys that were found on all nodes, and which of them are leftovers: no I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use crate::errors::cause::Cause;
use crate::ops::holder::Holder;
use crate::ops::scan::ScannedKey;
use crate::ops::waiters::Waiters;
use crate::values::arithmetic::majority;
use crate::values::lock_value::ValueRole;
use crate::values::node_set::NodeSet;
use crate::values::prefix::Prefix;

/// A lock, or another key, on the nodes. Nodes on which it has another token have another lock of the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListedLock {
    name: Vec<u8>,
    holder: Option<Holder>,
    on: BTreeMap<usize, Duration>,
    remaining: Duration,
    problem: Option<Problem>,
    waiters: Option<Waiters>,
}

impl ListedLock {
    /// The key's name, without the [prefix](crate::Options::prefix).
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// The holder. `None`: the key is no lock of this crate, and nothing of its value is shown.
    pub fn holder(&self) -> Option<&Holder> {
        self.holder.as_ref()
    }

    /// The nodes that have it, and how long they keep it. `None`: it has no end there.
    pub fn nodes(&self) -> impl Iterator<Item = (usize, Option<Duration>)> {
        self.on.iter().map(|(node, left)| (*node, end(*left)))
    }

    /// How long a majority of the nodes keeps it; if only a minority has it, how long any node does. `None`: it has no
    /// end.
    pub fn remaining(&self) -> Option<Duration> {
        end(self.remaining)
    }

    /// How many processes wait for the lock, as in [`Inspection::waiting`](crate::Inspection::waiting).
    pub fn waiting(&self) -> Option<usize> {
        self.waiters.as_ref().map(Waiters::count)
    }

    /// How long the first of these has waited, as in [`Inspection::longest_wait`](crate::Inspection::longest_wait).
    pub fn longest_wait(&self) -> Option<Duration> {
        self.waiters.as_ref().and_then(Waiters::longest)
    }

    /// The labels of these, as in [`Inspection::waiting_labels`](crate::Inspection::waiting_labels).
    pub fn waiting_labels(&self) -> impl Iterator<Item = &str> {
        self.waiters.iter().flat_map(Waiters::labels)
    }

    /// The problem with the lock, if there is one.
    pub fn problem(&self) -> Option<Problem> {
        self.problem
    }
}

/// A problem with a [`ListedLock`]. `Display` is one word for programs: `no-expiry` or `minority`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Problem {
    /// The key has no ttl on some node. So nothing ends it there, and this crate did not make it.
    NoExpiry,
    /// The lock was on a minority of the nodes in three looks: a leftover, for example of a program that died while it
    /// tried to take the lock. It ends with its ttl.
    Minority,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Problem::NoExpiry => "no-expiry",
            Problem::Minority => "minority",
        })
    }
}

fn end(left: Duration) -> Option<Duration> {
    Some(left).filter(|left| *left != Duration::MAX)
}

/// The keys of a node, or why they could not be read.
pub(super) type NodeScan = Result<Vec<ScannedKey>, Cause>;

/// The identity of a lock on all nodes: its name, its holder's role, and the holder's token or the value's beginning.
type Id = (Vec<u8>, Option<ValueRole>, Option<Vec<u8>>);

/// The keys found on all nodes.
pub(super) struct FoundKey {
    nodes: usize,
    pub(super) failed: BTreeMap<usize, Cause>,
    locks: BTreeMap<Id, FoundLock>,
}

#[derive(Clone)]
struct FoundLock {
    key: ScannedKey,
    /// The nodes that have it, and how long each keeps it.
    on: BTreeMap<usize, Duration>,
    /// Whether each look so far has found it on a minority of the nodes.
    minority: bool,
}

impl FoundKey {
    pub(super) fn new(nodes: usize) -> FoundKey {
        FoundKey {
            nodes,
            failed: BTreeMap::new(),
            locks: BTreeMap::new(),
        }
    }

    /// The nodes that have not failed.
    pub(super) fn answered(&self) -> NodeSet {
        let nodes = 0..self.nodes;
        nodes
            .filter(|node| !self.failed.contains_key(node))
            .collect()
    }

    pub(super) fn has_majority(&self) -> bool {
        self.answered().len() >= majority(self.nodes)
    }

    /// Adds the first look: everything.
    pub(super) fn add(&mut self, answers: BTreeMap<usize, NodeScan>) {
        self.locks = self.joined(answers);
    }

    /// The names of locks on a minority of the nodes, whatever is on those that failed.
    pub(super) fn suspects(&self) -> Vec<Vec<u8>> {
        let suspects = self.locks.iter().filter(|(_, lock)| lock.minority);
        let names: BTreeSet<&Vec<u8>> = suspects.map(|((name, ..), _)| name).collect();
        names.into_iter().cloned().collect()
    }

    /// Adds another look, at the suspects alone.
    pub(super) fn look_again(&mut self, answers: BTreeMap<usize, NodeScan>) {
        let names: BTreeSet<Vec<u8>> = self.suspects().into_iter().collect();
        let mut again = self.joined(answers);
        for (id, lock) in &mut again {
            let before = self.locks.get(id);
            lock.minority &= before.is_some_and(|before| before.minority);
        }
        self.locks.retain(|(name, ..), _| !names.contains(name));
        self.locks.extend(again);
    }

    fn joined(&mut self, answers: BTreeMap<usize, NodeScan>) -> BTreeMap<Id, FoundLock> {
        let mut locks: BTreeMap<Id, FoundLock> = BTreeMap::new();
        for (node, answer) in answers {
            let keys = match answer {
                _ if self.failed.contains_key(&node) => continue,
                Ok(keys) => keys,
                Err(cause) => {
                    self.failed.insert(node, cause);
                    continue;
                }
            };
            for key in keys {
                let role = key.holder.as_ref().map(Holder::role);
                let start = key.start().map(<[u8]>::to_vec);
                let (id, left) = ((key.name.clone(), role, start), key.left);
                let (holder, waiters) = (key.holder.clone(), key.waiters.clone());
                let lock = locks.entry(id).or_insert_with(|| FoundLock {
                    key,
                    on: BTreeMap::new(),
                    minority: false,
                });
                lock.on.insert(node, left);
                if let (Some(known), Some(holder)) = (&mut lock.key.holder, &holder) {
                    known.complete(holder);
                }
                let all = lock.key.waiters.take().into_iter().chain(waiters);
                lock.key.waiters = all.reduce(Waiters::and);
            }
        }
        let (failed, quorum) = (self.failed.len(), majority(self.nodes));
        for lock in locks.values_mut() {
            lock.minority = lock.on.len() + failed < quorum;
        }
        locks
    }

    /// The locks, by name.
    pub(super) fn listed(&self, prefix: &Prefix) -> Vec<ListedLock> {
        let listed = |lock: &FoundLock| {
            let mut left: Vec<Duration> = lock.on.values().copied().collect();
            left.sort_unstable_by(|a, b| b.cmp(a));
            // Until fewer than a majority have it; if fewer have it now, until no node does.
            let last = left.get(majority(self.nodes) - 1).or(left.first());
            let problem = if left.first() == Some(&Duration::MAX) {
                Some(Problem::NoExpiry)
            } else {
                lock.minority.then_some(Problem::Minority)
            };
            ListedLock {
                name: prefix.name(&lock.key.name).unwrap_or_default().to_vec(),
                holder: lock.key.holder.clone(),
                on: lock.on.clone(),
                remaining: last.copied().unwrap_or_default(),
                problem,
                waiters: lock.key.waiters.clone(),
            }
        };
        self.locks.values().map(listed).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::lock_value::TOKEN;

    const S: Duration = Duration::from_secs(1);
    const MINORITY: Option<Problem> = Some(Problem::Minority);
    const NO_EXPIRY: Option<Problem> = Some(Problem::NoExpiry);

    fn key(name: &str, token: u8, left: Duration) -> ScannedKey {
        ScannedKey::new(name.into(), Some(vec![token; TOKEN]), left)
    }

    /// Token 1 under the name `a`, for ten seconds.
    fn one() -> NodeScan {
        Ok(vec![key("a", 1, 10 * S)])
    }

    fn none() -> NodeScan {
        Ok(Vec::new())
    }

    fn away() -> NodeScan {
        Err(Cause::Connect("away".into()))
    }

    /// Name, start of the fingerprint, number of nodes, remaining time, problem.
    type Brief = (String, String, usize, Option<Duration>, Option<Problem>);

    /// The listing after all looks.
    fn after(looks: Vec<Vec<NodeScan>>) -> Vec<Brief> {
        let mut looks = looks.into_iter();
        let first = looks.next().unwrap();
        let mut found = FoundKey::new(first.len());
        let numbered = |answers: Vec<NodeScan>| answers.into_iter().enumerate().collect();
        found.add(numbered(first));
        for look in looks {
            assert!(!found.suspects().is_empty(), "there is no other look");
            found.look_again(numbered(look));
        }
        let brief = |lock: ListedLock| {
            let name = String::from_utf8(lock.name().to_vec()).unwrap();
            let holder = lock.holder().map(|holder| holder.fingerprint().to_string());
            (
                name,
                holder.unwrap_or_default().chars().take(2).collect(),
                lock.nodes().count(),
                lock.remaining(),
                lock.problem(),
            )
        };
        found
            .listed(&Prefix::default())
            .into_iter()
            .map(brief)
            .collect()
    }

    fn lock(nodes: usize, problem: Option<Problem>) -> Vec<Brief> {
        vec![("a".into(), "01".into(), nodes, Some(10 * S), problem)]
    }

    #[test]
    fn a_lock_on_a_majority_is_none_and_one_on_a_minority_in_each_look_is_a_leftover() {
        assert_eq!(after(vec![vec![one()]]), lock(1, None));
        assert_eq!(after(vec![vec![one(), one(), none()]]), lock(2, None));
        assert_eq!(after(vec![vec![one(), one(), away()]]), lock(2, None));
        let left = || vec![one(), none(), none()];
        assert_eq!(after(vec![left(), left(), left()]), lock(1, MINORITY));
        // The node that did not answer may have the lock, too.
        assert_eq!(after(vec![vec![one(), none(), away()]]), lock(1, None));
        let of_five = || vec![one(), none(), none(), away(), none()];
        assert_eq!(after(vec![of_five(), of_five()]), lock(1, MINORITY));
    }

    #[test]
    fn what_is_taken_or_released_between_two_nodes_looks_is_no_leftover() {
        let left = || vec![one(), none(), none()];
        let gone = || vec![none(), none(), none()];
        let held = || vec![one(), one(), one()];
        // Released while the first look was made; taken meanwhile; both.
        assert_eq!(after(vec![left(), gone()]), []);
        assert_eq!(after(vec![left(), held()]), lock(3, None));
        assert_eq!(after(vec![left(), left(), gone()]), []);
        // The node went away, and may have the lock, too.
        assert_eq!(
            after(vec![left(), vec![one(), none(), away()]]),
            lock(1, None)
        );
        // Another holder's lock, which is just being taken.
        let others = || vec![none(), Ok(vec![key("a", 2, 9 * S)]), none()];
        let found = after(vec![left(), others()]);
        assert_eq!(found, [("a".into(), "02".into(), 1, Some(9 * S), None)]);
        // Keys that are no suspects stay as they were seen.
        let with_other = |answer: NodeScan| Ok([answer.unwrap(), vec![key("b", 3, S)]].concat());
        let first = vec![with_other(one()), with_other(none()), none()];
        let found = after(vec![first, gone()]);
        assert_eq!(found, [("b".into(), "03".into(), 2, Some(S), None)]);
    }

    #[test]
    fn a_leftover_beside_a_lock_of_the_same_name_is_distinguished_from_it() {
        let both = || {
            vec![
                one(),
                Ok(vec![key("a", 2, 7 * S)]),
                Ok(vec![key("a", 2, 9 * S)]),
            ]
        };
        let found = after(vec![both(), both(), both()]);
        let held = ("a".into(), "02".into(), 2, Some(7 * S), None);
        assert_eq!(found, [lock(1, MINORITY).remove(0), held]);
    }

    #[test]
    fn a_key_that_never_ends_is_a_problem() {
        let all =
            |left: [Duration; 3]| after(vec![left.map(|left| Ok(vec![key("a", 1, left)])).into()]);
        let found =
            |remaining, problem| vec![("a".to_owned(), "01".to_owned(), 3, remaining, problem)];
        assert_eq!(all([Duration::MAX; 3]), found(None, NO_EXPIRY));
        assert_eq!(
            all([Duration::MAX, S, 2 * S]),
            found(Some(2 * S), NO_EXPIRY)
        );
        assert_eq!(all([61 * S, 2 * S, S]), found(Some(2 * S), None));
    }

    #[test]
    fn locks_are_distinguished_from_other_keys() {
        let of = |value: &[u8]| ScannedKey::new(b"a".to_vec(), Some(value.to_vec()), S);
        let token = [0xA7; TOKEN];
        assert!(of(&token).holder.is_some());
        let labelled = [&token[..], b"\0redlock:12345web-3"].concat();
        assert!(of(&labelled).holder.is_some());
        for other in [
            &b""[..],
            b"2026-11-22T08:41:00Z",
            "{\"name\":\"Jürgen\",\"password\":\"hunter2\"}".as_bytes(),
            &token[..19],
        ] {
            assert!(of(other).holder.is_none(), "{other:?}");
        }
        let hash = ScannedKey::new(b"a".to_vec(), None, S);
        assert!(hash.holder.is_none());

        let named = |name: &str, key: &ScannedKey| ScannedKey {
            name: name.into(),
            ..key.clone()
        };
        for (name, key, beside) in [
            ("{a}:redlock:w", &hash, true),
            ("{a}:redlock:w", &of(&token), false),
            ("{a}:redlock:wt", &of(b"team:redlock:3f"), true),
            ("{a}:redlock:wt", &of(&token), false),
            ("{a}:redlock:fence", &of(b"1795336800000001"), true),
            ("{a}:redlock:fence", &of(&token), false),
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
