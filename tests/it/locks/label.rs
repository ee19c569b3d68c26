//! Labels, which stand behind a token in a lock's key, as the time of the acquisition does. They decide nothing.

use crate::support;

use std::time::SystemTime;

use redlock_sync::{Error, Holder, LockState, Options, Redlock, Token};
use support::*;

fn labelled(servers: &[Server], label: &str) -> Redlock {
    let options = unhurried().label(label).max_extensions(1000);
    unhurried_connected(servers).with_options(options).unwrap()
}

fn value(server: &Server, key: &str) -> Vec<u8> {
    redis::from_redis_value(server.command(&["GET", key])).unwrap()
}

/// The holder, as `inspect` finds it.
fn holder(redlock: &Redlock) -> Holder {
    match redlock.inspect("a").unwrap().state() {
        LockState::Held { holder, .. } => holder,
        other => panic!("{other:?}"),
    }
}

fn label(redlock: &Redlock) -> Option<String> {
    holder(redlock).label().map(str::to_owned)
}

fn nothing_is_left(servers: &[Server]) {
    eventually("nothing is left", || {
        let left = |server: &Server| server.keys().iter().any(|key| !key.ends_with(":fence"));
        !servers.iter().any(left)
    });
}

#[test]
fn a_lock_with_a_label_is_used_like_any_other() {
    for nodes in [1, 3] {
        let mut servers = Server::several(nodes);
        let name = "web-3:4711 é";
        let redlock = labelled(&servers, name);
        let mut lock = take(&redlock, "a");
        let token = lock.token().as_bytes();
        let acquired = holder(&redlock).since().unwrap();
        let acquired = acquired.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        let time = &acquired.as_secs().to_be_bytes()[3..];
        let expected = [&token[..], b"\0redlock:", time, name.as_bytes()].concat();
        let on_all = |servers: &[Server]| servers.iter().all(|server| server.exists("a"));
        eventually("it is on all nodes", || on_all(&servers));
        assert!(servers.iter().all(|server| value(server, "a") == expected));
        assert_eq!(label(&redlock).as_deref(), Some(name));
        let number = lock.fencing_token().unwrap();
        lock.extend(2 * TTL).unwrap();
        // With its label it comes back to a node that has lost it.
        if nodes > 1 {
            servers[2].kill();
            servers[2].restart();
            eventually("it is there again", || {
                lock.extend(2 * TTL).is_ok() && servers[2].exists("a")
            });
            assert_eq!(value(&servers[2], "a"), expected);
        }
        let kept = lock.keep_alive(TTL * 10).unwrap();
        assert!(kept.is_valid());
        kept.release().unwrap();
        nothing_is_left(&servers);
        assert!(take(&redlock, "a").fencing_token().unwrap() > number);
    }
}

/// A version to come may write more behind the label.
#[test]
fn fields_of_later_versions_are_ignored_and_kept() {
    let servers = Server::several(3);
    let redlock = labelled(&servers, "web-4");
    let fields = |length| [&b"\0exit=0\0"[..], &vec![b'x'; length]].concat();
    let set = |length| {
        let token = Token::from_bytes([0xa7; 20]);
        let head = b"\0redlock:\0\x6b\x49\xd2\0web-3";
        let value = [&token.as_bytes()[..], head, &fields(length)].concat();
        let (permit, reader) = (
            [&b"redlock:s001"[..], &value].concat(),
            [&b"redlock:r000"[..], &value].concat(),
        );
        let done = [
            &b"redlock:done 1800000000000 1500 web-3"[..],
            &fields(length),
        ]
        .concat();
        for server in &servers {
            let bytes = |words: &[&[u8]]| server.command_table(words);
            bytes(&[b"FLUSHALL"]);
            bytes(&[b"SET", b"a", &value, b"PX", b"60000"]);
            bytes(&[b"SET", b"{a}:redlock:done", &done, b"PX", b"60000"]);
            let [seconds, _]: [u64; 2] =
                redis::from_redis_value::<Vec<u64>>(server.command(&["TIME"]))
                    .unwrap()
                    .try_into()
                    .unwrap();
            let end = format!("{}000", seconds + 60);
            for (key, member) in [(&b"permits"[..], &permit), (b"readers", &reader)] {
                bytes(&[b"ZADD", key, end.as_bytes(), member]);
                bytes(&[b"PEXPIREAT", key, end.as_bytes()]);
            }
        }
        (token, value)
    };
    let shown = |name: &str| {
        let state = redlock.inspect(name).unwrap().state();
        let labels = state
            .holders()
            .map(|(one, _)| one.label().map(str::to_owned));
        labels.collect::<Vec<_>>()
    };
    // The longest that is read: 20 + 14 + 5 + 8 + 209 bytes.
    for length in [0, 3, 209] {
        let (token, stored) = set(length);
        for name in ["a", "permits", "readers"] {
            assert_eq!(shown(name), [Some("web-3".to_owned())], "{name}, {length}");
        }
        assert_eq!(redlock.list(None).unwrap().locks().count(), 3, "{length}");
        let last = redlock.last_run("a").unwrap().unwrap();
        assert_eq!(last.label(), Some("web-3"));
        match redlock.acquire_within("a", TTL, ms(50)) {
            Err(Error::Busy(busy)) => assert!(busy.to_string().contains("web-3"), "{busy}"),
            other => panic!("{other:?}"),
        }
        // A process that goes on with the lock leaves the fields as they are.
        let mut lock = redlock.resume("a", token, TTL).unwrap();
        lock.extend(TTL).unwrap();
        assert!(servers.iter().all(|server| value(server, "a") == stored));
        lock.leak();
        for name in ["a", "permits", "readers"] {
            let state = redlock.inspect(name).unwrap().state();
            let (holder, _) = state.holders().next().unwrap();
            assert!(redlock.break_lock(name, holder).unwrap(), "{name}");
            assert_eq!(shown(name), [], "{name}");
        }
    }
    // Longer values are other data.
    set(210);
    assert_eq!(shown("a"), []);
    assert_eq!(redlock.list(None).unwrap().locks().count(), 0);
}

