//! Schedules of the model (`tests/model`), carried out by the real code.
//!
//! The model has the rules and nothing of the code; the code might follow other ones. Here both do the same: the model
//! draws the events around the clients (messages arrive, time passes, nodes restart, programs ask and release), and the
//! real `Core` and `Attempt` go through them, with servers from `testing`. The code decides what a client does by
//! itself: when it holds, and when it gives up. After each step the model must allow that, and both must have the same
//! keys on the same nodes and the same clients that believe to hold. And if the model lets a client hold, the code must
//! have it hold at once.
//!
//! This is a unit test, since the core is no part of the interface; the rules of the worlds are the model's own files.
//! Only steps that the code can take are drawn: it writes no release to a node that has denied, and sends nothing over
//! a second connection.
//!
//! A tick is so long that everything that happens between two ticks takes no time beside it.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "../../tests/model/bits.rs"]
#[allow(dead_code, clippy::cast_possible_truncation)]
mod bits;
#[path = "../../tests/model/explorer.rs"]
#[allow(dead_code)]
mod explorer;
#[path = "../../tests/model/lease/mod.rs"]
#[allow(dead_code, clippy::cast_possible_truncation)]
mod lease;
#[path = "../../tests/model/table.rs"]
#[allow(dead_code, clippy::print_stdout)]
mod table;

mod real;

use explorer::World as _;
use lease::Lease;
use lease::named::{GUARDED, MUTEX, SeenClient};
use real::{CLIENTS, NODES, Real, UNIT, lock_command};

use crate::proof::sim::basics::Random;
use crate::protocol::mutants::{Mutant, set_mutant};

/// The number of steps in a schedule.
const STEPS: usize = 60;
const SCHEDULES: u64 = 150;
/// A step of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Happens {
    Asks(usize),
    Holds(usize),
    GivesUp(usize),
    Releases(usize),
    /// A SET, or a release: the attempt, the node, and whether it does something.
    Arrives(bool, usize, usize, bool),
    Tick,
    Restart(usize),
    /// Steps that the code does not take.
    Other,
}

fn happens(step: &str, attempts: usize) -> Happens {
    let attempt = |name: &str| {
        let name = name.trim_end_matches(':').as_bytes();
        usize::from(name[0] - b'A') * attempts + usize::from(name[1] - b'1')
    };
    let node = |name: &str| name.trim_end_matches(':').parse().unwrap();
    let words: Vec<&str> = step.split(' ').collect();
    match words[..] {
        ["a", "tick"] => Happens::Tick,
        ["node", at, "restarts", "empty"] => Happens::Restart(node(at)),
        ["node", at, "SET", "of", name, did] => {
            Happens::Arrives(true, attempt(name), node(at), did == "granted")
        }
        ["node", at, "release", "of", name, ref did @ ..] => {
            Happens::Arrives(false, attempt(name), node(at), did == ["deleted"])
        }
        [name, "asks", ..] => Happens::Asks(attempt(name)),
        [name, "HOLDS", ..] => Happens::Holds(attempt(name)),
        [name, "gives", "up:", ..] => Happens::GivesUp(attempt(name)),
        [name, "releases:", ..] => Happens::Releases(attempt(name)),
        _ => Happens::Other,
    }
}

/// The model and the code, side by side.
struct Pair<'a> {
    world: &'a Lease,
    state: lease::State,
    real: Real,
    history: Vec<String>,
    /// How often a client came to hold.
    held: u64,
}

