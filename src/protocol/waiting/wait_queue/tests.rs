//! The actions of waiters, and the world that all tests of the queues share.

mod over;

use super::*;
use crate::errors::node_errors::NodeErrors;
use crate::protocol::commands::lock_info::LockInfo;
use crate::protocol::commands::node_queue::QueueTurn;
use crate::protocol::waiting::subscriptions::{SubscriberEvent, SubscriberTask};
use crate::protocol::waiting::wait_queue::hand_offs::HandOff;
use crate::values::arithmetic::Ttl;
use crate::values::label::Label;

// For the simulation.
impl<W: Clone> WaitQueues<W> {
    pub(crate) fn waiters(&self) -> usize {
        self.waiters.len()
    }

    /// Whether a waiter is about to leave, since waiting is useless.
    pub(crate) fn is_hopeless(&self, id: u64) -> bool {
        self.waiters
            .get(&id)
            .is_some_and(|waiter| waiter.is_hopeless)
    }

    /// Whether a thread polls for a lock, or is about to be handed it.
    pub(crate) fn is_polled_for(&mut self, resource: &[u8]) -> bool {
        self.front(resource).is_none() || self.poller(resource).is_some()
    }
}

pub(super) const MS: Duration = Duration::from_millis(1);
pub(super) const NAME: &[u8] = b"a";

pub(super) struct World {
    pub(super) queues: WaitQueues<u32>,
    pub(super) now: Point,
}

fn busy() -> PlainTry {
    PlainTry {
        failure: WaitFailure::Busy(None),
        pause: MS,
        held_here: true,
    }
}

pub(super) fn several(names: &[&[u8]]) -> Kind {
    Kind::Several {
        names: names.iter().map(|name| Arc::from(*name)).collect(),
        claims: None,
    }
}

pub(super) fn world() -> World {
    let channel = Some(Channel::new([1; 16]));
    World {
        queues: WaitQueues::new(1, channel, 50 * MS, 7),
        now: Point::now(),
    }
}

impl World {
    pub(super) fn request(&self, wait: Option<Duration>) -> AcquireRequest {
        AcquireRequest {
            kind: Kind::Plain,
            ttl: Ttl::new(1000 * MS).unwrap(),
            label: None,
            end: wait.map(|wait| self.now.mono + wait),
            must_ask: false,
            retry_delay: (50 * MS, 250 * MS),
            turn: None,
        }
    }

    pub(super) fn join(&mut self, thread: u32, wait: Option<Duration>) -> u64 {
        let request = self.request(wait);
        let tried = Some(busy());
        self.queues
            .join(&Arc::from(NAME), thread, request, tried, self.now)
    }

    pub(super) fn join_as(&mut self, thread: u32, request: AcquireRequest) -> u64 {
        let (name, tried) = (Arc::from(NAME), Some(busy()));
        self.queues.join(&name, thread, request, tried, self.now)
    }

    /// Joins the queue for a lock of this kind.
    pub(super) fn join_for(&mut self, line: &[u8], thread: u32, kind: Kind) -> u64 {
        let request = AcquireRequest {
            kind,
            ..self.request(None)
        };
        let (line, tried) = (Arc::from(line), Some(busy()));
        self.queues.join(&line, thread, request, tried, self.now)
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.now.mono += time;
        self.now.wall += time;
    }

    pub(super) fn step(&mut self, waiter: u64, held_here: bool) -> WaiterAction {
        self.queues.step(waiter, held_here, self.now)
    }

    /// Whether the subscription is still needed.
    pub(super) fn receives(&mut self) -> bool {
        let task = self
            .queues
            .subscriber(0, SubscriberEvent::Nothing, self.now.mono);
        matches!(task, SubscriberTask::Receive)
    }

    pub(super) fn acquired(&mut self, waiter: u64) {
        self.queues.acquired(waiter, self.now.mono);
    }

    /// Makes a waiter give up. Returns whether its process leaves the queues on the nodes, too.
    pub(super) fn give_up(&mut self, waiter: u64) -> bool {
        let now = self.now.mono;
        let leaves = self.queues.give_up(waiter, now).is_some();
        if leaves {
            self.queues.dequeued(waiter, now);
        }
        leaves
    }

    /// Returns the waiter that a release hands the lock off to. `None`: the release notifies another process.
    pub(super) fn release(&mut self) -> Option<(u64, u32)> {
        match self.queues.hand_off(NAME, self.now.mono) {
            HandOff::To { waiter, thread, .. } => Some((waiter, thread)),
            HandOff::Notify(_) => None,
        }
    }
}

#[test]
fn a_waiter_that_must_ask_gets_no_hand_off_and_notifies_the_next_when_it_gives_up() {
    for others in [false, true] {
        let mut world = world();
        let request = AcquireRequest {
            must_ask: true,
            ..world.request(None)
        };
        let (name, now) = (Arc::from(NAME), world.now);
        let tried = Some(busy());
        let front = world.queues.join(&name, 0, request, tried, now);
        assert_eq!(world.release(), None);
        world.queues.released(&name, false, now.mono);
        assert_eq!(world.queues.woken, [0]);
        let next = others.then(|| world.join(1, None));
        // The next waiter tries instead.
        assert_eq!(world.give_up(front), !others);
        if let Some(next) = next {
            assert!(matches!(world.step(next, false), WaiterAction::Try(None)));
        }
    }
}

