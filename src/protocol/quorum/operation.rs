//! One operation on all nodes: its time, where it was sent, and how the nodes have voted.

mod verdict;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::errors::cause::{Cause, Limit};
use crate::errors::redirection::Redirection;
use crate::protocol::commands::action::Action;
use crate::protocol::commands::dialect::Dialect;
use crate::protocol::commands::vote::{Denial, Proof, Vote};
use crate::protocol::discovery::found_master::REDIRECT_BELIEVED;
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::node::debt::Debt;
use crate::protocol::node::node::{Node, Timeouts};
use crate::protocol::node::standing::Standing;
use crate::protocol::quorum::op::Op;
use crate::protocol::quorum::view::View;
use crate::protocol::quorum::votes::Votes;
use crate::values::arithmetic::{Verdict, majority, spare};
use crate::values::endpoint::is_at;
use crate::values::node_set::NodeSet;
use crate::values::prefix::Prefix;

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
        op.action.pack(&op.key, prefix, Dialect::ALL, &mut bytes);
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
    pub(crate) fn debt(&self) -> Option<Debt> {
        self.op.debt(self.schedule.submitted)
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

    pub(crate) fn begin(&mut self, now: Instant, until: Instant) {
        self.schedule.begun = Some(now);
        self.schedule.until = until;
    }

    /// Since when first connections are waited for.
    pub(crate) fn waits_since(&self) -> Instant {
        let wait = self.op.first_wait;
        wait.map_or(self.schedule.submitted, |wait| wait.since)
    }

    /// When the program is asked whether to go on, as long as the operation waits for first connections.
    fn asks(&self) -> Option<Instant> {
        let wait = self
            .op
            .first_wait
            .filter(|_| self.schedule.begun.is_none())?;
        (!mutant(Mutant::ConnectUnasked)).then_some(wait.asks)
    }

    /// Until when the answer is waited for. `first`: until when the operation waits for first connections.
    pub(crate) fn waits_until(&self, first: Option<Instant>) -> Instant {
        let until = first.unwrap_or(self.schedule.until);
        let until = self.asks().map_or(until, |asks| asks.min(until));
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

    /// When an answer became useless, and `now` if it has not.
    pub(crate) fn over_at(&self, now: Instant) -> Instant {
        self.op.until.map_or(now, |until| until.min(now))
    }

    /// Whether it is too late to send the operation. (One that ends a lock is written all the same.)
    fn is_late(&self, now: Instant) -> bool {
        let is_over = |until: Option<Instant>| until.is_some_and(|until| until <= now);
        let late = is_over(self.own_end()) || is_over(self.op.until);
        !self.ends() && late || self.needs_master() && !self.is_named(now)
    }

    /// Whether the server that has the slot lately named the one that is asked, if it has to (rule R43).
    fn is_named(&self, now: Instant) -> bool {
        let holds = |time: Instant| now <= time + REDIRECT_BELIEVED;
        let named = self.op.named.as_ref();
        named.is_none_or(|named| holds(named.at)) || mutant(Mutant::NamedForEver)
    }

    fn is_expired(&self) -> bool {
        self.schedule.expiry != Expiry::Running
    }

    /// Notes whether the operation's time is over. Returns whether its own time is.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        let own = self.own_end().is_some_and(|until| until <= now);
        let useless = self.op.until.is_some_and(|until| until <= now);
        let asks = self.asks().is_some_and(|asks| asks <= now);
        self.schedule.expiry = match own || useless || asks {
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

    /// Nodes that the operation can be sent to: connected ones whose answers would count.
    fn counting(&self, view: &View) -> NodeSet {
        view.counting(self.op.action.needs())
    }

    /// Nodes that the operation must be sent to now.
    pub(crate) fn to_send(&self, view: &View, now: Instant) -> NodeSet {
        let counting = self.counting(view);
        let new = counting.without(self.sent_to).and(self.op.nodes);
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

    /// Nodes that the operation cannot be sent to, and that could vote if it could: they are not connected, or nothing confirms
    /// that they lead to the master.
    pub(crate) fn absent(&self, view: &View) -> NodeSet {
        let counting = self.counting(view);
        let known = counting.or(self.sent_to).or(self.votes.tally.voted());
        NodeSet::first(view.nodes).without(known)
    }

    /// [Absent](Self::absent) nodes, if there are too few without them. `to_send`: the nodes that the operation is
    /// sent to now.
    pub(crate) fn lacking(&self, to_send: NodeSet, view: &View) -> NodeSet {
        let absent = self.absent(view);
        // An attempt that goes on waiting for first connections has had the nodes connected at once when it began.
        let goes_on = self.schedule.begun.is_none() && self.waits_since() < self.schedule.submitted;
        if absent.is_empty() || goes_on {
            return NodeSet::EMPTY;
        }
        let possible = self.tally().granted.or(self.owing()).or(to_send);
        match possible.without(view.slow).len() < majority(view.nodes) {
            true => absent,
            false => NodeSet::EMPTY,
        }
    }

    // ---- votes

    /// Notes the number of a grant that is no vote.
    pub(crate) fn grants_without_vote(&mut self, node: usize, number: u64) {
        if self.counts_apart() && !mutant(Mutant::FailedNodesSlotStays) {
            self.votes.uncounted.add(node, number);
        }
    }

    /// Counts a node's vote.
    pub(crate) fn vote(&mut self, node: usize, vote: Vote) -> Voted {
        match vote {
            Vote::Granted(number) => {
                if self.counts_apart() && !self.votes.tally.voted().has(node) {
                    self.votes.by_node.add(node, number);
                } else {
                    self.grants_without_vote(node, number);
                }
                self.votes.grant(node, number);
                if mutant(Mutant::VoteCountsTwice) {
                    self.votes.tally.grant(node + 1);
                }
            }
            Vote::Denied(_) if mutant(Mutant::GoneIsHeld) && !self.is_acquire() => {
                self.votes.tally.grant(node)
            }
            Vote::Denied(_) if mutant(Mutant::RepairVotes) && self.is_extension() => {
                self.votes.tally.grant(node)
            }
            // The operation may have been carried out just before the first connection closed, or before it was sent on.
            Vote::Denied(_) if self.ends() && self.retried.or(self.op.may_be_done).has(node) => {
                self.fail(node, &Arc::new(Cause::Closed("before it answered".into())));
            }
            Vote::Denied(refusal) => {
                self.votes.tally.deny(node);
                match refusal {
                    Denial::Unknown => {}
                    Denial::Held(info) => self.votes.remarks.make().lock_infos.push(info),
                    Denial::Instead(instead) => self.votes.remarks.make().instead.push(instead),
                }
            }
            Vote::OtherUse(other) => {
                self.votes.tally.deny(node);
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

    pub(crate) fn has_failed(&self, node: usize) -> bool {
        self.votes.tally.failed.has(node)
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

    /// Fails a node whose answer could not count. Returns whether that is so.
    pub(crate) fn heed(&mut self, node: usize, standing: &Standing, now: Instant) -> bool {
        let reason = standing.refuses(self.is_acquire());
        if let Some(reason) = reason.filter(|_| !self.sent_to.has(node)) {
            self.fail(node, &Arc::new(reason.cause(now)));
        }
        reason.is_some()
    }

    /// Fails a node whose connection leads to another server than the one that a redirect named (rule R45a): that one
    /// may be about to get the slot back, and would carry out the operation beside the slot's owner.
    pub(crate) fn keep_from(&mut self, node: usize, server: &Arc<str>) {
        let named = self.op.named.as_ref();
        let is_other = named.is_some_and(|named| !is_at(&named.server, server));
        let is_open = self.op.nodes.has(node) && !self.votes.tally.voted().has(node);
        if is_other && is_open && !mutant(Mutant::NamedIsAnyServer) {
            self.sent_to.add(node);
            self.fail(
                node,
                &Arc::new(Cause::Redirected(Redirection::unnamed(server).into())),
            );
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
        let away: NodeSet = away.map(|(node_index, _)| node_index).collect();
        let failed = away.or(slow.and(self.owing()));
        let failed = failed.without(self.votes.tally.voted());
        let failed = failed.or(self.votes.tally.failed);
        if failed.len() <= spare && self.is_useless(now) {
            self.schedule.expiry = Expiry::Useless;
        }
        let waited = now.saturating_duration_since(self.waits_since());
        let silent = Arc::new(match self.own_end().is_some_and(|until| until <= now) {
            true => Cause::NoAnswer(timeouts.node, Limit::Node(1)),
            false => Cause::NoAnswer(waited, Limit::Rest),
        });
        let trying = Arc::new(Cause::NotConnected(waited, timeouts.connect));
        for (node_index, node) in nodes.iter().enumerate() {
            match (node.is_connected(), node.cause()) {
                // A server that refused for good before this may have been put right: another try to connect is under
                // way. The refusal is reported all the same.
                (false, Some(cause)) if cause.is_final() => self.votes.tally.fail(node_index),
                (false, cause) => self.fail(node_index, cause.unwrap_or(&trying)),
                (true, _) if self.sent_to.has(node_index) => self.fail(node_index, &silent),
                (true, _) => {}
            }
        }
        let rest = NodeSet::first(nodes.len()).without(self.votes.tally.voted());
        for node_index in rest.iter() {
            // The node would have been asked if the others had sufficed; or its address is not confirmed (a release needs no
            // confirmation); or there was no time.
            let node = nodes.get(node_index).filter(|_| !self.op.action.ends());
            let doubt = node.and_then(|node| node.wire().address.doubt(now));
            match (self.votes.tally.failed.len() > spare, doubt) {
                (_, Some(doubt)) => self.fail(node_index, doubt),
                (true, None) => self.votes.tally.fail(node_index),
                (false, None) => self.fail(node_index, &Arc::new(Cause::NotAsked)),
            }
        }
    }
}

#[cfg(test)]
mod tests;
