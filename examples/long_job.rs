//! A job that takes longer than any ttl one would like to wait for after a crash: it keeps its lock
//! with automatic renewal, checks before each write, and stops cleanly when the lock is lost.
//!
//! ```sh
//! cargo run --example long_job
//! ```
//!
//! The nodes are those in `REDLOCK_NODES=redis://…,redis://…`; with none given it starts three
//! private `redis-server`s. In the middle of the job the example itself deletes the lock on a
//! majority of the nodes (as a careless operator would), so that the loss can be seen.

#[path = "../tests/support/mod.rs"]
mod support;

use std::error::Error;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use redlock_sync::{KeptLock, Redlock};

const RESOURCE: &str = "reindex";
/// How long the others wait at most if this host dies.
const TTL: Duration = Duration::from_secs(3);
/// How long the job may hold the lock at most, hung or not.
const MAX_HOLD: Duration = Duration::from_secs(3600);
/// A write takes less than this.
const WRITE: Duration = Duration::from_millis(500);

fn main() -> Result<(), Box<dyn Error>> {
    let (_private, nodes) = support::given_or_private(3);
    let redlock = Redlock::new(nodes.clone())?;
    let lock = redlock.acquire(RESOURCE, TTL)?.keep_alive(MAX_HOLD)?;
    let (signal, signalled) = mpsc::channel();
    lock.on_lost(move |reason| {
        println!("signal: the lock is lost ({reason:?})");
        let _ = signal.send(());
    });

    let started = Instant::now();
    let mut sabotaged = false;
    for record in 0.. {
        if let Err(error) = write(&lock, record) {
            println!("stopped before record {record}: {error}");
            break;
        }
        if !sabotaged && started.elapsed() > 2 * TTL {
            println!("held for {:?}, twice its ttl of {TTL:?}", started.elapsed());
            println!("now the lock is deleted on a majority of the nodes");
            delete_behind_its_back(&nodes)?;
            sabotaged = true;
        }
        thread::sleep(Duration::from_millis(200));
    }
    println!("why: {:?}", lock.lost());
    // The signal comes on a thread of its own, and not at all once the lock is released.
    signalled.recv_timeout(TTL)?;
    match lock.release() {
        Err(redlock_sync::Error::Lost(_)) => println!("release says so too: the lock was lost"),
        other => return Err(format!("the loss went unnoticed: {other:?}").into()),
    }
    Ok(())
}

fn write(lock: &KeptLock, record: u32) -> Result<(), redlock_sync::Error> {
    // Never begin a write that could outlast the lock.
    lock.ensure(WRITE)?;
    if record.is_multiple_of(10) {
        println!(
            "record {record}: {:?} left, {:?} of the hold",
            lock.remaining(),
            lock.hold_left()
        );
    }
    Ok(())
}

fn delete_behind_its_back(nodes: &[String]) -> Result<(), redis::RedisError> {
    for node in nodes.iter().take(nodes.len() / 2 + 1) {
        let mut connection = redis::Client::open(node.as_str())?.get_connection()?;
        redis::cmd("DEL").arg(RESOURCE).exec(&mut connection)?;
    }
    Ok(())
}
