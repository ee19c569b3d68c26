//! Target: a client and a whole server, which answers truly until the input has it answer something else.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant, UNIX_EPOCH};

use super::{PASSWORD, hides};
use crate::testing::server::{Replies, Server};
use crate::values::clock;
use crate::values::sync::lock;
use crate::{Error, Lock, Lockable, Options, Redlock};

const TTL: Duration = Duration::from_secs(2);
const NODE_TIMEOUT: Duration = Duration::from_millis(4);
const WAIT: Duration = Duration::from_millis(6);
/// No sequence of calls takes longer, whatever is answered. The machine may be busy.
const MOST: Duration = Duration::from_secs(4);

/// Answers that servers give at times, in place of the true one.
const ERRORS: [&str; 16] = [
    "LOADING Redis is loading the dataset in memory",
    "NOSCRIPT No matching script. Please use EVAL.",
    "MOVED 3999 127.0.0.1:6381",
    "ASK 3999 127.0.0.1:6381",
    "READONLY You can't write against a read only replica.",
    "NOAUTH Authentication required.",
    "WRONGTYPE Operation against a key holding the wrong kind of value",
    "NOPERM this user has no permissions to run the 'evalsha' command",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "ERR unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'hunter2-S3cret'",
    "ERR max number of clients reached",
    "NOREPLICAS Not enough good replicas to write.",
    "WRONGPASS invalid username-password pair or user is disabled.",
    "BUSY Redis is busy running a script.",
    "CLUSTERDOWN The cluster is down",
    "ERR hunter2-S3cret",
];

/// The server, and the part of the input that is not used yet.
struct Play {
    server: Server,
    input: Vec<u8>,
    at: usize,
    connections: u64,
}

/// A change that is made to a reply.
enum Fate {
    Bytes(Vec<u8>),
    /// These bytes, and then the connection is closed.
    Last(Vec<u8>),
}

impl Play {
    fn byte(&mut self) -> Option<u8> {
        let byte = self.input.get(self.at).copied();
        self.at += 1;
        byte
    }

    /// The next bytes of the input, as many as its next byte says.
    fn bytes(&mut self) -> Vec<u8> {
        let length = usize::from(self.byte().unwrap_or_default());
        let rest = self.input.get(self.at..).unwrap_or_default();
        let bytes = rest
            .get(..length.min(rest.len()))
            .unwrap_or_default()
            .to_vec();
        self.at += bytes.len();
        bytes
    }

    fn fate(&mut self, mut truth: Vec<u8>) -> Fate {
        let Some(kind @ 128..) = self.byte() else {
            return Fate::Bytes(truth);
        };
        let place = |at: u8, length: usize| usize::from(at) * length.max(1) / 256;
        match kind % 9 {
            0 => Fate::Bytes(Vec::new()),
            1 => Fate::Bytes(self.bytes()),
            2 => Fate::Bytes([self.bytes(), truth].concat()),
            3 => {
                let at = self.byte().unwrap_or_default();
                truth.truncate(place(at, truth.len()));
                Fate::Last(truth)
            }
            4 => Fate::Last(self.bytes()),
            5 => {
                let (at, to) = (
                    self.byte().unwrap_or_default(),
                    self.byte().unwrap_or_default(),
                );
                let at = place(at, truth.len());
                if let Some(byte) = truth.get_mut(at) {
                    *byte = to;
                }
                Fate::Bytes(truth)
            }
            6 => {
                let number = self.byte().unwrap_or_default().cast_signed();
                Fate::Bytes(format!(":{number}\r\n").into_bytes())
            }
            7 => {
                let text = ERRORS.get(usize::from(self.byte().unwrap_or_default()) % ERRORS.len());
                Fate::Bytes(format!("-{}\r\n", text.copied().unwrap_or_default()).into_bytes())
            }
            _ => {
                // Parts of the true answer, repeated and left out.
                let (from, to) = (
                    self.byte().unwrap_or_default(),
                    self.byte().unwrap_or_default(),
                );
                let rest = truth
                    .get(place(from, truth.len())..)
                    .unwrap_or_default()
                    .to_vec();
                truth.truncate(place(to, truth.len()));
                Fate::Bytes([truth, rest].concat())
            }
        }
    }
}

fn time() -> u64 {
    let time = clock::wall().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The process's server: where it listens, and what it plays.
fn stage() -> &'static (String, Arc<Mutex<Option<Play>>>) {
    static STAGE: OnceLock<(String, Arc<Mutex<Option<Play>>>)> = OnceLock::new();
    STAGE.get_or_init(|| {
        let path = std::env::temp_dir().join(format!("redlock-fuzz-{}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener =
            UnixListener::bind(&path).expect("a socket in the folder for temporary files");
        let play = Arc::new(Mutex::new(None));
        let plays = play.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let play = plays.clone();
                thread::spawn(move || serve(stream, &play));
            }
        });
        (path.display().to_string(), play)
    })
}

