//! Whether a server may have forgotten locks that are still held (rules R14–R18, R40, R44).
//!
//! A node that was restarted without its data grants locks that are held. So it gives no vote until every lock that it
//! may have granted has ended: for the longest ttl that any client uses, counted from the start of its server. The
//! Redlock specification calls that a delayed restart; here the client enforces it. A promoted replica and a flushed
//! server are treated alike: then the time counts from when the [witness](crate::protocol::node::witness) was set.

use std::time::{Duration, Instant};

use crate::protocol::mutants::{Mutant, mutant};

/// How much too large `uptime_in_seconds` may be.
const RESOLUTION: Duration = Duration::from_secs(1);

/// The longest ttl if none is given and a server may take a master's place at any time.
pub(crate) const DEFAULT_TTL: Duration = Duration::from_secs(30);
/// How long the previous master may go on granting locks.
pub(crate) const MARGIN: Duration = Duration::from_secs(5);

/// How long a newly started server gives no votes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RestartGuard {
    wait: Duration,
    resolution: Duration,
    margin: Duration,
    /// Whether the node is the only one: an extension counts before an acquire does (rule R44).
    only: bool,
}

/// When a server may begin to vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VotesFrom {
    /// When it may vote on extensions.
    pub(crate) held: Instant,
    /// When it may vote on everything.
    pub(crate) all: Instant,
}

impl VotesFrom {
    pub(crate) fn sooner(self, other: &VotesFrom) -> VotesFrom {
        VotesFrom {
            held: self.held.min(other.held),
            all: self.all.min(other.all),
        }
    }

    pub(crate) fn later(self, other: &VotesFrom) -> VotesFrom {
        VotesFrom {
            held: self.held.max(other.held),
            all: self.all.max(other.all),
        }
    }
}

/// A server's report of its start, and when that was received.
#[derive(Clone, Debug)]
pub(crate) struct ServerStart<'a> {
    /// Unknown if `INFO` is forbidden.
    pub(crate) run_id: Option<&'a str>,
    /// Zero if unknown.
    pub(crate) uptime: Duration,
    pub(crate) at: Instant,
    /// The age of the witness. `None`: the server has lost nothing since its start.
    pub(crate) witness: Option<Duration>,
}

/// The record of the server that was at an address before.
#[derive(Clone, Debug)]
pub(crate) struct PreviousServer {
    pub(crate) run_id: Option<String>,
    /// When its last reply was received.
    pub(crate) heard: Instant,
    pub(crate) votes: VotesFrom,
}

impl PreviousServer {
    /// Whether another server is there now, as far as the run ids show.
    pub(crate) fn is_other(&self, run_id: Option<&str>) -> bool {
        let known = self.run_id.as_deref();
        known.is_some() && run_id.is_some() && known != run_id
    }
}

impl RestartGuard {
    /// The guard for locks with ttls up to `max_ttl`, on this number of nodes.
    pub(crate) fn new(max_ttl: Duration, nodes: usize) -> RestartGuard {
        RestartGuard {
            wait: max_ttl.max(RESOLUTION),
            resolution: RESOLUTION,
            margin: MARGIN,
            only: nodes == 1,
        }
    }

    /// The guard if a server may be promoted and restarted at once: its uptime shows less.
    pub(crate) fn of_set(self) -> RestartGuard {
        RestartGuard {
            resolution: self.resolution.saturating_add(self.margin),
            ..self
        }
    }

    /// The longest ttl of any lock.
    pub(crate) fn longest(self) -> Duration {
        self.wait
    }

    /// The age at which a witness shows that its server may vote.
    pub(crate) fn seasoned(self) -> Duration {
        self.wait.saturating_add(self.margin)
    }

    /// How long until a server may vote, by its uptime alone.
    pub(crate) fn left(self, uptime: Duration) -> Duration {
        let after_start = self.wait.saturating_add(self.resolution);
        after_start.saturating_sub(uptime)
    }

