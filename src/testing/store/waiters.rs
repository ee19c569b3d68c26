//! How permits, readers, writers and locks on several names wait and notify, written out by hand.

use super::{CommandRun, NOT_ITS_ARGUMENTS, Result, ScriptArgs, StoreReply, StoredValue, needed};
use crate::protocol::commands::node_queue;
use crate::protocol::mutants::{Mutant, mutant};

impl<'a> ScriptArgs<'a> {
    /// The waiter, as in the queue, or nothing.
    pub(super) fn me(self) -> &'a [u8] {
        self.args.get(2).copied().unwrap_or_default()
    }

    /// The queue and the mark of the name at this place of so many.
    pub(super) fn beside(self, count: usize, at: usize) -> (Option<&'a [u8]>, Option<&'a [u8]>) {
        let key = |at: usize| self.keys.get(at).copied();
        (key(count + at), key(2 * count + at))
    }
}

impl CommandRun<'_> {
    /// The waiters, as they are shown.
    pub(super) fn waiters(&mut self, queue: &[u8]) -> Result<StoreReply> {
        let members = self.zset(queue, |members| members.clone())?;
        let bulk = |bytes: &[u8]| StoreReply::Bulk(bytes.get(..170).unwrap_or(bytes).to_vec());
        let shown = members.iter().take(300);
        let shown =
            shown.flat_map(|(score, member)| [bulk(member), bulk(score.to_string().as_bytes())]);
        Ok(StoreReply::Array(shown.collect()))
    }

    /// The end of a denial: whether the waiter is in the queue of the name at this place of so many.
    pub(super) fn joined(
        &mut self,
        script_args: ScriptArgs<'_>,
        count: usize,
        at: usize,
    ) -> Result<&str> {
        let me = script_args.me();
        if me.is_empty() || mutant(Mutant::KindsDoNotQueue) {
            return Ok("-");
        }
        let (Some(name), Some(queue)) = (script_args.keys.get(at), script_args.beside(count, at).0)
        else {
            return Ok("-");
        };
        let keys = [*name, queue];
        let queued = self.join(ScriptArgs {
            keys: &keys,
            ..script_args
        })?;
        Ok(if queued { "w" } else { "-" })
    }

    /// Notifies the next waiter for this name, except those on the channel `but`. Returns 2 if one was notified.
    pub(super) fn tell_next(&mut self, queue: Option<&[u8]>, name: &[u8], but: &[u8]) -> i64 {
        for _ in 0..queue.map_or(0, |_| 99) {
            let Some(waiter) = queue.and_then(|queue| self.zpopmin(queue)) else {
                break;
            };
            let (waiter, _) = node_queue::member_parts(&waiter);
            if waiter != but && self.publish(waiter, name) != 0 {
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

    pub(super) fn leave_names(&mut self, script_args: ScriptArgs<'_>) -> Result<i64> {
        let [count, writer, me] = *script_args.args else {
            return Err(NOT_ITS_ARGUMENTS);
        };
        let count: usize = needed(count)?;
        let mut result = 1;
        for (at, name) in script_args.keys.iter().take(count).enumerate() {
            let (queue, mark) = script_args.beside(count, at);
            self.remove_waiter(queue, me);
            if !mutant(Mutant::LeaveMark) {
                self.delete_mark(mark, writer);
            }
            if !matches!(self.stored_value(name), Some(StoredValue::Text(_))) {
                result = result.max(self.tell_next(queue, name, b""));
            }
        }
        Ok(result)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::proof::fixtures::{MS, token, ttl};
    use crate::protocol::commands::action::{Action, Key};
    use crate::protocol::commands::dialect::{Dialect, Scripts};
    use crate::protocol::commands::kind::{Kind, Mark};
    use crate::protocol::commands::node_queue::{Channel, QueueEntry, QueueTurn};
    use crate::protocol::mutants::set_mutant;
    use crate::testing::server::Server;
    use crate::values::prefix::Prefix;

    /// The replies to an action of the first connection.
    pub(in super::super) fn ask(
        server: &mut Server,
        (action, key): (&Action, &Key),
        time: u64,
    ) -> Vec<u8> {
        let means = Dialect {
            scripts: Scripts::ByText,
            ..Dialect::ALL
        };
        let (mut bytes, mut replies) = (Vec::new(), Vec::new());
        action.pack(key, &Prefix::default(), means, &mut bytes);
        assert!(server.receive(0, &bytes, time, &mut replies));
        replies.into_iter().flat_map(|(_, bytes)| bytes).collect()
    }

    /// A mark that stays would keep readers out of a free lock until it ends.
    #[test]
    fn a_writer_that_gives_up_removes_its_mark() {
        const TIME: u64 = 1_800_000_000_000_000;
        let channel = Channel::new([7; 16]);
        let waits = Arc::new(QueueEntry {
            channel,
            arrived: TIME / 1000,
            waited: 0,
            lease: 60_000,
            turn: None,
        });
        let leaves = Action::Dequeue(Arc::new(channel), QueueTurn::new(50 * MS), false);
        let reader = Kind::Read { waited: 0 };
        let writer = Kind::Write(Mark {
            writer: 7,
            life: 60_000,
            waited: 100,
        });
        let of_second_reader = |broken| {
            set_mutant(broken);
            let mut server = Server::new(1, TIME);
            server.connect(0);
            let mut ask = |action: &Action, kind: &Kind| {
                let key = Key::new(b"a"[..].into(), token(), None).of_kind(kind.clone());
                ask(&mut server, (action, &key), TIME)
            };
            let acquire = Action::Acquire(ttl(10_000 * MS));
            assert_eq!(ask(&acquire, &reader), b":1\r\n");
            let denied = ask(
                &Action::AcquireOrEnqueue(ttl(10_000 * MS), waits.clone()),
                &writer,
            );
            assert!(denied.starts_with(b"$"));
            assert_eq!(ask(&leaves, &writer), b":1\r\n");
            let granted = ask(&acquire, &reader) == b":1\r\n";
            set_mutant(None);
            granted
        };
        assert!(of_second_reader(None));
        assert!(!of_second_reader(Some(Mutant::LeaveMark)));
    }
}
