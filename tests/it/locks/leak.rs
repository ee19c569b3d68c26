//! Locks that are left without a release: they end with their ttls, or after a time.

use crate::support;

use std::time::{Duration, Instant};

use redlock_sync::{Error, Lock, NodeError, Redlock};
use support::*;

const TWO_SECONDS: Duration = ms(2000);

/// How long the key is kept, in ms; -2: there is none.
fn left(server: &Server, name: &str) -> i64 {
    redis::from_redis_value(server.command(&["PTTL", name])).unwrap()
}

/// On how many of them the key ends within this time, or has ended.
fn ending_within(servers: &[Server], name: &str, time: Duration) -> usize {
    let most = i64::try_from(time.as_millis()).unwrap();
    let ends = |left: i64| left == -2 || (0..=most).contains(&left);
    let ending = servers.iter().filter(|server| ends(left(server, name)));
    ending.count()
}

/// All of them were told that it ends within this time: a call waits for a majority.
fn all_end_within(servers: &[Server], name: &str, time: Duration) {
    eventually(&format!("{name} ends within {time:?}"), || {
        ending_within(servers, name, time) == servers.len()
    });
}

/// It cannot be taken for two seconds from then on.
fn is_taken(began: Instant, try_acquire: impl FnOnce() -> Result<Option<Lock>, Error>) {
    let denied = try_acquire().unwrap().is_none();
    assert!(denied || began.elapsed() >= TWO_SECONDS);
}

#[test]
fn a_lock_that_is_left_for_a_time_is_free_after_it_and_not_before() {
    for nodes in [1, 3, 5] {
        let servers = Server::several(nodes);
        let [redlock, other] = [(); 2].map(|()| connected(&servers));
        let lock = take(&redlock, "a");
        let began = Instant::now();
        lock.leak_for(TWO_SECONDS).unwrap();
        all_end_within(&servers, "a", TWO_SECONDS);
        for redlock in [&redlock, &other] {
            is_taken(began, || redlock.try_acquire("a", TTL));
        }
        // The other process learns its end from the nodes.
        let next = other.acquire_within("a", TTL, TTL).unwrap();
        let took = began.elapsed();
        assert!(took >= TWO_SECONDS, "{took:?}");
        assert!(took < TTL / 2, "{took:?}");
        next.release().unwrap();
    }
}

#[test]
fn a_kept_lock_a_resumed_one_and_one_that_was_extended_are_left_for_a_time() {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    let leave = |lock: Lock| {
        lock.leak_for(TWO_SECONDS).unwrap();
        all_end_within(&servers, "a", TWO_SECONDS);
        for server in &servers {
            server.command(&["DEL", "a"]);
        }
    };
    let hour = Duration::from_secs(3600);
    leave(take(&redlock, "a").keep_alive(hour).unwrap().stop());

    let lock = take(&redlock, "a");
    let (token, validity) = (*lock.token(), lock.remaining());
    lock.leak();
    leave(redlock.resume("a", token, validity).unwrap());

    let mut lock = take(&redlock, "a");
    lock.extend(2 * TTL).unwrap();
    leave(lock);

    // It was kept alive for longer than its ttl.
    let kept = redlock.acquire("a", ms(5000)).unwrap();
    let kept = kept.keep_alive(hour).unwrap();
    assert!(!kept.wait_lost(ms(6000)));
    kept.stop().leak_for(ms(500)).unwrap();
    all_end_within(&servers, "a", ms(500));
    eventually("no renewal follows", || {
        servers.iter().all(|server| !server.exists("a"))
    });
}

#[test]
fn a_lock_is_never_prolonged_and_a_key_without_an_end_gets_one() {
    let servers = Server::several(3);
    let redlock = unhurried_connected(&servers);
    let five = ms(5000);
    redlock.acquire("a", five).unwrap().leak_for(TTL).unwrap();
    all_end_within(&servers, "a", five);
    let lock = take(&redlock, "b");
    servers[0].command(&["PEXPIRE", "b", "2000"]);
    servers[1].command(&["PERSIST", "b"]);
    lock.leak_for(five).unwrap();
    all_end_within(&servers, "b", five);
    all_end_within(&servers[..1], "b", TWO_SECONDS);
}

