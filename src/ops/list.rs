//! The locks on the nodes, and what is wrong with them. All decisions are in `found_locks`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread::sleep;

use crate::errors::cause::Cause;
use crate::errors::error::Error;
use crate::errors::node_errors::NodeError;
use crate::lock::redlock::Redlock;
use crate::net::discovery::ask_each::SendPart;
use crate::net::discovery::place::Place;
use crate::ops::found_locks::{FoundKey, ListedLock, NodeScan};
use crate::ops::query::Query;
use crate::ops::scan::{Page, ScannedKey, What, scan};
use crate::values::arithmetic::majority;
use crate::values::node_set::NodeSet;
use crate::values::prefix::Prefix;

/// The time for a page, in node timeouts: a page takes two questions, four if there are sets, and more to answer than a
/// lock.
const TIMEOUTS: u32 = 4;
/// How often a leftover must be seen as one. Each look may meet a lock that is being taken or released; but a token is
/// taken once and released once.
const LOOKS: u32 = 3;

impl Redlock {
    /// Lists the locks on the nodes, and what is wrong with them: to find leftovers by hand, and for monitoring.
    ///
    /// Each [permit](crate::Redlock::semaphore) and each [read lock](crate::Redlock::read_lock) is a separate lock, and
    /// so is each name of a lock on several.
    ///
    /// Without a pattern: all keys whose values look like locks of this crate. With a pattern (a glob of Redis' `SCAN`,
    /// such as `shop:*`): all keys that it matches, except those that this crate keeps beside its locks.
    ///
    /// With a [prefix](crate::Options::prefix) only the keys that begin with it are read; the pattern and the names
    /// that are listed are without it. Keys that the user may not read are left out, and not counted.
    ///
    /// The call reads all keys by `SCAN`, `DBSIZE`, `GETRANGE`, `PTTL`, `ZRANGE` and `EVAL`, a thousand at a time, and changes
    /// nothing. It uses its own connections, to all nodes in parallel, and in a Redis Cluster to one master after the
    /// other. Each has [`connect_timeout`](crate::Options::connect_timeout) to be connected and four times
    /// [`node_timeout`](crate::Options::node_timeout) for each thousand keys. If a lock is on a minority of the nodes,
    /// all are asked twice more, each time after two `node_timeout`s: it may be about to be taken or released.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for an empty pattern, which matches nothing. Nodes that do not answer are not an error, but
    /// [part of the result](Listing::failed).
    ///
    /// # Example
    ///
    /// ```no_run
    /// let redlock = redlock_sync::Redlock::new(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
    /// for lock in redlock.list(None)?.locks() {
    ///     if let Some(problem) = lock.problem() {
    ///         println!("{problem}: {}", lock.name().escape_ascii());
    ///     }
    /// }
    /// # Ok::<(), redlock_sync::Error>(())
    /// ```
    pub fn list(&self, pattern: Option<&str>) -> Result<Listing, Error> {
        list(self, pattern.map(str::as_bytes), &mut |_| {})
    }
}

/// Like [`Redlock::list`]. `progress` is called with the number of keys looked at so far.
pub(crate) fn list(
    redlock: &Redlock,
    pattern: Option<&[u8]>,
    progress: &mut dyn FnMut(usize),
) -> Result<Listing, Error> {
    if pattern.is_some_and(<[u8]>::is_empty) {
        let text = "the pattern is empty, and matches nothing: \"*\" matches all keys";
        return Err(Error::config(text));
    }
    let nodes = redlock.places();
    let node_timeout = redlock.timeouts().node;
    let mut found = FoundKey::new(nodes.len());
    let mut keys = 0;
    let mut look = |what: What, asked: NodeSet| {
        let mut found: Vec<Vec<ScannedKey>> = vec![Vec::new(); nodes.len()];
        let part = |node: usize, (seen, mut page): Page| {
            keys += seen;
            progress(keys);
            if let Some(keys) = found.get_mut(node) {
                keys.append(&mut page);
            }
        };
        let ask = move |query: &mut Query, send: SendPart<'_, Page>| scan(query, &what, send);
        let places = (nodes.iter().cloned().enumerate()).filter(|(node, _)| asked.has(*node));
        let ends = redlock.query_in_parts(places, TIMEOUTS, ask, part);
        let answer = |(node, keys)| (node, Ok(keys));
        let mut answers: BTreeMap<usize, NodeScan> =
            found.into_iter().enumerate().map(answer).collect();
        for (node, end) in ends {
            if let Err(cause) = end {
                answers.insert(node, Err(cause));
            }
        }
        answers
    };
    let what = What::keys(&redlock.options().prefix, pattern);
    found.add(look(what, NodeSet::ALL));
    for _ in 1..LOOKS {
        let names = found.suspects();
        if names.is_empty() || !found.has_majority() {
            break;
        }
        // By then, locks that were being taken or released are taken or released.
        sleep(node_timeout.saturating_mul(2));
        let answers = look(What::Names(names), found.answered());
        found.look_again(answers);
    }
    let failed = found.failed.iter();
    Ok(Listing {
        nodes: nodes.len(),
        prefix: redlock.options().prefix.clone(),
        keys,
        failed: failed.map(|failed| failure(&nodes, failed)).collect(),
        locks: found.listed(&redlock.options().prefix),
    })
}

fn failure(nodes: &[Place], (node, cause): (&usize, &Cause)) -> NodeError {
    let place = nodes.get(*node);
    let address = place.map_or_else(String::new, |place| place.shown().to_string());
    NodeError {
        node: *node,
        address: address.into(),
        cause: Arc::new(cause.clone()),
    }
}

/// The result of [`Redlock::list`].
#[derive(Clone, Debug)]
pub struct Listing {
    nodes: usize,
    prefix: Prefix,
    keys: usize,
    failed: Vec<NodeError>,
    locks: Vec<ListedLock>,
}

impl Listing {
    /// The locks, by name. With a pattern: the keys that it matches.
    pub fn locks(&self) -> impl Iterator<Item = &ListedLock> {
        self.locks.iter()
    }

    /// The nodes that could not be read to the end.
    pub fn failed(&self) -> impl Iterator<Item = &NodeError> {
        self.failed.iter()
    }

    /// Whether a majority of the nodes was read. Otherwise locks may be missing.
    pub fn has_majority(&self) -> bool {
        self.nodes.saturating_sub(self.failed.len()) >= majority(self.nodes)
    }

    /// How many nodes there are.
    pub fn node_count(&self) -> usize {
        self.nodes
    }

    /// The text before the names on the nodes: the [prefix](crate::Options::prefix).
    pub fn prefix(&self) -> &str {
        self.prefix.as_str()
    }

    /// How many keys were looked at, on all nodes together.
    pub fn key_count(&self) -> usize {
        self.keys
    }
}
