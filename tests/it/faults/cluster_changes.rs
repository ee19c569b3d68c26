//! Redis Clusters that come up late, get other servers, grow and shrink; and what becomes of the restart guard then.

use crate::support;

use std::time::Duration;

use redlock_sync::Redlock;
use support::clusters::{Cluster, released_at_last};
use support::relay::Relay;
use support::*;

const S: Duration = Duration::from_secs(1);
/// Much longer than all that is waited for: a release that is lost is found out.
const LONG: Duration = Duration::from_secs(600);
/// For how long the guard of these tests holds back votes is five seconds more.
const GUARD: Duration = Duration::from_secs(3);

/// A relay to one of its nodes as the only seed.
fn url_by(relay: &Relay, cluster: &Cluster) -> String {
    let port = cluster.nodes[0].port().to_string();
    let url = cluster.url_for("", [0]);
    url.replace(&port, &relay.port().to_string())
}

// ---- late, and elsewhere

#[test]
fn a_client_that_comes_before_its_cluster_needs_few_threads_for_many_names() {
    let name = "a_client_that_comes_before_its_cluster_needs_few_threads_for_many_names";
    in_own_process(name, || {
        let cluster = Cluster::masters(3);
        let relay = Relay::to(cluster.nodes[0].port());
        relay.refuse();
        let before = threads();
        let quick = options()
            .connect_timeout(2 * S)
            .restart_guard(Duration::ZERO);
        let redlock = Redlock::new(url_by(&relay, &cluster)).unwrap();
        let redlock = redlock.with_options(quick).unwrap();
        for number in 0..100 {
            let errors = unavailable(redlock.try_acquire(format!("name:{number}"), TTL));
            assert!(!errors.is_permanent(), "{errors}");
        }
        let threads = threads() - before;
        assert!(threads <= 8, "{threads} threads");
        relay.accept();
        for number in 0..100 {
            let lock = redlock.acquire(format!("name:{number}"), TTL).unwrap();
            lock.release().unwrap();
        }
        for node in 0..3 {
            eventually("one connection to each master", || {
                cluster.connections(node) == (1, 0)
            });
        }
    });
}

/// The seed is a name that leads to the new ones.
#[test]
fn a_client_finds_a_cluster_whose_servers_are_all_elsewhere() {
    let mut cluster = Cluster::masters(3);
    let relay = Relay::to(cluster.nodes[0].port());
    let options = options().connect_timeout(2 * S).wait(60 * S);
    let redlock = Redlock::new(url_by(&relay, &cluster)).unwrap();
    let redlock = redlock
        .with_options(options.restart_guard(Duration::ZERO))
        .unwrap();
    for master in 0..3 {
        redlock
            .acquire(cluster.name(master), TTL)
            .unwrap()
            .release()
            .unwrap();
    }
    cluster.nodes.iter_mut().for_each(Server::kill);
    let next = Cluster::masters(3);
    relay.lead_to(next.nodes[0].port());
    for master in 0..3 {
        let name = next.name(master);
        let lock = redlock.acquire(&name, TTL).unwrap();
        assert_eq!(next.nodes_with(&name), [master]);
        lock.release().unwrap();
    }
}

// ---- larger and smaller

#[test]
fn permits_readers_and_several_names_are_released_in_the_middle_of_a_move() {
    let cluster = Cluster::masters(3);
    let [one, two] = [cluster.client(), cluster.client()];
    let name = cluster.name(0);
    let names = ["x", "y"].map(|end| format!("{{{name}}}:{end}"));
    let kinds = |redlock: &Redlock| {
        [
            redlock.semaphore(&name, 1).unwrap(),
            redlock.read_lock(&name).unwrap(),
            redlock.write_lock(&name).unwrap(),
            redlock.several(&names).unwrap(),
        ]
    };
    for (kind, other) in kinds(&one).iter().zip(kinds(&two)) {
        let lock = kind.acquire(LONG).unwrap();
        let to = (cluster.master_of(&name) + 1) % 3;
        let moving = cluster.begin_to_move(&name, to);
        released_at_last(lock);
        moving.end();
        // What was refused is sent again behind what else is sent to that server.
        let next = other.acquire(LONG);
        let next = next.unwrap_or_else(|error| panic!("{kind:?}: {error}"));
        next.release().unwrap();
    }
    cluster.nothing_is_left();
}

