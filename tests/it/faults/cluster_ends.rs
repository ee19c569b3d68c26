//! Releases of keys that move to another server of a Redis Cluster while clients end.

use crate::support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redlock_sync::{Error, Lock, Redlock};
use support::clusters::{Cluster, Move, Plan, released_at_last};
use support::relay::Relay;
use support::*;

const S: Duration = Duration::from_secs(1);
/// Much longer than all that is waited for: a release that is lost is found out.
const LONG: Duration = Duration::from_secs(600);
/// The master without slots.
const NEW: usize = 3;

/// Each has one node's vote.
fn client_of(clusters: &[Cluster]) -> Redlock {
    let redlock = Redlock::new(clusters.iter().map(Cluster::url)).unwrap();
    let options = options().node_timeout(5 * S).restart_guard(Duration::ZERO);
    redlock.with_options(options).unwrap()
}

/// Three masters, and one that has no slots at first, and none again when its only one has gone.
fn with_newcomer() -> Cluster {
    Cluster::with(Plan {
        masters: 3,
        empty: 1,
        over_tls: over_tls(),
        args: &["--cluster-allow-replica-migration", "no"],
        ..Plan::default()
    })
}

/// Names in one slot, which moves while their locks are dropped and released, some with the client and some behind it.
fn releases_are_carried_out(clusters: &[Cluster], rounds: usize) {
    let (cluster, to_all) = (&clusters[0], [1, NEW, 2, 0]);
    let name = cluster.name(0);
    let names = (0..12).map(|number| format!("{{{name}}}:{number}"));
    let names: Vec<String> = names.collect();
    for to in to_all.into_iter().cycle().take(rounds) {
        let redlock = client_of(clusters);
        assert!(redlock.connect().unwrap().is_none());
        let lock = |name| redlock.acquire(name, LONG).unwrap();
        let mut locks: Vec<Lock> = names.iter().map(lock).collect();
        let moving = cluster.begin_to_move(&name, to);
        names[..6].iter().for_each(|name| moving.key(name));
        let behind = locks.split_off(10);
        let with = locks.split_off(7);
        std::thread::scope(|scope| {
            scope.spawn(|| moving.end());
            scope.spawn(|| locks.into_iter().for_each(drop));
            scope.spawn(|| with.into_iter().for_each(|lock| drop(lock.release())));
        });
        drop(redlock);
        behind.into_iter().for_each(drop);
        clusters.iter().for_each(Cluster::nothing_is_left);
    }
}

#[test]
fn no_release_is_lost_while_a_slot_moves_and_clients_end() {
    releases_are_carried_out(&[with_newcomer()], 8);
}

#[test]
fn of_three_clusters_no_release_is_lost_while_a_slot_moves_and_clients_end() {
    let clusters = [with_newcomer(), Cluster::masters(1), Cluster::masters(1)];
    releases_are_carried_out(&clusters, 8);
}

/// The client ends last, in a thread that panics.
#[test]
fn no_release_is_lost_while_a_slot_moves_and_200_threads_and_a_panic_drop_locks() {
    let clusters = [with_newcomer()];
    let redlock = client_of(&clusters);
    let name = clusters[0].name(0);
    let names = (0..230).map(|number| format!("{{{name}}}:{number}"));
    let names: Vec<String> = names.collect();
    let lock = |name| redlock.acquire(name, LONG).unwrap();
    let mut locks: Vec<Lock> = names.iter().map(lock).collect();
    let moving = clusters[0].begin_to_move(&name, NEW);
    let many = names.iter().step_by(3);
    many.for_each(|name| moving.key(name));
    let with_the_client = locks.split_off(200);
    std::thread::scope(|scope| {
        locks.into_iter().for_each(|lock| {
            scope.spawn(|| drop(lock));
        });
        scope.spawn(|| moving.end());
        let panics = scope.spawn(move || {
            let _owned = (redlock, with_the_client);
            panic!("on purpose");
        });
        panics.join().unwrap_err();
    });
    clusters[0].nothing_is_left();
}

