//! A permit, of which nodes grant different slots.

use super::*;
use crate::protocol::commands::kind::Kind;

/// The ends of locks that nodes still owe, and the slots that these release.
fn owed(world: &mut World) -> Vec<(usize, Option<u16>)> {
    let owed = world.core.take_owed(|_| true).into_iter();
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
        assert!(matches!(next_but_reads(&mut world), Next::Send { .. }));
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
