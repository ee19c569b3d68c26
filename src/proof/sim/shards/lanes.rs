//! Which lane an operation takes, where it goes when servers redirect it, and the releases that no call waits for.

use std::sync::Arc;
use std::time::Duration;

use super::super::basics::NODE_TIMEOUT;
use super::super::client::token_id;
use super::super::counts::trace;
use super::process::{HANDED_OFF, Lane, LaneState, NO_THREAD, OWED, Place, Task};
use super::servers::{known_name, server_at};
use super::world::{Count, ShardWorld};
use crate::errors::redirection::{Hint, Redirection};
use crate::protocol::cluster::lane_choice::{self, CandidateLane, LaneSource};
use crate::protocol::cluster::redirect::Redirect;
use crate::protocol::cluster::redirected_releases::OwedTask;
use crate::protocol::commands::slots::{self, SlotMap, slot};
use crate::protocol::mutants::Promise;
use crate::protocol::node::debt::Debt;
use crate::protocol::node::node::Closing;
use crate::protocol::node::restart_guard::RestartGuard;
use crate::protocol::quorum::answer::Answer;
use crate::protocol::quorum::op::Op;
use crate::values::endpoint::Endpoint;

/// The longest ttl, with the restart guard.
pub(super) const LONGEST: Duration = Duration::from_secs(1);

// ---- lanes

/// A lane that operations may take.
#[derive(Clone, Copy)]
pub(super) struct OpenLane<'a> {
    world: &'a ShardWorld,
    p: usize,
    number: usize,
    lane: &'a Lane,
}

impl OpenLane<'_> {
    fn all(&self, is_it: impl Fn(usize, &Place) -> bool) -> bool {
        let mut places = self.lane.places.iter().enumerate();
        places.all(|(cluster, place)| place.target.is_none() && is_it(cluster, place))
    }
}

impl PartialEq for OpenLane<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl CandidateLane for OpenLane<'_> {
    fn leads_to(&self, slot: u16) -> bool {
        let master = |cluster| self.world.master(self.p, cluster, slot);
        self.all(|cluster, place| place.at.is_some() && place.at == master(cluster))
    }

    fn has(&self, slot: u16) -> bool {
        let master = |cluster, slot| self.world.master(self.p, cluster, slot);
        self.all(|cluster, place| master(cluster, place.slot) == master(cluster, slot))
    }
}

/// The lanes of a process.
struct OfProcess<'a> {
    world: &'a mut ShardWorld,
    p: usize,
}

impl LaneSource for OfProcess<'_> {
    type Lane = usize;

    fn lane(&mut self, slot: u16) -> usize {
        self.world.lane(self.p, slot)
    }

    fn target(&mut self, (cluster, to): (usize, &Endpoint), slot: u16) -> Option<usize> {
        let target = Some(server_at(to));
        let leads_there = |open: &OpenLane<'_>| open.lane.places[cluster].target == target;
        let known = self.world.open_lanes(self.p).find(leads_there);
        if let Some(open) = known {
            return Some(open.number);
        }
        let mut places = vec![Place::of(slot); self.world.clusters.len()];
        places[cluster].target = target;
        Some(self.world.add_lane(self.p, places))
    }

    fn map(&self, cluster: usize) -> Option<Arc<SlotMap>> {
        self.world.processes[self.p].maps[cluster].map().cloned()
    }

    fn name(&self, _: usize, server: &Endpoint) -> Endpoint {
        known_name(server)
    }

    fn leads_elsewhere(&self, lane: &usize, node: usize, (host, port): &Endpoint) -> bool {
        let lane = &self.world.processes[self.p].lanes[*lane];
        lane.core.leads_elsewhere(node, &format!("{host}:{port}"))
    }

    fn lead(&mut self, lane: &usize, node: usize, slot: u16) {
        self.world.processes[self.p].lanes[*lane].places[node].slot = slot;
    }

    fn retire(&mut self, lane: &usize) {
        let lane = &mut self.world.processes[self.p].lanes[*lane];
        if lane.state == LaneState::Open {
            lane.state = LaneState::Unused;
        }
    }

    fn queue_debts(&mut self, debts: Vec<(usize, Debt)>) {
        for (node, debt) in debts {
            self.world.owe(self.p, (node, debt), None);
        }
    }
}

impl ShardWorld {
    fn master(&self, p: usize, cluster: usize, slot: u16) -> Option<usize> {
        let map = self.processes[p].maps[cluster].map()?;
        map.master(slot).map(server_at)
    }

    /// The lane to the masters of a slot.
    pub(super) fn lane(&mut self, p: usize, slot: u16) -> usize {
        if let Some(lane) = lane_choice::best(self.open_lanes(p), slot) {
            return lane.number;
        }
        self.add_lane(p, vec![Place::of(slot); self.clusters.len()])
    }

