//! One lock on several names, or on none of them.

use crate::support;

use std::fs::{OpenOptions, remove_file};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redlock_sync::{Error, Lock, Lockable, Redlock};
use support::*;

fn take_one(lockable: &Lockable) -> Lock {
    lockable.try_acquire(TTL).unwrap().expect("all are free")
}

fn nothing_is_left(servers: &[Server]) {
    eventually("nothing is left", || {
        servers.iter().all(|server| server.keys().is_empty())
    });
}

#[test]
fn all_names_are_locked_or_none() {
    for nodes in [1, 3, 5] {
        let servers = Server::several(nodes);
        let [one, two] = [(); 2].map(|()| unhurried_connected(&servers));
        let abc = one.several(["c", "a", "b", "a"]).unwrap();
        let names = [&b"a"[..], b"b", b"c"];
        assert_eq!(abc.resources().collect::<Vec<_>>(), names);
        let lock = take_one(&abc);
        assert_eq!(lock.resources().collect::<Vec<_>>(), names);
        assert_eq!(lock.resource(), b"a");
        for name in ["a", "b", "c"] {
            assert!(two.try_acquire(name, TTL).unwrap().is_none());
            assert!(
                two.write_lock(name)
                    .unwrap()
                    .try_acquire(TTL)
                    .unwrap()
                    .is_none()
            );
            assert!(
                two.read_lock(name)
                    .unwrap()
                    .try_acquire(TTL)
                    .unwrap()
                    .is_none()
            );
        }
        assert!(
            two.several(["c", "d"])
                .unwrap()
                .try_acquire(TTL)
                .unwrap()
                .is_none()
        );
        take(&two, "d").release().unwrap();
        lock.release().unwrap();
        nothing_is_left(&servers);
        for make in [Redlock::read_lock, Redlock::write_lock] {
            let held = take_one(&make(&two, "c").unwrap());
            assert!(abc.try_acquire(TTL).unwrap().is_none());
            take(&two, "a").release().unwrap();
            held.release().unwrap();
        }
        let held = take(&two, "b");
        assert!(matches!(
            abc.acquire_within(TTL, ms(50)),
            Err(Error::Busy(_))
        ));
        held.release().unwrap();
        take_one(&abc).release().unwrap();
        nothing_is_left(&servers);
    }
}

#[test]
fn a_lock_on_several_names_does_what_a_lock_does() {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    let ab = redlock.several(["a", "b"]).unwrap();
    let number = take(&redlock, "b").fencing_token().unwrap();
    let mut lock = ab.acquire(TTL).unwrap();
    lock.extend(2 * TTL).unwrap();
    let fence = lock.fencing_token().unwrap();
    assert!(fence > number);
    let (token, left) = (*lock.token(), lock.remaining());
    lock.leak();
    let mut resumed = ab.resume(token, left).unwrap();
    resumed.extend(3 * TTL).unwrap();
    resumed
        .keep_alive(Duration::from_secs(3600))
        .unwrap()
        .release()
        .unwrap();
    for name in ["a", "b"] {
        assert!(take(&redlock, name).fencing_token().unwrap() > fence);
    }
    let names = ab.with_lock(TTL, |lock| Ok::<_, Error>(lock.resources().count()));
    assert_eq!(names.unwrap(), 2);
}

/// One name that is gone is the whole lock.
#[test]
fn a_lock_that_has_lost_one_name_is_lost() {
    let servers = Server::several(3);
    let redlock = unhurried_connected(&servers);
    let mut lock = take_one(&redlock.several(["a", "b"]).unwrap());
    servers[0].command(&["DEL", "b"]);
    eventually("it is put back there", || {
        lock.extend(TTL).unwrap();
        servers[0].exists("b")
    });
    servers[0].command(&["DEL", "b"]);
    servers[1].command(&["DEL", "b"]);
    assert!(matches!(lock.extend(TTL), Err(Error::Lost(_))));
    drop(lock);
    nothing_is_left(&servers);
}

#[test]
fn names_that_cannot_be_are_refused_and_one_name_is_a_write_lock() {
    let redlock = Redlock::new("redis://127.0.0.1:1").unwrap();
    let none: [&str; 0] = [];
    assert_eq!(config(redlock.several(none)), "no resources given");
    let text = config(redlock.several((0..10_000).map(|name| name.to_string())));
    assert!(text.contains("the limit is 1000 different ones"), "{text}");
    let text = config(redlock.several((0..40).map(|name| vec![name; 30_000])));
    assert!(text.contains("1048576 bytes"), "{text}");
    let text = config(redlock.several(["a", ""]));
    assert!(
        text.starts_with("resource 1: the resource is 0 bytes long"),
        "{text}"
    );
    assert!(
        redlock
            .several((0..3000).map(|name| (name % 1000).to_string()))
            .is_ok()
    );
    let one = redlock.several(["a", "a"]).unwrap();
    assert_eq!(format!("{one:?}"), "Lockable(\"a\", write)");
    let two = redlock.several(["b", "a"]).unwrap();
    assert_eq!(format!("{two:?}"), "Lockable(\"a\" and 1 more)");
}

