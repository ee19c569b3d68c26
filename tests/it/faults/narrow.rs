//! Servers that do not take all commands: what they lack is found by trying.

use crate::support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Mutex, OnceLock};

use redlock_sync::{Error, KeptLock, LockState, Redlock};
use support::*;

fn without(commands: &[&str]) -> Server {
    let mut args = Vec::new();
    for command in commands {
        args.extend(["--rename-command", command, ""]);
    }
    Server::with_args(&args)
}

/// Those of the native commands that the servers of these tests have themselves: Valkey 9 and Redis 8.4 have one.
fn natives() -> &'static [&'static str] {
    static NATIVES: OnceLock<Vec<&str>> = OnceLock::new();
    NATIVES.get_or_init(|| {
        let server = Server::plain();
        let known = |name: &&str| {
            let info = server.command(&["COMMAND", "INFO", name]);
            matches!(info, redis::Value::Array(all) if !matches!(all[..], [redis::Value::Nil]))
        };
        ["DELIFEQ", "DELEX"].into_iter().filter(known).collect()
    })
}

/// Locks could be taken there, and not released.
fn cannot_compare() -> Server {
    without(&[&["EVAL", "EVALSHA"], natives()].concat())
}

/// Locks on what is reached at this URL.
fn locks(url: &str) -> Redlock {
    let redlock = Redlock::new([url]).unwrap();
    redlock.with_options(options()).unwrap()
}

#[test]
fn a_server_that_runs_no_scripts_is_refused_before_a_key_is_written() {
    let server = cannot_compare();
    let redlock = locks(&server.url());
    for _ in 0..3 {
        let errors = unavailable(redlock.acquire("a", TTL)).to_string();
        let expected = "it permits neither EVAL nor DELIFEQ nor DELEX (ERR unknown command 'EVAL'): \
                        a lock could be taken and not released";
        assert!(errors.contains(expected), "{errors}");
        // It is final: a caller that waits is not kept.
        let errors = unavailable(redlock.acquire_within("a", TTL, TTL));
        assert!(errors.to_string().contains(expected), "{errors}");
    }
    assert_eq!((server.calls("set"), server.keys().len()), (0, 0));
    let report = redlock.check("probe").unwrap();
    assert!(
        !report.is_fit() && report.to_string().contains("'EVAL'"),
        "{report}"
    );
}

#[test]
fn a_minority_of_such_servers_is_done_without() {
    let mut servers = Server::several(2);
    servers.push(cannot_compare());
    let redlock = redlock(&servers);
    for _ in 0..10 {
        let mut lock = take(&redlock, "a");
        lock.extend(TTL).unwrap();
        lock.release().unwrap();
    }
    assert_eq!(servers[2].calls("set"), 0);
}

/// As on services that permit one of them.
#[test]
fn scripts_are_called_as_the_server_permits() {
    for missing in [
        &["EVALSHA"][..],
        &["EVAL"],
        &["SCRIPT"],
        &["SCRIPT", "EVALSHA"],
        &["CLIENT", "HELLO", "CONFIG", "INFO"],
    ] {
        let server = without(missing);
        let redlock = locks(&server.url());
        for _ in 0..5 {
            let mut lock = take(&redlock, "a");
            lock.extend(2 * TTL).unwrap();
            assert!(lock.fencing_token().is_ok());
            assert!(redlock.try_acquire("a", TTL).unwrap().is_none());
            lock.release().unwrap();
            drop(take(&redlock, "b"));
        }
        let left = || {
            server
                .keys()
                .into_iter()
                .any(|key| !key.ends_with(":fence"))
        };
        eventually(&format!("nothing is left without {missing:?}"), || !left());
    }
}

#[test]
fn commands_of_waiting_that_are_missing_cost_only_time() {
    for missing in [
        &["PUBLISH"][..],
        &["SUBSCRIBE"],
        &["ZADD"],
        &["ZADD", "ZREM", "ZPOPMIN", "ZRANGE"],
        &["TIME"],
    ] {
        for fair in [false, true] {
            let server = without(missing);
            let processes = [(); 3].map(|()| {
                let options = options().fair(fair);
                Redlock::new([server.url()])
                    .unwrap()
                    .with_options(options)
                    .unwrap()
            });
            std::thread::scope(|scope| {
                for redlock in &processes {
                    scope.spawn(|| {
                        for _ in 0..5 {
                            redlock.acquire("a", TTL).unwrap().release().unwrap();
                        }
                    });
                }
            });
            eventually("nothing is left", || !server.exists("a"));
        }
    }
}