/// An operator may leave a slot like that for as long as they like. The keys beside a lock need not exist, nor be where it is.
#[test]
fn locks_of_each_kind_are_free_once_they_are_released_in_the_middle_of_a_move() {
    let cluster = Cluster::masters(3);
    let redlock = cluster.client();
    let name = cluster.name(0);
    let names = ["x", "y"].map(|end| format!("{{{name}}}:{end}"));
    let kinds = [
        (redlock.semaphore(&name, 1).unwrap(), vec![name.clone()]),
        (redlock.read_lock(&name).unwrap(), vec![name.clone()]),
        (redlock.write_lock(&name).unwrap(), vec![name.clone()]),
        (redlock.several(&names).unwrap(), names.to_vec()),
    ];
    for (kind, keys) in &kinds {
        for has_moved in [false, true] {
            for is_dropped in [false, true] {
                let lock = kind.acquire(LONG).unwrap();
                let to = (cluster.master_of(&name) + 1) % 3;
                let moving = cluster.begin_to_move(&name, to);
                if has_moved {
                    keys.iter().for_each(|key| moving.key(key));
                }
                match is_dropped {
                    true => drop(lock),
                    false => lock.release().unwrap(),
                }
                eventually("it is free", || {
                    keys.iter().all(|key| cluster.nodes_with(key).is_empty())
                });
                moving.end();
            }
        }
    }
    cluster.nothing_is_left();
}

#[test]
fn a_lock_that_is_dropped_with_its_client_behind_a_move_is_released() {
    let cluster = Cluster::masters(3);
    let name = cluster.name(0);
    for to in [1, 2, 0] {
        let redlock = cluster.client();
        let lock = redlock.try_acquire(&name, LONG).unwrap().unwrap();
        cluster.move_slot(&name, to);
        drop(lock);
        drop(redlock);
        cluster.nothing_is_left();
    }
}

#[test]
fn a_list_has_the_locks_of_a_slot_on_its_way() {
    let cluster = Cluster::masters(3);
    let redlock = cluster.client();
    let name = cluster.name(0);
    let lock = take(&redlock, &name);
    let moving = cluster.begin_to_move(&name, 1);
    moving.key(&name);
    let listing = redlock.list(None).unwrap();
    assert_eq!(listing.locks().count(), 1);
    moving.end();
    lock.release().unwrap();
}

/// The majority decides without the Cluster in which it is, but its release has to get there.
#[test]
fn of_three_clusters_one_with_a_slot_on_its_way_needs_few_threads() {
    let name = "of_three_clusters_one_with_a_slot_on_its_way_needs_few_threads";
    in_own_process(name, || {
        let clusters = [2, 1, 1].map(Cluster::masters);
        let redlock = Redlock::new(clusters.iter().map(Cluster::url)).unwrap();
        let options = options().node_timeout(5 * S).restart_guard(Duration::ZERO);
        let redlock = redlock.with_options(options).unwrap();
        assert!(redlock.connect().unwrap().is_none());
        let name = clusters[0].name(0);
        redlock.acquire(&name, LONG).unwrap().release().unwrap();
        let before = threads();
        let moving = clusters[0].begin_to_move(&name, 1);
        for _ in 0..100 {
            redlock.acquire(&name, LONG).unwrap().release().unwrap();
        }
        std::thread::sleep(S);
        let more = threads().saturating_sub(before);
        assert!(more < 10, "{more} threads more");
        moving.end();
        redlock.acquire(&name, LONG).unwrap().release().unwrap();
        clusters.iter().for_each(Cluster::nothing_is_left);
    });
}

// ---- the guard

