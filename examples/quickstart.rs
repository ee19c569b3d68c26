//! Eight threads increment a counter in a file, 200 times each. Nothing protects the file but a lock
//! on five Redis nodes, of which one is frozen and another is killed in mid-run.
//!
//! ```sh
//! cargo run --example quickstart
//! ```
//!
//! The nodes are private `redis-server` processes (from `PATH`, or the binary that `REDIS_SERVER`
//! names), which end with the example. `REDLOCK_NODES=redis://…,redis://…` takes other nodes, after
//! asking at a terminal (`-- --yes`: without), and does no harm to them. `-- --without-lock` shows what
//! the lock is for.

#[path = "../tests/support/mod.rs"]
mod support;

use std::error::Error;
use std::fs::{self, OpenOptions};
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use redlock_sync::{IntoNode, Options, Redlock};
use support::Server;

const THREADS: u32 = 8;
const INCREMENTS: u32 = 200;
const TOTAL: u32 = THREADS * INCREMENTS;

type AnyError = Box<dyn Error + Send + Sync>;

/// The work. Two threads that do it at once lose an increment.
fn increment(counter: &Path, done: &AtomicU32) -> Result<(), AnyError> {
    let count: u32 = fs::read_to_string(counter)?.trim().parse()?;
    let mut file = OpenOptions::new().write(true).open(counter)?;
    file.write_all(format!("{:9}", count + 1).as_bytes())?;
    done.fetch_add(1, Ordering::Relaxed);
    Ok(())
}

/// The work, one thread at a time. Should the process die, the lock ends by itself after 10 s.
fn increment_under_lock(
    redlock: &Redlock,
    counter: &Path,
    done: &AtomicU32,
) -> Result<(), AnyError> {
    redlock.with_lock("shop:counter", Duration::from_secs(10), |lock| {
        lock.ensure(Duration::from_secs(1))?; // valid for longer than the work takes
        increment(counter, done)
    })
}

/// The number of increments after which this is done to private nodes.
type Harm = (u32, &'static str, fn(&mut [Server]));

const HARM: [Harm; 3] = [
    (
        TOTAL / 4,
        "node 3 is frozen: four of five nodes answer",
        |nodes| nodes[3].stop(),
    ),
    (
        TOTAL / 2,
        "node 1 is killed: three of five, still a majority",
        |nodes| nodes[1].kill(),
    ),
    (TOTAL / 8 * 7, "node 3 goes on", |nodes| nodes[3].resume()),
];

const COMMAND: &str = "cargo run --example quickstart";

fn main() -> ExitCode {
    run().unwrap_or_else(|error| {
        eprintln!("quickstart: {error}");
        ExitCode::FAILURE
    })
}

fn run() -> Result<ExitCode, AnyError> {
    let locked = std::env::args().all(|arg| arg != "--without-lock");
    let (mut private, nodes) = support::given_or_private(5);
    if private.is_empty() && !is_agreed()? {
        return Ok(ExitCode::FAILURE);
    }
    let options = Options::new()
        .wait(Duration::from_secs(60)) // for the lock, while seven others want it too
        .retry_delay(Duration::from_millis(1), Duration::from_millis(20));
    let redlock = Redlock::new(nodes.clone())?.with_options(options)?;
    log::set_logger(&WARNINGS).map_err(|error| error.to_string())?;
    log::set_max_level(log::LevelFilter::Warn);

    if let Err(error) = redlock.connect() {
        println!("Not finished, since no lock can be had: {error}");
        return Ok(ExitCode::FAILURE);
    }
    let directory = support::TempDir::new();
    let counter = directory.path().join("counter");
    let said = |error| format!("{}: {error}", counter.display());
    fs::write(&counter, "0").map_err(said)?;
    let with = if locked {
        "under a lock"
    } else {
        "WITHOUT a lock"
    };
    println!("{THREADS} threads × {INCREMENTS} increments of a file, {with} on:");
    for (node, url) in nodes.iter().enumerate() {
        println!("  node {node}  {}", url.into_node()?);
    }

    let done = AtomicU32::new(0);
    let work = || -> Result<(), AnyError> {
        (0..INCREMENTS).try_for_each(|_| match locked {
            true => increment_under_lock(&redlock, &counter, &done),
            false => increment(&counter, &done),
        })
    };
    let started = Instant::now();
    let errors = thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        let is_over = || threads.iter().all(|thread| thread.is_finished());
        watch(&done, if locked { &mut private } else { &mut [] }, is_over);
        let ended = threads.into_iter().map(|thread| thread.join());
        let errors = ended.filter_map(|end| end.expect("no thread panics").err());
        errors.map(|error| error.to_string()).collect::<Vec<_>>()
    });
    let elapsed = started.elapsed().as_secs_f64();

    println!("\nHow often the library reported a node as failing (once per outage, however long):");
    for node in 0..nodes.len() {
        println!("  node {node}  {}", WARNINGS.about(node));
    }
    let done = done.into_inner();
    let what = if locked { "acquisitions" } else { "increments" };
    println!(
        "{done} {what} in {elapsed:.2} s: {:.0} per second",
        f64::from(done) / elapsed
    );
    let count: u32 = fs::read_to_string(&counter)?.trim().parse()?;
    Ok(verdict(locked, done, count, &errors))
}

