//! A lock that was dropped is gone, though its program does nothing more: what a drop has written is confirmed.

use crate::support;

use std::collections::BTreeSet;
use std::thread::Scope;
use std::time::{Duration, Instant};

use redlock_sync::{Lock, Redlock};
use support::relay::Relay;
use support::*;

/// An hour: nothing here ends by itself.
const HOUR: Duration = Duration::from_secs(3600);

/// How the servers keep a release from being carried out, though it can be written.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Killed,
    Flushed,
    Both,
}

fn strike(server: &Server, fault: Fault) {
    if let Fault::Flushed | Fault::Both = fault {
        server.command(&["SCRIPT", "FLUSH", "SYNC"]);
    }
    if let Fault::Killed | Fault::Both = fault {
        server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    }
}

/// A lock whose end meets the fault on some of the servers. It is not known that their connections are closed: something
/// was received on them a moment ago.
fn hold_and_strike(redlock: &Redlock, servers: &[Server], struck: &[Server], fault: Fault) -> Lock {
    let mut lock = redlock.acquire("held", HOUR).unwrap();
    wait_everywhere(servers, "held");
    // Of each node, since it is written to.
    eventually("it is extended", || lock.extend(HOUR).is_ok());
    std::thread::scope(|scope| {
        for server in struck {
            scope.spawn(|| strike(server, fault));
        }
    });
    lock
}

fn is_gone(servers: &[Server]) -> bool {
    servers.iter().all(|server| server.keys().is_empty())
}

#[test]
fn a_lock_dropped_just_when_servers_close_the_connections_is_gone_soon() {
    let name = "a_lock_dropped_just_when_servers_close_the_connections_is_gone_soon";
    in_own_process(name, || {
        for nodes in [1, 3] {
            let servers = Server::several(nodes);
            for fault in [Fault::Killed, Fault::Flushed, Fault::Both] {
                for round in 0..5 {
                    // A lost release is missed after a node timeout, in each of thirty rounds.
                    let redlock = connected(&servers);
                    drop(hold_and_strike(&redlock, &servers, &servers, fault));
                    let what = format!("{nodes} nodes, {fault:?}, round {round}");
                    eventually(&what, || is_gone(&servers));
                    let over = || attendants() + confirmers() == 0;
                    eventually("all threads have ended", over);
                }
            }
        }
    });
}

/// Until they have loaded what they saved.
fn restart(servers: &mut [Server]) {
    servers.iter_mut().for_each(Server::restart);
    for server in servers {
        eventually("it is loaded", || {
            server.info("persistence", "loading") == "0"
        });
    }
}

/// What was saved is there again.
#[test]
fn a_lock_dropped_just_when_servers_are_restarted_is_gone_soon() {
    for nodes in [1, 3] {
        let mut servers = Server::several(nodes);
        servers.iter_mut().for_each(|server| {
            server.set_args(&["--appendonly", "yes", "--appendfsync", "always"])
        });
        restart(&mut servers);
        let redlock = connected(&servers);
        let lock = redlock.acquire("held", HOUR).unwrap();
        eventually("on all nodes", || {
            servers.iter().all(|server| server.exists("held"))
        });
        // This one is to be there still.
        redlock.acquire("leaked", HOUR).unwrap().leak();
        wait_everywhere(&servers, "leaked");
        // They do not read the release any more.
        servers.iter().for_each(Server::stop);
        drop(lock);
        restart(&mut servers);
        let left = || servers.iter().all(|server| server.keys() == ["leaked"]);
        eventually(&format!("{nodes} nodes"), left);
    }
}

/// The same over connections that a load balancer has forgotten: no answer comes.
#[test]
fn a_lock_dropped_over_connections_that_lead_nowhere_is_gone_soon() {
    let servers = Server::several(3);
    let (relays, redlock) = behind_relays(&servers);
    redlock.connect().unwrap();
    let lock = redlock.acquire("held", HOUR).unwrap();
    wait_everywhere(&servers, "held");
    relays.iter().for_each(Relay::forget);
    drop(lock);
    eventually("it is gone", || is_gone(&servers));
}

/// The last handle goes with the lock.
#[test]
fn a_lock_dropped_with_its_client_over_closed_connections_is_gone_soon() {
    let servers = Server::several(3);
    for fault in [Fault::Killed, Fault::Flushed, Fault::Both] {
        let redlock = unhurried_connected(&servers);
        drop(hold_and_strike(&redlock, &servers, &servers, fault));
        drop(redlock);
        eventually(&format!("{fault:?}"), || is_gone(&servers));
    }
}

