//! Waiting for locks beyond the mutex (rules R50, R51): which client is notified, and whether readers overtake a waiting writer.
//!
//! Scripts are one step each. There is no polling, and no timer but one: a *mark*, which a waiting writer leaves on nodes to keep
//! later readers out, ends by itself when its writer does not wait any more, and those that it kept out look again. So a state
//! in which nothing can happen while a client sleeps is a lost notification. A reader *overtakes* a writer if it came after the
//! writer's mark was on N - q + 1 nodes, and holds before it.

use crate::bits::Bits;
use crate::explorer::{Steps, World};
use crate::table::{Broken, Holds, HoldsSoFar, Row, row};

const NODES: usize = 3;
const CLIENTS: usize = 4;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Reader,
    Writer,
    /// Of a semaphore.
    Permit,
}

use Kind::{Permit, Reader, Writer};

#[derive(Clone, Copy)]
struct Sharing {
    nodes: usize,
    clients: &'static [Kind],
    permits: usize,
    /// How often readers (and permits) ask, and how often writers.
    rounds: u8,
    writer_rounds: u8,
    /// The number of sleepers that give up, or die.
    give_ups: u8,
    deaths: u8,
    /// The number of readers that may overtake a writer.
    overtakes: u8,
    /// Waiting writers leave marks.
    marks: bool,
    /// A mark keeps out only those that came later.
    marks_by_age: bool,
    /// A node that grants a writer forgets its mark, although the grant may be undone.
    grant_ends_mark: bool,
    /// A client that finds a node free, but marked, notifies the mark's writer, and forgets the mark of a dead one.
    mark_notifies: bool,
    /// A reader that is granted notifies the readers that are next.
    readers_notify: bool,
    passes_on: bool,
    /// A message that arrives during a try is kept.
    keeps_message: bool,
    /// A writer does not tell one set of readers from another.
    readers_look_alike: bool,
}

const ONE: Sharing = Sharing {
    nodes: 1,
    clients: &[],
    permits: 2,
    rounds: 1,
    writer_rounds: 1,
    give_ups: 0,
    deaths: 0,
    overtakes: 99,
    marks: true,
    marks_by_age: true,
    grant_ends_mark: false,
    mark_notifies: true,
    readers_notify: true,
    passes_on: true,
    keeps_message: true,
    readers_look_alike: false,
};
const THREE: Sharing = Sharing { nodes: 3, ..ONE };
const FOUR: Sharing = Sharing {
    clients: &[Reader, Reader, Writer, Writer],
    ..ONE
};
const READERS: Sharing = Sharing {
    clients: &[Reader, Reader, Writer],
    overtakes: 0,
    ..THREE
};
const WRITERS: Sharing = Sharing {
    clients: &[Reader, Writer, Writer],
    overtakes: 0,
    ..THREE
};

