//! Virtual subscriptions, and the threads that keep them up, so that a process is notified of releases.
//!
//! A subscription is a connection of its own. It is confirmed some time after the server has it, its messages
//! keep their order, and both sides learn at different times that it is cut.

use std::collections::VecDeque;
use std::sync::Arc;

use super::client::NO_THREAD;
use super::trouble::Trouble;
use super::{CONNECT_TIMEOUT, Count, Event, MS, World, trace};
use crate::protocol::subscriptions::{SubscriberEvent, SubscriberTask};

/// After this time without a message, the thread checks whether the subscription is still needed.
const QUIET: u64 = 1000 * MS;

pub(super) struct Subscription {
    client: usize,
    node: usize,
    /// The server publishes to it.
    subscribed: bool,
    /// The client knows that.
    confirmed: bool,
    /// Nothing passes any more; and the client knows that.
    cut: bool,
    broken: bool,
    inbox: VecDeque<u8>,
    /// Messages keep their order; nothing passes before.
    at: u64,
    held: u64,
}

/// What happens to a subscription.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SubscriptionEvent {
    /// The server has read that it is wanted.
    Subscribes,
    /// The client reads that it has.
    Confirms,
    Message(u8),
    /// The server learns that it is over.
    Ends,
    /// The client learns that.
    Breaks,
}

/// A subscriber.
pub(super) struct Listener {
    node: usize,
    state: State,
}

#[derive(Clone, Copy)]
enum State {
    Connecting(usize, u64),
    Subscribed(usize, u64),
    Pauses(u64),
    Ended,
}

impl World {
    // ---- the server's side

    /// A message for a channel. Returns whether the channel has a subscriber.
    pub(super) fn publish(&mut self, node: usize, channel: usize, resource: u8) -> bool {
        let is = |subscription: &Subscription| {
            subscription.subscribed && subscription.client == channel && subscription.node == node
        };
        let subscriptions: Vec<usize> = (0..self.net.subscriptions.len())
            .filter(|at| is(&self.net.subscriptions[*at]))
            .collect();
        trace!(
            self,
            "    node {node} notifies {channel}: {}",
            subscriptions.len()
        );
        for at in subscriptions.iter().copied() {
            let later = self.t + self.delay(node);
            let subscription = &mut self.net.subscriptions[at];
            subscription.at = subscription.at.max(later).max(subscription.held);
            let later = subscription.at;
            self.at(
                later,
                Event::Subscription(at, SubscriptionEvent::Message(resource)),
            );
        }
        if !subscriptions.is_empty() {
            self.counts[Count::Notified] += 1;
        }
        !subscriptions.is_empty()
    }

    pub(super) fn sound(&mut self, at: usize, sound: SubscriptionEvent) {
        let node = self.net.subscriptions[at].node;
        let paused = self.servers[node].is_paused(self.t);
        let held = Some(self.net.subscriptions[at].held).filter(|held| *held > self.t);
        let later = self.t + self.delay(node);
        let subscription = &mut self.net.subscriptions[at];
        match sound {
            SubscriptionEvent::Ends => subscription.subscribed = false,
            SubscriptionEvent::Breaks => (subscription.cut, subscription.broken) = (true, true),
            SubscriptionEvent::Message(resource) if subscription.cut => {
                // A client that waits for it tries when the subscription is confirmed anew. One that does not wait would
                // have passed the message on, and cannot.
                let client = subscription.client;
                self.checks.idle[usize::from(resource)].excused |=
                    !self.waits_for(client, resource);
                return;
            }
            _ if subscription.cut => return,
            SubscriptionEvent::Subscribes => match paused.or(held) {
                Some(later) => {
                    return self.at(
                        later,
                        Event::Subscription(at, SubscriptionEvent::Subscribes),
                    );
                }
                None => {
                    subscription.subscribed = true;
                    subscription.at = later;
                    return self.at(later, Event::Subscription(at, SubscriptionEvent::Confirms));
                }
            },
            SubscriptionEvent::Confirms => subscription.confirmed = true,
            SubscriptionEvent::Message(resource) => subscription.inbox.push_back(resource),
        }
        let client = subscription.client;
        self.pump(client);
    }

    /// Something on the way ends subscriptions. `gone`: the server's side is gone at once.
    pub(super) fn cut_subscriptions(&mut self, gone: bool, which: impl Fn(usize, usize) -> bool) {
        for at in 0..self.net.subscriptions.len() {
            let subscription = &self.net.subscriptions[at];
            if !subscription.cut && which(subscription.client, subscription.node) {
                self.cut_subscription(at, gone);
            }
        }
    }

    pub(super) fn cut_some_subscription(&mut self) {
        let open = |at: &usize| !self.net.subscriptions[*at].cut;
        let open: Vec<usize> = (0..self.net.subscriptions.len()).filter(open).collect();
        if !open.is_empty() {
            let at = open[self.random.pick(open.len())];
            self.cut_subscription(at, false);
        }
    }

    fn cut_subscription(&mut self, at: usize, gone: bool) {
        trace!(self, "subscription {at} is cut");
        self.net.subscriptions[at].cut = true;
        self.net.subscriptions[at].subscribed &= !gone;
        for sound in [SubscriptionEvent::Ends, SubscriptionEvent::Breaks] {
            let later = if self.random.chance(50) {
                self.random.below(400 * MS)
            } else {
                0
            };
            self.at(self.t + later, Event::Subscription(at, sound));
        }
    }

