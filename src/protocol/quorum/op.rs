//! A request to all nodes.

use std::sync::Arc;
use std::time::Instant;

use crate::protocol::commands::action::{Action, Key};
use crate::protocol::commands::kind::Kind;
use crate::protocol::commands::node_queue::{Channel, QueueTurn};
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::node::debt::Debt;
use crate::values::arithmetic::Question;
use crate::values::endpoint::Endpoint;
use crate::values::label::Label;
use crate::values::node_set::NodeSet;

/// A request to all nodes.
#[derive(Clone)]
pub(crate) struct Op {
    pub(crate) action: Action,
    pub(crate) key: Key,
    /// When the operation was first wanted, if that is before it was submitted.
    pub(crate) since: Option<Instant>,
    /// When an answer becomes useless, if that is before the operation's own time ends.
    pub(crate) until: Option<Instant>,
    /// When the program is asked whether to go on, while an acquire waits for first connections and is not sent.
    pub(crate) first_wait: Option<FirstWait>,
    /// Whether the operation is done as soon as it is written: no thread waits for the answer (for `Drop`).
    pub(crate) only_write: bool,
    /// The nodes that the operation is for.
    pub(crate) nodes: NodeSet,
    /// The only server that the operation may be sent to: it does not have the slot yet, and carries out the operation
    /// all the same. Boxed, since it is rare and operations are moved.
    pub(crate) named: Option<Box<NamedServer>>,
    /// The nodes that may have carried out the end of a lock before it was sent on: there it is no news that they do not
    /// have the lock.
    pub(crate) may_be_done: NodeSet,
}

/// The wait of an attempt for first connections (rule R13b), which its program may end: nothing was sent by then.
#[derive(Clone, Copy)]
pub(crate) struct FirstWait {
    /// When the attempt began. Its connections have their time from then on.
    pub(crate) since: Instant,
    /// When the program is asked.
    pub(crate) asks: Instant,
}

/// The server that a slot is migrating to, as the slot's owner named it.
#[derive(Clone)]
pub(crate) struct NamedServer {
    pub(crate) server: Endpoint,
    /// When the server that has the slot was asked.
    pub(crate) at: Instant,
}

impl Op {
    /// The action that a node's reply answers: `sent` if that, written late, took the place of a shortening (which is a
    /// release by then).
    pub(crate) fn answered<'a>(&'a self, sent: Option<&'a Action>) -> &'a Action {
        match (&self.action, sent) {
            (Action::Shorten(_), Some(sent)) => sent,
            (action, _) => action,
        }
    }

    pub(crate) fn new(action: Action, key: Key) -> Op {
        Op {
            action,
            key,
            since: None,
            until: None,
            first_wait: None,
            only_write: false,
            nodes: NodeSet::ALL,
            named: None,
            may_be_done: NodeSet::EMPTY,
        }
    }

    pub(crate) fn ping() -> Op {
        Op::new(Action::Ping, Key::without_lock(Arc::from(&[][..]), None))
    }

    /// Removes a waiter from the queues for a resource.
    pub(crate) fn dequeue(
        (resource, kind): (Arc<[u8]>, Kind),
        (channel, label): (Channel, Option<Label>),
        turn: QueueTurn,
        fair: bool,
    ) -> Op {
        let action = Action::Dequeue(Arc::new(channel), turn, fair);
        Op::new(action, Key::without_lock(resource, label).of_kind(kind))
    }

    pub(crate) fn since(self, since: Instant) -> Op {
        Op {
            since: Some(since),
            ..self
        }
    }

    pub(crate) fn until(self, until: Option<Instant>) -> Op {
        Op { until, ..self }
    }

    pub(crate) fn first_wait(self, first_wait: Option<FirstWait>) -> Op {
        Op { first_wait, ..self }
    }

    pub(crate) fn only_write(self, only_write: bool) -> Op {
        Op { only_write, ..self }
    }

    pub(crate) fn to(self, nodes: NodeSet) -> Op {
        Op { nodes, ..self }
    }

    #[inline]
    pub(crate) fn is_acquire(&self) -> bool {
        self.action.question() == Question::Acquire
    }

    /// Whether the operation enters the queues of a lock that is held.
    pub(crate) fn enqueues(&self) -> bool {
        matches!(self.action, Action::AcquireOrEnqueue(..))
    }

    /// The debt to a node that does not carry out the operation, if it ends a lock. `submitted`: when the operation was
    /// submitted, at the earliest.
    #[inline]
    pub(crate) fn debt(&self, submitted: Instant) -> Option<Debt> {
        match self.action {
            Action::Release(notify) => Some(Debt::release(self.key.clone()).notifying(notify)),
            Action::Shorten(ttl) if !mutant(Mutant::OweNoShortening) => {
                let left_until = self.since.unwrap_or(submitted) + ttl.duration();
                Some(Debt::shortening(self.key.clone(), left_until))
            }
            _ => None,
        }
    }

    /// The operation for a server that was named, under this name.
    pub(crate) fn at(mut self, server: &Endpoint) -> Op {
        if let Some(named) = &mut self.named
            && !mutant(Mutant::NameOfRedirect)
        {
            named.server = server.clone();
        }
        self
    }

    /// Sets the server that was named ([`Op::named`]).
    pub(crate) fn named(self, named: Option<NamedServer>) -> Op {
        let named = named.map(Box::new);
        Op { named, ..self }
    }
}