/// The majority has carried it out before the server answers that has given the key away, and the program does nothing more.
#[test]
fn of_three_clusters_a_release_follows_its_key_without_another_call() {
    let clusters = [with_newcomer(), Cluster::masters(1), Cluster::masters(1)];
    let redlock = client_of(&clusters);
    assert!(redlock.connect().unwrap().is_none());
    let name = clusters[0].name(0);
    let lock = redlock.acquire(&name, LONG).unwrap();
    let moving = clusters[0].begin_to_move(&name, NEW);
    moving.key(&name);
    clusters[0].nodes[0].stop();
    lock.release().unwrap();
    clusters[0].nodes[0].resume();
    eventually_within(30 * S, "it is released", &mut || {
        clusters[0].nodes_with(&name).is_empty()
    });
    moving.end();
    drop(redlock);
}

/// Both ask for keys at the other server, and a release that is owed to one of them is nothing to the other.
#[test]
fn releases_of_two_clusters_with_a_slot_on_its_way_do_not_follow_each_other() {
    let clusters = [with_newcomer(), with_newcomer(), Cluster::masters(1)];
    let redlock = client_of(&clusters);
    // Answers that no call waits for are read after this time.
    let redlock = redlock
        .with_options(options().node_timeout(S / 2).restart_guard(Duration::ZERO))
        .unwrap();
    assert!(redlock.connect().unwrap().is_none());
    let name = clusters[0].name(0);
    let lock = redlock.acquire(&name, LONG).unwrap();
    let moves: Vec<Move<'_>> = clusters[..2]
        .iter()
        .map(|cluster| cluster.begin_to_move(&name, NEW))
        .collect();
    moves.iter().for_each(|moving| moving.key(&name));
    drop(lock);
    let newcomers = clusters[..2].iter().map(|cluster| &cluster.nodes[NEW]);
    eventually("it is released", || {
        newcomers.clone().all(|server| server.keys().is_empty())
    });
    std::thread::sleep(2 * S);
    let calls = || -> u64 {
        let scripts = ["evalsha", "eval", "fcall", "delifeq", "delex"].into_iter();
        let at = |server: &Server| scripts.clone().map(|one| server.calls(one)).sum::<u64>();
        newcomers.clone().map(at).sum()
    };
    let before = calls();
    std::thread::sleep(4 * S);
    assert_eq!(calls(), before);
    moves.into_iter().for_each(Move::end);
}

/// Two servers name each other for a slot, so none of its locks is released.
#[test]
fn releases_that_no_server_takes_are_given_up_together_soon_after_their_client() {
    let name = "releases_that_no_server_takes_are_given_up_together_soon_after_their_client";
    in_own_process(name, || {
        let cluster = Cluster::masters(3);
        let before = (open_files(), threads());
        let redlock = cluster.client();
        let name = cluster.name(0);
        let lock = |number| redlock.acquire(format!("{{{name}}}:{number}"), LONG);
        let locks: Result<Vec<Lock>, _> = (0..30).map(lock).collect();
        // It must not have keys there.
        cluster.nodes[0].command(&["FLUSHALL"]);
        cluster.gives_away(&name, 0, 1);
        drop(locks.unwrap());
        drop(redlock);
        // Each has ten seconds while there is a client.
        eventually_within(20 * S, "nothing is left of it", &mut || {
            (open_files(), threads()) == before
        });
    });
}

/// The slot has gone to a server that does not answer for a while.
#[test]
fn the_last_of_a_client_and_its_lock_waits_for_the_server_that_has_the_key() {
    for client_is_last in [false, true] {
        let cluster = Cluster::masters(3);
        let redlock = cluster.client_with(options().node_timeout(5 * S).connect_timeout(20 * S));
        let name = cluster.name(0);
        let lock = redlock.acquire(&name, LONG).unwrap();
        let client = client_is_last.then_some(redlock);
        cluster.move_slot(&name, 1);
        let other = &cluster.nodes[1];
        other.stop();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(S);
                other.resume();
            });
            let began = Instant::now();
            drop(lock);
            drop(client);
            // The program may end now.
            let took = began.elapsed();
            assert!(took >= S / 2, "{took:?}");
        });
        assert!(cluster.nodes_with(&name).is_empty(), "{client_is_last}");
    }
}

