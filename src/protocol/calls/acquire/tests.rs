//! A call for one name, asked step by step.

use super::*;
use crate::errors::node_errors::NodeErrors;
use crate::proof::fixtures::{self, MS, NODE_TIMEOUT, later};
use crate::protocol::calls::process_services::one_thread::OneThread;
use crate::protocol::commands::kind::Kind;
use crate::protocol::commands::node_queue::Channel;
use crate::protocol::quorum::answer::Outcome;
use crate::protocol::quorum::attempt::Tried;
use crate::protocol::waiting::wait_queue::WaitQueues;
use crate::values::arithmetic::Deadline;
use crate::values::node_set::NodeSet;

fn request(end: Option<Instant>) -> AcquireRequest {
    AcquireRequest {
        kind: Kind::Plain,
        ttl: fixtures::ttl(3000 * MS),
        label: None,
        end,
        must_ask: false,
        retry_delay: (50 * MS, 250 * MS),
        turn: None,
    }
}

fn call(request: AcquireRequest, now: Point) -> Acquire<u32> {
    Acquire::new(Arc::from(&b"a"[..]), request, 3, NODE_TIMEOUT, now)
}

/// The answer of three nodes, of which so many granted, and the others denied.
fn denied(granted: usize, now: Point) -> Answer {
    let mut answer = fixtures::answer(Outcome::No, granted, now);
    (granted..3).for_each(|node| answer.tally.deny(node));
    answer
}

/// A process in which a thread waits for the lock.
fn contended(now: Point) -> OneThread {
    let mut services = OneThread::new();
    let mut first = call(request(None), now);
    while let CallStep::Try(_) = first.next(&mut services, now) {
        first.answered(denied(0, now), &mut services, now);
    }
    assert!(first.waits() && first.is_in_queue());
    services
}

#[test]
fn a_call_joins_the_queue_if_there_is_one_it_may_wait_and_its_process_has_any() {
    let now = Point::now();
    let turn = Some(QueueTurn::new(NODE_TIMEOUT));
    // Whether another thread waits, whether no lock has a queue, whether there is no time to wait, and a fair turn.
    for (queue, is_idle, over, turn, joins) in [
        (false, false, false, None, false),
        (true, false, false, None, true),
        (true, true, false, None, false),
        (true, false, true, None, false),
        (true, true, true, None, false),
        (false, false, false, turn, true),
        (false, true, true, turn, true),
    ] {
        let mut services = match queue {
            true => contended(now),
            false => OneThread::new(),
        };
        services.none_waits = is_idle;
        let end = now.mono + if over { Duration::ZERO } else { 1000 * MS };
        let mut call = call(
            AcquireRequest {
                turn,
                ..request(Some(end))
            },
            now,
        );
        assert!(!call.is_in_queue());
        let step = call.next(&mut services, now);
        let waits = joins && queue;
        assert_eq!(
            matches!(step, CallStep::Park(_)),
            waits,
            "{queue} {is_idle} {over}"
        );
        assert_eq!(
            matches!(step, CallStep::Try(_)),
            !waits,
            "{queue} {is_idle} {over}"
        );
        assert_eq!(call.waits(), waits, "{queue} {is_idle} {over}");
        assert_eq!(call.is_in_queue(), joins, "{queue} {is_idle} {over}");
    }
}

#[test]
fn after_a_split_vote_a_call_sleeps_until_its_pause_is_over() {
    let (begun, mut services) = (Point::now(), OneThread::new());
    let mut call = call(request(None), begun);
    assert!(matches!(call.next(&mut services, begun), CallStep::Try(_)));
    let now = later(begun, 3 * MS);
    assert_eq!(call.took(now), 3 * MS);
    call.answered(denied(1, begun), &mut services, now);
    let CallStep::Pause(until) = call.next(&mut services, now) else {
        panic!("other contenders may have met the same split");
    };
    assert_eq!(call.took(later(now, MS)), Duration::ZERO);
    let pause = until - now.mono;
    let early = later(now, pause - Duration::from_nanos(1));
    assert!(matches!(call.next(&mut services, early), CallStep::Pause(again) if again == until));
    let end = later(now, pause);
    assert!(matches!(call.next(&mut services, end), CallStep::Try(_)));
    assert!(!call.waits());
    assert_eq!(call.attempts(), 1, "of two tries");
    call.answered(denied(0, end), &mut services, end);
    assert!(matches!(call.next(&mut services, end), CallStep::Try(_)));
    assert_eq!(call.attempts(), 2);
}

