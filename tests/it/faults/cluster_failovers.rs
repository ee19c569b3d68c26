//! Masters of a Redis Cluster that are killed, replaced or frozen: under locks, under waiters, and many times.

use crate::support;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};

use redlock_sync::{Error, LostReason, Options, Redlock};
use support::clusters::{Cluster, released_at_last};
use support::holders::{Clients, LONGEST, rounds};
use support::*;

const S: Duration = Duration::from_secs(1);
/// A waiter that is not woken sleeps for longer than that.
const PROMPT: Duration = Duration::from_secs(10);
/// A failover takes three seconds, and more if a vote is repeated.
const PATIENCE: Duration = Duration::from_secs(120);

/// Much longer than all that is waited for: a release that is lost is found out.
const LONG: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, Debug)]
enum Kind {
    Kill,
    /// `CLUSTER FAILOVER`: the master agrees to it.
    ByHand,
    /// `CLUSTER FAILOVER TAKEOVER`: none is asked.
    TakeOver,
    Freeze,
    /// The replica has not heard of the last locks.
    Late,
}

/// Returns when the other one of the pair has its place.
fn fail_over(cluster: &mut Cluster, kind: Kind, master: usize, replica: usize) {
    match kind {
        Kind::Kill => {
            cluster.nodes[master].kill();
            cluster.promotes(replica);
        }
        Kind::Freeze => {
            cluster.nodes[master].stop();
            cluster.promotes(replica);
        }
        Kind::Late => {
            cluster.is_cut_off(replica, master);
            std::thread::sleep(S);
            cluster.nodes[master].kill();
            cluster.nodes[replica].resume();
            cluster.take_over(replica);
        }
        Kind::ByHand => cluster.fail_over(replica),
        Kind::TakeOver => cluster.take_over(replica),
    }
}

fn quick(cluster: &Cluster) -> Redlock {
    cluster.client_with(options().connect_timeout(2 * S).wait(PATIENCE))
}

/// As an ordinary program has it.
fn patient(cluster: &Cluster) -> Redlock {
    cluster.client_with(options().node_timeout(5 * S).wait(PATIENCE))
}

// ---- held locks

/// The key that was replicated shows that no other holder had it since.
fn a_held_lock_goes_on(kind: Kind) {
    let mut cluster = Cluster::start();
    let [holder, other] = [quick(&cluster), quick(&cluster)];
    let name = cluster.name(0);
    let mut lock = holder.acquire(&name, LONG).unwrap();
    let elsewhere = holder.acquire(cluster.name(1), LONG).unwrap();
    cluster.is_replicated(0);
    fail_over(&mut cluster, kind, 0, 3);
    eventually("it is extended", || lock.extend(LONG).is_ok());
    assert!(lock.is_valid());
    assert_eq!(cluster.nodes_with(&name).last(), Some(&3));
    eventually("it is denied to others", || {
        matches!(other.try_acquire(&name, LONG), Ok(None))
    });
    // Until they agree, the masters of other shards refuse everything, too.
    cluster.agree();
    lock.release().unwrap();
    other.acquire(&name, LONG).unwrap().release().unwrap();
    elsewhere.release().unwrap();
    if let Kind::Freeze = kind {
        cluster.nodes[0].resume();
        cluster.agree();
    }
    cluster.nothing_is_left();
}

#[test]
fn a_held_lock_goes_on_when_the_master_of_its_shard_is_killed() {
    a_held_lock_goes_on(Kind::Kill);
}

#[test]
fn a_held_lock_goes_on_when_its_shard_fails_over_by_hand() {
    a_held_lock_goes_on(Kind::ByHand);
}

#[test]
fn a_held_lock_goes_on_when_a_replica_takes_its_shard_over() {
    a_held_lock_goes_on(Kind::TakeOver);
}

#[test]
fn a_held_lock_goes_on_when_the_master_of_its_shard_is_frozen() {
    a_held_lock_goes_on(Kind::Freeze);
}

