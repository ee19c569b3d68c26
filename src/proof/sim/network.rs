//! The bytes on their way: over connections, which delay, split, hold and are cut, and over subscriptions, by which a
//! process is notified of releases.

use std::collections::VecDeque;
use std::sync::Arc;

use super::basics::{CONNECT_TIMEOUT, MS};
use super::client::NO_THREAD;
use super::connection::{Connection, End, Listener, State, Subscription, SubscriptionEvent};
use super::counts::trace;
use super::server::Trouble;
use super::world::{Count, Event, World};
use crate::errors::cause::Cause;
use crate::protocol::mutants::Promise;
use crate::protocol::waiting::subscriptions::{SubscriberEvent, SubscriberTask};

/// After this time without a message, the thread checks whether the subscription is still needed.
const QUIET: u64 = 1000 * MS;

impl World {
    /// How long bytes take on their way.
    pub(super) fn delay(&mut self, node: usize) -> u64 {
        let slow = self.servers[node].has(Trouble::Slow, self.t);
        match self.random.below(20) {
            _ if slow => 20 * MS + self.random.below(60 * MS),
            _ if self.conditions.sluggish => 9 * MS + self.random.below(2 * MS),
            // A message may arrive before the answer to an earlier command.
            0 | 1 if self.conditions.prompt => self.random.below(2 * MS),
            0 if !self.conditions.faultless && !self.quiet => self.random.below(60 * MS),
            1..4 if !self.conditions.faultless && !self.quiet => self.random.below(5 * MS),
            _ => 20 + self.random.below(100),
        }
    }

    // ---- connections

    pub(super) fn send(&mut self, connection: usize, bytes: &[u8]) -> Result<(), Cause> {
        if !self.net.connections[connection].is_open() {
            // The kernel may not have noticed yet.
            return match self.random.chance(50) {
                true => Err(Cause::Closed("when it was written to".into())),
                false => Ok(()),
            };
        }
        // Part of a record is useless to a server.
        let cut = match self.random.chance(15) && !self.conditions.by_record {
            true => self.random.pick(bytes.len().max(1)),
            false => bytes.len(),
        };
        self.pass(connection, bytes, cut, true);
        Ok(())
    }

    /// Bytes go up or down, in two parts.
    fn pass(&mut self, connection: usize, bytes: &[u8], cut: usize, up: bool) {
        for part in [&bytes[..cut], &bytes[cut..]] {
            if part.is_empty() {
                continue;
            }
            let at = self.t + self.delay(self.net.connections[connection].node);
            let stream = &mut self.net.connections[connection];
            let (way, event) = match up {
                true => (&mut stream.up, Event::Arrive(connection)),
                false => (&mut stream.down, Event::Deliver(connection)),
            };
            way.at = way.at.max(at);
            way.bytes.push_back(part.to_vec());
            let at = way.at;
            let (client, node) = (stream.client, stream.node);
            self.comes_through(client, node, at);
            self.at(at, event);
        }
    }

    pub(super) fn arrive(&mut self, connection: usize) {
        let stream = &self.net.connections[connection];
        if stream.up.bytes.is_empty() || stream.end == End::Dead {
            return;
        }
        let paused = self.servers[stream.node].is_paused(self.t);
        let later = paused.unwrap_or(0).max(stream.up.held);
        if later > self.t {
            return self.at(later, Event::Arrive(connection));
        }
        if let Some(bytes) = self.net.connections[connection].next_up() {
            self.execute(connection, &bytes);
        }
    }

    /// The server's answer goes on its way.
    pub(super) fn answer(&mut self, connection: usize, bytes: &[u8]) {
        match self.net.connections[connection].end {
            End::Open => {}
            // The answer meets a closed socket: a reset follows, and the server drops the bytes that it has not read.
            End::Closed if !bytes.is_empty() => {
                self.net.connections[connection].end = End::Dead;
                self.net.connections[connection].up.bytes.clear();
                return;
            }
            End::Closed | End::Dead => return,
        }
        let cut = match self.random.chance(10) {
            true => self.random.pick(bytes.len().max(1)),
            false => bytes.len(),
        };
        self.pass(connection, bytes, cut, false);
    }

