//! The connections of a node, and its threads: one accepts connections, one for each connection reads, and one writes all
//! replies, when they are due.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind, Read};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, UNIX_EPOCH};

#[cfg(any(target_os = "linux", target_os = "android"))]
use redis::io::tcp::socket2::SockRef;

use super::server::{Replies, Server};
use crate::values::clock::{self, Point};
use crate::values::sync::{Condvar, Mutex, lock, wait_for, wait_until};

/// The most connections at a time. More are not accepted.
const MAX_CONNECTIONS: usize = 1000;
/// A client is disconnected if it takes in nothing for this long, or if more than this is to be written to it.
pub(super) const WRITE_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_OUTBOX: usize = 64 << 20;
/// Replies are put together for one write until they are this long.
const MAX_WRITE: usize = 64 << 10;
/// How long until the next attempt to write to a client that does not take in what it is sent.
const RETRY: Duration = Duration::from_millis(5);
/// How long a thread sleeps when there is nothing to do.
const LONG: Duration = Duration::from_secs(3600);

pub(super) struct NodeShared {
    pub(super) state: Mutex<NodeData>,
    /// Notified when there is something to write, or something has been done to the node.
    pub(super) changed: Condvar,
}

pub(super) struct NodeData {
    pub(super) server: Server,
    started: Point,
    /// How far the node's clock has been moved.
    pub(super) moved: Duration,
    pub(super) mood: NodeMood,
    connections: BTreeMap<u64, Accepted>,
    accepted: u64,
    pub(super) readers: Vec<JoinHandle<()>>,
    pub(super) ended: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NodeMood {
    Normal,
    /// The node answers after this time.
    Late(Duration),
    Silent,
    /// The node has no connections, and accepts none.
    Down,
}

struct Accepted {
    stream: Arc<TcpStream>,
    /// Replies, and when they are due.
    outbox: VecDeque<(Instant, Vec<u8>)>,
    /// Since when the client has taken in nothing of what it was sent.
    stuck: Option<Instant>,
}

pub(super) fn spawn(
    name: &str,
    work: impl FnOnce() + Send + 'static,
) -> std::io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name.into()).spawn(work)
}

fn micros_since_1970(point: Point) -> u64 {
    let since = point.wall.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX / 2)
}

impl NodeData {
    /// The time by the node's own clock, which never goes back, in microseconds since 1970.
    pub(super) fn time(&self) -> u64 {
        let passed = clock::instant().saturating_duration_since(self.started.mono);
        let passed = passed.saturating_add(self.moved).as_micros();
        micros_since_1970(self.started).saturating_add(u64::try_from(passed).unwrap_or(u64::MAX))
    }

    fn close(&mut self, connection: u64) {
        self.server.disconnect(connection);
        if let Some(closed) = self.connections.remove(&connection) {
            // The connection's reader ends.
            let _ = closed.stream.shutdown(Shutdown::Both);
        }
    }

    pub(super) fn close_all(&mut self) {
        let all: Vec<u64> = self.connections.keys().copied().collect();
        all.into_iter()
            .for_each(|connection| self.close(connection));
    }

    pub(super) fn post(&mut self, replies: Replies) {
        let mut due = clock::instant();
        if let NodeMood::Late(by) = self.mood {
            due += by;
        }
        for (connection, bytes) in replies {
            if let Some(connection) = self.connections.get_mut(&connection) {
                connection.outbox.push_back((due, bytes));
            }
        }
    }

    /// Records how much of `bytes` was written to a client. The rest is written later, before all else.
    fn written(
        &mut self,
        number: u64,
        mut bytes: Vec<u8>,
        written: io::Result<usize>,
        now: Instant,
    ) {
        let Some(connection) = self.connections.get_mut(&number) else {
            return;
        };
        let (count, waits) = match written {
            Ok(count) => (count, false),
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => (0, true),
                ErrorKind::Interrupted => (0, false),
                _ => return self.close(number),
            },
        };
        connection.stuck = match count {
            0 if waits => connection.stuck.or(Some(now)),
            _ => None,
        };
        bytes.drain(..count.min(bytes.len()));
        if !bytes.is_empty() {
            let due = if waits { now + RETRY } else { now };
            connection.outbox.push_front((due, bytes));
        }
        let is_dead = |since: Instant| now >= since + WRITE_TIMEOUT;
        let size = connection.outbox.iter().map(|(_, bytes)| bytes.len());
        if connection.stuck.is_some_and(is_dead) || size.sum::<usize>() > MAX_OUTBOX {
            self.close(number);
        }
    }

    /// The next bytes to write, or until when there are none.
    fn next(&mut self, now: Instant) -> Result<(u64, Arc<TcpStream>, Vec<u8>), Instant> {
        let mut until = now + LONG;
        if self.mood == NodeMood::Silent {
            return Err(until);
        }
        for (number, connection) in &mut self.connections {
            let mut bytes = Vec::new();
            while bytes.len() < MAX_WRITE
                && let Some((due, _)) = connection.outbox.front()
            {
                if *due > now {
                    until = until.min(*due);
                    break;
                }
                let reply = connection.outbox.pop_front();
                reply
                    .into_iter()
                    .for_each(|(_, mut reply)| bytes.append(&mut reply));
            }
            if !bytes.is_empty() {
                return Ok((*number, connection.stream.clone(), bytes));
            }
        }
        Err(until)
    }
}

