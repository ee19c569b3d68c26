//! Releases that no call waits for, and that follow their keys to other servers of a Redis Cluster (rule R45).

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::errors::redirection::{Hint, Redirection};
use crate::protocol::cluster::redirect::{NextHop, PAUSE, Redirect};
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::node::debt::Debt;
use crate::protocol::node::outbox::MAX_DEBTS;
use crate::protocol::quorum::answer::Answer;
use crate::protocol::quorum::op::Op;
use crate::values::endpoint::Endpoint;
use crate::values::node_set::NodeSet;

/// How long all releases together are tried once nothing uses the servers any longer: at a server that does not answer,
/// and in all. Then their keys end with their ttls.
const AFTER_CLOSE: Duration = Duration::from_millis(500);
const LONGEST_AFTER_CLOSE: Duration = Duration::from_secs(10);
/// The pause before the slot's owner is asked about a release that was redirected for another reason than that the slot has
/// moved. If that server sits out (R16) it is sent the release itself, whose answer comes here again.
const REPEATED: Duration = Duration::from_millis(20);

#[derive(Default)]
pub(crate) struct RedirectedReleases {
    queue: VecDeque<RedirectedRelease>,
    /// When the last `Redlock` was dropped. Some `Lock`s may still be alive.
    closed_at: Option<Instant>,
    /// When the last release was added.
    added_at: Option<Instant>,
    /// Whether a thread sends them.
    is_running: bool,
    /// The nodes of those that were taken to be sent, and have no answer yet.
    sent: NodeSet,
}

pub(crate) struct RedirectedRelease {
    pub(crate) node: usize,
    /// The operation that is sent next, and to which server of the node. `None`: to the owner of the key's slot.
    pub(crate) op: Op,
    pub(crate) to: Option<Endpoint>,
    /// The slot's owner, as the server answered that was owed the release.
    pub(crate) new_owner: Option<Endpoint>,
    redirect: Redirect,
    due: Instant,
}

impl RedirectedRelease {
    pub(crate) fn slot(&self) -> u16 {
        self.redirect.slot()
    }
}

/// The next step of the thread that sends releases on.
// Made once for each release.
#[allow(clippy::large_enum_variant)]
pub(crate) enum OwedTask {
    /// Sends this one, and passes the answer to [`RedirectedReleases::answered`].
    Send(RedirectedRelease),
    Wait(Instant),
    /// Ends: the next release starts another thread.
    End,
}

impl RedirectedReleases {
    /// Adds a release of a node, whose key is in this slot. `answer`: of the server that was owed the release and did not
    /// have the key.
    pub(crate) fn add(
        &mut self,
        (node, debt): (usize, Debt),
        slot: u16,
        answer: Option<&Redirection>,
        now: Instant,
    ) {
        let redirect = Redirect::of_debt(node, debt, slot, now);
        // Two servers may name each other. While the slot is migrating, its owner reports which of the two has the key.
        let (moved, pause) = match answer.map(|answer| &answer.hint) {
            None => (None, Duration::ZERO),
            Some(Hint::Moved(_, to)) => (Some(to.clone()), PAUSE),
            Some(_) => (None, REPEATED),
        };
        self.queue.push_back(RedirectedRelease {
            node,
            op: redirect.op(),
            to: None,
            new_owner: moved,
            redirect,
            due: now + pause,
        });
        self.added_at = Some(now);
        let most = self.queue.len().saturating_sub(MAX_DEBTS);
        self.queue.drain(..most);
    }

    /// Whether a thread must be started. If so, it counts as running from then on.
    pub(crate) fn starts(&mut self) -> bool {
        let starts = !self.is_running && !self.queue.is_empty();
        self.is_running |= starts;
        starts
    }

    /// Notes that no thread runs.
    pub(crate) fn deserted(&mut self) {
        self.is_running = false;
    }

    pub(crate) fn is_running(&self) -> bool {
        self.is_running
    }

    /// The nodes whose releases are here.
    #[cfg(feature = "cli")]
    pub(crate) fn nodes(&self) -> NodeSet {
        let queued: NodeSet = self.queue.iter().map(|release| release.node).collect();
        queued.or(self.sent)
    }

    pub(crate) fn close(&mut self, now: Instant) {
        self.closed_at = Some(now);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed_at.is_some()
    }

