//! `redlock run --metrics-file`: what is in the file, and that nothing is lost from it.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fs, thread};

use crate::run::Fleet;
use crate::support::*;

struct Metrics {
    fleet: Fleet,
    dir: TempDir,
}

impl Metrics {
    fn new() -> Metrics {
        Metrics {
            fleet: Fleet::new(1),
            dir: TempDir::new(),
        }
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("redlock.prom")
    }

    /// The exit code, and what was printed.
    fn run(&self, words: &[&str]) -> (i32, String) {
        let file = self.file();
        let flags = ["run", "--metrics-file", file.to_str().unwrap()];
        let (status, _, errors) = self.fleet.output(&[&flags, words].concat());
        (status.code().unwrap(), errors)
    }

    fn series(&self) -> BTreeMap<String, f64> {
        series(&self.file())
    }

    fn counts(&self, name: &str) -> Vec<(String, f64)> {
        let begin = format!("redlock_runs_total{{name=\"{name}\",result=\"");
        let result = |(key, value): (String, f64)| {
            let result = key.strip_prefix(&begin)?.strip_suffix("\"}")?;
            (value > 0.0).then(|| (result.to_owned(), value))
        };
        self.series().into_iter().filter_map(result).collect()
    }

    /// Nothing else is in the directory, so nothing else is read there, and nothing was left behind.
    fn is_alone(&self) {
        let files: Vec<_> = fs::read_dir(self.dir.path())
            .unwrap()
            .map(|file| file.unwrap().file_name())
            .collect();
        assert_eq!(files, ["redlock.prom"]);
    }
}

/// All values. Each metric has its help and its type before them, once.
fn series(file: &Path) -> BTreeMap<String, f64> {
    let text = fs::read_to_string(file).unwrap();
    let mut family = "";
    let mut values = BTreeMap::new();
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            family = help.split(' ').next().unwrap();
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            assert!(kind.starts_with(&format!("{family} ")), "{line}");
        } else {
            assert!(line.starts_with(family), "{line} is under {family}");
            let (key, value) = line.rsplit_once(' ').unwrap();
            let before = values.insert(key.to_owned(), value.parse().unwrap());
            assert_eq!(before, None, "{key} is there twice");
        }
    }
    assert_eq!(text.matches("# TYPE").count(), 4, "{text}");
    values
}

#[test]
fn every_end_is_counted_under_its_name_with_its_times() {
    let metrics = Metrics::new();
    let before = SystemTime::now();
    assert_eq!(metrics.run(&["shop:a", "sleep", "0.3"]), (0, String::new()));
    let all = metrics.series();
    // An alert sees the first one of each kind.
    let zero = "redlock_runs_total{name=\"shop:a\",result=\"lost\"}";
    assert_eq!(all.get(zero), Some(&0.0), "{all:?}");
    let last = all["redlock_run_last_success_timestamp_seconds{name=\"shop:a\"}"];
    let before = before.duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
    assert!((before..before + 60.0).contains(&last), "{last} {before}");
    let held = all["redlock_run_hold_seconds_sum{name=\"shop:a\"}"];
    assert!((0.3..30.0).contains(&held), "{held}");
    let longer = "redlock_run_hold_seconds_bucket{name=\"shop:a\",le=\"0.1\"}";
    let all_of_them = "redlock_run_hold_seconds_bucket{name=\"shop:a\",le=\"+Inf\"}";
    assert_eq!((all[longer], all[all_of_them]), (0.0, 1.0));

    // COMMAND's own exit codes are none of redlock's.
    for code in ["1", "69", "75", "76", "124"] {
        let (status, _) = metrics.run(&["shop:a", "sh", "-c", &format!("exit {code}")]);
        assert_eq!(status.to_string(), code);
    }
    let (status, _) = metrics.run(&["--max-hold", "1s", "shop:a", "sleep", "60"]);
    assert_eq!(status, 124);
    let holder = ["run", "shop:b", "sh", "-c", "echo $$; exec sleep 60"];
    let holder = metrics.fleet.start(&holder);
    assert_eq!(metrics.run(&["-n", "-E", "69", "shop:b", "true"]).0, 69);
    drop(holder);
    let counted = [("failed", 5.0), ("max_hold", 1.0), ("succeeded", 1.0)];
    assert_eq!(
        metrics.counts("shop:a"),
        counted.map(|(result, count)| (result.to_owned(), count))
    );
    assert_eq!(metrics.counts("shop:b"), [("busy".to_owned(), 1.0)]);
    // What did not begin has no times.
    let all = metrics.series();
    assert_eq!(all["redlock_run_wait_seconds_count{name=\"shop:a\"}"], 7.0);
    assert!(
        !all.keys()
            .any(|key| key.contains("seconds") && key.contains("shop:b"))
    );

    let once = ["--once-per", "20h", "shop:once", "true"];
    assert_eq!((metrics.run(&once).0, metrics.run(&once).0), (0, 75));
    assert_eq!(
        metrics.counts("shop:once"),
        [("done".to_owned(), 1.0), ("succeeded".to_owned(), 1.0)]
    );
    // The lock goes while COMMAND runs.
    let file = metrics.file();
    let flags = [
        "run",
        "--metrics-file",
        file.to_str().unwrap(),
        "--ttl",
        "1s",
    ];
    let command = ["shop:lost", "sh", "-c", "echo $$; exec sleep 60"];
    let mut job = metrics.fleet.start(&[&flags[..], &command].concat());
    metrics.fleet.servers[0].command(&["DEL", "shop:lost"]);
    assert_eq!(job.wait().code(), Some(76));
    assert_eq!(metrics.counts("shop:lost"), [("lost".to_owned(), 1.0)]);
    metrics.fleet.servers[0].stop();
    assert_eq!(metrics.run(&["-w", "0", "shop:away", "true"]).0, 69);
    assert_eq!(
        metrics.counts("shop:away"),
        [("unavailable".to_owned(), 1.0)]
    );
    metrics.is_alone();
}

