//! All that is known of one node.
//!
//! ```text
//!   Here ──silent──▶ Silent ──everything answered──────────────────▶ Here
//!    │                 │ closed; or a new connection answers and it still does not
//!    └──closed────▶ Down ──connected──▶ Coming ──pings, releases──▶ Here
//!                                         │                          ▲
//!                                         └──may have forgotten──▶ SitsOut
//! ```
//!
//! A node that is not here has a *worker*, which does what [`Node::task`] says. A silent
//! connection is kept, since the SETs on it may still be carried out: the releases that undo them go
//! behind them (rule R7). Operations and releases never go over two connections at a time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::Cause;
use crate::protocol::guard::{Guard, PreviousServer, ServerStart};
use crate::protocol::mutant;
use crate::protocol::resp::{self, Reply};
use crate::protocol::script::{Action, Key, Notify};
use crate::secret::Secret;

/// The pause between two tries to connect grows from the first to the last: a node that is well again
/// votes within one second.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_millis(700);
/// How often the worker that listens to a silent connection looks for releases to write on it: twice in a
/// node timeout, within these bounds.
const SHORTEST_LISTEN: Duration = Duration::from_millis(1);
const LISTEN: Duration = Duration::from_millis(20);
/// A connection that was silent for so long in both directions is looked at before it is written to: if
/// it was closed meanwhile, it would take what is written and nobody would hear of it.
const IDLE: Duration = Duration::from_millis(10);
/// A Redis server reads 16 KiB of a connection in one turn of its event loop, and answers a new
/// connection at most once in a turn. Half of that counts for a ping: a command that was cut off at the end of
/// a turn makes the next one smaller. Over TLS it reads one record in a turn, and what is written at once is in
/// as few records as hold it: of 16 KiB, but for the last.
const TURN: usize = 16 * 1024 / 2;
/// The most pings that are under way.
const MAX_PINGS: usize = 256;
/// When so many replies that nobody waits for may have come, they are read and dropped. Until then they
/// cost the node memory, and reading them would cost us system calls.
const MAX_UNREAD: usize = 256;
/// A node that sits out is asked so often whether it is still there.
const PING_PAUSE: Duration = Duration::from_secs(2);
/// So many releases are written at once, until there are so many bytes.
const CHUNK: usize = 1024;
const CHUNK_BYTES: usize = 1 << 17;
/// A node is due so many releases at most. Beyond, the oldest is forgotten, and its key ends with its
/// ttl.
const MAX_DUE: usize = 65_536;
const MAX_DUE_BYTES: usize = 16 << 20;

const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

/// The connection to a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Link {
    /// Operations are sent on it.
    Connected,
    /// It did not answer in time. What is on it may still be carried out.
    Unresponsive,
    /// There is none.
    #[default]
    Disconnected,
    /// It is new; what the last one left unfinished comes first.
    Draining,
    /// Its server may have forgotten locks: it is sent releases, and nothing else (rule R16).
    Quarantined,
}

/// What a server says of itself when it is connected.
#[derive(Clone, Debug, Default)]
pub(crate) struct Handshake {
    /// Unknown where `INFO` is forbidden.
    pub(crate) run_id: Option<String>,
    /// How long the server has been up, and when it said so.
    pub(crate) uptime: Option<(Duration, Instant)>,
    /// The server reads one record of the connection in a turn, however short (TLS).
    pub(crate) by_record: bool,
    /// The server knows the scripts.
    pub(crate) by_hash: bool,
    /// The password that this connection was set up with: no text that comes over it repeats that. The next connection
    /// may have another.
    pub(crate) secret: Secret,
}

/// What a node's worker should do.
#[derive(Debug)]
pub(crate) enum NodeTask {
    /// And go on with the connection that there may be meanwhile.
    Connect,
    /// The connection that was made last is the node's from now on. Reset the one before.
    Adopt,
    Send {
        until: Instant,
    },
    Recv {
        until: Instant,
    },
    /// Unless there is news earlier.
    Pause {
        until: Instant,
    },
    /// Nothing more comes of the connection.
    GiveUp,
    /// The node does not vote yet.
    Quarantine,
    /// The node is here again: leave its connection to the leader, and go.
    Reconnected,
    /// Nobody needs the node any more: go.
    Stop,
}

/// Whose vote a reply is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OperationId {
    pub(crate) place: usize,
    pub(crate) number: u64,
}

