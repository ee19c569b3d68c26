//! The steps of the leader, and of the thread that confirms releases.

// OK because nodes are never removed, and operations only while nothing refers to them.
#![allow(clippy::indexing_slicing)]

use std::time::Instant;

use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::node::node::Node;
use crate::protocol::node::read_order::SLICE;
use crate::protocol::node::wire::IDLE;
use crate::protocol::quorum::core::Core;
use crate::protocol::quorum::operation::{Operation, Phase};
use crate::protocol::quorum::operations::Wants;
use crate::protocol::quorum::thread_step::{ThreadRole, ThreadStep};
use crate::values::node_set::NodeSet;

/// The needs of the nodes, besides those of operations.
#[derive(Default)]
struct NodeNeeds {
    /// Nodes that debts must be written to.
    releases: NodeSet,
    /// Nodes that do not answer, and need a worker once their debts are written.
    silent: NodeSet,
}

impl<W> Core<W> {
    pub(super) fn leader_step(&mut self, now: Instant) -> ThreadStep {
        loop {
            let NodeNeeds { releases, silent } = match self.look(now) {
                Ok(needs) => needs,
                Err(next) => return next,
            };
            let wants = self.survey(now);
            // While replies are coming promptly, what is submitted waits for them and goes together in one
            // write, which is cheaper for both sides. If they take long, it goes at once.
            let waits = self.reader.replies_flowing() && !wants.owing.is_empty();
            let send = match waits {
                true => releases,
                false => wants.send.or(releases),
            };
            if !send.is_empty() {
                return self.step_to_send(send, now);
            }
            if let Some(next) = self.ask(&wants, now) {
                return next;
            }
            // The node's releases are written by now.
            if let Some(node) = self.written_off(silent) {
                return ThreadStep::HandOver { node };
            }
            if !wants.open {
                return self.settle(now);
            }
            if now >= wants.ends {
                if let Some(node) = self.unprobed(wants.owing, wants.ends) {
                    return self.probe(node, now);
                }
                self.expire(now);
                continue;
            }
            self.reconnect_lacking(wants.lacking);
            if !wants.owing.is_empty() {
                return self.step_to_receive(wants.owing, wants.ends, now);
            }
            return ThreadStep::Wait { until: wants.ends };
        }
    }

    /// The needs of the nodes. `Err`: what must be done before anything else.
    fn look(&mut self, now: Instant) -> Result<NodeNeeds, ThreadStep> {
        let mut needs = NodeNeeds::default();
        if self.is_steady(now) {
            return Ok(needs);
        }
        let overdue = now.checked_sub(self.timeouts.node);
        let (mut is_steady, mut oldest) = (true, now);
        for (node_index, node) in self.nodes.iter().enumerate() {
            is_steady &= node.is_steady();
            let mut retries = false;
            if node.is_connected() {
                let wire = node.wire();
                if wire.address.is_replaced() {
                    self.leave(node_index, now);
                    return self.look(now);
                }
                if wire.has_pending_since(overdue) || wire.wants_probe() {
                    return Err(self.probe(node_index, now));
                }
                oldest = oldest.min(wire.pending_since().unwrap_or(now));
                retries = node.retries(now);
            } else if node.needs_worker(self.closing.is_some()) {
                return Err(ThreadStep::StartWorker { node: node_index });
            } else if node.needs_worker_soon() {
                needs.silent.add(node_index);
            }
            if retries || node.has_releases() && node.takes_releases() {
                needs.releases.add(node_index);
            }
        }
        self.all.steady_until = is_steady.then(|| oldest + self.timeouts.node);
        Ok(needs)
    }

    /// Leaves a node that is no longer a master (rule R43).
    fn leave(&mut self, node: usize, now: Instant) {
        if let Some(cause) = self.nodes[node].wire_mut().address.take_replaced() {
            self.sever(node, cause, now);
        }
    }

    /// Returns a node whose directory must be asked. Directories are asked while their node is in use.
    fn ask(&mut self, wants: &Wants, now: Instant) -> Option<ThreadStep> {
        if !wants.master {
            return None;
        }
        let is_due = |node: &Node| node.is_connected() && node.wire().address.is_due(now);
        let node = self.nodes.iter().position(is_due)?;
        let found = self.nodes[node].wire_mut().address.ask(now)?;
        Some(ThreadStep::ConfirmMaster {
            node,
            found: found.into(),
        })
    }

