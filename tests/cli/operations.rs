//! `redlock inspect`, `redlock doctor` and `redlock list` as processes, against real servers.

use crate::children::{REDLOCK, machine_has_nodes, output, redlock_command, start};
use crate::support;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use redlock_sync::{Lock, Redlock};
use serde_json::{Value, json};
use support::clocks::Clocks;
use support::*;

/// `redlock`, patient with a busy machine.
pub(crate) fn command(nodes: &str, arguments: &[&str]) -> Command {
    let mut command = redlock_command(nodes, arguments);
    // For list it is also the time between two looks, and a page has four of it.
    if matches!(arguments, ["inspect" | "release" | "doctor", ..])
        && !arguments.contains(&"--node-timeout")
    {
        command.args(["--node-timeout", "2s"]);
    }
    command
}

/// Its exit code, and what it says.
pub(crate) fn run(command: &mut Command) -> (i32, String, String) {
    let (status, out, err) = output(command);
    let code = status.code();
    (
        code.unwrap_or_else(|| panic!("{status}\n{out}\n{err}")),
        out,
        err,
    )
}

fn nodes(servers: &[Server]) -> String {
    urls(servers).join(",")
}

fn says(servers: &[Server], arguments: &[&str]) -> (i32, String, String) {
    run(&mut command(&nodes(servers), arguments))
}

/// One line of JSON, and the exit code.
fn json_of(servers: &[Server], arguments: &[&str]) -> (i32, Value) {
    let (code, out, err) = says(servers, arguments);
    assert_eq!(out.lines().count(), 1, "{out}{err}");
    // Shown if the test fails.
    print!("{err}");
    (code, serde_json::from_str(&out).unwrap())
}

fn fingerprint(lock: &Lock) -> String {
    lock.token().fingerprint().to_string()
}

fn keys(value: &Value) -> Vec<&str> {
    let mut keys: Vec<&str> = value
        .as_object()
        .unwrap()
        .keys()
        .map(String::as_str)
        .collect();
    keys.sort_unstable();
    keys
}

fn everywhere(servers: &[Server], args: &[&[u8]]) {
    for server in servers {
        server.command_table(args);
    }
}

/// Held by a client that is connected to all nodes.
fn held_on_all(redlock: &Redlock, servers: &[Server], name: &str) -> Lock {
    let lock = take(redlock, name);
    let on_all = || servers.iter().all(|server| server.exists(name));
    eventually("it is on all nodes", on_all);
    lock
}

const COMMANDS: [&str; 6] = [
    "inspect a",
    "inspect --json a",
    "doctor",
    "doctor --json",
    "list",
    "list --json *",
];

const LONG: &str = "60000";

#[test]
fn inspect_shows_the_holder_to_people_and_to_programs() {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    let lock = held_on_all(&redlock, &servers, "a");
    let name = fingerprint(&lock);

    let (code, out, err) = says(&servers, &["inspect", "a"]);
    assert_eq!((code, &*err), (0, ""), "{out}");
    let lines: Vec<&str> = out.lines().collect();
    assert!(
        lines[0].starts_with(&format!("a: held by {name} for ")),
        "{out}"
    );
    assert_eq!(lines[2].split_whitespace().nth(3), Some("REMAINING"));
    for (node, line) in lines[3..].iter().enumerate() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let address = format!("127.0.0.1:{}", servers[node].port());
        assert_eq!(words[..3], [&node.to_string(), &*address, "held"], "{out}");
        assert_eq!(words[5], name, "{out}");
        // Aligned with the head.
        assert_eq!(line.find(&name), lines[2].find("HOLDER"), "{out}");
    }
    assert_eq!(lines.len(), 6, "{out}");

    let (code, seen) = json_of(&servers, &["inspect", "--json", "a"]);
    assert_eq!(code, 0);
    let of_all = [
        "fingerprint",
        "has_left",
        "held_s",
        "holders",
        "kind",
        "label",
        "longest_wait_s",
        "name",
        "nodes",
        "remaining_ms",
        "state",
        "waiting",
        "waiting_labels",
    ];
    let of_one = [
        "address",
        "clock_offset_ms",
        "error",
        "fingerprint",
        "has_left",
        "held_s",
        "holders",
        "kind",
        "label",
        "node",
        "remaining_ms",
        "state",
    ];
    assert_eq!(keys(&seen), of_all);
    assert_eq!(seen["name"], "a");
    for (i, node) in seen["nodes"].as_array().unwrap().iter().enumerate() {
        assert_eq!(keys(node), of_one);
        assert_eq!(node["node"], i);
        assert_eq!(node["error"], Value::Null);
    }
    let all = [
        vec![seen.clone()],
        seen["nodes"].as_array().unwrap().clone(),
    ]
    .concat();
    assert_eq!(all.len(), 4);
    for one in all {
        assert_eq!(
            (&one["state"], &one["fingerprint"]),
            (&json!("held"), &json!(name))
        );
        assert_eq!(
            (&one["label"], &one["kind"]),
            (&Value::Null, &json!("lock"))
        );
        let holders = one["holders"].as_array().unwrap();
        assert_eq!(
            (holders.len(), &holders[0]["fingerprint"]),
            (1, &json!(name))
        );
        assert!((1..=60_000).contains(&one["remaining_ms"].as_u64().unwrap()));
    }
    lock.release().unwrap();
    assert_eq!(
        json_of(&servers, &["inspect", "--json", "a"]).1["state"],
        "free"
    );
    assert!(says(&servers, &["inspect", "a"]).1.starts_with("a: free\n"));
}

#[test]
fn inspect_reports_what_blocks_a_lock_and_what_it_cannot_see() {
    let mut servers = Server::several(3);
    let state = |servers: &[Server], name: &str| {
        let (code, seen) = json_of(servers, &["inspect", "--json", name]);
        let of = |node: &Value| node["state"].as_str().unwrap().to_owned();
        let nodes: Vec<String> = seen["nodes"].as_array().unwrap().iter().map(of).collect();
        (code, of(&seen), nodes.join(" "), seen)
    };
    everywhere(&servers, &[b"HSET", b"hash", b"a", b"b"]);
    everywhere(&servers, &[b"SET", b"endless", &[7; 20]]);
    let named = [&[7; 20][..], b"\0redlock:12345web-3:4711"].concat();
    everywhere(
        &servers,
        &[b"SET", b"named", &named, b"PX", LONG.as_bytes()],
    );
    servers[0].command_table(&[b"SET", b"mixed", &[1; 20], b"PX", LONG.as_bytes()]);
    servers[1].command_table(&[b"SET", b"mixed", &[2; 20], b"PX", LONG.as_bytes()]);
    let (code, word, each, seen) = state(&servers, "hash");
    assert_eq!(
        (code, &*word, &*each),
        (0, "blocked", "foreign foreign foreign")
    );
    assert_eq!(
        (&seen["remaining_ms"], &seen["fingerprint"]),
        (&Value::Null, &Value::Null)
    );
    let (code, word, each, seen) = state(&servers, "endless");
    assert_eq!((code, &*word, &*each), (0, "held", "held held held"));
    assert_eq!(
        (&seen["remaining_ms"], &seen["fingerprint"]),
        (&Value::Null, &json!("07070707"))
    );
    assert_eq!(state(&servers, "named").3["label"], "web-3:4711");
    let (code, word, each, _) = state(&servers, "mixed");
    assert_eq!((code, &*word, &*each), (0, "blocked", "held held free"));
    let text = says(&servers, &["inspect", "named"]).1;
    assert!(
        text.starts_with("named: held by 07070707 (web-3:4711) for 0 s, for "),
        "{text}"
    );
    let text = says(&servers, &["inspect", "endless"]).1;
    assert!(
        text.starts_with("endless: held by 07070707, for ever\n"),
        "{text}"
    );

    servers[2].kill();
    let (code, word, each, seen) = state(&servers, "named");
    assert_eq!((code, &*word, &*each), (0, "held", "held held failed"));
    let error = seen["nodes"][2]["error"].as_str().unwrap();
    assert!(error.starts_with("cannot connect: "), "{error}");
    let (code, out, err) = says(&servers, &["inspect", "named"]);
    assert_eq!((code, &*err), (0, ""));
    assert!(
        out.contains("failed") && out.contains("cannot connect"),
        "{out}"
    );

    servers[1].kill();
    let (code, word, each, _) = state(&servers, "named");
    assert_eq!(
        (code, &*word, &*each),
        (69, "unknown", "held failed failed")
    );
    let (code, out, err) = says(&servers, &["inspect", "named"]);
    assert_eq!(code, 69);
    assert!(out.starts_with("named: unknown\n"), "{out}");
    for (node, server) in servers.iter().enumerate().skip(1) {
        let named = format!(
            "redlock: node {node} (127.0.0.1:{}): cannot connect",
            server.port()
        );
        assert!(err.contains(&named), "{err}");
    }
    assert!(err.ends_with("redlock: too few nodes answered\n"), "{err}");
}

