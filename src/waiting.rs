//! How threads wait for a lock that somebody has: what the lines say, with threads, clocks and connections.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use crate::clock::{self, Point};
use crate::error::Cause;
use crate::net::driver::{Driver, Waiter};
use crate::net::nodes::Nodes;
use crate::net::subscription::Subscription;
use crate::protocol::attempt::Attempt;
use crate::protocol::operation::{Answer, Op, Outcome};
use crate::protocol::queue::{Channel, Turn};
use crate::protocol::quorum::NodeSet;
use crate::protocol::script::{Action, Key, Notify};
use crate::protocol::wait_queue::{HandOff, WaitQueues};
use crate::sync::lock;
use crate::token::{Token, jitter};

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
    pub(crate) fn is_connected(&self, resource: &[u8]) -> bool {
        self.part(resource)
            .is_some_and(|part| part.load(Ordering::SeqCst) > 0)
    }

    pub(crate) fn is_quiet(&self) -> bool {
        self.quiet.load(Ordering::SeqCst)
    }

    /// Uses the lines, and wakes those who should look again.
    pub(crate) fn with<T>(&self, use_them: impl FnOnce(&mut WaitQueues<Arc<Waiter>>) -> T) -> T {
        let mut lines = lock(&self.lines);
        let result = use_them(&mut lines);
        self.quiet.store(lines.is_idle(), Ordering::SeqCst);
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
            self.with(|lines| lines.notified_elsewhere(&key.resource, clock::instant()));
        }
        if fair || self.is_quiet() {
            return self.tell(driver, op(tell), key).outcome;
        }
        let handover = self.with(|lines| lines.hand_off(&key.resource, clock::instant()));
        match handover {
            HandOff::Notify(tell) => self.tell(driver, op(tell), key).outcome,
            HandOff::To {
                waiter,
                thread,
                ttl,
                label,
            } => {
                let node_timeout = driver.nodes().node_timeout;
                let mut attempt =
                    Attempt::new(key.resource.clone(), ttl, label, None, node_timeout);
                let Ok(token) = Token::random() else {
                    self.with(|lines| lines.hand_off_failed(waiter, clock::instant()));
                    return self.tell(driver, op(tell), key).outcome;
                };
                let next = attempt.op(token, Point::now());
                // It has the lock before its thread knows: who is at the front then need not ask.
                self.holds(&key.resource);
                self.with(|lines| lines.handed_off(waiter, attempt));
                let answer = driver.run_before(op(Notify::None), next, thread);
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
    pub(crate) fn listen(self: &Arc<Waiting>, driver: &Arc<Driver>) {
        let nodes = lock(&self.lines).take_to_start();
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
        self.with(|lines| lines.subscribed(node, clock::instant()));
        while self.with(|lines| lines.still_needed(node, clock::instant())) {
            let Some(resource) = subscription.hear()? else {
                continue;
            };
            let now = clock::instant();
            if self.with(|lines| lines.must_forward(&resource, node, now))
                && let Some(driver) = driver.upgrade()
            {
                // Each node has told one by itself.
                let here = std::iter::once(node).collect();
                leave(&driver, &resource.clone().into(), channel, false, here);
                // Who has knocked since may not be in the queue any more.
                self.with(|lines| lines.notify_front(&resource, node));
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
pub(crate) fn leave(
    driver: &Driver,
    resource: &Arc<[u8]>,
    channel: Channel,
    fair: bool,
    nodes: NodeSet,
) {
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
