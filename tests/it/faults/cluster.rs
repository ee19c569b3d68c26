//! Redis Clusters: each lock is at the master that has its slot.

use crate::support;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redlock_sync::{Credentials, Error, Event, Lock, LockState, NodeState, Redlock, Severity};
use support::clusters::{Cluster, Plan, slot};
use support::processes::Process;
use support::*;

const S: Duration = Duration::from_secs(1);
/// A waiter that is not woken sleeps for longer than that.
const PROMPT: Duration = Duration::from_secs(10);

/// One of each shard.
fn three(cluster: &Cluster) -> [String; 3] {
    [0, 1, 2].map(|master| cluster.name(master))
}

/// These do not wait for servers that were just started.
fn unguarded(url: &str) -> Redlock {
    let options = options().node_timeout(5 * S).restart_guard(Duration::ZERO);
    Redlock::new(url).unwrap().with_options(options).unwrap()
}

/// Two that sleep long unless they are woken.
fn two(cluster: &Cluster) -> [Redlock; 2] {
    let options = options()
        .node_timeout(5 * S)
        .retry_delay(4 * PROMPT, 4 * PROMPT);
    [0, 1].map(|_| cluster.client_with(options.clone().wait(6 * PROMPT)))
}

fn held(redlock: &Redlock, name: &str) -> bool {
    matches!(
        redlock.inspect(name).unwrap().state(),
        LockState::Held { .. }
    )
}

// ---- locks

#[test]
fn locks_are_taken_at_the_masters_of_their_slots() {
    let cluster = Cluster::masters(3);
    let redlock = cluster.client();
    assert!(redlock.connect().unwrap().is_none());
    let names = three(&cluster);
    let mut locks: Vec<Lock> = names.iter().map(|name| take(&redlock, name)).collect();
    for (master, name) in names.iter().enumerate() {
        assert_eq!(cluster.nodes_with(name), [master]);
        assert!(redlock.try_acquire(name, TTL).unwrap().is_none());
        locks[master].extend(2 * TTL).unwrap();
    }
    for lock in locks {
        lock.release().unwrap();
    }
    cluster.nothing_is_left();
}

#[test]
fn a_lock_that_is_dropped_is_released_in_each_shard() {
    let cluster = Cluster::masters(3);
    let redlock = cluster.client();
    for name in three(&cluster) {
        drop(take(&redlock, &name));
        redlock.acquire(&name, TTL).unwrap().release().unwrap();
    }
    cluster.nothing_is_left();
}

#[test]
fn threads_that_lock_a_thousand_names_use_one_connection_to_each_master() {
    let name = "threads_that_lock_a_thousand_names_use_one_connection_to_each_master";
    in_own_process(name, || {
        let cluster = Cluster::start();
        let before = (open_files(), threads());
        let redlock = cluster.client();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let redlock = &redlock;
                scope.spawn(move || {
                    for number in 0..125 {
                        let lock = take(redlock, &format!("{thread}:{number}"));
                        lock.release().unwrap();
                    }
                });
            }
        });
        for node in 0..6 {
            let expected = (usize::from(node < 3), 0);
            eventually("one connection to each master", || {
                cluster.connections(node) == expected
            });
        }
        let (files, threads_before) = before;
        eventually("these connections and no thread", || {
            (open_files(), threads()) == (files + 3, threads_before)
        });
        drop(redlock);
        eventually("nothing is left", || (open_files(), threads()) == before);
        cluster.nothing_is_left();
    });
}

/// Where no more than one name is locked.
#[test]
fn a_master_that_is_not_used_has_no_connection() {
    let cluster = Cluster::masters(3);
    let redlock = cluster.client();
    let name = cluster.name(1);
    for _ in 0..10 {
        take(&redlock, &name).release().unwrap();
    }
    for node in 0..3 {
        let expected = (usize::from(node == 1), 0);
        eventually("a connection to the master in use", || {
            cluster.connections(node) == expected
        });
    }
}

#[test]
fn waiters_of_a_cluster_leave_no_thread_and_no_connection() {
    let name = "waiters_of_a_cluster_leave_no_thread_and_no_connection";
    in_own_process(name, || {
        let cluster = Cluster::masters(3);
        let before = (open_files(), threads());
        let [holder, other] = two(&cluster);
        for name in three(&cluster) {
            is_woken(&cluster, &name, &holder, &other);
        }
        for node in 0..3 {
            eventually("the waiter listens no more", || {
                cluster.connections(node) == (2, 0)
            });
        }
        assert_eq!(ears(), 0);
        drop((holder, other));
        eventually("nothing is left", || (open_files(), threads()) == before);
    });
}

/// The other waits, and has it soon after it was released.
fn is_woken(cluster: &Cluster, name: &str, holder: &Redlock, other: &Redlock) {
    let lock = take(holder, name);
    std::thread::scope(|scope| {
        let waiting = waiter(scope, || other.acquire(name, TTL).unwrap());
        eventually("it waits for a message", || {
            cluster.at(name).queued(name) == 1
        });
        let released = Instant::now();
        lock.release().unwrap();
        waiting.join().unwrap().release().unwrap();
        assert!(released.elapsed() < PROMPT, "{:?}", released.elapsed());
    });
}