#[test]
fn names_of_any_bytes_go_through_and_are_shown_escaped() {
    let servers = Server::several(1);
    let name = b"a\n\x1b[2J\xff\\";
    everywhere(&servers, &[b"SET", name, &[7; 20], b"PX", LONG.as_bytes()]);
    let shown = r"a\x0a\x1b[2J\xff\x5c";
    for json in [false, true] {
        let mut command = command(&nodes(&servers), &["inspect"]);
        if json {
            command.arg("--json");
        }
        let (code, out, _) = run(command.arg(OsStr::from_bytes(name)));
        assert_eq!(code, 0, "{out}");
        if json {
            let seen: Value = serde_json::from_str(&out).unwrap();
            assert_eq!(
                (&seen["name"], &seen["state"]),
                (&json!(shown), &json!("held"))
            );
        } else {
            assert!(out.starts_with(&format!("{shown}: held")), "{out}");
        }
    }
}

#[test]
fn what_cannot_work_is_a_usage_error_that_names_it() {
    let servers = Server::several(1);
    let long = "n".repeat(64 * 1024 + 1);
    let cases: &[(&[&str], &str)] = &[
        (&["inspect"], "<NAME>"),
        (&["inspect", ""], "0 bytes"),
        (&["inspect", &long], "65537 bytes"),
        (&["inspect", "a", "b"], "'b'"),
        (&["inspect", "--stuck", "a"], "--stuck"),
        // Without effect there.
        (
            &["inspect", "--restart-guard", "1h", "a"],
            "--restart-guard",
        ),
        (&["list", "--restart-guard", "1h"], "--restart-guard"),
        (
            &["inspect", "--node-timeout", "0s", "a"],
            "--node-timeout is 0s",
        ),
        (&["inspect", "--node", "nonsense", "a"], "--node, URL 1"),
        (&["list", ""], "the pattern is empty"),
        (&["list", "a", "b"], "'b'"),
        (&["list", "--older", "-1"], "'-1'"),
        (&["list", "--node-timeout", "0s"], "--node-timeout is 0s"),
        (&["doctor", "a"], "'a'"),
        (&["doctor", "--probe", ""], "0 bytes"),
        (&["doctor", "--max-ttl", "-1"], "'-1'"),
        (&["doctor", "--max-ttl", "5w"], "ms, s, m, h or d"),
    ];
    for (arguments, text) in cases {
        let (code, out, err) = says(&servers, arguments);
        assert_eq!(code, 64, "{arguments:?}: {err}");
        assert!(out.is_empty() && err.contains(text), "{arguments:?}: {err}");
    }
    if !machine_has_nodes("what_cannot_work_is_a_usage_error_that_names_it") {
        for one in ["doctor", "list"] {
            let (code, _, err) = run(&mut command("", &[one]));
            assert!(code == 64 && err.contains("no nodes"), "{err}");
        }
    }
    let twice = [servers[0].url(), servers[0].url()].join(",");
    let (code, _, err) = run(&mut command(&twice, &["list"]));
    assert!(code == 64 && err.contains("REDLOCK_NODES"), "{err}");
    assert!(servers[0].keys().is_empty());
}

#[test]
fn a_node_that_is_given_without_its_flag_is_answered_with_the_flag() {
    let servers = Server::several(1);
    let tip = |arguments: &[&str]| {
        let (code, out, err) = run(&mut command("", arguments));
        assert_eq!((code, &*out), (64, ""), "{arguments:?}: {err}");
        let line = err.lines().find_map(|line| line.strip_prefix("  tip: "));
        let tip = line.unwrap_or_else(|| panic!("{arguments:?}: {err}"));
        (tip.to_owned(), err)
    };
    let by_flag = "a node is given by --node redis://";
    for (arguments, expected) in [
        (&["doctor", "10.0.0.1"][..], "10.0.0.1"),
        (&["doctor", "redis-1:6380"], "redis-1:6380"),
        (&["doctor", "redis://10.0.0.1"], "10.0.0.1"),
        (&["doctor", "--strict", "a b"], "HOST"),
        (&["list", "redis://10.0.0.1", "shop:*"], "10.0.0.1"),
        (&["list", "shop:*", "10.0.0.1"], "HOST"),
        (&["inspect", "shop:a", "redis://10.0.0.1"], "10.0.0.1"),
        (&["inspect", "shop:a", "shop:b"], "HOST"),
        (&["release", "--force", "shop:a", "10.0.0.1"], "HOST"),
    ] {
        assert_eq!(tip(arguments).0, format!("{by_flag}{expected}"));
    }
    // Passwords are not for command lines. Those of other programs end up in logs, too.
    for url in ["redis://:hunter2@10.0.0.1", "unix:///s?pass=hunter2"] {
        let (tip, err) = tip(&["doctor", url]);
        assert!(tip.contains("--nodes-file, or in REDLOCK_NODES"), "{tip}");
        assert!(err.contains("'***'") && !err.contains("hunter2"), "{err}");
    }
    let (_, err) = tip(&["doctor", "user:hunter2@10.0.0.1"]);
    assert!(!err.contains("hunter2"), "{err}");
    if !machine_has_nodes("a_node_that_is_given_without_its_flag_is_answered_with_the_flag") {
        let (code, _, err) = run(&mut command("", &["list", "redis://10.0.0.1"]));
        assert!(code == 64 && err.contains("--node redis://HOST"), "{err}");
    }
    // No mistake of that kind.
    for arguments in [&["doctor", "--no-such"][..], &["man", "10.0.0.1"]] {
        let (code, _, err) = run(&mut command("", arguments));
        assert!(code == 64 && !err.contains("a node"), "{err}");
    }
    // Where a NAME or a PATTERN may stand, it is one, and nothing is found.
    let url = servers[0].url();
    for arguments in [
        &["list", &url][..],
        &["inspect", &url],
        &["release", "--force", "--yes", &url],
    ] {
        let (code, _, err) = says(&servers, arguments);
        let expected = format!("a node is given by --node {url}\n");
        assert!(code == 0 && err.contains(&expected), "{err}");
    }
    for arguments in [&["list", "shop:*"][..], &["inspect", "shop:a"]] {
        let (code, _, err) = says(&servers, arguments);
        assert!(code == 0 && !err.contains("a node"), "{err}");
    }
}

// ---- doctor

const GOOD: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

fn good(count: usize) -> Vec<Server> {
    (0..count).map(|_| Server::with_args(&GOOD)).collect()
}

/// Severity, code and node; the notes that servers which were just started here have in common left out.
fn findings(report: &Value) -> Vec<(String, String, Value)> {
    let findings = report["findings"].as_array().unwrap().iter();
    let word = |value: &Value| value.as_str().unwrap().to_owned();
    let all = findings.map(|one| {
        assert_eq!(keys(one), ["code", "node", "severity", "text"]);
        (
            word(&one["severity"]),
            word(&one["code"]),
            one["node"].clone(),
        )
    });
    all.filter(|(severity, code, _)| {
        severity != "note" || !["independence", "uptime"].contains(&&**code)
    })
    .collect()
}

