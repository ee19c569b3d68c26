//! A virtual process: its clocks, its core with a driver, and its threads: what each does with which lock.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::basics::{CONNECT_TIMEOUT, LONGEST, MARGIN, MS, NODE_TIMEOUT, RESOLUTION, Random};
use super::clocks::Clocks;
use super::conditions::Conditions;
use super::connection::Listener;
use super::place::Place;
use crate::protocol::calls::claims::Claiming;
use crate::protocol::calls::fencing::Fencing;
use crate::protocol::calls::lease::unseen_time::UnseenTime;
use crate::protocol::calls::lease::{Extension, Lease};
use crate::protocol::calls::release::Release;
use crate::protocol::commands::node_queue::Channel;
use crate::protocol::node::node::Timeouts;
use crate::protocol::node::restart_guard::RestartGuard;
use crate::protocol::quorum::answer::Answer;
use crate::protocol::quorum::core::Core;
use crate::protocol::quorum::thread_step::ThreadRole;
use crate::protocol::waiting::held_here::HeldHere;
use crate::protocol::waiting::wait_queue::WaitQueues;
use crate::protocol::waiting::waiter::AcquireRequest;
use crate::values::prefix::Prefix;
use crate::values::token::Token;

/// In place of a thread, if none waits for the operation.
pub(super) const NO_THREAD: usize = usize::MAX;
/// From this number on: the threads for which others have submitted something.
pub(super) const HANDED_OFF: usize = 1000;

/// The number that a token consists of.
pub(super) fn token_id(token: &Token) -> usize {
    let id = u64::from_le_bytes(token.as_bytes()[..8].try_into().unwrap());
    usize::try_from(id).unwrap()
}

pub(super) struct Client {
    pub(super) core: Core<usize>,
    pub(super) driver: Driver,
    pub(super) forsaken: Forsaken,
    pub(super) threads: Vec<Thread>,
    /// The threads that wait, and the locks that are held here.
    pub(super) queues: WaitQueues<usize>,
    pub(super) held_here: HeldHere,
    pub(super) listeners: Vec<Listener>,
    /// The process was killed.
    pub(super) dead: bool,
    pub(super) clocks: Clocks,
    /// Until when something was in the way to each node.
    pub(super) hindered: Vec<u64>,
    /// When the process is woken next.
    pub(super) wake_at: u64,
}

/// The driver, which has the sockets and threads.
pub(super) struct Driver {
    /// The connections of the leader or the worker, by node, and those that were just made.
    pub(super) connections: Vec<Option<usize>>,
    pub(super) fresh: Vec<Option<usize>>,
    pub(super) leader: Task,
    /// The workers, by node.
    pub(super) workers: Vec<Task>,
    pub(super) confirmer: Task,
    /// The client's knowledge of each node that is a set.
    pub(super) places: Vec<Place>,
}

impl Driver {
    pub(super) fn task(&mut self, role: ThreadRole) -> &mut Task {
        match role {
            ThreadRole::Leader => &mut self.leader,
            ThreadRole::Worker(node) => &mut self.workers[node],
            ThreadRole::Confirmer => &mut self.confirmer,
        }
    }

    pub(super) fn tasks(&mut self) -> impl Iterator<Item = &mut Task> {
        let others = [&mut self.leader, &mut self.confirmer];
        others.into_iter().chain(&mut self.workers)
    }
}

/// The state of a client if nothing follows a release.
#[derive(Default)]
pub(super) struct Forsaken {
    /// When the lock must be gone.
    pub(super) gone_by: u64,
    /// The servers have closed its connections before.
    pub(super) again: bool,
    /// How often new connections are closed.
    pub(super) unlucky: u32,
    /// Servers refuse the keys beside its lock, or all that ends it, and its release waits for their answers.
    pub(super) waits: bool,
}

/// The current action of one of the driver's threads.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Task {
    /// There is no such thread.
    None,
    Runs,
    Connects,
    /// Everything was taken out of the core at once, and is written bit by bit.
    Writes(VecDeque<(usize, Vec<u8>)>, u64),
    Recv(usize, Instant),
    /// Nothing had arrived when the thread was stopped.
    ReadNothing(usize),
    Waits(Instant),
}

