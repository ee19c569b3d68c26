//! All nodes and all operations under way.
//!
//! Each thread has a [`ThreadRole`], and does what [`Core::next`] returns. One thread at a time leads, with the
//! connections of the nodes that are connected. Each other node has a worker. A connection is used by the worker of its
//! node, if there is one, and otherwise by the leader.
//!
//! Operations may be submitted at any time. Each has its own time, and is answered as soon as its verdict is certain.

// OK because nodes are never removed, and operations only while nothing refers to them.
#![allow(clippy::indexing_slicing)]

mod leader_steps;
mod links;
mod replies;
mod sending;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::errors::cause::Cause;
use crate::errors::node_errors::NodeErrors;
use crate::protocol::commands::dialect::Lack;
use crate::protocol::discovery::found_master::MasterConfirmation;
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::node::debt::{Debt, Redirected};
use crate::protocol::node::node::{Closing, Node, Timeouts};
use crate::protocol::node::node_events::NodeEvents;
use crate::protocol::node::pending::OperationId;
use crate::protocol::node::read_order::Reader;
use crate::protocol::node::restart_guard::RestartGuard;
use crate::protocol::node::standing::Standing;
use crate::protocol::quorum::answer::Answer;
use crate::protocol::quorum::op::Op;
use crate::protocol::quorum::operation::{Operation, Phase};
use crate::protocol::quorum::operations::Operations;
use crate::protocol::quorum::release_confirmation::ReleaseConfirmation;
use crate::protocol::quorum::thread_step::{ThreadRole, ThreadStep};
use crate::protocol::quorum::view::View;
use crate::values::arithmetic::Verdict;
use crate::values::node_set::NodeSet;
use crate::values::prefix::Prefix;
use crate::values::random::Rng;

/// An event at a node's connection, or at the thread that has it.
pub(crate) enum Input<'a> {
    /// A worker was started, or could not be.
    Started(Result<(), Cause>),
    /// The output is written, or the connection is finished.
    Sent(Result<(), Cause>),
    /// The bytes received. Empty if the read timed out.
    Received(Result<&'a [u8], Cause>),
    /// The directory's answer about the node's address, and when it was asked.
    MasterConfirmed {
        asked: Instant,
        answer: MasterConfirmation,
    },
}

/// Whether a majority of the nodes has carried out the releases that it was owed.
#[cfg(feature = "cli")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwedTo {
    /// A majority has carried them out.
    Few,
    /// A majority may have, once the connected nodes do.
    Many,
    /// No majority can, for as long as nodes are away.
    Absent,
}

/// The state of the nodes taken together.
#[derive(Default)]
struct AllNodes {
    /// When a majority was connected for the first time.
    majority_at: Option<Instant>,
    /// Until when no step need look at the nodes, unless something happens to one: each [is steady](Node::is_steady), and
    /// has until then to answer what it was sent.
    steady_until: Option<Instant>,
}

/// `W`: the caller that waits for an answer.
pub(crate) struct Core<W> {
    nodes: Vec<Node>,
    timeouts: Timeouts,
    reader: Reader,
    all: AllNodes,
    closing: Option<Closing>,
    /// For the pauses between tries to connect.
    rng: Rng,
    operations: Operations<W>,
    confirmation: ReleaseConfirmation,
    pub(crate) answers: Vec<(W, Answer)>,
    /// Debts that must be sent on to other servers (rule R45), by the thread that has read the answers.
    pub(crate) redirected: Vec<Redirected>,
    pub(crate) events: NodeEvents,
    /// Whether threads that wait for news must be woken.
    pub(crate) news: bool,
}

impl<W> Core<W> {
    pub(crate) fn new(
        addresses: impl Iterator<Item = (Arc<str>, Option<RestartGuard>)>,
        timeouts: Timeouts,
        prefix: Prefix,
        seed: u64,
        now: Instant,
    ) -> Core<W> {
        let node = |(address, guard)| Node::new(address, guard);
        let nodes: Vec<Node> = addresses.map(node).collect();
        Core {
            reader: Reader::new(nodes.len(), now),
            nodes,
            timeouts,
            all: AllNodes::default(),
            closing: None,
            rng: Rng::new(seed),
            operations: Operations::new(prefix),
            confirmation: ReleaseConfirmation::default(),
            answers: Vec::new(),
            redirected: Vec::new(),
            events: NodeEvents::default(),
            news: false,
        }
    }