fn finding(severity: &str, code: &str, node: impl Into<Value>) -> (String, String, Value) {
    (severity.into(), code.into(), node.into())
}

/// Valkey's own: what it calls `redis_version` is the one that it is compatible with.
fn version(server: &Server) -> String {
    let text: String = redis::from_redis_value(server.command(&["INFO", "server"])).unwrap();
    let named = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
    let version = named("valkey_version:").or_else(|| named("redis_version:"));
    version.unwrap().trim().to_owned()
}

#[test]
fn doctor_ends_with_1_for_a_fault_and_if_strict_for_a_warning() {
    let mut servers = good(3);
    let doctor = |servers: &[Server], more: &[&str]| {
        let (code, report) = json_of(servers, &[&["doctor", "--json"], more].concat());
        (code, report["fit"].as_bool().unwrap(), findings(&report))
    };
    assert_eq!(doctor(&servers, &["--strict"]), (0, true, vec![]));
    let (code, report) = json_of(&servers, &["doctor", "--json"]);
    assert_eq!(code, 0);
    assert_eq!(keys(&report), ["checked", "findings", "fit", "nodes"]);
    for (i, node) in report["nodes"].as_array().unwrap().iter().enumerate() {
        let of_one = [
            "address",
            "clock_offset_ms",
            "node",
            "role",
            "round_trip_us",
            "uptime_s",
            "version",
        ];
        assert_eq!(keys(node), of_one);
        assert_eq!(
            (&node["node"], &node["role"]),
            (&json!(i), &json!("master"))
        );
        assert_eq!(node["address"], format!("127.0.0.1:{}", servers[i].port()));
        assert_eq!(node["version"], version(&servers[i]));
        for number in ["uptime_s", "round_trip_us", "clock_offset_ms"] {
            assert!(node[number].is_i64(), "{node}");
        }
    }
    // Another holder has the lock that is tried.
    everywhere(&servers[..1], &[b"SET", b"tried", b"x"]);
    let held = doctor(&servers, &["--probe", "tried"]);
    assert_eq!(held, (0, true, vec![finding("note", "probe", 0)]));

    servers[1].kill();
    let away = vec![finding("warning", "reach", 1)];
    assert_eq!(doctor(&servers, &[]), (0, true, away.clone()));
    assert_eq!(doctor(&servers, &["--strict"]), (1, true, away));
    let (code, out, err) = says(&servers, &["doctor"]);
    assert_eq!((code, &*err), (0, ""));
    assert!(
        out.contains("\nwarning: reach: node 1 (127.0.0.1:"),
        "{out}"
    );
    assert!(out.ends_with("The nodes are fit for locks.\n"), "{out}");
    // Nothing is known about a node that cannot be asked.
    let (_, report) = json_of(&servers, &["doctor", "--json"]);
    assert_eq!(report["nodes"][1]["version"], Value::Null);

    // Too few nodes are a fault like others.
    servers[2].kill();
    let away = vec![finding("fault", "reach", 1), finding("fault", "reach", 2)];
    assert_eq!(doctor(&servers, &[]), (1, false, away));
    let (code, out, err) = says(&servers, &["doctor"]);
    assert_eq!((code, &*err), (1, ""));
    assert!(out.ends_with("The nodes are not fit for locks.\n"), "{out}");
    // The probe is gone at once.
    assert_eq!(servers[0].keys(), ["tried"]);

    let evicts = Server::with_args(
        &[
            &GOOD[..],
            &["--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru"],
        ]
        .concat(),
    );
    let servers = [good(2), vec![evicts]]
        .into_iter()
        .flatten()
        .collect::<Vec<_>>();
    assert_eq!(
        doctor(&servers, &[]),
        (1, false, vec![finding("fault", "eviction", 2)])
    );
    let writable = Server::with_args(&[&GOOD[..], &["--replica-read-only", "no"]].concat());
    let servers: Vec<Server> = good(2).into_iter().chain([writable]).collect();
    let found = vec![finding("warning", "replicas", 2)];
    assert_eq!(doctor(&servers, &["--strict"]), (1, true, found));
}

/// Beside another node: the commas of a set separate its sentinels.
#[test]
fn a_set_is_locked_shown_and_examined() {
    let (set, server) = (sentinels::Set::start(3), Server::with_args(&GOOD));
    let both = format!("{},{}", set.url(), server.url());
    let run_with = |nodes: &str, more: &[&str]| {
        let (code, out, err) = run(&mut command(nodes, more));
        assert_eq!(code, 0, "{more:?}: {out}{err}");
        out
    };
    let inspect = [REDLOCK, "inspect", "--json", "a"];
    let locked = [&["run", "--restart-guard", "0", "a"], &inspect[..]].concat();
    let shown: Value = serde_json::from_str(&run_with(&both, &locked)).unwrap();
    let at = format!("{} at 127.0.0.1:{}", sentinels::NAME, set.servers[0].port());
    assert_eq!(shown["nodes"][0]["address"], at, "{shown}");
    let doctor = |guard: &[&str]| {
        let (_, out, err) = run(&mut command(
            &set.url(),
            &[&["doctor", "--json"], guard].concat(),
        ));
        let report: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
        let mut found = findings(&report);
        found.retain(|(severity, ..)| severity != "note");
        found
    };
    let isolation = finding("warning", "isolation", 0);
    let young = finding("fault", "uptime", 0);
    assert_eq!(doctor(&[]), [young, isolation.clone()]);
    let [forgets, fails_over] = ["persistence", "replicas"].map(|code| finding("warning", code, 0));
    assert_eq!(
        doctor(&["--restart-guard", "0"]),
        [isolation.clone(), forgets.clone(), fails_over.clone()]
    );
    for server in &set.servers {
        server.command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
        server.command(&["CONFIG", "SET", "min-replicas-max-lag", "5"]);
    }
    assert_eq!(doctor(&["--restart-guard", "0"]), [forgets, fails_over]);
    set.sentinels[2].stop();
    let codes = doctor(&[]).into_iter().map(|(_, code, _)| code);
    assert_eq!(codes.collect::<Vec<_>>(), ["uptime", "sentinel"]);
}

