//! Locks over TLS, with real certificates.
#![cfg(feature = "tls")]

use crate::support;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::fd::IntoRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use redlock_sync::{Error, NodeErrors, Options, Redlock, Tls};
use support::certificates::{Authority, Certificate, HERE};
use support::relay::Relay;
use support::*;

/// A server over TLS, and its port.
fn tls_server() -> (Server, u16) {
    let server = Server::over_tls(Certificate::any(), &[]);
    let port = server.port();
    (server, port)
}

fn three_tls_servers() -> [(Server, u16); 3] {
    std::array::from_fn(|_| tls_server())
}

/// With a connection to each node.
fn connected(ports: [u16; 3], nodes: &[(Server, u16)], options: Options) -> Redlock {
    let urls = ports.map(|port| format!("rediss://127.0.0.1:{port}/#insecure"));
    let redlock = Redlock::new(urls).unwrap().with_options(options).unwrap();
    eventually("all are connected", || everywhere(&redlock, nodes));
    redlock
}

/// Whether all vote.
fn everywhere(redlock: &Redlock, nodes: &[(Server, u16)]) -> bool {
    let lock = take(redlock, "b");
    let votes = nodes.iter().all(|(server, _)| server.exists("b"));
    lock.release().unwrap();
    votes
}

/// The connections for locks that it has. A client that reconnects has another number.
fn connections(server: &Server) -> Vec<String> {
    let list: String = redis::from_redis_value(server.command(&["CLIENT", "LIST"])).unwrap();
    let tcp = list
        .lines()
        .filter(|line| line.contains(" addr=127.") && line.contains(" sub=0 "));
    tcp.map(|line| line.split(' ').next().unwrap().to_owned())
        .collect()
}

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

#[test]
fn a_wrong_password_and_a_wrong_database_are_not_waited_for_over_tls() {
    let (server, port) = tls_server();
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
#[test]
fn the_holder_of_a_lock_and_the_fitness_of_nodes_are_seen_over_tls() {
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
        assert!(facts.clock_offset_ms().is_some() && facts.round_trip().is_some());
    }
    assert!(
        report
            .findings()
            .any(|finding| finding.code() == "persistence")
    );
    let insecure = report
        .findings()
        .filter(|finding| finding.code() == "insecure");
    assert_eq!(insecure.count(), nodes.len(), "{report}");
    nodes[0].0.stop();
    let failed = redlock.inspect("a").unwrap();
    let failed = failed
        .nodes()
        .filter(|(_, _, state)| matches!(state, redlock_sync::NodeState::Failed(_)));
    assert_eq!(failed.count(), 1);
    nodes[0].0.resume();
    lock.release().unwrap();
}

/// It is asked over TLS, too, whether it is still there; and releases reach it.
#[test]
fn a_restarted_node_sits_out_over_tls() {
    let (mut server, port) = tls_server();
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
    // On a busy machine a second one may have been made while the first was slow, and is closed soon.
    eventually("one connection is left", || connections(&server).len() == 1);
    let sits = connections(&server);
    // As a server with its data has it.
    server.command_table(&[b"SET", b"a", lock.token().as_bytes()]);
    drop(lock);
    eventually("the release reaches it", || !server.exists("a"));
    assert!(restarted.elapsed() < max_ttl);
    redlock.acquire("b", max_ttl).unwrap().release().unwrap();
    assert!(restarted.elapsed() >= max_ttl);
    assert_eq!(connections(&server), sits, "one connection all the time");
}

