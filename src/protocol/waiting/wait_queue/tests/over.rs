//! When a waiter stops asking, and what it tells the nodes until then.

use super::*;
use crate::protocol::commands::lock_info::LockInfo;

/// The time at which a waiter is to look again, from now on, or what else it does.
fn parks(world: &World, step: &WaiterAction) -> Option<Duration> {
    match step {
        WaiterAction::Park(until) => Some(*until - world.now.mono),
        _ => None,
    }
}

#[test]
fn a_waiter_whose_time_ended_behind_others_asks_once_when_it_is_the_first() {
    let mut world = world();
    let first = world.join(0, None);
    let (request, now) = (world.request(Some(10 * MS)), world.now);
    let second = world.queues.join(&Arc::from(NAME), 1, request, None, now);
    world.pass(9 * MS);
    let step = world.step(second, true);
    assert_eq!(parks(&world, &step), Some(MS));
    world.acquired(first);
    world.pass(MS);
    // A thread of this process may hold the lock: it asks all the same.
    assert!(matches!(world.step(second, true), WaiterAction::Try(None)));
    world.denied(second, &Rejection::default());
    assert!(matches!(world.step(second, true), WaiterAction::GiveUp(_)));
}

/// A release in this process has shown that the lock is free, but the call must end.
#[test]
fn a_waiter_whose_time_is_over_does_not_try_again() {
    let mut world = world();
    let waiter = world.join(0, Some(10 * MS));
    world.pass(10 * MS);
    let (name, now) = (Arc::from(NAME), world.now.mono);
    world.queues.released(&name, false, now);
    assert!(matches!(world.step(waiter, true), WaiterAction::GiveUp(_)));
}

#[test]
fn a_fair_waiter_asks_once_when_its_time_is_over_before_it_is_subscribed() {
    let mut world = world();
    let first = world.join_fair(0, None);
    for _ in 0..2 {
        world.enqueues_in_order(first);
        world.denied(first, &Rejection::default());
        world.step(first, false);
        world.pass(50 * MS);
    }
    world.acquired(first);
    let waiter = world.join_fair(1, Some(5 * MS));
    let step = world.step(waiter, false);
    assert_eq!(parks(&world, &step), Some(5 * MS));
    world.pass(5 * MS);
    world.enqueues_in_order(waiter);
}

#[test]
fn a_fair_waiter_without_time_goes_on_after_a_split_vote_alone_and_for_a_node_timeout() {
    let info = |holder, left| LockInfo {
        holder,
        left,
        ..LockInfo::default()
    };
    let (one, other) = (info(Some(1), None), info(Some(2), None));
    let reserved = info(None, Some(10 * MS));
    for (infos, granted, passes, goes_on) in [
        (vec![], 1, 0, true),
        (vec![one.clone(), other.clone()], 1, 0, true),
        (vec![], 1, 49, true),
        (vec![], 1, 50, false),
        // Without a vote there is nothing to try again for.
        (vec![one.clone(), other], 0, 0, false),
        (vec![one.clone(), one], 1, 0, false),
        (vec![reserved], 1, 0, false),
    ] {
        let mut world = world();
        let channel = Some(Channel::new([1; 16]));
        world.queues = WaitQueues::new(3, channel, 50 * MS, 7);
        let waiter = world.join_fair(1, Some(Duration::ZERO));
        world.enqueues_in_order(waiter);
        let case = format!("{infos:?}, {granted}, {passes}");
        let rejection = Rejection {
            remarks: infos.into(),
            granted,
        };
        world.denied(waiter, &rejection);
        world.pass(passes * MS);
        let step = world.step(waiter, false);
        let ends = matches!(step, WaiterAction::GiveUp(_));
        assert_eq!(!ends, goes_on, "{case}: {step:?}");
    }
}

#[test]
fn a_fair_waiter_whose_votes_are_split_again_and_again_gives_up_behind_a_node_timeout() {
    let mut world = world();
    let waiter = world.join_fair(1, Some(Duration::ZERO));
    let split = Rejection {
        granted: 1,
        ..Rejection::default()
    };
    let (begun, mut tries) = (world.now.mono, 0);
    for _ in 0..1000 {
        match world.step(waiter, false) {
            WaiterAction::Park(until) => world.pass(until - world.now.mono),
            WaiterAction::Try(_) => {
                tries += 1;
                world.denied(waiter, &split);
            }
            _ => break,
        }
    }
    let took = world.now.mono - begun;
    assert!(took <= 50 * MS && tries > 2, "{took:?}, {tries}");
    assert!(matches!(world.step(waiter, false), WaiterAction::GiveUp(_)));
}

#[test]
fn a_pause_behind_which_there_is_no_time_for_a_try_ends_the_wait_unless_a_thread_here_has_the_lock()
{
    let slow = || WaitFailure::TooSlow;
    for (failure, wait, held_here, expected) in [
        (slow(), 51, false, Some(50)),
        (slow(), 50, false, None),
        (slow(), 20, false, None),
        // A thread here may hand the lock off.
        (slow(), 20, true, Some(20)),
        (refused(false), 20, false, None),
        // The holder's release may come in time.
        (WaitFailure::Busy(None), 20, false, Some(20)),
    ] {
        let mut world = world();
        let waiter = world.join(0, Some(wait * MS));
        assert!(matches!(world.step(waiter, false), WaiterAction::Try(_)));
        let case = format!("{failure:?}, {wait}, {held_here}");
        let (rejection, now) = (Rejection::default(), world.now.mono);
        world
            .queues
            .failed(waiter, (failure, 50 * MS), &rejection, now);
        let step = world.step(waiter, held_here);
        let expected = expected.map(|expected| expected * MS);
        assert_eq!(parks(&world, &step), expected, "{case}");
        // A waiter that is about to leave is not handed the lock.
        assert_eq!(world.release().is_some(), expected.is_some(), "{case}");
    }
}

