//! Which lane an operation takes, where it goes when servers redirect it, and the releases that no call waits for.

use std::sync::Arc;
use std::time::Duration;

use super::super::basics::{MS, NODE_TIMEOUT};
use super::super::client::token_id;
use super::process::{HANDED_OFF, Lane, LaneState, NO_THREAD, OWED, Place, Task};
use super::servers::{SERVERS, address, server_at};
use super::world::{Event, ShardWorld, trace};
use crate::errors::elsewhere::Hint;
use crate::protocol::calls::owed::OwedTask;
use crate::protocol::calls::redirect::{Goes, Redirect};
use crate::protocol::commands::slots::{self, Endpoint, Map, slot};
use crate::protocol::node::debt::Debt;
use crate::protocol::node::guard::Guard;
use crate::protocol::quorum::answer::Answer;
use crate::protocol::quorum::core::Input;
use crate::protocol::quorum::op::Op;

/// The longest ttl, with the restart guard.
pub(super) const LONGEST: Duration = Duration::from_secs(1);

// ---- maps

impl ShardWorld {
    /// The master of a slot by the maps of most of the servers that can be asked. `corrected`: by what others have
    /// reported lately.
    pub(super) fn ask(
        &self,
        p: usize,
        cluster: usize,
        slot: u16,
        corrected: bool,
    ) -> Option<(usize, Map)> {
        let (now, here) = (self.now(), &self.clusters[cluster]);
        let alive = (0..SERVERS).filter(|at| here.servers[*at].alive);
        let maps: Vec<Map> = alive.map(|at| here.map(at)).collect();
        let known = &self.processes[p].maps[cluster];
        let named = |map: &Map| match corrected {
            true => known.master(map, slot, now).cloned(),
            false => map.master(slot).cloned(),
        };
        let votes = |map: &Map| maps.iter().filter(|one| named(one) == named(map)).count();
        let most = maps.iter().find(|map| 2 * votes(map) > maps.len())?;
        Some((server_at(&named(most)?), most.clone()))
    }

    /// Asks for the map, which is learnt at once.
    pub(super) fn look_up(&mut self, p: usize, cluster: usize, slot: u16) -> Option<usize> {
        let (server, map) = self.ask(p, cluster, slot, true)?;
        let now = self.now();
        if self.processes[p].maps[cluster].learn(map.into(), now) {
            self.tidy(p);
        }
        Some(server)
    }

    /// A slot has moved: others may have. The maps are asked for in another thread.
    fn refresh_soon(&mut self, p: usize) {
        let process = &mut self.processes[p];
        process.has_moved = true;
        if !std::mem::replace(&mut process.refreshing, true) {
            let at = self.t + self.random.below(100 * MS);
            self.at(at, Event::Refresh(p));
        }
    }

    pub(super) fn refresh(&mut self, p: usize) {
        self.processes[p].has_moved = false;
        for cluster in 0..self.clusters.len() {
            let slot = slot(&[super::servers::NAMES[self.random.pick(2)]]);
            let map = self.ask(p, cluster, slot, true).map(|(_, map)| map);
            self.checks.maps.push(map);
            let number = self.checks.maps.len() - 1;
            // An answer may take its time.
            let at = self.t + self.random.below(60 * MS);
            self.at(at, Event::Refreshed(p, number * 8 + cluster, self.t));
        }
    }

    pub(super) fn refreshed(&mut self, p: usize, number: usize, asked: u64) {
        let cluster = number % 8;
        let asked = self.start + Duration::from_micros(asked);
        if let Some(map) = self.checks.maps[number / 8].take()
            && self.processes[p].maps[cluster].learn(map.into(), asked)
        {
            self.tidy(p);
        }
        if cluster + 1 == self.clusters.len() {
            self.processes[p].refreshing = false;
            if self.processes[p].has_moved {
                self.refresh_soon(p);
            }
        }
        self.pump(p);
    }
}

// ---- lanes

impl ShardWorld {
    fn master(&self, p: usize, cluster: usize, slot: u16) -> Option<usize> {
        let map = self.processes[p].maps[cluster].map()?;
        map.master(slot).map(server_at)
    }

    /// The lane to the masters of a slot: one that is connected to them, or else one that will be.
    pub(super) fn lane(&mut self, p: usize, slot: u16) -> usize {
        if let Some(lane) = self.best(p, slot) {
            return lane;
        }
        let place = Place {
            slot,
            target: None,
            at: None,
        };
        self.add_lane(p, vec![place; self.clusters.len()])
    }

    fn best(&self, p: usize, slot: u16) -> Option<usize> {
        let lanes = &self.processes[p].lanes;
        let all = |lane: &Lane, is: &dyn Fn(usize, &Place) -> bool| {
            let mut places = lane.places.iter().enumerate();
            lane.state == LaneState::Open
                && places.all(|(cluster, place)| place.target.is_none() && is(cluster, place))
        };
        let leads_to = |cluster, place: &Place| {
            place.at.is_some() && place.at == self.master(p, cluster, slot)
        };
        let has = |cluster, place: &Place| {
            self.master(p, cluster, place.slot) == self.master(p, cluster, slot)
        };
        let connected = lanes.iter().position(|lane| all(lane, &leads_to));
        connected.or_else(|| lanes.iter().position(|lane| all(lane, &has)))
    }

