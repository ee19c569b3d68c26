//! After `fork()` what was inherited is inert in the child, and a `Redlock` starts afresh there.

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redlock_sync::{Error, KeptLock, Lock, Redlock};
use support::*;

const HOUR: Duration = Duration::from_secs(3600);

/// Forks; whether the child came to the end of its part in time.
fn forked(child: impl FnOnce()) -> bool {
    // SAFETY: the child runs nothing but `child` and ends without the parent's destructors. What it
    // does is more than POSIX allows in a child of several threads, and works with glibc.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "{}", std::io::Error::last_os_error());
    if pid == 0 {
        // SAFETY: plain system calls. A child that hangs is killed.
        unsafe { libc::alarm(30) };
        let result = catch_unwind(AssertUnwindSafe(child));
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(i32::from(result.is_err())) };
    }
    let mut status = 0;
    // SAFETY: waits for a child of ours.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    status == 0
}

fn keep(redlock: &Redlock, resource: &str) -> KeptLock {
    take(redlock, resource).keep_alive(HOUR).unwrap()
}

fn assert_inert(lock: &mut Lock) {
    assert!(!lock.is_valid());
    assert_eq!(lock.remaining(), Duration::ZERO);
    assert!(matches!(lock.ensure(Duration::ZERO), Err(Error::Lost)));
    assert!(matches!(lock.extend(TTL), Err(Error::Lost)));
    assert!(!lock.resource().is_empty() && format!("{lock:?}").starts_with("Lock("));
    let _ = lock.token();
}

fn assert_kept_inert(lock: &KeptLock) {
    assert!(!lock.is_valid());
    assert_eq!(
        (lock.remaining(), lock.hold_left()),
        (Duration::ZERO, Duration::ZERO)
    );
    assert!(matches!(lock.ensure(Duration::ZERO), Err(Error::Lost)));
    assert!(lock.lost().is_some());
    assert!(lock.wait_lost(Duration::MAX));
    lock.on_lost(|_| panic!("nobody watches here"));
    assert!(!lock.resource().is_empty() && format!("{lock:?}").starts_with("KeptLock("));
}

#[test]
fn inherited_locks_are_inert_and_the_parent_s_stay() {
    in_own_process("inherited_locks_are_inert_and_the_parent_s_stay", || {
        let servers = Server::several(3);
        let redlock = connected(&servers);
        let mut locks: Vec<Lock> = (0..4).map(|i| take(&redlock, &format!("{i}"))).collect();
        let mut kept: Vec<KeptLock> = (4..7).map(|i| keep(&redlock, &format!("{i}"))).collect();
        kept[0].on_lost(|_| panic!("it is not lost"));
        let names: Vec<String> = (0..7).map(|i| i.to_string()).collect();
        let all = || servers.iter().all(|server| server.keys() == names);
        eventually("all are on all nodes", all);
        let before: Vec<String> = servers
            .iter()
            .map(|server| server.info("stats", "total_commands_processed"))
            .collect();

        assert!(forked(|| {
            locks.iter_mut().for_each(assert_inert);
            kept.iter().for_each(assert_kept_inert);
            for (i, lock) in locks.drain(..).enumerate() {
                match i {
                    0 => drop(lock),
                    1 => assert!(matches!(lock.release(), Err(Error::Lost))),
                    2 => assert!(matches!(lock.keep_alive(HOUR), Err(Error::Lost))),
                    _ => lock.leak(),
                }
            }
            for (i, lock) in kept.drain(..).enumerate() {
                match i {
                    0 => drop(lock),
                    1 => assert!(matches!(lock.release(), Err(Error::Lost))),
                    _ => {
                        let mut lock = lock.stop();
                        assert_inert(&mut lock);
                    }
                }
            }
            drop(redlock.clone());
        }));
        // Nothing was sent: the two commands more are the looking itself and the one before.
        for (server, before) in servers.iter().zip(before) {
            let now = server.info("stats", "total_commands_processed");
            let sent = now.parse::<u64>().unwrap() - before.parse::<u64>().unwrap();
            assert!(sent < 5, "{sent}");
        }
        assert!(all());

        locks
            .iter_mut()
            .for_each(|lock| lock.extend(2 * TTL).unwrap());
        locks.into_iter().for_each(|lock| lock.release().unwrap());
        kept.into_iter().for_each(|lock| lock.release().unwrap());
    });
}

#[test]
fn a_redlock_in_the_child_has_connections_and_threads_of_its_own() {
    let name = "a_redlock_in_the_child_has_connections_and_threads_of_its_own";
    in_own_process(name, || {
        let servers = Server::several(3);
        let redlock = connected(&servers);
        let held = keep(&redlock, "held");
        let child = |redlock: &Redlock, resource: &str| {
            assert!(redlock.try_acquire("held", TTL).unwrap().is_none());
            let lock = redlock
                .acquire(resource, Duration::from_secs(2))
                .unwrap()
                .keep_alive(HOUR)
                .unwrap();
            assert!(!lock.wait_lost(Duration::from_secs(3)));
            lock.release().unwrap();
        };
        assert!(forked(|| {
            child(&redlock, "child");
            // Of what the child made nothing is its child's.
            let mut lock = Some(take(&redlock, "child"));
            assert!(forked(|| {
                assert!(!lock.take().unwrap().is_valid());
                child(&redlock, "grandchild");
            }));
            lock.unwrap().release().unwrap();
        }));
        assert!(held.is_valid());
        held.release().unwrap();
        eventually("nothing is left", || {
            servers.iter().all(|server| server.keys().is_empty())
        });
        eventually("the children's sockets are closed", || {
            servers.iter().all(|server| server.clients() == 1)
        });
    });
}

/// Whatever mutex a thread of the parent holds at the moment of the fork, the child waits for none.
#[test]
fn a_fork_at_any_moment_leaves_a_child_that_does_not_hang() {
    let name = "a_fork_at_any_moment_leaves_a_child_that_does_not_hang";
    in_own_process(name, || {
        let servers = Server::several(3);
        let redlock = connected(&servers);
        // Its threads stay, so that none is started meanwhile: the standard library itself has a mutex
        // that a thread holds while it starts, and a child in which no thread can start connects to
        // nothing.
        let kept = keep(&redlock, "held");
        kept.on_lost(|_| ());
        let lock = take(&redlock, "held too");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (redlock, kept, stop) = (&redlock, &kept, &stop);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        let lock = redlock.acquire(format!("{thread}"), TTL).unwrap();
                        lock.keep_alive(HOUR).unwrap().on_lost(|_| ());
                        assert!(kept.is_valid());
                    }
                });
            }
            let end = Instant::now() + Duration::from_secs(10);
            let mut rounds = 0;
            while Instant::now() < end {
                rounds += 1;
                let child = || {
                    assert_kept_inert(&kept);
                    assert!(!lock.is_valid() && format!("{redlock:?}").contains("127.0.0.1"));
                    assert!(redlock.try_acquire("held", TTL).unwrap().is_none());
                };
                let well = forked(child);
                if !well {
                    stop.store(true, Ordering::Relaxed);
                }
                assert!(well, "round {rounds}");
            }
            stop.store(true, Ordering::Relaxed);
        });
        lock.release().unwrap();
        kept.release().unwrap();
    });
}