/// It has time enough for two failovers.
fn a_kept_lock_is_renewed(kind: Kind) {
    let mut cluster = Cluster::start();
    let redlock = quick(&cluster);
    let name = cluster.name(0);
    let lock = redlock.acquire(&name, 30 * S).unwrap();
    let lock = lock.keep_alive(600 * S).unwrap();
    cluster.is_replicated(0);
    let acquired = Instant::now();
    fail_over(&mut cluster, kind, 0, 3);
    let renewed = || lock.remaining() > (30 * S).saturating_sub(acquired.elapsed()) + S;
    eventually("it is renewed, or reported as lost", || {
        renewed() || lock.lost().is_some()
    });
    assert_eq!(lock.lost(), None, "after {:?}", acquired.elapsed());
    assert!(cluster.nodes_with(&name).contains(&3));
    lock.release().unwrap();
    assert!(!cluster.nodes[3].keys().contains(&name));
}

#[test]
fn a_kept_lock_is_renewed_when_its_master_is_killed() {
    a_kept_lock_is_renewed(Kind::Kill);
}

#[test]
fn a_kept_lock_is_renewed_after_a_failover_by_hand() {
    a_kept_lock_is_renewed(Kind::ByHand);
}

#[test]
fn a_kept_lock_is_renewed_after_a_take_over() {
    a_kept_lock_is_renewed(Kind::TakeOver);
}

/// The replica has not heard of the lock when it is promoted.
#[test]
fn a_kept_lock_that_the_new_master_does_not_know_is_reported_as_lost() {
    let mut cluster = Cluster::start();
    let redlock = quick(&cluster);
    let name = cluster.name(0);
    redlock.acquire(&name, LONG).unwrap().release().unwrap();
    cluster.is_replicated(0);
    cluster.is_cut_off(3, 0);
    // Time enough for two failovers: a renewal finds the loss before the validity ends.
    let lock = redlock.acquire(&name, 30 * S).unwrap();
    let lock = lock.keep_alive(600 * S).unwrap();
    cluster.nodes[0].kill();
    cluster.nodes[3].resume();
    cluster.promotes(3);
    assert!(lock.wait_lost(4 * PROMPT));
    assert_eq!(lock.lost(), Some(LostReason::Deleted));
    drop(lock);
    redlock.acquire(&name, LONG).unwrap().release().unwrap();
}

// ---- new locks

fn locks_are_taken_after_it(kind: Kind) {
    let mut cluster = Cluster::start();
    let clients = [quick(&cluster), patient(&cluster)];
    let names: Vec<String> = (0..3).map(|master| cluster.name(master)).collect();
    for redlock in &clients {
        for name in &names {
            redlock.acquire(name, LONG).unwrap().release().unwrap();
        }
    }
    fail_over(&mut cluster, kind, 0, 3);
    let promoted = Instant::now();
    scope(|scope| {
        for (number, redlock) in clients.iter().enumerate() {
            let names = &names;
            scope.spawn(move || {
                for name in names {
                    let name = format!("{{{name}}}:{number}");
                    released_at_last(redlock.acquire(name, LONG).unwrap());
                }
            });
        }
    });
    // A node timeout or two, and a second until the others know it.
    let took = promoted.elapsed();
    assert!(took < 3 * PROMPT, "{took:?}");
    if let Kind::Freeze = kind {
        cluster.nodes[0].resume();
    }
    cluster.nothing_is_left();
}

#[test]
fn locks_are_taken_at_the_replica_of_a_master_that_was_killed() {
    locks_are_taken_after_it(Kind::Kill);
}

#[test]
fn locks_are_taken_after_a_shard_failed_over_by_hand() {
    locks_are_taken_after_it(Kind::ByHand);
}

#[test]
fn locks_are_taken_after_a_replica_took_over() {
    locks_are_taken_after_it(Kind::TakeOver);
}

#[test]
fn locks_are_taken_while_the_master_before_is_frozen() {
    locks_are_taken_after_it(Kind::Freeze);
}

