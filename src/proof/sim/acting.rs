//! The threads' actions with locks: they use them, extend them, ask for fencing tokens, release them, or leave them
//! until their ttls, or for a time.

use std::sync::Arc;
use std::time::Duration;

use super::basics::{LONGEST, MS, NODE_TIMEOUT, RESOURCES, SLACK};
use super::client::{Doing, HANDED_OFF, Held, NO_THREAD};
use super::conditions::Locks;
use super::world::{Count, Event, TokenHistory, World};
use crate::protocol::calls::fencing::{Fenced, Fencing};
use crate::protocol::calls::lease::{Extended, Extension};
use crate::protocol::commands::kind::{Kind, Mark};
use crate::protocol::mutants::Promise;
use crate::protocol::quorum::answer::{Answer, Outcome};
use crate::protocol::quorum::op::Op;
use crate::values::arithmetic::{Deadline, Ttl};
use crate::values::node_set::NodeSet;
use crate::values::token::Token;

// ---- what a thread does next

impl World {
    pub(super) fn begin(&mut self, c: usize, thread: usize) {
        self.clients[c].threads[thread].since = self.t;
    }

    /// The thread's next action, if it waits for nothing.
    pub(super) fn act(&mut self, c: usize, thread: usize) -> bool {
        let due = match &self.clients[c].threads[thread].doing {
            Doing::Idle(until) | Doing::Holds(_, until) => Some(*until),
            Doing::Acquires(call) => call.due(),
            Doing::Keeps(keeping) => Some(keeping.wakes(&self.clients[c].clocks)),
            _ => None,
        };
        let Some(due) = due else {
            return false;
        };
        if due > self.t {
            self.wake(c, due);
            return false;
        }
        let stopped = Doing::Stopped;
        match std::mem::replace(&mut self.clients[c].threads[thread].doing, stopped) {
            Doing::Acquires(call) => self.go_on(c, thread, call),
            Doing::Keeps(keeping) => self.keep(c, thread, keeping),
            Doing::Holds(held, _) => self.use_lock(c, thread, held),
            _ => {
                self.clients[c].threads[thread].acts += 1;
                let most = match self.conditions.waits {
                    true if self.conditions.sluggish => 20,
                    true => 5,
                    false if self.conditions.is_fragile() => 100,
                    false => 4,
                };
                if self.quiet || self.clients[c].threads[thread].acts > most {
                    return false;
                }
                let mut resource = u8::try_from(self.random.below(u64::from(RESOURCES))).unwrap();
                if self.conditions.sluggish || self.conditions.waits && self.random.chance(60) {
                    // So that there are queues.
                    resource = 0;
                }
                let ttl = self.ttl(60);
                // Others may overtake fair ones.
                let fair = self.conditions.fair && self.conditions.orderly;
                if self.conditions.waits && (self.random.chance(80) || fair) {
                    self.wait(c, thread, resource, ttl);
                } else {
                    self.try_once(c, thread, resource, ttl);
                }
            }
        }
        true
    }

    /// How long a thread has a lock before it does something.
    pub(super) fn hold(&mut self) -> u64 {
        if self.conditions.is_fragile() && self.random.chance(60) {
            return self.random.below(LONGEST * 5 / 4);
        }
        let long = if self.conditions.sluggish || self.conditions.waits && self.random.chance(50) {
            3
        } else {
            40
        };
        self.random.below(long * MS)
    }

    /// How long a thread wants nothing.
    fn rest(&mut self) -> u64 {
        if self.conditions.is_fragile() {
            return self.random.below(5 * MS);
        }
        let long = if self.conditions.lazy && self.random.chance(40) {
            2200
        } else {
            20
        };
        let pause = self.random.below(long * MS);
        // Several begin at once.
        let beat = 80 * MS;
        if self.conditions.sluggish {
            beat - self.t % beat
        } else {
            pause
        }
    }

    pub(super) fn rests(&mut self, c: usize, thread: usize) {
        let pause = self.rest();
        self.clients[c].threads[thread].doing = Doing::Idle(self.t + pause);
    }

    /// Has a client use the locks that it holds within this time: it extends most of them.
    pub(super) fn hurry(&mut self, c: usize, within: u64) {
        let soon = self.t + self.random.below(within + 1);
        for thread in &mut self.clients[c].threads {
            if let Doing::Holds(_, until) = &mut thread.doing {
                *until = soon.min(*until);
            }
        }
        self.wake(c, soon);
    }

    /// Draws the kind of lock on a name.
    pub(super) fn kind(&mut self, resource: u8) -> Kind {
        let locks = self.conditions.locks;
        if let Locks::Permits(permits) = locks {
            let slot = None;
            return Kind::Permit { permits, slot };
        }
        let writes = Kind::Write(Mark {
            writer: self.agenda.order,
            life: if self.conditions.prompt { 2000 } else { 30 },
            waited: 0,
        });
        match self.random.below(10) {
            0..5 if locks == Locks::ReadWrite => Kind::Read { waited: 0 },
            0..7 if locks == Locks::Several && resource == 0 => {
                Kind::several([0, 1].map(|name| Arc::from(&[name][..])).into())
            }
            0..9 if locks != Locks::Plain => writes,
            _ => Kind::Plain,
        }
    }