pub(super) fn guard(nodes: usize) -> RestartGuard {
    let times = [LONGEST, RESOLUTION, MARGIN].map(Duration::from_micros);
    RestartGuard::new(times[0], nodes).shorter(times)
}

impl Client {
    /// The client of this number. `counters`: their number, for the locks that are held here.
    pub(super) fn new(
        number: usize,
        nodes: usize,
        conditions: &Conditions,
        counters: usize,
        random: &mut Random,
    ) -> Client {
        let clocks = Clocks::new(random);
        let channel = Channel::new([u8::try_from(number).unwrap(); 16]);
        let node_timeout = Duration::from_micros(NODE_TIMEOUT);
        let rng = random.next();
        let guard = conditions.guarded.then(|| guard(nodes));
        let addresses = (0..nodes).map(|_| (Arc::from("x"), guard));
        let timeouts = Timeouts {
            node: node_timeout,
            connect: Duration::from_micros(CONNECT_TIMEOUT),
        };
        let threads = 1 + random.pick(if conditions.waits { 4 } else { 3 });
        Client {
            queues: WaitQueues::new(nodes, Some(channel), node_timeout, rng),
            held_here: HeldHere::new(counters),
            listeners: Vec::new(),
            dead: false,
            core: Core::new(
                addresses,
                timeouts,
                Prefix::default(),
                random.next(),
                clocks.start(),
            ),
            driver: Driver {
                connections: vec![None; nodes],
                fresh: vec![None; nodes],
                leader: Task::None,
                workers: vec![Task::None; nodes],
                confirmer: Task::None,
                places: (0..nodes).map(|_| Place::new()).collect(),
            },
            forsaken: Forsaken::default(),
            threads: (0..threads)
                .map(|_| Thread {
                    doing: Doing::Idle(random.below(30 * MS)),
                    acts: 0,
                    since: 0,
                    asked: 0,
                })
                .collect(),
            clocks,
            hindered: vec![0; nodes],
            wake_at: u64::MAX,
        }
    }

    /// The process is killed.
    pub(super) fn die(&mut self) {
        self.dead = true;
        self.driver.tasks().for_each(|task| *task = Task::None);
        self.listeners.clear();
        for thread in &mut self.threads {
            thread.doing = Doing::Stopped;
        }
    }

    /// Anything that is not as it must be when all is quiet.
    pub(super) fn not_quiescent(&self) -> Option<String> {
        if self.dead {
            return None;
        }
        self.core.not_quiescent().or_else(|| self.running())
    }

    pub(super) fn connects(&self) -> bool {
        self.driver.workers.contains(&Task::Connects)
    }

    /// A thread of the driver that has not ended.
    pub(super) fn running(&self) -> Option<String> {
        let driver = &self.driver;
        let has_worker = driver.workers.iter().any(|one| *one != Task::None);
        let leads = !matches!(driver.leader, Task::None | Task::Runs);
        let confirms = driver.confirmer != Task::None;
        let has_worker = has_worker.then(|| "a worker is left".to_owned());
        let confirms = confirms.then(|| "a thread still confirms".to_owned());
        let leads = leads.then(|| "a thread still leads".to_owned());
        has_worker.or(leads).or(confirms)
    }
}

pub(super) struct Thread {
    pub(super) doing: Doing,
    pub(super) acts: u32,
    /// When the thread's operation was submitted.
    pub(super) since: u64,
    /// When its program was asked last whether to go on waiting.
    pub(super) asked: u64,
}

pub(super) enum Doing {
    Idle(u64),
    Acquires(Box<Call>),
    Holds(Held, u64),
    Extends(Held, Extension),
    Keeps(Box<Keeping>),
    /// Asks for a fencing token, since then.
    Fences(Held, Fencing, u64),
    Releases(Releasing),
    /// Leaves a lock for a time.
    Shortens(usize),
    Stopped,
}

impl Thread {
    /// The token of the lock that the thread has.
    pub(super) fn uses(&self) -> Option<usize> {
        match &self.doing {
            Doing::Holds(held, _) | Doing::Extends(held, _) | Doing::Fences(held, ..) => {
                Some(held.token)
            }
            Doing::Keeps(keeping) => Some(keeping.token()),
            Doing::Releases(releasing) => Some(releasing.token),
            _ => None,
        }
    }