/// Other shards go on meanwhile, if the nodes are told to serve them.
#[test]
fn a_shard_that_fails_over_delays_no_other_one() {
    let mut cluster = Cluster::start();
    for node in &cluster.nodes {
        let set = ["CONFIG", "SET", "cluster-require-full-coverage", "no"];
        node.command(&set);
    }
    let redlock = cluster.client();
    let names: Vec<String> = (0..3).map(|master| cluster.name(master)).collect();
    for name in &names {
        take(&redlock, name).release().unwrap();
    }
    cluster.nodes[0].kill();
    let mut taken = 0;
    while !cluster.is_master(3) {
        for name in &names[1..] {
            take(&redlock, name).release().unwrap();
            taken += 1;
        }
    }
    assert!(taken > 10, "{taken}");
    redlock.acquire(&names[0], LONG).unwrap().release().unwrap();
    cluster.nothing_is_left();
}

#[test]
fn fencing_tokens_grow_over_a_failover_of_their_shard() {
    let mut cluster = Cluster::start();
    let redlock = patient(&cluster);
    let name = cluster.name(0);
    let fence = || {
        let mut given = None;
        eventually("a token is given", || {
            let lock = redlock.acquire(&name, LONG).unwrap();
            let token = lock.fencing_token();
            released_at_last(lock);
            match token {
                Ok(token) => given = Some(token),
                // A master that had not heard of its failover granted the lock.
                Err(Error::Unavailable(_)) => {}
                Err(error) => panic!("{error}"),
            }
            given.is_some()
        });
        given.unwrap()
    };
    let mut last = [fence(), fence()][1];
    // A server that is elected twice within seconds may count the votes of its first election, and the others do not accept
    // it: so no server is elected twice. (None is for a take-over.)
    for (kind, master, replica) in [
        (Kind::TakeOver, 0, 3),
        (Kind::ByHand, 3, 0),
        (Kind::Kill, 0, 3),
    ] {
        cluster.is_replicated(master);
        fail_over(&mut cluster, kind, master, replica);
        let next = fence();
        assert!(next > last, "{kind:?}: {next} after {last}");
        last = next;
        if let Kind::Kill = kind {
            break;
        }
        cluster.agree();
    }
}

/// Clients have to wait, for less than a second.
#[test]
fn no_call_fails_over_failovers_by_hand() {
    let cluster = Cluster::start();
    let redlock = patient(&cluster);
    let name = cluster.name(0);
    let (over, taken) = (AtomicBool::new(false), AtomicUsize::new(0));
    scope(|scope| {
        let _ends = OnDrop(&over);
        for number in 0..3 {
            let (redlock, over, taken) = (&redlock, &over, &taken);
            let name = format!("{{{name}}}:{}", number % 2);
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let lock = redlock.acquire(&name, LONG).unwrap();
                    taken.fetch_add(1, Ordering::Relaxed);
                    // It may be refused, and is then repeated.
                    drop(lock);
                    std::thread::sleep(ms(1));
                }
            });
        }
        for replica in [3, 0, 3] {
            let before = taken.load(Ordering::Relaxed);
            eventually("locks are taken", || {
                taken.load(Ordering::Relaxed) > before + 20
            });
            cluster.fail_over(replica);
            cluster.agree();
        }
    });
    cluster.nothing_is_left();
}

// ---- waiters

/// It subscribes to the new master, where its place in the queue has been replicated.
fn a_waiter_is_woken(kind: Kind) {
    let mut cluster = Cluster::start();
    let [holder, other] = [0, 1].map(|_| {
        // The try that the message brings about must succeed.
        let options = options().node_timeout(5 * S).wait(PATIENCE);
        cluster.client_with(options.retry_delay(5 * PROMPT, 5 * PROMPT))
    });
    let name = cluster.name(0);
    let mut lock = holder.acquire(&name, LONG).unwrap();
    scope(|scope| {
        let waiting = waiter(scope, || other.acquire(&name, LONG).unwrap());
        eventually("it waits", || cluster.at(&name).queued(&name) == 1);
        cluster.is_replicated(0);
        fail_over(&mut cluster, kind, 0, 3);
        // It listens there, or where it did, or has noticed nothing.
        let promoted = Instant::now();
        while promoted.elapsed() < PROMPT && cluster.connections(3).1 == 0 {
            std::thread::sleep(ms(10));
        }
        eventually("it is extended there", || lock.extend(LONG).is_ok());
        let released = Instant::now();
        lock.release().unwrap();
        waiting.join().unwrap().release().unwrap();
        assert!(released.elapsed() < 2 * PROMPT, "{:?}", released.elapsed());
    });
    cluster.nothing_is_left();
}

