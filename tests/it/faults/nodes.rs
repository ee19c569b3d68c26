//! Dead nodes, and nodes that refuse: for every N, what a majority can still do, and which nodes the error
//! names.

use crate::support;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::time::Instant;

use redlock_sync::{Error, NodeError, Redlock};
use support::*;

#[test]
fn every_number_of_dead_nodes_of_one_to_five() {
    for nodes in 1..=5 {
        for dead in 0..=nodes {
            let case = format!("{dead} of {nodes} dead");
            let quorum = nodes / 2 + 1;
            let mut servers = Server::several(nodes);
            let redlock = connected(&servers);
            let mut before = take(&redlock, "before");
            servers[..dead].iter_mut().for_each(Server::kill);
            if nodes - dead >= quorum {
                before
                    .extend(2 * TTL)
                    .unwrap_or_else(|error| panic!("{case}: {error}"));
                let lock = redlock.try_acquire("a", TTL).unwrap().expect(&case);
                assert!(redlock.try_acquire("a", TTL).unwrap().is_none(), "{case}");
                lock.release()
                    .unwrap_or_else(|error| panic!("{case}: {error}"));
                before
                    .release()
                    .unwrap_or_else(|error| panic!("{case}: {error}"));
            } else {
                for named in [
                    unavailable(redlock.try_acquire("a", TTL)),
                    unavailable(before.extend(TTL)),
                    unavailable(redlock.acquire_within("a", TTL, ms(50))),
                    unavailable(before.release()),
                ] {
                    let named: Vec<usize> = named.iter().map(NodeError::node).collect();
                    assert_eq!(named, (0..dead).collect::<Vec<_>>(), "{case}");
                }
            }
            for server in &servers[dead..] {
                eventually(&case, || server.keys().is_empty());
            }
        }
    }
}

#[test]
fn nodes_that_were_never_there_do_not_matter_while_a_majority_is() {
    for nodes in 1..=5 {
        for dead in 0..=nodes {
            let case = format!("{dead} of {nodes} dead");
            let mut servers = Server::several(nodes);
            servers[..dead].iter_mut().for_each(Server::kill);
            let redlock = redlock(&servers);
            let before = Instant::now();
            if nodes - dead > nodes / 2 {
                take(&redlock, "a").release().expect(&case);
            } else {
                let named = unavailable(redlock.try_acquire("a", TTL));
                assert_eq!(named.iter().count(), dead, "{case}");
            }
            assert!(
                before.elapsed() < 2 * NODE_TIMEOUT,
                "{case}: {:?}",
                before.elapsed()
            );
        }
    }
}

#[test]
fn a_minority_grant_is_gone_from_every_live_node_within_one_node_timeout() {
    for nodes in 2..=5 {
        for granting in 1..=nodes / 2 {
            for fault in ["denied", "stopped", "killed"] {
                let case = format!("{granting} of {nodes} grant, the others {fault}");
                let mut servers = Server::several(nodes);
                let redlock = connected(&servers);
                let (grant, other) = servers.split_at_mut(granting);
                for server in other {
                    match fault {
                        "denied" => {
                            server.command(&["SET", "a", "another's"]);
                        }
                        "stopped" => server.stop(),
                        _ => server.kill(),
                    }
                }
                let result = redlock.try_acquire("a", TTL);
                let failed = Instant::now();
                match (fault, result) {
                    ("denied", Ok(None)) | ("stopped" | "killed", Err(Error::Unavailable(_))) => {}
                    // With an even number of nodes half of them failing is "too few answers", too.
                    (_, other) => panic!("{case}: {other:?}"),
                }
                eventually(&case, || grant.iter().all(|server| !server.exists("a")));
                assert!(
                    failed.elapsed() < NODE_TIMEOUT,
                    "{case}: {:?}",
                    failed.elapsed()
                );
                if fault == "stopped" {
                    servers[granting..].iter().for_each(Server::resume);
                    eventually(&case, || servers.iter().all(|server| !server.exists("a")));
                }
            }
        }
    }
}

/// A thread that waits for a lock goes on waiting although too many nodes refuse for a majority.
fn bad_nodes(make: impl Fn() -> (Server, String), expected: &str) {
    named(make, expected, false);
}

/// It does not.
fn hopeless_nodes(make: impl Fn() -> (Server, String), expected: &str) {
    named(make, expected, true);
}

