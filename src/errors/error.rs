//! Errors that answer "what should I do now".

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::errors::lock_error::{Busy, Cancelled, ExtensionLimit, Lost, TooSlow};
use crate::errors::server_error::{self, Meaning, brief, without_arguments};
use crate::errors::text::human;
use crate::values::clock;
use crate::values::config_error::ConfigError;
use crate::values::label::Label;
use crate::values::quorum::{Question, Tally};
use crate::values::token::RandomError;

/// Why an operation on a lock did not succeed.
///
/// | error | what to do |
/// | --- | --- |
/// | [`Config`](Error::Config) | fix the code or the configuration; trying again gives the same |
/// | [`Busy`](Error::Busy) | another holder has the lock: come back later, or leave the work to it |
/// | [`Lost`](Error::Lost) | stop what the lock protects, now |
/// | [`TooSlow`](Error::TooSlow) | use a longer ttl, or faster nodes |
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
    ) -> Error {
        let left = |end: Instant| end.checked_duration_since(clock::instant());
        Error::Busy(Busy {
            resource: resource.clone(),
            left: until.and_then(left).filter(|left| !left.is_zero()),
            holder,
        })
    }

    pub(crate) fn lost(resource: &Arc<[u8]>) -> Error {
        let resource = resource.clone();
        Error::Lost(Lost { resource })
    }

    pub(crate) fn too_slow(resource: &Arc<[u8]>, left: Duration, asked: Duration) -> Error {
        let resource = resource.clone();
        Error::TooSlow(TooSlow {
            resource,
            left,
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
                        | Cause::NoRelease(_) => "refused",
                        Cause::Replica(_) | Cause::Sentinel | Cause::Moved(_) => "is no master",
                        Cause::NoMaster(..) | Cause::NoAddress(_) => "has no master",
                        Cause::Quarantined(..) => "does not vote yet",
                        _ => "did not answer",
                    };
                    write!(f, "the node {what}: {node}")
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

/// The nodes that failed, each with its cause.
///
/// Nodes that answered, and nodes that were merely not waited for, are not among them. If the nodes were asked to
/// vote, `Display` starts with the count of the votes (`2 of 5 answered (held by 1, not held by 1)`). Then it gives the
/// index, address and cause of each failed node; never a password.
#[derive(Clone, Debug)]
pub struct NodeErrors {
    nodes: Box<[NodeError]>,
    retry_after: Option<Duration>,
    permanent: bool,
    votes: Option<VoteCount>,
}

/// The counts of the votes: sums over the nodes.
#[derive(Clone, Copy, Debug)]
struct VoteCount {
    question: Question,
    yes: u8,
    no: u8,
    others: u8,
}

impl NodeErrors {
    pub(crate) fn new(errors: Vec<NodeError>, retry_after: Option<Duration>) -> NodeErrors {
        NodeErrors {
            nodes: errors.into_boxed_slice(),
            retry_after,
            permanent: false,
            votes: None,
        }
    }

    /// Marks that these nodes refuse for good, and that no quorum is left.
    pub(crate) fn for_good(mut self) -> NodeErrors {
        self.permanent = true;
        self
    }

    /// Adds the question that all `nodes` were asked, and how they voted.
    pub(crate) fn with_votes(mut self, question: Question, tally: Tally, nodes: usize) -> Self {
        let (yes, no) = (tally.granted.len(), tally.refused.len());
        let others = nodes.saturating_sub(yes + no + self.nodes.len());
        let count = |nodes: usize| u8::try_from(nodes).unwrap_or(u8::MAX);
        self.votes = Some(VoteCount {
            question,
            yes: count(yes),
            no: count(no),
            others: count(others),
        });
        self
    }

    /// How long it takes, from the failure on, until enough nodes vote again, if only the
    /// [restart guard](crate::Options::restart_guard) keeps them from voting. `None`: unknown.
    pub fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    /// Whether nodes refuse for good, and no majority is left. A retry is useless until the URLs or the servers are
    /// changed, so [`acquire`](crate::Redlock::acquire) and [`acquire_while`](crate::Redlock::acquire_while) do not
    /// wait.
    ///
    /// For good: a wrong password, or one for a server that has none (`WRONGPASS`); no password given (`NOAUTH`);
    /// protected mode (`DENIED`); a command or key that the user may not use (`NOPERM`); a database or a command that
    /// the server does not have; a server of a Redis Cluster at a plain URL that does not serve the key (`MOVED`);
    /// something that is not a Redis server; a server that does not report how long it has been up, which the [restart
    /// guard](crate::Options::restart_guard) needs.
    ///
    /// All other failures may pass, and are retried: connections that are refused, time out or break; `LOADING`,
    /// `READONLY`, `CLUSTERDOWN`, `MASTERDOWN`, `MISCONF`, `BUSY`, `OOM`, too many clients; errors unknown to this
    /// crate; and the time for which the restart guard keeps a node from voting. If users or passwords are changed on
    /// running servers, a refusal for good may be over a moment later: then the program itself decides whether to call
    /// again.
    pub fn is_permanent(&self) -> bool {
        self.permanent
    }

    /// The failed nodes' indices (in the order of [`Redlock::new`](crate::Redlock::new)) and causes.
    pub fn iter(&self) -> impl Iterator<Item = (usize, &dyn StdError)> {
        self.nodes
            .iter()
            .map(|error| (error.node, error as &dyn StdError))
    }

    /// How many nodes there are, if they were asked to vote.
    fn asked(&self) -> usize {
        let votes = |votes: VoteCount| [votes.yes, votes.no, votes.others].map(usize::from);
        let voted: usize = self.votes.map_or(0, |all| votes(all).iter().sum());
        voted + self.nodes.len()
    }

    /// The failed node, if there is no other node.
    fn only(&self) -> Option<&NodeError> {
        self.nodes.first().filter(|_| self.asked() == 1)
    }

    /// One server under two addresses is a mistake in the configuration, not an outage.
    pub(crate) fn same_server(&self) -> Option<ConfigError> {
        self.nodes.iter().find_map(|error| match *error.cause {
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
        if let Some(votes) = &self.votes {
            let (yes, no) = (votes.yes, votes.no);
            write!(f, "{} of {} answered", yes + no, self.asked())?;
            match votes.question {
                Question::Acquire => write!(f, " (granted by {yes}, denied by {no})")?,
                Question::Held => write!(f, " (held by {yes}, not held by {no})")?,
                Question::Answer => {}
            }
            if votes.others > 0 {
                write!(f, ", {} not waited for", votes.others)?;
            }
            f.write_str(if self.nodes.is_empty() { "" } else { "; " })?;
        }
        for (i, error) in self.nodes.iter().enumerate() {
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
#[derive(Clone, Debug)]
pub(crate) enum Cause {
    /// Not connected: it took longer than allowed, or is still under way after this time. The second is the time
    /// allowed.
    NotConnected(Duration, Duration),
    /// Not connected over TLS in this time, and not a byte was received.
    #[cfg_attr(not(feature = "tls-rustls"), allow(dead_code))]
    Mute(Duration),
    /// Connecting failed.
    Connect(String),
    /// Connecting failed before the server was asked: this process has too many open files, or no port or memory left.
    NoSocket(String),
    /// One of these causes, at an address that another server has named.
    Announced(Box<Announced>),
    /// The program's closure returns no credentials for the node, or too late.
    NoCredentials(String),
    /// No TLS connection can be made, whatever the network does.
    Tls(String),
    /// Connected, and no answer within this time.
    NoAnswer(Duration, Limit),
    /// The node, or something on the way, closed the connection.
    Closed(String),
    /// The bytes received are not an answer to the command.
    Garbage(String),
    /// Not an answer, on a new connection: no Redis server is there.
    NotRedis(String),
    /// The server's answers do not end.
    Endless(String),
    /// The server answered with an error.
    Refused(String),
    /// The server refused (see `Refused`): a Redis Cluster has the names of one lock in different slots.
    OtherSlots(String),
    /// The server refused (see `Refused`), and a new connection logs in again, perhaps with other credentials.
    LoggedOut(String),
    /// The server refused (see `Refused`), because it has become a replica (rule R38).
    Demoted(String),
    /// A new connection leads to a replica, at this address (rule R39).
    Replica(Option<SocketAddr>),
    /// A new connection leads to a sentinel.
    Sentinel,
    /// The sentinels name no master: why, and whether this lasts until the configuration is changed.
    NoMaster(String, bool),
    /// A name has several addresses, and none of them leads to a master: the cause at each.
    NoAddress(Vec<(SocketAddr, Cause)>),
    /// A directory names another master: this one.
    Moved(String),
    /// The server refused (see `Refused`), and another server may have the key: it is asked next.
    Elsewhere(String),
    /// The node is the same server as another node, of this index (rule R1).
    SameServer(usize),
    /// The server may have forgotten locks, and votes in this time (rule R15). Whether it has evicted keys.
    Quarantined(Duration, bool),
    /// The restart guard cannot find out which server it is, and how long it has been up.
    NoInfo,
    /// The restart guard's key is refused, with this answer of the server.
    NoWitness(String),
    /// The server runs no scripts, and no other command compares and deletes. Its answer.
    NoRelease(String),
    /// This process cannot start the thread that connects.
    NoThread(String),
    /// The node is connected, but the time was over before it was asked.
    NotAsked,
}

/// A server that another one has named cannot be reached.
#[derive(Clone, Debug)]
pub(crate) struct Announced {
    pub(crate) cause: Cause,
    pub(crate) at: String,
    /// The node's name as shown there.
    pub(crate) shown: Arc<str>,
    pub(crate) by: String,
    pub(crate) advice: &'static str,
}

/// Which limit set the time that a node had to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// This number of `node_timeout`s.
    Node(u32),
    Connect,
    /// The rest of the operation's time, or of the lock's.
    Rest,
    /// The connection took in nothing of what was written.
    Write,
    /// This crate's own limit.
    Own,
}

impl Cause {
    /// An I/O error on a connection that was up.
    pub(crate) fn io(error: &io::Error) -> Cause {
        Cause::Closed(error.to_string())
    }

    /// A server's error text, without the arguments that some errors repeat: the token or the
    /// password may be among them.
    pub(crate) fn refused(text: &str) -> Cause {
        Cause::Refused(without_arguments(text).to_owned())
    }

    /// Like [`refused`](Cause::refused), if the connection is no longer logged in to the server.
    pub(crate) fn logged_out(text: &str) -> Cause {
        Cause::LoggedOut(without_arguments(text).to_owned())
    }

    /// Like [`refused`](Cause::refused), of a server that has become a replica.
    pub(crate) fn demoted(text: &str) -> Cause {
        Cause::Demoted(without_arguments(text).to_owned())
    }

    /// Why none of the addresses of a name leads to a master. If all causes are alike, that one.
    pub(crate) fn of_addresses(mut failed: Vec<(SocketAddr, Cause)>) -> Cause {
        if failed.iter().all(|(_, cause)| cause.is_silence()) {
            return Cause::Connect(at_addresses(&failed));
        }
        let mut texts = failed.iter().map(|(_, cause)| cause.at_address());
        let first = texts.next();
        let alike = texts.all(|text| Some(text) == first);
        match failed.pop() {
            Some((_, cause)) if alike && !cause.is_replica() => cause,
            last => {
                failed.extend(last);
                Cause::NoAddress(failed)
            }
        }
    }

    /// The text to show behind the address that the cause concerns.
    fn at_address(&self) -> String {
        match self {
            Cause::Connect(text) => text.clone(),
            Cause::NotConnected(time, _) => format!("not connected within {}", human(*time)),
            Cause::Replica(_) => "a replica".into(),
            Cause::Sentinel => "a sentinel".into(),
            other => other.to_string(),
        }
    }

    /// Whether the server was asked for a connection, and did not answer.
    pub(crate) fn is_silence(&self) -> bool {
        matches!(
            self,
            Cause::Connect(_) | Cause::NotConnected(..) | Cause::Mute(_)
        )
    }

    /// Whether a server answered, and refuses what it is asked.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(
            self,
            Cause::Refused(_)
                | Cause::LoggedOut(_)
                | Cause::NoInfo
                | Cause::NoWitness(_)
                | Cause::NoRelease(_)
        )
    }

    /// Whether a replica is at the node's address.
    pub(crate) fn is_replica(&self) -> bool {
        match self {
            Cause::Demoted(_) | Cause::Replica(_) => true,
            Cause::NoAddress(all) => all.iter().any(|(_, cause)| cause.is_replica()),
            _ => false,
        }
    }

    /// Whether the failure lasts until the configuration is changed, here or on the server. False when in doubt: then
    /// callers wait in vain, but no longer than they asked to.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Cause::Refused(text) => Meaning::of(text).is_final(),
            Cause::Tls(_)
            | Cause::NotRedis(_)
            | Cause::OtherSlots(_)
            | Cause::Sentinel
            | Cause::SameServer(_)
            | Cause::NoInfo
            | Cause::NoWitness(_)
            | Cause::NoRelease(_) => true,
            Cause::NoMaster(_, is_final) => *is_final,
            Cause::NoAddress(all) => all.iter().all(|(_, cause)| cause.is_final()),
            Cause::NotConnected(..)
            | Cause::Mute(_)
            | Cause::Connect(_)
            | Cause::NoSocket(_)
            | Cause::Announced(..)
            | Cause::NoCredentials(_)
            | Cause::NoAnswer(..)
            | Cause::Closed(_)
            // A new connection shows what is there.
            | Cause::Garbage(_)
            | Cause::Endless(_)
            | Cause::LoggedOut(_)
            | Cause::Demoted(_)
            | Cause::Replica(_)
            | Cause::Moved(_)
            | Cause::Elsewhere(_)
            | Cause::Quarantined(..)
            | Cause::NoThread(_)
            | Cause::NotAsked => false,
        }
    }

    /// The meaning of the server's refusal.
    pub(crate) fn meaning(&self) -> Meaning {
        match self {
            Cause::Refused(text) | Cause::LoggedOut(text) | Cause::Demoted(text) => {
                Meaning::of(text)
            }
            _ => Meaning::Other,
        }
    }

    /// Whether a name is refused and not a command.
    pub(crate) fn concerns_name(&self) -> bool {
        matches!(self, Cause::Refused(text) if server_error::concerns_name(text))
    }

    /// The text without advice, for places that give their own.
    pub(crate) fn without_advice(&self) -> String {
        match self {
            Cause::Refused(text) | Cause::LoggedOut(text) => {
                format!("the server answered: {}", brief(text))
            }
            other => other.to_string(),
        }
    }
}

impl StdError for Cause {}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::NotConnected(time, limit) => not_connected(f, *time, *limit),
            Cause::Mute(limit) => mute(f, *limit),
            Cause::Connect(text) | Cause::NoSocket(text) => write!(f, "cannot connect: {text}"),
            Cause::Announced(announced) => write!(f, "{announced}"),
            Cause::NoCredentials(text) => write!(f, "cannot connect: no credentials: {text}"),
            Cause::Tls(text) => write!(f, "no TLS connection: {text}"),
            Cause::NoAnswer(time, limit) => no_answer(f, &human(*time), *limit),
            Cause::Closed(text) => write!(f, "connection closed: {text}"),
            Cause::Garbage(text) | Cause::NotRedis(text) => {
                write!(f, "not a Redis answer: {text}")
            }
            Cause::Refused(_) | Cause::LoggedOut(_) => {
                f.write_str(&self.without_advice())?;
                match self.meaning().advice() {
                    Some(advice) => write!(f, " ({advice})"),
                    None => Ok(()),
                }
            }
            Cause::OtherSlots(text) => write!(
                f,
                "the server answered: {text} (a Redis Cluster has these names in different slots: give them a \
                 common tag, as in {{shop}}:a and {{shop}}:b)"
            ),
            Cause::Demoted(text) => write!(f, "the server is a replica now: {text}"),
            Cause::Replica(Some(at)) => write!(
                f,
                "the server at {at} is a replica; its name is looked up again"
            ),
            Cause::Replica(None) => f.write_str("the server is a replica; it is tried again"),
            Cause::Sentinel => f.write_str(
                "that is a sentinel: write redis+sentinel://host:port/NAME, with the name of the master",
            ),
            Cause::Endless(text) | Cause::NoMaster(text, _) => f.write_str(text),
            Cause::NoAddress(all) => no_address(f, all, self.is_replica()),
            Cause::Moved(to) => write!(f, "the master is {to} now"),
            Cause::Elsewhere(text) => write!(f, "the server answered: {text}"),
            Cause::SameServer(other) => write!(f, "the same server as node {other}"),
            Cause::Quarantined(left, evicted) => quarantined(f, *left, *evicted),
            Cause::NoInfo => f.write_str(
                "the restart guard needs INFO server (uptime_in_seconds, run_id), INFO replication \
                 (master_replid) and INFO stats (evicted_keys)",
            ),
            Cause::NoWitness(text) => no_witness(f, text),
            Cause::NoRelease(text) => write!(
                f,
                "it permits neither EVAL nor DELIFEQ nor DELEX ({text}): a lock could be taken and not released"
            ),
            Cause::NoThread(text) => write!(f, "cannot start a thread to connect: {text}"),
            Cause::NotAsked => f.write_str("not asked in time"),
        }
    }
}