    /// The lanes that operations may take.
    pub(super) fn open_lanes(&self, p: usize) -> impl Iterator<Item = OpenLane<'_>> + Clone {
        let process = &self.processes[p];
        let lanes = process.active.iter().map(|at| (*at, &process.lanes[*at]));
        let lanes = lanes.filter(|(_, lane)| lane.state == LaneState::Open);
        lanes.map(move |(number, lane)| OpenLane {
            world: self,
            p,
            number,
            lane,
        })
    }

    fn add_lane(&mut self, p: usize, places: Vec<Place>) -> usize {
        let nodes = places.len();
        let guard = self
            .conditions
            .guarded
            .then(|| RestartGuard::new(LONGEST, nodes).of_set());
        let (seed, now) = (self.random.next(), self.now());
        let lane = Lane::new(u8::try_from(p).unwrap(), places, guard, (seed, now));
        self.checks.counts[Count::Lanes] += 1;
        let process = &mut self.processes[p];
        process.lanes.push(lane);
        process.activate(process.lanes.len() - 1);
        process.lanes.len() - 1
    }

    /// Ends lanes without slots, and those that lead to the same servers as others.
    pub(super) fn tidy(&mut self, p: usize) {
        let maps = self.processes[p]
            .maps
            .iter()
            .filter_map(|map| map.map().cloned());
        let maps: Vec<Arc<SlotMap>> = maps.collect();
        let slots = slots::combinations(&maps);
        let unused = lane_choice::unused(self.open_lanes(p), &slots);
        let unused: Vec<usize> = unused.into_iter().map(|lane| lane.number).collect();
        for lane in unused {
            self.processes[p].lanes[lane].state = LaneState::Unused;
        }
    }

    /// Closes lanes that nothing uses, and hands over what closed ones still owe.
    pub(super) fn close_lanes(&mut self, p: usize) -> bool {
        let mut busy = false;
        let now = self.now();
        let mut lanes = 0..self.processes[p].lanes.len();
        while let Some(l) = self.processes[p].active(lanes.clone()) {
            lanes.start = l + 1;
            let process = &mut self.processes[p];
            let state = process.lanes[l].state;
            match state {
                LaneState::Unused if !process.uses(l) => {
                    trace!(self, "process {p} closes lane {l}");
                    let lane = &mut self.processes[p].lanes[l];
                    let time = Duration::from_micros(NODE_TIMEOUT);
                    lane.core.close(Closing::new(now, time));
                    if lane.leader == Task::None {
                        lane.leader = Task::Runs;
                    }
                    lane.state = LaneState::Closing(now + Duration::from_micros(NODE_TIMEOUT));
                    busy = true;
                    self.announce(p, l);
                }
                LaneState::Closing(_) if process.lanes[l].leader == Task::None => {
                    process.lanes[l].state = LaneState::Closed;
                    self.checks.counts[Count::Closed] += 1;
                    self.hand_over(p, l);
                    busy = true;
                }
                _ => {}
            }
        }
        busy
    }

    fn hand_over(&mut self, p: usize, l: usize) {
        let lane = &mut self.processes[p].lanes[l];
        let owed = lane.core.take_debts(|_| true);
        let connections: Vec<usize> = lane
            .connections
            .iter_mut()
            .filter_map(Option::take)
            .collect();
        for connection in connections {
            self.give_up(connection, false);
        }
        for (node, debt) in owed {
            self.checks.tokens[token_id(&debt.key.token)].handed_over = true;
            let slot = slot(&debt.key.resource);
            let now = self.now();
            let op = Redirect::of_debt(node, debt, slot, now)
                .op()
                .only_write(true);
            let lane = self.lane(p, slot);
            trace!(self, "process {p}: lane {l} hands over to {lane}");
            self.submit_to(p, lane, NO_THREAD, op);
        }
    }
}

// ---- operations

impl ShardWorld {
    /// The answer to an operation on a lane.
    pub(super) fn answered(&mut self, p: usize, l: usize, caller: usize, mut answer: Answer) {
        match caller {
            NO_THREAD => return,
            OWED => return self.owed_answered(p, l, &answer),
            HANDED_OFF.. => return self.served(p, caller - HANDED_OFF, answer),
            _ => {}
        }
        let Some(mut flight) = self.processes[p].threads[caller].flight.take() else {
            return self.violated(
                Promise::Fits,
                format!("process {p}: an answer without a caller"),
            );
        };
        let slot = slot(&flight.op.key.resource);
        if flight.redirect.is_none() && Redirect::redirections_in(&answer, slot).next().is_some() {
            let until = self.now() + Duration::from_micros(2 * NODE_TIMEOUT);
            let (op, nodes) = (flight.op.clone(), self.clusters.len());
            let time = (answer.begun, until);
            flight.redirect = Some(Redirect::waited(op, slot, nodes, time));
        }
        if let Some(redirect) = &mut flight.redirect {
            self.learn(p, l, slot, Redirect::redirections_in(&answer, slot));
            let now = self.now();
            let mut lanes = OfProcess { world: self, p };
            if let Some((lane, op, pause)) = lanes.step(redirect, &answer, |lane| *lane == l, now) {
                trace!(self, "process {p}: {caller} goes on to lane {lane}");
                if flight.op.action.ends() && lane != l {
                    self.checks.tokens[token_id(&flight.op.key.token)].handed_over = true;
                }
                let at = self.time(now + pause);
                (flight.lane, flight.next) = (lane, Some((at, op)));
                self.processes[p].threads[caller].flight = Some(flight);
                return self.wake(p, at);
            }
            redirect.complete(&mut answer);
        }
        self.write_behind(p, l, caller, &flight.op);
        self.in_time(p, &flight);
        self.went(p, caller, answer);
    }

