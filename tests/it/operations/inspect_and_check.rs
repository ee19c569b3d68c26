//! What operators look at: the holder of a lock, and whether the nodes are fit for locks.

use crate::support;

use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

use redlock_sync::{Error, Finding, LockState, NodeState, Redlock, Severity};
use support::*;

const CONNECT: Duration = ms(2000);

// ---- inspect

/// What `GET` and `PTTL` say of it on one server.
fn seen_by_hand(server: &Server, key: &str) -> Option<(Vec<u8>, i64)> {
    let value = server.command(&["GET", key]);
    let left: i64 = redis::from_redis_value(server.command(&["PTTL", key])).unwrap();
    let value: Option<Vec<u8>> = redis::from_redis_value(value).unwrap();
    value.map(|value| (value, left))
}

fn held(state: &LockState) -> (String, Option<Duration>) {
    match state {
        LockState::Held {
            holder, remaining, ..
        } => (holder.to_string(), *remaining),
        other => panic!("expected Held, got {other:?}"),
    }
}

fn state(redlock: &Redlock, resource: &str) -> LockState {
    redlock.inspect(resource).unwrap().state()
}

/// That of the nodes' answers, in order.
fn answers(redlock: &Redlock, resource: &str) -> Vec<&'static str> {
    let inspection = redlock.inspect(resource).unwrap();
    let word = |state: &NodeState| match state {
        NodeState::Held { .. } => "held",
        NodeState::Free => "free",
        NodeState::Foreign { .. } => "foreign",
        NodeState::Failed(_) => "failed",
        _ => "?",
    };
    inspection
        .nodes()
        .map(|(_, _, state)| word(state))
        .collect()
}

#[test]
fn every_state_of_a_lock_is_seen_with_any_nodes_down() {
    for nodes in [1, 3, 5] {
        let quorum = nodes / 2 + 1;
        for down in 0..=nodes {
            let case = format!("{down} of {nodes} down");
            let mut servers = Server::several(nodes);
            let redlock = connected(&servers);
            let quick = options().connect_timeout(CONNECT);
            let redlock = redlock.with_options(quick).unwrap();
            let lock = take(&redlock, "held");
            let all =
                |servers: &[Server], key: &str| servers.iter().all(|server| server.exists(key));
            eventually("on all", || all(&servers, "held"));
            for (i, server) in servers.iter().enumerate() {
                // Two holders in turn, neither of which has a majority.
                let value = [if i % 2 == 0 { 1 } else { 2 }; 20];
                if i != 2 && i != 4 {
                    server.command_table(&[b"SET", b"blocked", &value, b"PX", b"60000"]);
                }
                server.command(&["HSET", "foreign", "a", "b"]);
                server.command_table(&[b"SET", b"endless", &[3; 20]]);
            }
            let (killed, stopped) = (down / 2, down - down / 2);
            servers[..killed].iter_mut().for_each(Server::kill);
            servers[killed..killed + stopped]
                .iter()
                .for_each(Server::stop);
            let free = match nodes - down >= quorum {
                true => LockState::Free,
                false => LockState::Unknown,
            };
            let inspected = Instant::now();
            assert_eq!(state(&redlock, "free"), free, "{case}");
            // Those that stand still are waited for to be connected, side by side.
            let limit = CONNECT + 2 * NODE_TIMEOUT;
            assert!(inspected.elapsed() < limit, "{case}");
            if stopped > 0 {
                // Faster.
                servers[killed..killed + stopped]
                    .iter_mut()
                    .for_each(Server::kill);
            }
            let mut words = vec!["failed"; down];
            words.resize(nodes, "held");
            assert_eq!(answers(&redlock, "held"), words, "{case}");
            if nodes - down >= quorum {
                let (name, remaining) = held(&state(&redlock, "held"));
                assert_eq!(name, lock.token().fingerprint().to_string(), "{case}");
                let alive = servers[down..].iter();
                let by_hand = alive.map(|server| seen_by_hand(server, "held").unwrap());
                let least = by_hand.map(|(value, left)| {
                    assert!(value.starts_with(lock.token().as_bytes()));
                    u64::try_from(left).unwrap()
                });
                // Asked later, so there is less left of it.
                assert!(remaining.unwrap() >= ms(least.min().unwrap()), "{case}");
                assert!(remaining.unwrap() <= TTL, "{case}");
                assert_eq!(held(&state(&redlock, "endless")).1, None, "{case}");
            }
            if down == 0 {
                let blocked = match nodes {
                    1 => "Held { holder: Holder(01010101), remaining: Some(",
                    _ => "Blocked { remaining: Some(",
                };
                let seen = format!("{:?}", state(&redlock, "blocked"));
                assert!(seen.starts_with(blocked), "{case}: {seen}");
                let seen = format!("{:?}", state(&redlock, "foreign"));
                assert_eq!(seen, "Blocked { remaining: None }", "{case}");
                assert_eq!(answers(&redlock, "foreign"), vec!["foreign"; nodes]);
            }
            drop(lock);
        }
    }
}

