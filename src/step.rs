//! One step: a batch of operations written to all nodes, read from all until every verdict is
//! certain, and the failed acquires undone.
//!
//! ```text
//!   gather   take back the wires of nodes that are fit again
//!   write    one write per node for the whole batch
//!   read     node after node, nearest first: a vote per reply, a verdict per operation
//!   (join)   where the nodes that are here do not suffice: wait for one that is away
//!   undo     the releases of failed acquires, behind their SETs
//! ```

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock;
use crate::error::{Cause, NodeErrors};
use crate::node::{Fetched, Nodes};
use crate::quorum::{Question, Tally, Verdict, bit, count, majority};
use crate::script::{Action, Key, Reply, Vote};
use crate::wire::{Debt, Wire};

/// A node is read before another that is listed earlier only if it answers this much faster: order
/// that changes costs system calls.
const SAME_LAG: Duration = Duration::from_micros(200);
/// Nodes that pass for far are looked at again no more often than this: a look costs system calls.
const RECONSIDER: Duration = Duration::from_millis(250);
/// A connection that was not heard for so long is looked at before it is written to.
const IDLE: Duration = Duration::from_secs(1);

/// What is asked of all nodes.
#[derive(Clone)]
pub(crate) struct Op {
    pub(crate) action: Action,
    pub(crate) key: Key,
    /// How long the key may live on the nodes: what undoes it is owed no longer.
    pub(crate) ttl: Duration,
    /// When an answer is of no more use, if that is before the step's own deadline.
    pub(crate) until: Option<Instant>,
    /// This is the repetition that [`Outcome::closed`] asked for; the first try had these votes. (Not
    /// to be repeated again. A node that has released is not asked once more whether it holds it.)
    pub(crate) again: Option<Tally>,
    /// Come back as soon as it is written; nobody reads the answer (for `Drop`).
    pub(crate) only_write: bool,
}

pub(crate) struct Outcome {
    pub(crate) verdict: Verdict,
    pub(crate) tally: Tally,
    /// The nodes that were asked.
    pub(crate) asked: u64,
    /// The failed nodes, if the verdict is that too few answered.
    pub(crate) errors: Option<NodeErrors>,
    /// It would not have come to that without connections that turned out closed: worth another go
    /// at once, on new ones.
    pub(crate) closed: bool,
}

impl Outcome {
    /// Of an operation that nobody carried out.
    pub(crate) fn none() -> Outcome {
        Outcome {
            verdict: Verdict::Unavailable,
            tally: Tally::default(),
            asked: 0,
            errors: None,
            closed: false,
        }
    }
}

/// Somebody who waits for an outcome.
pub(crate) trait Recipient: Send + Sync {
    fn deliver(&self, outcome: Outcome);
}

/// The wires and the buffers: what a step needs.
pub(crate) struct Baton {
    nodes: Arc<Nodes>,
    /// `None`: the node is away.
    wires: Vec<Option<Wire>>,
    /// The order in which nodes are read, and how long each takes to answer.
    order: Vec<usize>,
    lags: Vec<Duration>,
    /// How long the node that was read last took, if it alone made the step take so long.
    held_up: Duration,
    reconsidered: Instant,
    /// Nodes whose last answer to an acquire was an error of the server.
    complaining: u64,

    // Of the running step:
    batch: Vec<Slot>,
    /// Operations without a verdict.
    open: usize,
    /// Nodes that the batch was written to, whether they took it or not.
    written: u64,
    /// Nodes that are away and may still take part.
    hope: u64,
    /// A connection turned out closed.
    closed: bool,
    started: Instant,
    /// When its nodes were last written to.
    begun: Instant,
    until: Instant,
    bytes: Vec<u8>,
    /// In the middle of a step.
    stepping: bool,
    /// The outcome of the leader's own operation.
    own: Option<Outcome>,
}

