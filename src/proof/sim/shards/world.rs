//! A world of Clusters: its servers, its processes, the next events, and the checks.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use super::super::agenda::Agenda;
use super::super::basics::{Random, TODAY, Violation};
use super::super::counts::counts;
use super::process::{Connection, Process};
use super::servers::Cluster;
use crate::protocol::commands::kind::{Kind, Mark};
use crate::protocol::commands::slots::SlotMap;
use crate::protocol::mutants::Promise;
use crate::values::arithmetic::Deadline;
use crate::values::clock::Point;
use crate::values::node_set::NodeSet;

pub(crate) struct ShardWorld {
    pub(super) t: u64,
    /// This time, as the clocks of processes show it.
    pub(super) now: Instant,
    pub(super) agenda: Agenda<Event>,
    pub(super) random: Random,
    pub(super) start: Instant,
    pub(super) clusters: Vec<Cluster>,
    pub(super) processes: Vec<Process>,
    pub(super) connections: Vec<Connection>,
    pub(super) conditions: Conditions,
    pub(super) checks: Checks,
    /// All is well from now on.
    pub(super) quiet: bool,
    pub(super) traced: bool,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// Bytes for the server, and for the process.
    Arrive(usize),
    Deliver(usize),
    /// The server reads what a dead connection left.
    Leftover(usize),
    /// A try to connect a node of a lane ends.
    Connected(usize, usize, usize),
    /// The servers answer whether a node's master is still where it was.
    Confirmed(usize, usize, usize, u64),
    Wake(usize),
    /// The maps are asked for, and answered.
    Refresh(usize),
    Refreshed(usize, usize, u64),
    /// Something goes wrong on the way.
    Fault,
    /// A slot of a Cluster begins to move; the next step of that.
    Move(usize),
    CallStep(usize, usize, usize),
    FailOver(usize),
    /// A server ends; all servers learn which server owns a slot.
    Ends(usize, usize),
    Settles(usize, usize, usize),
    Learns(usize, usize),
    Mended(usize),
    /// A slot-less master is removed.
    Remove(usize),
}

/// The things that may happen in a world.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Conditions {
    pub(super) nodes: usize,
    /// Connections end and delay, and cannot be made.
    pub(super) cuts: bool,
    /// Servers disagree for long on which server owns a slot.
    pub(super) disagrees: bool,
    /// The first shard fails over, to a replica that may lack the last writes; or has all of them.
    pub(super) fails_over: bool,
    pub(super) lags: bool,
    /// When the shard fails over, its master and the first process are frozen. They go on together, cut off from all others.
    pub(super) parts: bool,
    /// The second master gives its slots away, and is removed.
    pub(super) shrinks: bool,
    pub(super) guarded: bool,
    pub(super) locks: Locks,
}

/// The kind of locks that are taken. (All names have one kind.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Locks {
    #[default]
    Plain,
    /// Two of each.
    Permits,
    ReadWrite,
}

impl Locks {
    /// A lock of this kind. `writer`: a number that no other one has.
    pub(super) fn draw(self, random: &mut Random, writer: u64) -> Kind {
        match self {
            Locks::Plain => Kind::Plain,
            Locks::Permits => Kind::Permit {
                permits: 2,
                slot: None,
            },
            Locks::ReadWrite if random.chance(60) => Kind::Read { waited: 0 },
            Locks::ReadWrite => Kind::Write(Mark {
                writer,
                life: 30,
                waited: 0,
            }),
        }
    }
}

impl Conditions {
    /// Whether every call that the servers can serve must succeed.
    pub(super) fn is_calm(self) -> bool {
        !self.cuts && !self.disagrees && !self.fails_over && !self.shrinks
    }
}

#[derive(Default)]
pub(super) struct Checks {
    pub(super) tokens: Vec<TokenHistory>,
    pub(super) wrong: Option<Violation>,
    /// The events that are counted, to see that they happen.
    pub(super) counts: Counts,
    /// The answers to requests for maps that are under way.
    pub(super) maps: Vec<Option<Arc<SlotMap>>>,
    /// When a server last had some keys of a command, and others not, as their slot was on its way.
    pub(super) torn_at: Option<u64>,
    /// When the last shard failed over.
    pub(super) failed_over: Option<u64>,
}

