//! A node, and how it is reached.

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::ConnectionInfo;

use crate::errors::cause::Cause;
use crate::errors::secret::Secret;
use crate::errors::server_error::Meaning;
use crate::errors::text::{address, human};
use crate::net::socket::trust::{Access, Trust};
use crate::protocol::commands::node_id::{NodeId, Recognized, refuses_for_good};
use crate::protocol::commands::resp::Reply;
use crate::settings::credentials::{AskCredentials, Credentials};
use crate::values::clock;
use crate::values::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering},
    lock,
};

#[derive(Clone)]
pub(crate) struct Peer {
    info: ConnectionInfo,
    tls: Option<Result<Access, Cause>>,
    /// For what fails at first, and may pass.
    trust: Trust,
    credentials: Option<AskCredentials>,
    /// Passwords that the server has been told of others: its texts may not repeat them either.
    others: Option<Arc<OtherSecrets>>,
    /// The number of tries at the addresses of the node's name that have led nowhere.
    failures: Arc<AtomicUsize>,
    /// The server of a Redis Cluster that has to be there.
    meant: Option<Meant>,
}

/// The server of a Redis Cluster that is meant by an address.
#[derive(Clone)]
struct Meant {
    server: MeantServer,
    without_id: WithoutId,
}

/// A server of a Redis Cluster: its ID, or its address where no map has an ID for it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
enum MeantServer {
    Id(NodeId),
    At(String),
}

/// The servers that refuse to report their IDs to this user. They are not asked again: operators watch refusals.
#[derive(Clone, Default)]
pub(crate) struct WithoutId(Arc<Mutex<BTreeSet<MeantServer>>>);

/// The passwords of other servers.
pub(crate) struct OtherSecrets {
    /// Those of URLs.
    pub(crate) of_urls: Secret,
    /// The closure that returns others.
    pub(crate) credentials: Option<AskCredentials>,
}

impl OtherSecrets {
    /// All that are known by now.
    pub(crate) fn all(&self) -> Secret {
        let given = self.credentials.as_ref().map(AskCredentials::secret);
        Secret::of_all([self.of_urls.clone(), given.unwrap_or_default()])
    }
}

/// How the addresses of a name share the time of one try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// Each has an equal share, so that none that is silent takes the time of another.
    Equal,
    /// They are tried from this one on, and each has all the time that is left: a server that needs more than an equal
    /// share is found in its turn.
    From(usize),
}

impl Sharing {
    /// Decides by the number of tries that have led nowhere.
    pub(crate) fn after(failures: usize, addresses: usize) -> Sharing {
        match failures.checked_sub(1) {
            None => Sharing::Equal,
            Some(turns) => Sharing::From(turns % addresses.max(1)),
        }
    }

    /// The share of the next address, if that number of others follow it.
    pub(crate) fn of(self, left: Duration, others: usize) -> Duration {
        match self {
            Sharing::Equal => left / u32::try_from(others + 1).unwrap_or(u32::MAX),
            Sharing::From(_) => left,
        }
    }
}

impl Peer {
    pub(crate) fn new(
        info: ConnectionInfo,
        trust: &Trust,
        credentials: Option<AskCredentials>,
    ) -> Peer {
        let tls = trust.access(info.addr());
        Peer {
            info,
            tls,
            trust: trust.clone(),
            credentials,
            others: None,
            failures: Arc::default(),
            meant: None,
        }
    }

    /// Hides these passwords, too, in the texts of the server.
    pub(crate) fn hiding(self, others: Arc<OtherSecrets>) -> Peer {
        Peer {
            others: Some(others),
            ..self
        }
    }

    /// Connects only to the server of a Redis Cluster with this ID, as far as the one at the address reports one. `None`: to
    /// any, whose ID is kept.
    pub(crate) fn meaning(self, id: Option<NodeId>, without_id: &WithoutId) -> Peer {
        let at = || MeantServer::At(address(self.info.addr()));
        let server = id.map_or_else(at, MeantServer::Id);
        let without_id = without_id.clone();
        Peer {
            meant: Some(Meant { server, without_id }),
            ..self
        }
    }

    /// Whether the server is asked for its ID.
    pub(crate) fn asks_for_id(&self) -> bool {
        let has_one = |meant: &Meant| !lock(&meant.without_id.0).contains(&meant.server);
        self.meant.as_ref().is_some_and(has_one)
    }