#[test]
fn doctor_finds_a_user_that_a_replica_does_not_have() {
    let set = sentinels::Set::start(1);
    let user = "ACL SETUSER locks on >secret resetkeys ~shop:* ~{shop:* ~redlock:* resetchannels &redlock:* +@all";
    let create = |server: &Server, user: &str| {
        server.command(&user.split(' ').collect::<Vec<_>>());
    };
    let rights = || {
        let words = ["doctor", "--json", "--probe", "shop:check"];
        let (_, out, err) = run(&mut command(&set.url_for("locks:secret@", ""), &words));
        let report: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
        let found = report["findings"].as_array().unwrap().iter();
        let rights = found.filter(|one| one["code"] == "rights" && one["severity"] == "warning");
        rights
            .map(|one| one["text"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    create(&set.servers[0], user);
    eventually("the replica is known to its master", || {
        let info = set.servers[0].command(&["INFO", "replication"]);
        let info: String = redis::from_redis_value(info).unwrap();
        info.contains("state=online")
    });
    let replica = format!("the replica 127.0.0.1:{} ", set.servers[1].port());
    let found = rights();
    assert!(found.len() == 1 && found[0].contains(&replica), "{found:?}");
    assert!(
        found[0].contains("WRONGPASS") && !found[0].contains("secret"),
        "{found:?}"
    );
    // There, with rights for other names only.
    create(&set.servers[1], &user.replace("shop", "mail"));
    let found = rights();
    assert!(found.len() == 1 && found[0].contains("NOPERM"), "{found:?}");
    create(&set.servers[1], user);
    assert_eq!(rights(), Vec::<String>::new());
}

#[test]
fn doctor_takes_the_longest_ttl_from_the_restart_guard() {
    let servers = Server::several(1);
    let doctor = |more: &[&str]| {
        let (code, report) = json_of(&servers, &[&["doctor", "--json"], more].concat());
        let mut found = findings(&report);
        found.retain(|(severity, ..)| severity != "note");
        (code, found)
    };
    let forgets = finding("warning", "persistence", 0);
    let young = finding("warning", "uptime", 0);
    assert_eq!(doctor(&[]), (0, vec![forgets.clone()]));
    // That the ttl is known keeps no restart from forgetting locks.
    assert_eq!(
        doctor(&["--max-ttl", "1h"]),
        (0, vec![forgets.clone(), young])
    );
    // With the guard it gives no votes, and there is no other.
    let no_vote = finding("fault", "uptime", 0);
    assert_eq!(doctor(&["--restart-guard", "1h"]), (1, vec![no_vote]));
    eventually("it is old enough", || {
        doctor(&["--max-ttl", "1s"]) == (0, vec![forgets.clone()])
    });
}

/// The user of the README may use names with one prefix only.
#[test]
fn doctor_reports_that_nothing_was_checked_where_no_lock_could_be_tried() {
    let servers = good(3);
    let user = "ACL SETUSER few on >secret resetkeys ~shop:* resetchannels -@all \
        +set +get +del +pttl +pexpire +eval +time +info +config|get";
    let user: Vec<&str> = user.split_whitespace().collect();
    for server in &servers {
        server.command(&user);
    }
    let nodes = nodes(&servers).replace("://", "://few:secret@");
    let doctor = |more: &[&str]| run(&mut command(&nodes, &[&["doctor"], more].concat()));
    let (code, out, _) = doctor(&[]);
    let end = "The nodes could not be checked: give --probe NAME, the name of a lock that this user may take.\n";
    assert!(code == 1 && out.ends_with(end), "{code}: {out}");
    let (code, out, _) = doctor(&["--json"]);
    let report: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(code, 1);
    assert_eq!(
        (&report["checked"], &report["fit"]),
        (&json!(false), &json!(false))
    );
    let (code, out, _) = doctor(&["--probe", "shop:probe"]);
    assert!(code == 0 && out.ends_with("are fit for locks.\n"), "{out}");
    let missing = "permit them, with the key pattern ~{shop:*";
    assert_eq!(out.matches(missing).count(), 3, "{out}");
    for server in &servers {
        server.command(&["ACL", "SETUSER", "few", "~{shop:*"]);
    }
    let (code, out, _) = doctor(&["--probe", "shop:probe"]);
    assert!(code == 0 && !out.contains("key pattern"), "{out}");
}

/// The names are those of the team: what its user is permitted is given once.
/// The guide's table of what a job costs.
#[test]
fn the_guide_counts_the_commands_of_a_job() {
    let servers = Server::several(1);
    // Other versions of the server count otherwise.
    if !version(&servers[0]).starts_with("7.0") {
        return skipped("the_guide_counts_the_commands_of_a_job", "with this server");
    }
    servers[0].command(&["CONFIG", "RESETSTAT"]);
    assert_eq!(says(&servers, &["run", "x", "true"]).0, 0);
    let stats = servers[0].command(&["INFO", "commandstats"]);
    let text: String = redis::from_redis_value(stats).unwrap();
    let calls = |line: &str| {
        let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
        let (calls, _) = rest.split_once(',')?;
        let of_test = ["config", "client"].iter().any(|own| name.starts_with(own));
        (!of_test).then(|| format!("{name}={calls}"))
    };
    let mut found: Vec<String> = text.lines().filter_map(calls).collect();
    found.sort();
    let expected = "del=1 eval=1 evalsha=2 get=1 hello=1 info=2 script|load=7 set=1 zpopmin=1";
    assert_eq!(found.join(" "), expected);
    let guide = include_str!("../../src/guide/operations.md");
    let row = "| 14: `HELLO`, 2 `INFO`, 7 `SCRIPT LOAD`, `EVAL`, `EVALSHA`; `SET` to acquire, `EVALSHA` to release.";
    assert!(guide.contains(row) && guide.contains("| `GET`, `DEL`, `ZPOPMIN` |"));
}

#[test]
fn a_prefix_keeps_the_command_to_the_keys_of_a_team() {
    let servers = good(3);
    let user = "ACL SETUSER team on >secret resetkeys ~team:* ~{team:* resetchannels &team:* +@all";
    for server in &servers {
        server.command(&user.split_whitespace().collect::<Vec<_>>());
    }
    let nodes = nodes(&servers).replace("://", "://team:secret@");
    let says = |arguments: &[&str]| {
        let mut command = command(&nodes, arguments);
        run(command.env("REDLOCK_PREFIX", "team:"))
    };
    let (code, out, _) = says(&["doctor"]);
    assert!(code == 0 && !out.contains("key pattern"), "{out}");
    let listed = "redlock list --json; redlock inspect nightly; redlock list";
    let (code, out, err) = says(&["run", "--fence", "nightly", "sh", "-c", listed]);
    assert_eq!(code, 0, "{err}");
    let (json, rest) = out.split_once('\n').unwrap();
    let json: Value = serde_json::from_str(json).unwrap();
    assert_eq!(
        (&json["prefix"], &json["locks"][0]["name"]),
        (&json!("team:"), &json!("nightly"))
    );
    assert!(
        rest.starts_with("nightly: held by ") && rest.contains("\nnightly "),
        "{rest}"
    );
    assert!(
        err.contains("1 listed behind the prefix team:, 0 with a problem"),
        "{err}"
    );
    for server in &servers {
        assert_eq!(server.keys(), ["{team:nightly}:redlock:fence"]);
    }
    // The flag goes before the variable.
    let (code, _, err) = says(&["run", "--prefix", "shop:", "nightly", "true"]);
    assert!(code == 69 && err.contains("NOPERM"), "{code}: {err}");
    let (code, _, err) = says(&["list", "--prefix", "two words"]);
    assert!(
        code == 64 && err.contains("the prefix \"two words\" has spaces"),
        "{code}: {err}"
    );
}

#[test]
fn doctor_names_options_as_they_are_written_in_a_shell() {
    let servers = Server::several(1);
    for more in [&[][..], &["--json"], &["--max-ttl", "1h"]] {
        let (_, out, _) = says(&servers, &[&["doctor"], more].concat());
        assert!(out.contains("--restart-guard on all clients"), "{out}");
        assert!(!out.contains("Options::"), "{out}");
    }
}

#[test]
fn a_reader_that_has_gone_is_no_error_and_a_full_disk_is() {
    let servers = Server::several(1);
    let to_where_it_is_set = |mut command: Command| {
        let output = start(command.stderr(Stdio::piped())).output();
        let err = String::from_utf8(output.stderr).unwrap();
        (output.status.code().unwrap(), err)
    };
    for arguments in COMMANDS {
        let arguments: Vec<&str> = arguments.split(' ').collect();
        let mut reader_gone = command(&nodes(&servers), &arguments);
        reader_gone.stdout(std::io::pipe().unwrap().1);
        let (code, err) = to_where_it_is_set(reader_gone);
        let counts = "redlock: 0 listed, 0 with a problem; 0 keys looked at on 1 of 1 nodes\n";
        let said = if arguments[0] == "list" { counts } else { "" };
        assert_eq!((code, &*err), (0, said));
        let mut full = command(&nodes(&servers), &arguments);
        full.stdout(std::fs::File::create("/dev/full").unwrap());
        let (code, err) = to_where_it_is_set(full);
        assert!(code == 71 && err.contains("No space left"), "{err}");
    }
}

#[test]
fn no_password_and_no_token_is_shown() {
    let servers: Vec<Server> = (0..3)
        .map(|_| Server::with_args(&["--requirepass", "hunter2"]))
        .collect();
    let with = |password: &str| {
        let url = |server: &Server| {
            server
                .url()
                .replace("redis://", &format!("redis://:{password}@"))
        };
        servers.iter().map(url).collect::<Vec<_>>()
    };
    let redlock = Redlock::new(with("hunter2"))
        .unwrap()
        .with_options(options())
        .unwrap();
    let lock = take(&redlock, "a");
    let token = lock.token().as_bytes();
    let hex: String = token.iter().map(|byte| format!("{byte:02x}")).collect();
    for password in ["hunter2", "hunter22"] {
        for arguments in COMMANDS {
            let arguments: Vec<&str> = arguments.split(' ').chain(["-vvv"]).collect();
            let (_, out, err) = run(&mut command(&with(password).join(","), &arguments));
            let shown = format!("{out}{err}");
            let lower = shown.to_lowercase();
            assert!(
                !lower.contains("hunter2") && !lower.contains(&hex),
                "{shown}"
            );
            assert!(
                !shown.contains(&token.escape_ascii().to_string()),
                "{shown}"
            );
            assert!(!out.is_empty());
        }
    }
    lock.release().unwrap();
}

// ---- list

/// What `redlock list --json …` says: the exit code; name, nodes and problem of each; which nodes failed.
fn listed(servers: &[Server], more: &[&str]) -> (i32, Vec<String>, Vec<u64>) {
    let (code, list) = json_of(servers, &[&["list", "--json"], more].concat());
    assert_eq!(keys(&list), ["failed", "locks", "prefix"]);
    let lock = |lock: &Value| {
        let of_one = [
            "fingerprint",
            "has_left",
            "held_s",
            "kind",
            "label",
            "longest_wait_s",
            "name",
            "of",
            "on",
            "problems",
            "remaining_ms",
            "slot",
            "waiting",
            "waiting_labels",
        ];
        assert_eq!(keys(lock), of_one);
        assert_eq!(lock["of"], servers.len());
        let problems = lock["problems"].as_array().unwrap().iter();
        let problems: Vec<&str> = problems.map(|one| one.as_str().unwrap()).collect();
        let problem = if problems.is_empty() {
            "-".to_owned()
        } else {
            problems.join(",")
        };
        format!(
            "{} {} {problem}",
            lock["name"].as_str().unwrap(),
            lock["on"]
        )
    };
    let node = |node: &Value| {
        assert_eq!(keys(node), ["address", "error", "node"]);
        node["node"].as_u64().unwrap()
    };
    let all = |what: &str| list[what].as_array().unwrap().clone();
    (
        code,
        all("locks").iter().map(lock).collect(),
        all("failed").iter().map(node).collect(),
    )
}

fn set(server: &Server, name: &str, value: &[u8], ttl: &str) {
    server.command_table(&[b"SET", name.as_bytes(), value, b"PX", ttl.as_bytes()]);
}

const TOKEN: [u8; 20] = [0xA7; 20];

#[test]
fn list_finds_every_lock_and_every_leak_among_a_hundred_thousand_other_keys() {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    let others = "for i=1,20000 do redis.call('SET','s'..i,'2026-11-22T08:41:00Z') redis.call('HSET','h'..i,'a','b') \
        redis.call('SET','t'..i,'x','PX',600000) redis.call('RPUSH','l'..i,'a') \
        redis.call('SET','v'..i,string.rep('v',i%300)) end";
    everywhere(&servers, &[b"EVAL", others.as_bytes(), b"0"]);
    // One of a hundred megabytes: of it no more is read than of others.
    servers[0].command(&["SETRANGE", "huge", "100000000", "v"]);
    // Good ones, and what belongs to them: a counter, a queue, whose turn it is.
    let mut held = held_on_all(&redlock, &servers, "held");
    held.extend(10 * TTL).unwrap();
    held.fencing_token().unwrap();
    let waiting = self::redlock(&servers);
    everywhere(
        &servers,
        &[
            b"SET",
            b"{held}:redlock:wt",
            b"redlock:00112233445566778899",
            b"PX",
            LONG.as_bytes(),
        ],
    );
    let found = std::thread::scope(|scope| {
        let waiter = waiter(scope, || {
            let patient = waiting.acquire_within("held", TTL, ms(300_000));
            patient.unwrap().release()
        });
        eventually("it is in the queue", || {
            servers.iter().all(|server| server.queued("held") == 1)
        });
        assert!(
            servers
                .iter()
                .all(|server| server.exists("{held}:redlock:fence"))
        );
        // And what is wrong.
        everywhere(&servers, &[b"SET", b"made by hand", &TOKEN]);
        // They outlast both lists, on a busy machine as well.
        set(&servers[1], "left", &TOKEN, "600000");
        set(&servers[2], "held", &[0xB0; 20], "600000");
        everywhere(&servers, &[b"SET", b"day", &TOKEN, b"PX", b"86400000"]);
        set(&servers[0], "on two", &TOKEN, "600000");
        set(&servers[2], "on two", &TOKEN, "600000");
        let found = [["--remaining", "1h"].as_slice(), &["--stuck"]].map(|more| {
            // A list waits for four of the node timeouts before it calls something a leftover.
            let patient = ["--node-timeout", "2s", "--connect-timeout", "10s"];
            listed(&servers, &[more, &patient].concat())
        });
        held.release().unwrap();
        waiter.join().unwrap().unwrap();
        found
    });
    let all = [
        "day 3 long",
        "held 1 minority",
        "held 2 -",
        "left 1 minority",
        "made by hand 3 no-expiry",
        "on two 2 -",
    ];
    let found = found.map(|(code, mut found, failed)| {
        found.sort();
        (code, found, failed)
    });
    let leaked = [all[1], all[3], all[4]].map(str::to_owned).to_vec();
    assert_eq!(found[0], (0, all.map(str::to_owned).to_vec(), vec![]));
    assert_eq!(found[1], (1, leaked, vec![]));
}

#[test]
fn a_clock_that_differs_is_shown_beside_a_lock() {
    let Some(clocks) = Clocks::build("a_clock_that_differs_is_shown_beside_a_lock") else {
        return;
    };
    let (server, clock) = clocks.server("0");
    let servers = [server];
    let shown = || says(&servers, &["inspect", "a"]).1;
    assert_eq!(shown().lines().count(), 4, "{}", shown());
    for (nanoseconds, expected) in [
        (12_000_000_000, " ahead of this machine's"),
        (-12_000_000_000, " behind this machine's"),
    ] {
        clock.set(nanoseconds);
        let text = shown();
        assert!(
            text.contains("\nthe clock of node 0 (") && text.contains(expected),
            "{text}"
        );
    }
}

#[test]
fn what_is_held_or_waited_for_too_long_is_found_for_monitors() {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    let lock = held_on_all(&redlock, &servers, "a");
    let stuck = |limits: &[&str]| {
        let (code, found, _) = listed(&servers, &[&["--stuck"], limits].concat());
        (code, found)
    };
    let is = |problem: &str| (1, vec![format!("a 3 {problem}")]);
    eventually("it is old", || stuck(&["--older", "500ms"]) == is("old"));
    let hour = ["--older", "1h", "--waited", "1h", "--remaining", "1h"];
    assert_eq!(stuck(&hour), (0, vec![]));
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let labelled = support::options().label("web-2:4711");
            let redlock = connected(&servers).with_options(labelled).unwrap();
            redlock.acquire("a", TTL)
        });
        let waited = ["--older", "1h", "--waited", "500ms"];
        eventually("it is waited for", || stuck(&waited) == is("waited"));
        let both = ["--older", "500ms", "--waited", "500ms"];
        assert_eq!(stuck(&both), is("old,waited"));
        let text = says(&servers, &["inspect", "a"]).1;
        let (_, waits) = text.split_once("; one process waits, for ").unwrap();
        assert!(
            waits.lines().next().unwrap().ends_with("s: web-2:4711"),
            "{text}"
        );
        let (_, seen) = json_of(&servers, &["inspect", "--json", "a"]);
        assert_eq!(seen["waiting"], 1);
        assert_eq!(seen["waiting_labels"], json!(["web-2:4711"]));
        let text = says(&servers, &["list", "a"]).1;
        assert!(text.contains("  1 (web-2:4711)  "), "{text}");
        let (_, list) = json_of(&servers, &["list", "--json", "a"]);
        assert_eq!(list["locks"][0]["waiting_labels"], json!(["web-2:4711"]));
        assert!(seen["held_s"].as_u64().is_some() && seen["longest_wait_s"].as_u64().is_some());
        lock.release().unwrap();
        waiter.join().unwrap().unwrap().release().unwrap();
    });
}

