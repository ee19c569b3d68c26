//! `Options::credentials`: users and passwords that change while the program runs.

use crate::support;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use redlock_sync::{Credentials, NodeError, Options, Redlock};
use support::*;

/// Longer than a busy machine stands still.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// What the closure gives, and how often it has.
#[derive(Clone, Default)]
struct Vault(Arc<(Mutex<String>, AtomicU32)>);

impl Vault {
    fn new(password: &str) -> Vault {
        let vault = Vault::default();
        vault.set(password);
        vault
    }

    fn set(&self, password: &str) {
        *self.0.0.lock().unwrap() = password.to_owned();
    }

    fn asked(&self) -> u32 {
        self.0.1.load(Ordering::Relaxed)
    }

    /// For the user `app`.
    fn options(&self, options: Options) -> Options {
        let vault = self.clone();
        options.credentials(move |_| {
            vault.0.1.fetch_add(1, Ordering::Relaxed);
            let password = vault.0.0.lock().unwrap().clone();
            Ok::<_, String>(Credentials::new(password).user("app"))
        })
    }
}

/// The user `app` has this password from now on, and no other; what is logged in as `app` is closed.
fn set_password(server: &Server, password: &str) {
    let password = format!(">{password}");
    let user = [
        "ACL", "SETUSER", "app", "reset", "on", &password, "~*", "&*", "+@all",
    ];
    server.command(&user);
    server.command(&["CLIENT", "KILL", "USER", "app"]);
}

fn redlock(servers: &[Server], options: Options) -> Redlock {
    // They are in place of those in the URLs.
    let urls = servers.iter().map(|server| server.url_for("app", "old"));
    Redlock::new(urls).unwrap().with_options(options).unwrap()
}

/// The connections of the user `app`.
fn connections(server: &Server) -> Vec<String> {
    let list: String = redis_text(server, &["CLIENT", "LIST"]);
    let lines = list.lines().filter(|line| line.contains(" user=app "));
    lines.map(str::to_owned).collect()
}

fn redis_text(server: &Server, command: &[&str]) -> String {
    redis::from_redis_value(server.command(command)).unwrap()
}

fn password_changes(servers: &[Server]) {
    servers
        .iter()
        .for_each(|server| set_password(server, "one"));
    let vault = Vault::new("one");
    let redlock = redlock(servers, vault.options(options()));
    assert!(redlock.connect().unwrap().is_none());
    let asked = vault.asked();
    assert_eq!(asked, 3);
    for _ in 0..3 {
        take(&redlock, "a").release().unwrap();
    }
    assert_eq!(vault.asked(), asked, "once for each connection");

    vault.set("two");
    servers
        .iter()
        .for_each(|server| set_password(server, "two"));
    let well = redlock.connect().unwrap();
    assert!(well.is_none(), "{}", well.unwrap());
    let lock = take(&redlock, "a");
    lock.release().unwrap();
    assert!(vault.asked() >= asked + 3);
    for server in servers {
        assert_eq!(connections(server).len(), 1);
    }
}

#[test]
fn a_password_that_was_changed_is_asked_for_again() {
    password_changes(&Server::several(3));
}

#[cfg(feature = "tls")]
#[test]
fn a_password_that_was_changed_is_asked_for_again_over_tls() {
    use support::certificates::Certificate;
    let servers = [(); 3].map(|()| Server::over_tls(Certificate::any(), &[]));
    password_changes(&servers);
}

/// With `requirepass`, so without a user's name.
#[test]
fn the_closure_learns_which_node_is_meant() {
    let mut server = Server::with_args(&["--requirepass", "one"]);
    let port = server.port();
    for url in [server.url(), server.unix_url()] {
        let (sender, nodes) = channel();
        let password = Arc::new(Mutex::new("one"));
        let current = password.clone();
        let options = options().credentials(move |node| {
            sender.send(node.to_owned()).unwrap();
            Ok::<_, String>(Credentials::new(*current.lock().unwrap()))
        });
        let redlock = Redlock::new([&*url]).unwrap();
        let redlock = redlock.with_options(options).unwrap();
        take(&redlock, "a").release().unwrap();
        let address = format!("127.0.0.1:{port}");
        let expected = url.strip_prefix("unix://").unwrap_or(&address);
        assert_eq!(nodes.recv().unwrap(), expected);

        server.set_args(&["--requirepass", "two"]);
        server.restart();
        *password.lock().unwrap() = "two";
        redlock.acquire("a", TTL).unwrap().release().unwrap();
        server.set_args(&["--requirepass", "one"]);
        server.restart();
    }
}

