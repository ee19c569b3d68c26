//! The queue, as it is built (rules R30–R35): waiters join it on each node, and a release notifies one of them by name.
//!
//! There is neither time nor polling: if the lock is free, nothing is under way and a waiter sleeps, a notification was lost.

use crate::bits::Bits;
use crate::explorer::{Steps, World};
use crate::table::{Broken, Holds, HoldsSoFar, Row, row};

const NODES: usize = 3;
const WAITERS: usize = 3;

#[derive(Clone, Copy)]
struct Queue {
    nodes: usize,
    quorum: usize,
    waiters: usize,
    /// The lock is free at the beginning.
    free_at_first: bool,
    /// A waiter's first try does not join the queue.
    first_try_plain: bool,
    /// A waiter joins in the script that denies it (rule R34a); otherwise later.
    joins_in_script: bool,
    /// It joins only if it is denied (a knock); otherwise with each try.
    joins_if_denied: bool,
    /// A release also removes the releasing waiter from the queue.
    release_leaves: bool,
    /// A client that sleeps after a split vote tries again by itself (rule R32).
    retries_after_split: bool,
    /// A message that arrives during a try is kept (rule R31).
    keeps_message: bool,
    /// Messages of fewer than q nodes cause a try after a while (rule R34b).
    tries_after_grace: bool,
    /// The number of waiters that give up, and pass a notification on (rule R34a).
    give_ups: u8,
    passes_on: bool,
    /// A process that is notified and does not wait passes that on.
    forwards: bool,
    /// The number of sleeping waiters that are killed; a release passes over the dead (rule R34).
    kills: u8,
    skips_dead: bool,
    /// The number of messages that are lost.
    losses: u8,
}

/// Three nodes, two waiters, every rule kept; each try joins.
const JOIN: Queue = Queue {
    nodes: 3,
    quorum: 2,
    waiters: 2,
    free_at_first: false,
    first_try_plain: false,
    joins_in_script: true,
    joins_if_denied: false,
    release_leaves: true,
    retries_after_split: true,
    keeps_message: true,
    tries_after_grace: true,
    give_ups: 0,
    passes_on: true,
    forwards: true,
    kills: 0,
    skips_dead: true,
    losses: 0,
};
const JOIN_ONE: Queue = Queue {
    nodes: 1,
    quorum: 1,
    ..JOIN
};
/// As it is built: only a client that is denied joins, and a release leaves the queue alone.
const KNOCK: Queue = Queue {
    joins_if_denied: true,
    release_leaves: false,
    ..JOIN
};
const KNOCK_ONE: Queue = Queue {
    nodes: 1,
    quorum: 1,
    ..KNOCK
};