#[test]
fn a_waiter_is_woken_by_a_release_after_its_master_was_killed() {
    a_waiter_is_woken(Kind::Kill);
}

#[test]
fn a_waiter_is_woken_by_a_release_after_its_shard_failed_over_by_hand() {
    a_waiter_is_woken(Kind::ByHand);
}

#[test]
fn a_waiter_is_woken_by_a_release_after_a_take_over() {
    a_waiter_is_woken(Kind::TakeOver);
}

// ---- the master before

/// It goes on with its connections when it wakes, and does not know for a moment that there is another one.
#[test]
fn a_master_of_a_shard_that_wakes_after_a_failover_grants_nothing() {
    let cluster = Cluster::start();
    let [idle, busy, fresh] = [0, 1, 2].map(|_| quick(&cluster));
    let name = cluster.name(0);
    let beside = format!("{{{name}}}:beside");
    for redlock in [&idle, &busy] {
        redlock.acquire(&name, LONG).unwrap().release().unwrap();
    }
    cluster.is_replicated(0);
    cluster.nodes[0].stop();
    // Its connection is in use all the time.
    while !cluster.is_master(3) {
        drop(busy.try_acquire(&beside, LONG));
    }
    let held = fresh.acquire(&name, LONG).unwrap();
    assert!(cluster.nodes_with(&name).contains(&3));
    cluster.nodes[0].resume();
    let (woken, mut denied) = (Instant::now(), 0);
    while woken.elapsed() < 3 * S || denied < 2 {
        denied = 0;
        for redlock in [&idle, &busy] {
            match redlock.try_acquire(&name, LONG) {
                Ok(Some(_)) => panic!("two holders after {:?}", woken.elapsed()),
                Ok(None) => denied += 1,
                Err(_) => {}
            }
        }
        assert!(woken.elapsed() < TTL);
    }
    held.release().unwrap();
    busy.acquire(&name, LONG).unwrap().release().unwrap();
}

/// It does not agree to it, and takes commands until the others have told it.
#[test]
fn a_master_that_is_taken_over_grants_nothing_to_a_client_that_is_busy() {
    let cluster = Cluster::start();
    let [busy, fresh] = [patient(&cluster), patient(&cluster)];
    let name = cluster.name(0);
    take(&busy, &name).release().unwrap();
    for [master, replica] in [[0, 3], [3, 0]].into_iter().cycle().take(6) {
        cluster.is_replicated(master);
        cluster.take_over(replica);
        let held = fresh.acquire(&name, LONG).unwrap();
        let at_new = cluster.nodes_with(&name).contains(&replica);
        let taken = Instant::now();
        while at_new && taken.elapsed() < 3 * S {
            if let Ok(Some(_)) = busy.try_acquire(&name, LONG) {
                panic!("two holders after {:?}", taken.elapsed());
            }
        }
        let _ = held.release();
        busy.acquire(&name, LONG).unwrap().release().unwrap();
        if at_new {
            return;
        }
        // For a moment most servers may have named the master before.
        cluster.agree();
    }
    panic!("each time the master that was taken over granted the lock");
}

// ---- the guard

/// The replica has not heard of the lock when it is promoted. Whether another client gets it while it is valid.
fn two_hold_it(guard: Duration) -> bool {
    let ttl = guard.max(3 * S);
    let mut cluster = Cluster::start();
    let make = || {
        let options = options().connect_timeout(2 * S).wait(PATIENCE);
        let redlock = Redlock::new(cluster.url()).unwrap();
        redlock.with_options(options.restart_guard(guard)).unwrap()
    };
    let [holder, other] = [make(), make()];
    let name = cluster.name(0);
    for redlock in [&holder, &other] {
        redlock.acquire(&name, ttl).unwrap().release().unwrap();
    }
    cluster.is_replicated(0);
    cluster.is_cut_off(3, 0);
    let held = holder.acquire(&name, ttl).unwrap();
    let since = Instant::now();
    cluster.nodes[0].kill();
    cluster.nodes[3].resume();
    cluster.take_over(3);
    let promoted = Instant::now();
    let next = other.acquire(&name, ttl).unwrap();
    let overlap = held.is_valid();
    // However late the replica was promoted.
    let took = promoted.elapsed();
    assert!(took >= guard, "{guard:?}: {took:?}");
    println!("{guard:?}: {:?}, overlap: {overlap}", since.elapsed());
    drop((held, next));
    overlap
}

