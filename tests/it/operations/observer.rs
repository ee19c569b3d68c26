//! The observer: one `Acquired` and one `Ended` for each lock, at most one `Lost` between them, whatever
//! happens; and whatever the observer does, it holds up its own thread alone.

use crate::support;

use std::cell::Cell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use redlock_sync::{Ending, Error, Event, Lock, LostReason, Redlock};
use support::*;

const HOUR: Duration = Duration::from_secs(3600);

/// The events that an observer received, in words.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<String>>>);

impl Told {
    fn observer(&self) -> impl Fn(&Event<'_>) + Send + Sync + 'static {
        let told = self.clone();
        move |event| told.note(event)
    }

    /// Nodes may be slow to connect at any time.
    fn note(&self, event: &Event<'_>) {
        if matches!(event, Event::NodeAway { .. } | Event::NodeBack { .. }) {
            return;
        }
        self.0.lock().unwrap().push(in_words(event));
    }

    /// All since this was last asked.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    fn has(&self, word: &str) -> bool {
        self.0.lock().unwrap().iter().any(|one| one == word)
    }
}

fn resource_of<'a>(event: &Event<'a>) -> &'a [u8] {
    match event {
        Event::Acquired { resource, .. }
        | Event::NotAcquired { resource, .. }
        | Event::Extended { resource, .. }
        | Event::NotExtended { resource, .. }
        | Event::Lost { resource, .. }
        | Event::Ended { resource, .. } => resource,
        _ => b"",
    }
}

fn in_words(event: &Event<'_>) -> String {
    let by = |renewal: &bool| if *renewal { "renewal" } else { "hand" };
    match event {
        Event::Acquired { attempts, .. } => format!("acquired {attempts}"),
        Event::NotAcquired { error, .. } => format!("not acquired {}", kind(error)),
        Event::Extended { renewal, .. } => format!("extended by {}", by(renewal)),
        Event::NotExtended { renewal, error, .. } => {
            format!("not extended by {} {}", by(renewal), kind(error))
        }
        Event::Lost { reason, .. } => format!("lost {reason:?}"),
        Event::Ended { how, .. } => format!("ended {how:?}"),
        Event::NodeAway { error, .. } => format!("away {}", error.node()),
        Event::NodeBack { node, .. } => format!("back {node}"),
        _ => format!("{event:?}"),
    }
}

fn kind(error: &Error) -> &'static str {
    match error {
        Error::Config(_) => "Config",
        Error::Busy(_) => "Busy",
        Error::OtherKind(_) => "OtherKind",
        Error::Lost(_) => "Lost",
        Error::TooSlow(_) => "TooSlow",
        Error::Unavailable(_) => "Unavailable",
        Error::ExtensionLimit(_) => "ExtensionLimit",
        Error::Cancelled(_) => "Cancelled",
        Error::Random(_) => "Random",
        _ => "?",
    }
}

fn observed(servers: &[Server]) -> (Redlock, Told) {
    let told = Told::default();
    let redlock = redlock(servers).with_observer(told.observer());
    eventually("all nodes are connected", || {
        let lock = take(&redlock, "connecting");
        let all = servers.iter().all(|server| server.exists("connecting"));
        lock.release().unwrap();
        all
    });
    told.take();
    (redlock, told)
}

/// Work that panics under the lock "a".
fn panics_under_lock(redlock: &Redlock) {
    let work = |_: &mut Lock| -> Result<(), Error> { panic!("as the test wants") };
    redlock.with_lock("a", TTL, work).unwrap();
}

fn delete(servers: &[Server], key: &str) {
    servers.iter().for_each(|server| {
        server.command(&["DEL", key]);
    });
}

