//! The tries to connect to a node that is not connected.

use std::time::{Duration, Instant};

use crate::protocol::node::known_server::KnownServer;
use crate::protocol::node::server_properties::ServerProperties;
use crate::values::backoff::Backoff;

/// A connection that may follow the present one.
#[derive(Default)]
pub(super) enum NextConnection {
    #[default]
    None,
    Connecting,
    Made(Box<ServerProperties>),
}

/// The tries to connect.
pub(super) struct Reconnect {
    pub(super) next: NextConnection,
    /// The record of the server that it leads to, by other lanes (rule R66).
    pub(super) known: Option<Box<KnownServer>>,
    /// The number of tries that have ended.
    pub(super) tries: u64,
    /// The number of useless tries since an operation was last answered.
    pub(super) failures: Backoff,
    /// When the last try began.
    pub(super) began: Option<Instant>,
    /// When the next try begins. While a connection is drained: when draining has failed.
    pub(super) at: Option<Instant>,
    /// Whether an operation needs the node: no pause.
    pub(super) now: bool,
    /// Whether a try has ended since the nodes were closed.
    pub(super) tried_last: bool,
}

impl Default for Reconnect {
    fn default() -> Reconnect {
        Reconnect {
            next: NextConnection::None,
            known: None,
            tries: 0,
            failures: Backoff::at_node(),
            began: None,
            at: None,
            now: false,
            tried_last: false,
        }
    }
}

impl Reconnect {
    /// The longest pause before the next try.
    pub(super) fn pause(&self) -> Duration {
        self.failures.node_pause()
    }

    pub(super) fn begin(&mut self, now: Instant) {
        self.next = NextConnection::Connecting;
        self.began = Some(now);
    }

    pub(super) fn ended(&mut self) {
        self.tries += 1;
        self.now = false;
    }

    pub(super) fn is_connecting(&self) -> bool {
        matches!(self.next, NextConnection::Connecting)
    }

    pub(super) fn is_made(&self) -> bool {
        matches!(self.next, NextConnection::Made(_))
    }

    pub(super) fn take_made(&mut self) -> Option<ServerProperties> {
        match std::mem::take(&mut self.next) {
            NextConnection::Made(properties) => Some(*properties),
            other => {
                self.next = other;
                None
            }
        }
    }
}
