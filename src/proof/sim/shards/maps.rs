//! The maps of a process, the questions to servers for them and about masters, and what the answers mean.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::basics::MS;
use super::servers::{NAMES, SERVERS, address, server_at};
use super::world::{Event, ShardWorld};
use crate::errors::cause::Cause;
use crate::errors::text::ShownAddress;
use crate::protocol::cluster::asked_servers::{AskedPart, AskedServers};
use crate::protocol::cluster::cluster_answers::{Known, MapAnswer, Maps, named};
use crate::protocol::cluster::cluster_map::ToAsk;
use crate::protocol::cluster::cluster_votes::About;
use crate::protocol::commands::slots::{SlotMap, slot};
use crate::protocol::discovery::directory_questions::ReceivedAnswer;
use crate::protocol::discovery::opinions::Opinions;
use crate::values::endpoint::{Endpoint, is_at};

impl ShardWorld {
    /// The answers of a Cluster's servers about the master of a slot, asked then, as far as they can be reached. The map is learnt
    /// at once. `about`: the master that is to be confirmed.
    pub(super) fn ask(
        &mut self,
        (p, cluster): (usize, usize),
        slot: u16,
        about: Option<About<'_>>,
        asked: Instant,
    ) -> Maps<Endpoint> {
        let maps = self.answers((p, cluster), slot, about, asked);
        let known = &mut self.processes[p].maps[cluster];
        if let Some((map, asked)) = maps.to_learn(known.map().map(|map| &**map))
            && known.learn(map.clone(), asked)
        {
            self.tidy(p);
        }
        maps
    }

    fn answers(
        &mut self,
        (p, cluster): (usize, usize),
        slot: u16,
        about: Option<About<'_>>,
        asked: Instant,
    ) -> Maps<Endpoint> {
        let now = self.now();
        let servers = match self.processes[p].maps[cluster].next_to_ask(about, now) {
            ToAsk::Seeds => {
                AskedServers::given((0..SERVERS).map(|at| address(cluster, at)).collect())
            }
            ToAsk::Servers(order, turn) => {
                let is_it = |seed: &Endpoint| about.is_some_and(|about| is_at(seed, about.address));
                let seed = Some(address(cluster, turn % SERVERS)).filter(|seed| !is_it(seed));
                AskedServers::known(order.servers, order.first, seed)
            }
        };
        let first = servers.first_part(Duration::ZERO);
        let maps = self.heard((p, cluster), (slot, about, asked), &servers, first);
        let is_enough = self.judged((p, cluster), |known| maps.is_enough(about, known, now));
        match first.has_more && !is_enough {
            true => {
                let all = servers.all(Duration::ZERO);
                self.heard((p, cluster), (slot, about, asked), &servers, all)
            }
            false => maps,
        }
    }

    fn heard(
        &self,
        (p, cluster): (usize, usize),
        (slot, about, asked): (u16, Option<About<'_>>, Instant),
        servers: &AskedServers<Endpoint>,
        part: AskedPart,
    ) -> Maps<Endpoint> {
        let here = &self.clusters[cluster];
        let servers = servers.servers.iter().take(part.servers);
        let told = servers.clone().map(|server| match server_at(server) {
            at if !here.servers[at].alive => Err(Cause::Connect("refused".into())),
            at if !self.reaches(p, cluster, at) => Err(Cause::Mute(Duration::ZERO)),
            at => Ok(here.map(at)),
        });
        let told: Vec<MapAnswer> = told.collect();
        let heard: Vec<_> = told
            .iter()
            .map(|told| ReceivedAnswer::Answer(told, asked))
            .collect();
        let known = &self.processes[p].maps[cluster];
        let read = |map: &Arc<SlotMap>, asked| {
            let master = match about {
                None => known.master(map, slot, asked),
                Some(_) => map.master(slot),
            };
            named(master, Endpoint::clone)
        };
        let shown: Vec<String> = servers.map(ShownAddress::shown).collect();
        let time = (self.now(), Duration::ZERO);
        Maps::of(
            Opinions::of((shown, part.spare), time, &heard, read),
            &heard,
        )
    }

    pub(super) fn judged<T>(
        &self,
        (p, cluster): (usize, usize),
        judge: impl FnOnce(Known<'_, Endpoint>) -> T,
    ) -> T {
        let map = self.processes[p].maps[cluster].map();
        judge(Known {
            map: map.map(|map| &**map),
            addr: &Endpoint::clone,
        })
    }

    /// Looks for the master of a slot, to connect to it: which server it is, when those were asked that name it, and whether
    /// they are enough.
    pub(super) fn look_up(
        &mut self,
        p: usize,
        cluster: usize,
        slot: u16,
    ) -> Option<(usize, (Instant, bool))> {
        let maps = self.ask((p, cluster), slot, None, self.now());
        let found = maps.opinions.believed()?;
        let is_confirmed = self.judged((p, cluster), |known| maps.is_confirmed(known));
        let moved = self.processes[p].maps[cluster].moved_at(slot, |to| *to == found.addr);
        let at = moved.map_or(found.at, |(at, _)| at.min(found.at));
        Some((server_at(&found.addr), (at, found.by_most && is_confirmed)))
    }

    /// A slot has moved: others may have. The maps are asked for in another thread.
    pub(super) fn refresh_soon(&mut self, p: usize) {
        if self.processes[p].refreshes.request() {
            self.refresh_next(p);
        }
    }

    fn refresh_next(&mut self, p: usize) {
        let now = self.now();
        if let Some(pause) = self.processes[p].refreshes.next(now) {
            let at = self.time(now + pause) + self.random.below(100 * MS);
            self.at(at, Event::Refresh(p));
        }
    }

    pub(super) fn refresh(&mut self, p: usize) {
        let mut all = true;
        for cluster in 0..self.clusters.len() {
            let slot = slot(&[NAMES[self.random.pick(2)]]);
            let maps = self.answers((p, cluster), slot, None, self.now());
            all &= maps.opinions.believed().is_some();
            let known = self.processes[p].maps[cluster].map();
            let map = maps.to_learn(known.map(|map| &**map));
            self.checks.maps.push(map.map(|(map, _)| map.clone()));
            let number = self.checks.maps.len() - 1;
            // An answer may take its time.
            let at = self.t + self.random.below(60 * MS);
            self.at(at, Event::Refreshed(p, number * 8 + cluster, self.t));
        }
        self.processes[p].refreshes.answered(all);
    }

    pub(super) fn refreshed(&mut self, p: usize, number: usize, asked: u64) {
        if let Some(until) = self.frozen_until(p) {
            return self.at(until, Event::Refreshed(p, number, asked));
        }
        let cluster = number % 8;
        let asked = self.start + Duration::from_micros(asked);
        if let Some(map) = self.checks.maps[number / 8].take()
            && self.processes[p].maps[cluster].learn(map, asked)
        {
            self.tidy(p);
        }
        if cluster + 1 == self.clusters.len() {
            self.refresh_next(p);
        }
        self.pump(p);
    }
}
