//! The answers of the nodes about a lock, and what they mean together.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::errors::node_errors::NodeErrors;
use crate::ops::holder::Holder;
use crate::values::arithmetic::majority;
use crate::values::lock_value::ValueRole;

/// The nodes' answers about a lock, taken together.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockState {
    /// A majority of the nodes has it for one holder.
    #[non_exhaustive]
    Held {
        /// The holder of the lock.
        holder: Holder,
        /// How long a majority will have it, if it is neither extended nor released. (Its holder relies on a little
        /// less.) `None`: it has no ttl, so this crate did not make it.
        remaining: Option<Duration>,
    },
    /// The lock is a [read lock](crate::Redlock::read_lock).
    #[non_exhaustive]
    Readers {
        /// The readers that a majority of the nodes has, and how long a majority will have each, if it is neither
        /// extended nor released: the last to end first. Readers on nodes that did not answer may be missing.
        holders: Vec<(Holder, Duration)>,
    },
    /// The lock is a [semaphore](crate::Redlock::semaphore), with or without permits left.
    #[non_exhaustive]
    Permits {
        /// The holders that have a [slot](Holder::slot) on a majority of the nodes, by slot, and how long a majority
        /// will have each, if it is neither extended nor released. Holders on nodes that did not answer may be missing.
        holders: Vec<(Holder, Duration)>,
    },
    /// A majority of the nodes does not have it.
    Free,
    /// None of the above: attempts collide at this moment, an attempt left keys on nodes that were then away, or the
    /// keys are not locks.
    #[non_exhaustive]
    Blocked {
        /// How long until a majority of the nodes is free, if nothing else happens. `None`: no end can be seen.
        remaining: Option<Duration>,
    },
    /// Too few nodes answered: the state depends on the others.
    Unknown,
}

/// The answer of one node about a lock.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum NodeState {
    /// The node has the lock.
    #[non_exhaustive]
    Held {
        /// The holder of the lock.
        holder: Holder,
        /// How long the key is kept. `None`: it has no end.
        remaining: Option<Duration>,
    },
    /// The node has read locks of this name.
    #[non_exhaustive]
    Readers {
        /// The readers, and how long each is kept; of more than about 500 those that are kept longest.
        holders: Vec<(Holder, Duration)>,
    },
    /// The node has permits of this name.
    #[non_exhaustive]
    Permits {
        /// The holders, by slot, and how long each is kept; of more than about 500 those that are kept longest.
        holders: Vec<(Holder, Duration)>,
    },
    /// The node does not have the lock.
    Free,
    /// The node has a key of this name that is no lock of this crate: not a string, or a string other than a token and
    /// a label. Nothing of the value is shown: it may be secret.
    #[non_exhaustive]
    Foreign {
        /// How long the key is kept. `None`: it has no end.
        remaining: Option<Duration>,
    },
    /// The node could not be asked, or answered with an error.
    Failed(NodeErrors),
}

impl LockState {
    /// All holders, and how long each has the lock: see [`Held`](LockState::Held), [`Readers`](LockState::Readers) and
    /// [`Permits`](LockState::Permits).
    pub fn holders(&self) -> impl Iterator<Item = (&Holder, Option<Duration>)> {
        let (one, more) = match self {
            LockState::Held { holder, remaining } => (Some((holder, *remaining)), &[][..]),
            LockState::Readers { holders } | LockState::Permits { holders } => (None, &**holders),
            LockState::Free | LockState::Blocked { .. } | LockState::Unknown => (None, &[][..]),
        };
        let more = more.iter().map(|(holder, left)| (holder, Some(*left)));
        one.into_iter().chain(more)
    }
}

impl NodeState {
    /// All holders on this node, and how long each is kept: see [`Held`](NodeState::Held),
    /// [`Readers`](NodeState::Readers) and [`Permits`](NodeState::Permits).
    pub fn holders(&self) -> impl Iterator<Item = (&Holder, Option<Duration>)> {
        let (one, more) = match self {
            NodeState::Held { holder, remaining } => (Some((holder, *remaining)), &[][..]),
            NodeState::Readers { holders } | NodeState::Permits { holders } => (None, &**holders),
            NodeState::Free | NodeState::Foreign { .. } | NodeState::Failed(_) => (None, &[][..]),
        };
        let more = more.iter().map(|(holder, left)| (holder, Some(*left)));
        one.into_iter().chain(more)
    }

    /// How long until the node is free, if nothing else happens; [`Duration::MAX`]: forever. `None`: free, or failed.
    fn kept(&self) -> Option<Duration> {
        let forever = |left: Option<Duration>| left.unwrap_or(Duration::MAX);
        match self {
            NodeState::Foreign { remaining } => Some(forever(*remaining)),
            other => other.holders().map(|(_, left)| forever(left)).max(),
        }
    }
}

