//! All nodes and all operations under way.
//!
//! One thread at a time leads: it does what [`Core::next`] says, with the connections of the nodes
//! that are here. Each node that is not has an attendant, which does what [`Core::errand`] says. Who
//! may use a connection, in one sentence: of a node that is here, the leader; of one that is not and
//! is attended, its attendant; of any other, the leader.
//!
//! Operations may be submitted at any time. Each has a time of its own, and is answered as soon as its
//! verdict is certain.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Cause, NodeError, NodeErrors};
use crate::protocol::entry::{Answer, Entry, Op, Outcome, State};
use crate::protocol::mutant;
use crate::protocol::node::{Errand, Greeting, Link, Node, Pending, Release, Reported, Ticket};
use crate::protocol::order::Order;
use crate::protocol::quorum::{NodeSet, Verdict, majority};
use crate::protocol::resp::{self, Reply};
use crate::protocol::script::{Action, Vote, is_not_loaded, is_not_now};

/// So many events wait to be logged at most.
const MAX_EVENTS: usize = 1000;

/// What the leader should do.
#[derive(Debug)]
pub(crate) enum Next {
    /// A node needs an attendant, who gets its connection if it has one.
    HandOver {
        node: usize,
    },
    /// Take what is here, without waiting, or find that the connection was closed.
    Probe {
        node: usize,
    },
    Send {
        nodes: NodeSet,
        until: Instant,
    },
    Recv {
        node: usize,
        until: Instant,
    },
    /// For news of the attendants.
    Wait {
        until: Instant,
    },
    /// Nobody waits for an answer.
    Finished,
}

/// What has happened, for the log.
#[derive(Debug)]
pub(crate) enum Event {
    Away {
        node: usize,
        cause: Arc<Cause>,
    },
    Back {
        node: usize,
        /// So many releases due to it were too many to be remembered.
        forgotten: u64,
    },
    GivesNoVotes {
        node: usize,
        cause: Arc<Cause>,
    },
    VotesAgain {
        node: usize,
    },
}

pub(crate) struct Core<W> {
    nodes: Vec<Node>,
    here: NodeSet,
    node_timeout: Duration,
    connect_timeout: Duration,
    order: Order,
    /// Since when the leader waits for a node.
    reading: Instant,
    /// Since something was last sent the leader has not waited in vain.
    prompt: bool,
    /// When a majority was here for the first time.
    majority_at: Option<Instant>,
    /// Two nodes are one server (rule R1).
    twins: bool,
    /// Since when nobody needs the nodes any more.
    closed_at: Option<Instant>,
    noise: u64,
    entries: Vec<Entry<W>>,
    submitted: u64,
    pub(crate) answers: Vec<(W, Answer)>,
    pub(crate) events: Vec<Event>,
    /// Whoever waits for news should look.
    pub(crate) news: bool,
}

impl<W> Core<W> {
    pub(crate) fn new(
        addresses: impl Iterator<Item = Arc<str>>,
        node_timeout: Duration,
        connect_timeout: Duration,
        noise: u64,
        now: Instant,
    ) -> Core<W> {
        let nodes: Vec<Node> = addresses.map(|address| Node::new(address, now)).collect();
        Core {
            order: Order::new(nodes.len(), now),
            nodes,
            here: NodeSet::EMPTY,
            node_timeout,
            connect_timeout,
            reading: now,
            prompt: false,
            majority_at: None,
            twins: false,
            closed_at: None,
            noise: noise | 1,
            entries: Vec::new(),
            submitted: 0,
            answers: Vec::new(),
            events: Vec::new(),
            news: false,
        }
    }

    fn node(&mut self, at: usize) -> &mut Node {
        #[allow(clippy::indexing_slicing)] // OK because nodes are never added or removed.
        &mut self.nodes[at]
    }

    pub(crate) fn link(&self, at: usize) -> Link {
        self.nodes.get(at).map_or(Link::Down, |node| node.link)
    }

    /// Whether fewer nodes are here than are needed for a verdict.
    fn is_short(&self) -> bool {
        self.here.len() < majority(self.nodes.len())
    }

    fn jitter(&mut self, pause: Duration) -> Duration {
        self.noise ^= self.noise << 13;
        self.noise ^= self.noise >> 7;
        self.noise ^= self.noise << 17;
        pause / 2 + pause / 2048 * u32::try_from(self.noise % 1024).unwrap_or(0)
    }

    // ---- operations