fn mute(f: &mut fmt::Formatter<'_>, limit: Duration) -> fmt::Result {
    write!(
        f,
        "not connected within {} (connect_timeout): it has said nothing (does this port speak TLS?)",
        human(limit)
    )
}

fn no_address(
    f: &mut fmt::Formatter<'_>,
    all: &[(SocketAddr, Cause)],
    is_replica: bool,
) -> fmt::Result {
    let all = at_addresses(all);
    write!(f, "none of its addresses leads to a master: {all}")?;
    match is_replica {
        true => f.write_str(" (it is looked up again; give a name of the master alone)"),
        false => Ok(()),
    }
}

/// The maximum of addresses that are named.
const NAMED: usize = 8;

/// The cause at each address; addresses with the same cause together.
fn at_addresses(all: &[(SocketAddr, Cause)]) -> String {
    let mut alike: Vec<(String, Vec<String>)> = Vec::new();
    for (address, cause) in all.iter().take(NAMED) {
        let (address, text) = (address.to_string(), cause.at_address());
        match alike.iter_mut().find(|(other, _)| *other == text) {
            Some((_, addresses)) => addresses.push(address),
            None => alike.push((text, vec![address])),
        }
    }
    let shown = alike.into_iter();
    let shown = shown.map(|(text, addresses)| format!("{}: {text}", addresses.join(" and ")));
    let mut shown: Vec<String> = shown.collect();
    if let Some(more @ 1..) = all.len().checked_sub(NAMED) {
        shown.push(format!("and {more} more"));
    }
    shown.join("; ")
}

