//! One operation on all nodes: where it was sent, how the nodes have voted, and its verdict.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::errors::cause::{Cause, Limit};
use crate::errors::error::NodeErrors;
use crate::protocol::commands::kind::{Kind, without_strays};
use crate::protocol::commands::means::Means;
use crate::protocol::commands::queue::{Channel, QueueTurn};
use crate::protocol::commands::script::{Action, Key};
use crate::protocol::commands::vote::Proof;
use crate::protocol::commands::vote::{NOTIFIED, Vote};
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::node::address::NAMED;
use crate::protocol::node::debt::Debt;
use crate::protocol::node::node::{Node, Timeouts};
use crate::protocol::node::order::SLICE;
use crate::protocol::quorum::votes::{Remarks, Votes};
use crate::values::prefix::Prefix;
use crate::values::quorum::{NodeSet, Question, Tally, Verdict, majority, spare};

/// A request to all nodes.
#[derive(Clone)]
pub(crate) struct Op {
    pub(crate) action: Action,
    pub(crate) key: Key,
    /// When the operation was first wanted, if that is before it was submitted.
    pub(crate) since: Option<Instant>,
    /// When an answer becomes useless, if that is before the operation's own time ends.
    pub(crate) until: Option<Instant>,
    /// Whether the operation is done as soon as it is written: no thread waits for the answer (for `Drop`).
    pub(crate) only_write: bool,
    /// The nodes that the operation is for.
    pub(crate) nodes: NodeSet,
    /// For a server that does not have the slot yet, and carries out the operation all the same: when the server that
    /// has the slot was asked, and named it.
    pub(crate) named_at: Option<Instant>,
}

impl Op {
    /// The action whose reply a node sends, where `sent` is owed to it: a shortening that is written late is a release.
    pub(crate) fn answered<'a>(&'a self, sent: Option<&'a Action>) -> &'a Action {
        match (&self.action, sent) {
            (Action::Shorten(_), Some(sent)) => sent,
            (action, _) => action,
        }
    }

    pub(crate) fn new(action: Action, key: Key) -> Op {
        Op {
            action,
            key,
            since: None,
            until: None,
            only_write: false,
            nodes: NodeSet::ALL,
            named_at: None,
        }
    }

    pub(crate) fn ping() -> Op {
        Op::new(Action::Ping, Key::without_lock(Arc::from(&[][..])))
    }

    /// Removes a process from the queues for a resource.
    pub(crate) fn dequeue(
        (resource, kind): (Arc<[u8]>, Kind),
        channel: Channel,
        turn: QueueTurn,
        fair: bool,
    ) -> Op {
        let action = Action::Dequeue(Arc::new(channel), turn, fair);
        Op::new(action, Key::without_lock(resource).of_kind(kind))
    }

    pub(crate) fn since(self, since: Instant) -> Op {
        Op {
            since: Some(since),
            ..self
        }
    }

    pub(crate) fn until(self, until: Option<Instant>) -> Op {
        Op { until, ..self }
    }

    pub(crate) fn only_write(self, only_write: bool) -> Op {
        Op { only_write, ..self }
    }

    pub(crate) fn to(self, nodes: NodeSet) -> Op {
        Op { nodes, ..self }
    }

    pub(crate) fn is_acquire(&self) -> bool {
        self.action.question() == Question::Acquire
    }

    /// Whether the operation enters the queues of a lock that is held.
    pub(crate) fn enqueues(&self) -> bool {
        matches!(self.action, Action::AcquireOrEnqueue(..))
    }

    /// The debt to a node that does not carry out the operation, if it ends a lock. `submitted`: when the operation was
    /// submitted, at the earliest.
    pub(crate) fn owed(&self, submitted: Instant) -> Option<Debt> {
        match self.action {
            Action::Release(_) => Some(Debt::release(self.key.clone())),
            Action::Shorten(ttl) if !mutant(Mutant::OweNoShortening) => {
                let left_until = self.since.unwrap_or(submitted) + ttl.duration();
                Some(Debt::shortening(self.key.clone(), left_until))
            }
            _ => None,
        }
    }

    /// Sets when the server was named ([`Op::named_at`]).
    pub(crate) fn named(self, named_at: Option<Instant>) -> Op {
        Op { named_at, ..self }
    }
}

