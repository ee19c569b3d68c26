//! The replies of one connection: which command each answers, whether it counts, and its meaning.

use std::time::{Duration, Instant};

use crate::errors::cause::Cause;
use crate::errors::redirection::Redirection;
use crate::errors::server_error::is_not_loaded;
use crate::protocol::commands::action::Key;
use crate::protocol::commands::dialect::Scripts;
use crate::protocol::commands::node_id::imports_nothing;
use crate::protocol::commands::resp::Reply;
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::node::pending::{Pending, ReplyClass, SentCommand};
use crate::protocol::node::server_properties::ServerProperties;
use crate::protocol::node::wire::Wire;
use crate::protocol::node::witness;
use crate::protocol::node::witness_proofs::{self, Part};
use crate::values::prefix::Prefix;

/// A reply that counts, the command or ping that it answers, and when that was sent.
pub(crate) type Received = (Reply, Pending, Instant);

impl Wire {
    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        self.reader.push(bytes);
    }

    /// The next reply that counts. `read_clock` gets each time of day that the server shows, and when that was asked for,
    /// before the replies that lacked it.
    #[inline]
    pub(crate) fn next_reply(
        &mut self,
        now: Instant,
        mut read_clock: impl FnMut(Duration, Instant),
    ) -> Result<Option<Received>, Cause> {
        let proves = self.proofs.are_asked_for();
        loop {
            if proves && let Some((reply, command, sent)) = self.proofs.next() {
                return Ok(Some((reply, Pending::Command(command), sent)));
            }
            if proves && self.take_proof(now, &mut read_clock)? {
                continue;
            }
            let Some(reply) = self.next_whole(now)? else {
                return Ok(None);
            };
            let Some(expected) = self.expected.pop() else {
                return Err(surplus());
            };
            let sent = expected.at;
            match expected.pending {
                Pending::Asking if imports_nothing(&reply) => return Err(Cause::OtherServer),
                Pending::Asking => {}
                Pending::Look(part) => match reply.time_of_day() {
                    Some(time_of_day) if part == Part::Clock => {
                        read_clock(time_of_day, sent);
                        self.proofs.shown(part, b"")?;
                    }
                    _ => return Err(self.shows_nothing(&reply, part)),
                },
                Pending::Command(command) if proves => {
                    let needs = command.needs;
                    let counts = self.proofs.received((reply, command, sent), needs);
                    if let Some((reply, command, sent)) = counts {
                        return Ok(Some((reply, Pending::Command(command), sent)));
                    }
                }
                answers => return Ok(Some((reply, answers, sent))),
            }
        }
    }

    /// Whether all replies that were received have been returned.
    #[inline]
    pub(crate) fn is_read(&self) -> bool {
        self.reader.is_empty() && !self.proofs.are_asked_for()
    }

    /// Why a reply to a look does not show what it should.
    fn shows_nothing(&self, reply: &Reply, part: Part) -> Cause {
        match reply {
            // The witness's slot has moved, which means nothing for the lock's.
            Reply::Error(text) if self.redirection(text).is_some() => witness::changed(),
            Reply::Error(text) => witness_proofs::refused(text, part),
            _ => witness::changed(),
        }
    }

    /// Whether the next reply shows what it should. The reply is read in place: looks are frequent.
    #[inline]
    fn take_proof(
        &mut self,
        now: Instant,
        read_clock: &mut impl FnMut(Duration, Instant),
    ) -> Result<bool, Cause> {
        let next = self.expected.queue.front();
        let Some((Pending::Look(part), sent)) = next.map(|one| (&one.pending, one.at)) else {
            return Ok(false);
        };
        let part = *part;
        let (value, length) = if part == Part::Clock {
            let Some((time_of_day, length)) = self.reader.time_of_day() else {
                return Ok(false);
            };
            read_clock(time_of_day, sent);
            (&b""[..], length)
        } else {
            let Some(bulk) = self.reader.bulk() else {
                return Ok(false);
            };
            bulk
        };
        self.proofs.shown(part, value)?;
        self.reader.skip(length);
        self.expected.pop();
        self.active = Some(now);
        Ok(true)
    }

    /// The next reply, once it is complete. More replies than commands are an error: the next one would be taken for
    /// another's.
    #[inline]
    fn next_whole(&mut self, now: Instant) -> Result<Option<Reply>, Cause> {
        if self.reader.is_empty() {
            return Ok(None);
        }
        let reply = self.reader.next()?;
        let more = reply.is_some() && !self.reader.is_empty();
        if self.pending() < 1 + usize::from(more) {
            return Err(surplus());
        }
        if reply.is_some() {
            self.active = Some(now);
        }
        Ok(reply)
    }

    /// The meaning of a reply. Learns from it how commands are sent. `key`: of the operation that waits for the reply,
    /// or of the lock that the command ends.
    pub(crate) fn class_of(
        &mut self,
        reply: &Reply,
        command: &SentCommand,
        key: Option<&Key>,
        prefix: &Prefix,
    ) -> ReplyClass {
        let Reply::Error(error) = reply else {
            if command.named && key.is_some() {
                self.alone.accepted();
            }
            return ReplyClass::Vote;
        };
        if let Some(cause) = self.redirection(error) {
            return ReplyClass::Redirected(cause);
        }
        // The server refuses a call before it looks at its script, which was therefore not loaded. Called by its hash,
        // it would be refused once more.
        if command.loads && command.is_refused_for_companions(error) {
            self.forget_loaded();
        }
        let Some(key) = key else {
            return ReplyClass::Vote;
        };
        let only_by_hash = self.properties.dialect.scripts == Scripts::OnlyByHash;
        if command.loads && !only_by_hash && is_not_loaded(error) {
            if !mutant(Mutant::ForgottenIsLoaded) {
                self.forget_loaded();
            }
            return ReplyClass::SendAgain(None);
        }
        let (dialect, alone) = (&mut self.properties.dialect, &mut self.alone);
        match dialect.learn(error, command.named, key.names(), prefix, alone) {
            true => ReplyClass::SendAgain(self.dialect(None, key).lack()),
            false => ReplyClass::Vote,
        }
    }

    /// Why the server has not carried out a command, if another server may own the key and is asked next.
    fn redirection(&self, error: &str) -> Option<Cause> {
        let ServerProperties { routed, server, .. } = &self.properties;
        let redirection = routed.then(|| Redirection::of(error, &server.address))?;
        redirection.map(|redirection| Cause::Redirected(redirection.into()))
    }
}

