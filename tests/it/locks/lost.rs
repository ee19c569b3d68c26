//! Why a lock was lost: a release, an extension and the like tell another holder from a key that is gone.

use crate::support;

use redlock_sync::{Error, Lock, LostReason, Redlock};
use support::*;

type Take = fn(&Redlock) -> Lock;
type End = fn(Lock) -> Result<(), Error>;

/// A lock of each kind on the name "a", and another client's lock that is in its place later.
const KINDS: [(&str, Take, Take); 5] = [
    ("plain", plain, plain),
    ("permit", permit, permit),
    ("read", read, write),
    ("write", write, read),
    ("several", several, plain),
];

fn plain(redlock: &Redlock) -> Lock {
    redlock.acquire("a", TTL).unwrap()
}

fn permit(redlock: &Redlock) -> Lock {
    redlock.semaphore("a", 1).unwrap().acquire(TTL).unwrap()
}

fn read(redlock: &Redlock) -> Lock {
    redlock.read_lock("a").unwrap().acquire(TTL).unwrap()
}

fn write(redlock: &Redlock) -> Lock {
    redlock.write_lock("a").unwrap().acquire(TTL).unwrap()
}

fn several(redlock: &Redlock) -> Lock {
    redlock.several(["a", "b"]).unwrap().acquire(TTL).unwrap()
}

/// Everything by which a holder learns it from the nodes.
const ENDS: [(&str, End); 5] = [
    ("release", Lock::release),
    ("extend", |mut lock| lock.extend(2 * TTL)),
    ("fencing_token", |lock| lock.fencing_token().map(drop)),
    ("leak_for", |lock| lock.leak_for(ms(1000))),
    ("renewal", |lock| {
        let lock = lock.keep_alive(TTL)?;
        lock.fencing_token().unwrap_err();
        lock.ensure(ms(1))
    }),
];

fn delete(servers: &[Server]) {
    eventually("the lock is on all nodes", || {
        servers.iter().all(|server| server.exists("a"))
    });
    servers
        .iter()
        .for_each(|server| drop(server.command(&["DEL", "a", "b"])));
}

fn reason(what: &str, result: Result<(), Error>) -> (LostReason, String) {
    match result {
        Err(Error::Lost(lost)) => (lost.reason(), lost.to_string()),
        other => panic!("{what}: {other:?}"),
    }
}

#[test]
fn a_lock_that_is_gone_is_told_from_another_holders() {
    for nodes in [1, 3] {
        let servers = Server::several(nodes);
        let (redlock, other) = (unhurried_connected(&servers), unhurried_connected(&servers));
        for (kind, take, others) in KINDS {
            for (end, end_of) in ENDS {
                let what = format!("{kind}, {end}, {nodes} nodes");
                let lock = take(&redlock);
                delete(&servers);
                let (found, text) = reason(&what, end_of(lock));
                assert_eq!(found, LostReason::Deleted, "{what}");
                assert!(
                    text.ends_with("no longer held: its key was deleted, and no holder has it")
                );

                let lock = take(&redlock);
                delete(&servers);
                let in_its_place = others(&other);
                eventually("on all nodes", || servers.iter().all(|s| s.exists("a")));
                let (found, text) = reason(&what, end_of(lock));
                assert_eq!(found, LostReason::Taken, "{what}");
                assert!(text.ends_with("no longer held: another has it"), "{text}");
                in_its_place.release().unwrap();
                // A majority has carried it out; a lock that is taken now might not come to the other node.
                eventually("on no node", || servers.iter().all(|s| !s.exists("a")));
            }
        }
    }
}

#[test]
fn a_lock_of_any_kind_that_is_gone_from_most_nodes_is_lost() {
    let servers = Server::several(3);
    let redlock = unhurried_connected(&servers);
    for (kind, take, _) in KINDS {
        for (end, end_of) in ENDS {
            let lock = take(&redlock);
            eventually("on all nodes", || servers.iter().all(|s| s.exists("a")));
            delete(&servers[1..]);
            let what = format!("{kind}, {end}");
            assert_eq!(reason(&what, end_of(lock)).0, LostReason::Deleted, "{what}");
            eventually("on no node", || servers.iter().all(|s| !s.exists("a")));
        }
    }
}

/// One node is enough to know that another holder's turn has come.
#[test]
fn another_holder_on_some_nodes_is_named_though_the_key_is_gone_from_others() {
    let servers = Server::several(3);
    let redlock = unhurried_connected(&servers);
    for (end, end_of) in ENDS {
        let lock = plain(&redlock);
        delete(&servers);
        servers[..2]
            .iter()
            .for_each(|server| drop(server.command(&["SET", "a", "another's", "PX", "60000"])));
        let (found, _) = reason(end, end_of(lock));
        assert_eq!(found, LostReason::Taken, "{end}");
        servers
            .iter()
            .for_each(|server| drop(server.command(&["DEL", "a"])));
    }
}

#[test]
fn a_lock_whose_time_is_over_ended_by_its_time_whoever_has_it_now() {
    let servers = &Server::several(3);
    let redlock = &connected(servers);
    for (end, end_of) in ENDS {
        let lock = redlock.acquire("a", ms(200)).unwrap();
        eventually("its time is over", || !lock.is_valid());
        delete_all(servers);
        let other = plain(redlock);
        let (found, _) = reason(
            end,
            match end {
                "renewal" => lock.keep_alive(TTL).map(drop),
                _ => end_of(lock),
            },
        );
        assert_eq!(found, LostReason::Expired, "{end}");
        other.release().unwrap();
    }
}

fn delete_all(servers: &[Server]) {
    servers
        .iter()
        .for_each(|server| drop(server.command(&["DEL", "a"])));
}

/// The giver handed over a token that no node has ever had.
#[test]
fn a_lock_that_was_resumed_and_never_was_is_not_there() {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    let token = redlock_sync::Token::from_bytes([7; 20]);
    let lock = redlock.resume("a", token, TTL).unwrap();
    let (found, _) = reason("resumed", lock.release());
    assert_eq!(found, LostReason::Deleted);
}