    /// A ttl: a long one, in `long` cases of a hundred.
    fn ttl(&mut self, long: u64) -> Ttl {
        let ms = match !self.conditions.guarded && self.random.chance(long) {
            _ if self.conditions.prompt => 60_000,
            // A waiter for a lock that was left to its ttl should get it.
            true if self.conditions.waits => 2_000,
            true => 60_000,
            false if self.conditions.is_fragile() && self.random.chance(50) => LONGEST / MS,
            false if self.conditions.guarded => 20 + self.random.below(LONGEST / MS - 19),
            false => 20 + self.random.below(150),
        };
        Ttl::new(Duration::from_millis(ms)).unwrap()
    }

    pub(super) fn draw(&mut self, c: usize, resource: u8) -> Token {
        let id = self.checks.tokens.len();
        self.agenda.order += 1;
        self.checks.tokens.push(TokenHistory {
            client: c,
            resource,
            drawn: self.agenda.order,
            ..TokenHistory::default()
        });
        let mut bytes = [0; 20];
        bytes[..8].copy_from_slice(&(id as u64).to_le_bytes());
        Token::from_bytes(bytes)
    }

    // ---- a lock that the thread has

    fn use_lock(&mut self, c: usize, thread: usize, mut held: Held) {
        self.begin(c, thread);
        let now = self.clients[c].clocks.point(self.t);
        let valid = !held.lease.left(now).is_zero();
        let choices = match self.conditions.prompt || self.conditions.is_forsaken() {
            _ if self.quiet => 5,
            // Where order and promptness count, locks are not held for long.
            true => 12,
            false => 14,
        };
        let choice = match self.conditions.is_fragile() && !self.quiet && self.random.chance(60) {
            true => 6,
            false => self.random.below(choices),
        };
        // A lock that is due is renewed before it is kept.
        if choice >= 12 && valid && !held.lease.is_due(now) {
            return self.begin_to_keep(c, thread, held);
        }
        if choice >= 10 && valid {
            self.agenda.order += 1;
            let since = self.agenda.order;
            let mut fencing = Fencing::with_lead(Duration::from_micros(LONGEST / 2));
            let fenced = fencing.next(&held.lease, now);
            return self.fence(c, thread, (held, fencing, since), fenced);
        }
        if choice >= 6 && valid {
            let ttl = self.ttl(50);
            let (extension, op) = held.lease.extension(ttl, now);
            self.checks.tokens[held.token].on.extended = NodeSet::EMPTY;
            self.clients[c].threads[thread].doing = Doing::Extends(held, extension);
            return self.submit(c, thread, op);
        }
        let forsaken = self.conditions.is_forsaken();
        let leaves = match forsaken {
            // One refusal at least is read.
            true => self.clients[c].forsaken.waits && valid && self.random.chance(40),
            false => choice == 5 && !self.conditions.prompt,
        };
        match leaves {
            true => self.leave(c, thread, held),
            false => self.release(c, thread, held),
        }
    }

    fn fence(
        &mut self,
        c: usize,
        thread: usize,
        (held, fencing, since): (Held, Fencing, u64),
        fenced: Fenced,
    ) {
        match fenced {
            Fenced::Ask(op) => {
                self.begin(c, thread);
                self.clients[c].threads[thread].doing = Doing::Fences(held, fencing, since);
                return self.submit(c, thread, op);
            }
            Fenced::Token(number) => self.fenced(c, &held, number, since),
            Fenced::Lost(_) => self.checks.tokens[held.token].belief = None,
            Fenced::Unavailable(_) => self.is_undecided(c, thread, held.token),
        }
        let until = self.t + self.hold();
        self.clients[c].threads[thread].doing = Doing::Holds(held, until);
    }

    fn extended(
        &mut self,
        c: usize,
        thread: usize,
        mut held: Held,
        extension: Extension,
        answer: Answer,
    ) {
        let now = self.clients[c].clocks.point(self.t);
        let valid = !held.lease.left(now).is_zero();
        match held.lease.extended(extension, answer, now) {
            Extended::Yes(repair) => {
                self.is_extended(c, &held, valid);
                // Like the renewal of a kept lock: its holder does not wait for this.
                if let Some(op) = repair {
                    self.repairs(c, held.token, op);
                    if self.random.chance(30) {
                        let may_leave = !self.quiet && !self.conditions.prompt;
                        return match may_leave && self.random.chance(30) {
                            true => self.leave(c, thread, held),
                            false => self.release(c, thread, held),
                        };
                    }
                }
            }
            Extended::Lost(_) => {
                self.is_lost(c, held.token, valid);
                self.check(
                    Promise::LossReported,
                    held.lease.left(now).is_zero(),
                    || format!("client {c}: {} is lost, and still valid", held.token),
                );
            }
            Extended::Unavailable(_) => self.is_undecided(c, thread, held.token),
        }
        let until = self.t + self.hold();
        self.clients[c].threads[thread].doing = Doing::Holds(held, until);
    }

