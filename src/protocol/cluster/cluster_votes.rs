//! Which servers of a Redis Cluster are asked about a master, and when their answers confirm it (rule R43).
//!
//! A replica takes its master's place with the votes of more than half of the masters. So a master that is more than half
//! of them, together with those that name it, has no successor. Fewer may have stood still with it, or may be cut off with
//! it and this client, while the others have chosen another one.

use std::collections::{BTreeMap, BTreeSet};

use crate::protocol::commands::slots::SlotMap;
use crate::protocol::mutants::{Mutant, mutant};
use crate::settings::url;
use crate::values::endpoint::{Endpoint, is_at};

/// How many servers are asked first, and how many in all if those do not decide it.
const ASKED: usize = 3;
const MOST_ASKED: usize = 16;
/// Where there are more masters than can be asked, this many count as all.
const MOST_MASTERS: usize = MOST_ASKED + 1;

/// Servers in the order in which they are asked. The first ones are asked at once, the others if those do not decide it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct AskingOrder {
    pub(crate) servers: Vec<Endpoint>,
    pub(crate) first: usize,
}

/// A server that may be asked.
struct Candidate<'a> {
    server: &'a Endpoint,
    is_master: bool,
    /// Whether the server is at the host of the master in question: it may have stood still together with that one.
    is_neighbour: bool,
    /// How many of the candidates before this one are at the same host.
    at_host: usize,
}

impl AskingOrder {
    /// The order of this turn for a question about the master at `about`, or about any.
    pub(crate) fn of(map: &SlotMap, about: Option<About<'_>>, turn: usize) -> AskingOrder {
        let owners: BTreeSet<&Endpoint> = map.owners().collect();
        let candidates = candidates(map, &owners, about, turn);
        // Enough to be more than half of the masters, together with the one in question.
        let half = (owners.len() / 2).min(MOST_MASTERS / 2);
        let needed = match about {
            // The master may be one of them.
            None => (half + 1).min(ASKED),
            Some(about) if about.was_confirmed_lately() => half.min(ASKED),
            Some(_) => half,
        };
        let (masters, replicas): (Vec<_>, Vec<_>) =
            candidates.iter().partition(|one| one.is_master);
        let (needed, masters) = masters.split_at(needed.min(masters.len()));
        let is_away = |one: &&&Candidate<'_>| !one.is_neighbour;
        // Replicas spare masters the questions.
        let away = replicas.iter().chain(masters).filter(is_away);
        let neighbours = masters.iter().chain(&replicas).filter(|one| !is_away(one));
        let more = away.chain(neighbours).copied();
        let fill = ASKED.saturating_sub(needed.len());
        let first: Vec<&Candidate<'_>> = needed.iter().copied().chain(more.take(fill)).collect();
        let is_new = |one: &&Candidate<'_>| first.iter().all(|other| other.server != one.server);
        let rest = masters.iter().chain(&replicas).copied().filter(is_new);
        let rest = rest.filter(|_| !mutant(Mutant::RestIsNotAsked));
        let all = first.iter().copied().chain(rest).take(MOST_ASKED);
        AskingOrder {
            servers: all.map(|one| one.server.clone()).collect(),
            first: first.len(),
        }
    }
}

