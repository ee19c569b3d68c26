//! All nodes and all operations under way.
//!
//! One thread at a time leads: it does what [`Core::next`] says, with the connections of the nodes
//! that are here. Each node that is not has a worker, which does what [`Core::task`] says. Who
//! may use a connection, in one sentence: of a node that is here, the leader; of one that is not and
//! is attended, its worker; of any other, the leader.
//!
//! Operations may be submitted at any time. Each has a time of its own, and is answered as soon as its
//! verdict is certain.

// OK because nodes and places are never removed, so an index that was valid once always is.
#![allow(clippy::indexing_slicing)]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Cause, Limit, NodeError, NodeErrors};
use crate::protocol::guard::{Guard, retry_after};
use crate::protocol::mutant;
use crate::protocol::node::{
    Handshake, Link, Node, NodeTask, OperationId, Output, Pending, Reported,
};
use crate::protocol::notice::{Notice, Notices};
use crate::protocol::operation::{Answer, Op, Operation, Outcome, Phase};
use crate::protocol::order::{Order, SLICE};
use crate::protocol::quorum::{NodeSet, Question, Tally, Verdict, majority};
use crate::protocol::resp::Reply;
use crate::protocol::script::{Action, Key, NOTIFIED, Notify, Vote};
use crate::protocol::server_error::{Meaning, is_not_loaded};

/// So many places are kept for operations to come.
const PLACES: usize = 64;
/// So many resources of which a release has told another process are remembered until they are acquired again.
const MAX_NOTIFIED_ELSEWHERE: usize = 64;
/// The thread that confirms releases ends so long after the last one.
const LINGER: Duration = Duration::from_millis(500);
/// So many events wait to be logged at most.
const MAX_EVENTS: usize = 1000;

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
    /// Nobody waits for an answer.
    Finished,
}

/// What the thread should do that confirms releases.
#[derive(Debug)]
pub(crate) enum Confirm {
    /// Lead, unless another thread does: that finds what has come.
    Look,
    /// Unless nobody needs the nodes any more.
    Wait { until: Instant },
    /// Nothing is left to be confirmed: go.
    End,
}

/// What has happened to a node, for the log.
#[derive(Debug)]
pub(crate) enum Event {
    Away(Arc<Cause>),
    /// So many releases due to it were too many to be remembered; and whether it is another server.
    Back(u64, bool),
    /// Its server may have forgotten locks.
    SitsOut(Duration),
    GivesNoVotes(Arc<Cause>),
    VotesAgain(u64),
    /// Of a resource, which is not about its votes.
    Notice(Arc<[u8]>, Notice),
}

/// `W`: who waits for an answer.
pub(crate) struct Core<W> {
    nodes: Vec<Node>,
    here: NodeSet,
    /// Those that are connected and give no votes (rule R16).
    quarantined: NodeSet,
    node_timeout: Duration,
    connect_timeout: Duration,
    order: Order,
    /// When the leader began to wait for the node that it reads from.
    reading: Instant,
    /// Replies are coming promptly: since something was last sent the leader has not waited in vain.
    replies_flowing: bool,
    /// When a majority was here for the first time.
    majority_at: Option<Instant>,
    /// Two nodes are one server (rule R1).
    same_server: bool,
    /// Since when nobody needs the nodes any more.
    closed_at: Option<Instant>,
    /// The state of a random generator, for the pauses between tries to connect.
    rng: u64,
    operations: Vec<Operation<W>>,
    /// How many of them are repairs.
    repairs: usize,
    submitted: u64,
    /// When a release was last submitted that no operation waits for, and whether a thread confirms those.
    released: Option<Instant>,
    confirms: bool,
    /// What releases that nobody waited for have passed on to other processes, the oldest first.
    passed: VecDeque<Arc<[u8]>>,
    pub(crate) answers: Vec<(W, Answer)>,
    notices: Notices,
    /// With their nodes, and when they happened.
    pub(crate) events: Vec<(usize, Event, Instant)>,
    /// Whoever waits for news should look.
    pub(crate) news: bool,
}

/// What the operations under way want.
struct Wants {
    /// Nodes that something is to be sent to.
    send: NodeSet,
    /// Nodes that somebody waits for.
    owing: NodeSet,
    /// Nodes that are not here, and without which there are too few.
    lacking: NodeSet,
    /// When the first operation's time is over.
    ends: Instant,
    open: bool,
}

impl<W> Core<W> {
    pub(crate) fn new(
        addresses: impl Iterator<Item = Arc<str>>,
        (node_timeout, connect_timeout): (Duration, Duration),
        guard: Option<Guard>,
        rng: u64,
        now: Instant,
    ) -> Core<W> {
        let nodes: Vec<Node> = addresses.map(|address| Node::new(address, guard)).collect();
        Core {
            order: Order::new(nodes.len(), now),
            nodes,
            here: NodeSet::EMPTY,
            quarantined: NodeSet::EMPTY,
            node_timeout,
            connect_timeout,
            reading: now,
            replies_flowing: false,
            majority_at: None,
            same_server: false,
            closed_at: None,
            rng: rng | 1,
            operations: Vec::new(),
            repairs: 0,
            submitted: 0,
            released: None,
            confirms: false,
            passed: VecDeque::new(),
            answers: Vec::new(),
            notices: Notices::default(),
            events: Vec::new(),
            news: false,
        }
    }

    pub(crate) fn link(&self, at: usize) -> Link {
        self.nodes[at].link
    }

    fn which(&self, is: impl Fn(&Node) -> bool) -> NodeSet {
        let all = 0..self.nodes.len();
        all.filter(|at| is(&self.nodes[*at])).collect()
    }

    /// When to connect to a node again.
    fn retry_at(&mut self, at: usize, now: Instant) -> Instant {
        self.rng ^= self.rng << 13;
        self.rng ^= self.rng >> 7;
        self.rng ^= self.rng << 17;
        let pause = self.nodes[at].pause();
        now + pause / 2 + pause / 2048 * u32::try_from(self.rng % 1024).unwrap_or(0)
    }

