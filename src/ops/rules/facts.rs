//! The reports of nodes about themselves, and whether they keep a node from voting.

use core::net::IpAddr;
use std::time::Duration;

use crate::errors::cause::Cause;
use crate::ops::rules::finding::Remark;
use crate::protocol::commands::server_info::ServerInfo;
use crate::protocol::node::guard::Guard;

/// The field of INFO that shows whether a server keeps its keys.
pub(super) const EVICTED: &str = "evicted_keys";

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
    pub(super) fn votes_in(&self, uptime: Duration, default: Option<Duration>) -> Duration {
        let guard = self.guard.map(|max_ttl| Guard::new(max_ttl, 1));
        let default = default.map(|max_ttl| Guard::new(max_ttl, 1).of_set());
        let guard = guard.or(default);
        guard.map_or(Duration::ZERO, |guard| guard.left(uptime))
    }
}

impl Facts {
    /// Whether the node cannot take part in a majority, for any reason.
    pub(super) fn gives_no_votes(&self, rules: Rules<'_>) -> bool {
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
    pub(super) fn role_elsewhere(&self) -> Option<&str> {
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
