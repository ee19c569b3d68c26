//! What each operation means at the edges, on one node and on three.

use crate::support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use redlock_sync::{Error, Lock, NodeError, Options, Redlock, Token};
use support::*;

/// Runs a test with 1 and with 3 nodes.
fn with_nodes(test: impl Fn(&mut Vec<Server>, &Redlock)) {
    for nodes in [1, 3] {
        let mut servers = Server::several(nodes);
        let redlock = connected(&servers);
        test(&mut servers, &redlock);
    }
}

fn pttl(server: &Server, key: &str) -> i64 {
    redis::from_redis_value(server.command(&["PTTL", key])).unwrap()
}

/// How many SETs a server has carried out.
fn sets(server: &Server) -> u64 {
    let stats = server.info("commandstats", "cmdstat_set");
    let calls = stats
        .split(',')
        .next()
        .unwrap()
        .trim_start_matches("calls=");
    calls.parse().unwrap()
}

fn take_over(servers: &[Server], key: &str) {
    for server in servers {
        server.command(&["SET", key, "another's"]);
    }
}

#[test]
fn acquire_sets_key_token_and_ttl_on_every_node_and_release_deletes_it() {
    with_nodes(|servers, redlock| {
        let lock = take(redlock, "a");
        for server in &*servers {
            eventually("the key is on every node", || server.exists("a"));
            let value: Vec<u8> = redis::from_redis_value(server.command(&["GET", "a"])).unwrap();
            assert!(value.starts_with(lock.token().as_bytes()));
            let left = pttl(server, "a");
            assert!((1..=60_000).contains(&left), "{left}");
        }
        assert_eq!(lock.resource(), b"a");
        lock.release().unwrap();
        for server in &*servers {
            eventually("the key is gone", || !server.exists("a"));
        }
    });
}

#[test]
fn try_acquire_returns_none_while_another_has_it_and_leaves_nothing() {
    with_nodes(|servers, redlock| {
        let lock = take(redlock, "a");
        let other = Redlock::new(urls(servers))
            .unwrap()
            .with_options(unhurried())
            .unwrap();
        assert!(other.try_acquire("a", TTL).unwrap().is_none());
        assert!(redlock.try_acquire("a", TTL).unwrap().is_none());
        lock.release().unwrap();
        take(&other, "a").release().unwrap();
    });
}

#[test]
fn validity_is_ttl_less_drift_less_elapsed() {
    with_nodes(|_, redlock| {
        let before = Instant::now();
        let lock = redlock
            .try_acquire("a", Duration::from_secs(10))
            .unwrap()
            .unwrap();
        let remaining = lock.remaining();
        let most = ms(10_000 - 100 - 2);
        assert!(
            remaining <= most && remaining >= most - before.elapsed(),
            "{remaining:?}"
        );
        assert!(lock.is_valid());
    });
}

#[test]
fn a_ttl_is_truncated_to_whole_milliseconds() {
    with_nodes(|_, redlock| {
        let lock = redlock
            .try_acquire("a", Duration::from_nanos(10_000_999_999))
            .unwrap()
            .unwrap();
        assert!(lock.remaining() <= ms(10_000 - 100 - 2));
    });
}

#[test]
fn any_bytes_are_a_resource() {
    with_nodes(|servers, redlock| {
        let all: Vec<u8> = (0..=255).collect();
        let long = vec![b'x'; 64 * 1024];
        let resources: [&[u8]; 5] = [b" ", b"{a}:b c", b"\r\n$3\r\n", &all, &long];
        for resource in resources {
            let lock = redlock.try_acquire(resource, TTL).unwrap().unwrap();
            eventually("it is there", || {
                servers.iter().all(|server| server.exists(resource))
            });
            assert!(redlock.try_acquire(resource, TTL).unwrap().is_none());
            lock.release().unwrap();
            eventually("it is gone", || {
                servers.iter().all(|server| !server.exists(resource))
            });
        }
    });
}

#[test]
fn acquire_with_a_wait_of_zero_is_one_attempt_that_returns_busy() {
    with_nodes(|servers, redlock| {
        let lock = take(redlock, "a");
        let before = sets(&servers[0]);
        let result = redlock.acquire_within("a", TTL, Duration::ZERO);
        assert!(matches!(result, Err(Error::Busy(_))));
        assert_eq!(sets(&servers[0]), before + 1);
        lock.release().unwrap();
        redlock
            .acquire_within("a", TTL, Duration::ZERO)
            .unwrap()
            .release()
            .unwrap();
    });
}

