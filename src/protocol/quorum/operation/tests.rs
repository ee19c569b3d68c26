//! One operation on three nodes: its time, where it is sent, and its votes.

use super::*;
use crate::proof::fixtures::{MS, key, ttl};
use crate::protocol::commands::action::Notify;
use crate::protocol::commands::kind::Kind;
use crate::protocol::node::restart_guard::VotesFrom;
use crate::protocol::node::standing::{SitsOut, Why};
use crate::protocol::quorum::op::NamedServer;
use crate::values::clock;

pub(super) fn view(connected: NodeSet) -> View {
    View {
        nodes: 3,
        connected,
        held: connected,
        grants: connected,
        slow: NodeSet::EMPTY,
        same_server: false,
        replies_flowing: true,
    }
}

fn acquire() -> Action {
    Action::Acquire(ttl(1000 * MS))
}

fn extend() -> Action {
    Action::Extend(ttl(1000 * MS), ttl(1000 * MS))
}

fn release() -> Action {
    Action::Release(Notify::None)
}

/// An operation whose time of 50 ms begins now.
fn begun(action: Action, now: Instant) -> Operation<()> {
    let op = Op::new(action, key(b"a"));
    let mut operation = Operation::new(1, op, (), &Prefix::default(), Vec::new(), now);
    operation.begin(now, now + 50 * MS);
    operation
}

fn of(nodes: &[usize]) -> NodeSet {
    nodes.iter().copied().collect()
}

fn closed() -> Arc<Cause> {
    Arc::new(Cause::Closed("it ended".into()))
}

fn silent() -> Arc<Cause> {
    Arc::new(Cause::NoAnswer(50 * MS, Limit::Node(1)))
}

#[test]
fn a_node_that_connects_at_the_last_moment_has_time_to_answer_but_no_second_time() {
    let now = clock::instant();
    for (action, is_sent, has_voted, at, end) in [
        (acquire(), false, false, 40, 90),
        (extend(), false, false, 40, 90),
        (acquire(), false, false, 80, 100),
        (acquire(), true, false, 40, 50),
        (acquire(), false, true, 40, 50),
        (release(), false, false, 40, 50),
    ] {
        let mut operation = begun(action, now);
        if is_sent {
            operation.sent_to.add(2);
        }
        if has_voted {
            operation.fail(2, &closed());
        }
        operation.give_time_to(2, 50 * MS, now + at * MS);
        assert_eq!(operation.own_end(), Some(now + end * MS), "{at}, {end}");
    }
}

#[test]
fn an_answer_is_useless_only_if_that_is_so_before_the_operation_s_own_end() {
    let now = clock::instant();
    for (until, at, useless) in [
        (None, 60, false),
        (Some(20), 19, false),
        (Some(20), 20, true),
        (Some(20), 60, true),
        (Some(51), 60, false),
    ] {
        let mut operation = begun(acquire(), now);
        operation.op.until = until.map(|until| now + until * MS);
        let found = operation.is_useless(now + at * MS);
        assert_eq!(found, useless, "{until:?}, {at}");
    }
}

#[test]
fn a_lock_is_asked_for_in_time_where_a_majority_can_grant_it() {
    let now = clock::instant();
    let (two, one) = (of(&[0, 1]), of(&[0]));
    for (action, connected, same_server, begins, at, expected) in [
        (acquire(), two, false, true, 1, two),
        (acquire(), one, false, true, 1, NodeSet::EMPTY),
        (acquire(), two, true, true, 1, NodeSet::EMPTY),
        (acquire(), two, false, false, 1, NodeSet::EMPTY),
        (acquire(), two, false, true, 50, NodeSet::EMPTY),
        (extend(), two, true, true, 1, two),
        (extend(), one, false, true, 1, NodeSet::EMPTY),
        (release(), one, true, false, 50, one),
    ] {
        let mut operation = begun(action, now);
        if !begins {
            operation.schedule.begun = None;
        }
        let mut view = view(connected);
        view.same_server = same_server;
        let found = operation.to_send(&view, now + at * MS);
        assert_eq!(found, expected, "{connected:?}, {same_server}, {at}");
    }
}

#[test]
fn nodes_that_are_away_are_lacking_if_the_others_are_no_majority() {
    let operation = begun(acquire(), clock::instant());
    for (connected, lacking) in [
        (of(&[0, 1, 2]), NodeSet::EMPTY),
        (of(&[0, 1]), NodeSet::EMPTY),
        (of(&[0]), of(&[1, 2])),
    ] {
        let found = operation.lacking(connected, &view(connected));
        assert_eq!(found, lacking, "{connected:?}");
    }
}

