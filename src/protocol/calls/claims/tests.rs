//! A call for four names, asked step by step.

use super::*;
use crate::errors::lock_error::LostReason;
use crate::errors::node_errors::NodeErrors;
use crate::proof::fixtures::{self, MS, NODE_TIMEOUT, later};
use crate::protocol::calls::process_services::one_thread::OneThread;
use crate::protocol::commands::action::Action;
use crate::protocol::commands::lock_info::LockInfo;
use crate::protocol::quorum::answer::Outcome;
use crate::values::arithmetic::Deadline;
use crate::values::node_set::NodeSet;

impl<W: Clone> Claiming<W> {
    pub(crate) fn place(&self) -> Option<u64> {
        self.acquire.place()
    }

    pub(crate) fn is_first_try(&self) -> bool {
        self.acquire.is_first_try()
    }

    pub(crate) fn is_between_tries(&self) -> bool {
        self.acquire.is_between_tries()
    }

    /// The queue of the process in which the call waits.
    pub(crate) fn line(&self) -> &Arc<[u8]> {
        self.acquire.line()
    }

    /// The names that the call holds while it waits.
    pub(crate) fn claimed(&self) -> impl Iterator<Item = usize> {
        let claims = self.plan.iter().flat_map(|plan| &plan.claims);
        claims.map(|claim| claim.at)
    }
}

fn claiming(end: Option<Duration>, now: Point) -> Claiming<u32> {
    let names: Arc<[Arc<[u8]>]> = ["a", "b", "c", "d"]
        .map(|name| Arc::from(name.as_bytes()))
        .into();
    let request = AcquireRequest {
        kind: Kind::several(names.clone()),
        ttl: fixtures::ttl(3000 * MS),
        label: None,
        end: end.map(|end| now.mono + end),
        must_ask: false,
        retry_delay: (50 * MS, 250 * MS),
        turn: None,
    };
    let resource = names[0].clone();
    Claiming::new(resource, request, 3, NODE_TIMEOUT, 250 * MS, now)
}

fn granted(now: Point) -> Answer {
    fixtures::answer(Outcome::Yes(NodeSet::first(3)), 3, now)
}

/// The answer of two nodes that report another holder; `name` is the one of several names that it has.
fn denied(name: Option<usize>, now: Point) -> Answer {
    let mut answer = fixtures::answer(Outcome::No, 0, now);
    for node in 0..2 {
        answer.tally.deny(node);
        answer.remarks.make().lock_infos.push(LockInfo {
            holder: Some(7),
            left: Some(10_000 * MS),
            name,
            ..LockInfo::default()
        });
    }
    answer
}

/// The action that is asked for, and its name.
fn asked(op: &Op) -> String {
    let verb = match op.action {
        Action::Acquire(_) | Action::AcquireOrEnqueue(..) => "acquire",
        Action::Extend(..) => "extend",
        Action::Repair(_) => "repair",
        _ => "do",
    };
    match &op.key.kind {
        Kind::Several { .. } => format!("{verb} all"),
        _ => format!("{verb} {}", String::from_utf8_lossy(&op.key.resource)),
    }
}

