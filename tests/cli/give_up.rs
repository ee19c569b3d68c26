//! The end of the lock behind COMMAND, where servers refuse it for now, or are away.

use crate::support;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use support::*;

use crate::children::{Limited, Program, REDLOCK, output, program, shell_waits, start};
use crate::run::{Fleet, is_permitted, signal};

/// `redlock run` with these options, whose COMMAND ends when there is this file.
fn run_until(fleet: &Fleet, options: &[&str], ends: &Path) -> Program {
    let began = ends.with_extension("began");
    // An earlier one may have left it.
    let _ = std::fs::remove_file(&began);
    let waits = shell_waits(&format!("[ -e '{}' ]", ends.display()));
    let waits = format!("touch '{}'; {waits}", began.display());
    let arguments = [&["run"], options, &["shop:report", "sh", "-c", &waits]].concat();
    let child = start(fleet.command(&arguments).stderr(Stdio::piped()));
    // The mark of what is done once in a period is looked at behind the lock.
    eventually("it has the lock, and begins", || began.exists());
    child
}

fn set_replicas(fleet: &Fleet, count: &str) {
    on_all(
        &fleet.servers,
        &["CONFIG", "SET", "min-replicas-to-write", count],
    );
}

fn set_rights(fleet: &Fleet, rights: &[&str]) {
    for server in &fleet.servers {
        server.command(&[&["ACL", "SETUSER", "default"], rights].concat());
    }
}

/// COMMAND ends, and what is sent behind it is refused.
fn refuse(fleet: &Fleet, ends: &Path) {
    set_replicas(fleet, "1");
    end_refused(fleet, ends, "NOREPLICAS");
}

/// COMMAND ends, and what is sent behind it is refused with this error.
fn end_refused(fleet: &Fleet, ends: &Path, error: &str) {
    let before = refusals(fleet, error);
    std::fs::write(ends, "").unwrap();
    eventually("it is refused", || refusals(fleet, error) > before);
}

/// How often the first server has replied with this error.
fn refusals(fleet: &Fleet, error: &str) -> u32 {
    refusals_of(&fleet.servers[0], error)
}

fn refusals_of(server: &Server, error: &str) -> u32 {
    let all = server.command(&["INFO", "errorstats"]);
    let all: String = redis::from_redis_value(all).unwrap();
    let start = format!("errorstat_{error}:count=");
    let count = all.lines().find_map(|line| line.strip_prefix(&start));
    count.map_or(0, |count| count.trim().parse().unwrap())
}

fn said(child: &mut Program) -> String {
    let errors = Limited(child.child.stderr.take().unwrap()).all();
    String::from_utf8(errors).unwrap()
}

#[test]
fn a_release_that_is_refused_for_now_is_waited_for_and_carried_out() {
    for options in [&["--ttl", "60s"][..], &["--ttl", "60s", "--at-least", "2s"]] {
        let (fleet, dir) = (Fleet::new(1), TempDir::new());
        let ends = dir.path().join("ends");
        let mut child = run_until(&fleet, options, &ends);
        refuse(&fleet, &ends);
        set_replicas(&fleet, "0");
        assert_eq!(child.wait().code(), Some(0));
        assert_eq!(said(&mut child), "");
        fleet.nothing_is_left();
    }
}

/// As while users are changed.
#[test]
fn a_release_whose_rights_are_back_soon_is_waited_for_and_carried_out() {
    for options in [&["--ttl", "60s"][..], &["--ttl", "60s", "--at-least", "2s"]] {
        let (fleet, dir) = (Fleet::new(1), TempDir::new());
        let ends = dir.path().join("ends");
        let mut child = run_until(&fleet, options, &ends);
        set_rights(&fleet, &["-@all", "+acl", "+info"]);
        end_refused(&fleet, &ends, "NOPERM");
        set_rights(&fleet, &["+@all"]);
        assert_eq!(child.wait().code(), Some(0));
        assert_eq!(said(&mut child), "");
        fleet.nothing_is_left();
    }
}