#[test]
fn every_way_to_hold_and_to_end_a_lock_is_reported_once() {
    let servers = Server::several(3);
    let (redlock, told) = observed(&servers);
    let check = |what: &str, expected: &[&str], way: &dyn Fn()| {
        way();
        assert_eq!(told.take(), expected, "{what}");
        delete(&servers, "a");
    };
    let released: &[&str] = &["acquired 1", "ended Released"];
    let dropped: &[&str] = &["acquired 1", "ended Dropped"];
    check("release", released, &|| {
        take(&redlock, "a").release().unwrap();
    });
    check("drop", dropped, &|| drop(take(&redlock, "a")));
    check("leak", &["acquired 1", "ended Leaked"], &|| {
        take(&redlock, "a").leak();
    });
    check("leak for a time", &["acquired 1", "ended Leaked"], &|| {
        take(&redlock, "a").leak_for(ms(5000)).unwrap();
    });
    check("leak for no time", released, &|| {
        take(&redlock, "a").leak_for(ms(0)).unwrap();
    });
    check("acquire", released, &|| {
        redlock.acquire("a", TTL).unwrap().release().unwrap();
    });
    check("while", released, &|| {
        let lock = redlock.acquire_while("a", TTL, || true).unwrap();
        lock.release().unwrap();
    });
    check("with_lock", released, &|| {
        redlock.with_lock("a", TTL, |_| Ok::<_, Error>(())).unwrap();
    });
    check("with_lock, a panic", dropped, &|| {
        catch_unwind(AssertUnwindSafe(|| panics_under_lock(&redlock))).unwrap_err();
    });
    let handed_over = &["acquired 1", "ended Leaked", "acquired 0", "ended Released"];
    check("resume", handed_over, &|| {
        let lock = take(&redlock, "a");
        let (token, validity) = (*lock.token(), lock.remaining());
        lock.leak();
        let lock = redlock.resume("a", token, validity).unwrap();
        lock.release().unwrap();
    });
    let extended = &["acquired 1", "extended by hand", "ended Released"];
    check("extend", extended, &|| {
        let mut lock = take(&redlock, "a");
        lock.extend(2 * TTL).unwrap();
        lock.release().unwrap();
    });
    check("reentrant", extended, &|| {
        let locks = redlock.reentrant();
        let outer = locks.acquire("a", TTL).unwrap();
        let inner = locks.acquire("a", 3 * TTL).unwrap();
        inner.release().unwrap();
        outer.release().unwrap();
    });
    check("reentrant, dropped", dropped, &|| {
        let locks = redlock.reentrant();
        let _outer = locks.acquire("a", TTL).unwrap();
        drop(locks.acquire("a", TTL).unwrap());
    });
    check("kept", released, &|| {
        let kept = take(&redlock, "a").keep_alive(HOUR).unwrap();
        kept.release().unwrap();
    });
    check("kept, dropped", dropped, &|| {
        drop(take(&redlock, "a").keep_alive(HOUR).unwrap());
    });
    check("kept, stopped, dropped", dropped, &|| {
        drop(take(&redlock, "a").keep_alive(HOUR).unwrap().stop());
    });
    check("with_kept_lock", released, &|| {
        redlock
            .with_kept_lock("a", TTL, HOUR, |_| Ok::<_, Error>(()))
            .unwrap();
    });
    check("kept for too short a time", dropped, &|| {
        let lock = take(&redlock, "a");
        std::thread::sleep(ms(2));
        config(lock.keep_alive(Duration::from_nanos(1)));
    });
}

/// That of values which callbacks own.
#[test]
fn a_destructor_that_panics_keeps_no_lock_from_its_end() {
    struct Panics;
    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("as the test wants");
        }
    }
    let servers = Server::several(3);
    let (redlock, told) = observed(&servers);
    let kept = || {
        let kept = take(&redlock, "a").keep_alive(HOUR).unwrap();
        for _ in 0..2 {
            let owned = Panics;
            kept.on_lost(move |_| drop(owned));
        }
        kept
    };
    let free = || {
        eventually("it is free", || {
            servers.iter().all(|server| !server.exists("a"))
        });
    };
    drop(kept());
    free();
    assert_eq!(told.take(), ["acquired 1", "ended Dropped"]);
    kept().release().unwrap();
    free();
    assert_eq!(told.take(), ["acquired 1", "ended Released"]);
    kept().stop().release().unwrap();
    free();
    assert_eq!(told.take(), ["acquired 1", "ended Released"]);
}

