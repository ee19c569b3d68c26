//! Processes that wait for the same lock: a release wakes the next waiter. Two `Redlock`s that were made
//! apart from each other are to each other what two processes are.

use crate::support;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redlock_sync::{Error, Lock, Redlock};
use support::processes::{self, Process, contend};
use support::relay::Relay;
use support::*;

const S: Duration = Duration::from_secs(1);
/// The minimum sleep of a waiter that is not woken.
const POLL: Duration = Duration::from_secs(5);
/// A waiter that is woken has the lock long before that.
const PROMPT: Duration = Duration::from_secs(2);

fn patient<U: redlock_sync::IntoNode>(nodes: Vec<U>) -> Redlock {
    let options = options().retry_delay(POLL, POLL);
    Redlock::new(nodes).unwrap().with_options(options).unwrap()
}

/// Two processes that sleep long unless they are woken.
fn two(servers: &[Server]) -> [Redlock; 2] {
    [(); 2].map(|()| {
        let redlock = unhurried_connected(servers);
        let options = unhurried().retry_delay(POLL, POLL);
        redlock.with_options(options).unwrap()
    })
}

fn take_turn(redlock: &Redlock) {
    redlock.acquire("a", TTL).unwrap().release().unwrap();
}

fn nothing_is_left(servers: &[Server]) {
    eventually("nothing is left", || {
        servers.iter().all(|server| server.keys().is_empty())
    });
}

/// A process waits in the queue, something is done, and it has the lock soon after.
fn is_woken(
    servers: &[Server],
    redlock: &Redlock,
    lock: Lock,
    what: &str,
    work: impl FnOnce(Lock),
) {
    std::thread::scope(|scope| {
        let next = scope.spawn(|| {
            let lock = redlock.acquire("a", TTL).unwrap();
            (Instant::now(), lock)
        });
        in_queue(servers, "a", 1);
        work(lock);
        let done = Instant::now();
        let (since, lock) = next.join().unwrap();
        let took = since.saturating_duration_since(done);
        assert!(took < PROMPT, "{what}: {took:?}");
        assert!(lock.is_valid());
        lock.release().unwrap();
    });
}

fn release(lock: Lock) {
    lock.release().unwrap();
}

#[test]
fn a_release_wakes_a_process_that_sleeps() {
    for nodes in [1, 3, 5] {
        let servers = Server::several(nodes);
        let [holder, redlock] = two(&servers);
        for round in 0..20 {
            let lock = holder.acquire("a", TTL).unwrap();
            match round % 2 {
                0 => is_woken(&servers, &redlock, lock, "release", release),
                _ => is_woken(&servers, &redlock, lock, "drop", drop),
            }
        }
        nothing_is_left(&servers);
    }
}

// ---- what other processes do

#[test]
#[ignore = "a process of other tests, not a test"]
fn worker() {
    processes::worker();
}

#[test]
fn each_of_eight_processes_is_woken_and_has_its_share() {
    for nodes in [1, 3] {
        // On a busy machine a step takes longer than others wait, and processes do not get the same time.
        let is_well = (0..3).any(|_| {
            let servers = Server::several(nodes);
            // A waiter that is not woken sleeps for five seconds.
            let part = "loop 5000000 1000 3000 release";
            let shares = contend(&servers, 8, part, Duration::from_secs(3));
            shares.print(&format!("{nodes} nodes"));
            let (median, longest) = (shares.gaps[shares.gaps.len() / 2], shares.gaps.last());
            let bound = (10 * median).max(500_000);
            let is_short = longest.is_some_and(|gap| *gap <= bound);
            let (least, most) = shares.least_and_most();
            let total: usize = shares.holds.iter().sum();
            let each = |requests: &u64| *requests as f64 / total as f64;
            assert!(shares.requests.iter().all(|requests| each(requests) < 5.0));
            let is_cheap = shares.requests.iter().all(|requests| each(requests) <= 3.5);
            println!("{nodes} nodes: {is_short}, {is_cheap}, {least} to {most}");
            is_short && is_cheap && most <= 2 * least
        });
        assert!(
            is_well,
            "{nodes} nodes: a gap is long, shares differ, or more than 3.5 requests for each"
        );
    }
}

