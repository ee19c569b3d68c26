//! A logger that panics or blocks ends no renewal and swallows no signal.

use crate::support;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::time::Duration;

use redlock_sync::{Event, KeptLock, LostReason, Redlock};
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

/// Without a hook that prints a backtrace: on a busy machine that takes seconds.
fn panics() {
    std::panic::resume_unwind(Box::new("as the test wants"));
}

const HOUR: Duration = Duration::from_secs(3600);

#[test]
fn a_logger_that_panics_ends_no_renewal() {
    let name = "a_logger_that_panics_ends_no_renewal";
    in_own_process(name, || {
        static PANICS: AtomicU32 = AtomicU32::new(0);
        let servers = Server::several(3);
        let redlock = unhurried_connected(&servers);
        let lock = keep(&redlock, "renewed", Duration::from_secs(3), HOUR);
        rule(|thread, text| {
            if thread == "redlock-renewal"
                && text.contains(": yes")
                && PANICS.fetch_add(1, Ordering::Relaxed) < 3
            {
                panics();
            }
        });
        assert!(!lock.wait_lost(Duration::from_secs(9)));
        assert!(PANICS.load(Ordering::Relaxed) > 3, "it never panicked");
        lock.release().unwrap();
    });
}

#[test]
fn a_logger_that_panics_at_every_line_changes_nothing() {
    let name = "a_logger_that_panics_at_every_line_changes_nothing";
    in_own_process(name, || {
        let servers = Server::several(3);
        let relay = relay::Relay::to(servers[0].port());
        let nodes = [relay.url(), servers[1].url(), servers[2].url()];
        let redlock = Redlock::new(nodes).unwrap();
        let redlock = redlock.with_options(options()).unwrap();
        rule(|_, _| panics());
        std::thread::scope(|scope| {
            for user in 0..4 {
                let redlock = &redlock;
                scope.spawn(move || {
                    for round in 0..50 {
                        let mut lock = take(redlock, &format!("{user} {round}"));
                        lock.extend(2 * TTL).unwrap();
                        match round % 2 {
                            0 => lock.release().unwrap(),
                            _ => drop(lock),
                        }
                    }
                });
            }
            for _ in 0..5 {
                relay.cut();
                std::thread::sleep(ms(20));
            }
        });
        let short = redlock.acquire("short", ms(50)).unwrap();
        eventually("it is lost", || !short.is_valid());
        assert!(matches!(short.release(), Err(redlock_sync::Error::Lost(_))));
        eventually("all vote again", || {
            let lock = take(&redlock, "vote");
            let votes = servers.iter().all(|server| server.exists("vote"));
            drop(lock);
            votes
        });
        for server in &servers {
            eventually("nothing is left", || server.keys().is_empty());
        }
    });
}

