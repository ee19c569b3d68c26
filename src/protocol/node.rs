//! All that is known of one node.
//!
//! ```text
//!   Here ──silent──▶ Silent ──everything answered──────────────────▶ Here
//!    │                 │ closed; or a new connection answers and it still does not
//!    └──closed────▶ Down ──connected──▶ Coming ──pings, releases──▶ Here
//! ```
//!
//! A node that is not here has an *attendant*, which does what [`Node::errand`] says. A silent
//! connection is kept, since the SETs on it may still be carried out: the releases that undo them go
//! behind them (rule R7). Operations and releases never go over two connections at a time.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::Cause;
use crate::protocol::mutant;
use crate::protocol::script::{Action, Key};

/// The pause between two tries to connect grows from the first to the last: a node that is well again
/// votes within one second.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LAST_PAUSE: Duration = Duration::from_millis(700);
/// How often the attendant that listens to a silent connection looks for releases to write on it.
const GLANCE: Duration = Duration::from_millis(20);
/// A connection that was silent for so long in both directions is looked at before it is written to: if
/// it was closed meanwhile, it would take what is written and nobody would hear of it.
const IDLE: Duration = Duration::from_millis(10);
/// A Redis server reads 16 KiB of a connection in one turn of its event loop, and answers a new
/// connection at most once in a turn. Half of it: what did not fit follows in smaller pieces.
const TURN: usize = 16 * 1024 / 2;
/// Unread replies are read past when so many have come in since the last time. They cost the node's
/// memory, not ours, and looking for them costs system calls.
const MAX_UNREAD: usize = 256;
/// So many releases are written at once.
const CHUNK: usize = 1024;
/// A node is due so many releases at most. Beyond, the oldest is forgotten, and its key ends with its
/// ttl.
pub(crate) const MAX_DUE: usize = 65_536;
pub(crate) const MAX_DUE_BYTES: usize = 16 << 20;

const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";

/// The connection to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    /// Operations are sent on it.
    Here,
    /// It did not answer in time. What is on it may still be carried out.
    Silent,
    /// There is none.
    Down,
    /// It is new; what the last one left unfinished comes first.
    Coming,
}

/// What a server says of itself when it is connected.
#[derive(Clone, Debug, Default)]
pub(crate) struct Greeting {
    /// Unknown where `INFO` is forbidden.
    pub(crate) run_id: Option<String>,
    /// The connection cannot be looked at without waiting, and does not survive waiting in vain (TLS).
    pub(crate) fragile: bool,
    /// The server knows the scripts.
    pub(crate) by_hash: bool,
}

/// What a node's attendant should do.
#[derive(Debug)]
pub(crate) enum Errand {
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
    /// The node is here again: leave its connection to the leader, and go.
    Home,
    /// Nobody needs the node any more: go.
    Quit,
}

/// Whose vote a reply is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) place: usize,
    pub(crate) number: u64,
}

/// A release that a node has not carried out yet, for all that is known.
#[derive(Clone)]
pub(crate) struct Release {
    pub(crate) key: Key,
    /// When the key has ended by itself.
    pub(crate) forget_at: Instant,
}

/// What a reply that is still to come answers.
pub(crate) enum Pending {
    Vote(Ticket),
    /// It is due again if the connection closes; the vote of an operation that waits for it, if there is
    /// a ticket; one that had been refused, and tries whether others like it would be taken now.
    Release {
        release: Release,
        ticket: Option<Ticket>,
        retries: bool,
    },
    Ping,
}

struct Asked {
    what: Pending,
    at: Instant,
    /// How many bytes had been sent on this connection before.
    from: usize,
}

/// Releases to be written, the oldest first.
#[derive(Default)]
struct Releases {
    queue: VecDeque<Release>,
    /// Of their names.
    bytes: usize,
    /// So many did not find room.
    forgotten: u64,
}

impl Releases {
    fn push(&mut self, release: Release) {
        self.bytes += release.key.resource.len();
        self.queue.push_back(release);
        while self.queue.len() > MAX_DUE || self.bytes > MAX_DUE_BYTES {
            self.pop();
            self.forgotten += 1;
        }
    }

