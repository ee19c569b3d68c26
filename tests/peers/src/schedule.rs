//! The schedule of faults: scenarios, each the same for every contender.

use std::time::Duration;

use crate::ensemble::System;
use crate::history::Event;
use crate::stage::{Contender, FORGETFUL, FULL, OTHER, Setting, Stage, WELL};

/// Longer than any scenario, so that keys which are left are found.
const LONG: u64 = 20_000;

pub struct Scenario {
    pub name: &'static str,
    /// What is done, for the table.
    pub what: &'static str,
    /// Makes sense with one node, too.
    pub one: bool,
    run: fn(&mut Stage),
}

const fn scenario(name: &'static str, what: &'static str, run: fn(&mut Stage)) -> Scenario {
    Scenario {
        name,
        what,
        one: true,
        run,
    }
}

const fn several(scenario: Scenario) -> Scenario {
    Scenario {
        one: false,
        ..scenario
    }
}

pub const ALL: [Scenario; 27] = [
    scenario("contention", "three clients take turns for 3 s", contention),
    several(scenario(
        "one-killed",
        "one node of five is killed; five locks; it is restarted empty",
        one_killed,
    )),
    several(scenario(
        "one-stopped",
        "one node of five is stopped (SIGSTOP); five locks; it goes on",
        one_stopped,
    )),
    several(scenario(
        "one-partitioned",
        "one node of five is cut off without a word; five locks; it is back",
        one_partitioned,
    )),
    scenario(
        "majority-killed",
        "a majority is killed; one lock; it is restarted empty; one lock",
        majority_killed,
    ),
    scenario(
        "majority-stopped",
        "a majority is stopped; one lock; it goes on; one lock",
        majority_stopped,
    ),
    scenario(
        "slow",
        "all answers take 400 ms; locks with a ttl of 1 s and of 300 ms; well again; another client",
        slow,
    ),
    scenario(
        "restarted-with-data",
        "a majority is restarted with its data while a lock is held; another client; extend; release",
        restarted_with_data,
    ),
    scenario(
        "restarted-empty",
        "a majority is restarted without its data while a lock is held; another client",
        restarted_empty,
    ),
    several(scenario(
        "one-restarted-empty",
        "one node is partitioned, a lock is taken, another node is restarted empty, all are back; another client",
        one_restarted_empty,
    )),
    scenario(
        "flushed",
        "FLUSHALL on a majority while a lock is held; the holder extends; another client",
        flushed,
    ),
    scenario(
        "failover",
        "one node fails over to a replica that has not heard of the lock; another client",
        failover,
    ),
    scenario(
        "stopped-before-check",
        "the holder is stopped until its lock is over, asks before it writes, and releases; a third client",
        stopped_before_check,
    ),
    scenario(
        "stopped-after-check",
        "the holder has asked, and is stopped between that and its write",
        stopped_after_check,
    ),
    scenario(
        "clock-back",
        "the holder's wall clock is set back by a minute; its lock ends; another client; extend",
        clock_back,
    ),
    scenario(
        "clock-forward",
        "the holder's wall clock is set forward by a minute; it asks; extend; release",
        clock_forward,
    ),
    scenario(
        "failed-extension",
        "an extension whose answers a majority withholds for 3 s; another client",
        failed_extension,
    ),
    scenario(
        "holder-killed",
        "the holder is killed (kill -9); another client waits for the end of a ttl of 1.5 s",
        holder_killed,
    ),
    scenario(
        "pairs",
        "one client takes and releases for 3 s, 100 times at most",
        pairs,
    ),
    several(scenario(
        "leader-killed",
        "the server that leads (of equal ones, one) is killed; another client asks for a free lock until it has it",
        leader_killed,
    )),
    scenario(
        "rolling-restarts",
        "all servers, one after the other, are killed and restarted with their data while a lock is held; another client",
        rolling_restarts,
    ),
    scenario(
        "server-clock-forward",
        "the clocks of a majority of the servers are set forward by a minute while a lock is held; another client",
        server_clock_forward,
    ),
    scenario(
        "server-clock-forward-in-use",
        "the same, but the other client has used the servers before, too",
        server_clock_forward_in_use,
    ),
    scenario(
        "server-clock-back",
        "the clocks of a majority of the servers are set back by a minute while a lock is held; it ends; another client",
        server_clock_back,
    ),
    scenario(
        "disk-full",
        "the disks of a majority are full while a lock is held; others; room is made; another client",
        disk_full,
    ),
    scenario(
        "fsync-fails",
        "fsync fails on a majority while a lock is held; others; it is well again; another client",
        fsync_fails,
    ),
    several(scenario(
        "other-version",
        "one server is another program (Redis 8 or Valkey); locks, an extension; the others are killed down to a majority",
        other_version,
    )),
];

