//! Nodes that refuse for good: nobody waits for them, and what nobody would hear of otherwise is logged, once.

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use redlock_sync::{Error, Options, Redlock};
use support::*;

/// So long a wait, that ended early, was not waited for.
const WAIT: std::time::Duration = std::time::Duration::from_secs(120);

fn long_waits() -> Options {
    options().wait(WAIT)
}

type Strike = Box<dyn Fn(&mut Server) + Send>;

/// As a user with these rights.
fn as_user(servers: &[Server], rules: &[&str], options: Options) -> Redlock {
    allow(servers, &[&["reset", "on", ">hunter2"], rules].concat());
    let url = |server: &Server| server.url().replace("redis://", "redis://u:hunter2@");
    let redlock = Redlock::new(servers.iter().map(url)).unwrap();
    redlock.with_options(options).unwrap()
}

fn allow(servers: &[Server], rules: &[&str]) {
    for server in servers {
        server.command(&[&["ACL", "SETUSER", "u"], rules].concat());
    }
}

/// Ends long before its wait is over, because nodes refuse for good.
fn at_once<T>(what: &str, acquire: impl FnOnce() -> Result<T, Error>) -> String {
    let started = Instant::now();
    let errors = unavailable(acquire());
    assert!(errors.is_permanent(), "{what}: {errors}");
    assert!(started.elapsed() < WAIT / 2, "{what}: {errors}");
    errors.to_string()
}

#[test]
fn no_way_to_wait_for_a_lock_waits_for_nodes_that_refuse_for_good() {
    let servers = Server::several(3);
    let all = ["~*", "&*", "+@all"];
    let redlock = as_user(&servers, &all, long_waits());
    let fair = redlock.clone().with_options(long_waits().fair(true));
    let fair = fair.unwrap();
    take(&redlock, "warm").release().unwrap();
    allow(&servers[1..], &["-set", "-eval", "-evalsha"]);
    for redlock in [&redlock, &fair] {
        at_once("acquire", || redlock.acquire("a", TTL));
        at_once("within", || redlock.acquire_within("a", TTL, WAIT));
        at_once("while", || redlock.acquire_while("a", TTL, || true));
        at_once("closure", || redlock.with_lock("a", TTL, |_| ()));
        at_once("reentrant", || {
            redlock.reentrant().acquire_within("a", TTL, WAIT)
        });
        let errors = at_once("try", || redlock.try_acquire("a", TTL));
        assert!(errors.contains("NOPERM"), "{errors}");
    }
    // One of three is no reason.
    allow(&servers[1..2], &all);
    redlock.acquire("a", TTL).unwrap().release().unwrap();
    fair.acquire("a", TTL).unwrap().release().unwrap();
    eventually("nothing is left", || {
        servers.iter().all(|server| server.keys().is_empty())
    });
}

#[test]
fn all_who_wait_for_a_lock_learn_that_it_is_of_no_use() {
    for is_fair in [false, true] {
        let servers = Server::several(3);
        let holder = connected(&servers);
        let redlock = as_user(&servers, &["~*", "&*", "+@all"], long_waits().fair(is_fair));
        let lock = take(&holder, "a");
        std::thread::scope(|scope| {
            let waits = || {
                waiter(scope, || {
                    at_once("one of them", || redlock.acquire("a", TTL))
                })
            };
            let waiters: Vec<_> = (0..6).map(|_| waits()).collect();
            allow(&servers[..2], &["-set", "-eval", "-evalsha"]);
            for one in waiters {
                let errors = one.join().unwrap();
                assert_eq!(errors.matches("NOPERM").count(), 2, "{errors}");
            }
        });
        lock.release().unwrap();
        // And whoever comes when it is put right gets it.
        allow(&servers[..2], &["+@all"]);
        redlock.acquire("a", TTL).unwrap().release().unwrap();
    }
}

#[test]
fn what_may_pass_is_waited_for() {
    let config = |key: &'static str, bad: &'static str, good: &'static str| {
        let set = move |value| {
            move |server: &mut Server| {
                server.command(&["CONFIG", "SET", key, value]);
            }
        };
        (Box::new(set(bad)) as Strike, Box::new(set(good)) as Strike)
    };
    let faults: Vec<(&str, (Strike, Strike))> = vec![
        (
            "READONLY",
            (
                Box::new(|server| drop(server.command(&["REPLICAOF", "127.0.0.1", "1"]))),
                Box::new(|server| drop(server.command(&["REPLICAOF", "NO", "ONE"]))),
            ),
        ),
        ("NOREPLICAS", config("min-replicas-to-write", "1", "0")),
        ("OOM", config("maxmemory", "1", "0")),
        (
            "connect",
            (Box::new(Server::kill), Box::new(Server::restart)),
        ),
        (
            "no answer",
            (
                Box::new(|server| server.stop()),
                Box::new(|server| server.resume()),
            ),
        ),
    ];
    std::thread::scope(|scope| {
        for (what, (strike, heal)) in faults {
            scope.spawn(move || {
                let mut servers = Server::several(1);
                let redlock = connected(&servers);
                let redlock = redlock.with_options(long_waits()).unwrap();
                strike(&mut servers[0]);
                eventually(what, || {
                    let result = redlock.try_acquire("a", TTL);
                    unavailable(result).to_string().contains(what)
                });
                let gets = AtomicBool::new(false);
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        redlock.acquire("a", TTL).unwrap().release().unwrap();
                        gets.store(true, Ordering::Relaxed);
                    });
                    std::thread::sleep(NODE_TIMEOUT);
                    assert!(!gets.load(Ordering::Relaxed), "{what}");
                    heal(&mut servers[0]);
                });
                assert!(gets.load(Ordering::Relaxed), "{what}");
            });
        }
    });
}

/// What a node said before is not taken for what it would say now.
#[test]
fn who_puts_the_password_right_gets_the_lock() {
    let servers = Server::several(1);
    let relay = relay::Relay::to(servers[0].port());
    allow(&servers, &["reset", "on", ">right", "~*", "&*", "+@all"]);
    let url = relay.url().replace("redis://", "redis://u:hunter2@");
    let redlock = Redlock::new([url]).unwrap();
    let redlock = redlock.with_options(long_waits()).unwrap();
    let errors = at_once("wrong password", || redlock.acquire("a", TTL));
    assert!(errors.contains("WRONGPASS"), "{errors}");
    // Nothing comes through, and no try to connect has come through by then.
    relay.set(|policy| policy.up.stalled = true);
    std::thread::sleep(NODE_TIMEOUT);
    allow(&servers, &["resetpass", ">hunter2"]);
    let gets = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            redlock.acquire("a", TTL).unwrap().release().unwrap();
            gets.store(true, Ordering::Relaxed);
        });
        std::thread::sleep(3 * NODE_TIMEOUT);
        assert!(!gets.load(Ordering::Relaxed));
        relay.heal();
    });
    assert!(gets.load(Ordering::Relaxed));
}
