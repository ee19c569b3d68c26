//! One operation under way on all nodes: whom it was sent to, who has voted, what that comes to.

use std::sync::Arc;
use std::time::Instant;

use crate::error::{Cause, NodeErrors};
use crate::protocol::mutant;
use crate::protocol::queue::LockInfo;
use crate::protocol::quorum::{NodeSet, Question, Tally, Verdict, majority};
use crate::protocol::script::{Action, Key, NOTIFIED};

/// What is asked of all nodes.
#[derive(Clone)]
pub(crate) struct Op {
    pub(crate) action: Action,
    pub(crate) key: Key,
    /// Since when it is wanted, if that is longer than since it is submitted.
    pub(crate) since: Option<Instant>,
    /// When an answer is of no more use, if that is before the operation's own time is over.
    pub(crate) until: Option<Instant>,
    /// It is done as soon as it is written: nobody reads the answer (for `Drop`).
    pub(crate) only_write: bool,
    /// It is for these nodes.
    pub(crate) nodes: NodeSet,
}

pub(crate) enum Outcome {
    /// With the nodes that were asked.
    Yes(NodeSet),
    No,
    Unavailable {
        errors: NodeErrors,
        /// It would not have come to that without connections that turned out closed.
        closed: bool,
        /// It came to that because an answer was of no more use ([`Op::until`]).
        useless: bool,
    },
}

pub(crate) struct Answer {
    pub(crate) outcome: Outcome,
    pub(crate) tally: Tally,
    /// The smallest and the largest number that was granted: of a fencing token, or what releases say.
    pub(crate) numbers: Option<(u64, u64)>,
    /// What a knock has seen, node by node.
    pub(crate) seen: Vec<LockInfo>,
    /// An earlier release of the same resource has told another process, as was learnt only now.
    pub(crate) passed: bool,
    /// Why nodes failed.
    pub(crate) causes: Vec<(usize, Arc<Cause>)>,
    /// When it was first sent, or would have been.
    pub(crate) begun: Instant,
}

impl Answer {
    /// Of an operation that nobody carried out.
    pub(crate) fn none(now: Instant) -> Answer {
        Answer {
            outcome: Outcome::Unavailable {
                errors: NodeErrors::new(Vec::new(), None),
                closed: false,
                useless: false,
            },
            tally: Tally::default(),
            numbers: None,
            seen: Vec::new(),
            passed: false,
            causes: Vec::new(),
            begun: now,
        }
    }

    /// Of a release: whether it has told another process.
    pub(crate) fn has_notified(&self) -> bool {
        self.numbers.is_some_and(|(_, most)| most == NOTIFIED)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Nobody's: its place is free.
    Free,
    Open,
    /// A failed acquire: it ends with this verdict when its releases are written (rule R6). Whatever
    /// is granted until then, it is never a yes again.
    Undoing(Verdict),
}

/// `W`: who waits for the answer.
pub(crate) struct Operation<W> {
    /// Tells it from others that had the same place.
    pub(crate) number: u64,
    pub(crate) op: Op,
    pub(crate) who: Option<W>,
    /// The packed command, for nodes that know the scripts.
    pub(crate) bytes: Vec<u8>,
    pub(crate) phase: Phase,
    pub(crate) submitted: Instant,
    /// Its time runs. Before that it waits for first connections.
    pub(crate) begun: Option<Instant>,
    /// When its own time is over.
    pub(crate) until: Instant,
    pub(crate) votes: Tally,
    pub(crate) numbers: Option<(u64, u64)>,
    pub(crate) seen: Vec<LockInfo>,
    pub(crate) causes: Vec<(usize, Arc<Cause>)>,
    /// Nodes that it was sent to. Where the connection closes, a release or extension is taken out again, so
    /// that it can be sent a second time.
    pub(crate) asked: NodeSet,
    /// Nodes that may be asked a second time, or have been.
    pub(crate) again: NodeSet,
    /// Nodes that failed because their connection was closed.
    closed: NodeSet,
    /// Nodes that the releases which undo it are still to be written to.
    pub(crate) undo: NodeSet,
    /// Its time is over.
    pub(crate) late: bool,
    /// An answer was of no more use before its own time was over, and a quorum could still have voted.
    pub(crate) useless: bool,
}

impl<W> Operation<W> {
    pub(crate) fn new(
        number: u64,
        op: Op,
        who: W,
        mut bytes: Vec<u8>,
        now: Instant,
    ) -> Operation<W> {
        bytes.clear();
        op.action.pack(&op.key, true, &mut bytes);
        Operation {
            number,
            op,
            who: Some(who),
            bytes,
            phase: Phase::Open,
            submitted: now,
            begun: None,
            until: now,
            votes: Tally::default(),
            numbers: None,
            seen: Vec::new(),
            causes: Vec::new(),
            asked: NodeSet::EMPTY,
            again: NodeSet::EMPTY,
            closed: NodeSet::EMPTY,
            undo: NodeSet::EMPTY,
            late: false,
            useless: false,
        }
    }