#[rustfmt::skip] // A row on two lines.
pub(crate) fn rows() -> Vec<Row> {
    vec![
        row("C1", Holds(52_076), "1 node, 2 permits, 4 clients, one gives up, one dies",
            Sharing { give_ups: 1, deaths: 1, clients: &[Permit; 4], ..ONE }),
        row("C2", Broken(16, 2_060), "1 node, 1 permit, 3 clients; a client that gives up passes nothing on (against R51)",
            Sharing { permits: 1, give_ups: 1, passes_on: false, clients: &[Permit; 3], ..ONE }),
        row("C3", Broken(20, 31_248), "1 node, 2 permits, 4 clients; a message during a try is forgotten (against R31)",
            Sharing { keeps_message: false, clients: &[Permit; 4], ..ONE }),
        row("C4", Holds(363_098), "1 node, 2 readers, 2 writers, one gives up, one dies", Sharing { give_ups: 1, deaths: 1, ..FOUR }),
        row("C4s", Holds(117), "1 node, a reader, a writer, one gives up, one dies",
            Sharing { give_ups: 1, deaths: 1, clients: &[Reader, Writer], ..ONE }),
        row("C5", Holds(90_592), "1 node, 3 readers, a writer; readers do not notify readers (only slower)",
            Sharing { readers_notify: false, clients: &[Reader, Reader, Reader, Writer], ..ONE }),
        row("C6", Broken(20, 142_997), "1 node, 2 readers, 2 writers; a client that gives up passes nothing on (against R51)",
            Sharing { give_ups: 1, passes_on: false, ..FOUR }),
        row("C7", Holds(294_490), "1 node, 2 readers again and again, a writer: none overtakes it (R50)",
            Sharing { nodes: 1, rounds: 3, ..READERS }),
        row("C8", Broken(22, 52_589), "1 node, 2 readers again and again, a writer without a mark (against R50)",
            Sharing { nodes: 1, rounds: 6, marks: false, overtakes: 3, ..READERS }),
        row("C9", HoldsSoFar(20_000_000), "2 readers, a writer: none overtakes it", READERS),
        row("C9a", Broken(21, 1_010_548), "the same, all readers look alike to a writer (against R54)",
            Sharing { readers_look_alike: true, ..READERS }),
        row("C10", HoldsSoFar(20_000_000), "a reader, 2 writers: none overtakes", WRITERS),
        row("C11", Broken(24, 6_420_125), "the same; a node that grants forgets the mark (against R50)",
            Sharing { grant_ends_mark: true, ..WRITERS }),
        row("C12", HoldsSoFar(20_000_000), "2 readers, a writer that gives up or dies",
            Sharing { give_ups: 1, deaths: 1, overtakes: 99, ..READERS }),
        row("C13", HoldsSoFar(8_000_000), "1 node, a reader, 2 writers, 3 times each",
            Sharing { nodes: 1, rounds: 3, writer_rounds: 3, overtakes: 99, ..WRITERS }),
        row("C14", HoldsSoFar(20_000_000), "1 permit, 3 clients", Sharing { permits: 1, clients: &[Permit; 3], ..THREE }),
        row("C15", Broken(21, 79_617), "1 node; a mark keeps out those before it in the queue, and its writer is not notified (against R51)",
            Sharing { marks_by_age: false, mark_notifies: false, ..FOUR }),
        row("C16", Holds(161_524), "the same; a client that finds the node free, but marked, notifies the writer", Sharing { marks_by_age: false, ..FOUR }),
        row("C17", HoldsSoFar(8_000_000), "2 readers, a writer; ages differ, a client that finds it marked notifies",
            Sharing { marks_by_age: false, overtakes: 99, ..READERS }),
    ]
}