#[test]
fn what_was_learnt_of_a_claim_goes_with_it() {
    let (mut now, mut services) = (Point::now(), OneThread::new());
    let mut call = claiming(None, now);
    // The names that are in the way of all names, one attempt after the other.
    let mut in_the_way = [2, 3, 1].into_iter();
    let (mut done, mut d_is_free) = (Vec::new(), false);
    for _ in 0..400 {
        now = later(now, MS);
        match call.next(&mut services, now) {
            CallStep::Try(op) => {
                let what = asked(&op);
                let answer = match what.as_str() {
                    "acquire all" => {
                        let waits = call.plan.as_ref().is_some_and(
                            |plan| matches!(plan.stage, ClaimStage::Together(turn) if now.mono < turn),
                        );
                        let name = match waits {
                            true => 0,
                            false => in_the_way.next().unwrap_or(1),
                        };
                        denied(Some(name), now)
                    }
                    "acquire d" if !d_is_free => denied(None, now),
                    "acquire b" => denied(None, now),
                    _ => granted(now),
                };
                done.push(what);
                call.answered(answer, &mut services, now);
            }
            CallStep::Run(op) => {
                let what = asked(&op);
                let mut answer = granted(now);
                if what == "extend c" {
                    answer.tally = fixtures::answer(Outcome::No, 2, now).tally;
                    answer.tally.deny(2);
                    // d is released meanwhile.
                    d_is_free = true;
                    let d = Arc::from(&b"d"[..]);
                    services.queues.released(&d, false, now.mono);
                }
                done.push(what);
                call.answered(answer, &mut services, now);
            }
            CallStep::Release(lease) => {
                done.push(format!(
                    "release {}",
                    String::from_utf8_lossy(&lease.key.resource)
                ));
            }
            CallStep::Park(until) | CallStep::Pause(until) => {
                now = later(now, until.saturating_duration_since(now.mono).min(50 * MS));
            }
            CallStep::Done(_) => break,
            _ => {}
        }
    }
    let released = done.iter().position(|what| what == "release c");
    let after = &done[released.expect("c was in the way of nothing before b")..];
    assert!(!after.contains(&"repair c".to_owned()), "{done:?}");
}

#[test]
fn a_wait_that_ends_reports_why() {
    for end in 0..40 {
        for down in [false, true] {
            let (mut now, mut services) = (Point::now(), OneThread::new());
            let mut call = claiming(Some((5000 + 7 * end) * MS), now);
            let begun = now.mono;
            let failure = loop {
                now = later(now, MS);
                let is_down = down && now.mono > begun + 1000 * MS;
                let unavailable =
                    |now| fixtures::answer(fixtures::unavailable(false, false), 0, now);
                match call.next(&mut services, now) {
                    CallStep::Try(op) => {
                        now = later(now, if is_down { NODE_TIMEOUT } else { MS });
                        let answer = match asked(&op).as_str() {
                            _ if is_down => unavailable(now),
                            "acquire all" => denied(Some(0), now),
                            _ => denied(None, now),
                        };
                        call.answered(answer, &mut services, now);
                    }
                    CallStep::Run(_) => call.answered(unavailable(now), &mut services, now),
                    CallStep::Park(until) | CallStep::Pause(until) => {
                        now = later(now, until.saturating_duration_since(now.mono));
                    }
                    CallStep::Done(Err(CallEnd::Failed(failure))) => break failure,
                    CallStep::Done(_) => panic!("it has not failed"),
                    _ => {}
                }
            };
            match (down, failure) {
                (false, WaitFailure::Busy(Some(_))) | (true, WaitFailure::Unavailable(_)) => {}
                (_, failure) => panic!("{end}, {down}: {failure:?}"),
            }
        }
    }
}

#[test]
fn a_call_has_something_left_to_do_while_it_waits_or_has_claims_or_drops_them() {
    let (mut now, mut services) = (Point::now(), OneThread::new());
    let mut call = claiming(None, now);
    assert!(!call.is_in_queue());
    let mut seen = [false; 3];
    for _ in 0..200 {
        now = later(now, MS);
        let step = call.next(&mut services, now);
        let plan = call.plan.as_ref().expect("it is for several names");
        let left = [
            call.acquire.is_in_queue(),
            !plan.claims.is_empty(),
            !plan.dropped.is_empty(),
        ];
        assert_eq!(call.is_in_queue(), left.contains(&true));
        let only = left.iter().filter(|left| **left).count() == 1;
        for (seen, left) in seen.iter_mut().zip(left) {
            *seen |= left && only;
        }
        match step {
            CallStep::Try(op) => {
                let answer = match asked(&op).as_str() {
                    "acquire all" => denied(Some(2), now),
                    _ => granted(now),
                };
                call.answered(answer, &mut services, now);
            }
            CallStep::Run(_) => call.answered(granted(now), &mut services, now),
            CallStep::Park(until) | CallStep::Pause(until) => {
                now = later(now, until.saturating_duration_since(now.mono).min(50 * MS));
            }
            CallStep::Done(_) => panic!("it is never granted"),
            _ => {}
        }
    }
    assert_eq!(seen[..2], [true; 2], "each by itself");
}

