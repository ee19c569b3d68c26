//! The replies of the nodes, and what becomes of each.

// OK because nodes are never removed, and operations only while nothing refers to them.
#![allow(clippy::indexing_slicing)]

use std::sync::Arc;
use std::time::Instant;

use crate::errors::cause::Cause;
use crate::errors::server_error::Meaning;
use crate::protocol::commands::action::{Action, Notify};
use crate::protocol::commands::resp::Reply;
use crate::protocol::commands::vote::{Denial, NOTIFIED, Vote};
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::node::debt::{Debt, Redirected};
use crate::protocol::node::pending::{Awaited, ReplyClass, SentCommand};
use crate::protocol::quorum::core::Core;
use crate::protocol::quorum::late_grants::stray;
use crate::protocol::quorum::operation::Voted;

impl<W> Core<W> {
    pub(super) fn received(
        &mut self,
        node_index: usize,
        result: Result<&[u8], Cause>,
        now: Instant,
    ) {
        match result {
            Ok([]) => return self.received_nothing(node_index, now),
            Ok(bytes) => self.nodes[node_index].wire_mut().receive(bytes),
            Err(cause) => return self.sever(node_index, cause, now),
        }
        let mut last = None;
        loop {
            let node = &mut self.nodes[node_index];
            let (reply, answers, sent) = match node.next_reply(now) {
                Ok(Some(reply)) => reply,
                Ok(None) => break,
                Err(cause) => return self.sever(node_index, cause, now),
            };
            node.heard(now);
            if let Some(event) = node.take_step(now) {
                self.events.push(node_index, Some(event), now);
                self.gives_no_votes(node_index, now);
            }
            if !self.reply(node_index, reply, answers.sent(), now) {
                return;
            }
            last = Some(sent);
            if self.nodes[node_index].wire().is_read() {
                break;
            }
        }
        if let Some(sent) = last.filter(|_| self.nodes[node_index].is_connected()) {
            self.reader.heard(node_index, sent, now);
        }
    }

    /// Fails a node that has begun to sit out for the operations that were not sent to it: they need not wait for it.
    fn gives_no_votes(&mut self, node: usize, now: Instant) {
        let standing = self.nodes[node].standing(now);
        for operation in self.operations.open_mut() {
            operation.heed(node, &standing, now);
        }
        self.changed(now);
    }

    fn received_nothing(&mut self, node_index: usize, now: Instant) {
        let node = &mut self.nodes[node_index];
        if node.is_replaceable() {
            return self.sever(node_index, self.no_answer(), now);
        }
        if !node.is_connected() {
            return;
        }
        let known = self.reader.found_nothing();
        node.wire_mut().probed(known);
        if let Some(since) = node.wire().pending_since() {
            let age = known.saturating_duration_since(since);
            if age >= self.timeouts.node {
                self.mark_unresponsive(node_index, now);
            } else {
                self.reader.in_vain(node_index, age, now);
            }
        }
        if self.reader.stopped_flowing() {
            self.judge_all(now);
        }
    }

    /// Handles a reply. Returns false if the connection is finished. `command`: the command that it answers. `None`: a
    /// ping.
    fn reply(
        &mut self,
        node: usize,
        reply: Reply,
        command: Option<&SentCommand>,
        now: Instant,
    ) -> bool {
        let Some(command) = command else {
            self.nodes[node].pinged();
            return true;
        };
        let index = command.operation.and_then(|id| self.operations.open(id));
        let late = command.operation.filter(|_| index.is_none());
        let late = late.and_then(|id| self.operations.late.take(id, node));
        let key = match index {
            Some(index) => Some(&self.operations[index].op.key),
            None => command.debt.as_ref().map(|debt| &debt.key),
        };
        let wire = self.nodes[node].wire_mut();
        match wire.class_of(&reply, command, key, &self.operations.prefix) {
            ReplyClass::Vote if late.is_some() => {
                let stray = late.and_then(|key| stray(key, node, reply));
                self.add_debt(node, stray);
            }
            ReplyClass::Vote => return self.answered(node, index, reply, command, now),
            ReplyClass::Redirected(cause) => {
                self.redirected_reply(node, index, cause, command, now)
            }
            ReplyClass::SendAgain(lack) => {
                self.events.lacks(node, lack, now);
                self.send_again(node, index, reply.error(), command);
            }
        }
        true
    }