#[test]
fn acquire_waits_for_the_holder_and_no_longer_than_it_may() {
    with_nodes(|_, redlock| {
        let lock = take(redlock, "a");
        let wait = Duration::from_secs(1);
        let before = Instant::now();
        assert!(matches!(
            redlock.acquire_within("a", TTL, wait),
            Err(Error::Busy(_))
        ));
        // The last pause that fits is not longer than retry_delay's max of 10 ms.
        assert!(before.elapsed() >= wait - ms(20) && before.elapsed() < 2 * wait);

        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| redlock.acquire("a", TTL).unwrap());
            std::thread::sleep(ms(50));
            assert!(!waiter.is_finished());
            lock.release().unwrap();
            waiter.join().unwrap().release().unwrap();
        });
    });
}

/// However long the pause between attempts is: a release wakes sooner, and the wait ends when it should.
#[test]
fn a_long_retry_delay_makes_no_wait_longer() {
    with_nodes(|_, redlock| {
        let lock = take(redlock, "a");
        let slow = redlock
            .clone()
            .with_options(options().retry_delay(Duration::from_secs(30), Duration::from_secs(60)))
            .unwrap();
        let wait = Duration::from_secs(1);
        let before = Instant::now();
        let result = slow.acquire_within("a", TTL, wait);
        assert!(matches!(result, Err(Error::Busy(_))));
        assert!(before.elapsed() >= wait && before.elapsed() < 2 * wait);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| slow.acquire_within("a", TTL, 20 * wait));
            std::thread::sleep(ms(50));
            lock.release().unwrap();
            waiter.join().unwrap().unwrap().release().unwrap();
        });
        assert!(before.elapsed() < 10 * wait);
    });
}

/// Where too few nodes answer, nothing wakes a waiter.
#[test]
fn there_is_no_pause_after_the_last_attempt() {
    let mut servers = Server::several(3);
    let redlock = connected(&servers);
    servers[..2].iter_mut().for_each(Server::kill);
    let slow = redlock
        .with_options(options().retry_delay(Duration::from_secs(30), Duration::from_secs(60)));
    let before = Instant::now();
    let result = slow
        .unwrap()
        .acquire_within("a", TTL, Duration::from_secs(20));
    unavailable(result);
    assert!(
        before.elapsed() < Duration::from_secs(10),
        "it paused for nothing"
    );
}

#[test]
fn no_attempt_starts_once_the_closure_has_returned_false_however_long_it_takes() {
    with_nodes(|servers, redlock| {
        let _lock = take(redlock, "a");
        let before = sets(&servers[0]);
        let mut asked = 0;
        let result = redlock.acquire_while("a", TTL, || {
            asked += 1;
            if asked == 2 {
                std::thread::sleep(2 * NODE_TIMEOUT);
            }
            asked < 2
        });
        assert!(matches!(result, Err(Error::Cancelled(_))));
        assert_eq!(sets(&servers[0]), before + 1);
    });
}

#[test]
fn every_attempt_has_its_own_token() {
    let servers = Server::several(3);
    // Two nodes taken: every attempt gets one grant, which we look at before it is undone.
    take_over(&servers[..2], "a");
    let redlock = unhurried_connected(&servers);
    let server = &servers[2];
    let monitor = std::os::unix::net::UnixStream::connect(server.socket()).unwrap();
    std::io::Write::write_all(&mut &monitor, b"MONITOR\r\n").unwrap();
    monitor
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(monitor));
    lines.next().unwrap().unwrap();
    let result = redlock.acquire_within("a", TTL, Duration::from_secs(1));
    assert!(matches!(result, Err(Error::Busy(_))));
    server.command(&["ECHO", "end"]);
    let mut tokens = std::collections::HashSet::new();
    let mut attempts = 0;
    for line in lines
        .map(Result::unwrap)
        .take_while(|line| !line.contains("\"end\""))
    {
        if line.contains("\"SET\"") {
            attempts += 1;
            tokens.insert(line.split("\"a\" ").nth(1).unwrap().to_owned());
        }
    }
    assert!(attempts > 5, "{attempts}");
    assert_eq!(tokens.len(), attempts);
}

