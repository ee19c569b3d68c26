//! A call that acquires a lock. For several names, it *claims* those that are hardly ever free, one by one
//! (rule R52); any other call goes through unchanged.
//!
//! ```text
//!   Together ── a turn is over, and names were in the way ──▶ Claims ── has all of these ──▶ Converts ── granted ──▶ Ends
//!       ▲                                                     ▲  │ lost one                    │  │
//!       │                                                     │  │         another name is in the way
//!       │                                                     └──┼─────────────────────────────┘  │ anything else
//!       └────────────────────────────────────────────────────────┴────────────────────────────────┘
//! ```
//!
//! A claim is a write lock on one name, which the caller waits for in the queue of that name, and which the lock on all
//! names takes over. Together, nothing is held while it waits; then, only names before the one that it waits for. So no
//! two calls wait for each other. Exclusion never rests on claims: what counts is the vote on all names.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::protocol::calls::acquire::{Acquire, CallEnd, CallStep};
use crate::protocol::calls::lease::{Extended, Extension, Lease};
use crate::protocol::calls::process_services::ProcessServices;
use crate::protocol::commands::kind::{Kind, Mark};
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::quorum::answer::Answer;
use crate::protocol::quorum::op::Op;
use crate::protocol::waiting::waiter::{AcquireRequest, WaitFailure};
use crate::values::clock::Point;

/// `W`: a thread that waits.
pub(crate) struct Claiming<W> {
    /// The call for all names, or for one of them.
    acquire: Acquire<W>,
    /// Set if there are several names, and time to wait.
    plan: Option<Box<ClaimPlan>>,
}

struct ClaimPlan {
    all: Request,
    names: Arc<[Arc<[u8]>]>,
    /// How long all names are waited for together.
    turn: Duration,
    stage: ClaimStage,
    /// The name that was in the way last, and (`taken`) those that must be claimed.
    in_the_way: Option<usize>,
    taken: BTreeSet<usize>,
    /// The claims in the order of the names, and (`dropped`) those that must be released.
    claims: Vec<Claim>,
    dropped: Vec<Claim>,
    /// Why the last attempt gave no lock.
    failure: Option<WaitFailure>,
    is_cancelled: bool,
    /// Whether the current call has not begun, and need not.
    begins: bool,
    /// The number of attempts by calls that have ended.
    attempts: u32,
}

/// The common part of the calls of a plan.
struct Request {
    resource: Arc<[u8]>,
    request: AcquireRequest,
    nodes: usize,
    node_timeout: Duration,
}

enum ClaimStage {
    /// Waits for all names together, until then.
    Together(Instant),
    Claims(usize),
    Converts,
    Ends(Result<Lease, CallEnd>),
}

/// The thread's action while the call of this stage sleeps.
enum Parks {
    Until(Instant),
    Extends(Op),
    /// This stage is over.
    Leaves,
}

/// The next step after a call: another one, or the end.
// Not boxed, like steps: a box would be an allocation.
#[allow(clippy::large_enum_variant)]
enum ClaimOutcome<W> {
    On(Acquire<W>),
    Ends(Result<Lease, CallEnd>),
}

/// A name that is held while others are waited for.
struct Claim {
    at: usize,
    lease: Lease,
    /// When the claim is extended: after a third of the ttl, and after an attempt that may have ended it.
    due: Instant,
    /// Set while the claim is being extended.
    extension: Option<Extension>,
    /// Brings the claim back to nodes that do not hold it.
    repair: Option<Op>,
}

impl<W: Clone> Claiming<W> {
    /// Creates a call. `turn`: how long it waits for several names together.
    pub(crate) fn new(
        resource: Arc<[u8]>,
        request: AcquireRequest,
        nodes: usize,
        node_timeout: Duration,
        turn: Duration,
        now: Point,
    ) -> Claiming<W> {
        let waits = request.end.is_none_or(|end| end > now.mono);
        let plan = match &request.kind {
            Kind::Several { names, .. } if waits => Some(Box::new(ClaimPlan {
                names: names.clone(),
                turn,
                stage: ClaimStage::Together(now.mono + turn),
                taken: BTreeSet::new(),
                in_the_way: None,
                claims: Vec::new(),
                dropped: Vec::new(),
                failure: None,
                is_cancelled: false,
                begins: false,
                attempts: 0,
                all: Request {
                    resource: resource.clone(),
                    request: request.clone(),
                    nodes,
                    node_timeout,
                },
            })),
            _ => None,
        };
        Claiming {
            acquire: Acquire::new(resource, request, nodes, node_timeout, now),
            plan,
        }
    }

