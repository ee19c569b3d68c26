use std::sync::Arc;
use std::time::Duration;

use crate::errors::cause::Cause;
use crate::errors::error::Error;
use crate::errors::node_errors::{NodeError, NodeErrors};
use crate::errors::server_error::{Meaning, concerns_name, refuses_scripts};
use crate::lock::redlock::Redlock;
use crate::net::discovery::place::Place;
use crate::ops::inspect_reply::{is_cut, seen, seen_natively};
use crate::ops::query::Query;
use crate::ops::state::{LockState, NodeState, decide};
use crate::ops::waiters::Waiters;
use crate::protocol::commands::dialect::{self, Dialect};
use crate::protocol::commands::resp::Reply;
use crate::protocol::commands::scripts::{INSPECT, WAITERS};
use crate::values::lock_value;

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
    let (lock, queue): (&[&[u8]], &[&[u8]]) = (&[key], &[&queue]);
    let [reply, queue] = query.ask_scripts([(&INSPECT, lock), (&WAITERS, queue)], asking)?;
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
