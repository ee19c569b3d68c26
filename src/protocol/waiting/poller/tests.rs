//! When the poller asks the nodes, and for how long it sleeps.

use super::*;
use crate::protocol::commands::lock_info::LockInfo;
use crate::protocol::commands::node_queue::Channel;
use crate::values::clock;

impl Poller {
    /// Until when the poller need not try a lock that is free: it follows no notification, since earlier ones were wrong, or
    /// pauses after the third split vote in a row, or a later one.
    pub(crate) fn cautious_until(&self) -> Instant {
        match self.phase {
            PollerPhase::Sleeping(until) if self.splits.failures() >= 3 => {
                until.max(self.eagerness.not_before)
            }
            _ => self.eagerness.not_before,
        }
    }
}

const MS: Duration = Duration::from_millis(1);
const NODE_TIMEOUT: Duration = Duration::from_millis(50);
const DELAY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(250));

struct World {
    poller: Poller,
    subscriptions: Subscriptions,
    rng: Rng,
    now: Instant,
    held_here: bool,
}

fn unsubscribed(nodes: usize) -> Subscriptions {
    Subscriptions::new(nodes, Some(Channel::new([1; 16])))
}

/// A process with subscriptions to all nodes.
fn world(nodes: usize) -> World {
    let now = clock::instant();
    let mut subscriptions = unsubscribed(nodes);
    (0..nodes).for_each(|node| subscriptions.subscribed(node));
    World {
        poller: Poller::new(DELAY, None, false, now),
        subscriptions,
        rng: Rng::new(17),
        now,
        held_here: false,
    }
}

impl World {
    fn next(&mut self) -> PollerAction {
        let (subscriptions, rng) = (&self.subscriptions, &mut self.rng);
        self.poller
            .next(self.held_here, subscriptions, NODE_TIMEOUT, rng, self.now)
    }

    /// How long the poller sleeps.
    fn sleeps(&mut self) -> Duration {
        match self.next() {
            PollerAction::Park(until) => until - self.now,
            PollerAction::Try(_) => panic!("it tries"),
        }
    }

    fn enqueues(&mut self) {
        assert_eq!(self.next(), PollerAction::Try(AcquireMode::Enqueue));
    }

    /// All nodes report this holder, and the time left.
    fn denied(&mut self, holder: u32, left: Option<Duration>) {
        let holder = Some(holder);
        let queued = true;
        let one = LockInfo {
            left,
            holder,
            queued,
            ..LockInfo::default()
        };
        let seen = vec![one; self.subscriptions.nodes()];
        let rejection = Rejection {
            remarks: seen.into(),
            granted: 0,
        };
        let (subscriptions, rng) = (&self.subscriptions, &mut self.rng);
        self.poller.denied(&rejection, subscriptions, rng, self.now);
    }
}

#[test]
fn it_sleeps_until_the_lock_ends_and_no_longer_than_the_poll() {
    let mut world = world(3);
    world.enqueues();
    world.denied(1, Some(20 * MS));
    let slept = world.sleeps();
    assert!((21 * MS..=30 * MS).contains(&slept), "{slept:?}");
    world.now += slept;
    let mut longest = Duration::ZERO;
    for _ in 0..12 {
        world.enqueues();
        world.denied(2, None);
        let slept = world.sleeps();
        assert!(slept >= DELAY.0 && slept <= DELAY.1 * POLL_GROWTH);
        longest = longest.max(slept);
        world.now += slept;
    }
    assert_eq!(longest, DELAY.1 * POLL_GROWTH);
    // Another holder may not notify.
    world.enqueues();
    world.denied(3, None);
    assert!(world.sleeps() <= DELAY.1);
    // With too few subscriptions, the pauses do not grow.
    world.subscriptions.failed(1);
    world.subscriptions.failed(2);
    for _ in 0..12 {
        let slept = world.sleeps();
        world.now += slept;
        world.enqueues();
        world.denied(3, None);
        assert!(world.sleeps() <= DELAY.1);
    }
}

