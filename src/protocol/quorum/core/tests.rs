//! One node, connected and asked step by step.

mod cluster;
mod debts;
mod directory;
mod ends;
mod first_wait;
mod leader;
mod news;
mod slots;

use super::*;
use crate::proof::fixtures::{MS, key, ttl};
use crate::protocol::commands::action::{Action, Key, Notify};
use crate::protocol::mutants::set_mutant;
use crate::protocol::node::node_events::NodeEvent;
use crate::protocol::node::outgoing::Outgoing;
use crate::protocol::node::server_properties::ServerProperties;
use crate::protocol::quorum::answer::Outcome;
use crate::protocol::quorum::op::NamedServer;
use crate::values::clock;
use crate::values::prefix::Prefix;
use crate::values::token::Token;

/// One node, which was not connected yet.
struct World {
    core: Core<u8>,
    now: Instant,
    sent: Vec<u8>,
}

impl World {
    fn new() -> World {
        World::of(1)
    }

    fn of(nodes: usize) -> World {
        let now = clock::instant();
        let timeouts = Timeouts {
            node: 50 * MS,
            connect: 1000 * MS,
        };
        let addresses = (0..nodes).map(|_| (Arc::from("x"), None));
        World {
            core: Core::new(addresses, timeouts, Prefix::default(), 1, now),
            now,
            sent: Vec::new(),
        }
    }

    /// A node at `h:1`, one of this many, that sits out for a second, with its worker, since its server has just been started.
    fn sitting_out(nodes: usize) -> World {
        let mut world = World::new();
        let guard = RestartGuard::new(1000 * MS, nodes);
        let addresses = std::iter::once((Arc::from("h:1"), Some(guard)));
        let timeouts = world.core.timeouts;
        world.core = Core::new(addresses, timeouts, Prefix::default(), 1, world.now);
        world.begin_to_connect();
        let connected = Ok(ServerProperties {
            uptime: Some((Duration::ZERO, world.now)),
            ..ServerProperties::default()
        });
        assert!(world.core.connected(0, connected, world.now));
        let tasks = [(); 2].map(|()| world.core.next(ThreadRole::Worker(0), world.now));
        assert!(
            matches!(tasks, [ThreadStep::Adopt { .. }, ThreadStep::Wait { .. }]),
            "{tasks:?}"
        );
        world
    }

    /// A node that is connected, to which an acquire is being written.
    fn sending() -> World {
        let mut world = World::new();
        world.begin_to_connect();
        world.connected(Ok(()));
        world.acquire();
        assert!(matches!(
            next_but_reads(&mut world),
            ThreadStep::Send { .. }
        ));
        world.output();
        world
    }

    fn acquire(&mut self) {
        self.acquire_until(None);
    }

    /// Acquires. An answer is useless after this time.
    fn acquire_until(&mut self, useful: Option<Duration>) {
        let useful = useful.map(|useful| self.now + useful);
        let op = Op::new(Action::Acquire(ttl(1000 * MS)), key(b"a")).until(useful);
        self.core.submit(op, 0, self.now);
    }

    /// Returns what the leader should do, once each node that needs a worker has one.
    fn next(&mut self) -> ThreadStep {
        loop {
            match self.core.next(ThreadRole::Leader, self.now) {
                ThreadStep::StartWorker { node } | ThreadStep::HandOver { node } => {
                    self.core.input(node, Input::Started(Ok(())), self.now);
                }
                next => return next,
            }
        }
    }

    fn input(&mut self, input: Input<'_>) {
        self.core.input(0, input, self.now);
    }

    fn output(&mut self) {
        self.output_to(0);
    }

    fn close(&mut self) {
        self.core
            .close(Closing::new(self.now, self.core.timeouts.node));
    }

    fn output_to(&mut self, node: usize) {
        let mut out = Outgoing::default();
        let own = std::iter::once(node).collect();
        self.core.output(own, &mut out, self.now);
        self.sent.append(&mut out.bytes);
    }

    fn begin_to_connect(&mut self) {
        self.begins_to_connect(0);
    }

    fn begins_to_connect(&mut self, node: usize) {
        self.next();
        let task = self.core.next(ThreadRole::Worker(node), self.now);
        assert!(matches!(task, ThreadStep::Connect { .. }), "{task:?}");
    }

    fn connected(&mut self, result: Result<(), Cause>) {
        self.now += 10 * MS;
        self.connected_to(0, result);
    }

