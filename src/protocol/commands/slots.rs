//! Which server of a Redis Cluster owns a key. A Cluster has 16384 slots, a key is in one of them, and a master owns
//! the keys of its slots.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::protocol::commands::companions::tag;
use crate::protocol::commands::node_id::NodeId;
use crate::protocol::commands::resp::Reply;
use crate::protocol::commands::server_entry::{ServerEntry, endpoint, server_entry};
use crate::protocol::mutants::{Mutant, mutant};
use crate::values::endpoint::Endpoint;

/// The number of slots.
pub(crate) const SLOTS: u16 = 16384;

/// The maximum number of servers of a Cluster.
pub(crate) const MOST_SERVERS: usize = 16384;

/// The slot of a key, by its tag if it has one.
pub(crate) fn slot(key: &[u8]) -> u16 {
    let hashed = tag(key).unwrap_or(key);
    // CRC-16/XMODEM, eight bits at a time.
    let crc = hashed.iter().fold(0, |crc: u16, byte| {
        let bits = crc >> 8 ^ u16::from(*byte);
        let bits = bits ^ bits >> 4;
        crc << 8 ^ bits << 12 ^ bits << 5 ^ bits
    });
    crc % SLOTS
}

/// The server that owns each slot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SlotMap {
    masters: Vec<Endpoint>,
    replicas: Vec<Endpoint>,
    /// By the last slot of each range: the first one, and the index of the master.
    ranges: BTreeMap<u16, (u16, usize)>,
    /// The servers with an ID, by the names that the map gives them.
    entries: BTreeMap<Endpoint, ServerEntry>,
    /// The ID of each server that has one, in all its entries the same.
    ids: BTreeMap<Endpoint, NodeId>,
}

impl SlotMap {
    /// Reads the reply to CLUSTER SLOTS of a server of this host. `None`: the reply is something else.
    #[cfg(test)]
    pub(crate) fn of(reply: &Reply, asked: &str) -> Option<SlotMap> {
        let Reply::Array(all) = reply else {
            return None;
        };
        let mut ranges = SlotRanges::new(asked);
        let is_map = all.iter().all(|range| ranges.add(range));
        is_map.then(|| ranges.map())
    }

    fn master_index(&mut self, master: Endpoint) -> usize {
        let known = self.masters.iter().position(|other| *other == master);
        known.unwrap_or_else(|| {
            self.masters.push(master);
            self.masters.len() - 1
        })
    }

    /// The master that owns a slot, if one does.
    pub(crate) fn master(&self, slot: u16) -> Option<&Endpoint> {
        let (_, (first, master)) = self.ranges.range(slot..).next()?;
        self.masters.get(*master).filter(|_| *first <= slot)
    }

    /// All servers, masters first.
    pub(crate) fn servers(&self) -> impl Iterator<Item = &Endpoint> {
        self.masters.iter().chain(&self.replicas)
    }

    /// The ID of a server, if the map has one for it.
    pub(crate) fn id(&self, server: &Endpoint) -> Option<NodeId> {
        self.ids.get(server).copied()
    }

    pub(crate) fn has_ids(&self) -> bool {
        !self.ids.is_empty()
    }

    /// Whether a server is in both maps, by its ID.
    pub(crate) fn shares_any(&self, other: &SlotMap) -> bool {
        let own: BTreeSet<&NodeId> = self.ids.values().collect();
        other.ids.values().any(|id| own.contains(id))
    }

    /// Whether the other map is that of another Cluster: no server is in both, by its ID, and a slot has an owner in both.
    /// (While a Cluster is made, each server knows only itself, and no slot has two owners.)
    pub(crate) fn is_of_another(&self, other: &SlotMap) -> bool {
        let has_slot_of = |one: &SlotMap, other: &SlotMap| {
            let mut ranges = one.ranges.values();
            ranges.any(|(first, _)| other.master(*first).is_some())
        };
        let have_ids = self.has_ids() && other.has_ids();
        let is_other = have_ids && !self.shares_any(other);
        is_other && (has_slot_of(self, other) || has_slot_of(other, self))
    }

    /// The masters that own slots.
    pub(crate) fn owners(&self) -> impl Iterator<Item = &Endpoint> {
        let own: BTreeSet<usize> = self.ranges.values().map(|(_, master)| *master).collect();
        let masters = self.masters.iter().enumerate();
        masters.filter_map(move |(at, master)| own.contains(&at).then_some(master))
    }