impl fmt::Display for Announced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Announced { cause, at, by, .. } = self;
        write!(f, "{cause} at {at}, which {by} names ({})", self.advice)
    }
}

fn not_connected(f: &mut fmt::Formatter<'_>, time: Duration, limit: Duration) -> fmt::Result {
    let (took, most) = (human(time), human(limit));
    match time < limit {
        true => write!(
            f,
            "not connected yet, after {took} of {most} (connect_timeout)"
        ),
        false => write!(f, "not connected within {most} (connect_timeout)"),
    }
}

fn no_answer(f: &mut fmt::Formatter<'_>, time: &str, limit: Limit) -> fmt::Result {
    match limit {
        Limit::Node(1) => write!(f, "no answer within {time} (node_timeout)"),
        Limit::Node(n) => write!(f, "no answer within {time} ({n} × node_timeout)"),
        Limit::Connect => write!(f, "no answer within {time} (connect_timeout)"),
        Limit::Rest => write!(f, "no answer within {time}, and no more time was left"),
        Limit::Write => write!(f, "it took in nothing within {time}"),
        Limit::Own => write!(f, "no answer within {time}"),
    }
}

fn quarantined(f: &mut fmt::Formatter<'_>, left: Duration, evicted: bool) -> fmt::Result {
    let why = match evicted {
        true => "has evicted keys, so locks may be gone (set maxmemory-policy noeviction)",
        false => "restarted or replaced lately, may have forgotten locks",
    };
    write!(f, "{why}: votes in {}", human(left))
}

