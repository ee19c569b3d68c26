//! Debts of a node: ends of locks that it has not carried out.

use super::*;
use crate::protocol::commands::node_queue::Channel;
use crate::protocol::commands::scripts::{EXTEND, RELEASE, RELEASE_AND_NOTIFY, Script};

/// Other servers are sent these debts when the node's servers are no longer used.
#[test]
fn what_a_node_owes_is_what_was_refused_for_now_not_answered_and_not_sent() {
    let mut world = World::new();
    let release = |world: &mut World, name: &[u8]| {
        let key = key(name).sent_to(NodeSet::first(1));
        let op = Op::new(Action::Release(Notify::None), key).only_write(true);
        world.core.submit(op, 0, world.now);
    };
    world.begin_to_connect();
    world.connected(Ok(()));
    release(&mut world, b"done");
    world.answers(b":1\r\n");
    release(&mut world, b"refused");
    world.answers(b"-NOREPLICAS Not enough good replicas to write.\r\n");
    release(&mut world, b"not answered");
    world.next();
    world.output();
    let owed = |world: &mut World| {
        assert!(world.core.redirected.is_empty());
        let owed = world.core.take_debts(|_| true);
        let names = owed
            .iter()
            .map(|(at, debt)| (*at, debt.key.resource.to_vec()));
        names.collect::<Vec<_>>()
    };
    // The refused release was sent once more.
    let [refused, unanswered, unsent] =
        ["refused", "not answered", "not sent"].map(|name| (0, name.as_bytes().to_vec()));
    assert_eq!(owed(&mut world), [unanswered.clone(), refused.clone()]);
    world.input(Input::Received(Err(Cause::Closed("it ended".into()))));
    release(&mut world, b"not sent");
    world.next();
    assert_eq!(owed(&mut world), [unanswered, refused, unsent]);
    assert_eq!(owed(&mut world), []);
}

/// With pauses, and until the key has ended.
#[test]
fn what_a_node_refuses_for_now_is_sent_again_without_an_operation() {
    const BUSY: &[u8] = b"-BUSY Redis is busy running a script.\r\n";
    let mut world = World::new();
    world.begin_to_connect();
    world.connected(Ok(()));
    for name in [b"a", b"b"] {
        let key = key(name).sent_to(NodeSet::ALL).lasting(ttl(10_000 * MS));
        let op = Op::new(Action::Release(Notify::First), key);
        world.core.submit(op, 0, world.now);
    }
    world.answers(&[BUSY, BUSY].concat());
    let began = world.now;
    assert!(matches!(
        next_but_reads(&mut world),
        ThreadStep::StartConfirmer
    ));
    let (mut pauses, mut sent) = (Vec::new(), 0);
    loop {
        match world.core.next(ThreadRole::Confirmer, world.now) {
            ThreadStep::Wait { until } => {
                pauses.push(until - world.now);
                world.now = until;
            }
            ThreadStep::TryToLead => {
                world.sent.clear();
                assert!(matches!(
                    next_but_reads(&mut world),
                    ThreadStep::Send { .. }
                ));
                world.output();
                if calls(&world, &RELEASE_AND_NOTIFY) == 1 {
                    sent += 1;
                    world.input(Input::Received(Ok(BUSY)));
                }
                assert!(matches!(next_but_reads(&mut world), ThreadStep::Finished));
            }
            next => {
                assert!(matches!(next, ThreadStep::Finished), "{next:?}");
                break;
            }
        }
    }
    let took = world.now - began;
    assert!(took >= 10_000 * MS && took < 12_000 * MS, "{took:?}");
    let longest = pauses.iter().max().unwrap();
    assert!(pauses[0] <= 100 * MS && *longest <= 700 * MS, "{pauses:?}");
    assert!((14..40).contains(&sent), "{sent} in {took:?}");
    assert_eq!(world.core.take_debts(|_| true).len(), 0);
}

/// How often this script is called in what was sent.
fn calls(world: &World, script: &Script) -> usize {
    let all = world.sent.windows(40);
    all.filter(|part| *part == script.hash).count()
}

