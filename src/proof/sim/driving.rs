//! The driver of a client's core: it carries out what the core returns, and wakes its threads.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::basics::{MS, NODE_TIMEOUT};
use super::client::{Doing, Task, Thread};
use super::command::commands;
use super::counts::trace;
use super::world::{Count, World};
use crate::errors::cause::Cause;
use crate::protocol::mutants::{Mutant, Promise, mutant};
use crate::protocol::node::node::Closing;
use crate::protocol::node::node_events::NodeEvent as CoreEvent;
use crate::protocol::node::outgoing::Outgoing;
use crate::protocol::quorum::core::Input;
use crate::protocol::quorum::op::Op;
use crate::protocol::quorum::thread_step::{ThreadRole, ThreadStep};
use crate::values::node_set::NodeSet;

impl World {
    /// Everything that a client can do at this moment.
    pub(super) fn pump(&mut self, c: usize) {
        if self.clients[c].dead {
            return;
        }
        if self.clients[c].wake_at <= self.t {
            self.clients[c].wake_at = u64::MAX;
        }
        for _ in 0..1000 {
            let stands = self.clients[c].clocks.stands_until;
            if stands > self.t {
                return self.wake(c, stands);
            }
            let mut busy = self.drive(c, ThreadRole::Leader);
            for node in 0..self.servers.len() {
                busy |= self.drive(c, ThreadRole::Worker(node));
            }
            busy |= self.drive(c, ThreadRole::Confirmer);
            busy |= self.listen_all(c);
            for thread in 0..self.clients[c].threads.len() {
                busy |= self.act(c, thread);
            }
            if !busy || self.checks.wrong.is_some() {
                return;
            }
        }
        self.violated(Promise::AllEnds, format!("client {c} spins"));
    }

    /// Wakes the threads that wait for news when there is any, and counts what happened.
    pub(super) fn announce(&mut self, c: usize) {
        let client = &mut self.clients[c];
        if std::mem::take(&mut client.core.news) {
            let waits = |task: &&mut Task| matches!(task, Task::Waits(_));
            let waiting = client.driver.tasks().filter(waits);
            waiting.for_each(|task| *task = Task::Runs);
        }
        for event in client.core.events.take() {
            match event {
                (_, CoreEvent::Back(..), _) => self.counts[Count::Reconnected] += 1,
                (_, CoreEvent::Quarantined(..), _) => self.counts[Count::Quarantined] += 1,
                (node, CoreEvent::GivesNoVotes(cause), _) if is_step(&cause) => {
                    self.found_step(c, node);
                }
                _ => {}
            }
        }
        for (thread, answer) in std::mem::take(&mut self.clients[c].core.answers) {
            self.answered(c, thread, answer);
        }
    }

    /// A client has found that a clock was set forward.
    fn found_step(&mut self, c: usize, node: usize) {
        trace!(self, "client {c}: the clock of node {node} was set forward");
        self.counts[Count::StepsFound] += 1;
        let mut instances = self.servers[node].instances.iter();
        let was_set = instances.any(|one| one.clock.last_set.is_some());
        let stood_still = self.clients[c].clocks.has_been_suspended();
        self.check(Promise::Available, was_set || stood_still, || {
            format!("client {c}: node {node} gives no votes, and its clock was not set")
        });
    }

    /// The next action of a thread of the driver.
    fn drive(&mut self, c: usize, role: ThreadRole) -> bool {
        match *self.clients[c].driver.task(role) {
            Task::None | Task::Connects => return false,
            Task::Runs => {}
            Task::Writes(_, at) if at > self.t => {
                self.wake(c, at);
                return false;
            }
            Task::Writes(ref mut parts, ref mut at) => {
                if let Some((node, bytes)) = parts.pop_front() {
                    if !self.conditions.faultless && self.random.chance(10) {
                        *at = self.t + self.random.below(3 * MS);
                    }
                    if let Err(cause) = self.write(c, node, &bytes) {
                        let now = self.now(c);
                        let failed = Input::Sent(Err(cause));
                        self.clients[c].core.input(node, failed, now);
                    }
                    self.announce(c);
                    return true;
                }
            }
            Task::Waits(until) => {
                if !self.has_come(c, until) {
                    return false;
                }
            }
            Task::Recv(node, until) => {
                let connection = self.clients[c].driver.connections[node];
                if !self.can_read(connection) {
                    if !self.has_come(c, until) {
                        return false;
                    }
                    let may_stand = role == ThreadRole::Leader && !self.conditions.faultless;
                    if may_stand && !self.quiet && self.random.chance(1) {
                        // Between the read and the next step.
                        let until = self.t + self.random.below(80 * MS);
                        self.clients[c].clocks.freeze(until);
                        *self.clients[c].driver.task(role) = Task::ReadNothing(node);
                        return true;
                    }
                }
                self.recv(c, node);
            }
            Task::ReadNothing(node) => {
                let now = self.now(c);
                let nothing = Input::Received(Ok(&[]));
                self.clients[c].core.input(node, nothing, now);
                self.announce(c);
            }
        }
        self.go(c, role);
        true
    }

    fn go(&mut self, c: usize, role: ThreadRole) {
        let now = self.now(c);
        let next = self.clients[c].core.next(role, now);
        trace!(self, "client {c}, {role:?}: {next:?}");
        *self.clients[c].driver.task(role) = Task::Runs;
        self.carry_out(c, role, next, now);
        self.announce(c);
    }