    /// `who` waits for the answer.
    pub(crate) fn submit(&mut self, op: Op, who: W, now: Instant) {
        self.submitted += 1;
        let free = |entry: &Entry<W>| entry.state == State::Free;
        let place = self.entries.iter().position(free);
        let at = place.unwrap_or(self.entries.len());
        let old = self.entries.get_mut(at);
        let bytes = old.map_or_else(Vec::new, |old| std::mem::take(&mut old.bytes));
        let entry = Entry::new(self.submitted, op, who, bytes, now);
        match self.entries.get_mut(at) {
            Some(old) => *old = entry,
            None => self.entries.push(entry),
        }
        for node in &mut self.nodes {
            node.unattended = false;
        }
        self.begin(at, now);
    }

    /// Who has waited longest for an answer.
    pub(crate) fn longest_waiting(&self) -> Option<&W> {
        let open = self
            .entries
            .iter()
            .filter(|entry| entry.state != State::Free);
        open.min_by_key(|entry| entry.number)?.who.as_ref()
    }

    /// Its time begins, unless first connections are waited for: then until when.
    fn begin(&mut self, at: usize, now: Instant) -> Option<Instant> {
        let entry = self.entries.get_mut(at)?;
        if entry.begun.is_some() || entry.op.only_write {
            return None;
        }
        let until = match self.majority_at {
            Some(at) => at + self.node_timeout,
            None => entry.submitted + self.connect_timeout,
        };
        let under_way = self.nodes.iter().any(|node| node.tries == 0) && !mutant(14);
        if under_way && now < until {
            return Some(until);
        }
        entry.begin(now, self.node_timeout);
        if under_way && self.majority_at.is_none() {
            entry.until = now;
        }
        if !entry.votes.failed.is_empty() {
            self.judge(at, now);
        }
        None
    }

    // ---- the leader

    pub(crate) fn next(&mut self, now: Instant) -> Next {
        let asked_before = now.checked_sub(self.node_timeout);
        loop {
            let (mut due, mut silent) = (NodeSet::EMPTY, None);
            for (at, node) in self.nodes.iter().enumerate() {
                if node.is_here() {
                    let late = node.asked_at().is_some_and(|at| Some(at) < asked_before);
                    if late || node.wants_look() {
                        return self.probe(at, now);
                    }
                } else if node.link == Link::Silent && !node.attended {
                    silent = Some(at);
                } else if self.wants_attendant(node) {
                    return Next::HandOver { node: at };
                }
                if node.is_due() && node.takes_releases() {
                    due.add(at);
                }
            }
            let wants = self.survey(now);
            let owing = wants.owing.and(self.here);
            // What is submitted while replies are on their way goes together when they are here: one write
            // for all is cheaper for both sides. Unless they take long.
            let waits = self.prompt && !owing.is_empty();
            let send = if waits { due } else { wants.send.or(due) };
            if !send.is_empty() {
                return self.send(send, now);
            }
            // Its releases are written by now.
            if let Some(node) = silent.filter(|node| self.can_leave(*node)) {
                return Next::HandOver { node };
            }
            if !wants.open {
                return self.settle(now);
            }
            if now >= wants.ends {
                match self.unseen(owing, wants.ends, now) {
                    Some(node) => return self.probe(node, now),
                    None => self.expire(now),
                }
                continue;
            }
            self.hurry(wants.lacking);
            if !owing.is_empty() {
                return self.recv(owing, wants.ends, now);
            }
            return Next::Wait { until: wants.ends };
        }
    }

    /// What the operations under way want, with those that are done taken out.
    fn survey(&mut self, now: Instant) -> Wants {
        let (here, count) = (self.here, self.nodes.len());
        let mut wants = Wants {
            send: NodeSet::EMPTY,
            owing: NodeSet::EMPTY,
            lacking: NodeSet::EMPTY,
            ends: now + self.connect_timeout,
            open: false,
        };
        for at in 0..self.entries.len() {
            let waits = self.begin(at, now);
            let Some(entry) = self.entries.get(at) else {
                break;
            };
            let ask = match entry.state {
                State::Free => continue,
                State::Undoing(verdict) if entry.undo.is_empty() => {
                    self.finish(at, verdict, now);
                    continue;
                }
                State::Undoing(_) => NodeSet::EMPTY,
                State::Open => self.to_ask(entry, now),
            };
            if entry.op.only_write && ask.is_empty() {
                self.finish_written(at, now);
                continue;
            }
            wants.open = true;
            wants.send = wants.send.or(ask);
            if !entry.is_open() {
                continue;
            }
            wants.owing = wants.owing.or(entry.owing());
            let ends = entry
                .op
                .until
                .into_iter()
                .chain(waits.or(Some(entry.until)));
            wants.ends = ends.fold(wants.ends, Instant::min);
            let hope = entry.votes.granted.or(entry.owing()).or(ask);
            if hope.without(self.order.slow()).len() < majority(count) {
                wants.lacking = wants.lacking.or(entry.absent(here, count));
            }
        }
        wants
    }

