//! How a thread acquires a lock: it carries out what `protocol::calls` decides.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::errors::error::Error;
use crate::errors::lock_error::OtherKind;
use crate::errors::shown::{Shown, Unquoted};
use crate::errors::text::human;
use crate::lock::lock::Lock;
use crate::net::cluster::lanes::Lane;
use crate::net::cluster::route::Route;
use crate::net::driver::leadership::Caller;
use crate::protocol::calls::acquire::{CallEnd, CallStep};
use crate::protocol::calls::claims::Claiming;
use crate::protocol::calls::lease::Lease;
use crate::protocol::commands::kind::Kind;
use crate::protocol::commands::node_queue::QueueTurn;
use crate::protocol::quorum::answer::{Answer, Outcome};
use crate::protocol::waiting::waiter::{AcquireRequest, WaitFailure};
use crate::settings::options::Options;
use crate::values::arithmetic::Ttl;
use crate::values::clock::{self, Point, millis};
use crate::values::sync::thread;
use crate::values::token::Token;

/// A call that acquires a lock. The call leaves the queue however its thread ends.
pub(crate) struct Acquirer<'a> {
    route: &'a Route,
    options: &'a Options,
    resource: &'a Arc<[u8]>,
    ttl: Ttl,
    call: Claiming<Arc<Caller>>,
    /// The lane over which the last lock or claim was acquired, and those of the claims before it, each with its token: the
    /// end of each goes behind its acquire. (Without claims nothing is allocated.)
    over: Option<(Token, Arc<Lane>)>,
    over_before: Vec<(Token, Arc<Lane>)>,
    /// When the call was made, which is the time of its first step. (Reading clocks costs more than the step.)
    began: Option<Point>,
}