    /// Writes the end of a lock over the lane that has acquired it, and to the servers that have its slot now, unless it was
    /// sent there.
    fn write_behind(&mut self, p: usize, l: usize, thread: usize, op: &Op) {
        let Some(op) = Redirect::behind(op) else {
            return;
        };
        let now = self.lane(p, slot(&op.key.resource));
        let own = &self.processes[p].threads[thread];
        let was_sent = |lane: &usize| *lane == l || own.lane == Some(*lane);
        for lane in lane_choice::behind(own.acquired, Some(now), was_sent) {
            // (The lane may have been added since the release was submitted.)
            self.checks.tokens[token_id(&op.key.token)].handed_over = true;
            self.submit_to(p, lane, NO_THREAD, op.clone());
        }
    }

    /// Records where servers reported a slot to be.
    pub(super) fn learn<'a>(
        &mut self,
        p: usize,
        l: usize,
        slot: u16,
        said: impl Iterator<Item = (usize, &'a Redirection)>,
    ) {
        let now = self.now();
        let moved = said.filter_map(|(node, redirection)| match &redirection.hint {
            Hint::Moved(_, to) => Some((node, redirection.from.clone(), known_name(to))),
            _ => None,
        });
        let moved: Vec<(usize, Arc<str>, Endpoint)> = moved.collect();
        let (mut is_news, mut stays) = (false, false);
        for (node, from, to) in &moved {
            let known = &mut self.processes[p].maps[*node];
            is_news |= known.slot_moved(slot, from, to.clone(), now);
            let process = &mut self.processes[p];
            let (known, place) = (&process.maps[*node], &mut process.lanes[l].places[*node]);
            trace!(
                self,
                "process {p}, lane {l} learns: {slot} is at {to:?}, by {place:?}"
            );
            let is_its = place.slot == slot && place.target.is_none();
            if let Some(other) = is_its.then(|| known.stays(slot, from)).flatten() {
                (place.slot, stays) = (other, true);
            }
        }
        if is_news || stays {
            self.tidy(p);
        }
        if is_news {
            self.refresh_soon(p);
        }
    }

    // ---- releases that no call waits for

    pub(super) fn owe(
        &mut self,
        p: usize,
        (node, debt): (usize, Debt),
        answer: Option<&Redirection>,
    ) {
        trace!(self, "process {p}: a release of {node} is sent on");
        let (slot, now, t) = (slot(&debt.key.resource), self.now(), self.t);
        self.checks.tokens[token_id(&debt.key.token)].handed_over = true;
        self.checks.counts[Count::Owed] += 1;
        let process = &mut self.processes[p];
        process.owed.add((node, debt), slot, answer, now);
        process.owed.starts();
        process.owed_at = t;
        self.wake(p, t);
    }

    /// The next step of the thread that sends releases on.
    pub(super) fn send_owed(&mut self, p: usize) -> bool {
        let (t, now) = (self.t, self.now());
        let process = &mut self.processes[p];
        if process.sent.is_some() || !process.owed.is_running() {
            return false;
        }
        if process.owed_at > t {
            let at = process.owed_at;
            self.wake(p, at);
            return false;
        }
        match process.owed.next(now) {
            OwedTask::Send(release) => {
                let mut lanes = OfProcess { world: self, p };
                let (lane, op) = lanes.lane_of_release(&release);
                self.processes[p].sent = Some((release, lane));
                self.submit_to(p, lane, OWED, op);
            }
            OwedTask::Wait(until) => self.processes[p].owed_at = self.time(until).max(t + 1),
            OwedTask::End => {}
        }
        true
    }

    fn owed_answered(&mut self, p: usize, l: usize, answer: &Answer) {
        let Some((release, _)) = self.processes[p].sent.take() else {
            return self.violated(
                Promise::Fits,
                format!("process {p}: an answer to no release"),
            );
        };
        let slot = release.slot();
        self.learn(p, l, slot, Redirect::redirections_in(answer, slot));
        OfProcess { world: self, p }.leave_others(slot, answer, |lane| *lane == l);
        let now = self.now();
        self.processes[p].owed_at = self.t;
        self.processes[p]
            .owed
            .answered(release, answer, |_| false, now);
        self.wake(p, self.t);
    }
}
