//! The runs.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::world::{Counts, World};
use crate::protocol::mutants::{MUTANTS, Mutant, set_mutant};
use crate::values::clock;

/// The mutants that few schedules show: five times as many are tried.
const RARE: [Mutant; 6] = [
    Mutant::SecondLookTrustsFirst,
    Mutant::ExtendInMargin,
    Mutant::KeepMessage,
    Mutant::RefusalIsNoAnswer,
    Mutant::MinorityNames,
    Mutant::LateIsAsked,
];

/// The mutants that few schedules show, with the restart guard: others need not be run.
const GUARDED: [Mutant; 2] = [Mutant::SecondLookTrustsFirst, Mutant::ExtendInMargin];

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

/// The mutants of parts that the simulation does not have: unit tests find them.
const ELSEWHERE: [Mutant; 7] = [
    Mutant::MarkAfterDeadline,
    Mutant::OneMarkIsNone,
    Mutant::NewestCounts,
    Mutant::JoinedIsNew,
    Mutant::FewOpen,
    Mutant::LostSlotIsBack,
    Mutant::AskedAboutItself,
];

/// The result of a search: the first seed that fails, and how.
struct Found {
    failure: Option<(u64, String)>,
    counts: Counts,
}

/// Runs schedules on one thread, from a seed on, while others have found nothing.
fn search(
    mutant: Option<Mutant>,
    from: u64,
    step: u64,
    next: &AtomicU64,
    end: u64,
    over: &AtomicBool,
) -> Found {
    set_mutant(mutant);
    let is_in = |which: &[Mutant]| mutant.is_some_and(|mutant| which.contains(&mutant));
    let (guarded, of_sets) = (is_in(&GUARDED), is_in(&OF_SETS));
    let mut found = Found {
        failure: None,
        counts: Counts::default(),
    };
    while !over.load(Ordering::Relaxed) {
        let start = next.fetch_add(step, Ordering::Relaxed);
        if start >= end {
            break;
        }
        for seed in start..(start + step).min(end) {
            let mut world = World::new(from + seed, false);
            let conditions = &world.conditions;
            if guarded && !conditions.guarded || of_sets && !conditions.is_set() {
                continue;
            }
            // A panic is caught so that the seed can be reported.
            let result = catch_unwind(AssertUnwindSafe(|| world.run()));
            let result = result.unwrap_or_else(|_| Err("a panic".into()));
            found.counts.add(&world.counts);
            if let Err(what) = result {
                over.store(true, Ordering::Relaxed);
                found.failure = Some((from + seed, what));
                return found;
            }
        }
    }
    found
}

/// Searches on all cores.
fn search_all(mutant: Option<Mutant>, from: u64, count: u64) -> Found {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let (next, over) = (AtomicU64::new(0), AtomicBool::new(false));
    let found: Vec<Found> = std::thread::scope(|scope| {
        let run = || search(mutant, from, 64, &next, count, &over);
        let threads: Vec<_> = (0..cores).map(|_| scope.spawn(run)).collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Found>| thread.join().unwrap();
        threads.into_iter().map(join).collect()
    });
    let mut all = Found {
        failure: None,
        counts: Counts::default(),
    };
    for one in found {
        all.counts.add(&one.counts);
        all.failure = all.failure.or(one.failure);
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
    let found = search_all(None, number("SIM_SEED", 0), count);
    let took = started.elapsed();
    println!("{count} schedules in {took:?}: {:?}", found.counts);
    assert_eq!(found.failure, None);
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
    assert!(failure.is_some_and(|failure| failure.contains(" hold ")));
}

#[test]
#[cfg_attr(debug_assertions, ignore = "slow without optimisation")]
fn simulation_finds_every_mutant() {
    let count = number("SIM_COUNT", 20_000);
    let only = std::env::var("SIM_MUTANT").ok();
    let mut missed = Vec::new();
    for (mutant, rule, what) in MUTANTS.iter().copied() {
        let is_other = |only: &String| *only != format!("{mutant:?}");
        if ELSEWHERE.contains(&mutant) || only.as_ref().is_some_and(is_other) {
            continue;
        }
        let started = clock::instant();
        let times = if RARE.contains(&mutant) { 5 } else { 1 };
        let found = search_all(Some(mutant), 0, times * count);
        let took = started.elapsed();
        match found.failure {
            Some((seed, failure)) => {
                println!("{mutant:?} ({rule}): {what}: seed {seed}, {took:.1?}: {failure}");
                // Without the mutant, the schedule succeeds.
                set_mutant(None);
                assert_eq!(World::new(seed, false).run(), Ok(()), "seed {seed}");
            }
            None => missed.push(what),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

#[test]
#[ignore = "one seed, with a trace"]
fn replay() {
    let name = std::env::var("SIM_MUTANT").unwrap_or_default();
    let named = |(mutant, ..): &&(Mutant, &str, &str)| format!("{mutant:?}") == name;
    set_mutant(MUTANTS.iter().find(named).map(|(mutant, ..)| *mutant));
    let mut world = World::new(number("SIM_SEED", 0), true);
    println!("{:?}", world.run());
}
