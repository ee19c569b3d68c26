//! One name for each server of a Redis Cluster, where the servers' maps name it differently (rule R43).
//!
//! Each server of a Cluster shows the others by IP address or by host name, as `cluster-preferred-endpoint-type` is set on
//! that server. Maps are compared by host and port, so they are brought to one naming first.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::protocol::commands::server_entry::ServerId;
use crate::protocol::commands::slots::{MOST_SERVERS, SlotMap};
use crate::protocol::mutants::{Mutant, mutant};
use crate::values::endpoint::Endpoint;

/// How long a name stays that no map uses, though maps use another one for that server.
const KEPT: Duration = Duration::from_secs(30);

/// The known name of each server, by its ID and IP address. A restarted server has its ID at another address, too.
#[derive(Debug, Default)]
pub(crate) struct ServerNames {
    known: BTreeMap<ServerId, KnownName>,
    /// The server of each name that a map used. No name is that of two servers.
    owners: BTreeMap<Endpoint, ServerId>,
}

#[derive(Debug)]
struct KnownName {
    name: Endpoint,
    /// When a map used it last.
    used: Instant,
    /// Whether a connection there failed.
    has_failed: bool,
}

impl ServerNames {
    /// The map with each server under its known name. A map whose servers would not all be different keeps its own names.
    pub(crate) fn unify(&mut self, mut map: SlotMap, now: Instant) -> SlotMap {
        if self.owners.len() > 4 * MOST_SERVERS {
            *self = ServerNames::default();
        }
        let mut names = BTreeMap::new();
        for (own, entry) in map.take_entries() {
            let known = match entry.is_named {
                true => self.learn(entry.server, &own, now),
                false => self
                    .known
                    .get(&entry.server)
                    .map(|known| known.name.clone()),
            };
            names.extend(known.map(|known| (own, known)));
        }
        if !mutant(Mutant::NamesAreServers) {
            map.rename(&names);
        }
        map
    }

    /// The known name of a server that a map names like this.
    fn learn(&mut self, server: ServerId, own: &Endpoint, now: Instant) -> Option<Endpoint> {
        let other = self.owners.get(own).filter(|owner| **owner != server);
        if let Some(other) = other.filter(|_| !mutant(Mutant::NameIsOfTwo)) {
            if self
                .known
                .get(other)
                .is_some_and(|known| known.name == *own)
            {
                self.known.remove(other);
            }
            self.owners.remove(own);
            return None;
        }
        self.owners.insert(own.clone(), server.clone());
        let new = || KnownName {
            name: own.clone(),
            used: now,
            has_failed: false,
        };
        let known = self.known.entry(server).or_insert_with(new);
        if known.name == *own {
            known.used = known.used.max(now);
        } else if known.has_failed || now >= known.used + KEPT {
            *known = new();
        }
        Some(known.name.clone())
    }

    /// The known name of a server that a redirect names like this.
    pub(crate) fn known_name(&self, own: Endpoint) -> Endpoint {
        let known = self.owners.get(&own).and_then(|id| self.known.get(id));
        known.map_or(own, |known| known.name.clone())
    }

