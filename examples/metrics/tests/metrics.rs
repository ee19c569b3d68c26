//! The example with metrics, fetched as Prometheus does; and its alerts and its dashboard, which must name
//! nothing else.

#[path = "../../../tests/support/mod.rs"]
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use support::*;

/// The example, which is ended with its value.
struct Example(Child);

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn example() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_metrics"));
    pristine(&mut command).stdout(Stdio::piped());
    command
}

/// Each series, with its labels, and its value.
fn fetch(url: &str) -> BTreeMap<String, f64> {
    series(&get(url))
}

fn get(url: &str) -> String {
    let mut response = ureq::get(url).call().unwrap();
    let kind = response.headers()["content-type"].to_str().unwrap();
    assert!(kind.starts_with("text/plain; version=0.0.4"), "{kind}");
    response.body_mut().read_to_string().unwrap()
}

fn series(text: &str) -> BTreeMap<String, f64> {
    let series = text.lines().filter(|line| !line.starts_with('#'));
    let value = |line: &str| {
        let (name, value) = line.rsplit_once(' ').unwrap();
        (name.to_owned(), value.parse().unwrap())
    };
    series.map(value).collect()
}

/// Each metric has its help and its type before its series, and buckets follow one another by their bounds.
fn check_format(text: &str) {
    let (mut family, mut last) = ("", (String::new(), 0.0));
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            family = help.split(' ').next().unwrap();
            continue;
        }
        if let Some(kind) = line.strip_prefix("# TYPE ") {
            let expected = match family {
                name if name.ends_with("_total") => "counter",
                name if name.ends_with("_seconds") || name.ends_with("_ratio") => "histogram",
                _ => "gauge",
            };
            assert_eq!(kind, format!("{family} {expected}"));
            continue;
        }
        assert!(line.starts_with(family), "{line} is under {family}");
        if let Some((others, bound)) = line.split_once("le=\"") {
            let bound = bound.split('"').next().unwrap().parse().unwrap();
            assert!(last.0 != others || last.1 < bound, "{text}");
            last = (others.to_owned(), bound);
        }
    }
}

/// The values that a label has.
fn values<'a>(series: &'a BTreeMap<String, f64>, label: &str) -> BTreeSet<&'a str> {
    let start = format!("{label}=\"");
    let value = |name: &'a String| name.split_once(&start)?.1.split('"').next();
    series.keys().filter_map(value).collect()
}

fn names(series: &BTreeMap<String, f64>) -> BTreeSet<String> {
    let name = |name: &String| name.split('{').next().unwrap().to_owned();
    series.keys().map(name).collect()
}

/// Where it counts what is named so, and how much.
fn at_least(series: &BTreeMap<String, f64>, name: &str, least: f64) -> bool {
    series.get(name).is_some_and(|value| *value >= least)
}

