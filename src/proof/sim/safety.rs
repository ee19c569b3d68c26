//! No two valid locks, and no wrong answer: the checks when an operation ends.

use super::basics::{CONNECT_TIMEOUT, NODE_TIMEOUT, SLACK};
use super::client::{Call, Held};
use super::counts::trace;
use super::world::{Belief, Count, Event, TokenHistory, World};
use crate::protocol::calls::acquire::ASK;
use crate::protocol::calls::lease::Lease;
use crate::protocol::commands::kind::Kind;
use crate::protocol::mutants::Promise;
use crate::protocol::quorum::answer::{Answer, Outcome};
use crate::values::node_set::NodeSet;

impl World {
    /// An operation ends within its time, unless the process was stopped.
    pub(super) fn in_time(&mut self, c: usize, thread: usize, bound: u64) {
        let thread = &self.clients[c].threads[thread];
        let client = &self.clients[c];
        let stood = client.clocks.stands_until > thread.since;
        // Whether the operation was one of those that wait for first connections.
        let first = client.core.majority_at().is_none_or(|at| {
            let at = client.clocks.time(at);
            thread.since <= at + NODE_TIMEOUT + SLACK
        });
        let bound = if first {
            bound + CONNECT_TIMEOUT + NODE_TIMEOUT
        } else {
            bound
        };
        let took = self.t - thread.since;
        self.check(Promise::InTime, stood || took <= bound + SLACK, || {
            format!("client {c}: an operation took {took} us")
        });
    }

    /// A program that may cancel is asked again behind each attempt and each 50 ms of a wait, also of one for first connections.
    pub(super) fn asked_in_time(&mut self, c: usize, thread: usize, call: &Call) {
        let stood = self.clients[c].clocks.stands_until > self.clients[c].threads[thread].since;
        let took = self.t - self.clients[c].threads[thread].asked;
        let ask = u64::try_from(ASK.as_micros()).unwrap();
        let bound = ask + 2 * NODE_TIMEOUT + SLACK;
        let asks = call.request.must_ask && !stood;
        self.check(Promise::Bounds, !asks || took <= bound, || {
            format!("client {c}: thread {thread} has not asked its program for {took} us")
        });
    }

    /// A try has enough answers; if it failed, its releases are written behind it.
    pub(super) fn try_is_sound(&mut self, c: usize, token: usize, answer: &Answer) {
        let (votes, quorum) = (answer.tally, self.quorum());
        let no = matches!(answer.outcome, Outcome::No);
        self.check(
            Promise::SoundAnswer,
            !no || votes.granted.len() + votes.denied.len() >= quorum,
            || format!("client {c}: no with fewer than {quorum} answers"),
        );
        if !matches!(answer.outcome, Outcome::Yes(_)) {
            self.undone(c, token, no);
        }
        self.is_hopeless(c, token, &answer.outcome);
    }

    /// An acquire fails for good only if servers refuse that leave no quorum.
    fn is_hopeless(&mut self, c: usize, token: usize, outcome: &Outcome) {
        let Outcome::Unavailable {
            errors,
            closed,
            useless,
            unsent,
        } = outcome
        else {
            return;
        };
        let sent = self.checks.tokens[token].set_sent;
        let sent = sent.iter().any(Option::is_some);
        self.check(Promise::SoundAnswer, !unsent || !sent, || {
            format!("client {c}: {token} was sent, and reported as unsent")
        });
        let forbidden = self.checks.tokens[token].on.forbidden;
        let (hopeless, named) = (errors.is_permanent(), errors.iter().count());
        self.counts[Count::Permanent] += u64::from(hopeless);
        let spare = self.servers.len() - self.quorum();
        self.check(
            Promise::SoundAnswer,
            named > spare || *closed || *useless,
            || format!("client {c}: {token} failed, and only {named} nodes are named: {errors}"),
        );
        self.check(
            Promise::SoundAnswer,
            !hopeless || forbidden.len() > spare,
            || format!("client {c}: {token} is hopeless, but only {forbidden:?} do not permit it"),
        );
    }

    /// A try that failed: its releases are written, behind its acquires.
    fn undone(&mut self, c: usize, token: usize, no: bool) {
        self.agenda.order += 1;
        self.checks.tokens[token].freed = Some(self.agenda.order);
        let (quorum, history) = (self.quorum(), &self.checks.tokens[token]);
        let answered = history.on.granted.or(history.on.denied).len();
        let mut wrong = None;
        if no && answered < quorum {
            let what = format!("no, but {answered} nodes have answered");
            wrong = Some((Promise::SoundAnswer, what));
        }
        for node in 0..self.servers.len() {
            let Some(sent) = history.set_sent[node] else {
                continue;
            };
            let behind =
                history.rel_sent[node] == Some(sent) || !self.net.connections[sent].is_open();
            if !behind && !history.on.denied.has(node) {
                let what = format!("the undo of {token} is not written to node {node}");
                wrong = Some((Promise::NothingLeft, what));
            }
        }
        if let Some((promise, wrong)) = wrong {
            self.violated(promise, format!("client {c}: {wrong}"));
        }
    }