    /// The ID that the server reports which answers like this to the question for it, if it does. `Err`: it is not the server
    /// that is meant, or does not answer now.
    pub(crate) fn recognize(&self, reply: &Reply) -> Result<Option<NodeId>, Cause> {
        let Some(meant) = &self.meant else {
            return Ok(None);
        };
        let id = match meant.server {
            MeantServer::Id(id) => Some(id),
            MeantServer::At(_) => None,
        };
        match (Recognized::by(reply, id), reply) {
            (Recognized::It(id), _) => return Ok(Some(id)),
            (Recognized::Another, _) => return Err(Cause::OtherServer),
            (Recognized::NotNow, Reply::Error(text)) => return Err(self.refused(text)),
            (Recognized::NoId, Reply::Error(text)) if refuses_for_good(text) => {
                lock(&meant.without_id.0).insert(meant.server.clone());
            }
            _ => {}
        }
        Ok(None)
    }

    /// The secrets that no text over a connection with this login may repeat.
    pub(crate) fn secret(&self, login: Option<&Credentials>) -> Secret {
        let own = Secret::of(login.map(|login| &*login.password));
        match &self.others {
            None => own,
            Some(others) => Secret::of_all([own, others.all()]),
        }
    }

    #[cfg(all(test, feature = "tls"))]
    pub(crate) fn with(info: ConnectionInfo, access: Access) -> Peer {
        Peer {
            info,
            tls: Some(Ok(access)),
            trust: Trust::new(&crate::settings::tls::Tls::default(), []),
            credentials: None,
            others: None,
            failures: Arc::default(),
            meant: None,
        }
    }

    /// How the node is reached over TLS, or why it cannot be.
    pub(crate) fn access(&self) -> Result<Access, Cause> {
        let access = match &self.tls {
            Some(Err(cause)) if !cause.is_final() => self.trust.access(self.info.addr()),
            #[cfg(feature = "tls-rustls")]
            Some(Ok(access)) if access.in_part => self.trust.access(self.info.addr()),
            access => access.clone(),
        };
        access.unwrap_or_else(|| Err(Cause::Tls(crate::errors::text::NO_TLS.into())))
    }

    /// The credentials for a new connection. They must be there by `until`; but a closure cannot be interrupted, no
    /// more than the resolution of a name.
    pub(crate) fn credentials(
        &self,
        until: Instant,
        timeout: Duration,
    ) -> Result<Option<Credentials>, Cause> {
        let Some(ask) = &self.credentials else {
            return Ok(Credentials::of(self.info.redis_settings()));
        };
        let given = ask.call(&address(self.info.addr()));
        let given = given.map_err(Cause::NoCredentials)?;
        if clock::instant() >= until {
            let time = human(timeout);
            let late = format!("none within {time} (connect_timeout)");
            return Err(Cause::NoCredentials(late));
        }
        Ok(Some(given))
    }

    /// The number of tries at the addresses of the node's name that have led nowhere.
    pub(crate) fn failures(&self) -> usize {
        self.failures.load(Ordering::Relaxed)
    }

    /// Notes that a try which began after this number of failures has led nowhere, too. Tries at the same time count once: none
    /// passes over an address.
    pub(crate) fn failed_after(&self, failures: usize) {
        let (before, now) = (failures, failures.wrapping_add(1));
        let order = Ordering::Relaxed;
        let _ = self.failures.compare_exchange(before, now, order, order);
    }

    /// Why the server refuses a connection that is being set up. A closure may give other credentials next
    /// time.
    pub(crate) fn refused(&self, text: &str) -> Cause {
        match self.credentials {
            Some(_) if Meaning::of(text).concerns_login() => Cause::logged_out(text),
            _ if Meaning::of(text).is_demoted() => Cause::demoted(text),
            _ => Cause::refused(text),
        }
    }
}

impl Deref for Peer {
    type Target = ConnectionInfo;

    fn deref(&self) -> &ConnectionInfo {
        &self.info
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_has_all_the_time_in_its_turn_once_equal_shares_have_led_nowhere() {
        let (left, all) = (Duration::from_secs(6), 3);
        let equal = Sharing::after(0, all);
        let shares = [2, 1, 0].map(|others| equal.of(left, others));
        assert_eq!(shares, [left / 3, left / 2, left]);
        let first = |failures| match Sharing::after(failures, all) {
            Sharing::Equal => None,
            turn @ Sharing::From(first) => {
                assert_eq!(turn.of(left, 2), left);
                Some(first)
            }
        };
        let turns = [0, 1, 2, 3, 4].map(first);
        assert_eq!(turns, [None, Some(0), Some(1), Some(2), Some(0)]);
    }
}