pub(crate) enum Outcome {
    /// The nodes that the operation was sent to.
    Yes(NodeSet),
    No,
    Unavailable {
        errors: NodeErrors,
        /// Whether the operation failed only because of connections that turned out closed, or servers that do not have
        /// the key.
        closed: bool,
        /// Whether the operation failed because [`Op::until`] passed before a quorum answered.
        useless: bool,
    },
}

pub(crate) struct Answer {
    pub(crate) outcome: Outcome,
    pub(crate) tally: Tally,
    /// The smallest and the largest number that was granted: a fencing token, or the result of a release.
    pub(crate) numbers: Option<(u64, u64)>,
    pub(crate) remarks: Remarks,
    /// Whether an earlier release of the same resource notified another process, as was learnt only now.
    pub(crate) notified_elsewhere: bool,
    /// When the operation was first sent, or would have been.
    pub(crate) begun: Instant,
}

impl Answer {
    /// The answer to an operation that was not carried out.
    pub(crate) fn none(now: Instant) -> Answer {
        Answer {
            outcome: Outcome::Unavailable {
                errors: NodeErrors::new(Vec::new(), None),
                closed: false,
                useless: false,
            },
            tally: Tally::default(),
            numbers: None,
            remarks: Remarks::default(),
            notified_elsewhere: false,
            begun: now,
        }
    }

    /// Whether a release has notified another process.
    pub(crate) fn has_notified(&self) -> bool {
        self.numbers.is_some_and(|(_, most)| most == NOTIFIED)
    }

    /// The nodes that did not answer although a majority did, after `waited`.
    pub(crate) fn missing(
        &self,
        nodes: &[Node],
        waited: Duration,
        connect_timeout: Duration,
    ) -> NodeErrors {
        let trying = Arc::new(Cause::NotConnected(waited, connect_timeout));
        let mut votes = Votes {
            tally: self.tally,
            remarks: self.remarks.clone(),
            ..Votes::default()
        };
        for (at, node) in nodes.iter().enumerate() {
            let known = node.cause().is_some()
                || votes.remarks.causes.iter().any(|(failed, _)| *failed == at);
            if !known {
                votes.remarks.make().causes.push((at, trying.clone()));
            }
        }
        votes.errors(Question::Answer, self.tally.granted, nodes)
    }
}

/// The state of the nodes, as operations need it.
#[derive(Clone, Copy)]
pub(crate) struct View {
    /// The number of nodes.
    pub(crate) nodes: usize,
    pub(crate) connected: NodeSet,
    /// Nodes that may no longer be the master (rule R43).
    pub(crate) unconfirmed: NodeSet,
    /// Nodes that did not answer while they were waited for.
    pub(crate) slow: NodeSet,
    /// Whether two nodes are one server (rule R1).
    pub(crate) same_server: bool,
    /// Whether replies are coming promptly.
    pub(crate) replies_flowing: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The operation is answered: its slot is free.
    Free,
    Open,
    /// A failed acquire: it ends with this verdict when its releases are written (rule R6). Whatever is granted until
    /// then, the verdict never becomes yes again.
    Undoing(Verdict),
}

/// Whether an operation's time is over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expiry {
    Running,
    Over,
    /// An answer became useless before the operation's own time ended, and a quorum could still have voted.
    Useless,
}

struct Timing {
    submitted: Instant,
    /// When the operation's time began. Before that it waits for first connections.
    begun: Option<Instant>,
    /// When the operation's own time ends.
    until: Instant,
    expiry: Expiry,
}

/// The effect of a vote on the node that gave it.
pub(crate) enum Voted {
    Well,
    /// The node answered with this error.
    Complained(Arc<Cause>),
    /// The node's connection is no longer usable.
    Sever(Cause),
}

/// `W`: the caller that waits for the answer.
pub(crate) struct Operation<W> {
    /// Distinguishes the operation from others that had the same slot.
    pub(crate) number: u64,
    pub(crate) op: Op,
    pub(crate) caller: Option<W>,
    /// The packed command, for nodes that know the scripts.
    pub(crate) bytes: Vec<u8>,
    pub(crate) phase: Phase,
    schedule: Timing,
    votes: Votes,
    /// The nodes that the operation was sent to. If the connection closes, the node of a release or extension is taken
    /// out, so that it can be sent a second time.
    pub(crate) sent_to: NodeSet,
    /// Nodes that the operation may be sent to a second time, or has been.
    retried: NodeSet,
    /// Nodes that the releases which undo the operation must still be written to.
    pub(crate) undo_to: NodeSet,
}

