//! Locks over TLS, with real certificates.
#![cfg(any(feature = "tls-rustls", feature = "tls-native-tls"))]

use crate::support;

use std::process::Command;
#[cfg(not(feature = "tls-rustls"))]
use std::time::{Duration, Instant};

use redlock_sync::Redlock;
#[cfg(not(feature = "tls-rustls"))]
use redlock_sync::{Error, Options};
#[cfg(not(feature = "tls-rustls"))]
use support::{
    NODE_TIMEOUT, eventually, eventually_within, in_own_process, open_files, relay::Relay, take,
    threads,
};
use support::{Server, TTL, TempDir, free_port, options, unavailable};

/// A server with a certificate that nobody has reason to trust, and its TLS port.
fn tls_server(dir: &TempDir) -> (Server, u16) {
    let file = |name| dir.path().join(name).to_str().unwrap().to_owned();
    let (key, certificate) = (file("key"), file("certificate"));
    let made = Command::new("openssl")
        .args([
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
        ])
        .args([
            "-subj",
            "/CN=localhost",
            "-keyout",
            &key,
            "-out",
            &certificate,
        ])
        .output()
        .expect("openssl makes a certificate (apt-get install openssl)");
    assert!(made.status.success(), "{made:?}");
    let port = free_port();
    let number = port.to_string();
    let mut args = vec!["--tls-port", &*number, "--tls-auth-clients", "no"];
    args.extend(["--tls-key-file", &*key, "--tls-cert-file", &*certificate]);
    args.extend(["--tls-ca-cert-file", &*certificate]);
    (Server::with_args(&args), port)
}

#[cfg(not(feature = "tls-rustls"))]
fn three_tls_servers() -> [(Server, u16); 3] {
    // What a certificate was read from is not needed any more.
    std::array::from_fn(|_| tls_server(&TempDir::new()))
}

/// With a connection to each node.
#[cfg(not(feature = "tls-rustls"))]
fn connected(ports: [u16; 3], nodes: &[(Server, u16)], options: Options) -> Redlock {
    let urls = ports.map(|port| format!("rediss://127.0.0.1:{port}/#insecure"));
    let redlock = Redlock::new(urls).unwrap().with_options(options).unwrap();
    eventually("all are connected", || everywhere(&redlock, nodes));
    redlock
}

/// Whether all vote.
#[cfg(not(feature = "tls-rustls"))]
fn everywhere(redlock: &Redlock, nodes: &[(Server, u16)]) -> bool {
    let lock = take(redlock, "b");
    let votes = nodes.iter().all(|(server, _)| server.exists("b"));
    lock.release().unwrap();
    votes
}

/// The connections it has but for those of this file's looks. Who comes back has another number.
#[cfg(not(feature = "tls-rustls"))]
fn connections(server: &Server) -> Vec<String> {
    let list: String = redis::from_redis_value(server.command(&["CLIENT", "LIST"])).unwrap();
    let tcp = list.lines().filter(|line| line.contains(" addr=127."));
    tcp.map(|line| line.split(' ').next().unwrap().to_owned())
        .collect()
}

#[cfg(not(feature = "tls-rustls"))]
#[test]
fn locks_work_over_tls_and_survive_a_silent_node() {
    let nodes = three_tls_servers();
    let redlock = connected(nodes.each_ref().map(|(_, port)| *port), &nodes, options());
    assert!(redlock.connect().unwrap().is_none());

    let mut lock = take(&redlock, "a");
    assert!(redlock.try_acquire("a", TTL).unwrap().is_none());
    lock.extend(TTL * 2).unwrap();
    lock.release().unwrap();

    let (silent, _) = &nodes[0];
    silent.stop();
    for _ in 0..3 {
        take(&redlock, "a").release().unwrap();
    }
    silent.resume();
    eventually("it votes again", || everywhere(&redlock, &nodes));
    drop(redlock);
    for (server, _) in &nodes {
        eventually("nothing is left", || server.keys().is_empty());
        eventually("closed", || server.clients() == 0);
    }
}