    /// Takes the debts that nodes must still be sent, or have not confirmed, and that `go` elsewhere, each with its node.
    pub(crate) fn take_debts(&mut self, go: impl Fn(&Debt) -> bool) -> Vec<(usize, Debt)> {
        let nodes = self.nodes.iter_mut().enumerate();
        let owed = nodes.flat_map(|(node_index, node)| {
            let debts = node.take_debts(&go).into_iter();
            debts.map(move |debt| (node_index, debt))
        });
        owed.collect()
    }

    /// Whether so many nodes may not have carried out what they are owed that other processes may have no majority.
    /// `others`: nodes beside these that may not grant the lock, either.
    #[cfg(feature = "cli")]
    pub(crate) fn who_is_owed(&self, others: usize) -> OwedTo {
        let spare = crate::values::arithmetic::spare(self.nodes.len());
        let spare = spare.saturating_sub(others);
        let (owed, connected) = (self.owed_nodes(), self.connected_nodes());
        match owed.len() > spare {
            false => OwedTo::Few,
            true if owed.without(connected).len() > spare => OwedTo::Absent,
            true => OwedTo::Many,
        }
    }

    /// The nodes that are owed a release.
    #[cfg(any(test, feature = "cli"))]
    pub(crate) fn owed_nodes(&self) -> NodeSet {
        self.which(Node::is_owed)
    }

    fn which(&self, is: impl Fn(&Node) -> bool) -> NodeSet {
        let all = 0..self.nodes.len();
        all.filter(|node| is(&self.nodes[*node])).collect()
    }

    /// Nodes that operations are sent to.
    pub(crate) fn connected_nodes(&self) -> NodeSet {
        self.which(Node::is_connected)
    }

    /// Nodes whose servers run no scripts, as far as they are connected.
    pub(crate) fn without_scripts(&self) -> NodeSet {
        self.which(|node| node.wire().properties.dialect.lack() == Some(Lack::Scripts))
    }

    fn view(&self, now: Instant) -> View {
        match self.is_steady(now) {
            true => View::steady(self.nodes.len(), &self.reader),
            false => View::of(&self.nodes, &self.reader, now),
        }
    }

    /// Whether no step need look at the nodes.
    fn is_steady(&self, now: Instant) -> bool {
        let is_steady = self.all.steady_until.is_some_and(|until| now < until);
        #[cfg(test)]
        assert!(!is_steady || self.nodes.iter().all(|node| self.needs_no_look(node, now)));
        is_steady
    }

    /// Submits an operation. `caller` waits for the answer.
    pub(crate) fn submit(&mut self, op: Op, caller: W, now: Instant) {
        if op.action.ends() {
            self.cancel_behind(&op, now);
            self.confirmation.released(now);
        }
        let index = self.operations.submit(op, caller, now);
        self.nodes.iter_mut().for_each(Node::retry_worker);
        self.begin(index, now);
    }

    /// Cancels the lock's repairs and extensions that are under way when it ends: written later, they would come behind
    /// the end.
    fn cancel_behind(&mut self, end: &Op, now: Instant) {
        for index in self.operations.indices() {
            let operation = &self.operations[index];
            // Behind a release an extension finds nothing.
            let prolongs =
                operation.is_repair() || operation.is_extension() && !end.action.is_release();
            if prolongs
                && operation.is_under_way()
                && operation.op.key.token == end.key.token
                && !mutant(Mutant::RepairAfterRelease)
            {
                self.finish(index, Verdict::Unavailable, now);
            }
        }
    }

    /// Whether a caller that `is_it` accepts waits: its operation is under way, or no leader has taken its answer.
    pub(crate) fn is_waiting(&self, is_it: impl Fn(&W) -> bool) -> bool {
        let under_way = self.operations.under_way();
        let waiting = under_way.filter_map(|operation| operation.caller.as_ref());
        let answered = self.answers.iter().map(|(caller, _)| caller);
        waiting.chain(answered).any(is_it)
    }

    /// The caller that has waited longest for an answer.
    pub(crate) fn longest_waiting(&self) -> Option<&W> {
        self.operations.longest_waiting()
    }