    // ---- operations

    /// `who` waits for the answer.
    pub(crate) fn submit(&mut self, op: Op, who: W, now: Instant) {
        self.submitted += 1;
        if op.action.is_release() && self.repairs > 0 {
            self.cancel_repairs(&op, now);
        }
        if op.action.is_release() && op.only_write {
            self.released = Some(now);
        }
        self.repairs += usize::from(matches!(op.action, Action::Repair(_)));
        let free = self
            .operations
            .iter()
            .position(|operation| !operation.is_under_way());
        let at = free.unwrap_or(self.operations.len());
        let bytes = free.map(|at| std::mem::take(&mut self.operations[at].bytes));
        let operation = Operation::new(self.submitted, op, who, bytes.unwrap_or_default(), now);
        match free {
            Some(at) => self.operations[at] = operation,
            None => self.operations.push(operation),
        }
        self.nodes
            .iter_mut()
            .for_each(|node| node.cannot_start_worker = false);
        self.begin(at, now);
    }

    /// What is not written yet when a lock is released never is: it would come behind the release.
    fn cancel_repairs(&mut self, release: &Op, now: Instant) {
        for place in 0..self.operations.len() {
            let operation = &self.operations[place];
            let same = operation.op.key.token == release.key.token && !mutant(25);
            if operation.is_under_way() && operation.is_repair() && same {
                self.finish(place, Verdict::Unavailable, now);
            }
        }
    }

    /// Who has waited longest for an answer.
    pub(crate) fn longest_waiting(&self) -> Option<&W> {
        let waiting = self
            .operations
            .iter()
            .filter(|operation| operation.is_under_way());
        waiting
            .min_by_key(|operation| operation.number)?
            .who
            .as_ref()
    }

    /// Its time begins, unless first connections are waited for: then until when.
    fn begin(&mut self, at: usize, now: Instant) -> Option<Instant> {
        let operation = &mut self.operations[at];
        if operation.begun.is_some() || operation.op.only_write {
            return None;
        }
        let until = match self.majority_at {
            Some(at) => at + self.node_timeout,
            None => operation.submitted + self.connect_timeout,
        };
        let first = |node: &Node| node.tries == 0 && !node.cannot_start_worker;
        let under_way = self.nodes.iter().any(first) && !mutant(14);
        if under_way && now < until {
            return Some(until);
        }
        let over = under_way && self.majority_at.is_none();
        operation.begun = Some(now);
        operation.until = if over { now } else { now + self.node_timeout };
        for node in self.quarantined.iter() {
            match self.nodes[node].quarantine_left(now) {
                Some(left) => operation.fail(node, &Arc::new(Cause::Quarantined(left))),
                // It comes home now.
                None => self.news = true,
            }
        }
        if !operation.votes.failed.is_empty() {
            self.judge(at, now);
        }
        None
    }

    // ---- the leader

    pub(crate) fn next(&mut self, now: Instant) -> Next {
        let asked_before = now.checked_sub(self.node_timeout);
        loop {
            let (mut due, mut silent) = (NodeSet::EMPTY, None);
            for (at, node) in self.nodes.iter().enumerate() {
                let needed = !node.quit && (self.closed_at.is_none() || node.has_releases());
                if node.is_connected() {
                    let abandoned_threads =
                        node.asked_at().is_some_and(|at| Some(at) <= asked_before);
                    if abandoned_threads || node.wants_probe() {
                        return self.recv_now(at, now);
                    }
                } else if node.link == Link::Unresponsive && !node.has_worker && !node.quit {
                    silent = Some(at);
                } else if needed && !node.has_worker && !node.cannot_start_worker {
                    return Next::StartWorker { node: at };
                }
                if node.has_releases() && node.takes_releases() {
                    due.add(at);
                }
            }
            let wants = self.survey(now);
            let owing = wants.owing.and(self.here);
            // While replies are coming promptly, what is submitted waits for them and goes together in one
            // write, which is cheaper for both sides. If they take long, it goes at once.
            let waits = self.replies_flowing && !owing.is_empty();
            let send = if waits { due } else { wants.send.or(due) };
            if !send.is_empty() {
                return self.send(send, now);
            }
            // Its releases are written by now.
            if let Some(node) = silent.filter(|node| self.can_leave(*node)) {
                return Next::StartWorker { node };
            }
            if !wants.open {
                return self.settle(now);
            }
            if now >= wants.ends {
                // The program itself may have slept: what has come meanwhile counts.
                let unseen = |at: &usize| self.nodes[*at].is_unprobed(wants.ends);
                match owing.iter().find(unseen) {
                    Some(node) => return self.recv_now(node, now),
                    None => self.expire(now),
                }
                continue;
            }
            self.reconnect_now(wants.lacking);
            if !owing.is_empty() {
                return self.recv(owing, wants.ends, now);
            }
            return Next::Wait { until: wants.ends };
        }
    }

    /// What the operations under way want, with those that are done taken out.
    fn survey(&mut self, now: Instant) -> Wants {
        let mut wants = Wants {
            send: NodeSet::EMPTY,
            owing: NodeSet::EMPTY,
            lacking: NodeSet::EMPTY,
            ends: now + self.connect_timeout,
            open: false,
        };
        for at in 0..self.operations.len() {
            let waits = self.begin(at, now);
            let ask = self.to_ask(at, now);
            let operation = &self.operations[at];
            match operation.phase {
                Phase::Free => continue,
                Phase::Undoing(verdict) if operation.undo.is_empty() => {
                    let votes = operation.votes.granted.len();
                    let yes = mutant(10) && votes >= majority(self.nodes.len());
                    self.finish(at, if yes { Verdict::Yes } else { verdict }, now);
                }
                Phase::Open if operation.op.only_write && ask.is_empty() => {
                    let told = operation.asked.len() >= majority(self.nodes.len());
                    let verdict = if told {
                        Verdict::Yes
                    } else {
                        Verdict::Unavailable
                    };
                    self.finish(at, verdict, now);
                }
                _ => wants.open = true,
            }
            let operation = &self.operations[at];
            wants.send = wants.send.or(ask);
            if operation.is_open() {
                wants.owing = wants.owing.or(operation.owing());
                let until = waits.unwrap_or(operation.until);
                wants.ends = wants
                    .ends
                    .min(operation.op.until.unwrap_or(until).min(until));
                let possible = operation.votes.granted.or(operation.owing()).or(ask);
                if possible.without(self.order.slow()).len() < majority(self.nodes.len()) {
                    let absent = operation.absent(self.here, self.nodes.len());
                    wants.lacking = wants.lacking.or(absent);
                }
            }
        }
        // After a crowd: all places are looked at each time.
        while self.operations.len() > PLACES
            && self
                .operations
                .last()
                .is_some_and(|last| !last.is_under_way())
        {
            self.operations.pop();
        }
        wants
    }

