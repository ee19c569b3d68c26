//! Replicas that are promoted, masters that go on, and servers that are flushed: what they forgot is granted to no other
//! holder, and what happens where that is not asked for.

use crate::support;

use std::time::{Duration, Instant};

use redlock_sync::{LostReason, Redlock};
use support::relay::Relay;
use support::*;

const S: Duration = Duration::from_secs(1);
const MAX_TTL: Duration = Duration::from_secs(2);
/// For how long the master before may go on.
const MARGIN: Duration = Duration::from_secs(5);
/// A server that was promoted or flushed votes after this time at the latest, on a machine that is busy.
const LATEST: Duration = Duration::from_secs(2 + 5 + 3);

/// Two servers of which one replicates the other, and a name that leads to one of them.
struct Group {
    servers: [Server; 2],
    name: Relay,
}

impl Group {
    fn new() -> Group {
        let mut args = vec!["--repl-diskless-sync-delay", "0"];
        if over_tls() {
            args.extend(["--tls-replication", "yes"]);
        }
        let servers = [(); 2].map(|()| Server::with_args(&args));
        let name = Relay::to(servers[0].port());
        let group = Group { servers, name };
        group.replicate(1, 0);
        group
    }

    /// Several, whose masters have been up for so long that they vote.
    fn seasoned(count: usize) -> Vec<Group> {
        let groups: Vec<Group> = (0..count).map(|_| Group::new()).collect();
        eventually("they have been up for long enough", || {
            let uptime = |group: &Group| -> u64 {
                let uptime = group.servers[0].info("server", "uptime_in_seconds");
                uptime.parse().unwrap()
            };
            groups
                .iter()
                .all(|group| uptime(group) > MAX_TTL.as_secs() + 1)
        });
        groups
    }

    fn replicate(&self, replica: usize, of: usize) {
        let port = self.servers[of].port().to_string();
        self.servers[replica].command(&["REPLICAOF", "127.0.0.1", &port]);
        eventually("it replicates", || {
            self.servers[replica].info("replication", "master_link_status") == "up"
        });
    }

    /// What its master is told from now on it does not learn.
    fn cut_off(&self, replica: usize) {
        self.servers[replica].command(&["REPLICAOF", "127.0.0.1", "1"]);
    }

    fn promote(&self, replica: usize) {
        self.servers[replica].command(&["REPLICAOF", "NO", "ONE"]);
        self.name.lead_to(self.servers[replica].port());
    }

    fn client(&self, guard: Option<Duration>) -> Redlock {
        client(&[self], guard)
    }
}

fn client(groups: &[&Group], guard: Option<Duration>) -> Redlock {
    let redlock = Redlock::new(groups.iter().map(|group| group.name.url())).unwrap();
    let options = options().restart_guard(guard.unwrap_or_default());
    redlock.with_options(options).unwrap()
}

/// Whether a new connection finds a witness that is old enough.
fn is_seasoned(server: &Server) -> bool {
    let left = server.command(&["TTL", "redlock:witness"]);
    let left: u64 = redis::from_redis_value(left).unwrap();
    left < 315_360_000 - (MAX_TTL + MARGIN).as_secs() - 1
}

fn with_and_without(run: impl Fn(Option<Duration>) + Sync) {
    std::thread::scope(|scope| {
        scope.spawn(|| run(None));
        scope.spawn(|| run(Some(MAX_TTL)));
    });
}

fn one() -> Group {
    Group::seasoned(1).remove(0)
}

