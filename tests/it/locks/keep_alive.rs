//! Locks that are renewed by themselves, and the signal when they are lost.

use crate::support;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use redlock_sync::{Error, KeptLock, LostReason, Redlock};
use support::*;

const HOUR: Duration = Duration::from_secs(3600);

fn keep(redlock: &Redlock, resource: &str, ttl: Duration) -> KeptLock {
    redlock
        .acquire(resource, ttl)
        .unwrap()
        .keep_alive(HOUR)
        .unwrap()
}

fn pttl(server: &Server, key: &str) -> i64 {
    redis::from_redis_value(server.command(&["PTTL", key])).unwrap()
}

/// Threads of this process by the start of their name.
fn threads(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let comm = |task: std::io::Result<std::fs::DirEntry>| {
        std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default()
    };
    tasks
        .map(comm)
        .filter(|comm| comm.starts_with(name))
        .count()
}

fn assert_lost(lock: &KeptLock, reason: LostReason) {
    assert_eq!(lock.lost(), Some(reason));
    assert!(!lock.is_valid());
    assert_eq!(lock.remaining(), Duration::ZERO);
    assert!(matches!(lock.ensure(Duration::ZERO), Err(Error::Lost(_))));
    assert!(lock.wait_lost(Duration::ZERO));
    let (sender, receiver) = mpsc::channel();
    lock.on_lost(move |reason| sender.send(reason).unwrap());
    assert_eq!(receiver.recv_timeout(Duration::from_secs(20)), Ok(reason));
    assert_eq!(lock.lost(), Some(reason), "once lost it stays lost");
}

#[test]
fn a_kept_lock_outlives_its_ttl_while_nodes_fail_and_heal_in_turn() {
    let mut servers = Server::several(5);
    let redlock = connected(&servers);
    let ttl = Duration::from_secs(3);
    let lock = keep(&redlock, "a", ttl);
    let other = Redlock::new(urls(&servers))
        .unwrap()
        .with_options(options())
        .unwrap();
    let lost = Arc::new(AtomicBool::new(false));
    lock.on_lost({
        let lost = lost.clone();
        move |_| lost.store(true, Ordering::Relaxed)
    });
    let end = Instant::now() + 4 * ttl;
    let mut round = 0;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Load on the same connections, and not on the machine.
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                drop(redlock.try_acquire("load", TTL));
                std::thread::sleep(ms(1));
            }
        });
        while Instant::now() < end {
            round += 1;
            // Two of five, for long enough to need renewals meanwhile.
            let first = round % 5;
            servers[first].stop();
            servers[(first + 1) % 5].kill();
            std::thread::sleep(ttl / 3);
            assert!(lock.is_valid(), "round {round}");
            assert!(
                matches!(other.try_acquire("a", TTL), Ok(None)),
                "round {round}"
            );
            servers[first].resume();
            servers[(first + 1) % 5].restart();
            // The restarted one is empty: give the renewal its time, or the next one lost is one
            // too many.
            let third = &servers[(first + 1) % 5];
            third.command(&["SET", "a", "x"]);
            third.command(&["DEL", "a"]);
            std::thread::sleep(ttl / 3);
            // Only nodes that hold it can renew it: put it back where it was lost.
            third.command_table(&[b"SET", b"a", lock.token().as_bytes(), b"PX", b"3000"]);
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(lock.lost(), None);
    assert!(!lost.load(Ordering::Relaxed));
    lock.release().unwrap();
    eventually("nothing is left", || {
        servers.iter().all(|server| !server.exists("a"))
    });
    std::thread::sleep(ms(50));
    assert!(!lost.load(Ordering::Relaxed), "never after release");
}