#[test]
fn acquire_while_asks_before_each_attempt_and_during_pauses() {
    with_nodes(|_, redlock| {
        let lock = take(redlock, "a");
        assert!(matches!(
            redlock.acquire_while("b", TTL, || false),
            Err(Error::Cancelled(_))
        ));
        redlock
            .acquire_while("b", TTL, || true)
            .unwrap()
            .release()
            .unwrap();

        // Cancelled in mid-pause.
        let slow = redlock
            .clone()
            .with_options(options().retry_delay(Duration::from_secs(20), Duration::from_secs(20)));
        let before = Instant::now();
        let mut asked = 0;
        let result = slow.unwrap().acquire_while("a", TTL, || {
            asked += 1;
            asked < 5
        });
        assert!(matches!(result, Err(Error::Cancelled(_))));
        // Four times at 50 ms.
        assert!(before.elapsed() < 2 * NODE_TIMEOUT);

        lock.release().unwrap();
    });
}

#[test]
fn acquire_while_waits_until_the_closure_returns_false_and_no_option_ends_it_sooner() {
    with_nodes(|servers, redlock| {
        let lock = take(redlock, "a");
        for wait in [Duration::ZERO, ms(1), NODE_TIMEOUT / 10] {
            let brief = redlock.clone().with_options(options().wait(wait)).unwrap();
            let before = sets(&servers[0]);
            let mut asked = 0;
            let result = brief.acquire_while("a", TTL, || {
                asked += 1;
                asked < 10
            });
            assert!(matches!(result, Err(Error::Cancelled(_))), "{wait:?}");
            assert!(sets(&servers[0]) > before, "{wait:?}: it has tried");
        }
        // Nor does it miss the release for that.
        let none = redlock.clone().with_options(options().wait(ms(1))).unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| none.acquire_while("a", TTL, || true).unwrap());
            std::thread::sleep(ms(100));
            lock.release().unwrap();
            waiter.join().unwrap().release().unwrap();
        });
    });
}

#[test]
fn a_ttl_below_the_node_timeout_is_no_error() {
    with_nodes(|_, redlock| {
        assert!(ms(300) < NODE_TIMEOUT);
        let lock = redlock.acquire("a", ms(300)).unwrap();
        assert!(lock.remaining() <= ms(300 - 3 - 2));
    });
}

#[test]
fn a_step_ends_before_the_validity_that_it_could_give() {
    let servers = Server::several(1);
    let redlock = connected(&servers)
        .with_options(options().node_timeout(Duration::from_secs(60)))
        .unwrap();
    take(&redlock, "warm").release().unwrap();
    servers[0].stop();
    let before = Instant::now();
    let nodes = unavailable(redlock.try_acquire("a", Duration::from_secs(1)));
    assert!(
        before.elapsed() < Duration::from_secs(20),
        "{:?}",
        before.elapsed()
    );
    assert_eq!(nodes.iter().count(), 1);
    servers[0].resume();
    eventually("the undo arrives", || servers[0].keys().is_empty());
}

