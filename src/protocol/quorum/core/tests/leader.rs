//! The times that the leader has for its steps, and what it does when the nodes are closed.

use super::*;

fn connected() -> World {
    let mut world = World::new();
    world.begin_to_connect();
    world.connected(Ok(()));
    world
}

fn release(world: &mut World) {
    let op = Op::new(Action::Release(Notify::None), key(b"a"));
    world.core.submit(op.only_write(true), 0, world.now);
}

/// A node that takes in nothing holds up the others for half a node timeout, and no operation for more than two.
#[test]
fn a_write_has_half_a_node_timeout_but_not_beyond_the_end_of_an_operation() {
    for (since, expected) in [(0, 25), (70, 25), (90, 10)] {
        let mut world = connected();
        world.acquire();
        let begun = world.now;
        assert!(matches!(
            next_but_reads(&mut world),
            ThreadStep::Send { .. }
        ));
        world.now = begun + since * MS;
        let all = NodeSet::first(1);
        world.core.nodes[0].wire_mut().probed(world.now);
        match world.core.step_to_send(all, world.now) {
            ThreadStep::Send { until, .. } => {
                assert_eq!(until, world.now + expected * MS, "{since}")
            }
            next => panic!("{since}: {next:?}"),
        }
    }
}

/// Closing on replies that were not read may lose a release.
#[test]
fn after_the_close_replies_are_waited_for_one_node_timeout() {
    let mut world = connected();
    release(&mut world);
    assert!(matches!(
        next_but_reads(&mut world),
        ThreadStep::Send { .. }
    ));
    world.output();
    world.input(Input::Sent(Ok(())));
    world.close();
    let end = world.now + 50 * MS;
    world.now += MS;
    let next = next_but_reads(&mut world);
    assert!(
        matches!(next, ThreadStep::Recv { until, .. } if until <= end),
        "{next:?}"
    );
    world.input(Input::Received(Ok(b":1\r\n")));
    let next = next_but_reads(&mut world);
    assert!(matches!(next, ThreadStep::Finished), "{next:?}");
}

#[test]
fn a_worker_too_starts_the_thread_that_resends_what_was_refused_for_now() {
    for role in [ThreadRole::Leader, ThreadRole::Worker(0)] {
        let mut world = connected();
        assert!(!world.core.starts_confirmer(role));
        release(&mut world);
        world.answers(b"-BUSY Redis is busy running a script.\r\n");
        assert!(world.core.starts_confirmer(role), "{role:?}");
        assert!(!world.core.starts_confirmer(role), "{role:?}");
    }
}

/// Two nodes would have one vote.
#[test]
fn a_node_that_leads_to_the_server_of_another_one_is_not_used() {
    let mut world = World::of(3);
    (0..3).for_each(|node| world.begins_to_connect(node));
    let mut connects = |node: usize, run_id: &str| {
        let properties = ServerProperties {
            run_id: Some(run_id.into()),
            ..ServerProperties::default()
        };
        let used = world.core.connected(node, Ok(properties), world.now);
        if used {
            let tasks = [(); 2].map(|()| world.core.next(ThreadRole::Worker(node), world.now));
            assert!(matches!(
                tasks,
                [ThreadStep::Adopt { .. }, ThreadStep::Reconnected]
            ));
        }
        used
    };
    assert!(connects(0, "one"));
    assert!(connects(1, "two"));
    assert!(!connects(2, "two"));
    let cause = world.core.nodes[2].cause().unwrap();
    assert!(matches!(**cause, Cause::SameServer(1)), "{cause}");
}

/// Otherwise a lock that is free already would be denied.
#[test]
fn releases_are_written_before_other_operations() {
    let mut world = connected();
    let acquire = Op::new(Action::Acquire(ttl(1000 * MS)), key(b"b"));
    world.core.submit(acquire, 0, world.now);
    release(&mut world);
    assert!(matches!(
        next_but_reads(&mut world),
        ThreadStep::Send { .. }
    ));
    world.output();
    let place = |name: &[u8]| world.sent.windows(6).position(|part| part == name);
    let (released, acquired) = (place(b"1\r\na\r\n"), place(b"1\r\nb\r\n"));
    assert!(
        released.is_some() && released < acquired,
        "{released:?}, {acquired:?}"
    );
}

/// The pause of a refused release may be longer than the close waits.
#[test]
fn what_was_refused_for_now_is_sent_once_more_at_the_close() {
    let mut world = connected();
    release(&mut world);
    world.answers(b"-BUSY Redis is busy running a script.\r\n");
    assert!(matches!(
        next_but_reads(&mut world),
        ThreadStep::StartConfirmer
    ));
    world.close();
    let next = next_but_reads(&mut world);
    assert!(matches!(next, ThreadStep::Send { .. }), "{next:?}");
}

/// The nodes that the leader writes to next, if any, while those that it reads have sent nothing.
fn writes(world: &mut World) -> Vec<usize> {
    match next_but_reads(world) {
        ThreadStep::Send { nodes, .. } => {
            nodes.iter().for_each(|node| world.output_to(node));
            nodes.iter().collect()
        }
        _ => Vec::new(),
    }
}

#[test]
fn each_silent_node_is_handed_over_once_nothing_is_to_be_written_to_it() {
    for (broken, expected) in [(None, true), (Some(Mutant::OneSilentNode), false)] {
        set_mutant(broken);
        let mut world = World::of(5);
        (0..5).for_each(|node| world.begins_to_connect(node));
        (0..5).for_each(|node| world.connected_to(node, Ok(())));
        // Nodes 1 and 3 do not answer. The first acquire has its majority, and the second one is sent to one of them.
        world.acquire();
        assert_eq!(writes(&mut world), [0, 1, 2, 3, 4]);
        for node in [0, 2, 4] {
            let granted = Input::Received(Ok(b"+OK\r\n"));
            world.core.input(node, granted, world.now);
        }
        assert_eq!(world.core.answers.len(), 1);
        world.now += 40 * MS;
        let acquire = Op::new(Action::Acquire(ttl(1000 * MS)), key(b"b"));
        let acquire = acquire.to([0, 2, 3, 4].into_iter().collect());
        world.core.submit(acquire, 0, world.now);
        assert_eq!(writes(&mut world), [0, 2, 3, 4]);
        world.now += 10 * MS;
        assert_eq!(writes(&mut world), []);
        let nodes = [1, 3].map(|node| &world.core.nodes[node]);
        assert!(nodes.iter().all(|node| !node.is_connected()));
        assert_eq!(nodes.map(Node::has_worker), [expected, false]);
        set_mutant(None);
    }
}