/// One bad node beside four good ones costs nothing; three of five, and the only one, are named.
fn named(make: impl Fn() -> (Server, String), expected: &str, hopeless: bool) {
    let good = Server::several(4);
    let bad: Vec<(Server, String)> = (0..3).map(|_| make()).collect();

    let mut nodes = urls(&good);
    nodes.insert(2, bad[0].1.clone());
    let redlock = Redlock::new(nodes)
        .unwrap()
        .with_options(options())
        .unwrap();
    for _ in 0..3 {
        let mut lock = take(&redlock, "minority");
        lock.extend(2 * TTL).unwrap();
        assert!(redlock.try_acquire("minority", TTL).unwrap().is_none());
        lock.release().unwrap();
    }
    eventually("nothing is left", || {
        good.iter().all(|server| server.keys().is_empty())
    });

    for (indices, nodes) in [
        (vec![0], vec![bad[0].1.clone()]),
        (
            vec![1, 3, 4],
            vec![
                good[0].url(),
                bad[0].1.clone(),
                good[1].url(),
                bad[1].1.clone(),
                bad[2].1.clone(),
            ],
        ),
    ] {
        let redlock = Redlock::new(nodes)
            .unwrap()
            .with_options(options())
            .unwrap();
        for _ in 0..2 {
            let errors = unavailable(redlock.try_acquire("majority", TTL));
            let named: Vec<usize> = errors.iter().map(NodeError::node).collect();
            assert_eq!(named, indices, "{errors}");
            for error in errors.iter() {
                assert!(error.to_string().contains(expected), "{error}");
            }
            assert!(!errors.to_string().contains("hunter2"), "{errors}");
        }
        let started = Instant::now();
        if hopeless {
            let errors = unavailable(redlock.acquire_within("majority", TTL, TTL));
            assert!(errors.is_permanent(), "{errors}");
            assert!(started.elapsed() < TTL / 2, "{errors}");
        } else {
            let errors = unavailable(redlock.acquire_within("majority", TTL, 2 * NODE_TIMEOUT));
            assert!(!errors.is_permanent(), "{errors}");
            assert!(started.elapsed() >= NODE_TIMEOUT, "{errors}");
        }
        eventually("nothing is left", || {
            good.iter().all(|server| server.keys().is_empty())
        });
    }
}

fn with_args(args: &'static [&str]) -> impl Fn() -> (Server, String) {
    move || {
        let server = Server::with_args(args);
        let url = server.url();
        (server, url)
    }
}

/// A server that is spoilt once it runs.
fn after(args: &'static [&'static [&'static str]]) -> impl Fn() -> (Server, String) {
    move || {
        let server = Server::start();
        for command in args {
            server.command(command);
        }
        let url = server.url();
        (server, url)
    }
}

/// Something else than Redis listens there: it answers whatever it is sent with `answer`.
fn impostor(answer: &'static [u8]) -> impl Fn() -> (Server, String) {
    move || {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                std::thread::spawn(move || {
                    let mut stream = stream;
                    if let Ok(1..) = stream.read(&mut [0; 4096]) {
                        let _ = stream.write_all(answer);
                    }
                    // Closed here: in mid-reply if the answer is half of one.
                });
            }
        });
        (Server::start(), url)
    }
}

#[test]
fn a_node_that_refuses_connections_is_named() {
    bad_nodes(
        || {
            let mut server = Server::start();
            server.kill();
            let url = server.url();
            (server, url)
        },
        "cannot connect",
    );
}

#[test]
fn a_node_that_demands_a_password_is_named() {
    hopeless_nodes(with_args(&["--requirepass", "hunter2"]), "NOAUTH");
}

#[test]
fn a_wrong_password_is_named_without_the_password() {
    hopeless_nodes(
        || {
            let server = Server::with_args(&["--requirepass", "secret"]);
            let url = server.url().replace("://", "://:hunter2@");
            (server, url)
        },
        "WRONGPASS",
    );
}

#[test]
fn a_database_that_does_not_exist_is_named() {
    hopeless_nodes(
        || {
            let server = Server::start();
            let url = in_database(&server.url(), 99);
            (server, url)
        },
        "out of range",
    );
}

#[test]
fn a_read_only_replica_is_named() {
    let replica = "is a replica; its name is looked up again";
    bad_nodes(after(&[&["REPLICAOF", "127.0.0.1", "1"]]), replica);
}