/// The servers that may be asked: first those at other hosts than the master in question, of each host one, then the second
/// ones, and so on. The server in question is not asked about itself if that can be avoided: it may not have learnt yet that
/// another one has taken its place.
fn candidates<'a>(
    map: &'a SlotMap,
    owners: &BTreeSet<&Endpoint>,
    about: Option<About<'_>>,
    turn: usize,
) -> Vec<Candidate<'a>> {
    let is_it = |one: &Endpoint| about.is_some_and(|about| is_at(one, about.address));
    let is_other = |one: &&Endpoint| !is_it(one) || mutant(Mutant::AskedAboutItself);
    // No other text is looked up: it may be an encoded password, and resolvers would get it.
    let hosts = || map.servers().filter(|one| url::is_host(&one.0));
    let (mut masters, mut replicas): (Vec<_>, Vec<_>) = hosts()
        .filter(is_other)
        .partition(|one| owners.contains(one));
    if masters.is_empty() && replicas.is_empty() {
        masters = hosts().collect();
    }
    for some in [&mut masters, &mut replicas] {
        let by = turn.checked_rem(some.len()).unwrap_or(0);
        some.rotate_left(by);
    }
    let own = map.servers().find(|one| is_it(one)).map(|(host, _)| host);
    let mut at_hosts: BTreeMap<&str, usize> = BTreeMap::new();
    let mut candidate = |server: &'a Endpoint, is_master| {
        let at_host = at_hosts.entry(&server.0).or_default();
        *at_host += 1;
        Candidate {
            server,
            is_master,
            is_neighbour: own == Some(&server.0) && !mutant(Mutant::NeighboursAreAsked),
            at_host: *at_host,
        }
    };
    let masters = masters.into_iter().map(|one| (one, true));
    let all = masters.chain(replicas.into_iter().map(|one| (one, false)));
    let mut all: Vec<Candidate<'_>> = all.map(|(one, master)| candidate(one, master)).collect();
    all.sort_by_key(|one| (one.is_neighbour, one.at_host));
    all
}

/// A master that is asked about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About<'a> {
    /// The master's address, as errors show it.
    pub(crate) address: &'a str,
    /// Whether the master was confirmed a short time before. Then three others are enough: had another one been chosen
    /// meanwhile, they would have named it while this one stood still.
    pub(crate) lately: bool,
}

impl About<'_> {
    fn was_confirmed_lately(self) -> bool {
        self.lately || mutant(Mutant::SampleConfirmsForLong)
    }
}

/// The answers that name a master.
pub(crate) struct MasterVotes<'a> {
    pub(crate) about: About<'a>,
    /// The addresses of the servers that name it, and the map of each.
    pub(crate) by: Vec<(&'a str, &'a SlotMap)>,
    /// How many servers were asked.
    pub(crate) asked: usize,
}

