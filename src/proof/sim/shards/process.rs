//! A virtual process: its lanes, each with a core and its driver, their connections, and its threads.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::basics::{CONNECT_TIMEOUT, NODE_TIMEOUT};
use crate::protocol::calls::acquire::Acquire;
use crate::protocol::calls::lease::{Extension, Lease};
use crate::protocol::calls::release::Release;
use crate::protocol::cluster::cluster_map::ClusterMap;
use crate::protocol::cluster::map_refreshes::Refreshes;
use crate::protocol::cluster::redirect::Redirect;
use crate::protocol::cluster::redirected_releases::{RedirectedRelease, RedirectedReleases};
use crate::protocol::commands::node_queue::Channel;
use crate::protocol::discovery::found_master::FoundMaster;
use crate::protocol::node::node::Timeouts;
use crate::protocol::node::restart_guard::RestartGuard;
use crate::protocol::quorum::answer::Answer;
use crate::protocol::quorum::core::Core;
use crate::protocol::quorum::op::Op;
use crate::protocol::quorum::thread_step::ThreadRole;
use crate::protocol::waiting::held_here::HeldHere;
use crate::protocol::waiting::wait_queue::WaitQueues;
use crate::values::prefix::Prefix;

/// In place of a thread: no thread waits for the operation, or the one that sends releases on.
pub(super) const NO_THREAD: usize = usize::MAX;
pub(super) const OWED: usize = usize::MAX - 1;
/// From this number on: the threads for which others have submitted something.
pub(super) const HANDED_OFF: usize = 1000;

pub(super) struct Process {
    pub(super) maps: Vec<ClusterMap>,
    /// When the maps are asked for again.
    pub(super) refreshes: Refreshes,
    pub(super) lanes: Vec<Lane>,
    /// The lanes that are not closed, or of which a thread of the driver is left, in their order.
    pub(super) active: Vec<usize>,
    pub(super) threads: Vec<Thread>,
    pub(super) owed: RedirectedReleases,
    /// The release that the thread has sent on, and on which lane; or when it looks again.
    pub(super) sent: Option<(RedirectedRelease, usize)>,
    pub(super) owed_at: u64,
    pub(super) wake_at: u64,
}

impl Process {
    /// The first active lane of these.
    pub(super) fn active(&self, lanes: Range<usize>) -> Option<usize> {
        let mut active = self.active.iter().copied();
        active.find(|lane| lanes.contains(lane))
    }

    /// Whether an operation or a thread uses this lane.
    pub(super) fn uses(&self, lane: usize) -> bool {
        let sends = self.sent.as_ref().is_some_and(|(_, at)| *at == lane);
        let mut threads = self.threads.iter();
        sends
            || threads.any(|thread| {
                let flight = thread.flight.as_ref();
                let own = [thread.lane, thread.acquired];
                own.contains(&Some(lane)) || flight.is_some_and(|flight| flight.lane == lane)
            })
    }

    /// A lane has something to do, again perhaps.
    pub(super) fn activate(&mut self, lane: usize) {
        if let Err(at) = self.active.binary_search(&lane) {
            self.active.insert(at, lane);
        }
    }
}

/// A node of a lane: the master of a slot in one of the Clusters, or a server that slots are on their way to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) slot: u16,
    pub(super) target: Option<usize>,
    /// The server that it was last connected to.
    pub(super) at: Option<usize>,
}

impl Place {
    /// The master of a slot.
    pub(super) fn of(slot: u16) -> Place {
        Place {
            slot,
            target: None,
            at: None,
        }
    }
}

pub(super) struct Lane {
    pub(super) core: Core<usize>,
    pub(super) places: Vec<Place>,
    pub(super) queues: WaitQueues<usize>,
    pub(super) held_here: HeldHere,
    /// The connections of the leader or the worker, by node, and those that were just made.
    pub(super) connections: Vec<Option<usize>>,
    pub(super) fresh: Vec<Option<usize>>,
    /// The masters that servers are asked about, by node.
    pub(super) asked_about: Vec<Option<FoundMaster>>,
    pub(super) leader: Task,
    pub(super) workers: Vec<Task>,
    pub(super) confirmer: Task,
    pub(super) state: LaneState,
}

/// How long a lane is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LaneState {
    Open,
    /// Other lanes lead to its servers, or it has no slots: the last thread that uses it closes it.
    Unused,
    /// Closed, and what it owes has until then.
    Closing(Instant),
    Closed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    None,
    Runs,
    Connects,
    Recv(usize, Instant),
    Waits(Instant),
}

