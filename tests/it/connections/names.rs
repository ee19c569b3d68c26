//! Names with several addresses, of which one is the master's: none of the others decides.

use crate::support;

use std::io::Write;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use redlock_sync::{Error, LockState, Redlock};
use support::fake::Fake;
use support::*;

/// Names with one address more each, which the C library names in this order.
const HOSTS: &str = "127.0.0.1 redis.test three.test
127.0.0.2 redis.test three.test
127.0.0.3 three.test
";

/// Runs a test in a process of its own, where the names of `HOSTS` exist; if this machine permits that.
fn with_a_name(name: &str, test: impl FnOnce()) {
    if told().is_some() {
        return test();
    }
    let dir = TempDir::new();
    let (hosts, services) = (dir.path().join("hosts"), dir.path().join("nsswitch.conf"));
    std::fs::write(&hosts, HOSTS).unwrap();
    std::fs::write(&services, "hosts: files\n").unwrap();
    let first = format!(
        "mount --bind '{}' /etc/hosts && mount --bind '{}' /etc/nsswitch.conf",
        hosts.display(),
        services.display()
    );
    if let Some(output) = in_namespaces(name, "m", &first, name) {
        let said = [output.stdout, output.stderr].concat();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&said)
        );
    }
}

/// What is at an address.
#[derive(Clone, Copy, Debug)]
enum At {
    /// Whatever listens at this port.
    Server(u16),
    /// The same, whose first answer to each connection takes `LATE`.
    Late(u16),
    /// No server.
    Nothing,
    /// It accepts connections, and says nothing.
    Silence,
    /// It says this to each connection, and closes it.
    Text(&'static str),
}

/// Puts these at both addresses, at one port.
fn url(both: [At; 2]) -> String {
    format!("redis://redis.test:{}", put(&both))
}

/// Puts these at 127.0.0.1 and the addresses after it, at the port that is returned.
fn put(each: &[At]) -> u16 {
    let port = free_port();
    for (at, &what) in ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
        .into_iter()
        .zip(each)
    {
        if let At::Nothing = what {
            continue;
        }
        let listener = TcpListener::bind((at, port.number())).unwrap();
        std::thread::spawn(move || {
            let mut kept = Vec::new();
            for mut stream in listener.incoming().flatten() {
                match what {
                    At::Server(port) => forward(stream, port, Duration::ZERO),
                    At::Late(port) => forward(stream, port, LATE),
                    At::Text(text) => drop(stream.write_all(text.as_bytes())),
                    At::Silence | At::Nothing => kept.push(stream),
                }
            }
        });
    }
    let number = port.number();
    // Its listeners live as long as the process, too.
    std::mem::forget(port);
    number
}

/// `late`: how long the server's first answer takes.
fn forward(client: TcpStream, server: u16, late: Duration) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else {
        return;
    };
    let ways = [
        (
            client.try_clone().unwrap(),
            server.try_clone().unwrap(),
            Duration::ZERO,
        ),
        (server, client, late),
    ];
    for (mut from, mut to, late) in ways {
        std::thread::spawn(move || {
            let mut first = [0];
            if from.peek(&mut first).is_ok() {
                std::thread::sleep(late);
            }
            let _ = std::io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
        });
    }
}

fn client(url: &str) -> Redlock {
    let redlock = Redlock::new([url]).unwrap();
    let options = options()
        .connect_timeout(CONNECT)
        .node_timeout(S)
        .wait(2 * S);
    redlock.with_options(options).unwrap()
}

const S: Duration = Duration::from_secs(1);
/// Half of it is the share of an address where no server answers.
const CONNECT: Duration = Duration::from_secs(4);
/// More than that.
const LATE: Duration = Duration::from_millis(2400);

