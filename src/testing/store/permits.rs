//! The script that acquires a permit, written out by hand.

use super::members::{Found, head, number, token};
use super::{CommandRun, NOT_ITS_ARGUMENTS, Result, ScriptArgs, StoreReply, needed};

impl CommandRun<'_> {
    pub(super) fn acquire_permit(&mut self, script_args: ScriptArgs<'_>) -> Result<StoreReply> {
        let (&[lock, ref queue @ ..], &[value, ttl, me, _, _, _, permits, preferred]) =
            (script_args.keys, script_args.args)
        else {
            return Err(NOT_ITS_ARGUMENTS);
        };
        let found = self.find_kind(lock)?;
        match found {
            Found::Text => return Ok(StoreReply::Int(-1)),
            Found::Members(b'r') => return Ok(StoreReply::Int(-2)),
            Found::Other => return Ok(StoreReply::Int(-4)),
            Found::Nothing | Found::Members(_) => {}
        }
        let (permits, preferred): (u64, u64) = (needed(permits)?, needed(preferred)?);
        self.may_write(true)?;
        let members = self.members(lock, found);
        let taken: Vec<u64> = members.iter().filter_map(|one| number(&one.1)).collect();
        let slots = (0..permits).map(|i| (preferred + i) % permits);
        let free = slots.into_iter().find(|slot| !taken.contains(slot));
        if let Some(slot) = free {
            self.remove_waiter(queue.first().copied(), me);
            let member = [format!("redlock:s{slot:03}").as_bytes(), value].concat();
            self.put(lock, &member, needed(ttl)?)?;
            return Ok(StoreReply::Int(i64::try_from(slot + 1).unwrap_or(i64::MAX)));
        }
        let sum = members.iter().filter(|one| head(&one.1).is_some());
        let sum = sum.fold(0, |sum: u32, one| {
            let [a, b, c, ..] = token(&one.1).unwrap_or_default() else {
                return sum;
            };
            (sum + u32::from_be_bytes([0, *a, *b, *c])) % (1 << 24)
        });
        let left = members.first().map_or(0, |first| first.0 - self.now());
        let denied = format!(
            "{} {sum:06x} {}",
            left.max(0),
            self.joined(script_args, 1, 0)?
        );
        Ok(StoreReply::Bulk(denied.into_bytes()))
    }
}
