//! Errors that answer "what should I do now".

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::errors::cause::Cause;
use crate::errors::lock_error::{
    Busy, Cancelled, ExtensionLimit, Lost, LostReason, OtherKind, TooSlow, done_suffix,
};
use crate::errors::node_errors::NodeErrors;
use crate::values::clock;
use crate::values::config_error::ConfigError;
use crate::values::label::Label;
use crate::values::token::RandomError;

/// Why an operation on a lock did not succeed.
///
/// | error | what to do |
/// | --- | --- |
/// | [`Config`](Error::Config) | fix the code or the configuration; trying again gives the same |
/// | [`Busy`](Error::Busy) | another holder has the lock: come back later, or leave the work to it |
/// | [`OtherKind`](Error::OtherKind) | give the lock another name, as one name is for one kind of lock; or try again when what the text names has ended |
/// | [`Lost`](Error::Lost) | stop what the lock protects, now |
/// | [`TooSlow`](Error::TooSlow) | from `ensure`: stop, as with `Lost`; else use a longer ttl, or faster nodes |
/// | [`Unavailable`](Error::Unavailable) | look at the nodes, or wait for [`retry_after`](NodeErrors::retry_after); it is not known whether the lock is held |
/// | [`ExtensionLimit`](Error::ExtensionLimit) | finish: the lock is valid until its deadline |
/// | [`Cancelled`](Error::Cancelled) | nothing: you asked for it |
/// | [`Random`](Error::Random) | find out what is wrong with the operating system's random generator |
#[non_exhaustive]
pub enum Error {
    /// A value that was passed in cannot work: an empty node list, a bad URL, a ttl out of range, one
    /// server under two addresses, … The text names the value and the limit. Never retried.
    Config(ConfigError),
    /// Another holder had the lock for the whole time waited. (Or, [more
    /// rarely](crate::guide::faq#what-does-none-mean), no majority could be won for another reason.) The value inside
    /// has the name, and, if the nodes reported them, the holder's label and how long it still has the lock.
    Busy(Busy),
    /// A majority of the nodes has another kind of lock under the name, or data that is no lock: the text names it. The calls
    /// on a [`Lockable`](crate::Lockable) return this at once, without waiting: two programs that use one name for two kinds
    /// are a mistake, even though the other lock will end. A plain lock on such a name waits, and is [`Busy`](Error::Busy).
    OtherKind(OtherKind),
    /// This lock is no longer held: its validity is over, or a majority of the nodes replied so.
    Lost(Lost),
    /// Not enough validity. From an acquisition: the validity was over before enough nodes had answered, or when the
    /// lock was granted; then it has been released again. From [`Lock::ensure`](crate::Lock::ensure): less is left than
    /// asked for, but the lock is still held. The value inside has what was left and what was asked for.
    TooSlow(TooSlow),
    /// Too few nodes answered to decide. The value inside has the cause at each failed node. If nodes refuse
    /// [for good](NodeErrors::is_permanent) and no majority is left, this is returned at once, without waiting.
    Unavailable(NodeErrors),
    /// The bound on extensions ([`Options::max_extensions`](crate::Options::max_extensions), its value is inside) is
    /// used up. The lock itself is valid until its deadline.
    ExtensionLimit(ExtensionLimit),
    /// [`Redlock::acquire_while`](crate::Redlock::acquire_while) was stopped by its caller.
    Cancelled(Cancelled),
    /// The operating system supplied no random bytes for a token.
    Random(RandomError),
}

impl Error {
    pub(crate) fn config(text: impl Into<String>) -> Error {
        Error::Config(ConfigError::new(text))
    }

    pub(crate) fn random(error: getrandom::Error) -> Error {
        Error::Random(RandomError(error))
    }

    pub(crate) fn busy(
        resource: &Arc<[u8]>,
        holder: Option<Label>,
        until: Option<Instant>,
        is_own: bool,
    ) -> Error {
        let left = |end: Instant| end.checked_duration_since(clock::instant());
        Error::Busy(Busy {
            resource: resource.clone(),
            remaining: until.and_then(left).filter(|left| !left.is_zero()),
            holder,
            is_own,
        })
    }