    /// Nodes that an operation is to be sent to now.
    fn to_ask(&self, entry: &Entry<W>, now: Instant) -> NodeSet {
        // Too late to be of use, unless it is a release.
        let late = !entry.is_release() && entry.begun.is_some() && entry.ends() <= now;
        if entry.state != State::Open || late || self.twins && entry.is_acquire() {
            return NodeSet::EMPTY;
        }
        entry.to_ask(self.here, self.nodes.len())
    }

    fn wants_attendant(&self, node: &Node) -> bool {
        let needed = self.closed_at.is_none() || node.is_due();
        needed && !node.attended && !node.unattended
    }

    /// Whether a silent node has nothing more to expect from the leader: who fails to acquire what it
    /// was asked for writes the release before it returns.
    fn can_leave(&self, at: usize) -> bool {
        let asked = |entry: &Entry<W>| {
            entry.state != State::Free && entry.is_acquire() && entry.asked.has(at)
        };
        let free = self.nodes.get(at).is_some_and(|node| !node.unattended);
        free && (mutant(16) || !self.entries.iter().any(asked))
    }

    fn probe(&mut self, node: usize, now: Instant) -> Next {
        self.reading = now;
        Next::Probe { node }
    }

    fn send(&mut self, nodes: NodeSet, now: Instant) -> Next {
        let idle = |at: &usize| self.nodes.get(*at).is_some_and(|node| node.is_idle(now));
        if let Some(at) = nodes.and(self.here).iter().find(idle) {
            return self.probe(at, now);
        }
        // A node that takes in nothing leaves the others time to answer, and nobody waits longer for it
        // than an operation may take at all.
        let half = self.node_timeout / 2;
        let limits = self
            .entries
            .iter()
            .filter(|entry| entry.state != State::Free);
        let limits = limits.filter_map(|entry| entry.begun);
        let until = limits.fold(now + half, |until, begun| until.min(begun + 4 * half));
        self.prompt = true;
        Next::Send { nodes, until }
    }

    /// The nearest of these nodes.
    pub(crate) fn nearest(&self, any_of: NodeSet) -> usize {
        self.order.nearest(any_of)
    }

    fn recv(&mut self, owing: NodeSet, ends: Instant, now: Instant) -> Next {
        self.reading = now;
        let nodes = &self.nodes;
        let asked = |at: usize| nodes.get(at).and_then(Node::asked_at).unwrap_or(now);
        let age = |at| now.saturating_duration_since(asked(at));
        let (node, wait) = self.order.reads(owing, age);
        let until = match nodes.get(node) {
            // It does not survive waiting in vain.
            Some(Node { fragile: true, .. }) => asked(node) + self.node_timeout,
            _ => ends.min(now + wait),
        };
        Next::Recv { node, until }
    }

    /// Nodes that somebody waits for are connected at once.
    fn hurry(&mut self, nodes: NodeSet) {
        for at in nodes.iter() {
            let node = self.node(at);
            if node.attended && !node.hurry {
                node.hurry = true;
                self.news = true;
            }
        }
    }

    /// One of these nodes that was not looked at since the time was over. The program itself may have
    /// slept: what has come meanwhile counts.
    fn unseen(&self, owing: NodeSet, since: Instant, now: Instant) -> Option<usize> {
        let unseen = |at: &usize| {
            let node = self.nodes.get(*at);
            node.is_some_and(|node| {
                let can_look = !node.fragile || node.is_overdue(now, self.node_timeout);
                can_look && !node.looked_since(since)
            })
        };
        owing.iter().find(unseen)
    }

    /// Nobody waits for an answer. When nobody needs the nodes any more either, what was sent is waited
    /// for a little: closing on unread replies resets a connection, and the server may then drop a
    /// release that it has not read yet.
    fn settle(&mut self, now: Instant) -> Next {
        let Some(until) = self.closed_at.map(|at| at + self.node_timeout) else {
            return Next::Finished;
        };
        if now >= until {
            return Next::Finished;
        }
        let pending = |at: &usize| self.nodes.get(*at).is_some_and(|node| node.pending() > 0);
        let pending: NodeSet = self.here.iter().filter(pending).collect();
        if !pending.is_empty() {
            return self.recv(pending, until, now);
        }
        let due = |node: &Node| node.attended && node.is_due();
        if self.nodes.iter().any(due) {
            return Next::Wait { until };
        }
        Next::Finished
    }

