//! A process that can start no more threads.

use crate::support;

use std::sync::mpsc;
use std::time::Duration;

use redlock_sync::{Event, LockState, LostReason};
use support::*;

const HOUR: Duration = Duration::from_secs(3600);

/// A process of its own, with stacks so large that none is kept for the next thread.
fn with_large_stacks(name: &str, test: impl FnOnce()) {
    if told().is_some() {
        return test();
    }
    let mut process = own_process(name, "");
    let output = process.env("RUST_MIN_STACK", "67108864").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}

/// From here on there is no room for another stack, or again as much as one likes.
fn room_for_threads(room: bool) {
    // The stacks of threads that are just ending are given back a little later.
    eventually("as it should be", || {
        let limit = libc::rlimit {
            rlim_cur: if room {
                libc::RLIM_INFINITY
            } else {
                memory() + (16 << 20)
            },
            rlim_max: libc::RLIM_INFINITY,
        };
        // SAFETY: a plain system call on this process.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
        let thread = std::thread::Builder::new().spawn(|| ());
        thread.map(|thread| thread.join()).is_ok() == room
    });
}

/// The size of this process in bytes.
fn memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let size = status.lines().find_map(|line| line.strip_prefix("VmSize:"));
    let kib = size.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<u64>().unwrap() * 1024
}

#[test]
fn nodes_that_no_thread_can_connect_are_named() {
    with_large_stacks("nodes_that_no_thread_can_connect_are_named", || {
        let servers = Server::several(3);
        let redlock = redlock(&servers);
        room_for_threads(false);
        let errors = unavailable(redlock.try_acquire("a", TTL)).to_string();
        assert_eq!(
            errors.matches("cannot start a thread").count(),
            3,
            "{errors}"
        );
        // A look says the same.
        let inspection = redlock.inspect("a").unwrap();
        assert_eq!(inspection.state(), LockState::Unknown);
        let report = redlock.check("probe").unwrap();
        assert!(!report.is_fit());
        let text = report.to_string();
        assert_eq!(text.matches("cannot start a thread").count(), 3, "{text}");
        room_for_threads(true);
        take(&redlock, "a").release().unwrap();
        assert_eq!(redlock.inspect("a").unwrap().state(), LockState::Free);
    });
}

#[test]
fn a_loss_that_no_other_thread_can_report_is_reported_by_the_one_that_found_it() {
    let name = "a_loss_that_no_other_thread_can_report_is_reported_by_the_one_that_found_it";
    with_large_stacks(name, || {
        let servers = Server::several(3);
        let (sender, receiver) = mpsc::channel();
        let redlock = unhurried_connected(&servers).with_observer(move |event| match event {
            Event::Lost { reason, .. } => sender.send(format!("{reason:?}")).unwrap(),
            Event::Ended { how, .. } => sender.send(format!("{how:?}")).unwrap(),
            _ => {}
        });
        let lock = redlock.acquire("a", Duration::from_secs(6)).unwrap();
        let lock = lock.keep_alive(HOUR).unwrap();
        eventually("all attendants have ended", || attendants() == 0);
        room_for_threads(false);
        for server in &servers {
            server.command(&["DEL", "a"]);
        }
        let told = || receiver.recv_timeout(Duration::from_secs(20)).unwrap();
        assert_eq!(told(), "Deleted");
        drop(lock);
        assert_eq!(told(), "WasLost");
        room_for_threads(true);
    });
}

#[test]
fn a_lock_that_no_thread_can_renew_is_refused_and_released() {
    let name = "a_lock_that_no_thread_can_renew_is_refused_and_released";
    with_large_stacks(name, || {
        let servers = Server::several(3);
        let redlock = connected(&servers);
        let lock = take(&redlock, "a");
        eventually("all attendants have ended", || attendants() == 0);
        room_for_threads(false);
        // That may pass.
        let errors = unavailable(lock.keep_alive(HOUR));
        assert!(!errors.is_permanent());
        let text = errors.to_string();
        assert_eq!(text.matches("cannot start a thread").count(), 3, "{text}");
        eventually("it is released", || {
            servers.iter().all(|server| server.keys().is_empty())
        });
        room_for_threads(true);
        let lock = take(&redlock, "a").keep_alive(HOUR).unwrap();
        lock.release().unwrap();
    });
}

#[test]
fn a_callback_without_a_thread_is_called_all_the_same() {
    let name = "a_callback_without_a_thread_is_called_all_the_same";
    with_large_stacks(name, || {
        let servers = Server::several(3);
        let redlock = unhurried_connected(&servers);
        // A thread that watches, and none.
        for watched in [true, false] {
            let lock = redlock.acquire("a", ms(2000)).unwrap();
            let lock = lock.keep_alive(ms(2000)).unwrap();
            if watched {
                lock.on_lost(|_| ());
            }
            room_for_threads(false);
            let (sender, receiver) = mpsc::channel();
            lock.on_lost(|_| panic!("as the test wants"));
            lock.on_lost(move |reason| sender.send(reason).unwrap());
            let reason = receiver.recv_timeout(Duration::from_secs(20));
            assert_eq!(reason, Ok(LostReason::HoldLimit));
            room_for_threads(true);
            drop(lock);
            eventually("no thread is left that watches", || {
                threads() <= 2 && attendants() == 0
            });
        }
    });
}
