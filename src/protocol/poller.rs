//! What the thread at the front of a line does: the only one of its process that asks the nodes for that lock.
//!
//! ```text
//!          ┌──────── denied, and it may be a thread of this process that has it ────────┐
//!          ▼                                                                            │
//!   Begins ──▶ Local ── the pause is over ──▶ Opens ── subscriptions suffice, or hopeless ──▶ Tries ──▶ granted
//!          └── nobody here has it ──────────▶                                     ▲     │
//!                                                                                 │     ▼
//!                                 told, the lock's time is over, or the poll ── Sleeps ◀┘ denied, no quorum
//! ```
//!
//! A hint is never more than that: each sleep has a bound of its own.
//!
//! A *fair* one knocks from the beginning, and takes a free lock only if it has waited longest. It sleeps no longer
//! than the turn of another may last, and after some turns that nobody used it takes the lock all the same.

use std::time::{Duration, Instant};

use crate::protocol::attempt::Rejection;
use crate::protocol::mutant;
use crate::protocol::queue::Turn;
use crate::protocol::quorum::{NodeSet, majority};

/// A holder that seems to be in this process is given so long to hand over before other processes are asked to tell.
const LONGEST_LOCAL: Duration = Duration::from_millis(50);
/// Where a minority of the nodes has told, the others have so long.
const GRACE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(3));
/// Who let another process have the lock gives it so long a start.
const START: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(2));
/// Nobody tries at the very moment at which the lock's time ends.
const EXPIRED: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(10));
/// The poll grows, while those who release tell, up to this, or to so many times its longest.
const LONGEST_POLL: Duration = Duration::from_secs(1);
const POLL_GROWTH: u32 = 8;
/// Pauses longer than this are not told from it.
const LONGEST_PAUSE: Duration = Duration::from_secs(24 * 3600);
const SHORTEST_POLL: Duration = Duration::from_millis(1);
/// The first pause where no one has it, and where a hint turned out wrong.
const SHORTEST_PAUSE: Duration = Duration::from_micros(200);
const MAX_DOUBLINGS: u32 = 7;

/// A random generator, for pauses.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Rng {
        Rng(seed | 1)
    }

    pub(crate) fn between(&mut self, (min, max): (Duration, Duration)) -> Duration {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let part = u32::try_from(self.0 % 1024).unwrap_or(0);
        min + max.saturating_sub(min) / 1024 * part
    }
}

/// On which nodes this process hears what it is told.
#[derive(Clone, Debug)]
pub(crate) struct Subscriptions {
    pub(crate) nodes: usize,
    pub(crate) open: NodeSet,
    /// The last try to listen there failed.
    pub(crate) failed: NodeSet,
}

impl Subscriptions {
    pub(crate) fn new(nodes: usize) -> Subscriptions {
        Subscriptions {
            nodes,
            open: NodeSet::EMPTY,
            failed: NodeSet::EMPTY,
        }
    }

    /// So many that each release, which reaches a quorum, is heard.
    fn enough(&self) -> usize {
        self.nodes + 1 - majority(self.nodes)
    }

    pub(crate) fn suffice(&self) -> bool {
        self.open.len() >= self.enough()
    }

    fn is_hopeless(&self) -> bool {
        self.nodes - self.failed.len() < self.enough()
    }
}

/// How the nodes are asked for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AcquireMode {
    Plain,
    /// They tell when it is free.
    Enqueue,
    /// The same; but it is taken only in turn.
    InOrder,
}

/// What the thread should do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollerAction {
    /// One attempt.
    Try(AcquireMode),
    Park(Instant),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Begins,
    Local(Instant),
    Opens(Instant),
    /// Since then.
    Tries(Instant),
    Sleeps(Instant),
}