#[test]
fn a_waiter_that_was_never_notified_need_not_notify_others() {
    let mut world = world();
    let front = world.join(0, None);
    assert!(matches!(world.step(front, true), WaiterAction::Park(_)));
    assert!(!world.give_up(front));
}

#[test]
fn a_waiter_that_never_tried_gets_the_last_error_of_its_queue() {
    let mut world = world();
    let front = world.join(0, None);
    let second = world.join(1, Some(10 * MS));
    assert!(matches!(world.step(front, false), WaiterAction::Try(_)));
    let (rejection, failure) = (Rejection::default(), (WaitFailure::TooSlow, MS));
    world
        .queues
        .failed(front, failure, &rejection, world.now.mono);
    let request = world.request(Some(10 * MS));
    let now = world.now;
    let third = world.queues.join(&Arc::from(NAME), 2, request, None, now);
    world.pass(10 * MS);
    assert!(matches!(
        world.step(third, false),
        WaiterAction::GiveUp(WaitFailure::TooSlow)
    ));
    assert!(
        matches!(
            world.step(second, false),
            WaiterAction::GiveUp(WaitFailure::Busy(_))
        ),
        "it has tried"
    );
}

#[test]
fn an_error_from_before_the_last_acquisition_is_no_waiter_s() {
    let mut world = world();
    let front = world.join(0, None);
    world.join(1, None);
    let request = world.request(Some(10 * MS));
    let now = world.now;
    let third = world.queues.join(&Arc::from(NAME), 2, request, None, now);
    assert!(matches!(world.step(front, false), WaiterAction::Try(_)));
    let (rejection, failure) = (Rejection::default(), (WaitFailure::TooSlow, MS));
    world
        .queues
        .failed(front, failure, &rejection, world.now.mono);
    world.acquired(front);
    world.pass(10 * MS);
    let step = world.step(third, false);
    let is_busy = matches!(step, WaiterAction::GiveUp(WaitFailure::Busy(_)));
    assert!(is_busy, "{step:?}");
}

// ---- fair waiters

impl World {
    fn join_fair(&mut self, thread: u32, wait: Option<Duration>) -> u64 {
        let request = AcquireRequest {
            turn: Some(QueueTurn::new(50 * MS)),
            ..self.request(wait)
        };
        self.queues
            .join(&Arc::from(NAME), thread, request, None, self.now)
    }

    fn denied(&mut self, waiter: u64, rejection: &Rejection) {
        let failure = (WaitFailure::Busy(None), 50 * MS);
        self.queues
            .failed(waiter, failure, rejection, self.now.mono);
    }

    fn enqueues_in_order(&mut self, waiter: u64) -> Arc<QueueEntry> {
        match self.step(waiter, false) {
            WaiterAction::Try(Some(entry)) if entry.turn.is_some() => entry,
            step => panic!("{step:?}"),
        }
    }
}

#[test]
fn a_fair_waiter_gets_no_hand_off_and_enqueues_before_it_is_subscribed() {
    let mut world = world();
    let first = world.join_fair(1, None);
    let second = world.join_fair(2, None);
    assert_eq!(world.release(), None);
    let entry = world.enqueues_in_order(first);
    // The node's own clock counts.
    assert_eq!((entry.arrived, entry.waited), (0, 0));
    assert!(world.queues.take_to_start().is_empty());
    assert!(matches!(world.step(second, false), WaiterAction::Park(_)));
    world.pass(30 * MS);
    world.acquired(first);
    assert_eq!(world.enqueues_in_order(second).waited, 30);
}

#[test]
fn a_fair_waiter_tries_once_however_short_its_wait_is_and_again_after_a_split_vote() {
    let mut world = world();
    let waiter = world.join_fair(1, Some(Duration::ZERO));
    // Another waiter of this process is at the front.
    let late = world.join_fair(2, Some(Duration::ZERO));
    assert!(matches!(
        world.step(late, false),
        WaiterAction::GiveUp(WaitFailure::Busy(_))
    ));
    world.give_up(late);
    world.pass(MS);
    world.enqueues_in_order(waiter);
    let split = Rejection {
        granted: 1,
        ..Rejection::default()
    };
    world.denied(waiter, &split);
    assert!(matches!(world.step(waiter, false), WaiterAction::Park(_)));
    world.pass(20 * MS);
    world.enqueues_in_order(waiter);
    world.denied(waiter, &Rejection::default());
    assert!(matches!(world.step(waiter, false), WaiterAction::GiveUp(_)));
    assert!(world.give_up(waiter), "it was in the queue");
}

#[test]
fn a_fair_entry_on_the_nodes_is_not_left_to_a_later_waiter() {
    let mut world = world();
    let first = world.join_fair(1, None);
    let second = world.join_fair(2, None);
    world.enqueues_in_order(first);
    world.denied(first, &Rejection::default());
    assert!(world.give_up(first), "though another waits");
    world.enqueues_in_order(second);
}