    /// Nodes that an operation is to be sent to now.
    fn to_ask(&self, at: usize, now: Instant) -> NodeSet {
        let operation = &self.operations[at];
        let acquire_of_twins = self.same_server && operation.is_acquire();
        if operation.phase != Phase::Open || operation.is_late(now) || acquire_of_twins {
            return NodeSet::EMPTY;
        }
        operation.to_ask(self.here, self.nodes.len())
    }

    /// Whether a silent node has nothing more to expect from the leader: who fails to acquire what it
    /// was asked for writes the release before it returns.
    fn can_leave(&self, at: usize) -> bool {
        let asked = |operation: &Operation<W>| {
            operation.is_under_way()
                && operation.is_acquire()
                && operation.asked.has(at)
                && !mutant(16)
        };
        !self.nodes[at].cannot_start_worker && !self.operations.iter().any(asked)
    }

    fn recv_now(&mut self, node: usize, now: Instant) -> Next {
        self.reading = now;
        Next::Recv { node, until: now }
    }

    fn send(&mut self, nodes: NodeSet, now: Instant) -> Next {
        let idle = |at: &usize| self.nodes[*at].is_idle(now);
        if let Some(at) = nodes.and(self.here).iter().find(idle) {
            return self.recv_now(at, now);
        }
        // A node that takes in nothing may hold up the leader for half a node timeout, so that the others
        // still have time to answer; and no operation for longer than it may take at all.
        let mut until = now + self.node_timeout / 2;
        for operation in self
            .operations
            .iter()
            .filter(|operation| operation.is_under_way())
        {
            let begun = operation.begun.unwrap_or(now);
            until = until.min(begun + 2 * self.node_timeout);
        }
        Next::Send { nodes, until }
    }

    /// The nearest of these nodes.
    pub(crate) fn nearest(&self, any_of: NodeSet) -> usize {
        self.order.nearest(any_of)
    }

    fn recv(&mut self, owing: NodeSet, ends: Instant, now: Instant) -> Next {
        self.reading = now;
        let nodes = &self.nodes;
        let asked = |at: usize| nodes[at].asked_at().unwrap_or(now);
        let age = |at| now.saturating_duration_since(asked(at));
        let (node, wait) = self.order.reads(owing, age);
        let until = ends.min(now + wait);
        Next::Recv { node, until }
    }

    /// Nodes that somebody waits for are connected at once.
    fn reconnect_now(&mut self, nodes: NodeSet) {
        for at in nodes.and(self.which(|node| node.has_worker)).iter() {
            self.news |= !std::mem::replace(&mut self.nodes[at].reconnect_now, true);
        }
    }

    /// Nobody waits for an answer. When nobody needs the nodes any more either, what was sent is waited
    /// for a little: closing on unread replies resets a connection, and the server may then drop a
    /// release that it has not read yet.
    fn settle(&mut self, now: Instant) -> Next {
        let until = self.closed_at.map(|at| at + self.node_timeout);
        let Some(until) = until.filter(|until| now < *until) else {
            return Next::Finished;
        };
        let pending = self.which(|node| node.is_connected() && node.pending() > 0);
        let due = self.which(Node::owes);
        match (pending.is_empty(), due.is_empty()) {
            (true, true) => Next::Finished,
            (true, false) => Next::Wait { until },
            (false, _) => self.recv(pending, until, now),
        }
    }

    // ---- what nobody waits for

    /// Nobody leads any more. Whether a thread is to confirm the releases that no operation waits for: a connection whose
    /// other side is gone takes them, and a server that has forgotten the scripts does not carry them out. Mostly
    /// the next operation finds out; this is for a program that does nothing more.
    pub(crate) fn wants_confirmer(&mut self) -> bool {
        let wants = !self.confirms && self.closed_at.is_none() && self.unconfirmed().is_some();
        self.confirms |= wants && !mutant(45);
        wants && !mutant(45)
    }

    /// Since when it is not known whether all of them were carried out.
    fn unconfirmed(&self) -> Option<Instant> {
        let here = self.nodes.iter().filter(|node| node.is_connected());
        here.filter_map(Node::unconfirmed).min()
    }

    /// What the thread that confirms releases should do. A node that has not answered within its time, or whose
    /// connection is closed, gets a worker, which sends them again.
    pub(crate) fn confirm(&mut self, now: Instant) -> Confirm {
        let again = |at: &Instant| Some(*at) > self.released;
        let oldest = self.unconfirmed().filter(|at| !mutant(46) || !again(at));
        let look = oldest.map(|at| at + self.node_timeout);
        // Where locks are dropped again and again, one thread serves them all.
        let until = look.or(self.released.map(|at| at + LINGER));
        match until.filter(|_| self.closed_at.is_none()) {
            Some(until) if now < until => Confirm::Wait { until },
            Some(_) if oldest.is_some() => Confirm::Look,
            _ => {
                self.confirms = false;
                Confirm::End
            }
        }
    }

    /// There is no such thread: it could not be started, or a bug has ended it.
    pub(crate) fn unconfirms(&mut self) {
        self.confirms = false;
    }

