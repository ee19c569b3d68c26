//! A node, and how it is reached.

use std::ops::Deref;

use redis::ConnectionInfo;

use crate::error::Cause;
use crate::net::trust::{Access, Trust};

#[derive(Clone)]
pub(crate) struct Peer {
    info: ConnectionInfo,
    tls: Option<Result<Access, Cause>>,
}

impl Peer {
    pub(crate) fn new(info: ConnectionInfo, trust: &Trust) -> Peer {
        let tls = trust.access(info.addr());
        Peer { info, tls }
    }

    #[cfg(all(test, feature = "tls"))]
    pub(crate) fn with(info: ConnectionInfo, access: Access) -> Peer {
        let tls = Some(Ok(access));
        Peer { info, tls }
    }

    /// How it is reached over TLS, or why it cannot be.
    pub(crate) fn access(&self) -> Result<&Access, Cause> {
        let access = self.tls.as_ref().map(Result::as_ref);
        let missing = || Cause::Tls(crate::text::NO_TLS.into());
        access.ok_or_else(missing)?.map_err(Cause::clone)
    }
}

impl Deref for Peer {
    type Target = ConnectionInfo;

    fn deref(&self) -> &ConnectionInfo {
        &self.info
    }
}
