//! Whether the nodes are fit for locks.

use std::sync::Arc;
use std::time::Duration;

use redis::ConnectionAddr;

use crate::errors::cause::Cause;
use crate::errors::error::Error;
use crate::lock::lockable::Lockable;
use crate::lock::redlock::Redlock;
use crate::net::discovery::place::Place;
use crate::ops::interview::ask;
use crate::ops::query::MOST_AWAY;
use crate::ops::replicas;
use crate::ops::report::{NodeFacts, Report};
use crate::ops::rules::codes::table_of_codes;
use crate::ops::rules::facts::{Facts, Location, NodeReport};
use crate::ops::rules::sentinel_set::remarks;
use crate::ops::rules::slot_coverage;
use crate::protocol::commands::action::Key;
use crate::protocol::commands::companions::{self, WITNESS};
use crate::protocol::commands::kind::Kind;
use crate::protocol::commands::{slots, witness_keys};
use crate::protocol::node::restart_guard::DEFAULT_TTL;
use crate::values::arithmetic::Ttl;
use crate::values::node_set::NodeSet;
use crate::values::prefix::Prefix;
use crate::values::token::Token;

/// How long the lock that the check takes stays at most.
const PROBE_TTL: Duration = Duration::from_secs(1);
/// The time for all questions to a node, in node timeouts: enough for nodes that need somewhat longer than one for
/// each.
const QUESTIONS: u32 = 20;

impl Redlock {
    /// Checks whether the nodes are fit for locks, and reports what is wrong with them: when a service starts,
    /// or by hand.
    ///
    /// On each node the check takes the lock `probe`, extends and releases it, reads `INFO` and
    /// `CONFIG GET appendfsync`, and measures how fast the node answers and how far its clock is off. Nothing else is
    /// changed. Choose a name that no other lock has, such as `"check:"` and the host's name. If ACL key patterns
    /// (`~locks:*`) restrict the user to some names, choose one of those, such as `"locks:check:"` and the host's name;
    /// otherwise no lock can be tried, which is a warning, and the nodes are not [fit](Report::is_fit). If the program
    /// dies during the check, the key is gone after a second. If `INFO` or `CONFIG` is forbidden, a finding names what
    /// could not be checked.
    ///
    /// In a Redis Cluster all of this is done on each master, with a tag behind the name, as in `check:web-3:{7}`. A
    /// `probe` that has a tag itself, or a [prefix](crate::Options::prefix) with one, is tried on the master of its
    /// slot alone.
    ///
    /// Up to eight replicas of each master of a set or Redis Cluster are asked whether this user may lock there.
    ///
    /// The check uses its own connections, to all nodes in parallel. Each node has
    /// [`connect_timeout`](crate::Options::connect_timeout) to be connected and twenty times
    /// [`node_timeout`](crate::Options::node_timeout) for all questions. With the [restart
    /// guard](crate::Options::restart_guard) it also reports which nodes give no votes yet.
    ///
    #[doc = table_of_codes!()]
    ///
    /// # Errors
    ///
    /// [`Error::Config`] for an empty or too long `probe`, and [`Error::Random`]. Nodes that do not answer are not an
    /// error, but part of the report.
    ///
    /// # Example
    ///
    /// ```no_run
    /// let redlock = redlock_sync::Redlock::new(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])?;
    /// let report = redlock.check("shop:check:web-3")?;
    /// eprint!("{report}");
    /// if !report.is_fit() {
    ///     std::process::exit(1);
    /// }
    /// # Ok::<(), redlock_sync::Error>(())
    /// ```
    pub fn check(&self, probe: impl AsRef<[u8]>) -> Result<Report, Error> {
        self.check_kind(&self.checked(probe)?, Kind::Plain)
    }

    fn check_kind(&self, probe: &Arc<[u8]>, kind: Kind) -> Result<Report, Error> {
        let guard = self.options().max_ttl();
        let ttl = Ttl::new(guard.map_or(PROBE_TTL, |guard| guard.min(PROBE_TTL)))?;
        let node_timeout = self.timeouts().node;
        let mut report = Report {
            findings: Vec::new(),
            shards: Vec::new(),
            probe: self.options().prefix.key(probe).to_vec(),
            prefix: self.options().prefix.clone(),
            node_timeout,
            guard,
        };
        let mut away = 0;
        let shards = self.shards(probe);
        for (places, probe) in &shards {
            let not_asked = |place| NodeFacts(facts(place, Err(Cause::NotAsked)));
            let key = Key::new(probe.clone(), Token::random().map_err(Error::Random)?, None)
                .of_kind(kind.clone());
            let shard: Vec<NodeFacts> = match away < MOST_AWAY {
                true => self.facts(places, key.sent_to(NodeSet::ALL), ttl),
                false => places.iter().map(not_asked).collect(),
            };
            away += usize::from(shard.iter().any(|node| node.node_report().is_none()));
            report.shards.push(shard);
        }
        let masters = shards.iter().flat_map(|(places, _)| places);
        self.replicas(&mut report, masters);
        self.clusters(&mut report);
        report.number();
        report.judge(None);
        Ok(report)
    }

