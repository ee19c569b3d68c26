//! The commands of a lock, and the meaning of the replies to them.

use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::errors::cause::Cause;
use crate::errors::secret::Secret;
use crate::errors::server_error::Meaning;
use crate::protocol::commands::ask::{Ask, Named};
use crate::protocol::commands::companions::Companion::{Counter, Done, Queue, Turn as Reservation};
use crate::protocol::commands::companions::{self, Companion};
use crate::protocol::commands::kind::Kind;
use crate::protocol::commands::means::{Beside, Delete, Means, Names, Scripts};
use crate::protocol::commands::queue::{Channel, LockInfo, QueueEntry, QueueTurn};
use crate::protocol::commands::resp::{self, Reply};
use crate::protocol::commands::scripts::{
    ACQUIRE_IN_ORDER, ACQUIRE_OR_ENQUEUE, DEQUEUE, DONE, EXTEND, FENCE, RELEASE,
    RELEASE_AND_NOTIFY, Script,
};
use crate::protocol::commands::vote::{Proof, Refusal, Vote};
use crate::protocol::mutants::{Mutant, mutant};
use crate::values::label::Label;
use crate::values::lock_value::{self, LockValue, Since};
use crate::values::prefix::Prefix;
use crate::values::quorum::{NodeSet, Question, Ttl};
use crate::values::token::Token;

/// An action on a lock, carried out on every node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Acquire(Ttl),
    /// Acquire, or enter the queue, to be notified when the lock is free.
    AcquireOrEnqueue(Ttl, Arc<QueueEntry>),
    /// Extend. The second ttl is for a server that cannot compare times: no less than the holder was granted before.
    Extend(Ttl, Ttl),
    /// Let the lock last no longer than this: its holder has given it up (rule R55).
    Shorten(Ttl),
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
    /// The longest ttl that was requested, as far as this process has seen, in milliseconds. Zero if none was seen.
    longest: u64,
}

