//! Many readers or one writer.

use crate::support;

use std::fs::{OpenOptions, read_dir, remove_file};
use std::path::Path;
use std::time::{Duration, Instant};

use redlock_sync::{Error, Lock, Lockable, Redlock};
use support::*;

const NAME: &str = "prices";

fn both(redlock: &Redlock) -> [Lockable; 2] {
    [redlock.read_lock(NAME), redlock.write_lock(NAME)].map(Result::unwrap)
}

fn take_one(lockable: &Lockable) -> Lock {
    lockable.try_acquire(TTL).unwrap().expect("it is free")
}

fn is_free(lockable: &Lockable) -> bool {
    lockable.try_acquire(TTL).unwrap().is_some()
}

fn nothing_is_left(servers: &[Server]) {
    eventually("nothing is left", || {
        servers.iter().all(|server| server.keys().is_empty())
    });
}

#[test]
fn readers_share_it_and_a_writer_has_it_alone() {
    for nodes in [1, 3, 5] {
        let servers = Server::several(nodes);
        let [one, two] = [(); 2].map(|()| unhurried_connected(&servers));
        let ([read, write], [other_read, other_write]) = (both(&one), both(&two));
        let readers = [take_one(&read), take_one(&other_read), take_one(&read)];
        assert!(readers.iter().all(|lock| lock.slot().is_none()));
        assert!(!is_free(&write) && !is_free(&other_write));
        assert!(one.try_acquire(NAME, TTL).unwrap().is_none());
        for reader in readers {
            assert!(!is_free(&write));
            reader.release().unwrap();
        }
        let writer = take_one(&write);
        assert!(!is_free(&other_write) && !is_free(&read) && !is_free(&other_read));
        assert!(two.try_acquire(NAME, TTL).unwrap().is_none());
        writer.release().unwrap();
        let plain = take(&one, NAME);
        assert!(!is_free(&read) && !is_free(&write));
        plain.release().unwrap();
        assert!(is_free(&other_read));
        nothing_is_left(&servers);
    }
}

#[test]
fn a_read_lock_and_a_write_lock_do_what_a_lock_does() {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    for lockable in both(&redlock) {
        let mut lock = take_one(&lockable);
        assert_eq!(lock.resources().collect::<Vec<_>>(), [NAME.as_bytes()]);
        lock.extend(2 * TTL).unwrap();
        assert!(lock.remaining() > TTL);
        let first = lock.fencing_token().unwrap();
        let (token, left) = (*lock.token(), lock.remaining());
        lock.leak();
        let mut resumed = lockable.resume(token, left).unwrap();
        resumed.extend(3 * TTL).unwrap();
        assert!(resumed.fencing_token().unwrap() > first);
        let kept = resumed.keep_alive(Duration::from_secs(3600)).unwrap();
        assert_eq!(kept.resources().count(), 1);
        kept.release().unwrap();
        eventually("it is free", || servers.iter().all(|one| !one.exists(NAME)));
    }
}

/// A reader that has ended keeps writers out for its own ttl, whatever other readers have.
#[test]
fn each_reader_ends_with_its_own_ttl() {
    let servers = Server::several(3);
    let [read, write] = both(&connected(&servers));
    take_one(&read).release().unwrap();
    read.try_acquire(ms(1500)).unwrap().unwrap().leak();
    take_one(&read).release().unwrap();
    let began = Instant::now();
    write.acquire(TTL).unwrap().release().unwrap();
    assert!(
        (ms(500)..ms(10_000)).contains(&began.elapsed()),
        "{:?}",
        began.elapsed()
    );
}

/// With a reader here at any time, a writer would wait for ever.
#[test]
fn a_writer_that_waits_keeps_out_readers_that_come_later_and_takes_its_mark_back() {
    let servers = Server::several(3);
    let [one, two] = [(); 2].map(|()| connected(&servers));
    let ([read, _], [_, write]) = (both(&one), both(&two));
    let reader = take_one(&read);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| write.acquire(TTL));
        eventually("newcomers are kept out", || !is_free(&read));
        reader.release().unwrap();
        writer.join().unwrap().unwrap().release().unwrap();
    });
    eventually("they are let in again", || is_free(&read));
    // And so where the writer gives up.
    let reader = take_one(&read);
    let given_up = write.acquire_within(TTL, ms(50));
    assert!(matches!(given_up, Err(Error::Busy(_))));
    eventually("there is no mark", || {
        let is_mark = |key: &String| key.ends_with(":ww");
        servers.iter().all(|one| !one.keys().iter().any(is_mark))
    });
    assert!(is_free(&read));
    reader.release().unwrap();
}