/// The server has other slots yet, so that its connection is of use until the client ends.
#[test]
fn a_release_to_a_silent_server_that_has_given_its_slot_away_outlives_its_client() {
    let cluster = Cluster::masters(3);
    let redlock = cluster.client_with(options().node_timeout(2 * S));
    let [name, other] = [cluster.name(0), cluster.name(2)];
    // The connection is made for this slot, and does not follow the other one.
    take(&redlock, &cluster.names(0).nth(1).unwrap())
        .release()
        .unwrap();
    let lock = redlock.acquire(&name, LONG).unwrap();
    cluster.move_slot(&name, 1);
    cluster.nodes[0].stop();
    drop(lock);
    eventually("the client learns of the move at another shard", || {
        drop(redlock.try_acquire(&other, S));
        matches!(redlock.try_acquire(&name, S), Ok(None))
    });
    assert_eq!(cluster.nodes_with(&name), [1]);
    drop(redlock);
    eventually_within(10 * S, "it is released", &mut || {
        cluster.nodes_with(&name).is_empty()
    });
    cluster.nodes[0].resume();
}

/// Servers that were started lately are sent releases alone, for as long as this test takes.
#[test]
fn a_release_follows_its_key_from_a_server_that_sits_out_to_another_one() {
    let (cluster, others) = (with_newcomer(), [Server::start(), Server::start()]);
    let urls = [cluster.url(), others[0].url(), others[1].url()];
    let client = |guard| {
        let redlock = Redlock::new(&urls).unwrap();
        redlock
            .with_options(options().restart_guard(guard))
            .unwrap()
    };
    let name = cluster.name(0);
    let lock = client(Duration::ZERO).acquire(&name, LONG).unwrap();
    let token = *lock.token();
    lock.leak();
    let redlock = client(LONG);
    assert!(redlock.try_acquire(&name, LONG).is_err());
    let lock = redlock.resume(&name, token, LONG).unwrap();
    cluster.move_slot(&name, 1);
    drop(lock);
    eventually_within(10 * S, "it is released", &mut || {
        cluster.nodes_with(&name).is_empty()
    });
    drop(redlock);
}

/// A call claims the first of two names while its slot is at the second server. It waits for the other name, which it then
/// tries at the third one, beside a plain node that the claim has not reached yet.
#[test]
fn a_claim_is_released_behind_its_acquire_when_its_slot_has_moved_on() {
    let (cluster, servers) = (Cluster::masters(3), Server::several(2));
    let relay = Relay::to(servers[1].port());
    let client = |last: String| {
        let nodes = [cluster.url(), servers[0].url(), last];
        let options = options().node_timeout(S).restart_guard(Duration::ZERO);
        let redlock = Redlock::new(nodes).unwrap().with_options(options);
        redlock.unwrap()
    };
    let (other, redlock) = (client(servers[1].url()), client(relay.url()));
    let name = cluster.name(0);
    let [a, b] = ["a", "b"].map(|end| format!("{{{name}}}:{end}"));
    for master in 0..3 {
        let name = cluster.name(master);
        released_at_last(redlock.acquire(name, LONG).unwrap());
    }
    let held = [&a, &b].map(|name| other.acquire(name, LONG).unwrap());
    let [first, second] = held;
    let several = redlock.several([&a, &b]).unwrap();
    let over = AtomicBool::new(false);
    let arrives = std::thread::scope(|scope| {
        let _end = OnDrop(&over);
        let wait = || several.acquire_while(LONG, || !over.load(Ordering::Relaxed));
        let waiter = scope.spawn(wait);
        eventually("it waits for the first alone, as a writer", || {
            servers[0].exists(beside(&a, "ww"))
        });
        cluster.move_slot(&name, 1);
        // A connection that another one replaces would be reset, which a delay of the relay outlasts.
        relay.take_no_more();
        relay.set(|policy| policy.up.delay = 20 * S);
        first.release().unwrap();
        eventually("it has the first, and waits for the second", || {
            let is_held = cluster.nodes[1].exists(&a) && servers[0].exists(&a);
            is_held && servers[0].queued(&b) == 1
        });
        relay.set(|policy| policy.up.delay = Duration::ZERO);
        let arrives = Instant::now() + 20 * S;
        cluster.move_slot(&name, 2);
        let before = cluster.nodes[2].calls("zadd");
        eventually("it tries at the third server", || {
            cluster.nodes[2].calls("zadd") > before
        });
        assert!(cluster.nodes[2].exists(&a));
        over.store(true, Ordering::Relaxed);
        assert!(matches!(waiter.join().unwrap(), Err(Error::Cancelled(_))));
        arrives
    });
    assert!(Instant::now() < arrives, "the claim is on its way");
    std::thread::sleep(arrives.saturating_duration_since(Instant::now()) + S);
    relay.accept();
    eventually("the claim is released", || {
        !servers.iter().any(|server| server.exists(&a)) && !cluster.nodes[2].exists(&a)
    });
    second.release().unwrap();
}