#[test]
fn a_waiter_of_another_client_is_woken_in_each_shard() {
    let cluster = Cluster::masters(3);
    let [holder, other] = two(&cluster);
    let names = three(&cluster);
    for name in names.iter().chain(&["{tag}:x".into(), "a{b}c".into()]) {
        for _ in 0..3 {
            is_woken(&cluster, name, &holder, &other);
        }
    }
    cluster.nothing_is_left();
}

#[test]
fn waiters_in_all_shards_are_woken_side_by_side() {
    let cluster = Cluster::masters(3);
    let [holder, other] = two(&cluster);
    let names: Vec<String> = (0..3)
        .flat_map(|master| cluster.names(master).take(4))
        .collect();
    let locks: Vec<Lock> = names.iter().map(|name| take(&holder, name)).collect();
    std::thread::scope(|scope| {
        let other = &other;
        let wait = |name| waiter(scope, move || other.acquire(name, TTL).unwrap());
        let waiting: Vec<_> = names.iter().map(wait).collect();
        for name in &names {
            eventually("all wait", || cluster.at(name).queued(name) == 1);
        }
        let released = Instant::now();
        for lock in locks {
            lock.release().unwrap();
        }
        for thread in waiting {
            thread.join().unwrap().release().unwrap();
        }
        assert!(released.elapsed() < PROMPT, "{:?}", released.elapsed());
    });
    cluster.nothing_is_left();
}

#[test]
fn a_process_that_waits_at_a_cluster_is_woken() {
    let cluster = Cluster::masters(3);
    let dir = TempDir::new();
    let redlock = cluster.client();
    let lock = take(&redlock, "a");
    let mut process = Process::at(&cluster.url(), dir.path(), "wait 40000", "had");
    eventually("it waits", || cluster.at("a").queued("a") == 1);
    let released = Instant::now();
    lock.release().unwrap();
    eventually("it has had the lock", || dir.path().join("had").exists());
    assert!(released.elapsed() < PROMPT, "{:?}", released.elapsed());
    process.succeeds();
    cluster.nothing_is_left();
}

#[test]
fn the_lock_of_a_process_that_was_killed_ends_with_its_ttl() {
    let cluster = Cluster::masters(3);
    let dir = TempDir::new();
    let mut process = Process::at(&cluster.url(), dir.path(), "hold 4000", "has");
    eventually("it has the lock", || dir.path().join("has").exists());
    process.kill();
    let redlock = cluster.client();
    redlock.acquire("a", TTL).unwrap().release().unwrap();
    cluster.nothing_is_left();
}

#[test]
fn waiters_get_it_in_their_order() {
    let cluster = Cluster::masters(3);
    let fair = || cluster.client_with(options().node_timeout(5 * S).fair(true));
    let name = cluster.name(2);
    let lock = take(&fair(), &name);
    let order = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for number in 0..4 {
            let (redlock, order, name) = (fair(), &order, &name);
            scope.spawn(move || {
                let lock = redlock.acquire(name, TTL).unwrap();
                order.lock().unwrap().push(number);
                lock.release().unwrap();
            });
            eventually("it waits", || cluster.at(name).queued(name) == number + 1);
        }
        lock.release().unwrap();
    });
    assert_eq!(order.into_inner().unwrap(), [0, 1, 2, 3]);
}

// ---- what else is locked

#[test]
fn fencing_tokens_grow() {
    let cluster = Cluster::masters(3);
    let clients = [cluster.client(), cluster.client()];
    for name in [&*cluster.name(0), &cluster.name(1), "{tag}:x"] {
        let mut last = 0;
        for redlock in clients.iter().cycle().take(6) {
            let lock = take(redlock, name);
            let token = lock.fencing_token().unwrap();
            assert!(token > last, "{token} after {last}");
            last = token;
            lock.release().unwrap();
        }
    }
}

#[test]
fn a_semaphore_has_its_permits_in_each_shard() {
    let cluster = Cluster::masters(3);
    let [one, two] = [cluster.client(), cluster.client()];
    for name in three(&cluster) {
        let [one, two] = [&one, &two].map(|redlock| redlock.semaphore(&name, 2).unwrap());
        let permit = |semaphore: &redlock_sync::Lockable| semaphore.try_acquire(TTL).unwrap();
        let held = [permit(&one).unwrap(), permit(&two).unwrap()];
        assert!(permit(&one).is_none());
        std::thread::scope(|scope| {
            let waiting = waiter(scope, || one.acquire(TTL).unwrap());
            let [first, second] = held;
            first.release().unwrap();
            waiting.join().unwrap().release().unwrap();
            second.release().unwrap();
        });
    }
    cluster.nothing_is_left();
}

#[test]
fn readers_share_a_lock_and_a_writer_has_it_alone_in_each_shard() {
    let cluster = Cluster::masters(3);
    let [one, two] = [cluster.client(), cluster.client()];
    for name in three(&cluster) {
        let readers = [&one, &two].map(|redlock| redlock.read_lock(&name).unwrap());
        let writer = two.write_lock(&name).unwrap();
        let held = readers.map(|reader| reader.try_acquire(TTL).unwrap().unwrap());
        assert!(writer.try_acquire(TTL).unwrap().is_none());
        std::thread::scope(|scope| {
            let waiting = waiter(scope, || writer.acquire(TTL).unwrap());
            for reader in held {
                reader.release().unwrap();
            }
            waiting.join().unwrap().release().unwrap();
        });
    }
    cluster.nothing_is_left();
}

