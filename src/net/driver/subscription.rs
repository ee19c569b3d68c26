//! A connection over which a node notifies this process of releases: a subscription to its channel.

use std::time::{Duration, Instant};

use crate::errors::cause::{Cause, Limit};
use crate::errors::server_error::Meaning;
use crate::net::place::directory::Place;
use crate::net::socket::connection::Connection;
use crate::net::socket::set_up::Purpose;
use crate::protocol::commands::queue;
use crate::protocol::commands::resp::{self, Reply, ReplyReader};
use crate::values::clock;

/// A node that has sent nothing for this time is asked whether it is still there.
const QUIET: Duration = Duration::from_secs(1);

pub(crate) struct Subscription {
    connection: Connection,
    reader: ReplyReader,
    buffer: Vec<u8>,
    /// Whether the node was asked if it is still there.
    pinged: bool,
    /// Whether the node has no command that sends messages, or not for this user: clients like this one will send none.
    pub(crate) is_deaf: bool,
}

impl Subscription {
    /// Connects and subscribes, all within `timeout`.
    pub(crate) fn open(
        place: &Place,
        channel: &[u8],
        timeout: Duration,
    ) -> Result<Subscription, Cause> {
        let until = clock::instant() + timeout;
        let (mut connection, handshake) = place.open(timeout, Purpose::Messages)?;
        let mut bytes = Vec::new();
        // Published to a channel without other listeners, to find out whether the server lacks PUBLISH, which the
        // scripts use.
        resp::pack(&mut bytes, &[&[b"PUBLISH", channel, b""]], None);
        resp::pack(&mut bytes, &[&[b"SUBSCRIBE", channel]], None);
        connection.send(&bytes, until, clock::instant())?;
        let mut subscription = Subscription {
            connection,
            reader: ReplyReader::new(handshake.secret),
            buffer: Vec::new(),
            pinged: false,
            is_deaf: false,
        };
        let mut published = None;
        loop {
            match subscription.reader.next()? {
                Some(reply) if published.is_none() => published = Some(reply),
                Some(Reply::Error(text)) => return Err(Cause::refused(&text)),
                Some(_) => {
                    let refuses = |text: &str| Meaning::of(text).concerns_rights();
                    subscription.is_deaf =
                        matches!(published, Some(Reply::Error(text)) if refuses(&text));
                    return Ok(subscription);
                }
                None if clock::instant() >= until => {
                    return Err(Cause::NotConnected(timeout, timeout));
                }
                None => subscription.read(until)?,
            }
        }
    }

    /// The key in the next message, if one arrives within a second. After an error the subscription has ended.
    pub(crate) fn receive(&mut self) -> Result<Option<Vec<u8>>, Cause> {
        let until = clock::instant() + QUIET;
        loop {
            match self.reader.next()? {
                Some(Reply::Error(text)) => return Err(Cause::refused(&text)),
                Some(reply) => {
                    self.pinged = false;
                    let key = queue::message(reply);
                    // A server that sends other things without an end does not keep its reader here either.
                    if key.is_some() || clock::instant() >= until {
                        return Ok(key);
                    }
                }
                None if clock::instant() < until => self.read(until)?,
                None if self.pinged => return Err(Cause::NoAnswer(QUIET, Limit::Own)),
                None => {
                    let mut ping = Vec::new();
                    resp::pack(&mut ping, &[&[b"PING"]], None);
                    self.connection.send(&ping, until + QUIET, until)?;
                    self.pinged = true;
                    return Ok(None);
                }
            }
        }
    }

    fn read(&mut self, until: Instant) -> Result<(), Cause> {
        let now = clock::instant();
        let bytes = self.connection.recv(&mut self.buffer, until, now)?;
        self.reader.push(bytes);
        Ok(())
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // A node sends messages until the connection is closed, even if a forked child still has a copy of the socket.
        self.connection.shutdown();
    }
}
