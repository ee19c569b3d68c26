//! Nothing is left behind: slow connections, stopped nodes, and connections that die with an
//! acquire on them which the server has not read.

use crate::support;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redlock_sync::{Error, Options, Redlock};
use support::relay::Relay;
use support::*;

/// Keys that are there when everything under way has arrived.
fn left_behind(servers: &[Server]) -> usize {
    // A delayed acquire may be under way still: look until the picture has stood still for a while.
    let mut seen = usize::MAX;
    let mut since = Instant::now();
    while since.elapsed() < ms(300) {
        let now = servers.iter().map(|server| server.keys().len()).sum();
        if now != seen {
            (seen, since) = (now, Instant::now());
        }
        if since.elapsed() > ms(100) && seen == 0 {
            break;
        }
        std::thread::sleep(ms(5));
    }
    seen
}

/// A client that closes a connection at a timeout and releases over another leaves about every fourth.
#[test]
fn giving_up_on_slow_connections_leaves_no_key() {
    const TRIALS: usize = 200;
    let servers = Server::several(5);
    let relays: Vec<Relay> = servers
        .iter()
        .map(|server| Relay::to(server.port()))
        .collect();
    for relay in &relays {
        relay.set(|policy| policy.random_delays = vec![Duration::ZERO, ms(50)]);
    }
    let options = Options::new()
        .node_timeout(ms(20))
        .connect_timeout(Duration::from_secs(5));
    let mut kept = Vec::new();
    let (mut taken, mut given_up) = (0, 0);
    let mut outcomes = Vec::new();
    // Names what is left, and how its trial ended.
    let nothing_left = |outcomes: &[String]| {
        let end = Instant::now() + 8 * NODE_TIMEOUT;
        while left_behind(&servers) > 0 {
            let keys: Vec<_> = servers.iter().map(Server::keys).collect();
            assert!(Instant::now() < end, "left: {keys:?} of {outcomes:#?}");
            std::thread::sleep(ms(5));
        }
    };
    for trial in 0..TRIALS {
        // New connections with delays of their own.
        let redlock = Redlock::new(relays.iter().map(Relay::url)).unwrap();
        let redlock = redlock.with_options(options.clone()).unwrap();
        match redlock.try_acquire(format!("trial {trial}"), TTL) {
            Ok(Some(lock)) => {
                taken += 1;
                outcomes.push(format!("trial {trial}: taken"));
                drop(lock);
            }
            Ok(None) => panic!("trial {trial}: the lock is free"),
            Err(error @ (Error::Unavailable(_) | Error::TooSlow(_))) => {
                given_up += 1;
                outcomes.push(format!("trial {trial}: {error}"));
            }
            Err(error) => panic!("trial {trial}: {error}"),
        }
        // Half of them are gone at once.
        if trial % 2 == 0 {
            kept.push(redlock);
        }
        if kept.len() == 10 {
            nothing_left(&outcomes);
            outcomes.clear();
            kept.clear();
        }
    }
    nothing_left(&outcomes);
    println!("{TRIALS} trials: {taken} taken, {given_up} given up, 0 keys left");
    assert!(
        taken > 0 && given_up > 0,
        "{taken} taken, {given_up} given up"
    );
}

/// Nodes that stand still for 1.5 s in the midst of traffic, twenty times.
#[test]
fn stopped_and_resumed_nodes_keep_no_key() {
    const WORLDS: usize = 5;
    const STOPS: usize = 4;
    let world = || {
        let servers = Server::several(3);
        let redlock = redlock(&servers);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for user in 0..4 {
                let (redlock, over) = (&redlock, &over);
                scope.spawn(move || {
                    let mut round = 0;
                    while !over.load(Ordering::Relaxed) {
                        round += 1;
                        // Some alone, some against each other.
                        let resource = match round % 4 {
                            0 => "shared".to_owned(),
                            _ => format!("user {user} round {round}"),
                        };
                        match redlock.try_acquire(resource, TTL) {
                            Ok(Some(lock)) if round % 2 == 0 => drop(lock),
                            Ok(Some(lock)) => drop(lock.release()),
                            Ok(None) => {}
                            // Another was too slow, too.
                            Err(Error::Unavailable(_)) => {}
                            Err(error) => panic!("{error}"),
                        }
                        std::thread::sleep(ms(1));
                    }
                });
            }
            let _over = OnDrop(&over);
            for stop in 0..STOPS {
                servers[stop % 3].stop();
                std::thread::sleep(2 * NODE_TIMEOUT);
                servers[stop % 3].resume();
                eventually_within(4 * NODE_TIMEOUT, "it votes again", &mut || {
                    let lock = redlock.acquire("probe", TTL).unwrap();
                    let voted = servers[stop % 3].exists("probe");
                    drop(lock);
                    voted
                });
            }
        });
        eventually("no key is left", || left_behind(&servers) == 0);
    };
    std::thread::scope(|scope| {
        for _ in 0..WORLDS {
            scope.spawn(world);
        }
    });
}

