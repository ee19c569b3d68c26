//! All rules together.

mod guard;

use core::net::IpAddr;
use std::time::Duration;

use crate::errors::cause::{Announced, Cause, Limit};
use crate::ops::rules::facts::{Coverage, Facts, Location, Needs, NodeReport, Rules, TrialLock};
use crate::ops::rules::finding::{Finding, Severity};
use crate::ops::rules::judge::judge;
use crate::protocol::commands::server_info::ServerInfo;

const MS: Duration = Duration::from_millis(1);
const RULES: Rules<'_> = Rules {
    probe: b"probe",
    prefix: "",
    node_timeout: Duration::from_millis(50),
    guard: None,
    max_ttl: None,
};
const GUARDED: Rules<'_> = Rules {
    guard: Some(Duration::from_secs(30)),
    ..RULES
};
const GOOD: &str = "redis_version:7.0.15\nredis_mode:standalone\nrun_id:ID\nrole:master\n\
    uptime_in_seconds:90000\nmaxmemory:0\nmaxmemory_policy:noeviction\nused_memory:1000000\n\
    evicted_keys:0\naof_enabled:1\naof_last_write_status:ok\nrdb_last_bgsave_status:ok\n\
    connected_clients:10\nmaxclients:10000\nrejected_connections:0\nconnected_slaves:0\n";

fn good(count: usize) -> Vec<Facts> {
    let one = |i: usize| Facts {
        number: i,
        is_set: false,
        in_cluster: false,
        address: format!("10.0.0.{i}:6379"),
        node_report: Ok(NodeReport {
            location: Location::Ip(IpAddr::from([10, 0, 0, u8::try_from(i).unwrap()])),
            info: Ok(ServerInfo::of(&GOOD.replace("ID", &i.to_string()))),
            appendfsync: Ok("always".into()),
            needs: Needs::default(),
            writable_replica: false,
            coverage: Coverage::default(),
            probe: TrialLock::Passed,
            beside: None,
            witness: None,
            look: None,
            round_trips: vec![MS; 10],
            clock: Some(3),
        }),
        plain_password: false,
        insecure: false,
        default_guard: None,
        remarks: Vec::new(),
    };
    (0..count).map(one).collect()
}

fn node_report(facts: &mut Facts) -> &mut NodeReport {
    facts.node_report.as_mut().unwrap()
}

/// A trial lock whose name is not permitted.
fn no_key() -> TrialLock {
    TrialLock::Refused(
        "SET",
        Cause::refused("NOPERM No permissions to access a key"),
    )
}

/// Changes a field of INFO.
fn set(facts: &mut Facts, field: &str, value: &str) {
    let info = node_report(facts).info.as_mut().unwrap();
    *info = info.with(field, value);
}

fn found(nodes: &[Facts], rules: Rules<'_>) -> Vec<(Severity, Option<usize>, &'static str)> {
    let findings = judge(nodes, rules);
    let brief = |finding: &Finding| {
        // The table has a cell for it.
        assert_ne!(finding.code.when(finding.severity), "", "{finding}");
        (finding.severity, finding.node, finding.code())
    };
    findings.iter().map(brief).collect()
}

use Severity::{Fault, Note, Warning};

#[test]
fn good_nodes_give_no_finding() {
    for count in [3, 5, 7] {
        assert_eq!(found(&good(count), RULES), []);
    }
    assert_eq!(found(&good(1), RULES), [(Note, None, "count")]);
    assert_eq!(found(&good(2), RULES), [(Warning, None, "count")]);
    assert_eq!(found(&good(4), RULES), [(Warning, None, "count")]);
}

