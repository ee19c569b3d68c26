//! The answers of a Redis Cluster's servers about the master of a slot, and what they mean (rule R43).

use std::sync::Arc;
use std::time::Instant;

use crate::errors::cause::Cause;
use crate::errors::text::ShownAddress;
use crate::protocol::cluster::cluster_votes::{About, MasterVotes};
use crate::protocol::commands::node_id::NodeId;
use crate::protocol::commands::slots::SlotMap;
use crate::protocol::discovery::directory_questions::ReceivedAnswer;
use crate::protocol::discovery::found_master::DirectoryAnswer;
use crate::protocol::discovery::master_answers::Belief;
use crate::protocol::discovery::opinions::{NamedAddress, Opinions, Unknown};
use crate::protocol::mutants::{Mutant, mutant};
use crate::settings::url;
use crate::values::endpoint::{Endpoint, is_at};

/// A server's map, or why there is none.
pub(crate) type MapAnswer = Result<Arc<SlotMap>, Cause>;
/// The answer of each server so far, and when it was asked. `None`: there is none yet.
pub(crate) type MapAnswers = Vec<Option<(MapAnswer, Instant)>>;

/// How many of a server's ranges are looked at in each map.
const RANGES: usize = 16;

/// The answers of a Cluster's servers about a slot. `A`: a master's address.
pub(crate) struct Maps<A> {
    pub(crate) opinions: Opinions<A>,
    /// The map of each server that returned one, and when it was asked.
    maps: Vec<(usize, Instant, Arc<SlotMap>)>,
}

/// The map and the names by which answers are judged.
#[derive(Clone, Copy)]
pub(crate) struct Known<'a, A> {
    /// The map from before.
    pub(crate) map: Option<&'a SlotMap>,
    /// The address of a server that a map names.
    pub(crate) addr: &'a dyn Fn(&Endpoint) -> A,
}

/// The address of a master, as a map has it.
pub(crate) fn named<A>(
    master: Option<&Endpoint>,
    addr: impl FnOnce(&Endpoint) -> A,
) -> NamedAddress<A> {
    match master {
        Some(master) if url::is_host(&master.0) => Ok(addr(master)),
        Some(_) => Err(Unknown::Failed(no_map())),
        None => Err(Unknown::Name),
    }
}

pub(crate) fn no_map() -> Cause {
    Cause::Garbage("not the map of a Redis Cluster".into())
}

