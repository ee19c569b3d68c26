//! Replaces `tls` and `trust` in a build without TLS: nothing of TLS is in the program.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use redis::{ConnectionAddr, ConnectionInfo};

use crate::errors::cause::Cause;
use crate::net::socket::peer::Peer;
use crate::net::socket::plain::PlainSocket;

pub(crate) fn supported() -> Result<(), String> {
    Err(crate::errors::text::NO_TLS.into())
}

pub(crate) fn validate(tls: &crate::settings::tls::Tls) -> Result<(), String> {
    match tls.is_default() {
        true => Ok(()),
        false => supported(),
    }
}

#[derive(Clone)]
pub(crate) struct Trust;

#[derive(Clone)]
pub(crate) enum Access {}

impl Trust {
    pub(crate) fn new<'a>(
        _: &crate::settings::tls::Tls,
        _: impl IntoIterator<Item = &'a ConnectionInfo>,
    ) -> Trust {
        Trust
    }

    pub(crate) fn access(&self, _: &ConnectionAddr) -> Option<Result<Access, Cause>> {
        None
    }
}

pub(crate) enum TlsSocket {}

impl TlsSocket {
    pub(crate) fn connect(
        peer: &Peer,
        _: Option<&SocketAddr>,
        _: (Instant, Duration),
    ) -> Result<TlsSocket, Cause> {
        match peer.access()? {}
    }

    pub(crate) fn send(&mut self, _: &[u8], _: Instant, _: Instant) -> Result<(), Cause> {
        match *self {}
    }

    pub(crate) fn recv(&mut self, _: &mut [u8], _: Instant, _: Instant) -> Result<usize, Cause> {
        match *self {}
    }

    pub(crate) fn plain(&self) -> &PlainSocket {
        match *self {}
    }

    pub(crate) fn reset(self) {
        match self {}
    }
}
