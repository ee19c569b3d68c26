//! The clusters of these tests are what the tests take them for.

use crate::support;

use std::path::Path;

use support::clusters::{Cluster, Plan, SLOTS, slot};
use support::*;

fn set(cluster: &Cluster, node: usize, key: &str) -> String {
    let said = cluster.nodes[node].try_command(&["SET", key, "x"]);
    match said {
        Ok(_) => "OK".into(),
        Err(error) => error.to_string(),
    }
}

/// A node that has just got its slots may not have heard yet that the others know of it.
fn is_set(cluster: &Cluster, node: usize, key: &str) {
    eventually("the node serves its slots", || {
        set(cluster, node, key) == "OK"
    });
}

#[test]
fn a_slot_is_the_one_that_servers_compute() {
    let server = Server::with_args(&["--cluster-enabled", "yes"]);
    for name in [
        "a",
        "{a}:redlock:w",
        "a{b}c",
        "a}b",
        "a{}b",
        "{}",
        "a{{b}}c",
        "ü",
        "}{x}",
        "{",
    ] {
        let said = server.command(&["CLUSTER", "KEYSLOT", name]);
        let said: u16 = redis::from_redis_value(said).unwrap();
        assert_eq!(slot(name), said, "{name}");
    }
    assert_eq!(slot("123456789"), 0x31c3 % SLOTS);
}

#[test]
fn three_masters_with_replicas_serve_all_slots_and_leave_nothing() {
    let cluster = Cluster::start();
    let left = cluster.nodes.iter();
    let left: Vec<_> = left
        .map(|node| (node.pid(), node.dir().to_owned()))
        .collect();
    for master in 0..3 {
        let name = cluster.name(master);
        assert_eq!(cluster.master_of(&name), master);
        assert_eq!(cluster.replicas_of(master), [master + 3]);
        is_set(&cluster, master, &name);
        let other = set(&cluster, (master + 1) % 3, &name);
        assert!(other.to_lowercase().contains("moved"), "{other}");
        cluster.is_replicated(master);
        assert_eq!(cluster.nodes_with(&name), [master, master + 3]);
        cluster.nodes[master].command(&["DEL", &name]);
    }
    cluster.nothing_is_left();
    drop(cluster);
    for (process, dir) in left {
        assert!(!dir.exists() && !Path::new(&format!("/proc/{process}")).exists());
    }
}

#[test]
fn a_slot_moves_with_its_keys() {
    let cluster = Cluster::masters(3);
    let (name, beside) = (cluster.name(0), beside(&cluster.name(0), "w"));
    is_set(&cluster, 0, &name);
    let moving = cluster.begin_to_move(&name, 1);
    is_set(&cluster, 0, &name);
    assert!(set(&cluster, 0, &beside).to_lowercase().contains("ask"));
    moving.key(&name);
    assert!(set(&cluster, 0, &name).to_lowercase().contains("ask"));
    assert_eq!(cluster.nodes_with(&name), [1]);
    moving.end();
    assert_eq!(cluster.master_of(&name), 1);
    is_set(&cluster, 1, &name);
    for other in [0, 2] {
        let said = set(&cluster, other, &name);
        assert!(said.to_lowercase().contains("moved"), "{said}");
    }
    cluster.move_slot(&name, 2);
    assert_eq!(cluster.nodes_with(&name), [2]);
    cluster.begin_to_move(&name, 0).give_up();
    is_set(&cluster, 2, &name);
}

#[test]
fn a_replica_takes_the_place_of_its_master() {
    let mut cluster = Cluster::start();
    let names: Vec<String> = (0..3).map(|master| cluster.name(master)).collect();
    cluster.fail_over(3);
    assert_eq!(set(&cluster, 3, &names[0]), "OK");
    cluster.take_over(4);
    assert_eq!(set(&cluster, 4, &names[1]), "OK");
    cluster.agree();
    assert_eq!(cluster.replicas_of(4), [1]);
    cluster.nodes[2].kill();
    cluster.promotes(5);
    assert_eq!(set(&cluster, 5, &names[2]), "OK");
    cluster.agree();
    let masters = names.iter().map(|name| cluster.master_of(name));
    assert!(masters.eq([3, 4, 5]));
    cluster.nodes[2].restart();
    cluster.agree();
    assert_eq!(cluster.replicas_of(5), [2]);
    cluster.nodes[3].stop();
    cluster.promotes(0);
    assert_eq!(cluster.master_of(&names[0]), 0);
    cluster.nodes[3].resume();
    cluster.agree();
    assert_eq!(cluster.replicas_of(0), [3]);
}

#[test]
fn a_password_is_that_of_all_nodes() {
    let cluster = Cluster::with(Plan {
        masters: 3,
        replicas: true,
        password: Some("hunter2"),
        ..Plan::default()
    });
    assert!(
        cluster
            .url()
            .starts_with("redis+cluster://:hunter2@127.0.0.1:")
    );
    let name = cluster.name(1);
    is_set(&cluster, 1, &name);
    cluster.move_slot(&name, 2);
    cluster.is_replicated(2);
    assert_eq!(cluster.nodes_with(&name), [2, 5]);
}

#[test]
fn nodes_speak_tls() {
    let cluster = Cluster::with(Plan {
        masters: 3,
        replicas: true,
        over_tls: true,
        ..Plan::default()
    });
    let name = cluster.name(1);
    is_set(&cluster, 1, &name);
    cluster.move_slot(&name, 2);
    cluster.is_replicated(2);
    assert_eq!(cluster.nodes_with(&name), [2, 5]);
}

/// As three nodes of a lock.
#[test]
fn one_master_may_have_all_slots() {
    let cluster = Cluster::masters(1);
    is_set(&cluster, 0, "a");
    assert_eq!(cluster.master_of("b"), 0);
}

/// What a script on a lock and the keys beside it is told in the middle of a move.
#[test]
fn keys_that_are_not_there_are_asked_for_at_the_other_master_and_several_are_refused_there() {
    let cluster = Cluster::masters(2);
    let name = cluster.name(0);
    let keys = [&*name, &beside(&name, "w"), &beside(&name, "wt")];
    let script = "return redis.call('EXISTS', KEYS[1])";
    let eval = |node: usize, count: usize| {
        let client = redis::Client::open(cluster.nodes[node].unix_url()).unwrap();
        let mut connection = client.get_connection().unwrap();
        redis::cmd("ASKING").query::<()>(&mut connection).unwrap();
        let mut command = redis::cmd("EVAL");
        command.arg(script).arg(count).arg(&keys[..count]);
        let said: redis::RedisResult<redis::Value> = command.query(&mut connection);
        match said {
            Ok(_) => "served",
            Err(error) => match error.code() {
                Some("ASK") => "asked",
                Some("TRYAGAIN") => "refused",
                other => panic!("{other:?}: {error}"),
            },
        }
    };
    let both = |count: usize| [eval(0, count), eval(1, count)];
    let moving = cluster.begin_to_move(&name, 1);
    assert_eq!(both(1), ["asked", "served"]);
    assert_eq!(both(3), ["asked", "refused"]);
    moving.give_up();
    is_set(&cluster, 0, &name);
    let moving = cluster.begin_to_move(&name, 1);
    assert_eq!(both(1), ["served", "served"]);
    // Only one of three is there, though no other was ever made.
    assert_eq!(both(3), ["refused", "refused"]);
    moving.key(&name);
    assert_eq!(both(1), ["asked", "served"]);
    assert_eq!(both(3), ["asked", "refused"]);
    moving.end();
    assert_eq!(eval(1, 3), "served");
}
