//! The scripts of locks on one or more names, written out by hand.

use super::{
    ANOTHER, CommandRun, GONE, NOT_ITS_ARGUMENTS, Refused, Result, ScriptArgs, StoreReply,
    StoredValue, members, needed, number,
};
use crate::protocol::commands::scripts::{
    ACQUIRE_NAMES, EXTEND_NAMES, FENCE_NAMES, LEAVE, REFILL_NAMES, RELEASE_NAMES, Script,
};
use crate::protocol::commands::sha1::sha1;
use crate::protocol::mutants::{Mutant, mutant};
use crate::values::lock_value;

fn start(value: &[u8], length: usize) -> &[u8] {
    value.get(..length).unwrap_or(value)
}

impl CommandRun<'_> {
    pub(super) fn run_of_names(
        &mut self,
        hash: &[u8],
        script_args: ScriptArgs<'_>,
    ) -> Option<Result<StoreReply>> {
        let is = |script: Script| hash == script.hash;
        let answer = match () {
            () if is(ACQUIRE_NAMES) => return Some(self.acquire_names(script_args)),
            () if is(EXTEND_NAMES) => self.extend_names(script_args),
            () if is(LEAVE) => self.leave_names(script_args),
            () if is(RELEASE_NAMES) => self.release_names(script_args),
            () if is(REFILL_NAMES) => self.refill_names(script_args),
            () if is(FENCE_NAMES) => self.fence_names(script_args),
            () => return None,
        };
        Some(answer.map(StoreReply::Int))
    }

    /// Whether this token holds this name. Data of another type is held by none.
    fn has(&self, name: &[u8], token: &[u8]) -> bool {
        match self.stored_value(name) {
            Some(StoredValue::Text(value)) => start(value, lock_value::TOKEN) == token,
            _ => false,
        }
    }

    /// The answer about a lock that is not held.
    fn instead_of_name(&self, name: &[u8]) -> i64 {
        match self.stored_value(name) {
            Some(_) => ANOTHER,
            None => GONE,
        }
    }

    fn acquire_names(&mut self, script_args: ScriptArgs<'_>) -> Result<StoreReply> {
        let (keys, [value, ttl, me, ..]) = (script_args.keys, script_args.args) else {
            return Err(NOT_ITS_ARGUMENTS);
        };
        let count = match me.is_empty() {
            true => keys.len(),
            false => keys.len() / 2,
        };
        let names = keys.get(..count).unwrap_or_default();
        for (at, name) in names.iter().enumerate() {
            let denied = match self.stored_value(name) {
                None => continue,
                // The caller's own lock.
                Some(StoredValue::Text(value))
                    if !value.is_empty()
                        && script_args.args.get(6 + at)
                            == Some(&start(value, lock_value::TOKEN)) =>
                {
                    continue;
                }
                Some(StoredValue::Text(value)) => {
                    let hash = sha1(start(value, lock_value::TOKEN));
                    String::from_utf8_lossy(start(&hash, 6)).into_owned()
                }
                Some(StoredValue::Queue(all)) => {
                    let head = all.first().and_then(|first| members::beginning(&first.1));
                    match head.and_then(|head| head.first()) {
                        Some(b'r') => members::reader_digits(all),
                        Some(_) => return Ok(StoreReply::Int(-3)),
                        None => return Ok(StoreReply::Int(-4)),
                    }
                }
                #[cfg(test)]
                Some(_) => return Ok(StoreReply::Int(-4)),
            };
            if mutant(Mutant::SomeNames) {
                continue;
            }
            for (other, name) in names.iter().enumerate().filter(|one| one.0 != at) {
                if self.stored_value(name).is_none() && !mutant(Mutant::KeepMessage) {
                    // Another thread of this process may wait for this name alone.
                    self.tell_next(script_args.beside(count, other).0, name, b"");
                }
            }
            let left = self.pttl(name);
            let denied = format!(
                "{left} {denied} {}{at}",
                self.joined(script_args, count, at)?
            );
            return Ok(StoreReply::Bulk(denied.into_bytes()));
        }
        for (at, name) in names.iter().enumerate() {
            if !mutant(Mutant::SomeNames) || self.stored_value(name).is_none() {
                self.set(name, value, number(ttl), false)?;
            }
            self.remove_waiter(script_args.beside(count, at).0, me);
        }
        Ok(StoreReply::Int(1))
    }

    fn extend_names(&mut self, script_args: ScriptArgs<'_>) -> Result<i64> {
        let (names, [token, ttl, shorten @ ..]) = (script_args.keys, script_args.args) else {
            return Err(NOT_ITS_ARGUMENTS);
        };
        if let Some(name) = names.iter().find(|name| !self.has(name, token)) {
            return Ok(self.instead_of_name(name));
        }
        for name in names {
            self.change_end(name, needed(ttl)?, !shorten.is_empty())?;
        }
        Ok(1)
    }

    fn release_names(&mut self, script_args: ScriptArgs<'_>) -> Result<i64> {
        let [token, count, me, writer] = *script_args.args else {
            return Err(NOT_ITS_ARGUMENTS);
        };
        let count: usize = needed(count)?;
        let (mut lost, mut result) = (None, 1);
        for (at, name) in script_args.keys.iter().take(count).enumerate() {
            let (queue, mark) = script_args.beside(count, at);
            self.delete_mark(mark, writer);
            if !self.has(name, token) {
                lost = lost.max(Some(self.instead_of_name(name)));
                continue;
            }
            self.del(name)?;
            result = result.max(self.tell_next(queue, name, me));
            if mutant(Mutant::ReleaseFirstName) {
                lost = (count > 1).then_some(GONE);
                break;
            }
        }
        Ok(lost.unwrap_or(result))
    }

    fn refill_names(&mut self, script_args: ScriptArgs<'_>) -> Result<i64> {
        let (names, [token, value, ttl]) = (script_args.keys, script_args.args) else {
            return Err(NOT_ITS_ARGUMENTS);
        };
        let taken = |name: &&[u8]| self.stored_value(name).is_some() && !self.has(name, token);
        if names.iter().any(taken) {
            return Ok(0);
        }
        for name in names {
            self.set(name, value, number(ttl), true)?;
        }
        Ok(1)
    }

    fn fence_names(&mut self, script_args: ScriptArgs<'_>) -> Result<i64> {
        let [token, at_least] = *script_args.args else {
            return Err(NOT_ITS_ARGUMENTS);
        };
        let (names, counters) = script_args.keys.split_at(script_args.keys.len() / 2);
        let time = self.store.time - self.store.time % self.store.step;
        let mut next = needed::<u64>(at_least)?.max(time) as f64;
        for (name, counter) in names.iter().zip(counters) {
            if !self.has(name, token) {
                return Ok(self.instead_of_name(name));
            }
            let counted: f64 = match self.get(counter)? {
                None => 0.0,
                Some(text) => number(&text).ok_or(Refused(
                    "ERR attempt to perform arithmetic on a string value",
                ))?,
            };
            // Each comparison with a NaN is false, so the number is one where a counter is one.
            let not_less = next >= counted + 1.0;
            if !not_less && !next.is_nan() {
                next = counted + 1.0;
            }
        }
        if next.is_nan() || next > 9_007_199_254_740_991.0 {
            return Err(Refused("ERR the fencing counter is out of range"));
        }
        let next = format!("{next:.0}");
        for counter in counters {
            self.set(counter, next.as_bytes(), Some(86_400_000), false)?;
        }
        needed(next.as_bytes())
    }
}