#[test]
fn what_is_left_for_a_time_is_shown_as_left_and_not_as_held() {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    let hour = 60 * TTL;
    held_on_all(&redlock, &servers, "a")
        .leak_for(TTL / 2)
        .unwrap();
    let writer = redlock.write_lock("w").unwrap();
    writer.acquire(TTL).unwrap().leak_for(TTL / 2).unwrap();
    let pool = redlock.semaphore("s", 3).unwrap();
    pool.acquire(TTL).unwrap().leak_for(TTL / 2).unwrap();
    // No shorter than the ttl: the nodes note it all the same.
    let reader = redlock.read_lock("r").unwrap();
    reader.acquire(TTL).unwrap().leak_for(hour).unwrap();
    for (arguments, name) in [
        (["run", "--at-least", "1h"], "job"),
        (["run", "--at-least", "5s"], "short"),
        (["throttle", "--every", "1h"], "event"),
    ] {
        let ended = says(&servers, &[&arguments[..], &[name, "true"]].concat());
        assert_eq!((ended.0, &*ended.2), (0, ""), "{name}");
    }
    // One that was leaked may have gone on to another process.
    take(&redlock, "b").leak();

    for name in ["a", "w", "s", "r", "job", "short", "event"] {
        eventually(&format!("{name} is left on all"), || {
            let (_, seen) = json_of(&servers, &["inspect", "--json", name]);
            let mut nodes = seen["nodes"].as_array().unwrap().iter();
            nodes.all(|node| node["holders"][0]["has_left"] == true)
        });
        let (code, seen) = json_of(&servers, &["inspect", "--json", name]);
        let holder = &seen["holders"][0];
        assert_eq!(
            (code, &seen["state"], &holder["held_s"]),
            (0, &json!("held"), &Value::Null)
        );
        let plain = seen["kind"] == "lock";
        let left = if plain {
            Value::Bool(true)
        } else {
            Value::Null
        };
        assert_eq!(seen["has_left"], left, "{name}");
        let text = says(&servers, &["inspect", name]).1;
        let expected = if plain { ": left by " } else { ", left, for " };
        assert!(
            text.contains(expected) && text.contains("  left  "),
            "{text}"
        );
        assert!(!text.contains("held by 3"), "{text}");
    }
    let (_, seen) = json_of(&servers, &["inspect", "--json", "b"]);
    assert_eq!(seen["has_left"], false, "{seen}");

    // Nothing is under way there, so nothing is old.
    eventually("b is old", || {
        let stuck = listed(&servers, &["--stuck", "--older", "500ms"]);
        (stuck.0, stuck.1) == (1, vec!["b 3 old".to_owned()])
    });
    let (_, text, _) = says(&servers, &["run", "-n", "-v", "a", "true"]);
    assert_eq!(text, "");
    let (_, _, said) = says(&servers, &["run", "-n", "-v", "a", "true"]);
    assert!(said.contains("another has left the lock \"a\""), "{said}");
    let (_, _, said) = says(&servers, &["run", "-v", "-w", "1s", "a", "true"]);
    assert!(said.contains(" has left it, for "), "{said}");
    let (code, out, _) = says(&servers, &["release", "--force", "--yes", "a"]);
    assert_eq!(code, 0, "{out}");
}

