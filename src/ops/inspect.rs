use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::ConnectionInfo;

use crate::error::{Cause, Error, NodeError, NodeErrors};
use crate::label::Label;
use crate::lock_value;
use crate::protocol::quorum::majority;
use crate::protocol::resp::{self, Reply};
use crate::protocol::scripts::INSPECT;
use crate::redlock::{Redlock, checked};
use crate::text::address;
use crate::token::{Fingerprint, Token};

const _: () = assert!(lock_value::LONGEST == 93, "INSPECT asks for this length");

impl Redlock {
    /// Shows the holder of a lock, node by node, at this moment: for the investigation of problems. Do not decide by
    /// it whether to take a lock: call [`try_acquire`](Redlock::try_acquire) for that.
    ///
    /// It changes nothing, and uses connections of its own, which end with the call; each node has
    /// [`connect_timeout`](crate::Options::connect_timeout) to be connected and
    /// [`node_timeout`](crate::Options::node_timeout) to answer. It needs only the rights that locks need.
    /// Nodes that are kept from voting by the [restart guard](crate::Options::restart_guard) count here.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for an empty or too long resource. Nodes that do not answer are not an error, but part of the
    /// result.
    ///
    /// # Example
    ///
    /// ```no_run
    /// use redlock_sync::{LockState, Redlock};
    ///
    /// let redlock = Redlock::new(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
    /// let inspection = redlock.inspect("account:17")?;
    /// match inspection.state() {
    ///     LockState::Held { holder, remaining, .. } => println!("{holder}, for {remaining:?}"),
    ///     state => println!("{state:?}"),
    /// }
    /// for (node, address, answer) in inspection.nodes() {
    ///     println!("node {node} ({address}): {answer:?}");
    /// }
    /// # Ok::<(), redlock_sync::Error>(())
    /// ```
    pub fn inspect(&self, resource: impl AsRef<[u8]>) -> Result<Inspection, Error> {
        let resource = checked(resource.as_ref())?;
        let mut look = Vec::new();
        resp::pack(
            &mut look,
            &[&[b"EVAL", INSPECT.text, b"1", &resource]],
            None,
        );
        let answers = self.query(1, move |query| {
            let [reply] = query.ask(&look)?;
            seen(reply)
        });
        let nodes = self.peers().iter().zip(answers).enumerate();
        let nodes = nodes.map(|(node, (info, answer))| inspected(node, info, answer));
        Ok(Inspection {
            nodes: nodes.collect(),
        })
    }
}

fn inspected(
    node: usize,
    info: &ConnectionInfo,
    answer: Result<NodeState, Cause>,
) -> (String, NodeState) {
    let address = address(info.addr());
    let state = answer.unwrap_or_else(|cause| {
        let error = NodeError {
            node,
            address: address.as_str().into(),
            cause: Arc::new(cause),
        };
        NodeState::Failed(NodeErrors::new(vec![error], None))
    });
    (address, state)
}

/// What a node's reply says.
fn seen(reply: Reply) -> Result<NodeState, Cause> {
    let bulk = match reply {
        Reply::Nil => return Ok(NodeState::Free),
        Reply::Bulk(bulk) => bulk,
        Reply::Error(text) => return Err(Cause::refused(&text)),
        other => return Err(Cause::Garbage(other.kind().into())),
    };
    let mut parts = bulk.splitn(3, |byte| *byte == b' ');
    let mut number = || str::from_utf8(parts.next()?).ok()?.parse::<i64>().ok();
    let (Some(left), Some(length), Some(value)) = (number(), number(), parts.next()) else {
        return Err(Cause::Garbage("not what the script says".into()));
    };
    let remaining = u64::try_from(left).ok().map(Duration::from_millis);
    let length = usize::try_from(length).ok();
    let holder = length.and_then(|length| Holder::parse(value, length));
    Ok(match holder {
        Some(holder) => NodeState::Held { holder, remaining },
        None => NodeState::Foreign { remaining },
    })
}

/// What [`Redlock::inspect`] found.
#[derive(Clone, Debug)]
pub struct Inspection {
    nodes: Vec<(String, NodeState)>,
}

impl Inspection {
    /// What the answers of the nodes mean together.
    pub fn state(&self) -> LockState {
        let states: Vec<&NodeState> = self.nodes.iter().map(|(_, state)| state).collect();
        decide(&states)
    }

