//! The scripts, written out by hand: what `protocol/scripts/*.lua` do.

use super::{Answer, NOT_KNOWN, Refused, Result, Run, Value, number};
use crate::lock_value;
use crate::protocol::mutant;
use crate::protocol::scripts::{
    ACQUIRE_IN_ORDER, ACQUIRE_OR_ENQUEUE, DEQUEUE, EXTEND, FENCE, LOOK, RELEASE,
    RELEASE_AND_NOTIFY, SCRIPTS,
};
use crate::protocol::sha1::sha1;

/// As Lua writes a number (`%.14g`).
fn lua_number(number: i64) -> String {
    if number < 100_000_000_000_000 {
        return number.to_string();
    }
    let text = format!("{:.13e}", number as f64);
    let (digits, exponent) = text.split_once('e').unwrap();
    let digits = digits.trim_end_matches('0').trim_end_matches('.');
    format!("{digits}e+{exponent}")
}

fn queue_of(lock: &[u8]) -> Vec<u8> {
    [lock, b":w"].concat()
}

fn turn_of(lock: &[u8]) -> Vec<u8> {
    [lock, b":wt"].concat()
}

/// Which one is called.
pub(super) fn script(args: &[&[u8]]) -> Option<usize> {
    let by_hash = args[0] == b"EVALSHA";
    SCRIPTS
        .iter()
        .position(|script| args[1] == if by_hash { script.hash } else { script.text })
}