/// A lock is set again on a node that has lost it, which does not read that before the slot has moved on.
#[test]
fn a_lock_is_released_behind_its_refill_when_its_slot_has_moved_on() {
    let (cluster, servers) = (Cluster::masters(3), Server::several(2));
    let relays = [0, 1].map(|server: usize| Relay::to(servers[server].port()));
    let nodes = [cluster.url(), relays[0].url(), relays[1].url()];
    let options = options().node_timeout(8 * S).restart_guard(Duration::ZERO);
    let redlock = Redlock::new(nodes).unwrap().with_options(options).unwrap();
    for master in 0..3 {
        let name = cluster.name(master);
        released_at_last(redlock.acquire(name, LONG).unwrap());
    }
    let name = cluster.name(0);
    let mut lock = redlock.acquire(&name, LONG).unwrap();
    eventually("all have it", || {
        servers.iter().all(|server| server.exists(&name))
    });
    cluster.move_slot(&name, 1);
    // From here on the client has a connection to the second server for this slot.
    lock.extend(LONG).unwrap();
    let delay = |relay: usize, time| relays[relay].set(|policy| policy.up.delay = time);
    // A connection that another one replaces would be reset, which a delay of the relay outlasts.
    relays[1].take_no_more();
    servers[1].command(&["DEL", &name]);
    // This one answers when the other one has: what sets the lock again comes behind both.
    delay(0, 4 * S);
    let arrives = std::thread::scope(|scope| {
        let extends = scope.spawn(|| lock.extend(LONG).unwrap());
        std::thread::sleep(2 * S);
        delay(1, 20 * S);
        extends.join().unwrap();
        Instant::now() + 20 * S
    });
    std::thread::sleep(S);
    delay(0, Duration::ZERO);
    delay(1, Duration::ZERO);
    assert!(!servers[1].exists(&name), "it is on its way");
    cluster.move_slot(&name, 2);
    released_at_last(lock);
    assert!(Instant::now() < arrives, "the refill is on its way");
    std::thread::sleep(arrives.saturating_duration_since(Instant::now()) + S);
    relays[1].accept();
    eventually("it is released", || {
        !servers.iter().any(|server| server.exists(&name))
    });
    assert!(cluster.nodes_with(&name).is_empty());
}

/// As `redlock run` asks before it ends. The names are at two servers, so nothing releases them as long as they are.
#[cfg(feature = "cli")]
#[test]
fn a_release_that_is_sent_on_is_waited_for() {
    let cluster = Cluster::masters(2);
    let redlock = cluster.client();
    let name = cluster.name(0);
    let names = ["x", "y"].map(|end| format!("{{{name}}}:{end}"));
    let lock = redlock.several(&names).unwrap().try_acquire(LONG).unwrap();
    let moving = cluster.begin_to_move(&name, 1);
    moving.key(&names[0]);
    let failed = unavailable(lock.unwrap().release());
    let name = (names[0].as_bytes(), &failed);
    let wait = |time| redlock_sync::command::wait_released(&redlock, name, time, || true);
    assert!(!wait(S), "nothing has released {:?}", cluster.keys());
    moving.all_keys();
    moving.end();
    assert!(wait(20 * S), "{:?}", cluster.keys());
    cluster.nothing_is_left();
}