#[test]
fn credentials_that_arrive_too_late_are_not_used() {
    let server = Server::start();
    set_password(&server, "right");
    let slow = options().connect_timeout(CONNECT_TIMEOUT).credentials(|_| {
        std::thread::sleep(CONNECT_TIMEOUT);
        Ok::<_, String>(Credentials::new("right").user("app"))
    });
    let redlock = redlock(std::slice::from_ref(&server), slow);
    let errors = unavailable(redlock.acquire_within("a", TTL, 4 * CONNECT_TIMEOUT));
    let late = "cannot connect: no credentials: none within 1 s (connect_timeout)";
    let text = errors.to_string();
    assert!(text.contains(late) && !errors.is_permanent(), "{text}");
    assert_eq!(connections(&server).len(), 0);
}

#[test]
fn a_refused_password_is_waited_for_until_a_better_one_is_given() {
    let server = Server::start();
    set_password(&server, "right");
    let vault = Vault::new("wrong");
    let redlock = redlock(std::slice::from_ref(&server), vault.options(options()));
    let errors = unavailable(redlock.acquire_within("a", TTL, 2 * NODE_TIMEOUT));
    let text = errors.to_string();
    assert!(
        text.contains("WRONGPASS") && !errors.is_permanent(),
        "{text}"
    );
    assert!(vault.asked() >= 2, "{}", vault.asked());
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| redlock.acquire("a", TTL).map(|lock| lock.release()));
        let asked = vault.asked();
        eventually("it asks while it waits", || vault.asked() > asked + 1);
        assert!(!waits.is_finished());
        vault.set("right");
        waits.join().unwrap().unwrap().unwrap();
    });
}

#[test]
fn an_error_of_the_closure_and_a_panic_are_causes_that_may_pass() {
    let server = Server::start();
    set_password(&server, "right");
    for (panics, expected) in [
        (false, "cannot connect: no credentials: the vault is sealed"),
        (true, "cannot connect: no credentials: the closure panicked"),
    ] {
        let sealed = Arc::new(AtomicBool::new(true));
        let seal = sealed.clone();
        let options = options().credentials(move |_| match seal.load(Ordering::Relaxed) {
            true if panics => panic!("as it should"),
            true => Err("the vault\nis sealed"),
            false => Ok(Credentials::new("right").user("app")),
        });
        let redlock = redlock(std::slice::from_ref(&server), options);
        let errors = unavailable(redlock.acquire_within("a", TTL, 2 * NODE_TIMEOUT));
        let text = errors.to_string();
        assert!(text.contains(expected) && !errors.is_permanent(), "{text}");
        let report = redlock.check("probe").unwrap().to_string();
        assert!(report.contains(expected), "{report}");
        let inspection = format!("{:?}", redlock.inspect("a").unwrap());
        assert!(inspection.contains("NoCredentials"), "{inspection}");
        sealed.store(false, Ordering::Relaxed);
        redlock.acquire("a", TTL).unwrap().release().unwrap();
    }
}

#[test]
fn a_closure_that_does_not_return_keeps_nothing_waiting() {
    let servers = Server::several(3);
    servers
        .iter()
        .for_each(|server| set_password(server, "right"));
    let slow = Arc::new(Mutex::new(()));
    let (gate, first) = (slow.clone(), format!(":{}", servers[0].port()));
    let brief = Options::new()
        .connect_timeout(CONNECT_TIMEOUT)
        .node_timeout(NODE_TIMEOUT);
    let options = brief.clone().credentials(move |node| {
        if node.ends_with(&first) {
            drop(gate.lock().unwrap());
        }
        Ok::<_, String>(Credentials::new("right").user("app"))
    });
    let all_slow = {
        let gate = slow.clone();
        brief.credentials(move |_| {
            drop(gate.lock().unwrap());
            Ok::<_, String>(Credentials::new("right").user("app"))
        })
    };
    let bound = CONNECT_TIMEOUT + 5 * NODE_TIMEOUT;
    let within = |began: Instant| assert!(began.elapsed() < bound, "{:?}", began.elapsed());
    let closed = slow.lock().unwrap();
    // One of three.
    let minority = redlock(&servers, options);
    let began = Instant::now();
    take(&minority, "a").release().unwrap();
    within(began);
    let began = Instant::now();
    let errors = minority.connect().unwrap().expect("one is not connected");
    within(began);
    assert!(errors.iter().map(NodeError::node).eq([0]));
    // All.
    let none = redlock(&servers, all_slow);
    let began = Instant::now();
    let errors = unavailable(none.try_acquire("a", TTL));
    within(began);
    assert!(errors.to_string().contains("(connect_timeout)"), "{errors}");
    assert!(!errors.is_permanent());
    for _ in 0..2 {
        let began = Instant::now();
        let inspection = format!("{:?}", none.inspect("a").unwrap());
        within(began);
        assert!(inspection.contains("Failed"), "{inspection}");
    }
    drop(closed);
    eventually("it is connected", || minority.connect().unwrap().is_none());
}

