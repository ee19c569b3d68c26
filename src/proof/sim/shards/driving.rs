//! The drivers of the lanes' cores: they carry out what the cores return, and connect.

use std::time::{Duration, Instant};

use super::super::asking::undecided;
use super::super::basics::MS;
use super::super::counts::trace;
use super::super::instance::Instance;
use super::lanes::LONGEST;
use super::process::{LaneState, Task};
use super::servers::address;
use super::world::{Count, Event, ShardWorld};
use crate::errors::cause::Cause;
use crate::errors::secret::Secret;
use crate::protocol::cluster::cluster_votes::About;
use crate::protocol::commands::companions::WITNESS;
use crate::protocol::commands::dialect::{Dialect, Scripts};
use crate::protocol::commands::resp::{self, Reply};
use crate::protocol::commands::slots::slot;
use crate::protocol::discovery::found_master::{DirectoryTimes, FoundMaster};
use crate::protocol::mutants::Promise;
use crate::protocol::node::outgoing::Outgoing;
use crate::protocol::node::restart_guard::RestartGuard;
use crate::protocol::node::server_properties::ServerProperties;
use crate::protocol::node::witness::Witness;
use crate::protocol::node::witness_look::{Judged, WitnessLook, look};
use crate::protocol::quorum::core::Input;
use crate::protocol::quorum::op::Op;
use crate::protocol::quorum::thread_step::{ThreadRole, ThreadStep};
use crate::values::node_set::NodeSet;

/// How long the first servers of a world have been up.
const UP: Duration = Duration::from_secs(3600);

impl ShardWorld {
    /// Everything that a process can do at this moment.
    pub(super) fn pump(&mut self, p: usize) {
        if self.processes[p].wake_at <= self.t {
            self.processes[p].wake_at = u64::MAX;
        }
        if let Some(until) = self.frozen_until(p) {
            return self.wake(p, until);
        }
        let mut what = (false, false, false);
        for _ in 0..1000 {
            let mut busy = false;
            let mut lanes = 0..self.processes[p].lanes.len();
            while let Some(l) = self.processes[p].active(lanes.clone()) {
                lanes.start = l + 1;
                let process = &mut self.processes[p];
                if process.lanes[l].state == LaneState::Closed && process.lanes[l].is_idle() {
                    process.active.retain(|active| *active != l);
                    continue;
                }
                busy |= self.drive(p, l, ThreadRole::Leader);
                for node in 0..self.clusters.len() {
                    busy |= self.drive(p, l, ThreadRole::Worker(node));
                }
                busy |= self.drive(p, l, ThreadRole::Confirmer);
            }
            what = (busy, false, false);
            for thread in 0..self.processes[p].threads.len() {
                what.1 |= self.act(p, thread);
            }
            what.2 = self.send_owed(p) | self.close_lanes(p);
            if !(what.0 || what.1 || what.2) || self.checks.wrong.is_some() {
                return;
            }
        }
        self.violated(
            Promise::AllEnds,
            format!("process {p} spins: lanes, threads, releases: {what:?}"),
        );
    }

    pub(super) fn submit_to(&mut self, p: usize, l: usize, caller: usize, op: Op) {
        self.submit_all(p, l, [(caller, op)]);
    }

    /// Submits operations before any thread leads.
    pub(super) fn submit_all(
        &mut self,
        p: usize,
        l: usize,
        ops: impl IntoIterator<Item = (usize, Op)>,
    ) {
        let now = self.now();
        let lane = &mut self.processes[p].lanes[l];
        for (caller, op) in ops {
            lane.core.submit(op, caller, now);
        }
        if let Task::None | Task::Waits(_) = lane.leader {
            lane.leader = Task::Runs;
        }
        self.processes[p].activate(l);
        self.announce(p, l);
        self.wake(p, self.t);
    }

