//! The threads of a program, and what must hold whichever of them goes on when.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Weak;
use std::time::Duration;

use super::sync::thread;
use super::{plain, time};
use crate::net::driver::driver::Driver;
use crate::{Error, Lock, Options, Redlock};

const NODE_TIMEOUT: Duration = Duration::from_millis(50);
const CONNECT_TIMEOUT: Duration = Duration::from_millis(100);
const WAIT: Duration = Duration::from_millis(300);
const TTL: Duration = Duration::from_secs(2);
/// No call takes longer, whatever fails.
const LONGEST: Duration = Duration::from_secs(2);
/// No call for a free lock takes longer while nothing fails.
const SOON: Duration = Duration::from_millis(5);
/// All threads have ended by then after the end of the last call.
const ENDING: Duration = Duration::from_secs(5);
/// All that a schedule does takes less.
const ALL: Duration = Duration::from_secs(60);

/// The fault in a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Calm,
    /// Time passes although threads can go on: the machine is busy.
    Busy,
    /// A node dies, and comes back.
    Dies,
    /// A node does not answer for some time.
    Silent,
    /// A call that leads panics.
    Panics,
}

#[derive(Clone, Copy, Debug)]
struct Plan {
    nodes: usize,
    threads: u64,
    fate: Fate,
}

/// A lock that a thread holds.
struct Held {
    number: u64,
    until: Duration,
}

thread_local! {
    static CALLS: Cell<u64> = const { Cell::new(0) };
    static HELD: RefCell<HashMap<String, Vec<Held>>> = RefCell::default();
    static CALLERS: RefCell<HashSet<usize>> = RefCell::default();
}

/// How many calls were made in this thread.
pub(super) fn calls() -> u64 {
    CALLS.get()
}

fn this() -> usize {
    usize::from(shuttle::thread::current().id())
}

/// Whether this thread is one that makes calls.
fn is_call() -> bool {
    CALLERS.with_borrow(|callers| callers.contains(&this()))
}

/// Prints the plan, and the state at each rest: for one schedule.
fn traces() -> bool {
    std::env::var_os("SCHEDULE_TRACE").is_some()
}

fn plan() -> Plan {
    let plan = Plan {
        nodes: [1, 3][usize::try_from(time::below(2)).unwrap()],
        threads: 2 + time::below(3),
        fate: match time::below(8) {
            0..3 => Fate::Calm,
            3 => Fate::Busy,
            4 | 5 => Fate::Dies,
            6 => Fate::Silent,
            _ => Fate::Panics,
        },
    };
    if traces() {
        eprintln!("{plan:?}");
    }
    plan
}

/// One schedule.
pub(super) fn play() {
    HELD.with_borrow_mut(HashMap::clear);
    CALLERS.with_borrow_mut(HashSet::clear);
    let plan = plan();
    plain::begin(plan.nodes);
    let redlock = redlock(plan.nodes);
    let driver = redlock.driver();
    let clock = shuttle::thread::spawn({
        let driver = driver.clone();
        move || time::clock(|| at_rest(&driver))
    });
    let serve = |at| shuttle::thread::spawn(move || plain::serve(at));
    let servers: Vec<_> = (0..plan.nodes).map(serve).collect();
    match plan.fate {
        Fate::Busy => time::set_hurry([50, 500][usize::try_from(time::below(2)).unwrap()]),
        Fate::Panics => plain::panic_at(1 + time::below(30), is_call),
        _ => {}
    }
    for number in 0..plan.threads {
        let redlock = redlock.clone();
        let builder = thread::Builder::new().name(format!("call-{number}"));
        let started = builder.spawn(move || calls_of(number, plan, &redlock));
        drop(started.unwrap());
    }
    drop(redlock);
    if matches!(plan.fate, Fate::Dies | Fate::Silent) {
        fails(plan);
    }
    wait_for_end();
    assert!(driver.upgrade().is_none(), "the driver is left");
    // Let the servers take what they have received.
    thread::sleep(Duration::from_millis(1));
    let (locks, open) = plain::left();
    assert_eq!(open, 0, "connections are left open");
    assert!(
        locks == 0 || plan.fate != Fate::Calm,
        "{locks} locks are left at the nodes"
    );
    time::end();
    plain::end();
    clock.join().unwrap();
    servers
        .into_iter()
        .for_each(|server| server.join().unwrap());
}