#[test]
fn every_kind_of_connection_asks() {
    const POLL: Duration = Duration::from_secs(10);
    let servers = Server::several(3);
    servers
        .iter()
        .for_each(|server| set_password(server, "one"));
    // Without a password nothing is permitted.
    for server in &servers {
        let app = [
            "ACL",
            "SETUSER",
            "default",
            "-set",
            "-eval",
            "-evalsha",
            "-subscribe",
        ];
        server.command(&app);
    }
    let vault = Vault::new("one");
    let options = vault.options(options()).retry_delay(POLL, POLL);
    let (holds, waits) = (
        redlock(&servers, options.clone()),
        redlock(&servers, options),
    );
    assert!(holds.connect().unwrap().is_none() && waits.connect().unwrap().is_none());
    let lock = take(&holds, "a");
    let report = holds.check("probe").unwrap();
    assert!(report.is_fit(), "{report}");
    let inspection = format!("{:?}", holds.inspect("a").unwrap().state());
    assert!(inspection.starts_with("Held"), "{inspection}");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let lock = waits.acquire("a", TTL).unwrap();
            let at = Instant::now();
            lock.release().unwrap();
            at
        });
        eventually("it is subscribed", || {
            servers.iter().all(|server| {
                let subscribed = |line: &String| line.contains(" sub=1 ");
                connections(server).iter().any(subscribed)
            })
        });
        in_queue(&servers, "a", 1);
        let released = Instant::now();
        lock.release().unwrap();
        let took = waiter.join().unwrap().duration_since(released);
        assert!(took < POLL / 2, "{took:?}");
    });
}

/// No mutex is held while it runs, and it delays nothing but the connection that it is asked for.
#[test]
fn the_closure_may_take_locks_and_runs_in_no_thread_of_an_operation() {
    static ITSELF: OnceLock<Redlock> = OnceLock::new();
    let servers = Server::several(3);
    servers
        .iter()
        .for_each(|server| set_password(server, "right"));
    let first = format!(":{}", servers[0].port());
    let threads = Arc::new(Mutex::new(Vec::new()));
    let (seen, (sender, taken)) = (threads.clone(), channel());
    let options = options().credentials(move |node| {
        seen.lock().unwrap().push(std::thread::current().id());
        if let Some(redlock) = ITSELF.get().filter(|_| node.ends_with(&first)) {
            let lock = redlock.try_acquire("token", TTL).unwrap();
            let _ = sender.send(lock.map(|lock| lock.release().is_ok()));
        }
        Ok::<_, String>(Credentials::new("right").user("app"))
    });
    let another = support::redlock(&servers);
    let redlock = redlock(&servers, options);
    assert!(redlock.connect().unwrap().is_none());
    ITSELF.set(redlock.clone()).unwrap();
    let end = |of: &str| assert_eq!(taken.recv_timeout(TTL / 3), Ok(Some(true)), "{of}");
    let mut operations = vec![std::thread::current().id()];
    // A connection for locks, one for messages, and one to look.
    servers[0].command(&["CLIENT", "KILL", "USER", "app"]);
    take(&redlock, "b").release().unwrap();
    end("locks");
    let lock = take(&another, "a");
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| redlock.acquire("a", TTL).unwrap().release());
        operations.push(waiter.thread().id());
        end("messages");
        lock.release().unwrap();
    });
    redlock.inspect("a").unwrap();
    end("a look");
    assert!(redlock.connect().unwrap().is_none());
    let threads = threads.lock().unwrap();
    assert!(!operations.iter().any(|thread| threads.contains(thread)));
}