    fn connected_to(&mut self, node: usize, result: Result<(), Cause>) {
        let properties = result.map(|()| ServerProperties {
            dialect: crate::protocol::commands::dialect::Dialect::ALL,
            server: "h:1".into(),
            ..ServerProperties::default()
        });
        if self.core.connected(node, properties, self.now) {
            let tasks = [(); 2].map(|()| self.core.next(ThreadRole::Worker(node), self.now));
            assert!(matches!(
                tasks,
                [ThreadStep::Adopt { .. }, ThreadStep::Reconnected]
            ));
        }
    }

    /// Sends the output, and answers it with `reply`.
    fn answers(&mut self, reply: &[u8]) {
        let next = self.next();
        assert!(matches!(next, ThreadStep::Send { .. }), "{next:?}");
        self.output();
        self.now += MS;
        self.input(Input::Received(Ok(reply)));
    }

    /// Why too few nodes have answered, if that is certain, and whether for good.
    fn failure(&mut self) -> Option<(String, bool)> {
        self.next();
        let (_, answer) = self.core.answers.pop()?;
        match answer.outcome {
            Outcome::Unavailable { errors, .. } => {
                Some((errors.to_string(), errors.is_permanent()))
            }
            _ => None,
        }
    }
}

/// Returns the leader's next step, once it has read all input that is here.
fn next_but_reads(world: &mut World) -> ThreadStep {
    loop {
        match world.next() {
            ThreadStep::Recv { node, until } if until == world.now => {
                let nothing = Input::Received(Ok(&[]));
                world.core.input(node, nothing, world.now);
            }
            next => return next,
        }
    }
}

#[test]
fn a_connection_that_must_log_in_again_is_replaced_and_refuses_nothing_for_good() {
    let mut world = World::new();
    world.acquire();
    world.begin_to_connect();
    world.connected(Ok(()));
    world.answers(b"-NOAUTH Authentication required.\r\n");
    let (text, for_good) = world.failure().unwrap();
    assert!(text.contains("NOAUTH") && !for_good, "{text}");
    // A refusal of the new connection is final.
    world.now += 1000 * MS;
    world.acquire();
    world.begin_to_connect();
    world.connected(Err(Cause::refused("NOAUTH Authentication required.")));
    let (text, for_good) = world.failure().unwrap();
    assert!(text.contains("NOAUTH") && for_good, "{text}");
}

#[test]
fn a_replica_is_left_at_once_and_tried_again_after_pauses_that_no_operation_shortens() {
    let mut world = World::new();
    world.acquire();
    world.begin_to_connect();
    world.connected(Ok(()));
    world.answers(b"-READONLY You can't write against a read only replica.\r\n");
    let (text, for_good) = world.failure().unwrap();
    assert!(
        text.contains("is a replica now: READONLY") && !for_good,
        "{text}"
    );
    // The node's name may lead to another server already.
    world.begin_to_connect();
    world.connected(Err(Cause::Replica(None)));
    for _ in 0..10 {
        world.acquire();
        world.next();
        let task = world.core.next(ThreadRole::Worker(0), world.now);
        assert!(matches!(task, ThreadStep::Wait { .. }), "{task:?}");
    }
    world.now += 1000 * MS;
    world.begin_to_connect();
    world.connected(Err(Cause::Replica(None)));
    let (text, for_good) = world.failure().unwrap();
    assert!(text.contains("it is tried again") && !for_good, "{text}");
    // Other pauses are shortened.
    world.now += 1000 * MS;
    world.begin_to_connect();
    world.connected(Err(Cause::Connect("refused".into())));
    world.acquire();
    world.begin_to_connect();
}

#[test]
fn a_try_to_connect_that_began_before_an_acquire_does_not_end_it_for_good() {
    let wrong = || Err(Cause::refused("WRONGPASS invalid"));
    let mut world = World::new();
    world.acquire();
    world.begin_to_connect();
    world.connected(wrong());
    let (text, for_good) = world.failure().unwrap();
    assert!(text.contains("WRONGPASS") && for_good, "{text}");
    // This acquire is wanted while the next try is under way.
    world.now += 1000 * MS;
    world.begin_to_connect();
    world.now += MS;
    world.acquire();
    world.connected(wrong());
    assert_eq!(world.failure(), None);
    world.begin_to_connect();
    world.connected(wrong());
    let (_, for_good) = world.failure().unwrap();
    assert!(for_good);
    // A cause that may pass by itself still ends a try.
    world.now += 1000 * MS;
    world.begin_to_connect();
    world.now += MS;
    world.acquire();
    world.connected(Err(Cause::Connect("refused".into())));
    assert!(!world.failure().unwrap().1);
}