/// The node that the release was to be written to turns out to be silent before that: it is owed.
#[test]
fn a_release_that_finds_its_node_silent_is_owed_to_it() {
    for way in ["release", "drop"] {
        let servers = Server::several(1);
        let redlock = redlock(&servers);
        let (first, second) = (take(&redlock, "first"), take(&redlock, "second"));
        servers[0].stop();
        drop(first);
        std::thread::sleep(2 * NODE_TIMEOUT);
        match way {
            "release" => drop(unavailable(second.release())),
            _ => drop(second),
        }
        servers[0].resume();
        eventually(way, || servers[0].keys().is_empty());
    }
}

/// To make sure that it has read all that the old connection left takes a far node more than one try's
/// time.
#[test]
fn a_far_node_that_was_cut_off_with_much_unread_comes_back() {
    let servers = Server::several(3);
    let relay = Relay::to(servers[0].port());
    let urls = [relay.url(), servers[1].url(), servers[2].url()];
    let options = options()
        .node_timeout(Duration::from_secs(5))
        .connect_timeout(ms(600));
    let redlock = Redlock::new(urls).unwrap().with_options(options).unwrap();
    let votes = || {
        let lock = take(&redlock, "vote");
        std::thread::sleep(ms(200));
        let votes = servers[0].exists("vote");
        drop(lock);
        votes
    };
    eventually("all are connected", votes);
    let held: Vec<_> = (0..3000).map(|i| take(&redlock, &format!("{i}"))).collect();
    relay.set(|policy| policy.down.stalled = true);
    drop(held);
    relay.set(|policy| (policy.down.stalled, policy.down.delay) = (false, ms(50)));
    relay.cut();
    // Some twenty round trips of 50 ms, and a busy machine's.
    let long = Duration::from_secs(60);
    eventually_within(long, "it votes again", &mut || votes());
    for server in &servers {
        eventually("nothing is left", || server.keys().is_empty());
    }
}

/// The life of a key begins when its acquire is read: however long that takes, its release is due.
#[test]
fn an_acquire_that_is_read_after_its_ttl_is_undone() {
    let servers = Server::several(3);
    let relay = Relay::to(servers[0].port());
    let urls = [relay.url(), servers[1].url(), servers[2].url()];
    let redlock = Redlock::new(urls).unwrap().with_options(options()).unwrap();
    let votes = || {
        let lock = take(&redlock, "vote");
        let votes = servers[0].exists("vote");
        drop(lock);
        votes
    };
    eventually("all are connected", votes);
    let (ttl, passed) = (ms(3000), relay.passed());
    servers[0].stop();
    let lock = redlock.try_acquire("late", ttl).unwrap().unwrap();
    eventually("it is passed on", || relay.passed() > passed);
    relay.abandon();
    lock.release().unwrap();
    std::thread::sleep(ttl);
    take(&redlock, "another").release().unwrap();
    servers[0].resume();
    eventually("it votes again", votes);
    assert!(!servers[0].exists("late"));
}

/// Rule R8: the connection dies while a stopped server has not read the acquire on it. The release
/// goes over the new connection, and must not be carried out before that acquire.
#[test]
fn an_acquire_on_a_dead_connection_is_undone_over_the_new_one() {
    const TRIALS: usize = 100;
    let servers = Server::several(3);
    let relay = Relay::to(servers[0].port());
    let urls = [relay.url(), servers[1].url(), servers[2].url()];
    let redlock = Redlock::new(urls).unwrap().with_options(options()).unwrap();
    redlock.acquire("warm", TTL).unwrap().release().unwrap();
    eventually("all are connected", || {
        relay.connections() == 1 && servers.iter().all(|server| server.clients() == 1)
    });
    let mut unread = 0;
    for trial in 0..TRIALS {
        let mut passed = 0;
        eventually("all that was written is passed on", || {
            let before = std::mem::replace(&mut passed, relay.passed());
            std::thread::sleep(ms(10));
            relay.passed() == before
        });
        servers[0].stop();
        // A server reads 16 KB of a connection at a time: sometimes the acquire is far behind.
        let ahead: u64 = [0, 0, 20, 200][trial % 4];
        for i in 0..ahead {
            let name = format!("{i} of {trial} {}", "ahead".repeat(200));
            take(&redlock, &name).leak();
            passed += name.len() as u64;
        }
        let resource = format!("trial {trial}");
        let lock = take(&redlock, &resource);
        // All of the acquire, which is longer than that; or the node was given up before.
        passed += (ahead + 1) * 60;
        let end = Instant::now() + 2 * NODE_TIMEOUT;
        while relay.passed() < passed && Instant::now() < end {
            std::thread::sleep(ms(1));
        }
        unread += usize::from(relay.passed() >= passed);
        // The client is cut off from it, the server is not.
        relay.abandon();
        match trial % 2 {
            0 => lock.release().unwrap(),
            _ => drop(lock),
        }
        servers[0].resume();
        // Taken with the new connection, so it is behind all that is due.
        eventually("the node votes again", || {
            let lock = redlock.acquire("again", TTL).unwrap();
            let voted = servers[0].exists("again");
            drop(lock);
            voted
        });
        for server in &servers {
            eventually(&format!("{resource}, {ahead} ahead of it, is gone"), || {
                !server.exists(&resource)
            });
        }
    }
    std::thread::sleep(ms(100));
    let left = servers[0].keys();
    assert!(!left.iter().any(|key| key.starts_with("trial")), "{left:?}");
    println!("{unread} of {TRIALS} acquires were unread when their connection died; 0 keys left");
    assert!(unread > TRIALS / 2, "{unread}");
}

