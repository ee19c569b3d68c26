//! Releases in this process: whether the next thread gets the lock, or another process is notified.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::protocol::commands::action::{Key, Notify};
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::quorum::attempt::Attempt;
use crate::protocol::waiting::subscriptions::KEPT_IDLE;
use crate::protocol::waiting::wait_queue::{HandOffs, WaitQueues};
use crate::protocol::waiting::waiter::WaiterState;
use crate::values::arithmetic::Ttl;
use crate::values::label::Label;

/// The maximum of hand-offs in a row, and the time for which they may go on, while other processes wait.
const MAX_HAND_OFFS: (u32, Duration) = (16, Duration::from_millis(20));

/// How a release passes the lock on.
#[derive(Debug)]
pub(crate) enum HandOff<W> {
    /// The nodes notify a process that waits, and the thread at the front goes on by itself.
    Notify(Notify),
    /// The release goes together with the first try for this waiter.
    To {
        waiter: u64,
        thread: W,
        ttl: Ttl,
        label: Option<Label>,
    },
}

impl<W: Clone> WaitQueues<W> {
    /// Decides how a release in this process passes the lock on. A waiter to which the lock is handed off is no longer
    /// in the queue.
    pub(crate) fn hand_off(&mut self, resource: &[u8], now: Instant) -> HandOff<W> {
        self.sweep(now);
        let Some(id) = self.front(resource) else {
            if let Some(queue) = self.queues.get_mut(resource) {
                queue.hand_offs = None;
            }
            self.remove_if_unused(resource, now);
            let channel = self
                .subscriptions
                .channel()
                .filter(|_| !mutant(Mutant::NotifyOwnProcess));
            return HandOff::Notify(channel.map_or(Notify::First, Notify::FirstBut));
        };
        let (Some(queue), Some(waiter)) =
            (self.queues.get_mut(resource), self.waiters.get_mut(&id))
        else {
            return HandOff::Notify(Notify::First);
        };
        let (most, longest) = MAX_HAND_OFFS;
        let (count, since) = queue
            .hand_offs
            .map_or((0, now), |row| (row.count, row.since));
        let trying = matches!(&waiter.state, WaiterState::Front(poller) if poller.is_trying());
        // A waiter that may give up without trying must not swallow the only notification.
        let may_give_up = waiter.takes_no_hand_off || waiter.is_over(now);
        if may_give_up
            || waiter.request.turn.is_some()
            || trying && !mutant(Mutant::HandOffBesideTry)
            || queue.notified_elsewhere.is_some()
            || count >= most
            || now >= since + longest
        {
            queue.hand_offs = None;
            return HandOff::Notify(Notify::First);
        }
        let (thread, request) = (waiter.thread.clone(), &waiter.request);
        queue.hand_offs = Some(HandOffs {
            count: count + 1,
            since,
            until: now + request.ttl.duration().max(KEPT_IDLE),
        });
        let (ttl, label) = (request.ttl, request.label.clone());
        waiter.state = WaiterState::HandedOff(None);
        queue.waiters.pop_front();
        self.promote(resource, now);
        HandOff::To {
            waiter: id,
            thread,
            ttl,
            label,
        }
    }

    /// Notes that the first try of this attempt is under way for a waiter.
    pub(crate) fn handed_off(&mut self, id: u64, attempt: Attempt) {
        self.set_state(id, WaiterState::HandedOff(Some(attempt)));
    }

    /// Notes that the try of a hand-off could not be made, so the waiter makes it itself.
    pub(crate) fn hand_off_failed(&mut self, id: u64, now: Instant) {
        if !mutant(Mutant::LoseWithoutToken) {
            self.return_to_queue(id, now);
        }
        if let Some(waiter) = self.waiters.get(&id) {
            self.woken.push(waiter.thread.clone());
        }
    }