#[test]
fn a_name_of_another_kind_is_an_error() {
    let servers = Server::several(3);
    let redlock = unhurried_connected(&servers);
    let ab = redlock.several(["a", "b"]).unwrap();
    let permit = take_one(&redlock.semaphore("b", 2).unwrap());
    let text = other_kind(ab.acquire(TTL));
    let named = r#"one of the 2 names from "a" on is in use as a semaphore"#;
    assert!(text.contains(named), "{text}");
    permit.release().unwrap();
    for server in &servers {
        server.command(&["RPUSH", "b", "x"]);
    }
    let text = other_kind(ab.acquire(TTL));
    assert!(text.contains("holds data that is no lock"), "{text}");
    assert!(
        servers
            .iter()
            .all(|server| server.exists("b") && !server.exists("a"))
    );
}

#[test]
fn threads_that_wait_for_single_names_are_notified() {
    let servers = Server::several(3);
    let [one, two] = [(); 2].map(|()| unhurried_connected(&servers));
    let options = unhurried().retry_delay(Duration::from_secs(60), Duration::from_secs(60));
    let two = two.with_options(options).unwrap();
    all_vote(&two, &servers);
    let lock = take_one(&one.several(["a", "b"]).unwrap());
    std::thread::scope(|scope| {
        let wait = |name| two.acquire_within(name, TTL, Duration::from_secs(50));
        let waiters = ["a", "b"].map(|name| scope.spawn(move || wait(name)));
        for name in ["a", "b"] {
            in_queue(&servers, name, 1);
        }
        lock.release().unwrap();
        for waiter in waiters {
            waiter.join().unwrap().unwrap().release().unwrap();
        }
    });
}

/// Each of the loops takes a name again as soon as it has released it, so all of them are hardly ever free at the same time.
#[test]
fn several_names_do_not_starve_beside_loops_on_single_ones_nor_wait_for_one_another() {
    let names = ["a", "b", "c", "d", "e", "f"];
    let wait = TTL / 4;
    for nodes in [1, 3] {
        let servers = Server::several(nodes);
        let (over, holds) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for name in names {
                let (single, over, holds) = (unhurried_connected(&servers), &over, &holds);
                scope.spawn(move || {
                    while !over.load(Ordering::SeqCst) {
                        let lock = single.acquire_within(name, TTL, 2 * TTL).unwrap();
                        holds.fetch_add(1, Ordering::SeqCst);
                        std::thread::sleep(ms(20));
                        lock.release().unwrap();
                    }
                });
            }
            eventually("they have begun", || holds.load(Ordering::SeqCst) > 20);
            let mut reversed = names;
            reversed.reverse();
            let both = [names, reversed].map(|names| {
                let several = unhurried_connected(&servers).several(names).unwrap();
                scope.spawn(move || {
                    let turns = (0..2).map(|_| several.acquire_within(TTL, wait)?.release());
                    turns.collect::<Result<Vec<_>, _>>()
                })
            });
            let turns = both.map(|one| one.join().unwrap());
            over.store(true, Ordering::SeqCst);
            for turns in turns {
                turns.expect("they get their turns");
            }
        });
        nothing_is_left(&servers);
    }
}