#[derive(Clone, Debug)]
pub(crate) struct Poller {
    phase: Phase,
    retry_delay: (Duration, Duration),
    /// It is fair.
    turn: Option<Turn>,
    /// Since when the lock has been kept for others, as far as is known.
    kept_since: Option<Instant>,
    /// A thread of this process may have it: a plain try comes before other processes are asked to tell.
    local: bool,
    /// It has no time to be told, and only tries.
    hasty: bool,
    /// It was left to such a thread already.
    waited: bool,
    /// It may be in the queues on the nodes.
    knocks: bool,
    /// It was denied by another process, for all that is known.
    denied: bool,
    /// It may be the only one who knows that the lock is free: nobody else was told.
    knows: bool,
    /// Who has told since the last try began.
    told: NodeSet,
    grace: Option<Instant>,
    /// To try at once.
    again: bool,
    /// The current try follows a hint.
    hinted: bool,
    /// Hints in a row that were wrong; the next is not followed before then.
    wrong: u32,
    follows_from: Instant,
    /// Who has it on a quorum, and how many tries in a row have seen that.
    holder: Option<u32>,
    same: u32,
    splits: u32,
}

impl Poller {
    /// With a `turn` it is fair. `local`: a thread of this process may have the lock.
    pub(crate) fn new(
        retry_delay: (Duration, Duration),
        turn: Option<Turn>,
        local: bool,
        now: Instant,
    ) -> Poller {
        let (min, max) = retry_delay;
        Poller {
            phase: Phase::Begins,
            retry_delay: (min.min(LONGEST_PAUSE), max.min(LONGEST_PAUSE)),
            turn,
            kept_since: None,
            local,
            hasty: false,
            // Where order counts, everybody is to be in the queues.
            waited: turn.is_some(),
            knocks: false,
            denied: false,
            knows: false,
            told: NodeSet::EMPTY,
            grace: None,
            again: false,
            hinted: false,
            wrong: 0,
            follows_from: now,
            holder: None,
            same: 0,
            splits: 0,
        }
    }

    /// It has so little time that it does not listen.
    pub(crate) fn hurries(&mut self) {
        self.hasty = true;
    }

    /// The longest time for which it sleeps without a hint.
    pub(crate) fn longest_poll(&self) -> Duration {
        let longest = self.retry_delay.1.saturating_mul(POLL_GROWTH);
        let longest = longest.max(LONGEST_POLL);
        // Whose turn it is may be gone.
        let turn = self.turn.filter(|_| !mutant(40));
        turn.map_or(longest, Turn::duration)
    }

    pub(crate) fn is_trying(&self) -> bool {
        matches!(self.phase, Phase::Tries(_))
    }

    /// It has waited for another process.
    pub(crate) fn has_waited(&self) -> bool {
        self.denied
    }

    /// Needs to be told by other processes.
    pub(crate) fn listens(&self) -> bool {
        self.knocks
    }

    /// Others are to be told when it goes.
    pub(crate) fn must_pass_on(&self) -> bool {
        self.knocks || self.knows || self.is_fair()
    }

    pub(crate) fn is_fair(&self) -> bool {
        self.turn.is_some()
    }

    /// `here`: a thread of this process seems to have the lock.
    pub(crate) fn next(
        &mut self,
        here: bool,
        subscriptions: &Subscriptions,
        node_timeout: Duration,
        rng: &mut Rng,
        now: Instant,
    ) -> PollerAction {
        loop {
            match self.phase {
                Phase::Begins if here && !self.again && !self.waited => {
                    let (min, max) = self.retry_delay;
                    let pause = rng.between((min, max)).min(LONGEST_LOCAL);
                    self.waited = true;
                    self.phase = Phase::Local(now + pause);
                }
                Phase::Begins if self.hasty => return self.tries(false, now),
                Phase::Begins
                    if !self.knocks && (self.local || self.again && !subscriptions.suffice()) =>
                {
                    self.local = false;
                    return self.tries(false, now);
                }
                Phase::Begins => {
                    self.knocks = true;
                    self.phase = Phase::Opens(now + node_timeout);
                }
                Phase::Local(until) if !self.again && self.told.is_empty() && now < until => {
                    return PollerAction::Park(until);
                }
                Phase::Local(_) => {
                    self.local = false;
                    self.phase = Phase::Begins;
                }
                Phase::Opens(until) => {
                    let ready =
                        self.again || subscriptions.suffice() || subscriptions.is_hopeless();
                    if !ready && now < until {
                        return PollerAction::Park(until);
                    }
                    return self.tries(true, now);
                }
                Phase::Tries(_) => return PollerAction::Park(now + node_timeout),
                Phase::Sleeps(until) => {
                    let until = until.min(self.hint(subscriptions, rng, now).unwrap_or(until));
                    if !self.again && now < until {
                        return PollerAction::Park(until);
                    }
                    self.hinted = !self.told.is_empty();
                    if self.hinted {
                        // Those who were met before may be gone.
                        self.splits = 0;
                    }
                    self.phase = Phase::Begins;
                }
            }
        }
    }

