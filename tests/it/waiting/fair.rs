//! Fair locks: the waiter that has waited longest is next, across processes. Two `Redlock`s that were made apart from each
//! other are to each other what two processes are.

use crate::support;

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use redlock_sync::{Error, Options, Redlock};
use support::processes::{Process, contend};
use support::relay::Relay;
use support::*;

/// How long a lock is reserved, with the node timeout of these tests.
const TURN: Duration = Duration::from_secs(1);
/// How long a waiter sleeps that is neither notified nor checks whether a turn is over.
const POLL: Duration = Duration::from_secs(15);

fn fair_options() -> Options {
    unhurried().retry_delay(POLL, POLL).fair(true)
}

/// As another process, with connections to all nodes.
fn fair(servers: &[Server]) -> Redlock {
    unhurried_connected(servers)
        .with_options(fair_options())
        .unwrap()
}

/// Waits until each node has this number of subscribed processes.
fn listen(servers: &[Server], count: usize) {
    let channels = |server: &Server| {
        let channels = server.command(&["PUBSUB", "CHANNELS", "redlock:*"]);
        redis::from_redis_value::<Vec<String>>(channels).unwrap()
    };
    eventually("they listen", || {
        servers.iter().all(|server| channels(server).len() == count)
    });
}

/// Turns end by themselves.
fn nothing_is_left(servers: &[Server]) {
    eventually("nothing is left", || {
        servers.iter().all(|server| server.keys().is_empty())
    });
}

// ---- order

#[test]
fn waiters_get_the_lock_in_the_order_of_their_arrival() {
    for nodes in [1, 3, 5] {
        let servers = Server::several(nodes);
        let processes: Vec<Redlock> = (0..5).map(|_| fair(&servers)).collect();
        let (mut rounds, mut paused) = (0, 0);
        while rounds < 4 {
            let lock = take(&processes[0], "a");
            let order = Mutex::new(Vec::new());
            let mut released = Instant::now();
            std::thread::scope(|scope| {
                for (i, redlock) in processes[1..].iter().enumerate() {
                    let order = &order;
                    scope.spawn(move || {
                        let lock = redlock.acquire("a", TTL).unwrap();
                        order.lock().unwrap().push((i, Instant::now()));
                        match rounds % 2 {
                            0 => lock.release().unwrap(),
                            _ => drop(lock),
                        }
                    });
                    in_queue(&servers, "a", i as u64 + 1);
                    // Clocks count milliseconds.
                    std::thread::sleep(ms(5));
                }
                released = Instant::now();
                lock.release().unwrap();
            });
            let (order, times): (Vec<_>, Vec<_>) = order.into_inner().unwrap().into_iter().unzip();
            let before = std::iter::once(&released).chain(&times);
            // A machine that stands still makes a waiter miss its turn.
            if before
                .zip(&times)
                .any(|(one, next)| *next - *one > TURN / 2)
            {
                paused += 1;
                assert!(
                    paused < 4,
                    "{nodes} nodes: {order:?}, and no turn is taken in time"
                );
                continue;
            }
            assert_eq!(order, [0, 1, 2, 3], "{nodes} nodes");
            rounds += 1;
        }
        nothing_is_left(&servers);
    }
}

/// Only the first of each process is in the queues on the nodes. The others have come when they came, all the same.
#[test]
fn threads_of_several_processes_come_in_one_order() {
    for nodes in [1, 3] {
        let servers = Server::several(nodes);
        let [one, other] = [(); 2].map(|()| fair(&servers));
        let lock = take(&one, "a");
        let order = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for i in 0..8 {
                let (order, redlock) = (&order, if i % 2 == 0 { &one } else { &other });
                waiter(scope, move || {
                    let lock = redlock.acquire("a", TTL).unwrap();
                    order.lock().unwrap().push(i);
                    std::thread::sleep(ms(20));
                    lock.release().unwrap();
                });
                in_queue(&servers, "a", 2.min(i + 1));
                std::thread::sleep(ms(20));
            }
            lock.release().unwrap();
        });
        let order = order.into_inner().unwrap();
        // A waiter enqueues only when it comes to the front of its process.
        let late = |(place, i): (usize, &u64)| (place as u64).abs_diff(*i) > 1;
        assert!(
            !order.iter().enumerate().any(late),
            "{nodes} nodes: {order:?}"
        );
        nothing_is_left(&servers);
    }
}