    /// Appends the bytes for a node to `bytes`.
    pub(crate) fn output(&mut self, at: usize, bytes: &mut Vec<u8>, now: Instant) {
        let start = bytes.len();
        let mut out = Output { bytes, start, now };
        let node = &mut self.nodes[at];
        // Releases come first, or a lock that is free already would be denied.
        let all = node.ping(&mut out) || mutant(7) || node.write_releases(&mut out);
        if all && node.is_connected() {
            self.replies_flowing = true;
            self.ask(at, true, &mut out);
            self.ask(at, false, &mut out);
        }
        let node = &mut self.nodes[at];
        if mutant(7) {
            node.write_releases(&mut out);
        }
        node.sending(&out);
        if all {
            self.operations
                .iter_mut()
                .for_each(|operation| operation.undo.remove(at));
        }
    }

    /// Appends the operations that are to be sent to a node: the releases, or the others.
    fn ask(&mut self, at: usize, releases: bool, out: &mut Output<'_>) {
        for place in 0..self.operations.len() {
            let asks = self.to_ask(place, out.now).has(at);
            let (operation, node) = (&mut self.operations[place], &mut self.nodes[at]);
            if !asks || operation.is_release() != releases {
                continue;
            }
            operation.asked.add(at);
            let number = operation.number;
            let what = Pending {
                ticket: Some(OperationId { place, number }),
                release: releases.then(|| operation.op.key.clone()),
                alone: operation.op.only_write,
                retries: false,
            };
            node.ask(what, out);
            if node.handshake.by_hash {
                out.bytes.extend_from_slice(&operation.bytes);
            } else {
                operation
                    .op
                    .action
                    .pack(&operation.op.key, false, out.bytes);
            }
            node.write_deferred(out);
        }
    }

    // ---- replies

    /// What has come from a node; no bytes: nothing did in time.
    pub(crate) fn received(&mut self, at: usize, result: Result<&[u8], Cause>, now: Instant) {
        let bytes = match result {
            Ok([]) => return self.received_nothing(at, now),
            Ok(bytes) => bytes,
            Err(cause) => return self.sever(at, cause, now),
        };
        let mut inbox = std::mem::take(&mut self.nodes[at].inbox);
        inbox.extend_from_slice(bytes);
        let (mut read, mut asked) = (0, None);
        while let Some(rest) = inbox.get(read..).filter(|rest| !rest.is_empty()) {
            let (reply, length) = match self.nodes[at].next_reply(rest) {
                Ok(Some(parsed)) => parsed,
                Ok(None) => break,
                Err(cause) => return self.sever(at, cause, now),
            };
            asked = self.nodes[at].asked_at();
            if !self.reply(at, reply, now) {
                return;
            }
            read += length;
        }
        inbox.drain(..read);
        self.nodes[at].inbox = inbox;
        if let Some(asked) = asked.filter(|_| self.here.has(at)) {
            let waited = now.saturating_duration_since(self.reading);
            let took = now.saturating_duration_since(asked);
            self.order.heard(at, took, waited, now);
        }
    }

    fn received_nothing(&mut self, at: usize, now: Instant) {
        let node = &mut self.nodes[at];
        if node.link == Link::Unresponsive && node.fresh.is_some() {
            return self.sever(at, self.silent(), now);
        }
        if !node.is_connected() {
            return;
        }
        // That is known of the moment when the read began. The program may have slept since it ended.
        let known = self.reading;
        node.probed(known);
        if let Some(asked) = node.asked_at() {
            let age = known.saturating_duration_since(asked);
            if age >= self.node_timeout {
                self.mark_unresponsive(at, now);
            } else {
                self.order.in_vain(at, age, now);
            }
        }
        if std::mem::take(&mut self.replies_flowing) {
            self.judge_all(now);
        }
    }

    /// False: the connection is finished.
    fn reply(&mut self, at: usize, reply: Reply, now: Instant) -> bool {
        let Some(what) = self.nodes[at].answered(now) else {
            return true;
        };
        let error = match &reply {
            Reply::Error(text) => text,
            _ => "",
        };
        let place = what.ticket.and_then(|ticket| self.place(ticket));
        if is_not_loaded(error) {
            // Nothing was done. It is sent again, with the script's text.
            self.nodes[at].handshake.by_hash = false;
            match place {
                Some(place) => self.operations[place].asked.remove(at),
                None => self.add_release(at, what.release.filter(|_| !mutant(23))),
            }
            return true;
        }
        if what.retries && !Meaning::of(error).is_not_now() {
            self.nodes[at].retry_deferred();
        }
        let (action, key) = match (place, &what.release) {
            (Some(place), _) => (
                &self.operations[place].op.action,
                &self.operations[place].op.key,
            ),
            (None, Some(release)) => (&Action::Release(Notify::First), release),
            // Nobody waits for it. An error that ends the connection comes again.
            (None, None) => {
                if what.ticket.is_none() {
                    self.nodes[at].pinged();
                }
                return true;
            }
        };
        let vote = action.vote(&key.token, reply);
        if !matches!(vote, Vote::Sever(_)) {
            self.nodes[at].is_useful();
        }
        if let Some(notice) = self.notices.on(at, key, action, &vote) {
            let event = Event::Notice(key.resource.clone(), notice);
            push(&mut self.events, (at, event, now));
        }
        let later = matches!(vote, Vote::Failed { later: true, .. });
        if let Some(release) = what.release.clone().filter(|_| later) {
            self.nodes[at].refuse(release);
        }
        match (place, vote) {
            (Some(place), vote) => self.vote(place, at, vote, now),
            (None, Vote::Sever(cause)) => {
                self.add_release(at, what.release);
                self.sever(at, cause, now);
                false
            }
            (None, Vote::Granted(NOTIFIED)) => {
                self.pass(what.release);
                true
            }
            (None, _) => true,
        }
    }

    /// A release that nobody waits for has told another process. Who acquires the resource next learns it.
    fn pass(&mut self, release: Option<Key>) {
        let Some(resource) = release.map(|release| release.resource) else {
            return;
        };
        if !self.passed.contains(&resource) {
            self.passed.push_back(resource);
        }
        if self.passed.len() > MAX_NOTIFIED_ELSEWHERE {
            self.passed.pop_front();
        }
    }

