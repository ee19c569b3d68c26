//! Errors that answer "what should I do now".

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Why an operation on a lock did not succeed.
///
/// | error | what to do |
/// | --- | --- |
/// | [`Config`](Error::Config) | fix the code or the configuration; trying again gives the same |
/// | [`Busy`](Error::Busy) | somebody else has it: come back later, or leave the work to them |
/// | [`Lost`](Error::Lost) | stop what the lock protects, now |
/// | [`TooSlow`](Error::TooSlow) | a longer ttl, or faster nodes |
/// | [`Unavailable`](Error::Unavailable) | look at the nodes; nothing is known about the lock |
/// | [`ExtensionLimit`](Error::ExtensionLimit) | finish: the lock is valid until its deadline |
/// | [`Cancelled`](Error::Cancelled) | nothing: you asked for it |
/// | [`Random`](Error::Random) | look at the operating system |
#[derive(Debug)]
#[non_exhaustive]
pub enum Error {
    /// Something passed in cannot work: an empty node list, a bad URL, a ttl out of range, one
    /// server given under two addresses, … The text names the value and the limit. Never retried.
    Config(ConfigError),
    /// Held by another, for the whole time waited.
    Busy,
    /// This lock is no longer held: its validity is over, or a majority of the nodes said so.
    Lost,
    /// Not enough validity: granted too late to be of use (acquire; it has been released again), or
    /// less left than asked for ([`Lock::ensure`](crate::Lock::ensure); it is still held).
    TooSlow,
    /// Too few nodes answered for a verdict. Each failed node's cause is inside.
    Unavailable(NodeErrors),
    /// The bound on extensions, given here, is used up. The lock itself is valid until its deadline.
    ExtensionLimit(u32),
    /// [`Redlock::acquire_while`](crate::Redlock::acquire_while) was told to stop.
    Cancelled,
    /// The operating system gave no random bytes for a token.
    Random(RandomError),
}

impl Error {
    pub(crate) fn config(text: impl Into<String>) -> Error {
        Error::Config(ConfigError::new(text))
    }

    pub(crate) fn random(error: getrandom::Error) -> Error {
        Error::Random(RandomError(error))
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Config(error) => write!(f, "{error}"),
            Error::Busy => f.write_str("the lock is held by another"),
            Error::Lost => f.write_str("the lock is no longer held"),
            Error::TooSlow => f.write_str("not enough of the lock's validity is left"),
            Error::Unavailable(nodes) => {
                write!(f, "too few nodes answered for a verdict: {nodes}")
            }
            Error::ExtensionLimit(limit) => write!(
                f,
                "the limit of {limit} extensions is reached; the lock stays valid until its deadline"
            ),
            Error::Cancelled => f.write_str("told to stop waiting for the lock"),
            Error::Random(_) => f.write_str("the operating system gave no random bytes"),
        }
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

/// What was wrong with a value passed in: the value, the limit, what to do.
#[derive(Clone, Debug)]
pub struct ConfigError(Box<str>);

impl ConfigError {
    pub(crate) fn new(text: impl Into<String>) -> ConfigError {
        ConfigError(text.into().into_boxed_str())
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl StdError for ConfigError {}

/// Why the operating system gave no random bytes.
#[derive(Clone, Debug)]
pub struct RandomError(getrandom::Error);

impl fmt::Display for RandomError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl StdError for RandomError {}

/// The nodes that failed, each with its cause.
///
/// Nodes that answered, and nodes that were merely not waited for, are not among them. Shows the
/// nodes' indices and addresses, never a password.
#[derive(Clone, Debug)]
pub struct NodeErrors(Box<[NodeError]>);

impl NodeErrors {
    pub(crate) fn new(errors: Vec<NodeError>) -> NodeErrors {
        NodeErrors(errors.into_boxed_slice())
    }

    /// The failed nodes' indices (in the order of [`Redlock::new`](crate::Redlock::new)) and causes.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &dyn StdError)> {
        self.0
            .iter()
            .map(|error| (error.node, error as &dyn StdError))
    }

    /// One server under two addresses is a mistake in the configuration, not an outage.
    pub(crate) fn same_server(&self) -> Option<ConfigError> {
        self.0.iter().find_map(|error| match *error.cause {
            Cause::SameServer(other) => Some(ConfigError::new(format!(
                "nodes {} and {} are one server (the same run_id): its vote must count once, give \
                 each server once",
                other.min(error.node),
                other.max(error.node)
            ))),
            _ => None,
        })
    }
}

impl fmt::Display for NodeErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.0.iter().enumerate() {
            let separator = if i == 0 { "" } else { "; " };
            write!(
                f,
                "{separator}node {} ({}): {}",
                error.node, error.address, error.cause
            )?;
        }
        Ok(())
    }
}

/// One node's failure.
#[derive(Clone, Debug)]
pub(crate) struct NodeError {
    pub(crate) node: usize,
    pub(crate) address: Arc<str>,
    pub(crate) cause: Arc<Cause>,
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.address, self.cause)
    }
}

impl StdError for NodeError {}

/// Why a node gave no vote.
#[derive(Debug)]
pub(crate) enum Cause {
    /// Not connected yet: nobody has tried, or the try is still under way after this time.
    NotConnected(Duration),
    /// Connecting failed.
    Connect(String),
    /// Connected, and no answer within this time.
    Silent(Duration),
    /// The node, or something on the way, closed the connection.
    Closed(String),
    /// What came is not an answer to what was asked.
    Garbage(String),
    /// The server answered with an error.
    Refused(String),
    /// It is the same server as another node of this index (rule R1).
    SameServer(usize),
    /// This process cannot start the thread that connects.
    NoThread(String),
}

impl Cause {
    /// An I/O error on a connection that was up.
    pub(crate) fn io(error: &io::Error) -> Cause {
        Cause::Closed(error.to_string())
    }

    /// A server's error text, without the arguments that some errors repeat: the token or the
    /// password may be among them.
    pub(crate) fn refused(text: &str) -> Cause {
        let end = text
            .find(", with args beginning with")
            .unwrap_or(text.len());
        Cause::Refused(text.get(..end).unwrap_or_default().to_owned())
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::NotConnected(time) if time.is_zero() => f.write_str("not connected yet"),
            Cause::NotConnected(time) => write!(f, "not connected within {time:?}"),
            Cause::Connect(text) => write!(f, "cannot connect: {text}"),
            Cause::Silent(time) => write!(f, "no answer within {time:?}"),
            Cause::Closed(text) => write!(f, "connection closed: {text}"),
            Cause::Garbage(text) => write!(f, "not a Redis answer: {text}"),
            Cause::Refused(text) => write!(f, "the server answered: {text}"),
            Cause::SameServer(other) => write!(f, "the same server as node {other}"),
            Cause::NoThread(text) => write!(f, "cannot start a thread to connect: {text}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_is_small() {
        assert!(std::mem::size_of::<Error>() <= 64);
    }

    #[test]
    fn a_server_error_never_repeats_the_arguments() {
        let text = "ERR unknown command 'AUTH', with args beginning with: 'hunter2' ";
        assert_eq!(
            Cause::refused(text).to_string(),
            "the server answered: ERR unknown command 'AUTH'"
        );
    }
}
