//! `lock`, which tries three times, and not `acquire`, which does so for ever.

use std::collections::HashMap;
use std::time::Duration;

use redlock::RedLock;
use speak::{Contender, Said};

struct Redlock {
    manager: RedLock,
    /// A `Lock` borrows its manager; these are its resource and its value, from which one can be made again.
    locks: HashMap<String, Vec<u8>>,
}

impl Contender for Redlock {
    fn acquire(&mut self, name: &str, ttl: Duration, _: Duration) -> Said {
        match self.manager.lock(name.as_bytes(), ttl.as_millis() as usize) {
            Ok(Some(lock)) => {
                let left = Duration::from_millis(lock.validity_time as u64);
                self.locks.insert(name.to_owned(), lock.val.clone());
                Said::Held(left)
            }
            Ok(None) => Said::busy("None"),
            Err(error) => Said::failed(error),
        }
    }

    fn release(&mut self, name: &str) -> Said {
        let Some(val) = self.locks.remove(name) else {
            return Said::lost("no lock");
        };
        self.manager.unlock(&redlock::Lock {
            resource: name.as_bytes().to_vec(),
            val,
            validity_time: 0,
            lock_manager: &self.manager,
        });
        Said::Ok
    }
}

fn main() {
    let manager = RedLock::new(speak::nodes());
    // Three tries, up to 200 ms after each.
    speak::speak(
        "library=redlock version=2.0.0 wait=600",
        Redlock {
            manager,
            locks: HashMap::new(),
        },
    );
}
