//! The master of a set or of a shard: how it is found, connected to and confirmed (rule R43).

use std::sync::Arc;
use std::time::Duration;

use redis::ConnectionAddr;

use crate::errors::cause::{ANNOUNCE, ANNOUNCE_MASTER, Announced, Cause};
use crate::errors::server_error::Meaning;
use crate::errors::text;
use crate::net::discovery::cluster_servers::ClusterServers;
use crate::net::discovery::given_node::GivenNode;
use crate::net::discovery::sentinels::{Sentinels, no_address};
use crate::net::discovery::server_question::{self, Opinions};
use crate::net::socket::connection::Connection;
use crate::net::socket::peer::Peer;
use crate::net::socket::set_up::Purpose;
use crate::protocol::cluster::cluster_votes::About;
use crate::protocol::discovery::found_master::{
    DirectoryAnswer, DirectoryTimes, FoundMaster, MasterConfirmation,
};
use crate::protocol::node::server_properties::{ServerInCluster, ServerProperties};
use crate::values::clock;
use crate::values::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU16, Ordering},
    lock,
};

/// How many keys are tried for the witness.
const MAX_WITNESSES: usize = 3;

/// The source that names a master, which may change.
pub(crate) struct Directory {
    pub(super) given: Arc<GivenNode>,
    pub(super) source: Source,
    pub(super) shown: Mutex<Arc<str>>,
    /// Whether it was logged that nothing confirms the address.
    warned: AtomicBool,
}

/// The servers that name the master.
pub(super) enum Source {
    Sentinels(Arc<Sentinels>),
    /// The shard that owns this slot. If the slot moves to another shard, another slot of the shard replaces it.
    Cluster(Arc<ClusterServers>, AtomicU16),
}

/// The properties of a server of a Cluster.
pub(crate) fn routed(
    properties: ServerProperties,
    peer: &Peer,
    witness: Option<Vec<u8>>,
) -> ServerProperties {
    ServerProperties {
        witness_key: witness.map(Into::into),
        routed: true,
        server: ServerInCluster {
            address: text::address(peer.addr()).into(),
            ..properties.server
        },
        ..properties
    }
}

impl Directory {
    pub(super) fn new(given: Arc<GivenNode>, source: Source) -> Directory {
        Directory {
            shown: Mutex::new(given.node.to_string().into()),
            warned: AtomicBool::new(false),
            given,
            source,
        }
    }

    /// The Cluster of a shard, and the slot by which it is asked for.
    pub(super) fn shard(&self) -> Option<(&Arc<ClusterServers>, &AtomicU16)> {
        match &self.source {
            Source::Cluster(cluster, slot) => Some((cluster, slot)),
            Source::Sentinels(_) => None,
        }
    }

    /// Asks for the master, and connects to it. Only a question that has lasted its whole time shows that a sentinel is
    /// silent. Locks try again; a look has one try, and so it waits that long.
    pub(super) fn open(
        &self,
        timeout: Duration,
        purpose: Purpose<'_>,
    ) -> Result<(Connection, ServerProperties), Cause> {
        let until = clock::instant() + timeout;
        // The master needs its share of the time.
        let share = timeout / 2;
        let time = match (&self.source, purpose) {
            (Source::Sentinels(_), Purpose::Looks) => share + DirectoryTimes::REAL.lasts,
            _ => share,
        };
        let (opinions, is_confirmed) = self.ask(time);
        let Some(named) = opinions.believed() else {
            return Err(self.no_master(&opinions));
        };
        // Others may not have learnt yet that it has become the master.
        let moved = self.shard().and_then(|(cluster, slot)| {
            cluster.moved_at(slot.load(Ordering::Relaxed), &named.addr)
        });
        let (at, by) = moved.unwrap_or_else(|| (named.at, named.by.clone()));
        let (address, at) = (self.at(&named.addr), at.min(named.at));
        let by_most = named.by_most && is_confirmed;
        let found = FoundMaster::new(address, at, by_most, DirectoryTimes::REAL);
        let peer = self.shard().map_or_else(
            || self.given.peer(named.addr.clone()),
            |(cluster, _)| cluster.peer(named.addr.clone()),
        );
        // Over before its caller's time, or that would end without the address that does not answer.
        let rest = server_question::share(until.saturating_duration_since(clock::instant()));
        let connected = self.connect(&peer, rest.max(share), purpose);
        self.check_host(&named.addr)?;
        // A subscription may lead elsewhere than the connection for locks.
        if purpose != Purpose::Messages {
            *lock(&self.shown) = found.address.clone();
        }
        let is_reached = connected
            .as_ref()
            .err()
            .is_none_or(|cause| !cause.is_silence());
        if let Some((cluster, _)) = self.shard() {
            cluster.is_reached(&named.addr, is_reached);
        }
        match connected {
            Ok((connection, properties)) => {
                let id = properties.server.id;
                let found = Some(FoundMaster { id, ..found });
                let properties = ServerProperties {
                    found,
                    ..properties
                };
                Ok((connection, properties))
            }
            Err(cause) => Err(self.announced(over_whole_time(timeout, cause), &named.addr, by)),
        }
    }

