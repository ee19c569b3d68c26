//! One wire to each node, for all threads: a step writes to all nodes, reads from all, and stops as
//! soon as its verdict is certain.
//!
//! Whoever finds the lane idle takes the baton (the wires and the buffers) and leads: it runs its
//! operation directly, with no mutex held. Who comes meanwhile queues; the leader hands the baton to
//! the first of them, who takes all that is queued as one batch, with one write and one read for
//! each node. Everyone queued is waiting, so there is always someone to lead.
//!
//! One wire per node means that a release is behind the acquire that it undoes (rule R7), however
//! many threads there are. The lane knows nothing of validity, of retries, or of held locks.
//!
//! Why one lane. Pairs of acquire and release per second with two lanes (and with four), as ratios to
//! one lane, 5 nodes, 2 cores:
//!
//! | threads | loopback | 1 ms of round trip |
//! | --- | --- | --- |
//! | 1 | 1 | 1.00 (0.98) |
//! | 2 | 0.71 (0.80) | 1.01 (0.95) |
//! | 8 | 0.93 (0.58) | 1.13 (1.05) |
//! | 64 | 0.88 (0.66) | 0.99 (0.91) |

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

use crate::clock;
use crate::node::Nodes;
use crate::step::{Baton, Op, Outcome, Recipient};

/// A thread in the queue yields so often before it sleeps: near nodes answer sooner than a thread is
/// put to sleep and woken, and then nobody pays for that.
const YIELDS: u32 = 32;
/// When to look again whether the last step has ended.
const SOON: Duration = Duration::from_millis(1);

pub(crate) struct Lane {
    /// The process that made it: after a fork the child must not touch the parent's sockets, nor a
    /// mutex that a thread may hold that does not exist in the child.
    process: u32,
    nodes: Arc<Nodes>,
    queue: Mutex<Queue>,
}

struct Queue {
    waiting: Vec<Arc<Waiter>>,
    /// `None`: somebody leads.
    baton: Option<Box<Baton>>,
    /// The last batch was of more than one.
    crowded: bool,
}

/// A thread in the queue.
struct Waiter {
    op: Op,
    thread: Thread,
    turn: Mutex<Turn>,
}

enum Turn {
    Wait,
    Lead(Box<Baton>),
    Done(Outcome),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Lane {
    pub(crate) fn new(nodes: Arc<Nodes>) -> Lane {
        Lane {
            process: std::process::id(),
            queue: Mutex::new(Queue {
                waiting: Vec::new(),
                baton: Some(Box::new(Baton::new(nodes.clone()))),
                crowded: false,
            }),
            nodes,
        }
    }

    /// Whether this is the process that made it, not a forked child.
    pub(crate) fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    pub(crate) fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// Carries out `op` on all nodes.
    pub(crate) fn run(&self, op: Op) -> Outcome {
        let mut queue = lock(&self.queue);
        if let Some(baton) = queue.baton.take() {
            let crowded = queue.crowded;
            drop(queue);
            if crowded {
                // Those whom the last batch served are about to come again: let them come along.
                std::thread::yield_now();
            }
            return self.lead(baton, op);
        }
        let waiter = Waiter::new(op);
        queue.waiting.push(waiter.clone());
        drop(queue);
        self.follow(&waiter)
    }

    /// Carries out many operations, together as far as they can be.
    pub(crate) fn run_all(&self, ops: Vec<Op>) -> Vec<Outcome> {
        let waiters: Vec<_> = ops.into_iter().map(Waiter::new).collect();
        let Some(first) = waiters.first() else {
            return Vec::new();
        };
        let mut queue = lock(&self.queue);
        queue.waiting.extend(waiters.iter().cloned());
        if let Some(baton) = queue.baton.take() {
            // Nobody leads, so nobody else is waiting.
            queue.waiting.remove(0);
            drop(queue);
            first.tell(Turn::Lead(baton));
        } else {
            drop(queue);
        }
        waiters.iter().map(|waiter| self.follow(waiter)).collect()
    }

    /// Waits for the outcome of what is queued, or for the baton.
    fn follow(&self, waiter: &Waiter) -> Outcome {
        match waiter.wait() {
            Ok(outcome) => outcome,
            Err(baton) => self.lead(baton, waiter.op.clone()),
        }
    }

    /// Carries out `op` and all that is queued as one batch.
    fn lead(&self, baton: Box<Baton>, op: Op) -> Outcome {
        let mut reign = Reign {
            lane: self,
            baton: Some(baton),
        };
        if reign.is_short() {
            // Where nodes may have to be waited for, those who only write do not wait for them.
            let queued = self.take(|waiter| waiter.op.only_write);
            if op.only_write {
                return reign.run(Some(op), queued);
            }
            if !queued.is_empty() {
                reign.run(None, queued);
            }
        }
        let queued = self.take(|_| true);
        reign.run(Some(op), queued)
    }

    /// Takes from the queue.
    fn take(&self, which: impl Fn(&Waiter) -> bool) -> Vec<Arc<Waiter>> {
        let mut queue = lock(&self.queue);
        let waiting = std::mem::take(&mut queue.waiting);
        let (taken, left): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|waiter| which(waiter));
        queue.waiting = left;
        queue.crowded = !taken.is_empty();
        taken
    }

