//! The reports of nodes about themselves, and whether the nodes are fit for locks.

use core::net::IpAddr;
use std::cmp::Reverse;
use std::fmt;
use std::time::Duration;

use crate::errors::cause::Cause;
use crate::errors::server_error::Meaning;
use crate::errors::text::human;
use crate::protocol::commands::companions::Companion;
use crate::protocol::commands::server_info::ServerInfo;
use crate::protocol::node::guard::Guard;
use crate::values::quorum::majority;

/// Clocks that differ by more are noticed.
const CLOCK: i64 = 1000;
/// The field of INFO that shows whether a server keeps its keys.
const EVICTED: &str = "evicted_keys";
/// A server that has been up for less than this was restarted lately.
const LATELY: Duration = Duration::from_secs(3600);

/// How bad a [`Finding`] is. A worse severity is greater: `severity() >= Severity::Warning` selects warnings and
/// faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Severity {
    /// Good to know.
    Note,
    /// Locks work and can be relied on now, but are likely to fail soon, or are less reliable than they should be.
    Warning,
    /// Locks cannot be relied on, or cannot be acquired.
    Fault,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Fault => "fault",
            Severity::Warning => "warning",
            Severity::Note => "note",
        })
    }
}

/// A flaw of the nodes. `Display` describes it, and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    severity: Severity,
    node: Option<usize>,
    code: &'static str,
    text: String,
}

impl Finding {
    /// How bad it is.
    pub fn severity(&self) -> Severity {
        self.severity
    }

    /// The index of the node that it concerns, in the order of [`Redlock::new`](crate::Redlock::new). `None`: it
    /// concerns several nodes, or all.
    pub fn node(&self) -> Option<usize> {
        self.node
    }

    /// The subject of the finding, as one word for programs: the codes are in the table of
    /// [`Redlock::check`](crate::Redlock::check).
    pub fn code(&self) -> &'static str {
        self.code
    }
}

impl Finding {
    /// The worst first, then nodes in their order. Codes do not count.
    pub(crate) fn order(&self) -> (Reverse<Severity>, Option<usize>) {
        (Reverse(self.severity), self.node)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The facts that were found about a node.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) address: String,
    /// The node's report, or why it cannot be asked.
    pub(crate) said: Result<NodeReport, Cause>,
    /// Whether a password is sent to the node unencrypted.
    pub(crate) plain_password: bool,
    /// Whether the node is reached over TLS without a check of its certificate.
    pub(crate) insecure: bool,
    /// The ttls for which the guard is on by default, if the node is a set.
    pub(crate) default_guard: Option<Duration>,
    /// Whether this is one of the servers of a Redis Cluster, which is the node.
    pub(crate) in_cluster: bool,
    /// Further remarks about the node.
    pub(crate) remarks: Vec<Remark>,
}

/// A finding's severity, code and text.
pub(crate) type Remark = (Severity, &'static str, String);

/// How a server of a Redis Cluster is set to behave if others fail. `None`: not reported.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Coverage {
    /// Whether the server takes no locks unless all slots have a server.
    pub(crate) is_full: Option<bool>,
    /// How long a server must be silent to count as failed.
    pub(crate) node_timeout: Option<Duration>,
}

/// The requirements of a master to take writes, as far as it reports them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Needs {
    pub(crate) replicas: Option<u64>,
    /// How long the replicas may be silent.
    pub(crate) lag: Option<Duration>,
}

#[derive(Clone, Debug)]
pub(crate) struct NodeReport {
    pub(crate) place: Location,
    /// The reply to INFO, or why there is none.
    pub(crate) info: Result<ServerInfo, Cause>,
    /// How the server syncs its append-only file (`appendfsync`), or why that could not be read.
    pub(crate) appendfsync: Result<String, Cause>,
    /// The server's requirements of its replicas.
    pub(crate) needs: Needs,
    /// The settings of a server of a Redis Cluster.
    pub(crate) coverage: Coverage,
    /// Whether the server takes writes if it is made a replica.
    pub(crate) writable_replica: bool,
    pub(crate) probe: TrialLock,
    /// Why scripts may not use the keys beside the lock that was tried.
    pub(crate) beside: Option<Cause>,
    /// Why the restart guard could not have its witness.
    pub(crate) witness: Option<Cause>,
    pub(crate) round_trips: Vec<Duration>,
    /// Milliseconds that the node's clock is ahead of ours.
    pub(crate) clock: Option<i64>,
}

/// Where a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Location {
    ThisMachine,
    Ip(IpAddr),
    Unknown,
}

/// The outcome of taking, extending and releasing a lock on one node.
#[derive(Clone, Debug)]
pub(crate) enum TrialLock {
    Passed,
    /// Another holder has the lock.
    Held,
    /// The step that was refused, and how.
    Refused(&'static str, Cause),
    /// The step that was tried when the key was gone already.
    Gone(&'static str),
}

/// The code of a cause, and what to do about it.
fn advice(cause: &Cause) -> (&'static str, &'static str) {
    let meaning = cause.meaning();
    let code = match meaning {
        _ if meaning.concerns_login() => "auth",
        _ if meaning.concerns_rights() => "rights",
        _ => "reach",
    };
    let what = match cause {
        Cause::Refused(_)
        | Cause::OtherSlots(_)
        | Cause::Elsewhere(_)
        | Cause::LoggedOut(_)
        | Cause::Demoted(_) => meaning.advice().unwrap_or("look at its log"),
        Cause::NoCredentials(_) => return ("auth", "the program's closure must give them"),
        Cause::NoAnswer(..) => "look at its load and the network: it may stand still",
        Cause::Garbage(_) | Cause::NotRedis(_) => {
            "look at its address: is a Redis server there, and without TLS?"
        }
        Cause::Tls(_) => "look at its certificate, and at what this program trusts and shows",
        Cause::NoThread(_) | Cause::NoSocket(_) => "raise the limits of this process",
        _ => "start it, or look at its address and the network",
    };
    (code, what)
}

/// The requirements that the nodes are checked against.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules<'a> {
    /// The key of the lock that is tried, with the prefix.
    pub(crate) probe: &'a [u8],
    pub(crate) prefix: &'a str,
    pub(crate) node_timeout: Duration,
    /// The restart guard's `max_ttl`.
    pub(crate) guard: Option<Duration>,
    /// The longest ttl of clients that may have no guard, if the caller has given it.
    pub(crate) max_ttl: Option<Duration>,
}

impl Rules<'_> {
    /// How long the restart guard still keeps a server with this uptime from voting.
    fn votes_in(&self, uptime: Duration, default: Option<Duration>) -> Duration {
        let guard = self.guard.map(|max_ttl| Guard::new(max_ttl, 1));
        let default = default.map(|max_ttl| Guard::new(max_ttl, 1).of_set());
        let guard = guard.or(default);
        guard.map_or(Duration::ZERO, |guard| guard.left(uptime))
    }
}