/// The program is warned while there is time, once, and goes on if a renewal succeeds after all.
#[test]
fn the_holder_is_warned_before_the_loss_if_no_renewal_succeeds() {
    let mut servers = Server::several(3);
    let redlock = connected(&servers);
    let (ttl, margin) = (Duration::from_secs(3), ms(1200));
    let lock = keep(&redlock, "a", ttl);
    let (sender, told) = mpsc::channel();
    lock.on_expiring(margin, {
        let sender = sender.clone();
        move |left| sender.send(Ok(left)).unwrap()
    });
    lock.on_lost(move |reason| sender.send(Err(reason)).unwrap());
    // Renewed in time.
    assert!(!lock.wait_lost(2 * ttl));
    assert!(told.try_recv().is_err());
    let since = lock.since_renewal();
    assert!(since < ttl / 2, "{since:?}");
    servers[..2].iter_mut().for_each(Server::kill);
    let left = told.recv_timeout(ttl).unwrap().unwrap();
    assert!(left > margin / 2 && left <= margin, "{left:?}");
    assert!(lock.is_valid() && lock.since_renewal() > ttl / 2);
    let lost = told.recv_timeout(ttl).unwrap();
    assert_eq!(lost, Err(LostReason::Expired));
    assert!(lock.since_renewal() > ttl * 9 / 10);
    drop(lock);
    assert!(told.recv().is_err(), "once");
}

#[test]
fn a_warning_may_come_at_once_and_never_after_the_end() {
    let servers = Server::several(1);
    let redlock = connected(&servers);
    let lock = keep(&redlock, "a", TTL);
    let (sender, told) = mpsc::channel();
    let warn = |margin| {
        let sender = sender.clone();
        lock.on_expiring(margin, move |left| sender.send(left).unwrap());
    };
    warn(2 * TTL);
    let left = told.recv_timeout(TTL).unwrap();
    assert!(left > TTL / 2, "{left:?}");
    warn(ms(1));
    lock.release().unwrap();
    // The second was dropped with the lock, and not called.
    drop(sender);
    assert!(told.recv().is_err());
}

#[test]
fn keys_deleted_underneath_are_noticed_at_the_next_renewal() {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    let lock = keep(&redlock, "a", Duration::from_secs(6));
    eventually("it is on all nodes", || {
        servers.iter().all(|server| server.exists("a"))
    });
    for server in &servers[..2] {
        server.command(&["DEL", "a"]);
    }
    let before = Instant::now();
    assert!(lock.wait_lost(Duration::from_secs(30)));
    assert!(
        before.elapsed() < Duration::from_secs(4),
        "{:?}",
        before.elapsed()
    );
    assert_lost(&lock, LostReason::Deleted);
    assert!(matches!(lock.release(), Err(Error::Lost(_))));
    eventually("the rest is released", || {
        servers.iter().all(|server| !server.exists("a"))
    });
}

#[test]
fn with_all_nodes_silent_the_signal_comes_at_the_deadline() {
    let servers = Server::several(3);
    // One step lasts longer than the lock: the renewal thread is in the middle of it, and the holder does not look.
    for (node_timeout, looks) in [(NODE_TIMEOUT, true), (Duration::from_secs(30), false)] {
        let redlock = connected(&servers)
            .with_options(options().node_timeout(node_timeout))
            .unwrap();
        // On a busy machine the signal may be late, but not each time.
        let soon = || lost_after_the_deadline(&servers, &redlock, looks) < NODE_TIMEOUT / 2;
        assert!((0..5).any(|_| soon()), "looks: {looks}");
    }
}

/// The nodes fall silent under a kept lock. Returns how long after its deadline its holder learns that.
fn lost_after_the_deadline(servers: &[Server], redlock: &Redlock, looks: bool) -> Duration {
    let lock = keep(redlock, "a", Duration::from_secs(2));
    let (sender, receiver) = mpsc::channel();
    lock.on_lost(move |reason| sender.send((reason, Instant::now())).unwrap());
    servers.iter().for_each(Server::stop);
    let left = lock.remaining();
    let deadline = Instant::now() + left;
    assert!(!lock.wait_lost(left / 2));
    assert!(lock.is_valid());
    assert!(!looks || lock.wait_lost(Duration::from_secs(20)));
    let waited = looks.then(Instant::now);
    let (reason, called) = receiver.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(reason, LostReason::Expired);
    let last = waited.map_or(called, |waited| waited.max(called));
    let first = waited.map_or(called, |waited| waited.min(called));
    assert!(first >= deadline - ms(5), "{:?} early", deadline - first);
    let late = last.saturating_duration_since(deadline);
    assert!(late < 2 * NODE_TIMEOUT, "{late:?} late");
    assert_lost(&lock, LostReason::Expired);
    servers.iter().for_each(Server::resume);
    assert!(matches!(lock.release(), Err(Error::Lost(_))));
    eventually("nothing is left", || {
        servers.iter().all(|server| server.keys().is_empty())
    });
    late
}

