//! Clocks of nodes that are set forward and back (rules R56–R60).
//!
//! A node ends its key by its own clock, and so does the age that its uptime or its witness shows. At any moment a clock is set, the clock of one
//! node or all alike; a node loses its key; a connection is cut. SET and the look behind it are steps of their own. All clocks run alike
//! otherwise, and an extension is one step. No two clients may believe at once that they have the lock.

use crate::explorer::{Steps, World};
use crate::table::{Broken, Holds, Row, row};

const NODES: usize = 3;
const CLIENTS: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
struct Node {
    /// The client that has the key, counted from 1, and what is left of it by the node's clock.
    holder: u8,
    left: u8,
    clock: i8,
    /// Since when it may have lost a key, by its clock.
    age: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
enum Link {
    #[default]
    Never,
    Connected,
    Cut,
    /// The server has lost its key since.
    Lost,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
enum Vote {
    #[default]
    None,
    Granted,
    Counts,
    /// The client has looked before it acquires (against R56).
    Looked,
}

/// What a client knows of a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
struct Known {
    link: Link,
    /// What the node's clock shows at most (R57).
    bound: i8,
    /// For how long the node grants nothing (R15, R59).
    wait: u8,
    vote: Vote,
    /// A vote has counted, and the key was not sent anew since (R60).
    counted: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Client {
    /// How long its lock is valid, and how long one would be that it is about to get.
    valid: u8,
    tries: u8,
    known: [Known; NODES],
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    nodes: [Node; NODES],
    clients: [Client; CLIENTS],
    /// What may still happen.
    forward: u8,
    back: u8,
    losses: u8,
    cuts: u8,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Counts {
    Nowhere,
    WhereCounted,
    WhereverHeld,
}

#[allow(clippy::struct_excessive_bools)]
#[derive(Clone, Copy)]
struct Clocks {
    nodes: usize,
    /// Of a key, and the longest of any.
    ttl: u8,
    /// What a holder does not use of it.
    margin: u8,
    watches: bool,
    wait: u8,
    /// A smaller step is not noticed.
    tolerance: i8,
    last_look_only: bool,
    looks_first: bool,
    forgets_with_connection: bool,
    /// Holders extend, and after so much of the validity they must; and what counts where a clock was set.
    extends: bool,
    kept: u8,
    behind_step: Counts,
    refills: bool,
    all_alike: bool,
    /// Clocks are set only while there is no key.
    idle: bool,
    largest: u8,
    forward: u8,
    back: u8,
    losses: u8,
    cuts: u8,
    /// Whether each client is connected at the beginning.
    knows: [bool; CLIENTS],
}

const ONE: Clocks = Clocks {
    nodes: 1,
    ttl: 3,
    margin: 0,
    watches: true,
    wait: 3,
    tolerance: 0,
    last_look_only: false,
    looks_first: false,
    forgets_with_connection: false,
    extends: false,
    kept: 0,
    behind_step: Counts::WhereCounted,
    refills: false,
    all_alike: false,
    idle: false,
    largest: 3,
    forward: 1,
    back: 0,
    losses: 0,
    cuts: 0,
    knows: [true, true],
};

const THREE: Clocks = Clocks {
    nodes: 3,
    ttl: 2,
    wait: 2,
    largest: 2,
    extends: true,
    ..ONE
};
const UNWATCHED: Clocks = Clocks {
    watches: false,
    ..ONE
};
const NEWCOMER: [bool; CLIENTS] = [true, false];

#[rustfmt::skip] // A row on two lines.
pub(crate) fn rows() -> Vec<Row> {
    vec![
        row("C0.1", Broken(9, 780), "one node, unwatched, one step", UNWATCHED),
        row("C0.4", Holds(222), "one node, unwatched: the validity is 1 shorter, a step of 1", Clocks { largest: 1, margin: 1, ..UNWATCHED }),
        row("C0.7", Broken(10, 294), "the same, a step of 2", Clocks { largest: 2, margin: 1, ..UNWATCHED }),
        row("C0.9", Holds(198), "unwatched, ttl 4, kept locks, extended at 1: a step of 2", Clocks { ttl: 4, wait: 4, largest: 2, extends: true, kept: 1, ..UNWATCHED }),
        row("C0.10", Broken(10, 270), "the same, a step of 3", Clocks { ttl: 4, wait: 4, largest: 3, extends: true, kept: 1, ..UNWATCHED }),
        row("C1.1", Holds(9_312), "one node, a step of any size (R56, R57, R59)", ONE),
        row("C1.2", Holds(226_147), "the same, three steps, extensions (R60)", Clocks { forward: 3, extends: true, ..ONE }),
        row("C1.3", Holds(499_606), "two steps, connections are cut (R58)", Clocks { forward: 2, cuts: 2, extends: true, ..ONE }),
        row("C1.4", Holds(1_750_160), "the same, and it loses its key, twice (R17, R58)", Clocks { forward: 2, losses: 2, cuts: 1, extends: true, ..ONE }),
        row("C1.6", Holds(57_046), "three nodes, one step (R56 to R60)", THREE),
        row("C1.7", Holds(1_469_259), "three nodes, all clocks at once (R56 to R60)", Clocks { all_alike: true, ..THREE }),
        row("C1.8", Holds(1_464_467), "three nodes, two steps, refills (R60)", Clocks { forward: 2, refills: true, ..THREE }),
        row("C1.9", Holds(1_294_509), "three nodes, a step and a loss, refills (R60)", Clocks { losses: 1, refills: true, ..THREE }),
        row("C2.1", Broken(9, 7_843), "the look goes before the acquire (against R56)", Clocks { looks_first: true, ..ONE }),
        row("C2.2", Broken(12, 8_164), "a shorter wait (against R59)", Clocks { wait: 2, ..ONE }),
        row("C2.3", Broken(11, 36_791), "the bound ends with the connection (against R58)", Clocks { forgets_with_connection: true, cuts: 1, ..ONE }),
        row("C2.4", Broken(12, 4_582), "only the last look counts: two small steps (against R57)", Clocks { largest: 1, margin: 1, tolerance: 1, last_look_only: true, forward: 2, ..ONE }),
        row("C2.7", Broken(11, 526), "nothing covers what is not noticed (against R3)", Clocks { largest: 1, tolerance: 1, ..ONE }),
        row("C2.8", Broken(13, 92_785), "three nodes, the look goes before the acquire (against R56)", Clocks { looks_first: true, extends: false, ..THREE }),
        row("C2.10", Broken(19, 1_454_860), "an extension counts wherever the key is: two steps (against R60)", Clocks { forward: 2, behind_step: Counts::WhereverHeld, ..THREE }),
        row("C2.11", Broken(19, 1_272_028), "the same, a step and a loss (against R60)", Clocks { losses: 1, behind_step: Counts::WhereverHeld, ..THREE }),
        row("C2.12", Holds(862_860), "on the only node an extension counts wherever the key is (R60)", Clocks { forward: 3, cuts: 1, extends: true, behind_step: Counts::WhereverHeld, ..ONE }),
        row("C2.13", Holds(1_464_955), "three nodes, two steps: behind a step no extension counts (R60 is for liveness)", Clocks { forward: 2, behind_step: Counts::Nowhere, refills: true, ..THREE }),
        row("C3.1", Broken(10, 71_940), "forward and back between two looks: not covered", Clocks { back: 1, ..ONE }),
        row("C3.2", Broken(10, 9_465), "a client that has just started: not covered", Clocks { knows: NEWCOMER, ..ONE }),
        row("C6.2", Broken(11, 33_227), "a loss, a step, and a client that has just started: not covered (R15 is by the node's clock)", Clocks { losses: 1, idle: true, knows: NEWCOMER, ..ONE }),
        row("C6.3", Holds(24_480), "the same, and all have been connected before the loss (R17)", Clocks { losses: 2, forward: 2, idle: true, watches: false, ..ONE }),
    ]
}

impl Clocks {
    fn quorum(&self) -> usize {
        self.nodes / 2 + 1
    }

    fn validity(&self) -> u8 {
        self.ttl - self.margin
    }

    /// A look at a node's clock.
    fn look(&self, state: &mut State, client: usize, at: usize) {
        let (node, known) = (state.nodes[at], &mut state.clients[client].known[at]);
        if !self.watches {
            return;
        }
        if node.clock > known.bound.saturating_add(self.tolerance) {
            known.wait = known.wait.max(self.wait);
            known.bound = node.clock;
        } else if self.last_look_only || node.clock <= known.bound {
            known.bound = node.clock;
        }
    }

    fn connect(&self, state: &mut State, client: usize, at: usize) {
        let (node, known) = (state.nodes[at], &mut state.clients[client].known[at]);
        let before = std::mem::replace(&mut known.link, Link::Connected);
        match before {
            Link::Cut if !self.forgets_with_connection => self.look(state, client, at),
            Link::Lost => (known.bound, known.wait) = (node.clock, self.ttl),
            _ => (known.bound, known.wait) = (node.clock, self.ttl - node.age.min(self.ttl)),
        }
    }

    /// Time passes, or the node's clock is set.
    fn pass(&self, node: &mut Node, by: i8) {
        let moved = |time: u8, by: i8, most: u8| {
            let sum = i16::from(time) + i16::from(by);
            u8::try_from(sum.clamp(0, i16::from(most))).unwrap_or(most)
        };
        node.age = moved(node.age, by, self.ttl);
        if node.left > 0 {
            node.left = moved(node.left, -by, 9);
        }
        if node.left == 0 {
            node.holder = 0;
        }
    }

    /// Makes alike what makes no difference.
    fn add(&self, mut state: State, steps: &mut Steps<State>, describe: impl FnOnce() -> String) {
        for at in 0..self.nodes {
            let clock = std::mem::take(&mut state.nodes[at].clock);
            for client in &mut state.clients {
                let valid = client.valid > 0 && self.extends;
                let known = &mut client.known[at];
                known.bound -= clock;
                known.counted &= valid;
                if known.link == Link::Never || !self.watches {
                    known.bound = 0;
                }
            }
            let known = |client: &Client| client.known[at].link != Link::Never;
            if state.clients.iter().all(known) && !self.forgets_with_connection {
                state.nodes[at].age = 0;
            }
        }
        for _ in 1..self.nodes {
            for at in 1..self.nodes {
                let of = |at: usize| (state.nodes[at], state.clients.map(|one| one.known[at]));
                if of(at) < of(at - 1) {
                    state.nodes.swap(at, at - 1);
                    let clients = state.clients.iter_mut();
                    clients.for_each(|client| client.known.swap(at, at - 1));
                }
            }
        }
        steps.add(state, describe);
    }

    fn time(&self, state: &State, steps: &mut Steps<State>) {
        let late = |left: u8| self.kept > 0 && left > 0 && self.validity() - left >= self.kept;
        if state
            .clients
            .iter()
            .any(|one| late(one.valid) || late(one.tries))
        {
            return;
        }
        let mut new = *state;
        for node in &mut new.nodes[..self.nodes] {
            self.pass(node, 1);
        }
        for at in 0..CLIENTS {
            let client = &mut new.clients[at];
            client.valid = client.valid.saturating_sub(1);
            for known in &mut client.known {
                known.wait = known.wait.saturating_sub(1);
            }
            if client.tries > 0 {
                client.tries -= 1;
                if client.tries == 0 {
                    give_up(&mut new, at);
                }
            }
        }
        self.add(new, steps, || "time passes".into());
    }

    fn set_clocks(&self, state: &State, steps: &mut Steps<State>) {
        if self.idle && state.nodes.iter().any(|node| node.left > 0) {
            return;
        }
        for by in (1..=self.largest as i8).flat_map(|by| [by, -by]) {
            if (if by > 0 { state.forward } else { state.back }) == 0 {
                continue;
            }
            for at in 0..if self.all_alike { 1 } else { self.nodes } {
                let mut new = *state;
                match by > 0 {
                    true => new.forward -= 1,
                    false => new.back -= 1,
                }
                let which = if self.all_alike {
                    0..self.nodes
                } else {
                    at..at + 1
                };
                for node in &mut new.nodes[which] {
                    node.clock += by;
                    self.pass(node, by);
                }
                self.add(new, steps, || {
                    format!("the clock of node {at} is set by {by}")
                });
            }
        }
    }

    fn lose(&self, state: &State, steps: &mut Steps<State>) {
        for at in 0..if state.losses > 0 { self.nodes } else { 0 } {
            let mut new = *state;
            new.losses -= 1;
            let node = &mut new.nodes[at];
            (node.holder, node.left, node.age) = (0, 0, 0);
            for client in &mut new.clients {
                let known = &mut client.known[at];
                if known.link != Link::Never {
                    known.link = Link::Lost;
                }
                if known.vote != Vote::Counts {
                    known.vote = Vote::None;
                }
            }
            self.add(new, steps, || format!("node {at} loses its key"));
        }
    }

    fn extend(&self, state: &State, client: usize, steps: &mut Steps<State>) {
        let (mut new, mut held, mut gone) = (*state, 0, 0);
        for at in 0..self.nodes {
            if state.clients[client].known[at].link != Link::Connected {
                continue;
            }
            self.look(&mut new, client, at);
            let (node, known) = (&mut new.nodes[at], &mut new.clients[client].known[at]);
            if usize::from(node.holder) != client + 1 {
                gone += 1;
                known.counted = false;
                continue;
            }
            node.left = node.left.max(self.ttl);
            let counts = known.wait == 0
                || match self.behind_step {
                    Counts::Nowhere => false,
                    Counts::WhereCounted => known.counted || self.nodes == 1,
                    Counts::WhereverHeld => true,
                };
            known.counted |= counts;
            held += usize::from(counts);
        }
        if held >= self.quorum() {
            new.clients[client].valid = self.validity();
            let refills = if self.refills { self.nodes } else { 0 };
            for node in new.nodes[..refills]
                .iter_mut()
                .filter(|node| node.holder == 0)
            {
                (node.holder, node.left) = (client as u8 + 1, self.ttl);
            }
        } else if gone > self.nodes - self.quorum() || self.kept > 0 {
            new.clients[client].valid = 0;
        }
        self.add(new, steps, || format!("client {client} extends"));
    }

    fn call(&self, state: &State, client: usize, steps: &mut Steps<State>) {
        let own = state.clients[client];
        if self.watches {
            let mut new = *state;
            for at in (0..self.nodes).filter(|at| own.known[*at].link == Link::Connected) {
                self.look(&mut new, client, at);
            }
            self.add(new, steps, || format!("client {client} looks"));
        }
        if own.valid > 0 || own.tries > 0 {
            let mut new = *state;
            new.clients[client].valid = 0;
            give_up(&mut new, client);
            for at in 0..self.nodes {
                undo(&mut new, client, at);
            }
            self.add(new, steps, || format!("client {client} releases"));
        } else {
            let mut new = *state;
            new.clients[client].tries = self.validity();
            self.add(new, steps, || format!("client {client} begins to try"));
        }
        let votes = own.known.iter().filter(|known| known.vote == Vote::Counts);
        if own.tries > 0 && votes.count() >= self.quorum() {
            let mut new = *state;
            new.clients[client].valid = own.tries;
            for known in &mut new.clients[client].known {
                known.counted = known.vote == Vote::Counts;
            }
            give_up(&mut new, client);
            self.add(new, steps, || format!("client {client} HAS it"));
        }
        if own.valid > 0 && self.extends {
            self.extend(state, client, steps);
        }
    }

    fn connection(&self, state: &State, client: usize, at: usize, steps: &mut Steps<State>) {
        let (own, node) = (state.clients[client], state.nodes[at]);
        let known = own.known[at];
        if known.link != Link::Connected {
            let mut new = *state;
            self.connect(&mut new, client, at);
            return self.add(new, steps, || format!("client {client} connects to {at}"));
        }
        if state.cuts > 0 {
            let mut new = *state;
            new.cuts -= 1;
            let cut = &mut new.clients[client].known[at];
            cut.link = Link::Cut;
            if known.vote != Vote::Counts {
                cut.vote = Vote::None;
            }
            self.add(new, steps, || {
                format!("client {client} and {at} are cut off")
            });
        }
        let [before_set, before_look, set, looked] = match self.looks_first {
            true => [Vote::Looked, Vote::None, Vote::Counts, Vote::Looked],
            false => [Vote::None, Vote::Granted, Vote::Granted, Vote::Counts],
        };
        if own.tries > 0 && node.holder == 0 && known.vote == before_set {
            let mut new = *state;
            (new.nodes[at].holder, new.nodes[at].left) = (client as u8 + 1, self.ttl);
            new.clients[client].known[at].vote = set;
            self.add(new, steps, || format!("node {at} grants it to {client}"));
        }
        if own.tries > 0 && known.vote == before_look {
            let mut new = *state;
            self.look(&mut new, client, at);
            let waits = new.clients[client].known[at].wait > 0;
            new.clients[client].known[at].vote = if waits { Vote::None } else { looked };
            if waits {
                undo(&mut new, client, at);
            }
            self.add(new, steps, || {
                format!("client {client} looks at {at}: {waits}")
            });
        }
    }
}

fn give_up(state: &mut State, client: usize) {
    let client = &mut state.clients[client];
    client.tries = 0;
    client
        .known
        .iter_mut()
        .for_each(|known| known.vote = Vote::None);
}

fn undo(state: &mut State, client: usize, at: usize) {
    let node = &mut state.nodes[at];
    if usize::from(node.holder) == client + 1 {
        (node.holder, node.left) = (0, 0);
    }
}

impl World for Clocks {
    type State = State;

    fn beginnings(&self) -> Vec<State> {
        let client = |knows: bool| {
            let mut client = Client::default();
            if knows {
                client.known[..self.nodes]
                    .iter_mut()
                    .for_each(|one| one.link = Link::Connected);
            }
            client
        };
        let all_known = self.knows == [true, true] && !self.forgets_with_connection;
        let node = Node {
            age: if all_known { 0 } else { self.ttl },
            ..Node::default()
        };
        let mut nodes = [Node::default(); NODES];
        nodes[..self.nodes].fill(node);
        vec![State {
            nodes,
            clients: self.knows.map(client),
            forward: self.forward,
            back: self.back,
            losses: self.losses,
            cuts: self.cuts,
        }]
    }

    fn steps(&self, state: &State, steps: &mut Steps<State>) {
        self.time(state, steps);
        self.set_clocks(state, steps);
        self.lose(state, steps);
        for client in 0..CLIENTS {
            self.call(state, client, steps);
            for at in 0..self.nodes {
                self.connection(state, client, at, steps);
            }
        }
    }

    fn violation(&self, state: &State) -> Option<&'static str> {
        let holders = state.clients.iter().filter(|client| client.valid > 0);
        (holders.count() > 1).then_some("two holders")
    }

    fn show(&self, state: &State) -> String {
        let node = |node: &Node| format!("{}:{}", node.holder, node.left);
        let nodes: Vec<String> = state.nodes[..self.nodes].iter().map(node).collect();
        let client = |one: &Client| format!("valid {} tries {}", one.valid, one.tries);
        format!(
            "{} | {}",
            nodes.join(" "),
            state
                .clients
                .iter()
                .map(client)
                .collect::<Vec<_>>()
                .join(", ")
        )
    }
}