impl Facts {
    /// Whether the node cannot take part in a majority, for any reason.
    fn gives_no_votes(&self, rules: Rules<'_>) -> bool {
        let Ok(said) = &self.said else {
            return true;
        };
        if rules.guard.is_some() && said.witness.is_some() {
            return true;
        }
        let kept = match &said.info {
            Ok(info) => {
                let uptime = info.uptime().unwrap_or_default();
                let unseen = rules.guard.is_some() && info.number(EVICTED).is_none();
                unseen || !rules.votes_in(uptime, self.default_guard).is_zero()
            }
            Err(_) => rules.guard.is_some(),
        };
        let slow = median(&said.round_trips).is_some_and(|median| median > rules.node_timeout);
        let refuses = match &said.probe {
            TrialLock::Refused(_, cause) => !cause.concerns_name(),
            TrialLock::Gone(_) => true,
            TrialLock::Passed | TrialLock::Held => false,
        };
        kept || refuses || slow || self.role_elsewhere().is_some()
    }

    /// The node's role, if locks must not be taken from it.
    fn role_elsewhere(&self) -> Option<&str> {
        let info = self.said.as_ref().ok()?.info.as_ref().ok()?;
        let fits = |role: &&str| *role == "master" || self.in_cluster && *role == "cluster";
        info.role().filter(|role| !fits(role))
    }
}

pub(crate) fn median(times: &[Duration]) -> Option<Duration> {
    let mut times = times.to_vec();
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

/// Findings about the nodes, the worst first.
pub(crate) fn judge(nodes: &[Facts], rules: Rules<'_>) -> Vec<Finding> {
    let unusable = nodes.iter().filter(|node| node.gives_no_votes(rules));
    let spare = nodes.len() - majority(nodes.len());
    let mut findings = Findings {
        nodes,
        rules,
        no_vote: match unusable.count() > spare {
            true => Severity::Fault,
            false => Severity::Warning,
        },
        all: Vec::new(),
    };
    findings.reach();
    findings.same_server();
    findings.probe();
    findings.number_and_places();
    findings.clocks();
    findings.versions();
    for (node, facts) in nodes.iter().enumerate() {
        findings.insecure(node, facts.insecure);
        for (severity, code, text) in &facts.remarks {
            findings.add(*severity, node, code, text.clone());
        }
        if let Ok(said) = &facts.said {
            findings.latency(node, said);
            findings.plain_text(node, facts.plain_password, said);
            if let Some(refused) = &said.beside {
                findings.keys_beside(node, refused);
            }
            if let Some(refused) = said.witness.as_ref().filter(|_| rules.guard.is_some()) {
                findings.witness(node, refused);
            }
            findings.default_guard(node, said);
            match &said.info {
                Ok(info) => findings.info(node, info, said),
                Err(refused) => findings.no_info(node, refused),
            }
        }
    }
    findings.all.sort_by_key(Finding::order);
    findings.all
}

struct Findings<'a> {
    nodes: &'a [Facts],
    rules: Rules<'a>,
    /// How bad it is that a node gives no votes. Depends on how many nodes give none, each for its own reason.
    no_vote: Severity,
    all: Vec<Finding>,
}

impl<'a> Findings<'a> {
    fn add(&mut self, severity: Severity, node: usize, code: &'static str, text: String) {
        let address = self.nodes.get(node).map_or("", |node| &node.address);
        self.all.push(Finding {
            severity,
            node: Some(node),
            code,
            text: format!("node {node} ({address}): {text}"),
        });
    }

    fn add_for_all(&mut self, severity: Severity, code: &'static str, text: impl Into<String>) {
        self.all.push(Finding {
            severity,
            node: None,
            code,
            text: text.into(),
        });
    }

