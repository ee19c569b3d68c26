use std::sync::Arc;
use std::time::Duration;

use crate::errors::cause::Cause;
use crate::errors::error::Error;
use crate::errors::node_errors::{NodeError, NodeErrors};
use crate::errors::server_error::{Meaning, concerns_name, refuses_scripts};
use crate::lock::redlock::Redlock;
use crate::net::place::deployment::Place;
use crate::ops::holder::Holder;
use crate::ops::query::Query;
use crate::ops::state::{LockState, NodeState, decide};
use crate::ops::waiters::Waiters;
use crate::protocol::commands::dialect::{self, Dialect};
use crate::protocol::commands::resp::Reply;
use crate::protocol::commands::scripts::INSPECT;
use crate::values::lock_value;

const _: () = assert!(
    lock_value::MOST == 256 && lock_value::MOST_OF_MEMBER == 268,
    "INSPECT asks for these"
);

impl Redlock {
    /// Shows the holder of a lock, or the holders of a semaphore or of read locks, node by node, at this moment: for
    /// the investigation of problems. Do not use it to decide whether to take a lock: call
    /// [`try_acquire`](Redlock::try_acquire) for that.
    ///
    /// The call changes nothing, and uses its own connections, which end with it; each node has
    /// [`connect_timeout`](crate::Options::connect_timeout) to be connected (a set whose sentinels do not answer has
    /// two seconds more) and [`node_timeout`](crate::Options::node_timeout) to answer. It needs only the rights that
    /// locks need. Nodes that are kept from voting by the [restart guard](crate::Options::restart_guard) count here.
    ///
    /// A node shows those of many readers or permits that last longest: about 60,000 bytes of them, which are 500 to 1000.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for an empty or too long resource, and the name of a key [beside a
    /// lock](crate::guide::operations#names-of-keys). Nodes that do not answer are not an error, but part of the
    /// result.
    ///
    /// # Example
    ///
    /// ```no_run
    /// let redlock = redlock_sync::Redlock::new(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
    /// let inspection = redlock.inspect("shop:account:17")?;
    /// for (holder, remaining) in inspection.state().holders() {
    ///     println!("{holder}, for {remaining:?}");
    /// }
    /// for (node, address, answer) in inspection.nodes() {
    ///     println!("node {node} ({address}): {answer:?}");
    /// }
    /// # Ok::<(), redlock_sync::Error>(())
    /// ```
    pub fn inspect(&self, resource: impl AsRef<[u8]>) -> Result<Inspection, Error> {
        let resource = self.checked(resource)?;
        let key = self.options().prefix.key(&resource);
        let asked = key.to_vec();
        let answers = self.query_key(&key, move |query, asking| look(query, &asked, asking));
        let looked = answers
            .iter()
            .filter_map(|(_, answer)| answer.as_ref().ok());
        let waiters = looked.filter_map(|looked| looked.waiters.clone());
        let waiters = waiters.reduce(Waiters::and);
        let nodes = answers.into_iter().enumerate();
        let nodes = nodes.map(|(node, (place, answer))| inspected(node, &place, answer));
        Ok(Inspection {
            nodes: nodes.collect(),
            waiters,
        })
    }
}

/// The answer of a node.
struct Looked {
    state: NodeState,
    /// The processes that wait for the lock.
    waiters: Option<Waiters>,
    /// Milliseconds that the node's clock is ahead of ours.
    clock: Option<i64>,
    /// Whether the node may have left out holders.
    is_cut: bool,
}

fn inspected(node: usize, place: &Place, answer: Result<Looked, Cause>) -> Inspected {
    let address = place.shown().to_string();
    let clock = answer.as_ref().ok().and_then(|looked| looked.clock);
    let is_cut = answer.as_ref().is_ok_and(|looked| looked.is_cut);
    let state = answer.map(|looked| looked.state).unwrap_or_else(|cause| {
        let error = NodeError {
            node,
            address: address.as_str().into(),
            cause: Arc::new(cause),
        };
        NodeState::Failed(NodeErrors::new(vec![error], None))
    });
    Inspected {
        address,
        state,
        clock,
        is_cut,
    }
}

fn look(query: &mut Query, key: &[u8], asking: bool) -> Result<Looked, Cause> {
    let mut looked = look_at_lock(query, key, asking)?;
    // Only people want that.
    looked.clock = query.clock_offset().ok().flatten();
    Ok(looked)
}