#[test]
fn metrics_of_all_events_can_be_fetched_and_a_thousand_accounts_are_one_series() {
    let mut example = Example(example().spawn().unwrap());
    let mut out = BufReader::new(example.0.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    let url = line.trim().strip_prefix("metrics: ").unwrap().to_owned();
    let mut last = BTreeMap::new();
    let (mut down, mut held, mut waits) = (BTreeSet::new(), false, false);
    eventually("all of it has happened", || {
        last = fetch(&url);
        let nodes = last
            .iter()
            .filter(|(name, _)| name.starts_with("redlock_node_up{"));
        let away = nodes.filter(|(_, up)| **up == 0.0);
        down.extend(away.map(|(name, _)| name.split('"').nth(1).unwrap().to_owned()));
        held |= at_least(&last, "redlock_held{lock=\"shop:import\"}", 1.0);
        waits |= at_least(&last, "redlock_waiting{lock=\"shop:report\"}", 1.0);
        let counted = |name: &str| at_least(&last, name, 1.0);
        let node = down.first().cloned().unwrap_or_default();
        held && waits
            && counted("redlock_lost_total{lock=\"shop:import\",reason=\"deleted\"}")
            && counted(&format!("redlock_node_outages_total{{node=\"{node}\"}}"))
            && counted(&format!("redlock_node_up{{node=\"{node}\"}}"))
            && counted("redlock_extension_slack_ratio_bucket{lock=\"shop:import\",le=\"0.8\"}")
            && counted("redlock_extensions_total{lock=\"shop:import\",result=\"extended\"}")
            && counted("redlock_endings_total{lock=\"shop:import\",how=\"was_lost\"}")
            && counted("redlock_endings_total{lock=\"other\",how=\"leaked\"}")
            && counted("redlock_acquire_duration_seconds_count{lock=\"other\",result=\"busy\"}")
    });
    let accounts =
        "redlock_acquire_duration_seconds_count{lock=\"shop:account\",result=\"acquired\"}";
    assert!(at_least(&last, accounts, 100.0), "{last:?}");
    assert!(at_least(
        &last,
        "redlock_acquire_attempts_total{lock=\"shop:account\"}",
        100.0
    ));
    let classes = ["other", "shop:account", "shop:import", "shop:report"];
    assert_eq!(values(&last, "lock"), BTreeSet::from(classes));
    // Events name nodes as they are registered.
    let nodes = values(&last, "node");
    assert!(
        nodes.len() == 3 && down.iter().all(|node| nodes.contains(&**node)),
        "{nodes:?} {down:?}"
    );
    check_version(&last);
    check_names(&names(&last));
    check_format(&get(&url));

    // It ends by itself, and with it all locks have.
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert!(example.0.wait().unwrap().success(), "{rest}");
    let held: Vec<&str> = rest
        .lines()
        .filter(|line| line.starts_with("redlock_held{"))
        .collect();
    assert_eq!(held.len(), 4, "{rest}");
    assert!(held.iter().all(|line| line.ends_with("} 0")), "{held:?}");
    let waiting = rest
        .lines()
        .filter(|line| line.starts_with("redlock_waiting{"));
    assert!(
        waiting.clone().count() == 3 && waiting.clone().all(|line| line.ends_with("} 0")),
        "{rest}"
    );
}

/// The version is that of the crate.
fn check_version(series: &BTreeMap<String, f64>) {
    let manifest = include_str!("../../../Cargo.toml");
    let version = manifest
        .lines()
        .find_map(|line| line.strip_prefix("version = "));
    let version = version.unwrap().trim_matches('"');
    let name = format!("redlock_build_info{{version=\"{version}\"}}");
    assert_eq!(series.get(&name), Some(&1.0), "{name}");
}

/// What the alerts and the dashboard ask for is there.
fn check_names(exported: &BTreeSet<String>) {
    let alerts: Vec<&str> = include_str!("../../system/alerts.yml")
        .lines()
        .filter_map(|line| line.trim().strip_prefix("expr: "))
        // Those of the command are tested with it; and systemd's units have no metrics here.
        .filter(|alert| !alert.contains("redlock_run") && !alert.contains("node_systemd"))
        .collect();
    assert_eq!(alerts.len(), 4);
    let dashboard: serde_json::Value =
        serde_json::from_str(include_str!("../../metrics.json")).unwrap();
    let mut queries = Vec::new();
    strings(&dashboard, &mut queries, &["expr", "query", "definition"]);
    assert!(queries.len() > 10, "{queries:?}");
    // One alert is for all ttls; and a node that is down has a name.
    let slack = |alert: &&&str| alert.contains("redlock_extension_slack_ratio");
    assert_eq!(alerts.iter().filter(slack).count(), 1);
    assert!(
        queries
            .iter()
            .any(|query| { query.contains("by (node)") && query.contains("redlock_node_up") })
    );
    let mut asked = BTreeSet::new();
    for query in alerts.into_iter().chain(queries) {
        let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        asked.extend(words.filter(|word| word.starts_with("redlock_")));
    }
    for name in &asked {
        assert!(exported.contains(*name), "{name} is not among {exported:?}");
    }
    // Wait, hold, losses: and all the others.
    for name in exported {
        let of_histogram = ["_bucket", "_sum", "_count"];
        let stem = of_histogram.iter().find_map(|end| name.strip_suffix(end));
        let shown = asked
            .iter()
            .any(|asked| asked.starts_with(stem.unwrap_or(name)));
        assert!(shown, "nothing shows {name}");
    }
    let panels = dashboard["panels"].as_array().unwrap();
    let mut ids: Vec<u64> = panels
        .iter()
        .map(|panel| panel["id"].as_u64().unwrap())
        .collect();
    ids.dedup();
    assert_eq!(ids.len(), panels.len());
    assert!(
        panels
            .iter()
            .all(|panel| !panel["targets"].as_array().unwrap().is_empty())
    );
}

/// All strings that stand under one of these keys.
fn strings<'a>(value: &'a serde_json::Value, found: &mut Vec<&'a str>, keys: &[&str]) {
    match value {
        serde_json::Value::Object(map) => {
            for (key, value) in map {
                match value.as_str().filter(|_| keys.contains(&key.as_str())) {
                    Some(text) => found.push(text),
                    None => strings(value, found, keys),
                }
            }
        }
        serde_json::Value::Array(all) => {
            all.iter().for_each(|value| strings(value, found, keys));
        }
        _ => {}
    }
}