impl<A: Clone + PartialEq + ShownAddress> Maps<A> {
    pub(crate) fn of(opinions: Opinions<A>, heard: &[ReceivedAnswer<'_, MapAnswer>]) -> Maps<A> {
        let map = |(server, heard): (usize, &ReceivedAnswer<'_, MapAnswer>)| match heard {
            ReceivedAnswer::Answer(Ok(map), asked) => Some((server, *asked, map.clone())),
            _ => None,
        };
        Maps {
            opinions,
            maps: heard.iter().enumerate().filter_map(map).collect(),
        }
    }

    /// These answers, if they may be those of one Cluster. Otherwise none counts: two programs that hear another server first
    /// would use another Cluster. They are those of servers that were given: there is no map yet.
    pub(crate) fn of_one_cluster(self) -> Maps<A> {
        let Some(cause) = self.two_clusters() else {
            return self;
        };
        let failed = |(server, asked, _): &(usize, Instant, _)| {
            (*server, Err(Unknown::Failed(cause.clone())), *asked)
        };
        Maps {
            opinions: self.opinions.with(self.maps.iter().map(failed)),
            maps: Vec::new(),
        }
    }

    /// Why the answers do not count, if two of them are those of two Clusters.
    fn two_clusters(&self) -> Option<Cause> {
        let mut others: Vec<_> = self.maps.iter().collect();
        others.retain(|(.., map)| map.has_ids());
        let mut own: Vec<_> = others.splice(..others.len().min(1), []).collect();
        // Servers of one Cluster that share none with each other may share some with a third.
        loop {
            let shares = |map: &SlotMap| own.iter().any(|(.., own)| own.shares_any(map));
            let more: Vec<_> = others.extract_if(.., |(.., map)| shares(map)).collect();
            match more.is_empty() {
                true => break,
                false => own.extend(more),
            }
        }
        let (one, other) = own.iter().find_map(|(one, _, map)| {
            let (other, ..) = others.iter().find(|(.., other)| map.is_of_another(other))?;
            Some((*one, *other))
        })?;
        let (one, other) = (self.opinions.server(one)?, self.opinions.server(other)?);
        let text = format!(
            "{one} and {other} name no server in common: they are of two Redis Clusters (give the addresses of one), or of one, \
             and do not reach each other (let them, or leave out the one that the CLUSTER NODES of the other marks as failed)"
        );
        (!mutant(Mutant::TwoClustersAreOne)).then_some(Cause::NoMaster(text, false))
    }

    /// The map to learn, and when it was asked for: that of the first server that names the master that is believed.
    pub(crate) fn to_learn(&self, known: Option<&SlotMap>) -> Option<(&Arc<SlotMap>, Instant)> {
        let server = self.opinions.believed().map(|named| named.server);
        let is_believed = |(of, ..): &&(usize, _, _)| Some(*of) == server;
        let believed = self.maps.iter().find(is_believed);
        // One server's map is better than none: each server that it names is asked for before it is used.
        let first = || self.maps.first().filter(|_| known.is_none());
        let (_, asked, map) = believed.or_else(first)?;
        Some((map, *asked))
    }

    /// Whether these answers are all that the caller waits for. `about`: the master that is to be confirmed.
    pub(crate) fn will_do(
        &self,
        about: Option<About<'_>>,
        known: Known<'_, A>,
        now: Instant,
    ) -> bool {
        match about {
            Some(about) => self.is_decided(about, known, now),
            None => self.is_confirmed(known),
        }
    }

    /// Whether the answers of the first servers that were asked are enough, so that the others are not asked. A master is
    /// connected to that most of them name, and is confirmed afterwards.
    pub(crate) fn is_enough(
        &self,
        about: Option<About<'_>>,
        known: Known<'_, A>,
        now: Instant,
    ) -> bool {
        match about {
            Some(about) => self.is_decided(about, known, now),
            None => self.opinions.believed().is_some_and(|named| named.by_most),
        }
    }

    /// Whether acquires are sent to the master that is believed before it was asked about once more. A server whose map was
    /// corrected by the answer of the one that has lost the slot counts among those that name the master. So that answer is
    /// enough where no map names a third one, until the servers are asked about the master: then none is corrected.
    pub(crate) fn is_confirmed(&self, known: Known<'_, A>) -> bool {
        let named = self.opinions.believed().filter(|named| named.by_most);
        named.is_some_and(|named| {
            let about = About {
                address: &named.addr.shown(),
                lately: false,
            };
            self.confirm(&self.opinions, about, known.map)
        })
    }

    /// Whether answers about a master are enough. (Another one has to be named by most of those that were asked.)
    fn is_decided(&self, about: About<'_>, known: Known<'_, A>, now: Instant) -> bool {
        let Belief::Named { by_most, .. } = self.opinions.belief() else {
            return false;
        };
        let answer = self.answer_about(about, known, now);
        answer.is_some_and(|(answer, _)| answer.result.is_ok() || by_most)
    }

    /// Whether the server that was asked about still is the master of this slot, or, by most of the answers, of another one,
    /// which is returned if the slot has moved: it replaces the slot. `None` if the answers do not decide it. `asked`: when the
    /// question began.
    pub(crate) fn answer_about(
        &self,
        about: About<'_>,
        known: Known<'_, A>,
        asked: Instant,
    ) -> Option<(DirectoryAnswer, Option<u16>)> {
        let address = about.address;
        let is_there = |addr: &A| match addr.shown() {
            named if named == address => Ok(()),
            named => Err(Cause::MasterReplaced(named)),
        };
        let confirms = |opinions: &Opinions<A>| self.confirm(opinions, about, known.map);
        let mut answer = DirectoryAnswer::of(&self.opinions.belief(), asked, is_there);
        let is_ok = answer.as_ref().is_some_and(|answer| answer.result.is_ok());
        if is_ok && confirms(&self.opinions) {
            return answer.map(|answer| (answer, None));
        }
        // The server may own other slots, also where servers do not agree yet on whether it has got or lost this one, or where
        // those that give it this one are few of the masters.
        answer = answer.filter(|_| !is_ok);
        let mut is_decided = !is_ok;
        // Which servers those were that did not confirm it. A map may have the slots scattered, and the same servers do not
        // confirm it by the next one.
        let mut few = None;
        for other in self.slots_of(address) {
            let opinions = self.about(|map| named(map.master(other), known.addr));
            match opinions.belief() {
                Belief::Named { master, at, .. }
                    if master.shown() == address || mutant(Mutant::FewGiveOtherSlots) =>
                {
                    let has_lost = answer.as_ref().map(|answer| answer.at);
                    let (answer, at) = (Ok(()), has_lost.map_or(at, |lost| at.min(lost)));
                    let by: Vec<usize> = opinions.namers(address).map(|(one, _)| one).collect();
                    if few.as_ref() != Some(&by) && confirms(&opinions) {
                        let answer = DirectoryAnswer { result: answer, at };
                        return Some((answer, has_lost.map(|_| other)));
                    }
                    (few, is_decided) = (Some(by), false);
                }
                Belief::Named { .. } => {}
                Belief::Silence { .. } | Belief::Unknown => is_decided = false,
            }
        }
        answer.filter(|_| is_decided).map(|answer| (answer, None))
    }

    /// Slots of the server at this address, by any of the maps: of each that begins one of its first ranges. Servers that do
    /// not agree on one may agree on the next.
    fn slots_of(&self, address: &str) -> Vec<u16> {
        let maps = self.maps.iter();
        let slots = maps.flat_map(|(.., map)| {
            let ranges = map.first_slots_of(|master| is_at(master, address));
            ranges.take(RANGES)
        });
        let mut slots: Vec<u16> = slots.collect();
        slots.sort_unstable();
        slots.dedup();
        slots
    }

    /// The opinions about another slot.
    fn about(&self, read: impl Fn(&SlotMap) -> NamedAddress<A>) -> Opinions<A> {
        let maps = self.maps.iter();
        let answers = maps.map(|(server, asked, map)| (*server, read(map), *asked));
        self.opinions.with(answers)
    }

    /// Whether the servers that name this master, in these opinions, confirm it. `known`: the map from before.
    fn confirm(&self, opinions: &Opinions<A>, about: About<'_>, known: Option<&SlotMap>) -> bool {
        let map_of = |server| self.maps.iter().find(|(of, ..)| *of == server);
        let meant = |map: &SlotMap| id_at(map, about.address);
        // A server that was given is asked whatever its ID is. One of another Cluster may name the address, too.
        let means_it = |map: &SlotMap| match known.and_then(meant).zip(meant(map)) {
            Some((known, named)) => known == named || mutant(Mutant::AnyIdConfirms),
            None => true,
        };
        let by = opinions.namers(about.address);
        let by = by.filter_map(|(server, at)| map_of(server).map(|(.., map)| (at, &**map)));
        let by = by.filter(|(_, map)| means_it(map));
        let votes = MasterVotes {
            about,
            by: by.collect(),
            asked: opinions.servers(),
        };
        votes.confirm(known)
    }
}

/// The ID of the server at this address, where the map has one.
pub(crate) fn id_at(map: &SlotMap, address: &str) -> Option<NodeId> {
    let at = |server: &&Endpoint| is_at(server, address);
    map.servers().find(at).and_then(|server| map.id(server))
}

/// A slot of the server at this address.
pub(crate) fn slot_at(map: &SlotMap, address: &str) -> Option<u16> {
    let mut slots = map.first_slots_of(|master| is_at(master, address));
    slots.next()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::proof::fixtures::each_is_found;
    use crate::protocol::commands::resp::Reply;
    use crate::values::clock;

    /// The map of two shards, as a server reports it whose slots from this one on have moved to the second.
    fn map(from: u16) -> Arc<SlotMap> {
        let mut map = SlotMap::default();
        (0..from).for_each(|slot| map.set_owner(slot, ("a".into(), 1)));
        (from..20).for_each(|slot| map.set_owner(slot, ("b".into(), 1)));
        map.into()
    }

    /// The answers of three servers about this slot.
    fn answers(maps: &[MapAnswer], slot: u16, now: Instant) -> Maps<Endpoint> {
        let heard: Vec<_> = maps
            .iter()
            .map(|map| ReceivedAnswer::Answer(map, now))
            .collect();
        let read = |map: &Arc<SlotMap>, _| named(map.master(slot), Endpoint::clone);
        let servers = ["a:1", "b:1", "c:1"].iter().take(maps.len());
        let servers = servers.map(|server| (*server).to_owned()).collect();
        let time = Duration::from_secs(1);
        Maps::of(
            Opinions::of((servers, 0), (now, time), &heard, read),
            &heard,
        )
    }

    const KNOWN: Known<'_, Endpoint> = Known {
        map: None,
        addr: &|endpoint| (endpoint.0.to_owned(), endpoint.1),
    };