    /// Begins the operation's time, unless first connections are waited for: then returns until when.
    fn begin(&mut self, index: usize, now: Instant) -> Option<Instant> {
        let is_steady = self.is_steady(now);
        let operation = &mut self.operations[index];
        if operation.begun().is_some() || operation.op.only_write {
            return None;
        }
        if let Phase::Undoing(_) = operation.phase {
            return None;
        }
        let until = match self.all.majority_at {
            Some(time) => time + self.timeouts.node,
            None => operation.waits_since() + self.timeouts.connect,
        };
        let nodes = if is_steady { &[] } else { &self.nodes[..] };
        let first = |node: &Node| node.tries() == 0 && !node.cannot_start_worker();
        let mut asked = nodes.iter().enumerate();
        let under_way = asked
            .any(|(node_index, node)| operation.op.nodes.has(node_index) && first(node))
            && !mutant(Mutant::IgnoreFirstConnections);
        if under_way && now < until {
            return Some(until);
        }
        let over = under_way && self.all.majority_at.is_none();
        operation.begin(now, if over { now } else { now + self.timeouts.node });
        let is_named = operation.op.named.is_some();
        let nodes = if is_named { &self.nodes[..] } else { nodes };
        for (node_index, node) in nodes.iter().enumerate() {
            if node.is_connected() && is_named {
                operation.keep_from(node_index, &node.wire().properties.server.address);
            }
            if node.always_votes() {
                continue;
            }
            let standing = node.standing(now);
            operation.heed(node_index, &standing, now);
            // Its worker connects it now.
            self.news |= node.is_quarantined() && standing == Standing::Away;
        }
        // A release is sent to each node as soon as that is connected, and may have all its answers by now.
        if operation.has_votes() {
            self.judge(index, &self.view(now), now);
        }
        None
    }

    /// Returns what a thread should do next.
    pub(crate) fn next(&mut self, role: ThreadRole, now: Instant) -> ThreadStep {
        match role {
            ThreadRole::Leader => self.leader_step(now),
            ThreadRole::Worker(node) => self.worker_step(node, now),
            ThreadRole::Confirmer => self.confirmer_step(now),
        }
    }

    pub(crate) fn input(&mut self, node: usize, input: Input<'_>, now: Instant) {
        match input {
            Input::Started(result) => {
                self.nodes[node].worker_started(result.is_ok());
                if let Err(cause) = result {
                    let cause = Arc::new(cause);
                    let operations = self.operations.open_mut();
                    operations.for_each(|operation| operation.fail(node, &cause));
                    self.away(node, cause, now);
                }
            }
            Input::Sent(result) => {
                self.nodes[node].written();
                // The thread that closes the nodes may wait for that.
                self.news |= self.closing.is_some();
                if let Err(cause) = result {
                    self.sever(node, cause, now);
                }
            }
            Input::Received(result) => self.received(node, result, now),
            Input::MasterConfirmed { asked, answer } => {
                self.master_confirmed(node, asked, answer, now)
            }
        }
    }

    fn add_debt(&mut self, node: usize, debt: Option<Debt>) {
        if let Some(debt) = debt {
            self.nodes[node].owe(debt);
            self.all.steady_until = None;
            // The node's worker writes it at once.
            self.news |= self.nodes[node].is_quarantined();
        }
    }

    /// Connects the nodes that are away at once, without a pause. Returns how many tries of each have ended so far.
    pub(crate) fn connect_now(&mut self) -> Vec<u64> {
        self.reconnect_now(NodeSet::first(self.nodes.len()));
        self.nodes.iter().map(Node::tries).collect()
    }

    /// Whether each node is connected, or has been tried since `before` was taken.
    pub(crate) fn has_tried(&self, before: &[u64]) -> bool {
        let mut nodes = self.nodes.iter().zip(before);
        nodes.all(|(node, before)| {
            let connected = node.is_connected() || node.is_quarantined();
            connected || node.cannot_start_worker() || node.tries() > *before
        })
    }

    /// The nodes that have not answered although a majority did, after `waited`.
    pub(crate) fn missing(&self, answer: &Answer, waited: Duration) -> NodeErrors {
        answer.missing(&self.nodes, waited, self.timeouts.connect)
    }