#[cfg(not(feature = "tls-rustls"))]
#[test]
fn a_wrong_password_and_a_wrong_database_are_not_waited_for_over_tls() {
    let (server, port) = tls_server(&TempDir::new());
    let refused = |login: &str, database: &str, expected: &str| {
        let url = format!("rediss://{login}127.0.0.1:{port}/{database}#insecure");
        let redlock = Redlock::new([url]).unwrap().with_options(options());
        let started = Instant::now();
        let errors = unavailable(redlock.unwrap().acquire_within("a", TTL, TTL));
        assert!(
            errors.is_permanent() && started.elapsed() < TTL / 2,
            "{errors}"
        );
        let text = errors.to_string();
        assert!(
            text.contains(expected) && !text.contains("hunter2"),
            "{text}"
        );
    };
    refused("", "99", "ERR DB index is out of range");
    server.command(&["CONFIG", "SET", "requirepass", "right"]);
    refused(":hunter2@", "", "WRONGPASS");
    refused("", "", "NOAUTH");
    // The right one is what it takes, and the database is the one that was named.
    let locks = |database: &str| {
        let url = format!("rediss://:right@127.0.0.1:{port}/{database}#insecure");
        let redlock = Redlock::new([url]).unwrap().with_options(options());
        redlock.unwrap().try_acquire("a", TTL).unwrap()
    };
    let lock = locks("3").unwrap();
    assert!(locks("3").is_none());
    assert!(locks("").is_some());
    lock.release().unwrap();
}

/// Over connections of their own.
#[cfg(not(feature = "tls-rustls"))]
#[test]
fn who_holds_a_lock_and_whether_nodes_are_fit_is_seen_over_tls() {
    let nodes = three_tls_servers();
    let redlock = connected(nodes.each_ref().map(|(_, port)| *port), &nodes, options());
    let lock = take(&redlock, "a");
    let inspection = redlock.inspect("a").unwrap();
    let name = lock.token().fingerprint().to_string();
    match inspection.state() {
        redlock_sync::LockState::Held { holder, .. } => assert_eq!(holder.to_string(), name),
        other => panic!("{other:?}"),
    }
    let report = redlock.check("probe").unwrap();
    assert!(report.is_fit(), "{report}");
    for facts in report.nodes() {
        assert_eq!(facts.role(), Some("master"), "{report}");
        assert!(facts.clock_offset().is_some() && facts.round_trip().is_some());
    }
    assert!(
        report
            .findings()
            .any(|finding| finding.code() == "persistence")
    );
    nodes[0].0.stop();
    let failed = redlock.inspect("a").unwrap();
    let failed = failed
        .nodes()
        .filter(|(_, _, state)| matches!(state, redlock_sync::NodeState::Failed(_)));
    assert_eq!(failed.count(), 1);
    nodes[0].0.resume();
    lock.release().unwrap();
}

/// Its handshake cannot be bounded, so there is one at most, and no more threads and sockets with each look.
#[cfg(not(feature = "tls-rustls"))]
#[test]
fn looks_at_a_node_that_stands_still_in_the_handshake_do_not_pile_up() {
    let name = "looks_at_a_node_that_stands_still_in_the_handshake_do_not_pile_up";
    in_own_process(name, || {
        let nodes = three_tls_servers();
        let urls = nodes
            .each_ref()
            .map(|(_, port)| format!("rediss://127.0.0.1:{port}/#insecure"));
        // Many times what the others' handshakes take.
        let patience = 4 * NODE_TIMEOUT;
        let options = options().connect_timeout(patience);
        let redlock = Redlock::new(urls).unwrap().with_options(options).unwrap();
        let states = || {
            let inspection = redlock.inspect("a").unwrap();
            inspection
                .nodes()
                .map(|(_, _, state)| format!("{state:?}"))
                .collect::<Vec<_>>()
        };
        assert_eq!(states(), ["Free"; 3]);
        eventually("the looks have ended", || threads() == 2);
        let before = (open_files(), threads());
        nodes[1].0.stop();
        let began = Instant::now();
        for look in 0..20 {
            let states = states();
            assert_eq!([&*states[0], &*states[2]], ["Free"; 2]);
            assert!(states[1].starts_with("Failed("), "{states:?}");
            assert!(
                look == 0 || states[1].contains("has not ended"),
                "{states:?}"
            );
        }
        // Who knows of it does not wait.
        assert!(began.elapsed() < 10 * patience, "{:?}", began.elapsed());
        eventually("there is one", || {
            (open_files(), threads()) == (before.0 + 1, before.1 + 1)
        });
        let report = redlock.check("probe").unwrap();
        assert!(report.to_string().contains("has not ended"), "{report}");
        nodes[1].0.resume();
        eventually("it is seen again", || states() == ["Free"; 3]);
        eventually("nothing is left", || (open_files(), threads()) == before);
    });
}