/// What is done to servers of Redis alone.
const REDIS_ALONE: [&str; 3] = ["flushed", "failover", "other-version"];
const KEPT: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

/// The directory of a `redis-server` of another version, from the environment.
fn other_server() -> Option<std::path::PathBuf> {
    std::env::var_os("PEERS_OTHER_SERVER").map(Into::into)
}

/// The history of one scenario, or none if it needs more nodes.
pub fn play(scenario: &Scenario, contender: &Contender) -> Option<Vec<Event>> {
    let only = contender.only;
    let is_redis = contender.system == System::Redis;
    if contender.nodes == 1 && !scenario.one
        || !only.is_empty() && !only.contains(&scenario.name)
        || !is_redis && REDIS_ALONE.contains(&scenario.name)
    {
        return None;
    }
    let setting = match scenario.name {
        "restarted-with-data" | "rolling-restarts" => Setting {
            args: &KEPT,
            ..Setting::default()
        },
        "server-clock-forward" | "server-clock-forward-in-use" | "server-clock-back" => Setting {
            spoilt: true,
            ..Setting::default()
        },
        "disk-full" | "fsync-fails" => Setting {
            args: &KEPT,
            spoilt: true,
            other: None,
        },
        "other-version" => Setting {
            other: other_server(),
            ..Setting::default()
        },
        _ => Setting::default(),
    };
    let mut stage = Stage::new(contender, scenario.name, &setting);
    (scenario.run)(&mut stage);
    Some(stage.finish())
}

fn contention(s: &mut Stage) {
    const ROUNDS: usize = 12;
    let mut players = [
        ("a", 0, "acquire"),
        ("b", 0, "acquire"),
        ("c", 0, "acquire"),
    ];
    for (who, ..) in players {
        s.start(who);
        s.request(who, "acquire", "alpha", LONG, "");
    }
    let end = s.now() + 3_000_000;
    let last = end + 12_000_000;
    let mut left = players.len();
    while left > 0 && s.now() < last {
        for (who, rounds, asked) in &mut players {
            let Some(answer) = s.poll(who, Duration::from_millis(1)) else {
                continue;
            };
            if matches!(answer.is.as_str(), "died" | "hung") || asked.is_empty() {
                left -= usize::from(!asked.is_empty());
                *asked = "";
                continue;
            }
            let more = s.now() < end && *rounds < ROUNDS;
            *asked = match (*asked, answer.ok()) {
                ("acquire", true) if s.fences(who) => "fence",
                ("fence", false) if s.fences(who) => "release",
                ("acquire", true) | ("fence", _) => {
                    s.only_read(who, "alpha");
                    s.sleep(5);
                    "write"
                }
                ("write", _) => "release",
                (_, _) if more => "acquire",
                _ => "",
            };
            *rounds += usize::from(*asked == "release");
            match *asked {
                "" => left -= 1,
                "acquire" => s.request(who, "acquire", "alpha", LONG, ""),
                what => s.request(who, what, "alpha", 0, ""),
            }
        }
    }
}

const NAMES: [&str; 5] = ["alpha", "bravo", "charlie", "delta", "echo"];

/// One lock while all is well, so that connections are up.
fn warm(s: &mut Stage, who: &str) {
    s.start(who);
    s.acquire_free(who, "warm", LONG);
    s.sleep(200);
    s.release(who, "warm");
}