/// The nodes keep it for longer than the process relies on that has resumed it.
#[test]
fn a_resumed_lock_is_left_for_no_less_than_what_is_asked_for() {
    let servers = Server::several(3);
    let redlock = unhurried_connected(&servers);
    let lock = take(&redlock, "a");
    let token = *lock.token();
    lock.leak();
    let resumed = redlock.resume("a", token, TTL / 6).unwrap();
    resumed.leak_for(TTL / 3).unwrap();
    eventually("all nodes note it", || {
        servers.iter().all(|server| {
            let value = server.command(&["GET", "a"]);
            let value: Vec<u8> = redis::from_redis_value(value).unwrap();
            value.get(29).is_some_and(|mark| *mark > 127)
        })
    });
    assert_eq!(ending_within(&servers, "a", TTL / 6), 0);
}

#[test]
fn without_a_time_it_is_released_and_the_next_waiter_has_it() {
    let servers = Server::several(3);
    let [redlock, other] = [(); 2].map(|()| unhurried_connected(&servers));
    let lock = take(&redlock, "a");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| other.acquire_within("a", TTL, TTL).unwrap());
        in_queue(&servers, "a", 1);
        lock.leak_for(Duration::ZERO).unwrap();
        waits.join().unwrap().release().unwrap();
    });
    take(&redlock, "a").release().unwrap();
}

/// What another holder has by now stays as it is.
#[test]
fn a_lost_lock_shortens_no_other_ones() {
    let servers = Server::several(3);
    let [redlock, other] = [(); 2].map(|()| connected(&servers));
    let lost = take(&redlock, "a");
    for server in &servers {
        server.command(&["DEL", "a"]);
    }
    let next = take(&other, "a");
    let result = lost.leak_for(ms(1000));
    assert!(matches!(result, Err(Error::Lost(_))), "{result:?}");
    eventually("on all nodes", || {
        servers.iter().all(|server| left(server, "a") > 30_000)
    });
    next.release().unwrap();
    let expired = redlock.acquire("a", ms(500)).unwrap();
    eventually("it is over", || !expired.is_valid());
    assert!(matches!(expired.leak_for(ms(100)), Err(Error::Lost(_))));
}

#[test]
fn a_minority_that_is_away_changes_nothing_and_a_majority_is_reported() {
    let mut servers = Server::several(3);
    let [redlock, other] = [(); 2].map(|()| connected(&servers));
    let locks = ["a", "b", "c"].map(|name| take(&redlock, name));
    let [one, two, three] = locks;
    servers[2].stop();
    let began = Instant::now();
    one.leak_for(TWO_SECONDS).unwrap();
    all_end_within(&servers[..2], "a", TWO_SECONDS);
    let next = other.acquire_within("a", TTL, TTL).unwrap();
    assert!(began.elapsed() >= TWO_SECONDS);
    drop(next);
    servers[2].kill();
    two.leak_for(TWO_SECONDS).unwrap();
    all_end_within(&servers[..2], "b", TWO_SECONDS);

    servers[1].stop();
    let began = Instant::now();
    let errors = unavailable(three.leak_for(TWO_SECONDS));
    assert!(began.elapsed() < TTL / 2, "{:?}", began.elapsed());
    let failed: Vec<usize> = errors.iter().map(NodeError::node).collect();
    assert_eq!(failed, [1, 2]);
    servers[1].resume();
}

/// What is left of the time, not all of it; and without another operation.
#[test]
fn a_node_that_was_away_learns_when_it_is_back_until_when_a_lock_is_left() {
    let servers = Server::several(3);
    let (relays, redlock) = behind_relays(&servers);
    all_vote(&redlock, &servers);
    let hour = Duration::from_secs(3600);
    let lock = redlock.acquire("a", hour).unwrap();
    let [short, permit] = [redlock.acquire("b", hour), {
        let two = redlock.semaphore("pool", 2).unwrap();
        two.acquire(hour)
    }]
    .map(Result::unwrap);
    for name in ["a", "b", "pool"] {
        wait_everywhere(&servers, name);
    }
    relays[2].refuse();
    assert!(redlock.connect().unwrap().is_some());
    lock.leak_for(ms(20_000)).unwrap();
    permit.leak_for(ms(20_000)).unwrap();
    short.leak_for(ms(100)).unwrap();
    // For three seconds.
    eventually("some of it is over", || left(&servers[0], "a") < 17_000);
    assert!(left(&servers[2], "a") > 60_000);
    relays[2].accept();
    eventually("it is shortened there, too", || {
        left(&servers[2], "a") < 60_000 && left(&servers[2], "pool") < 60_000
    });
    for name in ["a", "pool"] {
        let [here, there] = [2, 0].map(|node| left(&servers[node], name));
        assert!((here - there).abs() < 1000, "{name}: {here}, {there}");
    }
    eventually("what was over is gone", || !servers[2].exists("b"));
}

