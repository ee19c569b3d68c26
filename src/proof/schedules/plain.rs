//! Sockets that are queues, and the servers behind them: in the place of `net/socket/plain`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{ConnectionAddr, ConnectionInfo};

use super::time::{self, Waiter, turn};
use crate::errors::cause::Cause;
use crate::testing::server::{Replies, Server};

/// The port of the first node.
pub(super) const PORT: u16 = 7000;

/// A server, with its connections.
struct Node {
    server: Server,
    is_up: bool,
    /// Whether the server answers. Otherwise it receives, and does nothing.
    answers: bool,
    connections: BTreeMap<u64, Link>,
    /// The server's thread, if it waits.
    idle: Option<Arc<Waiter>>,
}

/// One connection.
#[derive(Default)]
struct Link {
    to_server: Vec<u8>,
    to_client: Vec<u8>,
    /// The server has ended the connection.
    server_ended: bool,
    /// The client has ended it, and sends nothing more.
    client_ended: bool,
    reader: Option<Arc<Waiter>>,
}

#[derive(Default)]
struct Network {
    nodes: Vec<Node>,
    count: u64,
    /// A read that is to panic, counted down, and in which threads.
    panics: Option<(u64, fn() -> bool)>,
}

thread_local! {
    static NETWORK: RefCell<Network> = RefCell::default();
}

fn with<T>(work: impl FnOnce(&mut Network) -> T) -> T {
    NETWORK.with_borrow_mut(work)
}

/// The panic of a leader, which no bug has caused.
pub(super) struct Injected;

/// Begins with this number of servers.
pub(super) fn begin(nodes: usize) {
    let node = |at| Node {
        server: Server::new(at as u64, time::micros()),
        is_up: true,
        answers: true,
        connections: BTreeMap::new(),
        idle: None,
    };
    let nodes = (0..nodes).map(node).collect();
    NETWORK.replace(Network {
        nodes,
        ..Network::default()
    });
}

/// The thread of a server: takes what clients have sent, one connection at a time.
pub(super) fn serve(at: usize) {
    while !time::is_over() {
        let waiter = with(|network| {
            let node = &mut network.nodes[at];
            let pending: Vec<u64> = node
                .connections
                .iter()
                .filter(|(_, link)| !link.to_server.is_empty() || link.client_ended)
                .map(|(number, _)| *number)
                .collect();
            if pending.is_empty() || !node.answers {
                let waiter = Waiter::new();
                node.idle = Some(waiter.clone());
                return Some(waiter);
            }
            let number = pending[usize::try_from(time::below(pending.len() as u64)).unwrap()];
            node.take(number);
            None
        });
        match waiter {
            Some(waiter) => waiter.wait(None),
            None => turn(),
        }
    }
}

impl Node {
    /// Carries out what a connection has sent.
    fn take(&mut self, number: u64) {
        let link = self.connections.get_mut(&number).unwrap();
        let (bytes, ended) = (std::mem::take(&mut link.to_server), link.client_ended);
        let mut replies = Replies::new();
        let time = time::micros();
        let is_well = self.server.receive(number, &bytes, time, &mut replies);
        assert!(is_well || bytes.is_empty(), "a client sent no command");
        for (to, reply) in replies {
            if let Some(link) = self.connections.get_mut(&to) {
                link.to_client.extend(reply);
                link.wake();
            }
        }
        if ended {
            self.connections.remove(&number);
            self.server.disconnect(number);
        }
    }

    fn wake(&mut self) {
        if let Some(idle) = self.idle.take() {
            idle.wake();
        }
    }
}

impl Link {
    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}

/// Ends the threads of the servers.
pub(super) fn end() {
    with(|network| network.nodes.iter_mut().for_each(Node::wake));
}

/// A node dies, with its connections, and keeps its data; or it comes back.
pub(super) fn set_up(at: usize, is_up: bool) {
    turn();
    with(|network| {
        let node = &mut network.nodes[at];
        node.is_up = is_up;
        if !is_up {
            for (number, link) in &mut node.connections {
                link.server_ended = true;
                link.to_server.clear();
                link.wake();
                node.server.disconnect(*number);
            }
            node.connections.retain(|_, link| !link.client_ended);
        }
        node.wake();
    });
}

/// A node no longer answers, or does again.
pub(super) fn set_answers(at: usize, answers: bool) {
    turn();
    with(|network| {
        network.nodes[at].answers = answers;
        network.nodes[at].wake();
    });
}

/// Makes a later read panic, if it is in such a thread.
pub(super) fn panic_at(read: u64, is_such: fn() -> bool) {
    with(|network| network.panics = Some((read, is_such)));
}

