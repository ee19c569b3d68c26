//! A node whose address a directory has named.

use super::*;
use crate::protocol::discovery::found_master::{DirectoryAnswer, DirectoryTimes, FoundMaster};

/// A connection to a server that a directory has named, `since` after the directory was asked.
fn found_before(since: Duration) -> World {
    let mut world = World::new();
    let found = FoundMaster::new("m at h:1".into(), world.now, true, DirectoryTimes::REAL);
    world.begin_to_connect();
    let properties = ServerProperties {
        dialect: crate::protocol::commands::dialect::Dialect::ALL,
        found: Some(found),
        ..ServerProperties::default()
    };
    assert!(world.core.connected(0, Ok(properties), world.now));
    let tasks = [(); 2].map(|()| world.core.next(ThreadRole::Worker(0), world.now));
    assert!(matches!(
        tasks,
        [ThreadStep::Adopt { .. }, ThreadStep::Reconnected]
    ));
    world.now += since;
    world
}

#[test]
fn an_acquire_is_sent_to_an_address_that_the_directory_has_confirmed_lately() {
    for (since, asks, sends) in [
        (Duration::ZERO, false, true),
        (999 * MS, false, true),
        (1000 * MS, true, true),
        (2000 * MS, true, true),
        (2001 * MS, true, false),
    ] {
        let mut world = found_before(since);
        // Nothing is asked while the node is not in use.
        assert!(matches!(next_but_reads(&mut world), ThreadStep::Finished));
        world.acquire();
        let mut next = next_but_reads(&mut world);
        assert_eq!(matches!(next, ThreadStep::Send { .. }), sends, "{since:?}");
        if sends {
            world.output();
            next = next_but_reads(&mut world);
        }
        assert_eq!(
            matches!(next, ThreadStep::ConfirmMaster { node: 0, .. }),
            asks,
            "{since:?}"
        );
        if !sends {
            assert!(matches!(
                next_but_reads(&mut world),
                ThreadStep::Wait { .. }
            ));
            // The wait is within the time that the acquire has for its answer.
            let asked = world.now;
            world.now += 40 * MS;
            let answer = Ok(DirectoryAnswer {
                result: Ok(()),
                at: asked,
            });
            world.input(Input::MasterConfirmed { asked, answer });
            assert!(matches!(
                next_but_reads(&mut world),
                ThreadStep::Send { .. }
            ));
        }
    }
}

#[test]
fn a_release_waits_for_no_directory() {
    let mut world = found_before(5000 * MS);
    let op = Op::new(Action::Release(Notify::First), key(b"a"));
    world.core.submit(op, 0, world.now);
    let next = next_but_reads(&mut world);
    assert!(matches!(next, ThreadStep::Send { .. }), "{next:?}");
}

#[test]
fn another_address_ends_the_connection() {
    let mut world = found_before(5000 * MS);
    world.acquire();
    assert!(matches!(
        next_but_reads(&mut world),
        ThreadStep::ConfirmMaster { .. }
    ));
    let asked = world.now;
    let answer = Ok(DirectoryAnswer {
        result: Err(Cause::MasterReplaced("h:2".into())),
        at: asked,
    });
    world.input(Input::MasterConfirmed { asked, answer });
    let next = world.core.next(ThreadRole::Leader, world.now);
    assert!(
        matches!(next, ThreadStep::StartWorker { node: 0 }),
        "{next:?}"
    );
    assert!(world.sent.is_empty());
}

#[test]
fn a_node_that_sits_out_leads_elsewhere_once_another_one_has_its_keys() {
    for mutant in [None, Some(Mutant::SitOutWithoutKeys)] {
        let world = World::sitting_out(3);
        assert!(!world.core.leads_elsewhere(0, "h:1"), "it is there already");
        set_mutant(mutant);
        let leads_elsewhere = world.core.leads_elsewhere(0, "h:2");
        set_mutant(None);
        assert_eq!(leads_elsewhere, mutant.is_none());
    }
}
