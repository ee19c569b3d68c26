//! Connections: few, kept, renewed when the server closes them, closed when they are no longer needed.

use crate::support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use redlock_sync::{Error, Lock, Redlock};
use support::*;

#[test]
fn ten_thousand_held_or_leaked_locks_need_no_further_connection() {
    let servers = Server::several(3);
    let redlock = unhurried_connected(&servers);
    let connections = |servers: &[Server]| servers.iter().map(Server::clients).collect::<Vec<_>>();
    assert_eq!(connections(&servers), [1, 1, 1]);
    let mut held = Vec::new();
    for i in 0..10_000 {
        let lock = take(&redlock, &format!("held-{i}"));
        if i % 2 == 0 {
            held.push(lock)
        } else {
            lock.leak()
        }
    }
    assert_eq!(connections(&servers), [1, 1, 1]);
    drop(held);
    eventually("the held ones are free", || {
        servers
            .iter()
            .all(|server| server.command(&["DBSIZE"]) == redis::Value::Int(5000))
    });
}

#[test]
fn sockets_close_with_the_last_redlock_and_lock_after_reading_what_they_owe() {
    for round in 0..20 {
        let servers = Server::several(3);
        let all = |count: usize| servers.iter().all(|server| server.clients() == count);
        let redlock = unhurried_connected(&servers);
        let clone = redlock.clone();
        let lock = take(&redlock, "a");
        drop(redlock);
        drop(clone);
        // (Behind a pause of the machine they are new ones.)
        eventually("the lock keeps what it needs", || all(1));
        if round % 2 == 0 {
            drop(lock);
        } else {
            lock.release().unwrap();
        }
        eventually("all closed", || all(0));
        // Nothing was lost by closing at once: the releases were read before.
        assert!(
            servers.iter().all(|server| server.keys().is_empty()),
            "round {round}"
        );
    }
}

#[test]
fn connections_that_servers_closed_while_idle_cost_no_operation() {
    let idle_nodes = |nodes| {
        let servers: Vec<Server> = (0..nodes)
            .map(|_| Server::with_args(&["--timeout", "1"]))
            .collect();
        let redlock = connected(&servers);
        let idle = || {
            eventually("the servers closed the connections", || {
                servers.iter().all(|server| server.clients() == 0)
            });
        };
        let mut lock = take(&redlock, "held");
        idle();
        drop(redlock.try_acquire("a", TTL).unwrap().unwrap());
        idle();
        lock.extend(2 * TTL).unwrap();
        idle();
        lock.release().unwrap();
        idle();
        let work = |_: &mut Lock| Ok::<_, Error>(1);
        assert_eq!(redlock.with_lock("a", TTL, work).unwrap(), 1);
        eventually("nothing is left", || {
            servers.iter().all(|server| server.keys().is_empty())
        });
    };
    std::thread::scope(|scope| {
        for nodes in [1, 3, 5] {
            scope.spawn(move || idle_nodes(nodes));
        }
    });
}

/// The connections are not used after that, so only the drop itself can find out.
#[test]
fn a_lock_that_is_dropped_over_connections_closed_while_idle_is_released() {
    for last in [false, true] {
        let server = || Server::with_args(&["--timeout", "1"]);
        let servers = [server(), server(), server()];
        let redlock = unhurried_connected(&servers);
        let lock = take(&redlock, "held");
        eventually("the servers closed the connections", || {
            servers.iter().all(|server| server.clients() == 0)
        });
        drop(lock);
        let redlock = (!last).then_some(redlock);
        eventually("it is released", || {
            servers.iter().all(|server| server.keys().is_empty())
        });
        drop(redlock);
    }
}

/// To connect takes two round trips here (one finds out that the server has read what the old connection
/// held), and one more over TLS; to answer takes one; together longer than a node timeout.
#[test]
fn a_far_node_that_has_to_be_connected_again_has_time_to_answer() {
    let server = Server::start();
    let far = relay::Relay::to(server.port());
    let seconds = Duration::from_secs;
    let patient = options().node_timeout(seconds(8));
    let patient = patient.connect_timeout(seconds(20));
    let redlock = Redlock::new([far.url()]).unwrap();
    let redlock = redlock.with_options(patient).unwrap();
    let mut lock = take(&redlock, "a");
    far.set(|policy| policy.down.delay = if over_tls() { ms(2400) } else { ms(3200) });
    far.cut();
    lock.extend(2 * TTL).unwrap();
}

