//! Operations that follow their keys from server to server of a Redis Cluster (rule R45).

use std::sync::Arc;
use std::time::Duration;

use crate::errors::cause::Cause;
use crate::net::cluster::lanes::Lanes;
use crate::net::cluster::owed::OwedRelease;
use crate::net::driver::route::Route;
use crate::net::driver::shared::Shared;
use crate::net::place::directory::Place;
use crate::protocol::commands::kind::Kind;
use crate::protocol::commands::queue::LockInfo;
use crate::protocol::commands::script::{Action, Key, Notify};
use crate::protocol::commands::slots::Elsewhere;
use crate::protocol::node::address::NAMED;
use crate::protocol::node::debt::Debt;
use crate::protocol::quorum::answer::{Answer, Outcome};
use crate::protocol::quorum::op::Op;
use crate::values::clock;
use crate::values::quorum::NodeSet;
use crate::values::sync::lock;

/// How often an operation is sent on.
const MAX_REDIRECTS: usize = 5;
/// The pause before an operation is sent on again.
const PAUSE: Duration = Duration::from_millis(5);
/// How often a release is sent on, and the longest pause: ten seconds in all.
const MAX_TRIES: u32 = 25;
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// How long all releases together are tried once the lanes are closed: at a server that does not answer, and in all.
/// Then their keys end with their ttls.
const AFTER_CLOSE: Duration = Duration::from_millis(500);
const LONGEST_AFTER_CLOSE: Duration = Duration::from_secs(10);
/// How many releases may wait to be sent on. Beyond that the oldest is dropped, and its key ends with its ttl.
const MAX_OWED: usize = 65_536;

/// The next step after a server reported that another one has the key.
enum Onward {
    /// Stop.
    End,
    /// Retry at the slot's owner.
    Again(Op),
    /// Retry at the importing server, after ASKING.
    At(Arc<Shared>, Op),
}

impl Route for Lanes {
    fn run(&self, op: Op) -> Answer {
        let lane = self.of(&op.key.resource);
        let answer = lane.driver.run_here(op.clone());
        self.follow(lane.driver.nodes().places(), op, answer)
    }

    fn follow(&self, from: &[Place], mut op: Op, mut answer: Answer) -> Answer {
        if !is_elsewhere(&answer) {
            return answer;
        }
        let slot = self.slot(&op.key.resource);
        let until = clock::instant() + 2 * self.node_timeout();
        let (enqueues, owed) = (op.enqueues(), op.owed(answer.begun));
        // The lane to the servers that answered. `None`: those at `from`.
        let mut lane: Option<Arc<Shared>> = None;
        for redirects in 0..=MAX_REDIRECTS {
            let places = lane
                .as_ref()
                .map_or(from, |lane| lane.driver.nodes().places());
            let said = self.said(places, slot, &answer);
            if said.is_empty() {
                break;
            }
            let next = match redirects == MAX_REDIRECTS || clock::instant() >= until {
                true => Onward::End,
                false => self.next(places, op.clone(), &said, &answer),
            };
            let to;
            (to, op) = match next {
                Onward::Again(op) => (self.lane(slot), op.named(None)),
                Onward::At(lane, op) => (lane, op.named(Some(answer.begun))),
                Onward::End => {
                    // Even then each release is sent on, from the queue.
                    if let Some(debt) = owed {
                        let debts = said.iter().map(|(node, _)| (*node, debt.clone()));
                        self.release(debts.collect());
                    }
                    break;
                }
            };
            if redirects > 0 {
                // Until both servers agree on the slot's owner, each may name the other one.
                std::thread::sleep(PAUSE);
            }
            answer = to.driver.run_here(op.clone());
            lane = Some(to);
        }
        if enqueues && !op.enqueues() {
            // The last try entered no queue, and reports no holder.
            let refused = answer.tally.refused.len();
            let infos = &mut answer.remarks.make().lock_infos;
            infos.resize_with(refused, LockInfo::default);
        }
        answer
    }

