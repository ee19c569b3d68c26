//! How threads wait for a lock that somebody has: what the lines say, with threads, clocks and connections.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use crate::clock::{self, Point};
use crate::error::{Cause, Error};
use crate::lock::{Lock, Shared};
use crate::net::driver::{Driver, Waiter};
use crate::net::nodes::Nodes;
use crate::net::subscription::Subscription;
use crate::options::Options;
use crate::protocol::attempt::{Attempt, Rejection, Tried};
use crate::protocol::operation::{Answer, Op, Outcome};
use crate::protocol::queue::{Channel, QueueEntry, Turn};
use crate::protocol::quorum::{Deadline, NodeSet, Ttl};
use crate::protocol::script::{Action, Key, Notify};
use crate::protocol::wait_queue::{AcquireRequest, Failure, HandOff, WaitQueues, WaiterAction};
use crate::shown::Shown;
use crate::sync::lock;
use crate::text::human;
use crate::token::{Token, jitter};

/// How often `acquire_while` asks while it waits.
const ASK: Duration = Duration::from_millis(50);
/// The pause before a node is listened to again.
const LISTEN_AGAIN: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(700));
/// In so many parts it is counted which resources are locked here. (The upper ten bits of a hash tell which.)
const PARTS: usize = 1024;

/// Those who wait in this process, and what is known here of those who do elsewhere.
pub(crate) struct Waiting {
    lines: Mutex<WaitQueues<Arc<Waiter>>>,
    /// No lock has a line: a release need not look who is next.
    quiet: AtomicBool,
    /// How many locks are held here, by a part of their resource's hash.
    here: Box<[AtomicU32]>,
}

impl Waiting {
    pub(crate) fn new(nodes: &Nodes) -> Waiting {
        let mut random = [0; 16];
        let channel = getrandom::fill(&mut random)
            .ok()
            .map(|()| Channel::new(random));
        let rng = getrandom::u64().unwrap_or(1);
        let lines = WaitQueues::new(nodes.peers().len(), channel, nodes.node_timeout, rng);
        Waiting {
            lines: Mutex::new(lines),
            quiet: AtomicBool::new(true),
            here: (0..PARTS).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    fn part(&self, resource: &[u8]) -> Option<&AtomicU32> {
        // FNV-1a, mixed once more, since its upper bits are the poorer ones.
        let hash = resource.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3)
        });
        let mixed = (hash ^ hash >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.here.get(usize::try_from(mixed >> 54).unwrap_or(0))
    }