    /// A slot of each master.
    pub(crate) fn shards(&self) -> impl Iterator<Item = u16> + use<> {
        let mut slots = vec![None; self.masters.len()];
        for (first, master) in self.ranges.values() {
            if let Some(slot) = slots.get_mut(*master) {
                slot.get_or_insert(*first);
            }
        }
        slots.into_iter().flatten()
    }

    /// The first slots of the ranges of the masters that this is true of.
    pub(crate) fn first_slots_of(
        &self,
        is_meant: impl Fn(&Endpoint) -> bool,
    ) -> impl Iterator<Item = u16> {
        let meant: Vec<bool> = self.masters.iter().map(is_meant).collect();
        let ranges = self.ranges.values();
        ranges.filter_map(move |(first, master)| {
            let is_meant = meant.get(*master).copied().unwrap_or_default();
            is_meant.then_some(*first)
        })
    }

    /// The number of slots that no server owns.
    pub(crate) fn missing(&self) -> usize {
        let ranges = self.ranges.iter();
        let served = ranges.map(|(last, (first, _))| {
            usize::from(*last) + 1 - usize::from(*first).min(usize::from(*last) + 1)
        });
        usize::from(SLOTS).saturating_sub(served.sum())
    }

    /// Notes that a server has named this one as the slot's owner.
    pub(crate) fn set_owner(&mut self, slot: u16, to: Endpoint) {
        if self.master(slot) == Some(&to) {
            return;
        }
        let to = self.master_index(to);
        if let Some((last, (first, master))) = self.range(slot) {
            self.ranges.remove(&last);
            if first < slot {
                self.ranges.insert(slot - 1, (first, master));
            }
            if slot < last {
                self.ranges.insert(last, (slot + 1, master));
            }
        }
        self.ranges.insert(slot, (slot, to));
    }

    /// Takes the entries of servers with an ID out of the map.
    pub(crate) fn take_entries(&mut self) -> BTreeMap<Endpoint, ServerEntry> {
        std::mem::take(&mut self.entries)
    }

    /// Gives servers other names, unless two of them would have the same one.
    pub(crate) fn rename(&mut self, names: &BTreeMap<Endpoint, Endpoint>) {
        fn name<'a>(names: &'a BTreeMap<Endpoint, Endpoint>, own: &'a Endpoint) -> &'a Endpoint {
            names.get(own).unwrap_or(own)
        }
        let own: BTreeSet<&Endpoint> = self.servers().collect();
        let new: BTreeSet<&Endpoint> = own.iter().map(|own| name(names, own)).collect();
        if new.len() == own.len() || mutant(Mutant::TwoOfOneName) {
            for server in self.masters.iter_mut().chain(&mut self.replicas) {
                *server = name(names, server).clone();
            }
            let ids = std::mem::take(&mut self.ids).into_iter();
            let ids = ids.map(|(own, id)| (name(names, &own).clone(), id));
            self.ids = ids.collect();
        }
    }

    fn range(&self, slot: u16) -> Option<(u16, (u16, usize))> {
        let (last, range) = self.ranges.range(slot..).next()?;
        (range.0 <= slot).then_some((*last, *range))
    }
}

/// A map that is being read from the reply to CLUSTER SLOTS, range by range.
pub(crate) struct SlotRanges<'a> {
    map: SlotMap,
    /// The host of the server that was asked.
    asked: &'a str,
    masters: Indices,
    replicas: Indices,
    /// The entry of each master and of each replica. `None`: it has no ID, or several.
    entries: [Vec<Option<ServerEntry>>; 2],
    /// In the same order, the ID alone, which has to be known also of a server without an IP address.
    ids: [Vec<Option<NodeId>>; 2],
}

/// The indices of servers, by host and port.
#[derive(Default)]
struct Indices(BTreeMap<String, BTreeMap<u16, usize>>);

impl Indices {
    /// The index of a server in this list, to which it is added if it is not there yet.
    fn of(&mut self, (host, port): (&str, u16), all: &mut Vec<Endpoint>) -> usize {
        let mut add = || {
            all.push((host.to_owned(), port));
            all.len() - 1
        };
        match self.0.get_mut(host) {
            Some(ports) => *ports.entry(port).or_insert_with(add),
            None => {
                let index = add();
                self.0.insert(host.into(), BTreeMap::from([(port, index)]));
                index
            }
        }
    }
}

