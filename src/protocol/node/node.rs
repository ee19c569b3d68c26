//! The state of one node.
//!
//! ```text
//!   Connected ──no answer in time──▶ Unresponsive ──everything answered──────────────▶ Connected
//!    │                                 │ closed; or a new connection answers and it still does not
//!    └──closed──▶ Disconnected ──connected──▶ Draining ──pings, releases answered──▶ Connected
//!                                               │                                       ▲
//!                                               └──may have forgotten locks──▶ Quarantined
//! ```
//!
//! A node that is not connected has a *worker*, which does what [`Node::task`] returns. An unresponsive
//! connection is kept, since the SETs on it may still be carried out: the releases that undo them go
//! behind them (rule R7). Operations and releases never go over two connections at a time.

mod debts;
mod link;
pub(crate) mod task;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::errors::cause::Cause;
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::node::clock_watch::ClockReading;
use crate::protocol::node::known_server::{Connected, KnownServer};
use crate::protocol::node::node_events::NodeEvent;
use crate::protocol::node::outbox::Outbox;
use crate::protocol::node::outgoing::Output;
use crate::protocol::node::pending::Pending;
use crate::protocol::node::reconnect::{NextConnection, Reconnect};
use crate::protocol::node::restart_guard::RestartGuard;
use crate::protocol::node::standing::{SitsOut, Standing, Why};
use crate::protocol::node::wire::Wire;
use crate::protocol::node::wire::receiving::Received;

/// The maximum number of pings under way.
const MAX_PINGS: usize = 256;
/// The interval at which a quarantined node is pinged, to find out whether it still answers.
const PING_INTERVAL: Duration = Duration::from_secs(2);

const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

/// The time that nodes have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// For an answer.
    pub(crate) node: Duration,
    /// For a connection.
    pub(crate) connect: Duration,
}

/// The time in which the nodes close.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Closing {
    pub(crate) at: Instant,
    /// For commands that were sent, and releases that are still to be sent.
    pub(crate) time: Duration,
    /// Whether a node that takes no connection is tried again in that time. Otherwise it has one try: a program that ends
    /// does not wait for a dead node.
    pub(crate) tries_again: bool,
}

impl Closing {
    pub(crate) fn new(at: Instant, time: Duration) -> Closing {
        Closing {
            at,
            time,
            tries_again: false,
        }
    }

    pub(crate) fn end(self) -> Instant {
        self.at + self.time
    }
}

/// The connection to a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Link {
    /// Operations are sent on it.
    Connected,
    /// No answer arrived in time. Commands on the connection may still be carried out.
    Unresponsive,
    /// There is no connection.
    #[default]
    Disconnected,
    /// The connection is new. Work that the last one left unfinished comes first.
    Draining,
    /// The server may have forgotten locks: it is sent releases, and nothing else (rule R16).
    Quarantined,
}

/// The thread that serves a node that is not connected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Worker {
    /// No worker: the leader has the connection.
    #[default]
    None,
    Running,
    /// The worker has bytes to write that are in no connection yet.
    Writing,
    /// No thread could be started since an operation was last submitted.
    CannotStart,
    /// The worker has ended because the nodes were closed.
    Stopped,
}

/// The state that was last logged of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Reported {
    #[default]
    Well,
    Away,
    /// The node is connected, and answers acquires with errors.
    GivesNoVotes,
}

#[derive(Default)]
pub(crate) struct Node {
    /// Host and port, or path, in a form that may be shown.
    pub(crate) address: Arc<str>,
    link: Link,
    worker: Worker,
    wire: Wire,
    outbox: Outbox,
    server: KnownServer,
    reconnect: Reconnect,
    /// Why the node is not connected.
    cause: Option<Arc<Cause>>,
    reported: Reported,
    was_connected: bool,
}

impl Node {
    pub(crate) fn new(address: Arc<str>, guard: Option<RestartGuard>) -> Node {
        Node {
            address,
            server: KnownServer::new(guard),
            ..Node::default()
        }
    }

    /// All that is known of its server.
    pub(crate) fn record(&self) -> &KnownServer {
        &self.server
    }

    /// Takes over what other lanes have learnt of the node's server. Where a connection to another server was made, the
    /// record is kept until that connection is used: until then replies may be read from the one before.
    pub(crate) fn inherit(&mut self, known: KnownServer) {
        match self.reconnect.is_made() && !self.server.is_same(&known) {
            true => self.reconnect.known = Some(Box::new(known)),
            false => self.server.learn(&known, Connected::AtAddress),
        }
    }

    /// Whether there has been a connection: locks that were acquired here may be there.
    pub(crate) fn was_connected(&self) -> bool {
        self.was_connected
    }

    /// Whether operations are sent to the node.
    #[inline]
    pub(crate) fn is_connected(&self) -> bool {
        self.link == Link::Connected
    }

    /// Whether all answers count for as long as the node is connected: it has no guard, and no directory names its
    /// address.
    #[inline]
    pub(crate) fn always_votes(&self) -> bool {
        self.is_connected() && !self.server.is_guarded() && !self.wire.address.is_from_directory()
    }

