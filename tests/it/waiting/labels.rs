//! Labels of those that wait, behind their channels in the queues: they are shown, and decide nothing.

use crate::support;

use std::time::{Duration, Instant};

use redlock_sync::{Error, Inspection, ListedLock, Lock, Options, Redlock};
use support::*;

/// The minimum sleep of a waiter that is not woken.
const POLL: Duration = Duration::from_secs(10);
/// The longest label, with spaces, and with what stands before one.
const LONG: &str = "web-3 redlock:3f 5fé and all that a label may have, 64 bytes: 1";

fn patient() -> Options {
    unhurried().retry_delay(POLL, POLL)
}

fn process(urls: &[String], options: Options) -> Redlock {
    let redlock = Redlock::new(urls).unwrap().with_options(options).unwrap();
    assert!(redlock.connect().unwrap().is_none());
    redlock
}

fn labels(inspection: &Inspection) -> Vec<&str> {
    inspection.waiting_labels().collect()
}

/// The README's user, and the URLs for it.
fn restricted(servers: &[Server]) -> Vec<String> {
    let readme = include_str!("../../../README.md");
    let (_, rights) = readme
        .split_once("ACL SETUSER locks on '>PASSWORD' ")
        .unwrap();
    let rights = rights.lines().next().unwrap().replace('\'', "");
    let user = format!("ACL SETUSER locks on >PASSWORD {rights}");
    for server in servers {
        server.command(&user.split(' ').collect::<Vec<_>>());
    }
    let url = |server: &Server| server.url_for("locks", "PASSWORD");
    servers.iter().map(url).collect()
}

/// How a lock of each kind is acquired: by the one that has it, and by those that wait.
type Acquire = fn(&Redlock, &str, bool) -> Result<Lock, Error>;

const KINDS: [(&str, Acquire); 5] = [
    ("plain", |redlock, name, _| redlock.acquire(name, TTL)),
    ("permit", |redlock, name, _| {
        redlock.semaphore(name, 1)?.acquire(TTL)
    }),
    ("read", |redlock, name, has| match has {
        true => redlock.write_lock(name)?.acquire(TTL),
        false => redlock.read_lock(name)?.acquire(TTL),
    }),
    ("write", |redlock, name, has| match has {
        true => redlock.read_lock(name)?.acquire(TTL),
        false => redlock.write_lock(name)?.acquire(TTL),
    }),
    ("several", |redlock, name, _| {
        redlock.several([name, "y"])?.acquire(TTL)
    }),
];

#[test]
fn labels_of_waiters_are_shown_and_a_release_wakes_them_whatever_the_kind() {
    assert_eq!(LONG.len(), 64);
    for (nodes, fair) in [(1, false), (3, false), (3, true)] {
        let servers = Server::several(nodes);
        let urls = restricted(&servers);
        let with = |label: &str| process(&urls, patient().prefix("shop:").fair(fair).label(label));
        let (holder, waiters) = (with("web-1"), ["web-2:4711", "", LONG].map(with));
        for (kind, acquire) in KINDS {
            let lock = acquire(&holder, kind, true).unwrap();
            std::thread::scope(|scope| {
                let mut count = 0;
                let waits = waiters.each_ref().map(|redlock| {
                    let waits = scope.spawn(|| acquire(redlock, kind, false).unwrap().release());
                    count += 1;
                    in_queue(&servers, &format!("shop:{kind}"), count);
                    waits
                });
                let inspection = holder.inspect(kind).unwrap();
                assert_eq!(inspection.waiting(), Some(3), "{kind}");
                assert_eq!(labels(&inspection), ["web-2:4711", LONG], "{kind}");
                let listing = holder.list(None).unwrap();
                let of_kind = |lock: &&ListedLock| lock.name() == kind.as_bytes();
                let listed = listing.locks().find(of_kind).unwrap();
                let shown: Vec<&str> = listed.waiting_labels().collect();
                assert_eq!(shown, ["web-2:4711", LONG], "{kind}");
                let released = Instant::now();
                lock.release().unwrap();
                for thread in waits {
                    thread.join().unwrap().unwrap();
                }
                let took = released.elapsed();
                assert!(took < POLL / 2, "{kind}: {took:?}");
            });
        }
        for server in &servers {
            let errors: String =
                redis::from_redis_value(server.command(&["INFO", "errorstats"])).unwrap();
            assert!(!errors.contains("NOPERM"), "{errors}");
        }
    }
}

