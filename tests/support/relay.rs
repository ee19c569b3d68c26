//! A TCP relay before a server that delays, stalls, cuts, refuses, forgets and garbles.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// What happens to bytes in one direction.
#[derive(Clone, Debug, Default)]
pub struct Flow {
    /// Each piece arrives this much later; pieces do not wait for each other.
    pub delay: Duration,
    /// Nothing passes; what came is kept and passes later.
    pub stalled: bool,
    /// Passed on one byte at a time with this pause.
    pub trickle: Option<Duration>,
    /// Sent in place of each piece.
    pub replace: Option<Vec<u8>>,
    /// The number of bytes after which the connection is closed.
    pub cut_after: Option<usize>,
}

#[derive(Clone, Debug, Default)]
pub struct Policy {
    pub up: Flow,
    pub down: Flow,
    /// Each new connection draws one of these as its delay upwards.
    pub random_delays: Vec<Duration>,
}

impl Policy {
    fn flow(&mut self, up: bool) -> &mut Flow {
        if up { &mut self.up } else { &mut self.down }
    }
}

struct State {
    policy: Policy,
    connections: Vec<Arc<Connection>>,
    random: super::Random,
    /// Bytes that were passed on to the server.
    passed: u64,
}

struct Connection {
    client: TcpStream,
    server: TcpStream,
    /// The client's side was cut off without a word; what the server was sent is still there.
    abandoned: AtomicBool,
    /// Bytes vanish without an error.
    forgotten: AtomicBool,
    closed: AtomicBool,
    /// Directions that have not ended.
    ways: Mutex<u32>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    listening: AtomicBool,
    /// The server's port.
    upstream: AtomicU16,
}

pub struct Relay {
    port: super::Port,
    shared: Arc<Shared>,
}

impl Relay {
    /// A relay to a server on this machine.
    pub fn to(upstream: u16) -> Relay {
        super::turns::take();
        let state = State {
            policy: Policy::default(),
            connections: Vec::new(),
            random: super::Random(0x5DEE_CE66_D123_4567 ^ u64::from(upstream)),
            passed: 0,
        };
        let relay = Relay {
            port: super::free_port(),
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                changed: Condvar::new(),
                listening: AtomicBool::new(false),
                upstream: AtomicU16::new(upstream),
            }),
        };
        let listener = TcpListener::bind(("127.0.0.1", relay.port()));
        relay.listen(listener.expect("the port is free"));
        relay
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    pub fn url(&self) -> String {
        super::url_of(self.port())
    }

    /// Connections that are made from now on lead to another server.
    pub fn lead_to(&self, upstream: u16) {
        self.shared.upstream.store(upstream, Ordering::Relaxed);
    }

    /// Changes what happens from now on, also on connections that are up.
    pub fn set(&self, change: impl FnOnce(&mut Policy)) {
        change(&mut self.shared.state().policy);
        self.shared.changed.notify_all();
    }

    /// All well again for bytes to come; connections that were cut or forgotten stay so.
    pub fn heal(&self) {
        self.set(|policy| *policy = Policy::default());
        self.accept();
    }

    /// Closes all connections.
    pub fn cut(&self) {
        for connection in &self.shared.state().connections {
            connection.close();
        }
        self.shared.changed.notify_all();
    }

    /// Closes all connections towards the client only. The server's side stays open for as long as
    /// the relay lives: what was sent and not read yet will be read.
    pub fn abandon(&self) {
        for connection in &self.shared.state().connections {
            connection.abandoned.store(true, Ordering::Relaxed);
            let _ = connection.client.shutdown(Shutdown::Both);
        }
        self.shared.changed.notify_all();
    }

    /// Half-open connections: bytes vanish from now on and neither side notices, as if a firewall
    /// had lost its memory.
    pub fn forget(&self) {
        for connection in &self.shared.state().connections {
            connection.forgotten.store(true, Ordering::Relaxed);
        }
        self.shared.changed.notify_all();
    }

    /// The port is closed, and so are connections.
    pub fn refuse(&self) {
        self.take_no_more();
        self.cut();
    }

    /// The port is closed, and connections that are up stay.
    pub fn take_no_more(&self) {
        if self.shared.listening.swap(false, Ordering::Relaxed) {
            // Wake the accepting thread, which closes the listener, and wait until it is closed.
            let _ = TcpStream::connect(("127.0.0.1", self.port()));
            super::eventually("the relay refuses", || {
                TcpStream::connect(("127.0.0.1", self.port())).is_err()
            });
        }
    }

    pub fn accept(&self) {
        if !self.shared.listening.load(Ordering::Relaxed) {
            let mut listener = None;
            super::eventually("the relay listens again", || {
                listener = TcpListener::bind(("127.0.0.1", self.port())).ok();
                listener.is_some()
            });
            self.listen(listener.unwrap());
        }
    }

    /// Connections that are up or half up.
    pub fn connections(&self) -> usize {
        self.shared.state().connections.len()
    }

    /// How many bytes the server was sent so far.
    pub fn passed(&self) -> u64 {
        self.shared.state().passed
    }

    fn listen(&self, listener: TcpListener) {
        self.shared.listening.store(true, Ordering::Relaxed);
        let shared = self.shared.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if !shared.listening.load(Ordering::Relaxed) {
                    return;
                }
                let upstream = shared.upstream.load(Ordering::Relaxed);
                if let (Ok(client), Ok(server)) =
                    (client, TcpStream::connect(("127.0.0.1", upstream)))
                {
                    shared.connect(client, server);
                }
            }
        });
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        // The reader of a half-open connection waits for ever otherwise.
        for connection in &self.shared.state().connections {
            connection.forgotten.store(false, Ordering::Relaxed);
            connection.abandoned.store(false, Ordering::Relaxed);
        }
        self.refuse();
    }
}