    fn add_lane(&mut self, p: usize, places: Vec<Place>) -> usize {
        let nodes = places.len();
        let guard = self
            .conditions
            .guarded
            .then(|| Guard::new(LONGEST, nodes).of_set());
        let (seed, now) = (self.random.next(), self.now());
        let lane = Lane::new(u8::try_from(p).unwrap(), places, guard, (seed, now));
        self.checks.counts.lanes += 1;
        self.processes[p].lanes.push(lane);
        self.processes[p].lanes.len() - 1
    }

    /// The lane to the server of a Cluster that a slot is on its way to.
    fn lane_to(&mut self, p: usize, (cluster, to): (usize, &Endpoint), slot: u16) -> usize {
        let map = self.processes[p].maps[cluster]
            .map()
            .cloned()
            .unwrap_or_default();
        if let Some(own) = map.shards().find(|own| map.master(*own) == Some(to)) {
            let lane = self.lane(p, own);
            self.leave(p, lane, cluster, to);
            return lane;
        }
        let target = Some(server_at(to));
        let leads_there =
            |lane: &Lane| lane.state == LaneState::Open && lane.places[cluster].target == target;
        if let Some(lane) = self.processes[p].lanes.iter().position(leads_there) {
            return lane;
        }
        let place = Place {
            slot,
            target: None,
            at: None,
        };
        let mut places = vec![place; self.clusters.len()];
        places[cluster].target = target;
        self.add_lane(p, places)
    }

    /// Ends lanes without slots, and those that lead to the same servers as others.
    fn tidy(&mut self, p: usize) {
        let maps = self.processes[p]
            .maps
            .iter()
            .filter_map(|map| map.map().cloned());
        let maps: Vec<Arc<Map>> = maps.collect();
        let slots = slots::combinations(&maps);
        let best: Vec<usize> = slots
            .iter()
            .filter_map(|slot| self.best(p, *slot))
            .collect();
        for (at, lane) in self.processes[p].lanes.iter_mut().enumerate() {
            if lane.state == LaneState::Open && !best.contains(&at) {
                lane.state = LaneState::Unused;
            }
        }
    }

