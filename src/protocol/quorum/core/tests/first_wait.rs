//! Attempts whose programs are asked whether to go on while first connections are waited for (rule R13b).

use super::*;
use crate::protocol::quorum::op::FirstWait;

/// Its program may end the attempt, or go on with it.
#[test]
fn an_acquire_whose_program_is_asked_ends_unsent_while_it_waits_for_first_connections() {
    let acquire = |world: &mut World, since: Instant| {
        let asks = world.now + 50 * MS;
        let op = Op::new(Action::Acquire(ttl(100_000 * MS)), key(b"a"));
        let op = op.first_wait(Some(FirstWait { since, asks }));
        world.core.submit(op, 0, world.now);
    };
    let ended = |world: &mut World| {
        let next = world.next();
        match world.core.answers.pop().map(|(_, answer)| answer.outcome) {
            Some(Outcome::Unavailable { errors, unsent, .. }) => Ok((unsent, errors.to_string())),
            _ => Err(next),
        }
    };
    let mut world = World::new();
    let since = world.now;
    acquire(&mut world, since);
    world.begin_to_connect();
    for _ in 0..19 {
        let Err(ThreadStep::Wait { until }) = ended(&mut world) else {
            panic!("the first connection is under way");
        };
        assert_eq!(until, world.now + 50 * MS);
        world.now = until;
        let (unsent, _) = ended(&mut world).unwrap();
        assert!(unsent && world.sent.is_empty());
        acquire(&mut world, since);
    }
    // All of that together has the time of a connection.
    world.now = since + 1000 * MS;
    let (unsent, text) = ended(&mut world).unwrap();
    assert!(
        !unsent && text.contains("not connected within 1 s"),
        "{text}"
    );

    // One that is written has the time of its answers.
    let mut world = World::new();
    let since = world.now;
    acquire(&mut world, since);
    world.begin_to_connect();
    world.now += 30 * MS;
    world.connected(Ok(()));
    assert!(matches!(world.next(), ThreadStep::Send { .. }));
    world.output();
    world.now += 20 * MS;
    let next = ended(&mut world);
    assert!(matches!(next, Err(ThreadStep::Recv { .. })), "{next:?}");
}

/// The attempt had it connected at once when it began.
#[test]
fn a_node_that_was_refused_is_not_hurried_each_time_a_program_is_asked() {
    for (goes_on, hurried) in [(false, true), (true, false)] {
        let mut world = World::of(3);
        let since = world.now;
        world.acquire();
        (0..3).for_each(|node| world.begins_to_connect(node));
        world.connected_to(0, Err(Cause::Connect("refused".into())));
        world.now += MS;
        let task = world.core.next(ThreadRole::Worker(0), world.now);
        let ThreadStep::Wait { until } = task else {
            panic!("{task:?}");
        };
        let op = Op::new(Action::Acquire(ttl(1000 * MS)), key(b"a"));
        let op = op.first_wait(Some(FirstWait {
            since: if goes_on { since } else { world.now },
            asks: world.now + 50 * MS,
        }));
        world.core.submit(op, 1, world.now);
        world.next();
        let task = world.core.next(ThreadRole::Worker(0), world.now);
        let waits = matches!(task, ThreadStep::Wait { until: again } if again == until);
        assert_eq!(!waits, hurried, "{task:?}");
    }
}
