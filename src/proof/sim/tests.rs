//! The runs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::basics::Violation;
use super::shards::world::{Counts as ShardCounts, ShardWorld};
use super::world::{Counts, World};
use crate::protocol::mutants::{MUTANTS, Mutant, Promise, set_mutant};
use crate::values::clock;

/// The mutants that few schedules show: five times as many are tried.
const RARE: [Mutant; 7] = [
    Mutant::EnqueueAfterDenial,
    Mutant::SecondLookTrustsFirst,
    Mutant::ExtendInMargin,
    Mutant::KeepMessage,
    Mutant::RefusalIsNoAnswer,
    Mutant::MinorityNames,
    Mutant::LateIsAsked,
];

/// The mutants that few schedules show, with the restart guard: others need not be run.
const GUARDED: [Mutant; 5] = [
    Mutant::SecondLookTrustsFirst,
    Mutant::ExtendInMargin,
    Mutant::StepUnseen,
    Mutant::StepForgotten,
    Mutant::StepIsNotUndone,
];

/// The mutants that only sets show, whose sentinels name the master.
const OF_SETS: [Mutant; 10] = [
    Mutant::UnaskedIsSilent,
    Mutant::RefusalIsNoAnswer,
    Mutant::MinorityNames,
    Mutant::AnswerIsNew,
    Mutant::LateIsAsked,
    Mutant::SlowIsSilent,
    Mutant::ConfirmUnanswered,
    Mutant::ConfirmedForLong,
    Mutant::UnconfirmedGrants,
    Mutant::UnconfirmedExtends,
];

/// The mutants that are found in the worlds of shards.
const SHARDS: [Mutant; 14] = [
    Mutant::MembersKeepTheirTimes,
    Mutant::NameOfRedirect,
    Mutant::RedirectIsFirstTry,
    Mutant::RedirectWithoutAsking,
    Mutant::RedirectKeepsToken,
    Mutant::UnclearIsElsewhere,
    Mutant::EndlessRedirects,
    Mutant::TornIsFinal,
    Mutant::MovedForEver,
    Mutant::OwedOnce,
    Mutant::ReleaseAtOldOwner,
    Mutant::MovedLaneIsKept,
    Mutant::LedBySlotBefore,
    Mutant::SilenceConfirmsInACluster,
];

/// The worlds that need be run to find a mutant.
#[derive(Clone, Copy, Default)]
struct Only {
    guarded: bool,
    of_sets: bool,
}

impl Only {
    fn of(mutant: Option<Mutant>) -> Only {
        let is_in = |which: &[Mutant]| mutant.is_some_and(|mutant| which.contains(&mutant));
        Only {
            guarded: is_in(&GUARDED),
            of_sets: is_in(&OF_SETS),
        }
    }

    fn has(self, world: &World) -> bool {
        let conditions = &world.conditions;
        (conditions.guarded || !self.guarded) && (conditions.is_set() || !self.of_sets)
    }
}

/// Which worlds are made from seeds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Worlds {
    Servers,
    Shards,
}