/// Two leaks, each beside another node that is away: with both keys in its way nobody could have the lock.
#[test]
fn nodes_that_are_away_in_turn_block_no_lock() {
    let servers = Server::several(3);
    let (relays, redlock) = behind_relays(&servers);
    all_vote(&redlock, &servers);
    for away in [2, 1] {
        let lock = redlock.acquire_within("job", TTL, TTL).unwrap();
        relays[away].refuse();
        assert!(redlock.connect().unwrap().is_some());
        lock.leak_for(ms(200)).unwrap();
        relays[away].accept();
        eventually("it is gone everywhere", || {
            servers.iter().all(|server| !server.exists("job"))
        });
    }
    redlock
        .try_acquire("job", TTL)
        .unwrap()
        .unwrap()
        .release()
        .unwrap();
}

/// Their keys: all are left for as long, and other holders keep their times.
#[test]
fn permits_readers_writers_and_several_names_are_left_for_a_time() {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    let two = redlock.semaphore("pool", 2).unwrap();
    let (long, short) = (two.acquire(TTL).unwrap(), two.acquire(TTL).unwrap());
    let slot = short.slot();
    let began = Instant::now();
    short.leak_for(TWO_SECONDS).unwrap();
    is_taken(began, || two.try_acquire(TTL));
    eventually("on all nodes", || {
        servers.iter().all(|server| left(server, "pool") > 30_000)
    });
    let next = two.acquire_within(TTL, TTL).unwrap();
    assert!(began.elapsed() >= TWO_SECONDS);
    assert_eq!(next.slot(), slot);
    drop((long, next));

    let read = redlock.read_lock("prices").unwrap();
    let (long, short) = (read.acquire(TTL).unwrap(), read.acquire(TTL).unwrap());
    short.leak_for(TWO_SECONDS).unwrap();
    eventually("on all nodes", || {
        servers.iter().all(|server| left(server, "prices") > 30_000)
    });
    let began = Instant::now();
    long.leak_for(TWO_SECONDS).unwrap();
    all_end_within(&servers, "prices", TWO_SECONDS);
    let write = redlock.write_lock("prices").unwrap();
    is_taken(began, || write.try_acquire(TTL));
    let writer = write.acquire_within(TTL, TTL).unwrap();
    assert!(began.elapsed() < TTL / 2);
    writer.leak_for(TWO_SECONDS).unwrap();
    all_end_within(&servers, "prices", TWO_SECONDS);

    let both = redlock.several(["a", "b"]).unwrap();
    let (lock, began) = (both.acquire(TTL).unwrap(), Instant::now());
    lock.leak_for(TWO_SECONDS).unwrap();
    for name in ["a", "b"] {
        all_end_within(&servers, name, TWO_SECONDS);
        is_taken(began, || redlock.try_acquire(name, TTL));
    }
    drop(redlock.acquire_within("b", TTL, TTL).unwrap());
    // One name is gone, and so is the lock.
    let lock = both.acquire_within(TTL, TTL).unwrap();
    for server in &servers {
        server.command(&["DEL", "b"]);
    }
    assert!(matches!(lock.leak_for(TWO_SECONDS), Err(Error::Lost(_))));
}

/// Nothing is left to be done after the call.
#[test]
fn a_program_that_ends_at_once_has_left_it_for_a_time() {
    let name = "a_program_that_ends_at_once_has_left_it_for_a_time";
    if let Some(urls) = role() {
        let redlock = Redlock::new(urls.split(',')).unwrap();
        let redlock = redlock.with_options(options()).unwrap();
        take(&redlock, "a").leak_for(TWO_SECONDS).unwrap();
        std::process::exit(7);
    }
    let servers = Server::several(3);
    let began = Instant::now();
    let status = another_process(name, &urls(&servers).join(",")).status();
    assert_eq!(status.unwrap().code(), Some(7));
    assert!(ending_within(&servers, "a", TWO_SECONDS) >= 2);
    let redlock = connected(&servers);
    drop(redlock.acquire_within("a", TTL, TTL).unwrap());
    assert!(began.elapsed() < TTL / 2);
}
