//! The verdicts on operations that were sent to some nodes, of which some have voted.

use std::sync::Arc;

use super::*;
use crate::errors::cause::{Cause, Limit};
use crate::errors::redirection::Redirection;
use crate::proof::fixtures::{MS, key, ttl};
use crate::protocol::commands::action::{Action, Notify};
use crate::protocol::commands::vote::{Denial, Vote};
use crate::protocol::quorum::op::Op;
use crate::protocol::quorum::operation::Phase;
use crate::protocol::quorum::operation::tests::view;
use crate::protocol::quorum::votes::Votes;
use crate::values::clock;
use crate::values::prefix::Prefix;

const ACQUIRE: fn() -> Action = || Action::Acquire(ttl(1000 * MS));
const EXTEND: fn() -> Action = || Action::Extend(ttl(1000 * MS), ttl(1000 * MS));
const RELEASE: fn() -> Action = || Action::Release(Notify::None);

const UNAVAILABLE: Option<Verdict> = Some(Verdict::Unavailable);

/// An operation whose time of 50 ms begins now, and that was sent to these nodes.
fn sent(action: Action, to: NodeSet, now: Instant) -> Operation<()> {
    let op = Op::new(action, key(b"a"));
    let mut operation = Operation::new(1, op, (), &Prefix::default(), Vec::new(), now);
    operation.begin(now, now + 50 * MS);
    operation.sent_to = to;
    operation
}

/// Counts the answers of the first nodes, a letter each: granted, refused, sent elsewhere, an error, a connection that
/// was closed, silence; a point is no answer.
fn count(operation: &mut Operation<()>, answers: &str) {
    for (node, answer) in answers.chars().enumerate() {
        let cause = match answer {
            '.' => continue,
            '+' => {
                operation.vote(node, Vote::Granted(1));
                continue;
            }
            '-' => {
                operation.vote(node, Vote::Denied(Denial::Unknown));
                continue;
            }
            '>' => Cause::Redirected(
                Redirection::of("MOVED 1 h:1", &"h:2".into())
                    .unwrap()
                    .into(),
            ),
            '!' => Cause::refused("OOM command not allowed"),
            'x' => Cause::Closed("it ended".into()),
            _ => Cause::NoAnswer(50 * MS, Limit::Node(1)),
        };
        operation.fail(node, &Arc::new(cause));
    }
}

/// The state of this many nodes, all connected.
fn view_of(nodes: usize) -> View {
    View {
        nodes,
        ..view(NodeSet::first(nodes))
    }
}

fn of(nodes: &[usize]) -> NodeSet {
    nodes.iter().copied().collect()
}

fn permit(slot: Option<u16>) -> Kind {
    Kind::Permit { permits: 3, slot }
}

#[test]
fn an_operation_for_some_nodes_ends_when_they_have_answered() {
    let now = clock::instant();
    for connected in [NodeSet::first(3), NodeSet::first(2)] {
        for (nodes, answers, expected) in [
            (&[1][..], "", None),
            (&[1], ".+", UNAVAILABLE),
            (&[1], ".-", UNAVAILABLE),
            (&[1], ".>", UNAVAILABLE),
            (&[0, 1], ".+", None),
            (&[0, 1], ".>", None),
            (&[0, 1], "+>", UNAVAILABLE),
            // A majority has answered, though not all were asked.
            (&[0, 1], "++", Some(Verdict::Yes)),
            (&[0, 1], "--", Some(Verdict::No)),
            (&[0, 1, 2], ".+", None),
            (&[0, 1, 2], "+>", None),
        ] {
            let mut operation = sent(RELEASE(), of(nodes), now);
            operation.op.nodes = of(nodes);
            count(&mut operation, answers);
            let found = operation.verdict(&view(connected), now + MS);
            assert_eq!(found, expected, "{nodes:?}: {answers}");
        }
    }
}