#[test]
fn an_acquire_that_has_become_useless_blames_no_node() {
    let failure = |world: &mut World, passes| {
        world.now += passes;
        world.next();
        match world.core.answers.pop().unwrap().1.outcome {
            Outcome::Unavailable {
                errors, useless, ..
            } => (errors.iter().count(), useless, errors.to_string()),
            _ => panic!("there are answers"),
        }
    };
    // The node is still connecting.
    let mut world = World::new();
    world.acquire_until(Some(MS));
    world.begin_to_connect();
    let (named, useless, _) = failure(&mut world, MS);
    assert_eq!((named, useless), (1, true));
    // Too late to ask.
    world.connected(Ok(()));
    world.acquire_until(Some(Duration::ZERO));
    let (named, useless, text) = failure(&mut world, Duration::ZERO);
    assert_eq!((named, useless), (1, true));
    assert!(text.ends_with("not asked in time"), "{text}");
    // The node has not answered: it may have had no time for that.
    for (until, passes, expected) in [(3, 3, true), (3, 9, true), (4, 4, false), (51, 50, false)] {
        let mut world = World::new();
        world.begin_to_connect();
        world.connected(Ok(()));
        world.acquire_until(Some(until * MS));
        assert!(matches!(world.next(), ThreadStep::Send { .. }));
        world.output();
        world.now += passes * MS;
        // No reply arrived; the undo is written.
        loop {
            match world.next() {
                ThreadStep::Recv { .. } => world.input(Input::Received(Ok(&[]))),
                ThreadStep::Send { .. } => world.output(),
                _ => break,
            }
        }
        let (named, useless, text) = failure(&mut world, Duration::ZERO);
        assert_eq!((named, useless), (1, expected), "{until}, {passes}: {text}");
    }
    // The node cannot be connected.
    let mut world = World::new();
    world.acquire();
    world.begin_to_connect();
    world.connected(Err(Cause::Connect("refused".into())));
    world.failure();
    world.acquire_until(Some(MS));
    let (named, useless, text) = failure(&mut world, MS);
    assert_eq!((named, useless), (1, false), "{text}");
    assert!(text.ends_with("refused"), "{text}");
}

/// The lock was never there.
#[test]
fn nothing_is_logged_of_the_undo_of_an_acquire_that_a_server_refused() {
    let mut world = World::new();
    world.acquire();
    world.begin_to_connect();
    world.connected(Ok(()));
    world.answers(b"-NOPERM this user may not\r\n");
    world.sent.clear();
    world.answers(b"-NOPERM this user may not\r\n");
    let undo = world.sent.escape_ascii().to_string();
    assert!(undo.contains("EVALSHA"), "{undo}");
    let (_, for_good) = world.failure().unwrap();
    assert!(for_good);
    let notice =
        |(_, event, _): &(usize, NodeEvent, Instant)| matches!(event, NodeEvent::Notice(..));
    assert!(!world.core.events.take().iter().any(notice));
}

#[test]
fn what_prolongs_a_lock_is_not_written_behind_what_ends_it() {
    let extend = Action::Extend(ttl(60_000 * MS), ttl(60_000 * MS));
    for (end, written) in [
        (Action::Shorten(ttl(1000 * MS)), 1),
        (Action::Leak(ttl(1000 * MS)), 1),
        // An extension finds nothing behind a release.
        (Action::Release(Notify::First), 2),
    ] {
        let mut world = World::new();
        world.acquire();
        world.begin_to_connect();
        world.connected(Ok(()));
        world.answers(b"+OK\r\n");
        assert!(world.core.answers.pop().is_some());
        let mut submit = |action, key| world.core.submit(Op::new(action, key), 0, world.now);
        let another = Key::new(Arc::from(&b"b"[..]), Token::from_bytes([9; 20]), None);
        submit(extend.clone(), another);
        submit(extend.clone(), key(b"a"));
        submit(Action::Repair(ttl(60_000 * MS)), key(b"a"));
        submit(end.clone(), key(b"a"));
        world.sent.clear();
        world.next();
        world.output();
        let sent = String::from_utf8_lossy(&world.sent).into_owned();
        assert_eq!(sent.matches("$5\r\n60000").count(), written, "{end:?}");
        assert!(sent.contains("$1\r\nb\r\n"), "{end:?}");
    }
}

