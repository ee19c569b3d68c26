//! Virtual locks that are left without a release: until their ttls, or for a time.

use std::time::Duration;

use super::client::{Doing, Held};
use super::{Count, MS, NODE_TIMEOUT, World};
use crate::protocol::operation::{Answer, Outcome};
use crate::protocol::quorum::{Deadline, NodeSet};

impl World {
    pub(super) fn leave(&mut self, c: usize, thread: usize, held: Held) {
        let Held { token, lease } = held;
        if self.checks.tokens[token].kind.is_plain() {
            let resource = self.checks.tokens[token].resource;
            self.clients[c].held_here.remove(&[resource]);
        }
        self.checks.tokens[token].leaked = true;
        let now = self.clients[c].clocks.point(self.t);
        let time = Duration::from_micros(self.random.below(100 * MS));
        let op = lease
            .shortening(time, now)
            .filter(|_| self.random.chance(70));
        let Some(op) = op else {
            // From here on it believes in nothing.
            self.checks.tokens[token].belief = None;
            self.clients[c].threads[thread].doing = Doing::Idle(self.t);
            return;
        };
        // Others are kept out for the time that was asked for, but for what clocks differ by.
        if let Some(belief) = &mut self.checks.tokens[token].belief {
            let drift = time / 100 + Duration::from_millis(2);
            belief.deadline = Deadline::new(now, time.saturating_sub(drift));
        }
        self.checks.tokens[token].on.extended = NodeSet::EMPTY;
        self.begin(c, thread);
        self.clients[c].threads[thread].doing = Doing::Shortens(token);
        self.submit(c, thread, op);
    }

    pub(super) fn shortened(&mut self, c: usize, thread: usize, token: usize, answer: &Answer) {
        self.in_time(c, thread, 2 * NODE_TIMEOUT);
        if let Outcome::Yes(_) = answer.outcome {
            self.counts[Count::Shortened] += 1;
            let (yes, quorum) = (self.checks.tokens[token].on.extended, self.quorum());
            // A permit is shortened in another slot, too.
            let any_slot = self.conditions.permits().is_some();
            self.check(yes.len() >= quorum || any_slot, || {
                format!("client {c}: {token} is shortened by {yes:?}")
            });
            // A server that takes another one's place may not know of it.
            self.checks.tokens[token].shortened = !self.conditions.fails_over;
        }
        self.clients[c].threads[thread].doing = Doing::Idle(self.t);
    }

    /// A lock that a quorum has although it was shortened, long after its time.
    pub(super) fn not_shortened(&self) -> Option<usize> {
        let has = |token: usize| {
            let servers = self.servers.iter();
            let those = servers.filter(|server| server.locks(self.t).any(|lock| lock.1 == token));
            those.count() >= self.quorum()
        };
        let shortened =
            (0..self.checks.tokens.len()).filter(|token| self.checks.tokens[*token].shortened);
        shortened.into_iter().find(|token| has(*token))
    }
}