#[test]
fn each_thing_that_is_wrong_with_one_node_gives_its_code_alone() {
    type Change = fn(&mut Facts);
    let table: [(Severity, &str, Change); 31] = [
        (Warning, "replicas", |node| {
            node_report(node).writable_replica = true;
        }),
        (Fault, "role", |node| set(node, "role", "slave")),
        (Fault, "role", |node| set(node, "redis_mode", "cluster")),
        (Fault, "role", |node| set(node, "redis_mode", "sentinel")),
        (Fault, "eviction", |node| {
            set(node, "maxmemory", "100000000");
            set(node, "maxmemory_policy", "volatile-lru");
        }),
        (Warning, "eviction", |node| set(node, "evicted_keys", "1")),
        (Warning, "eviction", |node| {
            set(node, "maxmemory", "1000001")
        }),
        (Note, "eviction", |node| {
            set(node, "maxmemory_policy", "allkeys-lru");
        }),
        (Warning, "persistence", |node| {
            node_report(node).appendfsync = Ok("everysec".into());
        }),
        (Warning, "persistence", |node| set(node, "aof_enabled", "0")),
        (Warning, "persistence", |node| {
            set(node, "aof_last_write_status", "err");
        }),
        (Warning, "persistence", |node| {
            set(node, "rdb_last_bgsave_status", "err");
        }),
        (Warning, "replicas", |node| {
            set(node, "connected_slaves", "2")
        }),
        (Warning, "latency", |node| {
            node_report(node).round_trips = vec![51 * MS; 10]
        }),
        (Warning, "latency", |node| {
            node_report(node).round_trips[3] = 26 * MS
        }),
        (Warning, "clock", |node| {
            node_report(node).clock = Some(1004)
        }),
        (Warning, "clock", |node| {
            node_report(node).clock = Some(-998)
        }),
        (Note, "uptime", |node| {
            set(node, "uptime_in_seconds", "3599")
        }),
        (Warning, "clients", |node| {
            set(node, "connected_clients", "8001")
        }),
        (Warning, "clients", |node| {
            set(node, "rejected_connections", "1")
        }),
        (Warning, "plain-text", |node| {
            node_report(node).location = Location::Ip(IpAddr::from([8, 8, 8, 8]));
            node.plain_password = true;
        }),
        (Warning, "insecure", |node| node.insecure = true),
        (Warning, "reach", |node| {
            node.node_report = Err(Cause::NoAnswer(MS, Limit::Node(1)))
        }),
        (Warning, "auth", |node| {
            node.node_report = Err(Cause::refused("NOAUTH Authentication required."));
        }),
        (Warning, "probe", |node| {
            node_report(node).probe = TrialLock::Refused("SET", Cause::refused("OOM"));
        }),
        (Warning, "probe", |node| node_report(node).probe = no_key()),
        (Note, "probe", |node| {
            node_report(node).probe = TrialLock::Held
        }),
        (Note, "rights", |node| {
            node_report(node).info = Err(Cause::refused("NOPERM"))
        }),
        (Note, "rights", |node| {
            node_report(node).appendfsync = Err(Cause::refused("NOPERM"))
        }),
        (Note, "rights", |node| {
            node_report(node).beside =
                Some(Cause::refused("NOPERM No permissions to access a key"));
        }),
        (Warning, "independence", |node| {
            node_report(node).location = Location::Ip(IpAddr::from([10, 0, 0, 0]));
        }),
    ];
    for (i, (severity, code, change)) in table.into_iter().enumerate() {
        let mut nodes = good(5);
        change(&mut nodes[3]);
        // The finding that explains why the probe is refused is the only one.
        if code == "role" {
            node_report(&mut nodes[3]).probe =
                TrialLock::Refused("SET", Cause::refused("READONLY"));
        }
        let expected = [(severity, Some(3), code)];
        assert_eq!(found(&nodes, RULES), expected, "row {i}");
    }
}

#[test]
fn a_server_that_may_be_a_replica_is_never_fit_without_a_word() {
    let mut nodes = good(3);
    set(&mut nodes[1], "role", "");
    assert_eq!(found(&nodes, RULES), [(Warning, Some(1), "role")]);
}