/// The table of faults/table.rs in small.
#[test]
fn a_faulty_minority_costs_one_timeout_over_tls_and_keeps_nothing() {
    type Fault = (&'static str, fn(&mut Server, &Relay));
    const FAULTS: [Fault; 8] = [
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
        ("trickling", |_, relay| {
            relay.set(|policy| policy.down.trickle = Some(NODE_TIMEOUT / 10));
        }),
        ("too slow", |_, relay| {
            relay.set(|policy| policy.down.delay = NODE_TIMEOUT * 8 / 5);
        }),
    ];
    let mut nodes = three_tls_servers();
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

#[test]
fn one_tls_server_under_two_names_is_refused() {
    let (_server, port) = tls_server();
    let urls = ["127.0.0.1", "localhost"].map(|host| format!("rediss://{host}:{port}/#insecure"));
    let redlock = Redlock::new(urls).unwrap();
    let redlock = redlock.with_options(options()).unwrap();
    eventually("it is found out", || {
        matches!(redlock.try_acquire("a", TTL), Err(Error::Config(_)))
    });
}

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

/// One that stalls for good, while all others are well.
#[test]
fn a_handshake_that_stalls_keeps_a_node_away_for_one_connect_timeout() {
    let name = "a_handshake_that_stalls_keeps_a_node_away_for_one_connect_timeout";
    in_own_process(name, || {
        let (server, port) = tls_server();
        let relay = Relay::to(port);
        let patience = NODE_TIMEOUT;
        let url = format!("rediss://127.0.0.1:{}/#insecure", relay.port());
        let stalls = || {
            relay.set(|policy| policy.down.stalled = true);
            let redlock = Redlock::new([&*url]).unwrap();
            let options = options().connect_timeout(patience);
            let redlock = redlock.with_options(options).unwrap();
            unavailable(redlock.try_acquire("a", TTL));
            // Nothing of it passes any more, in neither direction.
            relay.forget();
            relay.set(|policy| policy.down.stalled = false);
            redlock
        };
        let redlock = stalls();
        eventually_within(3 * patience, "it votes", &mut || {
            redlock.try_acquire("a", TTL).is_ok()
        });
        drop(redlock);
        eventually("nothing is left", || server.clients() == 0);
        eventually("no thread is left", || ears() + attendants() == 0);
        for _ in 0..5 {
            drop(stalls());
        }
        eventually("no thread is left", || ears() + attendants() == 0);
        // The relay has two for each connection that it does not close, and may still be accepting the last one.
        let ours = || open_files().checked_sub(2 * relay.connections());
        let mut before = ours();
        eventually("the relay is done", || {
            std::thread::sleep(ms(100));
            std::mem::replace(&mut before, ours()) == before
        });
        drop(stalls());
        eventually("no thread is left", || ears() + attendants() == 0);
        eventually("no file is left", || ours() == before);
    });
}

/// A server reads one record in a turn. So it takes many turns until it has read what a dead connection left, and the
/// releases must come behind that.
#[test]
fn what_a_dead_connection_left_is_undone_however_many_records_it_is() {
    let nodes = three_tls_servers();
    let relay = Relay::to(nodes[0].1);
    let ports = [relay.port(), nodes[1].1, nodes[2].1];
    // Enough locks are acquired before the silence ends the connection that reading their records takes the server
    // longer than connecting anew takes the client.
    let redlock = connected(ports, &nodes, options().node_timeout(60 * NODE_TIMEOUT));
    nodes[0].0.stop();
    let locks: Vec<_> = (0..10_000)
        .map(|i| take(&redlock, &format!("lock {i}")))
        .collect();
    // Only the client's end: the server's stays up, and what is in it will be read.
    relay.abandon();
    drop(locks);
    nodes[0].0.resume();
    let resumed = Instant::now();
    eventually("it votes again", || everywhere(&redlock, &nodes));
    println!("it votes again after {:?}", resumed.elapsed());
    for (server, _) in &nodes {
        eventually("nothing is left", || server.keys().is_empty());
    }
}

// ---- certificates

/// What becomes of a lock on one node, and how long that takes.
fn attempt(url: &str, tls: Tls) -> Result<(), NodeErrors> {
    let options = options().connect_timeout(NODE_TIMEOUT).tls(tls);
    let redlock = Redlock::new([url]).unwrap().with_options(options).unwrap();
    let began = Instant::now();
    match redlock.acquire_within("a", TTL, 4 * NODE_TIMEOUT) {
        Ok(lock) => {
            lock.release().unwrap();
            Ok(())
        }
        Err(Error::Unavailable(errors)) => {
            let waited = began.elapsed() >= 2 * NODE_TIMEOUT;
            assert_eq!(errors.is_permanent(), !waited, "{errors}");
            Err(errors)
        }
        Err(error) => panic!("{error}"),
    }
}

/// It is not waited for.
fn is_final(url: &str, tls: Tls, expected: &str) {
    let errors = attempt(url, tls).expect_err(expected);
    let text = errors.to_string();
    assert!(text.contains("no TLS connection: "), "{text}");
    assert!(text.contains(expected), "{expected}: {text}");
    assert!(errors.is_permanent(), "{text}");
}

/// It may pass.
fn may_pass(url: &str, expected: &str) {
    let errors = attempt(url, Tls::new()).expect_err(expected);
    let text = errors.to_string();
    assert!(text.contains(expected), "{expected}: {text}");
    assert!(!errors.is_permanent(), "{text}");
}

fn url(host: &str, server: &Server) -> String {
    format!("rediss://{host}:{}", server.port())
}

#[test]
fn a_certificate_is_checked_up_to_its_ca_and_for_its_name() {
    let authority = Authority::new();
    let trusted = || Tls::new().root_certificates(&authority.certificate);
    let here = Server::over_tls(&authority.signs(&[HERE]), &[]);
    attempt(&url("127.0.0.1", &here), trusted()).unwrap();
    attempt(&url("localhost", &here), trusted()).unwrap();
    // Two CAs in one text.
    let two = Authority::new().certificate + &authority.certificate;
    attempt(&url("localhost", &here), Tls::new().root_certificates(two)).unwrap();
    for unknown in [
        Tls::new(),
        Tls::new().root_certificates(Authority::new().certificate),
    ] {
        let expected = "invalid peer certificate: UnknownIssuer (give its CA with Tls::root_certificates or --cacert)";
        is_final(&url("localhost", &here), unknown, expected);
    }

    let names = ["subjectAltName=DNS:other.example"];
    let other = Server::over_tls(&authority.signs(&names), &[]);
    is_final(
        &url("localhost", &other),
        trusted(),
        "certificate not valid for name \"localhost\"; certificate is only valid for DnsName(\"other.example\") \
         (Tls::server_name or --sni gives another name)",
    );
    attempt(
        &url("127.0.0.1", &other),
        trusted().server_name("other.example"),
    )
    .unwrap();
    attempt(&other.url(), Tls::new()).expect("#insecure");

    let nameless = Server::over_tls(&authority.signs(&[]), &[]);
    is_final(
        &url("localhost", &nameless),
        trusted(),
        "(it has no subjectAltName: make one that has)",
    );
    let own = Server::over_tls(&authority.own(), &[]);
    is_final(
        &url("localhost", &own),
        trusted(),
        "(it is a CA's own certificate: a server needs one that a CA has signed; #insecure at the end of the URL accepts it \
         unchecked)",
    );
    attempt(&own.url(), Tls::new()).expect("#insecure");
}

#[test]
fn a_certificate_is_valid_for_its_time() {
    let authority = Authority::new();
    for (from, to, expected) in [
        ("20200101000000Z", "20210101000000Z", "expired"),
        ("20900101000000Z", "20910101000000Z", "not valid yet"),
    ] {
        let server = Server::over_tls(&authority.signs_for(from, to), &[]);
        let tls = Tls::new().root_certificates(&authority.certificate);
        let url = url("localhost", &server);
        is_final(&url, tls.clone(), expected);
        is_final(&url, tls, "(look at this machine's clock, too)");
    }
}

#[test]
fn a_server_that_wants_a_certificate_gets_it() {
    let authority = Authority::new();
    let client = authority.signs(&["extendedKeyUsage=clientAuth"]);
    let stranger = Authority::new().signs(&[]);
    let file = TempDir::new();
    let ca = file.path().join("ca");
    std::fs::write(&ca, &authority.certificate).unwrap();
    let ca = ca.to_str().unwrap();
    for version in ["TLSv1.2", "TLSv1.3"] {
        let mut args = vec!["--tls-auth-clients", "yes", "--tls-protocols", version];
        args.extend(["--tls-ca-cert-file", ca]);
        let server = Server::over_tls(&authority.signs(&[HERE]), &args);
        let url = url("localhost", &server);
        let tls = || Tls::new().root_certificates(&authority.certificate);
        let shows = |shown: &Certificate| tls().client_certificate(&shown.certificate, &shown.key);
        attempt(&url, shows(&client)).unwrap();
        let (missing, unknown) = match version {
            "TLSv1.2" => (
                "the server refuses: HandshakeFailure",
                "the server refuses: UnknownCA",
            ),
            _ => (
                "the server refuses: CertificateRequired (give one with Tls::client_certificate or --cert)",
                "the server refuses: UnknownCA",
            ),
        };
        is_final(&url, tls(), missing);
        is_final(&url, shows(&stranger), unknown);
    }
}

#[test]
fn a_server_with_no_version_or_suite_in_common_is_named() {
    let authority = Authority::new();
    let tls = || Tls::new().root_certificates(&authority.certificate);
    let certificate = authority.signs(&[HERE]);
    let old = [
        "--tls-protocols",
        "TLSv1.1",
        "--tls-ciphers",
        "ALL:@SECLEVEL=0",
    ];
    let server = Server::over_tls(&certificate, &old);
    is_final(
        &url("localhost", &server),
        tls(),
        "the server refuses: ProtocolVersion",
    );
    let weak = [
        "--tls-protocols",
        "TLSv1.2",
        "--tls-ciphers",
        "ECDHE-ECDSA-AES128-SHA",
    ];
    let server = Server::over_tls(&certificate, &weak);
    is_final(
        &url("localhost", &server),
        tls(),
        "the server refuses: HandshakeFailure",
    );
}

/// Answers each connection so, and hangs up after some time.
fn says(answer: &'static [u8], hangs_up: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            // So that it is not reset.
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(answer);
            if !hangs_up {
                kept.push(stream);
            }
        }
    });
    format!("rediss://127.0.0.1:{port}")
}