impl Worlds {
    /// Runs one schedule. `None`: this seed makes no world of these conditions.
    fn run(
        self,
        seed: u64,
        only: Only,
        traced: bool,
        counts: &mut AllCounts,
    ) -> Option<Result<(), Violation>> {
        match self {
            Worlds::Servers => {
                let mut world = World::new(seed, traced);
                if !only.has(&world) {
                    return None;
                }
                let result = world.run();
                counts.servers.add(&world.counts);
                Some(result)
            }
            Worlds::Shards => {
                let mut world = ShardWorld::new(seed, traced);
                let result = world.run();
                counts.shards.add(&world.counts());
                Some(result)
            }
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct AllCounts {
    servers: Counts,
    shards: ShardCounts,
}

/// The result of a search: the seeds that fail, and how.
#[derive(Default)]
struct Found {
    failures: Vec<(u64, Violation)>,
    counts: AllCounts,
}

/// A mutant, with the promise that it breaks.
type Breaks = (Mutant, Promise);

impl Found {
    /// The first seed that breaks this promise.
    fn shows(&self, promise: Promise) -> Option<&(u64, Violation)> {
        let shows = |(_, wrong): &&(u64, Violation)| wrong.promise == promise;
        let found = self.failures.iter().filter(shows);
        found.min_by_key(|(seed, _)| *seed)
    }

    /// One seed that breaks its promise shows a mutant, and ends the search; of a protocol that is to keep its promises, all
    /// seeds that fail are reported.
    fn is_enough(&self, mutant: Option<Breaks>) -> bool {
        mutant.is_some_and(|(_, promise)| self.shows(promise).is_some())
    }
}

/// The worlds in which a mutant is found.
fn worlds_of(mutant: Option<Mutant>) -> Worlds {
    match mutant.is_some_and(|mutant| SHARDS.contains(&mutant)) {
        true => Worlds::Shards,
        false => Worlds::Servers,
    }
}

/// Runs schedules on one thread, from a seed on, until others have found enough.
fn search(
    (worlds, mutant): (Worlds, Option<Breaks>),
    from: u64,
    step: u64,
    next: &AtomicU64,
    end: u64,
    over: &AtomicBool,
) -> Found {
    set_mutant(mutant.map(|(mutant, _)| mutant));
    let only = Only::of(mutant.map(|(mutant, _)| mutant));
    let mut found = Found::default();
    while !over.load(Ordering::Relaxed) {
        let start = next.fetch_add(step, Ordering::Relaxed);
        if start >= end {
            break;
        }
        for seed in start..(start + step).min(end) {
            let counts = &mut found.counts;
            // A panic is caught so that the seed can be reported.
            let run = || worlds.run(from + seed, only, false, counts);
            let result = catch_unwind(AssertUnwindSafe(run));
            let panicked = |_| Some(Err(Violation::of(Promise::Fits, "a panic".into())));
            if let Some(Err(wrong)) = result.unwrap_or_else(panicked) {
                found.failures.push((from + seed, wrong));
            }
            if found.is_enough(mutant) {
                over.store(true, Ordering::Relaxed);
                return found;
            }
        }
    }
    found
}

/// Searches on all cores.
fn search_all(worlds: Worlds, mutant: Option<Breaks>, from: u64, count: u64) -> Found {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (next, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let found: Vec<Found> = std::thread::scope(|scope| {
        let run = || search((worlds, mutant), from, 64, &next, count, &over);
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(run)).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Found>| thread.join().unwrap();
        threads.into_iter().map(join).collect()
    });
    let mut all = Found::default();
    for one in found {
        all.counts.servers.add(&one.counts.servers);
        all.counts.shards.add(&one.counts.shards);
        all.failures.extend(one.failures);
    }
    all
}

fn number(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.map_or(default, |text| text.parse().unwrap())
}

#[test]
fn simulation_keeps_every_promise() {
    let default = if cfg!(debug_assertions) {
        1_000
    } else {
        20_000
    };
    let count = number("SIM_COUNT", default);
    let started = clock::instant();
    let found = search_all(Worlds::Servers, None, number("SIM_SEED", 0), count);
    let took = started.elapsed();
    println!("{count} schedules in {took:?}: {:?}", found.counts.servers);
    assert_eq!(found.failures, []);
    let never = found.counts.servers.never();
    assert!(never.is_empty() || count < 1_000, "none of {never:?}");
}

#[test]
fn simulation_of_shards_keeps_every_promise() {
    let default = if cfg!(debug_assertions) {
        1_000
    } else {
        20_000
    };
    // A fifth: one takes as long as five of the others.
    let count = (number("SIM_COUNT", default) / 5).max(1);
    let started = clock::instant();
    let found = search_all(Worlds::Shards, None, number("SIM_SEED", 0), count);
    let took = started.elapsed();
    println!("{count} schedules in {took:?}: {:?}", found.counts.shards);
    assert_eq!(found.failures, []);
    let never = found.counts.shards.never();
    assert!(never.is_empty() || count < 4_000, "none of {never:?}");
}

/// A client that is cut off together with a master goes on with it, as the guide warns.
#[test]
#[cfg_attr(debug_assertions, ignore = "slow without optimisation")]
fn without_min_replicas_to_write_a_simulated_partition_makes_two_holders() {
    let failure = (0..number("SIM_COUNT", 20_000)).find_map(|seed| {
        let mut world = World::new(seed, false);
        if !world.conditions.is_set() {
            return None;
        }
        world.conditions.be_careless();
        world.run().err()
    });
    assert!(failure.is_some_and(|wrong| wrong.promise == Promise::OneHolder));
}

/// For each mutant the seed that showed it when all were searched for last. (`ACCEPT=1` searches for all again.)
const SEEDS: &str = "src/proof/sim/seeds.txt";

/// Searches for a mutant in its worlds. The seed that showed it last is tried first, if it is among those to be searched.
fn search_for((mutant, promise): Breaks, listed: &str) -> Found {
    let times = if RARE.contains(&mutant) { 5 } else { 1 };
    let count = times * number("SIM_COUNT", 20_000);
    let worlds = worlds_of(Some(mutant));
    let name = format!("{mutant:?} ");
    let row = listed.lines().find_map(|row| row.strip_prefix(&name));
    let seed = row.and_then(|seed| seed.parse().ok());
    if let Some(seed) = seed.filter(|seed| *seed < count) {
        let found = search_all(worlds, Some((mutant, promise)), seed, 1);
        if found.shows(promise).is_some() {
            return found;
        }
    }
    search_all(worlds, Some((mutant, promise)), 0, count)
}

#[test]
#[cfg_attr(debug_assertions, ignore = "slow without optimisation")]
fn simulation_finds_every_mutant() {
    let only = std::env::var("SIM_MUTANT").ok();
    let accept = std::env::var_os("ACCEPT").is_some();
    let listed = std::fs::read_to_string(SEEDS).unwrap();
    let listed = if accept { "" } else { &listed };
    let mut seeds = String::new();
    let mut missed = Vec::new();
    for (mutant, rule, what, promise) in MUTANTS.iter().copied() {
        let is_other = |only: &String| *only != format!("{mutant:?}");
        if promise == Promise::UnitTest || only.as_ref().is_some_and(is_other) {
            continue;
        }
        let started = clock::instant();
        let found = search_for((mutant, promise), listed);
        let took = started.elapsed();
        let Some((seed, wrong)) = found.shows(promise) else {
            let instead = found.failures.first();
            missed.push(format!("{mutant:?} ({what}), but {instead:?}"));
            continue;
        };
        println!("{mutant:?} ({rule}): {what}: seed {seed}, {took:.1?}: {wrong:?}");
        seeds.push_str(&format!("{mutant:?} {seed}\n"));
        // Without the mutant, the schedule succeeds.
        set_mutant(None);
        let worlds = worlds_of(Some(mutant));
        let result = worlds.run(*seed, Only::default(), false, &mut AllCounts::default());
        assert_eq!(result, Some(Ok(())), "seed {seed}");
    }
    assert!(missed.is_empty(), "not found: {missed:#?}");
    if accept && only.is_none() {
        std::fs::write(SEEDS, seeds).unwrap();
    }
}

#[test]
#[ignore = "one seed, with a trace"]
fn replay() {
    let name = std::env::var("SIM_MUTANT").unwrap_or_default();
    let named = |(mutant, ..): &&(Mutant, &str, &str, Promise)| format!("{mutant:?}") == name;
    let mutant = MUTANTS.iter().find(named).map(|(mutant, ..)| *mutant);
    set_mutant(mutant);
    let worlds = match std::env::var("SIM_WORLDS").as_deref() {
        Ok("shards") => Worlds::Shards,
        _ => worlds_of(mutant),
    };
    let counts = &mut AllCounts::default();
    println!(
        "{:?}",
        worlds.run(number("SIM_SEED", 0), Only::default(), true, counts)
    );
}