/// A user without rights to the queue's key is refused the release with it, which is then sent without.
#[test]
fn a_release_that_is_sent_late_notifies_a_waiter_unless_the_queue_is_refused() {
    for (notify, script) in [
        (Notify::First, &RELEASE_AND_NOTIFY),
        (Notify::FirstBut(Channel::new([1; 16])), &RELEASE_AND_NOTIFY),
        (Notify::None, &RELEASE),
    ] {
        let mut world = World::new();
        world.begin_to_connect();
        world.connected(Ok(()));
        let op = Op::new(Action::Release(notify), own(NodeSet::ALL));
        world.core.submit(op, 0, world.now);
        world.answers(b"-OOM command not allowed\r\n");
        assert!(matches!(
            next_but_reads(&mut world),
            ThreadStep::StartConfirmer
        ));
        world.now += 100 * MS;
        let mut sends = |keys: u8, script: &Script| {
            assert!(matches!(
                next_but_reads(&mut world),
                ThreadStep::Send { .. }
            ));
            world.sent.clear();
            world.output();
            assert_eq!(calls(&world, script), 1, "{notify:?}");
            let expected = [script.hash, b"\r\n$1\r\n", &[b'0' + keys], b"\r\n"].concat();
            let mut parts = world.sent.windows(expected.len());
            assert!(parts.any(|part| part == expected), "{notify:?}, {keys}");
            // Nobody is passed over.
            let own = Channel::new([1; 16]).bytes();
            assert!(!world.sent.windows(own.len()).any(|part| part == own));
            let refused = b"-NOPERM No permissions to access a key\r\n";
            world.input(Input::Received(Ok(refused)));
        };
        if notify != Notify::None {
            sends(2, script);
        }
        sends(1, &RELEASE);
    }
}

/// A world whose only node has answered a release of this key so.
fn released(key: Key, answer: &[u8]) -> World {
    let mut world = World::new();
    world.begin_to_connect();
    world.connected(Ok(()));
    let op = Op::new(Action::Release(Notify::First), key);
    world.core.submit(op, 0, world.now);
    world.answers(answer);
    world
}

/// The key of a lock that this program has taken.
fn own(sent_to: NodeSet) -> Key {
    key(b"a").sent_to(sent_to).lasting(ttl(10_000 * MS))
}

/// Unless the user has no right to the name at all: then nothing of the lock is there. Nor if another program's lock was to
/// be broken, whose ttl is unknown: it would be broken at any time later.
#[test]
fn a_release_that_a_user_may_not_carry_out_for_now_is_sent_again() {
    let retries = |key: Key| {
        let answer =
            b"-ERR ACL failure in script: User u has no permissions to run the 'del' command\r\n";
        let mut world = released(key, answer);
        matches!(next_but_reads(&mut world), ThreadStep::StartConfirmer)
    };
    assert!(retries(own(NodeSet::ALL)));
    assert!(!retries(own(NodeSet::EMPTY)));
    assert!(!retries(key(b"a").sent_to(NodeSet::ALL)));
    set_mutant(Some(Mutant::RightsAreForGood));
    let found = !retries(own(NodeSet::ALL));
    set_mutant(None);
    assert!(found);
}

#[test]
fn what_a_node_refused_for_now_is_sent_as_a_whole_once_it_is_well() {
    for action in [
        Action::Release(Notify::First),
        Action::Shorten(ttl(5000 * MS)),
    ] {
        let mut world = World::new();
        world.begin_to_connect();
        world.connected(Ok(()));
        for name in [b"a", b"b", b"c"] {
            let key = key(name).sent_to(NodeSet::ALL).lasting(ttl(10_000 * MS));
            world
                .core
                .submit(Op::new(action.clone(), key), 0, world.now);
        }
        world.answers(&b"-OOM command not allowed\r\n".repeat(3));
        assert!(matches!(
            next_but_reads(&mut world),
            ThreadStep::StartConfirmer
        ));
        world.now += 100 * MS;
        for replies in [&b":1\r\n"[..], b":1\r\n:0\r\n"] {
            assert!(matches!(
                next_but_reads(&mut world),
                ThreadStep::Send { .. }
            ));
            world.output();
            world.input(Input::Received(Ok(replies)));
        }
        assert!(matches!(next_but_reads(&mut world), ThreadStep::Finished));
        assert_eq!(world.core.take_debts(|_| true).len(), 0);
    }
}