    /// Wakes threads, delivers answers, and passes on releases whose keys are elsewhere.
    pub(super) fn announce(&mut self, p: usize, l: usize) {
        let lane = &mut self.processes[p].lanes[l];
        if std::mem::take(&mut lane.core.news) {
            lane.wake();
            self.wake(p, self.t);
        }
        let lane = &mut self.processes[p].lanes[l];
        lane.core.events.take();
        let redirected = std::mem::take(&mut lane.core.redirected);
        let answers = std::mem::take(&mut lane.core.answers);
        for one in redirected {
            let slot = slot(&one.debt.key.resource);
            let said = std::iter::once((one.node, &*one.answer));
            self.learn(p, l, slot, said.filter(|(_, answer)| answer.concerns(slot)));
            self.owe(p, (one.node, one.debt), Some(&one.answer));
        }
        for (caller, answer) in answers {
            self.answered(p, l, caller, answer);
        }
    }

    fn drive(&mut self, p: usize, l: usize, role: ThreadRole) -> bool {
        let now = self.now();
        match *self.processes[p].lanes[l].task(role) {
            Task::None | Task::Connects => return false,
            Task::Runs => {}
            Task::Waits(until) => {
                if until > now {
                    let at = self.time(until);
                    self.wake(p, at);
                    return false;
                }
            }
            Task::Recv(node, until) => {
                let connection = self.processes[p].lanes[l].connections[node];
                let is_silent = connection.is_some_and(|connection| {
                    let stream = &self.connections[connection];
                    stream.open && stream.inbox.is_empty()
                });
                if is_silent && until > now {
                    let at = self.time(until);
                    self.wake(p, at);
                    return false;
                }
                self.recv(p, l, node);
            }
        }
        self.go((p, l), role);
        true
    }

    fn go(&mut self, (p, l): (usize, usize), role: ThreadRole) {
        let now = self.now();
        let lane = &mut self.processes[p].lanes[l];
        let next = lane.core.next(role, now);
        *lane.task(role) = Task::Runs;
        trace!(self, "process {p}, lane {l}, {role:?}: {next:?}");
        self.carry_out((p, l), role, next, now);
        self.announce(p, l);
    }

    fn carry_out(
        &mut self,
        (p, l): (usize, usize),
        role: ThreadRole,
        next: ThreadStep,
        now: Instant,
    ) {
        let lane = &mut self.processes[p].lanes[l];
        match next {
            ThreadStep::StartWorker { node } => {
                let old = lane.connections[node].take();
                self.start_worker((p, l), node);
                old.into_iter().for_each(|old| self.give_up(old, true));
            }
            ThreadStep::HandOver { node } => self.start_worker((p, l), node),
            ThreadStep::StartConfirmer => {
                lane.confirmer = Task::Runs;
                self.go((p, l), role);
            }
            ThreadStep::Connect { node } => {
                if lane.connections[node].is_none() {
                    lane.workers[node] = Task::Connects;
                }
                let at = self.t + self.delay() + self.delay();
                self.at(at, Event::Connected(p, l, node));
            }
            ThreadStep::Adopt { node } => {
                let fresh = lane.fresh[node].take();
                if let Some(old) = std::mem::replace(&mut lane.connections[node], fresh) {
                    self.give_up(old, true);
                }
            }
            ThreadStep::Send { nodes, .. } => self.send_to((p, l), role, nodes, now),
            ThreadStep::Recv { node, until } => *lane.task(role) = Task::Recv(node, until),
            ThreadStep::Wait { until } => *lane.task(role) = Task::Waits(until),
            ThreadStep::TryToLead if lane.leader == Task::None => lane.leader = Task::Runs,
            ThreadStep::TryToLead => lane.confirmer = Task::Waits(now + Duration::from_millis(1)),
            ThreadStep::ConfirmMaster { node, found } => {
                lane.asked_about[node] = Some(*found);
                let at = self.t + self.delay() + self.delay();
                self.at(at, Event::Confirmed(p, l, node, self.t));
            }
            ThreadStep::Reconnected | ThreadStep::Finished => {
                *lane.task(role) = Task::None;
                let ThreadRole::Worker(node) = role else {
                    return;
                };
                if lane.core.starts_confirmer(role) {
                    lane.confirmer = Task::Runs;
                }
                let fresh = lane.fresh[node].take();
                fresh
                    .into_iter()
                    .for_each(|fresh| self.give_up(fresh, false));
            }
        }
    }

