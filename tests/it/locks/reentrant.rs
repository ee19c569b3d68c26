//! Locks that a thread can lock again.

use crate::support;

use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use redlock_sync::{Error, Redlock, Reentrant, ReentrantLock};
use support::*;

fn views(servers: &[Server]) -> Reentrant {
    connected(servers).reentrant()
}

fn try_take(locks: &Reentrant, ttl: Duration) -> Option<ReentrantLock> {
    locks.try_acquire("a", ttl).unwrap()
}

#[test]
fn a_thread_enters_again_and_the_last_entry_releases_in_any_order() {
    let servers = Server::several(3);
    let locks = views(&servers);
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [1, 2, 0]] {
        let mut entries: Vec<_> = (0..3)
            .map(|_| Some(locks.acquire("a", TTL).unwrap()))
            .collect();
        assert_eq!(entries[0].as_ref().unwrap().depth(), 3);
        for (ended, entry) in order.into_iter().enumerate() {
            eventually("on all nodes", || {
                servers.iter().all(|server| server.exists("a"))
            });
            let entry = entries[entry].take().unwrap();
            assert_eq!(entry.depth(), 3 - ended);
            // Both ways to end an entry.
            match ended {
                1 => drop(entry),
                _ => entry.release().unwrap(),
            }
        }
        eventually("it is released", || {
            !servers.iter().any(|server| server.exists("a"))
        });
    }
}

#[test]
fn entering_again_asks_no_node_while_half_of_the_validity_is_left() {
    let server = Server::start();
    let locks = views(std::slice::from_ref(&server));
    let outer = locks.acquire("a", TTL).unwrap();
    let calls = || {
        server
            .info("stats", "total_commands_processed")
            .parse::<u64>()
            .unwrap()
    };
    let before = calls();
    for ttl in [TTL, TTL / 10, TTL * 3 / 2] {
        let inner = try_take(&locks, ttl).unwrap();
        assert!(inner.remaining() <= TTL);
        assert_eq!(inner.resource(), b"a");
        assert!(inner.fencing_token().is_ok());
        drop(inner);
    }
    // One for the fencing token, and the questions themselves.
    assert!(calls() - before <= 20, "{}", calls() - before);
    assert_eq!(outer.depth(), 1);
}

#[test]
fn an_inner_entry_that_needs_more_time_extends_the_lock_for_all() {
    let servers = Server::several(3);
    let redlock = unhurried_connected(&servers);
    let limited = redlock.with_options(unhurried().max_extensions(1)).unwrap();
    let locks = limited.reentrant();
    let outer = locks.acquire("a", TTL).unwrap();
    let inner = locks.acquire("a", 10 * TTL).unwrap();
    assert!(outer.remaining() > 5 * TTL);
    assert_eq!(outer.remaining() > Duration::ZERO, inner.is_valid());
    // That was the one extension. The outer entries stay as they are.
    let failed = locks.acquire("a", 100 * TTL);
    assert!(matches!(failed, Err(Error::ExtensionLimit(limit)) if limit.limit() == 1));
    assert!(matches!(outer.extend(TTL), Err(Error::ExtensionLimit(limit)) if limit.limit() == 1));
    assert_eq!((outer.depth(), outer.is_valid()), (2, true));
    outer.ensure(5 * TTL).unwrap();
    assert!(matches!(outer.ensure(100 * TTL), Err(Error::TooSlow(_))));
    drop(inner);
    outer.release().unwrap();
}

#[test]
fn a_lock_that_is_over_is_lost_inside_and_never_taken_anew() {
    let server = Server::start();
    let locks = views(std::slice::from_ref(&server));
    let ttl = Duration::from_millis(500);
    let outer = locks.acquire("a", ttl).unwrap();
    let second = locks.acquire("a", ttl).unwrap();
    std::thread::sleep(ttl + ms(50));
    for _ in 0..2 {
        assert!(matches!(locks.try_acquire("a", ttl), Err(Error::Lost(_))));
        assert!(matches!(locks.acquire("a", ttl), Err(Error::Lost(_))));
    }
    assert!(!server.exists("a"));
    assert!(matches!(second.release(), Err(Error::Lost(_))));
    assert!(matches!(locks.acquire("a", ttl), Err(Error::Lost(_))));
    assert!(matches!(outer.release(), Err(Error::Lost(_))));
    // All entries have ended.
    locks.acquire("a", ttl).unwrap().release().unwrap();
}

#[test]
fn bad_ttls_are_refused_inside_as_outside() {
    let server = Server::start();
    let locks = views(std::slice::from_ref(&server));
    config(locks.try_acquire("a", ms(2)));
    let outer = locks.acquire("a", TTL).unwrap();
    config(locks.try_acquire("a", ms(2)));
    config(locks.acquire("", TTL));
    assert_eq!(outer.depth(), 1);
}

