//! How long connections to the servers of Redis Clusters are kept when slots move, and what becomes of releases that are owed.

use crate::support;

use std::time::{Duration, Instant};

use redlock_sync::{Lock, Options, Redlock};
use support::clusters::{Cluster, Plan, released_at_last};
use support::*;

const S: Duration = Duration::from_secs(1);
/// Much longer than all that is waited for: a release that is lost is found out.
const LONG: Duration = Duration::from_secs(600);

/// A master that has given all its slots away does not become a replica.
fn cluster(masters: usize) -> Cluster {
    Cluster::with(Plan {
        masters,
        over_tls: over_tls(),
        args: &["--cluster-allow-replica-migration", "no"],
        ..Plan::default()
    })
}

fn three() -> [Cluster; 3] {
    [3; 3].map(cluster)
}

/// Each has one node's vote.
fn client_of(clusters: &[Cluster], options: Options) -> Redlock {
    let redlock = Redlock::new(clusters.iter().map(Cluster::url)).unwrap();
    let options = options.restart_guard(Duration::ZERO);
    redlock.with_options(options).unwrap()
}

/// To each master of each Cluster that runs. That of a question for the map, which ends with its answer, is among them.
fn connections(clusters: &[Cluster]) -> Vec<Vec<usize>> {
    let of = |cluster: &Cluster| {
        let nodes = 0..cluster.nodes.len();
        nodes.map(|node| cluster.connections(node).0).collect()
    };
    clusters.iter().map(of).collect()
}

/// Waits until these connections are left, and no question is on its way.
fn are_left(clusters: &[Cluster], expected: &[Vec<usize>]) {
    let end = Instant::now() + 10 * S;
    let mut left = connections(clusters);
    while left != expected {
        assert!(Instant::now() < end, "{left:?} instead of {expected:?}");
        std::thread::sleep(ms(20));
        left = connections(clusters);
    }
}

/// In each shard, where the first name may be locked.
fn use_all(clusters: &[Cluster], redlock: &Redlock) {
    for master in 0..3 {
        let name = clusters[0].names(master).nth(1).unwrap();
        released_at_last(redlock.acquire(name, LONG).unwrap());
    }
}

/// Two masters in each Cluster have all slots at last. A lock is held meanwhile, for longer than servers need to say so.
fn lanes_without_slots_are_closed(clusters: &[Cluster]) {
    let redlock = client_of(clusters, options().node_timeout(5 * S));
    let before = threads();
    use_all(clusters, &redlock);
    are_left(clusters, &vec![vec![1; 3]; clusters.len()]);
    let held = redlock.acquire(clusters[0].name(0), LONG).unwrap();
    for cluster in clusters {
        cluster.move_all_slots(0, 1);
    }
    use_all(clusters, &redlock);
    std::thread::sleep(2 * S);
    released_at_last(held);
    let left = vec![vec![0, 1, 1]; clusters.len()];
    are_left(clusters, &left);
    eventually("no thread is left", || threads() == before);
    use_all(clusters, &redlock);
    are_left(clusters, &left);
    clusters.iter().for_each(Cluster::nothing_is_left);
}

#[test]
fn a_master_has_one_connection_when_a_lock_was_held_while_another_gave_it_all_slots() {
    let name = "a_master_has_one_connection_when_a_lock_was_held_while_another_gave_it_all_slots";
    in_own_process(name, || {
        lanes_without_slots_are_closed(&[cluster(3)]);
    });
}

#[test]
fn of_three_clusters_no_connections_are_left_to_masters_without_slots() {
    let name = "of_three_clusters_no_connections_are_left_to_masters_without_slots";
    in_own_process(name, || lanes_without_slots_are_closed(&three()));
}

