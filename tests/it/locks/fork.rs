//! A forked child: connections of its own, inherited locks inert, and the parent notices nothing.

use crate::support;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use redlock_sync::{Credentials, Error, KeptLock, LostReason};
use support::*;

/// Forks; the child does `work` and ends. How it ended.
fn forked(work: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the child touches nothing that another thread may hold but through this crate, which
    // is what is tested, and the allocator, which glibc keeps fit over a fork.
    match unsafe { libc::fork() } {
        0 => {
            // SAFETY: plain system call. A child that hangs ends by SIGALRM.
            unsafe { libc::alarm(20) };
            let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_ok();
            // SAFETY: plain system call.
            unsafe { libc::_exit(i32::from(!done)) }
        }
        child => child,
    }
}

fn assert_well(child: libc::pid_t, what: &str) {
    assert!(child > 0);
    let mut status = 0;
    // SAFETY: a child of ours that was not waited for.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "{what}: the child ended with {status:#x}");
}

/// How long a waiter sleeps that is not woken.
const POLL: Duration = Duration::from_secs(5);

fn patient(servers: &[Server]) -> redlock_sync::Redlock {
    let options = unhurried().retry_delay(POLL, POLL);
    unhurried_connected(servers).with_options(options).unwrap()
}

fn made(server: &Server) -> usize {
    let text = server.info("stats", "total_connections_received");
    text.parse().unwrap()
}

#[test]
fn a_child_has_connections_of_its_own_and_the_locks_it_inherits_are_inert() {
    in_own_process(
        "a_child_has_connections_of_its_own_and_the_locks_it_inherits_are_inert",
        || {
            let servers = Server::several(3);
            let redlock = connected(&servers);
            let mut held = take(&redlock, "held");
            let dropped = take(&redlock, "dropped");
            let released = take(&redlock, "released");
            let leaked = take(&redlock, "leaked");
            let values = |key: &str| -> Vec<redis::Value> {
                servers
                    .iter()
                    .map(|server| server.command(&["GET", key]))
                    .collect()
            };
            let before = values("held");

            // What the child moves is its own copy.
            let mut inherited = Some((&mut held, dropped, released, leaked));
            let clone = redlock.clone();
            let child = forked(|| {
                let (held, dropped, released, leaked) = inherited.take().unwrap();
                assert_eq!(held.remaining(), ms(0));
                assert!(!held.is_valid());
                assert!(matches!(held.ensure(ms(1)), Err(Error::Lost(_))));
                assert!(matches!(held.extend(TTL), Err(Error::Lost(_))));
                assert_others(held.mark_done(TTL, ms(0)));
                assert_others(held.fencing_token());
                assert_eq!(held.slot(), None);
                assert_others(leaked.leak_for(TTL));
                assert!(matches!(released.release(), Err(Error::Lost(_))));
                drop(dropped);
                // The parent's are the parent's, and new ones can be had.
                assert!(clone.try_acquire("held", TTL).unwrap().is_none());
                let lock = take(&clone, "of the child");
                assert!(lock.is_valid());
                eventually("connections of its own", || {
                    servers.iter().all(|server| server.clients() == 2)
                });
                lock.release().unwrap();
                drop(clone);
                drop(take(&redlock, "dropped by the child"));
            });
            assert_well(child, "inherited locks");

            let (held, dropped, released, leaked) = inherited.unwrap();
            assert_eq!(values("held"), before);
            assert!(servers.iter().all(|server| server.exists("dropped")));
            assert!(servers.iter().all(|server| server.exists("released")));
            held.extend(2 * TTL).unwrap();
            released.release().unwrap();
            dropped.release().unwrap();
            leaked.release().unwrap();
            assert_eq!(redlock.last_run("held").unwrap(), None);
            let connections: Vec<usize> = servers.iter().map(made).collect();
            take(&redlock, "again").release().unwrap();
            for (server, before) in servers.iter().zip(connections) {
                assert_eq!(made(server), before + 1, "only the one that asks is new");
            }
            eventually("the child's are closed", || {
                servers.iter().all(|server| server.clients() == 1)
            });
        },
    );
}

