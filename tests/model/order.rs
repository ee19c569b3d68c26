//! How several names are waited for (rule R52): whether clients deadlock.
//!
//! One node (splits between nodes drop all claims, and add nothing). A client that is denied waits for one name and holds nothing; or, at
//! any time from then on, claims names one by one and keeps what it has: all names up to the one in its way, or, as the crate does, those
//! that were in its way. A state in which nothing can happen before all are done is a deadlock.

use crate::bits::{Bits, letter};
use crate::explorer::{Steps, World};
use crate::table::{Broken, Holds, Row, row};

const CLIENTS: usize = 4;
const NAMES: usize = 3;

#[derive(Clone, Copy)]
struct Order {
    wanted: &'static [Bits],
    rounds: u8,
    /// Clients may begin to claim one by one, and do so in the order of the names.
    one_by_one: bool,
    sorted: bool,
    /// A client that does not claim one by one keeps its claim while it waits for the next name.
    keeps_claim: bool,
    /// One by one, it claims only names that were in its way.
    only_taken: bool,
    /// And keeps claims on later names than the one it waits for.
    keeps_later: bool,
}

const A: Bits = Bits(1);
const B: Bits = Bits(2);
const C: Bits = Bits(4);
const AB: Bits = Bits(3);
const BC: Bits = Bits(6);
const AC: Bits = Bits(5);
const ABC: Bits = Bits(7);

const EITHER: Order = Order {
    wanted: &[AB, BC, AC, ABC],
    rounds: 3,
    one_by_one: true,
    sorted: true,
    keeps_claim: false,
    only_taken: false,
    keeps_later: false,
};
const TAKEN: Order = Order {
    only_taken: true,
    ..EITHER
};

