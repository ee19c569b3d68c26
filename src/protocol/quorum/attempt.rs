//! The tries that make one attempt to acquire.

use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::errors::cause::Cause;
use crate::errors::node_errors::NodeErrors;
use crate::protocol::commands::action::{Action, Key, SharedKey};
use crate::protocol::commands::kind::Kind;
use crate::protocol::commands::lock_info::{KnownHolder, LockInfo};
use crate::protocol::commands::node_queue::QueueEntry;
use crate::protocol::commands::vote::OtherUse;
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::quorum::answer::{Answer, Outcome};
use crate::protocol::quorum::op::Op;
use crate::protocol::quorum::votes::Remarks;
use crate::values::arithmetic::{Deadline, Ttl};
use crate::values::backoff::{Backoff, SHORTEST_PAUSE};
use crate::values::clock::Point;
use crate::values::label::Label;
use crate::values::lock_value::Since;
use crate::values::node_set::NodeSet;
use crate::values::token::Token;

/// The maximum number of split votes. The pauses double: after so many, the attempt has met a holder that has the lock
/// on a minority, not contenders.
const MAX_SPLITS: u32 = 8;

/// One attempt: as many tries as it takes to tell a holder from other contenders (rule R32), each with its own token
/// (rule R2), within one node timeout and a few hundred round trips; and one more try if connections turned out closed, or
/// for each node whose key turned out to be elsewhere.
/// An attempt that enqueues is one try: the [poller](crate::protocol::waiting::poller) does the rest.
#[derive(Debug)]
pub(crate) struct Attempt {
    resource: Arc<[u8]>,
    kind: Kind,
    ttl: Ttl,
    label: Option<Label>,
    queue_entry: Option<Arc<QueueEntry>>,
    node_timeout: Duration,
    /// When the lock was first wanted.
    since: Option<Instant>,
    /// When the first try was sent.
    begun: Option<Instant>,
    /// The key of the current try.
    key: Option<Key>,
    started: Option<Point>,
    splits: Backoff,
    /// Set once a try has failed for connections that turned out closed, or for redirects: the nodes that have redirected.
    closed: Option<NodeSet>,
}

/// The result of the last try.
pub(crate) enum Tried {
    Granted(Key, Deadline),
    /// Granted after its validity ended: must be released.
    TooSlow(Key, Deadline),
    /// Held by another.
    Denied(Rejection),
    Unavailable(NodeErrors),
    /// The validity ended before enough nodes answered.
    Expired,
}

/// The replies of the nodes that denied the lock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rejection {
    /// The number of other nodes that granted the lock. Those grants were undone.
    pub(crate) granted: usize,
    pub(crate) remarks: Remarks,
}

impl Rejection {
    /// The replies of the nodes whose queues were entered.
    fn lock_infos(&self) -> impl Iterator<Item = &LockInfo> {
        self.remarks.lock_infos.iter()
    }

    /// The other use of the name, and one node that reports it, if a quorum reports one (rule R53).
    pub(crate) fn other_use(&self, quorum: usize) -> Option<(usize, OtherUse)> {
        let enough = self.remarks.other_uses.len() >= quorum;
        self.remarks.other_uses.first().copied().filter(|_| enough)
    }

    /// The process that holds the lock on a quorum.
    pub(crate) fn holder(&self, quorum: usize) -> Option<u32> {
        let known = || self.lock_infos().filter_map(|info| info.holder);
        known().find(|holder| known().filter(|other| other == holder).count() >= quorum)
    }

    /// The label of the process that holds the lock on a quorum, and when its time ends.
    pub(crate) fn named(&self, quorum: usize, now: Instant) -> Option<KnownHolder> {
        let holder = self.holder(quorum)?;
        let of_it = |info: &&LockInfo| info.holder == Some(holder);
        let mut infos = self.lock_infos().filter(of_it);
        let left = self.free_in(quorum);
        Some(KnownHolder {
            label: infos.find_map(|info| info.label.clone()),
            until: left.and_then(|left| now.checked_add(left)),
        })
    }

