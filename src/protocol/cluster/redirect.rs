//! Operations that follow their keys from server to server of a Redis Cluster (rule R45).
//!
//! ```text
//!           ┌── MOVED, TRYAGAIN ──▶ Owner: the server that owns the slot now
//!   answer ─┼── ASK ──────────────▶ Importer: the server that the slot is migrating to, after ASKING
//!           └── anything else ────▶ Nowhere: the answer counts
//! ```
//!
//! Operations that a caller waits for, releases that no call waits for, and questions beside the locks are redirected like
//! that, each within its own [`Hops`].

use std::time::{Duration, Instant};

use crate::errors::cause::Cause;
use crate::errors::redirection::{Hint, Redirection};
use crate::protocol::commands::action::{Action, Key, Notify};
use crate::protocol::commands::kind::Kind::{Permit, Plain, Read, Several, Stray, Write};
use crate::protocol::commands::lock_info::LockInfo;
use crate::protocol::discovery::found_master::REDIRECT_BELIEVED;
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::node::debt::Debt;
use crate::protocol::quorum::answer::{Answer, Outcome};
use crate::protocol::quorum::op::{NamedServer, Op};
use crate::values::endpoint::Endpoint;
use crate::values::node_set::NodeSet;

/// How often an operation is sent on that a caller waits for.
const MOST: u32 = 5;
/// The pause before an operation is sent on again: until both servers agree on the slot's owner, each may name the
/// other one.
pub(super) const PAUSE: Duration = Duration::from_millis(5);
/// The longest pause of a release that no call waits for, and how long it is sent on. Then its key ends with its ttl.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
const OWED: Duration = Duration::from_secs(10);

/// How often, and for how long, something is sent on.
#[derive(Clone, Debug)]
pub(crate) struct Hops {
    left: u32,
    until: Instant,
    pause: Duration,
    longest: Duration,
}

impl Hops {
    /// The bounds for a caller that waits until then.
    pub(crate) fn waited(until: Instant) -> Hops {
        Hops {
            left: MOST,
            until,
            pause: Duration::ZERO,
            longest: PAUSE,
        }
    }

    /// The bounds for a release that no call waits for.
    pub(crate) fn of_debt(now: Instant) -> Hops {
        Hops {
            left: u32::MAX,
            until: now + OWED,
            pause: Duration::ZERO,
            longest: LONGEST_PAUSE,
        }
    }

    /// The pause before the next hop. `None`: there is none.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Duration> {
        let is_over = self.left == 0 || now >= self.until;
        if is_over && !mutant(Mutant::EndlessRedirects) {
            return None;
        }
        self.left = self.left.saturating_sub(1);
        let next = (self.pause * 2).clamp(PAUSE, self.longest);
        Some(std::mem::replace(&mut self.pause, next))
    }
}

/// A question beside the locks about keys in one slot, which follows them as an operation does that a caller waits for.
pub(crate) struct RedirectedQuestion {
    slot: u16,
    hops: Hops,
}

/// Where such a question goes next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum QuestionHop<'a> {
    /// To the slot's owner, which is at this address, or where the map has it.
    Owner(Option<&'a Endpoint>),
    /// To the server that the slot is migrating to, after ASKING.
    Importer(&'a Endpoint),
}

impl RedirectedQuestion {
    pub(crate) fn new(slot: u16, until: Instant) -> RedirectedQuestion {
        let hops = Hops::waited(until);
        RedirectedQuestion { slot, hops }
    }

    /// Where the question goes after a server has answered that, and the pause before. `None`: nowhere.
    pub(crate) fn next<'a>(
        &mut self,
        redirection: &'a Redirection,
        now: Instant,
    ) -> Option<(QuestionHop<'a>, Duration)> {
        let hop = match &redirection.hint {
            _ if !redirection.concerns(self.slot) => return None,
            Hint::Moved(_, to) => QuestionHop::Owner(Some(to)),
            Hint::Nameless(_) | Hint::Torn => QuestionHop::Owner(None),
            Hint::Asks(_, to) => QuestionHop::Importer(to),
            Hint::Unnamed | Hint::Unreadable => return None,
        };
        Some((hop, self.hops.next(now)?))
    }
}

/// Where an operation goes next.
pub(crate) enum NextHop {
    /// Nowhere: the answer counts.
    Nowhere,
    /// To the slot's owner, after a pause.
    Owner { op: Op, pause: Duration },
    /// To the server of the node that the slot is migrating to, after a pause and ASKING.
    Importer {
        op: Op,
        pause: Duration,
        node: usize,
        to: Endpoint,
    },
}