#[test]
fn a_transient_outage_is_not_loss() {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    let lock = keep(&redlock, "a", Duration::from_secs(6));
    for _ in 0..2 {
        servers.iter().for_each(Server::stop);
        // Beyond the time of the next renewal, within the validity.
        assert!(!lock.wait_lost(Duration::from_secs(3)));
        servers.iter().for_each(Server::resume);
        eventually("it is renewed again", || {
            lock.remaining() > Duration::from_secs(5)
        });
    }
    lock.release().unwrap();
}

#[test]
fn renewals_end_with_max_hold_and_the_holder_sees_it_coming() {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    let (ttl, max_hold) = (Duration::from_secs(2), Duration::from_secs(3));
    let before = Instant::now();
    let lock = redlock
        .acquire("a", ttl)
        .unwrap()
        .keep_alive(max_hold)
        .unwrap();
    assert!(lock.hold_left() <= max_hold && lock.hold_left() > max_hold / 2);
    assert!(lock.wait_lost(Duration::from_secs(60)));
    let held = before.elapsed();
    assert!(
        held > max_hold && held < max_hold + ttl + 2 * NODE_TIMEOUT,
        "{held:?}"
    );
    assert_eq!(lock.hold_left(), Duration::ZERO);
    assert_lost(&lock, LostReason::HoldLimit);
}

#[test]
fn what_cannot_be_kept_is_refused_and_released() {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    let gone = || {
        eventually("released", || {
            servers.iter().all(|server| server.keys().is_empty())
        })
    };

    let lock = take(&redlock, "a");
    eventually("time passes", || lock.remaining() < TTL * 99 / 100 - ms(20));
    let text = config(lock.keep_alive(ms(1)));
    assert!(text.contains("max_hold is 1ms"), "{text}");
    gone();

    let lock = redlock.acquire("a", ms(200)).unwrap();
    eventually("it is over", || !lock.is_valid());
    assert!(matches!(lock.keep_alive(HOUR), Err(Error::Lost(_))));

    // Nearly expired: renewed at once, or refused at once.
    let lock = redlock.acquire("a", Duration::from_secs(6)).unwrap();
    eventually("it is nearly over", || lock.remaining() < ms(1500));
    let lock = lock.keep_alive(HOUR).unwrap();
    assert!(lock.remaining() > Duration::from_secs(4));
    lock.release().unwrap();
    let lock = redlock.acquire("a", Duration::from_secs(6)).unwrap();
    eventually("it is nearly over", || lock.remaining() < ms(1500));
    eventually("it is on all nodes", || {
        servers.iter().all(|server| server.exists("a"))
    });
    for server in &servers {
        server.command(&["DEL", "a"]);
    }
    assert!(matches!(lock.keep_alive(HOUR), Err(Error::Lost(_))));
    gone();
}

#[test]
fn max_extensions_does_not_bound_renewals_and_each_asks_for_the_ttl_last_granted() {
    let servers = Server::several(3);
    let redlock = connected(&servers)
        .with_options(options().max_extensions(1))
        .unwrap();
    let mut lock = redlock.acquire("a", Duration::from_secs(3)).unwrap();
    lock.extend(Duration::from_secs(6)).unwrap();
    let lock = lock.keep_alive(HOUR).unwrap();
    let end = Instant::now() + Duration::from_secs(9);
    while Instant::now() < end {
        assert!(!lock.wait_lost(ms(100)));
        assert!(lock.remaining() > ms(1000), "{:?}", lock.remaining());
    }
    let lock = lock.stop();
    assert_eq!(lock.extensions_left(), 0);
    lock.release().unwrap();
}

