//! Servers that evict keys: with the guard, what they may have lost is granted to no other holder, also over connections that
//! were made before.

use crate::support;

use std::time::{Duration, Instant};

use redlock_sync::{Lock, Redlock};
use support::*;

const S: Duration = Duration::from_secs(1);
const MAX_TTL: Duration = Duration::from_secs(4);
/// What the guard adds to that.
const MARGIN: Duration = Duration::from_secs(5);

/// Servers that vote.
fn seasoned(count: usize) -> Vec<Server> {
    let servers = Server::several(count);
    eventually("they have been up for long enough", || {
        servers.iter().all(|server| {
            let uptime: u64 = server.info("server", "uptime_in_seconds").parse().unwrap();
            uptime > MAX_TTL.as_secs()
        })
    });
    servers
}

/// With a connection to each.
fn client(servers: &[Server], guard: Option<Duration>) -> Redlock {
    let options = options().restart_guard(guard.unwrap_or_default());
    let redlock = redlock(servers).with_options(options).unwrap();
    redlock.acquire("b", S).unwrap().release().unwrap();
    redlock
}

fn with_and_without(run: impl Fn(Option<Duration>) + Sync) {
    std::thread::scope(|scope| {
        scope.spawn(|| run(None));
        scope.spawn(|| run(Some(MAX_TTL)));
    });
}

fn set(server: &Server, name: &str, value: &str) {
    server.command(&["CONFIG", "SET", name, value]);
}

/// The server evicts all keys that end within `time`, for a large one that ends then; but not the witness.
fn evict(server: &Server, time: Duration) {
    evict_by("volatile-ttl", server, time);
}

/// The same by this policy, which may choose others.
fn evict_by(policy: &str, server: &Server, time: Duration) {
    let (large, time) = ("x".repeat(8 << 20), time.as_millis().to_string());
    server.command(&["SET", "large", &large, "PX", &time]);
    set(server, "maxmemory-samples", "64");
    set(server, "maxmemory-policy", policy);
    let used: u64 = server.info("memory", "used_memory").parse().unwrap();
    set(server, "maxmemory", &(used - (4 << 20)).to_string());
    eventually("it has evicted enough", || !server.exists("large"));
    set(server, "maxmemory", "0");
    assert_ne!(server.info("stats", "evicted_keys"), "0");
}

fn has_witness(server: &Server) -> bool {
    server.exists("redlock:witness")
}

/// The guard keeps all from the lock until it has ended.
fn is_granted_again_only_without(guard: Option<Duration>, others: &[&Redlock], held: &Lock) {
    let since = Instant::now();
    for other in others {
        let result = other.try_acquire("a", MAX_TTL);
        if guard.is_none() {
            let two = matches!(result, Ok(Some(_)));
            assert!(two && held.is_valid(), "two holders");
            return;
        }
        unavailable(result);
        // By now it is connected anew.
        let wait = unavailable(other.acquire_within("a", MAX_TTL, S)).retry_after();
        assert!(wait.unwrap() <= MAX_TTL + MARGIN + S, "{wait:?}");
    }
    assert!(held.is_valid());
    others[0].acquire("a", MAX_TTL).unwrap().release().unwrap();
    assert!(!held.is_valid());
    assert!(since.elapsed() > MAX_TTL);
}

#[test]
fn a_server_that_evicts_makes_two_holders_only_without_the_guard() {
    a_server_evicts(|server, guarded| {
        evict(server, 60 * S);
        assert!(!server.exists("a"));
        assert_eq!(has_witness(server), guarded);
    });
}

/// The witness may go before the lock does.
#[test]
fn a_server_that_evicts_any_key_makes_two_holders_only_without_the_guard() {
    a_server_evicts(|server, _| {
        eventually("the lock is evicted", || {
            evict_by("allkeys-random", server, 60 * S);
            !server.exists("a")
        });
    });
}

