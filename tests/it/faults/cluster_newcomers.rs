//! Slots of a Redis Cluster that go to a master which has none yet: no map has it before the first of them has arrived.

use crate::support;

use std::time::Duration;

use redlock_sync::{LockState, Redlock};
use support::clusters::{Cluster, Move};
use support::*;

const S: Duration = Duration::from_secs(1);
/// Much longer than all that is waited for: a release that is lost is found out.
const LONG: Duration = Duration::from_secs(600);
/// The guard of these tests holds back the votes of a server for six seconds more after its start.
const GUARD: Duration = Duration::from_secs(3);
/// The master without slots.
const NEW: usize = 3;

fn first_move(cluster: &Cluster) -> (String, Move<'_>) {
    let name = cluster.name(0);
    let moving = cluster.begin_to_move(&name, NEW);
    (name, moving)
}

fn is_held(redlock: &Redlock, name: &str) -> bool {
    let state = redlock.inspect(name).unwrap().state();
    matches!(state, LockState::Held { .. })
}

#[test]
fn a_lock_is_taken_extended_and_released_at_a_master_that_has_no_slot_yet() {
    let cluster = Cluster::with_newcomer();
    let [redlock, other] = [cluster.client(), cluster.client()];
    let (name, moving) = first_move(&cluster);
    for _ in 0..2 {
        let mut lock = redlock.try_acquire(&name, LONG).unwrap().unwrap();
        assert_eq!(cluster.nodes_with(&name), [NEW]);
        assert!(other.try_acquire(&name, LONG).unwrap().is_none());
        lock.extend(LONG).unwrap();
        assert!(is_held(&other, &name));
        lock.release().unwrap();
        assert!(cluster.keys().is_empty());
    }
    let lock = redlock.try_acquire(&name, LONG).unwrap().unwrap();
    moving.end();
    lock.release().unwrap();
    cluster.nothing_is_left();
}

/// Its key goes while it is held.
#[test]
fn a_held_lock_goes_to_a_master_that_has_no_slot_yet() {
    let cluster = Cluster::with_newcomer();
    let [redlock, other] = [cluster.client(), cluster.client()];
    let mut lock = take(&redlock, &cluster.name(0));
    let (name, moving) = first_move(&cluster);
    lock.extend(2 * TTL).unwrap();
    assert_eq!(cluster.nodes_with(&name), [0]);
    moving.key(&name);
    assert_eq!(cluster.nodes_with(&name), [NEW]);
    lock.extend(2 * TTL).unwrap();
    assert!(other.try_acquire(&name, TTL).unwrap().is_none());
    lock.release().unwrap();
    take(&other, &name).release().unwrap();
    moving.end();
    take(&redlock, &name).release().unwrap();
    cluster.nothing_is_left();
}

#[test]
fn a_kept_lock_is_renewed_at_a_master_that_has_no_slot_yet() {
    let cluster = Cluster::with_newcomer();
    let redlock = cluster.client();
    let lock = redlock.acquire(cluster.name(0), 6 * S).unwrap();
    let lock = lock.keep_alive(600 * S).unwrap();
    let (name, moving) = first_move(&cluster);
    moving.key(&name);
    assert!(!lock.wait_lost(8 * S), "{:?}", lock.lost());
    lock.release().unwrap();
    assert!(cluster.keys().is_empty());
    moving.end();
}

/// No call waits for it, and the client may end meanwhile.
#[test]
fn a_dropped_lock_is_released_at_a_master_that_has_no_slot_yet() {
    let cluster = Cluster::with_newcomer();
    let [redlock, other] = [cluster.client(), cluster.client()];
    let name = cluster.name(0);
    let mut locks = [redlock, other].map(|redlock| {
        let lock = redlock.try_acquire(&name, LONG).unwrap();
        (redlock, lock)
    });
    let (first, second) = locks.split_at_mut(1);
    let (one, other) = (&mut first[0], &mut second[0]);
    let moving = cluster.begin_to_move(&name, NEW);
    moving.key(&name);
    drop(one.1.take().unwrap());
    eventually("it is released", || cluster.keys().is_empty());
    // Taken and dropped there, with its client.
    other.1 = other.0.try_acquire(&name, LONG).unwrap();
    assert_eq!(cluster.nodes_with(&name), [NEW]);
    drop(locks);
    cluster.nothing_is_left();
    moving.end();
}

/// What was sent there is carried out when its client has ended: the acquire, and the release behind it.
#[test]
fn a_lock_that_came_too_late_is_released_at_a_master_that_has_no_slot_yet() {
    let cluster = Cluster::with_newcomer();
    let (name, moving) = first_move(&cluster);
    let redlock = cluster.client_with(options().node_timeout(S));
    take(&redlock, &name).release().unwrap();
    cluster.nodes[NEW].stop();
    redlock.try_acquire(&name, LONG).unwrap_err();
    drop(redlock);
    cluster.nodes[NEW].resume();
    eventually("it has carried out all", || {
        cluster.nodes[NEW].info("clients", "connected_clients") == "1"
    });
    assert_eq!(cluster.nodes_with(&name), [0; 0]);
    moving.end();
}

#[test]
fn a_waiter_gets_a_lock_at_a_master_that_has_no_slot_yet() {
    let cluster = Cluster::with_newcomer();
    let [redlock, other] = [cluster.client(), cluster.client()];
    let (name, moving) = first_move(&cluster);
    let lock = take(&redlock, &name);
    std::thread::scope(|scope| {
        let waiting = waiter(scope, || other.acquire(&name, TTL).unwrap());
        std::thread::sleep(S);
        lock.release().unwrap();
        waiting.join().unwrap().release().unwrap();
    });
    moving.end();
    cluster.nothing_is_left();
}