    pub(super) fn hold_subscriptions(&mut self, until: u64, which: impl Fn(usize, usize) -> bool) {
        for subscription in &mut self.net.subscriptions {
            if which(subscription.client, subscription.node) {
                subscription.held = subscription.held.max(until);
            }
        }
    }

    // ---- the threads

    /// Starts a subscriber for each node that needs a subscription.
    pub(super) fn listen(&mut self, c: usize) {
        let nodes = self.clients[c].queues.take_to_start();
        for node in nodes.iter() {
            let state = State::Pauses(self.t);
            let listeners = &mut self.clients[c].listeners;
            let twice = listeners.iter().any(|one| one.node == node);
            listeners.push(Listener { node, state });
            self.check(!twice, || {
                format!("client {c}: two threads subscribe to node {node}")
            });
        }
    }

    pub(super) fn listen_all(&mut self, c: usize) -> bool {
        let mut busy = false;
        for at in 0..self.clients[c].listeners.len() {
            busy |= self.listen_on(c, at);
        }
        let ended = |one: &Listener| matches!(one.state, State::Ended);
        self.clients[c].listeners.retain(|one| !ended(one));
        busy
    }

    fn listen_on(&mut self, c: usize, at: usize) -> bool {
        let Listener { node, state } = self.clients[c].listeners[at];
        let event = match state {
            State::Pauses(until) if until <= self.t => SubscriberEvent::Begins,
            State::Connecting(at, _) if self.net.subscriptions[at].confirmed => {
                SubscriberEvent::Opened
            }
            State::Connecting(at, until)
                if self.net.subscriptions[at].broken || until <= self.t =>
            {
                SubscriberEvent::Failed
            }
            State::Subscribed(at, until) => match self.net.subscriptions[at].inbox.pop_front() {
                Some(resource) => SubscriberEvent::Message(Arc::from(&[resource][..])),
                None if self.net.subscriptions[at].broken => SubscriberEvent::Failed,
                None if until <= self.t => SubscriberEvent::Nothing,
                None => {
                    self.wake(c, until);
                    return false;
                }
            },
            State::Pauses(until) | State::Connecting(_, until) => {
                self.wake(c, until);
                return false;
            }
            State::Ended => return false,
        };
        let state = self.subscriber(c, node, state, event);
        self.clients[c].listeners[at].state = state;
        true
    }

    fn subscriber(&mut self, c: usize, node: usize, state: State, event: SubscriberEvent) -> State {
        trace!(self, "client {c} subscribes to node {node}: {event:?}");
        let now = self.now(c);
        let task = self.clients[c].queues.subscriber(node, event, now);
        self.wake_all(c);
        match (task, state) {
            (SubscriberTask::Forward(op), _) => {
                self.counts[Count::Forwards] += 1;
                let forwarded = SubscriberEvent::Forwarded(op.key.resource.clone());
                self.submit(c, NO_THREAD, op);
                self.subscriber(c, node, state, forwarded)
            }
            (SubscriberTask::Receive, State::Connecting(at, _) | State::Subscribed(at, _)) => {
                State::Subscribed(at, self.t + QUIET)
            }
            (SubscriberTask::Open(_), _) => self.open(c, node),
            (task, state) => {
                if let State::Connecting(at, _) | State::Subscribed(at, _) = state {
                    self.close_subscription(at);
                }
                match task {
                    SubscriberTask::Pause((min, max)) => {
                        let pause = self.random.between(min, max).as_micros();
                        State::Pauses(self.t + u64::try_from(pause).unwrap())
                    }
                    _ => State::Ended,
                }
            }
        }
    }

    fn open(&mut self, c: usize, node: usize) -> State {
        let luck = self.conditions.faultless || self.quiet || !self.random.chance(10);
        let well = luck && !self.servers[node].has(Trouble::RefusesConnections, self.t);
        let subscription = self.net.subscriptions.len();
        self.net.subscriptions.push(Subscription {
            client: c,
            node,
            subscribed: false,
            confirmed: false,
            cut: false,
            broken: false,
            inbox: VecDeque::new(),
            at: 0,
            held: 0,
        });
        let later = self.t + self.delay(node) + self.delay(node) + self.delay(node);
        let sound = if well {
            SubscriptionEvent::Subscribes
        } else {
            SubscriptionEvent::Breaks
        };
        self.at(later, Event::Subscription(subscription, sound));
        State::Connecting(subscription, self.t + CONNECT_TIMEOUT)
    }

    fn close_subscription(&mut self, subscription: usize) {
        self.net.subscriptions[subscription].cut = true;
        let later = self.t + self.delay(self.net.subscriptions[subscription].node);
        self.at(
            later,
            Event::Subscription(subscription, SubscriptionEvent::Ends),
        );
    }

    /// Whether a client has subscriptions to all nodes.
    pub(super) fn is_subscribed_to_all(&self, c: usize) -> bool {
        let listeners = self.clients[c].listeners.iter();
        listeners.filter(|one| self.hears(one)).count() == self.servers.len()
    }

    /// Whether all subscriptions that are needed work.
    pub(super) fn all_subscribed(&self) -> bool {
        let alive = self.clients.iter().filter(|client| !client.dead);
        let mut listeners = alive.flat_map(|client| &client.listeners);
        listeners.all(|one| self.hears(one))
    }

    fn hears(&self, one: &Listener) -> bool {
        match one.state {
            State::Subscribed(subscription, _) => !self.net.subscriptions[subscription].cut,
            _ => false,
        }
    }
}