    /// Refuses a host that repeats a password, which the closure may have returned for the first time just now.
    fn check_host(&self, addr: &ConnectionAddr) -> Result<(), Cause> {
        match addr {
            ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. }
                if self.given.secret().is_in_host(host) =>
            {
                Err(no_address())
            }
            _ => Ok(()),
        }
    }

    /// Why no master is believed.
    fn no_master(&self, opinions: &Opinions) -> Cause {
        match &self.source {
            Source::Sentinels(sentinels) => sentinels.no_master(opinions),
            Source::Cluster(cluster, _) => cluster.no_master(opinions),
        }
    }

    /// Adds the address, and the server that has named it. One that cannot be reached, or where something else answers, may
    /// be one that the servers use for each other, in a separate network.
    fn announced(&self, cause: Cause, addr: &ConnectionAddr, by: String) -> Cause {
        let may_be_elsewhere = cause.may_be_elsewhere();
        let (by, advice) = match &self.source {
            _ if cause.is_of_this_process() || cause.is_replica() => return cause,
            Source::Cluster(cluster, _) if cluster.is_given(addr) => return cause,
            Source::Cluster(..) => (by, may_be_elsewhere.then_some(ANNOUNCE)),
            Source::Sentinels(_) => {
                // Users are not replicated: a login that is refused may well be refused by the master.
                let is_it = cause.meaning().concerns_login();
                let advice = (may_be_elsewhere && !is_it).then_some(ANNOUNCE_MASTER);
                (format!("the sentinel {by}"), advice)
            }
        };
        // In a Cluster the map may change.
        let in_cluster = matches!(self.source, Source::Cluster(..));
        Cause::Announced(Box::new(Announced {
            at: text::address(addr),
            shown: self.at(addr),
            is_final: cause.is_final() && !(in_cluster && may_be_elsewhere),
            cause,
            by,
            advice,
        }))
    }

    /// Connects to the master. In a Cluster its witness is in one of its slots, and other servers have other keys.
    fn connect(
        &self,
        peer: &Peer,
        timeout: Duration,
        purpose: Purpose<'_>,
    ) -> Result<(Connection, ServerProperties), Cause> {
        let Some((cluster, slot)) = self.shard() else {
            return Connection::open(peer, timeout, purpose);
        };
        let Purpose::GuardedLocks {
            witness: Some(plain),
            seasoned,
            needed,
        } = purpose
        else {
            let (connection, properties) = Connection::open(peer, timeout, purpose)?;
            return Ok((connection, routed(properties, peer, None)));
        };
        let (until, map) = (
            clock::instant() + timeout,
            cluster.map().unwrap_or_default(),
        );
        let mut elsewhere = None;
        let slot = slot.load(Ordering::Relaxed);
        for witness in map.witnesses(slot, plain).take(MAX_WITNESSES) {
            let purpose = Purpose::GuardedLocks {
                witness: Some(&witness),
                seasoned,
                needed,
            };
            let rest = until.saturating_duration_since(clock::instant());
            match Connection::open(peer, rest, purpose) {
                Ok((connection, properties)) => {
                    return Ok((connection, routed(properties, peer, Some(witness))));
                }
                // The witness's slot is migrating.
                Err(Cause::Refused(text)) if Meaning::of(&text).is_redirection() => {
                    elsewhere = Some(Cause::Connect(format!("its witness moves: {text}")));
                }
                Err(cause) => return Err(cause),
            }
        }
        Err(elsewhere.unwrap_or(Cause::NotAsked))
    }

    /// The opinions of the servers, and whether acquires are sent to the master that most of them name before it was asked about
    /// once more.
    fn ask(&self, time: Duration) -> (Opinions, bool) {
        match &self.source {
            Source::Sentinels(sentinels) => (sentinels.ask_all(time), true),
            Source::Cluster(cluster, slot) => {
                let slot = slot.load(Ordering::Relaxed);
                let maps = cluster.ask_all(slot, None, time);
                let is_confirmed = cluster.is_confirmed(&maps);
                (maps.opinions, is_confirmed)
            }
        }
    }

    /// The text that a server is shown as.
    fn at(&self, addr: &ConnectionAddr) -> Arc<str> {
        let address = text::address(addr);
        match &self.source {
            Source::Sentinels(sentinels) => format!("{} at {address}", sentinels.name).into(),
            Source::Cluster(..) => address.into(),
        }
    }

    /// Asks whether the master still is where it was found (rule R43).
    pub(super) fn confirm(&self, found: &FoundMaster) -> MasterConfirmation {
        let (asked, time) = (clock::instant(), DirectoryTimes::REAL.confirm);
        let address = &*found.address;
        let (opinions, answer) = match &self.source {
            Source::Sentinels(sentinels) => {
                let opinions = sentinels.ask_all(time);
                let is_there = |addr: &ConnectionAddr| match *self.at(addr) == *address {
                    true => Ok(()),
                    false => Err(Cause::MasterReplaced(text::address(addr))),
                };
                let answer = DirectoryAnswer::of(&opinions.belief(), asked, is_there);
                (opinions, answer)
            }
            Source::Cluster(cluster, slot) => {
                let of = slot.load(Ordering::Relaxed);
                let lately = found.is_confirmed;
                let about = About { address, lately };
                let maps = cluster.ask_all(of, Some(about), time);
                let answer = cluster.confirm(&maps, slot, (found, about), asked);
                (maps.opinions, answer)
            }
        };
        let is_sure = answer
            .as_ref()
            .is_some_and(|answer| answer.result.is_err() || !opinions.is_silence());
        let was_warned = self.warned.swap(!is_sure, Ordering::Relaxed);
        if !was_warned && !is_sure {
            self.warn(&opinions, answer.is_some());
        }
        answer.ok_or_else(|| Some(self.doubt(&opinions, address)))
    }

    /// Why the answers do not decide whether the master still is at `address`.
    fn doubt(&self, opinions: &Opinions, address: &str) -> Cause {
        let text = match (&self.source, opinions.believed()) {
            (Source::Cluster(cluster, _), Some(named)) => format!(
                "most servers of the {} name {} as the master of that slot, and do not agree on whether {address} has others",
                cluster.given.node,
                text::address(&named.addr),
            ),
            _ => match self.no_master(opinions) {
                Cause::NoMaster(text, _) => text,
                cause => cause.to_string(),
            },
        };
        // The question is repeated soon, so the cause is not final.
        Cause::NoMaster(text, false)
    }

    fn warn(&self, opinions: &Opinions, goes_on: bool) {
        let given = &self.given.node;
        let until = match opinions.names_any() {
            true => "most agree",
            false => "one does",
        };
        match (&self.source, goes_on) {
            (Source::Sentinels(_), true) => say!(
                warn,
                "no sentinel of {given} answers: locks go on, and no failover comes about",
            ),
            (Source::Cluster(..), true) => {
                say!(
                    warn,
                    "no other server of the {given} can be asked: locks go on, since it has no other master",
                )
            }
            (_, false) => say!(
                warn,
                "{}: no locks are granted there until {until}",
                self.no_master(opinions)
            ),
        }
    }
}