/// The rest of the time, when the node is back; after that time, a release.
#[test]
fn a_node_that_was_away_is_sent_the_rest_of_a_shortening() {
    for (away, left) in [(400, Some("\r\n600\r\n")), (1000, None), (5000, None)] {
        let mut world = World::new();
        let key = key(b"a").sent_to(NodeSet::ALL).lasting(ttl(60_000 * MS));
        let began = world.now;
        let op = Op::new(Action::Shorten(ttl(1000 * MS)), key).since(began);
        world.core.submit(op, 0, began);
        world.begin_to_connect();
        world.connected(Err(Cause::Connect("refused".into())));
        assert!(world.failure().is_some());
        world.now = began + away * MS;
        world.begin_to_connect();
        let properties = ServerProperties {
            dialect: crate::protocol::commands::dialect::Dialect::ALL,
            ..ServerProperties::default()
        };
        assert!(world.core.connected(0, Ok(properties), world.now));
        let tasks = [(); 2].map(|()| world.core.next(ThreadRole::Worker(0), world.now));
        assert!(
            matches!(tasks, [ThreadStep::Adopt { .. }, ThreadStep::Send { .. }]),
            "{tasks:?}"
        );
        world.output();
        let text = String::from_utf8_lossy(&world.sent);
        let script = match left {
            Some(_) => EXTEND,
            None => RELEASE,
        };
        let hash = str::from_utf8(script.hash).unwrap();
        assert!(text.contains(hash), "{text}");
        assert!(left.is_none_or(|left| text.contains(left)), "{text}");
    }
}

/// The time that is left begins with the call.
#[test]
fn a_shortening_that_waits_for_a_connection_leaves_the_rest_of_its_time() {
    for (waits, script, left) in [(190, EXTEND, "\r\n300\r\n"), (600, RELEASE, "")] {
        let mut world = World::new();
        let key = key(b"a").sent_to(NodeSet::ALL).lasting(ttl(60_000 * MS));
        let op = Op::new(Action::Shorten(ttl(500 * MS)), key).since(world.now);
        world.core.submit(op, 0, world.now);
        world.begin_to_connect();
        world.now += waits * MS;
        // Connected 10 ms later.
        world.connected(Ok(()));
        assert!(matches!(
            next_but_reads(&mut world),
            ThreadStep::Send { .. }
        ));
        world.output();
        let text = String::from_utf8_lossy(&world.sent);
        let hash = str::from_utf8(script.hash).unwrap();
        assert!(text.contains(hash) && text.contains(left), "{text}");
    }
}

#[test]
#[cfg(feature = "cli")]
fn a_majority_has_carried_out_what_few_nodes_are_owed() {
    let debt = || Some(Debt::release(key(b"a")));
    let mut world = World::of(3);
    assert!(!world.core.owes_any());
    for (node, owed) in [(0, OwedTo::Few), (1, OwedTo::Absent), (2, OwedTo::Absent)] {
        world.core.add_debt(node, debt());
        assert!(world.core.owes_any());
        assert_eq!(world.core.who_is_owed(0), owed, "{node}");
        // Another holder may have the key on the third node.
        assert_eq!(world.core.who_is_owed(1), OwedTo::Absent, "{node}");
    }
    // Nodes that are connected may carry it out yet.
    for (connected, owed) in [(0, OwedTo::Absent), (1, OwedTo::Absent), (2, OwedTo::Many)] {
        let mut world = World::of(3);
        (0..3).for_each(|node| world.begins_to_connect(node));
        (0..connected).for_each(|node| world.connected_to(node, Ok(())));
        (0..3).for_each(|node| world.core.add_debt(node, debt()));
        assert_eq!(world.core.who_is_owed(0), owed, "{connected} of three");
    }
}
