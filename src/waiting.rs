//! How threads wait for a lock that another holder has: the wait queues, with threads, clocks and connections.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::clock::{self, Point};
use crate::error::Cause;
use crate::net::driver::Driver;
use crate::net::leader::Waiter;
use crate::net::nodes::Nodes;
use crate::net::subscription::Subscription;
use crate::protocol::attempt::Attempt;
use crate::protocol::operation::{Op, Outcome};
use crate::protocol::queue::{Channel, Turn};
use crate::protocol::quorum::NodeSet;
use crate::protocol::script::{Action, Key, Notify};
use crate::protocol::wait_queue::{HandOff, WaitQueues};
use crate::sync::lock;
use crate::token::{Token, jitter};

/// The pause before a subscription is tried again.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(700));
/// The number of counters for the locks held here. (The upper ten bits of a hash select one.)
const COUNTERS: usize = 1024;

/// The threads of this process that wait for locks, and what this process knows of waiters elsewhere.
pub(crate) struct Waiting {
    queues: Mutex<WaitQueues<Arc<Waiter>>>,
    /// No lock has a queue, so a release need not look for the next waiter.
    idle: AtomicBool,
    /// The number of locks held here, by a hash of their resource.
    held_here: Box<[AtomicU32]>,
}

/// The release of a lock.
pub(crate) struct Release<'a> {
    pub(crate) key: &'a Key,
    /// When the lock was acquired, another process had been notified that it is free.
    pub(crate) notified_elsewhere: bool,
    /// The nodes decide which waiter is next, here or elsewhere.
    pub(crate) fair: bool,
    /// Does not wait for the answers.
    pub(crate) only_write: bool,
}

impl Release<'_> {
    fn op(&self, notify: Notify) -> Op {
        Op::new(Action::Release(notify), self.key.clone()).only_write(self.only_write)
    }
}

impl Waiting {
    pub(crate) fn new(nodes: &Nodes) -> Waiting {
        let mut random = [0; 16];
        let channel = getrandom::fill(&mut random)
            .ok()
            .map(|()| Channel::new(random));
        let rng = getrandom::u64().unwrap_or(1);
        let queues = WaitQueues::new(nodes.peers().len(), channel, nodes.node_timeout, rng);
        Waiting {
            queues: Mutex::new(queues),
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

    /// A plain lock is held here from now on.
    pub(crate) fn holds(&self, resource: &[u8]) {
        if let Some(counter) = self.counter(resource) {
            counter.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A plain lock is no longer held here.
    pub(crate) fn ends(&self, resource: &[u8]) {
        if let Some(counter) = self.counter(resource) {
            counter.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Whether a thread of this process seems to hold the lock.
    pub(crate) fn is_held_here(&self, resource: &[u8]) -> bool {
        self.counter(resource)
            .is_some_and(|counter| counter.load(Ordering::SeqCst) > 0)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.idle.load(Ordering::SeqCst)
    }

    /// Uses the queues, and wakes the threads that should then look again.
    pub(crate) fn with<T>(&self, use_them: impl FnOnce(&mut WaitQueues<Arc<Waiter>>) -> T) -> T {
        let mut queues = lock(&self.queues);
        let result = use_them(&mut queues);
        self.idle.store(queues.is_idle(), Ordering::SeqCst);
        let woken = std::mem::take(&mut queues.woken);
        drop(queues);
        woken.iter().for_each(|waiter| waiter.wake());
        result
    }

    // ---- releases

    /// Releases a lock, and hands it off to a waiter here or notifies one elsewhere. Until that is done the lock counts as
    /// held here.
    pub(crate) fn release(&self, driver: &Driver, release: &Release<'_>) -> Outcome {
        let resource = &release.key.resource;
        if !release.key.kind.is_plain() {
            // Plain waiters are notified; others try again by themselves.
            return driver.run(release.op(Notify::First)).outcome;
        }
        if release.notified_elsewhere {
            // However long the lock was held: this time that process gets a head start.
            self.with(|queues| queues.notified_elsewhere(resource, clock::instant()));
        }
        if release.fair {
            let turn = Turn::new(driver.nodes().node_timeout);
            return self.notify(driver, release, Notify::FirstAndReserve(turn));
        }
        if self.is_idle() {
            return self.notify(driver, release, Notify::First);
        }
        match self.with(|queues| queues.hand_off(resource, clock::instant())) {
            HandOff::Notify(notify) => self.notify(driver, release, notify),
            HandOff::To {
                waiter,
                thread,
                ttl,
                label,
            } => {
                let node_timeout = driver.nodes().node_timeout;
                let mut attempt = Attempt::new(resource.clone(), ttl, label, None, node_timeout);
                let Ok(token) = Token::random() else {
                    self.with(|queues| queues.hand_off_failed(waiter, clock::instant()));
                    return self.notify(driver, release, Notify::First);
                };
                let next = attempt.op(token, Point::now());
                // It holds the lock before its thread knows: then the waiter at the front need not ask the nodes.
                self.holds(resource);
                self.with(|queues| queues.handed_off(waiter, attempt));
                let answer = driver.run_before(release.op(Notify::None), next, thread);
                self.ends(resource);
                self.with(|queues| queues.wake(resource));
                answer.outcome
            }
        }
    }

    /// A release without a hand-off.
    fn notify(&self, driver: &Driver, release: &Release<'_>, notify: Notify) -> Outcome {
        let resource = &release.key.resource;
        let answer = driver.run(release.op(notify));
        // Before looking for waiters: a thread that joins now either finds the lock not held here, or is found.
        self.ends(resource);
        let notified = answer.has_notified();
        if notified || !self.is_idle() {
            let now = clock::instant();
            self.with(|queues| queues.released(resource, notified, now));
        }
        answer.outcome
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
            let name = driver.upgrade().map(|driver| driver.nodes().name(node));
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
        let Some((info, timeout)) = driver.upgrade().and_then(|driver| {
            let nodes = driver.nodes();
            Some((nodes.peers().get(node)?.clone(), nodes.connect_timeout))
        }) else {
            return Ok(());
        };
        let Some(channel) = self.with(|queues| queues.channel()) else {
            return Ok(());
        };
        let mut subscription = Subscription::open(&info, &channel.name(), timeout)?;
        self.with(|queues| queues.subscribed(node, clock::instant()));
        while self.still_needed(node) {
            let Some(resource) = subscription.receive()? else {
                continue;
            };
            let now = clock::instant();
            if self.with(|queues| queues.must_forward(&resource, node, now))
                && let Some(driver) = driver.upgrade()
            {
                // Every node notifies independently, so pass it on only on this node.
                let only = std::iter::once(node).collect();
                dequeue(&driver, &resource.clone().into(), channel, false, only);
                // A thread of this process may have enqueued since, and been removed by this: wake it.
                self.with(|queues| queues.notify_front(&resource, node));
            }
        }
        Ok(())
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

/// Removes this process from the queues on the nodes. If the lock is free, the next in the queue is notified.
pub(crate) fn dequeue(
    driver: &Driver,
    resource: &Arc<[u8]>,
    channel: Channel,
    fair: bool,
    nodes: NodeSet,
) {
    let turn = Turn::new(driver.nodes().node_timeout);
    // The answer is not read.
    let op = Op::dequeue(resource.clone(), channel, turn, fair);
    driver.run(op.only_write(true).to(nodes));
}