#[rustfmt::skip] // A row on two lines.
pub(crate) fn rows() -> Vec<Row> {
    vec![
        row("W1", Holds(1_247), "1 node, 3 waiters", Queue { waiters: 3, ..JOIN_ONE }),
        row("W2", Broken(6, 28), "1 node, a waiter joins after it was denied, not in the same script (against R34a)",
            Queue { waiters: 1, joins_in_script: false, ..JOIN_ONE }),
        row("W3", Broken(9, 128), "1 node, 2 waiters, a message during a try is forgotten (against R31)",
            Queue { keeps_message: false, ..JOIN_ONE }),
        row("W4", Holds(2_687), "1 node, 3 waiters, one gives up and passes on", Queue { waiters: 3, give_ups: 1, ..JOIN_ONE }),
        row("W5", Broken(11, 242), "1 node, 2 waiters, one gives up and passes nothing on (against R34a)",
            Queue { give_ups: 1, passes_on: false, ..JOIN_ONE }),
        row("W6", Holds(4_376), "1 node, 3 waiters, the first try does not join",
            Queue { waiters: 3, first_try_plain: true, ..JOIN_ONE }),
        row("W7", Broken(14, 1_495), "1 node, 3 waiters, a release leaves the queue alone, and strays are not passed on (against R34a)",
            Queue { waiters: 3, release_leaves: false, forwards: false, ..JOIN_ONE }),
        row("W7b", Holds(2_426), "1 node, 3 waiters, a release leaves the queue alone, strays are passed on",
            Queue { waiters: 3, release_leaves: false, ..JOIN_ONE }),
        row("W8", Holds(1_809), "1 node, 3 waiters, one is killed asleep; the dead are passed over",
            Queue { waiters: 3, kills: 1, ..JOIN_ONE }),
        row("W9", Broken(9, 163), "1 node, 2 waiters, one is killed asleep; the dead are notified (against R34)",
            Queue { kills: 1, skips_dead: false, ..JOIN_ONE }),
        row("W10", HoldsSoFar(700_000), "3 nodes, 2 waiters", JOIN),
        row("W11", Broken(21, 87_490), "3 nodes, 2 waiters, which wait for messages of q nodes for ever (against R34b)",
            Queue { tries_after_grace: false, ..JOIN }),
        row("W12", Broken(18, 122_474), "3 nodes, 3 waiters, free at the beginning; a client that sleeps after a split vote does not try again (against R32)",
            Queue { waiters: 3, retries_after_split: false, free_at_first: true, ..JOIN }),
        row("W13", HoldsSoFar(700_000), "3 nodes, 2 waiters, the first try does not join", Queue { first_try_plain: true, ..JOIN }),
        row("W14", HoldsSoFar(700_000), "3 nodes, 2 waiters, one gives up and passes on", Queue { give_ups: 1, ..JOIN }),
        row("W15", Broken(21, 265_866), "3 nodes, 2 waiters, one gives up and passes nothing on (against R34a)",
            Queue { give_ups: 1, passes_on: false, ..JOIN }),
        row("W16", HoldsSoFar(700_000), "3 nodes, 2 waiters, one is killed asleep", Queue { kills: 1, ..JOIN }),
        row("W17", Holds(1_974), "3 nodes, 1 waiter, one message is lost", Queue { waiters: 1, losses: 1, ..JOIN }),
        row("W18", Broken(12, 921), "3 nodes, 1 waiter, three messages are lost: it takes a poll (R33)",
            Queue { waiters: 1, losses: 3, ..JOIN }),
        row("W19", HoldsSoFar(30_000_000), "3 nodes, 3 waiters", Queue { waiters: 3, ..JOIN }),
        row("W20", Holds(6_823_673), "3 nodes, 3 waiters, free at the beginning",
            Queue { waiters: 3, free_at_first: true, ..JOIN }),
        row("W21", HoldsSoFar(30_000_000), "3 nodes, 3 waiters, one gives up and passes on",
            Queue { waiters: 3, give_ups: 1, ..JOIN }),
        row("K1", Holds(1_247), "1 node, 3 waiters that knock", Queue { waiters: 3, ..KNOCK_ONE }),
        row("K2", Holds(6_423), "1 node, 3 waiters that knock, the first try does not join, one gives up",
            Queue { waiters: 3, first_try_plain: true, give_ups: 1, ..KNOCK_ONE }),
        row("K3", Holds(4_647), "1 node, 3 waiters that knock, the first try does not join, one is killed asleep",
            Queue { waiters: 3, first_try_plain: true, kills: 1, ..KNOCK_ONE }),
        row("K4", HoldsSoFar(700_000), "3 nodes, 2 waiters that knock", KNOCK),
        row("K5", HoldsSoFar(700_000), "3 nodes, 2 waiters that knock, the first try does not join",
            Queue { first_try_plain: true, ..KNOCK }),
        row("K6", HoldsSoFar(700_000), "3 nodes, 2 waiters that knock, one gives up and passes on", Queue { give_ups: 1, ..KNOCK }),
        row("K7", HoldsSoFar(700_000), "3 nodes, 2 waiters that knock, one is killed asleep", Queue { kills: 1, ..KNOCK }),
        row("K8", HoldsSoFar(30_000_000), "3 nodes, 3 waiters that knock, strays are not passed on: nothing so far, but see W7",
            Queue { waiters: 3, forwards: false, ..KNOCK }),
        row("K9", HoldsSoFar(700_000), "3 nodes, 3 waiters that knock, free at the beginning",
            Queue { waiters: 3, free_at_first: true, ..KNOCK }),
        row("K10", HoldsSoFar(700_000), "3 nodes, 3 waiters that knock", Queue { waiters: 3, ..KNOCK }),
    ]
}