    /// Whether the node's state changes only if something happens: all its answers count, and it is owed no release.
    #[inline]
    pub(crate) fn is_steady(&self) -> bool {
        self.always_votes() && self.outbox.has_none()
    }

    /// Which of the node's answers count now.
    pub(crate) fn standing(&self, now: Instant) -> Standing {
        let standing = match self.link {
            Link::Connected | Link::Quarantined => self.server.standing(now),
            Link::Unresponsive | Link::Disconnected | Link::Draining => Standing::Away,
        };
        match standing {
            Standing::Not(_) | Standing::Away => standing,
            // The node is connected now.
            _ if self.link == Link::Quarantined => Standing::Away,
            _ if self.wire.address.is_unconfirmed(now) => standing.unconfirmed(),
            _ => standing,
        }
    }

    pub(crate) fn is_quarantined(&self) -> bool {
        self.link == Link::Quarantined
    }

    /// Why the node is not connected.
    pub(crate) fn cause(&self) -> Option<&Arc<Cause>> {
        self.cause.as_ref()
    }

    /// Whether a replica is at the node's address.
    pub(crate) fn is_replica(&self) -> bool {
        self.cause.as_ref().is_some_and(|cause| cause.is_replica())
    }

    /// The present connection.
    pub(crate) fn wire(&self) -> &Wire {
        &self.wire
    }

    pub(crate) fn wire_mut(&mut self) -> &mut Wire {
        &mut self.wire
    }

    /// Whether the leader has a connection on which releases can be written.
    #[inline]
    pub(crate) fn takes_releases(&self) -> bool {
        self.is_connected() || self.link == Link::Unresponsive && !self.has_worker()
    }

    /// Whether the worker has releases to write, or their replies to read.
    pub(crate) fn has_unfinished(&self) -> bool {
        let confirms = self.link == Link::Draining && self.wire.unconfirmed_release().is_some();
        let writing = self.worker == Worker::Writing;
        self.has_worker() && (self.has_releases() || writing || confirms)
    }

    // ---- its worker

    #[inline]
    pub(crate) fn has_worker(&self) -> bool {
        matches!(self.worker, Worker::Running | Worker::Writing)
    }

    /// Whether the node needs a worker now.
    pub(crate) fn needs_worker(&self, closed: bool) -> bool {
        let down = !matches!(self.link, Link::Connected | Link::Unresponsive);
        down && self.worker == Worker::None && (!closed || self.has_releases())
    }

    /// Whether a worker is needed as soon as the leader has nothing more to write.
    pub(crate) fn needs_worker_soon(&self) -> bool {
        self.link == Link::Unresponsive && self.worker == Worker::None
    }

    pub(crate) fn cannot_start_worker(&self) -> bool {
        self.worker == Worker::CannotStart
    }

    /// Notes that a worker thread was started, or could not be.
    pub(crate) fn worker_started(&mut self, started: bool) {
        self.worker = match started {
            true => Worker::Running,
            false => Worker::CannotStart,
        };
    }

    /// Permits a thread to be started again.
    #[inline]
    pub(crate) fn retry_worker(&mut self) {
        if self.worker == Worker::CannotStart {
            self.worker = Worker::None;
        }
    }

    /// Notes that the worker has written its bytes.
    pub(crate) fn written(&mut self) {
        if self.worker == Worker::Writing {
            self.worker = Worker::Running;
        }
    }

    pub(crate) fn worker_stopped(&mut self) {
        self.worker = Worker::Stopped;
    }

    /// Notes that the worker cannot go on, which only a bug can cause.
    pub(crate) fn deserted(&mut self) {
        self.worker = Worker::None;
        self.reconnect.next = NextConnection::None;
    }

    // ---- sending

    /// Notes that `out` has everything that is being sent.
    #[inline]
    pub(crate) fn sending(&mut self, out: &Output<'_>) {
        self.wire.sending(out);
        if self.has_worker() {
            self.worker = Worker::Writing;
        }
    }

    /// Whether another ping is to be sent over a new connection: one at a time, since the server reads several in a
    /// turn. Over TLS each is a separate record.
    fn pings(&self) -> bool {
        let at_once = match self.wire.properties.by_record {
            true => MAX_PINGS,
            false => 1,
        };
        self.wire.pending() < self.outbox.pings().min(at_once)
    }

    /// Appends the ping that shows whether the server has read what severed connections left, or whether it still
    /// answers.
    #[inline]
    pub(crate) fn ping(&mut self, out: &mut Output<'_>) -> bool {
        let checks = self.is_quarantined() && !self.has_releases() && !self.retries(out.now);
        let pings = self.link == Link::Draining && self.outbox.pings() > 0 || checks;
        if pings {
            self.wire.set_ping_at(out.now.checked_add(PING_INTERVAL));
            self.wire.expect(Pending::Ping, out);
            out.bytes.extend_from_slice(PING);
        }
        pings
    }