/// All calls return, and then all threads end.
fn wait_for_end() {
    let mut ended = None;
    loop {
        let threads = time::threads();
        if threads.is_empty() {
            break;
        }
        if !threads.iter().any(|name| name.starts_with("call-")) {
            let ended = *ended.get_or_insert_with(time::now);
            let left = time::now() - ended;
            assert!(left < ENDING, "threads are left after the end: {threads:?}");
        }
        // On a busy machine the number of steps alone is bounded.
        let is_busy = time::hurry() > 0;
        assert!(
            is_busy || time::now() < ALL,
            "the calls do not end: {threads:?}"
        );
        thread::sleep(Duration::from_millis(1));
    }
}

fn redlock(nodes: usize) -> Redlock {
    let address = |at| format!("redis://10.0.0.1:{}", usize::from(plain::PORT) + at);
    let options = Options::new()
        .wait(WAIT)
        .node_timeout(NODE_TIMEOUT)
        .connect_timeout(CONNECT_TIMEOUT)
        .retry_delay(Duration::from_millis(5), Duration::from_millis(20))
        .fair(time::below(2) == 0);
    let redlock = Redlock::new((0..nodes).map(address).collect::<Vec<_>>());
    redlock.unwrap().with_options(options).unwrap()
}

/// A node is away for some time.
fn fails(plan: Plan) {
    let at = usize::try_from(time::below(plan.nodes as u64)).unwrap();
    let set = match plan.fate {
        Fate::Dies => plain::set_up,
        _ => plain::set_answers,
    };
    for _ in 0..time::below(60) {
        time::turn();
    }
    set(at, false);
    match time::below(2) {
        0 => (0..time::below(200)).for_each(|_| time::turn()),
        _ => thread::sleep(Duration::from_millis(time::below(300))),
    }
    set(at, true);
}

/// No thread can go on before time passes: none waits for an answer unless another leads.
fn at_rest(driver: &Weak<Driver>) {
    let Some(driver) = driver.upgrade() else {
        return;
    };
    let state = driver.executor().driver_state();
    if traces() {
        eprintln!(
            "at rest after {:?}: {:?}, {} leads, {} waits, {} answers",
            time::now(),
            time::threads(),
            if state.has_no_leader() { "none" } else { "one" },
            if state.core.longest_waiting().is_some() {
                "one"
            } else {
                "none"
            },
            state.core.answers.len()
        );
    }
    if state.has_no_leader() {
        assert!(
            state.core.longest_waiting().is_none(),
            "an operation is under way, and no thread leads"
        );
        assert!(
            state.core.answers.is_empty(),
            "an answer is there, and no thread delivers it"
        );
    }
    drop(state);
}

fn calls_of(number: u64, plan: Plan, redlock: &Redlock) {
    CALLERS.with_borrow_mut(|callers| callers.insert(this()));
    for _ in 0..=time::below(3) {
        let call = AssertUnwindSafe(|| call(number, plan, redlock));
        if let Err(panic) = catch_unwind(call)
            && !panic.is::<plain::Injected>()
        {
            resume_unwind(panic);
        }
        gives_up(number);
    }
    CALLERS.with_borrow_mut(|callers| callers.remove(&this()));
}

/// Does something, and asserts that it takes no longer than that.
fn within<T>(most: Duration, what: &str, work: impl FnOnce() -> T) -> T {
    CALLS.set(CALLS.get() + 1);
    let began = time::now();
    let done = work();
    let took = time::now() - began;
    // On a busy machine, any time may pass.
    let is_busy = time::hurry() > 0;
    assert!(is_busy || took <= most, "{what} takes {took:?}");
    done
}

