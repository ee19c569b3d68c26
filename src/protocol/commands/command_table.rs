//! The command table: the bytes of each action for each kind of lock, and the votes in the replies.

use std::borrow::Cow;

use Arg::{Bytes, Number};

use crate::errors::cause::Cause;
use crate::errors::secret::Secret;
use crate::errors::server_error::{Meaning, refuses_eval};
use crate::protocol::commands::action::{Action, Key, Notify};
use crate::protocol::commands::companions::Companion::{self, Counter, Done, Queue, Turn};
use crate::protocol::commands::dialect::{Delete, Dialect, Scripts};
use crate::protocol::commands::kind::{Form, Kind, KindCommands, MAX_PERMITS};
use crate::protocol::commands::lock_info::LockInfo;
use crate::protocol::commands::node_queue::{self, Channel, QueueEntry, QueueTurn};
use crate::protocol::commands::resp::{self, Reply};
use crate::protocol::commands::scripts::{ACQUIRE_IN_ORDER, DONE, Script};
use crate::protocol::commands::vote::{Denial, NOTIFIED, OtherUse, Vote};
use crate::protocol::mutants::{Mutant, mutant};
use crate::values::arithmetic::Ttl;
use crate::values::prefix::Prefix;
use crate::values::token::Token;

impl Action {
    /// The script of the action. `None`: the server has a command for it.
    fn script(&self, row: &'static KindCommands) -> Option<&'static Script> {
        match self {
            Action::Acquire(_) => row.acquire.as_ref(),
            Action::AcquireOrEnqueue(..) => Some(&row.enqueue),
            Action::Repair(_) => row.repair.as_ref(),
            Action::Extend(..) | Action::Shorten(_) | Action::Leak(_) => Some(&row.extend),
            Action::Release(Notify::None) => Some(&row.undo),
            Action::Release(_) => Some(&row.release),
            Action::Fence(_) => Some(&row.fence),
            Action::Dequeue(..) => Some(&row.leave),
            Action::Done(..) => Some(&DONE),
            Action::Ping => None,
        }
    }

    /// The script that the connection loads with its first call, if the lock is not plain.
    pub(crate) fn loads(&self, key: &Key) -> Option<usize> {
        match key.kind.is_plain() {
            true => None,
            false => self.script(key.kind.row())?.later(),
        }
    }

    /// Appends the command to `out`. Here names become keys.
    pub(crate) fn pack(&self, key: &Key, prefix: &Prefix, means: Dialect, out: &mut Vec<u8>) {
        if let Scripts::None(delete) = means.scripts
            && key.kind.is_plain()
            && means.is_native(self)
        {
            return self.pack_natively(key, prefix, delete, out);
        }
        let Some(script) = self.script(key.kind.row()) else {
            return match self {
                Action::Acquire(ttl) | Action::Repair(ttl) => {
                    set((key, means.scripts), prefix, *ttl, out);
                }
                _ => resp::pack(out, &[&[b"PING"]], None),
            };
        };
        let (one, several): (_, Vec<_>);
        let keys = match key.kind.names() {
            None => {
                one = [prefix.key(&key.resource)];
                &one[..]
            }
            Some(names) => {
                several = names.iter().map(|name| prefix.key(name)).collect();
                &several
            }
        };
        let call = CommandWriter {
            scripts: means.scripts,
            named: means.names_companions(self, key, prefix),
            key,
            keys,
            prefix,
            out,
        };
        call.action(self, script);
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
                set((key, scripts), prefix, *ttl, out);
            }
            // There is no queue to leave, and no bit to set.
            _ => resp::pack(out, &[&[b"PING"]], None),
        }
    }

    /// The vote in a node's reply to this action, for this lock.
    pub(crate) fn vote(&self, key: &Key, reply: Reply) -> Vote {
        if let Reply::Error(text) = reply {
            let text = Secret::of_token(&key.token).cut(&text);
            let needs = self.needs_scripts(&key.kind);
            return match (self, needs.filter(|_| refuses_eval(&text))) {
                // A user without the right to PING may take locks all the same.
                (Action::Ping, _) if Meaning::of(&text) == Meaning::NotPermitted => {
                    Vote::Granted(0)
                }
                (_, Some(what)) => Vote::Failed {
                    cause: Cause::needs_scripts(what, &text),
                    later: false,
                },
                _ => Vote::of_error(text, key.kind.names().is_some()),
            };
        }
        let vote = match &reply {
            Reply::Int(number) => self.vote_of_number(&key.kind, *number),
            Reply::Bulk(_) if self.acquires_for().is_some() => {
                let tells = !key.kind.is_plain() || !matches!(self, Action::Acquire(_));
                let info = LockInfo::parse(&reply).filter(|_| tells);
                info.map(|info| Vote::Denied(Denial::Held(info)))
            }
            Reply::Other if *self == Action::Ping => Some(Vote::Granted(0)),
            _ if key.kind.is_plain() => self.vote_without_script(&reply),
            _ => None,
        };
        vote.unwrap_or_else(|| Vote::Sever(Cause::Garbage(reply.kind().into())))
    }

    /// The thing that is asked for, if no other commands can give it.
    fn needs_scripts(&self, kind: &Kind) -> Option<&'static str> {
        match (self, kind) {
            (Action::Fence(_), _) => Some("a fencing token"),
            _ if self.acquires_for().is_none() => None,
            (_, Kind::Plain | Kind::Stray(_)) => None,
            (_, Kind::Permit { .. }) => Some("a permit of a semaphore"),
            (_, Kind::Read { .. } | Kind::Write(_)) => Some("a read-write lock"),
            (_, Kind::Several { .. }) => Some("a lock on several names"),
        }
    }

    /// The vote in a script's number. `None`: the script returns no such number.
    fn vote_of_number(&self, kind: &Kind, number: i64) -> Option<Vote> {
        let (plain, acquires) = (kind.is_plain(), self.acquires_for().is_some());
        // The largest number of a node that carries it out.
        let most = match (self, kind) {
            (Action::Dequeue(..), Kind::Plain) => return Some(Vote::Granted(0)),
            (Action::Repair(_), Kind::Plain) | (Action::Ping, _) => return None,
            (_, Kind::Plain) if acquires => return None,
            (_, Kind::Permit { permits, .. }) if acquires => u64::from(*permits),
            // The extended permit may be one of more permits than this process would take.
            (Action::Extend(..) | Action::Shorten(_) | Action::Leak(_), Kind::Permit { .. }) => {
                MAX_PERMITS.into()
            }
            (Action::Release(_) | Action::Dequeue(..), _) => NOTIFIED,
            (Action::Fence(_), _) => u64::MAX,
            _ => 1,
        };
        match (u64::try_from(number), self) {
            (Ok(granted @ 1..), _) if granted > most => None,
            (Ok(1..), Action::Done(..)) => Some(Vote::Granted(0)),
            (Ok(1..), Action::Extend(..) | Action::Shorten(_)) if plain => Some(Vote::Granted(0)),
            (Ok(granted @ 1..), _) => Some(Vote::Granted(granted)),
            _ if acquires => OtherUse::of(number).map(Vote::OtherUse),
            (Ok(_), Action::Repair(_) | Action::Dequeue(..)) => Some(Vote::Denied(Denial::Unknown)),
            (Err(_), Action::Repair(_) | Action::Dequeue(..)) => None,
            _ => Vote::not_held(number),
        }
    }

    /// The vote in the reply of a command without a script, for a plain lock. `None`: it sends no such reply.
    fn vote_without_script(&self, reply: &Reply) -> Option<Vote> {
        match (self, reply) {
            (Action::Dequeue(..) | Action::Leak(_), Reply::Other) => Some(Vote::Granted(0)),
            (Action::Dequeue(..) | Action::Ping, _) => None,
            (Action::Release(_) | Action::Fence(_) | Action::Done(..), _) => None,
            (_, Reply::Okay) => Some(Vote::Granted(0)),
            // Without scripts a node reports nothing about the holder.
            (Action::AcquireOrEnqueue(..), Reply::Nil) => {
                Some(Vote::Denied(Denial::Held(LockInfo::default())))
            }
            (_, Reply::Nil) => Some(Vote::Denied(Denial::Unknown)),
            _ => None,
        }
    }
}