    /// Nobody needs it any more, and the program may end right after this: reads what the connections
    /// owe, within one node timeout. Closing on unread replies resets a connection, and the server may
    /// then drop a release that it has not read yet.
    pub(crate) fn close(&self) {
        let until = clock::instant() + self.nodes.node_timeout();
        for mut wire in self.nodes.close() {
            let _ = wire.settle(until);
        }
        loop {
            let baton = lock(&self.queue).baton.take();
            if baton.is_some() {
                return Reign { lane: self, baton }.settle(until);
            }
            // A renewal that nobody needs any more is under way.
            if clock::instant() > until {
                return;
            }
            std::thread::sleep(SOON);
        }
    }
}

impl Waiter {
    fn new(op: Op) -> Arc<Waiter> {
        Arc::new(Waiter {
            op,
            thread: std::thread::current(),
            turn: Mutex::new(Turn::Wait),
        })
    }

    /// The outcome, or the baton.
    fn wait(&self) -> Result<Outcome, Box<Baton>> {
        let mut yields = 0;
        loop {
            let turn = std::mem::replace(&mut *lock(&self.turn), Turn::Wait);
            match turn {
                Turn::Done(outcome) => return Ok(outcome),
                Turn::Lead(baton) => return Err(baton),
                Turn::Wait if yields < YIELDS => {
                    yields += 1;
                    std::thread::yield_now();
                }
                Turn::Wait => std::thread::park(),
            }
        }
    }

    fn tell(&self, turn: Turn) {
        *lock(&self.turn) = turn;
        self.thread.unpark();
    }
}

impl Recipient for Waiter {
    fn deliver(&self, outcome: Outcome) {
        self.tell(Turn::Done(outcome));
    }
}

/// The time in which a thread holds the baton. However it ends, the baton goes on.
struct Reign<'a> {
    lane: &'a Lane,
    baton: Option<Box<Baton>>,
}

impl Reign<'_> {
    fn is_short(&self) -> bool {
        self.baton.as_ref().is_some_and(|baton| baton.is_short())
    }

    /// One step. The outcome is that of the leader's own operation.
    fn run(&mut self, own: Option<Op>, queued: Vec<Arc<Waiter>>) -> Outcome {
        let outcome = self.baton.as_mut().and_then(|baton| {
            if let Some(op) = own {
                baton.add(op, None);
            }
            for waiter in queued {
                baton.add(waiter.op.clone(), Some(waiter));
            }
            baton.run()
        });
        outcome.unwrap_or_else(Outcome::none)
    }

    fn settle(mut self, until: Instant) {
        if let Some(baton) = &mut self.baton {
            baton.settle(until);
        }
    }
}

impl Drop for Reign<'_> {
    fn drop(&mut self) {
        let Some(mut baton) = self.baton.take() else {
            return;
        };
        baton.recover();
        let mut queue = lock(&self.lane.queue);
        if queue.waiting.is_empty() {
            queue.baton = Some(baton);
        } else {
            let next = queue.waiting.remove(0);
            drop(queue);
            next.tell(Turn::Lead(baton));
        }
    }
}