counts! {
    Events,
    Granted,
    Moved,
    Asked,
    Torn,
    Moves,
    Failovers,
    Owed,
    Lanes,
    Closed,
    Removed,
    Overtaken,
    Unconfirmed,
    Permits,
    Reads,
    Writes,
}

/// The history of a token.
#[derive(Default)]
pub(super) struct TokenHistory {
    pub(super) name: usize,
    /// The Clusters on which its acquire and its release were carried out.
    pub(super) set: NodeSet,
    pub(super) rel: NodeSet,
    pub(super) refilled: NodeSet,
    /// The Clusters that had the lock when its release was carried out.
    pub(super) released: NodeSet,
    /// Its release was written to two lanes, or followed its key to another one: there it may overtake what was sent over
    /// the first one.
    pub(super) handed_over: bool,
    /// Its acquire was read behind such a release, from a connection that had ended: pings over the connection of
    /// another lane do not show what that has left at its server (rule R8). The key ends with its ttl.
    pub(super) overtaken: bool,
    /// Its key was left behind by a move that a failover ended.
    pub(super) stranded: bool,
    /// Its lock, with the slot of a permit, once it is granted.
    pub(super) kind: Option<Kind>,
    pub(super) belief: Option<Deadline>,
}

impl TokenHistory {
    /// Whether two granted locks exclude each other.
    pub(super) fn excludes(&self, other: &TokenHistory) -> bool {
        self.name == other.name
            && match (&self.kind, &other.kind) {
                (Some(Kind::Read { .. }), Some(Kind::Read { .. })) => false,
                (Some(Kind::Permit { slot, .. }), Some(Kind::Permit { slot: other, .. })) => {
                    slot == other
                }
                _ => true,
            }
    }
}

impl ShardWorld {
    pub(super) fn at(&mut self, at: u64, event: Event) {
        self.agenda.at(at, event);
    }

    pub(super) fn wake(&mut self, p: usize, at: u64) {
        let wakes = (&mut self.processes[p].wake_at, self.t);
        self.agenda.wake(wakes, at, Event::Wake(p));
    }

    pub(super) fn go_to(&mut self, t: u64) {
        (self.t, self.now) = (t, self.start + Duration::from_micros(t));
    }

    pub(super) fn now(&self) -> Instant {
        self.now
    }

    // ---- a process and a server that are frozen, and then cut off together

    /// Until when a process is frozen, if it is.
    pub(super) fn frozen_until(&self, p: usize) -> Option<u64> {
        let parted = self.clusters.iter().filter_map(|here| here.parted);
        let mut frozen = parted.filter(|_| p == 0).map(|parted| parted.frozen);
        frozen.find(|until| *until > self.t)
    }

    /// Until when a server is frozen, if it is.
    pub(super) fn server_is_frozen(&self, cluster: usize, server: usize) -> Option<u64> {
        let parted = self.clusters[cluster].parted;
        let parted = parted.filter(|parted| parted.server == server);
        let frozen = parted.map(|parted| parted.frozen);
        frozen.filter(|until| *until > self.t)
    }

    /// Whether a server receives and answers what a process sends.
    pub(super) fn reaches(&self, p: usize, cluster: usize, server: usize) -> bool {
        let parted = self.clusters[cluster].parted;
        let parted = parted.filter(|parted| parted.ends > self.t);
        let is_frozen = self.server_is_frozen(cluster, server).is_some();
        parted.is_none_or(|parted| (p == 0) == (parted.server == server) && !is_frozen)
    }

    pub(super) fn point(&self) -> Point {
        Point {
            mono: self.now(),
            wall: SystemTime::UNIX_EPOCH + Duration::from_micros(TODAY + self.t),
        }
    }

    /// The time at which the clock shows `at`.
    pub(super) fn time(&self, at: Instant) -> u64 {
        let micros = at.saturating_duration_since(self.start).as_micros();
        u64::try_from(micros).unwrap_or(u64::MAX / 2)
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

    pub(crate) fn counts(&self) -> Counts {
        self.checks.counts
    }
}