    /// Asks for the server `a` by its slot 10. Returns the slot by which it is asked for then, and whether it is there.
    fn confirmed(maps: &[Arc<SlotMap>]) -> (u16, Option<bool>) {
        let now = clock::instant();
        let about = About {
            address: "a:1",
            lately: true,
        };
        let maps: Vec<MapAnswer> = maps.iter().cloned().map(Ok).collect();
        let word = answers(&maps, 10, now).answer_about(about, KNOWN, now);
        let stays = word.as_ref().and_then(|(_, stays)| *stays);
        (
            stays.unwrap_or(10),
            word.map(|(word, _)| word.result.is_ok()),
        )
    }

    fn wrong() -> Vec<String> {
        let mut wrong = Vec::new();
        for (maps, expected) in [
            ([map(20), map(20), map(0)], (10, Some(true))),
            ([map(5), map(5), map(5)], (0, Some(true))),
            ([map(5), map(5), map(0)], (0, Some(true))),
            // One alone gives it other slots: it was replaced.
            ([map(5), map(0), map(0)], (10, Some(false))),
            ([map(0), map(0), map(0)], (10, Some(false))),
        ] {
            let found = confirmed(&maps);
            if found != expected {
                wrong.push(format!("{found:?}: {maps:?}"));
            }
        }
        wrong
    }