/// Others are granted the lock only without the guard; with it only when it has ended, and within some seconds.
fn is_granted_twice_only_without(
    guard: Option<Duration>,
    others: &[&Redlock],
    held: redlock_sync::Lock,
) {
    let since = Instant::now();
    let results = others.iter().map(|other| other.try_acquire("a", MAX_TTL));
    let results: Vec<_> = results.collect();
    if guard.is_none() {
        let granted = results
            .into_iter()
            .any(|result| matches!(result, Ok(Some(_))));
        assert!(granted && held.is_valid(), "two holders");
        return;
    }
    let mut said = false;
    for result in results {
        // One that is connected may have to find the other server first.
        let wait = unavailable(result).retry_after();
        said |= wait.is_some();
        assert!(
            wait.is_none_or(|wait| wait <= MAX_TTL + MARGIN + S),
            "{wait:?}"
        );
    }
    assert!(said);
    let lock = others[0].acquire("a", MAX_TTL).unwrap();
    assert!(!held.is_valid());
    let took = since.elapsed();
    assert!((MAX_TTL..LATEST).contains(&took), "{took:?}");
    lock.release().unwrap();
}

#[test]
fn a_master_that_dies_makes_two_holders_only_without_the_guard() {
    with_and_without(|guard| {
        let mut group = one();
        let [first, connected] = [0, 1].map(|_| group.client(guard));
        connected.acquire("b", MAX_TTL).unwrap().release().unwrap();
        group.cut_off(1);
        let held = first.try_acquire("a", MAX_TTL).unwrap().unwrap();
        group.servers[0].kill();
        group.promote(1);
        let fresh = group.client(guard);
        is_granted_twice_only_without(guard, &[&fresh, &connected], held);
    });
}

/// Neither has the replica the witness of the master before.
#[test]
fn a_replica_that_never_saw_a_client_makes_two_holders_only_without_the_guard() {
    with_and_without(|guard| {
        let group = one();
        group.cut_off(1);
        let held = group
            .client(guard)
            .try_acquire("a", MAX_TTL)
            .unwrap()
            .unwrap();
        group.promote(1);
        // The master before goes on for a while, and its connections with it.
        let fresh = group.client(guard);
        let result = fresh.try_acquire("a", MAX_TTL);
        if guard.is_none() {
            assert!(result.unwrap().is_some() && held.is_valid(), "two holders");
            return;
        }
        assert!(unavailable(result).retry_after().is_some());
        group.replicate(0, 1);
        is_granted_twice_only_without(guard, &[&fresh], held);
    });
}

/// A client that was idle meanwhile has a connection that is as good as it was, to a server that has lost the lock.
#[test]
fn a_master_that_takes_its_place_again_makes_two_holders_only_without_the_guard() {
    with_and_without(|guard| {
        let group = one();
        let [first, idle] = [0, 1].map(|_| group.client(guard));
        idle.acquire("b", MAX_TTL).unwrap().release().unwrap();
        group.cut_off(1);
        let held = first.try_acquire("a", MAX_TTL).unwrap().unwrap();
        idle.try_acquire("b", MAX_TTL)
            .unwrap()
            .unwrap()
            .release()
            .unwrap();
        let connections = group.name.connections();
        group.promote(1);
        // As fast as it can be: that takes a few milliseconds.
        let port = group.servers[1].port().to_string();
        group.servers[0].command(&["REPLICAOF", "127.0.0.1", &port]);
        while group.servers[0].info("replication", "master_link_status") != "up" {}
        group.promote(0);
        assert!(!group.servers[0].exists("a"));
        assert_eq!(group.name.connections(), connections);
        is_granted_twice_only_without(guard, &[&idle], held);
    });
}

#[test]
fn a_server_that_was_flushed_makes_two_holders_only_without_the_guard() {
    with_and_without(|guard| {
        let group = one();
        let [first, connected, fresh] = [0, 1, 2].map(|_| group.client(guard));
        connected.acquire("b", MAX_TTL).unwrap().release().unwrap();
        let held = first.try_acquire("a", MAX_TTL).unwrap().unwrap();
        group.servers[0].command(&["FLUSHALL"]);
        is_granted_twice_only_without(guard, &[&connected, &fresh], held);
    });
}

