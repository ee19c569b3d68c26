//! The scripts of permits, readers and writers, written out by hand.

use super::{
    ANOTHER, CommandRun, GONE, NOT_ITS_ARGUMENTS, Result, ScriptArgs, StoreReply, StoredValue,
    needed,
};
use crate::protocol::commands::node_queue;
use crate::protocol::commands::scripts::{
    ACQUIRE_PERMIT, ACQUIRE_READ, ACQUIRE_WRITE, EXTEND_MEMBER, FENCE_MEMBER, REFILL_MEMBER,
    RELEASE_MEMBER, Script,
};
use crate::protocol::commands::sha1::sha1;
use crate::protocol::mutants::{Mutant, mutant};
use crate::values::lock_value;

/// A writer that waits.
pub(super) struct StoredMark {
    /// Since when, by the server's clock, in ms.
    since: i64,
    pub(super) writer: Vec<u8>,
    channel: Vec<u8>,
}

/// The kind of value under a name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    Nothing,
    Text,
    Members(u8),
    Other,
}

/// The kind and slot of a member: `s017`. One without a whole token holds nothing.
pub(crate) fn head(member: &[u8]) -> Option<&[u8]> {
    beginning(member).filter(|_| member.len() >= 32)
}

/// The kind and slot of a member that may have been damaged.
pub(super) fn beginning(member: &[u8]) -> Option<&[u8]> {
    let head = member.strip_prefix(b"redlock:")?.get(..4)?;
    let (kind, digits) = head.split_first()?;
    let is_one = b"rs".contains(kind) && digits.iter().all(u8::is_ascii_digit);
    is_one.then_some(head)
}

/// The score of the last holder.
fn last(members: &[(i64, Vec<u8>)]) -> Option<i64> {
    let last = members.iter().rfind(|member| head(&member.1).is_some());
    last.map(|last| last.0)
}

/// The slot of a member, also where a reader was written among permits.
pub(super) fn number(member: &[u8]) -> Option<u64> {
    let digits = head(member)?.get(1..)?;
    str::from_utf8(digits).ok()?.parse().ok()
}

pub(crate) fn token(member: &[u8]) -> Option<&[u8]> {
    member.get(12..).map(|rest| rest.get(..20).unwrap_or(rest))
}

/// Six digits that differ where the readers differ.
pub(super) fn reader_digits(readers: &[(i64, Vec<u8>)]) -> String {
    let byte = |member: &[u8], at: usize| u32::from(member.get(at).copied().unwrap_or(0));
    let count = u32::try_from(readers.len()).unwrap_or(u32::MAX >> 8);
    let sum = readers.iter().take(64).fold(count, |sum, one| {
        let (a, b, c) = (byte(&one.1, 12), byte(&one.1, 13), byte(&one.1, 14));
        (sum + a * 65536 + b * 256 + c) % (1 << 24)
    });
    format!("{sum:06x}")
}