    /// Appends the bytes for a node to `out`.
    pub(crate) fn output(&mut self, at: usize, out: &mut Vec<u8>, now: Instant) {
        let start = out.len();
        let node = self.node(at);
        // Releases come first, or a lock that is free already would be denied.
        let all = node.ping(out, start, now) || mutant(7) || node.say_releases(out, start, now);
        if all && node.is_here() {
            self.ask(at, true, out, start, now);
            self.ask(at, false, out, start, now);
        }
        if mutant(7) {
            self.node(at).say_releases(out, start, now);
        }
        self.node(at).sending(out.len() - start, now);
        if all {
            for entry in &mut self.entries {
                entry.undo.remove(at);
            }
        }
    }

    /// Appends the operations that are to be sent to a node: the releases, or the others.
    fn ask(&mut self, at: usize, releases: bool, out: &mut Vec<u8>, start: usize, now: Instant) {
        for place in 0..self.entries.len() {
            let asks = |entry: &Entry<W>| {
                entry.is_release() == releases && self.to_ask(entry, now).has(at)
            };
            if !self.entries.get(place).is_some_and(asks) {
                continue;
            }
            let Some(entry) = self.entries.get_mut(place) else {
                break;
            };
            let number = entry.number;
            let ticket = Ticket { place, number };
            let what = if releases {
                Pending::Release {
                    release: entry.release(now),
                    ticket: Some(ticket),
                    retries: false,
                }
            } else {
                Pending::Vote(ticket)
            };
            entry.asked.add(at);
            #[allow(clippy::indexing_slicing)] // OK because nodes are never removed.
            let node = &mut self.nodes[at];
            node.ask(what, out.len() - start, now);
            if node.by_hash {
                out.extend_from_slice(&entry.bytes);
            } else {
                entry.op.action.pack(&entry.op.key, false, out);
            }
            node.say_refused(out, start, now);
        }
    }

    /// It could not be written: a command may be torn.
    pub(crate) fn unsent(&mut self, at: usize, cause: Cause, now: Instant) {
        self.sever(at, cause, now);
    }

    /// What has come from a node; no bytes: nothing did in time.
    pub(crate) fn received(&mut self, at: usize, result: Result<&[u8], Cause>, now: Instant) {
        let bytes = match result {
            Ok([]) => return self.heard_nothing(at, now),
            Ok(bytes) => bytes,
            Err(cause) => return self.sever(at, cause, now),
        };
        // Replies seldom come in pieces.
        let mut inbox = std::mem::take(&mut self.node(at).inbox);
        let mut rest = bytes;
        if !inbox.is_empty() {
            inbox.extend_from_slice(bytes);
            rest = &inbox;
        }
        let mut asked = None;
        loop {
            // Or the next reply would be taken for another's.
            let surplus = self.node(at).pending() == 0 && !rest.is_empty();
            let parsed = match resp::parse(rest) {
                Ok(_) if surplus => Err(Cause::Garbage("more than was asked for".into())),
                parsed => parsed,
            };
            let (reply, length) = match parsed {
                Ok(Some(parsed)) => parsed,
                Ok(None) => break,
                Err(cause) => return self.sever(at, cause, now),
            };
            rest = rest.get(length..).unwrap_or_default();
            if self.node(at).pending() == 1 && !rest.is_empty() {
                return self.sever(at, Cause::Garbage("more than was asked for".into()), now);
            }
            asked = self.node(at).asked_at();
            if !self.reply(at, reply, now) {
                return;
            }
        }
        let rest = rest.to_vec();
        self.node(at).inbox = rest;
        if let Some(asked) = asked.filter(|_| self.link(at) == Link::Here) {
            let waited = now.saturating_duration_since(self.reading);
            let took = now.saturating_duration_since(asked);
            self.order.heard(at, took, waited, now);
        }
    }

    fn heard_nothing(&mut self, at: usize, now: Instant) {
        let node_timeout = self.node_timeout;
        let node = self.node(at);
        if !node.is_here() {
            if node.link == Link::Silent && node.fresh.is_some() {
                self.sever(at, Cause::Silent(node_timeout), now);
            }
            return;
        }
        node.looked(now);
        let (overdue, asked) = (node.is_overdue(now, node_timeout), node.asked_at());
        if overdue {
            self.silence(at, now);
        } else if let Some(asked) = asked {
            let age = now.saturating_duration_since(asked);
            self.order.in_vain(at, age, now);
        }
        if std::mem::take(&mut self.prompt) {
            self.judge_all(now);
        }
    }