#[test]
fn a_node_that_is_loading_is_named() {
    bad_nodes(
        impostor(b"+OK\r\n+OK\r\n$0\r\n\r\n-LOADING Redis is loading the dataset in memory\r\n"),
        "", // its connection closes, and with it whatever it said before
    );
    // The real thing: a server that reads a large file of data while we ask.
    let mut server = Server::with_args(&[
        "--enable-debug-command",
        "local",
        // Microseconds: ten seconds at least for all, and an answer after each dozen or so.
        "--key-load-delay",
        "500",
        "--loading-process-events-interval-bytes",
        "1024",
    ]);
    server.command(&["DEBUG", "POPULATE", "20000", "key", "64"]);
    server.command(&["SAVE"]);
    server.restart();
    let redlock = Redlock::new([server.url()])
        .unwrap()
        .with_options(options())
        .unwrap();
    let errors = unavailable(redlock.try_acquire("a", TTL));
    assert!(errors.to_string().contains("LOADING"), "{errors}");
    // And when it has loaded, it votes.
    server.command(&["CONFIG", "SET", "key-load-delay", "0"]);
    redlock.acquire("a", TTL).unwrap().release().unwrap();
}

/// The error names what the server said; with the next operations the release is sent again, and the key
/// is gone long before its ttl ends it.
#[test]
fn a_release_that_a_server_cannot_carry_out_now_is_carried_out_later() {
    let server = Server::with_args(&["--lua-time-limit", "1"]);
    let redlock = redlock(std::slice::from_ref(&server));
    take(&redlock, "warm").release().unwrap();
    let refused = |code: &str, errors: redlock_sync::NodeErrors| {
        assert!(errors.to_string().contains(code), "{errors}");
    };
    let released = |resource: &str| {
        eventually("it is released", || {
            drop(redlock.try_acquire("another", TTL));
            !server.exists(resource)
        });
    };

    let many: Vec<_> = (0..300).map(|i| take(&redlock, &format!("{i}"))).collect();
    server.command(&["SET", "taken", "by another program"]);
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    drop(many);
    refused(
        "NOREPLICAS",
        unavailable(redlock.try_acquire("another", TTL)),
    );
    assert_eq!(server.keys().len(), 301);
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    // One of them goes with the next operation, and when the server takes that, all the others.
    assert!(redlock.try_acquire("taken", TTL).unwrap().is_none());
    assert!(redlock.try_acquire("taken", TTL).unwrap().is_none());
    eventually("all are released", || server.keys() == ["taken"]);

    let lock = take(&redlock, "busy");
    let script = Script::on(&server);
    refused("BUSY", unavailable(lock.release()));
    refused("BUSY", unavailable(redlock.try_acquire("another", TTL)));
    script.kill();
    released("busy");
}

/// A script that runs until it is killed: the server answers others with BUSY.
struct Script {
    admin: redis::Client,
    _caller: std::os::unix::net::UnixStream,
}

impl Script {
    fn on(server: &Server) -> Script {
        let mut caller = std::os::unix::net::UnixStream::connect(server.socket()).unwrap();
        caller
            .write_all(b"EVAL \"while true do end\" 0\r\n")
            .unwrap();
        let admin = redis::Client::open(server.unix_url()).unwrap();
        eventually("it runs", || {
            let connection = admin.get_connection();
            let answer = connection.and_then(|mut one| redis::cmd("GET").arg("a").exec(&mut one));
            answer.is_err_and(|error| error.to_string().contains("BUSY"))
        });
        Script {
            admin,
            _caller: caller,
        }
    }

    fn kill(self) {
        let mut connection = self.admin.get_connection().unwrap();
        redis::cmd("SCRIPT")
            .arg("KILL")
            .exec(&mut connection)
            .unwrap();
    }
}

/// Which server it is could not be asked: it does not count as connected, or it would vote twice.
#[test]
fn a_server_that_is_busy_when_it_is_connected_votes_once() {
    let server = Server::with_args(&["--lua-time-limit", "1"]);
    let script = Script::on(&server);
    let redlock = Redlock::new([server.url(), server.unix_url()]).unwrap();
    let redlock = redlock.with_options(options()).unwrap();
    let errors = unavailable(redlock.try_acquire("a", TTL)).to_string();
    assert!(errors.contains("BUSY"), "{errors}");
    script.kill();
    eventually("it is found out", || {
        matches!(redlock.try_acquire("a", TTL), Err(Error::Config(_)))
    });
}

