//! Eight threads increment a counter in a file, 200 times each. Nothing protects the file but a lock
//! on five Redis nodes, of which one is frozen and another is killed in mid-run.
//!
//! ```sh
//! cargo run --release --example quickstart
//! ```
//!
//! The nodes are private `redis-server` processes (from `PATH`, or the binary that `REDIS_SERVER`
//! names), which end with the example. `REDLOCK_NODES=redis://…,redis://…` takes other nodes, and
//! does no harm to them. `-- --without-lock` shows what the lock is for.

#[path = "../tests/support/mod.rs"]
mod support;

use std::error::Error;
use std::fs::{self, OpenOptions};
use std::io::Write;
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
fn increment(counter: &Path) -> Result<(), AnyError> {
    let count: u32 = fs::read_to_string(counter)?.trim().parse()?;
    let mut file = OpenOptions::new().write(true).open(counter)?;
    Ok(file.write_all(format!("{:9}", count + 1).as_bytes())?)
}

/// The work, one thread at a time. Should the process die, the lock ends by itself after 10 s.
fn increment_under_lock(redlock: &Redlock, counter: &Path) -> Result<(), AnyError> {
    redlock.with_lock("shop:counter", Duration::from_secs(10), |lock| {
        lock.ensure(Duration::from_secs(1))?; // valid for longer than the work takes
        increment(counter)
    })?
}

/// The number of increments after which this is done to private nodes.
type Harm = (u32, &'static str, fn(&mut [Server]));

const HARM: [Harm; 3] = [
    (TOTAL / 4, "node 3 is frozen", |nodes| nodes[3].stop()),
    (TOTAL / 2, "node 1 is killed", |nodes| nodes[1].kill()),
    (TOTAL / 8 * 7, "node 3 goes on", |nodes| nodes[3].resume()),
];

fn main() -> Result<ExitCode, AnyError> {
    let locked = std::env::args().all(|arg| arg != "--without-lock");
    let (mut private, nodes) = support::given_or_private(5);
    let options = Options::new()
        .wait(Duration::from_secs(60)) // for the lock, while seven others want it too
        .retry_delay(Duration::from_millis(1), Duration::from_millis(20));
    let redlock = Redlock::new(nodes.clone())?.with_options(options)?;
    log::set_logger(&WARNINGS).map_err(|error| error.to_string())?;
    log::set_max_level(log::LevelFilter::Warn);

    let directory = support::TempDir::new();
    let counter = directory.path().join("counter");
    fs::write(&counter, "0")?;
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
        for _ in 0..INCREMENTS {
            if locked {
                increment_under_lock(&redlock, &counter)?;
            } else {
                increment(&counter)?;
            }
            done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    };
    let started = Instant::now();
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(work)).collect();
        let mut harm = if locked && !private.is_empty() {
            &HARM[..]
        } else {
            &[]
        };
        let mut shown = 0;
        while !threads.iter().all(|thread| thread.is_finished()) {
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
                act(&mut private);
                harm = rest;
            }
            thread::sleep(Duration::from_millis(1));
        }
        for thread in threads {
            if let Err(error) = thread.join().expect("no thread panics") {
                println!("a thread gave up: {error}");
            }
        }
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
    if count == TOTAL {
        println!("The counter stands at {count}: exact.");
        Ok(ExitCode::SUCCESS)
    } else {
        println!("The counter stands at {count}: WRONG, it should be {TOTAL}.");
        Ok(ExitCode::FAILURE)
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