/// The state of a lock on a node. No scripts are run if locks do without them. `asking`: the slot of the key is
/// migrating to the node.
fn look_at_lock(query: &mut Query, key: &[u8], asking: bool) -> Result<Looked, Cause> {
    let queue = Waiters::key(key);
    let inspect: &[&[u8]] = &[b"EVAL", INSPECT.text, b"1", key];
    let [reply, queue] = query.ask_each([inspect, &Waiters::question(&queue)], asking)?;
    let waiters = Waiters::of_reply(&queue);
    let is_cut = is_cut(&reply);
    let state = match reply {
        Reply::Error(text) if refuses_scripts(&text) && !concerns_name(&text) => {
            look_natively(query, key, asking, &text)?
        }
        reply => seen(reply)?,
    };
    Ok(Looked {
        state,
        waiters,
        clock: None,
        is_cut,
    })
}

/// The permits or readers that the script shows at most, and about how many bytes of them.
const MOST_SHOWN: usize = 1000;
const MOST_BYTES: usize = 60_000;

/// Whether the script's reply is as long as it can be, so that there may be more permits or readers.
fn is_cut(reply: &Reply) -> bool {
    let Reply::Array(items) = reply else {
        return false;
    };
    let size = |item: &Reply| match item {
        Reply::Bulk(bulk) => 8 + bulk.len(),
        _ => 0,
    };
    items.len() >= MOST_SHOWN || items.iter().map(size).sum::<usize>() >= MOST_BYTES
}

/// The state of a lock on a node that has refused the script.
fn look_natively(
    query: &mut Query,
    key: &[u8],
    asking: bool,
    refused: &str,
) -> Result<NodeState, Cause> {
    let trials = query.ask::<{ dialect::NATIVE.len() }>(&dialect::native_trials())?;
    if Dialect::without_scripts(refused, &trials).is_err() {
        return Err(Cause::refused(refused));
    }
    // One byte more than a lock's value can have: the value may be large.
    let last = lock_value::MOST.to_string();
    let [begin, left]: [&[&[u8]]; 2] =
        [&[b"GETRANGE", key, b"0", last.as_bytes()], &[b"PTTL", key]];
    let replies = query.ask_each([begin, left], asking)?;
    match replies {
        [Reply::Error(text), _] if Meaning::of(&text).concerns_rights() => {
            seen_natively(query.ask_each([&[b"GET", key], left], asking)?)
        }
        replies => seen_natively(replies),
    }
}

/// The state of a lock, by the beginning of its key's value and the ttl.
fn seen_natively([value, left]: [Reply; 2]) -> Result<NodeState, Cause> {
    let left = match left {
        Reply::Int(-2) => return Ok(NodeState::Free),
        Reply::Int(left) => left,
        Reply::Error(text) => return Err(Cause::refused(&text)),
        other => return Err(Cause::Garbage(other.kind().into())),
    };
    let value = match value {
        Reply::Bulk(value) => value,
        Reply::Nil => return Ok(NodeState::Free),
        // The value is no lock's, and must not be shown.
        Reply::Error(text) if Meaning::of(&text) == Meaning::WrongType => Vec::new(),
        Reply::Error(text) => return Err(Cause::refused(&text)),
        other => return Err(Cause::Garbage(other.kind().into())),
    };
    Ok(held(left, Some(value.len()), &value))
}

/// The state of a lock whose key has this ttl, and a value of this length that begins so.
fn held(left: i64, length: Option<usize>, value: &[u8]) -> NodeState {
    let remaining = u64::try_from(left).ok().map(Duration::from_millis);
    match length.and_then(|length| Holder::parse(value, length)) {
        Some(holder) => NodeState::Held { holder, remaining },
        None => NodeState::Foreign { remaining },
    }
}

/// The state of a lock, by the script's reply.
fn seen(reply: Reply) -> Result<NodeState, Cause> {
    let bulk = match reply {
        Reply::Nil => return Ok(NodeState::Free),
        Reply::Bulk(bulk) => bulk,
        Reply::Array(items) => return seen_members(&items),
        Reply::Error(text) => return Err(Cause::refused(&text)),
        other => return Err(Cause::Garbage(other.kind().into())),
    };
    let mut parts = bulk.splitn(3, |byte| *byte == b' ');
    let mut number = || str::from_utf8(parts.next()?).ok()?.parse::<i64>().ok();
    let (Some(left), Some(length), Some(value)) = (number(), number(), parts.next()) else {
        return Err(Cause::Garbage(
            "unexpected reply: a lock's ttl, length and value were expected".into(),
        ));
    };
    Ok(held(left, usize::try_from(length).ok(), value))
}

/// The state of permits or readers, by the script's reply.
fn seen_members(items: &[Reply]) -> Result<NodeState, Cause> {
    let garbage =
        || Cause::Garbage("unexpected reply: holders, each with its ttl, were expected".into());
    let mut last = Duration::ZERO;
    let mut holders = Vec::new();
    for item in items {
        let Reply::Bulk(bulk) = item else {
            return Err(garbage());
        };
        let (holder, left) = member(bulk).ok_or_else(garbage)?;
        last = last.max(left);
        // Members that were added by hand are left out.
        holders.extend(holder.map(|holder| (holder, left)));
    }
    let readers = holders.iter().any(|(holder, _)| holder.is_reader());
    holders.retain(|(holder, _)| holder.is_reader() == readers);
    holders.sort_by_key(|(holder, _)| holder.slot());
    Ok(match (holders.is_empty(), readers) {
        (true, _) => NodeState::Foreign {
            remaining: Some(last),
        },
        (false, true) => NodeState::Readers { holders },
        (false, false) => NodeState::Permits { holders },
    })
}

