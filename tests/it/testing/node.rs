//! What a test can do to a node, one by one.

use crate::support;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use redlock_sync::testing::Node;
use redlock_sync::{Error, Redlock};
use support::*;

fn three() -> [Node; 3] {
    [(); 3].map(|()| Node::start().unwrap())
}

fn client(nodes: &[Node]) -> Redlock {
    let redlock = Redlock::new(nodes.iter().map(Node::url)).unwrap();
    redlock.with_options(options().wait(ms(200))).unwrap()
}

fn all(nodes: &[Node], act: impl Fn(&Node)) {
    nodes.iter().for_each(act);
}

#[test]
fn a_holder_is_shown_with_its_token_label_and_time() {
    let node = Node::start().unwrap();
    let redlock = client(std::slice::from_ref(&node));
    let labelled = redlock
        .clone()
        .with_options(unhurried().label("web-3"))
        .unwrap();
    assert_eq!(node.holder("a"), None);
    let lock = redlock.acquire("a", TTL).unwrap();
    let held = node.holder("a").unwrap();
    assert_eq!((held.token, held.label), (*lock.token(), None));
    assert!(held.remaining <= TTL && held.remaining > TTL / 2);
    let other = labelled.acquire("b", TTL).unwrap();
    assert_eq!(node.holder("b").unwrap().label.as_deref(), Some("web-3"));
    assert_eq!(node.locks(), [b"a", b"b"]);
    assert!(node.release("a"));
    assert!(!node.release("a"));
    assert!(matches!(lock.release(), Err(Error::Lost(_))));
    other.release().unwrap();
}

#[test]
fn permits_readers_and_waiters_are_shown() {
    let node = Node::start().unwrap();
    let redlock = client(std::slice::from_ref(&node));
    let pool = redlock.semaphore("pool", 2).unwrap();
    let permits = [TTL / 2, TTL].map(|ttl| pool.try_acquire(ttl).unwrap().unwrap());
    let reader = redlock.read_lock("prices").unwrap().acquire(TTL).unwrap();
    assert_eq!(node.locks(), [&b"pool"[..], b"prices"]);
    // The one that lasts longest.
    assert_eq!(node.holder("pool").unwrap().token, *permits[1].token());
    assert!(node.holder("pool").unwrap().remaining > TTL / 2);
    reader.leak();
    assert!(node.holder("prices").is_some());
    assert!(node.release("prices") && !node.release("prices"));
    let lock = take(&redlock, "a");
    assert_eq!(redlock.inspect("a").unwrap().waiting(), Some(0));
    std::thread::scope(|scope| {
        let options = unhurried().label("web-3");
        let other = Redlock::new(node.url()).unwrap();
        let other = other.with_options(options).unwrap();
        let waits = scope.spawn(move || other.acquire("a", TTL).unwrap().release().unwrap());
        eventually("it waits", || node.waiting("a") == 1);
        let inspection = redlock.inspect("a").unwrap();
        assert_eq!(inspection.waiting(), Some(1));
        assert_eq!(inspection.waiting_labels().collect::<Vec<_>>(), ["web-3"]);
        assert!(inspection.longest_wait().is_some_and(|wait| wait < TTL));
        // All permits are released together, and one who waits for them is told.
        let waits_too = scope.spawn(|| {
            let redlock = Redlock::new(node.url()).unwrap();
            let redlock = redlock.with_options(unhurried()).unwrap();
            let pool = redlock.semaphore("pool", 2).unwrap();
            pool.acquire(TTL).unwrap().release().unwrap();
        });
        eventually("it waits, too", || node.waiting("pool") == 1);
        assert!(node.release("pool") && node.release("a"));
        waits_too.join().unwrap();
        waits.join().unwrap();
    });
    drop((permits, lock));
    node.refuse("LOADING Redis is loading the dataset in memory");
    assert!(redlock.last_run("nightly").is_err());
}