/// What a reply that is to come answers. Neither a vote nor a release: a ping.
#[derive(Default)]
pub(crate) struct Pending {
    pub(crate) ticket: Option<OperationId>,
    /// The lock whose release it is, which is due again if the connection closes.
    pub(crate) release: Option<Key>,
    /// No operation waits for it.
    pub(crate) alone: bool,
    /// It had been refused, and shows whether others like it would be taken now.
    pub(crate) retries: bool,
}

struct Asked {
    what: Pending,
    at: Instant,
    /// How much had been sent on this connection before.
    from: usize,
}

/// Releases to be written, the oldest first.
#[derive(Default)]
struct Releases {
    queue: VecDeque<Key>,
    /// Of their names.
    bytes: usize,
    /// So many did not find room.
    forgotten: u64,
}

impl Releases {
    fn push(&mut self, release: Key) {
        self.bytes += release.resource.len();
        self.queue.push_back(release);
        while self.queue.len() > MAX_DUE || self.bytes > MAX_DUE_BYTES {
            self.pop();
            self.forgotten += 1;
        }
    }

    fn pop(&mut self) -> Option<Key> {
        let release = self.queue.pop_front()?;
        self.bytes -= release.resource.len();
        Some(release)
    }
}

/// What a node is being sent.
pub(crate) struct Output<'a> {
    pub(crate) bytes: &'a mut Vec<u8>,
    /// Where in `bytes` it begins.
    pub(crate) start: usize,
    pub(crate) now: Instant,
}

/// What was last said of a node in the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reported {
    #[default]
    Well,
    Away,
    /// It is here, and answers acquires with errors.
    GivesNoVotes,
}

#[derive(Default)]
pub(crate) struct Node {
    /// Host and port, or path: what may be shown.
    pub(crate) address: Arc<str>,
    pub(crate) link: Link,
    /// Its connection is the worker's, not the leader's.
    pub(crate) has_worker: bool,
    /// No thread could be started for it since an operation was last submitted.
    pub(crate) cannot_start_worker: bool,
    /// Of the server behind the connection.
    pub(crate) handshake: Handshake,
    /// How long it gives no votes when its server was started.
    guard: Option<Guard>,
    /// Of the server that was last behind its address.
    known: Option<PreviousServer>,
    /// Another one is there now than when it was last here.
    replaced: bool,
    /// That its server sits out has been said.
    pub(crate) said: bool,
    /// While it sits out: when to see whether it is still there.
    ping_at: Option<Instant>,
    /// Its worker is writing.
    pub(crate) writing: bool,
    /// Its worker has left, since nobody needs it any more.
    pub(crate) quit: bool,
    /// Somebody is connecting to it.
    pub(crate) connecting: bool,
    /// A connection that was made and is not the node's yet.
    pub(crate) fresh: Option<Handshake>,
    /// The replies to come, in order.
    pending: VecDeque<Asked>,
    /// The start of a reply.
    pub(crate) inbox: Vec<u8>,
    /// What was sent on this connection: bytes, and over TLS a turn at least for each write.
    sent: usize,
    due: Releases,
    /// Releases that the server could not carry out at the time.
    refused: Releases,
    /// What dead connections may have left for the server to read (rule R8), counted as `sent` is.
    unread: usize,
    /// When something was last sent or heard, or a look found nothing.
    active: Option<Instant>,
    /// When it was last looked at without waiting, and nothing was there; and how many were pending.
    probed: Option<Instant>,
    pending_at_probe: usize,
    /// To be looked at before anything else.
    pub(crate) look: bool,
    /// Why it is not here.
    pub(crate) cause: Option<Arc<Cause>>,
    /// Tries to connect that have ended.
    pub(crate) tries: u64,
    /// Those that were of no use, since an operation was last answered.
    failed: u32,
    /// Something was answered on this connection but its set-up and pings.
    useful: bool,
    /// When the last try began.
    pub(crate) try_began: Option<Instant>,
    /// When to connect again; while it is coming, when that has failed.
    retry_at: Option<Instant>,
    /// An operation needs it: no pause.
    pub(crate) reconnect_now: bool,
    /// A try to connect has ended since nobody needs it any more.
    tried_last: bool,
    pub(crate) reported: Reported,
}

impl Node {
    pub(crate) fn new(address: Arc<str>, guard: Option<Guard>) -> Node {
        Node {
            address,
            guard,
            ..Node::default()
        }
    }

    pub(crate) fn is_connected(&self) -> bool {
        self.link == Link::Connected
    }

