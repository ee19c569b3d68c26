//! All nodes and all operations under way.
//!
//! Each thread has a [`ThreadRole`], and does what [`Core::next`] returns. One thread at a time leads, with the
//! connections of the nodes that are connected. Each other node has a worker. A connection is used by the worker of its
//! node, if there is one, and otherwise by the leader.
//!
//! Operations may be submitted at any time. Each has its own time, and is answered as soon as its verdict is certain.

// OK because nodes are never removed, and slots only while nothing refers to them.
#![allow(clippy::indexing_slicing)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::errors::cause::{Cause, Limit};
use crate::errors::error::NodeErrors;
use crate::errors::server_error::{Meaning, is_not_loaded, refuses_companions};
use crate::protocol::commands::resp::Reply;
use crate::protocol::commands::script::Action;
use crate::protocol::commands::vote::{NOTIFIED, Refusal, Vote};
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::node::debt::Debt;
use crate::protocol::node::directory::LastWord;
use crate::protocol::node::event::Events;
use crate::protocol::node::guard::Guard;
use crate::protocol::node::handshake::Handshake;
use crate::protocol::node::node::task::NodeTask;
use crate::protocol::node::node::{Link, Node, Timeouts};
use crate::protocol::node::order::{Reader, SLICE};
use crate::protocol::node::outgoing::{Outgoing, Output};
use crate::protocol::node::standing::{SitsOut, Standing};
use crate::protocol::node::wire::{OperationId, Pending};
use crate::protocol::quorum::answer::Answer;
use crate::protocol::quorum::confirm::Confirmation;
use crate::protocol::quorum::next::{Next, ThreadRole};
use crate::protocol::quorum::notified::NotifiedElsewhere;
use crate::protocol::quorum::op::Op;
use crate::protocol::quorum::operation::{Operation, Phase, Voted};
use crate::protocol::quorum::operations::{Operations, Wants};
use crate::protocol::quorum::view::View;
use crate::values::prefix::Prefix;
use crate::values::quorum::{NodeSet, Verdict, majority};
use crate::values::random::Rng;

/// An event at a node's connection, or at the thread that has it.
pub(crate) enum Input<'a> {
    /// A worker was started, or could not be.
    Started(Result<(), Cause>),
    /// The output is written, or the connection is finished.
    Sent(Result<(), Cause>),
    /// The bytes received. Empty if the read timed out.
    Received(Result<&'a [u8], Cause>),
    /// The directory's answer about the node's address, and when it was asked. `None`: nothing was learnt.
    Confirmed {
        asked: Instant,
        answer: Option<LastWord>,
    },
    /// The node's server has reported that the one at this address has its keys now.
    Moved(String),
}

/// Which nodes may not have carried out what they are owed.
#[cfg(feature = "cli")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwedTo {
    /// A majority has carried it out.
    Few,
    /// A majority may have carried it out once nodes do that are connected.
    Many,
    /// No majority can have, for as long as nodes are away.
    Absent,
}

/// `W`: the caller that waits for an answer.
pub(crate) struct Core<W> {
    nodes: Vec<Node>,
    timeouts: Timeouts,
    reader: Reader,
    /// When a majority was connected for the first time.
    majority_at: Option<Instant>,
    /// When the nodes were closed.
    closed_at: Option<Instant>,
    /// For the pauses between tries to connect.
    rng: Rng,
    operations: Operations<W>,
    confirmation: Confirmation,
    notified_elsewhere: NotifiedElsewhere,
    pub(crate) answers: Vec<(W, Answer)>,
    pub(crate) events: Events,
    /// Whether threads that wait for news must be woken.
    pub(crate) news: bool,
}