#[test]
fn stop_gives_the_plain_lock_back_with_the_right_deadline() {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    let kept = keep(&redlock, "a", Duration::from_secs(3));
    eventually("it was renewed", || {
        let before = kept.remaining();
        std::thread::sleep(ms(5));
        kept.remaining() > before
    });
    let (asked, remaining) = (Instant::now(), kept.remaining());
    let called = Arc::new(AtomicBool::new(false));
    kept.on_lost({
        let called = called.clone();
        move |_| called.store(true, Ordering::Relaxed)
    });
    let lock = kept.stop();
    let (left, passed) = (lock.remaining(), asked.elapsed());
    assert!(left <= remaining && left + passed + ms(5) >= remaining);
    eventually("it is no longer renewed", || !lock.is_valid());
    eventually("its key ends too", || {
        servers.iter().all(|server| !server.exists("a"))
    });
    std::thread::sleep(ms(200));
    assert!(!called.load(Ordering::Relaxed), "never after stop");
    // A lock that was lost while it was kept stays lost.
    let kept = redlock
        .acquire("b", ms(600))
        .unwrap()
        .keep_alive(ms(600))
        .unwrap();
    assert!(kept.wait_lost(Duration::from_secs(20)));
    let lock = kept.stop();
    assert!(!lock.is_valid());
    assert!(matches!(lock.release(), Err(Error::Lost(_))));
}

/// The writes of a server's keys that are called `k-…`.
struct Writes {
    /// Writes that create it, also by scripts.
    sets: u32,
    renewals: u32,
}

/// Reads the lines of MONITOR until `the end` is echoed.
fn monitor(server: &Server) -> std::thread::JoinHandle<HashMap<String, Writes>> {
    let stream = std::os::unix::net::UnixStream::connect(server.socket()).unwrap();
    (&stream).write_all(b"MONITOR\r\n").unwrap();
    let mut lines = BufReader::new(stream).split(b'\n').map(Result::unwrap);
    assert_eq!(lines.next().unwrap(), b"+OK\r");
    std::thread::spawn(move || {
        let mut keys = HashMap::new();
        for line in lines {
            let line = String::from_utf8_lossy(&line);
            if line.contains("\"the end\"") {
                return keys;
            }
            let Some(key) = line.split("\"k-").nth(1) else {
                continue;
            };
            let key = key.split('"').next().unwrap().to_owned();
            let told = keys.entry(key).or_insert(Writes {
                sets: 0,
                renewals: 0,
            });
            if line.contains(" \"SET\" ") {
                told.sets += 1;
            } else if line.contains(" \"PEXPIRE\" ") {
                told.renewals += 1;
            }
        }
        panic!("the server hung up");
    })
}