#[test]
fn a_key_of_another_program_is_not_taken_for_a_lock_of_another_host() {
    let servers = Server::several(3);
    everywhere(&servers, &[b"SET", b"a", b"a session"]);
    everywhere(&servers, &[b"HSET", b"b", b"a", b"session"]);
    for name in ["a", "b"] {
        let (code, _, said) = says(&servers, &["run", "-n", "-v", name, "true"]);
        let expected = format!("the key \"{name}\" is taken, and is no lock of this program");
        assert!(code == 75 && said.contains(&expected), "{said}");
        assert!(
            !said.contains("session") && !said.contains("another has"),
            "{said}"
        );
    }
}

#[test]
fn a_list_without_locks_is_empty_and_nothing_has_leaked() {
    let servers = Server::several(3);
    assert_eq!(listed(&servers, &[]), (0, vec![], vec![]));
    assert_eq!(listed(&servers, &["--stuck"]), (0, vec![], vec![]));
    let lock = take(&redlock(&servers), "a");
    assert_eq!(listed(&servers, &["--stuck"]), (0, vec![], vec![]));
    lock.release().unwrap();
    let head = "NAME  NODES  REMAINING  HELD  WAITING  PROBLEM  HOLDER\n";
    let (code, out, err) = says(&servers, &["list"]);
    assert_eq!((code, &*out), (0, head));
    let counts = "redlock: 0 listed, 0 with a problem; ";
    assert!(err.starts_with(counts) && err.lines().count() == 1, "{err}");
}

#[test]
fn a_list_is_aligned_and_shows_holders_and_labels() {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    let lock = held_on_all(&redlock, &servers, "a");
    let labelled = [&TOKEN[..], b"\0redlock:\0\0\0\0\0web-3:4711"].concat();
    everywhere(&servers, &[b"SET", b"new\nline", &labelled]);
    let (code, out, err) = says(&servers, &["list"]);
    let counts = "redlock: 2 listed, 1 with a problem; 6 keys looked at on 3 of 3 nodes\n";
    assert_eq!((code, &*err), (0, counts));
    let lines: Vec<&str> = out.lines().collect();
    let holder = lines[0].find("HOLDER").unwrap();
    assert_eq!(&lines[1][holder..], fingerprint(&lock), "{out}");
    assert!(lines[1].starts_with("a            3/3    "), "{out}");
    assert_eq!(
        lines[2], r"new\x0aline  3/3    for ever   -     0        no-expiry  a7a7a7a7 (web-3:4711)",
        "{out}"
    );
    let (_, list) = json_of(&servers, &["list", "--json"]);
    let [a, b] = &list["locks"].as_array().unwrap()[..] else {
        panic!("{list}")
    };
    assert_eq!(
        (&a["fingerprint"], &a["label"]),
        (&json!(fingerprint(&lock)), &Value::Null)
    );
    assert!((1..=60_000).contains(&a["remaining_ms"].as_u64().unwrap()));
    assert_eq!(
        (&b["name"], &b["label"]),
        (&json!(r"new\x0aline"), &json!("web-3:4711"))
    );
    assert_eq!(b["remaining_ms"], Value::Null);
    lock.release().unwrap();
}

#[test]
fn a_pattern_lists_every_key_that_it_matches() {
    let servers = Server::several(1);
    let redlock = redlock(&servers);
    let lock = take(&redlock, "my:lock");
    lock.fencing_token().unwrap();
    let server = &servers[0];
    set(server, "my:short", b"1", LONG);
    set(
        server,
        "my:other library's",
        b"6f1c0c6e-94f5-4f0a-b1a5-0c2ff1fd4a51",
        LONG,
    );
    server.command(&["HSET", "my:hash", "a", "b"]);
    server.command(&["SET", "yours", "x"]);
    let (code, found, _) = listed(&servers, &["my:*"]);
    let all = [
        "my:hash 1 no-expiry",
        "my:lock 1 -",
        "my:other library's 1 -",
        "my:short 1 -",
    ];
    assert_eq!((code, &found[..]), (0, &all.map(str::to_owned)[..]));
    assert_eq!(
        listed(&servers, &["--stuck", "my:*"]),
        (1, vec![all[0].to_owned()], vec![])
    );
    assert_eq!(
        listed(&servers, &["--stuck", "my:[ls]*"]),
        (0, vec![], vec![])
    );
    assert_eq!(listed(&servers, &[]), (0, vec![all[1].to_owned()], vec![]));
    // What others keep is not shown.
    let (_, list) = json_of(&servers, &["list", "--json", "*"]);
    let text = list.to_string();
    assert!(
        !text.contains("6f1c") && !text.contains("0c2ff1fd4a51"),
        "{text}"
    );
    lock.release().unwrap();
}

