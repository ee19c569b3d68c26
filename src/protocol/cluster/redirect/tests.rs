use std::sync::Arc;

use super::*;
use crate::proof::fixtures::{MS, key, ttl};
use crate::protocol::commands::kind::Kind;
use crate::protocol::commands::node_queue::{Channel, QueueEntry};
use crate::protocol::mutants::set_mutant;
use crate::values::clock;

const SLOT: u16 = 17;

/// The answer of one node that returned this error.
fn answer(error: &str, begun: Instant) -> Answer {
    answer_of(&[error], begun)
}

/// The answer of nodes that returned these errors in this order.
fn answer_of(errors: &[&str], begun: Instant) -> Answer {
    let mut answer = Answer::none(begun);
    for (node, error) in errors.iter().enumerate() {
        answer.tally.fail(node);
        let unnamed = || (*error == "unnamed").then(|| Redirection::unnamed(&"h:1".into()));
        let cause = match Redirection::of(error, &"h:1".into()).or_else(unnamed) {
            Some(redirection) => Cause::Redirected(redirection.into()),
            None => Cause::Closed((*error).into()),
        };
        answer.remarks.make().causes.push((node, Arc::new(cause)));
    }
    answer
}

fn waited(action: Action, nodes: usize, now: Instant) -> Redirect {
    Redirect::waited(
        Op::new(action, key(b"a")),
        SLOT,
        nodes,
        (now, now + 5000 * MS),
    )
}

/// Where an operation goes after this answer, and how many releases it leaves then.
fn next(redirect: &mut Redirect, answer: &Answer, now: Instant) -> String {
    match redirect.next(answer, now) {
        NextHop::Nowhere => format!("nowhere, {} owed", redirect.debts(answer).len()),
        NextHop::Owner { op, pause } => {
            assert!(op.named.is_none());
            format!("owner after {pause:?}")
        }
        NextHop::Importer {
            op,
            pause,
            node,
            to,
        } => {
            assert_eq!(op.named.map(|named| named.server).as_ref(), Some(&to));
            format!("importer {node} {} after {pause:?}", to.1)
        }
    }
}

#[test]
fn an_operation_goes_where_its_key_is() {
    let now = clock::instant();
    let (acquire, release) = (
        Action::Acquire(ttl(MS * 900)),
        Action::Release(Notify::None),
    );
    let extend = Action::Extend(ttl(MS * 900), ttl(MS * 900));
    for (action, nodes, error, later, expected) in [
        (&acquire, 1, "MOVED 17 h:2", 1, "owner after 0ns"),
        (&acquire, 1, "ASK 17 h:2", 1, "importer 0 2 after 0ns"),
        // The owner has no name: the map has its address. A server that only gets the slot is in no map.
        (&acquire, 1, "MOVED 17 ?:2", 1, "owner after 0ns"),
        (&acquire, 1, "ASK 17 ?:2", 1, "nowhere, 0 owed"),
        (&release, 3, "ASK 17 ?:2", 1, "nowhere, 1 owed"),
        // The answer is too old to be relied on.
        (&acquire, 1, "ASK 17 h:2", 1001, "owner after 0ns"),
        // The connection leads to another server than the one that was named.
        (&acquire, 1, "unnamed", 1, "owner after 0ns"),
        // A plain acquire has no other keys.
        (&acquire, 1, "TRYAGAIN", 1, "nowhere, 0 owed"),
        (&acquire, 1, "MOVED 18 h:2", 1, "nowhere, 0 owed"),
        (&acquire, 1, "MOVED 17", 1, "nowhere, 0 owed"),
        (&acquire, 1, "closed", 1, "nowhere, 0 owed"),
        // The other nodes' votes are undone: a new token is due.
        (&acquire, 3, "MOVED 17 h:2", 1, "nowhere, 0 owed"),
        (&extend, 3, "MOVED 17 h:2", 1, "owner after 0ns"),
        (&extend, 3, "ASK 17 h:2", 1, "nowhere, 0 owed"),
        (&release, 3, "MOVED 17 h:2", 1, "owner after 0ns"),
        (&release, 3, "ASK 17 h:2", 1, "nowhere, 1 owed"),
        (&release, 1, "unnamed", 1, "owner after 0ns"),
        (&release, 1, "closed", 1, "nowhere, 0 owed"),
    ] {
        let mut redirect = waited(action.clone(), nodes, now);
        let goes = next(&mut redirect, &answer(error, now), now + later * MS);
        assert_eq!(goes, expected, "{action:?}, {nodes}, {error}, {later}");
    }
}