#[test]
fn a_name_that_was_in_the_way_is_claimed_and_kept_until_the_wait_ends() {
    let servers = Server::several(3);
    let [one, two] = [(); 2].map(|()| unhurried_connected(&servers));
    let [a, b] = ["a", "b"].map(|name| take(&one, name));
    let ttl = Duration::from_secs(6);
    let several = two.several(["a", "b"]).unwrap();
    let left = |name| {
        let left = servers.iter().map(|one| one.command(&["PTTL", name]));
        let left = left.map(|left| redis::from_redis_value(left).unwrap());
        left.min().map_or(0, |left: i64| left)
    };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let wait = || several.acquire_while(ttl, || !over.load(Ordering::SeqCst));
        let claims = |a: Lock| {
            eventually("it waits for the first alone, as a writer", || {
                servers.iter().all(|one| one.exists(beside("a", "ww")))
            });
            a.release().unwrap();
            eventually("it has the first, and waits for the second", || {
                left("a") > 0 && servers[0].queued("b") == 1
            });
        };
        let waiter = scope.spawn(wait);
        claims(a);
        assert!(one.try_acquire("a", TTL).unwrap().is_none());
        eventually("its claim grows old", || left("a") < 5000);
        eventually("its claim is renewed", || left("a") > 5000);
        servers[0].command(&["DEL", "a"]);
        eventually("it is brought back where it was lost", || left("a") > 0);
        over.store(true, Ordering::SeqCst);
        assert!(matches!(waiter.join().unwrap(), Err(Error::Cancelled(_))));
        eventually("its claim is released", || {
            servers.iter().all(|one| !one.exists("a"))
        });
        over.store(false, Ordering::SeqCst);
        let a = take(&one, "a");
        let waiter = scope.spawn(|| {
            several.acquire_while(ttl, || match over.load(Ordering::SeqCst) {
                true => std::panic::resume_unwind(Box::new("while it waits")),
                false => true,
            })
        });
        claims(a);
        over.store(true, Ordering::SeqCst);
        assert!(waiter.join().is_err());
        eventually("a thread that panics has released its claim", || {
            servers.iter().all(|one| !one.exists("a"))
        });
        over.store(false, Ordering::SeqCst);
        let waiter = scope.spawn(wait);
        b.release().unwrap();
        waiter.join().unwrap().unwrap().release().unwrap();
    });
    nothing_is_left(&servers);
}

/// Takes two of five names until then, and has the files of both to itself meanwhile.
fn contend(redlock: &Redlock, dir: &Path, seed: u64, end: Instant) -> u32 {
    let mut random = Random(seed);
    let mut count = 0;
    while Instant::now() < end {
        let names = [(); 2].map(|()| random.below(5).to_string());
        let lock = redlock.several(&names).unwrap().acquire(TTL).unwrap();
        let own = lock
            .resources()
            .map(|name| dir.join(name.escape_ascii().to_string()));
        let own: Vec<_> = own.collect();
        for file in &own {
            let made = OpenOptions::new().write(true).create_new(true).open(file);
            made.expect("nobody else has this name");
        }
        std::thread::sleep(ms(1));
        own.iter().for_each(|file| remove_file(file).unwrap());
        lock.release().unwrap();
        count += 1;
    }
    count
}

fn eight_processes(test: &str, time: Duration) {
    if let Some(role) = role() {
        let nodes = std::env::var("NODES").unwrap();
        let redlock = Redlock::new(nodes.split(',')).unwrap();
        let redlock = redlock
            .with_options(options().node_timeout(5 * NODE_TIMEOUT))
            .unwrap();
        let dir = std::env::var("DIR").unwrap();
        let end = Instant::now() + time;
        let seed = role.parse().unwrap();
        assert!(
            contend(&redlock, Path::new(&dir), seed, end) > 0,
            "it starves"
        );
        return;
    }
    for nodes in [1, 3, 5] {
        let (servers, dir) = (Server::several(nodes), TempDir::new());
        let start = |at: u32| {
            another_process(test, &(at + 1).to_string())
                .arg("--include-ignored")
                .env("NODES", urls(&servers).join(","))
                .env("DIR", dir.path())
                .spawn()
                .unwrap()
        };
        let mut processes: Vec<_> = (0..8).map(start).collect();
        for process in &mut processes {
            assert!(process.wait().unwrap().success(), "{nodes} nodes");
        }
        assert!(servers[0].calls("evalsha") > 100, "they did nothing");
        nothing_is_left(&servers);
    }
}

#[test]
fn eight_processes_never_have_one_of_several_names_at_the_same_time() {
    let test = "eight_processes_never_have_one_of_several_names_at_the_same_time";
    eight_processes(test, Duration::from_secs(3));
}

#[test]
#[ignore = "a minute and a half"]
fn eight_processes_never_have_one_of_several_names_at_the_same_time_for_long() {
    let test = "eight_processes_never_have_one_of_several_names_at_the_same_time_for_long";
    eight_processes(test, Duration::from_secs(30));
}

#[test]
fn names_in_different_slots_of_a_cluster_are_refused_at_once_with_advice() {
    let server = Server::with_args(&["--cluster-enabled", "yes"]);
    server.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    eventually("it serves them", || {
        let info = server.command(&["CLUSTER", "INFO"]);
        let info: String = redis::from_redis_value(info).unwrap();
        info.contains("cluster_state:ok")
    });
    let redlock = connected(std::slice::from_ref(&server));
    let errors = unavailable(redlock.several(["a", "b"]).unwrap().acquire(TTL));
    assert!(errors.is_permanent(), "{errors}");
    let text = errors.to_string();
    assert!(
        text.contains("CROSSSLOT") && text.contains("give them a common tag, as in {shop}:a and"),
        "{text}"
    );
    let tagged = redlock.several(["{shop}:a", "{shop}:b"]).unwrap();
    tagged.acquire(TTL).unwrap().release().unwrap();
}
