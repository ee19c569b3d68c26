//! When lanes ask for the maps of their Clusters, and which threads do.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};

use crate::net::cluster::lanes::Lanes;
use crate::net::discovery::cluster_servers::ClusterServers;
use crate::protocol::calls::acquire::ASK;
use crate::values::clock;
use crate::values::sync::{guarded, lock, start_thread, thread};

impl Lanes {
    /// Has another thread ask for the first maps, and waits for it while `keep_trying` returns true. Returns whether it
    /// still did at the end.
    pub(crate) fn find_maps_while(
        &self,
        resource: &[u8],
        keep_trying: &mut dyn FnMut() -> bool,
    ) -> bool {
        let has_map = |cluster: &Arc<ClusterServers>| cluster.map().is_some();
        let Some(lanes) = self.this().filter(|_| !self.clusters().all(has_map)) else {
            return true;
        };
        let (slot, (asks, answered)) = (self.slot(resource), channel::<()>());
        let ask = move || {
            drop(lanes.lane(slot));
            drop(asks);
        };
        if start_thread("redlock-map", ask).is_err() {
            return true;
        }
        // (A child that was forked by `keep_trying` does not have the thread.)
        while answered.recv_timeout(ASK) == Err(RecvTimeoutError::Timeout) {
            if !keep_trying() || !self.is_ours() {
                return false;
            }
        }
        true
    }

    /// Records that a slot has moved. Others may have: another thread asks for the maps again, and ends lanes without
    /// slots.
    pub(crate) fn slot_moved(&self, slot: u16) {
        let starts = lock(&self.refreshes).request();
        let Some(lanes) = self.this().filter(|_| starts) else {
            return;
        };
        if start_thread("redlock-map", move || lanes.refresh(slot)).is_err() {
            lock(&self.refreshes).deserted();
        }
    }

    /// Whether the maps are to be asked for, and no thread does.
    pub(super) fn has_question_left(&self) -> bool {
        lock(&self.refreshes).is_left()
    }

    /// Asks for the maps as long as that is due.
    fn refresh(&self, slot: u16) {
        loop {
            let next = lock(&self.refreshes).next(clock::instant());
            let Some(pause) = next else {
                return;
            };
            thread::sleep(pause);
            let asked = guarded(|| {
                let answers = self.clusters().map(|cluster| cluster.refresh(slot));
                let all = answers.fold(true, |all, one| all & one);
                self.keep_needed();
                all
            });
            let all = asked.unwrap_or(false);
            // A program that has ended is not kept waiting.
            let is_enough = all || lock(&self.leftovers).releases.is_closed();
            lock(&self.refreshes).answered(is_enough);
        }
    }
}
