//! What sentinels answer, and which of them are believed.

use crate::support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redlock_sync::{Credentials, LockState, Redlock};
use support::sentinels::client;
use support::*;

const S: Duration = Duration::from_secs(1);

/// What stands in for a sentinel: it says what the test wants.
#[derive(Clone)]
struct Fake {
    port: u16,
    says: Arc<Mutex<Says>>,
}

#[derive(Clone)]
struct Says {
    /// The master's port, or an error.
    master: Result<u16, &'static str>,
    /// The reply to `SENTINEL MYID`, which old sentinels do not have.
    id: Option<&'static str>,
    /// Before each reply.
    delay: Duration,
}

impl Fake {
    fn start(master: u16) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let says = Says {
            master: Ok(master),
            id: None,
            delay: Duration::ZERO,
        };
        let fake = Fake {
            port: listener.local_addr().unwrap().port(),
            says: Arc::new(Mutex::new(says)),
        };
        let says = fake.says.clone();
        // It ends with the process of the test.
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let says = says.clone();
                std::thread::spawn(move || Fake::serve(stream.unwrap(), &says));
            }
        });
        fake
    }

    /// Until the client ends the connection.
    fn serve(mut stream: TcpStream, says: &Mutex<Says>) {
        let (mut received, mut buffer) = (Vec::new(), [0; 4096]);
        while let Ok(read @ 1..) = stream.read(&mut buffer) {
            received.extend_from_slice(&buffer[..read]);
            let says = says.lock().unwrap().clone();
            std::thread::sleep(says.delay);
            while let Some((words, length)) = command(&received) {
                received.drain(..length);
                let reply = match (&*words[0], says.master) {
                    ("SENTINEL", _) if words[1] == "MYID" => match says.id {
                        Some(id) => format!("${}\r\n{id}\r\n", id.len()),
                        None => "-ERR Unknown sentinel subcommand 'MYID'\r\n".to_owned(),
                    },
                    ("SENTINEL", Ok(port)) => {
                        let port = port.to_string();
                        format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len())
                    }
                    ("SENTINEL", Err(error)) => format!("-{error}\r\n"),
                    _ => "+OK\r\n".to_owned(),
                };
                if stream.write_all(reply.as_bytes()).is_err() {
                    return;
                }
            }
        }
    }

    fn say(&self, change: impl FnOnce(&mut Says)) {
        change(&mut self.says.lock().unwrap());
    }
}

/// The first command in the bytes, and its length.
fn command(bytes: &[u8]) -> Option<(Vec<String>, usize)> {
    let text = str::from_utf8(bytes).unwrap();
    let mut lines = text.split_inclusive("\r\n");
    let count: usize = lines.next()?.trim_end().strip_prefix('*')?.parse().ok()?;
    let lines: Vec<&str> = lines.take(2 * count).collect();
    let is_whole =
        lines.len() == 2 * count && lines.last().is_some_and(|last| last.ends_with('\n'));
    let words = lines.chunks(2).filter_map(|pair| pair.get(1));
    let words = words.map(|word| word.trim_end().to_uppercase()).collect();
    let length = text.find("\r\n")? + 2 + lines.iter().map(|line| line.len()).sum::<usize>();
    is_whole.then_some((words, length))
}

/// Three of them name the first of two masters.
fn fakes(node_timeout: Duration) -> ([Server; 2], [Fake; 3], Redlock) {
    let servers = [(); 2].map(|()| Server::plain());
    let fakes = [(); 3].map(|()| Fake::start(servers[0].port()));
    let hosts = fakes
        .each_ref()
        .map(|fake| format!("127.0.0.1:{}", fake.port));
    let url = format!("redis+sentinel://{}/m", hosts.join(","));
    let options = options().restart_guard(Duration::ZERO);
    let redlock = client(&url, options.node_timeout(node_timeout));
    (servers, fakes, redlock)
}

#[test]
fn most_sentinels_are_believed_and_not_one_that_is_cut_off() {
    let (servers, fakes, redlock) = fakes(5 * S);
    fakes[0].say(|says| says.master = Ok(servers[1].port()));
    let since = Instant::now();
    while since.elapsed() < 4 * S {
        let lock = take(&redlock, "a");
        assert!(servers[0].exists("a") && !servers[1].exists("a"));
        lock.release().unwrap();
    }
    fakes[1].say(|says| says.master = Ok(servers[1].port()));
    eventually("it has moved", || {
        let lock = redlock.acquire("a", TTL).unwrap();
        let moved = servers[1].exists("a");
        // The client may move while it holds the lock, which the other master does not know.
        drop(lock);
        moved
    });
}