    pub(crate) fn lost(resource: &Arc<[u8]>, reason: LostReason) -> Error {
        let resource = resource.clone();
        let after_work = false;
        Error::Lost(Lost {
            resource,
            reason,
            after_work,
        })
    }

    /// Whether the work of the call had succeeded when it failed: the work is done, perhaps unprotected in its last part.
    /// So it is with the calls that do work under a lock, if the lock was lost by the end of the work: `with_lock` of
    /// [`Redlock`](crate::Redlock::with_lock), [`Lockable`](crate::Lockable::with_lock) and
    /// [`Reentrant`](crate::Reentrant::with_lock), `with_kept_lock` of [`Redlock`](crate::Redlock::with_kept_lock) and
    /// [`Lockable`](crate::Lockable::with_kept_lock); and with [`once_per`](crate::Redlock::once_per), if the work could not
    /// be marked as done ([`Error::Lost`] or [`Error::Unavailable`]): the next call may do it again.
    ///
    /// False for all other calls, and if these fail before the work, or the work itself returns the error.
    pub fn after_work(&self) -> bool {
        match self {
            Error::Lost(lost) => lost.after_work,
            Error::Unavailable(nodes) => nodes.after_work,
            _ => false,
        }
    }

    /// Marks that work under the lock had succeeded.
    pub(crate) fn done_before(self) -> Error {
        match self {
            Error::Lost(lost) => Error::Lost(Lost {
                after_work: true,
                ..lost
            }),
            Error::Unavailable(mut nodes) => {
                nodes.after_work = true;
                Error::Unavailable(nodes)
            }
            other => other,
        }
    }

    pub(crate) fn too_slow(resource: &Arc<[u8]>, left: Duration, asked: Duration) -> Error {
        let resource = resource.clone();
        Error::TooSlow(TooSlow {
            resource,
            remaining: left,
            asked,
        })
    }

    pub(crate) fn extension_limit(resource: &Arc<[u8]>, limit: u32) -> Error {
        let resource = resource.clone();
        Error::ExtensionLimit(ExtensionLimit { resource, limit })
    }

    pub(crate) fn cancelled(resource: &Arc<[u8]>) -> Error {
        let resource = resource.clone();
        Error::Cancelled(Cancelled { resource })
    }

    /// Whether another holder has the lock.
    pub fn is_busy(&self) -> bool {
        matches!(self, Error::Busy(_))
    }

    /// The lock's name, if the error is about one lock: not for [`Config`](Error::Config),
    /// [`Unavailable`](Error::Unavailable) and [`Random`](Error::Random).
    pub fn resource(&self) -> Option<&[u8]> {
        match self {
            Error::Busy(busy) => Some(busy.resource()),
            Error::OtherKind(other) => Some(other.resource()),
            Error::Lost(lost) => Some(lost.resource()),
            Error::TooSlow(slow) => Some(slow.resource()),
            Error::ExtensionLimit(limit) => Some(limit.resource()),
            Error::Cancelled(cancelled) => Some(cancelled.resource()),
            Error::Config(_) | Error::Unavailable(_) | Error::Random(_) => None,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Config(error) => write!(f, "{error}"),
            Error::Busy(busy) => write!(f, "{busy}"),
            Error::OtherKind(other) => write!(f, "{other}"),
            Error::Lost(lost) => write!(f, "{lost}"),
            Error::TooSlow(slow) => write!(f, "{slow}"),
            Error::Unavailable(nodes) => match nodes.only() {
                Some(node) => {
                    let what = match *node.cause {
                        Cause::Refused(_)
                        | Cause::OtherSlots(_)
                        | Cause::LoggedOut(_)
                        | Cause::Demoted(_)
                        | Cause::NoWitness(_)
                        | Cause::NoRelease(_)
                        | Cause::NeedsScripts(..)
                        | Cause::NoMark(_) => "refused",
                        Cause::Replica(_) | Cause::Sentinel | Cause::MasterReplaced(_) => {
                            "is no master"
                        }
                        Cause::NoMaster(..) | Cause::FewName(..) | Cause::NoAddress(_) => {
                            "has no master"
                        }
                        Cause::Quarantined(..) | Cause::Stepped(..) => "does not vote yet",
                        Cause::NoThread(_) => "was not asked",
                        _ => "did not answer",
                    };
                    write!(
                        f,
                        "the node {what}: {node}{}",
                        done_suffix(nodes.after_work)
                    )
                }
                None => write!(f, "no majority: {nodes}"),
            },
            Error::ExtensionLimit(limit) => write!(f, "{limit}"),
            Error::Cancelled(cancelled) => write!(f, "{cancelled}"),
            Error::Random(_) => f.write_str("the operating system gave no random bytes"),
        }
    }
}

