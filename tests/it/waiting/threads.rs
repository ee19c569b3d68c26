//! Threads of one process that wait for the same lock.

use crate::support;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redlock_sync::{Error, Lock, Options, Redlock};
use support::*;

/// The minimum sleep of a waiter that is not woken.
const POLL: Duration = Duration::from_secs(5);
/// A waiter that is woken has the lock long before that.
const PROMPT: Duration = Duration::from_secs(2);

fn patient(servers: &[Server]) -> Redlock {
    let options = unhurried().retry_delay(POLL, POLL);
    unhurried_connected(servers).with_options(options).unwrap()
}

fn end(lock: Lock, dropped: bool) {
    match dropped {
        true => drop(lock),
        false => lock.release().unwrap(),
    }
}

#[test]
fn threads_get_the_lock_in_the_order_in_which_they_came() {
    for nodes in [1, 3] {
        let servers = Server::several(nodes);
        let redlock = patient(&servers);
        let order = Mutex::new(Vec::new());
        let lock = take(&redlock, "a");
        let released = std::thread::scope(|scope| {
            for number in 0..32 {
                let (redlock, order) = (&redlock, &order);
                waiter(scope, move || {
                    let lock = redlock.acquire("a", TTL).unwrap();
                    order.lock().unwrap().push(number);
                    end(lock, number % 3 == 2);
                });
            }
            lock.release().unwrap();
            Instant::now()
        });
        assert!(released.elapsed() < PROMPT, "{:?}", released.elapsed());
        let order = order.into_inner().unwrap();
        assert_eq!(order, (0..32).collect::<Vec<_>>(), "{nodes} nodes");
        nothing_is_left(&servers);
    }
}

/// Where two threads take turns, the queue of their process is empty after each hand-off.
#[test]
fn two_threads_that_take_turns_leave_another_process_its_share() {
    for nodes in [1, 3] {
        let servers = Server::several(nodes);
        let (redlock, another) = (patient(&servers), patient(&servers));
        let ended = AtomicBool::new(false);
        let turns = AtomicU64::new(0);
        let waited = std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !ended.load(Ordering::Relaxed) {
                        let lock = redlock.acquire("a", TTL).unwrap();
                        turns.fetch_add(1, Ordering::Relaxed);
                        std::thread::sleep(ms(5));
                        lock.release().unwrap();
                    }
                });
            }
            let _ended = OnDrop(&ended);
            eventually("they take turns", || turns.load(Ordering::Relaxed) > 20);
            let began = Instant::now();
            let lock = another.acquire_within("a", TTL, 2 * PROMPT);
            lock.map(|_| began.elapsed())
        });
        assert!(
            waited.as_ref().is_ok_and(|waited| *waited < PROMPT),
            "{nodes} nodes: {waited:?}"
        );
    }
}

fn nothing_is_left(servers: &[Server]) {
    eventually("nothing is left", || {
        servers.iter().all(|server| server.keys().is_empty())
    });
}