    fn pop(&mut self) -> Option<Release> {
        let release = self.queue.pop_front()?;
        self.bytes -= release.key.resource.len();
        Some(release)
    }

    fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

/// What was last said of a node in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reported {
    Well,
    Away,
    /// It is here, and answers acquires with errors.
    GivesNoVotes,
}

pub(crate) struct Node {
    /// Host and port, or path: what may be shown.
    pub(crate) address: Arc<str>,
    pub(crate) link: Link,
    /// Its connection is the attendant's, not the leader's.
    pub(crate) attended: bool,
    /// No thread could be started for it since an operation was last submitted.
    pub(crate) unattended: bool,
    pub(crate) fragile: bool,
    /// The server knows the scripts.
    pub(crate) by_hash: bool,
    /// The replies to come, in order.
    pending: VecDeque<Asked>,
    /// The start of a reply.
    pub(crate) inbox: Vec<u8>,
    /// Bytes sent on this connection.
    sent: usize,
    due: Releases,
    /// Releases that the server could not carry out at the time.
    refused: Releases,
    /// Bytes that dead connections may have left for the server to read (rule R8).
    unread: usize,
    /// There have been some since it was last here.
    had_unread: bool,
    /// When something was last sent or heard, or nothing was found to have come.
    active: Instant,
    /// When it was last looked at without waiting, and nothing was there.
    looked: Instant,
    /// To be looked at before anything else.
    pub(crate) look: bool,
    /// With more pending than this it is time to look.
    may_pend: usize,
    /// Why it is not here, or gave no votes.
    pub(crate) cause: Option<Arc<Cause>>,
    /// Tries to connect that have ended.
    pub(crate) tries: u64,
    pause: Duration,
    retry_at: Instant,
    /// A connection that was made and is not the node's yet.
    pub(crate) fresh: Option<Greeting>,
    /// An operation needs it: no pause.
    pub(crate) hurry: bool,
    /// It was tried since nobody needs it any more.
    tried_last: bool,
    pub(crate) run_id: Option<String>,
    pub(crate) reported: Reported,
}

impl Node {
    pub(crate) fn new(address: Arc<str>, now: Instant) -> Node {
        Node {
            address,
            link: Link::Down,
            attended: false,
            unattended: false,
            fragile: false,
            by_hash: false,
            pending: VecDeque::new(),
            inbox: Vec::new(),
            sent: 0,
            due: Releases::default(),
            refused: Releases::default(),
            unread: 0,
            had_unread: false,
            active: now,
            looked: now,
            look: false,
            may_pend: MAX_UNREAD,
            cause: None,
            tries: 0,
            pause: FIRST_PAUSE,
            retry_at: now,
            fresh: None,
            hurry: false,
            tried_last: false,
            run_id: None,
            reported: Reported::Well,
        }
    }

    pub(crate) fn is_here(&self) -> bool {
        self.link == Link::Here
    }

    /// Whether the leader has a connection on which releases can be written.
    pub(crate) fn takes_releases(&self) -> bool {
        self.is_here() || self.link == Link::Silent && !self.attended
    }

    pub(crate) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    pub(crate) fn pending(&self) -> usize {
        self.pending.len()
    }

    /// When the oldest reply that is pending was asked for.
    pub(crate) fn asked_at(&self) -> Option<Instant> {
        Some(self.pending.front()?.at)
    }

    // ---- sending

    /// Notes that a reply will come; its command is sent behind so many bytes.
    pub(crate) fn ask(&mut self, what: Pending, behind: usize, at: Instant) {
        let from = self.sent.wrapping_add(behind);
        self.pending.push_back(Asked { what, at, from });
    }

    /// So many bytes are being written.
    pub(crate) fn sending(&mut self, bytes: usize, now: Instant) {
        self.sent = self.sent.wrapping_add(bytes);
        self.active = now;
    }

    pub(crate) fn owe(&mut self, release: Release) {
        self.due.push(release);
    }

