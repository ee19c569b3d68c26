//! Dropping and releasing end in time whatever the nodes do, also during a panic and when the
//! process ends; half-open connections heal; nodes that go and come are said so once.

use crate::support;

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use redlock_sync::{Error, NodeError, Redlock};
use support::relay::Relay;
use support::*;

fn behind(relays: &[Relay]) -> Redlock {
    Redlock::new(relays.iter().map(Relay::url))
        .unwrap()
        .with_options(options())
        .unwrap()
}

fn relays(servers: &[Server]) -> Vec<Relay> {
    servers
        .iter()
        .map(|server| Relay::to(server.port()))
        .collect()
}

#[test]
fn a_panic_with_a_lock_ends_within_a_node_timeout_when_no_node_answers() {
    let servers = Server::several(3);
    let redlock = redlock(&servers);
    take(&redlock, "warm").release().unwrap();
    let lock = take(&redlock, "a");
    servers.iter().for_each(Server::stop);
    let started = Instant::now();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        let _lock = lock;
        std::panic::resume_unwind(Box::new("while it is held"));
    }));
    assert!(panicked.is_err());
    assert!(started.elapsed() < 2 * NODE_TIMEOUT);
    servers.iter().for_each(Server::resume);
    eventually("released", || {
        servers.iter().all(|server| !server.exists("a"))
    });
}

/// A step that a silent node made as long as a step can be is not followed by another, though there are
/// connections that turned out closed.
#[test]
fn a_release_ends_within_a_node_timeout_where_nodes_are_silent_and_others_closed() {
    let servers = Server::several(3);
    let relays = relays(&servers);
    let redlock = behind(&relays);
    eventually("all are connected", || {
        take(&redlock, "warm").release().unwrap();
        servers.iter().all(|server| server.clients() == 1)
    });
    let lock = take(&redlock, "a");
    servers[0].stop();
    relays[1..].iter().for_each(Relay::refuse);
    relays[1..].iter().for_each(Relay::cut);
    let started = Instant::now();
    let errors = unavailable(lock.release());
    let took = started.elapsed();
    assert!(took < 2 * NODE_TIMEOUT, "{took:?}");
    // With two of three it is certain; the third is not waited for.
    let failed: Vec<usize> = errors.iter().map(NodeError::node).collect();
    assert!(failed.ends_with(&[1, 2]), "{errors}");
    servers[0].resume();
    relays[1..].iter().for_each(Relay::accept);
    eventually("what was owed is paid", || {
        servers.iter().all(|server| !server.exists("a"))
    });
}

/// Nor is a node waited for that has never been connected yet.
#[test]
fn a_release_waits_for_no_first_connection() {
    let servers = Server::several(3);
    let relay = Relay::to(servers[2].port());
    relay.set(|policy| policy.up.stalled = true);
    let nodes = [servers[0].url(), servers[1].url(), relay.url()];
    let patient = options().connect_timeout(Duration::from_secs(20));
    let redlock = Redlock::new(nodes).unwrap().with_options(patient).unwrap();
    for away_before in [false, true] {
        let lock = take(&redlock, "a");
        servers[1].stop();
        if away_before {
            unavailable(redlock.try_acquire("b", TTL));
        }
        let started = Instant::now();
        unavailable(lock.release());
        let took = started.elapsed();
        assert!(took < 2 * NODE_TIMEOUT, "{took:?}");
        servers[1].resume();
        redlock.acquire("b", TTL).unwrap().release().unwrap();
    }
}

