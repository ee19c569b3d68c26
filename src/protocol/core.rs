//! All nodes and all operations under way.
//!
//! One thread at a time leads: it does what [`Core::next`] returns, with the connections of the nodes
//! that are connected. Each other node has a worker, which does what [`Core::task`] returns. A connection is used by
//! the worker of its node, if there is one, and otherwise by the leader.
//!
//! Operations may be submitted at any time. Each has a time of its own, and is answered as soon as its
//! verdict is certain.

// OK because nodes are never removed, and slots only while nothing refers to them.
#![allow(clippy::indexing_slicing)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Cause, Limit, NodeErrors};
use crate::protocol::confirm::{Confirm, Confirmation};
use crate::protocol::event::{Event, Events};
use crate::protocol::guard::Guard;
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::node::{Link, Node, NodeTask, Reported, Timeouts};
use crate::protocol::operation::{Answer, Op, Operation, Phase, View, Voted};
use crate::protocol::operations::Operations;
use crate::protocol::order::{Reader, SLICE};
use crate::protocol::quorum::{NodeSet, Verdict, majority};
use crate::protocol::random::Rng;
use crate::protocol::resp::Reply;
use crate::protocol::script::{Action, Key, NOTIFIED, Notify, Vote};
use crate::protocol::server_error::{Meaning, is_not_loaded};
use crate::protocol::wire::{Handshake, OperationId, Output, Pending};

/// The maximum number of resources of which it is remembered that a release has notified another process.
const MAX_NOTIFIED_ELSEWHERE: usize = 64;

/// What the leader should do.
#[derive(Debug)]
pub(crate) enum Next {
    /// A node needs a worker, which gets its connection if it has one.
    StartWorker {
        node: usize,
    },
    Send {
        nodes: NodeSet,
        until: Instant,
    },
    /// If `until` is now: take what is here, or find that the connection was closed.
    Recv {
        node: usize,
        until: Instant,
    },
    /// For news of the workers.
    Wait {
        until: Instant,
    },
    /// No caller waits for an answer.
    Finished,
}

/// `W`: the caller that waits for an answer.
pub(crate) struct Core<W> {
    nodes: Vec<Node>,
    timeouts: Timeouts,
    reader: Reader,
    /// When a majority was connected for the first time.
    majority_at: Option<Instant>,
    /// Since when the nodes are closed.
    closed_at: Option<Instant>,
    /// For the pauses between tries to connect.
    rng: Rng,
    operations: Operations<W>,
    confirmation: Confirmation,
    /// Resources whose fire-and-forget release notified another process, oldest first.
    notified_elsewhere: VecDeque<Arc<[u8]>>,
    pub(crate) answers: Vec<(W, Answer)>,
    pub(crate) events: Events,
    /// Threads that wait for news are to be woken.
    pub(crate) news: bool,
}

/// What the operations under way want.
struct Wants {
    /// Nodes that something is to be sent to.
    send: NodeSet,
    /// Nodes that callers wait for.
    owing: NodeSet,
    /// Nodes that are not connected, and without which there are too few.
    lacking: NodeSet,
    /// When the first operation's time is over.
    ends: Instant,
    open: bool,
}

impl<W> Core<W> {
    pub(crate) fn new(
        addresses: impl Iterator<Item = Arc<str>>,
        timeouts: Timeouts,
        guard: Option<Guard>,
        seed: u64,
        now: Instant,
    ) -> Core<W> {
        let nodes: Vec<Node> = addresses.map(|address| Node::new(address, guard)).collect();
        Core {
            reader: Reader::new(nodes.len(), now),
            nodes,
            timeouts,
            majority_at: None,
            closed_at: None,
            rng: Rng::new(seed),
            operations: Operations::new(),
            confirmation: Confirmation::default(),
            notified_elsewhere: VecDeque::new(),
            answers: Vec::new(),
            events: Events::default(),
            news: false,
        }
    }

    pub(crate) fn link(&self, at: usize) -> Link {
        self.nodes[at].link()
    }

    fn which(&self, is: impl Fn(&Node) -> bool) -> NodeSet {
        let all = 0..self.nodes.len();
        all.filter(|at| is(&self.nodes[*at])).collect()
    }

    /// Nodes that operations are sent to.
    pub(crate) fn connected_nodes(&self) -> NodeSet {
        self.which(Node::is_connected)
    }

    fn view(&self) -> View {
        let is_same = |cause: &Arc<Cause>| matches!(**cause, Cause::SameServer(_));
        View {
            nodes: self.nodes.len(),
            connected: self.connected_nodes(),
            slow: self.reader.slow(),
            same_server: self.nodes.iter().filter_map(Node::cause).any(is_same),
            replies_flowing: self.reader.replies_flowing(),
        }
    }