/// The part that the copies of a key share. Each operation has a copy, and so has each node that is owed a release.
#[derive(Clone, Debug)]
pub(crate) struct SharedKey {
    pub(crate) resource: Arc<[u8]>,
    pub(crate) token: Token,
    /// When the lock was acquired, and the label: stored after the token on nodes that grant the lock.
    pub(crate) since: Since,
    pub(crate) label: Option<Label>,
    pub(crate) kind: Kind,
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
        let shared = Arc::new(SharedKey {
            resource,
            token,
            since: Since::UNKNOWN,
            label,
            kind: Kind::Plain,
        });
        Key {
            shared,
            sent_to: NodeSet::EMPTY,
            longest: 0,
        }
    }

    /// Sets when the lock is acquired, by the wall clock. Where it is resumed, nothing is known of that.
    pub(crate) fn since(mut self, wall: SystemTime) -> Key {
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
    pub(crate) fn without_lock(resource: Arc<[u8]>) -> Key {
        Key::new(resource, Token::from_bytes([0; 20]), None)
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

    /// The value of the key on a node. Where no scripts run, the whole of it is compared: so it has no time there, which
    /// a process that resumes the lock could not repeat.
    fn value(&self, scripts: Scripts) -> LockValue {
        let since = match scripts {
            Scripts::None(_) => Since::UNKNOWN,
            Scripts::ByHash | Scripts::ByText => self.since,
        };
        lock_value::pack(&self.token, since, self.label.as_ref())
    }
}

impl Means {
    /// Whether a command that was packed for [`Means::ALL`] will do.
    pub(crate) fn is_usual(self, action: &Action) -> bool {
        let Means {
            scripts, beside, ..
        } = self;
        (scripts, beside) == (Scripts::ByHash, Beside::All) && !self.is_native(action)
    }

    /// Whether the action is done without a script.
    pub(crate) fn is_native(self, action: &Action) -> bool {
        let otherwise = matches!(
            action,
            Action::Release(_)
                | Action::AcquireOrEnqueue(..)
                | Action::Dequeue(..)
                | Action::Extend(..)
                | Action::Shorten(_)
        );
        otherwise && matches!(self.scripts, Scripts::None(_))
    }

    /// Whether the action names keys beside the lock that it can do without.
    pub(crate) fn names_companions(self, action: &Action, key: &Key, prefix: &Prefix) -> bool {
        action.uses_companions(&key.kind)
            && !matches!(self.scripts, Scripts::None(_))
            && match self.beside {
                Beside::All => true,
                Beside::InSlot => !companions::are_elsewhere(&prefix.key(&key.resource)),
                Beside::None => false,
            }
    }
}

impl Action {
    pub(crate) fn question(&self) -> Question {
        match self {
            Action::Acquire(_) | Action::AcquireOrEnqueue(..) => Question::Acquire,
            Action::Ping => Question::Answer,
            _ => Question::Held,
        }
    }

    pub(crate) fn is_release(&self) -> bool {
        matches!(self, Action::Release(_))
    }

    /// The ttl that an acquire asks for.
    pub(crate) fn acquires_for(&self) -> Option<Ttl> {
        match self {
            Action::Acquire(ttl) | Action::AcquireOrEnqueue(ttl, _) => Some(*ttl),
            _ => None,
        }
    }

    /// Whether the holder has given the lock up.
    pub(crate) fn ends(&self) -> bool {
        matches!(self, Action::Release(_) | Action::Shorten(_))
    }

    /// The proof needed before an answer counts. A key that exists was not lost; and a repair gives no vote.
    pub(crate) fn needs(&self) -> Proof {
        match self {
            Action::Acquire(_) | Action::AcquireOrEnqueue(..) => Proof::Witness,
            Action::Extend(..) | Action::Fence(_) | Action::Done(..) => Proof::Look,
            _ => Proof::None,
        }
    }

    /// Whether the action concerns keys beside the lock that it can do without, other than the counter.
    pub(crate) fn uses_companions(&self, kind: &Kind) -> bool {
        match self {
            Action::Release(notify) => *notify != Notify::None,
            Action::Acquire(_) => kind.tries_with_companions(),
            Action::AcquireOrEnqueue(..) | Action::Dequeue(..) => true,
            _ => false,
        }
    }

    /// The request to a node, for a lock that is not plain.
    fn ask(&self, key: &Key) -> Option<Ask> {
        match self {
            _ if key.kind.is_plain() => None,
            Action::Acquire(ttl) => Some(Ask::Acquire(*ttl, None)),
            Action::AcquireOrEnqueue(ttl, entry) => Some(Ask::Acquire(*ttl, Some(**entry))),
            Action::Repair(ttl) => Some(Ask::Refill(*ttl)),
            Action::Extend(ttl, _) => Some(Ask::Extend(*ttl)),
            Action::Shorten(ttl) => Some(Ask::Shorten(*ttl)),
            Action::Release(notify) => Some(Ask::Release {
                undo: *notify == Notify::None,
                but: match notify {
                    Notify::FirstBut(channel) => Some(*channel),
                    _ => None,
                },
            }),
            Action::Fence(at_least) => Some(Ask::Fence(*at_least)),
            Action::Dequeue(channel, ..) => Some(Ask::Leave(**channel)),
            Action::Ping | Action::Done(..) => None,
        }
    }

    /// The script that the connection loads with its first call, if the lock is not plain.
    pub(crate) fn loads(&self, key: &Key) -> Option<usize> {
        key.kind.script(self.ask(key)?).later()
    }

    /// Appends the command to `out`. Here names become keys.
    pub(crate) fn pack(&self, key: &Key, prefix: &Prefix, means: Means, out: &mut Vec<u8>) {
        let named = means.names_companions(self, key, prefix);
        let value = &key.value(means.scripts);
        if let Some(ask) = self.ask(key) {
            let lock = Named {
                resource: &key.resource,
                prefix,
                token: &key.token,
                value,
                companions: named,
            };
            let by_hash = means.scripts == Scripts::ByHash;
            return key.kind.pack(ask, lock, by_hash, out);
        }
        if let Scripts::None(delete) = means.scripts
            && means.is_native(self)
        {
            return self.pack_natively(key, prefix, delete, out);
        }
        let (resource, token): (&[u8], &[u8]) = (&prefix.key(&key.resource), key.token.as_bytes());
        let companions = |all: &'static [Companion]| if named { all } else { &[] };
        let call = Call {
            by_hash: means.scripts == Scripts::ByHash,
            resource,
            out,
        };
        match self {
            Action::Acquire(ttl) | Action::Repair(ttl) => call.set(value, *ttl),
            Action::Ping => resp::pack(call.out, &[&[b"PING"]], None),
            Action::Extend(ttl, _) => call.script(EXTEND, &[], &[token], Some(ttl.millis())),
            Action::Shorten(ttl) => {
                let ttl = ttl.millis().to_string();
                call.script(EXTEND, &[], &[token, ttl.as_bytes()], Some(1));
            }
            Action::Release(Notify::None) => call.script(RELEASE, &[], &[token], None),
            Action::Release(Notify::First) => {
                call.script(RELEASE_AND_NOTIFY, companions(&[Queue]), &[token], None);
            }
            Action::Release(Notify::FirstBut(channel)) => {
                let channel = channel.bytes();
                let args: &[&[u8]] = &[token, &prefix.key(&channel)];
                call.script(RELEASE_AND_NOTIFY, companions(&[Queue]), args, None);
            }
            Action::Release(Notify::FirstAndReserve(turn)) => {
                let (keys, turn) = (companions(WAITING), Some(turn.millis()));
                call.script(RELEASE_AND_NOTIFY, keys, &[token], turn);
            }
            // Without the counter there is no number.
            Action::Fence(at_least) => call.script(FENCE, &[Counter], &[token], Some(*at_least)),
            Action::Done(rest, value) => call.mark_done(token, value, *rest),
            Action::AcquireOrEnqueue(ttl, entry) => {
                call.acquire_or_enqueue(entry, value, *ttl, companions(WAITING), prefix);
            }
            Action::Dequeue(channel, turn, fair) => {
                let (keys, channel) = (companions(WAITING), channel.bytes());
                let args: &[&[u8]] = &[&prefix.key(&channel), if *fair { b"1" } else { b"0" }];
                call.script(DEQUEUE, keys, args, Some(turn.millis()));
            }
        }
    }

    /// Appends the command without a script, as far as possible: there is no queue.
    fn pack_natively(&self, key: &Key, prefix: &Prefix, delete: Delete, out: &mut Vec<u8>) {
        let scripts = Scripts::None(delete);
        let (resource, value): (&[u8], _) = (&prefix.key(&key.resource), key.value(scripts));
        match (self, delete) {
            (Action::Release(_), Delete::IfEq) => {
                resp::pack(out, &[&[b"DELIFEQ", resource, &value]], None);
            }
            (Action::Release(_), Delete::Ex) => {
                resp::pack(out, &[&[b"DELEX", resource, b"IFEQ", &value]], None);
            }
            (Action::Extend(ttl, longest), _) => {
                let ttl = match mutant(Mutant::ShortenNatively) {
                    true => ttl,
                    false => longest,
                };
                Action::Shorten(*ttl).pack_natively(key, prefix, delete, out);
            }
            (Action::Shorten(ttl), _) => {
                let args: &[&[u8]] = &[b"SET", resource, &value, b"IFEQ", &value, b"PX"];
                resp::pack(out, &[args], Some(ttl.millis()));
            }
            (Action::AcquireOrEnqueue(ttl, _), _) => {
                let means = Means {
                    scripts,
                    ..Means::ALL
                };
                Action::Acquire(*ttl).pack(key, prefix, means, out);
            }
            // There is no queue to leave.
            _ => resp::pack(out, &[&[b"PING"]], None),
        }
    }

    /// The vote in a node's reply to this action, for this lock.
    pub(crate) fn vote(&self, key: &Key, reply: Reply) -> Vote {
        let reply = match reply {
            Reply::Error(text) => Reply::Error(Secret::of_token(&key.token).cut(&text)),
            other => other,
        };
        let ask = self.ask(key);
        match (self, reply) {
            (_, reply) if ask.is_some() && !matches!(reply, Reply::Error(_)) => {
                let vote = ask.and_then(|ask| key.kind.vote(ask, &reply));
                vote.unwrap_or_else(|| Vote::Sever(Cause::Garbage(reply.kind().into())))
            }
            (
                Action::Acquire(_) | Action::AcquireOrEnqueue(..) | Action::Repair(_),
                Reply::Okay,
            ) => Vote::Granted(0),
            (Action::Acquire(_) | Action::Repair(_), Reply::Nil) => Vote::Refused(Refusal::Unknown),
            (Action::Extend(..) | Action::Shorten(_), Reply::Int(1) | Reply::Okay)
            | (Action::Done(..), Reply::Int(1)) => Vote::Granted(0),
            (Action::Extend(..) | Action::Shorten(_), Reply::Nil) => {
                Vote::Refused(Refusal::Unknown)
            }
            // Without scripts a node reports nothing about the holder.
            (Action::AcquireOrEnqueue(..), Reply::Nil) => {
                Vote::Refused(Refusal::Held(LockInfo::default()))
            }
            (Action::Release(_), Reply::Int(number @ 1..=2)) => {
                Vote::Granted(number.unsigned_abs())
            }
            (Action::Fence(_), Reply::Int(number @ 1..)) => Vote::Granted(number.unsigned_abs()),
            (Action::Dequeue(..), Reply::Int(_) | Reply::Other) => Vote::Granted(0),
            (Action::Ping, Reply::Other) => Vote::Granted(0),
            // A user without the right to PING may take locks all the same.
            (Action::Ping, Reply::Error(text)) if Meaning::of(&text) == Meaning::NotPermitted => {
                Vote::Granted(0)
            }
            (
                Action::Extend(..)
                | Action::Shorten(_)
                | Action::Release(_)
                | Action::Fence(_)
                | Action::Done(..),
                Reply::Int(number @ -2..=0),
            ) => Vote::not_held(number).unwrap_or(Vote::Refused(Refusal::Unknown)),
            (_, Reply::Error(text)) => Vote::of_error(text, key.kind.names().is_some()),
            (Action::AcquireOrEnqueue(..), other) => match LockInfo::parse(&other) {
                Some(info) => Vote::Refused(Refusal::Held(info)),
                None => Vote::Sever(Cause::Garbage(other.kind().into())),
            },
            (_, other) => Vote::Sever(Cause::Garbage(other.kind().into())),
        }
    }
}

/// The keys that commands of waiters name beside the lock.
const WAITING: &[Companion] = &[Queue, Reservation];

/// The call of a script that is being written.
struct Call<'a> {
    by_hash: bool,
    resource: &'a [u8],
    out: &'a mut Vec<u8>,
}

