//! Debts to a node for a lock that its holder has given up.

use std::time::{Duration, Instant};

use crate::errors::redirection::Redirection;
use crate::protocol::commands::action::{Action, Key, Notify};
use crate::protocol::mutants::{Mutant, mutant};
use crate::values::arithmetic::{Ttl, drift};

/// How long a refused debt is repeated if the ttl is unknown because another process acquired the lock.
pub(crate) const UNKNOWN_TTL: Duration = Duration::from_secs(24 * 3600);

/// A debt to a node for one lock: its release or, if the lock is left for a time, its shortening to a point in time
/// (rule R55).
#[derive(Clone, Debug)]
pub(crate) struct Debt {
    pub(crate) key: Key,
    /// Which waiter its release notifies (rule R34).
    notify: Notify,
    /// Boxed, since most debts are releases that no server refuses, and each command to a node has room for a debt.
    times: Option<Box<DebtTimes>>,
}

#[derive(Clone, Debug, Default)]
struct DebtTimes {
    left_until: Option<Instant>,
    /// When the key has ended. Set once the server has answered: it has read all that could prolong the lock.
    ends: Option<Instant>,
}

/// A debt whose key another server has, as the node's server answered (rule R45). No operation waits for it.
pub(crate) struct Redirected {
    pub(crate) node: usize,
    pub(crate) debt: Debt,
    pub(crate) answer: Box<Redirection>,
}

impl Debt {
    /// A release that notifies no waiter.
    pub(crate) fn release(key: Key) -> Debt {
        Debt {
            key,
            notify: Notify::None,
            times: None,
        }
    }

    /// The debt of a release that was to notify this waiter. Sent late, it passes over no process: a thread of this one may
    /// wait by then. If none does, the process passes the message on (rule R34a).
    pub(crate) fn notifying(self, notify: Notify) -> Debt {
        let notify = match notify {
            _ if mutant(Mutant::LateReleaseIsSilent) => Notify::None,
            Notify::FirstBut(_) if !mutant(Mutant::LateReleasePassesOver) => Notify::First,
            other => other,
        };
        Debt { notify, ..self }
    }

    pub(crate) fn shortening(key: Key, left_until: Instant) -> Debt {
        let times = DebtTimes {
            left_until: Some(left_until),
            ends: None,
        };
        Debt {
            times: Some(times.into()),
            ..Debt::release(key)
        }
    }

    /// The action to send now: a shortening leaves the rest of its time, and becomes a release once that is over.
    pub(crate) fn due(&mut self, now: Instant) -> Action {
        let left = |until: Instant| match mutant(Mutant::LateShorteningBeginsAnew) {
            true => self.key.longest(),
            false => until.checked_duration_since(now),
        };
        let left = self.left_until().and_then(left);
        let left = left.filter(|left| !left.is_zero() && !mutant(Mutant::LateShorteningReleases));
        match left.and_then(Ttl::no_less_than) {
            Some(ttl) => Action::Shorten(ttl),
            None => {
                if let Some(times) = &mut self.times {
                    times.left_until = None;
                }
                Action::Release(self.notify)
            }
        }
    }

    /// The action that was sent, as far as it decides how its reply is read.
    pub(crate) fn sent(&self) -> Action {
        match self.left_until() {
            Some(_) => Action::Shorten(Ttl::MIN),
            None => Action::Release(Notify::First),
        }
    }

    /// Notes that the server has refused the debt for now, and until when the key can exist. An allowance for the
    /// server's clock is included.
    pub(crate) fn refused(&mut self, now: Instant) {
        let longest = self.key.longest().unwrap_or(UNKNOWN_TTL);
        let times = self.times.get_or_insert_default();
        times.ends.get_or_insert(now + longest + drift(longest));
    }

    pub(crate) fn is_over(&self, now: Instant) -> bool {
        let ends = self.times.as_ref().and_then(|times| times.ends);
        ends.is_some_and(|ends| ends <= now)
    }

    fn left_until(&self) -> Option<Instant> {
        self.times.as_ref().and_then(|times| times.left_until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::fixtures::{MS, key, ttl};
    use crate::values::clock;

    #[test]
    fn a_shortening_leaves_the_rest_of_its_time_and_is_a_release_behind_it() {
        let now = clock::instant();
        let mut debt = Debt::shortening(key(b"a"), now + 500 * MS);
        assert_eq!(debt.due(now + 100 * MS), Action::Shorten(ttl(400 * MS)));
        assert_eq!(debt.due(now + 499 * MS), Action::Shorten(Ttl::MIN));
        assert!(matches!(debt.sent(), Action::Shorten(_)));
        for later in [500, 501, 9000] {
            assert_eq!(debt.due(now + later * MS), Action::Release(Notify::None));
            assert!(matches!(debt.sent(), Action::Release(_)));
        }
    }

    #[test]
    fn a_refused_debt_ends_with_its_key_by_the_slowest_clock_however_often_it_is_refused() {
        let now = clock::instant();
        let mut debt = Debt::release(key(b"a").lasting(ttl(1000 * MS)));
        assert!(!debt.is_over(now + 9000 * MS));
        debt.refused(now);
        debt.refused(now + 900 * MS);
        assert!(!debt.is_over(now + 1011 * MS) && debt.is_over(now + 1012 * MS));
    }
}
