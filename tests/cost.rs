//! The cost of a pair of acquire and release: system calls and allocations, counted, so that they do not grow by accident.

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};
use std::process::Command;
use std::time::Duration;

use support::clusters::Cluster;
use support::{Server, urls};

/// Set for the process that works while it is traced.
const NODES: &str = "REDLOCK_COST_NODES";
const PAIRS: &str = "REDLOCK_COST_PAIRS";
const KINDS: [&str; 2] = ["released", "dropped"];
/// Locks that are not plain, and how often a pair of each may allocate: for its name, commands and keys, and its releases; a
/// permit also for a key with the slot that it got.
const OTHERS: [(&str, f64); 4] = [
    ("permit", 7.0),
    ("read", 4.0),
    ("write", 7.0),
    ("several", 8.0),
];

struct Counting;

thread_local! {
    /// Of this thread: idle connections are used directly by the calling thread.
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    /// How many there were after each pair, as far as there is room.
    static MARKS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// No longer than what the restart guard is for.
const COST_TTL: Duration = Duration::from_secs(1);

/// A thread locks again what it holds.
const ENTERED: &str = "entered again";

/// What is locked, if it is no plain lock.
fn other(redlock: &redlock_sync::Redlock, kind: &str) -> Option<redlock_sync::Lockable> {
    let other = match kind {
        "permit" => redlock.semaphore("cost of permits", 10),
        "read" => redlock.read_lock("cost"),
        "write" => redlock.write_lock("cost"),
        "several" => redlock.several(["cost", "cost of another"]),
        _ => return None,
    };
    Some(other.unwrap())
}

/// The system call by which a trace shows where a pair ends.
const MARK: &str = "getppid";

/// A pair has ended.
fn mark() {
    let _ = std::os::unix::process::parent_id();
    MARKS.with_borrow_mut(|marks| {
        if marks.len() < marks.capacity() {
            marks.push(ALLOCATIONS.get());
        }
    });
}

/// This many pairs count, one behind the other, that cost least: the cost of a pair by itself is in each of them. In others
/// answers come one by one that would have come together, each with a read of its own, and buffers grow: on a busy machine
/// more replies are pending than ever before.
const TOGETHER: usize = 20;

/// The cost of one of the pairs that count, by the costs of all.
fn own_cost(pairs: &[u64]) -> f64 {
    let together = pairs.windows(TOGETHER).map(|some| some.iter().sum());
    together.min().unwrap_or(u64::MAX) as f64 / TOGETHER as f64
}

/// The allocations of a pair.
fn allocations(redlock: &redlock_sync::Redlock, kind: &str) -> f64 {
    MARKS.set(Vec::with_capacity(1000));
    assert_eq!(pairs(redlock, kind, 1000), 1000);
    let marks = MARKS.take();
    let each = marks.windows(2).map(|pair| pair[1] - pair[0]);
    own_cost(&each.collect::<Vec<_>>())
}

/// How many succeeded.
fn pairs(redlock: &redlock_sync::Redlock, kind: &str, count: u64) -> u64 {
    let other = other(redlock, kind);
    let pair = || {
        if let Some(other) = &other {
            return other.try_acquire(COST_TTL).ok()??.release().ok();
        }
        let lock = redlock.try_acquire("cost", COST_TTL).ok()??;
        if kind == "dropped" {
            drop(lock);
            return Some(());
        }
        lock.release().ok()
    };
    if kind != ENTERED {
        let marked = |_: &()| mark();
        return (0..count).filter_map(|_| pair().inspect(marked)).count() as u64;
    }
    let locks = redlock.reentrant();
    let _outer = locks.acquire("entered", support::TTL).unwrap();
    for _ in 0..count {
        let entry = locks.acquire("entered", support::TTL).unwrap();
        entry.release().unwrap();
        mark();
    }
    count
}

/// Pairs after which buffers are as large as they get.
const FULL_BUFFERS: u64 = 500;

/// Connected, and `count` pairs were made.
fn warm(nodes: &[String], guarded: bool, count: u64) -> redlock_sync::Redlock {
    let guard = if guarded { COST_TTL } else { Duration::ZERO };
    let options = support::unhurried().restart_guard(guard);
    let redlock = redlock_sync::Redlock::new(nodes.iter().map(String::as_str))
        .unwrap()
        .with_options(options)
        .unwrap();
    // The last to connect may come behind the first operation.
    support::eventually("all nodes are connected", || {
        drop(redlock.acquire("cost", COST_TTL).unwrap());
        support::attendants() == 0
    });
    assert_eq!(pairs(&redlock, "released", count), count);
    redlock
}

#[test]
fn a_pair_allocates_twice() {
    for (count, guarded) in [(1_u32, false), (5, false), (5, true)] {
        let servers = Server::several(count as usize);
        let redlock = warm(&urls(&servers), guarded, FULL_BUFFERS);
        for kind in KINDS {
            let each = allocations(&redlock, kind);
            println!("{kind}, {count} nodes: {each:.2} allocations per pair");
            // The name and the key, which all that concerns the lock shares; over TLS each record.
            let limit = match support::over_tls() {
                true => 2.0 + 4.0 * f64::from(count),
                false => 2.0,
            };
            assert!(
                each <= limit,
                "{kind}, {count} nodes: {each:.3} allocations per pair"
            );
        }
    }
}

/// Which server has a key is known without asking, and found without making anything.
#[test]
fn a_pair_in_a_cluster_allocates_as_often_as_elsewhere() {
    let cluster = Cluster::masters(2);
    let redlock = warm(&[cluster.url()], false, FULL_BUFFERS);
    let each = allocations(&redlock, "released");
    println!("in a cluster: {each:.2} allocations per pair");
    let limit = if support::over_tls() { 6.0 } else { 2.0 };
    assert!(each <= limit, "{each:.3} allocations");
}

#[test]
fn a_pair_of_another_kind_allocates_little() {
    let servers = Server::several(3);
    let redlock = warm(&urls(&servers), false, FULL_BUFFERS);
    for (kind, limit) in OTHERS {
        let each = allocations(&redlock, kind);
        println!("{kind}: {each:.2} allocations per pair");
        let limit = if support::over_tls() {
            limit + 12.0
        } else {
            limit
        };
        assert!(each <= limit, "{kind}: {each:.3} allocations per pair");
    }
}

#[test]
fn to_enter_again_allocates_nothing() {
    let servers = Server::several(3);
    let redlock = warm(&urls(&servers), false, FULL_BUFFERS);
    let before = ALLOCATIONS.get();
    assert_eq!(pairs(&redlock, ENTERED, 1000), 1000);
    let all = ALLOCATIONS.get() - before;
    println!("{ENTERED}: {all} allocations for 1000");
    // Those of the first one, which is a lock of its own.
    assert!(all <= 50, "{all} allocations for 1000");
}

/// One write for each node and one read for each that is waited for, in each of the two steps; the
/// process id once in each; randomness once. The rest: now and then a look at nodes that are not
/// waited for.
#[test]
fn a_pair_makes_no_more_system_calls_than_it_must() {
    let trace = Command::new("strace")
        .args(["-o", "/dev/null", "true"])
        .output();
    let trace = support::started(trace, "strace", "strace");
    if !trace.status.success() {
        let why = String::from_utf8_lossy(&trace.stderr);
        return support::skipped("a_pair_makes_no_more_system_calls", &why);
    }
    for (count, kind, limit) in [
        (1, "released", 7.0),
        (1, "dropped", 6.0),
        (5, "released", 19.0),
        (5, "dropped", 16.0),
        (5, "released, guarded", 19.0),
        // Whose process it is, and no node is asked.
        (3, ENTERED, 3.0),
        // As a plain one.
        (1, "permit", 7.0),
        (1, "read", 7.0),
        (1, "write", 7.0),
        (1, "several", 7.0),
    ] {
        let servers = Server::several(count);
        // With the guard a server that has just started does not vote, and tries differ in number until it does.
        drop(warm(&urls(&servers), kind.ends_with("guarded"), 1));
        let each = traced(&urls(&servers), kind);
        println!("{kind}, {count} nodes: {each:.2} system calls per pair");
        assert!(
            each < limit + 0.5,
            "{kind}, {count} nodes: {limit} and more"
        );
    }
}

/// The number of pairs that a traced process makes.
const TRACED: usize = 500;
/// The number of system calls of a pair of this kind, in a process of its own.
fn traced(nodes: &[String], kind: &str) -> f64 {
    let dir = support::TempDir::new();
    let trace = dir.path().join("trace");
    let output = support::watched(&mut Command::new("strace"))
        .args(["-f", "-o"])
        .arg(&trace)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "worker", "--ignored", "--nocapture"])
        .env(NODES, nodes.join(" "))
        .env(PAIRS, format!("{kind} {TRACED}"))
        .output();
    let output = support::started(output, "strace", "strace");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{said}", output.status);
    // Each line has the thread, and the call or what it returned later.
    let text = std::fs::read_to_string(&trace).unwrap();
    let calls = text
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1)?.split_once('('));
    let calls: Vec<&str> = calls.map(|(name, _)| name).collect();
    let pairs = calls.split(|name| *name == MARK);
    let mut pairs: Vec<u64> = pairs.map(|calls| calls.len() as u64).collect();
    // Behind the last mark the process ends.
    pairs.pop();
    own_cost(&pairs[pairs.len().saturating_sub(TRACED * 9 / 10)..])
}

#[test]
#[ignore = "the process that is traced, not a test"]
fn worker() {
    let Ok(nodes) = std::env::var(NODES) else {
        return;
    };
    let nodes: Vec<String> = nodes.split(' ').map(str::to_owned).collect();
    let work = std::env::var(PAIRS).unwrap();
    let (kind, count) = work.rsplit_once(' ').unwrap();
    let guarded = kind.ends_with("guarded");
    let count = count.parse().unwrap();
    let made = pairs(&warm(&nodes, guarded, 100), kind, count);
    // On a busy machine one may fail.
    assert!(made >= count - count / 100, "{made} of {count} pairs");
}
