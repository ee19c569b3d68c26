//! Fencing tokens, as they are built (rules R20–R28): a holder asks its nodes for a number, as often as it likes.
//!
//! A node that holds the asker's key answers max(counter + 1, what is asked for, time of day), and stores that. A number is
//! returned if a quorum gave the same; otherwise another round asks for 1 + a number that was seen.
//!
//! There is no time but that of the nodes. Attempts have some rounds each. Requests arrive late, in any order unless the
//! connection is `ordered`, or never; answers may be ignored.
//!
//! Numbers are distinct, and larger than all that were returned before the call began. In some rows they must be in the order
//! of the holders as well.

use crate::bits::{Bits, Pairs, letter};
use crate::explorer::{Steps, World};
use crate::table::{Broken, Holds, HoldsSoFar, Row, row};

const NODES: usize = 5;
const ATTEMPTS: usize = 3;
const ROUNDS: usize = 3;
const NUMBERS: usize = ATTEMPTS * ROUNDS;

/// A counter that is not there.
const ABSENT: u8 = 255;

#[derive(Clone, Copy)]
struct Fence {
    nodes: usize,
    quorum: usize,
    attempts: usize,
    rounds: usize,
    /// A quorum must have given the same number (rule R21); otherwise the largest of any quorum is taken.
    alike: bool,
    /// The script compares the token (rule R20).
    compares: bool,
    /// Keys may vanish at any time; otherwise only when their owner has ended.
    keys_vanish: bool,
    /// Any number up to this one may be asked for; otherwise none, then 1 + a number that was seen.
    asks_any: Option<u8>,
    /// A client may ask for a number that is far ahead of the nodes' time (against rule R23).
    asks_far: bool,
    ordered: bool,
    /// Only nodes count whose grant was seen when the lock was acquired.
    seen_only: bool,
    /// Numbers must be in the order of the acquisitions.
    in_order: bool,
    /// A client that was paused in its call may return after its end (against rule R22).
    returns_late: bool,
    restarts: u8,
    /// A restarted node gives no votes until the attempts of that time are over, and then for this number of ticks more (rule R28).
    guard: bool,
    quarantine: u8,
    /// The time of day runs up to this; 0: counters do not look at it.
    time: u8,
    /// Nodes' clocks differ by at most this number of ticks.
    skew: u8,
    /// It goes in steps of this number of ticks; the second number is the increments that a tick is worth.
    step: u8,
    worth: u8,
    /// It is looked at only where there is no counter.
    time_if_absent: bool,
    /// It is never looked at: a counter that was lost begins at 1.
    no_time: bool,
    /// A restart may bring back any older counter, and may keep the key.
    old_counter: bool,
    keeps_key: bool,
    /// Counters begin anywhere.
    any_counters: bool,
    /// A counter may expire when there is no key.
    counters_expire: bool,
}

/// Nothing is known of clocks, and counters begin anywhere.
const ANY: Fence = Fence {
    nodes: 3,
    quorum: 2,
    attempts: 2,
    rounds: 2,
    alike: true,
    compares: true,
    keys_vanish: true,
    asks_any: None,
    asks_far: false,
    ordered: false,
    seen_only: false,
    in_order: false,
    returns_late: false,
    restarts: 0,
    guard: true,
    quarantine: 0,
    time: 0,
    skew: 0,
    step: 1,
    worth: 8,
    time_if_absent: false,
    no_time: false,
    old_counter: false,
    keeps_key: false,
    any_counters: true,
    counters_expire: false,
};
const FRESH: Fence = Fence {
    any_counters: false,
    ..ANY
};
/// Keys outlive what their owners believe.
const LEASED: Fence = Fence {
    keys_vanish: false,
    in_order: true,
    ..FRESH
};
/// A node loses its counter.
const LOSS: Fence = Fence {
    keys_vanish: false,
    restarts: 1,
    time: 4,
    skew: 1,
    ..FRESH
};

