//! One connection to a node: what was sent on it, and which replies are pending.
//!
//! A [`Wire`] serves one connection, so severing the connection means dropping it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::errors::cause::Cause;
use crate::errors::elsewhere::Elsewhere;
use crate::errors::server_error::is_not_loaded;
use crate::protocol::commands::companions::WITNESS;
use crate::protocol::commands::means::{Alone, Beside, Lack, Means};
use crate::protocol::commands::resp::{self, Reply, ReplyReader};
use crate::protocol::commands::script::Key;
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::node::address::Address;
use crate::protocol::node::clock_watch::ClockReading;
use crate::protocol::node::debt::Debt;
use crate::protocol::node::handshake::Handshake;
use crate::protocol::node::look;
use crate::protocol::node::outgoing::Output;
use crate::protocol::node::pending::{Command, Pending, ReplyClass};
use crate::protocol::node::proof::{self, Answered, Part, Proofs};
use crate::protocol::node::witness;
use crate::values::prefix::Prefix;

/// A connection that was silent in both directions for this long is probed before it is written to: if it was closed
/// meanwhile, a write would succeed, and no reply would come.
pub(crate) const IDLE: Duration = Duration::from_millis(10);
/// A Redis server reads 16 KiB of a connection in one turn of its event loop, and answers a new connection at most once
/// in a turn. A ping counts for half of that: a command that was cut off at the end of a turn makes the next one
/// smaller. Over TLS the server reads one record in a turn, and data written at once is in as few records as hold it:
/// 16 KiB each, except the last.
pub(crate) const EVENT_LOOP_READ: usize = 16 * 1024 / 2;
/// The number of replies that no operation waits for after which they are read and dropped. Until then they cost the
/// node memory, and reading them would cost system calls.
const MAX_UNREAD_REPLIES: usize = 256;

/// A reply that counts, the command that it answers, and when that was sent. No command: a ping.
pub(crate) type Received = (Reply, Option<Command>, Instant);

struct Expected {
    pending: Pending,
    at: Instant,
    /// The number of bytes sent on this connection before.
    from: usize,
}

/// The pending replies, in order.
#[derive(Default)]
struct Replies {
    queue: VecDeque<Expected>,
    /// The number of replies to debts that no operation waits for. (Whether there are any is asked behind each
    /// operation, and hundreds of others may be pending.)
    alone: usize,
}

impl Replies {
    fn push(&mut self, expected: Expected) {
        self.alone += usize::from(expected.pending.is_owed_alone());
        self.queue.push_back(expected);
    }

    fn pop(&mut self) -> Option<Expected> {
        let expected = self.queue.pop_front()?;
        self.alone -= usize::from(expected.pending.is_owed_alone());
        Some(expected)
    }
}

/// Non-blocking reads, which find received bytes, or that the connection was closed.
#[derive(Default)]
struct Probe {
    /// When a probe last found nothing, and how many replies were pending then.
    at: Option<Instant>,
    pending: usize,
    /// Whether a probe is needed before anything is sent.
    is_due: bool,
}

#[derive(Default)]
pub(crate) struct Wire {
    pub(crate) handshake: Handshake,
    reader: ReplyReader,
    expected: Replies,
    /// Replies that do not count yet.
    proofs: Proofs<Command>,
    /// The number of bytes sent. Over TLS each write counts as at least one turn of the server's event loop.
    sent: usize,
    /// When something was last sent or received, or a probe found nothing.
    active: Option<Instant>,
    probe: Probe,
    /// When to ping a node that gives no votes.
    ping_at: Option<Instant>,
    /// Whether something other than the handshake and pings was answered.
    useful: bool,
    /// The scripts whose texts were sent, among those that are loaded with their first call.
    loaded: u32,
    alone: Alone,
    pub(crate) address: Address,
}

impl Wire {
    pub(crate) fn new(mut handshake: Handshake) -> Wire {
        Wire {
            reader: ReplyReader::new(std::mem::take(&mut handshake.secret)),
            proofs: Proofs::new(handshake.witness.take()),
            address: Address::new(handshake.found.clone()),
            handshake,
            ..Wire::default()
        }
    }

    /// The number of pending replies.
    #[inline]
    pub(crate) fn pending(&self) -> usize {
        self.expected.queue.len()
    }

    /// When the command that the next reply answers was sent.
    #[inline]
    pub(crate) fn pending_since(&self) -> Option<Instant> {
        Some(self.expected.queue.front()?.at)
    }