fn no_process_starves(processes: usize, time: Duration) {
    for nodes in [1, 3] {
        for end in ["drop", "release"] {
            let servers = Server::several(nodes);
            let shares = contend(&servers, processes, &format!("loop 50000 0 0 {end}"), time);
            shares.print(&format!("{nodes} nodes, {end}"));
            let (least, most) = shares.least_and_most();
            // Processes do not get the same time from a busy machine; one that starves has next to nothing.
            assert!(
                most <= 4 * least,
                "{nodes} nodes, {end}: {:?}",
                shares.holds
            );
        }
    }
}

#[test]
fn a_holder_that_takes_a_lock_again_at_once_does_not_keep_others_out() {
    no_process_starves(4, Duration::from_secs(3));
}

#[test]
#[ignore = "twenty seconds"]
fn a_holder_that_takes_a_lock_again_at_once_does_not_keep_seven_others_out() {
    no_process_starves(8, Duration::from_secs(5));
}

#[test]
fn the_lock_of_a_killed_holder_is_taken_when_its_ttl_ends() {
    let servers = Server::several(3);
    let [_, redlock] = two(&servers);
    let dir = TempDir::new();
    let mut process = Process::start(&servers, dir.path(), "hold 3000", "held");
    let held = dir.path().join("held");
    eventually("it has the lock", || held.exists());
    std::thread::scope(|scope| {
        let next = scope.spawn(|| {
            let lock = redlock.acquire("a", TTL).unwrap();
            (Instant::now(), lock)
        });
        in_queue(&servers, "a", 1);
        let left = |server: &Server| {
            let left: i64 = redis::from_redis_value(server.command(&["PTTL", "a"])).unwrap();
            ms(left.max(0).unsigned_abs())
        };
        let left = servers.iter().map(left).max().unwrap();
        assert!(left > ms(500), "{left:?}");
        let end = Instant::now() + left;
        process.kill();
        let (since, lock) = next.join().unwrap();
        let late = since.saturating_duration_since(end);
        assert!(late < PROMPT, "{late:?} after the ttl");
        lock.release().unwrap();
    });
    nothing_is_left(&servers);
}

#[test]
fn waiters_that_were_killed_are_passed_over() {
    for nodes in [1, 3] {
        let servers = Server::several(nodes);
        let [holder, redlock] = two(&servers);
        let lock = take(&holder, "a");
        let dir = TempDir::new();
        for i in 0..4 {
            let name = i.to_string();
            let mut process = Process::start(&servers, dir.path(), "wait 5000", &name);
            in_queue(&servers, "a", i + 1);
            process.kill();
        }
        std::thread::scope(|scope| {
            let next = scope.spawn(|| take_turn(&redlock));
            in_queue(&servers, "a", 5);
            let released = Instant::now();
            lock.release().unwrap();
            next.join().unwrap();
            assert!(released.elapsed() < PROMPT, "{:?}", released.elapsed());
        });
        nothing_is_left(&servers);
    }
}

#[test]
fn a_waiter_that_hangs_costs_the_others_one_poll() {
    let servers = Server::several(3);
    let holder = connected(&servers);
    // It polls every second, or sooner.
    let redlock = connected(&servers);
    let dir = TempDir::new();
    for told in [true, false] {
        let lock = take(&holder, "a");
        let name = format!("got {told}");
        let mut process = Process::start(&servers, dir.path(), "wait 100", &name);
        in_queue(&servers, "a", 1);
        process.signal(libc::SIGSTOP);
        let next = std::thread::scope(|scope| {
            let next = scope.spawn(|| redlock.acquire("a", TTL).unwrap());
            in_queue(&servers, "a", 2);
            let released = Instant::now();
            lock.release().unwrap();
            let next = next.join().unwrap();
            assert!(released.elapsed() < POLL, "{:?}", released.elapsed());
            next
        });
        // It was notified, and no process waits for it any more.
        let lock = if told {
            next.release().unwrap();
            take(&holder, "a")
        } else {
            next
        };
        process.signal(libc::SIGCONT);
        std::thread::sleep(ms(100));
        assert!(!dir.path().join(&name).exists());
        lock.release().unwrap();
        process.succeeds();
        assert!(dir.path().join(&name).exists());
    }
    nothing_is_left(&servers);
}