#[test]
fn among_eight_processes_waiters_do_not_overtake_those_that_arrived_fifty_milliseconds_before() {
    for nodes in [1, 5] {
        // On a busy machine a process may stand still between its coming and its first command, so one turn in twenty may
        // be out of order.
        let is_fair = (0..3).any(|_| {
            let servers = Server::several(nodes);
            let part = "loop 5000000 15000 25000 release fair";
            let shares = contend(&servers, 8, part, Duration::from_secs(4));
            shares.print(&format!("{nodes} nodes, fair"));
            let (least, most) = shares.least_and_most();
            assert!(most <= 2 * least, "{nodes} nodes: {:?}", shares.holds);
            let mut overtaken = 0;
            for (at, (came, _)) in shares.turns.iter().enumerate() {
                let before = |(other, _): &&(u64, u64)| *other > came + 50_000;
                overtaken += shares.turns[..at].iter().filter(before).count();
            }
            println!("{} turns, {overtaken} overtaken", shares.turns.len());
            shares.turns.len() >= 40 && 20 * overtaken <= shares.turns.len()
        });
        assert!(is_fair, "{nodes} nodes");
    }
}

#[test]
fn a_holder_that_takes_a_lock_again_at_once_comes_behind_the_waiters() {
    let servers = Server::several(3);
    let [one, other] = [(); 2].map(|()| fair(&servers));
    let (over, count) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let _over = OnDrop(&over);
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                drop(one.acquire("a", TTL).unwrap());
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        let mut overtaken: Vec<u32> = (0..200)
            .map(|_| {
                let before = count.load(Ordering::Relaxed);
                let lock = other.acquire("a", TTL).unwrap();
                let after = count.load(Ordering::Relaxed);
                lock.release().unwrap();
                after - before
            })
            .collect();
        // On a busy machine more may happen before it is in the queue.
        overtaken.sort_unstable();
        assert!(overtaken[100] <= 2, "{overtaken:?}");
    });
    nothing_is_left(&servers);
}

// ---- waiters that do not take their turn

/// How long another has to wait for the lock behind a process that was the first in the queue.
fn behind(servers: &[Server], spoil: impl FnOnce(&mut Process)) -> Duration {
    let dir = TempDir::new();
    let [holder, redlock] = [(); 2].map(|()| fair(servers));
    let lock = take(&holder, "a");
    let mut first = Process::start(servers, dir.path(), "wait 5000 fair", "first");
    in_queue(servers, "a", 1);
    listen(servers, 1);
    spoil(&mut first);
    std::thread::scope(|scope| {
        let next = scope.spawn(|| {
            let lock = redlock.acquire("a", TTL).unwrap();
            (Instant::now(), lock)
        });
        in_queue(servers, "a", 2);
        let released = Instant::now();
        lock.release().unwrap();
        let (since, lock) = next.join().unwrap();
        lock.release().unwrap();
        since - released
    })
}

#[test]
fn a_waiter_that_hangs_costs_the_next_one_its_turn() {
    for nodes in [1, 3] {
        let servers = Server::several(nodes);
        let took = behind(&servers, |process| process.signal(libc::SIGSTOP));
        // Its turn, and then a pause that is no longer.
        assert!(
            took > TURN / 2 && took < 3 * TURN,
            "{nodes} nodes: {took:?}"
        );
    }
}

#[test]
fn a_waiter_that_was_killed_is_skipped() {
    for nodes in [1, 3] {
        let servers = Server::several(nodes);
        let took = behind(&servers, Process::kill);
        assert!(took < TURN, "{nodes} nodes: {took:?}");
        nothing_is_left(&servers);
    }
}

#[test]
fn a_waiter_that_is_killed_when_it_is_its_turn_costs_no_more_than_one_that_hangs() {
    let servers = Server::several(3);
    let dir = TempDir::new();
    let [holder, redlock] = [(); 2].map(|()| fair(&servers));
    for round in 0..5 {
        let lock = take(&holder, "a");
        let name = format!("first {round}");
        let mut first = Process::start(&servers, dir.path(), "wait 5000 fair", &name);
        in_queue(&servers, "a", 1);
        first.signal(libc::SIGSTOP);
        std::thread::scope(|scope| {
            let next = scope.spawn(|| redlock.acquire("a", TTL).unwrap());
            in_queue(&servers, "a", 2);
            let released = Instant::now();
            lock.release().unwrap();
            first.kill();
            next.join().unwrap().release().unwrap();
            let took = released.elapsed();
            assert!(took < 4 * TURN, "{took:?}");
        });
    }
    // What the killed one had sent may be granted by a node that was slow to read it, and stays for its ttl.
    eventually("nothing is left on a majority", || {
        let is_empty = |server: &&Server| server.keys().is_empty();
        servers.iter().filter(is_empty).count() >= 2
    });
}