    // ---- receiving

    /// The next reply, the command that it answers, and when that was sent.
    #[inline]
    pub(crate) fn next_reply(&mut self, now: Instant) -> Result<Option<Received>, Cause> {
        let (wire, server) = (&mut self.wire, &mut self.server);
        wire.next_reply(now, |time_of_day, sent| {
            server.read_clock(ClockReading {
                time_of_day,
                sent,
                received: now,
            });
        })
    }

    /// Notes that the server has answered.
    #[inline]
    pub(crate) fn heard(&mut self, now: Instant) {
        self.server.heard(now);
    }

    /// Notes that a ping was answered.
    pub(crate) fn pinged(&mut self) {
        self.outbox.pinged();
    }

    /// Notes that the node has answered a command: its connection is useful.
    #[inline]
    pub(crate) fn set_useful(&mut self) {
        self.wire.set_useful();
        self.reconnect.failures.reset();
    }

    /// Notes that the node is not connected. Returns the event to report.
    pub(crate) fn away(&mut self, cause: Arc<Cause>) -> Option<NodeEvent> {
        if let Cause::Announced(announced) = &*cause {
            self.address = announced.shown.clone();
        }
        self.cause = Some(cause.clone());
        let before = std::mem::replace(&mut self.reported, Reported::Away);
        (before != Reported::Away).then_some(NodeEvent::Away(cause))
    }

    /// Notes that the node voted on an acquire, or answered with an error. Returns the event to report.
    #[inline]
    pub(crate) fn voted(&mut self, complaint: Option<Arc<Cause>>) -> Option<NodeEvent> {
        match (complaint, self.reported) {
            (Some(cause), Reported::Well) => {
                self.reported = Reported::GivesNoVotes;
                Some(NodeEvent::GivesNoVotes(cause))
            }
            (None, Reported::GivesNoVotes) => {
                self.reported = Reported::Well;
                Some(NodeEvent::VotesAgain(self.outbox.take_dropped()))
            }
            (None, Reported::Away) => Some(self.back()),
            _ => None,
        }
    }

    /// Why a vote that the node has given does not count, if it does not (rules R59, R60). `has_counted`: another one
    /// for the same lock has, and the lock was not sent there anew since; or there is no other node.
    #[inline]
    pub(crate) fn withholds(
        &self,
        acquires: bool,
        has_counted: bool,
        now: Instant,
    ) -> Option<Cause> {
        let step = self.server.clock.step(now)?;
        let counts = !acquires && (has_counted || mutant(Mutant::ExtendWhereverHeld));
        (!counts).then(|| step.cause(now))
    }

    /// Notes that the server's clock was set forward, if it was since the last call. Returns the event to report.
    #[inline]
    pub(crate) fn take_step(&mut self, now: Instant) -> Option<NodeEvent> {
        let step = self.server.new_step.take()?;
        self.reported = Reported::GivesNoVotes;
        Some(NodeEvent::GivesNoVotes(Arc::new(step.cause(now))))
    }

    /// Notes that the node gives no votes for now. Returns the event to report.
    pub(crate) fn quarantine(
        &mut self,
        out: SitsOut,
        cause: Arc<Cause>,
        now: Instant,
    ) -> Option<NodeEvent> {
        self.reported = Reported::Away;
        self.link = Link::Quarantined;
        self.reconnect.ended();
        self.wire.set_ping_at(now.checked_add(PING_INTERVAL));
        self.cause = Some(cause);
        let known = std::mem::replace(&mut self.server.quarantine_reported, true);
        (!known).then_some(NodeEvent::Quarantined(
            out.left(now),
            out.why == Why::Evicts,
        ))
    }

    /// Notes that the node is connected again. Returns the event to report.
    pub(crate) fn reconnected(&mut self, now: Instant) -> Option<NodeEvent> {
        self.link = Link::Connected;
        self.worker = Worker::None;
        self.reconnect.take_made();
        self.reconnect.ended();
        self.cause = None;
        self.wire.probed(now);
        let is_back =
            self.reported == Reported::Away && self.server.standing(now) == Standing::Votes;
        is_back.then(|| self.back())
    }

    fn back(&mut self) -> NodeEvent {
        self.reported = Reported::Well;
        let replaced = std::mem::take(&mut self.server.replaced);
        NodeEvent::Back(self.outbox.take_dropped(), replaced)
    }
}

#[cfg(test)]
impl Node {
    /// Its server's clock, as it was seen.
    pub(crate) fn watched(
        &self,
        now: Instant,
    ) -> Option<crate::protocol::node::known_server::Watched> {
        self.server.watched(now)
    }

    /// A description of the unfinished work, if there is any.
    pub(crate) fn not_quiescent(&self) -> Option<String> {
        let left = self.outbox.len();
        let well = self.is_connected() && !self.has_worker() && left == [0, 0];
        (!well).then(|| format!("{:?}, releases to send and deferred: {left:?}", self.link))
    }
}

#[cfg(test)]
mod tests;
