//! The threads that connect nodes, and those that ask where a master is.

use std::sync::Arc;

use super::{DriverState, Executor, missing_connection};
use crate::errors::cause::Cause;
use crate::net::driver::leadership::Connections;
use crate::net::driver::races::{Race, race};
use crate::net::socket::connection::Connection;
use crate::net::socket::set_up::Purpose;
use crate::protocol::commands::companions::WITNESS;
use crate::protocol::discovery::found_master::{FoundMaster, MasterConfirmation};
use crate::protocol::node::known_server::Connected;
use crate::protocol::quorum::core::Input;
use crate::protocol::quorum::thread_step::{ThreadRole, ThreadStep};
use crate::values::clock;
use crate::values::sync::{MutexGuard, guarded, start_thread};

impl Executor {
    /// Starts a node's worker, which gets the connection if it is still usable.
    pub(super) fn start_worker<'a>(
        self: &'a Arc<Executor>,
        connections: &mut Connections,
        mut state: MutexGuard<'a, DriverState>,
        node: usize,
        keeps_connection: bool,
    ) -> MutexGuard<'a, DriverState> {
        let connection = connections.replace(node, None);
        if !keeps_connection {
            connection.into_iter().for_each(Connection::reset);
        } else if let Some(handed_over) = state.handed_over.get_mut(node) {
            *handed_over = connection.or(handed_over.take());
        }
        let executor = self.clone();
        let work = move || WorkerThread::new(&executor, node).run();
        let started = start_thread(format!("redlock-node-{node}"), work);
        let started = started.map_err(|error| Cause::NoThread(error.to_string()));
        let input = Input::Started(started);
        state.core.input(node, input, clock::instant());
        state
    }

    /// Connects to a node: in another thread, if the worker has a connection that it reads from meanwhile.
    pub(super) fn connect<'a>(
        self: &'a Arc<Executor>,
        connections: &Connections,
        state: MutexGuard<'a, DriverState>,
        node: usize,
    ) -> MutexGuard<'a, DriverState> {
        drop(state);
        let elsewhere = connections.each.get(node).is_some_and(Option::is_some);
        let executor = self.clone();
        let name = format!("redlock-conn-{node}");
        if !elsewhere || start_thread(name, move || executor.open(node)).is_err() {
            self.open(node);
        }
        self.state()
    }

    fn open(&self, node: usize) {
        let witness = self.prefix.key(WITNESS);
        let purpose = match self.guards.each.get(node) {
            Some(Some(guard)) => Purpose::GuardedLocks {
                witness: Some(&witness),
                seasoned: guard.seasoned(),
                needed: self.guards.is_needed,
            },
            _ => Purpose::Locks,
        };
        let place = self.places.get(node).ok_or_else(missing_connection);
        let open = || place.and_then(|place| place.open(self.timeouts.connect, purpose));
        // The node is being connected until an answer is here.
        let opened = guarded(open).unwrap_or_else(|| {
            Err(Cause::Closed(
                "the thread that connects has panicked".into(),
            ))
        });
        let (mut connection, handshake) = match opened {
            Ok((connection, handshake)) => (Some(connection), Ok(handshake)),
            Err(cause) => (None, Err(cause)),
        };
        let lanes = self.lanes.as_ref().zip(handshake.as_ref().ok());
        let known = lanes.and_then(|(lanes, made)| {
            guarded(|| lanes.known_server(node, Connected::by(made))).flatten()
        });
        let mut state = self.state();
        if state.core.connected(node, handshake, clock::instant()) {
            if let Some(known) = known {
                state.core.learn(node, known);
            }
            if let Some(not_adopted) = state.not_adopted.get_mut(node) {
                *not_adopted = connection.take();
            }
        }
        self.announce(&mut state);
        drop(state);
    }

    /// Asks a node's directory, in another thread, whether the master is where it was.
    pub(super) fn confirm_master<'a>(
        self: &'a Arc<Executor>,
        state: MutexGuard<'a, DriverState>,
        node: usize,
        found: FoundMaster,
    ) -> MutexGuard<'a, DriverState> {
        drop(state);
        let question = ConfirmMaster {
            executor: self.clone(),
            node,
            found,
            answered: false,
        };
        // If no thread starts, the directory is asked again.
        let _ = start_thread(format!("redlock-find-{node}"), move || question.ask());
        self.state()
    }
}

/// A worker: it serves a node until the node is connected, or no longer needed. If the worker panics, which only a bug
/// can cause, its node gets another one.
struct WorkerThread<'a> {
    executor: &'a Arc<Executor>,
    node: usize,
    connections: Connections,
    has_ended: bool,
}

impl<'a> WorkerThread<'a> {
    fn new(executor: &'a Arc<Executor>, node: usize) -> WorkerThread<'a> {
        WorkerThread {
            executor,
            node,
            connections: Connections::new(executor.places.len()),
            has_ended: false,
        }
    }

    fn run(mut self) {
        let (executor, node) = (self.executor, self.node);
        let mut state = executor.state();
        self.connections.take_over(node, &mut state.handed_over);
        let connected;
        (state, connected) = self.serve(state);
        self.has_ended = true;
        if race(Race::HandOverTooLate) {
            drop(state);
            state = executor.state();
        }
        if let Some(handed_over) = state.handed_over.get_mut(node).filter(|_| connected) {
            *handed_over = self.connections.replace(node, None);
        }
        let not_adopted = state.take_not_adopted(node);
        executor.announce(&mut state);
        let confirms = state.core.starts_confirmer(ThreadRole::Worker(node));
        let start_confirmer = state.start_confirmer;
        drop(state);
        drop(not_adopted);
        if confirms {
            start_confirmer(executor);
        }
        executor.log();
    }

    /// Carries out what [`Core::next`](crate::protocol::quorum::core::Core::next) returns. Returns at the end whether the node is connected.
    fn serve(
        &mut self,
        mut state: MutexGuard<'a, DriverState>,
    ) -> (MutexGuard<'a, DriverState>, bool) {
        let (executor, role) = (self.executor, ThreadRole::Worker(self.node));
        let mut now = clock::instant();
        loop {
            let next = state.core.next(role, now);
            executor.announce(&mut state);
            match next {
                ThreadStep::Reconnected => return (state, true),
                ThreadStep::Finished => return (state, false),
                ThreadStep::Connect { .. } | ThreadStep::Wait { .. } => {
                    executor.log_in_thread(&state)
                }
                _ => {}
            }
            (state, now) = executor.carry_out(role, &mut self.connections, state, next, now);
        }
    }
}

impl Drop for WorkerThread<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            let mut state = self.executor.state();
            let role = ThreadRole::Worker(self.node);
            state.core.deserted(role, clock::instant());
            self.executor.announce(&mut state);
        }
    }
}

/// A question to a node's directory. If it cannot be asked, it is asked again.
struct ConfirmMaster {
    executor: Arc<Executor>,
    node: usize,
    found: FoundMaster,
    answered: bool,
}

impl ConfirmMaster {
    fn ask(mut self) {
        let place = self.executor.places.get(self.node);
        let answer = place.map_or(Err(None), |place| place.confirm(&self.found));
        self.answered = true;
        self.said(answer);
    }

    fn said(&self, answer: MasterConfirmation) {
        let asked = self.found.at;
        let mut state = self.executor.state();
        let input = Input::MasterConfirmed { asked, answer };
        state.core.input(self.node, input, clock::instant());
        self.executor.announce(&mut state);
    }
}

impl Drop for ConfirmMaster {
    fn drop(&mut self) {
        if !self.answered {
            self.said(Err(None));
        }
    }
}
