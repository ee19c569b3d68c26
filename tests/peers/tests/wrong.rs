//! Contenders that are wrong on purpose: the schedule brings each fault to light, and the checker finds it.

use std::path::Path;

use redlock_peers::check::{Kind, Verdict, judge};
use redlock_peers::{contenders, meet, schedule};

fn played(contender: &str, scenario: &str) -> Verdict {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let contender = contenders::prepare(contender, &target.join(contender)).expect("it is built");
    let scenario = schedule::ALL
        .iter()
        .find(|one| one.name == scenario)
        .expect("a scenario");
    judge(&schedule::play(scenario, &contender).expect("it has enough nodes"))
}

fn finds(contender: &str, scenario: &str, kinds: &[Kind]) {
    let verdict = played(contender, scenario);
    for kind in kinds {
        assert!(
            verdict.has(*kind),
            "{contender}, {scenario}: no {kind:?} in {verdict:?}"
        );
    }
}

#[test]
fn no_lock_at_all() {
    finds(
        "wrong-no-lock",
        "contention",
        &[Kind::Overlap, Kind::LostUpdate],
    );
}

#[test]
fn one_vote_is_enough() {
    finds("wrong-any-node", "failover", &[Kind::Overlap]);
}

#[test]
fn granted_however_late() {
    finds(
        "wrong-late",
        "slow",
        &[Kind::GrantedLate, Kind::Overlap, Kind::Late],
    );
}

#[test]
fn a_release_without_a_look_at_the_token() {
    finds(
        "wrong-blind-release",
        "stopped-before-check",
        &[Kind::Overlap],
    );
}

#[test]
fn an_extension_that_always_succeeds() {
    finds(
        "wrong-extend",
        "clock-back",
        &[Kind::Vouched, Kind::Overlap],
    );
}

#[test]
fn a_fencing_token_that_does_not_grow() {
    finds(
        "wrong-extend",
        "stopped-after-check",
        &[Kind::LostUpdateFenced],
    );
}

#[test]
fn keys_that_are_never_deleted() {
    finds("wrong-keys", "majority-killed", &[Kind::KeyForever]);
}

#[test]
fn a_call_that_never_returns() {
    finds("wrong-hangs", "majority-stopped", &[Kind::Hung]);
}

#[test]
fn nothing_is_found_where_nothing_is_wrong() {
    for scenario in ["one-killed", "failover", "stopped-before-check"] {
        let verdict = played("wrong-extend", scenario);
        assert!(verdict.findings.is_empty(), "{scenario}: {verdict:?}");
    }
}

#[test]
fn a_library_that_respects_no_lock_is_found_where_it_meets_one() {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let build = |name: &str| contenders::prepare(name, &target.join(name)).expect("it is built");
    let found = meet::all(&[
        build("ours"),
        build("wrong-blind-release"),
        build("wrong-no-lock"),
    ]);
    let found = found.expect("all of them begin");
    let well = |row: usize, column: usize| found.rows[row][column] == meet::Met::Well;
    assert!(well(0, 0), "{}", found.faults());
    assert!(!well(0, 2) && !found.is_well(), "{}", found.faults());
}
