//! Locks between processes.

use crate::support;

use std::io::{Read, Seek, SeekFrom, Write};
use std::time::Duration;

use redlock_sync::{Error, Redlock, Token};
use support::*;

fn nodes() -> Redlock {
    let nodes = std::env::var("NODES").unwrap();
    Redlock::new(nodes.split(','))
        .unwrap()
        .with_options(unhurried())
        .unwrap()
}

#[test]
fn two_processes_contend_and_count_exactly() {
    const ROUNDS: u64 = 300;
    if role().is_some() {
        let path = std::env::var("COUNTER").unwrap();
        let mut file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .unwrap();
        let redlock = nodes();
        for _ in 0..ROUNDS {
            redlock
                .with_lock("counter", TTL, |_| {
                    let mut text = String::new();
                    file.seek(SeekFrom::Start(0)).unwrap();
                    file.read_to_string(&mut text).unwrap();
                    let next = text.trim().parse::<u64>().unwrap() + 1;
                    file.seek(SeekFrom::Start(0)).unwrap();
                    write!(file, "{next}").unwrap();
                    Ok::<_, Error>(())
                })
                .unwrap();
        }
        return;
    }
    let servers = Server::several(3);
    let dir = TempDir::new();
    let counter = dir.path().join("counter");
    std::fs::write(&counter, "0").unwrap();
    let mut processes: Vec<_> = (0..2)
        .map(|_| {
            another_process("two_processes_contend_and_count_exactly", "count")
                .env("NODES", urls(&servers).join(","))
                .env("COUNTER", &counter)
                .spawn()
                .unwrap()
        })
        .collect();
    for process in &mut processes {
        assert!(process.wait().unwrap().success());
    }
    let total = std::fs::read_to_string(&counter).unwrap();
    assert_eq!(total, (2 * ROUNDS).to_string());
    eventually("nothing is left", || {
        servers.iter().all(|server| server.keys().is_empty())
    });
}

#[test]
fn a_lock_is_handed_to_another_process_and_resumed_there() {
    if role().is_some() {
        let hex = std::env::var("TOKEN").unwrap();
        let mut bytes = [0; 20];
        for (i, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap();
        }
        let left = Duration::from_millis(std::env::var("LEFT").unwrap().parse().unwrap());
        let mut lock = nodes().resume("a", Token::from_bytes(bytes), left).unwrap();
        lock.extend(TTL).unwrap();
        lock.release().unwrap();
        return;
    }
    let servers = Server::several(3);
    let redlock = connected(&servers);
    let lock = take(&redlock, "a");
    let hex: String = lock
        .token()
        .as_bytes()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let left = lock.remaining().as_millis().to_string();
    lock.leak();
    let status = another_process(
        "a_lock_is_handed_to_another_process_and_resumed_there",
        "resume",
    )
    .env("NODES", urls(&servers).join(","))
    .env("TOKEN", hex)
    .env("LEFT", left)
    .status()
    .unwrap();
    assert!(status.success());
    take(&redlock, "a").release().unwrap();
}

#[test]
fn the_lock_of_a_killed_process_becomes_free_after_its_ttl() {
    if role().is_some() {
        let _lock = nodes().acquire("a", Duration::from_secs(2)).unwrap();
        std::fs::write(std::env::var("HELD").unwrap(), "").unwrap();
        std::thread::sleep(Duration::from_secs(60));
        return;
    }
    let servers = Server::several(3);
    let dir = TempDir::new();
    let held = dir.path().join("held");
    let mut process = another_process(
        "the_lock_of_a_killed_process_becomes_free_after_its_ttl",
        "hold",
    )
    .env("NODES", urls(&servers).join(","))
    .env("HELD", &held)
    .spawn()
    .unwrap();
    eventually("the other process has it", || held.exists());
    process.kill().unwrap();
    process.wait().unwrap();
    let redlock = redlock(&servers);
    redlock
        .acquire_within("a", TTL, Duration::from_secs(20))
        .unwrap()
        .release()
        .unwrap();
}

/// The answers are there in time, but the process is not: the grant is as late as the process.
#[test]
fn a_lock_granted_to_a_frozen_process_is_too_slow_and_released_again() {
    if role().is_some() {
        let redlock = nodes().with_options(unhurried()).unwrap();
        let relay = std::env::var("STARTED").unwrap();
        redlock.try_acquire("warm", TTL).unwrap();
        std::fs::write(relay, "").unwrap();
        let result = redlock.try_acquire("a", ms(2000));
        assert!(matches!(result, Err(Error::TooSlow(_))), "{result:?}");
        return;
    }
    let servers = Server::several(1);
    let relay = relay::Relay::to(servers[0].port());
    let dir = TempDir::new();
    let started = dir.path().join("started");
    // Long enough for the process to be frozen between the grant and its answer.
    relay.set(|policy| policy.down.delay = ms(1000));
    let mut process = another_process(
        "a_lock_granted_to_a_frozen_process_is_too_slow_and_released_again",
        "acquire",
    )
    .env("NODES", relay.url())
    .env("STARTED", &started)
    .spawn()
    .unwrap();
    eventually("it begins", || started.exists());
    eventually("it is granted", || servers[0].exists("a"));
    let pid = process.id() as i32;
    // SAFETY: a plain system call on a child of ours that was not waited for.
    unsafe { libc::kill(pid, libc::SIGSTOP) };
    std::thread::sleep(Duration::from_secs(3));
    // The lock has ended by itself. Another holder's must not be touched.
    servers[0].command(&["SET", "a", "another's"]);
    // SAFETY: the same.
    unsafe { libc::kill(pid, libc::SIGCONT) };
    assert!(process.wait().unwrap().success());
    assert!(servers[0].exists("a"));
}
