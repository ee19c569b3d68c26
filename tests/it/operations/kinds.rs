//! What operators see of semaphores, read-write locks and locks on several names, and what they can do with them.

use crate::support;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redlock_sync::{
    Error, Event, Fingerprint, Holder, ListedLock, Lock, LockState, Lockable, NodeState, Options,
    Problem, Redlock, Severity,
};
use support::*;

/// Nothing here depends on a node's being away.
fn patient() -> Options {
    options().node_timeout(ms(5000))
}

fn client(servers: &[Server]) -> Redlock {
    let redlock = Redlock::new(urls(servers)).unwrap();
    redlock.with_options(patient()).unwrap()
}

/// With a connection to each node, and with this label.
fn labelled(servers: &[Server], label: &str) -> Redlock {
    let redlock = client(servers);
    all_vote(&redlock, servers);
    redlock.with_options(patient().label(label)).unwrap()
}

fn now(lockable: &Lockable) -> Lock {
    lockable.try_acquire(TTL).unwrap().expect("there is room")
}

fn members(server: &Server, name: &str) -> i64 {
    redis::from_redis_value(server.command(&["ZCARD", name])).unwrap()
}

/// All of them are on all nodes. (A grant that did not count and is not undone yet is on one alone.)
fn settled(servers: &[Server], name: &str, count: i64) {
    // Each node has them in the order in which they arrived there.
    let all = |server: &Server| {
        let all = server.command(&["ZRANGE", name, "0", "-1"]);
        redis::from_redis_value::<BTreeSet<Vec<u8>>>(all).unwrap()
    };
    eventually("all nodes have them", || {
        let first = all(&servers[0]);
        let is_there = |server: &Server| members(server, name) == count && all(server) == first;
        servers.iter().all(is_there)
    });
}

fn state(redlock: &Redlock, name: &str) -> LockState {
    redlock.inspect(name).unwrap().state()
}

fn only_holder(redlock: &Redlock, name: &str) -> Holder {
    let state = state(redlock, name);
    let holders: Vec<&Holder> = state.holders().map(|(holder, _)| holder).collect();
    assert_eq!(holders.len(), 1, "{state:?}");
    holders[0].clone()
}

fn fingerprints<'a>(locks: impl IntoIterator<Item = &'a Lock>) -> Vec<Fingerprint> {
    let locks = locks.into_iter();
    locks.map(|lock| lock.token().fingerprint()).collect()
}

#[test]
fn permits_are_shown_by_slot_with_their_holders_and_times() {
    let mut servers = Server::several(3);
    let operator = client(&servers);
    let gpus = ["web-1", "web-2", "web-3"].map(|label| {
        let redlock = labelled(&servers, label);
        redlock.semaphore("gpus", 4).unwrap()
    });
    let mut locks: Vec<Lock> = gpus.iter().map(now).collect();
    settled(&servers, "gpus", 3);
    locks.sort_by_key(Lock::slot);
    // One node's answer is not needed.
    servers[1].kill();
    let inspection = operator.inspect("gpus").unwrap();
    let LockState::Permits { holders, .. } = inspection.state() else {
        panic!("{inspection:?}");
    };
    assert_eq!(holders.len(), 3);
    for (lock, (holder, left)) in locks.iter().zip(&holders) {
        assert_eq!(holder.fingerprint(), lock.token().fingerprint());
        assert_eq!(holder.slot(), lock.slot());
        assert!(holder.label().unwrap().starts_with("web-"));
        assert!(*left <= TTL && *left > TTL / 2, "{left:?}");
    }
    for (node, _, seen) in inspection.nodes() {
        match seen {
            NodeState::Permits { holders: found, .. } => {
                let both = found.iter().zip(&holders);
                assert!(both.clone().all(|((one, _), (other, _))| one == other));
                assert_eq!(both.count(), 3);
            }
            NodeState::Failed(_) => assert_eq!(node, 1),
            other => panic!("{other:?}"),
        }
    }
    let last = locks.pop().unwrap();
    for lock in locks {
        lock.release().unwrap();
    }
    assert_eq!(only_holder(&operator, "gpus").slot(), last.slot());
    last.release().unwrap();
    assert_eq!(state(&operator, "gpus"), LockState::Free);
}