/// The cause with the caller's timeout: the connection had only a share of that.
fn over_whole_time(timeout: Duration, cause: Cause) -> Cause {
    match cause {
        Cause::NotConnected(..) => Cause::NotConnected(timeout, timeout),
        Cause::Unanswered(_, command) => Cause::Unanswered(timeout, command),
        cause => cause,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;

    use super::*;
    use crate::net::discovery::place::Place;
    use crate::net::socket::trust::Trust;
    use crate::settings::into_node::IntoNode;
    use crate::settings::tls::Tls;

    /// The URL of a server that names itself as the owner of all slots, answers HELLO, and hangs up at scripts.
    fn only_server() -> (String, u16) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let hello = "*2\r\n$4\r\nrole\r\n$6\r\nmaster\r\n".to_owned();
        let map = "*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n";
        let map = format!("{map}:{port}\r\n");
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let (hello, map) = (hello.clone(), map.clone());
                std::thread::spawn(move || {
                    let mut page = [0; 65_536];
                    while let Ok(count @ 1..) = stream.read(&mut page) {
                        let text = String::from_utf8_lossy(&page[..count]);
                        for (word, reply) in [("HELLO", &hello), ("CLUSTER", &map)] {
                            if text.contains(word) {
                                let _ = stream.write_all(reply.as_bytes());
                            }
                        }
                        if text.contains("SCRIPT") {
                            break;
                        }
                    }
                });
            }
        });
        (format!("redis+cluster://127.0.0.1:{port}"), port)
    }

    #[test]
    fn a_subscription_does_not_decide_where_locks_are_connected() {
        let (url, port) = only_server();
        let given = url.into_node().unwrap();
        let trust = Trust::new(&Tls::default(), [given.info()]);
        let place = Place::new(given, &trust, None).of_slot(0);
        let opened = |time, purpose| {
            let opened = place.open(Duration::from_millis(time), purpose);
            (opened.is_ok(), place.leads_to(0), place.shown())
        };
        let (is_open, leads, shown) = opened(60_000, Purpose::Messages);
        let given = format!("cluster of 127.0.0.1:{port}");
        assert_eq!((is_open, leads, &*shown), (true, false, &*given));
        // (The server is found, though it takes no script.)
        let (_, leads, shown) = opened(60_000, Purpose::Locks);
        assert_eq!((leads, &*shown), (true, &*format!("127.0.0.1:{port}")));
    }
}