#[test]
fn a_child_that_connects_makes_connections_of_its_own() {
    let name = "a_child_that_connects_makes_connections_of_its_own";
    in_own_process(name, || {
        let servers = Server::several(3);
        let redlock = redlock(&servers);
        assert!(redlock.connect().unwrap().is_none());
        let child = forked(|| {
            assert!(redlock.connect().unwrap().is_none());
            assert!(servers.iter().all(|server| server.clients() == 2));
            let lock = take(&redlock, "of the child");
            eventually("it is on all nodes", || {
                servers.iter().all(|server| server.exists("of the child"))
            });
            lock.release().unwrap();
        });
        assert_well(child, "connect");
        let connections: Vec<usize> = servers.iter().map(made).collect();
        assert!(redlock.connect().unwrap().is_none());
        for (server, before) in servers.iter().zip(connections) {
            assert_eq!(made(server), before + 1, "only the one that asks is new");
        }
    });
}

#[test]
fn a_fork_while_other_threads_are_in_the_middle_of_a_step_harms_neither() {
    in_own_process(
        "a_fork_while_other_threads_are_in_the_middle_of_a_step_harms_neither",
        || {
            let servers = Server::several(3);
            let redlock = unhurried_redlock(&servers);
            take(&redlock, "warm").release().unwrap();
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                for user in 0..4 {
                    let (redlock, over) = (&redlock, &over);
                    scope.spawn(move || {
                        while !over.load(Ordering::Relaxed) {
                            take(redlock, &format!("user {user}")).release().unwrap();
                        }
                    });
                }
                let _over = OnDrop(&over);
                for fork in 0..40 {
                    let clone = redlock.clone();
                    let child = forked(move || {
                        take(&clone, &format!("child {fork}")).release().unwrap();
                        let grandchild = forked(|| take(&clone, "grandchild").release().unwrap());
                        assert_well(grandchild, "grandchild");
                        drop(clone);
                    });
                    assert_well(child, &format!("fork {fork}"));
                }
            });
            eventually("nothing is left", || {
                servers.iter().all(|server| server.keys().is_empty())
            });
            eventually("one connection", || {
                servers.iter().all(|server| server.clients() == 1)
            });
        },
    );
}

/// The lock is the parent's.
fn assert_others<T>(result: Result<T, Error>) {
    let Err(Error::Lost(lost)) = result else {
        panic!("it is not lost");
    };
    assert_eq!(lost.reason(), LostReason::OtherProcess);
}

fn assert_kept_inert(lock: &KeptLock) {
    assert!(!lock.is_valid() && lock.lost().is_some());
    assert_eq!((lock.remaining(), lock.hold_left()), (ms(0), ms(0)));
    assert!(matches!(lock.ensure(ms(0)), Err(Error::Lost(_))));
    assert!(lock.wait_lost(Duration::MAX));
    lock.on_lost(|_| panic!("no thread watches it here"));
    lock.on_expiring(TTL, |_| panic!("no thread watches it here"));
    assert_others(lock.mark_done(TTL, ms(0)));
    assert_others(lock.fencing_token());
    assert_eq!((lock.slot(), lock.since_renewal()), (None, Duration::MAX));
    assert!(!lock.resource().is_empty() && format!("{lock:?}").starts_with("KeptLock("));
}