    fn take_notified_elsewhere(&mut self, place: usize) -> bool {
        let operation = &self.operations[place];
        if self.passed.is_empty() || !operation.is_acquire() {
            return false;
        }
        let is = |passed: &Arc<[u8]>| *passed == operation.op.key.resource;
        let at = self.passed.iter().position(is);
        at.and_then(|at| self.passed.remove(at)).is_some()
    }

    fn add_release(&mut self, at: usize, release: Option<Key>) {
        if let Some(release) = release {
            self.nodes[at].add_release(release);
            // Its worker writes it at once.
            self.news |= self.quarantined.has(at);
        }
    }

    /// The place of an operation that is still open to votes.
    fn place(&self, ticket: OperationId) -> Option<usize> {
        let operation = self.operations.get(ticket.place)?;
        let same = operation.number == ticket.number || mutant(5);
        let open = operation.phase == Phase::Open || mutant(10);
        (same && open).then_some(ticket.place)
    }

    /// A node has voted on an operation. False: the connection is finished.
    fn vote(&mut self, place: usize, at: usize, vote: Vote, now: Instant) -> bool {
        let operation = &mut self.operations[place];
        let acquire = operation.is_acquire();
        let mut complaint = None;
        match vote {
            Vote::Granted(number) => {
                operation.grant(at, number);
                if mutant(9) {
                    operation.votes.grant(at + 1);
                }
            }
            Vote::Refused(_) if mutant(8) && !acquire => operation.votes.grant(at),
            Vote::Refused(_) if mutant(26) && operation.is_extension() => operation.votes.grant(at),
            // It may have been carried out just before the first connection closed.
            Vote::Refused(_) if operation.is_release() && operation.again.has(at) => {
                operation.fail(at, &Arc::new(Cause::Closed("before it answered".into())));
            }
            Vote::Refused(seen) => {
                operation.votes.refuse(at);
                operation.seen.extend(seen);
            }
            Vote::Failed { cause, .. } => {
                let cause = Arc::new(cause);
                operation.fail(at, &cause);
                complaint = Some(cause);
            }
            Vote::Sever(cause) => {
                operation.again.add(at);
                operation.severed(at, &Arc::new(cause.clone()));
                self.sever(at, cause, now);
                return false;
            }
        }
        if acquire {
            self.report(at, complaint, now);
        }
        self.judge(place, now);
        true
    }

    /// A node that is here gives votes, or a reason why not.
    fn report(&mut self, at: usize, complaint: Option<Arc<Cause>>, now: Instant) {
        match (complaint, self.nodes[at].reported) {
            (Some(cause), Reported::Well) => {
                self.note(at, Reported::GivesNoVotes, Event::GivesNoVotes(cause), now);
            }
            (None, Reported::GivesNoVotes) => {
                let forgotten = self.nodes[at].forgotten();
                self.note(at, Reported::Well, Event::VotesAgain(forgotten), now);
            }
            _ => {}
        }
    }

    fn note(&mut self, at: usize, reported: Reported, event: Event, now: Instant) {
        self.nodes[at].reported = reported;
        push(&mut self.events, (at, event, now));
    }

    // ---- the nodes

    /// A node's connection is finished, or a command may be torn on it. Each pending vote fails, or may be
    /// asked for again; each pending release is due again; the rest is dropped.
    pub(crate) fn sever(&mut self, at: usize, cause: Cause, now: Instant) {
        let cause = Arc::new(cause);
        let was = self.nodes[at].link;
        self.here.remove(at);
        self.quarantined.remove(at);
        for what in self.nodes[at].sever() {
            match what.ticket.and_then(|ticket| self.place(ticket)) {
                Some(place) if self.operations[place].is_open() => {
                    self.operations[place].severed(at, &cause);
                }
                _ => self.add_release(at, what.release.filter(|_| !mutant(6))),
            }
        }
        self.operations
            .iter_mut()
            .for_each(|operation| operation.undo.remove(at));
        if let Cause::Closed(_) = *cause {
            // Where one connection was closed others may be too.
            self.nodes.iter_mut().for_each(|node| node.look = true);
        }
        match was {
            Link::Draining | Link::Quarantined => self.tried(at, cause, now),
            _ => {
                if was == Link::Connected && self.nodes[at].is_useless_again() {
                    let retry_at = self.retry_at(at, now);
                    self.nodes[at].pause_until(retry_at);
                }
                self.away(at, cause, now);
            }
        }
    }

    fn silent(&self) -> Cause {
        Cause::NoAnswer(self.node_timeout, Limit::Node(1))
    }

    /// A node did not answer within its time. Its connection is kept.
    fn mark_unresponsive(&mut self, at: usize, now: Instant) {
        let cause = Arc::new(self.silent());
        let retry_at = self.retry_at(at, now);
        self.nodes[at].mark_unresponsive(retry_at);
        self.here.remove(at);
        for operation in self
            .operations
            .iter_mut()
            .filter(|operation| operation.asked.has(at))
        {
            operation.fail(at, &cause);
        }
        self.away(at, cause, now);
    }

    /// A try to connect has failed.
    fn tried(&mut self, at: usize, cause: Arc<Cause>, now: Instant) {
        let retry_at = self.retry_at(at, now);
        self.nodes[at].tried(retry_at, self.closed_at.is_some());
        self.fail_unasked(at, &cause);
        self.away(at, cause, now);
    }

    /// Operations that were not sent to a node need not wait for it.
    fn fail_unasked(&mut self, at: usize, cause: &Arc<Cause>) {
        let began = self.nodes[at].try_began;
        for operation in self
            .operations
            .iter_mut()
            .filter(|operation| operation.is_open())
        {
            // What a server refuses for good may have been put right before this was wanted: the next try, which
            // is made at once, will tell.
            let stale = cause.is_final() && began < Some(operation.since());
            if !operation.asked.has(at) && !stale {
                operation.fail(at, cause);
            }
        }
    }