#[test]
fn a_port_that_does_not_speak_tls_is_named() {
    let silent = "not connected within 1 s (connect_timeout): it has said nothing (does this port speak TLS?)";
    may_pass(&says(b"", false), silent);
    // As a Redis server is: it waits for the end of a line.
    let plain = Server::plain();
    may_pass(&url("127.0.0.1", &plain), silent);
    let gone = "connection closed: by the other side in the handshake (does this port speak TLS?)";
    may_pass(&says(b"", true), gone);
    for answer in [
        &b"-ERR unknown command\r\n"[..],
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
    ] {
        is_final(
            &says(answer, false),
            Tls::new(),
            "(does this port speak TLS?)",
        );
    }
    // The other way round.
    let (server, port) = tls_server();
    let url = format!("redis://127.0.0.1:{port}");
    let text = attempt(&url, Tls::new()).unwrap_err().to_string();
    assert!(
        text.contains("(does it speak TLS? write rediss://)"),
        "{text}"
    );
    drop(server);
    // Another TLS server says so before it hangs up.
    let alert = says(b"\x15\x03\x03\x00\x02\x02\x46", false);
    let text = attempt(&alert.replace("rediss", "redis"), Tls::new());
    let text = text.unwrap_err().to_string();
    assert!(
        text.contains("(does it speak TLS? write rediss://)"),
        "{text}"
    );
}