#[test]
fn a_lock_that_another_process_holds_is_busy_until_it_ends_or_is_released() {
    let nodes = three();
    let redlock = client(&nodes);
    let is_free = || redlock.try_acquire("a", TTL).unwrap().is_some();
    all(&nodes, |node| node.hold("a", "web-3:4711", TTL).unwrap());
    assert!(!is_free());
    let inspection = redlock.inspect("a").unwrap();
    // Three processes: no majority has it for one holder.
    assert!(format!("{:?}", inspection.state()).starts_with("Blocked"));
    all(&nodes, |node| node.advance(TTL + ms(1)));
    assert!(is_free());
    all(&nodes, |node| node.hold("a", "", Duration::MAX).unwrap());
    all(&nodes, |node| {
        node.advance(Duration::from_secs(86_400 * 365))
    });
    assert!(!is_free());
    all(&nodes, |node| assert!(node.release("a")));
    assert!(is_free());
    for (name, label, ttl) in [("", "", TTL), ("a", "a\nb", TTL), ("a", "", Duration::ZERO)] {
        assert!(!config(nodes[0].hold(name, label, ttl)).is_empty());
    }
}

#[test]
fn a_release_on_the_nodes_wakes_all_waiters() {
    let nodes = three();
    let never = Duration::from_secs(15);
    let patient = options().retry_delay(never, never);
    let redlock = client(&nodes).with_options(patient).unwrap();
    all(&nodes, |node| node.hold("a", "", Duration::MAX).unwrap());
    let started = Instant::now();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| redlock.acquire("a", TTL).unwrap().release().unwrap());
        eventually("it is in the queue", || {
            nodes.iter().all(|node| node.waiting("a") == 1)
        });
        all(&nodes, |node| assert!(node.release("a")));
        waits.join().unwrap();
    });
    assert!(started.elapsed() < never / 2, "{:?}", started.elapsed());
}

#[test]
fn all_locks_are_denied_until_they_are_released() {
    let nodes = three();
    let redlock = client(&nodes);
    let kept = redlock.acquire("kept", TTL).unwrap();
    all(&nodes, |node| node.hold_all().unwrap());
    for name in ["a", "b"] {
        assert!(redlock.try_acquire(name, TTL).unwrap().is_none());
        assert!(matches!(redlock.acquire(name, TTL), Err(Error::Busy(_))));
    }
    all(&nodes, Node::release_all);
    redlock.acquire("a", TTL).unwrap().release().unwrap();
    kept.release().unwrap();
    eventually("nothing is left", || {
        nodes.iter().all(|node| node.locks().is_empty())
    });
}

#[test]
fn a_silent_node_goes_on_where_it_was_when_it_recovers() {
    let nodes = three();
    let redlock = client(&nodes);
    redlock.connect().unwrap();
    nodes[0].be_silent();
    let lock = redlock.acquire("a", TTL).unwrap();
    nodes[1].be_silent();
    unavailable(redlock.try_acquire("b", TTL).map(drop));
    all(&nodes, Node::recover);
    lock.release().unwrap();
    eventually("nothing is left", || {
        nodes.iter().all(|node| node.locks().is_empty())
    });
}

#[test]
fn nodes_that_are_down_or_lose_their_connections_come_back() {
    let nodes = three();
    let redlock = client(&nodes);
    redlock.connect().unwrap();
    all(&nodes[1..], Node::go_down);
    unavailable(redlock.try_acquire("a", TTL).map(drop));
    all(&nodes, Node::recover);
    let acquired = || redlock.try_acquire("b", TTL).map(drop).is_ok();
    eventually("a majority is back", acquired);
    let before = nodes[0].requests().connections;
    all(&nodes, Node::close_connections);
    eventually("it works again", acquired);
    eventually("over new connections", || {
        nodes[0].requests().connections > before
    });
}

#[test]
fn an_error_that_is_for_good_is_not_waited_for() {
    let nodes = three();
    let redlock = client(&nodes).with_options(options()).unwrap();
    all(&nodes, |node| {
        node.refuse("NOPERM this user has no permissions\r\n+OK")
    });
    let started = Instant::now();
    let failed = unavailable(redlock.acquire("a", TTL));
    assert!(failed.is_permanent() && started.elapsed() < Duration::from_secs(10));
    assert!(
        failed.to_string().contains("this user has no permissions"),
        "{failed}"
    );
    all(&nodes, Node::recover);
    redlock.acquire("a", TTL).unwrap().release().unwrap();
}

