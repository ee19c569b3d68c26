//! Once in a period (rules R80, R81): each client takes the lock, asks a majority of the nodes whether the work is done, does it, and marks it
//! as done if it has succeeded.
//!
//! The lock itself is modelled elsewhere: a client gets it on a majority of the nodes that are free, all at once. Its time may end whenever it
//! may, and the client learns that late. Marks arrive in any order, late, or never. A client whose mark is on a majority has *done* the work.
//! No client may begin it after that, and no mark may come from a client that does not have the node's lock.

use crate::bits::{Bits, letter};
use crate::explorer::{Steps, World};
use crate::table::{Broken, Holds, Row, row};

const NODES: usize = 3;
const CLIENTS: usize = 3;

#[derive(Clone, Copy)]
struct Once {
    nodes: usize,
    clients: usize,
    /// The script that marks compares the token (R80).
    compares: bool,
    /// The work is done once a majority has the mark; otherwise one node is enough (against R80).
    on_majority: bool,
    /// One node with the mark is enough for the next holder; otherwise a majority must have it (against R81).
    any_mark: bool,
    /// The nodes are asked by the holder; otherwise before it has the lock (against R81).
    asks_holding: bool,
    /// Nodes that may lose all that they have.
    restarts: u8,
}

const RULES: Once = Once {
    nodes: 3,
    clients: 3,
    compares: true,
    on_majority: true,
    any_mark: true,
    asks_holding: true,
    restarts: 0,
};