#[test]
fn a_lock_granted_too_late_is_released_again() {
    let servers = Server::several(1);
    let relay = relay::Relay::to(servers[0].port());
    let redlock = Redlock::new([relay.url()])
        .unwrap()
        .with_options(options())
        .unwrap();
    take(&redlock, "warm").release().unwrap();
    // Answers come after the validity of the lock, before the step gives up.
    relay.set(|policy| policy.down.delay = ms(150));
    for _ in 0..3 {
        match redlock.try_acquire("a", ms(100)) {
            Err(Error::TooSlow(_) | Error::Unavailable(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    relay.heal();
    eventually("nothing is left", || servers[0].keys().is_empty());
}

/// No node has failed: there was no time to ask it.
#[test]
fn a_ttl_that_is_over_before_the_first_round_trip_is_too_slow() {
    for nodes in [1, 3] {
        let servers = Server::several(nodes);
        let relays: Vec<_> = servers
            .iter()
            .map(|server| relay::Relay::to(server.port()))
            .collect();
        for relay in &relays {
            relay.set(|policy| policy.down.delay = ms(50));
        }
        let client = || {
            let redlock = Redlock::new(relays.iter().map(relay::Relay::url)).unwrap();
            redlock.with_options(options()).unwrap()
        };
        let too_slow = |redlock: &Redlock| {
            let result = redlock.try_acquire("a", ms(3));
            assert!(matches!(result, Err(Error::TooSlow(_))), "{result:?}");
        };
        // While it still connects, and when it has.
        too_slow(&client());
        let redlock = client();
        redlock.connect().unwrap();
        too_slow(&redlock);
        let result = redlock.acquire_within("a", ms(3), ms(200));
        assert!(matches!(result, Err(Error::TooSlow(_))), "{result:?}");
        take(&redlock, "a").release().unwrap();
    }
}

/// Whatever the ttl, nodes that have failed are named.
#[test]
fn nodes_that_cannot_be_connected_are_named_also_where_the_ttl_is_over() {
    let port = free_port();
    let redlock = Redlock::new([format!("redis://127.0.0.1:{port}")]).unwrap();
    let redlock = redlock.with_options(options()).unwrap();
    unavailable(redlock.try_acquire("a", TTL));
    for _ in 0..20 {
        let errors = unavailable(redlock.try_acquire("a", ms(3)));
        assert_eq!(errors.iter().count(), 1, "{errors}");
        assert!(errors.to_string().contains("cannot connect"), "{errors}");
    }
}

#[test]
fn an_expired_lock_reports_itself_lost_without_asking() {
    with_nodes(|servers, redlock| {
        let mut lock = redlock.acquire("a", ms(200)).unwrap();
        servers.iter().for_each(Server::stop);
        eventually("it is over", || !lock.is_valid());
        let before = Instant::now();
        assert_eq!(lock.remaining(), Duration::ZERO);
        assert!(matches!(lock.ensure(Duration::ZERO), Err(Error::Lost(_))));
        assert!(matches!(lock.extend(TTL), Err(Error::Lost(_))));
        assert!(before.elapsed() < NODE_TIMEOUT);
        servers.iter().for_each(Server::resume);
        assert!(matches!(lock.release(), Err(Error::Lost(_))));
    });
}

#[test]
fn an_expired_lock_cannot_be_extended_even_when_its_key_is_free_or_still_there() {
    with_nodes(|servers, redlock| {
        let mut free = redlock.acquire("free", ms(200)).unwrap();
        let mut there = redlock.acquire("there", ms(200)).unwrap();
        for server in &*servers {
            server.command(&["PERSIST", "there"]);
        }
        eventually("both are over", || !free.is_valid() && !there.is_valid());
        eventually("one is gone", || {
            servers.iter().all(|server| !server.exists("free"))
        });
        assert!(matches!(free.extend(TTL), Err(Error::Lost(_))));
        assert!(matches!(there.extend(TTL), Err(Error::Lost(_))));
        assert!(servers.iter().all(|server| !server.exists("free")));
        // The release of an expired lock is written all the same.
        assert!(matches!(there.release(), Err(Error::Lost(_))));
        eventually("it is deleted", || {
            servers.iter().all(|server| !server.exists("there"))
        });
        drop(free);
    });
}

#[test]
fn ensure_distinguishes_a_lost_lock_from_one_with_too_little_time() {
    with_nodes(|_, redlock| {
        let lock = redlock.acquire("a", Duration::from_secs(30)).unwrap();
        lock.ensure(Duration::ZERO).unwrap();
        lock.ensure(Duration::from_secs(10)).unwrap();
        assert!(matches!(
            lock.ensure(Duration::from_secs(30)),
            Err(Error::TooSlow(_))
        ));
        assert!(matches!(lock.ensure(Duration::MAX), Err(Error::TooSlow(_))));
        assert!(lock.is_valid());
    });
}

#[test]
fn an_extension_whose_answers_come_after_the_deadline_is_lost_at_the_deadline() {
    let servers = Server::several(1);
    let relay = relay::Relay::to(servers[0].port());
    let redlock = Redlock::new([relay.url()])
        .unwrap()
        .with_options(options().node_timeout(Duration::from_secs(30)))
        .unwrap();
    let mut lock = redlock.acquire("a", Duration::from_secs(1)).unwrap();
    relay.set(|policy| policy.down.delay = Duration::from_secs(10));
    let before = Instant::now();
    assert!(matches!(lock.extend(TTL), Err(Error::Lost(_))));
    assert!(
        before.elapsed() < Duration::from_secs(5),
        "{:?}",
        before.elapsed()
    );
    assert!(!lock.is_valid());
    // It was carried out there, and it is released all the same.
    assert!(pttl(&servers[0], "a") > 30_000);
    relay.heal();
    drop(lock);
    eventually("it is released", || servers[0].keys().is_empty());
}

#[test]
fn extend_makes_it_last_longer_and_never_shorter() {
    with_nodes(|servers, redlock| {
        let mut lock = redlock.acquire("a", Duration::from_secs(10)).unwrap();
        lock.extend(Duration::from_secs(100)).unwrap();
        let long = lock.remaining();
        assert!(long > Duration::from_secs(90));
        for server in &*servers {
            eventually("its key lasts", || pttl(server, "a") > 90_000);
        }
        lock.extend(Duration::from_secs(5)).unwrap();
        assert!(lock.remaining() > Duration::from_secs(80));
        assert!(servers.iter().all(|server| pttl(server, "a") > 80_000));
        lock.release().unwrap();
    });
}

#[test]
fn extensions_are_bounded_and_only_successful_ones_count() {
    with_nodes(|servers, redlock| {
        let two = redlock
            .clone()
            .with_options(options().max_extensions(2))
            .unwrap();
        let mut lock = take(&two, "a");
        assert_eq!(lock.extensions_left(), 2);
        assert!(matches!(lock.extend(Duration::ZERO), Err(Error::Config(_))));
        servers.iter().for_each(Server::stop);
        unavailable(lock.extend(TTL));
        servers.iter().for_each(Server::resume);
        assert_eq!(lock.extensions_left(), 2);
        eventually("the nodes are back", || lock.extend(TTL).is_ok());
        lock.extend(TTL).unwrap();
        assert_eq!(lock.extensions_left(), 0);
        assert!(
            matches!(lock.extend(TTL), Err(Error::ExtensionLimit(limit)) if limit.limit() == 2)
        );
        assert!(lock.is_valid());
        lock.release().unwrap();
    });
}

#[test]
fn lost_goes_before_the_extension_limit() {
    with_nodes(|_, redlock| {
        let none = redlock
            .clone()
            .with_options(options().max_extensions(0))
            .unwrap();
        let mut lock = none.acquire("a", ms(200)).unwrap();
        assert!(
            matches!(lock.extend(TTL), Err(Error::ExtensionLimit(limit)) if limit.limit() == 0)
        );
        eventually("it is over", || !lock.is_valid());
        assert!(matches!(lock.extend(TTL), Err(Error::Lost(_))));
    });
}

#[test]
fn a_failed_extension_creates_deletes_and_shortens_nothing() {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    let mut lock = redlock.acquire("a", Duration::from_secs(60)).unwrap();
    eventually("it is on all nodes", || {
        servers.iter().all(|server| server.exists("a"))
    });
    // Gone on one node, the two others silent: too few answers.
    servers[0].command(&["DEL", "a"]);
    servers[1].stop();
    servers[2].stop();
    let before = lock.remaining();
    unavailable(lock.extend(Duration::from_secs(5)));
    assert!(
        lock.remaining() > before - Duration::from_secs(30),
        "the old deadline stays"
    );
    servers[1].resume();
    servers[2].resume();
    assert!(!servers[0].exists("a"));
    for server in &servers[1..] {
        assert!(pttl(server, "a") > 30_000);
    }
    eventually("the two others are back", || {
        lock.extend(Duration::from_secs(90)).is_ok()
    });
    lock.release().unwrap();
}

#[test]
fn a_lock_that_a_majority_no_longer_holds_is_lost_at_once() {
    let servers = Server::several(3);
    let redlock = unhurried_connected(&servers);
    let mut lock = take(&redlock, "a");
    eventually("it is on all nodes", || {
        servers.iter().all(|server| server.exists("a"))
    });
    servers[0].command(&["DEL", "a"]);
    lock.extend(TTL).unwrap();
    take_over(&servers[..2], "a");
    assert!(matches!(lock.extend(TTL), Err(Error::Lost(_))));
    assert!(!lock.is_valid());
    assert_eq!(lock.remaining(), Duration::ZERO);
    assert!(matches!(lock.release(), Err(Error::Lost(_))));
    // What another holds stays; what was ours is deleted.
    assert!(servers[0].exists("a") && servers[1].exists("a"));
    eventually("ours is gone", || !servers[2].exists("a"));
}

#[test]
fn release_never_deletes_another_s_key() {
    with_nodes(|servers, redlock| {
        for leave in ["release", "drop"] {
            let lock = take(redlock, leave);
            eventually("it is everywhere", || {
                servers.iter().all(|server| server.exists(leave))
            });
            take_over(servers, leave);
            match leave {
                "release" => assert!(matches!(lock.release(), Err(Error::Lost(_)))),
                _ => drop(lock),
            }
            take(redlock, "behind it").release().unwrap();
            assert!(servers.iter().all(|server| server.exists(leave)));
        }
    });
}

#[test]
fn release_returns_lost_when_a_majority_no_longer_held_it_and_not_for_a_minority() {
    let servers = Server::several(3);
    let redlock = unhurried_connected(&servers);
    for (gone, lost) in [(1, false), (2, true), (3, true)] {
        let lock = take(&redlock, "a");
        eventually("it is on all nodes", || {
            servers.iter().all(|server| server.exists("a"))
        });
        for server in &servers[..gone] {
            server.command(&["DEL", "a"]);
        }
        assert_eq!(
            matches!(lock.release(), Err(Error::Lost(_))),
            lost,
            "{gone} gone"
        );
        eventually("nothing is left", || {
            servers.iter().all(|server| server.keys().is_empty())
        });
    }
}

#[test]
fn release_that_too_few_confirm_is_unavailable() {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    let lock = take(&redlock, "a");
    servers[0].stop();
    servers[1].stop();
    let nodes = unavailable(lock.release());
    let failed: Vec<usize> = nodes.iter().map(NodeError::node).collect();
    assert_eq!(failed, [0, 1]);
    servers[0].resume();
    servers[1].resume();
    eventually("they get the releases as soon as they are back", || {
        servers.iter().all(|server| server.keys().is_empty())
    });
}

#[test]
fn dropping_releases_and_leaking_does_not() {
    with_nodes(|servers, redlock| {
        drop(take(redlock, "dropped"));
        eventually("it is gone", || {
            servers.iter().all(|server| server.keys().is_empty())
        });
        redlock
            .acquire("leaked", Duration::from_secs(1))
            .unwrap()
            .leak();
        assert!(redlock.try_acquire("leaked", TTL).unwrap().is_none());
        eventually("the ttl ends it", || {
            matches!(redlock.try_acquire("leaked", TTL), Ok(Some(_)))
        });
    });
}

#[test]
fn with_lock_releases_on_every_way_out() {
    with_nodes(|servers, redlock| {
        let result = redlock.with_lock("a", TTL, |lock| {
            assert!(lock.is_valid());
            lock.extend(TTL)?;
            Ok::<_, Error>(42)
        });
        assert_eq!(result.unwrap(), 42);
        eventually("gone after the work", || {
            servers.iter().all(|s| s.keys().is_empty())
        });

        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let panics = |_: &mut Lock| -> Result<(), Error> { panic!("as the test wants") };
            let _ = redlock.with_lock("a", TTL, panics);
        }));
        assert!(panicked.is_err());
        eventually("gone after a panic", || {
            servers.iter().all(|s| s.keys().is_empty())
        });

        let taken = redlock.with_lock("a", TTL, |_| {
            eventually("everywhere", || {
                servers.iter().all(|server| server.exists("a"))
            });
            take_over(servers, "a");
            Ok(())
        });
        let error = taken.unwrap_err();
        assert!(
            matches!(error, Error::Lost(_)) && error.after_work(),
            "{error}"
        );
        assert!(servers.iter().all(|server| server.exists("a")));

        let busy = redlock
            .clone()
            .with_options(unhurried().wait(ms(20)))
            .unwrap();
        let never = AtomicU32::new(0);
        let result = busy.with_lock("a", TTL, |_| Ok(never.fetch_add(1, Ordering::Relaxed)));
        assert!(matches!(result, Err(Error::Busy(_))));
        assert_eq!(never.load(Ordering::Relaxed), 0);
    });
}

#[test]
fn with_lock_is_ok_when_only_the_release_cannot_be_confirmed() {
    with_nodes(|servers, redlock| {
        let stop = || servers.iter().for_each(Server::stop);
        let result = redlock.with_lock("a", TTL, |_| {
            stop();
            Ok::<_, Error>(())
        });
        servers.iter().for_each(Server::resume);
        result.unwrap();
        eventually("it is released in the end", || {
            servers.iter().all(|server| server.keys().is_empty())
        });
    });
}

/// A program's own error, made from both.
#[derive(Debug)]
enum Failure {
    Lock(Error),
    Work(&'static str),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Lock(error)
    }
}

/// Every combination of work that succeeds or fails, and of a lock that is released, lost, or not confirmed.
#[test]
fn the_error_of_the_work_goes_before_that_of_the_release() {
    with_nodes(|servers, redlock| {
        type Harm = fn(&[Server], &mut Lock);
        let none: Harm = |_, _| ();
        let deleted: Harm = |servers, _| {
            eventually("everywhere", || servers.iter().all(|s| s.exists("a")));
            servers
                .iter()
                .for_each(|server| drop(server.command(&["DEL", "a"])));
        };
        let over: Harm = |_, lock| eventually("the validity is over", || !lock.is_valid());
        let silent: Harm = |servers, _| servers.iter().for_each(Server::stop);
        for (harm, ttl, done) in [
            (none, TTL, "done"),
            (deleted, TTL, "lost after the work"),
            (over, ms(200), "lost after the work"),
            (silent, TTL, "done"),
        ] {
            for (fails, expected) in [(false, done), (true, "work")] {
                let work = |lock: &mut Lock| {
                    harm(servers, lock);
                    match fails {
                        true => Err(Failure::Work("work")),
                        false => Ok("done"),
                    }
                };
                let result = redlock.with_lock("a", ttl, work);
                servers.iter().for_each(Server::resume);
                let found = match &result {
                    Ok(text) | Err(Failure::Work(text)) => text,
                    Err(Failure::Lock(error)) if error.after_work() => "lost after the work",
                    Err(Failure::Lock(error)) => panic!("{error}"),
                };
                assert_eq!(found, expected);
                eventually("released", || servers.iter().all(|s| s.keys().is_empty()));
            }
        }
    });
}

/// As the last expression of a function, the call needs no annotation, whatever error the function has.
#[test]
fn a_closure_ends_in_ok_whatever_error_the_function_returns() {
    fn own(redlock: &Redlock) -> Result<(), Error> {
        redlock.with_lock("a", TTL, |lock| {
            lock.ensure(ms(1))?;
            Ok(())
        })
    }
    fn boxed(redlock: &Redlock) -> Result<u8, Box<dyn std::error::Error + Send + Sync>> {
        redlock.with_kept_lock("a", TTL, TTL, |lock| {
            lock.ensure(ms(1))?;
            Ok("7".parse()?)
        })
    }
    fn programs(redlock: &Redlock) -> Result<(), Failure> {
        redlock.semaphore("b", 2)?.with_lock(TTL, |lock| {
            lock.ensure(ms(1))?;
            Err(Failure::Work("work"))
        })
    }
    fn entered_again(redlock: &Redlock) -> Result<(), Failure> {
        let locks = redlock.reentrant();
        locks.with_lock("a", TTL, |_| {
            locks.with_lock("a", TTL, |lock| {
                lock.ensure(ms(1))?;
                Ok(())
            })
        })
    }
    with_nodes(|_, redlock| {
        own(redlock).unwrap();
        assert_eq!(boxed(redlock).unwrap(), 7);
        assert!(matches!(programs(redlock), Err(Failure::Work("work"))));
        entered_again(redlock).unwrap();
    });
}

#[test]
fn resume_goes_on_with_a_lock_and_trusts_its_arguments() {
    with_nodes(|servers, redlock| {
        let other = redlock
            .clone()
            .with_options(options().max_extensions(1))
            .unwrap();
        let given = take(redlock, "a");
        let (token, left) = (*given.token(), given.remaining());
        given.leak();
        let mut lock = other
            .resume("a", Token::from_bytes(*token.as_bytes()), left)
            .unwrap();
        assert!(lock.remaining() <= left);
        assert_eq!(lock.extensions_left(), 1);
        lock.extend(TTL).unwrap();
        lock.release().unwrap();
        eventually("gone", || {
            servers.iter().all(|server| server.keys().is_empty())
        });

        let made_up = redlock.resume("b", token, Duration::from_secs(9)).unwrap();
        assert!(made_up.is_valid());
        assert!(matches!(made_up.release(), Err(Error::Lost(_))));
        assert!(
            !redlock
                .resume("b", token, Duration::ZERO)
                .unwrap()
                .is_valid()
        );
        config(redlock.resume("b", token, Duration::MAX));
        config(redlock.resume("", token, TTL));
    });
}

#[test]
fn a_lock_taken_in_one_thread_is_used_and_released_in_another() {
    with_nodes(|servers, redlock| {
        let mut lock = take(redlock, "a");
        std::thread::spawn(move || {
            lock.extend(TTL).unwrap();
            lock.release().unwrap();
        })
        .join()
        .unwrap();
        eventually("gone", || {
            servers.iter().all(|server| server.keys().is_empty())
        });
    });
}

#[test]
fn with_options_keeps_the_connections_unless_a_timeout_changed() {
    let servers = Server::several(1);
    let redlock = connected(&servers);
    take(&redlock, "a").release().unwrap();
    let received = || servers[0].info("stats", "total_connections_received");
    let before: u32 = received().parse().unwrap();
    let same = redlock
        .clone()
        .with_options(options().wait(ms(1)).max_extensions(0))
        .unwrap();
    take(&same, "a").release().unwrap();
    let own: u32 = received().parse().unwrap();
    assert_eq!(
        own,
        before + 1,
        "only the connections of the looking itself"
    );
    let changed = redlock
        .clone()
        .with_options(options().node_timeout(2 * NODE_TIMEOUT))
        .unwrap();
    take(&changed, "a").release().unwrap();
    assert_eq!(received().parse::<u32>().unwrap(), own + 2);
}

#[test]
fn eight_threads_of_one_redlock_count_exactly() {
    for nodes in [1, 3, 5] {
        let servers = Server::several(nodes);
        let redlock = unhurried_connected(&servers)
            .with_options(unhurried().retry_delay(ms(0), ms(1)))
            .unwrap();
        let counter = Arc::new(AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let lock = redlock
                            .acquire_within("counter", TTL, Duration::MAX)
                            .unwrap();
                        // Not atomic on purpose: only the lock keeps it exact.
                        let value = counter.load(Ordering::Relaxed);
                        std::hint::spin_loop();
                        counter.store(value + 1, Ordering::Relaxed);
                        assert!(lock.is_valid());
                        drop(lock);
                    }
                });
            }
        });
        assert_eq!(counter.load(Ordering::Relaxed), 800, "{nodes} nodes");
    }
}