/// What a command that compares and deletes is called.
#[derive(Clone, Copy, Debug)]
enum Native {
    DelIfEq,
    DelEx,
}

const DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";
const SET_IF: &str = "if redis.call('GET', KEYS[1]) == ARGV[2] then \
    return redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[3]) end return false";

/// A server before which one stands that runs scripts only if `scripts`, and has native commands.
fn narrow(server: &Server, native: Native, scripts: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let (port, at) = (server.port(), url.clone());
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let server = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let at = at.clone();
            std::thread::spawn(move || translate(client.unwrap(), server, (native, scripts), &at));
        }
    });
    url
}

fn translate(
    mut client: TcpStream,
    server: TcpStream,
    (native, scripts): (Native, bool),
    at: &str,
) -> Option<()> {
    let mut connection = Redis { stream: server };
    let (mut bytes, mut buffer) = (Vec::new(), [0; 16384]);
    loop {
        let read = client.read(&mut buffer).ok().filter(|read| *read > 0)?;
        bytes.extend_from_slice(&buffer[..read]);
        while let Some((args, length)) = parse(&bytes) {
            bytes.drain(..length);
            let words: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
            if let [name @ (b"DELIFEQ" | b"DELEX"), ..] = &words[..] {
                let name = String::from_utf8_lossy(name).into_owned();
                TRIED.lock().unwrap().push((at.to_owned(), name));
            }
            let reply = match (&words[..], native) {
                ([name @ (b"EVAL" | b"EVALSHA"), ..], _) if !scripts => unknown(name),
                ([b"DELIFEQ"], Native::DelIfEq) | ([b"DELEX"], Native::DelEx) => {
                    b"-ERR wrong number of arguments for 'that' command\r\n".to_vec()
                }
                ([b"DELIFEQ", key, value], Native::DelIfEq)
                | ([b"DELEX", key, b"IFEQ", value], Native::DelEx) => {
                    connection.ask(&[b"EVAL", DELETE.as_bytes(), b"1", key, value])?
                }
                // The server behind it may have both.
                ([name @ (b"DELIFEQ" | b"DELEX"), ..], _) => unknown(name),
                ([b"SET", key, value, b"IFEQ", old, b"PX", ttl], _) => {
                    connection.ask(&[b"EVAL", SET_IF.as_bytes(), b"1", key, value, old, ttl])?
                }
                (other, _) => connection.ask(other)?,
            };
            client.write_all(&reply).ok()?;
        }
    }
}

fn unknown(name: &[u8]) -> Vec<u8> {
    let name = String::from_utf8_lossy(name);
    format!("-ERR unknown command '{name}', with args beginning with: \r\n").into_bytes()
}

/// A connection on which one command is asked at a time.
struct Redis {
    stream: TcpStream,
}

impl Redis {
    /// The bytes of the reply.
    fn ask(&mut self, args: &[&[u8]]) -> Option<Vec<u8>> {
        let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args {
            bytes.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
            bytes.extend_from_slice(arg);
            bytes.extend_from_slice(b"\r\n");
        }
        self.stream.write_all(&bytes).ok()?;
        let (mut reply, mut byte) = (Vec::new(), [0]);
        let mut items = 1_usize;
        while items > 0 {
            let start = reply.len();
            while !reply.ends_with(b"\r\n") || reply.len() == start {
                self.stream.read_exact(&mut byte).ok()?;
                reply.push(byte[0]);
            }
            let line = std::str::from_utf8(&reply[start + 1..reply.len() - 2]).ok();
            let number = line.and_then(|line| line.parse::<usize>().ok());
            items -= 1;
            match (reply[start], number) {
                (b'*', Some(more)) => items += more,
                (b'$', Some(length)) => {
                    let mut bulk = vec![0; length + 2];
                    self.stream.read_exact(&mut bulk).ok()?;
                    reply.extend_from_slice(&bulk);
                }
                _ => {}
            }
        }
        Some(reply)
    }
}