#[test]
fn readers_are_shown_and_a_writer_and_each_of_several_names_as_a_lock() {
    let servers = Server::several(3);
    let operator = client(&servers);
    let redlock = labelled(&servers, "web-1");
    let prices = redlock.read_lock("prices").unwrap();
    let short = prices.acquire(TTL / 2).unwrap();
    let long = now(&prices);
    settled(&servers, "prices", 2);
    let LockState::Readers { holders, .. } = state(&operator, "prices") else {
        panic!("no readers");
    };
    let found: Vec<Fingerprint> = holders
        .iter()
        .map(|(holder, _)| holder.fingerprint())
        .collect();
    // The last to end first.
    assert_eq!(found, fingerprints([&long, &short]));
    assert!(
        holders
            .iter()
            .all(|(holder, _)| holder.is_reader() && holder.label() == Some("web-1"))
    );
    drop((short, long));

    let write = redlock.write_lock("prices").unwrap().acquire(TTL).unwrap();
    let several = now(&redlock.several(["b", "a"]).unwrap());
    for (name, lock) in [("prices", &write), ("a", &several), ("b", &several)] {
        let holder = only_holder(&operator, name);
        assert_eq!(holder.fingerprint(), lock.token().fingerprint());
        assert_eq!((holder.label(), holder.slot()), (Some("web-1"), None));
        assert!(!holder.is_reader());
    }
}

/// A set that a test makes: a member, and when it ends from now on.
fn plant(server: &Server, name: &str, head: &str, token: u8, left: i64) {
    let time: Vec<i64> = redis::from_redis_value(server.command(&["TIME"])).unwrap();
    let end = (time[0] * 1000 + left).to_string();
    let member = [head.as_bytes(), &[token; 20]].concat();
    server.command_table(&[b"ZADD", name.as_bytes(), end.as_bytes(), &member]);
}

#[test]
fn what_is_over_or_damaged_or_of_others_is_no_holder() {
    let servers = Server::several(1);
    let operator = client(&servers);
    let server = &servers[0];
    plant(server, "over", "redlock:r000", 7, -1000);
    assert_eq!(state(&operator, "over"), LockState::Free);
    plant(server, "over", "redlock:r000", 8, 60_000);
    assert_eq!(
        only_holder(&operator, "over").fingerprint().to_string(),
        "08080808"
    );
    // The end of the set is not that of its members.
    plant(server, "damaged", "redlock:s001", 7, 50_000);
    plant(server, "damaged", "by hand", 8, 60_000);
    assert_eq!(only_holder(&operator, "damaged").slot(), Some(1));
    plant(server, "others", "job", 7, 60_000);
    server.command(&["RPUSH", "list", "redlock:s001"]);
    for name in ["others", "list"] {
        let state = state(&operator, name);
        assert!(matches!(state, LockState::Blocked { .. }), "{state:?}");
    }
    let listing = operator.list(None).unwrap();
    let names: Vec<&[u8]> = listing.locks().map(ListedLock::name).collect();
    assert_eq!(names, [&b"damaged"[..], b"over"]);
    assert_eq!(operator.list(Some("*")).unwrap().locks().count(), 4);
}

/// More than an answer has room for: those that last longest are shown.
#[test]
fn many_of_a_thousand_readers_are_shown() {
    let servers = Server::several(1);
    let operator = client(&servers);
    let script = "for i = 1, 1000 do redis.call('ZADD', KEYS[1], ARGV[1] + i, \
        'redlock:r000' .. string.char(i % 256, i / 256) .. string.rep('\\200', 18) .. ARGV[2]) end";
    let time: Vec<i64> = redis::from_redis_value(servers[0].command(&["TIME"])).unwrap();
    let end = ((time[0] + 600) * 1000).to_string();
    let label = [&b"\0redlock:12345"[..], &[b'x'; 64]].concat();
    servers[0].command_table(&[
        b"EVAL",
        script.as_bytes(),
        b"1",
        b"a",
        end.as_bytes(),
        &label,
    ]);
    let LockState::Readers { holders, .. } = state(&operator, "a") else {
        panic!("no readers");
    };
    assert!((400..1000).contains(&holders.len()), "{}", holders.len());
    assert!(holders.is_sorted_by_key(|(_, left)| std::cmp::Reverse(*left)));
    assert_eq!(operator.list(None).unwrap().locks().count(), holders.len());
}