/// Refused releases outlive the connection, and are not put off by others that are refused meanwhile.
#[test]
fn no_call_waits_for_refused_releases() {
    let server = Server::with_args(&[
        "--cluster-enabled",
        "yes",
        "--cluster-require-full-coverage",
        "no",
    ]);
    server.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    let relay = relay::Relay::to(server.port());
    let redlock = Redlock::new([relay.url()]).unwrap();
    let redlock = redlock.with_options(options()).unwrap();
    let slots = |what: &str, resource: &str| {
        let slot = server.command(&["CLUSTER", "KEYSLOT", resource]);
        let slot: u16 = redis::from_redis_value(slot).unwrap();
        server.command(&["CLUSTER", what, &slot.to_string()]);
    };
    for cut in [false, true] {
        let lock = redlock.acquire("good", TTL).unwrap();
        slots("DELSLOTS", "good");
        slots("DELSLOTS", "bad");
        unavailable(lock.release());
        if cut {
            relay.cut();
        }
        slots("ADDSLOTS", "good");
        eventually("it is released", || {
            unavailable(redlock.try_acquire("bad", TTL));
            !server.exists("good")
        });
        slots("ADDSLOTS", "bad");
    }
}

/// However much it has refused, one release is tried again with each operation.
#[test]
fn a_server_that_refuses_is_not_pestered() {
    let server = Server::start();
    let redlock = redlock(std::slice::from_ref(&server));
    let many: Vec<_> = (0..300).map(|i| take(&redlock, &format!("{i}"))).collect();
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    drop(many);
    unavailable(redlock.try_acquire("another", TTL));
    server.command(&["CONFIG", "RESETSTAT"]);
    let rounds = 500;
    for _ in 0..rounds {
        unavailable(redlock.try_acquire("another", TTL));
    }
    let said = server.info("commandstats", "cmdstat_evalsha");
    let said = said.trim_start_matches("calls=").split(',').next();
    let said: u32 = said.unwrap().parse().unwrap();
    // Its own undo, and one more. The server may not have come to the last ones yet, or may have come late
    // to the first.
    assert!(said >= 2 * rounds - 2, "{said} releases");
    assert!(said <= 2 * rounds + 2, "{said} releases");
}

#[test]
fn a_node_that_is_out_of_memory_is_named() {
    bad_nodes(
        after(&[
            &["CONFIG", "SET", "maxmemory-policy", "noeviction"],
            &["CONFIG", "SET", "maxmemory", "1"],
        ]),
        "OOM",
    );
}

#[test]
fn a_node_that_forbids_what_we_need_is_named() {
    let set = ["ACL", "SETUSER", "default", "-set"];
    let set: &'static [&'static str] = Box::leak(Box::new(set));
    hopeless_nodes(after(Box::leak(Box::new([set]))), "NOPERM");
}