#[test]
fn every_loss_is_reported_once_and_before_the_end() {
    let servers = Server::several(3);
    let (redlock, told) = observed(&servers);
    let check = |what: &str, expected: &[&str], way: &dyn Fn()| {
        way();
        let mut told = told.take();
        // As often as there was time for.
        told.retain(|event| !event.ends_with("by renewal"));
        // On a busy machine a ttl so short may be over before all nodes have answered, and another attempt is made.
        let acquired = told
            .first_mut()
            .filter(|event| event.starts_with("acquired "));
        acquired.unwrap().replace_range(.., "acquired 1");
        assert_eq!(told, expected, "{what}");
        delete(&servers, "a");
    };
    let expired = || {
        let lock = redlock.acquire("a", ms(50)).unwrap();
        std::thread::sleep(ms(60));
        lock
    };
    let deleted = || {
        let lock = take(&redlock, "a");
        delete(&servers, "a");
        lock
    };
    let ended: &[&str] = &["acquired 1", "lost Expired", "ended WasLost"];
    check("expired, released", ended, &|| {
        assert!(matches!(expired().release(), Err(Error::Lost(_))));
    });
    check("expired, dropped", ended, &|| drop(expired()));
    check("expired, leaked", ended, &|| expired().leak());
    check("expired, leaked for a time", ended, &|| {
        assert!(matches!(expired().leak_for(ms(1)), Err(Error::Lost(_))));
    });
    check(
        "deleted, leaked for a time",
        &["acquired 1", "lost Deleted", "ended WasLost"],
        &|| {
            assert!(matches!(deleted().leak_for(ms(5000)), Err(Error::Lost(_))));
        },
    );
    check("expired, asked, released", ended, &|| {
        let lock = expired();
        assert!(!lock.is_valid() && lock.ensure(ms(1)).is_err());
        assert!(matches!(lock.release(), Err(Error::Lost(_))));
    });
    check("expired, kept", ended, &|| {
        assert!(matches!(expired().keep_alive(HOUR), Err(Error::Lost(_))));
    });
    let not_extended = "not extended by hand Lost";
    let refused = &["acquired 1", "lost Expired", not_extended, "ended WasLost"];
    check("expired, extended", refused, &|| {
        assert!(matches!(expired().extend(TTL), Err(Error::Lost(_))));
    });
    let ended: &[&str] = &["acquired 1", "lost Deleted", "ended WasLost"];
    check("deleted, released", ended, &|| {
        assert!(matches!(deleted().release(), Err(Error::Lost(_))));
    });
    check("deleted, asked for a number", ended, &|| {
        assert!(matches!(deleted().fencing_token(), Err(Error::Lost(_))));
    });
    check("deleted, kept, asked for a number", ended, &|| {
        let kept = deleted().keep_alive(HOUR).unwrap();
        assert!(matches!(kept.fencing_token(), Err(Error::Lost(_))));
        assert_eq!(kept.lost(), Some(LostReason::Deleted));
    });
    let refused = &["acquired 1", "lost Deleted", not_extended, "ended WasLost"];
    check("deleted, extended", refused, &|| {
        assert!(matches!(deleted().extend(TTL), Err(Error::Lost(_))));
    });
    // What keeps it finds out, or its holder, whichever is first.
    let limit = &["acquired 1", "lost HoldLimit", "ended WasLost"];
    for ending in 0..4 {
        check("held for as long as it may be", limit, &|| {
            let lock = redlock.acquire("a", ms(1500)).unwrap();
            let kept = lock.keep_alive(ms(1500)).unwrap();
            if ending == 3 {
                kept.on_lost(|_| ());
            }
            assert!(kept.wait_lost(Duration::from_secs(20)));
            match ending {
                0 => drop(kept),
                1 => assert!(kept.release().is_err()),
                2 => kept.stop().leak(),
                _ => {
                    eventually("it is reported", || told.has("lost HoldLimit"));
                    drop(kept);
                }
            }
            // Where the other thread tells of the loss, it tells of the end, too.
            eventually("the end is reported", || told.has("ended WasLost"));
        });
    }
    // Nothing asks, and nothing finds out before the end.
    check("kept, and dropped when it is over", limit, &|| {
        let lock = redlock.acquire("a", ms(1500)).unwrap();
        let kept = lock.keep_alive(ms(1500)).unwrap();
        eventually("the renewal finds out", || told.has("lost HoldLimit"));
        drop(kept);
        eventually("the end is reported", || told.has("ended WasLost"));
    });
}

#[test]
fn an_attempt_without_a_lock_is_reported_with_its_reason() {
    let mut servers = Server::several(3);
    let (redlock, told) = observed(&servers);
    let held = take(&redlock, "a");
    told.take();
    assert!(redlock.try_acquire("a", TTL).unwrap().is_none());
    assert_eq!(told.take(), ["not acquired Busy"]);
    assert!(redlock.acquire_within("a", TTL, ms(100)).is_err());
    assert_eq!(told.take(), ["not acquired Busy"]);
    let mut asked = 0;
    let stop = || {
        asked += 1;
        asked < 3
    };
    assert!(redlock.acquire_while("a", TTL, stop).is_err());
    assert_eq!(told.take(), ["not acquired Cancelled"]);
    config(redlock.acquire("", TTL));
    config(redlock.try_acquire("b", Duration::ZERO));
    assert_eq!(told.take(), [""; 0], "nothing was tried");
    servers.iter_mut().for_each(Server::kill);
    unavailable(redlock.try_acquire("b", TTL));
    unavailable(held.release());
    let expected = ["not acquired Unavailable", "ended NotConfirmed"];
    assert_eq!(told.take(), expected);
}

#[test]
fn waits_attempts_and_times_are_those_of_the_lock() {
    let servers = Server::several(3);
    let facts = Arc::new(Mutex::new(Vec::new()));
    let noted = facts.clone();
    let redlock = unhurried_redlock(&servers).with_observer(move |event| {
        let mut facts = noted.lock().unwrap();
        match event {
            Event::Acquired { wait, attempts, .. } => facts.push((*wait, *attempts)),
            Event::Extended { left, .. } => facts.push((*left, 0)),
            Event::Ended { held, .. } => facts.push((*held, 0)),
            _ => {}
        }
    });
    let lock = take(&redlock, "a");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| redlock.acquire("a", TTL).unwrap());
        std::thread::sleep(ms(600));
        lock.release().unwrap();
        let mut lock = waits.join().unwrap();
        std::thread::sleep(ms(600));
        lock.extend(TTL).unwrap();
        lock.release().unwrap();
    });
    let mut facts = facts.lock().unwrap().split_off(1);
    // The first one's end may be reported before the second one has it, or after.
    if facts[0].1 == 0 {
        facts.swap(0, 1);
    }
    let [(wait, attempts), (held, _), (left, _), (held_too, _)] = facts[..] else {
        panic!("{facts:?}");
    };
    assert!((ms(500)..TTL).contains(&wait) && attempts >= 1, "{facts:?}");
    assert!((ms(600)..TTL).contains(&held), "{facts:?}");
    assert!((TTL / 2..TTL - ms(600)).contains(&left), "{facts:?}");
    assert!((ms(600)..TTL).contains(&held_too), "{facts:?}");
}