#[test]
fn a_waiter_that_gives_up_its_turn_passes_it_on() {
    let servers = Server::several(3);
    let [holder, leaver, next] = [(); 3].map(|()| fair(&servers));
    for round in 0..100 {
        // What one round leaves in the queue is not to disturb the next one.
        let name = &format!("a{round}");
        let lock = take(&holder, name);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let gone = scope.spawn(|| {
                let keep_trying = || !over.load(Ordering::Relaxed);
                let lock = leaver.acquire_while(name, TTL, keep_trying);
                lock.map(|lock| lock.release().unwrap())
            });
            in_queue(&servers, name, 1);
            let next = scope.spawn(|| {
                next.acquire(name, TTL).unwrap().release().unwrap();
                Instant::now()
            });
            in_queue(&servers, name, 2);
            // While it is notified, or before, or after.
            let released = Instant::now();
            if round % 3 == 0 {
                over.store(true, Ordering::Relaxed);
            }
            lock.release().unwrap();
            if round % 3 == 1 {
                std::thread::sleep(Duration::from_micros(10 * round));
            }
            over.store(true, Ordering::Relaxed);
            let took = next.join().unwrap() - released;
            assert!(took < TURN, "{took:?}");
            match gone.join().unwrap() {
                Ok(()) | Err(Error::Cancelled(_)) => {}
                Err(error) => panic!("{error}"),
            }
        });
    }
    nothing_is_left(&servers);
}

// ---- one attempt

#[test]
fn one_attempt_leaves_a_free_lock_to_the_waiter_for_which_it_is_reserved() {
    for nodes in [1, 3] {
        let servers = Server::several(nodes);
        let dir = TempDir::new();
        let [holder, redlock] = [(); 2].map(|()| fair(&servers));
        let lock = take(&holder, "a");
        assert!(redlock.try_acquire("a", TTL).unwrap().is_none());
        in_queue(&servers, "a", 0);
        let mut first = Process::start(&servers, dir.path(), "wait 5000 fair", "first");
        in_queue(&servers, "a", 1);
        listen(&servers, 1);
        first.signal(libc::SIGSTOP);
        lock.release().unwrap();
        assert!(!servers[0].exists("a"));
        assert!(redlock.try_acquire("a", TTL).unwrap().is_none());
        let busy = redlock.acquire_within("a", TTL, Duration::ZERO);
        assert!(matches!(busy, Err(Error::Busy(_))), "{busy:?}");
        // A client that is not fair ignores reservations.
        drop(take(&connected(&servers), "a"));
        // Nor is it reserved for ever.
        eventually("the turn is over", || {
            redlock.try_acquire("a", TTL).unwrap().is_some()
        });
        first.signal(libc::SIGCONT);
        first.succeeds();
        nothing_is_left(&servers);
    }
}

#[test]
fn one_attempt_in_a_process_that_waits_comes_behind_its_other_threads() {
    let servers = Server::several(3);
    let [holder, redlock] = [(); 2].map(|()| fair(&servers));
    let lock = take(&holder, "a");
    std::thread::scope(|scope| {
        let next = scope.spawn(|| redlock.acquire("a", TTL).unwrap());
        in_queue(&servers, "a", 1);
        for _ in 0..10 {
            assert!(redlock.try_acquire("a", TTL).unwrap().is_none());
        }
        // They have not removed the other thread from the queue.
        in_queue(&servers, "a", 1);
        let released = Instant::now();
        lock.release().unwrap();
        next.join().unwrap().release().unwrap();
        assert!(released.elapsed() < TURN, "{:?}", released.elapsed());
    });
    nothing_is_left(&servers);
}

#[test]
fn many_that_try_once_at_the_same_moment_do_not_all_go_without() {
    let servers = Server::several(5);
    let processes: Vec<Redlock> = (0..6).map(|_| fair(&servers)).collect();
    let got: usize = (0..20)
        .map(|_| {
            let barrier = std::sync::Barrier::new(processes.len());
            let taken = std::thread::scope(|scope| {
                let tries: Vec<_> = processes
                    .iter()
                    .map(|redlock| {
                        scope.spawn(|| {
                            barrier.wait();
                            redlock.try_acquire("a", TTL).unwrap()
                        })
                    })
                    .collect();
                let join = |one: std::thread::ScopedJoinHandle<'_, _>| one.join().unwrap();
                tries.into_iter().filter_map(join).count()
            });
            // Those that were dropped meanwhile may have let others in.
            usize::from(taken > 0)
        })
        .sum();
    assert_eq!(got, 20);
    nothing_is_left(&servers);
}