#[test]
fn several_names_with_one_tag_are_locked_together() {
    let cluster = Cluster::masters(3);
    let [one, two] = [cluster.client(), cluster.client()];
    let names = ["{order:7}:goods", "{order:7}:bill", "{order:7}:mail"];
    let lock = one.several(names).unwrap().try_acquire(TTL).unwrap();
    let mut lock = lock.unwrap();
    for name in names {
        assert!(two.try_acquire(name, TTL).unwrap().is_none());
    }
    lock.extend(2 * TTL).unwrap();
    lock.release().unwrap();
    let single = take(&two, names[1]);
    assert!(
        one.several(names)
            .unwrap()
            .try_acquire(TTL)
            .unwrap()
            .is_none()
    );
    single.release().unwrap();
    cluster.nothing_is_left();
}

#[test]
fn several_names_of_different_slots_are_refused() {
    let cluster = Cluster::masters(3);
    let redlock = cluster.client();
    let [first, second, _] = three(&cluster);
    let mut same_master = cluster.names(0);
    let near = [same_master.next().unwrap(), same_master.next().unwrap()];
    assert_ne!(slot(&near[0]), slot(&near[1]));
    for names in [[first, second], near] {
        let several = redlock.several(&names).unwrap();
        let began = Instant::now();
        let texts = [
            config(several.try_acquire(TTL)),
            config(several.acquire(TTL)),
        ];
        // At once, whatever the wait is.
        assert!(began.elapsed() < PROMPT);
        for text in texts {
            assert!(text.contains("tag") && text.contains("slots"), "{text}");
        }
    }
    cluster.nothing_is_left();
}

#[test]
fn names_with_braces_are_locked() {
    let cluster = Cluster::masters(3);
    let [one, two] = [cluster.client(), cluster.client()];
    for name in [
        "a{b}c", "a}b", "a{b", "a{}b", "{}", "}{", "{a}", "{{a}}", "}{x}", "{a}{b}",
    ] {
        let mut lock = take(&one, name);
        assert_eq!(
            cluster.nodes_with(name),
            [cluster.master_of(name)],
            "{name}"
        );
        assert!(two.try_acquire(name, TTL).unwrap().is_none(), "{name}");
        lock.extend(2 * TTL).unwrap();
        std::thread::scope(|scope| {
            let waiting = waiter(scope, || two.acquire(name, TTL).unwrap());
            lock.release().unwrap();
            waiting.join().unwrap().release().unwrap();
        });
        drop(take(&one, name));
        two.acquire(name, TTL).unwrap().release().unwrap();
    }
    cluster.nothing_is_left();
}

#[test]
fn a_name_and_the_same_in_braces_are_two_locks() {
    let cluster = Cluster::masters(3);
    let [one, two] = [cluster.client(), cluster.client()];
    let held = [take(&one, "x"), take(&one, "{x}")];
    let tokens = held.each_ref().map(|lock| lock.fencing_token().unwrap());
    assert!(tokens.iter().all(|token| *token > 0));
    std::thread::scope(|scope| {
        let waiting = waiter(scope, || two.acquire("x", TTL).unwrap());
        eventually("it waits", || cluster.at("x").queued("x") == 1);
        assert_eq!(cluster.at("{x}").queued("{x}"), 0);
        let [first, second] = held;
        first.release().unwrap();
        waiting.join().unwrap().release().unwrap();
        second.release().unwrap();
    });
}

#[test]
fn a_name_whose_other_keys_are_in_another_slot_has_no_fencing_tokens() {
    let cluster = Cluster::masters(3);
    let redlock = cluster.client();
    let fair = cluster.client_with(options().node_timeout(5 * S).fair(true));
    let kinds = [
        redlock.semaphore("a}b", 3).unwrap(),
        redlock.read_lock("a}b").unwrap(),
        redlock.write_lock("a}b").unwrap(),
        redlock.several(["a}b"]).unwrap(),
    ];
    // Each is released behind its question.
    let refused = |lock: Lock| config(lock.fencing_token());
    let mut texts: Vec<String> = Vec::new();
    for redlock in [&redlock, &fair] {
        texts.push(refused(redlock.acquire("a}b", TTL).unwrap()));
    }
    for kind in &kinds {
        texts.push(refused(kind.acquire(TTL).unwrap()));
    }
    let kept = take(&redlock, "a}b").keep_alive(TTL).unwrap();
    texts.push(config(kept.fencing_token()));
    kept.release().unwrap();
    let entered = redlock.reentrant().acquire("a}b", TTL).unwrap();
    texts.push(config(entered.fencing_token()));
    entered.release().unwrap();
    for text in texts {
        assert!(text.contains("\"a}b\" has no fencing tokens"), "{text}");
    }
    let lock = take(&redlock, "a{b}c");
    assert!(lock.fencing_token().unwrap() > 0);
}

#[test]
fn work_whose_mark_is_in_another_slot_is_refused_before_it_is_done() {
    let cluster = Cluster::masters(3);
    let redlock = cluster.client();
    let hour = Duration::from_secs(3600);
    let once = redlock.once_per("a}b", TTL, hour, |_| -> Result<(), Error> {
        panic!("it is done")
    });
    let lock = take(&redlock, "a}b");
    let marked = lock.mark_done(hour, S);
    for text in [
        config(once),
        config(marked),
        config(redlock.last_run("a}b")),
    ] {
        assert!(text.contains("\"a}b\" cannot be marked as done"), "{text}");
    }
    lock.release().unwrap();
    let done = redlock.once_per("a{b}c", TTL, hour, |_| Ok::<_, Error>(7));
    assert_eq!(done.unwrap(), Some(7));
    assert!(redlock.last_run("a{b}c").unwrap().is_some());
}