#[test]
fn kept_locks_are_inert_in_a_child_and_go_on_in_the_parent() {
    in_own_process(
        "kept_locks_are_inert_in_a_child_and_go_on_in_the_parent",
        || {
            let servers = Server::several(3);
            let redlock = connected(&servers);
            let ttl = Duration::from_secs(3);
            let names = ["0", "1", "2"];
            let keep = |name: &str| redlock.acquire(name, ttl).unwrap().keep_alive(TTL).unwrap();
            let kept: Vec<KeptLock> = names.iter().map(|name| keep(name)).collect();
            kept[0].on_lost(|_| panic!("it is not lost"));
            let plain = take(&redlock, "plain");
            let mut inherited = Some((kept, plain));
            let child = forked(|| {
                let (kept, plain) = inherited.take().unwrap();
                kept.iter().for_each(assert_kept_inert);
                for (i, lock) in kept.into_iter().enumerate() {
                    match i {
                        0 => drop(lock),
                        1 => assert!(matches!(lock.release(), Err(Error::Lost(_)))),
                        _ => assert!(!lock.stop().is_valid()),
                    }
                }
                assert!(matches!(plain.keep_alive(TTL), Err(Error::Lost(_))));
                // A thread of the child's own renews what it takes itself.
                assert!(redlock.try_acquire("0", ttl).unwrap().is_none());
                let own = keep("of the child");
                assert!(!own.wait_lost(ttl + ms(500)));
                own.release().unwrap();
            });
            assert_well(child, "inherited kept locks");
            let (kept, plain) = inherited.unwrap();
            // By now each was renewed.
            for lock in kept {
                assert_eq!(lock.lost(), None);
                lock.release().unwrap();
            }
            plain.release().unwrap();
            eventually("nothing is left", || {
                servers.iter().all(|server| server.keys().is_empty())
            });
        },
    );
}

/// Whatever mutex a thread of the parent holds at the moment of the fork, the child waits for none.
#[test]
fn a_fork_at_any_moment_of_keeping_leaves_a_child_that_does_not_hang() {
    in_own_process(
        "a_fork_at_any_moment_of_keeping_leaves_a_child_that_does_not_hang",
        || {
            let servers = Server::several(3);
            let redlock = connected(&servers);
            // Its threads stay, so that none is started meanwhile: the standard library has a mutex
            // that a thread holds while it starts, and in a child that inherited it held no thread
            // can start, so none can connect.
            let kept = take(&redlock, "held").keep_alive(TTL).unwrap();
            kept.on_lost(|_| ());
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                for user in 0..2 {
                    let (redlock, kept, over) = (&redlock, &kept, &over);
                    scope.spawn(move || {
                        while !over.load(Ordering::Relaxed) {
                            let lock = redlock.acquire(format!("user {user}"), TTL).unwrap();
                            lock.keep_alive(TTL).unwrap().on_lost(|_| ());
                            assert!(kept.is_valid());
                        }
                    });
                }
                let end = Instant::now() + Duration::from_secs(5);
                let mut well = true;
                while well && Instant::now() < end {
                    let child = forked(|| {
                        assert_kept_inert(&kept);
                        assert!(redlock.try_acquire("held", TTL).unwrap().is_none());
                    });
                    well = std::panic::catch_unwind(|| assert_well(child, "fork")).is_ok();
                }
                over.store(true, Ordering::Relaxed);
                assert!(well);
            });
            kept.release().unwrap();
        },
    );
}

/// A child forks while another of its threads uses the redlock for the first time there.
#[test]
fn a_fork_in_the_middle_of_a_child_s_first_use_leaves_a_grandchild_that_does_not_hang() {
    in_own_process(
        "a_fork_in_the_middle_of_a_child_s_first_use_leaves_a_grandchild_that_does_not_hang",
        || {
            let servers = Server::several(1);
            let redlock = connected(&servers);
            for round in 0..60 {
                let child = forked(|| {
                    let started = std::sync::Barrier::new(2);
                    std::thread::scope(|scope| {
                        scope.spawn(|| {
                            started.wait();
                            drop(redlock.try_acquire("child", TTL));
                        });
                        started.wait();
                        for fork in 0..8 {
                            let grandchild = forked(|| {
                                // It may not be able to start a thread that connects. But it ends.
                                drop(redlock.try_acquire("grandchild", TTL));
                            });
                            assert_well(grandchild, &format!("fork {fork}"));
                        }
                    });
                });
                assert_well(child, &format!("round {round}"));
            }
        },
    );
}