/// A server refuses a release for as long as it lives. Its slots go to another one, which does not answer for longer than a
/// connection is waited for.
fn a_release_outlives_its_lane(clusters: &mut [Cluster]) {
    let redlock = client_of(clusters, options().connect_timeout(3 * S));
    assert!(redlock.connect().unwrap().is_none());
    let name = clusters[0].name(0);
    let other = clusters[0].name(2);
    use_all(clusters, &redlock);
    let lock = redlock.acquire(&name, LONG).unwrap();
    let refuses = &clusters[0].nodes[0];
    refuses.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    drop(lock);
    // The refusal is read after one node timeout.
    std::thread::sleep(2 * NODE_TIMEOUT);
    assert!(refuses.exists(&name));
    // Were it alive, the client would soon repeat the release there, and would be sent to the other one.
    clusters[0].dies_and_leaves(&name, 0, 1);
    for cluster in &clusters[1..] {
        cluster.move_all_slots(0, 1);
    }
    // Meanwhile the client learns of it from the other two, at another shard.
    let end = Instant::now() + 8 * S;
    while Instant::now() < end {
        drop(redlock.try_acquire(&other, S));
        std::thread::sleep(S / 20);
    }
    clusters[0].inherits(0, 1);
    eventually_within(20 * S, "it is released", &mut || {
        clusters[0].nodes_with(&name).is_empty()
    });
    redlock.acquire(&name, LONG).unwrap().release().unwrap();
    clusters.iter().for_each(Cluster::nothing_is_left);
}

#[test]
fn a_release_that_is_owed_outlives_the_connection_of_its_shard() {
    a_release_outlives_its_lane(&mut [cluster(4)]);
}

#[test]
fn of_three_clusters_a_release_that_is_owed_outlives_the_connections_of_its_shard() {
    a_release_outlives_its_lane(&mut [4; 3].map(cluster));
}

/// A lock whose connections are of no other use: its server has given all slots away, and answers nothing now.
fn held_at_a_server_without_slots(clusters: &[Cluster]) -> (Redlock, Lock) {
    let redlock = client_of(clusters, options().node_timeout(5 * S));
    use_all(clusters, &redlock);
    let (name, other) = (clusters[0].name(0), clusters[0].name(2));
    let held = redlock.acquire(&name, LONG).unwrap();
    for cluster in clusters {
        cluster.move_all_slots(0, 1);
    }
    // The client learns of it at another shard, or its connection would follow the slots.
    let end = Instant::now() + 4 * S;
    while Instant::now() < end {
        drop(redlock.try_acquire(&other, S));
        std::thread::sleep(S / 20);
    }
    are_left(clusters, &vec![vec![1; 3]; clusters.len()]);
    assert_eq!(clusters[0].nodes_with(&name), [1]);
    clusters[0].nodes[0].stop();
    (redlock, held)
}

fn released_at_the_other(clusters: &[Cluster], name: &str) {
    eventually_within(20 * S, "it is released", &mut || {
        clusters[0].nodes_with(name).is_empty()
    });
    clusters[0].nodes[0].resume();
}

fn a_drop_does_not_wait(clusters: &[Cluster]) {
    let name = clusters[0].name(0);
    let (redlock, held) = held_at_a_server_without_slots(clusters);
    let began = Instant::now();
    drop(held);
    // Less than a node timeout.
    assert!(began.elapsed() < 3 * S, "{:?}", began.elapsed());
    released_at_the_other(clusters, &name);
    drop(redlock);
}

#[test]
fn a_lock_that_is_dropped_does_not_wait_until_its_connection_is_closed() {
    a_drop_does_not_wait(&[cluster(3)]);
}

#[test]
fn of_three_clusters_a_lock_that_is_dropped_does_not_wait_until_its_connections_are_closed() {
    a_drop_does_not_wait(&three());
}

fn a_release_outlives_its_client(clusters: &[Cluster]) {
    let name = clusters[0].name(0);
    let (redlock, held) = held_at_a_server_without_slots(clusters);
    std::thread::scope(|scope| {
        scope.spawn(|| drop(held));
        std::thread::sleep(S / 2);
        drop(redlock);
    });
    released_at_the_other(clusters, &name);
}

