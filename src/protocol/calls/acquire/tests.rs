//! A call for one name, asked step by step.

use super::*;
use crate::proof::fixtures::{self, MS, NODE_TIMEOUT, later};
use crate::protocol::calls::process_services::one_thread::OneThread;
use crate::protocol::commands::kind::Kind;
use crate::protocol::quorum::answer::Outcome;
use crate::values::arithmetic::NodeSet;

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
    (granted..3).for_each(|node| answer.tally.refuse(node));
    answer
}

/// A process in which a thread waits for the lock.
fn contended(now: Point) -> OneThread {
    let mut process = OneThread::new();
    let mut first = call(request(None), now);
    while let Step::Try(_) = first.next(&mut process, now) {
        first.answered(denied(0, now), &mut process, now);
    }
    assert!(first.waits() && first.is_in_queue());
    process
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
        let mut process = match queue {
            true => contended(now),
            false => OneThread::new(),
        };
        process.is_idle = is_idle;
        let end = now.mono + if over { Duration::ZERO } else { 1000 * MS };
        let mut call = call(
            AcquireRequest {
                turn,
                ..request(Some(end))
            },
            now,
        );
        assert!(!call.is_in_queue());
        let step = call.next(&mut process, now);
        let waits = joins && queue;
        assert_eq!(
            matches!(step, Step::Park(_)),
            waits,
            "{queue} {is_idle} {over}"
        );
        assert_eq!(
            matches!(step, Step::Try(_)),
            !waits,
            "{queue} {is_idle} {over}"
        );
        assert_eq!(call.waits(), waits, "{queue} {is_idle} {over}");
        assert_eq!(call.is_in_queue(), joins, "{queue} {is_idle} {over}");
    }
}

#[test]
fn after_a_split_vote_a_call_sleeps_until_its_pause_is_over() {
    let (begun, mut process) = (Point::now(), OneThread::new());
    let mut call = call(request(None), begun);
    assert!(matches!(call.next(&mut process, begun), Step::Try(_)));
    let now = later(begun, 3 * MS);
    assert_eq!(call.took(now), 3 * MS);
    call.answered(denied(1, begun), &mut process, now);
    let Step::Pause(until) = call.next(&mut process, now) else {
        panic!("other contenders may have met the same split");
    };
    assert_eq!(call.took(later(now, MS)), Duration::ZERO);
    let pause = until - now.mono;
    let early = later(now, pause - Duration::from_nanos(1));
    assert!(matches!(call.next(&mut process, early), Step::Pause(again) if again == until));
    let end = later(now, pause);
    assert!(matches!(call.next(&mut process, end), Step::Try(_)));
    assert!(!call.waits());
}

#[test]
fn a_program_that_may_cancel_is_asked_first_and_while_it_waits() {
    let now = Point::now();
    let end = now.mono + 1000 * MS;
    for must_ask in [false, true] {
        let mut process = contended(now);
        let mut call = call(
            AcquireRequest {
                must_ask,
                ..request(Some(end))
            },
            now,
        );
        for _ in 0..2 {
            if must_ask {
                assert!(matches!(call.next(&mut process, now), Step::Ask));
            }
            let Step::Park(until) = call.next(&mut process, now) else {
                panic!("another thread is before it");
            };
            assert_eq!(until, if must_ask { now.mono + ASK } else { end });
        }
    }
}

#[test]
fn a_program_is_asked_while_first_connections_are_waited_for_and_ends_that_or_goes_on() {
    let (began, mut process) = (Point::now(), OneThread::new());
    let wanted = AcquireRequest {
        must_ask: true,
        ..request(Some(began.mono))
    };
    let mut call = call(wanted, began);
    let mut now = began;
    for _ in 0..3 {
        assert!(matches!(call.next(&mut process, now), Step::Ask));
        let Step::Try(op) = call.next(&mut process, now) else {
            panic!("the program goes on");
        };
        let wait = op.first_wait.unwrap();
        assert_eq!((wait.since, wait.asks), (began.mono, now.mono + ASK));
        now = later(now, ASK);
        let mut answer = fixtures::answer(fixtures::unavailable(false, false), 0, now);
        if let Outcome::Unavailable { unsent, .. } = &mut answer.outcome {
            *unsent = true;
        }
        call.answered(answer, &mut process, now);
        assert_eq!(call.attempts(), 1);
    }
    assert!(matches!(call.next(&mut process, now), Step::Ask));
    call.cancel(&mut process);
    let step = call.next(&mut process, now);
    assert!(matches!(step, Step::Done(Err(Ended::Cancelled))));
}

#[test]
fn a_lock_that_came_too_late_is_released_and_given_to_nobody() {
    let (now, mut process) = (Point::now(), OneThread::new());
    let mut call = call(request(Some(now.mono)), now);
    assert!(matches!(call.next(&mut process, now), Step::Try(_)));
    let late = later(now, 3000 * MS);
    let granted = fixtures::answer(Outcome::Yes(NodeSet::first(3)), 3, now);
    call.answered(granted, &mut process, late);
    assert!(matches!(call.next(&mut process, late), Step::Release(_)));
    let failed = call.next(&mut process, late);
    assert!(matches!(
        failed,
        Step::Done(Err(Ended::Failed(WaitFailure::TooSlow)))
    ));
}
