//! Nodes of the module `testing` and real servers: what is done with locks comes to the same on both.

use crate::support;

use std::fmt::Debug;
use std::sync::Mutex;
use std::time::Duration;

use redlock_sync::testing::Node;
use redlock_sync::{Error, LockState, Redlock, Severity};
use support::*;

/// Two processes and a fair one, which share three nodes, and the locks that they hold.
struct World {
    redlocks: Vec<Redlock>,
    locks: Vec<redlock_sync::Lock>,
    /// The last fencing token of each name.
    fences: [u64; NAMES.len()],
}

const NAMES: [&str; 3] = ["a", "b", "größe:1"];

impl World {
    fn new(urls: &[String]) -> World {
        let new = |options| {
            let redlock = Redlock::new(urls.iter().map(String::as_str)).unwrap();
            redlock.with_options(options).unwrap()
        };
        World {
            redlocks: vec![
                new(unhurried()),
                new(unhurried().label("web-3:4711")),
                new(unhurried().fair(true)),
            ],
            locks: Vec::new(),
            fences: [0; NAMES.len()],
        }
    }

    /// One operation, chosen by chance, and what it came to.
    fn step(&mut self, random: &mut Random) -> String {
        let mut pick = |bound: usize| usize::try_from(random.below(bound as u64)).unwrap();
        let (what, who, place, which) = (pick(12), pick(3), pick(NAMES.len()), pick(1 << 16));
        let (redlock, name) = (&self.redlocks[who], NAMES[place]);
        let told = match (what, self.locks.len()) {
            (0..=2, _) => match redlock.try_acquire(name, TTL) {
                Ok(Some(lock)) => {
                    self.locks.push(lock);
                    "granted".into()
                }
                other => told(other.map(|_| "denied")),
            },
            // It does not wait: how far it would come in a short time is not the nodes' affair.
            (3, _) => match redlock.acquire_within(name, TTL, Duration::ZERO) {
                Ok(lock) => {
                    self.locks.push(lock);
                    "granted".into()
                }
                Err(error) => told::<()>(Err(error)),
            },
            (4, _) => inspected(redlock, name),
            (5, _) => {
                let listing = redlock.list(None).unwrap();
                told(Ok(listing.locks().count()))
            }
            (_, 0) => "no lock".into(),
            (6, count) => told(self.locks[which % count].extend(2 * TTL)),
            (7, count) => {
                let lock = &mut self.locks[which % count];
                let place = NAMES
                    .iter()
                    .position(|name| name.as_bytes() == lock.resource());
                let last = &mut self.fences[place.unwrap()];
                match lock.fencing_token() {
                    Ok(fence) => {
                        let grows = fence > *last;
                        *last = fence;
                        told(Ok(grows))
                    }
                    Err(error) => told::<()>(Err(error)),
                }
            }
            (8, count) => {
                // As another process would, with the lock's token.
                let lock = self.locks.swap_remove(which % count);
                let name = lock.resource().to_vec();
                let resumed = redlock.resume(name, *lock.token(), lock.remaining());
                lock.leak();
                self.locks.push(resumed.unwrap());
                "resumed".into()
            }
            (9, count) => {
                // Another process releases it, and it is lost.
                let lock = &self.locks[which % count];
                let name = lock.resource().to_vec();
                let thief = redlock.resume(name, *lock.token(), TTL).unwrap();
                told(thief.release())
            }
            (_, count) => told(self.locks.swap_remove(which % count).release()),
        };
        format!("{what} {who} {name}: {told}")
    }
}

/// Without what differs: addresses and times.
fn told<T: Debug>(result: Result<T, Error>) -> String {
    match result {
        Ok(value) => format!("{value:?}"),
        Err(Error::Unavailable(_)) => "unavailable".into(),
        Err(error @ Error::Busy(_)) => {
            let text = error.to_string();
            let time = text.find(", for ").unwrap_or(text.len());
            text[..time].to_owned()
        }
        Err(error) => error.to_string(),
    }
}

fn inspected(redlock: &Redlock, name: &str) -> String {
    match redlock.inspect(name).unwrap().state() {
        LockState::Held {
            holder, remaining, ..
        } => format!("held by {:?}, {}", holder.label(), remaining.is_some()),
        state => format!("{state:?}"),
    }
}

fn node_urls(nodes: &[Node]) -> Vec<String> {
    nodes.iter().map(|node| node.url().to_owned()).collect()
}

fn locks_on(server: &Server) -> Vec<Vec<u8>> {
    let keys = server.keys().into_iter();
    let locks = keys.filter(|key| NAMES.contains(&key.as_str()));
    locks.map(String::into_bytes).collect()
}

#[test]
fn random_operations_come_to_the_same_on_nodes_for_tests_and_on_servers() {
    let servers = Server::several(3);
    let nodes = [(); 3].map(|()| Node::start().unwrap());
    let mut real = World::new(&urls(&servers));
    let mut model = World::new(&node_urls(&nodes));
    let seed = u64::from(std::process::id()) | 1 << 40;
    let mut random = [Random(seed), Random(seed)];
    let mut history = Vec::new();
    let [first, second] = &mut random;
    for _ in 0..300 {
        let (expected, found) = (real.step(first), model.step(second));
        history.push(found.clone());
        assert_eq!(expected, found, "seed {seed}: {history:#?}");
        // The last node of three may be late. A lock that another process releases first would be left behind there.
        eventually("the same is left on all nodes", || {
            let mut left: Vec<Vec<Vec<u8>>> = nodes.iter().map(Node::locks).collect();
            left.extend(servers.iter().map(locks_on));
            left.iter().all(|one| *one == left[0])
        });
    }
    for needed in [
        "granted",
        "denied",
        "held by",
        ": true",
        ": ()",
        "no longer held",
    ] {
        let found = history.iter().any(|line| line.contains(needed));
        assert!(found, "nothing came to {needed:?}: {history:#?}");
    }
}