    /// Handles a reply to a command that the server has carried out, or refuses. Returns false if the connection is
    /// finished.
    fn answered(
        &mut self,
        node: usize,
        index: Option<usize>,
        reply: Reply,
        command: &SentCommand,
        now: Instant,
    ) -> bool {
        let passes = matches!(&reply, Reply::Error(text) if Meaning::of(text).passes());
        if command.awaited == Awaited::AsProbe && !passes {
            self.nodes[node].retry_deferred();
        }
        let shortens = |index| matches!(self.operations[index].op.action, Action::Shorten(_));
        let owed = command.debt.as_ref();
        let sent = owed.filter(|_| index.is_none_or(shortens)).map(Debt::sent);
        let (action, key) = match (index, &command.debt, &sent) {
            (Some(index), ..) => {
                let op = &self.operations[index].op;
                (op.answered(sent.as_ref()), &op.key)
            }
            (None, Some(debt), Some(sent)) => (sent, &debt.key),
            // The operation has ended. An error that ends the connection comes again.
            (None, ..) => return true,
        };
        let vote = action.vote(key, reply);
        if !matches!(vote, Vote::Sever(_)) {
            self.nodes[node].set_useful();
        }
        self.events.notice(node, key, action, &vote, now);
        self.defer(node, &vote, command, now);
        if let Some(index) = index {
            return self.vote(index, node, vote, now);
        }
        match vote {
            Vote::Sever(cause) => {
                let owed = command.debt.clone();
                self.add_debt(node, owed.filter(|_| !mutant(Mutant::DropWithReply)));
                self.sever(node, cause, now);
                false
            }
            Vote::Granted(NOTIFIED) => {
                self.operations
                    .notified_elsewhere
                    .add(command.debt.as_ref());
                true
            }
            _ => true,
        }
    }

    /// Notes that a node has refused how a command was sent, and has done nothing.
    fn send_again(
        &mut self,
        node: usize,
        index: Option<usize>,
        error: &str,
        command: &SentCommand,
    ) {
        match index {
            Some(index) => self.operations[index].sent_to.remove(node),
            None => {
                let unloaded = Meaning::of(error) == Meaning::NoScript;
                let lost = unloaded && mutant(Mutant::DropUnloadedRelease)
                    || !unloaded && mutant(Mutant::DropReleaseWithQueue);
                let owed = command.debt.clone().filter(|_| !lost);
                // Named again, the queue would be refused again: more names have one than are remembered.
                self.add_debt(
                    node,
                    match command.is_refused_for_companions(error) {
                        true => owed.map(|debt| debt.notifying(Notify::None)),
                        false => owed,
                    },
                );
            }
        }
    }

    /// Handles a command that a server has not carried out, since it does not have the key.
    fn redirected_reply(
        &mut self,
        node_index: usize,
        index: Option<usize>,
        cause: Cause,
        command: &SentCommand,
        now: Instant,
    ) {
        self.nodes[node_index].set_useful();
        if command.awaited == Awaited::AsProbe {
            self.nodes[node_index].retry_deferred();
        }
        // An operation that has given the node up already does not heed its answer.
        let heeds = |index: &usize| {
            !self.operations[*index].has_failed(node_index) || mutant(Mutant::GivenUpIsHeeded)
        };
        match index.filter(heeds) {
            Some(index) => {
                self.operations[index].fail(node_index, &Arc::new(cause));
                self.judge(index, &self.view(now), now);
            }
            None => {
                let owed = command.debt.clone();
                let owed = owed.filter(|_| !mutant(Mutant::ReleaseAtOldOwner));
                if let (Some(debt), Cause::Redirected(answer)) = (owed, cause) {
                    let node = node_index;
                    let redirected = Redirected { node, debt, answer };
                    self.redirected.push(redirected);
                }
            }
        }
    }

    /// Defers a command that a server could not carry out now, and would later.
    fn defer(&mut self, node: usize, vote: &Vote, command: &SentCommand, now: Instant) {
        let retries = command.awaited == Awaited::AsProbe;
        let Some(debt) = &command.debt else {
            return;
        };
        match vote {
            // A user without the right to the lock has nothing there. And a lock whose ttl is unknown (another program's, which
            // was to be broken) must not end at any time later.
            Vote::Failed { cause, .. }
                if cause.meaning().concerns_rights()
                    && (!debt.key.sent_to.has(node) || debt.key.longest().is_none()) => {}
            Vote::Failed { later: true, .. } if !(retries && mutant(Mutant::DeferOnce)) => {
                self.nodes[node].defer(debt.clone(), retries, &mut self.rng, now);
                self.all.steady_until = None;
                // The thread that sends it again may be there already, and the node's worker may have to send it.
                self.news = true;
            }
            _ => {}
        }
    }

    /// Counts a node's vote on an operation. Returns false if the connection is finished.
    fn vote(&mut self, index: usize, node: usize, mut vote: Vote, now: Instant) -> bool {
        let operation = &mut self.operations[index];
        let acquire = operation.is_acquire();
        let has_counted = self.nodes.len() == 1 || operation.op.key.counted.has(node);
        if let Vote::Granted(number) = vote
            && operation.needs_master()
            && let Some(cause) = self.nodes[node].withholds(acquire, has_counted, now)
        {
            operation.grants_without_vote(node, number);
            vote = match acquire && mutant(Mutant::StepIsNotUndone) {
                true => Vote::Denied(Denial::Unknown),
                false => Vote::Failed {
                    cause,
                    later: false,
                },
            };
        }
        let complaint = match operation.vote(node, vote) {
            Voted::Well => None,
            Voted::Complained(cause) => Some(cause),
            Voted::Sever(cause) => {
                self.sever(node, cause, now);
                return false;
            }
        };
        if acquire {
            let event = self.nodes[node].voted(complaint);
            self.events.push(node, event, now);
        }
        self.judge(index, &self.view(now), now);
        true
    }
}