#[test]
fn notifications_of_a_quorum_are_followed_at_once_and_fewer_ones_soon() {
    let mut world = world(3);
    world.enqueues();
    world.denied(1, None);
    world.poller.notified(0);
    assert!(world.sleeps() <= SETTLE.1);
    world.poller.notified(0);
    assert!(world.sleeps() <= SETTLE.1, "the same node again");
    world.poller.notified(2);
    world.enqueues();
    // Notified during a try (rule R31).
    world.poller.notified(1);
    world.poller.notified(2);
    world.denied(2, None);
    world.enqueues();
}

#[test]
fn notifications_that_are_wrong_are_followed_less_and_less_eagerly() {
    let mut world = world(1);
    world.enqueues();
    world.denied(1, None);
    let mut tries = 0;
    let end = world.now + 1000 * MS;
    while world.now < end {
        world.poller.notified(0);
        match world.next() {
            PollerAction::Try(_) => {
                tries += 1;
                world.denied(1, None);
            }
            PollerAction::Park(until) => world.now = until,
        }
    }
    assert!((20..200).contains(&tries), "{tries}");
    // The next holder's notification is right.
    world.poller.notified(0);
    world.now += 50 * MS;
    world.enqueues();
    world.denied(2, None);
    world.poller.notified(0);
    world.enqueues();
}

#[test]
fn after_a_split_vote_it_tries_again_soon() {
    let mut world = world(3);
    world.enqueues();
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
    let rejection = Rejection {
        remarks: seen.into(),
        granted: 0,
    };
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
    world.subscriptions = unsubscribed(1);
    world.poller = Poller::new(DELAY, None, true, world.now);
    world.held_here = true;
    let slept = world.sleeps();
    assert!(slept <= LONGEST_LOCAL && !world.poller.is_enqueued());
    // No hand-over: the poller enqueues, and first waits for the subscriptions.
    world.now += slept;
    assert_eq!(world.sleeps(), NODE_TIMEOUT);
    assert!(world.poller.is_enqueued());
    world.subscriptions.subscribed(0);
    world.enqueues();
}

#[test]
fn a_lock_that_was_released_in_this_process_is_tried_for_without_enqueueing() {
    let mut world = world(1);
    world.subscriptions = unsubscribed(1);
    world.poller = Poller::new(DELAY, None, true, world.now);
    world.held_here = true;
    world.sleeps();
    world.held_here = false;
    world.poller.retry_now();
    assert_eq!(world.next(), PollerAction::Try(AcquireMode::Plain));
}

#[test]
fn after_another_process_was_notified_it_gets_a_head_start() {
    let mut world = world(1);
    let (mut rng, now) = (Rng::new(3), world.now);
    world.poller.yields(&mut rng, now);
    let slept = world.sleeps();
    assert!((HEAD_START.0..=HEAD_START.1).contains(&slept));
    world.now += slept;
    world.enqueues();
}

#[test]
fn subscriptions_that_fail_are_not_waited_for() {
    let mut world = world(3);
    world.subscriptions = unsubscribed(3);
    assert_eq!(world.sleeps(), NODE_TIMEOUT);
    world.subscriptions.failed(0);
    world.subscriptions.failed(1);
    world.enqueues();
}

#[test]
fn it_waits_for_subscriptions_no_longer_than_for_a_node() {
    let mut world = world(3);
    world.subscriptions = unsubscribed(3);
    assert_eq!(world.sleeps(), NODE_TIMEOUT);
    world.now += NODE_TIMEOUT - MS;
    assert_eq!(world.sleeps(), MS);
    world.now += MS;
    world.enqueues();
    // While a try is under way, the thread looks again after the time that a node has.
    assert_eq!(world.sleeps(), NODE_TIMEOUT);
}

