//! The bytes that are sent to the nodes.

// OK because nodes are never removed, and operations only while nothing refers to them.
#![allow(clippy::indexing_slicing)]

use std::time::Instant;

use crate::protocol::commands::action::Action;
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::node::outgoing::{Outgoing, Output};
use crate::protocol::node::pending::{Awaited, OperationId, Pending, SentCommand};
use crate::protocol::quorum::core::Core;
use crate::protocol::quorum::op::Op;
use crate::values::node_set::NodeSet;

impl<W> Core<W> {
    /// Collects the output for these nodes, the nearest first.
    pub(crate) fn output(&mut self, mut nodes: NodeSet, out: &mut Outgoing, now: Instant) {
        out.clear();
        self.choose_operations(nodes, out, now);
        let is_steady = self.is_steady(now);
        let mut written = NodeSet::EMPTY;
        while !nodes.is_empty() {
            let node = self.reader.nearest(nodes);
            nodes.remove(node);
            if self.output_to(node, is_steady, out, now) {
                written.add(node);
            }
            out.parts.push((node, out.bytes.len()));
        }
        self.undo_written(written);
    }

    /// Chooses the operations to send to one of these nodes. Releases come first, or a lock that is free already would
    /// be denied.
    fn choose_operations(&self, nodes: NodeSet, out: &mut Outgoing, now: Instant) {
        let view = self.view(now);
        let nodes = nodes.and(view.connected);
        if nodes.is_empty() {
            return;
        }
        for releases in [true, false] {
            for index in self.operations.indices() {
                let operation = &self.operations[index];
                if operation.is_release() == releases {
                    let to_send = operation.to_send(&view, now).and(nodes);
                    out.operations
                        .extend((!to_send.is_empty()).then_some((index, to_send)));
                }
            }
        }
    }

    /// Appends the bytes for one node. Returns whether all its releases are among them. `is_steady`: the node is owed
    /// nothing, and not pinged.
    fn output_to(
        &mut self,
        node_index: usize,
        is_steady: bool,
        outgoing: &mut Outgoing,
        now: Instant,
    ) -> bool {
        let Outgoing {
            bytes, operations, ..
        } = outgoing;
        let start = bytes.len();
        let mut out = Output { bytes, start, now };
        let node = &mut self.nodes[node_index];
        let all = is_steady
            || node.ping(&mut out)
            || mutant(Mutant::ReleasesLast)
            || node.write_releases(&self.operations.prefix, &mut out);
        if all && !is_steady && node.retries(now) {
            node.write_deferred(&self.operations.prefix, &mut out);
        }
        if is_steady || all && node.is_connected() {
            self.reader.sent();
            let here = operations.iter().filter(|(_, nodes)| nodes.has(node_index));
            here.for_each(|(index, _)| self.write_operation(node_index, *index, &mut out));
            let prefix = &self.operations.prefix;
            self.nodes[node_index].wire_mut().prove(prefix, &mut out);
        }
        let node = &mut self.nodes[node_index];
        if mutant(Mutant::ReleasesLast) {
            node.write_releases(&self.operations.prefix, &mut out);
        }
        node.sending(&out);
        if node.wire().wants_probe() {
            self.all.steady_until = None;
        }
        all
    }

    /// Appends an operation for a node.
    fn write_operation(&mut self, node_index: usize, index: usize, out: &mut Output<'_>) {
        let (operation, prefix) = self.operations.with_prefix(index);
        let node = &mut self.nodes[node_index];
        operation.sent_to.add(node_index);
        let (number, mut owed) = (operation.number, operation.debt());
        let shortens = matches!(operation.op.action, Action::Shorten(_));
        let late = owed
            .as_mut()
            .filter(|_| shortens)
            .map(|owed| owed.due(out.now));
        let Op {
            action, key, named, ..
        } = &operation.op;
        if named.is_some() && !mutant(Mutant::RedirectWithoutAsking) {
            node.wire_mut().write_asking(out);
        }
        // The time that a shortening leaves has begun with the operation.
        let action = late.as_ref().unwrap_or(action);
        let loads = action.loads(key);
        let dialect = node.wire_mut().dialect(loads, key);
        let alone = operation.op.only_write || shortens;
        let command = SentCommand {
            operation: Some(OperationId { index, number }),
            debt: owed,
            awaited: match alone {
                true => Awaited::ByNone,
                false => Awaited::ByOperation,
            },
            named: dialect.names_companions(action, key, prefix),
            loads: loads.is_some(),
            needs: action.needs(),
        };
        node.wire_mut().expect(Pending::Command(command), out);
        if late.is_none() && dialect.is_usual(action) {
            out.bytes.extend_from_slice(&operation.bytes);
        } else {
            action.pack(key, prefix, dialect, out.bytes);
        }
        node.write_deferred(prefix, out);
    }

    /// Notes that the releases for these nodes are written, or their connections are finished.
    pub(super) fn undo_written(&mut self, nodes: NodeSet) {
        for operation in self.operations.all_mut() {
            operation.undo_to = operation.undo_to.without(nodes);
        }
    }
}