/// Hand-offs in a row end after 20 ms, so that other processes get the lock, and a busy machine may need longer for
/// them. Then the next waiter here acquires with a script in place of a plain SET: one EVALSHA more (in which the SET is
/// counted all the same). The time shows how often that may have been. There are several rounds, since the waiter
/// at the front may try once more when it is subscribed.
#[test]
fn a_hand_off_costs_one_set_and_one_release_on_each_node() {
    const WAITERS: u64 = 12;
    const RUN: Duration = Duration::from_millis(20);
    for nodes in [1, 3] {
        let servers = Server::several(nodes);
        let redlock = patient(&servers);
        let calls = || {
            let of =
                |server: &Server| ["set", "eval", "evalsha"].map(|command| server.calls(command));
            servers.iter().map(of).collect::<Vec<_>>()
        };
        let round = || {
            let lock = take(&redlock, "a");
            let (entered, last) = (AtomicU64::new(0), AtomicBool::new(false));
            std::thread::scope(|scope| {
                let _last = OnDrop(&last);
                for _ in 0..WAITERS {
                    waiter(scope, || {
                        let lock = redlock.acquire("a", TTL).unwrap();
                        if entered.fetch_add(1, Ordering::Relaxed) + 1 == WAITERS {
                            eventually("it was counted", || last.load(Ordering::Relaxed));
                        }
                        lock.release().unwrap();
                    });
                }
                // The first of them enqueues once. From then on no thread sends a command.
                eventually("it is in the queues", || {
                    servers.iter().all(|server| server.queued("a") == 1)
                });
                let before = calls();
                let released = Instant::now();
                lock.release().unwrap();
                eventually("all but one are through", || {
                    entered.load(Ordering::Relaxed) == WAITERS
                });
                let took = released.elapsed();
                let expected: Vec<_> = before
                    .iter()
                    .map(|[set, eval, sha]| [set + WAITERS, *eval, sha + WAITERS])
                    .collect();
                let end = Instant::now() + NODE_TIMEOUT;
                while calls() != expected && Instant::now() < end {
                    std::thread::sleep(ms(2));
                }
                (expected, calls(), took)
            })
        };
        round();
        // Nor does it matter that there was a queue a moment ago.
        let found = (0..10).map(|_| round()).find(|(expected, calls, took)| {
            println!("{nodes} nodes: expected {expected:?}, found {calls:?} in {took:?}");
            let ended = u64::try_from(took.as_millis() / RUN.as_millis()).unwrap();
            expected.iter().zip(calls).all(|([set, eval, sha], found)| {
                found[..2] == [*set, *eval] && (*sha..=sha + ended).contains(&found[2])
            })
        });
        assert!(found.is_some(), "{nodes} nodes: more in each round");
    }
}

#[test]
fn a_wait_queue_does_not_poll() {
    let servers = Server::several(3);
    // A lock that was asked for every 1 to 10 ms before there were wait queues.
    let redlock = unhurried_connected(&servers);
    let lock = take(&redlock, "a");
    let sets = || servers.iter().map(|server| server.calls("set")).max();
    let before = sets().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..16 {
            waiter(scope, || {
                redlock.acquire("a", TTL).unwrap().release().unwrap();
            });
        }
        std::thread::sleep(Duration::from_secs(2));
        let asked = sets().unwrap() - before;
        assert!(asked <= 30, "asked {asked} times");
        lock.release().unwrap();
    });
}

#[test]
fn another_process_gets_the_lock_within_two_runs_of_hand_overs() {
    const THREADS: u64 = 8;
    for nodes in [1, 3] {
        let servers = Server::several(nodes);
        let redlock = connected(&servers).with_options(unhurried()).unwrap();
        let other = patient(&servers);
        let (holds, over) = (AtomicU64::new(0), AtomicBool::new(false));
        let waits = std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        let lock = redlock.acquire("a", TTL).unwrap();
                        holds.fetch_add(1, Ordering::Relaxed);
                        lock.release().unwrap();
                    }
                });
            }
            let _over = OnDrop(&over);
            eventually("they are at it", || holds.load(Ordering::Relaxed) > 100);
            let mut waits: Vec<u64> = (0..30)
                .map(|_| {
                    // They are in the middle of it again.
                    let before = holds.load(Ordering::Relaxed) + 40;
                    eventually("they go on", || holds.load(Ordering::Relaxed) > before);
                    let before = holds.load(Ordering::Relaxed);
                    let lock = other.acquire("a", TTL).unwrap();
                    let wait = holds.load(Ordering::Relaxed) - before;
                    lock.release().unwrap();
                    wait
                })
                .collect();
            waits.sort_unstable();
            waits
        });
        println!("{nodes} nodes: holds of others before its own: {waits:?}");
        assert!(waits[15] <= 34, "{nodes} nodes: {waits:?}");
    }
}