    /// Whether the leader has a connection on which releases can be written.
    pub(crate) fn takes_releases(&self) -> bool {
        self.is_connected() || self.link == Link::Unresponsive && !self.has_worker
    }

    pub(crate) fn has_releases(&self) -> bool {
        !self.due.queue.is_empty()
    }

    pub(crate) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// When the oldest release was written that may not have been carried out, and that no operation waits for.
    pub(crate) fn unconfirmed(&self) -> Option<Instant> {
        let release = |asked: &&Asked| asked.what.release.is_some() && asked.what.alone;
        Some(self.pending.iter().find(release)?.at)
    }

    /// Its worker has releases to write, or their replies to read.
    pub(crate) fn owes(&self) -> bool {
        let confirms = self.link == Link::Draining && self.unconfirmed().is_some();
        self.has_worker && (self.has_releases() || self.writing || confirms)
    }

    /// When the oldest reply that is pending was asked for.
    pub(crate) fn asked_at(&self) -> Option<Instant> {
        Some(self.pending.front()?.at)
    }

    // ---- sending

    /// Notes that a reply will come to what is appended to `out` next.
    pub(crate) fn ask(&mut self, what: Pending, out: &Output<'_>) {
        // A record is read as a whole, or not at all.
        let before = match self.handshake.by_record {
            true => 0,
            false => out.bytes.len() - out.start,
        };
        let from = self.sent.wrapping_add(before);
        let at = out.now;
        self.pending.push_back(Asked { what, at, from });
    }

    /// All that it is being sent is in `out`.
    pub(crate) fn sending(&mut self, out: &Output<'_>) {
        let mut bytes = out.bytes.len() - out.start;
        if self.handshake.by_record && bytes > 0 && !mutant(48) {
            bytes = bytes.max(TURN);
        }
        self.sent = self.sent.wrapping_add(bytes);
        self.active = Some(out.now);
        self.writing = self.has_worker;
    }

    pub(crate) fn add_release(&mut self, release: Key) {
        self.due.push(release);
    }

    /// A server could not carry out a release now. It is tried again with a later operation.
    pub(crate) fn refuse(&mut self, release: Key) {
        if !mutant(1) {
            self.refused.push(release);
        }
    }

    /// The server carries out releases again: all that it refused are due.
    pub(crate) fn retry_deferred(&mut self) {
        while let Some(release) = self.refused.pop() {
            self.due.push(release);
        }
    }

    /// Whether another ping is to be sent over a new connection: one at a time, since the server reads several in a
    /// turn. Over TLS each is a record of its own.
    fn pings(&self) -> bool {
        let at_once = match self.handshake.by_record {
            true => self.unread.div_ceil(TURN).min(MAX_PINGS),
            false => self.unread.min(1),
        };
        self.pending.len() < at_once
    }

    /// Appends the ping that finds out whether the server has read what a dead connection left.
    pub(crate) fn ping(&mut self, out: &mut Output<'_>) -> bool {
        let checks = self.link == Link::Quarantined && !self.has_releases();
        let pings = self.link == Link::Draining && self.unread > 0 || checks;
        if pings {
            self.ping_at = out.now.checked_add(PING_PAUSE);
            self.ask(Pending::default(), out);
            out.bytes.extend_from_slice(PING);
        }
        pings
    }

    /// Appends releases that are due; true if that was all of them.
    pub(crate) fn write_releases(&mut self, out: &mut Output<'_>) -> bool {
        let start = out.bytes.len();
        for _ in 0..CHUNK {
            if out.bytes.len() - start > CHUNK_BYTES {
                break;
            }
            match self.due.pop() {
                Some(release) => self.write_release(release, false, out),
                None => break,
            }
        }
        !self.has_releases()
    }

    /// Appends one release that was refused before, if there is any.
    pub(crate) fn write_deferred(&mut self, out: &mut Output<'_>) {
        if let Some(release) = self.refused.pop() {
            self.write_release(release, true, out);
        }
    }

    fn write_release(&mut self, release: Key, retries: bool, out: &mut Output<'_>) {
        let key = release.clone();
        let what = Pending {
            ticket: None,
            release: Some(release),
            alone: true,
            retries,
        };
        self.ask(what, out);
        Action::Release(Notify::None).pack(&key, self.handshake.by_hash, out.bytes);
    }

    // ---- receiving