/// An operation in a batch.
struct Slot {
    op: Op,
    tally: Tally,
    errors: Vec<(usize, Arc<Cause>)>,
    /// Nodes that were asked.
    asked: u64,
    /// Failed by a connection that was closed.
    closed: u64,
    /// Nodes that this release did not reach: it is owed to them if it ends so.
    lost: u64,
    /// The caller is about to repeat it on new connections.
    repeats: bool,
    /// Its own time is over.
    late: bool,
    state: State,
    /// Who waits for it; `None`: the leader itself.
    recipient: Option<Arc<dyn Recipient>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Open,
    /// A failed acquire: it returns with this verdict when its undo is written (rule R6). Whatever
    /// answers come until then, it is never a yes again.
    Undo(Verdict),
    Done,
}

impl Slot {
    fn new(op: Op, recipient: Option<Arc<dyn Recipient>>) -> Slot {
        Slot {
            tally: op.again.unwrap_or_default(),
            op,
            errors: Vec::new(),
            asked: 0,
            closed: 0,
            lost: 0,
            repeats: false,
            late: false,
            state: State::Open,
            recipient,
        }
    }

    fn question(&self) -> Question {
        self.op.action.question()
    }

    /// Its own time is over: the nodes that have not answered have failed.
    fn expire(&mut self, nodes: usize, waited: Duration) {
        self.late = true;
        let cause = Arc::new(Cause::Silent(waited));
        (0..nodes).for_each(|node| self.fail(node, &cause));
    }

    fn finish(&mut self, verdict: Verdict, nodes: &Arc<Nodes>, own: &mut Option<Outcome>) {
        let outcome = self.outcome(verdict, nodes);
        self.repeats = outcome.closed && self.op.again.is_none();
        if self.lost != 0 && !self.repeats {
            let now = clock::instant();
            for node in (0..nodes.len()).filter(|node| self.lost & bit(*node) != 0) {
                nodes.owe(node, [self.debt(now)]);
            }
        }
        self.deliver(outcome, own);
    }

    /// A release whose caller waits for the verdict, or is about to repeat it.
    fn is_awaited_release(&self) -> bool {
        let waits = self.state == State::Open || self.repeats;
        self.op.action == Action::Release && !self.op.only_write && waits
    }

    /// Whether the node was asked for this lock.
    fn concerns(&self, node: usize) -> bool {
        self.op.key.asked & bit(node) != 0
    }

    /// Nobody waits for the answer; what counts is how many nodes were told.
    fn finish_written(&mut self, told: usize, nodes: &Nodes, own: &mut Option<Outcome>) {
        let outcome = Outcome {
            verdict: if told >= majority(nodes.len()) {
                Verdict::Yes
            } else {
                Verdict::Unavailable
            },
            ..Outcome::none()
        };
        self.deliver(outcome, own);
    }

    fn deliver(&mut self, outcome: Outcome, own: &mut Option<Outcome>) {
        self.state = State::Done;
        match &self.recipient {
            Some(recipient) => recipient.deliver(outcome),
            None => *own = Some(outcome),
        }
    }

    fn debt(&self, now: Instant) -> Debt {
        Debt {
            key: self.op.key.clone(),
            forget_at: now.checked_add(self.op.ttl).unwrap_or(now),
        }
    }

    /// What it leaves owed on a wire that it is written to.
    fn release(&self, now: Instant) -> Option<Debt> {
        (self.op.action == Action::Release).then(|| self.debt(now))
    }

    fn fail(&mut self, node: usize, cause: &Arc<Cause>) {
        if self.tally.voted() & bit(node) == 0 {
            self.tally.fail(node);
            self.errors.push((node, cause.clone()));
            if matches!(**cause, Cause::Closed(_)) {
                self.closed |= bit(node);
            }
        }
    }

    fn outcome(&self, verdict: Verdict, nodes: &Nodes) -> Outcome {
        let mut outcome = Outcome {
            verdict,
            tally: self.tally,
            asked: self.asked,
            errors: None,
            closed: false,
        };
        if outcome.verdict == Verdict::Unavailable {
            let failed = (0..nodes.len()).filter(|node| self.tally.failed & bit(*node) != 0);
            // Nodes that were away from the start have their cause with their attendant.
            let cause = |node| self.errors.iter().find(|error| error.0 == node);
            let errors = failed
                .filter_map(|node| nodes.error(node, cause(node).map(|(_, cause)| cause.clone())));
            outcome.errors = Some(NodeErrors::new(errors.collect()));
            let spare = nodes.len() - majority(nodes.len());
            outcome.closed = count(self.tally.failed & !self.closed) <= spare;
        }
        outcome
    }
}

