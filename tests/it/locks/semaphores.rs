//! At most k holders at a time, each with a slot of its own.

use crate::support;

use std::collections::BTreeSet;
use std::fs::{OpenOptions, remove_file};
use std::path::Path;
use std::time::{Duration, Instant};

use redlock_sync::{Error, Lock, Lockable, Options, Redlock, Token};
use support::relay::Relay;
use support::*;

const NAME: &str = "pool";

fn semaphore(redlock: &Redlock, permits: u32) -> Lockable {
    redlock.semaphore(NAME, permits).unwrap()
}

fn permit(semaphore: &Lockable) -> Lock {
    semaphore.try_acquire(TTL).unwrap().expect("one is free")
}

fn slots<'a>(locks: impl IntoIterator<Item = &'a Lock>) -> BTreeSet<u32> {
    locks.into_iter().map(|lock| lock.slot().unwrap()).collect()
}

fn members(server: &Server, name: &str) -> u64 {
    redis::from_redis_value(server.command(&["ZCARD", name])).unwrap()
}

fn left(server: &Server, name: &str) -> i64 {
    redis::from_redis_value(server.command(&["PTTL", name])).unwrap()
}

#[test]
fn as_many_hold_it_as_there_are_permits_and_each_has_another_slot() {
    for nodes in [1, 3, 5] {
        let servers = Server::several(nodes);
        let [one, two] = [(); 2].map(|()| unhurried_connected(&servers));
        let [one, two] = [one, two].map(|redlock| semaphore(&redlock, 3));
        let mut held = vec![permit(&one), permit(&two), permit(&one)];
        assert_eq!(slots(&held), BTreeSet::from([0, 1, 2]));
        assert!(two.try_acquire(TTL).unwrap().is_none());
        let waited = two.acquire_within(TTL, ms(30));
        assert!(matches!(waited, Err(Error::Busy(_))));
        let freed = held.remove(1);
        let slot = freed.slot();
        freed.release().unwrap();
        let next = two.acquire(TTL).unwrap();
        assert_eq!(next.slot(), slot);
        drop((held, next));
        eventually("nothing is left", || {
            servers.iter().all(|server| server.keys().is_empty())
        });
    }
}

#[test]
fn a_permit_does_what_a_lock_does() {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    let two = semaphore(&redlock, 2);
    let mut lock = permit(&two);
    let (slot, other) = (lock.slot(), permit(&two));
    let seconds = left(&servers[0], NAME);
    lock.extend(2 * TTL).unwrap();
    assert!(left(&servers[0], NAME) > seconds);
    lock.ensure(TTL).unwrap();
    assert!(lock.fencing_token().unwrap() < other.fencing_token().unwrap());
    other.release().unwrap();
    assert!(left(&servers[0], NAME) > seconds, "it still has its time");

    let (token, validity) = (*lock.token().as_bytes(), lock.remaining());
    lock.leak();
    let token = Token::from_bytes(token);
    let plain = redlock.resume(NAME, token, validity).unwrap();
    drop(plain);
    let mut resumed = two.resume(token, validity).unwrap();
    assert_eq!(resumed.slot(), None);
    resumed.extend(3 * TTL).unwrap();
    assert_eq!(resumed.slot(), slot);
    let kept = resumed.keep_alive(Duration::from_secs(3600)).unwrap();
    assert_eq!(kept.slot(), slot);
    kept.release().unwrap();
    eventually("nothing is left but the counter", || {
        servers.iter().all(|server| !server.exists(NAME))
    });
    let counted = two
        .with_lock(TTL, |lock| Ok::<_, Error>(lock.slot()))
        .unwrap();
    assert!(counted.is_some());
}