    /// Whether a reply is pending to a command that was sent then or earlier.
    #[inline]
    pub(crate) fn has_pending_since(&self, then: Option<Instant>) -> bool {
        let since = self.pending_since();
        since.is_some_and(|since| Some(since) <= then)
    }

    /// When the oldest end of a lock was written that may not have been carried out, and that no operation waits for.
    /// `refused`: some were refused lately. Then an end that an operation has waited for is included: the operation
    /// ends with a majority, and the reply may not be read. Every end is included that was sent to a server of a Redis
    /// Cluster: another server may own the key by now.
    pub(crate) fn unconfirmed(&self, refused: bool) -> Option<Instant> {
        let all = self.handshake.routed || refused;
        if self.expected.alone == 0 && !all {
            return None;
        }
        let is_it =
            |one: &&Expected| one.pending.is_owed_alone() || all && one.pending.owed().is_some();
        Some(self.expected.queue.iter().find(is_it)?.at)
    }

    /// The debts whose replies are pending.
    pub(crate) fn owed(&self) -> impl Iterator<Item = Debt> {
        let expected = self.expected.queue.iter();
        expected.filter_map(|one| one.pending.owed().cloned())
    }

    // ---- sending

    /// How a command is sent. `loads`: its script, if that is loaded with its first call, which may be this one.
    #[inline]
    pub(crate) fn means(&mut self, loads: Option<usize>, key: &Key) -> Means {
        let mut means = self.handshake.means;
        if self.alone.has(key.names()) {
            means.beside = Beside::None;
        }
        let Some(script) = loads else {
            return means;
        };
        let known = self.loaded & 1 << script != 0;
        self.loaded |= 1 << script;
        match known {
            true => means,
            false => means.with_text(),
        }
    }

    /// Notes that the server has forgotten the scripts that are loaded with their first calls.
    pub(crate) fn forget_loaded(&mut self) {
        self.loaded = 0;
    }

    /// Notes a pending reply to the command that is appended to `out` next.
    #[inline]
    pub(crate) fn expect(&mut self, pending: Pending, out: &Output<'_>) {
        // A record is read as a whole, or not at all.
        let before = match self.handshake.by_record {
            true => 0,
            false => out.bytes.len() - out.start,
        };
        self.proofs.needs(pending.needs());
        self.expected.push(Expected {
            pending,
            at: out.now,
            from: self.sent.wrapping_add(before),
        });
    }

    /// Appends ASKING: the server carries out the next command although it does not own the slot yet.
    pub(crate) fn ask(&mut self, out: &mut Output<'_>) {
        self.expect(Pending::Asking, out);
        resp::pack(out.bytes, &[&[b"ASKING"]], None);
    }

    /// Appends the commands that show whether the answers count.
    pub(crate) fn prove(&mut self, prefix: &Prefix, out: &mut Output<'_>) {
        if !self.proofs.are_needed() {
            return;
        }
        for part in self.proofs.behind().into_iter().flatten() {
            self.expect(Pending::Look(part), out);
            let own = self.handshake.witness_key.as_deref();
            let key = own.map_or_else(|| prefix.key(WITNESS), Into::into);
            let [_, replication, stats, get, _] = look::look(&key);
            let command: &[&[u8]] = match part {
                Part::Master => &replication,
                Part::Evictions => &stats,
                Part::Witness if self.proofs.lack_witness() => &witness::ALL,
                Part::Witness => &get,
                Part::Clock => &[look::CLOCK],
            };
            resp::pack(out.bytes, &[command], None);
        }
    }

    /// The missing capabilities that do not affect votes.
    pub(crate) fn lacks(&self) -> [Option<Lack>; 4] {
        let [means, guard, run_id] = self.handshake.lacks();
        [means, guard, run_id, self.proofs.lack()]
    }

    /// Notes that `out` has everything that is being sent.
    pub(crate) fn sending(&mut self, out: &Output<'_>) {
        let mut bytes = out.bytes.len() - out.start;
        if self.handshake.by_record && bytes > 0 && !mutant(Mutant::PingCountsManyWrites) {
            bytes = bytes.max(EVENT_LOOP_READ);
        }
        self.sent = self.sent.wrapping_add(bytes);
        self.active = Some(out.now);
    }

    /// The bytes that the server may not have processed.
    pub(crate) fn unprocessed(&self) -> usize {
        let first = self.expected.queue.front();
        first.map_or(0, |first| self.sent.wrapping_sub(first.from))
    }

