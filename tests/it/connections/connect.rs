//! `Redlock::connect`: the connections are made at the start, and nodes that fail are named.

use crate::support;

use std::time::{Duration, Instant};

use redlock_sync::{NodeError, NodeErrors, Options, Redlock};
use support::*;

/// Longer than a busy machine stands still.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

fn brief(urls: impl IntoIterator<Item = String>) -> Redlock {
    let options = Options::new()
        .connect_timeout(CONNECT_TIMEOUT)
        .node_timeout(NODE_TIMEOUT);
    Redlock::new(urls).unwrap().with_options(options).unwrap()
}

fn named(errors: &NodeErrors) -> Vec<usize> {
    errors.iter().map(NodeError::node).collect()
}

fn not_well(redlock: &Redlock) -> NodeErrors {
    redlock.connect().unwrap().expect("not all nodes are well")
}

#[test]
fn after_it_the_first_lock_is_on_all_nodes_and_connects_to_none() {
    for nodes in [1, 3, 5] {
        let servers = Server::several(nodes);
        let redlock = unhurried_redlock(&servers);
        assert!(redlock.connect().unwrap().is_none());
        let received = |server: &Server| {
            let all = server.info("stats", "total_connections_received");
            all.parse::<u32>().unwrap()
        };
        let before: Vec<u32> = servers.iter().map(received).collect();
        let lock = take(&redlock, "a");
        for (server, before) in servers.iter().zip(before) {
            assert_eq!(received(server), before + 1, "only the one that looks");
            eventually("it is there", || server.exists("a"));
        }
        lock.release().unwrap();
        // It leaves nothing, and can be called again.
        assert!(redlock.connect().unwrap().is_none());
        assert!(servers.iter().all(|server| server.keys().is_empty()));
    }
}

#[test]
fn a_minority_that_is_down_is_named_and_the_lock_works() {
    let mut servers = Server::several(3);
    servers[1].kill();
    let redlock = brief(urls(&servers));
    let errors = not_well(&redlock);
    assert_eq!(named(&errors), [1]);
    assert_eq!(errors.retry_after(), None);
    let text = errors.to_string();
    let start = format!(
        "2 of 3 answered; node 1 (127.0.0.1:{}): cannot connect: ",
        servers[1].port()
    );
    assert!(text.starts_with(&start), "{text}");
    let lock = take(&redlock, "a");
    eventually("it is on the others", || {
        servers[0].exists("a") && servers[2].exists("a")
    });
    lock.release().unwrap();
    // It is tried at once when it is asked for again.
    servers[1].restart();
    assert!(redlock.connect().unwrap().is_none());
    let lock = take(&redlock, "a");
    eventually("it is on all", || {
        servers.iter().all(|server| server.exists("a"))
    });
    lock.release().unwrap();
}

#[test]
fn without_a_majority_it_fails_in_a_bounded_time_and_names_the_nodes_that_are_down() {
    for frozen in [false, true] {
        let mut servers = Server::several(3);
        for server in &mut servers[..2] {
            match frozen {
                true => server.stop(),
                false => server.kill(),
            }
        }
        let redlock = brief(urls(&servers));
        let began = Instant::now();
        let connected = redlock.connect();
        let took = began.elapsed();
        if let Ok(missing) = &connected {
            let missing = missing.as_ref().map(ToString::to_string);
            let states: Vec<_> = servers.iter().map(Server::state).collect();
            panic!("frozen: {frozen}. Connected after {took:?}, but for {missing:?}: {states:?}");
        }
        let errors = unavailable(connected);
        assert!(took < CONNECT_TIMEOUT + 5 * NODE_TIMEOUT, "{took:?}");
        assert_eq!(named(&errors), [0, 1], "{errors}");
        let expected = match frozen {
            true => "not connected within 1 s (connect_timeout)",
            false => "cannot connect: ",
        };
        for cause in errors.iter() {
            assert!(cause.to_string().contains(expected), "{cause}");
        }
    }
}