    pub(crate) fn attempts(&self) -> u32 {
        let before = self.plan.as_ref().map_or(0, |plan| plan.attempts);
        before.saturating_add(self.acquire.attempts())
    }

    /// How long the current try has taken.
    pub(crate) fn took(&self, now: Point) -> Duration {
        self.acquire.took(now)
    }

    /// The name that the call acquires: the one that it claims, or the first of all.
    pub(crate) fn resource(&self) -> &Arc<[u8]> {
        self.acquire.resource()
    }

    pub(crate) fn next(
        &mut self,
        services: &mut impl ProcessServices<Thread = W>,
        now: Point,
    ) -> CallStep<W> {
        let Some(plan) = &mut self.plan else {
            return self.acquire.next(services, now);
        };
        loop {
            if let Some(claim) = plan.dropped.pop() {
                return CallStep::Release(claim.lease);
            }
            if let ClaimStage::Ends(_) = plan.stage {
                return plan.end(now);
            }
            if std::mem::take(&mut plan.begins)
                && let Some(end) = plan.end_of_wait(now)
            {
                plan.finish(Err(end));
                continue;
            }
            // A later call need not have asked the nodes: the first one has. A call that has asked returns why it
            // failed.
            let is_idle = self.acquire.attempts() == 0 && self.acquire.waits();
            if plan.attempts > 0 && is_idle && plan.end_of_wait(now).is_some() {
                self.acquire.cancel(services);
            }
            match self.acquire.next(services, now) {
                CallStep::Park(until) => match plan.parks(until, now) {
                    Parks::Until(until) => return CallStep::Park(until),
                    Parks::Extends(op) => return CallStep::Run(op),
                    Parks::Leaves => self.acquire.cancel(services),
                },
                CallStep::Done(result) => {
                    plan.attempts = plan.attempts.saturating_add(self.acquire.attempts());
                    match plan.ended(result, services, now) {
                        ClaimOutcome::On(call) => (self.acquire, plan.begins) = (call, true),
                        ClaimOutcome::Ends(result) => plan.finish(result),
                    }
                }
                step => return step,
            }
        }
    }

    /// Handles the answer to the step that `next` returned.
    pub(crate) fn answered(
        &mut self,
        answer: Answer,
        services: &mut impl ProcessServices<Thread = W>,
        now: Point,
    ) {
        if let Some(plan) = &mut self.plan {
            match plan
                .claims
                .iter_mut()
                .find(|claim| claim.extension.is_some())
            {
                Some(claim) => return claim.extended(answer, now),
                None => plan.learn(&answer),
            }
        }
        self.acquire.answered(answer, services, now);
    }

    /// Cancels the call: the program no longer wants the lock, or the thread ends.
    pub(crate) fn cancel(&mut self, services: &mut impl ProcessServices<Thread = W>) {
        if let Some(plan) = &mut self.plan {
            plan.is_cancelled = true;
        }
        self.acquire.cancel(services);
    }

    /// Whether anything is left to do, should the thread end here.
    pub(crate) fn is_in_queue(&self) -> bool {
        let claims = |plan: &ClaimPlan| !plan.claims.is_empty() || !plan.dropped.is_empty();
        self.acquire.is_in_queue() || self.plan.as_deref().is_some_and(claims)
    }
}

impl ClaimPlan {
    fn parks(&mut self, until: Instant, now: Point) -> Parks {
        match self.stage {
            ClaimStage::Together(_) if self.in_the_way.is_none() => Parks::Until(until),
            ClaimStage::Together(turn) if now.mono < turn => Parks::Until(until.min(turn)),
            ClaimStage::Together(_) => Parks::Leaves,
            _ if self.claims.iter().any(|claim| claim.lease.lost.is_some()) => Parks::Leaves,
            _ => match self.extension(now) {
                Some(op) => Parks::Extends(op),
                None => {
                    let due = self.claims.iter().map(|claim| claim.due).min();
                    Parks::Until(due.map_or(until, |due| until.min(due)))
                }
            },
        }
    }