fn replica_of(master: &Server) -> Server {
    let replica = Server::plain();
    replica.command(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    eventually("it is a replica", || {
        replica.info("replication", "master_link_status") == "up"
    });
    replica
}

fn sentinel() -> Fake {
    Fake::new(|words| match &*words[0] {
        b"HELLO" => b"*2\r\n$4\r\nmode\r\n$8\r\nsentinel\r\n".to_vec(),
        _ => b"-ERR unknown command\r\n".to_vec(),
    })
}

/// A master, which answers HELLO meanwhile.
fn loading() -> Fake {
    Fake::new(|words| match &*words[0] {
        b"HELLO" => b"*2\r\n$4\r\nrole\r\n$6\r\nmaster\r\n".to_vec(),
        _ => b"-LOADING Redis is loading the dataset in memory\r\n".to_vec(),
    })
}

/// The other one may have been the master: both would grant.
#[test]
fn a_master_that_refuses_locks_leads_to_no_other_address() {
    with_a_name(
        "a_master_that_refuses_locks_leads_to_no_other_address",
        || {
            let (other, loading) = (Server::plain(), loading());
            let both = [At::Server(loading.port()), At::Server(other.port())];
            let text = unavailable(client(&url(both)).try_acquire("a", TTL)).to_string();
            assert!(text.contains("LOADING"), "{text}");
            assert!(!other.exists("a"));
        },
    );
}

/// Before a server has reported what it is it may be a replica.
#[test]
fn a_server_that_refuses_whatever_it_is_leads_to_the_next_address() {
    with_a_name(
        "a_server_that_refuses_whatever_it_is_leads_to_the_next_address",
        || {
            let master = Server::plain();
            for refuses in [
                "-ERR max number of clients reached\r\n",
                "-DENIED Redis is running in protected mode\r\n",
                "-NOAUTH Authentication required.\r\n",
                "-MASTERDOWN Link with MASTER is down\r\n",
            ] {
                let both = [At::Text(refuses), At::Server(master.port())];
                let lock = client(&url(both)).try_acquire("a", TTL).unwrap();
                assert!(master.exists("a"), "{refuses}");
                drop(lock);
                eventually("it is released", || !master.exists("a"));
                let both = [At::Text(refuses), At::Nothing];
                let text = unavailable(client(&url(both)).try_acquire("a", TTL)).to_string();
                assert!(
                    text.contains("127.0.0.1:") && text.contains("127.0.0.2:"),
                    "{text}"
                );
            }
        },
    );
}

#[test]
fn the_master_is_found_whatever_is_at_the_other_address() {
    with_a_name(
        "the_master_is_found_whatever_is_at_the_other_address",
        || {
            let master = Server::plain();
            let (replica, sentinel) = (replica_of(&master), sentinel());
            for other in [
                At::Server(replica.port()),
                At::Server(sentinel.port()),
                At::Silence,
                At::Nothing,
                At::Text(""),
                At::Text("HTTP/1.1 400 Bad Request\r\n\r\n"),
            ] {
                for both in [
                    [other, At::Server(master.port())],
                    [At::Server(master.port()), other],
                ] {
                    let redlock = client(&url(both));
                    let began = Instant::now();
                    let lock = redlock.try_acquire("a", TTL).unwrap().unwrap();
                    assert!(began.elapsed() < CONNECT, "{both:?}: {:?}", began.elapsed());
                    assert!(master.exists("a"));
                    // What is asked over other connections is answered by the master, too.
                    let inspection = redlock.inspect("a").unwrap();
                    let LockState::Held { holder, .. } = inspection.state() else {
                        panic!("{both:?}: {inspection:?}");
                    };
                    assert!(redlock.break_lock("a", &holder).is_ok(), "{both:?}");
                    assert!(!master.exists("a"), "{both:?}");
                    assert!(matches!(lock.release(), Err(Error::Lost(_))));
                    let report = redlock.check("check").unwrap();
                    assert!(report.is_checked(), "{both:?}: {report}");
                }
            }
        },
    );
}

#[test]
fn where_no_address_leads_to_a_master_the_error_shows_what_is_at_each() {
    with_a_name(
        "where_no_address_leads_to_a_master_the_error_shows_what_is_at_each",
        || {
            let master = Server::plain();
            let (replica, sentinel) = (replica_of(&master), sentinel());
            let (replica, sentinel) = (At::Server(replica.port()), At::Server(sentinel.port()));
            for (both, expected, is_final) in [
                (
                    [replica, replica],
                    "127.0.0.1:PORT and 127.0.0.2:PORT: a replica",
                    false,
                ),
                (
                    [replica, At::Nothing],
                    "127.0.0.1:PORT: a replica; 127.0.0.2:PORT: Connection refused",
                    false,
                ),
                (
                    [At::Silence, replica],
                    "127.0.0.1:PORT: not connected within 2 s; 127.0.0.2:PORT: a replica",
                    false,
                ),
                (
                    [sentinel, replica],
                    "127.0.0.1:PORT: a sentinel; 127.0.0.2:PORT: a replica",
                    false,
                ),
                (
                    [At::Nothing, At::Nothing],
                    "cannot connect: 127.0.0.1:PORT and 127.0.0.2:PORT: Connection refused",
                    false,
                ),
                ([sentinel, sentinel], "that is a sentinel: ", true),
            ] {
                let url = url(both);
                let (_, port) = url.rsplit_once(':').unwrap();
                let expected = expected.replace("PORT", port);
                let Err(Error::Unavailable(nodes)) = client(&url).try_acquire("a", TTL) else {
                    panic!("{both:?}");
                };
                let text = nodes.to_string();
                assert!(text.contains(&expected), "{text}");
                assert_eq!(nodes.is_permanent(), is_final, "{text}");
                let is_replica = text.contains("a replica");
                assert_eq!(
                    text.contains("give a name of the master alone"),
                    is_replica,
                    "{text}"
                );
            }
            assert_eq!(master.keys(), [""; 0]);
        },
    );
}

#[test]
fn a_server_behind_two_names_counts_once() {
    with_a_name("a_server_behind_two_names_counts_once", || {
        let servers = [Server::plain(), Server::plain()];
        let other = url([At::Silence, At::Server(servers[0].port())]);
        let urls = [servers[0].url(), servers[1].url(), other];
        let redlock = Redlock::new(urls.iter().map(String::as_str)).unwrap();
        let redlock = redlock
            .with_options(options().connect_timeout(CONNECT))
            .unwrap();
        let refused = redlock.connect();
        assert!(refused.is_err_and(|error| error.to_string().contains("one server")));
    });
}

/// A sentinel that names the master at this port.
fn sentinel_of(master: &Arc<AtomicU16>) -> Fake {
    let master = master.clone();
    Fake::new(move |words| match &*words[0] {
        b"SENTINEL" => {
            let port = master.load(Ordering::Relaxed).to_string();
            format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len()).into()
        }
        _ => b"-ERR unknown command\r\n".to_vec(),
    })
}

