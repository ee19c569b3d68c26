//! A user, or a service, without EVAL: scripts are loaded, and called by their hashes.

use crate::support;

use std::time::Duration;

use redlock_sync::{Error, LockState, Lockable, Redlock};
use support::clusters::Cluster;
use support::*;

const PERIOD: Duration = Duration::from_secs(3600);

/// A server, a user of it who may do all but this, and the locks of that user.
fn without(forbidden: &str) -> (Server, Redlock) {
    let server = Server::plain();
    let user = "ACL SETUSER few reset on >secret ~* &* +@all";
    let mut user: Vec<&str> = user.split_whitespace().collect();
    user.push(forbidden);
    server.command(&user);
    let url = server.url().replace("://", "://few:secret@");
    let redlock = Redlock::new([url]).unwrap();
    (server, redlock.with_options(unhurried()).unwrap())
}

fn kinds(redlock: &Redlock, name: &str) -> Vec<Lockable> {
    let other = format!("{name}:2");
    vec![
        redlock.semaphore(name, 2).unwrap(),
        redlock.read_lock(name).unwrap(),
        redlock.write_lock(name).unwrap(),
        redlock.several([name, &other]).unwrap(),
    ]
}

#[test]
fn a_user_who_calls_scripts_by_their_hashes_alone_has_locks_of_all_kinds() {
    let (server, redlock) = without("-eval");
    let report = redlock.check("check").unwrap();
    assert!(report.is_checked() && report.is_fit(), "{report}");
    take(&redlock, "plain").release().unwrap();
    for kind in &kinds(&redlock, "a") {
        let report = kind.check().unwrap();
        assert!(report.is_checked() && report.is_fit(), "{kind:?}: {report}");
        let mut lock = kind.acquire(TTL).unwrap();
        lock.extend(2 * TTL).unwrap();
        assert!(lock.fencing_token().is_ok(), "{kind:?}");
        lock.release().unwrap();
    }
    let counter = |key: &String| key.ends_with(":fence");
    let left = || !server.keys().iter().all(counter);
    eventually("nothing is left", || !left());
}

#[test]
fn such_a_user_sees_and_breaks_locks_and_marks_work_as_done() {
    let (server, redlock) = without("-eval");
    let all = connected(std::slice::from_ref(&server));
    let plain = take(&all, "plain");
    let others = kinds(&all, "x").into_iter().enumerate();
    let others: Vec<_> = others
        .map(|(at, _)| {
            let name = format!("kind{at}");
            let lock = kinds(&all, &name)[at].acquire(TTL).unwrap();
            (name, lock)
        })
        .collect();
    let listing = redlock.list(None).unwrap();
    assert!(listing.failed().next().is_none(), "{listing:?}");
    assert_eq!(listing.locks().count(), 6, "{listing:?}");
    let names = others.iter().map(|(name, _)| &name[..]).chain(["plain"]);
    for name in names {
        let found = redlock.inspect(name).unwrap();
        let state = found.state();
        assert_eq!(found.waiting(), Some(0), "{name}");
        let Some((holder, _)) = state.holders().next() else {
            panic!("{name}: {state:?}");
        };
        assert!(redlock.break_lock(name, holder).unwrap(), "{name}");
        let found = redlock.inspect(name).unwrap();
        assert_eq!(found.state(), LockState::Free, "{name}");
    }
    drop((plain, others));
    let once = || redlock.once_per("nightly", TTL, PERIOD, |_| Ok::<_, Error>(7));
    assert_eq!(once().unwrap(), Some(7));
    assert_eq!(once().unwrap(), None);
}

/// The next connection loads them.
#[test]
fn scripts_that_the_server_has_dropped_are_loaded_again() {
    let (server, redlock) = without("-eval");
    let kinds = kinds(&redlock, "a");
    let plain = take(&redlock, "plain");
    let lock = kinds[0].acquire(TTL).unwrap();
    server.command(&["SCRIPT", "FLUSH"]);
    drop((plain, lock));
    let left = || !server.keys().is_empty();
    eventually("both are released", || !left());
    server.command(&["SCRIPT", "FLUSH"]);
    kinds[2].acquire(TTL).unwrap().release().unwrap();
}

#[test]
fn scripts_are_loaded_beforehand_only_where_texts_are_refused() {
    for (forbidden, loaded) in [("-eval", 21), ("-subscribe", 7)] {
        let (server, redlock) = without(forbidden);
        take(&redlock, "a").release().unwrap();
        redlock.inspect("a").unwrap();
        // Those of looks.
        let looks = if loaded > 7 { 3 } else { 0 };
        assert_eq!(server.calls("script|load"), loaded + looks, "{forbidden}");
    }
}

/// Nobody could release a lock there.
#[test]
fn a_check_names_a_replica_whose_user_calls_no_scripts_by_their_hashes() {
    let cluster = Cluster::start();
    for (node, server) in cluster.nodes.iter().enumerate() {
        let user = "ACL SETUSER few reset on >secret ~* &* +@all -eval";
        let mut user: Vec<&str> = user.split_whitespace().collect();
        if node == 4 {
            user.push("-evalsha");
        }
        server.command(&user);
    }
    let redlock = Redlock::new([cluster.url_for("few:secret@", 0..6)]).unwrap();
    let redlock = redlock.with_options(unhurried()).unwrap();
    let report = redlock.check("probe").unwrap();
    let named = report.findings().map(ToString::to_string);
    let named: Vec<String> = named.filter(|text| text.contains("the replica")).collect();
    assert_eq!(named.len(), 1, "{report}");
    let replica = format!(":{}", cluster.nodes[4].port());
    assert!(named[0].contains(&replica), "{named:?}");
    assert!(named[0].contains("evalsha"), "{named:?}");
}