/// Another process of this test, which has said that it is ready and waits for a line.
fn ready(name: &str, role: &str, servers: &[Server]) -> Child {
    let mut child = another_process(name, role)
        .env("NODES", urls(servers).join(","))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().contains("ready")));
    child
}

/// Says that it is ready, and waits for a line.
fn wait_for_go() {
    println!("ready");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
}

/// The program that gives up: one attempt on nodes that stand still, and it ends in its own way.
fn giving_up(way: &str) {
    let nodes = std::env::var("NODES").unwrap();
    let redlock = Redlock::new(nodes.split(',')).unwrap();
    // With the timeouts that are usual, a busy machine may be too slow at first.
    eventually("the nodes answer in time", || {
        let lock = redlock.acquire("warm", TTL);
        lock.is_ok_and(|lock| lock.release().is_ok())
    });
    wait_for_go();
    unavailable(redlock.try_acquire("given up", TTL));
    if way == "exit" {
        std::process::exit(0);
    }
}

/// The undo is written before the attempt returns, behind the acquire, also to nodes that do not answer.
#[test]
fn an_attempt_that_fails_leaves_no_key_though_the_program_ends() {
    if let Some(way) = role() {
        return giving_up(&way);
    }
    // Over TLS the server reads one record in a turn, and after the first one finds that the program has gone, if that
    // left answers unread, as it may with several nodes.
    let sizes: &[usize] = if over_tls() { &[1] } else { &[1, 3] };
    for &nodes in sizes {
        let servers = Server::several(nodes);
        for round in 0..25 {
            let way = ["exit", "return"][round % 2];
            let name = "an_attempt_that_fails_leaves_no_key_though_the_program_ends";
            let mut child = ready(name, way, &servers);
            let stopped = &servers[..nodes / 2 + 1];
            stopped.iter().for_each(Server::stop);
            writeln!(child.stdin.take().unwrap(), "go").unwrap();
            assert!(child.wait().unwrap().success());
            stopped.iter().for_each(Server::resume);
            for server in &servers {
                // All that is under way has been read when it answers a later client.
                eventually("its clients are gone", || server.clients() == 0);
                assert_eq!(
                    server.keys(),
                    [""; 0],
                    "{nodes} nodes, round {round}, {way}"
                );
            }
        }
    }
}

/// The program that drops a lock while its silent node is being connected anew, and ends.
fn dropping_late() {
    let nodes = std::env::var("NODES").unwrap();
    let redlock = Redlock::new(nodes.split(',')).unwrap();
    // A thread that ends waits for what another one writes for it, for a node timeout.
    let patient = Options::new().node_timeout(Duration::from_secs(1));
    let patient = patient.connect_timeout(Duration::from_secs(8));
    let redlock = redlock.with_options(patient).unwrap();
    let lock = redlock.acquire("held", Duration::from_secs(3600)).unwrap();
    wait_for_go();
    drop(redlock.try_acquire("meets the silence", TTL));
    // A connection can be made; nothing is answered over it for the connect timeout.
    std::thread::sleep(Duration::from_secs(3));
    drop(lock);
    drop(redlock);
    std::process::exit(0);
}

