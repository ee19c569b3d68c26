//! One process of a server: its data, its clock, and where its data come from.

use super::basics::{MARGIN, MS, Random, TODAY};
use crate::testing::store::Store;

/// The steps in which fencing tokens see clocks: as much smaller as everything here.
pub(super) const STEP: u64 = 10 * MS;

/// One process, behind a name or beside it.
pub(super) struct Instance {
    pub(super) store: Store,
    /// How far the instance's time of day is ahead of the slowest one's.
    ahead: u64,
    /// How far the instance's clock was set forward in all, and when last and by how much.
    set: i64,
    last_set: Option<(u64, i64)>,
    /// The rate of the instance's clock, in parts of ten thousand.
    rate: u64,
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

impl Instance {
    pub(super) fn new(skew: u64, is_replica: bool, random: &mut Random) -> Instance {
        Instance {
            store: Store::new(STEP),
            ahead: random.below(skew),
            set: 0,
            last_set: None,
            rate: 9_950 + random.below(101),
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
        (TODAY + self.ahead + t * self.rate / 10_000).saturating_add_signed(self.set)
    }

    /// The clock runs almost as fast as others.
    pub(super) fn steady(&mut self) {
        self.rate = 9_995 + (self.rate - 9_950) / 10;
    }

    pub(super) fn set_clock(&mut self, t: u64, by: i64) {
        self.set += by;
        self.last_set = Some((t, by));
    }

    /// When the clock was last set, and by how much.
    pub(super) fn last_set(&self) -> Option<(u64, i64)> {
        self.last_set
    }

    /// How long the instance has been up by its clock: the first ones for long.
    pub(super) fn age(&self, t: u64) -> u64 {
        let age = if self.run == 0 { 1000 * MS } else { 0 };
        let age = age + (t - self.started) * self.rate / 10_000;
        age.saturating_add_signed(self.set)
    }

    pub(super) fn was_promoted_lately(&self, t: u64) -> bool {
        self.promoted && self.promoted_at + MARGIN > t
    }

    /// Starts the instance again. `own_data`: whether it knows whose data it has.
    pub(super) fn start(&mut self, t: u64, history: u64, own_data: bool) {
        self.started = t;
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