    /// The commands whose replies are pending, or do not count yet.
    pub(crate) fn into_commands(self) -> impl Iterator<Item = Command> {
        let expected = self.expected.queue.into_iter();
        let commands = expected.filter_map(|one| one.pending.command());
        self.proofs.into_held().chain(commands)
    }

    // ---- receiving

    pub(crate) fn receive(&mut self, bytes: &[u8]) {
        self.reader.push(bytes);
    }

    /// The next reply that counts. `read_clock` gets each reading of the server's clock, before the replies that lacked
    /// it.
    #[inline]
    pub(crate) fn next_reply(
        &mut self,
        now: Instant,
        mut read_clock: impl FnMut(ClockReading),
    ) -> Result<Option<Received>, Cause> {
        let proves = self.proofs.are_asked_for();
        loop {
            if proves && let Some((reply, command, sent)) = self.proofs.next() {
                return Ok(Some((reply, Some(command), sent)));
            }
            if proves && self.take_proof(now, &mut read_clock)? {
                continue;
            }
            let Some((reply, pending, sent)) = self.next_answer(now)? else {
                return Ok(None);
            };
            match pending {
                Pending::Ping => return Ok(Some((reply, None, sent))),
                Pending::Asking => {}
                Pending::Look(part) => match reply.time_of_day() {
                    Some(time_of_day) if part == Part::Clock => {
                        read_clock(ClockReading {
                            time_of_day,
                            sent,
                            received: now,
                        });
                        self.proofs.shown(Part::Clock, b"")?;
                    }
                    _ => return Err(self.shows_nothing(&reply, part)),
                },
                Pending::Command(command) if !proves => {
                    return Ok(Some((reply, Some(command), sent)));
                }
                Pending::Command(command) => {
                    let needs = command.needs;
                    let counts = self.proofs.received((reply, command, sent), needs);
                    if let Some((reply, command, sent)) = counts {
                        return Ok(Some((reply, Some(command), sent)));
                    }
                }
            }
        }
    }

    /// Why a reply to a look does not show what it should.
    fn shows_nothing(&self, reply: &Reply, part: Part) -> Cause {
        match reply {
            // The witness's slot has moved, which means nothing for the lock's.
            Reply::Error(text) if self.elsewhere(text).is_some() => witness::changed(),
            Reply::Error(text) => proof::refused(text, part),
            _ => witness::changed(),
        }
    }