/// The cause if there are more replies than commands.
fn surplus() -> Cause {
    Cause::Garbage("more than was asked for".into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::node::outgoing::Output;
    use crate::values::clock;

    #[test]
    fn more_replies_than_commands_are_an_error() {
        let now = clock::instant();
        let surplus = |commands: usize, bytes: &[u8]| {
            let mut wire = Wire::default();
            let (bytes_out, start) = (&mut Vec::new(), 0);
            let out = Output {
                bytes: bytes_out,
                start,
                now,
            };
            (0..commands).for_each(|_| wire.expect(Pending::Ping, &out));
            wire.receive(bytes);
            matches!(wire.next_reply(now, |_, _| ()), Err(Cause::Garbage(_)))
        };
        assert!(surplus(0, b"+OK\r\n") && surplus(0, b"+"));
        assert!(!surplus(1, b"+OK\r\n") && !surplus(1, b"+"));
        assert!(surplus(1, b"+OK\r\n+"));
        assert!(!surplus(2, b"+OK\r\n+"));
    }

    /// A user who may not ask for its ID learns it from the reply to ASKING.
    #[test]
    fn a_server_in_no_cluster_that_is_asked_for_a_slot_on_its_way_ends_the_connection() {
        let now = clock::instant();
        for (asking, ends) in [
            ("-ERR This instance has cluster support disabled", true),
            ("-NOPERM this user has no permissions", false),
            ("+OK", false),
        ] {
            let mut wire = Wire::default();
            let out = Output {
                bytes: &mut Vec::new(),
                start: 0,
                now,
            };
            wire.expect(Pending::Asking, &out);
            wire.expect(Pending::Ping, &out);
            wire.receive(format!("{asking}\r\n+OK\r\n").as_bytes());
            let next = wire.next_reply(now, |_, _| ());
            assert_eq!(matches!(next, Err(Cause::OtherServer)), ends, "{asking}");
        }
    }

    /// However the bytes come.
    #[test]
    fn a_clock_is_read_before_the_reply_that_lacked_it_and_an_error_ends_the_connection() {
        let (now, whole) = (clock::instant(), "+OK\r\n$1\r\nx\r\n$2\r\nyz\r\n");
        let ends = |cause: Cause| cause.to_string();
        for (clock, expected) in [
            ("*2\r\n$2\r\n17\r\n$6\r\n213945\r\n", Ok(vec![17_213])),
            ("-NOPERM no\r\n", Err("connection closed: NOPERM no")),
            ("*1\r\n$2\r\n17\r\n", Err(&*ends(witness::changed()))),
        ] {
            let mut wire = Wire::default();
            let bytes = &mut Vec::new();
            let out = Output {
                bytes,
                start: 0,
                now,
            };
            wire.expect(Pending::Ping, &out);
            for _ in 0..2 {
                wire.expect(Pending::Ping, &out);
            }
            wire.expect(Pending::Look(Part::Clock), &out);
            let (mut read, mut result) = (Vec::new(), Ok(()));
            for byte in format!("{whole}{clock}").bytes() {
                wire.receive(&[byte]);
                while let Some(next) = wire
                    .next_reply(now, |time_of_day, _| read.push(time_of_day.as_millis()))
                    .map_err(|cause| result = Err(ends(cause)))
                    .ok()
                    .flatten()
                {
                    assert!(matches!(next.1, Pending::Ping));
                }
            }
            let found = result.map(|()| read);
            assert_eq!(found, expected.map_err(str::to_owned), "{clock}");
        }
    }
}