/// Threads of one process and clients with labels, with others and without one.
#[test]
fn clients_with_another_label_or_none_are_excluded_wait_and_are_notified() {
    let servers = Server::several(3);
    let redlock = labelled(&servers, "one");
    let options = unhurried().retry_delay(TTL, TTL);
    let fair = options.clone().fair(true).label("fair");
    let others = [
        redlock
            .clone()
            .with_options(options.clone().label("thread")),
        unhurried_connected(&servers).with_options(options.clone().label("other")),
        unhurried_connected(&servers).with_options(options),
        unhurried_connected(&servers).with_options(fair),
    ];
    let others = others.map(Result::unwrap);
    let lock = take(&redlock, "a");
    for other in &others {
        assert!(other.try_acquire("a", TTL).unwrap().is_none());
    }
    let expected = [Some("thread"), Some("other"), None, Some("fair")];
    std::thread::scope(|scope| {
        let waiting = others.each_ref().map(|other| {
            waiter(scope, move || {
                let lock = other.acquire("a", TTL).unwrap();
                let seen = label(other);
                lock.release().unwrap();
                seen
            })
        });
        lock.release().unwrap();
        for (waits, expected) in waiting.into_iter().zip(expected) {
            assert_eq!(waits.join().unwrap().as_deref(), expected);
        }
    });
    nothing_is_left(&servers);
}

/// A process that goes on with a lock need not know the label.
#[test]
fn a_token_is_enough_to_go_on_with_a_lock() {
    let servers = Server::several(3);
    let lock = take(&labelled(&servers, "giver"), "a");
    let (token, left) = (*lock.token().as_bytes(), lock.remaining());
    lock.leak();
    let plain = connected(&servers);
    let mut lock = plain.resume("a", Token::from_bytes(token), left).unwrap();
    lock.extend(TTL).unwrap();
    assert_eq!(label(&plain).as_deref(), Some("giver"));
    lock.release().unwrap();
    nothing_is_left(&servers);
    // Another's value that begins otherwise, or that is shorter than a token, is not touched.
    for foreign in ["x", "another's value of some length"] {
        servers.iter().for_each(|server| {
            server.command(&["SET", "a", foreign]);
        });
        let mut stale = plain.resume("a", Token::from_bytes(token), left).unwrap();
        assert!(matches!(stale.extend(TTL), Err(Error::Lost(_))));
        drop(stale);
        assert!(take(&plain, "b").release().is_ok());
        let kept = |server: &Server| value(server, "a") == foreign.as_bytes();
        assert!(servers.iter().all(kept));
    }
}

/// Any client that may write a key can put text there that changes the order of what an operator reads.
#[test]
fn what_could_not_be_a_label_is_not_shown_as_one() {
    let servers = Server::several(1);
    let redlock = unhurried_connected(&servers);
    for (label, is_one) in [
        ("web-3", true),
        ("\u{202e}3-bew", false),
        ("web\u{2028}3", false),
        ("web\u{200b}3", false),
        ("\u{feff}web", false),
    ] {
        let value = "\u{1}".repeat(20) + "\0redlock:12345" + label;
        servers[0].command(&["SET", "a", &value, "PX", "60000"]);
        let inspection = redlock.inspect("a").unwrap();
        match inspection.state() {
            LockState::Held { holder, .. } if is_one => {
                assert_eq!(holder.label(), Some(label));
                assert_eq!(holder.to_string(), format!("01010101 ({label})"));
            }
            LockState::Blocked { .. } if !is_one => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(format!("{inspection:?}").contains(label), is_one);
    }
}

/// After `resume`, nodes may have one token with several labels. A waiter must not take that for a split vote, after
/// which it would try again and again.
#[test]
fn a_holder_with_several_labels_is_one_holder() {
    let servers = Server::several(3);
    let redlock = unhurried_connected(&servers);
    for (server, label) in servers.iter().zip(["a", "b", ""]) {
        let value = [&[7; 20][..], b"\0redlock:12345", label.as_bytes()].concat();
        server.command_table(&[b"SET", b"a", &value, b"PX", b"60000"]);
    }
    let evaluated = || servers[0].calls("evalsha") + servers[0].calls("eval");
    let before = evaluated();
    let waited = redlock.acquire_within("a", TTL, ms(1500));
    assert!(matches!(waited, Err(Error::Busy(_))));
    let asked = evaluated() - before;
    assert!((1..50).contains(&asked), "asked {asked} times");
}

#[test]
fn what_is_no_label_is_refused_with_its_limit() {
    let redlock = Redlock::new(["redis://127.0.0.1:1"]).unwrap();
    let refused = |label: &str| {
        let options = Options::new().label(label);
        redlock.clone().with_options(options).unwrap_err()
    };
    for (label, expected) in [
        ("x".repeat(65), "the label is 65 bytes long"),
        ("web\n3".into(), "control characters"),
        ("web\u{202e}3".into(), r"web\u{202e}3"),
        ("web\u{2028}3".into(), "printable text"),
    ] {
        let error = refused(&label);
        assert!(matches!(error, Error::Config(_)));
        assert!(error.to_string().contains(expected), "{error}");
    }
    let none = Options::new().label("");
    assert_eq!(none, Options::new());
}