/// Appends SET, which sets the key if it is missing. This is the most frequent command, so its constant parts are
/// written in one piece.
fn set((key, scripts): (&Key, Scripts), prefix: &Prefix, ttl: Ttl, out: &mut Vec<u8>) {
    out.extend_from_slice(b"*6\r\n$3\r\nSET\r\n");
    resp::argument(out, &prefix.key(&key.resource));
    resp::argument(out, &key.value(scripts));
    out.extend_from_slice(b"$2\r\nNX\r\n$2\r\nPX\r\n");
    resp::number(out, ttl.millis());
}

/// An argument of a script.
#[derive(Clone, Copy)]
enum Arg<'a> {
    Bytes(&'a [u8]),
    Number(u64),
}

/// A command that is being written.
struct CommandWriter<'a> {
    scripts: Scripts,
    /// Whether keys beside the lock may be named.
    named: bool,
    key: &'a Key,
    /// The keys of all names that the lock is on.
    keys: &'a [Cow<'a, [u8]>],
    prefix: &'a Prefix,
    out: &'a mut Vec<u8>,
}

impl<'a> CommandWriter<'a> {
    /// Appends the call of an action.
    fn action(mut self, action: &Action, script: &Script) {
        let id = Bytes(self.key.token.as_bytes());
        match action {
            Action::Acquire(ttl) => self.acquire(script, *ttl, None),
            Action::AcquireOrEnqueue(ttl, entry) => self.acquire(script, *ttl, Some(entry)),
            Action::Extend(ttl, _) => self.extend(script, *ttl, None),
            Action::Shorten(ttl) | Action::Leak(ttl) => {
                self.extend(script, *ttl, Some(Number(1)));
            }
            Action::Repair(ttl) => {
                let holder = self.key.holder(self.scripts);
                let args = [id, Bytes(&holder), Number(ttl.millis())];
                self.script(script, &[], &args, None);
            }
            Action::Release(notify) => self.release(script, *notify),
            Action::Fence(at_least) => {
                let is_member = self.key.kind.row().form == Form::Member;
                let member = is_member.then(|| self.key.holder(self.scripts));
                // Without the counter there is no number.
                self.named = true;
                let args = [id, Number(*at_least)];
                self.script(script, &[Counter], &args, member.as_deref().map(Bytes));
            }
            Action::Done(rest, value) => {
                if self.scripts == Scripts::ByHash {
                    // This script is not loaded.
                    self.scripts = Scripts::ByText;
                }
                self.named = true;
                self.script(script, &[Done], &[id, Bytes(value), Number(*rest)], None);
            }
            Action::Dequeue(channel, turn, fair) => self.leave(script, **channel, *turn, *fair),
            Action::Ping => {}
        }
    }

