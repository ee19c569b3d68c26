//! A node, and how it is reached.

use std::ops::Deref;
use std::time::{Duration, Instant};

use redis::ConnectionInfo;

use crate::errors::cause::Cause;
use crate::errors::server_error::Meaning;
use crate::errors::text::{address, human};
use crate::net::socket::trust::{Access, Trust};
use crate::settings::credentials::{AskCredentials, Credentials};
use crate::values::clock;

#[derive(Clone)]
pub(crate) struct Peer {
    info: ConnectionInfo,
    tls: Option<Result<Access, Cause>>,
    credentials: Option<AskCredentials>,
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
            credentials,
        }
    }

    #[cfg(all(test, feature = "tls"))]
    pub(crate) fn with(info: ConnectionInfo, access: Access) -> Peer {
        Peer {
            info,
            tls: Some(Ok(access)),
            credentials: None,
        }
    }

    /// How the node is reached over TLS, or why it cannot be.
    pub(crate) fn access(&self) -> Result<&Access, Cause> {
        let access = self.tls.as_ref().map(Result::as_ref);
        let missing = || Cause::Tls(crate::errors::text::NO_TLS.into());
        access.ok_or_else(missing)?.map_err(Cause::clone)
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