/// The holder, if the member is one, and how long the member is kept, by one string of [`INSPECT`].
pub(crate) fn member(bulk: &[u8]) -> Option<(Option<Holder>, Duration)> {
    let at = bulk.iter().position(|byte| *byte == b' ')?;
    let (left, member) = (bulk.get(..at)?, bulk.get(at + 1..)?);
    let left = str::from_utf8(left).ok()?.parse().ok()?;
    Some((Holder::of_member(member), Duration::from_millis(left)))
}

/// The result of [`Redlock::inspect`].
#[derive(Clone, Debug)]
pub struct Inspection {
    nodes: Vec<Inspected>,
    waiters: Option<Waiters>,
}

#[derive(Clone, Debug)]
struct Inspected {
    address: String,
    state: NodeState,
    clock: Option<i64>,
    is_cut: bool,
}

impl Inspection {
    /// Whether a node may have left out permits or readers.
    #[cfg_attr(not(any(feature = "capi", feature = "cli")), allow(dead_code))]
    pub(crate) fn is_cut(&self) -> bool {
        self.nodes.iter().any(|node| node.is_cut)
    }

    /// Why nodes could not be asked.
    #[cfg(feature = "capi")]
    pub(crate) fn errors(&self) -> NodeErrors {
        let failed = self.nodes.iter().filter_map(|node| match &node.state {
            NodeState::Failed(errors) => Some(errors.clone().into_each()),
            _ => None,
        });
        crate::ops::query::look_errors(failed.flatten().collect(), self.nodes.len())
    }

    /// The state of the lock, by the answers of all nodes together.
    pub fn state(&self) -> LockState {
        let states: Vec<&NodeState> = self.nodes.iter().map(|node| &node.state).collect();
        decide(&states)
    }

    /// How many processes wait for the lock: on the node that has most of them in its queue, at most 300. One that has
    /// died counts until a release finds that. `None`: no node's queue can be read.
    pub fn waiting(&self) -> Option<usize> {
        self.waiters.as_ref().map(Waiters::count)
    }

    /// How long the first of these has waited, by the clocks of the nodes and of this machine. `None`: none waits.
    pub fn longest_wait(&self) -> Option<Duration> {
        self.waiters.as_ref().and_then(Waiters::longest)
    }

    /// The [labels](crate::Options::label) of these, in the order of arrival; those that have none are left out.
    pub fn waiting_labels(&self) -> impl Iterator<Item = &str> {
        self.waiters.iter().flat_map(Waiters::labels)
    }

    /// The nodes, in the order of [`Redlock::new`]: index, address, answer.
    pub fn nodes(&self) -> impl Iterator<Item = (usize, &str, &NodeState)> {
        let nodes = self.nodes.iter().enumerate();
        nodes.map(|(at, node)| (at, &*node.address, &node.state))
    }

    /// How far the clock of a node, which has this index, is ahead of this machine's, in milliseconds; negative: behind.
    /// `None`: the node does not report it. A clock that was [set
    /// forward](crate::guide::guarantees#a-nodes-clock-that-is-set-forward) has ended locks early.
    pub fn clock_offset_ms(&self, node: usize) -> Option<i64> {
        self.nodes.get(node)?.clock
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::lock_value::TOKEN;

    const MS: Duration = Duration::from_millis(1);

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
            b"-1 47 ".as_slice(),
            &[7; TOKEN],
            b"\0redlock:12345web-3:4711 \xC3\xA9",
        ]
        .concat();
        let Ok(NodeState::Held { holder, remaining }) = bulk(&named) else {
            panic!("not held");
        };
        assert_eq!((holder.label(), remaining), (Some("web-3:4711 é"), None));
        assert_eq!(format!("{holder:?}"), "Holder(07070707 (web-3:4711 é))");
        // Longer than the part that is read, or no label.
        for (length, rest) in [
            ("257", &b"\0redlock:12345abc"[..]),
            ("36", b"\0redlock:12345a\n"),
            ("35", b"\0redlock:12345\xFF"),
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
        assert!(matches!(
            seen(Reply::Array(vec![Reply::Int(1)])),
            Err(Cause::Garbage(_))
        ));
        assert!(matches!(
            seen(Reply::Array(vec![Reply::Bulk(b"1x".to_vec())])),
            Err(Cause::Garbage(_))
        ));
        let refused = seen(Reply::Error("NOPERM no".into()));
        assert!(matches!(refused, Err(Cause::Refused(_))));
    }