/// The nodes answer in any order.
#[test]
fn one_redirect_that_can_be_followed_is_enough_whichever_came_first() {
    let now = clock::instant();
    let [moved, asks] = ["MOVED 17 h:2", "ASK 17 h:3"];
    for errors in [[moved, asks], [asks, moved]] {
        let mut redirect = waited(Action::Extend(ttl(MS * 900), ttl(MS * 900)), 3, now);
        let goes = next(&mut redirect, &answer_of(&errors, now), now);
        assert_eq!(goes, "owner after 0ns", "{errors:?}");
    }
}

#[test]
fn a_question_beside_the_locks_is_followed_as_operations_are() {
    let (now, from) = (clock::instant(), "h:1".into());
    let at = |port| ("h".to_owned(), port);
    for (error, expected) in [
        ("MOVED 17 h:2", Some(QuestionHop::Owner(Some(&at(2))))),
        ("ASK 17 h:3", Some(QuestionHop::Importer(&at(3)))),
        ("MOVED 17 ?:2", Some(QuestionHop::Owner(None))),
        ("ASK 17 ?:3", Some(QuestionHop::Owner(None))),
        ("TRYAGAIN", Some(QuestionHop::Owner(None))),
        ("MOVED 18 h:2", None),
        ("MOVED 17", None),
    ] {
        let said = Redirection::of(error, &from).unwrap();
        let mut question = RedirectedQuestion::new(SLOT, now + MS);
        let first = question.next(&said, now);
        let hop = expected.map(|hop| (hop, Duration::ZERO));
        assert_eq!(first, hop, "{error}");
        assert_eq!(question.next(&said, now + MS), None, "{error}");
    }
}

#[test]
fn what_other_nodes_have_decided_is_not_asked_again_but_each_node_is_owed_its_release() {
    let now = clock::instant();
    for (action, expected) in [
        (
            Action::Extend(ttl(MS * 900), ttl(MS * 900)),
            "nowhere, 0 owed",
        ),
        (Action::Release(Notify::None), "nowhere, 1 owed"),
    ] {
        let mut answer = answer("MOVED 17 h:2", now);
        answer.outcome = Outcome::No;
        let goes = next(&mut waited(action, 3, now), &answer, now);
        assert_eq!(goes, expected);
    }
}

#[test]
fn an_operation_is_sent_on_five_times_in_its_time() {
    let now = clock::instant();
    let release = || waited(Action::Release(Notify::None), 1, now);
    let next = |redirect: &mut Redirect, later| {
        next(redirect, &answer("MOVED 17 h:2", now), now + later * MS)
    };
    let mut redirect = release();
    assert_eq!(next(&mut redirect, 0), "owner after 0ns");
    for _ in 1..5 {
        assert_eq!(next(&mut redirect, 4999), "owner after 5ms");
    }
    assert_eq!(next(&mut redirect, 4999), "nowhere, 1 owed");
    assert_eq!(next(&mut release(), 5000), "nowhere, 1 owed");
}

/// With the queue's key the script would take whatever slot the token has by then.
#[test]
fn the_release_of_one_slot_names_no_queue() {
    let debt = Debt::release(key(b"a").of_kind(Kind::Stray(1)));
    let redirect = Redirect::of_debt(0, debt, SLOT, clock::instant());
    assert_eq!(redirect.op().action, Action::Release(Notify::None));
}

#[test]
fn a_release_that_no_call_waits_for_is_sent_on_for_ten_seconds() {
    let begun = clock::instant();
    let debt = Debt::release(key(b"a"));
    let mut redirect = Redirect::of_debt(0, debt, SLOT, begun);
    let (mut now, mut pauses) = (begun, Vec::new());
    while let NextHop::Owner { pause, .. } = redirect.next(&answer("MOVED 17 h:2", now), now) {
        pauses.push(u64::try_from(pause.as_millis()).unwrap());
        now += pause + MS;
    }
    assert_eq!(&pauses[..9], [0, 5, 10, 20, 40, 80, 160, 320, 500]);
    let took = now - begun;
    assert!(took >= OWED && took < OWED + LONGEST_PAUSE + MS, "{took:?}");
    // Its keys may be on two servers until the move ends.
    let mut torn = Redirect::of_debt(0, Debt::release(key(b"a")), SLOT, begun);
    for (error, pause) in [
        ("TRYAGAIN", "0ns"),
        ("unnamed", "5ms"),
        ("TRYAGAIN", "10ms"),
    ] {
        let goes = next(&mut torn, &answer(error, begun), begun);
        assert_eq!(goes, format!("owner after {pause}"));
    }
    // Nothing else has sent the release on.
    let last = next(&mut redirect, &answer("MOVED 17 h:2", now), now);
    assert_eq!(last, "nowhere, 0 owed");
}