/// The process that ends: holds a lock, reads a line that says how it ends, and ends in that way.
fn ending() {
    let nodes = std::env::var("NODES").unwrap();
    let redlock = Redlock::new(nodes.split(',')).unwrap();
    let redlock = redlock.with_options(options()).unwrap();
    take(&redlock, "warm").release().unwrap();
    let lock = take(&redlock, "held");
    println!("held");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    match line.trim() {
        "drop" => drop(lock),
        "release" => {
            let _ = lock.release();
        }
        "drop both" => {
            drop(redlock);
            drop(lock);
        }
        "panic" => {
            let _lock = lock;
            std::panic::resume_unwind(Box::new("while it is held"));
        }
        // The lock is dropped, the connections are not: a static never is.
        "static" => {
            std::mem::forget(redlock);
            drop(lock);
            std::process::exit(0);
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_process_ends_in_time_in_every_fault() {
    if role().is_some() {
        return ending();
    }
    turns::take();
    let faults = [
        "none",
        "one stopped",
        "all stopped",
        "refused",
        "stalled",
        "trickling",
    ];
    std::thread::scope(|scope| {
        for fault in faults {
            scope.spawn(move || ends_in_time(fault));
        }
    });
}

fn ends_in_time(fault: &str) {
    let servers = Server::several(3);
    for way in ["drop", "release", "drop both", "panic", "static"] {
        let case = format!("{fault}, {way}");
        let relays = relays(&servers);
        let urls: Vec<String> = relays.iter().map(Relay::url).collect();
        let mut child = another_process("a_process_ends_in_time_in_every_fault", "end")
            .env("NODES", urls.join(","))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("held")), "{case}");
        match fault {
            "one stopped" => servers[0].stop(),
            "all stopped" => servers.iter().for_each(Server::stop),
            "refused" => relays.iter().for_each(Relay::refuse),
            "stalled" => relays
                .iter()
                .for_each(|relay| relay.set(|policy| policy.down.stalled = true)),
            "trickling" => relays.iter().for_each(|relay| {
                relay.set(|policy| policy.down.trickle = Some(NODE_TIMEOUT / 2));
            }),
            _ => {}
        }
        let started = Instant::now();
        writeln!(child.stdin.take().unwrap(), "{way}").unwrap();
        child.wait().unwrap();
        let took = started.elapsed();
        // One for the operation, one for what is still owed, one for a busy machine.
        assert!(took < 3 * NODE_TIMEOUT, "{case}: took {took:?}");
        match fault {
            "one stopped" => servers[0].resume(),
            "all stopped" => servers.iter().for_each(Server::resume),
            _ => {}
        }
        // What was written is carried out, though the answers are not read. (A relay that heals finds its
        // client gone and closes both sides, perhaps before it has passed on what it read.)
        if fault != "refused" {
            eventually(&format!("{case}: released"), || {
                servers.iter().all(|server| !server.exists("held"))
            });
        }
        for server in &servers {
            server.command(&["FLUSHALL"]);
        }
    }
}

#[test]
fn half_open_connections_heal() {
    for count in [1, 3, 5] {
        let servers = Server::several(count);
        let relays = relays(&servers);
        let redlock = behind(&relays);
        eventually("all vote", || {
            let lock = take(&redlock, "warm");
            let all = servers.iter().all(|server| server.exists("warm"));
            lock.release().unwrap();
            all
        });
        let held = take(&redlock, "held");
        // Or what is under way to some is forgotten, and whether it is held is not known without the others.
        eventually("it has arrived everywhere", || {
            servers.iter().all(|server| server.exists("held"))
        });
        relays.iter().for_each(Relay::forget);
        let started = Instant::now();
        assert!(matches!(
            redlock.try_acquire("a", TTL),
            Err(Error::Unavailable(_))
        ));
        assert!(started.elapsed() < 3 * NODE_TIMEOUT);
        let started = Instant::now();
        redlock.acquire("a", TTL).unwrap().release().unwrap();
        let took = started.elapsed();
        assert!(took < 4 * NODE_TIMEOUT, "{count} nodes took {took:?}");
        held.release().unwrap();
        eventually("nothing is left", || {
            servers.iter().all(|server| server.keys().is_empty())
        });
        // The relay keeps the forgotten ones towards the server.
        eventually("one living connection", || {
            servers.iter().all(|server| server.clients() <= 2)
        });
    }
}

struct Capture(Mutex<Vec<String>>);

static CAPTURE: Capture = Capture(Mutex::new(Vec::new()));

impl log::Log for Capture {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.target().starts_with("redlock_sync")
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) && record.level() == log::Level::Warn {
            self.0.lock().unwrap().push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// It cannot be notified, and closing does not wait for it.
#[test]
fn closing_does_not_wait_for_a_dead_node_that_is_due_a_release() {
    const TIMEOUT: Duration = Duration::from_secs(2);
    let mut servers = Server::several(3);
    let options = options().node_timeout(TIMEOUT);
    let redlock = redlock(&servers).with_options(options).unwrap();
    let lock = take(&redlock, "a");
    servers[2].kill();
    take(&redlock, "meets it").release().unwrap();
    drop(redlock);
    let started = Instant::now();
    drop(lock);
    assert!(started.elapsed() < TIMEOUT / 2, "{:?}", started.elapsed());
}

#[test]
fn a_node_that_goes_away_and_comes_back_is_logged_once_each_time() {
    in_own_process(
        "a_node_that_goes_away_and_comes_back_is_logged_once_each_time",
        || {
            log::set_logger(&CAPTURE).unwrap();
            log::set_max_level(log::LevelFilter::Trace);
            let warnings = || std::mem::take(&mut *CAPTURE.0.lock().unwrap());
            let mut servers = Server::several(3);
            // The nodes that stay get 20 MB of names below, and must not be late for it.
            let patient = options().node_timeout(4 * NODE_TIMEOUT);
            let redlock = redlock(&servers).with_options(patient).unwrap();
            take(&redlock, "a").release().unwrap();
            eventually("all are connected", || {
                servers.iter().all(|server| server.clients() == 1)
            });
            for round in 0..3 {
                servers[1].kill();
                let end = Instant::now() + NODE_TIMEOUT;
                while Instant::now() < end {
                    take(&redlock, "a").release().unwrap();
                    std::thread::sleep(ms(5));
                }
                servers[1].restart();
                eventually("it is back", || {
                    take(&redlock, "a").release().unwrap();
                    servers[1].clients() == 1
                });
                eventually("it is said", || CAPTURE.0.lock().unwrap().len() >= 2);
                let lines = warnings();
                assert_eq!(lines.len(), 2, "round {round}: {lines:#?}");
                let node = format!("node 1 (127.0.0.1:{})", servers[1].port());
                assert!(
                    lines[0].starts_with(&format!("{node} is away: ")),
                    "{lines:#?}"
                );
                let back = format!("{node} is back: restarted or replaced, it may have forgotten");
                assert!(lines[1].starts_with(&back), "{lines:#?}");
            }

            // More than is kept for a node: 16 MiB of names.
            let names = (0..300).map(|i| format!("{i:065535}"));
            let locks: Vec<_> = names.map(|name| take(&redlock, &name)).collect();
            servers[1].stop();
            drop(locks);
            servers[1].resume();
            eventually("it is said", || {
                take(&redlock, "a").release().unwrap();
                CAPTURE.0.lock().unwrap().len() >= 2
            });
            let lines = warnings();
            assert!(lines[1].contains("is back; "), "{lines:#?}");
            let many = lines[1].split(' ').find_map(|word| word.parse().ok());
            assert!(many.is_some_and(|many: u32| many < 300), "{lines:#?}");
            assert!(lines[1].contains("too many to be kept"), "{lines:#?}");

            // A wrong password on a minority is no error, but it is logged.
            servers[2].command(&["CONFIG", "SET", "requirepass", "right"]);
            let mut urls = urls(&servers);
            urls[2] = urls[2].replace("://", "://:hunter2@");
            let redlock = Redlock::new(urls).unwrap().with_options(options()).unwrap();
            let end = Instant::now() + 2 * NODE_TIMEOUT;
            while Instant::now() < end {
                take(&redlock, "a").release().unwrap();
                std::thread::sleep(ms(5));
            }
            let lines = warnings();
            assert_eq!(lines.len(), 1, "{lines:#?}");
            assert!(
                lines[0].contains("node 2") && lines[0].contains("WRONGPASS"),
                "{lines:#?}"
            );
            assert!(!lines[0].contains("hunter2") && !lines[0].contains("right"));
        },
    );
}

/// What answers more than it was asked is not a Redis server, and its next answer would be taken for
/// another's.
#[test]
fn surplus_answers_are_not_taken_for_others() {
    let servers = Server::several(1);
    let relays = relays(&servers);
    let redlock = behind(&relays);
    take(&redlock, "warm").release().unwrap();
    servers[0].command(&["SET", "taken", "by another program"]);
    relays[0].set(|policy| policy.down.replace = Some(b"+OK\r\n+OK\r\n".to_vec()));
    let causes = unavailable(redlock.try_acquire("a", TTL)).to_string();
    let expected = match over_tls() {
        true => "not a Redis answer",
        false => "more than was asked for",
    };
    assert!(causes.contains(expected), "{causes}");
    relays[0].heal();
    // A connection that was made before answers once more.
    eventually("it is a Redis server again", || {
        redlock.acquire("b", TTL).is_ok()
    });
    assert!(redlock.try_acquire("taken", TTL).unwrap().is_none());
    eventually("only another program's key", || {
        servers[0].keys() == ["taken"]
    });
}

/// The connection dies in the middle of a reply that is late already, and a new one takes as long.
#[test]
fn an_operation_takes_two_node_timeouts_at_most() {
    const TIMEOUT: Duration = Duration::from_secs(1);
    let server = Server::start();
    let relays = relays(std::slice::from_ref(&server));
    let options = options().node_timeout(TIMEOUT);
    let redlock = behind(&relays).with_options(options).unwrap();
    take(&redlock, "warm").release().unwrap();
    for what in ["acquire", "extend"] {
        let mut held = take(&redlock, "held");
        relays[0].set(|policy| {
            policy.down.delay = TIMEOUT * 9 / 10;
            policy.down.cut_after = Some(2);
        });
        let took = std::thread::scope(|scope| {
            let operation = scope.spawn(|| {
                let started = Instant::now();
                match what {
                    "acquire" => drop(redlock.try_acquire("a", TTL)),
                    _ => drop(held.extend(TTL)),
                }
                started.elapsed()
            });
            eventually("it is cut", || relays[0].connections() == 0);
            relays[0].set(|policy| policy.down.cut_after = None);
            operation.join().unwrap()
        });
        relays[0].heal();
        assert!(took < 2 * TIMEOUT + TIMEOUT / 4, "{what}: {took:?}");
        drop(held);
        redlock.acquire("b", TTL).unwrap().release().unwrap();
    }
}