/// Each panic is a bug. Nothing waits for the thread, and another one takes its place.
#[test]
fn a_thread_that_has_panicked_is_replaced() {
    let mut world = World::new();
    world.begin_to_connect();
    world.core.deserted(ThreadRole::Worker(0), world.now);
    let next = world.core.next(ThreadRole::Leader, world.now);
    assert!(
        matches!(next, ThreadStep::StartWorker { node: 0 }),
        "{next:?}"
    );
    // Which bytes were written is uncertain.
    let mut world = World::sending();
    world.core.deserted(ThreadRole::Leader, world.now);
    let (_, answer) = world.core.answers.pop().unwrap();
    assert!(matches!(answer.outcome, Outcome::Unavailable { .. }));
    let next = world.core.next(ThreadRole::Leader, world.now);
    assert!(
        matches!(next, ThreadStep::StartWorker { node: 0 }),
        "{next:?}"
    );
    // The releases must still be confirmed.
    let mut world = World::new();
    world.begin_to_connect();
    world.connected(Ok(()));
    let op = Op::new(Action::Release(Notify::None), key(b"a"));
    world.core.submit(op.only_write(true), 0, world.now);
    assert!(matches!(
        next_but_reads(&mut world),
        ThreadStep::Send { .. }
    ));
    world.output();
    for _ in 0..2 {
        let leader = [(); 2].map(|()| next_but_reads(&mut world));
        assert!(matches!(
            leader,
            [ThreadStep::StartConfirmer, ThreadStep::Finished]
        ));
        world.core.deserted(ThreadRole::Confirmer, world.now);
    }
}

/// Another node is still being connected for the first time.
#[test]
fn a_release_for_some_nodes_ends_when_they_have_answered() {
    // For one of three nodes: at once. For all of them: when the node timeout of the others is over, but no later.
    for (nodes, answers, ends) in [(1, 1, 0), (3, 2, 50)] {
        let mut world = World::of(3);
        let key = key(b"a").sent_to(NodeSet::first(nodes));
        let op = Op::new(Action::Release(Notify::None), key).to(NodeSet::first(nodes));
        world.core.submit(op, 0, world.now);
        (0..3).for_each(|node| world.begins_to_connect(node));
        for node in 0..answers {
            world.connected_to(node, Ok(()));
            let next = world.next();
            assert!(matches!(next, ThreadStep::Send { .. }), "{next:?}");
            world.output_to(node);
            let reply = Input::Received(Ok(b":1\r\n"));
            world.core.input(node, reply, world.now);
        }
        world.now += ends * MS;
        let next = world.next();
        assert_eq!(world.core.answers.len(), 1, "for {nodes} nodes");
        assert!(
            !matches!(next, ThreadStep::Wait { .. }),
            "for {nodes} nodes"
        );
    }
}

#[test]
fn a_node_was_tried_if_it_is_connected_if_a_try_has_ended_or_if_none_can_begin() {
    let all = [u64::MAX];
    let mut world = World::new();
    let before = world.core.connect_now();
    assert!(!world.core.has_tried(&before));
    world.begin_to_connect();
    world.connected(Err(Cause::Closed("at once".into())));
    assert!(world.core.has_tried(&before));
    let before = world.core.connect_now();
    assert!(!world.core.has_tried(&before));

    let mut world = World::new();
    world.begin_to_connect();
    world.connected(Ok(()));
    assert!(world.core.has_tried(&all));

    let mut world = World::new();
    let next = world.core.next(ThreadRole::Leader, world.now);
    assert!(matches!(next, ThreadStep::StartWorker { .. }), "{next:?}");
    world.input(Input::Started(Err(Cause::Closed("no thread".into()))));
    assert!(world.core.has_tried(&all));
}

/// Otherwise one would be started with each of them.
#[test]
fn the_thread_that_confirms_the_ends_of_locks_stays_a_while_after_each() {
    for (action, only_write, stays) in [
        (Action::Release(Notify::None), false, true),
        (Action::Release(Notify::None), true, true),
        (Action::Shorten(ttl(1000 * MS)), false, true),
        (Action::Acquire(ttl(1000 * MS)), true, false),
    ] {
        let mut world = World::new();
        let op = Op::new(action, key(b"a")).only_write(only_write);
        world.core.submit(op, 0, world.now);
        let next = world.core.next(ThreadRole::Confirmer, world.now);
        let waits = matches!(next, ThreadStep::Wait { .. });
        assert_eq!(waits, stays, "{next:?}, {only_write}");
    }
}
