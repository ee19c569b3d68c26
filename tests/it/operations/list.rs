//! `Redlock::list`. (What `redlock list` shows of it: `tests/cli`.)

use crate::support;

use std::time::Duration;

use redlock_sync::{ListedLock, Listing, Problem, Redlock};
use support::*;

const LONG: &[u8] = b"60000";

fn names(listing: &Listing) -> Vec<String> {
    let name = |lock: &ListedLock| String::from_utf8(lock.name().to_vec()).unwrap();
    listing.locks().map(name).collect()
}

fn listed<'a>(listing: &'a Listing, name: &str) -> &'a ListedLock {
    let mut locks = listing.locks();
    locks.find(|lock| lock.name() == name.as_bytes()).unwrap()
}

#[test]
fn every_lock_is_listed_with_its_holder_and_what_is_wrong_with_it() {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    let labelled = redlock.clone().with_options(options().label("web-3"));
    let lock = labelled.unwrap().acquire("held", TTL).unwrap();
    eventually("it is on all nodes", || {
        servers.iter().all(|server| server.exists("held"))
    });
    servers[1].command_table(&[b"SET", b"left", &[7; 20], b"PX", LONG]);
    for server in &servers {
        server.command_table(&[b"SET", b"endless", &[8; 20]]);
        server.command(&["SET", "other", "data"]);
    }
    let listing = redlock.list(None).unwrap();
    assert_eq!(names(&listing), ["endless", "held", "left"]);
    assert!(listing.has_majority() && listing.failed().count() == 0);
    assert_eq!((listing.node_count(), listing.key_count()), (3, 10));

    let held = listed(&listing, "held");
    let holder = held.holder().unwrap();
    assert_eq!(holder.fingerprint(), lock.token().fingerprint());
    assert_eq!((holder.label(), held.problem()), (Some("web-3"), None));
    assert!(held.remaining().unwrap() <= TTL);
    let nodes: Vec<usize> = held.nodes().map(|(node, _)| node).collect();
    assert_eq!(nodes, [0, 1, 2]);

    let left = listed(&listing, "left");
    assert_eq!(left.problem(), Some(Problem::Minority));
    let nodes: Vec<usize> = left.nodes().map(|(node, _)| node).collect();
    assert_eq!(nodes, [1]);

    let endless = listed(&listing, "endless");
    assert_eq!(endless.problem(), Some(Problem::NoExpiry));
    assert_eq!(endless.remaining(), None);
    assert!(endless.nodes().all(|(_, left)| left.is_none()));

    let all = redlock.list(Some("*e*")).unwrap();
    assert_eq!(names(&all), ["endless", "held", "left", "other"]);
    assert_eq!(listed(&all, "other").holder(), None);
    assert!(config(redlock.list(Some(""))).contains("pattern is empty"));
    lock.release().unwrap();
}

#[test]
fn nodes_that_cannot_be_read_are_part_of_the_list() {
    let mut servers = Server::several(3);
    let redlock = redlock(&servers);
    for server in &servers {
        server.command_table(&[b"SET", b"a", &[7; 20], b"PX", LONG]);
    }
    servers[0].command(&["ACL", "SETUSER", "default", "-scan"]);
    let listing = redlock.list(None).unwrap();
    assert_eq!(listed(&listing, "a").nodes().count(), 2);
    assert!(listing.has_majority());
    let failed: Vec<_> = listing.failed().collect();
    let [error] = failed[..] else {
        panic!("{failed:?}");
    };
    let address = format!("127.0.0.1:{}", servers[0].port());
    assert_eq!((error.node(), error.address()), (0, &*address));
    let cause = error.cause().to_string();
    assert!(
        cause.contains("NOPERM") && cause.contains("permit it"),
        "{cause}"
    );
    servers[1].kill();
    let listing = redlock.list(None).unwrap();
    assert!(!listing.has_majority());
    assert_eq!(listing.failed().count(), 2);
}

