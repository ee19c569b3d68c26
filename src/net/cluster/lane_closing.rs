//! The end of lanes: how they are closed, and what becomes of the releases that they still owe then.

use std::ops::Deref;
use std::sync::Arc;
#[cfg(feature = "cli")]
use std::thread;
use std::time::Duration;

use crate::net::cluster::lanes::{Lanes, MAX_AT_ONCE};
use crate::net::driver::driver::Driver;
use crate::protocol::cluster::redirect::Redirect;
#[cfg(feature = "cli")]
use crate::protocol::cluster::redirected_releases::OwedTask;
use crate::protocol::node::debt::Debt;
use crate::values::clock;
#[cfg(feature = "cli")]
use crate::values::node_set::NodeSet;
use crate::values::sync::{guarded, lock, start_thread, wait_until};

/// All lanes, as a client, a call or a lock keeps them. A lock may outlive its client, and the program may end behind it:
/// once the client has ended, each one waits for what is left: for a node timeout for each [32](MAX_AT_ONCE) lanes, and
/// for two for releases at other servers.
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
        if !self.is_ours() {
            return;
        }
        let leftovers = lock(&self.leftovers);
        let (is_closed, behind) = (
            leftovers.releases.is_closed(),
            leftovers.lanes.len() / MAX_AT_ONCE,
        );
        drop(leftovers);
        if is_closed {
            let times = u32::try_from(3 + behind).unwrap_or(u32::MAX);
            let _ = self.wait_owed(self.node_timeout().saturating_mul(times));
        }
    }
}

impl Lanes {
    /// Ends all lanes that no lock uses: the client has ended.
    pub(crate) fn close(&self) {
        lock(&self.leftovers).releases.close(clock::instant());
        self.keep(&[], self.changes());
        let refilled = lock(&self.refilled).take_all();
        drop(refilled);
    }

    /// Closes a lane that nothing uses any longer, in another thread, since a call may be its last user.
    pub(super) fn end(self: &Arc<Lanes>, lane: Arc<Driver>) {
        self.remember(&lane);
        let mut leftovers = lock(&self.leftovers);
        leftovers.lanes.push(lane);
        if leftovers.closing >= MAX_AT_ONCE {
            return;
        }
        leftovers.closing += 1;
        drop(leftovers);
        let lanes = self.clone();
        // If no thread starts, the lane is closed here.
        if start_thread("redlock-close", move || lanes.close_ended()).is_err() {
            self.close_ended();
        }
    }

    /// Closes lanes until none is left that has ended.
    fn close_ended(&self) {
        let mut leftovers = lock(&self.leftovers);
        while let Some(lane) = leftovers.lanes.pop() {
            drop(leftovers);
            // Even if that panics, the other lanes are closed, and the thread is counted until it ends.
            guarded(|| {
                lane.close();
                self.hand_over(&lane);
                drop(lane);
            });
            leftovers = lock(&self.leftovers);
        }
        leftovers.closing -= 1;
        self.leftovers_changed.notify_all();
    }

    /// Hands the debts of a lane that is closed to the servers that have the keys now (rule R45).
    fn hand_over(&self, lane: &Driver) {
        let executor = lane.executor();
        let is_closed = lock(&self.leftovers).releases.is_closed();
        // After the end of the client a thread may still be connecting to these servers, for the slots that all of them have.
        let leads_to = |slot| executor.places().iter().all(|place| place.leads_to(slot));
        let goes = |debt: &Debt| !is_closed || !leads_to(self.slot(&debt.key.resource));
        let owed = executor.driver_state().core.take_debts(goes);
        if is_closed {
            return self.send_debts(owed);
        }
        for (node, debt) in owed {
            // If that fails, the lane to the server owes it.
            let slot = self.slot(&debt.key.resource);
            let op = Redirect::of_debt(node, debt, slot, clock::instant()).op();
            self.lane(slot).driver.run(op.only_write(true));
        }
    }

    /// Waits until no lane is being closed, and no release is owed, at most for `time`. Returns whether that is so.
    pub(crate) fn wait_owed(&self, time: Duration) -> bool {
        let until = clock::instant() + time;
        let mut leftovers = lock(&self.leftovers);
        while leftovers.is_any() && clock::instant() < until {
            leftovers = wait_until(&self.leftovers_changed, leftovers, until);
        }
        !leftovers.is_any()
    }

    /// Waits as [`wait_owed`](Lanes::wait_owed). Where no thread could be started to send releases on, this one sends one
    /// that is due.
    #[cfg(feature = "cli")]
    pub(crate) fn wait_or_send(&self, time: Duration) -> bool {
        let now = clock::instant();
        let mut leftovers = lock(&self.leftovers);
        let task = match leftovers.releases.is_running() {
            true => OwedTask::End,
            false => leftovers.releases.next(now),
        };
        drop(leftovers);
        match task {
            OwedTask::Send(release) => {
                guarded(|| self.send_release(release));
                false
            }
            OwedTask::Wait(until) => {
                thread::sleep(time.min(until.saturating_duration_since(now)));
                false
            }
            OwedTask::End => self.wait_owed(time),
        }
    }

    /// The nodes whose releases are still to be sent on.
    #[cfg(feature = "cli")]
    pub(crate) fn owed_nodes(&self) -> NodeSet {
        lock(&self.leftovers).releases.nodes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::cluster::lanes::Lane;
    use crate::net::driver::executor::Executor;
    use crate::net::driver::observe::Observer;
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
        let executor = Executor::new(node, &options, Observer::default());
        let base = Arc::new(Lane::only(executor));
        let lanes = Lanes::new(&base, &options).unwrap();
        let all: Vec<Arc<Lane>> = (0..100).map(|_| lanes.add_unused()).collect();
        // A thread leads, and so it takes a node timeout to close the lane.
        for lane in &all {
            let executor = lane.driver.executor();
            assert!(executor.take_lead(&mut executor.driver_state()).is_some());
        }
        drop(all);
        let until = clock::instant() + Duration::from_secs(60);
        let mut most = 0;
        while lock(&lanes.leftovers).is_any() {
            most = most.max(threads());
            assert!(clock::instant() < until, "all are closed");
        }
        assert!((1..=MAX_AT_ONCE).contains(&most), "{most}");
    }
}