    /// When what was told is followed.
    fn hint(
        &mut self,
        subscriptions: &Subscriptions,
        rng: &mut Rng,
        now: Instant,
    ) -> Option<Instant> {
        if self.told.is_empty() && self.grace.is_none() {
            return None;
        }
        if self.told.len() >= majority(subscriptions.nodes) {
            return Some(self.follows_from);
        }
        let end = *self.grace.get_or_insert_with(|| now + rng.between(GRACE));
        Some(end.max(self.follows_from))
    }

    fn tries(&mut self, knocks: bool, now: Instant) -> PollerAction {
        self.told = NodeSet::EMPTY;
        self.grace = None;
        self.again = false;
        self.phase = Phase::Tries(now);
        PollerAction::Try(match self.turn {
            Some(_) if self.patient_until().is_none_or(|until| now < until) => AcquireMode::InOrder,
            None if !knocks => AcquireMode::Plain,
            _ => AcquireMode::Enqueue,
        })
    }

    /// Until when it lets others go first.
    fn patient_until(&self) -> Option<Instant> {
        Some(self.kept_since? + self.turn?.patience())
    }

    /// Denied, by a quorum or for want of one.
    pub(crate) fn denied(
        &mut self,
        rejection: &Rejection,
        subscriptions: &Subscriptions,
        rng: &mut Rng,
        now: Instant,
    ) {
        let Phase::Tries(began) = self.phase else {
            return;
        };
        if mutant(30) {
            self.told = NodeSet::EMPTY;
        }
        let kept = rejection.is_reserved(majority(subscriptions.nodes));
        self.kept_since = kept.then(|| self.kept_since.unwrap_or(now));
        // Whoever had it then tells the next one.
        self.knows = self.again || !self.told.is_empty();
        if !self.knocks && !self.hasty {
            self.phase = Phase::Begins;
            return;
        }
        self.denied |= self.knocks;
        let took = now.saturating_duration_since(began).max(SHORTEST_PAUSE);
        let quorum = majority(subscriptions.nodes);
        let holder = rejection.holder(quorum);
        let changed = holder != self.holder;
        self.holder = holder;
        self.wrong = match self.hinted && !changed {
            true => self.wrong + 1,
            false => 0,
        };
        let grows = |times: u32| 1 << times.min(MAX_DOUBLINGS);
        self.follows_from = now;
        if self.wrong > 0 {
            let most = SHORTEST_PAUSE.saturating_mul(grows(self.wrong));
            self.follows_from += rng.between((SHORTEST_PAUSE, most));
        }
        self.hinted = false;
        self.same = if changed { 0 } else { self.same + 1 };
        let sleep = if holder.is_none() && !rejection.is_unknown() && !kept {
            // Others were met, and none has it: it may be free at any moment.
            self.splits += 1;
            let most = took.saturating_mul(grows(self.splits));
            let most = most.min(self.retry_delay.1).max(SHORTEST_PAUSE);
            rng.between((took.min(most), most))
        } else {
            self.splits = 0;
            let poll = self.poll(rejection.is_queued(quorum), subscriptions, rng);
            let free = rejection.free_in(quorum);
            free.map_or(poll, |free| {
                poll.min(free.saturating_add(rng.between(EXPIRED)))
            })
        };
        let sleep = match self.patient_until() {
            Some(until) => sleep.min(until.saturating_duration_since(now)),
            None => sleep,
        };
        self.phase = Phase::Sleeps(now + sleep);
    }

