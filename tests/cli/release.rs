//! `redlock release --force` as a process, against real servers. At a terminal: `terminal`.

use crate::children::{Program, start};
use crate::operations::{command, run};
use crate::support;

use std::process::Stdio;

use redlock_sync::LockState;
use support::*;

fn release(servers: &[Server], more: &[&str]) -> (i32, String, String) {
    let arguments = [&["release", "--force"], more].concat();
    run(&mut command(&urls(servers).join(","), &arguments))
}

/// `redlock run`, while it holds the lock on all nodes.
fn holder(servers: &[Server], name: &str) -> Program {
    let words = ["run", "--ttl", "3s", name, "sleep", "100"];
    let mut command = command(&urls(servers).join(","), &words);
    let child = start(command.stderr(Stdio::piped()));
    eventually("it holds the lock", || {
        servers.iter().all(|server| server.exists(name))
    });
    child
}

#[test]
fn the_command_that_held_a_released_lock_is_ended() {
    let servers = Server::several(3);
    let child = holder(&servers, "shop:deploy");
    let (code, out, err) = release(&servers, &["--yes", "shop:deploy"]);
    assert_eq!((code, &*err), (0, ""), "{out}");
    // Who had it.
    assert!(out.starts_with("shop:deploy: held by "), "{out}");
    let first = out.lines().next().unwrap();
    let label = format!(":{}) for ", child.pid());
    assert!(first.contains(&label), "{out}");
    assert!(out.ends_with("\nshop:deploy: released\n"), "{out}");
    let output = child.output();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(76), "{said}");
    assert!(servers.iter().all(|server| server.keys().is_empty()));
    // Nothing is left to do.
    let (code, out, err) = release(&servers, &["--yes", "shop:deploy"]);
    assert_eq!((code, &*err), (0, ""), "{out}");
    assert!(out.starts_with("shop:deploy: free\n"), "{out}");
}

#[test]
fn one_of_three_nodes_may_be_down_and_with_two_nothing_is_deleted() {
    let mut servers = Server::several(3);
    let redlock = connected(&servers);
    servers[1].kill();
    let lock = take(&redlock, "a");
    let (code, out, err) = release(&servers, &["--yes", "a"]);
    assert_eq!((code, &*err), (0, ""), "{out}");
    assert!(
        out.contains("refused") && out.ends_with("a: released\n"),
        "{out}"
    );
    assert!(lock.release().is_err());
    let lock = take(&redlock, "a");
    servers[2].kill();
    let (code, out, err) = release(&servers, &["--yes", "a"]);
    assert_eq!(code, 69, "{out}");
    assert!(err.contains("too few nodes answered"), "{err}");
    assert!(servers[0].exists("a"));
    lock.leak();
}

#[test]
fn without_a_terminal_and_an_answer_it_refuses() {
    let servers = Server::several(1);
    let lock = take(&redlock(&servers), "a");
    for (arguments, text) in [
        (
            &["release", "--force", "a"][..],
            "no terminal to ask on: give --yes",
        ),
        (&["release", "a", "--yes"], "--force"),
        (&["release", "--force", "--yes"], "<NAME>"),
        (&["release", "--force", "--yes", ""], "0 bytes"),
        (&["release", "--force", "--yes", "a", "b"], "'b'"),
    ] {
        let (code, out, err) = run(&mut command(&servers[0].url(), arguments));
        assert_eq!(code, 64, "{arguments:?}: {err}");
        assert!(out.is_empty() && err.contains(text), "{arguments:?}: {err}");
    }
    lock.release().unwrap();
}

#[test]
fn what_is_no_lock_of_this_program_stays() {
    let servers = Server::several(3);
    for server in &servers {
        server.command(&["HSET", "hash", "a", "b"]);
        server.command(&["SET", "text", "hello", "PX", "60000"]);
        server.command_table(&[b"SET", b"endless", &[0xA7; 20]]);
    }
    for name in ["hash", "text", "endless"] {
        let (code, _, err) = release(&servers, &["--yes", name]);
        assert_eq!(code, 75, "{name}: {err}");
        assert!(
            err.contains("no lock of this program: nothing was deleted"),
            "{err}"
        );
        assert!(servers.iter().all(|server| server.exists(name)), "{name}");
    }
    let state = redlock(&servers).inspect("text").unwrap().state();
    assert!(matches!(state, LockState::Blocked { .. }), "{state:?}");
}

#[test]
fn a_reader_that_is_not_shown_among_many_is_not_taken_for_one_that_has_ended() {
    let servers = Server::several(1);
    let redlock = unhurried_connected(&servers);
    let redlock = redlock.adjust(|options| options.label("w".repeat(64)));
    let lock = redlock.unwrap().read_lock("x").unwrap();
    let time = std::time::Duration::from_secs;
    let first = lock.acquire(time(300)).unwrap();
    let shown = first.token().fingerprint().to_string();
    let few = release(&servers, &["--yes", "--holder", "00000000", "x"]);
    assert!(
        few.0 == 75 && few.2.contains("00000000 does not have it"),
        "{few:?}"
    );
    let others: Vec<_> = (0..600).map(|_| lock.acquire(time(600)).unwrap()).collect();
    let (code, out, err) = release(&servers, &["--yes", "--holder", &shown, "x"]);
    assert_eq!(code, 75, "{err}");
    assert!(
        !out.contains(&shown) && err.contains("is not among the "),
        "{err}"
    );
    first.release().unwrap();
    drop(others);
}