/// Moves the release to the moment at which the wait ends, and stays there.
fn waits_end_in_hand_offs(trials: u32) {
    const WAIT: Duration = ms(2);
    const STEP: Duration = Duration::from_micros(50);
    for nodes in [1, 3] {
        let servers = Server::several(nodes);
        let (redlock, other) = (unhurried_connected(&servers), unhurried_connected(&servers));
        let mut admins: Vec<_> = servers
            .iter()
            .map(|server| redis::Client::open(server.unix_url()).unwrap())
            .map(|client| client.get_connection().unwrap())
            .collect();
        let mut holds = [WAIT; 4];
        let mut got = 0;
        for trial in 0..trials {
            // Released or dropped, by a thread of this process or by another.
            let kind = trial as usize % 4;
            let (dropped, holder) = (kind % 2 == 1, [&redlock, &other][kind / 2]);
            let lock = take(holder, "a");
            let ok = std::thread::scope(|scope| {
                let waiter = scope.spawn(|| match redlock.acquire_within("a", TTL, WAIT) {
                    Ok(lock) => {
                        assert!(lock.is_valid());
                        lock.release().unwrap();
                        true
                    }
                    Err(Error::Busy(_)) => false,
                    Err(error) => panic!("trial {trial}: {error}"),
                });
                std::thread::sleep(holds[kind]);
                end(lock, dropped);
                waiter.join().unwrap()
            });
            got += u32::from(ok);
            holds[kind] = match ok {
                true => holds[kind] + STEP,
                false => holds[kind].saturating_sub(STEP),
            };
            eventually("the lock is free", || {
                let is_free = |admin: &mut redis::Connection| {
                    redis::cmd("EXISTS").arg("a").query(admin) == Ok(0)
                };
                admins.iter_mut().all(is_free)
            });
        }
        println!("{nodes} nodes: {got} of {trials} in time, holds {holds:?}");
        assert!(got > trials / 10 && got < trials - trials / 10, "{got}");
        nothing_is_left(&servers);
    }
}

#[test]
fn a_waiter_that_gives_up_in_the_middle_of_a_hand_off_leaves_no_lock_behind() {
    waits_end_in_hand_offs(600);
}

#[test]
#[ignore = "a minute"]
fn waiters_that_give_up_in_the_middle_of_ten_thousand_hand_offs_leave_no_lock_behind() {
    waits_end_in_hand_offs(10_000);
}

/// When a thread leaves a queue.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Leaves {
    Before,
    /// When it finds that the lock was released.
    WithTheRelease,
}

#[test]
fn a_waiter_that_cancels_or_panics_leaves_the_queue_and_it_goes_on() {
    let servers = Server::several(3);
    let (redlock, other) = (patient(&servers), patient(&servers));
    for panics in [false, true] {
        for is_front in [true, false] {
            for leaves in [Leaves::Before, Leaves::WithTheRelease] {
                for holder in [&redlock, &other] {
                    let lock = take(holder, "a");
                    let case = format!("{panics} {is_front} {leaves:?}");
                    leave_a_queue(&redlock, lock, panics, is_front, leaves, &case);
                }
            }
        }
    }
    nothing_is_left(&servers);
}

fn leave_a_queue(
    redlock: &Redlock,
    lock: Lock,
    panics: bool,
    is_front: bool,
    leaves: Leaves,
    case: &str,
) {
    let left = AtomicBool::new(false);
    let take_turn = || redlock.acquire("a", TTL).unwrap().release().unwrap();
    let keep_trying = || match left.load(Ordering::Relaxed) {
        true if panics => resume_unwind(Box::new("left")),
        left => !left,
    };
    let released = std::thread::scope(|scope| {
        if !is_front {
            waiter(scope, take_turn);
        }
        let leaver = waiter(scope, || {
            let result = catch_unwind(AssertUnwindSafe(|| {
                redlock.acquire_while("a", TTL, keep_trying)
            }));
            match result {
                Ok(Err(Error::Cancelled(_))) => assert!(!panics, "{case}"),
                Ok(result) => panic!("{case}: {result:?}"),
                Err(_) => assert!(panics, "{case}"),
            }
        });
        waiter(scope, take_turn);
        left.store(true, Ordering::Relaxed);
        if leaves == Leaves::Before {
            leaver.join().unwrap();
        }
        lock.release().unwrap();
        Instant::now()
    });
    assert!(
        released.elapsed() < PROMPT,
        "{case}: {:?}",
        released.elapsed()
    );
}

#[test]
fn a_dropped_lock_is_handed_over_like_a_released_one() {
    for nodes in [1, 3] {
        let servers = Server::several(nodes);
        let redlock = patient(&servers);
        for round in 0..10 {
            let lock = take(&redlock, "a");
            std::thread::scope(|scope| {
                let next = waiter(scope, || {
                    let lock = redlock.acquire("a", TTL).unwrap();
                    (lock, Instant::now())
                });
                // Also when the first is in the queues on the nodes.
                std::thread::sleep(ms(20 * round));
                let dropped = Instant::now();
                drop(lock);
                let (lock, since) = next.join().unwrap();
                assert!(lock.is_valid());
                assert!(since - dropped < PROMPT, "{:?}", since - dropped);
            });
        }
        nothing_is_left(&servers);
    }
}

