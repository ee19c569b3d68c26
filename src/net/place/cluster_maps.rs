//! The answers of a Redis Cluster's servers about a slot.

use std::sync::Arc;
use std::time::Instant;

use crate::net::place::asker::Told;
use crate::net::place::server_question::{NamedAddress, Opinions};
use crate::protocol::commands::slots::SlotMap;
use crate::protocol::node::cluster_votes::{About, Votes, is_at};
use crate::protocol::node::directory_questions::Heard;

/// The answer of each server so far, and when it was asked. `None`: there is none yet.
pub(super) type HeardMaps = Vec<Option<(Told<Arc<SlotMap>>, Instant)>>;

/// The answers of a Cluster's servers about a slot.
pub(crate) struct Maps {
    pub(crate) opinions: Opinions,
    /// The map of each server that returned one, and when it was asked.
    maps: Vec<(usize, Instant, Arc<SlotMap>)>,
}

impl Maps {
    pub(super) fn of(opinions: Opinions, heard: &[Heard<'_, Told<Arc<SlotMap>>>]) -> Maps {
        let map = |(server, heard): (usize, &Heard<'_, Told<Arc<SlotMap>>>)| match heard {
            Heard::Answer(Ok(map), asked) => Some((server, *asked, map.clone())),
            _ => None,
        };
        Maps {
            opinions,
            maps: heard.iter().enumerate().filter_map(map).collect(),
        }
    }

    /// The map of the first server that names the master that is believed.
    pub(super) fn believed_map(&self) -> Option<&(usize, Instant, Arc<SlotMap>)> {
        let server = self.opinions.believed()?.server;
        self.maps.iter().find(|(of, ..)| *of == server)
    }

    pub(super) fn first_map(&self) -> Option<&(usize, Instant, Arc<SlotMap>)> {
        self.maps.first()
    }

    /// Slots of the server at this address, by any of the maps.
    pub(super) fn slots_of(&self, address: &str) -> Vec<u16> {
        let maps = self.maps.iter();
        let slots = maps.filter_map(|(.., map)| slot_at(map, address));
        let mut slots: Vec<u16> = slots.collect();
        slots.sort_unstable();
        slots.dedup();
        slots
    }

    /// The opinions about another slot.
    pub(super) fn about(&self, read: impl Fn(&SlotMap) -> NamedAddress) -> Opinions {
        let maps = self.maps.iter();
        let answers = maps.map(|(server, asked, map)| (*server, read(map), *asked));
        self.opinions.with(answers)
    }

    /// Whether the servers that name this master, in these opinions, confirm it. `known`: the map from before.
    pub(super) fn confirm(
        &self,
        opinions: &Opinions,
        about: About<'_>,
        known: Option<&SlotMap>,
    ) -> bool {
        let map_of = |server| self.maps.iter().find(|(of, ..)| *of == server);
        let by = opinions.namers(about.address);
        let by = by.filter_map(|(server, at)| map_of(server).map(|(.., map)| (at, &**map)));
        let votes = Votes {
            about,
            by: by.collect(),
            asked: opinions.servers(),
        };
        votes.confirm(known)
    }
}

/// A slot of the server at this address.
pub(super) fn slot_at(map: &SlotMap, address: &str) -> Option<u16> {
    let is_its = |slot: &u16| map.master(*slot).is_some_and(|one| is_at(one, address));
    map.shards().find(is_its)
}