#[test]
fn a_batch_job_adds_to_a_file_from_run_to_run() {
    let servers = Server::several(1);
    let dir = TempDir::new();
    let file = dir.path().join("import.prom");
    let run = || {
        let mut command = example();
        command.arg("--batch").arg(&file);
        let nodes = servers[0].unix_url();
        command.env("REDLOCK_NODES", nodes).status().unwrap()
    };
    for count in [1.0, 2.0, 3.0] {
        assert!(run().success());
        let text = std::fs::read_to_string(&file).unwrap();
        check_format(&text);
        let series = series(&text);
        let ended = "redlock_endings_total{lock=\"shop:import\",how=\"released\"}";
        let slow = "redlock_hold_duration_seconds_bucket{lock=\"shop:import\",le=\"0.01\"}";
        let held = "redlock_hold_duration_seconds_count{lock=\"shop:import\"}";
        assert_eq!(
            (series[ended], series[held], series[slow]),
            (count, count, 0.0)
        );
        // Gauges are those of the last run.
        assert_eq!(series["redlock_held{lock=\"shop:import\"}"], 0.0);
        check_version(&series);
    }
    // What is none of these metrics is left as it is.
    std::fs::write(&file, "node_load1 0.5\n").unwrap();
    assert!(!run().success());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "node_load1 0.5\n");
}

#[test]
fn the_example_serves_until_it_is_interrupted() {
    let servers = Server::several(3);
    let port = free_port().to_string();
    let mut command = example();
    command.args(["--stay", "--port", &port]);
    // It was built without TLS.
    let nodes: Vec<String> = servers.iter().map(Server::unix_url).collect();
    let mut example = Example(
        command
            .env("REDLOCK_NODES", nodes.join(","))
            .spawn()
            .unwrap(),
    );
    let mut out = BufReader::new(example.0.stdout.take().unwrap());
    out.read_line(&mut String::new()).unwrap();
    let url = format!("http://127.0.0.1:{port}/metrics");
    eventually("it works", || {
        fetch(&url)
            .keys()
            .any(|name| name.contains("result=\"acquired\""))
    });
    let elsewhere = ureq::get(format!("http://127.0.0.1:{port}/")).call();
    assert!(matches!(elsewhere, Err(ureq::Error::StatusCode(404))));
    // SAFETY: plain system call on a child of ours that was not waited for.
    unsafe { libc::kill(i32::try_from(example.0.id()).unwrap(), libc::SIGINT) };
    out.read_to_string(&mut String::new()).unwrap();
    assert!(example.0.wait().unwrap().success());
    // Nodes that it was given it leaves alone, and frees.
    for server in &servers {
        eventually("freed", || {
            // But for what is left to its ttl.
            std::thread::sleep(Duration::from_millis(10));
            server
                .keys()
                .iter()
                .all(|key| key.starts_with("shop:mail:"))
        });
    }
}