/// Other servers may have had the slot when the lock was acquired.
#[test]
fn the_end_of_a_lock_is_written_once_more_and_nothing_else_is() {
    let behind = |action: Action| Redirect::behind(&Op::new(action, key(b"a")));
    for (broken, expected) in [(None, true), (Some(Mutant::ReleaseWhereCallBegan), false)] {
        set_mutant(broken);
        let again = behind(Action::Release(Notify::First));
        assert_eq!(again.is_some(), expected, "{broken:?}");
        if let Some(op) = again {
            assert!(op.only_write && op.action == Action::Release(Notify::None));
        }
    }
    set_mutant(None);
    assert!(behind(Action::Shorten(ttl(9 * MS))).is_some());
    assert!(behind(Action::Acquire(ttl(9 * MS))).is_none());
}

/// What follows ASK is carried out, its connection closes before the answer, and the next one leads to another server.
#[test]
fn a_release_that_may_have_been_carried_out_before_it_is_sent_on_is_not_lost() {
    let now = clock::instant();
    for (broken, expected) in [(None, true), (Some(Mutant::RedirectIsFirstTry), false)] {
        set_mutant(broken);
        let mut redirect = waited(Action::Release(Notify::First), 1, now);
        let goes = next(&mut redirect, &answer("ASK 17 h:2", now), now);
        assert_eq!(goes, "importer 0 2 after 0ns");
        assert!(!redirect.op().may_be_done.has(0));
        let mut unnamed = answer("unnamed", now);
        let closed = Arc::new(Cause::Closed("before it answered".into()));
        unnamed.remarks.make().causes.insert(0, (0, closed));
        let goes = next(&mut redirect, &unnamed, now);
        assert_eq!(goes, "owner after 5ms");
        assert_eq!(redirect.op().may_be_done.has(0), expected, "{broken:?}");
    }
    set_mutant(None);
}

/// Servers before Redis 7 redirect a command although they have some of its keys.
#[test]
fn a_torn_operation_is_sent_again_with_the_locks_key_alone() {
    let now = clock::instant();
    let entry = QueueEntry {
        channel: Channel::new([1; 16]),
        arrived: 1,
        waited: 0,
        lease: 900,
        turn: None,
    };
    let enqueues = Action::AcquireOrEnqueue(ttl(MS * 900), Arc::new(entry));
    let permit = Kind::Permit {
        permits: 2,
        slot: None,
    };
    let acquire = Action::Acquire(ttl(MS * 900));
    let [release, alone] = [Notify::First, Notify::None].map(Action::Release);
    for (kind, action, expected) in [
        (Kind::Plain, &enqueues, &acquire),
        (permit.clone(), &enqueues, &acquire),
        (Kind::Plain, &release, &alone),
        (permit, &release, &alone),
        (Kind::Read { waited: 0 }, &release, &alone),
        (Kind::several(Arc::new([])), &release, &alone),
    ] {
        let op = Op::new(action.clone(), key(b"a").of_kind(kind));
        let mut redirect = Redirect::waited(op, SLOT, 1, (now, now + 5000 * MS));
        let NextHop::Owner { op, .. } = redirect.next(&answer("TRYAGAIN", now), now) else {
            panic!("it goes to the owner");
        };
        assert_eq!(&op.action, expected);
        let again = redirect.next(&answer("TRYAGAIN", now), now);
        assert!(matches!(again, NextHop::Nowhere));
        let mut last = Answer::none(now);
        last.tally.deny(0);
        redirect.complete(&mut last);
        let infos = usize::from(matches!(op.action, Action::Acquire(_)));
        assert_eq!(last.remarks.lock_infos.len(), infos);
    }
}
