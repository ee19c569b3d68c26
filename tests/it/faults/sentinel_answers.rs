//! What sentinels answer, and which of them are believed.

use crate::support;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redlock_sync::Redlock;
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
    /// Before each reply.
    delay: Duration,
}

impl Fake {
    fn start(master: u16) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let says = Says {
            master: Ok(master),
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
    for error in [
        "NOAUTH Authentication required.",
        "ERR No such master with that name",
    ] {
        fakes
            .iter()
            .for_each(|fake| fake.say(|says| says.master = Err(error)));
        eventually("nothing is granted", || {
            redlock.try_acquire("a", TTL).is_err()
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