/// Serves one connection until one side closes it, or the next input is played.
fn serve(mut stream: UnixStream, play: &Mutex<Option<Play>>) {
    let number = {
        let mut play = lock(play);
        let Some(play) = play.as_mut() else {
            return;
        };
        play.connections += 1;
        play.server.connect(play.connections);
        play.connections
    };
    let mut buffer = [0; 16 << 10];
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        let mut out = Vec::new();
        let mut is_last = false;
        {
            let mut play = lock(play);
            let Some(play) = play.as_mut() else {
                return;
            };
            let mut replies = Replies::new();
            let received = buffer.get(..length).unwrap_or_default();
            is_last |= !play.server.receive(number, received, time(), &mut replies);
            for (to, reply) in replies {
                // Messages to others are not sent: no thread waits for one here.
                if to != number || is_last {
                    continue;
                }
                match play.fate(reply) {
                    Fate::Bytes(bytes) => out.extend(bytes),
                    Fate::Last(bytes) => {
                        out.extend(bytes);
                        is_last = true;
                    }
                }
            }
        }
        if stream.write_all(&out).is_err() || is_last {
            break;
        }
    }
    if let Some(play) = lock(play).as_mut() {
        play.server.disconnect(number);
    }
}

/// A client connects, acquires, extends and releases, and looks, and every call returns in its time.
pub(super) fn client(data: &[u8]) {
    let Some((calls, input)) = data.split_first() else {
        return;
    };
    let (path, play) = stage();
    *lock(play) = Some(Play {
        server: Server::new(1, time()),
        input: input.to_vec(),
        at: 0,
        connections: 0,
    });
    let begun = Instant::now();
    match redlock(path, *calls) {
        Ok(redlock) => calls_of(&redlock, *calls),
        Err(error) => panic!("the options are right: {error}"),
    }
    let took = begun.elapsed();
    assert!(took < MOST, "the calls took {took:?}");
    *lock(play) = None;
}

fn redlock(path: &str, calls: u8) -> Result<Redlock, Error> {
    let options = Options::new()
        .wait(WAIT)
        .retry_delay(Duration::from_millis(1), Duration::from_millis(2))
        .node_timeout(NODE_TIMEOUT)
        .connect_timeout(5 * NODE_TIMEOUT)
        .fair(calls & 0x40 != 0);
    let options = match calls & 0x80 {
        0 => options,
        _ => options.restart_guard(TTL),
    };
    Redlock::new([format!("unix://{path}?user=locks&pass={PASSWORD}")])?.with_options(options)
}

fn calls_of(redlock: &Redlock, calls: u8) {
    let of_kind = |made: Result<Lockable, Error>| made.and_then(|lock| lock.acquire(TTL));
    let lock = match calls % 6 {
        0 => redlock.acquire("shop:a", TTL),
        1 => of_kind(redlock.semaphore("shop:a", 3)),
        2 => of_kind(redlock.read_lock("shop:a")),
        3 => of_kind(redlock.write_lock("shop:a")),
        4 => of_kind(redlock.several(["shop:a", "shop:b"])),
        _ => {
            looks(redlock);
            return;
        }
    };
    match lock {
        Ok(lock) => uses(lock),
        Err(error) => shows(&error),
    }
}

fn uses(mut lock: Lock) {
    assert!(lock.remaining() <= TTL, "longer than the ttl");
    if let Err(error) = lock.extend(TTL) {
        shows(&error);
    }
    assert!(lock.remaining() <= TTL, "longer than the ttl");
    if let Err(error) = lock.fencing_token() {
        shows(&error);
    }
    if let Err(error) = lock.release() {
        shows(&error);
    }
}

fn looks(redlock: &Redlock) {
    match redlock.inspect("shop:a") {
        Ok(found) => hides(format!("{:?} {:?}", found.state(), found)),
        Err(error) => shows(&error),
    }
    match redlock.list(None) {
        Ok(found) => hides(format!("{found:?}")),
        Err(error) => shows(&error),
    }
    match redlock.check("shop:check") {
        Ok(found) => found.findings().for_each(hides),
        Err(error) => shows(&error),
    }
    match redlock.last_run("shop:a") {
        Ok(found) => hides(format!("{found:?}")),
        Err(error) => shows(&error),
    }
}

fn shows(error: &Error) {
    hides(error);
    hides(format!("{error:?}"));
}