fn five_locks(s: &mut Stage) {
    for name in NAMES {
        if s.acquire_free("a", name, LONG).ok() {
            s.release("a", name);
        }
    }
}

/// Another client's try. If it gets the lock it keeps it for a while, so that holders can be seen side by side.
fn try_and_hold(s: &mut Stage, who: &str, name: &str) {
    if s.acquire(who, name, LONG).ok() {
        s.sleep(300);
        s.release(who, name);
    }
}

fn one_killed(s: &mut Stage) {
    warm(s, "a");
    s.kill(2, "lost");
    five_locks(s);
    s.restart(2);
}

fn one_stopped(s: &mut Stage) {
    warm(s, "a");
    s.stop(2);
    five_locks(s);
    s.resume(2);
}

fn one_partitioned(s: &mut Stage) {
    warm(s, "a");
    s.partition(2);
    five_locks(s);
    s.heal(2);
}

fn majority_killed(s: &mut Stage) {
    warm(s, "a");
    s.start("b");
    let majority = s.majority();
    (0..majority).for_each(|node| s.kill(node, "lost"));
    s.acquire("a", "alpha", LONG);
    (0..majority).for_each(|node| s.restart(node));
    s.settle();
    s.acquire_free("b", "alpha", LONG);
    s.release("b", "alpha");
    s.acquire_free("a", "bravo", LONG);
    s.release("a", "bravo");
}

fn majority_stopped(s: &mut Stage) {
    warm(s, "a");
    s.start("b");
    let majority = s.majority();
    (0..majority).for_each(|node| s.stop(node));
    s.acquire("a", "alpha", LONG);
    (0..majority).for_each(|node| s.resume(node));
    s.settle();
    s.acquire_free("b", "alpha", LONG);
    s.release("b", "alpha");
    s.acquire_free("a", "bravo", LONG);
    s.release("a", "bravo");
}

fn slow(s: &mut Stage) {
    warm(s, "a");
    s.start("b");
    for (name, ttl) in [("alpha", 1_000), ("bravo", 300)] {
        (0..s.nodes.len()).for_each(|node| s.delay_answers(node, 400));
        let got = s.acquire("a", name, ttl).ok();
        (0..s.nodes.len()).for_each(|node| s.heal(node));
        try_and_hold(s, "b", name);
        if got {
            s.release("a", name);
        }
    }
}

/// The lock is held by `a` as before, and free behind its release.
fn held_until_released(s: &mut Stage) {
    try_and_hold(s, "b", "alpha");
    s.extend("a", "alpha", LONG);
    s.release("a", "alpha");
    s.acquire_free("b", "alpha", LONG);
    s.release("b", "alpha");
}

fn restarted_with_data(s: &mut Stage) {
    warm(s, "a");
    s.start("b");
    s.acquire_free("a", "alpha", LONG);
    for node in 0..s.majority() {
        s.kill(node, "");
        s.restart(node);
    }
    s.settle();
    held_until_released(s);
}

fn restarted_empty(s: &mut Stage) {
    warm(s, "a");
    s.start("b");
    s.acquire_free("a", "alpha", LONG);
    for node in 0..s.majority() {
        s.kill(node, "wiped");
        s.restart(node);
    }
    s.settle();
    try_and_hold(s, "b", "alpha");
    s.release("a", "alpha");
}

fn one_restarted_empty(s: &mut Stage) {
    warm(s, "a");
    s.start("b");
    let majority = s.majority();
    (majority..s.nodes.len()).for_each(|node| s.partition(node));
    s.acquire_free("a", "alpha", LONG);
    s.kill(majority - 1, "wiped");
    s.restart(majority - 1);
    (majority..s.nodes.len()).for_each(|node| s.heal(node));
    s.settle();
    try_and_hold(s, "b", "alpha");
    s.release("a", "alpha");
}

fn flushed(s: &mut Stage) {
    warm(s, "a");
    s.start("b");
    s.acquire_free("a", "alpha", LONG);
    (0..s.majority()).for_each(|node| s.flush(node));
    s.extend("a", "alpha", LONG);
    try_and_hold(s, "b", "alpha");
    s.release("a", "alpha");
}

