//! A slot that moves many times, under locks that are held, kept, dropped and waited for: never two holders, and no key is left.

use crate::support;

use std::time::Duration;

use redlock_sync::Redlock;
use support::clusters::Cluster;
use support::holders::{Clients, LONGEST, rounds};
use support::*;

const MOVES: &str = "CLUSTER_MOVES";
/// Much longer than all that is waited for: a release that is lost is found out.
const LONG: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
enum Kind {
    AtOnce,
    /// Locks are taken while the slot is on its way, before its keys have gone and behind them.
    InSteps,
    /// The slot stays where it was, and its keys do not.
    GivenUp,
}

fn goes_on(cluster: &Cluster, clients: &Clients, name: &str, kind: Kind) {
    let to = (cluster.master_of(name) + 1) % cluster.masters;
    let moving = cluster.begin_to_move(name, to);
    if let Kind::InSteps = kind {
        clients.go_on();
    }
    moving.all_keys();
    if let Kind::InSteps = kind {
        clients.go_on();
    }
    match kind {
        Kind::AtOnce | Kind::InSteps => moving.end(),
        Kind::GivenUp => moving.give_up(),
    }
}

/// How often two clients held it at a time. `ttl`: of its locks, and of those for which clients have the guard.
fn overlaps(ttl: Duration, kinds: &[Kind]) -> usize {
    let cluster = Cluster::masters(3);
    let (url, name) = (cluster.url(), cluster.name(0));
    let clients = Clients::of(&name, move || {
        let redlock = Redlock::new(&*url).unwrap();
        let options = options().connect_timeout(2 * LONGEST).restart_guard(ttl);
        redlock.with_options(options).unwrap()
    });
    let clients = clients.lasting(ttl);
    clients.during(|| {
        let kinds = kinds.iter().cycle().take(rounds(MOVES, 8));
        for (round, kind) in kinds.enumerate() {
            clients.go_on();
            goes_on(&cluster, &clients, &name, *kind);
            clients.report(round, kind);
        }
    });
    cluster.nothing_is_left();
    clients.overlaps()
}

#[test]
#[ignore = "takes minutes: CLUSTER_MOVES says how many"]
fn no_move_of_a_slot_makes_two_holders() {
    assert_eq!(overlaps(LONG, &[Kind::AtOnce, Kind::InSteps]), 0);
}

/// Or the test above could not fail.
#[test]
#[ignore = "takes minutes: CLUSTER_MOVES says how many"]
fn a_move_that_is_given_up_makes_two_holders() {
    assert!((0..5).any(|_| overlaps(LONGEST, &[Kind::GivenUp]) > 0));
}