/// As where the holder before left its lock on another node, which was away then: two such ends would lock the name.
#[test]
fn a_majority_for_the_next_holder_has_none_of_the_nodes_that_another_holder_has() {
    for options in [&["--ttl", "60s"][..], &["--ttl", "60s", "--at-least", "2s"]] {
        let (fleet, dir) = (Fleet::new(3), TempDir::new());
        let ends = dir.path().join("ends");
        fleet.servers[2].command(&["SET", "shop:report", "another", "PX", "60000"]);
        let mut child = run_until(&fleet, options, &ends);
        let set = |number| {
            fleet.servers[1].command(&["CONFIG", "SET", "min-replicas-to-write", number]);
        };
        set("1");
        let before = refusals_of(&fleet.servers[1], "NOREPLICAS");
        std::fs::write(&ends, "").unwrap();
        eventually("it is refused", || {
            refusals_of(&fleet.servers[1], "NOREPLICAS") > before
        });
        std::thread::sleep(Duration::from_secs(1));
        let running = child.child.try_wait().unwrap();
        assert!(running.is_none(), "{options:?}: {running:?}");
        set("0");
        assert_eq!(child.wait().code(), Some(0));
        assert_eq!(said(&mut child), "");
        let is_left = |server: &Server| server.exists("shop:report");
        let left: Vec<bool> = fleet.servers.iter().map(is_left).collect();
        // (With --at-least the locks end by their ttl.)
        assert!(
            options.len() > 2 || left == [false, false, true],
            "{left:?}"
        );
    }
}

/// Two such ends, each without another node, would lock the name, though a majority has confirmed each of them.
#[test]
fn a_node_that_a_release_was_confirmed_without_has_a_moment_to_come_back() {
    for options in [&["--shared"][..], &["--slots", "2"], &["--fence"]] {
        let (fleet, dir) = (Fleet::new(3), TempDir::new());
        let ends = dir.path().join("ends");
        let mut child = run_until(&fleet, &[&["--ttl", "60s"], options].concat(), &ends);
        let set = |number| {
            fleet.servers[1].command(&["CONFIG", "SET", "min-replicas-to-write", number]);
        };
        set("1");
        let before = refusals_of(&fleet.servers[1], "NOREPLICAS");
        std::fs::write(&ends, "").unwrap();
        eventually("it is refused, and released elsewhere", || {
            refusals_of(&fleet.servers[1], "NOREPLICAS") > before
                && !fleet.servers[0].exists("shop:report")
        });
        set("0");
        assert_eq!(child.wait().code(), Some(0));
        assert_eq!(said(&mut child), "");
        for (number, server) in fleet.servers.iter().enumerate() {
            // (Fencing counters and the server's own key stay.)
            assert!(!server.exists("shop:report"), "{options:?}, node {number}");
        }
    }
}

