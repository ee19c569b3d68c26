//! What errors say of the lock: its name, and the times that are known.

use crate::support;

use std::time::Duration;

use redlock_sync::{Busy, Error, Lock, Redlock};
use support::*;

fn busy(result: Result<Lock, Error>) -> Busy {
    match result {
        Err(Error::Busy(busy)) => busy,
        other => panic!("{other:?}"),
    }
}

fn waits(redlock: &Redlock) -> Busy {
    busy(redlock.acquire_within("a", TTL, ms(600)))
}

/// A wait in vain with such a result. Two replies of three are enough for an answer, and may be those that differ.
fn waits_with(redlock: &Redlock, is_it: impl Fn(&Busy) -> bool) -> Busy {
    let tries = || std::iter::repeat_with(|| waits(redlock)).take(10);
    tries().find(is_it).unwrap_or_else(|| waits(redlock))
}

#[test]
fn a_wait_in_vain_reports_for_how_long_the_holder_has_the_lock() {
    for nodes in [1, 3, 5] {
        let servers = Server::several(nodes);
        let [holder, other] = [(); 2].map(|()| unhurried_connected(&servers));
        let lock = take(&holder, "a");
        let at_once = busy(other.acquire_within("a", TTL, ms(0)));
        assert_eq!((at_once.resource(), at_once.remaining()), (&b"a"[..], None));
        assert_eq!(at_once.to_string(), "another has the lock \"a\"");
        let error = waits(&other);
        let left = error.remaining().unwrap();
        let sooner = lock.remaining().saturating_sub(ms(500));
        assert!(left > sooner && left <= TTL, "{left:?} of {sooner:?}");
        let text = error.to_string();
        assert!(
            text.starts_with("another has the lock \"a\", for "),
            "{text}"
        );
        lock.release().unwrap();
    }
}

/// From the same answers as the time: nothing more is asked.
#[test]
fn a_wait_in_vain_names_its_holder_by_the_label_on_a_majority() {
    for nodes in [1, 3, 5] {
        let servers = Server::several(nodes);
        let label = "web-2: job 4711";
        let labelled = unhurried().label(label);
        let holder = unhurried_connected(&servers)
            .with_options(labelled)
            .unwrap();
        let other = unhurried_connected(&servers);
        let lock = take(&holder, "a");
        let reads: u64 = servers.iter().map(|server| server.calls("getrange")).sum();
        let error = waits(&other);
        assert_eq!(error.label(), Some(label));
        let text = error.to_string();
        let start = "another has the lock \"a\": web-2: job 4711, for ";
        assert!(text.starts_with(start), "{text}");
        let after: u64 = servers.iter().map(|server| server.calls("getrange")).sum();
        assert_eq!(after, reads, "no inspection");
        lock.release().unwrap();
        // Another holder, without a label.
        let lock = take(&unhurried_connected(&servers), "a");
        assert_eq!(waits(&other).label(), None);
        lock.release().unwrap();
    }
}

