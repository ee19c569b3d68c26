//! A Redis Cluster: its servers, and the questions for its map.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::ConnectionAddr;

use crate::errors::cause::Cause;
use crate::errors::text;
use crate::net::place::asker::{Asker, Patience, Told};
use crate::net::place::given_node::GivenNode;
use crate::net::place::server_question::{self, NamedAddress, Opinions, Turn, Unknown};
use crate::net::socket::peer::Peer;
use crate::protocol::commands::resp::Reply;
use crate::protocol::commands::slots::{Endpoint, SlotMap, SlotRanges};
use crate::protocol::node::cluster_map::{ClusterMap, ToAsk, is_at};
use crate::protocol::node::directory_questions::Heard;
use crate::protocol::node::found_master::LastWord;
use crate::protocol::node::master_answers::Belief;
use crate::settings::url;
use crate::values::clock;
use crate::values::sync::{
    Mutex,
    atomic::{AtomicU16, AtomicU64, Ordering},
    lock,
};

/// How long a question for the map may take that a redirect leads to.
const ASK: Duration = Duration::from_secs(1);
/// The most threads that ask at the same time. One that resolves a name may take long. The second half is for threads
/// that confirm masters: without an answer no locks are granted.
const MAX_THREADS: usize = 128;

pub(crate) struct ClusterServers {
    pub(crate) given: Arc<GivenNode>,
    seeds: Vec<Peer>,
    known: Mutex<ClusterMap>,
    /// How often the map has changed. (Each call reads it.)
    changes: AtomicU64,
    /// Whether the map was asked for.
    looked_up: Mutex<bool>,
    asker: Arc<Asker<Arc<SlotMap>>>,
}

/// The answers of a Cluster's servers about a slot.
pub(crate) struct Maps {
    pub(crate) opinions: Opinions,
    /// The map of each server that returned one, and when it was asked.
    maps: Vec<(usize, Instant, Arc<SlotMap>)>,
}

impl ClusterServers {
    /// Returns `None` if the node is no Cluster.
    pub(crate) fn new(given: &Arc<GivenNode>) -> Option<ClusterServers> {
        let seeds = given.node.cluster()?.iter();
        Some(ClusterServers {
            given: given.clone(),
            seeds: seeds.map(|info| given.peer(info.addr().clone())).collect(),
            known: Mutex::default(),
            changes: AtomicU64::new(0),
            looked_up: Mutex::default(),
            asker: Asker::new(),
        })
    }

    pub(crate) fn map(&self) -> Option<Arc<SlotMap>> {
        lock(&self.known).map().cloned()
    }

