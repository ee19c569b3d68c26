//! The findings so far, and what each rule asks of all nodes.

use crate::ops::rules::codes::Code;
use crate::ops::rules::facts::{Facts, NodeReport, Rules};
use crate::ops::rules::finding::{Finding, Severity};
use crate::protocol::commands::server_info::ServerInfo;

/// The findings so far.
pub(super) struct Findings<'a> {
    pub(super) nodes: &'a [Facts],
    pub(super) rules: Rules<'a>,
    /// How bad it is that a node gives no votes. Depends on how many nodes give none, each for its own reason.
    pub(super) no_vote: Severity,
    pub(super) all: Vec<Finding>,
}

impl<'a> Findings<'a> {
    pub(super) fn add(&mut self, severity: Severity, node: usize, code: Code, text: String) {
        let Some(facts) = self.nodes.get(node) else {
            return;
        };
        let (number, address) = (facts.number, &facts.address);
        self.all.push(Finding {
            severity,
            node: Some(number),
            code,
            text: format!("node {number} ({address}): {text}"),
        });
    }

    pub(super) fn add_for_all(&mut self, severity: Severity, code: Code, text: impl Into<String>) {
        self.all.push(Finding {
            severity,
            node: None,
            code,
            text: text.into(),
        });
    }

    /// The number by which findings name a node.
    pub(super) fn number(&self, node: usize) -> usize {
        self.nodes.get(node).map_or(node, |facts| facts.number)
    }

    /// The reports of the nodes that could be asked.
    pub(super) fn node_reports(&self) -> impl Iterator<Item = (usize, &'a NodeReport)> + use<'a> {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter_map(|(node, facts)| Some((node, facts.node_report.as_ref().ok()?)))
    }

    pub(super) fn infos(&self) -> impl Iterator<Item = (usize, &'a ServerInfo)> + use<'a> {
        self.node_reports()
            .filter_map(|(node, node_report)| Some((node, node_report.info.as_ref().ok()?)))
    }

    pub(super) fn is_guarded(&self, node: usize) -> bool {
        self.rules.guard.is_some() || self.has_default_guard(node)
    }

    pub(super) fn has_default_guard(&self, node: usize) -> bool {
        let facts = self.nodes.get(node);
        facts.is_some_and(|facts| facts.default_guard.is_some())
    }
}