    pub(super) fn repairs(&mut self, c: usize, token: usize, op: Op) {
        self.refills(token, &op);
        self.submit(c, NO_THREAD, op);
    }

    pub(super) fn refills(&mut self, token: usize, op: &Op) {
        self.counts[Count::Repairs] += 1;
        let refilled = &mut self.checks.tokens[token].on.refilled;
        *refilled = refilled.or(op.nodes);
    }

    pub(super) fn release(&mut self, c: usize, thread: usize, held: Held) {
        let now = self.clients[c].clocks.point(self.t);
        let valid = !held.lease.left(now).is_zero();
        self.is_in_place(held.token, false);
        self.checks.tokens[held.token].belief = None;
        self.is_to_go(c, held.token, 0);
        let only_write = self.random.chance(40) || !valid;
        self.give_back(c, thread, held, only_write, None);
    }

    /// If nothing follows, the lock is on no node from then on.
    fn is_to_go(&mut self, c: usize, token: usize, left_for: u64) {
        if self.conditions.is_forsaken() {
            self.clients[c].forsaken.gone_by += self.t + left_for + 2 * NODE_TIMEOUT + SLACK;
            self.at(self.clients[c].forsaken.gone_by, Event::Gone(token));
        }
    }

    fn leave(&mut self, c: usize, thread: usize, held: Held) {
        let Held { token, lease } = held;
        if self.checks.tokens[token].kind.is_plain() {
            let resource = self.checks.tokens[token].resource;
            self.clients[c].held_here.remove(&[resource]);
        }
        self.checks.tokens[token].leaked = true;
        let now = self.clients[c].clocks.point(self.t);
        let time = self.random.below(100 * MS);
        self.is_to_go(c, token, time);
        let time = Duration::from_micros(time);
        let op = Some(lease.shortening(time, now))
            .filter(|op| !op.only_write)
            .filter(|_| self.conditions.is_forsaken() || self.random.chance(70));
        let Some(op) = op else {
            // From here on the client does not believe to hold it.
            self.checks.tokens[token].belief = None;
            self.clients[c].threads[thread].doing = Doing::Idle(self.t);
            return;
        };
        // Others are kept out for the time that was asked for, except the difference between clocks.
        if let Some(belief) = &mut self.checks.tokens[token].belief {
            let drift = time / 100 + Duration::from_millis(2);
            belief.deadline = Deadline::new(now, time.saturating_sub(drift));
        }
        self.checks.tokens[token].on.extended = NodeSet::EMPTY;
        self.begin(c, thread);
        self.clients[c].threads[thread].doing = Doing::Shortens(token);
        self.submit(c, thread, op);
    }

    fn shortened(&mut self, c: usize, thread: usize, token: usize, answer: &Answer) {
        self.in_time(c, thread, 2 * NODE_TIMEOUT);
        if let Outcome::Yes(_) = answer.outcome {
            self.counts[Count::Shortened] += 1;
            // A shortening that was written when its time was over is a release.
            let on = &self.checks.tokens[token].on;
            let (yes, quorum) = (on.extended.or(on.rel), self.quorum());
            // A permit is shortened in another slot, too.
            let any_slot = self.conditions.permits().is_some();
            self.check(
                Promise::SoundAnswer,
                yes.len() >= quorum || any_slot,
                || format!("client {c}: {token} is shortened by {yes:?}"),
            );
        }
        // Nodes that are away now learn it when they are back. A server that takes another one's place may not have it.
        self.checks.tokens[token].shortened = !self.conditions.fails_over;
        self.clients[c].threads[thread].doing = Doing::Idle(self.t);
    }

    // ---- answers

    pub(super) fn answered(&mut self, c: usize, thread: usize, answer: Answer) {
        if thread == NO_THREAD {
            return;
        }
        if thread >= HANDED_OFF {
            return self.served(c, thread - HANDED_OFF, answer);
        }
        let idle = Doing::Stopped;
        let doing = std::mem::replace(&mut self.clients[c].threads[thread].doing, idle);
        match doing {
            Doing::Acquires(call) => self.call_answered(c, thread, call, answer),
            Doing::Extends(held, extension) => {
                self.in_time(c, thread, 2 * NODE_TIMEOUT);
                self.extended(c, thread, held, extension, answer);
            }
            Doing::Fences(held, mut fencing, since) => {
                self.in_time(c, thread, 2 * NODE_TIMEOUT);
                let now = self.clients[c].clocks.point(self.t);
                let fenced = fencing.answered(answer, &held.lease, now);
                self.fence(c, thread, (held, fencing, since), fenced);
            }
            Doing::Keeps(keeping) => self.renewed(c, thread, keeping, answer),
            Doing::Shortens(token) => self.shortened(c, thread, token, &answer),
            Doing::Releases(releasing) => self.given_back(c, thread, releasing, answer),
            _ => self.violated(
                Promise::Fits,
                format!("client {c}: an answer without a caller"),
            ),
        }
    }
}