/// The plan of a call for four names, in this stage, with claims on these.
fn planned(stage: ClaimStage, claims: &[usize], now: Point) -> ClaimPlan {
    let mut plan = *claiming(None, now).plan.expect("for several names");
    plan.stage = stage;
    plan.claims = claims.iter().map(|at| claim(*at, now)).collect();
    plan.taken = claims.iter().copied().collect();
    plan
}

fn claim(at: usize, now: Point) -> Claim {
    Claim {
        at,
        lease: lease(now),
        due: now.mono + 1000 * MS,
        extension: None,
        repair: None,
    }
}

fn lease(now: Point) -> Lease {
    let ttl = fixtures::ttl(3000 * MS);
    Lease::new(fixtures::key(b"a"), ttl, Deadline::new(now, ttl.validity()))
}

fn claimed(claims: &[Claim]) -> Vec<usize> {
    claims.iter().map(|claim| claim.at).collect()
}

#[test]
fn all_names_are_waited_for_together_until_a_turn_is_over_and_names_were_in_the_way() {
    let now = Point::now();
    let (turn, until) = (now.mono + 250 * MS, now.mono + 400 * MS);
    for (in_the_way, at, expected) in [
        (None, 0, Some(until)),
        (None, 250, Some(until)),
        (Some(1), 0, Some(turn)),
        (Some(1), 249, Some(turn)),
        (Some(1), 250, None),
        (Some(1), 251, None),
    ] {
        let mut plan = planned(ClaimStage::Together(turn), &[], now);
        plan.in_the_way = in_the_way;
        let parks = match plan.parks(until, later(now, at * MS)) {
            Parks::Until(until) => Some(until),
            Parks::Leaves => None,
            Parks::Extends(_) => panic!("nothing is claimed"),
        };
        assert_eq!(parks, expected, "{in_the_way:?}, {at}");
    }
}

#[test]
fn claims_are_extended_every_third_of_their_ttl_until_one_is_lost() {
    let now = Point::now();
    let mut plan = planned(ClaimStage::Claims(3), &[0, 1], now);
    plan.claims[1].due += MS;
    let far = now.mono + 60_000 * MS;
    let parks = plan.parks(far, now);
    assert!(matches!(parks, Parks::Until(until) if until == now.mono + 1000 * MS));
    assert!(matches!(plan.parks(now.mono, now), Parks::Until(until) if until == now.mono));
    let due = later(now, 1000 * MS);
    assert!(matches!(plan.parks(far, due), Parks::Extends(_)));
    assert_eq!(plan.claims[0].due, due.mono + 1000 * MS);
    plan.claims[0].lease.lost = Some(LostReason::NotHeld);
    assert!(matches!(plan.parks(far, due), Parks::Leaves));
}

#[test]
fn the_name_in_the_way_is_the_one_that_most_nodes_name_and_no_claim() {
    let now = Point::now();
    for (stage, claims, named, expected) in [
        (ClaimStage::Converts, &[][..], &[2, 1, 2][..], Some(2)),
        (ClaimStage::Converts, &[], &[1, 2, 1], Some(1)),
        // The first one, if as many nodes name each.
        (ClaimStage::Converts, &[], &[2, 1], Some(1)),
        (ClaimStage::Converts, &[0], &[0, 0, 1], Some(1)),
        (ClaimStage::Converts, &[0], &[0, 0], Some(0)),
        // There is no such name.
        (ClaimStage::Converts, &[], &[4, 4, 1], Some(1)),
        (ClaimStage::Converts, &[], &[4], None),
        // The answer concerns the one name that is being claimed.
        (ClaimStage::Claims(0), &[], &[2], None),
    ] {
        let mut plan = planned(stage, claims, now);
        let mut answer = denied(None, now);
        let info = |name: &usize| LockInfo {
            name: Some(*name),
            ..LockInfo::default()
        };
        answer.remarks.make().lock_infos = named.iter().map(info).collect();
        plan.learn(&answer);
        assert_eq!(plan.in_the_way, expected, "{claims:?}, {named:?}");
    }
}