/// An operation that was refused by servers which do not have its key.
pub(crate) struct Redirect {
    op: Op,
    slot: u16,
    /// Whether the operation is for one node, so that what that has not carried out is carried out nowhere.
    alone: bool,
    /// Whether a caller waits for the answer.
    is_waited_for: bool,
    hops: Hops,
    /// The debt to a node that does not carry the operation out, if a caller waits for it.
    debt: Option<Debt>,
    /// Whether the first try would have entered queues.
    enqueues: bool,
}

impl Redirect {
    /// An operation of a caller on this number of nodes, which a server refused, and which began then.
    pub(crate) fn waited(
        op: Op,
        slot: u16,
        nodes: usize,
        (begun, until): (Instant, Instant),
    ) -> Redirect {
        Redirect {
            debt: op.debt(begun),
            enqueues: op.enqueues(),
            op,
            slot,
            alone: nodes == 1,
            is_waited_for: true,
            hops: Hops::waited(until),
        }
    }

    /// The payment of a debt to a node, for which no call waits.
    pub(crate) fn of_debt(node: usize, mut debt: Debt, slot: u16, now: Instant) -> Redirect {
        let only: NodeSet = std::iter::once(node).collect();
        let action = match debt.due(now) {
            Action::Release(_) => Action::Release(alone(&debt.key)),
            shortening => shortening,
        };
        // (Otherwise the release would be written behind it to all nodes that may have the lock.)
        let key = debt.key.sent_to(only);
        Redirect {
            op: Op::new(action, key).since(now).to(only),
            slot,
            alone: true,
            is_waited_for: false,
            hops: Hops::of_debt(now),
            debt: None,
            enqueues: false,
        }
    }

    /// The operation as it is sent to the slot's owner.
    pub(crate) fn op(&self) -> Op {
        self.op.clone().named(None)
    }

    pub(crate) fn slot(&self) -> u16 {
        self.slot
    }

    /// The end of a lock once more, for the servers that have its slot now where others had it when the call began that
    /// acquired the lock: it may have been acquired there, and the end goes behind that (rule R7). `None`: the operation
    /// ends no lock.
    pub(crate) fn behind(op: &Op) -> Option<Op> {
        let action = match op.action {
            _ if !op.action.ends() || mutant(Mutant::ReleaseWhereCallBegan) => return None,
            Action::Release(_) => Action::Release(alone(&op.key)),
            ref shortening => shortening.clone(),
        };
        let op = Op {
            action,
            ..op.clone()
        };
        Some(op.only_write(true).named(None))
    }

    /// The redirects in an answer, each with its node.
    pub(crate) fn redirections_in(
        answer: &Answer,
        slot: u16,
    ) -> impl Iterator<Item = (usize, &Redirection)> {
        let causes = answer.remarks.causes.iter();
        causes.filter_map(move |(node, cause)| match &**cause {
            Cause::Redirected(redirection) if redirection.concerns(slot) => {
                Some((*node, &**redirection))
            }
            _ => None,
        })
    }

    /// Where the operation goes after this answer.
    pub(crate) fn next(&mut self, answer: &Answer, now: Instant) -> NextHop {
        self.note(answer);
        // Any of them will do: the order is that in which the nodes have answered.
        let mut redirections = Redirect::redirections_in(answer, self.slot);
        let goes = redirections
            .find_map(|(node, redirection)| self.goes((node, &redirection.hint), answer, now));
        if let Some(goes) = goes {
            return goes;
        }
        if mutant(Mutant::UnclearIsElsewhere)
            && matches!(answer.outcome, Outcome::Unavailable { closed: true, .. })
            && let Some(pause) = self.hops.next(now)
        {
            return self.owner(pause);
        }
        NextHop::Nowhere
    }

    /// Notes the nodes that may have carried the operation out, although it is sent on: all but those that refused it, or
    /// do not have the key and were sent nothing over a connection that closed before. A caller would be told of a loss.
    fn note(&mut self, answer: &Answer) {
        if !self.is_waited_for || mutant(Mutant::RedirectIsFirstTry) {
            return;
        }
        let failed = |is_elsewhere| {
            let causes = answer.remarks.causes.iter();
            let is_it = |cause: &Cause| matches!(cause, Cause::Redirected(_)) == is_elsewhere;
            let failed = causes.filter(|(_, cause)| is_it(cause));
            failed.map(|(node, _)| *node).collect::<NodeSet>()
        };
        let not_done = failed(true).without(failed(false)).or(answer.tally.denied);
        let may_be_done = self.op.nodes.without(not_done);
        self.op.may_be_done = self.op.may_be_done.or(may_be_done);
    }