    fn send_to(&mut self, (p, l): (usize, usize), role: ThreadRole, nodes: NodeSet, now: Instant) {
        let mut out = Outgoing::default();
        self.processes[p].lanes[l].core.output(nodes, &mut out, now);
        for (node, bytes) in out.parts() {
            let sent = match self.processes[p].lanes[l].connections[node] {
                Some(connection) => self.send(connection, bytes),
                None => Err(Cause::Closed("there is none".into())),
            };
            if sent.is_err() || role != ThreadRole::Leader {
                let lane = &mut self.processes[p].lanes[l];
                lane.core.input(node, Input::Sent(sent), now);
            }
        }
    }

    fn start_worker(&mut self, (p, l): (usize, usize), node: usize) {
        let now = self.now();
        let lane = &mut self.processes[p].lanes[l];
        lane.workers[node] = Task::Runs;
        lane.core.input(node, Input::Started(Ok(())), now);
    }

    fn recv(&mut self, p: usize, l: usize, node: usize) {
        let now = self.now();
        let part = match self.random.chance(10) {
            true => 1 + self.random.pick(6),
            false => usize::MAX,
        };
        let received = match self.processes[p].lanes[l].connections[node] {
            Some(connection) => {
                let stream = &mut self.connections[connection];
                let rest = stream.inbox.split_off(part.min(stream.inbox.len()));
                let received = std::mem::replace(&mut stream.inbox, rest);
                match received.is_empty() && !stream.open {
                    true => Err(Cause::Closed("by the other side".into())),
                    false => Ok(received),
                }
            }
            None => Err(Cause::Closed("there is none".into())),
        };
        let received = received.as_ref().map_err(Cause::clone);
        let received = Input::Received(received.map(|bytes| &bytes[..]));
        self.processes[p].lanes[l].core.input(node, received, now);
        self.announce(p, l);
    }

    // ---- connecting

    /// A try to connect a node of a lane ends.
    pub(super) fn connected(&mut self, p: usize, l: usize, node: usize) {
        if let Some(until) = self.frozen_until(p) {
            return self.at(until, Event::Connected(p, l, node));
        }
        let place = self.processes[p].lanes[l].places[node];
        let (server, found) = match place.target {
            Some(target) => (Some(target), None),
            None => self.look_up(p, node, place.slot).unzip(),
        };
        let luck = !self.conditions.cuts || self.quiet || !self.random.chance(10);
        let is_there =
            |at: &usize| self.clusters[node].servers[*at].alive && self.reaches(p, node, *at);
        let server = server.filter(|at| luck && is_there(at));
        let result = match server {
            Some(server) => self.properties((node, server), found),
            None => Err(Cause::Connect("refused".into())),
        };
        trace!(
            self,
            "process {p}, lane {l} has connected {node} to {server:?}: {result:?}"
        );
        let mut fresh = None;
        if result.is_ok() {
            self.processes[p].lanes[l].places[node].at = server;
            fresh = server.map(|server| self.open((p, l, node), server));
        }
        let now = self.now();
        let lane = &mut self.processes[p].lanes[l];
        if lane.core.connected(node, result, now) {
            lane.fresh[node] = fresh;
        } else if let Some(fresh) = fresh {
            self.give_up(fresh, false);
        }
        let worker = &mut self.processes[p].lanes[l].workers[node];
        if *worker == Task::Connects {
            *worker = Task::Runs;
        }
        self.announce(p, l);
        self.pump(p);
    }

    /// The answer whether a node's connection still leads to the master of its slot (rule R43).
    pub(super) fn confirmed(&mut self, p: usize, l: usize, node: usize, asked: u64) {
        if let Some(until) = self.frozen_until(p) {
            return self.at(until, Event::Confirmed(p, l, node, asked));
        }
        let (now, asked) = (self.now(), self.start + Duration::from_micros(asked));
        let place = self.processes[p].lanes[l].places[node];
        let found = self.processes[p].lanes[l].asked_about[node].take();
        let answer = found.and_then(|found| {
            let about = About {
                address: &found.address,
                lately: found.is_confirmed,
            };
            let maps = self.ask((p, node), place.slot, Some(about), asked);
            let (answer, stays) =
                self.judged((p, node), |known| maps.answer_about(about, known, asked))?;
            let place = &mut self.processes[p].lanes[l].places[node];
            place.slot = stays.unwrap_or(place.slot);
            Some(answer)
        });
        self.checks.counts[Count::Unconfirmed] += u64::from(answer.is_none());
        let answer = answer.ok_or_else(|| Some(undecided()));
        let input = Input::MasterConfirmed { asked, answer };
        self.processes[p].lanes[l].core.input(node, input, now);
        self.announce(p, l);
        self.pump(p);
    }