/// A query gives up a server whose credentials do not come, and that server alone.
#[test]
fn a_master_without_credentials_keeps_no_question_from_the_others() {
    let cluster = Cluster::with(Plan {
        masters: 3,
        password: Some("secret"),
        over_tls: over_tls(),
        ..Plan::default()
    });
    let gate = Arc::new(Mutex::new(()));
    let (waits, silent) = (gate.clone(), format!(":{}", cluster.nodes[0].port()));
    let options = options().credentials(move |server| {
        if server.ends_with(&silent) {
            drop(waits.lock().unwrap());
        }
        Ok::<_, String>(Credentials::new("secret"))
    });
    let redlock = cluster.client_with(options);
    let [first, second] = [cluster.name(0), cluster.name(1)];
    let text = |name: &str| format!("{:?}", redlock.inspect(name).unwrap().state());
    // So that the map is known.
    assert_eq!(text(&first), "Free");
    let closed = gate.lock().unwrap();
    assert_ne!(text(&first), "Free");
    for _ in 0..3 {
        let failed = format!("{:?}", redlock.inspect(&first).unwrap());
        assert!(failed.contains("has not ended"), "{failed}");
        eventually("the second master answers", || text(&second) == "Free");
    }
    drop(closed);
    eventually("the first one answers", || text(&first) == "Free");
}

#[test]
fn a_prefix_has_its_locks_in_all_shards() {
    let cluster = Cluster::masters(3);
    let plain = cluster.client();
    let prefixed = cluster.client_with(options().node_timeout(5 * S).prefix("app:"));
    for number in 0..20 {
        let name = format!("{number}");
        let lock = take(&prefixed, &name);
        let key = format!("app:{name}");
        assert_eq!(cluster.nodes_with(&key), [cluster.master_of(&key)]);
        assert!(plain.try_acquire(&key, TTL).unwrap().is_none());
        lock.release().unwrap();
    }
    cluster.nothing_is_left();
}

// ---- seeds

#[test]
fn of_the_seeds_one_is_enough() {
    let mut cluster = Cluster::start();
    // A replica.
    let redlock = unguarded(&cluster.url_for("", [4]));
    for name in three(&cluster) {
        take(&redlock, &name).release().unwrap();
    }
    // Two do not answer, and one does at once.
    cluster.nodes[3].kill();
    cluster.nodes[5].stop();
    let redlock = unguarded(&cluster.url_for("", [3, 5, 0]));
    for name in three(&cluster) {
        redlock.acquire(&name, TTL).unwrap().release().unwrap();
    }
    cluster.nodes[5].resume();
}

#[test]
fn where_no_seed_answers_the_error_names_them_in_time() {
    let mut cluster = Cluster::masters(3);
    let url = cluster.url();
    let connect = 2 * S;
    let quick = options()
        .connect_timeout(connect)
        .restart_guard(Duration::ZERO);
    let unreachable = || Redlock::new(&*url).unwrap().with_options(quick.clone());
    cluster.nodes.iter().for_each(Server::stop);
    let began = Instant::now();
    let errors = unavailable(unreachable().unwrap().try_acquire("a", TTL));
    let took = began.elapsed();
    let text = errors.to_string();
    assert!(!errors.is_permanent(), "{text}");
    assert!(took < 2 * connect + 2 * NODE_TIMEOUT, "{took:?}");
    assert!(
        text.contains(&format!("127.0.0.1:{}", cluster.nodes[0].port())),
        "{text}"
    );
    cluster.nodes.iter_mut().for_each(Server::kill);
    let redlock = unreachable().unwrap();
    let began = Instant::now();
    for errors in [
        unavailable(redlock.try_acquire("a", TTL)),
        unavailable(redlock.acquire_within("a", TTL, S)),
        unavailable(redlock.connect().map(drop)),
    ] {
        let text = errors.to_string();
        assert!(!errors.is_permanent(), "{text}");
        assert!(text.contains("refused"), "{text}");
    }
    assert!(began.elapsed() < 3 * connect + 4 * NODE_TIMEOUT);
}

/// The map is known, so the seeds are of no further use.
#[test]
fn a_client_that_has_the_map_does_without_its_seeds() {
    let mut cluster = Cluster::start();
    let redlock = unguarded(&cluster.url_for("", [3]));
    for name in three(&cluster) {
        take(&redlock, &name).release().unwrap();
    }
    cluster.nodes[3].kill();
    let began = Instant::now();
    while began.elapsed() < 4 * S {
        for name in three(&cluster) {
            redlock.acquire(&name, TTL).unwrap().release().unwrap();
        }
    }
    // And finds what has moved.
    let name = cluster.name(0);
    cluster.move_slot(&name, 1);
    take(&redlock, &name).release().unwrap();
}

