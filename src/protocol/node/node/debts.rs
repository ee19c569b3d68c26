//! The releases that a node is owed, and how they are written.

use std::time::Instant;

use crate::protocol::commands::vote::Proof;
use crate::protocol::node::debt::Debt;
use crate::protocol::node::node::Node;
use crate::protocol::node::outgoing::Output;
use crate::protocol::node::pending::{Awaited, Pending, SentCommand};
use crate::values::prefix::Prefix;
use crate::values::random::Rng;

/// The maximum number of releases in one write, and of their bytes.
const MAX_RELEASES_AT_ONCE: usize = 1024;
const MAX_BYTES_AT_ONCE: usize = 1 << 17;

impl Node {
    /// Adds a debt, which the node is sent as soon as it takes any.
    pub(crate) fn owe(&mut self, debt: Debt) {
        self.outbox.push(debt);
    }

    /// Defers a debt that its server could not carry out now, and would later. `retries`: whether it was deferred before.
    pub(crate) fn defer(&mut self, debt: Debt, retries: bool, rng: &mut Rng, now: Instant) {
        self.outbox.defer(debt, retries, rng, now);
    }

    /// Has the deferred debts sent again without a pause.
    pub(crate) fn retry_deferred(&mut self) {
        self.outbox.retry_deferred();
    }

    #[inline]
    pub(crate) fn has_releases(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Takes the debts that the node is still to be sent, or has not confirmed, and that `go` elsewhere.
    pub(crate) fn take_debts(&mut self, go: impl Fn(&Debt) -> bool) -> Vec<Debt> {
        self.outbox.retry_deferred();
        let to_send = self.outbox.take(&go).into_iter();
        self.wire.debts().filter(&go).chain(to_send).collect()
    }

    /// Whether the node may not have carried out all its debts.
    #[cfg(any(test, feature = "cli"))]
    pub(crate) fn is_owed(&self) -> bool {
        self.has_releases()
            || self.outbox.retry_at().is_some()
            || self.wire.debts().next().is_some()
    }

    /// When a release that was refused for now is tried again, over a connection that takes it.
    pub(crate) fn retries_at(&self) -> Option<Instant> {
        self.outbox.retry_at().filter(|_| self.is_connected())
    }

    /// Whether a retry is due.
    #[inline]
    pub(crate) fn retries(&self, now: Instant) -> bool {
        self.outbox.retry_at().is_some_and(|at| at <= now)
    }

    /// Appends releases. Returns whether those were all.
    #[inline]
    pub(crate) fn write_releases(&mut self, prefix: &Prefix, out: &mut Output<'_>) -> bool {
        let start = out.bytes.len();
        for _ in 0..MAX_RELEASES_AT_ONCE {
            if out.bytes.len() - start > MAX_BYTES_AT_ONCE {
                break;
            }
            match self.outbox.pop() {
                Some(debt) => self.write_debt(debt, false, prefix, out),
                None => break,
            }
        }
        !self.has_releases()
    }

    /// Appends one deferred release, if there is any.
    #[inline]
    pub(crate) fn write_deferred(&mut self, prefix: &Prefix, out: &mut Output<'_>) {
        if let Some(debt) = self.outbox.pop_deferred(out.now) {
            self.write_debt(debt, true, prefix, out);
        }
    }

    fn write_debt(&mut self, mut debt: Debt, retries: bool, prefix: &Prefix, out: &mut Output<'_>) {
        let action = debt.due(out.now);
        let key = debt.key.clone();
        let loads = action.loads(&key);
        if self.wire.properties.is_target {
            self.wire.write_asking(out);
        }
        let dialect = self.wire.dialect(loads, &key);
        let command = SentCommand {
            operation: None,
            debt: Some(debt),
            awaited: match retries {
                true => Awaited::AsProbe,
                false => Awaited::ByNone,
            },
            named: dialect.names_companions(&action, &key, prefix),
            loads: loads.is_some(),
            needs: Proof::None,
        };
        self.wire.expect(Pending::Command(command), out);
        action.pack(&key, prefix, dialect, out.bytes);
    }

    pub(super) fn can_write_releases(&self) -> bool {
        self.has_releases() && self.wire.pending() < MAX_RELEASES_AT_ONCE
    }
}
