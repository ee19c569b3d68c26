//! One process of a server: its data, its clock, and where its data come from.

use super::basics::{MARGIN, MS, Random, TODAY};
use crate::testing::store::Store;

/// The steps in which fencing tokens see clocks: as much smaller as everything here.
pub(super) const STEP: u64 = 10 * MS;

/// One process, behind a name or beside it.
pub(super) struct Instance {
    pub(super) store: Store,
    pub(super) clock: Clock,
    /// When the instance was started, and how often.
    started: u64,
    pub(super) run: u64,
    /// The history of the instance's data.
    pub(super) history: u64,
    /// Whether the instance has been promoted, or was started with the data of another one; and when.
    pub(super) promoted: bool,
    pub(super) promoted_at: u64,
    pub(super) flushed: bool,
    /// How many keys were evicted since the start.
    evicted: usize,
    /// Whether the instance is a replica, and has had its master's data since.
    pub(super) is_replica: bool,
    pub(super) synced: bool,
}

/// The clock of an instance.
pub(super) struct Clock {
    /// How far its time of day was ahead of the slowest one's at first.
    ahead: u64,
    /// How far it was set forward in all, and until the instance was started; and when last and by how much.
    set: i64,
    set_at_start: i64,
    pub(super) last_set: Option<(u64, i64)>,
    /// Its rate, in parts of ten thousand.
    rate: u64,
}

impl Clock {
    fn runs(&self, long: u64) -> u64 {
        long * self.rate / 10_000
    }

    /// Makes it run almost as fast as others.
    pub(super) fn steady(&mut self) {
        self.rate = 9_995 + (self.rate - 9_950) / 10;
    }

    pub(super) fn set(&mut self, t: u64, by: i64) {
        self.set += by;
        self.last_set = Some((t, by));
    }
}

impl Instance {
    pub(super) fn new(skew: u64, is_replica: bool, random: &mut Random) -> Instance {
        Instance {
            store: Store::new(STEP),
            clock: Clock {
                ahead: random.below(skew),
                set: 0,
                set_at_start: 0,
                last_set: None,
                rate: 9_950 + random.below(101),
            },
            started: 0,
            run: 0,
            history: 0,
            promoted: false,
            promoted_at: 0,
            flushed: false,
            evicted: 0,
            is_replica,
            synced: is_replica,
        }
    }

    /// The instance's time of day.
    pub(super) fn time(&self, t: u64) -> u64 {
        let Clock { ahead, set, .. } = self.clock;
        (TODAY + ahead + self.clock.runs(t)).saturating_add_signed(set)
    }

    /// How long the instance has been up by its clock: the first ones for long.
    pub(super) fn age(&self, t: u64) -> u64 {
        let age = if self.run == 0 { 1000 * MS } else { 0 };
        let age = age + self.clock.runs(t - self.started);
        age.saturating_add_signed(self.clock.set - self.clock.set_at_start)
    }

    pub(super) fn was_promoted_lately(&self, t: u64) -> bool {
        self.promoted && self.promoted_at + MARGIN > t
    }

    /// Starts the instance again. `own_data`: whether it knows whose data it has.
    pub(super) fn start(&mut self, t: u64, history: u64, own_data: bool) {
        self.started = t;
        self.clock.set_at_start = self.clock.set;
        self.run += 1;
        self.history = history;
        (self.promoted, self.flushed, self.evicted) = (own_data, false, 0);
        self.store.flush_scripts();
    }

    /// The text of INFO replication.
    pub(super) fn replication(&self) -> String {
        let role = if self.is_replica { "slave" } else { "master" };
        format!("role:{role}\r\nmaster_replid:{}\r\n", self.history)
    }

    /// The text of INFO stats.
    pub(super) fn stats(&self) -> String {
        format!("evicted_keys:{}\r\n", self.evicted)
    }

    /// The text of INFO commandstats.
    pub(super) fn commandstats(&self) -> String {
        let flushes = u8::from(self.flushed);
        format!("cmdstat_info:calls=1,usec=1\r\ncmdstat_flushall:calls={flushes},usec=1\r\n")
    }

    /// Evicts one of the keys, or all but one: which ones depends on the policy.
    pub(super) fn evict(&mut self, t: u64, random: &mut Random) {
        let names: Vec<Vec<u8>> = {
            let keys = self.store.keys(self.time(t));
            keys.map(|(name, ..)| name.to_vec()).collect()
        };
        if names.is_empty() {
            return;
        }
        let chosen = random.pick(names.len());
        let alone = random.chance(70);
        for (at, name) in names.iter().enumerate() {
            if (at == chosen) == alone {
                self.store.remove(name);
                self.evicted += 1;
            }
        }
    }

    pub(super) fn flush(&mut self) {
        self.store.clear();
        self.flushed = true;
    }
}