    /// When a server may begin to vote: when every lock has ended that it, or its predecessor, may have forgotten.
    pub(crate) fn votes(
        self,
        known: Option<&PreviousServer>,
        start: &ServerStart<'_>,
    ) -> VotesFrom {
        let grants = RestartGuard {
            margin: match mutant(Mutant::GrantInMargin) {
                true => Duration::ZERO,
                false => self.margin,
            },
            ..self
        };
        let all = grants.votes_from(known, start, |votes| votes.all);
        let at_once = RestartGuard {
            wait: Duration::ZERO,
            margin: match mutant(Mutant::ExtendInMargin) {
                true => Duration::ZERO,
                false => self.margin,
            },
            ..self
        };
        let held = match self.only {
            true => at_once.votes_from(known, start, |votes| votes.held),
            false => all,
        };
        VotesFrom { held, all }
    }

    fn votes_from(
        self,
        known: Option<&PreviousServer>,
        start: &ServerStart<'_>,
        which: impl Fn(&VotesFrom) -> Instant,
    ) -> Instant {
        let left = match start.witness {
            None => self.left(start.uptime),
            Some(age) => self.seasoned().saturating_sub(age),
        };
        let by_itself = later(start.at, left);
        match known {
            None => by_itself,
            Some(known) if known.is_other(start.run_id) => {
                let unheard = start.at.saturating_duration_since(known.heard);
                // The server may have been up already when its predecessor's last reply was received: a replacement.
                // The predecessor may have granted locks until now.
                let since = if start.uptime > unheard || start.uptime.is_zero() {
                    start.at
                } else {
                    known.heard
                };
                later(since, self.wait).max(by_itself)
            }
            // Connected again: the uptime alone does not show what the server was before.
            Some(known) => which(&known.votes).max(by_itself),
        }
    }
}

#[cfg(test)]
impl RestartGuard {
    /// The guard with other times: the simulation's seconds are shorter.
    pub(crate) fn shorter(self, [wait, resolution, margin]: [Duration; 3]) -> RestartGuard {
        RestartGuard {
            wait,
            resolution,
            margin,
            ..self
        }
    }
}

/// The time `time` after `at`. 100 years may be beyond the clock's range: then a time that is never reached.
pub(super) fn later(at: Instant, time: Duration) -> Instant {
    const FAR: Duration = Duration::from_secs(3600 * 24 * 365);
    at.checked_add(time)
        .or_else(|| at.checked_add(FAR))
        .unwrap_or(at)
}

