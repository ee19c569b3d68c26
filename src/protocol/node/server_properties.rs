//! The properties that a server reports when it is connected.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::errors::cause::Cause;
use crate::errors::secret::Secret;
use crate::protocol::commands::dialect::{Dialect, Lack};
use crate::protocol::commands::node_id::NodeId;
use crate::protocol::commands::server_info::ServerInfo;
use crate::protocol::discovery::found_master::FoundMaster;
use crate::protocol::node::witness::Witness;

/// A server of a Redis Cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerInCluster {
    /// The server's address, which redirects without a host mean.
    pub(crate) address: Arc<str>,
    /// The ID that the server has reported.
    pub(crate) id: Option<NodeId>,
}

#[cfg(test)]
impl From<&str> for ServerInCluster {
    fn from(address: &str) -> ServerInCluster {
        ServerInCluster {
            address: address.into(),
            id: None,
        }
    }
}

/// The properties that a server reports when it is connected.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServerProperties {
    /// Unknown if `INFO` is forbidden.
    pub(crate) run_id: Option<String>,
    /// How long the server has been up, and when it reported that. As long as can be, if it does not report that and no
    /// guard looks: nothing shows then that it was restarted.
    pub(crate) uptime: Option<(Duration, Instant)>,
    /// Set with the restart guard.
    pub(crate) witness: Option<Witness>,
    /// The key of the witness, if it is not the usual one.
    pub(crate) witness_key: Option<Arc<[u8]>>,
    /// Where a directory has named the server.
    pub(crate) found: Option<FoundMaster>,
    /// What the restart guard needs and the server does not report or permit, if the guard is not required.
    pub(crate) unguarded: Option<&'static str>,
    /// Whether another server may own a key, and is asked then.
    pub(crate) routed: bool,
    pub(crate) server: ServerInCluster,
    /// Whether slots may be migrating to the server: it carries out releases there all the same.
    pub(crate) is_target: bool,
    /// Whether the server reads one record of the connection in a turn, however short (TLS).
    pub(crate) by_record: bool,
    pub(crate) dialect: Dialect,
    /// The password that this connection was set up with: no text received over it repeats that. The next connection
    /// may have another.
    pub(crate) secret: Secret,
}

/// What a guard needs beside INFO, as the log names it.
const WITNESS_RIGHTS: &str = "the key redlock:witness (GET, PTTL, SET)";

impl ServerProperties {
    /// Adds what the server reports of itself in INFO, at `now`.
    pub(crate) fn read_info(&mut self, info: &ServerInfo, now: Instant) {
        self.run_id = info.run_id().map(str::to_owned);
        // A guard that looks counts a server without a number as started just now (rule R15).
        let uptime = info.uptime().unwrap_or(Duration::MAX);
        self.uptime = Some((uptime, now));
    }

    /// Adds what a look found at `now`: the witness, and how long the server has been up. `needed`: without a witness
    /// there is no connection.
    pub(crate) fn with_witness(
        self,
        found: Result<(Witness, Duration), Cause>,
        needed: bool,
        now: Instant,
    ) -> Result<ServerProperties, Cause> {
        let lacks = match found {
            Ok((witness, uptime)) => {
                return Ok(ServerProperties {
                    uptime: Some((uptime, now)),
                    witness: Some(witness),
                    ..self
                });
            }
            Err(Cause::NoInfo(lacks)) if !needed => lacks,
            Err(Cause::NoWitness(_)) if !needed => WITNESS_RIGHTS,
            Err(cause) => return Err(cause),
        };
        Ok(ServerProperties {
            unguarded: Some(lacks),
            ..self
        })
    }

    /// The missing capabilities that do not affect locks.
    pub(crate) fn lacks(&self) -> [Option<Lack>; 3] {
        [
            self.dialect.lack(),
            self.unguarded.map(Lack::Guard),
            self.run_id.is_none().then_some(Lack::RunId),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_what_a_guard_needs_is_used_unless_the_program_asked_for_the_guard() {
        let now = crate::values::clock::instant();
        for (cause, lacks) in [
            (Cause::NoInfo("evicted_keys"), Some("evicted_keys")),
            (Cause::NoWitness("NOPERM".into()), Some(WITNESS_RIGHTS)),
            (Cause::Closed("x".into()), None),
        ] {
            let with =
                |needed| ServerProperties::default().with_witness(Err(cause.clone()), needed, now);
            assert!(with(true).is_err(), "{cause}");
            match (with(false), lacks) {
                (Ok(properties), Some(lacks)) => {
                    assert_eq!(properties.unguarded, Some(lacks));
                    assert!(properties.lacks().contains(&Some(Lack::Guard(lacks))));
                }
                (result, lacks) => assert!(result.is_err() && lacks.is_none(), "{cause}"),
            }
        }
    }
}
