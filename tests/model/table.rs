//! Tables of worlds: each row has a name, what its search must come to, and with how many states.

use super::explorer::{Found, Search, World, explore};

/// What a search must come to. The states are counted, too: a number that changes says that the world has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    Holds(usize),
    /// The shortest schedule that breaks it has this number of steps. It is found after about this number of states (how many depends on the
    /// order in which a world lists its steps).
    Broken(usize, usize),
    /// Nothing wrong among this many states; there are more.
    HoldsSoFar(usize),
}

pub(crate) use Expected::{Broken, Holds, HoldsSoFar};

impl Expected {
    pub(crate) fn states(self) -> usize {
        match self {
            Holds(states) | Broken(_, states) | HoldsSoFar(states) => states,
        }
    }
}

pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) expected: Expected,
    what: &'static str,
    search: Box<dyn Fn(usize) -> Search + Send + Sync>,
}

pub(crate) fn row<W: World + Send + Sync + 'static>(
    name: &'static str,
    expected: Expected,
    what: &'static str,
    world: W,
) -> Row {
    let search = Box::new(move |bound| explore(&world, bound));
    Row {
        name,
        expected,
        what,
        search,
    }
}

impl Row {
    /// How far to search it. A counterexample may lie a little behind the bound; one that lies far behind is not searched for.
    pub(crate) fn bound(&self, bound: usize) -> Option<usize> {
        match self.expected {
            Holds(_) | HoldsSoFar(_) => Some(bound),
            Broken(_, states) => (states <= 5 * bound).then_some(2 * states),
        }
    }

    /// Searches it, and prints a line: what it came to, states, steps, depth, and the schedule if there is one. Says what is
    /// not as expected.
    pub(crate) fn run(&self, bound: usize) -> Result<usize, String> {
        let Search {
            states,
            steps,
            depth,
            found,
        } = (self.search)(bound);
        let (name, expected, what) = (self.name, self.expected, self.what);
        let (verdict, as_expected, schedule) = match found {
            Found::Nothing => {
                let all = match expected {
                    Holds(expected) => expected == states,
                    Broken(..) => false,
                    HoldsSoFar(so_far) => so_far <= states,
                };
                ("holds", all, None)
            }
            Found::Bound => {
                let more = match expected {
                    Holds(states) => states > bound,
                    Broken(..) => false,
                    HoldsSoFar(_) => true,
                };
                ("holds so far", more, None)
            }
            Found::Violation(schedule) => (
                "broken",
                matches!(expected, Broken(steps, _) if steps == depth),
                Some(schedule),
            ),
        };
        let mut text = format!(
            "{name:7} {verdict:12} {states:>9} states {steps:>10} steps, {depth:>3} deep  {what}\n"
        );
        if let Some(schedule) = schedule {
            text += &format!("  {}:\n{}", schedule.wrong, schedule.text);
        }
        print!("{text}");
        if as_expected {
            Ok(states)
        } else {
            Err(format!("{expected:?} was expected of\n{text}"))
        }
    }
}
