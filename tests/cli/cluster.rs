//! The command on a Redis Cluster.

use crate::children::REDLOCK;
use crate::operations::{command, run};
use crate::support;

use std::collections::BTreeSet;
use std::time::Instant;

use serde_json::Value;
use support::clusters::{Cluster, Plan};
use support::*;

fn json_of(nodes: &str, arguments: &[&str]) -> (i32, Value) {
    let (code, out, err) = run(&mut command(nodes, arguments));
    let json = serde_json::from_str(&out);
    (
        code,
        json.unwrap_or_else(|_| panic!("{arguments:?}: {out}{err}")),
    )
}

/// Severity and code of what is found, but for notes, and for an answer that a busy machine delayed.
fn found(report: &Value) -> Vec<String> {
    let all = report["findings"].as_array().unwrap();
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap().to_owned();
    let mut found: Vec<String> = all
        .iter()
        .map(|finding| text(finding, "severity") + " " + &text(finding, "code"))
        .collect();
    found.retain(|one| !one.starts_with("note") && one != "warning latency");
    found
}

#[test]
fn names_of_all_shards_are_locked_shown_and_listed() {
    let cluster = Cluster::masters(3);
    let url = cluster.url();
    let mut locks = Vec::new();
    let redlock = cluster.client();
    for master in 0..3 {
        let name = cluster.name(master);
        let inspect = [REDLOCK, "inspect", "--json", &name];
        let held = [&["run", "--restart-guard", "0", &name], &inspect[..]].concat();
        let (code, shown) = json_of(&url, &held);
        assert_eq!(
            (code, &shown["state"]),
            (0, &Value::from("held")),
            "{shown}"
        );
        let address = shown["nodes"][0]["address"].as_str().unwrap();
        let port = cluster.nodes[master].port();
        assert!(address.ends_with(&format!("127.0.0.1:{port}")), "{shown}");
        assert!(!cluster.keys().contains(&name));
        locks.push(take(&redlock, &name));
    }
    let (code, listed) = json_of(&url, &["list", "--json"]);
    assert_eq!(code, 0, "{listed}");
    let names = listed["locks"].as_array().unwrap().iter();
    let names: BTreeSet<&str> = names.map(|lock| lock["name"].as_str().unwrap()).collect();
    let expected: Vec<String> = (0..3).map(|master| cluster.name(master)).collect();
    assert_eq!(names, expected.iter().map(String::as_str).collect());
    drop(locks);
}

#[test]
fn doctor_examines_all_masters_of_a_cluster() {
    let cluster = Cluster::start();
    let url = cluster.url();
    let (code, report) = json_of(&url, &["doctor", "--json", "--restart-guard", "0"]);
    assert_eq!(code, 0, "{report}");
    let faults = found(&report)
        .into_iter()
        .filter(|one| one.starts_with("fault"));
    assert_eq!(faults.count(), 0, "{report}");
    // By default a server that was just started gives no votes.
    let (code, report) = json_of(&url, &["doctor", "--json"]);
    assert_eq!(code, 1, "{report}");
    assert!(found(&report).contains(&"fault uptime".into()), "{report}");
    cluster.nodes[2].command(&["CONFIG", "SET", "maxmemory", "100mb"]);
    cluster.nodes[2].command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let (code, report) = json_of(&url, &["doctor", "--json", "--restart-guard", "0"]);
    assert_eq!(code, 1, "{report}");
    assert!(
        found(&report).contains(&"fault eviction".into()),
        "{report}"
    );
    let port = cluster.nodes[2].port().to_string();
    assert!(report.to_string().contains(&port), "{report}");
}

#[test]
fn a_name_that_has_no_fencing_token_and_no_mark_is_a_usage_error_that_names_it() {
    let cluster = Cluster::masters(3);
    let url = cluster.url();
    let (no_token, no_mark) = ("\"a}b\" has no fencing tokens", "\"a}b\" cannot be marked");
    for (arguments, expected) in [
        (&["run", "--fence"][..], no_token),
        (&["run", "--fence", "--slots", "2"], no_token),
        (&["throttle", "--fence", "--every", "1h"], no_token),
        (&["run", "--once-per", "1h"], no_mark),
        (&["last"], no_mark),
    ] {
        let command_line = match arguments[0] {
            "last" => [arguments, &["a}b"]].concat(),
            _ => [arguments, &["--restart-guard", "0", "a}b", "echo", "ran"]].concat(),
        };
        let (code, out, err) = run(&mut command(&url, &command_line));
        assert_eq!((code, &*out), (64, ""), "{arguments:?}: {err}");
        assert!(err.contains(expected), "{arguments:?}: {err}");
    }
    cluster.nothing_is_left();
}

/// It grants no locks for a while, and a release grants none.
#[test]
fn a_lock_is_released_by_hand_at_a_master_that_was_just_promoted() {
    let cluster = Cluster::with(Plan {
        masters: 1,
        replicas: true,
        over_tls: over_tls(),
        ..Plan::default()
    });
    let lock = take(&cluster.client(), "a");
    cluster.is_replicated(0);
    cluster.fail_over(1);
    cluster.agree();
    let release = ["release", "--force", "--yes", "a"];
    let (code, out, err) = run(&mut command(&cluster.url(), &release));
    assert_eq!(code, 0, "{out}{err}");
    assert!(out.ends_with("\na: released\n"), "{out}");
    assert!(lock.release().is_err());
    cluster.nothing_is_left();
}

#[test]
fn the_error_at_a_plain_url_of_a_cluster_shows_the_right_flag() {
    let cluster = Cluster::masters(2);
    let name = cluster.name(1);
    let url = cluster.nodes[0].url();
    let (code, out, err) = run(&mut command(&url, &["run", "--wait", "30s", &name, "true"]));
    assert_ne!(code, 0);
    assert!(err.contains("redis+cluster://"), "{out}{err}");
    let (code, out, err) = run(&mut command(&url, &["doctor"]));
    assert_eq!(code, 1, "{out}{err}");
    assert!(out.contains("redis+cluster://"), "{out}{err}");
}

#[test]
fn doctor_asks_the_replicas_of_all_masters_at_a_time() {
    let cluster = Cluster::start();
    let (masters, replicas) = cluster.nodes.split_at(3);
    eventually("each master knows its replica", || {
        let info = |server: &Server| server.info("replication", "slave0");
        masters
            .iter()
            .all(|master| info(master).contains("state=online"))
    });
    // Their connections are accepted, and nothing answers.
    for replica in replicas {
        replica.stop();
    }
    let limit = [
        "doctor",
        "--json",
        "--connect-timeout",
        "4s",
        "--node-timeout",
        "4s",
    ];
    let began = Instant::now();
    let (_, report) = json_of(&cluster.url(), &limit);
    let took = began.elapsed();
    for replica in replicas {
        replica.resume();
    }
    assert_eq!(report["nodes"].as_array().unwrap().len(), 3, "{report}");
    // One after the other they take 12 s.
    assert!(took >= ms(4000) && took < ms(10_000), "{took:?}");
}