fn guarded(cluster: &Cluster) -> Redlock {
    let options = options().node_timeout(5 * S).wait(60 * S);
    let redlock = Redlock::new(cluster.url()).unwrap();
    redlock.with_options(options.restart_guard(GUARD)).unwrap()
}

/// It would wait for longer, five seconds more than the guard's time, where votes are held back. A master that loses all its
/// slots becomes the first replica of the one that has them then, which begins a new history: connections are made anew.
fn at_once(redlock: &Redlock, name: &str) {
    let lock = redlock.acquire_within(name, GUARD, 2 * GUARD);
    let lock = lock.unwrap_or_else(|error| panic!("{name}: {error}"));
    released_at_last(lock);
}

/// Where the guard has its proof of one server.
fn witnesses(cluster: &Cluster, node: usize) -> Vec<String> {
    let keys = cluster.nodes[node].command(&["KEYS", "redlock:witness*"]);
    redis::from_redis_value(keys).unwrap()
}

/// Waits until all shards give votes.
fn all_vote_there(cluster: &Cluster, redlock: &Redlock) {
    for master in 0..3 {
        let lock = redlock.acquire(cluster.name(master), GUARD).unwrap();
        lock.release().unwrap();
    }
}

#[test]
fn with_the_guard_no_slot_that_moves_holds_back_votes() {
    let cluster = Cluster::masters(3);
    let redlock = guarded(&cluster);
    all_vote_there(&cluster, &redlock);
    let [lost, name] = [cluster.name(0), cluster.names(0).nth(1).unwrap()];
    cluster.move_slot(&lost, 1);
    for one in [&lost, &name] {
        at_once(&redlock, one);
    }
    // Its proof goes with its slot, and comes back.
    let proofs = witnesses(&cluster, 0);
    assert!(!proofs.is_empty());
    for to in [1, 0] {
        for proof in &proofs {
            let moving = cluster.begin_to_move(proof, to);
            for redlock in [&redlock, &guarded(&cluster)] {
                at_once(redlock, &name);
            }
            moving.all_keys();
            for redlock in [&redlock, &guarded(&cluster)] {
                at_once(redlock, &name);
            }
            moving.end();
            for redlock in [&redlock, &guarded(&cluster)] {
                at_once(redlock, &name);
            }
        }
    }
    cluster.nothing_is_left();
}

/// It was promoted, so only its witness shows that it may vote.
#[test]
fn with_the_guard_a_promoted_master_votes_on_when_the_slot_of_its_witness_moves() {
    let cluster = Cluster::start();
    let redlock = guarded(&cluster);
    all_vote_there(&cluster, &redlock);
    cluster.fail_over(3);
    cluster.agree();
    let name = cluster.name(0);
    redlock.acquire(&name, GUARD).unwrap().release().unwrap();
    let proofs = witnesses(&cluster, 3);
    assert!(!proofs.is_empty());
    for proof in &proofs {
        cluster.move_slot(proof, 1);
        at_once(&redlock, &name);
    }
    // A client that comes now has to wait.
    let errors = unavailable(guarded(&cluster).try_acquire(&name, GUARD));
    assert!(errors.retry_after().is_some(), "{errors}");
    // And so has the other one when locks may be lost.
    let lock = redlock.acquire_within(&name, GUARD, GUARD).unwrap();
    cluster.nodes[3].command(&["FLUSHALL"]);
    let errors = unavailable(redlock.try_acquire(&name, GUARD));
    assert!(errors.retry_after().is_some(), "{errors}");
    drop(lock);
}

/// As a cluster shrinks.
#[test]
fn with_the_guard_a_master_that_gives_all_its_slots_away_holds_back_no_votes() {
    let cluster = Cluster::masters(3);
    let redlock = guarded(&cluster);
    all_vote_there(&cluster, &redlock);
    cluster.move_all_slots(0, 1);
    for redlock in [&redlock, &guarded(&cluster)] {
        for master in 0..3 {
            at_once(redlock, &cluster.name(master));
        }
    }
    cluster.nothing_is_left();
}