    /// Notes whether a server can be reached by this name. If not, and if maps name that server differently, that name
    /// replaces it.
    pub(crate) fn is_reached(&mut self, name: &Endpoint, is_reached: bool) {
        let server = self.owners.get(name);
        let known = server.and_then(|server| self.known.get_mut(server));
        if let Some(known) = known.filter(|known| known.name == *name) {
            known.has_failed = !is_reached;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::fixtures::each_is_found;
    use crate::protocol::commands::resp::Reply;
    use crate::values::clock;

    /// A server's entry: its name, the last digits of its ID, and its IP address, if that is not its name.
    type Entry = (&'static str, &'static str, &'static str);

    const A: Entry = ("10.0.0.1", "a", "");
    const A_NAMED: Entry = ("ha", "a", "10.0.0.1");
    const B: Entry = ("10.0.0.2", "b", "");
    const B_NAMED: Entry = ("hb", "b", "10.0.0.2");

    /// A map that gives each of these servers a slot.
    fn map(entries: &[Entry]) -> SlotMap {
        let bulk = |text: &str| Reply::Bulk(text.into());
        let range = |(slot, (host, id, ip)): (usize, &Entry)| {
            let id = match *id {
                "" => String::new(),
                id => format!("{id:0>40}"),
            };
            let more = match *ip {
                "" => vec![],
                ip => vec![bulk("ip"), bulk(ip)],
            };
            let server = vec![bulk(host), Reply::Int(1), bulk(&id), Reply::Array(more)];
            let [first, last] = [(); 2].map(|()| Reply::Int(slot.try_into().unwrap()));
            Reply::Array(vec![first, last, Reply::Array(server)])
        };
        let ranges = entries.iter().enumerate().map(range).collect();
        SlotMap::of(&Reply::Array(ranges), "asked").unwrap()
    }

    /// The names that the last of these maps has in the end, each heard a millisecond after the one before it.
    fn names(maps: &[&[Entry]]) -> String {
        let (mut known, mut now) = (ServerNames::default(), clock::instant());
        let mut named = String::new();
        for entries in maps {
            now += Duration::from_millis(1);
            let map = known.unify(map(entries), now);
            let slots = 0..u16::try_from(entries.len()).unwrap();
            let each = slots.map(|slot| map.master(slot).unwrap().0.clone());
            named = each.collect::<Vec<_>>().join(" ");
        }
        named
    }

    const TABLE: &[(&[&[Entry]], &str)] = &[
        (&[&[A, B]], "10.0.0.1 10.0.0.2"),
        // The first name that was heard is that of all maps.
        (&[&[A, B], &[A_NAMED, B_NAMED]], "10.0.0.1 10.0.0.2"),
        (&[&[A_NAMED, B_NAMED], &[A, B]], "ha hb"),
        (&[&[A, B_NAMED], &[B, A_NAMED]], "hb 10.0.0.1"),
        // Without a name of its own, the server is named by another map.
        (
            &[&[A, B], &[("?", "a", "10.0.0.1"), B]],
            "10.0.0.1 10.0.0.2",
        ),
        (&[&[("?", "a", "10.0.0.1")], &[A]], "10.0.0.1"),
        // One ID at two addresses: it was started elsewhere.
        (&[&[A, B], &[("10.0.0.9", "a", ""), B]], "10.0.0.9 10.0.0.2"),
        (&[&[A, B], &[("ha", "a", "10.0.0.9"), B]], "ha 10.0.0.2"),
        // Another server at that address.
        (&[&[A, B], &[("hc", "c", "10.0.0.1"), B]], "hc 10.0.0.2"),
        // No ID, or none that servers have; no IP address.
        (&[&[("10.0.0.1", "", "")], &[("ha", "", "10.0.0.1")]], "ha"),
        (
            &[&[("10.0.0.1", "x", "")], &[("ha", "x", "10.0.0.1")]],
            "ha",
        ),
        (&[&[A], &[("ha", "a", "")]], "ha"),
        // Two servers in one map have one ID, or one server has two.
        (&[&[A, B], &[A_NAMED, ("hb", "a", "10.0.0.2")]], "ha hb"),
        (&[&[A], &[A_NAMED, ("ha", "b", "10.0.0.1")]], "ha ha"),
        // A name that has become that of another server.
        (
            &[&[A_NAMED], &[("ha", "b", "10.0.0.2")], &[A], &[B]],
            "10.0.0.2",
        ),
        // Two servers of one map are never given one name.
        (&[&[A_NAMED, B], &[A, ("ha", "", "")]], "10.0.0.1 ha"),
    ];

    fn wrong() -> Vec<String> {
        let wrong = TABLE
            .iter()
            .filter(|(maps, expected)| names(maps) != *expected);
        wrong
            .map(|(maps, _)| format!("{maps:?}: {}", names(maps)))
            .collect()
    }

    #[test]
    fn a_server_has_one_name_in_all_maps_and_two_servers_have_two() {
        assert_eq!(wrong(), Vec::<String>::new());
    }

    #[test]
    fn each_mutant_of_it_is_found() {
        each_is_found(
            &[
                Mutant::NamesAreServers,
                Mutant::NameIsOfTwo,
                Mutant::TwoOfOneName,
            ],
            wrong,
        );
    }

    #[test]
    fn a_name_that_is_no_longer_used_or_leads_nowhere_is_replaced() {
        let (now, name) = (clock::instant(), |host: &str| (host.to_owned(), 1));
        let host = |known: &mut ServerNames, entry, at| {
            let map = known.unify(map(&[entry]), at);
            map.master(0).unwrap().0.clone()
        };
        let mut known = ServerNames::default();
        assert_eq!(host(&mut known, A, now), "10.0.0.1");
        assert_eq!(host(&mut known, A_NAMED, now + KEPT / 2), "10.0.0.1");
        assert_eq!(known.known_name(name("ha")), name("10.0.0.1"));
        assert_eq!(known.known_name(name("hb")), name("hb"));
        assert_eq!(host(&mut known, A, now + KEPT / 2), "10.0.0.1");
        assert_eq!(host(&mut known, A_NAMED, now + KEPT), "10.0.0.1");
        assert_eq!(host(&mut known, A_NAMED, now + 2 * KEPT), "ha");
        assert_eq!(known.known_name(name("10.0.0.1")), name("ha"));
        // A failure of the other name means nothing.
        known.is_reached(&name("10.0.0.1"), false);
        assert_eq!(host(&mut known, A, now + 2 * KEPT), "ha");
        known.is_reached(&name("ha"), false);
        assert_eq!(host(&mut known, A_NAMED, now + 2 * KEPT), "ha");
        assert_eq!(host(&mut known, A, now + 2 * KEPT), "10.0.0.1");
    }
}