/// The metrics and results that the alerts name are there.
#[test]
fn alerts_name_what_is_counted() {
    let metrics = Metrics::new();
    assert_eq!(metrics.run(&["shop:nightly", "true"]).0, 0);
    let all = metrics.series();
    let alerts = include_str!("../../examples/system/alerts.yml").lines();
    let alerts: Vec<&str> = alerts
        .filter(|line| line.contains("expr:") && line.contains("redlock_run"))
        .collect();
    assert_eq!(alerts.len(), 3);
    for alert in alerts {
        let (_, name) = alert.split_once("redlock_").unwrap();
        let (name, labels) = name.split_once('{').unwrap();
        let values = labels.split('"').nth(1).unwrap().split('|');
        for value in values {
            let label = format!("=\"{value}\"");
            let mut keys = all.keys();
            let found = keys
                .any(|key| key.starts_with(&format!("redlock_{name}{{")) && key.contains(&label));
            assert!(found, "{alert}: {value}");
        }
    }
}

#[test]
fn twenty_at_once_are_counted_exactly_and_names_are_written_as_labels() {
    let metrics = Metrics::new();
    let names = ["shop:a", "say \"x\"", "back\\slash", "two\nlines"];
    thread::scope(|scope| {
        for run in 0..20 {
            let (metrics, name) = (&metrics, names[run % 4]);
            scope.spawn(move || {
                let ended = metrics.run(&[name, "true"]);
                assert_eq!(ended, (0, String::new()));
            });
        }
    });
    for label in ["shop:a", "say \\\"x\\\"", "back\\\\slash", "two\\nlines"] {
        let count = ("succeeded".to_owned(), 5.0);
        assert_eq!(metrics.counts(label), [count], "{label}");
    }
    metrics.is_alone();
}

#[test]
fn a_file_that_cannot_be_added_to_is_an_error_and_the_job_runs() {
    let metrics = Metrics::new();
    assert_eq!(metrics.run(&["x", "true"]).0, 0);
    let good = fs::read_to_string(metrics.file()).unwrap();
    // A mode that its reader needs stays.
    fs::set_permissions(metrics.file(), fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(metrics.run(&["x", "true"]).0, 0);
    let mode = fs::metadata(metrics.file()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);

    let lines = good.lines().count() + 1;
    for line in [
        "node_load1 0.5",
        "redlock_runs_total{name=\"x",
        "redlock_runs_total{name=\"x\"} many",
    ] {
        let broken = format!("{good}{line}\n");
        fs::write(metrics.file(), &broken).unwrap();
        let (code, errors) = metrics.run(&["x", "sh", "-c", "exit 3"]);
        assert_eq!(code, 3);
        let path = metrics.file();
        let expected = format!(
            "redlock: this run is not counted in --metrics-file {}: line {lines} is none of these metrics: move the file away, and a new one is begun\n",
            path.display()
        );
        assert_eq!(errors, expected);
        assert_eq!(fs::read_to_string(&path).unwrap(), broken);
    }
    metrics.is_alone();
    let missing = metrics.dir.path().join("missing/redlock.prom");
    let missing = missing.to_str().unwrap();
    let flags = ["run", "--metrics-file", missing, "x", "true"];
    let (status, _, errors) = metrics.fleet.output(&flags);
    assert_eq!(status.code(), Some(0));
    assert!(errors.contains("No such file or directory"), "{errors}");
    // One that was left by a process that was killed is in no one's way.
    fs::write(metrics.file(), &good).unwrap();
    fs::write(metrics.dir.path().join(".redlock.prom.new"), "half of").unwrap();
    assert_eq!(metrics.run(&["x", "true"]), (0, String::new()));
    assert_eq!(metrics.counts("x"), [("succeeded".to_owned(), 2.0)]);
    metrics.is_alone();
}

/// What is no file stays as it is, and a link leads to the same file as before.
#[test]
fn a_link_to_the_file_stays_and_a_pipe_or_device_is_an_error() {
    let metrics = Metrics::new();
    let target = metrics.dir.path().join("elsewhere.prom");
    fs::write(&target, "").unwrap();
    std::os::unix::fs::symlink(&target, metrics.file()).unwrap();
    assert_eq!(metrics.run(&["shop:a", "true"]), (0, String::new()));
    assert!(metrics.file().is_symlink());
    assert_eq!(metrics.counts("shop:a"), [("succeeded".into(), 1.0)]);
    fs::remove_file(metrics.file()).unwrap();
    let made = std::process::Command::new("mkfifo")
        .arg(metrics.file())
        .status();
    assert!(made.unwrap().success());
    let (code, errors) = metrics.run(&["shop:a", "true"]);
    assert_eq!(code, 0);
    assert!(errors.contains("it is no regular file"), "{errors}");
    let device = ["run", "--metrics-file", "/dev/null", "shop:a", "true"];
    let (_, _, errors) = metrics.fleet.output(&device);
    assert!(errors.contains("it is no regular file"), "{errors}");
    assert!(!fs::metadata("/dev/null").unwrap().is_file());
}
