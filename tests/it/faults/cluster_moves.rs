//! Slots of a Redis Cluster that move from a master to another one, under locks and under those that wait for them.

use crate::support;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redlock_sync::{Error, Lock, LockState, Redlock};
use support::clusters::{Cluster, released_at_last};
use support::processes::Process;
use support::*;

const S: Duration = Duration::from_secs(1);
/// A waiter that is not woken sleeps for longer than that.
const PROMPT: Duration = Duration::from_secs(10);

/// Much longer than all that is waited for: a release that is lost is found out.
const LONG: Duration = Duration::from_secs(600);

/// Two that sleep long unless they are woken.
fn two(cluster: &Cluster) -> [Redlock; 2] {
    let options = options()
        .node_timeout(5 * S)
        .retry_delay(4 * PROMPT, 4 * PROMPT);
    [0, 1].map(|_| cluster.client_with(options.clone().wait(6 * PROMPT)))
}

/// It has taken a lock in each shard, so it has the map.
fn warm(cluster: &Cluster) -> Redlock {
    let redlock = cluster.client();
    for master in 0..cluster.masters {
        take(&redlock, &cluster.name(master)).release().unwrap();
    }
    redlock
}

/// Its slot goes to the next master.
fn moves_on(cluster: &Cluster, name: &str) {
    let to = (cluster.master_of(name) + 1) % cluster.masters;
    cluster.move_slot(name, to);
}

// ---- a slot that has moved

#[test]
fn after_a_move_each_call_succeeds_at_once() {
    let cluster = Cluster::masters(3);
    let redlock = warm(&cluster);
    let name = cluster.name(0);
    // Acquired there.
    cluster.move_slot(&name, 1);
    let mut lock = take(&redlock, &name);
    assert_eq!(cluster.nodes_with(&name), [1]);
    // Extended there.
    cluster.move_slot(&name, 2);
    assert_eq!(cluster.nodes_with(&name), [2]);
    lock.extend(2 * TTL).unwrap();
    // Fenced there.
    cluster.move_slot(&name, 0);
    assert!(lock.fencing_token().unwrap() > 0);
    // Looked at there.
    cluster.move_slot(&name, 1);
    let state = redlock.inspect(&name).unwrap().state();
    assert!(matches!(state, LockState::Held { .. }), "{state:?}");
    // Released there.
    cluster.move_slot(&name, 2);
    lock.release().unwrap();
    assert!(!cluster.keys().contains(&name));
}

#[test]
fn a_lock_that_is_dropped_behind_a_move_is_released() {
    let cluster = Cluster::masters(3);
    let redlock = warm(&cluster);
    let name = cluster.name(0);
    for to in [1, 2, 0] {
        let lock = redlock.try_acquire(&name, LONG).unwrap().unwrap();
        cluster.move_slot(&name, to);
        drop(lock);
        eventually("it is released", || cluster.keys().is_empty());
    }
}

/// By clients that find that out one by one.
#[test]
fn a_denied_try_behind_a_move_is_denied() {
    let cluster = Cluster::masters(3);
    let [holder, other] = [warm(&cluster), warm(&cluster)];
    let name = cluster.name(0);
    let lock = take(&holder, &name);
    cluster.move_slot(&name, 1);
    assert!(other.try_acquire(&name, TTL).unwrap().is_none());
    lock.release().unwrap();
    take(&other, &name).release().unwrap();
    cluster.nothing_is_left();
}

#[test]
fn all_kinds_of_locks_go_on_behind_a_move() {
    let cluster = Cluster::masters(3);
    let [one, two] = [warm(&cluster), warm(&cluster)];
    let name = cluster.name(0);
    let names = ["x", "y"].map(|end| format!("{{{name}}}:{end}"));
    let all = [
        one.semaphore(&name, 2).unwrap(),
        one.read_lock(&name).unwrap(),
        one.write_lock(&name).unwrap(),
        one.several(&names).unwrap(),
    ];
    for kind in &all {
        moves_on(&cluster, &name);
        let mut lock = kind.try_acquire(TTL).unwrap().unwrap();
        moves_on(&cluster, &name);
        lock.extend(TTL).unwrap();
        moves_on(&cluster, &name);
        lock.release().unwrap();
        take(&two, &name).release().unwrap();
    }
    cluster.nothing_is_left();
}