    /// Whether no node reports a holder: the nodes were not asked, or do not permit that; or the lock is reserved for
    /// another waiter.
    pub(crate) fn is_unknown(&self) -> bool {
        self.granted == 0 && self.lock_infos().all(|info| info.holder.is_none())
    }

    /// Whether a quorum would have granted the lock, except for waiters that come first.
    pub(crate) fn is_reserved(&self, quorum: usize) -> bool {
        let kept = self.lock_infos().filter(|info| info.is_reserved()).count();
        kept > 0 && kept + self.granted >= quorum
    }

    /// Whether a quorum will notify this process, or has granted the lock.
    pub(crate) fn is_queued(&self, quorum: usize) -> bool {
        let queued = self.lock_infos().filter(|info| info.queued).count();
        queued + self.granted >= quorum
    }

    /// The time until a quorum is free, if nothing happens before.
    pub(crate) fn free_in(&self, quorum: usize) -> Option<Duration> {
        let mut left: Vec<Duration> = self.lock_infos().filter_map(|info| info.left).collect();
        left.sort_unstable();
        let needed = quorum.saturating_sub(self.granted).checked_sub(1);
        needed.map_or(Some(Duration::ZERO), |needed| left.get(needed).copied())
    }
}

impl Attempt {
    /// Creates an attempt. With a `queue_entry`, the nodes notify this process when the lock is free.
    pub(crate) fn new(
        resource: Arc<[u8]>,
        ttl: Ttl,
        label: Option<Label>,
        queue_entry: Option<Arc<QueueEntry>>,
        node_timeout: Duration,
    ) -> Attempt {
        Attempt {
            resource,
            kind: Kind::Plain,
            ttl,
            label,
            queue_entry,
            node_timeout,
            since: None,
            begun: None,
            key: None,
            started: None,
            splits: Backoff::new(MAX_SPLITS),
            closed: None,
        }
    }

    pub(crate) fn of_kind(self, kind: Kind) -> Attempt {
        Attempt { kind, ..self }
    }

    /// Sets when the lock was first wanted, if that was before this attempt.
    pub(crate) fn since(self, since: Instant) -> Attempt {
        Attempt {
            since: Some(since),
            ..self
        }
    }

    /// Returns the operation of the next try, with a fresh token.
    pub(crate) fn op(&mut self, token: Token, now: Point) -> Op {
        let token = match &self.key {
            Some(key) if mutant(Mutant::ReuseToken) => key.token,
            _ => token,
        };
        // Taken before anything is sent (rule R3).
        self.started = Some(now);
        let valid = now.mono.checked_add(self.ttl.validity());
        let begun = self.begun.filter(|_| !mutant(Mutant::RetryHasAllTime));
        let all = begun.map(|begun| begun + 2 * self.node_timeout);
        let since = *self.since.get_or_insert(now.mono);
        let wait = || now.mono.saturating_duration_since(since);
        self.kind.set_waited(wait);
        let action = match self.queue_entry.clone() {
            Some(entry) => Action::AcquireOrEnqueue(self.ttl, entry),
            None => Action::Acquire(self.ttl),
        };
        let key = Key::of(SharedKey {
            resource: self.resource.clone(),
            token,
            since: Since::of(now.wall),
            label: self.label.clone(),
            kind: self.kind.clone(),
        });
        self.key = Some(key.clone());
        Op::new(action, key)
            .since(since)
            .until(valid.into_iter().chain(all).min())
    }

    /// How long the current try has taken.
    pub(crate) fn took(&self, now: Point) -> Duration {
        self.started
            .map_or(Duration::ZERO, |started| started.elapsed_at(now))
    }

    /// Whether other contenders may have met the same split. If no node granted the lock, there is a holder. An attempt
    /// that enqueues learns which it is, and the process may be notified meanwhile.
    fn contends(&self, rejection: &Rejection) -> bool {
        rejection.granted > 0 && self.queue_entry.is_none() && !mutant(Mutant::SplitIsDenial)
    }