/// Its notification is for another waiter, since it waits no more itself.
#[test]
fn a_waiter_that_gives_up_when_the_lock_is_released_wakes_the_next_process() {
    let servers = Server::several(3);
    let [redlock, other] = two(&servers);
    // Whether it is in the queues on the nodes.
    for enqueued in [false, true] {
        // Whether a thread of its own process had the lock.
        for local in [true, false] {
            let third = &two(&servers)[0];
            let holder = if local { &redlock } else { third };
            let lock = take(holder, "a");
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let next = scope.spawn(|| {
                    take_turn(&other);
                    Instant::now()
                });
                in_queue(&servers, "a", 1);
                let leaver = waiter(scope, || {
                    redlock.acquire_while("a", TTL, || !over.load(Ordering::Relaxed))
                });
                if enqueued {
                    in_queue(&servers, "a", 2);
                }
                over.store(true, Ordering::Relaxed);
                let released = Instant::now();
                lock.release().unwrap();
                let result = leaver.join().unwrap();
                assert!(matches!(result, Err(Error::Cancelled(_))), "{result:?}");
                let took = next.join().unwrap() - released;
                assert!(
                    took < PROMPT,
                    "enqueued {enqueued}, local {local}: {took:?}"
                );
            });
            nothing_is_left(&servers);
        }
    }
}

/// A process that was in the queue and got the lock from one of its own threads still is; so the next to
/// release notifies it, though by then it may be another process that waits.
#[test]
fn what_a_hand_off_leaves_in_the_queue_keeps_no_waiter_from_being_woken() {
    for nodes in [1, 3] {
        let servers = Server::several(nodes);
        let [redlock, other] = two(&servers);
        for waits in 0..10 {
            let lock = redlock.acquire("a", TTL).unwrap();
            let handed_off = std::thread::scope(|scope| {
                let next = scope.spawn(|| redlock.acquire("a", TTL).unwrap());
                in_queue(&servers, "a", 1);
                lock.release().unwrap();
                next.join().unwrap()
            });
            handed_off.release().unwrap();
            // While the notification is on its way, or later.
            std::thread::sleep(ms(waits / 2));
            let lock = other.acquire("a", TTL).unwrap();
            std::thread::scope(|scope| {
                let next = waiter(scope, || take_turn(&redlock));
                std::thread::sleep(ms(100));
                let released = Instant::now();
                lock.release().unwrap();
                next.join().unwrap();
                assert!(released.elapsed() < PROMPT, "{:?}", released.elapsed());
            });
        }
        nothing_is_left(&servers);
    }
}

// ---- what may happen to the nodes

fn end_subscriptions(servers: &[Server]) -> i64 {
    let end = |server: &Server| {
        let killed = server.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        redis::from_redis_value::<i64>(killed).unwrap()
    };
    servers.iter().map(end).sum()
}

fn channels(servers: &[Server]) -> usize {
    let of = |server: &Server| {
        let channels = server.command(&["PUBSUB", "CHANNELS", "redlock:*"]);
        redis::from_redis_value::<Vec<String>>(channels).unwrap()
    };
    servers.iter().flat_map(of).count()
}

#[test]
fn a_waiter_whose_subscriptions_end_is_woken_all_the_same() {
    for nodes in [1, 3] {
        let servers = Server::several(nodes);
        let [holder, redlock] = two(&servers);
        for round in 0..6 {
            let lock = holder.acquire("a", TTL).unwrap();
            is_woken(&servers, &redlock, lock, "no subscriptions", |lock| {
                eventually("each node has a subscription", || {
                    channels(&servers) == nodes
                });
                assert_eq!(end_subscriptions(&servers), nodes as i64);
                // At once, or when they may be there again.
                std::thread::sleep(ms(200 * round));
                lock.release().unwrap();
            });
        }
        nothing_is_left(&servers);
    }
}

#[test]
fn subscriptions_may_end_at_any_moment() {
    let servers = Server::several(3);
    let users = two(&servers);
    let (over, holds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for redlock in &users {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let since = Instant::now();
                    let lock = redlock.acquire("a", TTL).unwrap();
                    assert!(since.elapsed() < POLL, "{:?}", since.elapsed());
                    holds.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(ms(3));
                    lock.release().unwrap();
                }
            });
        }
        let _over = OnDrop(&over);
        let mut random = Random(0x00D1_CE5E_ED00_0007);
        let until = Instant::now() + Duration::from_secs(4);
        let mut ended = 0;
        while Instant::now() < until {
            ended += end_subscriptions(&servers);
            std::thread::sleep(ms(random.below(60)));
        }
        assert!(ended > 5, "{ended} subscriptions ended");
    });
    assert!(holds.load(Ordering::Relaxed) > 20, "{holds:?}");
    nothing_is_left(&servers);
}

