//! Several keys in one lock (rules R36, R37). There is no time: keys end, one by one, only after their owner has ended.

use crate::bits::{Bits, letter};
use crate::explorer::{Steps, World};
use crate::table::{Broken, Holds, Row, row};

const NODES: usize = 3;
const QUORUM: usize = 2;
const ATTEMPTS: usize = 3;
const KEYS: usize = 2;

/// When a node sets keys, and what counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Grant {
    /// All keys or none, in one script; a node has one vote (rule R36).
    AllOrNone,
    /// Key by key; each key needs a quorum.
    QuorumOfEachKey,
    /// Key by key; a node votes if it has set all of them.
    AllKeysVote,
    /// Key by key; a node votes if it has set any.
    AnyKeyVotes,
}

use Grant::{AllKeysVote, AllOrNone, AnyKeyVotes, QuorumOfEachKey};

struct Keys {
    grant: Grant,
    /// The keys that each attempt wants.
    wanted: &'static [Bits],
}

const X: Bits = Bits(1);
const Y: Bits = Bits(2);
const BOTH: Bits = Bits(3);

#[rustfmt::skip] // A row on two lines.
pub(crate) fn rows() -> Vec<Row> {
    vec![
        row("D5.1", Holds(1_437_279), "A wants x and y, B x and y, C y: all keys or none, one vote for each node (R36)",
            Keys { grant: AllOrNone, wanted: &[BOTH, BOTH, Y] }),
        row("D5.2", Holds(947_878), "A wants x and y, B x, C y: the same",
            Keys { grant: AllOrNone, wanted: &[BOTH, X, Y] }),
        row("D5.2s", Holds(11_803), "A wants x and y, B x: the same",
            Keys { grant: AllOrNone, wanted: &[BOTH, X] }),
        row("D5.3", Holds(2_081_399), "key by key, a quorum of each key",
            Keys { grant: QuorumOfEachKey, wanted: &[BOTH, BOTH] }),
        row("D5.4", Holds(2_076_573), "key by key, a node votes if it has set all",
            Keys { grant: AllKeysVote, wanted: &[BOTH, BOTH] }),
        row("D5.5", Broken(8, 11_486), "key by key, a node votes if it has set any (against R36)",
            Keys { grant: AnyKeyVotes, wanted: &[BOTH, BOTH] }),
        row("D5.5s", Broken(8, 4_672), "the same, B wants x only",
            Keys { grant: AnyKeyVotes, wanted: &[BOTH, X] }),
    ]
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
struct Node {
    /// 0: there is none; else 1 + whose.
    keys: [u8; KEYS],
    /// By attempt: keys whose SET is under way, and keys that were granted.
    set: [Bits; ATTEMPTS],
    granted: [Bits; ATTEMPTS],
    release: Bits,
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
struct State {
    nodes: [Node; NODES],
    attempts: [Phase; ATTEMPTS],
}

impl Keys {
    fn add(&self, steps: &mut Steps<State>, mut state: State, describe: impl FnOnce() -> String) {
        for node in &mut state.nodes {
            for at in 0..self.wanted.len() {
                if state.attempts[at] >= Phase::Holding {
                    node.granted[at] = Bits::default();
                }
                let has_keys = node.keys.contains(&(at as u8 + 1));
                if node.set[at].is_empty() && !has_keys {
                    node.release.remove(at);
                }
            }
        }
        state.nodes.sort_unstable();
        steps.add(state, describe);
    }

    fn node_steps(&self, state: &State, of: usize, at: usize, steps: &mut Steps<State>) {
        let node = &state.nodes[of];
        let whose = at as u8 + 1;
        let together = [node.set[at]];
        let one_by_one = [X, Y].map(|key| Bits(node.set[at].0 & key.0));
        let requests: &[Bits] = match self.grant {
            AllOrNone => &together,
            _ => &one_by_one,
        };
        for keys in requests.iter().filter(|keys| !keys.is_empty()) {
            let mut new = *state;
            let node = &mut new.nodes[of];
            let free = keys.iter().all(|key| node.keys[key] == 0);
            for key in keys.iter() {
                node.set[at].remove(key);
                if free {
                    node.keys[key] = whose;
                }
                if free && state.attempts[at] == Phase::Acquiring {
                    node.granted[at].add(key);
                }
            }
            self.add(steps, new, || {
                let answer = if free { "granted" } else { "denied" };
                format!(
                    "node {of}: SET {} of {}: {answer}",
                    names(*keys),
                    letter(at)
                )
            });
        }
        if node.release.has(at) {
            let mut new = *state;
            let node = &mut new.nodes[of];
            node.release.remove(at);
            for key in node.keys.iter_mut().filter(|key| **key == whose) {
                *key = 0;
            }
            self.add(steps, new, || {
                format!("node {of}: release of {}", letter(at))
            });
        }
        for key in
            (0..KEYS).filter(|key| node.keys[*key] == whose && state.attempts[at] == Phase::Over)
        {
            let mut new = *state;
            new.nodes[of].keys[key] = 0;
            self.add(steps, new, || {
                format!(
                    "node {of}: {} of {} expires",
                    names([key].into_iter().collect()),
                    letter(at)
                )
            });
        }
    }

    fn attempt_steps(&self, state: &State, at: usize, steps: &mut Steps<State>) {
        let mut new = *state;
        match state.attempts[at] {
            Phase::Idle => {
                new.attempts[at] = Phase::Acquiring;
                new.nodes
                    .iter_mut()
                    .for_each(|node| node.set[at] = self.wanted[at]);
                self.add(steps, new, || {
                    format!("{} asks for {}", letter(at), names(self.wanted[at]))
                });
            }
            Phase::Acquiring => {
                if self.is_granted(state, at) {
                    let mut new = *state;
                    new.attempts[at] = Phase::Holding;
                    self.add(steps, new, || {
                        format!("{} HOLDS {}", letter(at), names(self.wanted[at]))
                    });
                }
                self.end(state, at, "gives up", steps);
            }
            Phase::Holding => self.end(state, at, "releases", steps),
            Phase::Over => {}
        }
    }

    fn is_granted(&self, state: &State, at: usize) -> bool {
        let wanted = self.wanted[at];
        let nodes_where = |grants: &dyn Fn(Bits) -> bool| {
            state
                .nodes
                .iter()
                .filter(|node| grants(node.granted[at]))
                .count()
                >= QUORUM
        };
        match self.grant {
            AllOrNone | AllKeysVote => nodes_where(&|granted| granted == wanted),
            AnyKeyVotes => nodes_where(&|granted| !granted.is_empty()),
            QuorumOfEachKey => wanted
                .iter()
                .all(|key| nodes_where(&|granted| granted.has(key))),
        }
    }

    fn end(&self, state: &State, at: usize, does: &str, steps: &mut Steps<State>) {
        let mut new = *state;
        new.attempts[at] = Phase::Over;
        new.nodes.iter_mut().for_each(|node| node.release.add(at));
        self.add(steps, new, || format!("{} {does}", letter(at)));
    }
}

fn names(keys: Bits) -> String {
    keys.iter().map(|key| ['x', 'y'][key]).collect()
}

impl World for Keys {
    type State = State;

    fn beginnings(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn steps(&self, state: &State, steps: &mut Steps<State>) {
        for at in 0..self.wanted.len() {
            for of in 0..NODES {
                self.node_steps(state, of, at, steps);
            }
            self.attempt_steps(state, at, steps);
        }
    }

    fn violation(&self, state: &State) -> Option<&'static str> {
        let holds = |at: &usize| state.attempts[*at] == Phase::Holding;
        let holders: Vec<Bits> = (0..self.wanted.len())
            .filter(holds)
            .map(|at| self.wanted[at])
            .collect();
        let shared = |key: usize| holders.iter().filter(|keys| keys.has(key)).count() > 1;
        (0..KEYS)
            .any(shared)
            .then_some("two hold one key at the same time")
    }

    fn show(&self, state: &State) -> String {
        let owner = |key: u8| match usize::from(key) {
            0 => '-',
            key => letter(key - 1),
        };
        let mut text = String::new();
        for node in &state.nodes {
            text += &format!("[x {} y {}] ", owner(node.keys[0]), owner(node.keys[1]));
        }
        for at in 0..self.wanted.len() {
            let phase = ["idle", "acquiring", "HOLDS", "over"][state.attempts[at] as usize];
            text += &format!(" {} {phase}", letter(at));
        }
        text
    }
}
