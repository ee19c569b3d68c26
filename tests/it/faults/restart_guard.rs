//! Nodes that were restarted do not vote before every lock that they may have forgotten has ended; and
//! what happens where that is not asked for.

use crate::support;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use redlock_sync::{LostReason, Options, Redlock};
use support::fake::{Fake, Words};
use support::relay::Relay;
use support::*;

const S: Duration = Duration::from_secs(1);
const MAX_TTL: Duration = Duration::from_secs(3);
/// A restarted node votes after this time at the latest.
const LATEST: Duration = Duration::from_secs(5);

fn guarded() -> Options {
    options().restart_guard(MAX_TTL)
}

fn client(nodes: &[String], options: Options) -> Redlock {
    let redlock = Redlock::new(nodes.iter().map(String::as_str)).unwrap();
    redlock.with_options(options).unwrap()
}

/// Waits until they have been up for long enough.
fn season(servers: &[Server]) {
    eventually("they have been up for long enough", || {
        let uptime = |server: &Server| server.info("server", "uptime_in_seconds");
        let long = (MAX_TTL + S).as_secs();
        servers
            .iter()
            .all(|server| uptime(server).parse::<u64>().unwrap() >= long)
    });
}

fn seasoned(count: usize) -> Vec<Server> {
    let servers = Server::several(count);
    season(&servers);
    servers
}

/// Runs a demonstration without the guard, and with it.
fn with_and_without(run: impl Fn(Option<Duration>) + Sync) {
    std::thread::scope(|scope| {
        scope.spawn(|| run(None));
        scope.spawn(|| run(Some(MAX_TTL)));
    });
}

fn maybe(guard: Option<Duration>) -> Options {
    options().restart_guard(guard.unwrap_or_default())
}

#[test]
fn a_single_node_that_was_restarted_empty_makes_two_holders_only_without_the_guard() {
    with_and_without(|guard| {
        let mut servers = seasoned(1);
        let [first, second] = [0, 1].map(|_| client(&urls(&servers), maybe(guard)));
        let held = first.try_acquire("a", MAX_TTL).unwrap().unwrap();
        let started = Instant::now();
        servers[0].kill();
        servers[0].restart();
        let other = second.try_acquire("a", MAX_TTL);
        if guard.is_none() {
            assert!(other.unwrap().is_some() && held.is_valid(), "two holders");
            return;
        }
        let errors = unavailable(other);
        let wait = errors.retry_after().unwrap();
        assert!(!wait.is_zero() && wait <= MAX_TTL + 2 * S, "{wait:?}");
        let text = errors.to_string();
        assert!(
            text.contains("restarted or replaced lately, may have forgotten locks: votes in "),
            "{text}"
        );
        // It takes no node to say so. (On a busy machine one of these may be slow.)
        let is_quick = (0..5).any(|_| {
            let at_once = Instant::now();
            unavailable(second.try_acquire("a", MAX_TTL));
            at_once.elapsed() < NODE_TIMEOUT / 2
        });
        assert!(is_quick);
        let other = second.acquire("a", MAX_TTL).unwrap();
        let took = started.elapsed();
        assert!(!held.is_valid());
        assert!((MAX_TTL..LATEST + 2 * S).contains(&took), "{took:?}");
        other.release().unwrap();
    });
}

#[test]
fn a_node_of_the_majority_that_was_restarted_empty_makes_two_holders_only_without_the_guard() {
    with_and_without(|guard| {
        let mut servers = seasoned(3);
        let relay = Relay::to(servers[0].port());
        let cut_off = [relay.url(), servers[1].url(), servers[2].url()];
        let [first, second] = [&cut_off[..], &urls(&servers)].map(|nodes| {
            let client = client(nodes, maybe(guard));
            let probe = client.acquire("probe", MAX_TTL).unwrap();
            probe.release().unwrap();
            client
        });
        relay.refuse();
        relay.cut();
        let held = first.acquire("a", MAX_TTL).unwrap();
        servers[2].kill();
        servers[2].restart();
        let mut two = false;
        while held.remaining() > S {
            let other = second.try_acquire("a", MAX_TTL);
            two |= matches!(other, Ok(Some(_))) && held.is_valid();
            std::thread::sleep(ms(20));
        }
        assert_eq!(two, guard.is_none());
    });
}

