//! The next step of the worker of a node that is not connected.

use std::time::{Duration, Instant};

use crate::protocol::node::known_server::Connected;
use crate::protocol::node::node::{Closing, Link, Node, Timeouts};
use crate::protocol::node::standing::{SitsOut, Standing};
use crate::protocol::node::wire::Wire;

/// The worker that reads from an unresponsive connection looks for releases to write twice in a node timeout, within
/// these bounds.
const SHORTEST_READ: Duration = Duration::from_millis(1);
const LONGEST_READ: Duration = Duration::from_millis(20);

/// The next step of a node's worker.
#[derive(Debug)]
pub(crate) enum NodeTask {
    /// Connect, and meanwhile go on with the present connection, if there is one.
    Connect,
    /// Use the connection that was made last from now on, and reset the previous one.
    Adopt,
    Send {
        until: Instant,
    },
    Recv {
        until: Instant,
    },
    /// Wait until then, or until there is news.
    Pause {
        until: Instant,
    },
    /// Close the connection, which is useless.
    Disconnect,
    /// The node does not vote yet.
    Quarantine(SitsOut),
    /// The node is connected again: leave its connection to the leader, and end.
    Reconnected,
    /// The nodes are closed: end.
    Stop,
}

impl Node {
    /// The next step of the worker. `closed`: the time in which the nodes close.
    pub(crate) fn task(
        &mut self,
        now: Instant,
        closed: Option<Closing>,
        timeouts: Timeouts,
    ) -> NodeTask {
        match self.link {
            Link::Connected => NodeTask::Reconnected,
            Link::Disconnected => self.disconnected_task(now, closed, timeouts.connect),
            Link::Unresponsive => self.unresponsive_task(now, closed, timeouts),
            Link::Quarantined => self.quarantined_task(now, closed.is_some(), timeouts.connect),
            Link::Draining => self.draining_task(now, timeouts.connect),
        }
    }

    fn connect(&mut self, now: Instant) -> NodeTask {
        self.reconnect.begin(now);
        NodeTask::Connect
    }

    fn disconnected_task(
        &mut self,
        now: Instant,
        closed: Option<Closing>,
        connect_timeout: Duration,
    ) -> NodeTask {
        let retry_at = self.reconnect.at.unwrap_or(now);
        if let Some(closing) = closed {
            let again = closing.tries_again && self.was_connected() && retry_at < closing.end();
            let is_over = self.reconnect.tried_last && !again;
            if !self.has_releases() || is_over {
                return NodeTask::Stop;
            }
        }
        if self.reconnect.is_connecting() {
            return NodeTask::Pause {
                until: now + connect_timeout,
            };
        }
        if now >= retry_at || self.reconnect.now {
            self.reconnect.now = false;
            return self.connect(now);
        }
        NodeTask::Pause { until: retry_at }
    }

    fn unresponsive_task(
        &mut self,
        now: Instant,
        closed: Option<Closing>,
        timeouts: Timeouts,
    ) -> NodeTask {
        if self.can_write_releases() {
            return NodeTask::Send {
                until: now + timeouts.connect,
            };
        }
        if self.wire.pending() == 0 {
            return NodeTask::Reconnected;
        }
        if self.reconnect.is_made() {
            // One probe; if the present connection does not answer now either, the new one replaces it.
            return NodeTask::Recv { until: now };
        }
        let retry_at = self.reconnect.at.unwrap_or(now);
        let until = closed.map_or(retry_at, |closing| closing.at + timeouts.connect);
        let read_until = now + (timeouts.node / 2).clamp(SHORTEST_READ, LONGEST_READ);
        match closed {
            _ if now < until => NodeTask::Recv {
                until: read_until.min(until),
            },
            Some(_) => NodeTask::Stop,
            None if self.reconnect.is_connecting() => NodeTask::Recv { until: read_until },
            None => self.connect(now),
        }
    }

    fn quarantined_task(&self, now: Instant, closed: bool, connect_timeout: Duration) -> NodeTask {
        let Standing::Not(reason) = self.server.standing(now) else {
            return NodeTask::Reconnected;
        };
        let soon = now + connect_timeout;
        if self.can_write_releases() || self.retries(now) && self.wire.pending() == 0 {
            return NodeTask::Send { until: soon };
        }
        if let Some(since) = self.wire.pending_since() {
            let end = since + connect_timeout;
            return match end > now {
                true => NodeTask::Recv { until: end },
                false => NodeTask::Disconnect,
            };
        }
        let ping_at = self.wire.ping_at().unwrap_or(now);
        match closed {
            true => NodeTask::Stop,
            false if ping_at <= now => NodeTask::Send { until: soon },
            false => NodeTask::Pause {
                until: self
                    .outbox
                    .retry_at()
                    .map_or(ping_at, |at| at.min(ping_at))
                    .min(reason.votes.held),
            },
        }
    }

    fn draining_task(&mut self, now: Instant, connect_timeout: Duration) -> NodeTask {
        let soon = now + connect_timeout;
        if let Some(properties) = self.reconnect.take_made() {
            self.reconnect.at = Some(soon);
            if let Some(found) = &properties.found {
                self.address = found.address.clone();
            }
            if let Some(known) = self.reconnect.known.take() {
                self.server.learn(&known, Connected::by(&properties));
            }
            self.server.connected(&properties);
            self.wire = Wire::new(properties);
            self.was_connected = true;
            return NodeTask::Adopt;
        }
        if self.is_drained() {
            return match self.server.standing(now) {
                Standing::Not(reason) => NodeTask::Quarantine(reason),
                _ => NodeTask::Reconnected,
            };
        }
        if self.outbox.pings() == 0 && self.can_write_releases() || self.pings() {
            return NodeTask::Send { until: soon };
        }
        let until = self.reconnect.at.unwrap_or(now);
        match now < until {
            true => NodeTask::Recv { until },
            false => NodeTask::Disconnect,
        }
    }

    /// Whether the work that the last connection left unfinished is done, and has been confirmed.
    fn is_drained(&self) -> bool {
        // The worker reads the replies itself: no other thread has to be started to confirm them (rule R6a).
        self.outbox.pings() == 0 && !self.has_releases() && self.wire.pending() == 0
    }
}