#[test]
fn a_logger_that_panics_swallows_no_callback() {
    let name = "a_logger_that_panics_swallows_no_callback";
    in_own_process(name, || {
        let servers = Server::several(3);
        let redlock = connected(&servers);
        rule(|_, text| assert!(!text.contains("\"panicking\" is lost")));
        let lock = keep(&redlock, "panicking", ms(2000), ms(2000));
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
        let lock = keep(&redlock, "blocking", ms(2000), ms(2000));
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

#[test]
fn an_observer_that_does_not_return_keeps_no_node_from_being_logged() {
    let name = "an_observer_that_does_not_return_keeps_no_node_from_being_logged";
    in_own_process(name, || {
        let mut servers = Server::several(5);
        let (blocks, wakes) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(false)),
        );
        let told = Arc::new(Mutex::new(Vec::new()));
        let observer = {
            let (blocks, wakes, told) = (blocks.clone(), wakes.clone(), told.clone());
            move |event: &Event<'_>| {
                if let Event::NodeAway { error, .. } = event {
                    blocks.store(true, Ordering::SeqCst);
                    while !wakes.load(Ordering::SeqCst) {
                        std::thread::sleep(ms(2));
                    }
                    told.lock().unwrap().push(error.node());
                }
            }
        };
        let redlock = connected(&servers).with_observer(observer);
        eventually("all vote", || {
            let lock = take(&redlock, "a");
            let all = servers.iter().all(|server| server.exists("a"));
            lock.release().unwrap();
            all
        });
        let (sender, lines) = mpsc::channel();
        rule(move |_, text| {
            let _ = sender.send(text.to_owned());
        });
        let mut seen = String::new();
        let mut says = |words: &str| {
            take(&redlock, "a").release().unwrap();
            seen.extend(lines.try_iter());
            seen.contains(words)
        };
        servers[1].kill();
        eventually("the observer blocks", || {
            says("node 1 (") && blocks.load(Ordering::SeqCst)
        });
        servers[3].kill();
        let away = format!("node 3 (127.0.0.1:{}) is away", servers[3].port());
        eventually("it is logged", || says(&away));
        assert!(told.lock().unwrap().is_empty());
        wakes.store(true, Ordering::SeqCst);
        eventually("both are logged", || {
            let told = told.lock().unwrap();
            told.contains(&1) && told.contains(&3)
        });
    });
}

/// A process that hangs is ended.
fn within_a_minute() {
    // SAFETY: plain system call.
    unsafe { libc::alarm(60) };
}

#[test]
fn a_logger_that_uses_the_same_redlock_stops_no_thread() {
    thread_local! {
        static LOGGING: Cell<bool> = const { Cell::new(false) };
    }
    let name = "a_logger_that_uses_the_same_redlock_stops_no_thread";
    in_own_process(name, || {
        within_a_minute();
        let servers = Server::several(3);
        let relay = relay::Relay::to(servers[0].port());
        let nodes = [relay.url(), servers[1].url(), servers[2].url()];
        let redlock = Redlock::new(nodes).unwrap();
        let redlock = redlock.with_options(unhurried()).unwrap();
        let ttl = 4 * NODE_TIMEOUT;
        let kept = keep(&redlock, "kept", ttl, HOUR);
        let logs = redlock.clone();
        rule(move |_, _| {
            if !LOGGING.replace(true) {
                drop(logs.try_acquire("of the logger", TTL));
                LOGGING.set(false);
            }
        });
        std::thread::scope(|scope| {
            for user in 0..4 {
                let redlock = &redlock;
                scope.spawn(move || {
                    for round in 0..50 {
                        take(redlock, &format!("{user} {round}")).release().unwrap();
                    }
                });
            }
            for _ in 0..5 {
                relay.cut();
                std::thread::sleep(ms(20));
            }
        });
        assert!(!kept.wait_lost(2 * ttl));
        kept.release().unwrap();
    });
}