#[test]
fn a_lock_that_was_kept_alive_is_handed_over_too() {
    let servers = Server::several(3);
    let (redlock, other) = (patient(&servers), patient(&servers));
    for next in [&redlock, &other] {
        for dropped in [false, true] {
            let lock = take(&redlock, "a").keep_alive(TTL).unwrap();
            let released = std::thread::scope(|scope| {
                waiter(scope, || {
                    next.acquire("a", TTL).unwrap().release().unwrap();
                });
                std::thread::sleep(ms(100));
                match dropped {
                    true => drop(lock),
                    false => lock.release().unwrap(),
                }
                Instant::now()
            });
            assert!(released.elapsed() < PROMPT, "{:?}", released.elapsed());
        }
    }
    nothing_is_left(&servers);
}

/// Their stacks are small, so that many have room.
fn many_wait(threads: u64) {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    let lock = take(&redlock, "a");
    let state = || (support::threads(), open_files());
    wait_for_quiet();
    let before = state();
    let (ok, busy) = (AtomicU64::new(0), AtomicU64::new(0));
    let most_files = std::thread::scope(|scope| {
        for number in 0..threads {
            let (redlock, ok, busy) = (&redlock, &ok, &busy);
            let wait = ms(1000 + number * 7919 % 2000);
            let work = move || {
                let since = Instant::now();
                match redlock.acquire_within("a", TTL, wait) {
                    Ok(lock) => {
                        ok.fetch_add(1, Ordering::Relaxed);
                        lock.release().unwrap();
                    }
                    Err(Error::Busy(_)) => {
                        busy.fetch_add(1, Ordering::Relaxed);
                    }
                    Err(error) => panic!("{error}"),
                }
                // No lock is waited for longer; the machine may be.
                assert!(since.elapsed() < wait + 10 * NODE_TIMEOUT);
            };
            let builder = std::thread::Builder::new().stack_size(128 * 1024);
            builder.spawn_scoped(scope, work).unwrap();
        }
        std::thread::sleep(ms(500));
        let files = open_files();
        // Some go without it, some get it.
        std::thread::sleep(ms(1500));
        lock.release().unwrap();
        files
    });
    let (ok, busy) = (ok.into_inner(), busy.into_inner());
    println!("{ok} had it, {busy} did not");
    assert_eq!(ok + busy, threads);
    assert!(ok > 0 && busy > 0, "{ok} had it, {busy} did not");
    // One more for each node.
    assert!(most_files <= before.1 + servers.len());
    let ended = Instant::now();
    eventually("nothing is left of the waiters", || state() == before);
    assert!(
        ended.elapsed() < Duration::from_secs(5),
        "{:?}",
        ended.elapsed()
    );
    nothing_is_left(&servers);
}

#[test]
fn thousands_of_threads_wait_and_each_ends_in_time() {
    let name = "thousands_of_threads_wait_and_each_ends_in_time";
    in_own_process(name, || many_wait(2000));
}

#[test]
#[ignore = "ten thousand threads"]
fn ten_thousand_threads_wait_and_each_ends_in_time() {
    let name = "ten_thousand_threads_wait_and_each_ends_in_time";
    in_own_process(name, || many_wait(10_000));
}

#[test]
fn a_single_attempt_never_waits_though_others_do() {
    let servers = Server::several(3);
    let (redlock, other) = (patient(&servers), patient(&servers));
    for holder in [&redlock, &other] {
        let lock = take(holder, "a");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                waiter(scope, || {
                    redlock.acquire("a", TTL).unwrap().release().unwrap();
                });
            }
            for _ in 0..5 {
                let since = Instant::now();
                assert!(redlock.try_acquire("a", TTL).unwrap().is_none());
                let result = redlock.acquire_within("a", TTL, Duration::ZERO);
                assert!(matches!(result, Err(Error::Busy(_))), "{result:?}");
                assert!(since.elapsed() < 2 * NODE_TIMEOUT);
            }
            lock.release().unwrap();
        });
    }
}