    /// When to connect to a node again.
    fn retry_at(&mut self, at: usize, now: Instant) -> Instant {
        self.nodes[at].retry_at(&mut self.rng, now)
    }

    // ---- operations

    /// `caller` waits for the answer.
    pub(crate) fn submit(&mut self, op: Op, caller: W, now: Instant) {
        if op.action.is_release() {
            self.cancel_repairs(&op, now);
        }
        if op.action.is_release() && op.only_write {
            self.confirmation.released(now);
        }
        let slot = self.operations.submit(op, caller, now);
        self.nodes.iter_mut().for_each(Node::retry_worker);
        self.begin(slot, now);
    }

    /// What is not written yet when a lock is released never is: it would come behind the release.
    fn cancel_repairs(&mut self, release: &Op, now: Instant) {
        for slot in self.operations.slots() {
            let operation = &self.operations[slot];
            let same =
                operation.op.key.token == release.key.token && !mutant(Mutant::RepairAfterRelease);
            if operation.is_under_way() && operation.is_repair() && same {
                self.finish(slot, Verdict::Unavailable, now);
            }
        }
    }

    /// The caller that has waited longest for an answer.
    pub(crate) fn longest_waiting(&self) -> Option<&W> {
        self.operations.longest_waiting()
    }

    /// Its time begins, unless first connections are waited for: then until when.
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
        let under_way = self.nodes.iter().any(first) && !mutant(Mutant::IgnoreFirstConnections);
        if under_way && now < until {
            return Some(until);
        }
        let over = under_way && self.majority_at.is_none();
        operation.begin(now, if over { now } else { now + self.timeouts.node });
        for (at, node) in self.nodes.iter().enumerate() {
            if node.is_quarantined() {
                match node.quarantine_left(now) {
                    Some(left) => operation.fail(at, &Arc::new(Cause::Quarantined(left))),
                    // It is connected now.
                    None => self.news = true,
                }
            }
        }
        if operation.has_failed() {
            self.judge(slot, &self.view(), now);
        }
        None
    }

    // ---- the leader

    pub(crate) fn next(&mut self, now: Instant) -> Next {
        loop {
            let (mut releases, mut silent) = (NodeSet::EMPTY, None);
            for (at, node) in self.nodes.iter().enumerate() {
                if node.is_connected() && (self.is_overdue(at, now) || node.wire().wants_probe()) {
                    return self.probe(at, now);
                }
                if node.needs_worker(self.closed_at.is_some()) {
                    return Next::StartWorker { node: at };
                }
                if node.needs_worker_soon() {
                    silent = Some(at);
                }
                if node.has_releases() && node.takes_releases() {
                    releases.add(at);
                }
            }
            let wants = self.survey(now);
            let owing = wants.owing.and(self.connected_nodes());
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
            // Its releases are written by now.
            if let Some(node) = silent.filter(|node| self.is_written_off(*node)) {
                return Next::StartWorker { node };
            }
            if !wants.open {
                return self.settle(now);
            }
            if now >= wants.ends {
                // The program itself may have slept: what has come meanwhile counts.
                let is_unprobed = |at: &usize| self.nodes[*at].wire().is_unprobed(wants.ends);
                match owing.iter().find(is_unprobed) {
                    Some(node) => return self.probe(node, now),
                    None => self.expire(now),
                }
                continue;
            }
            // What follows a master takes its time, and its name is not looked up more often for that (rule R39).
            self.reconnect_now(wants.lacking.without(self.which(Node::is_replica)));
            if !owing.is_empty() {
                return self.recv(owing, wants.ends, now);
            }
            return Next::Wait { until: wants.ends };
        }
    }

    /// Whether a node has not answered within its time.
    fn is_overdue(&self, at: usize, now: Instant) -> bool {
        let latest = now.checked_sub(self.timeouts.node);
        let since = self.nodes[at].wire().pending_since();
        since.is_some_and(|since| Some(since) <= latest)
    }

    /// What the operations under way want, with those that are done taken out.
    fn survey(&mut self, now: Instant) -> Wants {
        let mut wants = Wants {
            send: NodeSet::EMPTY,
            owing: NodeSet::EMPTY,
            lacking: NodeSet::EMPTY,
            ends: now + self.timeouts.connect,
            open: false,
        };
        let view = self.view();
        for slot in self.operations.slots() {
            let waits = self.begin(slot, now);
            let operation = &self.operations[slot];
            let to_send = operation.to_send(&view, now);
            let done = match operation.phase {
                Phase::Free => continue,
                Phase::Undoing(verdict) if operation.undo_to.is_empty() => {
                    Some(operation.undone(verdict, &view))
                }
                Phase::Open if operation.op.only_write && to_send.is_empty() => {
                    Some(operation.written(&view))
                }
                _ => None,
            };
            if let Some(verdict) = done {
                self.finish(slot, verdict, now);
                continue;
            }
            wants.open = true;
            wants.send = wants.send.or(to_send);
            if operation.is_open() {
                wants.owing = wants.owing.or(operation.owing());
                wants.ends = wants.ends.min(operation.waits_until(waits));
                wants.lacking = wants.lacking.or(operation.lacking(to_send, &view));
            }
        }
        self.operations.shrink();
        wants
    }

    /// Whether an unresponsive node has nothing more to expect from the leader: an acquire that fails
    /// writes its releases before it returns.
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
        // A node that takes in nothing may hold up the leader for half a node timeout, so that the others
        // still have time to answer; and no operation for longer than it may take at all.
        let mut until = now + self.timeouts.node / 2;
        for operation in self.operations.under_way() {
            let begun = operation.begun().unwrap_or(now);
            until = until.min(begun + 2 * self.timeouts.node);
        }
        Next::Send { nodes, until }
    }

    /// The nearest of these nodes.
    pub(crate) fn nearest(&self, any_of: NodeSet) -> usize {
        self.reader.nearest(any_of)
    }

    fn recv(&mut self, owing: NodeSet, ends: Instant, now: Instant) -> Next {
        let pending_since = |at: usize| self.nodes[at].wire().pending_since();
        let (node, until) = self.reader.reads(owing, pending_since, now);
        Next::Recv {
            node,
            until: until.min(ends),
        }
    }

    /// Nodes that callers wait for are connected at once.
    fn reconnect_now(&mut self, nodes: NodeSet) {
        for at in nodes.and(self.which(Node::has_worker)).iter() {
            self.news |= self.nodes[at].reconnect_now();
        }
    }

    /// No caller waits for an answer. When the nodes are closed, what was sent is waited
    /// for a little: closing on unread replies resets a connection, and the server may then drop a
    /// release that it has not read yet.
    fn settle(&mut self, now: Instant) -> Next {
        let until = self.closed_at.map(|at| at + self.timeouts.node);
        let Some(until) = until.filter(|until| now < *until) else {
            return Next::Finished;
        };
        let pending = self.which(|node| node.is_connected() && node.wire().pending() > 0);
        let unfinished = self.which(Node::has_unfinished);
        match (pending.is_empty(), unfinished.is_empty()) {
            (true, true) => Next::Finished,
            (true, false) => Next::Wait { until },
            (false, _) => self.recv(pending, until, now),
        }
    }

    // ---- releases that no operation waits for

    /// The leader has ended. Whether a thread is to confirm such releases.
    pub(crate) fn wants_confirmer(&mut self) -> bool {
        let unconfirmed = self.closed_at.is_none() && self.unconfirmed().is_some();
        self.confirmation.starts(unconfirmed)
    }

    /// Since when it is not known whether all of them were carried out.
    fn unconfirmed(&self) -> Option<Instant> {
        let connected = self.nodes.iter().filter(|node| node.is_connected());
        connected.filter_map(|node| node.wire().unconfirmed()).min()
    }

    /// What the thread should do that confirms them.
    pub(crate) fn confirm(&mut self, now: Instant) -> Confirm {
        let (oldest, closed) = (self.unconfirmed(), self.closed_at.is_some());
        self.confirmation
            .next(oldest, self.timeouts.node, closed, now)
    }

    /// There is no such thread: it could not be started, or a bug has ended it.
    pub(crate) fn confirmer_ended(&mut self) {
        self.confirmation.ended();
    }

    // ---- sending

    /// Appends the bytes for a node to `bytes`.
    pub(crate) fn output(&mut self, at: usize, bytes: &mut Vec<u8>, now: Instant) {
        let start = bytes.len();
        let mut out = Output { bytes, start, now };
        let node = &mut self.nodes[at];
        // Releases come first, or a lock that is free already would be denied.
        let all =
            node.ping(&mut out) || mutant(Mutant::ReleasesLast) || node.write_releases(&mut out);
        if all && node.is_connected() {
            self.reader.sent();
            let view = self.view();
            self.write_operations(at, true, &view, &mut out);
            self.write_operations(at, false, &view, &mut out);
        }
        let node = &mut self.nodes[at];
        if mutant(Mutant::ReleasesLast) {
            node.write_releases(&mut out);
        }
        node.sending(&out);
        if all {
            self.undo_written(at);
        }
    }

    /// Appends the operations that are to be sent to a node: the releases, or the others.
    fn write_operations(&mut self, at: usize, releases: bool, view: &View, out: &mut Output<'_>) {
        for slot in self.operations.slots() {
            let (operation, node) = (&mut self.operations[slot], &mut self.nodes[at]);
            if operation.is_release() != releases || !operation.to_send(view, out.now).has(at) {
                continue;
            }
            operation.sent_to.add(at);
            let number = operation.number;
            let pending = Pending {
                operation: Some(OperationId { slot, number }),
                release: releases.then(|| operation.op.key.clone()),
                alone: operation.op.only_write,
                retries: false,
            };
            node.wire_mut().expect(pending, out);
            if node.wire().handshake.by_hash {
                out.bytes.extend_from_slice(&operation.bytes);
            } else {
                let Op { action, key, .. } = &operation.op;
                action.pack(key, false, out.bytes);
            }
            node.write_deferred(out);
        }
    }

    /// The releases for a node are written, or its connection is finished.
    fn undo_written(&mut self, at: usize) {
        let operations = self.operations.all_mut();
        operations.for_each(|operation| operation.undo_to.remove(at));
    }

    // ---- replies

    /// What has come from a node; no bytes: nothing did in time.
    pub(crate) fn received(&mut self, at: usize, result: Result<&[u8], Cause>, now: Instant) {
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

    /// False: the connection is finished.
    fn reply(&mut self, at: usize, reply: Reply, pending: Pending, now: Instant) -> bool {
        let error = match &reply {
            Reply::Error(text) => text,
            _ => "",
        };
        let slot = pending.operation.and_then(|id| self.operations.open(id));
        if is_not_loaded(error) {
            // Nothing was done. It is sent again, with the script's text.
            self.nodes[at].wire_mut().handshake.by_hash = false;
            match slot {
                Some(slot) => self.operations[slot].sent_to.remove(at),
                None => self.add_release(
                    at,
                    pending
                        .release
                        .filter(|_| !mutant(Mutant::DropUnloadedRelease)),
                ),
            }
            return true;
        }
        if pending.retries && !Meaning::of(error).is_not_now() {
            self.nodes[at].retry_deferred();
        }
        let (action, key) = match (slot, &pending.release) {
            (Some(slot), _) => {
                let Op { action, key, .. } = &self.operations[slot].op;
                (action, key)
            }
            (None, Some(release)) => (&Action::Release(Notify::First), release),
            // No caller waits for it. An error that ends the connection comes again.
            (None, None) => {
                if pending.operation.is_none() {
                    self.nodes[at].pinged();
                }
                return true;
            }
        };
        let vote = action.vote(&key.token, reply);
        if !matches!(vote, Vote::Sever(_)) {
            self.nodes[at].set_useful();
        }
        self.events.notice(at, key, action, &vote, now);
        let later = matches!(vote, Vote::Failed { later: true, .. });
        if let Some(release) = pending.release.clone().filter(|_| later) {
            self.nodes[at].defer(release);
        }
        match (slot, vote) {
            (Some(slot), vote) => self.vote(slot, at, vote, now),
            (None, Vote::Sever(cause)) => {
                self.add_release(at, pending.release);
                self.sever(at, cause, now);
                false
            }
            (None, Vote::Granted(NOTIFIED)) => {
                self.has_notified_elsewhere(pending.release);
                true
            }
            (None, _) => true,
        }
    }

    /// A release that no operation waits for has notified another process. The next acquire of the resource learns that.
    fn has_notified_elsewhere(&mut self, release: Option<Key>) {
        let Some(resource) = release.map(|release| release.resource) else {
            return;
        };
        if !self.notified_elsewhere.contains(&resource) {
            self.notified_elsewhere.push_back(resource);
        }
        if self.notified_elsewhere.len() > MAX_NOTIFIED_ELSEWHERE {
            self.notified_elsewhere.pop_front();
        }
    }

    fn take_notified_elsewhere(&mut self, slot: usize) -> bool {
        let operation = &self.operations[slot];
        if self.notified_elsewhere.is_empty() || !operation.is_acquire() {
            return false;
        }
        let is = |resource: &Arc<[u8]>| *resource == operation.op.key.resource;
        let at = self.notified_elsewhere.iter().position(is);
        at.and_then(|at| self.notified_elsewhere.remove(at))
            .is_some()
    }

    fn add_release(&mut self, at: usize, release: Option<Key>) {
        if let Some(release) = release {
            self.nodes[at].add_release(release);
            // Its worker writes it at once.
            self.news |= self.nodes[at].is_quarantined();
        }
    }

    /// A node has voted on an operation. False: the connection is finished.
    fn vote(&mut self, slot: usize, at: usize, vote: Vote, now: Instant) -> bool {
        let operation = &mut self.operations[slot];
        let acquire = operation.is_acquire();
        let complaint = match operation.vote(at, vote) {
            Voted::Well => None,
            Voted::Complained(cause) => Some(cause),
            Voted::Sever(cause) => {
                self.sever(at, cause, now);
                return false;
            }
        };
        if acquire {
            self.report_votes(at, complaint, now);
        }
        self.judge(slot, &self.view(), now);
        true
    }

    /// A connected node gives votes, or a reason why not.
    fn report_votes(&mut self, at: usize, complaint: Option<Arc<Cause>>, now: Instant) {
        match (complaint, self.nodes[at].reported) {
            (Some(cause), Reported::Well) => {
                self.report(at, Reported::GivesNoVotes, Event::GivesNoVotes(cause), now);
            }
            (None, Reported::GivesNoVotes) => {
                let dropped = self.nodes[at].take_dropped();
                self.report(at, Reported::Well, Event::VotesAgain(dropped), now);
            }
            _ => {}
        }
    }

    fn report(&mut self, at: usize, reported: Reported, event: Event, now: Instant) {
        self.nodes[at].reported = reported;
        self.events.push(at, event, now);
    }

    // ---- the nodes

    /// A node's connection is finished, or a command may be torn on it. Each pending vote fails, or may be
    /// asked for again; each pending release is to be sent again; the rest is dropped.
    pub(crate) fn sever(&mut self, at: usize, cause: Cause, now: Instant) {
        let cause = Arc::new(cause);
        let (was, wire) = self.nodes[at].sever();
        let useless_again = was == Link::Connected && self.nodes[at].is_useless_again(&wire);
        for pending in wire.into_pending() {
            match pending.operation.and_then(|id| self.operations.open(id)) {
                Some(slot) if self.operations[slot].is_open() => {
                    self.operations[slot].severed(at, &cause);
                }
                _ => self.add_release(
                    at,
                    pending
                        .release
                        .filter(|_| !mutant(Mutant::DropReleaseWithConnection)),
                ),
            }
        }
        self.undo_written(at);
        if let Cause::Closed(_) = *cause {
            // Where one connection was closed others may be too.
            let nodes = self.nodes.iter_mut();
            nodes.for_each(|node| node.wire_mut().must_probe());
        }
        if let Link::Draining | Link::Quarantined = was {
            return self.tried(at, cause, now);
        }
        if useless_again {
            let retry_at = self.retry_at(at, now);
            self.nodes[at].pause_until(retry_at);
        }
        self.away(at, cause, now);
    }

    fn no_answer(&self) -> Cause {
        Cause::NoAnswer(self.timeouts.node, Limit::Node(1))
    }

    /// A node did not answer within its time. Its connection is kept.
    fn mark_unresponsive(&mut self, at: usize, now: Instant) {
        let cause = Arc::new(self.no_answer());
        let retry_at = self.retry_at(at, now);
        self.nodes[at].mark_unresponsive(retry_at);
        for operation in self.operations.all_mut() {
            if operation.sent_to.has(at) {
                operation.fail(at, &cause);
            }
        }
        self.away(at, cause, now);
    }

    /// A try to connect has failed.
    fn tried(&mut self, at: usize, cause: Arc<Cause>, now: Instant) {
        let retry_at = self.retry_at(at, now);
        self.nodes[at].tried(retry_at, self.closed_at.is_some());
        self.unreachable(at, &cause);
        self.away(at, cause, now);
    }

    /// Operations that were not sent to a node need not wait for it.
    fn unreachable(&mut self, at: usize, cause: &Arc<Cause>) {
        let began = self.nodes[at].try_began();
        for operation in self.operations.open_mut() {
            operation.unreachable(at, cause, began);
        }
    }

    fn away(&mut self, at: usize, cause: Arc<Cause>, now: Instant) {
        self.nodes[at].away(cause.clone());
        if self.nodes[at].reported != Reported::Away {
            self.report(at, Reported::Away, Event::Away(cause), now);
        }
        self.changed(now);
    }

    /// A node was connected or is away: which votes can still be expected has changed.
    fn changed(&mut self, now: Instant) {
        self.news = true;
        self.judge_all(now);
    }

    /// The time of one or more operations is over.
    fn expire(&mut self, now: Instant) {
        let connected = self.connected_nodes();
        let mut silent = NodeSet::EMPTY;
        for operation in self.operations.open_mut() {
            if operation.expire(now) {
                silent = silent.or(operation.owing().and(connected));
            }
        }
        // Others had no time to answer.
        let latest = now.checked_sub(SLICE);
        let had_time = |node: &Node| {
            let since = node.wire().pending_since();
            since.is_some_and(|since| Some(since) <= latest)
        };
        let slow = self.which(had_time).and(self.reader.slow());
        for operation in self.operations.open_mut() {
            operation.fail_rest(&self.nodes, slow, self.timeouts, now);
        }
        for at in silent.iter() {
            self.mark_unresponsive(at, now);
        }
        self.changed(now);
    }

    // ---- connecting without a lock

    /// Nodes that are away are connected at once, without a pause. How many tries have ended so far.
    pub(crate) fn connect_now(&mut self) -> Vec<u64> {
        self.reconnect_now(NodeSet::first(self.nodes.len()));
        self.nodes.iter().map(Node::tries).collect()
    }

    /// Whether each node is connected, or has been tried since then.
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
        let view = self.view();
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
            self.add_release(at, Some(release.clone()));
            if self.nodes[at].takes_releases() {
                self.operations[slot].undo_to.add(at);
            }
        }
    }

    fn finish(&mut self, slot: usize, verdict: Verdict, now: Instant) {
        self.operations[slot].phase = Phase::Free;
        if self.operations[slot].is_release() {
            // It is to be sent where it was not written, or where the connection it was written on has died.
            let Operation { op, sent_to, .. } = &self.operations[slot];
            let nodes = NodeSet::first(self.nodes.len()).and(op.key.sent_to);
            let (release, rest) = (op.key.clone(), nodes.without(*sent_to));
            for at in rest.iter() {
                self.add_release(at, Some(release.clone()));
            }
        }
        let notified_elsewhere = self.take_notified_elsewhere(slot);
        let operation = &mut self.operations[slot];
        let answer = operation.answer(verdict, notified_elsewhere, &self.nodes, now);
        let caller = operation.caller.take();
        self.answers.extend(caller.map(|caller| (caller, answer)));
    }

    /// After a panic of the leader, which only a bug can be: what was written is not known any more.
    pub(crate) fn recover(&mut self, held: NodeSet, now: Instant) {
        for at in held.iter() {
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

    /// A thread was started for a node, or could not be.
    pub(crate) fn worker_started(&mut self, at: usize, result: Result<(), Cause>, now: Instant) {
        self.nodes[at].worker_started(result.is_ok());
        if let Err(cause) = result {
            let cause = Arc::new(cause);
            for operation in self.operations.open_mut() {
                operation.fail(at, &cause);
            }
            self.away(at, cause, now);
        }
    }

    /// What a node's worker should do.
    pub(crate) fn task(&mut self, at: usize, now: Instant) -> NodeTask {
        loop {
            let task = self.nodes[at].task(now, self.closed_at, self.timeouts);
            match task {
                NodeTask::GiveUp => {
                    let cause = Cause::NoAnswer(self.timeouts.connect, Limit::Connect);
                    self.sever(at, cause, now);
                }
                NodeTask::Quarantine => self.quarantine(at, now),
                NodeTask::Reconnected => {
                    self.reconnected(at, now);
                    return task;
                }
                NodeTask::Stop => {
                    self.nodes[at].worker_stopped();
                    self.news = true;
                    return task;
                }
                task => return task,
            }
        }
    }

    /// A node is connected, and gives no votes for now.
    fn quarantine(&mut self, at: usize, now: Instant) {
        let left = self.nodes[at].quarantine_left(now).unwrap_or_default();
        let cause = Arc::new(Cause::Quarantined(left));
        self.unreachable(at, &cause);
        if self.nodes[at].quarantine(cause, now) {
            self.events.push(at, Event::Quarantined(left), now);
        }
        self.nodes[at].reported = Reported::Away;
        self.changed(now);
    }

    fn reconnected(&mut self, at: usize, now: Instant) {
        self.nodes[at].reconnected(now);
        if self.connected_nodes().len() >= majority(self.nodes.len()) {
            self.majority_at.get_or_insert(now);
        }
        for operation in self.operations.open_mut() {
            operation.give_time_to(at, self.timeouts.node, now);
        }
        if self.nodes[at].reported == Reported::Away {
            let dropped = self.nodes[at].take_dropped();
            let replaced = self.nodes[at].take_replaced();
            self.report(at, Reported::Well, Event::Back(dropped, replaced), now);
        }
        self.changed(now);
    }

    /// A worker has written what it was given.
    pub(crate) fn written(&mut self, at: usize, result: Result<(), Cause>, now: Instant) {
        self.nodes[at].written();
        // The thread that closes the nodes may wait for that.
        self.news |= self.closed_at.is_some();
        if let Err(cause) = result {
            self.sever(at, cause, now);
        }
    }

    /// A worker cannot go on, which only a bug can be.
    pub(crate) fn deserted(&mut self, at: usize, now: Instant) {
        self.nodes[at].deserted();
        self.sever(at, panicked(), now);
    }

    /// A new connection to a node, or why there is none. Whether it is of any use.
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

    /// The nodes are closed. What was sent, and releases that are still to be sent, have one node timeout.
    pub(crate) fn close(&mut self, now: Instant) {
        self.closed_at = Some(now);
        // What was deferred has one last try.
        self.nodes.iter_mut().for_each(Node::retry_deferred);
        self.reconnect_now(self.which(Node::has_releases));
        self.news = true;
    }
}

#[cfg(test)]
impl<W> Core<W> {
    /// What is unfinished, if anything is.
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
mod tests {
    use super::*;
    use crate::clock;
    use crate::protocol::operation::Outcome;
    use crate::protocol::quorum::Ttl;
    use crate::token::Token;

    const MS: Duration = Duration::from_millis(1);

    /// One node, which was not connected yet.
    struct World {
        core: Core<u8>,
        now: Instant,
        sent: Vec<u8>,
    }

    impl World {
        fn new() -> World {
            let now = clock::instant();
            let timeouts = Timeouts {
                node: 50 * MS,
                connect: 1000 * MS,
            };
            let addresses = std::iter::once(Arc::from("x"));
            World {
                core: Core::new(addresses, timeouts, None, 1, now),
                now,
                sent: Vec::new(),
            }
        }

        fn acquire(&mut self) {
            self.acquire_until(None);
        }

        /// An answer is of no use after this time.
        fn acquire_until(&mut self, useful: Option<Duration>) {
            let ttl = Ttl::new(1000 * MS).unwrap();
            let key = Key::new(Arc::from(&b"a"[..]), Token::from_bytes([7; 20]), None);
            let useful = useful.map(|useful| self.now + useful);
            let op = Op::new(Action::Acquire(ttl), key).until(useful);
            self.core.submit(op, 0, self.now);
        }

        /// What the leader should do, once the node has a worker.
        fn next(&mut self) -> Next {
            match self.core.next(self.now) {
                Next::StartWorker { node } => {
                    self.core.worker_started(node, Ok(()), self.now);
                    self.core.next(self.now)
                }
                next => next,
            }
        }

        fn begin_to_connect(&mut self) {
            self.next();
            let task = self.core.task(0, self.now);
            assert!(matches!(task, NodeTask::Connect), "{task:?}");
        }

        fn connected(&mut self, result: Result<(), Cause>) {
            self.now += 10 * MS;
            let handshake = result.map(|()| Handshake {
                by_hash: true,
                ..Handshake::default()
            });
            if self.core.connected(0, handshake, self.now) {
                let errands = [(); 2].map(|()| self.core.task(0, self.now));
                assert!(matches!(errands, [NodeTask::Adopt, NodeTask::Reconnected]));
            }
        }

        /// The output is sent, and answered by this.
        fn answers(&mut self, reply: &[u8]) {
            let next = self.next();
            assert!(matches!(next, Next::Send { .. }), "{next:?}");
            self.core.output(0, &mut self.sent, self.now);
            self.now += MS;
            self.core.received(0, Ok(reply), self.now);
        }

        /// Why too few nodes have answered, if that is certain, and whether for good.
        fn failure(&mut self) -> Option<(String, bool)> {
            self.next();
            let (_, answer) = self.core.answers.pop()?;
            match answer.outcome {
                Outcome::Unavailable { errors, .. } => {
                    Some((errors.to_string(), errors.is_permanent()))
                }
                _ => None,
            }
        }
    }

    #[test]
    fn a_connection_that_must_log_in_again_is_replaced_and_refuses_nothing_for_good() {
        let mut world = World::new();
        world.acquire();
        world.begin_to_connect();
        world.connected(Ok(()));
        world.answers(b"-NOAUTH Authentication required.\r\n");
        let (text, for_good) = world.failure().unwrap();
        assert!(text.contains("NOAUTH") && !for_good, "{text}");
        // A refusal of the new one is final.
        world.now += 1000 * MS;
        world.acquire();
        world.begin_to_connect();
        world.connected(Err(Cause::refused("NOAUTH Authentication required.")));
        let (text, for_good) = world.failure().unwrap();
        assert!(text.contains("NOAUTH") && for_good, "{text}");
    }

    #[test]
    fn a_replica_is_left_at_once_and_tried_again_after_pauses_that_no_operation_shortens() {
        let mut world = World::new();
        world.acquire();
        world.begin_to_connect();
        world.connected(Ok(()));
        world.answers(b"-READONLY You can't write against a read only replica.\r\n");
        let (text, for_good) = world.failure().unwrap();
        assert!(
            text.contains("is a replica now: READONLY") && !for_good,
            "{text}"
        );
        // Its name may lead to another one already.
        world.begin_to_connect();
        world.connected(Err(Cause::Replica(None)));
        for _ in 0..10 {
            world.acquire();
            world.next();
            let task = world.core.task(0, world.now);
            assert!(matches!(task, NodeTask::Pause { .. }), "{task:?}");
        }
        world.now += 1000 * MS;
        world.begin_to_connect();
        world.connected(Err(Cause::Replica(None)));
        let (text, for_good) = world.failure().unwrap();
        assert!(text.contains("it is tried again") && !for_good, "{text}");
        // Elsewhere they are shortened.
        world.now += 1000 * MS;
        world.begin_to_connect();
        world.connected(Err(Cause::Connect("refused".into())));
        world.acquire();
        world.begin_to_connect();
    }

    #[test]
    fn a_try_to_connect_that_began_before_an_acquire_does_not_end_it_for_good() {
        let wrong = || Err(Cause::refused("WRONGPASS invalid"));
        let mut world = World::new();
        world.acquire();
        world.begin_to_connect();
        world.connected(wrong());
        let (text, for_good) = world.failure().unwrap();
        assert!(text.contains("WRONGPASS") && for_good, "{text}");
        // This one is wanted while the next try is under way.
        world.now += 1000 * MS;
        world.begin_to_connect();
        world.now += MS;
        world.acquire();
        world.connected(wrong());
        assert_eq!(world.failure(), None);
        world.begin_to_connect();
        world.connected(wrong());
        let (_, for_good) = world.failure().unwrap();
        assert!(for_good);
        // What may pass anyhow ends a try as it always did.
        world.now += 1000 * MS;
        world.begin_to_connect();
        world.now += MS;
        world.acquire();
        world.connected(Err(Cause::Connect("refused".into())));
        assert!(!world.failure().unwrap().1);
    }

    #[test]
    fn an_acquire_of_no_more_use_names_what_is_known_and_blames_no_node() {
        let failure = |world: &mut World, passes| {
            world.now += passes;
            world.next();
            match world.core.answers.pop().unwrap().1.outcome {
                Outcome::Unavailable {
                    errors, useless, ..
                } => (errors.iter().count(), useless, errors.to_string()),
                _ => panic!("there are answers"),
            }
        };
        // While it still connects.
        let mut world = World::new();
        world.acquire_until(Some(MS));
        world.begin_to_connect();
        let (named, useless, _) = failure(&mut world, MS);
        assert_eq!((named, useless), (1, true));
        // It was too late to ask.
        world.connected(Ok(()));
        world.acquire_until(Some(Duration::ZERO));
        let (named, useless, text) = failure(&mut world, Duration::ZERO);
        assert_eq!((named, useless), (1, true));
        assert!(text.ends_with("not asked in time"), "{text}");
        // It has not answered: it may have had no time for that.
        for (until, expected) in [(3, true), (4, false), (51, false)] {
            let mut world = World::new();
            world.begin_to_connect();
            world.connected(Ok(()));
            world.acquire_until(Some(until * MS));
            assert!(matches!(world.next(), Next::Send { .. }));
            world.core.output(0, &mut world.sent, world.now);
            world.now += until.min(50) * MS;
            // Nothing has come; its undo is written.
            loop {
                match world.next() {
                    Next::Recv { .. } => world.core.received(0, Ok(&[]), world.now),
                    Next::Send { .. } => world.core.output(0, &mut world.sent, world.now),
                    _ => break,
                }
            }
            let (named, useless, text) = failure(&mut world, Duration::ZERO);
            assert_eq!((named, useless), (1, expected), "{until}: {text}");
        }
        // It cannot be connected.
        let mut world = World::new();
        world.acquire();
        world.begin_to_connect();
        world.connected(Err(Cause::Connect("refused".into())));
        world.failure();
        world.acquire_until(Some(MS));
        let (named, useless, text) = failure(&mut world, MS);
        assert_eq!((named, useless), (1, false), "{text}");
        assert!(text.ends_with("refused"), "{text}");
    }

    /// It was never there.
    #[test]
    fn nothing_is_logged_of_the_undo_of_an_acquire_that_a_server_refused() {
        let mut world = World::new();
        world.acquire();
        world.begin_to_connect();
        world.connected(Ok(()));
        world.answers(b"-NOPERM this user may not\r\n");
        world.sent.clear();
        world.answers(b"-NOPERM this user may not\r\n");
        let undo = world.sent.escape_ascii().to_string();
        assert!(undo.contains("EVALSHA"), "{undo}");
        let (_, for_good) = world.failure().unwrap();
        assert!(for_good);
        let notice = |(_, event, _): &(usize, Event, Instant)| matches!(event, Event::Notice(..));
        assert!(!world.core.events.take().iter().any(notice));
    }
}