    /// The places of the nodes, in a Redis Cluster for each shard, and the name that is locked there for a try.
    fn shards(&self, probe: &Arc<[u8]>) -> Vec<(Vec<Place>, Arc<[u8]>)> {
        let connect_timeout = self.timeouts().connect;
        let prefix = &self.options().prefix;
        let slot = |name: &[u8]| slots::slot(&prefix.key(name));
        let nodes = self.places();
        let at = |slot| -> Vec<Place> { nodes.iter().map(|place| place.of_slot(slot)).collect() };
        let clusters = nodes.iter().filter_map(Place::cluster);
        let mut found: Vec<u16> = Vec::new();
        for cluster in clusters {
            drop(cluster.ask_all(0, None, connect_timeout));
            found.extend(cluster.map().iter().flat_map(|map| map.shards()));
        }
        let own = slot(probe);
        let mut shards = vec![(at(own), probe.clone())];
        // All names with this prefix or this tag are in one slot.
        if companions::tag(&prefix.key(probe)).is_some() {
            return shards;
        }
        for one in found {
            if shards.iter().any(|(places, _)| have(places, one)) {
                continue;
            }
            let places = at(one);
            if let Some(name) = name_in(&places, probe, prefix) {
                shards.push((places, name.into()));
            }
        }
        shards
    }

    /// The facts about the nodes of a shard.
    fn facts(&self, places: &[Place], key: Key, ttl: Ttl) -> Vec<NodeFacts> {
        let connect_timeout = self.timeouts().connect;
        let prefix = self.options().prefix.clone();
        let default = self.options().restart_guard.is_none();
        let default = default && places.iter().any(Place::is_set);
        let default_guard = default.then_some(DEFAULT_TTL);
        let guarded = self.options().max_ttl().or(default_guard).is_some();
        let in_cluster = places.iter().any(Place::is_in_cluster);
        let tagged = in_cluster.then(|| name_in(places, WITNESS, &prefix));
        let witness = tagged.flatten().unwrap_or_else(|| WITNESS.to_vec());
        let answers = self.query(places, QUESTIONS, move |query| {
            let witness = guarded.then_some(&witness[..]);
            ask(query, (witness, in_cluster), (&key, &prefix), ttl)
        });
        let described = Place::describe(places, connect_timeout);
        let nodes = places.iter().zip(answers).zip(described);
        let nodes = nodes.map(|((place, node_report), sentinels)| {
            let mut facts = facts(place, node_report);
            if let Some(sentinels) = sentinels {
                let node_report = facts.node_report.as_ref().ok();
                let info = node_report.and_then(|report| report.info.as_ref().ok());
                facts.remarks = remarks(
                    &sentinels,
                    info,
                    node_report.map(|report| report.needs).unwrap_or_default(),
                );
            }
            facts.default_guard = default_guard.filter(|_| place.is_set());
            facts.in_cluster = place.is_in_cluster();
            NodeFacts(facts)
        });
        nodes.collect()
    }

    /// Adds the remarks about the replicas of these masters, which are those of the report.
    fn replicas<'a>(&self, report: &mut Report, masters: impl Iterator<Item = &'a Place>) {
        let lock = report.probe.clone();
        let nodes = report.shards.iter_mut().flatten().zip(masters);
        let (mut found, mut asked) = (Vec::new(), Vec::new());
        for (NodeFacts(facts), place) in nodes {
            if let Ok(node_report) = &facts.node_report
                && let Ok(info) = &node_report.info
            {
                asked.push((place, replicas::of(info)));
                found.push(&mut facts.remarks);
            }
        }
        for (remarks, more) in found
            .into_iter()
            .zip(self.rights_on_replicas(&asked, &lock))
        {
            remarks.extend(more);
        }
    }

    /// Adds the remarks about each Redis Cluster as a whole.
    fn clusters(&self, report: &mut Report) {
        for (node, place) in self.places().iter().enumerate() {
            let Some(cluster) = place.cluster() else {
                continue;
            };
            let missing = cluster.map().map_or(0, |map| map.missing());
            let masters = report.shards.iter().filter_map(|nodes| nodes.get(node));
            let node_reports = masters.filter_map(NodeFacts::node_report);
            let found = slot_coverage::remarks(missing, node_reports, self.options().max_ttl());
            let first = report.shards.first_mut();
            if let Some(facts) = first.and_then(|nodes| nodes.get_mut(node)) {
                facts.0.remarks.extend(found);
            }
        }
    }
}

/// A name that begins with this one, in a slot that these nodes have.
fn name_in(places: &[Place], name: &[u8], prefix: &Prefix) -> Option<Vec<u8>> {
    let mut names = (0..witness_keys::MOST_TAGS).map(|n| witness_keys::tagged(name, n));
    names.find(|name| have(places, slots::slot(&prefix.key(name))))
}

fn have(places: &[Place], slot: u16) -> bool {
    places.iter().all(|place| place.has(slot))
}

impl Lockable {
    /// Checks whether the nodes are fit for these locks, which need more commands than the plain lock that
    /// [`Redlock::check`] tries. Give it a separate name.
    ///
    /// # Errors
    ///
    /// [`Error::Random`].
    pub fn check(&self) -> Result<Report, Error> {
        let (redlock, resource, kind) = self.parts();
        redlock.check_kind(resource, kind.clone())
    }
}

fn facts(node: &Place, node_report: Result<NodeReport, Cause>) -> Facts {
    let given = node.given();
    let info = given.info();
    let (plain, insecure) = match info.addr() {
        ConnectionAddr::TcpTls { insecure, .. } => (false, *insecure),
        _ => (true, false),
    };
    let location = match info.addr() {
        ConnectionAddr::Tcp(..) | ConnectionAddr::TcpTls { .. } => None,
        _ => Some(Location::ThisMachine),
    };
    let node_report = node_report.map(|report| {
        let location = match location.unwrap_or(report.location) {
            Location::Ip(ip) if ip.to_canonical().is_loopback() => Location::ThisMachine,
            location => location,
        };
        NodeReport { location, ..report }
    });
    Facts {
        address: node.shown().to_string(),
        node_report,
        plain_password: plain && info.redis_settings().password().is_some(),
        insecure,
        number: 0,
        is_set: node.is_set(),
        default_guard: None,
        in_cluster: false,
        remarks: Vec::new(),
    }
}