/// Five nodes, all asked. `connected`, `slow`: of those that have not answered, the ones that are.
#[test]
fn a_certain_verdict_waits_for_nodes_that_answer_promptly_if_their_answers_are_of_use() {
    let (now, both, none) = (clock::instant(), of(&[3, 4]), NodeSet::EMPTY);
    let (yes, no) = (Some(Verdict::Yes), Some(Verdict::No));
    for (action, answers, connected, slow, flowing, at, expected) in [
        // No node has granted it yet: the contender that has a vote must learn of it, and try again.
        (ACQUIRE, "---", both, none, true, 1, None),
        (ACQUIRE, "---", both, both, true, 1, None),
        (ACQUIRE, "---", both, none, true, 49, None),
        (ACQUIRE, "---", both, none, false, 1, no),
        (ACQUIRE, "---", none, none, true, 1, no),
        (ACQUIRE, "-----", both, none, true, 1, no),
        (ACQUIRE, "+---", both, none, true, 1, no),
        (ACQUIRE, "+++", both, none, true, 1, yes),
        // An extension learns which nodes hold the lock.
        (EXTEND, "+++", both, none, true, 1, None),
        (EXTEND, "+++", both, of(&[3]), true, 1, None),
        (EXTEND, "+++", both, both, true, 1, yes),
        (EXTEND, "+++", both, none, false, 1, yes),
        (EXTEND, "+++", none, none, true, 1, yes),
        (EXTEND, "+++++", both, none, true, 1, yes),
        (EXTEND, "+++", both, none, true, 41, None),
        (EXTEND, "+++", both, none, true, 42, yes),
        (EXTEND, "---", both, none, true, 1, no),
        (RELEASE, "+++", both, none, true, 1, yes),
        (RELEASE, "---", both, none, true, 1, no),
        // One vote is missing.
        (ACQUIRE, "++--", both, none, false, 1, None),
        (EXTEND, "++--", both, none, false, 1, None),
    ] {
        let mut operation = sent(action(), NodeSet::first(5), now);
        count(&mut operation, answers);
        let view = View {
            nodes: 5,
            slow,
            replies_flowing: flowing,
            ..view(NodeSet::first(3).or(connected))
        };
        let found = operation.verdict(&view, now + at * MS);
        let action = operation.op.action;
        assert_eq!(
            found, expected,
            "{action:?}: {answers}, {connected:?}, {slow:?}, {flowing}, {at}"
        );
    }
}

/// Two of five nodes are not connected, and the operation was sent to the three others.
#[test]
fn no_does_not_wait_for_nodes_that_are_away_and_too_few_answers_do_while_there_is_time() {
    let now = clock::instant();
    let (yes, no) = (Some(Verdict::Yes), Some(Verdict::No));
    for (action, answers, in_time, in_the_end) in [
        (ACQUIRE, "+--", no, no),
        (ACQUIRE, "++-", no, no),
        (ACQUIRE, "++!", None, UNAVAILABLE),
        (ACQUIRE, "-!!", None, UNAVAILABLE),
        (ACQUIRE, "!!!", UNAVAILABLE, UNAVAILABLE),
        (ACQUIRE, "++", None, None),
        (ACQUIRE, "+++", yes, yes),
        (EXTEND, "++-", None, UNAVAILABLE),
        (EXTEND, "+--", None, UNAVAILABLE),
        (EXTEND, "---", no, no),
    ] {
        let mut operation = sent(action(), NodeSet::first(3), now);
        count(&mut operation, answers);
        let view = View {
            nodes: 5,
            ..view(NodeSet::first(3))
        };
        let action = operation.op.action.clone();
        for (at, expected) in [(1, in_time), (50, in_the_end)] {
            operation.expire(now + at * MS);
            let found = operation.verdict(&view, now + at * MS);
            assert_eq!(found, expected, "{action:?}: {answers}, {at}");
        }
    }
}