    /// Closes lanes that nothing uses, and hands over what closed ones still owe.
    pub(super) fn close_lanes(&mut self, p: usize) -> bool {
        let mut busy = false;
        let now = self.now();
        for l in 0..self.processes[p].lanes.len() {
            let process = &mut self.processes[p];
            let sends = process.sent.as_ref().is_some_and(|(_, lane)| *lane == l);
            let mut threads = process.threads.iter();
            let is_used = sends
                || threads.any(|thread| {
                    let flight = thread.flight.as_ref();
                    thread.lane == Some(l) || flight.is_some_and(|flight| flight.lane == l)
                });
            let lane = &mut process.lanes[l];
            match lane.state {
                LaneState::Unused if !is_used => {
                    trace!(self, "process {p} closes lane {l}");
                    let lane = &mut self.processes[p].lanes[l];
                    lane.core.close(now);
                    if lane.leader == Task::None {
                        lane.leader = Task::Runs;
                    }
                    lane.state = LaneState::Closing(now + Duration::from_micros(NODE_TIMEOUT));
                    busy = true;
                    self.announce(p, l);
                }
                LaneState::Closing(_) if lane.leader == Task::None => {
                    lane.state = LaneState::Closed;
                    self.checks.counts.closed += 1;
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
        let owed = lane.core.take_elsewhere(true);
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
            let op = Redirect::owed(node, debt, slot, now).op().only_write(true);
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
            return self.violated(format!("process {p}: an answer without a caller"));
        };
        let slot = slot(&flight.op.key.resource);
        if flight.redirect.is_none() && Redirect::of(&answer, slot).next().is_some() {
            let until = self.now() + Duration::from_micros(2 * NODE_TIMEOUT);
            let (op, nodes) = (flight.op.clone(), self.clusters.len());
            let time = (answer.begun, until);
            flight.redirect = Some(Redirect::waited(op, slot, nodes, time));
        }
        if let Some(redirect) = &mut flight.redirect {
            self.learn(p, l, slot, &answer);
            if let Some((lane, op, pause)) = self.step((p, l), redirect, &answer) {
                trace!(self, "process {p}: {caller} goes on to lane {lane}");
                let at = self.t + pause;
                (flight.lane, flight.next) = (lane, Some((at, op)));
                self.processes[p].threads[caller].flight = Some(flight);
                return self.wake(p, at);
            }
            for (node, debt) in redirect.debts(&answer) {
                self.owe(p, node, debt);
            }
            redirect.complete(&mut answer);
        }
        self.write_behind(p, l, caller, &flight.op);
        self.in_time(p, &flight);
        self.went(p, caller, answer);
    }

    /// Writes the end of a lock to the servers that have its slot now, if it has not been sent there.
    fn write_behind(&mut self, p: usize, l: usize, thread: usize, op: &Op) {
        let is_own = self.processes[p].threads[thread].lane == Some(l);
        if is_own && op.action.ends() {
            let lane = self.lane(p, slot(&op.key.resource));
            if let Some(op) = Redirect::behind(op).filter(|_| lane != l) {
                self.submit_to(p, lane, NO_THREAD, op);
            }
        }
    }

    /// The lane that an operation goes to next, and after which pause.
    fn step(
        &mut self,
        (p, l): (usize, usize),
        redirect: &mut Redirect,
        answer: &Answer,
    ) -> Option<(usize, Op, u64)> {
        let (slot, now) = (redirect.slot(), self.now());
        let micros = |pause: Duration| u64::try_from(pause.as_micros()).unwrap();
        match redirect.next(answer, now) {
            Goes::Owner { op, pause, moved } => {
                let lane = self.lane(p, slot);
                if let Some((node, to)) = moved.filter(|_| lane == l) {
                    self.leave(p, l, node, &to);
                }
                Some((lane, op, micros(pause)))
            }
            Goes::Importer {
                op,
                pause,
                node,
                to,
            } => {
                let lane = self.lane_to(p, (node, &to), slot);
                Some((lane, op, micros(pause)))
            }
            Goes::Nowhere => None,
        }
    }

    /// Ends a connection to a server that named another one as the owner of its keys.
    fn leave(&mut self, p: usize, l: usize, node: usize, to: &Endpoint) {
        let now = self.now();
        let lane = &mut self.processes[p].lanes[l];
        if lane.places[node].at != Some(server_at(to)) {
            let to = format!("{}:{}", to.0, to.1);
            lane.core.input(node, Input::Moved(to), now);
            self.announce(p, l);
        }
    }

    /// Records where servers reported a slot to be.
    fn learn(&mut self, p: usize, l: usize, slot: u16, answer: &Answer) {
        let now = self.now();
        let said = Redirect::of(answer, slot);
        let moved = said.filter_map(|(node, elsewhere)| match &elsewhere.hint {
            Hint::Moved(_, to) => Some((node, elsewhere.from.clone(), to.clone())),
            _ => None,
        });
        let moved: Vec<(usize, Arc<str>, Endpoint)> = moved.collect();
        for (node, from, to) in &moved {
            let known = &mut self.processes[p].maps[*node];
            known.moved(slot, from, to.clone(), now);
            let map = known.map().cloned().unwrap_or_default();
            let place = &mut self.processes[p].lanes[l].places[*node];
            trace!(
                self,
                "process {p}, lane {l} learns: {slot} is at {to:?}, by {place:?}"
            );
            // The place keeps its server, by another of its slots.
            let own = place.at.map(|at| address(*node, at));
            let is_its = |slot: &u16| own.is_some() && map.master(*slot) == own.as_ref();
            if place.slot == slot
                && let Some(other) = map.shards().find(is_its)
            {
                place.slot = other;
            }
        }
        if !moved.is_empty() {
            self.tidy(p);
            self.refresh_soon(p);
        }
    }

    // ---- releases that no call waits for

    pub(super) fn owe(&mut self, p: usize, node: usize, debt: Debt) {
        trace!(self, "process {p}: a release of {node} is sent on");
        let (slot, now, t) = (slot(&debt.key.resource), self.now(), self.t);
        self.checks.tokens[token_id(&debt.key.token)].handed_over = true;
        self.checks.counts.owed += 1;
        let process = &mut self.processes[p];
        process.owed.add(node, debt, slot, now);
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
                let slot = release.slot();
                let lane = match &release.to {
                    Some(to) => self.lane_to(p, (release.node, to), slot),
                    None => self.lane(p, slot),
                };
                let op = release.op.clone();
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
            return self.violated(format!("process {p}: an answer to no release"));
        };
        let slot = release.slot();
        self.learn(p, l, slot, answer);
        let node = release.node;
        let mut said = Redirect::of(answer, slot).filter(|(of, _)| *of == node);
        if let Some((_, elsewhere)) = said.next()
            && let Hint::Moved(_, to) = &elsewhere.hint
            && self.lane(p, slot) == l
        {
            self.leave(p, l, node, to);
        }
        let now = self.now();
        self.processes[p].owed_at = self.t;
        self.processes[p]
            .owed
            .answered(release, answer, |_| false, now);
        self.wake(p, self.t);
    }

    /// The number of lanes that operations may take.
    pub(super) fn open_lanes(&self, p: usize) -> usize {
        let lanes = self.processes[p].lanes.iter();
        lanes.filter(|lane| lane.state == LaneState::Open).count()
    }
}