#[test]
fn a_broken_permit_or_read_lock_is_one_of_them_and_its_holder_learns_it() {
    let servers = Server::several(3);
    let (redlock, operator) = (labelled(&servers, "web"), client(&servers));
    for lockable in [
        redlock.semaphore("pool", 2).unwrap(),
        redlock.read_lock("prices").unwrap(),
    ] {
        let name = String::from_utf8(lockable.resources().next().unwrap().to_vec()).unwrap();
        let (mut broken, mut other) = (now(&lockable), now(&lockable));
        settled(&servers, &name, 2);
        let seen = state(&operator, &name);
        let mut holders = seen.holders().map(|(holder, _)| holder);
        let of = broken.token().fingerprint();
        let holder = holders.find(|holder| holder.fingerprint() == of).unwrap();
        assert!(operator.break_lock(&name, holder).unwrap());
        settled(&servers, &name, 1);
        assert!(!operator.break_lock(&name, holder).unwrap(), "once");
        other.extend(TTL).unwrap();
        assert!(matches!(broken.extend(TTL), Err(Error::Lost(_))));
        let next = now(&lockable);
        drop((next, other));
        eventually("nothing is left", || {
            servers.iter().all(|server| !server.exists(&name))
        });
    }
}

#[test]
fn a_broken_name_of_several_loses_the_lock_on_all() {
    let servers = Server::several(3);
    let (redlock, operator) = (labelled(&servers, ""), client(&servers));
    let mut lock = now(&redlock.several(["a", "b"]).unwrap());
    let holder = only_holder(&operator, "a");
    assert!(operator.break_lock("a", &holder).unwrap());
    assert!(matches!(lock.extend(TTL), Err(Error::Lost(_))));
    drop(lock);
    eventually("nothing is left", || {
        servers.iter().all(|server| server.keys().is_empty())
    });
}

#[test]
fn each_permit_and_reader_is_listed_and_what_lies_beside_them_is_not() {
    let servers = Server::several(3);
    let redlock = labelled(&servers, "web");
    let pool = redlock.semaphore("pool", 3).unwrap();
    let permits = [now(&pool), now(&pool)];
    let reader = redlock.read_lock("prices").unwrap().acquire(TTL).unwrap();
    permits[0].fencing_token().unwrap();
    let several = now(&redlock.several(["a", "b"]).unwrap());
    settled(&servers, "pool", 2);
    settled(&servers, "prices", 1);
    // A mark of a writer that waits.
    let writer = redlock.write_lock("prices").unwrap();
    let waited = writer.acquire_within(TTL, ms(100));
    assert!(matches!(waited, Err(Error::Busy(_))));
    servers[0].command(&[
        "SET",
        "{prices}:redlock:ww",
        "1700000000000 0123456789abcdef",
        "PX",
        "60000",
    ]);

    plant(&servers[2], "leftover", "redlock:s001", 7, 60_000);
    for server in &servers {
        plant(server, "endless", "redlock:r000", 7, 60_000);
    }
    servers[2].command(&["PEXPIRE", "leftover", "60000"]);
    // Between two looks it waits for node timeouts.
    let listing = support::redlock(&servers).list(None).unwrap();
    let row = |lock: &ListedLock| {
        let name = String::from_utf8(lock.name().to_vec()).unwrap();
        let holder = lock.holder().unwrap();
        (
            name,
            holder.slot(),
            holder.is_reader(),
            lock.nodes().count(),
        )
    };
    let rows: Vec<_> = listing.locks().map(row).collect();
    let mut slots: Vec<Option<u32>> = permits.iter().map(Lock::slot).collect();
    slots.sort();
    let expected = [
        ("a", None, false, 3),
        ("b", None, false, 3),
        ("endless", None, true, 3),
        ("leftover", Some(1), false, 1),
        ("pool", slots[0], false, 3),
        ("pool", slots[1], false, 3),
        ("prices", None, true, 3),
    ];
    let expected = expected.map(|(name, slot, reads, on)| (name.to_owned(), slot, reads, on));
    assert_eq!(rows, expected);
    let problems = listing.locks().filter_map(ListedLock::problem);
    assert_eq!(
        problems.collect::<Vec<_>>(),
        [Problem::NoExpiry, Problem::Minority]
    );
    let found = listing.locks().filter_map(ListedLock::holder);
    let found: BTreeSet<String> = found
        .map(|holder| holder.fingerprint().to_string())
        .collect();
    for lock in permits.iter().chain([&reader, &several]) {
        assert!(found.contains(&lock.token().fingerprint().to_string()));
    }
    let permit = listing.locks().find(|lock| lock.name() == b"pool").unwrap();
    assert!(permit.remaining().unwrap() > Duration::ZERO && permit.remaining().unwrap() <= TTL);
}

