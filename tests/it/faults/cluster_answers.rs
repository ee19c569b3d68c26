//! What the servers of a Redis Cluster answer, and which of them are believed.

use crate::support;

use std::net::TcpListener;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redlock_sync::{Credentials, Redlock};
use support::fake::Fake;
use support::*;

const S: Duration = Duration::from_secs(1);

/// The master that a server names: host and port.
type Master = Arc<Mutex<(String, u16)>>;

fn bulk(text: &str) -> String {
    format!("${}\r\n{text}\r\n", text.len())
}

/// A map in which this master has all slots, and the others are its replicas.
fn slots((host, port): &(String, u16), replicas: &[u16]) -> Vec<u8> {
    let server = |host: &str, port: u16| format!("*3\r\n{}:{port}\r\n{}", bulk(host), bulk("id"));
    let replicas = replicas.iter().map(|port| server("127.0.0.1", *port));
    let servers: Vec<String> = std::iter::once(server(host, *port))
        .chain(replicas)
        .collect();
    let servers = (servers.len() + 2, servers.concat());
    format!("*1\r\n*{}\r\n:0\r\n:16383\r\n{}", servers.0, servers.1).into()
}

/// Three servers that name the first of two masters.
struct Fakes {
    servers: [Server; 2],
    named: [Master; 3],
    ports: [u16; 3],
    redlock: Redlock,
}

fn fakes() -> Fakes {
    let servers = [(); 2].map(|()| Server::plain_cluster());
    let old = ("127.0.0.1".to_owned(), servers[0].port());
    let named = [(); 3].map(|()| Arc::new(Mutex::new(old.clone())));
    let all: Arc<Mutex<Vec<u16>>> = Arc::default();
    let ports = named.each_ref().map(|named| {
        let (named, all) = (named.clone(), all.clone());
        let fake = Fake::new(move |words| match &words[0][..] {
            b"CLUSTER" => slots(&named.lock().unwrap(), &all.lock().unwrap()),
            _ => b"+OK\r\n".to_vec(),
        });
        fake.port()
    });
    all.lock().unwrap().extend(ports);
    let hosts = ports.map(|port| format!("127.0.0.1:{port}")).join(",");
    let redlock = Redlock::new(format!("redis+cluster://u:hunter2@{hosts}")).unwrap();
    let redlock = redlock
        .with_options(options().restart_guard(Duration::ZERO))
        .unwrap();
    // Their own maps would show none of the three.
    let user = ["u", "on", ">hunter2", "~*", "&*", "+@all", "-cluster|slots"];
    for server in &servers {
        server.command(&[&["ACL", "SETUSER"], &user[..]].concat());
    }
    Fakes {
        servers,
        named,
        ports,
        redlock,
    }
}

/// For how long after this the first server still grants locks.
fn last_grant(fakes: &Fakes, redlock: &Redlock, time: Duration) -> Option<Duration> {
    let (since, mut last) = (Instant::now(), None);
    while since.elapsed() < time {
        if let Ok(Some(lock)) = redlock.try_acquire("a", TTL) {
            if fakes.servers[0].exists("a") {
                last = Some(since.elapsed());
            }
            drop(lock);
        }
        std::thread::sleep(ms(5));
    }
    last
}

/// A port where no server listens.
fn nobody() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// By a client that had its lock there, and by one that asks for the map first. The error names the address, who has named it,
/// and what to set.
#[test]
fn a_master_that_few_servers_name_is_not_used_where_the_other_one_cannot_be_reached() {
    let fakes = fakes();
    take(&fakes.redlock, "a").release().unwrap();
    let new = nobody();
    for named in &fakes.named[1..] {
        named.lock().unwrap().1 = new;
    }
    let fresh = fakes.redlock.clone();
    let fresh = fresh
        .with_options(options().restart_guard(Duration::ZERO))
        .unwrap();
    for redlock in [&fakes.redlock, &fresh] {
        let last = last_grant(&fakes, redlock, 6 * S);
        assert!(last.is_none_or(|last| last < 3 * S), "{last:?}");
    }
    let words = [
        &*format!("(127.0.0.1:{new}): cannot connect"),
        &format!("at 127.0.0.1:{new}, which 127.0.0.1:"),
        "cluster-announce-ip",
    ];
    // The three that are asked in turn may also be the new master, and one of each.
    eventually("the error names the new master", || {
        let text = unavailable(fakes.redlock.try_acquire("a", TTL)).to_string();
        let by = |port: &u16| text.contains(&format!("127.0.0.1:{port} names"));
        words.iter().all(|word| text.contains(word)) && fakes.ports[1..].iter().any(by)
    });
    for named in &fakes.named {
        named.lock().unwrap().1 = fakes.servers[1].port();
    }
    eventually("it has moved", || {
        let lock = fakes.redlock.try_acquire("a", TTL).ok().flatten();
        lock.is_some() && fakes.servers[1].exists("a")
    });
}