#[test]
fn another_certificate_is_checked_by_the_next_connection() {
    let authority = Authority::new();
    let mut server = Server::over_tls(&authority.signs(&[HERE]), &[]);
    let options = options().tls(Tls::new().root_certificates(&authority.certificate));
    let redlock = Redlock::new([url("localhost", &server)]).unwrap();
    let redlock = redlock.with_options(options).unwrap();
    take(&redlock, "a").release().unwrap();
    server.set_certificate(&Authority::new().signs(&[HERE]));
    server.restart();
    eventually("it is refused", || {
        let result = redlock.try_acquire("a", TTL);
        result.is_err_and(|error| error.to_string().contains("UnknownIssuer"))
    });
    server.set_certificate(&authority.signs(&[HERE]));
    server.restart();
    eventually("it is taken", || redlock.try_acquire("a", TTL).is_ok());
}

/// Of the variables that name them.
#[test]
fn the_system_s_root_certificates_are_trusted() {
    let name = "the_system_s_root_certificates_are_trusted";
    if let Some(file) = told().filter(|file| !file.is_empty()) {
        let (kind, url) = file.split_once(' ').unwrap();
        match kind {
            "none" => is_final(
                url,
                Tls::new(),
                "give them with Tls::root_certificates or --cacert, or install ca-certificates",
            ),
            _ => attempt(url, Tls::new()).unwrap(),
        }
        return;
    }
    let authority = Authority::new();
    let server = Server::over_tls(&authority.signs(&[HERE]), &[]);
    let dir = TempDir::new();
    let file = dir.path().join("roots");
    std::fs::write(&file, &authority.certificate).unwrap();
    let empty = dir.path().join("none");
    for (kind, file) in [("given", &file), ("none", &empty)] {
        let word = format!("{kind} {}", url("localhost", &server));
        let mut process = own_process(name, &word);
        let output = process
            .env("SSL_CERT_FILE", file)
            .env_remove("SSL_CERT_DIR");
        let output = output.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{kind}: {text}");
    }
}