/// A program that has ended, or leaked its permit, keeps it for its own ttl, whatever others have.
#[test]
fn each_permit_ends_with_its_own_ttl() {
    let servers = Server::several(3);
    let two = semaphore(&connected(&servers), 2);
    two.try_acquire(ms(1000)).unwrap().unwrap().leak();
    let long = permit(&two);
    let began = Instant::now();
    let next = two.acquire(TTL).unwrap();
    assert!(began.elapsed() > ms(500), "{:?}", began.elapsed());
    assert_ne!(next.slot(), long.slot());
    drop((next, long));
    two.try_acquire(ms(500)).unwrap().unwrap().leak();
    eventually("the key ends with the last permit", || {
        servers.iter().all(|server| !server.exists(NAME))
    });
}

/// Where processes name different numbers, those with the smaller one use only its slots.
#[test]
fn the_number_of_permits_can_change_while_they_are_held() {
    let servers = Server::several(3);
    let redlock = unhurried_connected(&servers);
    let [one, three] = [1, 3].map(|permits| semaphore(&redlock, permits));
    let first = permit(&one);
    assert_eq!(first.slot(), Some(0));
    let others = [permit(&three), permit(&three)];
    assert!(three.try_acquire(TTL).unwrap().is_none());
    first.release().unwrap();
    assert_eq!(permit(&one).slot(), Some(0));
    drop(others);
}

#[test]
fn one_name_is_one_kind_of_lock_and_other_data_is_never_touched() {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    let pool = semaphore(&redlock, 2);
    // A plain lock is denied while there is a permit, and the other way round.
    let held = permit(&pool);
    assert!(redlock.try_acquire(NAME, TTL).unwrap().is_none());
    held.release().unwrap();
    let lock = redlock.acquire(NAME, TTL).unwrap();
    for text in [
        other_kind(pool.try_acquire(TTL)),
        other_kind(pool.acquire(TTL)),
        other_kind(pool.acquire_while(TTL, || true)),
    ] {
        assert!(
            text.starts_with("\"pool\" is in use as a lock (node "),
            "{text}"
        );
        assert!(text.ends_with("one name is one kind of lock"), "{text}");
    }
    lock.release().unwrap();
    // Fewer than a majority are refusals.
    servers[0].command(&["SET", NAME, "x"]);
    permit(&pool).release().unwrap();
    for make in [
        &["RPUSH", NAME, "x"][..],
        &["ZADD", NAME, "1", "a"],
        &["HSET", NAME, "a", "b"],
    ] {
        for server in &servers {
            server.command(&["DEL", NAME]);
            server.command(make);
        }
        let text = other_kind(pool.try_acquire(TTL));
        assert!(text.contains("holds data that is no lock"), "{text}");
        let lost = pool.resume(Token::from_bytes([7; 20]), TTL).unwrap();
        assert!(matches!(lost.release(), Err(Error::Lost(_))));
        for server in &servers {
            assert!(server.exists(NAME));
        }
    }
}

/// By its head a member of another kind is recognised; the rest may be anything.
#[test]
fn a_set_that_was_damaged_by_hand_gives_no_permit_twice() {
    let server = Server::start();
    let two = semaphore(&unhurried_connected(std::slice::from_ref(&server)), 2);
    let first = permit(&two);
    server.command(&["ZADD", NAME, "99999999999999", "zzz"]);
    server.command(&["ZADD", NAME, "99999999999999", "redlock:x"]);
    server.command(&["ZADD", NAME, "99999999999999", "redlock:s001"]);
    let second = permit(&two);
    assert_ne!(first.slot(), second.slot());
    assert!(two.try_acquire(TTL).unwrap().is_none());
    first.release().unwrap();
    second.release().unwrap();
    server.command(&["DEL", NAME]);
    let mut lost = permit(&two);
    server.command(&["DEL", NAME]);
    assert!(matches!(lost.extend(TTL), Err(Error::Lost(_))));
}