#[test]
fn a_kept_lock_is_renewed_wherever_its_slot_goes() {
    let cluster = Cluster::masters(3);
    let redlock = warm(&cluster);
    let name = cluster.name(0);
    let lock = redlock.acquire(&name, 6 * S).unwrap();
    let lock = lock.keep_alive(600 * S).unwrap();
    let began = Instant::now();
    for to in [1, 2, 0, 1, 2, 0] {
        cluster.move_slot(&name, to);
        assert_eq!(lock.lost(), None);
        std::thread::sleep(3 * S / 2);
    }
    // Longer than it would last by itself.
    assert!(began.elapsed() > 7 * S && lock.is_valid());
    lock.release().unwrap();
    cluster.nothing_is_left();
}

#[test]
fn a_waiter_is_woken_by_a_release_behind_a_move() {
    let cluster = Cluster::masters(3);
    let [holder, other] = two(&cluster);
    let name = cluster.name(0);
    for to in [1, 2] {
        let lock = take(&holder, &name);
        std::thread::scope(|scope| {
            let waiting = waiter(scope, || other.acquire(&name, TTL).unwrap());
            eventually("it waits", || cluster.at(&name).queued(&name) == 1);
            cluster.move_slot(&name, to);
            // It may listen there, or where it did.
            let moved = Instant::now();
            while moved.elapsed() < 5 * S && cluster.connections(to).1 == 0 {
                std::thread::sleep(ms(10));
            }
            let released = Instant::now();
            lock.release().unwrap();
            waiting.join().unwrap().release().unwrap();
            assert!(released.elapsed() < PROMPT, "{:?}", released.elapsed());
        });
    }
    cluster.nothing_is_left();
}

#[test]
fn a_process_that_waits_is_woken_by_a_release_behind_a_move() {
    let cluster = Cluster::masters(3);
    let dir = TempDir::new();
    let redlock = warm(&cluster);
    let lock = take(&redlock, "a");
    let mut process = Process::at(&cluster.url(), dir.path(), "wait 40000", "had");
    eventually("it waits", || cluster.at("a").queued("a") == 1);
    let to = (cluster.master_of("a") + 1) % 3;
    cluster.move_slot("a", to);
    let moved = Instant::now();
    while moved.elapsed() < 5 * S && cluster.connections(to).1 == 0 {
        std::thread::sleep(ms(10));
    }
    let released = Instant::now();
    lock.release().unwrap();
    eventually("it has had the lock", || dir.path().join("had").exists());
    assert!(released.elapsed() < PROMPT, "{:?}", released.elapsed());
    process.succeeds();
    cluster.nothing_is_left();
}

/// Each of two clients waits for the other in turn.
#[test]
fn clients_take_turns_while_the_slot_moves() {
    let cluster = Cluster::masters(3);
    let name = cluster.name(0);
    let clients = [0, 1].map(|_| cluster.client());
    let (over, held, turns) = (
        AtomicBool::new(false),
        AtomicBool::new(false),
        [0, 1].map(AtomicUsize::new),
    );
    let before = turns.each_ref().map(|turns| turns.load(Ordering::Relaxed));
    std::thread::scope(|scope| {
        let _ends = OnDrop(&over);
        for (redlock, turns) in clients.iter().zip(&turns) {
            let (over, held, name) = (&over, &held, &name);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let lock = redlock.acquire(name, LONG).unwrap();
                    assert!(!held.swap(true, Ordering::SeqCst), "two holders");
                    turns.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(ms(1));
                    held.store(false, Ordering::SeqCst);
                    lock.release().unwrap();
                }
            });
        }
        let began = Instant::now();
        while began.elapsed() < 3 * S {
            for to in [1, 2, 0] {
                cluster.move_slot(&name, to);
                std::thread::sleep(ms(50));
            }
        }
    });
    for (turns, before) in turns.iter().zip(before) {
        assert!(turns.load(Ordering::Relaxed) > before + 1);
    }
    cluster.nothing_is_left();
}

#[test]
fn no_call_fails_while_slots_move_under_load() {
    let cluster = Cluster::masters(3);
    let redlock = cluster.client();
    let names: Vec<String> = (0..3)
        .flat_map(|master| cluster.names(master).take(2))
        .collect();
    let (over, taken) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        let _ends = OnDrop(&over);
        for name in names.iter().chain(&names) {
            let (over, taken, redlock) = (&over, &taken, &redlock);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let mut lock = redlock.acquire(name, LONG).unwrap();
                    lock.extend(LONG).unwrap();
                    taken.fetch_add(1, Ordering::Relaxed);
                    match taken.load(Ordering::Relaxed) % 3 {
                        0 => drop(lock),
                        _ => lock.release().unwrap(),
                    }
                    std::thread::sleep(ms(1));
                }
            });
        }
        let began = Instant::now();
        while began.elapsed() < 3 * S {
            for name in &names {
                moves_on(&cluster, name);
            }
        }
    });
    assert!(taken.load(Ordering::Relaxed) > 100);
    cluster.nothing_is_left();
}