    /// Learns which name was in the way: the one that most nodes name. A claimed name counts only if no other is named:
    /// a node may have kept it from a holder that is gone.
    fn learn(&mut self, answer: &Answer) {
        if let ClaimStage::Claims(_) = self.stage {
            return;
        }
        let named = answer
            .remarks
            .lock_infos
            .iter()
            .filter_map(|info| info.name);
        let named: Vec<usize> = named.filter(|name| *name < self.names.len()).collect();
        let times = |name: usize| named.iter().filter(|other| **other == name).count();
        let is_new = |name: usize| self.claims.iter().all(|claim| claim.at != name);
        let name = named.iter().copied();
        let name = name.max_by_key(|name| (is_new(*name), times(*name), Reverse(*name)));
        self.in_the_way = name.or(self.in_the_way);
    }

    /// Why no other call follows, if none does.
    fn end_of_wait(&self, now: Point) -> Option<CallEnd> {
        let over = self.all.request.end.is_some_and(|end| end <= now.mono);
        match self.is_cancelled {
            true => Some(CallEnd::Cancelled),
            false => over.then(|| {
                let failure = self.failure.clone();
                CallEnd::Failed(failure.unwrap_or(WaitFailure::Busy(None)))
            }),
        }
    }

    /// Returns the next step after the call of this stage.
    fn ended<W: Clone>(
        &mut self,
        result: Result<Lease, CallEnd>,
        services: &mut impl ProcessServices<Thread = W>,
        now: Point,
    ) -> ClaimOutcome<W> {
        match (&self.stage, result, self.end_of_wait(now)) {
            (ClaimStage::Claims(at), Ok(lease), end) => {
                self.claims.push(Claim {
                    at: *at,
                    lease,
                    due: now.mono + self.all.request.ttl.duration() / 3,
                    extension: None,
                    repair: None,
                });
                match end {
                    None => self.claim(services, now),
                    Some(end) => ClaimOutcome::Ends(Err(end)),
                }
            }
            (_, Err(CallEnd::Cancelled), Some(end)) => ClaimOutcome::Ends(Err(end)),
            (_, result, Some(_)) => ClaimOutcome::Ends(result),
            // The call was left for the next stage.
            (ClaimStage::Together(_), Err(CallEnd::Cancelled), None) => {
                self.taken.extend(self.in_the_way.take());
                self.claim(services, now)
            }
            (ClaimStage::Claims(_), Err(CallEnd::Cancelled), None) => {
                ClaimOutcome::On(self.together(now))
            }
            (ClaimStage::Converts, Err(CallEnd::Failed(failure)), None)
                if !failure.is_hopeless() =>
            {
                self.denied(failure, services, now)
            }
            (_, result, None) => ClaimOutcome::Ends(result),
        }
    }

    /// Waits for all names once more.
    fn together<W: Clone>(&mut self, now: Point) -> Acquire<W> {
        self.dropped.append(&mut self.claims);
        self.in_the_way = None;
        self.stage = ClaimStage::Together(now.mono + self.turn);
        let Request {
            resource, request, ..
        } = &self.all;
        let (resource, kind) = (resource.clone(), request.kind.clone());
        self.all.call(resource, kind, request.end, now)
    }

    /// Claims the next name, or takes all names if no others were in the way.
    fn claim<W: Clone>(
        &mut self,
        services: &mut impl ProcessServices<Thread = W>,
        now: Point,
    ) -> ClaimOutcome<W> {
        let is_missing = |name: &&usize| self.claims.iter().all(|claim| claim.at != **name);
        let next = self.taken.iter().find(is_missing).copied();
        let named = next.and_then(|at| Some((at, self.names.get(at)?.clone())));
        let Some((at, name)) = named else {
            return ClaimOutcome::On(self.convert(now));
        };
        let token = match services.token(&name) {
            Ok(token) => token,
            Err(error) => return ClaimOutcome::Ends(Err(CallEnd::Error(error))),
        };
        let writer = token.as_bytes().first_chunk().copied();
        let writer = u64::from_le_bytes(writer.unwrap_or_default());
        let (request, node_timeout) = (&self.all.request, self.all.node_timeout);
        let mark = Mark::new(writer, request.retry_delay.1, node_timeout);
        self.stage = ClaimStage::Claims(at);
        let end = request.end;
        ClaimOutcome::On(self.all.call(name, Kind::Write(mark), end, now))
    }