/// The client is made when the process has no file left, and used when it has some again.
#[test]
fn certificates_that_could_not_be_read_are_read_by_a_later_connection() {
    let name = "certificates_that_could_not_be_read_are_read_by_a_later_connection";
    if let Some(url) = told().filter(|url| !url.is_empty()) {
        // All numbers below that of the next file are taken.
        let next = std::fs::File::open("/dev/null").unwrap().into_raw_fd();
        // SAFETY: a file of this test, which nothing else uses.
        unsafe { libc::close(next) };
        few_files(Some(u64::try_from(next).unwrap()));
        let redlock = Redlock::new([url]).unwrap();
        let redlock = redlock.with_options(options()).unwrap();
        eventually("it is reported", || {
            let errors = unavailable(redlock.try_acquire("a", TTL));
            assert!(!errors.is_permanent(), "{errors}");
            errors.to_string().contains("no root certificates")
        });
        few_files(None);
        eventually("it is taken", || redlock.try_acquire("a", TTL).is_ok());
        return;
    }
    let authority = Authority::new();
    let server = Server::over_tls(&authority.signs(&[HERE]), &[]);
    let dir = TempDir::new();
    let file = dir.path().join("roots");
    std::fs::write(&file, &authority.certificate).unwrap();
    let mut process = own_process(name, &url("127.0.0.1", &server));
    let process = process.env("SSL_CERT_FILE", file);
    let output = process.env_remove("SSL_CERT_DIR").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}

