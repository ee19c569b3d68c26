//! The end of lanes: how they are closed, and what becomes of the releases that they still owe then.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::net::cluster::lanes::{Lanes, MAX_AT_ONCE, at_once};
use crate::net::driver::driver::Driver;
use crate::protocol::calls::redirect::Redirect;
use crate::protocol::node::debt::Debt;
use crate::values::clock;
use crate::values::sync::{lock, start_thread, thread};

/// The pause between two looks whether releases are owed.
const LOOK: Duration = Duration::from_millis(5);

/// All lanes, as a call or a lock keeps them. A lock may outlive its client, and the program may end behind it: it waits
/// for the releases that must be sent on to other servers.
#[derive(Clone)]
pub(crate) struct UsedLanes(pub(crate) Arc<Lanes>);

impl Deref for UsedLanes {
    type Target = Arc<Lanes>;

    fn deref(&self) -> &Arc<Lanes> {
        &self.0
    }
}

impl Drop for UsedLanes {
    fn drop(&mut self) {
        if self.is_ours() && lock(&self.owed).is_closed() {
            self.wait_owed(2 * self.node_timeout());
        }
    }
}

impl Lanes {
    /// Ends all lanes, side by side. The releases that they still owe have one node timeout, and two at other servers.
    pub(crate) fn close(&self) {
        lock(&self.owed).close(clock::instant());
        at_once("redlock-close", self.take_all(), |lane| {
            drop(lane);
            true
        });
        self.wait_owed(2 * self.node_timeout());
    }

    /// Closes a lane that nothing uses any longer: in another thread, since a call may be its last user; but here if the
    /// program needs the nodes only for locks that it has: the program may end right after this.
    pub(super) fn end(self: &Arc<Lanes>, lane: Arc<Driver>) {
        self.remember(&lane);
        let is_closed = lock(&self.owed).is_closed();
        let mut ended = lock(&self.ended);
        ended.queue.push(lane);
        if ended.threads >= MAX_AT_ONCE && !is_closed {
            return;
        }
        ended.threads += 1;
        drop(ended);
        let lanes = self.clone();
        // If no thread starts, the lane is closed here.
        if is_closed || start_thread("redlock-close", move || lanes.close_ended()).is_err() {
            self.close_ended();
        }
    }

    /// Closes lanes until none is left that has ended.
    fn close_ended(&self) {
        loop {
            let mut ended = lock(&self.ended);
            let Some(lane) = ended.queue.pop() else {
                ended.threads -= 1;
                return;
            };
            drop(ended);
            lane.close();
            self.hand_over(&lane);
        }
    }

    /// Hands the debts of a lane that is closed to the servers that have the keys now (rule R45).
    fn hand_over(&self, lane: &Driver) {
        let nodes = lane.nodes();
        if !nodes.state().core.owes_any() {
            return;
        }
        let is_closed = lock(&self.owed).is_closed();
        // After the end of the client a thread may still be connecting to these servers, for the slots that all of them have.
        let leads_to = |slot| nodes.places().iter().all(|place| place.leads_to(slot));
        let goes = |debt: &Debt| !is_closed || !leads_to(self.slot(&debt.key.resource));
        let owed = nodes.state().core.take_owed(goes);
        if is_closed {
            return self.release(owed);
        }
        for (node, debt) in owed {
            // If that fails, the lane to the server owes it.
            let slot = self.slot(&debt.key.resource);
            let op = Redirect::owed(node, debt, slot, clock::instant()).op();
            self.lane(slot).driver.run(op.only_write(true));
        }
    }

    /// Waits until no releases are owed, at most for `time`.
    pub(crate) fn wait_owed(&self, time: Duration) {
        let until = clock::instant() + time;
        while self.is_busy() && clock::instant() < until {
            thread::sleep(LOOK);
        }
    }

    /// Whether threads send releases on, or close lanes, which may add more: those are looked at first.
    fn is_busy(&self) -> bool {
        lock(&self.ended).threads > 0 || lock(&self.owed).is_running()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::cluster::lanes::Lane;
    use crate::net::driver::nodes::Nodes;
    use crate::net::driver::observe::Observer;
    use crate::net::driver::shared::Shared;
    use crate::settings::into_node::IntoNodes;
    use crate::settings::options::Options;

    /// The threads of this process that close lanes.
    fn threads() -> usize {
        let names = std::fs::read_dir("/proc/self/task").unwrap().map(|task| {
            std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap_or_default()
        });
        names.filter(|name| name.trim() == "redlock-close").count()
    }

    /// When the servers of a Cluster change places.
    #[test]
    fn a_hundred_lanes_that_end_at_once_are_closed_by_a_few_threads() {
        let node = "redis+cluster://127.0.0.1:1".into_nodes().unwrap();
        let options = Options::default().node_timeout(Duration::from_millis(200));
        let nodes = Nodes::new(node, &options, Observer::default());
        let base = Arc::new(Lane::only(Shared::new(nodes)));
        let lanes = Lanes::new(&base, &options).unwrap();
        let all: Vec<Arc<Lane>> = (0..100).map(|_| lanes.add_unused()).collect();
        // A thread leads, and so it takes a node timeout to close the lane.
        for lane in &all {
            let nodes = lane.driver.nodes();
            assert!(nodes.take_lead(&mut nodes.state()).is_some());
        }
        drop(all);
        let until = clock::instant() + Duration::from_secs(60);
        let mut most = 0;
        while lanes.is_busy() {
            most = most.max(threads());
            assert!(clock::instant() < until, "all are closed");
        }
        assert!((1..=MAX_AT_ONCE).contains(&most), "{most}");
    }
}