    /// Whether the next reply shows what it should. The reply is read in place: looks are frequent.
    #[inline]
    fn take_proof(
        &mut self,
        now: Instant,
        read_clock: &mut impl FnMut(ClockReading),
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
            read_clock(ClockReading {
                time_of_day,
                sent,
                received: now,
            });
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

    /// The next reply, the command that it answers, and when that was sent. More replies than commands are an error:
    /// the next one would be taken for another's.
    #[inline]
    fn next_answer(&mut self, now: Instant) -> Result<Option<Answered<Pending>>, Cause> {
        if self.reader.is_empty() {
            return Ok(None);
        }
        let reply = self.reader.next()?;
        let more = reply.is_some() && !self.reader.is_empty();
        if self.pending() < 1 + usize::from(more) {
            return Err(Cause::Garbage("more than was asked for".into()));
        }
        let Some(reply) = reply else {
            return Ok(None);
        };
        self.active = Some(now);
        let expected = self.expected.pop();
        Ok(expected.map(|one| (reply, one.pending, one.at)))
    }

    /// The meaning of a reply. Learns from it how commands are sent. `key`: of the operation that waits for the reply,
    /// or of the lock that the command ends.
    pub(crate) fn class_of(
        &mut self,
        reply: &Reply,
        command: &Command,
        key: Option<&Key>,
        prefix: &Prefix,
    ) -> ReplyClass {
        let Reply::Error(error) = reply else {
            if command.named && key.is_some() {
                self.alone.accepted();
            }
            return ReplyClass::Vote;
        };
        if let Some(cause) = self.elsewhere(error) {
            return ReplyClass::Elsewhere(cause);
        }
        // The server refuses a call before it looks at its script, which was therefore not loaded. Called by its hash,
        // it would be refused once more.
        if command.loads && command.is_refused_for_companions(error) {
            self.forget_loaded();
        }
        let Some(key) = key else {
            return ReplyClass::Vote;
        };
        if command.loads && is_not_loaded(error) {
            if !mutant(Mutant::ForgottenIsLoaded) {
                self.forget_loaded();
            }
            return ReplyClass::SendAgain(None);
        }
        let (means, alone) = (&mut self.handshake.means, &mut self.alone);
        match means.learn(error, command.named, key.names(), prefix, alone) {
            true => ReplyClass::SendAgain(self.means(None, key).lack()),
            false => ReplyClass::Vote,
        }
    }

    /// Why the server has not carried out a command, if another server may own the key and is asked next.
    fn elsewhere(&self, error: &str) -> Option<Cause> {
        let Handshake { routed, server, .. } = &self.handshake;
        let elsewhere = routed.then(|| Elsewhere::of(error, server))?;
        elsewhere.map(|elsewhere| Cause::Elsewhere(elsewhere.into()))
    }

    /// Notes that a command was answered.
    #[inline]
    pub(crate) fn set_useful(&mut self) {
        self.useful = true;
    }

    #[inline]
    pub(crate) fn is_useful(&self) -> bool {
        self.useful
    }

    // ---- probes and pings

    /// Notes that a probe found nothing.
    pub(crate) fn probed(&mut self, now: Instant) {
        self.active = Some(now);
        self.probe = Probe {
            at: Some(now),
            pending: self.pending(),
            is_due: false,
        };
    }

    /// Notes that another connection turned out closed: this one may be, too.
    pub(crate) fn must_probe(&mut self) {
        self.probe.is_due = true;
    }

    /// Whether a probe is due, or replies have piled up and enough of them were requested since the last probe (a
    /// distant node has many pending at any time).
    #[inline]
    pub(crate) fn wants_probe(&self) -> bool {
        self.probe.is_due || self.pending() > self.probe.pending + MAX_UNREAD_REPLIES
    }

    /// Whether there was no probe since then.
    pub(crate) fn is_unprobed(&self, since: Instant) -> bool {
        self.probe.at < Some(since)
    }

    /// Whether the connection has been silent since before then.
    #[inline]
    pub(crate) fn is_idle(&self, then: Option<Instant>) -> bool {
        self.active.is_some() && self.active < then
    }

    pub(crate) fn ping_at(&self) -> Option<Instant> {
        self.ping_at
    }

    pub(crate) fn set_ping_at(&mut self, at: Option<Instant>) {
        self.ping_at = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::fixtures::key;
    use crate::protocol::commands::vote::Proof;
    use crate::protocol::node::pending::Awaited;
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
            matches!(wire.next_reply(now, |_| ()), Err(Cause::Garbage(_)))
        };
        assert!(surplus(0, b"+OK\r\n") && surplus(0, b"+"));
        assert!(!surplus(1, b"+OK\r\n") && !surplus(1, b"+"));
        assert!(surplus(1, b"+OK\r\n+"));
        assert!(!surplus(2, b"+OK\r\n+"));
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
                    .next_reply(now, |one| read.push(one.time_of_day.as_millis()))
                    .map_err(|cause| result = Err(ends(cause)))
                    .ok()
                    .flatten()
                {
                    assert!(next.1.is_none());
                }
            }
            let found = result.map(|()| read);
            assert_eq!(found, expected.map_err(str::to_owned), "{clock}");
        }
    }

    /// The reply may not be read once others have decided, and it may report that another server owns the key.
    #[test]
    fn a_release_is_to_be_confirmed_if_no_operation_waits_for_it_or_others_may_be_refused() {
        for (routed, alone, refused, expected) in [
            (false, false, false, false),
            (false, true, false, true),
            (false, false, true, true),
            (true, false, false, true),
        ] {
            let now = clock::instant();
            let mut wire = Wire::new(Handshake {
                routed,
                ..Handshake::default()
            });
            let out = Output {
                bytes: &mut Vec::new(),
                start: 0,
                now,
            };
            let pending = |owed| {
                Pending::Command(Command {
                    operation: None,
                    owed,
                    awaited: match alone {
                        true => Awaited::ByNone,
                        false => Awaited::ByOperation,
                    },
                    named: false,
                    loads: false,
                    needs: Proof::None,
                })
            };
            wire.expect(pending(None), &out);
            assert_eq!(wire.unconfirmed(refused), None);
            wire.expect(pending(Some(Debt::release(key(b"a")))), &out);
            assert_eq!(wire.unconfirmed(refused), expected.then_some(now));
            wire.receive(b"+OK\r\n:1\r\n");
            while wire.next_reply(now, |_| ()).unwrap().is_some() {}
            assert_eq!(wire.unconfirmed(refused), None);
        }
    }
}