#[rustfmt::skip] // A row on two lines.
pub(crate) fn rows() -> Vec<Row> {
    vec![
        row("D3L.1", Holds(12_260_538), "q equal numbers, 2 attempts with 2 rounds, fresh counters (R21)",
            FRESH),
        row("D3L.1b", Holds(690_160), "2 attempts with 1 round, any counters",
            Fence { rounds: 1, ..ANY }),
        row("D3L.1c", HoldsSoFar(8_000_000), "3 nodes, any counters, 2 attempts with 2 rounds, ordered",
            Fence { ordered: true, ..ANY }),
        row("D3L.2", Holds(12_678_506), "3 attempts with 1 round",
            Fence { attempts: 3, rounds: 1, ..FRESH }),
        row("D3L.3", HoldsSoFar(8_000_000), "3 attempts with 2 rounds, ordered",
            Fence { attempts: 3, rounds: 2, ordered: true, ..FRESH }),
        row("D3L.4", HoldsSoFar(700_000), "2 attempts with 3 rounds, ordered",
            Fence { rounds: 3, ordered: true, ..FRESH }),
        row("D3L.5", Holds(818_615), "2 attempts with 1 round, any number up to 4 is asked for",
            Fence { asks_any: Some(4), rounds: 1, ..FRESH }),
        row("D3L.6", Holds(2_793_938), "5 nodes, 2 attempts with 1 round",
            Fence { nodes: 5, quorum: 3, rounds: 1, ..FRESH }),
        row("D3L.7", Holds(7_074_471), "4 nodes and a quorum of 3, 2 attempts with 1 round, any counters",
            Fence { nodes: 4, quorum: 3, rounds: 1, ..ANY }),
        row("D3L.8", Holds(208_473), "2 nodes, 2 attempts with 2 rounds, any counters",
            Fence { nodes: 2, quorum: 2, ..ANY }),
        row("D3L.9", Holds(666_087), "1 node, 3 attempts with 2 rounds, any counters",
            Fence { nodes: 1, quorum: 1, attempts: 3, ..ANY }),
        row("D3L.10", Broken(19, 961_107), "the largest of any q numbers (against R21)",
            Fence { alike: false, ..FRESH }),
        row("D3L.11", HoldsSoFar(700_000), "the script does not compare the token: numbers are distinct all the same",
            Fence { compares: false, ..FRESH }),
        row("D3L.20", Holds(1_350_123), "numbers are in the order of the holders, 2 attempts with 2 rounds",
            LEASED),
        row("D3L.21", Holds(1_689_855), "the same, 3 attempts with 1 round",
            Fence { attempts: 3, rounds: 1, ..LEASED }),
        row("D3L.22", Broken(18, 270_423), "the script does not compare the token (against R20), and a paused client returns after its end",
            Fence { compares: false, returns_late: true, ..LEASED }),
        row("D3L.23", Broken(23, 1_741_310), "the script compares, but a paused client returns after its end (against R22)",
            Fence { returns_late: true, ..LEASED }),
        row("D3L.24", Holds(13_352_328), "the same, but only nodes count whose grant was seen",
            Fence { returns_late: true, seen_only: true, ..LEASED }),
        row("D3L.25", Broken(21, 2_871_183), "keys vanish at any time: no order of the acquisitions",
            Fence { in_order: true, ..FRESH }),
        row("D3L.26", Holds(28_148_425), "the same, but only nodes count whose grant was seen",
            Fence { in_order: true, seen_only: true, ..FRESH }),
        row("D3L.27", HoldsSoFar(30_000_000), "as D3L.26, 3 attempts with 1 round",
            Fence { in_order: true, seen_only: true, attempts: 3, rounds: 1, ..FRESH }),
        row("D3L.28", Broken(24, 571_832), "as D3L.23, ordered",
            Fence { returns_late: true, ordered: true, ..LEASED }),
        row("D3L.30", Broken(18, 697_877), "a lost counter begins at 1 (against R20)",
            Fence { no_time: true, skew: 0, ..LOSS }),
        row("D3L.31", Broken(18, 25_711_724), "a lost counter begins at the time of day, clocks differ by 1, no wait (against R28)",
            LOSS),
        row("D3L.31s", Broken(18, 1_273_619), "the same with 1 round",
            Fence { rounds: 1, ..LOSS }),
        row("D3L.32", Holds(4_787_938), "the same, and the node waits 2 ticks more (R28); 1 round",
            Fence { quarantine: 2, rounds: 1, ..LOSS }),
        row("D3L.33", HoldsSoFar(200_000), "the same with 2 rounds, ordered",
            Fence { quarantine: 2, ordered: true, ..LOSS }),
        row("D3L.34", Broken(26, 14_462_632), "a restart brings back an old counter, and time counts only where there is none (against R23)",
            Fence { quarantine: 3, rounds: 2, ordered: true, old_counter: true, time_if_absent: true, skew: 0, worth: 1, ..LOSS }),
        row("D3L.35", Holds(22_295_240), "an old counter, time counts always, waits 2 ticks; 1 round",
            Fence { quarantine: 2, rounds: 1, old_counter: true, ..LOSS }),
        row("D3L.36", HoldsSoFar(200_000), "the same with 2 rounds, ordered",
            Fence { quarantine: 2, old_counter: true, ordered: true, ..LOSS }),
        row("D3L.37", HoldsSoFar(30_000_000), "time in steps of 2 ticks, waits 4, an old counter",
            Fence { quarantine: 4, rounds: 1, old_counter: true, step: 2, time: 8, worth: 4, ..LOSS }),
        row("D3L.38", Broken(19, 4_706_857), "time in steps of 3 ticks, waits 1 (against R28)",
            Fence { quarantine: 1, rounds: 1, old_counter: true, step: 3, time: 7, worth: 4, ..LOSS }),
        row("D3L.39", Broken(20, 366_471), "a client may ask for a number far ahead (against R23)",
            Fence { quarantine: 2, rounds: 1, asks_far: true, skew: 0, time: 3, ..LOSS }),
        row("D3L.40", Broken(9, 5_163), "no guard: a restart loses the key and the counter",
            Fence { guard: false, rounds: 1, skew: 0, ..LOSS }),
        row("D3L.41", Holds(432_160), "1 node, the guard, waits 1, 3 attempts with 2 rounds",
            Fence { nodes: 1, quorum: 1, attempts: 3, skew: 0, quarantine: 1, ..LOSS }),
        row("D3L.42", Broken(19, 736_103), "a counter expires as soon as the key is gone (against R26)",
            Fence { restarts: 0, counters_expire: true, rounds: 1, ..LOSS }),
        row("D3L.45", HoldsSoFar(30_000_000), "a restart loses the key, the counter, both or nothing; waits 2",
            Fence { quarantine: 2, rounds: 1, old_counter: true, keeps_key: true, ..LOSS }),
        row("D3L.43", Holds(9_341_442), "2 restarts, waits 2",
            Fence { quarantine: 2, rounds: 1, restarts: 2, ..LOSS }),
        row("D3L.44", HoldsSoFar(30_000_000), "3 attempts with 1 round, waits 2",
            Fence { quarantine: 2, rounds: 1, attempts: 3, ..LOSS }),
    ]
}

