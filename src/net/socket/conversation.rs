//! Commands and their replies over one connection, one after the other, which concern no lock.

use std::time::Instant;

use crate::errors::cause::Cause;
use crate::errors::secret::Secret;
use crate::errors::server_error::Meaning;
use crate::net::socket::connection::Connection;
use crate::protocol::commands::resp::{Reply, ReplyReader};
use crate::values::clock;

pub(crate) struct Conversation {
    pub(crate) connection: Connection,
    pub(crate) reader: ReplyReader,
    buffer: Vec<u8>,
    /// When the time for all answers ends.
    pub(crate) until: Instant,
    /// Why there is no answer then.
    pub(crate) late: Cause,
}

impl Conversation {
    pub(crate) fn new(
        (connection, secret): (Connection, Secret),
        until: Instant,
        late: Cause,
    ) -> Conversation {
        Conversation {
            connection,
            reader: ReplyReader::new(secret),
            buffer: Vec::new(),
            until,
            late,
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
            return Err(self.late.clone());
        }
        let bytes = self.connection.recv(&mut self.buffer, self.until, now)?;
        self.reader.push(bytes);
        Ok(bytes.len())
    }

    /// The next reply.
    pub(crate) fn reply(&mut self) -> Result<Reply, Cause> {
        self.reply_by(|reader, _| reader.next())
    }

    /// The next reply, once `read` returns it. `read` also gets how many bytes were received for it.
    pub(crate) fn reply_by(
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

    /// Sends this number of packed commands. Returns the replies to them.
    pub(crate) fn ask(&mut self, commands: &[u8], count: usize) -> Result<Vec<Reply>, Cause> {
        // A server that refuses the connection reports why and hangs up, perhaps before all of this is written.
        let sent = self.send(commands);
        let mut replies = Vec::with_capacity(count);
        while replies.len() < count {
            match (self.reply(), &replies[..]) {
                (Ok(reply), _) => replies.push(reply),
                (Err(Cause::Closed(_)), [Reply::Error(text)]) if refuses_all(text) => {
                    return Err(Cause::refused(text));
                }
                // Some proxies hang up on a command that they do not support.
                (Err(Cause::Closed(text)), all) => {
                    return Err(Cause::Closed(text + &unanswered(commands, all.len())));
                }
                (Err(cause), _) => return sent.and(Err(cause)),
            }
        }
        sent?;
        self.is_at_end().map(|()| replies)
    }

    /// Fails if the server has sent more than it was asked for.
    pub(super) fn is_at_end(&self) -> Result<(), Cause> {
        match self.reader.is_empty() {
            true => Ok(()),
            false => Err(Cause::Garbage("more than was asked for".into())),
        }
    }
}

/// Whether a server that closes the connection behind this error may refuse all connections.
fn refuses_all(error: &str) -> bool {
    let meaning = Meaning::of(error);
    meaning.is_not_now() || matches!(meaning, Meaning::TooManyClients | Meaning::Protected)
}

/// For errors: which of these packed commands was not answered.
pub(super) fn unanswered(commands: &[u8], at: usize) -> String {
    let name = name_of(commands, at);
    name.map_or_else(String::new, |name| format!(", before it answered {name}"))
}

/// The name of one of these packed commands.
pub(super) fn name_of(commands: &[u8], at: usize) -> Option<String> {
    let mut reader = ReplyReader::new(Secret::default());
    reader.push(commands);
    let command = (0..=at).map_while(|_| reader.next().ok().flatten()).nth(at);
    match command {
        Some(Reply::Array(words)) => match words.first() {
            Some(Reply::Bulk(name)) => Some(String::from_utf8_lossy(name).into_owned()),
            _ => None,
        },
        _ => None,
    }
}