#[test]
fn timeouts_of_any_size_that_is_allowed_work() {
    let servers = Server::several(1);
    for options in [
        Options::new()
            .node_timeout(Duration::from_secs(3600))
            .connect_timeout(Duration::from_secs(3600)),
        options()
            .wait(Duration::MAX)
            .retry_delay(Duration::ZERO, Duration::MAX),
        options().retry_delay(Duration::ZERO, Duration::ZERO),
    ] {
        let redlock = Redlock::new(urls(&servers))
            .unwrap()
            .with_options(options)
            .unwrap();
        redlock.acquire("a", TTL).unwrap().release().unwrap();
    }
    let redlock = connected(&servers);
    let century = Duration::from_secs(100 * 365 * 24 * 3600);
    let mut lock = redlock.try_acquire("a", century).unwrap().unwrap();
    lock.extend(century).unwrap();
    lock.release().unwrap();
    // A wait that never ends, a pause that never comes to its end.
    let forever = redlock
        .clone()
        .with_options(options().retry_delay(Duration::MAX, Duration::MAX))
        .unwrap();
    let lock = take(&redlock, "a");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| forever.acquire_within("a", TTL, Duration::MAX));
        std::thread::sleep(ms(50));
        lock.release().unwrap();
        waiter.join().unwrap().unwrap().release().unwrap();
    });
}
