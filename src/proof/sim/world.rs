//! A world: its servers, its clients, the next events, and the record of the locks.

use std::time::Instant;

use super::agenda::Agenda;
use super::basics::{MS, RESOURCES, Random, Violation};
use super::client::Client;
use super::conditions::Conditions;
use super::connection::{Net, SubscriptionEvent};
use super::counts::counts;
use super::place::Asks;
use super::server::Server;
use crate::protocol::commands::kind::Kind;
use crate::protocol::mutants::Promise;
use crate::values::arithmetic::{Deadline, majority};
use crate::values::node_set::NodeSet;

pub(super) struct World {
    pub(super) t: u64,
    pub(super) agenda: Agenda<Event>,
    pub(super) random: Random,
    pub(super) servers: Vec<Server>,
    pub(super) clients: Vec<Client>,
    pub(super) net: Net,
    pub(super) checks: Checks,
    pub(super) conditions: Conditions,
    /// All is well from now on.
    pub(super) quiet: bool,
    pub(super) counts: Counts,
    pub(super) traced: bool,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// Bytes for the server.
    Arrive(usize),
    /// Bytes for the client.
    Deliver(usize),
    /// The server reads what a dead connection left.
    Leftover(usize),
    Connected {
        client: usize,
        node: usize,
        well: bool,
    },
    Wake(usize),
    /// An event of a subscription.
    Subscription(usize, SubscriptionEvent),
    /// A process enters the queue after its denial.
    Late(usize),
    Fault,
    /// Servers close a client's connections, and forget the scripts.
    Forsake(usize),
    /// The second look at a new connection.
    LookAgain(usize),
    /// One of the servers behind a node's name becomes a replica.
    Demoted(usize, usize),
    /// The master before has followed, and takes its place again.
    Back(usize, usize),
    /// Something happens to the servers behind a name.
    Change(usize),
    /// The sentinels of a set replace its master, which was cut off; and it is there again.
    Promote(usize),
    Heals(usize, usize),
    /// A client's questions to the sentinels of a node go on.
    Asks(usize, usize, Asks),
    /// A token must be gone this long after its release.
    Gone(usize),
    /// A permit must be in no other slot this long after it was granted.
    InPlace(usize),
}

/// The record of the locks, and what is wrong with them.
#[derive(Default)]
pub(super) struct Checks {
    pub(super) tokens: Vec<TokenHistory>,
    /// The fencing tokens that were given out: resource, token, number, and when.
    pub(super) fences: Vec<(u8, usize, u64, u64)>,
    /// The idle time of each resource.
    pub(super) idle: [Idle; RESOURCES as usize],
    /// A server has forgotten keys.
    pub(super) lossy: bool,
    /// A server has forgotten counters.
    pub(super) uncounted: bool,
    /// Locks without contention, and how many of them could not be acquired.
    pub(super) probes: u32,
    pub(super) probes_failed: u32,
    /// When the nodes are looked at next for the keys of kept locks.
    pub(super) looks_at: u64,
    pub(super) wrong: Option<Violation>,
}

/// The history of a token.
#[derive(Default)]
pub(super) struct TokenHistory {
    pub(super) client: usize,
    pub(super) resource: u8,
    pub(super) kind: Kind,
    /// Over which connection its acquire and its release were sent to each node.
    pub(super) set_sent: [Option<usize>; 5],
    pub(super) rel_sent: [Option<usize>; 5],
    pub(super) on: OnNodes,
    pub(super) belief: Option<Belief>,
    /// When the token was drawn, and when it was given up, in the order of events.
    pub(super) drawn: u64,
    pub(super) freed: Option<u64>,
    /// No thread of the token's process waited for the lock when it was given up, nor has since.
    pub(super) alone: bool,
    /// Left to its ttl.
    pub(super) leaked: bool,
    /// Left for a time, and nothing has prolonged it since.
    pub(super) shortened: bool,
}

/// The nodes on which something has happened to a token.
#[derive(Default)]
pub(super) struct OnNodes {
    /// The server carried out the token's acquire, and its release.
    pub(super) set: NodeSet,
    pub(super) rel: NodeSet,
    /// Its release has a waiter notified: the token is that of a plain lock which was not handed off.
    pub(super) tells: NodeSet,
    /// Its release was sent late, or once more.
    pub(super) late: NodeSet,
    /// The server's answers.
    pub(super) granted: NodeSet,
    pub(super) denied: NodeSet,
    /// The server does not permit the operation.
    pub(super) forbidden: NodeSet,
    pub(super) extended: NodeSet,
    /// The token may have been set once more.
    pub(super) refilled: NodeSet,
    pub(super) not_held: NodeSet,
}

/// A client's belief to hold the lock.
pub(super) struct Belief {
    pub(super) deadline: Deadline,
    /// The slot of a permit.
    pub(super) slot: Option<u16>,
}

impl TokenHistory {
    /// Whether the token is on this name, perhaps among others.
    pub(super) fn covers(&self, name: u8) -> bool {
        let names = self.kind.names().unwrap_or_default();
        self.resource == name || names.iter().any(|own| **own == [name])
    }
}

/// Whether a resource is free, and a thread waits for it.
#[derive(Clone, Copy, Default)]
pub(super) struct Idle {
    pub(super) since: Option<u64>,
    /// The process that was notified may be dead.
    pub(super) excused: bool,
}

counts! {
    Events,
    Granted,
    Denied,
    Unavailable,
    Split,
    Second,
    TooSlow,
    Extended,
    Lost,
    Renewed,
    Shortened,
    HeldTooLong,
    Reconnected,
    Unresponsive,
    Replaced,
    Pings,
    Refused,
    Repairs,
    Quarantined,
    Fenced,
    Enqueued,
    Reserved,
    InOrder,
    Notified,
    Forwards,
    HandedOff,
    Waited,
    GaveUp,
    Permanent,
    Killed,
    ConfirmProbes,
    Permits,
    Strays,
    Reads,
    Writes,
    Several,
    Claims,
    Failovers,
    Flushes,
    Evictions,
    ClocksSet,
    StepsFound,
    SecondLooks,
    Unaware,
    Looks,
    Confirmed,
    Unconfirmed,
    MovedOn,
    Unserved,
    GoneWhileKept,
}

impl World {
    pub(super) fn at(&mut self, at: u64, event: Event) {
        self.agenda.at(at, event);
    }

    pub(super) fn wake(&mut self, c: usize, at: u64) {
        let wakes = (&mut self.clients[c].wake_at, self.t);
        self.agenda.wake(wakes, at, Event::Wake(c));
    }

    pub(super) fn now(&self, c: usize) -> Instant {
        self.clients[c].clocks.point(self.t).mono
    }

    /// Whether a time is reached; otherwise the client is woken then.
    pub(super) fn has_come(&mut self, c: usize, at: Instant) -> bool {
        if self.now(c) >= at {
            return true;
        }
        let at = self.clients[c].clocks.time(at);
        self.wake(c, at);
        false
    }

    pub(super) fn quorum(&self) -> usize {
        majority(self.servers.len())
    }

    /// How long a thread takes until it runs.
    pub(super) fn lag(&mut self) -> u64 {
        match self.random.below(20) {
            0 if !self.conditions.faultless => self.random.below(20 * MS),
            0..8 => self.random.below(200),
            _ => 0,
        }
    }

    pub(super) fn check(&mut self, promise: Promise, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.violated(promise, what());
        }
    }

    pub(super) fn violated(&mut self, promise: Promise, what: String) {
        let wrong = &mut self.checks.wrong;
        wrong.get_or_insert(Violation { promise, what });
    }
}
