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

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::errors::cause::Cause;
use crate::protocol::commands::resp::Reply;
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::node::debt::Debt;
use crate::protocol::node::event::NodeEvent;
use crate::protocol::node::guard::{Guard, PreviousServer, ServerStart, VotesFrom};
use crate::protocol::node::outbox::Outbox;
use crate::protocol::node::wire::{Handshake, Output, Pending, Wire};
use crate::protocol::node::witness::Identity;
use crate::values::backoff::Backoff;
use crate::values::prefix::Prefix;
use crate::values::random::Rng;

/// The pause between two tries to connect grows from the first to the last: a node that is well again votes within one
/// second.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_millis(700);
const MAX_DOUBLINGS: u32 = 3;
/// The worker that reads from an unresponsive connection looks for releases to write twice in a node timeout, within
/// these bounds.
const SHORTEST_READ: Duration = Duration::from_millis(1);
const LONGEST_READ: Duration = Duration::from_millis(20);
/// The maximum number of pings under way.
const MAX_PINGS: usize = 256;
/// The interval at which a quarantined node is pinged, to find out whether it still answers.
const PING_INTERVAL: Duration = Duration::from_secs(2);
/// The maximum number of releases in one write, and of their bytes.
const MAX_RELEASES_AT_ONCE: usize = 1024;
const MAX_BYTES_AT_ONCE: usize = 1 << 17;

const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

/// The time that nodes have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    /// For an answer.
    pub(crate) node: Duration,
    /// For a connection.
    pub(crate) connect: Duration,
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
    /// Give up the connection, which is useless.
    GiveUp,
    /// The node does not vote yet.
    Quarantine,
    /// The node is connected again: leave its connection to the leader, and end.
    Reconnected,
    /// The nodes are closed: end.
    Stop,
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

/// A connection that may follow the present one.
#[derive(Default)]
enum NextConnection {
    #[default]
    None,
    Connecting,
    Made(Box<Handshake>),
}

/// The tries to connect.
struct Reconnect {
    next: NextConnection,
    /// The number of tries that have ended.
    tries: u64,
    /// The number of useless tries since an operation was last answered.
    failures: Backoff,
    /// When the last try began.
    began: Option<Instant>,
    /// When the next try begins. While a connection is drained: when draining has failed.
    at: Option<Instant>,
    /// Whether an operation needs the node: no pause.
    now: bool,
    /// Whether a try has ended since the nodes were closed.
    tried_last: bool,
}

impl Default for Reconnect {
    fn default() -> Reconnect {
        Reconnect {
            next: NextConnection::None,
            tries: 0,
            failures: Backoff::new(MAX_DOUBLINGS),
            began: None,
            at: None,
            now: false,
            tried_last: false,
        }
    }
}

impl Reconnect {
    /// The longest pause before the next try.
    fn pause(&self) -> Duration {
        LAST_PAUSE.min(self.failures.pause(FIRST_PAUSE))
    }

    fn begin(&mut self, now: Instant) -> NodeTask {
        self.next = NextConnection::Connecting;
        self.began = Some(now);
        NodeTask::Connect
    }

    fn ended(&mut self) {
        self.tries += 1;
        self.now = false;
    }

    fn is_connecting(&self) -> bool {
        matches!(self.next, NextConnection::Connecting)
    }

    fn is_made(&self) -> bool {
        matches!(self.next, NextConnection::Made(_))
    }

    fn take_made(&mut self) -> Option<Handshake> {
        match std::mem::take(&mut self.next) {
            NextConnection::Made(handshake) => Some(*handshake),
            other => {
                self.next = other;
                None
            }
        }
    }
}

/// The server behind a node's address, which outlives connections.
#[derive(Default)]
struct KnownServer {
    /// How long the server gives no votes after its start.
    guard: Option<Guard>,
    /// The last record of this server, or of its predecessor.
    previous: Option<PreviousServer>,
    /// The identity at that time, with the restart guard.
    identity: Option<Identity>,
    /// Whether the server was replaced since the node was last connected.
    replaced: bool,
    /// Whether the quarantine has been reported.
    quarantine_reported: bool,
}