    /// How long ago the servers were closed and the last release was added. `None`: they are open.
    fn closed_for(&self, now: Instant) -> Option<Duration> {
        let since = self.closed_at.max(self.added_at);
        let since = since.filter(|_| self.is_closed());
        since.map(|since| now.saturating_duration_since(since))
    }

    /// The thread's next step.
    pub(crate) fn next(&mut self, now: Instant) -> OwedTask {
        if self.closed_for(now) >= Some(LONGEST_AFTER_CLOSE) {
            self.queue.clear();
        }
        let Some(first) = self.queue.iter().map(|release| release.due).min() else {
            self.is_running = false;
            return OwedTask::End;
        };
        let at = self.queue.iter().position(|release| release.due <= now);
        match at.and_then(|at| self.queue.remove(at)) {
            Some(release) => {
                self.sent.add(release.node);
                OwedTask::Send(release)
            }
            None => OwedTask::Wait(first),
        }
    }

    /// Handles the answer to a release. `is_there`: whether another one, of the same node, goes to the same server.
    pub(crate) fn answered(
        &mut self,
        mut release: RedirectedRelease,
        answer: &Answer,
        is_there: impl Fn(&RedirectedRelease) -> bool,
        now: Instant,
    ) {
        self.sent.remove(release.node);
        let voted = answer.tally.voted().without(answer.tally.failed);
        if voted.has(release.node) || mutant(Mutant::OwedOnce) {
            return;
        }
        let is_elsewhere = Redirect::redirections_in(answer, release.slot())
            .next()
            .is_some();
        release.new_owner = None;
        (release.op, release.to, release.due) = match release.redirect.next(answer, now) {
            NextHop::Owner { op, pause, .. } => (op, None, now + pause),
            NextHop::Importer { op, pause, to, .. } => (op, Some(to), now + pause),
            // The server owes the release now, and is sent it again.
            NextHop::Nowhere if is_elsewhere || !self.is_closed() => return,
            NextHop::Nowhere if self.closed_for(now) >= Some(AFTER_CLOSE) => {
                // Other releases are not tried there either: each would take a node timeout.
                let node = release.node;
                return self
                    .queue
                    .retain(|other| other.node != node || !is_there(other));
            }
            NextHop::Nowhere => match release.redirect.again(now) {
                Some((op, pause)) => (op, None, now + pause),
                None => return,
            },
        };
        self.queue.push_back(release);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::errors::cause::Cause;
    use crate::proof::fixtures::{MS, key};
    use crate::values::clock;

    const SLOT: u16 = 17;

    /// A queue with one release for each of these nodes, of a lock of this name.
    fn owing(all: &[(usize, &str)], now: Instant) -> RedirectedReleases {
        let mut owed = RedirectedReleases::default();
        for (node, name) in all {
            let debt = Debt::release(key(name.as_bytes()));
            owed.add((*node, debt), SLOT, None, now);
        }
        owed
    }

    /// The next release, which must be due then.
    fn sent(owed: &mut RedirectedReleases, due: Instant) -> RedirectedRelease {
        if let OwedTask::Wait(until) = owed.next(due - MS) {
            assert_eq!(until, due);
        }
        match owed.next(due) {
            OwedTask::Send(release) => release,
            OwedTask::Wait(until) => panic!("due in {:?}", until - due),
            OwedTask::End => panic!("nothing is left"),
        }
    }

    fn is_at_end(owed: &mut RedirectedReleases, now: Instant) -> bool {
        matches!(owed.next(now), OwedTask::End)
    }

    /// The answer of a node that returned this error.
    fn failed(node: usize, error: &str, now: Instant) -> Answer {
        let mut answer = Answer::none(now);
        answer.tally.fail(node);
        let cause = match Redirection::of(error, &"h:1".into()) {
            Some(redirection) => Cause::Redirected(redirection.into()),
            None => Cause::Closed(error.into()),
        };
        answer.remarks.make().causes.push((node, Arc::new(cause)));
        answer
    }

    #[test]
    fn one_thread_at_a_time_sends_releases_on() {
        let now = clock::instant();
        assert!(!RedirectedReleases::default().starts());
        let mut owed = owing(&[(0, "a")], now);
        assert!(owed.starts());
        assert!(owed.is_running());
        assert!(!owed.starts());
        owed.deserted();
        assert!(!owed.is_running());
        assert!(owed.starts());
    }

    #[test]
    fn a_redirected_release_is_sent_on_after_pauses() {
        let now = clock::instant();
        for (error, to) in [("MOVED 17 h:2", None), ("ASK 17 h:2", Some(2))] {
            let mut owed = owing(&[(0, "a")], now);
            for pause in [Duration::ZERO, PAUSE, 2 * PAUSE] {
                let release = owed.queue.pop_front().expect(error);
                owed.answered(release, &failed(0, error, now), |_| true, now);
                let release = sent(&mut owed, now + pause);
                assert_eq!(release.to.as_ref().map(|to| to.1), to, "{error}");
                assert_eq!(release.slot(), SLOT, "{error}");
                owed.queue.push_back(release);
            }
        }
    }

    #[test]
    fn while_servers_are_used_a_release_without_an_answer_is_left_to_its_server() {
        let now = clock::instant();
        let mut owed = owing(&[(0, "a")], now);
        let release = sent(&mut owed, now);
        owed.answered(release, &failed(0, "silent", now), |_| true, now);
        assert!(is_at_end(&mut owed, now));
    }

    #[test]
    fn after_the_close_a_release_is_tried_again_and_a_server_that_stays_silent_is_given_up() {
        let now = clock::instant();
        let all = [(0, "a"), (0, "here"), (0, "there"), (1, "here")];
        let mut owed = owing(&all, now);
        owed.close(now);
        let (mut release, mut due) = (sent(&mut owed, now), now);
        // Behind the others, which are due now.
        let others: Vec<RedirectedRelease> = owed.queue.drain(..).collect();
        for pause in [Duration::ZERO, PAUSE, 2 * PAUSE] {
            owed.answered(release, &failed(0, "silent", due), |_| true, due);
            due += pause;
            release = sent(&mut owed, due);
        }
        owed.queue.extend(others);
        let late = now + AFTER_CLOSE;
        let is_there = |release: &RedirectedRelease| *release.op.key.resource == *b"here";
        owed.answered(release, &failed(0, "silent", late), is_there, late);
        let left = owed
            .queue
            .iter()
            .map(|one| (one.node, &*one.op.key.resource));
        assert_eq!(
            left.collect::<Vec<_>>(),
            [(0, &b"there"[..]), (1, &b"here"[..])]
        );
    }

    #[test]
    fn after_the_close_a_release_that_was_answered_is_done() {
        let now = clock::instant();
        let mut owed = owing(&[(0, "a")], now);
        owed.close(now);
        let release = sent(&mut owed, now);
        let mut answer = Answer::none(now);
        answer.tally.grant(0);
        owed.answered(release, &answer, |_| true, now);
        assert!(is_at_end(&mut owed, now));
    }

    #[test]
    fn a_redirected_release_is_asked_about_at_the_owner_of_its_slot_and_never_at_once() {
        let now = clock::instant();
        for (answer, moved, pause) in [
            ("MOVED 17 h:2", Some(("h".to_owned(), 2)), PAUSE),
            ("ASK 17 h:2", None, REPEATED),
            ("TRYAGAIN", None, REPEATED),
        ] {
            let mut owed = RedirectedReleases::default();
            let redirection = Redirection::of(answer, &"h:1".into());
            let debt = Debt::release(key(b"a"));
            owed.add((0, debt), SLOT, redirection.as_ref(), now);
            let OwedTask::Wait(due) = owed.next(now) else {
                panic!("{answer}");
            };
            assert_eq!(due, now + pause, "{answer}");
            let OwedTask::Send(release) = owed.next(due) else {
                panic!("{answer}");
            };
            assert!(release.op.named.is_none() && release.to.is_none());
            assert_eq!(release.new_owner, moved, "{answer}");
        }
    }

    /// Some locks may still be alive when the last client ends.
    #[test]
    fn a_release_that_is_added_long_after_the_close_has_all_its_time() {
        let now = clock::instant();
        let late = now + LONGEST_AFTER_CLOSE;
        let mut owed = RedirectedReleases::default();
        owed.close(now);
        let add = |owed: &mut RedirectedReleases| {
            owed.add((0, Debt::release(key(b"a"))), SLOT, None, late)
        };
        add(&mut owed);
        sent(&mut owed, late);
        add(&mut owed);
        assert!(is_at_end(&mut owed, late + LONGEST_AFTER_CLOSE));
    }
}