#[test]
#[ignore = "takes all of the machine for ten seconds; .ci/nightly runs it"]
fn ten_thousand_releases_race_with_renewals_and_no_key_is_left_or_made_anew() {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    let monitors: Vec<_> = servers.iter().map(monitor).collect();
    let next = AtomicU32::new(0);
    let ended = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for thread in 0..64 {
            let (redlock, servers, next, ended) = (&redlock, &servers, &next, &ended);
            scope.spawn(move || {
                let mut random = Random(77 + thread);
                while ended.load(Ordering::Relaxed) < 10_000 {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let ttl = ms(150 + random.below(150));
                    let Ok(Some(lock)) = redlock.try_acquire(format!("k-{number}"), ttl) else {
                        continue;
                    };
                    let Ok(lock) = lock.keep_alive(HOUR) else {
                        continue;
                    };
                    // Renewals are due between 0.3 and 0.333 of the ttl.
                    let about = 290 + u32::try_from(random.below(60)).unwrap();
                    std::thread::sleep(ttl * about / 1000);
                    match random.below(3) {
                        0 => drop(lock),
                        1 => drop(lock.release()),
                        _ => {
                            let lock = lock.stop();
                            // Its key outlives what it believes, on a majority.
                            let key = format!("k-{number}");
                            let pttls: Vec<i64> =
                                servers.iter().map(|server| pttl(server, &key)).collect();
                            let left = i64::try_from(lock.remaining().as_millis()).unwrap();
                            let outlives = pttls.iter().filter(|pttl| **pttl >= left).count();
                            assert!(left == 0 || outlives >= 2, "{left} of {pttls:?}");
                            drop(lock);
                        }
                    }
                    ended.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    take(&redlock, "behind all that").release().unwrap();
    eventually("no key is left", || {
        servers.iter().all(|server| server.keys().is_empty())
    });
    for (server, monitor) in servers.iter().zip(monitors) {
        server.command(&["ECHO", "the end"]);
        let keys = monitor.join().unwrap();
        // Each name was used once: whatever sets its key again made it anew.
        assert!(keys.values().all(|told| told.sets <= 1));
        // The releases came when the renewals were due: before many and after many.
        let renewed = keys.values().filter(|told| told.renewals > 0).count();
        assert!(renewed > 1000 && keys.len() - renewed > 1000, "{renewed}");
    }
}

#[test]
fn ending_a_kept_lock_never_waits_longer_than_a_step() {
    for way in ["stop", "drop", "release"] {
        let servers = Server::several(3);
        let redlock = connected(&servers);
        let lock = keep(&redlock, "a", ms(3000));
        // A renewal comes to be under way, in vain.
        servers.iter().for_each(Server::stop);
        std::thread::sleep(ms(1100));
        let before = Instant::now();
        let lock = lock.stop();
        assert!(before.elapsed() < NODE_TIMEOUT, "it does not wait");
        match way {
            "stop" => lock.leak(),
            "drop" => drop(lock),
            _ => assert!(lock.release().is_err()),
        }
        // What the lane was running, and its own.
        assert!(
            before.elapsed() < 3 * NODE_TIMEOUT,
            "{way}: {:?}",
            before.elapsed()
        );
        servers.iter().for_each(Server::resume);
    }
}

#[test]
fn times_of_any_size_work() {
    let servers = Server::several(1);
    let redlock = connected(&servers);
    let century = Duration::from_secs(100 * 365 * 24 * 3600);
    let lock = redlock.acquire("a", century).unwrap();
    let lock = lock.keep_alive(Duration::MAX).unwrap();
    assert!(!lock.wait_lost(Duration::ZERO) && !lock.wait_lost(ms(50)));
    assert!(lock.hold_left() > century && lock.remaining() > century / 2);
    assert!(matches!(lock.ensure(Duration::MAX), Err(Error::TooSlow(_))));
    lock.ensure(century / 2).unwrap();
    let token = *lock.token();
    lock.stop().leak();
    let lock = redlock.resume("a", token, century).unwrap();
    lock.keep_alive(Duration::MAX).unwrap().release().unwrap();

    let lock = redlock.acquire("b", ms(600)).unwrap();
    let lock = lock.keep_alive(ms(600)).unwrap();
    assert!(lock.wait_lost(Duration::MAX));

    // Too short to be renewed, or over before it can be.
    for nanos in [0, 1, 1_000_000, 2_999_999, 3_000_000, 10_000_000] {
        let lock = redlock.resume("c", token, Duration::from_nanos(nanos));
        match lock.unwrap().keep_alive(Duration::MAX) {
            Ok(lock) => assert!(lock.wait_lost(Duration::MAX)),
            Err(error) => assert!(
                matches!(error, Error::Lost(_) | Error::Config(_)),
                "{error}"
            ),
        }
    }
}

#[test]
fn a_slow_or_panicking_callback_delays_no_other_lock() {
    let servers = Server::several(1);
    let redlock = connected(&servers);
    let renewed = keep(&redlock, "renewed", Duration::from_secs(3));
    let first = keep(&redlock, "first", ms(1500));
    let second = keep(&redlock, "second", ms(1500));
    let (sender, receiver) = mpsc::channel();
    first.on_lost(|_| panic!("as the test wants"));
    first.on_lost(|_| std::thread::sleep(Duration::from_secs(10)));
    second.on_lost(move |_| sender.send(Instant::now()).unwrap());
    servers[0].command(&["DEL", "first", "second"]);
    let before = Instant::now();
    assert!(first.wait_lost(Duration::from_secs(20)) && second.wait_lost(Duration::from_secs(20)));
    receiver.recv_timeout(Duration::from_secs(9)).unwrap();
    assert!(before.elapsed() < Duration::from_secs(9));
    assert!(!renewed.wait_lost(Duration::from_secs(4)));
    renewed.release().unwrap();
}

#[test]
#[ignore = "takes all of the machine for ten seconds; .ci/nightly runs it"]
fn one_thread_renews_ten_thousand_locks_in_time_and_ends_with_the_last() {
    if role().is_none() {
        // In a process of its own, so that its threads can be counted.
        let name = "one_thread_renews_ten_thousand_locks_in_time_and_ends_with_the_last";
        let mut alone = another_process(name, "alone");
        let alone = alone.arg("--include-ignored").status().unwrap();
        assert!(alone.success());
        return;
    }
    let servers = Server::several(5);
    let redlock = connected(&servers);
    let ttl = Duration::from_secs(20);
    let locks: Vec<KeptLock> = (0..10_000)
        .map(|i| keep(&redlock, &format!("{i}"), ttl))
        .collect();
    eventually("one thread", || threads("redlock-renewal") == 1);
    let end = Instant::now() + Duration::from_secs(15);
    let mut least = ttl;
    while Instant::now() < end {
        for lock in &locks {
            least = least.min(lock.remaining());
        }
        std::thread::sleep(ms(50));
    }
    // Renewed no later than half-way.
    assert!(least > ttl / 2 - ttl / 50, "{least:?}");
    assert_eq!(threads("redlock-renewal"), 1);
    drop(locks);
    eventually("the thread ends", || threads("redlock-renewal") == 0);
    eventually("all are released", || {
        servers
            .iter()
            .all(|server| server.command(&["DBSIZE"]) == redis::Value::Int(0))
    });
}

#[test]
fn no_thread_without_a_kept_lock() {
    if role().is_none() {
        assert!(
            another_process("no_thread_without_a_kept_lock", "alone")
                .status()
                .unwrap()
                .success()
        );
        return;
    }
    let servers = Server::several(3);
    let redlock = connected(&servers);
    for _ in 0..20 {
        let lock = keep(&redlock, "a", TTL);
        lock.on_lost(|_| ());
        eventually("one thread of each", || {
            (threads("redlock-renewal"), threads("redlock-watch")) == (1, 1)
        });
        lock.release().unwrap();
        eventually("both end", || {
            threads("redlock-renewal") + threads("redlock-watch") == 0
        });
    }
    drop(redlock);
    eventually("all sockets are closed", || {
        servers.iter().all(|server| server.clients() == 0)
    });
}

/// The program may end right after that, and a connection that is closed on unread answers may take
/// an unread release with it.
#[test]
fn giving_up_the_last_kept_lock_waits_for_what_its_nodes_owe() {
    let servers = Server::several(3);
    for round in 0..20 {
        let redlock = connected(&servers);
        let lock = keep(&redlock, "a", TTL);
        let resumed = AtomicBool::new(false);
        servers.iter().for_each(Server::stop);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(NODE_TIMEOUT / 10);
                resumed.store(true, Ordering::Relaxed);
                servers.iter().for_each(Server::resume);
            });
            drop(redlock);
            drop(lock);
            assert!(resumed.load(Ordering::Relaxed), "round {round}");
        });
        assert!(servers.iter().all(|server| server.keys().is_empty()));
    }
}