/// Three of either kind.
enum Nodes {
    Servers(Vec<Server>),
    ForTests(Vec<Node>),
}

impl Nodes {
    fn urls(&self) -> Vec<String> {
        match self {
            Nodes::Servers(servers) => urls(servers),
            Nodes::ForTests(nodes) => node_urls(nodes),
        }
    }

    /// Where a node grants what most deny, no waiter is in the queue there.
    fn has_queue_of(&self, count: u64) -> bool {
        let queued: Vec<u64> = match self {
            Nodes::Servers(servers) => servers.iter().map(|one| one.queued("turn")).collect(),
            Nodes::ForTests(nodes) => {
                let waiting = nodes.iter().map(|one| one.waiting("turn"));
                waiting.map(|count| count as u64).collect()
            }
        };
        queued.iter().filter(|queued| **queued == count).count() >= 2
    }

    fn all_have(&self, name: &str) -> bool {
        match self {
            Nodes::Servers(servers) => servers.iter().all(|one| one.exists(name)),
            Nodes::ForTests(nodes) => nodes.iter().all(|one| one.holder(name).is_some()),
        }
    }

    /// As another process, with connections to all nodes.
    fn process(&self, fair: bool) -> Redlock {
        let never = Duration::from_secs(15);
        let redlock = Redlock::new(self.urls().iter().map(String::as_str)).unwrap();
        let options = options().retry_delay(never, never).fair(fair);
        let redlock = redlock.with_options(options).unwrap();
        eventually("all nodes are connected", || {
            let lock = take(&redlock, "connecting");
            let all = self.all_have("connecting");
            lock.release().unwrap();
            all
        });
        redlock
    }

    /// Each process waits for the lock, and gets it when the one before it releases it: polls are far longer.
    fn hand_over(&self, fair: bool) -> Vec<usize> {
        let order = Mutex::new(Vec::new());
        let processes: Vec<Redlock> = (0..5).map(|_| self.process(fair)).collect();
        let held = take(&processes[0], "turn");
        eventually("all nodes have it", || self.all_have("turn"));
        std::thread::scope(|scope| {
            for (number, redlock) in processes[1..].iter().enumerate() {
                let order = &order;
                scope.spawn(move || {
                    let lock = redlock.acquire("turn", TTL).unwrap();
                    order.lock().unwrap().push(number);
                    lock.release().unwrap();
                });
                let count = number as u64 + 1;
                eventually("it is in the queue", || self.has_queue_of(count));
                // What the order of arrival tells apart.
                std::thread::sleep(ms(60));
            }
            held.release().unwrap();
        });
        order.into_inner().unwrap()
    }
}

#[test]
fn waiters_are_notified_and_fair_ones_in_the_order_of_arrival_on_both() {
    let nodes = (0..3).map(|_| Node::start().unwrap()).collect();
    for nodes in [Nodes::Servers(Server::several(3)), Nodes::ForTests(nodes)] {
        assert_eq!(nodes.hand_over(true), [0, 1, 2, 3]);
        let mut all = nodes.hand_over(false);
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3]);
        eventually("nothing is left", || {
            !nodes.all_have("turn") && nodes.has_queue_of(0)
        });
    }
}

#[test]
fn everything_that_is_done_with_locks_works_on_nodes_for_tests() {
    let nodes = [(); 3].map(|()| Node::start().unwrap());
    let urls = node_urls(&nodes);
    let guarded = options().restart_guard(Duration::from_secs(3600));
    let redlock = Redlock::new(urls.iter().map(String::as_str)).unwrap();
    let redlock = redlock.with_options(guarded).unwrap();
    redlock.connect().unwrap();
    let locks = redlock.reentrant();
    let outer = locks.acquire("a", TTL).unwrap();
    assert_eq!(locks.acquire("a", TTL).unwrap().depth(), 2);
    drop(outer);
    let kept = redlock.acquire("b", Duration::from_secs(3)).unwrap();
    let kept = kept.keep_alive(Duration::from_secs(60)).unwrap();
    eventually("it is renewed", || nodes[0].requests().extend > 0);
    kept.ensure(ms(100)).unwrap();
    kept.release().unwrap();
    let report = redlock.check("check:").unwrap();
    // They are on this machine, and say so.
    let worst = report.findings().map(|finding| finding.severity()).max();
    assert_eq!(worst, Some(Severity::Note), "{report}");
    let [note] = report.findings().collect::<Vec<_>>()[..] else {
        panic!("{report}");
    };
    assert_eq!(note.code(), "independence");
    let lock = redlock.acquire("shop:1", TTL).unwrap();
    let listing = |pattern| redlock.list(pattern).unwrap().locks().count();
    assert_eq!(
        [listing(None), listing(Some("shop:*")), listing(Some("x*"))],
        [1, 1, 0]
    );
    lock.release().unwrap();
}