    /// Returns the needs of the operations under way, and takes out those that are done.
    fn survey(&mut self, now: Instant) -> Wants {
        let mut wants = Wants::new(now + self.timeouts.connect);
        self.operations.shrink();
        if self.operations.under_way().next().is_none() {
            return wants;
        }
        let view = &self.view(now);
        for index in self.operations.indices() {
            if !self.operations[index].is_under_way() {
                continue;
            }
            let waits = match self.operations[index].begun() {
                Some(_) => None,
                None => self.begin(index, now),
            };
            let operation = &self.operations[index];
            let to_send = operation.to_send(view, now);
            let done = match operation.phase {
                Phase::Free => continue,
                Phase::Undoing(verdict) if operation.undo_to.is_empty() => {
                    Some(operation.undone(verdict, view))
                }
                Phase::Open if operation.op.only_write && to_send.is_empty() => {
                    Some(operation.written(view))
                }
                _ => None,
            };
            if let Some(verdict) = done {
                self.finish(index, verdict, now);
                continue;
            }
            wants.add(operation, to_send, waits, view);
        }
        wants.owing = wants.owing.and(view.connected);
        wants
    }

    /// A node that nothing is to be written to, of those that do not answer.
    fn written_off(&self, silent: NodeSet) -> Option<usize> {
        let last = silent.iter().last();
        let mut silent = silent.iter();
        silent.find(|node| {
            let is_looked_at = !mutant(Mutant::OneSilentNode) || last == Some(*node);
            is_looked_at && self.is_written_off(*node)
        })
    }

    /// Whether an unresponsive node has nothing more to expect from the leader: an acquire that fails writes its
    /// releases before it returns.
    fn is_written_off(&self, node: usize) -> bool {
        let mut acquires = self.operations.under_way().filter(|one| one.is_acquire());
        !acquires.any(|one| one.sent_to.has(node) && !mutant(Mutant::LeaveBeforeUndo))
    }

    /// Returns a node that was not probed since the time of operations was over. This thread may have been suspended:
    /// replies that arrived meanwhile still count.
    fn unprobed(&self, owing: NodeSet, ended: Instant) -> Option<usize> {
        let is_unprobed = |node: &usize| self.nodes[*node].wire().is_unprobed(ended);
        owing.iter().find(is_unprobed)
    }

    fn probe(&mut self, node: usize, now: Instant) -> ThreadStep {
        self.reader.probes(now);
        ThreadStep::Recv { node, until: now }
    }

    pub(super) fn step_to_send(&mut self, nodes: NodeSet, now: Instant) -> ThreadStep {
        let idle_since = now.checked_sub(IDLE);
        let idle = |node_index: &usize| {
            let node = &self.nodes[*node_index];
            node.is_connected() && node.wire().is_idle(idle_since)
        };
        if let Some(node_index) = nodes.iter().find(idle) {
            return self.probe(node_index, now);
        }
        // A node that takes in nothing may hold up the leader for half a node timeout, so that the others still have
        // time to answer; but no operation for longer than it may take at all.
        let begun = self.operations.under_way().filter_map(Operation::begun);
        let oldest = begun.min().unwrap_or(now);
        let until = (now + self.timeouts.node / 2).min(oldest + 2 * self.timeouts.node);
        ThreadStep::Send { nodes, until }
    }

    fn step_to_receive(&mut self, owing: NodeSet, ends: Instant, now: Instant) -> ThreadStep {
        let pending_since = |node_index: usize| self.nodes[node_index].wire().pending_since();
        let (node, until) = self.reader.reads(owing, pending_since, now);
        ThreadStep::Recv {
            node,
            until: until.min(ends),
        }
    }

    /// Connects at once the nodes that callers wait for.
    pub(super) fn reconnect_now(&mut self, nodes: NodeSet) {
        for node in nodes.and(self.which(Node::has_worker)).iter() {
            self.news |= self.nodes[node].reconnect_now();
        }
    }

    /// Connects at once the nodes without which there are too few.
    fn reconnect_lacking(&mut self, nodes: NodeSet) {
        if !nodes.is_empty() {
            // A replica takes its time, and its name is not looked up more often for that (rule R39).
            self.reconnect_now(nodes.without(self.which(Node::is_replica)));
        }
    }