#[test]
fn a_program_that_may_cancel_is_asked_first_and_while_it_waits() {
    let now = Point::now();
    let end = now.mono + 1000 * MS;
    for must_ask in [false, true] {
        let mut services = contended(now);
        let mut call = call(
            AcquireRequest {
                must_ask,
                ..request(Some(end))
            },
            now,
        );
        for _ in 0..2 {
            if must_ask {
                assert!(matches!(
                    call.next(&mut services, now),
                    CallStep::AskProgram
                ));
            }
            let CallStep::Park(until) = call.next(&mut services, now) else {
                panic!("another thread is before it");
            };
            assert_eq!(until, if must_ask { now.mono + ASK } else { end });
        }
    }
}

/// A single attempt begins without a question.
#[test]
fn a_program_is_asked_while_first_connections_are_waited_for_and_ends_that_or_goes_on() {
    for wait in [0, 9000] {
        let (began, mut services) = (Point::now(), OneThread::new());
        let wanted = AcquireRequest {
            must_ask: true,
            ..request(Some(began.mono + wait * MS))
        };
        let mut call = call(wanted, began);
        let mut now = began;
        for round in 0..3 {
            if round > 0 || wait > 0 {
                assert!(matches!(
                    call.next(&mut services, now),
                    CallStep::AskProgram
                ));
            }
            let CallStep::Try(op) = call.next(&mut services, now) else {
                panic!("the program goes on");
            };
            let first = op.first_wait.unwrap();
            assert_eq!((first.since, first.asks), (began.mono, now.mono + ASK));
            now = later(now, ASK);
            let mut answer = fixtures::answer(fixtures::unavailable(false, false), 0, now);
            if let Outcome::Unavailable { unsent, .. } = &mut answer.outcome {
                *unsent = true;
            }
            call.answered(answer, &mut services, now);
            assert_eq!(call.attempts(), 1);
        }
        assert!(matches!(
            call.next(&mut services, now),
            CallStep::AskProgram
        ));
        call.cancel(&mut services);
        let step = call.next(&mut services, now);
        assert!(matches!(step, CallStep::Done(Err(CallEnd::Cancelled))));
    }
}

#[test]
fn a_lock_that_came_too_late_is_released_and_given_to_nobody() {
    let (now, mut services) = (Point::now(), OneThread::new());
    let mut call = call(request(Some(now.mono)), now);
    assert!(matches!(call.next(&mut services, now), CallStep::Try(_)));
    let late = later(now, 3000 * MS);
    let granted = fixtures::answer(Outcome::Yes(NodeSet::first(3)), 3, now);
    call.answered(granted, &mut services, late);
    assert!(matches!(
        call.next(&mut services, late),
        CallStep::Release(_)
    ));
    let failed = call.next(&mut services, late);
    assert!(matches!(
        failed,
        CallStep::Done(Err(CallEnd::Failed(WaitFailure::TooSlow)))
    ));
}

#[test]
fn a_call_that_leaves_the_queues_on_the_nodes_has_its_place_here_until_that_is_written() {
    let (now, mut services) = (Point::now(), OneThread::new());
    let channel = Some(Channel::new([1; 16]));
    services.queues = WaitQueues::new(3, channel, NODE_TIMEOUT, 7);
    let turn = Some(QueueTurn::new(NODE_TIMEOUT));
    let fair = AcquireRequest {
        turn,
        ..request(None)
    };
    let mut call = call(fair, now);
    assert!(matches!(call.next(&mut services, now), CallStep::Try(_)));
    call.answered(denied(0, now), &mut services, now);
    call.cancel(&mut services);
    assert!(matches!(call.next(&mut services, now), CallStep::Run(_)));
    assert!(call.is_in_queue());
    call.answered(Answer::none(now.mono), &mut services, now);
    assert!(!call.is_in_queue());
    assert_eq!(services.queues.waiters(), 0);
    let step = call.next(&mut services, now);
    assert!(matches!(step, CallStep::Done(Err(CallEnd::Cancelled))));
}

/// A call whose first try is under way.
fn trying(request: AcquireRequest, services: &mut OneThread, now: Point) -> Acquire<u32> {
    let mut call = call(request, now);
    assert!(matches!(call.next(services, now), CallStep::Try(_)));
    call
}

