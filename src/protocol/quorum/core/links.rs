//! The nodes' connections: how they begin and end, and the workers of the nodes that are away.

// OK because nodes are never removed, and operations only while nothing refers to them.
#![allow(clippy::indexing_slicing)]

use std::sync::Arc;
use std::time::Instant;

use crate::errors::cause::{Cause, Limit};
use crate::protocol::discovery::found_master::MasterConfirmation;
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::node::known_server::KnownServer;
use crate::protocol::node::node::task::NodeTask;
use crate::protocol::node::node::{Link, Node};
use crate::protocol::node::server_properties::ServerProperties;
use crate::protocol::node::standing::SitsOut;
use crate::protocol::quorum::core::Core;
use crate::protocol::quorum::thread_step::{ThreadRole, ThreadStep};
use crate::values::arithmetic::{Verdict, majority};

impl<W> Core<W> {
    pub(super) fn worker_step(&mut self, node: usize, now: Instant) -> ThreadStep {
        loop {
            return match self.nodes[node].task(now, self.closing, self.timeouts) {
                NodeTask::Connect => ThreadStep::Connect { node },
                NodeTask::Adopt => ThreadStep::Adopt { node },
                NodeTask::Send { until } => {
                    let nodes = std::iter::once(node).collect();
                    ThreadStep::Send { nodes, until }
                }
                NodeTask::Recv { until } => ThreadStep::Recv { node, until },
                NodeTask::Pause { until } => ThreadStep::Wait { until },
                NodeTask::Disconnect => {
                    let cause = Cause::NoAnswer(self.timeouts.connect, Limit::Connect);
                    self.sever(node, cause, now);
                    continue;
                }
                NodeTask::Quarantine(reason) => {
                    self.quarantine(node, reason, now);
                    continue;
                }
                NodeTask::Reconnected => {
                    self.reconnected(node, now);
                    ThreadStep::Reconnected
                }
                NodeTask::Stop => {
                    self.nodes[node].worker_stopped();
                    self.news = true;
                    ThreadStep::Finished
                }
            };
        }
    }

    /// Handles a new connection to a node, or the cause why there is none. Returns whether the connection is usable.
    pub(crate) fn connected(
        &mut self,
        node: usize,
        result: Result<ServerProperties, Cause>,
        now: Instant,
    ) -> bool {
        (self.news, self.all.steady_until) = (true, None);
        if !self.nodes[node].connect_ended() {
            return false;
        }
        let properties = result.and_then(|properties| match self.same_server(node, &properties) {
            Some(other) => Err(Cause::SameServer(other)),
            None => Ok(properties),
        });
        match properties {
            Ok(properties) => {
                self.nodes[node].on_connected(properties);
                true
            }
            Err(cause) => {
                self.tried(node, Arc::new(cause), now);
                false
            }
        }
    }

    /// Whether a node is connected to another server than the one at this address.
    pub(crate) fn leads_elsewhere(&self, node_index: usize, address: &str) -> bool {
        let node = &self.nodes[node_index];
        let sits_out = node.is_quarantined() && !mutant(Mutant::SitOutWithoutKeys);
        (node.is_connected() || sits_out) && *node.address != *address
    }

    /// A node's server, for other lanes.
    pub(crate) fn known_server(&self, node: usize) -> &KnownServer {
        self.nodes[node].record()
    }

    /// Takes over what another lane has learnt of a node's server (rule R66).
    pub(crate) fn learn(&mut self, node: usize, known: KnownServer) {
        self.nodes[node].inherit(known);
    }

    /// Another node that is connected to the same server.
    fn same_server(&self, node_index: usize, properties: &ServerProperties) -> Option<usize> {
        let run_id = properties.run_id.as_deref()?;
        let same = self.which(|node| node.leads_to(run_id));
        same.iter().find(|other| *other != node_index)
    }

    fn reconnected(&mut self, node: usize, now: Instant) {
        let event = self.nodes[node].reconnected(now);
        self.events.push(node, event, now);
        let stepped = self.nodes[node].take_step(now);
        self.events.push(node, stepped, now);
        for lack in self.nodes[node].wire().lacks() {
            self.events.lacks(node, lack, now);
        }
        if self.connected_nodes().len() >= majority(self.nodes.len()) {
            self.all.majority_at.get_or_insert(now);
        }
        let standing = self.nodes[node].standing(now);
        let server = &self.nodes[node].wire().properties.server.address;
        for operation in self.operations.open_mut() {
            operation.keep_from(node, server);
            if !operation.heed(node, &standing, now) {
                operation.give_time_to(node, self.timeouts.node, now);
            }
        }
        self.changed(now);
    }

    /// Quarantines a node: it is connected, and gives no votes for now.
    fn quarantine(&mut self, node: usize, reason: SitsOut, now: Instant) {
        let cause = Arc::new(reason.cause(now));
        self.unreachable(node, &cause);
        let event = self.nodes[node].quarantine(reason, cause, now);
        self.events.push(node, event, now);
        self.changed(now);
    }