    /// Decides the leader's last steps when no caller waits for an answer. When the nodes are closed, replies to what
    /// was sent are waited for a little: closing on unread replies resets a connection, and the server may then drop a
    /// release that it has not read yet.
    fn settle(&mut self, now: Instant) -> ThreadStep {
        // An operation that has ended just now, since it had all its answers when its time began, may have left a
        // release to a node that is connected.
        let owed = self.which(|node| node.has_releases() && node.takes_releases());
        if !owed.is_empty() {
            return self.step_to_send(owed, now);
        }
        let Some(until) = self.closes_until().filter(|until| now < *until) else {
            return match self.starts_confirmer(ThreadRole::Leader) {
                true => ThreadStep::StartConfirmer,
                false => ThreadStep::Finished,
            };
        };
        let pending = self.which(|node| node.is_connected() && node.wire().pending() > 0);
        let unfinished = self.which(Node::has_unfinished);
        let retry_at = self.retries_at().filter(|time| *time < until);
        match (pending.is_empty(), unfinished.is_empty()) {
            (true, true) => {
                retry_at.map_or(ThreadStep::Finished, |until| ThreadStep::Wait { until })
            }
            (true, false) => ThreadStep::Wait {
                until: retry_at.unwrap_or(until),
            },
            (false, _) => self.step_to_receive(pending, until, now),
        }
    }

    /// When closing ends. A node that has never been connected has no more than one node timeout: only a lock of another
    /// process, which was resumed, may be there.
    fn closes_until(&self) -> Option<Instant> {
        let closing = self.closing?;
        let waits = |node: &Node| {
            node.was_connected() && (node.has_unfinished() || node.wire().pending() > 0)
        };
        Some(match self.nodes.iter().any(waits) {
            true => closing.end(),
            false => closing.end().min(closing.at + self.timeouts.node),
        })
    }

    /// Whether a thread must be started that confirms releases, and resends commands that were refused for now. If so,
    /// it counts as running from then on.
    pub(crate) fn starts_confirmer(&mut self, role: ThreadRole) -> bool {
        let starts = role == ThreadRole::Leader || !mutant(Mutant::WorkersStartNothing);
        let any = starts && (self.oldest_unconfirmed().is_some() || self.retries_at().is_some());
        self.confirmation.starts(any && self.closing.is_none())
    }

    /// When the next command that a node has refused for now is sent again.
    fn retries_at(&self) -> Option<Instant> {
        self.nodes.iter().filter_map(Node::retries_at).min()
    }

    /// When the oldest release that may not have been carried out was written, or since when an answer is waited for behind
    /// which one may be due.
    fn oldest_unconfirmed(&self) -> Option<Instant> {
        let connected = self.nodes.iter().filter(|node| node.is_connected());
        let unconfirmed = connected.filter_map(|node| node.wire().unconfirmed_release());
        let late = self.operations.late.since(self.connected_nodes());
        unconfirmed.chain(late).min()
    }

    pub(super) fn confirmer_step(&mut self, now: Instant) -> ThreadStep {
        let (oldest, closed) = (self.oldest_unconfirmed(), self.closing.is_some());
        let probe_at = oldest.map(|time| (time, time + self.timeouts.node));
        let retry_at = self.retries_at();
        self.confirmation.next(probe_at, retry_at, closed, now)
    }

    /// Expires the operations whose time is over.
    fn expire(&mut self, now: Instant) {
        let connected = self.connected_nodes();
        let mut silent = NodeSet::EMPTY;
        for operation in self.operations.open_mut() {
            if operation.expire(now) {
                silent = silent.or(operation.owing().and(connected));
            }
        }
        let slow = self.reader.slow();
        for operation in self.operations.open_mut() {
            // Other nodes had no time to answer. (A thread that comes late gives them none.)
            let overdue = operation.over_at(now).checked_sub(SLICE);
            let overdue = |node: usize| self.nodes[node].wire().has_pending_since(overdue);
            let slow = slow.iter().filter(|node| overdue(*node)).collect();
            operation.fail_rest(&self.nodes, slow, self.timeouts, now);
        }
        for node in silent.iter() {
            self.mark_unresponsive(node, now);
        }
        self.changed(now);
    }
}