    fn away(&mut self, at: usize, cause: Arc<Cause>, now: Instant) {
        self.nodes[at].cause = Some(cause.clone());
        if self.nodes[at].reported != Reported::Away {
            self.note(at, Reported::Away, Event::Away(cause), now);
        }
        self.changed(now);
    }

    /// A node went or came: which votes can still be expected has changed.
    fn changed(&mut self, now: Instant) {
        let same_server = |cause: &Arc<Cause>| matches!(**cause, Cause::SameServer(_));
        self.same_server = self
            .nodes
            .iter()
            .filter_map(|node| node.cause.as_ref())
            .any(same_server);
        self.news = true;
        self.judge_all(now);
    }

    /// Time is over for some operations.
    fn expire(&mut self, now: Instant) {
        let mut silent = NodeSet::EMPTY;
        for operation in self
            .operations
            .iter_mut()
            .filter(|operation| operation.is_open())
        {
            operation.late = operation.begun.is_some() && operation.until <= now;
            if operation.late {
                silent = silent.or(operation.owing().and(self.here));
            }
            operation.late |= operation.op.until.is_some_and(|until| until <= now);
        }
        self.fail_late(now);
        for at in silent.iter() {
            self.mark_unresponsive(at, now);
        }
        self.changed(now);
    }

    /// Names why nodes have not voted on operations whose time is over.
    fn fail_late(&mut self, now: Instant) {
        let away = self.which(|node| !node.is_connected() && node.cause.is_some());
        // Others had no time to answer.
        let patient = now.checked_sub(SLICE);
        let slow = self.which(|node| node.asked_at().is_some_and(|at| Some(at) <= patient));
        let slow = slow.and(self.order.slow());
        let spare = self.nodes.len() - majority(self.nodes.len());
        let late = self.operations.iter_mut();
        for operation in late.filter(|operation| operation.late && operation.is_open()) {
            let failed = away.or(slow.and(operation.owing()));
            let failed = failed
                .without(operation.votes.voted())
                .or(operation.votes.failed);
            operation.useless = failed.len() <= spare && operation.is_useless(now);
            let waited = now.saturating_duration_since(operation.submitted);
            let silent = Arc::new(match operation.begun.is_some() && operation.until <= now {
                true => Cause::NoAnswer(self.node_timeout, Limit::Node(1)),
                false => Cause::NoAnswer(waited, Limit::Rest),
            });
            let trying = Arc::new(Cause::NotConnected(waited, self.connect_timeout));
            for (at, node) in self.nodes.iter().enumerate() {
                match (node.is_connected(), node.cause.as_ref()) {
                    // A server that refused for good before this may have been put right: another try to connect
                    // is under way. It is named all the same.
                    (false, Some(cause)) if cause.is_final() => operation.votes.fail(at),
                    (false, cause) => operation.fail(at, cause.unwrap_or(&trying)),
                    (true, _) if operation.asked.has(at) => operation.fail(at, &silent),
                    (true, _) => {}
                }
            }
            let rest = NodeSet::first(self.nodes.len()).without(operation.votes.voted());
            for at in rest.iter() {
                // It would have been asked if the others had sufficed; or there was no time.
                match operation.votes.failed.len() > spare {
                    true => operation.votes.fail(at),
                    false => operation.fail(at, &Arc::new(Cause::NotAsked)),
                }
            }
        }
    }

    // ---- connecting without a lock

    /// Nodes that are away are connected at once, without a pause. How many tries have ended so far.
    pub(crate) fn connect_now(&mut self) -> Vec<u64> {
        self.reconnect_now(NodeSet::first(self.nodes.len()));
        self.nodes.iter().map(|node| node.tries).collect()
    }

    /// Whether each node is connected, or has been tried since then.
    pub(crate) fn has_tried(&self, before: &[u64]) -> bool {
        let mut nodes = self.nodes.iter().zip(before);
        nodes.all(|(node, before)| {
            let connected = matches!(node.link, Link::Connected | Link::Quarantined);
            connected || node.cannot_start_worker || node.tries > *before
        })
    }

    /// Nodes that operations are sent to.
    pub(crate) fn here(&self) -> NodeSet {
        self.here
    }

    /// Those that did not answer where a majority did. They had so long.
    pub(crate) fn not_well(&self, answer: &Answer, waited: Duration) -> NodeErrors {
        let trying = Arc::new(Cause::NotConnected(waited, self.connect_timeout));
        let mut causes = answer.causes.clone();
        for (at, node) in self.nodes.iter().enumerate() {
            let known = node.cause.is_some() || causes.iter().any(|(failed, _)| *failed == at);
            if !known {
                causes.push((at, trying.clone()));
            }
        }
        let asked = answer.tally.granted;
        errors(Question::Answer, answer.tally, &causes, asked, &self.nodes)
    }

    // ---- verdicts

    fn judge_all(&mut self, now: Instant) {
        (0..self.operations.len()).for_each(|place| self.judge(place, now));
    }

    /// Ends an operation whose verdict is certain. A failed acquire ends with its undo.
    fn judge(&mut self, place: usize, now: Instant) {
        let operation = &mut self.operations[place];
        // While it waits for first connections nothing is certain: an error names every cause.
        if !operation.is_open() || operation.begun.is_none() && !operation.late {
            return;
        }
        let acquire = operation.is_acquire();
        let same_server = self.same_server && acquire && operation.asked.is_empty();
        let verdict = operation.verdict(self.here, self.nodes.len());
        let Some(verdict) = verdict.or(same_server.then_some(Verdict::Unavailable)) else {
            return;
        };
        // No node has granted it yet: those that answer as promptly as the others are waited for. Where
        // several contend and none has a quorum, who has a vote must learn of it, and try again.
        let unsure = verdict == Verdict::No && operation.votes.granted.is_empty() && !mutant(21);
        // An extension learns from all that answer promptly whether they hold it (rule R11b).
        let until = operation
            .op
            .until
            .unwrap_or(operation.until)
            .min(operation.until);
        let asks = operation.is_extension() && verdict == Verdict::Yes && until > now + 2 * SLICE;
        let mut owing = operation.owing().and(self.here);
        if asks {
            // The others are asked again with the next one.
            owing = owing.without(self.order.slow());
        }
        if (acquire && unsure || asks) && self.replies_flowing && !owing.is_empty() {
            return;
        }
        if acquire && verdict != Verdict::Yes {
            operation.phase = Phase::Undoing(verdict);
            self.undo(place);
        } else {
            self.finish(place, verdict, now);
        }
    }

