//! The thread that confirms releases, when no operation is under way on which they could be sent again.

use std::sync::Arc;
use std::time::Instant;

use crate::net::driver::executor::{DriverState, Executor, SOON};
use crate::net::driver::leader_loop::LeaderLoop;
use crate::protocol::quorum::thread_step::{ThreadRole, ThreadStep};
use crate::values::clock;
use crate::values::sync::{MutexGuard, start_thread};

/// Starts the thread that confirms releases. It ends when nothing is left to be confirmed, or to be sent again.
pub(super) fn start(executor: &Arc<Executor>) {
    let confirmer = Confirmer::new(executor);
    // If no thread starts, the next operation tries that again.
    let _ = start_thread("redlock-confirm", move || confirmer.run());
}

pub(super) struct Confirmer {
    executor: Arc<Executor>,
    pub(super) ended: bool,
}

impl Confirmer {
    /// The core must have decided that one is started.
    pub(super) fn new(executor: &Arc<Executor>) -> Confirmer {
        Confirmer {
            executor: executor.clone(),
            ended: false,
        }
    }

    fn run(mut self) {
        let nodes = self.executor.clone();
        let mut driver_state = nodes.driver_state();
        while !self.ended {
            driver_state = self.step(&nodes, driver_state, None);
        }
    }

    /// Does what is next, and waits until this time at most.
    pub(super) fn step<'a>(
        &mut self,
        executor: &'a Arc<Executor>,
        mut driver_state: MutexGuard<'a, DriverState>,
        latest: Option<Instant>,
    ) -> MutexGuard<'a, DriverState> {
        let now = clock::instant();
        match driver_state.core.next(ThreadRole::Confirmer, now) {
            ThreadStep::TryToLead => Confirmer::probe(executor, driver_state, now),
            ThreadStep::Wait { until } => {
                let until = latest.map_or(until, |latest| until.min(latest));
                executor.wait(driver_state, until)
            }
            _ => {
                self.ended = true;
                driver_state
            }
        }
    }

    fn probe<'a>(
        executor: &'a Arc<Executor>,
        mut driver_state: MutexGuard<'a, DriverState>,
        now: Instant,
    ) -> MutexGuard<'a, DriverState> {
        let Some(leader) = executor.take_lead(&mut driver_state) else {
            // The leader probes, too.
            executor.submitted(&driver_state);
            return executor.wait(driver_state, now + SOON);
        };
        let mut lead = LeaderLoop {
            executor,
            leader: Some(leader),
        };
        let driver_state = lead.run(driver_state, now, |_| true);
        lead.end(driver_state);
        executor.driver_state()
    }
}

impl Drop for Confirmer {
    /// If the confirmer could not be started, or has panicked, which only a bug can cause, another one may be started.
    fn drop(&mut self) {
        if !self.ended {
            let mut driver_state = self.executor.driver_state();
            driver_state
                .core
                .deserted(ThreadRole::Confirmer, clock::instant());
        }
    }
}
