//! When the events of nodes are logged, and by which thread; the names of nodes in log lines.

use std::sync::Arc;
use std::time::Duration;

use super::{DriverState, Executor};
use crate::errors::text::human;
use crate::net::driver::node_log;
use crate::protocol::commands::dialect::Lack;
use crate::protocol::node::restart_guard;
use crate::values::arithmetic::Ttl;
use crate::values::clock;
use crate::values::sync::atomic::{AtomicBool, Ordering};
use crate::values::sync::start_thread;

impl Executor {
    /// Logs events, and notifies the observer. One thread at a time does so, and no thread waits for it: the program's
    /// logger may take its time, or use these same nodes.
    pub(crate) fn log(&self) {
        let mut driver_state = self.driver_state();
        if !driver_state.is_logging {
            driver_state.is_logging = true;
            while !driver_state.core.events.is_empty() {
                let events = driver_state.core.events.take();
                drop(driver_state);
                for (node, event, _) in &events {
                    let guarded = self.guards.each.get(*node).is_some_and(Option::is_some);
                    node_log::log(&self.name(*node), event, guarded);
                }
                driver_state = self.driver_state();
                if !self.observer.is_none() {
                    driver_state.unobserved.add(events);
                }
            }
            driver_state.is_logging = false;
        }
        // An observer that does not return does not keep events from being logged.
        let Some(mut outages) = driver_state.outages.take() else {
            return;
        };
        while let Some((node, event, at)) = driver_state.unobserved.pop() {
            drop(driver_state);
            if let (Some(since), Some(place)) = (outages.get_mut(node), self.places.get(node)) {
                let address = place.shown();
                node_log::notify(&self.observer, (node, &address), &event, since, at);
            }
            driver_state = self.driver_state();
        }
        driver_state.outages = Some(outages);
    }

    /// Records that a node lacks a capability, to be logged once.
    pub(crate) fn lacks(&self, node: usize, lack: Lack) {
        let mut driver_state = self.driver_state();
        driver_state
            .core
            .events
            .lacks(node, Some(lack), clock::instant());
    }

    /// Logs events for a thread that has something to do: the thread may be about to return a lock, and an observer may
    /// want the same one.
    pub(crate) fn log_behind(self: &Arc<Executor>) {
        if self.observer.is_none() {
            self.log();
        } else {
            self.log_in_thread(&self.driver_state());
        }
    }

    /// The longest ttl that a guard assumes, if the program has not asked for the guard.
    pub(crate) fn assumed_ttl(&self) -> Option<Duration> {
        let is_any = self.guards.each.iter().any(Option::is_some);
        (is_any && !self.guards.is_needed).then_some(restart_guard::DEFAULT_TTL)
    }

    /// Warns of a ttl that is longer than a guard assumes. The ttl is allowed.
    pub(crate) fn warn_of_long_ttl(&self, ttl: Ttl) {
        static WARNED: AtomicBool = AtomicBool::new(false);
        if let Some(longest) = self.assumed_ttl()
            && ttl.duration() > longest
            && !WARNED.swap(true, Ordering::Relaxed)
        {
            say!(
                warn,
                "a ttl is longer than {}: for such locks a failover may make two holders (the option restart_guard on all \
                 clients, with the longest ttl, prevents that)",
                human(longest)
            );
        }
    }

    /// The name of a node in log lines.
    pub(crate) fn name(&self, node: usize) -> String {
        match self.places.get(node) {
            Some(place) => format!("node {node} ({})", place.shown()),
            None => format!("node {node}"),
        }
    }

    /// Logs in another thread, so that a slow logger does not hold up this one.
    pub(super) fn log_in_thread(self: &Arc<Executor>, driver_state: &DriverState) {
        if !driver_state.core.events.is_empty() && !driver_state.is_logging {
            let executor = self.clone();
            // If no thread starts, the next operation logs the events.
            let _ = start_thread("redlock-log", move || executor.log());
        }
    }
}