const UNDER_WAY: u8 = 1;
/// A SET was granted, a request for a number was answered.
const ANSWERED: u8 = 2;

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
struct Node {
    /// 0: there is none; else 1 + whose.
    key: u8,
    counter: u8,
    skew: u8,
    /// It gives no votes until these attempts are over, and not before that time.
    waits_for: Bits,
    waits_until: u8,
    set: Pairs,
    /// Attempts whose grant was seen when they acquired.
    granted: Bits,
    /// Requests for numbers, by attempt and round, and the answers.
    request: Pairs,
    number: [u8; NUMBERS],
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
enum Phase {
    #[default]
    Idle,
    Acquiring,
    Holding,
    Over,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
struct Attempt {
    phase: Phase,
    /// Rounds that it has begun, and what they asked for.
    rounds: u8,
    asked: [u8; ROUNDS],
    /// A call is under way, and must return more than this.
    calling: bool,
    floor: u8,
    /// 1 + how many acquired before it.
    order: u8,
    /// The smallest and the largest number that it was given.
    least: u8,
    most: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Wrong {
    #[default]
    Nothing,
    Twice,
    TooSmall,
    OutOfOrder,
    TwoHolders,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    nodes: [Node; NODES],
    attempts: [Attempt; ATTEMPTS],
    /// All numbers that were returned, and the largest.
    returned: [u8; NUMBERS],
    largest: u8,
    acquired: u8,
    time: u8,
    restarts: u8,
    wrong: Wrong,
}

/// A request's place among all: attempts have a place for each round.
fn place(attempt: usize, round: usize) -> usize {
    attempt * ROUNDS + round
}

impl Fence {
    /// Adds a state in its normal form: without what has no effect any more, and with the nodes sorted.
    fn add(&self, steps: &mut Steps<State>, mut state: State, describe: impl FnOnce() -> String) {
        for at in 0..self.attempts {
            for node in &mut state.nodes[..self.nodes] {
                self.forget_on(node, state.attempts[at], at);
                if node.waits_until != 0 && state.time >= node.waits_until {
                    node.waits_until = 0;
                }
            }
        }
        for at in 0..self.attempts {
            let nodes = &state.nodes[..self.nodes];
            let attempt = &mut state.attempts[at];
            for round in 0..self.rounds {
                let awaited = attempt.calling && round + 1 == usize::from(attempt.rounds);
                let under_way = |node: &Node| node.request.get(place(at, round)) == UNDER_WAY;
                if !awaited && !nodes.iter().any(under_way) {
                    attempt.asked[round] = 0;
                }
            }
            if attempt.phase == Phase::Over && !(self.returns_late && attempt.calling) {
                (attempt.rounds, attempt.calling) = (0, false);
            }
            if !attempt.calling {
                attempt.floor = 0;
            }
            if !self.in_order {
                (attempt.least, attempt.most, attempt.order) = (0, 0, 0);
            }
        }
        if !self.in_order {
            state.acquired = 0;
        }
        state.returned.sort_unstable();
        state.nodes[..self.nodes].sort_unstable();
        steps.add(state, describe);
    }