#[test]
fn renewals_are_reported_and_so_is_one_that_fails() {
    let servers = Server::several(3);
    let (redlock, told) = observed(&servers);
    let lock = redlock.acquire("a", Duration::from_secs(6)).unwrap();
    let kept = lock.keep_alive(HOUR).unwrap();
    eventually("renewed", || told.has("extended by renewal"));
    servers[..2].iter().for_each(Server::stop);
    let failed = "not extended by renewal Unavailable";
    eventually("it is reported", || told.has(failed));
    servers[..2].iter().for_each(Server::resume);
    told.take();
    eventually("renewed again", || told.has("extended by renewal"));
    kept.release().unwrap();
    assert!(!told.take().iter().any(|event| event.starts_with("lost")));
}

/// Neither its lock is lost nor another one, and what it hears in the end is in order.
#[test]
fn an_observer_that_sleeps_at_a_renewal_holds_up_no_renewal_and_gets_none_after_a_loss() {
    let servers = Server::several(3);
    let told = Told::default();
    let (sleeps, wakes) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let observer = {
        let (told, sleeps, wakes) = (told.clone(), sleeps.clone(), wakes.clone());
        move |event: &Event<'_>| {
            let name = String::from_utf8_lossy(resource_of(event)).into_owned();
            told.0
                .lock()
                .unwrap()
                .push(format!("{name} {}", in_words(event)));
            if matches!(event, Event::Extended { renewal: true, .. }) {
                sleeps.store(true, Ordering::SeqCst);
                while !wakes.load(Ordering::SeqCst) {
                    std::thread::sleep(ms(2));
                }
            }
        }
    };
    let redlock = unhurried_redlock(&servers).with_observer(observer);
    let keep = |name: &str| {
        let lock = redlock.acquire(name, Duration::from_secs(3)).unwrap();
        lock.keep_alive(HOUR).unwrap()
    };
    let locks = ["a", "b", "c"].map(keep);
    eventually("the observer sleeps", || sleeps.load(Ordering::SeqCst));
    // Longer than their ttl.
    assert!(!locks[0].wait_lost(Duration::from_secs(4)));
    assert!(locks.iter().all(|lock| lock.lost().is_none()));
    delete(&servers, "b");
    eventually("it is lost", || told.has("b lost Deleted"));
    wakes.store(true, Ordering::SeqCst);
    eventually("the others are reported", || {
        told.has("a extended by renewal") && told.has("c extended by renewal")
    });
    let [a, b, c] = locks;
    a.release().unwrap();
    assert!(matches!(b.release(), Err(Error::Lost(_))));
    c.release().unwrap();
    let told = told.take();
    let of_b: Vec<&String> = told
        .iter()
        .filter(|event| event.starts_with("b "))
        .collect();
    let behind = of_b.iter().skip_while(|event| **event != "b lost Deleted");
    let behind: Vec<&String> = behind.copied().collect();
    assert_eq!(behind, ["b lost Deleted", "b ended WasLost"], "{told:?}");
}

/// The thread that keeps locks reports that one is lost, and takes its time; its holder does not wait for
/// that, and its end is reported behind it all the same.
#[test]
fn an_observer_that_sleeps_at_a_loss_holds_up_no_thread_and_gets_the_end_after_it() {
    let servers = Server::several(3);
    let told = Told::default();
    let (sleeping, wakes) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let observer = {
        let (told, sleeping, wakes) = (told.clone(), sleeping.clone(), wakes.clone());
        move |event: &Event<'_>| {
            if matches!(event, Event::Lost { .. }) {
                sleeping.store(true, Ordering::SeqCst);
                while !wakes.load(Ordering::SeqCst) {
                    std::thread::sleep(ms(2));
                }
            }
            told.note(event);
        }
    };
    let redlock = unhurried_redlock(&servers).with_observer(observer);
    let keep = |name: &str| {
        let lock = redlock.acquire(name, Duration::from_secs(3)).unwrap();
        lock.keep_alive(HOUR).unwrap()
    };
    let (lost, other) = (keep("lost"), keep("other"));
    delete(&servers, "lost");
    eventually("the observer sleeps", || sleeping.load(Ordering::SeqCst));
    assert_eq!(lost.lost(), Some(LostReason::Deleted));
    assert!(matches!(lost.release(), Err(Error::Lost(_))));
    // The renewals go on, and others lock what was lost.
    take(&redlock, "lost").release().unwrap();
    assert!(!other.wait_lost(Duration::from_secs(4)));
    assert!(!told.has("ended WasLost"));
    wakes.store(true, Ordering::SeqCst);
    eventually("the end is reported", || told.has("ended WasLost"));
    other.release().unwrap();
    let told = told.take();
    let position = |word: &str| told.iter().position(|one| one == word).unwrap();
    assert!(position("lost Deleted") < position("ended WasLost"));
    let count = |start: &str| told.iter().filter(|one| one.starts_with(start)).count();
    assert_eq!(
        (count("acquired"), count("ended"), count("lost")),
        (3, 3, 1)
    );
}