impl KnownServer {
    /// Notes that a new connection leads to the server.
    fn connected(&mut self, handshake: &Handshake) {
        let run_id = handshake.run_id.as_deref();
        // If slots move to another server, their keys go along. (That server may have been promoted, which its witness
        // shows.)
        let previous = self.previous.as_ref().filter(|_| !handshake.routed);
        let other = previous.is_some_and(|previous| previous.is_other(run_id));
        self.replaced |= other;
        self.quarantine_reported &= !other;
        if let Some((uptime, at)) = handshake.uptime {
            let witness = handshake.witness.as_ref();
            let start = ServerStart {
                run_id,
                uptime,
                at,
                witness: witness
                    .filter(|witness| !witness.calm)
                    .map(|witness| witness.age),
            };
            let guard = self.guard.filter(|_| !mutant(Mutant::VoteAfterRestart));
            let votes = guard.map(|guard| guard.votes(previous, &start));
            let votes = votes.map(|votes| {
                self.known(handshake)
                    .map_or(votes, |known| votes.sooner(known))
            });
            self.previous = Some(PreviousServer {
                run_id: handshake.run_id.clone(),
                heard: at,
                votes: votes.unwrap_or(VotesFrom { held: at, all: at }),
            });
            self.identity = witness.map(|witness| witness.identity.clone());
        }
    }

    /// The voting times from before the witness's slot moved to another server, so that this server has a younger
    /// witness.
    ///
    /// They still hold: the server has the identity that it had then, so it was neither restarted nor promoted since;
    /// and when the new witness existed, the server had not been flushed and had evicted nothing since its start. So it
    /// has all locks that it granted since its identity began, and those that it may have forgotten before are over by
    /// those times.
    fn known(&self, handshake: &Handshake) -> Option<&VotesFrom> {
        let witness = handshake.witness.as_ref().filter(|_| handshake.routed)?;
        let same = self.identity.as_ref() == Some(&witness.identity) && witness.lossless;
        self.previous
            .as_ref()
            .filter(|_| same)
            .map(|one| &one.votes)
    }

    fn heard(&mut self, now: Instant) {
        if let Some(previous) = &mut self.previous {
            previous.heard = now;
        }
    }

    fn has_evicted(&self) -> bool {
        self.identity.as_ref().is_some_and(Identity::has_evicted)
    }

    /// How long until the server votes: on extensions, and on everything.
    fn left(&self, now: Instant) -> [Option<Duration>; 2] {
        let previous = self.previous.as_ref().filter(|_| self.guard.is_some());
        let left = |from: Instant| (from > now).then(|| from - now);
        previous.map_or([None; 2], |one| [left(one.votes.held), left(one.votes.all)])
    }
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
}

impl Node {
    pub(crate) fn new(address: Arc<str>, guard: Option<Guard>) -> Node {
        Node {
            address,
            server: KnownServer {
                guard,
                ..KnownServer::default()
            },
            ..Node::default()
        }
    }