impl<W> Operation<W> {
    /// Creates an operation. `bytes`: a buffer to reuse.
    pub(crate) fn new(
        number: u64,
        op: Op,
        caller: W,
        prefix: &Prefix,
        mut bytes: Vec<u8>,
        now: Instant,
    ) -> Operation<W> {
        bytes.clear();
        op.action.pack(&op.key, prefix, Means::ALL, &mut bytes);
        Operation {
            number,
            op,
            caller: Some(caller),
            bytes,
            phase: Phase::Open,
            schedule: Timing {
                submitted: now,
                begun: None,
                until: now,
                expiry: Expiry::Running,
            },
            votes: Votes::default(),
            sent_to: NodeSet::EMPTY,
            retried: NodeSet::EMPTY,
            undo_to: NodeSet::EMPTY,
        }
    }

    pub(crate) fn is_acquire(&self) -> bool {
        self.op.is_acquire()
    }

    pub(crate) fn is_repair(&self) -> bool {
        matches!(self.op.action, Action::Repair(_))
    }

    pub(crate) fn is_extension(&self) -> bool {
        matches!(self.op.action, Action::Extend(..))
    }

    pub(crate) fn is_release(&self) -> bool {
        self.op.action.is_release()
    }

    /// Whether the operation gives up its lock: a node that is away is sent it when it is back.
    pub(crate) fn ends(&self) -> bool {
        self.op.action.ends()
    }

    /// The debt to a node that does not carry out the operation, if it ends a lock.
    pub(crate) fn owed(&self) -> Option<Debt> {
        self.op.owed(self.schedule.submitted)
    }

    /// Whether a caller waits for the verdict.
    pub(crate) fn is_open(&self) -> bool {
        self.phase == Phase::Open && !self.op.only_write
    }

    pub(crate) fn is_under_way(&self) -> bool {
        self.phase != Phase::Free
    }

    // ---- its time

    pub(crate) fn begun(&self) -> Option<Instant> {
        self.schedule.begun
    }

    pub(crate) fn submitted(&self) -> Instant {
        self.schedule.submitted
    }

    pub(crate) fn begin(&mut self, now: Instant, until: Instant) {
        self.schedule.begun = Some(now);
        self.schedule.until = until;
    }

    /// Until when the answer is waited for. `first`: until when the operation waits for first connections.
    pub(crate) fn waits_until(&self, first: Option<Instant>) -> Instant {
        let until = first.unwrap_or(self.schedule.until);
        self.op.until.map_or(until, |useful| useful.min(until))
    }

    /// When the operation was first wanted.
    fn since(&self) -> Instant {
        self.op.since.unwrap_or(self.schedule.submitted)
    }

    /// When the operation's own time ends, if it has begun.
    fn own_end(&self) -> Option<Instant> {
        self.schedule.begun.map(|_| self.schedule.until)
    }

    /// Whether it is too late to send the operation. (One that ends a lock is written all the same.)
    fn is_late(&self, now: Instant) -> bool {
        let is_over = |until: Option<Instant>| until.is_some_and(|until| until <= now);
        let late = is_over(self.own_end()) || is_over(self.op.until);
        !self.ends() && late || self.needs_master() && !self.is_named(now)
    }

    /// Whether the server that has the slot lately named the one that is asked, if it has to (rule R43).
    fn is_named(&self, now: Instant) -> bool {
        let holds = |at: Instant| now <= at + NAMED;
        self.op.named_at.is_none_or(holds)
    }

    fn is_expired(&self) -> bool {
        self.schedule.expiry != Expiry::Running
    }

