//! Nodes that refuse for good: no caller waits for them, and what no caller would learn is logged, once.

use crate::support;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use redlock_sync::{Error, Options, Redlock};
use support::*;

/// A wait of this length that ended early was cut short.
const WAIT: std::time::Duration = std::time::Duration::from_secs(120);

fn long_waits() -> Options {
    options().wait(WAIT)
}

type Strike = Box<dyn Fn(&mut Server) + Send>;

/// As a user with these rights.
fn as_user(servers: &[Server], rules: &[&str], options: Options) -> Redlock {
    allow(servers, &[&["reset", "on", ">hunter2"], rules].concat());
    let url = |server: &Server| server.url().replace("://", "://u:hunter2@");
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
    // Nor pauses before it says so.
    let long_waits = || long_waits().retry_delay(WAIT / 2, WAIT / 2);
    let redlock = as_user(&servers, &all, long_waits());
    let fair = redlock.clone().with_options(long_waits().fair(true));
    let fair = fair.unwrap();
    take(&redlock, "warm").release().unwrap();
    allow(&servers[1..], &["-set", "-eval", "-evalsha"]);
    for redlock in [&redlock, &fair] {
        at_once("acquire", || redlock.acquire("a", TTL));
        at_once("within", || redlock.acquire_within("a", TTL, WAIT));
        at_once("while", || redlock.acquire_while("a", TTL, || true));
        at_once("closure", || redlock.with_lock("a", TTL, |_| Ok(())));
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
fn all_waiters_learn_that_waiting_is_useless() {
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
        // A caller that comes after the repair gets it.
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
            "replica",
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
                    // Long before its wait is over.
                    eventually(what, || gets.load(Ordering::Relaxed));
                });
            });
        }
    });
}

/// What a node said before is not taken for what it would say now.
#[test]
fn a_corrected_password_leads_to_the_lock() {
    let servers = Server::several(1);
    let relay = relay::Relay::to(servers[0].port());
    allow(&servers, &["reset", "on", ">right", "~*", "&*", "+@all"]);
    let url = relay.url().replace("://", "://u:hunter2@");
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
        eventually("it has the lock", || gets.load(Ordering::Relaxed));
    });
}

#[test]
fn a_failed_login_ends_no_call_that_begins_once_the_password_is_right() {
    let servers = Server::several(1);
    let relay = relay::Relay::to(servers[0].port());
    allow(&servers, &["reset", "on", ">right", "~*", "&*", "+@all"]);
    let url = relay.url().replace("://", "://u:hunter2@");
    let redlock = Redlock::new([url]).unwrap();
    let redlock = redlock.with_options(long_waits()).unwrap();
    at_once("wrong password", || redlock.acquire("a", TTL));
    // The next try is refused, and does not hear of it yet.
    relay.set(|policy| policy.down.stalled = true);
    std::thread::sleep(NODE_TIMEOUT);
    allow(&servers, &["resetpass", ">hunter2"]);
    std::thread::scope(|scope| {
        let gets = scope.spawn(|| redlock.acquire("a", TTL));
        std::thread::sleep(NODE_TIMEOUT / 2);
        relay.heal();
        gets.join().unwrap().unwrap().release().unwrap();
    });
}

// ---- what is logged

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Collect;

impl log::Log for Collect {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let line = format!("{} {}", record.level(), record.args());
        LINES.lock().unwrap().push(line);
    }

    fn flush(&self) {}
}

fn collect(level: log::LevelFilter) {
    log::set_logger(&Collect).unwrap();
    log::set_max_level(level);
}

fn lines_with(part: &str) -> Vec<String> {
    let lines = LINES.lock().unwrap();
    lines
        .iter()
        .filter(|line| line.contains(part))
        .cloned()
        .collect()
}

fn name_of(server: &Server, node: usize) -> String {
    format!("node {node} (127.0.0.1:{})", server.port())
}

#[test]
fn a_refused_release_whose_answer_no_call_reads_is_logged_once_for_each_node_and_cause() {
    let name =
        "a_refused_release_whose_answer_no_call_reads_is_logged_once_for_each_node_and_cause";
    in_own_process(name, || {
        collect(log::LevelFilter::Warn);
        let servers = Server::several(3);
        let rules = ["~*", "&*", "+@all"];
        let redlock = as_user(&servers, &rules, options());
        take(&redlock, "warm").release().unwrap();
        let refused = || lines_with("refuses to release");
        // What could not be acquired need not be released.
        allow(&servers[1..], &["-set", "-eval", "-evalsha"]);
        for _ in 0..20 {
            unavailable(redlock.try_acquire("never held", TTL));
        }
        assert_eq!(refused(), [""; 0]);
        allow(&servers[1..], &["+set"]);
        for round in 0.. {
            drop(take(&redlock, &format!("resource {round}")));
            if round > 20 && refused().len() == 2 {
                break;
            }
            assert!(round < 2000, "{:?}", refused());
        }
        for (node, server) in servers.iter().enumerate().skip(1) {
            let node = format!(
                "WARN {} refuses to release \"resource ",
                name_of(server, node)
            );
            let line = refused().into_iter().find(|line| line.starts_with(&node));
            let line = line.unwrap_or_else(|| panic!("{:?}", refused()));
            for part in [
                "NOPERM",
                "'eval'",
                "ends there with its ttl",
                "EVAL, EVALSHA, GET and DEL",
            ] {
                assert!(line.contains(part), "{line}");
            }
            assert!(!line.contains("hunter2"), "{line}");
        }
        // Another cause, of whichever lock is tried first; and closing reads what is left.
        allow(&servers[1..], &["+@all", "-get"]);
        drop(take(&redlock, "another cause"));
        drop(redlock);
        let lines = refused();
        let others = lines.iter().filter(|line| !line.contains("NOPERM"));
        assert_eq!((lines.len(), others.count()), (4, 2), "{lines:?}");
    });
}

