//! `lock`, which tries three times, and not `acquire`, which does so for ever.

use std::collections::HashMap;
use std::time::Duration;

use rslock::{Lock, LockError, LockManager};
use speak::{Contender, Said};
use tokio::runtime::Runtime;

struct Rslock {
    runtime: Runtime,
    manager: LockManager,
    locks: HashMap<String, Lock>,
}

impl Rslock {
    fn took(&mut self, name: &str, lock: Result<Lock, LockError>) -> Said {
        match lock {
            Ok(lock) => {
                let left = Duration::from_millis(lock.validity_time as u64);
                self.locks.insert(name.to_owned(), lock);
                Said::Held(left)
            }
            // It tells contention from errors as little as this.
            Err(LockError::Unavailable) => Said::busy(LockError::Unavailable),
            Err(error) => Said::failed(error),
        }
    }
}

impl Contender for Rslock {
    fn acquire(&mut self, name: &str, ttl: Duration, _: Duration) -> Said {
        let lock = self.runtime.block_on(self.manager.lock(name, ttl));
        self.took(name, lock)
    }

    fn release(&mut self, name: &str) -> Said {
        match self.locks.remove(name) {
            Some(lock) => {
                self.runtime.block_on(self.manager.unlock(&lock));
                Said::Ok
            }
            None => Said::lost("no lock"),
        }
    }

    fn extend(&mut self, name: &str, ttl: Duration) -> Said {
        let Some(lock) = self.locks.get(name) else {
            return Said::lost("no lock");
        };
        match self.runtime.block_on(self.manager.extend(lock, ttl)) {
            Err(error) => Said::failed(error),
            lock => self.took(name, lock),
        }
    }

    /// `is_freed`: `Ok(false)` says that the key is there, with this lock's value.
    fn check(&mut self, name: &str) -> Said {
        let Some(lock) = self.locks.get(name) else {
            return Said::lost("no lock");
        };
        match self.runtime.block_on(self.manager.is_freed(lock)) {
            Ok(false) => Said::Ok,
            Ok(true) => Said::lost("freed"),
            Err(error @ (LockError::RedisKeyMismatch | LockError::RedisKeyNotFound)) => {
                Said::lost(error)
            }
            Err(error) => Said::failed(error),
        }
    }
}

fn main() {
    let runtime = Runtime::new().expect("a runtime");
    let manager = LockManager::new(speak::nodes());
    // Three tries, up to 200 ms after the first two.
    let ready = "library=rslock version=0.10.0 wait=400";
    speak::speak(
        ready,
        Rslock {
            runtime,
            manager,
            locks: HashMap::new(),
        },
    );
}