#[test]
fn nothing_is_certain_while_an_operation_waits_for_first_connections() {
    let now = clock::instant();
    let mut operation = sent(RELEASE(), NodeSet::first(3), now);
    operation.schedule.begun = None;
    operation.op.until = Some(now + 20 * MS);
    count(&mut operation, "!!!");
    for (at, expected) in [(19, None), (20, UNAVAILABLE)] {
        operation.expire(now + at * MS);
        let found = operation.verdict(&view_of(3), now + at * MS);
        assert_eq!(found, expected, "{at}");
    }
}

#[test]
fn only_an_operation_that_a_caller_waits_for_has_a_verdict() {
    let now = clock::instant();
    let verdict = |phase, only_write| {
        let mut operation = sent(ACQUIRE(), NodeSet::first(3), now);
        operation.op.only_write = only_write;
        operation.phase = phase;
        count(&mut operation, "+++");
        operation.verdict(&view_of(3), now)
    };
    assert_eq!(verdict(Phase::Open, false), Some(Verdict::Yes));
    assert_eq!(verdict(Phase::Open, true), None);
    assert_eq!(verdict(Phase::Free, false), None);
    assert_eq!(verdict(Phase::Undoing(Verdict::No), false), None);
}

#[test]
fn of_nodes_that_are_one_server_no_lock_is_acquired_unless_they_were_asked_before() {
    let now = clock::instant();
    for (action, sent_to, expected) in [
        (ACQUIRE, NodeSet::EMPTY, UNAVAILABLE),
        (ACQUIRE, of(&[0]), None),
        (EXTEND, NodeSet::EMPTY, None),
        (RELEASE, NodeSet::EMPTY, None),
    ] {
        let operation = sent(action(), sent_to, now);
        let mut view = view_of(3);
        assert_eq!(operation.verdict(&view, now), None);
        view.same_server = true;
        let action = &operation.op.action;
        let found = operation.verdict(&view, now);
        assert_eq!(found, expected, "{action:?}, {sent_to:?}");
    }
}

#[test]
fn what_no_caller_waits_for_is_done_once_a_majority_has_it_and_an_undone_acquire_is_never_a_yes() {
    let now = clock::instant();
    let written = |to: &[usize]| sent(RELEASE(), of(to), now).written(&view_of(5));
    assert_eq!(written(&[0, 1]), Verdict::Unavailable);
    assert_eq!(written(&[0, 1, 4]), Verdict::Yes);
    let mut operation = sent(ACQUIRE(), NodeSet::first(3), now);
    count(&mut operation, "+++");
    for verdict in [Verdict::No, Verdict::Unavailable] {
        assert_eq!(operation.undone(verdict, &view_of(3)), verdict);
    }
}

/// Rules R6 and R7.
#[test]
fn a_failed_acquire_is_undone_where_the_lock_may_be_held() {
    let mut operation = sent(ACQUIRE(), NodeSet::first(6), clock::instant());
    count(&mut operation, "+->!x?+");
    let (undo_to, key) = operation.undo();
    assert_eq!(undo_to, of(&[0, 3, 4, 5]));
    assert_eq!(key.sent_to, of(&[0, 4, 5]));
    assert_eq!(key.longest(), Some(1000 * MS));
}

#[test]
fn grants_of_several_slots_count_apart_in_what_asks_for_a_slot() {
    let now = clock::instant();
    for (action, kind, apart) in [
        (ACQUIRE, permit(None), true),
        (EXTEND, permit(Some(1)), true),
        (RELEASE, permit(Some(1)), false),
        (ACQUIRE, Kind::Plain, false),
        (EXTEND, Kind::Plain, false),
    ] {
        let mut operation = sent(action(), NodeSet::first(3), now);
        operation.op.key = key(b"a").of_kind(kind);
        let action = &operation.op.action;
        assert_eq!(operation.counts_apart(), apart, "{action:?}");
    }
}