#[test]
fn a_lock_that_an_observer_slept_away_is_not_given_out() {
    let servers = Server::several(3);
    let told = Told::default();
    let sleeps = Arc::new(AtomicBool::new(true));
    let observer = {
        let (told, sleeps) = (told.clone(), sleeps.clone());
        move |event: &Event<'_>| {
            told.note(event);
            let late = matches!(event, Event::Acquired { .. } | Event::Extended { .. });
            if late && sleeps.load(Ordering::SeqCst) {
                std::thread::sleep(ms(600));
            }
        }
    };
    let redlock = redlock(&servers).with_observer(observer);
    assert!(matches!(
        redlock.try_acquire("a", ms(500)),
        Err(Error::TooSlow(_))
    ));
    assert!(matches!(
        redlock.acquire_within("a", ms(500), ms(0)),
        Err(Error::TooSlow(_))
    ));
    let ended = ["acquired 1", "lost Expired", "ended WasLost"];
    assert_eq!(told.take(), [ended, ended].concat());
    sleeps.store(false, Ordering::SeqCst);
    let mut lock = redlock.acquire("a", ms(500)).unwrap();
    sleeps.store(true, Ordering::SeqCst);
    assert!(matches!(lock.extend(ms(550)), Err(Error::Lost(_))));
    drop(lock);
    let ended = [
        "acquired 1",
        "extended by hand",
        "lost Expired",
        "ended WasLost",
    ];
    assert_eq!(told.take(), ended);
}

/// Sixty-four threads, faults of a minority and of a majority, an observer that panics, sleeps and locks:
/// each lock's events are in order, and there is one end for each.
#[test]
fn acquired_less_ended_is_what_is_held_whatever_happens() {
    let name = "acquired_less_ended_is_what_is_held_whatever_happens";
    in_own_process(name, || {
        std::panic::set_hook(Box::new(|panic| {
            let text = panic.to_string();
            if !text.contains("as the test wants") {
                eprintln!("{text}");
            }
        }));
        let servers = Mutex::new(Server::several(5));
        let events: Arc<Mutex<HashMap<Vec<u8>, Vec<String>>>> = Arc::default();
        let held = Arc::new(AtomicI64::new(0));
        let own: Arc<OnceLock<Redlock>> = Arc::default();
        let redlock = {
            let (events, held, own) = (events.clone(), held.clone(), own.clone());
            let number = AtomicU32::new(0);
            redlock(&servers.lock().unwrap()).with_observer(move |event| {
                match event {
                    Event::Acquired { .. } => held.fetch_add(1, Ordering::SeqCst),
                    Event::Ended { .. } => held.fetch_sub(1, Ordering::SeqCst),
                    Event::NodeAway { .. } | Event::NodeBack { .. } => return,
                    _ => 0,
                };
                let resource = resource_of(event).to_vec();
                let mut all = events.lock().unwrap();
                all.entry(resource).or_default().push(in_words(event));
                drop(all);
                misbehave(number.fetch_add(1, Ordering::Relaxed), &own);
            })
        };
        assert!(own.set(redlock.clone()).is_ok());
        let over = AtomicBool::new(false);
        let kept_at_the_end = std::thread::scope(|scope| {
            let user = |user| {
                let (redlock, over) = (&redlock, &over);
                scope.spawn(move || use_locks(redlock, user, over))
            };
            let users: Vec<_> = (0..64).map(user).collect();
            let _over = OnDrop(&over);
            for round in 0..6 {
                let mut servers = servers.lock().unwrap();
                servers[round % 5].kill();
                let stopped = if round % 2 == 0 { 1 } else { 3 };
                let stopped: Vec<usize> = (1..=stopped).map(|i| (round + i) % 5).collect();
                stopped.iter().for_each(|i| servers[*i].stop());
                std::thread::sleep(ms(700));
                stopped.iter().for_each(|i| servers[*i].resume());
                servers[round % 5].restart();
                std::thread::sleep(ms(500));
            }
            over.store(true, Ordering::SeqCst);
            let all = users.into_iter().map(|user| user.join().unwrap());
            all.flatten().collect::<Vec<_>>()
        });
        let quiet = |count: i64| {
            eventually("as many are held as were reported", || {
                held.load(Ordering::SeqCst) == count
            });
        };
        assert!(kept_at_the_end.len() > 32, "{}", kept_at_the_end.len());
        quiet(kept_at_the_end.len() as i64);
        drop(kept_at_the_end);
        quiet(0);
        check_order(&events.lock().unwrap());
    });
}

