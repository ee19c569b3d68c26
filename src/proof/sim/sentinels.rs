//! The sentinels of a set: which server each of them names, and what is the matter with them. A sentinel that is well
//! learns of a new master in [`LEARN`].

use std::collections::BTreeMap;
use std::time::Duration;

use super::basics::{MARGIN, MS, Random};
use crate::protocol::discovery::found_master::DirectoryTimes;
use crate::protocol::discovery::master_answers::MasterAnswer;

/// The number of sentinels of each set.
pub(super) const SENTINELS: usize = 3;
/// Two seconds here: as much shorter as the margin, which is five.
const TWO_SECONDS: u64 = MARGIN * 2 / 5;
/// A sentinel that is well learns of a failover in this time: in as much as the margin allows, less what clocks take.
pub(super) const LEARN: u64 = MARGIN - TWO_SECONDS - 3 * MS / 2;
/// A master without replicas refuses writes after this time, if it needs some: four seconds.
pub(super) const LAG: u64 = 2 * TWO_SECONDS;

/// The part of two seconds, in thousandths of a second.
const fn scaled(ms: u64) -> Duration {
    Duration::from_micros(TWO_SECONDS * ms / 2000)
}

/// The times of directories, as much shorter as everything here.
pub(super) const TIMES: DirectoryTimes = DirectoryTimes {
    ask: scaled(1000),
    holds: scaled(2000),
    pause: scaled(100),
    confirm: scaled(850),
    fresh: scaled(700),
    lasts: scaled(2000),
    lately: scaled(850),
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Illness {
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

impl Illness {
    pub(super) const ALL: [Illness; 5] = [
        Illness::Dead,
        Illness::Silent,
        Illness::Refuses,
        Illness::KnowsNone,
        Illness::Apart,
    ];

    /// Whether the sentinel takes no part in failovers. (One that refuses to answer clients does.)
    pub(super) fn is_off(self) -> bool {
        self != Illness::Refuses
    }
}

#[derive(Default)]
pub(super) struct Sentinel {
    /// The server that the sentinel names, and the one that it will name from this time on.
    names: usize,
    learns: Option<(u64, usize)>,
    illness: Option<Illness>,
    until: u64,
}

impl Sentinel {
    fn is_ill(&self, t: u64) -> bool {
        self.illness.is_some_and(Illness::is_off) && self.until > t
    }

    fn named(&mut self, t: u64) -> usize {
        if let Some((_, new)) = self.learns.take_if(|(at, _)| *at <= t) {
            self.names = new;
        }
        self.names
    }
}

/// The master is cut off from its replicas, together with these clients, and perhaps with a sentinel.
pub(super) struct Parted {
    pub(super) until: u64,
    pub(super) master: usize,
    pub(super) clients: Vec<usize>,
    pub(super) sentinel: Option<usize>,
}

/// The sentinels of one set.
#[derive(Default)]
pub(super) struct Sentinels {
    all: [Sentinel; SENTINELS],
    pub(super) parted: Option<Parted>,
    /// Since when masters that need replicas to take writes have none.
    pub(super) lonely: BTreeMap<usize, u64>,
}

/// The reaction to a question that has arrived at a sentinel.
pub(super) enum Reaction {
    Answers(MasterAnswer<usize>),
    /// The connection is refused.
    Refuses,
    Nothing,
}

impl Sentinels {
    pub(super) fn parted(&self, t: u64) -> Option<&Parted> {
        self.parted.as_ref().filter(|parted| parted.until > t)
    }

    /// Whether the client reaches this server.
    pub(super) fn leads_to(&self, t: u64, client: usize, instance: usize) -> bool {
        self.parted(t)
            .is_none_or(|parted| parted.clients.contains(&client) == (parted.master == instance))
    }

    /// A sentinel's reaction to a client's question.
    pub(super) fn ask(&mut self, t: u64, client: usize, sentinel: usize) -> Reaction {
        let is_cut_off = self.parted(t).is_some_and(|parted| {
            parted.clients.contains(&client) != (parted.sentinel == Some(sentinel))
        });
        let one = &mut self.all[sentinel];
        let named = one.named(t);
        match one.illness.filter(|_| one.until > t) {
            _ if is_cut_off => Reaction::Nothing,
            None | Some(Illness::Apart) => Reaction::Answers(MasterAnswer::Names(named)),
            Some(Illness::Dead) => Reaction::Refuses,
            Some(Illness::Silent) => Reaction::Nothing,
            Some(Illness::Refuses) => Reaction::Answers(MasterAnswer::Unknown),
            Some(Illness::KnowsNone) => Reaction::Answers(MasterAnswer::NamesNone),
        }
    }

    /// Whether the sentinel cannot be asked, or takes no part.
    pub(super) fn is_off(&self, t: u64, sentinel: usize) -> bool {
        let is_apart = |parted: &Parted| parted.sentinel == Some(sentinel);
        self.all[sentinel].is_ill(t) || self.parted(t).is_some_and(is_apart)
    }

    pub(super) fn off(&self, t: u64) -> usize {
        (0..SENTINELS).filter(|at| self.is_off(t, *at)).count()
    }

    /// Whether most sentinels are well.
    pub(super) fn can_elect(&self, t: u64) -> bool {
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

    /// A sentinel falls ill until then, and learns what it has missed `late` after that.
    pub(super) fn ails(&mut self, t: u64, at: usize, illness: Illness, until: u64, late: u64) {
        let one = &mut self.all[at];
        one.named(t);
        (one.illness, one.until) = (Some(illness), until);
        let learns = one.learns.as_mut().filter(|_| illness.is_off());
        if let Some((learns, _)) = learns {
            *learns = (*learns).max(until + late);
        }
    }

    /// Whether this master refuses writes, since it needs replicas and has none.
    pub(super) fn is_lonely(&self, t: u64, instance: usize) -> bool {
        let since = self.lonely.get(&instance);
        since.is_some_and(|since| *since <= t)
    }

    /// All is well, and all know the master.
    pub(super) fn calm(&mut self, master: usize) {
        self.parted = None;
        self.lonely.clear();
        self.all = Default::default();
        for one in &mut self.all {
            one.names = master;
        }
    }
}
