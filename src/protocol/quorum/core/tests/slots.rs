//! A permit, of which nodes grant different slots.

use super::*;
use crate::protocol::commands::kind::Kind;
use crate::protocol::node::pending::OperationId;
use crate::protocol::quorum::late_grants::LateGrants;

/// The ends of locks that nodes still owe, and the slots that these release.
fn owed(world: &mut World) -> Vec<(usize, Option<u16>)> {
    let owed = world.core.take_debts(|_| true).into_iter();
    let slot = |debt: &Debt| match debt.key.kind {
        Kind::Stray(slot) => Some(slot),
        _ => None,
    };
    owed.map(|(node, debt)| (node, slot(&debt))).collect()
}

#[test]
fn an_acquire_releases_the_slots_that_do_not_count_and_an_extension_leaves_them() {
    let whole = ttl(1000 * MS);
    for (action, slot, is_stray_released) in [
        (Action::Acquire(whole), None, true),
        (Action::Extend(whole, whole), Some(0), false),
    ] {
        let mut world = World::of(3);
        (0..3).for_each(|node| world.begins_to_connect(node));
        (0..3).for_each(|node| world.connected_to(node, Ok(())));
        let kind = Kind::Permit { permits: 2, slot };
        let sent_to = NodeSet::first(3);
        let key = key(b"a").of_kind(kind).sent_to(sent_to);
        world.core.submit(Op::new(action, key), 0, world.now);
        assert!(matches!(
            next_but_reads(&mut world),
            ThreadStep::Send { .. }
        ));
        (0..3).for_each(|node| world.output_to(node));
        for (node, reply) in [(2, b":2\r\n"), (0, b":1\r\n"), (1, b":1\r\n")] {
            let reply = Input::Received(Ok(reply));
            world.core.input(node, reply, world.now);
        }
        let (_, answer) = world.core.answers.pop().unwrap();
        assert!(matches!(answer.outcome, Outcome::Yes(_)));
        let expected = is_stray_released.then_some((2, Some(1)));
        assert_eq!(owed(&mut world), Vec::from_iter(expected), "{slot:?}");
    }
}

/// Two of three nodes decide; the third one's answer is always behind the verdict.
#[test]
fn a_slot_that_a_node_grants_behind_the_verdict_is_released_though_nothing_follows() {
    // The answer of the last node, and the slot that is released there.
    for (late, released) in [(":1", None), (":2", Some((2, Some(1)))), ("-BUSY", None)] {
        let mut world = World::of(3);
        (0..3).for_each(|node| world.begins_to_connect(node));
        (0..3).for_each(|node| world.connected_to(node, Ok(())));
        let kind = Kind::Permit {
            permits: 2,
            slot: None,
        };
        let key = key(b"a").of_kind(kind).sent_to(NodeSet::first(3));
        let acquire = Op::new(Action::Acquire(ttl(1000 * MS)), key);
        world.core.submit(acquire, 0, world.now);
        assert!(matches!(
            next_but_reads(&mut world),
            ThreadStep::Send { .. }
        ));
        (0..3).for_each(|node| world.output_to(node));
        for node in [0, 1] {
            let reply = Input::Received(Ok(b":1\r\n"));
            world.core.input(node, reply, world.now);
        }
        // The last node does not answer promptly, and is not waited for.
        assert!(world.core.answers.is_empty());
        world.core.input(2, Input::Received(Ok(&[])), world.now);
        let (_, answer) = world.core.answers.pop().unwrap();
        assert!(matches!(answer.outcome, Outcome::Yes(_)));
        let next = next_but_reads(&mut world);
        assert!(matches!(next, ThreadStep::StartConfirmer), "{next:?}");
        let next = world.core.next(ThreadRole::Confirmer, world.now);
        assert!(matches!(next, ThreadStep::Wait { .. }), "{next:?}");
        world.now += 50 * MS;
        let next = world.core.next(ThreadRole::Confirmer, world.now);
        assert!(matches!(next, ThreadStep::TryToLead), "{next:?}");
        let next = world.next();
        assert!(matches!(next, ThreadStep::Recv { node: 2, .. }), "{next:?}");
        let reply = format!("{late}\r\n");
        let reply = Input::Received(Ok(reply.as_bytes()));
        world.core.input(2, reply, world.now);
        assert_eq!(owed(&mut world), Vec::from_iter(released), "{late}");
        let next = world.core.next(ThreadRole::Confirmer, world.now);
        assert!(matches!(next, ThreadStep::Finished), "{next:?}");
    }
}

/// The node's connection ends before it answers, so nothing is waited for.
#[test]
fn an_answer_that_never_comes_is_not_waited_for() {
    let mut late = LateGrants::default();
    let (now, nodes) = (clock::instant(), NodeSet::first(2));
    late.add(7, key(b"a"), nodes, now);
    assert_eq!(late.since(nodes), Some(now));
    late.severed(0);
    assert_eq!(late.since(NodeSet::first(1)), None);
    let id = |number| OperationId { index: 0, number };
    assert!(late.take(id(8), 1).is_none() && late.take(id(7), 0).is_none());
    assert!(late.take(id(7), 1).is_some() && late.take(id(7), 1).is_none());
    assert_eq!(late.since(nodes), None);
}
