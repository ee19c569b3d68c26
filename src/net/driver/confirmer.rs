//! The thread that confirms releases, when no operation is under way on which they could be sent again.

use std::sync::Arc;
use std::time::Instant;

use crate::net::driver::leader_loop::Lead;
use crate::net::driver::nodes::{DriverState, Nodes, SOON};
use crate::protocol::quorum::next::{Next, ThreadRole};
use crate::values::clock;
use crate::values::sync::{MutexGuard, start_thread};

/// Starts the thread that confirms releases. It ends when nothing is left to be confirmed, or to be sent again.
pub(super) fn start(nodes: &Arc<Nodes>) {
    let confirmer = Confirmer::new(nodes);
    // If no thread starts, the next operation tries that again.
    let _ = start_thread("redlock-confirm", move || confirmer.run());
}

pub(super) struct Confirmer {
    nodes: Arc<Nodes>,
    pub(super) ended: bool,
}

impl Confirmer {
    /// The core must have decided that one is started.
    pub(super) fn new(nodes: &Arc<Nodes>) -> Confirmer {
        Confirmer {
            nodes: nodes.clone(),
            ended: false,
        }
    }

    fn run(mut self) {
        let nodes = self.nodes.clone();
        let mut state = nodes.state();
        while !self.ended {
            state = self.step(&nodes, state, None);
        }
    }

    /// Does what is next, and waits until this time at most.
    pub(super) fn step<'a>(
        &mut self,
        nodes: &'a Arc<Nodes>,
        mut state: MutexGuard<'a, DriverState>,
        latest: Option<Instant>,
    ) -> MutexGuard<'a, DriverState> {
        let now = clock::instant();
        match state.core.next(ThreadRole::Confirmer, now) {
            Next::Lead => Confirmer::probe(nodes, state, now),
            Next::Wait { until } => {
                let until = latest.map_or(until, |latest| until.min(latest));
                nodes.wait(state, until)
            }
            _ => {
                self.ended = true;
                state
            }
        }
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