    /// False: the connection is finished.
    fn reply(&mut self, at: usize, reply: Reply, now: Instant) -> bool {
        let Some((what, _)) = self.node(at).answered(now) else {
            return true;
        };
        let (ticket, release) = match what {
            Pending::Vote(ticket) => (Some(ticket), None),
            Pending::Release {
                release,
                ticket,
                retries,
            } => {
                if retries && !matches!(&reply, Reply::Error(text) if is_not_now(text)) {
                    self.node(at).takes_again();
                }
                (ticket, Some(release))
            }
            Pending::Ping => {
                self.node(at).pinged();
                return true;
            }
        };
        let place = ticket.and_then(|ticket| self.place(ticket));
        if matches!(&reply, Reply::Error(text) if is_not_loaded(text)) {
            self.not_loaded(at, place, release);
            return true;
        }
        let entry = place.and_then(|place| self.entries.get(place));
        let action = match entry {
            Some(entry) => entry.op.action,
            None if release.is_some() => Action::Release,
            // Nobody waits for it. An error that ends the connection comes again.
            None => return true,
        };
        let vote = action.vote(reply);
        if let Vote::Failed { later: true, .. } = vote
            && let Some(release) = release.clone()
        {
            self.node(at).refuse(release);
        }
        match (place, vote) {
            (Some(place), vote) => self.vote(place, at, vote, now),
            (None, Vote::Sever(cause)) => {
                release
                    .into_iter()
                    .for_each(|release| self.node(at).owe(release));
                self.sever(at, cause, now);
                false
            }
            (None, _) => true,
        }
    }

    /// Nothing was done, for want of a script: it is sent again, with the script's text.
    fn not_loaded(&mut self, at: usize, place: Option<usize>, release: Option<Release>) {
        self.node(at).by_hash = false;
        match place.and_then(|place| self.entries.get_mut(place)) {
            Some(entry) => entry.asked.remove(at),
            None if mutant(23) => {}
            None => release
                .into_iter()
                .for_each(|release| self.node(at).owe(release)),
        }
    }

    /// The place of an operation that is still open to votes.
    fn place(&self, ticket: Ticket) -> Option<usize> {
        let entry = self.entries.get(ticket.place)?;
        let same = entry.number == ticket.number || mutant(5);
        let open = entry.state == State::Open;
        (same && open).then_some(ticket.place)
    }

    /// A node has voted on an operation. False: the connection is finished.
    fn vote(&mut self, place: usize, at: usize, vote: Vote, now: Instant) -> bool {
        let Some(entry) = self.entries.get_mut(place) else {
            return true;
        };
        let complaint = match &vote {
            Vote::Failed { cause, .. } => Some(Arc::new(cause.clone())),
            _ => None,
        };
        let reports = entry.is_acquire().then_some(complaint);
        let mut alive = true;
        match vote {
            Vote::Granted => {
                entry.votes.grant(at);
                if mutant(9) {
                    entry.votes.grant(at + 1);
                }
            }
            // It may have been carried out just before the first connection closed.
            Vote::Refused if entry.is_release() && entry.again.has(at) => {
                entry.fail(at, &Arc::new(Cause::Closed("before it answered".into())));
            }
            Vote::Refused if mutant(8) && !entry.is_acquire() => entry.votes.grant(at),
            Vote::Refused => entry.votes.refuse(at),
            Vote::Failed { cause, .. } => entry.fail(at, &Arc::new(cause)),
            Vote::Sever(cause) => {
                let failed = Arc::new(cause.clone());
                entry.again.add(at);
                entry.severed(at, &failed);
                self.sever(at, cause, now);
                alive = false;
            }
        }
        if alive && let Some(complaint) = reports {
            self.report(at, complaint);
        }
        self.judge(place, now);
        alive
    }

    fn note(&mut self, event: Event) {
        // Nobody may be there to say them.
        if self.events.len() < MAX_EVENTS {
            self.events.push(event);
        }
    }

    /// A node that is here gives votes, or a reason why not.
    fn report(&mut self, at: usize, complaint: Option<Arc<Cause>>) {
        let node = self.node(at);
        match (complaint, node.reported) {
            (Some(cause), Reported::Well) => {
                node.reported = Reported::GivesNoVotes;
                self.note(Event::GivesNoVotes { node: at, cause });
            }
            (None, Reported::GivesNoVotes) => {
                node.reported = Reported::Well;
                self.note(Event::VotesAgain { node: at });
            }
            _ => {}
        }
    }