#[rustfmt::skip] // A row on two lines.
pub(crate) fn rows() -> Vec<Row> {
    vec![
        row("O1", Holds(515_971), "{a,b} {b,c} {a,c} {a,b,c}, 3 times each, either way to wait at any time (R52)", EITHER),
        row("O1s", Holds(2_607), "the same, once each", Order { rounds: 1, ..EITHER }),
        row("O2", Broken(10, 173_323), "one by one in any order (against R52)", Order { sorted: false, ..EITHER }),
        row("O3", Broken(12, 32_731), "the claim is kept while the next name is waited for (against R52)",
            Order { keeps_claim: true, one_by_one: false, ..EITHER }),
        row("O4", Holds(97_912), "never one by one", Order { one_by_one: false, ..EITHER }),
        row("O5", Holds(235_860), "{a,b,c} among plain locks of a, b and c", Order { wanted: &[ABC, A, B, C], ..EITHER }),
        row("O6", Holds(550_168), "{a,b} {b,c} {a,c} {a,b,c}, twice each, names that were in the way are claimed (R52)", Order { rounds: 2, ..TAKEN }),
        row("O6s", Holds(5_461), "the same, once each", Order { rounds: 1, ..TAKEN }),
        row("O7", Broken(10, 5_004), "the same, and claims on later names are kept (against R52)", Order { rounds: 1, keeps_later: true, ..TAKEN }),
        row("O8", Holds(410_910), "{a,b,c} among plain locks of a, b and c", Order { wanted: &[ABC, A, B, C], ..TAKEN }),
    ]
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Phase {
    #[default]
    Trying,
    Waiting,
    Holding,
    Done,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Client {
    phase: Phase,
    claims: Bits,
    /// Names that were in its way, and that it claims.
    taken: Bits,
    waits_for: u8,
    one_by_one: bool,
    rounds: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
struct State {
    clients: [Client; CLIENTS],
}

impl Order {
    /// Names that others have claimed.
    fn taken(&self, state: &State, but: usize) -> Bits {
        let others = (0..self.wanted.len()).filter(|other| *other != but);
        Bits(others.fold(0, |names, other| names | state.clients[other].claims.0))
    }

    /// It is denied: it waits.
    fn wait(&self, state: &State, at: usize, blocked: Bits, steps: &mut Steps<State>) {
        let client = state.clients[at];
        let first = (0..NAMES).find(|name| blocked.has(*name)).unwrap_or(NAMES);
        if !client.one_by_one {
            let mut new = *state;
            let waits = &mut new.clients[at];
            waits.phase = Phase::Waiting;
            waits.waits_for = first as u8;
            if !self.keeps_claim {
                waits.claims = Bits::default();
            }
            steps.add(new, || format!("{} waits for {}", letter(at), name(first)));
        }
        if !self.one_by_one {
            return;
        }
        if self.only_taken {
            return self.claim_taken(state, at, blocked, steps);
        }
        let left = Bits(self.wanted[at].0 & !client.claims.0);
        let next: Vec<usize> = if self.sorted {
            vec![(0..=first).find(|name| left.has(*name)).unwrap_or(first)]
        } else {
            left.iter().collect()
        };
        for next in next {
            let mut new = *state;
            let waits = &mut new.clients[at];
            waits.phase = Phase::Waiting;
            waits.one_by_one = true;
            waits.waits_for = next as u8;
            if self.sorted {
                waits.claims.0 &= Bits::first(next).0;
            }
            steps.add(new, || {
                format!("{}, one by one, waits for {}", letter(at), name(next))
            });
        }
    }

    /// Any of the names may be the one that is said to be in its way.
    fn claim_taken(&self, state: &State, at: usize, blocked: Bits, steps: &mut Steps<State>) {
        for blocking in blocked.iter() {
            let mut new = *state;
            let waits = &mut new.clients[at];
            waits.one_by_one = true;
            waits.taken.add(blocking);
            if !self.keeps_later {
                waits.claims.0 &= Bits::first(blocking).0;
            }
            waits.next();
            steps.add(new, || {
                format!("{}, one by one, waits for {}", letter(at), name(blocking))
            });
        }
    }
}

impl Client {
    /// Waits for the first name that it has not claimed, or tries for all.
    fn next(&mut self) {
        let missing = Bits(self.taken.0 & !self.claims.0);
        match missing.iter().next() {
            Some(missing) => {
                self.phase = Phase::Waiting;
                self.waits_for = missing as u8;
            }
            None => self.phase = Phase::Trying,
        }
    }
}

fn name(at: usize) -> char {
    ['a', 'b', 'c'][at]
}

impl World for Order {
    type State = State;

    fn beginnings(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn steps(&self, state: &State, steps: &mut Steps<State>) {
        for at in 0..self.wanted.len() {
            let client = state.clients[at];
            let taken = self.taken(state, at);
            let blocked = Bits(taken.0 & self.wanted[at].0);
            let mut new = *state;
            let next = &mut new.clients[at];
            match client.phase {
                Phase::Trying if blocked.is_empty() => {
                    next.claims = self.wanted[at];
                    next.phase = Phase::Holding;
                    steps.add(new, || format!("{} HOLDS all of its names", letter(at)));
                }
                Phase::Trying => self.wait(state, at, blocked, steps),
                Phase::Waiting if !taken.has(usize::from(client.waits_for)) => {
                    next.claims.add(usize::from(client.waits_for));
                    next.next();
                    let claimed = usize::from(client.waits_for);
                    steps.add(new, || format!("{} claims {}", letter(at), name(claimed)));
                }
                Phase::Holding => {
                    let again = client.rounds + 1 < self.rounds;
                    *next = Client {
                        phase: if again { Phase::Trying } else { Phase::Done },
                        rounds: client.rounds + 1,
                        ..Client::default()
                    };
                    steps.add(new, || format!("{} releases", letter(at)));
                }
                Phase::Waiting | Phase::Done => {}
            }
        }
    }

    fn violation(&self, state: &State) -> Option<&'static str> {
        let clients = &state.clients[..self.wanted.len()];
        let holds = |at: &usize| clients[*at].phase == Phase::Holding;
        let held = |name| {
            (0..clients.len())
                .filter(holds)
                .filter(|at| self.wanted[*at].has(name))
                .count()
        };
        if (0..NAMES).any(|name| held(name) > 1) {
            return Some("two hold one name at the same time");
        }
        let mut steps = Steps::new(false);
        self.steps(state, &mut steps);
        let done = clients.iter().all(|client| client.phase == Phase::Done);
        (steps.is_empty() && !done).then_some("a deadlock")
    }

    fn show(&self, state: &State) -> String {
        let mut text = String::new();
        for (at, client) in state.clients[..self.wanted.len()].iter().enumerate() {
            let claims: String = client.claims.iter().map(name).collect();
            let phase = ["tries", "waits", "HOLDS", "done"][client.phase as usize];
            text += &format!("[{} {phase} {claims:3}] ", letter(at));
        }
        text
    }
}