fn as_user(servers: &[Server], rules: &[&str]) -> Redlock {
    for server in servers {
        let start = ["ACL", "SETUSER", "user", "reset", "on", ">password"];
        server.command(&[&start, rules].concat());
    }
    let url = |server: &Server| server.url_for("user", "password");
    let redlock = Redlock::new(servers.iter().map(url)).unwrap();
    redlock.with_options(unhurried()).unwrap()
}

/// By polling, every 10 ms at most; and what it says of itself is that of a lock.
fn works_without_notifications(servers: &[Server], limited: &Redlock, what: &str) {
    for other in [limited.clone(), unhurried_connected(servers)] {
        for (holder, next) in [(limited, &other), (&other, limited)] {
            let lock = holder.acquire("a", TTL).unwrap();
            assert!(next.try_acquire("a", TTL).unwrap().is_none(), "{what}");
            let result = next.acquire_within("a", TTL, ms(300));
            assert!(matches!(result, Err(Error::Busy(_))), "{what}: {result:?}");
            std::thread::scope(|scope| {
                let waits = waiter(scope, || take_turn(next));
                std::thread::sleep(ms(200));
                let released = Instant::now();
                lock.release().unwrap();
                waits.join().unwrap();
                let took = released.elapsed();
                assert!(took < PROMPT, "{what}: {took:?}");
            });
        }
    }
    let mut lock = limited.acquire("a", TTL).unwrap();
    lock.extend(2 * TTL).unwrap();
    drop(lock);
    eventually("the key is gone", || {
        servers.iter().all(|server| !server.exists("a"))
    });
}

#[test]
fn users_that_may_not_subscribe_wait_by_polling() {
    let refusals: [&[&str]; 4] = [
        &["~*", "&*", "+@all", "-subscribe"],
        &["~*", "resetchannels", "+@all"],
        // The key and the commands of a lock, and no more.
        &[
            "~a",
            "+set",
            "+eval",
            "+evalsha",
            "+script|load",
            "+get",
            "+del",
            "+pttl",
            "+pexpire",
        ],
        &["~a", "+set", "+eval", "+get", "+del", "+pttl", "+pexpire"],
    ];
    std::thread::scope(|scope| {
        for rules in refusals {
            scope.spawn(move || {
                for nodes in [1, 3] {
                    let servers = Server::several(nodes);
                    let limited = as_user(&servers, rules);
                    works_without_notifications(&servers, &limited, &format!("{rules:?}"));
                }
            });
        }
    });
}

#[test]
fn a_foreign_value_in_the_key_of_the_queue_stays_as_it_is() {
    let servers = Server::several(3);
    let values: [&[&str]; 4] = [
        &["SET", "{a}:redlock:w", "foreign"],
        &["SET", "{a}:redlock:w", "foreign", "PX", "60000"],
        &["RPUSH", "{a}:redlock:w", "1", "2"],
        &["HSET", "{a}:redlock:w", "field", "value"],
    ];
    for value in values {
        for server in &servers {
            server.command(value);
        }
        let state = || {
            let of = |server: &Server| {
                let left =
                    redis::from_redis_value(server.command(&["PTTL", "{a}:redlock:w"])).unwrap();
                (server.command(&["DUMP", "{a}:redlock:w"]), left)
            };
            servers.iter().map(of).collect::<Vec<(_, i64)>>()
        };
        let before = state();
        works_without_notifications(
            &servers,
            &unhurried_redlock(&servers),
            &format!("{value:?}"),
        );
        for (before, after) in before.iter().zip(state()) {
            assert_eq!(before.0, after.0, "{value:?}");
            // Neither shorter nor longer than it was.
            let passed = before.1 - after.1;
            let expected = if before.1 < 0 { 0..=0 } else { 0..=30_000 };
            assert!(
                expected.contains(&passed),
                "{value:?}: {} {}",
                before.1,
                after.1
            );
        }
        for server in &servers {
            server.command(&["DEL", "{a}:redlock:w"]);
        }
    }
}

/// The release of a client that does not notify.
const RELEASE: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";

fn set(server: &Server, token: &str) -> bool {
    server.command(&["SET", "a", token, "NX", "PX", "60000"]) == redis::Value::Okay
}

fn delete(server: &Server, token: &str) {
    let deleted = server.command(&["EVAL", RELEASE, "1", "a", token]);
    assert_eq!(deleted, redis::Value::Int(1));
}