    #[test]
    fn a_reply_that_is_as_long_as_it_can_be_may_lack_holders() {
        let item = |len| Reply::Bulk(vec![b'1'; len]);
        let items = |count, len| Reply::Array((0..count).map(|_| item(len)).collect());
        for (count, len, cut) in [
            (0, 0, false),
            (999, 40, false),
            (1000, 40, true),
            (599, 92, false),
            (600, 92, true),
        ] {
            assert_eq!(is_cut(&items(count, len)), cut, "{count} of {len} bytes");
        }
        assert!(!is_cut(&Reply::Nil) && !is_cut(&Reply::Array(vec![Reply::Nil])));
        for bound in [
            format!("-{MOST_SHOWN}, -1,"),
            format!("size < {MOST_BYTES} "),
        ] {
            assert!(
                String::from_utf8_lossy(INSPECT.text).contains(&bound),
                "{bound}"
            );
        }
    }

    #[test]
    fn a_value_and_a_ttl_lead_to_the_same_state_as_the_script() {
        let seen = |value: Reply, left: i64| seen_natively([value, Reply::Int(left)]);
        let value = |rest: &[u8]| Reply::Bulk([&[7; TOKEN], rest].concat());
        let Ok(NodeState::Held { holder, remaining }) = seen(value(b"\0redlock:12345web-3"), 5000)
        else {
            panic!("not held");
        };
        assert_eq!(
            (holder.label(), remaining),
            (Some("web-3"), Some(5000 * MS))
        );
        let endless = seen(value(b""), -1);
        assert!(matches!(
            endless,
            Ok(NodeState::Held {
                remaining: None,
                ..
            })
        ));
        let wrong_type = || Reply::Error("WRONGTYPE Operation against a key".into());
        // Longer than any lock's value.
        let long = value(&[&b"\0redlock:12345"[..], &[b'a'; 65]].concat());
        for foreign in [Reply::Bulk(b"text".to_vec()), long, wrong_type()] {
            let found = seen(foreign, 7);
            assert!(
                matches!(found, Ok(NodeState::Foreign { remaining }) if remaining == Some(7 * MS))
            );
        }
        for (value, left) in [
            (Reply::Bulk(Vec::new()), -2),
            (Reply::Nil, -2),
            (Reply::Nil, 5),
        ] {
            assert!(matches!(seen(value, left), Ok(NodeState::Free)));
        }
        let refused = || Reply::Error("NOPERM no".into());
        for replies in [[refused(), Reply::Int(5)], [value(b""), refused()]] {
            assert!(matches!(seen_natively(replies), Err(Cause::Refused(_))));
        }
        for replies in [[Reply::Int(5), Reply::Int(5)], [value(b""), Reply::Nil]] {
            assert!(matches!(seen_natively(replies), Err(Cause::Garbage(_))));
        }
    }

    #[test]
    fn permits_and_readers_are_listed_and_what_was_added_by_hand_is_not() {
        let one = |left: &str, head: &str, token: u8| {
            let member = [head.as_bytes(), &[token; TOKEN]].concat();
            Reply::Bulk([left.as_bytes(), b" ", &member].concat())
        };
        let shown = |items: Vec<Reply>| match seen(Reply::Array(items)).unwrap() {
            NodeState::Permits { holders } => ("permits", texts(&holders)),
            NodeState::Readers { holders } => ("readers", texts(&holders)),
            NodeState::Foreign { remaining } => ("foreign", vec![format!("{remaining:?}")]),
            other => panic!("{other:?}"),
        };
        fn texts(holders: &[(Holder, Duration)]) -> Vec<String> {
            let text = |(holder, left): &(Holder, Duration)| format!("{holder}, {left:?}");
            holders.iter().map(text).collect()
        }
        let damaged = || Reply::Bulk(b"9 by hand".to_vec());
        let permits = vec![
            one("7", "redlock:s002", 1),
            damaged(),
            one("5", "redlock:s000", 2),
        ];
        let expected = ["02020202 in slot 0, 5ms", "01010101 in slot 2, 7ms"];
        assert_eq!(
            shown(permits),
            ("permits", expected.map(str::to_owned).to_vec())
        );
        let readers = vec![one("7", "redlock:r000", 1), one("5", "redlock:r000", 2)];
        let expected = ["01010101 reading, 7ms", "02020202 reading, 5ms"];
        assert_eq!(
            shown(readers),
            ("readers", expected.map(str::to_owned).to_vec())
        );
        assert_eq!(
            shown(vec![damaged()]),
            ("foreign", vec!["Some(9ms)".to_owned()])
        );
    }
}