#[test]
fn a_frozen_process_sees_the_loss_before_anything_else() {
    if role().is_some() {
        let nodes = std::env::var("NODES").unwrap();
        let redlock = Redlock::new(nodes.split(','))
            .unwrap()
            .with_options(options())
            .unwrap();
        let lock = keep(&redlock, "a", ms(900));
        let called = Arc::new(AtomicBool::new(false));
        lock.on_lost({
            let called = called.clone();
            move |_| called.store(true, Ordering::Relaxed)
        });
        std::fs::write(std::env::var("HELD").unwrap(), "").unwrap();
        let mut last = Instant::now();
        let end = last + Duration::from_secs(60);
        while Instant::now() < end {
            let now = Instant::now();
            let valid = lock.is_valid();
            if now - last > Duration::from_secs(1) {
                assert!(!valid, "valid after {:?} in the freezer", now - last);
                assert_eq!(lock.lost(), Some(LostReason::Expired));
                eventually("the callback is called", || called.load(Ordering::Relaxed));
                return;
            }
            last = now;
            std::thread::sleep(ms(1));
        }
        panic!("it was never frozen");
    }
    let servers = Server::several(3);
    let dir = TempDir::new();
    for round in 0..5 {
        let held = dir.path().join(format!("held-{round}"));
        let mut process = another_process(
            "a_frozen_process_sees_the_loss_before_anything_else",
            "hold",
        )
        .env("NODES", urls(&servers).join(","))
        .env("HELD", &held)
        .spawn()
        .unwrap();
        eventually("the other process has it", || held.exists());
        // Somewhere in a renewal or between two.
        std::thread::sleep(ms(100 + 60 * round));
        let pid = process.id() as i32;
        // SAFETY: a plain system call on a child of ours that was not waited for.
        unsafe { libc::kill(pid, libc::SIGSTOP) };
        std::thread::sleep(Duration::from_secs(2));
        // SAFETY: the same.
        unsafe { libc::kill(pid, libc::SIGCONT) };
        assert!(process.wait().unwrap().success(), "round {round}");
    }
}

