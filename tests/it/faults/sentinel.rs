//! Sets that sentinels watch: the master is found, and found again.

use crate::support;

use std::time::{Duration, Instant};

use redlock_sync::Redlock;
use support::sentinels::{NAME, Set, client};
use support::*;

const S: Duration = Duration::from_secs(1);

/// For those that go on and on: on a busy machine each answer may take its time.
fn patient(set: &Set) -> Redlock {
    client(&set.url(), no_guard().node_timeout(5 * S))
}

fn no_guard() -> redlock_sync::Options {
    options().restart_guard(Duration::ZERO)
}

#[test]
fn locks_are_taken_at_the_master() {
    let set = Set::start(3);
    let redlock = set.client();
    let shown = format!("{redlock:?}");
    assert!(shown.contains(&format!("{NAME} of 127.0.0.1:")), "{shown}");
    assert!(redlock.connect().unwrap().is_none());
    let lock = take(&redlock, "a");
    assert!(set.servers[0].exists("a"));
    let at = format!("{NAME} at 127.0.0.1:{}", set.servers[0].port());
    assert!(format!("{redlock:?}").contains(&at), "{redlock:?}");
    let inspection = redlock.inspect("a").unwrap();
    assert_eq!(inspection.state().holders().count(), 1);
    let (_, address, _) = inspection.nodes().next().unwrap();
    assert_eq!(address, at);
    let listing = redlock.list(None).unwrap();
    assert_eq!(listing.locks().count(), 1);
    lock.release().unwrap();
    assert!(set.servers[0].keys().is_empty());
}

/// Its message comes over a connection to the master.
#[test]
fn a_waiter_is_woken_by_a_release() {
    let set = Set::start(1);
    let [holder, other] = [0, 1].map(|_| {
        let patient = no_guard().retry_delay(20 * S, 20 * S);
        client(&set.url(), patient)
    });
    let lock = take(&holder, "a");
    std::thread::scope(|scope| {
        let waiting = waiter(scope, || other.acquire("a", TTL).unwrap());
        eventually("it waits for a message", || set.servers[0].queued("a") == 1);
        let released = Instant::now();
        lock.release().unwrap();
        waiting.join().unwrap().release().unwrap();
        assert!(released.elapsed() < 5 * S, "{:?}", released.elapsed());
    });
}

/// A waiter subscribes to the new master, where its place in the queue has been replicated.
#[test]
fn a_waiter_is_woken_by_a_release_at_the_new_master() {
    let mut set = Set::start(3);
    let [holder, other] = [0, 1].map(|_| {
        let patient = no_guard().retry_delay(40 * S, 40 * S).wait(60 * S);
        client(&set.url(), patient)
    });
    let mut lock = take(&holder, "a");
    std::thread::scope(|scope| {
        let waiting = waiter(scope, || other.acquire("a", TTL).unwrap());
        eventually("its place is replicated", || {
            set.servers[1].exists("a") && set.servers[1].queued("a") == 1
        });
        set.servers[0].kill();
        set.promotes();
        let subscribed = || {
            let channels = set.servers[1].command(&["PUBSUB", "CHANNELS", "redlock:*"]);
            redis::from_redis_value::<Vec<String>>(channels).is_ok_and(|all| !all.is_empty())
        };
        eventually("it listens to the new master", subscribed);
        eventually("it is extended there", || lock.extend(TTL).is_ok());
        let released = Instant::now();
        lock.release().unwrap();
        waiting.join().unwrap().release().unwrap();
        assert!(released.elapsed() < 10 * S, "{:?}", released.elapsed());
    });
}

/// Without the guard: the key that was replicated shows that no other holder had it since.
#[test]
fn a_held_lock_goes_on_at_the_new_master() {
    for by_hand in [false, true] {
        let mut set = Set::start(3);
        let [holder, other] = [0, 1].map(|_| set.client());
        let mut lock = take(&holder, "a");
        eventually("it is replicated", || set.servers[1].exists("a"));
        match by_hand {
            true => set.fail_over(1),
            false => set.servers[0].kill(),
        }
        set.has_failed_over();
        // Until then the old master may still be confirmed, and extend and release it.
        eventually("the old master is one no longer", || {
            !by_hand || set.replicates(0)
        });
        eventually("it is extended", || lock.extend(TTL).is_ok());
        assert!(lock.is_valid() && set.servers[1].exists("a"));
        assert!(matches!(other.try_acquire("a", TTL), Ok(None)));
        lock.release().unwrap();
        assert!(!set.servers[1].exists("a"));
    }
}

