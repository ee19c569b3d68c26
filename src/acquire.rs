//! How a thread acquires a lock: its attempts, and its place among the threads that wait.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock::{self, Point};
use crate::error::Error;
use crate::lock::{Lock, Shared};
use crate::net::driver::Waiter;
use crate::options::Options;
use crate::protocol::attempt::{Attempt, Rejection, Tried};
use crate::protocol::operation::{Answer, Outcome};
use crate::protocol::queue::{QueueEntry, Turn};
use crate::protocol::quorum::{Deadline, NodeSet, Ttl};
use crate::protocol::script::Key;
use crate::protocol::waiter::{AcquireRequest, Failure, PlainTry, WaiterAction};
use crate::shown::Shown;
use crate::text::human;
use crate::token::{Token, jitter};
use crate::waiting::leave;

/// How often `acquire_while` asks while it waits.
const ASK: Duration = Duration::from_millis(50);

/// A place in a line. However the thread goes, it leaves the place.
struct WaiterGuard<'a> {
    shared: &'a Shared,
    resource: &'a Arc<[u8]>,
    place: u64,
    since: Instant,
    fair: bool,
    waiter: Arc<Waiter>,
    got: bool,
}

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        if !self.shared.is_ours() {
            // A child that was forked by `keep_trying`: this is its parent's.
            return;
        }
        let waiting = &self.shared.waiting;
        let now = clock::instant();
        if self.got {
            return waiting.with(|queues| queues.acquired(self.place, now));
        }
        if let Some(channel) = waiting.with(|queues| queues.give_up(self.place, now)) {
            let driver = &self.shared.driver;
            leave(driver, self.resource, channel, self.fair, NodeSet::ALL);
            let now = clock::instant();
            waiting.with(|queues| queues.dequeued(self.place, now));
        }
    }
}

/// One who wants a lock.
pub(crate) struct Acquirer<'a> {
    pub(crate) shared: &'a Arc<Shared>,
    pub(crate) options: &'a Options,
    pub(crate) resource: &'a Arc<[u8]>,
    pub(crate) ttl: Ttl,
    /// Whether to go on.
    pub(crate) keep_trying: Option<&'a mut dyn FnMut() -> bool>,
    /// So many it has made.
    pub(crate) attempts: u32,
}

