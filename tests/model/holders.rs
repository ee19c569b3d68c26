//! Locks beyond the mutex (rules R47–R49, R52): which clients may hold at the same time.
//!
//! An attempt wants one of some slots (a permit of a semaphore), some names (a write lock is a lock of one name), or to read
//! names. There is no time: what an attempt has set on a node lives as long as its holder believes in it, at least, so entries
//! vanish only after that, one by one. Messages arrive at any time or never, and a release follows what it undoes. A restart
//! empties a node; with the guard it gives no votes until everything that was believed at that time is over. An extension
//! begins another belief.

use crate::bits::{Bits, letter};
use crate::explorer::{Steps, World};
use crate::table::{Broken, Holds, HoldsSoFar, Row, row};

const NODES: usize = 5;
const ATTEMPTS: usize = 4;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Want {
    /// Any one of this number of slots.
    Permit(u8),
    /// All of these names, for itself.
    Write(u8),
    Read(u8),
}

use Want::{Permit, Read, Write};

#[derive(Clone, Copy)]
struct Holders {
    nodes: usize,
    wanted: &'static [Want],
    /// The number of clients that may hold at the same time, where no names say more.
    most: usize,
    /// The first attempt is a claim, which the second one converts into a lock.
    claim: bool,
    /// A permit is q grants of the same slot (rule R47).
    same_slot: bool,
    /// The wrong semaphore: nodes know no slots and count up to this number of holders; 0: they know slots.
    counts: usize,
    restarts: u8,
    guard: bool,
    extends: bool,
    /// An extension counts only nodes that have the same slot (rule R48).
    extends_same_slot: bool,
    /// An acquire may be delivered twice.
    doubled: bool,
    /// What no client owns, with nothing under way that ends it, is wrong.
    no_orphans: bool,
    /// Claims are released where they were not converted (rule R52).
    releases_claim: bool,
    /// Only nodes whose grant was seen are sent the release of an attempt that failed (against rule R6).
    releases_seen_only: bool,
}

const PLAIN: Holders = Holders {
    nodes: 3,
    wanted: &[],
    most: 99,
    claim: false,
    same_slot: true,
    counts: 0,
    restarts: 0,
    guard: true,
    extends: false,
    extends_same_slot: true,
    doubled: false,
    no_orphans: false,
    releases_claim: true,
    releases_seen_only: false,
};
const PERMITS: Holders = Holders {
    wanted: &[Permit(2); 3],
    most: 2,
    ..PLAIN
};
const COUNTED: Holders = Holders {
    counts: 2,
    ..PERMITS
};
const RESTARTED: Holders = Holders {
    wanted: &[Permit(2); 2],
    restarts: 1,
    extends: true,
    ..PERMITS
};

