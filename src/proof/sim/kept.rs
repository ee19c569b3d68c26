//! Virtual kept locks: renewed until their bound is used up, or their holders release them.

use std::time::{Duration, Instant};

use super::basics::{LOOKS_AT_CLOCKS, MS, NODE_TIMEOUT, SLACK};
use super::client::{Doing, Held, Keeping};
use super::counts::trace;
use super::world::{Count, World};
use crate::errors::lock_error::LostReason;
use crate::protocol::calls::lease::renewals::{Due, Renewed};
use crate::protocol::calls::lease::unseen_time::UnseenTime;
use crate::protocol::mutants::Promise;
use crate::protocol::quorum::answer::Answer;
use crate::values::clock::Point;
use crate::values::node_set::NodeSet;

impl World {
    pub(super) fn begin_to_keep(&mut self, c: usize, thread: usize, mut held: Held) {
        let now = self.clients[c].clocks.point(self.t);
        // Long ttls are renewed, too, where little depends on when waiters get the lock.
        let long = match self.conditions.waits && !self.conditions.guarded {
            true => 6,
            false => 1,
        };
        let most = Duration::from_micros(self.random.below(400 * long * MS));
        let max_hold = held.lease.held(now) + most;
        let keeping = Keeping {
            due: held.lease.keep(max_hold, |_, max| max, now),
            max_hold,
            until: self.t + self.random.below(800 * long.min(3) * MS),
            watch: held.lease.expires(now),
            reported: false,
            unseen: UnseenTime::new(Duration::from_micros(LOOKS_AT_CLOCKS), now),
            held,
            extension: None,
            answered: Some(now.mono),
            gone: [None; 5],
        };
        self.clients[c].threads[thread].doing = Doing::Keeps(Box::new(keeping));
    }

    /// A thread of a kept lock looks at it: the one that reports the loss, or the one that renews it; or its holder releases it.
    pub(super) fn keep(&mut self, c: usize, thread: usize, mut keeping: Box<Keeping>) {
        let now = self.clients[c].clocks.point(self.t);
        if let Some(unseen) = keeping.unseen.look(now) {
            let forward = |at: Instant| at.checked_sub(unseen).unwrap_or(now.mono);
            (keeping.due, keeping.watch) = (forward(keeping.due), forward(keeping.watch));
        }
        let lost = self.watch_lease(c, &mut keeping, now);
        if keeping.extension.is_some() {
            self.clients[c].threads[thread].doing = Doing::Keeps(keeping);
            return;
        }
        if let Some(reason) = lost {
            return self.kept_is_lost(c, thread, *keeping, reason, now);
        }
        let is_over = self.quiet && (self.conditions.guarded || !self.conditions.waits);
        if keeping.until <= self.t || is_over {
            keeping.held.lease.stop_renewal();
            return self.release(c, thread, keeping.held);
        }
        if self.clients[c].clocks.time(keeping.due) > self.t {
            self.clients[c].threads[thread].doing = Doing::Keeps(keeping);
            return;
        }
        match keeping.held.lease.due(None, now) {
            Due::Renew(extension, op) => {
                let held = keeping.held.lease.held(now);
                let max = keeping.max_hold;
                self.check(Promise::Bounds, held < max, || {
                    format!("client {c}: renewed after {held:?}, where the bound is {max:?}")
                });
                self.begin(c, thread);
                self.checks.tokens[keeping.token()].on.extended = NodeSet::EMPTY;
                keeping.extension = Some(extension);
                keeping.answered = None;
                self.clients[c].threads[thread].doing = Doing::Keeps(keeping);
                self.submit(c, thread, op);
            }
            Due::Later(at) => {
                keeping.due = at;
                self.clients[c].threads[thread].doing = Doing::Keeps(keeping);
            }
            Due::Lost(loss) => self.kept_is_lost(c, thread, *keeping, loss.reason, now),
            Due::Ended => self.violated(
                Promise::Fits,
                format!("client {c}: the renewal of a kept lock ended"),
            ),
        }
    }