/// However its slots were spread before.
#[test]
fn each_master_has_one_connection_after_many_moves() {
    let cluster = Cluster::masters(3);
    let redlock = warm(&cluster);
    let names: Vec<String> = (0..3)
        .flat_map(|master| cluster.names(master).take(4))
        .collect();
    for _ in 0..2 {
        for name in &names {
            moves_on(&cluster, name);
            take(&redlock, name).release().unwrap();
        }
    }
    for name in &names {
        take(&redlock, name).release().unwrap();
    }
    for node in 0..3 {
        eventually("one connection to each master", || {
            cluster.connections(node) == (1, 0)
        });
    }
    assert!(redlock.connect().unwrap().is_none());
    cluster.nothing_is_left();
}

/// The map is made anew beside the work: a client that is asked for one name after the other is told of each once.
#[test]
fn a_client_learns_the_map_from_one_slot_that_has_moved() {
    let cluster = Cluster::masters(3);
    let redlock = warm(&cluster);
    let names: Vec<String> = cluster.names(0).take(20).collect();
    for name in &names {
        take(&redlock, name).release().unwrap();
    }
    for name in &names {
        cluster.move_slot(name, 1);
    }
    take(&redlock, &names[0]).release().unwrap();
    std::thread::sleep(S);
    for name in &names[1..] {
        take(&redlock, name).release().unwrap();
    }
    let refused = cluster.nodes[0].info("errorstats", "errorstat_MOVED");
    let refused: usize = refused.trim_start_matches("count=").parse().unwrap();
    assert!((1..names.len() / 2).contains(&refused), "{refused}");
}

// ---- a slot on its way

/// Its key is at neither master: it is asked for at the other one.
#[test]
fn a_lock_is_taken_extended_and_released_in_the_middle_of_a_move() {
    let cluster = Cluster::masters(3);
    let redlock = warm(&cluster);
    let name = cluster.name(0);
    let moving = cluster.begin_to_move(&name, 1);
    let mut lock = redlock.try_acquire(&name, LONG).unwrap().unwrap();
    assert_eq!(cluster.nodes_with(&name), [1]);
    assert!(redlock.try_acquire(&name, LONG).unwrap().is_none());
    lock.extend(LONG).unwrap();
    let state = redlock.inspect(&name).unwrap().state();
    assert!(matches!(state, LockState::Held { .. }), "{state:?}");
    released_at_last(lock);
    // What is there by now goes on being used.
    let other = cluster.client();
    moving.end();
    other.acquire(&name, LONG).unwrap().release().unwrap();
    cluster.nothing_is_left();
}

/// Its key goes while it is held.
#[test]
fn a_held_lock_is_extended_before_and_after_its_key_has_moved() {
    let cluster = Cluster::masters(3);
    let [redlock, other] = [warm(&cluster), warm(&cluster)];
    let name = cluster.name(0);
    let mut lock = take(&redlock, &name);
    let moving = cluster.begin_to_move(&name, 1);
    lock.extend(2 * TTL).unwrap();
    assert_eq!(cluster.nodes_with(&name), [0]);
    assert!(other.try_acquire(&name, TTL).unwrap().is_none());
    moving.key(&name);
    assert_eq!(cluster.nodes_with(&name), [1]);
    lock.extend(2 * TTL).unwrap();
    assert!(other.try_acquire(&name, TTL).unwrap().is_none());
    moving.end();
    lock.extend(2 * TTL).unwrap();
    lock.release().unwrap();
    cluster.nothing_is_left();
}

#[test]
fn a_kept_lock_is_renewed_in_the_middle_of_a_move() {
    let cluster = Cluster::masters(3);
    let redlock = warm(&cluster);
    let name = cluster.name(0);
    let lock = redlock.acquire(&name, 6 * S).unwrap();
    let lock = lock.keep_alive(600 * S).unwrap();
    let moving = cluster.begin_to_move(&name, 1);
    moving.key(&name);
    assert!(!lock.wait_lost(8 * S), "{:?}", lock.lost());
    moving.end();
    lock.release().unwrap();
    cluster.nothing_is_left();
}

/// How often a server has answered that a script's keys are apart.
fn torn(server: &Server) -> u32 {
    let all: String = redis::from_redis_value(server.command(&["INFO", "errorstats"])).unwrap();
    let count = all
        .lines()
        .find_map(|line| line.strip_prefix("errorstat_TRYAGAIN:count="));
    count.map_or(0, |count| count.trim().parse().unwrap())
}