    /// The releases, each of a node, that are sent on without a caller after the last answer: even if it counts, each
    /// node must have its release.
    pub(crate) fn debts(&self, answer: &Answer) -> Vec<(usize, Debt)> {
        let redirections = Redirect::redirections_in(answer, self.slot);
        let debts = redirections.filter_map(|(node, _)| Some((node, self.debt.clone()?)));
        debts.collect()
    }

    fn goes(
        &mut self,
        (node, hint): (usize, &Hint),
        answer: &Answer,
        now: Instant,
    ) -> Option<NextHop> {
        // The other nodes are enough.
        if !matches!(answer.outcome, Outcome::Unavailable { .. }) {
            return None;
        }
        // The votes of other nodes are being undone: the next try has another token (rule R2).
        if self.op.is_acquire() && !self.alone && !mutant(Mutant::RedirectKeepsToken) {
            return None;
        }
        match hint {
            Hint::Moved(..) | Hint::Nameless(_) => {
                self.hops.next(now).map(|pause| self.owner(pause))
            }
            // The redirect is too old to be relied on.
            Hint::Asks(..) if self.alone && now > answer.begun + REDIRECT_BELIEVED => {
                self.hops.next(now).map(|pause| self.owner(pause))
            }
            // Nothing was sent, and the slot may have moved on.
            Hint::Unnamed => self.hops.next(now).map(|pause| self.owner(pause)),
            Hint::Asks(_, to) if self.alone => Some(NextHop::Importer {
                pause: self.hops.next(now)?,
                op: self.op.clone().named(Some(NamedServer {
                    server: to.clone(),
                    at: answer.begun,
                })),
                node,
                to: to.clone(),
            }),
            // One of the two servers has the lock's key. The slot's owner reports which: servers before Redis 7 redirect
            // a command although they have some of its keys.
            Hint::Torn if !mutant(Mutant::TornIsFinal) => {
                match with_own_keys(self.op.clone()) {
                    Some(op) => self.op = op,
                    None if self.is_waited_for => return None,
                    None => {}
                }
                self.hops.next(now).map(|pause| self.owner(pause))
            }
            // In the end one server has all keys of the slot.
            _ if !self.is_waited_for => self.hops.next(now).map(|pause| self.owner(pause)),
            Hint::Asks(..) | Hint::Torn | Hint::Unreadable => None,
        }
    }

    /// The operation once more, and the pause before it. `None`: it was sent on often enough.
    pub(crate) fn again(&mut self, now: Instant) -> Option<(Op, Duration)> {
        let pause = self.hops.next(now)?;
        Some((self.op(), pause))
    }

    fn owner(&self, pause: Duration) -> NextHop {
        NextHop::Owner {
            op: self.op(),
            pause,
        }
    }

    /// Completes the last answer: a try that entered no queue reports no holder.
    pub(crate) fn complete(&self, answer: &mut Answer) {
        if self.enqueues && !self.op.enqueues() {
            let refused = answer.tally.denied.len();
            let infos = &mut answer.remarks.make().lock_infos;
            infos.resize_with(refused, LockInfo::default);
        }
    }
}

/// The operation with the lock's keys alone, if it can do without others, and has any. A release notifies no waiter then, and
/// leaves a writer's mark, which ends by itself.
fn with_own_keys(op: Op) -> Option<Op> {
    let action = match op.action {
        Action::Release(notify) if notify != Notify::None => Action::Release(Notify::None),
        Action::AcquireOrEnqueue(ttl, _) if matches!(op.key.kind, Plain | Permit { .. }) => {
            Action::Acquire(ttl)
        }
        _ => return None,
    };
    Some(Op { action, ..op })
}

/// How a release that no call waits for is sent at first. That of a reader, a writer or several names notifies a waiter.
fn alone(key: &Key) -> Notify {
    match key.kind {
        // (Beside a queue, the script would release whatever slot the token has.)
        Plain | Permit { .. } | Stray(_) => Notify::None,
        Read { .. } | Write(_) | Several { .. } => Notify::First,
    }
}

#[cfg(test)]
mod tests;