#[test]
fn a_name_in_the_way_of_claims_is_claimed_next_and_those_behind_it_are_dropped() {
    let now = Point::now();
    for (failure, name, kept, dropped, claims) in [
        (
            WaitFailure::Busy(None),
            Some(2),
            &[1][..],
            &[3][..],
            Some(2),
        ),
        (WaitFailure::Busy(None), Some(0), &[], &[1, 3], Some(0)),
        // The name is claimed already, or no node names one: all names are waited for.
        (WaitFailure::Busy(None), Some(3), &[], &[1, 3], None),
        (WaitFailure::Busy(None), None, &[], &[1, 3], None),
        (WaitFailure::TooSlow, Some(2), &[], &[1, 3], None),
    ] {
        let (mut plan, mut services) = (
            planned(ClaimStage::Converts, &[1, 3], now),
            OneThread::new(),
        );
        plan.in_the_way = name;
        assert!(matches!(
            plan.denied(failure, &mut services, now),
            ClaimOutcome::On(_)
        ));
        assert_eq!(claimed(&plan.claims), kept, "{name:?}");
        assert_eq!(claimed(&plan.dropped), dropped, "{name:?}");
        // An undo may have ended the claims.
        assert!(plan.claims.iter().all(|claim| claim.due == now.mono));
        match plan.stage {
            ClaimStage::Claims(at) => assert_eq!(Some(at), claims, "{name:?}"),
            ClaimStage::Together(until) => {
                assert_eq!((claims, until), (None, now.mono + 250 * MS), "{name:?}");
            }
            _ => panic!("{name:?}"),
        }
    }
}

#[test]
fn a_claim_that_was_granted_is_extended_after_a_third_of_its_ttl() {
    let (now, mut services) = (Point::now(), OneThread::new());
    let mut plan = planned(ClaimStage::Claims(2), &[], now);
    assert!(matches!(
        plan.ended(Ok(lease(now)), &mut services, now),
        ClaimOutcome::On(_)
    ));
    assert_eq!(claimed(&plan.claims), [2]);
    assert_eq!(plan.claims[0].due, now.mono + 1000 * MS);
}

#[test]
fn an_attempt_that_shows_that_waiting_is_useless_ends_the_plan() {
    let (now, mut services) = (Point::now(), OneThread::new());
    for for_good in [false, true] {
        let mut plan = planned(ClaimStage::Converts, &[1], now);
        let errors = NodeErrors::new(Vec::new(), None);
        let failure = WaitFailure::Unavailable(match for_good {
            true => errors.for_good(),
            false => errors,
        });
        let goes = plan.ended(Err(failure.into()), &mut services, now);
        assert_eq!(matches!(goes, ClaimOutcome::Ends(_)), for_good);
    }
}

/// The releases of the claims may take longer than its validity.
#[test]
fn a_lock_on_all_names_that_is_over_is_released_and_not_returned() {
    let now = Point::now();
    let mut plan = planned(ClaimStage::Ends(Ok(lease(now))), &[], now);
    assert!(matches!(plan.end::<u32>(now), CallStep::Done(Ok(_))));
    let mut plan = planned(ClaimStage::Ends(Ok(lease(now))), &[], now);
    let late = later(now, 3000 * MS);
    assert!(matches!(plan.end::<u32>(late), CallStep::Release(_)));
    let end = plan.end::<u32>(late);
    assert!(matches!(
        end,
        CallStep::Done(Err(CallEnd::Failed(WaitFailure::TooSlow)))
    ));
}

#[test]
fn only_the_first_call_of_a_plan_asks_the_nodes_although_its_time_is_over() {
    for attempts in [0, 1] {
        let (now, mut services) = (Point::now(), OneThread::new());
        let mut first = claiming(None, now);
        while let CallStep::Try(_) = first.next(&mut services, now) {
            first.answered(denied(Some(0), now), &mut services, now);
        }
        let mut second = claiming(Some(100 * MS), now);
        assert!(matches!(second.next(&mut services, now), CallStep::Park(_)));
        second.plan.as_mut().expect("for several names").attempts = attempts;
        // Now it is at the front.
        first.cancel(&mut services);
        while !matches!(first.next(&mut services, now), CallStep::Done(_)) {}
        let over = later(now, 100 * MS);
        let asks = matches!(second.next(&mut services, over), CallStep::Try(_));
        assert_eq!(asks, attempts == 0);
    }
}
