//! How threads wait for a lock that another holder has: the wait queues, with threads, clocks and connections.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::clock::{self, Point};
use crate::error::{Cause, Error};
use crate::net::driver::Driver;
use crate::net::leader::Waiter;
use crate::net::nodes::Nodes;
use crate::net::subscription::Subscription;
use crate::prefix::Prefix;
use crate::protocol::means::Lack;
use crate::protocol::operation::Outcome;
use crate::protocol::process::Process;
use crate::protocol::queue::Channel;
use crate::protocol::release::{Release, Submit};
use crate::protocol::wait_queue::WaitQueues;
use crate::sync::lock;
use crate::token::{Token, jitter};

/// The pause before a subscription is tried again.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(700));
/// The number of counters for the locks held here. (The upper ten bits of a hash select one.)
const COUNTERS: usize = 1024;

/// The threads of this process that wait for locks, and what this process knows of waiters elsewhere.
pub(crate) struct Waiting {
    queues: Mutex<WaitQueues<Arc<Waiter>>>,
    /// Of keys and channels.
    prefix: Prefix,
    /// No lock has a queue, so a release need not look for the next waiter.
    idle: AtomicBool,
    /// The number of locks held here, by a hash of their resource.
    held_here: Box<[AtomicU32]>,
}

impl Waiting {
    pub(crate) fn new(nodes: &Nodes) -> Waiting {
        let mut random = [0; 16];
        let channel = getrandom::fill(&mut random)
            .ok()
            .map(|()| Channel::new(random));
        let rng = getrandom::u64().unwrap_or(1);
        let queues = WaitQueues::new(nodes.places().len(), channel, nodes.node_timeout, rng);
        Waiting {
            queues: Mutex::new(queues),
            prefix: nodes.prefix.clone(),
            idle: AtomicBool::new(true),
            held_here: (0..COUNTERS).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    fn counter(&self, resource: &[u8]) -> Option<&AtomicU32> {
        // FNV-1a, mixed once more, since its upper bits are the poorer ones.
        let hash = resource.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01B3)
        });
        let mixed = (hash ^ hash >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let at = usize::try_from(mixed >> 54).unwrap_or(0);
        self.held_here.get(at)
    }