/// Fresh servers: what they forgot is unknown. The error says for how long.
#[test]
fn after_a_cold_start_of_all_nodes_no_client_locks_for_the_longest_ttl() {
    let servers = Server::several(3);
    let up = Instant::now();
    let redlock = client(&urls(&servers), guarded());
    let started = Instant::now();
    let errors = unavailable(redlock.try_acquire("a", MAX_TTL));
    assert!(started.elapsed() < MAX_TTL / 2, "{:?}", started.elapsed());
    assert_eq!(errors.iter().count(), 3);
    let wait = errors.retry_after().unwrap();
    assert!(wait > S && wait <= MAX_TTL + 2 * S, "{wait:?}");
    let impatient = redlock.clone().acquire_within("a", MAX_TTL, S / 2);
    assert!(unavailable(impatient).retry_after().is_some());
    let lock = redlock.acquire("a", MAX_TTL).unwrap();
    let took = up.elapsed();
    assert!((MAX_TTL..LATEST + S).contains(&took), "{took:?}");
    lock.release().unwrap();
}

/// A server that has kept the key is not believed either, but it is sent the release.
#[test]
fn a_restarted_node_with_its_data_gives_no_vote_and_is_sent_releases() {
    let args = ["--appendonly", "yes", "--appendfsync", "always"];
    let mut servers: Vec<Server> = (0..3).map(|_| Server::with_args(&args)).collect();
    season(&servers);
    let redlock = client(&urls(&servers), guarded());
    let mut lock = redlock.acquire("a", MAX_TTL).unwrap();
    let kept = redlock.acquire("kept", MAX_TTL).unwrap();
    let kept = kept.keep_alive(100 * S).unwrap();
    let own = redlock.acquire("own", MAX_TTL).unwrap();
    for server in &mut servers[..2] {
        server.kill();
        server.restart();
        let loading = || server.info("persistence", "loading");
        eventually("it has loaded its data", || loading() == "0");
    }
    let restarted = Instant::now();
    eventually("both sit out", || {
        let errors = unavailable(redlock.try_acquire("b", MAX_TTL));
        errors.retry_after().is_some() && errors.iter().count() == 2
    });
    assert!(servers[..2].iter().all(|server| server.exists("a")));
    unavailable(lock.extend(MAX_TTL));
    assert!(lock.is_valid());
    // A release, and a drop.
    let released = Instant::now();
    unavailable(own.release());
    drop(lock);
    eventually("the releases are carried out", || {
        let gone = |server: &Server| !server.exists("a") && !server.exists("own");
        servers.iter().all(gone)
    });
    assert!(released.elapsed() < MAX_TTL / 2, "at once");
    assert!(restarted.elapsed() < MAX_TTL, "while they sit out");
    assert!(kept.wait_lost(2 * MAX_TTL));
    assert_eq!(kept.lost(), Some(LostReason::Expired), "at its deadline");
    drop(kept);
    let lock = redlock.acquire("a", MAX_TTL).unwrap();
    lock.release().unwrap();
}

#[test]
fn a_minority_that_sits_out_is_neither_waited_for_nor_an_error() {
    let mut servers = seasoned(5);
    let redlock = client(&urls(&servers), guarded().node_timeout(4 * S));
    redlock.acquire("a", MAX_TTL).unwrap().release().unwrap();
    let restarting = Instant::now();
    for server in &mut servers[..2] {
        server.kill();
        server.restart();
    }
    let restarted = Instant::now();
    let (mut worst, mut looks) = (Duration::ZERO, 0);
    while restarted.elapsed() < MAX_TTL {
        let started = Instant::now();
        let mut lock = redlock.try_acquire("a", MAX_TTL).unwrap().unwrap();
        lock.extend(MAX_TTL).unwrap();
        let asked = servers[..2].iter().any(|server| !server.keys().is_empty());
        // The first of them sits out for this long.
        if restarting.elapsed() < MAX_TTL {
            assert!(!asked);
            looks += 1;
        }
        lock.release().unwrap();
        worst = worst.max(started.elapsed());
        std::thread::sleep(ms(5));
    }
    assert!(worst < 2 * S, "{worst:?}");
    assert!(looks > 0, "no look at the keys within {MAX_TTL:?}");
    // A drop wakes the worker of a node in quarantine.
    servers[0].command(&["SET", "b", "to be overwritten"]);
    let lock = redlock.resume(
        "b",
        redlock_sync::Token::from_bytes(*b"a token of 20 bytes!"),
        S,
    );
    servers[0].command(&["SET", "b", "a token of 20 bytes!"]);
    let dropped = Instant::now();
    drop(lock.unwrap());
    eventually("it is released there", || !servers[0].exists("b"));
    assert!(dropped.elapsed() < 2 * S, "{:?}", dropped.elapsed());
    eventually("they vote again", || {
        let held = redlock.try_acquire("held", MAX_TTL).unwrap();
        let all = servers.iter().all(|server| server.exists("held"));
        drop(held);
        all
    });
    assert!(restarted.elapsed() > MAX_TTL);
}