// ---- nodes that refuse for good

fn refused(permanent: bool) -> WaitFailure {
    let errors = NodeErrors::new(Vec::new(), None);
    WaitFailure::Unavailable(match permanent {
        true => errors.for_good(),
        false => errors,
    })
}

impl World {
    fn fails(&mut self, waiter: u64, permanent: bool) {
        let failure = (refused(permanent), 50 * MS);
        let rejection = Rejection::default();
        self.queues
            .failed(waiter, failure, &rejection, self.now.mono);
    }

    fn is_over(&mut self, waiter: u64) -> bool {
        match self.step(waiter, false) {
            WaiterAction::GiveUp(failure) => {
                assert!(failure.is_hopeless(), "{failure:?}");
                true
            }
            _ => false,
        }
    }
}

#[test]
fn a_permanent_failure_ends_all_waits_of_the_queue_and_a_passing_one_none() {
    let mut world = world();
    let waiters = [0, 1, 2].map(|thread| world.join(thread, None));
    assert!(matches!(
        world.step(waiters[0], false),
        WaiterAction::Try(None)
    ));
    world.fails(waiters[0], false);
    assert!(world.queues.woken.is_empty());
    assert!(!waiters.iter().any(|waiter| world.is_over(*waiter)));
    // From now on the waiter is notified by other processes, but does not rely on that.
    world.pass(50 * MS);
    assert!(matches!(
        world.step(waiters[0], false),
        WaiterAction::Park(_)
    ));
    world.pass(50 * MS);
    assert!(matches!(
        world.step(waiters[0], false),
        WaiterAction::Try(Some(_))
    ));
    world.fails(waiters[0], true);
    assert_eq!(world.queues.woken, [1, 2]);
    assert_eq!(world.release(), None, "they are about to give up");
    assert!(waiters.iter().all(|waiter| world.is_over(*waiter)));
    // A waiter that joins now asks the nodes as soon as the one before it has left that asked them.
    let late = world.join(3, None);
    assert!(!world.is_over(late));
    world.give_up(waiters[0]);
    assert!(matches!(world.step(late, false), WaiterAction::Try(None)));
    for waiter in &waiters[1..] {
        world.give_up(*waiter);
    }
    world.acquired(late);
    assert!(world.queues.queues.is_empty(), "nothing is kept of it");
}

#[test]
fn a_waiter_that_is_asking_the_nodes_finds_out_by_itself() {
    let mut world = world();
    let [handed_off, front, other] = [0, 1, 2].map(|thread| world.join(thread, None));
    assert_eq!(world.release(), Some((handed_off, 0)));
    assert!(matches!(world.step(front, false), WaiterAction::Try(None)));
    world.fails(handed_off, true);
    assert!(world.is_over(handed_off) && world.is_over(other));
    world.fails(front, false);
    assert!(!world.is_over(front));
    world.give_up(front);
    assert!(world.is_over(handed_off));
    world.give_up(handed_off);
    world.give_up(other);
    assert_eq!(world.queues.waiters(), 0);
}

#[test]
fn a_hopeless_waiter_leaves_the_queues_on_the_nodes() {
    let mut world = world();
    let waiter = world.join_fair(1, Some(50 * MS));
    world.enqueues_in_order(waiter);
    world.fails(waiter, true);
    assert!(world.is_over(waiter), "though it has time");
    assert!(world.give_up(waiter));
}

/// The end of the holder's time is returned only if a majority of the nodes names one holder.
#[test]
fn a_waiter_that_gives_up_reports_when_its_holders_time_is_over() {
    let info = |holder, left| LockInfo {
        left: Some(left),
        holder: Some(holder),
        label: Label::new("web-3"),
        ..LockInfo::default()
    };
    let [two, three] = [2000 * MS, 3000 * MS];
    for (infos, free) in [
        (vec![info(1, two)], Some(two)),
        // The lock is reserved for another waiter.
        (
            vec![LockInfo {
                holder: None,
                label: None,
                ..info(1, three)
            }],
            None,
        ),
        (
            vec![LockInfo {
                left: None,
                ..info(1, three)
            }],
            None,
        ),
        (vec![], None),
    ] {
        let mut world = world();
        let waiter = world.join(0, None);
        world.step(waiter, false);
        let rejection = Rejection {
            remarks: infos.clone().into(),
            ..Rejection::default()
        };
        let (failure, now) = ((WaitFailure::Busy(None), MS), world.now.mono);
        world.queues.failed(waiter, failure, &rejection, now);
        let WaitFailure::Busy(holder) = world.queues.failure(waiter) else {
            panic!("it was denied");
        };
        let label = holder.as_ref().and_then(|holder| holder.label.clone());
        let named = infos.first().and_then(|info| info.holder);
        assert_eq!(label, named.and(Label::new("web-3")), "{infos:?}");
        let end = holder.and_then(|holder| holder.until);
        assert_eq!(end, free.map(|free| now + free), "{infos:?}");
    }
}
