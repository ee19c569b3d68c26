//! A Redis Cluster: its servers, and the questions for its map.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::ConnectionAddr;

use crate::errors::cause::{ANNOUNCE, Cause};
use crate::errors::text;
use crate::net::discovery::asker::{Asker, Patience, ServerAnswer};
use crate::net::discovery::given_node::GivenNode;
use crate::net::discovery::server_question::{self, NamedAddress, Opinions, QuestionTime};
use crate::net::socket::peer::{Peer, WithoutId};
use crate::protocol::cluster::asked_servers::{AskedPart, AskedServers};
use crate::protocol::cluster::cluster_answers::{self, Known, MapAnswer, MapAnswers, no_map};
use crate::protocol::cluster::cluster_map::{ClusterMap, ToAsk};
use crate::protocol::cluster::cluster_votes::About;
use crate::protocol::commands::resp::Reply;
use crate::protocol::commands::slots::{SlotMap, SlotRanges};
use crate::protocol::discovery::directory_questions::ReceivedAnswer;
use crate::protocol::discovery::found_master::{DirectoryAnswer, FoundMaster};
use crate::protocol::discovery::opinions::Unknown;
use crate::settings::url;
use crate::values::clock;
use crate::values::endpoint::{Endpoint, is_at};
use crate::values::sync::{
    Mutex,
    atomic::{AtomicU16, AtomicU64, Ordering},
    lock,
};

/// The answers of a Cluster's servers.
pub(crate) type Maps = cluster_answers::Maps<ConnectionAddr>;

/// How long a question for the map may take that a redirect leads to.
const ASK: Duration = Duration::from_secs(1);
/// The most threads that ask at the same time. One that resolves a name may take long. The second half is for threads
/// that confirm masters: without an answer no locks are granted.
const MAX_THREADS: usize = 128;

pub(crate) struct ClusterServers {
    pub(crate) given: Arc<GivenNode>,
    pub(super) seeds: Vec<Peer>,
    cluster_map: Mutex<ClusterMap>,
    /// How often the map has changed. (Each call reads it.)
    changes: AtomicU64,
    /// Whether the map was asked for.
    looked_up: Mutex<bool>,
    asker: Arc<Asker<Arc<SlotMap>>>,
    without_id: WithoutId,
}

impl ClusterServers {
    /// Returns `None` if the node is no Cluster.
    pub(crate) fn new(given: &Arc<GivenNode>) -> Option<ClusterServers> {
        let seeds = given.node.cluster()?.iter();
        Some(ClusterServers {
            given: given.clone(),
            seeds: seeds.map(|info| given.peer(info.addr().clone())).collect(),
            cluster_map: Mutex::default(),
            changes: AtomicU64::new(0),
            looked_up: Mutex::default(),
            asker: Asker::new(),
            without_id: WithoutId::default(),
        })
    }