    fn judge_all(&mut self, now: Instant) {
        let view = self.view(now);
        for index in self.operations.indices() {
            self.judge(index, &view, now);
        }
    }

    /// Ends an operation whose verdict is certain. A failed acquire ends with its undo.
    fn judge(&mut self, index: usize, view: &View, now: Instant) {
        let Some(verdict) = self.operations[index].verdict(view, now) else {
            return;
        };
        if self.operations[index].is_acquire() && verdict != Verdict::Yes {
            self.operations[index].phase = Phase::Undoing(verdict);
            self.undo(index);
        } else {
            self.finish(index, verdict, now);
        }
    }

    fn undo(&mut self, index: usize) {
        let (undo_to, release) = self.operations[index].undo();
        for node in undo_to.iter() {
            self.add_debt(node, Some(Debt::release(release.clone())));
            if self.nodes[node].takes_releases() {
                self.operations[index].undo_to.add(node);
            }
        }
    }

    fn finish(&mut self, index: usize, verdict: Verdict, now: Instant) {
        self.operations[index].phase = Phase::Free;
        // The end of the lock must be sent where it was not written, or where the connection it was written on has died.
        let Operation { op, sent_to, .. } = &self.operations[index];
        let nodes = NodeSet::first(self.nodes.len()).and(op.key.sent_to);
        let nodes = nodes.without(*sent_to);
        if !nodes.is_empty()
            && let Some(debt) = self.operations[index].debt()
        {
            for node_index in nodes
                .iter()
                .filter(|_| !mutant(Mutant::ReleaseWhereConnected))
            {
                self.add_debt(node_index, Some(debt.clone()));
            }
        }
        // Permits that an extension finds are put right by the refill.
        let operation = &self.operations[index];
        let acquired = verdict == Verdict::Yes && operation.is_acquire();
        if acquired && operation.counts_apart() {
            for (node_index, release) in self.operations[index].stray_releases() {
                self.add_debt(node_index, Some(Debt::release(release)));
            }
            let operation = &self.operations[index];
            let number = operation.number;
            let id = OperationId { index, number };
            // One that was given up may grant a permit yet.
            let awaited = self.which(|node| node.wire().awaits(id));
            let awaited = operation.sent_to.and(awaited);
            if !awaited.is_empty() {
                let key = operation.granted_key();
                self.operations.late.add(number, key, awaited, now);
            }
        }
        let notified_elsewhere = self.operations.take_notified(index);
        let operation = &mut self.operations[index];
        let answer = operation.answer(verdict, notified_elsewhere, &self.nodes, now);
        let caller = operation.caller.take();
        if let Some(caller) = caller {
            self.answers.push((caller, answer));
        }
    }

    /// Closes the nodes. Commands that were sent, and releases that must still be sent, have this time.
    pub(crate) fn close(&mut self, closing: Closing) {
        self.closing = Some(closing);
        // Deferred commands have one last try.
        let nodes = self.nodes.iter_mut();
        nodes.for_each(|node| node.retry_deferred());
        self.reconnect_now(self.which(Node::has_releases));
        self.news = true;
    }
}

#[cfg(test)]
impl<W> Core<W> {
    fn needs_no_look(&self, node: &Node, now: Instant) -> bool {
        let overdue = now.checked_sub(self.timeouts.node);
        let is_probed = node.wire().has_pending_since(overdue) || node.wire().wants_probe();
        node.is_steady() && node.tries() > 0 && !is_probed
    }

    /// Whether [`take_debts`](Core::take_debts) returns anything.
    pub(crate) fn owes_any(&self) -> bool {
        self.nodes.iter().any(Node::is_owed)
    }

    /// The clock of a node, as it was seen.
    pub(crate) fn watched(
        &self,
        node: usize,
        now: Instant,
    ) -> Option<crate::protocol::node::known_server::Watched> {
        self.nodes[node].watched(now)
    }

    /// Describes what is unfinished, if anything is.
    pub(crate) fn not_quiescent(&self) -> Option<String> {
        let node = self.nodes.iter().find_map(Node::not_quiescent);
        let open = self.longest_waiting().is_some();
        node.or_else(|| open.then(|| "an operation is open".to_owned()))
    }

    pub(crate) fn majority_at(&self) -> Option<Instant> {
        self.all.majority_at
    }
}

#[cfg(test)]
mod tests;
