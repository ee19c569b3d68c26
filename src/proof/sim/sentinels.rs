//! The sentinels of a set: which server each of them names, and what is the matter with them; and the failovers that they
//! bring about.
//!
//! A sentinel that is well learns of a new master in [`LEARN`]. A master that was replaced is not told for long. Without
//! `min-replicas-to-write` the guide promises one holder only if most sentinels can be reached as long as a master does
//! not know that it was replaced; with it, whatever happens to sentinels.

use std::time::Duration;

use super::basics::{MARGIN, MS, Random};
use super::failover::Before;
use super::world::{Count, Event, World, trace};
use crate::protocol::node::answers::Word;
use crate::protocol::node::directory::Times;

/// The number of sentinels of each set.
pub(super) const SENTINELS: usize = 3;
/// Two seconds here: as much shorter as the margin, which is five.
const TWO_SECONDS: u64 = MARGIN * 2 / 5;
/// A sentinel that is well learns of a failover in this time: in as much as the margin allows, less what clocks take.
const LEARN: u64 = MARGIN - TWO_SECONDS - 3 * MS / 2;
/// A master without replicas refuses writes after this time, if it needs some: four seconds.
const LAG: u64 = 2 * TWO_SECONDS;

/// The part of two seconds, in thousandths of a second.
const fn scaled(ms: u64) -> Duration {
    Duration::from_micros(TWO_SECONDS * ms / 2000)
}