#[test]
fn after_the_death_of_the_master_locks_are_taken_at_the_new_one() {
    let mut set = Set::start(3);
    let redlock = set.client();
    take(&redlock, "a").release().unwrap();
    set.servers[0].kill();
    set.promotes();
    let promoted = Instant::now();
    let lock = redlock.acquire("a", TTL).unwrap();
    // Half a second; the sentinels tell each other within two.
    assert!(promoted.elapsed() < 10 * S, "{:?}", promoted.elapsed());
    assert!(set.servers[1].exists("a"));
    lock.release().unwrap();
}

/// A master that was frozen goes on with its connections when it wakes, and does not know that there is another one.
#[test]
fn a_master_that_wakes_after_a_failover_grants_nothing() {
    let set = Set::start(3);
    let [idle, busy, fresh] = [0, 1, 2].map(|_| set.client());
    take(&idle, "a").release().unwrap();
    take(&busy, "a").release().unwrap();
    set.servers[0].stop();
    std::thread::scope(|scope| {
        let asks = scope.spawn(|| {
            // Its connection is in use all the time.
            let mut locks = Vec::new();
            eventually_within(TTL, "the replica is promoted", &mut || {
                locks.extend(busy.try_acquire("b", TTL).ok().flatten());
                set.is_promoted(1) && set.is_master(1)
            });
        });
        asks.join().unwrap();
    });
    let held = fresh.acquire("a", TTL).unwrap();
    assert!(set.servers[1].exists("a"));
    set.servers[0].resume();
    let woken = Instant::now();
    let mut denied = 0;
    while woken.elapsed() < 3 * S || denied < 2 {
        denied = 0;
        for redlock in [&idle, &busy] {
            match redlock.try_acquire("a", TTL) {
                Ok(Some(_)) => panic!("two holders after {:?}", woken.elapsed()),
                Ok(None) => denied += 1,
                Err(_) => {}
            }
        }
        assert!(woken.elapsed() < 20 * S);
    }
    assert!(held.is_valid());
    held.release().unwrap();
}

/// The master before stays up for some seconds, and grants on connections that it has.
#[test]
fn a_failover_by_hand_is_noticed_by_a_client_that_is_busy() {
    let set = Set::start(3);
    let [busy, fresh] = [0, 1].map(|_| set.client());
    take(&busy, "b").release().unwrap();
    set.fail_over(1);
    set.has_failed_over();
    let told = Instant::now();
    let held = fresh.acquire("a", TTL).unwrap();
    // Until the directory is asked again; then never.
    let mut last = None;
    while told.elapsed() < 4 * S {
        if let Ok(Some(lock)) = busy.try_acquire("a", TTL) {
            last = Some(told.elapsed());
            drop(lock);
        }
    }
    assert!(last.is_none_or(|last| last < 3 * S), "{last:?}");
    assert!(matches!(busy.try_acquire("a", TTL), Ok(None)));
    held.release().unwrap();
    busy.acquire("a", TTL).unwrap().release().unwrap();
}

#[test]
fn without_sentinels_locks_go_on() {
    let mut set = Set::start(3);
    let redlock = patient(&set);
    take(&redlock, "a").release().unwrap();
    set.sentinels.iter_mut().for_each(Server::kill);
    let since = Instant::now();
    while since.elapsed() < 4 * S {
        redlock.acquire("a", TTL).unwrap().release().unwrap();
    }
    let fresh = set.client();
    let errors = unavailable(fresh.try_acquire("a", TTL));
    assert!(!errors.is_permanent(), "{errors}");
    let text = errors.to_string();
    assert!(
        text.contains(&format!(
            "no sentinel names the master \"{NAME}\": 127.0.0.1:"
        )),
        "{text}"
    );
}

