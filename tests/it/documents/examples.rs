//! The examples do what they say, as programs of their own.

use crate::support;

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use support::{Server, TTL, eventually, free_port, pristine, redlock, take, urls};

/// `cargo test` builds the examples beside the tests.
pub(crate) fn example(name: &str) -> Command {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    // (With `build.build-dir` the tests are elsewhere, and the examples beside the command.)
    if let Some(command) = option_env!("CARGO_BIN_EXE_redlock") {
        path = command.into();
    }
    path.pop();
    path.extend(["examples", name]);
    assert!(
        path.exists(),
        "no {}: `cargo build --examples`",
        path.display()
    );
    let mut command = Command::new(path);
    // Without `REDLOCK_TEST_SCHEME`, too: they look at their nodes with the redis crate, which would check the certificates.
    pristine(&mut command);
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Its standard output; it must succeed.
fn succeed(command: &mut Command) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let (out, err) = (text(&stdout), text(&stderr));
    assert!(status.success(), "{status}\n{out}\n{err}");
    out
}

/// Runs until it says `line`.
fn run_until(command: &mut Command, line: &str) -> (Child, BufReader<ChildStdout>) {
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut said = String::new();
    while said.trim_end() != line {
        said.clear();
        assert!(
            out.read_line(&mut said).unwrap() > 0,
            "it never said: {line}"
        );
    }
    (child, out)
}

/// As a terminal does; then its exit code and its last words.
fn press_ctrl_c((mut child, mut out): (Child, BufReader<ChildStdout>)) -> (Option<i32>, String) {
    // SAFETY: plain system call on a child of ours that was not waited for.
    unsafe { libc::kill(i32::try_from(child.id()).unwrap(), libc::SIGINT) };
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    (child.wait().unwrap().code(), rest)
}

#[test]
fn quickstart_counts_exactly_and_names_the_nodes_that_failed() {
    let out = succeed(&mut example("quickstart"));
    assert!(out.contains("The counter stands at 1600: exact."), "{out}");
    assert!(out.contains("1600 acquisitions in "), "{out}");
    let (_, failures) = out.split_once("How often").unwrap();
    for node in 0..5 {
        let start = format!("node {node}  ");
        let line = failures
            .lines()
            .find_map(|line| line.trim().strip_prefix(&start));
        let count: u32 = line.unwrap().parse().unwrap();
        // A busy machine may look like a fault, but a fault never goes unseen.
        assert!(count > 0 || ![1, 3].contains(&node), "{out}");
    }
}

#[test]
fn quickstart_does_no_harm_to_nodes_that_it_was_given() {
    let servers = Server::several(5);
    let nodes = urls(&servers).join(",");
    // Where it cannot ask it does nothing.
    let output = example("quickstart").env("REDLOCK_NODES", &nodes).output();
    let output = output.unwrap();
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert!(
        err.contains("Unset REDLOCK_NODES, or add -- --yes"),
        "{err}"
    );
    for server in &servers {
        assert_eq!(server.calls("set"), 0);
    }
    let out = succeed(
        example("quickstart")
            .arg("--yes")
            .env("REDLOCK_NODES", nodes),
    );
    assert!(out.contains("The counter stands at 1600: exact."), "{out}");
    for server in &servers {
        let answer = server.command(&["PING"]);
        assert_eq!(answer, redis::Value::SimpleString("PONG".into()));
        eventually("nothing is left", || server.keys().is_empty());
    }
}

#[test]
fn quickstart_that_gets_no_lock_has_not_finished_and_blames_no_lock() {
    let port = free_port();
    let mut command = example("quickstart");
    let nodes = format!("redis://127.0.0.1:{port}");
    let command = command.arg("--yes").env("REDLOCK_NODES", nodes);
    let output = command.output().unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(1), "{out}\n{err}");
    assert!(
        err.starts_with("REDLOCK_NODES is set: these are your nodes"),
        "{err}"
    );
    assert_eq!(out.matches("Not finished").count(), 1, "{out}");
    assert!(!out.contains("WRONG"), "{out}");
}

#[test]
fn quickstart_shows_how_to_see_the_opposite() {
    let out = succeed(&mut example("quickstart"));
    let last = out.lines().last().unwrap();
    let (_, arguments) = last.split_once(" -- ").unwrap();
    // Increments are lost, by chance.
    let output = example("quickstart").arg(arguments).output().unwrap();
    let out = text(&output.stdout);
    assert!(out.contains("1600 increments in "), "{out}");
    assert!(!out.contains("acquisitions"), "{out}");
}