impl MasterVotes<'_> {
    /// Whether they confirm the master. `known`: the map from before, for a master that no server names, since none answers.
    pub(crate) fn confirm(&self, known: Option<&SlotMap>) -> bool {
        let all_name_it = self.asked >= ASKED && self.by.len() == self.asked;
        match self.by.is_empty() {
            _ if all_name_it && self.about.was_confirmed_lately() => true,
            true if mutant(Mutant::SilenceConfirmsInACluster) => true,
            true => known.is_some_and(|map| self.is_most_of(map)),
            false if mutant(Mutant::FewMastersConfirm) => true,
            false => self.by.iter().all(|(_, map)| self.is_most_of(map)),
        }
    }

    /// Whether the master and those that name it are more than half of the masters of this map.
    fn is_most_of(&self, map: &SlotMap) -> bool {
        let names_it = |one: &&Endpoint| {
            let mut by = self.by.iter();
            is_at(one, self.about.address) || by.any(|(server, _)| is_at(one, server))
        };
        let count = map.owners().filter(names_it).count();
        2 * count > map.owners().count().min(MOST_MASTERS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::fixtures::each_is_found;
    use crate::protocol::commands::resp::Reply;
    use crate::protocol::mutants::set_mutant;

    /// The map of a Cluster: for each shard the hosts of its master and of its replicas.
    fn map(shards: &[Vec<usize>]) -> SlotMap {
        let mut ranges = Vec::new();
        for (slot, hosts) in (0..).zip(shards) {
            let servers = hosts.iter().map(|host| {
                let host = Reply::Bulk(format!("h{host}").into());
                Reply::Array(vec![host, Reply::Int(slot + 1)])
            });
            let slots = [Reply::Int(slot), Reply::Int(slot)];
            ranges.push(Reply::Array(slots.into_iter().chain(servers).collect()));
        }
        SlotMap::of(&Reply::Array(ranges), "").unwrap()
    }

    /// A Cluster of three shards on three hosts, whose masters are at these.
    fn on_three_hosts(masters: [usize; 3], replicas: usize) -> SlotMap {
        let hosts = |master| (master..=master + replicas).map(|host| host % 3).collect();
        map(&masters.map(hosts))
    }

    /// A Cluster of masters that have a host each.
    fn alone(masters: usize) -> SlotMap {
        map(&(0..masters).map(|host| vec![host]).collect::<Vec<_>>())
    }

    fn shown((host, port): &Endpoint) -> String {
        format!("{host}:{port}")
    }

    /// Whether a master is confirmed, if the servers that name it are these, and no other one answers; and how many are
    /// asked.
    fn confirmed(
        map: &SlotMap,
        master: &Endpoint,
        (lately, turn): (bool, usize),
        names_it: impl Fn(&Endpoint) -> bool,
    ) -> (bool, usize) {
        let address = shown(master);
        let about = About {
            address: &address,
            lately,
        };
        let order = AskingOrder::of(map, Some(about), turn);
        judged(map, about, &order, names_it)
    }

    fn judged(
        map: &SlotMap,
        about: About<'_>,
        order: &AskingOrder,
        names_it: impl Fn(&Endpoint) -> bool,
    ) -> (bool, usize) {
        let votes = |count| {
            let asked = &order.servers[..count];
            let by: Vec<String> = asked
                .iter()
                .filter(|one| names_it(one))
                .map(shown)
                .collect();
            let by = by.iter().map(|server| (&**server, map)).collect();
            let asked = count;
            MasterVotes { about, by, asked }.confirm(Some(map))
        };
        match votes(order.first) {
            true => (true, order.first),
            false => (votes(order.servers.len()), order.servers.len()),
        }
    }

    fn layouts() -> Vec<SlotMap> {
        let masters = [[0, 1, 2], [0, 0, 2], [0, 1, 1], [2, 0, 2]];
        let three = masters.map(|masters| on_three_hosts(masters, 1));
        let nine = [[0, 1, 2], [0, 0, 2]].map(|masters| on_three_hosts(masters, 2));
        let alone = [2, 3, 4, 5, 7, 9].map(alone);
        three.into_iter().chain(nine).chain(alone).collect()
    }

    /// Every turn, and every set of servers that name the master while the others are silent.
    fn wrong() -> Vec<String> {
        let mut wrong = Vec::new();
        for map in layouts() {
            let all: Vec<&Endpoint> = map.servers().collect();
            let masters: Vec<&Endpoint> = map.owners().collect();
            let addresses: Vec<String> = masters.iter().map(|one| shown(one)).collect();
            for (at, turn) in (0..2).flat_map(|at| (0..all.len()).map(move |turn| (at, turn))) {
                let of = |lately| {
                    let address = &*addresses[at];
                    let about = About { address, lately };
                    (about, AskingOrder::of(&map, Some(about), turn))
                };
                let orders = [false, true].map(of);
                let (about, order) = &orders[1];
                let all_name_it = judged(&map, *about, order, |_| true);
                if !all_name_it.0 || all_name_it.1 > 3 {
                    wrong.push(format!("all are well: {all_name_it:?} by {order:?}"));
                }
                // (With the master, which is not asked.)
                for set in (0..1_usize << all.len()).filter(|set| set >> at & 1 == 1) {
                    let has = |one: &Endpoint| {
                        let at = all.iter().position(|other| *other == one);
                        at.is_some_and(|at| set >> at & 1 == 1)
                    };
                    let count = masters.iter().filter(|one| has(one)).count();
                    for (about, order) in &orders {
                        let is_it = judged(&map, *about, order, has).0;
                        let must = 2 * count > masters.len();
                        // Three of many are enough for one that was confirmed lately.
                        let may = must || about.lately && masters.len() > 7;
                        if is_it && !may || must && !is_it {
                            wrong.push(format!("{count}, {}: {is_it} by {order:?}", about.lately));
                        }
                    }
                }
            }
        }
        wrong
    }

    #[test]
    fn a_master_is_confirmed_by_those_that_are_with_it_most_of_the_masters_and_by_no_fewer() {
        assert_eq!(wrong(), Vec::<String>::new());
    }

    #[test]
    fn few_others_are_asked_and_none_beside_the_master_while_there_are_others() {
        let wrong = || {
            let mut wrong = Vec::new();
            let lone = [map(&[vec![0]]), map(&[vec![0, 1, 2]])];
            for (map, turn) in layouts()
                .iter()
                .chain(&lone)
                .flat_map(|map| (0..9).map(move |at| (map, at)))
            {
                for (master, lately) in map.owners().flat_map(|one| [(one, true), (one, false)]) {
                    let address = shown(master);
                    let about = Some(About {
                        address: &address,
                        lately,
                    });
                    let AskingOrder { servers, first } = AskingOrder::of(map, about, turn);
                    let all = map.servers().count();
                    let beside = servers[..first]
                        .iter()
                        .filter(|one| one.0 == master.0)
                        .count();
                    let most = if lately { 3 } else { 4 };
                    let is_one = servers.iter().collect::<BTreeSet<_>>().len() == servers.len();
                    let asks_itself = servers.contains(master) && all > 1;
                    if beside > usize::from(all == 1)
                        || first > most
                        || !is_one
                        || asks_itself
                        || servers.len() != 16.min(all - 1).max(1)
                    {
                        wrong.push(format!("{master:?}, {turn}: {first} of {servers:?}"));
                    }
                }
            }
            wrong
        };
        assert_eq!(wrong(), Vec::<String>::new());
        for mutant in [Mutant::NeighboursAreAsked, Mutant::AskedAboutItself] {
            set_mutant(Some(mutant));
            let found = wrong();
            set_mutant(None);
            assert_ne!(found, Vec::<String>::new(), "{mutant:?}");
        }
    }

    #[test]
    fn each_mutant_of_it_is_found() {
        each_is_found(
            &[
                Mutant::SilenceConfirmsInACluster,
                Mutant::FewMastersConfirm,
                Mutant::RestIsNotAsked,
                Mutant::SampleConfirmsForLong,
            ],
            wrong,
        );
    }

    /// No replica has a majority of masters that would elect it.
    #[test]
    fn silence_confirms_where_there_is_no_other_master() {
        let one = map(&[vec![0, 1, 2]]);
        let master = one.owners().next().unwrap().clone();
        assert_eq!(confirmed(&one, &master, (false, 0), |_| false), (true, 2));
        let votes = |known| {
            let (about, by, asked) = (
                About {
                    address: "h0:1",
                    lately: false,
                },
                vec![],
                2,
            );
            MasterVotes { about, by, asked }.confirm(known)
        };
        assert!(!votes(None) && !votes(Some(&alone(2))));
    }

    /// The map of a server that names the master shows masters that the client has not heard of.
    #[test]
    fn the_masters_are_those_of_each_map_that_names_it() {
        let (small, large) = (alone(3), alone(6));
        let votes = |by: &[(&'static str, &SlotMap)]| {
            let about = About {
                address: "h0:1",
                lately: false,
            };
            let (by, asked) = (by.to_vec(), 3);
            MasterVotes { about, by, asked }.confirm(Some(&small))
        };
        assert!(votes(&[("h1:2", &small)]));
        assert!(!votes(&[("h1:2", &large)]));
        assert!(!votes(&[("h1:2", &small), ("h2:3", &large)]));
        assert!(votes(&[
            ("h1:2", &large),
            ("h2:3", &large),
            ("h5:6", &large)
        ]));
        // Not a master, or not under this name.
        assert!(!votes(&[("h9:9", &small)]));
    }

    /// However many masters there are, half of those that are asked may be away.
    #[test]
    fn of_many_masters_half_of_those_that_can_be_asked_are_enough() {
        let many = alone(40);
        let master = many.owners().nth(7).unwrap().clone();
        for turn in 0..40 {
            for lately in [false, true] {
                let is_it = |names_it: &dyn Fn(&Endpoint) -> bool| {
                    confirmed(&many, &master, (lately, turn), names_it)
                };
                let at = |one: &Endpoint| one.1;
                assert_eq!(is_it(&|_| true), (true, if lately { 3 } else { 8 }));
                assert!(is_it(&|one| at(one) % 2 == 1).0, "{turn}");
                assert!(!is_it(&|one| at(one) % 4 == 1).0, "{turn}");
            }
        }
    }

    #[test]
    fn an_address_is_read_as_it_is_shown() {
        for (host, shown, expected) in [
            ("a", "a:1", true),
            ("a", "a:2", false),
            ("::1", "[::1]:1", true),
            ("::1", "::1", false),
            ("a", "b:1", false),
        ] {
            assert_eq!(is_at(&(host.into(), 1), shown), expected, "{shown}");
        }
    }
}
