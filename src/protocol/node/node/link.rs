//! How a node's connection ends, and how another one is made.

use std::time::Instant;

use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::node::node::{Link, Node};
use crate::protocol::node::reconnect::NextConnection;
use crate::protocol::node::server_properties::ServerProperties;
use crate::protocol::node::wire::Wire;
use crate::values::random::Rng;

impl Node {
    pub(crate) fn mark_unresponsive(&mut self, retry_at: Instant) {
        (self.link, self.reconnect.at) = (Link::Unresponsive, Some(retry_at));
    }

    /// Finishes the connection. Returns its previous state, and what is pending on it.
    pub(crate) fn sever(&mut self) -> (Link, Wire) {
        let wire = std::mem::take(&mut self.wire);
        self.outbox.add_unprocessed(wire.unprocessed());
        // Deferred debts are worth a try on a new connection.
        self.outbox.retry_deferred();
        self.reconnect.at = None;
        let link = match self.reconnect.is_made() {
            true => Link::Draining,
            false => Link::Disconnected,
        };
        (std::mem::replace(&mut self.link, link), wire)
    }

    /// Counts a connection that closed before it answered anything. True from the second in a row: back off before
    /// reconnecting.
    pub(crate) fn is_useless_again(&mut self, severed: &Wire) -> bool {
        let useless = !severed.is_useful();
        if useless {
            self.reconnect.failures.failed();
        }
        useless && self.reconnect.failures.failures() > 1
    }

    /// When to connect again, after a random pause.
    pub(crate) fn retry_at(&self, rng: &mut Rng, now: Instant) -> Instant {
        let pause = self.reconnect.pause();
        now + rng.between((pause / 2, pause))
    }

    pub(crate) fn pause_until(&mut self, retry_at: Instant) {
        self.reconnect.at = Some(retry_at);
    }

    /// The number of tries to connect that have ended.
    pub(crate) fn tries(&self) -> u64 {
        self.reconnect.tries
    }

    /// When the last try began.
    pub(crate) fn try_began(&self) -> Option<Instant> {
        self.reconnect.began
    }

    /// Notes that an operation needs the node. Returns whether that is new.
    pub(crate) fn reconnect_now(&mut self) -> bool {
        !std::mem::replace(&mut self.reconnect.now, true)
    }

    /// Notes that a try to connect has ended without success.
    pub(crate) fn tried(&mut self, retry_at: Instant, closed: bool) {
        self.reconnect.ended();
        self.reconnect.failures.failed();
        self.reconnect.at = Some(retry_at);
        self.reconnect.tried_last |= closed;
    }

    /// Notes that a try to connect has ended. Returns whether a new connection is usable: the present one may have
    /// answered meanwhile, or the nodes may be closed.
    pub(crate) fn connect_ended(&mut self) -> bool {
        self.reconnect.next = NextConnection::None;
        self.reconnect.known = None;
        self.has_worker()
    }

    /// Notes that a new connection was made.
    pub(crate) fn on_connected(&mut self, properties: ServerProperties) {
        self.reconnect.next = NextConnection::Made(Box::new(properties));
        if self.link == Link::Disconnected || mutant(Mutant::TwoConnections) {
            self.link = Link::Draining;
        }
    }

    /// Whether one of the node's connections leads to the server with this run id.
    pub(crate) fn leads_to(&self, run_id: &str) -> bool {
        let is = |properties: &ServerProperties| properties.run_id.as_deref() == Some(run_id);
        let made = match &self.reconnect.next {
            NextConnection::Made(properties) => is(properties),
            _ => false,
        };
        made || is(&self.wire.properties)
    }

    /// Whether a new connection has been made while the present one does not answer.
    pub(crate) fn is_replaceable(&self) -> bool {
        self.link == Link::Unresponsive && self.reconnect.is_made()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::values::backoff::{FIRST_NODE_PAUSE, LAST_NODE_PAUSE};
    use crate::values::clock;

    /// 0.1 s, 0.2 s, 0.4 s, and then always the last.
    #[test]
    fn pauses_grow_to_a_bound() {
        let now = clock::instant();
        let mut node = Node::new("x".into(), None);
        for expected in [100, 200, 400, 700, 700] {
            assert_eq!(node.reconnect.pause(), Duration::from_millis(expected));
            node.tried(now, false);
        }
        (0..100).for_each(|_| node.tried(now, false));
        node.reconnected(now);
        assert_eq!(node.reconnect.pause(), LAST_NODE_PAUSE);
        node.set_useful();
        assert_eq!(node.reconnect.pause(), FIRST_NODE_PAUSE);
    }
}