    // ---- the nodes

    /// A node's connection is finished. Each pending vote fails, or may be asked for again; each pending
    /// release is due again; the rest is dropped.
    fn sever(&mut self, at: usize, cause: Cause, now: Instant) {
        let cause = Arc::new(cause);
        let was = self.link(at);
        self.here.remove(at);
        let pending = self.node(at).sever(now);
        for what in pending {
            let (ticket, release) = match what {
                Pending::Vote(ticket) => (Some(ticket), None),
                Pending::Release {
                    release, ticket, ..
                } => (ticket, Some(release)),
                Pending::Ping => continue,
            };
            let place = ticket.and_then(|ticket| self.place(ticket));
            match place.and_then(|place| self.entries.get_mut(place)) {
                Some(entry) if entry.is_open() => entry.severed(at, &cause),
                _ if mutant(6) => {}
                _ => release
                    .into_iter()
                    .for_each(|release| self.node(at).owe(release)),
            }
        }
        for entry in &mut self.entries {
            entry.undo.remove(at);
        }
        if let Cause::Closed(_) = *cause {
            // Where one connection was closed others may be too.
            for node in self.nodes.iter_mut().filter(|node| node.is_here()) {
                node.look = true;
            }
        }
        match was {
            Link::Coming => self.tried(at, cause, now),
            _ => self.away(at, cause, now),
        }
    }

    /// A node did not answer within its time. Its connection is kept.
    fn silence(&mut self, at: usize, now: Instant) {
        let cause = Arc::new(Cause::Silent(self.node_timeout));
        let pause = self.node(at).pause();
        let retry_at = now + self.jitter(pause);
        self.node(at).silence(retry_at);
        self.here.remove(at);
        for entry in &mut self.entries {
            if entry.asked.has(at) {
                entry.fail(at, &cause);
            }
        }
        self.away(at, cause, now);
    }

    /// A try to connect has failed.
    fn tried(&mut self, at: usize, cause: Arc<Cause>, now: Instant) {
        let pause = self.node(at).pause();
        let retry_at = now + self.jitter(pause);
        let closed = self.closed_at.is_some();
        self.node(at).tried(retry_at, closed);
        for entry in self.entries.iter_mut().filter(|entry| entry.is_open()) {
            if !entry.asked.has(at) {
                entry.fail(at, &cause);
            }
        }
        self.away(at, cause, now);
    }

    fn away(&mut self, at: usize, cause: Arc<Cause>, now: Instant) {
        let node = self.node(at);
        node.cause = Some(cause.clone());
        if node.reported != Reported::Away {
            node.reported = Reported::Away;
            self.note(Event::Away { node: at, cause });
        }
        self.changed(now);
    }

    /// A node went or came: which votes can still be expected has changed.
    fn changed(&mut self, now: Instant) {
        let twin = |cause: &Arc<Cause>| matches!(**cause, Cause::SameServer(_));
        let is_twin = |node: &Node| node.cause.as_ref().is_some_and(twin);
        self.twins = self.nodes.iter().any(is_twin);
        self.news = true;
        self.judge_all(now);
    }

    /// Time is over for some operations.
    fn expire(&mut self, now: Instant) {
        let here = self.here;
        let mut silent = NodeSet::EMPTY;
        for entry in self.entries.iter_mut().filter(|entry| entry.is_open()) {
            if entry.begun.is_some() && entry.until <= now {
                silent = silent.or(entry.owing().and(here));
            }
            if entry.begun.is_some() && entry.ends() <= now
                || entry.op.until.is_some_and(|until| until <= now)
            {
                entry.late = true;
            }
        }
        for at in silent.iter() {
            if !self.node(at).fragile {
                self.silence(at, now);
            }
        }
        for entry in &mut self.entries {
            if !entry.late || !entry.is_open() {
                continue;
            }
            let waited = now.saturating_duration_since(entry.submitted);
            let late = Arc::new(Cause::Silent(waited));
            let trying = Arc::new(Cause::NotConnected(waited));
            for (at, node) in self.nodes.iter().enumerate() {
                if !node.is_here() {
                    entry.fail(at, node.cause.as_ref().unwrap_or(&trying));
                } else if entry.asked.has(at) {
                    entry.fail(at, &late);
                } else {
                    // It would have been asked if the others had sufficed.
                    entry.votes.fail(at);
                }
            }
        }
        self.changed(now);
    }

    // ---- verdicts

