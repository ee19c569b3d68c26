//! Findings about one server, by what it reports about itself.

use std::time::Duration;

use crate::errors::cause::Cause;
use crate::errors::text::human;
use crate::ops::rules::codes::Code;
use crate::ops::rules::facts::{EVICTED, Facts, NodeReport};
use crate::ops::rules::finding::Severity;
use crate::ops::rules::findings::Findings;
use crate::ops::rules::trial::advice;
use crate::protocol::commands::server_info::ServerInfo;

/// A server that has been up for less than this was restarted lately.
const LATELY: Duration = Duration::from_secs(3600);

impl Findings<'_> {
    pub(super) fn no_info(&mut self, node: usize, refused: &Cause) {
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
    pub(super) fn info(&mut self, node: usize, info: &ServerInfo, node_report: &NodeReport) {
        let elsewhere = self.nodes.get(node).and_then(Facts::role_elsewhere);
        if let Some(role @ ("replica" | "cluster" | "sentinel")) = elsewhere {
            let what = match role {
                "replica" => "a replica, which takes no locks: name its master",
                "cluster" => "a node of a Redis Cluster: write redis+cluster://host:port",
                _ => "a sentinel, which keeps no keys: name a server",
            };
            return self.add(Severity::Fault, node, Code::Role, what.into());
        }
        if self.nodes.get(node).is_some_and(Facts::has_no_role) {
            let what = "INFO does not say that it is a master, so it may be a replica: permit INFO as a whole";
            self.add(Severity::Warning, node, Code::Role, what.into());
        }
        self.memory(node, info);
        self.persistence(node, info, node_report);
        self.clients(node, info);
        self.uptime(node, info);
        self.replicas(node, info, node_report);
    }

    fn replicas(&mut self, node: usize, info: &ServerInfo, node_report: &NodeReport) {
        // A set has replicas, and the guard is for that.
        let is_guarded = self.has_default_guard(node);
        if let Some(replicas @ 1..) = info.number("connected_slaves").filter(|_| !is_guarded) {
            let text = format!(
                "it has {replicas} replicas: one that takes its place may not know of its locks. Nothing \
                 must fail over to them"
            );
            self.add(Severity::Warning, node, Code::Replicas, text);
        }
        // In a Redis Cluster a replica sends clients to its master.
        let elsewhere = self.nodes.get(node).is_some_and(|facts| facts.in_cluster);
        if node_report.writable_replica && !elsewhere && !self.is_guarded(node) {
            let text = "replica-read-only is no: if it is made a replica, it may go on granting locks, also those that are held, \
                        to programs that are connected: CONFIG SET replica-read-only yes, and the same in redis.conf; or \
                        Options::restart_guard on all clients";
            self.add(Severity::Warning, node, Code::Replicas, text.into());
        }
    }

    fn memory(&mut self, node: usize, info: &ServerInfo) {
        let policy = info.get("maxmemory_policy").unwrap_or("noeviction");
        let limit = info.number("maxmemory").unwrap_or(0);
        let used = info.number("used_memory").unwrap_or(0);
        let (evicts, code) = (policy != "noeviction", Code::Eviction);
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
                Some(_) => (self.no_vote, Code::Eviction, "it gives no votes"),
                None => (
                    Severity::Warning,
                    Code::Guard,
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
        self.add(severity, node, Code::Eviction, text);
    }

    fn persistence(&mut self, node: usize, info: &ServerInfo, node_report: &NodeReport) {
        let code = Code::Persistence;
        let appends = info.get("aof_enabled");
        let forgets = match (appends, &node_report.appendfsync) {
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
            self.add(Severity::Warning, node, Code::Clients, text);
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
            self.add(Severity::Warning, node, Code::Clients, text);
        }
    }

    fn uptime(&mut self, node: usize, info: &ServerInfo) {
        let Some(facts) = self.nodes.get(node) else {
            return;
        };
        let Some(uptime) = info.uptime() else {
            let left = facts.votes_in(Duration::ZERO, self.rules);
            if !left.is_zero() {
                let text = format!(
                    "INFO does not say uptime_in_seconds, so for the restart guard it was started just now: it gives no votes \
                     for {} after a new connection, until its witness is older than that",
                    human(left)
                );
                self.add(self.no_vote, node, Code::Uptime, text);
            }
            return;
        };
        let (left, up) = (facts.votes_in(uptime, self.rules), human(uptime));
        if left > facts.votes_by_uptime(uptime, self.rules) {
            let text = format!(
                "it was promoted or flushed, or has evicted keys, and gives no votes for {} more, counted from the first \
                 connection of a program with the restart guard: until then it may not have locks that are held",
                human(left)
            );
            self.add(self.no_vote, node, Code::Uptime, text);
        } else if !left.is_zero() {
            let text = format!(
                "it was started {up} ago, and gives no votes for {} more: until then it may have \
                 forgotten locks",
                human(left)
            );
            self.add(self.no_vote, node, Code::Uptime, text);
        } else if let Some(max_ttl) = self.rules.max_ttl.filter(|max_ttl| uptime < *max_ttl) {
            let left = max_ttl.saturating_sub(uptime);
            let text = format!(
                "it was started {up} ago, and may have forgotten locks that are held for up to {} \
                 more: Options::restart_guard keeps it from voting until then",
                human(left)
            );
            self.add(Severity::Warning, node, Code::Uptime, text);
        } else if uptime < LATELY {
            let text = format!("it was started {up} ago");
            self.add(Severity::Note, node, Code::Uptime, text);
        }
    }
}
