//! The map of a Redis Cluster as its servers report it: which of them is believed about a slot, and which are asked next
//! (rules R43, R45, R64).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::protocol::cluster::cluster_answers::{id_at, slot_at};
use crate::protocol::cluster::cluster_votes::{About, AskingOrder};
use crate::protocol::cluster::server_names::ServerNames;
use crate::protocol::commands::node_id::NodeId;
use crate::protocol::commands::slots::SlotMap;
use crate::protocol::discovery::found_master::REDIRECT_BELIEVED;
use crate::protocol::mutants::{Mutant, mutant};
use crate::values::endpoint::{Endpoint, is_at};

/// For this long questions go to the same servers.
const TURN: Duration = Duration::from_millis(100);
/// A server that has lost a slot reports it before others do: for this time their claims that it owns the slot are
/// ignored.
const BELIEVED: Duration = REDIRECT_BELIEVED;

/// The state learnt from a Cluster's servers.
#[derive(Debug, Default)]
pub(crate) struct ClusterMap {
    map: Option<Arc<SlotMap>>,
    /// When the server that returned the map was asked.
    asked: Option<Instant>,
    /// Single slots that servers reported to have moved, since then or a short time before.
    moved: BTreeMap<u16, Moved>,
    pub(crate) names: ServerNames,
    /// The server that is asked first, and since when it is.
    turn: usize,
    turned: Option<Instant>,
}

/// A report of the server at `from`, at this time, that the one at `to` owns a slot.
#[derive(Debug)]
struct Moved {
    from: String,
    to: Endpoint,
    at: Instant,
}

impl Moved {
    /// Whether a map that was asked for then is corrected: it gives the slot to the server that has lost it, or is older
    /// than the loss.
    fn corrects(&self, master: Option<&Endpoint>, asked: Instant) -> bool {
        let is_lost = master.is_some_and(|master| is_at(master, &self.from));
        let is_back = mutant(Mutant::LostSlotIsBack);
        // A report since then is not in the map.
        let is_known = is_lost && !is_back || self.at > asked || mutant(Mutant::MovedBeatsMap);
        self.counts(asked) && is_known
    }

    /// Whether it counts for maps that were asked for then.
    fn counts(&self, asked: Instant) -> bool {
        self.at + BELIEVED > asked || mutant(Mutant::MovedForEver)
    }
}

/// The servers to ask where a slot is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ToAsk {
    /// No others are known yet.
    Seeds,
    /// These, and behind them the seed of this number, modulo their count, in case that none of these can be reached: its
    /// name may lead to one of these, which must not have two votes.
    Servers(AskingOrder, usize),
}

impl ClusterMap {
    pub(crate) fn map(&self) -> Option<&Arc<SlotMap>> {
        self.map.as_ref()
    }

    /// The ID of the server that is meant by this name, where the map has one.
    pub(crate) fn meant(&self, server: &Endpoint) -> Option<NodeId> {
        self.map.as_ref()?.id(server)
    }

    /// The ID of the server at this address, where the map has one.
    pub(crate) fn id_at(&self, address: &str) -> Option<NodeId> {
        self.map.as_ref().and_then(|map| id_at(map, address))
    }

    /// Records at this time that the server at `from` reported `to` as the slot's owner. Returns whether the map has
    /// changed: it gave the slot to another server.
    pub(crate) fn slot_moved(&mut self, slot: u16, from: &str, to: Endpoint, at: Instant) -> bool {
        let map = self.map.as_mut();
        let Some(map) = map.filter(|_| !mutant(Mutant::MovedIsForgotten)) else {
            return false;
        };
        let is_news = map.master(slot) != Some(&to);
        if is_news {
            Arc::make_mut(map).set_owner(slot, to.clone());
        }
        let from = from.to_owned();
        // (Also where the map shows it: the server is believed from its last report on.)
        self.moved.insert(slot, Moved { from, to, at });
        is_news
    }

    /// The slot by which a place is asked for from now on that leads to the server at this address, if that has lost the slot
    /// by which it was asked for, and has others: the place keeps its server.
    pub(crate) fn stays(&self, own: u16, address: &str) -> Option<u16> {
        let map = self.map.as_ref()?;
        let has_it = map.master(own).is_some_and(|one| is_at(one, address));
        match has_it {
            true => None,
            false => slot_at(map, address),
        }
    }

    /// When the server that lost the slot to this one reported it, if others may not have learnt it yet; and its
    /// address.
    pub(crate) fn moved_at(
        &self,
        slot: u16,
        is_to: impl Fn(&Endpoint) -> bool,
    ) -> Option<(Instant, String)> {
        let moved = self.moved.get(&slot).filter(|moved| is_to(&moved.to));
        moved.map(|moved| (moved.at, moved.from.clone()))
    }