/// How long until enough nodes vote. A quorum can spare `spare` of the `failed` nodes; `waits` are the times of those
/// that only the guard keeps from voting. `None` if too many others failed.
pub(crate) fn retry_after(
    mut waits: Vec<Duration>,
    failed: usize,
    spare: usize,
) -> Option<Duration> {
    waits.sort_unstable();
    let needed = failed.saturating_sub(spare).max(1);
    waits.get(needed - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);
    const MS: Duration = Duration::from_millis(1);

    /// For all fractions of a second at which a server may start and be asked: a server that votes has been up long
    /// enough, and waits no longer than two seconds more.
    #[test]
    fn a_server_votes_when_it_has_been_up_for_long_enough() {
        let zero = crate::values::clock::instant();
        for wait in 1..=5 {
            let guard = RestartGuard::new(wait * S, 3);
            for begin in (0..1000).step_by(50) {
                for age in (0..8000).step_by(50) {
                    let (begun, at) = (zero + begin * MS, zero + (begin + age) * MS);
                    // Redis computes the uptime from whole seconds of the time of day.
                    let whole = |at: Instant| (at - zero).as_secs();
                    let uptime = S * u32::try_from(whole(at) - whole(begun)).unwrap();
                    let start = ServerStart {
                        run_id: Some("a"),
                        uptime,
                        at,
                        witness: None,
                    };
                    let from = guard.votes(None, &start).all;
                    assert!(from >= at && from >= begun + wait * S);
                    assert!(from <= at.max(begun + (wait + 2) * S));
                }
            }
        }
    }

    #[test]
    fn what_was_recorded_of_an_address_counts() {
        let (zero, guard) = (crate::values::clock::instant(), RestartGuard::new(5 * S, 3));
        let known = PreviousServer {
            run_id: Some("a".into()),
            heard: zero + 10 * S,
            votes: VotesFrom {
                held: zero + 13 * S,
                all: zero + 13 * S,
            },
        };
        let from = |run_id, uptime| {
            let start = ServerStart {
                run_id,
                uptime,
                at: zero + 11 * S,
                witness: None,
            };
            guard.votes(Some(&known), &start).all
        };
        let long = 1000 * S;
        assert_eq!(from(Some("a"), long), zero + 13 * S, "the same server");
        assert_eq!(from(Some("b"), long), zero + 16 * S, "since now");
        assert_eq!(from(Some("b"), S), zero + 16 * S, "since it was started");
        let later = ServerStart {
            run_id: Some("b"),
            uptime: 90 * S,
            at: zero + 110 * S,
            witness: None,
        };
        let late = guard.votes(Some(&known), &later).all;
        assert_eq!(late, zero + 110 * S, "started after the other was heard");
        let unknown = ServerStart {
            uptime: Duration::ZERO,
            witness: Some(90 * S),
            ..later
        };
        let late = guard.votes(Some(&known), &unknown).all;
        assert_eq!(late, zero + 115 * S, "since now, as its uptime is unknown");
        assert_eq!(from(None, long), zero + 13 * S, "unknown");
    }

    /// If a server may have lost something, its witness shows since when it has lost nothing.
    #[test]
    fn a_server_that_was_promoted_votes_when_its_witness_is_old_enough() {
        let at = crate::values::clock::instant();
        for (nodes, age, held, all) in [
            (1, Duration::ZERO, 5, 35),
            (1, 2 * S, 3, 33),
            (1, 6 * S, 0, 29),
            (1, 35 * S, 0, 0),
            (3, 2 * S, 33, 33),
        ] {
            let start = ServerStart {
                run_id: None,
                uptime: 1000 * S,
                at,
                witness: Some(age),
            };
            let votes = RestartGuard::new(30 * S, nodes).votes(None, &start);
            assert_eq!((votes.held, votes.all), (at + held * S, at + all * S));
        }
    }

    /// A server that was promoted and restarted right after looks as if it had always been the master.
    #[test]
    fn a_server_of_a_set_is_calm_when_the_one_before_has_ended_too() {
        let at = crate::values::clock::instant();
        let guard = RestartGuard::new(30 * S, 1).of_set();
        for (uptime, held, all) in [(0, 6, 36), (5, 1, 31), (6, 0, 30), (36, 0, 0)] {
            let start = ServerStart {
                run_id: None,
                uptime: uptime * S,
                at,
                witness: None,
            };
            let votes = guard.votes(None, &start);
            assert_eq!((votes.held, votes.all), (at + held * S, at + all * S));
        }
        assert_eq!(guard.seasoned(), 35 * S);
    }

    #[test]
    fn short_and_long_ttls_do_no_harm() {
        let at = crate::values::clock::instant();
        let start = |uptime| ServerStart {
            run_id: None,
            uptime,
            at,
            witness: None,
        };
        let from = |max_ttl, uptime| {
            RestartGuard::new(max_ttl, 3)
                .votes(None, &start(uptime))
                .all
        };
        assert_eq!(from(3 * MS, Duration::ZERO), at + 2 * S);
        assert_eq!(from(3 * MS, Duration::MAX), at);
        let century = 100 * 365 * 24 * 3600 * S;
        assert_eq!(from(century, Duration::ZERO), at + century + S);
        assert!(from(Duration::MAX, Duration::ZERO) > at + 1000 * S);
    }

    #[test]
    fn an_error_shows_for_how_long_too_few_nodes_vote() {
        let [a, b, c] = [3 * S, S, 2 * S];
        // Three of five nodes sit out: the first that comes back makes a majority.
        assert_eq!(retry_after(vec![a, b, c], 3, 2), Some(b));
        // Two, and two are dead.
        assert_eq!(retry_after(vec![a, b], 4, 2), Some(a));
        // One, and three are dead.
        assert_eq!(retry_after(vec![a], 4, 2), None);
        assert_eq!(retry_after(Vec::new(), 3, 2), None);
    }
}
