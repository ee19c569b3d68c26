//! How a thread acquires a lock: its attempts, and what it does while it waits.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::clock::{self, Point};
use crate::error::Error;
use crate::lock::{Lock, Shared};
use crate::net::leader::Waiter;
use crate::options::Options;
use crate::protocol::attempt::{Attempt, Rejection, Tried};
use crate::protocol::kind::Kind;
use crate::protocol::operation::{Answer, Op, Outcome};
use crate::protocol::queue::{QueueEntry, Turn};
use crate::protocol::quorum::{Deadline, NodeSet, Ttl, majority};
use crate::protocol::script::{Action, Key, Notify};
use crate::protocol::waiter::{AcquireRequest, Failure, PlainTry, WaiterAction};
use crate::shown::Shown;
use crate::text::human;
use crate::token::{Token, jitter};
use crate::waiting::dequeue;

/// How often `acquire_while` calls `keep_trying` while it waits.
const ASK: Duration = Duration::from_millis(50);

/// The shortest pause before the end of a wait without a queue.
const LAST_PAUSE: Duration = Duration::from_millis(5);

/// A waiter in a queue. It leaves the queue however its thread ends its wait.
struct WaiterGuard<'a> {
    shared: &'a Shared,
    resource: &'a Arc<[u8]>,
    id: u64,
    since: Instant,
    fair: bool,
    waiter: Arc<Waiter>,
    acquired: bool,
}

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        if !self.shared.is_ours() {
            // In a child that was forked by `keep_trying`, the waiter is the parent's.
            return;
        }
        let waiting = &self.shared.waiting;
        let now = clock::instant();
        if self.acquired {
            return waiting.with(|queues| queues.acquired(self.id, now));
        }
        if let Some(channel) = waiting.with(|queues| queues.give_up(self.id, now)) {
            let driver = &self.shared.driver;
            dequeue(driver, self.resource, channel, self.fair, NodeSet::ALL);
            let now = clock::instant();
            waiting.with(|queues| queues.dequeued(self.id, now));
        }
    }
}

/// The result of an attempt.
// A box would be an allocation for each lock.
#[allow(clippy::large_enum_variant)]
enum Attempted {
    Acquired(Lock),
    Failed(Failure, Rejection),
}

/// A call that acquires a lock.
pub(crate) struct Acquirer<'a> {
    pub(crate) shared: &'a Arc<Shared>,
    pub(crate) options: &'a Options,
    pub(crate) resource: &'a Arc<[u8]>,
    pub(crate) kind: Kind,
    pub(crate) ttl: Ttl,
    /// Whether to go on.
    pub(crate) keep_trying: Option<&'a mut dyn FnMut() -> bool>,
    /// The number of attempts made.
    pub(crate) attempts: u32,
}