/// Nodes that are none: they say what `answer` says, once they have been logged in to.
fn fakes(answer: impl Fn(&fake::Words) -> Vec<u8> + Clone + Send + Sync + 'static) -> String {
    let node = |_| {
        let answer = answer.clone();
        let fake = fake::Fake::new(move |words| match &words[0][..] {
            b"AUTH" => b"+OK\r\n".to_vec(),
            _ => answer(words),
        });
        fake.url("hunter2")
    };
    (0..3).map(node).collect::<Vec<_>>().join(",")
}

/// JSON, PHP sessions, UTF-8, random bytes, signed cookies, other libraries' tokens.
#[test]
fn nothing_of_a_value_is_shown_that_is_no_label_of_a_lock() {
    let servers = Server::several(1);
    let signed = [&TOKEN[..], b"user=7;password=hunter2"].concat();
    let binary = [&TOKEN[..], &[0xFE, 0xDC, 0xBA]].concat();
    let record = [&TOKEN[..16], &[0, 0, 0, 7], b"hunter2"].concat();
    let values: [&[u8]; 10] = [
        "{\"name\":\"Jürgen\",\"password\":\"hunter2\"}".as_bytes(),
        b"{\n  \"password\": \"hunter2\"\n}",
        b"O:1:\"U\":1:{s:4:\"\0U\0p\";s:7:\"hunter2\";}",
        "пароль для базы: hunter2".as_bytes(),
        b"\x81\xa8password\xaahunter2hunter2",
        b"6f1c0c6e-94f5-4f0a-b1a5-0c2ff1fd4a51",
        b"hunter2hunter2hunter",
        &signed,
        &binary,
        &record,
    ];
    for (i, value) in values.iter().enumerate() {
        set(&servers[0], &format!("x{i}"), value, LONG);
    }
    let (code, found, _) = listed(&servers, &[]);
    assert_eq!((code, found), (0, Vec::<String>::new()));
    let mut all = Vec::new();
    for i in 0..values.len() {
        all.push(says(&servers, &["inspect", &format!("x{i}")]).1);
        all.push(says(&servers, &["inspect", "--json", &format!("x{i}")]).1);
    }
    for more in [&["list"][..], &["list", "--json"]] {
        all.push(says(&servers, more).1);
        let with_pattern = says(&servers, &[more, &["*"]].concat()).1;
        let shown = |i: &usize| with_pattern.contains(&format!("x{i}"));
        assert!((0..values.len()).all(|i| shown(&i)), "{with_pattern}");
        all.push(with_pattern);
    }
    for text in all {
        // Nor a fingerprint, which would be the first bytes.
        for part in [
            "hunter",
            "assword",
            "парол",
            "6f1c",
            "7b22",
            "a7a7",
            "s:4",
            "fedc",
        ] {
            assert!(!text.contains(part), "{part}: {text}");
        }
    }
}

#[test]
fn a_server_that_repeats_its_input_shows_no_password_and_commands_no_terminal() {
    let nodes = fakes(|words| {
        let line = fake::line(words);
        format!("-ERR \x1b]0;owned\x07\u{9b}2J {line} after AUTH u hunter2\r\n").into()
    });
    for (arguments, code) in [
        ("inspect x", 69),
        ("inspect --json x", 69),
        ("list", 69),
        ("list --json", 69),
        ("doctor", 1),
        ("doctor --json", 1),
        ("run -n x true", 69),
        ("run -w 3s x true", 69),
        ("throttle --every 1h x", 69),
    ] {
        for more in [&[][..], &["-vvv"]] {
            let arguments: Vec<&str> = arguments.split(' ').collect();
            let (first, rest) = arguments.split_at(1);
            let arguments = [first, &["--node-timeout", "2s"], more, rest].concat();
            let (ended, out, err) = run(&mut command(&nodes, &arguments));
            let shown = format!("{out}{err}");
            assert_eq!(ended, code, "{shown}");
            assert!(!shown.contains("hunter"), "{shown}");
            let is_command = |c: char| c.is_control() && c != '\n';
            assert!(!shown.contains(is_command), "{shown:?}");
            assert!(shown.contains("x1b]0;owned"), "{shown}");
        }
    }
}

/// A name may have 65,536 bytes, each of which may be shown as four.
#[test]
fn long_names_and_long_errors_are_cut_for_people_and_whole_for_programs() {
    let servers = Server::several(1);
    let long = vec![0xFF; 65_536];
    servers[0].command_table(&[b"SET", &long, &TOKEN, b"PX", LONG.as_bytes()]);
    set(&servers[0], "short", &TOKEN, LONG);
    let patient = ["--node-timeout", "5s", "--connect-timeout", "10s"];
    let (code, out, err) = says(&servers, &[&["list"], &patient[..]].concat());
    assert_eq!(code, 0, "{err}");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 3);
    assert!(lines.iter().all(|line| line.chars().count() < 200), "{out}");
    assert!(out.contains("short ") && out.contains(" more)…"), "{out}");
    let (_, list) = json_of(&servers, &[&["list", "--json"], &patient[..]].concat());
    let name = list["locks"][1]["name"].as_str().unwrap();
    assert_eq!(name, r"\xff".repeat(65_536));
    let text = "e".repeat(60_000);
    let answer = format!("-ERR {text}\r\n").into_bytes();
    let nodes = fakes(move |_| answer.clone());
    let inspect = [&["inspect"], &patient[..]].concat();
    let (code, out, err) = run(&mut command(&nodes, &[&inspect[..], &["x"]].concat()));
    assert_eq!(code, 69, "{err}");
    assert!(out.lines().all(|line| line.chars().count() < 700), "{out}");
    assert!(err.lines().all(|line| line.chars().count() < 2100), "{err}");
    let (_, out, _) = run(&mut command(&nodes, &["doctor", "--probe", "x"]));
    assert!(out.lines().all(|line| line.chars().count() < 2100), "{out}");
    let as_json = [&inspect[..], &["--json", "x"]].concat();
    let (_, out, _) = run(&mut command(&nodes, &as_json));
    assert!(out.contains(&text));
}

#[test]
fn a_scan_that_never_ends_is_an_error() {
    let page = |names: usize| {
        let name = |i| format!("$6\r\nx{i:05}\r\n");
        let names: Vec<String> = (0..names).map(name).collect();
        format!("*2\r\n$1\r\n7\r\n*{}\r\n{}", names.len(), names.concat()).into_bytes()
    };
    for (names, keys) in [(1000, " keys in 11 pages"), (0, "0 keys in 30")] {
        let page = page(names);
        let nodes = fakes(move |words| match &words[0][..] {
            b"SCAN" => page.clone(),
            b"DBSIZE" => b":17\r\n".to_vec(),
            b"GETRANGE" => b"$0\r\n\r\n".to_vec(),
            b"PTTL" => b":-1\r\n".to_vec(),
            _ => b"+OK\r\n".to_vec(),
        });
        let mut command = command(&nodes, &["list"]);
        let (code, _, err) = run(command.args(["--node-timeout", "5s"]));
        assert_eq!(code, 69, "{err}");
        let expected = "its SCAN does not end: ";
        assert_eq!(err.matches(expected).count(), 3, "{err}");
        assert!(err.contains(keys) && err.contains("DBSIZE is 17"), "{err}");
    }
}

/// A list that is under way: its process, and nodes behind relays.
struct Slow {
    servers: Vec<Server>,
    relays: Vec<relay::Relay>,
}

impl Slow {
    fn new() -> Slow {
        let servers = Server::several(3);
        let relays = servers
            .iter()
            .map(|server| relay::Relay::to(server.port()))
            .collect();
        Slow { servers, relays }
    }

    fn stall(&self, nodes: &[usize], stalled: bool) {
        for node in nodes {
            self.relays[*node].set(|policy| policy.up.stalled = stalled);
        }
    }