fn is_longer(lag: Duration, than: Duration) -> bool {
    lag > 2 * than + SAME_LAG
}

impl Baton {
    pub(crate) fn new(nodes: Arc<Nodes>) -> Baton {
        let now = clock::instant();
        Baton {
            wires: (0..nodes.len()).map(|_| None).collect(),
            order: (0..nodes.len()).collect(),
            lags: vec![Duration::ZERO; nodes.len()],
            held_up: Duration::ZERO,
            reconsidered: now,
            nodes,
            complaining: 0,
            batch: Vec::new(),
            open: 0,
            written: 0,
            hope: 0,
            closed: false,
            started: now,
            begun: now,
            until: now,
            bytes: Vec::new(),
            stepping: false,
            own: None,
        }
    }

    /// Whether fewer nodes are here than are needed for a verdict.
    pub(crate) fn is_short(&self) -> bool {
        self.wires.iter().flatten().count() < majority(self.wires.len())
    }

    /// Adds an operation to the next step; `None`: it is the leader's own.
    pub(crate) fn add(&mut self, op: Op, recipient: Option<Arc<dyn Recipient>>) {
        self.batch.push(Slot::new(op, recipient));
    }

    /// Carries out what was added. The outcome of the leader's own operation, if there was one.
    pub(crate) fn run(&mut self) -> Option<Outcome> {
        self.stepping = true;
        self.step();
        self.stepping = false;
        self.own.take()
    }

    /// After a panic in mid-step, which only a bug can be: what was written is not known any more, so the
    /// wires are finished, and what was open has failed.
    pub(crate) fn recover(&mut self) {
        if !std::mem::take(&mut self.stepping) {
            return;
        }
        for node in 0..self.wires.len() {
            let cause = "a thread panicked while it used it".into();
            self.lose(node, Cause::Closed(cause));
        }
        for mut slot in self.batch.drain(..) {
            if slot.state != State::Done {
                slot.finish(Verdict::Unavailable, &self.nodes, &mut self.own);
            }
        }
        self.own = None;
    }

    /// Reads what is owed, until `until`.
    pub(crate) fn settle(&mut self, until: Instant) {
        for node in 0..self.wires.len() {
            if let Some(Err(cause)) = self.wire(node).map(|wire| wire.settle(until)) {
                self.lose(node, cause);
            }
        }
    }

    fn step(&mut self) {
        self.started = clock::instant();
        self.begun = self.started;
        self.until = self.started + self.nodes.node_timeout();
        self.hope = 0;
        self.open = self.batch.len();
        self.gather();
        if self.batch.is_empty() {
            return;
        }
        self.write();
        self.read();
        self.reconsider();
        self.look();
        self.undo();
        self.sort();
        self.batch.clear();
    }

    fn wire(&mut self, node: usize) -> Option<&mut Wire> {
        self.wires.get_mut(node).and_then(Option::as_mut)
    }

    /// Takes back the wires of nodes that are fit again, and waits for them where the step cannot
    /// be decided without.
    fn gather(&mut self) {
        if self.wires.iter().all(Option::is_some) {
            return;
        }
        let quorum = majority(self.wires.len());
        let missing = |wires: &[Option<Wire>]| {
            let away = wires.iter().enumerate().filter(|(_, wire)| wire.is_none());
            away.fold(0, |away, (node, _)| away | bit(node))
        };
        let away = missing(&self.wires);
        let mut need = quorum.saturating_sub(self.wires.len() - count(away));
        if self.batch.iter().all(|slot| slot.op.only_write) {
            need = 0;
        }
        let same_server = self.fetch(away, need).same_server;
        let away = missing(&self.wires);
        let hopeless = self.wires.len() - count(away) < quorum;
        self.hope = if hopeless { 0 } else { away };
        for slot in &mut self.batch {
            slot.tally.failed = away & !slot.tally.voted();
            // Without a quorum nothing is acquired or extended, so nothing is left to undo either.
            // A release is written to whoever is here.
            let pointless = match slot.op.action {
                Action::Acquire(_) => hopeless || same_server,
                Action::Extend(_) => hopeless,
                Action::Release => false,
            };
            if pointless {
                slot.finish(Verdict::Unavailable, &self.nodes, &mut self.own);
                self.open -= 1;
            }
        }
        self.batch.retain(|slot| slot.state != State::Done);
    }

