//! A Redis Cluster: which of its servers own which slots, as they report.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use redis::ConnectionAddr;

use crate::errors::cause::Cause;
use crate::errors::secret::Secret;
use crate::errors::text;
use crate::net::place::question::{self, Answer, Heard, Unknown};
use crate::net::place::sentinels::like;
use crate::net::socket::peer::Peer;
use crate::net::socket::trust::Trust;
use crate::protocol::commands::resp::Reply;
use crate::protocol::commands::slots::{Endpoint, Map, Ranges};
use crate::settings::credentials::AskCredentials;
use crate::settings::node_address::NodeAddress;
use crate::settings::url;
use crate::values::clock;
use crate::values::sync::{lock, wait_until};

/// How many of the servers are asked, once they are learnt.
const ASKED: usize = 3;
/// The shortest time between two questions for the map that redirects lead to, and how long one may take.
const REFRESH: Duration = Duration::from_millis(100);
const ASK: Duration = Duration::from_secs(1);
/// A server that has lost a slot reports it before others do: for this time their claims that it owns the slot are
/// ignored.
const BELIEVED: Duration = Duration::from_secs(1);
/// The most threads that ask at the same time. One that resolves a name may take long. The second half is for threads
/// that confirm masters: without an answer no locks are granted.
const MAX_THREADS: usize = 128;

pub(crate) struct Cluster {
    pub(crate) given: NodeAddress,
    seeds: Vec<Peer>,
    /// The password: no server is looked for at a host that repeats it.
    secret: Secret,
    pub(crate) trust: Trust,
    pub(crate) credentials: Option<AskCredentials>,
    known: Mutex<Known>,
    /// How often the map has changed. (Each call reads it.)
    changes: AtomicU64,
    /// Whether the map was asked for.
    looked_up: Mutex<bool>,
    /// The number of threads that ask a server.
    asking: AtomicUsize,
    /// The questions for maps, by the address of the server asked.
    questions: Mutex<BTreeMap<String, Arc<MapQuestion>>>,
}

/// A question to a server for its map. One thread at a time asks it. Those that want the map meanwhile share the next
/// answer: however many connections are to be made or confirmed, the server is not asked more often than it answers.
#[derive(Default)]
struct MapQuestion {
    state: Mutex<QuestionState>,
    answered: Condvar,
}

#[derive(Default)]
struct QuestionState {
    /// Until when a thread asks. One that hangs for longer, such as in name resolution, is not waited for.
    asked_until: Option<Instant>,
    /// The last answer, when it was asked for, and for how long it was waited for.
    last: Option<(Instant, Duration, Result<Arc<Map>, Cause>)>,
}

/// The state learnt from a Cluster's servers.
#[derive(Default)]
struct Known {
    map: Option<Arc<Map>>,
    /// When the server that returned the map was asked.
    asked: Option<Instant>,
    /// Single slots that servers reported to have moved, since then or a short time before.
    moved: BTreeMap<u16, Moved>,
    /// When a server last gave reason to ask for the map again.
    refreshed: Option<Instant>,
    /// The server that is asked first, and since when it is.
    turn: usize,
    turned: Option<Instant>,
}

/// A report of the server at `from`, at this time, that the one at `to` owns a slot.
struct Moved {
    from: String,
    to: Endpoint,
    at: Instant,
}

impl Cluster {
    pub(crate) fn new(
        given: NodeAddress,
        seeds: Vec<Peer>,
        trust: &Trust,
        credentials: Option<AskCredentials>,
    ) -> Cluster {
        Cluster {
            secret: Secret::of(given.info().redis_settings().password()),
            given,
            seeds,
            trust: trust.clone(),
            credentials,
            known: Mutex::default(),
            changes: AtomicU64::new(0),
            looked_up: Mutex::default(),
            asking: AtomicUsize::new(0),
            questions: Mutex::default(),
        }
    }

