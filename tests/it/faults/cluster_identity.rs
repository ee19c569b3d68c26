//! Another server at an address that the servers of a Redis Cluster name: it counts for nothing there.

use crate::support;

use std::time::Duration;

use redlock_sync::{Error, LockState, Redlock};
use support::clusters::{Cluster, Plan};
use support::*;

const S: Duration = Duration::from_secs(1);

fn client(url: &str) -> Redlock {
    let redlock = Redlock::new(url).unwrap();
    redlock
        .with_options(options().restart_guard(Duration::ZERO))
        .unwrap()
}

/// Names this port as that of the only server.
fn announces(cluster: &Cluster, port: u16) {
    for (name, value) in [
        ("cluster-announce-ip", "127.0.0.1"),
        ("cluster-announce-port", &port.to_string()),
    ] {
        cluster.nodes[0].command(&["CONFIG", "SET", name, value]);
    }
}

/// What a client reports of a lock that it cannot take now. `None`: another holder has it.
fn refused(redlock: &Redlock) -> Option<String> {
    match redlock.try_acquire("a", TTL) {
        Ok(None) => None,
        Err(Error::Unavailable(errors)) => Some(errors.to_string()),
        other => panic!("{other:?}"),
    }
}

/// As where two networks have the same inner addresses, and a client is in neither.
fn another_answers(port: u16, exists: impl Fn(&str) -> bool) {
    let cluster = Cluster::masters(1);
    let held = take(&client(&cluster.url()), "a");
    announces(&cluster, port);
    let mut redlock = client(&cluster.url());
    eventually("the other address is named", || {
        redlock = client(&cluster.url());
        refused(&redlock).is_some()
    });
    // With a map, too, which has no other server.
    for _ in 0..3 {
        let text = refused(&redlock).unwrap_or_default();
        let words = [
            "another server, by its ID",
            "cluster-announce-ip",
            &port.to_string(),
        ];
        for word in words {
            assert!(text.contains(word), "{text}");
        }
        let inspection = redlock.inspect("a").unwrap();
        assert!(
            matches!(inspection.state(), LockState::Unknown),
            "{inspection:?}"
        );
        assert!(
            format!("{inspection:?}").contains("cluster-announce-ip"),
            "{inspection:?}"
        );
        assert!(!redlock.list(None).unwrap().has_majority());
        let last = unavailable(redlock.last_run("a")).to_string();
        assert!(last.contains("cluster-announce-ip"), "{last}");
        let report = redlock.check("probe").unwrap();
        let findings: Vec<String> = report.findings().map(ToString::to_string).collect();
        let findings = findings.join("; ");
        assert!(
            !report.is_fit() && findings.contains("cluster-announce-ip"),
            "{findings}"
        );
        assert!(!exists("a"));
        std::thread::sleep(S / 2);
    }
    announces(&cluster, cluster.nodes[0].port());
    eventually("the lock is seen", || refused(&redlock).is_none());
    held.release().unwrap();
    eventually("it is free", || {
        let lock = redlock.try_acquire("a", TTL).ok().flatten();
        lock.is_some_and(|lock| lock.release().is_ok())
    });
}

#[test]
fn a_plain_server_at_the_address_that_a_cluster_names_is_not_used() {
    let other = Server::start();
    another_answers(other.port(), |key| other.exists(key));
}

#[test]
fn a_master_of_another_cluster_at_the_address_that_a_cluster_names_is_not_used() {
    let other = Cluster::masters(1);
    another_answers(other.nodes[0].port(), |key| other.nodes[0].exists(key));
}

/// All at their addresses of before, with new IDs: as where a Cluster without files is started anew.
#[test]
fn a_cluster_whose_servers_have_new_ids_is_found_again() {
    for args in [
        &[][..],
        &[
            "--cluster-announce-hostname",
            "localhost",
            "--cluster-preferred-endpoint-type",
            "hostname",
        ],
    ] {
        let cluster = Cluster::with(Plan {
            masters: 1,
            args,
            ..Plan::default()
        });
        let redlock = client(&cluster.url());
        take(&redlock, "a").release().unwrap();
        let node = &cluster.nodes[0];
        for command in [
            &["FLUSHALL"][..],
            &["CLUSTER", "RESET", "HARD"],
            &["CLUSTER", "ADDSLOTSRANGE", "0", "16383"],
        ] {
            node.command(command);
        }
        // The connections of before lead to the server with its old ID.
        node.command(&["CLIENT", "KILL", "TYPE", "normal"]);
        eventually("the servers are found", || {
            let lock = redlock.try_acquire("a", TTL).ok().flatten();
            lock.is_some_and(|lock| lock.release().is_ok())
        });
    }
}

/// One refusal, which operators watch, and as before then.
#[test]
fn a_user_who_may_not_ask_for_ids_has_locks() {
    let cluster = Cluster::masters(1);
    let node = &cluster.nodes[0];
    node.command(&[
        "ACL",
        "SETUSER",
        "u",
        "on",
        ">secret",
        "~*",
        "&*",
        "+@all",
        "-cluster|myid",
    ]);
    let url = cluster.url_for("u:secret@", 0..1);
    let redlock = client(&url);
    for _ in 0..3 {
        take(&redlock, "a").release().unwrap();
        node.command(&["CLIENT", "KILL", "TYPE", "normal"]);
        eventually("it is connected anew", || {
            let lock = redlock.try_acquire("a", TTL).ok().flatten();
            lock.is_some_and(|lock| lock.release().is_ok())
        });
    }
    assert_eq!(node.info("errorstats", "errorstat_NOPERM"), "count=1");
}
