//! The connections of a thread, the state of the leader, and the threads that wait for it.

use std::sync::Arc;

use crate::net::driver::races::{Race, race};
use crate::net::socket::connection::Connection;
use crate::protocol::node::outgoing::Outgoing;
use crate::protocol::quorum::answer::Answer;
use crate::values::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
    lock,
    thread::{self, Thread},
};

/// The connections and buffers of a thread that carries out what the core returns.
#[derive(Default)]
pub(crate) struct Connections {
    /// The connections, by node. The leader has those of connected nodes.
    pub(super) each: Vec<Option<Connection>>,
    pub(super) out: Outgoing,
    pub(super) buffer: Vec<u8>,
}

impl Connections {
    pub(super) fn new(nodes: usize) -> Connections {
        Connections {
            each: (0..nodes).map(|_| None).collect(),
            ..Connections::default()
        }
    }

    /// Takes the connection of a node, if another thread has handed it over.
    pub(super) fn take_over(&mut self, node: usize, handed_over: &mut [Option<Connection>]) {
        if let (Some(connection), Some(handed_over)) =
            (self.each.get_mut(node), handed_over.get_mut(node))
            && connection.is_none()
        {
            *connection = handed_over.take();
        }
    }

    /// Replaces the connection of a node. Returns the old one.
    pub(super) fn replace(&mut self, node: usize, new: Option<Connection>) -> Option<Connection> {
        let connection = self.each.get_mut(node)?;
        std::mem::replace(connection, new)
    }
}

/// The leader's connections, and the answers that it has still to deliver.
pub(crate) struct LeaderState {
    pub(super) connections: Connections,
    /// Answers that are still to be delivered.
    pub(super) answers: Vec<(Submitter, Answer)>,
}

impl LeaderState {
    pub(super) fn new(nodes: usize) -> LeaderState {
        LeaderState {
            connections: Connections::new(nodes),
            answers: Vec::new(),
        }
    }

    /// Wakes the threads whose answers arrived.
    pub(super) fn deliver(&mut self) {
        if race(Race::AnswerOfAnother)
            && let [(_, one), .., (_, other)] = &mut self.answers[..]
        {
            std::mem::swap(one, other);
        }
        for (submitter, answer) in self.answers.drain(..) {
            submitter.deliver(answer);
        }
    }
}

/// The thread that waits for an operation.
pub(crate) enum Submitter {
    /// The thread that has led since the operation was submitted.
    Leader,
    Caller(Arc<Caller>),
}

impl Submitter {
    /// Whether this is the thread that waits with `caller`.
    pub(super) fn is(&self, caller: &Arc<Caller>) -> bool {
        matches!(self, Submitter::Caller(own) if Arc::ptr_eq(own, caller))
    }

    pub(super) fn deliver(self, answer: Answer) {
        if let Submitter::Caller(caller) = self {
            caller.set(Signal::Answered(answer));
        }
    }
}

/// A thread that waits for an answer.
pub(crate) struct Caller {
    thread: Thread,
    signal: Mutex<Option<Signal>>,
    /// Whether the thread is awake: while its operation is under way, it looks again and again whether a thread leads,
    /// at least once more.
    awake: AtomicBool,
    /// The resource of its operation, if its votes are logged.
    traced: Option<Arc<[u8]>>,
}

/// The end of a thread's wait.
pub(super) enum Signal {
    Leads(Box<LeaderState>),
    Answered(Answer),
}

impl Caller {
    /// Represents this thread. `resource`: that of its operation, if its votes are logged.
    pub(crate) fn new(resource: Option<Arc<[u8]>>) -> Arc<Caller> {
        Arc::new(Caller {
            thread: thread::current(),
            signal: Mutex::new(None),
            awake: AtomicBool::new(false),
            traced: resource,
        })
    }

    pub(super) fn traced(&self) -> Option<&[u8]> {
        self.traced.as_deref()
    }

    /// Sleeps until it is this thread's turn.
    pub(super) fn wait(&self) -> Signal {
        loop {
            match self.take_signal() {
                Some(turn) => return turn,
                None => thread::park(),
            }
        }
    }

    pub(super) fn take_signal(&self) -> Option<Signal> {
        let mut turn = lock(&self.signal);
        if turn.is_none() {
            // Threads poll this: an empty turn is not moved either.
            return None;
        }
        turn.take()
    }

    /// Marks the thread as awake. Unmark it with the state locked: a leader relies on it.
    pub(super) fn set_awake(&self, awake: bool) {
        self.awake.store(awake, Ordering::Relaxed);
    }

    pub(super) fn is_awake(&self) -> bool {
        self.awake.load(Ordering::Relaxed)
    }

    /// Wakes the thread to check what it should do.
    pub(crate) fn wake(&self) {
        self.thread.unpark();
    }

    /// Makes the thread the leader.
    pub(super) fn make_leader(&self, leader: Box<LeaderState>) {
        match race(Race::LeadUnnoticed) {
            true => *lock(&self.signal) = Some(Signal::Leads(leader)),
            false => self.set(Signal::Leads(leader)),
        }
    }

    fn set(&self, turn: Signal) {
        if race(Race::WakeBeforeAnswer) {
            self.thread.unpark();
            *lock(&self.signal) = Some(turn);
            return;
        }
        *lock(&self.signal) = Some(turn);
        self.thread.unpark();
    }
}
