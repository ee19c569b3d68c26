//! The reports of nodes about themselves, and whether they keep a node from voting.

use core::net::IpAddr;
use std::time::Duration;

use crate::errors::cause::Cause;
use crate::ops::rules::finding::Remark;
use crate::protocol::commands::server_info::ServerInfo;
use crate::protocol::node::restart_guard::RestartGuard;
use crate::protocol::node::witness_look::WitnessLook;

/// The field of INFO that shows whether a server keeps its keys.
pub(super) const EVICTED: &str = "evicted_keys";

/// The facts that were found about a node.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    pub(crate) address: String,
    /// The node's report, or why it cannot be asked.
    pub(crate) node_report: Result<NodeReport, Cause>,
    /// Whether a password is sent to the node unencrypted.
    pub(crate) plain_password: bool,
    /// Whether the node is reached over TLS without a check of its certificate.
    pub(crate) insecure: bool,
    /// The number by which findings name it: its place among [`Report::nodes`](crate::Report::nodes).
    pub(crate) number: usize,
    /// Whether another server may take its place.
    pub(crate) is_set: bool,
    /// The ttls for which the guard is on by default, if the node is a set.
    pub(crate) default_guard: Option<Duration>,
    /// Whether this is one of the servers of a Redis Cluster, which is the node.
    pub(crate) in_cluster: bool,
    /// Further remarks about the node.
    pub(crate) remarks: Vec<Remark>,
}

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
    pub(crate) location: Location,
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
    /// The server as the restart guard sees it at a new connection.
    pub(crate) look: Option<WitnessLook>,
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

impl Facts {
    /// The restart guard of this node.
    fn guard(&self, rules: Rules<'_>) -> Option<RestartGuard> {
        let guard = RestartGuard::new(rules.guard.or(self.default_guard)?, 1);
        Some(if self.is_set { guard.of_set() } else { guard })
    }

    /// How long the restart guard still keeps its server from voting, by the uptime alone.
    pub(super) fn votes_by_uptime(&self, uptime: Duration, rules: Rules<'_>) -> Duration {
        let guard = self.guard(rules);
        guard.map_or(Duration::ZERO, |guard| guard.left(uptime))
    }

    /// How long the restart guard still keeps its server from voting.
    pub(super) fn votes_in(&self, uptime: Duration, rules: Rules<'_>) -> Duration {
        let look = self
            .node_report
            .as_ref()
            .ok()
            .and_then(|node_report| node_report.look.as_ref());
        match (self.guard(rules), look) {
            (Some(guard), Some(look)) => look.left(guard),
            _ => self.votes_by_uptime(uptime, rules),
        }
    }

    /// Whether the node cannot take part in a majority, for any reason.
    pub(super) fn gives_no_votes(&self, rules: Rules<'_>) -> bool {
        let Ok(node_report) = &self.node_report else {
            return true;
        };
        if rules.guard.is_some() && node_report.witness.is_some() {
            return true;
        }
        let kept = match &node_report.info {
            Ok(info) => {
                let uptime = info.uptime().unwrap_or_default();
                let unseen = rules.guard.is_some() && info.number(EVICTED).is_none();
                unseen || !self.votes_in(uptime, rules).is_zero()
            }
            Err(_) => rules.guard.is_some(),
        };
        let slow =
            median(&node_report.round_trips).is_some_and(|median| median > rules.node_timeout);
        let refuses = match &node_report.probe {
            TrialLock::Refused(_, cause) => !cause.concerns_name(),
            TrialLock::Gone(_) => true,
            TrialLock::Passed | TrialLock::Held => false,
        };
        kept || refuses || slow || self.role_elsewhere().is_some()
    }

    /// Whether nothing shows that the server is a master.
    pub(super) fn has_no_role(&self) -> bool {
        let info = self
            .node_report
            .as_ref()
            .ok()
            .and_then(|node_report| node_report.info.as_ref().ok());
        info.is_some_and(|info| info.role().is_none())
    }

    /// The node's role, if locks must not be taken from it.
    pub(super) fn role_elsewhere(&self) -> Option<&str> {
        let info = self.node_report.as_ref().ok()?.info.as_ref().ok()?;
        let fits = |role: &&str| *role == "master" || self.in_cluster && *role == "cluster";
        info.role().filter(|role| !fits(role))
    }
}

pub(crate) fn median(times: &[Duration]) -> Option<Duration> {
    let mut times = times.to_vec();
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}