/// The times of directories, as much shorter as everything here.
pub(super) const TIMES: Times = Times {
    ask: scaled(1000),
    holds: scaled(2000),
    pause: scaled(100),
    confirm: scaled(850),
    fresh: scaled(700),
    lasts: scaled(2000),
    lately: scaled(850),
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Illness {
    /// The sentinel's process has ended: connections to it are refused.
    Dead,
    /// Nothing that is sent to the sentinel arrives.
    Silent,
    /// The sentinel wants another password.
    Refuses,
    /// The sentinel has no master of that name.
    KnowsNone,
    /// The sentinel is cut off from the others, and does not learn of failovers.
    Apart,
}

#[derive(Default)]
struct Sentinel {
    /// The server that the sentinel names, and the one that it will name from this time on.
    names: usize,
    learns: Option<(u64, usize)>,
    illness: Option<Illness>,
    until: u64,
}

impl Sentinel {
    /// Whether the sentinel takes no part in failovers. (One that refuses to answer clients does.)
    fn is_ill(&self, t: u64) -> bool {
        let is_off = |illness| illness != Illness::Refuses;
        self.illness.is_some_and(is_off) && self.until > t
    }

    fn named(&mut self, t: u64) -> usize {
        if let Some((_, new)) = self.learns.take_if(|(at, _)| *at <= t) {
            self.names = new;
        }
        self.names
    }
}

/// The master is cut off from its replicas, together with these clients, and perhaps with a sentinel.
struct Parted {
    until: u64,
    master: usize,
    clients: Vec<usize>,
    sentinel: Option<usize>,
}

/// The sentinels of one set.
#[derive(Default)]
pub(super) struct Sentinels {
    all: [Sentinel; SENTINELS],
    parted: Option<Parted>,
}

/// What comes of a question that has arrived at a sentinel.
pub(super) enum Reaction {
    Answers(Word<usize>),
    /// The connection is refused.
    Refuses,
    Nothing,
}

impl Sentinels {
    fn parted(&self, t: u64) -> Option<&Parted> {
        self.parted.as_ref().filter(|parted| parted.until > t)
    }

    /// Whether the client reaches this server.
    pub(super) fn leads_to(&self, t: u64, client: usize, instance: usize) -> bool {
        self.parted(t)
            .is_none_or(|parted| parted.clients.contains(&client) == (parted.master == instance))
    }

    /// What a sentinel makes of a client's question.
    pub(super) fn ask(&mut self, t: u64, client: usize, sentinel: usize) -> Reaction {
        let is_cut_off = self.parted(t).is_some_and(|parted| {
            parted.clients.contains(&client) != (parted.sentinel == Some(sentinel))
        });
        let one = &mut self.all[sentinel];
        let named = one.named(t);
        match one.illness.filter(|_| one.until > t) {
            _ if is_cut_off => Reaction::Nothing,
            None | Some(Illness::Apart) => Reaction::Answers(Word::Names(named)),
            Some(Illness::Dead) => Reaction::Refuses,
            Some(Illness::Silent) => Reaction::Nothing,
            Some(Illness::Refuses) => Reaction::Answers(Word::Unknown),
            Some(Illness::KnowsNone) => Reaction::Answers(Word::NamesNone),
        }
    }

    /// Whether the sentinel cannot be asked, or takes no part.
    fn is_off(&self, t: u64, sentinel: usize) -> bool {
        let is_apart = |parted: &Parted| parted.sentinel == Some(sentinel);
        self.all[sentinel].is_ill(t) || self.parted(t).is_some_and(is_apart)
    }

    fn off(&self, t: u64) -> usize {
        (0..SENTINELS).filter(|at| self.is_off(t, *at)).count()
    }

    /// Whether most sentinels are well.
    fn can_elect(&self, t: u64) -> bool {
        2 * self.off(t) < SENTINELS
    }

    /// Whether sentinels can bring a master back.
    pub(super) fn can_bring_back(&self, t: u64) -> bool {
        self.can_elect(t) && self.parted(t).is_none()
    }

    /// A server was promoted: one of those that are well has done it, and the others learn it.
    pub(super) fn promoted(&mut self, t: u64, instance: usize, random: &mut Random) {
        let well: Vec<usize> = (0..SENTINELS).filter(|at| !self.is_off(t, *at)).collect();
        let leader = well[random.pick(well.len())];
        let apart = self.parted(t).map(|parted| (parted.sentinel, parted.until));
        for (at, one) in self.all.iter_mut().enumerate() {
            one.named(t);
            let mut since = if one.is_ill(t) { one.until } else { t };
            if let Some((sentinel, until)) = apart
                && sentinel == Some(at)
            {
                since = since.max(until);
            }
            let late = if at == leader { 0 } else { random.below(LEARN) };
            one.learns = Some((since + late, instance));
        }
    }

    /// All is well, and all know the master.
    pub(super) fn calm(&mut self, master: usize) {
        self.parted = None;
        self.all = Default::default();
        for one in &mut self.all {
            one.names = master;
        }
    }
}

impl World {
    /// Something happens in a set.
    pub(super) fn fault_of_set(&mut self, node: usize, client: usize) {
        let until = self.t + self.random.below(40 * MS);
        match self.random.below(20) {
            0 => self.hold_some(until, node, Some(client)),
            1 | 2 => self.cut_all(|one| one.client == client && one.node == node),
            3 => {
                let until = self.t + self.random.below(300 * MS);
                self.clients[client].clocks.freeze(until);
            }
            4 if self.random.chance(20) => self.restart_server(node, self.t),
            5..9 => self.ail(node),
            9..12 => self.part(node),
            12 => self.hamper(client, node),
            _ => self.change_set(node),
        }
        let next = self.t + self.random.below(80 * MS);
        self.at(next, Event::Fault);
    }

    /// The data are copied to a replica, or one takes its master's place.
    pub(super) fn change_set(&mut self, node: usize) {
        match self.random.below(7) {
            0..2 => {
                let replicas = self.servers[node].replicas();
                if !replicas.is_empty() && self.servers[node].sentinels.parted(self.t).is_none() {
                    let replica = replicas[self.random.pick(replicas.len())];
                    self.servers[node].copy_to(replica);
                }
            }
            2 => drop(self.fail_over_set(node, Before::Ends)),
            3 => {
                let back = self.servers[node].named;
                if self.fail_over_set(node, Before::Follows) {
                    let at = self.t + self.random.below(20 * MS);
                    self.at(at, Event::Back(node, back));
                }
            }
            _ => drop(self.fail_over_set(node, Before::GoesOn)),
        }
    }

    /// A sentinel falls ill.
    fn ail(&mut self, node: usize) {
        let at = self.random.pick(SENTINELS);
        let illness = [
            Illness::Dead,
            Illness::Silent,
            Illness::Refuses,
            Illness::KnowsNone,
            Illness::Apart,
        ][self.random.pick(5)];
        let until = self.t + self.random.below(400 * MS);
        let late = self.random.below(LEARN);
        let (t, server) = (self.t, &mut self.servers[node]);
        let is_off = illness != Illness::Refuses;
        let others = (0..SENTINELS).filter(|other| is_off && *other != at);
        let mut others = others.map(|other| server.sentinels.is_off(t, other));
        let masters = server.instances.len() - server.replicas().len();
        if !self.conditions.min_replicas && masters > 1 && others.any(|off| off) {
            return;
        }
        trace!(
            self,
            "node {node}: sentinel {at} is {illness:?} until {until}"
        );
        let one = &mut self.servers[node].sentinels.all[at];
        one.named(t);
        (one.illness, one.until) = (Some(illness), until);
        if let Some((learns, _)) = one.learns.as_mut().filter(|_| is_off) {
            *learns = (*learns).max(until + late);
        }
    }

    /// The master is cut off: alone, or, if it stops by itself then, together with clients and a sentinel.
    fn part(&mut self, node: usize) {
        let server = &self.servers[node];
        if server.sentinels.parted(self.t).is_some() || server.sentinels.off(self.t) > 0 {
            return;
        }
        let (master, with) = (server.named, self.conditions.parts());
        let clients = 0..self.clients.len();
        let clients = clients.filter(|_| with && self.random.chance(50)).collect();
        let sentinel = (with && self.random.chance(60)).then(|| self.random.pick(SENTINELS));
        let until = self.t + 30 * MS + self.random.below(400 * MS);
        let lonely = self.t + self.random.below(LAG);
        let promotes = lonely + self.random.below(100 * MS);
        trace!(
            self,
            "node {node}: {master} is cut off until {until}, with {clients:?} and {sentinel:?}"
        );
        let parted = Parted {
            until,
            master,
            clients,
            sentinel,
        };
        for one in &mut self.net.connections {
            let is_with = parted.clients.contains(&one.client);
            if one.node == node && is_with != (one.instance == master) {
                one.hold(until, true, true);
            }
        }
        let server = &mut self.servers[node];
        server.sentinels.parted = Some(parted);
        if self.conditions.min_replicas {
            server.instances[master].lonely = Some(lonely);
        }
        if promotes < until {
            self.at(promotes, Event::Promote(node));
        }
        self.at(until, Event::Heals(node, master));
    }

    /// The master that was cut off is there again. If it was not replaced, its replicas are, too.
    pub(super) fn heals(&mut self, node: usize, master: usize) {
        if self.servers[node].named == master {
            self.servers[node].instances[master].lonely = None;
        }
    }

    /// The sentinels replace a master that is cut off.
    pub(super) fn promote(&mut self, node: usize) {
        let named = self.servers[node].named;
        let parted = self.servers[node].sentinels.parted(self.t);
        if !self.quiet && parted.is_some_and(|parted| parted.master == named) {
            self.fail_over_set(node, Before::GoesOn);
        }
    }

    /// Most sentinels agree on another master, if they are well and there is one.
    fn fail_over_set(&mut self, node: usize, before: Before) -> bool {
        let server = &self.servers[node];
        let replicas = server.replicas();
        if replicas.is_empty() || !server.sentinels.can_elect(self.t) {
            return false;
        }
        let apart = server.sentinels.parted(self.t).is_some();
        let before = if apart { Before::GoesOn } else { before };
        let replica = replicas[self.random.pick(replicas.len())];
        if !apart && self.random.chance(60) {
            self.servers[node].copy_to(replica);
        }
        self.fail_over(node, replica, before);
        self.servers[node].named == replica
    }

    /// A master was replaced, and is told so only after a while.
    pub(super) fn goes_on_in_set(&mut self, node: usize, old: usize) {
        let lonely = self.t + self.random.below(LAG);
        let server = &mut self.servers[node];
        let healed = server.sentinels.parted(self.t).map(|parted| parted.until);
        if self.conditions.min_replicas {
            let own = server.instances[old].lonely;
            server.instances[old].lonely = Some(own.unwrap_or(lonely));
        }
        let long = if self.random.chance(80) { 600 } else { 30 };
        let told = healed.unwrap_or(self.t) + self.random.below(long * MS);
        self.counts[Count::Unaware] += 1;
        self.at(told, Event::Demoted(node, old));
        let client = self.random.pick(self.clients.len());
        if self.random.chance(50) {
            self.stops_soon(client, node);
        } else if self.random.chance(50) {
            self.cut_all(|one| one.node == node && one.client == client);
        }
    }
}
