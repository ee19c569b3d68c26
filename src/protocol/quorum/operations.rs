//! The operations under way.

// OK because free entries are given up only at the end, and an index that was kept is checked by `open` first.
#![allow(clippy::indexing_slicing)]

use std::ops::{Index, IndexMut};
use std::time::Instant;

use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::node::pending::OperationId;
use crate::protocol::quorum::late_grants::LateGrants;
use crate::protocol::quorum::notified::NotifiedElsewhere;
use crate::protocol::quorum::op::Op;
use crate::protocol::quorum::operation::{Operation, Phase};
use crate::protocol::quorum::view::View;
use crate::values::node_set::NodeSet;
use crate::values::prefix::Prefix;

/// The number of entries that are kept for operations to come.
const KEPT: usize = 64;

/// `W`: the caller that waits for an answer.
pub(crate) struct Operations<W> {
    entries: Vec<Operation<W>>,
    submitted: u64,
    /// The prefix that the commands are packed with.
    pub(crate) prefix: Prefix,
    pub(crate) notified_elsewhere: NotifiedElsewhere,
    pub(crate) late: LateGrants,
}

impl<W> Operations<W> {
    pub(crate) fn new(prefix: Prefix) -> Operations<W> {
        Operations {
            entries: Vec::new(),
            submitted: 0,
            prefix,
            notified_elsewhere: NotifiedElsewhere::default(),
            late: LateGrants::default(),
        }
    }

    /// The operation of an index, and the prefix.
    pub(crate) fn with_prefix(&mut self, index: usize) -> (&mut Operation<W>, &Prefix) {
        (&mut self.entries[index], &self.prefix)
    }

    /// Whether a release that came late has notified a process that the lock of this acquire is free. Reported once.
    pub(crate) fn take_notified(&mut self, index: usize) -> bool {
        let operation = &self.entries[index];
        operation.is_acquire() && self.notified_elsewhere.take(&operation.op.key.resource)
    }

    /// Adds an operation. Returns its index.
    pub(crate) fn submit(&mut self, op: Op, caller: W, now: Instant) -> usize {
        self.submitted += 1;
        let is_free = |operation: &Operation<W>| !operation.is_under_way();
        let free = self.entries.iter().position(is_free);
        let new = |bytes| Operation::new(self.submitted, op, caller, &self.prefix, bytes, now);
        match free {
            Some(index) => {
                let entry = &mut self.entries[index];
                *entry = new(std::mem::take(&mut entry.bytes));
                index
            }
            None => {
                self.entries.push(new(Vec::new()));
                self.entries.len() - 1
            }
        }
    }

    /// All entries, which may be free.
    pub(crate) fn indices(&self) -> std::ops::Range<usize> {
        0..self.entries.len()
    }

    /// Gives up free entries after many operations at a time: each survey goes through all entries.
    pub(crate) fn shrink(&mut self) {
        let is_free = |last: &Operation<W>| !last.is_under_way();
        while self.entries.len() > KEPT && self.entries.last().is_some_and(is_free) {
            self.entries.pop();
        }
    }

    pub(crate) fn under_way(&self) -> impl Iterator<Item = &Operation<W>> {
        let operations = self.entries.iter();
        operations.filter(|operation| operation.is_under_way())
    }

    pub(crate) fn all_mut(&mut self) -> impl Iterator<Item = &mut Operation<W>> {
        self.entries.iter_mut()
    }

    /// The operations for whose verdict a caller waits.
    pub(crate) fn open_mut(&mut self) -> impl Iterator<Item = &mut Operation<W>> {
        self.all_mut().filter(|operation| operation.is_open())
    }

    /// The index of an operation that is still open to votes.
    pub(crate) fn open(&self, id: OperationId) -> Option<usize> {
        let operation = self.entries.get(id.index)?;
        let same = operation.number == id.number || mutant(Mutant::ReplyToAnyOperation);
        let open = operation.phase == Phase::Open || mutant(Mutant::YesAfterUndo);
        (same && open).then_some(id.index)
    }

    /// The caller that has waited longest for an answer.
    pub(crate) fn longest_waiting(&self) -> Option<&W> {
        let oldest = self.under_way().min_by_key(|operation| operation.number);
        oldest?.caller.as_ref()
    }
}