/// A release in this process looks for it there.
#[test]
fn a_plain_lock_counts_as_held_here_from_its_grant_on_and_not_behind_a_hand_off_that_failed() {
    let now = Point::now();
    for (kind, granted, handed_off, held) in [
        (Kind::Plain, true, false, 1),
        // The release that handed it off has counted it.
        (Kind::Plain, true, true, 1),
        (Kind::Plain, false, true, 0),
        (Kind::Plain, false, false, 0),
        (Kind::Read { waited: 0 }, true, false, 0),
    ] {
        let mut services = OneThread::new();
        let kind = kind.clone();
        let case = format!("{kind:?}, {granted}, {handed_off}");
        let of_kind = AcquireRequest {
            kind,
            ..request(None)
        };
        let mut call = trying(of_kind, &mut services, now);
        if handed_off {
            services.held_here.add(b"a");
        }
        let deadline = Deadline::new(now, fixtures::ttl(3000 * MS).validity());
        let tried = match granted {
            true => Tried::Granted(fixtures::key(b"a"), deadline),
            false => Tried::Expired,
        };
        call.attempted((tried, handed_off, false), &mut services, now);
        assert_eq!(services.held_here.counted(b"a"), held, "{case}");
    }
}

/// The longest pause, or a little more than until enough nodes vote again.
#[test]
fn after_an_attempt_without_a_quorum_a_call_pauses_no_longer_than_until_nodes_vote() {
    let now = Point::now();
    let unavailable = |wait: Option<u32>| {
        let wait = wait.map(|wait| wait * MS);
        Tried::Unavailable(NodeErrors::new(Vec::new(), wait))
    };
    for (answered, wait, pause) in [
        (false, None, 250),
        (true, None, 250),
        (true, Some(100), 150),
        (true, Some(400), 250),
    ] {
        for turn in [None, Some(QueueTurn::new(NODE_TIMEOUT))] {
            let mut services = OneThread::new();
            let request = AcquireRequest {
                turn,
                ..request(None)
            };
            let mut call = trying(request, &mut services, now);
            let tried = match answered {
                true => unavailable(wait),
                false => Tried::Expired,
            };
            call.attempted((tried, false, false), &mut services, now);
            let CallStep::Park(until) = call.next(&mut services, now) else {
                panic!("it goes on waiting");
            };
            assert_eq!(until - now.mono, pause * MS, "{wait:?}, {turn:?}");
        }
    }
}

#[test]
fn a_call_ends_with_its_first_attempt_if_its_time_is_over_or_waiting_is_useless() {
    let now = Point::now();
    for (over, hopeless, ends) in [
        (false, false, false),
        (false, true, true),
        (true, false, true),
        (true, true, true),
    ] {
        let mut services = OneThread::new();
        let end = now.mono + if over { Duration::ZERO } else { 1000 * MS };
        let mut call = trying(request(Some(end)), &mut services, now);
        let errors = NodeErrors::new(Vec::new(), None);
        let errors = if hopeless { errors.for_good() } else { errors };
        let tried = Tried::Unavailable(errors);
        call.attempted((tried, false, false), &mut services, now);
        let step = call.next(&mut services, now);
        let failed = matches!(step, CallStep::Done(Err(CallEnd::Failed(_))));
        assert_eq!(failed, ends, "{over}, {hopeless}");
    }
}

/// Readers and writers that have waited longer go first, and a thread that waited for its turn here has waited, too.
#[test]
fn an_attempt_counts_its_wait_from_the_call_on_unless_it_was_the_first_thing_that_the_call_did() {
    let (begun, turn) = (Point::now(), Some(QueueTurn::new(NODE_TIMEOUT)));
    let now = later(begun, 30 * MS);
    for (kind, turn, since) in [
        (Kind::Plain, None, now),
        (Kind::Plain, turn, begun),
        (Kind::Read { waited: 0 }, None, begun),
    ] {
        let mut services = OneThread::new();
        let case = format!("{kind:?}, {turn:?}");
        let request = AcquireRequest {
            kind,
            turn,
            ..request(None)
        };
        let mut call = call(request, begun);
        let CallStep::Try(op) = call.next(&mut services, now) else {
            panic!("no other waits");
        };
        assert_eq!(op.since, Some(since.mono), "{case}");
    }
}