    fn acquire(self, script: &Script, ttl: Ttl, entry: Option<&QueueEntry>) {
        let (kind, row, value) = (
            &self.key.kind,
            self.key.kind.row(),
            self.key.value(self.scripts),
        );
        let beside = match entry {
            Some(_) => row.beside.waits,
            None => row.beside.tries,
        };
        // Without their queues, several names are only tried.
        let entry = entry.filter(|_| self.named || row.form != Form::Names);
        let turn = entry.and_then(|entry| entry.turn);
        let turn = turn.filter(|_| kind.is_plain());
        let waiter = entry.map(|entry| self.waiter(entry.channel));
        let waited = kind.waited().or(entry.map(|entry| entry.waited));
        let writer = kind.writer();
        let mut args = vec![
            Bytes(&value),
            Number(ttl.millis()),
            Bytes(waiter.as_deref().unwrap_or_default()),
            Number(entry.map_or(0, |entry| entry.arrived)),
            Number(waited.unwrap_or_default()),
            Number(entry.map_or(0, |entry| entry.lease)),
        ];
        match kind {
            Kind::Permit { permits, .. } => {
                let numbers = [*permits, preferred(&self.key.token, *permits)];
                args.extend(numbers.map(|number| Number(number.into())));
            }
            Kind::Write(mark) => args.extend([Bytes(writer.as_bytes()), Number(mark.life)]),
            Kind::Several { claims, .. } => {
                let claims = claims.iter().flat_map(|claims| claims.iter());
                let id = |claim: &'a Option<Token>| claim.as_ref().map(Token::as_bytes);
                args.extend(claims.map(|claim| Bytes(id(claim).map_or(&[], |id| &id[..]))));
            }
            Kind::Plain | Kind::Stray(_) | Kind::Read { .. } => {}
        }
        match turn.map(|turn| Number(turn.millis())) {
            None => self.script(script, beside, &args, None),
            turn => self.script(&ACQUIRE_IN_ORDER, beside, &args, turn),
        }
    }