    /// Notes whether the operation's time is over. Returns whether its own time is.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        let own = self.own_end().is_some_and(|until| until <= now);
        let useless = self.op.until.is_some_and(|until| until <= now);
        self.schedule.expiry = match own || useless {
            true => Expiry::Over,
            false => Expiry::Running,
        };
        own
    }

    /// Gives a node that connects at the last moment time to answer. (The end of a lock has one node timeout.)
    pub(crate) fn give_time_to(&mut self, node: usize, node_timeout: Duration, now: Instant) {
        let known = self.sent_to.or(self.votes.tally.voted()).has(node);
        let begun = self.schedule.begun.filter(|_| !self.ends());
        if let Some(begun) = begun.filter(|_| !known) {
            let latest = (now + node_timeout).min(begun + 2 * node_timeout);
            self.schedule.until = self.schedule.until.max(latest);
        }
    }

    /// Whether an answer is already useless, while the operation's own time is not over.
    fn is_useless(&self, now: Instant) -> bool {
        let own = self.own_end();
        let useful = self
            .op
            .until
            .filter(|until| own.is_none_or(|own| *until <= own));
        useful.is_some_and(|until| until <= now)
    }

    // ---- where it is sent

    /// Whether the answers count only if a master gives them (rule R43).
    pub(crate) fn needs_master(&self) -> bool {
        self.op.action.needs() != Proof::None
    }

    /// Nodes that the operation can be sent to.
    fn connected(&self, view: &View) -> NodeSet {
        match self.needs_master() {
            true => view.connected.without(view.unconfirmed),
            false => view.connected,
        }
    }

    /// Nodes that the operation must be sent to now.
    pub(crate) fn to_send(&self, view: &View, now: Instant) -> NodeSet {
        let connected = self.connected(view);
        let new = connected.without(self.sent_to).and(self.op.nodes);
        let same_server = view.same_server && self.is_acquire();
        // Mostly the operation is already on its way.
        if new.is_empty() || self.phase != Phase::Open || self.is_late(now) || same_server {
            return NodeSet::EMPTY;
        }
        if self.ends() || self.op.only_write {
            // The end of a lock is also sent where it has failed already.
            return new;
        }
        let new = new.without(self.votes.tally.voted());
        if new.is_empty() {
            return new;
        }
        // Without a quorum nothing is acquired or extended, so nothing is left to undo either.
        let possible = new.or(self.sent_to.without(self.votes.tally.failed));
        if self.schedule.begun.is_none() || possible.len() < majority(view.nodes) {
            return NodeSet::EMPTY;
        }
        new
    }

    /// Nodes that the operation was sent to and that have not voted.
    pub(crate) fn owing(&self) -> NodeSet {
        self.sent_to.without(self.votes.tally.voted())
    }

    /// Nodes that are not connected, and could vote if they were.
    pub(crate) fn absent(&self, view: &View) -> NodeSet {
        let connected = self.connected(view);
        let known = connected.or(self.sent_to).or(self.votes.tally.voted());
        NodeSet::first(view.nodes).without(known)
    }

    /// Nodes that are not connected, and without which there are too few. `to_send`: the nodes that the operation is
    /// sent to now.
    pub(crate) fn lacking(&self, to_send: NodeSet, view: &View) -> NodeSet {
        let absent = self.absent(view);
        if absent.is_empty() {
            return absent;
        }
        let possible = self.tally().granted.or(self.owing()).or(to_send);
        match possible.without(view.slow).len() < majority(view.nodes) {
            true => absent,
            false => NodeSet::EMPTY,
        }
    }

    // ---- votes

    /// Counts a node's vote.
    pub(crate) fn vote(&mut self, node: usize, vote: Vote) -> Voted {
        match vote {
            Vote::Granted(number) => {
                if self.counts_apart() && !self.votes.tally.voted().has(node) {
                    self.votes.by_node.add(node, number);
                }
                self.votes.grant(node, number);
                if mutant(Mutant::VoteCountsTwice) {
                    self.votes.tally.grant(node + 1);
                }
            }
            Vote::Refused(_) if mutant(Mutant::GoneIsHeld) && !self.is_acquire() => {
                self.votes.tally.grant(node)
            }
            Vote::Refused(_) if mutant(Mutant::RepairVotes) && self.is_extension() => {
                self.votes.tally.grant(node)
            }
            // The operation may have been carried out just before the first connection closed.
            Vote::Refused(_) if self.ends() && self.retried.has(node) => {
                self.fail(node, &Arc::new(Cause::Closed("before it answered".into())));
            }
            Vote::Refused(info) => {
                self.votes.tally.refuse(node);
                if let Some(info) = info {
                    self.votes.remarks.make().lock_infos.push(info);
                }
            }
            Vote::OtherUse(other) => {
                self.votes.tally.refuse(node);
                self.votes.remarks.make().other_uses.push((node, other));
            }
            Vote::Failed { cause, .. } => {
                let cause = Arc::new(cause);
                self.fail(node, &cause);
                return Voted::Complained(cause);
            }
            Vote::Sever(cause) => {
                self.retried.add(node);
                self.severed(node, &Arc::new(cause.clone()));
                return Voted::Sever(cause);
            }
        }
        Voted::Well
    }

    pub(crate) fn fail(&mut self, node: usize, cause: &Arc<Cause>) {
        self.votes.fail(node, cause);
    }

    pub(crate) fn has_votes(&self) -> bool {
        !self.votes.tally.voted().is_empty()
    }

    /// Handles the end of the connection on which the operation was sent to a node.
    pub(crate) fn severed(&mut self, node: usize, cause: &Arc<Cause>) {
        if self.is_acquire() && !mutant(Mutant::ResendAcquire) {
            return self.fail(node, cause);
        }
        self.sent_to.remove(node);
        if matches!(**cause, Cause::Closed(_)) && !self.retried.has(node) {
            self.retried.add(node);
            self.votes.remarks.make().causes.push((node, cause.clone()));
        } else {
            self.fail(node, cause);
        }
    }

    /// Notes that a node cannot be connected: an operation that was not sent there need not wait for it. `began`: when
    /// the try to connect began.
    pub(crate) fn unreachable(&mut self, node: usize, cause: &Arc<Cause>, began: Option<Instant>) {
        // A final refusal may have been put right before the operation was wanted. The next try, which begins at once,
        // shows that.
        let stale = cause.is_final() && began < Some(self.since());
        if !self.sent_to.has(node) && !stale {
            self.fail(node, cause);
        }
    }

    /// Names why nodes have not voted, when the time is over. `slow`: nodes that had time to answer.
    pub(crate) fn fail_rest(
        &mut self,
        nodes: &[Node],
        slow: NodeSet,
        timeouts: Timeouts,
        now: Instant,
    ) {
        if !self.is_expired() || !self.is_open() {
            return;
        }
        let spare = spare(nodes.len());
        let is_away = |(_, node): &(usize, &Node)| !node.is_connected() && node.cause().is_some();
        let away = nodes.iter().enumerate().filter(is_away);
        let away: NodeSet = away.map(|(at, _)| at).collect();
        let failed = away.or(slow.and(self.owing()));
        let failed = failed.without(self.votes.tally.voted());
        let failed = failed.or(self.votes.tally.failed);
        if failed.len() <= spare && self.is_useless(now) {
            self.schedule.expiry = Expiry::Useless;
        }
        let waited = now.saturating_duration_since(self.schedule.submitted);
        let silent = Arc::new(match self.own_end().is_some_and(|until| until <= now) {
            true => Cause::NoAnswer(timeouts.node, Limit::Node(1)),
            false => Cause::NoAnswer(waited, Limit::Rest),
        });
        let trying = Arc::new(Cause::NotConnected(waited, timeouts.connect));
        for (at, node) in nodes.iter().enumerate() {
            match (node.is_connected(), node.cause()) {
                // A server that refused for good before this may have been put right: another try to connect is under
                // way. The refusal is reported all the same.
                (false, Some(cause)) if cause.is_final() => self.votes.tally.fail(at),
                (false, cause) => self.fail(at, cause.unwrap_or(&trying)),
                (true, _) if self.sent_to.has(at) => self.fail(at, &silent),
                (true, _) => {}
            }
        }
        let rest = NodeSet::first(nodes.len()).without(self.votes.tally.voted());
        for at in rest.iter() {
            // The node would have been asked if the others had sufficed; or there was no time.
            match self.votes.tally.failed.len() > spare {
                true => self.votes.tally.fail(at),
                false => self.fail(at, &Arc::new(Cause::NotAsked)),
            }
        }
    }

    // ---- the verdict

    /// Whether votes are for one of several slots, and count only together with those for the same one (rules R47,
    /// R48).
    fn counts_apart(&self) -> bool {
        self.op.key.kind.counts_apart() && (self.is_acquire() || self.is_extension())
    }

    /// The nodes that granted a slot other than the one that counts.
    fn strays(&self) -> NodeSet {
        let kind = &self.op.key.kind;
        self.votes.by_node.strays(kind, self.is_extension())
    }

    /// The releases of the slots that an acquire was granted and does not hold.
    pub(crate) fn stray_releases(&self) -> Vec<(usize, Key)> {
        let key = self.lasting_key();
        let slots = self.votes.by_node.stray_slots(&key.kind);
        slots
            .map(|(node, slot)| {
                let release = key.clone().of_kind(Kind::Stray(slot));
                let release = release.sent_to(std::iter::once(node).collect());
                (node, release)
            })
            .collect()
    }

    /// The key that an acquire may have left behind.
    fn lasting_key(&self) -> Key {
        let ttl = self.op.action.acquires_for();
        ttl.map_or_else(
            || self.op.key.clone(),
            |ttl| self.op.key.clone().lasting(ttl),
        )
    }

    /// The votes as they count.
    fn tally(&self) -> Tally {
        match self.counts_apart() {
            true => without_strays(self.votes.tally, self.strays()),
            false => self.votes.tally,
        }
    }

    /// The verdict, once it is certain. "No" and "lost" do not wait for nodes that are not connected; "too few
    /// answers" does, while there is time.
    fn certain_verdict(&self, view: &View) -> Option<Verdict> {
        let question = self.op.action.question();
        let mut tally = self.tally();
        for node in self.absent(view).iter() {
            if mutant(Mutant::NoWithoutQuorum) {
                tally.refuse(node);
            }
            tally.fail(node);
        }
        let verdict = match tally.verdict(question, view.nodes) {
            Some(Verdict::Unavailable) if !self.is_expired() => self
                .tally()
                .verdict(question, view.nodes)
                .filter(|verdict| *verdict == Verdict::Unavailable),
            verdict => verdict,
        };
        // Nodes that the operation is not for give no votes.
        let owing = self.op.nodes.without(self.votes.tally.voted());
        let all = owing.and(NodeSet::first(view.nodes)).is_empty();
        verdict.or(all.then_some(Verdict::Unavailable))
    }

    /// The verdict, if it is certain and no more votes are waited for.
    pub(crate) fn verdict(&self, view: &View, now: Instant) -> Option<Verdict> {
        // While the operation waits for first connections nothing is certain: an error names every cause.
        if !self.is_open() || self.schedule.begun.is_none() && !self.is_expired() {
            return None;
        }
        let acquire = self.is_acquire();
        let same_server = view.same_server && acquire && self.sent_to.is_empty();
        let verdict = self.certain_verdict(view);
        let verdict = verdict.or(same_server.then_some(Verdict::Unavailable))?;
        // No node has granted the lock yet: those that answer as promptly as the others are waited for. If several
        // contend and none has a quorum, a contender that has a vote must learn of it, and try again.
        let unsure = verdict == Verdict::No
            && self.votes.tally.granted.is_empty()
            && !mutant(Mutant::NoTooEarly);
        // An extension learns from all nodes that answer promptly whether they hold the lock (rule R11b).
        let until = self.waits_until(None);
        let asks = self.is_extension() && verdict == Verdict::Yes && until > now + 2 * SLICE;
        let mut owing = self.owing().and(view.connected);
        if asks {
            // The others are asked again with the next extension.
            owing = owing.without(view.slow);
        }
        let waits = acquire && unsure || asks;
        (!waits || !view.replies_flowing || owing.is_empty()).then_some(verdict)
    }

    /// The verdict on an operation that no caller waits for, once it is written.
    pub(crate) fn written(&self, view: &View) -> Verdict {
        match self.sent_to.len() >= majority(view.nodes) {
            true => Verdict::Yes,
            false => Verdict::Unavailable,
        }
    }

    /// The verdict of an acquire whose undo is written.
    pub(crate) fn undone(&self, verdict: Verdict, view: &View) -> Verdict {
        match mutant(Mutant::YesAfterUndo) && self.votes.tally.granted.len() >= majority(view.nodes)
        {
            true => Verdict::Yes,
            false => verdict,
        }
    }

    /// The releases of a failed acquire: behind its SETs, for each node that did not deny (rules R6, R7).
    pub(crate) fn undo(&self) -> (NodeSet, Key) {
        let without = self.votes.tally.refused.or(self.votes.elsewhere());
        let mut undo = self.sent_to.without(without);
        if mutant(Mutant::UndoOnlyGranted) {
            undo = self.votes.tally.granted;
        }
        let mut release = self.lasting_key();
        // A server that answered with an error does not have the lock, and may refuse the release, too.
        release.sent_to = undo.without(self.votes.refused());
        (undo, release)
    }

    /// Whether too few nodes answered only because of connections that turned out closed.
    fn failed_by_closing(&self, nodes: usize) -> bool {
        self.votes.tally.failed.without(self.votes.closed).len() <= spare(nodes)
    }

    /// Ends the operation with this verdict.
    pub(crate) fn answer(
        &mut self,
        verdict: Verdict,
        notified_elsewhere: bool,
        nodes: &[Node],
        now: Instant,
    ) -> Answer {
        let outcome = match verdict {
            Verdict::Yes => Outcome::Yes(self.sent_to),
            Verdict::No => Outcome::No,
            Verdict::Unavailable => Outcome::Unavailable {
                errors: self
                    .votes
                    .errors(self.op.action.question(), self.sent_to, nodes),
                closed: self.is_acquire() && self.failed_by_closing(nodes.len()),
                useless: self.schedule.expiry == Expiry::Useless,
            },
        };
        let counted = self.votes.by_node.counted(&self.op.key.kind);
        let extended = self.is_extension().then(|| self.tally());
        let votes = std::mem::take(&mut self.votes);
        Answer {
            outcome,
            // The grants of an acquire are undone, whether they count or not.
            tally: extended.unwrap_or(votes.tally),
            numbers: counted.map(|one| (one, one)).or(votes.numbers),
            remarks: votes.remarks,
            notified_elsewhere,
            begun: self.schedule.begun.unwrap_or(now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::fixtures::{MS, key};
    use crate::protocol::commands::script::Notify;
    use crate::values::clock;

    /// The verdict on a release for these of three nodes, with these answers: granted, refused, or sent elsewhere.
    fn verdict(nodes: &[usize], answers: &[(usize, char)], connected: NodeSet) -> Option<Verdict> {
        let now = clock::instant();
        let nodes: NodeSet = nodes.iter().copied().collect();
        let op = Op::new(Action::Release(Notify::None), key(b"a")).to(nodes);
        let mut operation = Operation::new(1, op, (), &Prefix::default(), Vec::new(), now);
        operation.begin(now, now + 50 * MS);
        operation.sent_to = nodes;
        for (node, answer) in answers {
            let vote = match answer {
                '+' => Vote::Granted(1),
                '-' => Vote::Refused(None),
                _ => {
                    let elsewhere = Cause::Elsewhere("MOVED 1 h:1".into());
                    operation.fail(*node, &Arc::new(elsewhere));
                    continue;
                }
            };
            operation.vote(*node, vote);
        }
        let view = View {
            nodes: 3,
            connected,
            unconfirmed: NodeSet::EMPTY,
            slow: NodeSet::EMPTY,
            same_server: false,
            replies_flowing: true,
        };
        operation.verdict(&view, now + MS)
    }

    #[test]
    fn an_operation_for_some_nodes_ends_when_they_have_answered() {
        let unavailable = Some(Verdict::Unavailable);
        for connected in [NodeSet::first(3), NodeSet::first(2)] {
            for (nodes, answers, expected) in [
                (&[1][..], &[][..], None),
                (&[1], &[(1, '+')], unavailable),
                (&[1], &[(1, '-')], unavailable),
                (&[1], &[(1, '!')], unavailable),
                (&[0, 1], &[(1, '+')], None),
                (&[0, 1], &[(1, '!')], None),
                (&[0, 1], &[(0, '+'), (1, '!')], unavailable),
                // A majority has answered, though not all were asked.
                (&[0, 1], &[(0, '+'), (1, '+')], Some(Verdict::Yes)),
                (&[0, 1], &[(0, '-'), (1, '-')], Some(Verdict::No)),
                (&[0, 1, 2], &[(1, '+')], None),
                (&[0, 1, 2], &[(0, '+'), (1, '!')], None),
            ] {
                let found = verdict(nodes, answers, connected);
                assert_eq!(found, expected, "{nodes:?}: {answers:?}");
            }
        }
    }
}