    /// One more plain lock is held here.
    pub(crate) fn holds(&self, resource: &[u8]) {
        if let Some(counter) = self.counter(resource) {
            counter.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// One plain lock less is held here.
    pub(crate) fn ends(&self, resource: &[u8]) {
        if let Some(counter) = self.counter(resource) {
            counter.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Uses the queues, and wakes the threads that should then look again.
    fn with<T>(&self, use_them: impl FnOnce(&mut WaitQueues<Arc<Waiter>>) -> T) -> T {
        let mut queues = lock(&self.queues);
        let result = use_them(&mut queues);
        self.idle.store(queues.is_idle(), Ordering::SeqCst);
        let woken = std::mem::take(&mut queues.woken);
        drop(queues);
        woken.iter().for_each(|waiter| waiter.wake());
        result
    }

    /// Releases a lock, and hands it off to a waiter here or notifies one elsewhere.
    pub(crate) fn release(&self, driver: &Driver, release: &Release) -> Outcome {
        let mut process = self;
        let Submit { op, next } = release.submit(&mut process, Point::now);
        let handed_off = next.is_some();
        let answer = match next {
            None => driver.run(op),
            Some((next, thread)) => driver.run_before(op, next, thread),
        };
        release.answered(handed_off, answer, &mut process, Point::now)
    }

    // ---- notifications by other processes

    /// Starts a thread for each node that needs a subscription and has none.
    pub(crate) fn subscribe(self: &Arc<Waiting>, driver: &Arc<Driver>) {
        let nodes = lock(&self.queues).take_to_start();
        for node in nodes.iter() {
            let (waiting, driver) = (self.clone(), Arc::downgrade(driver));
            let thread = std::thread::Builder::new().name(format!("redlock-ear-{node}"));
            let started = thread.spawn(move || waiting.keep_subscribed(&driver, node));
            // (Not logged: a release may just have made this thread the leader.)
            if started.is_err() {
                self.with(|queues| queues.cannot_start_worker(node));
            }
        }
    }

    /// Keeps up the subscription to a node, until it is no longer needed.
    fn keep_subscribed(&self, driver: &Weak<Driver>, node: usize) {
        let _guard = SubscriberGuard {
            waiting: self,
            node,
        };
        while self.still_needed(node) {
            let Err(cause) = self.receive(driver, node) else {
                // By now there may be another thread for this node.
                return;
            };
            let name = driver.upgrade().map(|driver| {
                if cause.meaning().concerns_rights() {
                    driver.nodes().lacks(node, Lack::Messages);
                }
                driver.nodes().name(node)
            });
            if let Some(name) = name {
                say!(
                    debug,
                    "{name} cannot tell when other processes release locks: {cause}"
                );
            }
            self.with(|queues| queues.subscription_failed(node));
            if driver.strong_count() == 0 {
                return;
            }
            let (min, max) = RETRY;
            std::thread::sleep(jitter(min, max));
        }
    }

    fn still_needed(&self, node: usize) -> bool {
        self.with(|queues| queues.still_needed(node, clock::instant()))
    }

    /// Subscribes to a node and receives its messages. Returns when `still_needed` has returned false.
    fn receive(&self, driver: &Weak<Driver>, node: usize) -> Result<(), Cause> {
        let Some((place, timeout)) = driver.upgrade().and_then(|driver| {
            let nodes = driver.nodes();
            Some((nodes.places().get(node)?.clone(), nodes.connect_timeout))
        }) else {
            return Ok(());
        };
        let Some(channel) = self.with(|queues| queues.channel()) else {
            return Ok(());
        };
        let mut subscription =
            Subscription::open(&place, &self.prefix.key(&channel.bytes()), timeout)?;
        self.with(|queues| queues.subscribed(node, clock::instant()));
        while self.still_needed(node) {
            let Some(key) = subscription.receive()? else {
                continue;
            };
            let Some(resource) = self.prefix.name(&key) else {
                continue;
            };
            let (resource, now) = (Arc::from(resource), clock::instant());
            let forward = self.with(|queues| queues.forward(&resource, node, now));
            if let Some(op) = forward
                && let Some(driver) = driver.upgrade()
            {
                driver.run(op);
                self.with(|queues| queues.notify_front(&resource, node));
            }
        }
        Ok(())
    }
}

impl Process for &Waiting {
    type Thread = Arc<Waiter>;

    fn thread(&mut self, resource: &Arc<[u8]>) -> Arc<Waiter> {
        Waiter::new(Some(resource.clone()))
    }

    fn token(&mut self, _: &[u8]) -> Result<Token, Error> {
        Token::random()
    }

    fn jitter(&mut self, min: Duration, max: Duration) -> Duration {
        jitter(min, max)
    }

    fn is_idle(&mut self) -> bool {
        self.idle.load(Ordering::SeqCst)
    }

    fn queues<T>(&mut self, work: impl FnOnce(&mut WaitQueues<Arc<Waiter>>) -> T) -> T {
        self.with(work)
    }

    fn is_held_here(&mut self, resource: &[u8]) -> bool {
        self.counter(resource)
            .is_some_and(|counter| counter.load(Ordering::SeqCst) > 0)
    }

    fn holds(&mut self, resource: &[u8]) {
        Waiting::holds(self, resource);
    }

    fn ends(&mut self, resource: &[u8]) {
        Waiting::ends(self, resource);
    }
}

/// The life of a thread with a subscription. If it panics, which only a bug can be, another one may be started.
struct SubscriberGuard<'a> {
    waiting: &'a Waiting,
    node: usize,
}

impl Drop for SubscriberGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.waiting
                .with(|queues| queues.cannot_start_worker(self.node));
        }
    }
}