#[test]
fn connections_that_were_killed_cost_no_operation() {
    for nodes in [1, 3, 5] {
        let servers = Server::several(nodes);
        let redlock = connected(&servers).with_options(unhurried()).unwrap();
        for _ in 0..20 {
            let mut lock = take(&redlock, "a");
            let kill = || {
                servers.iter().for_each(|server| {
                    server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
                })
            };
            kill();
            lock.extend(2 * TTL).unwrap();
            kill();
            lock.release().unwrap();
            kill();
        }
        // A release that its server had not read is written again with the next operation.
        take(&redlock, "a").release().unwrap();
        eventually("nothing is left", || {
            servers.iter().all(|server| server.keys().is_empty())
        });
    }
}

#[test]
fn a_restarted_server_is_found_by_the_next_call() {
    let mut servers = Server::several(1);
    let redlock = connected(&servers);
    for _ in 0..3 {
        servers[0].kill();
        unavailable(redlock.try_acquire("a", TTL));
        servers[0].restart();
        take(&redlock, "a").release().unwrap();
    }
}

#[test]
fn no_attendant_is_left_when_all_nodes_are_here() {
    in_own_process("no_attendant_is_left_when_all_nodes_are_here", || {
        let servers = Server::several(5);
        let redlock = unhurried_connected(&servers);
        eventually("all attendants have ended", || attendants() == 0);
        take(&redlock, "a").release().unwrap();
    });
}

#[test]
fn a_far_node_listed_first_does_not_decide() {
    let servers = Server::several(5);
    let far = relay::Relay::to(servers[0].port());
    let mut nodes = urls(&servers);
    nodes[0] = far.url();
    let patient = options().node_timeout(Duration::from_secs(2));
    let redlock = Redlock::new(nodes).unwrap().with_options(patient).unwrap();
    far.set(|policy| policy.down.delay = ms(500));
    take(&redlock, "warm").release().unwrap();
    take(&redlock, "warm").release().unwrap();
    let before = std::time::Instant::now();
    for _ in 0..20 {
        take(&redlock, "a").release().unwrap();
    }
    // Once, where it is tried out; waiting for it each time would take 20 s.
    assert!(
        before.elapsed() < Duration::from_secs(5),
        "{:?}",
        before.elapsed()
    );
}

/// Of three nodes one is far and one is slow once. The quorum needs one of the two: the slow one, as
/// soon as it is near again, though it is no longer read from.
#[test]
fn a_near_node_that_was_slow_once_is_not_taken_for_far() {
    let servers = Server::several(3);
    let [far, near] = [0, 1].map(|node| relay::Relay::to(servers[node].port()));
    let nodes = [far.url(), near.url(), servers[2].url()];
    let patient = options().node_timeout(Duration::from_secs(2));
    let redlock = Redlock::new(nodes).unwrap().with_options(patient).unwrap();
    let pair = || {
        let started = std::time::Instant::now();
        take(&redlock, "a").release().unwrap();
        started.elapsed()
    };
    eventually("all are connected", || {
        pair();
        servers.iter().all(|server| server.clients() == 1)
    });
    far.set(|policy| policy.down.delay = ms(500));
    eventually("the far node is not waited for", || pair() < ms(500));
    near.set(|policy| policy.down.delay = ms(1500));
    eventually("the far node is the nearer one", || {
        (ms(500)..ms(1500)).contains(&pair())
    });
    near.heal();
    // Waiting for the far one would take a second each time.
    eventually("the near node is read first", || pair() < ms(500));
}

/// Of three nodes one cannot be connected, and one answers a release with garbage, whose caller then waits
/// for the first: the second is connected again before it has been told what it is owed.
#[test]
fn a_node_that_is_lost_and_back_within_a_step_has_one_connection() {
    let servers = Server::several(3);
    let relays = [0, 1].map(|node| relay::Relay::to(servers[node].port()));
    let [away, lost] = &relays;
    let nodes = [away.url(), lost.url(), servers[2].url()];
    let redlock = Redlock::new(nodes)
        .unwrap()
        .with_options(options())
        .unwrap();
    eventually("all are connected", || {
        take(&redlock, "a").release().unwrap();
        servers.iter().all(|server| server.clients() == 1)
    });
    let lock = take(&redlock, "a");
    away.set(|policy| policy.up.stalled = true);
    away.cut();
    take(&redlock, "b").release().unwrap();
    lost.set(|policy| policy.down.replace = Some(b"garbage\r\n".to_vec()));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(NODE_TIMEOUT / 5);
            lost.heal();
        });
        let errors = unavailable(lock.release()).to_string();
        assert!(errors.contains("not a Redis answer"), "{errors}");
    });
    away.heal();
    eventually("released, over one connection to each", || {
        take(&redlock, "b").release().unwrap();
        servers
            .iter()
            .all(|server| !server.exists("a") && server.clients() == 1)
    });
    std::thread::sleep(ms(100));
    assert_eq!(servers[1].clients(), 1);
}