/// The queue on a node goes by the time of arrival, which all nodes are told alike, and is kept while waiters look again.
#[test]
fn nodes_are_told_since_when_a_process_waits_and_keep_its_place_for_longer_than_it_sleeps() {
    for nodes in [1, 3] {
        let mut world = world();
        world.queues = WaitQueues::new(nodes, Some(Channel::new([1; 16])), 50 * MS, 7);
        let waiter = world.join_fair(1, None);
        world.pass(20 * MS);
        let entry = world.enqueues_in_order(waiter);
        let arrived = world.now.wall - 20 * MS;
        let arrived = arrived.duration_since(std::time::UNIX_EPOCH).unwrap();
        // With one node, only its own clock counts.
        let arrived = if nodes == 1 {
            0
        } else {
            node_queue::millis(arrived)
        };
        assert_eq!((entry.arrived, entry.waited), (arrived, 20), "{nodes}");
        let WaiterState::Front(poller) = &world.queues.waiters[&waiter].state else {
            panic!("no other waits");
        };
        let sleeps = node_queue::millis(poller.longest_poll());
        assert!(entry.lease >= 2 * sleeps, "{} ms", entry.lease);
    }
}

#[test]
fn a_waiter_whose_hand_off_failed_while_the_front_tries_is_the_next_and_keeps_the_news() {
    let mut world = world();
    let [first, front] = [0, 1].map(|thread| world.join(thread, None));
    assert_eq!(world.release(), Some((first, 0)));
    assert!(matches!(world.step(front, false), WaiterAction::Try(_)));
    let now = world.now.mono;
    world.queues.hand_off_failed(first, now);
    assert_eq!(world.queues.woken, [0]);
    let step = world.step(first, false);
    assert!(matches!(step, WaiterAction::Park(_)), "the front tries");
    world.acquired(front);
    assert_eq!(world.release(), Some((first, 0)));
    world.queues.hand_off_failed(first, now);
    // The release has notified nobody.
    assert!(world.give_up(first));
}

#[test]
fn a_thread_that_comes_soon_after_another_process_was_waited_for_enters_the_queues_at_once() {
    for (pause, enqueues) in [(999, true), (1000, false)] {
        let mut world = world();
        let front = world.join(0, None);
        for _ in 0..2 {
            world.step(front, false);
            world.denied(front, &Rejection::default());
        }
        world.step(front, false);
        world.queues.subscriptions.subscribed(0);
        assert!(matches!(world.step(front, false), WaiterAction::Try(_)));
        world.denied(front, &Rejection::default());
        world.acquired(front);
        world.pass(pause * MS);
        let next = world.join(1, None);
        let step = world.step(next, false);
        assert_eq!(
            matches!(step, WaiterAction::Try(Some(_))),
            enqueues,
            "{pause}"
        );
    }
}

#[test]
fn subscriptions_wake_those_who_wait_for_them_when_they_begin_fail_or_end() {
    for event in [
        SubscriberEvent::Opened,
        SubscriberEvent::Failed,
        SubscriberEvent::Ended,
    ] {
        for enqueued in [false, true] {
            let mut world = world();
            let now = world.now;
            let request = world.request(None);
            let waiter = match enqueued {
                true => world.join_fair(0, None),
                false => world.queues.join(&Arc::from(NAME), 0, request, None, now),
            };
            world.join(1, None);
            world.step(waiter, false);
            if enqueued {
                world.denied(waiter, &Rejection::default());
                world.step(waiter, false);
            }
            world.queues.woken.clear();
            let event = match event {
                SubscriberEvent::Opened => SubscriberEvent::Opened,
                SubscriberEvent::Failed => SubscriberEvent::Failed,
                _ => SubscriberEvent::Ended,
            };
            let case = format!("{event:?}, {enqueued}");
            world.queues.subscriber(0, event, now.mono);
            let woken: &[u32] = if enqueued { &[0] } else { &[] };
            assert_eq!(world.queues.woken, woken, "{case}");
        }
    }
}

#[test]
fn a_subscriber_that_nobody_needs_any_longer_ends_before_it_subscribes() {
    let mut world = world();
    let now = world.now.mono;
    let task = world.queues.subscriber(0, SubscriberEvent::Begins, now);
    assert!(matches!(task, SubscriberTask::End));
    world.queues.subscriptions.need(now);
    let task = world.queues.subscriber(0, SubscriberEvent::Begins, now);
    assert!(matches!(task, SubscriberTask::Open(_)));
}

#[test]
fn a_subscriber_that_could_not_be_started_is_started_again_while_a_waiter_tries_without_it() {
    let mut world = world();
    let waiter = world.join(0, None);
    for _ in 0..2 {
        world.step(waiter, false);
        world.denied(waiter, &Rejection::default());
    }
    assert!(!world.queues.take_to_start().is_empty());
    let now = world.now.mono;
    world.queues.subscriber(0, SubscriberEvent::Ended, now);
    for (pause, starts) in [(0, false), (500, true)] {
        world.pass(pause * MS);
        let step = world.step(waiter, false);
        assert!(matches!(step, WaiterAction::Try(Some(_))), "{step:?}");
        assert_eq!(!world.queues.take_to_start().is_empty(), starts, "{pause}");
        world.denied(waiter, &Rejection::default());
    }
}