    /// Whether another try may succeed, behind one that failed only for connections that turned out closed, or for
    /// servers that do not have the key. Each try reveals where some of several Clusters have the key.
    fn may_succeed_now(&mut self, remarks: &Remarks) -> bool {
        let redirects = remarks.causes.iter();
        let redirects = redirects.filter(|(_, cause)| matches!(**cause, Cause::Redirected(_)));
        let redirected: NodeSet = redirects.map(|(node, _)| *node).collect();
        let before = self.closed;
        self.closed = Some(before.map_or(redirected, |before| before.or(redirected)));
        before.is_none_or(|before| !redirected.without(before).is_empty())
    }

    /// The result of a try, if it was the last one; or another try follows, after a random part of this time.
    pub(crate) fn answered(&mut self, answer: Answer, now: Point) -> ControlFlow<Tried, Duration> {
        if let Outcome::Unavailable { unsent: true, .. } = answer.outcome {
            return Continue(Duration::ZERO);
        }
        let begun = *self.begun.get_or_insert(answer.begun);
        let (Some(key), Some(started)) = (&self.key, self.started) else {
            return Break(Tried::Denied(Rejection::default()));
        };
        let rejection = Rejection {
            granted: answer.tally.granted.len(),
            remarks: answer.remarks,
        };
        Break(match answer.outcome {
            Outcome::Yes(sent_to) => {
                let kind = key.kind.granted(answer.numbers);
                let key = key.clone().of_kind(kind);
                let mut key = key.sent_to(match mutant(Mutant::ReleaseOnlyGranted) {
                    true => answer.tally.granted,
                    false => sent_to,
                });
                key.counted = answer.tally.granted;
                let from = match mutant(Mutant::DeadlineFromAnswer) {
                    true => now,
                    false => started,
                };
                let deadline = Deadline::new(from, self.ttl.validity());
                if deadline.remaining(now).is_zero() && !mutant(Mutant::GrantAfterDeadline) {
                    return Break(Tried::TooSlow(key, deadline));
                }
                Tried::Granted(key, deadline)
            }
            Outcome::No if !self.contends(&rejection) => Tried::Denied(rejection),
            Outcome::No => {
                let took = now.mono.saturating_duration_since(answer.begun);
                let left = (begun + self.node_timeout).saturating_duration_since(now.mono);
                if left.is_zero() || self.splits.failures() == MAX_SPLITS {
                    return Break(Tried::Denied(rejection));
                }
                self.splits.failed();
                return Continue(left.min(self.splits.pause(took.max(SHORTEST_PAUSE))));
            }
            Outcome::Unavailable { useless: true, .. }
                if Deadline::new(started, self.ttl.validity())
                    .remaining(now)
                    .is_zero() =>
            {
                Tried::Expired
            }
            Outcome::Unavailable { closed: true, .. }
                if now.mono < begun + self.node_timeout
                    && self.may_succeed_now(&rejection.remarks) =>
            {
                return Continue(Duration::ZERO);
            }
            Outcome::Unavailable { errors, .. } => Tried::Unavailable(*errors),
        })
    }
}