/// The error names the address, and the server that has named it.
#[test]
fn a_slot_that_has_moved_to_where_no_server_answers_is_named_with_that_address() {
    let (new, own) = (nobody(), Arc::new(Mutex::new(0)));
    let port = own.clone();
    let fake = Fake::new(move |words| match &words[0][..] {
        b"CLUSTER" => slots(&("127.0.0.1".into(), *port.lock().unwrap()), &[]),
        b"SET" | b"EVAL" | b"EVALSHA" => format!("-MOVED 15495 127.0.0.1:{new}\r\n").into(),
        _ => b"+OK\r\n".to_vec(),
    });
    let old = fake.port();
    *own.lock().unwrap() = old;
    let redlock = Redlock::new(format!("redis+cluster://127.0.0.1:{old}")).unwrap();
    let options = options().restart_guard(Duration::ZERO);
    let redlock = redlock.with_options(options).unwrap();
    let words = [
        &*format!("(127.0.0.1:{new}): cannot connect"),
        &format!("127.0.0.1:{old}"),
        "cluster-announce-ip",
    ];
    let mut text = String::new();
    eventually("the error names both", || {
        text = unavailable(redlock.try_acquire("a", TTL)).to_string();
        println!("{text}");
        words.iter().all(|word| text.contains(word))
    });
}

/// In its map, and as the server that has a slot now.
#[test]
fn a_server_that_gives_the_password_as_a_host_is_not_repeated() {
    let fakes = fakes();
    for named in &fakes.named {
        named.lock().unwrap().0 = "db-hunter2".into();
    }
    let own = Arc::new(Mutex::new(0));
    let port = own.clone();
    let moved = Fake::new(move |words| match &words[0][..] {
        b"CLUSTER" => slots(&("127.0.0.1".into(), *port.lock().unwrap()), &[]),
        b"SET" | b"EVAL" | b"EVALSHA" => b"-MOVED 15495 db-hunter2:1\r\n".to_vec(),
        _ => b"+OK\r\n".to_vec(),
    });
    *own.lock().unwrap() = moved.port();
    let moved = format!("redis+cluster://u:hunter2@127.0.0.1:{}", moved.port());
    let moved = Redlock::new(moved).unwrap();
    let moved = moved
        .with_options(options().restart_guard(Duration::ZERO))
        .unwrap();
    let hosts = fakes
        .ports
        .map(|port| format!("127.0.0.1:{port}"))
        .join(",");
    let from_closure = options()
        .restart_guard(Duration::ZERO)
        .credentials(|_| Ok::<_, String>(Credentials::new("hunter2").user("u")));
    let by_closure = Redlock::new(format!("redis+cluster://{hosts}")).unwrap();
    let by_closure = by_closure.with_options(from_closure).unwrap();
    for redlock in [&fakes.redlock, &moved, &by_closure] {
        let errors = unavailable(redlock.try_acquire("a", TTL));
        let report = redlock.check("probe").unwrap();
        let inspection = redlock.inspect("a").unwrap();
        let text = format!("{errors} {errors:?} {report} {inspection:?} {redlock:?}");
        assert!(!text.contains("hunter"), "{text}");
    }
}

/// A server may give what its configuration has: a URL, perhaps.
#[test]
fn what_is_no_host_name_is_not_repeated() {
    let fakes = fakes();
    for form in [
        "h%75nter2",
        "redis://u:h%75nter2@10.255.255.1",
        "h\\x75nter2",
    ] {
        for named in &fakes.named {
            named.lock().unwrap().0 = form.into();
        }
        let errors = unavailable(fakes.redlock.try_acquire("a", TTL));
        let report = fakes.redlock.check("probe").unwrap();
        let inspection = fakes.redlock.inspect("a").unwrap();
        let text = format!("{errors} {errors:?} {report} {inspection:?}");
        assert!(!text.contains("nter2"), "{text}");
    }
}