/// The first command, once it is complete, and its length.
fn parse(bytes: &[u8]) -> Option<(Vec<Vec<u8>>, usize)> {
    let line = |at: usize| {
        let length = bytes.get(at..)?.windows(2).position(|two| two == b"\r\n")?;
        let number = std::str::from_utf8(&bytes[at + 1..at + length]).ok()?;
        Some((number.parse::<usize>().ok()?, at + length + 2))
    };
    let (count, mut at) = line(0)?;
    let mut args = Vec::new();
    for _ in 0..count {
        let (length, start) = line(at)?;
        args.push(bytes.get(start..start + length)?.to_vec());
        at = start + length + 2;
    }
    (at <= bytes.len()).then_some((args, at))
}

#[test]
fn without_scripts_locks_are_compared_by_native_commands() {
    for native in [Native::DelIfEq, Native::DelEx] {
        for label in [None, Some("web-3")] {
            let server = Server::plain();
            let url = narrow(&server, native, false);
            use_natively(&server, &url, label);
        }
    }
}

/// With `REDIS_SERVER`: the binary of a server that has them.
#[test]
fn and_by_those_of_a_real_server() {
    if natives().is_empty() {
        return eprintln!(
            "skipped: this server has neither DELIFEQ nor DELEX (Valkey 9 and Redis 8.4 have)"
        );
    }
    for label in [None, Some("web-3")] {
        let server = without(&["EVAL", "EVALSHA"]);
        use_natively(&server, &server.url(), label);
        let used = |name: &&&str| server.calls(&name.to_lowercase()) > 0;
        assert!(natives().iter().any(|name| used(&name)));
    }
}

