//! The search: breadth first, through all states of a world.
//!
//! Whole states are kept and compared, so the result is exact; a counterexample is one of the shortest.

use std::collections::VecDeque;
use std::fmt::Write;
use std::hash::{Hash, Hasher};

/// A small world: a protocol in surroundings that may do anything they can do, in any order.
pub(crate) trait World {
    type State: Copy + Eq + Hash;

    fn beginnings(&self) -> Vec<Self::State>;

    /// All that can happen next.
    fn steps(&self, state: &Self::State, steps: &mut Steps<Self::State>);

    /// What is wrong in this state, if anything is.
    fn violation(&self, state: &Self::State) -> Option<&'static str>;

    /// For schedules.
    fn show(&self, state: &Self::State) -> String;
}

/// The states that one step leads to. Descriptions are made for schedules only: the search has no use for them.
pub(crate) struct Steps<S> {
    described: bool,
    to: Vec<(S, String)>,
}

impl<S> Steps<S> {
    pub(crate) fn new(described: bool) -> Steps<S> {
        Steps {
            described,
            to: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, state: S, describe: impl FnOnce() -> String) {
        let step = if self.described {
            describe()
        } else {
            String::new()
        };
        self.to.push((state, step));
    }

    #[allow(dead_code, reason = "for src/proof/oracle.rs")]
    pub(crate) fn into_vec(self) -> Vec<(S, String)> {
        self.to
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.to.is_empty()
    }
}

/// What a search came to.
pub(crate) struct Search {
    pub(crate) states: usize,
    pub(crate) steps: usize,
    /// Steps from the beginning to the last state.
    pub(crate) depth: usize,
    pub(crate) found: Found,
}

pub(crate) enum Found {
    /// All states were seen, and none is wrong.
    Nothing,
    /// As many states were seen as were allowed, and none is wrong.
    Bound,
    Violation(Schedule),
}

/// How a wrong state comes about.
pub(crate) struct Schedule {
    pub(crate) wrong: &'static str,
    pub(crate) text: String,
}

pub(crate) fn explore<W: World>(world: &W, bound: usize) -> Search {
    let mut seen = Seen::new();
    let mut steps = Steps::new(false);
    let mut taken = 0;
    for state in world.beginnings() {
        seen.add(state, NONE);
    }
    let (mut depth, mut level_ends, mut at) = (0, seen.states.len(), 0);
    let mut found = Found::Nothing;
    while at < seen.states.len() {
        if at == level_ends {
            depth += 1;
            level_ends = seen.states.len();
        }
        let state = seen.states[at];
        if world.violation(&state).is_some() {
            found = Found::Violation(schedule(world, &seen.way_to(at)));
            break;
        }
        if seen.states.len() > bound {
            found = Found::Bound;
            break;
        }
        steps.to.clear();
        world.steps(&state, &mut steps);
        taken += steps.to.len();
        for (next, _) in &steps.to {
            seen.add(*next, at);
        }
        at += 1;
    }
    Search {
        states: seen.states.len(),
        steps: taken,
        depth,
        found,
    }
}

/// The schedule in words. It is carried out once more, which shows that it is a counterexample: it starts at a beginning, the
/// world allows each of its steps, and no state but the last is wrong.
fn schedule<W: World>(world: &W, states: &[W::State]) -> Schedule {
    let mut left: VecDeque<W::State> = states.iter().copied().collect();
    let mut state = left.pop_front().expect("a schedule has a beginning");
    assert!(
        world.beginnings().contains(&state),
        "a schedule starts somewhere in the middle"
    );
    let mut text = format!("    {:<50} | {}\n", "", world.show(&state));
    while let Some(next) = left.pop_front() {
        assert_eq!(
            world.violation(&state),
            None,
            "a schedule goes on behind a violation"
        );
        let mut steps = Steps::new(true);
        world.steps(&state, &mut steps);
        let (_, step) = steps
            .to
            .into_iter()
            .find(|(to, _)| *to == next)
            .expect("a schedule has a step that the world does not allow");
        state = next;
        writeln!(text, "    {step:<50} | {}", world.show(&state)).expect("a String takes all");
    }
    let wrong = world
        .violation(&state)
        .expect("a schedule ends in a state in which nothing is wrong");
    Schedule { wrong, text }
}

const NONE: usize = u32::MAX as usize;

/// States in the order in which they were found, each with the one before it.
struct Seen<S> {
    states: Vec<S>,
    before: Vec<u32>,
    /// A hash table with open addressing: hashes and indices of states. A `HashMap` would keep a second copy of each state.
    table: Vec<(u32, u32)>,
}

const EMPTY: (u32, u32) = (0, u32::MAX);

impl<S: Copy + Eq + Hash> Seen<S> {
    fn new() -> Seen<S> {
        Seen {
            states: Vec::new(),
            before: Vec::new(),
            table: vec![EMPTY; 1 << 12],
        }
    }

    fn add(&mut self, state: S, before: usize) {
        if self.states.len() * 2 >= self.table.len() {
            self.grow();
        }
        let hash = hash(&state);
        let known = |(other, at): (u32, u32)| other == hash && self.states[at as usize] == state;
        let place = place(&self.table, hash, known);
        if self.table[place] == EMPTY {
            self.table[place] = (hash, index(self.states.len()));
            self.states.push(state);
            self.before.push(index(before));
        }
    }

    fn grow(&mut self) {
        let larger = vec![EMPTY; self.table.len() * 4];
        for entry in std::mem::replace(&mut self.table, larger) {
            if entry != EMPTY {
                let place = place(&self.table, entry.0, |_| false);
                self.table[place] = entry;
            }
        }
    }

    fn way_to(&self, mut at: usize) -> Vec<S> {
        let mut way = VecDeque::new();
        while at != NONE {
            way.push_front(self.states[at]);
            at = self.before[at] as usize;
        }
        way.into()
    }
}

/// Where it is, or where there is room for it.
fn place(table: &[(u32, u32)], hash: u32, is: impl Fn((u32, u32)) -> bool) -> usize {
    let mask = table.len() - 1;
    let mut place = hash as usize & mask;
    while table[place] != EMPTY && !is(table[place]) {
        place = (place + 1) & mask;
    }
    place
}

fn index(at: usize) -> u32 {
    u32::try_from(at).expect("fewer than 4 billion states")
}

fn hash<T: Hash>(value: &T) -> u32 {
    let mut hasher = Fx(0);
    value.hash(&mut hasher);
    (hasher.finish() >> 32) as u32
}

/// The hash of the Rust compiler (FxHash), with a last step that mixes the upper half into the lower: much faster than the
/// standard one, which defends against chosen keys.
struct Fx(u64);

impl Hasher for Fx {
    fn finish(&self) -> u64 {
        let hash = (self.0 ^ (self.0 >> 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        hash ^ (hash >> 29)
    }
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }
    fn write_u8(&mut self, value: u8) {
        self.write_u64(u64::from(value));
    }
    fn write_u16(&mut self, value: u16) {
        self.write_u64(u64::from(value));
    }
    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
    fn write_usize(&mut self, value: usize) {
        self.write_u64(value as u64);
    }
}
