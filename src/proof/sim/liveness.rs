//! No free lock while all its waiters sleep, and no waiter before an earlier one.

use std::sync::Arc;
use std::time::Duration;

use super::basics::{MS, RESOURCES, SLACK, Violation};
use super::client::{Call, Client, Doing, Thread};
use super::server::Server;
use super::world::{Count, World};
use crate::protocol::mutants::Promise;
use crate::protocol::quorum::answer::Answer;

/// A free lock with waiters is tried for within this time, if all subscriptions work: the longest settle delay (3 ms),
/// the longest head start (2 ms), and some messages of up to 2 ms each. After wrong notifications, and after three
/// split votes in a row, the time begins when the waiters may try again.
const PROMPT: u64 = 12 * MS;
/// The limit in slow worlds, where the pauses after split votes are longer.
const SLUGGISH: u64 = 2000 * MS;
/// The limit with fair waiters: the one that was notified may have ended, so its turn has to end, and the others have
/// to poll.
const TWO_TURNS: u64 = 600 * MS;
/// A fair waiter that arrived this much later does not go first: an allowance for round trips. The earlier one must
/// have been in the queues for as long.
const LATER: u64 = 20 * MS;
/// An allowance for other pauses of a waiter that polls.
const BESIDES: u64 = 150 * MS + SLACK;

// ---- order

impl World {
    /// Hand-offs go to the threads in the order of their arrival, once each, and never to a thread that must ask, whose
    /// wait is over, or that is about to leave.
    pub(super) fn in_turn(&mut self, c: usize, next_thread: usize, resource: u8) {
        let (client, now) = (&self.clients[c], self.now(c));
        let call = |thread: &'_ usize| client.threads[*thread].call().filter(|call| call.waits());
        let goes = |call: &Call| {
            let place = call.acquire.place();
            place.is_some_and(|place| client.queues.is_hopeless(place))
        };
        let wrong = match call(&next_thread) {
            None => Some("waits for nothing"),
            Some(call) if call.resource != resource => Some("waits for something else"),
            Some(call) if call.served.is_some() => Some("has a hand-off already"),
            Some(call) if call.request.must_ask || call.is_over(now) => Some("takes no hand-off"),
            Some(call) if !call.sleeps() => Some("does not wait"),
            Some(next) => {
                let others = (0..client.threads.len()).filter(|other| *other != next_thread);
                let mut others = others.filter_map(|other| call(&other));
                let overtaken = others.any(|call| {
                    let same = call.resource == resource && call.sleeps() && call.served.is_none();
                    let before = call.acquire.place() < next.acquire.place();
                    let may = !call.request.must_ask && !call.vain && !call.is_over(now);
                    let may = may && call.request.kind.is_plain();
                    same && before && may && !goes(call)
                });
                overtaken.then_some("was not the first")
            }
        };
        if let Some(wrong) = wrong {
            self.violated(
                Promise::InTurn,
                format!("client {c}: thread {next_thread} gets a hand-off, but {wrong}"),
            );
        }
    }

    /// After a denial: the call waits in the queues, if its client is subscribed to all nodes.
    pub(super) fn is_queued(&mut self, c: usize, call: &mut Call, answer: &Answer) {
        let infos = answer.remarks.lock_infos.iter();
        let queued = infos.filter(|info| info.queued).count() == self.servers.len();
        call.queued = match queued && self.is_subscribed_to_all(c) {
            true => call.queued.or(Some(self.t)),
            false => None,
        };
    }

    /// No waiter goes before one that arrived earlier, in worlds without faults in which the nodes agree on the
    /// arrivals.
    pub(super) fn in_order(&mut self, c: usize, call: &Call) {
        let (t, one) = (self.t, self.servers.len() == 1);
        if call.request.turn.is_none() {
            return;
        }
        let orderly =
            self.conditions.prompt && self.conditions.orderly && !self.conditions.sluggish;
        if !self.conditions.fair || !orderly || self.clients[c].clocks.has_hung() {
            return;
        }
        let (resource, came) = (call.resource, self.came(c, call));
        let mut before = None;
        for (other, client) in self.clients.iter().enumerate() {
            if client.clocks.has_hung() {
                continue;
            }
            let agree = one || client.clocks.is_punctual() && self.clients[c].clocks.is_punctual();
            for wait in client.threads.iter().filter_map(Thread::call) {
                let queued = wait.queued.is_some_and(|since| since + LATER < t);
                let earlier = self.came(other, wait) + LATER < came;
                if other != c && wait.resource == resource && queued && earlier && agree {
                    before = Some(other);
                }
            }
        }
        self.counts[Count::InOrder] += 1;
        if let Some(other) = before {
            self.violated(
                Promise::InTurn,
                format!("client {c} goes before client {other}, which came earlier"),
            );
        }
    }

    /// When a thread arrived: by its own clock, unless there is one node.
    fn came(&self, c: usize, wait: &Call) -> u64 {
        match self.servers.len() {
            1 => wait.came,
            _ => self.clients[c].clocks.wall(wait.came),
        }
    }

    // ---- no free lock while all waiters sleep