    /// The reports of the nodes that could be asked.
    fn said(&self) -> impl Iterator<Item = (usize, &'a NodeReport)> + use<'a> {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter_map(|(node, facts)| Some((node, facts.said.as_ref().ok()?)))
    }

    fn infos(&self) -> impl Iterator<Item = (usize, &'a ServerInfo)> + use<'a> {
        self.said()
            .filter_map(|(node, said)| Some((node, said.info.as_ref().ok()?)))
    }

    fn reach(&mut self) {
        for (node, facts) in self.nodes.iter().enumerate() {
            let Err(cause) = &facts.said else {
                continue;
            };
            let (code, what) = advice(cause);
            let text = format!("{}; {what}", cause.without_advice());
            self.add(self.no_vote, node, code, text);
        }
    }

    fn same_server(&mut self) {
        let ids: Vec<(usize, &str)> = self
            .infos()
            .filter_map(|(node, info)| Some((node, info.get("run_id")?)))
            .collect();
        for (i, (node, id)) in ids.iter().enumerate() {
            if let Some((first, _)) = ids.iter().take(i).find(|(_, other)| other == id) {
                let text = format!(
                    "the same server as node {first} (one run_id): its vote must count once, give each \
                     server once"
                );
                self.add(Severity::Fault, *node, "same-server", text);
            }
        }
    }

    /// Whether another finding explains a failed probe, so that the probe has nothing to add.
    fn is_explained(&self, node: usize) -> bool {
        let elsewhere = self.nodes.get(node).and_then(Facts::role_elsewhere);
        let twin = |finding: &Finding| {
            finding.code == "same-server" && self.run_id(finding.node) == self.run_id(Some(node))
        };
        elsewhere.is_some() || self.all.iter().any(twin)
    }

    fn run_id(&self, node: Option<usize>) -> Option<&'a str> {
        let (_, info) = self.infos().find(|(at, _)| Some(*at) == node)?;
        info.get("run_id")
    }

    fn probe(&mut self) {
        for (node, said) in self.said() {
            match &said.probe {
                _ if self.is_explained(node) => {}
                TrialLock::Passed => {}
                TrialLock::Held => {
                    let text = "another holder has the lock that was tried: try another name";
                    self.add(Severity::Note, node, "probe", text.into());
                }
                TrialLock::Refused(_, cause) if cause.concerns_name() => {
                    let text = format!(
                        "this user may not use the name \"{}\" ({}), so no lock was tried: choose a name \
                         that its key patterns permit",
                        self.rules.probe.escape_ascii(),
                        cause.without_advice()
                    );
                    self.add(Severity::Warning, node, "probe", text);
                }
                TrialLock::Refused(what, cause) => {
                    let (_, advice) = advice(cause);
                    let text = format!(
                        "{what} is refused ({}), so no lock can be had from it: {advice}",
                        cause.without_advice()
                    );
                    self.add(self.no_vote, node, "probe", text);
                }
                TrialLock::Gone(what) => {
                    let text = format!(
                        "{what} did not find what SET had just written, so no lock can be had from it: look at its log"
                    );
                    self.add(self.no_vote, node, "probe", text);
                }
            }
        }
    }

    fn keys_beside(&mut self, node: usize, refused: &Cause) {
        let probe = self.rules.probe;
        let [open, name, end] = Companion::Queue.key(probe);
        let prefix = match self.rules.prefix {
            "" => name.split_inclusive(|byte| *byte == b':').next(),
            prefix => Some(prefix.as_bytes()),
        };
        let prefix = prefix.filter(|prefix| prefix.len() < name.len());
        let text = format!(
            "this user may not use the keys beside a lock, such as \"{}\" ({}), so releases notify no waiter there, and it \
             counts no fencing tokens: permit them, with the key pattern ~{}{}*",
            [open, name, end].concat().escape_ascii(),
            refused.without_advice(),
            open.escape_ascii(),
            prefix.unwrap_or_default().escape_ascii(),
        );
        self.add(Severity::Note, node, "rights", text);
    }

    fn witness(&mut self, node: usize, refused: &Cause) {
        let text = match (refused, self.rules.prefix) {
            (Cause::NoWitness(text), _) if Meaning::of(text) == Meaning::WrongType => {
                refused.to_string()
            }
            (_, prefix) => format!(
                "{refused}: permit it, with the key pattern ~{}*",
                if prefix.is_empty() {
                    "redlock:"
                } else {
                    prefix
                }
            ),
        };
        self.add(self.no_vote, node, "rights", text);
    }

    /// Warns if the guard that is on by default lacks something. It does without that, unless the program asked for a
    /// guard.
    fn default_guard(&mut self, node: usize, said: &NodeReport) {
        let is_on = self.has_default_guard(node) && self.rules.guard.is_none();
        let refused = said.info.as_ref().err().or(said.witness.as_ref());
        if let Some(refused) = refused.filter(|_| is_on) {
            let text = format!(
                "a failover may give a lock to two holders: the restart guard needs INFO and the key redlock:witness, and one \
                 is refused ({}): permit both",
                refused.without_advice()
            );
            self.add(Severity::Warning, node, "guard", text);
        }
    }

    fn is_guarded(&self, node: usize) -> bool {
        self.rules.guard.is_some() || self.has_default_guard(node)
    }

    fn has_default_guard(&self, node: usize) -> bool {
        let facts = self.nodes.get(node);
        facts.is_some_and(|facts| facts.default_guard.is_some())
    }

    fn number_and_places(&mut self) {
        let count = self.nodes.len();
        match count {
            1 => {
                let text = "one node: when it is away no lock can be taken. 3 or 5 tolerate 1 or 2";
                return self.add_for_all(Severity::Note, "count", text);
            }
            _ if count.is_multiple_of(2) => {
                let text = format!(
                    "{count} nodes tolerate no more failures than {}: take one away, or add one",
                    count - 1
                );
                self.add_for_all(Severity::Warning, "count", text);
            }
            _ => {}
        }
        let places: Vec<(usize, Location)> = self
            .said()
            .map(|(node, said)| (node, said.place))
            .filter(|(_, place)| *place != Location::Unknown)
            .collect();
        let here = |(_, place): &(usize, Location)| *place == Location::ThisMachine;
        if places.len() > 1 && places.iter().all(here) {
            let text = "all nodes are on this machine, and fail with it: fit for tests";
            return self.add_for_all(Severity::Note, "independence", text);
        }
        for (i, (node, place)) in places.iter().enumerate() {
            if let Some((first, _)) = places.iter().take(i).find(|(_, other)| other == place) {
                let text = format!(
                    "at the same address as node {first}, so perhaps on one machine, and fails with it: give each \
                     node its own"
                );
                self.add(Severity::Warning, *node, "independence", text);
            }
        }
    }

    fn clocks(&mut self) {
        let mut offsets: Vec<i64> = self.said().filter_map(|(_, said)| said.clock).collect();
        offsets.sort_unstable();
        let middle = |at: usize| offsets.get(at).copied().unwrap_or(0);
        let (low, high) = (offsets.len().saturating_sub(1) / 2, offsets.len() / 2);
        let median = middle(low).midpoint(middle(high));
        for (node, said) in self.said() {
            let Some(offset) = said.clock.map(|clock| clock.saturating_sub(median)) else {
                continue;
            };
            if offset.saturating_abs() > CLOCK {
                let text = format!(
                    "its clock is {} from that of the nodes' median: locks may end early, or fencing \
                     tokens repeat, when it is set. Let NTP slew it",
                    seconds(offset)
                );
                self.add(Severity::Warning, node, "clock", text);
            }
        }
        if median.saturating_abs() > CLOCK {
            let text = format!(
                "the nodes' clocks are {} from ours: look at the clock of this machine",
                seconds(median)
            );
            self.add_for_all(Severity::Note, "clock", text);
        }
    }

    fn versions(&mut self) {
        for (node, info) in self.infos().filter(|(_, info)| info.is_too_old()) {
            let text = format!(
                "its version is {}: 2.6.12 or later is needed",
                info.version().unwrap_or_default()
            );
            self.add(Severity::Fault, node, "version", text);
        }
        let mut versions: Vec<&str> = self
            .infos()
            .filter_map(|(_, info)| info.version())
            .collect();
        versions.sort_unstable();
        versions.dedup();
        if versions.len() > 1 {
            let text = format!("the nodes' versions differ: {}", versions.join(", "));
            self.add_for_all(Severity::Note, "version", text);
        }
    }

    fn latency(&mut self, node: usize, said: &NodeReport) {
        let limit = self.rules.node_timeout;
        let trips = &said.round_trips;
        let (Some(median), Some(longest)) = (median(trips), trips.iter().max()) else {
            return;
        };
        let what = "raise node_timeout, or have a nearer node";
        if median > limit {
            let text = format!(
                "it answers in {}, above node_timeout {}: {what}",
                human(median),
                human(limit)
            );
            self.add(self.no_vote, node, "latency", text);
        } else if *longest > limit / 2 {
            let text = format!(
                "its slowest answer of {} took {}, above half of node_timeout {}: {what}",
                trips.len(),
                human(*longest),
                human(limit)
            );
            self.add(Severity::Warning, node, "latency", text);
        }
    }

    fn plain_text(&mut self, node: usize, password: bool, said: &NodeReport) {
        if let Location::Ip(ip) = said.place
            && password
            && is_public(ip)
        {
            let text = "its password goes unencrypted to a public address: use rediss://";
            self.add(Severity::Warning, node, "plain-text", text.into());
        }
    }

    fn insecure(&mut self, node: usize, insecure: bool) {
        if insecure {
            let text = "its certificate is not checked (#insecure), so anything on the way can pretend to be it: \
                        trust its CA instead";
            self.add(Severity::Warning, node, "insecure", text.into());
        }
    }

    fn no_info(&mut self, node: usize, refused: &Cause) {
        let (severity, so) = match self.rules.guard {
            Some(_) => (self.no_vote, "so the restart guard keeps it from voting"),
            None => (Severity::Note, "so most of this could not be checked"),
        };
        let (code, what) = advice(refused);
        let text = format!(
            "INFO is refused ({}), {so}: {what}",
            refused.without_advice()
        );
        self.add(severity, node, code, text);
    }

    /// Adds the findings about a node's INFO.
    fn info(&mut self, node: usize, info: &ServerInfo, said: &NodeReport) {
        let elsewhere = self.nodes.get(node).and_then(Facts::role_elsewhere);
        if let Some(role @ ("replica" | "cluster" | "sentinel")) = elsewhere {
            let what = match role {
                "replica" => "a replica, which takes no locks: name its master",
                "cluster" => "a node of a Redis Cluster: write redis+cluster://host:port",
                _ => "a sentinel, which keeps no keys: name a server",
            };
            return self.add(Severity::Fault, node, "role", what.into());
        }
        self.memory(node, info);
        self.persistence(node, info, said);
        self.clients(node, info);
        self.uptime(node, info);
        self.replicas(node, info, said);
    }

    fn replicas(&mut self, node: usize, info: &ServerInfo, said: &NodeReport) {
        // A set has replicas, and the guard is for that.
        let is_guarded = self.has_default_guard(node);
        if let Some(replicas @ 1..) = info.number("connected_slaves").filter(|_| !is_guarded) {
            let text = format!(
                "it has {replicas} replicas: one that takes its place may not know of its locks. Nothing \
                 must fail over to them"
            );
            self.add(Severity::Warning, node, "replicas", text);
        }
        // In a Redis Cluster a replica sends clients to its master.
        let elsewhere = self.nodes.get(node).is_some_and(|facts| facts.in_cluster);
        if said.writable_replica && !elsewhere && !self.is_guarded(node) {
            let text = "replica-read-only is no: if it is made a replica, it may go on granting locks, also those that are held, \
                        to programs that are connected: CONFIG SET replica-read-only yes, and the same in redis.conf; or \
                        Options::restart_guard on all clients";
            self.add(Severity::Warning, node, "replicas", text.into());
        }
    }

    fn memory(&mut self, node: usize, info: &ServerInfo) {
        let policy = info.get("maxmemory_policy").unwrap_or("noeviction");
        let limit = info.number("maxmemory").unwrap_or(0);
        let used = info.number("used_memory").unwrap_or(0);
        let (evicts, code) = (policy != "noeviction", "eviction");
        let waits = match self.is_guarded(node) {
            true => {
                ". With the restart guard it gives no votes for max_ttl and 5 s after each key that it removes"
            }
            false => "",
        };
        if evicts && limit > 0 {
            let text = format!(
                "maxmemory-policy {policy} may remove locks when memory is short: CONFIG SET \
                 maxmemory-policy noeviction, and the same in redis.conf{waits}"
            );
            self.add(Severity::Fault, node, code, text);
        }
        self.evicted(node, info.number(EVICTED), evicts);
        if limit > 0 && used > limit / 10 * 9 {
            let text = format!(
                "it uses {used} of {limit} bytes: when they are used up it gives no locks. More maxmemory"
            );
            self.add(Severity::Warning, node, code, text);
        }
        if evicts && limit == 0 {
            let text = format!(
                "maxmemory-policy is {policy}, without effect as long as maxmemory is 0: CONFIG SET \
                 maxmemory-policy noeviction, and the same in redis.conf"
            );
            self.add(Severity::Note, node, code, text);
        }
    }

    /// Adds the findings about removed keys. `evicts`: the node may remove more.
    fn evicted(&mut self, node: usize, count: Option<u64>, evicts: bool) {
        let is_guarded = self.is_guarded(node);
        if is_guarded && count.is_none() {
            let (severity, code, so) = match self.rules.guard {
                Some(_) => (self.no_vote, "eviction", "it gives no votes"),
                None => (
                    Severity::Warning,
                    "guard",
                    "its votes count without the guard",
                ),
            };
            let text =
                format!("INFO does not say evicted_keys, which the restart guard needs: {so}");
            self.add(severity, node, code, text);
        }
        let Some(count @ 1..) = count else {
            return;
        };
        let (severity, what) = match evicts {
            true => (
                Severity::Fault,
                "maxmemory-policy noeviction and more memory, then",
            ),
            // The policy was corrected, but locks of that time may still be held.
            false => (Severity::Warning, "now it does not. When that is known:"),
        };
        let reset = match is_guarded {
            true => {
                "after max_ttl and 5 s CONFIG RESETSTAT, behind which it gives no votes for as long"
            }
            false => "CONFIG RESETSTAT",
        };
        let text = format!(
            "it has removed {count} keys for want of memory since it was started, locks perhaps \
             among them: {what} {reset}"
        );
        self.add(severity, node, "eviction", text);
    }

    fn persistence(&mut self, node: usize, info: &ServerInfo, said: &NodeReport) {
        let code = "persistence";
        let appends = info.get("aof_enabled");
        let forgets = match (appends, &said.appendfsync) {
            (None, _) => None,
            (Some("1"), Ok(sync)) => (sync != "always").then(|| format!("appendfsync is {sync}")),
            (Some("1"), Err(refused)) => {
                let (code, what) = advice(refused);
                let text = format!(
                    "CONFIG GET is refused ({}), so it is not known whether appendfsync is always: {what}",
                    refused.without_advice()
                );
                self.add(Severity::Note, node, code, text);
                None
            }
            (Some(_), _) => Some("appendonly is no".into()),
        };
        let is_guarded = self.is_guarded(node);
        if let Some(what) = forgets.filter(|_| !is_guarded) {
            let text = format!(
                "{what}, so a restart may forget locks: Options::restart_guard on all clients, or appendonly \
                 yes with appendfsync always"
            );
            self.add(Severity::Warning, node, code, text);
        }
        for field in ["aof_last_write_status", "rdb_last_bgsave_status"] {
            if let Some(status) = info.get(field).filter(|status| *status != "ok") {
                let text = format!(
                    "{field} is {status}: it cannot write to its disk, and may refuse locks. Look at its log"
                );
                self.add(Severity::Warning, node, code, text);
            }
        }
    }

    fn clients(&mut self, node: usize, info: &ServerInfo) {
        let clients = info.number("connected_clients").unwrap_or(0);
        let limit = info.number("maxclients").unwrap_or(u64::MAX);
        let rejected = info.number("rejected_connections").unwrap_or(0);
        if clients > limit / 5 * 4 {
            let text = format!(
                "it has {clients} of at most {limit} clients: raise maxclients, in redis.conf too"
            );
            self.add(Severity::Warning, node, "clients", text);
        } else if rejected > 0 {
            // With the count, the command takes those by which the guard notices what was deleted.
            let unless = match self.is_guarded(node) {
                true => {
                    " (but not within max_ttl and 5 s of a FLUSHALL or an eviction, which it would hide)"
                }
                false => "",
            };
            let text = format!(
                "it has turned away {rejected} connections since it was started: raise maxclients, in \
                 redis.conf too, then CONFIG RESETSTAT{unless}"
            );
            self.add(Severity::Warning, node, "clients", text);
        }
    }

    fn uptime(&mut self, node: usize, info: &ServerInfo) {
        let default = self.nodes.get(node).and_then(|facts| facts.default_guard);
        let Some(uptime) = info.uptime() else {
            let left = self.rules.votes_in(Duration::ZERO, default);
            if !left.is_zero() {
                let text = format!(
                    "INFO does not say uptime_in_seconds, so for the restart guard it was started just now: it gives no votes \
                     for {} after a new connection, until its witness is older than that",
                    human(left)
                );
                self.add(self.no_vote, node, "uptime", text);
            }
            return;
        };
        let (left, up) = (self.rules.votes_in(uptime, default), human(uptime));
        if !left.is_zero() {
            let text = format!(
                "it was started {up} ago, and gives no votes for {} more: until then it may have \
                 forgotten locks",
                human(left)
            );
            self.add(self.no_vote, node, "uptime", text);
        } else if let Some(max_ttl) = self.rules.max_ttl.filter(|max_ttl| uptime < *max_ttl) {
            let left = max_ttl.saturating_sub(uptime);
            let text = format!(
                "it was started {up} ago, and may have forgotten locks that are held for up to {} \
                 more: Options::restart_guard keeps it from voting until then",
                human(left)
            );
            self.add(Severity::Warning, node, "uptime", text);
        } else if uptime < LATELY {
            let text = format!("it was started {up} ago");
            self.add(Severity::Note, node, "uptime", text);
        }
    }
}

fn seconds(milliseconds: i64) -> String {
    let way = if milliseconds < 0 { '-' } else { '+' };
    let whole = milliseconds.unsigned_abs();
    format!("{way}{}.{:03} s", whole / 1000, whole % 1000)
}

/// Whether others than the address's owner carry what is sent there.
fn is_public(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    match ip {
        IpAddr::V4(v4) => {
            let [a, b, ..] = v4.octets();
            let shared = a == 100 && (64..128).contains(&b);
            let own = v4.is_private() || v4.is_loopback() || v4.is_link_local();
            !(own || shared || v4.is_unspecified())
        }
        IpAddr::V6(v6) => {
            let own = v6.is_unique_local() || v6.is_loopback() || v6.is_unicast_link_local();
            !(own || v6.is_unspecified())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errors::cause::Limit;

    const MS: Duration = Duration::from_millis(1);
    const RULES: Rules<'_> = Rules {
        probe: b"probe",
        prefix: "",
        node_timeout: Duration::from_millis(50),
        guard: None,
        max_ttl: None,
    };
    const GOOD: &str = "redis_version:7.0.15\nredis_mode:standalone\nrun_id:ID\nrole:master\n\
        uptime_in_seconds:90000\nmaxmemory:0\nmaxmemory_policy:noeviction\nused_memory:1000000\n\
        evicted_keys:0\naof_enabled:1\naof_last_write_status:ok\nrdb_last_bgsave_status:ok\n\
        connected_clients:10\nmaxclients:10000\nrejected_connections:0\nconnected_slaves:0\n";

    fn good(count: usize) -> Vec<Facts> {
        let one = |i: usize| Facts {
            in_cluster: false,
            address: format!("10.0.0.{i}:6379"),
            said: Ok(NodeReport {
                place: Location::Ip(IpAddr::from([10, 0, 0, u8::try_from(i).unwrap()])),
                info: Ok(ServerInfo::of(&GOOD.replace("ID", &i.to_string()))),
                appendfsync: Ok("always".into()),
                needs: Needs::default(),
                writable_replica: false,
                coverage: Coverage::default(),
                probe: TrialLock::Passed,
                beside: None,
                witness: None,
                round_trips: vec![MS; 10],
                clock: Some(3),
            }),
            plain_password: false,
            insecure: false,
            default_guard: None,
            remarks: Vec::new(),
        };
        (0..count).map(one).collect()
    }

    fn said(facts: &mut Facts) -> &mut NodeReport {
        facts.said.as_mut().unwrap()
    }

    /// A trial lock whose name is not permitted.
    fn no_key() -> TrialLock {
        TrialLock::Refused(
            "SET",
            Cause::refused("NOPERM No permissions to access a key"),
        )
    }

    /// Changes a field of INFO.
    fn set(facts: &mut Facts, field: &str, value: &str) {
        let info = said(facts).info.as_mut().unwrap();
        *info = info.with(field, value);
    }

    fn found(nodes: &[Facts], rules: Rules<'_>) -> Vec<(Severity, Option<usize>, &'static str)> {
        let findings = judge(nodes, rules);
        let brief = |finding: &Finding| (finding.severity, finding.node, finding.code);
        findings.iter().map(brief).collect()
    }

    use Severity::{Fault, Note, Warning};

    #[test]
    fn good_nodes_give_no_finding() {
        for count in [3, 5, 7] {
            assert_eq!(found(&good(count), RULES), []);
        }
        assert_eq!(found(&good(1), RULES), [(Note, None, "count")]);
        assert_eq!(found(&good(2), RULES), [(Warning, None, "count")]);
        assert_eq!(found(&good(4), RULES), [(Warning, None, "count")]);
    }

    #[test]
    fn each_thing_that_is_wrong_with_one_node_gives_its_code_alone() {
        type Change = fn(&mut Facts);
        let table: [(Severity, &str, Change); 31] = [
            (Warning, "replicas", |node| {
                said(node).writable_replica = true;
            }),
            (Fault, "role", |node| set(node, "role", "slave")),
            (Fault, "role", |node| set(node, "redis_mode", "cluster")),
            (Fault, "role", |node| set(node, "redis_mode", "sentinel")),
            (Fault, "eviction", |node| {
                set(node, "maxmemory", "100000000");
                set(node, "maxmemory_policy", "volatile-lru");
            }),
            (Warning, "eviction", |node| set(node, "evicted_keys", "1")),
            (Warning, "eviction", |node| {
                set(node, "maxmemory", "1000001")
            }),
            (Note, "eviction", |node| {
                set(node, "maxmemory_policy", "allkeys-lru");
            }),
            (Warning, "persistence", |node| {
                said(node).appendfsync = Ok("everysec".into());
            }),
            (Warning, "persistence", |node| set(node, "aof_enabled", "0")),
            (Warning, "persistence", |node| {
                set(node, "aof_last_write_status", "err");
            }),
            (Warning, "persistence", |node| {
                set(node, "rdb_last_bgsave_status", "err");
            }),
            (Warning, "replicas", |node| {
                set(node, "connected_slaves", "2")
            }),
            (Warning, "latency", |node| {
                said(node).round_trips = vec![51 * MS; 10]
            }),
            (Warning, "latency", |node| {
                said(node).round_trips[3] = 26 * MS
            }),
            (Warning, "clock", |node| said(node).clock = Some(1004)),
            (Warning, "clock", |node| said(node).clock = Some(-998)),
            (Note, "uptime", |node| {
                set(node, "uptime_in_seconds", "3599")
            }),
            (Warning, "clients", |node| {
                set(node, "connected_clients", "8001")
            }),
            (Warning, "clients", |node| {
                set(node, "rejected_connections", "1")
            }),
            (Warning, "plain-text", |node| {
                said(node).place = Location::Ip(IpAddr::from([8, 8, 8, 8]));
                node.plain_password = true;
            }),
            (Warning, "insecure", |node| node.insecure = true),
            (Warning, "reach", |node| {
                node.said = Err(Cause::NoAnswer(MS, Limit::Node(1)))
            }),
            (Warning, "auth", |node| {
                node.said = Err(Cause::refused("NOAUTH Authentication required."));
            }),
            (Warning, "probe", |node| {
                said(node).probe = TrialLock::Refused("SET", Cause::refused("OOM"));
            }),
            (Warning, "probe", |node| said(node).probe = no_key()),
            (Note, "probe", |node| said(node).probe = TrialLock::Held),
            (Note, "rights", |node| {
                said(node).info = Err(Cause::refused("NOPERM"))
            }),
            (Note, "rights", |node| {
                said(node).appendfsync = Err(Cause::refused("NOPERM"))
            }),
            (Note, "rights", |node| {
                said(node).beside = Some(Cause::refused("NOPERM No permissions to access a key"));
            }),
            (Warning, "independence", |node| {
                said(node).place = Location::Ip(IpAddr::from([10, 0, 0, 0]));
            }),
        ];
        for (i, (severity, code, change)) in table.into_iter().enumerate() {
            let mut nodes = good(5);
            change(&mut nodes[3]);
            // The finding that explains why the probe is refused is the only one.
            if code == "role" {
                said(&mut nodes[3]).probe = TrialLock::Refused("SET", Cause::refused("READONLY"));
            }
            let expected = [(severity, Some(3), code)];
            assert_eq!(found(&nodes, RULES), expected, "row {i}");
        }
    }

    #[test]
    fn a_master_of_a_cluster_that_takes_no_lock_is_found() {
        let mut nodes = good(1);
        nodes[0].in_cluster = true;
        set(&mut nodes[0], "redis_mode", "cluster");
        assert!(!found(&nodes, RULES).contains(&(Fault, Some(0), "role")));
        said(&mut nodes[0]).probe = TrialLock::Refused("SET", Cause::refused("CLUSTERDOWN"));
        assert!(found(&nodes, RULES).contains(&(Fault, Some(0), "probe")));
    }

    #[test]
    fn what_concerns_too_many_nodes_is_a_fault() {
        for count in [1, 3, 5] {
            for bad in 1..=count {
                let severity = match bad > count - (count / 2 + 1) {
                    true => Fault,
                    false => Warning,
                };
                let mut away = good(count);
                let mut refusing = good(count);
                for node in 0..bad {
                    away[node].said = Err(Cause::NoAnswer(MS, Limit::Node(1)));
                    said(&mut refusing[node]).probe =
                        TrialLock::Refused("SET", Cause::refused("OOM"));
                }
                for (nodes, code) in [(away, "reach"), (refusing, "probe")] {
                    let mut found = found(&nodes, RULES);
                    found.retain(|(_, node, _)| node.is_some());
                    let expected = (0..bad).map(|node| (severity, Some(node), code));
                    assert_eq!(found, expected.collect::<Vec<_>>(), "{bad} of {count}");
                }
            }
        }
    }

    #[test]
    fn keys_that_were_removed_are_a_fault_until_the_policy_is_mended_and_then_a_statistic() {
        let mut nodes = good(3);
        set(&mut nodes[1], "evicted_keys", "7");
        set(&mut nodes[1], "maxmemory", "100000000");
        set(&mut nodes[1], "maxmemory_policy", "allkeys-lru");
        let fault = (Fault, Some(1), "eviction");
        assert_eq!(found(&nodes, RULES), [fault, fault]);
        set(&mut nodes[1], "maxmemory_policy", "noeviction");
        assert_eq!(found(&nodes, RULES), [(Warning, Some(1), "eviction")]);
        let text = judge(&nodes, RULES)[0].to_string();
        assert!(text.ends_with("CONFIG RESETSTAT"), "{text}");
        assert!(text.contains("7 keys"), "{text}");
        let guarded = Rules {
            guard: Some(30 * Duration::from_secs(1)),
            ..RULES
        };
        let text = judge(&nodes, guarded)[0].to_string();
        assert!(text.ends_with("gives no votes for as long"), "{text}");
    }

    /// The guard looks at each vote, and a Redis Cluster's replica sends its clients to its master.
    #[test]
    fn that_a_replica_takes_writes_matters_where_no_guard_looks() {
        let guarded = Rules {
            guard: Some(30 * Duration::from_secs(1)),
            ..RULES
        };
        let mut nodes = good(3);
        said(&mut nodes[1]).writable_replica = true;
        assert_eq!(found(&nodes, RULES), [(Warning, Some(1), "replicas")]);
        assert_eq!(found(&nodes, guarded), []);
        nodes[1].in_cluster = true;
        assert_eq!(found(&nodes, RULES), []);
        nodes[1].in_cluster = false;
        nodes[1].default_guard = Some(30 * Duration::from_secs(1));
        assert_eq!(found(&nodes, RULES), []);
    }

    /// Locks cannot be acquired, whatever keeps each node from voting.
    #[test]
    fn nodes_that_give_no_votes_for_different_reasons_are_counted_together() {
        type Change = fn(&mut Facts);
        let guarded = Rules {
            guard: Some(30 * Duration::from_secs(1)),
            ..RULES
        };
        let reasons: [(&str, Rules<'_>, Change); 10] = [
            ("latency", RULES, |node| {
                said(node).round_trips = vec![51 * MS; 10];
            }),
            ("reach", RULES, |node| {
                node.said = Err(Cause::NoAnswer(MS, Limit::Node(1)))
            }),
            ("auth", RULES, |node| {
                node.said = Err(Cause::refused("WRONGPASS invalid"));
            }),
            ("probe", RULES, |node| {
                said(node).probe = TrialLock::Refused("SET", Cause::refused("OOM"));
            }),
            ("role", RULES, |node| set(node, "role", "slave")),
            ("uptime", guarded, |node| {
                set(node, "uptime_in_seconds", "9")
            }),
            ("uptime", guarded, |node| set(node, "uptime_in_seconds", "")),
            ("uptime", guarded, |node| {
                set(node, "uptime_in_seconds", "-5");
            }),
            ("eviction", guarded, |node| set(node, "evicted_keys", "")),
            ("rights", guarded, |node| {
                said(node).info = Err(Cause::refused("NOPERM"));
            }),
        ];
        for (one, first, change) in reasons {
            for (other, second, change_other) in reasons {
                let rules = if first.guard.is_some() { first } else { second };
                for (count, spare) in [(3, 1), (5, 2)] {
                    let mut nodes = good(count);
                    nodes.iter_mut().take(spare).for_each(change);
                    let severities = |nodes: &[Facts]| -> Vec<Severity> {
                        let found = found(nodes, rules).into_iter();
                        found.map(|(severity, ..)| severity).collect()
                    };
                    let expected = if one == "role" { Fault } else { Warning };
                    assert_eq!(severities(&nodes), vec![expected; spare], "{one}");
                    change_other(&mut nodes[spare]);
                    let all = vec![Fault; spare + 1];
                    assert_eq!(severities(&nodes), all, "{one}, {other}");
                }
            }
        }
    }

    #[test]
    fn what_to_do_depends_on_what_is_wrong() {
        let refused = Cause::refused;
        let start = "start it, or look at its address and the network";
        for (cause, code, what) in [
            (
                refused("ERR max number of clients reached"),
                "reach",
                "raise maxclients",
            ),
            (
                refused("BUSY Redis is busy running a script."),
                "reach",
                "SCRIPT KILL",
            ),
            (refused("LOADING Redis is loading"), "reach", "wait"),
            (
                refused("DENIED Redis is running in protected mode"),
                "reach",
                "protected-mode",
            ),
            (refused("ERR something new"), "reach", "look at its log"),
            (refused("WRONGPASS invalid"), "auth", "password"),
            (refused("NOPERM this user"), "rights", "permit it"),
            (Cause::Connect("refused".into()), "reach", start),
            (Cause::NoCredentials("sealed".into()), "auth", "closure"),
            (Cause::NotConnected(MS, MS), "reach", start),
            (Cause::NotRedis("HTTP".into()), "reach", "Redis server"),
            (Cause::NoAnswer(MS, Limit::Node(1)), "reach", "load"),
        ] {
            let mut nodes = good(3);
            nodes[2].said = Err(cause);
            assert_eq!(found(&nodes, RULES), [(Warning, Some(2), code)]);
            let text = judge(&nodes, RULES)[0].to_string();
            assert!(text.contains(what), "{text}");
            assert_eq!(text.contains(start), what == start, "{text}");
        }
        // BUSY does not concern rights.
        let busy = || Cause::refused("BUSY Redis is busy running a script.");
        let mut nodes = good(3);
        said(&mut nodes[0]).info = Err(busy());
        said(&mut nodes[1]).appendfsync = Err(busy());
        let both = [0, 1].map(|node| (Note, Some(node), "reach"));
        assert_eq!(found(&nodes, RULES), both);
        for finding in judge(&nodes, RULES) {
            assert!(finding.to_string().ends_with("SCRIPT KILL"), "{finding}");
        }
    }

    #[test]
    fn a_name_that_no_node_permits_does_not_affect_other_names() {
        let mut nodes = good(3);
        for node in &mut nodes {
            said(node).probe = no_key();
        }
        let all = [0, 1, 2].map(|node| (Warning, Some(node), "probe"));
        assert_eq!(found(&nodes, RULES), all);
        let text = judge(&nodes, RULES)[0].to_string();
        assert!(text.contains("may not use the name \"probe\""), "{text}");
    }

    #[test]
    fn what_concerns_several_nodes_names_them_or_all() {
        let mut nodes = good(3);
        set(&mut nodes[2], "run_id", "0");
        said(&mut nodes[2]).probe = TrialLock::Held;
        assert_eq!(found(&nodes, RULES), [(Fault, Some(2), "same-server")]);
        // Either of the two may have been first.
        said(&mut nodes[2]).probe = TrialLock::Passed;
        said(&mut nodes[0]).probe = TrialLock::Held;
        assert_eq!(found(&nodes, RULES), [(Fault, Some(2), "same-server")]);

        let mut nodes = good(3);
        set(&mut nodes[1], "redis_version", "6.2.14");
        assert_eq!(found(&nodes, RULES), [(Note, None, "version")]);
        for node in &mut nodes {
            set(node, "redis_version", "2.6.11");
        }
        let old = [0, 1, 2].map(|node| (Fault, Some(node), "version"));
        assert_eq!(found(&nodes, RULES), old);

        let mut nodes = good(3);
        for node in &mut nodes {
            said(node).place = Location::ThisMachine;
            said(node).clock = Some(-5000);
        }
        let all = [(Note, None, "independence"), (Note, None, "clock")];
        assert_eq!(found(&nodes, RULES), all);
        said(&mut nodes[0]).place = Location::Unknown;
        said(&mut nodes[1]).place = Location::Ip(IpAddr::from([10, 0, 0, 1]));
        assert_eq!(found(&nodes, RULES), [(Note, None, "clock")]);
    }

    #[test]
    fn with_the_restart_guard_a_young_node_is_named_and_none_need_write_to_disk() {
        let guarded = Rules {
            guard: Some(30 * Duration::from_secs(1)),
            ..RULES
        };
        let mut nodes = good(3);
        set(&mut nodes[0], "aof_enabled", "0");
        assert_eq!(found(&nodes, guarded), []);
        set(&mut nodes[1], "uptime_in_seconds", "29");
        assert_eq!(found(&nodes, guarded), [(Warning, Some(1), "uptime")]);
        let text = judge(&nodes, guarded)[0].to_string();
        assert!(text.contains("node 1 (10.0.0.1:6379)"), "{text}");
        assert!(text.contains("gives no votes for 2 s more"), "{text}");
        // The node may have been up for nearly a second less than it reports.
        set(&mut nodes[1], "uptime_in_seconds", "30");
        assert_eq!(found(&nodes, guarded), [(Warning, Some(1), "uptime")]);
        set(&mut nodes[1], "uptime_in_seconds", "31");
        assert_eq!(found(&nodes, guarded), [(Note, Some(1), "uptime")]);
    }

    /// A longest ttl that the caller gives keeps no node from forgetting.
    #[test]
    fn without_the_restart_guard_a_node_younger_than_the_longest_ttl_is_named_all_the_same() {
        let told = Rules {
            max_ttl: Some(30 * Duration::from_secs(1)),
            ..RULES
        };
        let mut nodes = good(3);
        set(&mut nodes[0], "aof_enabled", "0");
        set(&mut nodes[1], "uptime_in_seconds", "29");
        let persistence = (Warning, Some(0), "persistence");
        let young = (Warning, Some(1), "uptime");
        assert_eq!(found(&nodes, told), [persistence, young]);
        let text = judge(&nodes, told)[1].to_string();
        assert!(text.contains("for up to 1 s more"), "{text}");
        let note = (Note, Some(1), "uptime");
        assert_eq!(found(&nodes, RULES), [persistence, note]);
        set(&mut nodes[1], "uptime_in_seconds", "30");
        assert_eq!(found(&nodes, told), [persistence, note]);
        // Both are set: the guard lasts as long as configured, and some clients may have locks for longer.
        let both = Rules {
            guard: Some(10 * Duration::from_secs(1)),
            max_ttl: Some(60 * Duration::from_secs(1)),
            ..RULES
        };
        assert_eq!(found(&nodes, both), [young]);
        set(&mut nodes[1], "uptime_in_seconds", "9");
        let text = judge(&nodes, both)[0].to_string();
        assert!(text.contains("gives no votes for 2 s more"), "{text}");
    }

    #[test]
    fn the_worst_comes_first() {
        let mut nodes = good(4);
        set(&mut nodes[0], "uptime_in_seconds", "1");
        set(&mut nodes[2], "maxmemory", "100000000");
        set(&mut nodes[2], "maxmemory_policy", "allkeys-lru");
        set(&mut nodes[1], "connected_slaves", "1");
        let expected = [
            (Fault, Some(2), "eviction"),
            (Warning, None, "count"),
            (Warning, Some(1), "replicas"),
            (Note, Some(0), "uptime"),
        ];
        assert_eq!(found(&nodes, RULES), expected);
        assert!(Fault > Warning && Warning > Note);
    }

    #[test]
    fn public_addresses_are_distinguished_from_others() {
        for (ip, public) in [
            ("10.1.2.3", false),
            ("172.16.0.1", false),
            ("192.168.0.1", false),
            ("100.64.0.1", false),
            ("127.0.0.1", false),
            ("169.254.0.1", false),
            ("::1", false),
            ("fd00::1", false),
            ("fe80::1", false),
            ("::ffff:10.0.0.1", false),
            ("::ffff:8.8.8.8", true),
            ("172.32.0.1", true),
            ("100.128.0.1", true),
            ("2001:4860:4860::8888", true),
        ] {
            assert_eq!(is_public(ip.parse().unwrap()), public, "{ip}");
        }
        assert_eq!([seconds(-1234), seconds(5)], ["-1.234 s", "+0.005 s"]);
    }

    /// Whatever a server replies.
    #[test]
    fn no_answer_makes_it_panic() {
        let values = [
            "",
            "-1",
            "99999999999999999999",
            "x",
            "0",
            "18446744073709551615",
        ];
        for field in GOOD.lines().filter_map(|line| line.split(':').next()) {
            for value in values {
                let mut nodes = good(3);
                set(&mut nodes[1], field, value);
                said(&mut nodes[1]).clock = Some(i64::MIN);
                said(&mut nodes[0]).clock = Some(i64::MAX);
                said(&mut nodes[2]).round_trips.clear();
                judge(&nodes, RULES);
            }
        }
        let mut nodes = good(1);
        said(&mut nodes[0]).info = Ok(ServerInfo::of(""));
        assert_eq!(found(&nodes, RULES), [(Note, None, "count")]);
    }
}
