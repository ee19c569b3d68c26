//! What is locked: NAME as a plain lock, or as what a flag says.

use std::ffi::{OsStr, OsString};
use std::time::Duration;

use redlock_sync::{Error, Lock, Lockable, Redlock, Report};

/// As what NAME is locked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    /// So many at a time.
    Slots(u32),
    Shared,
    Exclusive,
    /// And these names, too.
    Also(Vec<OsString>),
}

/// A lock that can be acquired.
pub(crate) struct Target<'a> {
    redlock: Redlock,
    name: &'a [u8],
    /// `None`: it is a plain lock.
    other: Option<Lockable>,
}

impl<'a> Target<'a> {
    /// # Errors
    ///
    /// A name that cannot be one.
    pub(crate) fn new(redlock: Redlock, name: &'a OsStr, kind: &Kind) -> Result<Self, Error> {
        let name = name.as_encoded_bytes();
        let other = match kind {
            Kind::Plain => None,
            Kind::Slots(slots) => Some(redlock.semaphore(name, *slots)?),
            Kind::Shared => Some(redlock.read_lock(name)?),
            Kind::Exclusive => Some(redlock.write_lock(name)?),
            Kind::Also(more) => {
                let more = more.iter().map(|name| name.as_encoded_bytes());
                Some(redlock.several([name].into_iter().chain(more))?)
            }
        };
        Ok(Target {
            redlock,
            name,
            other,
        })
    }

    pub(crate) fn redlock(&self) -> &Redlock {
        &self.redlock
    }

    /// One attempt. `None`: others have it.
    pub(crate) fn try_acquire(&self, ttl: Duration) -> Result<Option<Lock>, Error> {
        match &self.other {
            None => self.redlock.try_acquire(self.name, ttl),
            Some(other) => other.try_acquire(ttl),
        }
    }

    /// One attempt. Its error says why there is no lock.
    #[cfg(target_os = "linux")]
    pub(crate) fn acquire_at_once(&self, ttl: Duration) -> Result<Lock, Error> {
        match &self.other {
            None => self.redlock.acquire_within(self.name, ttl, Duration::ZERO),
            Some(other) => other.acquire_within(ttl, Duration::ZERO),
        }
    }

    #[cfg(target_os = "linux")]
    pub(crate) fn acquire_while(
        &self,
        ttl: Duration,
        keep_trying: impl FnMut() -> bool,
    ) -> Result<Lock, Error> {
        match &self.other {
            None => self.redlock.acquire_while(self.name, ttl, keep_trying),
            Some(other) => other.acquire_while(ttl, keep_trying),
        }
    }

    /// Whether the nodes are fit for it.
    pub(crate) fn check(&self) -> Result<Report, Error> {
        match &self.other {
            None => self.redlock.check(self.name),
            Some(other) => other.check(),
        }
    }

    /// All that is locked.
    pub(crate) fn names(&self) -> Vec<&[u8]> {
        match &self.other {
            None => vec![self.name],
            Some(other) => other.resources().collect(),
        }
    }
}