/// Writes as much as is taken in without waiting.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn write_at_once(stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    /// Without waiting, and without a signal.
    const FLAGS: i32 = 0x40 | 0x4000;
    SockRef::from(stream).send_with_flags(bytes, FLAGS)
}

/// Writes without the flags for that, which differ on this system: waits for as long as the socket's timeout.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn write_at_once(mut stream: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    io::Write::write(&mut stream, bytes)
}

impl NodeShared {
    /// A node that is started now. `number` distinguishes it from all others.
    pub(super) fn new(number: u64) -> NodeShared {
        let started = Point::now();
        NodeShared {
            state: Mutex::new(NodeData {
                server: Server::new(number, micros_since_1970(started)),
                started,
                moved: Duration::ZERO,
                mood: NodeMood::Normal,
                connections: BTreeMap::new(),
                accepted: 0,
                readers: Vec::new(),
                ended: false,
            }),
            changed: Condvar::new(),
        }
    }

    pub(super) fn accept(self: &Arc<NodeShared>, listener: &TcpListener) {
        loop {
            let accepted = listener.accept();
            let mut state = lock(&self.state);
            if state.ended {
                return;
            }
            match accepted {
                Ok((stream, _)) => self.open(&mut state, stream),
                // No files are left, for example.
                Err(_) => {
                    drop(wait_for(&self.changed, state, Duration::from_millis(50)));
                }
            }
        }
    }

    fn open(self: &Arc<NodeShared>, state: &mut NodeData, stream: TcpStream) {
        state.readers.retain(|reader| !reader.is_finished());
        if state.mood == NodeMood::Down || state.connections.len() >= MAX_CONNECTIONS {
            return;
        }
        let set_up = stream
            .set_nodelay(true)
            .and_then(|()| stream.set_write_timeout(Some(RETRY)));
        if set_up.is_err() {
            return;
        }
        let number = state.accepted;
        let stream = Arc::new(stream);
        let (shared, own) = (self.clone(), stream.clone());
        let reader = spawn("redlock-test-reader", move || shared.read(number, &own));
        let Ok(reader) = reader else {
            return;
        };
        state.readers.push(reader);
        state.accepted += 1;
        state.server.connect(number);
        let connection = Accepted {
            stream,
            outbox: VecDeque::new(),
            stuck: None,
        };
        state.connections.insert(number, connection);
    }

    fn read(&self, number: u64, mut stream: &TcpStream) {
        let mut buffer = [0; 16 * 1024];
        loop {
            let read = match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            let mut state = lock(&self.state);
            while state.mood == NodeMood::Silent && state.connections.contains_key(&number) {
                state = wait_for(&self.changed, state, LONG);
            }
            let (mut replies, time) = (Replies::new(), state.time());
            let bytes = buffer.get(..read).unwrap_or_default();
            let goes_on = state.server.receive(number, bytes, time, &mut replies);
            state.post(replies);
            drop(state);
            self.changed.notify_all();
            if !goes_on {
                break;
            }
        }
        lock(&self.state).close(number);
    }

    pub(super) fn write(&self) {
        let mut state = lock(&self.state);
        while !state.ended {
            let next = state.next(clock::instant());
            state = match next {
                Err(until) => wait_until(&self.changed, state, until),
                Ok((number, stream, bytes)) => {
                    drop(state);
                    // The others do not wait for a client that takes in nothing.
                    let written = write_at_once(&stream, &bytes);
                    let mut state = lock(&self.state);
                    state.written(number, bytes, written, clock::instant());
                    state
                }
            };
        }
    }
}