/// Releases a lock then, which returns once the other servers have answered. `ends`: the client ends at once, and otherwise does nothing more.
fn release_while_one_server_closes_the_connection(ends: bool) {
    let servers = Server::several(3);
    for round in 0..12 {
        let redlock = unhurried_connected(&servers);
        let struck = &servers[round % 3..][..1];
        let lock = hold_and_strike(&redlock, &servers, struck, Fault::Killed);
        lock.release().unwrap();
        let redlock = (!ends).then_some(redlock);
        eventually(&format!("round {round}"), || is_gone(&servers));
        drop(redlock);
    }
}

#[test]
fn a_lock_released_just_when_one_server_closes_the_connection_is_gone_soon() {
    release_while_one_server_closes_the_connection(false);
}

#[test]
fn a_lock_released_just_when_one_server_closes_the_connection_is_gone_when_its_client_ends() {
    release_while_one_server_closes_the_connection(true);
}

#[test]
fn a_lock_released_while_one_connection_leads_nowhere_is_gone_soon() {
    let servers = Server::several(3);
    let (relays, redlock) = behind_relays(&servers);
    for relay in &relays {
        eventually("all are connected", || {
            redlock.connect().is_ok_and(|missing| missing.is_none())
        });
        let lock = redlock.acquire("held", HOUR).unwrap();
        wait_everywhere(&servers, "held");
        relay.forget();
        lock.release().unwrap();
        eventually("it is gone", || is_gone(&servers));
    }
}

/// One thread at most, however many are dropped; and it ends.
#[test]
fn three_thousand_drops_share_a_thread_that_ends() {
    let name = "three_thousand_drops_share_a_thread_that_ends";
    in_own_process(name, || {
        let servers = Server::several(3);
        let redlock = connected(&servers);
        let (mut seen, began) = (BTreeSet::new(), Instant::now());
        for i in 0..3000 {
            drop(redlock.acquire("a", HOUR).unwrap());
            if i % 100 == 0 {
                seen.extend(threads_named("redlock-confirm"));
            }
        }
        let took = began.elapsed();
        println!("{} threads for 3,000 drops in {took:?}", seen.len());
        // One; another one whenever a busy machine keeps the program from going on for half a second.
        assert!((1..=20).contains(&seen.len()), "{}", seen.len());
        eventually("it has ended", || confirmers() == 0);
        assert!(is_gone(&servers));
    });
}

/// A release that each node has answered leaves nothing to confirm; otherwise it is as with drops.
#[test]
fn releases_share_a_thread_that_ends_and_need_none_for_one_node() {
    let name = "releases_share_a_thread_that_ends_and_need_none_for_one_node";
    in_own_process(name, || {
        for nodes in [1, 3] {
            let servers = Server::several(nodes);
            let redlock = unhurried_connected(&servers);
            eventually("what connected it has ended", || confirmers() == 0);
            let mut seen = BTreeSet::new();
            for _ in 0..300 {
                let lock = redlock.acquire("a", HOUR).unwrap();
                lock.release().unwrap();
                seen.extend(threads_named("redlock-confirm"));
            }
            // On a machine that is busy there may be more.
            let most = if nodes > 1 { 20 } else { 0 };
            assert!(seen.len() <= most, "{} on {nodes} nodes", seen.len());
            eventually("it has ended", || confirmers() == 0);
        }
    });
}

// ---- what servers refuse for now

/// Why a server refuses for now to end a lock.
#[derive(Clone, Copy, Debug)]
enum Trouble {
    /// A script of others does not end.
    Busy,
    DiskFailed,
    TooFewReplicas,
    /// It deletes keys, and cannot shorten a permit.
    OutOfMemory,
    /// An operator has taken rights away from the user of the locks.
    NoRights,
    /// Among them only the right to read, which scripts need to compare.
    NoRightToRead,
    /// The server is a replica for a time, and its master cannot be reached.
    Demoted,
}

const TROUBLES: [Trouble; 7] = [
    Trouble::Busy,
    Trouble::DiskFailed,
    Trouble::TooFewReplicas,
    Trouble::OutOfMemory,
    Trouble::NoRights,
    Trouble::NoRightToRead,
    Trouble::Demoted,
];