    pub(crate) fn map(&self) -> Option<Arc<Map>> {
        lock(&self.known).map.clone()
    }

    /// How often the map has changed.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Whether the map gives both slots to the same server, or to none. Without a map true: one server may own all.
    pub(crate) fn has_together(&self, one: u16, two: u16) -> bool {
        let both = |map: Arc<Map>| map.master(one) == map.master(two);
        one == two || self.map().is_none_or(both)
    }

    /// Whether the map gives the slot to the server at this address.
    pub(crate) fn has_at(&self, slot: u16, address: &str) -> bool {
        let map = self.map();
        let master = map.as_ref().and_then(|map| map.master(slot));
        master.is_some_and(|master| is_at(master, address))
    }

    /// Replaces a slot that the server at this address may have lost with another of its slots, by this map. Returns
    /// false if it has none.
    pub(crate) fn stay(&self, slot: &AtomicU16, address: &str, map: Option<&Map>) -> bool {
        let is_its = |slot: &u16| {
            let master = map.and_then(|map| map.master(*slot));
            master.is_some_and(|master| is_at(master, address))
        };
        if is_its(&slot.load(Ordering::Relaxed)) {
            return true;
        }
        let other = map.and_then(|map| map.shards().find(is_its));
        if let Some(other) = other {
            slot.store(other, Ordering::Relaxed);
        }
        other.is_some()
    }

    /// Records that the server at `from` reported `to` as the slot's owner.
    pub(crate) fn moved(&self, slot: u16, from: &str, to: Endpoint) {
        if !url::is_host(&to.0) {
            return;
        }
        let mut known = lock(&self.known);
        if let Some(map) = &mut known.map {
            Arc::make_mut(map).moved(slot, to.clone());
            let (from, at) = (from.to_owned(), clock::instant());
            known.moved.insert(slot, Moved { from, to, at });
            self.changes.fetch_add(1, Ordering::Release);
        }
    }

    /// When the server that lost the slot to this one reported it, if others may not have learnt it yet; and its
    /// address.
    pub(crate) fn moved_at(&self, slot: u16, to: &ConnectionAddr) -> Option<(Instant, String)> {
        let known = lock(&self.known);
        let moved = known.moved.get(&slot);
        let moved = moved.filter(|moved| self.addr(&moved.to) == *to);
        moved.map(|moved| (moved.at, moved.from.clone()))
    }

    /// Whether this is the address of a server that was given.
    pub(crate) fn is_given(&self, addr: &ConnectionAddr) -> bool {
        self.seeds.iter().any(|seed| seed.addr() == addr)
    }

    /// Takes slots of a map from servers that reported their loss. `asked`: when the map's server was asked.
    fn correct(&self, map: &mut Map, known: &mut Known, asked: Instant) {
        known.moved.retain(|_, moved| moved.at + BELIEVED > asked);
        for (slot, moved) in &known.moved {
            let master = map.master(*slot).map(|master| self.addr(master));
            let is_lost = master.is_some_and(|master| text::address(&master) == moved.from);
            // A report since then is not in the map.
            if is_lost || moved.at > asked {
                map.moved(*slot, moved.to.clone());
            }
        }
    }

    /// How a server of the Cluster is reached.
    pub(crate) fn peer(&self, addr: ConnectionAddr) -> Peer {
        let info = self.given.info().clone().set_addr(addr);
        Peer::new(info, &self.trust, self.credentials.clone())
    }

    pub(crate) fn addr(&self, (host, port): &Endpoint) -> ConnectionAddr {
        like(self.given.info().addr(), host.clone(), *port)
    }