    fn forget_on(&self, node: &mut Node, attempt: Attempt, at: usize) {
        let over = attempt.phase == Phase::Over && !(self.returns_late && attempt.calling);
        if attempt.phase != Phase::Acquiring && node.set.get(at) == ANSWERED {
            node.set.put(at, 0);
        }
        if over || !self.seen_only {
            node.granted.remove(at);
        }
        for round in 0..self.rounds {
            let place = place(at, round);
            let awaited = attempt.calling && round + 1 == usize::from(attempt.rounds);
            if node.request.get(place) == ANSWERED && (over || !awaited) {
                node.request.put(place, 0);
                node.number[place] = 0;
            }
            // It finds no key, now or later.
            let not_held = usize::from(node.key) != at + 1 && node.set.get(at) != UNDER_WAY;
            if node.request.get(place) == UNDER_WAY && self.compares && not_held {
                node.request.put(place, 0);
            }
        }
        if attempt.phase == Phase::Over {
            node.waits_for.remove(at);
        }
    }

    fn node_steps(&self, state: &State, at: usize, steps: &mut Steps<State>) {
        let node = state.nodes[at];
        let votes = node.waits_for.is_empty() && node.waits_until <= state.time;
        for attempt in 0..self.attempts {
            if node.set.get(attempt) == UNDER_WAY {
                let mut new = *state;
                let granted = node.key == 0 && votes;
                if granted {
                    new.nodes[at].key = attempt as u8 + 1;
                }
                let seen = granted && state.attempts[attempt].phase == Phase::Acquiring;
                new.nodes[at]
                    .set
                    .put(attempt, if seen { ANSWERED } else { 0 });
                self.add(steps, new, || {
                    let answer = if granted { "granted" } else { "denied" };
                    format!("node {at}: SET of {}: {answer}", letter(attempt))
                });
            }
            for round in 0..self.rounds {
                let before = |round| node.request.get(place(attempt, round)) == UNDER_WAY;
                let first = node.set.get(attempt) != UNDER_WAY && !(0..round).any(before);
                if before(round) && (first || !self.ordered) {
                    self.count(state, at, attempt, round, steps);
                }
            }
        }
        let owner = usize::from(node.key).checked_sub(1);
        if let Some(owner) =
            owner.filter(|of| self.keys_vanish || state.attempts[*of].phase == Phase::Over)
        {
            let mut new = *state;
            new.nodes[at].key = 0;
            self.add(steps, new, || {
                format!("node {at}: the key of {} ends", letter(owner))
            });
        }
        if self.counters_expire && node.key == 0 && node.counter != ABSENT {
            let mut new = *state;
            new.nodes[at].counter = ABSENT;
            self.add(steps, new, || format!("node {at}: the counter expires"));
        }
        if state.restarts < self.restarts {
            self.restart(state, at, steps);
        }
    }

