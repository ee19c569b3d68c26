//! The renewals of a lock that is kept alive: when one is due, and what follows from its answer.

use std::time::{Duration, Instant};

use crate::errors::node_errors::NodeErrors;
use crate::protocol::calls::lease::{Extended, Extension, HoldBound, Lease, Loss};
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::quorum::answer::Answer;
use crate::protocol::quorum::op::Op;
use crate::values::clock::Point;
use crate::values::node_set::NodeSet;

/// The action for a kept lock whose renewal is due.
pub(crate) enum Due {
    Renew(Extension, Op),
    /// No renewal follows. Look again then: the validity is over.
    Later(Instant),
    Lost(Loss),
    /// The holder has ended the renewal, and owns the lease.
    Ended,
}

/// The result of a renewal.
pub(crate) enum Renewed {
    Yes { next: Instant, repair: Option<Op> },
    Unavailable { retry: Instant, errors: NodeErrors },
    Lost(Loss),
    Ended,
}

impl Lease {
    /// Whether less than a third of a whole validity is left: too little for the schedule.
    pub(crate) fn is_due(&self, now: Point) -> bool {
        self.left(now) < self.granted.validity() / 3
    }

    /// Begins renewals. Returns when the first one is due.
    pub(crate) fn keep(
        &mut self,
        max: Duration,
        jitter: impl FnOnce(Duration, Duration) -> Duration,
        now: Point,
    ) -> Instant {
        self.hold = Some(HoldBound { max, over: false });
        // A renewal may bring the lock to any node.
        self.key.sent_to = NodeSet::ALL;
        self.next_renewal(self.deadline.from.mono, now, jitter)
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.hold.is_some()
    }

    /// Ends renewals. Returns whether there were any.
    pub(crate) fn stop_renewal(&mut self) -> bool {
        self.hold.take().is_some()
    }

    /// How long the lock is still renewed.
    pub(crate) fn hold_left(&self, now: Point) -> Duration {
        let max = self.hold.map_or(Duration::ZERO, |hold| hold.max);
        max.saturating_sub(self.held(now))
    }

    /// Returns what to do now that a renewal is due, or only a look at the validity. `next`: when the renewal is due in that
    /// case, unless a suspend of the machine has left less by now.
    pub(crate) fn due(&mut self, next: Option<Instant>, now: Point) -> Due {
        if !self.is_kept() {
            return Due::Ended;
        }
        if let Some(at) = next.filter(|at| now.mono < *at && !self.is_due(now)) {
            return Due::Later(at);
        }
        if self.left(now).is_zero() && mutant(Mutant::ExpiryUnseen) {
            return Due::Later(now.mono + self.granted.duration());
        }
        if let Err(loss) = self.validity(now) {
            return Due::Lost(loss);
        }
        let over = self.hold_left(now).is_zero() && !mutant(Mutant::RenewForEver);
        if let Some(hold) = &mut self.hold {
            hold.over = over;
        }
        if over {
            return Due::Later(self.expires(now));
        }
        let (extension, op) = self.extension(self.granted, now);
        Due::Renew(extension, op)
    }

    /// Looks whether the validity is over, for the thread that reports that, whatever a renewal waits for. Returns when to look
    /// again.
    pub(crate) fn watch(&mut self, now: Point) -> Result<Instant, Loss> {
        if self.left(now).is_zero() && mutant(Mutant::ExpiryUnseen) {
            return Ok(now.mono + self.granted.duration());
        }
        self.validity(now).map(|left| now.mono + left)
    }

    /// Returns the result of the renewal that was due then, and when the next one is.
    pub(crate) fn renewed(
        &mut self,
        (extension, answer): (Extension, Answer),
        due: Instant,
        node_timeout: Duration,
        jitter: impl FnOnce(Duration, Duration) -> Duration,
        now: Point,
    ) -> Renewed {
        if !self.is_kept() {
            return Renewed::Ended;
        }
        if let Err(loss) = self.validity(now) {
            return Renewed::Lost(loss);
        }
        match self.extended(extension, answer, now) {
            Extended::Yes(repair) => Renewed::Yes {
                next: self.next_renewal(due, now, jitter),
                repair,
            },
            Extended::Unavailable(errors) => Renewed::Unavailable {
                retry: self.retry(now, node_timeout),
                errors,
            },
            Extended::Lost(loss) => Renewed::Lost(loss),
        }
    }

    /// When the next renewal is due, after that of `last`: by the schedule, unless that is too far behind. `jitter`
    /// spreads out locks that were acquired together.
    fn next_renewal(
        &self,
        last: Instant,
        now: Point,
        jitter: impl FnOnce(Duration, Duration) -> Duration,
    ) -> Instant {
        let third = self.granted.duration() / 3;
        let third = match mutant(Mutant::RenewLate) {
            true => self.granted.duration(),
            false => third,
        };
        (last + jitter(third - third / 10, third)).max(now.mono)
    }

    /// When a renewal that too few nodes answered is tried again.
    fn retry(&self, now: Point, node_timeout: Duration) -> Instant {
        match mutant(Mutant::NoSecondRenewal) {
            true => self.expires(now),
            false => now.mono + (self.granted.duration() / 20).max(node_timeout),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::fixtures::{MS, NODE_TIMEOUT, later};
    use crate::protocol::calls::lease::tests::lease;
    use crate::values::arithmetic::Deadline;

    #[test]
    fn a_renewal_is_due_every_third_of_the_ttl_and_never_in_the_past() {
        let start = Point::now();
        let mut lease = lease(start);
        let first = lease.keep(5000 * MS, |_, max| max, start);
        assert_eq!((first - start.mono).as_millis(), 333);
        assert!(lease.is_kept() && lease.key.sent_to == NodeSet::ALL);
        let at = |time| later(start, time * MS);
        let least = |min: Duration, _: Duration| min;
        let most = |_: Duration, max: Duration| max;
        let due = |due: Instant| (due - start.mono).as_millis();
        assert_eq!(due(lease.next_renewal(start.mono, at(1), least)), 300);
        assert_eq!(due(lease.next_renewal(start.mono, at(1), most)), 333);
        assert_eq!(due(lease.next_renewal(start.mono, at(800), most)), 800);
        assert_eq!(due(lease.next_renewal(at(333).mono, at(340), most)), 666);
        assert_eq!(due(lease.next_renewal(at(333).mono, at(700), most)), 700);
        assert_eq!(due(lease.retry(at(340), NODE_TIMEOUT)), 390);
        assert_eq!(due(lease.retry(at(340), MS)), 390);
        assert_eq!(due(lease.retry(at(340), 70 * MS)), 410);
        assert_eq!(due(lease.expires(at(340))), 988);
        assert!(!lease.is_due(at(658)) && lease.is_due(at(659)));
        assert_eq!(lease.hold_left(at(400)), 4600 * MS);
        // Only looked at before that, unless a suspend, which the wall clock alone shows, has left less.
        let soon = Some(at(800).mono);
        assert!(matches!(lease.due(soon, at(600)), Due::Later(at) if Some(at) == soon));
        let suspended = Point {
            wall: at(700).wall,
            ..at(100)
        };
        assert!(matches!(lease.due(soon, suspended), Due::Renew(..)));
        lease.deadline = Deadline::new(start, 6000 * MS);
        assert!(matches!(lease.due(None, at(4999)), Due::Renew(..)));
        assert!(matches!(lease.due(None, at(5000)), Due::Later(_)));
        assert!(lease.stop_renewal() && !lease.stop_renewal() && !lease.is_kept());
        assert!(matches!(lease.due(None, at(5000)), Due::Ended));
    }
}