/// The slot moves, and the holder leaves the lock while a server is asked to renew it.
#[test]
fn a_renewal_is_not_sent_on_behind_the_end_of_its_lock() {
    let is_renewal = |words: &[Vec<u8>]| words.len() == 6 && words[5] == b"6000";
    let owner = Arc::new(Mutex::new(0));
    let map = || {
        let owner = owner.clone();
        move || slots(&("127.0.0.1".into(), *owner.lock().unwrap()), &[])
    };
    let renewed = Arc::new(Mutex::new(0));
    let (count, new_map) = (renewed.clone(), map());
    let new = Fake::new(move |words| match &words[0][..] {
        b"CLUSTER" => new_map(),
        b"EVAL" | b"EVALSHA" => {
            *count.lock().unwrap() += u32::from(is_renewal(words));
            b":1\r\n".to_vec()
        }
        _ => b"+OK\r\n".to_vec(),
    });
    let moved = format!("-MOVED 15495 127.0.0.1:{}\r\n", new.port()).into_bytes();
    let (comes, asked) = channel();
    let (go_on, goes_on) = channel();
    let (comes, goes_on, old_map) = (Mutex::new(comes), Mutex::new(goes_on), map());
    let old = Fake::new(move |words| match &words[0][..] {
        b"CLUSTER" => old_map(),
        b"EVAL" | b"EVALSHA" => {
            if is_renewal(words) {
                comes.lock().unwrap().send(()).unwrap();
                goes_on.lock().unwrap().recv().unwrap();
            }
            moved.clone()
        }
        _ => b"+OK\r\n".to_vec(),
    });
    *owner.lock().unwrap() = old.port();
    let redlock = Redlock::new(format!("redis+cluster://127.0.0.1:{}", old.port())).unwrap();
    let options = options().restart_guard(Duration::ZERO);
    let redlock = redlock.with_options(options).unwrap();
    let lock = redlock.acquire("a", 6 * S).unwrap();
    let kept = lock.keep_alive(TTL).unwrap();
    asked.recv().unwrap();
    *owner.lock().unwrap() = new.port();
    let lock = kept.stop();
    go_on.send(()).unwrap();
    // The redirect is read, and would be followed.
    std::thread::sleep(S / 2);
    lock.leak_for(S).unwrap();
    assert_eq!(*renewed.lock().unwrap(), 0);
}

/// A server of a Cluster for looks, whose map names the first of these ports. It answers `looked` to the script of a look, which
/// is counted.
fn looked_at(
    named: &Arc<Mutex<u16>>,
    looked: impl Fn(u32) -> String + Send + Sync + 'static,
) -> (Fake, Arc<Mutex<u32>>) {
    let counted = Arc::new(Mutex::new(0));
    let (count, named) = (counted.clone(), named.clone());
    let fake = Fake::new(move |words| match &words[0][..] {
        b"CLUSTER" => slots(&("127.0.0.1".into(), *named.lock().unwrap()), &[]),
        b"EVAL" if words.get(3).is_some_and(|key| key == b"a") => {
            let mut count = count.lock().unwrap();
            *count += 1;
            looked(*count).into()
        }
        b"ZRANGE" => b"*0\r\n".to_vec(),
        b"TIME" => b"*2\r\n$1\r\n1\r\n$1\r\n1\r\n".to_vec(),
        _ => b"+OK\r\n".to_vec(),
    });
    (fake, counted)
}

fn is_free(redlock: &Redlock) -> bool {
    let inspection = redlock.inspect("a").unwrap();
    println!("{inspection:?}");
    matches!(inspection.state(), redlock_sync::LockState::Free)
}

/// The map goes on to name the server that has lost the slot.
#[test]
fn a_look_that_was_redirected_tells_the_next_ones_where_the_slot_is() {
    let named = Arc::default();
    let (new, _) = looked_at(&named, |_| "$-1\r\n".into());
    let moved = format!("-MOVED 15495 127.0.0.1:{}\r\n", new.port());
    let (old, asked) = looked_at(&named, move |_| moved.clone());
    *named.lock().unwrap() = old.port();
    let redlock = Redlock::new(format!("redis+cluster://127.0.0.1:{}", old.port())).unwrap();
    for _ in 0..20 {
        *asked.lock().unwrap() = 0;
        let begun = Instant::now();
        assert!(is_free(&redlock) && is_free(&redlock));
        // The server is believed for a second.
        if begun.elapsed() < 9 * S / 10 {
            assert!(*asked.lock().unwrap() <= 1);
            return;
        }
    }
    panic!("looks take too long");
}

#[test]
fn a_look_goes_to_an_owner_without_a_name_and_is_repeated_where_keys_are_on_two_servers() {
    let named = Arc::default();
    let (new, _) = looked_at(&named, |_| "$-1\r\n".into());
    for error in ["MOVED 15495 ?:7", "ASK 15495 ?:7", "TRYAGAIN it moves"] {
        let (next, is_moved) = (new.port(), error.starts_with("MOVED"));
        let map = named.clone();
        let (old, asked) = looked_at(&named, move |count| match count {
            1 => {
                if is_moved {
                    *map.lock().unwrap() = next;
                }
                format!("-{error}\r\n")
            }
            _ => "$-1\r\n".into(),
        });
        *named.lock().unwrap() = old.port();
        let redlock = Redlock::new(format!("redis+cluster://127.0.0.1:{}", old.port())).unwrap();
        assert!(is_free(&redlock), "{error}");
        let again = u32::from(!is_moved);
        assert_eq!(*asked.lock().unwrap(), 1 + again, "{error}");
    }
}