    /// The first reply in `bytes`, which are some, and its length. More than was asked for is an error: the
    /// next reply would be taken for another's.
    pub(crate) fn next_reply(&self, bytes: &[u8]) -> Result<Option<(Reply, usize)>, Cause> {
        let parsed = resp::parse(bytes, &self.handshake.secret)?;
        let more = parsed
            .as_ref()
            .is_some_and(|(_, length)| *length < bytes.len());
        if self.pending.len() < 1 + usize::from(more) {
            return Err(Cause::Garbage("more than was asked for".into()));
        }
        Ok(parsed)
    }

    /// A reply has come: what it answers.
    pub(crate) fn answered(&mut self, now: Instant) -> Option<Pending> {
        self.active = Some(now);
        if let Some(known) = &mut self.known {
            known.heard = now;
        }
        Some(self.pending.pop_front()?.what)
    }

    /// A ping was answered.
    pub(crate) fn pinged(&mut self) {
        self.unread = self.unread.saturating_sub(TURN);
    }

    /// It was looked at, and nothing was there.
    pub(crate) fn probed(&mut self, now: Instant) {
        self.look = false;
        (self.probed, self.active) = (Some(now), Some(now));
        self.pending_at_probe = self.pending.len();
    }

    /// Replies have piled up, and enough were asked for since the last look (a far node has many pending
    /// at any time); or another connection turned out closed.
    pub(crate) fn wants_probe(&self) -> bool {
        self.look || self.pending.len() > self.pending_at_probe + MAX_UNREAD
    }

    /// Whether it can be looked at, and was not since then.
    pub(crate) fn is_unprobed(&self, since: Instant) -> bool {
        self.probed < Some(since)
    }

    pub(crate) fn is_idle(&self, now: Instant) -> bool {
        self.active.is_some_and(|active| now > active + IDLE)
    }

    // ---- changes of the link

    pub(crate) fn mark_unresponsive(&mut self, retry_at: Instant) {
        (self.link, self.retry_at) = (Link::Unresponsive, Some(retry_at));
    }

    /// The node has answered what it was asked: its connection is of use.
    pub(crate) fn is_useful(&mut self) {
        (self.useful, self.failed) = (true, 0);
    }

    /// The connection that is finished was of no use. Whether that was so before: then the next one is made after
    /// a pause, as if it had not been connected.
    pub(crate) fn is_useless_again(&mut self) -> bool {
        let useless = !self.useful;
        self.failed += u32::from(useless);
        useless && self.failed > 1
    }

    pub(crate) fn pause_until(&mut self, retry_at: Instant) {
        self.retry_at = Some(retry_at);
    }

    /// The connection is finished. What was pending on it.
    pub(crate) fn sever(&mut self) -> impl Iterator<Item = Pending> + use<> {
        if let Some(first) = self.pending.front().filter(|_| !mutant(4)) {
            let unread = self.sent.wrapping_sub(first.from);
            self.unread = self.unread.saturating_add(unread);
        }
        self.sent = 0;
        self.inbox.clear();
        self.look = false;
        self.pending_at_probe = 0;
        self.handshake.run_id = None;
        self.retry_at = None;
        let fresh = self.fresh.is_some();
        self.link = if fresh {
            Link::Draining
        } else {
            Link::Disconnected
        };
        // What it refused is worth a try on a new one.
        self.retry_deferred();
        let pending = std::mem::take(&mut self.pending);
        pending.into_iter().map(|asked| asked.what)
    }

    /// How long to pause before connecting again, at most.
    pub(crate) fn pause(&self) -> Duration {
        LAST_PAUSE.min(FIRST_PAUSE * 2_u32.pow(self.failed.min(9)))
    }

    /// A try to connect has ended without success.
    pub(crate) fn tried(&mut self, retry_at: Instant, closed: bool) {
        self.tries += 1;
        self.reconnect_now = false;
        self.failed += 1;
        self.retry_at = Some(retry_at);
        self.tried_last |= closed;
    }

    /// It was connected.
    pub(crate) fn on_handshake(&mut self, handshake: Handshake) {
        self.fresh = Some(handshake);
        if self.link == Link::Disconnected || mutant(13) {
            self.link = Link::Draining;
        }
    }

    /// So many of the releases due to it were forgotten since this was last asked.
    pub(crate) fn forgotten(&mut self) -> u64 {
        std::mem::take(&mut self.due.forgotten) + std::mem::take(&mut self.refused.forgotten)
    }