    /// The servers to ask where a slot is: the seeds first, and once others are known, some of those. A server is not
    /// asked about itself if that can be avoided: it may not have learnt yet that another one has taken its place.
    fn to_ask(&self, except: Option<&str>) -> Vec<Peer> {
        let mut known = lock(&self.known);
        let Some(map) = known.map.clone() else {
            return self.seeds.clone();
        };
        let addr = |endpoint| self.addr(endpoint);
        let all: Vec<ConnectionAddr> = map.servers().map(addr).collect();
        let is_other = |addr: &&ConnectionAddr| Some(&*text::address(addr)) != except;
        let others: Vec<ConnectionAddr> = all.iter().filter(is_other).cloned().collect();
        let from = match others.is_empty() {
            true => all,
            false => others,
        };
        // Questions at the same time go to the same servers.
        let now = clock::instant();
        if known.turned.is_none_or(|last| now >= last + REFRESH) {
            (known.turn, known.turned) = (known.turn.wrapping_add(1), Some(now));
        }
        let start = known.turn;
        let count = from.len().max(1);
        let mut addrs: Vec<ConnectionAddr> = from
            .iter()
            .cycle()
            .skip(start % count)
            .take(ASKED.min(count))
            .cloned()
            .collect();
        // The servers may all be gone, and the seed's name may lead to others.
        if let Some(seed) = self.seeds.get(start % self.seeds.len().max(1))
            && !addrs.contains(seed.addr())
            && is_other(&seed.addr())
        {
            addrs.push(seed.addr().clone());
        }
        drop(known);
        addrs.into_iter().map(|addr| self.peer(addr)).collect()
    }

    /// Asks servers at once where a slot is, and waits until more than half of them agree, at most for `time`. The
    /// answer of most of them is believed.
    pub(crate) fn ask_all(
        self: &Arc<Self>,
        slot: u16,
        except: Option<&str>,
        time: Duration,
    ) -> Heard {
        self.ask_until(slot, except, time, Heard::is_certain)
    }

    /// Asks like [`ask_all`](Self::ask_all), but waits only until `will_do` returns true.
    fn ask_until(
        self: &Arc<Self>,
        slot: u16,
        except: Option<&str>,
        time: Duration,
        will_do: impl Fn(&Heard) -> bool,
    ) -> Heard {
        let asked = clock::instant();
        let (until, (sender, answers)) = (asked + time, channel());
        let time_to_answer = question::share(time);
        let peers = self.to_ask(except);
        let mut said = Heard::of(peers.iter().map(|peer| peer.addr()), (asked, time));
        for (at, peer) in peers.into_iter().enumerate() {
            let most = MAX_THREADS / if except.is_some() { 1 } else { 2 };
            let begun = Asking::begin(self, most).and_then(|asking| {
                let sender = sender.clone();
                // An address is confirmed by what others report now.
                let corrected = except.is_none().then_some(asked);
                let ask = move || {
                    let time = (asked + time_to_answer, time_to_answer);
                    let answer = asking.0.ask(&peer, slot, time, corrected);
                    drop(asking);
                    let _ = sender.send((at, answer));
                };
                let thread = std::thread::Builder::new().name("redlock-find".into());
                let thread = thread.spawn(ask);
                thread.map_err(|error| Cause::NoThread(error.to_string()))
            });
            if let Err(cause) = begun {
                said.add(at, Err(Unknown::Failed(cause)), asked);
            }
        }
        drop(sender);
        let left = || until.saturating_duration_since(clock::instant());
        while !will_do(&said)
            && let Ok((at, answer)) = answers.recv_timeout(left())
        {
            said.add(at, answer, asked);
        }
        let map = match said.believed() {
            Some(named) => named.map,
            // One server's map is better than none: each server that it names is asked for before it is used.
            None if self.map().is_none() => said.first_map(),
            None => None,
        };
        if let Some(map) = map {
            self.learn(map, asked);
        }
        said
    }

    /// Asks for the map again, unless that was done within [`REFRESH`].
    pub(crate) fn refresh(self: &Arc<Self>, slot: u16) {
        let mut known = lock(&self.known);
        let now = clock::instant();
        if known.refreshed.is_none_or(|last| now >= last + REFRESH) {
            known.refreshed = Some(now);
            drop(known);
            drop(self.ask_all(slot, None, ASK));
        }
    }

