//! The operations on keys, of which commands and scripts consist.

use super::{
    CommandRun, Entry, Mood, NO_NUMBER, NO_TTL, NOT_PERMITTED, OUT_OF_MEMORY, READ_ONLY, Refused,
    Result, StoreReply, StoredValue, TOO_FEW_REPLICAS, WRONG_TYPE, number,
};

impl CommandRun<'_> {
    pub(super) fn may_write(&mut self, grows: bool) -> Result<()> {
        let Mood {
            read_only,
            too_few_replicas,
            out_of_memory,
            ..
        } = self.store.mood;
        if read_only {
            return Err(READ_ONLY);
        }
        if too_few_replicas {
            return Err(TOO_FEW_REPLICAS);
        }
        if out_of_memory && grows && !self.wrote {
            return Err(OUT_OF_MEMORY);
        }
        self.wrote |= self.in_script;
        Ok(())
    }

    /// The last millisecond of a key that has this ttl from now on.
    fn last(&self, ttl: i64) -> Option<u64> {
        let last = (self.store.time / 1000).checked_add(u64::try_from(ttl).ok()?)?;
        i64::try_from(last).is_ok().then_some(last)
    }

    pub(super) fn stored_value(&self, name: &[u8]) -> Option<&StoredValue> {
        let entry = self.store.entries.iter().find(|entry| entry.name == name);
        entry.map(|entry| &entry.value)
    }

    pub(super) fn entry(&mut self, name: &[u8]) -> Option<&mut Entry> {
        let mut entries = self.store.entries.iter_mut();
        entries.find(|entry| entry.name == name)
    }

    pub(super) fn get(&self, name: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.stored_value(name) {
            None => Ok(None),
            Some(StoredValue::Text(text)) => Ok(Some(text.clone())),
            Some(_) => Err(WRONG_TYPE),
        }
    }

    pub(super) fn may_set(&mut self) -> Result<()> {
        match self.store.mood.no_set {
            true => Err(NOT_PERMITTED),
            false => self.may_write(true),
        }
    }

    /// Sets a string. `if_none`: only if there is no key; returns whether it was set.
    pub(super) fn set(
        &mut self,
        name: &[u8],
        text: &[u8],
        ttl: Option<i64>,
        if_none: bool,
    ) -> Result<bool> {
        self.may_set()?;
        let last = match ttl {
            Some(ttl) if ttl <= 0 => return Err(NO_TTL),
            Some(ttl) => Some(self.last(ttl).ok_or(NO_TTL)?),
            None => None,
        };
        if if_none && self.stored_value(name).is_some() {
            return Ok(false);
        }
        self.store.remove(name);
        self.store
            .insert(name, StoredValue::Text(text.to_vec()), last);
        Ok(true)
    }

    pub(super) fn del(&mut self, name: &[u8]) -> Result<i64> {
        self.may_write(false)?;
        let there = self.stored_value(name).is_some();
        self.store.remove(name);
        Ok(i64::from(there))
    }

    pub(super) fn pttl(&mut self, name: &[u8]) -> i64 {
        let now = self.store.time / 1000;
        match self.entry(name).map(|entry| entry.last) {
            None => -2,
            Some(None) => -1,
            Some(Some(last)) => i64::try_from(last.saturating_sub(now)).unwrap_or(i64::MAX),
        }
    }

    pub(super) fn pexpire(&mut self, name: &[u8], ttl: i64) -> Result<i64> {
        self.may_write(false)?;
        if ttl <= 0 {
            return self.del(name);
        }
        let last = self.last(ttl).ok_or(NO_NUMBER)?;
        let entry = self.entry(name);
        Ok(i64::from(
            entry.map(|entry| entry.last = Some(last)).is_some(),
        ))
    }

    /// Applies `act` to the members of a sorted set. An empty queue is no key.
    pub(super) fn zset<T>(
        &mut self,
        name: &[u8],
        act: impl FnOnce(&mut Vec<(i64, Vec<u8>)>) -> T,
    ) -> Result<T> {
        let mut none = Vec::new();
        let members = match self.entry(name).map(|entry| &mut entry.value) {
            None => &mut none,
            Some(StoredValue::Queue(members)) => members,
            Some(_) => return Err(WRONG_TYPE),
        };
        let done = act(members);
        let is_empty = members.is_empty();
        if is_empty {
            self.store.remove(name);
        } else if !none.is_empty() {
            self.store.insert(name, StoredValue::Queue(none), None);
        }
        Ok(done)
    }

    pub(super) fn zadd(&mut self, name: &[u8], score: i64, member: &[u8]) -> Result<i64> {
        self.may_write(true)?;
        self.zset(name, |members| {
            let before = members.len();
            members.retain(|one| one.1 != member);
            let added = members.len() == before;
            members.push((score, member.to_vec()));
            members.sort_unstable();
            i64::from(added)
        })
    }

    pub(super) fn zrem(&mut self, name: &[u8], member: &[u8]) -> Result<()> {
        self.may_write(false)?;
        self.zset(name, |members| members.retain(|one| one.1 != member))
    }

    /// Removes and returns the first member, if there is one and that is permitted.
    pub(super) fn zpopmin(&mut self, name: &[u8]) -> Option<Vec<u8>> {
        self.may_write(false).ok()?;
        let first = self.zset(name, |members| {
            (!members.is_empty()).then(|| members.remove(0).1)
        });
        first.ok()?
    }

    pub(super) fn first(&mut self, name: &[u8]) -> Option<Vec<u8>> {
        match self.stored_value(name) {
            Some(StoredValue::Queue(members)) => members.first().map(|first| first.1.clone()),
            _ => None,
        }
    }

    /// `no_string`: how the command refuses a key of another type.
    pub(super) fn delete_if_equal(
        &mut self,
        name: &[u8],
        value: &[u8],
        no_string: Refused,
    ) -> Result<StoreReply> {
        self.may_write(false)?;
        match self.get(name).map_err(|_| no_string)?.as_deref() == Some(value) {
            true => self.del(name).map(StoreReply::Int),
            false => Ok(StoreReply::Int(0)),
        }
    }

    pub(super) fn set_if_equal(
        &mut self,
        name: &[u8],
        (value, old): (&[u8], &[u8]),
        ttl: &[u8],
    ) -> Result<StoreReply> {
        self.may_set()?;
        if self.get(name)?.as_deref() != Some(old) {
            return Ok(StoreReply::Nil);
        }
        let ttl = number(ttl).ok_or(NO_NUMBER)?;
        self.set(name, value, Some(ttl), false)?;
        Ok(StoreReply::Okay)
    }
}