/// An operator gives one holder more time, by hand.
#[test]
fn a_permit_that_is_prolonged_by_hand_ends_no_other_one() {
    let server = Server::start();
    let two = semaphore(&unhurried_connected(std::slice::from_ref(&server)), 2);
    let mut first = permit(&two);
    let second = permit(&two);
    let members = server.command(&["ZRANGE", NAME, "-1", "-1"]);
    let last: Vec<Vec<u8>> = redis::from_redis_value(members).unwrap();
    server.command_table(&[b"ZINCRBY", NAME.as_bytes(), b"3600000", &last[0]]);
    assert!(two.try_acquire(TTL).unwrap().is_none());
    server.command_table(&[b"ZADD", NAME.as_bytes(), b"inf", &last[0]]);
    assert!(two.try_acquire(TTL).unwrap().is_none());
    first.extend(TTL).unwrap();
    first.release().unwrap();
    second.release().unwrap();
}

/// No key ends with such a member: what is confirmed must end with another one, or the permit is free before.
#[test]
fn an_extension_behind_an_end_that_is_no_time_prolongs_the_permit() {
    let server = Server::start();
    let one = semaphore(&unhurried_connected(std::slice::from_ref(&server)), 1);
    for end in ["inf", "9007199254740992", "1e300"] {
        let mut first = one.try_acquire(ms(2000)).unwrap().unwrap();
        let members = server.command(&["ZRANGE", NAME, "0", "-1"]);
        let members: Vec<Vec<u8>> = redis::from_redis_value(members).unwrap();
        server.command_table(&[b"ZADD", NAME.as_bytes(), end.as_bytes(), &members[0]]);
        first.extend(ms(60_000)).unwrap();
        let left = server.command(&["PTTL", NAME]);
        let left: i64 = redis::from_redis_value(left).unwrap();
        assert!(left > 50_000 && left < 61_000, "{end}: {left}");
        first.release().unwrap();
    }
}

#[test]
fn numbers_and_names_that_cannot_be_are_refused() {
    let redlock = Redlock::new("redis://127.0.0.1:1").unwrap();
    for permits in [0, 1001, u32::MAX] {
        let text = config(redlock.semaphore("a", permits));
        assert_eq!(text, format!("{permits} permits: it must be 1 to 1000"));
    }
    assert!(redlock.semaphore("a", 1000).is_ok());
    for name in [vec![], vec![b'a'; 65_537]] {
        let text = config(redlock.semaphore(name, 3));
        assert!(text.contains("it must be 1 to 65536"), "{text}");
    }
    let one = redlock.semaphore("a", 1).unwrap();
    config(one.try_acquire(ms(1)));
    assert_eq!(one.resources().collect::<Vec<_>>(), [b"a"]);
    assert_eq!(format!("{one:?}"), "Lockable(\"a\", 1 permits)");
}

#[test]
fn a_majority_of_the_nodes_is_enough_and_an_extension_refills_the_others() {
    let mut servers = Server::several(3);
    let options = options().max_extensions(u32::MAX);
    let redlock = connected(&servers).with_options(options).unwrap();
    let two = semaphore(&redlock, 2);
    let mut lock = permit(&two);
    let other = permit(&two);
    servers[2].kill();
    lock.extend(2 * TTL).unwrap();
    assert!(two.try_acquire(TTL).unwrap().is_none());
    servers[2].restart();
    eventually("it has its permit there again", || {
        lock.extend(2 * TTL).unwrap();
        members(&servers[2], NAME) == 1
    });
    servers[0].kill();
    lock.extend(2 * TTL).unwrap();
    lock.release().unwrap();
    drop(other);
    servers[0].restart();
    eventually("nothing is left", || {
        servers.iter().all(|server| !server.exists(NAME))
    });
}

