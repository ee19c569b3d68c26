use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::ConnectionAddr;

use crate::errors::cause::Cause;
use crate::errors::error::Error;
use crate::errors::server_error::refuses_companions;
use crate::lock::lockable::Lockable;
use crate::lock::redlock::{Redlock, checked};
use crate::net::place::directory::Place;
use crate::ops::coverage;
use crate::ops::findings::{
    self, Coverage, Facts, Finding, Needs, NodeReport, Rules, Severity, TrialLock, judge, median,
};
use crate::ops::query::{MOST_AWAY, Query};
use crate::ops::set::remarks;
use crate::protocol::commands::companions::WITNESS;
use crate::protocol::commands::companions::{self, Companion};
use crate::protocol::commands::kind::Kind;
use crate::protocol::commands::means::{self, Means};
use crate::protocol::commands::resp::{self, Reply};
use crate::protocol::commands::script::{Action, Key, Notify};
use crate::protocol::commands::scripts::TRIAL;
use crate::protocol::commands::server_info::ServerInfo;
use crate::protocol::commands::vote::Vote;
use crate::protocol::commands::{slots, witness_keys};
use crate::protocol::node::guard::DEFAULT_TTL;
use crate::protocol::node::witness;
use crate::values::clock::{self, Point};
use crate::values::prefix::Prefix;
use crate::values::quorum::{NodeSet, Ttl, majority};
use crate::values::token::Token;

