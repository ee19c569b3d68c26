use std::collections::HashMap;
use std::time::{Duration, Instant};

use redsync::{Lock, MultiError, RedisInstance, Redsync, RedsyncError};
use speak::{Contender, Said};

struct Contending {
    redsync: Redsync<RedisInstance>,
    locks: HashMap<String, Lock>,
}

impl Contending {
    fn took(&mut self, name: &str, lock: Lock) -> Said {
        let left = lock.expiry.saturating_duration_since(Instant::now());
        self.locks.insert(name.to_owned(), lock);
        Said::Held(left)
    }
}

/// Whether a node said so, whatever the others did.
fn says(errors: &MultiError, what: fn(&RedsyncError) -> bool) -> bool {
    errors.iter().any(what)
}

impl Contender for Contending {
    fn acquire(&mut self, name: &str, ttl: Duration, _: Duration) -> Said {
        match self.redsync.lock(name, ttl) {
            Ok(lock) => self.took(name, lock),
            Err(RedsyncError::LockRetriesExceeded(errors))
                if says(&errors, |error| {
                    matches!(error, RedsyncError::ResourceLocked)
                }) =>
            {
                Said::busy(errors)
            }
            Err(error) => Said::failed(error),
        }
    }

    fn release(&mut self, name: &str) -> Said {
        match self
            .locks
            .remove(name)
            .map(|lock| self.redsync.unlock(&lock))
        {
            Some(Ok(())) => Said::Ok,
            Some(Err(error)) => Said::failed(error),
            None => Said::lost("no lock"),
        }
    }

    fn extend(&mut self, name: &str, ttl: Duration) -> Said {
        let Some(lock) = self.locks.get(name) else {
            return Said::lost("no lock");
        };
        match self.redsync.extend(lock, ttl) {
            Ok(lock) => self.took(name, lock),
            Err(RedsyncError::ExtendRetriesExceeded(errors))
                if errors
                    .iter()
                    .all(|error| matches!(error, RedsyncError::InvalidLease)) =>
            {
                Said::lost(errors)
            }
            Err(error) => Said::failed(error),
        }
    }
}

fn main() {
    let nodes = speak::nodes().into_iter().map(RedisInstance::new);
    let nodes = nodes
        .collect::<Result<Vec<_>, _>>()
        .expect("good addresses");
    let redsync = Redsync::new(nodes);
    // Three tries, 100 to 300 ms apart.
    let ready = "library=redsync version=1.0.1 wait=600";
    speak::speak(
        ready,
        Contending {
            redsync,
            locks: HashMap::new(),
        },
    );
}
