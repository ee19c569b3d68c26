//! Nodes whose clocks are set while locks are held. Real servers, with a preload that shifts their wall clocks.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use crate::support;

use redlock_sync::{Event, LockState, LostReason, Options, Redlock};
use support::clocks::{Clock, Clocks};
use support::clusters::{Cluster, Plan};
use support::*;

const S: Duration = Duration::from_secs(1);
const MAX_TTL: Duration = Duration::from_secs(4);
/// A server has been up for so long, by its clock, when it is first asked: longer than it has to be.
const UP: i64 = 60;

/// A server with a clock of its own.
struct Node {
    server: Server,
    clock: Clock,
}

impl Node {
    /// Its clock is so far ahead from now on.
    fn set(&self, seconds: i64) {
        self.clock.set(seconds * 1_000_000_000);
    }

    /// It is set forward after the first clients came.
    fn set_forward(&self, seconds: i64) {
        self.set(UP + seconds);
    }
}

/// Such servers. `None`: this machine has no C compiler.
fn nodes(test: &str, count: usize) -> Option<(Clocks, Vec<Node>)> {
    let clocks = Clocks::build(test)?;
    let node = |number: usize| {
        let (server, clock) = clocks.server(&number.to_string());
        let node = Node { server, clock };
        node.set(UP);
        node
    };
    let nodes = (0..count).map(node).collect();
    Some((clocks, nodes))
}

fn client(nodes: &[&Node], guarded: bool) -> Redlock {
    client_with(nodes, if guarded { MAX_TTL } else { Duration::ZERO })
}

fn client_with(nodes: &[&Node], guard: Duration) -> Redlock {
    let urls: Vec<String> = nodes.iter().map(|node| node.server.url()).collect();
    let options: Options = unhurried().restart_guard(guard).wait(Duration::ZERO);
    let redlock = Redlock::new(urls.iter().map(String::as_str)).unwrap();
    let redlock = redlock.with_options(options).unwrap();
    eventually("all nodes vote", || {
        let lock = redlock.try_acquire("connecting", S);
        let lock = lock.ok().flatten();
        lock.is_some_and(|lock| {
            let all = nodes.iter().all(|node| node.server.exists("connecting"));
            lock.release().unwrap();
            all
        })
    });
    redlock
}

fn text_of_step(text: &str) -> bool {
    text.contains("its clock was set forward by ") && text.contains("it grants no lock for ")
}

#[test]
fn a_clock_that_is_set_forward_makes_two_holders_only_without_the_guard() {
    for guarded in [false, true] {
        for cut in [false, true] {
            let Some((_dir, nodes)) = nodes("one node's clock", 1) else {
                return;
            };
            let node = &nodes[0];
            let [ann, bob] = [0, 1].map(|_| client(&[node], guarded));
            let held = ann.try_acquire("a", MAX_TTL).unwrap().unwrap();
            if cut {
                node.server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
            }
            node.set_forward(12);
            let other = bob.try_acquire("a", MAX_TTL);
            if !guarded {
                assert!(other.unwrap().is_some() && held.is_valid(), "two holders");
                continue;
            }
            let errors = unavailable(other);
            let wait = errors.retry_after().unwrap();
            assert!(!wait.is_zero() && wait <= MAX_TTL, "{wait:?}");
            let text = errors.to_string();
            assert!(text_of_step(&text) && text.contains(" 12 s"), "{text}");
            // Nothing is left behind, and the lock is granted again.
            assert!(!node.server.exists("a"));
            eventually("the node grants it", || {
                let granted = matches!(bob.try_acquire("a", MAX_TTL), Ok(Some(_)));
                assert!(!granted || !held.is_valid(), "two holders");
                granted
            });
        }
    }
}

#[test]
fn an_observer_is_told_which_clock_was_set_how_far_and_for_how_long_its_node_grants_nothing() {
    let Some((_dir, nodes)) = nodes("an observer", 1) else {
        return;
    };
    let node = &nodes[0];
    let (sender, events) = channel();
    let redlock = client(&[node], true).with_observer(move |event| match event {
        Event::NodeAway { error, .. } => {
            let _ = sender.send(error.to_string());
        }
        Event::NodeBack { address, .. } => {
            let _ = sender.send(format!("{address} is back"));
        }
        _ => {}
    });
    take_and_release(&redlock);
    node.set_forward(12);
    unavailable(redlock.try_acquire("a", MAX_TTL));
    let told = || events.recv_timeout(60 * S).unwrap();
    let (text, address) = (told(), format!("127.0.0.1:{}", node.server.port()));
    assert!(text.starts_with(&address) && text_of_step(&text), "{text}");
    assert!(
        text.contains(" by 12 s") && text.contains(" for 4 s"),
        "{text}"
    );
    eventually("it grants again", || redlock.try_acquire("a", S).is_ok());
    assert_eq!(told(), format!("{address} is back"));
}

