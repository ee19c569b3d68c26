//! The keys beside a lock: their names, and users and servers that do not permit them.

use crate::support;

use std::time::{Duration, Instant};

use redlock_sync::{Options, Redlock};
use support::*;

const SECOND: Duration = Duration::from_secs(1);
/// The minimum sleep of a waiter that is not woken.
const POLL: Duration = Duration::from_secs(10);

fn patient() -> Options {
    unhurried().retry_delay(POLL, POLL)
}

/// One process waits for what another one holds, and has it soon after the release.
fn is_woken(server: &Server, [holder, next]: [&Redlock; 2], resource: &str) {
    let lock = take(holder, resource);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| next.acquire(resource, TTL).unwrap());
        eventually("it is in the queue", || server.queued(resource) == 1);
        let released = Instant::now();
        lock.release().unwrap();
        waits.join().unwrap().release().unwrap();
        let took = released.elapsed();
        assert!(took < POLL / 2, "{resource}: {took:?}");
    });
}

/// How many commands the server has refused so.
fn refused(server: &Server, code: &str) -> u64 {
    let count = server.info("errorstats", &format!("errorstat_{code}"));
    let count = count.strip_prefix("count=");
    count.map_or(0, |count| count.parse().unwrap())
}

/// A server that has all slots of a Redis Cluster.
fn cluster() -> Server {
    let server = Server::with_args(&["--cluster-enabled", "yes"]);
    server.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    eventually("it serves them", || {
        let info: String = redis::from_redis_value(server.command(&["CLUSTER", "INFO"])).unwrap();
        info.contains("cluster_state:ok")
    });
    server
}

#[test]
fn each_name_has_its_own_queue_order_and_counter() {
    let server = Server::start();
    let names = [
        "a", "{a}", "{a}:x", "a{b", "shop:17", "{u1}:x", "a{b}c", "}{x}", "a}b", "a{}b", "größe",
    ];
    for fair in [false, true] {
        let [holder, next, other] = [(); 3].map(|()| {
            let options = patient().fair(fair);
            unhurried_redlock(std::slice::from_ref(&server))
                .with_options(options)
                .unwrap()
        });
        for name in names {
            is_woken(&server, [&holder, &next], name);
        }
        // All at once: no name stands in another one's queue.
        let locks = names.map(|name| (name, take(&holder, name)));
        std::thread::scope(|scope| {
            for redlock in [&next, &other] {
                for name in names {
                    scope.spawn(move || redlock.acquire(name, TTL).unwrap().release().unwrap());
                }
            }
            eventually("all wait", || {
                names.iter().all(|name| server.queued(name) == 2)
            });
            for (name, lock) in locks {
                assert!(lock.fencing_token().unwrap() > 0, "{name}");
                assert!(server.exists(beside(name, "fence")), "{name}");
            }
        });
    }
}

/// It loses messages and the order of arrival, and pays for the refusal with a few names on each connection.
#[test]
fn a_user_who_may_use_only_the_locks_keys_has_locks_all_the_same() {
    for fair in [false, true] {
        let server = Server::start();
        let user = [
            "ACL", "SETUSER", "few", "on", ">secret", "~locks:*", "&*", "+@all",
        ];
        server.command(&user);
        let [holder, next] = [(); 2].map(|()| {
            let few = Redlock::new([server.url_for("few", "secret")]).unwrap();
            few.with_options(options().fair(fair)).unwrap()
        });
        for i in 0..20 {
            take(&holder, &format!("locks:{i}")).release().unwrap();
            drop(take(&holder, &format!("locks:dropped {i}")));
        }
        eventually("all are released", || server.keys().is_empty());
        assert_eq!(refused(&server, "NOPERM"), 4, "fair: {fair}");
        let lock = take(&holder, "locks:a");
        std::thread::scope(|scope| {
            let waits = waiter(scope, || next.acquire("locks:a", TTL).unwrap());
            lock.release().unwrap();
            waits.join().unwrap().release().unwrap();
        });
        eventually("all are released", || server.keys().is_empty());
        assert_eq!(refused(&server, "NOPERM"), 5, "fair: {fair}");
        let lock = take(&holder, "locks:a");
        let errors = unavailable(lock.fencing_token());
        assert!(errors.to_string().contains("NOPERM"), "{errors}");
        // Another connection tries it again.
        server.command(&["ACL", "SETUSER", "few", "~{locks:*"]);
        server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        eventually("it counts", || lock.fencing_token().is_ok());
        lock.release().unwrap();
        let again = [(); 2].map(|()| {
            let few = Redlock::new([server.url_for("few", "secret")]).unwrap();
            few.with_options(patient().fair(fair)).unwrap()
        });
        is_woken(&server, [&again[0], &again[1]], "locks:a");
    }
}

/// It has messages for the names whose companions it may use.
#[test]
fn a_name_whose_companions_are_refused_takes_the_queue_from_no_other_name() {
    let server = Server::start();
    let rights = ["~a*", "~{a*", "~b*", "&*", "+@all"];
    let user = ["ACL", "SETUSER", "some", "on", ">secret"];
    server.command(&[&user[..], &rights].concat());
    let [holder, next] = [(); 2].map(|()| {
        let some = Redlock::new([server.url_for("some", "secret")]).unwrap();
        some.with_options(patient()).unwrap()
    });
    for i in 0..3 {
        take(&holder, "b").release().unwrap();
        take(&next, "b").release().unwrap();
        is_woken(&server, [&holder, &next], &format!("a{i}"));
    }
    for i in 0..10 {
        take(&holder, &format!("b{i}")).release().unwrap();
        take(&next, &format!("b{i}")).release().unwrap();
    }
    is_woken(&server, [&holder, &next], "a");
    // Once for each name and connection.
    assert_eq!(refused(&server, "NOPERM"), 22);
}