#[rustfmt::skip] // A row on two lines.
pub(crate) fn rows() -> Vec<Row> {
    vec![
        row("B1", Broken(12, 37_424), "2 permits: nodes count holders (against R47)", COUNTED),
        row("B2", Broken(15, 1_151_786), "the same, 5 nodes", Holders { nodes: 5, ..COUNTED }),
        row("B3", Holds(853_889), "2 slots, 3 contenders (R47)", PERMITS),
        row("B3s", Holds(7_862), "2 slots, 2 contenders", Holders { wanted: &[Permit(2); 2], ..PERMITS }),
        row("B4", HoldsSoFar(8_000_000), "3 slots, 3 contenders", Holders { wanted: &[Permit(3); 3], most: 3, ..PLAIN }),
        row("B5", Broken(8, 41_626), "2 slots; q grants of any slots are believed (against R47)", Holders { same_slot: false, ..PERMITS }),
        row("B5s", Broken(8, 3_926), "the same, 1 slot and 2 contenders for 2", Holders { same_slot: false, wanted: &[Permit(2), Permit(2)], most: 1, ..PLAIN }),
        row("B6", Holds(388_191), "clients differ: 1 slot and 2 slots", Holders { wanted: &[Permit(1), Permit(2), Permit(2)], ..PERMITS }),
        row("B7", HoldsSoFar(8_000_000), "2 slots, an acquire is delivered twice", Holders { doubled: true, ..PERMITS }),
        row("B8", Holds(8_636), "5 nodes, 1 slot, 2 contenders", Holders { nodes: 5, wanted: &[Permit(1); 2], most: 1, ..PLAIN }),
        row("B9", Holds(133_055), "2 slots, 2 contenders, a restart with the guard, extensions", RESTARTED),
        row("B10", Broken(9, 26_282), "the same without the guard", Holders { guard: false, ..RESTARTED }),
        row("B11", Broken(15, 115_312), "the same with the guard; an extension counts any slot (against R48)",
            Holders { extends_same_slot: false, ..RESTARTED }),
        row("B12", Holds(853_889), "2 slots, 3 contenders: no orphans", Holders { no_orphans: true, ..PERMITS }),
        row("B13", Broken(3, 70), "no release to nodes whose grant was not seen (against R6)",
            Holders { no_orphans: true, releases_seen_only: true, wanted: &[Permit(2); 2], ..PERMITS }),
        row("B20", Holds(2_567_570), "2 readers, 2 writers (R49)", Holders { wanted: &[Read(1), Read(1), Write(1), Write(1)], ..PLAIN }),
        row("B21", Holds(8_636), "5 nodes, a reader, a writer", Holders { nodes: 5, wanted: &[Read(1), Write(1)], ..PLAIN }),
        row("B22", Broken(9, 3_321), "a reader, a writer, a restart without the guard",
            Holders { restarts: 1, guard: false, wanted: &[Read(1), Write(1)], ..PLAIN }),
        row("B23", Holds(472_666), "2 readers, a writer, 2 restarts with the guard",
            Holders { restarts: 2, wanted: &[Read(1), Read(1), Write(1)], ..PLAIN }),
        row("B24", Holds(9_893), "a reader, a writer, a restart with the guard, extensions",
            Holders { restarts: 1, extends: true, wanted: &[Read(1), Write(1)], ..PLAIN }),
        row("B25", Holds(65_775), "2 readers, a writer: no orphans",
            Holders { no_orphans: true, wanted: &[Read(1), Read(1), Write(1)], ..PLAIN }),
        row("B25s", Holds(1_221), "a reader, a writer: no orphans", Holders { no_orphans: true, wanted: &[Read(1), Write(1)], ..PLAIN }),
        row("B30", Holds(847_255), "{a,b} {b,c} {a,c}", Holders { wanted: &[Write(3), Write(6), Write(5)], ..PLAIN }),
        row("B31", Holds(175_273), "{a,b}, a lock of b, a reader of a", Holders { wanted: &[Write(3), Write(2), Read(1)], ..PLAIN }),
        row("B32", Holds(847_255), "{a,b} {b,c} {a,c}: no orphans",
            Holders { no_orphans: true, wanted: &[Write(3), Write(6), Write(5)], ..PLAIN }),
        row("B33", Holds(38_296), "a claim of a, then {a,b} with it; another {a,b} (R52)",
            Holders { claim: true, no_orphans: true, wanted: &[Write(1), Write(3), Write(3)], ..PLAIN }),
        row("B34", Broken(8, 1_211), "the same, the claim is not released where it was not converted (against R52)",
            Holders { claim: true, no_orphans: true, releases_claim: false, wanted: &[Write(1), Write(3), Write(3)], ..PLAIN }),
        row("B35", Holds(33_809), "{a,b} {b,c}, 2 restarts with the guard", Holders { restarts: 2, wanted: &[Write(3), Write(6)], ..PLAIN }),
    ]
}

/// The claim, and the attempt that converts it.
const CLAIM: usize = 0;
const CONVERSION: usize = 1;