/// Some are loaded with the first call: plain locks never load them.
#[test]
fn scripts_that_a_server_forgets_are_loaded_again_and_plain_locks_load_none_of_them() {
    let server = Server::start();
    let cached = || -> u64 {
        let count = server.info("memory", "number_of_cached_scripts");
        count.parse().unwrap()
    };
    let redlock = connected(std::slice::from_ref(&server));
    take(&redlock, "a").release().unwrap();
    let plain = cached();
    let two = semaphore(&redlock, 2);
    let mut lock = permit(&two);
    assert_eq!(cached(), plain + 1);
    for _ in 0..3 {
        server.command(&["SCRIPT", "FLUSH"]);
        lock.extend(TTL).unwrap();
        lock.fencing_token().unwrap();
        drop(permit(&two));
        drop(permit(&two));
        take(&redlock, "a").release().unwrap();
    }
    lock.release().unwrap();
    eventually("nothing is left", || !server.exists(NAME));
}

#[test]
fn each_kind_loads_its_scripts_when_it_is_first_used() {
    let server = Server::start();
    let cached = || -> u32 {
        let count = server.info("memory", "number_of_cached_scripts");
        count.parse().unwrap()
    };
    let redlock = unhurried_connected(std::slice::from_ref(&server));
    take(&redlock, "a").release().unwrap();
    for (lockable, scripts) in [
        (semaphore(&redlock, 2), 2),
        // It is released as a permit is.
        (redlock.read_lock("r").unwrap(), 1),
        (redlock.several(["a", "b"]).unwrap(), 2),
        // It is released as several names are.
        (redlock.write_lock("r").unwrap(), 1),
    ] {
        let before = cached();
        for _ in 0..2 {
            permit(&lockable).release().unwrap();
            assert_eq!(cached(), before + scripts, "{lockable:?}");
        }
    }
}

#[test]
fn a_command_that_is_not_permitted_ends_the_wait_at_once() {
    let server = Server::start();
    for command in [
        "pttl",
        "time",
        "type",
        "zrange",
        "zadd",
        "pexpireat",
        "zrem",
        "zscore",
        "zremrangebyscore",
    ] {
        let without = format!("-{command}");
        let rights = ["reset", "on", ">p", "~*", "&*", "+@all", &without];
        server.command(&[&["ACL", "SETUSER", "u"], &rights[..]].concat());
        let redlock = Redlock::new(server.url_for("u", "p")).unwrap();
        let redlock = redlock.with_options(options()).unwrap();
        let pool = redlock.semaphore(command, 2).unwrap();
        let readers = redlock.read_lock(command).unwrap();
        for nodes in [
            unavailable(pool.acquire(TTL)),
            unavailable(readers.acquire(TTL)),
        ] {
            assert!(nodes.is_permanent(), "{command}: {nodes}");
            assert!(!server.exists(command), "{command}");
        }
    }
}

/// Takes permits until then, and has the file of its slot to itself meanwhile.
fn contend(pool: &Lockable, dir: &Path, end: Instant) -> u32 {
    let mut count = 0;
    while Instant::now() < end {
        let lock = pool.acquire(TTL).unwrap();
        let own = dir.join(format!("slot-{}", lock.slot().unwrap()));
        let made = OpenOptions::new().write(true).create_new(true).open(&own);
        made.expect("no other process has this slot");
        std::thread::sleep(ms(1));
        remove_file(&own).unwrap();
        lock.release().unwrap();
        count += 1;
    }
    count
}

fn eight_processes(test: &str, permits: u32, time: Duration) {
    if role().is_some() {
        let nodes = std::env::var("NODES").unwrap();
        let redlock = Redlock::new(nodes.split(',')).unwrap();
        let redlock = redlock
            .with_options(options().node_timeout(5 * NODE_TIMEOUT))
            .unwrap();
        let permits = std::env::var("PERMITS").unwrap().parse().unwrap();
        let pool = semaphore(&redlock, permits);
        let dir = std::env::var("DIR").unwrap();
        let count = contend(&pool, Path::new(&dir), Instant::now() + time);
        assert!(count > 0, "it starves");
        return;
    }
    for nodes in [1, 3, 5] {
        let (servers, dir) = (Server::several(nodes), TempDir::new());
        let start = |_| {
            another_process(test, "contend")
                .arg("--include-ignored")
                .env("NODES", urls(&servers).join(","))
                .env("PERMITS", permits.to_string())
                .env("DIR", dir.path())
                .spawn()
                .unwrap()
        };
        let mut processes: Vec<_> = (0..8).map(start).collect();
        for process in &mut processes {
            assert!(process.wait().unwrap().success(), "{nodes} nodes");
        }
        assert!(servers[0].calls("evalsha") > 100, "they did nothing");
        eventually("nothing is left", || {
            servers.iter().all(|server| server.keys().is_empty())
        });
    }
}