/// Whether the work is done is asked for at both masters. Its mark waits until the slot has arrived.
#[test]
fn work_is_done_once_while_its_slot_is_on_its_way() {
    let cluster = Cluster::masters(3);
    let [redlock, other] = [warm(&cluster), warm(&cluster)];
    let name = cluster.name(0);
    let moving = cluster.begin_to_move(&name, 1);
    assert_eq!(redlock.last_run(&name).unwrap(), None);
    let done = std::thread::scope(|scope| {
        let does = || redlock.once_per(&name, TTL, LONG, |_| Ok::<_, Error>(7));
        let done = scope.spawn(does);
        eventually("the mark is refused", || torn(&cluster.nodes[1]) > 0);
        moving.end();
        done.join().unwrap()
    });
    assert_eq!(done.unwrap(), Some(7));
    let moving = cluster.begin_to_move(&name, 2);
    assert!(other.last_run(&name).unwrap().is_some(), "it is still here");
    moving.key(&beside(&name, "done"));
    assert!(other.last_run(&name).unwrap().is_some(), "it has gone");
    moving.end();
    let again = other.once_per(&name, TTL, LONG, |_| Ok::<_, Error>(8));
    assert_eq!(again.unwrap(), None);
}

/// The key of the lock is at one master, and those beside it are at the other: the servers say TRYAGAIN.
#[test]
fn a_lock_whose_keys_are_apart_is_released_at_last() {
    let cluster = Cluster::masters(3);
    let [redlock, other] = two(&cluster);
    let name = cluster.name(0);
    let mut lock = take(&redlock, &name);
    std::thread::scope(|scope| {
        let waiting = waiter(scope, || other.acquire(&name, TTL).unwrap());
        eventually("it waits", || cluster.at(&name).queued(&name) == 1);
        let moving = cluster.begin_to_move(&name, 1);
        moving.key(&name);
        assert_eq!(cluster.nodes_with(&beside(&name, "w")), [0]);
        lock.extend(TTL).unwrap();
        released_at_last(lock);
        moving.end();
        let moved = Instant::now();
        waiting.join().unwrap().release().unwrap();
        // It may have missed its message, but not the lock.
        assert!(moved.elapsed() < 5 * PROMPT, "{:?}", moved.elapsed());
    });
    cluster.nothing_is_left();
}

/// An operator may leave a slot like that for as long as they like.
#[test]
fn a_lock_that_is_released_in_the_middle_of_a_move_is_free_for_others() {
    let cluster = Cluster::masters(3);
    let [redlock, other] = [warm(&cluster), warm(&cluster)];
    let name = cluster.name(0);
    let moving = cluster.begin_to_move(&name, 1);
    for round in 0..4 {
        let lock = redlock.acquire(&name, LONG).unwrap();
        match round % 2 {
            0 => released_at_last(lock),
            _ => drop(lock),
        }
        released_at_last(other.acquire(&name, LONG).unwrap());
    }
    moving.give_up();
    // It was never moved: what is at the other one is of no use any more.
    for redlock in [&redlock, &other] {
        redlock.acquire(&name, LONG).unwrap().release().unwrap();
    }
}

#[test]
fn a_waiter_enters_a_slot_that_is_being_moved() {
    let cluster = Cluster::masters(3);
    let [redlock, other] = [warm(&cluster), warm(&cluster)];
    let name = cluster.name(0);
    let moving = cluster.begin_to_move(&name, 1);
    let lock = take(&redlock, &name);
    std::thread::scope(|scope| {
        let waiting = waiter(scope, || other.acquire(&name, TTL).unwrap());
        std::thread::sleep(S);
        released_at_last(lock);
        let next = waiting.join().unwrap();
        assert!(next.is_valid());
        moving.end();
        next.release().unwrap();
    });
    cluster.nothing_is_left();
}

/// Wherever the keys are: those who wait are in the queue, a key beside the lock.
#[test]
fn who_waits_for_a_permit_is_served_in_the_middle_of_a_move() {
    let cluster = Cluster::masters(3);
    let [redlock, other] = [warm(&cluster), warm(&cluster)];
    for moved in 0..3 {
        let name = cluster.names(0).nth(moved).unwrap();
        let [semaphore, wanted] = [&redlock, &other].map(|of| of.semaphore(&name, 1).unwrap());
        let permit = semaphore.acquire(LONG).unwrap();
        std::thread::scope(|scope| {
            let waiting = waiter(scope, || wanted.acquire(LONG).unwrap());
            eventually("it waits", || cluster.at(&name).queued(&name) == 1);
            let moving = cluster.begin_to_move(&name, 1);
            let keys = [name.clone(), beside(&name, "w")];
            keys.iter().take(moved).for_each(|key| moving.key(key));
            // A permit that others have is no failure.
            let refused = wanted.acquire_within(LONG, S / 2).unwrap_err();
            assert!(matches!(refused, Error::Busy(_)), "{refused}");
            released_at_last(permit);
            let next = waiting.join().unwrap();
            released_at_last(next);
            moving.end();
        });
    }
    cluster.nothing_is_left();
}

