//! One connection to a node: what was sent on it, and which replies are pending.
//!
//! A [`Wire`] serves one connection, so severing the connection means dropping it.

pub(crate) mod receiving;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::protocol::commands::action::Key;
use crate::protocol::commands::companions::WITNESS;
use crate::protocol::commands::dialect::{Alone, Beside, Dialect, Lack};
use crate::protocol::commands::resp::{self, ReplyReader};
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::node::debt::Debt;
use crate::protocol::node::master_address::MasterAddress;
use crate::protocol::node::outgoing::Output;
use crate::protocol::node::pending::{OperationId, Pending, SentCommand};
use crate::protocol::node::server_properties::ServerProperties;
use crate::protocol::node::witness;
use crate::protocol::node::witness_look;
use crate::protocol::node::witness_proofs::{Part, Proofs};
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
    /// The number of replies to debts. (Whether there are any is asked behind each operation, and hundreds of others may
    /// be pending.)
    debts: usize,
}

impl Replies {
    fn push(&mut self, expected: Expected) {
        self.debts += usize::from(expected.pending.is_debt());
        self.queue.push_back(expected);
    }

    fn pop(&mut self) -> Option<Expected> {
        let expected = self.queue.pop_front()?;
        self.debts -= usize::from(expected.pending.is_debt());
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
    pub(crate) properties: ServerProperties,
    reader: ReplyReader,
    expected: Replies,
    /// Replies that do not count yet.
    proofs: Proofs<SentCommand>,
    /// The number of bytes sent. Over TLS each write counts as at least one turn of the server's event loop.
    sent: usize,
    /// When something was last sent or received, or a probe found nothing.
    active: Option<Instant>,
    probe: Probe,
    /// When to ping a node that gives no votes.
    ping_at: Option<Instant>,
    /// Whether something other than the set-up and pings was answered.
    useful: bool,
    /// The scripts whose texts were sent, among those that are loaded with their first call.
    loaded: u32,
    alone: Alone,
    pub(crate) address: MasterAddress,
}

impl Wire {
    pub(crate) fn new(mut properties: ServerProperties) -> Wire {
        Wire {
            reader: ReplyReader::new(std::mem::take(&mut properties.secret)),
            proofs: Proofs::new(properties.witness.take()),
            address: MasterAddress::new(properties.found.clone()),
            properties,
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
        let since = self.pending_since().zip(then);
        since.is_some_and(|(since, then)| since <= then)
    }

    /// When the oldest end of a lock was written that may not have been carried out. An operation may have waited for it:
    /// that ends with a majority.
    pub(crate) fn unconfirmed_release(&self) -> Option<Instant> {
        if self.expected.debts == 0 {
            return None;
        }
        let is_it = |one: &&Expected| one.pending.is_debt();
        Some(self.expected.queue.iter().find(is_it)?.at)
    }

    /// Whether the reply to this operation is pending, or does not count yet.
    pub(crate) fn awaits(&self, id: OperationId) -> bool {
        let pending = self.expected.queue.iter();
        let mut commands = pending.filter_map(|one| one.pending.sent());
        commands.any(|one| one.operation == Some(id))
            || self.proofs.hold(|one| one.operation == Some(id))
    }

    /// The debts whose replies are pending.
    pub(crate) fn debts(&self) -> impl Iterator<Item = Debt> {
        let expected = self.expected.queue.iter();
        expected.filter_map(|one| one.pending.debt().cloned())
    }

    // ---- sending

    /// How a command is sent. `loads`: its script, if that is loaded with its first call, which may be this one.
    #[inline]
    pub(crate) fn dialect(&mut self, loads: Option<usize>, key: &Key) -> Dialect {
        let mut dialect = self.properties.dialect;
        if self.alone.has(key.names()) {
            dialect.beside = Beside::None;
        }
        let Some(script) = loads else {
            return dialect;
        };
        let known = self.loaded & 1 << script != 0;
        self.loaded |= 1 << script;
        match known {
            true => dialect,
            false => dialect.with_text(),
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
        let before = match self.properties.by_record {
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
    pub(crate) fn write_asking(&mut self, out: &mut Output<'_>) {
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
            let own = self.properties.witness_key.as_deref();
            let key = own.map_or_else(|| prefix.key(WITNESS), Into::into);
            let [_, replication, stats, get, ..] = witness_look::look(&key);
            let command: &[&[u8]] = match part {
                Part::Master => &replication,
                Part::Evictions => &stats,
                Part::Witness if self.proofs.lack_witness() => &witness::ALL,
                Part::Witness => &get,
                Part::Clock => &[witness_look::CLOCK],
            };
            resp::pack(out.bytes, &[command], None);
        }
    }

    /// The missing capabilities that do not affect votes.
    pub(crate) fn lacks(&self) -> [Option<Lack>; 4] {
        let [dialect, guard, run_id] = self.properties.lacks();
        [dialect, guard, run_id, self.proofs.lack()]
    }

    /// Notes that `out` has everything that is being sent.
    pub(crate) fn sending(&mut self, out: &Output<'_>) {
        let mut bytes = out.bytes.len() - out.start;
        if self.properties.by_record && bytes > 0 && !mutant(Mutant::PingCountsManyWrites) {
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
    pub(crate) fn into_commands(self) -> impl Iterator<Item = SentCommand> {
        let expected = self.expected.queue.into_iter();
        let commands = expected.filter_map(|one| one.pending.command());
        self.proofs.into_held().chain(commands)
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
        let active = self.active.zip(then);
        active.is_some_and(|(active, then)| active < then)
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
    use crate::protocol::node::witness::{Evidence, Identity, Witness};
    use crate::values::clock;

    #[test]
    fn a_release_is_to_be_confirmed_until_its_reply_is_read() {
        for awaited in [Awaited::ByOperation, Awaited::ByNone, Awaited::AsProbe] {
            let now = clock::instant();
            let mut wire = Wire::default();
            let out = Output {
                bytes: &mut Vec::new(),
                start: 0,
                now,
            };
            let pending = |debt| {
                Pending::Command(SentCommand {
                    operation: None,
                    debt,
                    awaited,
                    named: false,
                    loads: false,
                    needs: Proof::None,
                })
            };
            wire.expect(pending(None), &out);
            assert_eq!(wire.unconfirmed_release(), None);
            wire.expect(pending(Some(Debt::release(key(b"a")))), &out);
            assert_eq!(wire.unconfirmed_release(), Some(now));
            wire.receive(b"+OK\r\n:1\r\n");
            while wire.next_reply(now, |_, _| ()).unwrap().is_some() {}
            assert_eq!(wire.unconfirmed_release(), None);
        }
    }

    #[test]
    fn a_command_whose_reply_does_not_count_yet_is_pending_when_the_connection_ends() {
        let now = clock::instant();
        let witness = Witness {
            evidence: Evidence::NoLosses,
            identity: Identity::new(Some("r"), Some("h"), 0, 0).unwrap(),
            age: Duration::ZERO,
            calm: true,
            lossless: true,
            clock: None,
        };
        let mut wire = Wire::new(ServerProperties {
            witness: Some(witness),
            ..ServerProperties::default()
        });
        let out = Output {
            bytes: &mut Vec::new(),
            start: 0,
            now,
        };
        let command = SentCommand {
            operation: None,
            debt: None,
            awaited: Awaited::ByOperation,
            named: false,
            loads: false,
            needs: Proof::Look,
        };
        wire.expect(Pending::Command(command), &out);
        wire.receive(b"+OK\r\n");
        assert!(wire.next_reply(now, |_, _| ()).unwrap().is_none());
        assert_eq!(wire.into_commands().count(), 1);
    }
}