    /// Rule R20.
    fn count(
        &self,
        state: &State,
        at: usize,
        attempt: usize,
        round: usize,
        steps: &mut Steps<State>,
    ) {
        let asker = state.attempts[attempt];
        let place = place(attempt, round);
        let mut new = *state;
        let node = &mut new.nodes[at];
        let votes = node.waits_for.is_empty() && node.waits_until <= state.time;
        let held = votes && (!self.compares || usize::from(node.key) == attempt + 1);
        let mut number = 0;
        if held {
            let time = if self.time == 0 || self.no_time {
                0
            } else {
                (state.time + node.skew) / self.step * self.step * self.worth
            };
            number = if node.counter == ABSENT {
                time.max(1)
            } else if self.time_if_absent {
                node.counter + 1
            } else {
                (node.counter + 1).max(time)
            };
            number = number.max(asker.asked[round]);
            node.counter = number;
        }
        let live = asker.phase != Phase::Over || self.returns_late && asker.calling;
        let counts = held && live;
        node.request.put(place, if counts { ANSWERED } else { 0 });
        node.number[place] = if counts { number } else { 0 };
        self.add(steps, new, || match number {
            0 => format!("node {at}: number for {}: not held", letter(attempt)),
            _ => format!("node {at}: number for {}: {number}", letter(attempt)),
        });
        if self.ordered {
            let mut new = *state;
            new.nodes[at].request.put(place, 0);
            self.add(steps, new, || {
                format!("request of {} to node {at} is lost", letter(attempt))
            });
        }
    }

    fn restart(&self, state: &State, at: usize, steps: &mut Steps<State>) {
        let before = state.nodes[at];
        let busy =
            |of: &usize| matches!(state.attempts[*of].phase, Phase::Acquiring | Phase::Holding);
        let mut new = *state;
        new.restarts += 1;
        let node = &mut new.nodes[at];
        (node.key, node.counter) = (0, ABSENT);
        node.waits_for = (0..self.attempts)
            .filter(|of| self.guard && busy(of))
            .collect();
        node.waits_until = state.time + self.quarantine;
        for attempt in 0..self.attempts {
            if node.set.get(attempt) == UNDER_WAY {
                node.set.put(attempt, 0);
            }
            for place in (0..self.rounds).map(|round| place(attempt, round)) {
                if node.request.get(place) == UNDER_WAY {
                    node.request.put(place, 0);
                }
            }
        }
        let mut with = |key: u8, counter: u8| {
            let mut new = new;
            (new.nodes[at].key, new.nodes[at].counter) = (key, counter);
            self.add(steps, new, || {
                let key = if key == 0 { "empty" } else { "with its key" };
                match counter {
                    ABSENT => format!("node {at} restarts {key}"),
                    _ => format!("node {at} restarts {key}, counter {counter}"),
                }
            });
        };
        with(0, ABSENT);
        if self.keeps_key && before.key != 0 {
            with(before.key, ABSENT);
            with(before.key, before.counter);
        }
        if self.old_counter && before.counter != ABSENT {
            let apart = if before.counter > 12 {
                before.counter / 6
            } else {
                1
            };
            for counter in (1..before.counter).rev().step_by(usize::from(apart)) {
                with(0, counter);
                if self.keeps_key && before.key != 0 {
                    with(before.key, counter);
                }
            }
        }
    }