/// Each database has a witness, and that of the other one is of the same server.
#[test]
fn databases_that_are_swapped_make_two_holders_only_without_the_guard() {
    with_and_without(|guard| {
        let group = one();
        let [first, connected, fresh] = [0, 1, 2].map(|_| group.client(guard));
        let other = Redlock::new([format!("{}/1", group.name.url())]).unwrap();
        let other = other.with_options(options().restart_guard(guard.unwrap_or_default()));
        other
            .unwrap()
            .acquire("b", MAX_TTL)
            .unwrap()
            .release()
            .unwrap();
        connected.acquire("b", MAX_TTL).unwrap().release().unwrap();
        eventually("both are old enough", || {
            guard.is_none() || is_seasoned(&group.servers[0])
        });
        let held = first.try_acquire("a", MAX_TTL).unwrap().unwrap();
        group.servers[0].command(&["SWAPDB", "0", "1"]);
        is_granted_twice_only_without(guard, &[&connected, &fresh], held);
    });
}

#[test]
fn a_majority_that_fails_over_makes_two_holders_only_without_the_guard() {
    with_and_without(|guard| {
        let groups = Group::seasoned(3);
        let all: Vec<&Group> = groups.iter().collect();
        let first = client(&all, guard);
        first.acquire("b", MAX_TTL).unwrap().release().unwrap();
        groups.iter().for_each(|group| group.cut_off(1));
        let held = first.acquire("a", MAX_TTL).unwrap();
        for group in &groups[..2] {
            group.promote(1);
            group.replicate(0, 1);
        }
        is_granted_twice_only_without(guard, &[&client(&all, guard)], held);
    });
}

#[test]
fn of_three_nodes_one_that_fails_over_delays_nothing() {
    let groups = Group::seasoned(3);
    let all: Vec<&Group> = groups.iter().collect();
    let redlock = client(&all, Some(MAX_TTL));
    redlock.acquire("b", MAX_TTL).unwrap().release().unwrap();
    groups[1].promote(1);
    groups[1].replicate(0, 1);
    let failed_over = Instant::now();
    let grants = || {
        let lock = redlock.try_acquire("a", MAX_TTL).unwrap().unwrap();
        let there = groups[1].servers[1].exists("a");
        lock.release().unwrap();
        there
    };
    while failed_over.elapsed() < MAX_TTL + MARGIN / 2 {
        assert!(!grants());
    }
    eventually("it votes again", grants);
    assert!(failed_over.elapsed() > MAX_TTL + MARGIN - S);
}

/// A server that was never promoted nor flushed is used at once, and a second client need not look twice.
#[test]
fn the_first_use_of_a_server_that_has_lost_nothing_waits_for_nothing() {
    let group = one();
    let master = &group.servers[0];
    // But for the question itself.
    let looks = || master.calls("info");
    let redlock = group.client(Some(MAX_TTL));
    let before = looks();
    let lock = redlock.try_acquire("a", MAX_TTL).unwrap().unwrap();
    // INFO server, INFO replication, INFO stats and INFO commandstats, twice; and the look behind the lock, which a busy
    // machine repeats.
    let twice = 2 * 4 + 2;
    assert!(looks() - before > twice);
    lock.release().unwrap();
    let left: u64 = redis::from_redis_value(master.command(&["TTL", "redlock:witness"])).unwrap();
    assert!(left > 300_000_000, "{left}");
    eventually("the witness is old enough", || is_seasoned(master));
    let (before, sets) = (looks(), master.calls("set"));
    let redlock = group.client(Some(MAX_TTL));
    redlock
        .try_acquire("a", MAX_TTL)
        .unwrap()
        .unwrap()
        .release()
        .unwrap();
    assert!(looks() - before < twice);
    assert_eq!(master.calls("set") - sets, 1);
    assert_eq!(group.servers[0].keys(), [""; 0]);
}