impl<'a> SlotRanges<'a> {
    pub(crate) fn new(asked: &'a str) -> SlotRanges<'a> {
        SlotRanges {
            map: SlotMap::default(),
            asked,
            masters: Indices::default(),
            replicas: Indices::default(),
            entries: Default::default(),
            ids: Default::default(),
        }
    }

    /// Adds a range. False: the reply is not a range.
    pub(crate) fn add(&mut self, range: &Reply) -> bool {
        self.added(range).is_some()
    }

    fn added(&mut self, range: &Reply) -> Option<()> {
        let Reply::Array(range) = range else {
            return None;
        };
        let [Reply::Int(first), Reply::Int(last), master, replicas @ ..] = &range[..] else {
            return None;
        };
        let number = |slot: &i64| u16::try_from(*slot).ok().filter(|slot| *slot < SLOTS);
        let (first, last) = (number(first)?, number(last)?);
        let [masters, others] = &mut self.entries;
        let [master_ids, other_ids] = &mut self.ids;
        let name = endpoint(master, self.asked)?;
        let index = self.masters.of(name, &mut self.map.masters);
        self.map.ranges.insert(last, (first, index));
        note(masters, index, server_entry(master));
        note(master_ids, index, NodeId::of_entry(master));
        for replica in replicas {
            let name = endpoint(replica, self.asked)?;
            let index = self.replicas.of(name, &mut self.map.replicas);
            note(others, index, server_entry(replica));
            note(other_ids, index, NodeId::of_entry(replica));
        }
        let servers = self.map.masters.len() + self.map.replicas.len();
        (servers <= MOST_SERVERS).then_some(())
    }

    pub(crate) fn map(mut self) -> SlotMap {
        let entries = by_name(&self.map, self.entries);
        let ids = by_name(&self.map, self.ids);
        // An ID of two servers is that of neither.
        let mut counts = BTreeMap::new();
        for entry in entries.values() {
            *counts.entry(entry.server.id).or_insert(0) += 1;
        }
        let is_one = |(_, entry): &(_, ServerEntry)| counts.get(&entry.server.id) == Some(&1);
        self.map.entries = entries.into_iter().filter(is_one).collect();
        self.map.ids = ids;
        self.map
    }
}

/// The items of the servers, by their names. A name with two has none.
fn by_name<T: Clone + PartialEq>(
    map: &SlotMap,
    items: [Vec<Option<T>>; 2],
) -> BTreeMap<Endpoint, T> {
    let mut all = BTreeMap::new();
    for (name, item) in map.servers().zip(items.into_iter().flatten()) {
        let before = all.entry(name.clone()).or_insert_with(|| item.clone());
        if *before != item {
            *before = None;
        }
    }
    let all = all.into_iter();
    all.filter_map(|(name, item)| Some((name, item?))).collect()
}

/// Notes an item of the entry of the server of this index. One that has two has none.
fn note<T: PartialEq>(all: &mut Vec<Option<T>>, index: usize, entry: Option<T>) {
    match all.get_mut(index) {
        Some(before) if *before != entry => *before = None,
        Some(_) => {}
        None => all.push(entry),
    }
}

/// One slot for each combination of masters, one of each Cluster, that own the same slots. If a Cluster has no server
/// for some slots, these count as slots of one more master.
pub(crate) fn combinations(maps: &[Arc<SlotMap>]) -> Vec<u16> {
    // No master changes between two of these.
    let bounds = maps.iter().flat_map(|map| {
        let ranges = map.ranges.iter();
        ranges.flat_map(|(last, (first, _))| [*first, last.saturating_add(1)])
    });
    let bounds = bounds.filter(|slot| *slot < SLOTS).chain([0]);
    let bounds: BTreeSet<u16> = bounds.collect();
    let mut known = BTreeSet::new();
    let masters = |slot| maps.iter().map(move |map| map.master(slot));
    let is_new = |slot: &u16| known.insert(masters(*slot).collect::<Vec<_>>());
    bounds.into_iter().filter(is_new).collect()
}

/// The message about a Cluster that has no server for some slots.
pub(crate) fn unserved(slots: usize) -> String {
    format!("{slots} of its {SLOTS} slots have no server: look at CLUSTER INFO")
}

#[cfg(test)]
pub(super) mod tests;