/// Wherever it is among the addresses: the others are asked beside it.
#[test]
fn locks_go_on_while_one_of_three_sentinels_behind_a_name_is_silent() {
    with_a_name(
        "locks_go_on_while_one_of_three_sentinels_behind_a_name_is_silent",
        || {
            let master = Server::plain();
            let named = Arc::new(AtomicU16::new(master.port()));
            let sentinels = [sentinel_of(&named), sentinel_of(&named)];
            let [first, second] = sentinels.each_ref().map(|one| At::Server(one.port()));
            std::thread::scope(|scope| {
                for each in [[first, At::Silence, second], [At::Silence, first, second]] {
                    scope.spawn(move || {
                        let url = format!("redis+sentinel://three.test:{}/m", put(&each));
                        // Too short to wait for an address that does not answer.
                        let options = options()
                            .connect_timeout(CONNECT)
                            .node_timeout(S / 2)
                            .restart_guard(Duration::ZERO);
                        let redlock = Redlock::new(&*url).unwrap();
                        let redlock = redlock.with_options(options).unwrap();
                        let name = format!("{each:?}");
                        let grant = || redlock.try_acquire(&name, TTL).map(drop);
                        eventually("the master is found", || grant().is_ok());
                        // Longer than any answer counts.
                        let until = Instant::now() + 6 * S;
                        let (mut tries, mut failed) = (0, 0);
                        while Instant::now() < until {
                            tries += 1;
                            failed += usize::from(grant().is_err());
                            std::thread::sleep(S / 20);
                        }
                        assert!(8 * failed <= tries, "{each:?}: {failed} of {tries}");
                    });
                }
            });
        },
    );
}