/// A shard without a master, and with it all of them by default.
#[test]
fn a_slot_that_is_not_served_is_unavailable_until_it_is() {
    let cluster = Cluster::masters(3);
    let quick = options().connect_timeout(2 * S);
    let redlock = cluster.client_with(quick);
    let name = cluster.name(0);
    redlock.acquire(&name, TTL).unwrap().release().unwrap();
    let number = slot(&name).to_string();
    for node in &cluster.nodes {
        node.command(&["CLUSTER", "DELSLOTS", &number]);
    }
    let began = Instant::now();
    let errors = unavailable(redlock.acquire_within(&name, TTL, S));
    assert!(!errors.is_permanent(), "{errors}");
    assert!(began.elapsed() < 10 * S, "{:?}", began.elapsed());
    cluster.nodes[0].command(&["CLUSTER", "ADDSLOTS", &number]);
    cluster.agree();
    redlock.acquire(&name, TTL).unwrap().release().unwrap();
    redlock
        .acquire(cluster.name(1), TTL)
        .unwrap()
        .release()
        .unwrap();
}

// ---- what is seen of it

#[test]
fn locks_in_all_shards_are_inspected_listed_and_broken() {
    let cluster = Cluster::masters(3);
    let [redlock, operator] = [cluster.client(), cluster.client()];
    let names = three(&cluster);
    let locks: Vec<Lock> = names.iter().map(|name| take(&redlock, name)).collect();
    for (master, name) in names.iter().enumerate() {
        let inspection = operator.inspect(name).unwrap();
        assert_eq!(inspection.state().holders().count(), 1);
        let (_, address, _) = inspection.nodes().next().unwrap();
        let port = cluster.nodes[master].port();
        assert!(address.ends_with(&format!("127.0.0.1:{port}")), "{address}");
    }
    let listing = operator.list(None).unwrap();
    assert!(listing.has_majority());
    let listed: BTreeSet<&[u8]> = listing.locks().map(|lock| lock.name()).collect();
    let expected: BTreeSet<&[u8]> = names.iter().map(String::as_bytes).collect();
    assert_eq!(listed, expected);
    assert_eq!(listing.locks().count(), 3);
    let one = operator.list(Some(&names[1])).unwrap();
    assert_eq!(one.locks().count(), 1);
    for name in &names {
        let state = operator.inspect(name).unwrap().state();
        let (holder, _) = state.holders().next().unwrap();
        assert!(operator.break_lock(name, holder).unwrap());
        assert!(!held(&operator, name));
    }
    cluster.nothing_is_left();
    for lock in locks {
        assert!(matches!(lock.release(), Err(Error::Lost(_))));
    }
}

/// Those of these severities: all are on one machine and were just started.
fn found(redlock: &Redlock, least: Severity) -> Vec<(&'static str, String)> {
    let report = redlock.check("probe").unwrap();
    let worse = report
        .findings()
        .filter(|finding| match finding.severity() {
            Severity::Fault => true,
            Severity::Warning => least == Severity::Warning,
            _ => false,
        });
    let brief = worse.map(|finding| (finding.code(), finding.to_string()));
    brief.filter(|(code, _)| *code != "latency").collect()
}

#[test]
fn a_check_of_a_good_cluster_finds_no_fault() {
    let cluster = Cluster::start();
    let redlock = cluster.client();
    assert_eq!(found(&redlock, Severity::Fault), []);
    assert!(redlock.check("probe").unwrap().is_fit());
    cluster.nothing_is_left();
}

#[test]
fn a_check_of_a_cluster_finds_what_is_wrong_with_one_master() {
    let cluster = Cluster::start();
    let redlock = cluster.client_with(options().connect_timeout(2 * S));
    let port = cluster.nodes[1].port().to_string();
    // Whatever shard the probe is in.
    cluster.nodes[1].command(&["CONFIG", "SET", "maxmemory", "100mb"]);
    cluster.nodes[1].command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let findings = found(&redlock, Severity::Warning);
    let eviction = findings.iter().find(|(code, _)| *code == "eviction");
    let (_, text) = eviction.unwrap_or_else(|| panic!("{findings:?}"));
    assert!(text.contains(&port), "{text}");
}

