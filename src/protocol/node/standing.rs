//! Which of a node's answers count now (rules R16, R43, R44).
//!
//! A server may have several reasons to sit out. Each is a [`SitsOut`], and all are named in
//! [`KnownServer::standing`](crate::protocol::node::known_server::KnownServer::standing).

use std::time::{Duration, Instant};

use crate::errors::cause::Cause;
use crate::protocol::node::restart_guard::VotesFrom;

/// Which of a node's answers count now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// All.
    Votes,
    /// Those about locks that are held, and not those to acquires (rule R44).
    Extends(SitsOut),
    /// Those to releases only: the server may have forgotten locks (rule R16).
    Not(SitsOut),
    /// Those to releases only: another server may be the master by now (rule R43). Then it also counts whether this
    /// server sits out.
    Unconfirmed(Option<SitsOut>),
    /// None: operations are not sent to the node.
    Away,
}

/// A reason for which a server gives no votes, and from when on it gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SitsOut {
    pub(crate) votes: VotesFrom,
    pub(crate) why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// The server may have forgotten locks.
    Forgets,
    /// The server evicts keys, and may have evicted locks.
    Evicts,
    /// The server's clock was set forward by this, and locks may have ended early.
    ClockSet(Duration),
}

impl Standing {
    /// The standing of a server with these reasons to sit out.
    pub(crate) fn of(reasons: impl IntoIterator<Item = SitsOut>, now: Instant) -> Standing {
        let reasons = reasons.into_iter();
        let Some(reason) = reasons.reduce(SitsOut::and) else {
            return Standing::Votes;
        };
        match reason.votes {
            VotesFrom { held, .. } if held > now => Standing::Not(reason),
            VotesFrom { all, .. } if all > now => Standing::Extends(reason),
            _ => Standing::Votes,
        }
    }

    /// The standing if no directory has confirmed the node's address lately.
    pub(super) fn unconfirmed(self) -> Standing {
        match self {
            Standing::Votes => Standing::Unconfirmed(None),
            Standing::Extends(reason) => Standing::Unconfirmed(Some(reason)),
            rest => rest,
        }
    }

    /// Why a new operation's answer cannot count in its time. `acquires`: whether it takes a lock.
    pub(crate) fn refuses(&self, acquires: bool) -> Option<SitsOut> {
        match *self {
            Standing::Not(reason) => Some(reason),
            Standing::Extends(reason) if acquires => Some(reason),
            Standing::Unconfirmed(reason) if acquires => reason,
            _ => None,
        }
    }
}

impl SitsOut {
    /// Both reasons. The one that lasts longer is reported.
    fn and(self, other: SitsOut) -> SitsOut {
        let longest = match other.votes.all > self.votes.all {
            true => other,
            false => self,
        };
        SitsOut {
            votes: self.votes.later(&other.votes),
            ..longest
        }
    }

    /// How long until the node grants locks.
    pub(crate) fn left(&self, now: Instant) -> Duration {
        self.votes.all.saturating_duration_since(now)
    }

    pub(crate) fn cause(&self, now: Instant) -> Cause {
        match self.why {
            Why::ClockSet(by) => Cause::Stepped(by, self.left(now)),
            Why::Forgets | Why::Evicts => {
                Cause::Quarantined(self.left(now), self.why == Why::Evicts)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::clock;

    #[test]
    fn a_server_with_several_reasons_to_sit_out_waits_for_each_and_reports_the_longest() {
        let now = clock::instant();
        let at = |seconds: u64| now + Duration::from_secs(seconds);
        let reason = |held, all, why| SitsOut {
            votes: VotesFrom {
                held: at(held),
                all: at(all),
            },
            why,
        };
        let forgets = reason(5, 30, Why::Forgets);
        let evicts = reason(0, 40, Why::Evicts);
        let both = reason(5, 40, Why::Evicts);
        for (reasons, after, expected) in [
            (&[][..], 0, Standing::Votes),
            (&[forgets], 4, Standing::Not(forgets)),
            (&[forgets], 5, Standing::Extends(forgets)),
            (&[forgets], 30, Standing::Votes),
            (&[evicts], 0, Standing::Extends(evicts)),
            (&[forgets, evicts], 4, Standing::Not(both)),
            (&[evicts, forgets], 30, Standing::Extends(both)),
            (&[evicts, forgets], 40, Standing::Votes),
        ] {
            let standing = Standing::of(reasons.iter().copied(), at(after));
            assert_eq!(standing, expected, "{reasons:?} after {after} s");
        }
        let set = reason(0, 50, Why::ClockSet(Duration::from_secs(3)));
        let standing = Standing::of([forgets, set], at(4));
        let Standing::Not(both_set) = standing else {
            panic!("{standing:?}");
        };
        assert_eq!(both_set, reason(5, 50, set.why));
        assert!(
            matches!(both_set.cause(at(10)), Cause::Stepped(by, left) if [by, left].map(|one| one.as_secs()) == [3, 40])
        );
        let cause = both.cause(at(10));
        assert!(matches!(cause, Cause::Quarantined(left, true) if left.as_secs() == 30));
    }
}