/// A proxy answers so while its server is away. The program does nothing more, and the name is free long before the ttl ends.
#[test]
fn a_release_that_is_refused_in_unknown_words_is_repeated() {
    for error in ["ERR Connection timed out", "upstream failure", "ERR"] {
        let nodes = three();
        let redlock = client(&nodes);
        let lock = redlock.acquire("a", Duration::from_secs(3600)).unwrap();
        let refused = || nodes.iter().all(|node| node.requests().release > 0);
        all(&nodes, |node| node.refuse(error));
        drop(lock);
        eventually(error, refused);
        all(&nodes, Node::recover);
        eventually(error, || nodes.iter().all(|node| node.locks().is_empty()));
    }
}

#[test]
fn an_answer_that_comes_too_late_does_not_count_and_what_it_granted_is_undone() {
    let nodes = three();
    let redlock = client(&nodes);
    redlock.connect().unwrap();
    let wait = redlock
        .clone()
        .with_options(options().wait(Duration::ZERO))
        .unwrap();
    wait.connect().unwrap();
    all(&nodes[1..], |node| node.answer_late(2 * NODE_TIMEOUT));
    unavailable(wait.acquire("a", TTL));
    all(&nodes, Node::recover);
    eventually("nothing is left", || {
        nodes.iter().all(|node| node.locks().is_empty())
    });
    eventually("a majority is back", || redlock.acquire("a", TTL).is_ok());
}

#[test]
fn with_the_restart_guard_a_node_that_forgets_does_not_count() {
    let nodes = three();
    let guarded = options()
        .restart_guard(Duration::from_secs(3600))
        .wait(Duration::ZERO);
    let redlock = client(&nodes).with_options(guarded.clone()).unwrap();
    redlock.acquire("a", TTL).unwrap().leak();
    all(&nodes, Node::forget);
    assert!(nodes.iter().all(|node| node.locks().is_empty()));
    eventually("they are back and do not vote", || {
        let text = unavailable(redlock.try_acquire("a", TTL).map(drop)).to_string();
        text.contains("restarted")
    });
    all(&nodes, |node| node.advance(Duration::from_secs(3700)));
    // By its own clock it is not an hour later.
    unavailable(redlock.try_acquire("a", TTL).map(drop));
    let later = client(&nodes).with_options(guarded).unwrap();
    assert!(later.try_acquire("a", TTL).unwrap().is_some());
}

#[test]
fn requests_are_counted_by_what_they_are_for() {
    let node = Node::start().unwrap();
    let redlock = client(std::slice::from_ref(&node));
    let mut lock = redlock.acquire("a", TTL).unwrap();
    lock.extend(TTL).unwrap();
    lock.extend(TTL).unwrap();
    lock.fencing_token().unwrap();
    lock.release().unwrap();
    let counted = node.requests();
    let counts = [
        counted.acquire,
        counted.extend,
        counted.fence,
        counted.release,
    ];
    assert_eq!((counts, counted.connections), ([1, 2, 1, 1], 1));
}

#[test]
fn what_is_no_command_of_this_crate_is_refused_or_ends_the_connection() {
    let node = Node::start().unwrap();
    let address = node.url().strip_prefix("redis://").unwrap();
    let connect = || {
        let stream = TcpStream::connect(address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        stream
    };
    for garbage in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"\x16\x03\x01\x02\x00",
        b"PING\r\n",
    ] {
        let mut stream = connect();
        stream.write_all(garbage).unwrap();
        // Closed, or reset.
        assert!(matches!(stream.read(&mut [0; 10]), Ok(0) | Err(_)));
    }
    let mut stream = connect();
    for odd in [
        "*0\r\n",
        "*1\r\n$3\r\nGET\r\n",
        "*2\r\n$4\r\nEVAL\r\n$8\r\nreturn 1\r\n",
        "*1\r\n$4\r\nEVAL\r\n",
        "*6\r\n$3\r\nSET\r\n$1\r\na\r\n$1\r\nb\r\n$2\r\nNX\r\n$2\r\nPX\r\n$2\r\n-1\r\n",
        "*2\r\n$6\r\nSELECT\r\n$1\r\n7\r\n",
    ] {
        stream.write_all(odd.as_bytes()).unwrap();
        let mut reply = [0; 200];
        let read = stream.read(&mut reply).unwrap();
        assert!(
            reply[..read].starts_with(b"-ERR "),
            "{odd:?}: {}",
            reply.escape_ascii()
        );
    }
    // A command that never ends.
    let mut stream = connect();
    let endless = [&b"*2\r\n$2000000000\r\n"[..], &vec![b'x'; 3 << 20]].concat();
    let sent = stream.write_all(&endless);
    assert!(sent.is_err() || matches!(stream.read(&mut [0; 1]), Ok(0) | Err(_)));
    let lock = client(std::slice::from_ref(&node)).acquire("a", TTL);
    lock.unwrap().release().unwrap();
}