    /// Those nodes are looked at after the others, and after `between`.
    fn list_with(&self, late: &[usize], between: impl FnOnce()) -> (i32, Value) {
        self.stall(late, true);
        let urls: Vec<String> = self.relays.iter().map(relay::Relay::url).collect();
        let arguments = [
            "list",
            "--stuck",
            "--json",
            "--node-timeout",
            "2s",
            "--connect-timeout",
            "20s",
        ];
        let mut list = command(&urls.join(","), &arguments);
        let list = start(list.stdout(Stdio::piped()));
        for (node, server) in self.servers.iter().enumerate() {
            if !late.contains(&node) {
                eventually("it has been looked at", || server.calls("pttl") > 0);
            }
        }
        between();
        self.stall(late, false);
        let output = list.output();
        let list = serde_json::from_slice(&output.stdout).unwrap();
        (output.status.code().unwrap(), list)
    }
}

#[test]
fn a_lock_released_between_two_nodes_scans_is_never_a_leftover() {
    let slow = Slow::new();
    let redlock = connected(&slow.servers);
    let lock = held_on_all(&redlock, &slow.servers, "a");
    let calls = || slow.servers[0].calls("getrange");
    let found = slow.list_with(&[1, 2], || lock.release().unwrap());
    assert_eq!(found, (0, json!({"prefix": "", "locks": [], "failed": []})));
    // It was seen on one node alone, so all were looked at again.
    assert_eq!(calls(), 2);
    assert_eq!(slow.servers[1].calls("getrange"), 1);
    // One that stays there is found, by the same way.
    set(&slow.servers[0], "a", &TOKEN, LONG);
    let (code, list) = slow.list_with(&[1, 2], || {});
    assert_eq!(
        (code, &list["locks"][0]["problems"]),
        (1, &json!(["minority"])),
        "{list}"
    );
    assert_eq!(calls(), 5);
}

#[test]
fn a_lock_taken_between_two_nodes_scans_is_never_a_leftover() {
    let slow = Slow::new();
    let redlock = connected(&slow.servers);
    // So that there is something to be looked at before.
    everywhere(&slow.servers, &[b"SET", b"other", b"x"]);
    let mut lock = None;
    let found = slow.list_with(&[2], || {
        lock = Some(held_on_all(&redlock, &slow.servers, "a"))
    });
    assert_eq!(found, (0, json!({"prefix": "", "locks": [], "failed": []})));
    let looks = |node: usize| slow.servers[node].calls("getrange");
    assert_eq!([looks(0), looks(2)], [2, 3]);
    lock.unwrap().release().unwrap();
}

#[test]
fn nodes_that_fail_are_named_and_a_quorum_decides() {
    let mut servers = Server::several(5);
    let redlock = connected(&servers);
    let lock = held_on_all(&redlock, &servers, "a");
    set(&servers[4], "left", &TOKEN, LONG);
    set(&servers[3], "unknown", &TOKEN, LONG);
    set(&servers[4], "unknown", &TOKEN, LONG);
    servers[0].kill();
    let locks = |found: &[&str]| {
        found
            .iter()
            .map(|one| (*one).to_owned())
            .collect::<Vec<_>>()
    };
    let seen = locks(&["a 4 -", "left 1 minority", "unknown 2 -"]);
    assert_eq!(listed(&servers, &[]), (0, seen, vec![0]));
    servers[1].kill();
    let seen = locks(&["a 3 -", "left 1 -", "unknown 2 -"]);
    // Where it could be on a majority, it is not called a leftover.
    assert_eq!(listed(&servers, &[]), (0, seen, vec![0, 1]));
    let (code, out, err) = says(&servers, &["list"]);
    assert_eq!((code, out.lines().count()), (0, 4), "{out}");
    for (node, server) in servers.iter().enumerate().take(2) {
        let named = format!("redlock: node {node} (127.0.0.1:{}): ", server.port());
        assert!(err.contains(&named), "{err}");
    }
    servers[2].kill();
    let (code, _, failed) = listed(&servers, &["--stuck"]);
    assert_eq!((code, failed), (69, vec![0, 1, 2]));
    let err = says(&servers, &["list"]).2;
    assert!(err.contains("redlock: too few nodes answered\n"), "{err}");
    assert!(err.ends_with(" on 2 of 5 nodes\n"), "{err}");
    drop(lock);
}

#[test]
fn a_node_that_is_silent_or_talks_nonsense_fails_within_its_time() {
    let servers = Server::several(3);
    let relay = relay::Relay::to(servers[2].port());
    let nodes = [servers[0].url(), servers[1].url(), relay.url()].join(",");
    set(&servers[0], "a", &TOKEN, LONG);
    set(&servers[1], "a", &TOKEN, LONG);
    type Spoil = fn(&mut relay::Policy);
    let spoil: [Spoil; 4] = [
        |policy| policy.up.stalled = true,
        |policy| policy.down.trickle = Some(ms(300)),
        |policy| policy.down.replace = Some(b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
        |policy| policy.down.cut_after = Some(7),
    ];
    for (i, spoil) in spoil.into_iter().enumerate() {
        relay.set(spoil);
        let since = Instant::now();
        let arguments = ["list", "--json", "--connect-timeout", "1s"];
        let (code, out, err) = run(&mut command(&nodes, &arguments));
        // To connect, and four node timeouts for a page; and as much twice more for a busy machine.
        assert!(
            since.elapsed() < 3 * (ms(1000) + 4 * NODE_TIMEOUT),
            "{i}: {:?}",
            since.elapsed()
        );
        let list: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(
            (code, &list["failed"][0]["node"]),
            (0, &json!(2)),
            "{i}: {out}"
        );
        assert_eq!(list["locks"][0]["on"], 2, "{i}: {out}");
        assert_eq!(list["locks"][0]["problems"], json!([]));
        assert!(err.starts_with("redlock: node 2 (127.0.0.1:"), "{err}");
        relay.heal();
    }
    // Without the right to look.
    servers[2].command(&["ACL", "SETUSER", "default", "-scan"]);
    let (code, out, err) = run(&mut command(&nodes, &["list"]));
    assert!(code == 0 && err.contains("scan"), "{out}{err}");
}

/// A process that it was handed to goes on with it.
#[test]
fn a_lock_that_was_left_and_is_extended_is_held_again() {
    let servers = Server::several(3);
    let [redlock, other] = [(); 2].map(|()| connected(&servers));
    let names = redlock.several(["n", "m"]).unwrap();
    let pool = redlock.semaphore("s", 3).unwrap();
    let left = |name: &str, is_left: bool| {
        eventually(&format!("{name} is left: {is_left}"), || {
            let (_, seen) = json_of(&servers, &["inspect", "--json", name]);
            let mut nodes = seen["nodes"].as_array().unwrap().iter();
            nodes.all(|node| node["holders"][0]["has_left"] == is_left)
        });
    };
    let leave = |lock: Lock, name: &str| {
        let (token, validity) = (*lock.token(), lock.remaining());
        lock.leak_for(TTL / 2).unwrap();
        left(name, true);
        (token, validity / 3)
    };
    let (token, validity) = leave(held_on_all(&redlock, &servers, "a"), "a");
    let mut a = other.resume("a", token, validity).unwrap();
    let (token, validity) = leave(names.acquire(TTL).unwrap(), "n");
    let mut n = other
        .several(["n", "m"])
        .unwrap()
        .resume(token, validity)
        .unwrap();
    let (token, validity) = leave(pool.acquire(TTL).unwrap(), "s");
    let mut s = other
        .semaphore("s", 3)
        .unwrap()
        .resume(token, validity)
        .unwrap();
    for (lock, name) in [(&mut a, "a"), (&mut n, "n"), (&mut s, "s")] {
        lock.extend(TTL).unwrap();
        left(name, false);
        let text = says(&servers, &["inspect", name]).1;
        assert!(!text.contains("left"), "{text}");
    }
    left("m", false);
    eventually("a is old", || {
        let (_, stuck, _) = listed(&servers, &["--stuck", "--older", "500ms"]);
        stuck.iter().any(|one| one == "a 3 old")
    });
    for server in &servers {
        let left: i64 = redis::from_redis_value(server.command(&["PTTL", "a"])).unwrap();
        assert!(
            left > 0 && u128::try_from(left).unwrap() <= TTL.as_millis(),
            "{left}"
        );
    }
    for lock in [a, n, s] {
        lock.release().unwrap();
    }
}