fn failover(s: &mut Stage) {
    if s.is_tls() {
        return s.skip("replicas without TLS");
    }
    s.add_replica(0);
    warm(s, "a");
    s.start("b");
    s.lag(0);
    s.acquire_free("a", "alpha", LONG);
    s.fail_over(0);
    s.sleep(500);
    try_and_hold(s, "b", "alpha");
    s.release("a", "alpha");
}

/// What the other client does meanwhile. It goes on holding the lock.
fn another_turn(s: &mut Stage) {
    if s.acquire_free("b", "alpha", LONG).ok() {
        s.read("b", "alpha");
        s.write("b", "alpha");
    }
}

/// In milliseconds, of a lock with a ttl of 1.5 s. A lease of etcd is one of whole seconds, which are counted twice a second.
fn longer_than_its_lock(s: &Stage) -> u64 {
    if s.is_redis() { 2_000 } else { 3_500 }
}

fn stopped_before_check(s: &mut Stage) {
    warm(s, "a");
    s.start("b");
    s.acquire_free("a", "alpha", 1_500);
    s.read("a", "alpha");
    s.stop_client("a");
    s.sleep(longer_than_its_lock(s));
    another_turn(s);
    s.resume_client("a");
    if s.believes("a", "alpha") {
        s.write("a", "alpha");
    }
    s.release("a", "alpha");
    s.start("c");
    try_and_hold(s, "c", "alpha");
    s.release("b", "alpha");
}

fn stopped_after_check(s: &mut Stage) {
    warm(s, "a");
    s.start("b");
    s.acquire_free("a", "alpha", 1_500);
    s.read("a", "alpha");
    if s.believes("a", "alpha") {
        s.stop_client("a");
        s.request("a", "write", "alpha", 0, "");
        s.sleep(longer_than_its_lock(s));
        another_turn(s);
        s.resume_client("a");
        s.wait("a");
    }
    s.release("a", "alpha");
    s.release("b", "alpha");
}

fn clock_back(s: &mut Stage) {
    if !s.start_with_clock("a") {
        return s.skip("the clock of this process could not be shifted");
    }
    s.start("b");
    s.acquire_free("a", "alpha", 1_500);
    s.shift("a", -60_000);
    s.sleep(2_000);
    s.acquire_free("b", "alpha", LONG);
    s.believes("a", "alpha");
    s.extend("a", "alpha", LONG);
    s.release("b", "alpha");
    s.release("a", "alpha");
}

fn clock_forward(s: &mut Stage) {
    if !s.start_with_clock("a") {
        return s.skip("the clock of this process could not be shifted");
    }
    s.start("b");
    s.acquire_free("a", "alpha", LONG);
    s.shift("a", 60_000);
    s.believes("a", "alpha");
    s.extend("a", "alpha", LONG);
    try_and_hold(s, "b", "alpha");
    s.release("a", "alpha");
    s.acquire_free("a", "bravo", LONG);
    s.release("a", "bravo");
}

fn failed_extension(s: &mut Stage) {
    warm(s, "a");
    s.start("b");
    s.acquire_free("a", "alpha", LONG);
    let majority = s.majority();
    (0..majority).for_each(|node| s.withhold_answers(node));
    s.request("a", "extend", "alpha", LONG, "");
    let early = s.poll("a", Duration::from_secs(3));
    (0..majority).for_each(|node| s.heal(node));
    if early.is_none() {
        s.wait("a");
    }
    s.sleep(1_000);
    try_and_hold(s, "b", "alpha");
    s.release("a", "alpha");
}

fn holder_killed(s: &mut Stage) {
    warm(s, "a");
    s.start("b");
    s.acquire_free("a", "alpha", 1_500);
    s.kill_client("a");
    // Those that count attempts are asked again, as their users would.
    let patience = s.now() + 4_000_000;
    let mut got = false;
    while !got && s.now() < patience {
        let answer = s.acquire("b", "alpha", LONG);
        got = answer.ok() || matches!(answer.is.as_str(), "died" | "hung");
    }
    if !got {
        s.acquire_free("b", "alpha", LONG);
    }
    s.release("b", "alpha");
}