#[test]
fn of_three_sentinels_a_silent_and_a_dead_one_cost_nothing_but_time() {
    let mut set = Set::start(3);
    set.sentinels[0].stop();
    set.sentinels[1].kill();
    let redlock = patient(&set);
    redlock.acquire("a", TTL).unwrap().release().unwrap();
    let since = Instant::now();
    while since.elapsed() < 4 * S {
        redlock.acquire("a", TTL).unwrap().release().unwrap();
    }
}

/// Also after pauses in which nothing was confirmed, and whichever it is.
#[test]
fn sentinels_that_are_silent_in_turn_cost_nothing_but_time() {
    let set = Set::start(3);
    let redlock = patient(&set);
    for silent in [&[0][..], &[1, 2]] {
        silent.iter().for_each(|at| set.sentinels[*at].stop());
        for pause in [0, 0, 0, 3] {
            std::thread::sleep(pause * S);
            let since = Instant::now();
            while since.elapsed() < S {
                redlock.acquire("a", TTL).unwrap().release().unwrap();
            }
        }
        silent.iter().for_each(|at| set.sentinels[*at].resume());
    }
}

/// They cannot say that there is another master, and a majority of them would have to agree on one.
#[test]
fn where_all_sentinels_are_silent_locks_go_on() {
    let set = Set::start(3);
    let redlock = patient(&set);
    take(&redlock, "a").release().unwrap();
    set.sentinels.iter().for_each(Server::stop);
    let since = Instant::now();
    while since.elapsed() < 6 * S {
        redlock.acquire("a", TTL).unwrap().release().unwrap();
    }
}

#[test]
fn one_connection_is_left_to_the_master_and_none_to_a_sentinel() {
    in_own_process(
        "one_connection_is_left_to_the_master_and_none_to_a_sentinel",
        || {
            let set = Set::start(2);
            let before = (open_files(), threads());
            let redlock = patient(&set);
            let since = Instant::now();
            while since.elapsed() < 3 * S {
                take(&redlock, "a").release().unwrap();
            }
            let (files, threads_before) = before;
            eventually("one connection is left", || {
                (open_files(), threads()) == (files + 1, threads_before)
            });
            drop(redlock);
            eventually("nothing is left", || (open_files(), threads()) == before);
        },
    );
}

#[test]
fn a_name_that_no_sentinel_has_is_refused_for_good() {
    let set = Set::start(1);
    let url = set.url().replace(NAME, "nope");
    let errors = unavailable(client(&url, no_guard()).acquire("a", TTL));
    assert!(errors.is_permanent(), "{errors}");
    let text = errors.to_string();
    assert!(
        text.contains("no sentinel knows a master \"nope\""),
        "{text}"
    );
}

#[test]
fn a_server_is_no_sentinel_and_a_sentinel_is_no_server() {
    let set = Set::start(1);
    let port = set.servers[0].port().to_string();
    let sentinel = set.sentinels[0].port().to_string();
    let url = set.url().replace(&sentinel, &port);
    let errors = unavailable(client(&url, no_guard()).acquire("a", TTL));
    assert!(errors.is_permanent(), "{errors}");
    assert!(
        errors.to_string().contains("that is no sentinel"),
        "{errors}"
    );
    let errors = unavailable(client(&set.sentinels[0].url(), no_guard()).acquire("a", TTL));
    assert!(errors.is_permanent(), "{errors}");
    let text = errors.to_string();
    assert!(
        text.contains("write redis+sentinel://host:port/NAME"),
        "{text}"
    );
}

#[test]
fn servers_and_sentinels_have_separate_passwords() {
    let set = Set::start(1);
    for server in &set.servers {
        server.command(&["ACL", "SETUSER", "u", "on", ">hunter2", "~*", "&*", "+@all"]);
    }
    let sentinel = &set.sentinels[0];
    sentinel.command(&["ACL", "SETUSER", "v", "on", ">hunter3", "+@all"]);
    sentinel.command(&["ACL", "SETUSER", "default", "resetpass", "off"]);
    let take = |login: &str, sentinel: &str| {
        let url = set.url_for(login, sentinel);
        client(&url, no_guard()).acquire("a", TTL)
    };
    let right = "?sentinel_username=v&sentinel_password=hunter3";
    take("u:hunter2@", right).unwrap().release().unwrap();
    for (login, sentinel, expected) in [
        ("u:hunter3@", right, "WRONGPASS"),
        (
            "u:hunter2@",
            "?sentinel_username=v&sentinel_password=hunter2",
            "sentinel_password=",
        ),
        ("u:hunter2@", "", "sentinel_password="),
    ] {
        let errors = unavailable(take(login, sentinel));
        assert!(errors.is_permanent(), "{errors}");
        let text = errors.to_string();
        assert!(
            text.contains(expected) && !text.contains("hunter"),
            "{text}"
        );
    }
}