#[test]
fn a_lock_dropped_while_its_silent_node_is_connected_anew_leaves_no_key() {
    const NAME: &str = "a_lock_dropped_while_its_silent_node_is_connected_anew_leaves_no_key";
    if role().is_some() {
        return dropping_late();
    }
    // Over TLS, as above, an answer that the program has not read from one of several nodes may end what is read from it.
    let sizes: &[usize] = if over_tls() { &[1, 1] } else { &[1, 1, 3, 3] };
    std::thread::scope(|scope| {
        for &nodes in sizes {
            scope.spawn(move || {
                let servers = Server::several(nodes);
                for round in 0..3 {
                    let mut child = ready(NAME, "drops", &servers);
                    servers[0].stop();
                    writeln!(child.stdin.take().unwrap(), "go").unwrap();
                    assert!(child.wait().unwrap().success());
                    servers[0].resume();
                    eventually("its clients are gone", || servers[0].clients() == 0);
                    let left = servers[0].keys();
                    // Over TLS the server reads one record in a turn. To the first one it answers, and to the
                    // second one it cannot: so it does not read the third, which is this lock's release.
                    let left: Vec<_> = left
                        .iter()
                        .filter(|key| !over_tls() || *key != "held")
                        .collect();
                    assert!(left.is_empty(), "{nodes} nodes, round {round}: {left:?}");
                    for server in &servers {
                        server.command(&["FLUSHALL"]);
                    }
                }
            });
        }
    });
}

/// The maximum number of releases kept for nodes that do not answer.
#[test]
fn ten_thousand_locks_given_up_while_a_majority_is_stopped_are_all_released() {
    let name = "ten_thousand_locks_given_up_while_a_majority_is_stopped_are_all_released";
    in_own_process(name, || {
        let servers = Server::several(3);
        let redlock = unhurried_connected(&servers);
        let held: Vec<_> = (0..10_000)
            .map(|i| take(&redlock, &format!("{i}")))
            .collect();
        servers[..2].iter().for_each(Server::stop);
        eventually("the nodes are away", || {
            redlock.try_acquire("probe", TTL).is_err() && attendants() >= 2
        });
        drop(held);
        servers[..2].iter().for_each(Server::resume);
        for (node, server) in servers.iter().enumerate() {
            eventually(&format!("nothing is left on node {node}"), || {
                server.keys().is_empty()
            });
        }
    });
}

/// The connections are not used after the drop, so only the drop itself can find out.
#[test]
fn a_lock_dropped_over_connections_closed_shortly_before_is_released() {
    let servers = Server::several(3);
    for round in 0..20 {
        let redlock = connected(&servers);
        let lock = take(&redlock, "held");
        eventually("it is everywhere", || {
            servers.iter().all(|server| server.exists("held"))
        });
        for server in &servers {
            server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        }
        std::thread::sleep(ms([20, 50, 300][round % 3]));
        drop(lock);
        // What is due has a node timeout once the connections are no longer needed.
        let redlock = (round % 2 == 0).then_some(redlock);
        eventually("it is released", || {
            servers.iter().all(|server| server.keys().is_empty())
        });
        drop(redlock);
    }
}

/// A process that resumes a lock cannot tell on which nodes the other one had it.
#[test]
fn the_release_of_a_resumed_lock_is_owed_to_a_node_that_is_away() {
    let servers = Server::several(3);
    let relay = Relay::to(servers[2].port());
    let lock = connected(&servers).acquire("a", Duration::from_secs(3600));
    let lock = lock.unwrap();
    eventually("all have it", || {
        servers.iter().all(|server| server.exists("a"))
    });
    let (token, left) = (*lock.token(), lock.remaining());
    lock.leak();
    relay.refuse();
    let taker = Redlock::new([servers[0].url(), servers[1].url(), relay.url()]).unwrap();
    let taker = taker.with_options(options()).unwrap();
    taker.resume("a", token, left).unwrap().release().unwrap();
    assert!(servers[2].exists("a"));
    relay.accept();
    eventually("the last node has released it", || !servers[2].exists("a"));
}

/// Its client ends before it has connected: closing waits for the nodes, which have the key of another process.
#[test]
fn a_resumed_lock_that_is_dropped_with_its_client_is_released() {
    let servers = Server::several(3);
    for _ in 0..5 {
        let lock = connected(&servers).acquire("a", Duration::from_secs(3600));
        let lock = lock.unwrap();
        let (token, left) = (*lock.token(), lock.remaining());
        lock.leak();
        let taker = Redlock::new(servers.iter().map(Server::url)).unwrap();
        let taker = taker
            .with_options(options().node_timeout(ms(2000)))
            .unwrap();
        drop(taker.resume("a", token, left).unwrap());
        drop(taker);
        eventually("it is released", || {
            servers.iter().all(|server| !server.exists("a"))
        });
    }
}

/// Its validity was passed on with a margin, and its release is refused for longer than that.
#[test]
fn the_release_of_a_resumed_lock_is_sent_again_for_as_long_as_its_key_may_last() {
    let server = Server::start();
    let servers = std::slice::from_ref(&server);
    let lock = connected(servers).acquire("a", Duration::from_secs(3600));
    let lock = lock.unwrap();
    let token = *lock.token();
    lock.leak();
    let taker = connected(servers);
    let lock = taker.resume("a", token, ms(500)).unwrap();
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    unavailable(lock.release());
    std::thread::sleep(ms(1500));
    server.command(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    eventually("it is released", || !server.exists("a"));
}
