//! A minority that is silent, or takes in nothing, costs the others next to nothing.

use crate::support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redlock_sync::{Error, Redlock};
use support::*;

/// Too long for anything here to be explained by waiting for it.
const TIMEOUT: Duration = Duration::from_secs(4);

fn patient(servers: &[Server]) -> Redlock {
    let redlock = connected(servers)
        .with_options(options().node_timeout(TIMEOUT))
        .unwrap();
    for _ in 0..20 {
        take(&redlock, "warm").release().unwrap();
    }
    redlock
}

fn subsets(nodes: usize, most: u32) -> impl Iterator<Item = Vec<usize>> {
    let members = move |set: u32| (0..nodes).filter(move |node| set & (1 << node) != 0);
    let sets = (1..1_u32 << nodes).filter(move |set| set.count_ones() <= most);
    sets.map(move |set| members(set).collect())
}

#[test]
fn a_silent_minority_costs_a_fraction_of_the_node_timeout() {
    let servers = Server::several(5);
    for silent in subsets(5, 2) {
        let redlock = patient(&servers);
        let mut held = take(&redlock, "held");
        silent.iter().for_each(|node| servers[*node].stop());
        let started = Instant::now();
        take(&redlock, "a").release().unwrap();
        held.extend(2 * TTL).unwrap();
        drop(held);
        let took = started.elapsed();
        silent.iter().for_each(|node| servers[*node].resume());
        assert!(took < TIMEOUT / 4, "{silent:?}: {took:?}");
    }
}

/// The lock's own deadline comes long before the silent node's.
#[test]
fn a_silent_minority_loses_no_lock_with_less_validity_left_than_the_node_timeout() {
    std::thread::scope(|scope| {
        for (nodes, part) in [(3, 0), (5, 0), (5, 1), (5, 2), (5, 3), (5, 4)] {
            scope.spawn(move || {
                let servers = Server::several(nodes);
                let most = u32::try_from(nodes / 2).unwrap();
                let subsets = subsets(nodes, most).enumerate();
                let mine = subsets.filter(|(i, _)| nodes == 3 || i % 5 == part);
                for (i, silent) in mine {
                    loses_nothing(&servers, &silent, i % 2 == 0);
                }
            });
        }
    });
}

fn loses_nothing(servers: &[Server], silent: &[usize], extends_first: bool) {
    let ttl = TIMEOUT / 2;
    let name = format!("{silent:?} of {}", servers.len());
    let redlock = patient(servers);
    let mut lock = redlock.try_acquire("a", ttl).unwrap().unwrap();
    let kept = redlock.try_acquire("kept", ttl).unwrap().unwrap();
    let kept = kept.keep_alive(TTL).unwrap();
    silent.iter().for_each(|node| servers[*node].stop());
    // Whichever comes first meets the silence.
    let mut extended = Ok(());
    if extends_first {
        extended = lock.extend(TTL);
    }
    let taken = redlock.try_acquire("b", ttl);
    if !extends_first {
        extended = lock.extend(TTL);
    }
    let lost = kept.wait_lost(2 * ttl);
    silent.iter().for_each(|node| servers[*node].resume());
    extended.unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(taken.unwrap().is_some(), "{name}");
    assert!(!lost, "{name}");
    eventually("nothing is left", || {
        drop(redlock.try_acquire("b", ttl));
        servers[silent[0]].keys().len() <= 2
    });
}