#[cfg(feature = "tls")]
#[test]
fn servers_and_sentinels_are_reached_over_tls() {
    let mut set = Set::with(1, true);
    let redlock = set.client();
    take(&redlock, "a").release().unwrap();
    set.servers[0].kill();
    set.has_failed_over();
    redlock.acquire("a", TTL).unwrap().release().unwrap();
}

/// A promotion may lose locks, so there is a guard unless it is switched off.
#[test]
fn a_server_that_was_just_started_gives_no_votes_by_default() {
    let set = Set::start(1);
    let errors = unavailable(client(&set.url(), options()).try_acquire("a", TTL));
    let wait = errors.retry_after().unwrap();
    assert!(!wait.is_zero() && wait <= 36 * S, "{wait:?}");
    // Also without a user who may ask for it.
    for server in &set.servers {
        let user =
            "ACL SETUSER u on >pw ~a ~{a* resetchannels -@all +set +get +del +pttl +pexpire +eval";
        server.command(&user.split(' ').collect::<Vec<_>>());
    }
    let redlock = client(&set.url_for("u:pw@", ""), options());
    redlock.acquire("a", TTL).unwrap().release().unwrap();
}

#[test]
fn of_three_sets_one_that_fails_over_delays_nothing() {
    let mut sets = [(); 3].map(|()| Set::start(1));
    let redlock = Redlock::new(sets.iter().map(Set::url)).unwrap();
    let redlock = redlock
        .with_options(no_guard().node_timeout(5 * S))
        .unwrap();
    let everywhere = |sets: &[Set], servers: [usize; 3]| {
        eventually("all of them grant it", || {
            let lock = take(&redlock, "a");
            let all = sets.iter().zip(servers);
            let all = all.map(|(set, server)| set.servers[server].exists("a"));
            let all = all.fold(true, |all, one| all & one);
            lock.release().unwrap();
            all
        });
    };
    everywhere(&sets, [0, 0, 0]);
    sets[1].servers[0].kill();
    while !sets[1].is_promoted(1) {
        take(&redlock, "a").release().unwrap();
    }
    everywhere(&sets, [0, 1, 0]);
}

#[test]
fn the_same_set_twice_is_one() {
    let url = |hosts: &str| format!("redis+sentinel://{hosts}/m");
    let text = config(Redlock::new([url("a,b"), url("c"), url("b,a:26379")]));
    assert!(
        text.contains("nodes 0 and 2 have the same address m of b:26379,a:26379"),
        "{text}"
    );
}

/// It is renewed while others wait for the end of what the master before may have granted.
#[test]
#[ignore = "takes half a minute"]
fn a_kept_lock_lives_on_when_its_master_dies() {
    let ttl = 18 * S;
    let mut set = Set::start(3);
    let guarded = || client(&set.url(), options().restart_guard(ttl).wait(60 * S));
    let [redlock, other] = [0, 1].map(|_| guarded());
    let lock = redlock
        .acquire("a", ttl)
        .unwrap()
        .keep_alive(600 * S)
        .unwrap();
    let offset = |at: usize| set.servers[at].info("replication", "master_repl_offset");
    eventually("it is replicated", || {
        set.servers[1].exists("a") && offset(0) == offset(1)
    });
    set.servers[0].kill();
    set.promotes();
    let promoted = Instant::now();
    other.acquire("b", ttl).unwrap().release().unwrap();
    let took = promoted.elapsed();
    assert_eq!(lock.lost(), None);
    assert!((ttl + 4 * S..ttl + 10 * S).contains(&took), "{took:?}");
    lock.release().unwrap();
}