impl CommandRun<'_> {
    pub(super) fn run_of_members(
        &mut self,
        hash: &[u8],
        script_args: ScriptArgs<'_>,
    ) -> Option<Result<StoreReply>> {
        let all = [script_args.keys, script_args.args].concat();
        let args = &*all;
        let is = |script: Script| hash == script.hash;
        let answer = match () {
            () if is(ACQUIRE_PERMIT) => return Some(self.acquire_permit(script_args)),
            () if is(ACQUIRE_READ) => return Some(self.acquire_read(script_args)),
            () if is(ACQUIRE_WRITE) => return Some(self.acquire_write(script_args)),
            () if is(EXTEND_MEMBER) => self.extend_member(args),
            () if is(RELEASE_MEMBER) => self.release_member(script_args),
            () if is(REFILL_MEMBER) => self.refill_member(args),
            () if is(FENCE_MEMBER) => self.fence_member(args),
            () => return None,
        };
        Some(answer.map(StoreReply::Int))
    }

    pub(super) fn now(&self) -> i64 {
        i64::try_from(self.store.time / 1000).unwrap_or(i64::MAX)
    }

    /// The kind of value under a name, without the members that have ended.
    pub(super) fn find_kind(&mut self, lock: &[u8]) -> Result<Found> {
        let found = match self.stored_value(lock) {
            None => Found::Nothing,
            Some(StoredValue::Text(_)) => Found::Text,
            Some(StoredValue::Queue(members)) => members
                .first()
                .and_then(|first| beginning(&first.1)?.first())
                .map_or(Found::Other, |kind| Found::Members(*kind)),
            #[cfg(test)]
            Some(_) => Found::Other,
        };
        if let Found::Members(_) = found {
            self.may_write(false)?;
            let (now, ahead) = (self.now(), self.is_ahead(lock));
            if ahead < -1 && !mutant(Mutant::MembersKeyKeepsItsEnd) {
                self.set_end(lock)?;
            } else if ahead > 1 && !mutant(Mutant::MembersKeepTheirTimes) {
                self.zset(lock, |members| {
                    for member in members {
                        member.0 = member.0.saturating_add(ahead);
                    }
                })?;
            }
            self.zset(lock, |members| members.retain(|member| member.0 >= now))?;
        }
        Ok(found)
    }

    /// By how many ms this server's clock is ahead of that of the server which set the members (rule R49a).
    fn is_ahead(&self, lock: &[u8]) -> i64 {
        let entry = self.store.entries.iter().find(|entry| entry.name == lock);
        match entry.map(|entry| (entry.last, &entry.value)) {
            Some((Some(end), StoredValue::Queue(members))) => {
                let end = i64::try_from(end).unwrap_or(i64::MAX);
                last(members).map_or(0, |last| end.saturating_sub(last))
            }
            _ => 0,
        }
    }

    /// The permits and readers, as they are shown.
    pub(super) fn holders(&self, lock: &[u8]) -> Option<StoreReply> {
        let Some(StoredValue::Queue(members)) = self.stored_value(lock) else {
            return None;
        };
        head(&members.first()?.1)?;
        let now = self.now().saturating_sub(self.is_ahead(lock).max(0));
        let mut size = 0;
        let mut holders = Vec::new();
        for (score, member) in members.iter().rev().take(1000) {
            let left = score.saturating_sub(now);
            if left >= 0 && size < 60_000 {
                let start = member.get(..=lock_value::MOST_OF_MEMBER).unwrap_or(member);
                let one = [format!("{left} ").as_bytes(), start].concat();
                size += 8 + one.len();
                holders.push(StoreReply::Bulk(one));
            }
        }
        Some(match holders.is_empty() {
            true => StoreReply::Nil,
            false => StoreReply::Array(holders),
        })
    }

    pub(super) fn members(&self, lock: &[u8], found: Found) -> Vec<(i64, Vec<u8>)> {
        match (found, self.stored_value(lock)) {
            (Found::Members(_), Some(StoredValue::Queue(members))) => members.clone(),
            _ => Vec::new(),
        }
    }

    /// A token's member, and its score.
    fn member(&self, lock: &[u8], found: Found, id: &[u8], guess: &[u8]) -> Option<(i64, Vec<u8>)> {
        let members = self.members(lock, found);
        let guessed = members.iter().find(|member| member.1 == guess);
        let is = |one: &&(i64, Vec<u8>)| head(&one.1).is_some() && token(&one.1) == Some(id);
        guessed.or_else(|| members.iter().find(is)).cloned()
    }

    /// The answer about a member that is gone.
    fn instead_of_member(&self, lock: &[u8], found: Found, member: &[u8]) -> i64 {
        let Some(wanted) = head(member) else {
            return 0;
        };
        let is_permit = found == Found::Members(b's');
        match found {
            Found::Nothing => GONE,
            Found::Members(kind) if wanted.first() == Some(&kind) => {
                let mut others = self.members(lock, found).into_iter();
                match is_permit && others.any(|other| head(&other.1) == Some(wanted)) {
                    true => ANOTHER,
                    false => GONE,
                }
            }
            _ => ANOTHER,
        }
    }

    fn set_end(&mut self, lock: &[u8]) -> Result<()> {
        let last = match self.stored_value(lock) {
            Some(StoredValue::Queue(members)) => last(members),
            _ => None,
        };
        if let Some(last) = last {
            let left = last.saturating_sub(self.now());
            self.may_write(false)?;
            let end = u64::try_from(last).ok();
            match self.entry(lock) {
                Some(entry) if left > 0 => entry.last = end,
                _ => drop(self.del(lock)?),
            }
        }
        Ok(())
    }

    pub(super) fn put(&mut self, lock: &[u8], member: &[u8], ttl: i64) -> Result<()> {
        let end = self.now().saturating_add(ttl);
        self.zadd(lock, end, member)?;
        if mutant(Mutant::EndWithLast) {
            return self.pexpire(lock, ttl).map(drop);
        }
        self.set_end(lock)
    }

    /// A denial in three words, like that of a plain lock.
    fn held(&mut self, script_args: ScriptArgs<'_>, value: &[u8]) -> Result<StoreReply> {
        let hash = sha1(value.get(..20).unwrap_or(value));
        let hash = String::from_utf8_lossy(hash.get(..6).unwrap_or_default()).into_owned();
        let left = self.pttl(script_args.lock()?);
        let denied = format!("{left} {hash} {}", self.joined(script_args, 1, 0)?);
        Ok(StoreReply::Bulk(denied.into_bytes()))
    }

    pub(super) fn mark(&self, mark: &[u8]) -> Option<StoredMark> {
        let Some(StoredValue::Text(text)) = self.stored_value(mark) else {
            return None;
        };
        let text = str::from_utf8(text).ok()?;
        let (since, rest) = text.split_once(' ')?;
        let (writer, channel) = rest.split_once(' ')?;
        let is = |text: &str, digit: fn(&u8) -> bool| {
            !text.is_empty() && text.as_bytes().iter().all(digit)
        };
        let whole = is(since, u8::is_ascii_digit) && is(writer, u8::is_ascii_hexdigit);
        Some(StoredMark {
            since: since.parse().ok().filter(|_| whole)?,
            writer: writer.into(),
            channel: channel.into(),
        })
        .filter(|mark| !mark.channel.is_empty())
    }

    fn acquire_read(&mut self, script_args: ScriptArgs<'_>) -> Result<StoreReply> {
        let (lock, &[value, ttl, me, _, waited, _]) = (script_args.lock()?, script_args.args)
        else {
            return Err(NOT_ITS_ARGUMENTS);
        };
        let (queue, mark) = script_args.beside(1, 0);
        let found = self.find_kind(lock)?;
        match found {
            Found::Text => {
                let value = self.get(lock)?.unwrap_or_default();
                return self.held(script_args, &value);
            }
            Found::Members(b's') => return Ok(StoreReply::Int(-3)),
            Found::Other => return Ok(StoreReply::Int(-4)),
            Found::Nothing | Found::Members(_) => {}
        }
        let came = self.now() - needed::<i64>(waited)?;
        if let Some(key) = mark
            && let Some(older) = self.mark(key).filter(|mark| mark.since < came)
        {
            let silent = mutant(Mutant::DoNotTellTheWriter);
            if !self.members(lock, found).is_empty()
                || silent
                || self.publish(&older.channel, lock) != 0
            {
                let left = self.pttl(key).max(0);
                let denied = format!("{left} - {}", self.joined(script_args, 1, 0)?);
                return Ok(StoreReply::Bulk(denied.into_bytes()));
            }
            let _ = self.del(key);
        }
        self.may_write(true)?;
        self.put(lock, &[&b"redlock:r000"[..], value].concat(), needed(ttl)?)?;
        self.remove_waiter(queue, me);
        self.tell_next(queue, lock, b"");
        Ok(StoreReply::Int(1))
    }

    fn acquire_write(&mut self, script_args: ScriptArgs<'_>) -> Result<StoreReply> {
        let (lock, &[value, ttl, me, _, waited, _, writer, life]) =
            (script_args.lock()?, script_args.args)
        else {
            return Err(NOT_ITS_ARGUMENTS);
        };
        let (queue, mark) = script_args.beside(1, 0);
        let found = self.find_kind(lock)?;
        match found {
            Found::Members(b's') => return Ok(StoreReply::Int(-3)),
            Found::Other => return Ok(StoreReply::Int(-4)),
            _ => {}
        }
        let beside = mutant(Mutant::WriteBesideReaders) && found != Found::Text;
        if beside {
            self.del(lock)?;
        }
        if self.set(lock, value, super::number(ttl), true)? {
            self.remove_waiter(queue, me);
            return Ok(StoreReply::Int(1));
        }
        let since = self.now() - needed::<i64>(waited)?;
        let is_later = |older: &StoredMark| older.since > since || older.writer == writer;
        if let Some(mark) = mark.filter(|_| life != b"0" && !me.is_empty())
            && (self.stored_value(mark).is_none() || self.mark(mark).as_ref().is_some_and(is_later))
        {
            let (channel, _) = node_queue::member_parts(me);
            let text = [since.to_string().as_bytes(), b" ", writer, b" ", channel].concat();
            let _ = self.set(mark, &text, super::number(life), false);
        }
        if found == Found::Text {
            let value = self.get(lock)?.unwrap_or_default();
            return self.held(script_args, &value);
        }
        let members = self.members(lock, found);
        let (left, digits) = (self.pttl(lock), reader_digits(&members));
        let denied = format!("{left} {digits} {}", self.joined(script_args, 1, 0)?);
        Ok(StoreReply::Bulk(denied.into_bytes()))
    }

    fn extend_member(&mut self, args: &[&[u8]]) -> Result<i64> {
        let [lock, id, guess, ttl, ref shorten @ ..] = args[..] else {
            return Err(NOT_ITS_ARGUMENTS);
        };
        let found = self.find_kind(lock)?;
        let Some((score, member)) = self.member(lock, found, id, guess) else {
            return Ok(self.instead_of_member(lock, found, guess));
        };
        let end = self.now() + needed::<i64>(ttl)?;
        self.change_member(lock, (score, &member), end, !shorten.is_empty())?;
        Ok(needed::<i64>(member.get(9..12).unwrap_or_default())? + 1)
    }

    /// Extends a member to this end, and its holder goes on; or shortens it, and its holder has given it up.
    fn change_member(
        &mut self,
        lock: &[u8],
        (score, member): (i64, &[u8]),
        end: i64,
        shortens: bool,
    ) -> Result<()> {
        let (head, value) = member.split_at_checked(12).unwrap_or((member, b""));
        let other = [head, &lock_value::marked(value, shortens)].concat();
        let end = match shortens {
            true => score.min(end),
            false => score.max(end),
        };
        if score != end || other != member {
            self.put(lock, &other, end - self.now())?;
        }
        if other != member {
            self.zrem(lock, member)?;
            self.set_end(lock)?;
        }
        Ok(())
    }

    fn release_member(&mut self, script_args: ScriptArgs<'_>) -> Result<i64> {
        let (lock, &[id, guess, ref me @ ..]) = (script_args.lock()?, script_args.args) else {
            return Err(NOT_ITS_ARGUMENTS);
        };
        let (queue, alone) = (
            script_args.queue(),
            script_args.queue().is_none() && !me.is_empty(),
        );
        let found = self.find_kind(lock)?;
        let member = self.member(lock, found, id, guess);
        let Some((_, member)) = member.filter(|one| !alone || one.1 == guess) else {
            return Ok(self.instead_of_member(lock, found, guess));
        };
        self.zrem(lock, &member)?;
        self.set_end(lock)?;
        let room = found == Found::Members(b's') || self.members(lock, found).is_empty();
        let silent = mutant(Mutant::QuietMembers);
        Ok(match room && !silent {
            true => self.tell_next(queue, lock, script_args.me()),
            false => 1,
        })
    }

    fn refill_member(&mut self, args: &[&[u8]]) -> Result<i64> {
        let [lock, id, wanted, ttl] = args[..] else {
            return Err(NOT_ITS_ARGUMENTS);
        };
        let slot_of = |member: &[u8]| head(member).map(<[u8]>::to_vec);
        let slot = slot_of(wanted).ok_or(NOT_ITS_ARGUMENTS)?;
        let found = self.find_kind(lock)?;
        let kind = slot.first().copied().unwrap_or_default();
        if found != Found::Nothing && found != Found::Members(kind) {
            return Ok(0);
        }
        let mut own = self.member(lock, found, id, wanted);
        if let Some((_, stray)) = own.take_if(|own| slot_of(&own.1).as_ref() != Some(&slot)) {
            self.zrem(lock, &stray)?;
            self.set_end(lock)?;
        }
        let ttl: i64 = needed(ttl)?;
        let (score, member) = match own {
            Some((score, member)) => (Some(score), member),
            None => {
                let mut others = self.members(lock, found).into_iter();
                let taken = others.any(|other| slot_of(&other.1).as_ref() == Some(&slot));
                if kind == b's' && taken {
                    return Ok(0);
                }
                (None, wanted.to_vec())
            }
        };
        if score.is_none_or(|score| score < self.now() + ttl) {
            self.put(lock, &member, ttl)?;
        }
        Ok(1)
    }

    fn fence_member(&mut self, args: &[&[u8]]) -> Result<i64> {
        let [lock, counter, id, at_least, guess] = args[..] else {
            return Err(NOT_ITS_ARGUMENTS);
        };
        let found = self.find_kind(lock)?;
        match self.member(lock, found, id, guess) {
            Some(_) => self.count(counter, at_least),
            None => Ok(self.instead_of_member(lock, found, guess)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::waiters::tests::ask;
    use super::*;
    use crate::proof::fixtures::{MS, each_is_found, ttl};
    use crate::protocol::commands::action::{Action, Key};
    use crate::protocol::commands::kind::Kind;
    use crate::testing::server::Server;
    use crate::values::token::Token;

    /// Whether another process gets the only permit, 7 s after one for 10 s was granted, and 7 s after its key moved to a server
    /// whose clock is 5 s behind: a key moves with its end, by that clock.
    fn granted_early() -> Vec<()> {
        const TIME: u64 = 1_800_000_000_000_000;
        let (mut server, permits, slot) = (Server::new(1, TIME), 1, None);
        server.connect(0);
        let asks = |server: &mut Server, token: u8, time| {
            let key = Key::new(b"a"[..].into(), Token::from_bytes([token; 20]), None)
                .of_kind(Kind::Permit { permits, slot });
            ask(server, (&Action::Acquire(ttl(10_000 * MS)), &key), time) == b":1\r\n"
        };
        assert!(asks(&mut server, 1, TIME));
        server.store.entries[0].last = Some(TIME / 1000 + 5000);
        assert!(!asks(&mut server, 2, TIME));
        let granted = asks(&mut server, 3, TIME + 7_000_000).then_some(());
        granted.into_iter().collect()
    }

    #[test]
    fn a_permit_that_moved_with_its_slot_keeps_its_time() {
        assert_eq!(granted_early(), []);
        each_is_found(&[Mutant::MembersKeyKeepsItsEnd], granted_early);
    }
}