    /// Whether operations are sent to the node.
    pub(crate) fn is_connected(&self) -> bool {
        self.link == Link::Connected
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
    pub(crate) fn takes_releases(&self) -> bool {
        self.is_connected() || self.link == Link::Unresponsive && !self.has_worker()
    }

    pub(crate) fn has_releases(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Whether the worker has releases to write, or their replies to read.
    pub(crate) fn has_unfinished(&self) -> bool {
        let confirms = self.link == Link::Draining && self.wire.unconfirmed(false).is_some();
        let writing = self.worker == Worker::Writing;
        self.has_worker() && (self.has_releases() || writing || confirms)
    }

    // ---- its worker

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

    /// Adds a debt to be sent to the node.
    pub(crate) fn add_debt(&mut self, debt: Debt) {
        self.outbox.push(debt);
    }

    /// Defers a debt that the server could not carry out now. `again`: this was a retry.
    pub(crate) fn defer(&mut self, debt: Debt, again: bool, rng: &mut Rng, now: Instant) {
        self.outbox.defer(debt, again, rng, now);
    }

    /// Takes all debts that the node is still to be sent, or has not confirmed.
    pub(crate) fn take_owed(&mut self) -> Vec<Debt> {
        self.outbox.retry_deferred();
        let to_send = std::iter::from_fn(|| self.outbox.pop());
        self.wire.owed().chain(to_send).collect()
    }

    /// Whether the node may not have carried out all its debts.
    pub(crate) fn is_owed(&self) -> bool {
        self.has_releases() || self.outbox.retry_at().is_some() || self.wire.owed().next().is_some()
    }

    /// Makes deferred debts ready to send: the server carries out releases again.
    pub(crate) fn retry_deferred(&mut self) {
        self.outbox.retry_deferred();
    }

    /// When a release that was refused for now is tried again, over a connection that takes it.
    pub(crate) fn retries_at(&self) -> Option<Instant> {
        self.outbox.retry_at().filter(|_| self.is_connected())
    }

    /// Whether a retry is due.
    pub(crate) fn retries(&self, now: Instant) -> bool {
        self.outbox.retry_at().is_some_and(|at| at <= now)
    }

    /// Notes that `out` has everything that is being sent.
    pub(crate) fn sending(&mut self, out: &Output<'_>) {
        self.wire.sending(out);
        if self.has_worker() {
            self.worker = Worker::Writing;
        }
    }

    /// Whether another ping is to be sent over a new connection: one at a time, since the server reads several in a
    /// turn. Over TLS each is a separate record.
    fn pings(&self) -> bool {
        let at_once = match self.wire.handshake.by_record {
            true => MAX_PINGS,
            false => 1,
        };
        self.wire.pending() < self.outbox.pings().min(at_once)
    }

    /// Appends the ping that shows whether the server has read what severed connections left, or whether it still
    /// answers.
    pub(crate) fn ping(&mut self, out: &mut Output<'_>) -> bool {
        let checks = self.is_quarantined() && !self.has_releases() && !self.retries(out.now);
        let pings = self.link == Link::Draining && self.outbox.pings() > 0 || checks;
        if pings {
            self.wire.set_ping_at(out.now.checked_add(PING_INTERVAL));
            self.wire.expect(Pending::default(), out);
            out.bytes.extend_from_slice(PING);
        }
        pings
    }

    /// Appends releases. Returns whether those were all.
    pub(crate) fn write_releases(&mut self, prefix: &Prefix, out: &mut Output<'_>) -> bool {
        let start = out.bytes.len();
        for _ in 0..MAX_RELEASES_AT_ONCE {
            if out.bytes.len() - start > MAX_BYTES_AT_ONCE {
                break;
            }
            match self.outbox.pop() {
                Some(debt) => self.write_debt(debt, false, prefix, out),
                None => break,
            }
        }
        !self.has_releases()
    }

    /// Appends one deferred release, if there is any.
    pub(crate) fn write_deferred(&mut self, prefix: &Prefix, out: &mut Output<'_>) {
        if let Some(debt) = self.outbox.pop_deferred(out.now) {
            self.write_debt(debt, true, prefix, out);
        }
    }

    fn write_debt(&mut self, mut debt: Debt, retries: bool, prefix: &Prefix, out: &mut Output<'_>) {
        let action = debt.due(out.now);
        let key = debt.key.clone();
        let loads = action.loads(&key);
        if self.wire.handshake.is_target {
            self.wire.ask(out);
        }
        let pending = Pending {
            operation: None,
            owed: Some(debt),
            alone: true,
            retries,
            named: false,
            loads: loads.is_some(),
            ..Pending::default()
        };
        self.wire.expect(pending, out);
        action.pack(&key, prefix, self.wire.means(loads, &key), out.bytes);
    }

    // ---- receiving

    /// The next reply, the command that it answers, and when that was sent.
    pub(crate) fn next_reply(
        &mut self,
        now: Instant,
    ) -> Result<Option<(Reply, Pending, Instant)>, Cause> {
        let reply = self.wire.next_reply(now)?;
        if reply.is_some() {
            self.server.heard(now);
        }
        Ok(reply)
    }

    /// Notes that a ping was answered.
    pub(crate) fn pinged(&mut self) {
        self.outbox.pinged();
    }

    /// Notes that the node has answered a command: its connection is useful.
    pub(crate) fn set_useful(&mut self) {
        self.wire.set_useful();
        self.reconnect.failures.reset();
    }

    // ---- changes of the link

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
        self.has_worker()
    }

    /// Notes that a new connection was made.
    pub(crate) fn on_handshake(&mut self, handshake: Handshake) {
        self.reconnect.next = NextConnection::Made(Box::new(handshake));
        if self.link == Link::Disconnected || mutant(Mutant::TwoConnections) {
            self.link = Link::Draining;
        }
    }

    /// Whether one of the node's connections leads to the server with this run id.
    pub(crate) fn leads_to(&self, run_id: &str) -> bool {
        let is = |handshake: &Handshake| handshake.run_id.as_deref() == Some(run_id);
        let made = match &self.reconnect.next {
            NextConnection::Made(handshake) => is(handshake),
            _ => false,
        };
        made || is(&self.wire.handshake)
    }

    /// Whether a new connection has been made while the present one does not answer.
    pub(crate) fn is_replaceable(&self) -> bool {
        self.link == Link::Unresponsive && self.reconnect.is_made()
    }

    pub(crate) fn quarantine_left(&self, now: Instant) -> Option<Duration> {
        self.server.left(now)[0]
    }

    /// How long until the node grants locks: the only node votes on extensions before.
    pub(crate) fn grants_in(&self, now: Instant) -> Option<Duration> {
        self.server.left(now)[1]
    }

    /// Why the node gives no votes for this long.
    pub(crate) fn sits_out(&self, left: Duration) -> Cause {
        Cause::Quarantined(left, self.server.has_evicted())
    }

    /// Notes that the node gives no votes for now. Returns the event to report.
    pub(crate) fn quarantine(
        &mut self,
        left: Duration,
        cause: Arc<Cause>,
        now: Instant,
    ) -> Option<NodeEvent> {
        self.reported = Reported::Away;
        self.link = Link::Quarantined;
        self.reconnect.ended();
        self.wire.set_ping_at(now.checked_add(PING_INTERVAL));
        self.cause = Some(cause);
        let known = std::mem::replace(&mut self.server.quarantine_reported, true);
        (!known).then_some(NodeEvent::Quarantined(left, self.server.has_evicted()))
    }

    /// Notes that the node is connected again. Returns the event to report.
    pub(crate) fn reconnected(&mut self, now: Instant) -> Option<NodeEvent> {
        self.link = Link::Connected;
        self.worker = Worker::None;
        self.reconnect.take_made();
        self.reconnect.ended();
        self.cause = None;
        self.wire.probed(now);
        let is_back = self.reported == Reported::Away && self.grants_in(now).is_none();
        is_back.then(|| self.back())
    }

    fn back(&mut self) -> NodeEvent {
        self.reported = Reported::Well;
        let replaced = std::mem::take(&mut self.server.replaced);
        NodeEvent::Back(self.outbox.take_dropped(), replaced)
    }

    // ---- what its worker should do

    /// The next step of the worker. `closed`: since when the nodes are closed.
    pub(crate) fn task(
        &mut self,
        now: Instant,
        closed: Option<Instant>,
        timeouts: Timeouts,
    ) -> NodeTask {
        match self.link {
            Link::Connected => NodeTask::Reconnected,
            Link::Disconnected => self.disconnected_task(now, closed.is_some(), timeouts.connect),
            Link::Unresponsive => self.unresponsive_task(now, closed, timeouts),
            Link::Quarantined => self.quarantined_task(now, closed.is_some(), timeouts.connect),
            Link::Draining => self.draining_task(now, timeouts.connect),
        }
    }

    fn disconnected_task(
        &mut self,
        now: Instant,
        closed: bool,
        connect_timeout: Duration,
    ) -> NodeTask {
        let retry_at = self.reconnect.at.unwrap_or(now);
        if closed && (self.reconnect.tried_last || !self.has_releases()) {
            return NodeTask::Stop;
        }
        if self.reconnect.is_connecting() {
            return NodeTask::Pause {
                until: now + connect_timeout,
            };
        }
        if now >= retry_at || self.reconnect.now {
            self.reconnect.now = false;
            return self.reconnect.begin(now);
        }
        NodeTask::Pause { until: retry_at }
    }

    fn unresponsive_task(
        &mut self,
        now: Instant,
        closed: Option<Instant>,
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
        let until = closed.map_or(retry_at, |closed| closed + timeouts.connect);
        let read_until = now + (timeouts.node / 2).clamp(SHORTEST_READ, LONGEST_READ);
        match closed {
            _ if now < until => NodeTask::Recv {
                until: read_until.min(until),
            },
            Some(_) => NodeTask::Stop,
            None if self.reconnect.is_connecting() => NodeTask::Recv { until: read_until },
            None => self.reconnect.begin(now),
        }
    }

    fn quarantined_task(&self, now: Instant, closed: bool, connect_timeout: Duration) -> NodeTask {
        let Some(left) = self.quarantine_left(now) else {
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
                false => NodeTask::GiveUp,
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
                    .min(now + left),
            },
        }
    }

