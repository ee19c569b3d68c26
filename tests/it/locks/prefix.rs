//! A prefix: what stands before the name of each lock on the nodes.

use crate::support;

use std::time::{Duration, Instant};

use redlock_sync::{Error, LockState, Options, Redlock};
use support::*;

/// The minimum sleep of a waiter that is not woken.
const POLL: Duration = Duration::from_secs(10);

/// For names in braces the keys beside a lock have the prefix, too.
const PREFIXES: [(&str, &[&str]); 2] = [
    ("team:", &["~team:*", "~{team:*", "&team:*"]),
    ("{team}:", &["~{team}:*", "&{team}:*"]),
];

fn patient() -> Options {
    unhurried().retry_delay(POLL, POLL)
}

fn with_prefix(servers: &[Server], prefix: &str, options: Options) -> Redlock {
    let redlock = connected(servers);
    redlock.with_options(options.prefix(prefix)).unwrap()
}

/// A client of a user that may use only the keys and channels of its team.
fn restricted(servers: &[Server], prefix: &str, patterns: &[&str], options: Options) -> Redlock {
    let user = ["ACL", "SETUSER", "few", "reset", "on", ">secret", "+@all"];
    for server in servers {
        server.command(&[&user, patterns].concat());
    }
    let urls = servers.iter().map(|server| server.url_for("few", "secret"));
    let redlock = Redlock::new(urls).unwrap();
    redlock.with_options(options.prefix(prefix)).unwrap()
}

/// What they have refused for want of a right.
fn refused(servers: &[Server]) -> Vec<String> {
    let errors = |server: &Server| -> String {
        redis::from_redis_value(server.command(&["INFO", "errorstats"])).unwrap()
    };
    let all: Vec<String> = servers.iter().map(errors).collect();
    let lines = all.iter().flat_map(|text| text.lines());
    lines
        .filter(|line| line.contains("NOPERM"))
        .map(str::to_owned)
        .collect()
}

/// One process waits for what another one holds, and has it soon after the release.
fn is_woken(server: &Server, holder: (&Redlock, &str), next: (&Redlock, &str), key: &str) {
    let lock = take(holder.0, holder.1);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| next.0.acquire(next.1, TTL).unwrap());
        eventually("it is in the queue", || server.queued(key) == 1);
        let released = Instant::now();
        lock.release().unwrap();
        waits.join().unwrap().release().unwrap();
        let took = released.elapsed();
        assert!(took < POLL / 2, "{key}: {took:?}");
    });
}

/// All kinds of locks, all calls.
fn use_all(servers: &[Server], redlock: &Redlock, other: &Redlock, prefix: &str) {
    let key = format!("{prefix}a");
    is_woken(&servers[0], (redlock, "a"), (other, "a"), &key);
    let mut lock = take(redlock, "a");
    lock.extend(2 * TTL).unwrap();
    assert!(lock.fencing_token().unwrap() > 0);
    assert_eq!(lock.resource(), b"a");
    assert!(other.try_acquire("a", TTL).unwrap().is_none());
    let permit = redlock.semaphore("permits", 2).unwrap().acquire(TTL);
    let reader = redlock.read_lock("rw").unwrap().acquire(TTL);
    let writer = other.write_lock("rw").unwrap();
    let waited = writer.acquire_within(TTL, POLL / 20).unwrap_err();
    assert_eq!(waited.resource(), Some(&b"rw"[..]), "{waited}");
    let several = redlock.several(["s1", "s2"]).unwrap().acquire(TTL).unwrap();
    assert!(several.resources().eq([b"s1", b"s2"]));
    for server in servers {
        let keys = server.keys();
        for key in &keys {
            let inside = key.strip_prefix('{').unwrap_or(key);
            let prefix = prefix.strip_prefix('{').unwrap_or(prefix);
            assert!(inside.starts_with(prefix), "{keys:?}");
        }
    }
    for mut lock in [permit.unwrap(), reader.unwrap(), several] {
        lock.extend(TTL).unwrap();
        lock.fencing_token().unwrap();
        lock.release().unwrap();
    }
    writer.acquire(TTL).unwrap().release().unwrap();
    let LockState::Held { holder, .. } = other.inspect("a").unwrap().state() else {
        panic!("it is held");
    };
    assert!(other.break_lock("a", &holder).unwrap());
    let report = redlock.check("check").unwrap();
    assert!(report.is_checked(), "{report}");
    assert!(
        !report.findings().any(|one| one.code() == "rights"),
        "{report}"
    );
}