/// The state that the answers of all nodes amount to.
pub(crate) fn decide(nodes: &[&NodeState]) -> LockState {
    let quorum = majority(nodes.len());
    let count = |is: fn(&NodeState) -> bool| nodes.iter().filter(|node| is(node)).count();
    let free = count(|node| matches!(node, NodeState::Free));
    let failed = count(|node| matches!(node, NodeState::Failed(_)));
    // For each holder, how long the nodes have it.
    let mut all: BTreeMap<_, (Holder, Vec<Duration>)> = BTreeMap::new();
    for (holder, left) in nodes.iter().flat_map(|node| node.holders()) {
        let id = (holder.role(), holder.token().as_bytes());
        let of_it = all.entry(id);
        let (known, times) = of_it.or_insert_with(|| (holder.clone(), Vec::new()));
        known.complete(holder);
        times.push(left.unwrap_or(Duration::MAX));
    }
    let most = all.values().map(|(_, times)| times.len()).max();
    let mut held = Vec::new();
    for (holder, mut times) in all.into_values() {
        times.sort_unstable_by(|a, b| b.cmp(a));
        if let Some(left) = times.get(quorum - 1) {
            held.push((holder, *left));
        }
    }
    let end = |time: Duration| Some(time).filter(|time| *time != Duration::MAX);
    // Two majorities share a node, which has one kind of lock.
    match held
        .first()
        .map(|(holder, left)| (holder.role(), holder, *left))
    {
        Some((ValueRole::Lock, holder, left)) => {
            return LockState::Held {
                holder: holder.clone(),
                remaining: end(left),
            };
        }
        Some((ValueRole::Reader, ..)) => {
            held.sort_by_key(|(_, left)| Reverse(*left));
            return LockState::Readers { holders: held };
        }
        Some((ValueRole::Permit(_), ..)) => return LockState::Permits { holders: held },
        None => {}
    }
    if free >= quorum {
        return LockState::Free;
    }
    if most.unwrap_or_default().max(free) + failed >= quorum {
        return LockState::Unknown;
    }
    let mut kept: Vec<Duration> = nodes.iter().filter_map(|node| node.kept()).collect();
    kept.sort_unstable();
    LockState::Blocked {
        remaining: kept.get(quorum - free - 1).copied().and_then(end),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::holder::tests::holder;

    const MS: Duration = Duration::from_millis(1);

    fn held(token: u8, remaining: Option<u32>) -> NodeState {
        NodeState::Held {
            holder: holder(token, ValueRole::Lock),
            remaining: remaining.map(|remaining| remaining * MS),
        }
    }

    fn foreign(remaining: Option<u32>) -> NodeState {
        NodeState::Foreign {
            remaining: remaining.map(|remaining| remaining * MS),
        }
    }

    fn failed() -> NodeState {
        NodeState::Failed(NodeErrors::new(Vec::new(), None))
    }

    fn state(nodes: &[NodeState]) -> LockState {
        decide(&nodes.iter().collect::<Vec<_>>())
    }

    /// All combinations of `kinds` of answers, for `count` nodes.
    fn all(kinds: &[NodeState], count: usize) -> Vec<Vec<NodeState>> {
        let mut all = vec![Vec::new()];
        for _ in 0..count {
            let longer = |nodes: Vec<NodeState>| {
                kinds.iter().map(move |kind| {
                    let mut nodes = nodes.clone();
                    nodes.push(kind.clone());
                    nodes
                })
            };
            all = all.into_iter().flat_map(longer).collect();
        }
        all
    }

    /// If nodes did not answer, all answers that they could have given decide whether the state is certain.
    #[test]
    fn a_reported_state_is_certain_whatever_the_nodes_hold_that_did_not_answer() {
        let answers = [held(1, None), held(2, None), NodeState::Free, foreign(None)];
        let kinds = [&answers[..], &[failed()]].concat();
        for count in 1..=5 {
            for nodes in all(&kinds, count) {
                let quorum = count / 2 + 1;
                let missing = nodes
                    .iter()
                    .filter(|node| matches!(node, NodeState::Failed(_)));
                let mut verdicts: Vec<&str> = Vec::new();
                for filled in all(&answers, missing.count()) {
                    let mut filled = filled.into_iter();
                    let mut whole = nodes.clone();
                    for node in &mut whole {
                        if let NodeState::Failed(_) = node {
                            *node = filled.next().unwrap();
                        }
                    }
                    let of = |token: u8| {
                        let same = |node: &&NodeState| matches!(node, NodeState::Held { holder: other, .. } if *other == holder(token, ValueRole::Lock));
                        whole.iter().filter(same).count()
                    };
                    let free = whole.iter().filter(|node| matches!(node, NodeState::Free));
                    verdicts.push(if of(1) >= quorum || of(2) >= quorum {
                        "held"
                    } else if free.count() >= quorum {
                        "free"
                    } else {
                        "blocked"
                    });
                }
                verdicts.dedup();
                let expected = match verdicts[..] {
                    [one] => one,
                    _ => "unknown",
                };
                let said = match state(&nodes) {
                    LockState::Held { .. } => "held",
                    LockState::Free => "free",
                    LockState::Blocked { .. } => "blocked",
                    LockState::Unknown => "unknown",
                    other => panic!("{other:?}"),
                };
                assert_eq!(said, expected, "{nodes:?}");
            }
        }
    }

    #[test]
    fn what_remains_is_until_too_few_nodes_have_it_or_enough_are_free() {
        let lock = |remaining: Option<u32>| LockState::Held {
            holder: holder(1, ValueRole::Lock),
            remaining: remaining.map(|remaining| remaining * MS),
        };
        let blocked = |remaining: Option<u32>| LockState::Blocked {
            remaining: remaining.map(|remaining| remaining * MS),
        };
        let some = Some;
        for (nodes, expected) in [
            (vec![held(1, some(5))], lock(some(5))),
            (vec![held(1, None)], lock(None)),
            (
                vec![held(1, some(9)), held(1, some(5)), NodeState::Free],
                lock(some(5)),
            ),
            (
                vec![held(1, some(9)), held(1, some(5)), held(1, some(7))],
                lock(some(7)),
            ),
            (
                vec![held(1, None), held(1, some(5)), failed()],
                lock(some(5)),
            ),
            (
                vec![held(1, None), held(1, some(5)), held(1, None)],
                lock(None),
            ),
            (vec![foreign(some(4))], blocked(some(4))),
            (vec![foreign(None)], blocked(None)),
            (
                vec![held(1, some(9)), held(2, some(5)), NodeState::Free],
                blocked(some(5)),
            ),
            (
                vec![held(1, some(9)), held(2, some(5)), foreign(some(1))],
                blocked(some(5)),
            ),
            (
                vec![held(1, some(9)), held(2, None), foreign(None)],
                blocked(None),
            ),
        ] {
            assert_eq!(state(&nodes), expected, "{nodes:?}");
        }
    }

    /// Permits with these tokens, times and slots.
    fn permits(holders: &[(u8, u32, u16)]) -> NodeState {
        let one = |&(token, left, slot)| (holder(token, ValueRole::Permit(slot)), left * MS);
        NodeState::Permits {
            holders: holders.iter().map(one).collect(),
        }
    }

    fn readers(holders: &[(u8, u32)]) -> NodeState {
        let one = |&(token, left)| (holder(token, ValueRole::Reader), left * MS);
        NodeState::Readers {
            holders: holders.iter().map(one).collect(),
        }
    }

    /// The state as text: the holders, and for how many milliseconds each has the lock.
    fn said(nodes: &[NodeState]) -> String {
        let state = state(nodes);
        let holder = |(holder, left): (&Holder, Option<Duration>)| format!("{holder} {left:?}");
        let holders: Vec<String> = state.holders().map(holder).collect();
        match state {
            LockState::Permits { .. } => format!("permits: {}", holders.join(", ")),
            LockState::Readers { .. } => format!("readers: {}", holders.join(", ")),
            other => format!("{other:?}"),
        }
    }

    #[test]
    fn a_permit_is_a_majority_on_the_same_slot() {
        let both = [(1, 9, 0), (2, 5, 1)];
        for (nodes, expected) in [
            (
                vec![
                    permits(&both),
                    permits(&[(2, 7, 1), (1, 8, 0)]),
                    NodeState::Free,
                ],
                "permits: 01010101 in slot 0 Some(8ms), 02020202 in slot 1 Some(5ms)",
            ),
            (
                vec![permits(&both), permits(&both[..1]), failed()],
                "permits: 01010101 in slot 0 Some(9ms)",
            ),
            // Two of three nodes, but not for one slot.
            (
                vec![
                    permits(&[(1, 9, 0)]),
                    permits(&[(1, 9, 1)]),
                    readers(&[(1, 9)]),
                ],
                "Blocked { remaining: Some(9ms) }",
            ),
            (
                vec![
                    permits(&[(1, 9, 0)]),
                    permits(&[(1, 3, 1)]),
                    NodeState::Free,
                ],
                "Blocked { remaining: Some(3ms) }",
            ),
            (vec![permits(&both), failed(), failed()], "Unknown"),
            (
                vec![permits(&both), NodeState::Free, NodeState::Free],
                "Free",
            ),
        ] {
            assert_eq!(said(&nodes), expected, "{nodes:?}");
        }
    }

    #[test]
    fn the_last_of_the_readers_comes_first() {
        let nodes = [
            readers(&[(1, 4), (2, 9), (3, 7)]),
            readers(&[(1, 5), (2, 8)]),
            held(3, Some(6)),
        ];
        let expected = "readers: 02020202 reading Some(8ms), 01010101 reading Some(4ms)";
        assert_eq!(said(&nodes), expected);
        // A majority is free once the second node is.
        let nodes = [
            readers(&[(1, 4), (2, 9)]),
            held(3, Some(6)),
            foreign(Some(7)),
        ];
        assert_eq!(said(&nodes), "Blocked { remaining: Some(7ms) }");
    }
}
