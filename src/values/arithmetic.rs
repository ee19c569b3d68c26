//! The arithmetic of the protocol: quorum, validity, votes and verdicts.
//!
//! Quorum and drift are those of the [Redlock
//! specification](https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/).

use std::time::Duration;

use crate::values::clock::{Point, millis};
use crate::values::config_error::ConfigError;
use crate::values::node_set::NodeSet;

/// Redis adds the ttl to the time of day in 64 bits of milliseconds. 100 years is far from that
/// edge and beyond any use.
const MAX_TTL: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// How many of `nodes` *configured* nodes decide (rule R1).
pub(crate) fn majority(nodes: usize) -> usize {
    nodes / 2 + 1
}

/// How many of `nodes` may fail.
pub(crate) fn spare(nodes: usize) -> usize {
    nodes - majority(nodes)
}

/// A lifetime that Redis can carry out, in milliseconds: at most 100 years, and long enough
/// that a validity is left once drift is taken off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ttl(u64);

impl Ttl {
    /// The shortest ttl of which anything is left once drift is taken off.
    pub(crate) const SHORTEST: Duration = Duration::from_millis(3);
    pub(crate) const MIN: Ttl = Ttl(3);
    pub(crate) const MAX: Ttl = Ttl(MAX_TTL.as_secs() * 1000);

    /// Truncates to whole milliseconds first: PX and the validity use that same value.
    pub(crate) fn new(asked: Duration) -> Result<Ttl, ConfigError> {
        if asked > MAX_TTL {
            return Err(ConfigError::new(format!(
                "the ttl is {asked:?}, the limit is 100 years"
            )));
        }
        let ttl = Ttl(millis(asked));
        if ttl.validity().is_zero() {
            return Err(ConfigError::new(format!(
                "the ttl is {asked:?}, which leaves no validity: at least 3 ms are needed, \
                 seconds are usual"
            )));
        }
        Ok(ttl)
    }

    /// The shortest ttl that is no shorter than `time`. `None`: above the limit.
    pub(crate) fn no_less_than(time: Duration) -> Option<Ttl> {
        let up = time.checked_add(Duration::from_nanos(999_999))?;
        Ttl::new(up.max(Ttl::SHORTEST)).ok()
    }

    /// The shortest ttl whose validity is no shorter than `time`. `None`: above the limit.
    pub(crate) fn valid_for(time: Duration) -> Option<Ttl> {
        let whole = time.checked_add(drift(Duration::ZERO))?;
        Ttl::no_less_than(whole.checked_mul(100)? / 99)
    }

    /// Like [`new`](Ttl::new), with the limit of a restart guard, if there is one (rule R14).
    pub(crate) fn within(asked: Duration, limit: Option<Duration>) -> Result<Ttl, ConfigError> {
        let ttl = Ttl::new(asked)?;
        match limit.filter(|limit| ttl.duration() > *limit) {
            None => Ok(ttl),
            Some(limit) => Err(ConfigError::new(format!(
                "the ttl is {:?}, the restart guard is for {limit:?} at most",
                ttl.duration()
            ))),
        }
    }

    pub(crate) fn duration(self) -> Duration {
        Duration::from_millis(self.0)
    }

    pub(crate) fn millis(self) -> u64 {
        self.0
    }

    /// The validity that the holder may rely on at the moment of sending: the ttl less [drift].
    pub(crate) fn validity(self) -> Duration {
        let time = self.duration();
        time.saturating_sub(drift(time))
    }
}

/// How much less or more than `time` may pass on another clock: 1 % (clocks that run at different rates) and 2 ms (the
/// precision of expiry).
pub(crate) fn drift(time: Duration) -> Duration {
    time / 100 + Duration::from_millis(2)
}

/// The end of a validity, which starts before the first byte is sent (rule R3).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    pub(crate) from: Point,
    pub(crate) validity: Duration,
}

