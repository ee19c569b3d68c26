//! The verdict on an operation, by the votes that count, and what is left to undo after it.

use std::time::Instant;

use crate::protocol::commands::action::Key;
use crate::protocol::commands::kind::Kind;
use crate::protocol::commands::kind_votes::without_strays;
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::node::node::Node;
use crate::protocol::node::read_order::SLICE;
use crate::protocol::quorum::answer::{Answer, Outcome};
use crate::protocol::quorum::operation::{Expiry, Operation};
use crate::protocol::quorum::view::View;
use crate::values::arithmetic::{Tally, Verdict, majority, spare};
use crate::values::node_set::NodeSet;

impl<W> Operation<W> {
    /// Whether votes are for one of several slots, and count only together with those for the same one (rules R47,
    /// R48).
    pub(crate) fn counts_apart(&self) -> bool {
        self.op.key.kind.row().counts_apart && (self.is_acquire() || self.is_extension())
    }

    /// The nodes that granted a slot other than the one that counts.
    fn strays(&self) -> NodeSet {
        let kind = &self.op.key.kind;
        self.votes.by_node.strays(kind, self.is_extension())
    }

    /// The releases of the slots that an acquire was granted and does not hold.
    pub(crate) fn stray_releases(&self) -> Vec<(usize, Key)> {
        let key = self.lasting_key();
        let (counting, uncounted) = (&self.votes.by_node, &self.votes.uncounted);
        let slots = counting.stray_slots(uncounted, &key.kind);
        slots
            .map(|(node, slot)| {
                let release = key.clone().of_kind(Kind::Stray(slot));
                let release = release.sent_to(std::iter::once(node).collect());
                (node, release)
            })
            .collect()
    }

    /// The key of a permit that was acquired.
    pub(crate) fn granted_key(&self) -> Key {
        let key = self.lasting_key();
        let number = self.votes.by_node.counted(&key.kind);
        let kind = key.kind.granted(number.map(|number| (number, number)));
        key.of_kind(kind)
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
    pub(super) fn tally(&self) -> Tally {
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
        let known = tally.verdict(question, view.nodes);
        if let Some(Verdict::Yes | Verdict::No) = known {
            return known;
        }
        let (absent, mut verdict) = (self.absent(view), known);
        if !absent.is_empty() {
            for node in absent.iter() {
                if mutant(Mutant::NoWithoutQuorum) {
                    tally.deny(node);
                }
                tally.fail(node);
            }
            verdict = match tally.verdict(question, view.nodes) {
                Some(Verdict::Unavailable) if !self.is_expired() => known,
                verdict => verdict,
            };
        }
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
        // An extension learns from all nodes that answer promptly whether they hold the lock (rule R11b), and an acquire of a
        // permit in which slot.
        let until = self.waits_until(None);
        let learns = self.is_extension() || self.counts_apart();
        let asks = learns && verdict == Verdict::Yes && until > now + 2 * SLICE;
        let mut owing = self.owing().and(view.connected);
        if asks {
            // Slow nodes are asked again with the next extension; their late grants of permits are found when they arrive.
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
        let without = self.votes.tally.denied.or(self.votes.redirected());
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

    /// The answer to the operation, by this verdict.
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
                    .errors(self.op.action.question(), self.sent_to, nodes)
                    .into(),
                closed: self.is_acquire() && self.failed_by_closing(nodes.len()),
                useless: self.schedule.expiry == Expiry::Useless,
                unsent: self.asks().is_some_and(|asks| asks <= now),
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
mod tests;