    /// The nodes, in the order of [`Redlock::new`]: index, address, answer.
    pub fn nodes(&self) -> impl Iterator<Item = (usize, &str, &NodeState)> {
        let nodes = self.nodes.iter().enumerate();
        nodes.map(|(node, (address, state))| (node, &**address, state))
    }
}

/// What the nodes' answers together say about a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LockState {
    /// A majority of the nodes has it for one holder.
    #[non_exhaustive]
    Held {
        /// Whose it is.
        holder: Holder,
        /// How long a majority will have it, if it is neither extended nor released. (Its holder relies on a little
        /// less.) `None`: it has no ttl, so this crate did not make it.
        remaining: Option<Duration>,
    },
    /// A majority of the nodes does not have it.
    Free,
    /// Neither of them: attempts collide at this moment, an attempt left keys on nodes that were then away, or the
    /// keys are not locks.
    #[non_exhaustive]
    Blocked {
        /// How long until a majority of the nodes is free, if nothing else happens. `None`: no end can be seen.
        remaining: Option<Duration>,
    },
    /// Too few nodes answered: the state depends on the others.
    Unknown,
}

/// What one node says about a lock.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum NodeState {
    /// It has the lock.
    #[non_exhaustive]
    Held {
        /// Whose it is.
        holder: Holder,
        /// How long the key is kept. `None`: it has no end.
        remaining: Option<Duration>,
    },
    /// It does not have the lock.
    Free,
    /// It has a key of this name that is no lock of this crate: not a string, or a string in which something other than
    /// a token and a label stands. Nothing of it is shown: it may be secret.
    #[non_exhaustive]
    Foreign {
        /// How long the key is kept. `None`: it has no end.
        remaining: Option<Duration>,
    },
    /// It could not be asked, or answered with an error.
    Failed(NodeErrors),
}

/// The holder of a lock, without the token that could release it. `Display` is the fingerprint, and the label if
/// there is one.
#[derive(Clone)]
pub struct Holder {
    token: Token,
    label: Option<Label>,
}

impl Holder {
    /// That of a lock's value, or of its first bytes, if it has `length`. `None`: it is other data.
    pub(crate) fn parse(value: &[u8], length: usize) -> Option<Holder> {
        let (token, label) = lock_value::parse(value, length)?;
        Some(Holder { token, label })
    }

    pub(crate) fn token(&self) -> &Token {
        &self.token
    }

    /// The fingerprint of the holder's token. The program that holds the lock gets the same from
    /// [`Token::fingerprint`](crate::Token::fingerprint).
    pub fn fingerprint(&self) -> Fingerprint {
        self.token.fingerprint()
    }

    /// The [label](crate::Options::label), if the holder gave its lock one.
    pub fn label(&self) -> Option<&str> {
        self.label.as_ref().map(Label::as_str)
    }
}

/// The same token.
impl PartialEq for Holder {
    fn eq(&self, other: &Holder) -> bool {
        self.token == other.token
    }
}

impl Eq for Holder {}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.fingerprint())?;
        match &self.label {
            Some(label) => write!(f, " ({})", label.as_str()),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Holder({self})")
    }
}

