//! A program's first operation, and attempts that meet other attempts.

use crate::support;

use std::net::TcpListener;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use redlock_sync::{Error, Lock, Redlock};
use support::relay::Relay;
use support::*;

#[test]
fn a_first_lock_lies_on_all_healthy_nodes() {
    let servers = Server::several(5);
    let redlocks: Vec<Redlock> = (0..40).map(|_| redlock(&servers)).collect();
    for (i, redlock) in redlocks.iter().enumerate() {
        let resource = format!("{i}");
        let _lock = take(redlock, &resource);
        // Written to all; the slowest may read it a little later.
        eventually(&resource, || {
            servers.iter().all(|server| server.exists(&resource))
        });
    }
}

/// What the other fate of a first lock would have meant: a job on five nodes that tolerates no failure.
#[test]
fn after_the_first_lock_any_two_of_five_nodes_may_stop() {
    let servers = Server::several(5);
    for one in 0..5 {
        for other in 0..one {
            let redlock = redlock(&servers);
            let mut lock = take(&redlock, "a");
            servers[one].stop();
            servers[other].stop();
            let extended = lock.extend(2 * TTL);
            servers[one].resume();
            servers[other].resume();
            extended.unwrap();
            lock.release().unwrap();
        }
    }
}

#[test]
fn a_first_attempt_is_not_refused_by_a_minority() {
    let servers = Server::several(3);
    for round in 0..60 {
        let resource = format!("{round}");
        servers[round % 3].command(&["SET", &resource, "a leftover"]);
        take(&contender(&servers), &resource).release().unwrap();
    }
}

#[test]
fn a_black_hole_delays_a_first_lock_by_one_node_timeout_and_a_refusal_by_nothing() {
    const TIMEOUT: Duration = Duration::from_secs(4);
    let servers = Server::several(3);
    let relay = Relay::to(servers[2].port());
    let options = options()
        .node_timeout(TIMEOUT)
        .connect_timeout(10 * TIMEOUT);
    let first = || {
        let nodes = [servers[0].url(), servers[1].url(), relay.url()];
        let redlock = Redlock::new(nodes).unwrap();
        let redlock = redlock.with_options(options.clone()).unwrap();
        let started = Instant::now();
        let lock = take(&redlock, "a");
        let took = started.elapsed();
        let started = Instant::now();
        take(&redlock, "b").release().unwrap();
        lock.release().unwrap();
        (took, started.elapsed())
    };
    relay.set(|policy| policy.up.stalled = true);
    let (took, second) = first();
    assert!((TIMEOUT..2 * TIMEOUT).contains(&took), "{took:?}");
    assert!(second < TIMEOUT / 2, "the second waited {second:?}");
    relay.refuse();
    let (took, _) = first();
    assert!(took < TIMEOUT / 2, "{took:?}");
}

/// With dead nodes there is none to spare: on a busy machine one that is late would be one too many.
fn contender(servers: &[Server]) -> Redlock {
    let options = options().node_timeout(Duration::from_secs(5));
    redlock(servers).with_options(options).unwrap()
}

/// One try, which finds enough nodes.
fn try_once(redlock: &Redlock, resource: &str) -> Option<Lock> {
    redlock.try_acquire(resource, TTL).unwrap()
}

/// All contend at the same moment. How many have it.
fn race(
    contenders: &[Redlock],
    resource: &str,
    contend: impl Fn(&Redlock, &str) -> Option<Lock> + Sync,
) -> usize {
    let barrier = Barrier::new(contenders.len());
    let locks: Vec<Option<Lock>> = std::thread::scope(|scope| {
        let start = |redlock| {
            let (barrier, contend) = (&barrier, &contend);
            scope.spawn(move || {
                barrier.wait();
                contend(redlock, resource)
            })
        };
        let threads: Vec<_> = contenders.iter().map(start).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| thread.join().unwrap();
        threads.into_iter().map(join).collect()
    });
    // All have been told before one of them gives it up.
    let locks: Vec<Lock> = locks.into_iter().flatten().collect();
    let count = locks.len();
    for lock in locks {
        lock.release().unwrap();
    }
    count
}

/// With no node to spare one vote for each of two contenders leaves neither with a majority.
#[test]
fn of_contenders_that_start_together_one_gets_it() {
    for (nodes, dead) in [(3, 1), (5, 2)] {
        let mut servers = Server::several(nodes);
        let contenders: Vec<Redlock> = (0..3).map(|_| contender(&servers)).collect();
        contenders
            .iter()
            .for_each(|one| take(one, "warm").release().unwrap());
        servers[..dead].iter_mut().for_each(Server::kill);
        for round in 0..400 {
            let count = race(&contenders, &format!("{round}"), try_once);
            assert_eq!(count, 1, "{nodes} nodes, {dead} dead, round {round}");
        }
    }
}

/// As a cron job that many hosts start in the same second.
#[test]
fn of_programs_that_start_together_one_gets_it() {
    let mut servers = Server::several(3);
    servers[0].kill();
    for round in 0..100 {
        let contenders: Vec<Redlock> = (0..3).map(|_| contender(&servers)).collect();
        assert_eq!(
            race(&contenders, &format!("{round}"), try_once),
            1,
            "round {round}"
        );
    }
}

