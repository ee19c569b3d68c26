//! A job that many hosts start and one runs at a time. Work that must succeed once in a period, and not again: `once_per`.
//!
//! ```sh
//! cargo run --example batch_job               # leaves with exit code 75 if another is running it
//! cargo run --example batch_job -- --wait     # waits for its turn; Ctrl-C ends the wait
//! ```
//!
//! The nodes are those in `REDLOCK_NODES=redis://…,redis://…`. With none given it starts three
//! private `redis-server`s and says how to reach them from a second terminal.

#[path = "../tests/support/mod.rs"]
mod support;

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use redlock_sync::{Lock, Options, Redlock};

const RESOURCE: &str = "shop:nightly-import";
/// How long the others wait at most if this host dies in the middle of the job.
const TTL: Duration = Duration::from_secs(30);

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGINT, stop.clone())?;
    let running = || !stop.load(Ordering::Relaxed);

    let (private, nodes) = support::given_or_private(3);
    if !private.is_empty() {
        println!("nodes: REDLOCK_NODES={}", nodes.join(","));
    }
    let options = Options::new().node_timeout(Duration::from_millis(500)); // a job is in no hurry
    let redlock = Redlock::new(nodes)?.with_options(options)?;

    let lock = if std::env::args().any(|arg| arg == "--wait") {
        println!("waiting for the lock");
        // Until Ctrl-C, however long.
        match redlock.acquire_while(RESOURCE, TTL, running) {
            Ok(lock) => lock,
            Err(redlock_sync::Error::Cancelled(_)) => {
                println!("interrupted while waiting");
                return Ok(ExitCode::from(130));
            }
            Err(error) => return Err(error.into()),
        }
    } else {
        match redlock.try_acquire(RESOURCE, TTL)? {
            Some(lock) => lock,
            None => {
                println!("another host is running it");
                return Ok(ExitCode::from(75)); // EX_TEMPFAIL: try again later
            }
        }
    };
    import(lock, running)
}

fn import(mut lock: Lock, running: impl Fn() -> bool) -> Result<ExitCode, Box<dyn Error>> {
    for part in 1..=5 {
        if !running() {
            println!("interrupted; the next run goes on at part {part}");
            return Ok(ExitCode::from(130)); // the lock is dropped, and so released
        }
        if lock.remaining() < TTL / 2 {
            lock.extend(TTL)?;
        }
        // The write below takes less than 5 s. If less is left (this host was suspended, say), it
        // must not happen any more.
        lock.ensure(Duration::from_secs(5))?;
        println!("importing part {part} of 5");
        thread::sleep(Duration::from_millis(500));
    }
    lock.release()?; // an error says that it was lost before the end
    println!("done");
    Ok(ExitCode::SUCCESS)
}
