//! Redis Clusters of many ranges, and of many masters.

use crate::support;

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use redlock_sync::Redlock;
use support::fake::{Fake, Words};
use support::*;

const SLOTS: usize = 16384;
const S: Duration = Duration::from_secs(1);

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

fn server(host: &str, port: u16) -> String {
    let id = bulk(&"0".repeat(40));
    let metadata = format!("*2\r\n{}{}", bulk("hostname"), bulk(host));
    format!("*4\r\n{}:{port}\r\n{id}{metadata}", bulk(host))
}

/// The reply to CLUSTER SLOTS: the slots in ranges of this length, each at the servers of its number.
fn map(length: usize, servers: impl Fn(usize) -> Vec<String>) -> Vec<u8> {
    let count = SLOTS.div_ceil(length);
    let mut reply = format!("*{count}\r\n");
    for range in 0..count {
        let (first, servers) = (range * length, servers(range));
        let last = (first + length).min(SLOTS) - 1;
        let numbers = format!(":{first}\r\n:{last}\r\n");
        reply.push_str(&format!(
            "*{}\r\n{numbers}{}",
            2 + servers.len(),
            servers.concat()
        ));
    }
    reply.into_bytes()
}

/// What a master that grants everything says to all but CLUSTER SLOTS.
fn master(words: &Words) -> Vec<u8> {
    let reply = match &*words[0].to_ascii_uppercase() {
        b"SET" | b"CLIENT" => "+OK\r\n".into(),
        b"EVAL" | b"EVALSHA" => ":1\r\n".into(),
        b"SCRIPT" => "$40\r\n0000000000000000000000000000000000000000\r\n".into(),
        b"INFO" => {
            bulk("# Server\r\nredis_version:7.0.0\r\nrun_id:1\r\nuptime_in_seconds:99999\r\n")
        }
        _ => "-ERR unknown command\r\n".to_owned(),
    };
    reply.into_bytes()
}

/// A Cluster whose map is this, by its first server's port, and how often that was asked for it.
fn cluster(map: impl Fn(u16) -> Vec<u8> + Send + Sync + 'static) -> (String, Arc<AtomicUsize>) {
    let (port, asked) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (own, count) = (port.clone(), asked.clone());
    let made = std::sync::OnceLock::new();
    let fake = Fake::new(move |words| match &*words[0] {
        b"CLUSTER" if words[1] == b"SLOTS" => {
            count.fetch_add(1, Ordering::Relaxed);
            let port = u16::try_from(own.load(Ordering::Relaxed)).unwrap();
            made.get_or_init(|| map(port)).clone()
        }
        _ => master(words),
    });
    port.store(fake.port().into(), Ordering::Relaxed);
    (format!("redis+cluster://127.0.0.1:{}", fake.port()), asked)
}

fn client(url: &str, connect_timeout: Duration) -> Redlock {
    let options = options().node_timeout(2 * S).restart_guard(Duration::ZERO);
    let redlock = Redlock::new([url]).unwrap();
    redlock
        .with_options(options.connect_timeout(connect_timeout))
        .unwrap()
}

/// With three servers of long names for each slot it has more than six megabytes. No resolver is asked for these names, which
/// are numbers: one that cannot be reached either would make another answer of them.
#[test]
fn a_map_in_which_each_slot_is_a_range_is_read() {
    let names = ["0177.0000.0000.0000002", "0177.0000.0000.0000003"];
    let (url, asked) = cluster(move |port| {
        let replicas = names.map(|name| server(name, port));
        map(1, |_| {
            [vec![server("127.0.0.1", port)], replicas.to_vec()].concat()
        })
    });
    let redlock = client(&url, 10 * S);
    let began = Instant::now();
    // While it is asked for again.
    while began.elapsed() < 3 * S {
        redlock
            .try_acquire("a", TTL)
            .unwrap()
            .unwrap()
            .release()
            .unwrap();
    }
    assert!(asked.load(Ordering::Relaxed) > 1);
}

#[test]
fn a_map_that_does_not_end_is_refused_in_time() {
    for element in [
        "*3\r\n:0\r\n:1\r\n*2\r\n$1\r\na\r\n:1\r\n",
        "*1\r\n*1\r\n*1\r\n",
        "+OK\r\n",
        "$0\r\n\r\n",
        "*65536\r\n",
    ] {
        let element = element.to_owned();
        let (url, _) = cluster(move |_| {
            let all = element.repeat((20 << 20) / element.len());
            [&b"*65536\r\n"[..], all.as_bytes()].concat()
        });
        let began = Instant::now();
        let nodes = unavailable(client(&url, 10 * S).try_acquire("a", TTL));
        assert!(began.elapsed() < 20 * S, "{:?}", began.elapsed());
        assert!(nodes.to_string().contains("the cluster of"), "{nodes}");
    }
}

/// Masters that are away: each of them would take its whole time.
#[test]
fn of_many_masters_some_are_connected_at_a_time() {
    let name = "of_many_masters_some_are_connected_at_a_time";
    in_own_process(name, || {
        // They accept connections, and answer nothing.
        let silent = TcpListener::bind(("0.0.0.0", 0)).unwrap();
        let port = silent.local_addr().unwrap().port();
        let (url, _) = cluster(move |_| {
            map(SLOTS / 256, |master| {
                vec![server(&format!("127.2.{master}.1"), port)]
            })
        });
        let before = threads();
        let redlock = client(&url, S / 2);
        let done = std::sync::atomic::AtomicBool::new(false);
        let most = std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                let mut most = 0;
                while !done.load(Ordering::Relaxed) {
                    most = most.max(threads());
                    std::thread::sleep(ms(2));
                }
                most
            });
            let began = Instant::now();
            assert!(redlock.connect().is_err());
            assert!(began.elapsed() < 10 * S, "{:?}", began.elapsed());
            let began = Instant::now();
            assert_eq!(redlock.list(None).unwrap().failed().count(), 1);
            assert!(began.elapsed() < 30 * S, "{:?}", began.elapsed());
            done.store(true, Ordering::Relaxed);
            watcher.join().unwrap()
        });
        // A lane at a time has one that waits for it, and one that connects it; others ask where its master is.
        assert!(most < before + 250, "{most} threads");
        let began = Instant::now();
        drop(redlock);
        assert!(began.elapsed() < 10 * S, "{:?}", began.elapsed());
    });
}