/// The end of a lock that may have been carried out before is no loss.
#[test]
fn a_refusal_counts_as_no_unless_the_end_of_a_lock_was_sent_before() {
    let now = clock::instant();
    for (action, retried, may_be_done, failed) in [
        (acquire(), true, true, false),
        (extend(), true, true, false),
        (Action::Repair(ttl(1000 * MS)), true, true, false),
        (release(), false, false, false),
        (release(), true, false, true),
        (release(), false, true, true),
    ] {
        let mut operation = begun(action, now);
        assert!(!operation.has_votes());
        if retried {
            operation.retried.add(1);
        }
        if may_be_done {
            operation.op.may_be_done.add(1);
        }
        operation.vote(1, Vote::Denied(Denial::Unknown));
        let tally = operation.votes.tally;
        let one_of = |is: bool| if is { of(&[1]) } else { NodeSet::EMPTY };
        assert_eq!(
            (tally.denied, tally.failed),
            (one_of(!failed), one_of(failed))
        );
        assert!(operation.has_votes() && tally.granted.is_empty());
        assert_eq!(operation.has_failed(1), failed);
    }
}

#[test]
fn the_first_grant_of_a_slot_by_a_node_counts() {
    let mut operation = begun(acquire(), clock::instant());
    let (permits, slot) = (2, None);
    operation.op.key = key(b"a").of_kind(Kind::Permit { permits, slot });
    for (node, number) in [(0, 2), (0, 1), (1, 2), (2, 1)] {
        operation.vote(node, Vote::Granted(number));
    }
    let kind = &operation.op.key.kind;
    assert_eq!(operation.votes.by_node.counted(kind), Some(2));
    assert_eq!(operation.tally().granted, of(&[0, 1]));
    assert_eq!(operation.tally().denied, of(&[2]));
}

#[test]
fn all_but_an_acquire_is_sent_once_more_after_a_connection_has_closed() {
    let now = clock::instant();
    for (action, cause, failed) in [
        (acquire(), closed(), [true, true]),
        (extend(), closed(), [false, true]),
        (release(), closed(), [false, true]),
        (extend(), silent(), [true, true]),
    ] {
        let mut operation = begun(action, now);
        for failed in failed {
            operation.sent_to.add(1);
            operation.severed(1, &cause);
            assert_eq!(operation.has_failed(1), failed, "{cause}");
            assert_eq!(operation.sent_to.has(1), operation.is_acquire());
        }
    }
}

#[test]
fn a_node_that_sits_out_is_not_waited_for_unless_the_operation_was_sent_there() {
    let now = clock::instant();
    let (held, all) = (now + 1000 * MS, now + 1000 * MS);
    let out = Standing::Not(SitsOut {
        votes: VotesFrom { held, all },
        why: Why::Forgets,
    });
    for (standing, is_sent, heeds, failed) in [
        (Standing::Votes, false, false, false),
        (out, false, true, true),
        (out, true, true, false),
    ] {
        let mut operation = begun(acquire(), now);
        if is_sent {
            operation.sent_to.add(1);
        }
        assert_eq!(operation.heed(1, &standing, now), heeds, "{standing:?}");
        assert_eq!(operation.has_failed(1), failed, "{standing:?}");
    }
}

#[test]
fn a_node_at_another_server_than_the_named_one_fails_if_it_is_asked_and_has_not_voted() {
    let now = clock::instant();
    for (nodes, has_voted, port, failed) in [
        (&[0, 1][..], false, 2, true),
        (&[0, 1], false, 1, false),
        (&[0], false, 2, false),
        (&[0, 1], true, 2, false),
    ] {
        let mut operation = begun(acquire(), now);
        operation.op.nodes = of(nodes);
        let server = ("h".into(), port);
        operation.op.named = Some(Box::new(NamedServer { server, at: now }));
        if has_voted {
            operation.vote(1, Vote::Granted(1));
        }
        operation.keep_from(1, &"h:1".into());
        assert_eq!(operation.has_failed(1), failed, "{nodes:?}, {has_voted}");
        assert_eq!(operation.sent_to.has(1), failed, "{nodes:?}, {has_voted}");
    }
}

#[test]
fn when_the_time_is_over_each_node_fails_with_its_cause() {
    let now = clock::instant();
    let timeouts = Timeouts {
        node: 50 * MS,
        connect: 1000 * MS,
    };
    let mut nodes: Vec<Node> = (0..5).map(|_| Node::new("x".into(), None)).collect();
    nodes[0].away(closed());
    nodes[1].away(Arc::new(Cause::refused("WRONGPASS invalid")));
    let mut operation = begun(acquire(), now);
    operation.vote(3, Vote::Granted(1));
    let mut fail_rest = |at: u32| {
        let now = now + at * MS;
        operation.expire(now);
        operation.fail_rest(&nodes, NodeSet::EMPTY, timeouts, now);
        let causes = operation.votes.remarks.causes.iter();
        let causes = causes.map(|(node, cause)| (*node, cause.to_string()));
        (operation.votes.tally.failed, causes.collect::<Vec<_>>())
    };
    assert_eq!(fail_rest(49), (NodeSet::EMPTY, Vec::new()));
    let (failed, causes) = fail_rest(50);
    assert_eq!(failed, of(&[0, 1, 2, 4]));
    // The server of node 1 may have been put right: another try to connect is under way.
    let [(0, first), (2, trying), (4, _)] = &*causes else {
        panic!("{causes:?}");
    };
    assert_eq!(*first, closed().to_string());
    assert!(trying.contains("50 ms"), "{trying}");
}
