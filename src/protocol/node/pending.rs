//! The commands whose replies are pending on a connection.

use crate::errors::cause::Cause;
use crate::errors::server_error::refuses_companions;
use crate::protocol::commands::dialect::Lack;
use crate::protocol::commands::vote::Proof;
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::node::debt::Debt;
use crate::protocol::node::witness_proofs::Part;

/// The operation that a reply belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OperationId {
    pub(crate) index: usize,
    /// Distinguishes the operation from others that had the same index.
    pub(crate) number: u64,
}

/// A command whose reply is pending.
pub(crate) enum Pending {
    Ping,
    /// ASKING: the next command is carried out although the server does not own the slot yet.
    Asking,
    /// A look, whose reply shows this fact.
    Look(Part),
    Command(SentCommand),
}

/// The command of an operation, or one that ends a lock.
pub(crate) struct SentCommand {
    pub(crate) operation: Option<OperationId>,
    /// The end of a lock, which is sent again if the connection closes.
    pub(crate) debt: Option<Debt>,
    pub(crate) awaited: Awaited,
    /// Whether the command named keys beside the lock's, which it can do without.
    pub(crate) named: bool,
    /// Whether the command calls a script that is loaded with its first call.
    pub(crate) loads: bool,
    /// The proof needed before the reply counts.
    pub(crate) needs: Proof,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Awaited {
    ByOperation,
    ByNone,
    /// By no operation: a deferred debt sent as a probe. If it succeeds, the rest is sent too.
    AsProbe,
}

/// The meaning of a reply for the command that it answers.
pub(crate) enum ReplyClass {
    /// The server has carried out the command, or refuses it.
    Vote,
    /// The server refused how the command was sent, and has done nothing. Waiters have to do without this.
    SendAgain(Option<Lack>),
    /// The server has done nothing: another server may own the key.
    Redirected(Cause),
}

impl Pending {
    /// Whether this is the end of a lock.
    pub(super) fn is_debt(&self) -> bool {
        let unread = |one: &SentCommand| {
            one.awaited == Awaited::ByOperation && mutant(Mutant::UnreadRelease)
        };
        matches!(self, Pending::Command(command) if command.debt.is_some() && !unread(command))
    }

    /// The command, if this is one.
    pub(crate) fn sent(&self) -> Option<&SentCommand> {
        match self {
            Pending::Command(command) => Some(command),
            _ => None,
        }
    }

    pub(super) fn debt(&self) -> Option<&Debt> {
        self.sent()?.debt.as_ref()
    }

    /// The proof needed before the reply counts.
    pub(super) fn needs(&self) -> Proof {
        match self {
            Pending::Command(command) => command.needs,
            _ => Proof::None,
        }
    }

    pub(super) fn command(self) -> Option<SentCommand> {
        match self {
            Pending::Command(command) => Some(command),
            _ => None,
        }
    }
}

impl SentCommand {
    /// Whether the server refused the command for the keys beside the lock's.
    pub(crate) fn is_refused_for_companions(&self, error: &str) -> bool {
        self.named && refuses_companions(error)
    }
}