/// Nodes that others may use are used if whoever sits at the terminal wants that.
fn is_agreed() -> Result<bool, AnyError> {
    if std::env::args().any(|arg| arg == "--yes") {
        return Ok(true);
    }
    if !(std::io::stdin().is_terminal() && std::io::stderr().is_terminal()) {
        let text = "nothing was done: there is no terminal to ask at whether to use these nodes. Unset REDLOCK_NODES, or add -- --yes";
        return Err(text.into());
    }
    eprint!("Take the lock shop:counter on them {TOTAL} times? [y/N] ");
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(answer.trim().eq_ignore_ascii_case("y"))
}

/// Shows how far it is, and does harm to these nodes meanwhile.
fn watch(done: &AtomicU32, private: &mut [Server], is_over: impl Fn() -> bool) {
    let started = Instant::now();
    let mut harm = if private.is_empty() { &[] } else { &HARM[..] };
    let mut shown = 0;
    while !is_over() {
        let count = done.load(Ordering::Relaxed);
        if count >= shown + TOTAL / 10 {
            println!(
                "{:5.2} s  {count:4} of {TOTAL}",
                started.elapsed().as_secs_f64()
            );
            shown = count;
        }
        if let [(at, what, act), rest @ ..] = harm
            && count >= *at
        {
            println!("         {what}");
            act(private);
            harm = rest;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// `done`: how many increments were made. `count`: how many the file has.
fn verdict(locked: bool, done: u32, count: u32, errors: &[String]) -> ExitCode {
    if count != done {
        println!("The counter stands at {count}: WRONG, it should be {done}.");
    } else if done == TOTAL {
        println!("The counter stands at {count}: exact.");
    } else {
        println!("The counter stands at {count}, as it should, but this is not finished:");
        let mut errors = errors.to_vec();
        errors.sort();
        for same in errors.chunk_by(|one, other| one == other) {
            println!("  {} of {THREADS} threads: {}", same.len(), same[0]);
        }
    }
    match locked {
        true => println!("Without the lock: {COMMAND} -- --without-lock"),
        false => println!("With the lock: {COMMAND}"),
    }
    if done == TOTAL && count == TOTAL {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Shows what the library logs, and keeps it.
struct Warnings(Mutex<Vec<String>>);

static WARNINGS: Warnings = Warnings(Mutex::new(Vec::new()));

impl Warnings {
    /// "node 1 (127.0.0.1:6379) is away: …", but not "… is back".
    fn about(&self, node: usize) -> usize {
        let fails = |line: &&String| {
            line.starts_with(&format!("node {node} "))
                && !line.ends_with("is back")
                && !line.ends_with("gives votes again")
        };
        self.0.lock().unwrap().iter().filter(fails).count()
    }
}

impl log::Log for Warnings {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        println!("         log: {}", record.args());
        self.0.lock().unwrap().push(record.args().to_string());
    }

    fn flush(&self) {}
}
