//! A TCP relay before a server that delays, stalls, cuts, refuses, forgets and garbles.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
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
    /// Sent in place of the next piece.
    pub replace: Option<Vec<u8>>,
    /// After so many more bytes the connection is closed.
    pub cut_after: Option<usize>,
}

#[derive(Clone, Debug, Default)]
pub struct Policy {
    pub up: Flow,
    pub down: Flow,
    /// Each connection draws one of these as its delay upwards.
    pub random_delays: Vec<Duration>,
}

struct State {
    policy: Policy,
    connections: Vec<Connection>,
    seed: u64,
}

struct Connection {
    client: TcpStream,
    server: TcpStream,
    /// Bytes vanish; nobody is told.
    half_open: Arc<AtomicBool>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    listening: AtomicBool,
}

pub struct Relay {
    port: u16,
    upstream: u16,
    shared: Arc<Shared>,
}

impl Relay {
    /// A relay to a server on this machine.
    pub fn to(upstream: u16) -> Relay {
        let state = State {
            policy: Policy::default(),
            connections: Vec::new(),
            seed: 0x5DEE_CE66_D123_4567 ^ u64::from(upstream),
        };
        let mut relay = Relay {
            port: 0,
            upstream,
            shared: Arc::new(Shared {
                state: Mutex::new(state),
                changed: Condvar::new(),
                listening: AtomicBool::new(false),
            }),
        };
        while relay.port == 0 {
            let port = super::free_port();
            if let Ok(listener) = TcpListener::bind(("127.0.0.1", port)) {
                relay.port = port;
                relay.listen(listener);
            }
        }
        relay
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
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
        for connection in self.shared.state().connections.drain(..) {
            connection.close();
        }
        self.shared.changed.notify_all();
    }

    /// Resets them: as if a host had lost its memory.
    pub fn forget(&self) {
        for connection in &self.shared.state().connections {
            connection.half_open.store(true, Ordering::Relaxed);
        }
        self.shared.changed.notify_all();
    }

    /// Nobody listens any more; connections are closed.
    pub fn refuse(&self) {
        if self.shared.listening.swap(false, Ordering::Relaxed) {
            // Wake the accepting thread, which closes the listener, and wait until it is closed.
            let _ = TcpStream::connect(("127.0.0.1", self.port));
            super::eventually("the relay refuses", || {
                TcpStream::connect(("127.0.0.1", self.port)).is_err()
            });
        }
        self.cut();
    }

    pub fn accept(&self) {
        if !self.shared.listening.load(Ordering::Relaxed) {
            let mut listener = None;
            super::eventually("the relay listens again", || {
                listener = TcpListener::bind(("127.0.0.1", self.port)).ok();
                listener.is_some()
            });
            self.listen(listener.unwrap());
        }
    }

    pub fn connections(&self) -> usize {
        self.shared.state().connections.len()
    }

    fn listen(&self, listener: TcpListener) {
        self.shared.listening.store(true, Ordering::Relaxed);
        let (shared, upstream) = (self.shared.clone(), self.upstream);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if !shared.listening.load(Ordering::Relaxed) {
                    return;
                }
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
        self.refuse();
    }
}

impl Connection {
    fn close(&self) {
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
        let half_open = Arc::new(AtomicBool::new(false));
        let mut extra = Duration::ZERO;
        {
            let mut state = self.state();
            if !state.policy.random_delays.is_empty() {
                let mut random = super::Random(state.seed);
                let pick = random.below(state.policy.random_delays.len() as u64);
                state.seed = random.0;
                extra = state.policy.random_delays[pick as usize];
            }
            state.connections.push(Connection {
                client: client.try_clone().unwrap(),
                server: server.try_clone().unwrap(),
                half_open: half_open.clone(),
            });
        }
        let ways = [
            (
                client.try_clone().unwrap(),
                server.try_clone().unwrap(),
                true,
                extra,
            ),
            (server, client, false, Duration::ZERO),
        ];
        for (from, to, up, extra) in ways {
            let (sender, receiver) = std::sync::mpsc::channel();
            let shared = self.clone();
            let mut source = from.try_clone().unwrap();
            std::thread::spawn(move || {
                let mut buffer = vec![0; 65536];
                while let Ok(read @ 1..) = source.read(&mut buffer) {
                    let delay = extra + shared.flow(up).delay;
                    let piece = (Instant::now() + delay, buffer[..read].to_vec());
                    if sender.send(piece).is_err() {
                        return;
                    }
                }
            });
            let shared = self.clone();
            let half_open = half_open.clone();
            std::thread::spawn(move || {
                while let Ok((due, bytes)) = receiver.recv() {
                    std::thread::sleep(due.saturating_duration_since(Instant::now()));
                    if !shared.pass(&bytes, &to, up, &half_open) {
                        break;
                    }
                }
                // A forgotten connection is not even closed.
                if !half_open.load(Ordering::Relaxed) {
                    let _ = to.shutdown(Shutdown::Both);
                    let _ = from.shutdown(Shutdown::Both);
                    shared
                        .state()
                        .connections
                        .retain(|connection| !Arc::ptr_eq(&connection.half_open, &half_open));
                }
            });
        }
    }

    fn flow(&self, up: bool) -> Flow {
        let state = self.state();
        if up {
            state.policy.up.clone()
        } else {
            state.policy.down.clone()
        }
    }

    /// Passes a piece on; false ends the connection.
    fn pass(&self, bytes: &[u8], mut to: &TcpStream, up: bool, half_open: &AtomicBool) -> bool {
        let mut state = self.state();
        let flow = |state: &mut State| -> *mut Flow {
            if up {
                &mut state.policy.up
            } else {
                &mut state.policy.down
            }
        };
        let _ = flow;
        while {
            let flow = if up {
                &state.policy.up
            } else {
                &state.policy.down
            };
            flow.stalled && self.alive(&state, half_open)
        } {
            state = self
                .changed
                .wait_timeout(state, Duration::from_millis(100))
                .unwrap()
                .0;
        }
        if half_open.load(Ordering::Relaxed) {
            return true;
        }
        let flow = if up {
            &mut state.policy.up
        } else {
            &mut state.policy.down
        };
        let mut bytes = bytes.to_vec();
        if let Some(instead) = flow.replace.clone() {
            bytes = instead;
        }
        let mut last = false;
        if let Some(left) = &mut flow.cut_after {
            last = bytes.len() >= *left;
            bytes.truncate(*left);
            *left -= bytes.len();
        }
        let trickle = flow.trickle;
        drop(state);
        let written = match trickle {
            None => to.write_all(&bytes).is_ok(),
            Some(pause) => bytes.iter().all(|byte| {
                std::thread::sleep(pause);
                to.write_all(&[*byte]).is_ok()
            }),
        };
        written && !last
    }

    /// Not cut in the meantime.
    fn alive(&self, state: &State, half_open: &AtomicBool) -> bool {
        let same = |connection: &Connection| std::ptr::eq(&*connection.half_open, half_open);
        state.connections.iter().any(same)
    }
}