/// The node may have removed the process from its queue before.
#[test]
fn a_subscription_that_begins_is_followed_by_a_try_if_the_process_is_in_the_queues() {
    for (enqueued, tries) in [(false, false), (true, false), (true, true)] {
        let mut world = world(3);
        if enqueued {
            world.enqueues();
        } else {
            world.poller.has_no_time();
            assert_eq!(world.next(), PollerAction::Try(AcquireMode::Plain));
        }
        let (mut rng, now) = (Rng::new(3), world.now);
        if tries {
            world.poller.subscribed(&mut rng, now);
            world.denied(1, None);
        } else {
            world.denied(1, None);
            world.poller.subscribed(&mut rng, now);
        }
        let slept = world.sleeps();
        let soon = (SETTLE.0..=SETTLE.1).contains(&slept);
        assert_eq!(soon, enqueued, "{enqueued}, {tries}: {slept:?}");
        // Another one does not put it off.
        world.now += MS / 2;
        let (mut rng, now) = (Rng::new(7), world.now);
        world.poller.subscribed(&mut rng, now);
        assert_eq!(world.sleeps(), slept - MS / 2);
    }
}

/// A notification that it swallowed would leave the lock free, and all others asleep.
#[test]
fn a_poller_that_gives_up_notifies_others_if_it_may_have_got_the_only_news() {
    let must = |has_news: fn(&mut World)| {
        let mut world = world(3);
        world.poller = Poller::new(DELAY, None, true, world.now);
        assert!(!world.poller.must_notify());
        has_news(&mut world);
        world.poller.must_notify()
    };
    assert!(must(|world| world.enqueue_after_denial()));
    assert!(must(|world| world.poller.notified(2)));
    assert!(must(|world| world.poller.retry_now()));
    assert!(must(|world| world.poller.will_notify()));
    assert!(must(|world| world
        .poller
        .yields(&mut Rng::new(3), world.now)));
    assert!(fair(3).poller.must_notify());
    // The holder that denied it notifies the next one.
    assert!(!must(|world| {
        world.poller.retry_now();
        world.try_and_be_denied(|_| {});
    }));
    assert!(must(
        |world| world.try_and_be_denied(|poller| poller.notified(0))
    ));
    assert!(must(|world| world.try_and_be_denied(Poller::retry_now)));
}

impl World {
    fn try_and_be_denied(&mut self, meanwhile: fn(&mut Poller)) {
        assert_eq!(self.next(), PollerAction::Try(AcquireMode::Plain));
        meanwhile(&mut self.poller);
        self.denied(1, None);
    }

    fn enqueue_after_denial(&mut self) {
        self.try_and_be_denied(|_| {});
        self.enqueues();
    }
}

#[test]
fn news_of_another_process_ends_the_pause_for_a_holder_in_this_one() {
    let mut world = world(1);
    world.poller = Poller::new(DELAY, None, true, world.now);
    world.held_here = true;
    assert!(world.sleeps() > Duration::ZERO);
    world.poller.notified(0);
    world.enqueues();
}

#[test]
fn a_head_start_for_another_process_does_not_end_a_try_that_is_under_way() {
    let mut world = world(1);
    world.enqueues();
    let (mut rng, now) = (Rng::new(3), world.now);
    world.poller.notified(0);
    world.poller.yields(&mut rng, now);
    assert!(world.poller.is_trying());
    world.denied(1, None);
    world.enqueues();
}

#[test]
fn it_never_sleeps_longer_than_its_mark_lives() {
    let mut world = world(3);
    world.poller = world.poller.sleeps_at_most(30 * MS);
    world.enqueues();
    world.denied(1, None);
    assert_eq!(world.sleeps(), 30 * MS);
    let now = world.now;
    world.poller.failed(1000 * MS, now);
    assert_eq!(world.sleeps(), 30 * MS);
    world.poller.failed(20 * MS, now);
    assert_eq!(world.sleeps(), 20 * MS);
}