fn use_natively(server: &Server, url: &str, label: Option<&str>) {
    let processes = [(); 3].map(|()| {
        let options = label.map_or_else(unhurried, |label| unhurried().label(label));
        Redlock::new([url]).unwrap().with_options(options).unwrap()
    });
    let [holder, next, _] = &processes;
    let report = holder.check("probe").unwrap();
    assert!(report.is_checked() && report.is_fit(), "{report}");
    look_and_break((server, url), processes.each_ref(), label);
    let mut lock = take(holder, "a");
    assert!(next.try_acquire("a", TTL).unwrap().is_none());
    let left = || redis::from_redis_value::<i64>(server.command(&["PTTL", "a"])).unwrap();
    lock.extend(2 * TTL).unwrap();
    assert!(left() > ms_of(TTL));
    // Shorter than what its holder was granted.
    lock.extend(TTL / 2).unwrap();
    assert!(left() > ms_of(TTL));
    assert!(lock.remaining() > TTL);
    let errors = unavailable(lock.fencing_token()).to_string();
    assert!(errors.contains("unknown command 'EVAL'"), "{errors}");
    let advice = "needs scripts, and the server answered: ERR unknown command 'EVAL' (permit EVAL";
    let others = [
        ("a permit of a semaphore", holder.semaphore("other", 2)),
        ("a read-write lock", holder.read_lock("other")),
        ("a read-write lock", holder.write_lock("other")),
        ("a lock on several names", holder.several(["o", "p"])),
    ];
    for (what, other) in others {
        let other = other.unwrap();
        let report = other.check().unwrap().to_string();
        let why = "no lock can be had from it: permit EVAL";
        assert!(report.contains(why), "{report}");
        let errors = unavailable(other.try_acquire(TTL));
        let text = errors.to_string();
        assert!(text.contains(&format!("{what} {advice}")), "{text}");
        assert!(text.contains(url.rsplit(':').next().unwrap()), "{text}");
        assert!(errors.is_permanent(), "{text}");
    }
    lock.release().unwrap();
    assert!(!server.exists("a"));
    // Work that could not be marked as done would run on each host, each time.
    let work = |_: &KeptLock| -> Result<(), Error> { panic!("it runs") };
    let errors = unavailable(holder.once_per("a", TTL, 10 * TTL, work));
    assert!(errors.is_permanent() && errors.to_string().contains("marked as done"));
    eventually("that lock is released", || !server.exists("a"));
    go_on(server, [holder, next]);
    take(holder, "left").leak_for(TTL / 2).unwrap();
    let left = server.command(&["PTTL", "left"]);
    let left: i64 = redis::from_redis_value(left).unwrap();
    assert!(left > 0 && left <= ms_of(TTL / 2), "{left}");
    // Nothing prolongs it, however little the node has left of it.
    let longer = take(holder, "longer");
    let little = ms_of(TTL / 4);
    server.command(&["PEXPIRE", "longer", &little.to_string()]);
    longer.leak_for(60 * TTL).unwrap();
    // Behind it, over the same connection.
    take(holder, "b").release().unwrap();
    let left: i64 = redis::from_redis_value(server.command(&["PTTL", "longer"])).unwrap();
    assert!(left > 0 && left <= little, "{left}");
    server.command(&["DEL", "longer"]);
    // Another one's lock stays.
    let shortened = take(holder, "a");
    server.command(&["SET", "a", "another holder's", "PX", "60000"]);
    let lost = shortened.leak_for(ms(1000));
    assert!(matches!(lost, Err(Error::Lost(_))));
    let left = redis::from_redis_value::<i64>(server.command(&["PTTL", "a"])).unwrap();
    assert!(left > 30_000, "{left}");
    server.command(&["DEL", "a", "left"]);
    let mut lost = take(holder, "a");
    server.command(&["SET", "a", "another holder's", "PX", "60000"]);
    assert!(matches!(lost.extend(TTL), Err(Error::Lost(_))));
    drop(lost);
    take(holder, "b").release().unwrap();
    assert!(server.exists("a"));
    server.command(&["DEL", "a"]);
    std::thread::scope(|scope| {
        for redlock in &processes {
            scope.spawn(|| {
                for _ in 0..10 {
                    redlock.acquire("shared", TTL).unwrap().release().unwrap();
                    drop(redlock.acquire("shared", TTL).unwrap());
                }
            });
        }
    });
    eventually("nothing is left", || server.keys().is_empty());
}

/// A process that resumes a lock does not know when it was acquired.
fn go_on(server: &Server, [giver, taker]: [&Redlock; 2]) {
    let lock = take(giver, "a");
    let (token, left) = (*lock.token(), lock.remaining());
    lock.leak();
    let mut lock = taker.resume("a", token, left).unwrap();
    lock.extend(2 * TTL).unwrap();
    let left = redis::from_redis_value::<i64>(server.command(&["PTTL", "a"])).unwrap();
    assert!(left > ms_of(TTL), "{left}");
    lock.release().unwrap();
    assert!(!server.exists("a"));
}

/// People see who has a lock, and can release it.
fn look_and_break(
    (server, url): (&Server, &str),
    [holder, operator, other]: [&Redlock; 3],
    label: Option<&str>,
) {
    let state = |redlock: &Redlock| redlock.inspect("seen").unwrap().state();
    assert_eq!(state(operator), LockState::Free);
    let lock = take(holder, "seen");
    let LockState::Held {
        holder: shown,
        remaining,
        ..
    } = state(operator)
    else {
        panic!("{:?}", operator.inspect("seen"));
    };
    assert_eq!(shown.fingerprint(), lock.token().fingerprint());
    assert_eq!(shown.label(), label);
    assert!(remaining.is_some_and(|left| left > ms(0) && left <= TTL));
    // From a client without the holder's label, too.
    let unlabelled = locks(url);
    assert!(unlabelled.break_lock("seen", &shown).unwrap());
    assert!(!server.exists("seen"));
    assert!(!operator.break_lock("seen", &shown).unwrap());
    assert!(matches!(lock.release(), Err(Error::Lost(_))));
    // What has changed hands stays.
    let next = take(other, "seen");
    assert!(!operator.break_lock("seen", &shown).unwrap());
    next.release().unwrap();
    for command in [
        &["SET", "seen", "text", "PX", "60000"][..],
        &["SET", "seen", "text"],
        &["HSET", "seen", "field", "value"],
    ] {
        server.command(&["DEL", "seen"]);
        server.command(command);
        let (found, endless) = (state(operator), command.len() != 5);
        let LockState::Blocked { remaining, .. } = found else {
            panic!("{found:?}");
        };
        assert_eq!(remaining.is_none(), endless, "{command:?}");
    }
    server.command(&["DEL", "seen"]);
}

