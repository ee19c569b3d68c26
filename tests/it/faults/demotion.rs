//! Servers that become replicas, and names that lead to another one.

use crate::support;

use std::process::{Command, Stdio};
use std::time::Instant;

use redlock_sync::{Lock, Redlock};
use support::relay::Relay;
use support::*;

/// In half a second a client finds the new master, on a machine that has nothing else to do.
const SOON: std::time::Duration = ms(4 * 500);
const AWAY: &str = "is a replica; its name is looked up again";

fn client(url: String) -> Redlock {
    let redlock = Redlock::new([url]).unwrap();
    redlock.with_options(options()).unwrap()
}

/// It stays up, and closes no connection. Its master does not exist, so that it keeps its data.
fn demote(server: &Server) {
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
}

/// Two servers behind one name, as if one replicated the other; and a lock that both have.
struct Pair {
    old: Server,
    new: Server,
    name: Relay,
    redlock: Redlock,
    held: Lock,
}

impl Pair {
    fn new() -> Pair {
        let [old, new] = [(); 2].map(|()| Server::start());
        let name = Relay::to(old.port());
        let redlock = client(name.url());
        let held = take(&redlock, "held");
        let value: Vec<u8> = redis::from_redis_value(old.command(&["GET", "held"])).unwrap();
        new.command_table(&[b"SET", b"held", &value, b"PX", b"60000"]);
        Pair {
            old,
            new,
            name,
            redlock,
            held,
        }
    }

    fn fail_over(&self) {
        demote(&self.old);
        self.name.lead_to(self.new.port());
    }
}

#[test]
fn after_a_failover_locks_are_taken_at_the_server_that_the_name_leads_to() {
    let pair = Pair::new();
    pair.fail_over();
    let errors = unavailable(pair.redlock.try_acquire("a", TTL)).to_string();
    assert!(
        errors.contains("the server is a replica now: READONLY"),
        "{errors}"
    );
    let started = Instant::now();
    let lock = pair.redlock.acquire("a", TTL).unwrap();
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    assert!(pair.new.exists("a") && !pair.old.exists("a"));
    lock.release().unwrap();
    pair.held.release().unwrap();
    assert!(pair.new.keys().is_empty());
}

#[test]
fn a_release_that_a_demoted_master_refuses_is_carried_out_by_the_new_one() {
    let pair = Pair::new();
    pair.fail_over();
    // Sent again in its time, or due.
    let _ = pair.held.release();
    eventually_within(SOON, "it is released", &mut || !pair.new.exists("held"));
    assert!(pair.old.exists("held"));
}

#[test]
fn an_extension_that_a_demoted_master_refuses_leaves_the_lock_as_it_was() {
    let mut pair = Pair::new();
    pair.fail_over();
    let errors = unavailable(pair.held.extend(2 * TTL)).to_string();
    assert!(errors.contains("READONLY"), "{errors}");
    assert!(pair.held.is_valid());
    let redlock = &pair.redlock;
    eventually_within(SOON, "the new master votes", &mut || {
        matches!(redlock.try_acquire("a", TTL), Ok(Some(_)))
    });
    pair.held.extend(2 * TTL).unwrap();
    let left: u64 = redis::from_redis_value(pair.new.command(&["TTL", "held"])).unwrap();
    assert!(left > TTL.as_secs(), "{left}");
    pair.held.release().unwrap();
}

#[test]
fn a_replica_that_does_not_reach_its_master_is_left() {
    let pair = Pair::new();
    pair.old
        .command(&["CONFIG", "SET", "replica-read-only", "no"]);
    let stale = ["CONFIG", "SET", "replica-serve-stale-data", "no"];
    pair.old.command(&stale);
    pair.fail_over();
    let errors = unavailable(pair.redlock.try_acquire("a", TTL)).to_string();
    assert!(
        errors.contains("the server is a replica now: MASTERDOWN"),
        "{errors}"
    );
    pair.redlock.acquire("a", TTL).unwrap().release().unwrap();
    pair.held.release().unwrap();
    assert!(pair.new.keys().is_empty());
}

/// Also where the user may do nothing but lock; and however many operations ask for it, it is tried again after pauses.
#[test]
fn a_replica_that_takes_writes_grants_nothing() {
    let server = Server::start();
    server.command(&["CONFIG", "SET", "replica-read-only", "no"]);
    let user =
        "ACL SETUSER u on >secret ~* resetchannels -@all +set +get +del +pttl +pexpire +eval";
    server.command(&user.split(' ').collect::<Vec<_>>());
    demote(&server);
    let redlock = client(server.url_for("u", "secret"));
    let connections = || -> u64 {
        let count = server.info("stats", "total_connections_received");
        count.parse().unwrap()
    };
    let (before, started) = (connections(), Instant::now());
    while started.elapsed() < ms(3000) {
        let errors = unavailable(redlock.try_acquire("a", TTL));
        assert!(!errors.is_permanent(), "{errors}");
        assert!(errors.to_string().contains(AWAY), "{errors}");
    }
    // In 3 s: at 0, and then after pauses of at least 0.05, 0.1, 0.2 and 0.35 s. One is that of the last count.
    let tries = connections() - before - 1;
    assert!((2..=12).contains(&tries), "{tries}");
    assert_eq!(server.calls("set"), 0);
    // It is used as soon as it is a master.
    server.command(&["REPLICAOF", "NO", "ONE"]);
    let started = Instant::now();
    redlock.acquire("a", TTL).unwrap().release().unwrap();
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
}