#[test]
fn a_check_finds_slots_without_a_master() {
    let cluster = Cluster::masters(3);
    let redlock = cluster.client_with(options().connect_timeout(2 * S));
    let number = slot(&cluster.name(2)).to_string();
    for node in &cluster.nodes {
        node.command(&["CLUSTER", "DELSLOTS", &number]);
    }
    let report = redlock.check("probe").unwrap();
    assert!(!report.is_fit(), "{report}");
    // Where the others are served, locks can be taken there.
    for node in &cluster.nodes {
        node.command(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    // Each master finds that itself.
    let mut others = cluster
        .names(2)
        .filter(|name| slot(name).to_string() != number);
    let served = [cluster.name(0), cluster.name(1), others.next().unwrap()];
    eventually("the others are served", || {
        let mut tries = served.iter().map(|name| redlock.try_acquire(name, TTL));
        tries.all(|lock| lock.is_ok())
    });
    let findings = found(&redlock, Severity::Warning);
    let about = findings.iter().filter(|(code, _)| *code == "cluster");
    assert_eq!(about.count(), 1, "{findings:?}");
    let report = redlock.check("probe").unwrap();
    assert!(report.is_fit(), "{report}");
}

#[test]
fn a_check_of_a_cluster_finds_settings_with_which_a_failover_costs_more() {
    let cluster = Cluster::start();
    let redlock = cluster.client();
    let notes = || {
        let report = redlock.check("probe").unwrap();
        let about = report.findings().filter(|one| one.code() == "cluster");
        let texts = about.map(|one| format!("{}: {one}", one.severity()));
        texts.collect::<Vec<String>>()
    };
    let set = |name: &str, value: &str| {
        for node in &cluster.nodes {
            node.command(&["CONFIG", "SET", name, value]);
        }
    };
    assert_eq!(notes().len(), 1, "{:?}", notes());
    assert!(notes()[0].contains("cluster-require-full-coverage is yes"));
    set("cluster-require-full-coverage", "no");
    assert_eq!(notes(), [""; 0]);
    set("cluster-node-timeout", "15000");
    assert_eq!(notes().len(), 1, "{:?}", notes());
    assert!(notes()[0].contains("cluster-node-timeout is 15 s"));
}

#[test]
fn connect_finds_a_master_that_does_not_answer() {
    let cluster = Cluster::masters(3);
    let redlock = cluster.client_with(options().connect_timeout(2 * S));
    assert!(redlock.connect().unwrap().is_none());
    cluster.nodes[1].stop();
    let fresh = cluster.client_with(options().connect_timeout(2 * S));
    for redlock in [&redlock, &fresh] {
        let errors = unavailable(redlock.connect().map(drop));
        assert!(!errors.is_permanent(), "{errors}");
    }
    cluster.nodes[1].resume();
    eventually("it answers", || redlock.connect().is_ok());
}

/// As an operator sees each of them.
#[test]
fn a_node_is_shown_with_its_seeds_and_without_its_password() {
    let cluster = Cluster::with(Plan {
        masters: 1,
        password: Some("hunter2"),
        over_tls: over_tls(),
        ..Plan::default()
    });
    let redlock = cluster.client();
    take(&redlock, "a").release().unwrap();
    let shown = format!("{redlock:?}");
    let port = cluster.nodes[0].port();
    assert!(shown.contains(&format!("127.0.0.1:{port}")), "{shown}");
    assert!(!shown.contains("hunter2"), "{shown}");
}

// ---- wrong URLs and passwords

#[test]
fn a_wrong_password_is_refused_for_good() {
    let cluster = Cluster::with(Plan {
        masters: 3,
        password: Some("hunter2"),
        over_tls: over_tls(),
        ..Plan::default()
    });
    let redlock = unguarded(&cluster.url());
    for name in three(&cluster) {
        take(&redlock, &name).release().unwrap();
    }
    let name = cluster.name(0);
    cluster.move_slot(&name, 1);
    take(&redlock, &name).release().unwrap();
    for (login, expected) in [
        (":hunter3@", "WRONGPASS"),
        ("", "NOAUTH"),
        ("u:hunter2@", "WRONGPASS"),
    ] {
        let redlock = unguarded(&cluster.url_for(login, 0..3));
        let began = Instant::now();
        let errors = unavailable(redlock.acquire("a", TTL));
        assert!(errors.is_permanent(), "{errors}");
        assert!(began.elapsed() < PROMPT, "{:?}", began.elapsed());
        let text = errors.to_string();
        assert!(
            text.contains(expected) && !text.contains("hunter"),
            "{text}"
        );
    }
}

#[test]
fn a_user_has_the_rights_that_locks_need() {
    let cluster = Cluster::masters(3);
    let rights = "ACL SETUSER u on >secret ~* &redlock* -@all +set +get +del +pttl +pexpire +eval +evalsha \
        +script|load +time +cluster|shards +cluster|slots +cluster|myid +asking +info +ping +subscribe +unsubscribe +ssubscribe \
        +sunsubscribe +publish +spublish";
    for node in &cluster.nodes {
        let words: Vec<&str> = rights.split_whitespace().collect();
        node.command(&words);
    }
    let redlock = unguarded(&cluster.url_for("u:secret@", 0..3));
    for name in three(&cluster) {
        let mut lock = take(&redlock, &name);
        lock.extend(TTL).unwrap();
        lock.release().unwrap();
    }
    let name = cluster.name(0);
    cluster.move_slot(&name, 1);
    take(&redlock, &name).release().unwrap();
    cluster.nothing_is_left();
}

#[test]
fn a_plain_server_is_no_cluster() {
    let server = Server::start();
    let url = server.url().replace("://", "+cluster://");
    let errors = unavailable(unguarded(&url).acquire("a", TTL));
    assert!(errors.is_permanent(), "{errors}");
    let text = errors.to_string();
    assert!(text.contains("redis://"), "{text}");
    let report = unguarded(&url).check("probe").unwrap();
    assert!(
        !report.is_fit() && report.to_string().contains("redis://"),
        "{report}"
    );
}

#[test]
fn the_error_at_a_plain_url_of_a_cluster_shows_the_right_url() {
    let cluster = Cluster::masters(2);
    let redlock = unguarded(&cluster.nodes[0].url());
    let elsewhere = cluster.name(1);
    let errors = unavailable(redlock.acquire(&elsewhere, TTL));
    assert!(errors.is_permanent(), "{errors}");
    let text = errors.to_string();
    assert!(text.contains("redis+cluster://"), "{text}");
    let report = redlock.check(&elsewhere).unwrap();
    assert!(!report.is_fit(), "{report}");
    assert!(report.to_string().contains("redis+cluster://"), "{report}");
}

#[test]
fn the_same_cluster_twice_is_refused() {
    let cluster = Cluster::masters(2);
    let twice = [cluster.url_for("", [0]), cluster.url_for("", [1])];
    let redlock = Redlock::new(twice).unwrap();
    let options = options().node_timeout(5 * S).restart_guard(Duration::ZERO);
    let redlock = redlock.with_options(options).unwrap();
    config(redlock.connect().map(drop));
    config(redlock.try_acquire("a", TTL));
    let same = [cluster.url_for("", [0, 1]), cluster.url_for("", [1, 0])];
    config(Redlock::new(same));
}

// ---- others

#[test]
fn three_clusters_are_three_nodes() {
    let mut clusters = [(); 3].map(|()| Cluster::masters(1));
    let redlock = Redlock::new(clusters.iter().map(Cluster::url)).unwrap();
    let options = options().node_timeout(5 * S).restart_guard(Duration::ZERO);
    let redlock = redlock.with_options(options).unwrap();
    assert!(redlock.connect().unwrap().is_none());
    let names = ["a", "b", "{tag}:x"];
    for name in names {
        eventually("all grant it", || {
            let lock = take(&redlock, name);
            let all = clusters.iter().all(|cluster| cluster.nodes[0].exists(name));
            lock.release().unwrap();
            all
        });
    }
    let inspection = redlock.inspect("a").unwrap();
    assert_eq!(inspection.nodes().count(), 3);
    assert!(
        inspection
            .nodes()
            .all(|(_, _, state)| matches!(state, NodeState::Free))
    );
    clusters[1].nodes[0].kill();
    for name in names {
        let mut lock = redlock.acquire(name, TTL).unwrap();
        lock.extend(TTL).unwrap();
        lock.release().unwrap();
    }
    clusters[2].nodes[0].kill();
    unavailable(redlock.acquire_within("a", TTL, Duration::ZERO));
    clusters[1].nodes[0].restart();
    eventually("two are enough", || redlock.try_acquire("a", TTL).is_ok());
}

/// Their shards need not be alike.
#[test]
fn clusters_and_servers_are_nodes_side_by_side() {
    let clusters = [Cluster::masters(3), Cluster::masters(2)];
    let server = Server::start();
    let nodes = [clusters[0].url(), server.url(), clusters[1].url()];
    let make = || {
        let options = options().node_timeout(5 * S).restart_guard(Duration::ZERO);
        Redlock::new(nodes.clone())
            .unwrap()
            .with_options(options)
            .unwrap()
    };
    let [one, two] = [make(), make()];
    for number in 0..30 {
        let name = format!("name:{number}");
        let lock = take(&one, &name);
        assert!(two.try_acquire(&name, TTL).unwrap().is_none());
        assert!(lock.fencing_token().unwrap() > 0);
        lock.release().unwrap();
        take(&two, &name).release().unwrap();
    }
    let name = clusters[0].name(0);
    clusters[0].move_slot(&name, 2);
    clusters[0].move_slot(&name, 1);
    take(&one, &name).release().unwrap();
}

#[cfg(feature = "tls")]
#[test]
fn nodes_of_a_cluster_are_reached_over_tls() {
    let cluster = Cluster::with(Plan {
        masters: 3,
        replicas: true,
        over_tls: true,
        password: Some("hunter2"),
        ..Plan::default()
    });
    let redlock = cluster.client();
    for name in three(&cluster) {
        take(&redlock, &name).release().unwrap();
    }
    let name = cluster.name(0);
    let mut lock = take(&redlock, &name);
    cluster.move_slot(&name, 1);
    lock.extend(TTL).unwrap();
    lock.release().unwrap();
    cluster.fail_over(5);
    let name = cluster.name(2);
    redlock.acquire(&name, TTL).unwrap().release().unwrap();
    let [holder, other] = two(&cluster);
    is_woken(&cluster, &cluster.name(1), &holder, &other);
    cluster.nothing_is_left();
}

/// Servers may be told to be known by a name, or by no address at all: then it is that of the server that was asked.
#[test]
fn nodes_are_found_by_what_they_announce() {
    for args in [
        &[
            "--cluster-announce-hostname",
            "localhost",
            "--cluster-preferred-endpoint-type",
            "hostname",
        ][..],
        &["--cluster-preferred-endpoint-type", "unknown-endpoint"],
        // Without a name to be known by.
        &["--cluster-preferred-endpoint-type", "hostname"],
    ] {
        let cluster = Cluster::with(Plan {
            masters: 3,
            args,
            ..Plan::default()
        });
        if args.contains(&"localhost") {
            cluster.knows_all_hostnames();
        }
        let redlock = cluster.client_with(options().node_timeout(5 * S).wait(10 * S));
        for name in three(&cluster) {
            match redlock.try_acquire(&name, TTL) {
                Ok(lock) => lock.unwrap().release().unwrap(),
                Err(error) => panic!("{args:?}: {error}"),
            }
        }
        let name = cluster.name(0);
        cluster.move_slot(&name, 1);
        // Where no server names the new one, the map is asked for first.
        redlock.acquire(&name, TTL).unwrap().release().unwrap();
        let moving = cluster.begin_to_move(&name, 2);
        if args == ["--cluster-preferred-endpoint-type", "hostname"] {
            // No server names the one that gets the slot.
            let errors = unavailable(redlock.try_acquire(&name, TTL)).to_string();
            assert!(errors.contains("ASK"), "{errors}");
            moving.end();
            redlock.acquire(&name, TTL).unwrap().release().unwrap();
            cluster.nothing_is_left();
            continue;
        }
        let lock = take(&redlock, &name);
        assert_eq!(cluster.nodes_with(&name), [2], "{args:?}");
        moving.end();
        lock.release().unwrap();
        cluster.nothing_is_left();
    }
}

#[test]
fn a_user_who_may_not_ask_for_the_map_is_refused_for_good() {
    let cluster = Cluster::masters(3);
    for node in &cluster.nodes {
        let user = "ACL SETUSER u on >secret ~* &* +@all -cluster";
        node.command(&user.split(' ').collect::<Vec<_>>());
    }
    let redlock = unguarded(&cluster.url_for("u:secret@", 0..3));
    let began = Instant::now();
    let errors = unavailable(redlock.acquire("a", TTL));
    let text = errors.to_string();
    assert!(errors.is_permanent() && text.contains("NOPERM"), "{text}");
    assert!(!text.contains("secret"), "{text}");
    assert!(began.elapsed() < PROMPT, "{:?}", began.elapsed());
}

/// Two masters that each take the other one for the slot's.
#[test]
fn a_slot_that_each_master_gives_to_the_other_costs_no_more_than_the_time_of_an_attempt() {
    let cluster = Cluster::masters(3);
    let redlock = cluster.client_with(options().connect_timeout(2 * S));
    let name = cluster.name(0);
    redlock.acquire(&name, TTL).unwrap().release().unwrap();
    cluster.gives_away(&name, 0, 1);
    let began = Instant::now();
    let errors = unavailable(redlock.try_acquire(&name, TTL));
    assert!(!errors.is_permanent(), "{errors}");
    assert!(began.elapsed() < 3 * S, "{:?}", began.elapsed());
    cluster.gives_away(&name, 1, 1);
    redlock.acquire(&name, TTL).unwrap().release().unwrap();
    cluster.nothing_is_left();
}

#[test]
fn an_observer_learns_which_server_of_a_cluster_is_away() {
    let mut cluster = Cluster::masters(3);
    let told = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let tell = told.clone();
    let quick = options().connect_timeout(2 * S);
    let redlock = cluster.client_with(quick).with_observer(move |event| {
        let what = match event {
            Event::NodeAway { error, .. } => ("away", error.node(), error.address().to_owned()),
            Event::NodeBack { node, address, .. } => ("back", *node, (*address).to_owned()),
            _ => return,
        };
        tell.lock().unwrap().push(what);
    });
    for name in three(&cluster) {
        redlock.acquire(&name, TTL).unwrap().release().unwrap();
    }
    cluster.nodes[1].kill();
    let name = cluster.name(1);
    unavailable(redlock.acquire_within(&name, TTL, S));
    let port = format!("127.0.0.1:{}", cluster.nodes[1].port());
    let has = |what: &str| {
        let told = told.lock().unwrap();
        let mut told = told.iter();
        told.any(|(word, node, address)| (*word, *node) == (what, 0) && address.ends_with(&port))
    };
    eventually("it is told", || has("away"));
    cluster.nodes[1].restart();
    drop(redlock.acquire_within(&name, TTL, TTL).unwrap());
    eventually("it is told", || has("back"));
}

/// Nothing is said of the locks of a shard that does not answer.
#[test]
fn a_list_of_a_cluster_is_incomplete_without_a_master() {
    let mut cluster = Cluster::masters(3);
    let redlock = cluster.client_with(options().connect_timeout(2 * S));
    let lock = take(&redlock, &cluster.name(0));
    assert!(redlock.list(None).unwrap().has_majority());
    cluster.nodes[1].kill();
    match redlock.list(None) {
        Ok(listing) => assert!(!listing.has_majority() && listing.failed().count() == 1),
        Err(error) => assert!(matches!(error, Error::Unavailable(_)), "{error}"),
    }
    drop(lock);
}

/// A promotion may lose locks, so there is a guard unless it is switched off.
#[test]
fn a_cluster_that_was_just_started_gives_no_votes_by_default() {
    let cluster = Cluster::masters(3);
    let redlock = Redlock::new(cluster.url()).unwrap();
    let redlock = redlock.with_options(options().node_timeout(5 * S)).unwrap();
    for name in three(&cluster) {
        let errors = unavailable(redlock.try_acquire(&name, TTL));
        let wait = errors.retry_after().unwrap();
        assert!(!wait.is_zero() && wait <= 36 * S, "{wait:?}");
    }
}

/// Each shard has a witness of its own.
#[test]
#[ignore = "takes half a minute"]
fn a_cluster_lives_on_when_it_was_up_for_long_enough() {
    let cluster = Cluster::masters(3);
    let guarded = || {
        let options = options().node_timeout(5 * S).restart_guard(3 * S);
        Redlock::new(cluster.url())
            .unwrap()
            .with_options(options)
            .unwrap()
    };
    let redlock = guarded();
    for name in three(&cluster) {
        let lock = redlock.acquire(&name, 2 * S).unwrap();
        lock.release().unwrap();
    }
    // The witnesses tell the next one.
    let next = guarded();
    for name in three(&cluster) {
        next.try_acquire(&name, 2 * S)
            .unwrap()
            .unwrap()
            .release()
            .unwrap();
    }
    // Also when its slot has gone elsewhere.
    let name = cluster.name(0);
    cluster.move_slot(
        "redlock:witness:{0}",
        (cluster.master_of("redlock:witness:{0}") + 1) % 3,
    );
    cluster.move_slot(&name, 1);
    for redlock in [&redlock, &next] {
        redlock
            .try_acquire(&name, 2 * S)
            .unwrap()
            .unwrap()
            .release()
            .unwrap();
    }
}
