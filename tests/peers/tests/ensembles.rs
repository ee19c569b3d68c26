//! Ensembles begin, elect another leader after a kill, and take the first one back.

use std::time::Duration;

use redlock_peers::ensemble::{self, Member, System};
use redlock_peers::support::eventually;

fn leader(members: &[Member]) -> Option<usize> {
    let mut members = members.iter();
    members.position(|member| member.leads() == Some(true))
}

fn elects_and_comes_back(system: System) {
    if let Some(why) = system.missing() {
        eprintln!("SKIPPED: {why}");
        return;
    }
    let (mut members, _ways) = ensemble::new(system, 3);
    ensemble::begin(&mut members);
    let first = leader(&members).expect("one leads");
    members[first].kill(false);
    eventually("another one leads", || {
        leader(&members).is_some_and(|now| now != first)
    });
    members[first].start();
    let ready = ensemble::settle(members.iter_mut(), Duration::from_secs(60));
    assert_eq!(ready, 3);
    assert!(leader(&members) != Some(first));
    assert!(members.iter().all(|member| member.keys().is_empty()));
}

#[test]
fn etcd_elects_another_leader_and_takes_the_first_one_back() {
    elects_and_comes_back(System::Etcd);
}

#[test]
fn zookeeper_elects_another_leader_and_takes_the_first_one_back() {
    elects_and_comes_back(System::ZooKeeper);
}