impl Lane {
    pub(super) fn new(
        number: u8,
        places: Vec<Place>,
        guard: Option<RestartGuard>,
        (rng, start): (u64, Instant),
    ) -> Lane {
        let nodes = places.len();
        let timeouts = Timeouts {
            node: Duration::from_micros(NODE_TIMEOUT),
            connect: Duration::from_micros(CONNECT_TIMEOUT),
        };
        let addresses = places.iter().map(|_| (Arc::from("x"), guard));
        let channel = Channel::new([number; 16]);
        Lane {
            core: Core::new(addresses, timeouts, Prefix::default(), rng, start),
            queues: WaitQueues::new(nodes, Some(channel), timeouts.node, rng),
            held_here: HeldHere::new(16),
            connections: vec![None; nodes],
            fresh: vec![None; nodes],
            asked_about: vec![None; nodes],
            leader: Task::None,
            workers: vec![Task::None; nodes],
            confirmer: Task::None,
            state: LaneState::Open,
            places,
        }
    }

    pub(super) fn task(&mut self, role: ThreadRole) -> &mut Task {
        match role {
            ThreadRole::Leader => &mut self.leader,
            ThreadRole::Worker(node) => &mut self.workers[node],
            ThreadRole::Confirmer => &mut self.confirmer,
        }
    }

    /// Wakes the threads that wait for news.
    pub(super) fn wake(&mut self) {
        let others = [&mut self.leader, &mut self.confirmer];
        for task in others.into_iter().chain(&mut self.workers) {
            if let Task::Waits(_) = task {
                *task = Task::Runs;
            }
        }
    }

    /// Whether no thread of the driver is left.
    pub(super) fn is_idle(&self) -> bool {
        let workers = self.workers.iter().all(|task| *task == Task::None);
        workers && self.leader == Task::None && self.confirmer == Task::None
    }
}

pub(super) struct Thread {
    pub(super) doing: Doing,
    /// The lane of the thread's lock, or of the one that it asks for.
    pub(super) lane: Option<usize>,
    /// The lane of its last try, if that is not the call's.
    pub(super) acquired: Option<usize>,
    /// The operation that the thread waits for.
    pub(super) flight: Option<Flight>,
    pub(super) acts: u32,
}

impl fmt::Display for Thread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let doing = match &self.doing {
            Doing::Idle(_) => "idle",
            Doing::Acquires(_) => "acquires",
            Doing::Holds(..) => "holds",
            Doing::Extends(..) => "extends",
            Doing::Releases { .. } => "releases",
            Doing::Stopped => "stopped",
        };
        let flight = self.flight.as_ref();
        let flight = flight.map(|flight| (&flight.op.action, flight.lane, flight.since));
        let call = match &self.doing {
            Doing::Acquires(call) => Some((call.due, call.served, call.mail.is_some())),
            _ => None,
        };
        write!(f, "{doing} on {:?}, {flight:?}, {call:?}", self.lane)
    }
}

/// An operation under way.
pub(super) struct Flight {
    pub(super) op: Op,
    /// When it was submitted, and where it is now.
    pub(super) since: u64,
    pub(super) lane: usize,
    /// Set once a server has redirected it.
    pub(super) redirect: Option<Redirect>,
    /// When it is sent on, after ASKING or not.
    pub(super) next: Option<(u64, Op)>,
}

pub(super) enum Doing {
    Idle(u64),
    Acquires(Box<Call>),
    Holds(Held, u64),
    Extends(Held, Extension),
    Releases {
        release: Release,
        handed_off: bool,
        call: Option<Box<Call>>,
    },
    Stopped,
}

pub(super) struct Held {
    pub(super) token: usize,
    pub(super) lease: Lease,
}

pub(super) struct Call {
    pub(super) acquire: Acquire<usize>,
    pub(super) name: usize,
    /// When the thread goes on by itself. `None`: it waits for an answer.
    pub(super) due: Option<u64>,
    pub(super) parks: bool,
    /// The token of the try that another thread has made for this call, and the answer.
    pub(super) served: bool,
    pub(super) mail: Option<Answer>,
    /// When the call ends at the latest.
    pub(super) ends: u64,
}

/// A connection: bytes in both directions keep their order.
pub(super) struct Connection {
    pub(super) of: (usize, usize, usize),
    pub(super) cluster: usize,
    pub(super) server: usize,
    pub(super) up: VecDeque<Vec<u8>>,
    pub(super) down: VecDeque<Vec<u8>>,
    pub(super) inbox: Vec<u8>,
    pub(super) read: Vec<u8>,
    pub(super) at: [u64; 2],
    pub(super) asking: bool,
    pub(super) open: bool,
    /// Whether bytes that are under way still reach the server.
    pub(super) drains: bool,
}