    fn draining_task(&mut self, now: Instant, connect_timeout: Duration) -> NodeTask {
        let soon = now + connect_timeout;
        if let Some(handshake) = self.reconnect.take_made() {
            self.reconnect.at = Some(soon);
            if let Some(found) = &handshake.found {
                self.address = found.address.clone();
            }
            self.server.connected(&handshake);
            self.wire = Wire::new(handshake);
            return NodeTask::Adopt;
        }
        if self.is_drained() {
            return match self.quarantine_left(now) {
                Some(_) => NodeTask::Quarantine,
                None => NodeTask::Reconnected,
            };
        }
        if self.outbox.pings() == 0 && self.can_write_releases() || self.pings() {
            return NodeTask::Send { until: soon };
        }
        let until = self.reconnect.at.unwrap_or(now);
        match now < until {
            true => NodeTask::Recv { until },
            false => NodeTask::GiveUp,
        }
    }

    fn can_write_releases(&self) -> bool {
        self.has_releases() && self.wire.pending() < MAX_RELEASES_AT_ONCE
    }

    /// Whether the work that the last connection left unfinished is done, and has been confirmed.
    fn is_drained(&self) -> bool {
        // The worker reads the replies itself: no other thread has to be started to confirm them (rule R6a).
        self.outbox.pings() == 0 && !self.has_releases() && self.wire.pending() == 0
    }
}