#[test]
fn a_silent_node_is_waited_for_no_longer_than_it_may_take_to_connect() {
    let servers = Server::several(3);
    servers[2].stop();
    let redlock = brief(urls(&servers));
    let began = Instant::now();
    let errors = not_well(&redlock);
    let took = began.elapsed();
    assert!(took < CONNECT_TIMEOUT + 5 * NODE_TIMEOUT, "{took:?}");
    let text = errors.to_string();
    assert_eq!(named(&errors), [2], "{text}");
    let cause = "not connected within 1 s (connect_timeout)";
    assert!(text.contains(cause), "{text}");
    servers[2].resume();
    eventually("it is connected", || redlock.connect().unwrap().is_none());
}

#[test]
fn a_node_that_falls_silent_or_closes_its_connection_later_is_found() {
    let mut servers = Server::several(3);
    let redlock = brief(urls(&servers));
    assert!(redlock.connect().unwrap().is_none());
    // Closed by the server, and connected anew.
    for server in &servers {
        server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    }
    let well = redlock.connect().unwrap();
    assert!(well.is_none(), "{}", well.unwrap());
    servers[0].stop();
    let began = Instant::now();
    let errors = not_well(&redlock);
    let took = began.elapsed();
    assert!(took < CONNECT_TIMEOUT + 5 * NODE_TIMEOUT, "{took:?}");
    assert_eq!(named(&errors), [0]);
    let text = errors.to_string();
    assert!(text.contains("1 s (node_timeout)"), "{text}");
    servers[0].resume();
    eventually("it is back", || redlock.connect().unwrap().is_none());
    servers[1].kill();
    assert_eq!(named(&not_well(&redlock)), [1]);
}

#[test]
fn a_user_that_may_not_ping_is_well_and_one_that_may_not_log_in_is_not() {
    let servers = Server::several(3);
    for server in &servers[..2] {
        server.command(&["ACL", "SETUSER", "u", "on", ">p", "~*", "+@all", "-ping"]);
    }
    let url = |server: &Server| server.url().replace("://", "://u:p@");
    let errors = not_well(&brief(servers.iter().map(url)));
    assert_eq!(named(&errors), [2]);
    let text = errors.to_string();
    assert!(
        text.contains("WRONGPASS") && !text.contains(":p@"),
        "{text}"
    );
}

#[test]
fn one_server_under_two_addresses_is_a_mistake() {
    let servers = Server::several(2);
    let twice = [servers[0].url(), servers[1].url(), servers[0].unix_url()];
    let text = config(brief(twice).connect());
    assert!(text.contains("nodes 0 and 2 are one server"), "{text}");
}

#[test]
fn with_the_restart_guard_a_young_node_is_not_well_and_the_error_shows_for_how_long() {
    let servers = Server::several(3);
    let guarded = options().restart_guard(Duration::from_secs(600));
    let redlock = Redlock::new(urls(&servers)).unwrap();
    let redlock = redlock.with_options(guarded).unwrap();
    let errors = unavailable(redlock.connect());
    assert_eq!(named(&errors), [0, 1, 2]);
    let left = errors.retry_after().expect("the guard alone keeps them");
    assert!(left > Duration::from_secs(500), "{left:?}");
    let text = errors.to_string();
    assert!(
        text.contains("votes in ") && text.contains(" min"),
        "{text}"
    );
    // As soon as they vote all are well.
    let guarded = options().restart_guard(Duration::from_secs(1));
    let redlock = redlock.with_options(guarded).unwrap();
    eventually("they vote", || matches!(redlock.connect(), Ok(None)));
    let lock = redlock.try_acquire("a", ms(900)).unwrap();
    lock.expect("it is free").release().unwrap();
}

#[test]
fn threads_that_connect_and_lock_at_the_same_time_all_come_through() {
    let servers = Server::several(3);
    let redlock = unhurried_redlock(&servers);
    std::thread::scope(|scope| {
        for i in 0..8 {
            let redlock = &redlock;
            scope.spawn(move || {
                for round in 0..20 {
                    let well = redlock.connect().unwrap();
                    assert!(well.is_none(), "{}", well.unwrap());
                    take(redlock, &format!("{i}-{round}")).release().unwrap();
                }
            });
        }
    });
    let clients: Vec<usize> = servers.iter().map(Server::clients).collect();
    assert_eq!(clients, [1, 1, 1], "they share one connection to each node");
}
