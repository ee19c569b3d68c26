//! A lock that another process releases, because its holder will not come back.

use crate::support;

use std::time::Duration;

use redlock_sync::{Error, Holder, LockState, LostReason, NodeError, Options, Redlock};
use support::*;

fn holder(redlock: &Redlock, resource: &str) -> Holder {
    match redlock.inspect(resource).unwrap().state() {
        LockState::Held { holder, .. } => holder,
        other => panic!("expected Held, got {other:?}"),
    }
}

/// Another process, as far as nodes can tell.
fn operator(servers: &[Server]) -> Redlock {
    redlock(servers)
}

fn gone(servers: &[Server], resource: &str) {
    let gone = || servers.iter().all(|server| !server.exists(resource));
    eventually("it is on no node", gone);
}

#[test]
fn a_holder_learns_of_the_break_by_its_next_extension_renewal_or_release() {
    for count in [1, 3] {
        let servers = Server::several(count);
        let (redlock, operator) = (connected(&servers), operator(&servers));
        let break_lock = |resource: &str| {
            let holder = holder(&operator, resource);
            assert!(operator.break_lock(resource, &holder).unwrap());
            gone(&servers, resource);
            // Once.
            assert!(!operator.break_lock(resource, &holder).unwrap());
        };

        let mut extended = take(&redlock, "extended");
        break_lock("extended");
        // It asks no node.
        assert!(extended.is_valid());
        assert!(matches!(extended.extend(TTL), Err(Error::Lost(_))));
        assert!(!extended.is_valid());
        drop(extended);

        let released = take(&redlock, "released");
        break_lock("released");
        assert!(matches!(released.release(), Err(Error::Lost(_))));

        let kept = redlock.acquire("kept", ms(3000)).unwrap();
        let kept = kept.keep_alive(Duration::from_secs(600)).unwrap();
        break_lock("kept");
        assert!(kept.wait_lost(Duration::from_secs(30)));
        assert_eq!(kept.lost(), Some(LostReason::Deleted));
        drop(kept);
        for server in &servers {
            assert_eq!(server.keys(), ["connecting"; 0]);
        }
    }
}

#[test]
fn a_majority_of_the_nodes_is_enough_and_less_is_an_error() {
    let mut servers = Server::several(3);
    let (redlock, operator) = (connected(&servers), operator(&servers));
    let lock = take(&redlock, "a");
    eventually("it is everywhere", || servers.iter().all(|s| s.exists("a")));
    let of_lock = holder(&operator, "a");
    servers[2].kill();
    assert!(operator.break_lock("a", &of_lock).unwrap());
    assert!(!servers[0].exists("a") && !servers[1].exists("a"));
    assert!(matches!(lock.release(), Err(Error::Lost(_))));

    let lock = take(&redlock, "b");
    let of_lock = holder(&operator, "b");
    servers[1].kill();
    let errors = unavailable(operator.break_lock("b", &of_lock));
    assert!(errors.iter().map(NodeError::node).eq([1, 2]));
    assert!(!servers[0].exists("b"));
    lock.leak();
}

#[test]
fn a_lock_that_has_changed_hands_stays_with_its_new_holder() {
    let servers = Server::several(3);
    let (redlock, operator) = (unhurried_connected(&servers), operator(&servers));
    let first = take(&redlock, "a");
    let shown = holder(&operator, "a");
    first.release().unwrap();
    assert!(!operator.break_lock("a", &shown).unwrap());
    let mut second = take(&redlock, "a");
    assert!(!operator.break_lock("a", &shown).unwrap());
    second.extend(TTL).unwrap();
    eventually("it is everywhere", || servers.iter().all(|s| s.exists("a")));
    second.release().unwrap();
}

#[test]
fn what_is_no_lock_of_this_crate_is_never_deleted() {
    let servers = Server::several(3);
    let (redlock, operator) = (connected(&servers), operator(&servers));
    let everywhere = |args: &[&[u8]]| {
        for server in &servers {
            server.command_table(args);
        }
    };
    let lock = take(&redlock, "a");
    let shown = holder(&operator, "a");
    lock.leak();

    let text = b"a text of another program";
    for value in [&text[..], &[7; 20]] {
        everywhere(&[b"SET", b"a", value, b"PX", b"60000"]);
        assert!(!operator.break_lock("a", &shown).unwrap());
        for server in &servers {
            let stays = server.command(&["GET", "a"]);
            assert_eq!(stays, redis::Value::BulkString(value.to_vec()));
        }
    }
    everywhere(&[b"DEL", b"a"]);
    everywhere(&[b"HSET", b"a", b"field", b"value"]);
    unavailable(operator.break_lock("a", &shown));
    assert!(servers.iter().all(|server| server.exists("a")));

    // Data that looks like a token, such as a hash of 20 bytes.
    everywhere(&[b"SET", b"endless", &[0xA7; 20]]);
    let shown = holder(&operator, "endless");
    let error = config(operator.break_lock("endless", &shown));
    assert!(error.contains("no ttl on node 0"), "{error}");
    assert!(servers.iter().all(|server| server.exists("endless")));
    // On one node alone.
    everywhere(&[b"PEXPIRE", b"endless", b"60000"]);
    servers[1].command(&["PERSIST", "endless"]);
    let error = config(operator.break_lock("endless", &shown));
    assert!(error.contains("no ttl on node 1"), "{error}");
    assert!(servers.iter().all(|server| server.exists("endless")));
}

#[test]
fn waiting_processes_are_notified() {
    for fair in [false, true] {
        let servers = Server::several(3);
        // Without a message it would not try again in time.
        let minutes = Duration::from_secs(600);
        let with = |options: Options| unhurried_redlock(&servers).with_options(options).unwrap();
        let redlock = with(unhurried().retry_delay(minutes, minutes).fair(fair));
        all_vote(&redlock, &servers);
        let operator = with(unhurried().fair(true));
        let held = operator.try_acquire("a", minutes).unwrap().unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| redlock.acquire("a", TTL));
            in_queue(&servers, "a", 1);
            let shown = holder(&operator, "a");
            assert!(operator.break_lock("a", &shown).unwrap());
            let next = waits.join().unwrap().unwrap();
            assert!(next.token() != held.token());
            assert!(matches!(held.release(), Err(Error::Lost(_))));
            next.release().unwrap();
        });
    }
}