#[test]
fn a_set_is_not_one_node_of_too_few_and_findings_have_the_numbers_of_the_report() {
    let mut nodes = good(1);
    (nodes[0].is_set, nodes[0].number) = (true, 2);
    assert_eq!(found(&nodes, RULES), []);
    set(&mut nodes[0], "uptime_in_seconds", "1");
    assert_eq!(found(&nodes, RULES), [(Note, Some(2), "uptime")]);
    let text = judge(&nodes, RULES)[0].to_string();
    assert!(text.starts_with("node 2 (10.0.0.0:6379): "), "{text}");
    // The guard that is asked for waits as long on a set as the one that is on by default.
    set(&mut nodes[0], "uptime_in_seconds", "33");
    assert_eq!(found(&nodes, GUARDED), [(Fault, Some(2), "uptime")]);
}

#[test]
fn a_master_of_a_cluster_that_takes_no_lock_is_found() {
    let mut nodes = good(1);
    nodes[0].in_cluster = true;
    set(&mut nodes[0], "redis_mode", "cluster");
    assert!(!found(&nodes, RULES).contains(&(Fault, Some(0), "role")));
    node_report(&mut nodes[0]).probe = TrialLock::Refused("SET", Cause::refused("CLUSTERDOWN"));
    assert!(found(&nodes, RULES).contains(&(Fault, Some(0), "probe")));
}

#[test]
fn what_concerns_too_many_nodes_is_a_fault() {
    for count in [1, 3, 5] {
        for bad in 1..=count {
            let severity = match bad > count - (count / 2 + 1) {
                true => Fault,
                false => Warning,
            };
            let mut away = good(count);
            let mut refusing = good(count);
            for node in 0..bad {
                away[node].node_report = Err(Cause::NoAnswer(MS, Limit::Node(1)));
                node_report(&mut refusing[node]).probe =
                    TrialLock::Refused("SET", Cause::refused("OOM"));
            }
            for (nodes, code) in [(away, "reach"), (refusing, "probe")] {
                let mut found = found(&nodes, RULES);
                found.retain(|(_, node, _)| node.is_some());
                let expected = (0..bad).map(|node| (severity, Some(node), code));
                assert_eq!(found, expected.collect::<Vec<_>>(), "{bad} of {count}");
            }
        }
    }
}

/// The guard looks at each vote, and a Redis Cluster's replica sends its clients to its master.
#[test]
fn that_a_replica_takes_writes_matters_where_no_guard_looks() {
    let mut nodes = good(3);
    node_report(&mut nodes[1]).writable_replica = true;
    assert_eq!(found(&nodes, RULES), [(Warning, Some(1), "replicas")]);
    assert_eq!(found(&nodes, GUARDED), []);
    nodes[1].in_cluster = true;
    assert_eq!(found(&nodes, RULES), []);
    nodes[1].in_cluster = false;
    nodes[1].default_guard = Some(30 * Duration::from_secs(1));
    assert_eq!(found(&nodes, RULES), []);
}

