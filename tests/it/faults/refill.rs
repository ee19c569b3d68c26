//! A lock that is extended comes back to nodes that do not hold it.

use crate::support;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use redlock_sync::{Error, LostReason};
use support::*;

const HOUR: Duration = Duration::from_secs(3600);

fn holders(servers: &[Server], resource: &str) -> usize {
    let holds = |server: &&Server| server.exists(resource);
    servers.iter().filter(holds).count()
}

/// As a maintenance of all servers goes, while a job of hours runs.
#[test]
fn a_kept_lock_lives_while_all_nodes_are_restarted_empty_one_after_the_other() {
    let mut servers = Server::several(5);
    let redlock = connected(&servers);
    let lock = redlock.try_acquire("job", ms(3000)).unwrap().unwrap();
    let lock = lock.keep_alive(HOUR).unwrap();
    for server in &mut servers {
        server.kill();
        server.restart();
        assert!(!server.exists("job"));
        eventually("it is there again", || server.exists("job"));
        assert_eq!(lock.lost(), None);
    }
    assert_eq!(holders(&servers, "job"), 5);
    let began = Instant::now();
    while began.elapsed() < ms(3500) {
        assert!(lock.is_valid());
        std::thread::sleep(ms(50));
    }
    lock.release().unwrap();
    eventually("nothing is left", || holders(&servers, "job") == 0);
}

#[test]
fn a_lock_that_missed_two_nodes_is_on_all_after_an_extension() {
    let mut servers = Server::several(5);
    let options = unhurried().max_extensions(u32::MAX);
    let redlock = unhurried_connected(&servers).with_options(options).unwrap();
    servers[3..].iter_mut().for_each(Server::kill);
    let mut lock = take(&redlock, "a");
    servers[3..].iter_mut().for_each(Server::restart);
    all_vote(&redlock, &servers);
    assert_eq!(holders(&servers, "a"), 3);
    // One extension brings it to all nodes that answer as promptly as the majority.
    eventually("it is on all", || {
        lock.extend(2 * TTL).unwrap();
        holders(&servers, "a") == 5
    });
    for server in &servers {
        let left: i64 = redis::from_redis_value(server.command(&["PTTL", "a"])).unwrap();
        assert!(left > i64::try_from(TTL.as_millis()).unwrap(), "{left}");
    }
    // Two of those that had it may go now.
    servers[..2].iter_mut().for_each(Server::kill);
    lock.extend(3 * TTL).unwrap();
    lock.release().unwrap();
    eventually("nothing is left", || holders(&servers[2..], "a") == 0);
}

/// Renewals bring it back at any moment, and the release comes at any moment.
#[test]
fn nothing_is_left_of_a_lock_that_is_released_in_the_middle_of_a_refill() {
    let servers = Server::several(3);
    let redlock = connected(&servers).with_options(unhurried()).unwrap();
    let (next, refilled) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for thread in 0..32_u64 {
            let (redlock, servers, next, refilled) = (&redlock, &servers, &next, &refilled);
            scope.spawn(move || {
                let mut random = Random(thread + 1);
                loop {
                    let round = next.fetch_add(1, Ordering::Relaxed);
                    if round >= 1000 {
                        return;
                    }
                    let resource = format!("{round}");
                    let server = &servers[round as usize % 3];
                    let forget = || server.command(&["DEL", &resource]);
                    if round % 4 == 0 {
                        let mut lock = take(redlock, &resource);
                        forget();
                        lock.extend(2 * TTL).unwrap();
                        drop(lock);
                        continue;
                    }
                    let ttl = ms(600);
                    let lock = match redlock.try_acquire(&resource, ttl) {
                        Ok(lock) => lock.unwrap_or_else(|| panic!("{resource} is free")),
                        // On a busy machine little of its ttl is left.
                        Err(Error::TooSlow(_)) => continue,
                        Err(error) => panic!("{error}"),
                    };
                    let Ok(lock) = lock.keep_alive(HOUR) else {
                        continue;
                    };
                    forget();
                    // Renewals are due between 0.3 and 0.333 of the ttl.
                    let about = 285 + u32::try_from(random.below(60)).unwrap();
                    std::thread::sleep(ttl * about / 1000);
                    let back = server.exists(&resource);
                    refilled.fetch_add(u32::from(back), Ordering::Relaxed);
                    if random.below(2) == 0 {
                        drop(lock);
                    } else {
                        let _ = lock.release();
                    }
                }
            });
        }
    });
    take(&redlock, "behind all that").release().unwrap();
    eventually("no key is left", || {
        servers.iter().all(|server| server.keys().is_empty())
    });
    // Some of 750 on either side. (On a busy machine renewals are late.)
    let refilled = refilled.into_inner();
    assert!((50..700).contains(&refilled), "{refilled} were refilled");
}

#[test]
fn a_node_that_holds_another_s_key_is_left_alone() {
    let servers = Server::several(3);
    let redlock = unhurried_connected(&servers);
    let mut lock = take(&redlock, "a");
    servers[1].command(&["SET", "a", "another's", "PX", "60000"]);
    lock.extend(2 * TTL).unwrap();
    lock.release().unwrap();
    eventually("it is released", || holders(&servers, "a") == 1);
    let value: String = redis::from_redis_value(servers[1].command(&["GET", "a"])).unwrap();
    assert_eq!(value, "another's");
}

#[test]
fn an_extension_that_misses_its_quorum_brings_nothing_back() {
    for nodes in [1, 3, 5] {
        let servers = Server::several(nodes);
        let redlock = connected(&servers);
        let mut lock = take(&redlock, "a");
        let kept = redlock.try_acquire("kept", ms(1500)).unwrap().unwrap();
        let kept = kept.keep_alive(HOUR).unwrap();
        let quorum = nodes / 2 + 1;
        for server in &servers[..quorum] {
            server.command(&["DEL", "a", "kept"]);
        }
        assert!(matches!(lock.extend(2 * TTL), Err(Error::Lost(_))));
        assert!(kept.wait_lost(Duration::from_secs(10)));
        assert_eq!(kept.lost(), Some(LostReason::Deleted));
        assert_eq!(holders(&servers[..quorum], "a"), 0, "{nodes} nodes");
        assert_eq!(holders(&servers[..quorum], "kept"), 0, "{nodes} nodes");
    }
}

/// Renewals are submitted by one thread, and refills on top, while others take the lead and end with it.
#[test]
fn renewals_and_refills_go_on_among_busy_threads() {
    let servers = Server::several(3);
    let redlock = unhurried_connected(&servers);
    let ttl = ms(6000);
    let keep = |i: u32| {
        let lock = redlock.try_acquire(format!("kept {i}"), ttl).unwrap();
        lock.unwrap().keep_alive(HOUR).unwrap()
    };
    let kept: Vec<_> = (0..200).map(keep).collect();
    let end = Instant::now() + Duration::from_secs(7);
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let redlock = &redlock;
            scope.spawn(move || {
                let mut random = Random(thread + 1);
                while Instant::now() < end {
                    drop(take(redlock, &format!("busy {thread}")));
                    if random.below(4) == 0 {
                        std::thread::sleep(Duration::from_micros(random.below(500)));
                    }
                }
            });
        }
        let mut random = Random(9);
        while Instant::now() < end {
            let resource = format!("kept {}", random.below(200));
            servers[2].command(&["DEL", &resource]);
            std::thread::sleep(ms(2));
        }
    });
    for lock in &kept {
        assert_eq!(lock.lost(), None, "{lock:?}");
    }
}