/// Members that other programs, and earlier versions without labels, may have left in the queue: a release passes over
/// those that nobody listens to, and none is shown.
#[test]
fn what_else_is_in_a_queue_is_counted_and_neither_shown_nor_in_the_way() {
    let servers = Server::several(3);
    let holder = connected(&servers);
    let labelled = |label: &str| {
        let redlock = connected(&servers);
        redlock.with_options(patient().label(label)).unwrap()
    };
    let (waiter, unlabelled) = (labelled("web-2:4711"), labelled(""));
    let odd: [&[u8]; 11] = [
        b"",
        b" ",
        b" web-3",
        b"web-3",
        b"redlock: web-3",
        b"redlock:3f",
        b"redlock:3f ",
        b"redlock:3f \x1b[2J\x1b]0;root\x07",
        b"redlock:3f a\r\nb",
        b"redlock:3f \xff\xfe\0",
        "redlock:3f \u{202e}3-bew".as_bytes(),
    ];
    for ((kind, acquire), long) in KINDS.iter().zip([false, true, false, true, false]) {
        let lock = acquire(&holder, kind, true).unwrap();
        std::thread::scope(|scope| {
            let mut count = 0;
            let waits = [&waiter, &unlabelled].map(|redlock| {
                let waits = scope.spawn(move || acquire(redlock, kind, false).unwrap().release());
                count += 1;
                in_queue(&servers, kind, count);
                waits
            });
            // They have waited longer than all others.
            let queue = format!("{{{kind}}}:redlock:w");
            let too_long = [b"redlock:3f ", &[b'x'; 1_000_000][..]].concat();
            for member in odd.into_iter().chain(long.then_some(&too_long[..])) {
                for server in &servers {
                    server.command_table(&[b"ZADD", queue.as_bytes(), b"1", member]);
                }
            }
            // By what is before the label: these are of four processes.
            let count = 4 + 2;
            let inspection = holder.inspect(kind).unwrap();
            assert_eq!(inspection.waiting(), Some(count));
            assert_eq!(labels(&inspection), ["web-2:4711"]);
            let listing = holder.list(None).unwrap();
            let of_kind = |lock: &&ListedLock| lock.name() == kind.as_bytes();
            let listed = listing.locks().find(of_kind).unwrap();
            assert_eq!(listed.waiting(), Some(count));
            assert_eq!(listed.waiting_labels().collect::<Vec<_>>(), ["web-2:4711"]);
            let released = Instant::now();
            lock.release().unwrap();
            for thread in waits {
                thread.join().unwrap().unwrap();
            }
            let took = released.elapsed();
            assert!(took < POLL / 2, "{took:?}");
        });
    }
}

/// A waiter that gives up takes its label along, also where threads of its process have other labels.
#[test]
fn one_that_gives_up_is_no_longer_shown() {
    let servers = Server::several(3);
    let lock = take(&unhurried_connected(&servers), "x");
    let one = unhurried_connected(&servers)
        .with_options(patient().label("one"))
        .unwrap();
    let two = one.clone().with_options(patient().label("two")).unwrap();
    let looks = unhurried_connected(&servers);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| one.acquire_within("x", TTL, ms(1500)));
        in_queue(&servers, "x", 1);
        let second = waiter(scope, || two.acquire("x", TTL).unwrap().release());
        assert_eq!(labels(&looks.inspect("x").unwrap()), ["one"]);
        assert!(matches!(first.join().unwrap(), Err(Error::Busy(_))));
        // Only the first thread of a process is in the queue.
        eventually("the second is", || {
            let inspection = looks.inspect("x").unwrap();
            (inspection.waiting(), labels(&inspection)) == (Some(1), vec!["two"])
        });
        lock.release().unwrap();
        second.join().unwrap().unwrap();
    });
    assert_eq!(looks.inspect("x").unwrap().waiting(), Some(0));
}