#[test]
fn quickstart_ends_quietly_with_what_reads_it_and_in_a_sentence_on_a_full_disk() {
    let mut child = example("quickstart");
    let mut child = child
        .env("TMPDIR", "/tmp") // about others it may have to say something
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut String::new()).unwrap();
    drop(out);
    let output = child.wait_with_output().unwrap();
    assert!(!output.status.success());
    assert_eq!(text(&output.stderr), "");
    let mut command = example("quickstart");
    let full = std::fs::File::options().write(true).open("/dev/full");
    let output = command
        .env_remove("RUST_BACKTRACE")
        .env("TMPDIR", "/tmp")
        .stdout(full.unwrap())
        .output()
        .unwrap();
    let err = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{err}");
    assert_eq!(err.lines().count(), 1, "{err}");
    assert!(err.contains("No space left on device"), "{err}");
}

#[test]
fn single_instance_and_throttle_run_to_their_end() {
    let out = succeed(&mut example("single_instance"));
    assert!(out.contains("another client asks for it: None"), "{out}");
    assert!(out.ends_with("released\n"), "{out}");

    let out = succeed(&mut example("throttle"));
    assert!(out.starts_with("ann: sent\nbob: sent\n"), "{out}");
    assert!(out.contains("ann: too soon"), "{out}");
    assert!(out.matches("ann: sent").count() >= 2, "{out}");
}

#[test]
fn batch_job_runs_and_frees_its_lock() {
    let servers = Server::several(3);
    let out = succeed(example("batch_job").env("REDLOCK_NODES", urls(&servers).join(",")));
    assert!(out.ends_with("importing part 5 of 5\ndone\n"), "{out}");
    eventually("freed", || {
        servers.iter().all(|server| server.keys().is_empty())
    });
    // Without nodes given it starts its own.
    assert!(succeed(&mut example("batch_job")).ends_with("done\n"));
}

#[test]
fn batch_job_leaves_at_once_if_another_runs_it() {
    let servers = Server::several(3);
    let lock = take(&redlock(&servers), "shop:nightly-import");
    let nodes = urls(&servers).join(",");
    let Output { status, stdout, .. } = example("batch_job")
        .env("REDLOCK_NODES", nodes)
        .output()
        .unwrap();
    assert_eq!(status.code(), Some(75));
    assert_eq!(text(&stdout), "another host is running it\n");
    lock.release().unwrap();
}

#[test]
fn batch_job_stops_waiting_on_ctrl_c_and_leaves_nothing_behind() {
    let servers = Server::several(3);
    let lock = take(&redlock(&servers), "shop:nightly-import");
    let nodes = urls(&servers).join(",");
    let mut command = example("batch_job");
    command.arg("--wait").env("REDLOCK_NODES", nodes);
    let (code, rest) = press_ctrl_c(run_until(&mut command, "waiting for the lock"));
    assert_eq!((code, &*rest), (Some(130), "interrupted while waiting\n"));
    lock.release().unwrap();
    eventually("nothing is left", || {
        servers.iter().all(|server| server.keys().is_empty())
    });
}

#[test]
fn batch_job_waits_for_its_turn() {
    let servers = Server::several(3);
    let lock = take(&redlock(&servers), "shop:nightly-import");
    let nodes = urls(&servers).join(",");
    let mut command = example("batch_job");
    command.arg("--wait").env("REDLOCK_NODES", nodes);
    let (mut child, mut out) = run_until(&mut command, "waiting for the lock");
    lock.release().unwrap();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(
        rest.starts_with("importing part 1") && rest.ends_with("done\n"),
        "{rest}"
    );
}

#[test]
fn batch_job_frees_its_lock_on_ctrl_c() {
    let servers = Server::several(3);
    let mut command = example("batch_job");
    command.env("REDLOCK_NODES", urls(&servers).join(","));
    let job = run_until(&mut command, "importing part 1 of 5");
    let (code, rest) = press_ctrl_c(job);
    assert_eq!(code, Some(130));
    assert!(
        rest.contains("interrupted; the next run goes on at part "),
        "{rest}"
    );
    let redlock = redlock(&servers);
    let lock = redlock.acquire("shop:nightly-import", TTL).unwrap();
    lock.release().unwrap();
    eventually("freed", || {
        servers.iter().all(|server| server.keys().is_empty())
    });
}

#[test]
fn long_job_outlives_its_ttl_and_stops_when_its_lock_is_lost() {
    let out = succeed(&mut example("long_job"));
    for line in [
        "twice its ttl",
        "signal: the lock is lost (Deleted)",
        "is no longer held",
        "why: Some(Deleted)",
        "release says so too",
    ] {
        assert!(out.contains(line), "{line}: {out}");
    }
}