/// `SCAN` shows all names to every user.
#[test]
fn keys_that_the_user_may_not_read_are_left_out() {
    let servers = Server::several(3);
    let user = "ACL SETUSER few on >PASSWORD resetkeys ~shop:* ~{shop:* -@all +set +get +del +eval +scan +getrange +pttl \
                +zrange +type +time +ping +info";
    let user: Vec<&str> = user.split_whitespace().collect();
    for server in &servers {
        server.command(&user);
        server.command(&["SET", "bank:a", "another program's"]);
        server.command(&["HSET", "bank:b", "field", "value"]);
        server.command(&["ZADD", "bank:c", "1", "member"]);
        server.command_table(&[b"SET", b"bank:d", &[7; 20], b"PX", LONG]);
        server.command_table(&[b"SET", b"shop:a", &[7; 20], b"PX", LONG]);
    }
    let urls = servers
        .iter()
        .map(|server| server.url_for("few", "PASSWORD"));
    let redlock = Redlock::new(urls).unwrap().with_options(options()).unwrap();
    for pattern in [None, Some("*")] {
        let listing = redlock.list(pattern).unwrap();
        assert_eq!(names(&listing), ["shop:a"]);
        assert_eq!((listing.failed().count(), listing.key_count()), (0, 3));
    }
    // A command that is missing is another matter.
    servers[0].command(&["ACL", "SETUSER", "few", "-getrange"]);
    assert_eq!(redlock.list(None).unwrap().failed().count(), 1);
}

#[test]
fn a_node_that_repeats_its_password_does_not_show_it_in_a_list() {
    let node = fake::Fake::new(|words| match &words[0][..] {
        b"AUTH" => b"+OK\r\n".to_vec(),
        _ => b"-ERR sent after AUTH u hunter2\r\n".to_vec(),
    });
    let redlock = Redlock::new(node.url("hunter2")).unwrap();
    let redlock = redlock.with_options(options()).unwrap();
    let listing = redlock.list(None).unwrap();
    let cause = listing.failed().next().unwrap().cause();
    let expected = "the server answered: ERR sent after AUTH u ***";
    assert_eq!(cause.to_string(), expected);
    assert!(!format!("{listing:?}").contains("hunter2"));
}

/// The time of the acquisition is on the nodes, so it stays the same whichever process extends the lock. A process that
/// goes on with another's lock does not know it, and gives it back to a node without a time.
#[test]
fn it_is_shown_since_when_a_lock_is_held_and_how_many_wait_for_it() {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    let (before, second) = (std::time::SystemTime::now(), Duration::from_secs(1));
    let lock = redlock.acquire("held", TTL).unwrap();
    let since = |redlock: &Redlock| {
        let state = redlock.inspect("held").unwrap().state();
        let (holder, _) = state.holders().next().unwrap();
        holder.since().unwrap()
    };
    let acquired = since(&redlock);
    assert!(acquired > before - second && acquired <= std::time::SystemTime::now());
    assert_eq!(redlock.inspect("held").unwrap().waiting(), Some(0));

    // Another process goes on with it, after a node has lost it.
    let (token, left) = (*lock.token(), lock.remaining());
    lock.leak();
    let other = connected(&servers);
    let mut lock = other.resume("held", token, left).unwrap();
    servers[2].command(&["DEL", "held"]);
    lock.extend(TTL).unwrap();
    eventually("it is on all nodes again", || {
        servers.iter().all(|server| server.exists("held"))
    });
    let inspection = redlock.inspect("held").unwrap();
    let all = inspection.nodes().flat_map(|(_, _, state)| state.holders());
    let all: Vec<_> = all.map(|(holder, _)| holder.since()).collect();
    assert_eq!(all, [Some(acquired), Some(acquired), None]);
    assert_eq!(since(&redlock), acquired);
    let listing = redlock.list(None).unwrap();
    let listed_holder = listed(&listing, "held").holder().unwrap();
    assert_eq!(listed_holder.since(), Some(acquired));

    let third = connected(&servers);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| third.acquire("held", TTL));
        let listing = || redlock.list(None).unwrap();
        eventually("one waits", || {
            listed(&listing(), "held").waiting() == Some(1)
        });
        let inspection = redlock.inspect("held").unwrap();
        assert_eq!(inspection.waiting(), Some(1));
        assert!(inspection.longest_wait().unwrap() < TTL);
        assert!(listed(&listing(), "held").longest_wait().is_some());
        lock.release().unwrap();
        waiter.join().unwrap().unwrap().release().unwrap();
    });
    assert_eq!(redlock.inspect("held").unwrap().waiting(), Some(0));
}