/// With waiting, too: a contender that had a vote does not pause for long.
#[test]
fn of_contenders_that_wait_one_gets_it_at_once() {
    let mut servers = Server::several(3);
    let pause = Duration::from_secs(20);
    // The others wait for this long, each time.
    let wait = Duration::from_secs(1);
    let contenders = [(); 3].map(|()| {
        let options = options().retry_delay(pause, pause).wait(wait);
        let redlock = connected(&servers).with_options(options).unwrap();
        take(&redlock, "warm").release().unwrap();
        redlock
    });
    servers[0].kill();
    for round in 0..8 {
        let wait = |redlock: &Redlock, resource: &str| redlock.acquire(resource, TTL).ok();
        let count = race(&contenders, &format!("{round}"), wait);
        assert_eq!(count, 1, "round {round}");
    }
}

/// A holder is told from contenders by not getting a single vote; and no contender gets one while all nodes
/// have the key.
#[test]
fn an_attempt_that_meets_a_holder_is_denied_at_once() {
    const TIMEOUT: Duration = Duration::from_secs(10);
    let servers = Server::several(5);
    let patient = options().node_timeout(TIMEOUT);
    let connected = |_| connected(&servers).with_options(patient.clone()).unwrap();
    let [holder, other] = [0, 1].map(connected);
    take(&other, "warm").release().unwrap();
    let lock = take(&holder, "a");
    eventually("it is on all nodes", || {
        servers.iter().all(|server| server.exists("a"))
    });
    let started = Instant::now();
    assert!(other.try_acquire("a", TTL).unwrap().is_none());
    assert!(started.elapsed() < TIMEOUT / 2, "{:?}", started.elapsed());
    // A node without the key grants it: for some tries that might be a contender's doing.
    servers[4].command(&["DEL", "a"]);
    let started = Instant::now();
    assert!(other.try_acquire("a", TTL).unwrap().is_none());
    assert!(started.elapsed() < TIMEOUT, "{:?}", started.elapsed());
    assert!(matches!(
        other.acquire_while("a", TTL, || false),
        Err(Error::Cancelled(_))
    ));
    lock.release().unwrap();
}

/// `keep_trying` is asked also between the tries of one attempt.
#[test]
fn an_attempt_that_meets_contenders_can_be_cancelled() {
    let servers = Server::several(3);
    let redlock = connected(&servers);
    let patient = options().node_timeout(Duration::from_secs(30));
    let redlock = redlock.with_options(patient).unwrap();
    take(&redlock, "warm").release().unwrap();
    for server in &servers[..2] {
        server.command(&["SET", "a", "another's"]);
    }
    let started = Instant::now();
    let stopped = redlock.acquire_while("a", TTL, || started.elapsed() < NODE_TIMEOUT);
    assert!(matches!(stopped, Err(Error::Cancelled(_))));
    assert!(started.elapsed() < 4 * NODE_TIMEOUT);
}

/// Nothing of an attempt was sent while its first connections are waited for.
#[test]
fn a_program_ends_the_wait_for_first_connections() {
    let server = Server::plain();
    let silent: Vec<TcpListener> = (0..3)
        .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    let port = |at: usize| silent[at].local_addr().unwrap().port();
    let redis = |at: usize| format!("redis://127.0.0.1:{}", port(at));
    for nodes in [
        vec![redis(0)],
        vec![server.url(), redis(0), redis(1)],
        vec![format!("redis+cluster://127.0.0.1:{}", port(2))],
    ] {
        let patient = options().connect_timeout(Duration::from_secs(30));
        let redlock = Redlock::new(&nodes).unwrap().with_options(patient).unwrap();
        let started = Instant::now();
        let mut asked = 0;
        let mut keep_trying = || {
            asked += 1;
            started.elapsed() < Duration::from_secs(1)
        };
        let semaphore = redlock.semaphore("s", 2).unwrap();
        let stopped = redlock.acquire_while("a", TTL, &mut keep_trying);
        assert!(matches!(stopped, Err(Error::Cancelled(_))), "{stopped:?}");
        assert!(asked > 2, "{nodes:?}: {asked}");
        let stopped = semaphore.acquire_while(TTL, || started.elapsed() < Duration::from_secs(2));
        assert!(matches!(stopped, Err(Error::Cancelled(_))), "{stopped:?}");
        let took = started.elapsed();
        assert!(took < Duration::from_secs(10), "{nodes:?}: {took:?}");
    }
    assert!(!server.exists("a") && !server.exists("s"));
}

#[test]
fn a_program_that_goes_on_gets_its_lock_from_a_node_that_is_late() {
    let server = Server::plain();
    server.stop();
    let redlock = redlock(std::slice::from_ref(&server));
    let mut asked = 0;
    let lock = redlock.acquire_while("a", TTL, || {
        asked += 1;
        if asked == 10 {
            server.resume();
        }
        true
    });
    lock.unwrap().release().unwrap();
    assert!(asked >= 10);
}