#[test]
fn a_writer_that_is_killed_keeps_readers_out_for_a_time_only() {
    let servers = Server::several(3);
    let [read, _] = both(&connected(&servers));
    let reader = take_one(&read);
    let mark = "1 0123456789abcdef redlock:00000000000000000000000000000000";
    for server in &servers {
        server.command(&["SET", "{prices}:redlock:ww", mark, "PX", "1500"]);
    }
    assert!(!is_free(&read));
    reader.release().unwrap();
    read.acquire(TTL).unwrap().release().unwrap();
    // What another program has there is neither heeded nor touched.
    for server in &servers {
        server.command(&["SET", "{prices}:redlock:ww", "x"]);
    }
    let [read, write] = both(&connected(&servers));
    let reader = take_one(&read);
    assert!(write.acquire_within(TTL, ms(50)).is_err());
    reader.release().unwrap();
    take_one(&write).release().unwrap();
    assert!(
        servers
            .iter()
            .all(|server| server.exists("{prices}:redlock:ww"))
    );
}

/// No lock of this crate can be there, but one of another program.
#[test]
fn a_lock_that_has_the_key_of_the_mark_is_left_alone_and_the_mark_comes_behind_it() {
    let servers = Server::several(3);
    let [reads, writes] = both(&unhurried_connected(&servers));
    let reader = take_one(&reads);
    let named = beside(NAME, "ww");
    let token = "a token of 20 bytes.";
    for server in &servers {
        server.command(&["SET", &named, token, "PX", "60000"]);
    }
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| writes.acquire_within(TTL, TTL).unwrap());
        in_queue(&servers, NAME, 1);
        for server in &servers {
            let left: String = redis::from_redis_value(server.command(&["GET", &named])).unwrap();
            assert_eq!(left, token);
            server.command(&["DEL", &named]);
        }
        eventually("the writer's mark is there", || {
            servers.iter().all(|server| server.exists(&named))
        });
        reader.release().unwrap();
        waiter.join().unwrap().release().unwrap();
    });
    nothing_is_left(&servers);
}

/// They wait in the queue on the nodes, which a plain release empties.
#[test]
fn plain_waiters_are_notified_by_a_writer() {
    let servers = Server::several(3);
    let [one, two] = [(); 2].map(|()| unhurried_connected(&servers));
    let [_, write] = both(&one);
    let options = unhurried().retry_delay(Duration::from_secs(60), Duration::from_secs(60));
    let two = two.with_options(options).unwrap();
    all_vote(&two, &servers);
    let writer = take_one(&write);
    std::thread::scope(|scope| {
        let plain = scope.spawn(|| two.acquire_within(NAME, TTL, Duration::from_secs(50)));
        in_queue(&servers, NAME, 1);
        writer.release().unwrap();
        plain.join().unwrap().unwrap().release().unwrap();
    });
}

#[test]
fn one_name_is_one_kind_of_lock() {
    let servers = Server::several(3);
    let redlock = unhurried_connected(&servers);
    let pool = redlock.semaphore(NAME, 2).unwrap();
    let permit = take_one(&pool);
    for lockable in both(&redlock) {
        let text = other_kind(lockable.acquire(TTL));
        assert!(text.contains("is in use as a semaphore (node "), "{text}");
    }
    permit.release().unwrap();
    let reader = take_one(&both(&redlock)[0]);
    let text = other_kind(pool.acquire(TTL));
    assert!(text.contains("is in use as a read-write lock"), "{text}");
    reader.release().unwrap();
    for server in &servers {
        server.command(&["RPUSH", NAME, "x"]);
    }
    for lockable in both(&redlock) {
        let text = other_kind(lockable.try_acquire(TTL));
        assert!(text.contains("holds data that is no lock"), "{text}");
    }
    assert!(servers.iter().all(|server| server.exists(NAME)));
}