impl Acquirer<'_> {
    /// One attempt.
    pub(crate) fn once(&mut self) -> Result<Lock, Error> {
        if self.options.fair && self.kind.is_plain() {
            return self.wait(Duration::ZERO);
        }
        let attempt = self.attempt(None);
        match self.carry_out(attempt, None)? {
            Attempted::Acquired(lock) => Ok(lock),
            Attempted::Failed(failure, _) => Err(self.error(failure)),
        }
    }

    /// Tries until it has the lock, for at most `wait`.
    pub(crate) fn wait(&mut self, wait: Duration) -> Result<Lock, Error> {
        let since = clock::instant();
        let end = since.checked_add(wait);
        if !self.kind.is_plain() {
            let polled = self.poll(end);
            if polled.is_err() {
                self.unmark();
            }
            return polled;
        }
        self.ask()?;
        let waiting = &self.shared.waiting;
        let node_timeout = self.shared.driver.nodes().node_timeout;
        let turn = self.options.fair.then(|| Turn::new(node_timeout));
        let now = clock::instant();
        let waits = !wait.is_zero() && !waiting.is_idle();
        let joins =
            turn.is_some() || waits && waiting.with(|queues| queues.has_queue(self.resource, now));
        let mut tried = None;
        if !joins {
            let was_held_here = waiting.is_held_here(self.resource);
            let attempt = self.attempt(None);
            let failure = match self.carry_out(attempt, None)? {
                Attempted::Acquired(lock) => return Ok(lock),
                Attempted::Failed(failure, _) => failure,
            };
            let held_here = was_held_here || waiting.is_held_here(self.resource);
            if is_over(end) || failure.is_hopeless() {
                return Err(self.error(failure));
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
        let (thread, now) = (waiter.clone(), Point::now());
        let id = waiting.with(|queues| queues.join(self.resource, thread, request, tried, now));
        let mut guard = WaiterGuard {
            shared: self.shared,
            resource: self.resource,
            id,
            since,
            fair: turn.is_some(),
            waiter,
            acquired: false,
        };
        let lock = self.wait_in_queue(&guard)?;
        guard.acquired = true;
        Ok(lock)
    }

    /// Tries again and again, without a queue.
    fn poll(&mut self, end: Option<Instant>) -> Result<Lock, Error> {
        let since = clock::instant();
        loop {
            self.ask()?;
            let attempt = self.attempt(None).since(since);
            let failure = match self.carry_out(attempt, None)? {
                Attempted::Acquired(lock) => return Ok(lock),
                Attempted::Failed(failure, _) => failure,
            };
            let pause = self.pause(&failure).min(self.longest_pause());
            let rest = end.map(|end| end.saturating_duration_since(clock::instant()));
            // The last try is made shortly before the end.
            let pause = rest.map_or(pause, |rest| pause.min((rest / 2).max(LAST_PAUSE)));
            if failure.is_hopeless() || rest.is_some_and(|rest| rest <= pause) {
                return Err(self.error(failure));
            }
            self.sleep(pause)?;
        }
    }

    /// A writer's mark lives for longer than that.
    fn longest_pause(&self) -> Duration {
        match self.kind {
            Kind::Write(mark) if mark.life > 0 => Duration::from_millis(mark.life / 2),
            _ => Duration::MAX,
        }
    }

    /// A writer that gives up takes its mark back, which would keep readers out for a time.
    fn unmark(&self) {
        if matches!(self.kind, Kind::Write(mark) if mark.life > 0) && self.shared.is_ours() {
            let key = Key::without_lock(self.resource.clone()).of_kind(self.kind.clone());
            let op = Op::new(Action::Release(Notify::First), key);
            self.shared.driver.run(op.only_write(true));
        }
    }

    fn wait_in_queue(&mut self, guard: &WaiterGuard<'_>) -> Result<Lock, Error> {
        let waiting = &self.shared.waiting;
        loop {
            self.ask()?;
            let held_here = waiting.is_held_here(self.resource);
            let action = waiting.with(|queues| queues.step(guard.id, held_here, Point::now()));
            let attempted = match action {
                WaiterAction::Park(until) => {
                    waiting.subscribe(&self.shared.driver);
                    self.park(until);
                    continue;
                }
                WaiterAction::Try(entry) => {
                    let attempt = self.attempt(entry).since(guard.since);
                    self.carry_out(attempt, None)?
                }
                WaiterAction::HandedOff(attempt) => {
                    let answer = self.shared.driver.run_handed_off(&guard.waiter);
                    let attempted = self.carry_out(attempt, Some(answer));
                    // The hand-off counted as a lock held here. If the lock was acquired, that now counts itself.
                    waiting.ends(self.resource);
                    attempted?
                }
                WaiterAction::GiveUp(failure) => return Err(self.error(failure)),
            };
            let (failure, rejection) = match attempted {
                Attempted::Acquired(lock) => return Ok(lock),
                Attempted::Failed(failure, rejection) => (failure, rejection),
            };
            let pause = self.pause(&failure);
            let now = clock::instant();
            waiting.with(|queues| queues.failed(guard.id, (failure, pause), &rejection, now));
        }
    }

    /// Sleeps until then, until it is woken, or until `keep_trying` has to be called.
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
            false => Err(Error::cancelled(self.resource)),
        }
    }

    fn pause(&self, failure: &Failure) -> Duration {
        let (min, max) = self.options.retry_delay;
        let pause = jitter(min, max);
        match failure {
            // No pause is longer than until enough nodes vote.
            Failure::Unavailable(nodes) => nodes.retry_after().map_or(pause, |wait| {
                pause.min(wait.saturating_add(jitter(Duration::ZERO, min)))
            }),
            _ => pause,
        }
    }

    /// Nothing is left of the validity.
    pub(crate) fn too_slow(&self) -> Error {
        Error::too_slow(self.resource, Duration::ZERO, self.ttl.duration())
    }

    fn error(&self, failure: Failure) -> Error {
        match failure {
            Failure::Busy(Some(holder)) => Error::busy(self.resource, holder.label, holder.until),
            Failure::Busy(None) => Error::busy(self.resource, None, None),
            Failure::TooSlow => self.too_slow(),
            Failure::Unavailable(nodes) => Error::Unavailable(nodes),
        }
    }

    fn attempt(&self, entry: Option<Arc<QueueEntry>>) -> Attempt {
        let node_timeout = self.shared.driver.nodes().node_timeout;
        let label = self.options.label.clone();
        Attempt::new(self.resource.clone(), self.ttl, label, entry, node_timeout)
            .of_kind(self.kind.clone())
    }

    /// One attempt, with all the tries that it takes. `answer`: the answer to the first try, if that was made already.
    fn carry_out(
        &mut self,
        mut attempt: Attempt,
        mut answer: Option<Answer>,
    ) -> Result<Attempted, Error> {
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
            let notified_elsewhere = answer.notified_elsewhere;
            let lock = |key: Key, deadline: Deadline| {
                let shared = self.shared.clone();
                let mut lock = Lock::new(shared, key, self.ttl, deadline, self.options);
                lock.notified_elsewhere = notified_elsewhere;
                lock
            };
            let failed = |failure| Ok(Attempted::Failed(failure, Rejection::default()));
            match attempt.answered(answer, now) {
                Tried::Granted(key, deadline) => {
                    return Ok(Attempted::Acquired(lock(key, deadline)));
                }
                Tried::TooSlow(key, deadline) => {
                    drop(lock(key, deadline));
                    return failed(Failure::TooSlow);
                }
                Tried::Expired => return failed(Failure::TooSlow),
                Tried::Denied(rejection) => {
                    self.in_other_use(&rejection)?;
                    return Ok(Attempted::Failed(Failure::Busy(None), rejection));
                }
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

    /// A majority of the nodes says that the name is another kind of lock: waiting would not change that.
    fn in_other_use(&self, rejection: &Rejection) -> Result<(), Error> {
        let nodes = self.shared.driver.nodes();
        let Some((node, other)) = rejection.other_use(majority(nodes.peers().len())) else {
            return Ok(());
        };
        Err(Error::config(format!(
            "{} {} ({}): one name is one kind of lock",
            Shown(self.resource),
            other.text(),
            nodes.name(node),
        )))
    }

    /// The pause between two tries.
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
