//! The judgement of all nodes by their facts, and the findings that concern several of them.

use crate::ops::rules::codes::Code;
use crate::ops::rules::facts::{Facts, Location, Rules};
use crate::ops::rules::finding::{Finding, Severity};
use crate::ops::rules::findings::Findings;
use crate::ops::rules::trial::advice;
use crate::values::arithmetic::spare;

/// Clocks that differ by more are noticed.
const CLOCK: i64 = 1000;

/// Findings about the nodes, the worst first.
pub(crate) fn judge(nodes: &[Facts], rules: Rules<'_>) -> Vec<Finding> {
    let unusable = nodes.iter().filter(|node| node.gives_no_votes(rules));
    let mut findings = Findings {
        nodes,
        rules,
        no_vote: match unusable.count() > spare(nodes.len()) {
            true => Severity::Fault,
            false => Severity::Warning,
        },
        all: Vec::new(),
    };
    findings.reach();
    findings.same_server();
    findings.probe();
    findings.number_and_locations();
    findings.clocks();
    findings.versions();
    for (node, facts) in nodes.iter().enumerate() {
        findings.insecure(node, facts.insecure);
        for (severity, code, text) in &facts.remarks {
            findings.add(*severity, node, *code, text.clone());
        }
        if let Ok(node_report) = &facts.node_report {
            findings.latency(node, node_report);
            findings.plain_text(node, facts.plain_password, node_report);
            if let Some(refused) = &node_report.beside {
                findings.keys_beside(node, refused);
            }
            if let Some(refused) = node_report
                .witness
                .as_ref()
                .filter(|_| rules.guard.is_some())
            {
                findings.witness(node, refused);
            }
            findings.default_guard(node, node_report);
            match &node_report.info {
                Ok(info) => findings.info(node, info, node_report),
                Err(refused) => findings.no_info(node, refused),
            }
        }
    }
    findings.all.sort_by_key(Finding::order);
    findings.all
}

impl Findings<'_> {
    fn reach(&mut self) {
        for (node, facts) in self.nodes.iter().enumerate() {
            let Err(cause) = &facts.node_report else {
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
                let first = self.number(*first);
                let text = format!(
                    "the same server as node {first} (one run_id): its vote must count once, give each \
                     server once"
                );
                self.add(Severity::Fault, *node, Code::SameServer, text);
            }
        }
    }

    fn number_and_locations(&mut self) {
        let count = self.nodes.len();
        match count {
            // A set or a Redis Cluster has more servers.
            1 if self.nodes.iter().all(|node| node.is_set) => return,
            1 => {
                let text = "one node: when it is away no lock can be taken. 3 or 5 tolerate 1 or 2";
                return self.add_for_all(Severity::Note, Code::Count, text);
            }
            _ if count.is_multiple_of(2) => {
                let text = format!(
                    "{count} nodes tolerate no more failures than {}: take one away, or add one",
                    count - 1
                );
                self.add_for_all(Severity::Warning, Code::Count, text);
            }
            _ => {}
        }
        let places: Vec<(usize, Location)> = self
            .node_reports()
            .map(|(node, node_report)| (node, node_report.location))
            .filter(|(_, place)| *place != Location::Unknown)
            .collect();
        let here = |(_, place): &(usize, Location)| *place == Location::ThisMachine;
        if places.len() > 1 && places.iter().all(here) {
            let text = "all nodes are on this machine, and fail with it: fit for tests";
            return self.add_for_all(Severity::Note, Code::Independence, text);
        }
        for (i, (node, place)) in places.iter().enumerate() {
            if let Some((first, _)) = places.iter().take(i).find(|(_, other)| other == place) {
                let first = self.number(*first);
                let text = format!(
                    "at the same address as node {first}, so perhaps on one machine, and fails with it: give each \
                     node its own"
                );
                self.add(Severity::Warning, *node, Code::Independence, text);
            }
        }
    }

    fn clocks(&mut self) {
        let mut offsets: Vec<i64> = self
            .node_reports()
            .filter_map(|(_, node_report)| node_report.clock)
            .collect();
        offsets.sort_unstable();
        let middle = |at: usize| offsets.get(at).copied().unwrap_or(0);
        let (low, high) = (offsets.len().saturating_sub(1) / 2, offsets.len() / 2);
        let median = middle(low).midpoint(middle(high));
        for (node, node_report) in self.node_reports() {
            let Some(offset) = node_report.clock.map(|clock| clock.saturating_sub(median)) else {
                continue;
            };
            if offset.saturating_abs() > CLOCK {
                let text = format!(
                    "its clock is {} from that of the nodes' median: locks may end early, or fencing \
                     tokens repeat, when it is set. Let NTP slew it",
                    seconds(offset)
                );
                self.add(Severity::Warning, node, Code::Clock, text);
            }
        }
        if median.saturating_abs() > CLOCK {
            let text = format!(
                "the nodes' clocks are {} from ours: one of them is wrong, perhaps this machine's. Let NTP slew them: a node's \
                 clock that is set forward ends locks early",
                seconds(median)
            );
            self.add_for_all(Severity::Warning, Code::Clock, text);
        }
    }

    fn versions(&mut self) {
        for (node, info) in self.infos().filter(|(_, info)| info.is_too_old()) {
            let text = format!(
                "its version is {}: 2.6.12 or later is needed",
                info.version().unwrap_or_default()
            );
            self.add(Severity::Fault, node, Code::Version, text);
        }
        let mut versions: Vec<&str> = self
            .infos()
            .filter_map(|(_, info)| info.version())
            .collect();
        versions.sort_unstable();
        versions.dedup();
        if versions.len() > 1 {
            let text = format!("the nodes' versions differ: {}", versions.join(", "));
            self.add_for_all(Severity::Note, Code::Version, text);
        }
    }
}

fn seconds(milliseconds: i64) -> String {
    let way = if milliseconds < 0 { '-' } else { '+' };
    let whole = milliseconds.unsigned_abs();
    format!("{way}{}.{:03} s", whole / 1000, whole % 1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_have_a_sign_and_milliseconds() {
        assert_eq!([seconds(-1234), seconds(5)], ["-1.234 s", "+0.005 s"]);
    }
}
