//! The network between clients and servers: byte streams, and subscriptions.
//!
//! A subscription is a separate connection. It is confirmed some time after the server has it, its messages keep their
//! order, and both sides learn at different times that it is cut.

use std::collections::VecDeque;

use crate::errors::cause::Cause;
use crate::protocol::node::clock_watch::ClockReading;
use crate::protocol::node::server_properties::ServerProperties;
use crate::protocol::node::witness_look::WitnessLook;

/// The network between the clients and the servers.
#[derive(Default)]
pub(super) struct Net {
    pub(super) connections: Vec<Connection>,
    pub(super) subscriptions: Vec<Subscription>,
    /// New connections that are looked at once more.
    pub(super) looks: Vec<LooksAgain>,
    /// Commands whose processes enter the queue after their denials, and their nodes.
    pub(super) late: Vec<(usize, Vec<u8>)>,
}

/// One of the two ways of a connection.
#[derive(Default)]
pub(super) struct Way {
    pub(super) bytes: VecDeque<Vec<u8>>,
    /// A byte stream keeps its order.
    pub(super) at: u64,
    /// Nothing passes before this time.
    pub(super) held: u64,
}

pub(super) struct Connection {
    pub(super) client: usize,
    pub(super) node: usize,
    /// The server behind the node's name.
    pub(super) instance: usize,
    /// The way to the server.
    pub(super) up: Way,
    /// The beginning of a command whose rest is to come.
    pub(super) read: Vec<u8>,
    /// The way to the client, and the bytes that the client can read.
    pub(super) down: Way,
    pub(super) inbox: Vec<u8>,
    /// Its server has become a replica.
    pub(super) demoted: bool,
    /// Its server has refused the keys of queues: the client may do without them from then on.
    pub(super) lacks_queues: bool,
    pub(super) since: u64,
    pub(super) end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Open,
    /// The client closed it in the usual way: bytes under way arrive, until the first answer.
    Closed,
    /// Bytes still in the server's socket will be read; nothing else passes.
    Dead,
}

impl Connection {
    pub(super) fn new(client: usize, node: usize, instance: usize, since: u64) -> Connection {
        Connection {
            client,
            node,
            instance,
            up: Way::default(),
            read: Vec::new(),
            down: Way::default(),
            inbox: Vec::new(),
            demoted: false,
            lacks_queues: false,
            since,
            end: End::Open,
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.end == End::Open
    }

    /// Whether all that was written on it is answered, and all answers are read.
    pub(super) fn is_answered(&self) -> bool {
        let ways = [&self.up, &self.down];
        let none = ways.iter().all(|way| way.bytes.is_empty());
        self.is_open() && none && self.read.is_empty() && self.inbox.is_empty()
    }

    pub(super) fn is_dead(&self) -> bool {
        self.end == End::Dead
    }

    /// Holds bytes until this time. Never earlier than before: that would change the order.
    pub(super) fn hold(&mut self, until: u64, up: bool, down: bool) {
        if up {
            self.up.held = self.up.held.max(until);
        }
        if down {
            self.down.held = self.down.held.max(until);
        }
    }

    /// All held bytes pass from now on.
    pub(super) fn release(&mut self, t: u64) {
        self.up.held = self.up.held.min(t);
        self.down.held = self.down.held.min(t);
    }

    pub(super) fn next_up(&mut self) -> Option<Vec<u8>> {
        self.up.bytes.pop_front()
    }

    /// The bytes that the client can read, or that the connection is over.
    pub(super) fn recv(&mut self, part: usize) -> Result<Vec<u8>, Cause> {
        if !self.inbox.is_empty() {
            let rest = self.inbox.split_off(part.min(self.inbox.len()));
            return Ok(std::mem::replace(&mut self.inbox, rest));
        }
        if self.is_open() {
            Ok(Vec::new())
        } else {
            Err(Cause::Closed("by the other side".into()))
        }
    }
}

/// A new connection whose server is looked at once more.
pub(super) struct LooksAgain {
    pub(super) connection: usize,
    pub(super) first: WitnessLook,
    pub(super) clock: Option<ClockReading>,
    pub(super) properties: ServerProperties,
    pub(super) since: u64,
    /// The witness is there.
    pub(super) has_set: bool,
}

pub(super) struct Subscription {
    pub(super) client: usize,
    pub(super) node: usize,
    /// The server publishes to it.
    pub(super) subscribed: bool,
    /// The client has read the confirmation.
    pub(super) confirmed: bool,
    /// Nothing passes any longer; and the client has noticed that.
    pub(super) cut: bool,
    pub(super) broken: bool,
    pub(super) inbox: VecDeque<u8>,
    /// Messages keep their order; nothing passes before this time.
    pub(super) at: u64,
    pub(super) held: u64,
}

/// An event of a subscription.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SubscriptionEvent {
    /// The server has read the subscription.
    Subscribes,
    /// The client reads the confirmation.
    Confirms,
    Message(u8),
    /// The server learns that the subscription is over.
    Ends,
    /// The client learns that the subscription is over.
    Breaks,
}

/// A subscriber.
pub(super) struct Listener {
    pub(super) node: usize,
    pub(super) state: State,
}

#[derive(Clone, Copy)]
pub(super) enum State {
    Connecting(usize, u64),
    Subscribed(usize, u64),
    Pauses(u64),
    Ended,
}