impl<W> Core<W> {
    pub(crate) fn new(
        addresses: impl Iterator<Item = (Arc<str>, Option<Guard>)>,
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
            majority_at: None,
            closed_at: None,
            rng: Rng::new(seed),
            operations: Operations::new(prefix),
            confirmation: Confirmation::default(),
            notified_elsewhere: NotifiedElsewhere::default(),
            answers: Vec::new(),
            events: Events::default(),
            news: false,
        }
    }

    /// Whether [`take_elsewhere`](Core::take_elsewhere) with `all` returns anything.
    pub(crate) fn owes_any(&self) -> bool {
        !self.operations.elsewhere.is_empty() || self.nodes.iter().any(Node::is_owed)
    }

    /// Takes the debts that no operation waits for, each with its node: other servers have their keys (rule R45).
    /// `all`: also the debts that a node must still be sent, or has not confirmed.
    pub(crate) fn take_elsewhere(&mut self, all: bool) -> Vec<(usize, Debt)> {
        let mut debts = std::mem::take(&mut self.operations.elsewhere);
        for (at, node) in self.nodes.iter_mut().enumerate().filter(|_| all) {
            let owed = node.take_owed().into_iter();
            debts.extend(owed.map(|debt| (at, debt)));
        }
        debts
    }

    /// Whether so many nodes may not have carried out what they are owed that other processes may have no majority.
    #[cfg(feature = "cli")]
    pub(crate) fn owed(&self) -> OwedTo {
        let spare = self.nodes.len() - majority(self.nodes.len());
        let (owed, connected) = (self.which(Node::is_owed), self.connected_nodes());
        match owed.len() > spare {
            false => OwedTo::Few,
            true if owed.without(connected).len() > spare => OwedTo::Absent,
            true => OwedTo::Many,
        }
    }

    fn which(&self, is: impl Fn(&Node) -> bool) -> NodeSet {
        let all = 0..self.nodes.len();
        all.filter(|at| is(&self.nodes[*at])).collect()
    }

    /// Whether another server may have a key by now: releases that were waited for must be confirmed, too.
    fn is_routed(&self) -> bool {
        self.nodes.iter().any(|node| node.wire().handshake.routed)
    }

    /// Nodes that operations are sent to.
    pub(crate) fn connected_nodes(&self) -> NodeSet {
        self.which(Node::is_connected)
    }

    fn view(&self, now: Instant) -> View {
        View::of(&self.nodes, &self.reader, now)
    }

    // ---- operations

    /// Submits an operation. `caller` waits for the answer.
    pub(crate) fn submit(&mut self, op: Op, caller: W, now: Instant) {
        if op.action.ends() {
            self.cancel_behind(&op, now);
        }
        let shortens = matches!(op.action, Action::Shorten(_));
        if op.action.ends() && (op.only_write || shortens || self.is_routed()) {
            self.confirmation.released(now);
        }
        let slot = self.operations.submit(op, caller, now);
        self.nodes.iter_mut().for_each(Node::retry_worker);
        self.begin(slot, now);
    }

    /// Cancels the lock's repairs and extensions that are under way when it ends: written later, they would come behind
    /// the end.
    fn cancel_behind(&mut self, end: &Op, now: Instant) {
        for slot in self.operations.slots() {
            let operation = &self.operations[slot];
            // Behind a release an extension finds nothing.
            let prolongs =
                operation.is_repair() || operation.is_extension() && !end.action.is_release();
            if prolongs
                && operation.is_under_way()
                && operation.op.key.token == end.key.token
                && !mutant(Mutant::RepairAfterRelease)
            {
                self.finish(slot, Verdict::Unavailable, now);
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
    fn begin(&mut self, slot: usize, now: Instant) -> Option<Instant> {
        let operation = &mut self.operations[slot];
        if operation.begun().is_some() || operation.op.only_write {
            return None;
        }
        let until = match self.majority_at {
            Some(at) => at + self.timeouts.node,
            None => operation.submitted() + self.timeouts.connect,
        };
        let first = |node: &Node| node.tries() == 0 && !node.cannot_start_worker();
        let asked = self.nodes.iter().enumerate();
        let mut asked = asked.filter(|(at, _)| operation.op.nodes.has(*at));
        let under_way =
            asked.any(|(_, node)| first(node)) && !mutant(Mutant::IgnoreFirstConnections);
        if under_way && now < until {
            return Some(until);
        }
        let over = under_way && self.majority_at.is_none();
        operation.begin(now, if over { now } else { now + self.timeouts.node });
        for (at, node) in self.nodes.iter().enumerate() {
            let standing = node.standing(now);
            operation.heed(at, &standing, now);
            // Its worker connects it now.
            self.news |= node.is_quarantined() && standing == Standing::Away;
        }
        // A release is sent to each node as soon as that is connected, and may have all its answers by now.
        if operation.has_votes() {
            self.judge(slot, &self.view(now), now);
        }
        None
    }

    // ---- the threads

    /// Returns what a thread should do next.
    pub(crate) fn next(&mut self, role: ThreadRole, now: Instant) -> Next {
        match role {
            ThreadRole::Leader => self.lead(now),
            ThreadRole::Worker(node) => self.serve(node, now),
            ThreadRole::Confirmer => self.confirm(now),
        }
    }

    /// Notes that a thread has panicked, which only a bug can cause, or that the confirmer could not be started.
    /// Another one may be started.
    pub(crate) fn deserted(&mut self, role: ThreadRole, now: Instant) {
        match role {
            ThreadRole::Leader => self.recover(now),
            ThreadRole::Worker(at) => {
                self.nodes[at].deserted();
                self.sever(at, panicked(), now);
            }
            ThreadRole::Confirmer => self.confirmation.ended(),
        }
    }

    // ---- the leader

    fn lead(&mut self, now: Instant) -> Next {
        let overdue = now.checked_sub(self.timeouts.node);
        self.look_at_masters(now);
        loop {
            let (mut releases, mut silent) = (NodeSet::EMPTY, None);
            for (at, node) in self.nodes.iter().enumerate() {
                let wire = node.wire();
                if node.is_connected() {
                    if wire.has_pending_since(overdue) || wire.wants_probe() {
                        return self.probe(at, now);
                    }
                } else if node.needs_worker(self.closed_at.is_some()) {
                    return Next::StartWorker { node: at };
                } else if node.needs_worker_soon() {
                    silent = Some(at);
                }
                let retries = node.is_connected() && node.retries(now);
                if node.has_releases() && node.takes_releases() || retries {
                    releases.add(at);
                }
            }
            let view = self.view(now);
            let wants = self.survey(&view, now);
            let owing = wants.owing.and(view.connected);
            // While replies are coming promptly, what is submitted waits for them and goes together in one
            // write, which is cheaper for both sides. If they take long, it goes at once.
            let waits = self.reader.replies_flowing() && !owing.is_empty();
            let send = match waits {
                true => releases,
                false => wants.send.or(releases),
            };
            if !send.is_empty() {
                return self.send(send, now);
            }
            if let Some(next) = self.ask(&wants, now) {
                return next;
            }
            // The node's releases are written by now.
            if let Some(node) = silent.filter(|node| self.is_written_off(*node)) {
                return Next::HandOver { node };
            }
            if !wants.open {
                return self.settle(now);
            }
            if now >= wants.ends {
                // This thread may have been suspended. Replies that arrived meanwhile still count.
                let is_unprobed = |at: &usize| self.nodes[*at].wire().is_unprobed(wants.ends);
                match owing.iter().find(is_unprobed) {
                    Some(node) => return self.probe(node, now),
                    None => self.expire(now),
                }
                continue;
            }
            self.reconnect_lacking(wants.lacking);
            if !owing.is_empty() {
                return self.recv(owing, wants.ends, now);
            }
            return Next::Wait { until: wants.ends };
        }
    }

    /// Finds nodes that may no longer be masters, and leaves those that are not (rule R43).
    fn look_at_masters(&mut self, now: Instant) {
        for at in 0..self.nodes.len() {
            let connected = self.nodes[at].is_connected();
            let address = &mut self.nodes[at].wire_mut().address;
            if let Some(cause) = connected.then(|| address.take_moved()).flatten() {
                self.sever(at, cause, now);
            }
        }
    }

    /// Returns a node whose directory must be asked. Directories are asked while their node is in use.
    fn ask(&mut self, wants: &Wants, now: Instant) -> Option<Next> {
        if !wants.master {
            return None;
        }
        let is_due = |node: &Node| node.is_connected() && node.wire().address.is_due(now);
        let node = self.nodes.iter().position(is_due)?;
        let found = self.nodes[node].wire_mut().address.ask(now)?;
        Some(Next::Ask { node, found })
    }

    /// Returns the needs of the operations under way, and takes out those that are done.
    fn survey(&mut self, view: &View, now: Instant) -> Wants {
        let mut wants = Wants::new(now + self.timeouts.connect);
        for slot in self.operations.slots() {
            if !self.operations[slot].is_under_way() {
                continue;
            }
            let waits = match self.operations[slot].begun() {
                Some(_) => None,
                None => self.begin(slot, now),
            };
            let operation = &self.operations[slot];
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
                self.finish(slot, verdict, now);
                continue;
            }
            wants.add(operation, to_send, waits, view);
        }
        self.operations.shrink();
        wants
    }

    /// Whether an unresponsive node has nothing more to expect from the leader: an acquire that fails writes its
    /// releases before it returns.
    fn is_written_off(&self, at: usize) -> bool {
        let mut acquires = self.operations.under_way().filter(|one| one.is_acquire());
        !acquires.any(|one| one.sent_to.has(at) && !mutant(Mutant::LeaveBeforeUndo))
    }

    fn probe(&mut self, node: usize, now: Instant) -> Next {
        self.reader.probes(now);
        Next::Recv { node, until: now }
    }

    fn send(&mut self, nodes: NodeSet, now: Instant) -> Next {
        let idle = |at: &usize| {
            let node = &self.nodes[*at];
            node.is_connected() && node.wire().is_idle(now)
        };
        if let Some(at) = nodes.iter().find(idle) {
            return self.probe(at, now);
        }
        // A node that takes in nothing may hold up the leader for half a node timeout, so that the others still have
        // time to answer; but no operation for longer than it may take at all.
        let begun = self.operations.under_way().filter_map(Operation::begun);
        let oldest = begun.min().unwrap_or(now);
        let until = (now + self.timeouts.node / 2).min(oldest + 2 * self.timeouts.node);
        Next::Send { nodes, until }
    }

    fn recv(&mut self, owing: NodeSet, ends: Instant, now: Instant) -> Next {
        let pending_since = |at: usize| self.nodes[at].wire().pending_since();
        let (node, until) = self.reader.reads(owing, pending_since, now);
        Next::Recv {
            node,
            until: until.min(ends),
        }
    }

    /// Connects at once the nodes that callers wait for.
    fn reconnect_now(&mut self, nodes: NodeSet) {
        for at in nodes.and(self.which(Node::has_worker)).iter() {
            self.news |= self.nodes[at].reconnect_now();
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
    fn settle(&mut self, now: Instant) -> Next {
        // An operation that has ended just now, since it had all its answers when its time began, may have left a
        // release to a node that is connected.
        let owed = self.which(|node| node.has_releases() && node.takes_releases());
        if !owed.is_empty() {
            return self.send(owed, now);
        }
        let until = self.closed_at.map(|at| at + self.timeouts.node);
        let Some(until) = until.filter(|until| now < *until) else {
            return match self.starts_confirmer(ThreadRole::Leader) {
                true => Next::StartConfirmer,
                false => Next::Finished,
            };
        };
        let pending = self.which(|node| node.is_connected() && node.wire().pending() > 0);
        let unfinished = self.which(Node::has_unfinished);
        let retry_at = self.retries_at().filter(|at| *at < until);
        match (pending.is_empty(), unfinished.is_empty()) {
            (true, true) => retry_at.map_or(Next::Finished, |until| Next::Wait { until }),
            (true, false) => Next::Wait {
                until: retry_at.unwrap_or(until),
            },
            (false, _) => self.recv(pending, until, now),
        }
    }

    // ---- releases that no operation waits for

    /// Whether a thread must be started that confirms releases, and resends commands that were refused for now. If so,
    /// it counts as running from then on.
    pub(crate) fn starts_confirmer(&mut self, role: ThreadRole) -> bool {
        let starts = role == ThreadRole::Leader || !mutant(Mutant::WorkersStartNothing);
        let any = starts && (self.unconfirmed().is_some() || self.retries_at().is_some());
        self.confirmation.starts(any && self.closed_at.is_none())
    }

    /// When the next command that a node has refused for now is sent again.
    fn retries_at(&self) -> Option<Instant> {
        self.nodes.iter().filter_map(Node::retries_at).min()
    }

    /// When the oldest release that may not have been carried out was written.
    fn unconfirmed(&self) -> Option<Instant> {
        let connected = self.nodes.iter().filter(|node| node.is_connected());
        let refused = self.confirmation.some_are_refused();
        connected
            .filter_map(|node| node.wire().unconfirmed(refused))
            .min()
    }

    fn confirm(&mut self, now: Instant) -> Next {
        let (oldest, closed) = (self.unconfirmed(), self.closed_at.is_some());
        let probe_at = oldest.map(|at| (at, at + self.timeouts.node));
        let retry_at = self.retries_at();
        self.confirmation.next(probe_at, retry_at, closed, now)
    }

    // ---- sending

    /// Collects the output for these nodes, the nearest first.
    pub(crate) fn output(&mut self, mut nodes: NodeSet, out: &mut Outgoing, now: Instant) {
        out.clear();
        self.choose_operations(nodes, out, now);
        while !nodes.is_empty() {
            let at = self.reader.nearest(nodes);
            nodes.remove(at);
            self.output_to(at, out, now);
            out.parts.push((at, out.bytes.len()));
        }
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
            for slot in self.operations.slots() {
                let operation = &self.operations[slot];
                if operation.is_release() == releases {
                    let to_send = operation.to_send(&view, now).and(nodes);
                    out.operations
                        .extend((!to_send.is_empty()).then_some((slot, to_send)));
                }
            }
        }
    }

    /// Appends the bytes for one node.
    fn output_to(&mut self, at: usize, outgoing: &mut Outgoing, now: Instant) {
        let Outgoing {
            bytes, operations, ..
        } = outgoing;
        let start = bytes.len();
        let mut out = Output { bytes, start, now };
        let node = &mut self.nodes[at];
        let all = node.ping(&mut out)
            || mutant(Mutant::ReleasesLast)
            || node.write_releases(&self.operations.prefix, &mut out);
        if all && node.retries(now) {
            node.write_deferred(&self.operations.prefix, &mut out);
        }
        if all && node.is_connected() {
            self.reader.sent();
            let here = operations.iter().filter(|(_, nodes)| nodes.has(at));
            here.for_each(|(slot, _)| self.write_operation(at, *slot, &mut out));
            let prefix = &self.operations.prefix;
            self.nodes[at].wire_mut().prove(prefix, &mut out);
        }
        let node = &mut self.nodes[at];
        if mutant(Mutant::ReleasesLast) {
            node.write_releases(&self.operations.prefix, &mut out);
        }
        node.sending(&out);
        if all {
            self.undo_written(at);
        }
    }

    /// Appends an operation for a node.
    fn write_operation(&mut self, at: usize, slot: usize, out: &mut Output<'_>) {
        let (operation, prefix) = self.operations.with_prefix(slot);
        let node = &mut self.nodes[at];
        operation.sent_to.add(at);
        let (number, mut owed) = (operation.number, operation.owed());
        let shortens = matches!(operation.op.action, Action::Shorten(_));
        let late = owed
            .as_mut()
            .filter(|_| shortens)
            .map(|owed| owed.due(out.now));
        let Op {
            action,
            key,
            named_at,
            ..
        } = &operation.op;
        if named_at.is_some() && !mutant(Mutant::RedirectWithoutAsking) {
            node.wire_mut().ask(out);
        }
        // The time that a shortening leaves has begun with the operation.
        let action = late.as_ref().unwrap_or(action);
        let loads = action.loads(key);
        let means = node.wire_mut().means(loads, key);
        let pending = Pending {
            operation: Some(OperationId { slot, number }),
            owed,
            // Shortening is rare: each one is confirmed.
            alone: operation.op.only_write || shortens,
            retries: false,
            named: means.names_companions(action, key, prefix),
            loads: loads.is_some(),
            needs: action.needs(),
            ..Pending::default()
        };
        node.wire_mut().expect(pending, out);
        if late.is_none() && means.is_usual(action) {
            out.bytes.extend_from_slice(&operation.bytes);
        } else {
            action.pack(key, prefix, means, out.bytes);
        }
        node.write_deferred(prefix, out);
    }

    /// Notes that the releases for a node are written, or its connection is finished.
    fn undo_written(&mut self, at: usize) {
        let operations = self.operations.all_mut();
        operations.for_each(|operation| operation.undo_to.remove(at));
    }

    // ---- input

    pub(crate) fn input(&mut self, at: usize, input: Input<'_>, now: Instant) {
        match input {
            Input::Started(result) => {
                self.nodes[at].worker_started(result.is_ok());
                if let Err(cause) = result {
                    let cause = Arc::new(cause);
                    let operations = self.operations.open_mut();
                    operations.for_each(|operation| operation.fail(at, &cause));
                    self.away(at, cause, now);
                }
            }
            Input::Sent(result) => {
                self.nodes[at].written();
                // The thread that closes the nodes may wait for that.
                self.news |= self.closed_at.is_some();
                if let Err(cause) = result {
                    self.sever(at, cause, now);
                }
            }
            Input::Received(result) => self.received(at, result, now),
            Input::Confirmed { asked, answer } => self.confirmed(at, asked, answer, now),
            Input::Moved(to) => {
                if self.nodes[at].is_connected() && *self.nodes[at].address != *to {
                    self.sever(at, Cause::Moved(to), now);
                }
            }
        }
    }

    fn confirmed(&mut self, at: usize, asked: Instant, answer: Option<LastWord>, now: Instant) {
        let (node, timeout) = (&mut self.nodes[at], self.timeouts.node);
        node.wire_mut().address.answered(asked, answer);
        if node.is_connected() {
            let operations = self.operations.open_mut();
            operations.for_each(|operation| operation.give_time_to(at, timeout, now));
        }
        self.news = true;
    }

    fn received(&mut self, at: usize, result: Result<&[u8], Cause>, now: Instant) {
        match result {
            Ok([]) => return self.received_nothing(at, now),
            Ok(bytes) => self.nodes[at].wire_mut().receive(bytes),
            Err(cause) => return self.sever(at, cause, now),
        }
        let mut last = None;
        loop {
            let (reply, pending, sent) = match self.nodes[at].next_reply(now) {
                Ok(Some(reply)) => reply,
                Ok(None) => break,
                Err(cause) => return self.sever(at, cause, now),
            };
            let stepped = self.nodes[at].take_step(now);
            self.events.push(at, stepped, now);
            if !self.reply(at, reply, pending, now) {
                return;
            }
            last = Some(sent);
        }
        if let Some(sent) = last.filter(|_| self.nodes[at].is_connected()) {
            self.reader.heard(at, sent, now);
        }
    }

    fn received_nothing(&mut self, at: usize, now: Instant) {
        let node = &mut self.nodes[at];
        if node.is_replaceable() {
            return self.sever(at, self.no_answer(), now);
        }
        if !node.is_connected() {
            return;
        }
        let known = self.reader.found_nothing();
        node.wire_mut().probed(known);
        if let Some(since) = node.wire().pending_since() {
            let age = known.saturating_duration_since(since);
            if age >= self.timeouts.node {
                self.mark_unresponsive(at, now);
            } else {
                self.reader.in_vain(at, age, now);
            }
        }
        if self.reader.stopped_flowing() {
            self.judge_all(now);
        }
    }

    /// Handles a reply. Returns false if the connection is finished.
    fn reply(&mut self, at: usize, reply: Reply, pending: Pending, now: Instant) -> bool {
        let error = reply.error();
        let slot = pending.operation.and_then(|id| self.operations.open(id));
        if let Some(cause) = self.nodes[at].wire().elsewhere(error) {
            self.is_elsewhere(at, slot, cause, pending, now);
            return true;
        }
        if self.is_to_be_sent_anew(at, slot, error, &pending, now) {
            match slot {
                Some(slot) => self.operations[slot].sent_to.remove(at),
                None => {
                    let unloaded = Meaning::of(error) == Meaning::NoScript;
                    let lost = unloaded && mutant(Mutant::DropUnloadedRelease)
                        || !unloaded && mutant(Mutant::DropReleaseWithQueue);
                    self.add_debt(at, pending.owed.filter(|_| !lost));
                }
            }
            return true;
        }
        if pending.retries && !Meaning::of(error).passes() {
            self.nodes[at].retry_deferred();
        }
        let sent = pending.owed.as_ref().map(Debt::sent);
        let (action, key) = match (slot, &pending.owed, &sent) {
            (Some(slot), ..) => {
                let op = &self.operations[slot].op;
                (op.answered(sent.as_ref()), &op.key)
            }
            (None, Some(debt), Some(sent)) => (sent, &debt.key),
            // No caller waits for this reply. An error that ends the connection comes again.
            (None, ..) => {
                if pending.operation.is_none() {
                    self.nodes[at].pinged();
                }
                return true;
            }
        };
        let vote = action.vote(key, reply);
        if !matches!(vote, Vote::Sever(_)) {
            self.nodes[at].set_useful();
        }
        self.events.notice(at, key, action, &vote, now);
        self.defer(at, &vote, &pending, now);
        match (slot, vote) {
            (Some(slot), vote) => self.vote(slot, at, vote, now),
            (None, Vote::Sever(cause)) => {
                let owed = pending.owed;
                self.add_debt(at, owed.filter(|_| !mutant(Mutant::DropWithReply)));
                self.sever(at, cause, now);
                false
            }
            (None, Vote::Granted(NOTIFIED)) => {
                self.notified_elsewhere.add(pending.owed);
                true
            }
            (None, _) => true,
        }
    }

    /// Defers a command that a server could not carry out now, and would later.
    fn defer(&mut self, at: usize, vote: &Vote, pending: &Pending, now: Instant) {
        if matches!(vote, Vote::Failed { later: true, .. })
            && let Some(debt) = &pending.owed
            && !(pending.retries && mutant(Mutant::DeferOnce))
        {
            self.nodes[at].defer(debt.clone(), pending.retries, &mut self.rng, now);
            // Another node may have refused it, too, and its reply may not be read.
            self.confirmation.refused();
            // The thread that sends it again may be there already, and the node's worker may have to send it.
            self.news = true;
        }
    }

    /// Handles a command that a server has not carried out, since it does not have the key.
    fn is_elsewhere(
        &mut self,
        at: usize,
        slot: Option<usize>,
        cause: Cause,
        pending: Pending,
        now: Instant,
    ) {
        self.nodes[at].set_useful();
        if pending.retries {
            self.nodes[at].retry_deferred();
        }
        match slot {
            Some(slot) => {
                self.operations[slot].fail(at, &Arc::new(cause));
                self.judge(slot, &self.view(now), now);
            }
            None => {
                let owed = pending.owed.filter(|_| !mutant(Mutant::ReleaseAtOldOwner));
                let debt = owed.map(|debt| (at, debt));
                self.operations.elsewhere.extend(debt);
            }
        }
    }

    /// Whether a node has refused how a command was sent, and has done nothing.
    fn is_to_be_sent_anew(
        &mut self,
        at: usize,
        slot: Option<usize>,
        error: &str,
        pending: &Pending,
        now: Instant,
    ) -> bool {
        let key = match slot {
            Some(slot) => Some(&self.operations[slot].op.key),
            None => pending.owed.as_ref().map(|debt| &debt.key),
        };
        if pending.named && refuses_companions(error) {
            if !mutant(Mutant::UnreadRefusal) {
                self.confirmation.refused();
            }
            // The server refuses a call before it looks at its script, which was therefore not loaded. Called by its hash, it
            // would be refused once more.
            if pending.loads {
                self.nodes[at].wire_mut().forget_loaded();
            }
        }
        let Some(key) = key else {
            return false;
        };
        let wire = self.nodes[at].wire_mut();
        if pending.loads && is_not_loaded(error) {
            if !mutant(Mutant::ForgottenIsLoaded) {
                wire.forget_loaded();
            }
            return true;
        }
        let prefix = &self.operations.prefix;
        let (learned, lack) = wire.learn(error, pending.named, key, prefix);
        self.events.lacks(at, lack, now);
        learned
    }

    fn add_debt(&mut self, at: usize, debt: Option<Debt>) {
        if let Some(debt) = debt {
            self.nodes[at].add_debt(debt);
            // The node's worker writes it at once.
            self.news |= self.nodes[at].is_quarantined();
        }
    }

    /// Counts a node's vote on an operation. Returns false if the connection is finished.
    fn vote(&mut self, slot: usize, at: usize, vote: Vote, now: Instant) -> bool {
        let operation = &mut self.operations[slot];
        let acquire = operation.is_acquire();
        let vote = match vote {
            Vote::Granted(_) if operation.needs_master() => {
                let has_counted = self.nodes.len() == 1 || operation.op.key.counted.has(at);
                match self.nodes[at].withholds(acquire, has_counted, now) {
                    Some(_) if acquire && mutant(Mutant::StepIsNotUndone) => {
                        Vote::Refused(Refusal::Unknown)
                    }
                    Some(cause) => Vote::Failed {
                        cause,
                        later: false,
                    },
                    None => vote,
                }
            }
            vote => vote,
        };
        let complaint = match operation.vote(at, vote) {
            Voted::Well => None,
            Voted::Complained(cause) => Some(cause),
            Voted::Sever(cause) => {
                self.sever(at, cause, now);
                return false;
            }
        };
        if acquire {
            let event = self.nodes[at].voted(complaint);
            self.events.push(at, event, now);
        }
        self.judge(slot, &self.view(now), now);
        true
    }

    // ---- the nodes

    /// Ends a node's connection, which is finished, or on which a command may be torn. Each pending vote fails, or may
    /// be asked for again; each pending release must be sent again; the rest is dropped.
    fn sever(&mut self, at: usize, cause: Cause, now: Instant) {
        let cause = Arc::new(cause);
        let (was, wire) = self.nodes[at].sever();
        let useless_again = was == Link::Connected && self.nodes[at].is_useless_again(&wire);
        for pending in wire.into_pending() {
            match pending.operation.and_then(|id| self.operations.open(id)) {
                Some(slot) if self.operations[slot].is_open() => {
                    self.operations[slot].severed(at, &cause);
                }
                _ => self.add_debt(
                    at,
                    pending
                        .owed
                        .filter(|_| !mutant(Mutant::DropReleaseWithConnection)),
                ),
            }
        }
        if !mutant(Mutant::WaitForGone) {
            self.undo_written(at);
        }
        if let Cause::Closed(_) = *cause {
            // If one connection was closed, others may be, too.
            let nodes = self.nodes.iter_mut();
            nodes.for_each(|node| node.wire_mut().must_probe());
        }
        if let Link::Draining | Link::Quarantined = was {
            return self.tried(at, cause, now);
        }
        // When the nodes are closed there is one more try, and no time for a pause.
        if useless_again && self.closed_at.is_none() {
            let retry_at = self.nodes[at].retry_at(&mut self.rng, now);
            self.nodes[at].pause_until(retry_at);
        }
        self.away(at, cause, now);
    }

    fn no_answer(&self) -> Cause {
        Cause::NoAnswer(self.timeouts.node, Limit::Node(1))
    }

    /// Marks a node that did not answer within its time. Its connection is kept.
    fn mark_unresponsive(&mut self, at: usize, now: Instant) {
        let cause = Arc::new(self.no_answer());
        let retry_at = self.nodes[at].retry_at(&mut self.rng, now);
        self.nodes[at].mark_unresponsive(retry_at);
        for operation in self.operations.all_mut() {
            if operation.sent_to.has(at) {
                operation.fail(at, &cause);
            }
        }
        self.away(at, cause, now);
    }

    /// Notes that a try to connect has failed.
    fn tried(&mut self, at: usize, cause: Arc<Cause>, now: Instant) {
        let retry_at = self.nodes[at].retry_at(&mut self.rng, now);
        self.nodes[at].tried(retry_at, self.closed_at.is_some());
        self.unreachable(at, &cause);
        self.away(at, cause, now);
    }

    /// Fails the node for operations that were not sent to it: they need not wait for it.
    fn unreachable(&mut self, at: usize, cause: &Arc<Cause>) {
        let began = self.nodes[at].try_began();
        for operation in self.operations.open_mut() {
            operation.unreachable(at, cause, began);
        }
    }

    fn away(&mut self, at: usize, cause: Arc<Cause>, now: Instant) {
        let event = self.nodes[at].away(cause);
        self.events.push(at, event, now);
        self.changed(now);
    }

    /// Judges all operations again after a node was connected or went away: other votes can be expected now.
    fn changed(&mut self, now: Instant) {
        self.news = true;
        self.judge_all(now);
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
        // Other nodes had no time to answer.
        let overdue = now.checked_sub(SLICE);
        let slow = self.which(|node| node.wire().has_pending_since(overdue));
        let slow = slow.and(self.reader.slow());
        for operation in self.operations.open_mut() {
            operation.fail_rest(&self.nodes, slow, self.timeouts, now);
        }
        for at in silent.iter() {
            self.mark_unresponsive(at, now);
        }
        self.changed(now);
    }

    // ---- connecting without a lock

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

    // ---- verdicts

    fn judge_all(&mut self, now: Instant) {
        let view = self.view(now);
        for slot in self.operations.slots() {
            self.judge(slot, &view, now);
        }
    }

    /// Ends an operation whose verdict is certain. A failed acquire ends with its undo.
    fn judge(&mut self, slot: usize, view: &View, now: Instant) {
        let Some(verdict) = self.operations[slot].verdict(view, now) else {
            return;
        };
        if self.operations[slot].is_acquire() && verdict != Verdict::Yes {
            self.operations[slot].phase = Phase::Undoing(verdict);
            self.undo(slot);
        } else {
            self.finish(slot, verdict, now);
        }
    }

    fn undo(&mut self, slot: usize) {
        let (undo_to, release) = self.operations[slot].undo();
        for at in undo_to.iter() {
            self.add_debt(at, Some(Debt::release(release.clone())));
            if self.nodes[at].takes_releases() {
                self.operations[slot].undo_to.add(at);
            }
        }
    }

    fn finish(&mut self, slot: usize, verdict: Verdict, now: Instant) {
        self.operations[slot].phase = Phase::Free;
        if let Some(debt) = self.operations[slot].owed() {
            // The end of the lock must be sent where it was not written, or where the connection it was written on has
            // died.
            let Operation { op, sent_to, .. } = &self.operations[slot];
            let nodes = NodeSet::first(self.nodes.len()).and(op.key.sent_to);
            for at in nodes
                .without(*sent_to)
                .iter()
                .filter(|_| !mutant(Mutant::ReleaseWhereConnected))
            {
                self.add_debt(at, Some(debt.clone()));
            }
        }
        // Slots that an extension finds are put right by the refill.
        let acquired = verdict == Verdict::Yes && self.operations[slot].is_acquire();
        if acquired {
            for (at, release) in self.operations[slot].stray_releases() {
                self.add_debt(at, Some(Debt::release(release)));
            }
        }
        let operation = &mut self.operations[slot];
        let resource = &operation.op.key.resource;
        let notified_elsewhere = operation.is_acquire() && self.notified_elsewhere.take(resource);
        let answer = operation.answer(verdict, notified_elsewhere, &self.nodes, now);
        let caller = operation.caller.take();
        self.answers.extend(caller.map(|caller| (caller, answer)));
    }

    /// Recovers from a panic of the leader: which bytes were written is uncertain.
    fn recover(&mut self, now: Instant) {
        for at in self.which(Node::takes_releases).iter() {
            self.sever(at, panicked(), now);
        }
        for slot in self.operations.slots() {
            if self.operations[slot].is_under_way() {
                if self.operations[slot].is_acquire() {
                    self.undo(slot);
                }
                self.finish(slot, Verdict::Unavailable, now);
            }
        }
    }

    // ---- the workers

    fn serve(&mut self, at: usize, now: Instant) -> Next {
        loop {
            return match self.nodes[at].task(now, self.closed_at, self.timeouts) {
                NodeTask::Connect => Next::Connect { node: at },
                NodeTask::Adopt => Next::Adopt { node: at },
                NodeTask::Send { until } => {
                    let nodes = std::iter::once(at).collect();
                    Next::Send { nodes, until }
                }
                NodeTask::Recv { until } => Next::Recv { node: at, until },
                NodeTask::Pause { until } => Next::Wait { until },
                NodeTask::GiveUp => {
                    let cause = Cause::NoAnswer(self.timeouts.connect, Limit::Connect);
                    self.sever(at, cause, now);
                    continue;
                }
                NodeTask::Quarantine(reason) => {
                    self.quarantine(at, reason, now);
                    continue;
                }
                NodeTask::Reconnected => {
                    self.reconnected(at, now);
                    Next::Reconnected
                }
                NodeTask::Stop => {
                    self.nodes[at].worker_stopped();
                    self.news = true;
                    Next::Finished
                }
            };
        }
    }

    /// Quarantines a node: it is connected, and gives no votes for now.
    fn quarantine(&mut self, at: usize, reason: SitsOut, now: Instant) {
        let cause = Arc::new(reason.cause(now));
        self.unreachable(at, &cause);
        let event = self.nodes[at].quarantine(reason, cause, now);
        self.events.push(at, event, now);
        self.changed(now);
    }

    fn reconnected(&mut self, at: usize, now: Instant) {
        let event = self.nodes[at].reconnected(now);
        self.events.push(at, event, now);
        let stepped = self.nodes[at].take_step(now);
        self.events.push(at, stepped, now);
        for lack in self.nodes[at].wire().lacks() {
            self.events.lacks(at, lack, now);
        }
        if self.connected_nodes().len() >= majority(self.nodes.len()) {
            self.majority_at.get_or_insert(now);
        }
        let standing = self.nodes[at].standing(now);
        for operation in self.operations.open_mut() {
            if !operation.heed(at, &standing, now) {
                operation.give_time_to(at, self.timeouts.node, now);
            }
        }
        self.changed(now);
    }

    /// Handles a new connection to a node, or the cause why there is none. Returns whether the connection is usable.
    pub(crate) fn connected(
        &mut self,
        at: usize,
        result: Result<Handshake, Cause>,
        now: Instant,
    ) -> bool {
        self.news = true;
        if !self.nodes[at].connect_ended() {
            return false;
        }
        let handshake = result.and_then(|handshake| match self.same_server(at, &handshake) {
            Some(other) => Err(Cause::SameServer(other)),
            None => Ok(handshake),
        });
        match handshake {
            Ok(handshake) => {
                self.nodes[at].on_handshake(handshake);
                true
            }
            Err(cause) => {
                self.tried(at, Arc::new(cause), now);
                false
            }
        }
    }

    /// Another node that is connected to the same server.
    fn same_server(&self, at: usize, handshake: &Handshake) -> Option<usize> {
        let run_id = handshake.run_id.as_deref()?;
        let same = self.which(|node| node.leads_to(run_id));
        same.iter().find(|other| *other != at)
    }

    /// Closes the nodes. Commands that were sent, and releases that must still be sent, have one node timeout.
    pub(crate) fn close(&mut self, now: Instant) {
        self.closed_at = Some(now);
        // Deferred commands have one last try.
        self.nodes.iter_mut().for_each(Node::retry_deferred);
        self.reconnect_now(self.which(Node::has_releases));
        self.news = true;
    }
}

#[cfg(test)]
impl<W> Core<W> {
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
        self.majority_at
    }
}

fn panicked() -> Cause {
    Cause::Closed("a thread panicked while it used it".into())
}

#[cfg(test)]
mod tests;