    /// How often the map has changed.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    fn has_changed(&self, changed: bool) {
        self.changes
            .fetch_add(u64::from(changed), Ordering::Release);
    }

    /// Whether the map gives both slots to the same server, or to none. Without a map true: one server may own all.
    pub(crate) fn has_together(&self, one: u16, two: u16) -> bool {
        let both = |map: Arc<SlotMap>| map.master(one) == map.master(two);
        one == two || self.map().is_none_or(both)
    }

    /// Whether the map gives the slot to the server at this address.
    pub(crate) fn has_at(&self, slot: u16, address: &str) -> bool {
        let map = self.map();
        let master = map.as_ref().and_then(|map| map.master(slot));
        master.is_some_and(|master| is_at(master, address))
    }

    /// Replaces a slot that the server at this address has lost with another of its slots, by the map that is known.
    pub(crate) fn stay(&self, slot: &AtomicU16, address: &str) {
        if !self.has_at(slot.load(Ordering::Relaxed), address)
            && let Some(other) = self.map().and_then(|map| slot_at(&map, address))
        {
            slot.store(other, Ordering::Relaxed);
        }
    }

    /// Records that the server at `from` reported `to` as the slot's owner.
    pub(crate) fn moved(&self, slot: u16, from: &str, to: Endpoint) {
        if url::is_host(&to.0) {
            let mut known = lock(&self.known);
            let to = known.names.of(to);
            let changed = known.moved(slot, from, to, clock::instant());
            drop(known);
            self.has_changed(changed);
        }
    }

    /// When the server that lost the slot to this one reported it, if others may not have learnt it yet; and its
    /// address.
    pub(crate) fn moved_at(&self, slot: u16, to: &ConnectionAddr) -> Option<(Instant, String)> {
        let known = lock(&self.known);
        known.moved_at(slot, |endpoint| self.given.addr(endpoint) == *to)
    }

    /// Whether this is the address of a server that was given.
    pub(crate) fn is_given(&self, addr: &ConnectionAddr) -> bool {
        self.seeds.iter().any(|seed| seed.addr() == addr)
    }

    /// The servers to ask where a slot is, and how many of them, the last ones, are spare.
    fn to_ask(&self, except: Option<&str>) -> (Vec<Peer>, usize) {
        let (servers, turn) = match lock(&self.known).next_to_ask(except, clock::instant()) {
            ToAsk::Seeds => return (self.seeds.clone(), 0),
            ToAsk::Servers(servers, turn) => (servers, turn),
        };
        let addrs = servers.iter().map(|one| self.given.addr(one));
        let mut addrs: Vec<ConnectionAddr> = addrs.collect();
        let known = addrs.len();
        // The servers may all be gone, and the seed's name may lead to others.
        let seed = turn.checked_rem(self.seeds.len());
        if let Some(seed) = seed.and_then(|seed| self.seeds.get(seed))
            && !addrs.contains(seed.addr())
            && Some(&*text::address(seed.addr())) != except
        {
            addrs.push(seed.addr().clone());
        }
        let spare = addrs.len() - known;
        let peers = addrs.into_iter().map(|addr| self.given.peer(addr));
        (peers.collect(), spare)
    }

    /// Asks servers at once where a slot is, and waits until more than half of them agree, at most for `time`. The
    /// answer of most of them is believed.
    pub(crate) fn ask_all(
        self: &Arc<Self>,
        slot: u16,
        except: Option<&str>,
        time: Duration,
    ) -> Maps {
        self.ask_until(slot, except, time, Opinions::is_certain)
    }

    /// Asks like [`ask_all`](Self::ask_all), but waits only until `will_do` returns true.
    fn ask_until(
        self: &Arc<Self>,
        slot: u16,
        except: Option<&str>,
        time: Duration,
        will_do: impl Fn(&Opinions) -> bool,
    ) -> Maps {
        let now = clock::instant();
        let patience = Patience {
            time,
            lasts: server_question::share(time),
            most: MAX_THREADS / if except.is_some() { 1 } else { 2 },
        };
        let (peers, spare) = self.to_ask(except);
        let cluster = self.clone();
        let ask = move |peer: &Peer, turn: &Turn<'_>| cluster.ask(peer, turn);
        // An address is confirmed by what others report now.
        let read = |map: &Arc<SlotMap>, asked| self.named(map, slot, asked, except.is_none());
        let weigh = |heard: &[Heard<'_, Told<Arc<SlotMap>>>]| {
            let opinions = Opinions::of((&peers, spare), (now, time), heard, read);
            Maps::of(opinions, heard)
        };
        let is_enough = |said: &Maps| will_do(&said.opinions);
        let said = (self.asker).ask_all(&peers, patience, ask, weigh, is_enough);
        // One server's map is better than none: each server that it names is asked for before it is used.
        let first = || said.maps.first().filter(|_| self.map().is_none());
        if let Some((_, asked, map)) = said.believed_map().or_else(first) {
            let changed = lock(&self.known).learn(map.clone(), *asked);
            self.has_changed(changed);
        }
        said
    }

    /// The master of a slot, by a server's map that was asked for then.
    fn named(&self, map: &SlotMap, slot: u16, asked: Instant, corrected: bool) -> NamedAddress {
        let known = lock(&self.known);
        let master = match corrected {
            true => known.master(map, slot, asked),
            false => map.master(slot),
        };
        match master {
            Some(master) if url::is_host(&master.0) => Ok(self.given.addr(master)),
            Some(_) => Err(Unknown::Failed(no_map())),
            None => Err(Unknown::Name),
        }
    }

    /// Whether the server at `address` still is the master of this slot, or, by most of the answers, of another one,
    /// which then replaces it (rule R43). `None` if the answers do not decide it.
    pub(crate) fn confirm(
        &self,
        said: &Maps,
        slot: &AtomicU16,
        address: &str,
        asked: Instant,
    ) -> Option<LastWord> {
        let is_there = |addr: &ConnectionAddr| match text::address(addr) {
            named if named == address => Ok(()),
            named => Err(Cause::Moved(named)),
        };
        let word = LastWord::of(&said.opinions.belief(), asked, is_there)?;
        if word.answer.is_ok() {
            return Some(word);
        }
        // The server may own other slots.
        let mut is_decided = true;
        for other in said.slots_of(address) {
            let about = said.about(|map| self.named(map, other, asked, false));
            match about.belief() {
                Belief::Named { master, at, .. } if text::address(master) == address => {
                    slot.store(other, Ordering::Relaxed);
                    let at = at.min(word.at);
                    return Some(LastWord { answer: Ok(()), at });
                }
                Belief::Named { .. } => {}
                Belief::Silence { .. } | Belief::Unknown => is_decided = false,
            }
        }
        is_decided.then_some(word)
    }

    /// Asks for the map again. Returns whether most of the servers that were asked agree on the slot.
    pub(crate) fn refresh(self: &Arc<Self>, slot: u16) -> bool {
        let said = self.ask_all(slot, None, ASK);
        said.opinions.believed().is_some()
    }

    /// Asks for the map the first time. From then on, connecting asks for it.
    pub(crate) fn look_up(self: &Arc<Self>, slot: u16, time: Duration) {
        // The others wait for the map: otherwise each slot would have separate connections.
        let mut looked_up = lock(&self.looked_up);
        if !std::mem::replace(&mut *looked_up, true) {
            // For a first map one answer is enough.
            let will_do = |said: &Opinions| said.is_certain() || said.names_any();
            drop(self.ask_until(slot, None, time, will_do));
        }
    }

    /// The map of one of the servers.
    fn ask(&self, peer: &Peer, turn: &Turn<'_>) -> Told<Arc<SlotMap>> {
        let map = ask_for_map(peer, turn)?;
        // Errors name servers, so none may repeat the password.
        let secret = self.given.secret();
        let repeats = map.servers().any(|(host, _)| secret.is_in_host(host));
        match repeats {
            true => Err(no_map()),
            false => {
                let mut known = lock(&self.known);
                Ok(Arc::new(known.names.unify(map, clock::instant())))
            }
        }
    }

    /// The known name of a server that a redirect names like this.
    pub(crate) fn name_of(&self, endpoint: &Endpoint) -> Endpoint {
        lock(&self.known).names.of(endpoint.clone())
    }

    /// Notes whether the server at this address can be reached.
    pub(crate) fn is_reached(&self, addr: &ConnectionAddr, is_reached: bool) {
        if let ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } = addr {
            let name = (host.clone(), *port);
            lock(&self.known).names.is_reached(&name, is_reached);
        }
    }

    /// Why no master of a slot is believed.
    pub(crate) fn no_master(&self, said: &Opinions) -> Cause {
        let (given, each) = (&self.given.node, said.each());
        if said.names_any() {
            let words = each.iter().map(|(server, word)| match word {
                Ok(master) => format!("{server} names {master}"),
                Err(Unknown::Name | Unknown::Again) => format!("{server} knows none"),
                Err(Unknown::Failed(cause)) => format!("{server}: {}", cause.without_advice()),
            });
            let words = words.collect::<Vec<_>>().join("; ");
            let text = format!(
                "no majority of the servers of the {given} names the master of that slot: {words}"
            );
            return Cause::NoMaster(text, false);
        }
        let failed = each.iter().filter_map(|(_, word)| match word {
            Err(Unknown::Failed(cause)) => Some(cause),
            _ => None,
        });
        let failed: Vec<&Cause> = failed.collect();
        let Some(cause) = failed.first() else {
            let text = format!("the {given} does not serve that slot: look at CLUSTER INFO");
            return Cause::NoMaster(text, false);
        };
        let is_final = |cause: &&Cause| cause.is_final() || is_no_cluster(cause);
        let is_final = failed.iter().all(is_final) && failed.len() == each.len();
        let why = match cause {
            Cause::NotConnected(time, _) => format!("no answer within {}", text::human(*time)),
            cause if is_no_cluster(cause) => format!(
                "{} (that is no Redis Cluster: write redis://host:port)",
                cause.without_advice()
            ),
            cause => cause.to_string(),
        };
        Cause::NoMaster(
            format!("no server of the {given} names the others: {why}"),
            is_final,
        )
    }
}