/// There is more to be written to it than its connection takes in, and now and then it wakes for a moment
/// and answers. The thread that finds out that it is stuck delays the others by half a node timeout.
#[test]
fn a_stuck_node_delays_no_call_while_it_is_away() {
    let servers = Server::several(3);
    let timeout = TIMEOUT / 2;
    let redlock = connected(&servers)
        .with_options(options().node_timeout(timeout))
        .unwrap();
    take(&redlock, "warm").release().unwrap();
    let over = AtomicBool::new(false);
    let worst = std::thread::scope(|scope| {
        let (redlock, over) = (&redlock, &over);
        let user = |i: usize| {
            scope.spawn(move || {
                let mut worst = Duration::ZERO;
                while !over.load(Ordering::Relaxed) {
                    let started = Instant::now();
                    take(redlock, &format!("user {i}")).release().unwrap();
                    worst = worst.max(started.elapsed());
                    std::thread::sleep(ms(1));
                }
                worst
            })
        };
        let users: Vec<_> = (0..2).map(user).collect();
        scope.spawn(move || {
            for i in 0.. {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                drop(take(
                    redlock,
                    &format!("{} {}", i % 100, "long".repeat(15_000)),
                ));
            }
        });
        let _over = OnDrop(over);
        for _ in 0..3 {
            servers[2].stop();
            std::thread::sleep(2 * timeout);
            servers[2].resume();
            std::thread::sleep(ms(10));
        }
        over.store(true, Ordering::Relaxed);
        let worst = users.into_iter().map(|user| user.join().unwrap()).max();
        worst.unwrap()
    });
    assert!(worst < timeout * 3 / 4, "{worst:?}");
    eventually("nothing is left", || {
        drop(take(&redlock, "a"));
        servers.iter().all(|server| server.keys().is_empty())
    });
}

/// One thread waits for a node that is away, and leads; what others submit the moment that they are
/// answered does not wait with it.
#[test]
fn a_thread_that_submits_while_the_leader_delivers_answers_is_not_kept_waiting() {
    let servers = Server::several(3);
    let redlock = patient(&servers);
    let mut held = take(&redlock, "held");
    // The verdict on it needs the node that is silent.
    servers[1].command(&["DEL", "held"]);
    servers[2].stop();
    take(&redlock, "meets the silence").release().unwrap();
    let end = Instant::now() + 2 * TIMEOUT;
    let (pairs, worst) = std::thread::scope(|scope| {
        scope.spawn(|| {
            while Instant::now() < end {
                assert!(matches!(held.extend(TTL), Err(Error::Unavailable(_))));
            }
        });
        let (mut pairs, mut worst) = (0, Duration::ZERO);
        while Instant::now() < end {
            let started = Instant::now();
            take(&redlock, "a").release().unwrap();
            worst = worst.max(started.elapsed());
            pairs += 1;
        }
        (pairs, worst)
    });
    servers[2].resume();
    assert!(worst < TIMEOUT / 2, "{worst:?} in {pairs} pairs");
}

/// One thread waits for nodes that are away; what others can do without them goes on.
#[test]
fn a_thread_that_waits_for_nodes_that_are_away_delays_no_other() {
    let servers = Server::several(3);
    let relays = [1, 2].map(|node| relay::Relay::to(servers[node].port()));
    let nodes = [servers[0].url(), relays[0].url(), relays[1].url()];
    let redlock = Redlock::new(nodes).unwrap();
    let redlock = redlock
        .with_options(options().node_timeout(TIMEOUT).connect_timeout(3 * TIMEOUT))
        .unwrap();
    let held = take(&redlock, "held");
    // Connections can be made, and nothing comes of them.
    for relay in &relays {
        relay.set(|policy| policy.up.stalled = true);
        relay.cut();
    }
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let started = Instant::now();
            unavailable(redlock.try_acquire("a", TTL));
            started.elapsed()
        });
        std::thread::sleep(ms(500));
        let started = Instant::now();
        drop(held);
        let took = started.elapsed();
        assert!(took < TIMEOUT / 4, "{took:?}");
        let waited = waits.join().unwrap();
        assert!(waited > TIMEOUT / 2, "{waited:?}");
    });
    assert!(!servers[0].exists("held"));
    relays.iter().for_each(relay::Relay::heal);
    eventually("nothing is left", || {
        drop(redlock.acquire("b", TTL));
        servers.iter().all(|server| server.keys().is_empty())
    });
}