#[test]
fn eight_processes_never_have_more_permits_than_there_are() {
    let test = "eight_processes_never_have_more_permits_than_there_are";
    eight_processes(test, 3, Duration::from_secs(3));
}

#[test]
#[ignore = "a minute and a half"]
fn eight_processes_never_have_more_permits_than_there_are_for_long() {
    let test = "eight_processes_never_have_more_permits_than_there_are_for_long";
    eight_processes(test, 2, Duration::from_secs(30));
}

#[test]
fn options_of_the_client_are_those_of_its_semaphores() {
    let server = Server::start();
    let options = Options::new()
        .wait(Duration::ZERO)
        .node_timeout(NODE_TIMEOUT)
        .label("web-3:4711")
        .restart_guard(ms(2000));
    let redlock = redlock(std::slice::from_ref(&server));
    let pool = redlock.semaphore(NAME, 1).unwrap();
    let lock = permit(&pool);
    let redlock = redlock.with_options(options).unwrap();
    let guarded = redlock.semaphore(NAME, 1).unwrap();
    let text = config(guarded.try_acquire(ms(3000)));
    assert!(
        text.contains("the restart guard is for 2s at most"),
        "{text}"
    );
    lock.release().unwrap();
    let options = Options::new()
        .label("web-3:4711")
        .node_timeout(NODE_TIMEOUT);
    let redlock = redlock.with_options(options).unwrap();
    let _lock = permit(&redlock.semaphore(NAME, 1).unwrap());
    let all = server.command(&["ZRANGE", NAME, "0", "-1"]);
    let all: Vec<Vec<u8>> = redis::from_redis_value(all).unwrap();
    assert!(all[0].starts_with(b"redlock:s000") && all[0].ends_with(b"web-3:4711"));
}

/// The last node missed that a permit was taken, and grants its slot to the next holder.
#[test]
fn a_permit_is_in_no_other_slot_on_a_node_that_answers_late() {
    let servers = Server::several(3);
    let relay = Relay::to(servers[2].port());
    let urls = [servers[0].url(), servers[1].url(), relay.url()];
    let away = unhurried_connected(&servers[..2]);
    let first = away.semaphore(NAME, 2).unwrap();
    let first = first.acquire(TTL).unwrap();
    assert_eq!(members(&servers[2], NAME), 0);
    let redlock = Redlock::new(urls).unwrap().with_options(options()).unwrap();
    assert!(redlock.connect().unwrap().is_none());
    relay.set(|policy| policy.up.delay = ms(30));
    let semaphore = semaphore(&redlock, 2);
    // Which slot is tried first is drawn.
    for turn in 0..6 {
        let lock = permit(&semaphore);
        assert_ne!(lock.slot(), first.slot());
        let other = format!("redlock:s{:03}", first.slot().unwrap());
        // Nothing follows.
        std::thread::sleep(ms(100));
        eventually("the slot is released", || {
            let all: Vec<Vec<u8>> =
                redis::from_redis_value(servers[2].command(&["ZRANGE", NAME, "0", "-1"])).unwrap();
            all.iter().all(|one| !one.starts_with(other.as_bytes()))
        });
        assert!(lock.is_valid(), "{turn}");
        lock.release().unwrap();
    }
}
