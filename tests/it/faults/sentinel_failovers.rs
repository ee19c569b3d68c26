//! Many failovers of a set, of each kind, and clients that go on taking one lock: never two at a time.

use crate::support;

use std::time::Duration;

use support::holders::{Clients, LONGEST, rounds};
use support::sentinels::{Set, client};
use support::*;

/// Sentinels do not fail over twice within some seconds.
const PATIENCE: Duration = Duration::from_secs(120);
const FAILOVERS: &str = "SENTINEL_FAILOVERS";

#[derive(Clone, Copy, Debug)]
enum Kind {
    Kill,
    ByHand,
    Freeze,
}

/// Returns when the other server is the master, and this one its replica.
fn fail_over(set: &mut Set, kind: Kind, master: usize) {
    let other = 1 - master;
    match kind {
        Kind::Kill => set.servers[master].kill(),
        Kind::Freeze => set.servers[master].stop(),
        Kind::ByHand => {}
    }
    eventually_within(PATIENCE, "all know the new master", &mut || {
        if let Kind::ByHand = kind {
            // Once more where the one before was followed by another one, back to the old master.
            set.fail_over(other);
        }
        set.is_promoted(other) && set.is_master(other)
    });
    match kind {
        Kind::Kill => set.servers[master].restart(),
        Kind::Freeze => set.servers[master].resume(),
        Kind::ByHand => {}
    }
}

fn replicates(set: &Set, replica: usize) {
    eventually_within(PATIENCE, "the old one replicates", &mut || {
        set.replicates(replica)
    });
}

/// How often two clients held it at a time.
fn overlaps(guard: Duration, kinds: &[Kind]) -> usize {
    let mut set = Set::start(3);
    let url = set.url();
    let clients = Clients::of("a", move || client(&url, options().restart_guard(guard)));
    clients.during(|| {
        let kinds = kinds.iter().cycle().take(rounds(FAILOVERS, 9));
        for (round, kind) in kinds.enumerate() {
            let master = round % 2;
            clients.go_on();
            fail_over(&mut set, *kind, master);
            clients.go_on();
            replicates(&set, master);
            clients.report(round, kind);
        }
    });
    clients.overlaps()
}

#[test]
#[ignore = "takes minutes: SENTINEL_FAILOVERS says how many"]
fn no_failover_makes_two_holders() {
    let kinds = [Kind::Kill, Kind::ByHand, Kind::Freeze];
    assert_eq!(overlaps(LONGEST, &kinds), 0);
}

/// Or the test above could not fail.
#[test]
#[ignore = "takes minutes: SENTINEL_FAILOVERS says how many"]
fn without_the_guard_a_failover_makes_two_holders() {
    assert!(overlaps(Duration::ZERO, &[Kind::ByHand]) > 0);
}