/// A majority has released the lock, so nothing is reported.
#[test]
fn a_signal_ends_the_wait_for_a_node_that_a_release_was_confirmed_without() {
    let (fleet, dir) = (Fleet::new(3), TempDir::new());
    let ends = dir.path().join("ends");
    let mut child = run_until(&fleet, &["--ttl", "60s"], &ends);
    fleet.servers[1].command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let before = refusals_of(&fleet.servers[1], "NOREPLICAS");
    std::fs::write(&ends, "").unwrap();
    eventually("it is refused, and released elsewhere", || {
        refusals_of(&fleet.servers[1], "NOREPLICAS") > before
            && !fleet.servers[0].exists("shop:report")
    });
    let began = Instant::now();
    signal(child.pid(), Signal::SIGTERM);
    child.wait();
    assert!(
        began.elapsed() < Duration::from_millis(1500),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(said(&mut child), "");
}

/// A job waits neither for a dead node nor for an answer that is late.
#[test]
fn a_run_does_not_wait_for_a_node_that_was_away_from_its_beginning() {
    for (nodes, dead) in [(3, 1), (5, 0), (5, 2)] {
        let mut fleet = Fleet::new(nodes);
        fleet.servers.iter_mut().take(dead).for_each(Server::kill);
        let run = || {
            let began = Instant::now();
            let output = fleet.command(&["run", "x", "true"]).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            began.elapsed()
        };
        // (The machine may be busy, but not each time.)
        let took = (0..5).map(|_| run()).min().unwrap();
        assert!(
            took < Duration::from_millis(1500),
            "{nodes}, {dead}: {took:?}"
        );
    }
}

/// With the name, and for how long.
#[test]
fn a_lock_that_could_not_be_released_is_named() {
    let (fleet, dir) = (Fleet::new(1), TempDir::new());
    let ends = dir.path().join("ends");
    // Until its ttl is over, which is soon.
    let mut child = run_until(&fleet, &["--ttl", "4s"], &ends);
    let began = Instant::now();
    refuse(&fleet, &ends);
    assert_eq!(child.wait().code(), Some(0));
    assert!(
        began.elapsed() < Duration::from_secs(8),
        "{:?}",
        began.elapsed()
    );
    let text = said(&mut child);
    assert!(
        text.contains("shop:report stays locked for up to "),
        "{text}"
    );
    assert!(text.contains("NOREPLICAS"), "{text}");
    // So is one for which a right has gone for good.
    set_replicas(&fleet, "0");
    eventually("its ttl is over", || {
        !fleet.servers[0].exists("shop:report")
    });
    std::fs::remove_file(&ends).unwrap();
    let mut child = run_until(&fleet, &["--ttl", "4s"], &ends);
    set_rights(&fleet, &["-@all", "+acl", "+info"]);
    std::fs::write(&ends, "").unwrap();
    assert_eq!(child.wait().code(), Some(0));
    let text = said(&mut child);
    for part in ["shop:report stays locked for up to ", "NOPERM"] {
        assert!(text.contains(part), "{text}");
    }
    set_rights(&fleet, &["+@all"]);
    // A signal ends the wait.
    set_replicas(&fleet, "0");
    eventually("its ttl is over", || {
        !fleet.servers[0].exists("shop:report")
    });
    std::fs::remove_file(&ends).unwrap();
    let mut child = run_until(&fleet, &["--ttl", "60s"], &ends);
    refuse(&fleet, &ends);
    let began = Instant::now();
    signal(child.pid(), Signal::SIGTERM);
    assert!(!child.wait().success());
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
    let text = said(&mut child);
    assert!(text.contains("not confirmed yet"), "{text}");
    set_replicas(&fleet, "0");
}

/// A majority that is down may be back one day, but a script that has ended is not held up for that.
#[test]
fn a_lock_whose_nodes_are_down_is_named_without_a_long_wait() {
    for options in [&["--ttl", "60s"][..], &["--ttl", "60s", "--at-least", "2s"]] {
        let (mut fleet, dir) = (Fleet::new(3), TempDir::new());
        let ends = dir.path().join("ends");
        let mut child = run_until(&fleet, options, &ends);
        eventually("the lock is on all nodes", || {
            fleet
                .servers
                .iter()
                .all(|server| server.exists("shop:report"))
        });
        for server in &mut fleet.servers[1..] {
            server.kill();
        }
        let began = Instant::now();
        std::fs::write(&ends, "").unwrap();
        assert_eq!(child.wait().code(), Some(0));
        let took = began.elapsed();
        assert!(took < Duration::from_secs(6), "{took:?}");
        let text = said(&mut child);
        assert!(
            text.contains("shop:report stays locked for up to "),
            "{text}"
        );
        assert!(text.contains("node 1") && text.contains("node 2"), "{text}");
    }
}

/// A program that has succeeded once in a period, and whose mark was refused so often.
fn marks_in_vain(times: u32) -> (Fleet, Program) {
    let (fleet, dir) = (Fleet::new(1), TempDir::new());
    let ends = dir.path().join("ends");
    let options = ["--ttl", "60s", "--once-per", "1h"];
    let child = run_until(&fleet, &options, &ends);
    let before = refusals(&fleet, "NOREPLICAS");
    refuse(&fleet, &ends);
    eventually("the mark is refused", || {
        refusals(&fleet, "NOREPLICAS") >= before + times
    });
    (fleet, child)
}

/// Its nodes refuse the mark again and again, and the lock outlives that.
#[test]
fn a_success_is_marked_as_soon_as_the_nodes_are_well_again() {
    let (fleet, mut child) = marks_in_vain(10);
    set_replicas(&fleet, "0");
    assert_eq!(child.wait().code(), Some(0));
    assert_eq!(said(&mut child), "");
    let next = ["run", "--once-per", "1h", "-E", "0", "shop:report", "false"];
    assert_eq!(fleet.output(&next).0.code(), Some(0));
}

/// As while users are changed: without its mark the work would be done twice.
#[test]
fn a_success_is_marked_as_soon_as_the_rights_are_back() {
    let (fleet, dir) = (Fleet::new(1), TempDir::new());
    let ends = dir.path().join("ends");
    let mut child = run_until(&fleet, &["--ttl", "60s", "--once-per", "1h"], &ends);
    set_rights(&fleet, &["-@all", "+acl", "+info"]);
    end_refused(&fleet, &ends, "NOPERM");
    set_rights(&fleet, &["+@all"]);
    let code = child.wait().code();
    assert_eq!((code, said(&mut child)), (Some(0), String::new()));
    let next = ["run", "--once-per", "1h", "-E", "0", "shop:report", "false"];
    assert_eq!(fleet.output(&next).0.code(), Some(0));
}

/// The tries to mark the success, and then to release the lock, which the nodes refuse as well.
#[test]
fn one_signal_ends_the_tries_behind_a_success() {
    let (fleet, mut child) = marks_in_vain(3);
    let began = Instant::now();
    signal(child.pid(), Signal::SIGTERM);
    assert!(!child.wait().success());
    let took = began.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    let text = said(&mut child);
    for part in ["could not be marked as done", "not confirmed yet"] {
        assert!(text.contains(part), "{text}");
    }
    set_replicas(&fleet, "0");
}

/// Programs of a user who is not root, if this test may start them.
fn as_user(test: &str, fleet: &Fleet) -> Option<impl Fn(&[&str]) -> Command> {
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let nodes = fleet.nodes.clone();
    let as_user = move |words: &[&str]| {
        let mut command = program("setpriv", &nodes);
        command.args(user).args(words);
        command
    };
    is_permitted(test, &mut as_user(&[REDLOCK, "--version"])).then_some(as_user)
}

/// Takes away from the wrapper, which is not root, the right to start threads.
const NO_THREADS: &str = "prlimit --nproc=1:1 --pid $PPID";

#[test]
fn without_another_thread_the_lock_is_left_as_at_least_says() {
    let test = "without_another_thread_the_lock_is_left_as_at_least_says";
    let fleet = Fleet::new(1);
    let Some(as_user) = as_user(test, &fleet) else {
        return;
    };
    let words = [
        REDLOCK,
        "run",
        "--at-least",
        "1m",
        "x",
        "sh",
        "-c",
        NO_THREADS,
    ];
    let (status, out, err) = output(&mut as_user(&words));
    assert_eq!((status.code(), &*out, &*err), (Some(0), "", ""));
    let left = redis::from_redis_value::<i64>(fleet.servers[0].command(&["PTTL", "x"]));
    let left = left.unwrap();
    // Longer than the ttl.
    assert!((31_000..=60_000).contains(&left), "{left}");
}

/// COMMAND has ended, the wrapper can start no thread, and the nodes refuse the release for now.
fn refused_without_a_thread(test: &str, fleet: &Fleet) -> Option<Program> {
    let script = format!("{NO_THREADS} && read line");
    let words = [
        REDLOCK,
        "run",
        "--ttl",
        "60s",
        "shop:report",
        "sh",
        "-c",
        &script,
    ];
    let mut command = as_user(test, fleet)?(&words);
    let mut child = start(command.stdin(Stdio::piped()).stderr(Stdio::piped()));
    wait_everywhere(&fleet.servers, "shop:report");
    set_replicas(fleet, "1");
    let before = refusals(fleet, "NOREPLICAS");
    child.child.stdin.take().unwrap().write_all(b"\n").unwrap();
    eventually("it is refused", || refusals(fleet, "NOREPLICAS") > before);
    Some(child)
}

#[test]
fn without_another_thread_a_release_that_is_refused_for_now_is_carried_out() {
    let test = "without_another_thread_a_release_that_is_refused_for_now_is_carried_out";
    let fleet = Fleet::new(1);
    let Some(mut child) = refused_without_a_thread(test, &fleet) else {
        return;
    };
    set_replicas(&fleet, "0");
    assert_eq!(child.wait().code(), Some(0));
    assert_eq!(said(&mut child), "");
    fleet.nothing_is_left();
}

#[test]
fn without_another_thread_a_signal_ends_the_wait_for_the_release() {
    let test = "without_another_thread_a_signal_ends_the_wait_for_the_release";
    let fleet = Fleet::new(1);
    let Some(mut child) = refused_without_a_thread(test, &fleet) else {
        return;
    };
    let began = Instant::now();
    signal(child.pid(), Signal::SIGTERM);
    assert!(!child.wait().success());
    let took = began.elapsed();
    assert!(took < Duration::from_secs(5), "{took:?}");
    let text = said(&mut child);
    assert!(text.contains("not confirmed yet"), "{text}");
    set_replicas(&fleet, "0");
}