/// What becomes of a command that takes or releases a lock.
const PASSES: u32 = 0;
const IS_REFUSED: u32 = 1;
const IS_CUT_OFF: u32 = 2;

/// Before a server: all connections can be set up. How many there were.
struct Gate {
    port: u16,
    mode: Arc<AtomicU32>,
    connections: Arc<AtomicU32>,
}

impl Gate {
    fn before(server: &Server) -> Gate {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let gate = Gate {
            port: listener.local_addr().unwrap().port(),
            mode: Arc::default(),
            connections: Arc::default(),
        };
        let (mode, connections) = (gate.mode.clone(), gate.connections.clone());
        // It reads the commands, so it is reached without TLS in any case, and reaches the server so.
        let socket = server.unix_url().replace("unix://", "");
        std::thread::spawn(move || {
            for client in listener.incoming() {
                connections.fetch_add(1, Ordering::Relaxed);
                let (client, mode, socket) = (client.unwrap(), mode.clone(), socket.clone());
                std::thread::spawn(move || Gate::pass(client, &socket, &mode));
            }
        });
        gate
    }

    fn pass(mut client: TcpStream, socket: &str, mode: &AtomicU32) {
        let Ok(mut server) = UnixStream::connect(socket) else {
            return;
        };
        let mut from = server.try_clone().unwrap();
        let mut to = client.try_clone().unwrap();
        std::thread::spawn(move || std::io::copy(&mut from, &mut to));
        let mut buffer = [0; 65_536];
        while let Ok(read @ 1..) = client.read(&mut buffer) {
            let text = String::from_utf8_lossy(&buffer[..read]);
            let sets_up = text.contains("\r\nHELLO\r\n");
            let is_lock = text.contains("\r\nPX\r\n") || text.contains("\r\nEVAL") && !sets_up;
            let passed = match mode.load(Ordering::Relaxed) {
                IS_REFUSED if is_lock => client.write_all(b"-NOAUTH Authentication required.\r\n"),
                IS_CUT_OFF if is_lock => break,
                _ => server.write_all(&buffer[..read]),
            };
            if passed.is_err() {
                break;
            }
        }
        let _ = client.shutdown(Shutdown::Both);
        let _ = server.shutdown(Shutdown::Both);
    }
}

/// As a node that cannot be connected is: its pauses grow.
#[test]
fn a_node_that_can_be_connected_and_not_used_is_left_alone_for_longer_and_longer() {
    for mode in [IS_REFUSED, IS_CUT_OFF] {
        let servers = Server::several(3);
        let gate = Gate::before(&servers[0]);
        let gated = format!("redis://127.0.0.1:{}", gate.port);
        let urls = [gated, servers[1].url(), servers[2].url()];
        let redlock = Redlock::new(urls)
            .unwrap()
            .with_options(unhurried())
            .unwrap();
        let votes = || {
            let lock = take(&redlock, "vote");
            let votes = servers[0].exists("vote");
            lock.release().unwrap();
            votes
        };
        eventually("all are connected", votes);
        gate.mode.store(mode, Ordering::Relaxed);
        let (before, end) = (
            gate.connections.load(Ordering::Relaxed),
            Instant::now() + ms(3000),
        );
        let mut pairs = 0;
        while Instant::now() < end {
            take(&redlock, "a").release().unwrap();
            pairs += 1;
            std::thread::sleep(ms(1));
        }
        let connections = gate.connections.load(Ordering::Relaxed) - before;
        // About eight, and some more if another node is slow meanwhile, so that this one is needed.
        println!("{connections} connections during {pairs} pairs");
        let few = connections >= 4 && connections * 10 < pairs;
        assert!(few, "{connections} of {pairs}");
        gate.mode.store(PASSES, Ordering::Relaxed);
        eventually_within(4 * NODE_TIMEOUT, "it votes again", &mut || votes());
    }
}