impl Deadline {
    pub(crate) fn new(from: Point, validity: Duration) -> Deadline {
        Deadline { from, validity }
    }

    /// The rest of the validity: zero at the deadline and for ever after (rule R4).
    pub(crate) fn remaining(self, now: Point) -> Duration {
        self.validity.saturating_sub(self.from.elapsed_at(now))
    }

    /// Whether this deadline is later than another (rule R12: an extension never shortens).
    pub(crate) fn is_later(self, other: Deadline, now: Point) -> bool {
        self.remaining(now) > other.remaining(now)
    }
}

/// The question to the nodes, which decides how their votes count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// May I have it? A refusal is an answer.
    Acquire,
    /// Do I still have it (extend, release)? A refusal means "not held here".
    Held,
    /// Are you there? No node refuses, and every answer is of interest.
    Answer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A quorum granted, extended or deleted it.
    Yes,
    /// Acquire: denied. Held: too many nodes no longer hold it for a quorum.
    No,
    /// Too few answers for a verdict.
    Unavailable,
}

/// The votes on one operation. A node's first vote counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) granted: NodeSet,
    pub(crate) denied: NodeSet,
    pub(crate) failed: NodeSet,
}

impl Tally {
    pub(crate) fn voted(self) -> NodeSet {
        self.granted.or(self.denied).or(self.failed)
    }

    pub(crate) fn grant(&mut self, node: usize) {
        if !self.voted().has(node) {
            self.granted.add(node);
        }
    }

    pub(crate) fn deny(&mut self, node: usize) {
        if !self.voted().has(node) {
            self.denied.add(node);
        }
    }

    pub(crate) fn fail(&mut self, node: usize) {
        if !self.voted().has(node) {
            self.failed.add(node);
        }
    }