    /// Waits for nodes that are away.
    fn fetch(&mut self, wanted: u64, need: usize) -> Fetched {
        // The latest time at which anybody still has use for an answer.
        let waits = |slot: &&Slot| slot.state == State::Open && !slot.op.only_write;
        let ends = self.batch.iter().filter(waits).map(|slot| slot.op.until);
        let ends = ends.reduce(|a, b| a.zip(b).map(|(a, b)| a.max(b)));
        let (started, until) = (self.started, self.until);
        let patience = ends.flatten();
        let fetched = self
            .nodes
            .fetch(&mut self.wires, wanted, need, started, until, patience);
        self.begun = clock::instant();
        let node_timeout = self.nodes.node_timeout();
        if fetched.first {
            // The connections were waited for; the step itself begins now.
            self.until = self.begun + node_timeout;
        } else if !self.batch.iter().any(Slot::is_awaited_release) {
            // Who comes at the last moment must have time to answer. (A release has one node timeout.)
            let latest = (self.begun + node_timeout).min(started + 2 * node_timeout);
            self.until = until.max(latest);
        }
        fetched
    }

    /// The nodes that are here do not suffice for a verdict: waits for one that was away when the
    /// batch was written, and lets it take part. Never one that was written to: an acquire is not
    /// sent twice (rule R5).
    fn join(&mut self) {
        let nodes = self.wires.len();
        let stuck = |slot: &Slot| {
            slot.state == State::Open
                && slot.tally.verdict(slot.question(), nodes) == Verdict::Unavailable
        };
        if !self.batch.iter().any(stuck) {
            return;
        }
        // Who has returned with a lock has been told which nodes were asked for it.
        let granted =
            |slot: &Slot| slot.state == State::Done && matches!(slot.op.action, Action::Acquire(_));
        if self.batch.iter().any(granted) {
            self.hope = 0;
            self.judge_all();
            return;
        }
        self.fetch(self.hope, 1);
        let came = |(node, wire): (usize, &Option<Wire>)| wire.is_some().then_some(bit(node));
        let here = self.wires.iter().enumerate().filter_map(came);
        let came = self.hope & here.fold(0, |here, node| here | node);
        self.hope &= !came;
        if came == 0 {
            self.hope = 0;
        }
        // A verdict that was given stands: an acquire that is to be undone is never a yes again.
        let open = |slot: &&mut Slot| slot.state == State::Open;
        for slot in self.batch.iter_mut().filter(open) {
            slot.tally.failed &= !came;
            slot.lost &= !came;
        }
        for node in (0..self.wires.len()).filter(|node| came & bit(*node) != 0) {
            self.tell(node);
        }
        self.judge_all();
    }

    /// Writes the batch to every node that is here.
    fn write(&mut self) {
        self.written = 0;
        self.bytes.clear();
        for slot in &self.batch {
            slot.op.action.pack(&slot.op.key, &mut self.bytes);
        }
        // Who is read first is written first, and answers while the others are written.
        for at in 0..self.order.len() {
            if let Some(node) = self.order.get(at).copied() {
                self.tell(node);
            }
        }
        let took = |(node, wire): &(usize, &Option<Wire>)| {
            wire.is_some() && self.written & bit(*node) != 0
        };
        for slot in &mut self.batch {
            if slot.op.only_write {
                let told = self.wires.iter().enumerate().filter(took).count();
                slot.finish_written(told, &self.nodes, &mut self.own);
                self.open -= 1;
            }
        }
        self.judge_all();
    }

