//! A server of a Redis Cluster, which names others.

use super::*;
use crate::protocol::commands::dialect::Dialect;

/// The server at this port, as it was named then. The node is connected to the one at port 1.
fn named(port: u16, at: Instant) -> Option<NamedServer> {
    let server = ("h".into(), port);
    Some(NamedServer { server, at })
}

/// Another one may be about to get the slot back, and does what it is sent with ASKING although the owner has the key.
#[test]
fn what_follows_a_redirect_is_sent_to_no_other_server_than_the_one_that_was_named() {
    let acquire = || Action::Acquire(ttl(1000 * MS));
    let release = || Action::Release(Notify::None);
    let other_is_used = Some(Mutant::NamedIsAnyServer);
    for (action, port, broken, sends) in [
        (acquire(), 1, None, true),
        (acquire(), 2, None, false),
        (acquire(), 2, other_is_used, true),
        (release(), 1, None, true),
        (release(), 2, None, false),
        (release(), 2, other_is_used, true),
    ] {
        // The connection is there already, or is made while the operation waits for it.
        for is_there in [true, false] {
            set_mutant(broken);
            let mut world = World::new();
            world.begin_to_connect();
            let op = Op::new(action.clone(), key(b"a")).named(named(port, world.now));
            if is_there {
                world.connected(Ok(()));
                world.core.submit(op, 0, world.now);
            } else {
                world.core.submit(op, 0, world.now);
                world.connected(Ok(()));
            }
            let next = next_but_reads(&mut world);
            let what = format!("{action:?} at {port}, {is_there}");
            assert_eq!(matches!(next, ThreadStep::Send { .. }), sends, "{what}");
            if !sends {
                let (_, answer) = world.core.answers.pop().unwrap();
                let causes = &answer.remarks.causes;
                let is_it = matches!(*causes[0].1, Cause::Redirected(_));
                assert!(causes.len() == 1 && is_it, "{what}: {causes:?}");
                // Nothing is owed there: whoever reads the answer sends the operation on.
                assert!(!world.core.owes_any(), "{what}");
            }
        }
    }
    set_mutant(None);
}

/// A connection that has ended does not show where the next one leads.
#[test]
fn what_follows_a_redirect_waits_for_a_node_that_is_connected_again() {
    let mut world = World::new();
    world.begin_to_connect();
    world.connected(Ok(()));
    let closed = Cause::Closed("it ended".into());
    world.input(Input::Received(Err(closed)));
    let acquire = Op::new(Action::Acquire(ttl(1000 * MS)), key(b"a"));
    let op = acquire.named(named(1, world.now));
    world.core.submit(op, 0, world.now);
    world.begin_to_connect();
    world.connected(Ok(()));
    let next = next_but_reads(&mut world);
    assert!(matches!(next, ThreadStep::Send { .. }), "{next:?}");
}

/// For a slot that is migrating.
#[test]
fn a_lock_is_asked_for_where_the_master_of_its_slot_has_named_the_server_lately() {
    let acquire = || Action::Acquire(ttl(1000 * MS));
    for (action, since, broken, sends) in [
        (acquire(), 1000 * MS, None, true),
        (acquire(), 1001 * MS, None, false),
        (acquire(), 1001 * MS, Some(Mutant::NamedForEver), true),
        (Action::Release(Notify::First), 5000 * MS, None, true),
    ] {
        set_mutant(broken);
        let mut world = World::new();
        world.begin_to_connect();
        world.connected(Ok(()));
        let op = Op::new(action, key(b"a")).named(named(1, world.now));
        world.now += since;
        world.core.submit(op, 0, world.now);
        let next = next_but_reads(&mut world);
        assert_eq!(matches!(next, ThreadStep::Send { .. }), sends, "{since:?}");
        if sends {
            world.output();
            assert!(world.sent.starts_with(b"*1\r\n$6\r\nASKING\r\n"));
        }
    }
    set_mutant(None);
}

/// The caller sends on what its operation reports, which no longer has this node's answer.
#[test]
fn a_release_is_sent_on_although_its_node_was_given_up_before_it_redirected_it() {
    for (broken, is_sent_on) in [(None, true), (Some(Mutant::GivenUpIsHeeded), false)] {
        set_mutant(broken);
        let mut world = World::of(3);
        (0..3).for_each(|node| world.begins_to_connect(node));
        for node in 0..3 {
            let properties = ServerProperties {
                dialect: Dialect::ALL,
                server: "h:1".into(),
                routed: true,
                ..ServerProperties::default()
            };
            assert!(world.core.connected(node, Ok(properties), world.now));
            let tasks = [(); 2].map(|()| world.core.next(ThreadRole::Worker(node), world.now));
            assert!(matches!(
                tasks,
                [ThreadStep::Adopt { .. }, ThreadStep::Reconnected]
            ));
        }
        let key = key(b"a").sent_to(NodeSet::first(3));
        let release = Op::new(Action::Release(Notify::None), key);
        world.core.submit(release, 0, world.now);
        assert!(matches!(
            next_but_reads(&mut world),
            ThreadStep::Send { .. }
        ));
        (0..3).for_each(|node| world.output_to(node));
        let cause = Arc::new(Cause::NotAsked);
        let operations = world.core.operations.open_mut();
        operations.for_each(|operation| operation.fail(2, &cause));
        let moved = Input::Received(Ok(b"-MOVED 17 h:2\r\n"));
        world.core.input(2, moved, world.now);
        assert_eq!(!world.core.redirected.is_empty(), is_sent_on);
    }
    set_mutant(None);
}
