//! The state of a held lock: how long it is valid, and whether it is lost and why.

pub(crate) mod renewals;
pub(crate) mod unseen_time;

use std::time::{Duration, Instant};

use crate::errors::lock_error::LostReason;
use crate::errors::node_errors::NodeErrors;
use crate::protocol::commands::action::{Action, Key};
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::quorum::answer::{Answer, Outcome};
use crate::protocol::quorum::op::Op;
use crate::values::arithmetic::{Deadline, Ttl};
use crate::values::clock::Point;
use crate::values::node_set::NodeSet;

/// The loss of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loss {
    pub(crate) reason: LostReason,
    /// Whether this call has detected the loss: its caller notifies the others.
    pub(crate) is_new: bool,
}

/// The state of one held lock.
///
/// ```text
///   valid ──▶ lost, notifying ──▶ lost, notified
///     │              │                  │
///     └──────────────┴──────────────────┴──▶ ended
/// ```
#[derive(Clone)]
pub(crate) struct Lease {
    /// The lock's key on the nodes.
    pub(crate) key: Key,
    /// Whether, before the lock was acquired, another process had been notified that it is free.
    pub(crate) notified_elsewhere: bool,
    /// When the acquisition began.
    since: Point,
    /// The ttl last granted, which renewals ask for.
    pub(crate) granted: Ttl,
    pub(crate) deadline: Deadline,
    /// Once lost, always lost, even if a clock is set back.
    pub(crate) lost: Option<LostReason>,
    /// Set while the lock is kept alive.
    hold: Option<HoldBound>,
    /// Whether the observer is being notified of the loss.
    notifying: bool,
    /// How long the lock was held, if it ended meanwhile: the observer is notified of that next.
    ended: Option<Duration>,
}

/// The bound on renewals: without one, a holder that hangs would keep its lock for ever.
#[derive(Clone, Copy)]
struct HoldBound {
    max: Duration,
    /// Whether the bound is used up, and no renewal follows.
    over: bool,
}

/// An extension under way.
pub(crate) struct Extension {
    ttl: Ttl,
    started: Point,
}

/// The result of an extension.
pub(crate) enum Extended {
    /// With the operation that brings the lock back to nodes that do not hold it.
    Yes(Option<Op>),
    Lost(Loss),
    /// The old deadline stays in force.
    Unavailable(NodeErrors),
}

impl Lease {
    pub(crate) fn new(key: Key, granted: Ttl, deadline: Deadline) -> Lease {
        Lease {
            key: key.lasting(granted),
            notified_elsewhere: false,
            since: deadline.from,
            granted,
            deadline,
            lost: None,
            hold: None,
            notifying: false,
            ended: None,
        }
    }

    /// How long the lock has been held.
    pub(crate) fn held(&self, now: Point) -> Duration {
        self.since.elapsed_at(now)
    }

    /// The validity that is left; zero once the lock is lost.
    pub(crate) fn left(&self, now: Point) -> Duration {
        match self.lost {
            Some(_) if !mutant(Mutant::ForgetLoss) => Duration::ZERO,
            _ => self.deadline.remaining(now),
        }
    }

    /// How long ago the request was made that the validity rests on: the last renewal or extension that succeeded, or
    /// the acquisition.
    pub(crate) fn since_renewal(&self, now: Point) -> Duration {
        self.deadline.from.elapsed_at(now)
    }

    /// When no more than `margin` of the validity is left, unless the lock is renewed before. `None`: now.
    pub(crate) fn expiring(&self, margin: Duration, now: Point) -> Option<Instant> {
        let spare = self.left(now).saturating_sub(margin);
        (!spare.is_zero()).then(|| now.mono + spare)
    }

    // ---- the loss

    /// The validity that is left, or why none is.
    pub(crate) fn validity(&mut self, now: Point) -> Result<Duration, Loss> {
        let left = self.left(now);
        if !left.is_zero() {
            return Ok(left);
        }
        Err(self.lose(match self.hold {
            Some(HoldBound { over: true, .. }) => LostReason::HoldLimit,
            _ => LostReason::Expired,
        }))
    }