    fn tell(&mut self, node: usize) {
        match self.write_to(node) {
            None => {
                self.owe(node, |slot| slot.op.only_write && slot.concerns(node));
                for slot in &mut self.batch {
                    if slot.is_awaited_release() && slot.concerns(node) {
                        slot.lost |= bit(node);
                    }
                }
            }
            Some(sent) => {
                for slot in &mut self.batch {
                    slot.asked |= bit(node);
                }
                if let Err(cause) = sent {
                    self.lose(node, cause);
                }
            }
        }
    }

    /// `None`: the node is away.
    fn write_to(&mut self, node: usize) -> Option<Result<(), Cause>> {
        let (now, patience) = (self.begun, self.nodes.node_timeout());
        // A node that takes in nothing leaves the others time to answer.
        let until = self.until - patience / 2;
        let wire = self.wires.get_mut(node).and_then(Option::as_mut)?;
        if wire.is_behind() || wire.silent_for(now) > patience {
            if let Err(cause) = wire.catch_up(now, patience, until) {
                self.lose(node, cause);
                return None;
            }
            if wire.silent_for(now) > patience {
                self.silent(node);
                return None;
            }
        }
        // A connection that was closed while it was idle takes what is written, and nobody hears of it
        // unless the answer is read.
        let idle = now.saturating_duration_since(wire.last_heard().0) > IDLE;
        if idle && let Err(cause) = wire.look(now) {
            self.lose(node, cause);
            return None;
        }
        if let Err(cause) = wire.say_again(now, until) {
            self.lose(node, cause);
            return None;
        }
        wire.begin();
        for slot in &self.batch {
            wire.owe(slot.release(now), now);
        }
        self.written |= bit(node);
        Some(wire.send(&self.bytes, until))
    }

    /// Reads until every verdict is certain.
    fn read(&mut self) {
        while self.open > 0 {
            let ends = self.batch.iter().filter(|slot| slot.state == State::Open);
            let limit = ends
                .filter_map(|slot| slot.op.until)
                .fold(self.until, Instant::min);
            for at in 0..self.order.len() {
                if self.open == 0 {
                    return;
                }
                if let Some(node) = self.order.get(at).copied() {
                    self.read_from(node, limit);
                }
            }
            // Who is still open here has a deadline of its own, or another has that is over now, or those
            // who are away may decide.
            let now = clock::instant();
            let waited = now.saturating_duration_since(self.started);
            for slot in &mut self.batch {
                if slot.state == State::Open && slot.op.until.is_some_and(|until| until <= now) {
                    slot.expire(self.wires.len(), waited);
                }
            }
            self.judge_all();
            if self.open > 0 && self.hope != 0 {
                self.join();
            }
        }
    }

    /// Reads from one node what it owes, waiting until `limit` at most.
    fn read_from(&mut self, node: usize, limit: Instant) {
        let (sent, until) = (self.batch.len(), self.until);
        loop {
            let open = self.open > 0;
            let Some(wire) = self.wire(node) else {
                return;
            };
            let owed = wire.owed();
            if owed == 0 || !(open || wire.has_reply()) {
                return;
            }
            let limit = if wire.survives_waiting() {
                limit
            } else {
                until
            };
            match wire.recv(limit) {
                Ok(Some(reply)) => {
                    let (heard, waited) = wire.last_heard();
                    if owed == sent {
                        self.learn(node, heard, waited);
                    }
                    // The older replies come first; they are only read past.
                    if let Some(index) = sent.checked_sub(owed) {
                        self.vote(index, node, reply);
                    }
                }
                Ok(None) if limit >= self.until => {
                    self.silent(node);
                    return self.judge_all();
                }
                Ok(None) => {
                    return self.learn(node, limit, self.nodes.node_timeout());
                }
                Err(cause) => {
                    self.lose(node, cause);
                    return self.judge_all();
                }
            }
        }
    }