    /// The releases of a failed acquire: behind its SETs, for each node that did not deny (rules R6, R7).
    fn undo(&mut self, place: usize) {
        let operation = &self.operations[place];
        let mut undo = operation.asked.without(operation.votes.refused);
        if mutant(3) {
            undo = operation.votes.granted;
        }
        let mut release = operation.op.key.clone();
        // A server that answered with an error does not have it, and may refuse the release, too.
        release.asked = undo.without(operation.refused());
        for at in undo.iter() {
            self.add_release(at, Some(release.clone()));
            if self.nodes[at].takes_releases() {
                self.operations[place].undo.add(at);
            }
        }
    }

    fn finish(&mut self, place: usize, verdict: Verdict, now: Instant) {
        let operation = &mut self.operations[place];
        operation.phase = Phase::Free;
        self.repairs -= usize::from(operation.is_repair());
        if operation.is_release() {
            // It becomes due where it was not written, or where the connection it was written on has died.
            let concerned = NodeSet::first(self.nodes.len()).and(operation.op.key.asked);
            let (release, asked) = (operation.op.key.clone(), operation.asked);
            for at in concerned.without(asked).iter() {
                self.add_release(at, Some(release.clone()));
            }
        }
        let passed = self.take_notified_elsewhere(place);
        let operation = &mut self.operations[place];
        let outcome = match verdict {
            Verdict::Yes => Outcome::Yes(operation.asked),
            Verdict::No => Outcome::No,
            Verdict::Unavailable => Outcome::Unavailable {
                errors: errors(
                    operation.op.action.question(),
                    operation.votes,
                    &operation.causes,
                    operation.asked,
                    &self.nodes,
                ),
                closed: operation.is_acquire() && operation.failed_by_closing(self.nodes.len()),
                useless: operation.useless,
            },
        };
        let answer = Answer {
            outcome,
            tally: operation.votes,
            numbers: operation.numbers,
            seen: std::mem::take(&mut operation.seen),
            passed,
            causes: std::mem::take(&mut operation.causes),
            begun: operation.begun.unwrap_or(now),
        };
        self.answers
            .extend(operation.who.take().map(|who| (who, answer)));
    }

    /// After a panic of the leader, which only a bug can be: what was written is not known any more.
    pub(crate) fn recover(&mut self, held: NodeSet, now: Instant) {
        for at in held.iter() {
            self.sever(at, panicked(), now);
        }
        for place in 0..self.operations.len() {
            if self.operations[place].is_under_way() {
                if self.operations[place].is_acquire() {
                    self.undo(place);
                }
                self.finish(place, Verdict::Unavailable, now);
            }
        }
    }

    // ---- the workers

    /// A thread was started for a node, or could not be.
    pub(crate) fn worker_started(&mut self, at: usize, result: Result<(), Cause>, now: Instant) {
        let Err(cause) = result else {
            return self.nodes[at].has_worker = true;
        };
        let cause = Arc::new(cause);
        self.nodes[at].cannot_start_worker = true;
        for operation in self
            .operations
            .iter_mut()
            .filter(|operation| operation.is_open())
        {
            operation.fail(at, &cause);
        }
        self.away(at, cause, now);
    }

