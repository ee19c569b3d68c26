//! At most one message per user and second, over all hosts: a lock that is taken and left to expire.
//!
//! ```sh
//! cargo run --example throttle                        # starts a private redis-server
//! REDLOCK_NODES=redis://127.0.0.1 cargo run --example throttle
//! ```

#[path = "../tests/support/mod.rs"]
mod support;

use std::thread;
use std::time::Duration;

use redlock_sync::{Error, Options, Redlock};

fn allowed(redlock: &Redlock, user: &str) -> Result<bool, Error> {
    match redlock.try_acquire(format!("message:{user}"), Duration::from_secs(1))? {
        Some(lock) => {
            lock.leak(); // not released: the second runs to its end
            Ok(true)
        }
        None => Ok(false),
    }
}

fn main() -> Result<(), Error> {
    let (_private, nodes) = support::given_or_private(1);
    let options = Options::new().node_timeout(Duration::from_millis(500));
    let redlock = Redlock::new(nodes)?.with_options(options)?;
    for _ in 0..6 {
        for user in ["ann", "bob"] {
            let verdict = match allowed(&redlock, user) {
                Ok(true) => "sent",
                Ok(false) => "too soon",
                // What a throttle does while too few nodes answer is for you to decide.
                Err(Error::Unavailable(nodes)) => {
                    eprintln!("{nodes}");
                    "sent all the same"
                }
                Err(error) => return Err(error),
            };
            println!("{user}: {verdict}");
        }
        thread::sleep(Duration::from_millis(400));
    }
    Ok(())
}