/// In the observer, every so often.
fn misbehave(number: u32, own: &OnceLock<Redlock>) {
    thread_local! {
        static INSIDE: Cell<bool> = const { Cell::new(false) };
    }
    match number % 50 {
        7 => panic!("as the test wants"),
        17 => std::thread::sleep(ms(5)),
        27 if !INSIDE.replace(true) => {
            let lock = own
                .get()
                .map(|own| own.try_acquire(format!("inner {number}"), TTL));
            drop(lock);
            INSIDE.set(false);
        }
        _ => {}
    }
}

/// Locks with names that no other thread uses, held and ended in all ways; and now and then one that all want. What
/// it holds at the end.
fn use_locks(redlock: &Redlock, user: u64, over: &AtomicBool) -> Vec<redlock_sync::Lock> {
    let mut random = Random(user * 2 + 1);
    let mut round = 0;
    while !over.load(Ordering::SeqCst) {
        round += 1;
        if random.below(4) == 0 {
            drop(redlock.acquire_within("all", TTL, ms(50)));
            continue;
        }
        let ttl = match random.below(3) {
            0 => ms(20),
            1 => ms(900),
            _ => TTL,
        };
        let Ok(mut lock) = redlock.acquire_within(format!("{user} {round}"), ttl, ms(300)) else {
            continue;
        };
        std::thread::sleep(ms(random.below(30)));
        match random.below(9) {
            0 => drop(lock),
            1 => drop(lock.release()),
            2 => lock.leak(),
            3 => drop(lock.extend(ttl)),
            4 => drop(lock.fencing_token()),
            5 => drop(lock.keep_alive(ms(100))),
            6 => {
                if let Ok(kept) = lock.keep_alive(ms(500)) {
                    kept.wait_lost(ms(700));
                    drop(kept.release());
                }
            }
            7 => {
                if let Ok(kept) = lock.keep_alive(HOUR) {
                    kept.on_lost(|_| ());
                    std::thread::sleep(ms(random.below(800)));
                    drop(kept);
                }
            }
            _ => {
                let panics = move || {
                    let _held = lock;
                    panic!("as the test wants");
                };
                catch_unwind(AssertUnwindSafe(panics)).unwrap_err();
            }
        }
    }
    let name = format!("{user} at the end");
    redlock.acquire_within(name, TTL, TTL).into_iter().collect()
}

fn check_order(events: &HashMap<Vec<u8>, Vec<String>>) {
    let mut lost = 0;
    for (resource, list) in events {
        let shared = resource == b"all";
        let acquired = list
            .iter()
            .filter(|one| one.starts_with("acquired"))
            .count();
        let ended = list.iter().filter(|one| one.starts_with("ended")).count();
        assert_eq!(acquired, ended, "{}: {list:?}", resource.escape_ascii());
        if shared || acquired == 0 {
            continue;
        }
        assert_eq!(acquired, 1, "{list:?}");
        let of_lock = |start: &str| list.iter().position(|one| one.starts_with(start));
        let (first, last) = (of_lock("acquired").unwrap(), of_lock("ended").unwrap());
        let losses = list.iter().filter(|one| one.starts_with("lost")).count();
        assert!(losses <= 1, "{list:?}");
        lost += losses;
        if let Some(loss) = of_lock("lost") {
            assert!(first < loss && loss < last, "{list:?}");
        }
        let was_lost = list.iter().any(|one| one == "ended WasLost");
        assert_eq!(was_lost, losses == 1, "{list:?}");
    }
    assert!(events.len() > 500 && lost > 20, "{} {lost}", events.len());
}

#[test]
fn an_observer_that_panics_at_every_event_changes_nothing() {
    let name = "an_observer_that_panics_at_every_event_changes_nothing";
    in_own_process(name, || {
        let mut servers = Server::several(3);
        let redlock = redlock(&servers).with_observer(|_| panic!("as the test wants"));
        take(&redlock, "a").release().unwrap();
        let mut lock = take(&redlock, "a");
        assert!(redlock.try_acquire("a", TTL).unwrap().is_none());
        lock.extend(2 * TTL).unwrap();
        drop(lock);
        // While another panic unwinds.
        catch_unwind(AssertUnwindSafe(|| panics_under_lock(&redlock))).unwrap_err();
        let ttl = Duration::from_secs(3);
        let kept = redlock.acquire("kept", ttl).unwrap();
        let kept = kept.keep_alive(HOUR).unwrap();
        servers[0].kill();
        assert!(!kept.wait_lost(2 * ttl));
        servers[0].restart();
        eventually("the node votes again", || {
            drop(take(&redlock, "b"));
            attendants() == 0
        });
        delete(&servers, "kept");
        assert!(kept.wait_lost(2 * ttl));
        assert!(kept.release().is_err());
        take(&redlock, "a").release().unwrap();
    });
}