#[test]
fn with_kept_lock_releases_on_every_way_out() {
    let servers = Server::several(3);
    let redlock = unhurried_connected(&servers);
    let ttl = Duration::from_secs(3);
    let gone = || {
        eventually("released", || {
            servers.iter().all(|server| server.keys().is_empty())
        })
    };
    let result = redlock.with_kept_lock("a", ttl, HOUR, |lock| {
        assert!(!lock.wait_lost(ttl + ms(500)));
        Ok::<_, Error>(7)
    });
    assert_eq!(result.unwrap(), 7);
    gone();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let panics = |_: &KeptLock| -> Result<(), Error> { panic!("as the test wants") };
        let _ = redlock.with_kept_lock("a", ttl, HOUR, panics);
    }));
    assert!(panicked.is_err());
    gone();
    let lost = redlock.with_kept_lock("a", ms(600), ms(600), |lock| Ok(lock.wait_lost(TTL)));
    assert!(matches!(lost, Err(error @ Error::Lost(_)) if error.after_work()));
    gone();
}

#[test]
#[ignore = "takes all of the machine for ten seconds; .ci/nightly runs it"]
fn a_starved_machine_is_no_reason_to_believe_longer() {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let other = Redlock::new(urls(&servers))
            .unwrap()
            .with_options(options())
            .unwrap();
        let end = Instant::now() + Duration::from_secs(8);
        let (mut round, mut takes) = (0, 0);
        while Instant::now() < end || takes == 0 {
            let lock = keep(&redlock, "a", ms(800));
            // Every second one ends since no node answers.
            if round % 2 == 1 {
                servers.iter().for_each(Server::stop);
                std::thread::sleep(lock.remaining());
                servers.iter().for_each(Server::resume);
            }
            let until = Instant::now() + ms(1500);
            while Instant::now() < until {
                let taken = matches!(other.try_acquire("a", ms(100)), Ok(Some(_)));
                // If another could have it, it must not look valid. (Asked afterwards: loss stays.)
                assert!(!taken || !lock.is_valid());
                takes += u32::from(taken);
            }
            round += 1;
            assert!(round < 100, "no lock is lost");
        }
        println!("{takes} taken in {round} rounds");
        stop.store(true, Ordering::Relaxed);
    });
}