/// Owners: the first holder is 0, waiters are 1 + their index. A key is 1 + its owner.
const HOLDER: usize = 0;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Node {
    key: u8,
    /// By owner: releases under way, and those that notify.
    release: Bits,
    notifies: Bits,
    /// By waiter: tries, joins and leaves under way.
    try_: Bits,
    join: Bits,
    leave: Bits,
    /// The queue (any order: the first is the client with the lowest index), and messages under way.
    queue: Bits,
    message: Bits,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Phase {
    #[default]
    Idle,
    Trying,
    /// It tries again when its releases have arrived.
    Again,
    Asleep,
    Holding,
    Done,
    Dead,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Waiter {
    phase: Phase,
    /// Nodes that have answered this try, and whose key each holds.
    answered: Bits,
    keys: [u8; NODES],
    messages: Bits,
    /// The next try does not join.
    plain: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    nodes: [Node; NODES],
    waiters: [Waiter; WAITERS],
    held: bool,
    gave_up: u8,
    killed: u8,
    lost: u8,
}

impl Queue {
    /// A release notifies the first of the queue.
    fn notify(&self, state: &mut State, at: usize) {
        while let Some(waiter) = state.nodes[at].queue.iter().next() {
            state.nodes[at].queue.remove(waiter);
            if state.waiters[waiter].phase != Phase::Dead {
                state.nodes[at].message.add(waiter);
                return;
            }
            if !self.skips_dead {
                return;
            }
        }
    }

    fn try_(&self, state: &mut State, waiter: usize) {
        state.waiters[waiter] = Waiter {
            phase: Phase::Trying,
            plain: state.waiters[waiter].plain,
            ..Waiter::default()
        };
        for node in &mut state.nodes[..self.nodes] {
            node.try_.add(waiter);
        }
    }

    fn node_steps(&self, state: &State, at: usize, steps: &mut Steps<State>) {
        let node = state.nodes[at];
        for owner in 0..=self.waiters {
            // A release follows its try on the same connection.
            let tries = owner > HOLDER && node.try_.has(owner - 1);
            if node.release.has(owner) && !tries {
                self.release(state, at, owner, steps);
            }
        }
        for waiter in 0..self.waiters {
            if node.try_.has(waiter) && !node.release.has(waiter + 1) {
                self.answer(state, at, waiter, steps);
            }
            if node.join.has(waiter) {
                let mut new = *state;
                new.nodes[at].join.remove(waiter);
                new.nodes[at].queue.add(waiter);
                steps.add(new, || format!("node {at}: {} joins", name(waiter)));
            }
            if node.leave.has(waiter) && !node.try_.has(waiter) && !node.release.has(waiter + 1) {
                let mut new = *state;
                new.nodes[at].leave.remove(waiter);
                new.nodes[at].queue.remove(waiter);
                if self.passes_on && node.key == 0 {
                    self.notify(&mut new, at);
                }
                steps.add(new, || format!("node {at}: {} leaves", name(waiter)));
            }
            if node.message.has(waiter) {
                self.message(state, at, waiter, steps);
            }
        }
    }

    fn release(&self, state: &State, at: usize, owner: usize, steps: &mut Steps<State>) {
        let mut new = *state;
        let node = &mut new.nodes[at];
        node.release.remove(owner);
        let notifies = node.notifies.take(owner);
        let deletes = usize::from(node.key) == owner + 1;
        if deletes {
            node.key = 0;
        }
        if notifies && owner > HOLDER && self.release_leaves {
            node.queue.remove(owner - 1);
        }
        if notifies && deletes {
            self.notify(&mut new, at);
        }
        steps.add(new, || {
            let answer = if deletes { "deleted" } else { "not there" };
            format!("node {at}: release of {}: {answer}", owner_name(owner))
        });
    }

    fn answer(&self, state: &State, at: usize, waiter: usize, steps: &mut Steps<State>) {
        let own = waiter as u8 + 2;
        let mut new = *state;
        let node = &mut new.nodes[at];
        node.try_.remove(waiter);
        if node.key == 0 {
            node.key = own;
        }
        let granted = node.key == own;
        let plain = state.waiters[waiter].plain || granted && self.joins_if_denied;
        if !plain {
            if self.joins_in_script {
                node.queue.add(waiter);
            } else {
                node.join.add(waiter);
            }
        }
        new.waiters[waiter].keys[at] = new.nodes[at].key;
        new.waiters[waiter].answered.add(at);
        steps.add(new, || {
            let answer = if granted { "granted" } else { "denied" };
            format!("node {at}: try of {}: {answer}", name(waiter))
        });
    }

    fn message(&self, state: &State, at: usize, waiter: usize, steps: &mut Steps<State>) {
        let mut new = *state;
        new.nodes[at].message.remove(waiter);
        let messages = &mut new.waiters[waiter].messages;
        match state.waiters[waiter].phase {
            Phase::Asleep => {
                messages.add(at);
                if messages.len() >= self.quorum {
                    self.try_(&mut new, waiter);
                }
            }
            Phase::Idle | Phase::Trying | Phase::Again => {
                if self.keeps_message {
                    messages.add(at);
                }
            }
            // Its own release will notify another one.
            Phase::Holding | Phase::Dead => {}
            Phase::Done => {
                if self.forwards {
                    new.nodes[at].leave.add(waiter);
                }
            }
        }
        steps.add(new, || format!("{} is notified by node {at}", name(waiter)));
        if state.lost < self.losses {
            let mut new = *state;
            new.lost += 1;
            new.nodes[at].message.remove(waiter);
            steps.add(new, || {
                format!("a message of node {at} to {} is lost", name(waiter))
            });
        }
    }

    fn waiter_steps(&self, state: &State, at: usize, steps: &mut Steps<State>) {
        let waiter = state.waiters[at];
        let nodes = &state.nodes[..self.nodes];
        let mut new = *state;
        match waiter.phase {
            Phase::Idle => {
                self.try_(&mut new, at);
                steps.add(new, || format!("{} tries", name(at)));
            }
            Phase::Again if nodes.iter().all(|node| !node.release.has(at + 1)) => {
                self.try_(&mut new, at);
                steps.add(new, || format!("{} tries again", name(at)));
            }
            Phase::Trying if waiter.answered.len() == self.nodes => self.decide(state, at, steps),
            Phase::Asleep => self.asleep(state, at, steps),
            Phase::Holding => {
                new.waiters[at] = Waiter {
                    phase: Phase::Done,
                    ..Waiter::default()
                };
                for node in &mut new.nodes[..self.nodes] {
                    node.release.add(at + 1);
                    node.notifies.add(at + 1);
                }
                steps.add(new, || format!("{} releases", name(at)));
            }
            _ => {}
        }
    }

    fn decide(&self, state: &State, at: usize, steps: &mut Steps<State>) {
        let waiter = state.waiters[at];
        let own = at as u8 + 2;
        let votes = |key: u8| {
            waiter.keys[..self.nodes]
                .iter()
                .filter(|of| **of == key)
                .count()
        };
        let mut new = *state;
        if votes(own) >= self.quorum {
            new.waiters[at] = Waiter {
                phase: Phase::Holding,
                ..Waiter::default()
            };
            steps.add(new, || format!("{} HOLDS the lock", name(at)));
            return;
        }
        // Undone, which notifies no client.
        for of in (0..self.nodes).filter(|of| waiter.keys[*of] == own) {
            new.nodes[of].release.add(at + 1);
        }
        let held = (1..=WAITERS as u8 + 1).any(|key| key != own && votes(key) >= self.quorum);
        let again = waiter.plain || self.retries_after_split && !held;
        let enough = waiter.messages.len() >= self.quorum;
        new.waiters[at] = Waiter {
            phase: if again || enough {
                Phase::Again
            } else {
                Phase::Asleep
            },
            messages: if again || enough {
                Bits::default()
            } else {
                waiter.messages
            },
            ..Waiter::default()
        };
        steps.add(new, || {
            let then = if again || enough {
                "will try again"
            } else {
                "sleeps"
            };
            format!("{} is denied and {then}", name(at))
        });
    }

    fn asleep(&self, state: &State, at: usize, steps: &mut Steps<State>) {
        let waiter = state.waiters[at];
        if !waiter.messages.is_empty() && self.tries_after_grace {
            let mut new = *state;
            self.try_(&mut new, at);
            steps.add(new, || format!("{} tries after a while", name(at)));
        }
        if state.gave_up < self.give_ups {
            let mut new = *state;
            new.gave_up += 1;
            new.waiters[at] = Waiter {
                phase: Phase::Done,
                ..Waiter::default()
            };
            for node in &mut new.nodes[..self.nodes] {
                node.leave.add(at);
            }
            steps.add(new, || format!("{} gives up", name(at)));
        }
        let notified = |node: &Node| node.message.has(at);
        let unnoticed =
            waiter.messages.is_empty() && !state.nodes[..self.nodes].iter().any(notified);
        if state.killed < self.kills && unnoticed {
            let mut new = *state;
            new.killed += 1;
            new.waiters[at] = Waiter {
                phase: Phase::Dead,
                ..Waiter::default()
            };
            steps.add(new, || format!("{} is killed", name(at)));
        }
    }
}

fn name(waiter: usize) -> String {
    format!("W{}", waiter + 1)
}

fn owner_name(owner: usize) -> String {
    if owner == HOLDER {
        "H".into()
    } else {
        name(owner - 1)
    }
}

impl World for Queue {
    type State = State;

    fn beginnings(&self) -> Vec<State> {
        let mut nodes = [Node::default(); NODES];
        if !self.free_at_first {
            for node in &mut nodes[..self.nodes] {
                node.key = 1;
            }
        }
        let waiter = Waiter {
            plain: self.first_try_plain,
            ..Waiter::default()
        };
        vec![State {
            nodes,
            waiters: [waiter; WAITERS],
            held: !self.free_at_first,
            gave_up: 0,
            killed: 0,
            lost: 0,
        }]
    }

    fn steps(&self, state: &State, steps: &mut Steps<State>) {
        if state.held {
            let mut new = *state;
            new.held = false;
            for node in &mut new.nodes[..self.nodes] {
                node.release.add(HOLDER);
                node.notifies.add(HOLDER);
            }
            steps.add(new, || "H releases".into());
        }
        for at in 0..self.nodes {
            self.node_steps(state, at, steps);
        }
        for at in 0..self.waiters {
            self.waiter_steps(state, at, steps);
        }
    }

    fn violation(&self, state: &State) -> Option<&'static str> {
        let waiters = &state.waiters[..self.waiters];
        let is = |phase: Phase| move |waiter: &&Waiter| waiter.phase == phase;
        if waiters.iter().filter(is(Phase::Holding)).count() + usize::from(state.held) > 1 {
            return Some("two hold the lock at the same time");
        }
        let quiet = state.nodes[..self.nodes].iter().all(|node| {
            let requests = node.try_.0 | node.release.0 | node.join.0 | node.leave.0;
            requests | node.message.0 == 0
        });
        let rests = |waiter: &Waiter| match waiter.phase {
            Phase::Asleep => waiter.messages.is_empty() || !self.tries_after_grace,
            phase => matches!(phase, Phase::Done | Phase::Dead),
        };
        let stuck = quiet && !state.held && waiters.iter().all(rests);
        (stuck && waiters.iter().any(|waiter| waiter.phase == Phase::Asleep)).then_some(
            "a lost notification: the lock is free, nothing is under way, and a waiter sleeps",
        )
    }

    fn show(&self, state: &State) -> String {
        let mut text = String::new();
        for node in &state.nodes[..self.nodes] {
            let key = usize::from(node.key).checked_sub(1);
            let key = key.map_or("-".into(), owner_name);
            text += &format!("[{key} queue {:03b}] ", node.queue.0);
        }
        for waiter in &state.waiters[..self.waiters] {
            let phase = ["idle", "trying", "again", "ASLEEP", "HOLDS", "done", "dead"]
                [waiter.phase as usize];
            text += &format!(" {phase}");
        }
        text
    }
}