impl Call<'_> {
    /// Sets the key if it is missing. This is the most frequent command, so its constant parts are written in one
    /// piece.
    fn set(self, value: &[u8], ttl: Ttl) {
        self.out.extend_from_slice(b"*6\r\n$3\r\nSET\r\n");
        resp::argument(self.out, self.resource);
        resp::argument(self.out, value);
        self.out.extend_from_slice(b"$2\r\nNX\r\n$2\r\nPX\r\n");
        resp::number(self.out, ttl.millis());
    }

    fn acquire_or_enqueue(
        self,
        entry: &QueueEntry,
        value: &[u8],
        ttl: Ttl,
        keys: &[Companion],
        prefix: &Prefix,
    ) {
        let (ttl, more) = (ttl.millis().to_string(), entry.arguments());
        let [arrived, waited, lease] = more.each_ref().map(String::as_bytes);
        let channel = entry.channel.bytes();
        let channel = &*prefix.key(&channel);
        let args = [value, ttl.as_bytes(), channel, arrived, waited, lease];
        let (script, turn) = match entry.turn {
            Some(turn) => (ACQUIRE_IN_ORDER, Some(turn.millis())),
            None => (ACQUIRE_OR_ENQUEUE, None),
        };
        self.script(script, keys, &args, turn);
    }

    /// Marks the work as done, by the script's text: it is not loaded.
    fn mark_done(self, token: &[u8], value: &[u8], rest: u64) {
        let call = Call {
            by_hash: false,
            ..self
        };
        call.script(DONE, &[Done], &[token, value], Some(rest));
    }

    /// Calls a script. The keys are the lock and its companions, in this order; the last argument is an optional
    /// number.
    fn script(self, script: Script, companions: &[Companion], args: &[&[u8]], last: Option<u64>) {
        let Call {
            by_hash,
            resource,
            out,
        } = self;
        let (command, script): (&[u8], _) = if by_hash {
            (b"EVALSHA", script.hash)
        } else {
            (b"EVAL", script.text)
        };
        let count = 4 + companions.len() + args.len() + usize::from(last.is_some());
        resp::command(out, count);
        resp::argument(out, command);
        resp::argument(out, script);
        resp::number(out, 1 + companions.len() as u64);
        resp::argument(out, resource);
        for companion in companions {
            resp::joined_argument(out, &companion.key(resource));
        }
        for arg in args {
            resp::argument(out, arg);
        }
        if let Some(last) = last {
            resp::number(out, last);
        }
    }
}

#[cfg(test)]
mod packed;
#[cfg(test)]
mod tests;