#[test]
fn garbage_http_and_half_a_reply_are_named() {
    hopeless_nodes(impostor(b"\x00\x01\x02garbage"), "not a Redis answer");
    hopeless_nodes(
        impostor(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        "HTTP/1.1 400",
    );
    bad_nodes(
        impostor(b"+OK\r\n+OK\r\n$700\r\n# Ser"),
        "connection closed",
    );
    bad_nodes(impostor(b"+O"), "connection closed");
    bad_nodes(impostor(b""), "connection closed");
}

#[test]
fn a_node_that_takes_no_more_clients_is_named() {
    bad_nodes(
        || {
            let server = Server::with_args(&["--maxclients", "1"]);
            // The connection that the start was waited for on may still count.
            let mut hog = None;
            eventually("the only place is taken", || {
                let stream = std::os::unix::net::UnixStream::connect(server.socket()).unwrap();
                let sent = (&stream).write_all(b"PING\r\n").is_ok();
                let mut reply = [0; 7];
                let taken = sent && (&stream).read_exact(&mut reply).is_ok();
                let taken = taken && &reply == b"+PONG\r\n";
                hog = Some(stream);
                taken
            });
            std::mem::forget(hog);
            let url = server.url();
            (server, url)
        },
        // Over TLS it hangs up without a word.
        match over_tls() {
            true => "in the handshake",
            false => "max number of clients",
        },
    );
}

/// It hangs up while this side still writes.
#[test]
fn a_server_that_hangs_up_with_a_word_is_quoted() {
    let address = refuses_all("ERR max number of clients + cluster connections reached");
    // More than the kernel takes at once.
    let url = format!("redis://:{}@{address}", "x".repeat(8 << 20));
    let redlock = Redlock::new([url]).unwrap();
    let redlock = redlock.with_options(options()).unwrap();
    let errors = unavailable(redlock.try_acquire("a", TTL)).to_string();
    assert!(errors.contains("raise maxclients"), "{errors}");
    // Of words that are not known here, too.
    let quota = refuses_all("ERR the quota is used up");
    let redlock = Redlock::new(format!("redis://{quota}")).unwrap();
    let redlock = redlock.with_options(options()).unwrap();
    let report = redlock.check("probe").unwrap().to_string();
    assert!(report.contains("ERR the quota is used up"), "{report}");
}

/// The address of a server that refuses each connection in these words, and closes it.
fn refuses_all(words: &str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, words) = (listener.local_addr().unwrap(), format!("-{words}\r\n"));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            stream.read_exact(&mut [0]).unwrap();
            stream.write_all(words.as_bytes()).unwrap();
        }
    });
    address
}

#[test]
fn a_node_of_a_cluster_that_has_no_slots_is_named() {
    bad_nodes(with_args(&["--cluster-enabled", "yes"]), "CLUSTERDOWN");
}

#[test]
fn a_key_of_another_type_denies_and_cannot_be_extended_or_released() {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    for server in &servers {
        server.command(&["LPUSH", "list", "x"]);
    }
    assert!(redlock.try_acquire("list", TTL).unwrap().is_none());
    let mut lock = take(&redlock, "a");
    eventually("it is everywhere", || {
        servers.iter().all(|server| server.exists("a"))
    });
    for server in &servers[..2] {
        server.command(&["DEL", "a"]);
        server.command(&["LPUSH", "a", "x"]);
    }
    let errors = unavailable(lock.extend(TTL));
    assert_eq!(
        errors.to_string().matches("WRONGTYPE").count(),
        2,
        "{errors}"
    );
    assert!(lock.is_valid(), "a failed extension changes nothing");
    let errors = unavailable(lock.release());
    assert_eq!(
        errors.to_string().matches("WRONGTYPE").count(),
        2,
        "{errors}"
    );
    assert!(servers[..2].iter().all(|server| server.exists("a")));
}

#[test]
fn a_user_that_may_no_longer_eval_can_neither_extend_nor_release_and_gets_an_error() {
    let servers = Server::several(1);
    let allow = |rules: &[&str]| {
        let user = ["ACL", "SETUSER", "u", "on", ">hunter2", "~*"];
        servers[0].command(&[&user, rules].concat());
    };
    allow(&["+@all"]);
    let url = servers[0].url().replace("://", "://u:hunter2@");
    let redlock = Redlock::new([url])
        .unwrap()
        .with_options(options())
        .unwrap();
    let mut lock = redlock.try_acquire("a", ms(3000)).unwrap().unwrap();
    allow(&["-eval", "-evalsha"]);
    let errors = unavailable(lock.extend(TTL)).to_string();
    assert!(
        errors.contains("NOPERM") && !errors.contains("hunter2"),
        "{errors}"
    );
    let errors = unavailable(lock.release()).to_string();
    assert!(errors.contains("NOPERM"), "{errors}");
    eventually("the ttl ends it", || servers[0].keys().is_empty());
    // On a new connection that is known before anything is written.
    servers[0].command(&["CLIENT", "KILL", "USER", "u"]);
    eventually("it is refused", || {
        let errors = unavailable(redlock.try_acquire("a", ms(3000)));
        errors.to_string().contains("neither EVAL nor DELIFEQ")
    });
    assert!(servers[0].keys().is_empty());
}

