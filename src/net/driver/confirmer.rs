//! The thread that confirms releases, when no operation is under way on which they could be sent again.

use std::sync::Arc;
use std::time::Instant;

use crate::net::driver::leader_loop::Lead;
use crate::net::driver::leader_thread::Connections;
use crate::net::driver::nodes::{DriverState, Nodes, SOON};
use crate::protocol::quorum::next::{Next, ThreadRole};
use crate::values::clock;
use crate::values::sync::{MutexGuard, start_thread};

/// Starts the thread that confirms releases. It ends when nothing is left to be confirmed, or to be sent again.
pub(super) fn start(nodes: &Arc<Nodes>) {
    let confirmer = Confirmer {
        nodes: nodes.clone(),
        ended: false,
    };
    // If no thread starts, the next operation tries that again.
    let _ = start_thread("redlock-confirm", move || confirmer.run());
}

struct Confirmer {
    nodes: Arc<Nodes>,
    ended: bool,
}

impl Confirmer {
    fn run(mut self) {
        let nodes = self.nodes.clone();
        let mut state = nodes.state();
        loop {
            let now = clock::instant();
            state = match state.core.next(ThreadRole::Confirmer, now) {
                Next::Lead => Confirmer::probe(&nodes, state, now),
                Next::Finished => break,
                next => {
                    let (role, connections) = (ThreadRole::Confirmer, &mut Connections::default());
                    nodes.carry_out(role, connections, state, next, now).0
                }
            }
        }
        self.ended = true;
    }

    fn probe<'a>(
        nodes: &'a Arc<Nodes>,
        mut state: MutexGuard<'a, DriverState>,
        now: Instant,
    ) -> MutexGuard<'a, DriverState> {
        let Some(leader) = nodes.take_lead(&mut state) else {
            // The leader probes, too.
            nodes.submitted(&state);
            return nodes.wait(state, now + SOON);
        };
        let mut lead = Lead {
            nodes,
            leader: Some(leader),
        };
        let state = lead.run(state, now, |_| true);
        lead.end(state);
        nodes.state()
    }
}

impl Drop for Confirmer {
    /// If the confirmer could not be started, or has panicked, which only a bug can cause, another one may be started.
    fn drop(&mut self) {
        if !self.ended {
            let mut state = self.nodes.state();
            state.core.deserted(ThreadRole::Confirmer, clock::instant());
        }
    }
}