/// At how many nodes the lock of this name has this token.
pub(super) fn holders(name: &[u8], token: &crate::Token) -> usize {
    let time = time::micros();
    let has = |node: &&Node| {
        let held = node.server.holder(name, time);
        held.is_some_and(|held| held.token == *token)
    };
    with(|network| network.nodes.iter().filter(has).count())
}

/// How many locks any node has, and how many connections are open.
pub(super) fn left() -> (usize, usize) {
    let time = time::micros();
    with(|network| {
        let locks = network
            .nodes
            .iter()
            .map(|node| node.server.locks(time).len());
        let open = network
            .nodes
            .iter()
            .flat_map(|node| node.connections.values());
        let open = open.filter(|link| !link.client_ended).count();
        (locks.sum(), open)
    })
}

pub(crate) struct PlainSocket {
    node: usize,
    number: u64,
    is_reset: bool,
}

fn closed() -> Cause {
    Cause::Closed("by the other side".into())
}

impl PlainSocket {
    pub(crate) fn connect(
        info: &ConnectionInfo,
        _: Option<&SocketAddr>,
        _: (Instant, Duration),
    ) -> Result<PlainSocket, Cause> {
        turn();
        let ConnectionAddr::Tcp(_, port) = info.addr() else {
            return Err(Cause::Connect("no such node".into()));
        };
        let at = usize::from(port - PORT);
        with(|network| {
            network.count += 1;
            let number = network.count;
            let node = &mut network.nodes[at];
            if !node.is_up {
                return Err(Cause::Connect("connection refused".into()));
            }
            node.server.connect(number);
            node.connections.insert(number, Link::default());
            Ok(PlainSocket {
                node: at,
                number,
                is_reset: false,
            })
        })
    }

    fn link<T>(&self, work: impl FnOnce(&mut Node, u64) -> T) -> T {
        with(|network| work(&mut network.nodes[self.node], self.number))
    }

    pub(crate) fn send(&mut self, bytes: &[u8], _: Instant, _: Instant) -> Result<(), Cause> {
        turn();
        self.link(|node, number| {
            let link = node.connections.get_mut(&number).ok_or_else(closed)?;
            if link.server_ended || link.client_ended {
                return Err(closed());
            }
            link.to_server.extend_from_slice(bytes);
            node.wake();
            Ok(())
        })
    }

    pub(crate) fn recv(
        &mut self,
        buffer: &mut [u8],
        until: Instant,
        _: Instant,
    ) -> Result<usize, Cause> {
        turn();
        let panics = with(|network| {
            let (left, is_such) = network.panics?;
            network.panics = (left > 1).then_some((left - 1, is_such));
            (left == 1).then_some(is_such)
        });
        if panics.is_some_and(|is_such| is_such()) {
            std::panic::resume_unwind(Box::new(Injected));
        }
        let until = time::of(until);
        loop {
            let waiter = self.link(|node, number| {
                let link = node.connections.get_mut(&number).ok_or_else(closed)?;
                if !link.to_client.is_empty() {
                    let count = link.to_client.len().min(buffer.len());
                    buffer[..count].copy_from_slice(&link.to_client[..count]);
                    link.to_client.drain(..count);
                    return Ok(Err(count));
                }
                if link.server_ended || link.client_ended {
                    return Err(closed());
                }
                if time::now() >= until {
                    return Ok(Err(0));
                }
                assert!(
                    link.reader.is_none(),
                    "two threads read from one connection"
                );
                let waiter = Waiter::new();
                link.reader = Some(waiter.clone());
                Ok(Ok(waiter))
            })?;
            match waiter {
                Ok(waiter) => waiter.wait(Some(until)),
                Err(count) => return Ok(count),
            }
            self.link(|node, number| {
                if let Some(link) = node.connections.get_mut(&number) {
                    link.reader = None;
                }
            });
        }
    }

    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        None
    }

    pub(crate) fn shutdown(&self) {
        self.link(|node, number| {
            if let Some(link) = node.connections.get_mut(&number) {
                link.client_ended = true;
                link.wake();
                if link.server_ended {
                    node.connections.remove(&number);
                }
            }
            node.wake();
        });
    }

    /// Ends the connection: what the server has not received is lost.
    pub(crate) fn reset(mut self) {
        self.is_reset = true;
        turn();
    }
}

impl Drop for PlainSocket {
    fn drop(&mut self) {
        match self.is_reset {
            true => self.link(|node, number| {
                node.connections.remove(&number);
                node.server.disconnect(number);
            }),
            false => self.shutdown(),
        }
    }
}

pub(crate) fn addresses(_: &ConnectionAddr) -> Result<Vec<Option<SocketAddr>>, Cause> {
    Ok(vec![None])
}