/// How long the lock that the check takes stays at most.
const PROBE_TTL: Duration = Duration::from_secs(1);
/// How many round trips are measured for each node.
const PINGS: usize = 10;
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
    /// The check uses its own connections, to all nodes in parallel. Each node has
    /// [`connect_timeout`](crate::Options::connect_timeout) to be connected and twenty times
    /// [`node_timeout`](crate::Options::node_timeout) for all questions. With the [restart
    /// guard](crate::Options::restart_guard) it also reports which nodes give no votes yet.
    ///
    /// | code | fault | warning | note |
    /// | --- | --- | --- | --- |
    /// | `reach`, `auth` | it cannot be asked, and [too few are left](Report::is_fit) | it cannot be asked | |
    /// | `probe` | it refuses the lock that is tried, and too few are left | it refuses it, or that name | another holder has that lock |
    /// | `same-server` | one server under two addresses | | |
    /// | `role` | a replica, a sentinel, a Redis Cluster's server at a plain URL | | |
    /// | `eviction` | a policy that removes locks; or the restart guard needs `evicted_keys` in `INFO`, and too few nodes report it | it does not report that; keys were removed before the policy was corrected; more than 90 % of `maxmemory` is used | such a policy, without `maxmemory` |
    /// | `persistence` | | a restart forgets locks (`appendfsync` is not `always`), and there is no restart guard; the last write to disk failed | |
    /// | `replicas` | | without the restart guard: it has replicas, to which something may fail over; or it takes writes when it is made a replica (`replica-read-only` is `no`) | |
    /// | `independence` | | two nodes at the same address | all on this machine |
    /// | `count` | | an even number | one |
    /// | `latency` | the median of ten answers is above `node_timeout`, and too few are left | it is; or the slowest is above half of that | |
    /// | `clock` | | more than 1 s from the nodes' median | so far from ours |
    /// | `sentinel` | | one does not answer, or names another master; the quorum is more than there are | one is given |
    /// | `isolation` | | Sentinel without `min-replicas-to-write`, or `min-replicas-max-lag` is too long | |
    /// | `guard` | | the guard that is on by default for sets and Redis Clusters cannot work | |
    /// | `cluster` | slots of a Redis Cluster have no server | the same, but the others are served | `cluster-require-full-coverage` is `yes`; a failover takes longer than a kept lock lasts (`cluster-node-timeout`) |
    /// | `uptime` | the restart guard keeps it from voting, and too few are left | it does, and for how long; or [locks may be forgotten](Report::with_max_ttl) | less than an hour |
    /// | `clients` | | more than 80 % of `maxclients`, or some were turned away | |
    /// | `plain-text` | | a password goes unencrypted to a public address | |
    /// | `insecure` | | its certificate is not checked (`#insecure`) | |
    /// | `version` | older than 2.6.12 | | versions differ |
    /// | `rights` | with the restart guard, `INFO` or the key `redlock:witness` is refused or holds other data, and too few are left | with the restart guard, one of these is refused | `INFO` or `CONFIG` is refused, or the keys beside locks are |
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
        self.check_kind(&checked(probe.as_ref())?, Kind::Plain)
    }

    fn check_kind(&self, probe: &Arc<[u8]>, kind: Kind) -> Result<Report, Error> {
        let guard = self.options().max_ttl();
        let ttl = Ttl::new(guard.map_or(PROBE_TTL, |guard| guard.min(PROBE_TTL)))?;
        let (_, node_timeout) = self.timeouts();
        let mut report = Report {
            findings: Vec::new(),
            shards: Vec::new(),
            probe: self.options().prefix.key(probe).to_vec(),
            prefix: self.options().prefix.clone(),
            node_timeout,
            guard,
        };
        let mut away = 0;
        for (places, probe) in self.shards(probe) {
            let not_asked = |place| NodeFacts(facts(place, Err(Cause::NotAsked)));
            let key = Key::new(probe, Token::random().map_err(Error::Random)?, None)
                .of_kind(kind.clone());
            let shard: Vec<NodeFacts> = match away < MOST_AWAY {
                true => self.facts(&places, key.sent_to(NodeSet::ALL), ttl),
                false => places.iter().map(not_asked).collect(),
            };
            away += usize::from(shard.iter().any(|node| node.said().is_none()));
            report.shards.push(shard);
        }
        self.clusters(&mut report);
        report.judge(None);
        Ok(report)
    }

    /// The places of the nodes, in a Redis Cluster for each shard, and the name that is locked there for a try.
    fn shards(&self, probe: &Arc<[u8]>) -> Vec<(Vec<Place>, Arc<[u8]>)> {
        let (connect_timeout, _) = self.timeouts();
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
        let (connect_timeout, _) = self.timeouts();
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
        let nodes = places.iter().zip(answers).map(|(place, said)| {
            let mut facts = facts(place, said);
            if let Some(sentinels) = place.describe(connect_timeout) {
                let said = facts.said.as_ref().ok();
                let info = said.and_then(|said| said.info.as_ref().ok());
                facts.remarks = remarks(
                    &sentinels,
                    info,
                    said.map(|said| said.needs).unwrap_or_default(),
                );
            }
            facts.default_guard = default_guard.filter(|_| place.is_set());
            facts.in_cluster = place.is_in_cluster();
            NodeFacts(facts)
        });
        nodes.collect()
    }

    /// Adds the remarks about each Redis Cluster as a whole.
    fn clusters(&self, report: &mut Report) {
        for (node, place) in self.places().iter().enumerate() {
            let Some(cluster) = place.cluster() else {
                continue;
            };
            let missing = cluster.map().map_or(0, |map| map.missing());
            let masters = report.shards.iter().filter_map(|nodes| nodes.get(node));
            let said = masters.filter_map(NodeFacts::said);
            let found = coverage::remarks(missing, said, self.options().max_ttl());
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

fn facts(node: &Place, said: Result<NodeReport, Cause>) -> Facts {
    let given = node.given();
    let info = given.info();
    let (plain, insecure) = match info.addr() {
        ConnectionAddr::TcpTls { insecure, .. } => (false, *insecure),
        _ => (true, false),
    };
    let place = match info.addr() {
        ConnectionAddr::Tcp(..) | ConnectionAddr::TcpTls { .. } => None,
        _ => Some(findings::Location::ThisMachine),
    };
    let said = said.map(|said| {
        let place = match place.unwrap_or(said.place) {
            findings::Location::Ip(ip) if ip.to_canonical().is_loopback() => {
                findings::Location::ThisMachine
            }
            place => place,
        };
        NodeReport { place, ..said }
    });
    Facts {
        address: node.shown().to_string(),
        said,
        plain_password: plain && info.redis_settings().password().is_some(),
        insecure,
        default_guard: None,
        in_cluster: false,
        remarks: Vec::new(),
    }
}

/// Asks a node for everything that the rules need.
fn ask(
    query: &mut Query,
    (witness, in_cluster): (Option<&[u8]>, bool),
    (key, prefix): (&Key, &Prefix),
    ttl: Ttl,
) -> Result<NodeReport, Cause> {
    let mut bytes = Vec::new();
    resp::pack(&mut bytes, &[&[b"INFO"]], None);
    resp::pack(&mut bytes, &[&[b"CONFIG", b"GET", b"appendfsync"]], None);
    for name in [
        &b"min-replicas-to-write"[..],
        b"min-replicas-max-lag",
        // Before Redis 5 the setting is slave-read-only.
        b"*-read-only",
    ] {
        resp::pack(&mut bytes, &[&[b"CONFIG", b"GET", name]], None);
    }
    let [info, config, replicas, lag, read_only] = query.ask(&bytes)?;
    let coverage = match in_cluster {
        true => coverage_of(query)?,
        false => Coverage::default(),
    };
    // Nothing else needs the witness.
    let witness = match witness {
        Some(witness) => try_witness(query, &prefix.key(witness))?,
        None => None,
    };
    let probe = try_lock(query, key, prefix, ttl)?;
    let beside = try_keys_beside(query, &prefix.key(&key.resource))?;
    let clock = clock_offset(query)?;
    Ok(NodeReport {
        place: query
            .ip()
            .map_or(findings::Location::Unknown, findings::Location::Ip),
        info: match info {
            Reply::Bulk(text) => Ok(ServerInfo::new(&text, query.secret())),
            other => Err(refusal(other)),
        },
        appendfsync: match config {
            Reply::Array(items) => match items.into_iter().next_back() {
                Some(Reply::Bulk(value)) => {
                    Ok(query.secret().cut_value(&String::from_utf8_lossy(&value)))
                }
                _ => Err(Cause::Refused("no appendfsync".into())),
            },
            other => Err(refusal(other)),
        },
        needs: Needs {
            replicas: number(replicas),
            lag: number(lag).map(Duration::from_secs),
        },
        coverage,
        writable_replica: value(read_only).is_some_and(|value| value == "no"),
        witness,
        beside: beside.filter(|_| matches!(probe, TrialLock::Passed | TrialLock::Held)),
        probe,
        round_trips: pings(query)?,
        clock,
    })
}

/// The number in a reply to CONFIG GET.
fn number(setting: Reply) -> Option<u64> {
    value(setting)?.parse().ok()
}

fn value(setting: Reply) -> Option<String> {
    match setting {
        Reply::Array(items) => match items.into_iter().next_back()? {
            Reply::Bulk(value) => String::from_utf8(value).ok(),
            _ => None,
        },
        _ => None,
    }
}

fn coverage_of(query: &mut Query) -> Result<Coverage, Cause> {
    let mut bytes = Vec::new();
    for name in [
        &b"cluster-require-full-coverage"[..],
        b"cluster-node-timeout",
    ] {
        resp::pack(&mut bytes, &[&[b"CONFIG", b"GET", name]], None);
    }
    let [is_full, node_timeout] = query.ask(&bytes)?;
    Ok(Coverage {
        is_full: value(is_full).map(|value| value != "no"),
        node_timeout: number(node_timeout).map(Duration::from_millis),
    })
}

/// Why the restart guard could not use its key.
fn try_witness(query: &mut Query, key: &[u8]) -> Result<Option<Cause>, Cause> {
    let mut bytes = Vec::new();
    // No server executes a command that contradicts itself. If it is permitted, the reply is a syntax error.
    let set: &[&[u8]] = &[b"SET", key, b"-", b"NX", b"XX"];
    for command in [&[b"GET", key][..], &[b"PTTL", key], set] {
        resp::pack(&mut bytes, &[command], None);
    }
    let replies = query.ask::<3>(&bytes)?;
    Ok(replies.into_iter().find_map(|reply| match reply {
        Reply::Error(text) => {
            let cause = witness::refused(&text);
            matches!(cause, Cause::NoWitness(_)).then_some(cause)
        }
        _ => None,
    }))
}

fn refusal(reply: Reply) -> Cause {
    match reply {
        Reply::Error(text) => Cause::refused(&text),
        other => Cause::Refused(other.kind().into()),
    }
}

/// Takes, extends and releases a lock on one node.
fn try_lock(query: &mut Query, key: &Key, prefix: &Prefix, ttl: Ttl) -> Result<TrialLock, Cause> {
    // A shorter ttl, so that there is something to extend.
    let shorter = ttl.duration().saturating_sub(Duration::from_millis(1));
    let shorter = Ttl::new(shorter).unwrap_or(ttl);
    let means = find_means(query)?;
    let steps = [
        (
            if key.kind.is_plain() {
                "SET"
            } else {
                "the lock"
            },
            Action::Acquire(shorter),
        ),
        ("the extension", Action::Extend(ttl, ttl)),
        ("the release", Action::Release(Notify::None)),
    ];
    let mut bytes = Vec::new();
    for (_, action) in &steps {
        action.pack(key, prefix, means, &mut bytes);
    }
    let replies = query.ask::<3>(&bytes)?;
    // A refusal whatever the name is takes precedence over a refusal of the name.
    let mut name = None;
    for ((what, action), reply) in steps.iter().zip(replies) {
        match action.vote(key, reply) {
            Vote::Granted(_) => {}
            Vote::Refused(_) | Vote::OtherUse(_) if matches!(action, Action::Acquire(_)) => {
                return Ok(TrialLock::Held);
            }
            Vote::Refused(_) | Vote::OtherUse(_) if name.is_some() => {}
            Vote::Refused(_) | Vote::OtherUse(_) => return Ok(TrialLock::Gone(what)),
            Vote::Failed { cause, .. } if cause.concerns_name() => {
                name.get_or_insert(TrialLock::Refused(what, cause));
            }
            Vote::Failed { cause, .. } => return Ok(TrialLock::Refused(what, cause)),
            Vote::Sever(cause @ Cause::Demoted(_)) => return Ok(TrialLock::Refused(what, cause)),
            Vote::Sever(cause) => return Err(cause),
        }
    }
    Ok(name.unwrap_or(TrialLock::Passed))
}

/// The commands a lock would use on this server.
fn find_means(query: &mut Query) -> Result<Means, Cause> {
    // Not by a script's hash: no script was loaded.
    let mut trials = Vec::new();
    for (call, text) in [("EVAL", TRIAL.text), ("EVALSHA", TRIAL.hash)] {
        resp::pack(&mut trials, &[&[call.as_bytes(), text, b"0"]], None);
    }
    let trials = query.ask::<2>(&trials)?.map(|reply| match reply {
        Reply::Error(text) => Some(text),
        _ => None,
    });
    match Means::with_scripts(false, trials) {
        Ok(means) => Ok(means),
        Err(refused) => {
            let replies = query.ask::<2>(&means::native_trials())?;
            Ok(Means::without_scripts(&refused, &replies).unwrap_or_default())
        }
    }
}

/// Why scripts may not use the keys beside the lock. The lock that is tried uses none of them.
fn try_keys_beside(query: &mut Query, key: &[u8]) -> Result<Option<Cause>, Cause> {
    let beside = [Companion::Queue, Companion::Turn, Companion::Counter];
    let [queue, turn, counter] = beside.map(|one| one.key(key).concat());
    let script: &[&[u8]] = &[b"EVAL", b"return 1", b"4"];
    let mut bytes = Vec::new();
    resp::pack(&mut bytes, &[script, &[key, &queue, &turn, &counter]], None);
    let [reply] = query.ask(&bytes)?;
    Ok(match reply {
        Reply::Error(text) if refuses_companions(&text) => Some(Cause::refused(&text)),
        _ => None,
    })
}

/// Milliseconds that the node's clock is ahead of ours, as far as that can be measured from here.
fn clock_offset(query: &mut Query) -> Result<Option<i64>, Cause> {
    let mut bytes = Vec::new();
    resp::pack(&mut bytes, &[&[b"TIME"]], None);
    let sent = Point::now();
    let [reply] = query.ask(&bytes)?;
    let took = clock::instant().saturating_duration_since(sent.mono);
    let Reply::Array(items) = reply else {
        return Ok(None);
    };
    let number = |item: &Reply| match item {
        Reply::Bulk(text) => str::from_utf8(text).ok()?.parse::<u64>().ok(),
        _ => None,
    };
    let [Some(seconds), Some(micros)] = [0, 1].map(|at| items.get(at).and_then(number)) else {
        return Ok(None);
    };
    let theirs = Duration::from_secs(seconds).saturating_add(Duration::from_micros(micros));
    Ok(Some(ahead(theirs, sent.wall + took / 2)))
}

fn ahead(theirs: Duration, ours: SystemTime) -> i64 {
    let ours = ours.duration_since(UNIX_EPOCH).unwrap_or_default();
    let ms = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    ms(theirs).saturating_sub(ms(ours))
}

fn pings(query: &mut Query) -> Result<Vec<Duration>, Cause> {
    let mut bytes = Vec::new();
    resp::pack(&mut bytes, &[&[b"PING"]], None);
    let mut trips = Vec::new();
    for _ in 0..PINGS {
        let sent = clock::instant();
        let answer = query.ask::<1>(&bytes);
        trips.push(clock::instant().saturating_duration_since(sent));
        match answer {
            Ok(_) => {}
            // The node is so slow that no time is left for more.
            Err(Cause::NoAnswer(..)) if trips.len() > 1 => break,
            Err(cause) => return Err(cause),
        }
    }
    Ok(trips)
}

/// The result of [`Redlock::check`]. `Display` gives a line for each finding, the worst first; nothing if there are
/// none.
#[derive(Clone, Debug)]
pub struct Report {
    findings: Vec<Finding>,
    /// The shards of a Redis Cluster, with the facts about their masters. Otherwise all nodes.
    shards: Vec<Vec<NodeFacts>>,
    /// The requirements that the nodes were checked against.
    probe: Vec<u8>,
    prefix: Prefix,
    node_timeout: Duration,
    guard: Option<Duration>,
}

impl Report {
    /// This report for programs whose locks have a ttl of at most `max_ttl`, if not all of them use the [restart
    /// guard](crate::Options::restart_guard): it warns of nodes that were started so recently that they may have
    /// forgotten a lock that is still held (`uptime`). Other findings about restarts stay as they are.
    pub fn with_max_ttl(mut self, max_ttl: Duration) -> Report {
        self.judge(Some(max_ttl));
        self
    }

    fn judge(&mut self, max_ttl: Option<Duration>) {
        let rules = Rules {
            probe: &self.probe,
            prefix: self.prefix.as_str(),
            node_timeout: self.node_timeout,
            guard: self.guard,
            max_ttl,
        };
        let mut all: Vec<Finding> = Vec::new();
        for shard in &self.shards {
            let facts: Vec<Facts> = shard.iter().map(|node| node.0.clone()).collect();
            for finding in judge(&facts, rules) {
                if !all.contains(&finding) {
                    all.push(finding);
                }
            }
        }
        all.sort_by_key(Finding::order);
        self.findings = all;
    }

    /// Whether there is no [fault](Severity::Fault), and the nodes were [checked](Report::is_checked). Nodes that give
    /// no votes, for whatever reason, are faults if too few others are left for a majority.
    pub fn is_fit(&self) -> bool {
        let mut findings = self.findings.iter();
        self.is_checked() && findings.all(|finding| finding.severity() != Severity::Fault)
    }

    /// Whether a lock was taken, extended and released on a majority of the nodes. Otherwise the report leaves open
    /// whether locks can be taken: the nodes do not answer, or the user may not use the name of the `probe`, or another
    /// holder has that lock. Then give [`check`](Redlock::check) another name.
    pub fn is_checked(&self) -> bool {
        self.shards.iter().all(|nodes| {
            let said = nodes.iter().filter_map(NodeFacts::said);
            let passed = said.filter(|said| matches!(said.probe, TrialLock::Passed));
            passed.count() >= majority(nodes.len())
        })
    }

    /// All findings, the worst first.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter()
    }

    /// The nodes, in the order of [`Redlock::new`]. In a Redis Cluster each master is one, shard by shard.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeFacts> {
        self.shards.iter().flatten()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for finding in &self.findings {
            let (severity, code) = (finding.severity(), finding.code());
            writeln!(f, "{severity}: {code}: {finding}")?;
        }
        Ok(())
    }
}

/// The facts about a node. `None`: it could not be asked, or does not report that.
#[derive(Clone, Debug)]
pub struct NodeFacts(Facts);

impl NodeFacts {
    /// Host and port, or path.
    pub fn address(&self) -> &str {
        &self.0.address
    }

    /// The server's version, such as `7.0.15`.
    pub fn version(&self) -> Option<&str> {
        self.info()?.version()
    }

    /// `master`, `replica`, `cluster` or `sentinel`.
    pub fn role(&self) -> Option<&str> {
        self.info()?.role()
    }

    /// How long its server has been up, in whole seconds.
    pub fn uptime(&self) -> Option<Duration> {
        self.info()?.uptime()
    }

    /// The median round trip of ten.
    pub fn round_trip(&self) -> Option<Duration> {
        median(&self.said()?.round_trips)
    }

    /// How far its clock is ahead of this machine's, in milliseconds; negative: behind. Exact to half a
    /// round trip.
    pub fn clock_offset(&self) -> Option<i64> {
        self.said()?.clock
    }

    fn said(&self) -> Option<&NodeReport> {
        self.0.said.as_ref().ok()
    }

    fn info(&self) -> Option<&ServerInfo> {
        self.said()?.info.as_ref().ok()
    }
}
