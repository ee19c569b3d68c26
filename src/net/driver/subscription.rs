//! A connection over which a node notifies this process of releases: a subscription to its channel.

use std::time::Duration;

use crate::errors::cause::{Cause, Limit};
use crate::errors::server_error::Meaning;
use crate::net::discovery::place::Place;
use crate::net::socket::conversation::Conversation;
use crate::net::socket::set_up::Purpose;
use crate::protocol::commands::node_queue;
use crate::protocol::commands::resp::{self, Reply};
use crate::values::clock;

/// A node that has sent nothing for this time is asked whether it is still there.
const QUIET: Duration = Duration::from_secs(1);

pub(crate) struct Subscription {
    conversation: Conversation,
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
        let (connection, properties) = place.open(timeout, Purpose::Messages)?;
        let (opened, late) = (
            (connection, properties.secret),
            Cause::NotConnected(timeout, timeout),
        );
        let mut conversation = Conversation::new(opened, until, late);
        let mut bytes = Vec::new();
        // Published to a channel without other listeners, to find out whether the server lacks PUBLISH, which the
        // scripts use.
        resp::pack(&mut bytes, &[&[b"PUBLISH", channel, b""]], None);
        resp::pack(&mut bytes, &[&[b"SUBSCRIBE", channel]], None);
        conversation.send(&bytes)?;
        let published = conversation.reply()?;
        if let Reply::Error(text) = conversation.reply()? {
            return Err(Cause::refused(&text));
        }
        let refuses = |text: &str| Meaning::of(text).concerns_rights();
        conversation.late = Cause::NoAnswer(QUIET, Limit::Own);
        Ok(Subscription {
            conversation,
            pinged: false,
            is_deaf: matches!(published, Reply::Error(text) if refuses(&text)),
        })
    }

    /// The key in the next message, if one arrives within a second. After an error the subscription has ended.
    pub(crate) fn receive(&mut self) -> Result<Option<Vec<u8>>, Cause> {
        let until = clock::instant() + QUIET;
        self.conversation.until = until;
        loop {
            match self.conversation.reply() {
                Ok(Reply::Error(text)) => return Err(Cause::refused(&text)),
                Ok(reply) => {
                    self.pinged = false;
                    let key = node_queue::message(reply);
                    // A server that sends other things without an end does not keep its reader here either.
                    if key.is_some() || clock::instant() >= until {
                        return Ok(key);
                    }
                }
                Err(Cause::NoAnswer(..)) if !self.pinged => {
                    let mut ping = Vec::new();
                    resp::pack(&mut ping, &[&[b"PING"]], None);
                    self.conversation.until += QUIET;
                    self.conversation.send(&ping)?;
                    self.pinged = true;
                    return Ok(None);
                }
                Err(cause) => return Err(cause),
            }
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        // A node sends messages until the connection is closed, even if a forked child still has a copy of the socket.
        self.conversation.connection.shutdown();
    }
}