impl Acquirer<'_> {
    /// One attempt.
    pub(crate) fn once(&mut self) -> Result<Lock, Error> {
        if self.options.fair {
            return self.wait(Duration::ZERO);
        }
        let attempt = self.attempt(None);
        let tried = self.carry_out(attempt, None)?;
        tried.map_err(|(failure, _)| error(failure))
    }

    /// Tries until the lock is there, for so long.
    pub(crate) fn wait(&mut self, wait: Duration) -> Result<Lock, Error> {
        let since = clock::instant();
        let end = since.checked_add(wait);
        self.ask()?;
        let waiting = &self.shared.waiting;
        let node_timeout = self.shared.driver.nodes().node_timeout;
        let turn = self.options.fair.then(|| Turn::new(node_timeout));
        let now = clock::instant();
        let waits = !wait.is_zero() && !waiting.is_quiet();
        let joins =
            turn.is_some() || waits && waiting.with(|lines| lines.has_queue(self.resource, now));
        let mut tried = None;
        if !joins {
            let was_here = waiting.is_connected(self.resource);
            let attempt = self.attempt(None);
            let failure = match self.carry_out(attempt, None)? {
                Ok(lock) => return Ok(lock),
                Err((failure, _)) => failure,
            };
            let held_here = was_here || waiting.is_connected(self.resource);
            if is_over(end) || failure.is_hopeless() {
                return Err(error(failure));
            }
            let pause = self.pause(&failure);
            tried = Some(PlainTry {
                failure,
                pause,
                held_here,
            });
        }
        let request = AcquireRequest {
            ttl: self.ttl,
            label: self.options.label.clone(),
            end,
            must_ask: self.keep_trying.is_some(),
            retry_delay: self.options.retry_delay,
            turn,
        };
        let waiter = Waiter::new(Some(self.resource.clone()));
        let (who, now) = (waiter.clone(), Point::now());
        let place = waiting.with(|lines| lines.join(self.resource, who, request, tried, now));
        let mut seat = WaiterGuard {
            shared: self.shared,
            resource: self.resource,
            place,
            since,
            fair: turn.is_some(),
            waiter,
            got: false,
        };
        let lock = self.stand(&seat)?;
        seat.got = true;
        Ok(lock)
    }

    /// Waits in the line.
    fn stand(&mut self, seat: &WaiterGuard<'_>) -> Result<Lock, Error> {
        let waiting = &self.shared.waiting;
        loop {
            self.ask()?;
            let here = waiting.is_connected(self.resource);
            let step = waiting.with(|lines| lines.step(seat.place, here, Point::now()));
            let tried = match step {
                WaiterAction::Park(until) => {
                    waiting.listen(&self.shared.driver);
                    self.park(until);
                    continue;
                }
                WaiterAction::Try(knock) => {
                    let attempt = self.attempt(knock).since(seat.since);
                    self.carry_out(attempt, None)?
                }
                WaiterAction::HandedOff(attempt) => {
                    let answer = self.shared.driver.run_handed_off(&seat.waiter);
                    let tried = self.carry_out(attempt, Some(answer));
                    // If it has the lock, that counts by itself now.
                    waiting.ends(self.resource);
                    tried?
                }
                WaiterAction::GiveUp(failure) => return Err(error(failure)),
            };
            let (failure, rejection) = match tried {
                Ok(lock) => return Ok(lock),
                Err(failed) => failed,
            };
            let pause = self.pause(&failure);
            let now = clock::instant();
            waiting.with(|lines| lines.failed(seat.place, (failure, pause), &rejection, now));
        }
    }

    /// Sleeps until then, or until it is woken, or is to ask.
    fn park(&self, until: Instant) {
        let rest = until.saturating_duration_since(clock::instant());
        std::thread::park_timeout(match self.keep_trying {
            None => rest,
            Some(_) => rest.min(ASK),
        });
    }

    fn ask(&mut self) -> Result<(), Error> {
        let keep_trying = self.keep_trying.as_mut();
        let Some(keep_trying) = keep_trying else {
            return Ok(());
        };
        // It may have forked: then only the parent goes on waiting.
        match keep_trying() && self.shared.is_ours() {
            true => Ok(()),
            false => Err(Error::Cancelled),
        }
    }

    fn pause(&self, failure: &Failure) -> Duration {
        let (min, max) = self.options.retry_delay;
        let pause = jitter(min, max);
        match failure {
            // Nobody pauses for longer than until enough nodes vote.
            Failure::Unavailable(nodes) => nodes.retry_after().map_or(pause, |wait| {
                pause.min(wait.saturating_add(jitter(Duration::ZERO, min)))
            }),
            _ => pause,
        }
    }

    fn attempt(&self, knock: Option<Arc<QueueEntry>>) -> Attempt {
        let node_timeout = self.shared.driver.nodes().node_timeout;
        let label = self.options.label.clone();
        Attempt::new(self.resource.clone(), self.ttl, label, knock, node_timeout)
    }

    /// One attempt, of as many tries as it takes. `answer`: that to its first try.
    fn carry_out(
        &mut self,
        mut attempt: Attempt,
        mut answer: Option<Answer>,
    ) -> Result<Result<Lock, (Failure, Rejection)>, Error> {
        self.attempts = self.attempts.saturating_add(1);
        loop {
            let answer = match answer.take() {
                Some(answer) => answer,
                None => {
                    let op = attempt.op(Token::random()?, Point::now());
                    self.shared.driver.run(op)
                }
            };
            let now = Point::now();
            report(self.resource, &answer, attempt.took(now));
            let passed = answer.passed;
            let lock = |key: Key, deadline: Deadline| {
                let shared = self.shared.clone();
                let mut lock = Lock::new(shared, key, self.ttl, deadline, self.options);
                lock.passed = passed;
                lock
            };
            let failed = |failure| Ok(Err((failure, Rejection::default())));
            match attempt.answered(answer, now) {
                Tried::Granted(key, deadline) => return Ok(Ok(lock(key, deadline))),
                Tried::TooSlow(key, deadline) => {
                    drop(lock(key, deadline));
                    return failed(Failure::TooSlow);
                }
                Tried::Expired => return failed(Failure::TooSlow),
                Tried::Denied(rejection) => return Ok(Err((Failure::Busy, rejection))),
                Tried::Unavailable(errors) => {
                    return match errors.same_server() {
                        Some(mistake) => Err(Error::Config(mistake)),
                        None => failed(Failure::Unavailable(errors)),
                    };
                }
                Tried::Again(within) => self.sleep(jitter(Duration::ZERO, within))?,
            }
        }
    }

    /// Between two tries.
    fn sleep(&mut self, time: Duration) -> Result<(), Error> {
        let end = clock::instant() + time;
        loop {
            let rest = end.saturating_duration_since(clock::instant());
            if rest.is_zero() {
                return Ok(());
            }
            std::thread::sleep(rest.min(ASK));
            self.ask()?;
        }
    }
}

fn is_over(end: Option<Instant>) -> bool {
    end.is_some_and(|end| clock::instant() >= end)
}

fn error(failure: Failure) -> Error {
    match failure {
        Failure::Busy => Error::Busy,
        Failure::TooSlow => Error::TooSlow,
        Failure::Unavailable(nodes) => Error::Unavailable(nodes),
    }
}

fn report(resource: &[u8], answer: &Answer, took: Duration) {
    let verdict = match answer.outcome {
        Outcome::Yes(_) => "granted",
        Outcome::No => "denied",
        Outcome::Unavailable { .. } => "too few answers",
    };
    let tally = answer.tally;
    say!(
        debug,
        "acquire {}: {verdict} ({} yes, {} no, {} failed) in {}",
        Shown(resource),
        tally.granted.len(),
        tally.refused.len(),
        tally.failed.len(),
        human(took),
    );
}