    /// Notes that the nodes no longer hold the lock, and why. If its validity is over, that is the reason.
    pub(crate) fn gone(&mut self, reason: LostReason, now: Point) -> Loss {
        match self.validity(now) {
            Ok(_) => self.lose(reason),
            Err(loss) => loss,
        }
    }

    /// Notes that the lock is lost, unless it already was: the first reason counts.
    pub(crate) fn lose(&mut self, reason: LostReason) -> Loss {
        let is_new = self.lost.is_none();
        self.notifying |= is_new;
        Loss {
            reason: *self.lost.get_or_insert(reason),
            is_new,
        }
    }

    /// Notes that the observer has been notified of the loss. If the lock ended meanwhile, returns how long it was
    /// held: the observer must be notified of that, too.
    pub(crate) fn notified(&mut self) -> Option<Duration> {
        self.notifying = false;
        self.ended.take()
    }

    /// Notes that the lock has ended. Returns how long it was held if the observer must be notified now. Otherwise
    /// `notified` returns that.
    pub(crate) fn ended(&mut self, now: Point) -> Option<Duration> {
        let held = self.held(now);
        self.ended = self.notifying.then_some(held);
        (!self.notifying).then_some(held)
    }

    // ---- the end of a lock that is left for a time

    /// The operation that leaves the lock for this long from now on (rule R55). Where no longer than that is left, the nodes
    /// only note that it was given up: no call waits for that, since it is for people. On the nodes more may be left
    /// than this lease relies on: less than what is asked for is not sent.
    pub(crate) fn shortening(&self, time: Duration, now: Point) -> Op {
        let parts = 1 + u32::from(mutant(Mutant::ShortenTooMuch));
        let ttl = Ttl::no_less_than(time / parts);
        let shorter = ttl.filter(|ttl| ttl.duration() < self.left(now));
        let leak = || Action::Leak(Ttl::no_less_than(time).unwrap_or(Ttl::MAX));
        let action = shorter.map_or_else(leak, Action::Shorten);
        let op = Op::new(action, self.key.clone());
        op.since(now.mono).only_write(shorter.is_none())
    }

    // ---- extensions

    pub(crate) fn extension(&mut self, ttl: Ttl, now: Point) -> (Extension, Op) {
        self.key = self.key.clone().lasting(ttl);
        // The answers must be here before the old deadline (rule R10). If the new one were over first,
        // the later of the two would still be the old one.
        // A resumed lock may be valid for longer than what was granted here.
        let covers = Ttl::valid_for(self.left(now)).unwrap_or(ttl);
        let longest = ttl.max(self.granted).max(covers);
        let op =
            Op::new(Action::Extend(ttl, longest), self.key.clone()).until(Some(self.expires(now)));
        (Extension { ttl, started: now }, op)
    }

    pub(crate) fn extended(
        &mut self,
        Extension { ttl, started }: Extension,
        answer: Answer,
        now: Point,
    ) -> Extended {
        let over = self.left(now).is_zero() && !mutant(Mutant::ExtendAfterDeadline);
        match answer.outcome {
            Outcome::No if self.is_kept() && mutant(Mutant::LossIsTriedAgain) => {
                Extended::Unavailable(NodeErrors::new(Vec::new(), None))
            }
            Outcome::No => Extended::Lost(self.gone(answer.lost_reason(), now)),
            _ if over => Extended::Lost(self.gone(LostReason::Expired, now)),
            Outcome::Yes(_) => {
                let from = match mutant(Mutant::ExtensionFromAnswer) {
                    true => now,
                    false => started,
                };
                let new = Deadline::new(from, ttl.validity());
                // An extension never shortens (rule R12).
                if new.is_later(self.deadline, now) || mutant(Mutant::ExtensionShortens) {
                    self.deadline = new;
                    self.granted = ttl;
                }
                // A resumed lock learns its slot.
                let kind = self.key.kind.granted(answer.numbers);
                self.key = self.key.clone().of_kind(kind);
                let nodes = answer.tally.denied;
                self.key.counted = self.key.counted.or(answer.tally.granted);
                if !mutant(Mutant::RepairHasCounted) {
                    self.key.counted = self.key.counted.without(nodes);
                }
                if !mutant(Mutant::NoReleaseOfRepairs) {
                    self.key.sent_to = self.key.sent_to.or(nodes);
                }
                Extended::Yes((!nodes.is_empty()).then(|| self.repair(ttl, nodes, now)))
            }
            Outcome::Unavailable { errors, .. } => Extended::Unavailable(*errors),
        }
    }

