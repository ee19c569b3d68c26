//! One Redis, one lock: what to do with it, step by step.
//!
//! ```sh
//! cargo run --example single_instance                 # starts a private redis-server
//! REDLOCK_NODES=redis://127.0.0.1 cargo run --example single_instance
//! ```

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::Duration;

use redlock_sync::{Error, Options, Redlock};

fn main() -> Result<(), Error> {
    let (_private, nodes) = support::given_or_private(1);

    // One per program: clones, threads and locks share its connection. The node may take this long
    // to answer before it counts as failed; 50 ms by default.
    let options = Options::new().node_timeout(Duration::from_millis(500));
    let redlock = Redlock::new(nodes)?.with_options(options)?;

    // Waits while others have the lock, up to `Options::wait`. It ends by itself after 10 s, should
    // this program die.
    let mut lock = redlock.acquire("shop:account:17", Duration::from_secs(10))?;
    println!("acquired, valid for {:?}", lock.remaining());

    // No other client gets it meanwhile.
    let other = redlock.try_acquire("shop:account:17", Duration::from_secs(10))?;
    println!("another client asks for it: {other:?}");

    // The work takes longer than thought.
    lock.extend(Duration::from_secs(30))?;
    println!("extended, valid for {:?}", lock.remaining());

    // Before the write that must not happen twice: is there time for it?
    lock.ensure(Duration::from_secs(5))?;
    println!("writing");

    // Dropping the lock releases it too; this tells whether it was still held.
    lock.release()?;
    println!("released");
    Ok(())
}