    fn learn(&self, mut map: Map, asked: Instant) {
        let mut known = lock(&self.known);
        if known.asked.is_some_and(|before| asked <= before) {
            return;
        }
        self.correct(&mut map, &mut known, asked);
        let has_changed = known.map.as_deref() != Some(&map);
        (known.map, known.asked) = (Some(Arc::new(map)), Some(asked));
        self.changes
            .fetch_add(u64::from(has_changed), Ordering::Release);
    }

    /// Asks for the map the first time. From then on, connecting asks for it.
    pub(crate) fn look_up(self: &Arc<Self>, slot: u16, time: Duration) {
        // The others wait for the map: otherwise each slot would have separate connections.
        let mut looked_up = lock(&self.looked_up);
        if !std::mem::replace(&mut *looked_up, true) {
            // For a first map one answer is enough.
            let will_do = |said: &Heard| said.is_certain() || said.names_any();
            drop(self.ask_until(slot, None, time, will_do));
        }
    }

    /// Where a slot is, as one of the servers reports. `corrected`: when all are asked, to apply what others reported
    /// lately.
    fn ask(
        &self,
        peer: &Peer,
        slot: u16,
        time: (Instant, Duration),
        corrected: Option<Instant>,
    ) -> Answer {
        let map = self.map_of(peer, time).map_err(Unknown::Failed)?;
        // Errors name servers, so none may repeat the password.
        if map.servers().any(|(host, _)| self.secret.is_in_host(host)) {
            return Err(Unknown::Failed(no_map()));
        }
        let mut map = Arc::unwrap_or_clone(map);
        if let Some(asked) = corrected {
            self.correct(&mut map, &mut lock(&self.known), asked);
        }
        match map.master(slot) {
            Some(master) if url::is_host(&master.0) => Ok((self.addr(master), Some(map))),
            Some(_) => Err(Unknown::Failed(no_map())),
            None => Err(Unknown::Name),
        }
    }

    /// The map of a server, asked for from now on: by this thread, or by another one that shares the answer.
    fn map_of(
        &self,
        peer: &Peer,
        (until, timeout): (Instant, Duration),
    ) -> Result<Arc<Map>, Cause> {
        let (wanted, address) = (clock::instant(), text::address(peer.addr()));
        let question = lock(&self.questions).entry(address).or_default().clone();
        let mut state = lock(&question.state);
        let answer = loop {
            match &state.last {
                // A server that is silent for a thread with little time may answer one that waits for longer.
                Some((asked, time, answer))
                    if *asked >= wanted && (2 * *time >= timeout || !is_silence(answer)) =>
                {
                    break answer.clone();
                }
                _ if state.asked_until.is_none_or(|end| clock::instant() >= end) => {
                    state.asked_until = Some(until);
                    drop(state);
                    let asked = clock::instant();
                    let answer = ask_for_map(peer, (until, timeout));
                    state = lock(&question.state);
                    let is_newer = |(before, ..): &(Instant, _, _)| *before < asked;
                    if state.last.as_ref().is_none_or(is_newer) {
                        let time = until.saturating_duration_since(asked);
                        state.last = Some((asked, time, answer.clone()));
                    }
                    state.asked_until.take_if(|end| *end == until);
                    question.answered.notify_all();
                    break answer;
                }
                _ if clock::instant() >= until => break Err(Cause::NotAsked),
                _ => state = wait_until(&question.answered, state, until),
            }
        };
        drop(state);
        drop(question);
        // Questions that no thread waits for are removed.
        lock(&self.questions).retain(|_, question| Arc::strong_count(question) > 1);
        answer
    }

