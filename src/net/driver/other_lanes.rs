//! The other connections of this program to servers of the same nodes: in a Redis Cluster each shard has its own.

use std::panic::{RefUnwindSafe, UnwindSafe};

use crate::net::discovery::place::Place;
use crate::protocol::node::debt::Redirected;
use crate::protocol::node::known_server::{Connected, KnownServer};

pub(crate) trait OtherLanes: Send + Sync + UnwindSafe + RefUnwindSafe {
    /// Sends debts on that servers at these places have redirected.
    fn send_on(&self, from: &[Place], redirected: Vec<Redirected>);

    /// The latest that they have learnt of the server that a connection of a node leads to, or of the one before (rule R66).
    fn known_server(&self, node: usize, connected: Connected<'_>) -> Option<KnownServer>;
}