/// Kleppmann's example: the first lock lies on a bare majority, and the clock of one of its nodes is set.
#[test]
fn a_minority_whose_clocks_are_set_forward_makes_two_holders_only_without_the_guard() {
    for guarded in [false, true] {
        let Some((_dir, nodes)) = nodes("the clock of one of three", 3) else {
            return;
        };
        let all: Vec<&Node> = nodes.iter().collect();
        let bob = client(&all, guarded);
        let ann = client(&all, guarded);
        // One node that Ann does not reach.
        let held = {
            nodes[2]
                .server
                .command(&["ACL", "SETUSER", "default", "-set", "-eval", "-evalsha"]);
            let held = ann.try_acquire("a", MAX_TTL).unwrap().unwrap();
            nodes[2]
                .server
                .command(&["ACL", "SETUSER", "default", "+@all"]);
            held
        };
        assert!(!nodes[2].server.exists("a"));
        nodes[1].set_forward(12);
        let other = bob.try_acquire("a", MAX_TTL);
        let has_it = matches!(&other, Ok(Some(_)));
        assert!(held.is_valid() && has_it != guarded, "{guarded}: {other:?}");
    }
}

/// Where a lock was refilled, its key may have been set behind the step (rule R60).
#[test]
fn behind_a_step_an_extension_counts_on_no_node_that_was_only_refilled() {
    let Some((_dir, nodes)) = nodes("an extension", 3) else {
        return;
    };
    let all: Vec<&Node> = nodes.iter().collect();
    let ann = client(&all, true);
    let last = &nodes[2].server;
    last.command(&["ACL", "SETUSER", "default", "-set", "-eval", "-evalsha"]);
    let mut held = ann.try_acquire("a", MAX_TTL).unwrap().unwrap();
    last.command(&["ACL", "SETUSER", "default", "+@all"]);
    assert!(!last.exists("a"));
    held.extend(MAX_TTL).unwrap();
    eventually("the last node is refilled", || last.exists("a"));
    nodes[2].set_forward(1);
    nodes[0].server.command(&["DEL", "a"]);
    // Two nodes have the key, and one of these has never voted for the lock.
    let text = unavailable(held.extend(MAX_TTL)).to_string();
    assert!(last.exists("a") && text_of_step(&text), "{text}");
}

/// Its renewals find the key, and count on the only node.
#[test]
fn a_kept_lock_outlives_a_step_of_less_than_two_thirds_of_its_ttl() {
    let Some((_dir, nodes)) = nodes("a kept lock", 1) else {
        return;
    };
    let node = &nodes[0];
    // A renewal may be late by more than a second.
    let max_ttl = 2 * MAX_TTL;
    let [ann, bob] = [0, 1].map(|_| client_with(&[node], max_ttl));
    let held = ann.try_acquire("a", max_ttl).unwrap().unwrap();
    let held = held.keep_alive(Duration::from_secs(60)).unwrap();
    node.set_forward(4);
    let set = Instant::now();
    eventually("its first deadline is over", || set.elapsed() > max_ttl);
    assert!(held.is_valid() && matches!(bob.try_acquire("a", max_ttl), Ok(None)));
    // And none that is longer.
    node.set_forward(16);
    unavailable(bob.try_acquire("a", max_ttl));
    eventually("its holder learns that", || held.lost().is_some());
    // Found by a renewal, not at the end of its validity.
    assert_eq!(held.lost(), Some(LostReason::Deleted));
}

/// A clock that is set back ends locks later.
#[test]
fn a_clock_that_is_set_back_or_that_may_not_be_read_keeps_no_lock_from_being_granted() {
    let Some((_dir, nodes)) = nodes("a clock that is set back", 1) else {
        return;
    };
    let node = &nodes[0];
    let bob = client(&[node], true);
    node.set(0);
    take_and_release(&bob);
    // A user that may not read it.
    node.server.command(&["ACL", "SETUSER", "default", "-time"]);
    node.set(UP);
    let carol = client(&[node], true);
    node.set_forward(12);
    take_and_release(&carol);
}

fn take_and_release(redlock: &Redlock) {
    let lock = redlock.try_acquire("a", S).unwrap();
    lock.expect("it is free").release().unwrap();
}