    /// Why no master of a slot is believed.
    pub(crate) fn no_master(&self, said: &Heard) -> Cause {
        let (given, each) = (&self.given, said.each());
        if said.names_any() {
            let words = each.iter().map(|(server, word)| match word {
                Ok(master) => format!("{server} names {master}"),
                Err(Unknown::Name) => format!("{server} knows none"),
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

/// Whether `shown` is a server's address, as [`text::address`] writes it.
fn is_at((host, port): &Endpoint, shown: &str) -> bool {
    let Some((shown, its)) = shown.rsplit_once(':') else {
        return false;
    };
    let bare = shown
        .strip_prefix('[')
        .and_then(|shown| shown.strip_suffix(']'));
    bare.unwrap_or(shown) == host && its.parse() == Ok(*port)
}

fn is_silence(answer: &Result<Arc<Map>, Cause>) -> bool {
    answer.as_ref().err().is_some_and(Cause::is_silence)
}

fn ask_for_map(peer: &Peer, time: (Instant, Duration)) -> Result<Arc<Map>, Cause> {
    let asked = match peer.addr() {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => host,
        _ => "",
    };
    let mut ranges = Ranges::new(asked);
    let command: &[&[u8]] = &[b"CLUSTER", b"SLOTS"];
    let reply = question::ask_and_read(peer, command, time, &mut |reader, begins| {
        if begins {
            ranges = Ranges::new(asked);
        }
        reader.next_by_element(&mut |range| ranges.add(range))
    })?;
    match reply {
        Reply::Array(_) => Ok(Arc::new(ranges.map())),
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

/// A thread that asks a server.
struct Asking(Arc<Cluster>);

impl Asking {
    fn begin(cluster: &Arc<Cluster>, most: usize) -> Result<Asking, Cause> {
        let asking = Asking(cluster.clone());
        let before = cluster.asking.fetch_add(1, Ordering::Relaxed);
        if before < most {
            Ok(asking)
        } else {
            Err(Cause::NotAsked)
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.asking.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::place::directory::Place;
    use crate::settings::into_node::IntoNode;
    use crate::settings::tls::Tls;

    /// A map of two shards, the first at this address.
    fn map(first: &str) -> Map {
        let mut map = Map::default();
        (0..10).for_each(|slot| map.moved(slot, (first.to_owned(), 1)));
        (10..20).for_each(|slot| map.moved(slot, ("c".to_owned(), 1)));
        map
    }

    fn master(cluster: &Cluster, slot: u16) -> String {
        cluster.map().unwrap().master(slot).unwrap().0.clone()
    }

    #[test]
    fn a_server_that_has_lost_a_slot_is_believed_before_others_know() {
        let given = "redis+cluster://seed".into_node().unwrap();
        let trust = Trust::new(&Tls::default(), [given.info()]);
        let place = Place::new(given, &trust, None);
        let cluster = place.cluster().unwrap();
        let start = clock::instant();
        cluster.learn(map("a"), start);
        cluster.moved(3, "a:1", ("b".into(), 1));
        let moved = clock::instant();
        let b = cluster.addr(&("b".into(), 1));
        assert!(
            cluster
                .moved_at(3, &b)
                .is_some_and(|(at, by)| at <= moved && by == "a:1")
        );
        assert_eq!(cluster.moved_at(4, &b), None);
        // Asked before that, right after it, and much later.
        let times = [
            start + (moved - start) / 2,
            moved + BELIEVED / 2,
            moved + BELIEVED,
        ];
        for (asked, first, expected) in [
            (times[0], "a", ["b", "a"]),
            (times[0] + (moved - times[0]) / 2, "x", ["b", "x"]),
            (times[1], "a", ["b", "a"]),
            // The slot has moved on.
            (times[1] + BELIEVED / 4, "x", ["x", "x"]),
            (times[2], "a", ["a", "a"]),
        ] {
            cluster.learn(map(first), asked);
            let found = [3, 4].map(|slot| master(cluster, slot));
            assert_eq!(found, expected, "{first}, {:?}", asked - start);
            assert_eq!(master(cluster, 12), "c");
        }
        assert_eq!(cluster.moved_at(3, &b), None);
    }
}