    fn poll(&self, queued: bool, subscriptions: &Subscriptions, rng: &mut Rng) -> Duration {
        let poll = rng.between(self.retry_delay).max(SHORTEST_POLL);
        let longer = poll.saturating_mul(1 << self.same.min(MAX_DOUBLINGS));
        // Who is not told soon finds out by itself.
        let poll = if subscriptions.suffice() && queued {
            longer
        } else {
            poll
        };
        poll.min(self.longest_poll())
    }

    /// Too few nodes answered, or it came too late.
    pub(crate) fn failed(&mut self, pause: Duration, now: Instant) {
        self.hinted = false;
        self.kept_since = None;
        self.phase = Phase::Sleeps(now + pause.min(LONGEST_PAUSE));
    }

    /// A node says that the lock may be free.
    pub(crate) fn told(&mut self, node: usize) {
        self.told.add(node);
        self.knows = true;
    }

    /// It hears a node from now on, and may have missed something before.
    pub(crate) fn hears(&mut self, rng: &mut Rng, now: Instant) {
        // Or during a try: the nodes may have found that it does not listen, and forgotten it.
        if let Phase::Sleeps(_) | Phase::Tries(_) = self.phase
            && self.knocks
            && !mutant(38)
        {
            self.grace.get_or_insert_with(|| now + rng.between(GRACE));
        }
    }

    /// The lock was left to its process, and nobody else was told.
    pub(crate) fn will_pass_on(&mut self) {
        self.knows = true;
    }

    /// The lock was released in this process, or given up by who was at the front before.
    pub(crate) fn free(&mut self) {
        self.again = true;
        self.knows = true;
    }