/// Each connection has its own, and a server may repeat it as long as that lives.
#[test]
fn an_old_password_is_not_shown_when_there_is_a_new_one() {
    let last = Arc::new(Mutex::new(String::new()));
    let (sent, asked) = (last.clone(), AtomicU32::new(0));
    let node = fake::Fake::new(move |words| match &words[0][..] {
        b"AUTH" => {
            // The first is that of the connection for locks.
            let mut sent = sent.lock().unwrap();
            if sent.is_empty() {
                *sent = String::from_utf8(words[2].clone()).unwrap();
            }
            b"+OK\r\n".to_vec()
        }
        b"SET" | b"EVAL" => format!("-ERR from {}\r\n", sent.lock().unwrap()).into(),
        _ => b"+OK\r\n".to_vec(),
    });
    let options = options().credentials(move |_| {
        let number = asked.fetch_add(1, Ordering::Relaxed);
        Ok::<_, String>(Credentials::new(format!("{number}hunter")).user("u"))
    });
    let redlock = Redlock::new([node.url("other")]).unwrap();
    let redlock = redlock.with_options(options).unwrap();
    unavailable(redlock.try_acquire("a", TTL));
    let _ = redlock.inspect("a").unwrap();
    let errors = unavailable(redlock.try_acquire("a", TTL)).to_string();
    assert!(errors.contains("ERR from ***"), "{errors}");
    assert_eq!(*last.lock().unwrap(), "0hunter");
}

#[test]
fn options_are_equal_if_the_closure_is_the_same_and_show_nothing_of_it() {
    let ask = |_: &str| Ok::<_, String>(Credentials::new("hunter2").user("secretive"));
    let (one, other) = (
        Options::new().credentials(ask),
        Options::new().credentials(ask),
    );
    assert!(one == one.clone() && one != other && one != Options::new());
    let credentials = ask("").unwrap();
    let redlock = Redlock::new(["redis://localhost"]).unwrap();
    let redlock = redlock.with_options(one.clone()).unwrap();
    let text = format!("{one:?} {credentials:?} {redlock:?}");
    assert!(text.contains("credentials: Some(Fn)"), "{text}");
    assert!(
        !text.contains("hunter2") && !text.contains("secretive"),
        "{text}"
    );
}

/// With other options in all other ways, the connections are new.
#[test]
fn another_closure_means_new_connections() {
    let server = Server::start();
    set_password(&server, "right");
    let (one, other) = (Vault::new("right"), Vault::new("right"));
    let first = redlock(std::slice::from_ref(&server), one.options(unhurried()));
    take(&first, "a").release().unwrap();
    let second = first
        .clone()
        .with_options(other.options(unhurried()))
        .unwrap();
    take(&second, "a").release().unwrap();
    assert_eq!((one.asked(), other.asked()), (1, 1));
}

/// It would be another user's lock otherwise, with that one's rights.
#[test]
fn a_user_without_a_password_logs_in_all_the_same() {
    let server = Server::plain();
    for (user, login) in [("locks", "nopass"), ("secret", ">hunter2")] {
        server.command(&[
            "ACL", "SETUSER", user, login, "on", "~shop:*", "&*", "+@all",
        ]);
    }
    let client = |user: &str| {
        let url = format!("redis://{user}@127.0.0.1:{}", server.port());
        Redlock::new(url).unwrap().with_options(options()).unwrap()
    };
    let locks = client("locks");
    take(&locks, "shop:a").release().unwrap();
    let errors = unavailable(locks.try_acquire("bank:a", TTL)).to_string();
    assert!(errors.contains("NOPERM"), "{errors}");
    take(&client("default"), "bank:a").release().unwrap();
    let errors = unavailable(client("secret").try_acquire("shop:a", TTL));
    assert!(errors.to_string().contains("WRONGPASS"), "{errors}");
    // The user of a closure goes before that of the URL.
    let closure =
        options().credentials(|_| Ok::<_, String>(Credentials::new("hunter2").user("secret")));
    let given = client("locks").with_options(closure).unwrap();
    take(&given, "shop:a").release().unwrap();
}