#[test]
fn a_list_by_a_user_without_the_right_to_read_sets_shows_the_plain_locks() {
    let servers = Server::several(1);
    let redlock = labelled(&servers, "web");
    let permit = now(&redlock.semaphore("pool", 3).unwrap());
    let plain = take(&redlock, "plain");
    let names = || -> Vec<String> {
        let listing = redlock.list(None).unwrap();
        assert_eq!(listing.failed().count(), 0);
        let name = |lock: &ListedLock| String::from_utf8(lock.name().to_vec()).unwrap();
        listing.locks().map(name).collect()
    };
    assert_eq!(names(), ["plain", "pool"]);
    servers[0].command(&["ACL", "SETUSER", "default", "-zrange"]);
    assert_eq!(names(), ["plain"]);
    servers[0].command(&["ACL", "SETUSER", "default", "+zrange"]);
    plain.release().unwrap();
    permit.release().unwrap();
}

/// What an observer was told, in words.
fn told(event: &Event<'_>) -> Option<String> {
    let (what, resource) = match event {
        Event::Acquired { resource, .. } => ("acquired".to_owned(), resource),
        Event::NotAcquired {
            resource, error, ..
        } => {
            let of = error
                .resource()
                .map_or("none", |name| str::from_utf8(name).unwrap());
            (
                format!("not acquired (busy: {}, {of})", error.is_busy()),
                resource,
            )
        }
        Event::Extended { resource, .. } => ("extended".to_owned(), resource),
        Event::NotExtended { resource, .. } => ("not extended".to_owned(), resource),
        Event::Lost {
            resource, reason, ..
        } => (format!("lost {reason:?}"), resource),
        Event::Ended { resource, how, .. } => (format!("ended {how:?}"), resource),
        // Nodes may be slow to connect at any time.
        _ => return None,
    };
    Some(format!("{what} {}", str::from_utf8(resource).unwrap()))
}

#[test]
fn events_name_the_lock_or_the_first_of_its_names_and_each_permit_and_reader_is_one() {
    let servers = Server::several(3);
    let (all, operator) = (Arc::new(Mutex::new(Vec::new())), client(&servers));
    let heard = all.clone();
    let note = move |event: &Event<'_>| heard.lock().unwrap().extend(told(event));
    let redlock = client(&servers).with_observer(note);
    all_vote(&redlock, &servers);
    let events = || std::mem::take(&mut *all.lock().unwrap());
    events();
    let lines = |name: &str, what: &[&str]| -> Vec<String> {
        what.iter().map(|what| format!("{what} {name}")).collect()
    };
    for (lockable, other, name) in [
        (
            redlock.semaphore("pool", 1),
            redlock.semaphore("pool", 1),
            "pool",
        ),
        (
            redlock.read_lock("prices"),
            redlock.write_lock("prices"),
            "prices",
        ),
        (
            redlock.write_lock("prices"),
            redlock.read_lock("prices"),
            "prices",
        ),
        (
            redlock.several(["b", "a"]),
            redlock.several(["c", "b", "a"]),
            "a",
        ),
    ] {
        let (lockable, other) = (lockable.unwrap(), other.unwrap());
        let mut lock = now(&lockable);
        lock.extend(2 * TTL).unwrap();
        let denied = other.try_acquire(TTL).unwrap();
        assert!(denied.is_none());
        lock.release().unwrap();
        let busy = format!("not acquired (busy: true, {name})");
        let expected = ["acquired", "extended", &busy, "ended Released"];
        assert_eq!(events(), lines(name, &expected), "{lockable:?}");

        let mut lock = now(&lockable);
        let holder = only_holder(&operator, name);
        assert!(operator.break_lock(name, &holder).unwrap());
        assert!(lock.extend(2 * TTL).is_err());
        drop(lock);
        let expected = ["acquired", "not extended", "lost Deleted", "ended WasLost"];
        let mut heard = events();
        heard.sort_by_key(|one| expected.iter().position(|word| one.starts_with(word)));
        assert_eq!(heard, lines(name, &expected), "{lockable:?}");
        eventually("nothing is left", || {
            servers.iter().all(|server| server.keys().is_empty())
        });
    }
    // Two permits are two locks, and another kind of lock is none.
    let pool = redlock.semaphore("pool", 2).unwrap();
    let permits = [now(&pool), now(&pool)];
    assert!(redlock.read_lock("pool").unwrap().acquire(TTL).is_err());
    drop(permits);
    let other = "not acquired (busy: false, pool)";
    let expected = [
        "acquired",
        "acquired",
        other,
        "ended Dropped",
        "ended Dropped",
    ];
    assert_eq!(events(), lines("pool", &expected));
}