/// From within each event it takes the lock that the event is about, by all ways.
#[test]
fn an_observer_that_locks_the_same_resource_cannot_deadlock() {
    let name = "an_observer_that_locks_the_same_resource_cannot_deadlock";
    in_own_process(name, || {
        thread_local! {
            static INSIDE: Cell<bool> = const { Cell::new(false) };
        }
        // SAFETY: plain system call. A process that hangs is ended.
        unsafe { libc::alarm(60) };
        let mut servers = Server::several(3);
        let own: Arc<OnceLock<Redlock>> = Arc::default();
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        let redlock = {
            let (own, told) = (own.clone(), told.clone());
            redlock(&servers).with_observer(move |event| {
                let Some(redlock) = own.get().filter(|_| !INSIDE.replace(true)) else {
                    return;
                };
                let resource = match resource_of(event) {
                    b"" => b"a",
                    resource => resource,
                };
                let got = redlock.acquire_within(resource, TTL, ms(100)).is_ok();
                drop(redlock.try_acquire(resource, TTL));
                drop(redlock.reentrant().acquire_within(resource, TTL, ms(100)));
                INSIDE.set(false);
                told.lock()
                    .unwrap()
                    .push(format!("{} {got}", in_words(event)));
            })
        };
        assert!(own.set(redlock.clone()).is_ok());
        let short = Duration::from_secs(3);
        take(&redlock, "a").release().unwrap();
        drop(take(&redlock, "a"));
        let locks = redlock.reentrant();
        let entry = locks.acquire("a", TTL).unwrap();
        entry.extend(2 * TTL).unwrap();
        entry.release().unwrap();
        let kept = redlock.acquire("a", short).unwrap();
        let kept = kept.keep_alive(HOUR).unwrap();
        std::thread::sleep(short / 2);
        delete(&servers, "a");
        assert!(kept.wait_lost(short));
        drop(kept.release());
        servers[0].kill();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..5 {
                        drop(redlock.acquire("a", TTL).unwrap());
                    }
                });
            }
        });
        servers[0].restart();
        eventually("all was reported", || {
            drop(redlock.acquire("b", TTL).unwrap());
            let told = told.lock().unwrap();
            let has = |start: &str| told.iter().any(|one| one.starts_with(start));
            has("away 0") && has("back 0")
        });
        let told = told.lock().unwrap();
        let has = |what: &str| assert!(told.iter().any(|one| one == what), "{what}: {told:?}");
        // While it is held no other thread gets it, and when it has ended any can.
        has("acquired 1 false");
        has("extended by hand false");
        has("extended by renewal false");
        has("ended Released true");
        has("ended Dropped true");
    });
}

#[test]
fn an_observer_may_drop_the_last_clone() {
    let servers = Server::several(3);
    for event in ["acquired", "ended", "away", "lost"] {
        let last: Arc<Mutex<Option<Redlock>>> = Arc::default();
        let fired = Arc::new(AtomicBool::new(false));
        let observer = {
            let (last, fired) = (last.clone(), fired.clone());
            move |told: &Event<'_>| {
                if in_words(told).starts_with(event) {
                    let own = last.lock().unwrap().take();
                    fired.fetch_or(own.is_some(), Ordering::SeqCst);
                    drop(own);
                }
            }
        };
        let relay = relay::Relay::to(servers[0].port());
        let nodes = [relay.url(), servers[1].url(), servers[2].url()];
        let made = Redlock::new(nodes)
            .unwrap()
            .with_options(options())
            .unwrap();
        let made = made.with_observer(observer);
        // What is reported before that does not count.
        eventually("all nodes are connected and well", || {
            let lock = take(&made, "b");
            let all = servers.iter().all(|server| server.exists("b"));
            lock.release().unwrap();
            all
        });
        let lock = made.acquire("a", ms(600)).unwrap();
        *last.lock().unwrap() = Some(made);
        match event {
            "acquired" => {
                let made = last.lock().unwrap().clone().unwrap();
                drop(made.acquire("b", TTL).unwrap());
            }
            "lost" => {
                let kept = lock.keep_alive(ms(600)).unwrap();
                eventually("it is reported", || fired.load(Ordering::SeqCst));
                drop(kept);
                continue;
            }
            "away" => {
                relay.refuse();
                eventually("it is noticed", || {
                    let made = last.lock().unwrap().clone();
                    drop(made.map(|made| made.try_acquire("b", TTL)));
                    fired.load(Ordering::SeqCst)
                });
            }
            _ => {}
        }
        drop(lock);
        eventually("it is reported", || fired.load(Ordering::SeqCst));
        assert!(last.lock().unwrap().is_none());
        eventually("connections are closed", || {
            servers[1..].iter().all(|server| server.clients() == 0)
        });
    }
}