    fn judge_all(&mut self, now: Instant) {
        for place in 0..self.entries.len() {
            self.judge(place, now);
        }
    }

    /// Ends an operation whose verdict is certain. A failed acquire ends with its undo.
    fn judge(&mut self, place: usize, now: Instant) {
        let (here, count) = (self.here, self.nodes.len());
        let Some(entry) = self.entries.get_mut(place).filter(|entry| entry.is_open()) else {
            return;
        };
        // While it waits for first connections: an error names every cause.
        if entry.begun.is_none() && !entry.late {
            return;
        }
        let acquire = entry.is_acquire();
        let verdict = if self.twins && acquire && entry.asked.is_empty() {
            Verdict::Unavailable
        } else if let Some(verdict) = entry.verdict(here, count) {
            verdict
        } else {
            return;
        };
        // Granted by nobody yet: whoever answers as promptly as the others is waited for. Of contenders of
        // whom none has a quorum, those with a vote must know of it, and try again.
        let unsure = verdict == Verdict::No && entry.votes.granted.is_empty() && !mutant(21);
        if acquire && unsure && self.prompt && !entry.owing().and(here).is_empty() {
            return;
        }
        if acquire && verdict != Verdict::Yes {
            entry.state = State::Undoing(verdict);
            self.undo(place, now);
        } else {
            self.finish(place, verdict, now);
        }
    }

    /// The releases of a failed acquire: behind its SETs, for each node that did not deny (rules R6, R7).
    fn undo(&mut self, place: usize, now: Instant) {
        let Some(entry) = self.entries.get_mut(place) else {
            return;
        };
        let undo = if mutant(3) {
            entry.votes.granted
        } else {
            entry.asked.without(entry.votes.refused)
        };
        let release = entry.release(now);
        for at in undo.iter() {
            let Some(node) = self.nodes.get_mut(at) else {
                continue;
            };
            node.owe(release.clone());
            if node.takes_releases() {
                entry.undo.add(at);
            }
        }
    }

    /// What only had to be written is.
    fn finish_written(&mut self, place: usize, now: Instant) {
        let asked = self.entries.get(place).map_or(0, |entry| entry.asked.len());
        let verdict = if asked >= majority(self.nodes.len()) {
            Verdict::Yes
        } else {
            Verdict::Unavailable
        };
        self.finish(place, verdict, now);
    }

    fn finish(&mut self, place: usize, verdict: Verdict, now: Instant) {
        let count = self.nodes.len();
        let Some(entry) = self.entries.get_mut(place) else {
            return;
        };
        entry.state = State::Free;
        if entry.is_release() {
            // It is due where it was not written, or not on a connection that lives.
            let concerned = NodeSet::first(count).and(entry.op.key.asked);
            for at in concerned.without(entry.asked).iter() {
                if let Some(node) = self.nodes.get_mut(at) {
                    node.owe(entry.release(now));
                }
            }
        }
        let outcome = match verdict {
            Verdict::Yes => Outcome::Yes(entry.asked),
            Verdict::No => Outcome::No,
            Verdict::Unavailable => Outcome::Unavailable {
                errors: errors(entry, &self.nodes),
                closed: entry.is_acquire() && entry.failed_by_closing(count),
            },
        };
        let answer = Answer {
            outcome,
            tally: entry.votes,
            causes: std::mem::take(&mut entry.causes),
            begun: entry.begun.unwrap_or(now),
        };
        if let Some(who) = entry.who.take() {
            self.answers.push((who, answer));
        }
    }

    /// After a panic of the leader, which only a bug can be: what was written is not known any more.
    pub(crate) fn recover(&mut self, held: NodeSet, now: Instant) {
        for at in held.iter() {
            let cause = "a thread panicked while it used it".into();
            self.sever(at, Cause::Closed(cause), now);
        }
        for place in 0..self.entries.len() {
            let open = |entry: &&Entry<W>| entry.state != State::Free;
            if self.entries.get(place).filter(open).is_some() {
                self.undo(place, now);
                self.finish(place, Verdict::Unavailable, now);
            }
        }
    }

    // ---- the attendants

    /// A thread was started for a node, or could not be.
    pub(crate) fn attended(&mut self, at: usize, result: Result<(), Cause>, now: Instant) {
        let node = self.node(at);
        match result {
            Ok(()) => node.attended = true,
            Err(cause) => {
                let cause = Arc::new(cause);
                node.unattended = true;
                for entry in self.entries.iter_mut().filter(|entry| entry.is_open()) {
                    entry.fail(at, &cause);
                }
                self.away(at, cause, now);
            }
        }
    }