/// Nothing that the parent remembers of a node is the child's; what the node says of itself is.
#[test]
fn the_restart_guard_goes_on_in_a_child() {
    in_own_process("the_restart_guard_goes_on_in_a_child", || {
        let max_ttl = Duration::from_secs(2);
        let mut servers = Server::several(1);
        let redlock = redlock(&servers)
            .with_options(options().restart_guard(max_ttl))
            .unwrap();
        drop(redlock.acquire("a", max_ttl).unwrap());
        servers[0].kill();
        servers[0].restart();
        let restarted = Instant::now();
        let child = forked(|| {
            let errors = unavailable(redlock.try_acquire("a", max_ttl));
            assert!(errors.retry_after().is_some(), "{errors}");
            drop(redlock.acquire("a", max_ttl).unwrap());
            assert!(restarted.elapsed() >= max_ttl);
        });
        assert_well(child, "guarded");
    });
}

/// The child has wait queues of its own. It neither wakes nor waits for the waiters that it inherits from its parent.
#[test]
fn parent_and_child_wait_for_the_same_lock() {
    in_own_process("parent_and_child_wait_for_the_same_lock", || {
        let servers = Server::several(3);
        let redlock = patient(&servers);
        let entries = |count| in_queue(&servers, "a", count);
        let take_turn = || redlock.acquire("a", TTL).unwrap().release().unwrap();
        for parent_is_last in [false, true] {
            let lock = take(&redlock, "a");
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    waiter(scope, take_turn);
                }
                entries(1);
                let child = forked(|| {
                    std::thread::scope(|scope| {
                        let clone = &redlock;
                        scope.spawn(move || clone.acquire("a", TTL).unwrap().release().unwrap());
                        let since = Instant::now();
                        let lock = clone.acquire("a", TTL).unwrap();
                        if parent_is_last {
                            std::thread::sleep(ms(200));
                        }
                        assert!(since.elapsed() < POLL);
                        lock.release().unwrap();
                    });
                });
                entries(2);
                let released = Instant::now();
                lock.release().unwrap();
                if parent_is_last {
                    take_turn();
                }
                assert_well(child, "waits");
                assert!(released.elapsed() < POLL, "{:?}", released.elapsed());
            });
        }
        eventually("nothing is left", || {
            servers.iter().all(|server| server.keys().is_empty())
        });
        // A child that lives on does not keep the parent's subscriptions up.
        let lock = take(&redlock, "a");
        std::thread::scope(|scope| {
            let waits = waiter(scope, take_turn);
            eventually("each node has a subscription", || ears() == 3);
            let child = forked(|| {
                // SAFETY: plain system call.
                unsafe { libc::alarm(60) };
                std::thread::sleep(Duration::from_secs(60));
            });
            lock.release().unwrap();
            waits.join().unwrap();
            let none = redis::Value::Array(Vec::new());
            let silent = |server: &Server| server.command(&["PUBSUB", "CHANNELS"]) == none;
            let end = Instant::now() + Duration::from_secs(10);
            let mut listens = true;
            while listens && Instant::now() < end {
                std::thread::sleep(ms(10));
                listens = ears() > 0 || !servers.iter().all(silent);
            }
            // SAFETY: a plain system call on a child of ours that was not waited for.
            assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
            // SAFETY: the same.
            let waited = unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) };
            assert_eq!(waited, child);
            assert!(!listens, "there are subscriptions after ten seconds");
        });
    });
}

/// The child is in the queues on the nodes, and gets the lock from one of its own threads. It is still in the queues when
/// it releases, and must not notify itself: it could not pass that on.
#[test]
fn a_child_that_ends_with_its_release_notifies_its_parent() {
    in_own_process(
        "a_child_that_ends_with_its_release_notifies_its_parent",
        || {
            let servers = Server::several(3);
            let redlock = patient(&servers);
            let entries = |count| in_queue(&servers, "a", count);
            let child = forked(|| {
                let lock = redlock.acquire("a", TTL).unwrap();
                std::thread::scope(|scope| {
                    let served = scope.spawn(|| redlock.acquire("a", TTL).unwrap());
                    entries(2);
                    lock.release().unwrap();
                    // Without waiting for what the nodes say.
                    drop(served.join().unwrap());
                });
            });
            // The child is the first in the queue.
            entries(1);
            let came = Instant::now();
            let lock = redlock.acquire("a", TTL).unwrap();
            assert!(came.elapsed() < POLL, "{:?}", came.elapsed());
            lock.release().unwrap();
            assert_well(child, "released");
        },
    );
}