#[test]
fn a_forked_child_is_silent_and_the_parent_is_notified_as_before() {
    let name = "a_forked_child_is_silent_and_the_parent_is_notified_as_before";
    in_own_process(name, || {
        let servers = Server::several(3);
        let (redlock, told) = observed(&servers);
        let (released, dropped) = (take(&redlock, "released"), take(&redlock, "dropped"));
        let kept = take(&redlock, "kept").keep_alive(HOUR).unwrap();
        told.take();
        let mut inherited = Some((released, dropped, kept));
        // In the parent a thread that is not in the child has what the observer uses.
        let blocked = told.0.lock().unwrap();
        // SAFETY: the child touches nothing that another thread may hold but through this crate.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: plain system call. A child that hangs ends by SIGALRM.
            unsafe { libc::alarm(20) };
            let (released, dropped, kept) = inherited.take().unwrap();
            let work = || {
                assert!(!released.is_valid() && !kept.is_valid());
                released.release().unwrap_err();
                drop((dropped, kept));
                take(&redlock, "of the child").release().unwrap();
                assert!(redlock.try_acquire("kept", TTL).unwrap().is_none());
                // One of its own is reported.
                let own = Told::default();
                let redlock = redlock.clone().with_observer(own.observer());
                take(&redlock, "of the child").release().unwrap();
                assert_eq!(own.take(), ["acquired 1", "ended Released"]);
            };
            let well = catch_unwind(AssertUnwindSafe(work)).is_ok();
            // SAFETY: plain system call.
            unsafe { libc::_exit(i32::from(!well)) }
        }
        let mut status = 0;
        // SAFETY: a child of ours that was not waited for.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child ended with {status:#x}");
        drop(blocked);
        assert_eq!(told.take(), [""; 0]);
        let (released, dropped, kept) = inherited.unwrap();
        released.release().unwrap();
        drop((dropped, kept));
        assert_eq!(
            told.take(),
            ["ended Released", "ended Dropped", "ended Dropped"]
        );
    });
}

/// An event, and the name of the thread in which it was reported.
type InThread = (String, Option<String>);

#[test]
fn nodes_that_go_and_come_back_are_reported_once_each_in_a_separate_thread() {
    let mut servers = Server::several(3);
    let told: Arc<Mutex<Vec<InThread>>> = Arc::default();
    let away = Arc::new(Mutex::new(Duration::ZERO));
    let redlock = {
        let (told, noted) = (told.clone(), away.clone());
        redlock(&servers).with_observer(move |event| {
            match event {
                Event::NodeAway { error, .. } => {
                    let address = error.address();
                    assert!(address.starts_with("127.0.0.1:") && error.node() == 1);
                    let cause = error.cause().to_string();
                    assert!(!cause.is_empty() && !cause.contains(address));
                    assert_eq!(error.to_string(), format!("{address}: {cause}"));
                }
                Event::NodeBack { away, .. } => *noted.lock().unwrap() = *away,
                _ => return,
            }
            let thread = std::thread::current().name().map(str::to_owned);
            told.lock().unwrap().push((in_words(event), thread));
        })
    };
    take(&redlock, "a").release().unwrap();
    let has = |event: &str| told.lock().unwrap().iter().any(|(told, _)| told == event);
    let until = |what: &str| {
        eventually(what, || {
            drop(redlock.acquire("a", TTL).unwrap());
            has(what)
        });
    };
    let went = Instant::now();
    servers[1].kill();
    until("away 1");
    std::thread::sleep(ms(600));
    servers[1].restart();
    until("back 1");
    let lasted = *away.lock().unwrap();
    assert!((ms(500)..=went.elapsed()).contains(&lasted), "{lasted:?}");
    // One that answers with errors gives no votes, either; and when it goes then, it has been reported already.
    told.lock().unwrap().clear();
    servers[1].command(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    until("away 1");
    servers[1].kill();
    for _ in 0..50 {
        drop(redlock.acquire("a", TTL).unwrap());
        std::thread::sleep(ms(2));
    }
    servers[1].restart();
    until("back 1");
    let told = told.lock().unwrap();
    let events: Vec<&str> = told.iter().map(|(event, _)| &**event).collect();
    assert_eq!(events, ["away 1", "back 1"]);
    let of_its_own = |(_, thread): &InThread| {
        thread
            .as_ref()
            .is_some_and(|name| name.starts_with("redlock-"))
    };
    assert!(told.iter().all(of_its_own), "{told:?}");
}

#[test]
fn the_observer_stays_with_other_options_and_clones() {
    let servers = Server::several(1);
    let (redlock, told) = observed(&servers);
    let other = redlock
        .clone()
        .with_options(options().max_extensions(0))
        .unwrap();
    drop(take(&other, "a"));
    let other = redlock
        .with_options(options().node_timeout(ms(700)))
        .unwrap();
    let mut lock = take(&other.clone(), "a");
    assert!(lock.extend(TTL).is_ok());
    drop(lock);
    let expected = [
        "acquired 1",
        "ended Dropped",
        "acquired 1",
        "extended by hand",
        "ended Dropped",
    ];
    assert_eq!(told.take(), expected);
    // Another one takes its place.
    let new = Told::default();
    let other = other.with_observer(new.observer());
    drop(take(&other, "a"));
    assert_eq!((told.take().len(), new.take().len()), (0, 2));
    assert!(format!("{:?}", Ending::Leaked) == "Leaked");
}