/// A replica that was promoted, a name that leads elsewhere: it may have been up for long.
#[test]
fn another_server_at_an_address_sits_out_and_the_same_one_does_not() {
    let servers = seasoned(2);
    let relay = Relay::to(servers[0].port());
    let redlock = client(&[relay.url()], guarded());
    redlock.acquire("a", MAX_TTL).unwrap().release().unwrap();
    // Connected anew, to the same one.
    relay.cut();
    let started = Instant::now();
    redlock.acquire("a", MAX_TTL).unwrap().release().unwrap();
    assert!(started.elapsed() < 2 * S);
    relay.lead_to(servers[1].port());
    relay.cut();
    let replaced = Instant::now();
    eventually("it sits out", || {
        let errors = unavailable(redlock.try_acquire("a", MAX_TTL));
        errors.retry_after().is_some()
    });
    // Connected once more meanwhile, it is still another one than that which was locked at.
    relay.cut();
    std::thread::sleep(S / 2);
    unavailable(redlock.try_acquire("a", MAX_TTL));
    redlock.acquire("a", MAX_TTL).unwrap().release().unwrap();
    let took = replaced.elapsed();
    assert!((MAX_TTL - S / 2..LATEST).contains(&took), "{took:?}");
}

#[test]
fn a_second_restart_while_it_sits_out_counts_from_the_second() {
    let mut servers = seasoned(1);
    let redlock = client(&urls(&servers), guarded());
    redlock.acquire("a", MAX_TTL).unwrap().release().unwrap();
    for pause in [2 * S, Duration::ZERO] {
        servers[0].kill();
        servers[0].restart();
        std::thread::sleep(pause);
    }
    let second = Instant::now();
    redlock.acquire("a", MAX_TTL).unwrap().release().unwrap();
    let took = second.elapsed();
    assert!((MAX_TTL - S / 2..LATEST + S).contains(&took), "{took:?}");
}

#[test]
fn a_server_that_may_not_report_its_uptime_is_away_until_it_may() {
    let server = &seasoned(1)[0];
    let user = "ACL SETUSER u on >pw ~* +@all -info";
    server.command(&user.split(' ').collect::<Vec<_>>());
    let url = server.url().replace("://", "://u:pw@");
    let plain = client(std::slice::from_ref(&url), options());
    plain.acquire("a", MAX_TTL).unwrap().release().unwrap();
    let redlock = client(&[url], guarded());
    let errors = unavailable(redlock.try_acquire("a", MAX_TTL));
    let text = errors.to_string();
    assert!(
        text.contains("needs INFO server (uptime_in_seconds, run_id)"),
        "{text}"
    );
    assert_eq!(errors.retry_after(), None);
    server.command(&["ACL", "SETUSER", "u", "+info"]);
    redlock.acquire("a", MAX_TTL).unwrap().release().unwrap();
}

/// A server in front of which INFO reports another uptime.
fn with_uptime(server: &Server, uptime: &'static str) -> Fake {
    with_info(server, vec![("uptime_in_seconds:", uptime)])
}

/// A server in front of which INFO has other lines in place of those that begin so.
fn with_info(server: &Server, others: Vec<(&'static str, &'static str)>) -> Fake {
    in_front_of(server, move |words, reply| match words[0] == b"INFO" {
        true => with_lines(&reply, &others),
        false => reply,
    })
}