/// It is asked over TLS, too, whether it is still there; and releases reach it.
#[cfg(not(feature = "tls-rustls"))]
#[test]
fn a_restarted_node_sits_out_over_tls() {
    let dir = TempDir::new();
    let (mut server, port) = tls_server(&dir);
    let max_ttl = Duration::from_secs(3);
    let url = format!("rediss://127.0.0.1:{port}/#insecure");
    let redlock = Redlock::new([url]).unwrap();
    let redlock = redlock
        .with_options(options().restart_guard(max_ttl))
        .unwrap();
    let lock = redlock.acquire("a", max_ttl).unwrap();
    server.kill();
    server.restart();
    let restarted = Instant::now();
    eventually("it sits out", || {
        let errors = unavailable(redlock.try_acquire("b", max_ttl));
        errors.retry_after().is_some()
    });
    let sits = connections(&server);
    // As a server with its data has it.
    server.command_bytes(&[b"SET", b"a", lock.token().as_bytes()]);
    drop(lock);
    eventually("the release reaches it", || !server.exists("a"));
    assert!(restarted.elapsed() < max_ttl);
    redlock.acquire("b", max_ttl).unwrap().release().unwrap();
    assert!(restarted.elapsed() >= max_ttl);
    assert_eq!(connections(&server), sits, "one connection all the time");
}

