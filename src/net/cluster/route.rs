//! Where the operations of a call or a lock go: to the nodes, or to the servers of Redis Clusters that have the key (rule
//! R45). Which of the two is chosen once, and the servers anew for each operation.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::net::cluster::lane_closing::UsedLanes;
use crate::net::cluster::lanes::{Lane, Lanes, LockLanes};
use crate::net::driver::driver::Driver;
use crate::net::driver::leadership::Caller;
use crate::net::driver::renewal::Renewal;
use crate::net::driver::renewal_threads::{Round, run_kept};
use crate::protocol::calls::release::{Release, Submit};
use crate::protocol::quorum::answer::Answer;
use crate::protocol::quorum::op::Op;
use crate::values::clock::Point;

#[derive(Clone)]
pub(crate) enum Route {
    /// To the nodes: each has all keys.
    One(Arc<Lane>),
    /// To the servers that have the key. All lanes are kept, since the key may move.
    Shards(LockLanes, UsedLanes),
}

impl Route {
    /// The lane with which the call began.
    pub(crate) fn first_lane(&self) -> &Lane {
        match self {
            Route::One(lane) => lane,
            Route::Shards(lanes, _) => &lanes.began,
        }
    }

    /// Carries out an operation.
    pub(crate) fn run(&self, op: Op) -> Answer {
        self.run_before(op, None)
    }

    /// Carries out the end of a lock, and right behind it in the same write `next`, which another thread waits for.
    fn run_before(&self, op: Op, next: Option<Box<(Op, Arc<Caller>)>>) -> Answer {
        match self {
            Route::One(lane) => lane.driver.run_before(op, next),
            Route::Shards(of_lock, lanes) => lanes.run(of_lock, op, next),
        }
    }

    /// Carries out a try to acquire a lock. Returns the lane, too, that it was sent over at first.
    pub(crate) fn acquire(&self, op: Op) -> (Answer, Option<Arc<Lane>>) {
        match self {
            Route::One(lane) => (lane.driver.run(op), None),
            Route::Shards(_, lanes) => lanes.send(op),
        }
    }

    /// The route of a lock that this call acquired. `over`: the lane over which the last try was sent at first.
    pub(crate) fn of_lock(&self, over: Option<Arc<Lane>>) -> Route {
        let mut route = self.clone();
        if let (Route::Shards(lanes, _), Some(over)) = (&mut route, over) {
            lanes.acquired = over;
        }
        route
    }

    /// Releases a lock, and hands it off to a waiter here or notifies one elsewhere.
    pub(crate) fn release(&self, release: &Release) -> Answer {
        let mut services = &*self.first_lane().waiting_threads;
        let Submit { op, next } = release.submit(&mut services, Point::now);
        let handed_off = next.is_some();
        let answer = self.run_before(op, next);
        release.answered(handed_off, answer, &mut services, Point::now)
    }

    /// Starts a subscriber for each node that needs a subscription and has none.
    pub(crate) fn subscribe(&self) {
        let (lane, lanes) = (self.first_lane(), self.lanes());
        lane.waiting_threads
            .subscribe(&lane.driver, move |driver: &Driver, op| {
                drop(match lanes.upgrade() {
                    Some(lanes) => lanes.send(op).0,
                    None => driver.run(op),
                });
            });
    }

    /// Renews a lock from now on.
    pub(crate) fn keep(&self, renewal: &Arc<Renewal>, max_hold: Duration) -> std::io::Result<()> {
        let lanes = self.lanes();
        let send = move |driver: &Driver, round: Round| match lanes.upgrade() {
            Some(lanes) => lanes.renew(driver, round),
            None => round.renew(driver, |ops, kept| run_kept(driver, ops, kept), |_| ()),
        };
        let lane = self.first_lane();
        lane.renewals.keep(renewal, max_hold, &lane.driver, send)
    }

    /// Whether locks of one are locks of the other.
    pub(crate) fn is_same(&self, other: &Route) -> bool {
        match (self, other) {
            (Route::One(one), Route::One(other)) => Arc::ptr_eq(one, other),
            (Route::Shards(_, one), Route::Shards(_, other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// All lanes, for threads that keep no connections open.
    fn lanes(&self) -> Weak<Lanes> {
        match self {
            Route::One(_) => Weak::new(),
            Route::Shards(_, lanes) => Arc::downgrade(lanes),
        }
    }
}