#[test]
fn a_release_that_is_owed_outlives_a_client_that_ends_while_its_connection_is_closed() {
    a_release_outlives_its_client(&[cluster(3)]);
}

#[test]
fn of_three_clusters_a_release_that_is_owed_outlives_a_client_that_ends_meanwhile() {
    a_release_outlives_its_client(&three());
}

#[test]
fn connections_to_masters_that_do_not_answer_are_closed_side_by_side() {
    let cluster = cluster(3);
    let timeouts = options().node_timeout(2 * S).connect_timeout(20 * S);
    let redlock = client_of(std::slice::from_ref(&cluster), timeouts);
    let lock = |master| redlock.acquire(cluster.name(master), LONG).unwrap();
    let held: Vec<Lock> = (0..3).map(lock).collect();
    for node in &cluster.nodes {
        node.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        node.stop();
    }
    drop(held);
    let began = Instant::now();
    drop(redlock);
    let took = began.elapsed();
    cluster.nodes.iter().for_each(Server::resume);
    // One after the other they have a node timeout each.
    assert!(took < 4 * S, "{took:?}");
    cluster.nothing_is_left();
}

/// With the timeouts that are usual.
#[test]
fn of_three_clusters_with_dead_servers_nothing_is_left_behind_their_client() {
    let name = "of_three_clusters_with_dead_servers_nothing_is_left_behind_their_client";
    in_own_process(name, || {
        let mut clusters = three();
        let before = (open_files(), threads());
        let redlock = client_of(&clusters, Options::new());
        let connected = || redlock.connect().is_ok_and(|missing| missing.is_none());
        eventually("all are connected", connected);
        let names: Vec<String> = (0..3).map(|master| clusters[0].name(master)).collect();
        let lock = |name: &String| redlock.acquire(name, LONG).unwrap();
        let held: Vec<Lock> = names.iter().map(lock).collect();
        let behind = redlock.acquire(format!("{{{}}}:behind", names[2]), LONG);
        // No server answers for their keys: they are given up together.
        let more = (0..100).map(|number| lock(&format!("{{{}}}:{number}", names[2])));
        let more: Vec<Lock> = more.collect();
        clusters[0].nodes[0].kill();
        clusters[1].nodes[1].stop();
        // The server that has it now does not answer either.
        clusters[2].move_slot(&names[2], 0);
        clusters[2].nodes[0].stop();
        for name in &names {
            drop(redlock.try_acquire(format!("{{{name}}}:other"), LONG));
        }
        drop((held, more));
        let began = Instant::now();
        drop(redlock);
        // A node timeout, and two for what is elsewhere.
        assert!(began.elapsed() < 3 * S, "{:?}", began.elapsed());
        drop(behind);
        std::thread::sleep(2 * S);
        assert_eq!((open_files(), threads()), before);
        clusters[1].nodes[1].resume();
        clusters[2].nodes[0].resume();
    });
}

/// Each name had connections of its own.
#[test]
fn of_three_clusters_slots_that_one_does_not_serve_need_few_connections() {
    let clusters = [2, 1, 1].map(Cluster::masters);
    for node in &clusters[0].nodes {
        node.command(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
        node.command(&["CLUSTER", "DELSLOTSRANGE", "0", "8191"]);
    }
    let redlock = client_of(&clusters, options().connect_timeout(S));
    // What is asked first for a slot that has a server is known of the others.
    for name in clusters[0]
        .names(1)
        .take(1)
        .chain(clusters[0].names(0).take(30))
    {
        redlock.acquire(&name, LONG).unwrap().release().unwrap();
    }
    // And no question is on its way.
    eventually("few are left", || {
        let connections = connections(&clusters);
        connections[1][0] <= 2 && connections[2][0] <= 2
    });
    clusters[1..].iter().for_each(Cluster::nothing_is_left);
}