/// A reply to INFO, with other lines in place of those that begin so.
fn with_lines(reply: &[u8], others: &[(&str, &str)]) -> Vec<u8> {
    let text = String::from_utf8_lossy(reply);
    let (_, info) = text.split_once("\r\n").unwrap();
    let line = |line: &str| {
        let other = others.iter().find(|(start, _)| line.starts_with(start));
        other.map_or(line, |(_, other)| other).to_owned()
    };
    let lines: Vec<String> = info.trim_end().split("\r\n").map(line).collect();
    let info = lines.join("\r\n");
    format!("${}\r\n{info}\r\n", info.len()).into()
}

/// A server whose replies go through `reply`. It is a sentinel, too, which names itself.
fn in_front_of(
    server: &Server,
    reply: impl Fn(&Words, Vec<u8>) -> Vec<u8> + Send + Sync + 'static,
) -> Fake {
    let (socket, port) = (server.socket(), Arc::new(OnceLock::new()));
    let own = port.clone();
    let fake = Fake::new(move |words| {
        if words[0] == b"SENTINEL" {
            let port = own.get().map(u16::to_string).unwrap();
            return format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len()).into();
        }
        reply(words, relayed(&socket, words))
    });
    port.set(fake.port()).unwrap();
    fake
}

/// The server's reply to a command.
fn relayed(socket: &Path, words: &Words) -> Vec<u8> {
    let mut stream = UnixStream::connect(socket).unwrap();
    let end: &[Vec<u8>] = &["ECHO", "behind it"].map(|word| word.as_bytes().to_vec());
    for words in [words, end] {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend(format!("${}\r\n", word.len()).into_bytes());
            bytes.extend([word, &b"\r\n"[..]].concat());
        }
        stream.write_all(&bytes).unwrap();
    }
    let (mut reply, mut page, end) = (Vec::new(), [0; 65_536], b"$9\r\nbehind it\r\n");
    while !reply.ends_with(end) {
        let read = stream.read(&mut page).unwrap();
        assert_ne!(read, 0);
        reply.extend_from_slice(&page[..read]);
    }
    reply.truncate(reply.len() - end.len());
    reply
}

/// So long as that may be: not at all.
const NO_UPTIMES: [&str; 5] = [
    "uptime_in_seconds:-3600",
    "uptime_in_seconds:many",
    "uptime_in_seconds:99999999999999999999",
    "uptime_in_seconds:9000\r\nuptime_in_seconds:9001",
    "uptime:9000",
];

/// Its clock was set back to before its start, for example.
#[test]
fn a_server_without_an_uptime_counts_as_started_now() {
    let server = &seasoned(1)[0];
    for_each_at_once(&NO_UPTIMES, |uptime| {
        let fake = with_uptime(server, uptime);
        let url = format!("redis://127.0.0.1:{}/1", fake.port());
        let (redlock, since) = (
            client(std::slice::from_ref(&url), guarded()),
            Instant::now(),
        );
        let wait = unavailable(redlock.try_acquire(uptime, MAX_TTL)).retry_after();
        assert!(wait.unwrap() > MAX_TTL, "{uptime}: {wait:?}");
        let lock = redlock.acquire(uptime, MAX_TTL).unwrap();
        assert!(since.elapsed() > MAX_TTL, "{uptime}");
        lock.release().unwrap();
        let plain = client(&[url], options());
        plain.acquire(uptime, MAX_TTL).unwrap().release().unwrap();
    });
}

/// Where a guard is on by default, less is done without what the server lacks.
#[test]
fn by_default_a_server_without_an_uptime_gives_no_unguarded_votes() {
    let server = &seasoned(1)[0];
    for_each_at_once(&NO_UPTIMES, |uptime| {
        let fake = with_uptime(server, uptime);
        let url = format!("redis+sentinel://127.0.0.1:{}/m", fake.port());
        let redlock = client(&[url], options());
        let wait = unavailable(redlock.acquire_within(uptime, MAX_TTL, S)).retry_after();
        assert!(wait.unwrap() > 30 * S, "{uptime}: {wait:?}");
    });
}

