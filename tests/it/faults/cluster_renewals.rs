//! Where locks of Redis Clusters are renewed, and set again, whose slots have moved.

use crate::support;

use std::time::Duration;

use redlock_sync::{LockState, Redlock};
use support::clusters::{Cluster, Plan};
use support::*;

const S: Duration = Duration::from_secs(1);
/// Much longer than all that is waited for.
const LONG: Duration = Duration::from_secs(600);

/// The other two Clusters are enough, so that no redirect of a renewal is followed.
#[test]
fn of_three_clusters_one_that_has_moved_a_slot_is_given_the_lock_again() {
    let clusters = [2; 3].map(Cluster::masters);
    let redlock = Redlock::new(clusters.iter().map(Cluster::url)).unwrap();
    let options = unhurried().restart_guard(Duration::ZERO);
    let redlock = redlock.with_options(options).unwrap();
    let name = clusters[0].name(0);
    let lock = redlock.acquire(&name, 3 * S).unwrap();
    let lock = lock.keep_alive(LONG).unwrap();
    // Its server keeps other slots, and the lock its connection.
    clusters[0].move_slot(&name, 1);
    clusters[0].nodes[1].command(&["DEL", &name]);
    eventually("it is set again", || clusters[0].nodes_with(&name) == [1]);
    assert_eq!(lock.lost(), None);
    lock.release().unwrap();
    clusters.iter().for_each(Cluster::nothing_is_left);
}

#[test]
fn a_kept_lock_does_not_need_the_silent_server_that_has_given_its_slot_away() {
    let cluster = Cluster::masters(3);
    let redlock = cluster.client();
    let name = cluster.name(0);
    let lock = redlock.acquire(&name, 6 * S).unwrap();
    let lock = lock.keep_alive(LONG).unwrap();
    cluster.move_slot(&name, 1);
    // The client learns of that.
    take(&redlock, &format!("{{{name}}}:x")).release().unwrap();
    cluster.nodes[0].stop();
    // Longer than it would last by itself.
    let is_lost = lock.wait_lost(8 * S);
    cluster.nodes[0].resume();
    assert!(!is_lost, "{:?}", lock.lost());
    drop(lock);
    cluster.nothing_is_left();
}

#[test]
fn a_kept_lock_follows_its_key_also_when_its_client_has_ended() {
    let cluster = Cluster::masters(3);
    let redlock = cluster.client();
    let name = cluster.name(0);
    let lock = redlock.acquire(&name, 3 * S).unwrap();
    let lock = lock.keep_alive(LONG).unwrap();
    drop(redlock);
    cluster.move_slot(&name, 1);
    // Longer than it would last by itself.
    assert!(!lock.wait_lost(5 * S), "{:?}", lock.lost());
    lock.release().unwrap();
    cluster.nothing_is_left();
}

/// `MOVED` does not name it. Its port at the address of the server that answers is that server's own.
#[test]
fn a_slot_that_moves_to_a_server_without_a_host_name_is_found() {
    let cluster = Cluster::with(Plan {
        masters: 3,
        nameless: true,
        ..Plan::default()
    });
    cluster.knows_all_hostnames();
    let options = options().node_timeout(S).wait(10 * S);
    let [holder, other] = [0, 1].map(|_| cluster.client_with(options.clone()));
    let name = cluster.name(1);
    for redlock in [&holder, &other] {
        take(redlock, &name).release().unwrap();
    }
    let lock = holder.acquire(&name, 6 * S).unwrap();
    let lock = lock.keep_alive(LONG).unwrap();
    cluster.move_slot(&name, 2);
    let state = other.inspect(&name).unwrap().state();
    assert!(matches!(state, LockState::Held { .. }), "{state:?}");
    // Longer than it would last by itself.
    assert!(!lock.wait_lost(7 * S), "{:?}", lock.lost());
    lock.release().unwrap();
    for redlock in [&other, &holder] {
        redlock.acquire(&name, TTL).unwrap().release().unwrap();
    }
    assert_eq!(cluster.master_of(&name), 2);
    cluster.nothing_is_left();
}

/// The setting is changed server by server. Meanwhile some name a master by its address, and others by its host name.
#[test]
fn locks_are_kept_and_granted_while_servers_name_each_other_differently() {
    let cluster = Cluster::with(Plan {
        masters: 3,
        args: &["--cluster-announce-hostname", "localhost"],
        ..Plan::default()
    });
    cluster.knows_all_hostnames();
    let redlock = cluster.client();
    let names = [0, 1, 2].map(|master| cluster.name(master));
    let keep = |name: &String| {
        let lock = redlock.acquire(name, 6 * S).unwrap();
        lock.keep_alive(LONG).unwrap()
    };
    let locks = names.each_ref().map(keep);
    let goes_on = || {
        for name in &names {
            take(&redlock, &format!("{{{name}}}:x")).release().unwrap();
        }
    };
    for (changed, node) in cluster.nodes.iter().enumerate() {
        let setting = "cluster-preferred-endpoint-type";
        node.command(&["CONFIG", "SET", setting, "hostname"]);
        // After the first one, longer than a lock lasts by itself.
        for _ in 0..if changed == 0 { 8 } else { 2 } {
            assert!(locks.iter().all(|lock| !lock.wait_lost(S / 3)));
            goes_on();
        }
    }
    // A redirect has another name than the first one that was heard.
    cluster.move_slot(&names[0], 1);
    goes_on();
    let moving = cluster.begin_to_move(&names[1], 2);
    goes_on();
    moving.give_up();
    assert!(locks.iter().all(|lock| lock.lost().is_none()));
    for lock in locks {
        lock.release().unwrap();
    }
    cluster.nothing_is_left();
}