#[test]
fn other_threads_resources_and_clients_contend_as_ever() {
    let servers = Server::several(3);
    let redlock = unhurried_connected(&servers);
    let locks = redlock.reentrant();
    let outer = locks.acquire("a", TTL).unwrap();
    // Clones are one family, plain acquirers know nothing of it.
    let clone = redlock.clone().reentrant();
    assert_eq!(clone.acquire("a", TTL).unwrap().depth(), 2);
    assert!(redlock.try_acquire("a", TTL).unwrap().is_none());
    let other_options = redlock.clone().with_options(unhurried().max_extensions(3));
    let same = other_options.unwrap().reentrant();
    assert_eq!(try_take(&same, TTL).unwrap().depth(), 2);
    // Another resource, another client, another thread.
    assert_eq!(locks.acquire("b", TTL).unwrap().depth(), 1);
    assert!(try_take(&views(&servers), TTL).is_none());
    std::thread::scope(|scope| {
        let other = scope.spawn(|| try_take(&locks, TTL).is_none());
        assert!(other.join().unwrap());
        let waiter = scope.spawn(|| locks.acquire("a", TTL).unwrap().depth());
        std::thread::sleep(ms(50));
        outer.release().unwrap();
        assert_eq!(waiter.join().unwrap(), 1);
    });
}

#[test]
fn with_lock_can_be_nested_and_ends_its_entry_by_a_panic_too() {
    let servers = Server::several(3);
    let locks = views(&servers);
    let depths = locks.with_lock("a", TTL, |outer| {
        let inner = locks.with_lock("a", TTL, |inner| {
            Ok::<_, Error>((inner.depth(), outer.depth()))
        });
        Ok::<_, Error>((inner?, outer.depth()))
    });
    assert_eq!(depths.unwrap(), ((2, 2), 1));
    let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        locks.with_lock("a", TTL, |_| {
            let panics = |_: &ReentrantLock| -> Result<(), Error> { panic!("work failed") };
            locks.with_lock("a", TTL, panics)
        })
    }));
    assert!(panics.is_err());
    eventually("it is released", || {
        !servers.iter().any(|server| server.exists("a"))
    });
    // The work ran unprotected for a time.
    let ttl = Duration::from_millis(500);
    let lost = locks.with_lock("a", ttl, |_| {
        // An entry that is not the last one learns it, too.
        let inner = locks.with_lock("a", ttl, |_| {
            std::thread::sleep(ttl);
            Ok(())
        });
        assert!(matches!(inner, Err(error @ Error::Lost(_)) if error.after_work()));
        Ok(())
    });
    assert!(matches!(lost, Err(error @ Error::Lost(_)) if error.after_work()));
}

/// An entry that outlives the thread's table of what it holds.
#[test]
fn an_entry_may_end_with_its_thread() {
    thread_local! {
        static KEPT: RefCell<Option<(Reentrant, ReentrantLock)>> = const { RefCell::new(None) };
    }
    static SURE: AtomicU32 = AtomicU32::new(0);
    struct Last(Reentrant);
    thread_local! {
        static LAST: RefCell<Option<Last>> = const { RefCell::new(None) };
    }
    impl Drop for Last {
        fn drop(&mut self) {
            // The thread's own lock, or a free one: never that of another.
            let own = self.0.try_acquire("a", TTL);
            SURE.fetch_add(u32::from(matches!(own, Ok(Some(_)))), Ordering::Relaxed);
        }
    }
    let server = Server::start();
    let locks = views(std::slice::from_ref(&server));
    for _ in 0..3 {
        let locks = locks.clone();
        // A scope would end with the closure; joining waits for the thread-locals, too.
        let thread = std::thread::spawn(move || {
            LAST.with(|last| *last.borrow_mut() = Some(Last(locks.clone())));
            let lock = locks.acquire("a", TTL).unwrap();
            KEPT.with(|kept| *kept.borrow_mut() = Some((locks, lock)));
        });
        thread.join().unwrap();
        eventually("it is released", || !server.exists("a"));
    }
    assert_eq!(SURE.load(Ordering::Relaxed), 3);
}

/// Held locks are found again only while they are held, and many of them are no burden.
#[test]
fn a_thread_may_hold_many() {
    let server = Server::start();
    let locks = views(std::slice::from_ref(&server));
    let names: Vec<String> = (0..200).map(|i| format!("a{i}")).collect();
    let held: Vec<_> = names
        .iter()
        .map(|name| locks.acquire(name, TTL).unwrap())
        .collect();
    for name in &names {
        assert_eq!(locks.acquire(name, TTL).unwrap().depth(), 2);
    }
    drop(held);
    eventually("all are released", || server.keys().is_empty());
    assert_eq!(locks.acquire("a0", TTL).unwrap().depth(), 1);
}

#[test]
fn a_view_can_be_shared_by_threads() {
    fn shared(_: impl Send + Sync + Clone + std::fmt::Debug) {}
    shared(Redlock::new(["redis://127.0.0.1"]).unwrap().reentrant());
}