    pub(super) fn granted(&mut self, c: usize, thread: usize, token: usize, lease: &Lease) {
        self.counts[Count::Granted] += 1;
        let resource = self.checks.tokens[token].resource;
        if let Some(idle) = self.checks.idle.get_mut(usize::from(resource)) {
            idle.excused = false;
        }
        trace!(self, "client {c} thread {thread} holds {token}");
        let (quorum, all) = (self.quorum(), self.servers.len());
        let granted = self.checks.tokens[token].on.granted.len();
        self.check(Promise::SoundAnswer, granted >= quorum, || {
            format!("client {c}: yes by {granted} nodes")
        });
        let (now, key) = (self.clients[c].clocks.point(self.t), &lease.key);
        self.check(
            Promise::Deadline,
            !lease.deadline.remaining(now).is_zero(),
            || format!("client {c}: granted after its validity"),
        );
        // The first lock of a program lies on all nodes that are well, unless a quorum has granted it before
        // a slow one was asked.
        let well = self.conditions.faultless && !self.conditions.prompt;
        let asked = key.sent_to.and(NodeSet::first(all));
        self.check(Promise::OnAllNodes, !well || asked.len() == all, || {
            format!("client {c}: only {asked:?} of {all} nodes were asked")
        });
        let slot = key.kind.slot();
        let count = match key.kind {
            Kind::Plain | Kind::Stray(_) => None,
            Kind::Permit { .. } => Some(Count::Permits),
            Kind::Read { .. } => Some(Count::Reads),
            Kind::Write(_) => Some(Count::Writes),
            Kind::Several { .. } => Some(Count::Several),
        };
        if let Some(count) = count {
            self.counts[count] += 1;
        }
        self.check(
            Promise::SoundAnswer,
            slot.is_some() == self.conditions.permits().is_some(),
            || format!("client {c}: {token} has the slot {slot:?}"),
        );
        let deadline = lease.deadline;
        self.checks.tokens[token].belief = Some(Belief { deadline, slot });
        self.alone(c, token);
        if slot.is_some() && well {
            let at = self.t + 2 * NODE_TIMEOUT + SLACK;
            self.at(at, Event::InPlace(token));
        }
    }

    /// No other client believes to hold a lock on the same resource, or the same permit; or one of too many.
    fn alone(&mut self, c: usize, token: usize) {
        let resource = self.checks.tokens[token].resource;
        let tokens = &self.checks.tokens;
        let slot = |token: usize| tokens[token].belief.as_ref().and_then(|one| one.slot);
        let is_live = |other: &usize| {
            tokens[*other].belief.as_ref().is_some_and(|belief| {
                let now = self.clients[tokens[*other].client].clocks.point(self.t);
                !belief.deadline.remaining(now).is_zero()
            })
        };
        let conflicts = |other: &usize| *other != token && self.conflict(*other, token);
        let others = (0..tokens.len()).filter(is_live).filter(conflicts);
        let most = self.conditions.permits().map_or(0, |permits| permits - 1);
        let beyond = others.clone().nth(usize::from(most));
        let same_slot = others.clone().find(|other| slot(*other) == slot(token));
        if let Some(other) = same_slot.or(beyond).filter(|_| !self.checks.lossy) {
            let client = tokens[other].client;
            let what = format!("clients {client} ({other}) and {c} ({token}) hold {resource}");
            self.violated(Promise::OneHolder, what);
        }
    }

    /// Whether two locks exclude each other.
    fn conflict(&self, a: usize, b: usize) -> bool {
        let (a, b) = (&self.checks.tokens[a], &self.checks.tokens[b]);
        let shared = (0..=u8::MAX).any(|name| a.covers(name) && b.covers(name));
        let read = |one: &TokenHistory| matches!(one.kind, Kind::Read { .. });
        shared && !(read(a) && read(b))
    }

    /// A quorum has extended the lock. `valid`: before the old deadline.
    pub(super) fn is_extended(&mut self, c: usize, held: &Held, valid: bool) {
        self.counts[Count::Extended] += 1;
        let (token, quorum) = (held.token, self.quorum());
        let yes = self.checks.tokens[token].on.extended;
        self.check(Promise::SoundAnswer, yes.len() >= quorum, || {
            format!("client {c}: extended by {yes:?}")
        });
        self.check(Promise::Deadline, valid, || {
            format!("client {c}: {token} is extended after its deadline")
        });
        self.alone(c, token);
        if let Some(belief) = &mut self.checks.tokens[token].belief {
            let before = std::mem::replace(&mut belief.deadline, held.lease.deadline);
            let now = self.clients[c].clocks.point(self.t);
            let shortens = before.is_later(held.lease.deadline, now);
            self.check(Promise::Deadline, !shortens, || {
                format!("client {c}: {token} is valid for less after its extension")
            });
        }
    }

