//! Worlds whose schedules the real code runs as well: nodes and clients keep their names.

use super::super::explorer::{Steps, World};
use super::{Lease, PLAIN, Phase, State};

/// Three nodes, two clients with three attempts each; what goes over one connection keeps its order (rule R7).
pub(crate) const MUTEX: Lease = Lease {
    attempts: 3,
    ordered: true,
    named: true,
    ..PLAIN
};

/// And two nodes restart without their data (rules R14-R16).
pub(crate) const GUARDED: Lease = Lease {
    restarts: 2,
    quarantine: 3,
    guards_extensions: true,
    away: true,
    ..MUTEX
};

/// What can be seen of a state: whose attempt has the key of each node, and how far each client is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) keys: Vec<Option<usize>>,
    pub(crate) clients: Vec<SeenClient>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SeenClient {
    Idle,
    Acquiring,
    /// Whether it believes so still.
    Holding(bool),
}

impl Lease {
    /// The number of a client's attempts, and after how many ticks a lock ends, and a restarted node votes.
    pub(crate) fn sizes(&self) -> (usize, u8, u8) {
        (self.attempts, self.ttl, self.quarantine)
    }

    pub(crate) fn seen(&self, state: &State) -> Seen {
        let nodes = state.nodes[..self.nodes].iter();
        let clients = state.clients[..self.clients].iter();
        Seen {
            keys: nodes
                .map(|node| usize::from(node.key).checked_sub(1))
                .collect(),
            clients: clients
                .map(|client| match client.phase {
                    Phase::Idle => SeenClient::Idle,
                    Phase::Acquiring => SeenClient::Acquiring,
                    Phase::Holding => SeenClient::Holding(client.belief > 0),
                })
                .collect(),
        }
    }

    /// All that can happen next, in words.
    pub(crate) fn described(&self, state: &State) -> Vec<(State, String)> {
        let mut steps = Steps::new(true);
        self.steps(state, &mut steps);
        steps.into_vec()
    }
}