fn take_and_release(redlock: &Redlock, ttl: std::time::Duration) {
    let lock = redlock.try_acquire("a", ttl).unwrap().unwrap();
    lock.release().unwrap();
}

/// Nothing else tells those that are connected: they take it for a master until their connections end.
#[test]
fn a_master_that_becomes_a_replica_and_takes_writes_grants_to_connected_clients_only_without_the_guard()
 {
    let max_ttl = ms(2000);
    let server = Server::with_args(&["--replica-read-only", "no"]);
    eventually("it has been up for long enough", || {
        let uptime = server.info("server", "uptime_in_seconds");
        uptime.parse::<u64>().unwrap() > 3
    });
    let [plain, guarded] = [ms(0), max_ttl].map(|guard| {
        let redlock = Redlock::new([server.url()]).unwrap();
        redlock
            .with_options(options().restart_guard(guard))
            .unwrap()
    });
    take_and_release(&plain, max_ttl);
    take_and_release(&guarded, max_ttl);
    let mut held = guarded.try_acquire("held", max_ttl).unwrap().unwrap();
    demote(&server);
    let errors = unavailable(guarded.try_acquire("c", max_ttl));
    assert!(!errors.is_permanent(), "{errors}");
    unavailable(held.extend(max_ttl));
    take_and_release(&plain, max_ttl);
    // A new connection notices it.
    unavailable(client(server.url()).try_acquire("e", max_ttl));
}

/// Before Redis 6, and where it is not permitted, INFO tells it.
#[test]
fn a_replica_that_takes_writes_and_has_no_hello_grants_nothing() {
    let args = ["--rename-command", "HELLO", "", "--replica-read-only", "no"];
    let server = Server::with_args(&args);
    demote(&server);
    let redlock = client(server.url());
    let errors = unavailable(redlock.try_acquire("a", TTL)).to_string();
    assert!(errors.contains(AWAY), "{errors}");
    assert_eq!(server.calls("set"), 0);
    server.command(&["REPLICAOF", "NO", "ONE"]);
    redlock.acquire("a", TTL).unwrap().release().unwrap();
}

/// A replica may get no messages: its name is looked up again until it leads to a master.
#[test]
fn waiters_listen_at_masters_only() {
    let pair = Pair::new();
    demote(&pair.new);
    let poll = ms(10_000);
    let waiter = Redlock::new([pair.name.url()]).unwrap();
    let waiter = waiter
        .with_options(options().retry_delay(poll, poll))
        .unwrap();
    take(&waiter, "connected").release().unwrap();
    pair.name.lead_to(pair.new.port());
    let listeners = || {
        let list = pair.old.command(&["CLIENT", "LIST", "TYPE", "pubsub"]);
        redis::from_redis_value::<String>(list)
            .unwrap()
            .lines()
            .count()
    };
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.acquire("held", TTL).unwrap());
        eventually("it has tried the replica", || pair.new.calls("hello") > 0);
        pair.name.lead_to(pair.old.port());
        eventually("it listens at the master", || listeners() == 1);
        let started = Instant::now();
        pair.held.release().unwrap();
        waits.join().unwrap().release().unwrap();
        assert!(started.elapsed() < poll / 2, "{:?}", started.elapsed());
    });
}

#[test]
fn connect_counts_a_replica_as_not_answering() {
    let servers = Server::several(3);
    demote(&servers[1]);
    let missing = redlock(&servers).connect().unwrap().unwrap();
    let missing: Vec<_> = missing
        .iter()
        .map(|error| (error.node(), error.to_string()))
        .collect();
    let [(1, text)] = &missing[..] else {
        panic!("{missing:?}");
    };
    assert!(text.contains(AWAY), "{text}");
}

#[test]
fn a_sentinel_is_refused_for_good() {
    let dir = TempDir::new();
    let (port, file) = (free_port(), dir.path().join("sentinel.conf"));
    std::fs::write(&file, format!("port {port}\nbind 127.0.0.1\n")).unwrap();
    let mut child = Command::new(redis_server())
        .arg(&file)
        .arg("--sentinel")
        .current_dir(dir.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let refused = std::panic::catch_unwind(|| {
        eventually("it listens", || {
            std::net::TcpStream::connect(("127.0.0.1", port.number())).is_ok()
        });
        // Also where it would have been asked for a database that it has not.
        for database in ["", "/2"] {
            let redlock = client(format!("redis://127.0.0.1:{port}{database}"));
            let errors = unavailable(redlock.acquire("a", TTL));
            assert!(errors.is_permanent(), "{errors}");
            assert!(
                errors.to_string().contains("that is a sentinel: "),
                "{errors}"
            );
        }
    });
    let _ = child.kill();
    let _ = child.wait();
    refused.unwrap();
}
