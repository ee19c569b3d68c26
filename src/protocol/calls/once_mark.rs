//! Once in a period: the mark that the work of a lock is done (rules R80, R81).
//!
//! The holder writes the mark while it has the lock, on a majority of the nodes. The next holder asks a majority once it
//! has the lock. Two majorities share a node, and that one has the mark.

use std::time::Duration;

use crate::protocol::calls::lease::Lease;
use crate::protocol::commands::action::Action;
use crate::protocol::mutants::{Mutant, mutant};
use crate::protocol::quorum::op::Op;
use crate::values::arithmetic::majority;
use crate::values::clock::Point;
use crate::values::last_run::LastRun;

/// Returns the operation that marks the work as done, to be kept for the rest of `period` since the work began. `None`:
/// the validity is over (rule R80).
pub(crate) fn mark(lease: &Lease, period: Duration, run: &LastRun, now: Point) -> Option<Op> {
    if lease.left(now).is_zero() && !mutant(Mutant::MarkAfterDeadline) {
        return None;
    }
    let rest = period.saturating_sub(run.took()).as_millis();
    // Servers refuse an expiry beyond a signed 64-bit number of milliseconds.
    let rest = u64::try_from(rest)
        .unwrap_or(u64::MAX)
        .clamp(1, u64::MAX >> 12);
    let op = Op::new(Action::Done(rest, run.pack().into()), lease.key.clone());
    Some(op.until(Some(lease.expires(now))))
}

/// The run that the answers of the nodes show: the last one that any of them has, if a majority has answered (rule R81).
/// An answer that is missing is `None`. The error: too few nodes have answered.
pub(crate) fn last(answers: Vec<Option<Option<LastRun>>>) -> Result<Option<LastRun>, ()> {
    let quorum = majority(answers.len());
    let answered: Vec<Option<LastRun>> = answers.into_iter().flatten().collect();
    if answered.len() < quorum {
        return Err(());
    }
    let marks = answered.iter().flatten().count();
    if mutant(Mutant::OneMarkIsNone) && marks < quorum {
        return Ok(None);
    }
    Ok(answered.into_iter().flatten().max_by_key(LastRun::ended))
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::proof::fixtures::{key, later, ttl};
    use crate::protocol::mutants::set_mutant;
    use crate::values::arithmetic::Deadline;

    const S: Duration = Duration::from_secs(1);

    fn run(ended: u64) -> LastRun {
        let ended = UNIX_EPOCH + Duration::from_secs(ended);
        LastRun::new(ended, 5 * S, None)
    }

    #[test]
    fn a_late_holder_does_not_mark_its_work_as_done() {
        let (start, ttl) = (Point::now(), ttl(10 * S));
        let lease = Lease::new(key(b"a"), ttl, Deadline::new(start, ttl.validity()));
        let rest = |period: Duration, now| match mark(&lease, period, &run(7), now)?.action {
            Action::Done(rest, _) => Some(rest),
            other => panic!("{other:?}"),
        };
        // The period begins with the work.
        assert_eq!(rest(60 * S, start), Some(55_000));
        assert_eq!(rest(S, start), Some(1));
        assert_eq!(
            rest(Duration::from_millis(1 << 63), start),
            Some(u64::MAX >> 12)
        );
        let late = later(start, 10 * S);
        assert_eq!(rest(60 * S, late), None);
        set_mutant(Some(Mutant::MarkAfterDeadline));
        assert_eq!(rest(60 * S, late), Some(55_000), "the mutant is found");
        set_mutant(None);
    }

    #[test]
    fn one_mark_among_the_answers_of_a_majority_is_enough_and_fewer_answers_show_nothing() {
        let (none, away) = (|| Some(None), || None);
        let has = |ended| Some(Some(run(ended)));
        for (answers, expected) in [
            (vec![none(), none(), none()], Ok(None)),
            (vec![none(), none(), away()], Ok(None)),
            (vec![none(), has(7), away()], Ok(Some(run(7)))),
            (vec![has(7), has(9), has(8)], Ok(Some(run(9)))),
            (vec![has(7), away(), away()], Err(())),
            (vec![none()], Ok(None)),
            (vec![away()], Err(())),
        ] {
            assert_eq!(last(answers.clone()), expected, "{answers:?}");
        }
        set_mutant(Some(Mutant::OneMarkIsNone));
        let missed = last(vec![none(), has(7), away()]);
        set_mutant(None);
        assert_eq!(missed, Ok(None), "the mutant is found");
    }

    #[test]
    fn a_mark_is_written_before_the_deadline_only() {
        let (start, ttl) = (Point::now(), ttl(10 * S));
        let lease = Lease::new(key(b"a"), ttl, Deadline::new(start, ttl.validity()));
        for passed in [0, 1, 9] {
            let op = mark(&lease, 60 * S, &run(7), later(start, passed * S)).unwrap();
            assert_eq!(op.until, Some(start.mono + ttl.validity()), "{passed}");
        }
    }
}
