//! How the masters of a Redis Cluster are set to behave if one of them fails, and what that means for locks.

use std::time::Duration;

use crate::errors::text::human;
use crate::ops::rules::codes::Code;
use crate::ops::rules::facts::NodeReport;
use crate::ops::rules::finding::{Remark, Severity};
use crate::protocol::commands::slots;
use crate::protocol::node::restart_guard::{DEFAULT_TTL, MARGIN};

/// The time until a replica is promoted, and the time until a lock is renewed.
const PROMOTION: Duration = Duration::from_secs(2);
const RENEWAL: Duration = Duration::from_secs(1);

/// The remarks about a Redis Cluster. `missing`: the number of slots that no server owns; `ttl`: the longest.
pub(crate) fn remarks<'a>(
    missing: usize,
    masters: impl Iterator<Item = &'a NodeReport> + Clone,
    ttl: Option<Duration>,
) -> Vec<Remark> {
    let is_full = masters
        .clone()
        .map(|node_report| node_report.coverage.is_full);
    let mut found = Vec::new();
    let mut add = |severity, text| found.push((severity, Code::Cluster, text));
    match missing {
        0 if is_full.clone().any(|is_full| is_full == Some(true)) => add(
            Severity::Note,
            "cluster-require-full-coverage is yes: while one slot has no master, no master takes locks. Set it to no, on all \
             servers, in redis.conf too"
                .into(),
        ),
        0 => {}
        _ if is_full.clone().all(|is_full| is_full == Some(false)) => {
            let text = slots::unserved(missing);
            add(Severity::Warning, format!("{text}; names in the others can be locked"));
        }
        _ => add(Severity::Fault, slots::unserved(missing)),
    }
    let ttl = ttl.unwrap_or(DEFAULT_TTL);
    let has_replica = |node_report: &&NodeReport| {
        let info = node_report.info.as_ref().ok();
        info.and_then(|info| info.number("connected_slaves")) > Some(0)
    };
    let silent = masters.filter(has_replica);
    let silent = silent
        .filter_map(|node_report| node_report.coverage.node_timeout)
        .max();
    let most = (ttl * 2 / 3).saturating_sub(PROMOTION + MARGIN + RENEWAL);
    // With a short ttl no setting helps.
    if let Some(silent) = silent.filter(|silent| *silent > most && most >= RENEWAL) {
        add(
            Severity::Note,
            format!(
                "cluster-node-timeout is {}: a failover takes longer than a kept lock with a ttl of {} lasts. At most {} s",
                human(silent),
                human(ttl),
                most.as_secs()
            ),
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errors::cause::Cause;
    use crate::ops::rules::facts::{Coverage, Location, Needs, TrialLock};
    use crate::protocol::commands::server_info::ServerInfo;

    const S: Duration = Duration::from_secs(1);

    fn node_report(is_full: Option<bool>, node_timeout: u32, replicas: u32) -> NodeReport {
        NodeReport {
            location: Location::Unknown,
            info: Ok(ServerInfo::of(&format!("connected_slaves:{replicas}"))),
            appendfsync: Err(Cause::NotAsked),
            needs: Needs::default(),
            writable_replica: false,
            coverage: Coverage {
                is_full,
                node_timeout: Some(node_timeout * S),
            },
            probe: TrialLock::Passed,
            beside: None,
            witness: None,
            look: None,
            round_trips: Vec::new(),
            clock: None,
        }
    }

    #[test]
    fn settings_with_which_a_failure_costs_more_are_found() {
        let (no, yes) = (
            || node_report(Some(false), 5, 1),
            || node_report(Some(true), 5, 1),
        );
        let slow = |time, replicas| node_report(Some(false), time, replicas);
        for (missing, masters, ttl, expected) in [
            (0, vec![no(), no()], None, &[][..]),
            (
                0,
                vec![no(), yes()],
                None,
                &["note: cluster-require-full-coverage is yes: "],
            ),
            (0, vec![node_report(None, 5, 1)], None, &[]),
            (
                3,
                vec![no(), no()],
                None,
                &["warning: 3 of its 16384 slots have no server: "],
            ),
            (3, vec![no(), yes()], None, &["fault: 3 of its "]),
            (
                3,
                vec![no(), node_report(None, 5, 1)],
                None,
                &["fault: 3 of its "],
            ),
            (0, vec![slow(12, 1)], None, &[]),
            (
                0,
                vec![no(), slow(15, 1)],
                None,
                &[
                    "note: cluster-node-timeout is 15 s: a failover takes longer than a kept lock with a ttl of 30 s lasts. At most 12 s",
                ],
            ),
            // Nothing fails over, or this setting makes no difference.
            (0, vec![slow(15, 0)], None, &[]),
            (0, vec![slow(15, 1)], Some(60 * S), &[]),
            (0, vec![slow(15, 1)], Some(10 * S), &[]),
        ] {
            let found = remarks(missing, masters.iter(), ttl).into_iter();
            let found: Vec<String> = found
                .map(|(severity, _, text)| format!("{severity}: {text}"))
                .collect();
            assert_eq!(found.len(), expected.len(), "{found:?}");
            for (found, expected) in found.iter().zip(expected) {
                assert!(found.starts_with(expected), "{found}");
            }
        }
    }
}