fn no_witness(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    let advice = match Meaning::of(text) {
        Meaning::WrongType => {
            ": another program's data is there, delete it or use another database"
        }
        _ => "",
    };
    write!(
        f,
        "the restart guard needs the key redlock:witness (GET, PTTL, SET), behind the locks' prefix if they have one: the \
         server answered: {text}{advice}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::quorum::NodeSet;

    #[test]
    fn the_error_is_small() {
        assert!(std::mem::size_of::<Error>() <= 64);
    }

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn causes_name_the_option_that_they_hang_on_and_round_times() {
        let odd = Duration::from_nanos(49_999_871);
        for (cause, expected) in [
            (
                Cause::NoAnswer(50 * MS, Limit::Node(1)),
                "no answer within 50 ms (node_timeout)",
            ),
            (
                Cause::NoAnswer(1000 * MS, Limit::Node(20)),
                "no answer within 1 s (20 × node_timeout)",
            ),
            (
                Cause::NoAnswer(500 * MS, Limit::Connect),
                "no answer within 500 ms (connect_timeout)",
            ),
            (
                Cause::NoAnswer(odd, Limit::Rest),
                "no answer within 50 ms, and no more time was left",
            ),
            (
                Cause::NoAnswer(odd / 2, Limit::Write),
                "it took in nothing within 25 ms",
            ),
            (
                Cause::NotConnected(500 * MS, 500 * MS),
                "not connected within 500 ms (connect_timeout)",
            ),
            (
                Cause::NotConnected(odd, 500 * MS),
                "not connected yet, after 50 ms of 500 ms (connect_timeout)",
            ),
            (
                Cause::Quarantined(Duration::from_micros(1_549_000), false),
                "restarted or replaced lately, may have forgotten locks: votes in 1.5 s",
            ),
            (
                Cause::Quarantined(2 * MS, true),
                "has evicted keys, so locks may be gone (set maxmemory-policy noeviction): votes in 2 ms",
            ),
        ] {
            assert_eq!(cause.to_string(), expected);
        }
    }

    #[test]
    fn a_replica_is_named_with_its_address_and_what_happens_next() {
        let at = "10.0.0.1:6379".parse().ok();
        for (cause, expected) in [
            (
                Cause::demoted("READONLY You can't write against a read only replica."),
                "the server is a replica now: READONLY You can't write against a read only replica.",
            ),
            (
                Cause::Replica(at),
                "the server at 10.0.0.1:6379 is a replica; its name is looked up again",
            ),
            (
                Cause::Replica(None),
                "the server is a replica; it is tried again",
            ),
        ] {
            assert_eq!(cause.to_string(), expected);
            assert!(cause.is_replica(), "{cause}");
        }
        assert!(!Cause::Sentinel.is_replica());
        let sentinel = Cause::Sentinel.to_string();
        assert!(sentinel.starts_with("that is a sentinel: "), "{sentinel}");
    }

    #[test]
    fn the_votes_stand_before_the_causes() {
        let error = |node: usize| NodeError {
            node,
            address: format!("10.0.0.{node}:6379").into(),
            cause: Arc::new(Cause::NoAnswer(50 * MS, Limit::Node(1))),
        };
        let votes = |question, yes, no, failed: &[usize], nodes| {
            let tally = Tally {
                granted: NodeSet::first(yes),
                refused: NodeSet::first(yes + no).without(NodeSet::first(yes)),
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

    #[test]
    fn what_only_an_operator_changes_is_final_and_nothing_else() {
        let time = Duration::from_secs(1);
        let text = || "x".to_owned();
        for (cause, is_final) in [
            (Cause::NotConnected(time, time), false),
            (Cause::Mute(time), false),
            (Cause::Tls(text()), true),
            (Cause::Connect("connection refused".into()), false),
            (Cause::NoCredentials(text()), false),
            (Cause::NoAnswer(time, Limit::Rest), false),
            (Cause::Closed(text()), false),
            (Cause::Garbage(text()), false),
            (
                Cause::LoggedOut("NOAUTH Authentication required.".into()),
                false,
            ),
            (Cause::NotRedis(text()), true),
            (Cause::Sentinel, true),
            (Cause::NoMaster(text(), true), true),
            (Cause::NoMaster(text(), false), false),
            (Cause::Moved(text()), false),
            (Cause::demoted("READONLY You can't write"), false),
            (Cause::Replica(None), false),
            (Cause::SameServer(1), true),
            (Cause::Quarantined(time, false), false),
            (Cause::NoInfo, true),
            (Cause::NoWitness(String::new()), true),
            (Cause::NoRelease(text()), true),
            (Cause::NoThread(text()), false),
            (Cause::NotAsked, false),
        ] {
            assert_eq!(cause.is_final(), is_final, "{cause:?}");
        }
        assert!(Cause::refused("NOAUTH Authentication required.").is_final());
        assert!(!Cause::refused("LOADING Redis is loading").is_final());
    }

    #[test]
    fn what_a_server_refuses_is_followed_by_what_to_do() {
        for (text, advice) in [
            ("NOAUTH Authentication required.", "redis://user:password@"),
            ("WRONGPASS invalid username-password pair", "the password"),
            ("READONLY You can't write", "name its master"),
            ("CLUSTERDOWN Hash slot not served", "CLUSTER INFO"),
            ("MOVED 17 127.0.0.1:1", "redis+cluster://"),
        ] {
            let cause = Cause::refused(text);
            let shown = cause.to_string();
            assert!(
                shown.starts_with(&format!("the server answered: {text} (")),
                "{shown}"
            );
            assert!(shown.contains(advice), "{shown}");
            assert!(!cause.without_advice().contains(advice), "{shown}");
        }
        let other = Cause::refused("ERR something new").to_string();
        assert_eq!(other, "the server answered: ERR something new");
    }

    #[test]
    fn a_server_error_never_repeats_the_arguments() {
        let text = "ERR unknown command 'AUTH', with args beginning with: 'hunter2' ";
        assert_eq!(
            Cause::refused(text).to_string(),
            "the server answered: ERR unknown command 'AUTH' (permit it, or use another user)"
        );
    }
}