    /// Notes that the lock was released without a hand-off. `notified`: whether the release notified another process.
    pub(crate) fn released(&mut self, resource: &Arc<[u8]>, notified: bool, now: Instant) {
        if notified {
            self.notified_elsewhere(resource, now);
        }
        let queue = self.queues.get(resource);
        let notified = queue.is_some_and(|queue| queue.notified_elsewhere.is_some());
        for line in self.lines(resource) {
            if self.front(&line).is_none() {
                continue;
            }
            if let Some(queue) = self.queues.get_mut(resource) {
                queue.notified_elsewhere = None;
            }
            let mut rng = self.rng.clone();
            if let Some(poller) = self.poller(&line) {
                match notified {
                    // A fair waiter is notified if it is the next.
                    true if poller.is_fair() => {}
                    true => poller.yields(&mut rng, now),
                    false => poller.retry_now(),
                }
            }
            self.rng = rng;
            self.wake_front(&line);
        }
    }

    /// Notes that another process was notified that a lock is free: the next waiter here gives it a head start.
    pub(crate) fn notified_elsewhere(&mut self, resource: &Arc<[u8]>, now: Instant) {
        self.sweep(now);
        let queue = self.queues.entry(resource.clone()).or_default();
        queue.notified_elsewhere = Some(now);
    }

    /// The queues of this process in which threads wait for a lock on this name: alone, or with others.
    pub(super) fn lines(&self, resource: &[u8]) -> Vec<Arc<[u8]>> {
        let own = self.queues.get_key_value(resource).map(|(line, _)| line);
        let with_it = |line: &&Arc<[u8]>| {
            let names = self.queues.get(*line).and_then(|queue| queue.kind.names());
            names.is_some_and(|names| names.iter().any(|name| **name == *resource))
        };
        own.into_iter()
            .chain(self.several.iter().filter(with_it))
            .cloned()
            .collect()
    }

