//! Permits of which a node's answer comes behind the verdict.

use std::time::Instant;

use crate::protocol::commands::action::{Action, Key};
use crate::protocol::commands::kind::Kind;
use crate::protocol::commands::resp::Reply;
use crate::protocol::commands::vote::Vote;
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::node::debt::Debt;
use crate::protocol::node::pending::OperationId;
use crate::values::arithmetic::Ttl;
use crate::values::node_set::NodeSet;

/// A permit that was acquired before all nodes had answered.
pub(crate) struct LateGrant {
    /// The number of the acquire, which has ended.
    number: u64,
    /// The lock's key, with the slot that was acquired.
    key: Key,
    /// The nodes whose answers are still to come.
    nodes: NodeSet,
    /// When the acquire ended.
    ended: Instant,
}

/// The permits that were acquired before all nodes had answered. A slot that one of these grants, and that is not the
/// acquired one, counts for nothing and is released (rule R47).
#[derive(Default)]
pub(crate) struct LateGrants(Vec<LateGrant>);

impl LateGrants {
    /// Adds the acquire with this number, which these nodes have not answered yet.
    pub(crate) fn add(&mut self, number: u64, key: Key, nodes: NodeSet, ended: Instant) {
        if !mutant(Mutant::LateSlotStays) {
            self.0.push(LateGrant {
                number,
                key,
                nodes,
                ended,
            });
        }
    }

    /// Takes what a node's answer to this acquire is read with, if it is one that has ended.
    pub(crate) fn take(&mut self, id: OperationId, node: usize) -> Option<Key> {
        let is_it = |one: &LateGrant| one.number == id.number && one.nodes.has(node);
        let at = self.0.iter().position(is_it)?;
        let late = self.0.get_mut(at)?;
        late.nodes.remove(node);
        match late.nodes.is_empty() {
            true => Some(self.0.swap_remove(at).key),
            false => Some(late.key.clone()),
        }
    }

    /// Notes that a node's connection has ended: nobody learns what it would have answered. The first extension finds the
    /// permit in whichever slot it is (rule R48).
    pub(crate) fn severed(&mut self, node: usize) {
        self.0.retain_mut(|late| {
            late.nodes.remove(node);
            !late.nodes.is_empty()
        });
    }

    /// Since when the answers of these nodes are waited for.
    pub(crate) fn since(&self, nodes: NodeSet) -> Option<Instant> {
        let late = self.0.iter();
        let late = late.filter(|late| !late.nodes.and(nodes).is_empty());
        late.map(|late| late.ended).min()
    }
}

/// The release of the slot that a node has granted, if that is not the acquired one.
pub(crate) fn stray(key: Key, node: usize, reply: Reply) -> Option<Debt> {
    let Vote::Granted(number) = Action::Acquire(Ttl::MIN).vote(&key, reply) else {
        return None;
    };
    let index = u16::try_from(number.checked_sub(1)?).ok()?;
    let is_stray = key.kind.slot() != Some(index);
    let release = key.of_kind(Kind::Stray(index));
    is_stray.then(|| Debt::release(release.sent_to(std::iter::once(node).collect())))
}
