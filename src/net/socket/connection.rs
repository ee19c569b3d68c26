//! A connection to a node, in the clear or over TLS.

use std::net::IpAddr;
use std::time::Instant;

use crate::errors::cause::Cause;
use crate::net::socket::plain::PlainSocket;
use crate::net::socket::tls::TlsSocket;

/// The most bytes that are read at once.
const BUFFER: usize = 16 * 1024;

pub(crate) enum Connection {
    Plain(PlainSocket),
    Tls(TlsSocket),
}

impl Connection {
    /// Writes all of `bytes`. After an error the connection is finished.
    pub(crate) fn send(&mut self, bytes: &[u8], until: Instant, now: Instant) -> Result<(), Cause> {
        match self {
            Connection::Plain(plain) => plain.send(bytes, until, now),
            Connection::Tls(tls) => tls.send(bytes, until, now),
        }
    }

    /// The first bytes received by `until`. Empty if none arrived. After an error the connection is finished.
    pub(crate) fn recv<'a>(
        &mut self,
        buffer: &'a mut Vec<u8>,
        until: Instant,
        now: Instant,
    ) -> Result<&'a [u8], Cause> {
        buffer.resize(BUFFER, 0);
        let read = match self {
            Connection::Plain(plain) => plain.recv(buffer, until, now)?,
            Connection::Tls(tls) => tls.recv(buffer, until, now)?,
        };
        Ok(buffer.get(..read).unwrap_or_default())
    }

    pub(super) fn socket(&self) -> &PlainSocket {
        match self {
            Connection::Plain(plain) => plain,
            Connection::Tls(tls) => tls.plain(),
        }
    }

    /// The address of the other side. `None` over Unix sockets.
    pub(crate) fn peer_ip(&self) -> Option<IpAddr> {
        Some(self.socket().peer()?.ip())
    }

    /// Ends the connection, also where forked children have copies.
    pub(crate) fn shutdown(&self) {
        self.socket().shutdown();
    }

    /// Ends the connection, so that nothing that it still holds is delivered.
    pub(crate) fn reset(self) {
        match self {
            Connection::Plain(plain) => plain.reset(),
            Connection::Tls(tls) => tls.reset(),
        }
    }
}
