//! The result of a check.

use std::fmt;
use std::time::Duration;

use crate::ops::rules::facts::{Facts, NodeReport, Rules, TrialLock, median};
use crate::ops::rules::finding::{Finding, Severity};
use crate::ops::rules::judge::judge;
use crate::protocol::commands::server_info::ServerInfo;
use crate::values::arithmetic::majority;
use crate::values::prefix::Prefix;

/// The result of [`Redlock::check`](crate::Redlock::check). `Display` gives a line for each finding, the worst first; nothing if there are
/// none.
#[derive(Clone, Debug)]
pub struct Report {
    pub(super) findings: Vec<Finding>,
    /// The shards of a Redis Cluster, with the facts about their masters. Otherwise all nodes.
    pub(super) shards: Vec<Vec<NodeFacts>>,
    /// The requirements that the nodes were checked against.
    pub(super) probe: Vec<u8>,
    pub(super) prefix: Prefix,
    pub(super) node_timeout: Duration,
    pub(super) guard: Option<Duration>,
}

impl Report {
    /// This report for programs whose locks have a ttl of at most `max_ttl`, if not all of them use the [restart
    /// guard](crate::Options::restart_guard): it warns of nodes that were started so recently that they may have
    /// forgotten a lock that is still held (`uptime`). Other findings about restarts stay as they are.
    #[cfg(feature = "cli")]
    pub(crate) fn for_ttls_up_to(mut self, max_ttl: Duration) -> Report {
        self.judge(Some(max_ttl));
        self
    }

    /// Numbers the nodes. One that is asked for several shards, beside a Redis Cluster, has one number.
    pub(super) fn number(&mut self) {
        let mut known: Vec<(usize, String)> = Vec::new();
        for shard in &mut self.shards {
            for (node, NodeFacts(facts)) in shard.iter_mut().enumerate() {
                let place = (node, facts.address.clone());
                facts.number = match known.iter().position(|known| *known == place) {
                    Some(number) => number,
                    None => {
                        known.push(place);
                        known.len() - 1
                    }
                };
            }
        }
    }

    pub(super) fn judge(&mut self, max_ttl: Option<Duration>) {
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
    /// holder has that lock. Then give [`check`](crate::Redlock::check) another name.
    pub fn is_checked(&self) -> bool {
        self.shards.iter().all(|nodes| {
            let node_reports = nodes.iter().filter_map(NodeFacts::node_report);
            let passed =
                node_reports.filter(|node_report| matches!(node_report.probe, TrialLock::Passed));
            passed.count() >= majority(nodes.len())
        })
    }

    /// All findings, the worst first.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter()
    }

    /// The nodes, in the order of [`Redlock::new`](crate::Redlock::new). In a Redis Cluster each master is one, shard by shard.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeFacts> {
        let mut shown = 0;
        let all = self.shards.iter().flatten();
        all.filter(move |node| {
            let is_new = node.0.number == shown;
            shown += usize::from(is_new);
            is_new
        })
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
pub struct NodeFacts(pub(super) Facts);

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
        median(&self.node_report()?.round_trips)
    }

    /// How far its clock is ahead of this machine's, in milliseconds; negative: behind. Exact to half a
    /// round trip.
    pub fn clock_offset_ms(&self) -> Option<i64> {
        self.node_report()?.clock
    }

    pub(super) fn node_report(&self) -> Option<&NodeReport> {
        self.0.node_report.as_ref().ok()
    }

    fn info(&self) -> Option<&ServerInfo> {
        self.node_report()?.info.as_ref().ok()
    }
}
