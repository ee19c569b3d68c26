//! Actions on locks, and the keys that name these.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::protocol::commands::companions;
use crate::protocol::commands::dialect::{Beside, Dialect, Names, Scripts};
use crate::protocol::commands::kind::Kind;
use crate::protocol::commands::node_queue::{Channel, QueueEntry, QueueTurn};
use crate::protocol::commands::vote::Proof;
use crate::values::arithmetic::{Question, Ttl};
use crate::values::label::Label;
use crate::values::lock_value::{self, LockValue, Since};
use crate::values::node_set::NodeSet;
use crate::values::prefix::Prefix;
use crate::values::token::Token;

/// An action on a lock, carried out on every node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Acquire(Ttl),
    /// Acquire, or enter the queue, to be notified when the lock is free.
    AcquireOrEnqueue(Ttl, Arc<QueueEntry>),
    /// Extend. The second ttl is for a server that cannot compare times: no less than the holder was granted before,
    /// and than what it still relies on needs.
    Extend(Ttl, Ttl),
    /// Let the lock last no longer than this: its holder has leaked it (rule R55).
    Shorten(Ttl),
    /// Note that the holder has leaked the lock: it relies on it for no longer than this (rule R55).
    Leak(Ttl),
    Release(Notify),
    /// Send the acquire's command once more, to nodes that do not hold what a quorum does (rule R11b).
    Repair(Ttl),
    /// Return a number of at least this (rule R20).
    Fence(u64),
    /// Mark the work of the lock as done, for this number of milliseconds, by this value (rule R80).
    Done(u64, Arc<[u8]>),
    /// Leave the queue. The next waiter gets this reservation, if the lock was reserved for this process, or the
    /// leaving waiter is fair.
    Dequeue(Arc<Channel>, QueueTurn, bool),
    /// Answer: nothing is changed.
    Ping,
}

/// Whether a release notifies the first waiter in another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notify {
    First,
    /// Notify the first, but not this process, which does not wait: if its name is left in the queue, and it ends now,
    /// no waiter would be notified that the lock is free.
    FirstBut(Channel),
    /// Notify the first, and reserve the lock for that waiter.
    FirstAndReserve(QueueTurn),
    /// Notify no waiter: the lock was never held, or goes to a thread of this process.
    None,
}

/// A lock, and the nodes that may have it.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) shared: Arc<SharedKey>,
    /// The nodes that the acquire was sent to, which may have the lock. The release goes to no others, except as the
    /// undo of a failed acquire.
    pub(crate) sent_to: NodeSet,
    /// The nodes whose votes for the lock have counted, and that were not sent it anew since (rule R60).
    pub(crate) counted: NodeSet,
    /// The longest ttl that was requested, as far as this process has seen, in milliseconds. Zero if none was seen.
    longest: u64,
}

/// The part that the copies of a key share. Each operation has a copy, and so has each release that a node is owed.
#[derive(Clone, Debug)]
pub(crate) struct SharedKey {
    pub(crate) resource: Arc<[u8]>,
    pub(crate) token: Token,
    /// When the lock was acquired, and the label: stored after the token on nodes that grant the lock.
    pub(crate) since: Since,
    pub(crate) label: Option<Label>,
    pub(crate) kind: Kind,
}

impl SharedKey {
    /// The length of all names in bytes.
    pub(crate) fn size(&self) -> usize {
        let all = self.kind.names();
        all.map_or(self.resource.len(), |all| {
            all.iter().map(|name| name.len()).sum()
        })
    }
}

impl Deref for Key {
    type Target = SharedKey;

    fn deref(&self) -> &SharedKey {
        &self.shared
    }
}

impl Key {
    /// A lock that no node was asked for yet.
    pub(crate) fn new(resource: Arc<[u8]>, token: Token, label: Option<Label>) -> Key {
        Key::of(SharedKey {
            resource,
            token,
            since: Since::UNKNOWN,
            label,
            kind: Kind::Plain,
        })
    }

    /// A lock with all its parts, for which no node was asked yet.
    pub(crate) fn of(shared: SharedKey) -> Key {
        Key {
            shared: Arc::new(shared),
            sent_to: NodeSet::EMPTY,
            counted: NodeSet::EMPTY,
            longest: 0,
        }
    }

    /// Sets when the lock is acquired, by the wall clock. Where it is resumed, nothing is known of that.
    #[cfg(test)]
    pub(crate) fn since(mut self, wall: std::time::SystemTime) -> Key {
        Arc::make_mut(&mut self.shared).since = Since::of(wall);
        self
    }

    /// The key with this kind. If the kind is new, the key shares nothing with its copies.
    pub(crate) fn of_kind(mut self, kind: Kind) -> Key {
        if self.kind != kind {
            Arc::make_mut(&mut self.shared).kind = kind;
        }
        self
    }