impl Trouble {
    fn begin<'scope>(self, scope: &'scope Scope<'scope, '_>, server: &'scope Server) {
        let set = |name, value| drop(server.command(&["CONFIG", "SET", name, value]));
        match self {
            Trouble::Busy => {
                set("lua-time-limit", "50");
                scope.spawn(|| drop(server.try_command(&["EVAL", "while true do end", "0"])));
                eventually("it is busy", || {
                    let answer = server.try_command(&["GET", "x"]);
                    answer.is_err_and(|error| error.to_string().contains("BUSY"))
                });
            }
            Trouble::DiskFailed => {
                std::fs::create_dir(server.dir().join("dump.rdb")).unwrap();
                set("save", "3600 1000");
                server.command(&["BGSAVE"]);
                eventually("it cannot save", || {
                    server.info("persistence", "rdb_last_bgsave_status") == "err"
                });
            }
            Trouble::TooFewReplicas => set("min-replicas-to-write", "1"),
            Trouble::OutOfMemory => set("maxmemory", "1"),
            Trouble::NoRights => drop(server.command(&[
                "ACL", "SETUSER", "default", "-eval", "-evalsha", "-del", "-pexpire",
            ])),
            Trouble::NoRightToRead => {
                server.command(&["ACL", "SETUSER", "default", "-get"]);
            }
            Trouble::Demoted => drop(server.command(&["REPLICAOF", "127.0.0.1", "1"])),
        }
    }

    fn end(self, server: &Server) {
        let words: &[&str] = match self {
            Trouble::Busy => &["SCRIPT", "KILL"],
            Trouble::DiskFailed => &["CONFIG", "SET", "save", ""],
            Trouble::TooFewReplicas => &["CONFIG", "SET", "min-replicas-to-write", "0"],
            Trouble::OutOfMemory => &["CONFIG", "SET", "maxmemory", "0"],
            Trouble::NoRights | Trouble::NoRightToRead => &["ACL", "SETUSER", "default", "+@all"],
            Trouble::Demoted => &["REPLICAOF", "NO", "ONE"],
        };
        server.command(words);
    }
}

/// One lock of each kind, with names of its own.
fn one_of_each(redlock: &Redlock, names: &str) -> Vec<Lock> {
    let name = |kind: &str| format!("{names} {kind}");
    let fair = redlock.clone().with_options(options().fair(true)).unwrap();
    let others = [
        redlock.semaphore(name("permit"), 2).unwrap(),
        redlock.read_lock(name("read")).unwrap(),
        redlock.write_lock(name("write")).unwrap(),
        redlock.several([name("one"), name("two")]).unwrap(),
    ];
    let plain = [(redlock, "plain"), (&fair, "fair")];
    let plain = plain.map(|(redlock, kind)| redlock.acquire(name(kind), HOUR).unwrap());
    let others = others.iter().map(|other| other.acquire(HOUR).unwrap());
    plain.into_iter().chain(others).collect()
}

#[test]
fn what_servers_refuse_for_now_is_carried_out_when_they_are_well_though_nothing_follows() {
    let name =
        "what_servers_refuse_for_now_is_carried_out_when_they_are_well_though_nothing_follows";
    in_own_process(name, || {
        let given_up = |trouble: Trouble, nodes: usize| {
            let servers = Server::several(nodes);
            let redlock = connected(&servers);
            let (released, dropped, left) = (
                one_of_each(&redlock, "released"),
                one_of_each(&redlock, "dropped"),
                one_of_each(&redlock, "left"),
            );
            std::thread::scope(|scope| {
                for server in &servers {
                    trouble.begin(scope, server);
                }
                drop(redlock.try_acquire("tried", HOUR));
                drop(dropped);
                // Unavailable, where a majority refuses it.
                released.into_iter().for_each(|lock| drop(lock.release()));
                left.into_iter()
                    .for_each(|lock| drop(lock.leak_for(ms(100))));
                servers.iter().for_each(|server| trouble.end(server));
            });
            let what = format!("{trouble:?}, {nodes} nodes");
            eventually(&what, || is_gone(&servers));
            redlock
        };
        let users: Vec<Redlock> = std::thread::scope(|scope| {
            let each = TROUBLES
                .iter()
                .flat_map(|trouble| [(trouble, 1), (trouble, 3)]);
            let each = each.map(|(trouble, nodes)| scope.spawn(move || given_up(*trouble, nodes)));
            let threads: Vec<_> = each.collect();
            threads.into_iter().map(|one| one.join().unwrap()).collect()
        });
        let over = || attendants() + confirmers() == 0;
        eventually("all threads have ended", over);
        drop(users);
    });
}