    fn follow_all(&self, from: &[Place], ops: Vec<Op>, mut answers: Vec<Answer>) -> Vec<Answer> {
        let slot = |op: &Op| self.slot(&op.key.resource);
        // All redirects are recorded before anything is sent on.
        let moved = ops.iter().zip(&answers).enumerate();
        let moved = moved.filter(|(_, (op, answer))| !self.said(from, slot(op), answer).is_empty());
        let mut moved: Vec<(usize, Arc<Shared>)> = moved
            .map(|(at, (op, _))| (at, self.lane(slot(op))))
            .collect();
        while let Some((_, lane)) = moved.first() {
            let lane = lane.clone();
            let (together, rest): (Vec<_>, Vec<_>) = moved
                .into_iter()
                .partition(|(_, other)| Arc::ptr_eq(other, &lane));
            moved = rest;
            let of = |(at, _): &(usize, Arc<Shared>)| ops.get(*at).cloned();
            let again: Vec<Op> = together.iter().filter_map(of).collect();
            let answered = lane.driver.run_all_here(again);
            for ((at, _), answer) in together.into_iter().zip(answered) {
                if let (Some(place), Some(op)) = (answers.get_mut(at), ops.get(at)) {
                    *place = self.follow(lane.driver.nodes().places(), op.clone(), answer);
                }
            }
        }
        answers
    }

    fn release(&self, releases: Vec<(usize, Debt)>) {
        let mut owed = lock(&self.owed);
        if !releases.is_empty() {
            owed.added_at = Some(clock::instant());
        }
        let new = releases.into_iter().map(|(node, debt)| OwedRelease {
            node,
            debt,
            tries: 0,
        });
        owed.queue.extend(new);
        let most = owed.queue.len().saturating_sub(MAX_OWED);
        owed.queue.drain(..most);
        if owed.is_running || owed.queue.is_empty() {
            return;
        }
        if let Some(lanes) = self.this() {
            let thread = std::thread::Builder::new().name("redlock-moved".into());
            // If no thread starts, the next release starts one.
            owed.is_running = thread.spawn(move || lanes.send_owed()).is_ok();
        }
    }

    fn close_lane(&self, closing: Box<dyn FnOnce() + Send>) {
        self.close_one(closing);
    }

    fn hands_over(&self, places: &[Place]) -> bool {
        let is_open = lock(&self.owed).closed_at.is_none();
        let leads_to = |slot: &u16| places.iter().all(|place| place.leads_to(*slot));
        is_open || !self.shards().iter().any(leads_to)
    }

    fn take_over(&self, releases: Vec<(usize, Debt)>) {
        if lock(&self.owed).closed_at.is_some() {
            return self.release(releases);
        }
        for (node, debt) in releases {
            self.write_release(node, debt);
        }
    }
}

impl Lanes {
    /// The redirects in `answer`, by node. Records where the slot is now.
    fn said(&self, places: &[Place], slot: u16, answer: &Answer) -> Vec<(usize, Elsewhere)> {
        let said = answer.remarks.causes.iter().filter_map(|(node, cause)| {
            let Cause::Elsewhere(text) = &**cause else {
                return None;
            };
            Some((*node, places.get(*node)?.elsewhere(slot, text)?))
        });
        let said: Vec<(usize, Elsewhere)> = said.collect();
        if matches!(said.first(), Some((_, Elsewhere::Moved(_)))) {
            self.moved(slot);
        }
        said
    }

    fn next(
        &self,
        places: &[Place],
        op: Op,
        said: &[(usize, Elsewhere)],
        answer: &Answer,
    ) -> Onward {
        let Some((node, elsewhere)) = said.first() else {
            return Onward::End;
        };
        // The other nodes are enough.
        if !matches!(answer.outcome, Outcome::Unavailable { .. }) {
            return Onward::End;
        }
        let alone = places.len() == 1;
        // The votes of other nodes are being undone: the next try has another token (rule R2).
        if op.is_acquire() && !alone {
            return Onward::End;
        }
        match elsewhere {
            Elsewhere::Moved(to) => {
                let lane = self.of(&op.key.resource);
                let nodes = lane.driver.nodes();
                if std::ptr::eq(nodes.places(), places) {
                    nodes.leave(*node, to);
                }
                Onward::Again(op)
            }
            // The redirect is too old to be relied on.
            Elsewhere::Asks(_) if alone && clock::instant() > answer.begun + NAMED => {
                Onward::Again(op)
            }
            Elsewhere::Asks(to) if alone => {
                let slot = self.slot(&op.key.resource);
                let lane = self.lane_to((*node, to), slot);
                lane.map_or(Onward::End, |lane| Onward::At(lane, op))
            }
            // One of the two servers has the lock's key. The slot's owner reports which: servers before Redis 7
            // redirect a command although they have some of its keys.
            Elsewhere::Torn => with_one_key(op).map_or(Onward::End, Onward::Again),
            Elsewhere::Asks(_) => Onward::End,
        }
    }