    /// A key for actions that are not about one lock on the resource: its token belongs to no lock.
    pub(crate) fn without_lock(resource: Arc<[u8]>, label: Option<Label>) -> Key {
        Key::new(resource, Token::from_bytes([0; 20]), label)
    }

    /// Sets the nodes that may have the lock.
    pub(crate) fn sent_to(self, sent_to: NodeSet) -> Key {
        Key { sent_to, ..self }
    }

    /// The longest ttl that was requested, if this process has seen any.
    pub(crate) fn longest(&self) -> Option<Duration> {
        (self.longest > 0).then(|| Duration::from_millis(self.longest))
    }

    /// Notes that this ttl was requested, too.
    pub(crate) fn lasting(self, ttl: Ttl) -> Key {
        Key {
            longest: self.longest.max(ttl.millis()),
            ..self
        }
    }

    /// The names that the lock is on.
    pub(crate) fn names(&self) -> Names<'_> {
        let names = match &self.kind {
            Kind::Several { names, .. } => Some(names),
            _ => None,
        };
        (&self.resource, names)
    }

    /// All names that the lock is on, in one list.
    pub(crate) fn all_names(&self) -> Vec<Arc<[u8]>> {
        match &self.kind {
            Kind::Several { names, .. } => names.to_vec(),
            _ => vec![self.resource.clone()],
        }
    }

    /// The member of a set, as far as it is determined, or else the value.
    pub(super) fn holder(&self, scripts: Scripts) -> Vec<u8> {
        let head = self.kind.head().unwrap_or_default();
        [head.as_bytes(), &self.value(scripts)].concat()
    }

    /// The value of the key on a node. Where no scripts run, the whole of it is compared: so it has no time there, which
    /// a process that resumes the lock could not repeat.
    pub(super) fn value(&self, scripts: Scripts) -> LockValue {
        let since = match scripts {
            Scripts::None(_) => Since::UNKNOWN,
            _ => self.since,
        };
        lock_value::pack(&self.token, since, self.label.as_ref())
    }
}

impl Dialect {
    /// Whether a command that was packed for [`Dialect::ALL`] will do.
    #[inline]
    pub(crate) fn is_usual(self, action: &Action) -> bool {
        let Dialect {
            scripts, beside, ..
        } = self;
        (scripts, beside) == (Scripts::ByHash, Beside::All) && !self.is_native(action)
    }

    /// Whether the action is done without a script.
    #[inline]
    pub(crate) fn is_native(self, action: &Action) -> bool {
        let otherwise = matches!(
            action,
            Action::Release(_)
                | Action::AcquireOrEnqueue(..)
                | Action::Dequeue(..)
                | Action::Extend(..)
                | Action::Shorten(_)
                | Action::Leak(_)
        );
        otherwise && matches!(self.scripts, Scripts::None(_))
    }

    /// Whether the action names keys beside the lock that it can do without.
    #[inline]
    pub(crate) fn names_companions(self, action: &Action, key: &Key, prefix: &Prefix) -> bool {
        action.uses_companions(&key.kind)
            && !matches!(self.scripts, Scripts::None(_))
            && match self.beside {
                Beside::All => true,
                Beside::InSlot => !companions::are_in_another_slot(&prefix.key(&key.resource)),
                Beside::None => false,
            }
    }
}

impl Action {
    #[inline]
    pub(crate) fn question(&self) -> Question {
        match self {
            Action::Acquire(_) | Action::AcquireOrEnqueue(..) => Question::Acquire,
            Action::Ping => Question::Answer,
            _ => Question::Held,
        }
    }

    #[inline]
    pub(crate) fn is_release(&self) -> bool {
        matches!(self, Action::Release(_))
    }

    /// The ttl that an acquire asks for.
    #[inline]
    pub(crate) fn acquires_for(&self) -> Option<Ttl> {
        match self {
            Action::Acquire(ttl) | Action::AcquireOrEnqueue(ttl, _) => Some(*ttl),
            _ => None,
        }
    }

    /// Whether the holder has given the lock up.
    #[inline]
    pub(crate) fn ends(&self) -> bool {
        matches!(
            self,
            Action::Release(_) | Action::Shorten(_) | Action::Leak(_)
        )
    }

    /// The proof needed before an answer counts. A key that exists was not lost; and a repair gives no vote.
    #[inline]
    pub(crate) fn needs(&self) -> Proof {
        match self {
            Action::Acquire(_) | Action::AcquireOrEnqueue(..) => Proof::Witness,
            Action::Extend(..) | Action::Fence(_) | Action::Done(..) => Proof::Look,
            _ => Proof::None,
        }
    }

    /// Whether the action concerns keys beside the lock that it can do without, other than the counter.
    #[inline]
    pub(crate) fn uses_companions(&self, kind: &Kind) -> bool {
        match self {
            Action::Release(notify) => *notify != Notify::None,
            Action::Acquire(_) => !kind.row().beside.tries.is_empty(),
            Action::AcquireOrEnqueue(..) | Action::Dequeue(..) => true,
            _ => false,
        }
    }
}