#[cfg(test)]
impl Node {
    /// A description of the unfinished work, if there is any.
    pub(crate) fn not_quiescent(&self) -> Option<String> {
        let left = self.outbox.len();
        let well = self.is_connected() && !self.has_worker() && left == [0, 0];
        (!well).then(|| format!("{:?}, releases to send and deferred: {left:?}", self.link))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::node::witness::{Evidence, Witness};
    use crate::values::clock;

    /// In a Redis Cluster a witness moves with its slot.
    #[test]
    fn a_promoted_server_that_has_lost_nothing_votes_on_when_its_witness_has_moved() {
        let now = clock::instant();
        let connected = |history: &str, age: u64, lossless: bool, routed: bool| Handshake {
            uptime: Some((Duration::from_secs(1000), now)),
            witness: Some(Witness {
                evidence: Evidence::Value(Vec::new()),
                identity: Identity::new(Some("r"), Some(history), 0).unwrap(),
                age: Duration::from_secs(age),
                calm: false,
                lossless,
            }),
            routed,
            ..Handshake::default()
        };
        for (history, lossless, routed, expected) in [
            ("h", true, true, [0, 15]),
            ("h", false, true, [5, 35]),
            ("g", true, true, [5, 35]),
            ("h", true, false, [5, 35]),
        ] {
            let guard = Some(Guard::new(Duration::from_secs(30), 1));
            let mut server = Node::new("x".into(), guard).server;
            // The server may have forgotten locks until 15 seconds from now.
            server.connected(&connected("h", 20, false, routed));
            server.connected(&connected(history, 0, lossless, routed));
            let left = server
                .left(now)
                .map(|left| left.unwrap_or_default().as_secs());
            assert_eq!(left, expected, "{history}, {lossless}, {routed}");
        }
    }

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
        assert_eq!(node.reconnect.pause(), LAST_PAUSE);
        node.set_useful();
        assert_eq!(node.reconnect.pause(), FIRST_PAUSE);
    }
}
