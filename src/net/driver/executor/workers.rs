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
        mut driver_state: MutexGuard<'a, DriverState>,
        node: usize,
        keeps_connection: bool,
    ) -> MutexGuard<'a, DriverState> {
        let connection = connections.replace(node, None);
        if !keeps_connection {
            connection.into_iter().for_each(Connection::reset);
        } else if let Some(handed_over) = driver_state.handed_over.get_mut(node) {
            *handed_over = connection.or(handed_over.take());
        }
        let executor = self.clone();
        let work = move || WorkerThread::new(&executor, node).run();
        let started = start_thread(format!("redlock-node-{node}"), work);
        let started = started.map_err(|error| Cause::NoThread(error.to_string()));
        let input = Input::Started(started);
        driver_state.core.input(node, input, clock::instant());
        driver_state
    }

    /// Connects to a node: in another thread, if the worker has a connection that it reads from meanwhile.
    pub(super) fn connect<'a>(
        self: &'a Arc<Executor>,
        connections: &Connections,
        driver_state: MutexGuard<'a, DriverState>,
        node: usize,
    ) -> MutexGuard<'a, DriverState> {
        drop(driver_state);
        let elsewhere = connections.each.get(node).is_some_and(Option::is_some);
        let executor = self.clone();
        let name = format!("redlock-conn-{node}");
        if !elsewhere || start_thread(name, move || executor.open(node)).is_err() {
            self.open(node);
        }
        self.driver_state()
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
        let (mut connection, properties) = match opened {
            Ok((connection, properties)) => (Some(connection), Ok(properties)),
            Err(cause) => (None, Err(cause)),
        };
        let lanes = self.lanes.as_ref().zip(properties.as_ref().ok());
        let known = lanes.and_then(|(lanes, made)| {
            guarded(|| lanes.known_server(node, Connected::by(made))).flatten()
        });
        let mut driver_state = self.driver_state();
        if driver_state
            .core
            .connected(node, properties, clock::instant())
        {
            if let Some(known) = known {
                driver_state.core.learn(node, known);
            }
            if let Some(not_adopted) = driver_state.not_adopted.get_mut(node) {
                *not_adopted = connection.take();
            }
        }
        self.announce(&mut driver_state);
        drop(driver_state);
    }

    /// Asks a node's directory, in another thread, whether the master is where it was.
    pub(super) fn confirm_master<'a>(
        self: &'a Arc<Executor>,
        driver_state: MutexGuard<'a, DriverState>,
        node: usize,
        found: FoundMaster,
    ) -> MutexGuard<'a, DriverState> {
        drop(driver_state);
        let question = ConfirmMaster {
            executor: self.clone(),
            node,
            found,
            answered: false,
        };
        // If no thread starts, the directory is asked again.
        let _ = start_thread(format!("redlock-find-{node}"), move || question.ask());
        self.driver_state()
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
        let mut driver_state = executor.driver_state();
        self.connections
            .take_over(node, &mut driver_state.handed_over);
        let connected;
        (driver_state, connected) = self.serve(driver_state);
        self.has_ended = true;
        if race(Race::HandOverTooLate) {
            drop(driver_state);
            driver_state = executor.driver_state();
        }
        if let Some(handed_over) = driver_state.handed_over.get_mut(node).filter(|_| connected) {
            *handed_over = self.connections.replace(node, None);
        }
        let not_adopted = driver_state.take_not_adopted(node);
        executor.announce(&mut driver_state);
        let confirms = driver_state.core.starts_confirmer(ThreadRole::Worker(node));
        let start_confirmer = driver_state.start_confirmer;
        drop(driver_state);
        drop(not_adopted);
        if confirms {
            start_confirmer(executor);
        }
        executor.log();
    }

    /// Carries out what [`Core::next`](crate::protocol::quorum::core::Core::next) returns. Returns at the end whether the node is connected.
    fn serve(
        &mut self,
        mut driver_state: MutexGuard<'a, DriverState>,
    ) -> (MutexGuard<'a, DriverState>, bool) {
        let (executor, role) = (self.executor, ThreadRole::Worker(self.node));
        let mut now = clock::instant();
        loop {
            let next = driver_state.core.next(role, now);
            executor.announce(&mut driver_state);
            match next {
                ThreadStep::Reconnected => return (driver_state, true),
                ThreadStep::Finished => return (driver_state, false),
                ThreadStep::Connect { .. } | ThreadStep::Wait { .. } => {
                    executor.log_in_thread(&driver_state)
                }
                _ => {}
            }
            (driver_state, now) =
                executor.carry_out(role, &mut self.connections, driver_state, next, now);
        }
    }
}

impl Drop for WorkerThread<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            let mut driver_state = self.executor.driver_state();
            let role = ThreadRole::Worker(self.node);
            driver_state.core.deserted(role, clock::instant());
            self.executor.announce(&mut driver_state);
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
        self.answer(answer);
    }

    fn answer(&self, answer: MasterConfirmation) {
        let asked = self.found.at;
        let mut driver_state = self.executor.driver_state();
        let input = Input::MasterConfirmed { asked, answer };
        driver_state.core.input(self.node, input, clock::instant());
        self.executor.announce(&mut driver_state);
    }
}

impl Drop for ConfirmMaster {
    fn drop(&mut self) {
        if !self.answered {
            self.answer(Err(None));
        }
    }
}