/// Scripts are called by their hashes where they were loaded, and by their texts elsewhere.
#[test]
fn a_user_that_may_not_evalsha_and_scripts_that_are_flushed_cost_nothing() {
    for rules in [
        &["+@all", "-evalsha"][..],
        &["+@all", "-script"],
        &["+@all"],
    ] {
        let servers = Server::several(3);
        for server in &servers {
            let user = ["ACL", "SETUSER", "u", "on", ">hunter2", "~*"];
            server.command(&[&user, rules].concat());
        }
        let urls = urls(&servers);
        let urls = urls.iter().map(|url| url.replace("://", "://u:hunter2@"));
        let redlock = Redlock::new(urls).unwrap().with_options(options()).unwrap();
        let flush = || {
            for server in &servers {
                server.command(&["SCRIPT", "FLUSH"]);
            }
        };
        for _ in 0..3 {
            let mut lock = take(&redlock, "a");
            flush();
            lock.extend(2 * TTL).unwrap();
            flush();
            lock.release().unwrap();
            let lock = take(&redlock, "b");
            flush();
            drop(lock);
        }
        take(&redlock, "c").release().unwrap();
        eventually("nothing is left", || {
            servers.iter().all(|server| server.keys().is_empty())
        });
    }
}

#[test]
fn a_user_that_may_not_info_loses_nothing() {
    let servers = Server::several(3);
    for server in &servers {
        let rules = [
            "ACL", "SETUSER", "u", "on", ">hunter2", "~*", "+set", "+eval", "+get", "+del",
            "+pttl", "+pexpire",
        ];
        server.command(&rules);
    }
    let urls = urls(&servers)
        .into_iter()
        .map(|url| url.replace("://", "://u:hunter2@"));
    let redlock = Redlock::new(urls).unwrap().with_options(options()).unwrap();
    let mut lock = take(&redlock, "a");
    lock.extend(2 * TTL).unwrap();
    assert!(redlock.try_acquire("a", TTL).unwrap().is_none());
    lock.release().unwrap();
}

#[test]
fn user_password_database_and_unix_sockets_work() {
    let server = Server::with_args(&["--requirepass", "p@ss:wörd/"]);
    let password = "p%40ss%3Aw%C3%B6rd%2F";
    let tcp = server.url_for("default", password);
    let tcp = in_database(&tcp, 3);
    let unix = format!("{}?db=3&user=default&pass={password}", server.unix_url());
    for url in [tcp, unix] {
        let redlock = Redlock::new([url])
            .unwrap()
            .with_options(unhurried())
            .unwrap();
        let lock = take(&redlock, "a");
        // In database 3 and in no other: a second one in the same place is denied.
        assert!(redlock.try_acquire("a", TTL).unwrap().is_none());
        lock.release().unwrap();
    }
}

#[test]
fn one_server_under_two_addresses_is_refused() {
    let servers = Server::several(2);
    let twice = [servers[0].url(), servers[0].unix_url()];
    let redlock = Redlock::new(twice)
        .unwrap()
        .with_options(options())
        .unwrap();
    for _ in 0..3 {
        let text = config(redlock.try_acquire("a", TTL));
        assert!(
            text.contains("nodes 0 and 1") && text.contains("run_id"),
            "{text}"
        );
    }
    config(redlock.acquire("a", TTL));

    // Also where a majority could do without it: as soon as it is found.
    let nodes = [servers[0].url(), servers[1].url(), servers[0].unix_url()];
    let redlock = Redlock::new(nodes)
        .unwrap()
        .with_options(options())
        .unwrap();
    eventually("it is found", || {
        matches!(redlock.try_acquire("b", TTL), Err(Error::Config(_)))
    });
    eventually("nothing is left", || {
        servers.iter().all(|server| server.keys().is_empty())
    });
}

/// It may be found only when a lock is held; then the release has too few nodes, and the work is done.
#[test]
fn one_server_under_two_addresses_spoils_no_work() {
    let servers = Server::several(2);
    let again = relay::Relay::to(servers[0].port());
    again.set(|policy| policy.down.delay = 3 * NODE_TIMEOUT);
    let nodes = [servers[0].url(), servers[1].url(), again.url()];
    let redlock = Redlock::new(nodes).unwrap();
    let redlock = redlock.with_options(options()).unwrap();
    let work = redlock.with_lock("a", TTL, |_| {
        eventually("it is found", || {
            matches!(redlock.try_acquire("b", TTL), Err(Error::Config(_)))
        });
        servers[1].stop();
        Ok::<_, Error>("done")
    });
    assert_eq!(work.unwrap(), "done");
    servers[1].resume();
}