/// Shows the same as `Display`: this is the output of a `main` that returns the error.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Error::Random(error) => Some(error),
            _ => None,
        }
    }
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Error {
        Error::Config(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errors::cause::Limit;
    use crate::errors::node_errors::NodeError;
    use crate::values::arithmetic::{Question, Tally};
    use crate::values::node_set::NodeSet;

    #[test]
    fn the_error_is_small() {
        assert!(std::mem::size_of::<Error>() <= 64);
    }

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_votes_are_written_before_the_causes() {
        let error = |node: usize| NodeError {
            node,
            address: format!("10.0.0.{node}:6379").into(),
            cause: Arc::new(Cause::NoAnswer(50 * MS, Limit::Node(1))),
        };
        let votes = |question, yes, no, failed: &[usize], nodes| {
            let tally = Tally {
                granted: NodeSet::first(yes),
                denied: NodeSet::first(yes + no).without(NodeSet::first(yes)),
                ..Tally::default()
            };
            let errors = failed.iter().copied().map(error).collect();
            let errors = NodeErrors::new(errors, None).with_votes(question, tally, nodes);
            Error::Unavailable(errors).to_string()
        };
        let silent = "no answer within 50 ms (node_timeout)";
        assert_eq!(
            votes(Question::Held, 1, 1, &[2, 3, 4], 5),
            format!(
                "no majority: 2 of 5 answered (held by 1, not held by 1); \
                 node 2 (10.0.0.2:6379): {silent}; node 3 (10.0.0.3:6379): {silent}; \
                 node 4 (10.0.0.4:6379): {silent}"
            )
        );
        let text = votes(Question::Acquire, 1, 0, &[3, 4], 5);
        let start =
            "no majority: 1 of 5 answered (granted by 1, denied by 0), 2 not waited for; node 3 (";
        assert!(text.starts_with(start), "{text}");
        let text = votes(Question::Answer, 1, 0, &[1, 2], 3);
        let start = "no majority: 1 of 3 answered; node 1 (";
        assert!(text.starts_with(start), "{text}");
        let text = votes(Question::Acquire, 0, 0, &[], 1);
        assert!(
            text.ends_with("0 of 1 answered (granted by 0, denied by 0), 1 not waited for"),
            "{text}"
        );
    }

    #[test]
    fn one_node_is_not_counted() {
        let text = |cause: Cause| {
            let error = NodeError {
                node: 0,
                address: "10.0.0.1:6379".into(),
                cause: Arc::new(cause),
            };
            let errors = NodeErrors::new(vec![error], None);
            let errors = errors.with_votes(Question::Acquire, Tally::default(), 1);
            let error = Error::Unavailable(errors);
            assert_eq!(format!("{error:?}"), error.to_string());
            error.to_string()
        };
        assert_eq!(
            text(Cause::NoAnswer(50 * MS, Limit::Node(1))),
            "the node did not answer: 10.0.0.1:6379: no answer within 50 ms (node_timeout)"
        );
        assert!(text(Cause::refused("LOADING x")).starts_with("the node refused: 10.0.0.1:6379: "));
        let quarantined = text(Cause::Quarantined(MS, false));
        assert!(
            quarantined.starts_with("the node does not vote yet: "),
            "{quarantined}"
        );
    }
}