/// The README's user has what plain locks need.
#[test]
fn a_check_of_a_kind_tries_what_it_needs_and_that_of_a_plain_lock_does_not() {
    let servers = Server::several(1);
    let user = "ACL SETUSER few on >secret resetkeys ~shop:* ~{shop:* resetchannels &redlock:* -@all \
        +set +get +del +pttl +pexpire +eval +evalsha +script|load +time +strlen +getrange +scan +exists +zadd +zrem \
        +zrange +zpopmin +publish +subscribe +ping +info +config|get";
    servers[0].command(&user.split_whitespace().collect::<Vec<_>>());
    let url = servers[0].url().replace("://", "://few:secret@");
    let redlock = Redlock::new([url])
        .unwrap()
        .with_options(patient())
        .unwrap();
    let faults = |lockable: Option<&Lockable>| -> Vec<String> {
        let report = match lockable {
            None => redlock.check("shop:check").unwrap(),
            Some(lockable) => lockable.check().unwrap(),
        };
        let faults = report
            .findings()
            .filter(|one| one.severity() == Severity::Fault);
        let faults: Vec<String> = faults.map(ToString::to_string).collect();
        assert_eq!(report.is_fit(), faults.is_empty(), "{report}");
        faults
    };
    assert_eq!(faults(None), [""; 0]);
    let kinds = [
        redlock.semaphore("shop:check", 2).unwrap(),
        redlock.read_lock("shop:check").unwrap(),
        redlock.write_lock("shop:check").unwrap(),
        redlock.several(["shop:check", "shop:check:2"]).unwrap(),
    ];
    for kind in &kinds {
        let faults = faults(Some(kind));
        assert!(
            faults.len() == 1 && faults[0].contains("the lock is refused"),
            "{kind:?}: {faults:?}"
        );
    }
    servers[0].command(&[
        "ACL",
        "SETUSER",
        "few",
        "+type",
        "+zscore",
        "+zremrangebyscore",
    ]);
    let few = [true, true, false, false];
    for (kind, few) in kinds.iter().zip(few) {
        let faults = faults(Some(kind));
        assert_eq!(faults.len(), usize::from(few), "{kind:?}: {faults:?}");
        assert!(
            faults
                .iter()
                .all(|fault| fault.contains("the lock is refused")),
            "{faults:?}"
        );
    }
    servers[0].command(&["ACL", "SETUSER", "few", "+pexpireat"]);
    for kind in &kinds {
        assert_eq!(faults(Some(kind)), [""; 0], "{kind:?}");
    }
    eventually("nothing is left", || servers[0].keys().is_empty());
    // That name is in use.
    let lock = redlock.acquire("shop:check", TTL).unwrap();
    let report = kinds[0].check().unwrap();
    let held = report
        .findings()
        .any(|one| one.to_string().contains("another holder has the lock"));
    assert!(held && !report.is_checked(), "{report}");
    drop(lock);
    let names = String::from_utf8(kinds[3].resources().next().unwrap().to_vec());
    assert_eq!(names.unwrap(), "shop:check");
}

/// They are as good without the keys beside them, which only tell waiters.
#[test]
fn a_check_of_any_kind_of_lock_notes_that_the_keys_beside_it_are_refused() {
    let servers = Server::several(1);
    let user = "ACL SETUSER few on >secret resetkeys ~shop:* &* +@all";
    servers[0].command(&user.split_whitespace().collect::<Vec<_>>());
    let url = servers[0].url().replace("://", "://few:secret@");
    let redlock = Redlock::new([url]).unwrap();
    let redlock = redlock.with_options(patient()).unwrap();
    let checks = [
        redlock.check("shop:d"),
        redlock.semaphore("shop:d", 2).unwrap().check(),
        redlock.read_lock("shop:d").unwrap().check(),
        redlock.write_lock("shop:d").unwrap().check(),
        redlock.several(["shop:d", "shop:e"]).unwrap().check(),
    ];
    for report in checks {
        let report = report.unwrap();
        assert!(report.is_fit() && report.is_checked(), "{report}");
        let noted = "the keys beside a lock, such as \"{shop:d}";
        assert!(report.to_string().contains(noted), "{report}");
    }
    eventually("nothing is left", || servers[0].keys().is_empty());
}
