//! A process that can start no more threads.

use crate::support;

use std::sync::mpsc;
use std::time::{Duration, Instant};

use redlock_sync::{Error, Event, LockState, LostReason};
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

/// The renewals of two locks are due together. The first one is to be sent when the loss of the second is found, and a
/// function that is called for that, by the thread that renews, leaves the first one for a time.
#[test]
fn a_renewal_does_not_follow_the_end_of_its_lock() {
    let name = "a_renewal_does_not_follow_the_end_of_its_lock";
    with_large_stacks(name, || {
        let servers = Server::several(3);
        let redlock = unhurried_connected(&servers);
        let keep = |name, ttl| {
            redlock
                .acquire(name, ttl)
                .unwrap()
                .keep_alive(HOUR)
                .unwrap()
        };
        let first = keep("first", Duration::from_secs(6));
        let begun = Instant::now();
        let holding_up = keep("holding up", Duration::from_secs(3));
        eventually("all attendants have ended", || attendants() == 0);
        room_for_threads(false);
        let (found, is_found) = mpsc::channel();
        let (go_on, goes_on) = mpsc::channel();
        holding_up.on_lost(move |_| {
            found.send(()).unwrap();
            goes_on.recv().unwrap();
        });
        servers
            .iter()
            .for_each(|server| drop(server.command(&["DEL", "holding up"])));
        is_found.recv_timeout(Duration::from_secs(20)).unwrap();
        // From here on no renewal is sent. The first lock is due before the second, which is over when both are.
        std::thread::sleep(
            (begun + Duration::from_millis(2100)).saturating_duration_since(Instant::now()),
        );
        let second = keep("second", Duration::from_millis(500));
        let (left, is_left) = mpsc::channel();
        second.on_lost(move |_| {
            let lock = first.stop();
            lock.leak_for(Duration::from_secs(1)).unwrap();
            left.send(()).unwrap();
        });
        std::thread::sleep(Duration::from_millis(700));
        go_on.send(()).unwrap();
        is_left.recv_timeout(Duration::from_secs(20)).unwrap();
        std::thread::sleep(Duration::from_millis(1200));
        for server in &servers {
            assert!(
                !server.exists("first"),
                "{:?}",
                server.command(&["PTTL", "first"])
            );
        }
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

/// No thread can be started to call it in time. The next renewal is ten seconds later.
#[test]
fn a_warning_without_a_thread_is_given_in_time_between_two_renewals() {
    let name = "a_warning_without_a_thread_is_given_in_time_between_two_renewals";
    with_large_stacks(name, || {
        let servers = Server::several(3);
        let redlock = unhurried_connected(&servers);
        let ttl = Duration::from_secs(30);
        let lock = redlock.acquire("a", ttl).unwrap();
        let lock = lock.keep_alive(HOUR).unwrap();
        eventually("all attendants have ended", || attendants() == 0);
        room_for_threads(false);
        // It shows that there is no thread for warnings.
        lock.on_expiring(ms(1), |_| ());
        eventually("it waits for its renewal", || {
            lock.remaining() < ttl * 4 / 5
        });
        eventually("it is renewed", || lock.remaining() > ttl * 9 / 10);
        let (sender, receiver) = mpsc::channel();
        lock.on_expiring(ttl * 17 / 20, move |left| sender.send(left).unwrap());
        let left = receiver.recv_timeout(2 * ttl).unwrap();
        assert!(left > ttl * 3 / 4, "{left:?}");
        room_for_threads(true);
        lock.release().unwrap();
    });
}

/// The thread that calls them in time cannot be started when they are registered, and can be a little later, or not.
#[test]
fn a_warning_without_a_thread_is_given_before_the_loss() {
    let name = "a_warning_without_a_thread_is_given_before_the_loss";
    with_large_stacks(name, || {
        for (max_hold, room) in [(HOUR, true), (ms(1000), false)] {
            let servers = Server::several(3);
            let redlock = connected(&servers);
            let lock = redlock.acquire("a", Duration::from_secs(6)).unwrap();
            let lock = lock.keep_alive(max_hold).unwrap();
            eventually("all attendants have ended", || attendants() == 0);
            room_for_threads(false);
            let (sender, receiver) = mpsc::channel();
            let warn = sender.clone();
            lock.on_expiring(Duration::from_secs(3), move |_| {
                warn.send("warned").unwrap()
            });
            lock.on_lost(move |_| sender.send("lost").unwrap());
            room_for_threads(room);
            servers.iter().for_each(Server::stop);
            let told = || receiver.recv_timeout(Duration::from_secs(20));
            assert_eq!(told(), Ok("warned"), "{max_hold:?}, {room}");
            assert_eq!(told(), Ok("lost"), "{max_hold:?}, {room}");
            room_for_threads(true);
            drop(lock);
        }
    });
}

/// The time for which processors have worked for this process.
fn worked() -> Duration {
    // SAFETY: plain numbers, which the system call sets.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut usage) }, 0);
    let time = |time: libc::timeval| {
        let micros = u64::try_from(time.tv_usec).unwrap();
        Duration::from_secs(u64::try_from(time.tv_sec).unwrap()) + Duration::from_micros(micros)
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}

#[test]
fn a_drop_does_not_wait_for_the_thread_that_would_confirm_it() {
    let name = "a_drop_does_not_wait_for_the_thread_that_would_confirm_it";
    with_large_stacks(name, || {
        let servers = Server::several(3);
        // With a node timeout of 5 s.
        let redlock = unhurried_connected(&servers);
        let lock = take(&redlock, "a");
        eventually("all attendants have ended", || attendants() == 0);
        room_for_threads(false);
        let began = Instant::now();
        drop(lock);
        assert!(began.elapsed() < ms(2500), "{:?}", began.elapsed());
        eventually("it is released", || {
            servers.iter().all(|server| server.keys().is_empty())
        });
        room_for_threads(true);
        take(&redlock, "a").release().unwrap();
    });
}

/// The servers refuse it for now, and no thread sends it once more.
#[test]
fn a_release_that_is_refused_returns_though_no_thread_can_confirm_it() {
    let name = "a_release_that_is_refused_returns_though_no_thread_can_confirm_it";
    with_large_stacks(name, || {
        let servers = Server::several(3);
        let refuse = |count: &str| {
            on_all(&servers, &["CONFIG", "SET", "min-replicas-to-write", count]);
        };
        let redlock = connected(&servers);
        let lock = redlock.acquire("a", HOUR).unwrap();
        let (go, gone) = (mpsc::channel(), mpsc::channel());
        let releases = std::thread::spawn(move || {
            go.1.recv().unwrap();
            gone.0.send(lock.release()).unwrap();
        });
        eventually("all attendants have ended", || attendants() == 0);
        room_for_threads(false);
        refuse("1");
        go.0.send(()).unwrap();
        let result = gone.1.recv_timeout(Duration::from_secs(20));
        let errors = unavailable(result.expect("it returns")).to_string();
        assert!(errors.contains("NOREPLICAS"), "{errors}");
        // The next operation sends it once more.
        refuse("0");
        eventually("it is released", || {
            take(&redlock, "b").release().unwrap();
            servers.iter().all(|server| server.keys().is_empty())
        });
        releases.join().unwrap();
        room_for_threads(true);
    });
}

#[test]
fn a_wait_that_no_thread_can_end_with_a_message_takes_turns_in_peace() {
    let name = "a_wait_that_no_thread_can_end_with_a_message_takes_turns_in_peace";
    with_large_stacks(name, || {
        let servers = Server::several(3);
        let [one, two] = [(); 2].map(|()| connected(&servers));
        let lock = take(&one, "a");
        eventually("all attendants have ended", || attendants() == 0);
        room_for_threads(false);
        let before = worked();
        let waited = two.acquire_within("a", TTL, Duration::from_secs(4));
        assert!(matches!(waited, Err(Error::Busy(_))), "{waited:?}");
        let worked = worked() - before;
        assert!(worked < Duration::from_secs(1), "{worked:?}");
        room_for_threads(true);
        lock.release().unwrap();
        take(&two, "a").release().unwrap();
    });
}