#[test]
fn a_master_has_one_connection_when_its_first_slot_has_arrived() {
    let cluster = Cluster::with_newcomer();
    let redlock = cluster.client();
    let (name, moving) = first_move(&cluster);
    for _ in 0..3 {
        take(&redlock, &name).release().unwrap();
    }
    assert_eq!(cluster.connections(NEW), (1, 0));
    moving.end();
    take(&redlock, &name).release().unwrap();
    eventually("one connection", || cluster.connections(NEW) == (1, 0));
    cluster.nothing_is_left();
}

/// Each Cluster has one node's vote. A release is owed where its key went.
#[test]
fn of_three_clusters_a_release_reaches_a_master_that_has_no_slot_yet() {
    let clusters = [
        Cluster::with_newcomer(),
        Cluster::masters(1),
        Cluster::masters(1),
    ];
    let redlock = Redlock::new(clusters.iter().map(Cluster::url)).unwrap();
    let options = options().node_timeout(5 * S).restart_guard(Duration::ZERO);
    let redlock = redlock.with_options(options).unwrap();
    assert!(redlock.connect().unwrap().is_none());
    let name = clusters[0].name(0);
    let lock = redlock.acquire(&name, LONG).unwrap();
    let moving = clusters[0].begin_to_move(&name, NEW);
    moving.key(&name);
    lock.release().unwrap();
    // The other two may have answered first: then the next call reads that it has to follow.
    let other = clusters[0].names(0).nth(1).unwrap();
    eventually("it is released", || {
        drop(redlock.try_acquire(&other, LONG));
        clusters[0].nodes_with(&name).is_empty()
    });
    moving.end();
}

// ---- the guard

fn guarded(cluster: &Cluster) -> Redlock {
    let options = options().node_timeout(5 * S).wait(60 * S);
    let redlock = Redlock::new(cluster.url()).unwrap();
    redlock.with_options(options.restart_guard(GUARD)).unwrap()
}

/// All masters with slots give votes, and so would the other one.
fn all_vote_there(cluster: &Cluster) -> Redlock {
    let redlock = guarded(cluster);
    for master in 0..3 {
        let lock = redlock.acquire(cluster.name(master), GUARD).unwrap();
        lock.release().unwrap();
    }
    // It may have been started later than they.
    let uptime = |node: usize| -> u64 {
        let uptime = cluster.nodes[node].info("server", "uptime_in_seconds");
        uptime.parse().unwrap()
    };
    let longest = (0..3).map(uptime).max().unwrap();
    eventually("the other one has been up for as long", || {
        uptime(NEW) >= longest
    });
    redlock
}

#[test]
fn with_the_guard_locks_are_taken_at_a_master_that_has_no_slot_yet() {
    let cluster = Cluster::with_newcomer();
    let redlock = all_vote_there(&cluster);
    let (name, moving) = first_move(&cluster);
    for redlock in [&redlock, &guarded(&cluster)] {
        let mut lock = redlock.try_acquire(&name, GUARD).unwrap().unwrap();
        assert_eq!(cluster.nodes_with(&name), [NEW]);
        lock.extend(GUARD).unwrap();
        lock.release().unwrap();
    }
    // Nothing but locks is written there.
    assert_eq!(
        cluster.nodes[NEW].command(&["DBSIZE"]),
        redis::Value::Int(0)
    );
    moving.end();
    let lock = redlock.acquire_within(&name, GUARD, GUARD).unwrap();
    lock.release().unwrap();
    cluster.nothing_is_left();
}

#[test]
fn with_the_guard_a_master_that_was_just_started_grants_nothing_without_a_slot() {
    let mut cluster = Cluster::with_newcomer();
    let redlock = all_vote_there(&cluster);
    cluster.nodes[NEW].restart();
    cluster.agree();
    let (name, moving) = first_move(&cluster);
    let errors = unavailable(redlock.try_acquire(&name, GUARD));
    assert!(errors.retry_after().is_some(), "{errors}");
    assert!(cluster.nodes_with(&name).is_empty());
    // It does when all that it may have granted before is over.
    redlock.acquire(&name, GUARD).unwrap().release().unwrap();
    moving.end();
}

/// The lock is at the master that is flushed, and its holder goes on.
#[test]
fn with_the_guard_a_flushed_master_without_slots_makes_no_second_holder() {
    let cluster = Cluster::with_newcomer();
    let [redlock, other] = [all_vote_there(&cluster), guarded(&cluster)];
    let (name, moving) = first_move(&cluster);
    // It has a connection there.
    let lock = other.try_acquire(&name, GUARD).unwrap().unwrap();
    lock.release().unwrap();
    let mut lock = redlock.try_acquire(&name, GUARD).unwrap().unwrap();
    cluster.nodes[NEW].command(&["FLUSHALL"]);
    assert!(cluster.nodes_with(&name).is_empty());
    for redlock in [&other, &guarded(&cluster)] {
        let errors = unavailable(redlock.try_acquire(&name, GUARD));
        assert!(!errors.is_permanent(), "{errors}");
    }
    assert!(lock.extend(GUARD).is_err());
    // The first slot brings a place for the witness.
    moving.end();
    drop(lock);
    other.acquire(&name, GUARD).unwrap().release().unwrap();
}
