//! A logger that panics or blocks ends no renewal and swallows no signal.

mod support;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{OnceLock, mpsc};
use std::time::Duration;

use redlock_sync::{KeptLock, LostReason, Redlock};
use support::*;

type Do = Box<dyn Fn(&str, &str) + Send + Sync>;
/// What the test does in the logger, by thread and text.
static RULE: OnceLock<Do> = OnceLock::new();

struct Rule;

impl log::Log for Rule {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let thread = std::thread::current();
        let rule = RULE.get().unwrap();
        rule(thread.name().unwrap_or(""), &record.args().to_string());
    }

    fn flush(&self) {}
}

fn rule(rule: impl Fn(&str, &str) + Send + Sync + 'static) {
    assert!(RULE.set(Box::new(rule)).is_ok());
    log::set_logger(&Rule).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
}

fn keep(redlock: &Redlock, resource: &str, ttl: Duration, max_hold: Duration) -> KeptLock {
    let lock = redlock.acquire(resource, ttl).unwrap();
    lock.keep_alive(max_hold).unwrap()
}

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn a_logger_that_panics_ends_no_renewal() {
    let name = "a_logger_that_panics_ends_no_renewal";
    in_own_process(name, || {
        static PANICS: AtomicU32 = AtomicU32::new(0);
        let servers = Server::several(3);
        let redlock = connected(&servers);
        let lock = keep(&redlock, "renewed", Duration::from_secs(3), HOUR);
        rule(|thread, text| {
            if thread == "redlock-renewal"
                && text.contains(": yes")
                && PANICS.fetch_add(1, Ordering::Relaxed) < 3
            {
                panic!("as the test wants");
            }
        });
        assert!(!lock.wait_lost(Duration::from_secs(9)));
        assert!(PANICS.load(Ordering::Relaxed) > 3, "it never panicked");
        lock.release().unwrap();
    });
}

#[test]
fn a_logger_that_panics_swallows_no_callback() {
    let name = "a_logger_that_panics_swallows_no_callback";
    in_own_process(name, || {
        let servers = Server::several(3);
        let redlock = connected(&servers);
        rule(|_, text| assert!(!text.contains("\"panicking\" is lost")));
        let lock = keep(&redlock, "panicking", ms(600), ms(600));
        let (sender, receiver) = mpsc::channel();
        lock.on_lost(move |reason| sender.send(reason).unwrap());
        let reason = receiver.recv_timeout(Duration::from_secs(20));
        assert_eq!(reason, Ok(LostReason::HoldLimit));
        assert_eq!(lock.lost(), Some(LostReason::HoldLimit));
    });
}

#[test]
fn a_callback_that_a_blocked_logger_delays_is_not_called_after_stop() {
    let name = "a_callback_that_a_blocked_logger_delays_is_not_called_after_stop";
    in_own_process(name, || {
        static FOUND: AtomicBool = AtomicBool::new(false);
        static STOPPED: AtomicBool = AtomicBool::new(false);
        let servers = Server::several(3);
        let redlock = connected(&servers);
        rule(|_, text| {
            if text.contains("\"blocking\" is lost") {
                FOUND.store(true, Ordering::Relaxed);
                eventually("the lock is stopped", || STOPPED.load(Ordering::Relaxed));
            }
        });
        let lock = keep(&redlock, "blocking", ms(600), ms(600));
        let (sender, receiver) = mpsc::channel();
        lock.on_lost(move |_| {
            sender.send(STOPPED.load(Ordering::Relaxed)).unwrap();
        });
        eventually("the watching thread finds it lost", || {
            FOUND.load(Ordering::Relaxed)
        });
        let _lock = lock.stop();
        std::thread::sleep(ms(50));
        STOPPED.store(true, Ordering::Relaxed);
        // Called before, or not at all.
        assert_ne!(receiver.recv_timeout(Duration::from_secs(2)), Ok(true));
    });
}