/// Locks cannot be acquired, whatever keeps each node from voting.
#[test]
fn nodes_that_give_no_votes_for_different_reasons_are_counted_together() {
    type Change = fn(&mut Facts);
    let reasons: [(&str, Rules<'_>, Change); 10] = [
        ("latency", RULES, |node| {
            node_report(node).round_trips = vec![51 * MS; 10];
        }),
        ("reach", RULES, |node| {
            node.node_report = Err(Cause::NoAnswer(MS, Limit::Node(1)))
        }),
        ("auth", RULES, |node| {
            node.node_report = Err(Cause::refused("WRONGPASS invalid"));
        }),
        ("probe", RULES, |node| {
            node_report(node).probe = TrialLock::Refused("SET", Cause::refused("OOM"));
        }),
        ("role", RULES, |node| set(node, "role", "slave")),
        ("uptime", GUARDED, |node| {
            set(node, "uptime_in_seconds", "9")
        }),
        ("uptime", GUARDED, |node| set(node, "uptime_in_seconds", "")),
        ("uptime", GUARDED, |node| {
            set(node, "uptime_in_seconds", "-5");
        }),
        ("eviction", GUARDED, |node| set(node, "evicted_keys", "")),
        ("rights", GUARDED, |node| {
            node_report(node).info = Err(Cause::refused("NOPERM"));
        }),
    ];
    for (one, first, change) in reasons {
        for (other, second, change_other) in reasons {
            let rules = if first.guard.is_some() { first } else { second };
            for (count, spare) in [(3, 1), (5, 2)] {
                let mut nodes = good(count);
                nodes.iter_mut().take(spare).for_each(change);
                let severities = |nodes: &[Facts]| -> Vec<Severity> {
                    let found = found(nodes, rules).into_iter();
                    found.map(|(severity, ..)| severity).collect()
                };
                let expected = if one == "role" { Fault } else { Warning };
                assert_eq!(severities(&nodes), vec![expected; spare], "{one}");
                change_other(&mut nodes[spare]);
                let all = vec![Fault; spare + 1];
                assert_eq!(severities(&nodes), all, "{one}, {other}");
            }
        }
    }
}

#[test]
fn what_to_do_depends_on_what_is_wrong() {
    let refused = Cause::refused;
    let start = "start it, or look at its address and the network";
    let announced = |cause| {
        Cause::Announced(Box::new(Announced {
            cause,
            at: "h:1".into(),
            shown: "h:2".into(),
            by: "h:3".into(),
            advice: Some(""),
            is_final: false,
        }))
    };
    for (cause, code, what) in [
        (
            refused("ERR max number of clients reached"),
            "reach",
            "raise maxclients",
        ),
        (
            refused("BUSY Redis is busy running a script."),
            "reach",
            "SCRIPT KILL",
        ),
        (refused("LOADING Redis is loading"), "reach", "wait"),
        (
            refused("DENIED Redis is running in protected mode"),
            "reach",
            "protected-mode",
        ),
        (refused("ERR something new"), "reach", "look at its log"),
        (refused("WRONGPASS invalid"), "auth", "password"),
        (refused("NOPERM this user"), "rights", "permit it"),
        (Cause::Connect("refused".into()), "reach", start),
        (Cause::NoCredentials("sealed".into()), "auth", "closure"),
        (Cause::NotConnected(MS, MS), "reach", start),
        (Cause::NotRedis("HTTP".into()), "reach", "Redis server"),
        (Cause::NoAnswer(MS, Limit::Node(1)), "reach", "load"),
        (Cause::Unanswered(MS, "INFO".into()), "reach", "load"),
        (Cause::OtherServer, "reach", "look at its address"),
        (
            announced(Cause::OtherServer),
            "reach",
            "look at its address",
        ),
        (announced(Cause::NotConnected(MS, MS)), "reach", start),
    ] {
        let mut nodes = good(3);
        nodes[2].node_report = Err(cause);
        assert_eq!(found(&nodes, RULES), [(Warning, Some(2), code)]);
        let text = judge(&nodes, RULES)[0].to_string();
        assert!(text.contains(what), "{text}");
        assert_eq!(text.contains(start), what == start, "{text}");
    }
    // BUSY does not concern rights.
    let busy = || Cause::refused("BUSY Redis is busy running a script.");
    let mut nodes = good(3);
    node_report(&mut nodes[0]).info = Err(busy());
    node_report(&mut nodes[1]).appendfsync = Err(busy());
    let both = [0, 1].map(|node| (Note, Some(node), "reach"));
    assert_eq!(found(&nodes, RULES), both);
    for finding in judge(&nodes, RULES) {
        assert!(finding.to_string().ends_with("SCRIPT KILL"), "{finding}");
    }
}

#[test]
fn a_name_that_no_node_permits_does_not_affect_other_names() {
    let mut nodes = good(3);
    for node in &mut nodes {
        node_report(node).probe = no_key();
    }
    let all = [0, 1, 2].map(|node| (Warning, Some(node), "probe"));
    assert_eq!(found(&nodes, RULES), all);
    let text = judge(&nodes, RULES)[0].to_string();
    assert!(text.contains("may not use the name \"probe\""), "{text}");
}

#[test]
fn what_concerns_several_nodes_names_them_or_all() {
    let mut nodes = good(3);
    set(&mut nodes[2], "run_id", "0");
    node_report(&mut nodes[2]).probe = TrialLock::Held;
    assert_eq!(found(&nodes, RULES), [(Fault, Some(2), "same-server")]);
    // Either of the two may have been first.
    node_report(&mut nodes[2]).probe = TrialLock::Passed;
    node_report(&mut nodes[0]).probe = TrialLock::Held;
    assert_eq!(found(&nodes, RULES), [(Fault, Some(2), "same-server")]);

    let mut nodes = good(3);
    set(&mut nodes[1], "redis_version", "6.2.14");
    assert_eq!(found(&nodes, RULES), [(Note, None, "version")]);
    for node in &mut nodes {
        set(node, "redis_version", "2.6.11");
    }
    let old = [0, 1, 2].map(|node| (Fault, Some(node), "version"));
    assert_eq!(found(&nodes, RULES), old);

    let mut nodes = good(3);
    for node in &mut nodes {
        node_report(node).location = Location::ThisMachine;
        node_report(node).clock = Some(-5000);
    }
    let all = [(Warning, None, "clock"), (Note, None, "independence")];
    assert_eq!(found(&nodes, RULES), all);
    node_report(&mut nodes[0]).location = Location::Unknown;
    node_report(&mut nodes[1]).location = Location::Ip(IpAddr::from([10, 0, 0, 1]));
    assert_eq!(found(&nodes, RULES), [(Warning, None, "clock")]);
    // One node alone is off.
    node_report(&mut nodes[0]).clock = Some(12_000);
    assert_eq!(found(&nodes[..1], RULES)[0], (Warning, None, "clock"));
}

#[test]
fn keys_in_another_slot_are_no_matter_of_rights() {
    for (error, expected) in [
        (
            "NOPERM No permissions to access a key",
            "with the key pattern ~",
        ),
        (
            "CROSSSLOT Keys in request don't hash to the same slot",
            "give the name a {tag}",
        ),
    ] {
        let mut nodes = good(3);
        node_report(&mut nodes[1]).beside = Some(Cause::refused(error));
        let findings = judge(&nodes, RULES);
        let text = findings[0].to_string();
        assert!(findings.len() == 1 && text.contains(expected), "{text}");
    }
}

#[test]
fn the_worst_comes_first() {
    let mut nodes = good(4);
    set(&mut nodes[0], "uptime_in_seconds", "1");
    set(&mut nodes[2], "maxmemory", "100000000");
    set(&mut nodes[2], "maxmemory_policy", "allkeys-lru");
    set(&mut nodes[1], "connected_slaves", "1");
    let expected = [
        (Fault, Some(2), "eviction"),
        (Warning, None, "count"),
        (Warning, Some(1), "replicas"),
        (Note, Some(0), "uptime"),
    ];
    assert_eq!(found(&nodes, RULES), expected);
    assert!(Fault > Warning && Warning > Note);
}

/// Whatever a server replies.
#[test]
fn no_answer_makes_it_panic() {
    let values = [
        "",
        "-1",
        "99999999999999999999",
        "x",
        "0",
        "18446744073709551615",
    ];
    for field in GOOD.lines().filter_map(|line| line.split(':').next()) {
        for value in values {
            let mut nodes = good(3);
            set(&mut nodes[1], field, value);
            node_report(&mut nodes[1]).clock = Some(i64::MIN);
            node_report(&mut nodes[0]).clock = Some(i64::MAX);
            node_report(&mut nodes[2]).round_trips.clear();
            judge(&nodes, RULES);
        }
    }
    let mut nodes = good(1);
    node_report(&mut nodes[0]).info = Ok(ServerInfo::of(""));
    let expected = [(Warning, Some(0), "role"), (Note, None, "count")];
    assert_eq!(found(&nodes, RULES), expected);
}