    /// Sends releases on until none is left, or each was tried often enough. Once the lanes are closed, all releases
    /// share one time limit.
    fn send_owed(&self) {
        loop {
            let mut owed = lock(&self.owed);
            if owed.closed_for(clock::instant()) >= Some(LONGEST_AFTER_CLOSE) {
                owed.queue.clear();
            }
            let Some(mut release) = owed.queue.pop_front() else {
                owed.is_running = false;
                return;
            };
            drop(owed);
            let (lane, answer) = self.deliver(&release);
            let voted = answer.tally.voted().without(answer.tally.failed);
            if voted.has(release.node) {
                continue;
            }
            let mut owed = lock(&self.owed);
            if !is_elsewhere(&answer) && owed.closed_at.is_none() {
                // The lane owes the release now, and sends it again.
                continue;
            }
            if !is_elsewhere(&answer) && owed.closed_for(clock::instant()) >= Some(AFTER_CLOSE) {
                // Other releases are not tried there either: each would take a node timeout.
                let place = lane.driver.nodes().places().get(release.node);
                let is_there = |other: &OwedRelease| {
                    let slot = self.slot(&other.debt.key.resource);
                    other.node == release.node && place.is_some_and(|place| place.has(slot))
                };
                owed.queue.retain(|other| !is_there(other));
                continue;
            }
            drop(owed);
            release.tries += 1;
            if release.tries < MAX_TRIES {
                let pause = PAUSE.saturating_mul(1 << release.tries.min(10));
                lock(&self.owed).queue.push_back(release);
                std::thread::sleep(pause.min(LONGEST_PAUSE));
            }
        }
    }

    /// Writes a release to the server that has the key now. If that fails, the lane to the server owes it.
    pub(crate) fn write_release(&self, node: usize, debt: Debt) {
        let lane = self.of(&debt.key.resource);
        lane.driver.run_here(owed_at(node, debt).only_write(true));
    }

    /// Sends a release to the server that has the key. Returns the lane to it, and the answer.
    fn deliver(&self, release: &OwedRelease) -> (Arc<Shared>, Answer) {
        let OwedRelease { node, debt, .. } = release;
        let slot = self.slot(&debt.key.resource);
        let op = owed_at(*node, debt.clone());
        let lane = self.lane(slot);
        let answer = lane.driver.run_here(op.clone());
        let said = self.said(lane.driver.nodes().places(), slot, &answer);
        let asks = said.iter().find_map(|(_, elsewhere)| match elsewhere {
            Elsewhere::Asks(to) => self.lane_to((*node, to), slot),
            _ => None,
        });
        match asks {
            Some(lane) => {
                let answer = lane.driver.run_here(op.named(Some(answer.begun)));
                (lane, answer)
            }
            None => (lane, answer),
        }
    }

    /// Waits until no releases are owed, at most for `time`.
    pub(crate) fn wait_owed(&self, time: Duration) {
        let until = clock::instant() + time;
        let is_busy = || {
            let owed = lock(&self.owed);
            owed.is_running || owed.closing > 0
        };
        while is_busy() && clock::instant() < until {
            std::thread::sleep(PAUSE);
        }
    }
}

/// Whether a server reported that another one has the key.
fn is_elsewhere(answer: &Answer) -> bool {
    let mut causes = answer.remarks.causes.iter();
    causes.any(|(_, cause)| matches!(**cause, Cause::Elsewhere(_)))
}

/// The operation that pays a debt to one node.
fn owed_at(node: usize, mut debt: Debt) -> Op {
    let only: NodeSet = std::iter::once(node).collect();
    let now = clock::instant();
    let action = match debt.due(now) {
        Action::Release(_) => Action::Release(alone(&debt.key)),
        shortening => shortening,
    };
    // (Otherwise the release would be written behind it to all nodes that may have the lock.)
    let key = debt.key.sent_to(only);
    Op::new(action, key).since(now).to(only)
}

/// The operation with the lock's key alone, if it can do without others.
fn with_one_key(op: Op) -> Option<Op> {
    let action = match op.action {
        Action::Release(notify) if notify != alone(&op.key) => Action::Release(alone(&op.key)),
        Action::AcquireOrEnqueue(ttl, _) if op.key.kind.is_plain() => Action::Acquire(ttl),
        _ => return None,
    };
    let op = Op { action, ..op };
    (!op.action.uses_companions(&op.key.kind)).then_some(op)
}

/// How a release that no call waits for is sent. That of a reader or a writer names other keys, whatever it is to do.
fn alone(key: &Key) -> Notify {
    match key.kind {
        Kind::Plain | Kind::Permit { .. } => Notify::None,
        _ => Notify::First,
    }
}