#[test]
fn a_child_does_not_enter_what_its_parent_holds() {
    let name = "a_child_does_not_enter_what_its_parent_holds";
    in_own_process(name, || {
        let servers = Server::several(3);
        let locks = connected(&servers).reentrant();
        let outer = locks.acquire("a", TTL).unwrap();
        let inherited = locks.acquire("b", TTL).unwrap();
        let mut inherited = Some(inherited);
        let child = forked(|| {
            assert!(!outer.is_valid());
            assert!(matches!(outer.extend(TTL), Err(Error::Lost(_))));
            assert!(locks.try_acquire("a", TTL).unwrap().is_none());
            drop(inherited.take());
            let own = locks.acquire("c", TTL).unwrap();
            assert_eq!(locks.acquire("c", TTL).unwrap().depth(), 2);
            own.release().unwrap();
        });
        assert_well(child, "reentrant");
        assert!(outer.is_valid() && inherited.as_ref().unwrap().is_valid());
        assert!(servers.iter().all(|server| server.exists("b")));
        assert_eq!(locks.acquire("a", TTL).unwrap().depth(), 2);
    });
}

/// The child's closure is called in the child.
#[test]
fn a_child_asks_for_credentials_by_itself() {
    in_own_process("a_child_asks_for_credentials_by_itself", || {
        static ASKED_IN: AtomicU32 = AtomicU32::new(0);
        let asked_here = || ASKED_IN.swap(0, Ordering::Relaxed) == std::process::id();
        let servers = [Server::with_args(&["--requirepass", "one"])];
        let options = options().credentials(|_| {
            ASKED_IN.store(std::process::id(), Ordering::Relaxed);
            Ok::<_, String>(Credentials::new("one"))
        });
        let redlock = redlock(&servers).with_options(options).unwrap();
        take(&redlock, "a").release().unwrap();
        assert!(asked_here());
        let child = forked(|| {
            redlock.inspect("a").unwrap();
            assert!(asked_here(), "to look");
            take(&redlock, "a").release().unwrap();
            assert!(asked_here(), "for locks");
        });
        assert_well(child, "with credentials");
        assert!(!asked_here());
        take(&redlock, "a").release().unwrap();
    });
}

/// With connections and maps of its own, and whatever a thread of the parent holds at the moment of the fork.
#[test]
fn children_of_a_client_of_a_cluster_lock_in_all_its_shards() {
    in_own_process(
        "children_of_a_client_of_a_cluster_lock_in_all_its_shards",
        || {
            let cluster = clusters::Cluster::masters(3);
            let redlock = cluster.client();
            let names: Vec<String> = (0..3).map(|master| cluster.name(master)).collect();
            let held = take(&redlock, &names[0]);
            let over = AtomicBool::new(false);
            std::thread::scope(|scope| {
                let _ends = OnDrop(&over);
                for name in &names[1..] {
                    let (redlock, over) = (&redlock, &over);
                    scope.spawn(move || {
                        while !over.load(Ordering::Relaxed) {
                            redlock.acquire(name, TTL).unwrap().release().unwrap();
                        }
                    });
                }
                for fork in 0..10 {
                    let (clone, names, held) = (redlock.clone(), &names, &held);
                    let child = forked(move || {
                        assert!(!held.is_valid());
                        assert!(clone.try_acquire(&names[0], TTL).unwrap().is_none());
                        for name in &names[1..] {
                            clone.acquire(name, TTL).unwrap().release().unwrap();
                        }
                        assert_eq!(clone.inspect(&names[0]).unwrap().nodes().count(), 1);
                        assert!(clone.list(None).unwrap().has_majority());
                    });
                    assert_well(child, &format!("fork {fork}"));
                }
            });
            assert!(held.is_valid());
            held.release().unwrap();
            cluster.nothing_is_left();
        },
    );
}
