//! How threads wait for a lock that another holder has: the wait queues, with threads, clocks and connections.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::errors::cause::Cause;
use crate::errors::error::Error;
use crate::net::driver::driver::Driver;
use crate::net::driver::executor::Executor;
use crate::net::driver::leadership::Caller;
use crate::net::driver::subscription::Subscription;
use crate::protocol::calls::process_services::ProcessServices;
use crate::protocol::commands::dialect::Lack;
use crate::protocol::commands::node_queue::Channel;
use crate::protocol::quorum::op::Op;
use crate::protocol::waiting::held_here::HeldHere;
use crate::protocol::waiting::subscriptions::{SubscriberEvent, SubscriberTask};
use crate::protocol::waiting::wait_queue::WaitQueues;
use crate::values::clock;
use crate::values::prefix::Prefix;
use crate::values::sync::{
    Mutex,
    atomic::{AtomicBool, Ordering},
    lock, start_thread, thread,
};
use crate::values::token::{Token, jitter};

/// The number of counters for the locks held here.
const COUNTERS: usize = 1024;

/// The threads of this process that wait for locks, and what this process has learnt of waiters elsewhere.
pub(crate) struct WaitingThreads {
    queues: Mutex<WaitQueues<Arc<Caller>>>,
    /// The prefix of keys and channels.
    prefix: Prefix,
    /// Whether no lock has a queue, so that a release need not look for the next waiter.
    none_waits: AtomicBool,
    pub(crate) held_here: HeldHere,
}

impl WaitingThreads {
    pub(crate) fn new(executor: &Executor) -> WaitingThreads {
        let mut random = [0; 16];
        let channel = getrandom::fill(&mut random)
            .ok()
            .map(|()| Channel::new(random));
        let rng = getrandom::u64().unwrap_or(1);
        let queues = WaitQueues::new(
            executor.places().len(),
            channel,
            executor.timeouts.node,
            rng,
        );
        WaitingThreads {
            queues: Mutex::new(queues),
            prefix: executor.prefix.clone(),
            none_waits: AtomicBool::new(true),
            held_here: HeldHere::new(COUNTERS),
        }
    }

    /// Uses the queues, and wakes the threads that should then look again.
    fn with<T>(&self, use_them: impl FnOnce(&mut WaitQueues<Arc<Caller>>) -> T) -> T {
        let mut queues = lock(&self.queues);
        let result = use_them(&mut queues);
        self.none_waits.store(queues.none_waits(), Ordering::SeqCst);
        let woken = std::mem::take(&mut queues.woken);
        drop(queues);
        woken.iter().for_each(|waiter| waiter.wake());
        result
    }

    // ---- notifications by other processes

    /// Starts a subscriber for each node that needs a subscription and has none. `forward`: passes a notification on.
    pub(crate) fn subscribe(
        self: &Arc<WaitingThreads>,
        driver: &Arc<Driver>,
        forward: impl Fn(&Driver, Op) + Clone + Send + 'static,
    ) {
        let nodes = lock(&self.queues).take_to_start();
        for node in nodes.iter() {
            let subscriber = Subscriber {
                waiting: self.clone(),
                driver: Arc::downgrade(driver),
                forward: forward.clone(),
                node,
                subscription: None,
                has_ended: false,
            };
            // (Not logged: a release may just have made this thread the leader.)
            let _ = start_thread(format!("redlock-sub-{node}"), move || subscriber.run());
        }
    }
}

impl ProcessServices for &WaitingThreads {
    type Thread = Arc<Caller>;

    fn thread(&mut self, resource: &Arc<[u8]>) -> Arc<Caller> {
        Caller::new(Some(resource.clone()))
    }

    fn token(&mut self, _: &[u8]) -> Result<Token, Error> {
        Token::random().map_err(Error::Random)
    }

    fn jitter(&mut self, min: Duration, max: Duration) -> Duration {
        jitter(min, max)
    }

    fn none_waits(&mut self) -> bool {
        self.none_waits.load(Ordering::SeqCst)
    }