/// One of them may be cut off from the others, and name the master before.
#[test]
fn of_the_sentinels_behind_one_name_most_decide() {
    with_a_name("of_the_sentinels_behind_one_name_most_decide", || {
        let masters = [Server::plain(), Server::plain()];
        let named = masters
            .each_ref()
            .map(|master| Arc::new(AtomicU16::new(master.port())));
        let sentinels = named.each_ref().map(sentinel_of);
        let both = sentinels
            .each_ref()
            .map(|sentinel| At::Server(sentinel.port()));
        let url = url(both).replace("redis://", "redis+sentinel://") + "/m";
        let options = options()
            .connect_timeout(CONNECT)
            .restart_guard(Duration::ZERO);
        let redlock = Redlock::new(&*url).unwrap().with_options(options).unwrap();
        eventually("they differ", || {
            let text = unavailable(redlock.try_acquire("a", TTL)).to_string();
            text.contains("different masters at the addresses of its name")
        });
        assert_eq!(masters[0].keys(), [""; 0]);
        named[0].store(masters[1].port(), Ordering::Relaxed);
        eventually("they agree", || {
            redlock
                .try_acquire("a", TTL)
                .is_ok_and(|lock| lock.is_some())
        });
        assert_eq!(masters[0].keys(), [""; 0]);
    });
}

/// No master is believed on the word of the other one.
#[test]
fn an_error_shows_which_sentinel_behind_a_name_refuses_and_what_to_do() {
    with_a_name(
        "an_error_shows_which_sentinel_behind_a_name_refuses_and_what_to_do",
        || {
            let master = Server::plain();
            let refuses = Fake::new(|_| b"-NOAUTH Authentication required.\r\n".to_vec());
            let named = Arc::new(AtomicU16::new(master.port()));
            let names = sentinel_of(&named);
            let port = put(&[At::Server(names.port()), At::Server(refuses.port())]);
            let redlock = Redlock::new(&*format!("redis+sentinel://redis.test:{port}/m")).unwrap();
            let redlock = redlock.with_options(options()).unwrap();
            let text = unavailable(redlock.try_acquire("a", TTL)).to_string();
            for words in [
                "no majority of the sentinels names the master",
                &format!("127.0.0.1:{port} names 127.0.0.1:{}", master.port()),
                &format!("127.0.0.2:{port}: the server answered: NOAUTH"),
                "sentinel_password",
            ] {
                assert!(text.contains(words), "{text}");
            }
        },
    );
}

/// It needs more than its share of the time, but not more than the time.
#[test]
fn a_master_that_answers_late_is_found_whatever_is_at_the_other_address() {
    with_a_name(
        "a_master_that_answers_late_is_found_whatever_is_at_the_other_address",
        || {
            let master = Server::plain();
            let replica = replica_of(&master);
            let late = At::Late(master.port());
            std::thread::scope(|scope| {
                for both in [
                    [late, At::Nothing],
                    [late, At::Silence],
                    [At::Silence, late],
                    [At::Late(replica.port()), late],
                ] {
                    scope.spawn(move || {
                        let name = format!("{both:?}");
                        let lock = client(&url(both)).acquire_within(&name, TTL, 30 * S);
                        lock.unwrap_or_else(|error| panic!("{both:?}: {error}"))
                            .release()
                            .unwrap();
                    });
                }
            });
        },
    );
}
