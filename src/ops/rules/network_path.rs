//! Findings about the network path to a node: its latency, unencrypted passwords, unchecked certificates.

use core::net::IpAddr;

use crate::errors::text::human;
use crate::ops::rules::codes::Code;
use crate::ops::rules::facts::{Location, NodeReport, median};
use crate::ops::rules::finding::Severity;
use crate::ops::rules::findings::Findings;

impl Findings<'_> {
    pub(super) fn latency(&mut self, node: usize, node_report: &NodeReport) {
        let limit = self.rules.node_timeout;
        let trips = &node_report.round_trips;
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
            self.add(self.no_vote, node, Code::Latency, text);
        } else if *longest > limit / 2 {
            let text = format!(
                "its slowest answer of {} took {}, above half of node_timeout {}: {what}",
                trips.len(),
                human(*longest),
                human(limit)
            );
            self.add(Severity::Warning, node, Code::Latency, text);
        }
    }

    pub(super) fn plain_text(&mut self, node: usize, password: bool, node_report: &NodeReport) {
        if let Location::Ip(ip) = node_report.location
            && password
            && is_public(ip)
        {
            let text = "its password goes unencrypted to a public address: use rediss://";
            self.add(Severity::Warning, node, Code::PlainText, text.into());
        }
    }

    pub(super) fn insecure(&mut self, node: usize, insecure: bool) {
        if insecure {
            let text = "its certificate is not checked (#insecure), so anything on the way can pretend to be it: \
                        trust its CA instead";
            self.add(Severity::Warning, node, Code::Insecure, text.into());
        }
    }
}

/// Whether others than the address's owner carry what is sent there.
pub(super) fn is_public(ip: IpAddr) -> bool {
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
    }
}