fn ms_of(time: std::time::Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap()
}

/// A user may have the right to scripts and not to these commands, which servers log.
#[test]
fn where_scripts_run_no_other_command_that_compares_is_tried() {
    for native in [Native::DelIfEq, Native::DelEx] {
        let server = Server::plain();
        let url = narrow(&server, native, true);
        let redlock = locks(&url).with_options(unhurried()).unwrap();
        let before = TRIED.lock().unwrap().len();
        let mut lock = take(&redlock, "a");
        assert!(lock.fencing_token().is_ok());
        lock.extend(2 * TTL).unwrap();
        lock.release().unwrap();
        // Tries that are denied, and undone.
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        redlock.acquire("a", TTL).unwrap().release().unwrap();
                    }
                });
            }
        });
        assert!(redlock.check("probe").unwrap().is_fit());
        eventually("all are released", || !server.exists("a"));
        let tried = TRIED.lock().unwrap();
        let own = tried[before..].iter().filter(|(at, _)| *at == url);
        assert_eq!(own.count(), 0, "{native:?}");
    }
}

/// Where which of these commands was received.
static TRIED: Mutex<Vec<(String, String)>> = Mutex::new(Vec::new());

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Collect;

impl log::Log for Collect {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        LINES.lock().unwrap().push(record.args().to_string());
    }

    fn flush(&self) {}
}

/// One process waits for what another one holds, and asks for a fencing token, twice; the second time over new
/// connections.
fn use_twice(server: &Server, url: &str, said: &str) {
    let [holder, waiter] = [(); 2].map(|()| locks(url));
    let count = || {
        let lines = LINES.lock().unwrap();
        lines.iter().filter(|line| line.contains(said)).count()
    };
    let before = count();
    let wait = || {
        let lock = take(&holder, "a");
        let _ = lock.fencing_token();
        std::thread::scope(|scope| {
            scope.spawn(|| waiter.acquire("a", TTL).unwrap().release().unwrap());
            eventually("it is said", || count() > before);
            lock.release().unwrap();
        });
    };
    wait();
    let first = count() - before;
    assert!((1..=2).contains(&first), "{said}: {first}");
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]);
    eventually("they are connected again", || {
        [&holder, &waiter]
            .iter()
            .all(|one| one.try_acquire("b", TTL).is_ok())
    });
    server.command(&["FLUSHALL"]);
    wait();
    // The waiter may have learnt it only now.
    assert!(count() - before <= 2, "{said}");
}

#[test]
fn each_client_logs_once_what_is_missing() {
    let name = "each_client_logs_once_what_is_missing";
    in_own_process(name, || {
        log::set_logger(&Collect).unwrap();
        log::set_max_level(log::LevelFilter::Info);
        for (missing, said) in [
            ("INFO", "does not report which server it is"),
            ("PUBLISH", "sends no messages about releases"),
            ("SUBSCRIBE", "sends no messages about releases"),
            ("TIME", "counts no fencing tokens"),
        ] {
            let server = without(&[missing]);
            use_twice(&server, &server.url(), said);
        }
        let server = Server::plain();
        let url = narrow(&server, Native::DelIfEq, false);
        use_twice(&server, &url, "runs no scripts");
        let server = Server::plain();
        let url = narrow(&server, Native::DelIfEq, false);
        use_twice(&server, &url, "counts no fencing tokens: it does not have");
        let server = Server::start();
        let user = "ACL SETUSER u on >pw ~a ~b &* +@all";
        server.command(&user.split(' ').collect::<Vec<_>>());
        let url = server.url_for("u", "pw");
        use_twice(&server, &url, "does not permit the keys beside locks");
    });
}