impl Connection {
    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn connect(self: &Arc<Shared>, client: TcpStream, server: TcpStream) {
        client.set_nodelay(true).unwrap();
        server.set_nodelay(true).unwrap();
        let connection = Arc::new(Connection {
            client,
            server,
            abandoned: AtomicBool::new(false),
            forgotten: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            ways: Mutex::new(2),
        });
        let mut extra = Duration::ZERO;
        {
            let mut state = self.state();
            let choices = state.policy.random_delays.len() as u64;
            if choices > 0 {
                let pick = state.random.below(choices);
                extra = state.policy.random_delays[pick as usize];
            }
            state.connections.push(connection.clone());
        }
        self.forward(&connection, true, extra);
        self.forward(&connection, false, Duration::ZERO);
    }

    /// Two threads: one reads and notes when each piece is due, one passes the pieces on.
    fn forward(self: &Arc<Shared>, connection: &Arc<Connection>, up: bool, extra: Duration) {
        let (sender, receiver) = std::sync::mpsc::channel();
        let (shared, reading) = (self.clone(), connection.clone());
        std::thread::spawn(move || {
            let mut source = if up { &reading.client } else { &reading.server };
            let mut buffer = vec![0; 65536];
            while let Ok(read @ 1..) = source.read(&mut buffer) {
                let delay = extra + shared.state().policy.flow(up).delay;
                let piece = (Instant::now() + delay, buffer[..read].to_vec());
                if sender.send(piece).is_err() {
                    return;
                }
            }
        });
        let (shared, connection) = (self.clone(), connection.clone());
        std::thread::spawn(move || {
            while let Ok((due, bytes)) = receiver.recv() {
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                if !shared.pass(&connection, &bytes, up) {
                    break;
                }
            }
            // An abandoned connection is not closed towards the server.
            if up && connection.abandoned.load(Ordering::Relaxed) {
                *connection.ways.lock().unwrap() -= 1;
                return;
            }
            connection.close();
            shared.changed.notify_all();
            let mut ways = connection.ways.lock().unwrap();
            *ways -= 1;
            if *ways == 0 {
                let same = |other: &Arc<Connection>| Arc::ptr_eq(other, &connection);
                shared.state().connections.retain(|other| !same(other));
            }
        });
    }

    /// Passes a piece on; false ends the connection.
    fn pass(&self, connection: &Connection, bytes: &[u8], up: bool) -> bool {
        let mut state = self.state();
        while state.policy.flow(up).stalled && !connection.closed.load(Ordering::Relaxed) {
            let wait = self.changed.wait_timeout(state, Duration::from_millis(50));
            state = wait.unwrap().0;
        }
        if connection.forgotten.load(Ordering::Relaxed) {
            return true;
        }
        let abandoned = connection.abandoned.load(Ordering::Relaxed);
        if abandoned && !up {
            return true;
        }
        let flow = state.policy.flow(up);
        let mut bytes = flow.replace.clone().unwrap_or_else(|| bytes.to_vec());
        let mut last = false;
        if let Some(left) = &mut flow.cut_after {
            last = bytes.len() >= *left;
            bytes.truncate(*left);
            *left -= bytes.len();
        }
        let mut trickle = flow.trickle;
        drop(state);
        let mut to = if up {
            &connection.server
        } else {
            &connection.client
        };
        let mut left = &bytes[..];
        while let (Some(pause), Some((byte, rest))) = (trickle, left.split_first()) {
            std::thread::sleep(pause);
            if to.write_all(&[*byte]).is_err() {
                return !up;
            }
            left = rest;
            trickle = self.state().policy.flow(up).trickle;
        }
        let written = to.write_all(left).is_ok();
        if up {
            self.state().passed += bytes.len() as u64;
        }
        // A client that is gone is noticed by the other way, when it has passed on all that came before.
        (written || !up) && !last
    }
}