    /// What a node's attendant should do.
    pub(crate) fn errand(&mut self, at: usize, now: Instant) -> Errand {
        loop {
            let (closed, connect_timeout) = (self.closed_at, self.connect_timeout);
            match self.node(at).errand(now, closed, connect_timeout) {
                Errand::GiveUp => self.sever(at, Cause::Silent(connect_timeout), now),
                Errand::Home => {
                    self.come_home(at, now);
                    return Errand::Home;
                }
                Errand::Quit => {
                    self.node(at).attended = false;
                    self.news = true;
                    return Errand::Quit;
                }
                errand => return errand,
            }
        }
    }

    fn come_home(&mut self, at: usize, now: Instant) {
        let forgotten = self.node(at).come_home(now);
        self.here.add(at);
        if self.node(at).fragile {
            self.order.keep_lag(at);
        }
        if !self.is_short() {
            self.majority_at.get_or_insert(now);
        }
        // Who comes at the last moment must have time to answer. (A release has one node timeout.)
        for entry in self.entries.iter_mut().filter(|entry| entry.is_open()) {
            let waits = !entry.is_release() && !entry.asked.has(at) && !entry.votes.voted().has(at);
            if let Some(begun) = entry.begun.filter(|_| waits) {
                let latest = (now + self.node_timeout).min(begun + 2 * self.node_timeout);
                entry.until = entry.until.max(latest);
            }
        }
        if self.node(at).reported == Reported::Away {
            self.node(at).reported = Reported::Well;
            self.note(Event::Back {
                node: at,
                forgotten,
            });
        }
        self.changed(now);
    }

    /// A new connection to a node, or why there is none.
    pub(crate) fn connected(&mut self, at: usize, result: Result<Greeting, Cause>, now: Instant) {
        let twin = |greeting: &Greeting| {
            let id = greeting.run_id.as_ref()?;
            let same =
                |(other, node): (usize, &Node)| other != at && node.run_id.as_ref() == Some(id);
            self.nodes.iter().enumerate().position(same)
        };
        let result = result.and_then(|greeting| match twin(&greeting) {
            Some(twin) => Err(Cause::SameServer(twin)),
            None => Ok(greeting),
        });
        match result {
            Ok(greeting) => self.node(at).greeted(greeting),
            Err(cause) => self.tried(at, Arc::new(cause), now),
        }
    }

    /// Nobody needs the nodes any more. What was sent, and releases that are due, have one node timeout.
    pub(crate) fn close(&mut self, now: Instant) {
        self.closed_at = Some(now);
        let due = |(at, node): (usize, &Node)| node.is_due().then_some(at);
        let due = self.nodes.iter().enumerate().filter_map(due).collect();
        self.hurry(due);
        self.news = true;
    }
}

#[cfg(test)]
impl<W> Core<W> {
    /// What is not as it is when all is quiet.
    pub(crate) fn unrest(&self) -> Option<String> {
        let node = self.nodes.iter().find_map(Node::unrest);
        let open = self.longest_waiting().is_some();
        node.or_else(|| open.then(|| "an operation is open".to_owned()))
    }

    /// Whether first connections may have been waited for.
    pub(crate) fn has_waited_for_first(&self, now: Instant) -> bool {
        self.majority_at
            .is_none_or(|at| now < at + 4 * self.node_timeout)
    }
}

/// What the operations under way want.
struct Wants {
    /// Nodes that something is to be sent to.
    send: NodeSet,
    /// Nodes that somebody waits for.
    owing: NodeSet,
    /// Nodes that are not here, and without which there are too few.
    lacking: NodeSet,
    /// When the first operation's time is over.
    ends: Instant,
    open: bool,
}

/// The failed nodes, each with its cause. Nodes that were merely not waited for are not among them.
fn errors<W>(entry: &Entry<W>, nodes: &[Node]) -> NodeErrors {
    let answered = entry.votes.granted.or(entry.votes.refused);
    let mut errors = Vec::new();
    for (at, node) in nodes
        .iter()
        .enumerate()
        .filter(|(at, _)| !answered.has(*at))
    {
        let own = entry.causes.iter().rfind(|(failed, _)| *failed == at);
        let cause = match own {
            Some((_, cause)) => Some(cause),
            None if entry.asked.has(at) => None,
            None => node.cause.as_ref(),
        };
        if let Some(cause) = cause {
            errors.push(NodeError {
                node: at,
                address: node.address.clone(),
                cause: cause.clone(),
            });
        }
    }
    NodeErrors::new(errors)
}