/// The longest pause that can be set.
#[test]
fn pauses_of_any_length_have_an_end() {
    let longest = (Duration::MAX, Duration::MAX);
    let mut world = world(3);
    world.poller = Poller::new(longest, None, false, world.now);
    assert_eq!(world.poller.longest_poll(), LONGEST_PAUSE * POLL_GROWTH);
    world.enqueues();
    world.denied(1, None);
    assert_eq!(world.sleeps(), LONGEST_PAUSE);
    let now = world.now;
    world.poller.failed(Duration::MAX, now);
    assert_eq!(world.sleeps(), LONGEST_PAUSE);
}

// ---- fair pollers

fn fair(nodes: usize) -> World {
    let mut world = world(nodes);
    world.poller = Poller::new(DELAY, Some(QueueTurn::new(NODE_TIMEOUT)), false, world.now);
    world
}

impl World {
    /// A number of nodes reserve the lock for another waiter, for the time `left`; others have granted it.
    fn reserved(&mut self, kept: usize, granted: usize, left: Duration) {
        let one = LockInfo {
            left: Some(left),
            holder: None,
            queued: true,
            ..LockInfo::default()
        };
        let rejection = Rejection {
            remarks: vec![one; kept].into(),
            granted,
        };
        let (subscriptions, rng) = (&self.subscriptions, &mut self.rng);
        self.poller.denied(&rejection, subscriptions, rng, self.now);
    }
}

#[test]
fn a_fair_poller_takes_the_lock_in_order_and_tries_again_when_a_reservation_may_be_over() {
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
    world.poller.notified(0);
    world.poller.notified(1);
    assert_eq!(world.next(), PollerAction::Try(AcquireMode::InOrder));
    world.reserved(2, 0, 30 * MS);
    let slept = world.sleeps();
    assert!((30 * MS..=40 * MS).contains(&slept), "{slept:?}");
    // Some nodes have granted the lock. That is no split vote either: the others have reserved it.
    let mut world = fair(3);
    world.next();
    world.reserved(2, 1, 30 * MS);
    assert!(world.sleeps() >= 30 * MS);
}

#[test]
fn a_lock_that_is_always_reserved_for_others_is_taken_after_four_reservations() {
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
        world.reserved(3, 0, 250 * MS);
    }
    assert!(world.now >= since + 1000 * MS);
    // A holder in between begins the count anew.
    world.denied(1, None);
    assert_eq!(bid(&mut world), AcquireMode::InOrder);
    world.reserved(3, 0, 250 * MS);
    assert_eq!(bid(&mut world), AcquireMode::InOrder);
}

#[test]
fn failed_attempts_do_not_begin_the_wait_for_reservations_anew() {
    let mut world = fair(3);
    let since = world.now;
    let mut mode = world.next();
    while world.now < since + 1000 * MS {
        assert_eq!(mode, PollerAction::Try(AcquireMode::InOrder));
        world.reserved(3, 0, 250 * MS);
        let slept = world.sleeps();
        world.now += slept;
        assert!(matches!(world.next(), PollerAction::Try(_)));
        world.poller.failed(50 * MS, world.now);
        world.now += 50 * MS;
        mode = world.next();
    }
    assert_eq!(mode, PollerAction::Try(AcquireMode::Enqueue));
}

#[test]
fn without_time_it_tries_and_does_not_enqueue() {
    let mut world = fair(3);
    world.subscriptions = unsubscribed(3);
    world.poller.has_no_time();
    assert_eq!(world.next(), PollerAction::Try(AcquireMode::InOrder));
    // Others were met: the next try is soon.
    world.reserved(0, 1, MS);
    assert!(world.sleeps() <= 2 * MS);
    world.now += 2 * MS;
    assert_eq!(world.next(), PollerAction::Try(AcquireMode::InOrder));
    assert!(!world.poller.is_enqueued());
}