    /// The process to notify when a non-plain lock is released. Skips this process unless one of its threads is waiting.
    pub(crate) fn whom_to_notify(&mut self, key: &Key) -> Notify {
        let names = key.all_names();
        let lines: Vec<_> = names.iter().flat_map(|name| self.lines(name)).collect();
        let waits = lines.iter().any(|line| self.front(line).is_some());
        match self.subscriptions.channel().filter(|_| !waits) {
            Some(channel) => Notify::FirstBut(channel),
            None => Notify::First,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::fixtures::key;
    use crate::protocol::commands::kind::Kind;
    use crate::protocol::commands::node_queue::{Channel, QueueTurn};
    use crate::protocol::quorum::attempt::Rejection;
    use crate::protocol::waiting::wait_queue::tests::{MS, NAME, World, several, world};
    use crate::protocol::waiting::waiter::{AcquireRequest, WaitFailure, WaiterAction};

    #[test]
    fn a_release_hands_off_in_the_order_of_arrival_and_skips_waiters_that_left() {
        let mut world = world();
        let waiters: Vec<u64> = (0..5).map(|thread| world.join(thread, None)).collect();
        world.give_up(waiters[2]);
        let mut handed_off = Vec::new();
        while let Some((waiter, thread)) = world.release() {
            handed_off.push(thread);
            world.acquired(waiter);
        }
        assert_eq!(handed_off, [0, 1, 3, 4]);
        assert!(world.queues.queues.is_empty(), "nothing is kept of it");
    }

    /// The process may be in the queue still: the waiter that got the lock may have enqueued before.
    #[test]
    fn a_process_without_waiters_does_not_notify_itself() {
        let mut world = world();
        let channel = Channel::new([1; 16]);
        let waiter = world.join(0, None);
        let notifies = |world: &mut World| match world.queues.hand_off(NAME, world.now.mono) {
            HandOff::Notify(notify) => Some(notify),
            HandOff::To { .. } => None,
        };
        world.pass(50 * MS);
        world.step(waiter, false);
        assert_eq!(notifies(&mut world), Some(Notify::First), "it is trying");
        let failure = (WaitFailure::Busy(None), MS);
        world
            .queues
            .failed(waiter, failure, &Rejection::default(), world.now.mono);
        assert_eq!(notifies(&mut world), None);
        world.acquired(waiter);
        assert_eq!(notifies(&mut world), Some(Notify::FirstBut(channel)));
        // While the process is subscribed, it may be notified.
        let waiter = world.join(0, None);
        world.queues.subscriptions.subscribed(0);
        world.acquired(waiter);
        assert!(world.queues.queues.is_empty() && !world.queues.none_waits());
        assert!(!world.receives());
        assert!(world.queues.none_waits());
    }

    #[test]
    fn after_some_hand_offs_or_some_time_another_process_is_notified() {
        let mut world = world();
        for thread in 0..100 {
            world.join(thread, None);
        }
        let run = |world: &mut World| std::iter::from_fn(|| world.release()).count();
        assert_eq!([run(&mut world), run(&mut world)], [16, 16]);
        assert!(world.release().is_some());
        world.pass(20 * MS);
        assert_eq!(world.release(), None);
    }

    #[test]
    fn there_is_no_hand_off_while_the_front_tries_or_after_its_end() {
        let mut world = world();
        let front = world.join(0, Some(100 * MS));
        assert!(matches!(world.step(front, false), WaiterAction::Try(None)));
        assert_eq!(world.release(), None);
        let rejection = Rejection::default();
        let failure = (WaitFailure::Busy(None), MS);
        world
            .queues
            .failed(front, failure, &rejection, world.now.mono);
        world.pass(100 * MS);
        assert_eq!(world.release(), None);
        assert!(matches!(
            world.step(front, false),
            WaiterAction::GiveUp(WaitFailure::Busy(_))
        ));
    }

    #[test]
    fn a_waiter_whose_hand_off_failed_is_first_again() {
        let mut world = world();
        let [first, second] = [0, 1].map(|thread| world.join(thread, None));
        assert_eq!(world.release(), Some((first, 0)));
        let (rejection, failure) = (Rejection::default(), (WaitFailure::Busy(None), MS));
        world
            .queues
            .failed(first, failure, &rejection, world.now.mono);
        assert!(matches!(world.step(second, true), WaiterAction::Park(_)));
        assert_eq!(world.release(), Some((first, 0)));
        assert_eq!(world.release(), Some((second, 1)));
    }

    #[test]
    fn two_threads_that_take_turns_notify_another_process_too() {
        let mut world = world();
        world.join(0, None);
        let turns = std::iter::from_fn(|| {
            let (waiter, thread) = world.release()?;
            world.acquired(waiter);
            // The thread that released the lock wants it again at once.
            world.join(1 - thread, None);
            Some(())
        });
        assert_eq!(turns.take(100).count(), 16);
    }

    /// Otherwise two threads that pass a lock to and fro, with pauses, would keep it from all other processes.
    #[test]
    fn a_row_of_hand_offs_goes_on_for_the_ttl_of_the_lock_though_no_thread_waits() {
        for (pause, goes_on) in [(2999, true), (3000, false)] {
            let mut world = world();
            let ttl = Ttl::new(3000 * MS).unwrap();
            for thread in [0, 1] {
                let request = AcquireRequest {
                    ttl,
                    ..world.request(None)
                };
                world.join_as(thread, request);
                if thread == 0 {
                    let (first, _) = world.release().unwrap();
                    world.acquired(first);
                    world.pass(pause * MS);
                }
            }
            assert_eq!(world.release().is_none(), goes_on, "{pause}");
        }
    }

    #[test]
    fn a_process_that_was_notified_is_not_forestalled_by_a_hand_off() {
        let mut world = world();
        world.join(0, None);
        let (name, now) = (Arc::from(NAME), world.now.mono);
        world.queues.notified_elsewhere(&name, now);
        assert_eq!(world.release(), None);
    }

    /// The front tries at once, unless another process was notified: that has a head start. A fair waiter goes on sleeping
    /// then: it is notified when it is next.
    #[test]
    fn a_release_wakes_the_front_which_leaves_a_process_that_was_notified_a_head_start() {
        for (fair, notified, expected) in [
            (false, false, "tries"),
            (false, true, "gives a head start"),
            (true, false, "tries"),
            (true, true, "sleeps on"),
        ] {
            for line in [NAME, b"a, b"] {
                let mut world = world();
                let turn = fair.then(|| QueueTurn::new(50 * MS));
                let names = several(&[NAME, b"b"]);
                let kind = if line == NAME { Kind::Plain } else { names };
                let request = AcquireRequest {
                    turn,
                    kind,
                    ..world.request(None)
                };
                let (line, now) = (Arc::from(line), world.now);
                let waiter = world.queues.join(&line, 0, request, None, now);
                for _ in 0..2 {
                    world.step(waiter, false);
                    let failure = (WaitFailure::Busy(None), MS);
                    let rejection = Rejection::default();
                    world.queues.failed(waiter, failure, &rejection, now.mono);
                }
                world.queues.woken.clear();
                world
                    .queues
                    .released(&Arc::from(NAME), notified, world.now.mono);
                assert_eq!(world.queues.woken, [0]);
                let does = match world.step(waiter, false) {
                    WaiterAction::Try(_) => "tries",
                    WaiterAction::Park(until) if until <= now.mono + 2 * MS => "gives a head start",
                    _ => "sleeps on",
                };
                assert_eq!(does, expected, "{fair}, {notified}, {line:?}");
            }
        }
    }

    #[test]
    fn each_thread_that_waits_for_a_name_leaves_the_head_start() {
        let mut world = world();
        let alone = world.join(0, None);
        let with_b = world.join_for(b"a, b", 1, several(&[NAME, b"b"]));
        let (name, now) = (Arc::from(NAME), world.now.mono);
        world.queues.released(&name, true, now);
        assert_eq!(world.queues.woken, [0, 1]);
        for waiter in [alone, with_b] {
            let step = world.step(waiter, false);
            assert!(matches!(step, WaiterAction::Park(_)), "{step:?}");
        }
        // The one that comes next was not there when the process was notified.
        let next = world.join_for(NAME, 2, Kind::Plain);
        world.acquired(alone);
        assert!(matches!(world.step(next, false), WaiterAction::Try(_)));
    }

    /// The thread must be woken for its lock alone, and sleep until it is.
    #[test]
    fn a_waiter_takes_over_the_try_that_a_release_has_made_for_it_once_that_is_under_way() {
        let mut world = world();
        let waiter = world.join(0, None);
        assert!(world.release().is_some());
        let sleeps = |world: &mut World| match world.step(waiter, false) {
            WaiterAction::Park(until) => until > world.now.mono + 60_000 * MS,
            _ => false,
        };
        assert!(sleeps(&mut world));
        let ttl = Ttl::new(1000 * MS).unwrap();
        let attempt = Attempt::new(Arc::from(NAME), ttl, None, None, 50 * MS);
        world.queues.handed_off(waiter, attempt);
        let step = world.step(waiter, false);
        assert!(matches!(step, WaiterAction::HandedOff(_)), "{step:?}");
        assert!(sleeps(&mut world), "it has its attempt");
    }

    #[test]
    fn a_thread_that_comes_after_another_process_was_notified_gives_it_a_head_start_for_a_second() {
        for (pause, waits) in [(999, true), (1000, false)] {
            let mut world = world();
            let (name, now) = (Arc::from(NAME), world.now.mono);
            world.queues.released(&name, true, now);
            world.pass(pause * MS);
            let now = world.now.mono;
            assert_eq!(world.queues.has_queue(NAME, now), waits, "{pause}");
            let waiter = world.join(0, None);
            let step = world.step(waiter, false);
            assert_eq!(matches!(step, WaiterAction::Park(_)), waits, "{pause}");
        }
    }

    #[test]
    fn the_end_of_a_lock_notifies_this_process_only_if_one_of_its_threads_waits_for_the_name() {
        let (channel, names) = (Channel::new([1; 16]), several(&[NAME, b"b"]));
        let first_but = Notify::FirstBut(channel);
        for (kind, line, expected) in [
            (Kind::Plain, NAME, Notify::First),
            (names, b"a, b", Notify::First),
            (several(&[b"b", b"c"]), b"b, c", first_but),
            (Kind::Plain, b"b", first_but),
        ] {
            let mut world = world();
            let key = || key(NAME).of_kind(Kind::Read { waited: 0 });
            assert_eq!(world.queues.whom_to_notify(&key()), first_but);
            world.join_for(line, 0, kind);
            let notify = world.queues.whom_to_notify(&key());
            assert_eq!(notify, expected, "{line:?}");
        }
    }
}
