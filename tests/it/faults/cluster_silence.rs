//! Masters of a Redis Cluster whose other servers do not answer: they are not confirmed by silence, and one dead host of
//! several takes no locks away.

use crate::support;

use std::time::{Duration, Instant};

use redlock_sync::Redlock;
use support::clusters::{Cluster, Plan};
use support::*;

const S: Duration = Duration::from_secs(1);
/// Much longer than all that is waited for.
const LONG: Duration = Duration::from_secs(600);

fn patient(cluster: &Cluster) -> Redlock {
    cluster.client_with(options().node_timeout(5 * S))
}

/// It may have stood still while another one took its place, and be cut off from that one together with the client. Its
/// connection was there before.
#[test]
fn a_master_of_a_shard_grants_nothing_while_all_others_are_silent() {
    let cluster = Cluster::masters(3);
    let redlock = patient(&cluster);
    let name = cluster.name(0);
    take(&redlock, &name).release().unwrap();
    let others = &cluster.nodes[1..];
    others.iter().for_each(Server::stop);
    // What was confirmed before counts for two seconds.
    std::thread::sleep(3 * S);
    let since = Instant::now();
    while since.elapsed() < 6 * S {
        if let Ok(Some(_)) = redlock.try_acquire(&name, LONG) {
            panic!("a grant after {:?}", since.elapsed());
        }
    }
    let text = unavailable(redlock.try_acquire(&name, LONG)).to_string();
    assert!(text.contains("no server of the"), "{text}");
    others[0].resume();
    // With it two of three masters are there.
    eventually("locks are taken again", || {
        matches!(redlock.try_acquire(&name, LONG), Ok(Some(_)))
    });
    others.iter().for_each(Server::resume);
    cluster.nothing_is_left();
}

/// Without replicas the other ones are two, of which one is enough.
#[test]
fn with_one_silent_master_of_three_locks_of_the_others_are_taken_and_kept() {
    let cluster = Cluster::masters(3);
    locks_go_on(&cluster, &[0, 2], &[1]);
}

/// A host with one master and the replica of another one: it is silent, and its servers are asked in turn.
#[test]
fn with_one_silent_host_of_three_locks_of_the_other_masters_are_taken_and_kept() {
    let cluster = Cluster::with(Plan {
        masters: 3,
        replicas: true,
        over_tls: over_tls(),
        args: &["--cluster-require-full-coverage", "no"],
        ..Plan::default()
    });
    locks_go_on(&cluster, &[0, 2], &[1, 3]);
}

fn locks_go_on(cluster: &Cluster, masters: &[usize], silent: &[usize]) {
    let redlock = patient(cluster);
    let names: Vec<String> = masters.iter().map(|at| cluster.name(*at)).collect();
    let keep = |name: &String| {
        let lock = redlock.acquire(name, 6 * S).unwrap();
        lock.keep_alive(LONG).unwrap()
    };
    let kept: Vec<_> = names.iter().map(keep).collect();
    silent.iter().for_each(|at| cluster.nodes[*at].stop());
    let since = Instant::now();
    while since.elapsed() < 10 * S {
        for name in &names {
            let beside = format!("{{{name}}}:beside");
            match redlock.try_acquire(&beside, LONG) {
                Ok(Some(lock)) => drop(lock),
                other => panic!("after {:?}: {other:?}", since.elapsed()),
            }
        }
        std::thread::sleep(ms(50));
    }
    silent.iter().for_each(|at| cluster.nodes[*at].resume());
    assert!(kept.iter().all(|lock| lock.lost().is_none()));
    drop(kept);
    cluster.agree();
    cluster.nothing_is_left();
}