/// Data of other programs may hold secrets. A majority has to name one holder.
#[test]
fn only_a_label_of_a_holder_that_a_majority_names_is_shown() {
    let servers = Server::several(3);
    let redlock = unhurried_connected(&servers);
    let token = [7; 20];
    let marked = |label: &[u8]| [&token[..], b"\0redlock:12345", label].concat();
    let other = |label: &[u8]| [&[8; 20][..], b"\0redlock:12345", label].concat();
    let long = [b'x'; 65];
    let set = |server: &Server, value: &[u8]| {
        server.command_table(&[b"SET", b"a", value, b"PX", b"60000"]);
    };
    for (values, expected) in [
        (
            [marked(b"web-3"), marked(b"web-3"), other(b"web-4")],
            Some("web-3"),
        ),
        ([marked(b"web-3"), other(b"web-4"), [9; 20].to_vec()], None),
        ([marked(b"a\nb"), marked(b"a\nb"), marked(b"a\nb")], None),
        ([marked(&long), marked(&long), marked(&long)], None),
        ([marked(b"\xff"), marked(b"\xff"), marked(b"\xff")], None),
        ([token.to_vec(), token.to_vec(), token.to_vec()], None),
        // Without the mark.
        (
            [(); 3].map(|()| [&token[..], b"password=hunter2"].concat()),
            None,
        ),
    ] {
        for (server, value) in servers.iter().zip(&values) {
            set(server, value);
        }
        let error = waits_with(&redlock, |error| error.label() == expected);
        assert_eq!(error.label(), expected, "{values:?}");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}

#[test]
fn the_time_left_is_reported_only_for_a_holder_that_a_majority_names_and_that_ends() {
    let set = |servers: &[Server], end: &[&str], values: [&str; 3]| {
        for (server, value) in servers.iter().zip(values) {
            server.command(&[&["SET", "a", value], end].concat());
        }
    };
    let (one, other) = ("aaaaaaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbbbbbb");
    let ends: &[&str] = &["PX", "60000"];
    let servers = Server::several(3);
    let redlock = unhurried_connected(&servers);
    set(&servers, ends, [one, one, other]);
    let error = waits_with(&redlock, |error| error.remaining().is_some());
    assert!(error.remaining().is_some());
    set(&servers, ends, [one, other, "cccccccccccccccccccc"]);
    assert_eq!(waits(&redlock).remaining(), None);
    set(&servers, &[], [one; 3]);
    assert_eq!(waits(&redlock).remaining(), None);
}

#[test]
fn what_is_too_slow_or_over_names_the_lock_and_the_bound() {
    for nodes in [1, 3] {
        let servers = Server::several(nodes);
        let redlock = unhurried_connected(&servers);
        let redlock = redlock.with_options(unhurried().max_extensions(0)).unwrap();
        let mut lock = take(&redlock, "shop:a");
        let Err(Error::TooSlow(slow)) = lock.ensure(2 * TTL) else {
            panic!("there is not so much time");
        };
        assert_eq!((slow.resource(), slow.asked()), (&b"shop:a"[..], 2 * TTL));
        assert!(slow.remaining() >= lock.remaining() && slow.remaining() < TTL);
        match lock.extend(TTL) {
            Err(Error::ExtensionLimit(limit)) => {
                assert_eq!((limit.resource(), limit.limit()), (&b"shop:a"[..], 0));
            }
            other => panic!("{other:?}"),
        }
        for server in &servers {
            server.command(&["DEL", "shop:a"]);
        }
        match lock.release() {
            Err(Error::Lost(lost)) => assert_eq!(lost.resource(), b"shop:a"),
            other => panic!("{other:?}"),
        }
        match redlock.acquire_while("shop:b", TTL, || false) {
            Err(Error::Cancelled(cancelled)) => assert_eq!(cancelled.resource(), b"shop:b"),
            other => panic!("{other:?}"),
        }
    }
}

/// Where the answer to the only try has it. (A plain lock's command has no such answer.)
#[test]
fn a_single_try_for_a_permit_a_writer_or_several_names_reports_when_they_are_free() {
    let servers = Server::several(3);
    let (redlock, other) = (unhurried_connected(&servers), unhurried_connected(&servers));
    let lockables = |redlock: &Redlock| {
        [
            redlock.semaphore("permit", 1).unwrap(),
            redlock.write_lock("write").unwrap(),
            redlock.several(["a", "b"]).unwrap(),
        ]
    };
    for (held, wanted) in lockables(&other).into_iter().zip(lockables(&redlock)) {
        let lock = held.acquire(TTL).unwrap();
        eventually("on all nodes", || {
            let name = str::from_utf8(lock.resource()).unwrap();
            servers.iter().all(|server| server.exists(name))
        });
        let busy = match wanted.acquire_within(TTL, Duration::ZERO) {
            Err(Error::Busy(busy)) => busy,
            other => panic!("{wanted:?}: {other:?}"),
        };
        let left = busy
            .remaining()
            .unwrap_or_else(|| panic!("{wanted:?}: {busy}"));
        assert!(left > TTL / 2 && left <= TTL, "{wanted:?}: {left:?}");
        lock.release().unwrap();
    }
}

/// The holder would take another request.
#[test]
fn a_single_try_for_a_plain_lock_sends_one_command_and_names_no_holder() {
    let servers = Server::several(1);
    let labelled = unhurried_connected(&servers).with_options(unhurried().label("web-3"));
    let lock = take(&labelled.unwrap(), "a");
    let redlock = unhurried_connected(&servers);
    let sent = || {
        let names = ["set", "get", "getrange", "pttl", "eval", "evalsha", "del"];
        names.map(|name| servers[0].calls(name))
    };
    let before = sent();
    let error = busy(redlock.acquire_within("a", TTL, ms(0)));
    assert_eq!((error.label(), error.remaining()), (None, None));
    let mut expected = before;
    expected[0] += 1;
    assert_eq!(sent(), expected);
    lock.release().unwrap();
}

#[test]
fn a_lock_that_this_program_holds_itself_is_reported_as_its_own() {
    let servers = Server::several(3);
    let (redlock, other) = (unhurried_connected(&servers), unhurried_connected(&servers));
    let at_once = |redlock: &Redlock| busy(redlock.acquire_within("a", TTL, ms(0)));
    let lock = take(&redlock, "a");
    let error = at_once(&redlock.clone());
    assert!(error.is_own());
    assert_eq!(error.to_string(), "this program itself has the lock \"a\"");
    let error = waits(&redlock);
    let text = error.to_string();
    assert!(
        error.is_own() && text.starts_with("this program itself has the lock \"a\", for "),
        "{text}"
    );
    // Another lock of this program is none of its business, nor is this one for another client.
    let beside = take(&redlock, "b");
    assert!(at_once(&redlock).is_own() && !at_once(&other).is_own());
    lock.release().unwrap();
    let lock = take(&other, "a");
    assert!(!at_once(&redlock).is_own() && !waits(&redlock).is_own());
    lock.release().unwrap();
    // A lock that was left has no holder.
    take(&redlock, "a").leak_for(TTL / 2).unwrap();
    assert!(!at_once(&redlock).is_own());
    beside.release().unwrap();
}