fn pairs(s: &mut Stage) {
    warm(s, "a");
    let end = s.now() + 3_000_000;
    for _ in 0..100 {
        if s.now() > end || !s.acquire_free("a", "alpha", LONG).ok() {
            return;
        }
        s.release("a", "alpha");
    }
}

/// Those that count attempts are asked again, as their users would.
fn until_granted(s: &mut Stage, who: &str, name: &str) -> bool {
    let patience = s.now() + 12_000_000;
    while s.now() < patience {
        let answer = s.acquire(who, name, LONG);
        if answer.ok() || matches!(answer.is.as_str(), "died" | "hung") {
            return answer.ok();
        }
        s.sleep(5);
    }
    false
}

fn leader_killed(s: &mut Stage) {
    warm(s, "a");
    let leader = s.leader();
    s.kill(leader, "");
    if until_granted(s, "a", "alpha") {
        s.release("a", "alpha");
    }
}

fn rolling_restarts(s: &mut Stage) {
    warm(s, "a");
    s.start("b");
    s.acquire_free("a", "alpha", LONG);
    for node in 0..s.nodes.len() {
        s.revive(node);
        s.settle();
    }
    held_until_released(s);
}

/// Programs that are linked without a C library cannot be spoilt.
fn spoils(s: &mut Stage) -> bool {
    let can = s.can_spoil();
    if !can {
        s.skip("nothing can be preloaded into etcd");
    }
    can
}

fn server_clock_forward(s: &mut Stage) {
    if !spoils(s) {
        return;
    }
    warm(s, "a");
    s.start("b");
    set_forward(s);
}

fn server_clock_forward_in_use(s: &mut Stage) {
    if !spoils(s) {
        return;
    }
    warm(s, "a");
    warm(s, "b");
    set_forward(s);
}

fn set_forward(s: &mut Stage) {
    s.acquire_free("a", "alpha", LONG);
    (0..s.majority()).for_each(|node| s.shift_server(node, 60_000));
    s.settle();
    try_and_hold(s, "b", "alpha");
    s.release("a", "alpha");
}

fn server_clock_back(s: &mut Stage) {
    if !spoils(s) {
        return;
    }
    warm(s, "a");
    s.start("b");
    s.acquire_free("a", "alpha", 1_500);
    (0..s.majority()).for_each(|node| s.shift_server(node, -60_000));
    s.kill_client("a");
    s.sleep(2_500);
    s.acquire_free("b", "alpha", LONG);
    s.release("b", "alpha");
}

fn disk_full(s: &mut Stage) {
    spoilt_disks(s, FULL);
}

fn fsync_fails(s: &mut Stage) {
    spoilt_disks(s, FORGETFUL);
}

/// Servers that end for it are started again.
fn spoilt_disks(s: &mut Stage, fault: u8) {
    if !spoils(s) {
        return;
    }
    warm(s, "a");
    s.start("b");
    s.acquire_free("a", "alpha", LONG);
    let majority = s.majority();
    (0..majority).for_each(|node| s.spoil_disk(node, fault));
    if s.acquire("b", "bravo", LONG).ok() {
        s.release("b", "bravo");
    }
    (0..majority).for_each(|node| s.spoil_disk(node, WELL));
    (0..majority).for_each(|node| s.revive(node));
    s.settle();
    try_and_hold(s, "b", "alpha");
    s.release("a", "alpha");
    s.acquire_free("b", "charlie", LONG);
    s.release("b", "charlie");
}

fn other_version(s: &mut Stage) {
    if other_server().is_none() {
        return s.skip("PEERS_OTHER_SERVER names no directory with another redis-server");
    }
    warm(s, "a");
    s.start("b");
    s.acquire_free("a", "alpha", LONG);
    s.extend("a", "alpha", LONG);
    try_and_hold(s, "b", "alpha");
    s.release("a", "alpha");
    let minority = s.nodes.len() - s.majority();
    (0..s.nodes.len())
        .filter(|node| *node != OTHER)
        .take(minority)
        .for_each(|node| s.kill(node, "lost"));
    five_locks(s);
}