    /// It was, and another process was told: that one goes first.
    pub(crate) fn yields(&mut self, rng: &mut Rng, now: Instant) {
        self.local = false;
        // It may have been this process that was told.
        self.knows = true;
        if !self.is_trying() {
            self.again = false;
            self.told = NodeSet::EMPTY;
            self.phase = Phase::Sleeps(now + rng.between(START));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::protocol::queue::LockInfo;

    const MS: Duration = Duration::from_millis(1);
    const NODE_TIMEOUT: Duration = Duration::from_millis(50);
    const DELAY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(250));

    struct World {
        poller: Poller,
        subscriptions: Subscriptions,
        rng: Rng,
        now: Instant,
        here: bool,
    }

    /// Of so many nodes, all of which are heard.
    fn world(nodes: usize) -> World {
        let now = clock::instant();
        let mut subscriptions = Subscriptions::new(nodes);
        subscriptions.open = NodeSet::first(nodes);
        World {
            poller: Poller::new(DELAY, None, false, now),
            subscriptions,
            rng: Rng::new(17),
            now,
            here: false,
        }
    }

    impl World {
        fn next(&mut self) -> PollerAction {
            let (subscriptions, rng) = (&self.subscriptions, &mut self.rng);
            self.poller
                .next(self.here, subscriptions, NODE_TIMEOUT, rng, self.now)
        }

        /// How long it sleeps.
        fn sleeps(&mut self) -> Duration {
            match self.next() {
                PollerAction::Park(until) => until - self.now,
                PollerAction::Try(_) => panic!("it tries"),
            }
        }

        fn knocks(&mut self) {
            assert_eq!(self.next(), PollerAction::Try(AcquireMode::Enqueue));
        }

        /// All nodes say that this one has it, for so long.
        fn denied(&mut self, holder: u32, left: Option<Duration>) {
            let holder = Some(holder);
            let queued = true;
            let one = LockInfo {
                left,
                holder,
                queued,
                ..LockInfo::default()
            };
            let seen = vec![one; self.subscriptions.nodes];
            let rejection = Rejection { seen, granted: 0 };
            let (subscriptions, rng) = (&self.subscriptions, &mut self.rng);
            self.poller.denied(&rejection, subscriptions, rng, self.now);
        }
    }

    #[test]
    fn it_sleeps_until_the_lock_ends_and_no_longer_than_the_poll() {
        let mut world = world(3);
        world.knocks();
        world.denied(1, Some(20 * MS));
        let slept = world.sleeps();
        assert!((21 * MS..=30 * MS).contains(&slept), "{slept:?}");
        world.now += slept;
        let mut longest = Duration::ZERO;
        for _ in 0..12 {
            world.knocks();
            world.denied(2, None);
            let slept = world.sleeps();
            assert!(slept >= DELAY.0 && slept <= DELAY.1 * POLL_GROWTH);
            longest = longest.max(slept);
            world.now += slept;
        }
        assert_eq!(longest, DELAY.1 * POLL_GROWTH);
        // Another holder: it does not tell, perhaps.
        world.knocks();
        world.denied(3, None);
        assert!(world.sleeps() <= DELAY.1);
        // Where too few are heard, the pauses do not grow.
        world.subscriptions.open = NodeSet::first(1);
        world.subscriptions.failed = NodeSet::ALL
            .without(NodeSet::first(1))
            .and(NodeSet::first(3));
        for _ in 0..12 {
            let slept = world.sleeps();
            world.now += slept;
            world.knocks();
            world.denied(3, None);
            assert!(world.sleeps() <= DELAY.1);
        }
    }

    #[test]
    fn what_a_quorum_tells_is_followed_at_once_and_what_fewer_tell_soon() {
        let mut world = world(3);
        world.knocks();
        world.denied(1, None);
        world.poller.told(0);
        assert!(world.sleeps() <= GRACE.1);
        world.poller.told(0);
        assert!(world.sleeps() <= GRACE.1, "the same node again");
        world.poller.told(2);
        world.knocks();
        // Told during a try (rule R31).
        world.poller.told(1);
        world.poller.told(2);
        world.denied(2, None);
        world.knocks();
    }

    #[test]
    fn hints_that_are_wrong_are_followed_less_and_less_eagerly() {
        let mut world = world(1);
        world.knocks();
        world.denied(1, None);
        let mut tries = 0;
        let end = world.now + 1000 * MS;
        while world.now < end {
            world.poller.told(0);
            match world.next() {
                PollerAction::Try(_) => {
                    tries += 1;
                    world.denied(1, None);
                }
                PollerAction::Park(until) => world.now = until,
            }
        }
        assert!((20..200).contains(&tries), "{tries}");
        // The next holder's is right.
        world.poller.told(0);
        world.now += 50 * MS;
        world.knocks();
        world.denied(2, None);
        world.poller.told(0);
        world.knocks();
    }

    #[test]
    fn who_meets_other_contenders_tries_again_soon() {
        let mut world = world(3);
        world.knocks();
        let one = LockInfo {
            left: None,
            holder: Some(1),
            queued: true,
            ..LockInfo::default()
        };
        let mut seen = vec![one; 3];
        for (seen, holder) in seen.iter_mut().zip(1..) {
            seen.holder = Some(holder);
        }
        let rejection = Rejection { seen, granted: 0 };
        world.now += MS;
        let (subscriptions, rng) = (&world.subscriptions, &mut world.rng);
        world
            .poller
            .denied(&rejection, subscriptions, rng, world.now);
        assert!(world.sleeps() <= 2 * MS);
    }

    #[test]
    fn a_thread_of_this_process_has_the_first_chance_to_hand_over() {
        let mut world = world(1);
        world.subscriptions = Subscriptions::new(1);
        world.poller = Poller::new(DELAY, None, true, world.now);
        world.here = true;
        let slept = world.sleeps();
        assert!(slept <= LONGEST_LOCAL && !world.poller.listens());
        // It does not: other processes are asked to tell, and first their subscriptions are waited for.
        world.now += slept;
        assert_eq!(world.sleeps(), NODE_TIMEOUT);
        assert!(world.poller.listens());
        world.subscriptions.open.add(0);
        world.knocks();
    }

    #[test]
    fn a_lock_that_is_free_again_here_is_tried_for_without_a_knock() {
        let mut world = world(1);
        world.subscriptions = Subscriptions::new(1);
        world.poller = Poller::new(DELAY, None, true, world.now);
        world.here = true;
        world.sleeps();
        world.here = false;
        world.poller.free();
        assert_eq!(world.next(), PollerAction::Try(AcquireMode::Plain));
    }

    #[test]
    fn who_was_passed_over_for_another_process_gives_it_a_start() {
        let mut world = world(1);
        let (mut rng, now) = (Rng::new(3), world.now);
        world.poller.yields(&mut rng, now);
        let slept = world.sleeps();
        assert!((START.0..=START.1).contains(&slept));
        world.now += slept;
        world.knocks();
    }

    #[test]
    fn ears_that_cannot_open_are_not_waited_for() {
        let mut world = world(3);
        world.subscriptions = Subscriptions::new(3);
        assert_eq!(world.sleeps(), NODE_TIMEOUT);
        world.subscriptions.failed = NodeSet::first(2);
        world.knocks();
    }

    // ---- fair ones

    fn fair(nodes: usize) -> World {
        let mut world = world(nodes);
        world.poller = Poller::new(DELAY, Some(Turn::new(NODE_TIMEOUT)), false, world.now);
        world
    }

    impl World {
        /// Nodes that keep the lock for another one for so long, and those that have granted it.
        fn kept(&mut self, kept: usize, granted: usize, left: Duration) {
            let one = LockInfo {
                left: Some(left),
                holder: None,
                queued: true,
                ..LockInfo::default()
            };
            let rejection = Rejection {
                seen: vec![one; kept],
                granted,
            };
            let (subscriptions, rng) = (&self.subscriptions, &mut self.rng);
            self.poller.denied(&rejection, subscriptions, rng, self.now);
        }
    }

    #[test]
    fn who_is_fair_takes_the_lock_in_turn_and_looks_when_another_turn_may_be_over() {
        let mut world = fair(3);
        assert_eq!(world.next(), PollerAction::Try(AcquireMode::InOrder));
        world.denied(1, None);
        for _ in 0..12 {
            let slept = world.sleeps();
            assert!(slept <= 250 * MS, "{slept:?}");
            world.now += slept;
            assert_eq!(world.next(), PollerAction::Try(AcquireMode::InOrder));
            world.denied(1, None);
        }
        world.poller.told(0);
        world.poller.told(1);
        assert_eq!(world.next(), PollerAction::Try(AcquireMode::InOrder));
        world.kept(2, 0, 30 * MS);
        let slept = world.sleeps();
        assert!((30 * MS..=40 * MS).contains(&slept), "{slept:?}");
        // Some have granted it. It is no split either: the others are spoken for.
        let mut world = fair(3);
        world.next();
        world.kept(2, 1, 30 * MS);
        assert!(world.sleeps() >= 30 * MS);
    }

    #[test]
    fn who_finds_the_lock_always_kept_for_others_takes_it_after_four_turns() {
        let mut world = fair(3);
        let since = world.now;
        let bid = |world: &mut World| match world.next() {
            PollerAction::Try(bid) => bid,
            PollerAction::Park(until) => {
                world.now = until;
                match world.next() {
                    PollerAction::Try(bid) => bid,
                    PollerAction::Park(_) => panic!("it sleeps on"),
                }
            }
        };
        while bid(&mut world) == AcquireMode::InOrder {
            assert!(world.now < since + 1000 * MS);
            world.kept(3, 0, 250 * MS);
        }
        assert!(world.now >= since + 1000 * MS);
        // In between somebody had it: that is another matter.
        world.denied(1, None);
        assert_eq!(bid(&mut world), AcquireMode::InOrder);
        world.kept(3, 0, 250 * MS);
        assert_eq!(bid(&mut world), AcquireMode::InOrder);
    }

    #[test]
    fn who_has_no_time_tries_and_does_not_listen() {
        let mut world = fair(3);
        world.subscriptions = Subscriptions::new(3);
        world.poller.hurries();
        assert_eq!(world.next(), PollerAction::Try(AcquireMode::InOrder));
        // Others were met: the next try is soon.
        world.kept(0, 1, MS);
        assert!(world.sleeps() <= 2 * MS);
        world.now += 2 * MS;
        assert_eq!(world.next(), PollerAction::Try(AcquireMode::InOrder));
        assert!(!world.poller.listens());
    }
}