    fn attempt_steps(&self, state: &State, at: usize, steps: &mut Steps<State>) {
        let attempt = state.attempts[at];
        match attempt.phase {
            Phase::Idle => {
                // Attempts are alike: they begin in order.
                if at == 0 || state.attempts[at - 1].phase != Phase::Idle {
                    let mut new = *state;
                    for node in &mut new.nodes[..self.nodes] {
                        node.set.put(at, UNDER_WAY);
                    }
                    new.attempts[at].phase = Phase::Acquiring;
                    self.add(steps, new, || format!("{} asks for the lock", letter(at)));
                }
                return;
            }
            Phase::Acquiring => self.acquire(state, at, steps),
            Phase::Holding | Phase::Over => {}
        }
        let holds = attempt.phase == Phase::Holding;
        let returns_late = self.returns_late && attempt.phase == Phase::Over;
        if attempt.calling && (holds || returns_late) {
            self.answer(state, at, steps);
        }
        if holds && usize::from(attempt.rounds) < self.rounds {
            self.ask(state, at, steps);
        }
        if attempt.phase != Phase::Over {
            let mut new = *state;
            new.attempts[at].phase = Phase::Over;
            self.add(steps, new, || format!("{} ends", letter(at)));
        }
    }

    fn acquire(&self, state: &State, at: usize, steps: &mut Steps<State>) {
        let granted = |of: usize| state.nodes[of].set.get(at) == ANSWERED;
        // Which grants it has seen matters only where nothing else counts.
        let enough = |grants: &Bits| self.seen_only || grants.len() == self.quorum;
        let choices = Bits::choices(self.nodes, self.quorum)
            .filter(enough)
            .filter(|grants| grants.iter().all(granted));
        let different = if self.seen_only { usize::MAX } else { 1 };
        for grants in choices.take(different) {
            let mut new = *state;
            for of in grants.iter() {
                new.nodes[of].granted.add(at);
            }
            let holds = |attempt: &Attempt| attempt.phase == Phase::Holding;
            if !self.keys_vanish && state.attempts.iter().any(holds) {
                new.wrong = Wrong::TwoHolders;
            }
            new.acquired += 1;
            new.attempts[at].phase = Phase::Holding;
            new.attempts[at].order = new.acquired;
            self.add(steps, new, || format!("{} HOLDS the lock", letter(at)));
        }
    }

    fn ask(&self, state: &State, at: usize, steps: &mut Steps<State>) {
        let attempt = state.attempts[at];
        let round = usize::from(attempt.rounds);
        let mut numbers: Vec<u8> = match self.asks_any {
            _ if self.asks_far && !attempt.calling => vec![0, 100],
            Some(most) => (0..=most).collect(),
            None => vec![0],
        };
        if attempt.calling && self.asks_any.is_none() {
            let place = place(at, round - 1);
            let answered = |node: &&Node| node.request.get(place) == ANSWERED;
            let nodes = state.nodes[..self.nodes].iter();
            numbers.extend(nodes.filter(answered).map(|node| node.number[place] + 1));
            numbers.sort_unstable();
            numbers.dedup();
        }
        for number in numbers {
            let mut new = *state;
            for node in &mut new.nodes[..self.nodes] {
                node.request.put(place(at, round), UNDER_WAY);
            }
            let asker = &mut new.attempts[at];
            asker.asked[round] = number;
            asker.rounds += 1;
            if !asker.calling {
                (asker.calling, asker.floor) = (true, state.largest);
            }
            self.add(steps, new, || {
                format!(
                    "{} asks for a number, {number} at least (round {})",
                    letter(at),
                    round + 1
                )
            });
        }
    }

    /// Rule R21.
    fn answer(&self, state: &State, at: usize, steps: &mut Steps<State>) {
        let place = place(at, usize::from(state.attempts[at].rounds) - 1);
        let counts = |node: &&Node| {
            node.request.get(place) == ANSWERED && (!self.seen_only || node.granted.has(at))
        };
        let nodes = state.nodes[..self.nodes].iter();
        let mut numbers: Vec<u8> = nodes
            .filter(counts)
            .map(|node| node.number[place])
            .collect();
        numbers.sort_unstable();
        let mut returned = Vec::new();
        for (index, &number) in numbers.iter().enumerate() {
            let votes = if self.alike {
                numbers.iter().filter(|other| **other == number).count()
            } else {
                index + 1
            };
            if votes >= self.quorum && !returned.contains(&number) {
                returned.push(number);
                let mut new = *state;
                self.give(&mut new, at, number);
                self.add(steps, new, || format!("{} is GIVEN {number}", letter(at)));
            }
        }
    }