impl Pair<'_> {
    fn new(world: &Lease) -> Pair<'_> {
        Pair {
            world,
            state: world.beginnings()[0],
            real: Real::new(world),
            history: Vec::new(),
            held: 0,
        }
    }

    fn steps(&self) -> Vec<(lease::State, String, Happens)> {
        let (attempts, ..) = self.world.sizes();
        let steps = self.world.described(&self.state).into_iter();
        let named = steps.map(|(state, text)| {
            let happens = happens(&text, attempts);
            (state, text, happens)
        });
        named.collect()
    }

    /// Whether the code can make this happen now.
    fn is_possible(&self, happens: Happens) -> bool {
        let client = |attempt: usize| attempt / self.world.sizes().0;
        match happens {
            Happens::Asks(_) | Happens::Releases(_) | Happens::Tick | Happens::Restart(_) => true,
            Happens::Arrives(set, attempt, node, _) => {
                self.real.head(client(attempt), node) == Some((set, attempt))
            }
            Happens::Holds(_) | Happens::GivesUp(_) | Happens::Other => false,
        }
    }

    fn takes(&mut self, state: lease::State, text: String) {
        self.state = state;
        self.history.push(text);
    }

    fn step(&mut self, random: &mut Random) -> Result<(), String> {
        let mut steps = self.steps();
        steps.retain(|(.., happens)| self.is_possible(*happens));
        if steps.is_empty() {
            return Ok(());
        }
        // Time passes anyway; messages do not.
        let rare = |happens| matches!(happens, Happens::Tick | Happens::Restart(_));
        if steps.iter().any(|(.., happens)| !rare(*happens)) && random.chance(85) {
            steps.retain(|(.., happens)| !rare(*happens));
        }
        let (state, text, happens) = steps.swap_remove(random.pick(steps.len()));
        self.takes(state, text);
        let (attempts, ttl, _) = self.world.sizes();
        match happens {
            Happens::Asks(attempt) => {
                let ttl = u32::from(ttl) * UNIT;
                self.real.ask(attempt / attempts, attempt, ttl);
            }
            Happens::Releases(attempt) => self.real.release(attempt / attempts),
            Happens::Tick => self.real.tick(),
            Happens::Restart(node) => self.real.restart(node),
            Happens::Arrives(_, attempt, node, does) => {
                let reply = self.real.execute(attempt / attempts, node);
                self.real.drive(attempt / attempts);
                if does != [&b"+OK\r\n"[..], b":1\r\n"].contains(&&*reply) {
                    return Err(format!("the server says {}", reply.escape_ascii()));
                }
            }
            Happens::Holds(_) | Happens::GivesUp(_) | Happens::Other => {}
        }
        self.follow()?;
        self.stray_releases();
        self.follow()?;
        self.under_way()?;
        let (model, real) = (self.world.seen(&self.state), self.real.seen());
        match model == real {
            true => Ok(()),
            false => Err(format!("the model: {model:?}\nthe code:  {real:?}")),
        }
    }

    /// The code asks no node that the model does not ask, and has written the releases that have something to delete.
    fn under_way(&self) -> Result<(), String> {
        let (steps, mut written) = (self.steps(), Vec::new());
        for client in &self.real.clients {
            for (node, connection) in client.connections.iter().enumerate() {
                let commands = connection.up.iter().filter_map(|one| lock_command(one));
                written.extend(commands.map(|(set, attempt)| (set, attempt, node)));
            }
        }
        let arrives = |&(set, attempt, node): &(bool, usize, usize)| {
            let is_it = |happens: &Happens| matches!(*happens, Happens::Arrives(this, of, at, _) if (this, of, at) == (set, attempt, node));
            steps.iter().any(|(.., happens)| is_it(happens))
        };
        if let Some((_, attempt, node)) = written.iter().find(|one| one.0 && !arrives(one)) {
            return Err(format!("node {node} is asked for attempt {attempt}"));
        }
        let is_missing = |happens: Happens| match happens {
            Happens::Arrives(false, attempt, node, true) => {
                !written.contains(&(false, attempt, node))
            }
            _ => false,
        };
        match steps.iter().find(|(.., happens)| is_missing(*happens)) {
            Some((_, text, _)) => Err(format!("not under way: {text}")),
            None => Ok(()),
        }
    }

    /// Releases that the model does not have: a restart has lost them, and the code sends them again.
    fn stray_releases(&mut self) {
        for c in 0..CLIENTS {
            for node in 0..NODES {
                while let Some((false, attempt)) = self.real.head(c, node) {
                    let is_it = |happens: Happens| matches!(happens, Happens::Arrives(false, one, at, _) if (one, at) == (attempt, node));
                    if self.steps().iter().any(|(.., happens)| is_it(*happens)) {
                        break;
                    }
                    self.real.execute(c, node);
                    self.real.drive(c);
                }
            }
        }
    }

    /// Checks that the model allows everything the clients have done by themselves, and that they hold if it lets them.
    fn follow(&mut self) -> Result<(), String> {
        for c in 0..CLIENTS {
            let of = |attempt: usize| attempt / self.world.sizes().0 == c;
            let real = self.real.seen().clients[c];
            let acquiring = self.world.seen(&self.state).clients[c] == SeenClient::Acquiring;
            let is_it = |happens: Happens| match (happens, real) {
                (Happens::Holds(attempt), SeenClient::Holding(_) | SeenClient::Acquiring) => {
                    of(attempt)
                }
                (Happens::GivesUp(attempt), SeenClient::Idle) => of(attempt),
                _ => false,
            };
            let found = self
                .steps()
                .into_iter()
                .find(|(.., happens)| is_it(*happens));
            match (found, acquiring, real) {
                (Some(_), _, SeenClient::Acquiring) => {
                    return Err(format!("client {c} does not hold, and could"));
                }
                (Some((state, text, _)), true, _) => {
                    self.held += u64::from(real != SeenClient::Idle);
                    self.takes(state, text);
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// How often a client came to hold in all schedules, or the first one in which the two differ.
fn run(world: &Lease, mutant: Option<Mutant>) -> Result<u64, String> {
    set_mutant(mutant);
    let mut held = 0;
    let mut result = Ok(());
    for seed in 0..SCHEDULES {
        let (mut pair, mut random) = (Pair::new(world), Random(seed));
        for _ in 0..STEPS {
            result = result.and_then(|()| pair.step(&mut random));
        }
        held += pair.held;
        if let Err(what) = &result {
            set_mutant(None);
            return Err(format!("seed {seed}:\n{}\n{what}", pair.history.join("\n")));
        }
    }
    set_mutant(None);
    Ok(held)
}

#[test]
fn the_code_does_on_the_models_schedules_what_the_model_does() {
    for world in [MUTEX, GUARDED] {
        let held = run(&world, None).unwrap_or_else(|what| panic!("{what}"));
        assert!(
            held > SCHEDULES,
            "it should be held more often than {held} times"
        );
    }
}

#[test]
fn the_model_finds_mutants_of_the_code() {
    for (world, mutant) in [
        (MUTEX, Mutant::VoteCountsTwice),
        (MUTEX, Mutant::DeadlineFromAnswer),
        (MUTEX, Mutant::UndoOnlyGranted),
        (GUARDED, Mutant::VoteAfterRestart),
    ] {
        let found = run(&world, Some(mutant));
        assert!(found.is_err(), "{mutant:?} is not found");
    }
}