    pub(crate) fn map(&self) -> Option<Arc<SlotMap>> {
        lock(&self.cluster_map).map().cloned()
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

    /// Records that the server at `from` reported `to` as the slot's owner. `own`: the slot by which a place is asked for that
    /// leads to `from`. Returns whether the maps are to be asked for: until now the slot had another server.
    pub(crate) fn slot_moved(
        &self,
        slot: u16,
        (from, to): (&str, Endpoint),
        own: Option<&AtomicU16>,
    ) -> bool {
        if !url::is_host(&to.0) {
            return true;
        }
        let mut cluster_map = lock(&self.cluster_map);
        let to = cluster_map.names.known_name(to);
        let (changed, is_first) = (
            cluster_map.slot_moved(slot, from, to, clock::instant()),
            cluster_map.map().is_none(),
        );
        let own = own.filter(|own| own.load(Ordering::Relaxed) == slot);
        let stays = own.and_then(|own| Some((own, cluster_map.stays(slot, from)?)));
        drop(cluster_map);
        if let Some((own, other)) = stays {
            own.store(other, Ordering::Relaxed);
        }
        // Counted last: a thread that looks for the slot's lane before that looks once more. In between it would find the lane
        // whose place is still asked for by the slot, and keep that.
        self.has_changed(changed || stays.is_some());
        changed || is_first
    }

    /// When the server that lost the slot to this one reported it, if others may not have learnt it yet; and its
    /// address.
    pub(crate) fn moved_at(&self, slot: u16, to: &ConnectionAddr) -> Option<(Instant, String)> {
        let cluster_map = lock(&self.cluster_map);
        cluster_map.moved_at(slot, |endpoint| self.given.addr(endpoint) == *to)
    }

    /// Whether this is the address of a server that was given.
    pub(crate) fn is_given(&self, addr: &ConnectionAddr) -> bool {
        self.seeds.iter().any(|seed| seed.addr() == addr)
    }

    /// The server at this address, which has to be the one that the known map means, as far as both report its ID, and one of
    /// a Cluster.
    pub(super) fn peer(&self, addr: ConnectionAddr) -> Peer {
        let meant = named_at(&addr).and_then(|server| lock(&self.cluster_map).meant(&server));
        self.given.peer(addr).meaning(meant, &self.without_id)
    }

    /// A server that is asked for its map. At an address that was given any one counts: all servers may have been replaced.
    fn asked_peer(&self, addr: ConnectionAddr) -> Peer {
        match self.is_given(&addr) {
            true => self.given.peer(addr),
            false => self.peer(addr),
        }
    }

    /// The servers to ask where a slot is.
    fn to_ask(&self, about: Option<About<'_>>) -> AskedServers<ConnectionAddr> {
        let mut seeds = self.seeds.iter().map(|seed| seed.addr().clone());
        let (order, turn) = match lock(&self.cluster_map).next_to_ask(about, clock::instant()) {
            ToAsk::Seeds => return AskedServers::given(seeds.collect()),
            ToAsk::Servers(order, turn) => (order, turn),
        };
        let addrs = order.servers.iter().map(|one| self.given.addr(one));
        let seed = turn.checked_rem(self.seeds.len());
        let seed = seed.and_then(|seed| seeds.nth(seed));
        let is_it = |addr: &ConnectionAddr| {
            about.is_some_and(|about| *text::address(addr) == *about.address)
        };
        AskedServers::known(
            addrs.collect(),
            order.first,
            seed.filter(|seed| !is_it(seed)),
        )
    }

    /// Asks servers at once where a slot is, and waits until their answers decide it, at most for `time`. The answer of
    /// most of them is believed. `about`: the master that is to be confirmed.
    pub(crate) fn ask_all(
        self: &Arc<Self>,
        slot: u16,
        about: Option<About<'_>>,
        time: Duration,
    ) -> Maps {
        let will_do = |maps: &Maps| {
            self.judged(|cluster_map| maps.will_do(about, cluster_map, clock::instant()))
        };
        self.ask_until(slot, about, time, will_do)
    }

    /// The verdict on answers by what is known.
    fn judged<T>(&self, judge: impl FnOnce(Known<'_, ConnectionAddr>) -> T) -> T {
        let map = self.map();
        judge(Known {
            map: map.as_deref(),
            addr: &|endpoint| self.given.addr(endpoint),
        })
    }

    /// Whether the master that is believed counts without being asked about once more.
    pub(super) fn is_confirmed(&self, maps: &Maps) -> bool {
        self.judged(|cluster_map| maps.is_confirmed(cluster_map))
    }

    /// Whether the server still is the master of this slot, or, by most of the answers, of another one, which then replaces
    /// it. `None` if the answers do not decide it.
    pub(super) fn confirm(
        &self,
        maps: &Maps,
        slot: &AtomicU16,
        (found, about): (&FoundMaster, About<'_>),
        asked: Instant,
    ) -> Option<DirectoryAnswer> {
        if !found.may_be(lock(&self.cluster_map).id_at(about.address)) {
            let answer = Err(Cause::OtherServer);
            return Some(DirectoryAnswer {
                result: answer,
                at: asked,
            });
        }
        let (answer, stays) =
            self.judged(|cluster_map| maps.answer_about(about, cluster_map, asked))?;
        if let Some(other) = stays {
            slot.store(other, Ordering::Relaxed);
        }
        Some(answer)
    }

    /// Asks like [`ask_all`](Self::ask_all), but waits only until `will_do` returns true.
    fn ask_until(
        self: &Arc<Self>,
        slot: u16,
        about: Option<About<'_>>,
        time: Duration,
        will_do: impl Fn(&Maps) -> bool,
    ) -> Maps {
        let until = clock::instant() + time;
        let asked = self.to_ask(about);
        let will_do = |maps: &Maps| will_do(maps) || maps.opinions.has_all();
        let none = vec![None; asked.servers.len()];
        let (what, first) = ((slot, about, time), asked.first_part(time));
        let (mut maps, mut heard) = self.ask_these(what, (&asked, first), none, &will_do);
        let now = clock::instant();
        if asked.are_given {
            let rest = until.saturating_duration_since(now);
            if !maps.opinions.has_all() && !rest.is_zero() {
                let more = asked.others(rest);
                (maps, heard) =
                    self.ask_these(what, (&asked, more), heard, &|maps| maps.opinions.has_all());
            }
            maps = maps.of_one_cluster();
        }
        if first.has_more && !self.judged(|cluster_map| maps.is_enough(about, cluster_map, now)) {
            heard.resize(asked.servers.len(), None);
            let all = asked.all(until.saturating_duration_since(now));
            (maps, _) = self.ask_these(what, (&asked, all), heard, &will_do);
        }
        if let Some((map, asked)) = maps.to_learn(self.map().as_deref()) {
            let changed = lock(&self.cluster_map).learn(map.clone(), asked);
            self.has_changed(changed);
        }
        maps
    }

    /// Asks those of this part of the servers that have not answered before, and waits until `will_do` returns true of the
    /// answers of all of them, which are returned, too. `whole`: the caller's time, as errors show it.
    fn ask_these(
        self: &Arc<Self>,
        (slot, about, whole): (u16, Option<About<'_>>, Duration),
        (asked, part): (&AskedServers<ConnectionAddr>, AskedPart),
        before: MapAnswers,
        will_do: &impl Fn(&Maps) -> bool,
    ) -> (Maps, MapAnswers) {
        let now = clock::instant();
        let patience = Patience {
            time: part.waits,
            lasts: server_question::share(part.lasts),
            most: MAX_THREADS / if about.is_some() { 1 } else { 2 },
        };
        let servers = || asked.servers.iter().take(part.servers);
        let peers = servers().zip(&before);
        let peers = peers.filter_map(|(addr, before)| match before {
            Some(_) => None,
            None => Some(self.asked_peer(addr.clone())),
        });
        let peers: Vec<Peer> = peers.collect();
        let cluster = self.clone();
        let ask = move |peer: &Peer, turn: &QuestionTime<'_>| cluster.ask(peer, turn);
        // A master that is looked for may have got the slot just now, by the word of the one that has lost it. One that is asked
        // about is confirmed by what others report themselves.
        let trusts_redirects = about.is_none();
        let read = |map: &Arc<SlotMap>, asked| self.named(map, slot, asked, trusts_redirects);
        let weigh = |heard: &[ReceivedAnswer<'_, MapAnswer>]| {
            let all = part.answers(&before, heard, now);
            let shown: Vec<String> = servers().map(text::address).collect();
            let opinions = Opinions::of((shown, part.spare), (now, whole), &all, read);
            let told = all.iter().map(|heard| match heard {
                ReceivedAnswer::Answer(told, asked) => Some(((*told).clone(), *asked)),
                _ => None,
            });
            (Maps::of(opinions, &all), told.collect())
        };
        let is_enough = |(maps, _): &(Maps, MapAnswers)| will_do(maps);
        (self.asker).ask_all(&peers, patience, ask, weigh, is_enough)
    }

    /// The master of a slot, by a server's map that was asked for then.
    fn named(
        &self,
        map: &SlotMap,
        slot: u16,
        asked: Instant,
        trusts_redirects: bool,
    ) -> NamedAddress {
        let cluster_map = lock(&self.cluster_map);
        let master = match trusts_redirects {
            true => cluster_map.master(map, slot, asked),
            false => map.master(slot),
        };
        cluster_answers::named(master, |master| self.given.addr(master))
    }

    /// Asks for the map again. Returns whether most of the servers that were asked agree on the slot.
    pub(crate) fn refresh(self: &Arc<Self>, slot: u16) -> bool {
        let maps = self.ask_all(slot, None, ASK);
        maps.opinions.believed().is_some()
    }

    /// Asks for the map the first time. From then on, connecting asks for it.
    pub(crate) fn look_up(self: &Arc<Self>, slot: u16, time: Duration) {
        // The others wait for the map: otherwise each slot would have separate connections.
        let mut looked_up = lock(&self.looked_up);
        if !std::mem::replace(&mut *looked_up, true) {
            // For a first map one answer is enough: the others are compared with it if they come soon.
            let will_do = |maps: &Maps| maps.opinions.names_any();
            drop(self.ask_until(slot, None, time, will_do));
        }
    }

    /// The map of one of the servers.
    fn ask(&self, peer: &Peer, turn: &QuestionTime<'_>) -> ServerAnswer<Arc<SlotMap>> {
        let map = ask_for_map(peer, turn)?;
        // Errors name servers, so none may repeat the password.
        let secret = self.given.secret();
        let repeats = map.servers().any(|(host, _)| secret.is_in_host(host));
        match repeats {
            true => Err(no_map()),
            false => {
                let mut cluster_map = lock(&self.cluster_map);
                Ok(Arc::new(cluster_map.names.unify(map, clock::instant())))
            }
        }
    }

    /// The known name of a server that a redirect names like this.
    pub(crate) fn name_of(&self, endpoint: &Endpoint) -> Endpoint {
        lock(&self.cluster_map).names.known_name(endpoint.clone())
    }

    /// Notes whether the server at this address can be reached.
    pub(crate) fn is_reached(&self, addr: &ConnectionAddr, is_reached: bool) {
        if let Some(name) = named_at(addr) {
            lock(&self.cluster_map).names.is_reached(&name, is_reached);
        }
    }

    /// Why no master of a slot is believed.
    pub(crate) fn no_master(&self, opinions: &Opinions) -> Cause {
        let (given, each) = (&self.given.node, opinions.each());
        if opinions.names_any() {
            let words = each.iter().map(|(server, word)| match word {
                Ok(master) => format!("{server} names {master}"),
                Err(Unknown::Name | Unknown::Again) => format!("{server} knows none"),
                Err(Unknown::Failed(cause)) => format!("{server}: {}", cause.without_advice()),
            });
            let words = words.collect::<Vec<_>>().join("; ");
            let advice = self.advice(&each, Cause::may_be_elsewhere);
            let text = format!(
                "no majority of the servers of the {given} names the master of that slot: {words}{advice}"
            );
            return Cause::NoMaster(text, false);
        }
        let failed = each.iter().filter_map(|(_, word)| match word {
            Err(Unknown::Failed(cause)) => Some(cause),
            _ => None,
        });
        let failed: Vec<&Cause> = failed.collect();
        let of_two = |cause: &&&Cause| matches!(cause, Cause::NoMaster(..));
        let Some(cause) = failed.iter().find(of_two).or(failed.first()) else {
            let text = format!("the {given} does not serve that slot: look at CLUSTER INFO");
            return Cause::NoMaster(text, false);
        };
        let is_final = |cause: &&Cause| cause.is_final() || cause.is_no_cluster();
        let is_final = failed.iter().all(is_final) && failed.len() == each.len();
        let why = match cause {
            Cause::NotConnected(time, _) => format!("no answer within {}", text::human(*time)),
            Cause::NoMaster(..) => return (*cause).clone(),
            cause if cause.is_no_cluster() => format!(
                "{} (that is no Redis Cluster: write {}://host:port)",
                cause.without_advice(),
                self.given.scheme()
            ),
            cause => cause.to_string(),
        };
        // If none can be reached at all, the network or the whole Cluster may be down.
        let advice = self.advice(&each, Cause::is_of_another);
        let text = format!("no server of the {given} names the others: {why}{advice}");
        Cause::NoMaster(text, is_final)
    }

    /// Advice, if an address by which servers name one of them may not be that one's for this host.
    fn advice(
        &self,
        each: &[(&str, Result<String, Unknown>)],
        is_so: impl Fn(&Cause) -> bool,
    ) -> String {
        let is_given = |server: &str| {
            let mut seeds = self.seeds.iter();
            seeds.any(|one| *text::address(one.addr()) == *server)
        };
        let elsewhere = each.iter().find(|(server, word)| match word {
            Err(Unknown::Failed(cause)) => is_so(cause) && !is_given(server),
            _ => false,
        });
        elsewhere.map_or_else(String::new, |(at, _)| format!(" (at {at}: {ANNOUNCE})"))
    }
}

/// The host and the port of an address, as a map has them.
fn named_at(addr: &ConnectionAddr) -> Option<Endpoint> {
    match addr {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            Some((host.clone(), *port))
        }
        _ => None,
    }
}

fn ask_for_map(peer: &Peer, turn: &QuestionTime<'_>) -> Result<SlotMap, Cause> {
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

#[cfg(test)]
pub(super) mod tests;