/// What a node shows to a client that it denies: the holders, as a set; or one of these.
const GRANTED: u8 = 0;
const SOME_READERS: u8 = 0xFF;
const MARKED: u8 = 0xFE;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Node {
    holders: Bits,
    queue: Bits,
    /// 0: there is none; else 1 + whose.
    mark: u8,
    /// Under way.
    try_: Bits,
    release: Bits,
    undo: Bits,
    leave: Bits,
    message: Bits,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
enum Phase {
    #[default]
    Idle,
    Trying,
    Undoing,
    Asleep,
    Holding,
    Done,
    Dead,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Client {
    phase: Phase,
    /// Nodes that have notified it.
    messages: Bits,
    /// Clients that wait and came before it.
    older: Bits,
    rounds: u8,
    granted: Bits,
    shown: [u8; NODES],
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
struct State {
    nodes: [Node; NODES],
    clients: [Client; CLIENTS],
    gave_up: u8,
    died: u8,
    /// Readers that came after a mark was on enough nodes; and how many of them have overtaken its writer.
    late: Bits,
    overtook: u8,
}

fn waits(phase: Phase) -> bool {
    matches!(phase, Phase::Trying | Phase::Undoing | Phase::Asleep)
}

impl Sharing {
    fn quorum(&self) -> usize {
        self.nodes / 2 + 1
    }

    fn all(&self) -> std::ops::Range<usize> {
        0..self.clients.len()
    }

    /// The first of a node's queue.
    fn first(&self, state: &State, of: usize) -> Option<usize> {
        let queue = state.nodes[of].queue;
        let before = |at: usize| state.clients[at].older.0 & queue.0 & !(1 << at);
        self.all().find(|at| queue.has(*at) && before(*at) == 0)
    }

    /// Notifies the first that lives.
    fn notify(&self, state: &mut State, of: usize) {
        while let Some(at) = self.first(state, of) {
            state.nodes[of].queue.remove(at);
            if state.clients[at].phase != Phase::Dead {
                state.nodes[of].message.add(at);
                return;
            }
        }
    }

    /// Notifies the readers that are next.
    fn notify_readers(&self, state: &mut State, of: usize) {
        while let Some(at) = self
            .first(state, of)
            .filter(|at| self.clients[*at] == Reader)
        {
            state.nodes[of].queue.remove(at);
            if state.clients[at].phase != Phase::Dead {
                state.nodes[of].message.add(at);
            }
        }
    }

    /// Notifies the first, if it is a reader.
    fn notify_reader(&self, state: &mut State, of: usize) {
        while let Some(at) = self
            .first(state, of)
            .filter(|at| self.clients[*at] == Reader)
        {
            state.nodes[of].queue.remove(at);
            if state.clients[at].phase != Phase::Dead {
                state.nodes[of].message.add(at);
                return;
            }
        }
    }

    fn is_written(&self, node: &Node) -> bool {
        node.holders.iter().any(|at| self.clients[at] == Writer)
    }

    fn begin(&self, state: &mut State, at: usize) {
        let others = self.all().filter(|other| *other != at);
        state.clients[at].older = others
            .filter(|other| waits(state.clients[*other].phase))
            .collect();
        self.forget(state, at);
        let known = |writer: usize| {
            let knows = |node: &&Node| match self.marks {
                true => usize::from(node.mark) == writer + 1,
                false => node.queue.has(writer),
            };
            state.nodes[..self.nodes].iter().filter(knows).count()
        };
        let waiting =
            |writer: &usize| self.clients[*writer] == Writer && waits(state.clients[*writer].phase);
        let kept_out = self
            .all()
            .filter(waiting)
            .any(|writer| known(writer) > self.nodes - self.quorum());
        if self.clients[at] == Reader && kept_out {
            state.late.add(at);
        } else {
            state.late.remove(at);
        }
        self.try_(state, at);
    }

    /// It is no longer older than any other.
    fn forget(&self, state: &mut State, at: usize) {
        state
            .clients
            .iter_mut()
            .for_each(|client| client.older.remove(at));
    }

    fn try_(&self, state: &mut State, at: usize) {
        let client = &mut state.clients[at];
        *client = Client {
            phase: Phase::Trying,
            older: client.older,
            rounds: client.rounds,
            ..Client::default()
        };
        state.nodes[..self.nodes]
            .iter_mut()
            .for_each(|node| node.try_.add(at));
    }

    /// What a node shows to one that tries.
    fn show_to(&self, state: &State, of: usize, at: usize) -> u8 {
        let node = &state.nodes[of];
        let holders = node.holders;
        let keeps_out =
            |mark: u8| !self.marks_by_age || state.clients[at].older.has(usize::from(mark) - 1);
        match self.clients[at] {
            Reader if self.is_written(node) => holders.0,
            Reader if node.mark != 0 && keeps_out(node.mark) => MARKED,
            Writer if self.readers_look_alike && !holders.is_empty() && !self.is_written(node) => {
                SOME_READERS
            }
            Writer => holders.0,
            Permit if holders.len() >= self.permits => holders.0,
            Reader | Permit => GRANTED,
        }
    }

    fn answer(&self, state: &mut State, of: usize, at: usize) {
        let mark = usize::from(state.nodes[of].mark);
        let dead = mark > 0 && state.clients[mark - 1].phase == Phase::Dead;
        let node = &mut state.nodes[of];
        node.try_.remove(at);
        if self.mark_notifies && self.clients[at] == Reader && node.holders.is_empty() && dead {
            node.mark = 0;
        }
        let shown = self.show_to(state, of, at);
        let node = &mut state.nodes[of];
        state.clients[at].shown[of] = shown;
        if shown == GRANTED {
            state.clients[at].granted.add(of);
            node.holders.add(at);
            node.queue.remove(at);
            if self.grant_ends_mark && usize::from(node.mark) == at + 1 {
                node.mark = 0;
            }
            if self.clients[at] == Reader && self.readers_notify {
                self.notify_readers(state, of);
            }
            return;
        }
        node.queue.add(at);
        let mark = usize::from(node.mark);
        if shown == MARKED && node.holders.is_empty() && self.mark_notifies {
            node.message.add(mark - 1);
        }
        let may_mark = mark == 0 || mark == at + 1 || state.clients[mark - 1].older.has(at);
        if self.clients[at] == Writer && self.marks && may_mark {
            node.mark = at as u8 + 1;
        }
    }

    /// One connection: release, undo and leave are behind each other, and before the next try.
    fn node_steps(&self, state: &State, of: usize, at: usize, steps: &mut Steps<State>) {
        let node = &state.nodes[of];
        let mut new = *state;
        if node.release.has(at) {
            self.release(&mut new, of, at);
            steps.add(new, || format!("node {of}: release of {}", self.name(at)));
        } else if node.undo.has(at) {
            new.nodes[of].undo.remove(at);
            new.nodes[of].holders.remove(at);
            steps.add(new, || format!("node {of}: undo of {}", self.name(at)));
        } else if node.leave.has(at) {
            self.leave(&mut new, of, at);
            steps.add(new, || format!("node {of}: {} leaves", self.name(at)));
        } else if node.try_.has(at) {
            self.answer(&mut new, of, at);
            steps.add(new, || match new.clients[at].shown[of] {
                GRANTED => format!("node {of}: try of {}: granted", self.name(at)),
                MARKED => format!("node {of}: try of {}: marked", self.name(at)),
                _ => format!("node {of}: try of {}: denied", self.name(at)),
            });
        }
        if node.message.has(at) {
            let mut new = *state;
            new.nodes[of].message.remove(at);
            match state.clients[at].phase {
                Phase::Asleep => new.clients[at].messages.add(of),
                Phase::Trying | Phase::Undoing => {
                    if self.keeps_message {
                        new.clients[at].messages.add(of);
                    }
                }
                Phase::Holding | Phase::Dead => {}
                Phase::Idle | Phase::Done => {
                    if self.passes_on {
                        new.nodes[of].leave.add(at);
                    }
                }
            }
            steps.add(new, || {
                format!("{} is notified by node {of}", self.name(at))
            });
        }
    }

    fn release(&self, state: &mut State, of: usize, at: usize) {
        let node = &mut state.nodes[of];
        node.release.remove(at);
        let held = node.holders.take(at);
        if usize::from(node.mark) == at + 1 {
            node.mark = 0;
        }
        if held && (self.clients[at] == Permit || node.holders.is_empty()) {
            self.notify(state, of);
        }
    }

    /// Rule R51.
    fn leave(&self, state: &mut State, of: usize, at: usize) {
        let permit = self.clients[at] == Permit;
        let node = &mut state.nodes[of];
        node.leave.remove(at);
        node.queue.remove(at);
        if usize::from(node.mark) == at + 1 {
            node.mark = 0;
        }
        if !self.passes_on || self.is_written(&state.nodes[of]) {
            return;
        }
        let holders = state.nodes[of].holders;
        let any = holders.is_empty() || permit && holders.len() < self.permits;
        if permit || !self.readers_notify {
            if any {
                self.notify(state, of);
            } else {
                self.notify_reader(state, of);
            }
        } else {
            self.notify_readers(state, of);
            if any && state.nodes[of].message.is_empty() {
                self.notify(state, of);
            }
        }
    }

    /// A mark whose writer does not wait any more ends by itself, and those that it kept out look again.
    fn end_mark(&self, state: &State, of: usize, steps: &mut Steps<State>) {
        let Some(writer) = usize::from(state.nodes[of].mark).checked_sub(1) else {
            return;
        };
        if waits(state.clients[writer].phase) || state.nodes[of].leave.has(writer) {
            return;
        }
        let mut new = *state;
        new.nodes[of].mark = 0;
        for at in self.all().filter(|at| self.clients[*at] == Reader) {
            let client = &mut new.clients[at];
            if waits(client.phase) && client.shown[of] == MARKED {
                client.messages.add(of);
            }
        }
        steps.add(new, || format!("node {of}: the mark ends"));
    }

    fn client_steps(&self, state: &State, at: usize, steps: &mut Steps<State>) {
        let client = &state.clients[at];
        let busy =
            |node: &Node| Bits(node.try_.0 | node.release.0 | node.undo.0 | node.leave.0).has(at);
        let answered = !state.nodes[..self.nodes].iter().any(busy);
        let mut new = *state;
        match client.phase {
            Phase::Idle => {
                self.begin(&mut new, at);
                steps.add(new, || format!("{} asks", self.name(at)));
            }
            Phase::Trying if answered && client.granted.len() >= self.quorum() => {
                let writers = self
                    .all()
                    .any(|other| self.clients[other] == Writer && client.older.has(other));
                new.overtook += u8::from(state.late.has(at) && writers);
                new.late.remove(at);
                new.clients[at].phase = Phase::Holding;
                new.clients[at].messages = Bits::default();
                self.forget(&mut new, at);
                steps.add(new, || format!("{} HOLDS", self.name(at)));
            }
            Phase::Trying if answered => {
                new.clients[at].phase = Phase::Undoing;
                for of in client.granted.iter() {
                    new.nodes[of].undo.add(at);
                }
                steps.add(new, || format!("{} is denied", self.name(at)));
            }
            Phase::Undoing if answered => {
                let again = !client.messages.is_empty() || !self.is_held(client);
                if again {
                    self.try_(&mut new, at);
                } else {
                    new.clients[at].phase = Phase::Asleep;
                }
                steps.add(new, || {
                    format!(
                        "{} {}",
                        self.name(at),
                        if again { "tries again" } else { "sleeps" }
                    )
                });
            }
            Phase::Asleep => {
                if !client.messages.is_empty() {
                    self.try_(&mut new, at);
                    steps.add(new, || format!("{} wakes", self.name(at)));
                }
                self.give_up_or_die(state, at, steps);
            }
            Phase::Holding => {
                let rounds = match self.clients[at] {
                    Writer => self.writer_rounds,
                    Reader | Permit => self.rounds,
                };
                let again = client.rounds + 1 < rounds;
                new.clients[at] = Client {
                    phase: if again { Phase::Idle } else { Phase::Done },
                    rounds: client.rounds + 1,
                    ..Client::default()
                };
                new.nodes[..self.nodes]
                    .iter_mut()
                    .for_each(|node| node.release.add(at));
                steps.add(new, || format!("{} releases", self.name(at)));
            }
            _ => {}
        }
    }

    /// Nothing but what others do can change the answer.
    fn is_held(&self, client: &Client) -> bool {
        let shown = &client.shown[..self.nodes];
        let nodes = |what: u8| shown.iter().filter(|other| **other == what).count();
        let marked = nodes(MARKED);
        let by_mark = marked > 0 && marked + client.granted.len() >= self.quorum();
        let holders = shown
            .iter()
            .filter(|what| ![GRANTED, MARKED].contains(*what));
        by_mark
            || holders
                .into_iter()
                .any(|what| nodes(*what) >= self.quorum())
    }

    fn give_up_or_die(&self, state: &State, at: usize, steps: &mut Steps<State>) {
        if state.gave_up < self.give_ups {
            let mut new = *state;
            new.gave_up += 1;
            new.clients[at] = Client {
                phase: Phase::Done,
                ..Client::default()
            };
            new.late.remove(at);
            self.forget(&mut new, at);
            new.nodes[..self.nodes]
                .iter_mut()
                .for_each(|node| node.leave.add(at));
            steps.add(new, || format!("{} gives up", self.name(at)));
        }
        let notified = state.nodes[..self.nodes]
            .iter()
            .any(|node| node.message.has(at));
        if state.died < self.deaths && state.clients[at].messages.is_empty() && !notified {
            let mut new = *state;
            new.died += 1;
            new.clients[at] = Client {
                phase: Phase::Dead,
                older: state.clients[at].older,
                ..Client::default()
            };
            steps.add(new, || format!("{} dies", self.name(at)));
        }
    }

    fn name(&self, at: usize) -> String {
        let kind = ["reader", "writer", "client"][self.clients[at] as usize];
        format!("{kind} {at}")
    }

    fn go_on(&self, state: &State, steps: &mut Steps<State>) {
        for of in 0..self.nodes {
            for at in self.all() {
                self.node_steps(state, of, at, steps);
            }
            self.end_mark(state, of, steps);
        }
        for at in self.all() {
            self.client_steps(state, at, steps);
        }
    }
}

impl World for Sharing {
    type State = State;

    fn beginnings(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn steps(&self, state: &State, steps: &mut Steps<State>) {
        self.go_on(state, steps);
    }

    fn violation(&self, state: &State) -> Option<&'static str> {
        if state.overtook > self.overtakes {
            return Some("readers that came later overtook a waiting writer");
        }
        if !state
            .clients
            .iter()
            .any(|client| client.phase == Phase::Asleep)
        {
            return None;
        }
        // That clients may give up or die helps no client.
        let patient = Sharing {
            give_ups: 0,
            deaths: 0,
            ..*self
        };
        let mut steps = Steps::new(false);
        patient.go_on(state, &mut steps);
        steps
            .is_empty()
            .then_some("a lost notification: a client sleeps, and nothing is under way")
    }

    fn show(&self, state: &State) -> String {
        let mut text = String::new();
        for node in &state.nodes[..self.nodes] {
            let (holders, queue) = (node.holders.0, node.queue.0);
            text += &format!(
                "[holders {holders:04b} queue {queue:04b} mark {}] ",
                node.mark
            );
        }
        for client in &state.clients[..self.clients.len()] {
            let phase = [
                "idle", "trying", "undoing", "ASLEEP", "HOLDS", "done", "dead",
            ][client.phase as usize];
            text += &format!(" {phase}");
        }
        text
    }
}
