//! The scripts, written out by hand: they do the same as `protocol/scripts/*.lua`.

use super::{
    ANOTHER, CommandRun, GONE, NOT_ITS_ARGUMENTS, NOT_OURS, Refused, Result, ScriptArgs,
    StoreReply, StoredValue, needed, number,
};
use crate::protocol::commands::node_queue;
use crate::protocol::commands::scripts::{
    ACQUIRE_IN_ORDER, ACQUIRE_OR_ENQUEUE, DEQUEUE, DONE, EXTEND, FENCE, RELEASE,
    RELEASE_AND_NOTIFY, Script,
};
use crate::protocol::commands::sha1::sha1;
use crate::protocol::mutants::{Mutant, mutant};
use crate::values::label::Label;
use crate::values::{last_run, lock_value};

/// The first bytes of a value, or all of it.
fn start(value: &[u8], length: usize) -> &[u8] {
    value.get(..length).unwrap_or(value)
}

/// A number as Lua writes it (`%.14g`).
fn lua_number(number: i64) -> String {
    if number < 100_000_000_000_000 {
        return number.to_string();
    }
    let text = format!("{:.13e}", number as f64);
    let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    format!("{digits}e+{exponent}")
}

impl CommandRun<'_> {
    /// Runs the script with this hash.
    pub(super) fn run(&mut self, hash: &[u8], args: ScriptArgs<'_>) -> Result<StoreReply> {
        let is = |script: Script| hash == script.hash;
        if is(ACQUIRE_OR_ENQUEUE) {
            return self.knock(args);
        }
        if is(ACQUIRE_IN_ORDER) {
            return self.wait_in_turn(args);
        }
        if let Some(answer) = self.run_of_names(hash, args) {
            return answer;
        }
        if let Some(answer) = self.run_of_members(hash, args) {
            return answer;
        }
        let number = match () {
            () if is(RELEASE) => self.release(args),
            () if is(RELEASE_AND_NOTIFY) => self.tell(args),
            () if is(EXTEND) => self.extend(args),
            () if is(DEQUEUE) => self.leave(args),
            () if is(FENCE) => self.fence(args),
            () if is(DONE) => self.done(args),
            () => Err(NOT_OURS),
        };
        number.map(StoreReply::Int)
    }

    /// The answer about the lock, if this token does not hold it.
    fn instead(&mut self, lock: &[u8], token: &[u8]) -> Result<Option<i64>> {
        Ok(match self.get(lock)? {
            Some(value) if start(&value, lock_value::TOKEN) == token => None,
            Some(_) => Some(ANOTHER),
            None => Some(GONE),
        })
    }

    fn release(&mut self, script_args: ScriptArgs<'_>) -> Result<i64> {
        let (lock, [token]) = (script_args.lock()?, script_args.args) else {
            return Err(NOT_ITS_ARGUMENTS);
        };
        match self.instead(lock, token)? {
            None => self.del(lock),
            Some(instead) => Ok(instead),
        }
    }

    fn extend(&mut self, script_args: ScriptArgs<'_>) -> Result<i64> {
        let (lock, [token, ttl, shorten @ ..]) = (script_args.lock()?, script_args.args) else {
            return Err(NOT_ITS_ARGUMENTS);
        };
        if let Some(instead) = self.instead(lock, token)? {
            return Ok(instead);
        }
        self.change_end(lock, needed(ttl)?, !shorten.is_empty())?;
        Ok(1)
    }

    /// Gives a lock this ttl, unless that would shorten it, and its holder goes on; with `shortens` only if it does, and its
    /// holder has given it up.
    pub(super) fn change_end(&mut self, lock: &[u8], ttl: i64, shortens: bool) -> Result<()> {
        let left = self.pttl(lock);
        let changes = match shortens {
            true => (left < 0 || left > ttl) && !mutant(Mutant::DoNotShorten),
            false => left < ttl,
        };
        if changes {
            self.pexpire(lock, ttl)?;
        }
        if let Ok(Some(value)) = self.get(lock) {
            let left = if changes { ttl } else { left };
            let marked = lock_value::marked(&value, shortens);
            if shortens || marked != value {
                // A hint, as everything that is for people.
                let _ = self.set(lock, &marked, Some(left), false);
            }
        }
        Ok(())
    }

    fn fence(&mut self, script_args: ScriptArgs<'_>) -> Result<i64> {
        let ([lock, counter], [token, at_least]) = (script_args.keys, script_args.args) else {
            return Err(NOT_ITS_ARGUMENTS);
        };
        if let Some(instead) = self.instead(lock, token)? {
            return Ok(instead);
        }
        self.count(counter, at_least)
    }

    fn done(&mut self, script_args: ScriptArgs<'_>) -> Result<i64> {
        let ([lock, mark], [token, value, life]) = (script_args.keys, script_args.args) else {
            return Err(NOT_ITS_ARGUMENTS);
        };
        if let Some(instead) = self.instead(lock, token)? {
            return Ok(instead);
        }
        let found = self.get(mark)?;
        if found.is_some_and(|found| !found.starts_with(last_run::HEAD)) {
            return Err(Refused("ERR the key of the mark has other data"));
        }
        self.set(mark, value, number(life), false)?;
        Ok(1)
    }

    pub(super) fn count(&mut self, counter: &[u8], at_least: &[u8]) -> Result<i64> {
        let counted: f64 = match self.get(counter)? {
            None => 0.0,
            Some(text) => number(&text).ok_or(Refused(
                "ERR attempt to perform arithmetic on a string value",
            ))?,
        };
        let time = self.store.time - self.store.time % self.store.step;
        let at_least = needed::<u64>(at_least)?.max(time);
        // A NaN is not less.
        let next = counted + 1.0;
        let next = if next < at_least as f64 {
            at_least as f64
        } else {
            next
        };
        if next.is_nan() || next > 9_007_199_254_740_991.0 {
            return Err(Refused("ERR the fencing counter is out of range"));
        }
        let next = format!("{next:.0}");
        self.set(counter, next.as_bytes(), Some(86_400_000), false)?;
        needed(next.as_bytes())
    }

    fn tell(&mut self, script_args: ScriptArgs<'_>) -> Result<i64> {
        let (lock, [token, option @ ..]) = (script_args.lock()?, script_args.args) else {
            return Err(NOT_ITS_ARGUMENTS);
        };
        let option = option.first().copied();
        if let Some(instead) = self.instead(lock, token)? {
            return Ok(instead);
        }
        self.del(lock)?;
        for _ in 0..99 {
            let Some(waiter) = script_args.queue().and_then(|queue| self.zpopmin(queue)) else {
                break;
            };
            let (waiter, _) = node_queue::member_parts(&waiter);
            if option == Some(waiter) || self.publish(waiter, lock) == 0 {
                continue;
            }
            if let (Some(long), Some(turn)) = (option.and_then(number), script_args.turn())
                && !mutant(Mutant::NoReservation)
            {
                if self.reserved(turn).is_some() {
                    let _ = self.del(turn);
                }
                let _ = self.set(turn, waiter, Some(long), true);
            }
            return Ok(2);
        }
        Ok(1)
    }

    fn leave(&mut self, script_args: ScriptArgs<'_>) -> Result<i64> {
        let (lock, [me, fair, long]) = (script_args.lock()?, script_args.args) else {
            return Err(NOT_ITS_ARGUMENTS);
        };
        let free = self.stored_value(lock).is_none();
        let (Some(queue), Some(turn)) = (script_args.queue(), script_args.turn()) else {
            return Ok(i64::from(free));
        };
        let _ = self.zrem(queue, me);
        let own = self.is(turn, node_queue::member_parts(me).0);
        if own {
            let _ = self.del(turn);
        } else if self.reserved(turn).is_some() {
            return Ok(0);
        }
        if !free {
            return Ok(0);
        }
        for _ in 0..99 {
            let Some(waiter) = self.zpopmin(queue) else {
                break;
            };
            let (waiter, _) = node_queue::member_parts(&waiter);
            if self.publish(waiter, lock) == 0 {
                continue;
            }
            if (own || *fair == b"1") && !mutant(Mutant::NoReservation) {
                let _ = self.set(turn, waiter, number(long), true);
            }
            return Ok(2);
        }
        Ok(1)
    }

    fn knock(&mut self, script_args: ScriptArgs<'_>) -> Result<StoreReply> {
        let (lock, [value, ttl, me, ..]) = (script_args.lock()?, script_args.args) else {
            return Err(NOT_ITS_ARGUMENTS);
        };
        if self.set(lock, value, number(ttl), true)? {
            self.forget_waiter(script_args, me);
            return Ok(StoreReply::Okay);
        }
        let queued = mutant(Mutant::EnqueueAfterDenial) || self.join(script_args)?;
        Ok(self.see(lock, queued))
    }

    /// Removes the queue's entry and the reservation of a waiter that takes the lock.
    fn forget_waiter(&mut self, script_args: ScriptArgs<'_>, me: &[u8]) {
        let (channel, _) = node_queue::member_parts(me);
        if let Some(turn) = script_args.turn().filter(|turn| self.is(turn, channel)) {
            let _ = self.del(turn);
        }
        if let Some(queue) = script_args.queue() {
            let _ = self.zrem(queue, me);
        }
    }

    fn wait_in_turn(&mut self, script_args: ScriptArgs<'_>) -> Result<StoreReply> {
        let (lock, [value, ttl, me, ..]) = (script_args.lock()?, script_args.args) else {
            return Err(NOT_ITS_ARGUMENTS);
        };
        let free = self.stored_value(lock).is_none();
        let queued = mutant(Mutant::EnqueueAfterDenial) && !free || self.join(script_args)?;
        if free {
            let (channel, _) = node_queue::member_parts(me);
            let owner = match (queued, script_args.queue(), script_args.turn()) {
                (true, Some(queue), Some(turn)) => {
                    let long = script_args.args.get(6).and_then(|long| number(long));
                    self.owner(lock, (queue, turn), channel, long)
                }
                _ => channel.to_vec(),
            };
            if owner != channel {
                let left = script_args.turn().map_or(0, |turn| self.pttl(turn).max(0));
                let word = if queued { 'w' } else { '-' };
                let reserved = format!("{} - {word}", lua_number(left));
                return Ok(StoreReply::Bulk(reserved.into_bytes()));
            }
            self.forget_waiter(script_args, me);
            if self.set(lock, value, number(ttl), true)? {
                return Ok(StoreReply::Okay);
            }
        }
        Ok(self.see(lock, queued))
    }

    /// The channel of the waiter for which a free lock is reserved, or will be from now on. `me`: that of the one that asks.
    fn owner(
        &mut self,
        lock: &[u8],
        (queue, turn): (&[u8], &[u8]),
        me: &[u8],
        long: Option<i64>,
    ) -> Vec<u8> {
        if let Some(owner) = self.reserved(turn) {
            return owner;
        }
        let mut owner = me.to_vec();
        for _ in 0..99 {
            let first = self.first(queue).unwrap_or_else(|| me.to_vec());
            owner = node_queue::member_parts(&first).0.to_vec();
            if owner == me || mutant(Mutant::JumpTheQueue) {
                return me.to_vec();
            }
            let _ = self.zrem(queue, &first);
            if self.publish(&owner, lock) != 0 {
                let _ = self.set(turn, &owner, long, true);
                break;
            }
        }
        owner
    }

    /// Puts the waiter into the queue. Returns whether it is there now.
    pub(super) fn join(&mut self, script_args: ScriptArgs<'_>) -> Result<bool> {
        let [_, _, me, arrived, waited, lease, ..] = script_args.args else {
            return Err(NOT_ITS_ARGUMENTS);
        };
        let now = i64::try_from(self.store.time / 1000).unwrap_or(i64::MAX);
        let (arrived, waited): (i64, i64) = (needed(arrived)?, needed(waited)?);
        let by_own_clock = now.saturating_sub(waited);
        let score = match by_own_clock.abs_diff(arrived) {
            0..=500 => arrived,
            _ => by_own_clock,
        };
        let Some(queue) = script_args.queue() else {
            return Ok(false);
        };
        let queued = self.zadd(queue, score, me).is_ok();
        if queued {
            let _ = self.pexpire(queue, needed(lease)?);
        }
        Ok(queued)
    }

    /// The answer to a denied knock.
    fn see(&mut self, lock: &[u8], queued: bool) -> StoreReply {
        let word = if queued { 'w' } else { '-' };
        let seen = match self.get(lock) {
            Ok(Some(value)) => {
                let hash = sha1(start(&value, lock_value::TOKEN));
                let hash = String::from_utf8_lossy(start(&hash, 6)).into_owned();
                let words = format!("{} {hash} {word}", lua_number(self.pttl(lock)));
                let label = lock_value::label_of(&value);
                let label = label.map(|label| [b" ", start(label, Label::MAX + 1)].concat());
                [words.into_bytes(), label.unwrap_or_default()].concat()
            }
            Ok(None) => format!("-1 - {word}").into_bytes(),
            Err(_) => format!("-2 - {word}").into_bytes(),
        };
        StoreReply::Bulk(seen)
    }

    pub(super) fn look(&mut self, lock: &[u8]) -> Result<StoreReply> {
        if let Some(holders) = self.holders(lock) {
            return Ok(holders);
        }
        let left = self.pttl(lock);
        Ok(match self.get(lock) {
            Ok(None) => StoreReply::Nil,
            Ok(Some(value)) => {
                let head = format!("{left} {} ", value.len());
                StoreReply::Bulk([head.as_bytes(), start(&value, lock_value::MOST)].concat())
            }
            Err(_) => StoreReply::Bulk(format!("{left} -1 ").into_bytes()),
        })
    }

    /// The channel for which the lock is reserved. A foreign value reserves nothing.
    fn reserved(&self, turn: &[u8]) -> Option<Vec<u8>> {
        match self.stored_value(turn) {
            Some(StoredValue::Text(text)) if node_queue::is_channel(text) => Some(text.clone()),
            _ => None,
        }
    }

    fn is(&self, name: &[u8], text: &[u8]) -> bool {
        matches!(self.stored_value(name), Some(StoredValue::Text(value)) if value == text)
    }
}