    fn vote(&mut self, index: usize, node: usize, reply: Reply) {
        let Some(slot) = self.batch.get_mut(index) else {
            return;
        };
        let acquire = slot.question() == Question::Acquire;
        match slot.op.action.vote(reply) {
            Vote::Granted => {
                say!(trace, "node {node}: yes");
                slot.tally.grant(node);
            }
            Vote::Refused => {
                say!(trace, "node {node}: no");
                slot.tally.refuse(node);
            }
            Vote::Failed(cause) => {
                say!(trace, "node {node}: {cause}");
                let cause = Arc::new(cause);
                slot.fail(node, &cause);
                if acquire && self.complaining & bit(node) == 0 {
                    self.complaining |= bit(node);
                    self.nodes
                        .warn(node, format_args!("gives no votes: {cause}"));
                }
                return self.judge(index);
            }
            Vote::Sever(cause) => {
                // Its answer was not one: a release is still due.
                let mut due = slot.release(self.started);
                if slot.is_awaited_release() {
                    slot.lost |= bit(node);
                    due = None;
                }
                self.lose(node, cause);
                if let Some(due) = due {
                    self.nodes.owe(node, [due]);
                }
                return self.judge_all();
            }
        }
        if acquire && self.complaining & bit(node) != 0 {
            self.complaining &= !bit(node);
            self.nodes.warn(node, format_args!("gives votes again"));
        }
        self.judge(index);
    }

    /// A node's wire is finished.
    fn lose(&mut self, node: usize, cause: Cause) {
        self.closed |= matches!(cause, Cause::Closed(_));
        self.send_away(node, cause, false);
    }

    /// A node did not answer within its time. Its wire is kept: what is on it may still be carried
    /// out. From now on the node is read last.
    fn silent(&mut self, node: usize) {
        let patience = self.nodes.node_timeout();
        if let Some(lag) = self.lags.get_mut(node) {
            *lag = patience;
        }
        self.send_away(node, Cause::Silent(patience), true);
    }

    /// A node is away from now on; what it was asked counts as failed. (What that means for the verdicts
    /// is judged when all has been written, so that a release is then owed to all that it did not reach.)
    fn send_away(&mut self, node: usize, cause: Cause, keep: bool) {
        let Some(mut wire) = self.wires.get_mut(node).and_then(Option::take) else {
            return;
        };
        if !keep && self.written & bit(node) != 0 {
            // A release that somebody waits for may be asked again. Until it ends it is not owed, or
            // the attendant would carry it out and the answer would be "not held".
            for (owed, slot) in wire.owed_mut().rev().zip(self.batch.iter_mut().rev()) {
                if slot.is_awaited_release() && owed.take().is_some() {
                    slot.lost |= bit(node);
                }
            }
        }
        let cause = Arc::new(cause);
        for slot in &mut self.batch {
            slot.fail(node, &cause);
        }
        self.nodes.away(node, wire, cause, keep);
    }

    fn judge_all(&mut self) {
        (0..self.batch.len()).for_each(|index| self.judge(index));
    }

    /// Ends an operation whose verdict is certain. A failed acquire ends with its undo.
    fn judge(&mut self, index: usize) {
        let Some(slot) = self.batch.get_mut(index) else {
            return;
        };
        if slot.state != State::Open || slot.op.only_write {
            return;
        }
        let nodes = self.wires.len();
        let spare = nodes - majority(nodes);
        match slot.tally.verdict(slot.question(), nodes) {
            Verdict::Pending => return,
            // It will be repeated, and must know by then who has carried it out.
            Verdict::Unavailable
                if slot.is_awaited_release()
                    && slot.closed != 0
                    && count(slot.tally.voted()) < nodes =>
            {
                return;
            }
            // Unless those who are away change it.
            Verdict::Unavailable
                if !slot.late
                    && count(slot.tally.failed & !self.hope) <= spare
                    && self.hope != 0 =>
            {
                return;
            }
            verdict @ (Verdict::No | Verdict::Unavailable)
                if slot.question() == Question::Acquire =>
            {
                slot.state = State::Undo(verdict);
            }
            verdict => slot.finish(verdict, &self.nodes, &mut self.own),
        }
        self.open -= 1;
    }