/// Nothing shows whether such a server was restarted, so no time is long enough to wait for. Its votes count, as they do
/// where the guard lacks anything else.
#[test]
fn by_default_a_server_that_reports_neither_uptime_nor_evictions_votes_at_each_connection() {
    let server = Server::start();
    let lines = vec![
        ("uptime_in_seconds:", "uptime:9000"),
        ("evicted_keys:", "evicted:0"),
    ];
    let fake = with_info(&server, lines);
    let url = format!("redis+sentinel://127.0.0.1:{}/m", fake.port());
    for _ in 0..2 {
        let redlock = client(std::slice::from_ref(&url), options());
        redlock
            .try_acquire("a", MAX_TTL)
            .unwrap()
            .unwrap()
            .release()
            .unwrap();
    }
    // Where the program asks for the guard, the error names what is missing.
    let text = unavailable(client(&[url], guarded()).try_acquire("a", MAX_TTL)).to_string();
    assert!(text.contains("needs evicted_keys in INFO stats"), "{text}");
    assert!(!text.contains("uptime"), "{text}");
}

/// A script of others may run for a moment, between the two looks of a new connection.
#[test]
fn by_default_a_server_that_refuses_info_for_now_gives_no_unguarded_votes() {
    let server = Server::start();
    // Such a one has long been up, and was promoted.
    let promoted = [
        ("uptime_in_seconds:", "uptime_in_seconds:9000"),
        ("master_replid2:", "master_replid2:1"),
    ];
    for section in ["server", "replication", "stats", "commandstats"] {
        let asked = AtomicUsize::new(0);
        let fake = in_front_of(&server, move |words, reply| {
            let is_it = words[0] == b"INFO" && words[1] == section.as_bytes();
            match is_it && asked.fetch_add(1, Ordering::Relaxed) == 1 {
                true => b"-BUSY Redis is busy running a script.\r\n".to_vec(),
                false if words[0] == b"INFO" => with_lines(&reply, &promoted),
                false => reply,
            }
        });
        let url = format!("redis+sentinel://127.0.0.1:{}/m", fake.port());
        let redlock = client(&[url], options());
        eventually("the next connection has the guard", || {
            let errors = unavailable(redlock.try_acquire("a", MAX_TTL));
            errors.retry_after().is_some()
        });
    }
}

/// One that reports its uptime is guarded by that.
#[test]
fn by_default_a_server_that_reports_no_evictions_sits_out_by_its_uptime() {
    let server = Server::start();
    let fake = with_info(&server, vec![("evicted_keys:", "evicted:0")]);
    let url = format!("redis+sentinel://127.0.0.1:{}/m", fake.port());
    let failed = client(&[url], options()).try_acquire("a", MAX_TTL);
    assert!(unavailable(failed).retry_after().is_some());
}

fn for_each_at_once(uptimes: &[&'static str], run: impl Fn(&'static str) + Sync) {
    let run = &run;
    std::thread::scope(|scope| {
        for uptime in uptimes {
            scope.spawn(move || run(uptime));
        }
    });
}

#[test]
fn ttls_above_the_guard_s_are_refused_before_anything_is_asked() {
    // No server is there.
    let port = free_port();
    let redlock = client(&[format!("redis://127.0.0.1:{port}")], guarded());
    let long = MAX_TTL + ms(1);
    let expected = "the ttl is 3.001s, the restart guard is for 3s at most";
    assert_eq!(config(redlock.try_acquire("a", long)), expected);
    assert_eq!(config(redlock.acquire("a", long)), expected);
    assert_eq!(config(redlock.with_lock("a", long, |_| Ok(()))), expected);
    let token = redlock_sync::Token::from_bytes([1; 20]);
    assert_eq!(config(redlock.resume("a", token, long)), expected);
    let mut lock = redlock.resume("a", token, MAX_TTL).unwrap();
    assert_eq!(config(lock.extend(long)), expected);
    lock.leak();
    // Before the loss is reported.
    let mut lost = redlock.resume("a", token, Duration::ZERO).unwrap();
    assert_eq!(config(lost.extend(long)), expected);
    lost.leak();
    // Whole milliseconds count.
    unavailable(redlock.try_acquire("a", MAX_TTL + Duration::from_micros(999)));
    for (bad, text) in [(ms(2), "2ms"), (Duration::MAX, "100 years")] {
        let redlock = redlock.clone();
        let error = config(redlock.with_options(options().restart_guard(bad)));
        assert!(
            error.contains("restart_guard") && error.contains(text),
            "{error}"
        );
    }
}