#[test]
fn foreign_data_is_distinguished_from_a_lock_and_neither_changes() {
    let servers = Server::several(3);
    let redlock = redlock(&servers);
    for server in &servers {
        server.command(&["SET", "short", "another library's", "PX", "60000"]);
        server.command(&["LPUSH", "list", "a"]);
        server.command(&["SET", "large", &"v".repeat(1 << 20)]);
        server.command_table(&[
            b"SET",
            b"named",
            &[&[1; 20][..], b"\0redlock:12345web-3:4711"].concat(),
            b"PX",
            b"9000",
        ]);
        server.command(&["SET", "text", "postgres://admin:hunter2@db.internal/shop"]);
        server.command_table(&[b"SET", b"new\r\nline \xFF", &[7; 20], b"PX", b"9000"]);
    }
    let before: Vec<Vec<String>> = servers.iter().map(keys_and_values).collect();
    assert_eq!(answers(&redlock, "short"), ["foreign"; 3]);
    match state(&redlock, "short") {
        LockState::Blocked { remaining, .. } => {
            let remaining = remaining.unwrap();
            assert!(
                (ms(30_000)..=ms(60_000)).contains(&remaining),
                "{remaining:?}"
            );
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(answers(&redlock, "list"), ["foreign"; 3]);
    for other in ["large", "text"] {
        assert_eq!(answers(&redlock, other), ["foreign"; 3]);
        let seen = format!("{:?}", state(&redlock, other));
        assert_eq!(seen, "Blocked { remaining: None }", "{other}");
    }
    assert_eq!(held(&state(&redlock, "named")).0, "01010101 (web-3:4711)");
    let inspection = redlock.inspect(b"new\r\nline \xFF").unwrap();
    assert_eq!(held(&inspection.state()).0, "07070707");
    let after: Vec<Vec<String>> = servers.iter().map(keys_and_values).collect();
    assert_eq!(before, after);
    config(redlock.inspect(""));
    config(redlock.inspect(vec![b'a'; 64 * 1024 + 1]));
    let addresses = inspection
        .nodes()
        .map(|(node, address, _)| (node, address.to_owned()));
    let expected = servers.iter().enumerate();
    let expected = expected.map(|(node, server)| (node, format!("127.0.0.1:{}", server.port())));
    assert!(addresses.eq(expected));
}

fn keys_and_values(server: &Server) -> Vec<String> {
    let dump = |key: &String| format!("{key:?} {:?}", server.command(&["DUMP", key]));
    let value = server.command(&["EVAL", "return #redis.call('KEYS','*')", "0"]);
    let readable = ["short", "list", "large", "named"].map(str::to_owned);
    let mut all: Vec<String> = readable.iter().map(dump).collect();
    all.push(format!("{value:?}"));
    all
}

#[test]
fn a_large_value_holds_up_no_node() {
    let server = Server::start();
    server.command(&["SETRANGE", "large", "200000000", "end"]);
    server.command(&["CONFIG", "RESETSTAT"]);
    let redlock = redlock(std::slice::from_ref(&server));
    assert_eq!(answers(&redlock, "large"), ["foreign"]);
    // No command reads the whole.
    assert_eq!(server.calls("get"), 0);
    assert_eq!(server.calls("getrange"), 1);
    let stats = server.info("memory", "used_memory_lua");
    assert!(stats.parse::<u64>().unwrap() < 1 << 20, "{stats}");
}

/// What the guide says that locks need, and nothing else.
fn with_few_rights() -> (Server, String) {
    let server = Server::start();
    let rights = "ACL SETUSER few on >secret resetkeys ~* resetchannels -@all \
        +set +get +del +pttl +pexpire +eval +time";
    server.command(
        &rights
            .split(' ')
            .filter(|word| !word.is_empty())
            .collect::<Vec<_>>(),
    );
    let url = server.url_for("few", "secret");
    (server, url)
}

#[test]
fn a_user_with_the_rights_of_locks_may_inspect_and_one_without_gets_the_reason() {
    let (servers, nodes): (Vec<Server>, Vec<String>) = (0..3).map(|_| with_few_rights()).unzip();
    let redlock = Redlock::new(nodes)
        .unwrap()
        .with_options(options())
        .unwrap();
    let lock = redlock.acquire("a", TTL).unwrap();
    let name = lock.token().fingerprint().to_string();
    assert_eq!(held(&state(&redlock, "a")).0, name);
    lock.release().unwrap();
    assert_eq!(answers(&redlock, "a"), ["free"; 3]);
    servers[0].command(&["ACL", "SETUSER", "few", "-get"]);
    servers[1].command(&["ACL", "SETUSER", "few", "resetkeys", "~b"]);
    servers[2].command(&["ACL", "SETUSER", "few", "-eval"]);
    let inspection = redlock.inspect("a").unwrap();
    assert_eq!(inspection.state(), LockState::Unknown);
    for (node, _, state) in inspection.nodes() {
        let text = format!(
            "{state:?} {}",
            match state {
                NodeState::Failed(errors) => errors.to_string(),
                other => panic!("{other:?}"),
            }
        );
        let refused = ["permission", "can't run this", "can't access"];
        assert!(refused.iter().any(|word| text.contains(word)), "{text}");
        assert!(text.contains(&format!("node {node} (127.0.0.1:")) && !text.contains("secret"));
    }
}

#[test]
fn a_node_that_talks_nonsense_or_trickles_fails_within_its_time() {
    let servers = Server::several(3);
    let relays: Vec<relay::Relay> = servers[..2]
        .iter()
        .map(|server| relay::Relay::to(server.port()))
        .collect();
    let nodes = [relays[0].url(), relays[1].url(), servers[2].url()];
    let quick = options().connect_timeout(ms(1000));
    let redlock = Redlock::new(nodes).unwrap().with_options(quick).unwrap();
    let lock = take(&redlock, "a");
    relays[0].set(|policy| policy.down.replace = Some(b"HTTP/1.1 400 Bad Request\r\n".to_vec()));
    relays[1].set(|policy| policy.down.trickle = Some(ms(300)));
    let since = Instant::now();
    let inspection = redlock.inspect("a").unwrap();
    assert!(
        since.elapsed() < ms(1000) + 2 * NODE_TIMEOUT,
        "{:?}",
        since.elapsed()
    );
    assert_eq!(inspection.state(), LockState::Unknown);
    assert_eq!(answers(&redlock, "a"), ["failed", "failed", "held"]);
    relays.iter().for_each(relay::Relay::heal);
    assert_eq!(answers(&redlock, "a"), ["held"; 3]);
    drop(lock);
}

#[test]
fn a_thousand_inspections_leave_no_connection_no_thread_and_no_key() {
    let name = "a_thousand_inspections_leave_no_connection_no_thread_and_no_key";
    in_own_process(name, || {
        let servers = Server::several(3);
        let redlock = unhurried_connected(&servers);
        wait_for_quiet();
        let held = take(&redlock, "held");
        let (files, threads_before) = (open_files(), threads());
        for _ in 0..1000 {
            assert_eq!(answers(&redlock, "held"), ["held"; 3]);
        }
        eventually("connections and threads have ended", || {
            (open_files(), threads()) == (files, threads_before)
        });
        for server in &servers {
            eventually("connections are closed", || server.clients() == 1);
            assert_eq!(server.keys(), ["held"]);
        }
        held.release().unwrap();
    });
}

// ---- check

const GOOD: [&str; 4] = ["--appendonly", "yes", "--appendfsync", "always"];

fn good(count: usize) -> Vec<Server> {
    (0..count).map(|_| Server::with_args(&GOOD)).collect()
}

fn redlock_on(nodes: Vec<String>) -> Redlock {
    let quick = options().connect_timeout(CONNECT);
    Redlock::new(nodes).unwrap().with_options(quick).unwrap()
}

type Brief = (Severity, Option<usize>, &'static str);

/// Severity, node and code, but for what all these nodes have in common: they are on one machine, and
/// started lately; over TLS their certificates are not checked.
fn all_findings(redlock: &Redlock) -> Vec<Brief> {
    let report = redlock.check("probe").unwrap();
    let common = |finding: &&Finding| match finding.code() {
        "independence" | "uptime" => finding.severity() != Severity::Note,
        "insecure" => !over_tls(),
        _ => true,
    };
    let brief = |finding: &Finding| (finding.severity(), finding.node(), finding.code());
    report.findings().filter(common).map(brief).collect()
}

/// Without the one answer of ten that a busy machine may delay.
fn findings(redlock: &Redlock) -> Vec<Brief> {
    let mut found = all_findings(redlock);
    found.retain(|(severity, _, code)| (*severity, *code) != (Severity::Warning, "latency"));
    found
}

#[test]
fn five_good_nodes_are_fit_and_nothing_is_left_on_them() {
    let name = "five_good_nodes_are_fit_and_nothing_is_left_on_them";
    in_own_process(name, || {
        let servers = good(5);
        let redlock = redlock_on(urls(&servers));
        assert_eq!(findings(&redlock), []);
        let report = redlock.check("probe").unwrap();
        assert!(report.is_fit());
        let text = report.to_string();
        let insecure = |line: &&str| over_tls() && line.starts_with("warning: insecure: ");
        let lines: Vec<&str> = text.lines().filter(|line| !insecure(line)).collect();
        assert!(
            lines[0].starts_with("note: independence: all nodes are on this machine"),
            "{text}"
        );
        assert_eq!(lines.len(), 6, "{text}");
        for (facts, server) in report.nodes().zip(&servers) {
            assert_eq!(facts.address(), format!("127.0.0.1:{}", server.port()));
            assert_eq!(
                facts.version(),
                Some(&*server.info("server", "redis_version"))
            );
            assert_eq!(facts.role(), Some("master"));
            assert!(facts.uptime().unwrap() < Duration::from_secs(600));
            assert!(facts.round_trip().unwrap() < NODE_TIMEOUT);
            assert!(facts.clock_offset_ms().unwrap().abs() <= 500);
        }
        let (files, threads_before) = (open_files(), threads());
        for _ in 0..100 {
            assert!(redlock.check("probe").unwrap().is_fit());
        }
        eventually("connections and threads have ended", || {
            (open_files(), threads()) == (files, threads_before)
        });
        for server in &servers {
            eventually("connections are closed", || server.clients() == 0);
            assert!(server.keys().is_empty());
            assert_eq!(server.calls("set"), server.calls("del"));
        }
        config(redlock.check(""));
    });
}

/// The node timeout where one is slow.
const LATE: Duration = ms(500);

/// One of three nodes is wrong in one way.
fn expect(severity: Severity, code: &'static str, bad: &str) {
    let servers = good(2);
    let nodes = [urls(&servers), vec![bad.to_owned()]].concat();
    let mut found = match code {
        // Over TLS it takes two late answers to connect.
        "latency" => {
            let patient = options().connect_timeout(2 * CONNECT).node_timeout(LATE);
            all_findings(&redlock_on(nodes).with_options(patient).unwrap())
        }
        _ => findings(&redlock_on(nodes)),
    };
    found.retain(|(_, node, code)| *code != "latency" || *node == Some(2));
    assert_eq!(found, [(severity, Some(2), code)]);
}

fn with(args: &[&str]) -> Server {
    Server::with_args(&[&GOOD, args].concat())
}

#[test]
fn a_node_that_cannot_be_asked_is_named_and_a_majority_of_them_is_a_fault() {
    let mut servers = good(3);
    let redlock = redlock_on(urls(&servers));
    servers[1].kill();
    assert_eq!(findings(&redlock), [(Severity::Warning, Some(1), "reach")]);
    assert!(redlock.check("probe").unwrap().is_fit());
    servers[2].stop();
    let since = Instant::now();
    let both = [1, 2].map(|node| (Severity::Fault, Some(node), "reach"));
    assert_eq!(findings(&redlock), both);
    assert!(since.elapsed() < CONNECT + 2 * NODE_TIMEOUT);
    assert!(!redlock.check("probe").unwrap().is_fit());

    let locked = with(&["--requirepass", "secret"]);
    expect(Severity::Warning, "auth", &locked.url());
    let url = locked.url().replace("://", "://:wrong@");
    expect(Severity::Warning, "auth", &url);
    let servers = good(2);
    let report = redlock_on([urls(&servers), vec![url]].concat());
    let report = report.check("probe").unwrap();
    assert!(!format!("{report} {report:?}").contains("wrong@"));
}

#[test]
fn what_refuses_locks_is_named() {
    let server = with(&["--min-replicas-to-write", "1"]);
    expect(Severity::Warning, "probe", &server.url());
    for rights in [
        "-set",
        "-get",
        "-pexpire",
        "-del",
        "-eval -evalsha",
        "resetkeys ~other",
    ] {
        let server = with(&[]);
        let user = format!("ACL SETUSER few on >secret allkeys +@all {rights}");
        server.command(&user.split(' ').collect::<Vec<_>>());
        let url = server.url().replace("://", "://few:secret@");
        expect(Severity::Warning, "probe", &url);
    }
    // The name alone.
    let servers = good(3);
    let user = "ACL SETUSER few on >secret resetkeys ~locks:* resetchannels -@all \
        +set +get +del +pttl +pexpire +eval +time +info +config|get";
    let user: Vec<&str> = user.split_whitespace().collect();
    servers.iter().for_each(|server| {
        server.command(&user);
    });
    let few = |url: String| url.replace("://", "://few:secret@");
    let redlock = redlock_on(urls(&servers).into_iter().map(few).collect());
    let all = [0, 1, 2].map(|node| (Severity::Warning, Some(node), "probe"));
    assert_eq!(findings(&redlock), all);
    let report = redlock.check("probe").unwrap();
    // No lock was tried, so it is not known whether any can be taken.
    assert!(!report.is_checked() && !report.is_fit());
    let text = report.to_string();
    let words = "this user may not use the name \"probe\"";
    assert_eq!(text.matches(words).count(), 3, "{text}");
    let report = redlock.check("locks:probe").unwrap();
    assert!(report.is_checked() && report.is_fit());
    assert!(!report.findings().any(|finding| finding.code() == "probe"));
    // A missing right is one, whatever the name.
    for server in &servers {
        server.command(&["ACL", "SETUSER", "few", "-eval"]);
    }
    for name in ["probe", "locks:probe"] {
        let report = redlock.check(name).unwrap();
        let text = report.to_string();
        assert!(
            !report.is_fit() && text.matches("fault: probe: ").count() == 3,
            "{text}"
        );
        assert!(text.contains("'eval'"), "{text}");
    }
    for server in &servers {
        server.command(&["ACL", "SETUSER", "few", "+eval"]);
    }
    let lock = redlock.acquire("locks:a", TTL).unwrap();
    lock.release().unwrap();
    // The key that is tried is another holder's, or of another type.
    let server = with(&[]);
    server.command(&["HSET", "probe", "a", "b"]);
    expect(Severity::Note, "probe", &server.url());
    let alone = redlock_on(vec![server.url()]);
    assert!(!alone.check("probe").unwrap().is_fit());
    assert!(alone.check("other").unwrap().is_fit());
    // On a majority: no lock can be taken.
    let servers: Vec<Server> = (0..3)
        .map(|_| with(&["--min-replicas-to-write", "1"]))
        .collect();
    let redlock = redlock_on(urls(&servers));
    let all = [0, 1, 2].map(|node| (Severity::Fault, Some(node), "probe"));
    assert_eq!(findings(&redlock), all);
    let text = redlock.check("probe").unwrap().to_string();
    assert!(text.contains("NOREPLICAS"), "{text}");
}

#[test]
fn nodes_that_fail_in_different_ways_are_unfit_as_soon_as_no_lock_can_be_taken() {
    let mut servers = good(4);
    servers.push(with(&["--min-replicas-to-write", "1"]));
    let redlock = redlock_on(urls(&servers));
    servers[0].kill();
    // Three are left.
    let mut expected = [(0, "reach"), (4, "probe")];
    let found = expected.map(|(node, code)| (Severity::Warning, Some(node), code));
    assert_eq!(findings(&redlock), found);
    assert!(redlock.check("probe").unwrap().is_fit());
    redlock.acquire("a", TTL).unwrap().release().unwrap();
    // Two.
    let redlock = redlock_on([0, 1, 4].map(|node: usize| servers[node].url()).to_vec());
    expected[1].0 = 2;
    let found = expected.map(|(node, code)| (Severity::Fault, Some(node), code));
    assert_eq!(findings(&redlock), found);
    assert!(!redlock.check("probe").unwrap().is_fit());
    unavailable(redlock.try_acquire("a", TTL));
}

#[test]
fn a_server_that_is_no_independent_master_is_named() {
    let servers = good(2);
    let nodes = vec![servers[0].url(), servers[1].url(), servers[0].unix_url()];
    let twice = [(Severity::Fault, Some(2), "same-server")];
    assert_eq!(findings(&redlock_on(nodes)), twice);

    let master = with(&[]);
    let port = master.port().to_string();
    let replica = with(&["--replicaof", "127.0.0.1", &port]);
    eventually("it replicates", || {
        replica.info("replication", "master_link_status") == "up"
    });
    expect(Severity::Fault, "role", &replica.url());
    expect(Severity::Warning, "replicas", &master.url());
    let cluster = with(&["--cluster-enabled", "yes"]);
    expect(Severity::Fault, "role", &cluster.url());
}

/// It has no arguments in common with the others.
/// Sentinels that cannot be reached take their time, and those of five sets take it together.
#[test]
fn the_sentinels_of_all_sets_are_asked_at_a_time() {
    let silent: Vec<TcpListener> = (0..5)
        .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    let set =
        |listener: &TcpListener| format!("redis+sentinel://{}/m", listener.local_addr().unwrap());
    let redlock = Redlock::new(silent.iter().map(set)).unwrap();
    let patience = ms(1000);
    let redlock = redlock.with_options(options().connect_timeout(patience));
    let since = Instant::now();
    let report = redlock.unwrap().check("probe").unwrap();
    // Once for the masters, and once for the sentinels' descriptions of them.
    assert!(since.elapsed() < 4 * patience, "{:?}", since.elapsed());
    assert!(!report.is_fit() && report.nodes().count() == 5, "{report}");
}

#[test]
fn a_sentinel_is_named() {
    let dir = TempDir::new();
    let (port, file) = (free_port(), dir.path().join("sentinel.conf"));
    std::fs::write(&file, format!("port {port}\nbind 127.0.0.1\n")).unwrap();
    let mut child = Command::new(redis_server())
        .arg(&file)
        .arg("--sentinel")
        .current_dir(dir.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let up = std::panic::catch_unwind(|| {
        eventually("it listens", || {
            std::net::TcpStream::connect(("127.0.0.1", port.number())).is_ok()
        });
        expect(
            Severity::Fault,
            "role",
            &format!("redis://127.0.0.1:{port}"),
        );
    });
    let _ = child.kill();
    let _ = child.wait();
    up.unwrap();
}

#[test]
fn what_may_lose_locks_is_named() {
    let policy = ["--maxmemory-policy", "volatile-lru"];
    let server = with(&[&policy[..], &["--maxmemory", "100mb"]].concat());
    expect(Severity::Fault, "eviction", &server.url());
    let server = with(&policy);
    expect(Severity::Note, "eviction", &server.url());
    // It has removed keys once.
    let server = with(&[]);
    let fill = "for i=1,2000 do redis.call('SET','k'..i,string.rep('x',1000)) end";
    server.command(&["EVAL", fill, "0"]);
    server.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-random"]);
    let used: u64 = server.info("memory", "used_memory").parse().unwrap();
    let less = (used - 500_000).to_string();
    server.command(&["CONFIG", "SET", "maxmemory", &less]);
    eventually("it removes keys", || {
        server.info("stats", "evicted_keys") != "0"
    });
    server.command(&["CONFIG", "SET", "maxmemory", "0"]);
    server.command(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    expect(Severity::Warning, "eviction", &server.url());
    // What it advises.
    server.command(&["CONFIG", "RESETSTAT"]);
    let report = redlock_on(vec![server.url()]).check("probe").unwrap();
    assert!(!report.to_string().contains("eviction"), "{report}");
    // Nearly full.
    let server = with(&[]);
    server.command(&["SETRANGE", "a", "30000000", "a"]);
    let used: u64 = server.info("memory", "used_memory").parse().unwrap();
    let limit = (used + used / 20).to_string();
    server.command(&["CONFIG", "SET", "maxmemory", &limit]);
    expect(Severity::Warning, "eviction", &server.url());

    let server = with(&["--replica-read-only", "no"]);
    expect(Severity::Warning, "replicas", &server.url());
    server.command(&["CONFIG", "SET", "replica-read-only", "yes"]);
    let report = redlock_on(vec![server.url()]).check("probe").unwrap();
    assert!(!report.to_string().contains("replica"), "{report}");

    expect(Severity::Warning, "persistence", &Server::start().url());
    let server = with(&["--appendfsync", "everysec"]);
    expect(Severity::Warning, "persistence", &server.url());
    let server = with(&[]);
    std::fs::create_dir(server.dir().join("dump.rdb")).unwrap();
    server.command(&["BGSAVE"]);
    eventually("it cannot save", || {
        server.info("persistence", "rdb_last_bgsave_status") == "err"
    });
    expect(Severity::Warning, "persistence", &server.url());
}

#[test]
fn a_slow_node_and_a_full_one_are_named() {
    let server = with(&[]);
    let relay = relay::Relay::to(server.port());
    relay.set(|policy| policy.down.delay = LATE / 2 + ms(50));
    expect(Severity::Warning, "latency", &relay.url());
    relay.set(|policy| policy.down.delay = LATE + ms(50));
    expect(Severity::Warning, "latency", &relay.url());

    // A script that does not end: all else is refused, in the end.
    let server = with(&["--lua-time-limit", "100"]);
    let mut script = redis::Client::open(server.unix_url())
        .unwrap()
        .get_connection()
        .unwrap();
    let endless = std::thread::spawn(move || {
        redis::cmd("EVAL")
            .arg("while true do end")
            .arg(0)
            .query::<()>(&mut script)
            .unwrap_err()
    });
    let alone = redlock_on(vec![server.url()]);
    eventually("it says that it is busy", || {
        let report = alone.check("probe").unwrap().to_string();
        report.contains("not be checked: a script does not end: SCRIPT KILL")
    });
    server.command(&["SCRIPT", "KILL"]);
    endless.join().unwrap();

    let server = with(&["--maxclients", "6"]);
    let client = redis::Client::open(server.unix_url()).unwrap();
    let mut connections: Vec<_> = (0..5).map(|_| client.get_connection().unwrap()).collect();
    expect(Severity::Warning, "clients", &server.url());
    // One is turned away; of that it tells when there is room again.
    connections.push(client.get_connection().unwrap());
    assert!(client.get_connection().is_err());
    let report = redlock_on(vec![server.url()])
        .check("probe")
        .unwrap()
        .to_string();
    // Over TLS it hangs up without a word.
    let expected = match over_tls() {
        true => "in the handshake",
        false => "max number of clients reached; raise maxclients",
    };
    assert!(report.contains(expected), "{report}");
    connections.truncate(1);
    eventually("there is room", || {
        let list = redis::cmd("CLIENT").arg("LIST").to_owned();
        let list: String = list.query(&mut connections[0]).unwrap();
        list.lines().count() == 1
    });
    connections.clear();
    eventually("only that is left", || server.clients() == 0);
    expect(Severity::Warning, "clients", &server.url());
    server.command(&["CONFIG", "RESETSTAT"]);
    assert_eq!(
        findings(&redlock_on(vec![server.url()])),
        [(Severity::Note, None, "count")]
    );
}

#[test]
fn what_may_not_be_checked_is_reported_and_the_rest_is_checked() {
    let server = with(&[]);
    server.command(&[
        "ACL", "SETUSER", "few", "on", ">secret", "allkeys", "+@all", "-config",
    ]);
    let url = server.url().replace("://", "://few:secret@");
    expect(Severity::Note, "rights", &url);
    server.command(&["ACL", "SETUSER", "few", "-info"]);
    expect(Severity::Note, "rights", &url);
    // The rights that locks need are enough to check them.
    let (servers, nodes): (Vec<Server>, Vec<String>) = (0..3).map(|_| with_few_rights()).unzip();
    let redlock = redlock_on(nodes);
    let report = redlock.check("probe").unwrap();
    assert!(report.is_fit(), "{report}");
    let rights = [0, 1, 2].map(|node| (Severity::Note, Some(node), "rights"));
    assert_eq!(findings(&redlock), rights);
    for facts in report.nodes() {
        assert_eq!(
            (facts.version(), facts.role(), facts.uptime()),
            (None, None, None)
        );
        assert!(facts.clock_offset_ms().is_some() && facts.round_trip().is_some());
    }
    assert!(!format!("{report} {report:?}").contains("secret"));
    drop(servers);
}

#[test]
fn numbers_of_nodes_and_young_ones_are_named() {
    let servers = good(4);
    let redlock = redlock_on(urls(&servers));
    assert_eq!(findings(&redlock), [(Severity::Warning, None, "count")]);
    let redlock = redlock_on(urls(&servers[..1]));
    assert_eq!(findings(&redlock), [(Severity::Note, None, "count")]);
    // With the guard nothing need be kept on disk, and a young node does not vote.
    let servers = Server::several(3);
    let guarded = options().restart_guard(Duration::from_secs(3600));
    let redlock = Redlock::new(urls(&servers)).unwrap();
    let redlock = redlock.with_options(guarded).unwrap();
    let young = [0, 1, 2].map(|node| (Severity::Fault, Some(node), "uptime"));
    assert_eq!(findings(&redlock), young);
    assert!(!redlock.check("probe").unwrap().is_fit());
    unavailable(redlock.try_acquire("a", TTL));
}

/// Its own clock is five seconds ahead: `gettimeofday` is, in that process.
#[test]
fn a_clock_that_is_off_is_named() {
    let name = "a_clock_that_is_off_is_named";
    if told().is_some() {
        let ahead = with(&["--syslog-ident", "ahead"]);
        expect(Severity::Warning, "clock", &ahead.url());
        let redlock = redlock_on(vec![ahead.url()]);
        let all = [
            (Severity::Warning, None, "clock"),
            (Severity::Note, None, "count"),
        ];
        assert_eq!(findings(&redlock), all);
        let report = redlock.check("probe").unwrap();
        let offset = report.nodes().next().unwrap().clock_offset_ms().unwrap();
        let inspection = redlock.inspect("probe").unwrap();
        let seen = inspection.clock_offset_ms(0).unwrap();
        for offset in [offset, seen] {
            assert!((4000..=6000).contains(&offset), "{offset}");
        }
        assert_eq!(inspection.clock_offset_ms(1), None);
        return;
    }
    let dir = TempDir::for_programs();
    let file = |name: &str| dir.path().join(name);
    let source = "#include <sys/syscall.h>\n#include <sys/time.h>\n#include <unistd.h>\n\
        int gettimeofday(struct timeval *restrict time, void *restrict zone) {\n\
            int result = syscall(SYS_gettimeofday, time, zone);\n\
            if (time) time->tv_sec += 5;\n\
            return result;\n}\n";
    std::fs::write(file("ahead.c"), source).unwrap();
    let made = Command::new("cc")
        .args(["-shared", "-fPIC", "-D_GNU_SOURCE", "-o"])
        .args([file("ahead.so"), file("ahead.c")])
        .output();
    let made = started(made, "cc", "gcc libc6-dev");
    assert!(made.status.success(), "{made:?}");
    // A server with that argument gets that clock. (A path in that variable cannot have a space.)
    let script = "#!/bin/sh\ncase \"$*\" in *'--syslog-ident ahead'*)\n\
        ln -sf \"$AHEAD\" ahead.so\n\
        LD_PRELOAD=./ahead.so; export LD_PRELOAD;;\nesac\nexec \"$SERVER\" \"$@\"\n";
    std::fs::write(file("server"), script).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(file("server"), executable).unwrap();
    let mut process = own_process(name, "");
    let output = process
        .env("REDIS_SERVER", file("server"))
        .env("SERVER", redis_server())
        .env("AHEAD", file("ahead.so"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}

#[test]
fn a_forked_child_may_look_too() {
    in_own_process("a_forked_child_may_look_too", || {
        let servers = good(3);
        let redlock = connected(&servers);
        let lock = take(&redlock, "a");
        // SAFETY: the child touches nothing that another thread may hold but through this crate.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: plain system call. A child that hangs ends by SIGALRM.
            unsafe { libc::alarm(20) };
            let well = std::panic::catch_unwind(|| {
                assert_eq!(answers(&redlock, "a"), ["held"; 3]);
                assert!(redlock.check("probe").unwrap().is_fit());
            });
            // SAFETY: plain system call.
            unsafe { libc::_exit(i32::from(well.is_err())) }
        }
        let mut status = 0;
        // SAFETY: a child of ours that was not waited for.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child ended with {status:#x}");
        lock.release().unwrap();
    });
}

/// Its uptime alone would show nothing.
#[test]
fn a_check_judges_a_server_as_the_restart_guard_does_at_a_connection() {
    let server = Server::start();
    let max_ttl = Duration::from_secs(1);
    let client = || {
        redlock(std::slice::from_ref(&server))
            .with_options(options().restart_guard(max_ttl))
            .unwrap()
    };
    eventually("it has been up for long enough", || {
        client().check("check").unwrap().is_fit()
    });
    server.command(&["FLUSHALL"]);
    let report = client().check("check").unwrap();
    assert!(!report.is_fit(), "{report}");
    let text = report.to_string();
    assert!(
        text.contains("fault: uptime: node 0 ") && text.contains("gives no votes for "),
        "{text}"
    );
    let client = client();
    assert!(matches!(
        client.try_acquire("a", max_ttl),
        Err(Error::Unavailable(_))
    ));
    eventually("both find it fit", || {
        client.check("check").unwrap().is_fit()
    });
    // The lock's connection counts from when the answer came, and the check from when the node gave it.
    eventually("it votes", || {
        matches!(client.try_acquire("a", max_ttl), Ok(Some(_)))
    });
}