    /// A server could not carry out a release now. It is tried again with a later operation.
    pub(crate) fn refuse(&mut self, release: Release) {
        if !mutant(1) {
            self.refused.push(release);
        }
    }

    /// The server carries out releases again: all that it refused are due.
    pub(crate) fn takes_again(&mut self) {
        while let Some(release) = self.refused.pop() {
            self.due.push(release);
        }
    }

    /// Appends the ping that finds out that the server has read what a dead connection left.
    pub(crate) fn ping(&mut self, out: &mut Vec<u8>, start: usize, now: Instant) -> bool {
        let pings = self.link == Link::Coming && self.unread > 0;
        if pings {
            self.ask(Pending::Ping, out.len() - start, now);
            out.extend_from_slice(PING);
        }
        pings
    }

    /// Appends releases that are due; true if that was all of them.
    pub(crate) fn say_releases(&mut self, out: &mut Vec<u8>, start: usize, now: Instant) -> bool {
        // A key's life begins when its acquire is read: where that may be unread, none has ended.
        let forgets = self.link == Link::Coming && !self.had_unread || mutant(15);
        for _ in 0..CHUNK {
            let Some(release) = self.due.pop() else {
                return true;
            };
            if !forgets || release.forget_at > now {
                self.say_release(release, false, out, start, now);
            }
        }
        self.due.is_empty()
    }

    /// Appends one release that was refused before, if there is any.
    pub(crate) fn say_refused(&mut self, out: &mut Vec<u8>, start: usize, now: Instant) {
        if let Some(release) = self.refused.pop() {
            self.say_release(release, true, out, start, now);
        }
    }

    fn say_release(
        &mut self,
        release: Release,
        retries: bool,
        out: &mut Vec<u8>,
        start: usize,
        now: Instant,
    ) {
        let key = release.key.clone();
        let what = Pending::Release {
            release,
            ticket: None,
            retries,
        };
        self.ask(what, out.len() - start, now);
        Action::Release.pack(&key, self.by_hash, out);
    }

    // ---- receiving

    /// A reply has come: what it answers, and when that was asked.
    pub(crate) fn answered(&mut self, now: Instant) -> Option<(Pending, Instant)> {
        let asked = self.pending.pop_front()?;
        self.active = now;
        Some((asked.what, asked.at))
    }

    pub(crate) fn pinged(&mut self) {
        self.unread = self.unread.saturating_sub(TURN);
    }

    /// It was looked at, and nothing was there.
    pub(crate) fn looked(&mut self, now: Instant) {
        self.look = false;
        (self.looked, self.active) = (now, now);
        self.may_pend = self.pending.len() + MAX_UNREAD;
    }

    pub(crate) fn looked_since(&self, time: Instant) -> bool {
        self.looked >= time
    }

    /// Its oldest reply should have come by now.
    pub(crate) fn is_overdue(&self, now: Instant, node_timeout: Duration) -> bool {
        self.asked_at()
            .is_some_and(|at| now.saturating_duration_since(at) > node_timeout)
    }

    /// Replies have piled up, and enough were asked for since the last look (a far node has many pending
    /// at any time); or another connection turned out closed.
    pub(crate) fn wants_look(&self) -> bool {
        !self.fragile && (self.look || self.pending.len() > self.may_pend)
    }

    pub(crate) fn is_idle(&self, now: Instant) -> bool {
        !self.fragile && now.saturating_duration_since(self.active) > IDLE
    }

    // ---- changes of the link

    pub(crate) fn silence(&mut self, retry_at: Instant) {
        self.link = Link::Silent;
        self.retry_at = retry_at;
    }