    fn extend(self, script: &Script, ttl: Ttl, shortens: Option<Arg<'_>>) {
        let (key, ttl) = (self.key, Number(ttl.millis()));
        let id = Bytes(key.token.as_bytes());
        match key.kind.row().form {
            Form::Value | Form::Names => self.script(script, &[], &[id, ttl], shortens),
            Form::Member => {
                let holder = key.holder(self.scripts);
                self.script(script, &[], &[id, Bytes(&holder), ttl], shortens);
            }
        }
    }

    fn release(self, script: &Script, notify: Notify) {
        let (key, kind) = (self.key, &self.key.kind);
        let id = Bytes(key.token.as_bytes());
        let beside = match notify {
            Notify::None => &[][..],
            Notify::FirstAndReserve(_) if kind.is_plain() => &[Queue, Turn],
            _ => kind.row().beside.releases,
        };
        let channel = match notify {
            Notify::FirstBut(channel) if self.named || kind.is_plain() => Some(channel.bytes()),
            _ => None,
        };
        let channel = channel.as_ref().map(|channel| self.prefix.key(channel));
        let but = channel.as_deref().map(Bytes);
        match (kind.row().form, notify) {
            (Form::Value, Notify::FirstAndReserve(turn)) => {
                self.script(script, beside, &[id], Some(Number(turn.millis())));
            }
            (Form::Value, _) => self.script(script, beside, &[id], but),
            (Form::Member, _) => {
                let stray = matches!(kind, Kind::Stray(_)).then_some(Number(1));
                let holder = key.holder(self.scripts);
                self.script(script, beside, &[id, Bytes(&holder)], but.or(stray));
            }
            (Form::Names, _) => {
                let (names, writer) = (Number(self.keys.len() as u64), kind.writer());
                let args = [
                    id,
                    names,
                    but.unwrap_or(Bytes(b"")),
                    Bytes(writer.as_bytes()),
                ];
                self.script(script, beside, &args, None);
            }
        }
    }

    /// The caller as it is in the queue.
    fn waiter(&self, channel: Channel) -> Vec<u8> {
        node_queue::member(channel, self.prefix, self.key.label.as_ref())
    }

    fn leave(self, script: &Script, channel: Channel, turn: QueueTurn, fair: bool) {
        let kind = &self.key.kind;
        let (waiter, writer) = (&self.waiter(channel), kind.writer());
        let names = Number(self.keys.len() as u64);
        let args = match kind {
            Kind::Plain => {
                let fair = if fair { b"1" } else { b"0" };
                [Bytes(waiter), Bytes(fair), Number(turn.millis())]
            }
            _ => [names, Bytes(writer.as_bytes()), Bytes(waiter)],
        };
        self.script(script, kind.row().beside.leaves, &args, None);
    }

    /// Calls a script. The keys are those of the lock, and then those of each companion.
    fn script(
        self,
        script: &Script,
        beside: &[Companion],
        args: &[Arg<'_>],
        more: Option<Arg<'_>>,
    ) {
        let CommandWriter { keys, out, .. } = self;
        let beside = if self.named { beside } else { &[] };
        let all_keys = keys.len() * (1 + beside.len());
        resp::command(out, 3 + all_keys + args.len() + usize::from(more.is_some()));
        match self.scripts {
            Scripts::ByHash | Scripts::OnlyByHash => out.extend_from_slice(script.by_hash),
            Scripts::ByText | Scripts::None(_) => {
                resp::argument(out, b"EVAL");
                resp::argument(out, script.text);
            }
        }
        resp::number(out, all_keys as u64);
        keys.iter().for_each(|key| resp::argument(out, key));
        for companion in beside {
            for key in keys {
                resp::joined_argument(out, &companion.key(key));
            }
        }
        args.iter().chain(&more).for_each(|arg| match arg {
            Bytes(bytes) => resp::argument(out, bytes),
            Number(number) => resp::number(out, *number),
        });
    }
}

/// Where a node begins to look for a free slot: alike on all nodes, and different with each try, so that contenders
/// that have split the votes no longer meet. At random, also after a split: to prefer a slot that is free on most
/// nodes, each grant would have to report which slots are free on its node, a byte for each permit.
fn preferred(token: &Token, permits: u16) -> u16 {
    let [a, b, ..] = *token.as_bytes();
    u16::from_le_bytes([a, b]) % permits.max(1)
}

#[cfg(test)]
mod tests;
