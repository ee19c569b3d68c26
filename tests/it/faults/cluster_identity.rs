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

/// Names this port as its own.
fn announces(node: &Server, port: u16) {
    for (name, value) in [
        ("cluster-announce-ip", "127.0.0.1"),
        ("cluster-announce-port", &port.to_string()),
    ] {
        node.command(&["CONFIG", "SET", name, value]);
    }
}

/// What a client reports of this lock, which it cannot take now. `None`: another holder has it.
fn refused(redlock: &Redlock, name: &str) -> Option<String> {
    match redlock.try_acquire(name, TTL) {
        Ok(None) => None,
        Err(Error::Unavailable(errors)) => Some(errors.to_string()),
        other => panic!("{other:?}"),
    }
}

/// As where two networks have the same inner addresses, and a client is in neither.
fn another_answers(port: u16, exists: impl Fn(&str) -> bool) {
    let cluster = Cluster::masters(1);
    let held = take(&client(&cluster.url()), "a");
    announces(&cluster.nodes[0], port);
    let mut redlock = client(&cluster.url());
    eventually("the other address is named", || {
        redlock = client(&cluster.url());
        refused(&redlock, "a").is_some()
    });
    // With a map, too, which has no other server.
    for _ in 0..3 {
        let text = refused(&redlock, "a").unwrap_or_default();
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
    announces(&cluster.nodes[0], cluster.nodes[0].port());
    eventually("the lock is seen", || refused(&redlock, "a").is_none());
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

/// The master without slots of a Cluster.
const NEW: usize = 3;

/// A Cluster whose master without slots names this port as its own, and a name whose slot another master has.
fn with_newcomer_at(port: u16) -> (Cluster, String) {
    let cluster = Cluster::with_newcomer();
    announces(&cluster.nodes[NEW], port);
    let name = cluster.name(0);
    eventually("all know the address", || {
        cluster.nodes[..NEW].iter().all(|node| {
            let text = node.command(&["CLUSTER", "NODES"]);
            let text: String = redis::from_redis_value(text).unwrap();
            text.contains(&format!(":{port}@"))
        })
    });
    (cluster, name)
}

/// The connection begins by the word of the server that has lost the slot, before any map names the new one.
#[test]
fn a_connection_that_began_before_a_server_was_known_ends_when_its_id_is_another() {
    let other = Cluster::masters(1);
    let (cluster, name) = with_newcomer_at(other.nodes[0].port());
    let redlock = client(&cluster.url_for("", 0..NEW));
    take(&redlock, &name).release().unwrap();
    let id: String =
        redis::from_redis_value(cluster.nodes[NEW].command(&["CLUSTER", "MYID"])).unwrap();
    let slot = support::clusters::slot(&name).to_string();
    let is_told = |node: usize| {
        cluster.nodes[node].command(&["CLUSTER", "SETSLOT", &slot, "NODE", &id]);
    };
    is_told(0);
    let taken = redlock.try_acquire(&name, TTL);
    assert!(other.nodes[0].exists(&name), "{taken:?}");
    drop(taken);
    for node in [NEW, 1, 2] {
        is_told(node);
    }
    let words = "another server, by its ID";
    eventually("it is left", || {
        let taken = redlock.try_acquire(&name, TTL);
        taken.is_err_and(|error| error.to_string().contains(words))
    });
    for _ in 0..6 {
        let text = refused(&redlock, &name).unwrap_or_default();
        assert!(text.contains(words), "{text}");
        assert!(!other.nodes[0].exists(&name));
        std::thread::sleep(S / 2);
    }
}

/// No map names it before a slot has arrived. A user who may not ask for IDs is told by the answer to ASKING.
#[test]
fn a_plain_server_at_the_address_that_slots_migrate_to_is_not_used() {
    let other = Server::start();
    let (cluster, name) = with_newcomer_at(other.port());
    for node in cluster.nodes.iter().chain([&other]) {
        let user = ["ACL", "SETUSER", "u", "on", ">secret", "~*", "&*", "+@all"];
        node.command(&[&user[..], &["-cluster|myid"]].concat());
    }
    let moving = cluster.begin_to_move(&name, NEW);
    for login in ["", "u:secret@"] {
        let redlock = client(&cluster.url_for(login, 0..NEW));
        for _ in 0..3 {
            let text = refused(&redlock, &name).unwrap_or_default();
            assert!(text.contains("another server, by its ID"), "{text}");
            let inspection = redlock.inspect(&name).unwrap();
            assert!(
                matches!(inspection.state(), LockState::Unknown),
                "{inspection:?}"
            );
        }
    }
    moving.give_up();
}

/// The first answer would decide which of the two a program uses.
#[test]
fn given_servers_of_two_clusters_are_refused() {
    let (one, other) = (Cluster::masters(1), Cluster::masters(1));
    let ports = [&one, &other].map(|cluster| cluster.nodes[0].port().to_string());
    let both = format!("{},127.0.0.1:{}", ports[0], ports[1]);
    let redlock = client(&one.url().replace(&ports[0], &both));
    for _ in 0..3 {
        let inspection = redlock.inspect("a").unwrap();
        let last = unavailable(redlock.last_run("a")).to_string();
        let report = redlock.check("probe").unwrap();
        let findings: Vec<String> = report.findings().map(ToString::to_string).collect();
        for text in [
            refused(&redlock, "a").unwrap_or_default(),
            format!("{inspection:?}"),
            last,
            findings.join("; "),
        ] {
            let words = [&*ports[0], &ports[1], "two Redis Clusters"];
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        }
        assert!(
            matches!(inspection.state(), LockState::Unknown),
            "{inspection:?}"
        );
        assert!(!redlock.list(None).unwrap().has_majority());
        assert!(one.keys().is_empty() && other.keys().is_empty());
    }
    drop(other);
    // No server of another Cluster is heard any longer.
    eventually("the lock is taken", || {
        let lock = redlock.try_acquire("a", TTL).ok().flatten();
        lock.is_some_and(|lock| lock.release().is_ok())
    });
}

/// By their maps they may be of two Clusters as well.
#[test]
fn a_master_that_was_cut_off_and_its_successor_are_not_taken_for_two_clusters_for_sure() {
    let cluster = Cluster::with(Plan {
        masters: 1,
        replicas: true,
        over_tls: over_tls(),
        ..Plan::default()
    });
    let redlock = client(&cluster.url());
    cluster.nodes[0].command(&["CLUSTER", "FORGET", &cluster.ids[1]]);
    cluster.take_over(1);
    cluster.nodes[1].command(&["CLUSTER", "FORGET", &cluster.ids[0]]);
    let text = refused(&redlock, "a").unwrap_or_default();
    for word in [
        "two Redis Clusters",
        "do not reach each other",
        "CLUSTER NODES",
    ] {
        assert!(text.contains(word), "{text}");
    }
    assert!(cluster.keys().is_empty());
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