    /// Brings the lock back to nodes that do not hold it, because they were restarted or connected late (rule R11b).
    /// Never counts as a vote.
    fn repair(&self, ttl: Ttl, nodes: NodeSet, now: Point) -> Op {
        Op::new(Action::Repair(ttl), self.key.clone())
            .until(Some(self.expires(now)))
            .only_write(true)
            .to(nodes)
    }

    /// When the validity ends, by the monotonic clock.
    pub(crate) fn expires(&self, now: Point) -> Instant {
        now.mono + self.left(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::fixtures::{self, MS, key, later, ttl, unavailable};
    use crate::protocol::calls::lease::renewals::Due;
    use crate::protocol::mutants::set_mutant;

    /// A lease granted for 1 s at `start`, so valid for 988 ms, and asked of two nodes.
    pub(super) fn lease(start: Point) -> Lease {
        let key = key(b"a").sent_to(NodeSet::first(2));
        let ttl = ttl(1000 * MS);
        Lease::new(key, ttl, Deadline::new(start, ttl.validity()))
    }

    /// An answer after which the last of three nodes does not hold the lock.
    fn answer(outcome: Outcome, begun: Point) -> Answer {
        let mut answer = fixtures::answer(outcome, 2, begun);
        answer.tally.deny(2);
        answer
    }

    #[test]
    fn a_lock_is_about_to_expire_when_no_more_than_the_margin_is_left_and_no_renewal_came() {
        let start = Point::now();
        // The margin and the time; how long it is until then.
        for (margin, time, expected) in [
            (300, 0, Some(688)),
            (300, 687, Some(1)),
            (300, 688, None),
            (300, 2000, None),
            (0, 987, Some(1)),
            (0, 988, None),
            (988, 0, None),
            (u64::MAX, 0, None),
        ] {
            let (margin, now) = (Duration::from_millis(margin), later(start, time * MS));
            let found = lease(start).expiring(margin, now);
            let expected = expected.map(|ms: u32| now.mono + ms * MS);
            assert_eq!(found, expected, "{margin:?} after {time} ms");
        }
        let mut renewed = lease(start);
        let (extension, _) = renewed.extension(ttl(1000 * MS), later(start, 300 * MS));
        let yes = answer(Outcome::Yes(NodeSet::ALL), start);
        let now = later(start, 400 * MS);
        assert_eq!(renewed.since_renewal(now), 400 * MS);
        renewed.extended(extension, yes, now);
        assert_eq!(renewed.since_renewal(now), 100 * MS);
        assert_eq!(renewed.expiring(300 * MS, now), Some(now.mono + 588 * MS));
        renewed.lose(LostReason::Taken);
        assert_eq!(renewed.expiring(300 * MS, now), None);
    }

    #[test]
    fn an_extension_counts_before_the_old_deadline_and_never_shortens() {
        let start = Point::now();
        let yes = || Outcome::Yes(NodeSet::ALL);
        // The ttl asked for, the answer and its time; the result, and the validity from the start and the ttl then.
        let table = [
            (2000, yes(), 987, "yes", 1978, 2000),
            (100, yes(), 1, "yes", 988, 1000),
            (2000, yes(), 988, "lost: Expired", 0, 1000),
            (2000, Outcome::No, 1, "lost: NotHeld", 0, 1000),
            (2000, Outcome::No, 988, "lost: Expired", 0, 1000),
            (2000, unavailable(false, false), 1, "unavailable", 988, 1000),
            (
                2000,
                unavailable(false, false),
                988,
                "lost: Expired",
                0,
                1000,
            ),
        ];
        for (asked, outcome, time, result, validity, granted) in table {
            let mut lease = lease(start);
            let (extension, op) = lease.extension(ttl(asked * MS), start);
            assert_eq!(op.until, Some(start.mono + 988 * MS));
            let answer = answer(outcome, start);
            let found = match lease.extended(extension, answer, later(start, time * MS)) {
                Extended::Yes(_) => "yes".to_owned(),
                Extended::Lost(loss) => format!("lost: {:?}", loss.reason),
                Extended::Unavailable(_) => "unavailable".to_owned(),
            };
            let case = format!("{asked} ms, after {time} ms: {result}");
            assert_eq!(found, result, "{case}");
            assert_eq!(lease.left(start), validity * MS, "{case}");
            assert_eq!(lease.granted.duration(), granted * MS, "{case}");
        }
    }

    #[test]
    fn a_lock_that_is_left_for_a_time_is_shortened_to_it_and_never_to_less() {
        let start = Point::now();
        // The ttl that is sent, and whether the call waits for it.
        let asked = |time: Duration, now: u32| {
            let op = lease(start).shortening(time, later(start, now * MS));
            let (ttl, shortens) = match op.action {
                Action::Shorten(ttl) => (ttl, true),
                Action::Leak(ttl) => (ttl, false),
                other => panic!("{other:?}"),
            };
            assert!(!shortens || ttl.duration() >= time);
            assert!(op.only_write != shortens && op.until.is_none());
            (ttl.millis(), shortens)
        };
        assert_eq!(asked(500 * MS, 0), (500, true));
        assert_eq!(asked(500 * MS + MS / 1000, 0), (501, true));
        assert_eq!(asked(MS / 1000, 0), (3, true));
        // No longer than that is left: the nodes only note it.
        assert_eq!(asked(987 * MS, 0), (987, true));
        assert_eq!(asked(988 * MS, 0), (988, false));
        assert_eq!(
            (asked(500 * MS, 488), asked(500 * MS, 487)),
            ((500, false), (500, true))
        );
        assert_eq!(asked(1500 * MS, 0), (1500, false));
        assert_eq!(asked(Duration::MAX, 0), (Ttl::MAX.millis(), false));
    }

    /// A server without scripts sets the key to the second ttl, whatever is left of it.
    #[test]
    fn no_extension_sets_a_key_to_less_than_the_deadline_in_force_needs() {
        let start = Point::now();
        let validity = 50_000 * MS;
        let mut resumed = Lease::new(key(b"a"), ttl(validity), Deadline::new(start, validity));
        for (asked, time, longest) in [
            (10_000, 0, 50_508),
            (10_000, 20_000, 50_000),
            (80_000, 0, 80_000),
        ] {
            let now = later(start, time * MS);
            let (_, op) = resumed.extension(ttl(asked * MS), now);
            let Action::Extend(_, sets) = op.action else {
                panic!("an extension extends");
            };
            assert!(sets.validity() >= resumed.left(now), "{asked}");
            assert_eq!(sets.millis(), longest, "{asked}");
        }
        // One that was acquired has this from its grant on.
        let (_, op) = lease(start).extension(ttl(100 * MS), start);
        assert_eq!(op.action, Action::Extend(ttl(100 * MS), ttl(1000 * MS)));
    }

    #[test]
    fn nodes_that_refuse_an_extension_are_refilled_until_the_deadline_and_released_at_the_end() {
        let start = Point::now();
        let mut lease = lease(start);
        let (extension, _) = lease.extension(ttl(2000 * MS), start);
        // Once sent, it may prolong the key whatever is answered (rule R6b).
        assert_eq!(lease.key.longest(), Some(2000 * MS));
        let (yes, now) = (Outcome::Yes(NodeSet::ALL), later(start, MS));
        let extended = lease.extended(extension, answer(yes, start), now);
        let Extended::Yes(Some(op)) = extended else {
            panic!("one node does not hold it");
        };
        assert_eq!(lease.key.sent_to, NodeSet::first(3));
        assert_eq!(op.nodes.iter().collect::<Vec<_>>(), [2]);
        assert_eq!(op.until, Some(start.mono + 1978 * MS));
        assert!(op.only_write && matches!(op.action, Action::Repair(ttl) if ttl.millis() == 2000));
    }

    /// Where the lock was refilled, its key may have been set after a step of the node's clock (rule R60).
    #[test]
    fn votes_have_counted_where_the_lock_is_until_it_is_sent_there_anew() {
        let start = Point::now();
        let counted = || {
            let mut lease = lease(start);
            lease.key.counted = [1, 2].into_iter().collect();
            let (extension, _) = lease.extension(ttl(1000 * MS), start);
            let mut yes = answer(Outcome::Yes(NodeSet::ALL), start);
            (yes.tally.granted, yes.tally.denied) = (NodeSet::first(2), [2].into_iter().collect());
            lease.extended(extension, yes, start);
            lease.key.counted.iter().collect::<Vec<_>>()
        };
        assert_eq!(counted(), [0, 1]);
        set_mutant(Some(Mutant::RepairHasCounted));
        assert_eq!(counted(), [0, 1, 2]);
        set_mutant(None);
    }

    #[test]
    fn a_loss_has_the_reason_that_came_first_and_is_new_once() {
        let start = Point::now();
        // Whether it is kept, its bound on renewals, when a renewal was due, the time of the check, and the reason.
        let table = [
            (None, None, 988, LostReason::Expired),
            (Some(5000), Some(500), 988, LostReason::Expired),
            (Some(400), None, 988, LostReason::Expired),
            (Some(400), Some(500), 988, LostReason::HoldLimit),
            (Some(400), Some(500), 500, LostReason::Taken),
            (None, None, 987, LostReason::Taken),
        ];
        for (max_hold, due, time, reason) in table {
            let mut lease = lease(start);
            if let Some(max_hold) = max_hold {
                lease.keep(max_hold * MS, |_, max| max, start);
            }
            if let Some(due) = due {
                let due_then = lease.due(None, later(start, due * MS));
                let over = matches!(due_then, Due::Later(_));
                assert_eq!(over, max_hold < Some(due), "{reason:?}");
            }
            let now = later(start, time * MS);
            let loss = |is_new| Loss { reason, is_new };
            assert_eq!(lease.gone(LostReason::Taken, now), loss(true));
            assert_eq!(lease.lose(LostReason::Taken), loss(false));
            // Even if a clock is set back.
            assert_eq!(lease.validity(start), Err(loss(false)));
            assert_eq!(
                (lease.left(start), lease.lost),
                (Duration::ZERO, Some(reason))
            );
            // An answer that comes late changes nothing.
            let (extension, _) = lease.extension(ttl(2000 * MS), start);
            let yes = answer(Outcome::Yes(NodeSet::ALL), start);
            let extended = lease.extended(extension, yes, now);
            assert!(matches!(extended, Extended::Lost(late) if late == loss(false)));
        }
    }

    #[test]
    fn the_end_is_notified_once_and_after_the_loss() {
        let start = Point::now();
        let [early, late] = [10, 20].map(|time| later(start, time * MS));
        let mut valid = lease(start);
        assert_eq!(valid.ended(early), Some(10 * MS));

        let mut lost = lease(start);
        assert!(lost.gone(LostReason::Taken, early).is_new);
        assert_eq!(lost.notified(), None);
        assert_eq!(lost.ended(late), Some(20 * MS));

        let mut notifying = lease(start);
        assert!(notifying.gone(LostReason::Taken, early).is_new);
        assert_eq!(notifying.ended(late), None);
        assert_eq!(notifying.notified(), Some(20 * MS));
        assert_eq!(notifying.notified(), None);
    }
}