/// They may have chosen another master. Only those that are away have not.
#[test]
fn sentinels_that_refuse_to_answer_confirm_nothing() {
    let (servers, fakes, redlock) = fakes(NODE_TIMEOUT);
    drop(redlock.acquire("a", TTL).unwrap());
    for (error, shown) in [
        ("NOAUTH Authentication required.", "NOAUTH"),
        (
            "ERR No such master with that name",
            "no sentinel knows a master \"m\"",
        ),
    ] {
        fakes
            .iter()
            .for_each(|fake| fake.say(|says| says.master = Err(error)));
        eventually("nothing is granted, and the error shows why", || {
            let refused = redlock.try_acquire("a", TTL);
            refused.is_err_and(|error| error.to_string().contains(shown))
        });
        fakes
            .iter()
            .for_each(|fake| fake.say(|says| says.master = Ok(servers[0].port())));
        eventually("it is granted again", || {
            redlock.try_acquire("a", TTL).is_ok()
        });
    }
}

#[test]
fn sentinels_that_are_far_away_are_heard() {
    let (servers, fakes, redlock) = fakes(5 * S);
    take(&redlock, "a").release().unwrap();
    for fake in &fakes {
        fake.say(|says| (says.delay, says.master) = (ms(150), Ok(servers[1].port())));
    }
    eventually("it has moved", || {
        let lock = redlock.acquire("a", TTL).unwrap();
        let moved = servers[1].exists("a");
        // The client may move while it holds the lock, which the other master does not know.
        drop(lock);
        moved
    });
}

/// For how long after this the first server still grants locks; none of the second's are counted.
fn last_grant(servers: &[Server], redlock: &Redlock, time: Duration) -> Option<Duration> {
    let (since, mut last) = (Instant::now(), None);
    for number in 0.. {
        if since.elapsed() >= time {
            break;
        }
        // A lock that is given up while the client moves stays at the first server.
        let name = format!("a{number}");
        if let Ok(Some(lock)) = redlock.try_acquire(&name, TTL) {
            if servers[0].exists(&name) {
                last = Some(since.elapsed());
            }
            drop(lock);
        }
        std::thread::sleep(ms(5));
    }
    last
}

/// Whether threads look at the set all the time, and how far away its sentinels are.
fn a_replaced_master_is_left(threads: usize, delay: Duration) {
    let (servers, fakes, redlock) = fakes(NODE_TIMEOUT);
    take(&redlock, "a").release().unwrap();
    fakes
        .iter()
        .for_each(|fake| fake.say(|says| says.delay = delay));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = OnDrop(&over);
        for _ in 0..threads {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    redlock.inspect("x").unwrap();
                    drop(redlock.list(None));
                }
            });
        }
        for fake in &fakes {
            fake.say(|says| says.master = Ok(servers[1].port()));
        }
        let last = last_grant(&servers, &redlock, 8 * S);
        assert!(last.is_none_or(|last| last < 4 * S), "{last:?}");
    });
    eventually("it has moved", || {
        let lock = redlock.try_acquire("a", TTL).ok().flatten();
        lock.is_some() && servers[1].exists("a")
    });
}

/// A question that another thread has under way was not put to silent sentinels.
#[test]
fn a_replaced_master_is_left_although_others_ask_for_it_all_the_time() {
    a_replaced_master_is_left(4, ms(50));
}

#[test]
fn a_replaced_master_is_left_although_its_sentinels_are_slow() {
    a_replaced_master_is_left(1, ms(150));
}

/// The answer to one question is for all of them.
#[test]
fn threads_that_inspect_a_lock_at_the_same_time_all_get_an_answer() {
    let (_servers, fakes, redlock) = fakes(NODE_TIMEOUT);
    fakes
        .iter()
        .for_each(|fake| fake.say(|says| says.delay = ms(5)));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for _ in 0..30 {
                    let inspection = redlock.inspect("a").unwrap();
                    assert_eq!(inspection.state(), LockState::Free, "{inspection:?}");
                }
            });
        }
    });
}