#[cfg(test)]
impl Attempt {
    /// Whether this was the first try, and others may follow.
    pub(crate) fn is_first(&self) -> bool {
        self.splits.failures() == 0 && self.closed.is_none() && self.queue_entry.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errors::redirection::Redirection;
    use crate::proof::fixtures::{MS, NODE_TIMEOUT, answer, later, token, ttl, unavailable};

    fn begin(now: Point) -> Attempt {
        let resource = Arc::from(&b"a"[..]);
        let mut attempt = Attempt::new(resource, ttl(1000 * MS), None, None, NODE_TIMEOUT);
        attempt.op(token(), now);
        attempt
    }

    /// The reports of three nodes that deny the lock.
    fn rejection(granted: usize, queued: usize, holders: usize) -> Rejection {
        let info = |at| LockInfo {
            queued: at < queued,
            holder: (at < holders).then_some(7),
            ..LockInfo::default()
        };
        Rejection {
            granted,
            remarks: (0..3 - granted).map(info).collect::<Vec<_>>().into(),
        }
    }

    #[test]
    fn a_quorum_queues_a_process_where_some_do_and_the_others_granted() {
        for (granted, queued, is_queued) in [
            (0, 0, false),
            (0, 1, false),
            (0, 2, true),
            (1, 0, false),
            (1, 1, true),
            (2, 0, true),
        ] {
            let rejection = rejection(granted, queued, 0);
            assert_eq!(rejection.is_queued(2), is_queued, "{granted}, {queued}");
        }
    }

    #[test]
    fn a_holder_is_unknown_if_no_node_reports_one_and_none_granted() {
        assert!(rejection(0, 0, 0).is_unknown());
        assert!(!rejection(0, 0, 1).is_unknown());
        assert!(!rejection(1, 0, 0).is_unknown());
    }

    #[test]
    fn another_use_of_the_name_counts_if_a_quorum_reports_it() {
        let mut rejection = rejection(0, 0, 0);
        for (node, found) in [(1, None), (2, Some((1, OtherUse::Data)))] {
            let uses = &mut rejection.remarks.make().other_uses;
            uses.push((node, OtherUse::Data));
            assert_eq!(rejection.other_use(2), found);
        }
    }

    #[test]
    fn an_attempt_waits_since_the_lock_was_wanted_and_a_try_takes_time_since_it_was_sent() {
        let wanted = Point::now();
        let now = later(wanted, 30 * MS);
        let resource = Arc::from(&b"a"[..]);
        let attempt = Attempt::new(resource, ttl(1000 * MS), None, None, NODE_TIMEOUT);
        let mut attempt = attempt.since(wanted.mono);
        assert_eq!(attempt.took(now), Duration::ZERO);
        assert_eq!(attempt.op(token(), now).since, Some(wanted.mono));
        assert_eq!(attempt.took(later(now, 4 * MS)), 4 * MS);
    }

    /// Rule R32: the undo of the try before may arrive late.
    #[test]
    fn each_try_has_the_token_that_was_made_for_it() {
        let now = Point::now();
        let mut attempt = begin(now);
        let fresh = Token::from_bytes([9; 20]);
        let answered = attempt.answered(answer(Outcome::No, 1, now), later(now, MS));
        assert!(matches!(answered, Continue(_)));
        assert_eq!(attempt.op(fresh, now).key.token, fresh);
    }

    #[test]
    fn a_contender_without_a_vote_is_denied_at_once() {
        let now = Point::now();
        let tried = begin(now).answered(answer(Outcome::No, 0, now), later(now, MS));
        assert!(matches!(tried, Break(Tried::Denied(_))));
    }

    #[test]
    fn a_contender_with_a_vote_tries_again_after_pauses_that_grow_for_one_node_timeout() {
        let start = Point::now();
        let mut attempt = begin(start);
        let (mut now, mut pauses) = (start, Vec::new());
        loop {
            let begun = now;
            now = later(now, MS);
            match attempt.answered(answer(Outcome::No, 1, begun), now) {
                Continue(within) => {
                    pauses.push(within);
                    now = later(now, within);
                    let op = attempt.op(token(), now);
                    // All tries together have two node timeouts.
                    assert_eq!(op.until, Some(start.mono + 2 * NODE_TIMEOUT));
                }
                Break(Tried::Denied(_)) => break,
                _ => panic!("neither granted nor failed"),
            }
        }
        assert_eq!(pauses[..4], [2 * MS, 4 * MS, 8 * MS, 16 * MS]);
        let passed = now.mono - start.mono;
        assert!(
            (NODE_TIMEOUT..NODE_TIMEOUT + 2 * MS).contains(&passed),
            "{passed:?}"
        );
    }

    #[test]
    fn connections_that_turned_out_closed_are_worth_one_more_try_if_there_is_time() {
        let start = Point::now();
        let mut attempt = begin(start);
        let now = later(start, MS);
        let tried = attempt.answered(answer(unavailable(true, false), 0, start), now);
        assert!(matches!(tried, Continue(Duration::ZERO)));
        let tried = attempt.answered(answer(unavailable(true, false), 0, start), now);
        assert!(matches!(tried, Break(Tried::Unavailable(_))));
        let late = later(start, NODE_TIMEOUT);
        let tried = begin(start).answered(answer(unavailable(true, false), 0, start), late);
        assert!(matches!(tried, Break(Tried::Unavailable(_))));
    }

    /// Of several Clusters that have moved the key, each is found out by itself.
    #[test]
    fn each_node_whose_key_is_elsewhere_is_worth_another_try() {
        let start = Point::now();
        let mut attempt = begin(start);
        for (nodes, goes_on) in [(&[1, 2][..], true), (&[0, 2], true), (&[0, 1], false)] {
            let mut answer = answer(unavailable(true, false), 0, start);
            for node in nodes {
                let redirection = Redirection::of("MOVED 17 h:2", &"h:1".into()).unwrap();
                let cause = Arc::new(Cause::Redirected(redirection.into()));
                answer.remarks.make().causes.push((*node, cause));
            }
            let tried = attempt.answered(answer, later(start, MS));
            assert_eq!(tried.is_continue(), goes_on, "{nodes:?}");
        }
    }

    #[test]
    fn what_is_granted_after_its_validity_is_too_slow() {
        let start = Point::now();
        let granted = |time| {
            let yes = answer(Outcome::Yes(NodeSet::first(3)), 2, start);
            begin(start).answered(yes, later(start, time))
        };
        // 1 s less 1 % and 2 ms.
        assert!(matches!(granted(987 * MS), Break(Tried::Granted(..))));
        assert!(matches!(granted(988 * MS), Break(Tried::TooSlow(..))));
    }

    #[test]
    fn what_ends_with_its_validity_before_enough_have_answered_is_expired() {
        let start = Point::now();
        let failed = |useless, time| {
            let answer = answer(unavailable(true, useless), 0, start);
            begin(start).answered(answer, later(start, time))
        };
        assert!(matches!(failed(true, 988 * MS), Break(Tried::Expired)));
        // The second try ran out of time, or the nodes failed.
        assert!(!matches!(failed(true, 987 * MS), Break(Tried::Expired)));
        assert!(!matches!(failed(false, 988 * MS), Break(Tried::Expired)));
    }

    #[test]
    fn a_granted_lock_may_be_on_more_nodes_than_have_voted_for_it() {
        let start = Point::now();
        let yes = answer(Outcome::Yes(NodeSet::first(3)), 2, start);
        let Break(Tried::Granted(key, _)) = begin(start).answered(yes, later(start, MS)) else {
            panic!("granted in time");
        };
        assert_eq!(key.sent_to, NodeSet::first(3));
        assert_eq!(key.counted, NodeSet::first(2));
    }

    #[test]
    fn a_lock_is_free_once_its_time_is_over_on_enough_nodes_besides_those_that_granted() {
        // The rests of its time, in any order.
        for (left, granted, expected) in [
            (&[30, 10, 20][..], 0, Some(20)),
            (&[30, 10], 1, Some(10)),
            (&[30], 1, Some(30)),
            (&[30], 0, None),
            (&[30], 2, Some(0)),
        ] {
            let info = |left: &u32| LockInfo {
                left: Some(*left * MS),
                ..LockInfo::default()
            };
            let rejection = Rejection {
                granted,
                remarks: left.iter().map(info).collect::<Vec<_>>().into(),
            };
            let expected = expected.map(|left: u32| left * MS);
            assert_eq!(rejection.free_in(2), expected, "{left:?}, {granted}");
        }
    }
}