    /// What a node's worker should do.
    pub(crate) fn task(&mut self, at: usize, now: Instant) -> NodeTask {
        loop {
            let timeouts = (self.node_timeout, self.connect_timeout);
            let task = self.nodes[at].task(now, self.closed_at, timeouts);
            match task {
                NodeTask::GiveUp => {
                    let cause = Cause::NoAnswer(self.connect_timeout, Limit::Connect);
                    self.sever(at, cause, now);
                }
                NodeTask::Quarantine => self.quarantine(at, now),
                NodeTask::Reconnected => {
                    self.reconnected(at, now);
                    return task;
                }
                NodeTask::Stop => {
                    self.nodes[at].has_worker = false;
                    self.nodes[at].quit = true;
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
        self.nodes[at].quarantine(now);
        self.quarantined.add(at);
        let cause = Arc::new(Cause::Quarantined(left));
        self.fail_unasked(at, &cause);
        self.nodes[at].cause = Some(cause);
        if !std::mem::replace(&mut self.nodes[at].said, true) {
            self.note(at, Reported::Away, Event::SitsOut(left), now);
        }
        self.nodes[at].reported = Reported::Away;
        self.changed(now);
    }

    fn reconnected(&mut self, at: usize, now: Instant) {
        self.quarantined.remove(at);
        self.nodes[at].reconnected(now);
        self.here.add(at);
        if self.here.len() >= majority(self.nodes.len()) {
            self.majority_at.get_or_insert(now);
        }
        // Who comes at the last moment must have time to answer. (A release has one node timeout.)
        for operation in self
            .operations
            .iter_mut()
            .filter(|operation| operation.is_open())
        {
            let known = operation.asked.or(operation.votes.voted()).has(at);
            if let Some(begun) = operation
                .begun
                .filter(|_| !known && !operation.is_release())
            {
                let latest = (now + self.node_timeout).min(begun + 2 * self.node_timeout);
                operation.until = operation.until.max(latest);
            }
        }
        if self.nodes[at].reported == Reported::Away {
            let forgotten = self.nodes[at].forgotten();
            let replaced = self.nodes[at].take_replaced();
            self.note(at, Reported::Well, Event::Back(forgotten, replaced), now);
        }
        self.changed(now);
    }

    /// A worker has written what it was given.
    pub(crate) fn written(&mut self, at: usize, result: Result<(), Cause>, now: Instant) {
        self.nodes[at].writing = false;
        // Whoever closes may wait for that.
        self.news |= self.closed_at.is_some();
        if let Err(cause) = result {
            self.sever(at, cause, now);
        }
    }

    /// A worker cannot go on, which only a bug can be.
    pub(crate) fn deserted(&mut self, at: usize, now: Instant) {
        self.nodes[at].has_worker = false;
        self.nodes[at].connecting = false;
        self.nodes[at].fresh = None;
        self.sever(at, panicked(), now);
    }

    /// A new connection to a node, or why there is none. Whether it is of any use.
    pub(crate) fn connected(
        &mut self,
        at: usize,
        result: Result<Handshake, Cause>,
        now: Instant,
    ) -> bool {
        self.nodes[at].connecting = false;
        self.news = true;
        if !self.nodes[at].has_worker {
            // It has answered meanwhile, or nobody needs it any more.
            return false;
        }
        let twin = |handshake: &Handshake| {
            let is = |one: &Handshake| one.run_id == handshake.run_id;
            let same =
                self.which(|node| is(&node.handshake) || node.fresh.as_ref().is_some_and(is));
            let mut others = same.iter().filter(|other| *other != at);
            handshake.run_id.as_ref().and_then(|_| others.next())
        };
        let cause = match result {
            Ok(handshake) => match twin(&handshake) {
                None => {
                    self.nodes[at].on_handshake(handshake);
                    return true;
                }
                Some(twin) => Cause::SameServer(twin),
            },
            Err(cause) => cause,
        };
        self.tried(at, Arc::new(cause), now);
        false
    }

    /// Nobody needs the nodes any more. What was sent, and releases that are due, have one node timeout.
    pub(crate) fn close(&mut self, now: Instant) {
        self.closed_at = Some(now);
        // What was refused has one last try.
        self.nodes.iter_mut().for_each(Node::retry_deferred);
        self.reconnect_now(self.which(Node::has_releases));
        self.news = true;
    }
}

#[cfg(test)]
impl<W> Core<W> {
    /// What is not as it is when all is quiet.
    pub(crate) fn unrest(&self) -> Option<String> {
        let node = self.nodes.iter().find_map(Node::unrest);
        let open = self.longest_waiting().is_some();
        node.or_else(|| open.then(|| "an operation is open".to_owned()))
    }

    pub(crate) fn majority_at(&self) -> Option<Instant> {
        self.majority_at
    }
}

/// They wait for a thread that has time to log them.
fn push<T>(events: &mut Vec<T>, event: T) {
    if events.len() < MAX_EVENTS {
        events.push(event);
    }
}

fn panicked() -> Cause {
    Cause::Closed("a thread panicked while it used it".into())
}

/// The failed nodes, each with its cause. Nodes that were merely not waited for are not among them.
fn errors(
    question: Question,
    votes: Tally,
    causes: &[(usize, Arc<Cause>)],
    asked: NodeSet,
    nodes: &[Node],
) -> NodeErrors {
    let answered = votes.granted.or(votes.refused);
    let error = |(at, node): (usize, &Node)| {
        let own = causes.iter().rfind(|(failed, _)| *failed == at);
        let away = node.cause.as_ref().filter(|_| !asked.has(at));
        let cause = own.map(|(_, cause)| cause).or(away);
        let cause = cause.filter(|_| !answered.has(at))?;
        Some(NodeError {
            node: at,
            address: node.address.clone(),
            cause: cause.clone(),
        })
    };
    let errors: Vec<NodeError> = nodes.iter().enumerate().filter_map(error).collect();
    let wait = |error: &NodeError| match *error.cause {
        Cause::Quarantined(left) => Some(left),
        _ => None,
    };
    let waits = errors.iter().filter_map(wait).collect();
    let spare = nodes.len() - majority(nodes.len());
    let retry_after = retry_after(waits, errors.len(), spare);
    let errors = NodeErrors::new(errors, retry_after).with_votes(question, votes, nodes.len());
    // By what they answered to this operation.
    let refused = causes
        .iter()
        .filter(|(_, cause)| cause.is_final() || mutant(43));
    let refused: NodeSet = refused.map(|(node, _)| *node).collect();
    match refused.and(votes.failed).len() > spare {
        true => errors.for_good(),
        false => errors,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::protocol::quorum::Ttl;
    use crate::token::Token;

    const MS: Duration = Duration::from_millis(1);

    /// One node, which nobody has connected yet.
    struct World {
        core: Core<u8>,
        now: Instant,
        sent: Vec<u8>,
    }

    impl World {
        fn new() -> World {
            let now = clock::instant();
            let timeouts = (50 * MS, 1000 * MS);
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
            let op = Op {
                action: Action::Acquire(Ttl::new(1000 * MS).unwrap()),
                key: Key {
                    resource: Arc::from(&b"a"[..]),
                    token: Token::from_bytes([7; 20]),
                    label: None,
                    asked: NodeSet::EMPTY,
                },
                since: None,
                until: useful.map(|useful| self.now + useful),
                only_write: false,
                nodes: NodeSet::ALL,
            };
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

        /// What is due is sent, and this comes back.
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
        // What a new one is told is for good.
        world.now += 1000 * MS;
        world.acquire();
        world.begin_to_connect();
        world.connected(Err(Cause::refused("NOAUTH Authentication required.")));
        let (text, for_good) = world.failure().unwrap();
        assert!(text.contains("NOAUTH") && for_good, "{text}");
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
    fn an_acquire_of_no_more_use_names_what_is_known_and_blames_nobody() {
        let failure = |world: &mut World, passes| {
            world.now += passes;
            world.next();
            match world.core.answers.pop().unwrap().1.outcome {
                Outcome::Unavailable {
                    errors, useless, ..
                } => (errors.iter().count(), useless, errors.to_string()),
                _ => panic!("nobody has answered"),
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
    fn nothing_is_said_of_the_undo_of_an_acquire_that_a_server_refused() {
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
        assert!(!world.core.events.iter().any(notice));
    }
}