fn a_server_evicts(evict: impl Fn(&Server, bool) + Sync) {
    with_and_without(|guard| {
        let servers = seasoned(1);
        let [first, connected] = [0, 1].map(|_| client(&servers, guard));
        let held = first.acquire("a", MAX_TTL).unwrap();
        // It was not there when they were connected.
        evict(&servers[0], guard.is_some());
        let fresh = redlock(&servers);
        let options = options().restart_guard(guard.unwrap_or_default());
        let fresh = fresh.with_options(options).unwrap();
        is_granted_again_only_without(guard, &[&connected, &fresh], &held);
    });
}

#[test]
fn a_majority_that_evicts_makes_two_holders_only_without_the_guard() {
    with_and_without(|guard| {
        let servers = seasoned(3);
        let [first, connected] = [0, 1].map(|_| client(&servers, guard));
        eventually("all nodes are connected", || {
            let lock = connected.acquire("b", S).unwrap();
            let all = servers.iter().all(|server| server.exists("b"));
            lock.release().unwrap();
            all
        });
        let held = first.acquire("a", MAX_TTL).unwrap();
        servers[..2].iter().for_each(|server| evict(server, 60 * S));
        is_granted_again_only_without(guard, &[&connected], &held);
    });
}

/// The policy may be corrected before any program looks.
#[test]
fn what_was_evicted_before_the_policy_was_corrected_counts() {
    let servers = seasoned(1);
    let [first, connected] = [0, 1].map(|_| client(&servers, Some(MAX_TTL)));
    let held = first.acquire("a", MAX_TTL).unwrap();
    evict(&servers[0], 60 * S);
    set(&servers[0], "maxmemory-policy", "noeviction");
    let errors = unavailable(connected.try_acquire("a", MAX_TTL)).to_string();
    assert!(
        errors.contains("evicted") && errors.contains("set maxmemory-policy noeviction"),
        "{errors}"
    );
    assert!(held.is_valid());
}

/// A number is no larger than the last one, if the counter is gone while its clock is behind it.
#[test]
fn a_counter_that_was_evicted_gives_a_smaller_fencing_token_only_without_the_guard() {
    with_and_without(|guard| {
        let servers = seasoned(1);
        let [first, second] = [0, 1].map(|_| client(&servers, guard));
        let counter = beside("a", "fence");
        let ahead = (1_u64 << 52).to_string();
        servers[0].command(&["SET", &counter, &ahead, "PX", "60000"]);
        let lock = first.acquire("a", MAX_TTL).unwrap();
        let before = lock.fencing_token().unwrap();
        lock.release().unwrap();
        let mut lock = second.acquire("a", MAX_TTL).unwrap();
        servers[0].command(&["PEXPIRE", &counter, "1500"]);
        // It must end behind all that is evicted, however slow the machine is.
        lock.extend(MAX_TTL).unwrap();
        evict(&servers[0], 2 * S);
        assert!(!servers[0].exists(&counter) && servers[0].exists("a"));
        match lock.fencing_token() {
            Ok(number) => assert!(guard.is_none() && number < before, "{number}"),
            error => assert!(guard.is_some() && unavailable(error).retry_after().is_some()),
        }
    });
}

/// The server may have lost more than the decoy: it votes on extensions as after a FLUSHALL.
#[test]
fn an_extension_counts_again_some_seconds_after_an_eviction() {
    let servers = seasoned(1);
    let redlock = client(&servers, Some(MAX_TTL));
    let mut held = redlock.acquire("held", MAX_TTL).unwrap();
    evict(&servers[0], S);
    unavailable(held.extend(MAX_TTL));
    assert!(held.is_valid());
    unavailable(redlock.try_acquire("a", MAX_TTL));
    eventually_within(MAX_TTL + MARGIN + 3 * S, "it votes", &mut || {
        matches!(redlock.try_acquire("a", MAX_TTL), Ok(Some(_)))
    });
}