    /// One that has learnt of a failover late may be the first to answer.
    #[test]
    fn a_server_that_lost_a_slot_stays_by_another_one_that_most_give_it() {
        assert_eq!(wrong(), Vec::<String>::new());
        each_is_found(&[Mutant::FewGiveOtherSlots], wrong);
    }

    /// The servers learn of a slot that moves one after the other.
    #[test]
    fn a_server_is_confirmed_by_its_other_slots_while_servers_disagree_on_one() {
        for (maps, expected) in [
            ([map(20), map(5)], Some(true)),
            ([map(5), map(20)], Some(true)),
            // One gives it no slot.
            ([map(20), map(0)], None),
            ([map(0), map(20)], None),
        ] {
            assert_eq!(confirmed(&maps), (10, expected), "{maps:?}");
        }
    }

    /// The map of servers whose IDs are of these digits, each with five slots; their hosts are `a`, `b` and so on.
    fn with_ids(ids: &str) -> MapAnswer {
        let servers = ids.chars().zip((0..).zip('a'..));
        let ranges = servers.map(|(id, (at, host))| {
            let id = id.to_string().repeat(40);
            let [host, id] = [host.to_string(), id].map(|text| Reply::Bulk(text.into()));
            let server = Reply::Array(vec![host, Reply::Int(1), id]);
            Reply::Array(vec![Reply::Int(5 * at), Reply::Int(5 * at + 4), server])
        });
        let map = SlotMap::of(&Reply::Array(ranges.collect()), "");
        Ok(map.unwrap().into())
    }