    fn queues<T>(&mut self, work: impl FnOnce(&mut WaitQueues<Arc<Caller>>) -> T) -> T {
        self.with(work)
    }

    fn held_here(&self) -> &HeldHere {
        &self.held_here
    }
}

/// The thread that maintains the subscription to a node, until it is no longer needed.
struct Subscriber<F: Fn(&Driver, Op)> {
    waiting: Arc<WaitingThreads>,
    driver: Weak<Driver>,
    forward: F,
    node: usize,
    subscription: Option<Subscription>,
    has_ended: bool,
}

impl<F: Fn(&Driver, Op)> Subscriber<F> {
    /// Carries out what [`WaitQueues::subscriber`] returns.
    fn run(mut self) {
        let mut event = Some(SubscriberEvent::Begins);
        while let Some(happened) = event {
            event = match self.task(happened) {
                SubscriberTask::Open(channel) => self.open(channel),
                SubscriberTask::Receive => Some(self.receive()),
                SubscriberTask::Forward(op) => self.forward(op),
                SubscriberTask::Pause((min, max)) => (self.driver.strong_count() > 0).then(|| {
                    thread::sleep(jitter(min, max));
                    SubscriberEvent::Begins
                }),
                SubscriberTask::End => None,
            };
        }
        self.has_ended = true;
    }

    fn task(&self, event: SubscriberEvent) -> SubscriberTask {
        let (node, now) = (self.node, clock::instant());
        self.waiting
            .with(|queues| queues.subscriber(node, event, now))
    }

    /// Opens the subscription. `None` if the process no longer needs subscriptions.
    fn open(&mut self, channel: Channel) -> Option<SubscriberEvent> {
        let name = channel.bytes();
        let (place, timeout) = {
            let driver = self.driver.upgrade()?;
            let executor = driver.executor();
            (
                executor.places().get(self.node)?.clone(),
                executor.timeouts.connect,
            )
        };
        let key = self.waiting.prefix.key(&name);
        Some(match Subscription::open(&place, &key, timeout) {
            Ok(subscription) => {
                if subscription.is_deaf {
                    self.lacks_messages();
                }
                self.subscription = Some(subscription);
                SubscriberEvent::Opened
            }
            Err(cause) => self.lose_subscription(&cause),
        })
    }

    fn receive(&mut self) -> SubscriberEvent {
        let received = self.subscription.as_mut().map(Subscription::receive);
        match received.unwrap_or(Ok(None)) {
            Ok(key) => {
                let resource = key.as_deref().and_then(|key| self.waiting.prefix.name(key));
                resource.map_or(SubscriberEvent::Nothing, |resource| {
                    SubscriberEvent::Message(Arc::from(resource))
                })
            }
            Err(cause) => self.lose_subscription(&cause),
        }
    }

    fn forward(&self, op: Op) -> Option<SubscriberEvent> {
        let resource = op.key.resource.clone();
        (self.forward)(&*self.driver.upgrade()?, op);
        Some(SubscriberEvent::Forwarded(resource))
    }

    fn lacks_messages(&self) {
        if let Some(driver) = self.driver.upgrade() {
            driver.executor().lacks(self.node, Lack::Messages);
        }
    }

    fn lose_subscription(&mut self, cause: &Cause) -> SubscriberEvent {
        self.subscription = None;
        let name = self
            .driver
            .upgrade()
            .map(|driver| driver.executor().name(self.node));
        if cause.meaning().concerns_rights() {
            self.lacks_messages();
        }
        if let Some(name) = name {
            say!(
                debug,
                node:% = name;
                "{name} cannot notify this process of releases by others: {cause}"
            );
        }
        SubscriberEvent::Failed
    }
}

impl<F: Fn(&Driver, Op)> Drop for Subscriber<F> {
    /// If the subscriber could not be started, or has panicked, which only a bug can cause, another one may be started.
    fn drop(&mut self) {
        if !self.has_ended {
            self.task(SubscriberEvent::Ended);
        }
    }
}