    /// The connection that was made last is the node's from now on: what its server says.
    fn meets(&mut self, handshake: Handshake) {
        let run_id = handshake.run_id.as_deref();
        let other = self
            .known
            .as_ref()
            .is_some_and(|known| known.is_other(run_id));
        self.replaced |= other;
        self.said &= !other;
        if let Some((uptime, at)) = handshake.uptime {
            let told = ServerStart { run_id, uptime, at };
            let guard = self.guard.filter(|_| !mutant(24));
            let votes_from = guard.map_or(at, |guard| guard.votes_from(self.known.as_ref(), &told));
            self.known = Some(PreviousServer {
                run_id: handshake.run_id.clone(),
                heard: at,
                votes_from,
            });
        }
        self.handshake = handshake;
        self.useful = false;
    }

    /// How long its server gives no votes yet.
    pub(crate) fn quarantine_left(&self, now: Instant) -> Option<Duration> {
        let from = self.known.as_ref()?.votes_from;
        self.guard?;
        (from > now).then(|| from - now)
    }

    /// It gives no votes for now.
    pub(crate) fn quarantine(&mut self, now: Instant) {
        self.link = Link::Quarantined;
        self.tries += 1;
        self.reconnect_now = false;
        self.ping_at = now.checked_add(PING_PAUSE);
    }

    /// Whether another server is there than when it was last here.
    pub(crate) fn take_replaced(&mut self) -> bool {
        std::mem::take(&mut self.replaced)
    }

    pub(crate) fn reconnected(&mut self, now: Instant) {
        self.link = Link::Connected;
        self.has_worker = false;
        self.fresh = None;
        self.tries += 1;
        self.reconnect_now = false;
        self.cause = None;
        self.probed(now);
    }

    /// What the worker of a node that sits out should do.
    fn quarantine_task(&self, now: Instant, closed: bool, connect_timeout: Duration) -> NodeTask {
        let Some(left) = self.quarantine_left(now) else {
            return NodeTask::Reconnected;
        };
        let soon = now + connect_timeout;
        if self.has_releases() && self.pending.len() < CHUNK {
            return NodeTask::Send { until: soon };
        }
        if let Some(asked) = self.asked_at() {
            let end = asked + connect_timeout;
            return match end > now {
                true => NodeTask::Recv { until: end },
                false => NodeTask::GiveUp,
            };
        }
        let ping_at = self.ping_at.unwrap_or(now);
        match closed {
            true => NodeTask::Stop,
            false if ping_at <= now => NodeTask::Send { until: soon },
            false => NodeTask::Pause {
                until: ping_at.min(now + left),
            },
        }
    }

    /// What the last connection left unfinished is done, and has been confirmed.
    fn is_drained(&self) -> bool {
        let confirmed = self.pending.is_empty() || mutant(47);
        self.unread == 0 && !self.has_releases() && confirmed
    }

    fn connects(&mut self, now: Instant) -> NodeTask {
        self.connecting = true;
        self.try_began = Some(now);
        NodeTask::Connect
    }

    /// What the worker should do. `closed`: since when nobody needs the node any more.
    pub(crate) fn task(
        &mut self,
        now: Instant,
        closed: Option<Instant>,
        (node_timeout, connect_timeout): (Duration, Duration),
    ) -> NodeTask {
        let (soon, retry_at) = (now + connect_timeout, self.retry_at.unwrap_or(now));
        let writes = self.has_releases() && self.pending.len() < CHUNK;
        match self.link {
            Link::Connected => NodeTask::Reconnected,
            Link::Disconnected if closed.is_some() && (self.tried_last || !self.has_releases()) => {
                NodeTask::Stop
            }
            Link::Disconnected if self.connecting => NodeTask::Pause { until: soon },
            Link::Disconnected if now >= retry_at || self.reconnect_now => {
                self.reconnect_now = false;
                self.connects(now)
            }
            Link::Disconnected => NodeTask::Pause { until: retry_at },
            Link::Unresponsive if writes => NodeTask::Send { until: soon },
            Link::Unresponsive if self.pending.is_empty() => NodeTask::Reconnected,
            // One look without waiting; if it does not answer now either, the new one replaces it.
            Link::Unresponsive if self.fresh.is_some() => NodeTask::Recv { until: now },
            Link::Unresponsive => {
                let until = closed.map_or(retry_at, |closed| closed + connect_timeout);
                let listen = now + (node_timeout / 2).clamp(SHORTEST_LISTEN, LISTEN);
                match closed {
                    _ if now < until => NodeTask::Recv {
                        until: listen.min(until),
                    },
                    Some(_) => NodeTask::Stop,
                    None if self.connecting => NodeTask::Recv { until: listen },
                    None => self.connects(now),
                }
            }
            Link::Quarantined => self.quarantine_task(now, closed.is_some(), connect_timeout),
            Link::Draining => match self.fresh.take() {
                Some(handshake) => {
                    self.retry_at = Some(soon);
                    self.meets(handshake);
                    NodeTask::Adopt
                }
                None if self.is_drained() => match self.quarantine_left(now) {
                    Some(_) => NodeTask::Quarantine,
                    None => NodeTask::Reconnected,
                },
                None if self.unread == 0 && writes => NodeTask::Send { until: soon },
                None if self.pings() => NodeTask::Send { until: soon },
                None if now >= retry_at => NodeTask::GiveUp,
                None => NodeTask::Recv { until: retry_at },
            },
        }
    }
}

