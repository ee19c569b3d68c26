//! The codes of findings. Each has a row, from which both the code and the table in the documentation are made.

#[cfg(test)]
use crate::ops::rules::finding::Severity;

/// Makes the codes, and the table, from rows: name, code, and when it is a fault, a warning and a note.
macro_rules! rows {
    ($($name:ident $code:literal: $fault:literal, $warning:literal, $note:literal;)*) => {
        /// The subject of a finding.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Code {
            $($name,)*
        }

        impl Code {
            /// The word for programs.
            pub(crate) fn as_str(self) -> &'static str {
                match self {
                    $(Code::$name => $code,)*
                }
            }

            /// When a finding with this code is so severe. Empty: never.
            #[cfg(test)]
            pub(crate) fn when(self, severity: Severity) -> &'static str {
                let [fault, warning, note] = match self {
                    $(Code::$name => [$fault, $warning, $note],)*
                };
                match severity {
                    Severity::Fault => fault,
                    Severity::Warning => warning,
                    Severity::Note => note,
                }
            }
        }

        /// The table of all codes, for the documentation.
        macro_rules! table_of_codes {
            () => {
                concat!(
                    "| code | fault | warning | note |\n| --- | --- | --- | --- |\n",
                    $("| `", $code, "` | ", $fault, " | ", $warning, " | ", $note, " |\n",)*
                )
            };
        }
        pub(crate) use table_of_codes;
    };
}

rows! {
    Reach "reach":
        "it cannot be asked, and [too few are left](Report::is_fit)",
        "it cannot be asked",
        "`INFO` or `CONFIG` is refused for now";
    Auth "auth":
        "it cannot be asked, and [too few are left](Report::is_fit)",
        "it cannot be asked",
        "`INFO` or `CONFIG` is refused without a login";
    Probe "probe":
        "it refuses the lock that is tried, and too few are left",
        "it refuses it, or that name",
        "another holder has that lock";
    SameServer "same-server":
        "one server under two addresses",
        "",
        "";
    Role "role":
        "a replica, a sentinel, a Redis Cluster's server at a plain URL",
        "`INFO` does not show that it is a master",
        "";
    Eviction "eviction":
        "a policy that removes locks; or the restart guard needs `evicted_keys` in `INFO`, and too few nodes report it",
        "it does not report that; keys were removed before the policy was corrected; more than 90 % of `maxmemory` is used",
        "such a policy, without `maxmemory`";
    Persistence "persistence":
        "",
        "a restart forgets locks (`appendfsync` is not `always`), and there is no restart guard; the last write to disk failed",
        "";
    Replicas "replicas":
        "",
        "without the restart guard: it has replicas, to which something may fail over; or it takes writes when it is made a \
         replica (`replica-read-only` is `no`)",
        "";
    Independence "independence":
        "",
        "two nodes at the same address",
        "all on this machine";
    Count "count":
        "",
        "an even number",
        "one";
    Latency "latency":
        "the median of ten answers is above `node_timeout`, and too few are left",
        "it is; or the slowest is above half of that",
        "";
    Clock "clock":
        "",
        "more than 1 s from the nodes' median; or their median is so far from this machine's",
        "";
    Sentinel "sentinel":
        "",
        "one does not answer, or names another master; the quorum is more than there are",
        "one is given";
    Isolation "isolation":
        "",
        "Sentinel without `min-replicas-to-write`, or `min-replicas-max-lag` is too long",
        "";
    Guard "guard":
        "",
        "the guard that is on by default for sets and Redis Clusters cannot work",
        "";
    Cluster "cluster":
        "slots of a Redis Cluster have no server",
        "the same, but the others are served",
        "`cluster-require-full-coverage` is `yes`; a failover takes longer than a kept lock lasts (`cluster-node-timeout`)";
    Uptime "uptime":
        "the restart guard keeps it from voting, and too few are left",
        "it does, and for how long; or locks may be forgotten (`redlock doctor --max-ttl`)",
        "less than an hour";
    Clients "clients":
        "",
        "more than 80 % of `maxclients`, or some were turned away",
        "";
    PlainText "plain-text":
        "",
        "a password goes unencrypted to a public address",
        "";
    Insecure "insecure":
        "",
        "its certificate is not checked (`#insecure`)",
        "";
    Version "version":
        "older than 2.6.12",
        "",
        "versions differ";
    Rights "rights":
        "with the restart guard, `INFO` or the key `redlock:witness` is refused or holds other data, and too few are left",
        "with the restart guard, one of these is refused; or a replica, which may take over, does not permit this user to lock",
        "`INFO` or `CONFIG` is refused, or the keys beside locks are";
}