#[test]
fn one_attempt_without_nodes_names_those_that_are_missing() {
    let mut servers = Server::several(3);
    let redlock = fair(&servers);
    servers.iter_mut().for_each(Server::kill);
    let nodes = unavailable(redlock.try_acquire("a", TTL));
    assert_eq!(nodes.iter().count(), 3, "{nodes}");
    let options = fair_options().wait(ms(10));
    let nodes = unavailable(redlock.with_options(options).unwrap().acquire("a", TTL));
    assert_eq!(nodes.iter().count(), 3, "{nodes}");
}

// ---- nodes that disagree, and what is not ours

/// Each of three processes reaches another majority.
#[test]
fn processes_that_reach_different_nodes_do_not_wait_for_each_other_for_ever() {
    let servers = Server::several(5);
    let relays = || -> Vec<Relay> {
        let relay = |server: &Server| Relay::to(server.port());
        servers.iter().map(relay).collect()
    };
    let away = [[0, 1], [2, 3], [3, 4]];
    let processes = away.map(|away| {
        let relays = relays();
        away.iter().for_each(|node| relays[*node].refuse());
        let urls: Vec<String> = relays.iter().map(Relay::url).collect();
        let options = fair_options().retry_delay(ms(10), ms(50));
        (
            Redlock::new(urls).unwrap().with_options(options).unwrap(),
            relays,
        )
    });
    let started = Instant::now();
    let holds = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for (redlock, _) in &processes {
            scope.spawn(|| {
                for _ in 0..20 {
                    let lock = redlock.acquire("a", TTL).unwrap();
                    holds.lock().unwrap().push(started.elapsed());
                    lock.release().unwrap();
                }
            });
        }
    });
    let holds = holds.into_inner().unwrap();
    assert_eq!(holds.len(), 60);
    let longest = holds.windows(2).map(|pair| pair[1] - pair[0]).max();
    // Two turns and some tries.
    assert!(longest < Some(5 * TURN), "{longest:?}");
}

#[test]
fn a_turn_that_never_ends_keeps_no_waiter_out_for_ever() {
    let keeps = |nodes| {
        let servers = Server::several(nodes);
        let redlock = fair(&servers);
        let other = format!("redlock:{}", "00".repeat(16));
        for server in &servers {
            server.command(&["SET", "{a}:redlock:wt", &other]);
        }
        assert!(redlock.try_acquire("a", TTL).unwrap().is_none());
        let started = Instant::now();
        let lock = redlock.acquire("a", TTL).unwrap();
        let took = started.elapsed();
        assert!(took > 4 * TURN && took < 12 * TURN, "{took:?}");
        lock.release().unwrap();
    };
    std::thread::scope(|scope| {
        scope.spawn(|| keeps(1));
        keeps(3);
    });
}

#[test]
fn a_foreign_value_in_the_key_of_the_turn_stays_as_it_is() {
    let servers = Server::several(1);
    for command in [
        &["SET", "{a}:redlock:wt", "another program's lock"][..],
        &["RPUSH", "{a}:redlock:wt", "x", "y"],
    ] {
        let server = &servers[0];
        server.command(command);
        let before = server.command(&["DUMP", "{a}:redlock:wt"]);
        let [one, other] = [(); 2].map(|()| fair(&servers));
        let lock = take(&one, "a");
        std::thread::scope(|scope| {
            let next = scope.spawn(|| other.acquire("a", TTL).unwrap());
            in_queue(&servers, "a", 1);
            let released = Instant::now();
            lock.release().unwrap();
            next.join().unwrap().release().unwrap();
            assert!(released.elapsed() < TURN, "{:?}", released.elapsed());
        });
        for _ in 0..10 {
            take(&one, "a").release().unwrap();
        }
        assert_eq!(server.command(&["DUMP", "{a}:redlock:wt"]), before);
        server.command(&["DEL", "{a}:redlock:wt"]);
    }
}

/// Connects as a user with few rights, so that waiters poll.
fn limited(server: &Server, rules: &[&str]) -> Redlock {
    let user = ["ACL", "SETUSER", "limited", "reset", "on", ">pw"];
    server.command(&[&user, rules].concat());
    let url = server.url_for("limited", "pw");
    let options = fair_options().retry_delay(ms(1), ms(10));
    Redlock::new([url]).unwrap().with_options(options).unwrap()
}

