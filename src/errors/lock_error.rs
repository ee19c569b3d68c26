//! The contents of the errors of one lock: its name, and the times that belong to it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::errors::shown::Shown;
use crate::errors::text::human;
use crate::values::label::Label;

/// Another holder has the lock.
#[derive(Clone)]
pub struct Busy {
    pub(crate) resource: Arc<[u8]>,
    pub(crate) remaining: Option<Duration>,
    pub(crate) holder: Option<Label>,
    pub(crate) is_own: bool,
}

impl Busy {
    /// The name of the lock.
    pub fn resource(&self) -> &[u8] {
        &self.resource
    }

    /// How long the holder has the lock at most, counted from when the error was made, unless it extends or releases
    /// it. The time is from the last answers of the nodes; no node is asked for it.
    ///
    /// `None` if the answers did not have it: the call tried only once for a plain lock, whose command has no such answer,
    /// no majority names one holder, or the key has no end. [`Redlock::inspect`](crate::Redlock::inspect) asks the nodes.
    pub fn remaining(&self) -> Option<Duration> {
        self.remaining
    }

    /// The holder's [label](crate::Options::label), from the same answers. `None`: it has none, or the answers did not
    /// have it.
    pub fn label(&self) -> Option<&str> {
        self.holder.as_ref().map(Label::as_str)
    }

    /// Whether this program itself has the lock: a [`Lock`](crate::Lock) of this name, acquired by the same
    /// [`Redlock`](crate::Redlock) or a clone of it, was neither released nor dropped. No node is asked for that. A thread
    /// that enters its own lock again needs [`Reentrant`](crate::Reentrant).
    ///
    /// False does not show that another program has it: only plain locks are looked for, and of very many locks some are
    /// not found.
    pub fn is_own(&self) -> bool {
        self.is_own
    }
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = match self.is_own {
            true => "this program itself",
            false => "another",
        };
        write!(f, "{who} has the lock {}", Shown(&self.resource))?;
        if let Some(label) = self.label() {
            write!(f, ": {label}")?;
        }
        match self.remaining {
            Some(left) => write!(f, ", for {} more", human(left)),
            None => Ok(()),
        }
    }
}

/// The name of a lock is in use as another kind of lock, or for data that is no lock.
#[derive(Clone)]
pub struct OtherKind {
    pub(crate) resource: Arc<[u8]>,
    /// The number of names that were to be acquired together.
    pub(crate) names: usize,
    /// A phrase that describes the use of the name.
    pub(crate) found: &'static str,
    /// One of the nodes that report it.
    pub(crate) node: Box<str>,
}

impl OtherKind {
    /// The name of the lock that was to be acquired. Of several names that were to be acquired together, the first in the
    /// order of their bytes: the nodes do not report which of them is in other use.
    pub fn resource(&self) -> &[u8] {
        &self.resource
    }
}

impl fmt::Display for OtherKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, found, node) = (Shown(&self.resource), self.found, &self.node);
        if self.names > 1 {
            write!(f, "one of the {} names from {name} on ", self.names)?;
        } else {
            write!(f, "{name} ")?;
        }
        write!(f, "{found} ({node}): one name is one kind of lock")
    }
}

/// The lock is no longer held.
#[derive(Clone)]
pub struct Lost {
    pub(crate) resource: Arc<[u8]>,
    pub(crate) reason: LostReason,
    pub(crate) after_work: bool,
}

/// Why a lock was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// Too few nodes still hold the lock for a majority, and another holder has it, on one of them at least.
    Taken,
    /// Too few nodes still hold the lock for a majority, and none of those that do not has another holder's: its key was
    /// deleted, or they have lost their data. (Or no lock was ever there: see [`Redlock::resume`](crate::Redlock::resume).)
    Deleted,
    /// Too few nodes still hold the lock for a majority, and they do not report why: servers that run no scripts.
    NotHeld,
    /// The validity ended before a majority of the nodes had confirmed a renewal; or, if the lock was not kept alive,
    /// before it was extended or released.
    Expired,
    /// `max_hold` was used up, so the lock was no longer renewed.
    HoldLimit,
    /// The lock belongs to the process from which this one was forked.
    OtherProcess,
    /// The lock was released before, and a handle of it is left: an entry of a [`ReentrantLock`](crate::ReentrantLock), or
    /// one in C.
    Released,
}

impl LostReason {
    /// A clause that describes it.
    pub(crate) fn text(self) -> &'static str {
        match self {
            LostReason::Taken => "another has it",
            LostReason::Deleted => "its key was deleted, and no holder has it",
            LostReason::NotHeld => "the nodes no longer have it",
            LostReason::Expired => "its time was over before it was renewed or released",
            LostReason::HoldLimit => "it was held for as long as max_hold permits",
            LostReason::OtherProcess => "it belongs to the process that forked this one",
            LostReason::Released => "it was released before",
        }
    }
}

impl Lost {
    /// The name of the lock that was held.
    pub fn resource(&self) -> &[u8] {
        &self.resource
    }

    /// Why it was lost.
    pub fn reason(&self) -> LostReason {
        self.reason
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, reason) = (Shown(&self.resource), self.reason.text());
        let done = done_suffix(self.after_work);
        write!(f, "the lock {name} is no longer held: {reason}{done}")
    }
}

/// The end of a text about work that is done.
pub(crate) fn done_suffix(is_done: bool) -> &'static str {
    if is_done {
        "; the work under the lock is done"
    } else {
        ""
    }
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// Too little of a lock's validity is left.
#[derive(Clone)]
pub struct TooSlow {
    pub(crate) resource: Arc<[u8]>,
    pub(crate) remaining: Duration,
    pub(crate) asked: Duration,
}

