//! The servers of a Redis Cluster: what each knows of slots, and what it answers to a command for a key that it does not
//! have.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::super::basics::{MS, Random};
use super::super::instance::Instance;
use crate::protocol::commands::resp::Reply;
use crate::protocol::commands::slots::{SLOTS, SlotMap, slot};

/// The names that are locked, and one that is used when all is quiet. Each is in a separate slot.
pub(super) const NAMES: [u8; 3] = [0, 1, 9];
/// The servers of a Cluster: two masters, and a replica of the first one.
pub(super) const SERVERS: usize = 3;
pub(super) const REPLICA: usize = 2;
/// By how much the clock of one master may be ahead of the other's: longer than most ttls.
const SKEW: u64 = 4_000 * MS;

/// The place of the name among [`NAMES`] whose slot this is.
pub(super) fn name_of(of: u16) -> Option<usize> {
    NAMES.iter().position(|name| slot(&[*name]) == of)
}

pub(super) fn address(cluster: usize, server: usize) -> (String, u16) {
    (format!("c{cluster}s{server}"), 1)
}

/// The name of the server in redirects, which maps do not have.
fn other_name(cluster: usize, server: usize) -> (String, u16) {
    (format!("n{cluster}s{server}"), 1)
}

/// The name in maps of the server that has this name.
pub(super) fn known_name((host, port): &(String, u16)) -> (String, u16) {
    (host.replace('n', "c"), *port)
}

/// The server at this address.
pub(super) fn server_at((host, _): &(String, u16)) -> usize {
    usize::from(host.as_bytes()[3] - b'0')
}

pub(super) struct Server {
    pub(super) here: Instance,
    pub(super) alive: bool,
    /// The owners of slots, in its opinion.
    pub(super) view: View,
    pub(super) masters: Masters,
    /// Where each name's slot is being moved to, and where from.
    pub(super) migrating: [Option<usize>; NAMES.len()],
    pub(super) importing: [Option<usize>; NAMES.len()],
    /// Whether the server is older than Redis 7: it redirects a command although it has some of its keys.
    pub(super) old: bool,
}

/// A master that was replaced, and is cut off from all but the first process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parted {
    pub(super) server: usize,
    /// Until when both are frozen; and when the master has noticed that it is cut off, and ends.
    pub(super) frozen: u64,
    pub(super) ends: u64,
}

pub(super) struct Cluster {
    pub(super) number: usize,
    pub(super) servers: Vec<Server>,
    /// The slot that is being moved.
    pub(super) moving: Option<usize>,
    pub(super) parted: Option<Parted>,
    /// The maps that servers have returned, by what those knew.
    maps: RefCell<BTreeMap<(View, Masters), Arc<SlotMap>>>,
}

/// The owner of each name's slot, and of all other slots of the first and the second shard.
type View = [usize; NAMES.len()];
type Masters = [usize; 2];

impl Cluster {
    pub(super) fn new(number: usize, random: &mut Random) -> Cluster {
        let view = NAMES.map(|_| random.pick(2));
        let old = random.chance(30);
        let server = |at| Server {
            // A replica has the clock of its master; the other master's is ahead.
            here: Instance::new(if at == 1 { SKEW } else { 1 }, at == REPLICA, random),
            alive: true,
            view,
            masters: [0, 1],
            migrating: [None; NAMES.len()],
            importing: [None; NAMES.len()],
            old,
        };
        Cluster {
            number,
            servers: (0..SERVERS).map(server).collect(),
            moving: None,
            parted: None,
            maps: RefCell::default(),
        }
    }

    /// The server that owns a name's slot, in its opinion. (A master that a replica has replaced keeps that opinion.)
    pub(super) fn owner(&self, name: usize) -> Option<usize> {
        (0..SERVERS).rev().find(|at| {
            let server = &self.servers[*at];
            server.alive && !server.here.is_replica && server.view[name] == *at
        })
    }

    /// The error of a server that does not carry out a command with these keys.
    pub(super) fn redirect(
        &self,
        server: usize,
        asking: bool,
        keys: &[&[u8]],
        t: u64,
    ) -> Option<String> {
        let slot = slot(keys.first()?);
        let name = name_of(slot)?;
        let here = &self.servers[server];
        let to = |word: &str, other: usize| {
            let (host, port) = other_name(self.number, other);
            Some(format!("-{word} {slot} {host}:{port}\r\n"))
        };
        let has = |key: &&&[u8]| {
            let mut all = here.here.store.keys(here.here.time(t));
            all.any(|(other, ..)| other == **key)
        };
        let found = || keys.iter().filter(has).count();
        let torn = || Some("-TRYAGAIN Multiple keys request during rehashing of slot\r\n".into());
        let owns = here.view[name] == server && !here.here.is_replica;
        match (owns, here.migrating[name], here.importing[name]) {
            (true, Some(_), _) if found() == keys.len() => None,
            (true, Some(_), _) if found() > 0 && !here.old => torn(),
            (true, Some(other), _) => to("ASK", other),
            (true, None, _) => None,
            (false, _, Some(_)) if asking && keys.len() > 1 && found() < keys.len() => torn(),
            (false, _, Some(_)) if asking => None,
            (false, ..) => to("MOVED", here.view[name]),
        }
    }

    /// The map that a server returns.
    pub(super) fn map(&self, server: usize) -> Arc<SlotMap> {
        let here = &self.servers[server];
        let mut maps = self.maps.borrow_mut();
        let map = maps.entry((here.view, here.masters));
        let map = map.or_insert_with(|| self.map_of(here).into());
        map.clone()
    }

    fn map_of(&self, here: &Server) -> SlotMap {
        let server = |at| {
            let (host, port) = address(self.number, at);
            let entry = [Reply::Bulk(host.into()), Reply::Int(port.into())];
            Reply::Array(entry.into())
        };
        let range = |slot: u16, owner: usize| {
            let slot = i64::from(slot);
            let mut range = vec![Reply::Int(slot), Reply::Int(slot), server(owner)];
            if owner == 0 && here.masters[0] == 0 {
                range.push(server(REPLICA));
            }
            Reply::Array(range)
        };
        // A slot that never moves keeps each shard on the map.
        let homes = (0..).zip(here.masters);
        let homes = homes.map(|(shard, master)| range(SLOTS - 1 - shard, master));
        let names = NAMES.iter().zip(here.view);
        let names = names.map(|(name, owner)| range(slot(&[*name]), owner));
        SlotMap::of(&Reply::Array(homes.chain(names).collect()), "").unwrap()
    }
}
