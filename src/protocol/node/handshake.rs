//! The properties that a server reports when it is connected.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::errors::secret::Secret;
use crate::protocol::commands::means::{Lack, Means};
use crate::protocol::node::address::FoundMaster;
use crate::protocol::node::witness::Witness;

/// The properties that a server reports when it is connected.
#[derive(Clone, Debug, Default)]
pub(crate) struct Handshake {
    /// Unknown if `INFO` is forbidden.
    pub(crate) run_id: Option<String>,
    /// How long the server has been up, and when it reported that.
    pub(crate) uptime: Option<(Duration, Instant)>,
    /// Set with the restart guard.
    pub(crate) witness: Option<Witness>,
    /// The key of the witness, if it is not the usual one.
    pub(crate) witness_key: Option<Arc<[u8]>>,
    /// Where a directory has named the server.
    pub(crate) found: Option<FoundMaster>,
    /// Whether the server refuses what the restart guard needs, and the guard is not required.
    pub(crate) unguarded: bool,
    /// Whether another server may own a key, and is asked then.
    pub(crate) routed: bool,
    /// Whether slots may be on their way to the server: it carries out releases there all the same.
    pub(crate) is_target: bool,
    /// Whether the server reads one record of the connection in a turn, however short (TLS).
    pub(crate) by_record: bool,
    pub(crate) means: Means,
    /// The password that this connection was set up with: no text received over it repeats that. The next connection
    /// may have another.
    pub(crate) secret: Secret,
}

impl Handshake {
    /// The missing capabilities that do not affect locks.
    pub(crate) fn lacks(&self) -> [Option<Lack>; 3] {
        [
            self.means.lack(),
            self.unguarded.then_some(Lack::Guard),
            self.run_id.is_none().then_some(Lack::RunId),
        ]
    }
}
