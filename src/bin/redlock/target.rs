//! The lock to take: NAME as a plain lock, or as the kind that a flag names.

use std::ffi::{OsStr, OsString};
use std::time::Duration;

#[cfg(target_os = "linux")]
use redlock_sync::command;
use redlock_sync::{Error, Lock, Lockable, Redlock, Report};

/// The kind of lock on NAME.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TargetKind {
    Plain,
    /// A semaphore with this number of slots.
    Slots(u32),
    Shared,
    Exclusive,
    /// NAME together with these names.
    Also(Vec<OsString>),
}

/// A lock that can be acquired.
pub(crate) struct Target<'a> {
    redlock: Redlock,
    name: &'a [u8],
    /// `None`: a plain lock.
    other: Option<Lockable>,
}

impl<'a> Target<'a> {
    /// # Errors
    ///
    /// The name is not allowed.
    pub(crate) fn new(redlock: Redlock, name: &'a OsStr, kind: &TargetKind) -> Result<Self, Error> {
        let name = name.as_encoded_bytes();
        let other = match kind {
            TargetKind::Plain => None,
            TargetKind::Slots(slots) => Some(redlock.semaphore(name, *slots)?),
            TargetKind::Shared => Some(redlock.read_lock(name)?),
            TargetKind::Exclusive => Some(redlock.write_lock(name)?),
            TargetKind::Also(more) => {
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

    /// One attempt. `None`: others have the lock.
    pub(crate) fn try_acquire(&self, ttl: Duration) -> Result<Option<Lock>, Error> {
        match &self.other {
            None => self.redlock.try_acquire(self.name, ttl),
            Some(other) => other.try_acquire(ttl),
        }
    }

    /// Waits for at most `wait`, and while `keep_trying` returns true, which also ends an attempt that waits for its first
    /// connections. The error has the reason if there is no lock.
    #[cfg(target_os = "linux")]
    pub(crate) fn acquire_within(
        &self,
        ttl: Duration,
        wait: Duration,
        keep_trying: impl FnMut() -> bool,
    ) -> Result<Lock, Error> {
        match &self.other {
            None => command::acquire(&self.redlock, self.name, ttl, wait, keep_trying),
            Some(other) => command::acquire_of_kind(other, ttl, wait, keep_trying),
        }
    }

    /// Whether the nodes are fit for this kind of lock.
    pub(crate) fn check(&self) -> Result<Report, Error> {
        match &self.other {
            None => self.redlock.check(self.name),
            Some(other) => other.check(),
        }
    }

    /// All locked names.
    pub(crate) fn names(&self) -> Vec<&[u8]> {
        match &self.other {
            None => vec![self.name],
            Some(other) => other.resources().collect(),
        }
    }
}