/// One lock: how it is acquired, what is done with it, and how it ends.
fn call(number: u64, plan: Plan, redlock: &Redlock) {
    let is_private = time::below(3) == 0;
    let name = match is_private {
        true => format!("private-{number}"),
        false => "shared".into(),
    };
    let is_calm = plan.fate == Fate::Calm;
    let soon = if is_calm { SOON } else { LONGEST };
    let most = if is_private { soon } else { LONGEST };
    let acquired = match time::below(3) {
        0 => within(soon, "try_acquire", || redlock.try_acquire(&*name, TTL)).transpose(),
        _ => Some(within(most, "acquire", || redlock.acquire(&*name, TTL))),
    };
    let mut lock = match acquired {
        Some(Ok(lock)) => lock,
        None | Some(Err(Error::Busy(_))) => {
            assert!(!is_private, "a free lock is denied");
            return;
        }
        Some(Err(Error::Unavailable(nodes))) => {
            assert!(!is_calm, "the nodes do not answer: {nodes}");
            return;
        }
        Some(Err(error)) => {
            assert!(!is_calm, "an acquire fails: {error}");
            return;
        }
    };
    // A call may panic: then the lock is dropped behind this.
    let _gives_up = GivesUp(number);
    holds(number, plan, &name, &lock);
    for _ in 0..time::below(3) {
        time::turn();
    }
    if time::below(3) == 0 {
        let extended = within(soon, "extend", || lock.extend(TTL));
        match extended {
            Ok(()) => holds(number, plan, &name, &lock),
            Err(error) => assert!(!is_calm, "an extension fails: {error}"),
        }
    }
    let token = *lock.token();
    let ends = time::below(4);
    if ends == 0 {
        return kept(number, plan, soon, &name, lock);
    }
    gives_up(number);
    if ends == 1 {
        return within(soon, "drop", || drop(lock));
    }
    let released = within(soon, "release", || lock.release());
    freed(plan, &name, &token, released);
}

/// A lock that a thread renews.
fn kept(number: u64, plan: Plan, soon: Duration, name: &str, lock: Lock) {
    let (token, is_calm) = (*lock.token(), plan.fate == Fate::Calm);
    if plan.fate == Fate::Panics {
        gives_up(number);
    }
    let kept = match within(soon, "keep_alive", || lock.keep_alive(10 * TTL)) {
        Ok(kept) => kept,
        Err(error) => {
            gives_up(number);
            return assert!(!is_calm, "a lock is not kept: {error}");
        }
    };
    // A renewal is due at two thirds of the ttl at the latest.
    if time::below(2) == 0 {
        thread::sleep(TTL * 3 / 4);
        if is_calm {
            assert!(kept.is_valid(), "a kept lock is lost");
            assert!(kept.remaining() > TTL / 2, "a kept lock is not renewed");
        }
    }
    gives_up(number);
    let released = within(soon, "release", || kept.release());
    freed(plan, name, &token, released);
}

fn freed(plan: Plan, name: &str, token: &crate::Token, released: Result<(), Error>) {
    match released {
        Ok(()) => {
            let left = plain::holders(name.as_bytes(), token);
            assert!(left * 2 < plan.nodes.max(2), "a released lock is held");
        }
        Err(error) => assert!(plan.fate != Fate::Calm, "a release fails: {error}"),
    }
}

/// The thread has this lock from now on, or for longer.
fn holds(number: u64, plan: Plan, name: &str, lock: &Lock) {
    // Time may pass behind the question.
    let until = time::now() + lock.remaining();
    let now = time::now();
    HELD.with_borrow_mut(|held| {
        let held = held.entry(name.to_owned()).or_default();
        held.retain(|one| one.number != number);
        let others = held.iter().filter(|one| one.until > now).count();
        assert!(others == 0 || until <= now, "two threads hold {name}");
        held.push(Held { number, until });
    });
    if now < until {
        let count = plain::holders(name.as_bytes(), lock.token());
        let all = plan.nodes;
        assert!(
            count * 2 > all,
            "{count} of {all} nodes have the lock that was granted"
        );
    }
}

struct GivesUp(u64);

impl Drop for GivesUp {
    fn drop(&mut self) {
        gives_up(self.0);
    }
}

/// The thread has no lock from now on.
fn gives_up(number: u64) {
    HELD.with_borrow_mut(|held| {
        held.values_mut()
            .for_each(|held| held.retain(|one| one.number != number));
    });
}