#[test]
#[ignore = "takes half a minute"]
fn a_cluster_with_the_guard_lives_on_and_has_one_holder() {
    assert!(!two_hold_it(4 * S));
}

/// Or the test above could not fail.
#[test]
fn without_the_guard_a_shard_that_forgets_a_lock_has_two_holders() {
    // Unless the machine was too slow for it.
    assert!((0..5).any(|_| two_hold_it(Duration::ZERO)));
}

/// It is renewed while others wait for the end of what the master before may have granted.
#[test]
#[ignore = "takes a minute"]
fn a_kept_lock_of_a_shard_lives_on_when_its_master_dies() {
    let ttl = 18 * S;
    let mut cluster = Cluster::start();
    let make = |options: Options| {
        let redlock = Redlock::new(cluster.url()).unwrap();
        redlock.with_options(options.restart_guard(ttl)).unwrap()
    };
    let guarded = || options().connect_timeout(2 * S).wait(PATIENCE);
    let [redlock, other] = [make(guarded()), make(guarded())];
    let name = cluster.name(0);
    let beside = format!("{{{name}}}:beside");
    let lock = redlock.acquire(&name, ttl).unwrap();
    let lock = lock.keep_alive(600 * S).unwrap();
    cluster.is_replicated(0);
    cluster.nodes[0].kill();
    cluster.promotes(3);
    let promoted = Instant::now();
    other.acquire(beside, ttl).unwrap().release().unwrap();
    let took = promoted.elapsed();
    assert_eq!(lock.lost(), None);
    assert!((ttl + 4 * S..ttl + 12 * S).contains(&took), "{took:?}");
    lock.release().unwrap();
}

// ---- many times

const FAILOVERS: &str = "CLUSTER_FAILOVERS";

/// How often two clients held a lock at a time. Between failovers its slot goes to another shard and back.
fn overlaps(guard: Duration, kinds: &[Kind]) -> usize {
    let mut cluster = Cluster::start();
    let (url, name) = (cluster.url(), cluster.name(0));
    let clients = Clients::of(&name, move || {
        let redlock = Redlock::new(&*url).unwrap();
        let options = options().connect_timeout(2 * S).restart_guard(guard);
        redlock.with_options(options).unwrap()
    });
    clients.during(|| {
        let kinds = kinds.iter().cycle().take(rounds(FAILOVERS, 8));
        for (round, kind) in kinds.enumerate() {
            clients.go_on();
            let master = cluster.master_of(&name);
            let replica = cluster.replicas_of(master)[0];
            fail_over(&mut cluster, *kind, master, replica);
            clients.go_on();
            match kind {
                Kind::Kill | Kind::Late => cluster.nodes[master].restart(),
                Kind::Freeze => cluster.nodes[master].resume(),
                Kind::ByHand | Kind::TakeOver => {}
            }
            cluster.agree();
            if round % 3 == 2 {
                let masters = (0..6).filter(|node| cluster.is_master(*node));
                let other = masters.into_iter().find(|node| *node != replica);
                cluster.move_slot(&name, other.unwrap());
            }
            clients.report(round, kind);
        }
    });
    cluster.nothing_is_left();
    clients.overlaps()
}

#[test]
#[ignore = "takes minutes: CLUSTER_FAILOVERS says how many"]
fn no_failover_of_a_shard_makes_two_holders() {
    let kinds = [Kind::Kill, Kind::ByHand, Kind::Freeze, Kind::TakeOver];
    assert_eq!(overlaps(LONGEST, &kinds), 0);
}

/// Or the test above could not fail.
#[test]
#[ignore = "takes minutes: CLUSTER_FAILOVERS says how many"]
fn without_the_guard_failovers_of_a_shard_make_two_holders() {
    assert!((0..5).any(|_| overlaps(Duration::ZERO, &[Kind::Late]) > 0));
}