    /// The lock's holder has learned that it is lost. `valid`: before the deadline.
    pub(super) fn is_lost(&mut self, c: usize, token: usize, valid: bool) {
        self.counts[Count::Lost] += 1;
        let no = self.checks.tokens[token].on.not_held;
        let spare = self.servers.len() - self.quorum();
        self.check(Promise::SoundAnswer, !valid || no.len() > spare, || {
            format!("client {c}: lost, but only {no:?} no longer hold it")
        });
        self.checks.tokens[token].belief = None;
    }

    /// Fencing numbers are distinct, and larger than all that were given out before this one was asked for.
    pub(super) fn fenced(&mut self, c: usize, held: &Held, number: u64, since: u64) {
        self.counts[Count::Fenced] += 1;
        let now = self.clients[c].clocks.point(self.t);
        self.check(Promise::Deadline, !held.lease.left(now).is_zero(), || {
            format!("client {c}: {number} was given out after the deadline")
        });
        let resource = self.checks.tokens[held.token].resource;
        let wrong = self.checks.fences.iter().find(|(of, token, other, at)| {
            *of == resource
                && *token != held.token
                && (*other == number || *at < since && *other > number)
        });
        let wrong = wrong
            .copied()
            .filter(|_| !self.checks.lossy && !self.checks.uncounted);
        self.check(Promise::FenceGrows, wrong.is_none(), || {
            format!("client {c}: {number} of {} after {wrong:?}", held.token)
        });
        self.agenda.order += 1;
        self.checks
            .fences
            .push((resource, held.token, number, self.agenda.order));
    }

    /// A release returns what the nodes have answered.
    pub(super) fn released(&mut self, c: usize, token: usize, only_write: bool, outcome: &Outcome) {
        let (quorum, all) = (self.quorum(), self.servers.len());
        let on = &self.checks.tokens[token].on;
        let (told, gone) = (on.rel, on.not_held);
        let right = match outcome {
            _ if only_write => true,
            Outcome::Yes(_) => told.len() >= quorum,
            Outcome::No => gone.len() > all - quorum,
            Outcome::Unavailable { .. } => {
                !self.conditions.faultless || self.clients[c].clocks.has_hung()
            }
        };
        self.check(Promise::SoundAnswer, right, || {
            format!("client {c}: the release of {token} met {told:?}, of which {gone:?} had none")
        });
    }

    /// A lock that was released is on no node, though nothing followed.
    pub(super) fn is_gone(&mut self, token: usize) {
        let gone_by = self.clients[self.checks.tokens[token].client]
            .forsaken
            .gone_by;
        if gone_by > self.t {
            return self.at(gone_by, Event::Gone(token));
        }
        for (node, server) in self.servers.iter().enumerate() {
            if server.locks(self.t).any(|lock| lock.1 == token) {
                let what = format!("node {node}: {token} is still there, and nothing follows");
                return self.violated(Promise::NothingLeft, what);
            }
        }
    }

    /// A permit that is held is in no other slot on a node whose answers are all read, unless something is due to a node, or the
    /// release of that slot is on its way. On nodes without faults they are read by now, though nothing may have followed.
    pub(super) fn is_in_place(&mut self, token: usize, all: bool) {
        let history = &self.checks.tokens[token];
        let client = &self.clients[history.client];
        let own = history.belief.as_ref().and_then(|belief| belief.slot);
        let is_due = client.core.not_quiescent().is_some() && !all;
        if own.is_none() || is_due || self.conditions.guarded || client.clocks.has_hung() {
            return;
        }
        let owed = client.core.owed_nodes();
        let is_read = |node: &usize| {
            let sent = history.set_sent[*node].map(|sent| &self.net.connections[sent]);
            sent.is_some_and(|sent| all || sent.is_answered() && !owed.has(*node))
        };
        let stray = (0..self.servers.len()).filter(is_read).find(|node| {
            let mut slots = self.servers[*node].slots(self.t);
            slots.any(|(of, slot)| of == token && Some(slot) != own)
        });
        if let Some(node) = stray {
            self.violated(
                Promise::NothingLeft,
                format!("node {node}: {token} is in another slot than {own:?}"),
            );
        }
    }

    /// A lock that a server has although it was shortened, long after its time, and a process is there that owes the
    /// shortening. (If the server does not permit it, the lock ends with its ttl.)
    pub(super) fn not_shortened(&self) -> Option<usize> {
        let is_there = |token: usize| {
            let forbidden = self.checks.tokens[token].on.forbidden;
            let servers = self.servers.iter().enumerate();
            let mut servers = servers.filter(|(node, _)| !forbidden.has(*node));
            servers.any(|(_, server)| server.locks(self.t).any(|lock| lock.1 == token))
        };
        let is_shortened = |token: &usize| {
            let history = &self.checks.tokens[*token];
            history.shortened && !self.clients[history.client].dead
        };
        let mut shortened = (0..self.checks.tokens.len()).filter(is_shortened);
        shortened.find(|token| is_there(*token))
    }
}