    /// A lock is held from now on.
    pub(crate) fn holds(&self, resource: &[u8]) {
        if let Some(part) = self.part(resource) {
            part.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// It is not any more.
    pub(crate) fn ends(&self, resource: &[u8]) {
        if let Some(part) = self.part(resource) {
            part.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Whether a thread of this process seems to hold it.
    fn is_connected(&self, resource: &[u8]) -> bool {
        self.part(resource)
            .is_some_and(|part| part.load(Ordering::SeqCst) > 0)
    }

    fn is_quiet(&self) -> bool {
        self.quiet.load(Ordering::SeqCst)
    }

    /// Uses the lines, and wakes those who should look again.
    fn with<T>(&self, use_them: impl FnOnce(&mut WaitQueues<Arc<Waiter>>) -> T) -> T {
        let mut lines = lock(&self.lines);
        let result = use_them(&mut lines);
        self.quiet.store(lines.is_quiet(), Ordering::SeqCst);
        let woken = std::mem::take(&mut lines.woken);
        drop(lines);
        woken.iter().for_each(|waiter| waiter.wake());
        result
    }

    // ---- releases

    /// Carries out the release of a lock, and sees to it that the next one gets it. Until that is done the lock is
    /// held here.
    ///
    /// `passed`: when the lock was acquired, another process had been told that it is free. `fair`: whoever is next,
    /// here or elsewhere, the nodes decide.
    pub(crate) fn release(
        &self,
        driver: &Driver,
        key: &Key,
        (passed, fair): (bool, bool),
        only_write: bool,
    ) -> Outcome {
        let tell = match fair {
            true => Notify::FirstAndReserve(Turn::new(driver.nodes().node_timeout)),
            false => Notify::First,
        };
        let op = |tell| Op {
            action: Action::Release(tell),
            key: key.clone(),
            since: None,
            until: None,
            only_write,
            nodes: NodeSet::ALL,
        };
        if passed {
            // However long it was held: this time that one has a start.
            self.with(|lines| lines.passed(&key.resource, clock::instant()));
        }
        if fair || self.is_quiet() {
            return self.tell(driver, op(tell), key).outcome;
        }
        let handover = self.with(|lines| lines.hand_over(&key.resource, clock::instant()));
        match handover {
            HandOff::Notify(tell) => self.tell(driver, op(tell), key).outcome,
            HandOff::To {
                place,
                who,
                ttl,
                label,
            } => {
                let node_timeout = driver.nodes().node_timeout;
                let mut attempt =
                    Attempt::new(key.resource.clone(), ttl, label, None, node_timeout);
                let Ok(token) = Token::random() else {
                    self.with(|lines| lines.hand_off_failed(place, clock::instant()));
                    return self.tell(driver, op(tell), key).outcome;
                };
                let next = attempt.op(token, Point::now());
                // It has the lock before its thread knows: who is at the front then need not ask.
                self.holds(&key.resource);
                self.with(|lines| lines.serve(place, attempt));
                let answer = driver.run_before(op(Notify::None), next, who);
                self.ends(&key.resource);
                self.with(|lines| lines.wake(&key.resource));
                answer.outcome
            }
        }
    }

    fn tell(&self, driver: &Driver, op: Op, key: &Key) -> Answer {
        let answer = driver.run(op);
        // Who comes now sees that the lock is not here any more, or is seen in the line.
        self.ends(&key.resource);
        let told = answer.has_notified();
        if told || !self.is_quiet() {
            let now = clock::instant();
            self.with(|lines| lines.released(&key.resource, told, now));
        }
        answer
    }

    // ---- messages

    /// Starts a thread for each node that is to be listened to.
    fn listen(self: &Arc<Waiting>, driver: &Arc<Driver>) {
        let nodes = std::mem::take(&mut lock(&self.lines).listen);
        for node in nodes.iter() {
            let (waiting, driver) = (self.clone(), Arc::downgrade(driver));
            let thread = std::thread::Builder::new().name(format!("redlock-ear-{node}"));
            let started = thread.spawn(move || waiting.keep_subscribed(&driver, node));
            // (Not logged: a release may just have made this thread the one that leads.)
            if started.is_err() {
                self.with(|lines| lines.cannot_start_worker(node));
            }
        }
    }

    /// The life of such a thread: until nobody waits for other processes any more.
    fn keep_subscribed(&self, driver: &Weak<Driver>, node: usize) {
        let _ears = Listening {
            waiting: self,
            node,
        };
        while self.with(|lines| lines.still_needed(node, clock::instant())) {
            let Err(cause) = self.hear(driver, node) else {
                // Another thread may listen to it already.
                return;
            };
            let name = driver.upgrade().map(|driver| driver.nodes().name(node));
            if let Some(name) = name {
                say!(
                    debug,
                    "{name} cannot tell when other processes release locks: {cause}"
                );
            }
            self.with(|lines| lines.subscription_failed(node));
            if driver.strong_count() == 0 {
                return;
            }
            let (min, max) = LISTEN_AGAIN;
            std::thread::sleep(jitter(min, max));
        }
    }

    /// Listens to a node until nobody needs it any more, which the lines know then.
    fn hear(&self, driver: &Weak<Driver>, node: usize) -> Result<(), Cause> {
        let Some((info, timeout)) = driver.upgrade().and_then(|driver| {
            let nodes = driver.nodes();
            Some((nodes.peers().get(node)?.clone(), nodes.connect_timeout))
        }) else {
            return Ok(());
        };
        let Some(channel) = self.with(|lines| lines.channel()) else {
            return Ok(());
        };
        let mut subscription = Subscription::open(&info, &channel.name(), timeout)?;
        self.with(|lines| lines.hears(node, clock::instant()));
        while self.with(|lines| lines.still_needed(node, clock::instant())) {
            let Some(resource) = subscription.hear()? else {
                continue;
            };
            let now = clock::instant();
            if !self.with(|lines| lines.told(&resource, node, now))
                && let Some(driver) = driver.upgrade()
            {
                // Each node has told one by itself.
                let here = std::iter::once(node).collect();
                leave(&driver, &resource.clone().into(), channel, false, here);
                // Who has knocked since may not be in the queue any more.
                self.with(|lines| lines.hint(&resource, node));
            }
        }
        Ok(())
    }
}

/// A thread that listens. If it panics, which only a bug can be, another one may.
struct Listening<'a> {
    waiting: &'a Waiting,
    node: usize,
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.waiting
                .with(|lines| lines.cannot_start_worker(self.node));
        }
    }
}

/// This process does not wait for a lock any more: if that is free, the next is told.
fn leave(driver: &Driver, resource: &Arc<[u8]>, channel: Channel, fair: bool, nodes: NodeSet) {
    let turn = Turn::new(driver.nodes().node_timeout);
    // Nobody reads the answer.
    driver.run(Op {
        action: Action::Dequeue(Arc::new(channel), turn, fair),
        key: Key {
            resource: resource.clone(),
            token: Token::from_bytes([0; 20]),
            label: None,
            asked: NodeSet::EMPTY,
        },
        since: None,
        until: None,
        only_write: true,
        nodes,
    });
}

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
        let go = |left| {
            let now = clock::instant();
            waiting.with(|lines| lines.leave(self.place, self.got, left, now))
        };
        if let Some(channel) = go(false) {
            let driver = &self.shared.driver;
            leave(driver, self.resource, channel, self.fair, NodeSet::ALL);
            go(true);
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
        let joins = turn.is_some()
            || waits && waiting.with(|lines| lines.is_waited_for(self.resource, now));
        let mut tried = None;
        if !joins {
            let was_here = waiting.is_connected(self.resource);
            let attempt = self.attempt(None);
            let failure = match self.carry_out(attempt, None)? {
                Ok(lock) => return Ok(lock),
                Err((failure, _)) => failure,
            };
            let here = was_here || waiting.is_connected(self.resource);
            if is_over(end) || failure.is_hopeless() {
                return Err(error(failure));
            }
            let pause = self.pause(&failure);
            tried = Some((failure, pause, here));
        }
        let request = AcquireRequest {
            ttl: self.ttl,
            label: self.options.label.clone(),
            end,
            asks: self.keep_trying.is_some(),
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
                WaiterAction::Served(attempt) => {
                    let answer = self.shared.driver.run_handed_off(&seat.waiter);
                    let tried = self.carry_out(attempt, Some(answer));
                    // If it has the lock, that counts by itself now.
                    waiting.ends(self.resource);
                    tried?
                }
                WaiterAction::Over(failure) => return Err(error(failure)),
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