/// A holder that takes long may look like one of another process: so there are several rounds.
#[test]
fn threads_of_the_same_process_need_no_subscriptions() {
    let name = "threads_of_the_same_process_need_no_subscriptions";
    in_own_process(name, || {
        let servers = Server::several(3);
        let options = Options::new().node_timeout(NODE_TIMEOUT);
        let redlock = connected(&servers).with_options(options).unwrap();
        drop(take(&redlock, "a"));
        wait_for_quiet();
        // The connection that reads this figure is new each time.
        let connections = || {
            let of = |server: &Server| server.info("stats", "total_connections_received");
            let made = |server| of(server).parse::<u64>().unwrap();
            servers.iter().map(made).collect::<Vec<_>>()
        };
        let round = || {
            let before = connections();
            let begun = AtomicU64::new(0);
            let lock = take(&redlock, "a");
            let heard = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..8)
                    .map(|_| {
                        scope.spawn(|| {
                            while begun.fetch_add(1, Ordering::Relaxed) < 1000 {
                                redlock.with_lock("a", TTL, |_| Ok::<_, Error>(())).unwrap();
                            }
                        })
                    })
                    .collect();
                std::thread::sleep(ms(10));
                lock.release().unwrap();
                let mut heard = false;
                while !threads
                    .iter()
                    .all(std::thread::ScopedJoinHandle::is_finished)
                {
                    heard |= ears() > 0;
                    std::thread::sleep(ms(1));
                }
                heard
            });
            heard
                || connections()
                    .iter()
                    .zip(before)
                    .any(|(now, before)| *now != before + 1)
        };
        let quiet = (0..10).any(|_| {
            let heard = round();
            eventually("no subscription is left", || ears() == 0);
            !heard
        });
        assert!(quiet, "there were subscriptions in each round");
    });
}

#[test]
fn subscriptions_end_soon_after_the_last_need() {
    in_own_process("subscriptions_end_soon_after_the_last_need", || {
        let servers = Server::several(3);
        let (redlock, other) = (connected(&servers), connected(&servers));
        let channels = || {
            let of = |server: &Server| {
                let channels = server.command(&["PUBSUB", "CHANNELS", "redlock:*"]);
                redis::from_redis_value::<Vec<String>>(channels).unwrap()
            };
            servers.iter().flat_map(of).collect::<Vec<_>>()
        };
        wait_for_quiet();
        let before = (threads(), open_files());
        for gives_up in [false, true] {
            let lock = take(&other, "a");
            std::thread::scope(|scope| {
                let next = waiter(scope, || redlock.acquire_within("a", TTL, PROMPT));
                eventually("each node has a subscription", || {
                    ears() == 3 && channels().len() == 3
                });
                if gives_up {
                    assert!(matches!(next.join().unwrap(), Err(Error::Busy(_))));
                    lock.release().unwrap();
                } else {
                    lock.release().unwrap();
                    next.join().unwrap().unwrap().release().unwrap();
                }
            });
            let last = Instant::now();
            eventually("no thread is subscribed any more", || {
                ears() == 0 && channels().is_empty() && (threads(), open_files()) == before
            });
            assert!(last.elapsed() < Duration::from_secs(5));
            nothing_is_left(&servers);
        }
        // Also after the nodes are dropped.
        let lock = take(&other, "a");
        let result = redlock.acquire_within("a", TTL, ms(500));
        assert!(matches!(result, Err(Error::Busy(_))), "{result:?}");
        assert_eq!(ears(), 3);
        drop(redlock);
        lock.release().unwrap();
        eventually_within(
            Duration::from_secs(5),
            "no subscription is left",
            &mut || ears() == 0 && channels().is_empty(),
        );
        let connections = || servers.iter().map(Server::clients).collect::<Vec<_>>();
        assert_eq!(connections(), [1; 3]);
    });
}

/// Each of them may be the last that waits when a leader leaves, awake or asleep.
#[test]
fn threads_that_come_and_go_are_all_answered() {
    for nodes in [1, 5] {
        let servers = Server::several(nodes);
        let redlock = unhurried_connected(&servers);
        for round in 0..100 {
            std::thread::scope(|scope| {
                for number in 0..1 + round % 12 {
                    let redlock = &redlock;
                    scope.spawn(move || {
                        for _ in 0..1 + number % 4 {
                            end(take(redlock, &number.to_string()), number % 3 == 2);
                        }
                    });
                }
            });
        }
        nothing_is_left(&servers);
    }
}