#[test]
fn readers_and_writers_survive_restarts_of_a_minority_and_are_refilled() {
    let mut servers = Server::several(3);
    let options = options().max_extensions(u32::MAX);
    let redlock = connected(&servers).with_options(options).unwrap();
    for lockable in both(&redlock) {
        let mut lock = take_one(&lockable);
        servers[2].kill();
        lock.extend(2 * TTL).unwrap();
        servers[2].restart();
        eventually("it is there again", || {
            lock.extend(2 * TTL).unwrap();
            servers[2].exists(NAME)
        });
        servers[0].kill();
        lock.extend(2 * TTL).unwrap();
        lock.release().unwrap();
        servers[0].restart();
        eventually("it is free", || servers.iter().all(|one| !one.exists(NAME)));
        all_vote(&redlock, &servers);
    }
}

/// Takes locks until then. A reader has a file of its own meanwhile, and meets no writer's; a writer's is the only one.
fn contend(redlock: &Redlock, dir: &Path, writes: bool, end: Instant) -> u32 {
    let [read, write] = both(redlock);
    let own = dir.join(format!(
        "{}-{}",
        if writes { "writer" } else { "reader" },
        std::process::id()
    ));
    let mut count = 0;
    while Instant::now() < end {
        let lock = if writes { &write } else { &read }.acquire(TTL).unwrap();
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&own)
            .unwrap();
        for entry in read_dir(dir).unwrap() {
            let other = entry.unwrap().path();
            let beside = other != own
                && (writes
                    || other
                        .file_name()
                        .unwrap()
                        .to_string_lossy()
                        .starts_with("writer"));
            assert!(!beside, "{} beside {}", other.display(), own.display());
        }
        std::thread::sleep(ms(1));
        remove_file(&own).unwrap();
        lock.release().unwrap();
        count += 1;
    }
    count
}

fn eight_processes(test: &str, time: Duration) {
    if let Some(role) = role() {
        let nodes = std::env::var("NODES").unwrap();
        let redlock = Redlock::new(nodes.split(',')).unwrap();
        let redlock = redlock
            .with_options(options().node_timeout(5 * NODE_TIMEOUT))
            .unwrap();
        let dir = std::env::var("DIR").unwrap();
        let end = Instant::now() + time;
        let count = contend(&redlock, Path::new(&dir), role == "writer", end);
        assert!(count > 0, "a {role} starves");
        return;
    }
    for nodes in [1, 3, 5] {
        let (servers, dir) = (Server::several(nodes), TempDir::new());
        let start = |at: u32| {
            another_process(test, if at < 2 { "writer" } else { "reader" })
                .arg("--include-ignored")
                .env("NODES", urls(&servers).join(","))
                .env("DIR", dir.path())
                .spawn()
                .unwrap()
        };
        let mut processes: Vec<_> = (0..8).map(start).collect();
        for process in &mut processes {
            assert!(process.wait().unwrap().success(), "{nodes} nodes");
        }
        assert!(servers[0].calls("evalsha") > 100, "they did nothing");
        nothing_is_left(&servers);
    }
}

#[test]
fn eight_processes_never_read_beside_a_writer_and_none_starves() {
    let test = "eight_processes_never_read_beside_a_writer_and_none_starves";
    eight_processes(test, Duration::from_secs(3));
}

#[test]
#[ignore = "a minute and a half"]
fn eight_processes_never_read_beside_a_writer_and_none_starves_for_long() {
    let test = "eight_processes_never_read_beside_a_writer_and_none_starves_for_long";
    eight_processes(test, Duration::from_secs(30));
}

/// The key must not outlast a member that is gone: that would prolong all others.
#[test]
fn a_release_that_may_not_set_the_end_of_the_key_is_refused_as_a_whole() {
    let server = Server::start();
    let rights = ["reset", "on", ">p", "~*", "&*", "+@all"];
    server.command(&[&["ACL", "SETUSER", "u"], &rights[..]].concat());
    let redlock = Redlock::new(server.url_for("u", "p")).unwrap();
    let redlock = redlock.with_options(unhurried()).unwrap();
    let [read, write] = both(&redlock);
    let long = read.try_acquire(TTL).unwrap().expect("it is free");
    let second = Duration::from_secs(1);
    let ended = Instant::now() + second;
    read.try_acquire(second)
        .unwrap()
        .expect("it is shared")
        .leak();
    server.command(&["ACL", "SETUSER", "u", "-pexpireat"]);
    let _ = long.release();
    server.command(&["ACL", "SETUSER", "u", "+pexpireat"]);
    let writer = write.acquire_within(TTL, 20 * second).unwrap();
    assert!(Instant::now() > ended);
    writer.release().unwrap();
}
