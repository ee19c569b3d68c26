//! How permits, readers, writers and locks on several names wait and notify, written out by hand.

use super::{Given, NOT_ITS_ARGUMENTS, Result, Run, Value, needed};
use crate::protocol::mutants::{Mutant, mutant};

impl<'a> Given<'a> {
    /// The waiter's channel, or nothing.
    pub(super) fn me(self) -> &'a [u8] {
        self.args.get(2).copied().unwrap_or_default()
    }

    /// The queue and the mark of the name at this place of so many.
    pub(super) fn beside(self, count: usize, at: usize) -> (Option<&'a [u8]>, Option<&'a [u8]>) {
        let key = |at: usize| self.keys.get(at).copied();
        (key(count + at), key(2 * count + at))
    }
}

impl Run<'_> {
    /// The end of a denial: whether the waiter is in the queue of the name at this place of so many.
    pub(super) fn joined(&mut self, given: Given<'_>, count: usize, at: usize) -> Result<&str> {
        let me = given.me();
        if me.is_empty() || mutant(Mutant::KindsDoNotQueue) {
            return Ok("-");
        }
        let (Some(name), Some(queue)) = (given.keys.get(at), given.beside(count, at).0) else {
            return Ok("-");
        };
        let keys = [*name, queue];
        let queued = self.join(Given {
            keys: &keys,
            ..given
        })?;
        Ok(if queued { "w" } else { "-" })
    }

    /// Notifies the next waiter for this name, except `but`. Returns 2 if one was notified.
    pub(super) fn tell_next(&mut self, queue: Option<&[u8]>, name: &[u8], but: &[u8]) -> i64 {
        for _ in 0..queue.map_or(0, |_| 99) {
            let Some(waiter) = queue.and_then(|queue| self.zpopmin(queue)) else {
                break;
            };
            if waiter != but && self.publish(&waiter, name) != 0 {
                return 2;
            }
        }
        1
    }

    pub(super) fn remove_waiter(&mut self, queue: Option<&[u8]>, me: &[u8]) {
        if let Some(queue) = queue {
            let _ = self.zrem(queue, me);
        }
    }

    pub(super) fn delete_mark(&mut self, mark: Option<&[u8]>, writer: &[u8]) {
        if let Some(mark) = mark
            && self.mark(mark).is_some_and(|mark| mark.writer == writer)
        {
            let _ = self.del(mark);
        }
    }

    pub(super) fn leave_names(&mut self, given: Given<'_>) -> Result<i64> {
        let [count, writer, me] = *given.args else {
            return Err(NOT_ITS_ARGUMENTS);
        };
        let count: usize = needed(count)?;
        let mut result = 1;
        for (at, name) in given.keys.iter().take(count).enumerate() {
            let (queue, mark) = given.beside(count, at);
            self.remove_waiter(queue, me);
            if !mutant(Mutant::LeaveMark) {
                self.delete_mark(mark, writer);
            }
            if !matches!(self.value(name), Some(Value::Text(_))) {
                result = result.max(self.tell_next(queue, name, b""));
            }
        }
        Ok(result)
    }
}