#[test]
fn a_holder_that_does_not_notify_is_followed_by_polling() {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    for pause in [0, 50, 500] {
        assert!(servers.iter().all(|server| set(server, "foreign")));
        std::thread::scope(|scope| {
            let next = scope.spawn(|| take_turn(&redlock));
            in_queue(&servers, "a", 1);
            std::thread::sleep(ms(pause));
            let released = Instant::now();
            servers.iter().for_each(|server| delete(server, "foreign"));
            next.join().unwrap();
            // Every second, at least.
            assert!(released.elapsed() < Duration::from_secs(4));
        });
    }
    nothing_is_left(&servers);
}

#[test]
fn a_waiter_that_polls_has_its_share_beside_those_that_are_woken() {
    let servers = Server::several(1);
    let users = [connected(&servers), connected(&servers)];
    let (over, holds) = (AtomicBool::new(false), AtomicU64::new(0));
    let (mut got, mut longest) = (0, Duration::ZERO);
    std::thread::scope(|scope| {
        for redlock in &users {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let lock = redlock.acquire("a", TTL).unwrap();
                    std::thread::sleep(ms(2));
                    holds.fetch_add(1, Ordering::Relaxed);
                    lock.release().unwrap();
                    std::thread::sleep(ms(2));
                }
            });
        }
        let _over = OnDrop(&over);
        let until = Instant::now() + Duration::from_secs(3);
        let mut random = Random(0x00D1_CE5E_ED00_0011);
        while Instant::now() < until {
            let since = Instant::now();
            while !set(&servers[0], "foreign") {
                std::thread::sleep(ms(random.below(3)));
            }
            longest = longest.max(since.elapsed());
            got += 1;
            std::thread::sleep(ms(2));
            delete(&servers[0], "foreign");
            std::thread::sleep(ms(2));
        }
    });
    println!("{got} by polling, at most after {longest:?}, {holds:?} woken");
    assert!(got > 3 && holds.into_inner() > 20);
    nothing_is_left(&servers);
}

#[test]
fn nodes_that_fall_silent_during_a_wait_delay_no_waiter() {
    for silent in 1..=2 {
        let servers = Server::several(5);
        let relays: Vec<Relay> = servers
            .iter()
            .map(|server| Relay::to(server.port()))
            .collect();
        let holder = connected(&servers);
        let redlock = patient(relays.iter().map(Relay::url).collect());
        drop(redlock.acquire("connecting", TTL).unwrap());
        let lock = take(&holder, "a");
        is_woken(&servers, &redlock, lock, "silent nodes", |lock| {
            relays.iter().take(silent).for_each(Relay::forget);
            lock.release().unwrap();
        });
        // Servers that stopped, and the way of the release is hurt too.
        let lock = take(&holder, "a");
        is_woken(
            &servers[silent..],
            &redlock,
            lock,
            "stopped nodes",
            |lock| {
                servers.iter().take(silent).for_each(Server::stop);
                lock.release().unwrap();
            },
        );
        servers.iter().take(silent).for_each(Server::resume);
    }
}

#[test]
fn a_node_that_is_restarted_during_a_wait_does_no_harm() {
    let mut servers = Server::several(3);
    let [holder, redlock] = two(&servers);
    let lock = take(&holder, "a");
    // Else it may be lost with one of them.
    eventually("all nodes have it", || {
        servers.iter().all(|server| server.exists("a"))
    });
    std::thread::scope(|scope| {
        let next = scope.spawn(|| take_turn(&redlock));
        in_queue(&servers, "a", 1);
        servers[0].restart();
        let released = Instant::now();
        lock.release().unwrap();
        next.join().unwrap();
        assert!(released.elapsed() < PROMPT, "{:?}", released.elapsed());
    });
}

#[test]
fn scripts_that_are_flushed_during_a_wait_are_sent_again() {
    for nodes in [1, 3] {
        let servers = Server::several(nodes);
        let [holder, redlock] = two(&servers);
        let flush = || {
            for server in &servers {
                server.command(&["SCRIPT", "FLUSH"]);
            }
        };
        for round in 0..4 {
            let lock = holder.acquire("a", TTL).unwrap();
            is_woken(&servers, &redlock, lock, "flushed scripts", |lock| {
                flush();
                lock.release().unwrap();
            });
            // In the queue of the process, too.
            let lock = holder.acquire("a", TTL).unwrap();
            let released = std::thread::scope(|scope| {
                waiter(scope, || take_turn(&holder));
                waiter(scope, || take_turn(&holder));
                flush();
                match round % 2 {
                    0 => lock.release().unwrap(),
                    _ => drop(lock),
                }
                Instant::now()
            });
            assert!(released.elapsed() < PROMPT, "{:?}", released.elapsed());
        }
        nothing_is_left(&servers);
    }
}