    pub(crate) fn since(&self) -> Instant {
        self.op.since.unwrap_or(self.submitted)
    }

    pub(crate) fn is_acquire(&self) -> bool {
        self.op.action.question() == Question::Acquire
    }

    pub(crate) fn is_repair(&self) -> bool {
        matches!(self.op.action, Action::Repair(_))
    }

    pub(crate) fn is_extension(&self) -> bool {
        matches!(self.op.action, Action::Extend(_))
    }

    pub(crate) fn is_release(&self) -> bool {
        self.op.action.is_release()
    }

    /// Somebody waits for its verdict.
    pub(crate) fn is_open(&self) -> bool {
        self.phase == Phase::Open && !self.op.only_write
    }

    pub(crate) fn is_under_way(&self) -> bool {
        self.phase != Phase::Free
    }

    /// Whether it is too late to send it. (A release is written all the same.)
    pub(crate) fn is_late(&self, now: Instant) -> bool {
        let own = self.begun.map(|_| self.until);
        let until = own.into_iter().chain(self.op.until).min();
        !self.is_release() && until.is_some_and(|until| until <= now)
    }

    pub(crate) fn grant(&mut self, node: usize, number: u64) {
        if !self.votes.voted().has(node) {
            let (least, most) = self.numbers.unwrap_or((number, number));
            self.numbers = Some((least.min(number), most.max(number)));
            self.votes.grant(node);
        }
    }

    pub(crate) fn fail(&mut self, node: usize, cause: &Arc<Cause>) {
        if !self.votes.voted().has(node) {
            self.votes.fail(node);
            self.causes.push((node, cause.clone()));
            if matches!(**cause, Cause::Closed(_)) {
                self.closed.add(node);
            }
        }
    }

    /// The connection on which a node was asked is finished.
    pub(crate) fn severed(&mut self, node: usize, cause: &Arc<Cause>) {
        if self.is_acquire() && !mutant(20) {
            return self.fail(node, cause);
        }
        self.asked.remove(node);
        if matches!(**cause, Cause::Closed(_)) && !self.again.has(node) {
            self.again.add(node);
            self.causes.push((node, cause.clone()));
        } else {
            self.fail(node, cause);
        }
    }

    /// Nodes that it is to be sent to now, of those that are here.
    pub(crate) fn to_ask(&self, here: NodeSet, nodes: usize) -> NodeSet {
        let new = here.without(self.asked).and(self.op.nodes);
        if self.is_release() || self.op.only_write {
            // A release also where it has failed already: it is due there.
            return new;
        }
        let new = new.without(self.votes.voted());
        if new.is_empty() {
            return new;
        }
        // Without a quorum nothing is acquired or extended, so nothing is left to undo either.
        let possible = new.or(self.asked.without(self.votes.failed));
        if self.begun.is_none() || possible.len() < majority(nodes) {
            return NodeSet::EMPTY;
        }
        new
    }

    /// Nodes that answered with an error, or did so when they were connected.
    pub(crate) fn refused(&self) -> NodeSet {
        let refused = |(_, cause): &&(usize, Arc<Cause>)| matches!(**cause, Cause::Refused(_));
        self.causes
            .iter()
            .filter(refused)
            .map(|(node, _)| *node)
            .collect()
    }

    /// Nodes that were asked and have not voted.
    pub(crate) fn owing(&self) -> NodeSet {
        self.asked.without(self.votes.voted())
    }

    /// Nodes that are not here, and could vote if they came.
    pub(crate) fn absent(&self, here: NodeSet, nodes: usize) -> NodeSet {
        let known = here.or(self.asked).or(self.votes.voted());
        NodeSet::first(nodes).without(known)
    }

    /// The verdict, once it is certain. "No" and "lost" do not wait for nodes that are not here; "too few
    /// answers" does, while there is time.
    pub(crate) fn verdict(&self, here: NodeSet, nodes: usize) -> Option<Verdict> {
        let question = self.op.action.question();
        let mut votes = self.votes;
        for node in self.absent(here, nodes).iter() {
            if mutant(11) {
                votes.refuse(node);
            }
            votes.fail(node);
        }
        match votes.verdict(question, nodes) {
            Some(Verdict::Unavailable) if !self.late => self
                .votes
                .verdict(question, nodes)
                .filter(|verdict| *verdict == Verdict::Unavailable),
            verdict => verdict,
        }
    }

    /// Whether an answer is of no more use, while its own time is not over.
    pub(crate) fn is_useless(&self, now: Instant) -> bool {
        let own = self.begun.map(|_| self.until);
        let before = |until: &Instant| own.is_none_or(|own| *until <= own);
        self.op
            .until
            .filter(before)
            .is_some_and(|until| until <= now)
    }

    /// Whether too few nodes answered only because of connections that turned out closed.
    pub(crate) fn failed_by_closing(&self, nodes: usize) -> bool {
        let spare = nodes - majority(nodes);
        self.votes.failed.without(self.closed).len() <= spare
    }
}