/// The end of a key is the end of what is owed.
#[test]
fn what_servers_refuse_is_not_sent_again_behind_the_end_of_the_key() {
    let name = "what_servers_refuse_is_not_sent_again_behind_the_end_of_the_key";
    in_own_process(name, || {
        let servers = Server::several(1);
        let redlock = connected(&servers);
        let lock = redlock.acquire("held", ms(3000)).unwrap();
        std::thread::scope(|scope| {
            let began = Instant::now();
            Trouble::TooFewReplicas.begin(scope, &servers[0]);
            unavailable(lock.release());
            eventually("a thread is there", || confirmers() == 1);
            eventually("it has ended", || confirmers() == 0);
            assert!(began.elapsed() > ms(2500), "{:?}", began.elapsed());
            let calls = servers[0].calls("evalsha");
            // With pauses.
            assert!((4..40).contains(&calls), "{calls} calls");
        });
    });
}

/// For one node timeout.
#[test]
fn the_last_handle_waits_for_servers_that_refuse_for_now() {
    let servers = Server::several(1);
    std::thread::scope(|scope| {
        let long = options().node_timeout(ms(10_000));
        let redlock = redlock(&servers).with_options(long).unwrap();
        let lock = redlock.acquire("held", HOUR).unwrap();
        Trouble::TooFewReplicas.begin(scope, &servers[0]);
        unavailable(lock.release());
        let ends = scope.spawn(|| {
            drop(redlock);
            is_gone(&servers)
        });
        eventually("it is tried again", || servers[0].calls("evalsha") >= 3);
        Trouble::TooFewReplicas.end(&servers[0]);
        assert!(ends.join().unwrap());
        // And for no longer.
        let redlock = connected(&servers);
        let lock = redlock.acquire("held", HOUR).unwrap();
        Trouble::TooFewReplicas.begin(scope, &servers[0]);
        unavailable(lock.release());
        let began = Instant::now();
        drop(redlock);
        assert!(began.elapsed() < 4 * NODE_TIMEOUT, "{:?}", began.elapsed());
        assert!(servers[0].exists("held"));
    });
}

/// The minimum sleep of a waiter that is not woken.
const POLL: Duration = Duration::from_secs(5);

/// Servers refuse the release for now, or are away, and the message comes with it when they are well again.
#[test]
fn a_release_that_comes_late_wakes_a_process_that_sleeps() {
    let woken = |trouble: Option<Trouble>, nodes: usize| {
        let servers = Server::several(nodes);
        let (relays, holder) = behind_relays(&servers);
        let options = options().retry_delay(POLL, POLL);
        let sleeper = connected(&servers).with_options(options).unwrap();
        let most = nodes / 2 + 1;
        let lock = take(&holder, "a");
        wait_everywhere(&servers, "a");
        std::thread::scope(|scope| {
            let next = scope.spawn(|| {
                let lock = sleeper.acquire("a", HOUR).unwrap();
                (Instant::now(), lock)
            });
            eventually("it is in all queues", || {
                servers.iter().all(|server| server.queued("a") == 1)
            });
            for (server, relay) in servers.iter().zip(&relays).take(most) {
                match trouble {
                    Some(trouble) => trouble.begin(scope, server),
                    None => relay.refuse(),
                }
            }
            drop(lock);
            // Written, and refused, well before the end of this.
            std::thread::sleep(NODE_TIMEOUT);
            assert!(!next.is_finished(), "{trouble:?}, {nodes} nodes");
            for (server, relay) in servers.iter().zip(&relays).take(most) {
                match trouble {
                    Some(trouble) => trouble.end(server),
                    None => relay.accept(),
                }
            }
            let well = Instant::now();
            let (since, lock) = next.join().unwrap();
            let late = since.saturating_duration_since(well);
            assert!(late < POLL / 2, "{trouble:?}, {nodes} nodes: {late:?}");
            lock.release().unwrap();
        });
    };
    for trouble in [Some(Trouble::Busy), Some(Trouble::TooFewReplicas), None] {
        for nodes in [1, 3] {
            woken(trouble, nodes);
        }
    }
}