#[test]
fn a_lock_that_is_flushed_is_found_free_by_its_waiters() {
    let servers = Server::several(3);
    let (holder, redlock) = (connected(&servers), connected(&servers));
    let lock = take(&holder, "a");
    std::thread::scope(|scope| {
        let next = scope.spawn(|| redlock.acquire("a", TTL).unwrap());
        in_queue(&servers, "a", 1);
        let flushed = Instant::now();
        for server in &servers {
            server.command(&["FLUSHALL"]);
        }
        let next = next.join().unwrap();
        // It polls every second, at least.
        assert!(flushed.elapsed() < Duration::from_secs(4));
        assert!(matches!(lock.release(), Err(Error::Lost(_))));
        next.release().unwrap();
    });
    nothing_is_left(&servers);
}

/// Five seconds and three times its longest poll, which is a second here.
#[test]
fn the_entry_of_a_killed_waiter_ends_by_itself() {
    let servers = Server::several(3);
    let holder = connected(&servers);
    let lock = take(&holder, "a");
    let dir = TempDir::new();
    let mut process = Process::start(&servers, dir.path(), "wait 10", "got");
    in_queue(&servers, "a", 1);
    process.kill();
    for server in &servers {
        let left: i64 =
            redis::from_redis_value(server.command(&["PTTL", "{a}:redlock:w"])).unwrap();
        assert!((1..=8000).contains(&left), "{left}");
    }
    eventually("no queue is left", || {
        servers.iter().all(|server| server.keys() == ["a"])
    });
    lock.release().unwrap();
    nothing_is_left(&servers);
}

/// A waiter that is notified while a lock is taken again must have its chance, however long the lock is then held.
#[test]
fn a_holder_that_drops_and_takes_a_lock_at_once_lets_others_in_also_after_long_holds() {
    let servers = Server::several(3);
    let [first, other] = two(&servers);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = OnDrop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let lock = first.acquire_within("a", TTL, TTL).unwrap();
                std::thread::sleep(ms(1200));
                drop(lock);
            }
        });
        eventually("it is held", || servers[0].exists("a"));
        // One release notifies it in vain, and the next gives it a head start.
        let lock = other.acquire_within("a", TTL, Duration::from_secs(20));
        lock.unwrap().release().unwrap();
    });
}

/// A message for a process that no longer waits is passed on by each node once, not by each to all.
#[test]
fn a_message_for_no_waiter_wakes_one_other_and_not_one_for_each_node() {
    let servers = Server::several(5);
    let [redlock, _] = two(&servers);
    let others: Vec<Redlock> = (0..3).flat_map(|_| two(&servers)).collect();
    let lock = redlock.acquire("a", TTL).unwrap();
    std::thread::scope(|scope| {
        let next = scope.spawn(|| redlock.acquire("a", TTL).unwrap());
        in_queue(&servers, "a", 1);
        let wait = |other: &Redlock| {
            let lock = other.acquire_within("a", TTL, TTL).unwrap();
            std::thread::sleep(S);
            lock.release().unwrap();
        };
        let waiters: Vec<_> = others
            .iter()
            .map(|other| scope.spawn(move || wait(other)))
            .collect();
        in_queue(&servers, "a", 7);
        // Each subscription has tried whether the server can publish.
        let published = || servers.iter().map(|server| server.calls("publish"));
        let before: Vec<u64> = published().collect();
        lock.release().unwrap();
        // Its process is in the queue still, as the first one.
        let lock = next.join().unwrap();
        lock.release().unwrap();
        std::thread::sleep(S / 2);
        for (now, before) in published().zip(before) {
            assert!((1..=3).contains(&(now - before)), "{before} to {now}");
        }
        for waiter in waiters {
            waiter.join().unwrap();
        }
    });
    nothing_is_left(&servers);
}

/// The process that let another one go first remembers that, and waits a little before it tries again: longer than this
/// call may wait.
#[test]
fn a_wait_shorter_than_the_head_start_of_others_makes_an_attempt() {
    let servers = Server::several(3);
    let [first, second] = two(&servers);
    let lock = first.acquire("a", TTL).unwrap();
    is_woken(&servers, &second, lock, "a release", |lock| {
        lock.release().unwrap()
    });
    let lock = first.acquire_within("a", TTL, Duration::from_micros(100));
    lock.expect("the lock is free").release().unwrap();
    nothing_is_left(&servers);
}