    /// The verdict of `nodes` configured nodes as soon as it is certain (rules R9, R13). With every vote counted, the
    /// verdict is certain.
    #[inline]
    pub(crate) fn verdict(self, question: Question, nodes: usize) -> Option<Verdict> {
        let (quorum, spare) = (majority(nodes), spare(nodes));
        let sets = [self.granted, self.denied, self.failed];
        let [granted, denied, failed] = sets.map(NodeSet::len);
        let pending = nodes.saturating_sub(granted + denied + failed);
        if question == Question::Answer && pending > 0 {
            None
        } else if granted >= quorum {
            Some(Verdict::Yes)
        } else if question == Question::Held && denied > spare {
            Some(Verdict::No)
        } else if failed > spare {
            Some(Verdict::Unavailable)
        } else if granted + pending >= quorum {
            None
        } else {
            match question {
                Question::Acquire if granted + denied >= quorum => Some(Verdict::No),
                Question::Held if denied + pending <= spare => Some(Verdict::Unavailable),
                Question::Answer => Some(Verdict::Unavailable),
                _ => None,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proof::fixtures::{MS, later};
    use crate::values::node_set::MAX_NODES;

    #[test]
    fn quorum_is_a_strict_majority_of_the_configured_nodes() {
        for nodes in 1..=MAX_NODES {
            let quorum = majority(nodes);
            assert!(2 * quorum > nodes && 2 * (quorum - 1) <= nodes, "{nodes}");
        }
    }

    #[test]
    fn ttl_is_truncated_to_whole_milliseconds_before_anything_is_computed_from_it() {
        let ttl = Ttl::new(Duration::from_nanos(10_999_999)).unwrap();
        assert_eq!((ttl.millis(), ttl.duration()), (10, 10 * MS));
        assert_eq!(ttl.validity(), 10 * MS - 2 * MS - 10 * MS / 100);
    }

    #[test]
    fn ttl_out_of_range_is_refused_with_value_and_limit() {
        for short in [Duration::ZERO, Duration::from_nanos(999_999), MS, 2 * MS] {
            let text = Ttl::new(short).unwrap_err().to_string();
            assert!(
                text.contains(&format!("{short:?}")) && text.contains("3 ms"),
                "{text}"
            );
        }
        assert!(Ttl::new(Ttl::SHORTEST).is_ok() && Ttl::SHORTEST == 3 * MS);
        assert!(Ttl::new(MAX_TTL).is_ok());
        for long in [MAX_TTL + MS, Duration::MAX] {
            let text = Ttl::new(long).unwrap_err().to_string();
            assert!(text.contains("100 years"), "{text}");
        }
    }

    #[test]
    fn the_shortest_ttl_that_is_valid_for_a_time_is_the_one_of_which_that_is_left() {
        for ms in [3, 4, 100, 101, 1000, 59_999, 60_000, 3_600_000] {
            let ttl = Ttl::new(ms * MS).unwrap();
            let valid_for = |time: Duration| Ttl::valid_for(time).unwrap();
            assert_eq!(valid_for(ttl.validity()), ttl);
            let more = valid_for(ttl.validity() + Duration::from_nanos(1));
            assert_eq!(more.millis(), ttl.millis() + 1);
        }
        assert_eq!(Ttl::valid_for(Duration::ZERO), Some(Ttl::MIN));
        assert_eq!([MAX_TTL, Duration::MAX].map(Ttl::valid_for), [None; 2]);
    }

    #[test]
    fn the_limit_of_a_restart_guard_is_the_longest_ttl() {
        let limit = 10_000 * MS;
        for (asked, limit, is_within) in [
            (limit, Some(limit), true),
            (limit + MS, Some(limit), false),
            (limit + MS, None, true),
        ] {
            let found = Ttl::within(asked, limit).map(Ttl::duration);
            assert_eq!(found.is_ok(), is_within, "{asked:?}");
            match found {
                Ok(ttl) => assert_eq!(ttl, asked),
                Err(error) => assert!(error.to_string().contains("10.001s"), "{error}"),
            }
        }
    }

    /// "No `Ok` past the deadline", every small case: the rest is positive exactly while the key on the
    /// slowest-expiring terms (ttl less drift, counted from before sending) still lives.
    #[test]
    fn nothing_remains_at_or_past_the_deadline_exhaustively() {
        let start = Point::now();
        for ttl_ms in 3..250_u32 {
            let ttl = Ttl::new(ttl_ms * MS).unwrap();
            let deadline = Deadline::new(start, ttl.validity());
            for elapsed_us in (0..260_000_u64).step_by(250) {
                let elapsed = Duration::from_micros(elapsed_us);
                let remaining = deadline.remaining(later(start, elapsed));
                // In whole microseconds, by other arithmetic than the code's.
                let end_us = i64::from(ttl_ms) * 1000 - i64::from(ttl_ms) * 10 - 2000;
                let expected = (end_us - i64::try_from(elapsed_us).unwrap()).max(0);
                assert_eq!(i64::try_from(remaining.as_micros()).unwrap(), expected);
                assert_eq!(remaining.is_zero(), expected == 0);
            }
        }
    }

    /// "No `Ok` past the deadline" with random ttls up to the limit, clocks that disagree, and extensions.
    #[test]
    fn nothing_remains_at_or_past_the_deadline_randomised() {
        let mut seed = 0x9E37_79B9_7F4A_7C15_u64;
        let mut random = |below: u64| {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed % below
        };
        let start = Point::now();
        for _ in 0..200_000 {
            let scale = 1 << random(40);
            let ttl = Ttl::new(Duration::from_millis(3 + random(scale))).unwrap();
            let mono = Duration::from_micros(random(2000 * ttl.millis()));
            let wall = Duration::from_micros(random(2000 * ttl.millis()));
            let now = Point {
                mono: start.mono + mono,
                wall: start.wall + wall,
            };
            let deadline = Deadline::new(start, ttl.validity());
            let elapsed = mono.max(wall);
            let drift = ttl.duration() / 100 + 2 * MS;
            assert_eq!(
                deadline.remaining(now) > Duration::ZERO,
                elapsed + drift < ttl.duration()
            );

            let extension = Ttl::new(Duration::from_millis(3 + random(scale))).unwrap();
            let extended = Deadline::new(now, extension.validity());
            let longer = extension.validity() > deadline.remaining(now);
            assert_eq!(extended.is_later(deadline, now), longer);
            assert!(!deadline.is_later(deadline, now));
        }
    }

    /// Every tally of up to 7 nodes against the rules in words.
    #[test]
    fn verdicts_follow_the_rules_for_every_tally() {
        for nodes in 1..=7 {
            let quorum = majority(nodes);
            for granted in 0..=nodes {
                for denied in 0..=nodes - granted {
                    for failed in 0..=nodes - granted - denied {
                        let mut tally = Tally::default();
                        (0..granted).for_each(|node| tally.grant(node));
                        (granted..granted + denied).for_each(|node| tally.deny(node));
                        let answered = granted + denied;
                        (answered..answered + failed).for_each(|node| tally.fail(node));
                        let pending = nodes - answered - failed;
                        let case = format!("{granted}+ {denied}- {failed}! of {nodes}");

                        let acquire = tally.verdict(Question::Acquire, nodes);
                        let is = |found: Option<Verdict>, verdict| found == Some(verdict);
                        assert_eq!(is(acquire, Verdict::Yes), granted >= quorum, "{case}");
                        let too_few = failed > nodes - quorum;
                        assert_eq!(is(acquire, Verdict::Unavailable), too_few, "{case}");
                        let no = granted + pending < quorum && answered >= quorum;
                        assert_eq!(is(acquire, Verdict::No), no, "{case}");

                        let held = tally.verdict(Question::Held, nodes);
                        assert_eq!(is(held, Verdict::Yes), granted >= quorum, "{case}");
                        let lost = denied > nodes - quorum;
                        assert_eq!(is(held, Verdict::No), lost, "{case}");
                        // While "lost" is still possible, it is waited for.
                        let hopeless =
                            granted + pending < quorum && denied + pending <= nodes - quorum;
                        let unknown = granted < quorum && !lost && (too_few || hopeless);
                        assert_eq!(is(held, Verdict::Unavailable), unknown, "{case}");
                        if pending == 0 {
                            assert!(acquire.is_some() && held.is_some(), "{case}");
                        }
                        // All nodes are waited for.
                        let answer = tally.verdict(Question::Answer, nodes);
                        let all = match granted >= quorum {
                            true => Verdict::Yes,
                            false => Verdict::Unavailable,
                        };
                        assert_eq!(answer, (pending == 0).then_some(all), "{case}");
                        // Certain means certain: no vote that may still arrive changes it.
                        for question in [Question::Acquire, Question::Held] {
                            let now = tally.verdict(question, nodes);
                            if now.is_none() || pending == 0 {
                                continue;
                            }
                            for ending in 0..3_usize.pow(u32::try_from(pending).unwrap()) {
                                let mut end = tally;
                                let mut rest = ending;
                                for node in answered + failed..nodes {
                                    match rest % 3 {
                                        0 => end.grant(node),
                                        1 => end.deny(node),
                                        _ => end.fail(node),
                                    }
                                    rest /= 3;
                                }
                                let late = end.verdict(question, nodes);
                                // Too few answers stays an honest "unknown", even if a later answer would have shown.
                                let unknown = Some(Verdict::Unavailable);
                                if now != unknown && late != unknown {
                                    assert_eq!(late, now, "{case}");
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_node_votes_once() {
        let mut tally = Tally::default();
        tally.fail(0);
        tally.grant(0);
        tally.deny(0);
        let first = NodeSet::first(1);
        assert_eq!((tally.failed, tally.voted()), (first, first));
    }
}
