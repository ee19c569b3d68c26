//! Commands and their replies over one connection, one after the other, for questions beside the locks.

use std::time::{Duration, Instant};

use crate::errors::cause::{Cause, Limit};
use crate::net::socket::connection::Connection;
use crate::protocol::commands::resp::{Reply, ReplyReader};
use crate::protocol::node::handshake::Handshake;
use crate::values::clock;

pub(crate) struct Conversation {
    pub(crate) connection: Connection,
    pub(crate) reader: ReplyReader,
    buffer: Vec<u8>,
    /// When the time for all answers ends, how long it is, and which limit sets it.
    pub(crate) until: Instant,
    time: (Duration, Limit),
}

impl Conversation {
    pub(crate) fn new(
        (connection, handshake): (Connection, Handshake),
        until: Instant,
        time: (Duration, Limit),
    ) -> Conversation {
        Conversation {
            connection,
            reader: ReplyReader::new(handshake.secret),
            buffer: Vec::new(),
            until,
            time,
        }
    }

    /// Sends packed commands.
    pub(crate) fn send(&mut self, commands: &[u8]) -> Result<(), Cause> {
        self.connection.send(commands, self.until, clock::instant())
    }

    /// Waits for more bytes, until the time is over. Returns how many there are.
    pub(crate) fn fill(&mut self) -> Result<usize, Cause> {
        let now = clock::instant();
        if now >= self.until {
            let (time, limit) = self.time;
            return Err(Cause::NoAnswer(time, limit));
        }
        let bytes = self.connection.recv(&mut self.buffer, self.until, now)?;
        self.reader.push(bytes);
        Ok(bytes.len())
    }

    /// The next reply, once `read` returns it. `read` also gets how many bytes were received for it.
    pub(crate) fn reply(
        &mut self,
        mut read: impl FnMut(&mut ReplyReader, usize) -> Result<Option<Reply>, Cause>,
    ) -> Result<Reply, Cause> {
        let mut received = 0;
        loop {
            if let Some(reply) = read(&mut self.reader, received)? {
                return Ok(reply);
            }
            received += self.fill()?;
        }
    }
}