#[rustfmt::skip] // A row on two lines.
pub(crate) fn rows() -> Vec<Row> {
    vec![
        row("P1", Holds(93_072), "three clients, three nodes (R80, R81)", RULES),
        row("P2", Holds(112), "two clients, one node (R80, R81)", Once { nodes: 1, clients: 2, ..RULES }),
        row("P3", Broken(4, 199), "the script does not compare (against R80)", Once { compares: false, ..RULES }),
        row("P4", Broken(7, 2_052), "a mark on one node counts as done (against R80)", Once { on_majority: false, ..RULES }),
        row("P5", Broken(8, 3_407), "a majority must have the mark (against R81)", Once { any_mark: false, ..RULES }),
        row("P6", Broken(8, 3_310), "the nodes are asked before the lock is taken (against R81)", Once { asks_holding: false, ..RULES }),
        row("P7", Broken(9, 18_759), "a node loses what it has: it may be done again", Once { restarts: 1, ..RULES }),
    ]
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Phase {
    #[default]
    Idle,
    /// It has asked the nodes before it has the lock.
    Asked,
    Holds,
    Runs,
    /// It has succeeded, and its marks are on their way.
    Marks,
    Done,
    Ended,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Client {
    phase: Phase,
    /// The time of its lock is over.
    late: bool,
    /// The nodes that its mark has not reached, and those that have it from this client.
    on_its_way: Bits,
    marked: Bits,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
struct State {
    clients: [Client; CLIENTS],
    /// The client that has the lock on each node, counted from 1.
    holders: [u8; NODES],
    marks: Bits,
    restarts: u8,
    again: bool,
    marked_late: bool,
}

impl State {
    fn end(&mut self, client: usize, phase: Phase) {
        self.clients[client] = Client {
            phase,
            ..Client::default()
        };
        self.free(client);
    }

    fn free(&mut self, client: usize) {
        for holder in &mut self.holders {
            if usize::from(*holder) == client + 1 {
                *holder = 0;
            }
        }
    }

    fn begin(&mut self, client: usize) {
        self.clients[client].phase = Phase::Runs;
        self.again |= self.clients.iter().any(|other| other.phase == Phase::Done);
    }
}

impl Once {
    fn quorum(&self) -> usize {
        self.nodes / 2 + 1
    }

    /// It asks a majority: the states with what it finds. `then`: what it does if nothing is done yet.
    fn ask(&self, state: &State, at: usize, steps: &mut Steps<State>, then: fn(&mut State, usize)) {
        for asked in Bits::choices(self.nodes, self.quorum()) {
            let seen = asked.iter().filter(|node| state.marks.has(*node)).count();
            let is_done = seen >= if self.any_mark { 1 } else { self.quorum() };
            let mut new = *state;
            match is_done {
                true => new.end(at, Phase::Ended),
                false => then(&mut new, at),
            }
            steps.add(new, || {
                let found = if is_done { "done" } else { "not done" };
                format!("{} asks {:03b}: {found}", letter(at), asked.0)
            });
        }
    }

    fn acquire(&self, state: &State, at: usize, steps: &mut Steps<State>) {
        let is_free = |nodes: &Bits| nodes.iter().all(|node| state.holders[node] == 0);
        for nodes in Bits::choices(self.nodes, self.quorum()).filter(is_free) {
            let mut new = *state;
            nodes
                .iter()
                .for_each(|node| new.holders[node] = at as u8 + 1);
            match state.clients[at].phase {
                Phase::Asked => new.begin(at),
                _ => new.clients[at].phase = Phase::Holds,
            }
            steps.add(new, || {
                format!("{} gets the lock on {:03b}", letter(at), nodes.0)
            });
        }
    }

    fn marks(&self, state: &State, at: usize, steps: &mut Steps<State>) {
        let client = state.clients[at];
        for node in client.on_its_way.iter() {
            let mut new = *state;
            new.clients[at].on_its_way.remove(node);
            let has = usize::from(state.holders[node]) == at + 1;
            if has || !self.compares {
                new.marks.add(node);
                new.clients[at].marked.add(node);
                new.marked_late |= !has;
            }
            steps.add(new, || format!("{}'s mark reaches node {node}", letter(at)));
        }
        let enough = if self.on_majority { self.quorum() } else { 1 };
        if client.marked.len() >= enough {
            let mut new = *state;
            new.end(at, Phase::Done);
            steps.add(new, || format!("{} has DONE it", letter(at)));
        }
    }
}

impl World for Once {
    type State = State;

    fn beginnings(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn steps(&self, state: &State, steps: &mut Steps<State>) {
        for at in 0..self.clients {
            let client = state.clients[at];
            match client.phase {
                Phase::Idle if !self.asks_holding => {
                    self.ask(state, at, steps, |new, at| {
                        new.clients[at].phase = Phase::Asked
                    });
                }
                Phase::Idle | Phase::Asked => self.acquire(state, at, steps),
                Phase::Holds => self.ask(state, at, steps, State::begin),
                Phase::Runs => {
                    let mut new = *state;
                    new.end(at, Phase::Ended);
                    steps.add(new, || format!("{} fails", letter(at)));
                    let mut new = *state;
                    new.clients[at].phase = Phase::Marks;
                    new.clients[at].on_its_way = Bits::first(self.nodes);
                    steps.add(new, || format!("{} succeeds", letter(at)));
                }
                Phase::Marks => self.marks(state, at, steps),
                Phase::Done | Phase::Ended => {}
            }
            if matches!(client.phase, Phase::Holds | Phase::Runs | Phase::Marks) && !client.late {
                let mut new = *state;
                new.clients[at].late = true;
                new.free(at);
                steps.add(new, || format!("the time of {} is over", letter(at)));
            }
        }
        if state.restarts < self.restarts {
            for node in 0..self.nodes {
                let mut new = *state;
                new.restarts += 1;
                new.holders[node] = 0;
                new.marks.remove(node);
                steps.add(new, || format!("node {node} loses what it has"));
            }
        }
    }

    fn violation(&self, state: &State) -> Option<&'static str> {
        match (state.again, state.marked_late) {
            (true, _) => Some("the work begins again, though it is done"),
            (_, true) => Some("a mark of a client that does not have the lock"),
            _ => None,
        }
    }

    fn show(&self, state: &State) -> String {
        let phases = ["idle", "asked", "HOLDS", "RUNS", "marks", "done", "ended"];
        let client = |at: usize| phases[state.clients[at].phase as usize];
        let clients: Vec<&str> = (0..self.clients).map(client).collect();
        let holders = &state.holders[..self.nodes];
        format!(
            "{} holders {holders:?} marks {:03b}",
            clients.join(" "),
            state.marks.0
        )
    }
}