/// The needs of the operations under way.
pub(crate) struct Wants {
    /// Nodes that something must be sent to.
    pub(crate) send: NodeSet,
    /// Nodes that callers wait for.
    pub(crate) owing: NodeSet,
    /// Nodes that are not connected, and without which there are too few.
    pub(crate) lacking: NodeSet,
    /// When the first operation's time ends.
    pub(crate) ends: Instant,
    pub(crate) open: bool,
    /// Whether the answers to an operation count only if a master gives them.
    pub(crate) master: bool,
}

impl Wants {
    /// The needs of no operation. `ends`: when the next survey is made at the latest.
    pub(crate) fn new(ends: Instant) -> Wants {
        Wants {
            send: NodeSet::EMPTY,
            owing: NodeSet::EMPTY,
            lacking: NodeSet::EMPTY,
            ends,
            open: false,
            master: false,
        }
    }

    /// Adds the needs of an operation. `to_send`: the nodes that it is sent to now. `first`: until when it waits for
    /// first connections.
    pub(crate) fn add<W>(
        &mut self,
        operation: &Operation<W>,
        to_send: NodeSet,
        first: Option<Instant>,
        view: &View,
    ) {
        self.open = true;
        self.master |= operation.needs_master();
        self.send = self.send.or(to_send);
        if operation.is_open() {
            self.owing = self.owing.or(operation.owing());
            self.ends = self.ends.min(operation.waits_until(first));
            self.lacking = self.lacking.or(operation.lacking(to_send, view));
        }
    }
}

impl<W> Index<usize> for Operations<W> {
    type Output = Operation<W>;

    fn index(&self, index: usize) -> &Operation<W> {
        &self.entries[index]
    }
}

impl<W> IndexMut<usize> for Operations<W> {
    fn index_mut(&mut self, index: usize) -> &mut Operation<W> {
        &mut self.entries[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::fixtures::{MS, key, ttl};
    use crate::protocol::commands::action::{Action, Notify};
    use crate::protocol::node::debt::Debt;
    use crate::values::clock;

    #[test]
    fn only_an_acquire_of_its_resource_reports_a_notification_elsewhere() {
        let mut operations = Operations::new(Prefix::default());
        let mut submit = |action, name| {
            let op = Op::new(action, key(name));
            operations.submit(op, (), clock::instant())
        };
        let release = submit(Action::Release(Notify::None), b"a");
        let other = submit(Action::Acquire(ttl(1000 * MS)), b"b");
        let acquire = submit(Action::Acquire(ttl(1000 * MS)), b"a");
        let notified = Debt::release(key(b"a"));
        operations.notified_elsewhere.add(Some(&notified));
        for (index, expected) in [
            (release, false),
            (other, false),
            (acquire, true),
            (acquire, false),
        ] {
            assert_eq!(operations.take_notified(index), expected, "{index}");
        }
    }

    /// The next one has the same index.
    #[test]
    fn an_answer_to_an_operation_that_has_ended_is_no_other_one_s() {
        let (mut operations, now) = (Operations::new(Prefix::default()), clock::instant());
        let begin = |operations: &mut Operations<u8>, caller| {
            let op = Op::new(Action::Acquire(ttl(1000 * MS)), key(b"a"));
            let index = operations.submit(op, caller, now);
            let number = operations[index].number;
            OperationId { index, number }
        };
        let [first, second] = [1, 2].map(|caller| begin(&mut operations, caller));
        assert_eq!(operations.longest_waiting(), Some(&1));
        operations[first.index].phase = Phase::Free;
        let third = begin(&mut operations, 3);
        assert_eq!(third.index, first.index);
        assert_eq!(operations.open(first), None);
        assert_eq!(operations.open(second), Some(second.index));
        assert_eq!(operations.open(third), Some(third.index));
        assert_eq!(operations.longest_waiting(), Some(&2));
    }

    #[test]
    fn free_slots_behind_the_last_operation_are_given_up_beyond_a_number() {
        let mut operations = Operations::new(Prefix::default());
        for _ in 0..KEPT + 3 {
            let op = Op::new(Action::Release(Notify::None), key(b"a"));
            operations.submit(op, (), clock::instant());
        }
        operations.shrink();
        assert_eq!(operations.indices().len(), KEPT + 3);
        operations[KEPT + 2].phase = Phase::Free;
        operations[KEPT].phase = Phase::Free;
        operations.shrink();
        assert_eq!(operations.indices().len(), KEPT + 2);
        operations.all_mut().for_each(|one| one.phase = Phase::Free);
        operations.shrink();
        assert_eq!(operations.indices().len(), KEPT);
    }
}