#[test]
fn a_guard_belongs_to_one_handle() {
    let mut servers = seasoned(1);
    let redlock = client(&urls(&servers), options());
    redlock.acquire("a", MAX_TTL).unwrap().release().unwrap();
    servers[0].kill();
    servers[0].restart();
    eventually("it votes", || redlock.try_acquire("a", MAX_TTL).is_ok());
    let guarded = redlock.clone().with_options(guarded()).unwrap();
    unavailable(guarded.try_acquire("a", MAX_TTL));
    drop(redlock.try_acquire("b", MAX_TTL).unwrap().unwrap());
    guarded.acquire("a", MAX_TTL).unwrap().release().unwrap();
}

struct Capture(Mutex<Vec<String>>);

static CAPTURE: Capture = Capture(Mutex::new(Vec::new()));

impl log::Log for Capture {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        if record.level() == log::Level::Warn {
            self.0.lock().unwrap().push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

#[test]
fn each_restart_is_logged_once_and_closing_waits_for_no_node_that_sits_out() {
    let name = "each_restart_is_logged_once_and_closing_waits_for_no_node_that_sits_out";
    in_own_process(name, || {
        log::set_logger(&CAPTURE).unwrap();
        log::set_max_level(log::LevelFilter::Warn);
        let warnings = || std::mem::take(&mut *CAPTURE.0.lock().unwrap());
        let mut servers = seasoned(3);
        let node = format!("node 1 (127.0.0.1:{})", servers[1].port());
        let unguarded = client(&urls(&servers), options());
        let redlock = client(&urls(&servers), guarded());
        for client in [&unguarded, &redlock] {
            client.acquire("a", MAX_TTL).unwrap().release().unwrap();
        }
        assert_eq!(warnings(), [""; 0]);
        servers[1].kill();
        servers[1].restart();
        let until = Instant::now() + LATEST + S;
        while Instant::now() < until {
            drop(redlock.try_acquire("a", MAX_TTL));
            drop(unguarded.try_acquire("b", MAX_TTL));
            std::thread::sleep(ms(10));
        }
        let lines = warnings();
        let count = |part: &str| {
            let line = format!("{node} {part}");
            lines.iter().filter(|said| said.starts_with(&line)).count()
        };
        assert_eq!(count("is away: "), 2, "{lines:#?}");
        assert_eq!(count("gives no votes for "), 1, "{lines:#?}");
        let unsaid = "is back: restarted or replaced, it may have forgotten locks (see \
                      Options::restart_guard)";
        assert_eq!(count(unsaid), 1, "{lines:#?}");
        assert_eq!(count("is back"), 2, "{lines:#?}");
        assert_eq!(lines.len(), 5, "{lines:#?}");
        drop(unguarded);

        // Its release is due to a node that sits out.
        let lock = redlock.acquire("a", MAX_TTL).unwrap();
        servers[1].kill();
        servers[1].restart();
        eventually("it sits out", || {
            drop(redlock.try_acquire("b", MAX_TTL));
            let lines = CAPTURE.0.lock().unwrap();
            lines.iter().any(|line| line.contains("gives no votes"))
        });
        let before = Instant::now();
        drop(redlock);
        drop(lock);
        assert!(
            before.elapsed() < NODE_TIMEOUT + S,
            "{:?}",
            before.elapsed()
        );
        eventually("no thread is left", || attendants() == 0);
        assert!(before.elapsed() < 2 * S);
        let lines = warnings();
        assert!(
            !lines.iter().any(|line| line.contains("is back")),
            "{lines:#?}"
        );
    });
}

/// The time until enough nodes vote, whichever others are dead.
#[test]
fn the_time_to_wait_is_that_of_the_node_that_makes_the_majority() {
    let mut servers = seasoned(3);
    let redlock = client(&urls(&servers), guarded());
    redlock.acquire("a", MAX_TTL).unwrap().release().unwrap();
    servers[0].kill();
    servers[1].kill();
    servers[1].restart();
    eventually("it sits out", || {
        let errors = redlock.try_acquire("a", MAX_TTL);
        matches!(errors, Err(redlock_sync::Error::Unavailable(errors)) if errors.retry_after().is_some())
    });
    let errors = unavailable(redlock.try_acquire("a", MAX_TTL));
    let wait = errors.retry_after().unwrap();
    assert!(wait > S / 2 && wait <= MAX_TTL + 2 * S, "{wait:?}");
    std::thread::sleep(wait + S / 10);
    drop(redlock.acquire_within("a", MAX_TTL, S).unwrap());
    // With two of them dead it is unknown.
    servers[2].kill();
    eventually("the time is unknown", || {
        unavailable(redlock.try_acquire("a", MAX_TTL))
            .retry_after()
            .is_none()
    });
}

#[test]
fn one_server_under_two_addresses_is_found_when_it_begins_to_sit_out() {
    let server = Server::start();
    let nodes = [server.url(), server.url().replace("127.0.0.1", "localhost")];
    let redlock = client(&nodes, guarded());
    let started = Instant::now();
    eventually("it is found", || {
        let result = redlock.try_acquire("a", MAX_TTL);
        matches!(result, Err(redlock_sync::Error::Config(_)))
    });
    assert!(started.elapsed() < MAX_TTL / 2);
}

/// The same server behind a new connection, while it sits out.
#[test]
fn a_connection_that_is_lost_makes_a_wait_neither_shorter_nor_longer() {
    let server = Server::start();
    let up = Instant::now();
    let redlock = client(&[server.url()], guarded());
    unavailable(redlock.try_acquire("a", MAX_TTL));
    for _ in 0..3 {
        std::thread::sleep(S / 2);
        server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    }
    redlock.acquire("a", MAX_TTL).unwrap().release().unwrap();
    let took = up.elapsed();
    assert!((MAX_TTL..LATEST + S).contains(&took), "{took:?}");
}

/// Maintenance as the guide has it: one node after the other, each when the one before votes and the lock is
/// on it again.
#[test]
fn a_kept_lock_lives_while_all_nodes_are_restarted_one_by_one() {
    let max_ttl = Duration::from_millis(1500);
    let mut servers = Server::several(3);
    let redlock = client(&urls(&servers), options().restart_guard(max_ttl));
    let lock = redlock.acquire("job", max_ttl).unwrap();
    let lock = lock.keep_alive(1000 * S).unwrap();
    // The last one may have been too young for the first grant.
    eventually("it is on all nodes", || {
        servers.iter().all(|server| server.exists("job"))
    });
    for server in &mut servers {
        server.kill();
        server.restart();
        eventually("it is there again", || {
            assert_eq!(lock.lost(), None);
            server.exists("job")
        });
    }
    lock.release().unwrap();
}

/// It was stopped between being told how long the server has been up, and making use of it.
#[test]
fn a_client_that_is_stopped_while_nodes_sit_out_waits_no_shorter() {
    const NAME: &str = "a_client_that_is_stopped_while_nodes_sit_out_waits_no_shorter";
    if role().is_some() {
        let nodes = std::env::var("NODES").unwrap();
        let redlock = client(&[nodes], guarded());
        unavailable(redlock.try_acquire("a", MAX_TTL));
        redlock.acquire("a", MAX_TTL).unwrap().leak();
        return;
    }
    let mut server = Server::start();
    let mut process = another_process(NAME, "waits")
        .env("NODES", server.url())
        .spawn()
        .unwrap();
    // While it waits it has another connection, for messages.
    eventually("it is connected", || server.clients() > 0);
    let pid = i32::try_from(process.id()).unwrap();
    // SAFETY: plain system calls on a child of ours that was not waited for.
    let signal = |signal| unsafe { libc::kill(pid, signal) };
    signal(libc::SIGSTOP);
    server.kill();
    server.restart();
    let restarted = Instant::now();
    std::thread::sleep(2 * S);
    signal(libc::SIGCONT);
    eventually("it has the lock", || server.exists("a"));
    let took = restarted.elapsed();
    assert!(process.wait().unwrap().success());
    // What the old server said may be read only when the process goes on, after two seconds; the node is asked
    // again two seconds later, and the ttl counts from then.
    let asked_again = 2 * S + 2 * S;
    assert!(
        (MAX_TTL..asked_again + LATEST + S).contains(&took),
        "{took:?}"
    );
}