/// The table of tests/faults.rs in small. (That a reply which trickles in is cut off at the deadline is
/// promised for plain connections only.)
#[cfg(not(feature = "tls-rustls"))]
#[test]
fn a_faulty_minority_costs_one_timeout_over_tls_and_keeps_nothing() {
    type Fault = (&'static str, fn(&mut Server, &Relay));
    const FAULTS: [Fault; 7] = [
        ("stopped", |server, _| server.stop()),
        ("killed", |server, _| server.kill()),
        ("cut", |_, relay| relay.cut()),
        ("refused", |_, relay| relay.refuse()),
        ("stalled before the request", |_, relay| {
            relay.set(|policy| policy.up.stalled = true);
        }),
        ("stalled after the request", |_, relay| {
            relay.set(|policy| policy.down.stalled = true);
        }),
        ("too slow", |_, relay| {
            relay.set(|policy| policy.down.delay = NODE_TIMEOUT * 8 / 5);
        }),
    ];
    let dirs = [TempDir::new(), TempDir::new(), TempDir::new()];
    let mut nodes = dirs.each_ref().map(tls_server);
    let relay = Relay::to(nodes[0].1);
    let ports = [relay.port(), nodes[1].1, nodes[2].1];
    for (name, strike) in FAULTS {
        let redlock = connected(ports, &nodes, options());

        let locks = ["dropped", "released"].map(|resource| take(&redlock, resource));
        strike(&mut nodes[0].0, &relay);
        let [dropped, mut released] = locks;
        let timed = |what: &str, work: &mut dyn FnMut()| {
            let started = std::time::Instant::now();
            work();
            let took = started.elapsed();
            // One timeout, one more for a busy machine.
            assert!(took < 2 * NODE_TIMEOUT, "{name}: {what} took {took:?}");
        };
        timed("extend", &mut || released.extend(2 * TTL).unwrap());
        let mut locks = Some((dropped, released));
        let mut end = || {
            let (dropped, released) = locks.take().unwrap();
            drop(dropped);
            released.release().unwrap();
        };
        timed("drop and release", &mut end);
        timed("acquire", &mut || drop(take(&redlock, "in the fault")));

        match name {
            "stopped" => nodes[0].0.resume(),
            "killed" => nodes[0].0.restart(),
            "refused" => relay.accept(),
            _ => relay.heal(),
        }
        let back = format!("{name}: it votes again");
        eventually_within(8 * NODE_TIMEOUT, &back, &mut || {
            everywhere(&redlock, &nodes)
        });
        for (server, _) in &nodes {
            eventually(&format!("{name}: nothing is left"), || {
                server.keys().is_empty()
            });
        }
        drop(redlock);
        for (server, _) in &nodes {
            eventually(&format!("{name}: closed"), || server.clients() == 0);
        }
    }
}

#[cfg(not(feature = "tls-rustls"))]
#[test]
fn a_certificate_that_is_not_trusted_is_refused() {
    let dir = TempDir::new();
    let (_server, port) = tls_server(&dir);
    let redlock = Redlock::new([format!("rediss://localhost:{port}")]).unwrap();
    let redlock = redlock.with_options(options()).unwrap();
    let text = unavailable(redlock.try_acquire("a", TTL)).to_string();
    assert!(text.contains("certificate"), "{text}");
}

/// rustls leaves the choice to the program and panics where none was made. This program made none.
#[cfg(feature = "tls-rustls")]
#[test]
fn a_missing_crypto_provider_is_an_error_that_says_so() {
    let dir = TempDir::new();
    let (_server, port) = tls_server(&dir);
    let redlock = Redlock::new([format!("rediss://localhost:{port}")]).unwrap();
    let redlock = redlock.with_options(options()).unwrap();
    for _ in 0..2 {
        let text = unavailable(redlock.try_acquire("a", TTL)).to_string();
        assert!(text.contains("crypto provider"), "{text}");
    }
}

/// With RESP3 the answer to INFO is of another kind.
#[cfg(not(feature = "tls-rustls"))]
#[test]
fn one_tls_server_under_two_names_is_refused_whatever_protocol_is_asked_for() {
    let dir = TempDir::new();
    let (_server, port) = tls_server(&dir);
    let urls = ["127.0.0.1", "localhost"]
        .map(|host| format!("rediss://{host}:{port}/?protocol=resp3#insecure"));
    let redlock = Redlock::new(urls).unwrap();
    let redlock = redlock.with_options(options()).unwrap();
    eventually("it is found out", || {
        matches!(redlock.try_acquire("a", TTL), Err(Error::Config(_)))
    });
}

#[cfg(not(feature = "tls-rustls"))]
#[test]
fn a_hopeless_attempt_over_tls_leaves_the_good_connection_alone() {
    let mut nodes = three_tls_servers();
    let ports = nodes.each_ref().map(|(_, port)| *port);
    let redlock = connected(ports, &nodes, options());
    nodes[0].0.kill();
    nodes[1].0.kill();
    let before = connections(&nodes[2].0);
    for _ in 0..10 {
        unavailable(redlock.try_acquire("a", TTL));
        assert_eq!(connections(&nodes[2].0), before);
    }
}

/// A TLS connection does not survive a read that was given up.
#[cfg(not(feature = "tls-rustls"))]
#[test]
fn an_operation_that_ends_early_costs_the_others_no_tls_connection() {
    let nodes = three_tls_servers();
    let relays = nodes.each_ref().map(|(_, port)| Relay::to(*port));
    let options = options().node_timeout(4 * NODE_TIMEOUT);
    let redlock = &connected(relays.each_ref().map(Relay::port), &nodes, options);
    for relay in &relays {
        relay.set(|policy| policy.down.delay = NODE_TIMEOUT / 2);
    }
    let all = || nodes.each_ref().map(|(server, _)| connections(server));
    let before = all();
    for _ in 0..3 {
        std::thread::scope(|scope| {
            for long in ["a", "b", "c"] {
                scope.spawn(move || take(redlock, long).release().unwrap());
            }
            for short in ["d", "e", "f"] {
                scope.spawn(move || {
                    let short = redlock.try_acquire(short, NODE_TIMEOUT / 5);
                    let late = matches!(short, Err(Error::TooSlow | Error::Unavailable(_)));
                    assert!(late, "{short:?}");
                });
            }
        });
    }
    assert_eq!(all(), before);
    let lock = take(redlock, "a");
    for (server, _) in &nodes {
        eventually("nobody is away", || server.exists("a"));
    }
    assert_eq!(all(), before);
    lock.release().unwrap();
}

/// Replies that are not due yet are not waited for, however many: one node of three answers late, though in
/// time.
#[cfg(not(feature = "tls-rustls"))]
#[test]
fn a_far_tls_node_that_is_not_needed_delays_nobody() {
    const DISTANCE: Duration = Duration::from_secs(2);
    let nodes = three_tls_servers();
    let relay = Relay::to(nodes[0].1);
    let ports = [relay.port(), nodes[1].1, nodes[2].1];
    let redlock = connected(ports, &nodes, options().node_timeout(2 * DISTANCE));
    let before = connections(&nodes[0].0);
    relay.set(|policy| policy.down.delay = DISTANCE);
    let pair = |resource: &str| {
        let started = Instant::now();
        take(&redlock, resource).release().unwrap();
        started.elapsed()
    };
    let end = Instant::now() + 3 * DISTANCE;
    std::thread::scope(|scope| {
        for resource in ["a", "b", "c", "d"] {
            scope.spawn(move || {
                let mut long = Vec::new();
                while Instant::now() < end {
                    let took = pair(resource);
                    if took > DISTANCE / 2 {
                        long.push(took);
                    }
                }
                // Once, when it is found out that the node is far.
                assert!(long.len() <= 1, "{long:?}");
            });
        }
    });
    assert_eq!(connections(&nodes[0].0), before);
}