impl TooSlow {
    /// The name of the lock that is held, or was to be.
    pub fn resource(&self) -> &[u8] {
        &self.resource
    }

    /// The rest of the validity. Zero for an acquisition: the lock is not held.
    pub fn remaining(&self) -> Duration {
        self.remaining
    }

    /// The time asked for: that passed to [`ensure`](crate::Lock::ensure), or the ttl of an acquisition.
    pub fn asked(&self) -> Duration {
        self.asked
    }
}

impl fmt::Display for TooSlow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, asked) = (Shown(&self.resource), human(self.asked));
        if self.remaining.is_zero() {
            return write!(
                f,
                "it took too long to acquire the lock {name}: nothing is left of its ttl, {asked}"
            );
        }
        let left = human(self.remaining);
        write!(
            f,
            "{left} is left of the lock {name}, and {asked} was asked for"
        )
    }
}

/// A lock's bound on extensions is used up.
#[derive(Clone)]
pub struct ExtensionLimit {
    pub(crate) resource: Arc<[u8]>,
    pub(crate) limit: u32,
}

impl ExtensionLimit {
    /// The name of the lock.
    pub fn resource(&self) -> &[u8] {
        &self.resource
    }

    /// The bound: [`Options::max_extensions`](crate::Options::max_extensions).
    pub fn limit(&self) -> u32 {
        self.limit
    }
}

impl fmt::Display for ExtensionLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the limit of {} extensions of the lock {} is reached; it stays valid until its deadline",
            self.limit,
            Shown(&self.resource)
        )
    }
}

/// The caller did not want to wait for the lock any longer.
#[derive(Clone)]
pub struct Cancelled {
    pub(crate) resource: Arc<[u8]>,
}

impl Cancelled {
    /// The name of the lock that was to be acquired.
    pub fn resource(&self) -> &[u8] {
        &self.resource
    }
}

impl fmt::Display for Cancelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Shown(&self.resource);
        write!(f, "told to stop waiting for the lock {name}")
    }
}

/// `Debug` that shows the same as `Display`, like that of [`Error`](crate::Error).
macro_rules! debug_as_display {
    ($($name:ident),*) => {$(
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    )*};
}

debug_as_display!(Busy, OtherKind, Lost, TooSlow, ExtensionLimit, Cancelled);

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use crate::errors::error::Error;
    use crate::errors::lock_error::LostReason;
    use crate::values::clock;
    use crate::values::label::Label;

    fn busy(name: &Arc<[u8]>, label: Option<&str>, left: Option<Duration>) -> Error {
        let until = left.map(|left| clock::instant() + left);
        Error::busy(name, label.and_then(Label::new), until, false)
    }

    #[test]
    fn an_error_is_no_larger_than_a_cache_line() {
        assert!(size_of::<Error>() <= 64, "{}", size_of::<Error>());
    }

    #[test]
    fn the_lock_is_named_with_the_time_that_was_reported() {
        let name: Arc<[u8]> = Arc::from(&b"shop:a\n"[..]);
        let s = Duration::from_secs;
        for (error, text) in [
            (
                busy(&name, None, None),
                r#"another has the lock "shop:a\n""#,
            ),
            (
                busy(&name, None, Some(s(7210))),
                r#"another has the lock "shop:a\n", for 2 h more"#,
            ),
            (
                busy(&name, Some("web-2:4711"), Some(s(7210))),
                r#"another has the lock "shop:a\n": web-2:4711, for 2 h more"#,
            ),
            (
                busy(&name, Some("web-2:4711"), None),
                r#"another has the lock "shop:a\n": web-2:4711"#,
            ),
            (
                Error::lost(&name, LostReason::Taken),
                r#"the lock "shop:a\n" is no longer held: another has it"#,
            ),
            (
                Error::lost(&name, LostReason::Deleted),
                r#"the lock "shop:a\n" is no longer held: its key was deleted, and no holder has it"#,
            ),
            (
                Error::lost(&name, LostReason::Expired).done_before(),
                r#"the lock "shop:a\n" is no longer held: its time was over before it was renewed or released; the work under the lock is done"#,
            ),
            (
                Error::too_slow(&name, Duration::ZERO, s(1)),
                r#"it took too long to acquire the lock "shop:a\n": nothing is left of its ttl, 1 s"#,
            ),
            (
                Error::too_slow(&name, s(1) / 8, s(1)),
                r#"125 ms is left of the lock "shop:a\n", and 1 s was asked for"#,
            ),
            (
                Error::extension_limit(&name, 3),
                r#"the limit of 3 extensions of the lock "shop:a\n" is reached; it stays valid until its deadline"#,
            ),
            (
                Error::cancelled(&name),
                r#"told to stop waiting for the lock "shop:a\n""#,
            ),
        ] {
            assert_eq!(error.to_string(), text);
            assert_eq!(format!("{error:?}"), text);
            assert_eq!(error.resource(), Some(&name[..]));
            assert_eq!(error.is_busy(), text.starts_with("another"));
        }
        assert_eq!(Error::config("x").resource(), None);
    }

    /// A time that is already over reveals nothing of the holder.
    #[test]
    fn no_time_is_left_of_what_has_passed() {
        let name: Arc<[u8]> = Arc::from(&b"a"[..]);
        let text = busy(&name, None, Some(Duration::ZERO)).to_string();
        assert_eq!(text, r#"another has the lock "a""#);
    }
}
