//! What a directory is asked: many servers at once, one question each, and what their answers mean together.

use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use redis::ConnectionAddr;

use crate::clock;
use crate::error::Cause;
use crate::net::connection::{Connection, Purpose};
use crate::net::peer::Peer;
use crate::protocol::resp::{self, Reply, ReplyReader};
use crate::protocol::slots::Map;
use crate::protocol::wire::Handshake;

/// No reply is longer: of a Cluster whose 16384 slots are scattered over its servers one by one, each with three servers of
/// long names.
const MAX_REPLY: usize = 16 << 20;

/// Where a master is; and what else the server has said that was asked.
pub(crate) type Answer = Result<(ConnectionAddr, Option<Map>), Unknown>;

/// Why a server that was asked names no master.
pub(crate) enum Unknown {
    /// It knows of none.
    Name,
    Failed(Cause),
}

impl Unknown {
    fn is_silence(&self) -> bool {
        let silence = |cause: &Cause| matches!(cause, Cause::Connect(_) | Cause::NotConnected(..));
        matches!(self, Unknown::Failed(cause) if silence(cause))
    }
}

/// A master's address, how many servers name it, and what the first of them has said besides.
pub(crate) struct Named {
    pub(crate) addr: ConnectionAddr,
    pub(crate) count: usize,
    pub(crate) map: Option<Map>,
}

/// What the servers say together.
#[derive(Default)]
pub(crate) struct Said {
    pub(crate) named: Vec<Named>,
    /// Why others name none. Those that did not answer in time are missing.
    pub(crate) unknown: Vec<(usize, Unknown)>,
}

impl Said {
    /// Waits until more than half of `enough` servers agree, but not for longer than until then. `count`: how many are asked.
    pub(crate) fn gather(
        answers: &Receiver<(usize, Answer)>,
        (count, enough): (usize, usize),
        (until, time): (Instant, Duration),
    ) -> Said {
        let mut said = Said::default();
        let left = || until.saturating_duration_since(clock::instant());
        while !said.is_certain(enough)
            && let Ok((at, answer)) = answers.recv_timeout(left())
        {
            said.add(at, answer);
        }
        let heard = |at: usize| said.unknown.iter().any(|(heard, _)| *heard == at);
        let silent: Vec<usize> = match said.named.is_empty() {
            true => (0..count).filter(|at| !heard(*at)).collect(),
            false => Vec::new(),
        };
        for at in silent {
            said.add(at, Err(Unknown::Failed(Cause::NotConnected(time, time))));
        }
        said
    }

    fn add(&mut self, at: usize, said: Answer) {
        match said {
            Err(why) => self.unknown.push((at, why)),
            Ok((addr, map)) => match self.named.iter_mut().find(|named| named.addr == addr) {
                Some(named) => named.count += 1,
                None => self.named.push(Named {
                    addr,
                    count: 1,
                    map,
                }),
            },
        }
    }

    /// Whether more than half of `count` servers name the same address: the rest cannot change that.
    fn is_certain(&self, count: usize) -> bool {
        self.named.iter().any(|named| named.count > count / 2)
    }

    /// What most of those name that name any.
    pub(crate) fn majority(&self) -> Option<&Named> {
        let count = self.named.iter().map(|named| named.count).sum::<usize>();
        let mut named = self.named.iter();
        named.find(|named| named.count > count / 2)
    }

    /// Whether none of them has answered anything.
    pub(crate) fn is_silence(&self) -> bool {
        self.named.is_empty() && self.unknown.iter().all(|(_, why)| why.is_silence())
    }
}

/// Takes a reply out of the reader, once it is complete. `begins`: nothing of it was read before.
type Read<'a> = &'a mut dyn FnMut(&mut ReplyReader, bool) -> Result<Option<Reply>, Cause>;

/// The reply to one command, over a connection of its own.
pub(crate) fn ask(
    peer: &Peer,
    command: &[&[u8]],
    time: (Instant, Duration),
) -> Result<Reply, Cause> {
    ask_and_read(peer, command, time, &mut |reader, _| reader.next())
}

/// The same, where the reply is read in another way. Where the server has several addresses, and one refuses to answer, the next
/// one is asked.
pub(crate) fn ask_and_read(
    peer: &Peer,
    command: &[&[u8]],
    (until, timeout): (Instant, Duration),
    read: Read<'_>,
) -> Result<Reply, Cause> {
    let mut refused = None;
    let left = until.saturating_duration_since(clock::instant());
    let answered =
        Connection::open_and(
            peer,
            left,
            Purpose::Questions,
            &mut |opened, until| match answer(opened, command, (until, timeout), read)? {
                Reply::Error(text) => {
                    let cause = Cause::refused(&text);
                    refused.get_or_insert(Reply::Error(text));
                    Err(cause)
                }
                reply => Ok(reply),
            },
        );
    answered.or_else(|cause| refused.ok_or(cause))
}

fn answer(
    (mut connection, handshake): (Connection, Handshake),
    command: &[&[u8]],
    (until, timeout): (Instant, Duration),
    read: Read<'_>,
) -> Result<Reply, Cause> {
    let (mut bytes, mut buffer) = (Vec::new(), Vec::new());
    resp::pack(&mut bytes, &[command], None);
    connection.send(&bytes, until, clock::instant())?;
    let (mut reader, mut received) = (ReplyReader::new(handshake.secret), 0);
    loop {
        let bytes = connection.recv(&mut buffer, until, clock::instant())?;
        if bytes.is_empty() {
            return Err(Cause::NotConnected(timeout, timeout));
        }
        let begins = received == 0;
        received += bytes.len();
        if received > MAX_REPLY {
            let most = MAX_REPLY >> 20;
            let text = format!("its answer is longer than {most} MiB");
            return Err(Cause::Endless(text));
        }
        reader.push(bytes);
        if let Some(reply) = read(&mut reader, begins)? {
            return Ok(reply);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text;

    const TIME: Duration = Duration::from_millis(700);

    fn named(name: &str) -> Answer {
        match name {
            "-" => Err(Unknown::Failed(Cause::NotConnected(TIME, TIME))),
            "x" => Err(Unknown::Failed(Cause::Connect("refused".into()))),
            "?" => Err(Unknown::Name),
            "!" => Err(Unknown::Failed(Cause::Refused("NOAUTH".into()))),
            host => Ok((ConnectionAddr::Tcp(host.into(), 1), None)),
        }
    }

    #[test]
    fn most_of_those_that_name_a_master_are_believed() {
        for (said, certain, believed, silence) in [
            (&["a", "a", "b"][..], true, Some("a"), false),
            (&["a", "a"], true, Some("a"), false),
            (&["a", "b", "b"], true, Some("b"), false),
            (&["a"], false, Some("a"), false),
            (&["a", "-", "x"], false, Some("a"), false),
            (&["a", "!", "?"], false, Some("a"), false),
            (&["a", "b"], false, None, false),
            (&["a", "b", "c"], false, None, false),
            (&["-", "x", "x"], false, None, true),
            (&["-", "x", "!"], false, None, false),
            (&["?", "?", "?"], false, None, false),
        ] {
            let mut all = Said::default();
            for (at, name) in said.iter().enumerate() {
                all.add(at, named(name));
            }
            let host = |named: &Named| text::address(&named.addr).replace(":1", "");
            assert_eq!(all.is_certain(3), certain, "{said:?}");
            assert_eq!(all.majority().map(host).as_deref(), believed, "{said:?}");
            assert_eq!(all.is_silence(), silence, "{said:?}");
        }
    }
}