/// Of two certificates one cannot be read when the client is made: its name leads to itself.
#[test]
fn certificates_that_were_read_in_part_are_read_again_by_a_later_connection() {
    let name = "certificates_that_were_read_in_part_are_read_again_by_a_later_connection";
    if let Some(word) = told().filter(|word| !word.is_empty()) {
        let [one, other, dir] = word.splitn(3, ' ').collect::<Vec<_>>()[..] else {
            panic!("{word}");
        };
        let to = |url: &str| {
            Redlock::new([url])
                .unwrap()
                .with_options(options())
                .unwrap()
        };
        let redlocks = [one, other].map(to);
        take(&redlocks[0], "a").release().unwrap();
        let text = unavailable(redlocks[1].try_acquire("a", TTL)).to_string();
        assert!(text.contains("UnknownIssuer"), "{text}");
        let loops = Path::new(dir).join("other.pem");
        std::fs::remove_file(&loops).unwrap();
        std::fs::rename(Path::new(dir).join("beside/kept"), loops).unwrap();
        eventually("it is taken", || redlocks[1].try_acquire("a", TTL).is_ok());
        return;
    }
    let authorities = [Authority::new(), Authority::new()];
    let servers = [0, 1].map(|at| Server::over_tls(&authorities[at].signs(&[HERE]), &[]));
    let dir = TempDir::new();
    let at = |name| dir.path().join(name);
    std::fs::write(at("one.pem"), &authorities[0].certificate).unwrap();
    std::os::unix::fs::symlink("other.pem", at("other.pem")).unwrap();
    // Certificates have other names in such a directory, or are in a folder of it.
    std::fs::create_dir(at("beside")).unwrap();
    std::fs::write(at("beside/kept"), &authorities[1].certificate).unwrap();
    let [one, other] = servers.each_ref().map(|server| url("127.0.0.1", server));
    let word = format!("{one} {other} {}", dir.path().display());
    let mut process = own_process(name, &word);
    let process = process.env("SSL_CERT_DIR", dir.path());
    let output = process.env_remove("SSL_CERT_FILE").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}

/// From here on this process may have no more files than these, or as many as it could before.
fn few_files(most: Option<u64>) {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: plain numbers, which the system call sets.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    limit.rlim_cur = most.unwrap_or(limit.rlim_max);
    // SAFETY: a plain system call on this process.
    let set = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    assert_eq!(set, 0);
}

#[test]
fn unusable_settings_are_refused_and_not_shown() {
    let authority = Authority::new();
    let (one, other) = (authority.signs(&[]), authority.signs(&[]));
    let bad = "-----BEGIN CERTIFICATE-----\nhunter2\n-----END CERTIFICATE-----\n";
    for (tls, expected) in [
        (
            Tls::new().root_certificates(""),
            "TLS, root certificates: no certificates in PEM",
        ),
        (
            Tls::new().root_certificates("hunter2"),
            "TLS, root certificates: no certificates in PEM",
        ),
        (
            Tls::new().root_certificates(bad),
            "TLS, root certificates: ",
        ),
        (
            Tls::new().client_certificate(bad, &one.key),
            "TLS, client certificate: ",
        ),
        (
            Tls::new().client_certificate(&one.certificate, "hunter2"),
            "TLS, key: it is no key in PEM",
        ),
        (
            Tls::new().client_certificate(&one.certificate, &other.key),
            "TLS, key: it is not that of the client certificate",
        ),
        (
            Tls::new().server_name("hunter2 hunter2"),
            "TLS, server name: ",
        ),
    ] {
        let redlock = Redlock::new(["rediss://localhost"]).unwrap();
        let text = config(redlock.with_options(Options::new().tls(tls)));
        assert!(
            text.contains(expected) && !text.contains("hunter2"),
            "{text}"
        );
    }
    let tls = Tls::new()
        .root_certificates(&authority.certificate)
        .client_certificate(&one.certificate, &one.key)
        .server_name("name");
    let options = Options::new().tls(tls);
    let redlock = Redlock::new(["rediss://localhost"]).unwrap();
    let redlock = redlock.with_options(options.clone()).unwrap();
    for text in [format!("{options:?}"), format!("{redlock:?}")] {
        assert!(text.contains("client_certificate: true"), "{text}");
        // The same text as bytes.
        assert!(
            !text.contains("BEGIN") && !text.contains("45, 45, 45"),
            "{text}"
        );
    }
}