#[test]
fn a_fencing_token_of_a_slot_on_its_way_is_larger_than_those_before() {
    let cluster = Cluster::masters(3);
    let redlock = warm(&cluster);
    let name = cluster.name(0);
    let fence = || {
        let lock = redlock.acquire(&name, TTL).unwrap();
        let mut token = None;
        eventually("it is fenced", || {
            token = lock.fencing_token().ok();
            token.is_some()
        });
        released_at_last(lock);
        token.unwrap()
    };
    let mut last = fence();
    for to in [1, 2, 0] {
        let moving = cluster.begin_to_move(&name, to);
        // Refused as long as its keys are apart.
        moving.all_keys();
        moving.end();
        let next = fence();
        assert!(next > last, "{next} after {last}");
        last = next;
    }
}

// ---- releases that are owed

/// Rule R45. The master refuses it; when it would not, the slot has gone.
#[test]
fn a_release_that_is_owed_moves_with_its_slot() {
    let cluster = Cluster::masters(3);
    let redlock = cluster.client_with(options().connect_timeout(2 * S));
    let name = cluster.name(0);
    let names: Vec<String> = (0..8)
        .map(|number| format!("{{{name}}}:{number}"))
        .collect();
    for names in names.chunks(2) {
        // Those that were not sent are owed.
        let mut locks = Vec::new();
        for name in names {
            locks.push(redlock.acquire(name, LONG).unwrap());
        }
        let from = cluster.master_of(&name);
        let to = (from + 1) % 3;
        let owed = &cluster.nodes[from];
        owed.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
        locks.into_iter().for_each(drop);
        // Their refusals have been read when another one's is.
        let other = format!("{{{name}}}:other");
        for owing in names {
            unavailable(redlock.try_acquire(&other, LONG));
            assert!(owed.exists(owing));
        }
        let moving = cluster.begin_to_move(&name, to);
        owed.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
        moving.all_keys();
        moving.end();
        // A release that was refused is sent again behind what else is sent to that server.
        eventually("it is released where the slot is", || {
            for master in 0..3 {
                drop(redlock.try_acquire(cluster.name(master), S));
            }
            names.iter().all(|name| cluster.nodes_with(name).is_empty())
        });
    }
}

/// Its releases were sent to a server that is frozen, and is no master when it wakes.
#[test]
fn a_release_to_a_frozen_master_reaches_its_successor() {
    let cluster = Cluster::start();
    let redlock = cluster.client_with(options().connect_timeout(2 * S).wait(60 * S));
    let name = cluster.name(0);
    let lock = redlock.acquire(&name, LONG).unwrap();
    cluster.is_replicated(0);
    cluster.nodes[0].stop();
    drop(lock);
    cluster.promotes(3);
    assert_eq!(cluster.nodes_with(&name), [3]);
    // Without another call that would want the lock.
    eventually("it is released at the successor", || {
        !cluster.nodes[3].keys().contains(&name)
    });
    cluster.nodes[0].resume();
    redlock.acquire(&name, LONG).unwrap().release().unwrap();
    cluster.agree();
    cluster.nothing_is_left();
}

// ---- a master that has given all its slots away

#[test]
fn a_master_without_slots_is_left_alone() {
    let name = "a_master_without_slots_is_left_alone";
    in_own_process(name, || {
        let cluster = Cluster::masters(3);
        let redlock = warm(&cluster);
        let held: Vec<Lock> = cluster
            .names(0)
            .take(5)
            .map(|name| take(&redlock, &name))
            .collect();
        cluster.move_all_slots(0, 1);
        assert!(!cluster.is_master(0));
        for lock in held {
            lock.release().unwrap();
        }
        for name in cluster.names(0).take(5) {
            take(&redlock, &name).release().unwrap();
        }
        eventually("it has no connection", || cluster.connections(0) == (0, 0));
        assert!(redlock.connect().unwrap().is_none());
        let text = redlock.check("probe").unwrap().to_string();
        assert!(redlock.check("probe").unwrap().is_fit(), "{text}");
        cluster.nothing_is_left();
    });
}