    /// The connection is finished. What was pending on it.
    pub(crate) fn sever(&mut self, now: Instant) -> VecDeque<Pending> {
        if let Some(first) = self.pending.front() {
            self.unread = self
                .unread
                .saturating_add(self.sent.wrapping_sub(first.from));
        }
        if mutant(4) {
            self.unread = 0;
        }
        self.had_unread |= self.unread > 0;
        self.sent = 0;
        self.inbox.clear();
        self.look = false;
        self.may_pend = MAX_UNREAD;
        self.run_id = None;
        self.retry_at = now;
        self.link = match self.fresh {
            Some(_) => Link::Coming,
            None => Link::Down,
        };
        // What it refused is worth a try on a new one.
        self.takes_again();
        let pending = std::mem::take(&mut self.pending);
        pending.into_iter().map(|asked| asked.what).collect()
    }

    /// How long to pause before the next try to connect, at most.
    pub(crate) fn pause(&self) -> Duration {
        self.pause
    }

    /// A try to connect has ended without success.
    pub(crate) fn tried(&mut self, retry_at: Instant, closed: bool) {
        self.tries += 1;
        self.hurry = false;
        self.pause = (2 * self.pause).min(LAST_PAUSE);
        self.retry_at = retry_at;
        self.tried_last |= closed;
    }

    /// It was connected.
    pub(crate) fn greeted(&mut self, greeting: Greeting) {
        self.fresh = Some(greeting);
        if self.link == Link::Down || mutant(13) {
            self.link = Link::Coming;
        }
    }

    /// So many of the releases due to it were forgotten since it was last here.
    pub(crate) fn come_home(&mut self, now: Instant) -> u64 {
        self.link = Link::Here;
        self.attended = false;
        self.fresh = None;
        self.tries += 1;
        self.hurry = false;
        self.pause = FIRST_PAUSE;
        self.had_unread = false;
        self.cause = None;
        (self.looked, self.active) = (now, now);
        std::mem::take(&mut self.due.forgotten) + std::mem::take(&mut self.refused.forgotten)
    }

    /// What the attendant should do. `closed`: since when nobody needs the node any more.
    pub(crate) fn errand(
        &mut self,
        now: Instant,
        closed: Option<Instant>,
        connect_timeout: Duration,
    ) -> Errand {
        let soon = now + connect_timeout;
        let until = closed.map_or(self.retry_at, |closed| closed + connect_timeout);
        let writes = self.is_due() && self.pending.len() < CHUNK;
        match self.link {
            Link::Here => Errand::Home,
            Link::Down => {
                if closed.is_some() && (self.tried_last || !self.is_due()) {
                    Errand::Quit
                } else if now >= self.retry_at || self.hurry {
                    self.hurry = false;
                    Errand::Connect
                } else {
                    Errand::Pause {
                        until: self.retry_at,
                    }
                }
            }
            Link::Silent if writes => Errand::Send { until: soon },
            Link::Silent if self.pending.is_empty() => Errand::Home,
            // One look without waiting; if it does not answer now either, the new one replaces it.
            Link::Silent if self.fresh.is_some() => Errand::Recv { until: now },
            Link::Silent if now < until => Errand::Recv {
                until: until.min(now + GLANCE),
            },
            Link::Silent if closed.is_some() => Errand::Quit,
            Link::Silent => Errand::Connect,
            Link::Coming => {
                if let Some(greeting) = self.fresh.take() {
                    self.run_id = greeting.run_id;
                    self.fragile = greeting.fragile;
                    self.by_hash = greeting.by_hash;
                    self.retry_at = soon;
                    return Errand::Adopt;
                }
                let waits = self.pending.len() >= if self.unread > 0 { 1 } else { CHUNK };
                if waits && now >= self.retry_at {
                    Errand::GiveUp
                } else if waits {
                    Errand::Recv {
                        until: self.retry_at,
                    }
                } else if self.unread > 0 || self.is_due() {
                    Errand::Send { until: soon }
                } else {
                    Errand::Home
                }
            }
        }
    }
}

#[cfg(test)]
impl Node {
    /// What is not as it is when all is quiet.
    pub(crate) fn unrest(&self) -> Option<String> {
        let left = [self.due.queue.len(), self.refused.queue.len()];
        let well = self.is_here() && !self.attended && left == [0, 0];
        (!well).then(|| format!("{:?}, due and refused {left:?}", self.link))
    }
}