#[cfg(test)]
impl Node {
    /// What is not as it is when all is quiet.
    pub(crate) fn unrest(&self) -> Option<String> {
        let left = [self.due.queue.len(), self.refused.queue.len()];
        let well = self.is_connected() && !self.has_worker && left == [0, 0];
        (!well).then(|| format!("{:?}, due and refused {left:?}", self.link))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::protocol::quorum::NodeSet;
    use crate::token::Token;

    fn release(resource: &[u8]) -> Key {
        Key {
            resource: Arc::from(resource),
            token: Token::from_bytes([7; 20]),
            label: None,
            asked: NodeSet::ALL,
        }
    }

    /// The resources of all releases that are written next.
    fn said(node: &mut Node, now: Instant) -> Vec<Vec<u8>> {
        let mut bytes = Vec::new();
        let (bytes, start) = (&mut bytes, 0);
        let mut out = Output { bytes, start, now };
        while !node.write_releases(&mut out) {}
        let pending = std::mem::take(&mut node.pending).into_iter();
        pending
            .map(|asked| asked.what.release.unwrap().resource.to_vec())
            .collect()
    }

    #[test]
    fn what_a_node_is_due_has_a_bound_and_what_is_forgotten_is_counted_once() {
        let now = clock::instant();
        let name = |i: usize| i.to_string().into_bytes();
        let mut node = Node::new("x".into(), None);
        for i in 0..MAX_DUE + 3 {
            node.add_release(release(&name(i)));
        }
        let left: Vec<_> = (3..MAX_DUE + 3).map(name).collect();
        assert_eq!(said(&mut node, now), left);
        let long = |i: u8| vec![i; MAX_DUE_BYTES / 2];
        (0..3).for_each(|i| node.add_release(release(&long(i))));
        assert_eq!(said(&mut node, now), [long(1), long(2)]);
        assert_eq!((node.due.bytes, node.has_releases()), (0, false));
        // Those that a server refused have a bound of their own.
        (0..3).for_each(|i| node.refuse(release(&long(i))));
        node.retry_deferred();
        assert_eq!(said(&mut node, now), [long(1), long(2)]);
        assert_eq!((node.forgotten(), node.forgotten()), (5, 0));
    }

    #[test]
    fn more_than_was_asked_for_is_an_error() {
        let now = clock::instant();
        let mut node = Node::new("x".into(), None);
        let mut bytes = Vec::new();
        let (bytes, start) = (&mut bytes, 0);
        let out = Output { bytes, start, now };
        let surplus =
            |node: &Node, bytes: &[u8]| matches!(node.next_reply(bytes), Err(Cause::Garbage(_)));
        assert!(surplus(&node, b"+OK\r\n") && surplus(&node, b"+"));
        node.ask(Pending::default(), &out);
        assert!(!surplus(&node, b"+OK\r\n") && !surplus(&node, b"+"));
        assert!(surplus(&node, b"+OK\r\n+"));
        node.ask(Pending::default(), &out);
        assert!(!surplus(&node, b"+OK\r\n+"));
    }

    /// 0.1 s, 0.2 s, 0.4 s, and then always the last.
    #[test]
    fn pauses_grow_to_a_bound() {
        let now = clock::instant();
        let mut node = Node::new("x".into(), None);
        for expected in [100, 200, 400, 700, 700] {
            assert_eq!(node.pause(), Duration::from_millis(expected));
            node.tried(now, false);
        }
        (0..100).for_each(|_| node.tried(now, false));
        node.reconnected(now);
        assert_eq!(node.pause(), LAST_PAUSE);
        node.is_useful();
        assert_eq!(node.pause(), FIRST_PAUSE);
    }
}