/// What the answers of all nodes come to.
fn decide(nodes: &[&NodeState]) -> LockState {
    let quorum = majority(nodes.len());
    let count = |is: fn(&NodeState) -> bool| nodes.iter().filter(|node| is(node)).count();
    let free = count(|node| matches!(node, NodeState::Free));
    let failed = count(|node| matches!(node, NodeState::Failed(_)));
    let holders = nodes.iter().filter_map(|node| match node {
        NodeState::Held { holder, .. } => Some(holder),
        _ => None,
    });
    // How long each node has it for this one.
    let of = |holder: &Holder| -> Vec<Duration> {
        let held = nodes.iter().filter_map(|node| match node {
            NodeState::Held {
                holder: other,
                remaining,
            } if other == holder => Some(remaining.unwrap_or(Duration::MAX)),
            _ => None,
        });
        held.collect()
    };
    let end = |time: Duration| Some(time).filter(|time| *time != Duration::MAX);
    let first = holders.max_by_key(|holder| of(holder).len());
    let mut most = first.map(of).unwrap_or_default();
    if let Some(holder) = first.filter(|_| most.len() >= quorum) {
        most.sort_unstable_by(|a, b| b.cmp(a));
        return LockState::Held {
            holder: holder.clone(),
            remaining: most.get(quorum - 1).copied().and_then(end),
        };
    }
    if free >= quorum {
        return LockState::Free;
    }
    if most.len().max(free) + failed >= quorum {
        return LockState::Unknown;
    }
    let mut kept: Vec<Duration> = nodes
        .iter()
        .filter_map(|node| match node {
            NodeState::Held { remaining, .. } | NodeState::Foreign { remaining } => {
                Some(remaining.unwrap_or(Duration::MAX))
            }
            _ => None,
        })
        .collect();
    kept.sort_unstable();
    LockState::Blocked {
        remaining: kept.get(quorum - free - 1).copied().and_then(end),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock_value::TOKEN;
    use crate::token::Token;

    const MS: Duration = Duration::from_millis(1);

    fn holder(token: u8) -> Holder {
        Holder {
            token: Token::from_bytes([token; TOKEN]),
            label: None,
        }
    }

    fn held(token: u8, remaining: Option<u32>) -> NodeState {
        NodeState::Held {
            holder: holder(token),
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

    /// All that `kinds` of answers can come to, for `count` nodes.
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

    /// Where nodes did not answer, what they could have said decides whether anything is known.
    #[test]
    fn what_is_said_is_certain_whatever_the_nodes_hold_that_did_not_answer() {
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
                        let same = |node: &&NodeState| matches!(node, NodeState::Held { holder: other, .. } if *other == holder(token));
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
                };
                assert_eq!(said, expected, "{nodes:?}");
            }
        }
    }

    #[test]
    fn what_remains_is_until_too_few_nodes_have_it_or_enough_are_free() {
        let lock = |remaining: Option<u32>| LockState::Held {
            holder: holder(1),
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

    #[test]
    fn replies_are_understood_and_none_makes_it_panic() {
        let bulk = |text: &[u8]| seen(Reply::Bulk(text.to_vec()));
        let value = [b"5000 20 ".as_slice(), &[7; TOKEN]].concat();
        let Ok(NodeState::Held { holder, remaining }) = bulk(&value) else {
            panic!("not held");
        };
        assert_eq!((holder.label(), remaining), (None, Some(5000 * MS)));
        assert_eq!(holder.to_string(), "07070707");
        let named = [
            b"-1 42 ".as_slice(),
            &[7; TOKEN],
            b"\0redlock:web-3:4711 \xC3\xA9",
        ]
        .concat();
        let Ok(NodeState::Held { holder, remaining }) = bulk(&named) else {
            panic!("not held");
        };
        assert_eq!((holder.label(), remaining), (Some("web-3:4711 é"), None));
        assert_eq!(format!("{holder:?}"), "Holder(07070707 (web-3:4711 é))");
        // Longer than what is read of it, or no label.
        for (length, rest) in [
            ("94", &b"\0redlock:abc"[..]),
            ("31", b"\0redlock:a\n"),
            ("30", b"\0redlock:\xFF"),
            ("23", b"abc"),
            ("x", b""),
        ] {
            let start = format!("1 {length} ");
            let found = bulk(&[start.as_bytes(), &[7; TOKEN], rest].concat());
            match found {
                Ok(NodeState::Foreign { .. }) => {}
                Err(Cause::Garbage(_)) => assert_eq!(length, "x"),
                other => panic!("{other:?}"),
            }
        }
        assert!(matches!(bulk(b"7 -1 "), Ok(NodeState::Foreign { .. })));
        assert!(matches!(bulk(b"7 2 ab"), Ok(NodeState::Foreign { .. })));
        for garbage in [
            &b""[..],
            b" ",
            b"1",
            b"1 2",
            b"1  ",
            b"\xFF 1 a",
            b"1 99999999999999999999 a",
        ] {
            assert!(
                matches!(bulk(garbage), Err(Cause::Garbage(_))),
                "{garbage:?}"
            );
        }
        assert!(matches!(seen(Reply::Nil), Ok(NodeState::Free)));
        assert!(matches!(seen(Reply::Int(1)), Err(Cause::Garbage(_))));
        let refused = seen(Reply::Error("NOPERM no".into()));
        assert!(matches!(refused, Err(Cause::Refused(_))));
    }
}