impl Run<'_> {
    pub(super) fn script(&mut self, args: &[&[u8]]) -> Result<Answer> {
        if args[1] == LOOK.text {
            return self.look(args[3]);
        }
        let which = script(args).expect("a script of this crate");
        if args[0] == b"EVAL" {
            self.store.known[which] = true;
        } else if !self.store.known[which] {
            return Err(NOT_KNOWN);
        }
        let script = SCRIPTS[which].hash;
        let args = &args[3..];
        self.in_script = true;
        if script == ACQUIRE_OR_ENQUEUE.hash {
            self.knock(args)
        } else if script == ACQUIRE_IN_ORDER.hash {
            self.wait_in_turn(args)
        } else {
            let number = match script {
                _ if script == RELEASE.hash => self.release(args),
                _ if script == RELEASE_AND_NOTIFY.hash => self.tell(args),
                _ if script == EXTEND.hash => self.extend(args),
                _ if script == DEQUEUE.hash => Ok(self.leave(args)),
                _ if script == FENCE.hash => self.fence(args),
                _ => panic!("a script without a model"),
            };
            number.map(Answer::Int)
        }
    }

    fn holds(&mut self, lock: &[u8], token: &[u8]) -> Result<bool> {
        let value = self.get(lock)?.unwrap_or_default();
        Ok(value[..value.len().min(20)] == *token)
    }

    fn release(&mut self, args: &[&[u8]]) -> Result<i64> {
        let [lock, token] = args[..] else {
            panic!("not its arguments");
        };
        match self.holds(lock, token)? {
            true => self.del(lock),
            false => Ok(0),
        }
    }

    fn extend(&mut self, args: &[&[u8]]) -> Result<i64> {
        let [lock, token, ttl] = args[..] else {
            panic!("not its arguments");
        };
        if !self.holds(lock, token)? {
            return Ok(0);
        }
        let ttl: i64 = number(ttl).unwrap();
        if self.pttl(lock) < ttl {
            self.pexpire(lock, ttl)?;
        }
        Ok(1)
    }

    fn fence(&mut self, args: &[&[u8]]) -> Result<i64> {
        let [lock, counter, token, at_least] = args[..] else {
            panic!("not its arguments");
        };
        if !self.holds(lock, token)? {
            return Ok(0);
        }
        let counted: f64 = match self.get(counter)? {
            None => 0.0,
            Some(text) => number(&text).ok_or(Refused(
                "ERR attempt to perform arithmetic on a string value",
            ))?,
        };
        let time = self.store.time - self.store.time % self.store.step;
        let at_least = number::<u64>(at_least).unwrap().max(time);
        // What is no number is not less.
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
        Ok(next.parse().unwrap())
    }

    fn tell(&mut self, args: &[&[u8]]) -> Result<i64> {
        let (lock, token, option) = (args[0], args[1], args.get(2).copied());
        if !self.holds(lock, token)? {
            return Ok(0);
        }
        self.del(lock)?;
        for _ in 0..99 {
            let Some(waiter) = self.zpopmin(&queue_of(lock)) else {
                break;
            };
            if option == Some(&waiter) || self.publish(&waiter, lock) == 0 {
                continue;
            }
            let turn = turn_of(lock);
            if let Some(long) = option.and_then(number)
                && !mutant(42)
            {
                if self.reserved(&turn).is_some() {
                    let _ = self.del(&turn);
                }
                let _ = self.set(&turn, &waiter, Some(long), true);
            }
            return Ok(2);
        }
        Ok(1)
    }

    fn leave(&mut self, args: &[&[u8]]) -> i64 {
        let [lock, me, fair, long] = args[..] else {
            panic!("not its arguments");
        };
        let (queue, turn) = (queue_of(lock), turn_of(lock));
        let _ = self.zrem(&queue, me);
        let own = self.is(&turn, me);
        if own {
            let _ = self.del(&turn);
        } else if self.reserved(&turn).is_some() {
            return 0;
        }
        if self.value(lock).is_some() {
            return 0;
        }
        for _ in 0..99 {
            let Some(waiter) = self.zpopmin(&queue) else {
                break;
            };
            if self.publish(&waiter, lock) == 0 {
                continue;
            }
            if (own || fair == b"1") && !mutant(42) {
                let _ = self.set(&turn, &waiter, number(long), true);
            }
            return 2;
        }
        1
    }

    fn knock(&mut self, args: &[&[u8]]) -> Result<Answer> {
        let [lock, value, ttl, me, ..] = args[..] else {
            panic!("not its arguments");
        };
        if self.set(lock, value, number(ttl), true)? {
            let _ = self.zrem(&queue_of(lock), me);
            if self.is(&turn_of(lock), me) {
                let _ = self.del(&turn_of(lock));
            }
            return Ok(Answer::Okay);
        }
        let queued = mutant(32) || self.join(args);
        Ok(self.see(lock, queued))
    }

    fn wait_in_turn(&mut self, args: &[&[u8]]) -> Result<Answer> {
        let [lock, value, ttl, me, ..] = args[..] else {
            panic!("not its arguments");
        };
        let free = self.value(lock).is_none();
        let queued = mutant(32) && !free || self.join(args);
        if free {
            let owner = match queued {
                true => self.owner(lock, me, number(args[7])),
                false => me.to_vec(),
            };
            let turn = turn_of(lock);
            if owner != me {
                let left = lua_number(self.pttl(&turn).max(0));
                let word = if queued { 'w' } else { '-' };
                return Ok(Answer::Bulk(format!("{left} - {word}").into_bytes()));
            }
            if self.is(&turn, me) {
                let _ = self.del(&turn);
            }
            let _ = self.zrem(&queue_of(lock), me);
            if self.set(lock, value, number(ttl), true)? {
                return Ok(Answer::Okay);
            }
        }
        Ok(self.see(lock, queued))
    }

    /// The waiter for which a free lock is reserved; or will be, from now on.
    fn owner(&mut self, lock: &[u8], me: &[u8], long: Option<i64>) -> Vec<u8> {
        let (queue, turn) = (queue_of(lock), turn_of(lock));
        if let Some(owner) = self.reserved(&turn) {
            return owner;
        }
        let mut owner = me.to_vec();
        for _ in 0..99 {
            owner = self.first(&queue).unwrap_or_else(|| me.to_vec());
            if owner == me || mutant(41) {
                return me.to_vec();
            }
            let _ = self.zrem(&queue, &owner);
            if self.publish(&owner, lock) != 0 {
                let _ = self.set(&turn, &owner, long, true);
                break;
            }
        }
        owner
    }

    /// Whether it is in the queue now.
    pub(super) fn join(&mut self, args: &[&[u8]]) -> bool {
        let [lock, _, _, me, arrived, waited, lease, ..] = args[..] else {
            panic!("not its arguments");
        };
        let now = i64::try_from(self.store.time / 1000).unwrap();
        let (arrived, waited): (i64, i64) = (number(arrived).unwrap(), number(waited).unwrap());
        let by_own_clock = now - waited;
        let score = match by_own_clock.abs_diff(arrived) {
            0..=500 => arrived,
            _ => by_own_clock,
        };
        let queue = queue_of(lock);
        let queued = self.zadd(&queue, score, me).is_ok();
        if queued {
            let _ = self.pexpire(&queue, number(lease).unwrap());
        }
        queued
    }

    /// What a denied knock says.
    fn see(&mut self, lock: &[u8], queued: bool) -> Answer {
        let word = if queued { 'w' } else { '-' };
        let seen = match self.get(lock) {
            Ok(Some(value)) => {
                let hash = sha1(&value[..value.len().min(20)]);
                let hash = String::from_utf8_lossy(&hash[..6]).into_owned();
                format!("{} {hash} {word}", lua_number(self.pttl(lock)))
            }
            Ok(None) => format!("-1 - {word}"),
            Err(_) => format!("-2 - {word}"),
        };
        Answer::Bulk(seen.into_bytes())
    }

    fn look(&mut self, lock: &[u8]) -> Result<Answer> {
        let left = self.pttl(lock);
        Ok(match self.get(lock) {
            Ok(None) => Answer::Nil,
            Ok(Some(value)) => {
                let head = format!("{left} {} ", value.len());
                Answer::Bulk(
                    [
                        head.as_bytes(),
                        &value[..value.len().min(lock_value::LONGEST)],
                    ]
                    .concat(),
                )
            }
            Err(_) => Answer::Bulk(format!("{left} -1 ").into_bytes()),
        })
    }

    /// The channel for which the lock is reserved; a foreign value is none.
    fn reserved(&self, turn: &[u8]) -> Option<Vec<u8>> {
        match self.value(turn) {
            Some(Value::Text(text)) if text.starts_with(b"redlock:") => Some(text.clone()),
            _ => None,
        }
    }

    fn is(&self, name: &[u8], text: &[u8]) -> bool {
        matches!(self.value(name), Some(Value::Text(value)) if value == text)
    }
}