    /// The thread's call that acquires a lock.
    pub(super) fn call(&self) -> Option<&Call> {
        match &self.doing {
            Doing::Acquires(call) => Some(call),
            Doing::Releases(releasing) => releasing.call.as_deref(),
            _ => None,
        }
    }
}

pub(super) struct Held {
    pub(super) token: usize,
    pub(super) lease: Lease,
}

/// A kept lock, and what renews it.
pub(super) struct Keeping {
    pub(super) held: Held,
    pub(super) max_hold: Duration,
    pub(super) due: Instant,
    /// When its holder releases it.
    pub(super) until: u64,
    pub(super) extension: Option<Extension>,
    /// When the thread that reports the loss looks at the lease; and whether it has reported it.
    pub(super) watch: Instant,
    pub(super) reported: bool,
    pub(super) unseen: UnseenTime,
    /// When the last extension was answered. `None`: it is under way.
    pub(super) answered: Option<Instant>,
    /// Since when each node has been without the key.
    pub(super) gone: [Option<u64>; 5],
}

impl Keeping {
    pub(super) fn token(&self) -> usize {
        self.held.token
    }

    /// When a thread of the kept lock does something by itself.
    pub(super) fn wakes(&self, clocks: &Clocks) -> u64 {
        let looks = self.unseen.looks_at();
        let looks = match self.reported {
            true => looks,
            false => looks.min(self.watch),
        };
        let looks = clocks.time(looks);
        match self.extension {
            Some(_) => looks,
            None => clocks.time(self.due).min(self.until).min(looks),
        }
    }
}

/// A release, and the call that goes on after it.
pub(super) struct Releasing {
    pub(super) release: Release,
    pub(super) token: usize,
    pub(super) handed_off: bool,
    pub(super) call: Option<Box<Call>>,
}

/// A call of a thread that acquires a lock.
pub(super) struct Call {
    pub(super) acquire: Claiming<usize>,
    pub(super) request: AcquireRequest,
    pub(super) resource: u8,
    pub(super) stage: Stage,
    /// When the call began, and until when its first attempt may go on.
    pub(super) came: u64,
    pub(super) soon: Instant,
    /// Since when the call has been in the queues on all nodes, with subscriptions to all.
    pub(super) queued: Option<u64>,
    /// When the program stops the wait.
    pub(super) gives_up: u64,
    /// The number of attempts that were seen.
    pub(super) attempts: u32,
    /// The first try that another thread has made for this call, and the answer.
    pub(super) served: Option<usize>,
    pub(super) mail: Option<Answer>,
    /// The hand-off gave no lock.
    pub(super) vain: bool,
}

#[derive(Clone, Copy)]
pub(super) enum Stage {
    /// Decides at this time what to do; or sleeps until then, and may be woken; or sleeps in any case.
    Stands(u64),
    Parks(u64),
    Pauses(u64),
    /// Tries with this token.
    Tries(usize),
    Leaves,
    /// Releases a lock that was granted too late.
    Releases,
}

impl Call {
    /// When the call's thread goes on by itself.
    pub(super) fn due(&self) -> Option<u64> {
        match self.stage {
            Stage::Stands(at) | Stage::Parks(at) | Stage::Pauses(at) => Some(at),
            Stage::Tries(_) | Stage::Leaves | Stage::Releases => None,
        }
    }

    /// Whether the call is for this name, perhaps among others.
    pub(super) fn concerns(&self, resource: u8) -> bool {
        let names = self.request.kind.names().unwrap_or_default();
        self.resource == resource || names.iter().any(|name| **name == [resource])
    }

    /// Whether the call is in the queue of its process.
    pub(super) fn waits(&self) -> bool {
        self.acquire.place().is_some()
    }

    /// Whether the call's thread sleeps, or is about to look what to do.
    pub(super) fn sleeps(&self) -> bool {
        matches!(self.stage, Stage::Stands(_) | Stage::Parks(_))
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.request.end.is_some_and(|end| end <= now)
    }
}