/// Only a question that has lasted its whole time shows that they are. Before that they might name another master.
#[test]
fn looks_at_a_set_wait_until_it_is_seen_which_sentinels_are_silent() {
    type Look = fn(&Redlock) -> bool;
    let looks: [(&str, Look); 3] = [
        ("inspect", |redlock| {
            redlock.inspect("a").unwrap().state() == LockState::Free
        }),
        ("last_run", |redlock| {
            matches!(redlock.last_run("a"), Ok(None))
        }),
        ("check", |redlock| {
            let report = redlock.check("a").unwrap();
            report.nodes().all(|node| node.version().is_some())
        }),
    ];
    std::thread::scope(|scope| {
        for (name, look) in looks {
            scope.spawn(move || {
                let (_servers, fakes, redlock) = fakes(NODE_TIMEOUT);
                for fake in &fakes[1..] {
                    fake.say(|says| says.delay = 60 * S);
                }
                assert!(look(&redlock), "{name}");
            });
        }
    });
}

/// A port where no server listens.
fn nobody() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// That is no reason to use the one that few name. The error names the address, who has named it, and what to set.
#[test]
fn a_master_that_few_sentinels_name_is_not_used_where_the_other_one_cannot_be_reached() {
    let (servers, fakes, redlock) = fakes(NODE_TIMEOUT);
    take(&redlock, "a").release().unwrap();
    let new = nobody();
    for fake in &fakes[1..] {
        fake.say(|says| says.master = Ok(new));
    }
    let last = last_grant(&servers, &redlock, 6 * S);
    assert!(last.is_none_or(|last| last < 3 * S), "{last:?}");
    let text = unavailable(redlock.acquire_within("a", TTL, S)).to_string();
    let address = format!("m at 127.0.0.1:{new}): cannot connect");
    let named = format!("at 127.0.0.1:{new}, which the sentinel 127.0.0.1:");
    for word in [&*address, &named, "replica-announce-ip"] {
        assert!(text.contains(word), "{text}");
    }
    let by = |fake: &Fake| text.contains(&format!("the sentinel 127.0.0.1:{} names", fake.port));
    assert!(fakes[1..].iter().any(by) && !by(&fakes[0]), "{text}");
    // One is dead, and the other two name different ones.
    fakes[2].say(|says| says.master = Err("LOADING"));
    eventually("the error says so", || {
        let text = unavailable(redlock.try_acquire("a", TTL)).to_string();
        text.contains("no majority of the sentinels names the master \"m\"")
    });
    fakes[1].say(|says| says.master = Ok(servers[0].port()));
    eventually("it is granted again", || {
        redlock
            .try_acquire("a", TTL)
            .is_ok_and(|lock| lock.is_some())
    });
}

/// Users are not replicated: behind a failover the login may be refused.
#[test]
fn a_master_that_refuses_is_named_with_the_sentinel_that_names_it() {
    let (servers, fakes, redlock) = fakes(NODE_TIMEOUT);
    servers[0].command(&["CONFIG", "SET", "requirepass", "x"]);
    let text = unavailable(redlock.acquire_within("a", TTL, S)).to_string();
    let by = |fake: &Fake| format!("which the sentinel 127.0.0.1:{} names: ", fake.port);
    assert!(fakes.iter().any(|fake| text.contains(&by(fake))), "{text}");
    assert!(text.contains(&servers[0].url()[8..]), "{text}");
    assert!(
        text.contains("NOAUTH") && !text.contains("announce"),
        "{text}"
    );
}

/// As with addresses inside a network of Docker, also where a call has one attempt.
#[test]
fn a_master_that_drops_packets_is_named_by_one_attempt() {
    // Accepted by the system, and by no program.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let fake = Fake::start(port);
    let options = options()
        .connect_timeout(2 * S)
        .restart_guard(Duration::ZERO);
    let url = format!("redis+sentinel://127.0.0.1:{}/m", fake.port);
    let redlock = client(&url, options);
    for errors in [
        unavailable(redlock.try_acquire("a", TTL)),
        unavailable(redlock.connect().map(drop)),
    ] {
        let text = errors.to_string();
        for word in [&*format!("127.0.0.1:{port}"), "replica-announce-ip"] {
            assert!(text.contains(word), "{text}");
        }
    }
}

/// However often it is given, and under whichever name.
#[test]
fn a_sentinel_that_is_given_twice_has_one_vote() {
    let (servers, fakes, _) = fakes(NODE_TIMEOUT);
    fakes[1].say(|says| says.master = Ok(servers[1].port()));
    let clients = ["127.0.0.1", "localhost"].map(|again| {
        let [one, other, _] = fakes.each_ref().map(|fake| fake.port);
        let url = format!("redis+sentinel://127.0.0.1:{one},{again}:{one},127.0.0.1:{other}/m");
        client(&url, options().restart_guard(Duration::ZERO))
    });
    for redlock in &clients {
        eventually("the error says so", || {
            let text = unavailable(redlock.try_acquire("a", TTL)).to_string();
            text.contains("is another name of one of these")
        });
    }
    assert!(servers.iter().all(|server| server.keys().is_empty()));
    fakes[1].say(|says| says.master = Ok(servers[0].port()));
    for redlock in &clients {
        eventually("it is granted where both name the same", || {
            redlock
                .try_acquire("a", TTL)
                .is_ok_and(|lock| lock.is_some())
        });
    }
}

