//! The nodes that failed, each with its cause.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::errors::cause::Cause;
use crate::errors::lock_error::done_suffix;
use crate::values::arithmetic::{Question, Tally};
use crate::values::config_error::ConfigError;

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
    pub(super) after_work: bool,
    votes: Option<VoteCount>,
}

/// The counts of the votes: sums over the nodes.
#[derive(Clone, Copy, Debug)]
struct VoteCount {
    question: Question,
    yes: u8,
    no: u8,
    /// Of the nodes that denied, those that have nothing.
    gone: u8,
    others: u8,
}

impl NodeErrors {
    pub(crate) fn new(errors: Vec<NodeError>, retry_after: Option<Duration>) -> NodeErrors {
        NodeErrors {
            nodes: errors.into_boxed_slice(),
            retry_after,
            permanent: false,
            after_work: false,
            votes: None,
        }
    }

    /// The nodes' own errors, to be put together.
    #[cfg(feature = "capi")]
    pub(crate) fn into_each(self) -> impl Iterator<Item = NodeError> {
        self.nodes.into_iter()
    }

    /// Marks that these nodes refuse for good, and that no quorum is left.
    pub(crate) fn for_good(mut self) -> NodeErrors {
        self.permanent = true;
        self
    }

    /// Adds the question that all `nodes` were asked, and how they voted.
    pub(crate) fn with_votes(mut self, question: Question, tally: Tally, nodes: usize) -> Self {
        let (yes, no) = (tally.granted.len(), tally.denied.len());
        let others = nodes.saturating_sub(yes + no + self.nodes.len());
        let count = |nodes: usize| u8::try_from(nodes).unwrap_or(u8::MAX);
        self.votes = Some(VoteCount {
            question,
            yes: count(yes),
            no: count(no),
            gone: 0,
            others: count(others),
        });
        self
    }

    /// Adds how many of those that denied have nothing.
    pub(crate) fn with_gone(mut self, gone: usize) -> Self {
        if let Some(votes) = &mut self.votes {
            votes.gone = u8::try_from(gone).unwrap_or(u8::MAX);
        }
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

    /// Whether waiting may help: the nodes do not refuse for good, or only for want of a right, which may be given back.
    pub(crate) fn may_pass(&self) -> bool {
        let passes = |error: &NodeError| !error.cause.is_final() || error.cause.meaning().passes();
        !self.permanent || self.nodes.iter().all(passes)
    }

    /// How many nodes denied what they were asked, and may have another holder's lock.
    #[cfg(feature = "cli")]
    pub(crate) fn denied(&self) -> usize {
        self.votes
            .map_or(0, |votes| votes.no.saturating_sub(votes.gone).into())
    }

    /// The failed nodes, each with its cause.
    pub fn iter(&self) -> impl Iterator<Item = &NodeError> {
        self.nodes.iter()
    }

    /// How many nodes there are, if they were asked to vote.
    fn asked(&self) -> usize {
        let votes = |votes: VoteCount| [votes.yes, votes.no, votes.others].map(usize::from);
        let voted: usize = self.votes.map_or(0, |all| votes(all).iter().sum());
        voted + self.nodes.len()
    }

    /// The failed node, if there is no other node.
    pub(super) fn only(&self) -> Option<&NodeError> {
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
        f.write_str(done_suffix(self.after_work))
    }
}

/// The failure of one node. `Display` gives its address and the cause; never a password.
#[derive(Clone, Debug)]
pub struct NodeError {
    pub(crate) node: usize,
    pub(crate) address: Arc<str>,
    pub(crate) cause: Arc<Cause>,
}

impl NodeError {
    /// The node's index, in the order of [`Redlock::new`](crate::Redlock::new).
    pub fn node(&self) -> usize {
        self.node
    }

    /// Host and port, or path.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The cause alone, without the address.
    pub fn cause(&self) -> &(dyn StdError + Send + Sync + 'static) {
        &*self.cause
    }
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.address, self.cause)
    }
}

impl StdError for NodeError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_may_help_unless_a_node_refuses_for_good_what_is_no_right() {
        let refused = |texts: &[&str]| {
            let each = texts.iter().enumerate().map(|(node, text)| NodeError {
                node,
                address: "10.0.0.1:6379".into(),
                cause: Arc::new(Cause::refused(text)),
            });
            NodeErrors::new(each.collect(), None)
        };
        let rights = "NOPERM this user has no permissions to run the 'del' command";
        let (command, moved) = ("ERR unknown command 'SET'", "MOVED 1 10.0.0.2:6379");
        for (texts, expected) in [
            (&[rights][..], true),
            (&[rights, "BUSY Redis is busy running a script"], true),
            (&[command], false),
            (&[moved], false),
            (&["WRONGPASS invalid"], false),
            (&[rights, command], false),
        ] {
            assert_eq!(refused(texts).for_good().may_pass(), expected, "{texts:?}");
            assert!(refused(texts).may_pass());
        }
    }
}