    /// Whether any thread of a client that is alive does anything about a resource except sleep.
    fn is_at_work(&self, resource: u8) -> bool {
        let of = |token: usize| self.checks.tokens[token].resource;
        let clients = self.clients.iter().filter(|client| !client.dead);
        let mut threads = clients.flat_map(|client| &client.threads);
        threads.any(|thread| match &thread.doing {
            Doing::Acquires(call) => {
                call.concerns(resource) && (!call.sleeps() || call.served.is_some())
            }
            Doing::Holds(held, _) | Doing::Extends(held, _) | Doing::Fences(held, ..) => {
                of(held.token) == resource
            }
            Doing::Keeps(keeping) => of(keeping.token()) == resource,
            Doing::Releases(releasing) => of(releasing.token) == resource,
            Doing::Idle(_) | Doing::Shortens(_) | Doing::Stopped => false,
        })
    }

    /// Whether a thread of a client is in the queue for a resource.
    pub(super) fn waits_for(&self, c: usize, resource: u8) -> bool {
        let waits = |call: &Call| call.concerns(resource) && call.waits();
        let mut threads = self.clients[c].threads.iter();
        threads.any(|thread| thread.call().is_some_and(waits))
    }

    /// The time within which all waiters find out by themselves that a lock is free. `None`: there are no waiters.
    fn longest_poll(&self, resource: u8) -> Option<u64> {
        let replies_flowing = self.conditions.prompt;
        let well = |client: &&Client| !(client.dead || replies_flowing && client.clocks.has_hung());
        let clients = self.clients.iter().filter(well);
        let threads = clients.flat_map(|client| &client.threads);
        let waits = threads.filter_map(Thread::call);
        let locked = |name: &Arc<[u8]>| {
            let excused = replies_flowing && self.is_excused(usize::from(name[0]));
            excused || self.servers.iter().any(|one| one.has_key(self.t, name[0]))
        };
        // A waiter for several names can use none of them while another one is taken, or no process may have noticed
        // that it is free.
        let could = |call: &&Call| {
            let names = call.request.kind.names().unwrap_or_default();
            !names.iter().any(locked)
        };
        let waits = waits.filter(|call| call.concerns(resource) && call.waits());
        let waits = waits.filter(could);
        let poll = |wait: &Call| {
            let longest = (wait.request.retry_delay.1 * 8).max(Duration::from_secs(1));
            let longest = u64::try_from(longest.as_micros()).unwrap();
            // In fair worlds, some waiters are not fair.
            wait.request.turn.map_or(longest + BESIDES, |_| TWO_TURNS)
        };
        waits.map(poll).max()
    }

    /// Whether the process that was notified may be dead, and no other one will be notified.
    fn is_excused(&self, resource: usize) -> bool {
        self.checks.idle[resource].excused && !self.conditions.fair
    }

    /// Until this time some waiter need not try: notifications were wrong, or votes were split again and again.
    fn cautious_until(&self, resource: u8) -> u64 {
        let clients = self.clients.iter().filter(|client| !client.dead);
        let until = clients.flat_map(|client| {
            let until = client.queues.cautious_until(&[resource]);
            until.map(|until| client.clocks.time(until))
        });
        until.max().unwrap_or(0)
    }

    /// A lock with waiters is not free for long.
    pub(super) fn watch(&mut self) {
        if !self.conditions.waits || !self.conditions.prompt && !self.quiet {
            return;
        }
        for resource in 0..RESOURCES {
            let at = usize::from(resource);
            // A waiter that hangs costs the fair ones a turn.
            let stands = |client: &Client| {
                !client.dead
                    && client.clocks.stands(self.t)
                    && !(self.conditions.fair && self.conditions.prompt)
            };
            let stands = self.clients.iter().any(stands);
            let locked = |server: &Server| server.has_key(self.t, resource);
            let told = !self.conditions.prompt || self.all_subscribed() && !self.is_excused(at);
            let poll = self.longest_poll(resource);
            let poll = poll.filter(|_| {
                told && !stands && !self.servers.iter().any(locked) && !self.is_at_work(resource)
            });
            let Some(poll) = poll else {
                self.checks.idle[at].since = None;
                continue;
            };
            let since = *self.checks.idle[at].since.get_or_insert(self.t);
            let since = since.max(self.cautious_until(resource));
            let most = match self.conditions.prompt {
                true if self.conditions.sluggish => SLUGGISH,
                true if !self.conditions.fair => PROMPT,
                _ => poll,
            };
            let time = self.t.saturating_sub(since);
            self.check(Promise::Served, time <= most, || {
                format!("{resource} has been free for {time} us, and has waiters")
            });
        }
    }

    /// The waiters, queues and subscriptions that are left when all is quiet.
    pub(super) fn still_waits(&self) -> Option<Violation> {
        let left = |what| Some(Violation::of(Promise::AllEnds, what));
        for (c, client) in self.clients.iter().enumerate() {
            if client.dead {
                continue;
            }
            if client.threads.iter().any(|thread| thread.call().is_some()) {
                let what = format!("client {c}: a thread still waits");
                return Some(Violation::of(Promise::Served, what));
            }
            if client.queues.waiters() > 0 {
                return left(format!("client {c}: a waiter is left"));
            }
            let collides = client.held_here.collides();
            let is = |of: u8, token: usize| {
                let token = &self.checks.tokens[token];
                token.kind.is_plain() && (token.resource == of || collides)
            };
            for of in 0..RESOURCES {
                let tokens = client.threads.iter().filter_map(Thread::uses);
                let holds = tokens.filter(|token| is(of, *token)).count();
                let count = client.held_here.counted(&[of]) as usize;
                if count != holds {
                    return left(format!(
                        "client {c}: {of} counts as held {count} times, not {holds}"
                    ));
                }
            }
            if !client.listeners.is_empty() {
                return left(format!("client {c}: a subscription is left"));
            }
        }
        None
    }
}