/// For ever, in whatever thread it is: only that thread stands still.
#[test]
fn a_logger_that_blocks_stops_no_other_thread() {
    let name = "a_logger_that_blocks_stops_no_other_thread";
    in_own_process(name, || {
        static BLOCKED: AtomicU32 = AtomicU32::new(0);
        static DONE: AtomicU32 = AtomicU32::new(0);
        static TEST: OnceLock<std::thread::ThreadId> = OnceLock::new();
        within_a_minute();
        let mut servers = Server::several(3);
        let redlock = connected(&servers);
        let kept = keep(&redlock, "kept", ms(3000), HOUR);
        // A loss is logged by the thread that renews, or that watches, if anything is.
        let taken = keep(&redlock, "taken", ms(3000), HOUR);
        taken.on_lost(|_| ());
        TEST.set(std::thread::current().id()).unwrap();
        rule(|_, text| {
            // On a busy machine this thread may be the first to see the loss, and the one that renews to find
            // the node away: without it nothing is renewed.
            let thread = std::thread::current();
            let spared =
                TEST.get() == Some(&thread.id()) || thread.name() == Some("redlock-renewal");
            let what = ["is away", "is back", "is lost"];
            if !spared && what.iter().any(|what| text.contains(what)) {
                BLOCKED.fetch_add(1, Ordering::Relaxed);
                loop {
                    std::thread::park();
                }
            }
        });
        for user in 0..8 {
            let redlock = redlock.clone();
            std::thread::spawn(move || {
                loop {
                    drop(redlock.acquire(format!("user {user}"), TTL));
                    DONE.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        servers.iter().for_each(|server| {
            server.command(&["DEL", "taken"]);
        });
        assert!(taken.wait_lost(Duration::from_secs(20)));
        for _ in 0..2 {
            servers[0].kill();
            eventually("a thread is blocked", || {
                BLOCKED.load(Ordering::Relaxed) > 0
            });
            servers[0].restart();
            let before = DONE.load(Ordering::Relaxed);
            eventually("the others go on", || {
                DONE.load(Ordering::Relaxed) > before + 1000
            });
            eventually("the node votes again", || servers[0].keys().len() > 1);
        }
        assert!(!kept.wait_lost(ms(4000)));
        // And no more than one for each reason.
        assert!(BLOCKED.load(Ordering::Relaxed) <= 3);
        // The users hold what they hold; nothing waits for them.
        std::mem::forget((kept, taken, redlock));
    });
}

/// Each line's keys and values, as a logger of structured lines has them.
static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct KeyValues;

impl log::Log for KeyValues {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        struct Pairs(String);
        impl<'kvs> log::kv::VisitSource<'kvs> for Pairs {
            fn visit_pair(
                &mut self,
                key: log::kv::Key<'kvs>,
                value: log::kv::Value<'kvs>,
            ) -> Result<(), log::kv::Error> {
                self.0 += &format!(" {key}={value}");
                Ok(())
            }
        }
        let mut pairs = Pairs(record.level().to_string());
        record.key_values().visit(&mut pairs).unwrap();
        LINES.lock().unwrap().push(pairs.0);
    }

    fn flush(&self) {}
}

#[test]
fn lines_have_lock_node_verdict_votes_and_time_as_key_values() {
    let name = "lines_have_lock_node_verdict_votes_and_time_as_key_values";
    in_own_process(name, || {
        let mut servers = Server::several(3);
        let redlock = connected(&servers);
        log::set_logger(&KeyValues).unwrap();
        log::set_max_level(log::LevelFilter::Trace);
        let found = |line: &str| {
            let lines = LINES.lock().unwrap();
            lines.iter().any(|other| other.starts_with(line))
        };
        let lock = redlock.acquire("a\n\"b", TTL).unwrap();
        let votes = "verdict=granted yes=";
        assert!(found(&format!("DEBUG lock=a\\n\\\"b {votes}")));
        assert!(redlock.try_acquire("a\n\"b", TTL).unwrap().is_none());
        assert!(found("DEBUG lock=a\\n\\\"b verdict=denied yes=0 no="));
        let node = format!("node 0 (127.0.0.1:{})", servers[0].port());
        let lines = LINES.lock().unwrap().clone();
        let vote = |line: &&String| {
            line.starts_with("TRACE node=node ") && line.ends_with(" lock=a\\n\\\"b vote=yes")
        };
        assert!(lines.iter().filter(vote).count() >= 2, "{lines:?}");
        assert!(
            lines
                .iter()
                .all(|line| !line.starts_with("DEBUG lock") || line.contains(" ms="))
        );
        for server in &servers {
            server.command(&["DEL", "a\n\"b"]);
        }
        assert!(matches!(lock.release(), Err(redlock_sync::Error::Lost(_))));
        let lost = "WARN lock=a\\n\\\"b reason=";
        assert!(found(lost), "{lost}: {:?}", LINES.lock());
        servers[0].kill();
        eventually("its end is logged", || {
            drop(redlock.try_acquire("b", TTL));
            found(&format!("WARN node={node}"))
        });
    });
}