    pub(super) fn deliver(&mut self, connection: usize) {
        let stream = &mut self.net.connections[connection];
        if !stream.is_open() {
            return;
        }
        if stream.down.held > self.t {
            let later = stream.down.held;
            return self.at(later, Event::Deliver(connection));
        }
        if let Some(bytes) = stream.down.bytes.pop_front() {
            stream.inbox.extend_from_slice(&bytes);
            let client = stream.client;
            self.pump(client);
        }
    }

    /// Something on the way, or the server, ends a connection: a part of the bytes under way is in the server's socket,
    /// and will be read; the rest is gone.
    pub(super) fn cut(&mut self, connection: usize) {
        self.end(connection, End::Dead);
        let Connection { client, node, .. } = self.net.connections[connection];
        self.hinder(client, node, self.t);
        self.at(self.t, Event::Wake(client));
    }

    pub(super) fn cut_all(&mut self, which: impl Fn(&Connection) -> bool) {
        for connection in 0..self.net.connections.len() {
            if which(&self.net.connections[connection]) {
                self.cut(connection);
            }
        }
    }

    /// The server ends, and the bytes in its sockets with it.
    pub(super) fn restart(&mut self, node: usize) {
        self.end_servers(|one| one.node == node);
    }

    /// One of the servers behind a name ends.
    pub(super) fn end_instance(&mut self, node: usize, instance: usize) {
        self.end_servers(|one| one.node == node && one.instance == instance);
    }

    fn end_servers(&mut self, which: impl Fn(&Connection) -> bool) {
        self.cut_all(&which);
        for connection in self.net.connections.iter_mut().filter(|one| which(one)) {
            connection.up.bytes.clear();
            connection.read.clear();
        }
    }

    /// The client gives a connection up: at once, or in the usual way.
    pub(super) fn give_up(&mut self, connection: usize, resets: bool) {
        self.end(connection, if resets { End::Dead } else { End::Closed });
    }

    fn end(&mut self, connection: usize, end: End) {
        if !self.net.connections[connection].is_open() {
            return;
        }
        trace!(self, "connection {connection} is {end:?}");
        let stream = &self.net.connections[connection];
        let (held, node) = (stream.up.held > self.t, stream.node);
        let passed = !held || self.servers[node].is_paused(self.t).is_some();
        let under_way = self.net.connections[connection].up.bytes.len();
        let arrived = if passed {
            self.random.pick(under_way + 1)
        } else {
            0
        };
        let later = self.t + self.random.below(400 * MS);
        let stream = &mut self.net.connections[connection];
        stream.end = end;
        stream.down.bytes.clear();
        if end == End::Dead {
            stream.up.bytes.truncate(arrived);
            self.at(later, Event::Leftover(connection));
        }
    }

    // ---- subscriptions

    /// Whether a client's channel has a subscriber at a node.
    pub(super) fn reaches(&self, node: usize, client: usize) -> bool {
        let mut all = self.net.subscriptions.iter();
        all.any(|one| one.subscribed && one.client == client && one.node == node)
    }

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
                // A client that waits for the message tries when the subscription is confirmed anew. One that does not
                // wait would have passed the message on, and cannot.
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

    // ---- the threads of subscriptions

    /// Starts a subscriber for each node that needs a subscription.
    pub(super) fn listen(&mut self, c: usize) {
        let nodes = self.clients[c].queues.take_to_start();
        for node in nodes.iter() {
            let state = State::Pauses(self.t);
            let listeners = &mut self.clients[c].listeners;
            let twice = listeners.iter().any(|one| one.node == node);
            listeners.push(Listener { node, state });
            self.check(Promise::Fits, !twice, || {
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