#[test]
fn names_and_labels_of_any_length_are_understood() {
    let node = Node::start().unwrap();
    let longest = unhurried().label("é".repeat(32));
    let redlock = client(std::slice::from_ref(&node))
        .with_options(longest)
        .unwrap();
    let name = vec![0xff; 64 * 1024];
    let lock = redlock.acquire(&name, TTL).unwrap();
    assert_eq!(node.holder(&name).unwrap().label.unwrap().len(), 64);
    assert!(redlock.try_acquire(&name, TTL).unwrap().is_none());
    lock.release().unwrap();
}

/// The release of a lock on several names has two keys more for each name than its acquisition, and all of it is one command.
#[test]
fn as_many_names_as_there_may_be_are_taken_extended_and_released() {
    let node = Node::start().unwrap();
    let patient = options().node_timeout(Duration::from_secs(10));
    for prefix in ["", &"p".repeat(64)] {
        let redlock = Redlock::new([node.url()]).unwrap();
        let redlock = redlock
            .with_options(patient.clone().prefix(prefix))
            .unwrap();
        let names = (0..1000).map(|n| format!("{n:0>1048}"));
        let several = redlock.several(names).unwrap();
        let mut lock = several.try_acquire(TTL).unwrap().unwrap();
        assert_eq!(node.locks().len(), 1000);
        lock.extend(TTL).unwrap();
        lock.fencing_token().unwrap();
        lock.release().unwrap();
        assert_eq!(node.locks().len(), 0);
    }
}

/// A client that reads nothing is disconnected after a second, and none of the others waits for that.
#[test]
fn a_client_that_takes_in_nothing_stalls_no_other_one() {
    let node = Node::start().unwrap();
    let address = node.url().strip_prefix("redis://").unwrap();
    let redlock = client(std::slice::from_ref(&node));
    redlock.acquire("a", TTL).unwrap().release().unwrap();
    let dead: Vec<TcpStream> = (0..5)
        .map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            let text = [b'x'; 60_000];
            let ping = [&b"*2\r\n$4\r\nPING\r\n$60000\r\n"[..], &text, b"\r\n"].concat();
            for _ in 0..200 {
                stream.write_all(&ping).unwrap();
            }
            stream
        })
        .collect();
    let mut longest = Duration::ZERO;
    let started = Instant::now();
    while started.elapsed() < ms(2500) {
        let before = Instant::now();
        redlock.acquire("a", TTL).unwrap().release().unwrap();
        longest = longest.max(before.elapsed());
        std::thread::sleep(ms(1));
    }
    assert!(longest < ms(500), "{longest:?}");
    for mut stream in dead {
        stream.set_read_timeout(Some(ms(5000))).unwrap();
        let mut page = vec![0; 1 << 20];
        // What the socket had taken, and then its end.
        while stream.read(&mut page).is_ok_and(|read| read > 0) {}
        assert!(
            stream.write_all(b"*1\r\n$4\r\nPING\r\n").is_err()
                || stream.read(&mut page).is_ok_and(|read| read == 0)
        );
    }
}

#[test]
fn a_node_ends_with_its_threads_sockets_and_port_when_it_is_dropped() {
    let name = "a_node_ends_with_its_threads_sockets_and_port_when_it_is_dropped";
    in_own_process(name, || {
        let (threads_before, files_before) = (threads(), open_files());
        for mood in [
            |_: &Node| (),
            Node::be_silent,
            Node::go_down,
            |node: &Node| {
                node.answer_late(Duration::from_secs(60));
            },
        ] {
            let nodes = three();
            let redlock = client(&nodes);
            redlock.connect().unwrap();
            all(&nodes, mood);
            let started = Instant::now();
            let url = nodes[0].url().to_owned();
            drop(nodes);
            assert!(started.elapsed() < Duration::from_secs(10));
            assert!(TcpStream::connect(url.strip_prefix("redis://").unwrap()).is_err());
            drop(redlock);
        }
        eventually("no thread is left", || threads() == threads_before);
        eventually("no file is left", || open_files() == files_before);
    });
}
