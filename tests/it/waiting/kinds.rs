//! Permits, read and write locks, and locks on several names: who waits is told of a release.

use crate::support;

use std::sync::Barrier;
use std::time::{Duration, Instant};

use redlock_sync::{Lockable, Redlock};
use support::*;

/// The minimum sleep of a waiter that is not woken. (A writer looks more often, for its mark.)
const POLL: Duration = Duration::from_secs(10);

fn process(servers: &[Server]) -> Redlock {
    process_with(servers, "")
}

fn process_with(servers: &[Server], prefix: &str) -> Redlock {
    let options = unhurried().retry_delay(POLL, POLL).prefix(prefix);
    let redlock = Redlock::new(urls(servers)).unwrap();
    let redlock = redlock.with_options(options).unwrap();
    redlock.connect().unwrap();
    redlock
}

fn published(servers: &[Server]) -> u64 {
    servers.iter().map(|server| server.calls("publish")).sum()
}

/// One waits for what another process holds, and has it soon after the release.
fn is_woken(servers: &[Server], prefix: &str, holder: &Lockable, next: &Lockable) {
    let name = String::from_utf8_lossy(next.resources().next().unwrap());
    let name = format!("{prefix}{name}");
    let (lock, before) = (holder.acquire(TTL).unwrap(), published(servers));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| next.acquire(TTL).unwrap());
        in_queue(servers, &name, 1);
        let released = Instant::now();
        lock.release().unwrap();
        waits.join().unwrap().release().unwrap();
        let took = released.elapsed();
        assert!(took < POLL / 2, "{next:?}: {took:?}");
    });
    assert!(published(servers) > before, "{next:?}");
}

#[test]
fn a_release_wakes_a_waiter_in_another_process() {
    for (nodes, prefix) in [(1, "team:"), (3, "")] {
        let servers = Server::several(nodes);
        let [one, two] = [(); 2].map(|()| process_with(&servers, prefix));
        let of = |redlock: &Redlock| {
            let pool = redlock.semaphore("pool", 1).unwrap();
            let [read, write] = [redlock.read_lock("a"), redlock.write_lock("a")];
            let pair = redlock.several(["a", "b"]).unwrap();
            [pool, read.unwrap(), write.unwrap(), pair]
        };
        let ([pool, read, write, pair], [pool2, read2, write2, pair2]) = (of(&one), of(&two));
        for (holder, next) in [
            (&pool, &pool2),
            (&read, &write2),
            (&write, &read2),
            (&write, &write2),
            (&pair, &pair2),
            (&pair, &write2),
            (&write, &pair2),
            (&pair, &read2),
        ] {
            is_woken(&servers, prefix, holder, next);
        }
        eventually("nothing is left", || {
            servers.iter().all(|server| server.keys().is_empty())
        });
    }
}

/// The first one tells the next one.
#[test]
fn after_a_writer_the_readers_of_all_processes_go_in() {
    let servers = Server::several(3);
    let write = process(&servers).write_lock("a").unwrap();
    let readers = [(); 4].map(|()| process(&servers).read_lock("a").unwrap());
    let (lock, together) = (write.acquire(TTL).unwrap(), Barrier::new(4));
    std::thread::scope(|scope| {
        let waits = readers.each_ref().map(|read| {
            scope.spawn(|| {
                let lock = read.acquire(TTL).unwrap();
                let since = Instant::now();
                together.wait();
                lock.release().unwrap();
                since
            })
        });
        in_queue(&servers, "a", 4);
        let released = Instant::now();
        lock.release().unwrap();
        for reader in waits {
            let took = reader.join().unwrap().duration_since(released);
            assert!(took < POLL / 2, "{took:?}");
        }
    });
}

/// It waits for one name after the other, and holds none of them meanwhile.
#[test]
fn a_waiter_for_several_names_is_notified_of_each_lock_that_blocked_it() {
    let servers = Server::several(3);
    let [holder, other, waiter] = [(); 3].map(|()| process(&servers));
    let pair = waiter.several(["a", "b"]).unwrap();
    let (first, second) = (take(&holder, "a"), take(&holder, "b"));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| pair.acquire(TTL).unwrap());
        in_queue(&servers, "a", 1);
        first.release().unwrap();
        in_queue(&servers, "b", 1);
        // It does not hold the first one.
        take(&other, "a").release().unwrap();
        let released = Instant::now();
        second.release().unwrap();
        waits.join().unwrap().release().unwrap();
        assert!(released.elapsed() < POLL / 2, "{:?}", released.elapsed());
    });
}

/// What was told to a waiter that could not use it goes on to the next one.
#[test]
fn a_name_that_a_waiter_for_several_cannot_use_goes_to_one_that_can() {
    let servers = Server::several(3);
    let [holder, other, waiter] = [(); 3].map(|()| process(&servers));
    let pair = waiter.several(["a", "b"]).unwrap();
    let (first, second) = (take(&holder, "b"), take(&holder, "a"));
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| pair.acquire(TTL).unwrap());
        in_queue(&servers, "a", 1);
        let alone = scope.spawn(|| other.acquire("a", TTL).unwrap());
        in_queue(&servers, "a", 2);
        let released = Instant::now();
        // The first in the queue, which cannot use it, is told.
        second.release().unwrap();
        alone.join().unwrap().release().unwrap();
        first.release().unwrap();
        waits.join().unwrap().release().unwrap();
        assert!(released.elapsed() < POLL / 2, "{:?}", released.elapsed());
    });
}

/// Both threads are one entry in the queue of the name that is free.
#[test]
fn a_waiter_for_several_names_notifies_a_thread_of_its_own_process_too() {
    let servers = Server::several(1);
    let holder = process(&servers);
    // For three seconds, twice this timeout, it waits for both names together. Then it would claim one, and wake the other thread.
    let node_timeout = Duration::from_millis(1500);
    let options = options().retry_delay(POLL, POLL).node_timeout(node_timeout);
    let waiter = Redlock::new(urls(&servers)).unwrap();
    let waiter = waiter.with_options(options).unwrap();
    let pair = waiter.several(["a", "b"]).unwrap();
    let (first, _second) = (take(&holder, "a"), take(&holder, "b"));
    std::thread::scope(|scope| {
        let alone = scope.spawn(|| waiter.acquire("b", TTL).unwrap());
        in_queue(&servers, "b", 1);
        // Free, and nobody is told, as after a release by a process that has ended.
        for server in &servers {
            server.command(&["DEL", "b"]);
        }
        let freed = Instant::now();
        let both = scope.spawn(|| pair.acquire(TTL).unwrap());
        alone.join().unwrap().release().unwrap();
        assert!(freed.elapsed() < 2 * node_timeout, "{:?}", freed.elapsed());
        first.release().unwrap();
        both.join().unwrap().release().unwrap();
        assert!(freed.elapsed() < POLL / 2, "{:?}", freed.elapsed());
    });
}