    /// `found`: when servers were asked that named this one, and whether that counts. `None`: slots are on their way to it.
    fn properties(
        &mut self,
        (cluster, server): (usize, usize),
        found: Option<(Instant, bool)>,
    ) -> Result<ServerProperties, Cause> {
        let is_target = found.is_none();
        let (t, now, random) = (self.t, self.now(), self.random.next());
        let here = &mut self.clusters[cluster].servers[server].here;
        if here.is_replica {
            return Err(Cause::Replica(None));
        }
        here.store.load_scripts();
        let (host, port) = address(cluster, server);
        let mut properties = ServerProperties {
            dialect: Dialect {
                scripts: Scripts::by_hash_if(true),
                ..Dialect::default()
            },
            run_id: Some(format!("{cluster}-{server}")),
            uptime: Some((UP + Duration::from_micros(t), now)),
            routed: true,
            server: format!("{host}:{port}").as_str().into(),
            is_target,
            ..ServerProperties::default()
        };
        properties.found = found.map(|(at, by_most)| {
            let address = properties.server.address.clone();
            FoundMaster::new(address, at, by_most, DirectoryTimes::REAL)
        });
        if self.conditions.guarded {
            properties.witness = Some(self.witness((cluster, server), is_target, random)?);
        }
        Ok(properties)
    }

    /// The witness of a server, which is set where it is missing. It is in a slot that does not move.
    fn witness(
        &mut self,
        (cluster, server): (usize, usize),
        is_target: bool,
        random: u64,
    ) -> Result<Witness, Cause> {
        let (t, nodes) = (self.t, self.clusters.len());
        let here = &mut self.clusters[cluster].servers[server].here;
        let run_id = format!("run_id:{cluster}-{server}\r\n");
        if is_target {
            let witness = WitnessLook::calm(identity(here, &run_id), &Secret::default());
            return witness.map(|(witness, _)| witness);
        }
        let seasoned = RestartGuard::new(LONGEST, nodes).of_set().seasoned();
        let looked = match look_at(here, &run_id, t)?.judge(seasoned) {
            Judged::Fits(witness, _) => return Ok(witness),
            Judged::LookAgain(looked) => looked,
        };
        if let Some(set) = looked.set_witness(WITNESS, random) {
            let (set, time): (Vec<&[u8]>, _) =
                (set.iter().map(Vec::as_slice).collect(), here.time(t));
            here.store.execute(time, &set, &mut |_, _| 0);
        }
        looked.and(look_at(here, &run_id, t)?)
    }

    // ---- faults

    pub(super) fn fault(&mut self) {
        if self.quiet {
            return;
        }
        let open = (0..self.connections.len()).filter(|at| self.connections[*at].open);
        let open: Vec<usize> = open.collect();
        if !open.is_empty() && self.random.chance(70) {
            let at = open[self.random.pick(open.len())];
            self.cut(at);
        }
        let next = self.t + self.random.below(300 * MS);
        self.at(next, Event::Fault);
    }
}

/// The identity that a server reports.
fn identity(here: &Instance, run_id: &str) -> Vec<Reply> {
    let before = u8::from(here.promoted);
    let replication = format!("{}master_replid2:{before}\r\n", here.replication());
    let parts = [
        run_id.to_owned(),
        replication,
        here.stats(),
        here.commandstats(),
    ];
    parts.map(|text| Reply::Bulk(text.into_bytes())).into()
}

/// A look at a server, and at its witness.
fn look_at(here: &mut Instance, run_id: &str, t: u64) -> Result<WitnessLook, Cause> {
    let mut replies = identity(here, run_id);
    let commands = replies.pop();
    let time = here.time(t);
    let [_, _, _, value, left, _] = look(WITNESS);
    for command in [value, left] {
        let reply = here.store.execute(time, &command, &mut |_, _| 0);
        let parsed = resp::parse(&reply, &Secret::default());
        replies.push(parsed.unwrap().unwrap().0);
    }
    replies.extend(commands);
    WitnessLook::of(replies, &Secret::default())
}
