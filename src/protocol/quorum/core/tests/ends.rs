//! How operations end: when their time is over, when a connection ends, and behind their undo.

use super::*;
use crate::protocol::commands::vote::NOTIFIED;

fn connected() -> World {
    let mut world = World::new();
    world.begin_to_connect();
    world.connected(Ok(()));
    world
}

fn close(world: &mut World) {
    let closed = Cause::Closed("it ended".into());
    world.input(Input::Received(Err(closed)));
}

/// Has the leader do all that it can while no reply arrives.
fn hear_nothing(world: &mut World) {
    loop {
        match world.next() {
            ThreadStep::Recv { node, until } if until <= world.now => {
                let nothing = Input::Received(Ok(&[]));
                world.core.input(node, nothing, world.now);
            }
            ThreadStep::Send { .. } => world.output(),
            _ => break,
        }
    }
}

/// Rule R6.
#[test]
fn a_failed_acquire_ends_when_its_undo_is_written() {
    let mut world = connected();
    world.acquire();
    world.answers(b"-OOM command not allowed\r\n");
    let next = next_but_reads(&mut world);
    assert!(matches!(next, ThreadStep::Send { .. }), "{next:?}");
    assert!(world.core.answers.is_empty(), "the lock may be there");
    world.output();
    assert!(world.failure().is_some());
}

#[test]
fn a_node_that_was_silent_is_reported_with_the_time_that_it_had() {
    for (useful, expected) in [
        (None, "no answer within 50 ms (node_timeout)"),
        (
            Some(30),
            "no answer within 30 ms, and no more time was left",
        ),
    ] {
        let mut world = connected();
        world.acquire_until(useful.map(|useful| useful * MS));
        hear_nothing(&mut world);
        world.now += useful.unwrap_or(50) * MS;
        hear_nothing(&mut world);
        let (text, _) = world.failure().unwrap();
        assert!(text.contains(expected), "{text}");
    }
}

/// Such a node would have been asked if the others had sufficed.
#[test]
fn a_node_is_not_blamed_that_was_not_asked_for_want_of_others() {
    let mut world = World::of(3);
    (0..3).for_each(|node| world.begins_to_connect(node));
    world.connected_to(0, Ok(()));
    world.acquire();
    world.now += 1000 * MS;
    world.next();
    let (_, answer) = world.core.answers.pop().unwrap();
    let Outcome::Unavailable { errors, .. } = answer.outcome else {
        panic!("one node is no majority");
    };
    let blamed = errors.iter().map(|error| error.node);
    assert_eq!(blamed.collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn an_acquire_fails_with_the_connection_on_which_it_was_sent() {
    let mut world = World::sending();
    close(&mut world);
    let (text, for_good) = world.failure().unwrap();
    assert!(text.contains("it ended") && !for_good, "{text}");
}

#[test]
fn a_node_that_is_connected_again_has_a_node_timeout_to_answer() {
    let mut world = connected();
    close(&mut world);
    world.acquire();
    world.begin_to_connect();
    world.now += 30 * MS;
    world.connected(Ok(()));
    hear_nothing(&mut world);
    for (passes, ends) in [(49, false), (1, true)] {
        world.now += passes * MS;
        hear_nothing(&mut world);
        assert_eq!(!world.core.answers.is_empty(), ends, "{passes}");
    }
}

/// The thread that acquires the lock gives that process a head start once it has released it.
#[test]
fn an_acquire_reports_whom_a_late_release_has_notified() {
    for (number, reported) in [(1, false), (NOTIFIED, true)] {
        let mut world = connected();
        let release = Debt::release(key(b"a")).notifying(Notify::First);
        world.core.add_debt(0, Some(release));
        world.answers(format!(":{number}\r\n").as_bytes());
        world.acquire();
        world.answers(b"+OK\r\n");
        let (_, answer) = world.core.answers.pop().unwrap();
        assert!(matches!(answer.outcome, Outcome::Yes(_)));
        assert_eq!(answer.notified_elsewhere, reported, "{number}");
    }
}
