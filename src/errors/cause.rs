//! Why a node gave no vote, and what that means for the locks.

use std::error::Error as StdError;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::errors::redirection::Redirection;
use crate::errors::server_error::{self, Meaning, NO_CLUSTER, without_arguments};

/// Why a node gave no vote.
#[derive(Clone, Debug)]
pub(crate) enum Cause {
    /// Not connected: it took longer than allowed, or is still under way after this time. The second is the time
    /// allowed.
    NotConnected(Duration, Duration),
    /// Connected, and this command of the set-up was not answered in this time, though those before it were.
    Unanswered(Duration, String),
    /// Not connected over TLS in this time, and not a byte was received.
    #[cfg_attr(not(feature = "tls-rustls"), allow(dead_code))]
    Mute(Duration),
    /// Connecting failed.
    Connect(String),
    /// Connecting failed before the server was asked: this process has too many open files, or no port or memory left.
    NoSocket(String),
    /// The resolver failed: whether there is such a host is not known.
    NoResolver(String),
    /// One of these causes, at an address that another server has named.
    Announced(Box<Announced>),
    /// The program's closure returns no credentials for the node, or too late.
    NoCredentials(String),
    /// No TLS connection can be made, whatever the network does.
    Tls(String),
    /// Connected, and no answer within this time.
    NoAnswer(Duration, Limit),
    /// The node, or something on the network, closed the connection.
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
    /// At an address that servers of a Redis Cluster name, another server is than the one that they mean, by its ID.
    OtherServer,
    /// The sentinels name no master: why, and whether this lasts until the configuration is changed.
    NoMaster(String, bool),
    /// Some of the sentinels behind a name name a master, and too few: what each one answers, and whether this lasts as above.
    FewName(String, bool),
    /// A name has several addresses, and none of them leads to a master: the cause at each.
    NoAddress(Vec<(SocketAddr, Cause)>),
    /// A directory names another master: this one.
    MasterReplaced(String),
    /// The server refused (see `Refused`), and another server may have the key: it is asked next.
    Redirected(Box<Redirection>),
    /// The node is the same server as another node, of this index (rule R1).
    SameServer(usize),
    /// The server may have forgotten locks, and votes in this time (rule R15). Whether it has evicted keys.
    Quarantined(Duration, bool),
    /// The server's clock was set forward by the first time, and it grants locks in the second (rule R59).
    Stepped(Duration, Duration),
    /// The restart guard cannot find out which server it is, or what that has lost: it needs this of INFO.
    NoInfo(&'static str),
    /// The restart guard's key is refused, with this answer of the server.
    NoWitness(String),
    /// The server runs no scripts, and no other command compares and deletes. Its answer.
    NoRelease(String),
    /// The server runs no scripts, or not for this user, and this needs them. Its answer.
    NeedsScripts(&'static str, String),
    /// The server cannot have the mark of work that is done: why.
    NoMark(&'static str),
    /// This process cannot start the thread that connects.
    NoThread(String),
    /// The node is connected, but the time was over before it was asked.
    NotAsked,
}

/// Advice where a server of a Redis Cluster is not at the address that others name.
pub(crate) const ANNOUNCE: &str = "if that is not its address for this host, set cluster-announce-ip on it, or cluster-announce-hostname";

/// Advice where the master of a set is not at the address that sentinels name.
pub(crate) const ANNOUNCE_MASTER: &str = "if that is not the master's address for this host, set replica-announce-ip on the servers, \
    and name it in sentinel monitor";

/// Advice where a command is not answered that each server knows.
pub(crate) const IS_A_PROXY: &str =
    " (is it a proxy? it may not know that command: give the address of the server behind it)";

/// Advice where scripts are not run.
pub(crate) const PERMIT_SCRIPTS: &str =
    "permit EVAL, or SCRIPT LOAD and EVALSHA; a lock on one name needs none";

/// A server that another one has named cannot be used.
#[derive(Clone, Debug)]
pub(crate) struct Announced {
    pub(crate) cause: Cause,
    pub(crate) at: String,
    /// The node's name as shown there.
    pub(crate) shown: Arc<str>,
    pub(crate) by: String,
    /// Advice where the address may not be the server's for this host.
    pub(crate) advice: Option<&'static str>,
    /// Whether that lasts until the configuration is changed.
    pub(crate) is_final: bool,
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

    /// The cause of an error of a server that runs no scripts, where something else than a lock on one name is asked for.
    pub(crate) fn needs_scripts(what: &'static str, text: &str) -> Cause {
        Cause::NeedsScripts(what, without_arguments(text).to_owned())
    }

    /// The cause of an error that answers a command on a lock. `several`: whether the lock is on several names.
    pub(crate) fn of_error(text: String, several: bool) -> Cause {
        match Meaning::of(&text) {
            Meaning::NoLogin => Cause::logged_out(&text),
            meaning if meaning.is_demoted() => Cause::demoted(&text),
            Meaning::OtherSlot if several => Cause::OtherSlots(text),
            _ => Cause::refused(&text),
        }
    }

    /// Like [`refused`](Cause::refused), if the connection is no longer logged in to the server.
    pub(crate) fn logged_out(text: &str) -> Cause {
        Cause::LoggedOut(without_arguments(text).to_owned())
    }

    /// Like [`refused`](Cause::refused), of a server that has become a replica.
    pub(crate) fn demoted(text: &str) -> Cause {
        Cause::Demoted(without_arguments(text).to_owned())
    }

    /// The cause itself, unless the address may not be that of the server that was named.
    pub(crate) fn answered(&self) -> &Cause {
        match self {
            Cause::Announced(announced) if announced.advice.is_none() => &announced.cause,
            cause => cause,
        }
    }

    /// Whether the server was asked for a connection, and did not answer. (Nor did one in whose place another one answers.)
    pub(crate) fn is_silence(&self) -> bool {
        matches!(
            self,
            Cause::Connect(_)
                | Cause::NotConnected(..)
                | Cause::Unanswered(..)
                | Cause::Mute(_)
                | Cause::OtherServer
        )
    }

    /// Whether the cause is like that at an address which is not the server's for this host: nothing is there, or another one.
    pub(crate) fn may_be_elsewhere(&self) -> bool {
        self.is_silence() || self.is_of_another()
    }

    /// Whether the cause is like that of another server than the one that is meant.
    pub(crate) fn is_of_another(&self) -> bool {
        let is_other = matches!(
            self,
            Cause::NotRedis(_) | Cause::OtherServer | Cause::Sentinel
        );
        is_other || self.is_no_cluster() || self.meaning().concerns_login()
    }

    /// Whether the server refuses since it is in no Cluster.
    pub(crate) fn is_no_cluster(&self) -> bool {
        matches!(self, Cause::Refused(text) if text.contains(NO_CLUSTER))
    }

    /// Whether the server was not asked, for a reason that lies in this process or in its resolver.
    pub(crate) fn is_of_this_process(&self) -> bool {
        matches!(
            self,
            Cause::NoSocket(_)
                | Cause::NoResolver(_)
                | Cause::NoThread(_)
                | Cause::NoCredentials(_)
                | Cause::NotAsked
        )
    }

    /// Whether a server answered, and refuses what it is asked.
    pub(crate) fn is_refusal(&self) -> bool {
        matches!(
            self.answered(),
            Cause::Refused(_)
                | Cause::LoggedOut(_)
                | Cause::NoInfo(_)
                | Cause::NoWitness(_)
                | Cause::NoRelease(_)
                | Cause::NeedsScripts(..)
                | Cause::NoMark(_)
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
            Cause::Announced(announced) => announced.is_final,
            Cause::Refused(text) => Meaning::of(text).is_final(),
            Cause::Tls(_)
            | Cause::NotRedis(_)
            | Cause::OtherSlots(_)
            | Cause::Sentinel
            | Cause::SameServer(_)
            | Cause::NoInfo(_)
            | Cause::NoWitness(_)
            | Cause::NoRelease(_)
            | Cause::NeedsScripts(..)
            | Cause::NoMark(_) => true,
            Cause::NoMaster(_, is_final) | Cause::FewName(_, is_final) => *is_final,
            Cause::NoAddress(all) => all.iter().all(|(_, cause)| cause.is_final()),
            Cause::NotConnected(..)
            | Cause::Unanswered(..)
            | Cause::Mute(_)
            | Cause::OtherServer
            | Cause::Connect(_)
            | Cause::NoSocket(_)
            | Cause::NoResolver(_)
            | Cause::NoCredentials(_)
            | Cause::NoAnswer(..)
            | Cause::Closed(_)
            // A new connection shows what is there.
            | Cause::Garbage(_)
            | Cause::Endless(_)
            | Cause::LoggedOut(_)
            | Cause::Demoted(_)
            | Cause::Replica(_)
            | Cause::MasterReplaced(_)
            | Cause::Redirected(_)
            | Cause::Quarantined(..)
            | Cause::Stepped(..)
            | Cause::NoThread(_)
            | Cause::NotAsked => false,
        }
    }

    /// The meaning of the server's refusal.
    pub(crate) fn meaning(&self) -> Meaning {
        match self.answered() {
            Cause::Refused(text)
            | Cause::LoggedOut(text)
            | Cause::Demoted(text)
            | Cause::NeedsScripts(_, text) => Meaning::of(text),
            _ => Meaning::Other,
        }
    }

    /// Whether a name is refused and not a command.
    pub(crate) fn concerns_name(&self) -> bool {
        matches!(self.answered(), Cause::Refused(text) if server_error::concerns_name(text))
    }
}

impl StdError for Cause {}

#[cfg(test)]
mod tests {
    use super::*;

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
            (Cause::OtherServer, false),
            (Cause::Sentinel, true),
            (Cause::NoMaster(text(), true), true),
            (Cause::NoMaster(text(), false), false),
            (Cause::MasterReplaced(text()), false),
            (Cause::demoted("READONLY You can't write"), false),
            (Cause::Replica(None), false),
            (Cause::SameServer(1), true),
            (Cause::Quarantined(time, false), false),
            (Cause::Stepped(time, time), false),
            (Cause::NoInfo("x"), true),
            (Cause::NoWitness(String::new()), true),
            (Cause::NoRelease(text()), true),
            (Cause::NeedsScripts("x", text()), true),
            (Cause::NoMark("x"), true),
            (Cause::NoThread(text()), false),
            (Cause::NotAsked, false),
        ] {
            assert_eq!(cause.is_final(), is_final, "{cause:?}");
        }
        assert!(Cause::refused("NOAUTH Authentication required.").is_final());
        assert!(!Cause::refused("LOADING Redis is loading").is_final());
    }

    #[test]
    fn a_refusal_of_scripts_means_what_its_text_says() {
        for (text, meaning) in [
            ("ERR unknown command 'EVAL'", Meaning::NoSuchCommand),
            (
                "NOPERM this user has no permissions to run the 'eval' command",
                Meaning::NotPermitted,
            ),
        ] {
            assert_eq!(Cause::needs_scripts("x", text).meaning(), meaning);
        }
    }
}