    /// The master of a slot by a server's map, which was asked for then, corrected by what others reported lately.
    pub(crate) fn master<'a>(
        &'a self,
        map: &'a SlotMap,
        slot: u16,
        asked: Instant,
    ) -> Option<&'a Endpoint> {
        let master = map.master(slot);
        let moved = self.moved.get(&slot);
        let moved = moved.filter(|moved| moved.corrects(master, asked));
        moved.map(|moved| &moved.to).or(master)
    }

    /// Learns a map that was asked for then. Returns whether it differs from the one before.
    pub(crate) fn learn(&mut self, mut map: Arc<SlotMap>, asked: Instant) -> bool {
        if self.asked.is_some_and(|before| asked <= before) {
            return false;
        }
        self.moved.retain(|_, moved| moved.counts(asked));
        for (slot, moved) in &self.moved {
            if moved.corrects(map.master(*slot), asked) {
                Arc::make_mut(&mut map).set_owner(*slot, moved.to.clone());
            }
        }
        let has_changed = self.map.as_ref() != Some(&map);
        (self.map, self.asked) = (Some(map), Some(asked));
        has_changed
    }

    /// The servers to ask where a slot is: the seeds first, and once others are known, some of those in turn. `about`: the
    /// master that is to be confirmed.
    pub(crate) fn next_to_ask(&mut self, about: Option<About<'_>>, now: Instant) -> ToAsk {
        let Some(map) = &self.map else {
            return ToAsk::Seeds;
        };
        // Questions at the same time go to the same servers.
        if self.turned.is_none_or(|last| now >= last + TURN) {
            (self.turn, self.turned) = (self.turn.wrapping_add(1), Some(now));
        }
        ToAsk::Servers(AskingOrder::of(map, about, self.turn), self.turn)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::fixtures::each_is_found;
    use crate::values::clock;

    /// A map of two shards, the first at this address.
    fn map(first: &str) -> Arc<SlotMap> {
        let mut map = SlotMap::default();
        (0..10).for_each(|slot| map.set_owner(slot, (first.to_owned(), 1)));
        (10..20).for_each(|slot| map.set_owner(slot, ("c".to_owned(), 1)));
        map.into()
    }

    fn wrong() -> Vec<String> {
        let start = clock::instant();
        let moved = start + Duration::from_millis(100);
        let mut known = ClusterMap::default();
        known.learn(map("a"), start);
        let has_moved = known.slot_moved(3, "a:1", ("b".into(), 1), moved);
        if !has_moved {
            return vec!["the report is forgotten".into()];
        }
        let mut wrong = Vec::new();
        // Many operations are redirected like that at the same time.
        if known.slot_moved(3, "a:1", ("b".into(), 1), moved) {
            wrong.push("a second report changes the map".into());
        }
        let is_b = |to: &Endpoint| to.0 == "b";
        assert_eq!(known.moved_at(3, is_b), Some((moved, "a:1".into())));
        assert_eq!(known.moved_at(4, is_b), None);
        // Asked before that, right after it, and much later.
        for (asked, first, expected) in [
            (start + BELIEVED / 20, "a", ["b", "a"]),
            (moved - BELIEVED / 100, "x", ["b", "x"]),
            (moved + BELIEVED / 2, "a", ["b", "a"]),
            // The slot has moved on.
            (moved + BELIEVED * 3 / 4, "x", ["x", "x"]),
            (moved + BELIEVED, "a", ["a", "a"]),
        ] {
            let (a_map, slots) = (map(first), [3, 4]);
            let by_server = slots.map(|slot| known.master(&a_map, slot, asked).unwrap().0.clone());
            known.learn(a_map.clone(), asked);
            let learnt = known.map().unwrap();
            let found = slots.map(|slot| learnt.master(slot).unwrap().0.clone());
            if found != expected || by_server != expected {
                wrong.push(format!("{first}, {:?}: {found:?}", asked - start));
            }
            assert_eq!(learnt.master(12).unwrap().0, "c");
        }
        if known.moved_at(3, is_b).is_some() {
            wrong.push("the report is kept".into());
        }
        // One server is not asked about itself, unless it is the only one.
        for (address, expected) in [(None, 2), (Some("a:1"), 1), (Some("b:1"), 2)] {
            let about = address.map(|address| About {
                address,
                lately: true,
            });
            let ToAsk::Servers(order, _) = known.next_to_ask(about, moved) else {
                panic!("they are known");
            };
            if order.servers.len() != expected {
                wrong.push(format!("{about:?}: {order:?}"));
            }
        }
        wrong
    }

    #[test]
    fn a_server_that_has_lost_a_slot_is_believed_before_others_know() {
        assert_eq!(wrong(), Vec::<String>::new());
    }

    #[test]
    fn each_mutant_of_it_is_found() {
        each_is_found(
            &[
                Mutant::LostSlotIsBack,
                Mutant::AskedAboutItself,
                Mutant::MovedBeatsMap,
                Mutant::MovedIsForgotten,
                Mutant::MovedForEver,
            ],
            wrong,
        );
    }

    #[test]
    fn servers_are_asked_in_turn_and_those_at_the_same_time_ask_the_same() {
        let start = clock::instant();
        let mut known = ClusterMap::default();
        assert_eq!(known.next_to_ask(None, start), ToAsk::Seeds);
        let mut map = SlotMap::default();
        (0..5).for_each(|slot| map.set_owner(slot, (format!("h{slot}"), 1)));
        known.learn(map.into(), start);
        let mut asked = |at: u32| {
            let now = start + at * Duration::from_millis(1);
            let about = About {
                address: "h2:1",
                lately: true,
            };
            let ToAsk::Servers(order, turn) = known.next_to_ask(Some(about), now) else {
                panic!("they are known");
            };
            let hosts: Vec<String> = order.servers.into_iter().map(|one| one.0).collect();
            (hosts.concat(), order.first, turn)
        };
        assert_eq!(asked(0), ("h1h3h4h0".into(), 3, 1));
        assert_eq!(asked(99), ("h1h3h4h0".into(), 3, 1));
        assert_eq!(asked(100), ("h3h4h0h1".into(), 3, 2));
        assert_eq!(asked(200), ("h4h0h1h3".into(), 3, 3));
    }
}