    fn give(&self, state: &mut State, at: usize, number: u8) {
        if self.in_order && !self.is_in_order(state, at, number) {
            state.wrong = Wrong::OutOfOrder;
        }
        if state.returned.contains(&number) {
            state.wrong = Wrong::Twice;
        }
        if number <= state.attempts[at].floor {
            state.wrong = Wrong::TooSmall;
        }
        let attempt = &mut state.attempts[at];
        attempt.calling = false;
        attempt.least = match attempt.least {
            0 => number,
            least => least.min(number),
        };
        attempt.most = attempt.most.max(number);
        state.largest = state.largest.max(number);
        state.returned[0] = number;
    }

    /// Above the numbers of those that acquired before it, below those of the others.
    fn is_in_order(&self, state: &State, at: usize, number: u8) -> bool {
        let order = state.attempts[at].order;
        (0..self.attempts)
            .filter(|other| *other != at)
            .map(|other| &state.attempts[other])
            .filter(|other| other.least != 0)
            .all(|other| {
                if other.order > order {
                    number < other.least
                } else {
                    number > other.most
                }
            })
    }
}

impl World for Fence {
    type State = State;

    fn beginnings(&self) -> Vec<State> {
        let counters: &[u8] = match (self.time, self.any_counters) {
            (1.., _) => &[ABSENT],
            (0, true) => &[0, 1, 3],
            (0, false) => &[0],
        };
        let mut states = vec![State {
            nodes: [Node::default(); NODES],
            attempts: [Attempt::default(); ATTEMPTS],
            returned: [0; NUMBERS],
            largest: 0,
            acquired: 0,
            time: if self.time > 0 { self.step } else { 0 },
            restarts: 0,
            wrong: Wrong::Nothing,
        }];
        for at in 0..self.nodes {
            let with = |state: &State, counter: u8, skew: u8| {
                let mut state = *state;
                (state.nodes[at].counter, state.nodes[at].skew) = (counter, skew);
                state
            };
            let skews =
                |state, counter| (0..=self.skew).map(move |skew| with(state, counter, skew));
            let all = |state| {
                counters
                    .iter()
                    .flat_map(move |counter| skews(state, *counter))
            };
            states = states.iter().flat_map(all).collect();
        }
        for state in &mut states {
            state.nodes[..self.nodes].sort_unstable();
        }
        states
    }

    fn steps(&self, state: &State, steps: &mut Steps<State>) {
        for at in 0..self.nodes {
            self.node_steps(state, at, steps);
        }
        if state.time < self.time {
            let mut new = *state;
            new.time += 1;
            self.add(steps, new, || "a tick".into());
        }
        for at in 0..self.attempts {
            self.attempt_steps(state, at, steps);
        }
    }

    fn violation(&self, state: &State) -> Option<&'static str> {
        match state.wrong {
            Wrong::Nothing => None,
            Wrong::Twice => Some("one number was given twice"),
            Wrong::TooSmall => {
                Some("a number is not above one that was given before the call began")
            }
            Wrong::OutOfOrder => Some("numbers are not in the order of the holders"),
            Wrong::TwoHolders => Some("two clients hold the lock at the same time"),
        }
    }

    fn show(&self, state: &State) -> String {
        let mut text = String::new();
        for node in &state.nodes[..self.nodes] {
            let key = match usize::from(node.key) {
                0 => '-',
                key => letter(key - 1),
            };
            let counter = match node.counter {
                ABSENT => "-".to_string(),
                counter => counter.to_string(),
            };
            let quarantine = !node.waits_for.is_empty() || node.waits_until > state.time;
            text += &format!(
                "[{key} {counter}{}] ",
                if quarantine { " quarantine" } else { "" }
            );
        }
        for (at, attempt) in state.attempts[..self.attempts].iter().enumerate() {
            let phase = ["idle", "acquiring", "HOLDS", "over"][attempt.phase as usize];
            text += &format!(" {} {phase}", letter(at));
        }
        let given: Vec<&u8> = state
            .returned
            .iter()
            .filter(|number| **number > 0)
            .collect();
        text += &format!(" given {given:?}");
        if self.time > 0 {
            text += &format!(" time {}", state.time);
        }
        text
    }
}