/// Beside a Redis Cluster, each of its shards has connections of its own to the other nodes. Those for one shard are made
/// only after the step.
#[test]
fn a_clock_beside_a_cluster_that_is_set_forward_is_noticed_by_the_connections_for_another_shard() {
    let Some((_dir, nodes)) = nodes("clocks beside a Cluster", 2) else {
        return;
    };
    let cluster = Cluster::masters(2);
    let urls = || {
        let nodes = nodes.iter().map(|node| node.server.url());
        nodes.chain([cluster.url()])
    };
    let client = || {
        let options = unhurried().restart_guard(MAX_TTL).wait(Duration::ZERO);
        let redlock = Redlock::new(urls()).unwrap();
        redlock.with_options(options).unwrap()
    };
    let on_both = |redlock: &Redlock, name: &str| {
        let mut held = None;
        eventually("both nodes vote", || {
            held = redlock.try_acquire(name, MAX_TTL).ok().flatten();
            held.is_some() && nodes.iter().all(|node| node.server.exists(name))
        });
        held.unwrap()
    };
    let [ann, bob] = [0, 1].map(|_| client());
    let (first, second) = (cluster.name(0), cluster.name(1));
    on_both(&bob, &first).release().unwrap();
    let held = on_both(&ann, &second);
    nodes.iter().for_each(|node| node.set_forward(12));
    let other = bob.try_acquire(&second, MAX_TTL);
    assert!(held.is_valid());
    let text = unavailable(other).to_string();
    assert!(text_of_step(&text), "{text}");
}

/// By chrony's default a clock is slewed by 8.3 %. What that gains in all is what counts.
#[test]
fn a_clock_that_gains_up_to_ten_milliseconds_quickly_was_not_set_and_one_that_gains_more_was() {
    for (gains, alarm) in [(9, false), (40, true)] {
        let Some((_clocks, nodes)) = nodes("a clock that is slewed", 1) else {
            return;
        };
        let node = &nodes[0];
        let bob = client(&[node], true);
        node.clock.slew(83_333, Some(ms(gains)));
        let begun = Instant::now();
        eventually("the clock is right", || {
            let found = bob.try_acquire("a", S);
            let found = found.is_err_and(|error| text_of_step(&error.to_string()));
            assert!(alarm || !found, "{gains} ms");
            if alarm { found } else { begun.elapsed() > S }
        });
    }
}

/// A server that was stopped answers late: that shows nothing of its clock. (The soak test stops clients as well.)
#[test]
fn a_server_that_is_stopped_for_seconds_is_taken_for_no_step() {
    let Some((_clocks, nodes)) = nodes("servers that are stopped", 1) else {
        return;
    };
    let node = &nodes[0];
    let bob = client(&[node], true);
    for time in [20, 300, 1500] {
        node.server.stop();
        let begun = Instant::now();
        let _ = bob.try_acquire("a", S);
        eventually("it was stopped for long", || begun.elapsed() > ms(time));
        node.server.resume();
        eventually("it grants locks", || {
            let result = bob.try_acquire("a", S);
            if let Err(error) = &result {
                assert!(!text_of_step(&error.to_string()), "{error}");
            }
            matches!(result, Ok(Some(_)))
        });
    }
}

/// Both kinds have the end of each holder as a time of day, and a move takes that along as it is.
#[test]
fn permits_and_readers_outlast_a_move_to_a_server_whose_clock_is_ahead() {
    let Some(clocks) = Clocks::build("a clock of a Cluster's server") else {
        return;
    };
    let clock = clocks.clock("0");
    let ahead = clock.clone();
    let cluster = Cluster::with(Plan {
        masters: 2,
        over_tls: over_tls(),
        clocks: Some((Arc::new(clocks), vec![clock])),
        ..Plan::default()
    });
    ahead.set(3600 * 1_000_000_000);
    let [ann, bob] = [0, 1].map(|_| cluster.client());
    let ttl = 60 * S;
    for (at, name) in [cluster.name(0), cluster.name(1)].iter().enumerate() {
        let permit = |redlock: &Redlock| redlock.semaphore(name, 1).unwrap();
        let read = ann.read_lock(name).unwrap();
        let write = bob.write_lock(name).unwrap();
        for (one, other) in [(permit(&ann), permit(&bob)), (read, write)] {
            let mut held = one.try_acquire(ttl).unwrap().unwrap();
            let mut longest = ttl;
            for to in [1 - at, at, 1 - at, at] {
                cluster.move_slot(name, to);
                let denied = other.try_acquire(ttl).unwrap();
                assert!(held.is_valid() && denied.is_none(), "{name} at {to}");
                let state = bob.inspect(name).unwrap().state();
                let (LockState::Permits { holders, .. } | LockState::Readers { holders, .. }) =
                    &state
                else {
                    panic!("{name} at {to}: {state:?}");
                };
                assert!(holders[0].1 + S / 2 > held.remaining(), "{state:?}");
                longest += ttl;
                held.extend(longest).unwrap();
                let left = cluster.nodes[to].command(&["PTTL", name]);
                let left: u64 = redis::from_redis_value(left).unwrap();
                assert!(
                    ms(left) + S / 2 > held.remaining(),
                    "{name} at {to}: {left} ms"
                );
            }
            cluster.move_slot(name, 1 - at);
            held.release().unwrap();
            let second = other.try_acquire(ttl).unwrap();
            second.expect("it is free").release().unwrap();
            cluster.move_slot(name, at);
        }
    }
    cluster.nothing_is_left();
}