/// What a node has of an attempt, and what is under way between the two.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
struct Entry {
    /// Slots or names that it has.
    has: Bits,
    /// It has the extension's lifetime.
    extended: bool,
    acquire: bool,
    doubled: bool,
    extend: bool,
    release: bool,
    /// The grant was seen, and what it gave; the vote on the extension was seen.
    seen: bool,
    given: Bits,
    extend_seen: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
struct Node {
    entries: [Entry; ATTEMPTS],
    /// Beliefs that must end before it votes: the first of each attempt, and from bit 4 on the extended ones.
    waits_for: Bits,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
enum Phase {
    #[default]
    Idle,
    Acquiring,
    Holding,
    Over,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Attempt {
    phase: Phase,
    holds: Bits,
    extending: bool,
    extended: bool,
    /// The time of its first belief is over: it holds by its extension alone.
    first_over: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
struct State {
    nodes: [Node; NODES],
    attempts: [Attempt; ATTEMPTS],
    restarts: u8,
}

impl Holders {
    fn quorum(&self) -> usize {
        self.nodes / 2 + 1
    }

    fn reads(&self, at: usize) -> bool {
        matches!(self.wanted[at], Read(_))
    }

    fn is_claim_of(&self, claim: usize, at: usize) -> bool {
        self.claim && claim == CLAIM && at == CONVERSION
    }

    /// Beliefs that may still be alive.
    fn beliefs(&self, state: &State) -> Bits {
        let mut beliefs = Bits::default();
        for (at, attempt) in state.attempts.iter().enumerate() {
            if matches!(attempt.phase, Phase::Acquiring | Phase::Holding) {
                if !attempt.first_over {
                    beliefs.add(at);
                }
                if attempt.extending || attempt.extended {
                    beliefs.add(ATTEMPTS + at);
                }
            }
        }
        beliefs
    }

    /// All that a node may give; nothing if it denies.
    fn grants(&self, node: &Node, at: usize) -> Vec<Bits> {
        let (mut written, mut read) = (0, 0);
        for other in (0..self.wanted.len()).filter(|other| !self.is_claim_of(*other, at)) {
            let has = node.entries[other].has.0;
            if self.reads(other) {
                read |= has;
            } else {
                written |= has;
            }
        }
        let free = |names: u8, taken: u8| (names & taken == 0).then_some(Bits(names));
        match self.wanted[at] {
            Permit(_) if self.counts > 0 => {
                let holders = node
                    .entries
                    .iter()
                    .filter(|entry| !entry.has.is_empty())
                    .count();
                (holders < self.counts)
                    .then_some(Bits(1))
                    .into_iter()
                    .collect()
            }
            Permit(slots) => (0..slots)
                .filter_map(|slot| free(1 << slot, written | read))
                .collect(),
            Write(names) => free(names, written | read).into_iter().collect(),
            Read(names) => free(names, written).into_iter().collect(),
        }
    }

    fn add(&self, steps: &mut Steps<State>, mut state: State, describe: impl FnOnce() -> String) {
        let beliefs = self.beliefs(&state);
        for node in &mut state.nodes[..self.nodes] {
            node.waits_for.0 &= beliefs.0;
            for (entry, attempt) in node.entries.iter_mut().zip(&state.attempts) {
                if attempt.phase >= Phase::Holding {
                    (entry.seen, entry.given) = (false, Bits::default());
                }
                if attempt.phase == Phase::Over {
                    (entry.extend_seen, entry.extend) = (false, false);
                }
                if entry.has.is_empty() {
                    entry.extended = false;
                    if !entry.acquire && !entry.extend && !entry.doubled {
                        entry.release = false;
                    }
                }
            }
        }
        state.nodes[..self.nodes].sort_unstable();
        steps.add(state, describe);
    }

    fn node_steps(&self, state: &State, of: usize, at: usize, steps: &mut Steps<State>) {
        let entry = &state.nodes[of].entries[at];
        let attempt = &state.attempts[at];
        if entry.acquire || entry.doubled {
            self.acquire(state, of, at, steps);
        }
        if entry.extend && !entry.acquire {
            let quarantine = self.guard && !state.nodes[of].waits_for.is_empty();
            let same = !self.extends_same_slot || entry.has.0 & attempt.holds.0 == attempt.holds.0;
            let has = !entry.has.is_empty() && !quarantine && same;
            let mut new = *state;
            let entry = &mut new.nodes[of].entries[at];
            entry.extend = false;
            if has {
                entry.extended = true;
                entry.extend_seen |= attempt.phase == Phase::Holding;
            }
            self.add(steps, new, || {
                let answer = if has { "extended" } else { "not held" };
                format!("node {of}: extension of {}: {answer}", letter(at))
            });
        }
        if entry.release && !entry.acquire && !entry.extend {
            let mut new = *state;
            let entry = &mut new.nodes[of].entries[at];
            (entry.release, entry.has) = (false, Bits::default());
            self.add(steps, new, || {
                format!("node {of}: release of {}", letter(at))
            });
        }
        let over = attempt.phase == Phase::Over || !entry.extended && attempt.first_over;
        if over && !entry.acquire {
            for bit in entry.has.iter() {
                let mut new = *state;
                new.nodes[of].entries[at].has.remove(bit);
                self.add(steps, new, || {
                    format!("node {of}: {bit} of {} expires", letter(at))
                });
            }
        }
    }

    fn acquire(&self, state: &State, of: usize, at: usize, steps: &mut Steps<State>) {
        let node = &state.nodes[of];
        let first = node.entries[at].acquire;
        let quarantine = self.guard && !node.waits_for.is_empty();
        let grants = if quarantine {
            Vec::new()
        } else {
            self.grants(node, at)
        };
        let mut answers = Vec::new();
        let mut arrived = *state;
        let entry = &mut arrived.nodes[of].entries[at];
        if first {
            entry.acquire = false;
        } else {
            entry.doubled = false;
        }
        if grants.is_empty() {
            answers.push((Bits::default(), arrived));
        }
        for given in grants {
            let mut new = arrived;
            let node = &mut new.nodes[of];
            if at == CONVERSION && self.claim {
                node.entries[CLAIM].has.0 &= !given.0;
            }
            node.entries[at].has.0 |= given.0;
            answers.push((given, new));
            if state.attempts[at].phase == Phase::Acquiring {
                let entry = &mut new.nodes[of].entries[at];
                (entry.seen, entry.given) = (true, given);
                answers.push((given, new));
            }
        }
        for (given, new) in answers {
            let describe = || {
                let answer = if given.is_empty() {
                    "denied".into()
                } else {
                    format!("granted {:03b}", given.0)
                };
                format!("node {of}: acquire of {}: {answer}", letter(at))
            };
            let mut once = new;
            if first && self.doubled {
                let mut twice = new;
                twice.nodes[of].entries[at].doubled = true;
                self.add(steps, twice, describe);
            }
            once.nodes[of].entries[at].doubled = false;
            self.add(steps, once, describe);
        }
    }

    fn restart(&self, state: &State, of: usize, steps: &mut Steps<State>) {
        let mut new = *state;
        new.restarts += 1;
        let beliefs = self.beliefs(state);
        let node = &mut new.nodes[of];
        node.waits_for = beliefs;
        for entry in &mut node.entries[..self.wanted.len()] {
            *entry = Entry {
                release: entry.release,
                seen: entry.seen,
                given: entry.given,
                extend_seen: entry.extend_seen,
                ..Entry::default()
            };
        }
        self.add(steps, new, || format!("node {of} restarts empty"));
    }

    fn attempt_steps(&self, state: &State, at: usize, steps: &mut Steps<State>) {
        match state.attempts[at].phase {
            Phase::Idle => {
                // A conversion begins while its claim is held.
                let claimed = state.attempts[CLAIM].phase == Phase::Holding;
                if self.claim && at == CONVERSION && !claimed {
                    return;
                }
                let mut new = *state;
                new.attempts[at].phase = Phase::Acquiring;
                for node in &mut new.nodes[..self.nodes] {
                    node.entries[at].acquire = true;
                }
                self.add(steps, new, || format!("{} asks", letter(at)));
            }
            Phase::Acquiring => {
                for won in self.won(state, at) {
                    self.hold(state, at, won, steps);
                }
                self.give_up(state, at, steps);
            }
            Phase::Holding => {
                let converting = state.attempts[CONVERSION].phase == Phase::Acquiring;
                if !(self.claim && at == CLAIM && converting) {
                    let mut new = *state;
                    self.end(&mut new, at);
                    self.add(steps, new, || format!("{} releases", letter(at)));
                }
                if self.extends {
                    self.extension_steps(state, at, steps);
                }
            }
            Phase::Over => {}
        }
    }

    /// What it may believe to hold.
    fn won(&self, state: &State, at: usize) -> Vec<Bits> {
        let votes = |wanted: u8| {
            let gives =
                |node: &&Node| node.entries[at].seen && node.entries[at].given.0 & wanted == wanted;
            state.nodes[..self.nodes].iter().filter(gives).count()
        };
        let enough = |wanted: &u8| votes(*wanted) >= self.quorum();
        match self.wanted[at] {
            Permit(slots) if self.same_slot && self.counts == 0 => (0..slots)
                .map(|slot| 1 << slot)
                .filter(enough)
                .map(Bits)
                .collect(),
            Permit(slots) => {
                // The slot that most have given.
                let best = (0..slots)
                    .map(|slot| 1 << slot)
                    .max_by_key(|slot| votes(*slot));
                best.filter(|_| enough(&0)).map(Bits).into_iter().collect()
            }
            Write(names) | Read(names) => {
                Some(names).filter(enough).map(Bits).into_iter().collect()
            }
        }
    }

    fn hold(&self, state: &State, at: usize, won: Bits, steps: &mut Steps<State>) {
        let mut new = *state;
        new.attempts[at].phase = Phase::Holding;
        new.attempts[at].holds = if self.counts > 0 {
            Bits::default()
        } else {
            won
        };
        // Grants of other slots are released at once.
        for node in &mut new.nodes[..self.nodes] {
            let entry = &mut node.entries[at];
            entry.release |= entry.seen && entry.given.0 & won.0 != won.0;
        }
        if self.claim && at == CONVERSION {
            new.attempts[CLAIM].phase = Phase::Over;
            if self.releases_claim {
                for node in &mut new.nodes[..self.nodes] {
                    node.entries[CLAIM].release = true;
                }
            }
        }
        self.add(steps, new, || format!("{} HOLDS {:03b}", letter(at), won.0));
    }

    fn give_up(&self, state: &State, at: usize, steps: &mut Steps<State>) {
        let mut new = *state;
        if self.releases_seen_only {
            new.attempts[at].phase = Phase::Over;
            for node in &mut new.nodes[..self.nodes] {
                let entry = &mut node.entries[at];
                entry.release |= entry.seen;
            }
        } else {
            self.end(&mut new, at);
        }
        self.add(steps, new, || format!("{} gives up", letter(at)));
    }

    fn end(&self, state: &mut State, at: usize) {
        state.attempts[at] = Attempt {
            phase: Phase::Over,
            holds: state.attempts[at].holds,
            ..Attempt::default()
        };
        for node in &mut state.nodes[..self.nodes] {
            node.entries[at].release = true;
        }
    }

    fn extension_steps(&self, state: &State, at: usize, steps: &mut Steps<State>) {
        let attempt = &state.attempts[at];
        if !attempt.extending && !attempt.extended && !attempt.first_over {
            let mut new = *state;
            new.attempts[at].extending = true;
            for node in &mut new.nodes[..self.nodes] {
                node.entries[at].extend = true;
            }
            self.add(steps, new, || format!("{} extends", letter(at)));
        }
        let seen = |node: &&Node| node.entries[at].extend_seen;
        let votes = state.nodes[..self.nodes].iter().filter(seen).count();
        if attempt.extending && votes >= self.quorum() {
            let mut new = *state;
            (new.attempts[at].extending, new.attempts[at].extended) = (false, true);
            self.add(steps, new, || format!("{} is EXTENDED", letter(at)));
        }
        if attempt.extended && !attempt.first_over {
            let mut new = *state;
            new.attempts[at].first_over = true;
            self.add(steps, new, || format!("{}'s first ttl is over", letter(at)));
        }
    }

    /// Whether two holders exclude each other.
    fn clash(&self, state: &State, one: usize, other: usize) -> bool {
        let both = state.attempts[one].holds.0 & state.attempts[other].holds.0 != 0;
        both && !(self.reads(one) && self.reads(other))
    }
}

impl World for Holders {
    type State = State;

    fn beginnings(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn steps(&self, state: &State, steps: &mut Steps<State>) {
        for of in 0..self.nodes {
            // Nodes are sorted: what can happen to one can happen to another one like it.
            if of > 0 && state.nodes[of] == state.nodes[of - 1] {
                continue;
            }
            for at in 0..self.wanted.len() {
                self.node_steps(state, of, at, steps);
            }
            if state.restarts < self.restarts {
                self.restart(state, of, steps);
            }
        }
        for at in 0..self.wanted.len() {
            self.attempt_steps(state, at, steps);
        }
    }

    fn violation(&self, state: &State) -> Option<&'static str> {
        let is_lock = |at: &usize| !(self.claim && *at == CLAIM);
        let holds = |at: &usize| state.attempts[*at].phase == Phase::Holding && is_lock(at);
        let holders: Vec<usize> = (0..self.wanted.len()).filter(holds).collect();
        let clash = |one: &usize| {
            holders
                .iter()
                .any(|other| other > one && self.clash(state, *one, *other))
        };
        if holders.len() > self.most || holders.iter().any(clash) {
            return Some("more hold at the same time than may");
        }
        let orphan = |entry: &Entry, attempt: &Attempt| {
            !entry.has.is_empty() && attempt.phase == Phase::Over && !entry.release
        };
        let nodes = &state.nodes[..self.nodes];
        let any_orphan = |node: &Node| {
            node.entries
                .iter()
                .zip(&state.attempts)
                .any(|(entry, attempt)| orphan(entry, attempt))
        };
        (self.no_orphans && nodes.iter().any(any_orphan))
            .then_some("an orphan: an entry without an owner, with no release under way")
    }

    fn show(&self, state: &State) -> String {
        let mut text = String::new();
        for node in &state.nodes[..self.nodes] {
            let entries = node.entries[..self.wanted.len()].iter().enumerate();
            let entries: Vec<String> = entries
                .map(|(at, entry)| format!("{}{:03b}", letter(at), entry.has.0))
                .collect();
            let quarantine = if node.waits_for.is_empty() {
                ""
            } else {
                " quarantine"
            };
            text += &format!("[{}{quarantine}] ", entries.join(" "));
        }
        for (at, attempt) in state.attempts[..self.wanted.len()].iter().enumerate() {
            let phase = ["idle", "acquiring", "HOLDS", "over"][attempt.phase as usize];
            text += &format!(" {} {phase}", letter(at));
            if attempt.phase == Phase::Holding {
                text += &format!(" {:03b}", attempt.holds.0);
            }
        }
        text
    }
}