/// Names with a brace and no tag have their queue elsewhere: only they lose it.
#[test]
fn in_a_cluster_scripts_use_only_keys_in_the_slot_of_the_lock() {
    for fair in [false, true] {
        let server = cluster();
        let [holder, next] = [(); 2].map(|()| {
            let options = patient().fair(fair);
            redlock(std::slice::from_ref(&server))
                .with_options(options)
                .unwrap()
        });
        for name in ["a", "a{b", "{u1}:x", "a{b}c", "}{x}"] {
            is_woken(&server, [&holder, &next], name);
            let lock = take(&holder, name);
            assert!(lock.fencing_token().is_ok(), "{name}");
        }
        for name in ["a}b", "a{}b"] {
            for _ in 0..5 {
                take(&holder, name).release().unwrap();
                drop(take(&holder, name));
            }
            let lock = take(&holder, name);
            let errors = unavailable(lock.fencing_token()).to_string();
            assert!(errors.contains("it has no fencing tokens"), "{errors}");
        }
        // Once for the queue, and for each number that was asked for.
        assert_eq!(refused(&server, "CROSSSLOT"), 1 + 2, "fair: {fair}");
        is_woken(&server, [&holder, &next], "a");
        let left = || {
            server
                .keys()
                .into_iter()
                .filter(|key| !key.ends_with(":fence"))
        };
        eventually("all are released", || left().count() == 0);
    }
}

/// The ending of the queue's key was `:w` once.
#[test]
fn a_release_leaves_what_has_a_natural_name_beside_its_lock() {
    let servers = Server::several(3);
    let redlock = redlock(&servers).with_options(patient()).unwrap();
    let endings = ["w", "wt", "ww", "fence", "done", "queue"];
    for server in &servers {
        for ending in endings {
            server.command(&["ZADD", &format!("{{data}}:{ending}"), "1", "x", "2", "y"]);
        }
    }
    let dumps = || {
        let dump = |server: &Server| {
            endings.map(|ending| server.command(&["DUMP", &format!("{{data}}:{ending}")]))
        };
        servers.iter().map(dump).collect::<Vec<_>>()
    };
    let before = dumps();
    let used = |name: &str| {
        let lock = take(&redlock, name);
        lock.fencing_token().unwrap();
        lock.release().unwrap();
        is_woken(&servers[0], [&redlock, &connected(&servers)], name);
    };
    used("data");
    assert_eq!(dumps(), before);

    let permits = redlock.semaphore("{shop}:w", 2).unwrap();
    let readers = redlock.read_lock("{prices}:w").unwrap();
    let held = [(); 2].map(|()| permits.try_acquire(TTL).unwrap().unwrap());
    let reader = readers.try_acquire(TTL).unwrap().unwrap();
    used("shop");
    used("prices");
    assert!(permits.try_acquire(TTL).unwrap().is_none());
    let writer = redlock.write_lock("{prices}:w").unwrap();
    assert!(writer.try_acquire(TTL).unwrap().is_none());
    for mut lock in held.into_iter().chain([reader]) {
        lock.extend(TTL).unwrap();
        lock.release().unwrap();
    }
}

/// Whatever is under way when the right is taken away.
#[test]
fn no_release_is_lost_when_the_right_to_the_queue_is_taken_away_and_given_back() {
    let servers = Server::several(3);
    let user = [
        "ACL",
        "SETUSER",
        "few",
        "reset",
        "on",
        ">secret",
        "~locks:*",
        "~{locks:*",
        "&*",
        "+@all",
    ];
    let all = |rules: &[&str]| {
        servers
            .iter()
            .for_each(|server| drop(server.command(rules)))
    };
    all(&user);
    let few = |_| {
        let urls = servers.iter().map(|server| server.url_for("few", "secret"));
        Redlock::new(urls).unwrap().with_options(options()).unwrap()
    };
    let processes = [0; 3].map(few);
    let until = Instant::now() + 3 * SECOND;
    std::thread::scope(|scope| {
        for (i, redlock) in processes.iter().enumerate() {
            scope.spawn(move || {
                // Longer than rights change. Where they do so on one node before the others, a release does not wait for
                // that node's answer: the next call reads it.
                while Instant::now() < until + SECOND {
                    // What is under way when a connection is closed may fail.
                    drop(redlock.acquire("locks:shared", TTL));
                    drop(redlock.acquire(format!("locks:{i}"), TTL));
                    let lock = redlock.acquire("locks:shared", TTL).ok();
                    lock.map(|lock| lock.release().ok());
                    std::thread::sleep(ms(5));
                }
            });
        }
        while Instant::now() < until {
            all(&["ACL", "SETUSER", "few", "resetkeys", "~locks:*"]);
            std::thread::sleep(ms(50));
            all(&["ACL", "SETUSER", "few", "~{locks:*"]);
            all(&["CLIENT", "KILL", "USER", "few"]);
            std::thread::sleep(ms(150));
        }
    });
    let left = || -> Vec<(usize, String)> {
        let keys = |(node, server): (usize, &Server)| {
            let keys = server.keys().into_iter();
            let locks = keys.filter(|key| key.starts_with("locks:"));
            locks.map(move |key| (node, key)).collect::<Vec<_>>()
        };
        servers.iter().enumerate().flat_map(keys).collect()
    };
    let end = Instant::now() + TTL / 2;
    while !left().is_empty() && Instant::now() < end {
        std::thread::sleep(ms(50));
    }
    assert_eq!(left(), []);
}
