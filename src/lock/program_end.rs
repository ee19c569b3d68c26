//! The end of a program that has released its locks: it waits for nodes that have not confirmed that.

use std::time::Duration;

use crate::lock::redlock::Redlock;
use crate::net::driver::driver::LOOK;
use crate::values::arithmetic::spare;
use crate::values::clock;

impl Redlock {
    /// Waits until so few nodes are owed a release of this name that other processes can have a majority, at
    /// most for `time`, and while `go_on` returns true. `others`: nodes beside these that may not grant it. Returns whether
    /// that is so.
    pub(crate) fn wait_owed(
        &self,
        resource: &[u8],
        others: usize,
        time: Duration,
        go_on: &mut dyn FnMut() -> bool,
    ) -> bool {
        let until = clock::instant() + time;
        let rest = || until.saturating_duration_since(clock::instant());
        let family = self.family();
        if let Some(lanes) = &family.lanes {
            // Redirected releases may not have reached another server yet.
            while !lanes.wait_or_send(rest().min(LOOK)) && !rest().is_zero() && go_on() {}
        }
        let route = self.route(resource);
        let driver = &route.first_lane().driver;
        let are_few = driver.wait_owed(others, rest(), go_on);
        let Some(lanes) = &family.lanes else {
            return are_few;
        };
        let owed = driver.executor().driver_state().core.owed_nodes();
        let nodes = driver.executor().places().len();
        are_few && lanes.owed_nodes().or(owed).len() <= spare(nodes).saturating_sub(others)
    }

    /// Closes the connections to nodes that are no Clusters.
    pub(crate) fn close_within(&self, time: Duration) {
        let family = self.family();
        if family.lanes.is_none() {
            family.base.driver.close_within(time);
        }
    }
}