    /// Carries out the step that the core has returned.
    fn carry_out(&mut self, c: usize, role: ThreadRole, next: ThreadStep, now: Instant) {
        let client = &mut self.clients[c];
        let driver = &mut client.driver;
        match next {
            ThreadStep::StartWorker { node } => {
                if let Some(old) = driver.connections[node].take() {
                    self.give_up(old, true);
                }
                self.start_worker(c, node, now);
            }
            ThreadStep::HandOver { node } => {
                self.counts[Count::Unresponsive] += 1;
                self.start_worker(c, node, now);
            }
            ThreadStep::StartConfirmer => {
                driver.confirmer = Task::Runs;
                self.go(c, role);
            }
            ThreadStep::Connect { node } => self.connect(c, node),
            ThreadStep::Adopt { node } => {
                let fresh = driver.fresh[node].take();
                if let Some(old) = std::mem::replace(&mut driver.connections[node], fresh) {
                    self.counts[Count::Replaced] += 1;
                    self.give_up(old, !mutant(Mutant::CloseWithoutReset));
                }
            }
            ThreadStep::Send { nodes, .. } => self.send_to(c, role, nodes, now),
            ThreadStep::Recv { node, until } => *driver.task(role) = Task::Recv(node, until),
            ThreadStep::Wait { until } => *driver.task(role) = Task::Waits(until),
            ThreadStep::TryToLead if driver.leader == Task::None => {
                driver.leader = Task::Runs;
                self.counts[Count::ConfirmProbes] += 1;
            }
            ThreadStep::TryToLead => driver.confirmer = Task::Waits(now + Duration::from_millis(1)),
            ThreadStep::ConfirmMaster { node, found } => self.confirm(c, node, *found),
            ThreadStep::Reconnected | ThreadStep::Finished => {
                *driver.task(role) = Task::None;
                let ThreadRole::Worker(node) = role else {
                    return;
                };
                if client.core.starts_confirmer(role) {
                    driver.confirmer = Task::Runs;
                }
                if let Some(fresh) = driver.fresh[node].take() {
                    self.give_up(fresh, false);
                }
            }
        }
    }

    fn start_worker(&mut self, c: usize, node: usize, now: Instant) {
        let client = &mut self.clients[c];
        client.driver.workers[node] = Task::Runs;
        client.core.input(node, Input::Started(Ok(())), now);
    }

    fn send_to(&mut self, c: usize, role: ThreadRole, nodes: NodeSet, now: Instant) {
        let mut out = Outgoing::default();
        self.clients[c].core.output(nodes, &mut out, now);
        let parts = out.parts().map(|(node, bytes)| (node, bytes.to_vec()));
        let mut parts: VecDeque<_> = parts.collect();
        // The order of nearness is not simulated.
        parts.make_contiguous().sort_unstable();
        if role == ThreadRole::Leader {
            self.clients[c].driver.leader = Task::Writes(parts, self.t);
            return;
        }
        for (node, bytes) in parts {
            let sent = Input::Sent(self.write(c, node, &bytes));
            self.clients[c].core.input(node, sent, now);
        }
    }

    fn can_read(&self, connection: Option<usize>) -> bool {
        connection.is_none_or(|connection| {
            let connection = &self.net.connections[connection];
            !connection.inbox.is_empty() || !connection.is_open()
        })
    }

    /// Reads the bytes that have arrived.
    fn recv(&mut self, c: usize, node: usize) {
        let now = self.now(c);
        let part = if self.random.chance(15) {
            1 + self.random.pick(6)
        } else {
            usize::MAX
        };
        let received = match self.clients[c].driver.connections[node] {
            Some(connection) => self.net.connections[connection].recv(part),
            None => Err(Cause::Closed("there is none".into())),
        };
        let received = received.as_ref().map_err(Cause::clone);
        let received = received.map(|bytes| &bytes[..]);
        let received = Input::Received(received);
        self.clients[c].core.input(node, received, now);
        self.announce(c);
    }

    fn write(&mut self, c: usize, node: usize, bytes: &[u8]) -> Result<(), Cause> {
        let Some(connection) = self.clients[c].driver.connections[node] else {
            self.violated(
                Promise::Fits,
                format!("client {c} writes to node {node} without a connection"),
            );
            return Ok(());
        };
        commands(bytes, |set, token| {
            trace!(
                self,
                "    client {c} writes to {node} over {connection}: set {set} {token}"
            );
            let (history, threads) = (&mut self.checks.tokens[token], &self.clients[c].threads);
            let releases = |thread: &Thread| match &thread.doing {
                Doing::Releases(one) => one.token == token,
                _ => false,
            };
            if !set && (history.rel_sent[node].is_some() || !threads.iter().any(releases)) {
                history.on.late.add(node);
            }
            let sent = if set {
                &mut history.set_sent
            } else {
                &mut history.rel_sent
            };
            sent[node] = Some(connection);
        });
        self.send(connection, bytes)
    }

    /// Submits an operation, before any thread leads.
    pub(super) fn add(&mut self, c: usize, thread: usize, op: Op) {
        trace!(self, "client {c} thread {thread}: {:?}", op.action);
        let now = self.now(c);
        self.clients[c].core.submit(op, thread, now);
    }

    pub(super) fn submit(&mut self, c: usize, thread: usize, op: Op) {
        self.add(c, thread, op);
        let client = &mut self.clients[c];
        // The leader does not let submitted operations wait.
        if let Task::None | Task::Waits(_) = client.driver.leader {
            client.driver.leader = Task::Runs;
        }
        self.announce(c);
    }

    /// A client is closed.
    pub(super) fn close_client(&mut self, c: usize) {
        if self.clients[c].dead {
            return;
        }
        let now = self.now(c);
        let closing = Closing::new(now, Duration::from_micros(NODE_TIMEOUT));
        self.clients[c].core.close(closing);
        self.clients[c].driver.leader = Task::Runs;
        self.announce(c);
        self.pump(c);
    }
}

fn is_step(cause: &Cause) -> bool {
    matches!(cause, Cause::Stepped(..))
}