    #[test]
    fn answers_of_given_servers_count_if_they_are_of_one_cluster() {
        let now = clock::instant();
        let wrong = || {
            let rows = [
                (["12", "12", "12"], None),
                (["12", "13", "42"], None),
                (["12", "12", "34"], Some(("a:1", "c:1"))),
                (["12", "34", "12"], Some(("a:1", "b:1"))),
                (["14", "12", "35"], Some(("a:1", "c:1"))),
            ];
            let wrong = rows.into_iter().filter(|(ids, expected)| {
                let maps = ids.map(with_ids);
                let answers = answers(&maps, 7, now).of_one_cluster();
                let learns = answers.to_learn(None).is_some();
                let named = answers.opinions.names_any();
                let each = answers.opinions.each();
                let shows = |words: [&str; 2]| {
                    each.iter().all(|(_, why)| match why {
                        Err(Unknown::Failed(cause)) => {
                            let text = cause.to_string();
                            words.iter().all(|word| text.contains(word))
                        }
                        _ => false,
                    })
                };
                match expected {
                    None => !learns || !named,
                    Some((one, other)) => learns || named || !shows([one, other]),
                }
            });
            wrong.collect::<Vec<_>>()
        };
        assert_eq!(wrong(), []);
        each_is_found(&[Mutant::TwoClustersAreOne], wrong);
    }

    /// Another Cluster may have the same addresses, and one of its servers may be at one that was given.
    #[test]
    fn a_server_that_means_another_one_at_the_address_confirms_no_master() {
        let now = clock::instant();
        let wrong = || {
            let map = with_ids("1234").unwrap();
            let rows = [
                (["1234", "1234"], Some(true)),
                (["1234", "5678"], None),
                (["5678", "5678"], None),
                (["1234", "1534"], Some(true)),
            ];
            let wrong = rows.into_iter().filter(|(ids, expected)| {
                let maps = ids.map(with_ids);
                let heard: Vec<_> = maps
                    .iter()
                    .map(|map| ReceivedAnswer::Answer(map, now))
                    .collect();
                let read = |map: &Arc<SlotMap>, _| named(map.master(0), Endpoint::clone);
                let servers = ["b:1", "c:1"].map(str::to_owned).to_vec();
                let time = Duration::from_secs(1);
                let said = Opinions::of((servers, 0), (now, time), &heard, read);
                let about = About {
                    address: "a:1",
                    lately: false,
                };
                let known = Known {
                    map: Some(&map),
                    ..KNOWN
                };
                let word = Maps::of(said, &heard).answer_about(about, known, now);
                word.map(|(word, _)| word.result.is_ok()) != *expected
            });
            wrong.collect::<Vec<_>>()
        };
        assert_eq!(wrong(), []);
        each_is_found(&[Mutant::AnyIdConfirms], wrong);
    }

    #[test]
    fn one_server_s_map_is_learnt_only_where_none_is_known() {
        let now = clock::instant();
        let learnt = |maps: &[MapAnswer], known: Option<&SlotMap>| {
            let answers = answers(maps, 10, now);
            let map = answers.to_learn(known);
            map.and_then(|(map, _)| Some(map.master(10)?.0.clone()))
        };
        let refused = || Err(Cause::Refused("NOAUTH".into()));
        let most = [refused(), Ok(map(5)), Ok(map(5))];
        let one = [refused(), Ok(map(20)), refused()];
        for (maps, fresh, later) in [(&most, Some("b"), Some("b")), (&one, Some("a"), None)] {
            assert_eq!(learnt(maps, None).as_deref(), fresh);
            assert_eq!(learnt(maps, Some(&map(20))).as_deref(), later);
        }
    }
}
