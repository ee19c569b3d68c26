//! A call for four names, asked step by step.

use super::*;
use crate::errors::error::Error;
use crate::proof::fixtures::{self, MS, NODE_TIMEOUT, later};
use crate::protocol::commands::queue::LockInfo;
use crate::protocol::commands::script::Action;
use crate::protocol::quorum::answer::Outcome;
use crate::protocol::waiting::held_here::HeldHere;
use crate::protocol::waiting::wait_queue::WaitQueues;
use crate::values::quorum::NodeSet;
use crate::values::token::Token;

/// A process with one thread.
struct Alone {
    queues: WaitQueues<u32>,
    held_here: HeldHere,
    tokens: u8,
}

impl Alone {
    fn new() -> Alone {
        Alone {
            queues: WaitQueues::new(3, None, NODE_TIMEOUT, 7),
            held_here: HeldHere::new(1),
            tokens: 0,
        }
    }
}

impl Process for Alone {
    type Thread = u32;

    fn thread(&mut self, _: &Arc<[u8]>) -> u32 {
        1
    }

    fn token(&mut self, _: &[u8]) -> Result<Token, Error> {
        self.tokens += 1;
        Ok(Token::from_bytes([self.tokens; 20]))
    }

    fn jitter(&mut self, min: Duration, _: Duration) -> Duration {
        min
    }

    fn is_idle(&mut self) -> bool {
        false
    }

    fn queues<T>(&mut self, work: impl FnOnce(&mut WaitQueues<u32>) -> T) -> T {
        work(&mut self.queues)
    }

    fn held_here(&self) -> &HeldHere {
        &self.held_here
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
        answer.tally.refuse(node);
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
    let (mut now, mut process) = (Point::now(), Alone::new());
    let mut call = claiming(None, now);
    // The names that are in the way of all names, one attempt after the other.
    let mut in_the_way = [2, 3, 1].into_iter();
    let (mut done, mut d_is_free) = (Vec::new(), false);
    for _ in 0..400 {
        now = later(now, MS);
        match call.next(&mut process, now) {
            Step::Try(op) => {
                let what = asked(&op);
                let answer = match what.as_str() {
                    "acquire all" => {
                        let waits = call.plan.as_ref().is_some_and(
                            |plan| matches!(plan.stage, Stage::Together(turn) if now.mono < turn),
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
                call.answered(answer, &mut process, now);
            }
            Step::Run(op) => {
                let what = asked(&op);
                let mut answer = granted(now);
                if what == "extend c" {
                    answer.tally = fixtures::answer(Outcome::No, 2, now).tally;
                    answer.tally.refuse(2);
                    // d is released meanwhile.
                    d_is_free = true;
                    let d = Arc::from(&b"d"[..]);
                    process.queues.released(&d, false, now.mono);
                }
                done.push(what);
                call.answered(answer, &mut process, now);
            }
            Step::Release(lease) => {
                done.push(format!(
                    "release {}",
                    String::from_utf8_lossy(&lease.key.resource)
                ));
            }
            Step::Park(until) | Step::Pause(until) => {
                now = later(now, until.saturating_duration_since(now.mono).min(50 * MS));
            }
            Step::Done(_) => break,
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
            let (mut now, mut process) = (Point::now(), Alone::new());
            let mut call = claiming(Some((5000 + 7 * end) * MS), now);
            let begun = now.mono;
            let failure = loop {
                now = later(now, MS);
                let is_down = down && now.mono > begun + 1000 * MS;
                let unavailable =
                    |now| fixtures::answer(fixtures::unavailable(false, false), 0, now);
                match call.next(&mut process, now) {
                    Step::Try(op) => {
                        now = later(now, if is_down { NODE_TIMEOUT } else { MS });
                        let answer = match asked(&op).as_str() {
                            _ if is_down => unavailable(now),
                            "acquire all" => denied(Some(0), now),
                            _ => denied(None, now),
                        };
                        call.answered(answer, &mut process, now);
                    }
                    Step::Run(_) => call.answered(unavailable(now), &mut process, now),
                    Step::Park(until) | Step::Pause(until) => {
                        now = later(now, until.saturating_duration_since(now.mono));
                    }
                    Step::Done(Err(Ended::Failed(failure))) => break failure,
                    Step::Done(_) => panic!("it has not failed"),
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
    let (mut now, mut process) = (Point::now(), Alone::new());
    let mut call = claiming(None, now);
    assert!(!call.is_in_queue());
    let mut seen = [false; 3];
    for _ in 0..200 {
        now = later(now, MS);
        let step = call.next(&mut process, now);
        let plan = call.plan.as_ref().expect("it is for several names");
        let left = [
            call.call.is_in_queue(),
            !plan.claims.is_empty(),
            !plan.dropped.is_empty(),
        ];
        assert_eq!(call.is_in_queue(), left.contains(&true));
        let only = left.iter().filter(|left| **left).count() == 1;
        for (seen, left) in seen.iter_mut().zip(left) {
            *seen |= left && only;
        }
        match step {
            Step::Try(op) => {
                let answer = match asked(&op).as_str() {
                    "acquire all" => denied(Some(2), now),
                    _ => granted(now),
                };
                call.answered(answer, &mut process, now);
            }
            Step::Run(_) => call.answered(granted(now), &mut process, now),
            Step::Park(until) | Step::Pause(until) => {
                now = later(now, until.saturating_duration_since(now.mono).min(50 * MS));
            }
            Step::Done(_) => panic!("it is never granted"),
            _ => {}
        }
    }
    assert_eq!(seen[..2], [true; 2], "each by itself");
}