/// The slot of nodes 0 and 1 counts, and node 2 granted the first one.
fn of_two_slots(action: Action) -> Operation<()> {
    let mut operation = sent(action, NodeSet::first(3), clock::instant());
    let slot = operation.is_extension().then_some(1);
    operation.op.key = key(b"a").of_kind(permit(slot));
    for (node, number) in [(0, 2), (1, 2), (2, 1)] {
        operation.vote(node, Vote::Granted(number));
    }
    operation
}

#[test]
fn a_slot_that_does_not_count_is_released_where_it_was_granted() {
    let releases = of_two_slots(ACQUIRE()).stray_releases();
    let [(2, release)] = &*releases else {
        panic!("{releases:?}");
    };
    assert_eq!(release.kind, Kind::Stray(0));
    assert_eq!(release.sent_to, of(&[2]));
    assert_eq!(release.longest(), Some(1000 * MS));
}

/// Its worker reads it while the acquire still waits for others. (One that may not vote has such a grant, too.)
#[test]
fn a_slot_that_a_node_grants_after_it_was_given_up_is_released_there() {
    for (late, expected) in [(2, None), (3, Some((1, Kind::Stray(2))))] {
        let mut operation = of_two_slots(ACQUIRE());
        let silent = Arc::new(Cause::NoAnswer(50 * MS, Limit::Node(1)));
        operation.votes = Votes::default();
        operation.vote(0, Vote::Granted(2));
        operation.fail(1, &silent);
        operation.vote(1, Vote::Granted(late));
        operation.vote(2, Vote::Granted(2));
        let tally = operation.tally();
        assert_eq!((tally.granted, tally.failed), (of(&[0, 2]), of(&[1])));
        let released = operation.stray_releases().into_iter();
        let released: Vec<_> = released
            .map(|(node, key)| (node, key.kind.clone()))
            .collect();
        assert_eq!(released, Vec::from_iter(expected));
    }
}

#[test]
fn an_answer_has_the_votes_that_count_for_an_extension_and_all_for_an_acquire() {
    let (now, nodes) = (clock::instant(), Vec::new());
    for (action, granted) in [(ACQUIRE, &[0, 1, 2][..]), (EXTEND, &[0, 1])] {
        let mut operation = of_two_slots(action());
        let answer = operation.answer(Verdict::Yes, false, &nodes, now);
        let Outcome::Yes(sent_to) = answer.outcome else {
            panic!("no other outcome");
        };
        assert_eq!(sent_to, NodeSet::first(3));
        assert_eq!(answer.tally.granted, of(granted));
        assert_eq!(answer.numbers, Some((2, 2)));
    }
}

/// Another try may be carried out at once.
#[test]
fn an_acquire_failed_by_closing_if_no_more_nodes_than_may_fail_did_for_another_cause() {
    let now = clock::instant();
    let nodes: Vec<Node> = (0..3).map(|_| Node::new("x".into(), None)).collect();
    for (action, answers, expiry, expected) in [
        (ACQUIRE, "xx", Expiry::Over, (true, false)),
        (ACQUIRE, "x>", Expiry::Over, (true, false)),
        (ACQUIRE, "x!", Expiry::Over, (true, false)),
        (ACQUIRE, "!!", Expiry::Over, (false, false)),
        (ACQUIRE, "??", Expiry::Useless, (false, true)),
        (RELEASE, "xx", Expiry::Over, (false, false)),
    ] {
        let mut operation = sent(action(), NodeSet::first(3), now);
        count(&mut operation, answers);
        operation.schedule.expiry = expiry;
        let answer = operation.answer(Verdict::Unavailable, false, &nodes, now);
        let Outcome::Unavailable {
            errors,
            closed,
            useless,
            unsent,
        } = answer.outcome
        else {
            panic!("no other outcome");
        };
        assert_eq!(
            (closed, useless, unsent),
            (expected.0, expected.1, false),
            "{answers}"
        );
        assert_eq!(errors.iter().count(), 2, "{answers}");
    }
}
