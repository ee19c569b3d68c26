//! Tables of the guide are those that the histories show which are kept here.

use std::path::Path;

use redlock_peers::{history, table};

const NEW: &str = "histories/2026-11-27";

fn columns(dir: &str, names: &[&str]) -> Vec<table::Column> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join(dir);
    let read = |name: &&str| {
        let file = dir.join(format!("{name}.txt"));
        let text = std::fs::read_to_string(&file);
        let text = text.unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        table::column(&history::parse(&text).expect("a history"))
    };
    names.iter().map(read).collect()
}

fn has(file: &str, table: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    let text = std::fs::read_to_string(&file).expect("a page");
    assert!(text.contains(table), "{} has not\n{table}", file.display());
}

#[test]
fn ensembles() {
    let columns = columns(NEW, &["etcdctl", "etcd3", "kazoo"]);
    has("../../src/guide/comparison.md", &table::summary(&columns));
}

#[test]
fn scenarios_that_came_later() {
    let names = [
        "ours",
        "ours-one",
        "ours-guard",
        "redlock",
        "rslock",
        "redsync",
        "redis-lock",
        "redlock-py",
        "pottery",
        "redis-py",
        "python-redis-lock",
        "node-redlock-4",
        "node-redlock-5",
        "sesamecare-redlock",
        "redis-semaphore",
    ];
    has("README.md", &table::summary(&columns(NEW, &names)));
}

#[test]
fn times() {
    let names = [
        "ours", "ours-one", "redis-py", "rslock", "redsync", "etcdctl", "etcd3", "kazoo",
    ];
    let columns = columns(&format!("{NEW}/times"), &names);
    has("../../src/guide/comparison.md", &table::times(&columns));
}