    /// The thread that reports losses looks at the lease when its validity is over, whatever its renewal waits for.
    fn watch_lease(&self, c: usize, keeping: &mut Keeping, now: Point) -> Option<LostReason> {
        if self.clients[c].clocks.time(keeping.watch) > self.t || keeping.reported {
            return None;
        }
        match keeping.held.lease.watch(now) {
            Ok(at) => {
                // A virtual clock counts in microseconds.
                keeping.watch = at + Duration::from_micros(2);
                None
            }
            Err(loss) => {
                keeping.reported = true;
                Some(loss.reason)
            }
        }
    }

    pub(super) fn renewed(
        &mut self,
        c: usize,
        thread: usize,
        mut keeping: Box<Keeping>,
        answer: Answer,
    ) {
        self.in_time(c, thread, 2 * NODE_TIMEOUT);
        let now = self.clients[c].clocks.point(self.t);
        let Some(extension) = keeping.extension.take() else {
            return self.violated(
                Promise::Fits,
                format!("client {c}: no renewal is under way"),
            );
        };
        let (due, valid) = (keeping.due, !keeping.held.lease.left(now).is_zero());
        let node_timeout = Duration::from_micros(NODE_TIMEOUT);
        let random = &mut self.random;
        let jitter = |min, max| random.between(min, max);
        let lease = &mut keeping.held.lease;
        match lease.renewed((extension, answer), due, node_timeout, jitter, now) {
            Renewed::Yes { next, repair } => {
                self.counts[Count::Renewed] += 1;
                self.is_extended(c, &keeping.held, valid);
                if let Some(op) = repair {
                    self.repairs(c, keeping.token(), op);
                }
                keeping.due = next;
            }
            Renewed::Unavailable { retry, .. } => {
                self.is_undecided(c, thread, keeping.token());
                keeping.due = retry;
            }
            Renewed::Lost(loss) => {
                return self.kept_is_lost(c, thread, *keeping, loss.reason, now);
            }
            Renewed::Ended => {
                return self.violated(Promise::Fits, format!("client {c}: the renewal has ended"));
            }
        }
        keeping.answered = Some(now.mono);
        self.clients[c].threads[thread].doing = Doing::Keeps(keeping);
    }

    /// A lock is renewed until it is lost: by the nodes, or because its bound is used up, or since too few nodes
    /// answer.
    fn kept_is_lost(
        &mut self,
        c: usize,
        thread: usize,
        keeping: Keeping,
        reason: LostReason,
        now: Point,
    ) {
        let (token, lease) = (keeping.token(), &keeping.held.lease);
        trace!(
            self,
            "client {c} thread {thread} has lost {token}: {reason:?}"
        );
        let ttl = lease.granted.duration();
        let left = lease.deadline.remaining(now);
        let hung = self.clients[c].clocks.has_hung();
        self.counts[Count::HeldTooLong] += u64::from(reason == LostReason::HoldLimit);
        let over = lease.held(now) >= keeping.max_hold;
        self.check(
            Promise::KeepsLock,
            reason != LostReason::HoldLimit || over,
            || format!("client {c}: {token} was not held for as long as its bound permits"),
        );
        // Whatever fails, the renewal is tried again until the end.
        let pause = (ttl / 20)
            .max(Duration::from_micros(NODE_TIMEOUT))
            .max(ttl / 3);
        let since = keeping.answered.unwrap_or(now.mono);
        let since = now.mono.saturating_duration_since(since);
        let late = since > pause + Duration::from_micros(SLACK);
        self.check(
            Promise::KeepsLock,
            reason != LostReason::Expired || hung || !late,
            || format!("client {c}: {token} was lost {since:?} after its last renewal"),
        );
        let well = self.conditions.faultless && !hung && ttl >= Duration::from_millis(60);
        self.check(
            Promise::KeepsLock,
            reason != LostReason::Expired || !well,
            || format!("client {c}: {token} was lost, and nothing is wrong"),
        );
        self.is_lost(c, token, !left.is_zero());
        let mut held = keeping.held;
        held.lease.stop_renewal();
        self.release(c, thread, held);
    }
}