#[test]
fn a_user_that_may_use_only_its_teams_keys_and_channels_is_refused_nothing() {
    for (prefix, patterns) in PREFIXES {
        for fair in [false, true] {
            let servers = Server::several(if fair { 1 } else { 3 });
            // What is outside is not read, either.
            for server in &servers {
                server.command(&["SET", "shop:a", "12345678901234567890", "PX", "600000"]);
            }
            let of = || restricted(&servers, prefix, patterns, patient().fair(fair));
            let (redlock, other) = (of(), of());
            redlock.connect().unwrap();
            for server in &servers {
                server.command(&["CONFIG", "RESETSTAT"]);
            }
            let lock = take(&redlock, "listed");
            let listing = redlock.list(None).unwrap();
            let names: Vec<&[u8]> = listing.locks().map(|lock| lock.name()).collect();
            assert_eq!((names, listing.prefix()), (vec![&b"listed"[..]], prefix));
            for (pattern, count) in [("list*", 1), ("other*", 0), ("*", 1)] {
                let listing = redlock.list(Some(pattern)).unwrap();
                assert_eq!(listing.locks().count(), count, "{pattern}");
                assert_eq!(listing.failed().count(), 0);
            }
            lock.release().unwrap();
            for server in &servers {
                server.command(&["DEL", "shop:a"]);
            }
            use_all(&servers, &redlock, &other, prefix);
            assert_eq!(refused(&servers), [""; 0], "{prefix}");
        }
    }
}

#[test]
fn the_restart_guard_keeps_its_key_behind_the_prefix() {
    for (prefix, patterns) in PREFIXES {
        let servers = Server::several(1);
        let longest = Duration::from_secs(2);
        let guarded = options().restart_guard(longest);
        let redlock = restricted(&servers, prefix, patterns, guarded);
        drop(redlock.acquire("a", longest).unwrap());
        drop(redlock.acquire("a", longest).unwrap());
        assert!(servers[0].exists(format!("{prefix}redlock:witness")));
        assert_eq!(refused(&servers), [""; 0], "{prefix}");
        let report = redlock.check("check").unwrap();
        assert!(
            !report.findings().any(|one| one.code() == "rights"),
            "{report}"
        );
        assert_eq!(redlock.list(None).unwrap().locks().count(), 0);
    }
}

#[test]
fn programs_meet_where_prefix_and_name_are_the_same_key() {
    for fair in [false, true] {
        let servers = Server::several(1);
        let team = with_prefix(&servers, "team:", patient().fair(fair));
        let all = with_prefix(&servers, "", patient().fair(fair));
        let shop = with_prefix(&servers, "shop:", patient().fair(fair));
        is_woken(&servers[0], (&team, "a"), (&all, "team:a"), "team:a");
        is_woken(&servers[0], (&all, "team:a"), (&team, "a"), "team:a");
        let lock = take(&team, "a");
        assert!(all.try_acquire("team:a", TTL).unwrap().is_none());
        // Without the same prefix they do not.
        take(&all, "a").release().unwrap();
        take(&shop, "a").release().unwrap();
        // Errors name what the program named.
        let busy = team.acquire_within("a", TTL, POLL / 20).unwrap_err();
        assert!(
            matches!(&busy, Error::Busy(busy) if busy.resource() == b"a"),
            "{busy}"
        );
        assert!(!busy.to_string().contains("team"), "{busy}");
        let names: Vec<_> = all
            .list(None)
            .unwrap()
            .locks()
            .map(|lock| lock.name().to_vec())
            .collect();
        assert_eq!(names, [b"team:a"]);
        assert_eq!(shop.list(None).unwrap().locks().count(), 0);
        // Another prefix is another lock for the same client, too.
        let clone = team
            .clone()
            .with_options(patient().prefix("shop:"))
            .unwrap();
        take(&clone, "a").release().unwrap();
        // With one option changed and the others kept, it is the same lock.
        let hasty = team.clone().adjust(|options| options.wait(Duration::ZERO));
        let hasty = hasty.unwrap();
        assert_eq!(hasty.options().get_prefix(), "team:");
        assert!(hasty.try_acquire("a", TTL).unwrap().is_none());
        lock.release().unwrap();
    }
}