#[test]
fn what_is_no_lock_is_logged_once_for_each_node_and_resource() {
    let name = "what_is_no_lock_is_logged_once_for_each_node_and_resource";
    in_own_process(name, || {
        collect(log::LevelFilter::Warn);
        let servers = Server::several(3);
        let redlock = unhurried_connected(&servers);
        let fair = redlock
            .clone()
            .with_options(unhurried().fair(true))
            .unwrap();
        for server in &servers {
            server.command(&["RPUSH", "list", "x"]);
            server.command(&["SET", "endless", "x"]);
        }
        servers[0].command(&["SET", "held", "x", "PX", "60000"]);
        servers[1].command(&["SET", "held", "x", "PX", "60000"]);
        let wait = |resource: &str| {
            for redlock in [&redlock, &fair] {
                let result = redlock.acquire_within(resource, TTL, ms(100));
                assert!(
                    matches!(result, Err(Error::Busy(_))),
                    "{resource}: {result:?}"
                );
            }
        };
        for resource in ["list", "endless"] {
            eventually(resource, || {
                wait(resource);
                lines_with(&format!("\"{resource}\"")).len() >= 3
            });
            wait(resource);
        }
        wait("held");
        for (node, server) in servers.iter().enumerate() {
            let node = name_of(server, node);
            for (resource, what) in [("list", "another type"), ("endless", "no ttl")] {
                let lines = lines_with(&format!("WARN {node}: \"{resource}\" is no lock"));
                assert_eq!(lines.len(), 1, "{:?}", lines_with(""));
                assert!(
                    lines[0].contains(what) && lines[0].contains("prefix"),
                    "{lines:?}"
                );
            }
        }
        assert_eq!(lines_with("").len(), 6, "{:?}", lines_with(""));
        // A lock whose key was replaced.
        let lock = take(&redlock, "replaced");
        eventually("it is everywhere", || {
            servers.iter().all(|server| server.exists("replaced"))
        });
        servers[2].command(&["DEL", "replaced"]);
        servers[2].command(&["SADD", "replaced", "x"]);
        drop(lock);
        drop((redlock, fair));
        let lines = lines_with("\"replaced\" is no lock, it holds data of another type");
        assert_eq!(lines.len(), 1, "{:?}", lines_with(""));
        assert!(lines[0].contains(&name_of(&servers[2], 2)), "{lines:?}");
    });
}

/// One line for each thing that happens to it, of bounded length.
#[test]
fn every_line_about_a_lock_names_it_and_every_line_about_a_node_its_address() {
    let name = "every_line_about_a_lock_names_it_and_every_line_about_a_node_its_address";
    in_own_process(name, || {
        collect(log::LevelFilter::Trace);
        let mut servers = Server::several(3);
        let redlock = connected(&servers);
        LINES.lock().unwrap().clear();
        let resource = [b"a\n\xff".as_slice(), &[b'x'; 70_000 - 5000]].concat();
        let shown = format!("\"a\\n\\xff{}…\"", "x".repeat(61));
        let take = |ttl| redlock.try_acquire(&resource, ttl).unwrap().unwrap();
        let delete = || {
            for server in &servers {
                server.command_table(&[b"DEL", &resource]);
            }
        };
        // Extended, denied, waited for, and lost in all ways.
        let mut lock = take(TTL);
        lock.extend(TTL).unwrap();
        assert!(redlock.try_acquire(&resource, TTL).unwrap().is_none());
        let other = connected(&servers);
        other
            .acquire_within(&resource, TTL, NODE_TIMEOUT)
            .unwrap_err();
        delete();
        lock.extend(TTL).unwrap_err();
        drop(lock);
        let lock = take(TTL);
        delete();
        lock.fencing_token().unwrap_err();
        drop(lock);
        let lock = take(TTL);
        delete();
        lock.release().unwrap_err();
        let kept = take(ms(2000)).keep_alive(ms(2000)).unwrap();
        assert!(kept.wait_lost(TTL));
        drop(kept);
        let lock = take(TTL);
        let closure = redlock.with_lock("short", TTL, |_| {
            servers[1..].iter_mut().for_each(Server::kill);
            Ok::<_, Error>(())
        });
        closure.unwrap();
        drop(lock);
        drop((redlock, other));
        assert_eq!(
            lines_with("lock \"short\": too few nodes confirmed").len(),
            1
        );
        let lines = LINES.lock().unwrap();
        for about in [
            "was found lost when it was extended",
            "was found lost when it was released",
            "was found lost when its fencing token",
            "could not be released",
            "kept lock",
            "acquire ",
            ": yes",
            ": no",
        ] {
            let about: Vec<&String> = lines.iter().filter(|line| line.contains(about)).collect();
            let named = |line: &&&String| line.contains(&shown);
            assert!(about.iter().any(|line| named(&line)), "{about:?}");
        }
        for line in lines.iter() {
            assert!(line.len() < 600 && !line.contains('\n'), "{line}");
            let is_lock = ["lock \"", "acquire \"", "\" on node "];
            let is_lock = is_lock.iter().any(|part| line.contains(part));
            let is_node = (0..3).any(|node| line.contains(&name_of(&servers[node], node)));
            assert!(is_lock || is_node, "{line}");
            let is_vote = line.ends_with(": yes") || line.ends_with(": no");
            assert!(!is_vote || line.contains("\" on node "), "{line}");
            assert_eq!(line.contains("node "), is_node, "{line}");
        }
    });
}