/// Both begin a new history, in which nothing is lost.
#[test]
fn a_master_that_loses_its_last_replica_and_gets_one_again_goes_on() {
    let group = one();
    let redlock = group.client(Some(MAX_TTL));
    drop(redlock.try_acquire("a", MAX_TTL).unwrap().unwrap());
    let history = || group.servers[0].info("replication", "master_replid");
    let first = history();
    group.servers[0].command(&["CONFIG", "SET", "repl-backlog-ttl", "1"]);
    group.cut_off(1);
    eventually("what a replica would continue with is dropped", || {
        history() != first
    });
    // It does not sit out: that would take longer than the locks last.
    drop(redlock.acquire_within("b", MAX_TTL, MAX_TTL).unwrap());
    let second = history();
    group.replicate(1, 0);
    assert_ne!(history(), second);
    drop(redlock.acquire_within("c", MAX_TTL, MAX_TTL).unwrap());
    eventually("all are released", || group.servers[0].keys().is_empty());
}

/// It may be extended before other locks are granted: the key that is there shows that no other holder had it since.
#[test]
#[ignore = "takes half a minute; .ci/nightly runs it"]
fn a_kept_lock_that_was_replicated_lives_on() {
    let ttl = 12 * S;
    let group = Group::new();
    let redlock = group.client(Some(ttl));
    let lock = redlock.acquire("a", ttl).unwrap();
    let lock = lock.keep_alive(100 * S).unwrap();
    let offset = |at: usize| group.servers[at].info("replication", "master_repl_offset");
    eventually("it is replicated", || {
        group.servers[1].exists("a") && offset(0) == offset(1)
    });
    group.promote(1);
    group.replicate(0, 1);
    let failed_over = Instant::now();
    let other = group.client(Some(ttl));
    let mut refused = false;
    while failed_over.elapsed() < ttl + 2 * S {
        assert_eq!(lock.lost(), None);
        match other.try_acquire("b", ttl) {
            Ok(lock) => panic!("{lock:?} after {:?}", failed_over.elapsed()),
            Err(_) => refused = true,
        }
        std::thread::sleep(S / 10);
    }
    assert!(refused && lock.remaining() > S);
    lock.release().unwrap();
    eventually("it is released", || !group.servers[1].exists("a"));
}

/// One that was not is lost at its deadline, or when that is known: only without the guard another holder has it before.
#[test]
fn a_kept_lock_that_was_not_replicated_is_granted_before_it_is_lost_only_without_the_guard() {
    with_and_without(|guard| {
        // Its first renewal would show the loss.
        let ttl = guard.unwrap_or(30 * S);
        let group = one();
        let redlock = group.client(guard);
        redlock.acquire("b", ttl).unwrap().release().unwrap();
        group.cut_off(1);
        let lock = redlock.acquire("a", ttl).unwrap();
        let lock = lock.keep_alive(100 * S).unwrap();
        group.promote(1);
        group.replicate(0, 1);
        let _other = group.client(guard).acquire("a", ttl).unwrap();
        let lost = lock.lost();
        if guard.is_none() {
            return assert!(lost.is_none() && lock.remaining() > S, "two holders");
        }
        assert!(
            matches!(
                lost,
                Some(LostReason::Expired | LostReason::Taken | LostReason::Deleted)
            ),
            "{lost:?}"
        );
    });
}