    pub(super) fn master_confirmed(
        &mut self,
        node_index: usize,
        asked: Instant,
        answer: MasterConfirmation,
        now: Instant,
    ) {
        let (node, timeout) = (&mut self.nodes[node_index], self.timeouts.node);
        node.wire_mut().address.answered(asked, answer);
        if node.is_connected() {
            let operations = self.operations.open_mut();
            operations.for_each(|operation| operation.give_time_to(node_index, timeout, now));
        }
        self.news = true;
    }

    /// Marks a node that did not answer within its time. Its connection is kept.
    pub(super) fn mark_unresponsive(&mut self, node: usize, now: Instant) {
        let cause = Arc::new(self.no_answer());
        let retry_at = self.nodes[node].retry_at(&mut self.rng, now);
        self.nodes[node].mark_unresponsive(retry_at);
        for operation in self.operations.all_mut() {
            if operation.sent_to.has(node) {
                operation.fail(node, &cause);
            }
        }
        self.away(node, cause, now);
    }

    /// Ends a node's connection, which is finished, or on which a command may be torn. Each pending vote fails, or may
    /// be asked for again; each pending release must be sent again; the rest is dropped.
    pub(super) fn sever(&mut self, node_index: usize, cause: Cause, now: Instant) {
        let cause = Arc::new(cause);
        let (was, wire) = self.nodes[node_index].sever();
        self.operations.late.severed(node_index);
        let useless_again =
            was == Link::Connected && self.nodes[node_index].is_useless_again(&wire);
        for command in wire.into_commands() {
            match command.operation.and_then(|id| self.operations.open(id)) {
                Some(index) if self.operations[index].is_open() => {
                    self.operations[index].severed(node_index, &cause);
                }
                _ => self.add_debt(
                    node_index,
                    command
                        .debt
                        .filter(|_| !mutant(Mutant::DropReleaseWithConnection)),
                ),
            }
        }
        if mutant(Mutant::SeveredEverywhere) {
            for operation in self.operations.open_mut() {
                (0..self.nodes.len()).for_each(|node| operation.fail(node, &cause));
            }
        }
        if !mutant(Mutant::WaitForGone) {
            self.undo_written(std::iter::once(node_index).collect());
        }
        if let Cause::Closed(_) = *cause {
            // If one connection was closed, others may be, too.
            let nodes = self.nodes.iter_mut();
            nodes.for_each(|node| node.wire_mut().must_probe());
        }
        if let Link::Draining | Link::Quarantined = was {
            return self.tried(node_index, cause, now);
        }
        // When the nodes are closed, the next try begins at once.
        if useless_again && self.closing.is_none() {
            let retry_at = self.nodes[node_index].retry_at(&mut self.rng, now);
            self.nodes[node_index].pause_until(retry_at);
        }
        self.away(node_index, cause, now);
    }

    pub(super) fn no_answer(&self) -> Cause {
        Cause::NoAnswer(self.timeouts.node, Limit::Node(1))
    }

    /// Notes that a try to connect has failed.
    fn tried(&mut self, node: usize, cause: Arc<Cause>, now: Instant) {
        let retry_at = self.nodes[node].retry_at(&mut self.rng, now);
        self.nodes[node].tried(retry_at, self.closing.is_some());
        self.unreachable(node, &cause);
        self.away(node, cause, now);
    }

    /// Fails the node for operations that were not sent to it: they need not wait for it.
    fn unreachable(&mut self, node: usize, cause: &Arc<Cause>) {
        let began = self.nodes[node].try_began();
        for operation in self.operations.open_mut() {
            operation.unreachable(node, cause, began);
        }
    }

    pub(super) fn away(&mut self, node: usize, cause: Arc<Cause>, now: Instant) {
        let event = self.nodes[node].away(cause);
        self.events.push(node, event, now);
        self.changed(now);
    }

    /// Judges all operations again after a node was connected or went away: other votes can be expected now.
    pub(super) fn changed(&mut self, now: Instant) {
        (self.news, self.all.steady_until) = (true, None);
        self.judge_all(now);
    }

    /// Notes that a thread has panicked, which only a bug can cause, or that the confirmer could not be started.
    /// Another one may be started.
    pub(crate) fn deserted(&mut self, role: ThreadRole, now: Instant) {
        match role {
            ThreadRole::Leader => self.recover(now),
            ThreadRole::Worker(node) => {
                self.nodes[node].deserted();
                self.sever(node, panicked(), now);
            }
            ThreadRole::Confirmer => self.confirmation.ended(),
        }
    }

    /// Recovers from a panic of the leader: which bytes were written is uncertain.
    fn recover(&mut self, now: Instant) {
        for node in self.which(Node::takes_releases).iter() {
            self.sever(node, panicked(), now);
        }
        for index in self.operations.indices() {
            if self.operations[index].is_under_way() {
                if self.operations[index].is_acquire() {
                    self.undo(index);
                }
                self.finish(index, Verdict::Unavailable, now);
            }
        }
    }
}

fn panicked() -> Cause {
    Cause::Closed("a thread panicked while it used it".into())
}