#[test]
fn users_with_few_rights_take_the_lock_as_others_do() {
    let servers = Server::several(1);
    for rules in [
        // Only the key itself; all keys, and no channels, as users are by default; no queues.
        &["~a", "+@all"][..],
        &["~*", "+@all"],
        &["~*", "&*", "+@all", "-zadd"],
        &["~*", "&*", "+@all", "-publish"],
    ] {
        let processes: Vec<Redlock> = (0..3).map(|_| limited(&servers[0], rules)).collect();
        let lock = take(&processes[0], "a");
        assert!(processes[1].try_acquire("a", TTL).unwrap().is_none());
        lock.release().unwrap();
        // The lock is not reserved for a waiter that cannot be notified.
        let started = Instant::now();
        std::thread::scope(|scope| {
            for redlock in &processes {
                scope.spawn(|| {
                    for _ in 0..20 {
                        redlock.acquire("a", TTL).unwrap().release().unwrap();
                    }
                });
            }
        });
        let took = started.elapsed();
        assert!(took < 3 * TURN, "{rules:?}: {took:?}");
    }
}

/// It cannot put waiters into its queue either.
#[test]
fn a_node_that_refuses_writes_is_no_node_that_keeps_the_lock_for_others() {
    let servers = Server::several(1);
    let [holder, redlock] = [(); 2].map(|()| fair(&servers));
    let lock = take(&holder, "a");
    std::thread::scope(|scope| {
        let next = scope.spawn(|| redlock.acquire("a", TTL));
        in_queue(&servers, "a", 1);
        lock.release().unwrap();
        next.join().unwrap().unwrap().release().unwrap();
    });
    let server = &servers[0];
    server.command(&["ZADD", "{a}:redlock:w", "1", "redlock:another"]);
    server.command(&["REPLICAOF", "127.0.0.1", "1"]);
    let nodes = unavailable(redlock.try_acquire("a", TTL));
    assert!(nodes.to_string().contains("READONLY"), "{nodes}");
}

#[test]
fn a_waiter_with_little_time_is_notified_all_the_same() {
    let servers = Server::several(1);
    let [holder, redlock] = [(); 2].map(|()| fair(&servers));
    let lock = take(&holder, "a");
    std::thread::scope(|scope| {
        let next = scope.spawn(|| redlock.acquire_within("a", TTL, NODE_TIMEOUT));
        in_queue(&servers, "a", 1);
        listen(&servers, 1);
        lock.release().unwrap();
        next.join().unwrap().unwrap().release().unwrap();
    });
}

/// Nor does it keep the lock from others when it has had it.
#[test]
fn a_waiter_that_is_not_fair_goes_first_and_does_no_harm() {
    let servers = Server::several(3);
    let [holder, redlock] = [(); 2].map(|()| fair(&servers));
    let plain = unhurried_connected(&servers);
    let plain = plain
        .with_options(unhurried().retry_delay(POLL, POLL))
        .unwrap();
    let mut gaps: Vec<Duration> = (0..20)
        .map(|round| {
            let name = &format!("a{round}");
            let lock = take(&holder, name);
            std::thread::scope(|scope| {
                let first = scope.spawn(|| plain.acquire(name, TTL).unwrap());
                in_queue(&servers, name, 1);
                let next = scope.spawn(|| {
                    let lock = redlock.acquire(name, TTL).unwrap();
                    let since = Instant::now();
                    lock.release().unwrap();
                    since
                });
                in_queue(&servers, name, 2);
                lock.release().unwrap();
                let lock = first.join().unwrap();
                let released = Instant::now();
                lock.release().unwrap();
                next.join().unwrap().saturating_duration_since(released)
            })
        })
        .collect();
    gaps.sort_unstable();
    assert!(gaps[10] < TURN / 2, "{gaps:?}");
}

#[test]
fn a_reentrant_lock_is_fair_if_its_connections_are() {
    let servers = Server::several(3);
    let [one, other] = [(); 2].map(|()| fair(&servers));
    let locks = one.reentrant();
    let outer = locks.acquire("a", TTL).unwrap();
    std::thread::scope(|scope| {
        let next = scope.spawn(|| other.acquire("a", TTL).unwrap());
        in_queue(&servers, "a", 1);
        // The other one does not come first.
        locks.acquire("a", TTL).unwrap().release().unwrap();
        outer.release().unwrap();
        let late = scope.spawn(|| locks.acquire("a", TTL).unwrap().release().unwrap());
        next.join().unwrap().release().unwrap();
        late.join().unwrap();
    });
    nothing_is_left(&servers);
}