    /// Makes one attempt for all names, to which those that are claimed are free.
    fn convert<W: Clone>(&mut self, now: Point) -> Acquire<W> {
        let mut tokens = vec![None; self.names.len()];
        for claim in &self.claims {
            if let Some(token) = tokens.get_mut(claim.at) {
                *token = Some(claim.lease.key.token);
            }
        }
        self.in_the_way = None;
        self.stage = ClaimStage::Converts;
        let (names, claims) = (self.names.clone(), Some(Arc::new(tokens)));
        let (resource, kind) = (self.all.resource.clone(), Kind::Several { names, claims });
        self.all.call(resource, kind, Some(now.mono), now)
    }

    /// Handles an attempt that could not take all names with these claims.
    fn denied<W: Clone>(
        &mut self,
        failure: WaitFailure,
        services: &mut impl ProcessServices<Thread = W>,
        now: Point,
    ) -> ClaimOutcome<W> {
        let name = self.in_the_way.take();
        // If a name is claimed and in the way all the same, another claim would change nothing.
        let new = name.filter(|name| self.taken.insert(*name));
        match (&*self.failure.insert(failure), new) {
            (WaitFailure::Busy(_), Some(name)) => {
                if !mutant(Mutant::ClaimsInAnyOrder) {
                    let before = self.claims.partition_point(|claim| claim.at < name);
                    self.dropped.extend(self.claims.split_off(before));
                }
                // If the attempt had taken claims over, its undo has ended them.
                for claim in &mut self.claims {
                    claim.due = now.mono;
                }
                self.claim(services, now)
            }
            _ => ClaimOutcome::On(self.together(now)),
        }
    }

    // ---- claims

    /// The operation that keeps a claim alive, if any needs it now.
    fn extension(&mut self, now: Point) -> Option<Op> {
        let ttl = self.all.request.ttl;
        let repair = |claim: &mut Claim| claim.repair.take();
        if let Some(repair) = self.claims.iter_mut().find_map(repair) {
            return Some(repair);
        }
        let claim = self.claims.iter_mut().find(|claim| claim.due <= now.mono)?;
        claim.due = now.mono + ttl.duration() / 3;
        let (extension, op) = claim.lease.extension(ttl, now);
        claim.extension = Some(extension);
        Some(op)
    }

    // ---- the end

    /// Ends the plan. Claims that the lock has taken over are gone; but it may not have taken them over on all nodes.
    fn finish(&mut self, result: Result<Lease, CallEnd>) {
        match mutant(Mutant::KeepClaims) {
            true => self.claims.clear(),
            false => self.dropped.append(&mut self.claims),
        }
        self.stage = ClaimStage::Ends(result);
    }

    fn end<W>(&mut self, now: Point) -> CallStep<W> {
        let stage = std::mem::replace(&mut self.stage, ClaimStage::Ends(Err(CallEnd::Cancelled)));
        match stage {
            // The releases of the claims have taken their time (rule R4).
            ClaimStage::Ends(Ok(lease)) if lease.left(now).is_zero() => {
                self.stage = ClaimStage::Ends(Err(CallEnd::Failed(WaitFailure::TooSlow)));
                CallStep::Release(lease)
            }
            ClaimStage::Ends(result) => CallStep::Done(result),
            _ => CallStep::Done(Err(CallEnd::Cancelled)),
        }
    }
}

impl Claim {
    fn extended(&mut self, answer: Answer, now: Point) {
        if let Some(extension) = self.extension.take()
            && let Extended::Yes(repair) = self.lease.extended(extension, answer, now)
        {
            self.repair = repair;
        }
    }
}

impl Request {
    fn call<W: Clone>(
        &self,
        resource: Arc<[u8]>,
        kind: Kind,
        end: Option<Instant>,
        now: Point,
    ) -> Acquire<W> {
        let request = AcquireRequest {
            kind,
            end,
            ..self.request.clone()
        };
        let mut call = Acquire::new(resource, request, self.nodes, self.node_timeout, now);
        // Only the first attempt of the whole call may begin without a question.
        call.ask_first();
        call
    }
}

#[cfg(test)]
mod tests;
