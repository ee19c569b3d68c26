//! News: which changes wake threads that wait.

use super::*;

/// A node that is connected, and one that was never connected.
fn connected_and_away() -> [World; 2] {
    let mut connected = World::new();
    connected.begin_to_connect();
    connected.connected(Ok(()));
    [connected, World::new()]
}

/// Whether this work has news for threads that wait.
fn is_news(world: &mut World, work: impl FnOnce(&mut World)) -> bool {
    world.core.news = false;
    work(world);
    world.core.news
}

#[test]
fn the_worker_of_a_node_that_has_sat_out_connects_it_for_an_operation() {
    for (since, expected) in [(Duration::ZERO, false), (60_000 * MS, true)] {
        let mut world = World::sitting_out(1);
        world.now += since;
        assert_eq!(is_news(&mut world, World::acquire), expected, "{since:?}");
    }
    for mut world in connected_and_away() {
        assert!(!is_news(&mut world, World::acquire));
    }
}

#[test]
fn the_worker_of_a_node_that_sits_out_writes_what_the_node_is_owed() {
    let owe = |world: &mut World| world.core.add_debt(0, Some(Debt::release(key(b"a"))));
    assert!(is_news(&mut World::sitting_out(1), owe));
    for mut world in connected_and_away() {
        assert!(!is_news(&mut world, owe));
    }
}

#[test]
fn the_thread_that_closes_the_nodes_waits_for_what_is_written() {
    for closed in [false, true] {
        let mut world = World::sending();
        if closed {
            world.close();
        }
        let sent = |world: &mut World| world.input(Input::Sent(Ok(())));
        assert_eq!(is_news(&mut world, sent), closed);
    }
}

/// The third node is still being connected for the first time.
#[test]
fn first_connections_are_waited_for_one_node_timeout_after_a_majority_is_connected() {
    let mut world = World::of(3);
    (0..3).for_each(|node| world.begins_to_connect(node));
    for node in 0..2 {
        world.now += 5 * MS;
        world.connected_to(node, Ok(()));
    }
    let end = world.now + 50 * MS;
    world.now += 10 * MS;
    world.acquire();
    let next = next_but_reads(&mut world);
    assert!(
        matches!(next, ThreadStep::Wait { until } if until == end),
        "{next:?}"
    );
    world.now = end;
    let next = next_but_reads(&mut world);
    assert!(matches!(next, ThreadStep::Send { .. }), "{next:?}");
}