    /// Writes the releases that undo the failed acquires: behind their SETs, to each node that did
    /// not deny (rules R6, R7).
    fn undo(&mut self) {
        let undone = |slot: &Slot| matches!(slot.state, State::Undo(_));
        if !self.batch.iter().any(undone) {
            return;
        }
        let now = clock::instant();
        let until = now + self.nodes.node_timeout();
        for node in 0..self.wires.len() {
            let due = |slot: &Slot| undone(slot) && slot.tally.refused & bit(node) == 0;
            if self.written & bit(node) == 0 || !self.batch.iter().any(due) {
                continue;
            }
            let Some(wire) = self.wires.get_mut(node).and_then(Option::as_mut) else {
                self.owe(node, due);
                continue;
            };
            let debts = self
                .batch
                .iter()
                .filter(|slot| due(slot))
                .map(|slot| slot.debt(now));
            let paid = wire.pay(debts.collect(), until);
            // What it owes last is not the batch any more.
            self.written &= !bit(node);
            if let Err(cause) = paid {
                self.lose(node, cause);
            }
        }
        for slot in &mut self.batch {
            if let State::Undo(verdict) = slot.state {
                slot.finish(verdict, &self.nodes, &mut self.own);
            }
        }
    }

    /// Where one connection turned out closed others may be too, and nobody has waited for those yet:
    /// the repetition must not run into them.
    fn look(&mut self) {
        if !std::mem::take(&mut self.closed) {
            return;
        }
        let now = clock::instant();
        for node in 0..self.wires.len() {
            if let Some(Err(cause)) = self.wire(node).map(|wire| wire.look(now)) {
                self.lose(node, cause);
            }
        }
    }

    /// Leaves the releases of the slots that are `due` to the attendant of a node that is away.
    fn owe(&self, node: usize, due: impl Fn(&Slot) -> bool) {
        if self.batch.iter().any(&due) {
            let now = self.started;
            let debts = self
                .batch
                .iter()
                .filter(|slot| due(slot))
                .map(|slot| slot.debt(now));
            self.nodes.owe(node, debts);
        }
    }

    /// Remembers how long a node takes. One that answered while others were waited for took at most
    /// as long as they did.
    fn learn(&mut self, node: usize, heard: Instant, waited: Duration) {
        let took = heard.saturating_duration_since(self.begun);
        let held_up = waited > took / 2;
        self.held_up = if held_up { took } else { Duration::ZERO };
        if let Some(lag) = self.lags.get_mut(node) {
            *lag = if held_up { took } else { took.min(*lag) };
        }
    }

    /// A node that was slow once is read last, and not at all where the others suffice. If it has
    /// answered now that the step was held up by another, it is tried before that one: it takes no
    /// longer. (Of plain connections only: others cannot be looked at without waiting.)
    fn reconsider(&mut self) {
        let held_up = std::mem::take(&mut self.held_up);
        let (sent, past) = (self.batch.len(), self.begun);
        let since = past.saturating_duration_since(self.reconsidered);
        if held_up <= 2 * SAME_LAG || since < RECONSIDER {
            return;
        }
        self.reconsidered = past;
        for node in 0..self.wires.len() {
            // One that is known to be near comes first anyway.
            let near = |lag: &Duration| is_longer(held_up, *lag);
            if self.lags.get(node).is_none_or(near) {
                continue;
            }
            let Some(wire) = self.wire(node).filter(|wire| wire.owed() >= sent) else {
                continue;
            };
            match wire.look(past) {
                Ok(()) if wire.owed() == 0 => {
                    if let Some(lag) = self.lags.get_mut(node) {
                        *lag = held_up / 4;
                    }
                }
                Ok(()) => {}
                Err(cause) => self.lose(node, cause),
            }
        }
    }

    /// One pass: a node that made the reader wait comes after those that did not, so that with
    /// nodes at different distances the quorum's slowest decides, not the first in the list.
    fn sort(&mut self) {
        for at in 1..self.order.len() {
            let lag = |at: usize| self.order.get(at).and_then(|node| self.lags.get(*node));
            if let (Some(before), Some(after)) = (lag(at - 1), lag(at))
                && is_longer(*before, *after)
            {
                self.order.swap(at - 1, at);
            }
        }
    }
}