impl Maps {
    fn of(opinions: Opinions, heard: &[Heard<'_, Told<Arc<SlotMap>>>]) -> Maps {
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
    fn believed_map(&self) -> Option<&(usize, Instant, Arc<SlotMap>)> {
        let server = self.opinions.believed()?.server;
        self.maps.iter().find(|(of, ..)| *of == server)
    }

    /// Slots of the server at this address, by any of the maps.
    fn slots_of(&self, address: &str) -> Vec<u16> {
        let maps = self.maps.iter();
        let slots = maps.filter_map(|(.., map)| slot_at(map, address));
        let mut slots: Vec<u16> = slots.collect();
        slots.sort_unstable();
        slots.dedup();
        slots
    }

    /// The opinions about another slot.
    fn about(&self, read: impl Fn(&SlotMap) -> NamedAddress) -> Opinions {
        let maps = self.maps.iter();
        let answers = maps.map(|(server, asked, map)| (*server, read(map), *asked));
        self.opinions.with(answers)
    }
}

/// A slot of the server at this address.
fn slot_at(map: &SlotMap, address: &str) -> Option<u16> {
    let is_its = |slot: &u16| map.master(*slot).is_some_and(|one| is_at(one, address));
    map.shards().find(is_its)
}

fn ask_for_map(peer: &Peer, turn: &Turn<'_>) -> Result<SlotMap, Cause> {
    let asked = match peer.addr() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host,
        _ => "",
    };
    let mut ranges = SlotRanges::new(asked);
    let command: &[&[u8]] = &[b"CLUSTER", b"SLOTS"];
    let reply = server_question::ask_and_read(peer, command, turn, &mut |reader, begins| {
        if begins {
            ranges = SlotRanges::new(asked);
        }
        reader.next_by_element(&mut |range| ranges.add(range))
    })?;
    match reply {
        Reply::Array(_) => Ok(ranges.map()),
        Reply::Error(text) => Err(Cause::refused(&text)),
        _ => Err(no_map()),
    }
}

fn no_map() -> Cause {
    Cause::Garbage("not the map of a Redis Cluster".into())
}

/// Whether the server is no Cluster, by the error text of Redis and Valkey.
fn is_no_cluster(cause: &Cause) -> bool {
    matches!(cause, Cause::Refused(text) if text.contains("cluster support disabled"))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::net::place::deployment::Place;
    use crate::net::socket::trust::Trust;
    use crate::settings::credentials::{AskCredentials, Credentials};
    use crate::settings::into_node::IntoNode;
    use crate::settings::tls::Tls;

    /// The Cluster of these servers.
    fn cluster(given: &str, credentials: Option<AskCredentials>) -> Arc<ClusterServers> {
        let given = given.into_node().unwrap();
        let trust = Trust::new(&Tls::default(), [given.info()]);
        let place = Place::new(given, &trust, credentials);
        place.cluster().unwrap().clone()
    }

    /// Less is left than makes a server silent.
    #[test]
    fn a_server_whose_credentials_took_most_of_the_time_is_not_silent() {
        // A server that accepts connections, and never answers.
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        for (slow, silent) in [(false, true), (true, false)] {
            let ask = AskCredentials::new(move |_| {
                std::thread::sleep(Duration::from_millis(if slow { 450 } else { 0 }));
                Ok::<_, std::io::Error>(Credentials::new("p"))
            });
            let cluster = cluster(&format!("redis+cluster://127.0.0.1:{port}"), Some(ask));
            let said = cluster.ask_all(0, None, Duration::from_millis(850));
            assert_eq!(said.opinions.is_silence(), silent, "{slow}");
            assert!(said.opinions.believed().is_none());
        }
    }

    /// The map of two shards, as a server reports it whose slots from this one on have moved to the second.
    fn map(from: u16) -> Arc<SlotMap> {
        let mut map = SlotMap::default();
        (0..from).for_each(|slot| map.moved(slot, ("a".into(), 1)));
        (from..20).for_each(|slot| map.moved(slot, ("b".into(), 1)));
        map.into()
    }

    /// Confirms the server `a` by its slot 10. Returns the slot by which it is asked for then, and whether it is there.
    fn confirmed(maps: [Arc<SlotMap>; 3]) -> (u16, Option<bool>) {
        let cluster = cluster("redis+cluster://a,b,c", None);
        let now = clock::instant();
        let maps = maps.map(Ok);
        let heard: Vec<_> = maps.iter().map(|map| Heard::Answer(map, now)).collect();
        let slot = AtomicU16::new(10);
        let read = |map: &Arc<SlotMap>, asked| cluster.named(map, 10, asked, false);
        let opinions = Opinions::of((&cluster.seeds, 0), (now, ASK), &heard, read);
        let word = cluster.confirm(&Maps::of(opinions, &heard), &slot, "a:1", now);
        (
            slot.load(Ordering::Relaxed),
            word.map(|word| word.answer.is_ok()),
        )
    }

    /// One that has learnt of a failover late may be the first to answer.
    #[test]
    fn a_server_that_lost_a_slot_stays_by_another_one_that_most_give_it() {
        for (maps, expected) in [
            ([map(20), map(20), map(0)], (10, Some(true))),
            ([map(5), map(5), map(5)], (0, Some(true))),
            ([map(5), map(5), map(0)], (0, Some(true))),
            // One alone gives it other slots: it was replaced.
            ([map(5), map(0), map(0)], (10, Some(false))),
            ([map(0), map(0), map(0)], (10, Some(false))),
        ] {
            assert_eq!(confirmed(maps.clone()), expected, "{maps:?}");
        }
    }

    /// Its name may lead to one of those that the map names.
    #[test]
    fn a_seed_is_spare_once_others_are_known() {
        let cluster = cluster("redis+cluster://seed", None);
        let count = |cluster: &ClusterServers| {
            let (peers, spare) = cluster.to_ask(Some("a:1"));
            (peers.len(), spare)
        };
        assert_eq!(count(&cluster), (1, 0));
        lock(&cluster.known).learn(map(10), clock::instant());
        assert_eq!(count(&cluster), (2, 1));
    }
}