impl<'a> Acquirer<'a> {
    /// Tries until the lock is acquired, for at most `wait`, but at least once. `must_ask`: and only while the program
    /// wants it.
    pub(crate) fn new(
        route: &'a Route,
        options: &'a Options,
        resource: &'a Arc<[u8]>,
        kind: Kind,
        ttl: Ttl,
        wait: Duration,
        must_ask: bool,
    ) -> Acquirer<'a> {
        let (now, executor) = (Point::now(), route.first_lane().driver.executor());
        executor.warn_of_long_ttl(ttl);
        let fair = options.fair && kind.is_plain();
        let request = AcquireRequest {
            kind,
            ttl,
            label: options.label.clone(),
            end: now.mono.checked_add(wait),
            must_ask,
            retry_delay: options.retry_delay,
            turn: fair.then(|| QueueTurn::new(executor.timeouts.node)),
        };
        Acquirer {
            route,
            options,
            resource,
            ttl,
            call: Claiming::new(
                resource.clone(),
                request,
                executor.places().len(),
                executor.timeouts.node,
                QueueTurn::new(executor.timeouts.node).duration(),
                now,
            ),
            over: None,
            over_before: Vec::new(),
            began: Some(now),
        }
    }

    /// Runs the call to its end. `keep_trying`: whether to go on.
    pub(crate) fn run(&mut self, keep_trying: &mut dyn FnMut() -> bool) -> Result<Lock, Error> {
        let mut now = self.began.take().unwrap_or_else(Point::now);
        loop {
            let mut waiting = &*self.route.first_lane().waiting_threads;
            now = match self.call.next(&mut waiting, now) {
                CallStep::Try(op) => {
                    let token = op.key.token;
                    let (answer, over) = self.route.acquire(op);
                    if let (Outcome::Yes(_), Some(lane)) = (&answer.outcome, over) {
                        self.over_before.extend(self.over.replace((token, lane)));
                    }
                    self.tried(answer)
                }
                CallStep::TakeOver(waiter) => {
                    let answer = self.route.first_lane().driver.run_handed_off(&waiter);
                    self.tried(answer)
                }
                CallStep::Run(op) => {
                    let (answer, now) = (self.route.run(op), Point::now());
                    self.call.answered(answer, &mut waiting, now);
                    now
                }
                CallStep::Park(until) => {
                    self.route.subscribe();
                    thread::park_timeout(left(until));
                    Point::now()
                }
                CallStep::Pause(until) => {
                    thread::sleep(left(until));
                    Point::now()
                }
                CallStep::AskProgram => {
                    let goes_on = keep_trying();
                    // `keep_trying` may have forked: then only the parent goes on waiting, and the queues are the
                    // parent's.
                    if !self.route.first_lane().is_ours() {
                        return Err(Error::cancelled(self.resource));
                    }
                    if !goes_on {
                        self.call.cancel(&mut waiting);
                    }
                    Point::now()
                }
                CallStep::Release(lease) => {
                    drop(self.lock(lease));
                    Point::now()
                }
                CallStep::Done(result) => {
                    return match result {
                        Ok(lease) => Ok(self.lock(lease)),
                        Err(ended) => Err(self.error(ended)),
                    };
                }
            };
        }
    }

    fn lock(&mut self, lease: Lease) -> Lock {
        let is_its = |over: &(Token, Arc<Lane>)| over.0 == lease.key.token;
        let over = self.over.take_if(|over| is_its(over)).or_else(|| {
            let at = self.over_before.iter().position(is_its)?;
            Some(self.over_before.swap_remove(at))
        });
        let over = over.map(|(_, lane)| lane);
        Lock::new(self.route.of_lock(over), lease, self.options)
    }

    fn tried(&mut self, answer: Answer) -> Point {
        let now = Point::now();
        self.report(&answer, now);
        self.call
            .answered(answer, &mut &*self.route.first_lane().waiting_threads, now);
        now
    }

    fn report(&self, answer: &Answer, now: Point) {
        // An attempt that waits for first connections goes on.
        if let Outcome::Unavailable { unsent: true, .. } = answer.outcome {
            return;
        }
        let verdict = match answer.outcome {
            Outcome::Yes(_) => "granted",
            Outcome::No => "denied",
            Outcome::Unavailable { .. } => "too few answers",
        };
        let tally = answer.tally;
        say!(
            debug,
            lock:% = Unquoted(self.call.resource()),
            verdict = verdict,
            yes = tally.granted.len(),
            no = tally.denied.len(),
            failed = tally.failed.len(),
            ms = millis(self.call.took(now));
            "acquire {}: {verdict} ({} yes, {} no, {} failed) in {}",
            Shown(self.call.resource()),
            tally.granted.len(),
            tally.denied.len(),
            tally.failed.len(),
            human(self.call.took(now)),
        );
    }

    /// The error if nothing is left of the validity.
    pub(crate) fn too_slow(&self) -> Error {
        Error::too_slow(self.resource, Duration::ZERO, self.ttl.duration())
    }

    fn error(&self, end: CallEnd) -> Error {
        match end {
            CallEnd::Failed(WaitFailure::Busy(known)) => {
                let is_own = self
                    .route
                    .first_lane()
                    .waiting_threads
                    .held_here
                    .is_own(self.resource);
                let (label, until) = known.map_or((None, None), |known| (known.label, known.until));
                Error::busy(self.resource, label, until, is_own)
            }
            CallEnd::Failed(WaitFailure::TooSlow) => self.too_slow(),
            CallEnd::Failed(WaitFailure::Unavailable(nodes)) => Error::Unavailable(nodes),
            CallEnd::Cancelled => Error::cancelled(self.resource),
            CallEnd::Error(error) => error,
            CallEnd::InOtherUse(node, other, names) => Error::OtherKind(OtherKind {
                resource: self.call.resource().clone(),
                names,
                found: other.text(),
                node: self.route.first_lane().driver.executor().name(node).into(),
            }),
        }
    }

    pub(crate) fn attempts(&self) -> u32 {
        self.call.attempts()
    }

    pub(crate) fn resource(&self) -> &[u8] {
        self.resource
    }
}

impl Drop for Acquirer<'_> {
    fn drop(&mut self) {
        // In a child that was forked by `keep_trying`, the place in the queue is the parent's.
        if self.call.is_in_queue() && self.route.first_lane().is_ours() {
            self.call
                .cancel(&mut &*self.route.first_lane().waiting_threads);
            drop(self.run(&mut || false));
        }
    }
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(clock::instant())
}
