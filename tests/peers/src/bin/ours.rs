//! This crate, with its default options.

use std::collections::HashMap;
use std::time::Duration;

use redlock_sync::{Error, Lock, Options, Redlock};
use speak::{Contender, Said};

/// There is no lock.
const GONE: &str = "the lock is no longer held";

struct Ours {
    redlock: Redlock,
    locks: HashMap<String, Lock>,
}

impl Contender for Ours {
    fn acquire(&mut self, name: &str, ttl: Duration, wait: Duration) -> Said {
        match self.redlock.acquire_within(name, ttl, wait) {
            Ok(lock) => {
                let left = lock.remaining();
                self.locks.insert(name.to_owned(), lock);
                Said::Held(left)
            }
            Err(busy @ Error::Busy(_)) => Said::busy(busy),
            Err(error) => Said::failed(error),
        }
    }

    fn release(&mut self, name: &str) -> Said {
        match self.locks.remove(name).map(Lock::release) {
            Some(Ok(())) => Said::Ok,
            Some(Err(lost @ Error::Lost(_))) => Said::lost(lost),
            None => Said::lost(GONE),
            Some(Err(error)) => Said::failed(error),
        }
    }

    fn extend(&mut self, name: &str, ttl: Duration) -> Said {
        let Some(lock) = self.locks.get_mut(name) else {
            return Said::lost(GONE);
        };
        match lock.extend(ttl) {
            Ok(()) => Said::Held(lock.remaining()),
            Err(lost @ Error::Lost(_)) => Said::lost(lost),
            Err(error) => Said::failed(error),
        }
    }

    fn check(&mut self, name: &str) -> Said {
        match self.locks.get(name).map(Lock::remaining) {
            Some(left) if !left.is_zero() => Said::Held(left),
            _ => Said::lost(GONE),
        }
    }

    fn fence(&mut self, name: &str) -> Said {
        match self.locks.get(name).map(Lock::fencing_token) {
            Some(Ok(number)) => Said::Fence(number),
            Some(Err(lost @ Error::Lost(_))) => Said::lost(lost),
            None => Said::lost(GONE),
            Some(Err(error)) => Said::failed(error),
        }
    }
}

fn main() {
    let mut options = Options::new();
    if let Ok(ttl) = std::env::var("RESTART_GUARD_MS") {
        let ttl = ttl.parse().expect("RESTART_GUARD_MS is a number");
        options = options.restart_guard(Duration::from_millis(ttl));
    }
    let redlock = Redlock::new(speak::nodes()).and_then(|redlock| redlock.with_options(options));
    let ours = Ours {
        redlock: redlock.expect("the addresses and options are good"),
        locks: HashMap::new(),
    };
    let version = concat!("library=redlock-sync version=", env!("OURS_VERSION"));
    speak::speak(&format!("{version} wait=given keeps=:fence,:w"), ours);
}