/// It is recognized by its ID, as with IPv4 and IPv6.
#[test]
fn a_sentinel_that_is_given_by_two_addresses_has_one_vote() {
    let (servers, fakes, redlock) = fakes(NODE_TIMEOUT);
    let ids = ["0123456789abcdef0123456789abcdef01234567", "f"];
    for (fake, id) in fakes.iter().zip([0, 0, 1]) {
        fake.say(|says| says.id = Some(ids[id]));
    }
    fakes[2].say(|says| says.master = Ok(servers[1].port()));
    eventually("the error says so", || {
        let text = unavailable(redlock.try_acquire("a", TTL)).to_string();
        text.contains("is another name of one of these")
    });
    assert!(servers.iter().all(|server| server.keys().is_empty()));
    fakes[2].say(|says| says.master = Ok(servers[0].port()));
    eventually("it is granted where both name the same", || {
        let lock = redlock.try_acquire("a", TTL);
        lock.is_ok_and(|lock| lock.is_some())
    });
}

/// A process without a socket cannot ask, and the sentinels are not silent for that.
#[test]
fn a_process_with_too_many_open_files_confirms_no_master() {
    let name = "a_process_with_too_many_open_files_confirms_no_master";
    in_own_process(name, || {
        let (servers, fakes, redlock) = fakes(NODE_TIMEOUT);
        take(&redlock, "a").release().unwrap();
        eventually("no question is under way", || attendants() == 0);
        for fake in &fakes {
            fake.say(|says| says.master = Ok(servers[1].port()));
        }
        let free = || std::fs::File::open("/dev/null").is_ok();
        let mut files = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: plain system calls on this process.
        unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut files) };
        let set = |limit: u64| {
            let limit = libc::rlimit {
                rlim_cur: limit,
                ..files
            };
            // SAFETY: as above.
            assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
        };
        set(1);
        assert!(!free());
        let since = Instant::now();
        let mut last = None;
        while since.elapsed() < 5 * S {
            if let Ok(Some(lock)) = redlock.try_acquire("a", TTL) {
                last = Some(since.elapsed());
                drop(lock);
            }
            std::thread::sleep(ms(5));
        }
        set(files.rlim_cur);
        assert!(last.is_none_or(|last| last < 3 * S), "{last:?}");
        eventually("it has moved", || {
            let lock = redlock.try_acquire("a", TTL).ok().flatten();
            lock.is_some() && servers[1].exists("a")
        });
    });
}

/// In place of the master's.
#[test]
fn a_sentinel_that_gives_a_password_as_a_host_is_not_repeated() {
    for (password, in_url) in [("hunter2", true), ("hunter3", true), ("hunter2", false)] {
        let named = format!("db-{password}");
        let fake = fake::Fake::new(move |words| match &words[0][..] {
            b"SENTINEL" if words[1] == *b"MASTER" => {
                format!("*4\r\n$2\r\nip\r\n$10\r\n{named}\r\n$4\r\nport\r\n$1\r\n1\r\n").into()
            }
            b"SENTINEL" => format!("*2\r\n$10\r\n{named}\r\n$1\r\n1\r\n").into(),
            _ => b"+OK\r\n".to_vec(),
        });
        let port = fake.port();
        let (url, options) = match in_url {
            true => (
                format!("redis+sentinel://u:hunter2@127.0.0.1:{port}/m?sentinel_password=hunter3"),
                options(),
            ),
            false => (
                format!("redis+sentinel://127.0.0.1:{port}/m"),
                options().credentials(|_| Ok::<_, String>(Credentials::new("hunter2").user("u"))),
            ),
        };
        let redlock = client(&url, options.restart_guard(Duration::ZERO));
        let errors = unavailable(redlock.try_acquire("a", TTL));
        let report = redlock.check("probe").unwrap();
        let inspection = redlock.inspect("a").unwrap();
        let text = format!("{errors} {errors:?} {report} {inspection:?} {redlock:?}");
        assert!(text.contains("not the address of a master"), "{text}");
        assert!(!text.contains("hunter"), "{text}");
    }
}