#[test]
fn a_user_who_may_not_use_the_witness_gets_an_error() {
    let server = Server::start();
    let user = "ACL SETUSER u on >pw ~a ~{a* resetchannels -@all +set +get +del +pttl +pexpire +eval +info";
    server.command(&user.split(' ').collect::<Vec<_>>());
    let redlock = Redlock::new([server.url_for("u", "pw")]).unwrap();
    let redlock = redlock.with_options(options().restart_guard(S)).unwrap();
    let errors = unavailable(redlock.acquire("a", S));
    assert!(errors.is_permanent(), "{errors}");
    let text = errors.to_string();
    assert!(
        text.contains("needs the key redlock:witness") && text.contains("NOPERM"),
        "{text}"
    );
    assert_eq!(server.keys(), [""; 0]);
    let finding = |word: &str| {
        let report = redlock.check("a").unwrap();
        assert!(!report.is_fit(), "{word}: {report}");
        let all: Vec<_> = report.findings().map(ToString::to_string).collect();
        assert!(
            all.iter()
                .any(|one| one.contains(word) && one.contains("~redlock:*")),
            "{report}"
        );
    };
    finding("NOPERM");
    server.command(&["ACL", "SETUSER", "u", "~redlock:*"]);
    drop(redlock.acquire("a", S).unwrap());
    // Reading it does not show that it may be set.
    server.command(&[
        "ACL",
        "SETUSER",
        "u",
        "resetkeys",
        "~a",
        "~{a*",
        "%R~redlock:*",
    ]);
    finding("NOPERM");
    server.command(&["ACL", "SETUSER", "u", "~redlock:*", "-pttl"]);
    finding("pttl");
}

/// What is refused behind an acquire is judged as what a new connection is refused.
#[test]
fn a_user_who_may_no_longer_use_the_witness_gets_an_error_at_once() {
    let server = Server::start();
    for (taken, given, word) in [
        ("resetkeys", "~*", "needs the key redlock:witness"),
        ("-info", "+info", "needs INFO"),
    ] {
        let user = "ACL SETUSER u on >pw ~* &* +@all";
        server.command(&user.split(' ').collect::<Vec<_>>());
        let redlock = Redlock::new([server.url_for("u", "pw")]).unwrap();
        let redlock = redlock.with_options(options().restart_guard(S)).unwrap();
        drop(redlock.acquire("a", S).unwrap());
        let pattern = if word.contains("key") { "~a" } else { "~*" };
        server.command(&["ACL", "SETUSER", "u", taken, pattern]);
        let mut said = String::new();
        eventually("a look is due", || match redlock.try_acquire("a", S) {
            Err(error) => {
                said = error.to_string();
                true
            }
            Ok(_) => false,
        });
        assert!(said.contains(word), "{said}");
        server.command(&["ACL", "SETUSER", "u", given]);
    }
}

/// Another program's data is not overwritten.
#[test]
fn what_is_in_the_place_of_the_witness_is_named() {
    let server = Server::start();
    server.command(&["RPUSH", "redlock:witness", "x"]);
    let redlock = Redlock::new([server.url()]).unwrap();
    let redlock = redlock.with_options(options().restart_guard(S)).unwrap();
    let errors = unavailable(redlock.acquire("a", S));
    let advice = "another program's data is there";
    assert!(
        errors.is_permanent() && errors.to_string().contains(advice),
        "{errors}"
    );
    let report = redlock.check("a").unwrap();
    assert!(report.to_string().contains(advice), "{report}");
    server.command(&["DEL", "redlock:witness"]);
    drop(redlock.acquire("a", S).unwrap());
}

/// It takes more than half of the node_timeout to each answer, so no second round trip is in time.
#[test]
fn no_answer_of_a_far_node_is_too_late_for_want_of_a_look() {
    let server = Server::start();
    let relay = Relay::to(server.port());
    let ttl = 3 * S;
    let options = options().node_timeout(S).restart_guard(ttl);
    let redlock = Redlock::new([relay.url()]).unwrap();
    let redlock = redlock.with_options(options).unwrap();
    redlock.acquire("a", ttl).unwrap().release().unwrap();
    relay.set(|policy| policy.down.delay = 600 * S / 1000);
    let start = std::sync::Barrier::new(4);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (redlock, start) = (&redlock, &start);
            scope.spawn(move || {
                let name = format!("lock {thread}");
                for _ in 0..3 {
                    start.wait();
                    // So that it is written behind what is on its way.
                    std::thread::sleep(thread * S / 1000);
                    let result = redlock.try_acquire(&name, ttl);
                    let lock = result.unwrap().expect("no other holder");
                    lock.release().unwrap();
                }
            });
        }
    });
}
